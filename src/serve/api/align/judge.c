/* judge.c: see judge.h. */
#include "serve/api/align/judge.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "data/tokenizer/bpe.h"
#include "serve/api/formats/conversation.h"

static bool append(json_t *messages, const char *role, const char *text, size_t n) {
    return json_array_append_new(messages,
                                 json_pack("{s:s, s:s%}", "role", role, "content", text, n)) == 0;
}

/* The messages of a chat, with its answer. */
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

/* A single text: the prompt with the model's text. */
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

/* ---- Steps ---- */

bool lt_judge_has_steps(const lt_server *s) {
    return s->reward != NULL && s->reward->steps.tokenizer != NULL;
}

static bool steps_prompt(lt_reply *j, lt_ids *out, lt_api_error *e) {
    lt_server *judge = j->server->reward;
    const lt_conversation c = {.messages = j->params.messages, .add_generation_prompt = true};
    const uint32_t bos = judge->vocabulary.bos;
    const lt_ids *ids = &j->parts[0].prompt;
    char *prompt = NULL;
    size_t n = 0;
    bool opened, ok;
    if (j->params.messages != NULL) {
        return lt_conversation_ids(judge, &c, out, &opened, e);
    }
    ok = lt_tokenizer_decode(j->server->tokenizer, ids->data, ids->n, true, &prompt, &n) == LT_OK &&
         (bos == LT_TOKEN_NONE || lt_ids_append(out, &bos, 1) == LT_OK);
    ok = ok ? lt_server_encode(judge, prompt, n, LT_ENCODE_PARSE_SPECIAL, out, e)
            : lt_api_refuse_oom(e);
    free(prompt);
    return ok;
}

bool lt_judge_add_step(lt_server *s, const char *step, size_t n, lt_ids *ids, lt_ids *at,
                       lt_api_error *e) {
    const lt_ids *separator = &s->steps.ids;
    uint32_t last;
    if (!lt_server_encode(s, step, n, LT_ENCODE_PARSE_SPECIAL, ids, e)) {
        return false;
    }
    last = (uint32_t)(ids->n + separator->n) - 1;
    return (lt_ids_append(ids, separator->data, separator->n) == LT_OK &&
            lt_ids_append(at, &last, 1) == LT_OK) ||
           lt_api_refuse_oom(e);
}

/* The tokens of the prompt and of the text's steps; *at: the position of the last token of each
 * step. A text without a step counts as one empty step. */
static bool steps_ids(lt_reply *j, lt_part *p, const char *text, size_t n, lt_ids *ids, lt_ids *at,
                      lt_api_error *e) {
    const lt_borders *b = &j->judging.borders;
    lt_server *judge = j->server->reward;
    const char *step;
    size_t bytes;
    bool ok = steps_prompt(j, ids, e);
    while (ok && lt_steps_next(&text, &n, b->texts, b->lengths, b->n, &step, &bytes)) {
        ok = lt_judge_add_step(judge, step, bytes, ids, at, e);
        p->n_ended += text > step + bytes;
    }
    ok = ok && (at->n > 0 || lt_judge_add_step(judge, "", 0, ids, at, e));
    p->n_steps = (int64_t)at->n;
    return ok;
}

static bool submit(lt_reply *j, lt_part *p, const lt_ids *ids, const lt_ids *at, lt_api_error *e) {
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
    r.n_prompt = at->n > 0 ? (int64_t)ids->n
                           : lt_model_score_at(lt_model_get_spec(judge->model), r.prompt,
                                               (int64_t)ids->n) +
                                 1;
    r.n_score_at = p->n_steps - p->n_known;
    r.score_at = r.n_score_at > 0 ? (const int32_t *)at->data + p->n_known : NULL;
    r.max_tokens = 0;
    r.embed = r.score = true;
    r.priority = j->request.priority;
    r.background = j->request.background;
    r.cache_salt = lt_server_cache_salt(j->server, j->owner, j->params.cache_salt);
    err = lt_engine_submit(judge->engine, &r, p, &p->id);
    return err == LT_OK || lt_api_refuse_error(e, "alignment.reward", err);
}

/* Allocate the scores of all steps, and fill in the known ones. */
static bool keep_known(lt_part *p, const double *known, int64_t n_known, lt_api_error *e) {
    p->n_known = n_known < p->n_steps ? n_known : p->n_steps - 1;
    p->steps = calloc((size_t)p->n_steps, sizeof *p->steps);
    if (p->steps == NULL) {
        return lt_api_refuse_oom(e);
    }
    if (p->n_known > 0) {
        memcpy(p->steps, known, (size_t)p->n_known * sizeof *known);
    }
    return true;
}

void lt_judge_close(lt_part *p) {
    free(p->steps);
    p->steps = NULL;
    p->n_steps = 0;
}

bool lt_judge_submit(lt_reply *j, lt_part *p, const char *text, size_t n, const double *known,
                     int64_t n_known, lt_api_error *e) {
    lt_ids ids = {0}, at = {0};
    bool ok;
    lt_judge_close(p);
    *p = (lt_part){.reply = j, .judged = true};
    if (lt_judge_has_steps(j->server)) {
        ok = steps_ids(j, p, text, n, &ids, &at, e) && keep_known(p, known, n_known, e);
    } else {
        ok = j->params.messages != NULL ? chat_ids(j, j->params.messages, text, n, &ids, e)
                                        : completion_ids(j, text, n, &ids, e);
    }
    ok = ok && submit(j, p, &ids, &at, e);
    lt_ids_free(&ids);
    lt_ids_free(&at);
    return ok;
}

static bool read_aggregate(lt_reply *j, lt_api_error *e) {
    const char *name = j->params.group.aggregate;
    for (int i = 0; name != NULL && i < LT_STEPS_FOLDS; i++) {
        if (strcmp(name, lt_steps_fold_names[i]) == 0) {
            j->judging.fold = (lt_steps_fold_kind)i;
            return true;
        }
    }
    return name == NULL || lt_api_refuse(e, "alignment.aggregate",
                                         "'alignment.aggregate' may be min, product, last or mean");
}

bool lt_judge_read(lt_reply *j, lt_api_error *e) {
    const json_t *border = j->params.group.border;
    if (j->server->reward == NULL) {
        return lt_api_refuse(
            e, "alignment.reward",
            "'alignment.reward' = reward: the server has no reward model (serve --reward)");
    }
    if (!lt_judge_has_steps(j->server)) {
        return j->params.group.aggregate == NULL ||
               lt_api_refuse(
                   e, "alignment.aggregate",
                   "'alignment.aggregate': the server's reward model judges texts, not steps");
    }
    return read_aggregate(j, e) &&
           lt_borders_read(&j->judging.borders, border, lt_steps_border(&j->server->reward->steps),
                           "alignment.border", e);
}

void lt_judge_write(lt_json_out *o, const double *steps, int64_t n) {
    if (steps == NULL) {
        return;
    }
    lt_out_key_open(o, "steps", '[');
    for (int64_t i = 0; i < n; i++) {
        lt_out_real(o, steps[i]);
    }
    lt_out_shut(o, ']');
}

/* The scores of a text's last steps have arrived. */
static double take_steps(const lt_reply *j, lt_part *p, const lt_event *ev) {
    for (int64_t i = p->n_known; i < p->n_steps; i++) {
        p->steps[i] = lt_steps_score(ev->embedding + 2 * (i - p->n_known));
    }
    return lt_steps_fold(j->judging.fold, p->steps, p->n_steps);
}

bool lt_judge_event(lt_reply *j, const lt_event *ev, double *score, int64_t *tokens) {
    lt_api_error e = {.status = 500, .type = "server_error"};
    if (ev->kind == LT_EVENT_EMBED) {
        lt_part *p = ev->user;
        *score = p->n_steps > 0 ? take_steps(j, p, ev) : (double)ev->embedding[0];
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
