/* messages.c: /v1/messages and /v1/messages/count_tokens: Anthropic's format for the same
 * conversation as chat. The answer is limited by max_tokens and by the space left in the
 * context. */
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "serve/api/formats/conversation.h"
#include "serve/api/formats/messages.h"
#include "serve/api/route.h"
#include "serve/api/formats/tools_convert.h"

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
    LT_JSON("cache_control", cache_control),
    LT_NOTHING("inference_geo"),
    LT_NOTHING("user_profile_id"),
    LT_NOTHING("workspace_id"),
    LT_REFUSED("alignment", "its answers come from /v1/chat/completions and "
                            "/v1/completions"),
    LT_REFUSED("reasoning", "reasoning is controlled in /v1/chat/completions; "
                            "'thinking' has a budget"),
    LT_REFUSED("diagnostics", "there are none"),
    LT_REFUSED("container", "there are no containers"),
    LT_JSON("context_management", context_management),
    LT_JSON("thread", thread),
    LT_REFUSED("compaction", "conversations are not summarised here"),
    LT_NOTHING("billing_policy"),        /* Nothing is billed, ... */
    LT_NOTHING("fallbacks"),             /* ... nothing is declined, ... */
    LT_NOTHING("fallback_credit_token"), /* ... so this token does not exist. */
    LT_JSON("output_format", response_format),
    LT_JSON("output_config", text),
    LT_ONLY("speed", "\"standard\""),
    LT_ONLY("mcp_servers", "[]")};
const lt_field_table lt_fields_messages = LT_FIELD_TABLE(fields, "messages");

/* ---- The request ---- */

/* {type: ephemeral, ttl: 5m or 1h}: the prompt is kept in the prefix cache. */
static bool read_cache_control(lt_api_params *a, const json_t *control, lt_api_error *e) {
    const char *type = json_string_value(json_object_get(control, "type"));
    const json_t *ttl = json_object_get(control, "ttl");
    const char *how = ttl != NULL && !json_is_null(ttl) ? json_string_value(ttl) : "5m";
    double keep_s;
    if (control == NULL || json_is_null(control)) {
        return true;
    }
    if (type == NULL || strcmp(type, "ephemeral") != 0 || how == NULL ||
        (strcmp(how, "5m") != 0 && strcmp(how, "1h") != 0)) {
        return lt_api_refuse(e, "cache_control",
                             "'cache_control' is {\"type\": \"ephemeral\"}, with a 'ttl' of \"5m\" "
                             "or \"1h\"");
    }
    keep_s = strcmp(how, "1h") == 0 ? 3600.0 : 300.0;
    a->keep_s = keep_s > a->keep_s ? keep_s : a->keep_s;
    return true;
}

/* The controls of tools, texts of the system, or blocks of content. */
static bool read_block_controls(lt_api_params *a, const json_t *blocks, lt_api_error *e) {
    for (size_t i = 0; json_is_array(blocks) && i < json_array_size(blocks); i++) {
        if (!read_cache_control(a, json_object_get(json_array_get(blocks, i), "cache_control"),
                                e)) {
            return false;
        }
    }
    return true;
}

/* A control anywhere in a request applies to its whole prompt. */
static bool read_cache_controls(lt_api_params *a, lt_api_error *e) {
    if (!read_cache_control(a, a->cache_control, e) || !read_block_controls(a, a->tools, e) ||
        !read_block_controls(a, a->system, e)) {
        return false;
    }
    for (size_t i = 0; i < json_array_size(a->messages); i++) {
        const json_t *message = json_array_get(a->messages, i);
        if (!read_block_controls(a, json_object_get(message, "content"), e)) {
            return false;
        }
    }
    return true;
}

/* {type: enabled, budget_tokens: n}, {type: disabled}, {type: adaptive}. */
static bool read_thinking(lt_api_params *a, bool *omitted, lt_api_error *e) {
    const json_t *shown = json_object_get(a->thinking, "display");
    const char *display = json_string_value(shown);
    const char *type = json_string_value(json_object_get(a->thinking, "type"));
    const json_t *budget = json_object_get(a->thinking, "budget_tokens");

    if (a->thinking == NULL) {
        return true;
    }
    *omitted = display != NULL && strcmp(display, "omitted") == 0;
    if (shown != NULL && !json_is_null(shown) && !*omitted &&
        (display == NULL || strcmp(display, "summarized") != 0)) {
        return lt_api_refuse(e, "thinking",
                             "'thinking.display' = %.40s; it may be summarized or omitted",
                             display != NULL ? display : "no string");
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
static bool read_output(lt_api_params *a, lt_api_error *e) {
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
    if (format != NULL && !json_is_null(format)) {
        a->response_format = format;
    }
    a->format_name = "output_config.format";
    if (effort != NULL && !json_is_null(effort) && !json_is_string(effort)) {
        return lt_api_refuse(e, "output_config", "'output_config.effort' must be a string");
    }
    if (json_is_string(effort) && a->reasoning_effort == NULL) {
        a->reasoning_effort = json_string_value(effort);
    }
    return true;
}

/* Convert Anthropic's tool_choice to OpenAI's: a new value, NULL if none is given. */
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

/* Count the tokens of the prompt of Anthropic's messages. */
static bool count(lt_server *s, const lt_api_params *a, const json_t *messages, int64_t *n) {
    lt_api_error e = {0};
    lt_ids ids = {0};
    json_t *converted = lt_convert_anthropic(s->part_gap, a->system, messages, &e);
    const lt_conversation c = {
        .messages = converted, .kwargs = a->template_kwargs, .add_generation_prompt = true};
    const bool ok = converted != NULL && lt_conversation_ids(s, &c, &ids, NULL, &e);
    *n = (int64_t)ids.n;
    lt_ids_free(&ids);
    json_decref(converted);
    return ok;
}

/* Apply context_management; the tokens saved are the difference of the prompts without and with
 * it. */
static bool edited(lt_api_params *a, lt_call *call, lt_messages *st, lt_api_error *e) {
    const json_t *whole = a->messages;
    int64_t before = 0, after = 0;
    if (!lt_messages_edit(a, st, e)) {
        return false;
    }
    if (st->cleared_turns > 0 && count(call->server, a, whole, &before) &&
        count(call->server, a, a->messages, &after)) {
        st->cleared_tokens = before - after;
    }
    return true;
}

/* Read the body and convert it to OpenAI's terms; the converted trees belong to the root of the
 * parameters. */
static bool read_ask(lt_api_params *a, lt_call *call, lt_messages *st, bool counting,
                     lt_api_error *e) {
    json_t *messages, *tools, *choice = NULL;
    lt_server_ask(call->server, a);
    a->max_tokens = -1; /* Anthropic requires it in every request. */
    if (!lt_call_read(call, a, fields, sizeof fields / sizeof *fields, e)) {
        return false;
    }
    if (a->max_tokens < 0 && !counting) {
        return lt_api_refuse(e, "max_tokens", "'max_tokens' is missing");
    }
    if (!lt_messages_thread(a, call, st, e) || !lt_messages_open_thinking(a, call, e)) {
        return false;
    }
    json_object_set(a->root, "asked_messages", (json_t *)(uintptr_t)st->own);
    json_object_set(a->root, "asked_tools", json_object_get(a->root, "tools"));
    if (!edited(a, call, st, e) || !read_cache_controls(a, e)) {
        return false;
    }
    messages = lt_convert_anthropic(call->server->part_gap, a->system, a->messages, e);
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
    if (!convert_choice(a->tool_choice, &choice, &a->parallel_tools, e) ||
        !read_thinking(a, &st->omitted, e) || !read_output(a, e)) {
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

static bool prompt_ids(lt_server *s, const lt_api_params *a, lt_ids *ids, bool *opened,
                       lt_api_error *e) {
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
    const int64_t most = j->params.max_tokens < context ? j->params.max_tokens : context;
    lt_ids ids = {0};
    return lt_server_check_model(j->server, &j->params, e) && lt_reply_configure(j, most, -1, e) &&
           lt_chat_output_prepare(j, e) &&
           prompt_ids(j->server, &j->params, &ids, &j->listen.opened, e) &&
           lt_chat_output_add(j, &ids, e);
}

void lt_api_messages(lt_call *call) {
    lt_api_error e = {0};
    lt_api_params a;
    lt_reply *j = NULL;
    lt_messages *st = calloc(1, sizeof *st);

    lt_api_params_defaults(&a);
    if (st == NULL ? !lt_api_refuse_oom(&e) : !read_ask(&a, call, st, false, &e)) {
        lt_call_error(call, &e);
        lt_api_params_free(&a);
    } else {
        j = lt_reply_open(call, &lt_messages_formatter, &a, "msg_");
    }
    if (j == NULL) {
        if (st != NULL) {
            lt_store_release(call->server->store, st->previous);
        }
        free(st);
        return;
    }
    j->format_state = st;
    if (!prepare(j, &e)) {
        lt_reply_refuse(call, j, &e);
        return;
    }
    lt_reply_start(call, j);
}

void lt_api_count_tokens(lt_call *call) {
    lt_api_error e = {0};
    lt_json_out o = {0};
    lt_messages st = {0};
    lt_listen listen = {0};
    lt_ids ids = {0};
    lt_api_params a;

    if (!read_ask(&a, call, &st, true, &e) || !lt_server_check_model(call->server, &a, &e) ||
        !lt_chat_output_tools(&a, &listen, &e) || !prompt_ids(call->server, &a, &ids, NULL, &e)) {
        lt_call_error(call, &e);
    } else {
        lt_out_open(&o, '{');
        lt_out_key_int(&o, "input_tokens", (int64_t)ids.n);
        if (st.edits) {
            lt_out_key_open(&o, "context_management", '{');
            lt_out_key_int(&o, "original_input_tokens", (int64_t)ids.n + st.cleared_tokens);
            lt_out_shut(&o, '}');
        }
        lt_out_shut(&o, '}');
        lt_call_json(call, 200, &o);
    }
    lt_store_release(call->server->store, st.previous);
    lt_ids_free(&ids);
    lt_api_params_free(&a);
}
