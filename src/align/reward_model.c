/* reward_model.c: see reward_model.h. */
#include "align/reward_model.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "align/gather.h"
#include "base/error.h"
#include "data/chat_source.h"
#include "data/steps.h"
#include "data/tokenizer/bpe.h"
#include "model/alloc.h"
#include "model/infer/paged_forward.h"
#include "tensor/backend.h"

#define RUNNING     16   /* Most texts in the cache: a step reads a few hundred of their tokens. */
#define SLICE       256  /* Most texts that wait for them. */
#define STEP_TOKENS 2048 /* Most tokens of an engine step, unless an option says otherwise. */

struct lt_reward_model {
    lt_model *model;
    lt_tokenizer *tokenizer;
    lt_tokenizer_scratch *scratch;
    lt_chat_source chat;
    lt_engine *engine;
    lt_steps steps; /* For a process reward model. */
    /* at: the tokens at which steps are judged; none: the last that is not padding. */
    lt_ids ids, at;
    int64_t longest;
};

static lt_err check_head(const lt_model_spec *s, const char *path) {
    if (!lt_model_spec_is_process(s) && (s->n_scores != 1 || s->token_scores)) {
        LT_FAIL(LT_ERR_UNSUPPORTED,
                "%s is not a reward model: it has %s, and needs a score head of one value "
                "(AutoModelForSequenceClassification with one label), or one that judges steps "
                "(AutoModelForTokenClassification with two)",
                path, s->n_scores == 0 ? "no score head" : "a score head of several values");
    }
    return LT_OK;
}

/* The engine reads texts in order, and a text leaves the cache when it has been read. The step that
 * runs and the one that is planned need the pages of the texts that they read completely, and of at
 * most three that they read in part. A larger cache would change no step. */
static int64_t cache_bytes(const lt_reward_model *m, const lt_engine_options *o) {
    const int64_t tokens = 3 * m->longest + 2 * STEP_TOKENS;
    /* Besides the tokens: the last page of a text, and one more that admission needs. */
    const int64_t pages = tokens / o->page_tokens + 3 * RUNNING;
    return pages * (int64_t)lt_paged_forward_page_bytes(lt_model_get_spec(m->model), o->page_tokens,
                                                        m->model->options.dtype,
                                                        m->model->options.dtype);
}

static lt_err open_engine(lt_reward_model *m) {
    lt_engine_options how = lt_engine_defaults();
    how.max_running = RUNNING;
    how.max_waiting = SLICE;
    how.max_seq = m->longest;
    how.prefix_cache = false;
    how.cache_most = cache_bytes(m, &how);
    LT_TRY(lt_engine_open(&m->engine, m->model, &how));
    return lt_engine_hold(m->engine, LT_HOLD_FINISH);
}

static lt_err open_all(lt_reward_model *m, const char *path, lt_device *device, int64_t longest) {
    const lt_model_options how = {.dtype = device->backend->host_memory ? LT_F32 : LT_BF16,
                                  .device = device};
    int64_t context;
    LT_TRY(lt_model_open(&m->model, path, &how));
    LT_TRY(check_head(lt_model_get_spec(m->model), path));
    context = lt_model_spec_context(lt_model_get_spec(m->model));
    m->longest = longest < context ? longest : context;
    LT_TRY(lt_tokenizer_open(&m->tokenizer, path, NULL));
    LT_TRY(lt_tokenizer_scratch_open(&m->scratch, m->tokenizer));
    if (lt_model_spec_is_process(lt_model_get_spec(m->model))) {
        LT_TRY(lt_steps_open(&m->steps, m->tokenizer, m->scratch,
                             lt_model_get_spec(m->model)->step_separator));
    }
    LT_TRY(lt_chat_source_open(&m->chat,
                               &(lt_chat_source_options){.tokenizer = m->tokenizer,
                                                         .tokenizer_path = path,
                                                         .template = "",
                                                         .option = "a chat template in its folder",
                                                         .messages = "messages"}));
    return open_engine(m);
}

lt_err lt_reward_model_open(lt_reward_model **out, const char *path, lt_device *device,
                            int64_t longest) {
    lt_err err = LT_OK;
    lt_reward_model *m = calloc(1, sizeof *m);
    if (m == NULL) {
        LT_FAIL(LT_ERR_OOM, "reward model");
    }
    LT_TRY_DONE(open_all(m, path, device, longest));
    *out = m;
    m = NULL;
done:
    lt_reward_model_close(m);
    return err == LT_OK ? LT_OK : lt_error_prefix(err, "reward model %s", path);
}

void lt_reward_model_close(lt_reward_model *m) {
    if (m == NULL) {
        return;
    }
    lt_engine_close(m->engine);
    lt_chat_source_close(&m->chat);
    lt_tokenizer_scratch_close(m->scratch);
    lt_tokenizer_close(m->tokenizer);
    lt_model_close(m->model);
    lt_steps_close(&m->steps);
    lt_ids_free(&m->ids);
    lt_ids_free(&m->at);
    free(m);
}

size_t lt_reward_model_bytes(const lt_reward_model *m) {
    lt_engine_cache c;
    lt_engine_get_cache(m->engine, &c);
    return lt_model_host_bytes(m->model) +
           (m->model->backend->host_memory ? (size_t)c.pages * (size_t)c.page_bytes : 0);
}

static lt_err add_step(lt_reward_model *m, const char *step, size_t n) {
    uint32_t last;
    LT_TRY(lt_steps_add(&m->steps, m->scratch, step, n, &m->ids));
    last = (uint32_t)m->ids.n - 1;
    return lt_ids_append(&m->at, &last, 1);
}

/* The tokens of a conversation and of the steps of its answer. An answer without a step counts as
 * one empty step. */
static lt_err encode_steps(lt_reward_model *m, const json_t *conversation, const char *text) {
    const char *const border = lt_steps_border(&m->steps), *step;
    const size_t length = strlen(border);
    size_t bytes = strlen(text), n;
    json_t *line = json_pack("{s:o?}", "messages", json_deep_copy(conversation));
    lt_err err = line == NULL ? lt_error_set(LT_ERR_OOM, "messages of an answer")
                              : lt_chat_rows_prompt(&m->chat.rows, m->scratch, line, &m->ids);
    json_decref(line);
    while (err == LT_OK && lt_steps_next(&text, &bytes, &border, &length, 1, &step, &n)) {
        err = add_step(m, step, n);
    }
    return err == LT_OK && m->at.n == 0 ? add_step(m, "", 0) : err;
}

/* The tokens of a conversation and its answer, as a reward model is trained on them
 * (preference_data.c). */
static lt_err encode_whole(lt_reward_model *m, const json_t *conversation, const char *text) {
    json_t *messages = json_deep_copy(conversation), *answer = NULL, *line = NULL;
    const size_t n_prompt = json_array_size(messages);
    size_t first, end;
    lt_err err = LT_OK;
    answer = json_pack("{s:s, s:s}", "role", "assistant", "content", text);
    line = json_pack("{s:O?}", "messages", messages);
    if (messages == NULL || answer == NULL || line == NULL ||
        json_array_append(messages, answer) != 0) {
        LT_FAIL_DONE(LT_ERR_OOM, "messages of an answer");
    }
    LT_TRY_DONE(
        lt_chat_rows_completion(&m->chat.rows, m->scratch, line, n_prompt, &m->ids, &first, &end));
done:
    json_decref(messages);
    json_decref(answer);
    json_decref(line);
    return err;
}

static lt_err encode(lt_reward_model *m, const json_t *conversation, const char *text) {
    m->ids.n = m->at.n = 0;
    LT_TRY(m->steps.tokenizer != NULL ? encode_steps(m, conversation, text)
                                      : encode_whole(m, conversation, text));
    if ((int64_t)m->ids.n > m->longest) {
        LT_FAIL(LT_ERR_LIMIT,
                "question and answer are %zu tokens of the reward model, which reads %" PRId64
                " at most",
                m->ids.n, m->longest);
    }
    return LT_OK;
}

static lt_err submit(lt_reward_model *m, double *score) {
    lt_request r = lt_request_defaults();
    uint64_t id;
    r.prompt = (const int32_t *)m->ids.data;
    r.n_prompt = m->at.n > 0
                     ? (int64_t)m->ids.n
                     : lt_model_score_at(lt_model_get_spec(m->model), r.prompt, (int64_t)m->ids.n) +
                           1;
    r.score_at = (const int32_t *)m->at.data;
    r.n_score_at = (int64_t)m->at.n;
    r.max_tokens = 0;
    r.embed = r.score = true;
    return lt_engine_submit(m->engine, &r, score, &id);
}

/* The lowest probability that a step is good; values (n): two per step. */
static double least_of(const float *values, int64_t n) {
    double least = 1;
    for (int64_t i = 0; i < n; i += 2) {
        least = fmin(least, lt_steps_score(values + i));
    }
    return least;
}

static lt_err take(const lt_event *e) {
    switch (e->kind) {
    case LT_EVENT_EMBED:
        *(double *)e->user = e->n_embedding > 1 ? least_of(e->embedding, e->n_embedding)
                                                : (double)e->embedding[0];
        return LT_OK;
    case LT_EVENT_CHOICE:
        if (e->finish == LT_FINISH_FAILED) {
            LT_FAIL(e->failure, "the engine failed to read a text; the log says why");
        }
        return LT_OK;
    default:
        return LT_OK;
    }
}

static lt_err judge_slice(lt_reward_model *m, const json_t *const *conversations,
                          const char *const *texts, int64_t n, double *scores) {
    int64_t submitted = 0;
    lt_err err = LT_OK, gathered;
    for (; submitted < n && err == LT_OK; submitted += err == LT_OK) {
        err = encode(m, conversations[submitted], texts[submitted]);
        err = err == LT_OK ? submit(m, &scores[submitted]) : err;
    }
    lt_failure own;
    lt_failure_keep(&own, err);
    LT_TRY(lt_engine_refresh(m->engine, NULL));
    gathered = lt_gather(m->engine, submitted, take);
    LT_TRY(lt_engine_hold(m->engine, LT_HOLD_FINISH));
    return err != LT_OK ? lt_failure_raise(&own) : gathered;
}

lt_err lt_reward_model_judge(lt_reward_model *m, const json_t *const *conversations,
                             const char *const *texts, int64_t n, double *scores) {
    for (int64_t first = 0; first < n; first += SLICE) {
        const int64_t some = n - first < SLICE ? n - first : SLICE;
        LT_TRY(judge_slice(m, conversations + first, texts + first, some, scores + first));
    }
    return LT_OK;
}
