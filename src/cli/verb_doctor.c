/* verb_doctor.c: `lateen doctor`: reports what this machine is, what it can do (measured), what was
 * built in and, with --ops, which implementation serves which shape. All facts are gathered in one
 * JSON object, from which the text is printed, so the two never differ. */
#include <event2/event.h>
#include <hwloc.h>
#include <jansson.h>
#include <oneapi/dnnl/dnnl.h>
#include <stdio.h>
#include <string.h>
#include <xxhash.h>
#include <yaml.h>
#include <zlib.h>
#include <zstd.h>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "base/error.h"
#include "base/thread.h"
#include "cli/verb.h"
#include "kernels/cpu/features.h"
#include "kernels/cpu/machine.h"
#include "kernels/cpu/probe.h"
#include "kernels/cuda/doctor.h"
#include "kernels/cuda/runtime.h"
#include "kernels/registry.h"
#include "ops/case.h"

#define DOCTOR_OPTIONS(X)                                                                          \
    X(BOOL, ops, "ops", "false", 0, 0, "",                                                         \
      "list which implementation serves each op and shape, and why others refused")                \
    X(STR, op, "op", "", 0, 0, "", "with --ops: only this op")                                     \
    X(BOOL, measure, "measure", "true", 0, 0, "",                                                  \
      "measure memory bandwidth and peak FLOP/s (2 s)")                                            \
    X(BOOL, json, "json", "false", 0, 0, "", "print one JSON object")

typedef struct {
    DOCTOR_OPTIONS(LT_OPTION_FIELD)
} doctor_options;
#define LT_OPTION_STRUCT doctor_options
static const lt_option rows[] = {DOCTOR_OPTIONS(LT_OPTION_ROW)};
const lt_option_table lt_verb_doctor_options = LT_OPTION_TABLE("doctor", rows);

/* ---- Facts ---- */

static json_t *cpu_json(const lt_machine *m) {
    const lt_cpu_features *f = lt_cpu_features_get();
    json_t *names = json_array();
#define FEATURE(field, name)                                                                       \
    if (f->field) {                                                                                \
        json_array_append_new(names, json_string(name));                                           \
    }
    LT_CPU_FEATURE_MAP(FEATURE)
#undef FEATURE
    return json_pack("{s:s, s:i, s:i, s:i, s:i, s:s, s:i, s:i, s:s, s:o}", "model", f->model,
                     "packages", m->n_packages, "cores", m->n_cores, "hardware_threads", m->n_pus,
                     "allowed", m->limits.n_cpus, "allowed_by", m->limits.cpus_by, "threads_used",
                     lt_thread_count(), "numa_nodes", m->n_numa, "kernels", lt_isa_name(f->isa),
                     "instructions", names);
}

static json_t *caches_json(const lt_machine *m) {
    json_t *all = json_array();
    for (int i = 0; i < m->n_caches; i++) {
        json_array_append_new(all, json_pack("{s:i, s:I, s:i}", "level", m->caches[i].level,
                                             "bytes", (json_int_t)m->caches[i].bytes, "count",
                                             m->caches[i].count));
    }
    return all;
}

/* 0: unknown. */
static json_t *memory_json(const lt_limits *l) {
    const uint64_t all = l->memory_bytes, left = l->available_bytes;
    return json_pack("{s:I, s:s, s:I, s:s}", "bytes",
                     (json_int_t)(all == LT_LIMIT_UNKNOWN ? 0 : all), "bytes_by", l->memory_by,
                     "available_bytes", (json_int_t)(left == LT_LIMIT_UNKNOWN ? 0 : left),
                     "available_by", l->available_by);
}

static json_t *measured_json(const lt_cpu_probe *p) {
    json_t *f32 = json_object(), *bf16 = json_object();
    for (int isa = 0; isa <= LT_ISA_AVX512; isa++) {
        if (p->f32_gflops[isa] > 0.0) {
            json_object_set_new(f32, lt_isa_name((lt_isa)isa), json_real(p->f32_gflops[isa]));
        }
    }
    json_object_set_new(f32, "oneDNN", json_real(p->onednn_f32_gflops));
    json_object_set_new(f32, "lateen", json_real(p->matmul_f32_gflops));
    json_object_set_new(bf16, "lateen", json_real(p->matmul_bf16_gflops));
    if (p->bf16_gflops > 0.0) {
        json_object_set_new(bf16, "avx512_bf16", json_real(p->bf16_gflops));
    }
    json_object_set_new(bf16, "oneDNN", json_real(p->onednn_bf16_gflops));
    return json_pack("{s:i, s:f, s:f, s:o, s:o}", "threads", p->n_threads, "copy_gbps",
                     p->copy_gbps, "read_gbps", p->read_gbps, "f32_gflops", f32, "bf16_gflops",
                     bf16);
}

static json_t *libraries_json(void) {
    char dnnl[32], xxh[32], hwloc[32], pcre2[64] = "?";
    const dnnl_version_t *d = dnnl_version();
    const unsigned h = hwloc_get_api_version(), x = XXH_versionNumber();

    snprintf(dnnl, sizeof dnnl, "%d.%d.%d", d->major, d->minor, d->patch);
    snprintf(xxh, sizeof xxh, "%u.%u.%u", x / 10000, x / 100 % 100, x % 100);
    snprintf(hwloc, sizeof hwloc, "%u.%u", h >> 16, h >> 8 & 0xFF);
    /* "10.42 2022-12-11": 24 characters at most, says its manual. */
    (void)pcre2_config(PCRE2_CONFIG_VERSION, pcre2);
    if (strchr(pcre2, ' ') != NULL) {
        *strchr(pcre2, ' ') = '\0';
    }
    return json_pack("{s:s, s:s, s:s, s:s, s:s, s:s, s:s, s:s, s:s}", "oneDNN", dnnl, "hwloc",
                     hwloc, "jansson", jansson_version_str(), "libyaml", yaml_get_version_string(),
                     "pcre2", pcre2, "zlib", zlibVersion(), "zstd", ZSTD_versionString(), "xxHash",
                     xxh, "libevent", event_get_version());
}

static json_t *gpus_json(char *why_none, size_t why_bytes, bool measure) {
    json_t *all = json_array();
    int n = 0;
    why_none[0] = '\0';
    if (lt_cuda_count(&n) != LT_OK) {
        snprintf(why_none, why_bytes, "%s", lt_error_message());
    }
    for (int i = 0; i < n; i++) {
        json_t *gpu = NULL;
        lt_device *device = NULL;
        if (lt_device_open(&device, LT_DEVICE_CUDA, i) == LT_OK &&
            lt_cuda_doctor(&gpu, device, measure) == LT_OK) {
            json_array_append_new(all, gpu);
        } else {
            snprintf(why_none, why_bytes, "%s", lt_error_message());
        }
        lt_device_close(device);
    }
    return all;
}

/* One case of an op on a device: the implementation that serves it, and the reasons of the
 * others. */
static json_t *choice_json(const lt_device *device, const lt_op_cases *o, const lt_case *c,
                           lt_dtype dtype) {
    static lt_setup s;
    char shape[160], refusals[1024], *line, *rest = refusals;
    const lt_op_impl *impl;
    json_t *refused = json_object();
    size_t packed_bytes;
    bool packs_nothing; /* The device does not pack b. */

    lt_setup_build(&s, o, c, dtype, false);
    lt_setup_place_dummy(&s);
    packed_bytes = lt_setup_packed_bytes(&s, o->op, device);
    if (packed_bytes > 0) {
        lt_setup_set_packed(&s, o->op, s.args, packed_bytes);
    }
    packs_nothing = o->op == LT_OP_matmul_pack && packed_bytes == 0;
    lt_case_text(c, shape, sizeof shape);
    impl = lt_registry_choose(lt_registry_list(device->backend, o->op), s.args, device, refusals,
                              sizeof refusals);
    while ((line = strsep(&rest, "\n")) != NULL) {
        char *colon = strstr(line, ": ");
        if (colon != NULL) {
            *colon = '\0';
            json_object_set_new(refused, line, json_string(colon + 2));
        }
    }
    return json_pack("{s:s, s:s, s:s, s:s, s:s, s:o}", "op", lt_op_name(o->op), "case", c->name,
                     "shape", shape, "dtype", lt_dtype_name(dtype), "choice",
                     packs_nothing  ? "no packing"
                     : impl != NULL ? impl->name
                                    : "none",
                     "refused", refused);
}

static json_t *ops_json(const lt_device *device, const char *only) {
    json_t *all = json_array();
    for (int op = 0; op < LT_OP_COUNT; op++) {
        const lt_op_cases *o = lt_all_op_cases[op];
        for (int i = 0; i < o->n_cases; i++) {
            const lt_case *c = &o->cases[i];
            const int dtypes = c->dtypes != 0 ? c->dtypes : 1 << LT_F32 | 1 << LT_BF16;
            if ((c->use & LT_CASE_BENCH) == 0 ||
                (only[0] != '\0' && strcmp(only, lt_op_name(o->op)) != 0)) {
                continue;
            }
            for (int dtype = 0; dtype < LT_DTYPE_COUNT; dtype++) {
                if (dtypes >> dtype & 1) {
                    json_array_append_new(all, choice_json(device, o, c, (lt_dtype)dtype));
                }
            }
        }
    }
    return all;
}

/* ---- Text ---- */

static json_int_t whole(const json_t *obj, const char *key) {
    return json_integer_value(json_object_get(obj, key));
}

static const char *text(const json_t *obj, const char *key) {
    return json_string_value(json_object_get(obj, key));
}

static void print_bytes(json_int_t bytes) {
    if (bytes >= (json_int_t)1 << 30) {
        printf("%.1f GiB", (double)bytes / 1073741824.0);
    } else if (bytes >= 1 << 20) {
        printf("%.3g MiB", (double)bytes / 1048576.0);
    } else {
        printf("%.3g KiB", (double)bytes / 1024.0);
    }
}

static const char *plural(json_int_t n) {
    return n == 1 ? "" : "s";
}

static void print_cpu(const json_t *cpu, const json_t *caches, const json_t *memory) {
    const json_int_t cores = whole(cpu, "cores"), pus = whole(cpu, "hardware_threads"),
                     numa = whole(cpu, "numa_nodes");
    size_t i;
    json_t *item;

    printf("cpu           %s\n", text(cpu, "model"));
    printf("              %lld core%s, %lld hardware thread%s, %lld memory node%s; %lld thread%s "
           "used\n",
           cores, plural(cores), pus, plural(pus), numa, plural(numa), whole(cpu, "threads_used"),
           plural(whole(cpu, "threads_used")));
    printf("              %lld allowed by %s\n", whole(cpu, "allowed"), text(cpu, "allowed_by"));
    printf("caches        ");
    json_array_foreach(caches, i, item) {
        printf("%sL%lld ", i > 0 ? ", " : "", whole(item, "level"));
        if (whole(item, "count") > 1) {
            printf("%lld x ", whole(item, "count"));
        }
        print_bytes(whole(item, "bytes"));
    }
    printf("\nmemory        ");
    print_bytes(whole(memory, "bytes"));
    printf(" (%s), ", text(memory, "bytes_by"));
    print_bytes(whole(memory, "available_bytes"));
    printf(" available (%s)\ninstructions ", text(memory, "available_by"));
    json_array_foreach(json_object_get(cpu, "instructions"), i, item) {
        printf(" %s", json_string_value(item));
    }
    printf("%s\nkernels       %s\n",
           json_array_size(json_object_get(cpu, "instructions")) == 0 ? " none beyond the base"
                                                                      : "",
           text(cpu, "kernels"));
}

static void print_rates(const char *label, const json_t *rates) {
    const char *name;
    json_t *rate;
    printf("  %-12s", label);
    json_object_foreach((json_t *)rates, name, rate) {
        if (json_real_value(rate) > 0.0) {
            printf("%s %.0f  ", name, json_real_value(rate));
        }
    }
    printf("GFLOP/s\n");
}

static void print_measured(const json_t *m) {
    printf("measured on %lld thread%s\n", whole(m, "threads"), plural(whole(m, "threads")));
    printf("  %-12scopy %.1f (read + write)  read %.1f  GB/s\n", "memory",
           json_real_value(json_object_get(m, "copy_gbps")),
           json_real_value(json_object_get(m, "read_gbps")));
    print_rates("F32", json_object_get(m, "f32_gflops"));
    print_rates("BF16", json_object_get(m, "bf16_gflops"));
}

static void print_gpus(const json_t *gpus, const char *why_none) {
    size_t i;
    json_t *gpu;
    json_array_foreach(gpus, i, gpu) {
        printf("%-14s%s, %s, %lld SMs, ", i == 0 ? "gpu" : "", text(gpu, "name"), text(gpu, "arch"),
               whole(gpu, "sms"));
        print_bytes(whole(gpu, "memory_bytes"));
        printf(", driver for CUDA %lld.%lld, ECC %s\n", whole(gpu, "driver") / 1000,
               whole(gpu, "driver") % 1000 / 10,
               json_is_true(json_object_get(gpu, "ecc")) ? "on" : "off");
        if (json_object_get(gpu, "nvrtc") != NULL) {
            printf("              kernels by NVRTC %lld.%lld (%s)\n", whole(gpu, "nvrtc") / 1000,
                   whole(gpu, "nvrtc") % 1000 / 10, text(gpu, "nvrtc_path"));
        } else {
            printf("              no kernels: %s\n", text(gpu, "nvrtc_missing"));
        }
        if (json_object_get(gpu, "sm_mhz") != NULL) {
            printf("              %lld of %lld MHz, memory %lld MHz, %.0f of %.0f W, %lld C, %lld "
                   "NVLinks, "
                   "reaches %zu other GPUs\n",
                   whole(gpu, "sm_mhz"), whole(gpu, "sm_mhz_max"), whole(gpu, "memory_mhz"),
                   json_real_value(json_object_get(gpu, "power_w")),
                   json_real_value(json_object_get(gpu, "power_limit_w")),
                   whole(gpu, "temperature_c"), whole(gpu, "nvlinks"),
                   json_array_size(json_object_get(gpu, "peers")));
        }
        if (json_object_get(gpu, "copy_gbps") != NULL) {
            printf("              copies %.0f GB/s, multiplies bf16 at %.0f TFLOP/s\n",
                   json_real_value(json_object_get(gpu, "copy_gbps")),
                   json_real_value(json_object_get(gpu, "bf16_tflops")));
        }
    }
    if (json_array_size(gpus) == 0) {
        printf("gpu           none%s%s\n", why_none[0] != '\0' ? ": " : "", why_none);
    }
}

static void print_libraries(const json_t *libraries) {
    const char *name;
    json_t *version;
    int n = 0;
    printf("libraries     ");
    json_object_foreach((json_t *)libraries, name, version) {
        printf("%s%s %s",
               n == 0       ? ""
               : n % 5 == 0 ? ",\n              "
                            : ", ",
               name, json_string_value(version));
        n++;
    }
    printf("\n");
}

/* "avx2, portable: more than 8 rows; onednn: needs F32": neighbours with the same reason are listed
 * together. */
static void print_refusals(const json_t *refused) {
    const char *name, *last = NULL;
    json_t *why;
    json_object_foreach((json_t *)refused, name, why) {
        if (last != NULL) {
            printf(strcmp(last, json_string_value(why)) == 0 ? ", " : ": %s; ", last);
        }
        printf("%s", name);
        last = json_string_value(why);
    }
    if (last != NULL) {
        printf(": %s", last);
    }
}

static void print_ops(const json_t *ops) {
    const char *last_op = "", *last_case = "";
    size_t i;
    json_t *row;
    printf("\n  %-23s%-46s%-6s%-12s%s\n", "case", "shape", "type", "served by", "refused");
    json_array_foreach(ops, i, row) {
        const bool same = strcmp(last_case, text(row, "case")) == 0 &&
                          strcmp(last_op, text(row, "op")) == 0;
        if (strcmp(last_op, text(row, "op")) != 0) {
            printf("%s\n", text(row, "op"));
        }
        printf("  %-23s%-46s%-6s%-12s", same ? "" : text(row, "case"),
               same ? "" : text(row, "shape"), text(row, "dtype"), text(row, "choice"));
        print_refusals(json_object_get(row, "refused"));
        printf("\n");
        last_op = text(row, "op");
        last_case = text(row, "case");
    }
}

static void print_report(const json_t *r, const char *why_no_gpu) {
    printf("lateen        %s\n", text(r, "version"));
    print_cpu(json_object_get(r, "cpu"), json_object_get(r, "caches"),
              json_object_get(r, "memory"));
    print_gpus(json_object_get(r, "gpus"), why_no_gpu);
    print_libraries(json_object_get(r, "libraries"));
    if (json_object_get(r, "measured") != NULL) {
        print_measured(json_object_get(r, "measured"));
    }
    if (json_object_get(r, "ops") != NULL) {
        print_ops(json_object_get(r, "ops"));
    }
}

/* ---- */

static lt_err gather(const doctor_options *o, json_t **out, char *why_no_gpu, size_t why_bytes) {
    lt_machine m;
    lt_cpu_probe p;
    json_t *r;

    LT_TRY(lt_op_name_check(o->op));
    LT_TRY(lt_machine_read(&m));
    if (o->measure && !o->ops) {
        LT_TRY(lt_cpu_probe_run(&p));
    }
    r = json_pack("{s:s, s:o, s:o, s:o, s:o, s:o}", "version", lt_version(), "cpu", cpu_json(&m),
                  "caches", caches_json(&m), "memory", memory_json(&m.limits), "gpus",
                  gpus_json(why_no_gpu, why_bytes, o->measure && !o->ops), "libraries",
                  libraries_json());
    if (o->measure && !o->ops) {
        json_object_set_new(r, "measured", measured_json(&p));
    }
    if (o->ops) {
        const lt_device cpu = {.backend = lt_backend_cpu()};
        json_object_set_new(r, "ops", ops_json(&cpu, o->op));
    }
    *out = r;
    return LT_OK;
}

int lt_verb_doctor(int argc, char **argv);
int lt_verb_doctor(int argc, char **argv) {
    doctor_options o;
    json_t *report = NULL;
    char why_no_gpu[256];
    int n = 0, status = LT_EXIT_DONE;
    lt_err err;

    if (!lt_verb_parse(&lt_verb_doctor_options, &o, argc, argv,
                       "doctor [--ops [--op OP]] [--no-measure] [--json]",
                       "Report what this machine is and can do. With --ops, list which "
                       "implementation serves each op and shape; nothing is measured then.",
                       NULL, 0, &n, &status)) {
        return status;
    }
    err = gather(&o, &report, why_no_gpu, sizeof why_no_gpu);
    if (err != LT_OK) {
        return lt_verb_fail(err);
    }
    if (o.json) {
        json_dumpf(report, stdout, JSON_INDENT(1) | JSON_REAL_PRECISION(5));
        putchar('\n');
    } else {
        print_report(report, why_no_gpu);
    }
    json_decref(report);
    return LT_EXIT_DONE;
}
