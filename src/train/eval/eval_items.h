/* eval_items.h: the items of a task, as pairs of texts to score.
 *
 *   task           context                            continuations       members of a line
 *   arc_*, piqa    "<query>\nAnswer:"                 " <choice>" each    query, choices, gold
 *   openbookqa     "<query>"                          " <choice>" each    the same
 *   winogrande     one of context_options each        " <continuation>"   context_options,
 *                                                                         continuation, gold
 *   lambada        "<context>"                        " <continuation>"   context, continuation
 *   mmlu           the subject's preamble, shots,     " A" " B" " C" " D" CSV: question,
 *                  question                                               choice0..3, answer
 * The texts are those of lm-evaluation-harness (its task files of the same names). */
#ifndef LT_TRAIN_EVAL_ITEMS_H
#define LT_TRAIN_EVAL_ITEMS_H

#include "lateen/base.h"

#define LT_EVAL_MAX_CHOICES 8

typedef struct {
    int n_pairs, gold;
    char *contexts[LT_EVAL_MAX_CHOICES];
    char *continuations[LT_EVAL_MAX_CHOICES];
} lt_eval_item;

typedef struct {
    lt_eval_item *items;
    int64_t n, room;
} lt_eval_items;

typedef enum {
    LT_EVAL_CHOICE,     /* Metrics of multiple choice, with the length-normalised one. */
    LT_EVAL_CHOICE_RAW, /* Without it, because choices are letters, or contexts differ. */
    LT_EVAL_LAST_WORD,  /* lambada's. */
} lt_eval_metric;

LT_MUST_USE lt_err lt_eval_items_read(lt_eval_items *out, lt_eval_metric *metric, const char *task,
                                      const char *data, int64_t limit, int64_t shots);
void lt_eval_items_free(lt_eval_items *items);

/* The parts: JSON lines here, MMLU's files in eval_mmlu.c. Strings are copied. */
LT_MUST_USE lt_err lt_eval_items_add(lt_eval_items *items, lt_eval_item **added);
LT_MUST_USE lt_err lt_eval_item_pair(lt_eval_item *item, const char *context,
                                     const char *continuation);
LT_MUST_USE lt_err lt_eval_mmlu_read(lt_eval_items *out, const char *data, int64_t limit,
                                     int64_t shots);

#endif
