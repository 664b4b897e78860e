/* reward_model.c: see reward_model.h. */
#include "align/reward_model.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "align/gather.h"
#include "base/error.h"
#include "data/chat_source.h"
#include "model/alloc.h"
#include "model/paged_forward.h"
#include "tensor/backend.h"

#define RUNNING     16   /* Texts in the cache: a step reads a few hundred tokens of them. */
#define SLICE       256  /* Texts that wait for them. */
#define STEP_TOKENS 2048 /* Most tokens of an engine step, unless an option says otherwise. */

struct lt_reward_model {
    lt_model *model;
    lt_tokenizer *tokenizer;
    lt_tokenizer_scratch *scratch;
    lt_chat_source chat;
    lt_engine *engine;
    lt_ids ids;
    int64_t longest;
};

static lt_err check_head(const lt_model_spec *s, const char *path) {
    if (s->n_scores != 1) {
        LT_FAIL(LT_ERR_UNSUPPORTED,
                "%s is no reward model: it has %s, and needs a score head of one value "
                "(AutoModelForSequenceClassification with one label)",
                path, s->n_scores == 0 ? "no score head" : "a score head of several values");
    }
    return LT_OK;
}

/* The engine reads texts in order, and a text leaves the cache when it has been read. The step that
 * runs and the one that is planned need the pages of the texts that they read whole, and of at most
 * three that they read in part. More room would change no step. */
static int64_t cache_bytes(const lt_reward_model *m, const lt_engine_options *o) {
    const int64_t tokens = 3 * m->longest + 2 * STEP_TOKENS,
                  pages = tokens / o->page_tokens + 3 * RUNNING; /* The last of a text, and one more
                                                                  * that admission asks for. */
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
    lt_ids_free(&m->ids);
    free(m);
}

size_t lt_reward_model_bytes(const lt_reward_model *m) {
    lt_engine_cache c;
    lt_engine_get_cache(m->engine, &c);
    return lt_model_host_bytes(m->model) +
           (m->model->backend->host_memory ? (size_t)c.pages * (size_t)c.page_bytes : 0);
}

/* The tokens of a conversation and its answer, as a reward model is trained on them
 * (preference_data.c). */
static lt_err encode(lt_reward_model *m, const json_t *conversation, const char *text) {
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
    m->ids.n = 0;
    LT_TRY_DONE(
        lt_chat_rows_completion(&m->chat.rows, m->scratch, line, n_prompt, &m->ids, &first, &end));
    if ((int64_t)m->ids.n > m->longest) {
        LT_FAIL_DONE(LT_ERR_LIMIT,
                     "question and answer are %zu tokens of the reward model, which reads %" PRId64
                     " at most",
                     m->ids.n, m->longest);
    }
done:
    json_decref(messages);
    json_decref(answer);
    json_decref(line);
    return err;
}

static lt_err submit(lt_reward_model *m, double *score) {
    lt_request r = lt_request_defaults();
    uint64_t id;
    r.prompt = (const int32_t *)m->ids.data;
    r.n_prompt = lt_model_score_at(lt_model_get_spec(m->model), r.prompt, (int64_t)m->ids.n) + 1;
    r.max_tokens = 0;
    r.embed = r.score = true;
    return lt_engine_submit(m->engine, &r, score, &id);
}

static lt_err take(const lt_event *e) {
    switch (e->kind) {
    case LT_EVENT_EMBED:
        *(double *)e->user = (double)e->embedding[0];
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
