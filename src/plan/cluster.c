/* cluster.c: the hardware and software of a run: GPU kinds (recipes/clusters/gpus.yaml), software
 * stacks with their fitted efficiencies (recipes/clusters/stacks.yaml) and clusters
 * (recipes/clusters/NAME.yaml).
 *
 * The two tables are read once per process and kept, parsed, behind a mutex; they are a few
 * kilobytes. */
#include <ctype.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/file.h"
#include "base/option.h"
#include "plan/points.h"

#define MAX_KINDS 64

/* Share of the scale-up links' rate that NCCL's rings and DeepEP reach, similar on all kinds:
 * all-gather 361 and reduce-scatter 363 of 450 GB/s on H200, all-reduce 232 to 235 of 300 on A100,
 * 700 of 900 on B200 and 680 on GB200 (Bekman, ML Engineering; NVIDIA GTC25 S72583). */
#define LINK_SHARE 0.78
/* Of one step of a ring over these links: how much longer an all-reduce of 8 GPUs takes than its
 * bytes, 2.8 us a step with 32 KiB and 3.7 with 4 MiB on H200, 5.6 with 16 MiB on B200 (Bekman, ML
 * Engineering); 3.9 over the 72 GPUs of a rack of GB200 (coreweave/nccl-tests, pull request 43). */
#define LINK_LATENCY_US 4.0

typedef struct {
    lt_yaml_entry *rows;
    size_t n;
    char path[LT_PATH_BYTES];
} table;

static pthread_mutex_t table_lock = PTHREAD_MUTEX_INITIALIZER;

static lt_err table_get(const table **out, const char *name) {
    static table kept[3]; /* gpus, stacks and runs, which are read-only after the first read. */
    table *t = &kept[name[0] == 'g' ? 0 : name[0] == 's' ? 1 : 2];
    lt_err err = LT_OK;
    pthread_mutex_lock(&table_lock);
    if (t->rows == NULL) {
        err = lt_plan_recipe_find(t->path, sizeof t->path, "clusters", name, ".yaml");
        if (err == LT_OK) {
            err = lt_yaml_load(&t->rows, &t->n, t->path);
        }
    }
    pthread_mutex_unlock(&table_lock);
    *out = t;
    return err;
}

lt_err lt_plan_stacks_table(const lt_yaml_entry **rows, size_t *n, const char **path) {
    const table *t = NULL;
    LT_TRY(table_get(&t, "stacks"));
    *rows = t->rows;
    *n = t->n;
    *path = t->path;
    return LT_OK;
}

lt_err lt_plan_runs_table(const lt_yaml_entry **rows, size_t *n) {
    const table *t = NULL;
    LT_TRY(table_get(&t, "runs"));
    *rows = t->rows;
    *n = t->n;
    return LT_OK;
}

static lt_err number(const lt_yaml_entry *e, size_t n, const char *prefix, const char *key,
                     double *out, double min, double max, const char *path) {
    char full[8 * LT_PLAN_NAME_BYTES];
    snprintf(full, sizeof full, "%s%s%s", prefix, prefix[0] != 0 ? "." : "", key);
    return lt_plan_yaml_number(e, n, full, out, min, max, path);
}

/* A count must be a whole number: cutting off a fraction would change it silently. */
static lt_err count(const lt_yaml_entry *e, size_t n, const char *prefix, const char *key,
                    double *out, double max, const char *path) {
    LT_TRY(number(e, n, prefix, key, out, 1, max, path));
    if (*out != floor(*out)) {
        LT_FAIL(LT_ERR_ARG, "%s: %s%s%s: %g is not a whole number", path, prefix,
                prefix[0] != 0 ? "." : "", key, *out);
    }
    return LT_OK;
}

/* Fields of one GPU kind. Absent ones keep their value, so a cluster may change a shipped kind. */
static lt_err gpu_read(lt_plan_gpu *g, const lt_yaml_entry *e, size_t n, const char *prefix,
                       const char *path) {
    double gib = g->memory_bytes / LT_PLAN_GIB, sms = g->sms, node = g->node_gpus,
           domain = g->domain_gpus;
    double *peak = g->peak_tflops;
    LT_TRY(number(e, n, prefix, "bf16_tflops", &peak[LT_PLAN_BF16], 0.001, 1e6, path));
    LT_TRY(number(e, n, prefix, "fp32_tflops", &peak[LT_PLAN_FP32], 0, 1e6, path));
    LT_TRY(number(e, n, prefix, "fp8_tflops", &peak[LT_PLAN_FP8], 0, 1e6, path));
    LT_TRY(number(e, n, prefix, "fp4_tflops", &peak[LT_PLAN_NVFP4], 0, 1e6, path));
    LT_TRY(number(e, n, prefix, "memory_gib", &gib, 0.001, 1e6, path));
    LT_TRY(number(e, n, prefix, "memory_gbps", &g->memory_gbps, 0.001, 1e6, path));
    LT_TRY(number(e, n, prefix, "link_gbps", &g->link_gbps, 0.001, 1e6, path));
    LT_TRY(number(e, n, prefix, "nic_gbps", &g->nic_gbps, 0.0001, 1e6, path));
    LT_TRY(number(e, n, prefix, "pcie_gbps", &g->pcie_gbps, 0.1, 1e5, path));
    LT_TRY(number(e, n, prefix, "host_time", &g->host_time, 0.1, 10, path));
    LT_TRY(number(e, n, prefix, "power_w", &g->power_w, 0, 1e6, path));
    LT_TRY(number(e, n, prefix, "host_power_w", &g->host_power_w, 0, 1e6, path));
    LT_TRY(count(e, n, prefix, "sms", &sms, 1e6, path));
    LT_TRY(count(e, n, prefix, "node", &node, 1e5, path));
    LT_TRY(count(e, n, prefix, "domain", &domain, 1e5, path));
    g->memory_bytes = gib * LT_PLAN_GIB;
    g->sms = (int)sms;
    g->node_gpus = (int)node;
    g->domain_gpus = (int)domain;
    /* MX blocks run on the fp8 units if those support block scales (Blackwell); Hopper scales in
     * software. */
    peak[LT_PLAN_MXFP8] = peak[LT_PLAN_FP8];
    /* Scales per row are applied outside the tensor cores, so such products run no faster than bf16
     * (torchao's Float8Linear, 2025). */
    peak[LT_PLAN_FP8ROW] = peak[LT_PLAN_FP8] > 0 ? peak[LT_PLAN_BF16] : 0;
    return LT_OK;
}

static bool is_kind(const lt_yaml_entry *row, const char *name) {
    const size_t len = strlen(name);
    return strncmp(row->key, name, len) == 0 && row->key[len] == '.';
}

lt_err lt_plan_gpu_find(lt_plan_gpu *out, const char *name) {
    const table *t = NULL;
    const char *names[MAX_KINDS];
    char buf[MAX_KINDS][LT_PLAN_NAME_BYTES];
    size_t n_names = 0;
    lt_plan_gpu g = {.host_time = 1};

    LT_TRY(table_get(&t, "gpus"));
    for (size_t i = 0; i < t->n; i++) {
        if (is_kind(&t->rows[i], name)) {
            snprintf(g.name, sizeof g.name, "%s", name);
            LT_TRY(gpu_read(&g, t->rows, t->n, name, t->path));
            *out = g;
            return LT_OK;
        }
        if (n_names < MAX_KINDS && strstr(t->rows[i].key, ".match") != NULL) {
            snprintf(buf[n_names], LT_PLAN_NAME_BYTES, "%.*s", (int)strcspn(t->rows[i].key, "."),
                     t->rows[i].key);
            names[n_names] = buf[n_names];
            n_names++;
        }
    }
    {
        const char *near = lt_name_nearest(name, names, n_names);
        LT_FAIL(LT_ERR_NOT_FOUND, "no GPU kind '%s' in %s%s%s%s", name, t->path,
                near != NULL ? "; did you mean '" : "", near != NULL ? near : "",
                near != NULL ? "'?" : "");
    }
}

lt_err lt_plan_gpu_match(lt_plan_gpu *out, const char *text) {
    const table *t = NULL;
    char low[LT_PLAN_TEXT_BYTES], best[LT_PLAN_NAME_BYTES] = "";
    size_t best_len = 0, i;

    LT_TRY(table_get(&t, "gpus"));
    for (i = 0; text[i] != 0 && i < sizeof low - 1; i++) {
        low[i] = (char)tolower((unsigned char)text[i]);
    }
    low[i] = 0;
    for (size_t r = 0; r < t->n; r++) {
        const size_t len = strlen(t->rows[r].key);
        if (len < 6 || strcmp(t->rows[r].key + len - 6, ".match") != 0) {
            continue;
        }
        for (const char *w = t->rows[r].value; *w != 0;) {
            const size_t word = strcspn(w, ",");
            char one[LT_PLAN_NAME_BYTES];
            snprintf(one, sizeof one, "%.*s", (int)word, w);
            if (word > best_len && word < sizeof one && strstr(low, one) != NULL) {
                best_len = word;
                snprintf(best, sizeof best, "%.*s", (int)(len - 6), t->rows[r].key);
            }
            w += word + (w[word] == ',');
        }
    }
    if (best_len == 0) {
        LT_FAIL(LT_ERR_NOT_FOUND, "unknown GPU kind '%s'", text);
    }
    return lt_plan_gpu_find(out, best);
}

static const char *const attention_names[] = {
#define ATTENTION_NAME(code, name) name,
    LT_PLAN_ATTENTION_MAP(ATTENTION_NAME)};

static lt_err stack_facts(lt_plan_stack *s, const table *t, const char *stack) {
    char prefix[2 * LT_PLAN_NAME_BYTES], key[4 * LT_PLAN_NAME_BYTES];
    int attention = (int)s->attention;
    snprintf(prefix, sizeof prefix, "stacks.%s", stack);
    snprintf(key, sizeof key, "%s.attention", prefix);
    LT_TRY(lt_plan_yaml_choice(t->rows, t->n, key, &attention, attention_names,
                               LT_PLAN_ATTENTION_COUNT, t->path));
    s->attention = (lt_plan_attention)attention;
    LT_TRY(number(t->rows, t->n, prefix, "passes", &s->passes, 0.1, 20, t->path));
    LT_TRY(number(t->rows, t->n, prefix, "launch_us", &s->launch_us, 0, 1e4, t->path));
    LT_TRY(number(t->rows, t->n, prefix, "host_us", &s->host_us, 0, 1e4, t->path));
    LT_TRY(number(t->rows, t->n, prefix, "ep_copies", &s->ep_copies, 0, 1, t->path));
    LT_TRY(number(t->rows, t->n, prefix, "quantised_gather", &s->quantised_gather, 0, 1, t->path));
    LT_TRY(number(t->rows, t->n, prefix, "quantised_params", &s->quantised_params, 0, 1, t->path));
    LT_TRY(number(t->rows, t->n, prefix, "split_products", &s->split_products, 0, 1, t->path));
    LT_TRY(number(t->rows, t->n, prefix, "tp_overlap", &s->tp_overlap, 0, 1, t->path));
    LT_TRY(number(t->rows, t->n, prefix, "dp_overlap", &s->dp_overlap, 0, 1, t->path));
    LT_TRY(number(t->rows, t->n, prefix, "launch_blocking", &s->launch_blocking, 0, 1, t->path));
    LT_TRY(number(t->rows, t->n, prefix, "deepspeed_pipe", &s->deepspeed_pipe, 0, 1, t->path));
    LT_TRY(number(t->rows, t->n, prefix, "op_selective", &s->op_selective, 0, 1, t->path));
    LT_TRY(number(t->rows, t->n, prefix, "early_stop", &s->early_stop, 0, 1, t->path));
    LT_TRY(number(t->rows, t->n, prefix, "logit_bytes", &s->logit_bytes, 0, 64, t->path));
    LT_TRY(number(t->rows, t->n, prefix, "moe_fused", &s->moe_fused, 0, 2, t->path));
    LT_TRY(number(t->rows, t->n, prefix, "cp_balance", &s->cp_balance, 0, 1, t->path));
    return number(t->rows, t->n, prefix, "ep_overlap", &s->ep_overlap, 0, 1, t->path);
}

static lt_err stack_fit(lt_plan_stack *s, const table *t, const char *gpu, const char *stack) {
    char prefix[3 * LT_PLAN_NAME_BYTES];
    snprintf(prefix, sizeof prefix, "fits.%s.%s", gpu, stack);
    LT_TRY(number(t->rows, t->n, prefix, "gemm", &s->gemm, 0.01, 1.2, t->path));
    LT_TRY(number(t->rows, t->n, prefix, "memory", &s->memory, 0.01, 1.2, t->path));
    LT_TRY(number(t->rows, t->n, prefix, "launch_us", &s->launch_us, 0, 1e4, t->path));
    return number(t->rows, t->n, prefix, "network", &s->network, 0.01, 1.2, t->path);
}

/* "bridge-2606" has the facts of "bridge", a release of it; "torchtitan-eager" those of
 * "torchtitan", the same software without its compiler. */
void lt_plan_stack_family(char out[LT_PLAN_NAME_BYTES], const char *stack) {
    const char *dash = strrchr(stack, '-');
    const bool variant = dash != NULL &&
                         (isdigit((unsigned char)dash[1]) || strcmp(dash, "-eager") == 0);
    const size_t len = variant ? (size_t)(dash - stack) : strlen(stack);
    snprintf(out, LT_PLAN_NAME_BYTES, "%.*s", (int)len, stack);
}

lt_err lt_plan_stack_find(lt_plan_stack *out, const char *gpu, const char *stack) {
    const table *t = NULL;
    char family[LT_PLAN_NAME_BYTES], key[4 * LT_PLAN_NAME_BYTES];
    lt_plan_stack s = {.gemm = 0.7,
                       .memory = 0.8,
                       .network = 0.75,
                       .passes = 1.25,
                       .launch_us = 4,
                       .dp_overlap = 0.9,
                       .cp_balance = 1,
                       .logit_bytes = 6};

    LT_TRY(table_get(&t, "stacks"));
    snprintf(s.name, sizeof s.name, "%s", stack);
    snprintf(s.gpu, sizeof s.gpu, "%s", gpu);
    lt_plan_stack_family(family, stack);
    LT_TRY(stack_facts(&s, t, "default"));
    LT_TRY(stack_facts(&s, t, family));
    LT_TRY(stack_facts(&s, t, stack));
    LT_TRY(stack_fit(&s, t, gpu, "default"));
    LT_TRY(stack_fit(&s, t, gpu, family));
    LT_TRY(stack_fit(&s, t, gpu, stack));
    snprintf(key, sizeof key, "fits.%s.%s.gemm", gpu, stack);
    s.anchored = lt_plan_yaml_get(t->rows, t->n, key) != NULL && strcmp(stack, "default") != 0;
    *out = s;
    return LT_OK;
}

void lt_plan_cluster_plain(lt_plan_cluster *out, const lt_plan_gpu *gpu, const lt_plan_stack *stack,
                           int64_t gpus) {
    lt_plan_cluster c = {.gpu = *gpu, .stack = *stack, .gpus = gpus, .nic_gbps = gpu->nic_gbps};
    snprintf(c.name, sizeof c.name, "%s", gpu->name);
    c.latency_us = 6;
    c.link_latency_us = LINK_LATENCY_US;
    c.link_share = LINK_SHARE;
    c.storage_write_gbps = c.storage_read_gbps = 200;
    c.n_causes = 1;
    snprintf(c.cause[0].cause, sizeof c.cause[0].cause, "all causes (Llama 3)");
    c.cause[0].per_node_day = 3.79e-3 * gpu->node_gpus / 8.0;
    c.detect_s = 120;
    c.reschedule_s = 60;
    c.load_s = 60;
    c.warmup_s = 60;
    c.repair_h = 24;
    c.straggler = 0.01;
    c.price_gpu_h = 2.5;
    c.price_mwh = 80;
    c.pue = 1.2;
    *out = c;
}

double lt_plan_cluster_failures_per_s(const lt_plan_cluster *c, int64_t gpus) {
    const double nodes = (double)gpus / (double)c->gpu.node_gpus;
    double per_node_day = 0;
    for (int i = 0; i < c->n_causes; i++) {
        per_node_day += c->cause[i].per_node_day;
    }
    return nodes * per_node_day / 86400.0;
}

static bool has_prefix(const lt_yaml_entry *e, size_t n, const char *prefix) {
    const size_t len = strlen(prefix);
    for (size_t i = 0; i < n; i++) {
        if (strncmp(e[i].key, prefix, len) == 0 && e[i].key[len] == '.') {
            return true;
        }
    }
    return false;
}

static lt_err tiers_read(lt_plan_cluster *c, const lt_yaml_entry *e, size_t n, const char *path) {
    char prefix[LT_PLAN_NAME_BYTES] = "network.tiers.0";
    for (int i = 0; has_prefix(e, n, prefix); i++) {
        double gpus = 0, oversub = 1, latency = c->latency_us;
        if (i == LT_PLAN_TIERS) {
            LT_FAIL(LT_ERR_LIMIT, "%s: more than %d network tiers", path, LT_PLAN_TIERS);
        }
        LT_TRY(count(e, n, prefix, "gpus", &gpus, 1e8, path));
        LT_TRY(number(e, n, prefix, "oversubscription", &oversub, 0.1, 1000, path));
        LT_TRY(number(e, n, prefix, "latency_us", &latency, 0, 1e6, path));
        if (gpus == 0) {
            LT_FAIL(LT_ERR_ARG, "%s: network tier %d does not say 'gpus'", path, i);
        }
        gpus *= c->rails && i == 0 ? c->gpu.node_gpus : 1; /* All rails of the same nodes count. */
        if (i > 0 && (int64_t)gpus <= c->tier[i - 1].gpus) {
            LT_FAIL(LT_ERR_ARG, "%s: network tier %d holds %.0f GPUs but the tier below it %lld",
                    path, i, gpus, (long long)c->tier[i - 1].gpus);
        }
        c->tier[i].gpus = (int64_t)gpus;
        c->tier[i].oversub = oversub;
        c->tier[i].latency_us = latency;
        c->n_tiers = i + 1;
        snprintf(prefix, sizeof prefix, "network.tiers.%d", i + 1);
    }
    return LT_OK;
}

static lt_err causes_read(lt_plan_cluster *c, const lt_yaml_entry *e, size_t n, const char *path) {
    static const char prefix[] = "failures.per_node_day.";
    int found = 0;
    for (size_t i = 0; i < n; i++) {
        if (strncmp(e[i].key, prefix, sizeof prefix - 1) == 0) {
            if (found == LT_PLAN_CAUSES) {
                LT_FAIL(LT_ERR_LIMIT, "%s:%d: more than %d causes of failure", path, e[i].line,
                        LT_PLAN_CAUSES);
            }
            snprintf(c->cause[found].cause, LT_PLAN_NAME_BYTES, "%.60s",
                     e[i].key + sizeof prefix - 1);
            LT_TRY(lt_plan_yaml_number(e, n, e[i].key, &c->cause[found].per_node_day, 0, 10, path));
            found++;
        }
    }
    if (found > 0) {
        c->n_causes = found;
    }
    return LT_OK;
}

/* '#' stands for an index, a '*' at the end for any name. */
static const char *const known_keys[] = {"gpu",
                                         "gpus",
                                         "stack",
                                         "network.topology",
                                         "network.nic_gbps",
                                         "network.latency_us",
                                         "network.link_latency_us",
                                         "network.efficiency",
                                         "network.link_efficiency",
                                         "network.rails",
                                         "network.tiers.#.gpus",
                                         "network.tiers.#.oversubscription",
                                         "network.tiers.#.latency_us",
                                         "storage.write_gbps",
                                         "storage.read_gbps",
                                         "failures.per_node_day.*",
                                         "restart.detect_s",
                                         "restart.reschedule_s",
                                         "restart.load_s",
                                         "restart.warmup_s",
                                         "restart.repair_h",
                                         "straggler",
                                         "price.gpu_h",
                                         "price.mwh",
                                         "price.pue",
                                         "efficiency.gemm",
                                         "efficiency.memory",
                                         "efficiency.network",
                                         "gpu_spec.bf16_tflops",
                                         "gpu_spec.fp32_tflops",
                                         "gpu_spec.fp8_tflops",
                                         "gpu_spec.fp4_tflops",
                                         "gpu_spec.memory_gib",
                                         "gpu_spec.memory_gbps",
                                         "gpu_spec.link_gbps",
                                         "gpu_spec.nic_gbps",
                                         "gpu_spec.pcie_gbps",
                                         "gpu_spec.host_time",
                                         "gpu_spec.power_w",
                                         "gpu_spec.host_power_w",
                                         "gpu_spec.sms",
                                         "gpu_spec.node",
                                         "gpu_spec.domain"};

static bool key_matches(const char *key, const char *pattern) {
    while (*pattern != 0 && *pattern != '*') {
        if (*pattern == '#' && isdigit((unsigned char)*key)) {
            while (isdigit((unsigned char)*key)) {
                key++;
            }
            pattern++;
        } else if (*key++ != *pattern++) {
            return false;
        }
    }
    return *pattern == '*' ? *key != 0 : *key == 0;
}

static lt_err keys_check(const lt_yaml_entry *e, size_t n, const char *path) {
    const size_t n_known = sizeof known_keys / sizeof *known_keys;
    for (size_t i = 0; i < n; i++) {
        const char *near = lt_name_nearest(e[i].key, known_keys, n_known);
        bool known = false;
        for (size_t k = 0; k < n_known && !known; k++) {
            known = key_matches(e[i].key, known_keys[k]);
        }
        if (!known) {
            LT_FAIL(LT_ERR_ARG, "%s:%d: unknown key '%s'%s%s%s", path, e[i].line, e[i].key,
                    near != NULL ? "; did you mean '" : "", near != NULL ? near : "",
                    near != NULL ? "'?" : "");
        }
    }
    return LT_OK;
}

static lt_err cluster_numbers(lt_plan_cluster *c, const lt_yaml_entry *e, size_t n,
                              const char *path) {
    double gpus = (double)c->gpus;
    const struct {
        const char *key;
        double *out, min, max;
    } f[] = {{"network.nic_gbps", &c->nic_gbps, 1e-3, 1e5},
             {"network.latency_us", &c->latency_us, 0, 1e6},
             {"network.link_latency_us", &c->link_latency_us, 0, 1e6},
             {"network.efficiency", &c->stack.network, 0.01, 1.2},
             {"network.link_efficiency", &c->link_share, 0.01, 1.2},
             {"efficiency.gemm", &c->stack.gemm, 0.01, 1.2},
             {"efficiency.memory", &c->stack.memory, 0.01, 1.2},
             {"efficiency.network", &c->stack.network, 0.01, 1.2},
             {"storage.write_gbps", &c->storage_write_gbps, 1e-3, 1e7},
             {"storage.read_gbps", &c->storage_read_gbps, 1e-3, 1e7},
             {"restart.detect_s", &c->detect_s, 0, 1e6},
             {"restart.reschedule_s", &c->reschedule_s, 0, 1e6},
             {"restart.load_s", &c->load_s, 0, 1e6},
             {"restart.warmup_s", &c->warmup_s, 0, 1e6},
             {"restart.repair_h", &c->repair_h, 0, 1e5},
             {"straggler", &c->straggler, 0, 0.9},
             {"price.gpu_h", &c->price_gpu_h, 0, 1e4},
             {"price.mwh", &c->price_mwh, 0, 1e5},
             {"price.pue", &c->pue, 1, 5}};
    for (size_t i = 0; i < sizeof f / sizeof *f; i++) {
        LT_TRY(lt_plan_yaml_number(e, n, f[i].key, f[i].out, f[i].min, f[i].max, path));
    }
    LT_TRY(count(e, n, "", "gpus", &gpus, 1e9, path));
    if (lt_plan_yaml_get(e, n, "network.efficiency") != NULL &&
        lt_plan_yaml_get(e, n, "efficiency.network") != NULL) {
        LT_FAIL(LT_ERR_ARG, "%s: network.efficiency and efficiency.network are the same number",
                path);
    }
    c->gpus = (int64_t)gpus;
    return LT_OK;
}

/* Otherwise an unknown stack would silently become the default. */
static lt_err stack_known(const lt_yaml_entry *row, const char *path) {
    static const char prefix[] = "stacks.";
    const table *t = NULL;
    char family[LT_PLAN_NAME_BYTES], buf[MAX_KINDS][LT_PLAN_NAME_BYTES];
    const char *names[MAX_KINDS], *near;
    size_t n = 0;

    LT_TRY(table_get(&t, "stacks"));
    lt_plan_stack_family(family, row->value);
    for (size_t i = 0; i < t->n; i++) {
        const char *name = t->rows[i].key + sizeof prefix - 1;
        const size_t len = strcspn(name, ".");
        char one[LT_PLAN_NAME_BYTES];
        if (strncmp(t->rows[i].key, prefix, sizeof prefix - 1) != 0) {
            continue;
        }
        snprintf(one, sizeof one, "%.*s", (int)len, name);
        if (strcmp(one, family) == 0 || strcmp(one, row->value) == 0) {
            return LT_OK;
        }
        if (n < MAX_KINDS && (n == 0 || strcmp(names[n - 1], one) != 0)) {
            names[n] = strcpy(buf[n], one);
            n++;
        }
    }
    near = lt_name_nearest(row->value, names, n);
    LT_FAIL(LT_ERR_ARG, "%s:%d: unknown stack '%s'; %s '%s' of %s", path, row->line, row->value,
            near != NULL ? "did you mean" : "e.g.", near != NULL ? near : "default", t->path);
}

static lt_err cluster_read(lt_plan_cluster *c, const lt_yaml_entry *e, size_t n, const char *path) {
    static const char *const topologies[] = {"fat-tree", "dragonfly"};
    const lt_yaml_entry *gpu = lt_plan_yaml_get(e, n, "gpu"),
                        *stack = lt_plan_yaml_get(e, n, "stack");
    lt_plan_gpu g;
    lt_plan_stack s;
    static const char *const yes_no[] = {"false", "true"};
    int topology = LT_PLAN_FAT_TREE, rails = 0;

    LT_TRY(keys_check(e, n, path));
    if (gpu == NULL) {
        LT_FAIL(LT_ERR_FORMAT, "%s: 'gpu' is missing: which kind, of recipes/clusters/gpus.yaml",
                path);
    }
    LT_TRY(lt_plan_gpu_find(&g, gpu->value));
    LT_TRY(gpu_read(&g, e, n, "gpu_spec", path));
    if (stack != NULL) {
        LT_TRY(stack_known(stack, path));
    }
    LT_TRY(lt_plan_stack_find(&s, g.name, stack != NULL ? stack->value : "default"));
    lt_plan_cluster_plain(c, &g, &s, g.node_gpus);
    LT_TRY(cluster_numbers(c, e, n, path));
    LT_TRY(lt_plan_yaml_choice(e, n, "network.topology", &topology, topologies, 2, path));
    c->topology = (lt_plan_topology)topology;
    LT_TRY(lt_plan_yaml_choice(e, n, "network.rails", &rails, yes_no, 2, path));
    c->rails = rails == 1;
    LT_TRY(tiers_read(c, e, n, path));
    return causes_read(c, e, n, path);
}

lt_err lt_plan_cluster_load(lt_plan_cluster *out, const char *path) {
    lt_err err = LT_OK;
    lt_yaml_entry *rows = NULL;
    size_t n = 0;
    char found[LT_PATH_BYTES];
    const char *base;
    lt_plan_gpu gpu;
    lt_plan_stack stack;

    LT_ASSERT(out != NULL && path != NULL);
    if (lt_plan_gpu_find(&gpu, path) == LT_OK) {
        LT_TRY(lt_plan_stack_find(&stack, gpu.name, "default"));
        lt_plan_cluster_plain(out, &gpu, &stack, gpu.node_gpus);
        return LT_OK;
    }
    LT_TRY(lt_plan_recipe_find(found, sizeof found, "clusters", path, ".yaml"));
    LT_TRY(lt_yaml_load(&rows, &n, found));
    LT_TRY_DONE(cluster_read(out, rows, n, found));
    base = strrchr(found, '/') != NULL ? strrchr(found, '/') + 1 : found;
    snprintf(out->name, sizeof out->name, "%.*s", (int)strcspn(base, "."), base);
done:
    lt_yaml_free(rows, n);
    return err;
}

/* ---- Anchors: the rows that the fits of stacks.yaml were made from ---- */

bool lt_plan_is_anchor(const char *id) {
    const table *t = NULL;
    const size_t len = strlen(id);
    if (table_get(&t, "stacks") != LT_OK) {
        return false;
    }
    for (size_t i = 0; i < t->n; i++) {
        const size_t key = strlen(t->rows[i].key);
        if (key < 8 || strcmp(t->rows[i].key + key - 8, ".anchors") != 0) {
            continue;
        }
        for (const char *w = t->rows[i].value; *w != 0;) {
            const size_t word = strcspn(w, ",");
            if (word == len && strncmp(w, id, len) == 0) {
                return true;
            }
            w += word + (w[word] == ',');
        }
    }
    return false;
}

lt_err lt_plan_anchor_ids(char ***out, size_t *n) {
    const table *t = NULL;
    size_t bytes = 0, words = 0, k = 0;
    char **list, *text;
    LT_TRY(table_get(&t, "stacks"));
    for (size_t i = 0; i < t->n; i++) {
        const size_t key = strlen(t->rows[i].key);
        if (key >= 8 && strcmp(t->rows[i].key + key - 8, ".anchors") == 0) {
            bytes += strlen(t->rows[i].value) + 1;
            for (const char *w = t->rows[i].value; *w != 0; w++) {
                words += *w == ',';
            }
            words++;
        }
    }
    list = malloc(words * sizeof *list + bytes + 1);
    if (list == NULL) {
        LT_FAIL(LT_ERR_OOM, "%zu anchors", words);
    }
    text = (char *)(list + words);
    for (size_t i = 0; i < t->n; i++) {
        const size_t key = strlen(t->rows[i].key);
        if (key < 8 || strcmp(t->rows[i].key + key - 8, ".anchors") != 0) {
            continue;
        }
        for (const char *w = t->rows[i].value; *w != 0;) {
            const size_t word = strcspn(w, ",");
            list[k++] = text;
            memcpy(text, w, word);
            text[word] = 0;
            text += word + 1;
            w += word + (w[word] == ',');
        }
    }
    *out = list;
    *n = k;
    return LT_OK;
}
