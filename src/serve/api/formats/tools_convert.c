/* tools_convert.c: see tools_convert.h. */
#include "serve/api/formats/tools_convert.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "base/error.h"
#include "serve/api/formats/conversation.h"

static const char *str(const json_t *object, const char *key) {
    return json_string_value(json_object_get(object, key));
}

static bool is(const char *text, const char *what) {
    return text != NULL && strcmp(text, what) == 0;
}

static bool add_message(json_t *list, const char *role, json_t *content) {
    return content != NULL && json_array_append_new(list, json_pack("{s:s, s:o}", "role", role,
                                                                    "content", content)) == 0;
}

/* {id, type: function, function: {name, arguments}} */
static json_t *call_of(const char *id, const char *name, json_t *arguments) {
    return json_pack("{s:s, s:s, s:{s:s, s:o}}", "id", id != NULL ? id : "", "type", "function",
                     "function", "name", name != NULL ? name : "", "arguments",
                     arguments != NULL ? arguments : json_object());
}

/* {type: function, function: {name, description, parameters}} */
static json_t *tool_of(const json_t *tool, const char *schema_key) {
    json_t *f = json_object(), *schema = json_object_get(tool, schema_key);
    json_object_set(f, "name", json_object_get(tool, "name"));
    if (json_object_get(tool, "description") != NULL) {
        json_object_set(f, "description", json_object_get(tool, "description"));
    }
    if (json_is_boolean(json_object_get(tool, "strict"))) {
        json_object_set(f, "strict", json_object_get(tool, "strict"));
    }
    if (schema != NULL) {
        json_object_set(f, "parameters", schema);
    } else {
        json_object_set_new(f, "parameters",
                            json_pack("{s:s, s:{}}", "type", "object", "properties"));
    }
    return json_pack("{s:s, s:o}", "type", "function", "function", f);
}

static json_t *convert_tools(const json_t *tools, const char *schema_key, const char *refused_but,
                             lt_api_error *e) {
    json_t *list;
    if (tools == NULL) {
        return NULL;
    }
    if (!json_is_array(tools)) {
        lt_api_refuse(e, "tools", "'tools' must be a list");
        return NULL;
    }
    list = json_array();
    for (size_t i = 0; i < json_array_size(tools); i++) {
        const json_t *tool = json_array_get(tools, i);
        const char *type = str(tool, "type");
        if (str(tool, "name") == NULL || (type != NULL && strcmp(type, refused_but) != 0)) {
            lt_api_refuse(e, "tools",
                          "'tools[%zu]': only tools of type %s with a name are supported "
                          "here, not %.40s",
                          i, refused_but, type != NULL ? type : "one without a name");
            json_decref(list);
            return NULL;
        }
        json_array_append_new(list, tool_of(tool, schema_key));
    }
    return list;
}

/* As in Anthropic's API, so that tokens are counted only for requests that would be answered. */
static bool unique_names(const json_t *tools, lt_api_error *e) {
    json_t *places = json_object();
    bool unique = places != NULL || lt_api_refuse_oom(e);
    for (size_t i = 0; unique && i < json_array_size(tools); i++) {
        const char *name = str(json_array_get(tools, i), "name");
        const json_t *before = json_object_get(places, name);
        if (before != NULL) {
            unique = lt_api_refuse(e, "tools",
                                   "'tools[%lld]' and 'tools[%zu]' have the same name, %.80s",
                                   (long long)json_integer_value(before), i, name);
        } else {
            json_object_set_new(places, name, json_integer((json_int_t)i));
        }
    }
    json_decref(places);
    return unique;
}

json_t *lt_convert_anthropic_tools(const json_t *tools, lt_api_error *e) {
    json_t *list = convert_tools(tools, "input_schema", "custom", e);
    if (list != NULL && !unique_names(tools, e)) {
        json_decref(list);
        return NULL;
    }
    return list;
}

json_t *lt_convert_responses_tools(const json_t *tools, lt_api_error *e) {
    return convert_tools(tools, "parameters", "function", e);
}

/* ---- Anthropic ---- */

/* The content of a tool_result block. Templates know no is_error, so that the text of a failed call
 * begins with "Error: ", unless it says "error" first by itself. */
static json_t *result_text(const json_t *block, const char *gap, const char *where,
                           lt_api_error *e) {
    static const char word[] = "error";
    const json_t *failed = json_object_get(block, "is_error");
    json_t *content, *marked;
    const char *text;
    if (failed != NULL && !json_is_null(failed) && !json_is_boolean(failed)) {
        lt_api_refuse(e, where, "'%s': is_error must be true or false", where);
        return NULL;
    }
    content = lt_content_text(json_object_get(block, "content"), gap, where, e);
    text = json_string_value(content);
    if (!json_is_true(failed) || text == NULL ||
        strncasecmp(text + strspn(text, " \n\r\t<"), word, sizeof word - 1) == 0) {
        return content;
    }
    marked = json_sprintf("Error: %s", text);
    json_decref(content);
    if (marked == NULL) {
        lt_api_refuse_oom(e);
    }
    return marked;
}

/* One block of an assistant's or a user's message. text, reasoning and calls are collected for the
 * message; results become separate messages. */
static bool take_block(json_t *list, const json_t *block, const char *gap, lt_json_out *text,
                       lt_json_out *reasoning, json_t *calls, const char *where, lt_api_error *e) {
    const char *type = str(block, "type");
    if (is(type, "text")) {
        const json_t *t = json_object_get(block, "text");
        if (!json_is_string(t)) {
            return lt_api_refuse(e, where, "'%s': a block of type text has no text", where);
        }
        lt_out_raw(text, gap, text->n > 0 ? strlen(gap) : 0);
        lt_out_raw(text, json_string_value(t), json_string_length(t));
        return true;
    }
    if (is(type, "thinking")) {
        const json_t *t = json_object_get(block, "thinking");
        lt_out_raw(reasoning, json_is_string(t) ? json_string_value(t) : "", json_string_length(t));
        return true;
    }
    if (is(type, "redacted_thinking")) {
        return true;
    }
    if (is(type, "tool_use")) {
        json_t *input = json_object_get(block, "input");
        if (str(block, "name") == NULL || !json_is_object(input)) {
            return lt_api_refuse(e, where,
                                 "'%s': a block of type tool_use needs a name and an input, an "
                                 "object",
                                 where);
        }
        return json_array_append_new(
                   calls, call_of(str(block, "id"), str(block, "name"), json_incref(input))) == 0;
    }
    if (is(type, "tool_result")) {
        json_t *content = result_text(block, gap, where, e);
        const char *id = str(block, "tool_use_id");
        return content != NULL &&
               json_array_append_new(list,
                                     json_pack("{s:s, s:s, s:o}", "role", "tool", "tool_call_id",
                                               id != NULL ? id : "", "content", content)) == 0;
    }
    return lt_api_refuse(e, where, "'%s': a block of type %.40s is not supported here", where,
                         type != NULL ? type : "?");
}

static bool take_blocks(json_t *list, const char *role, const json_t *blocks, const char *gap,
                        const char *where, lt_api_error *e) {
    lt_json_out text = {0}, reasoning = {0};
    json_t *calls = json_array(), *message;
    const size_t before = json_array_size(list);
    bool ok = true;

    lt_out_raw(&text, "", 0);
    for (size_t i = 0; ok && i < json_array_size(blocks); i++) {
        ok = take_block(list, json_array_get(blocks, i), gap, &text, &reasoning, calls, where, e);
    }
    if (ok && (text.n > 0 || json_array_size(calls) > 0 || strcmp(role, "assistant") == 0)) {
        message = json_pack("{s:s, s:s%}", "role", role, "content", text.data, text.n);
        if (reasoning.n > 0) {
            json_object_set_new(message, "reasoning_content",
                                json_stringn(reasoning.data, reasoning.n));
        }
        if (json_array_size(calls) > 0) {
            json_object_set(message, "tool_calls", calls);
        }
        ok = json_array_append_new(list, message) == 0;
    }
    if (ok && json_array_size(list) == before) {
        ok = lt_api_refuse(e, where, "'%s' has no content", where);
    }
    json_decref(calls);
    lt_out_free(&text);
    lt_out_free(&reasoning);
    return ok;
}

json_t *lt_convert_anthropic(const char *part_gap, const json_t *system, const json_t *messages,
                             lt_api_error *e) {
    json_t *list = json_array();
    bool ok = true;

    if (system != NULL) {
        ok = add_message(list, "system",
                         lt_content_text(system, lt_content_gap(part_gap, "system"), "system", e));
    }
    if (ok && (!json_is_array(messages) || json_array_size(messages) == 0)) {
        ok = lt_api_refuse(e, "messages", "'messages' must be a list of at least one message");
    }
    for (size_t i = 0; ok && i < json_array_size(messages); i++) {
        const json_t *m = json_array_get(messages, i), *content = json_object_get(m, "content");
        const char *role = str(m, "role");
        char where[48];
        snprintf(where, sizeof where, "messages[%zu]", i);
        if (!is(role, "user") && !is(role, "assistant") && !is(role, "system")) {
            ok = lt_api_refuse(e, where, "'%s.role' must be user or assistant", where);
        } else if (json_is_array(content)) {
            ok = take_blocks(list, role, content, lt_content_gap(part_gap, role), where, e);
        } else if (json_is_string(content)) {
            ok = add_message(list, role, json_incref((json_t *)content));
        } else {
            ok = lt_api_refuse(e, where, "'%s.content' must be a string or a list of blocks",
                               where);
        }
    }
    if (!ok) {
        json_decref(list);
        return NULL;
    }
    return list;
}

/* ---- Responses ---- */

/* A call is added to the assistant's last message, or begins one. */
static bool add_call(json_t *list, json_t *call) {
    json_t *last = json_array_get(list, json_array_size(list) - 1);
    json_t *calls;
    if (!is(str(last, "role"), "assistant")) {
        add_message(list, "assistant", json_string(""));
        last = json_array_get(list, json_array_size(list) - 1);
    }
    calls = json_object_get(last, "tool_calls");
    if (calls == NULL) {
        calls = json_array();
        json_object_set_new(last, "tool_calls", calls);
    }
    return json_array_append_new(calls, call) == 0;
}

/* The text of a reasoning item: its content, or else its summary. */
static void gather_reasoning(const json_t *item, lt_json_out *out) {
    static const char *const places[] = {"content", "summary"};
    for (int i = 0; i < 2 && out->n == 0; i++) {
        const json_t *parts = json_object_get(item, places[i]);
        for (size_t k = 0; k < json_array_size(parts); k++) {
            const json_t *text = json_object_get(json_array_get(parts, k), "text");
            lt_out_raw(out, json_is_string(text) ? json_string_value(text) : "",
                       json_string_length(text));
        }
    }
}

/* Reasoning begins an assistant's message, which text or calls may follow; templates choose which
 * parts of earlier turns the model reads again. */
static bool add_reasoning(json_t *list, const json_t *item) {
    lt_json_out text = {0};
    json_t *message;
    bool ok = true;
    gather_reasoning(item, &text);
    if (text.n > 0) {
        message = json_pack("{s:s, s:s, s:s%}", "role", "assistant", "content", "",
                            "reasoning_content", text.data, text.n);
        ok = message != NULL && json_array_append_new(list, message) == 0;
    }
    lt_out_free(&text);
    return ok;
}

/* The last message, if it has only reasoning, without text or calls; else NULL. */
static json_t *only_thought(const json_t *list) {
    json_t *last = json_array_get(list, json_array_size(list) - 1);
    return json_object_get(last, "reasoning_content") != NULL &&
                   json_object_get(last, "tool_calls") == NULL &&
                   json_string_length(json_object_get(last, "content")) == 0
               ? last
               : NULL;
}

/* A message is joined with the reasoning before it; reasoning without a message is dropped. */
static bool add_said(json_t *list, const char *role, json_t *content) {
    json_t *thought = only_thought(list);
    if (thought != NULL && strcmp(role, "assistant") == 0) {
        return content != NULL && json_object_set_new(thought, "content", content) == 0;
    }
    if (thought != NULL) {
        json_array_remove(list, json_array_size(list) - 1);
    }
    return add_message(list, role, content);
}

static bool take_item(const char *part_gap, json_t *list, const json_t *item, const char *where,
                      lt_api_error *e) {
    const char *type = str(item, "type"), *role = str(item, "role");

    if (is(type, "function_call")) {
        json_t *arguments = json_object_get(item, "arguments");
        if (str(item, "name") == NULL || !json_is_string(arguments)) {
            return lt_api_refuse(
                e, where, "'%s': a function_call needs a name and arguments, a string", where);
        }
        return add_call(list,
                        call_of(str(item, "call_id"), str(item, "name"), json_incref(arguments)));
    }
    if (is(type, "function_call_output")) {
        json_t *output = lt_content_text(json_object_get(item, "output"),
                                         lt_content_gap(part_gap, "tool"), where, e);
        const char *id = str(item, "call_id");
        return output != NULL &&
               json_array_append_new(list,
                                     json_pack("{s:s, s:s, s:o}", "role", "tool", "tool_call_id",
                                               id != NULL ? id : "", "content", output)) == 0;
    }
    if (is(type, "reasoning")) {
        return add_reasoning(list, item);
    }
    if ((type == NULL || is(type, "message")) && role != NULL) {
        return add_said(list, role,
                        lt_content_text(json_object_get(item, "content"),
                                        lt_content_gap(part_gap, role), where, e));
    }
    return lt_api_refuse(e, where, "'%s': an item of type %.40s is not supported here", where,
                         type != NULL ? type : "?");
}

json_t *lt_convert_responses(const char *part_gap, const char *instructions, const json_t *items,
                             lt_api_error *e) {
    json_t *list = json_array();
    bool ok = true;

    if (instructions != NULL) {
        ok = add_message(list, "system", json_string(instructions));
    }
    for (size_t i = 0; ok && i < json_array_size(items); i++) {
        char where[48];
        snprintf(where, sizeof where, "input[%zu]", i);
        ok = take_item(part_gap, list, json_array_get(items, i), where, e);
    }
    if (ok && only_thought(list) != NULL) {
        json_array_remove(list, json_array_size(list) - 1);
    }
    if (!ok) {
        json_decref(list);
        return NULL;
    }
    return list;
}
