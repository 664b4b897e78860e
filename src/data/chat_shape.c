/* chat_shape.c: see chat_shape.h. */
#include "data/chat_shape.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"

static bool given(const json_t *line, const char *name) {
    const json_t *value = json_object_get(line, name);
    return value != NULL && !json_is_null(value);
}

/* A string member; NULL if it is absent. Strings stay JSON, because they may contain U+0000. */
static lt_err text_of(const json_t *line, const char *name, const json_t **out) {
    *out = given(line, name) ? json_object_get(line, name) : NULL;
    if (*out != NULL && !json_is_string(*out)) {
        LT_FAIL(LT_ERR_FORMAT, "'%s' is not a string", name);
    }
    return LT_OK;
}

static lt_err say(json_t *out, const char *role, const json_t *content) {
    json_t *message = json_pack("{s:s, s:O}", "role", role, "content", content);
    if (message == NULL || json_array_append_new(out, message) != 0) {
        LT_FAIL(LT_ERR_OOM, "messages of a line");
    }
    return LT_OK;
}

/* ---- ShareGPT ---- */

static const char *role_of(const char *from) {
    static const struct {
        const char *from, *role;
    } roles[] = {{"human", "user"},
                 {"user", "user"},
                 {"gpt", "assistant"},
                 {"assistant", "assistant"},
                 {"model", "assistant"},
                 {"chatgpt", "assistant"},
                 {"bing", "assistant"},
                 {"bard", "assistant"},
                 {"system", "system"},
                 {"developer", "developer"},
                 {"observation", "tool"},
                 {"function_response", "tool"},
                 {"tool", "tool"},
                 {"function_call", "function_call"},
                 {"tool_call", "function_call"}};
    for (size_t i = 0; i < sizeof roles / sizeof *roles; i++) {
        if (strcmp(roles[i].from, from) == 0) {
            return roles[i].role;
        }
    }
    return NULL;
}

/* A call, {"name", "arguments"} as JSON text, or a list of several, is an answer that consists of
 * tool calls. */
static lt_err say_call(json_t *out, const char *text, size_t at) {
    lt_err err = LT_OK;
    json_t *calls = json_loads(text, 0, NULL), *list = json_array(), *message = NULL;
    const size_t n = json_is_array(calls) ? json_array_size(calls) : 1;

    for (size_t i = 0; i < n; i++) {
        json_t *call = json_is_array(calls) ? json_array_get(calls, i) : calls;
        if (!json_is_object(call) || !json_is_string(json_object_get(call, "name"))) {
            LT_FAIL_DONE(LT_ERR_FORMAT,
                         "'conversations'[%zu]: a function call is JSON text {\"name\", "
                         "\"arguments\"}",
                         at);
        }
        if (json_array_append_new(
                list, json_pack("{s:s, s:O}", "type", "function", "function", call)) != 0) {
            LT_FAIL_DONE(LT_ERR_OOM, "messages of a line");
        }
    }
    message = json_pack("{s:s, s:s, s:O}", "role", "assistant", "content", "", "tool_calls", list);
    if (message == NULL || json_array_append(out, message) != 0) {
        LT_FAIL_DONE(LT_ERR_OOM, "messages of a line");
    }
done:
    json_decref(message);
    json_decref(list);
    json_decref(calls);
    return err;
}

static lt_err from_sharegpt(const json_t *line, json_t *out) {
    const json_t *list = json_object_get(line, "conversations");
    json_t *turn;
    size_t i;
    if (!json_is_array(list)) {
        LT_FAIL(LT_ERR_FORMAT, "'conversations' is not a list");
    }
    json_array_foreach(list, i, turn) {
        const char *from = json_string_value(json_object_get(turn, "from"));
        const json_t *value = json_object_get(turn, "value");
        const char *role = from != NULL ? role_of(from) : NULL;
        if (from == NULL && json_is_string(json_object_get(turn, "role"))) {
            if (json_array_append(out, turn) != 0) { /* OpenAI's messages, but in this member. */
                LT_FAIL(LT_ERR_OOM, "messages of a line");
            }
            continue;
        }
        if (role == NULL || !json_is_string(value)) {
            LT_FAIL(LT_ERR_FORMAT, "'conversations'[%zu]: %s%s%s", i,
                    from == NULL   ? "no member 'from'"
                    : role == NULL ? "unknown speaker '"
                                   : "'value' is not a string",
                    role == NULL && from != NULL ? from : "",
                    role == NULL && from != NULL ? "'" : "");
        }
        LT_TRY(strcmp(role, "function_call") == 0 ? say_call(out, json_string_value(value), i)
                                                  : say(out, role, value));
    }
    return LT_OK;
}

/* ---- Prompt and completion ---- */

/* The messages of the prompt are context: their weight is 0, even that of answers. */
static lt_err add_side(const json_t *line, const char *name, const char *role, bool learnt,
                       json_t *out) {
    const json_t *side = json_object_get(line, name);
    json_t *message;
    size_t i;
    if (json_is_string(side)) {
        return say(out, role, side);
    }
    if (!json_is_array(side)) {
        LT_FAIL(LT_ERR_FORMAT, "'%s' is neither a string nor a list of messages", name);
    }
    json_array_foreach(side, i, message) {
        json_t *copy = json_copy(message);
        if (copy == NULL ||
            (!learnt && json_is_object(copy) &&
             json_object_set_new(copy, "weight", json_integer(0)) != 0) ||
            json_array_append(out, copy) != 0) {
            json_decref(copy);
            LT_FAIL(LT_ERR_OOM, "messages of a line");
        }
        json_decref(copy);
    }
    return LT_OK;
}

static lt_err from_completion(const json_t *line, json_t *out) {
    LT_TRY(add_side(line, "prompt", "user", false, out));
    return add_side(line, "completion", "assistant", true, out);
}

/* ---- Alpaca ---- */

static lt_err add_history(const json_t *line, json_t *out) {
    const json_t *history = json_object_get(line, "history"), *pair;
    size_t i;
    if (given(line, "history") && !json_is_array(history)) {
        LT_FAIL(LT_ERR_FORMAT, "'history' is not a list");
    }
    json_array_foreach(history, i, pair) {
        if (json_array_size(pair) != 2 || !json_is_string(json_array_get(pair, 0)) ||
            !json_is_string(json_array_get(pair, 1))) {
            LT_FAIL(LT_ERR_FORMAT, "'history'[%zu] is not a list of a question and an answer", i);
        }
        LT_TRY(say(out, "user", json_array_get(pair, 0)));
        LT_TRY(say(out, "assistant", json_array_get(pair, 1)));
    }
    return LT_OK;
}

/* An instruction, a line break and its input; or, if one of the two is empty, the other alone. */
static json_t *join(const json_t *instruction, const json_t *input) {
    const size_t a = json_string_length(instruction), b = json_string_length(input),
                 line_break = a > 0 && b > 0;
    char *text = malloc(a + line_break + b + 1);
    json_t *joined = NULL;
    if (text != NULL) {
        memcpy(text, a > 0 ? json_string_value(instruction) : "", a);
        memset(text + a, '\n', line_break);
        memcpy(text + a + line_break, b > 0 ? json_string_value(input) : "", b);
        joined = json_stringn(text, a + line_break + b);
    }
    free(text);
    return joined;
}

static lt_err from_alpaca(const json_t *line, json_t *out) {
    const json_t *instruction, *input, *answer;
    json_t *question;
    lt_err err;
    LT_TRY(text_of(line, "instruction", &instruction));
    LT_TRY(text_of(line, "input", &input));
    LT_TRY(text_of(line, "output", &answer));
    if (answer == NULL) {
        LT_FAIL(LT_ERR_NOT_FOUND, "no member 'output' beside 'instruction'");
    }
    LT_TRY(add_history(line, out));
    question = join(instruction, input);
    err = question != NULL ? say(out, "user", question)
                           : lt_error_set(LT_ERR_OOM, "messages of a line");
    json_decref(question);
    LT_TRY(err);
    return say(out, "assistant", answer);
}

/* ---- The table ---- */

static const struct {
    const char *member, *with; /* Members that a line of this shape has. */
    lt_err (*messages)(const json_t *line, json_t *out);
} shapes[] = {
    {"conversations", NULL, from_sharegpt},
    {"prompt", "completion", from_completion},
    {"instruction", NULL, from_alpaca},
};

lt_err lt_chat_shape_system(const json_t *line, json_t *messages) {
    const json_t *first = json_array_get(messages, 0), *text;
    const char *role = json_string_value(json_object_get(first, "role"));
    json_t *message;
    LT_TRY(text_of(line, "system", &text));
    if (json_string_length(text) == 0) {
        return LT_OK;
    }
    if (role != NULL && strcmp(role, "system") == 0) {
        if (json_equal(json_object_get(first, "content"), text)) {
            return LT_OK;
        }
        LT_FAIL(LT_ERR_FORMAT, "'system' is another text than the system message of the line");
    }
    message = json_pack("{s:s, s:O}", "role", "system", "content", text);
    if (message == NULL || json_array_insert_new(messages, 0, message) != 0) {
        LT_FAIL(LT_ERR_OOM, "messages of a line");
    }
    return LT_OK;
}

/* If the line has a list already, others may refer to it, too, so a copy is changed. */
static lt_err add_system(json_t *line, const char *messages) {
    json_t *copy = json_is_array(json_object_get(line, messages))
                       ? json_copy(json_object_get(line, messages))
                       : NULL;
    const lt_err err = copy != NULL ? lt_chat_shape_system(line, copy) : LT_OK;
    if (err != LT_OK || copy == NULL) {
        json_decref(copy);
        return err;
    }
    return json_object_set_new(line, messages, copy) == 0
               ? LT_OK
               : lt_error_set(LT_ERR_OOM, "messages of a line");
}

lt_err lt_chat_shape(json_t *line, const char *messages) {
    lt_err err = LT_OK;
    json_t *out = NULL;
    size_t i = 0;

    if (given(line, messages)) {
        return add_system(line, messages);
    }
    while (i < sizeof shapes / sizeof *shapes &&
           (!given(line, shapes[i].member) ||
            (shapes[i].with != NULL && !given(line, shapes[i].with)))) {
        i++;
    }
    if (i == sizeof shapes / sizeof *shapes) {
        return LT_OK;
    }
    out = json_array();
    LT_TRY_DONE(shapes[i].messages(line, out));
    LT_TRY_DONE(lt_chat_shape_system(line, out));
    if (json_object_set(line, messages, out) != 0) {
        LT_FAIL_DONE(LT_ERR_OOM, "messages of a line");
    }
done:
    json_decref(out);
    return err;
}
