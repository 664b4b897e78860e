/* api_messages.c: /v1/messages and /v1/messages/count_tokens: Anthropic's shape, over the same conversation as chat.
 *
 * A stream is message_start, then for each block content_block_start, content_block_delta ..., content_block_stop, then message_delta with the
 * reason and the usage, then message_stop. max_tokens is an upper bound: where the context is smaller it counts. */
#include <string.h>

#include "base/error.h"
#include "base/json.h"
#include "serve/conversation.h"
#include "serve/reply.h"
#include "serve/route.h"
#include "serve/speech.h"
#include "serve/tools_convert.h"

static const lt_field fields[] = {
    LT_JSON("messages", messages),
    LT_JSON("system", system),
    LT_STR("model", model),
    LT_I64("max_tokens", max_tokens, 1, 1e12),
    LT_BOOL("stream", stream),
    LT_JSON("stop_sequences", stop),
    LT_F64("temperature", temperature, 0, 100),
    LT_F64("top_p", top_p, 0, 1),
    LT_I64("top_k", top_k, 0, 1e9),
    LT_F64("min_p", min_p, 0, 1),
    LT_F64("repetition_penalty", repetition, 1e-3, 100),
    LT_I64("seed", seed, -0x1p63, 0x1p63),
    LT_JSON("tools", tools),
    LT_JSON("tool_choice", tool_choice),
    LT_JSON("thinking", thinking),
    LT_JSON("chat_template_kwargs", template_kwargs),
    LT_NOTHING("metadata"),
    LT_NOTHING("service_tier"),
    LT_NOTHING("cache_control"),
    LT_NOTHING("inference_geo"),
    LT_NOTHING("user_profile_id"),
    LT_NOTHING("workspace_id"),
    LT_REFUSED("diagnostics", "there are none"),
    LT_REFUSED("container", "there are no containers"),
    LT_REFUSED("context_management", "conversations are not edited here"),
    LT_JSON("output_config", text),
    LT_ONLY("speed", "\"standard\""),
    LT_ONLY("mcp_servers", "[]")};

/* ---- The stream ---- */

static void event_begin(lt_reply *j, const char *type) {
    lt_out_open(&j->out, '{');
    lt_out_key_str(&j->out, "type", type);
}

static void event_end(lt_reply *j, const char *type) {
    lt_out_shut(&j->out, '}');
    lt_reply_send(j, type);
}

static void put_usage(lt_json_out *o, const lt_reply *j) {
    const int64_t cached = lt_reply_cached_tokens(j);
    lt_out_key_open(o, "usage", '{');
    lt_out_key_int(o, "input_tokens", lt_reply_prompt_tokens(j) - cached);
    lt_out_key_int(o, "cache_creation_input_tokens", 0);
    lt_out_key_int(o, "cache_read_input_tokens", cached);
    lt_out_key_int(o, "output_tokens", lt_reply_new_tokens(j));
    lt_out_shut(o, '}');
}

static void face_begin(lt_reply *j) {
    lt_json_out *o = &j->out;
    event_begin(j, "message_start");
    lt_out_key_open(o, "message", '{');
    lt_out_key_str(o, "id", j->id);
    lt_out_key_str(o, "type", "message");
    lt_out_key_str(o, "role", "assistant");
    lt_out_key_str(o, "model", j->server->name);
    lt_out_key_open(o, "content", '[');
    lt_out_shut(o, ']');
    lt_out_key_null(o, "stop_reason");
    lt_out_key_null(o, "stop_sequence");
    put_usage(o, j);
    lt_out_shut(o, '}');
    event_end(j, "message_start");
}

static void block_stop(lt_strand *c, int index) {
    event_begin(c->reply, "content_block_stop");
    lt_out_key_int(&c->reply->out, "index", index);
    event_end(c->reply, "content_block_stop");
}

static void block_start(lt_strand *c, int index) {
    lt_json_out *o = &c->reply->out;
    const lt_speech_item *item = &((const lt_speech *)c->face)->items[index];
    event_begin(c->reply, "content_block_start");
    lt_out_key_int(o, "index", index);
    lt_out_key_open(o, "content_block", '{');
    switch (item->kind) {
    case LT_SPEECH_CONTENT:
        lt_out_key_str(o, "type", "text");
        lt_out_key_str(o, "text", "");
        break;
    case LT_SPEECH_REASONING:
        lt_out_key_str(o, "type", "thinking");
        lt_out_key_str(o, "thinking", "");
        lt_out_key_str(o, "signature", "");
        break;
    case LT_SPEECH_CALL:
        lt_out_key_str(o, "type", "tool_use");
        lt_out_key_str(o, "id", item->id);
        lt_out_key_str(o, "name", item->name);
        lt_out_key_open(o, "input", '{');
        lt_out_shut(o, '}');
        break;
    }
    lt_out_shut(o, '}');
    event_end(c->reply, "content_block_start");
}

static void on_piece(lt_strand *c, int item, bool fresh, const char *text, size_t n) {
    static const char *const types[] = {"text_delta", "thinking_delta", "input_json_delta"};
    static const char *const keys[] = {"text", "thinking", "partial_json"};
    lt_json_out *o = &c->reply->out;
    const lt_speech_kind kind = ((const lt_speech *)c->face)->items[item].kind;

    if (!c->reply->stream) {
        return;
    }
    if (fresh && item > 0) {
        block_stop(c, item - 1);
    }
    if (fresh) {
        block_start(c, item);
    }
    if (n == 0) {
        return;
    }
    event_begin(c->reply, "content_block_delta");
    lt_out_key_int(o, "index", item);
    lt_out_key_open(o, "delta", '{');
    lt_out_key_str(o, "type", types[kind]);
    lt_out_key(o, keys[kind]);
    lt_out_str(o, text, n);
    lt_out_shut(o, '}');
    event_end(c->reply, "content_block_delta");
}

static void put_stop(lt_json_out *o, const lt_strand *c) {
    const lt_reply *j = c->reply;
    const char *why = "end_turn";
    if (c->stop_index >= 0) {
        why = "stop_sequence";
    } else if (c->finish == LT_FINISH_LENGTH) {
        why = "max_tokens";
    } else if (c->face != NULL && ((const lt_speech *)c->face)->n_calls > 0) {
        why = "tool_use";
    }
    lt_out_key_str(o, "stop_reason", why);
    lt_out_key(o, "stop_sequence");
    if (c->stop_index >= 0) {
        lt_out_str(o, j->stops[c->stop_index], j->stop_lengths[c->stop_index]);
    } else {
        lt_out_null(o);
    }
}

/* ---- The face ---- */

static void face_token(lt_strand *c) {
    if (c->face != NULL && lt_speech_in_reasoning(c)) {
        c->reasoning_tokens++;
    }
}

static void face_text(lt_strand *c, const char *text, size_t n) {
    if (c->face != NULL || lt_speech_open(c)) {
        lt_speech_feed(c, text, n, on_piece);
    }
}

static void face_choice_end(lt_strand *c) {
    if (c->face == NULL && !lt_speech_open(c)) {
        return;
    }
    lt_speech_end(c, on_piece);
    if (c->reply->stream && ((const lt_speech *)c->face)->n_items > 0) {
        block_stop(c, ((const lt_speech *)c->face)->n_items - 1);
    }
}

static void put_block(lt_json_out *o, const lt_speech_item *item) {
    const char *text = item->text.data != NULL ? item->text.data : "";
    json_t *input;
    lt_out_open(o, '{');
    switch (item->kind) {
    case LT_SPEECH_CONTENT:
        lt_out_key_str(o, "type", "text");
        lt_out_key(o, "text");
        lt_out_str(o, text, item->text.n);
        break;
    case LT_SPEECH_REASONING:
        lt_out_key_str(o, "type", "thinking");
        lt_out_key(o, "thinking");
        lt_out_str(o, text, item->text.n);
        lt_out_key_str(o, "signature", "");
        break;
    case LT_SPEECH_CALL:
        lt_out_key_str(o, "type", "tool_use");
        lt_out_key_str(o, "id", item->id);
        lt_out_key_str(o, "name", item->name);
        input = lt_json_loadb(text, item->text.n, JSON_ALLOW_NUL, NULL);
        lt_out_key(o, "input");
        if (json_is_object(input)) {
            lt_out_value(o, input);
        } else { /* Cut off in the middle: the length was reached. */
            lt_out_open(o, '{');
            lt_out_shut(o, '}');
        }
        json_decref(input);
        break;
    }
    lt_out_shut(o, '}');
}

static void face_finish(lt_reply *j) {
    lt_json_out *o = &j->out;
    lt_strand *c = &j->parts[0].strands[0];
    const lt_speech *s = c->face;

    if (j->stream) {
        event_begin(j, "message_delta");
        lt_out_key_open(o, "delta", '{');
        put_stop(o, c);
        lt_out_shut(o, '}');
        put_usage(o, j);
        event_end(j, "message_delta");
        event_begin(j, "message_stop");
        event_end(j, "message_stop");
        return;
    }
    lt_out_open(o, '{');
    lt_out_key_str(o, "id", j->id);
    lt_out_key_str(o, "type", "message");
    lt_out_key_str(o, "role", "assistant");
    lt_out_key_str(o, "model", j->server->name);
    lt_out_key_open(o, "content", '[');
    for (int i = 0; s != NULL && i < s->n_items; i++) {
        put_block(o, &s->items[i]);
    }
    lt_out_shut(o, ']');
    put_stop(o, c);
    put_usage(o, j);
    lt_out_shut(o, '}');
}

static void face_failed(lt_reply *j, const lt_api_error *e) {
    lt_error_write(&j->out, j->flavour, e);
    lt_reply_send(j, "error");
}

static void face_free(lt_reply *j) {
    if (j->n_parts > 0 && j->parts[0].strands != NULL) {
        lt_speech_close(&j->parts[0].strands[0]);
    }
}

static const lt_face face = {.begin = face_begin,
                             .token = face_token,
                             .text = face_text,
                             .choice_end = face_choice_end,
                             .finish = face_finish,
                             .failed = face_failed,
                             .free = face_free};

/* ---- The request ---- */

/* {type: enabled, budget_tokens: n}, {type: disabled}, {type: adaptive}. */
static bool read_thinking(lt_ask *a, lt_api_error *e) {
    const char *type = json_string_value(json_object_get(a->thinking, "type"));
    const json_t *budget = json_object_get(a->thinking, "budget_tokens");

    if (a->thinking == NULL) {
        return true;
    }
    if (type != NULL && strcmp(type, "disabled") == 0) {
        a->reasoning_effort = "none";
    } else if (type != NULL && strcmp(type, "enabled") == 0 && json_is_integer(budget) &&
               json_integer_value(budget) >= 0) {
        a->thinking_budget = json_integer_value(budget);
    } else if (type == NULL || strcmp(type, "adaptive") != 0) {
        return lt_api_refuse(e, "thinking",
                             "'thinking' must be {type: enabled, budget_tokens: N}, "
                             "{type: adaptive} or {type: disabled}");
    }
    return true;
}

/* {format: {type: json_schema, schema}, effort}. */
static bool read_output(lt_ask *a, lt_api_error *e) {
    const json_t *format = json_object_get(a->text, "format");
    const json_t *effort = json_object_get(a->text, "effort");
    const char *key;
    json_t *value;

    if (a->text != NULL && !json_is_object(a->text)) {
        return lt_api_refuse(e, "output_config", "'output_config' must be an object");
    }
    json_object_foreach((json_t *)(uintptr_t)a->text, key, value) {
        if (strcmp(key, "format") != 0 && strcmp(key, "effort") != 0) {
            return lt_api_refuse(e, "output_config", "'output_config.%.40s' is not supported here",
                                 key);
        }
    }
    a->response_format = json_is_null(format) ? NULL : format;
    a->format_name = "output_config.format";
    if (json_is_string(effort) && a->reasoning_effort == NULL) {
        a->reasoning_effort = json_string_value(effort);
    }
    return true;
}

/* Anthropic's tool_choice as OpenAI's: a new value, NULL for none given. */
static bool convert_choice(const json_t *choice, json_t **out, bool *parallel, lt_api_error *e) {
    const char *type = json_string_value(json_object_get(choice, "type"));
    const char *name = json_string_value(json_object_get(choice, "name"));
    const json_t *alone = json_object_get(choice, "disable_parallel_tool_use");
    *out = NULL;
    if (choice == NULL) {
        return true;
    }
    if (alone != NULL && !json_is_boolean(alone) && !json_is_null(alone)) {
        return lt_api_refuse(e, "tool_choice",
                             "'tool_choice.disable_parallel_tool_use' must be true or false");
    }
    *parallel = *parallel && !json_is_true(alone);
    if (type != NULL && (strcmp(type, "auto") == 0 || strcmp(type, "none") == 0)) {
        *out = json_string(type);
    } else if (type != NULL && strcmp(type, "any") == 0) {
        *out = json_string("required");
    } else if (type != NULL && strcmp(type, "tool") == 0 && name != NULL) {
        *out = json_pack("{s:s, s:{s:s}}", "type", "function", "function", "name", name);
    } else {
        return lt_api_refuse(e, "tool_choice",
                             "'tool_choice' must be of type auto, any, tool (with "
                             "a name) or none");
    }
    return true;
}

/* Read the body and turn it into OpenAI's terms; the converted trees live in the ask's root. */
static bool read_ask(lt_ask *a, lt_call *call, bool counting, lt_api_error *e) {
    json_t *messages, *tools, *choice = NULL;
    lt_server_ask(call->server, a);
    a->max_tokens = -1; /* Anthropic: every request says. */
    if (!lt_call_read(call, a, fields, sizeof fields / sizeof *fields, e)) {
        return false;
    }
    if (a->max_tokens < 0 && !counting) {
        return lt_api_refuse(e, "max_tokens", "'max_tokens' is missing");
    }
    messages = lt_convert_anthropic(a->system, a->messages, e);
    if (messages == NULL) {
        return false;
    }
    json_object_set_new(a->root, "messages", messages);
    a->messages = messages;
    tools = lt_convert_anthropic_tools(a->tools, e);
    if (tools == NULL && e->status != 0) {
        return false;
    }
    a->tools = tools;
    if (tools != NULL) {
        json_object_set_new(a->root, "tools", tools);
    }
    if (!convert_choice(a->tool_choice, &choice, &a->parallel_tools, e) || !read_thinking(a, e) ||
        !read_output(a, e)) {
        json_decref(choice);
        return false;
    }
    a->tool_choice = choice;
    if (choice != NULL) {
        json_object_set_new(a->root, "tool_choice", choice);
    }
    return true;
}

static bool last_is_assistant(const json_t *messages) {
    const json_t *last = json_array_get(messages, json_array_size(messages) - 1);
    const char *role = json_string_value(json_object_get(last, "role"));
    return role != NULL && strcmp(role, "assistant") == 0 &&
           json_object_get(last, "tool_calls") == NULL;
}

static bool prompt_ids(lt_server *s, const lt_ask *a, lt_ids *ids, bool *opened, lt_api_error *e) {
    const lt_conversation c = {.messages = a->messages,
                               .tools = a->tools,
                               .kwargs = a->template_kwargs,
                               .reasoning_effort = a->reasoning_effort,
                               .add_generation_prompt = true,
                               .continue_final = last_is_assistant(a->messages)};
    return lt_conversation_ids(s, &c, ids, opened, e);
}

static bool prepare(lt_reply *j, lt_api_error *e) {
    const int64_t context = lt_server_context(j->server);
    const int64_t most = j->ask.max_tokens < context ? j->ask.max_tokens : context;
    lt_ids ids = {0};
    return lt_server_check_model(j->server, &j->ask, e) && lt_reply_configure(j, most, -1, e) &&
           lt_speech_prepare(j, e) && prompt_ids(j->server, &j->ask, &ids, &j->listen.opened, e) &&
           lt_speech_add(j, &ids, e);
}

void lt_api_messages(lt_call *call) {
    lt_api_error e = {0};
    lt_ask a;
    lt_reply *j;

    if (!read_ask(&a, call, false, &e)) {
        lt_call_error(call, &e);
        lt_ask_free(&a);
        return;
    }
    j = lt_reply_open(call, &face, &a, "msg_");
    if (j == NULL) {
        return;
    }
    if (!prepare(j, &e)) {
        lt_reply_refuse(call, j, &e);
        return;
    }
    lt_reply_start(call, j);
}

void lt_api_count_tokens(lt_call *call) {
    lt_api_error e = {0};
    lt_json_out o = {0};
    lt_ids ids = {0};
    lt_ask a;

    if (!read_ask(&a, call, true, &e) || !lt_server_check_model(call->server, &a, &e) ||
        !prompt_ids(call->server, &a, &ids, NULL, &e)) {
        lt_call_error(call, &e);
    } else {
        lt_out_open(&o, '{');
        lt_out_key_int(&o, "input_tokens", (int64_t)ids.n);
        lt_out_shut(&o, '}');
        lt_call_json(call, 200, &o);
    }
    lt_ids_free(&ids);
    lt_ask_free(&a);
}
