/* score.c: see score.h. Choices of one question share their context: the session keeps the common
 * part and reads only the rest. */
#include "train/eval/score.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "model/blocks/exec.h"

#define SEQ_DEFAULT 2048

lt_err lt_scorer_open(lt_scorer *s, const lt_eval_options *o) {
    const lt_model_spec *spec = lt_model_get_spec(o->model);
    const lt_tokenizer_info info = lt_tokenizer_describe(o->tokenizer);
    const int64_t context = lt_model_spec_context(spec),
                  most = context < SEQ_DEFAULT ? context : SEQ_DEFAULT;

    *s = (lt_scorer){.options = o};
    LT_TRY(lt_model_spec_writes(spec, "evaluation"));
    s->seq = o->seq > 0 ? o->seq : most;
    if (s->seq > context || s->seq < 2) {
        LT_FAIL(LT_ERR_ARG, "sequences of %lld tokens, the model takes 2 to %lld",
                (long long)s->seq, (long long)context);
    }
    if ((int64_t)info.n_ids > spec->vocab_size) {
        LT_FAIL(LT_ERR_ARG,
                "the tokenizer has %u entries, the model %lld: they do not belong together",
                info.n_ids, (long long)spec->vocab_size);
    }
    s->first_id = info.bos != LT_TOKEN_NONE   ? (int32_t)info.bos
                  : info.eos != LT_TOKEN_NONE ? (int32_t)info.eos
                                              : 0;
    s->cached = malloc((size_t)s->seq * sizeof *s->cached);
    s->loss = malloc((size_t)s->seq * sizeof *s->loss);
    s->best = malloc((size_t)s->seq * sizeof *s->best);
    if (s->cached == NULL || s->loss == NULL || s->best == NULL) {
        LT_FAIL(LT_ERR_OOM, "scores of %lld tokens", (long long)s->seq);
    }
    LT_TRY(lt_tokenizer_scratch_open(&s->scratch, o->tokenizer));
    return lt_session_open(&s->session, o->model, 1, s->seq);
}

void lt_scorer_close(lt_scorer *s) {
    lt_session_close(s->session);
    lt_tokenizer_scratch_close(s->scratch);
    lt_ids_free(&s->whole);
    lt_ids_free(&s->context);
    free(s->cached);
    free(s->loss);
    free(s->best);
    *s = (lt_scorer){0};
}

/* Make the session hold ids[0, n) without their logits; a common beginning is kept. */
static lt_err hold(lt_scorer *s, const int32_t *ids, int64_t n) {
    int64_t common = 0;
    while (common < n && common < s->n_cached && s->cached[common] == ids[common]) {
        common++;
    }
    lt_session_truncate(s->session, 0, common);
    s->n_cached = common;
    if (common < n) {
        LT_TRY(lt_session_eval(s->session, 0, ids + common, n - common, NULL));
        memcpy(s->cached + common, ids + common, (size_t)(n - common) * sizeof *ids);
        s->n_cached = n;
    }
    return LT_OK;
}

/* If the rotation depends on the length of a text, the cache of a shorter one cannot be used, so
 * the whole text runs in one call. */
static bool runs_whole(const lt_scorer *s, int64_t n) {
    const int64_t limit = lt_rope_switch(lt_model_get_spec(s->options->model));
    return limit > 0 && n > limit;
}

lt_err lt_score_tokens(lt_scorer *s, const int32_t *ids, int64_t n, int64_t first, lt_score *out) {
    const bool whole = runs_whole(s, n - 1);
    LT_ASSERT(first > 0 && first <= n && n <= s->seq + 1);
    *out = (lt_score){.greedy = true, .n_tokens = n - first};
    LT_TRY(hold(s, ids, whole ? 0 : first - 1));
    if (first == n) {
        return LT_OK;
    }
    const int64_t from = whole ? 1 : first; /* Row i of a call predicts label i. */
    const int32_t *labels = ids + from;
    LT_TRY(lt_session_score(s->session, 0, labels - 1, n - from, labels, s->loss, s->best));
    for (int64_t i = first - from; i < n - from; i++) {
        out->log_prob -= (double)s->loss[i];
        out->greedy = out->greedy && s->best[i] == labels[i];
    }
    memcpy(s->cached + from - 1, labels - 1, (size_t)(n - from) * sizeof *ids);
    s->n_cached = whole ? 0 : n - 1;
    return LT_OK;
}

/* With BOS if the tokenizer adds one, because models trained with it do not work without it. */
static lt_err encode(lt_scorer *s, const char *text, lt_ids *out) {
    out->n = 0;
    return lt_tokenizer_encode(s->options->tokenizer, s->scratch, text, strlen(text),
                               LT_ENCODE_DEFAULT, out);
}

/* Encode both together into whole and the context alone into context. */
static lt_err encode_pair(lt_scorer *s, const char *context, const char *continuation) {
    lt_err err = LT_OK;
    const size_t room = strlen(context) + strlen(continuation) + 1;
    char *text = malloc(room), *head = strdup(context);
    size_t n = strlen(context);

    if (text == NULL || head == NULL) {
        LT_FAIL_DONE(LT_ERR_OOM, "text of %zu bytes", room);
    }
    while (n > 0 && strchr(" \n\t\r", head[n - 1]) != NULL) {
        n--;
    }
    head[n] = '\0';
    snprintf(text, room, "%s%s", context, continuation);
    LT_TRY_DONE(encode(s, text, &s->whole));
    LT_TRY_DONE(encode(s, head, &s->context));
done:
    free(text);
    free(head);
    return err;
}

lt_err lt_score_pair(lt_scorer *s, const char *context, const char *continuation, lt_score *out) {
    int64_t n, first, skip;
    const int32_t *ids;

    LT_TRY(encode_pair(s, context, continuation));
    n = (int64_t)s->whole.n;
    first = (int64_t)s->context.n < n ? (int64_t)s->context.n : n;
    ids = (const int32_t *)s->whole.data;
    if (first == n) {
        LT_FAIL(LT_ERR_ARG, "continuation '%.40s' has no token of its own", continuation);
    }
    if (n - first > s->seq) {
        LT_FAIL(LT_ERR_LIMIT, "a continuation of %lld tokens, sequences have %lld",
                (long long)(n - first), (long long)s->seq);
    }
    if (first == 0) { /* The context is empty, so BOS replaces it. */
        int32_t *with_first = malloc((size_t)(n + 1) * sizeof *with_first);
        lt_err err;
        if (with_first == NULL) {
            LT_FAIL(LT_ERR_OOM, "%lld tokens", (long long)n);
        }
        with_first[0] = s->first_id;
        memcpy(with_first + 1, ids, (size_t)n * sizeof *ids);
        err = lt_score_tokens(s, with_first, n + 1, 1, out);
        free(with_first);
        return err;
    }
    skip = n > s->seq + 1 ? n - (s->seq + 1) : 0; /* The last token is only predicted. */
    return lt_score_tokens(s, ids + skip, n - skip, first - skip > 0 ? first - skip : 1, out);
}
