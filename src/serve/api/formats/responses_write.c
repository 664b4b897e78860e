/* responses_write.c: see responses.h: the response object of /v1/responses and its items. */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "serve/api/formats/responses.h"

lt_reply_choice *lt_response_choice(const lt_reply *j) {
    return j->group != NULL ? lt_group_kept(j) : &j->parts[0].choices[0];
}

static const lt_responses *state_of(const lt_reply_choice *c) {
    return c->reply->format_state;
}

/* Only the item that was being generated when the tokens ran out is incomplete. */
static const char *item_status(const lt_reply_choice *c, int index, bool done) {
    const bool last = index == ((const lt_chat_output *)c->state)->n_items - 1;
    return !done                                               ? "in_progress"
           : last && c->ended && c->finish == LT_FINISH_LENGTH ? "incomplete"
                                                               : "completed";
}

const char *lt_response_item_id(const lt_chat_item *item, char out[56]) {
    snprintf(out, 56, "%s%s", item->kind == LT_CHAT_CALL ? "fc_" : "",
             item->id + (item->kind == LT_CHAT_CALL ? 5 : 0)); /* call_... */
    return out;
}

void lt_response_logprobs_write(lt_json_out *o, const lt_reply_choice *c, size_t from, size_t to) {
    lt_out_key(o, "logprobs");
    lt_logprobs_write(o, c->reply->server, &c->logs, from, to,
                      c->reply->request.logprobs > 0 ? c->reply->request.logprobs : 0);
}

void lt_response_part_write(lt_json_out *o, const lt_reply_choice *c, int index, bool with_text) {
    const lt_chat_item *item = lt_chat_item_at(c, index);
    lt_out_open(o, '{');
    lt_out_key_str(o, "type",
                   item->kind == LT_CHAT_CONTENT ? "output_text"
                   : state_of(c)->summary        ? "summary_text"
                                                 : "reasoning_text");
    lt_out_key(o, "text");
    lt_out_str(o, with_text && item->text.data != NULL ? item->text.data : "",
               with_text ? item->text.n : 0);
    if (item->kind == LT_CHAT_CONTENT) {
        lt_out_key_open(o, "annotations", '[');
        lt_out_shut(o, ']');
        lt_response_logprobs_write(o, c, item->logs_from,
                                   with_text ? item->logs_to : item->logs_from);
    }
    lt_out_shut(o, '}');
}

static void put_sealed(lt_json_out *o, const lt_reply_choice *c, const lt_chat_item *item) {
    lt_seal_key key;
    char *sealed = NULL;
    if (lt_server_seal_key(c->reply->server, c->reply->owner, &key)) {
        sealed = lt_seal(&key, item->text.data != NULL ? item->text.data : "", item->text.n);
    }
    lt_out_key_str(o, "encrypted_content", sealed); /* null if memory is exhausted. */
    free(sealed);
}

static void put_parts(lt_json_out *o, const lt_reply_choice *c, int index, const char *key,
                      bool filled) {
    lt_out_key_open(o, key, '[');
    if (filled) {
        lt_response_part_write(o, c, index, true);
    }
    lt_out_shut(o, ']');
}

void lt_response_item_write(lt_json_out *o, const lt_reply_choice *c, int index, bool done) {
    const lt_chat_item *item = lt_chat_item_at(c, index);
    const bool summary = state_of(c)->summary;
    char id[56];

    lt_out_open(o, '{');
    lt_out_key_str(o, "id", lt_response_item_id(item, id));
    switch (item->kind) {
    case LT_CHAT_CALL:
        lt_out_key_str(o, "type", "function_call");
        lt_out_key_str(o, "call_id", item->id);
        lt_out_key_str(o, "name", item->name);
        lt_out_key(o, "arguments");
        lt_out_str(o, done && item->text.data != NULL ? item->text.data : "",
                   done ? item->text.n : 0);
        break;
    case LT_CHAT_CONTENT:
        lt_out_key_str(o, "type", "message");
        lt_out_key_str(o, "role", "assistant");
        put_parts(o, c, index, "content", done);
        break;
    case LT_CHAT_REASONING:
        lt_out_key_str(o, "type", "reasoning");
        put_parts(o, c, index, "summary", done && summary);
        if (!summary) {
            put_parts(o, c, index, "content", done);
        }
        if (done && state_of(c)->sealed) {
            put_sealed(o, c, item);
        }
        break;
    }
    lt_out_key_str(o, "status", item_status(c, index, done));
    lt_out_shut(o, '}');
}

/* ---- The request's parameters, echoed ---- */

static void put_text(lt_json_out *o, const lt_api_params *a) {
    lt_out_key_open(o, "text", '{');
    lt_out_key(o, "format");
    if (a->response_format != NULL) {
        lt_out_value(o, a->response_format);
    } else {
        lt_out_raw(o, "{\"type\":\"text\"}", 15);
        o->comma = true;
    }
    lt_out_key_str(o, "verbosity", a->verbosity != NULL ? a->verbosity : "medium");
    lt_out_shut(o, '}');
}

/* The request's value or, if it has none, `otherwise`, a JSON text. */
static void put_said(lt_json_out *o, const lt_api_params *a, const char *key, const char *as,
                     const char *otherwise) {
    const json_t *value = json_object_get(a->root, as);
    lt_out_key(o, key);
    if (value != NULL && !json_is_null(value)) {
        lt_out_value(o, value);
    } else {
        lt_out_raw(o, otherwise, strlen(otherwise));
        o->comma = true;
    }
}

static void put_asked(lt_json_out *o, const lt_reply *j) {
    const lt_api_params *a = &j->params;
    const lt_responses *st = j->format_state;
    static const char *const alike[][2] = {
        {"max_tool_calls", "null"},         {"metadata", "{}"},
        {"previous_response_id", "null"},   {"prompt_cache_key", "null"},
        {"prompt_cache_retention", "null"}, {"safety_identifier", "null"},
        {"tool_choice", "\"auto\""},        {"top_logprobs", "0"},
        {"truncation", "\"disabled\""},     {"user", "null"}};
    for (size_t i = 0; i < sizeof alike / sizeof *alike; i++) {
        put_said(o, a, alike[i][0], alike[i][0], alike[i][1]);
    }
    put_said(o, a, "instructions", "instructions", "null");
    put_said(o, a, "tools", "asked_tools", "[]");
    lt_out_key(o, "max_output_tokens");
    if (a->max_tokens >= 0) {
        lt_out_int(o, a->max_tokens);
    } else {
        lt_out_null(o);
    }
    lt_out_key_str(o, "model", lt_reply_model(j));
    lt_out_key_bool(o, "parallel_tool_calls", a->parallel_tools);
    lt_out_key_open(o, "reasoning", '{');
    lt_out_key_str(o, "effort", a->reasoning_effort);
    lt_out_key_str(o, "summary", st->summary ? "detailed" : NULL);
    lt_out_shut(o, '}');
    lt_out_key_str(o, "service_tier", "default");
    lt_out_key_bool(o, "store", st->keep);
    lt_out_key_real(o, "temperature", a->temperature);
    lt_out_key_real(o, "top_p", a->top_p);
    put_text(o, a);
}

static void put_usage(lt_json_out *o, const lt_reply *j) {
    const int64_t in = lt_reply_prompt_tokens(j), made = lt_reply_new_tokens(j);
    lt_out_key_open(o, "usage", '{');
    lt_out_key_int(o, "input_tokens", in);
    lt_out_key_open(o, "input_tokens_details", '{');
    lt_out_key_int(o, "cached_tokens", lt_reply_cached_tokens(j));
    lt_out_key_int(o, "cache_write_tokens", 0); /* Writing to the cache costs nothing. */
    lt_out_shut(o, '}');
    lt_out_key_int(o, "output_tokens", made);
    lt_out_key_open(o, "output_tokens_details", '{');
    lt_out_key_int(o, "reasoning_tokens", lt_reply_reasoning_tokens(j));
    lt_out_shut(o, '}');
    lt_out_key_int(o, "total_tokens", in + made);
    lt_out_shut(o, '}');
}

/* Write the members of a response that ended or failed. */
static void put_end(lt_json_out *o, const lt_reply *j, bool cut) {
    const lt_responses *st = j->format_state;
    lt_out_key(o, "error");
    if (st->why != NULL) {
        lt_out_open(o, '{');
        lt_out_key_str(o, "code", "server_error");
        lt_out_key_str(o, "message", st->why->message);
        lt_out_shut(o, '}');
    } else {
        lt_out_null(o);
    }
    lt_out_key(o, "incomplete_details");
    if (cut) {
        lt_out_open(o, '{');
        lt_out_key_str(o, "reason", "max_output_tokens");
        lt_out_shut(o, '}');
    } else {
        lt_out_null(o);
    }
}

void lt_response_write(lt_json_out *o, const lt_reply *j, lt_response_state state) {
    const bool done = state == LT_RESPONSE_DONE;
    const lt_reply_choice *c = done ? lt_response_choice(j) : &j->parts[0].choices[0];
    const lt_chat_output *s = c->state;
    const bool cut = done && c->finish == LT_FINISH_LENGTH;

    lt_out_open(o, '{');
    lt_out_key_str(o, "id", j->id);
    lt_out_key_str(o, "object", "response");
    lt_out_key_int(o, "created_at", j->created);
    lt_out_key(o, "completed_at");
    if (done && !cut) {
        lt_out_int(o, (int64_t)lt_clock_unix_s());
    } else {
        lt_out_null(o);
    }
    lt_out_key_str(o, "status",
                   state == LT_RESPONSE_FAILED ? "failed"
                   : cut                       ? "incomplete"
                   : done                      ? "completed"
                                               : "in_progress");
    lt_out_key_bool(o, "background", false);
    put_end(o, j, cut);
    lt_out_key_open(o, "output", '[');
    for (int i = 0; done && s != NULL && i < s->n_items; i++) {
        lt_response_item_write(o, c, i, true);
    }
    lt_out_shut(o, ']');
    put_asked(o, j);
    if (done) {
        put_usage(o, j);
        lt_reply_reports_write(o, j);
    } else {
        lt_out_key_null(o, "usage");
    }
    lt_out_shut(o, '}');
}
