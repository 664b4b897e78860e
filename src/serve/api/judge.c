/* judge.c: see judge.h. */
#include "serve/api/judge.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "serve/api/conversation.h"

static bool append(json_t *messages, const char *role, const char *text, size_t n) {
    return json_array_append_new(messages,
                                 json_pack("{s:s, s:s%}", "role", role, "content", text, n)) == 0;
}

/* The messages of a chat and its answer. */
static bool chat_ids(lt_reply *j, const json_t *before, const char *text, size_t n, lt_ids *out,
                     lt_api_error *e) {
    lt_conversation c = {0};
    json_t *messages = json_copy((json_t *)before);
    bool opened, ok = messages != NULL && append(messages, "assistant", text, n);
    ok = ok || lt_api_refuse_oom(e);
    c.messages = messages;
    ok = ok && lt_conversation_ids(j->server->reward, &c, out, &opened, e);
    json_decref(messages);
    return ok;
}

/* One text: the prompt with what the model wrote. */
static bool plain_ids(lt_reply *j, const char *prompt, size_t prompt_n, const char *text, size_t n,
                      lt_ids *out, lt_api_error *e) {
    lt_json_out whole = {0};
    bool ok;
    lt_out_raw(&whole, prompt, prompt_n);
    lt_out_raw(&whole, text, n);
    ok = whole.failed
             ? lt_api_refuse_oom(e)
             : lt_server_encode(j->server->reward, whole.data, whole.n, LT_ENCODE_DEFAULT, out, e);
    lt_out_free(&whole);
    return ok;
}

static bool completion_ids(lt_reply *j, const char *text, size_t n, lt_ids *out, lt_api_error *e) {
    const lt_ids *ids = &j->parts[0].prompt;
    char *prompt = NULL;
    size_t prompt_n = 0;
    json_t *messages = json_array();
    bool ok = messages != NULL && lt_tokenizer_decode(j->server->tokenizer, ids->data, ids->n, true,
                                                      &prompt, &prompt_n) == LT_OK;
    ok = ok || lt_api_refuse_oom(e);
    if (ok && strcmp(j->server->reward->template_source, "none") == 0) {
        ok = plain_ids(j, prompt, prompt_n, text, n, out, e);
    } else if (ok) {
        ok = append(messages, "user", prompt, prompt_n) || lt_api_refuse_oom(e);
        ok = ok && chat_ids(j, messages, text, n, out, e);
    }
    json_decref(messages);
    free(prompt);
    return ok;
}

static bool submit(lt_reply *j, lt_part *p, lt_ids *ids, lt_api_error *e) {
    lt_server *judge = j->server->reward;
    lt_request r = lt_request_defaults();
    lt_err err;
    if (ids->n == 0 || (int64_t)ids->n > lt_server_context(judge)) {
        return lt_api_refuse(e, "alignment.reward",
                             "the text of %zu tokens does not fit the reward model's context of "
                             "%lld",
                             ids->n, (long long)lt_server_context(judge));
    }
    r.prompt = (const int32_t *)ids->data;
    r.n_prompt = lt_model_score_at(lt_model_get_spec(judge->model), r.prompt, (int64_t)ids->n) + 1;
    r.max_tokens = 0;
    r.embed = r.score = true;
    r.priority = j->request.priority;
    r.background = j->request.background;
    r.cache_salt = lt_server_cache_salt(j->server, j->owner, j->params.cache_salt);
    err = lt_engine_submit(judge->engine, &r, p, &p->id);
    return err == LT_OK || lt_api_refuse_error(e, "alignment.reward", err);
}

bool lt_judge_submit(lt_reply *j, lt_part *p, const char *text, size_t n, lt_api_error *e) {
    lt_ids ids = {0};
    bool ok = j->params.messages != NULL ? chat_ids(j, j->params.messages, text, n, &ids, e)
                                         : completion_ids(j, text, n, &ids, e);
    *p = (lt_part){.reply = j, .judged = true};
    ok = ok && submit(j, p, &ids, e);
    lt_ids_free(&ids);
    return ok;
}

bool lt_judge_check(const lt_reply *j, lt_api_error *e) {
    return j->server->reward != NULL ||
           lt_api_refuse(e, "alignment.reward",
                         "'alignment.reward' = reward: no reward model is beside the served one "
                         "(serve --reward)");
}

bool lt_judge_event(lt_reply *j, const lt_event *ev, double *score, int64_t *tokens) {
    lt_api_error e = {.status = 500, .type = "server_error"};
    if (ev->kind == LT_EVENT_EMBED) {
        *score = (double)ev->embedding[0];
    } else if (ev->kind == LT_EVENT_CHOICE && ev->finish == LT_FINISH_FAILED) {
        snprintf(e.message, sizeof e.message, "the reward model failed: %s",
                 lt_err_text(ev->failure));
        lt_reply_fail(j, &e);
    } else if (ev->kind == LT_EVENT_DONE) {
        *tokens += ev->prompt_tokens;
        j->server->metrics.reward_tokens += (uint64_t)ev->prompt_tokens;
    }
    return ev->kind == LT_EVENT_DONE;
}
