/* evaluate.c: loss, perplexity, bits per byte and accuracy on validation rows, and samples of the
 * model's text. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "lateen/generate.h"
#include "model/infer/session.h"
#include "train/run.h"

static int64_t label_bytes(const lt_training *t, const lt_pass_batch *b) {
    int64_t bytes = 0;
    for (int64_t i = 0; t->token_bytes != NULL && i < b->batch * b->seq; i++) {
        bytes += b->labels[i] >= 0 ? t->token_bytes[b->labels[i]] : 0;
    }
    return bytes;
}

lt_err lt_training_any_rows(const lt_training *t, bool *rows) {
    float has = *rows ? 1.0f : 0.0f;
    if (lt_shards_of_weights(&t->shards) != NULL) {
        LT_TRY(lt_all_reduce(t->shards.ranks, &has, &has, 1, LT_F32, LT_REDUCE_MAX, NULL));
    }
    if (lt_training_has_ranks(t) && t->world->shape.ep > 1) {
        LT_TRY(lt_all_reduce(t->world->mesh.ep, &has, &has, 1, LT_F32, LT_REDUCE_MAX, NULL));
    }
    *rows = has > 0.0f;
    return LT_OK;
}

/* A row without labels. */
static void fill_idle(lt_batch *b) {
    for (int64_t i = 0; i < b->seq; i++) {
        b->tokens[i] = b->doc_start[i] = b->positions[i] = 0;
        b->labels[i] = -1;
    }
}

static lt_err evaluate_rows(lt_training *t, lt_loader *l, lt_step_record *sum) {
    /* This rank's share of the first eval_rows rows. */
    const int64_t dp = lt_training_dp(t), rank = t->valid_options.rank;
    const int64_t limit = t->recipe.eval_rows > 0 ? (t->recipe.eval_rows - rank + dp - 1) / dp
                                                  : INT64_MAX;
    lt_batch *b = &t->valid_rows.batch.ids;
    bool more = true;

    for (int64_t seen = 0, got = t->micro; more; seen += got) {
        const int64_t want = limit - seen < t->micro ? limit - seen : t->micro;
        lt_pass_result r = {0};
        if (got < t->micro || want == 0) {
            got = 0;
        } else {
            LT_TRY(lt_loader_next(l, want, b, &got));
        }
        more = got > 0;
        LT_TRY(lt_training_any_rows(t, &more));
        if (!more) {
            break;
        }
        if (got == 0) {
            fill_idle(b);
        } else {
            lt_training_take_tokens(t, &t->valid_rows.batch, got);
        }
        lt_pass_batch pb = lt_training_slice(t, &t->valid_rows.batch, 0, got > 0 ? got : 1);
        pb.doc_start = b->doc_start;
        LT_TRY(lt_training_eval(t, &pb, &r));
        sum->loss_sum += r.loss_sum;
        sum->rows += (double)got;
        sum->labels += (double)r.n_labels;
        sum->correct += (double)r.n_correct;
        sum->bytes += (double)label_bytes(t, &pb);
    }
    return LT_OK;
}

static lt_err no_labels(const lt_training *t) {
    LT_FAIL(LT_ERR_ARG, "%s holds no label to predict in rows of %lld tokens",
            t->recipe.valid[0] != '\0' ? "data.valid" : "data.val_fraction of data.train",
            (long long)t->recipe.seq);
}

lt_err lt_training_check_validation(lt_training *t) {
    lt_err err = LT_OK;
    lt_loader *l = NULL;
    lt_batch *b = &t->valid_rows.batch.ids;
    lt_loader_options whole = t->valid_options;
    int64_t got = 1, labels = 0;

    if (t->valid_options.n_sources == 0) {
        return LT_OK;
    }
    whole.rank = 0;
    whole.world = 1;
    err = lt_loader_open(&l, &whole);
    if (err != LT_OK) {
        err = lt_error_prefix(err, "validation");
        goto done;
    }
    while (got > 0 && labels == 0) {
        LT_TRY_DONE(lt_loader_next(l, 1, b, &got));
        for (int64_t i = 0; i < got * b->seq; i++) {
            labels += b->labels[i] >= 0;
        }
    }
    if (labels == 0) {
        LT_TRY_DONE(no_labels(t));
    }
done:
    lt_loader_close(l);
    return err;
}

lt_err lt_training_evaluate(lt_training *t) {
    lt_err err = LT_OK;
    lt_loader *l = NULL;
    lt_step_record sum = {0};
    double loss, bits = 0.0;

    if (t->objective != NULL) {
        return t->objective->evaluate != NULL ? t->objective->evaluate(t->objective->of, t)
                                              : lt_objective_evaluate(t);
    }
    if (t->valid_options.n_sources == 0 || t->evaluated_step == t->state.step) {
        return LT_OK;
    }
    /* Opened for each validation, so that all have the same rows. */
    LT_TRY_DONE(lt_loader_open(&l, &t->valid_options));
    err = evaluate_rows(t, l, &sum);
    lt_training_tell_once(t, &sum);
    LT_TRY_DONE(lt_ranks_combine(&t->ranks, &sum, err));
    if (sum.labels == 0.0) {
        LT_TRY_DONE(no_labels(t));
    }
    loss = sum.loss_sum / sum.labels;
    bits = sum.bytes > 0.0 ? sum.loss_sum / log(2.0) / sum.bytes : 0.0;
    const double values[LT_EVAL_METRIC_COUNT] = {
        [LT_EVAL_step] = (double)t->state.step, [LT_EVAL_loss] = loss,
        [LT_EVAL_perplexity] = exp(loss),       [LT_EVAL_accuracy] = sum.correct / sum.labels,
        [LT_EVAL_tokens] = sum.labels,          [LT_EVAL_bits_per_byte] = bits};
    const bool present[LT_EVAL_METRIC_COUNT] = {true, true, true, true, true, sum.bytes > 0.0};
    LT_TRY_DONE(lt_metrics_row(&t->metrics, "eval", lt_eval_metrics, LT_EVAL_METRIC_COUNT, values,
                               present));
    if (bits > 0.0) {
        lt_log_info("step %lld: validation loss %.4f, perplexity %.2f, %.4f bits per byte",
                    (long long)t->state.step, loss, exp(loss), bits);
    } else {
        lt_log_info("step %lld: validation loss %.4f, perplexity %.2f", (long long)t->state.step,
                    loss, exp(loss));
    }
    t->evaluated_step = t->state.step;
done:
    lt_loader_close(l);
    return err;
}

/* Collects the text of a sample. */
typedef struct {
    char *text;
    size_t n, room;
} collected;

static bool collect(void *ctx, const char *text, size_t bytes) {
    collected *c = ctx;
    if (c->n + bytes + 1 > c->room) {
        const size_t room = 2 * (c->n + bytes + 1);
        char *grown = realloc(c->text, room);
        if (grown == NULL) {
            return false;
        }
        c->text = grown;
        c->room = room;
    }
    memcpy(c->text + c->n, text, bytes);
    c->n += bytes;
    c->text[c->n] = '\0';
    return true;
}

bool lt_training_sample_answers(const lt_training *t) {
    return t->chat.template != NULL && t->recipe.sample_prompt[0] != '\0';
}

/* The text with which a sample begins; free() it. */
static lt_err sample_text(const lt_training *t, char **text) {
    lt_err err;
    size_t bytes;
    json_t *context;
    if (!lt_training_sample_answers(t)) {
        *text = strdup(t->recipe.sample_prompt);
        return *text != NULL ? LT_OK : lt_error_set(LT_ERR_OOM, "prompt of a sample");
    }
    context = json_pack("{s:[{s:s, s:s}], s:b}", "messages", "role", "user", "content",
                        t->recipe.sample_prompt, "add_generation_prompt", 1);
    if (context == NULL) {
        LT_FAIL(LT_ERR_ARG, "sample.prompt is not UTF-8");
    }
    err = lt_chat_template_render(t->chat.template, context, text, &bytes);
    json_decref(context);
    return err != LT_OK ? lt_error_prefix(err, "sample.prompt") : LT_OK;
}

/* Tokens of a sample that begins with a text. A token has at least half a byte, because
 * normalisation lengthens a text only a little. */
static int64_t room_of(const lt_training *t, const char *text) {
    const int64_t want = 2 * (int64_t)strlen(text) + 16 + t->recipe.sample_tokens;
    return want < t->model->spec.max_seq ? want : t->model->spec.max_seq;
}

lt_err lt_training_sample_room(const lt_training *t, int64_t *room) {
    char *text = NULL;
    LT_TRY(sample_text(t, &text));
    *room = room_of(t, text);
    free(text);
    return LT_OK;
}

lt_err lt_training_sample(lt_training *t) {
    lt_err err = LT_OK;
    lt_generate_options o = lt_generate_defaults();
    lt_session *s = NULL;
    collected c = {0};
    char *text = NULL;

    if (t->tokenizer == NULL || t->recipe.sample_tokens == 0 || t->sampled_step == t->state.step ||
        t->model->spec.n_scores > 0 ||     /* The model does not write text. */
        lt_training_is_whole_nowhere(t)) { /* No rank holds the whole model. */
        return LT_OK;
    }
    o.max_tokens = t->recipe.sample_tokens < t->model->spec.max_seq ? t->recipe.sample_tokens
                                                                    : t->model->spec.max_seq;
    o.sampling.temperature = t->recipe.sample_temperature;
    o.sampling.seed = (uint64_t)t->recipe.seed + (uint64_t)t->state.step;
    LT_TRY_DONE(lt_training_settle(t));
    LT_TRY_DONE(sample_text(t, &text));
    if (lt_training_sample_answers(t)) {
        o.encode_flags = LT_ENCODE_PARSE_SPECIAL;
        o.is_chat = true;
    }
    LT_TRY_DONE(lt_session_open_short(&s, t->model, 1, room_of(t, text)));
    LT_TRY_DONE(lt_generate(s, t->model, t->tokenizer, text, &o, collect, &c, NULL));
    LT_TRY_DONE(lt_metrics_put(&t->metrics, json_pack("{s:s, s:I, s:s, s:s}", "kind", "sample",
                                                      "step", (json_int_t)t->state.step, "prompt",
                                                      t->recipe.sample_prompt, "text",
                                                      c.text != NULL ? c.text : "")));
    lt_log_info("step %lld: sample: %s%s%s", (long long)t->state.step, t->recipe.sample_prompt,
                lt_training_sample_answers(t) ? " -> " : "", c.text != NULL ? c.text : "");
    t->sampled_step = t->state.step;
done:
    lt_session_close(s);
    free(text);
    free(c.text);
    return err;
}
