/* plan.h: private declarations that the files of this folder share. */
#ifndef LT_PLAN_PLAN_H
#define LT_PLAN_PLAN_H

#include "base/yaml.h"
#include "lateen/plan.h"

#define LT_PLAN_GB  1e9
#define LT_PLAN_GIB 1073741824.0

/* ---- recipe.c: find shipped files, read flat YAML ---- */

/* "alps" -> an existing path of recipes/<folder>/alps<suffix>; an existing path is taken as it
 * is. */
LT_MUST_USE lt_err lt_plan_recipe_find(char *out, size_t out_bytes, const char *folder,
                                       const char *name, const char *suffix);
/* The entry of that key, or NULL. */
const lt_yaml_entry *lt_plan_yaml_get(const lt_yaml_entry *e, size_t n, const char *key);
/* Read the number at key into *out, which keeps its value if the key is absent. It must lie in
 * [min, max]. */
LT_MUST_USE lt_err lt_plan_yaml_number(const lt_yaml_entry *e, size_t n, const char *key,
                                       double *out, double min, double max, const char *path);
LT_MUST_USE lt_err lt_plan_yaml_choice(const lt_yaml_entry *e, size_t n, const char *key, int *out,
                                       const char *const *names, int n_names, const char *path);

/* ---- cluster.c ---- */

/* The GPU kind whose `match` list has the longest match in free text ("A100-80GB-SXM"). */
/* "bridge-2606" is a release of "bridge". */
void lt_plan_stack_family(char out[LT_PLAN_NAME_BYTES], const char *stack);
LT_MUST_USE lt_err lt_plan_gpu_match(lt_plan_gpu *out, const char *text);

lt_err lt_plan_stacks_table(const lt_yaml_entry **rows, size_t *n, const char **path);
lt_err lt_plan_runs_table(const lt_yaml_entry **rows, size_t *n); /* recipes/clusters/runs.yaml. */

/* ---- runs.c: how a published benchmark was run ---- */

typedef struct {
    unsigned graph, again; /* LT_PLAN_PART_*, LT_PLAN_AGAIN_*. */
    int again_layers, offload_layers, pp, vpp, micro;
    bool dedupe, overlap, fsdp; /* dedupe: with DeepEP or HybridEP. */
    bool narrow_attention;      /* Attention in 8 bits. */
} lt_plan_run;

LT_MUST_USE lt_err lt_plan_run_parse(lt_plan_run *out, const char *words);
/* Find the run ("deepseek-v3/gb200/mxfp8") of a stack's release that matches q (batch, pp, vpp).
 * *found false: it is not listed. */
LT_MUST_USE lt_err lt_plan_run_find(lt_plan_run *out, bool *found, const char *stack,
                                    const char *run, const lt_plan_query *q);

/* ---- ops.c: the time of one layer's work on one GPU ---- */

/* Seconds by kind; communication in seconds before overlap. */
typedef struct {
    /* launch: gaps left by the host, beyond the GPU's own work. */
    double gemm_s, attention_s, elementwise_s, launch_s;
    double tp_s, cp_s, ep_s;             /* Total time of the collectives. */
    double tp_gather_s;                  /* The gathers' part of tp_s. */
    double flops, kernels, host_kernels; /* host_kernels: those that no CUDA graph launches. */
    /* How often the host waits for the GPU's counts, and the time that the GPU then waits for the
     * host. */
    double syncs, stall_s;
} lt_plan_work;

typedef struct {
    const lt_plan_model *m;
    const lt_plan_cluster *c;
    const lt_plan_layout *l;
} lt_plan_job;

/* One pass through the average pipeline stage's share of blocks for one micro-batch. */
lt_plan_work lt_plan_forward_work(const lt_plan_job *j);
/* Data and weight gradients; without recompute. */
lt_plan_work lt_plan_backward_work(const lt_plan_job *j);
lt_plan_work lt_plan_recompute_work(const lt_plan_job *j);
/* Output matrix, softmax, loss. */
lt_plan_work lt_plan_head_work(const lt_plan_job *j, bool backward);
lt_plan_work lt_plan_embed_work(const lt_plan_job *j, bool backward);
double lt_plan_gemm_s(const lt_plan_cluster *c, double m, double n, double k, lt_plan_precision p);

/* ---- collective.c ---- */

/* Send each token, `bytes` in all of one copy of every token, to the `copies` experts it chose,
 * spread evenly over the ranks. A token crosses to another domain once, however many of its experts
 * live there, and to a rank once (DeepEP, HybridEP). Where the router picks experts from `limit` of
 * `groups` groups only (DeepSeek-V3: 4 of 8; 0: any), a token reaches no more domains than those
 * lie in. Results come back at the same cost. */
double lt_plan_dispatch_s(const lt_plan_cluster *c, double bytes, double copies, int64_t groups,
                          int64_t limit, int64_t ranks, int64_t stride);

/* ---- layout.c ---- */

/* Parameters of the given stage that one GPU holds, with experts apart from the rest. */
typedef struct {
    double dense, expert;
} lt_plan_share;
lt_plan_share lt_plan_stage_params(const lt_plan_model *m, const lt_plan_layout *l, int stage);
double lt_plan_stage_short(const lt_plan_model *m, const lt_plan_layout *l, int stage);
int lt_plan_zero_ranks(const lt_plan_layout *l);        /* Ranks that divide dense state. */
int lt_plan_expert_zero_ranks(const lt_plan_layout *l); /* The same for experts. */
double lt_plan_precision_bytes(lt_plan_precision p);

/* ---- validate.c ---- */

void lt_plan_sort(double *values, int64_t n); /* Ascending. */
/* Linear interpolation between order statistics; NaN: there are none. */
double lt_plan_quantile(const double *sorted, size_t n, double q);

static inline double lt_plan_min(double a, double b) {
    return a < b ? a : b;
}
static inline double lt_plan_max(double a, double b) {
    return a > b ? a : b;
}

#endif
