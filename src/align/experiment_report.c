/* experiment_report.c: the results of an experiment: means with their intervals, and a page of
 * curves. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "align/experiment.h"
#include "align/experiment_page.h"
#include "base/error.h"
#include "serve/api/json_out.h"
#include "train/report/report.h"

#define Z95 1.959963984540054

/* The problems of one (model, task, method) whose seeds are all done. */
typedef struct {
    const lt_experiment *e;
    lt_experiment_place at; /* Without seed and problem. */
    int32_t *right;         /* (n): number of right answers per problem */
    double *tokens;         /* (n) their mean tokens */
    double *scores;         /* (n) their mean score */
    int64_t n, n_scored;
    double kl; /* The mean over all. */
} sums;

/* Wilson, Journal of the American Statistical Association 22 (1927), with the effective number of
 * answers: answers to one problem resemble each other, so the variance of the mean comes from the
 * problems' own means. */
lt_experiment_share lt_experiment_share_of(const int32_t *right, int64_t n, int64_t seeds) {
    double mean = 0, square = 0, answers = (double)n, middle, half;
    for (int64_t i = 0; i < n; i++) {
        const double x = (double)right[i] / (double)seeds;
        mean += x;
        square += x * x;
    }
    if (n == 0) {
        return (lt_experiment_share){0, 0, 1};
    }
    mean /= (double)n;
    const double variance = n > 1 ? (square - (double)n * mean * mean) / (double)(n - 1) : 0;
    if (variance > 1e-12 && mean > 0 && mean < 1) {
        answers = mean * (1 - mean) / (variance / (double)n);
        answers = fmin(answers, (double)(n * seeds));
    }
    middle = (mean + Z95 * Z95 / (2 * answers)) / (1 + Z95 * Z95 / answers);
    half = Z95 / (1 + Z95 * Z95 / answers) *
           sqrt(mean * (1 - mean) / answers + Z95 * Z95 / (4 * answers * answers));
    return (lt_experiment_share){mean, fmax(0, middle - half), fmin(1, middle + half)};
}

/* Add one problem; false unless all its seeds are done. */
static bool add_problem(sums *s, int64_t problem) {
    const lt_experiment *e = s->e;
    double tokens = 0, score = 0, kl = 0;
    int32_t right = 0;
    bool scored = true;
    for (int64_t seed = 0; seed < e->n_seeds; seed++) {
        lt_experiment_place p = s->at;
        const lt_experiment_cell *c;
        p.seed = seed;
        p.problem = problem;
        c = &e->cells[lt_experiment_index(e, &p)];
        if (!c->done) {
            return false;
        }
        right += c->right;
        tokens += c->tokens;
        scored = scored && c->scored;
        score += c->score;
        kl += c->kl;
    }
    s->right[s->n] = right;
    s->tokens[s->n++] = tokens / (double)e->n_seeds;
    if (scored) {
        s->scores[s->n_scored++] = score / (double)e->n_seeds;
        s->kl += kl / (double)e->n_seeds;
    }
    return true;
}

/* The mean and half of its 95 % interval. */
static double mean_of(const double *x, int64_t n, double *half) {
    double mean = 0, square = 0;
    for (int64_t i = 0; i < n; i++) {
        mean += x[i] / (double)n;
    }
    for (int64_t i = 0; i < n; i++) {
        square += (x[i] - mean) * (x[i] - mean);
    }
    *half = n > 1 ? Z95 * sqrt(square / (double)(n - 1) / (double)n) : 0;
    return mean;
}

/* A number with the ends of its interval. */
static void put_interval(lt_json_out *o, const char *key, double mean, double low, double high) {
    lt_out_key_open(o, key, '[');
    lt_out_real(o, mean);
    lt_out_real(o, low);
    lt_out_real(o, high);
    lt_out_shut(o, ']');
}

static void put_mean(lt_json_out *o, const char *key, const double *x, int64_t n) {
    double half = 0;
    const double mean = mean_of(x, n, &half);
    put_interval(o, key, mean, mean - half, mean + half);
}

static void put_row(lt_json_out *o, sums *s) {
    const lt_experiment *e = s->e;
    const lt_experiment_config *c = &e->configs[s->at.config];
    const lt_experiment_task *t = &e->tasks[s->at.task];
    lt_experiment_share share;

    s->n = s->n_scored = 0;
    s->kl = 0;
    for (int64_t i = 0; i < t->n_problems; i++) {
        (void)add_problem(s, i);
    }
    share = lt_experiment_share_of(s->right, s->n, e->n_seeds);
    lt_out_open(o, '{');
    lt_out_key_str(o, "model", e->models[s->at.model].name);
    lt_out_key_str(o, "task", t->name);
    lt_out_key_str(o, "method", c->method);
    lt_out_key_value(o, "parameters", c->parameters);
    lt_out_key_int(o, "problems", s->n);
    lt_out_key_int(o, "seeds", e->n_seeds);
    put_interval(o, "accuracy", share.mean, share.low, share.high);
    put_mean(o, "tokens", s->tokens, s->n);
    if (s->n_scored == s->n && s->n > 0) {
        put_mean(o, "score", s->scores, s->n);
        lt_out_key_real(o, "kl", s->kl / (double)s->n);
    }
    lt_out_shut(o, '}');
}

/* Rows, each followed by `between`. */
static lt_err put_rows(lt_json_out *o, const lt_experiment *e, const char *between) {
    sums s = {.e = e};
    int64_t most = 0;
    lt_err err = LT_OK;

    for (int64_t t = 0; t < e->n_tasks; t++) {
        most = e->tasks[t].n_problems > most ? e->tasks[t].n_problems : most;
    }
    s.right = calloc((size_t)most, sizeof *s.right);
    s.tokens = calloc((size_t)most, sizeof *s.tokens);
    s.scores = calloc((size_t)most, sizeof *s.scores);
    if (s.right == NULL || s.tokens == NULL || s.scores == NULL) {
        LT_FAIL_DONE(LT_ERR_OOM, "summary of %lld problems", (long long)most);
    }
    for (int64_t i = 0; i < e->n_models * e->n_tasks * e->n_configs; i++) {
        s.at = (lt_experiment_place){.model = i / e->n_configs / e->n_tasks,
                                     .task = i / e->n_configs % e->n_tasks,
                                     .config = i % e->n_configs};
        put_row(o, &s);
        if (between != NULL) {
            lt_out_raw(o, between, strlen(between));
            o->comma = false;
        }
    }
done:
    free(s.right);
    free(s.tokens);
    free(s.scores);
    return err;
}

static void put_configuration(lt_json_out *o, const lt_experiment *e) {
    lt_out_key_open(o, "configuration", '{');
    lt_out_key_open(o, "seeds", '[');
    for (int64_t i = 0; i < e->n_seeds; i++) {
        lt_out_int(o, e->seeds[i]);
    }
    lt_out_shut(o, ']');
    lt_out_key_open(o, "requests", '[');
    for (int64_t i = 0; i < e->n_configs; i++) {
        lt_out_open(o, '{');
        lt_out_key_str(o, "method", e->configs[i].method);
        lt_out_key_value(o, "request", e->configs[i].request);
        lt_out_shut(o, '}');
    }
    lt_out_shut(o, ']');
    lt_out_key_open(o, "examples", '[');
    for (int64_t i = 0; i < e->n_tasks; i++) {
        lt_out_open(o, '{');
        lt_out_key_str(o, "task", e->tasks[i].name);
        lt_out_key_str(o, "prompt", e->tasks[i].problems[0].prompt);
        lt_out_key_str(o, "answer", e->tasks[i].problems[0].answer);
        lt_out_shut(o, '}');
    }
    lt_out_shut(o, ']');
    lt_out_shut(o, '}');
}

static lt_err write_text(const lt_experiment *e, const char *name, const char *text, size_t n) {
    char path[LT_PATH_BYTES];
    LT_TRY(lt_path_join(path, e->out, name));
    return lt_file_write_atomic(path, text, n);
}

lt_err lt_experiment_report(const lt_experiment *e) {
    lt_json_out lines = {0}, data = {0};
    char *page = NULL;
    lt_err err = LT_OK;

    LT_TRY_DONE(put_rows(&lines, e, "\n"));
    lt_out_open(&data, '{');
    lt_out_key_str(&data, "title", e->out);
    lt_out_key_str(&data, "version", lt_version());
    lt_out_key_int(&data, "done", e->n_done);
    lt_out_key_int(&data, "cells", e->n_cells);
    lt_out_key_open(&data, "rows", '[');
    LT_TRY_DONE(put_rows(&data, e, NULL));
    lt_out_shut(&data, ']');
    put_configuration(&data, e);
    lt_out_shut(&data, '}');
    page = lines.failed || data.failed ? NULL : lt_report_fill(lt_experiment_page, data.data);
    if (page == NULL) {
        LT_FAIL_DONE(LT_ERR_OOM, "report of %s", e->out);
    }
    LT_TRY_DONE(write_text(e, "summary.jsonl", lines.data, lines.n));
    LT_TRY_DONE(write_text(e, "report.html", page, strlen(page)));
done:
    free(page);
    lt_out_free(&lines);
    lt_out_free(&data);
    return err;
}
