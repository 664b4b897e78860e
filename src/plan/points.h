/* points.h: published measurements of training runs (shared/data/plan-points/points.csv or any file
 * with its header) as inputs of the planner, and the efficiencies and errors that are derived from
 * them. */
#ifndef LT_PLAN_POINTS_H
#define LT_PLAN_POINTS_H

#include <stdio.h>

#include "plan/plan.h"

/* clang-format off */
#define LT_POINT_COLUMN_MAP(X)                                                                     \
    X(id) X(group) X(model) X(params_b) X(layers) X(hidden)                                        \
    X(heads) X(kv_heads) X(ffn) X(vocab) X(seq_len) X(experts)                                     \
    X(topk) X(gpu) X(gpus) X(gpus_per_node) X(interconnect) X(tp)                                  \
    X(pp) X(vpp) X(dp) X(cp) X(ep) X(zero_fsdp)                                                    \
    X(micro_batch) X(global_batch_seqs) X(precision) X(recompute) X(tflops_gpu) X(tflops_kind)     \
    X(mfu_pct) X(hfu_pct) X(iter_time_s) X(tokens_s_gpu) X(mem_gb) X(source) X(note)
/* clang-format on */

typedef enum {
#define LT_POINT_ENUM(name) LT_POINT_##name,
    LT_POINT_COLUMN_MAP(LT_POINT_ENUM)
#undef LT_POINT_ENUM
        LT_POINT_COLUMNS
} lt_point_column;

typedef struct {
    const char *field[LT_POINT_COLUMNS]; /* "" when empty or absent. */
    int line;
} lt_point;

typedef struct {
    lt_point *rows;
    size_t n;
    char *text; /* Owns the fields. */
} lt_points;

/* Read a CSV (RFC 4180: quotes, doubled quotes, line breaks in quotes). Columns are found by name
 * in the header, in any order. */
LT_MUST_USE lt_err lt_points_load(lt_points *out, const char *path);
LT_MUST_USE lt_err lt_points_parse(lt_points *out, const char *text, size_t bytes,
                                   const char *name);
void lt_points_free(lt_points *p);

/* A third of all rows, chosen by a hash of source and id. No shared constant was chosen with them;
 * the other two thirds are the fit part. */
bool lt_point_held_out(const lt_point *row);

/* A row as planner input. */
typedef struct {
    lt_plan_model model;
    lt_plan_cluster cluster;
    lt_plan_query query;
    bool layout_known; /* Nothing is left to search: layout holds it. */
    lt_plan_layout layout;
    bool one_layer;    /* The row times a single layer, without embedding, head and optimiser. */
    double measured_s; /* Seconds of one step. */
    /* "iteration time", "tokens/s", "TFLOP/s by SC'21 eq. 3", "MFU by 6 N and attention", ... */
    char measure[LT_PLAN_NAME_BYTES];
    double memory_bytes; /* Measured; 0 = not printed. */
    lt_plan_memory_figure memory_figure;
    /* How the row contradicts its source or itself; "": not at all. The row is predicted as
     * printed. */
    char flag[LT_PLAN_TEXT_BYTES];
} lt_point_job;

/* False: the row is excluded, and `why` has the reason. */
bool lt_point_job_make(lt_point_job *out, const lt_point *row, char why[LT_PLAN_TEXT_BYTES]);
/* The model's seconds of a step, with the row's missing layout facts chosen by search; 0, with a
 * reason, if there is no layout. */
double lt_point_predict(lt_point_job *j, char why[LT_PLAN_TEXT_BYTES]);
const char *lt_point_stack(const lt_point *row, char out[LT_PLAN_NAME_BYTES]);

/* ---- validate.c ---- */

typedef struct {
    const lt_point *row;
    lt_point_job job;
    double predicted_s, error; /* error: predicted / measured - 1. */
    double memory_error;       /* NAN: memory was not measured. */
    bool used, anchor;
    char why[LT_PLAN_TEXT_BYTES];
} lt_point_result;

LT_MUST_USE lt_err lt_plan_validate(const lt_points *p, lt_point_result **out);
void lt_point_result_predict(lt_point_result *r); /* Sets all fields but job and anchor. */

/* ---- cross.c ---- */

typedef enum {
    LT_PLAN_UNSEEN_ROW,
    LT_PLAN_UNSEEN_GROUP,
    LT_PLAN_UNSEEN_SOURCE,
    LT_PLAN_UNSEEN_THIRD
} lt_plan_unseen;

/* As lt_plan_validate, each row predicted by fits made without it, without its whole group, or
 * without all rows of the same source (a page's release, a paper's table); no row is an anchor
 * then. LT_PLAN_UNSEEN_THIRD: the rows that lt_point_held_out names are predicted by fits made
 * without any of them; the others stay anchors and count in no statistic. */
LT_MUST_USE lt_err lt_plan_cross_validate(const lt_points *p, lt_plan_unseen mode,
                                          lt_point_result **out);
double lt_plan_kendall_tau(const double *a, const double *b, size_t n);

typedef struct {
    char name[LT_PLAN_NAME_BYTES];
    size_t rows, used, anchors, left_out;
    /* tau: NAN unless the group is a sweep of at least 8 rows. */
    double median, p90, worst, bias, tau;
    size_t memory_rows;
    double memory_median;
} lt_plan_group_stats;

/* Statistics of the results whose group is `name` (NULL: all); anchors never count. */
void lt_plan_group_stats_of(lt_plan_group_stats *out, const lt_point_result *r, size_t n,
                            const char *name);

/* The same by kind of run. A row has two kinds: by its model and by its precision. */
#define LT_PLAN_KIND_MAP(X)                                                                        \
    X(DENSE, "dense") X(MOE, "mixture of experts") X(WIDE, "16 bits") X(NARROW, "8 and 4 bits")
typedef enum {
#define LT_PLAN_KIND_ENUM(code, name) LT_PLAN_KIND_##code,
    LT_PLAN_KIND_MAP(LT_PLAN_KIND_ENUM)
#undef LT_PLAN_KIND_ENUM
        LT_PLAN_KIND_COUNT
} lt_plan_kind;
void lt_plan_kind_stats_of(lt_plan_group_stats *out, const lt_point_result *r, size_t n,
                           lt_plan_kind kind);

/* ---- fit.c ---- */

typedef struct {
    lt_plan_stack stack;
    size_t n_anchors;
    const lt_point *anchor[512];
    double rms; /* Root mean square of log(predicted / measured) on the anchors. */
} lt_plan_fit;

/* Fit gemm, memory and network of every (GPU kind, stack) that has rows among the ids; free
 * *out. */
LT_MUST_USE lt_err lt_plan_fit_rows(const lt_points *p, const char *const *ids, size_t n_ids,
                                    lt_plan_fit **out, size_t *n_out);
/* The ids of the anchors in stacks.yaml; free with free() (one block). */
LT_MUST_USE lt_err lt_plan_anchor_ids(char ***out, size_t *n);
bool lt_plan_is_anchor(const char *id);

#endif
