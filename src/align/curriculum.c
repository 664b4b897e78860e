/* curriculum.c: see curriculum.h. */
#include "align/curriculum.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/json.h"
#include "base/log.h"
#include "base/rng.h"

#define KEYS_STREAM 0x6375 /* Stream of the seed that gives the keys. */

/* A property of a problem, for sorting. */
typedef struct {
    double value;
    int64_t problem;
} ranked;

static int ascending(const void *a, const void *b) {
    const ranked *x = a, *y = b;
    if (x->value != y->value) {
        return x->value < y->value ? -1 : 1;
    }
    return x->problem < y->problem ? -1 : x->problem > y->problem;
}

bool lt_curriculum_is_asked(const lt_curriculum_options *o) {
    return o->member[0] != '\0' || o->prefer != LT_PREFER_NONE;
}

/* ---- Difficulty ---- */

static lt_err read_difficulty(const lt_curriculum *c, const lt_problem *p, double *out) {
    const bool falls = c->o.member[0] == '-';
    const json_t *value = json_object_get(p->line, c->o.member + falls);
    if (!json_is_number(value)) {
        LT_FAIL(LT_ERR_FORMAT,
                "%s:%" PRIu64 ": %s \"%s\", by which rl.curriculum orders the problems", p->path,
                p->line_number, value == NULL ? "no" : "there is no number in",
                c->o.member + falls);
    }
    *out = falls ? -json_number_value(value) : json_number_value(value);
    return LT_OK;
}

static lt_err order_problems(lt_curriculum *c, const lt_problems *problems) {
    ranked *all = malloc((size_t)c->n * sizeof *all);
    lt_err err = LT_OK;
    if (all == NULL) {
        LT_FAIL_DONE(LT_ERR_OOM, "difficulties of %" PRId64 " problems", c->n);
    }
    for (int64_t i = 0; i < c->n; i++) {
        all[i].problem = i;
        LT_TRY_DONE(read_difficulty(c, &problems->items[i], &all[i].value));
    }
    qsort(all, (size_t)c->n, sizeof *all, ascending);
    for (int64_t i = 0, first = 0; i < c->n; i++) {
        first = all[i].value == all[first].value ? first : i;
        c->easier[all[i].problem] = (double)first / (double)c->n;
    }
    if (all[0].value == all[c->n - 1].value) {
        lt_log_warn("rl.curriculum: \"%s\" is %g in all %" PRId64 " problems, so it orders nothing",
                    c->o.member, fabs(all[0].value), c->n);
    }
done:
    free(all);
    return err;
}

lt_err lt_curriculum_open(lt_curriculum *c, const lt_curriculum_options *o,
                          const lt_problems *problems) {
    const size_t n = (size_t)problems->n;
    LT_ASSERT(n > 0 && o->start > 0.0 && o->start <= 1.0 && o->steps > 0);
    *c = (lt_curriculum){.o = *o,
                         .n = problems->n,
                         .problems_hash = problems->hash,
                         .easier = calloc(n, sizeof *c->easier),
                         .counts = calloc(n, sizeof *c->counts),
                         .asked = calloc(n, sizeof *c->asked)};
    if (c->easier == NULL || c->counts == NULL || c->asked == NULL) {
        LT_FAIL(LT_ERR_OOM, "a curriculum of %zu problems", n);
    }
    return o->member[0] != '\0' ? order_problems(c, problems) : LT_OK;
}

void lt_curriculum_close(lt_curriculum *c) {
    free(c->easier);
    free(c->counts);
    free(c->asked);
    *c = (lt_curriculum){.n = 0};
}

double lt_curriculum_share(const lt_curriculum *c, int64_t step) {
    const double start = c->o.start * c->o.start, at = (double)step / (double)c->o.steps;
    return c->o.member[0] == '\0' || at >= 1.0 ? 1.0 : sqrt(at * (1.0 - start) + start);
}

static bool is_open(const lt_curriculum *c, double share, int64_t problem) {
    return c->easier[problem] < share;
}

int64_t lt_curriculum_n_open(const lt_curriculum *c, int64_t step) {
    const double share = lt_curriculum_share(c, step);
    int64_t n = 0;
    for (int64_t i = 0; i < c->n; i++) {
        n += is_open(c, share, i);
    }
    return n;
}

/* ---- Pass rates ---- */

double lt_curriculum_rate(const lt_curriculum *c, int64_t problem) {
    const lt_curriculum_count *k = &c->counts[problem];
    return (k->passed + 1.0) / (k->answers + 2.0);
}

double lt_curriculum_weight(const lt_curriculum *c, int64_t problem) {
    const double s = lt_curriculum_rate(c, problem);
    return (double[]){
        [LT_PREFER_NONE] = 1.0, [LT_PREFER_FAILED] = 1.0 - s, [LT_PREFER_LEARNABLE] = s * (1.0 - s)}
        [c->o.prefer];
}

void lt_curriculum_learn(lt_curriculum *c, int64_t problem, double passed, double answers) {
    lt_curriculum_count *k = &c->counts[problem];
    LT_ASSERT(problem >= 0 && problem < c->n && passed >= 0.0 && passed <= answers);
    k->passed = k->passed / 2.0 + passed;
    k->answers = k->answers / 2.0 + answers;
}

/* ---- A draw ---- */

void lt_curriculum_begin(lt_curriculum *c) {
    memset(c->asked, 0, (size_t)c->n * sizeof *c->asked);
}

static double key_of(const lt_curriculum *c, int64_t first, int64_t problem) {
    lt_rng r = {.seed = lt_rng_mix(c->o.seed ^ lt_rng_mix((uint64_t)first)),
                .stream = KEYS_STREAM,
                .position = (uint64_t)problem};
    return log(1.0 - lt_rng_uniform(&r)) / lt_curriculum_weight(c, problem);
}

/* Choose up to n problems: those with the largest keys among the open ones that were not yet
 * asked. */
static int64_t pick_some(lt_curriculum *c, double share, int64_t first, int64_t n, ranked *keys,
                         int64_t *problems) {
    int64_t may = 0, taken;
    for (int64_t i = 0; i < c->n; i++) {
        if (is_open(c, share, i) && !c->asked[i]) {
            keys[may++] = (ranked){-key_of(c, first, i), i};
        }
    }
    qsort(keys, (size_t)may, sizeof *keys, ascending);
    taken = may < n ? may : n;
    for (int64_t i = 0; i < taken; i++) {
        problems[i] = keys[i].problem;
        c->asked[problems[i]] = true;
    }
    return taken;
}

lt_err lt_curriculum_pick(lt_curriculum *c, int64_t step, int64_t first, int64_t n,
                          int64_t *problems) {
    const double share = lt_curriculum_share(c, step);
    ranked *keys = malloc((size_t)c->n * sizeof *keys);
    if (keys == NULL) {
        LT_FAIL(LT_ERR_OOM, "keys of %" PRId64 " problems", c->n);
    }
    for (int64_t have = 0; have < n;) {
        const int64_t taken = pick_some(c, share, first + have, n - have, keys, problems + have);
        have += taken;
        if (taken == 0) { /* All open problems were asked; the easiest are always open. */
            lt_curriculum_begin(c);
        }
    }
    free(keys);
    return LT_OK;
}

/* ---- The state ---- */

static void hash_text(char out[17], uint64_t hash) {
    (void)snprintf(out, 17, "%016" PRIx64, hash);
}

json_t *lt_curriculum_print(const lt_curriculum *c) {
    json_t *counts = json_array();
    char hash[17];
    hash_text(hash, c->problems_hash);
    for (int64_t i = 0; i < c->n; i++) {
        const lt_curriculum_count *k = &c->counts[i];
        if (k->answers > 0.0) {
            json_array_append_new(counts,
                                  json_pack("[I, f, f]", (json_int_t)i, k->passed, k->answers));
        }
    }
    return json_pack("{s:s, s:o}", "problems", hash, "counts", counts);
}

lt_err lt_curriculum_seek(lt_curriculum *c, const json_t *from) {
    const char *was = json_string_value(json_object_get(from, "problems"));
    const json_t *counts = json_object_get(from, "counts"), *one;
    char hash[17];
    size_t i;
    hash_text(hash, c->problems_hash);
    memset(c->counts, 0, (size_t)c->n * sizeof *c->counts);
    if (was == NULL || strcmp(was, hash) != 0) {
        lt_log_warn("the checkpoint has no pass rates of these problems: they are measured anew");
        return LT_OK;
    }
    json_array_foreach(counts, i, one) {
        const int64_t problem = json_integer_value(json_array_get(one, 0));
        const double passed = json_number_value(json_array_get(one, 1)),
                     answers = json_number_value(json_array_get(one, 2));
        if (json_array_size(one) != 3 || problem < 0 || problem >= c->n ||
            !(passed >= 0.0 && passed <= answers)) {
            LT_FAIL(LT_ERR_FORMAT,
                    "pass rate %zu of the checkpoint: problem %" PRId64 " of %" PRId64
                    ", %g of %g answers passed",
                    i, problem, c->n, passed, answers);
        }
        c->counts[problem] = (lt_curriculum_count){passed, answers};
    }
    return LT_OK;
}
