/* eval_task.c: scores every pair of a task's questions, and counts the correct ones. */
#include <math.h>

#include "base/error.h"
#include "train/eval/eval_items.h"
#include "train/eval/score.h"

/* Index of the largest; the first of ties, as numpy's argmax. */
static int best_of(const double *values, int n) {
    int best = 0;
    for (int i = 1; i < n; i++) {
        best = values[i] > values[best] ? i : best;
    }
    return best;
}

/* Number of characters of a choice, without the space before it, by which the harness divides. */
static double characters(const char *continuation) {
    double n = 0.0;
    for (const char *p = continuation + 1; *p != '\0'; p++) {
        /* UTF-8 continuation bytes do not begin a character. */
        n += ((unsigned char)*p & 0xC0) != 0x80;
    }
    return n;
}

typedef struct {
    int64_t right, right_normalised;
    double log_prob;
} counts;

static lt_err score_item(lt_scorer *s, const lt_eval_item *item, lt_eval_metric metric, counts *c) {
    double raw[LT_EVAL_MAX_CHOICES], normalised[LT_EVAL_MAX_CHOICES];
    lt_score score = {0};

    for (int i = 0; i < item->n_pairs; i++) {
        LT_TRY(lt_score_pair(s, item->contexts[i], item->continuations[i], &score));
        raw[i] = score.log_prob;
        normalised[i] = score.log_prob / characters(item->continuations[i]);
    }
    if (metric == LT_EVAL_LAST_WORD) {
        c->right += score.greedy;
        c->log_prob += score.log_prob;
        return LT_OK;
    }
    c->right += best_of(raw, item->n_pairs) == item->gold;
    c->right_normalised += best_of(normalised, item->n_pairs) == item->gold;
    return LT_OK;
}

lt_err lt_eval_task(lt_eval_task_result *out, const lt_eval_options *o, const char *task,
                    const char *data) {
    lt_err err = LT_OK;
    lt_eval_items items = {0};
    lt_eval_metric metric = LT_EVAL_CHOICE;
    lt_scorer s = {0};
    counts c = {0};
    double n, p;

    LT_TRY_DONE(lt_eval_items_read(&items, &metric, task, data, o->limit, o->shots));
    if (items.n == 0) {
        LT_FAIL_DONE(LT_ERR_FORMAT, "%s: no question of task %s", data, task);
    }
    LT_TRY_DONE(lt_scorer_open(&s, o));
    for (int64_t i = 0; i < items.n; i++) {
        LT_TRY_DONE(score_item(&s, &items.items[i], metric, &c));
        if (o->progress != NULL) {
            o->progress(o->ctx, i + 1, items.n);
        }
    }
    n = (double)items.n;
    p = (double)c.right / n;
    *out = (lt_eval_task_result){
        .task = task,
        .items = items.n,
        .accuracy = p,
        .accuracy_stderr = items.n > 1 ? sqrt(p * (1.0 - p) / (n - 1.0)) : 0.0,
        .accuracy_normalised = metric == LT_EVAL_CHOICE ? (double)c.right_normalised / n : NAN,
        .perplexity = metric == LT_EVAL_LAST_WORD ? exp(-c.log_prob / n) : NAN};
done:
    lt_scorer_close(&s);
    lt_eval_items_free(&items);
    return err;
}
