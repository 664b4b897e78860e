/* chat_rows.c: see chat_rows.h.
 *
 * THE DIFFERENCE OF PREFIXES. Let R(k) be the text of the first k messages, R+(k) the same with the
 * opening of an answer, and F = R(n). The answer that is message i then stands in F between the
 * ends of R+(i) and R(i + 1):
 *
 *     F      <user>Hi<end><assistant>Hello<end><user>Bye<end><assistant>See you<end>
 *     R+(1)               ───────────▶|                     message 1 begins
 *     R(2)                ────────────────────▶|            and ends
 *
 * R(i + 1) must be a prefix of F. Templates that drop the reasoning of earlier turns violate this:
 * the answer then has no place in F, and training on a text that the model never sees would be
 * wrong. So it is an error; --chat-turns last avoids it. After R(i), R+(i) may differ from F,
 * because some templates open the answer with <think>; the answer then begins where the two
 * differ. */
#include "data/chat_rows.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/json.h"
#include "data/chat_shape.h"

/* One conversation being encoded. */
typedef struct {
    const lt_chat_rows *c;
    json_t *line;     /* The object of the line. */
    json_t *context;  /* What the template sees; its messages are set for each rendering. */
    json_t *messages; /* All of them, owned by line. */
    bool *silent;     /* Whether the weight of each message is 0. */
    bool any_silent;
    char *text; /* F */
    size_t bytes;
    lt_text_span *answers;
    size_t n_answers;
} conversation;

static lt_err parse(json_t **out, const char *line, size_t bytes) {
    json_error_t why;
    json_t *root = lt_json_loadb_exact(line, bytes, LT_JSON_LINE, &why);
    if (root == NULL) {
        LT_FAIL(LT_ERR_FORMAT, "column %d: %s", why.column, why.text);
    }
    *out = root;
    if (!json_is_object(root)) {
        LT_FAIL(LT_ERR_FORMAT, "column 1: a JSON object was expected");
    }
    return LT_OK;
}

static lt_err string_member(const json_t *line, const char *name, const json_t **out) {
    *out = json_object_get(line, name);
    if (*out == NULL || json_is_null(*out)) {
        LT_FAIL(LT_ERR_NOT_FOUND, "no member '%s'", name);
    }
    if (!json_is_string(*out)) {
        LT_FAIL(LT_ERR_FORMAT, "'%s' is not a string", name);
    }
    return LT_OK;
}

/* A question and its answer as two messages. */
static lt_err messages_of_pair(conversation *v) {
    const json_t *prompt, *answer;
    json_t *messages;
    LT_TRY(string_member(v->line, v->c->prompt, &prompt));
    LT_TRY(string_member(v->line, v->c->answer, &answer));
    messages = json_pack("[{s:s,s:O},{s:s,s:O}]", "role", "user", "content", prompt, "role",
                         "assistant", "content", answer);
    if (messages == NULL || json_object_set_new(v->line, v->c->messages, messages) != 0) {
        LT_FAIL(LT_ERR_OOM, "messages of a line");
    }
    return LT_OK;
}

/* As in transformers: a null member counts as absent, and reasoning is available under each of its
 * names. */
static lt_err mend_message(json_t *message) {
    static const char *const names[] = {"reasoning_content", "thinking", "reasoning"};
    json_t *reasoning = NULL, *value;
    const char *key;
    void *next;

    json_object_foreach_safe(message, next, key, value) {
        if (json_is_null(value)) {
            json_object_del(message, key);
        }
    }
    for (size_t i = 0; i < 3 && reasoning == NULL; i++) {
        reasoning = json_object_get(message, names[i]);
    }
    if (reasoning != NULL && (json_object_set(message, names[0], reasoning) != 0 ||
                              (json_object_get(message, names[1]) == NULL &&
                               json_object_set(message, names[1], reasoning) != 0))) {
        LT_FAIL(LT_ERR_OOM, "a message's reasoning");
    }
    return LT_OK;
}

/* OpenAI's "weight" of message i, 0 or 1, which no template sees. */
static lt_err take_weight(conversation *v, size_t i, json_t *message) {
    const json_t *weight = json_object_get(message, "weight");
    if (weight == NULL) {
        return LT_OK;
    }
    if (!json_is_number(weight) ||
        (json_number_value(weight) != 0.0 && json_number_value(weight) != 1.0)) {
        LT_FAIL(LT_ERR_FORMAT, "%s[%zu]: 'weight' is neither 0 nor 1", v->c->messages, i);
    }
    v->silent[i] = json_number_value(weight) == 0.0;
    v->any_silent = v->any_silent || v->silent[i];
    json_object_del(message, "weight");
    return LT_OK;
}

static lt_err take_messages(conversation *v) {
    const char *name = v->c->messages;
    LT_TRY(v->c->prompt != NULL ? messages_of_pair(v) : lt_chat_shape(v->line, name));
    v->messages = json_object_get(v->line, name);
    if (v->messages == NULL || json_is_null(v->messages)) {
        LT_FAIL(LT_ERR_NOT_FOUND, "no member '%s'", name);
    }
    if (!json_is_array(v->messages) || json_array_size(v->messages) == 0) {
        LT_FAIL(LT_ERR_FORMAT, "'%s' is not a list of messages%s", name,
                json_is_array(v->messages) ? ": it is empty" : "");
    }
    v->silent = calloc(json_array_size(v->messages), sizeof *v->silent);
    if (v->silent == NULL) {
        LT_FAIL(LT_ERR_OOM, "messages of a line");
    }
    for (size_t i = 0; i < json_array_size(v->messages); i++) {
        json_t *m = json_array_get(v->messages, i);
        if (!json_is_object(m) || !json_is_string(json_object_get(m, "role"))) {
            LT_FAIL(LT_ERR_FORMAT, "%s[%zu]: not an object with a role", name, i);
        }
        LT_TRY(mend_message(m));
        LT_TRY(take_weight(v, i, m));
    }
    return LT_OK;
}

/* Data sets keep tools as JSON text where their columns have one type. */
static lt_err read_tools(conversation *v) {
    const json_t *tools = json_object_get(v->line, "tools");
    const json_t *tool;
    json_t *list;
    size_t i;
    if (tools == NULL) {
        return LT_OK;
    }
    list = !json_is_string(tools) ? json_incref((json_t *)(uintptr_t)tools)
           : json_string_length(tools) > 0
               ? lt_json_loadb_exact(json_string_value(tools), json_string_length(tools), 0, NULL)
               : json_null();
    if (!json_is_array(list) && !json_is_null(list)) {
        json_decref(list);
        LT_FAIL(LT_ERR_FORMAT, "'tools' is neither a list nor JSON text of one");
    }
    json_array_foreach(list, i, tool) {
        if (!json_is_object(tool)) {
            json_decref(list);
            LT_FAIL(LT_ERR_FORMAT, "tools[%zu] is not an object", i);
        }
    }
    return json_object_set_new(v->line, "tools", list) == 0
               ? LT_OK
               : lt_error_set(LT_ERR_OOM, "tools of a line");
}

static lt_err make_context(conversation *v) {
    static const char *const more[] = {"tools", "documents"};
    json_t *rest = json_object_get(v->line, "chat_template_kwargs");
    LT_TRY(read_tools(v));
    v->context = json_object();
    for (size_t i = 0; v->context != NULL && i < 2; i++) {
        json_t *value = json_object_get(v->line, more[i]);
        json_object_set_new(v->context, more[i], value != NULL ? json_incref(value) : json_null());
    }
    if (v->context == NULL) {
        LT_FAIL(LT_ERR_OOM, "context of a conversation");
    }
    if (rest != NULL && !json_is_null(rest) && !json_is_object(rest)) {
        LT_FAIL(LT_ERR_FORMAT, "'chat_template_kwargs' is not an object");
    }
    return rest != NULL && json_is_object(rest) && json_object_update(v->context, rest) != 0
               ? lt_error_set(LT_ERR_OOM, "context of a conversation")
               : LT_OK;
}

/* Render the first n messages; opened: followed by the generation prompt. answers may be
 * NULL. */
static lt_err render(conversation *v, size_t n, bool opened, char **text, size_t *bytes,
                     lt_text_span **answers, size_t *n_answers) {
    json_t *some = json_array();
    bool put = some != NULL;
    for (size_t i = 0; put && i < n; i++) {
        put = json_array_append(some, json_array_get(v->messages, i)) == 0;
    }
    if (json_object_set_new(v->context, "messages", some) != 0 || !put ||
        json_object_set_new(v->context, "add_generation_prompt", json_boolean(opened)) != 0) {
        LT_FAIL(LT_ERR_OOM, "%zu messages", n);
    }
    return lt_chat_template_render_answers(v->c->template, v->context, text, bytes, answers,
                                           n_answers);
}

/* Length of the common prefix of F and the text of the first n messages. */
static lt_err common(conversation *v, size_t n, bool opened, size_t *same, size_t *whole) {
    char *text = NULL;
    *same = *whole = 0;
    LT_TRY(render(v, n, opened, &text, whole, NULL, NULL));
    while (*same < *whole && *same < v->bytes && text[*same] == v->text[*same]) {
        ++*same;
    }
    free(text);
    return LT_OK;
}

/* Where message i, an answer, begins in F: after the opening of its turn. */
static lt_err beginning(conversation *v, size_t i, size_t *begin) {
    size_t before, whole;
    LT_TRY(common(v, i, true, begin, &whole));
    if (*begin < whole) { /* The opening may differ, but not the text before it. */
        LT_TRY(common(v, i, false, &before, &whole));
        if (before < whole || *begin < whole) {
            LT_FAIL(LT_ERR_ARG,
                    "%s[%zu]: the template changes the text before this message when the message "
                    "is present (byte %zu)",
                    v->c->messages, i, before);
        }
    }
    return LT_OK;
}

/* Find the place in F of message i, which is a message of the assistant. */
static lt_err difference(conversation *v, size_t i, lt_text_span *out) {
    const size_t n = json_array_size(v->messages);
    size_t whole;
    LT_TRY(beginning(v, i, &out->begin));
    out->end = whole = v->bytes;
    if (i + 1 < n) {
        LT_TRY(common(v, i + 1, false, &out->end, &whole));
    }
    if (out->end < whole) {
        LT_FAIL(LT_ERR_ARG,
                "%s[%zu]: the template changes this turn when more messages follow (byte %zu); use "
                "a template with {%% generation %%} tags, or learn the last turn only (chat-turns "
                "last)",
                v->c->messages, i, out->end);
    }
    return LT_OK;
}

static bool is_answer(const conversation *v, size_t i) {
    const json_t *role = json_object_get(json_array_get(v->messages, i), "role");
    return strcmp(json_string_value(role), "assistant") == 0;
}

static lt_err find_answers(conversation *v) {
    const size_t n = json_array_size(v->messages);
    v->answers = calloc(n, sizeof *v->answers);
    if (v->answers == NULL) {
        LT_FAIL(LT_ERR_OOM, "%zu messages", n);
    }
    for (size_t i = v->c->last_only ? n - 1 : 0; i < n; i++) {
        lt_text_span found;
        if (!is_answer(v, i) || v->silent[i]) {
            continue;
        }
        LT_TRY(difference(v, i, &found));
        if (v->n_answers > 0 && found.begin < v->answers[v->n_answers - 1].end) {
            found.begin = v->answers[v->n_answers - 1].end;
        }
        if (found.begin < found.end) {
            v->answers[v->n_answers++] = found;
        }
    }
    return LT_OK;
}

/* Remove the spans of answers with weight 0 from those that the template marks. */
static lt_err drop_silent(conversation *v) {
    const size_t n = json_array_size(v->messages);
    size_t n_answers = 0, kept = 0;
    for (size_t i = 0; i < n; i++) {
        n_answers += is_answer(v, i);
    }
    if (n_answers != v->n_answers) {
        LT_FAIL(LT_ERR_ARG,
                "a message has weight 0, but the template marks %zu spans for %zu answers, so it "
                "is not known which to leave out",
                v->n_answers, n_answers);
    }
    n_answers = 0;
    for (size_t i = 0; i < n; i++) {
        if (is_answer(v, i)) {
            v->answers[kept] = v->answers[n_answers++];
            kept += !v->silent[i];
        }
    }
    v->n_answers = kept;
    return LT_OK;
}

/* Render F and find the places of its answers. */
static lt_err write_text(conversation *v) {
    const size_t n = json_array_size(v->messages);
    if (!lt_chat_template_marks_answers(v->c->template)) {
        LT_TRY(render(v, n, false, &v->text, &v->bytes, NULL, NULL));
        return find_answers(v);
    }
    LT_TRY(render(v, n, false, &v->text, &v->bytes, &v->answers, &v->n_answers));
    if (v->any_silent) {
        LT_TRY(drop_silent(v));
    }
    if (v->c->last_only && v->silent[n - 1]) {
        v->n_answers = 0;
    }
    if (v->c->last_only && v->n_answers > 0) {
        v->answers[0] = v->answers[v->n_answers - 1];
        v->n_answers = is_answer(v, n - 1);
    }
    return LT_OK;
}

lt_err lt_chat_rows_encode(const lt_chat_rows *c, lt_tokenizer_scratch *s, const char *line,
                           size_t bytes, lt_ids *ids, unsigned char **mask, size_t *text_bytes) {
    lt_err err = LT_OK;
    conversation v = {.c = c};

    LT_ASSERT(c->template != NULL && c->tokenizer != NULL && c->messages != NULL);
    LT_ASSERT((c->prompt != NULL) == (c->answer != NULL));
    LT_TRY_DONE(parse(&v.line, line, bytes));
    LT_TRY_DONE(take_messages(&v));
    LT_TRY_DONE(make_context(&v));
    LT_TRY_DONE(write_text(&v));
    LT_TRY_DONE(lt_tokenizer_encode_masked(c->tokenizer, s, v.text, v.bytes,
                                           LT_ENCODE_PARSE_SPECIAL, v.answers, v.n_answers, ids,
                                           mask));
    *text_bytes = v.bytes;
done:
    free(v.silent);
    free(v.answers);
    free(v.text);
    json_decref(v.context);
    json_decref(v.line);
    return err;
}

/* Number of messages without the assistant's turns at the end. */
static size_t asked(const conversation *v) {
    size_t n = json_array_size(v->messages);
    while (n > 0 && is_answer(v, n - 1)) {
        n--;
    }
    return n;
}

lt_err lt_chat_rows_prompt(const lt_chat_rows *c, lt_tokenizer_scratch *s, json_t *line,
                           lt_ids *ids) {
    lt_err err = LT_OK;
    conversation v = {.c = c, .line = line};

    LT_ASSERT(c->template != NULL && c->tokenizer != NULL && c->messages != NULL);
    LT_TRY_DONE(take_messages(&v));
    LT_TRY_DONE(make_context(&v));
    if (asked(&v) == 0) {
        LT_FAIL_DONE(LT_ERR_FORMAT, "'%s' has the assistant's messages only", c->messages);
    }
    LT_TRY_DONE(render(&v, asked(&v), true, &v.text, &v.bytes, NULL, NULL));
    LT_TRY_DONE(
        lt_tokenizer_encode(c->tokenizer, s, v.text, v.bytes, LT_ENCODE_PARSE_SPECIAL, ids));
done:
    free(v.silent);
    free(v.text);
    json_decref(v.context);
    return err;
}

/* Text that the template adds after the last answer is not part of the answer. */
static size_t completion_end(const conversation *v, size_t begin) {
    const size_t end = v->n_answers > 0 ? v->answers[v->n_answers - 1].end : 0;
    return end > begin ? end : v->bytes;
}

lt_err lt_chat_rows_completion(const lt_chat_rows *c, lt_tokenizer_scratch *s, json_t *line,
                               size_t n_prompt, lt_ids *ids, size_t *first, size_t *end) {
    lt_err err = LT_OK;
    const size_t had = ids->n;
    const bool marks = lt_chat_template_marks_answers(c->template);
    unsigned char *mask = NULL;
    lt_text_span span;
    conversation v = {.c = c, .line = line};

    LT_ASSERT(c->template != NULL && c->tokenizer != NULL && c->prompt == NULL);
    LT_TRY_DONE(take_messages(&v));
    LT_ASSERT(n_prompt < json_array_size(v.messages));
    LT_TRY_DONE(make_context(&v));
    LT_TRY_DONE(render(&v, json_array_size(v.messages), false, &v.text, &v.bytes,
                       marks ? &v.answers : NULL, marks ? &v.n_answers : NULL));
    LT_TRY_DONE(beginning(&v, n_prompt, &span.begin));
    span.end = completion_end(&v, span.begin);
    LT_TRY_DONE(lt_tokenizer_encode_masked(c->tokenizer, s, v.text, v.bytes,
                                           LT_ENCODE_PARSE_SPECIAL, &span,
                                           span.begin < span.end ? 1 : 0, ids, &mask));
    for (*first = 0; *first < ids->n - had && mask[*first] == 0;) {
        ++*first;
    }
    for (*end = *first; *end < ids->n - had && mask[*end] != 0;) {
        ++*end;
    }
done:
    free(mask);
    free(v.silent);
    free(v.answers);
    free(v.text);
    json_decref(v.context);
    return err;
}
