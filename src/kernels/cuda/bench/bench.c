/* bench.c: the table of benches and the functions that they share. See bench.h. */
#include "kernels/cuda/bench/bench.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/file.h"
#include "kernels/cuda/check_args.h"
#include "kernels/cuda/compile.h"
#include "kernels/cuda/copy_args.h"
#include "kernels/cuda/random_args.h"
#include "kernels/cuda/source.h"
#include "kernels/cuda/specs.h"

#define RANDOM_WORDS "DTYPE=%s MODE=%d"
#define CHECK_WORDS  "DTYPE=%s"
#define COPY_WORDS   "UNROLL=4"

#define COPY_BYTES ((size_t)1 << 30)

static const struct {
    const char *name;
    lt_err (*run)(lt_bench *b);
} benches[] = {{"sgemm", lt_bench_sgemm},         {"gemm", lt_bench_gemm_ops},
               {"attention", lt_bench_attention}, {"memory", lt_bench_memory_ops},
               {"thesis", lt_bench_thesis},       {"decode", lt_bench_decode},
               {"quant", lt_bench_quant},         {"fp8", lt_bench_scaled}};

static void add_real(json_t *o, const char *key, double v) {
    if (v != 0.0 && isfinite(v)) {
        (void)json_object_set_new(o, key, json_real(v));
    }
}

static void add_text(json_t *o, const char *key, const char *v) {
    if (v != NULL) {
        (void)json_object_set_new(o, key, json_string(v));
    }
}

/* Write the rows measured so far. It is first called before anything is measured, so that a path
 * that cannot be written wastes no run. */
static lt_err json_write(const lt_bench *b) {
    const lt_cuda_info *info = lt_cuda_get_info(b->gpu);
    char when[LT_CLOCK_TEXT_BYTES], *text = NULL;
    lt_err err = LT_OK;
    json_t *root = NULL;
    if (b->json_path[0] == '\0') {
        return LT_OK;
    }
    root = json_pack("{s:s, s:s, s:i, s:f, s:i, s:O}", "gpu", info->name, "when",
                     lt_clock_text(when), "driver", info->driver_version, "copy_gbps", b->copy_gbps,
                     "cublaslt", lt_cublas_version(), "rows", b->rows);
    text = root == NULL ? NULL : json_dumps(root, JSON_INDENT(1));
    if (text == NULL) {
        LT_FAIL_DONE(LT_ERR_OOM, "%s: text of %zu rows", b->json_path, json_array_size(b->rows));
    }
    if (lt_file_write_atomic(b->json_path, text, strlen(text)) != LT_OK) {
        LT_FAIL_DONE(LT_ERR_IO, "cannot write %s: %s", b->json_path, strerror(errno));
    }
done:
    free(text);
    json_decref(root);
    return err;
}

void lt_bench_row(lt_bench *b, const lt_bench_result *r) {
    const double tflops = r->flops / r->ms / 1e9, gbps = r->bytes / r->ms / 1e6;
    const double share = r->limit <= 0.0
                             ? 0.0
                             : (r->limit_is_flops ? tflops * 1e12 : gbps * 1e9) / r->limit;
    json_t *o = json_object();
    fprintf(b->to, "%-12s %-30s %-22s %9.4f ms", r->op, r->name, r->shape, r->ms);
    if (r->limit_is_flops) {
        fprintf(b->to, " %7.2f TFLOP/s", tflops);
    } else {
        fprintf(b->to, " %7.0f GB/s   ", gbps);
    }
    fprintf(b->to, " %5.1f%% of limit", 100.0 * share);
    if (r->peer_ms > 0.0) {
        fprintf(b->to, " %6.1f%% of peer", 100.0 * r->peer_ms / r->ms);
    }
    if (r->peer_lacks) {
        fprintf(b->to, " the peer has none");
    }
    if (r->took.n_regs > 0) {
        fprintf(b->to, " %3d regs %d x %d thr/SM", r->took.n_regs, r->took.blocks_per_sm,
                r->took.threads);
    }
    if (r->state.sm_mhz > 0) {
        fprintf(b->to, " | %.1fs: %.2f, %d MHz %.0f W%s", b->sustained_s,
                (r->limit_is_flops ? r->flops / 1e3 : r->bytes) / r->ms_sustained / 1e6,
                r->state.sm_mhz, r->state.power_w,
                (r->state.throttle & 0x64) != 0 ? " throttled" : "");
    }
    fprintf(b->to, "\n");
    fflush(b->to);
    add_text(o, "op", r->op);
    add_text(o, "name", r->name);
    add_text(o, "idea", r->idea);
    add_text(o, "shape", r->shape);
    add_real(o, "rung", r->rung);
    add_real(o, "ms", r->ms);
    add_real(o, "ms_best", r->ms_best);
    add_real(o, "ms_sustained", r->ms_sustained);
    add_real(o, r->limit_is_flops ? "tflops" : "gbps", r->limit_is_flops ? tflops : gbps);
    add_real(o, "of_limit", share);
    add_real(o, "of_peer", r->peer_ms > 0.0 ? r->peer_ms / r->ms : 0.0);
    add_real(o, "error_max", r->error_max);
    add_real(o, "error_relative", r->error_relative);
    add_real(o, "registers", r->took.n_regs);
    add_real(o, "warps_per_sm", r->took.blocks_per_sm * r->took.threads / 32.0);
    add_real(o, "sm_mhz", r->state.sm_mhz);
    add_real(o, "power_w", r->state.power_w);
    (void)json_object_set_new(o, "peer", json_boolean(r->peer));
    (void)json_array_append_new(b->rows, o);
    lt_bench_failed(b, r->op, r->shape, json_write(b));
}

lt_err lt_bench_took(lt_bench *b, lt_cuda_launched *out, const lt_timing *t) {
    LT_TRY(t->queue(t->ctx, b->stream, 0));
    return lt_cuda_last_launch(b->gpu, out);
}

void lt_bench_check(lt_bench *b, const char *op, const char *what, bool good, const char *fmt,
                    ...) {
    va_list ap;
    if (good) {
        return;
    }
    b->n_failed++;
    fprintf(b->to, "WRONG %s %s: ", op, what);
    va_start(ap, fmt);
    vfprintf(b->to, fmt, ap);
    va_end(ap);
    fprintf(b->to, "\n");
}

void lt_bench_failed(lt_bench *b, const char *op, const char *shape, lt_err err) {
    if (err != LT_OK) {
        lt_bench_check(b, op, shape, false, "%s", lt_error_message());
    }
}

lt_err lt_bench_random(lt_bench *b, void *x, int64_t n, const char *dtype, uint64_t seed,
                       float scale, bool integers) {
    const lt_cuda_kernel *k;
    char defines[64];
    lt_cuda_random_fill_args call = {.x = x, .n = n, .seed = seed, .scale = scale};
    void *args[] = {&call};
    snprintf(defines, sizeof defines, RANDOM_WORDS, dtype, integers);
    LT_TRY(lt_cuda_kernel_get(b->gpu, &k, "random.cu", "random_fill", defines));
    return lt_cuda_launch(b->gpu, b->stream, k, &(lt_cuda_dims){.grid = {1056}, .block = {256}},
                          args);
}

lt_err lt_bench_compare(lt_bench *b, lt_bench_error *out, const void *x, const char *dtype,
                        const double *ref, const double *bound, int64_t rows, int64_t cols,
                        int64_t ld) {
    lt_err err = LT_OK;
    const lt_cuda_kernel *k;
    double host[4] = {0};
    void *sums = NULL;
    char defines[64];
    lt_cuda_diff_args call = {
        .x = x, .ref = ref, .bound = bound, .rows = rows, .cols = cols, .ld = ld};
    void *args[] = {&call};
    snprintf(defines, sizeof defines, CHECK_WORDS, dtype);
    LT_TRY_DONE(lt_cuda_alloc(b->gpu, &sums, sizeof host, "check"));
    call.out = sums;
    LT_TRY_DONE(lt_cuda_fill(b->gpu, b->stream, sums, 0, sizeof host));
    LT_TRY_DONE(lt_cuda_kernel_get(b->gpu, &k, "check.cu", "diff", defines));
    LT_TRY_DONE(lt_cuda_launch(
        b->gpu, b->stream, k,
        &(lt_cuda_dims){.grid = {(unsigned)((rows * cols + 255) / 256)}, .block = {256}}, args));
    LT_TRY_DONE(lt_cuda_download(b->gpu, b->stream, host, sums, sizeof host));
    LT_TRY_DONE(lt_cuda_sync(b->gpu, b->stream));
    *out = (lt_bench_error){.relative = host[1] > 0.0 ? sqrt(host[0] / host[1]) : sqrt(host[0]),
                            .scaled_max = host[2],
                            .n_bad = host[3]};
done:
    lt_cuda_free(b->gpu, sums);
    return err;
}

lt_err lt_bench_gemm_ref(lt_bench *b, double *ref, double *bound, const lt_bench_gemm *g) {
    const lt_cuda_kernel *k;
    lt_bench_gemm v = *g;
    char defines[64];
    lt_cuda_gemm_ref_args call = {.ref = ref,
                                  .bound = bound,
                                  .a = v.a,
                                  .b = v.b,
                                  .c0 = v.c0,
                                  .m = v.m,
                                  .n = v.n,
                                  .k = v.k,
                                  .a_row = v.a_row,
                                  .a_col = v.a_col,
                                  .b_row = v.b_row,
                                  .b_col = v.b_col,
                                  .ldc = v.ldc,
                                  .alpha = v.alpha,
                                  .beta = v.beta};
    void *args[] = {&call};
    snprintf(defines, sizeof defines, CHECK_WORDS, g->dtype);
    LT_TRY(lt_cuda_kernel_get(b->gpu, &k, "check.cu", "gemm_ref", defines));
    return lt_cuda_launch(
        b->gpu, b->stream, k,
        &(lt_cuda_dims){.grid = {(unsigned)(g->n + 127) / 128, (unsigned)g->m}, .block = {128}},
        args);
}

/* ---- The yardstick: a device-to-device copy ---- */

typedef struct {
    lt_cuda *gpu;
    void *dst, *src;
} copy_ctx;

static lt_err copy_ours(void *p, CUstream s, int set) {
    const copy_ctx *c = p;
    const lt_cuda_kernel *k;
    void *dst = c->dst, *src = c->src;
    int64_t n = (int64_t)COPY_BYTES / 16;
    lt_cuda_copy_args call = {.dst = dst, .src = src, .n_vecs = n};
    void *args[] = {&call};
    (void)set;
    LT_TRY(lt_cuda_kernel_get(c->gpu, &k, "copy.cu", "copy", COPY_WORDS));
    return lt_cuda_launch(
        c->gpu, s, k, &(lt_cuda_dims){.grid = {(unsigned)(n / (512 * 4))}, .block = {512}}, args);
}

static lt_err copy_driver(void *p, CUstream s, int set) {
    const copy_ctx *c = p;
    (void)set;
    return lt_cuda_copy(c->gpu, s, c->dst, c->src, COPY_BYTES);
}

static lt_err copy_measure(lt_bench *b) {
    lt_err err = LT_OK;
    copy_ctx c = {.gpu = b->gpu};
    lt_timing t[] = {{.name = "driver's copy", .queue = copy_driver, .ctx = &c},
                     {.name = "copy.cu", .queue = copy_ours, .ctx = &c}};
    LT_TRY_DONE(lt_cuda_alloc(b->gpu, &c.dst, COPY_BYTES, "copy"));
    LT_TRY_DONE(lt_cuda_alloc(b->gpu, &c.src, COPY_BYTES, "copy"));
    LT_TRY_DONE(lt_bench_random(b, c.src, (int64_t)COPY_BYTES / 4, "fp32", 7, 1.0f, false));
    LT_TRY_DONE(lt_timing_run(b->gpu, b->stream, t, 2,
                              &(lt_timing_plan){.n_sets = 1, .rounds = 11, .inner_ms = 1.0}));
    for (int i = 0; i < 2; i++) {
        const double gbps = 2.0 * (double)COPY_BYTES / t[i].ms / 1e6;
        b->copy_gbps = gbps > b->copy_gbps ? gbps : b->copy_gbps;
        fprintf(b->to, "copy bandwidth, %s: %.0f GB/s\n", t[i].name, gbps);
    }
done:
    lt_cuda_free(b->gpu, c.dst);
    lt_cuda_free(b->gpu, c.src);
    return err;
}

/* ---- The run ---- */

bool lt_bench_skips(const lt_bench *b, const char *shape) {
    for (const char *p = b->shape; *p != '\0'; p += strcspn(p, ","), p += *p == ',') {
        if (memmem(shape, strlen(shape), p, strcspn(p, ",")) != NULL) {
            return false;
        }
    }
    return b->shape[0] != '\0';
}

static bool wanted(const char *ops, const char *name) {
    const size_t len = strlen(name);
    for (const char *p = ops; *p != '\0'; p += strcspn(p, ","), p += *p == ',') {
        if (strncmp(p, name, len) == 0 && (p[len] == ',' || p[len] == '\0')) {
            return true;
        }
    }
    return ops[0] == '\0';
}

/* Check that every name is that of a bench. */
static lt_err check_names(const char *ops) {
    for (const char *p = ops; *p != '\0'; p += strcspn(p, ","), p += *p == ',') {
        const size_t n = strcspn(p, ",");
        bool known = false;
        for (size_t i = 0; i < sizeof benches / sizeof *benches; i++) {
            known |= strlen(benches[i].name) == n && memcmp(benches[i].name, p, n) == 0;
        }
        if (!known) {
            LT_FAIL(LT_ERR_ARG, "bench kernels: no bench is named '%.*s'; --help lists them",
                    (int)(n < 60 ? n : 60), p);
        }
    }
    return LT_OK;
}

lt_err lt_bench_kernels(FILE *to, const lt_bench_options *o) {
    lt_err err = LT_OK;
    lt_bench b = {.to = to,
                  .shape = o->shape,
                  .json_path = o->json_path,
                  .ladder = o->ladder,
                  .check_only = o->check_only,
                  .rounds = o->rounds,
                  .sustained_s = o->sustained_s};
    lt_nvml_reading state = {0};
    const lt_cuda_info *info;
    LT_TRY(check_names(o->ops));
    b.rows = json_array();
    LT_TRY_DONE(lt_device_open(&b.device, LT_DEVICE_CUDA, LT_DEVICE_DEFAULT));
    b.gpu = lt_cuda_device_gpu(b.device);
    LT_TRY_DONE(lt_cuda_stream_open(b.gpu, &b.stream, false));
    info = lt_cuda_get_info(b.gpu);
    fprintf(to, "%s, %d SMs, %.0f GiB, CUDA %d.%d", info->name, info->n_sms,
            (double)info->memory_bytes / 1073741824.0, info->driver_version / 1000,
            info->driver_version % 1000 / 10);
    if (lt_nvml_read(&state, info->pci) == LT_OK) {
        fprintf(to, ", %d of %d MHz, %.0f of %.0f W, %d C, ECC %s", state.sm_mhz, state.sm_mhz_max,
                state.power_w, state.power_limit_w, state.temperature_c, state.ecc ? "on" : "off");
    }
    if (lt_cublas_open(&b.blas, b.gpu) == LT_OK) {
        fprintf(to, ", cuBLASLt %d\n", lt_cublas_version());
    } else {
        fprintf(to, "\nno peer: %s\n", lt_error_message());
    }
    LT_TRY_DONE(json_write(&b));
    if (!b.check_only) {
        LT_TRY_DONE(copy_measure(&b));
    }
    if (o->peer[0] != '\0') {
        LT_TRY_DONE(lt_peer_open(&b.peer, o->peer, (const char *const[]){NULL}));
    }
    for (size_t i = 0; i < sizeof benches / sizeof *benches; i++) {
        if (!wanted(o->ops, benches[i].name)) {
            continue;
        }
        lt_bench_failed(&b, benches[i].name, "", benches[i].run(&b));
    }
    fprintf(to, "%d kernels compiled in this run, the rest came from the cache; %d checks failed\n",
            lt_cuda_n_compiled(b.gpu), b.n_failed);
    if (b.n_failed > 0) {
        LT_FAIL_DONE(LT_ERR_NUMERIC, "%d checks of GPU kernels failed", b.n_failed);
    }
done:
    lt_peer_close(&b.peer);
    lt_cublas_close(b.blas);
    if (b.gpu != NULL) {
        lt_cuda_stream_close(b.gpu, b.stream);
    }
    lt_device_close(b.device);
    json_decref(b.rows);
    return err;
}

void lt_specs_bench(lt_specs *l) {
    static const char *const types[] = {"fp32", "bf16", "fp16"};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        lt_spec(l, LT_SM_ALL, "check.cu", CHECK_WORDS, types[i]);
        lt_spec(l, LT_SM_ALL, "random.cu", RANDOM_WORDS, types[i], 0);
    }
    lt_spec(l, LT_SM_ALL, "random.cu", RANDOM_WORDS, "fp32", 1);
    lt_spec(l, LT_SM_ALL, "copy.cu", COPY_WORDS);
}
