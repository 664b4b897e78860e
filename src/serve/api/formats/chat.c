/* chat.c: POST /v1/chat/completions. With `store`, stored/stored_chat.c finds the answer later. */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "serve/api/formats/conversation.h"
#include "serve/api/reply.h"
#include "serve/api/route.h"
#include "serve/api/formats/chat_output.h"
#include "serve/api/stored/stored_chat.h"

static const lt_field fields[] = {
    LT_JSON("messages", messages), LT_STR("model", model), LT_I64("n", n, 1, 128),
    LT_BOOL("stream", stream), LT_JSON("stream_options", stream_options),
    LT_I64("max_tokens", max_tokens, -1, 1e12),
    LT_I64("max_completion_tokens", max_completion_tokens, -1, 1e12), LT_JSON("logprobs", logprobs),
    LT_I64("top_logprobs", top_logprobs, 0, LT_ENGINE_TOP),
    LT_I64("n_probs", n_probs, 0, LT_ENGINE_TOP),
    LT_I64("prompt_logprobs", prompt_logprobs, 0, LT_ENGINE_TOP),
    LT_JSON("response_format", response_format), LT_JSON("tools", tools),
    LT_JSON("tool_choice", tool_choice), LT_BOOL("parallel_tool_calls", parallel_tools),
    LT_STR("reasoning_effort", reasoning_effort), LT_REFUSED("functions", "use tools"),
    LT_REFUSED("function_call", "use tool_choice"), LT_STR("verbosity", verbosity),
    LT_ONLY("modalities", "[\"text\"]"), LT_JSON("store", store),
    LT_REFUSED("audio", "this model writes text"),
    LT_REFUSED("web_search_options", "there is no web search"),
    LT_REFUSED("moderation", "there is no moderation"), LT_JSON("prediction", prediction),
    LT_NOTHING("prompt_cache_key"), LT_NOTHING("prompt_cache_options"),
    LT_STR("prompt_cache_retention", cache_retention), LT_NOTHING("safety_identifier"),
    LT_NOTHING("user"), LT_JSON("metadata", metadata), LT_NOTHING("service_tier"),
    /* Extensions of vLLM and llama-server. */
    LT_JSON("chat_template_kwargs", template_kwargs),
    LT_REFUSED("chat_template", "templates come with the model, or by --chat-template"),
    LT_REFUSED("documents", "put them into a message"),
    LT_BOOL("add_generation_prompt", add_generation_prompt),
    LT_BOOL("continue_final_message", continue_final), LT_ONLY("echo", "false"),
    LT_ONLY("best_of", "1"), LT_I64("thinking_budget", thinking_budget, -1, 1e9),
    LT_I64("thinking_budget_tokens", thinking_budget, -1, 1e9),
    LT_I64("thinking_token_budget", thinking_budget, -1, 1e9),
    LT_JSON("enable_thinking", enable_thinking), LT_STR("reasoning_format", reasoning_format),
    LT_BOOL("include_reasoning", include_reasoning), LT_ONLY("parse_tool_calls", "true"),
    LT_ONLY("add_special_tokens", "false"), LT_JSON("alignment", alignment),
    LT_JSON("reasoning", reasoning), LT_FIELDS_SAMPLING};
const lt_field_table lt_fields_chat = LT_FIELD_TABLE(fields, "messages");

static const lt_field stream_fields[] = {LT_BOOL("include_usage", include_usage),
                                         LT_BOOL("continuous_usage_stats", continuous_usage),
                                         LT_ONLY("include_obfuscation", "false")};

/* ---- Chunks ---- */

static void head(lt_json_out *o, const lt_reply *j, const char *object) {
    lt_out_open(o, '{');
    lt_out_key_str(o, "id", j->id);
    lt_out_key_str(o, "object", object);
    lt_out_key_int(o, "created", j->created);
    lt_out_key_str(o, "model", lt_reply_model(j));
    lt_out_key_str(o, "system_fingerprint", "lateen-" LT_VERSION);
}

static void chunk_begin(lt_reply *j, int index) {
    lt_json_out *o = &j->out;
    head(o, j, "chat.completion.chunk");
    lt_out_key_open(o, "choices", '[');
    lt_out_open(o, '{');
    lt_out_key_int(o, "index", index);
    lt_out_key_open(o, "delta", '{');
}

/* Log-probabilities of the tokens in rows `from` and later. */
static void put_logprobs(lt_json_out *o, const lt_reply_choice *c, size_t from) {
    const lt_token_logs *l = &c->logs;
    lt_out_key(o, "logprobs");
    if (c->reply->top < 0) {
        lt_out_null(o);
        return;
    }
    lt_out_open(o, '{');
    lt_out_key(o, "content");
    lt_logprobs_write(o, c->reply->server, l, from, l->n, c->reply->top);
    lt_out_key_null(o, "refusal");
    lt_out_shut(o, '}');
}

static void chunk_end(lt_reply_choice *c, const char *finish) {
    lt_reply *j = c->reply;
    lt_json_out *o = &j->out;
    lt_out_shut(o, '}');
    put_logprobs(o, c, c->logs.sent);
    lt_out_key_str(o, "finish_reason", finish);
    if (j->params.return_ids) {
        lt_ids_write(o, "token_ids", &c->logs, c->logs.sent, c->logs.n);
    }
    c->logs.sent = c->logs.n;
    lt_out_shut(o, '}');
    lt_out_shut(o, ']');
    if (j->params.continuous_usage) {
        lt_usage_write(o, j, "usage");
    } else if (j->params.include_usage) {
        lt_out_key_null(o, "usage");
    }
    if (j->params.return_ids && c->state == NULL) { /* The opening chunk. */
        lt_prompt_ids_write(o, c->part);
    }
    if (j->params.timings_per_token || (finish != NULL && !j->params.include_usage)) {
        lt_timings_write(o, c->part, c->new_tokens);
    }
    if (finish != NULL) {
        lt_reply_reports_write(o, j);
    }
    lt_out_shut(o, '}');
    lt_reply_send(j, NULL);
}

static void put_call(lt_json_out *o, const lt_chat_item *call, bool with_index, bool whole,
                     const char *arguments, size_t n) {
    lt_out_open(o, '{');
    if (with_index) {
        lt_out_key_int(o, "index", call->call);
    }
    if (whole) {
        lt_out_key_str(o, "id", call->id);
        lt_out_key_str(o, "type", "function");
    }
    lt_out_key_open(o, "function", '{');
    if (whole) {
        lt_out_key_str(o, "name", call->name);
    }
    lt_out_key(o, "arguments");
    lt_out_str(o, arguments, n);
    lt_out_shut(o, '}');
    lt_out_shut(o, '}');
}

static void send_piece(lt_reply_choice *c, int item, bool fresh, const char *text, size_t n) {
    lt_reply *j = c->reply;
    lt_json_out *o = &j->out;
    const lt_chat_item *said = lt_chat_item_at(c, item);

    if (said->kind == LT_CHAT_REASONING && !j->params.include_reasoning) {
        return;
    }
    chunk_begin(j, c->index);
    switch (said->kind) {
    case LT_CHAT_CONTENT:
        lt_out_key(o, "content");
        lt_out_str(o, text, n);
        break;
    case LT_CHAT_REASONING: /* Clients look for one of these two names. */
        lt_out_key(o, "reasoning_content");
        lt_out_str(o, text, n);
        lt_out_key(o, "reasoning");
        lt_out_str(o, text, n);
        break;
    case LT_CHAT_CALL:
        lt_out_key_open(o, "tool_calls", '[');
        put_call(o, said, true, fresh, text, n);
        lt_out_shut(o, ']');
        break;
    }
    chunk_end(c, NULL);
}

static void on_piece(lt_reply_choice *c, int item, bool fresh, const char *text, size_t n) {
    if (lt_reply_is_live(c->reply)) {
        send_piece(c, item, fresh, text, n);
    }
}

/* ---- The formatter ---- */

static const char *finish_reason(const lt_reply_choice *c) {
    const lt_chat_output *s = c->state;
    return s->n_calls > 0 && c->finish != LT_FINISH_LENGTH ? "tool_calls" : lt_finish_openai(c);
}

static void format_begin(lt_reply *j) {
    for (int64_t i = 0; i < (j->group != NULL ? 1 : j->n_choices); i++) {
        lt_reply_choice *c = &j->parts[0].choices[i];
        chunk_begin(j, c->index);
        lt_out_key_str(&j->out, "role", "assistant");
        lt_out_key_str(&j->out, "content", "");
        chunk_end(c, NULL);
    }
}

static void format_choice_end(lt_reply_choice *c) {
    if (!lt_chat_output_finish(c)) {
        return;
    }
    if (lt_reply_is_live(c->reply)) {
        chunk_begin(c->reply, c->index);
        chunk_end(c, finish_reason(c));
    }
}

/* A group's answer is known only at its end; a stream then sends it at once. */
static void send_kept(lt_reply *j) {
    lt_reply_choice *c = lt_group_kept(j);
    const lt_chat_output *s = c->state;
    for (int i = 0; i < s->n_items; i++) {
        const lt_json_out *text = &s->items[i].text;
        send_piece(c, i, true, text->data != NULL ? text->data : "", text->n);
    }
    chunk_begin(j, c->index);
    chunk_end(c, finish_reason(c));
}

static void put_kind(lt_json_out *o, const lt_chat_output *s, lt_chat_item_kind kind,
                     const char *key) {
    lt_json_out text = {0};
    lt_chat_output_gather(s, kind, &text);
    lt_out_key(o, key);
    lt_out_str(o, text.data != NULL ? text.data : "", text.n);
    lt_out_free(&text);
}

static void put_message(lt_json_out *o, const lt_reply_choice *c) {
    const lt_chat_output *s = c->state;
    lt_out_key_open(o, "message", '{');
    lt_out_key_str(o, "role", "assistant");
    if (lt_chat_output_has(s, LT_CHAT_CONTENT) || s->n_calls == 0) {
        put_kind(o, s, LT_CHAT_CONTENT, "content");
    } else {
        lt_out_key_null(o, "content");
    }
    lt_out_key_null(o, "refusal");
    if (lt_chat_output_has(s, LT_CHAT_REASONING) && c->reply->params.include_reasoning) {
        put_kind(o, s, LT_CHAT_REASONING, "reasoning_content");
        put_kind(o, s, LT_CHAT_REASONING, "reasoning");
    }
    if (s->n_calls > 0) {
        lt_out_key_open(o, "tool_calls", '[');
        for (int i = 0; i < s->n_items; i++) {
            const lt_chat_item *call = &s->items[i];
            if (call->kind == LT_CHAT_CALL) {
                put_call(o, call, false, true, call->text.data != NULL ? call->text.data : "",
                         call->text.n);
            }
        }
        lt_out_shut(o, ']');
    }
    lt_out_shut(o, '}');
}

static void put_choice(lt_json_out *o, const lt_reply_choice *c) {
    lt_out_open(o, '{');
    lt_out_key_int(o, "index", c->index);
    put_message(o, c);
    put_logprobs(o, c, 0);
    lt_out_key_str(o, "finish_reason", finish_reason(c));
    if (c->reply->params.return_ids) {
        lt_ids_write(o, "token_ids", &c->logs, 0, c->logs.n);
    }
    lt_out_shut(o, '}');
}

static void put_completion(lt_json_out *o, const lt_reply *j) {
    head(o, j, "chat.completion");
    lt_out_key_open(o, "choices", '[');
    for (int64_t i = 0; i < j->n_choices && j->group == NULL; i++) {
        put_choice(o, &j->parts[0].choices[i]);
    }
    if (j->group != NULL) {
        put_choice(o, lt_group_kept(j));
    }
    lt_out_shut(o, ']');
    lt_usage_write(o, j, "usage");
    lt_reply_reports_write(o, j);
    lt_timings_write(o, &j->parts[0], lt_reply_new_tokens(j) - lt_control_tokens(j));
    if (j->params.verbose) {
        lt_out_key_open(o, "__verbose", '{');
        lt_prompt_write(o, &j->parts[0]);
        lt_out_shut(o, '}');
    }
    if (j->params.prompt_logprobs >= 0) {
        lt_prompt_logprobs_write(o, &j->parts[0]);
    }
    if (j->params.return_ids) {
        lt_prompt_ids_write(o, &j->parts[0]);
    }
    lt_out_shut(o, '}');
}

/* Store the completion in the form of a whole answer, which stored_chat.c reads. */
static void keep(const lt_reply *j) {
    lt_json_out o = {0};
    lt_out_open(&o, '{');
    lt_out_key(&o, "completion");
    put_completion(&o, j);
    if (j->params.metadata != NULL) {
        lt_out_key_value(&o, "metadata", j->params.metadata);
    } else {
        lt_out_key_open(&o, "metadata", '{');
        lt_out_shut(&o, '}');
    }
    lt_out_key_value(&o, "messages", j->params.messages);
    lt_out_shut(&o, '}');
    if (o.failed ||
        !lt_store_put(j->server->store, j->id, j->owner, NULL, o.data, o.n, lt_clock_s())) {
        lt_log_warn("%s is not stored: its %zu bytes do not fit in the store", j->id, o.n);
    }
    lt_out_free(&o);
}

/* The answer is stored before its last part is sent, so that a client can ask for it at once. */
static void format_finish(lt_reply *j) {
    lt_json_out *o = &j->out;
    if (json_is_true(j->params.store)) {
        keep(j);
    }
    if (j->stream && j->group != NULL) {
        send_kept(j);
    }
    if (j->stream) {
        if (j->params.include_usage) {
            head(o, j, "chat.completion.chunk");
            lt_out_key_open(o, "choices", '[');
            lt_out_shut(o, ']');
            lt_usage_write(o, j, "usage");
            lt_timings_write(o, &j->parts[0], lt_reply_new_tokens(j) - lt_control_tokens(j));
            lt_out_shut(o, '}');
            lt_reply_send(j, NULL);
        }
        lt_out_raw(o, "[DONE]", 6);
        lt_reply_send(j, NULL);
    } else {
        put_completion(o, j);
    }
}

static void format_failed(lt_reply *j, const lt_api_error *e) {
    lt_error_write(&j->out, j->flavour, j->extra, e);
    lt_reply_send(j, NULL);
}

static void format_free(lt_reply *j) {
    for (int64_t i = 0; j->n_parts > 0 && j->parts[0].choices != NULL && i < j->n_choices; i++) {
        lt_chat_output_close(&j->parts[0].choices[i]);
    }
}

static const lt_formatter formatter = {.begin = format_begin,
                                       .token = lt_chat_output_token,
                                       .text = lt_chat_output_text,
                                       .piece = on_piece,
                                       .answer = lt_chat_output_answer,
                                       .choice_end = format_choice_end,
                                       .finish = format_finish,
                                       .failed = format_failed,
                                       .free = format_free};

/* ---- The request ---- */

/* Number of alternatives that are reported with a token; -1: none. */
static bool read_logprobs(const lt_api_params *a, int *top, lt_api_error *e) {
    const bool on = json_is_true(a->logprobs);
    *top = -1;
    if (a->logprobs != NULL && !json_is_boolean(a->logprobs)) {
        return lt_api_refuse(e, "logprobs", "'logprobs' must be true or false");
    }
    if (a->n_probs > 0) {
        *top = (int)a->n_probs;
    }
    if (a->top_logprobs >= 0 && !on) {
        return lt_api_refuse(e, "top_logprobs", "'top_logprobs' needs 'logprobs': true");
    }
    if (on) {
        *top = a->top_logprobs >= 0 ? (int)a->top_logprobs : 0;
    }
    return true;
}

static bool prepare(lt_reply *j, lt_api_error *e) {
    const lt_api_params *a = &j->params;
    const int64_t most = a->max_completion_tokens >= 0 ? a->max_completion_tokens : a->max_tokens;
    lt_conversation c;
    lt_ids ids = {0};
    int top;

    if (!lt_server_check_model(j->server, a, e) || !read_logprobs(a, &top, e) ||
        !lt_control_read(j, e) || !lt_reply_configure(j, most, top, e) || !lt_group_read(j, e) ||
        !lt_chat_output_prepare(j, e)) {
        return false;
    }
    c = lt_conversation_of(a);
    return lt_conversation_ids(j->server, &c, &ids, &j->listen.opened, e) &&
           lt_chat_output_add(j, &ids, e);
}

/* As at OpenAI, only requests with `store` are stored, and metadata without it is ignored. */
static bool read_store(const lt_api_params *a, const lt_server *s, lt_api_error *e) {
    if (a->store != NULL && !json_is_boolean(a->store)) {
        return lt_api_refuse(e, "store", "'store' must be true or false");
    }
    if (!json_is_true(a->store)) {
        return true;
    }
    if (s->o.store.max_entries == 0) {
        return lt_api_refuse(e, "store", "'store': this server stores nothing (--store-entries 0)");
    }
    return a->metadata == NULL || lt_metadata_check(a->metadata, e);
}

static bool read_ask(lt_api_params *a, lt_call *call, lt_api_error *e) {
    lt_server_ask(call->server, a);
    if (!lt_call_read(call, a, fields, sizeof fields / sizeof *fields, e)) {
        return false;
    }
    if (a->messages == NULL) {
        return lt_api_refuse(e, "messages", "'messages' is missing");
    }
    if (a->continue_final && json_is_true(json_object_get(a->root, "add_generation_prompt"))) {
        return lt_api_refuse(
            e, "continue_final_message",
            "'continue_final_message' and 'add_generation_prompt' exclude each other");
    }
    if (a->enable_thinking != NULL && !json_is_boolean(a->enable_thinking)) {
        return lt_api_refuse(e, "enable_thinking", "'enable_thinking' must be true or false");
    }
    if (a->max_tokens == 0 || a->max_completion_tokens == 0) {
        const char *const said =
            a->max_completion_tokens == 0
                ? "max_completion_tokens"
                : lt_api_params_said(a, (const char *const[]){"max_tokens", "n_predict", NULL});
        return lt_api_refuse(e, said, "'%s' is 0; it must be at least 1", said);
    }
    if (!read_store(a, call->server, e)) {
        return false;
    }
    if (a->stream_options == NULL) {
        return true;
    }
    if (!a->stream) {
        return lt_api_refuse(e, "stream_options", "'stream_options' needs 'stream': true");
    }
    return json_is_object(a->stream_options)
               ? lt_api_params_object(a, a->stream_options, stream_fields,
                                      sizeof stream_fields / sizeof *stream_fields,
                                      "stream_options.", e)
               : lt_api_refuse(e, "stream_options", "'stream_options' must be an object");
}

void lt_api_chat(lt_call *call) {
    lt_api_error e = {0};
    lt_api_params a;
    lt_reply *j;

    if (!read_ask(&a, call, &e)) {
        lt_call_error(call, &e);
        lt_api_params_free(&a);
        return;
    }
    j = lt_reply_open(call, &formatter, &a, "chatcmpl-");
    if (j == NULL) {
        return;
    }
    if (!prepare(j, &e)) {
        lt_reply_refuse(call, j, &e);
        return;
    }
    lt_reply_start(call, j);
}

/* Report the number of tokens in the prompt of a chat request. */
void lt_api_chat_tokens(lt_call *call) {
    lt_api_error e = {0};
    lt_json_out o = {0};
    lt_listen listen = {0};
    lt_conversation c;
    lt_ids ids = {0};
    lt_api_params a;

    if (read_ask(&a, call, &e) && lt_server_check_model(call->server, &a, &e) &&
        lt_chat_output_tools(&a, &listen, &e)) {
        c = lt_conversation_of(&a);
        (void)lt_conversation_ids(call->server, &c, &ids, NULL, &e);
    }
    if (e.status != 0) {
        lt_call_error(call, &e);
    } else {
        lt_out_open(&o, '{');
        lt_out_key_int(&o, "input_tokens", (int64_t)ids.n);
        lt_out_shut(&o, '}');
        lt_call_json(call, 200, &o);
    }
    lt_ids_free(&ids);
    lt_api_params_free(&a);
}
