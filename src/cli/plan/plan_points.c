/* plan_points.c: `lateen plan validate` and `lateen plan fit`. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "base/error.h"
#include "cli/plan/plan_verbs.h"
#include "plan/points.h"

#define MAX_GROUPS 512
#define MAX_IDS    4096

#define VALIDATE_OPTIONS(X)                                                                        \
    X(BOOL, json, "json", "false", 0, 0, "", "print JSON")                                         \
    X(BOOL, rows, "rows", "false", 0, 0, "", "print every row, not only the groups")               \
    X(BOOL, left_out, "left-out", "false", 0, 0, "", "list the rows left out, with reasons")       \
    X(ENUM, unseen, "cross-validate", "off", 0, 0, "off|row|group|source|third",                   \
      "predict each row by a fit that leaves out the row, its group, its source, or the held-out " \
      "third")                                                                                     \
    X(STR, explain, "explain", "", 0, 0, "id",                                                     \
      "print where the time of this row goes, by mechanism")

typedef struct {
    VALIDATE_OPTIONS(LT_OPTION_FIELD)
} validate_options;
#define LT_OPTION_STRUCT validate_options
static const lt_option validate_rows[] = {VALIDATE_OPTIONS(LT_OPTION_ROW)};
#undef LT_OPTION_STRUCT
static const lt_option_table validate_table = LT_OPTION_TABLE("plan validate", validate_rows);

static json_t *real_or_null(double x) {
    return isfinite(x) ? json_real(x) : json_null();
}

static json_t *stats_json(const lt_plan_group_stats *s) {
    json_t *o = json_pack("{s:I,s:I,s:I,s:I}", "rows", (json_int_t)s->used, "rows_in_file",
                          (json_int_t)s->rows, "anchors", (json_int_t)s->anchors, "left_out",
                          (json_int_t)s->left_out);
    json_object_set_new(o, "median_error", s->used > 0 ? json_real(s->median) : json_null());
    json_object_set_new(o, "p90_error", s->used > 0 ? json_real(s->p90) : json_null());
    json_object_set_new(o, "worst_error", s->used > 0 ? json_real(s->worst) : json_null());
    json_object_set_new(o, "mean_signed_error", s->used > 0 ? json_real(s->bias) : json_null());
    json_object_set_new(o, "kendall_tau", real_or_null(s->tau));
    json_object_set_new(o, "memory_rows", json_integer((json_int_t)s->memory_rows));
    json_object_set_new(o, "memory_median_error", real_or_null(s->memory_median));
    return o;
}

static void stats_line(const lt_plan_group_stats *s) {
    char tau[16] = "-", mem[16] = "-";
    if (s->used == 0) {
        printf("  %-22s %5zu %5zu %5zu %5zu       -       -       -       -     -      -\n",
               s->name, s->rows, s->used, s->anchors, s->left_out);
        return;
    }
    if (isfinite(s->tau)) {
        snprintf(tau, sizeof tau, "%.2f", s->tau);
    }
    if (s->memory_rows > 0) {
        snprintf(mem, sizeof mem, "%.1f", 100 * s->memory_median);
    }
    printf("  %-22s %5zu %5zu %5zu %5zu %7.1f %7.1f %7.1f %+7.1f %5s %6s\n", s->name, s->rows,
           s->used, s->anchors, s->left_out, 100 * s->median, 100 * s->p90, 100 * s->worst,
           100 * s->bias, tau, mem);
}

static size_t group_names(const lt_points *p, const char **names) {
    size_t n = 0;
    for (size_t i = 0; i < p->n; i++) {
        const char *g = p->rows[i].field[LT_POINT_group];
        bool known = false;
        for (size_t k = 0; k < n; k++) {
            known = known || strcmp(names[k], g) == 0;
        }
        if (!known && n < MAX_GROUPS) {
            names[n++] = g;
        }
    }
    return n;
}

static json_t *parts_json(const lt_point_job *j) {
    json_t *o = json_object();
    const lt_plan_time t = lt_plan_step_estimate(&j->model, &j->cluster, &j->layout);
#define PART(field, key, text) json_object_set_new(o, key, json_real(t.field));
    LT_PLAN_PART_MAP(PART)
#undef PART
    return o;
}

static json_t *memory_json(const lt_point_job *j) {
    json_t *o = json_object();
    const lt_plan_memory m = lt_plan_memory_estimate(&j->model, &j->cluster, &j->layout);
#define KIND(field, key) json_object_set_new(o, key, json_real(m.field * 1e-9));
    KIND(weights, "weights")
    KIND(gradients, "gradients")
    KIND(optimiser, "optimizer")
    KIND(activations, "activations")
    KIND(logits, "logits")
    KIND(buffers, "buffers")
    KIND(margin, "margin")
    KIND(total, "total")
#undef KIND
    json_object_set_new(o, "shown",
                        json_real(lt_plan_memory_shown(&m, &j->layout, j->memory_figure) * 1e-9));
    return o;
}

static void print_json(const lt_points *p, const lt_point_result *r, bool rows) {
    const char *names[MAX_GROUPS];
    const size_t n = group_names(p, names);
    lt_plan_group_stats s;
    json_t *root = json_object(), *groups = json_object(), *kinds = json_object(),
           *left = json_array(), *list = json_array();
    lt_plan_group_stats_of(&s, r, p->n, NULL);
    json_object_set_new(root, "overall", stats_json(&s));
    for (size_t i = 0; i < n; i++) {
        lt_plan_group_stats_of(&s, r, p->n, names[i]);
        json_object_set_new(groups, names[i], stats_json(&s));
    }
    for (size_t i = 0; i < p->n; i++) {
        char text[LT_PLAN_TEXT_BYTES];
        if (!r[i].used) {
            json_array_append_new(left,
                                  json_pack("{s:s%,s:s}", "id", r[i].row->field[LT_POINT_id],
                                            strlen(r[i].row->field[LT_POINT_id]), "why", r[i].why));
        } else if (rows) {
            json_t *row = json_pack(
                "{s:s,s:s,s:f,s:f,s:f,s:b,s:s,s:s}", "id", r[i].row->field[LT_POINT_id], "measure",
                r[i].job.measure, "measured_s", r[i].job.measured_s, "predicted_s",
                r[i].predicted_s, "error", r[i].error, "anchor", r[i].anchor, "stack",
                r[i].job.cluster.stack.name, "layout", lt_plan_layout_text(text, &r[i].job.layout));
            if (isfinite(r[i].memory_error)) {
                json_object_set_new(row, "memory_gb", json_real(r[i].job.memory_bytes * 1e-9));
                json_object_set_new(row, "memory_error", json_real(r[i].memory_error));
                json_object_set_new(row, "memory_parts_gb", memory_json(&r[i].job));
            }
            json_object_set_new(row, "parts_s", parts_json(&r[i].job));
            if (r[i].job.flag[0] != 0) {
                json_object_set_new(row, "contradiction", json_string(r[i].job.flag));
            }
            json_array_append_new(list, row);
        }
    }
    for (int k = 0; k < LT_PLAN_KIND_COUNT; k++) {
        lt_plan_kind_stats_of(&s, r, p->n, (lt_plan_kind)k);
        json_object_set_new(kinds, s.name, stats_json(&s));
    }
    json_object_set_new(root, "kinds", kinds);
    json_object_set_new(root, "groups", groups);
    json_object_set_new(root, "left_out", left);
    if (rows) {
        json_object_set_new(root, "rows", list);
    } else {
        json_decref(list);
    }
    json_dumpf(root, stdout, JSON_INDENT(1) | JSON_REAL_PRECISION(6));
    putchar('\n');
    json_decref(root);
}

static void print_text(const lt_points *p, const lt_point_result *r, const validate_options *o) {
    const char *names[MAX_GROUPS];
    const size_t n = group_names(p, names);
    lt_plan_group_stats s;
    char text[LT_PLAN_TEXT_BYTES];
    printf("  %-22s %5s %5s %5s %5s %7s %7s %7s %7s %5s %6s\n", "step time error, %", "rows",
           "used", "anchr", "out", "median", "p90", "worst", "mean", "tau", "memory");
    for (size_t i = 0; i < n; i++) {
        lt_plan_group_stats_of(&s, r, p->n, names[i]);
        stats_line(&s);
    }
    for (int k = 0; k < LT_PLAN_KIND_COUNT; k++) {
        lt_plan_kind_stats_of(&s, r, p->n, (lt_plan_kind)k);
        stats_line(&s);
    }
    lt_plan_group_stats_of(&s, r, p->n, NULL);
    stats_line(&s);
    if (s.left_out > 0 && !o->left_out) {
        printf("\n  %zu rows left out; --left-out lists them with reasons\n", s.left_out);
    }
    for (size_t i = 0; i < p->n && o->rows; i++) {
        if (r[i].used) {
            printf("  %-26s %-10s %-15s %9.4f s %9.4f s %+6.1f %%%s  %s\n",
                   r[i].row->field[LT_POINT_id], r[i].job.cluster.gpu.name,
                   r[i].job.cluster.stack.name, r[i].job.measured_s, r[i].predicted_s,
                   100 * r[i].error, r[i].anchor ? " anchor" : "",
                   lt_plan_layout_text(text, &r[i].job.layout));
            if (r[i].job.flag[0] != 0) {
                printf("  %-26s contradicts its source: %s\n", "", r[i].job.flag);
            }
        }
    }
    for (size_t i = 0; i < p->n && o->left_out; i++) {
        if (!r[i].used) {
            printf("  line %d %-26s left out: %s\n", r[i].row->line, r[i].row->field[LT_POINT_id],
                   r[i].why);
        }
    }
}

/* The known facts of a run other than its degrees. */
static void explain_facts(const lt_point_job *j) {
    const lt_plan_stack *s = &j->cluster.stack;
    printf("  software %s on %s: products at %.2f of the peak, memory at %.2f, network at %.2f%s\n",
           s->name, s->gpu, s->gemm, s->memory, s->network,
           s->anchored ? "" : " (not measured: the GPU's default)");
    printf("  CUDA graphs hold %s%s%s%s%s\n", s->graph == 0 ? "nothing" : "",
           s->graph == LT_PLAN_PART_ALL ? "the whole step" : "",
           s->graph != LT_PLAN_PART_ALL && (s->graph & LT_PLAN_PART_ATTENTION) != 0 ? "attention "
                                                                                    : "",
           s->graph != LT_PLAN_PART_ALL && (s->graph & LT_PLAN_PART_MAMBA) != 0 ? "mamba " : "",
           s->graph != LT_PLAN_PART_ALL && (s->graph & LT_PLAN_PART_ROUTER) != 0 ? "router" : "");
    if (j->model.n_experts > 0) {
        printf("  a token's copies travel %s, %.0f %% of that beside other work\n",
               s->ep_copies > 0 ? "each on its own" : "once to a node and once to a rank",
               100 * s->ep_overlap);
    }
    if (j->flag[0] != 0) {
        printf("  contradicts its source: %s\n", j->flag);
    }
}

static lt_err explain(const lt_points *p, const lt_point_result *r, const char *id) {
    char text[LT_PLAN_TEXT_BYTES];
    for (size_t i = 0; i < p->n; i++) {
        const lt_point_job *j = &r[i].job;
        lt_plan_time t;
        if (strcmp(p->rows[i].field[LT_POINT_id], id) != 0) {
            continue;
        }
        if (!r[i].used) {
            LT_FAIL(LT_ERR_ARG, "row %s is left out: %s", id, r[i].why);
        }
        t = lt_plan_step_estimate(&j->model, &j->cluster, &j->layout);
        printf("%s: %s on %lld x %s\n", id, p->rows[i].field[LT_POINT_model],
               (long long)j->cluster.gpus, j->cluster.gpu.name);
        printf("  layout   %s\n", lt_plan_layout_text(text, &j->layout));
        explain_facts(j);
        printf("\n  %-24s %12s %8s\n", "where the time goes", "seconds", "share");
#define LINE(field, key, name)                                                                     \
    if (t.field > 0) {                                                                             \
        printf("  %-24s %12.4f %6.1f %%\n", name, t.field, 100 * t.field / t.step_s);              \
    }
        LT_PLAN_PART_MAP(LINE)
#undef LINE
        printf("  %-24s %12.4f\n  %-24s %12.4f  by %s, error %+.1f %%%s\n", "predicted",
               r[i].predicted_s, "measured", j->measured_s, j->measure, 100 * r[i].error,
               r[i].anchor                      ? " (its fit has seen it)"
               : lt_point_held_out(&p->rows[i]) ? " (held out)"
                                                : "");
        return LT_OK;
    }
    LT_FAIL(LT_ERR_NOT_FOUND, "no row has the id '%s'", id);
}

int lt_plan_validate_verb(int argc, char **argv) {
    validate_options o;
    lt_points p = {0};
    lt_point_result *r = NULL;
    const char *path = NULL;
    int n = 0, status = LT_EXIT_DONE;
    lt_err err;

    if (!lt_verb_parse(&validate_table, &o, argc, argv,
                       "plan validate points.csv [--json] [--rows] [--left-out] [--explain id] "
                       "[--cross-validate row|group|source|third]",
                       "Predict published runs and print the errors by group. Rows from which the "
                       "fits were made (anchors) count in no statistic.",
                       &path, 1, &n, &status)) {
        return status;
    }
    if (n != 1) {
        lt_error_set(LT_ERR_ARG, "plan validate needs one CSV file");
        return lt_verb_fail(LT_ERR_ARG);
    }
    err = lt_points_load(&p, path);
    if (err == LT_OK) {
        err = o.unseen == 0 ? lt_plan_validate(&p, &r)
                            : lt_plan_cross_validate(&p, (lt_plan_unseen)(o.unseen - 1), &r);
    }
    if (err == LT_OK && o.explain[0] != 0) {
        err = explain(&p, r, o.explain);
    } else if (err == LT_OK && o.json) {
        print_json(&p, r, o.rows);
    } else if (err == LT_OK) {
        print_text(&p, r, &o);
    }
    if (err != LT_OK) {
        status = lt_verb_fail(err);
    }
    free(r);
    lt_points_free(&p);
    return status;
}

#define FIT_OPTIONS(X)                                                                             \
    X(STR, rows, "rows", "", 0, 0, "id,id,...",                                                    \
      "anchor rows (default: those named in recipes/clusters/stacks.yaml)")                        \
    X(ENUM, all, "anchors", "named", 0, 0, "named|fit-part|all",                                   \
      "anchor rows: those named, the two thirds that are not held out, or every readable row")
typedef struct {
    FIT_OPTIONS(LT_OPTION_FIELD)
} fit_options;
#define LT_OPTION_STRUCT fit_options
static const lt_option fit_rows[] = {FIT_OPTIONS(LT_OPTION_ROW)};
#undef LT_OPTION_STRUCT
static const lt_option_table fit_table = LT_OPTION_TABLE("plan fit", fit_rows);

/* Anchors of exactly this stack; the others of its family ran on other releases. */
static size_t print_anchors(const lt_plan_fit *f) {
    size_t own = 0;
    for (size_t a = 0; a < f->n_anchors; a++) {
        char stack[LT_PLAN_NAME_BYTES];
        if (strcmp(lt_point_stack(f->anchor[a], stack), f->stack.name) == 0) {
            printf("%s%s", own++ > 0 ? ", " : ", anchors: [", f->anchor[a]->field[LT_POINT_id]);
        }
    }
    printf("%s", own > 0 ? "]" : "");
    return f->n_anchors - own;
}

static void print_fits(const lt_plan_fit *f, size_t n) {
    const char *gpu = "";
    printf("fits:\n");
    for (size_t k = 0; k < n; k++) { /* Grouped by GPU, in the order of their first anchor. */
        bool seen = false;
        for (size_t i = 0; i < k; i++) {
            seen = seen || strcmp(f[i].stack.gpu, f[k].stack.gpu) == 0;
        }
        if (seen) {
            continue;
        }
        gpu = f[k].stack.gpu;
        printf("  %s:\n", gpu);
        for (size_t i = k; i < n; i++) {
            if (strcmp(f[i].stack.gpu, gpu) == 0) {
                const lt_plan_stack *s = &f[i].stack;
                const bool us = s->launch_blocking > 0;
                printf("    %s: {gemm: %.4f, %s: %.4f, network: %.4f", s->name, s->gemm,
                       us ? "launch_us" : "memory", us ? s->launch_us : s->memory, s->network);
                const size_t others = print_anchors(&f[i]);
                printf("} # rms %.1f %%", 100 * f[i].rms);
                if (others > 0) {
                    printf(", with %zu anchors of its releases", others);
                }
                putchar('\n');
            }
        }
    }
}

/* All rows, or those of the fit part, that the planner can predict. */
static size_t part_ids(const lt_points *p, const char **ids, bool all) {
    size_t n = 0;
    for (size_t i = 0; i < p->n && n < MAX_IDS; i++) {
        lt_point_job j;
        char why[LT_PLAN_TEXT_BYTES];
        if ((all || !lt_point_held_out(&p->rows[i])) && p->rows[i].field[LT_POINT_id][0] != 0 &&
            lt_point_job_make(&j, &p->rows[i], why) && lt_point_predict(&j, why) > 0) {
            ids[n++] = p->rows[i].field[LT_POINT_id];
        }
    }
    return n;
}

static lt_err fit(const char *path, char *list, int anchors) {
    lt_err err = LT_OK;
    lt_points p = {0};
    lt_plan_fit *f = NULL;
    char **shipped = NULL;
    const char *ids[MAX_IDS];
    size_t n = 0, n_fits = 0;

    LT_TRY_DONE(lt_points_load(&p, path));
    if (anchors > 0) {
        n = part_ids(&p, ids, anchors == 2);
    } else if (list[0] == 0) {
        LT_TRY_DONE(lt_plan_anchor_ids(&shipped, &n));
        if (n > MAX_IDS) {
            LT_FAIL_DONE(LT_ERR_LIMIT, "%zu anchors, at most %d", n, MAX_IDS);
        }
        memcpy(ids, shipped, n * sizeof *ids);
    }
    for (char *save = NULL, *w = strtok_r(list, ",", &save); w != NULL && n < MAX_IDS;
         w = strtok_r(NULL, ",", &save)) {
        ids[n++] = w;
    }
    LT_TRY_DONE(lt_plan_fit_rows(&p, ids, n, &f, &n_fits));
    print_fits(f, n_fits);
done:
    free(f);
    free(shipped);
    lt_points_free(&p);
    return err;
}

int lt_plan_fit_verb(int argc, char **argv) {
    fit_options o;
    const char *path = NULL;
    int n = 0, status = LT_EXIT_DONE;
    lt_err err;

    if (!lt_verb_parse(&fit_table, &o, argc, argv,
                       "plan fit points.csv [--rows id,id,...|--anchors fit-part|all]",
                       "Fit gemm, memory and network efficiency of every (GPU kind, stack) that "
                       "the anchor rows ran on; prints the `fits` "
                       "section of recipes/clusters/stacks.yaml.",
                       &path, 1, &n, &status)) {
        return status;
    }
    if (n != 1) {
        lt_error_set(LT_ERR_ARG, "plan fit needs one CSV file");
        return lt_verb_fail(LT_ERR_ARG);
    }
    err = fit(path, o.rows, o.all);
    return err == LT_OK ? LT_EXIT_DONE : lt_verb_fail(err);
}
