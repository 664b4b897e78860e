/* ollama.c: Ollama's /api/chat and /api/generate: one JSON object per line, the last with done;
 * a single object with stream false.
 *
 * Options about how Ollama runs its models are accepted, because no answer depends on them; num_ctx
 * may be at most the served context. This file converts the request; a tool call is sent when it is
 * complete, with its arguments as an object. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/json.h"
#include "serve/api/formats/conversation.h"
#include "serve/api/formats/infill.h"
#include "serve/api/formats/ollama.h"
#include "serve/api/formats/prompts.h"
#include "serve/api/route.h"

#define SHARED_FIELDS                                                                              \
    LT_STR("model", model), LT_STR("name", model), LT_BOOL("stream", stream),                      \
        LT_JSON("format", format), LT_JSON("options", options), LT_JSON("think", thinking),        \
        LT_NOTHING("keep_alive"), LT_BOOL("truncate", truncate), LT_ONLY("shift", "true|false"),   \
        LT_JSON("logprobs", logprobs), LT_I64("top_logprobs", top_logprobs, 0, LT_ENGINE_TOP)

static const lt_field chat_fields[] = {LT_JSON("messages", messages), LT_JSON("tools", tools),
                                       SHARED_FIELDS};
const lt_field_table lt_fields_ollama_chat = LT_FIELD_TABLE(chat_fields, "model");
static const lt_field generate_fields[] = {LT_JSON("prompt", prompt),
                                           LT_STR("system", instructions),
                                           LT_JSON("context", tokens),
                                           LT_BOOL("raw", raw),
                                           LT_STR("suffix", suffix),
                                           LT_ONLY("template", "\"\""),
                                           LT_ONLY("images", "[]"),
                                           LT_REFUSED("width", "this model writes text"),
                                           LT_REFUSED("height", "this model writes text"),
                                           LT_REFUSED("steps", "this model writes text"),
                                           SHARED_FIELDS};
const lt_field_table lt_fields_ollama_generate = LT_FIELD_TABLE(generate_fields, "model");
static const lt_field option_fields[] = {LT_I64("num_predict", max_tokens, -2, 1e12),
                                         LT_I64("num_ctx", num_ctx, 1, 1e9),
                                         LT_I64("num_keep", n_keep, -1, 1e9),
                                         LT_NOTHING("num_batch"),
                                         LT_NOTHING("num_gpu"),
                                         LT_NOTHING("main_gpu"),
                                         LT_NOTHING("num_thread"),
                                         LT_NOTHING("num_gqa"),
                                         LT_NOTHING("numa"),
                                         LT_NOTHING("low_vram"),
                                         LT_NOTHING("f16_kv"),
                                         LT_NOTHING("vocab_only"),
                                         LT_NOTHING("use_mmap"),
                                         LT_NOTHING("use_mlock"),
                                         LT_ONLY("embedding_only", "false"),
                                         LT_ONLY("logits_all", "false"),
                                         LT_ONLY("penalize_newline", "true"),
                                         LT_FIELDS_SAMPLING};
const lt_field_table lt_fields_ollama_options = LT_FIELD_TABLE(option_fields, "");

/* ---- What all lines say ---- */

void lt_ollama_when(lt_json_out *o, double unix_s) {
    const time_t whole = (time_t)unix_s;
    struct tm utc;
    char day[32], text[64];
    strftime(day, sizeof day, "%Y-%m-%dT%H:%M:%S", gmtime_r(&whole, &utc));
    snprintf(text, sizeof text, "%s.%06dZ", day, (int)(1e6 * (unix_s - (double)whole)));
    lt_out_text(o, text);
}

static void put_head(lt_json_out *o, const lt_reply *j) {
    lt_out_open(o, '{');
    lt_out_key_str(o, "model", j->params.model != NULL ? j->params.model : j->server->name);
    lt_out_key(o, "created_at");
    lt_ollama_when(o, lt_clock_unix_s());
}

static bool is_chat(const lt_reply *j) {
    return j->params.prompt == NULL;
}

static void put_call(lt_json_out *o, const lt_chat_item *call) {
    json_t *arguments = lt_json_loadb_exact(call->text.data != NULL ? call->text.data : "",
                                            call->text.n, JSON_ALLOW_NUL, NULL);
    lt_out_open(o, '{');
    lt_out_key_str(o, "id", call->id);
    lt_out_key_open(o, "function", '{');
    lt_out_key_int(o, "index", call->call);
    lt_out_key_str(o, "name", call->name);
    lt_out_key(o, "arguments");
    if (json_is_object(arguments)) {
        lt_out_value(o, arguments);
    } else { /* It was cut off. */
        lt_out_open(o, '{');
        lt_out_shut(o, '}');
    }
    lt_out_shut(o, '}');
    lt_out_shut(o, '}');
    json_decref(arguments);
}

static void put_logprobs(lt_json_out *o, const lt_reply_choice *c, size_t from, size_t to) {
    if (c->reply->request.logprobs >= 0) {
        lt_out_key(o, "logprobs");
        lt_logprobs_write(o, c->reply->server, &c->logs, from, to, c->reply->request.logprobs);
    }
}

/* A piece of content or reasoning, or a whole call. */
static void put_piece(lt_json_out *o, const lt_reply *j, const lt_chat_item *item, const char *text,
                      size_t n) {
    const bool chat = is_chat(j);
    if (chat) {
        lt_out_key_open(o, "message", '{');
        lt_out_key_str(o, "role", "assistant");
    }
    lt_out_key(o, chat ? "content" : "response");
    lt_out_str(o, item->kind == LT_CHAT_CONTENT ? text : "", item->kind == LT_CHAT_CONTENT ? n : 0);
    if (item->kind == LT_CHAT_REASONING) {
        lt_out_key(o, "thinking");
        lt_out_str(o, text, n);
    } else if (item->kind == LT_CHAT_CALL) {
        lt_out_key_open(o, "tool_calls", '[');
        put_call(o, item);
        lt_out_shut(o, ']');
    }
    if (chat) {
        lt_out_shut(o, '}');
    }
}

static void line(lt_reply_choice *c, int item, const char *text, size_t n) {
    lt_reply *j = c->reply;
    put_head(&j->out, j);
    put_piece(&j->out, j, lt_chat_item_at(c, item), text, n);
    put_logprobs(&j->out, c, c->logs.sent, c->logs.n);
    c->logs.sent = c->logs.n;
    lt_out_key_bool(&j->out, "done", false);
    lt_out_shut(&j->out, '}');
    lt_reply_send(j, NULL);
}

static void on_piece(lt_reply_choice *c, int item, bool fresh, const char *text, size_t n) {
    if (!c->reply->stream) {
        return;
    }
    if (fresh && item > 0 && lt_chat_item_at(c, item - 1)->kind == LT_CHAT_CALL) {
        line(c, item - 1, "", 0);
    }
    if (n > 0 && lt_chat_item_at(c, item)->kind != LT_CHAT_CALL) {
        line(c, item, text, n);
    }
}

/* ---- The formatter ---- */

static void format_choice_end(lt_reply_choice *c) {
    const lt_chat_output *s;
    if (!lt_chat_output_finish(c)) {
        return;
    }
    s = c->state;
    if (c->reply->stream && s->n_items > 0 && s->items[s->n_items - 1].kind == LT_CHAT_CALL) {
        line(c, s->n_items - 1, "", 0);
    }
}

static void put_all(lt_json_out *o, const lt_chat_output *s, lt_chat_item_kind kind,
                    const char *key) {
    lt_json_out text = {0};
    lt_chat_output_gather(s, kind, &text);
    lt_out_key(o, key);
    lt_out_str(o, text.data != NULL ? text.data : "", text.n);
    lt_out_free(&text);
}

/* Write the output: all of it, or none for a stream, which has already sent it. */
static void put_said(lt_json_out *o, const lt_reply_choice *c, bool all) {
    const lt_chat_output *s = c->state;
    const lt_chat_output none = {0};
    const bool chat = is_chat(c->reply);
    s = all && s != NULL ? s : &none;
    if (chat) {
        lt_out_key_open(o, "message", '{');
        lt_out_key_str(o, "role", "assistant");
    }
    put_all(o, s, LT_CHAT_CONTENT, chat ? "content" : "response");
    if (lt_chat_output_has(s, LT_CHAT_REASONING)) {
        put_all(o, s, LT_CHAT_REASONING, "thinking");
    }
    if (s->n_calls > 0) {
        lt_out_key_open(o, "tool_calls", '[');
        for (int i = 0; i < s->n_items; i++) {
            if (s->items[i].kind == LT_CHAT_CALL) {
                put_call(o, &s->items[i]);
            }
        }
        lt_out_shut(o, ']');
    }
    if (chat) {
        lt_out_shut(o, '}');
    }
}

static int64_t ns(double seconds) {
    return seconds > 0 ? (int64_t)(1e9 * seconds) : 0;
}

/* The prompt's ids and the answer's, for the next request's context. */
static void put_context(lt_json_out *o, const lt_reply_choice *c) {
    const lt_ids *prompt = &c->part->prompt;
    lt_out_key_open(o, "context", '[');
    for (size_t i = 0; i < prompt->n; i++) {
        lt_out_int(o, (int64_t)prompt->data[i]);
    }
    for (size_t i = 0; i < c->logs.n; i++) {
        lt_out_int(o, c->logs.rows[i].id);
    }
    lt_out_shut(o, ']');
}

static void format_finish(lt_reply *j) {
    lt_json_out *o = &j->out;
    const lt_part *p = &j->parts[0];
    const lt_reply_choice *c = &p->choices[0];

    put_head(o, j);
    put_said(o, c, !j->stream);
    put_logprobs(o, c, j->stream ? c->logs.sent : 0, c->logs.n);
    lt_out_key_bool(o, "done", true);
    lt_out_key_str(o, "done_reason", lt_finish_openai(c));
    if (!is_chat(j) && !j->params.raw) {
        put_context(o, c);
    }
    lt_out_key_int(o, "total_duration", ns(lt_clock_s() - j->arrived_s));
    lt_out_key_int(o, "load_duration", ns(p->queue_s));
    lt_out_key_int(o, "prompt_eval_count", (int64_t)p->prompt.n);
    lt_out_key_int(o, "prompt_eval_duration", ns(p->prefill_s));
    lt_out_key_int(o, "eval_count", c->new_tokens);
    lt_out_key_int(o, "eval_duration", ns(p->decode_s));
    lt_out_shut(o, '}');
    if (j->stream) {
        lt_reply_send(j, NULL);
    }
}

static void format_failed(lt_reply *j, const lt_api_error *e) {
    lt_error_write(&j->out, j->flavour, j->extra, e);
    lt_reply_send(j, NULL);
}

static void format_free(lt_reply *j) {
    if (j->n_parts > 0 && j->parts[0].choices != NULL) {
        lt_chat_output_close(&j->parts[0].choices[0]);
    }
}

static const lt_formatter formatter = {.token = lt_chat_output_token,
                                       .text = lt_chat_output_text,
                                       .piece = on_piece,
                                       .choice_end = format_choice_end,
                                       .finish = format_finish,
                                       .failed = format_failed,
                                       .free = format_free};

/* ---- The request ---- */

/* "" or absent, "json", or a schema. */
static bool read_format(lt_api_params *a, lt_api_error *e) {
    const char *word = json_string_value(a->format);
    json_t *form;
    if (a->format == NULL || (word != NULL && word[0] == '\0')) {
        return true;
    }
    if (word != NULL && strcmp(word, "json") == 0) {
        form = json_pack("{s:s}", "type", "json_object");
    } else if (json_is_object(a->format)) {
        form = json_pack("{s:s, s:{s:O}}", "type", "json_schema", "json_schema", "schema",
                         a->format);
    } else {
        return lt_api_refuse(e, "format", "'format' must be \"json\" or a JSON schema, an object");
    }
    json_object_set_new(a->root, "converted_format", form);
    a->response_format = form;
    a->format_name = "format";
    return true;
}

/* true, false, or an effort. */
static bool read_think(lt_api_params *a, const lt_server *s, lt_api_error *e) {
    const char *effort = json_string_value(a->thinking);
    if (a->thinking == NULL) {
        return true;
    }
    if (!json_is_boolean(a->thinking) && effort == NULL) {
        return lt_api_refuse(e, "think", "'think' must be true, false or an effort");
    }
    if (json_is_false(a->thinking)) {
        a->reasoning_effort = "none";
        return true;
    }
    if (!lt_parse_reasons(&s->marks)) {
        return lt_api_refuse(e, "think", "\"%s\" does not support thinking", s->name);
    }
    a->reasoning_effort = effort;
    if (effort == NULL) {
        a->enable_thinking = a->thinking;
    }
    return true;
}

static bool read_options(lt_api_params *a, const lt_server *s, lt_api_error *e) {
    if (a->options != NULL && !json_is_object(a->options)) {
        return lt_api_refuse(e, "options", "'options' must be an object");
    }
    if (!lt_api_params_object(a, a->options, option_fields,
                              sizeof option_fields / sizeof *option_fields, "options.", e)) {
        return false;
    }
    if (a->num_ctx > lt_server_context(s)) {
        return lt_api_refuse(e, "options.num_ctx",
                             "'options.num_ctx' is %lld; the context that is served has %lld "
                             "tokens",
                             (long long)a->num_ctx, (long long)lt_server_context(s));
    }
    if (a->max_tokens == 0) {
        return lt_api_refuse(e, "options.num_predict",
                             "'options.num_predict' is 0; it must be at least 1, or -1");
    }
    a->max_tokens = a->max_tokens < 0 ? -1 : a->max_tokens;
    return true;
}

/* The name without the default tag that Ollama adds. */
static const char *untagged(const char *name, char out[256]) {
    static const char latest[] = ":latest";
    const size_t n = strlen(name), tag_n = sizeof latest - 1;
    if (n <= tag_n || n - tag_n >= 256 || strcmp(name + n - tag_n, latest) != 0) {
        return name;
    }
    snprintf(out, 256, "%.*s", (int)(n - tag_n), name);
    return out;
}

lt_model_slot *lt_ollama_find(const lt_models *m, const char *name) {
    char bare[256];
    return lt_models_find(m, untagged(name, bare));
}

/* "1h30m", "-1" or "300", or a number of seconds; below 0: forever. */
bool lt_ollama_keep_alive(const json_t *value, double *seconds, lt_api_error *e) {
    static const struct {
        const char *unit;
        double seconds;
    } units[] = {{"ns", 1e-9}, {"us", 1e-6}, {"ms", 1e-3}, {"s", 1}, {"m", 60}, {"h", 3600}};
    const char *text = json_string_value(value), *at = text;
    double sum = 0;
    bool good = text != NULL && text[0] != '\0';

    if (json_is_number(value)) {
        *seconds = json_number_value(value);
        return true;
    }
    while (good && *at != '\0') {
        char *end = NULL;
        const double x = strtod(at, &end);
        const size_t n = strspn(end, "nmush");
        double unit = n == 0 && at == text && *end == '\0' ? 1 : 0;
        for (size_t i = 0; i < sizeof units / sizeof *units; i++) {
            const bool same = strlen(units[i].unit) == n && strncmp(end, units[i].unit, n) == 0;
            unit = same ? units[i].seconds : unit;
        }
        good = end != at && unit > 0 && x > -1e15 && x < 1e15;
        sum += text[0] == '-' && x > 0 ? -x * unit : x * unit;
        at = end + n;
    }
    *seconds = sum;
    return good || lt_api_refuse(e, "keep_alive",
                                 "'keep_alive' must be seconds, or a duration such as \"5m\"");
}

bool lt_ollama_asks_nothing(void (*handler)(lt_call *call), const json_t *body) {
    return handler == lt_api_ollama_chat
               ? json_array_size(json_object_get(body, "messages")) == 0
               : handler == lt_api_ollama_generate &&
                     json_string_length(json_object_get(body, "prompt")) == 0;
}

bool lt_ollama_check_model(const lt_server *s, lt_api_params *a, lt_api_error *e) {
    char bare[256];
    if (a->model == NULL || a->model[0] == '\0') {
        return lt_api_refuse(e, "model", "model is required");
    }
    if (s->o.any_model || lt_server_answers_to(s, a->model) ||
        lt_server_answers_to(s, untagged(a->model, bare))) {
        return true;
    }
    lt_api_refuse(e, "model", "model '%.100s' not found", a->model);
    e->status = 404;
    return false;
}

/* Ollama's message as OpenAI's: calls get ids and a type, and thinking its other name. */
static json_t *message_of(const json_t *from) {
    json_t *to = json_copy((json_t *)(uintptr_t)from), *calls = json_object_get(to, "tool_calls");
    json_t *list = json_array(), *call;
    size_t i;

    json_object_del(to, "images");
    if (json_object_get(to, "content") == NULL || json_is_null(json_object_get(to, "content"))) {
        json_object_set_new(to, "content", json_string(""));
    }
    if (json_is_string(json_object_get(to, "thinking"))) {
        json_object_set(to, "reasoning_content", json_object_get(to, "thinking"));
    }
    json_array_foreach(calls, i, call) {
        json_t *own = json_copy(call);
        if (json_is_object(own)) {
            json_object_set_new(own, "type", json_string("function"));
            if (!json_is_string(json_object_get(own, "id"))) {
                json_object_set_new(own, "id", json_sprintf("call_%zu", i));
            }
            json_array_append(list, own);
        }
        json_decref(own);
    }
    if (json_array_size(list) > 0) {
        json_object_set(to, "tool_calls", list);
    }
    json_decref(list);
    return to;
}

static bool read_messages(lt_api_params *a, lt_api_error *e) {
    json_t *list = json_array(), *message;
    size_t i;
    json_array_foreach((json_t *)(uintptr_t)a->messages, i, message) {
        if (json_array_size(json_object_get(message, "images")) > 0) {
            json_decref(list);
            return lt_api_refuse(e, "messages", "'messages[%zu].images': this model reads text", i);
        }
        json_array_append_new(list,
                              json_is_object(message) ? message_of(message) : json_incref(message));
    }
    json_object_set_new(a->root, "converted_messages", list);
    a->messages = list;
    return true;
}

/* A prompt is a conversation of one message, unless it is raw, or the model has no template. */
static bool read_prompt(lt_api_params *a, const lt_server *s, lt_api_error *e) {
    json_t *list;
    if (!json_is_string(a->prompt)) {
        return lt_api_refuse(e, "prompt", "'prompt' must be a string");
    }
    a->raw = a->raw || lt_infill_is_asked(a) ||
             (strcmp(s->template_source, "none") == 0 && a->instructions == NULL);
    if (a->raw) {
        return a->instructions == NULL || lt_api_refuse(e, "system",
                                                        "'system' and 'raw' exclude "
                                                        "each other");
    }
    list = json_array();
    if (a->instructions != NULL && a->instructions[0] != '\0') {
        json_array_append_new(
            list, json_pack("{s:s, s:s}", "role", "system", "content", a->instructions));
    }
    json_array_append_new(list, json_pack("{s:s, s:O}", "role", "user", "content", a->prompt));
    json_object_set_new(a->root, "converted_messages", list);
    a->messages = list;
    return true;
}

static bool read_ask(lt_api_params *a, lt_call *call, bool chat, lt_api_error *e) {
    const lt_server *s = call->server;
    lt_api_params_defaults(a);
    a->temperature = 0.8; /* Ollama's own default, */
    a->top_k = 40;
    a->top_p = 0.9;
    a->repeat_last_n = 64;
    lt_server_preset(s, a); /* overridden by the model's and the operator's. */
    a->stream = a->truncate = true;
    a->logprobs = NULL;
    return lt_call_read(call, a, chat ? chat_fields : generate_fields,
                        chat ? sizeof chat_fields / sizeof *chat_fields
                             : sizeof generate_fields / sizeof *generate_fields,
                        e) &&
           lt_ollama_check_model(s, a, e) && read_options(a, s, e) && read_format(a, e) &&
           read_think(a, s, e);
}

/* The prompt and the suffix surround the answer. */
static bool add_infill(lt_reply *j, lt_api_error *e) {
    const lt_infill f = {.prefix = json_string_value(j->params.prompt),
                         .suffix = j->params.suffix,
                         .cut = j->params.truncate};
    return lt_infill_add(j, &f, "suffix", e);
}

static bool encode_prompt(lt_reply *j, lt_ids *ids, lt_api_error *e) {
    const lt_api_params *a = &j->params;
    const lt_conversation c = {.messages = a->messages,
                               .tools = a->tools,
                               .reasoning_effort = a->reasoning_effort,
                               .enable_thinking = a->enable_thinking,
                               .add_generation_prompt = true};
    if (!a->raw) {
        return a->truncate
                   ? lt_conversation_fit(j->server, &c, a->max_tokens, ids, &j->listen.opened, e)
                   : lt_conversation_ids(j->server, &c, ids, &j->listen.opened, e);
    }
    return lt_server_may_fit(j->server, json_string_length(a->prompt), "prompt", e) &&
           lt_server_encode(j->server, json_string_value(a->prompt), json_string_length(a->prompt),
                            LT_ENCODE_DEFAULT, ids, e);
}

/* The ids of an earlier answer's context come before the prompt. */
static bool add_context(lt_reply *j, lt_ids *ids, lt_api_error *e) {
    lt_ids all = {0};
    if (json_array_size(j->params.tokens) == 0) {
        return true;
    }
    if (!lt_prompts_mixed(j->server, j->params.tokens, "context", false, false, &all, e)) {
        lt_ids_free(&all);
        return false;
    }
    uint32_t *grown = realloc(all.data, (all.n + ids->n) * sizeof *grown);
    if (grown == NULL) {
        lt_ids_free(&all);
        return lt_api_refuse_oom(e);
    }
    memcpy(grown + all.n, ids->data, ids->n * sizeof *grown);
    all = (lt_ids){.data = grown, .n = all.n + ids->n, .room = all.n + ids->n};
    lt_ids_free(ids);
    *ids = all;
    return true;
}

static bool prepare(lt_reply *j, lt_api_error *e) {
    lt_api_params *a = &j->params;
    const int top = !json_is_true(a->logprobs) ? -1
                    : a->top_logprobs > 0      ? (int)a->top_logprobs
                                               : 0;
    lt_ids ids = {0};

    a->return_ids = !is_chat(j); /* Needed for the context. */
    a->reasoning_format = a->raw ? "none" : NULL;
    if (!lt_reply_configure(j, a->max_tokens, top, e) || !lt_chat_output_prepare(j, e)) {
        return false;
    }
    if (lt_infill_is_asked(a)) {
        return add_infill(j, e);
    }
    if (!encode_prompt(j, &ids, e) || !add_context(j, &ids, e)) {
        lt_ids_free(&ids);
        return false;
    }
    return lt_chat_output_add(j, &ids, e);
}

void lt_ollama_answer_loaded(lt_call *call, const char *model, bool chat, const char *reason) {
    lt_json_out o = {0};
    lt_out_open(&o, '{');
    lt_out_key_str(&o, "model", model);
    lt_out_key(&o, "created_at");
    lt_ollama_when(&o, lt_clock_unix_s());
    if (chat) {
        lt_out_key_open(&o, "message", '{');
        lt_out_key_str(&o, "role", "assistant");
        lt_out_key_str(&o, "content", "");
        lt_out_shut(&o, '}');
    } else {
        lt_out_key_str(&o, "response", "");
    }
    lt_out_key_bool(&o, "done", true);
    lt_out_key_str(&o, "done_reason", reason);
    lt_out_shut(&o, '}');
    lt_call_json(call, 200, &o);
}

static void answer(lt_call *call, bool chat) {
    lt_api_error e = {0};
    lt_api_params a;
    lt_reply *j;
    double keep_s = -1;
    bool ok = read_ask(&a, call, chat, &e);
    const json_t *keep = json_object_get(a.root, "keep_alive");

    ok = ok && (keep == NULL || json_is_null(keep) || lt_ollama_keep_alive(keep, &keep_s, &e));
    if (ok && (chat ? json_array_size(a.messages) == 0 : json_string_length(a.prompt) == 0)) {
        /* A server with one model keeps it loaded, but its client does not need it any more. */
        lt_ollama_answer_loaded(call, a.model, chat, keep_s == 0 ? "unload" : "load");
        lt_api_params_free(&a);
        return;
    }
    if (!ok || !(chat ? read_messages(&a, &e) : read_prompt(&a, call->server, &e))) {
        lt_call_error(call, &e);
        lt_api_params_free(&a);
        return;
    }
    j = lt_reply_open(call, &formatter, &a, "ollama-");
    if (j == NULL) {
        return;
    }
    j->lines = true;
    if (!prepare(j, &e)) {
        lt_reply_refuse(call, j, &e);
        return;
    }
    lt_reply_start(call, j);
}

void lt_api_ollama_chat(lt_call *call) {
    answer(call, true);
}

void lt_api_ollama_generate(lt_call *call) {
    answer(call, false);
}
