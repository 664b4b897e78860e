/* preference_data.h: files of preferences as rows of tokens, in memory.
 *
 * A line is one example, in TRL's shapes. A text is a string, which stands for one message of the
 * user or of the assistant, or a list of messages; the model's chat template renders both:
 *
 *     pairs, scores   {"prompt", "chosen", "rejected"}, or {"chosen", "rejected"}: two whole
 *                     conversations, whose common beginning is the prompt; scores may also have
 *                     "margin"
 *     labels          {"prompt", "completion", "label": true or false}
 *     quantiles       {"prompt", "completion", "reward", "ref_rewards": [...]}: for QRPO
 *     steps           {"prompt", "completions": [step, ...], "labels": [true, false, ...]}
 *
 * A step is a text. A separator follows each step (data/steps.h), and the last token of the
 * separator has the step's label. As in TRL, a prompt that is a string is not a message of a chat:
 * it is encoded as a text behind the tokenizer's BOS. A prompt that is a list of messages is
 * rendered by the template, which also opens the answer. A step whose label is null is read but not
 * learnt.
 *
 * "tools", "documents" and "chat_template_kwargs" go to the template, as in conversations
 * (data/chat_rows.h). A pair has two rows, the chosen one and then the rejected one.
 *
 * Lines that cannot be used are named with file, line and reason, the first LT_CONVERSATIONS_TOLD
 * of them, and counted. */
#ifndef LT_ALIGN_PREFERENCE_DATA_H
#define LT_ALIGN_PREFERENCE_DATA_H

#include "data/conversations.h"
#include "data/steps.h"
#include "lateen/align.h"

typedef struct {
    double margin;   /* Scores: 0 if the line has none. */
    bool good;       /* Labels. */
    double quantile; /* Quantiles: that of the reward among n_refs. */
    int64_t n_refs;
} lt_preference;

typedef struct {
    lt_preference *examples; /* (n) */
    int64_t n, together;     /* Rows per example: 2 for a pair, else 1. */
    int32_t *ids;            /* Ids of all rows, one row after another. */
    int64_t *start;          /* (n * together + 1): where a row begins in ids. */
    int32_t *first;          /* (n * together): index in the row of the completion's first token. */
    signed char *steps;      /* Steps: label of each id, -1 if no step ends there; else NULL. */
    uint64_t hash;           /* Hash of everything in this struct. */
    uint64_t left_out, cut;
    size_t bytes;
} lt_preferences;

typedef struct {
    const char *const *paths; /* JSON lines, plain, .gz or .zst. */
    int64_t n_paths;
    const lt_chat_rows *rows;
    lt_align_given given;
    bool quantiles;        /* Single completions with a reward instead of a label. */
    const lt_steps *steps; /* Steps: their separator. */
    int64_t longest;       /* Most tokens of a row. */
    lt_bad_rows bad_rows;
    lt_too_long too_long; /* Rows that are judged as a whole (scores) are never cut, but omitted. */
} lt_preferences_options;

/* FORMAT: no line can be used, or bad_rows or too_long is FAIL and a line cannot be used. Close it
 * also after a failure. */
LT_MUST_USE lt_err lt_preferences_read(lt_preferences *out, const lt_preferences_options *o);
void lt_preferences_close(lt_preferences *p);

static inline int64_t lt_preferences_tokens(const lt_preferences *p, int64_t row) {
    return p->start[row + 1] - p->start[row];
}

#endif
