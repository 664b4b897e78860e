/* generate.c: generates text from a prompt: encode, prefill, then one token at a time. Tokens are
 * chosen as for the first choice of a request to the serving engine: by the same sampler
 * (sampler.h), and with draw p of the seed for output token p of a text. */
#include "lateen/generate.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "data/chat_template.h"
#include "data/tokenizer/bpe.h"
#include "model/blocks/exec.h"
#include "model/infer/sampler.h"

lt_generate_options lt_generate_defaults(void) {
    lt_sampling sampling = lt_sampling_defaults();
    sampling.temperature = 0.0;
    return (lt_generate_options){
        .sampling = sampling, .max_tokens = 128, .encode_flags = LT_ENCODE_DEFAULT};
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
    lt_sampler sampler;
    lt_ids own, *tokens; /* Prompt and new text, in the caller's list or this one. */
    int64_t n_prompt;    /* Number of tokens before the new text. */
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
    LT_TRY_DONE(g->options->is_chat ? lt_chat_ids_begin(ids, &g->info) : LT_OK);
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

/* False: the caller wants no more text. */
static bool emit(const generation *g, const char *text, size_t bytes) {
    return bytes == 0 || g->on_text == NULL || g->on_text(g->ctx, text, bytes);
}

/* Choose the next token from g->logits. */
static lt_err choose(generation *g, int32_t *id) {
    const lt_sampler_args how = {.how = &g->options->sampling,
                                 .tokens = (const int32_t *)g->tokens->data,
                                 .n_prompt = g->n_prompt,
                                 .n_output = (int64_t)g->tokens->n - g->n_prompt,
                                 .forced = -1,
                                 .n_top = -1};
    lt_pick pick;
    LT_TRY(lt_sampler_pick(&g->sampler, g->logits, &how, &pick));
    *id = pick.id;
    return LT_OK;
}

/* Generate tokens one by one, beginning with g->logits. */
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
        LT_TRY(choose(g, &id));
        st->new_tokens++;
        if (ends_text(g, id)) {
            st->stop = LT_STOP_EOS;
            break;
        }
        LT_TRY(lt_ids_append(g->tokens, &(uint32_t){(uint32_t)id}, 1));
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

/* Number of tokens that the session may keep: the common beginning, except for the prompt's last
 * token, whose logits are needed. */
static size_t shared(const generation *g, const lt_ids *prompt) {
    const int64_t limit = lt_rope_switch(g->spec), held = lt_session_length(g->session, 0);
    size_t n = 0;
    if (limit > 0 && held > limit && (int64_t)prompt->n <= limit) {
        return 0; /* The held tokens were rotated as a long text. */
    }
    while (n + 1 < prompt->n && (int64_t)n < held && g->tokens->data[n] == prompt->data[n]) {
        n++;
    }
    return n;
}

static lt_err read_prompt(generation *g, const lt_ids *prompt) {
    const int64_t context = lt_model_spec_context(g->spec);
    const double start = lt_clock_s();
    size_t first = 0;

    if (g->options->tokens != NULL) {
        first = shared(g, prompt);
        lt_session_truncate(g->session, 0, (int64_t)first);
    }
    g->tokens->n = 0;
    LT_TRY(lt_ids_append(g->tokens, prompt->data, prompt->n));
    g->n_prompt = (int64_t)prompt->n;
    g->stats->prompt_tokens = (int64_t)(prompt->n - first);
    if (lt_session_length(g->session, 0) + g->stats->prompt_tokens > context) {
        LT_FAIL(LT_ERR_LIMIT, "the prompt has %lld tokens; the model's context is %lld",
                (long long)(lt_session_length(g->session, 0) + g->stats->prompt_tokens),
                (long long)context);
    }
    LT_TRY(lt_session_eval(g->session, 0, (const int32_t *)prompt->data + first,
                           g->stats->prompt_tokens, g->logits));
    g->stats->prompt_s = lt_clock_s() - start;
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

    lt_model_ends(m, t, &g.ends);
    g.tokens = o->tokens != NULL ? o->tokens : &g.own;
    LT_TRY_DONE(lt_model_spec_writes(g.spec, "generation"));
    LT_TRY_DONE(lt_sampling_check(&o->sampling, g.spec->vocab_size));
    LT_TRY_DONE(encode_prompt(&g, prompt, &ids));
    LT_TRY_DONE(lt_sampler_open(&g.sampler, g.spec->vocab_size));
    LT_TRY_DONE(lt_tokenizer_stream_open(&g.stream, t, !o->keep_special));
    g.logits = malloc((size_t)g.spec->vocab_size * sizeof *g.logits);
    if (g.logits == NULL) {
        LT_FAIL_DONE(LT_ERR_OOM, "logits of %lld tokens", (long long)g.spec->vocab_size);
    }
    if (ids.n == 0) {
        LT_FAIL_DONE(LT_ERR_ARG, "there is nothing to continue: the prompt is empty");
    }
    if (!lt_tokenizer_is_special(t, ids.data[ids.n - 1])) {
        lt_tokenizer_stream_continue(g.stream);
    }
    LT_TRY_DONE(read_prompt(&g, &ids));
    LT_TRY_DONE(continue_text(&g));
done:
    if (stats != NULL) {
        *stats = local;
    }
    lt_sampler_close(&g.sampler);
    lt_ids_free(&g.own);
    lt_tokenizer_stream_close(g.stream);
    lt_ids_free(&ids);
    free(g.logits);
    return err;
}
