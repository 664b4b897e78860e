/* api_responses.c: /v1/responses: OpenAI's newer shape. Nothing is stored: previous_response_id and conversation are refused by name, and each
 * answer says store: false.
 *
 * A stream tells the life of each output item: added, its part added, deltas, done; between response.created and response.completed, all
 * numbered. */
#include <string.h>

#include "base/error.h"
#include "serve/conversation.h"
#include "serve/reply.h"
#include "serve/route.h"
#include "serve/speech.h"
#include "serve/tools_convert.h"

static const lt_field fields[] = {
    LT_JSON("input", input),
    LT_STR("instructions", instructions),
    LT_STR("model", model),
    LT_BOOL("stream", stream),
    LT_JSON("stream_options", stream_options),
    LT_I64("max_output_tokens", max_tokens, 1, 1e12),
    LT_JSON("tools", tools),
    LT_JSON("tool_choice", tool_choice),
    LT_BOOL("parallel_tool_calls", parallel_tools),
    LT_JSON("text", text),
    LT_JSON("reasoning", reasoning),
    LT_JSON("include", content),
    LT_I64("top_logprobs", top_logprobs, 0, LT_ENGINE_TOP),
    LT_REFUSED("previous_response_id", "responses are not stored; send the items again"),
    LT_REFUSED("conversation", "conversations are not stored; send the items again"),
    LT_REFUSED("prompt", "there are no stored prompts"),
    LT_REFUSED("max_tool_calls", "there are no built-in tools"),
    LT_REFUSED("context_management", "conversations are not edited here"),
    LT_REFUSED("access_programs", "there are none"),
    LT_REFUSED("image", "this model writes text"),
    LT_REFUSED("background_options", "responses do not run in the background"),
    LT_REFUSED("max_tokens", "use max_output_tokens"),
    LT_REFUSED("max_completion_tokens", "use max_output_tokens"),
    LT_ONLY("background", "false"),
    LT_ONLY("store", "false"),
    LT_ONLY("truncation", "\"disabled\""),
    LT_REFUSED("moderation", "there is no moderation"),
    LT_JSON("metadata", metadata),
    LT_NOTHING("user"),
    LT_NOTHING("service_tier"),
    LT_NOTHING("prompt_cache_key"),
    LT_NOTHING("prompt_cache_options"),
    LT_NOTHING("prompt_cache_retention"),
    LT_NOTHING("safety_identifier"),
    LT_JSON("chat_template_kwargs", template_kwargs),
    LT_ONLY("add_special_tokens", "false"),
    LT_REFUSED("return_token_ids", "items have no place for ids"),
    LT_REFUSED("return_tokens", "items have no place for ids"),
    LT_I64("thinking_budget", thinking_budget, -1, 1e9),
    LT_FIELDS_SAMPLING};

/* ---- Items and the response object ---- */

static const char *item_status(const lt_strand *c, bool done) {
    return !done ? "in_progress" : c->finish == LT_FINISH_LENGTH ? "incomplete" : "completed";
}

static void put_logprobs(lt_json_out *o, const lt_strand *c, size_t from, size_t to) {
    lt_out_key(o, "logprobs");
    lt_logprobs_write(o, c->reply->server, &c->logs, from, to,
                      c->reply->request.logprobs > 0 ? c->reply->request.logprobs : 0);
}

/* {type: output_text | reasoning_text, text} */
static void put_part(lt_json_out *o, const lt_strand *c, const lt_speech_item *item,
                     bool with_text) {
    lt_out_open(o, '{');
    lt_out_key_str(o, "type", item->kind == LT_SPEECH_CONTENT ? "output_text" : "reasoning_text");
    lt_out_key(o, "text");
    lt_out_str(o, with_text && item->text.data != NULL ? item->text.data : "",
               with_text ? item->text.n : 0);
    if (item->kind == LT_SPEECH_CONTENT) {
        lt_out_key_open(o, "annotations", '[');
        lt_out_shut(o, ']');
        put_logprobs(o, c, 0, with_text ? c->logs.n : 0);
    }
    lt_out_shut(o, '}');
}

static void put_item(lt_json_out *o, const lt_strand *c, const lt_speech_item *item, bool done) {
    char id[56];
    lt_out_open(o, '{');
    if (item->kind == LT_SPEECH_CALL) {
        snprintf(id, sizeof id, "fc_%s", item->id + 5);
        lt_out_key_str(o, "id", id);
        lt_out_key_str(o, "type", "function_call");
        lt_out_key_str(o, "status", item_status(c, done));
        lt_out_key_str(o, "call_id", item->id);
        lt_out_key_str(o, "name", item->name);
        lt_out_key(o, "arguments");
        lt_out_str(o, done && item->text.data != NULL ? item->text.data : "",
                   done ? item->text.n : 0);
    } else {
        lt_out_key_str(o, "id", item->id);
        lt_out_key_str(o, "type", item->kind == LT_SPEECH_CONTENT ? "message" : "reasoning");
        lt_out_key_str(o, "status", item_status(c, done));
        if (item->kind == LT_SPEECH_CONTENT) {
            lt_out_key_str(o, "role", "assistant");
        } else {
            lt_out_key_open(o, "summary", '[');
            lt_out_shut(o, ']');
        }
        lt_out_key_open(o, "content", '[');
        if (done) {
            put_part(o, c, item, true);
        }
        lt_out_shut(o, ']');
    }
    lt_out_shut(o, '}');
}

/* What was asked for, told back. */
static void put_asked(lt_json_out *o, const lt_reply *j) {
    const lt_ask *a = &j->ask;
    lt_out_key_str(o, "instructions", a->instructions);
    lt_out_key(o, "max_output_tokens");
    if (a->max_tokens >= 0) {
        lt_out_int(o, a->max_tokens);
    } else {
        lt_out_null(o);
    }
    lt_out_key_str(o, "model", j->server->name);
    lt_out_key_bool(o, "parallel_tool_calls", a->parallel_tools);
    lt_out_key_null(o, "previous_response_id");
    lt_out_key_open(o, "reasoning", '{');
    lt_out_key_str(o, "effort", a->reasoning_effort);
    lt_out_key_null(o, "summary");
    lt_out_shut(o, '}');
    lt_out_key_bool(o, "store", false);
    lt_out_key_real(o, "temperature", a->temperature);
    lt_out_key_real(o, "top_p", a->top_p);
    lt_out_key_open(o, "text", '{');
    lt_out_key(o, "format");
    if (a->response_format != NULL) {
        lt_out_value(o, a->response_format);
    } else {
        lt_out_raw(o, "{\"type\":\"text\"}", 15);
        o->comma = true;
    }
    lt_out_shut(o, '}');
    lt_out_key(o, "tool_choice");
    if (a->tool_choice != NULL) { /* As it was asked, not as it was converted. */
        lt_out_value(o, json_object_get(a->root, "tool_choice"));
    } else {
        lt_out_text(o, "auto");
    }
    lt_out_key(o, "tools");
    if (json_object_get(a->root, "asked_tools") != NULL) {
        lt_out_value(o, json_object_get(a->root, "asked_tools"));
    } else {
        lt_out_open(o, '[');
        lt_out_shut(o, ']');
    }
    lt_out_key_str(o, "truncation", "disabled");
    lt_out_key(o, "metadata");
    if (a->metadata != NULL) {
        lt_out_value(o, a->metadata);
    } else {
        lt_out_open(o, '{');
        lt_out_shut(o, '}');
    }
}

static void put_usage(lt_json_out *o, const lt_reply *j) {
    const int64_t in = lt_reply_prompt_tokens(j), made = lt_reply_new_tokens(j);
    lt_out_key_open(o, "usage", '{');
    lt_out_key_int(o, "input_tokens", in);
    lt_out_key_open(o, "input_tokens_details", '{');
    lt_out_key_int(o, "cached_tokens", lt_reply_cached_tokens(j));
    lt_out_shut(o, '}');
    lt_out_key_int(o, "output_tokens", made);
    lt_out_key_open(o, "output_tokens_details", '{');
    lt_out_key_int(o, "reasoning_tokens", lt_reply_reasoning_tokens(j));
    lt_out_shut(o, '}');
    lt_out_key_int(o, "total_tokens", in + made);
    lt_out_shut(o, '}');
}

static void put_response(lt_json_out *o, const lt_reply *j, bool done) {
    const lt_strand *c = &j->parts[0].strands[0];
    const lt_speech *s = c->face;
    const bool cut = done && c->finish == LT_FINISH_LENGTH;

    lt_out_open(o, '{');
    lt_out_key_str(o, "id", j->id);
    lt_out_key_str(o, "object", "response");
    lt_out_key_int(o, "created_at", j->created);
    lt_out_key_str(o, "status", cut ? "incomplete" : done ? "completed" : "in_progress");
    lt_out_key_bool(o, "background", false);
    lt_out_key_null(o, "error");
    lt_out_key(o, "incomplete_details");
    if (cut) {
        lt_out_open(o, '{');
        lt_out_key_str(o, "reason", "max_output_tokens");
        lt_out_shut(o, '}');
    } else {
        lt_out_null(o);
    }
    lt_out_key_open(o, "output", '[');
    for (int i = 0; done && s != NULL && i < s->n_items; i++) {
        put_item(o, c, &s->items[i], true);
    }
    lt_out_shut(o, ']');
    put_asked(o, j);
    if (done) {
        put_usage(o, j);
    } else {
        lt_out_key_null(o, "usage");
    }
    lt_out_shut(o, '}');
}

/* ---- The stream: the sequence number lives in face_state ---- */

static void event_begin(lt_reply *j, const char *type) {
    lt_out_open(&j->out, '{');
    lt_out_key_str(&j->out, "type", type);
    lt_out_key_int(&j->out, "sequence_number", (int64_t)(intptr_t)j->face_state);
    j->face_state = (void *)((intptr_t)j->face_state + 1);
}

static void event_end(lt_reply *j, const char *type) {
    lt_out_shut(&j->out, '}');
    lt_reply_send(j, type);
}

static void response_event(lt_reply *j, const char *type, bool done) {
    event_begin(j, type);
    lt_out_key(&j->out, "response");
    put_response(&j->out, j, done);
    event_end(j, type);
}

/* item_id, output_index and, for texts, content_index. */
static void put_place(lt_strand *c, int index) {
    lt_json_out *o = &c->reply->out;
    const lt_speech_item *item = &((const lt_speech *)c->face)->items[index];
    char id[56];
    snprintf(id, sizeof id, "fc_%s", item->id + 5);
    lt_out_key_str(o, "item_id", item->kind == LT_SPEECH_CALL ? id : item->id);
    lt_out_key_int(o, "output_index", index);
    if (item->kind != LT_SPEECH_CALL) {
        lt_out_key_int(o, "content_index", 0);
    }
}

static void item_event(lt_strand *c, int index, bool done) {
    const char *type = done ? "response.output_item.done" : "response.output_item.added";
    lt_json_out *o = &c->reply->out;
    event_begin(c->reply, type);
    lt_out_key_int(o, "output_index", index);
    lt_out_key(o, "item");
    put_item(o, c, &((const lt_speech *)c->face)->items[index], done);
    event_end(c->reply, type);
}

static void part_event(lt_strand *c, int index, bool done) {
    const char *type = done ? "response.content_part.done" : "response.content_part.added";
    const lt_speech_item *item = &((const lt_speech *)c->face)->items[index];
    if (item->kind == LT_SPEECH_CALL) {
        return;
    }
    event_begin(c->reply, type);
    put_place(c, index);
    lt_out_key(&c->reply->out, "part");
    put_part(&c->reply->out, c, item, done);
    event_end(c->reply, type);
}

static void text_event(lt_strand *c, int index, bool done, const char *text, size_t n) {
    static const char *const deltas[] = {"response.output_text.delta",
                                         "response.reasoning_text.delta",
                                         "response.function_call_arguments.delta"};
    static const char *const dones[] = {"response.output_text.done", "response.reasoning_text.done",
                                        "response.function_call_arguments.done"};
    const lt_speech_item *item = &((const lt_speech *)c->face)->items[index];
    const char *type = (done ? dones : deltas)[item->kind];
    lt_json_out *o = &c->reply->out;

    event_begin(c->reply, type);
    put_place(c, index);
    if (item->kind == LT_SPEECH_CALL && done) {
        lt_out_key_str(o, "name", item->name);
    }
    lt_out_key(o, !done ? "delta" : item->kind == LT_SPEECH_CALL ? "arguments" : "text");
    lt_out_str(o, text, n);
    if (item->kind == LT_SPEECH_CONTENT) {
        put_logprobs(o, c, done ? 0 : c->logs.sent, c->logs.n);
        c->logs.sent = c->logs.n;
    }
    event_end(c->reply, type);
}

static void end_item(lt_strand *c, int index) {
    const lt_json_out *text = &((const lt_speech *)c->face)->items[index].text;
    text_event(c, index, true, text->data != NULL ? text->data : "", text->n);
    part_event(c, index, true);
    item_event(c, index, true);
}

static void on_piece(lt_strand *c, int item, bool fresh, const char *text, size_t n) {
    if (!c->reply->stream) {
        return;
    }
    if (fresh && item > 0) {
        end_item(c, item - 1);
    }
    if (fresh) {
        item_event(c, item, false);
        part_event(c, item, false);
    }
    if (n > 0) {
        text_event(c, item, false, text, n);
    }
}

/* ---- The face ---- */

static void face_begin(lt_reply *j) {
    response_event(j, "response.created", false);
    response_event(j, "response.in_progress", false);
}

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
    const lt_speech *s;
    if (c->face == NULL && !lt_speech_open(c)) {
        return;
    }
    lt_speech_end(c, on_piece);
    s = c->face;
    if (c->reply->stream && s->n_items > 0) {
        end_item(c, s->n_items - 1);
    }
}

static void face_finish(lt_reply *j) {
    const bool cut = j->parts[0].strands[0].finish == LT_FINISH_LENGTH;
    if (j->stream) {
        response_event(j, cut ? "response.incomplete" : "response.completed", true);
    } else {
        put_response(&j->out, j, true);
    }
}

static void face_failed(lt_reply *j, const lt_api_error *e) {
    event_begin(j, "error");
    lt_out_key_str(&j->out, "code", e->code != NULL ? e->code : e->type);
    lt_out_key_str(&j->out, "message", e->message);
    lt_out_key_null(&j->out, "param");
    event_end(j, "error");
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

/* {format: {type, schema, ...}, verbosity}; {effort}; of a stream. */
static bool read_nested(lt_ask *a, lt_api_error *e) {
    static const lt_field text[] = {LT_JSON("format", response_format),
                                    LT_ONLY("verbosity", "\"medium\"")};
    static const lt_field stream[] = {LT_ONLY("include_obfuscation", "false")};
    static const lt_field reasoning[] = {
        LT_STR("effort", reasoning_effort),
        LT_REFUSED("summary", "the reasoning itself is returned"),
        LT_REFUSED("generate_summary", "the reasoning itself is returned")};
    if (a->text != NULL && !json_is_object(a->text)) {
        return lt_api_refuse(e, "text", "'text' must be an object");
    }
    if (a->reasoning != NULL && !json_is_object(a->reasoning)) {
        return lt_api_refuse(e, "reasoning", "'reasoning' must be an object");
    }
    if (a->stream_options != NULL && (!a->stream || !json_is_object(a->stream_options))) {
        return lt_api_refuse(e, "stream_options",
                             "'stream_options' must be an object, and needs 'stream': true");
    }
    a->format_name = "text.format";
    return lt_ask_object(a, a->text, text, sizeof text / sizeof *text, "text.", e) &&
           lt_ask_object(a, a->stream_options, stream, 1, "stream_options.", e) &&
           lt_ask_object(a, a->reasoning, reasoning, sizeof reasoning / sizeof *reasoning,
                         "reasoning.", e);
}

static bool read_include(lt_ask *a, bool *logprobs, lt_api_error *e) {
    *logprobs = a->top_logprobs >= 0;
    if (a->content != NULL && !json_is_array(a->content)) {
        return lt_api_refuse(e, "include", "'include' must be a list");
    }
    for (size_t i = 0; i < json_array_size(a->content); i++) {
        const char *what = json_string_value(json_array_get(a->content, i));
        if (what != NULL && strcmp(what, "message.output_text.logprobs") == 0) {
            *logprobs = true;
        } else {
            return lt_api_refuse(e, "include",
                                 "'include': %.60s is not supported here; it may be "
                                 "message.output_text.logprobs",
                                 what != NULL ? what : "?");
        }
    }
    return true;
}

/* A named tool here is {type: function, name}; in chat {type: function, function: {name}}. */
static void convert_choice(lt_ask *a) {
    const char *name = json_string_value(json_object_get(a->tool_choice, "name"));
    if (name != NULL) {
        json_t *choice = json_pack("{s:s, s:{s:s}}", "type", "function", "function", "name", name);
        json_object_set_new(a->root, "converted_choice", choice);
        a->tool_choice = choice;
    }
}

static bool read_ask(lt_ask *a, lt_call *call, int *top, lt_api_error *e) {
    json_t *messages, *tools;
    bool logprobs;
    lt_server_ask(call->server, a);
    if (!lt_call_read(call, a, fields, sizeof fields / sizeof *fields, e) || !read_nested(a, e) ||
        !read_include(a, &logprobs, e)) {
        return false;
    }
    if (a->metadata != NULL && !json_is_object(a->metadata)) {
        return lt_api_refuse(e, "metadata", "'metadata' must be an object");
    }
    *top = logprobs ? (a->top_logprobs > 0 ? (int)a->top_logprobs : 0) : -1;
    messages = lt_convert_responses(a->instructions, a->input, e);
    if (messages == NULL) {
        return false;
    }
    json_object_set_new(a->root, "messages", messages);
    a->messages = messages;
    tools = lt_convert_responses_tools(a->tools, e);
    if (tools == NULL && e->status != 0) {
        return false;
    }
    if (tools != NULL) {
        json_object_set(a->root, "asked_tools", (json_t *)a->tools);
        json_object_set_new(a->root, "tools", tools);
        a->tools = tools;
    }
    convert_choice(a);
    return true;
}

static bool prepare(lt_reply *j, int top, lt_api_error *e) {
    const lt_ask *a = &j->ask;
    lt_conversation c;
    lt_ids ids = {0};

    if (!lt_server_check_model(j->server, a, e) || !lt_reply_configure(j, a->max_tokens, top, e) ||
        !lt_speech_prepare(j, e)) {
        return false;
    }
    c = (lt_conversation){.messages = a->messages,
                          .tools = a->tools,
                          .kwargs = a->template_kwargs,
                          .reasoning_effort = a->reasoning_effort,
                          .add_generation_prompt = true};
    return lt_conversation_ids(j->server, &c, &ids, &j->listen.opened, e) &&
           lt_speech_add(j, &ids, e);
}

void lt_api_responses(lt_call *call) {
    lt_api_error e = {0};
    lt_ask a;
    lt_reply *j;
    int top = -1;

    if (!read_ask(&a, call, &top, &e)) {
        lt_call_error(call, &e);
        lt_ask_free(&a);
        return;
    }
    j = lt_reply_open(call, &face, &a, "resp_");
    if (j == NULL) {
        return;
    }
    if (!prepare(j, top, &e)) {
        lt_reply_refuse(call, j, &e);
        return;
    }
    lt_reply_start(call, j);
}
