/* conversation_tools.c: tools for chat templates without support for them. The list of tools goes
 * into the system message, calls into the assistant's text in the notation of a plain format
 * (parse.h), and results into user messages. Without this the model would not see the tools at
 * all. */
#include <string.h>

#include "serve/api/formats/conversation.h"

static const char lead[] =
    "You can call functions. To call one, answer with nothing but a JSON object: {\"name\": NAME, "
    "\"arguments\": {...}}. Its result comes in the next message. The functions, with the JSON "
    "schemas of their parameters:\n";

static const char *text_of(const json_t *object, const char *key) {
    const char *text = json_string_value(json_object_get(object, key));
    return text != NULL ? text : "";
}

static void set_content(json_t *message, const lt_json_out *text) {
    json_object_set_new(message, "content",
                        json_stringn(text->data != NULL ? text->data : "", text->n));
}

/* One line per function. */
static void put_functions(lt_json_out *out, const json_t *tools) {
    size_t i;
    json_t *tool;
    lt_out_raw(out, lead, sizeof lead - 1);
    json_array_foreach(tools, i, tool) {
        out->comma = false;
        lt_out_value(out, json_object_get(tool, "function"));
        lt_out_raw(out, "\n", 1);
    }
}

/* Append {"name": ..., "arguments": ...} to the text of the message. */
static void spell_calls(json_t *message) {
    lt_json_out text = {0};
    const char *said = text_of(message, "content");
    size_t i;
    json_t *call;
    lt_out_raw(&text, said, strlen(said));
    json_array_foreach(json_object_get(message, "tool_calls"), i, call) {
        const json_t *f = json_object_get(call, "function");
        lt_out_rawf(&text, "%s", text.n > 0 ? "\n" : "");
        text.comma = false;
        lt_out_open(&text, '{');
        lt_out_key_str(&text, "name", text_of(f, "name"));
        lt_out_key_value(&text, "arguments", json_object_get(f, "arguments"));
        lt_out_shut(&text, '}');
    }
    set_content(message, &text);
    json_object_del(message, "tool_calls");
    lt_out_free(&text);
}

static void spell_result(json_t *message) {
    lt_json_out text = {0};
    const char *content = text_of(message, "content");
    lt_out_rawf(&text, "Result of the function: ");
    lt_out_raw(&text, content, strlen(content));
    set_content(message, &text);
    json_object_set_new(message, "role", json_string("user"));
    json_object_del(message, "tool_call_id");
    lt_out_free(&text);
}

/* Append the text to the leading system message, or add one. */
static void tell_system(json_t *messages, const char *text, size_t n) {
    lt_json_out system = {0};
    json_t *first = json_array_get(messages, 0);
    if (strcmp(text_of(first, "role"), "system") == 0) {
        const char *said = text_of(first, "content");
        lt_out_raw(&system, said, strlen(said));
        lt_out_raw(&system, "\n\n", 2);
    } else {
        first = json_pack("{s:s}", "role", "system");
        json_array_insert_new(messages, 0, first);
    }
    lt_out_raw(&system, text, n);
    set_content(first, &system);
    lt_out_free(&system);
}

void lt_conversation_steer(json_t *messages, const char *verbosity) {
    static const char low[] = "Answer briefly.", high[] = "Answer in detail.";
    if (strcmp(verbosity, "low") == 0) {
        tell_system(messages, low, sizeof low - 1);
    } else if (strcmp(verbosity, "high") == 0) {
        tell_system(messages, high, sizeof high - 1);
    }
}

void lt_conversation_teach(json_t *messages, const json_t *tools) {
    lt_json_out told = {0};
    json_t *message;
    size_t i;

    json_array_foreach(messages, i, message) {
        if (json_object_get(message, "tool_calls") != NULL) {
            spell_calls(message);
        } else if (strcmp(text_of(message, "role"), "tool") == 0) {
            spell_result(message);
        }
    }
    if (json_array_size(tools) > 0) {
        put_functions(&told, tools);
        tell_system(messages, told.data, told.n);
        lt_out_free(&told);
    }
}
