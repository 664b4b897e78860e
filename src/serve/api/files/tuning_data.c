/* tuning_data.c: see tuning_data.h. */
#include "serve/api/files/tuning_data.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/json.h"
#include "base/option.h"
#include "data/chat_rows.h"
#include "serve/api/formats/conversation.h"

/* ---- Members ---- */

/* Refuse members that are not among the names, which end with NULL. */
static bool check_members(const json_t *object, const char *const *known, const char *what,
                          lt_api_error *e) {
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)object, key, value) {
        if (!lt_name_is_one_of(key, known)) {
            return lt_api_refuse(e, NULL, "'%.60s' is not a member of %s", key, what);
        }
    }
    return true;
}

/* OpenAI's members of a message; "reasoning_content" is for reasoning models. */
static bool check_messages(const json_t *messages, const char *what, lt_api_error *e) {
    static const char *const known[] = {"role",    "content",           "name",
                                        "weight",  "tool_calls",        "tool_call_id",
                                        "refusal", "reasoning_content", NULL};
    for (size_t i = 0; i < json_array_size(messages); i++) {
        const json_t *m = json_array_get(messages, i);
        if (json_is_object(m) && !check_members(m, known, "a message", e)) {
            return false;
        }
    }
    return json_is_array(messages) ||
           lt_api_refuse(e, NULL, "'%s' is missing or not a list of messages", what);
}

/* ---- Size ---- */

static size_t count_labels(const unsigned char *mask, size_t n) {
    size_t labels = 0;
    for (size_t i = 1; i < n; i++) { /* The first token is not predicted. */
        labels += mask[i] != 0;
    }
    return labels;
}

/* Add the number of tokens of a conversation, a line's tree. */
static bool add_size(lt_server *s, const json_t *line, int64_t most, lt_tuning_line_size *size,
                     lt_api_error *e) {
    const lt_chat_rows rows = {
        .template = s->template, .tokenizer = s->tokenizer, .messages = "messages"};
    char *text = lt_json_dumps_exact(line, JSON_COMPACT);
    lt_ids ids = {0};
    unsigned char *mask = NULL;
    size_t bytes;
    bool ok = text != NULL || lt_api_refuse_oom(e);
    if (ok) {
        lt_tokenizer_scratch *scratch = s->scratch_pool[lt_worker_pool_thread(s->pool)];
        const lt_err err = lt_chat_rows_encode(&rows, scratch, text, strlen(text), &ids, &mask,
                                               &bytes);
        ok = err == LT_OK || lt_api_refuse(e, NULL, "%s", lt_error_message());
    }
    if (ok && count_labels(mask, ids.n) == 0) {
        ok = lt_api_refuse(e, NULL, "the assistant says nothing that could be learnt");
    }
    if (ok && (int64_t)ids.n > most) {
        ok = lt_api_refuse(e, NULL, "%zu tokens; the model reads %lld", ids.n, (long long)most);
    }
    size->tokens += (int64_t)ids.n;
    size->longest = (int64_t)ids.n > size->longest ? (int64_t)ids.n : size->longest;
    free(mask);
    free(text);
    lt_ids_free(&ids);
    return ok;
}

/* ---- Lines ---- */

/* {"messages", "tools"} as the template receives them; NULL: *e. */
static json_t *context_of(const lt_server *s, const json_t *messages, const json_t *tools,
                          lt_api_error *e) {
    const lt_conversation c = {.messages = messages, .tools = tools};
    json_t *context = lt_conversation_context(s, &c, e);
    if (context != NULL) {
        json_object_del(context, "add_generation_prompt");
    }
    return context;
}

static bool read_tools(const json_t *object, const json_t **tools, lt_api_error *e) {
    *tools = json_object_get(object, "tools");
    *tools = json_is_null(*tools) ? NULL : *tools;
    return *tools == NULL || json_is_array(*tools) ||
           lt_api_refuse(e, NULL, "'tools' is not a list");
}

static json_t *read_conversation(lt_server *s, const json_t *line, int64_t most,
                                 lt_tuning_line_size *size, lt_api_error *e) {
    static const char *const known[] = {"messages", "tools", "parallel_tool_calls", NULL};
    const json_t *messages = json_object_get(line, "messages"), *tools;
    json_t *out = NULL;
    if (check_members(line, known, "a conversation", e) && read_tools(line, &tools, e) &&
        check_messages(messages, "messages", e)) {
        out = context_of(s, messages, tools, e);
    }
    if (out != NULL && !add_size(s, out, most, size, e)) {
        json_decref(out);
        out = NULL;
    }
    return out;
}

/* The messages of the input and one of its two outputs as a conversation; *n_prompt: the number of
 * the prompt's messages. NULL: *e. */
static json_t *read_output(lt_server *s, const json_t *line, const char *name, int64_t most,
                           size_t *n_prompt, lt_tuning_line_size *size, lt_api_error *e) {
    const json_t *input = json_object_get(line, "input"), *output = json_object_get(line, name);
    const json_t *prompt = json_object_get(input, "messages"), *tools;
    json_t *all = NULL, *context = NULL;
    if (!check_messages(prompt, "input.messages", e) || !check_messages(output, name, e) ||
        !read_tools(input, &tools, e)) {
        return NULL;
    }
    if (json_array_size(output) == 0) {
        lt_api_refuse(e, NULL, "'%s' has no message", name);
        return NULL;
    }
    all = json_copy((json_t *)(uintptr_t)prompt);
    if (all == NULL || json_array_extend(all, (json_t *)(uintptr_t)output) != 0) {
        lt_api_refuse_oom(e);
    } else {
        context = context_of(s, all, tools, e);
    }
    json_decref(all);
    if (context != NULL && !add_size(s, context, most, size, e)) {
        json_decref(context);
        context = NULL;
    }
    if (context != NULL) { /* A template without tools may have received a message about them. */
        *n_prompt = json_array_size(json_object_get(context, "messages")) - json_array_size(output);
    }
    return context;
}

/* [from, to) of the messages of a conversation, a new reference. */
static json_t *some_of(const json_t *context, size_t from, size_t to) {
    const json_t *messages = json_object_get(context, "messages");
    json_t *some = json_array();
    for (size_t i = from; i < to && i < json_array_size(messages); i++) {
        json_array_append(some, json_array_get(messages, i));
    }
    return some;
}

static json_t *read_pair(lt_server *s, const json_t *line, int64_t most, lt_tuning_line_size *size,
                         lt_api_error *e) {
    static const char *const known[] = {"input", "preferred_output", "non_preferred_output", NULL};
    static const char *const of_input[] = {"messages", "tools", "parallel_tool_calls", NULL};
    json_t *good, *bad = NULL, *out = NULL;
    size_t n = 0, n_bad = 0;
    if (!check_members(line, known, "a preference", e) ||
        !check_members(json_object_get(line, "input"), of_input, "'input'", e)) {
        return NULL;
    }
    good = read_output(s, line, "preferred_output", most, &n, size, e);
    bad = good != NULL ? read_output(s, line, "non_preferred_output", most, &n_bad, size, e) : NULL;
    if (bad != NULL && json_equal(good, bad)) {
        lt_api_refuse(e, NULL, "'preferred_output' and 'non_preferred_output' are the same");
    } else if (bad != NULL) {
        json_t *tools = json_object_get(good, "tools");
        out = json_pack("{s:o, s:o, s:o, s:O*}", "prompt", some_of(good, 0, n), "chosen",
                        some_of(good, n, SIZE_MAX), "rejected", some_of(bad, n_bad, SIZE_MAX),
                        "tools", tools);
        if (out == NULL) {
            lt_api_refuse_oom(e);
        }
    }
    json_decref(good);
    json_decref(bad);
    return out;
}

bool lt_tuning_line_read(lt_server *s, bool pairs, const char *text, size_t n, int64_t most,
                         lt_json_out *out, lt_tuning_line_size *size, lt_api_error *e) {
    json_t *line = lt_body_parse(text, n, e), *read = NULL;
    *size = (lt_tuning_line_size){0, 0};
    if (line != NULL) {
        read = pairs ? read_pair(s, line, most, size, e)
                     : read_conversation(s, line, most, size, e);
    }
    json_decref(line);
    if (read == NULL) {
        return false;
    }
    out->comma = false;
    lt_out_value(out, read);
    lt_out_raw(out, "\n", 1);
    json_decref(read);
    return !out->failed || lt_api_refuse_oom(e);
}
