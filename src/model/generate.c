/* generate.c: prompt in, text out: encode, prefill, then one token at a time. */
#include "lateen/generate.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"

lt_generate_options lt_generate_defaults(void) {
    return (lt_generate_options){
        .sampling = {.top_p = 1.0}, .max_tokens = 128, .encode_flags = LT_ENCODE_DEFAULT};
}

/* What one generation holds. */
typedef struct {
    lt_session *session;
    const lt_model_spec *spec;
    const lt_tokenizer *tokenizer;
    lt_tokenizer_info info;
    lt_ends ends;
    const lt_generate_options *options;
    lt_text_fn on_text;
    void *ctx;
    lt_generate_stats *stats;
    lt_sampler *sampler;
    uint32_t *seen, *own_seen; /* The caller's, or ours. */
    lt_tokenizer_stream *stream;
    float *logits;
} generation;

static bool ends_text(const generation *g, int32_t id) {
    return !g->options->ignore_eos && lt_ends_has(&g->ends, id);
}

/* Ids of the prompt; an empty start begins with BOS. */
static lt_err encode_prompt(const generation *g, const char *prompt, lt_ids *ids) {
    lt_err err = LT_OK;
    lt_tokenizer_scratch *scratch = NULL;
    const size_t bytes = strlen(prompt);

    LT_TRY_DONE(lt_tokenizer_scratch_open(&scratch, g->tokenizer));
    if (bytes > 0) {
        LT_TRY_DONE(lt_tokenizer_encode(g->tokenizer, scratch, prompt, bytes,
                                        g->options->encode_flags, ids));
    }
    if (ids->n == 0 && lt_session_length(g->session, 0) == 0) {
        const uint32_t first = g->info.bos != LT_TOKEN_NONE   ? g->info.bos
                               : g->spec->bos_id >= 0         ? (uint32_t)g->spec->bos_id
                               : g->info.eos != LT_TOKEN_NONE ? g->info.eos
                                                              : 0u;
        ids->data = malloc(sizeof *ids->data);
        if (ids->data == NULL) {
            LT_FAIL_DONE(LT_ERR_OOM, "prompt");
        }
        ids->data[0] = first;
        ids->n = ids->room = 1;
    }
    for (size_t i = 0; i < ids->n; i++) {
        if ((int64_t)ids->data[i] >= g->spec->vocab_size) {
            LT_FAIL_DONE(LT_ERR_ARG,
                         "token %u of the tokenizer lies outside the model's vocabulary of %lld: "
                         "they do not belong together",
                         ids->data[i], (long long)g->spec->vocab_size);
        }
    }
done:
    lt_tokenizer_scratch_close(scratch);
    return err;
}

/* False: the caller wants no more. */
static bool emit(const generation *g, const char *text, size_t bytes) {
    return bytes == 0 || g->on_text == NULL || g->on_text(g->ctx, text, bytes);
}

static void see(const generation *g, int32_t id) {
    g->seen[id / 32] |= UINT32_C(1) << (id % 32);
}

static lt_err open_seen(generation *g, const lt_ids *prompt) {
    g->own_seen = calloc((size_t)g->spec->vocab_size / 32 + 1, sizeof *g->own_seen);
    if (g->own_seen == NULL) {
        LT_FAIL(LT_ERR_OOM, "sampler for %lld tokens", (long long)g->spec->vocab_size);
    }
    g->seen = g->options->seen != NULL ? g->options->seen : g->own_seen;
    for (size_t i = 0; i < prompt->n; i++) {
        see(g, (int32_t)prompt->data[i]);
    }
    lt_sampler_look_at(g->sampler, g->seen);
    return LT_OK;
}

/* Tokens one by one from the logits that stand in g->logits. */
static lt_err continue_text(generation *g) {
    lt_generate_stats *st = g->stats;
    const double start = lt_clock_s();
    const char *text;
    size_t bytes;
    bool go_on = true;

    st->stop = LT_STOP_LENGTH;
    while (st->new_tokens < g->options->max_tokens) {
        const int64_t position = lt_session_length(g->session, 0);
        int32_t id;
        LT_TRY(
            lt_sampler_pick(g->sampler, g->logits, &g->options->sampling, (uint64_t)position, &id));
        st->new_tokens++;
        see(g, id);
        if (ends_text(g, id)) {
            st->stop = LT_STOP_EOS;
            break;
        }
        if ((uint32_t)id < g->info.n_ids) { /* A padded vocabulary has ids without text. */
            LT_TRY(lt_tokenizer_stream_put(g->stream, (uint32_t)id, &text, &bytes));
            go_on = emit(g, text, bytes);
        }
        if (!go_on) {
            st->stop = LT_STOP_CALLER;
            break;
        }
        if (st->new_tokens == g->options->max_tokens ||
            position + 1 > lt_model_spec_context(g->spec)) {
            break;
        }
        LT_TRY(lt_session_eval(g->session, 0, &id, 1, g->logits));
    }
    LT_TRY(lt_tokenizer_stream_finish(g->stream, &text, &bytes));
    (void)emit(g, text, bytes);
    st->new_s = lt_clock_s() - start;
    return LT_OK;
}

lt_err lt_generate(lt_session *s, const lt_model *m, const lt_tokenizer *t, const char *prompt,
                   const lt_generate_options *o, lt_text_fn on_text, void *ctx,
                   lt_generate_stats *stats) {
    lt_err err = LT_OK;
    lt_generate_stats local = {0};
    generation g = {.session = s,
                    .spec = lt_model_get_spec(m),
                    .tokenizer = t,
                    .info = lt_tokenizer_describe(t),
                    .options = o,
                    .on_text = on_text,
                    .ctx = ctx,
                    .stats = &local};
    lt_ids ids = {0};
    double start;

    lt_model_ends(m, t, &g.ends);
    LT_TRY_DONE(encode_prompt(&g, prompt, &ids));
    LT_TRY_DONE(lt_sampler_open(&g.sampler, g.spec->vocab_size));
    LT_TRY_DONE(open_seen(&g, &ids));
    LT_TRY_DONE(lt_tokenizer_stream_open(&g.stream, t, !o->keep_special));
    g.logits = malloc((size_t)g.spec->vocab_size * sizeof *g.logits);
    if (g.logits == NULL) {
        LT_FAIL_DONE(LT_ERR_OOM, "logits of %lld tokens", (long long)g.spec->vocab_size);
    }
    if (ids.n == 0) {
        LT_FAIL_DONE(LT_ERR_ARG,
                     "nothing to go on from: the prompt is empty and the sequence is not");
    }
    if (lt_session_length(s, 0) + (int64_t)ids.n > lt_model_spec_context(g.spec)) {
        LT_FAIL_DONE(LT_ERR_LIMIT, "the prompt has %lld tokens; the model's context is %lld",
                     (long long)lt_session_length(s, 0) + (long long)ids.n,
                     (long long)lt_model_spec_context(g.spec));
    }
    if (!lt_tokenizer_is_special(t, ids.data[ids.n - 1])) {
        lt_tokenizer_stream_continue(g.stream);
    }
    start = lt_clock_s();
    LT_TRY_DONE(lt_session_eval(s, 0, (const int32_t *)ids.data, (int64_t)ids.n, g.logits));
    local.prompt_s = lt_clock_s() - start;
    local.prompt_tokens = (int64_t)ids.n;
    LT_TRY_DONE(continue_text(&g));
done:
    if (stats != NULL) {
        *stats = local;
    }
    lt_sampler_close(g.sampler);
    free(g.own_seen);
    lt_tokenizer_stream_close(g.stream);
    lt_ids_free(&ids);
    free(g.logits);
    return err;
}
