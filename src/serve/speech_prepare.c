/* speech_prepare.c: what a reply must listen for, and the grammar that makes it say so: parse_grammar.c has the language. */
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "serve/speech.h"

#define NAME_BYTES 128

/* Names go into prompts and grammars as they are. */
static bool plain_name(const json_t *name) {
    static const char allowed[] =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-";
    const char *text = json_string_value(name);
    const size_t n = json_string_length(name);
    return text != NULL && n > 0 && n <= NAME_BYTES && strspn(text, allowed) == n;
}

static bool check_tools(const json_t *tools, lt_api_error *e) {
    if (tools != NULL && !json_is_array(tools)) {
        return lt_api_refuse(e, "tools", "'tools' must be a list");
    }
    for (size_t i = 0; i < json_array_size(tools); i++) {
        const json_t *tool = json_array_get(tools, i), *f = json_object_get(tool, "function");
        const char *type = json_string_value(json_object_get(tool, "type"));
        const json_t *schema = json_object_get(f, "parameters");
        if (type == NULL || strcmp(type, "function") != 0 || !json_is_object(f)) {
            return lt_api_refuse(e, "tools",
                                 "'tools[%zu]' must be {type: function, function: {name, ...}}", i);
        }
        if (!plain_name(json_object_get(f, "name"))) {
            return lt_api_refuse(e, "tools",
                                 "'tools[%zu].function.name' must be 1 to %d of A-Z, a-z, 0-9, _, "
                                 ". and -",
                                 i, NAME_BYTES);
        }
        if (schema != NULL && !json_is_object(schema) && !json_is_null(schema)) {
            return lt_api_refuse(e, "tools", "'tools[%zu].function.parameters' must be an object",
                                 i);
        }
    }
    return true;
}

/* A mark that is a special token would not be in the text. */
static void keep_mark(lt_reply *r, const char *mark) {
    const uint32_t id = mark != NULL ? lt_tokenizer_find(r->server->tokenizer, mark, strlen(mark))
                                     : LT_TOKEN_NONE;
    if (id != LT_TOKEN_NONE && lt_tokenizer_is_special(r->server->tokenizer, id)) {
        r->ask.skip_special = false;
    }
}

static void keep_marks(lt_reply *r) {
    const lt_parse_marks *m = &r->server->marks;
    if (r->listen.think) {
        keep_mark(r, m->think_open);
    }
    if (r->listen.tools || m->format == LT_PARSE_HARMONY) {
        for (const char *const *p = lt_parse_call_marks(m->format); *p != NULL; p++) {
            keep_mark(r, *p);
        }
    }
}

/* "auto", "none", "required", {type: function, function: {name}}, {type: allowed_tools, ...} refused by name. */
static bool check_choice(const lt_ask *a, const char **name, lt_api_error *e) {
    const char *word = json_string_value(a->tool_choice);
    *name = json_string_value(json_object_get(json_object_get(a->tool_choice, "function"), "name"));
    if (a->tool_choice != NULL && *name == NULL &&
        (word == NULL || (strcmp(word, "auto") != 0 && strcmp(word, "none") != 0 &&
                          strcmp(word, "required") != 0))) {
        return lt_api_refuse(e, "tool_choice",
                             "'tool_choice' must be auto, none, required, or {type: "
                             "function, function: {name}}");
    }
    if (*name == NULL && (word == NULL || strcmp(word, "required") != 0)) {
        return true;
    }
    for (size_t i = 0; i < json_array_size(a->tools); i++) {
        const json_t *f = json_object_get(json_array_get(a->tools, i), "function");
        const char *own = json_string_value(json_object_get(f, "name"));
        if (*name == NULL || strcmp(own, *name) == 0) {
            return true;
        }
    }
    return lt_api_refuse(e, "tool_choice", "'tool_choice': there is no tool %.60s",
                         *name != NULL ? *name : "at all");
}

bool lt_speech_prepare(lt_reply *r, lt_api_error *e) {
    lt_ask *a = &r->ask;
    lt_listen *l = &r->listen;
    const char *word = json_string_value(a->tool_choice);

    if (!check_tools(a->tools, e) || !check_choice(a, &l->tool, e)) {
        return false;
    }
    if ((word != NULL && strcmp(word, "none") == 0) || json_array_size(a->tools) == 0) {
        a->tools = NULL;
    }
    l->tools = a->tools != NULL;
    l->forced = l->tool != NULL || (word != NULL && strcmp(word, "required") == 0);
    l->think = lt_parse_reasons(&r->server->marks) &&
               (a->reasoning_format == NULL || strcmp(a->reasoning_format, "none") != 0);
    keep_marks(r);
    if (l->forced && r->form.text != NULL) {
        return lt_api_refuse(e, "tool_choice",
                             "a forced call and another form of the answer are asked "
                             "for at once");
    }
    return true;
}

/* ---- Rules ---- */

bool lt_speech_rule(lt_reply *r, lt_api_error *e) {
    const lt_listen *l = &r->listen;
    lt_grammar_vocab *v;
    lt_err err;

    if (!lt_reply_think(r, r->listen.opened, e)) {
        return false;
    }
    if (!l->tools && r->form.text == NULL) {
        return true;
    }
    v = lt_server_grammar_vocab(r->server, e);
    if (v == NULL) {
        return false;
    }
    err = lt_parse_grammar(
        &r->grammar, v,
        &(lt_parse_grammar_options){.marks = r->server->marks,
                                    .reasoning = lt_parse_reasons(&r->server->marks),
                                    .thinks = l->opened,
                                    .tools = r->ask.tools,
                                    .forced = l->forced,
                                    .name = l->tool,
                                    .parallel = r->ask.parallel_tools,
                                    .has_form = r->form.text != NULL,
                                    .kind = r->form.kind,
                                    .form = r->form.text,
                                    .form_bytes = r->form.bytes});
    if (err != LT_OK) {
        return lt_api_refuse_grammar(e, r->form.text != NULL ? r->form.param : "tools", err);
    }
    r->request.grammar = r->grammar;
    return true;
}
