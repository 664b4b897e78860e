/* bench.c: see bench.h. A case is timed until 0.3 s or 1000 calls have passed, at least three
 * times (once, if a call takes 2 s); the fastest call counts, as in the probe that gives the
 * bound; the JSON has the median, too. Buffers stay where they are between calls, so data that
 * fit a cache are found there, as in a model that runs layer after layer. */
#include "ops/bench.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/json.h"
#include "kernels/registry.h"

enum { MAX_CALLS = 1000, FILL_COUNT = 1 << 20 };

typedef struct {
    lt_device *device;
    const lt_backend *backend; /* The device's backend. */
    lt_queue *queue;
    lt_setup setup;
    void *data[LT_SETUP_MAX_TENSORS], *packed;
    size_t bytes[LT_SETUP_MAX_TENSORS], packed_bytes;
} stage;

/* Values of a tensor as it is stored; large ones repeat the first FILL_COUNT. */
static lt_err fill(const stage *s, int tensor) {
    lt_case_tensor t = s->setup.tensors[tensor];
    const int64_t total = t.count;
    const size_t elem = lt_dtype_bytes(t.dtype);
    lt_rng r = {.seed = 1, .stream = (uint64_t)tensor};
    double *values = NULL;
    unsigned char *raw = malloc((size_t)total * elem);
    lt_err err = LT_OK;

    t.count = total < FILL_COUNT ? total : FILL_COUNT;
    values = malloc((size_t)t.count * sizeof *values);
    if (raw == NULL || values == NULL) {
        LT_FAIL_DONE(LT_ERR_OOM, "bench: %s", t.name);
    }
    t.fill(values, &t, &r);
    for (int64_t i = 0; i < t.count && t.dtype == LT_I32; i++) {
        ((int32_t *)(void *)raw)[i] = (int32_t)values[i];
    }
    for (int64_t i = 0; i < t.count && t.dtype == LT_I64; i++) {
        ((int64_t *)(void *)raw)[i] = (int64_t)values[i];
    }
    if (t.dtype != LT_I32 && t.dtype != LT_I64) {
        lt_convert(raw, t.dtype, values, LT_F64, (size_t)t.count);
    }
    for (int64_t i = t.count; i < total; i += t.count) {
        const int64_t n = total - i < t.count ? total - i : t.count;
        memcpy(raw + (size_t)i * elem, raw, (size_t)n * elem);
    }
    LT_TRY_DONE(s->backend->upload(s->queue, s->data[tensor], raw, (size_t)total * elem));
    LT_TRY_DONE(s->backend->sync(s->queue));
done:
    free(raw);
    free(values);
    return err;
}

static lt_err stage_open(stage *s, lt_device *device, const lt_op_cases *o, const lt_case *c,
                         lt_dtype act, bool as_forward) {
    memset(s, 0, sizeof *s);
    s->device = device;
    s->backend = device->backend;
    LT_TRY(s->backend->queue_open(device, &s->queue));
    lt_setup_build(&s->setup, o, c, act, as_forward);
    for (int i = 0; i < s->setup.n_tensors; i++) {
        const lt_case_tensor *t = &s->setup.tensors[i];
        if (t->alias != NULL) {
            *t->slot = *lt_setup_find(&s->setup, t->alias)->slot;
            continue;
        }
        s->bytes[i] = (size_t)t->count * lt_dtype_bytes(t->dtype);
        LT_TRY(s->backend->alloc(device, &s->data[i], s->bytes[i], t->name));
        *t->slot = lt_case_view(t, s->data[i], 0);
        if (t->source == NULL && t->role != LT_ROLE_OUT && t->role != LT_ROLE_SCRATCH) {
            LT_TRY(fill(s, i));
        }
    }
    s->packed_bytes = lt_setup_packed_bytes(&s->setup, o->op, device);
    if (s->packed_bytes > 0) {
        LT_TRY(s->backend->alloc(device, &s->packed, s->packed_bytes, "packed weights"));
        lt_setup_set_packed(&s->setup, o->op, s->packed, s->packed_bytes);
    }
    return LT_OK;
}

static void stage_close(stage *s) {
    for (int i = 0; i < s->setup.n_tensors; i++) {
        if (s->data[i] != NULL) {
            s->backend->release(s->device, s->data[i], s->bytes[i]);
        }
    }
    if (s->packed != NULL) {
        s->backend->release(s->device, s->packed, s->packed_bytes);
    }
    if (s->queue != NULL) {
        s->backend->queue_close(s->queue);
    }
    memset(s, 0, sizeof *s);
}

/* Run the op's chosen implementation once. */
static lt_err run_chosen(stage *s, lt_op op) {
    const lt_op_list list = lt_registry_list(s->backend, op);
    LT_TRY(lt_registry_run(&list, op, s->queue, s->setup.args));
    return s->backend->sync(s->queue);
}

/* Prepare what a backward case takes from its forward case, and packed weights. */
static lt_err prepare(stage *s, const lt_op_cases *o, const lt_case *c, lt_dtype act) {
    stage f = {0};
    lt_err err = LT_OK;
    bool needs = false;

    for (int i = 0; i < s->setup.n_tensors; i++) {
        needs = needs || s->setup.tensors[i].source != NULL;
    }
    if (needs) {
        LT_TRY_DONE(stage_open(&f, s->device, lt_all_op_cases[o->forward], c, act, true));
        LT_TRY_DONE(run_chosen(&f, o->forward));
    }
    for (int i = 0; needs && i < s->setup.n_tensors; i++) {
        const lt_case_tensor *t = &s->setup.tensors[i];
        const lt_case_tensor *from = t->source != NULL ? lt_setup_find(&f.setup, t->source) : NULL;
        if (from != NULL) {
            LT_TRY_DONE(s->backend->copy(s->queue, s->data[i], from->slot->data, s->bytes[i]));
        }
    }
    LT_TRY_DONE(lt_setup_pack(&s->setup, o->op, s->device, s->queue, s->packed));
    err = s->backend->sync(s->queue);
done:
    stage_close(&f);
    return err;
}

static int by_value(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Seconds of the fastest call, and of the median one. */
static lt_err time_impl(stage *s, const lt_op_impl *impl, double *seconds, double *median_s) {
    double times[MAX_CALLS], total = 0.0;
    int n = 0;

    for (int warm = 1; n < MAX_CALLS && (n < 3 || total < 0.3); warm = 0) {
        const double start = lt_clock_s();
        LT_TRY(impl->run(s->queue, s->setup.args));
        LT_TRY(s->backend->sync(s->queue));
        if (warm != 0 && lt_clock_s() - start < 1.0) {
            continue;
        }
        times[n] = lt_clock_s() - start;
        total += times[n++];
        if (times[n - 1] > 2.0) {
            break;
        }
    }
    qsort(times, (size_t)n, sizeof *times, by_value);
    *seconds = times[0];
    *median_s = times[n / 2];
    return LT_OK;
}

static void print_time(FILE *to, double seconds) {
    if (seconds < 1e-3) {
        fprintf(to, "%8.1f us", seconds * 1e6);
    } else if (seconds < 1.0) {
        fprintf(to, "%8.2f ms", seconds * 1e3);
    } else {
        fprintf(to, "%8.2f s ", seconds);
    }
}

static void report(const lt_case_bench_options *o, FILE *to, lt_op op, const lt_case *c,
                   lt_dtype act, const char *impl, bool chosen, double seconds, double median_s,
                   lt_cost cost) {
    const double peak = act == LT_BF16 ? o->peak_bf16_gflops : o->peak_f32_gflops;
    const double flop_s = cost.flops / (peak * 1e9), byte_s = cost.bytes / (o->copy_gbps * 1e9);
    const double bound_s = flop_s > byte_s ? flop_s : byte_s;
    const long cache = sysconf(_SC_LEVEL3_CACHE_SIZE);
    const bool in_cache = byte_s > flop_s && cost.bytes < (double)(cache > 0 ? cache : 8 << 20);

    if (o->json) {
        json_t *row = json_pack("{s:s, s:s, s:s, s:s, s:b, s:f, s:f, s:f, s:f, s:f}", "op",
                                lt_op_name(op), "case", c->name, "dtype", lt_dtype_name(act),
                                "impl", impl, "chosen", chosen ? 1 : 0, "seconds", seconds,
                                "median_s", median_s, "gflops", cost.flops / seconds / 1e9, "gbps",
                                cost.bytes / seconds / 1e9, "share_of_bound", bound_s / seconds);
        json_dumpf(row, to, JSON_COMPACT | JSON_REAL_PRECISION(6));
        fputc('\n', to);
        json_decref(row);
        return;
    }
    fprintf(to, "%-16s %-22s %-5s%c%-16s", lt_op_name(op), c->name, lt_dtype_name(act),
            chosen ? '*' : ' ', impl);
    print_time(to, seconds);
    fprintf(to, " %8.1f %7.1f %6.1f %% %s\n", cost.flops / seconds / 1e9,
            cost.bytes / seconds / 1e9, 100.0 * bound_s / seconds,
            flop_s > byte_s ? "flops"
            : in_cache      ? "cache"
                            : "bytes");
    fflush(to);
}

static bool wants_impl(const lt_case_bench_options *o, const lt_op_impl *impl,
                       const lt_op_impl *chosen) {
    if (o->impl[0] == '\0') {
        return impl == chosen;
    }
    return strcmp(o->impl, "all") == 0 ? strcmp(impl->name, "ref") != 0 || impl == chosen
                                       : strcmp(o->impl, impl->name) == 0;
}

static lt_err bench_case(const lt_case_bench_options *o, FILE *to, const lt_op_cases *cases,
                         const lt_case *c, lt_dtype act) {
    const lt_op_list list = lt_registry_list(o->device->backend, cases->op);
    static stage s;
    lt_err err = LT_OK;
    const lt_op_impl *chosen;

    LT_TRY_DONE(stage_open(&s, o->device, cases, c, act, false));
    LT_TRY_DONE(prepare(&s, cases, c, act));
    chosen = lt_registry_choose(list, s.setup.args, s.device, NULL, 0);
    if (cases->op == LT_OP_matmul_pack && s.packed_bytes == 0) {
        goto done; /* This backend does not pack. */
    }
    for (int i = 0; i < list.n_impls; i++) {
        const lt_op_impl *impl = &list.impls[i];
        double seconds, median_s;
        if (!wants_impl(o, impl, chosen) ||
            (impl->refuse != NULL && impl->refuse(s.setup.args, s.device) != NULL)) {
            continue;
        }
        LT_TRY_DONE(time_impl(&s, impl, &seconds, &median_s));
        report(o, to, cases->op, c, act, impl->name, impl == chosen, seconds, median_s,
               lt_op_cost(cases->op, s.setup.args));
    }
done:
    stage_close(&s);
    return err;
}

lt_err lt_case_bench_run(const lt_case_bench_options *o, FILE *to) {
    LT_TRY(lt_op_name_check(o->op));
    if (!o->json) {
        fprintf(to,
                "copy %.1f GB/s, peak %.0f GFLOP/s in F32, %.0f in BF16; * the one chosen\n"
                "%-16s %-22s %-5s %-16s%11s %8s %7s %8s by\n",
                o->copy_gbps, o->peak_f32_gflops, o->peak_bf16_gflops, "op", "case", "type", "impl",
                "time", "GFLOP/s", "GB/s", "of bound");
    }
    for (int op = 0; op < LT_OP_COUNT; op++) {
        const lt_op_cases *cases = lt_all_op_cases[op];
        if (o->op[0] != '\0' && strcmp(o->op, lt_op_name((lt_op)op)) != 0) {
            continue;
        }
        for (int i = 0; i < cases->n_cases; i++) {
            const lt_case *c = &cases->cases[i];
            const int dtypes = c->dtypes != 0 ? c->dtypes : 1 << LT_F32 | 1 << LT_BF16;
            if ((c->use & LT_CASE_BENCH) == 0 ||
                (o->case_name[0] != '\0' && strstr(c->name, o->case_name) == NULL)) {
                continue;
            }
            for (int dtype = 0; dtype < LT_DTYPE_COUNT; dtype++) {
                if (dtypes >> dtype & 1) {
                    LT_TRY(bench_case(o, to, cases, c, (lt_dtype)dtype));
                }
            }
        }
    }
    return LT_OK;
}
