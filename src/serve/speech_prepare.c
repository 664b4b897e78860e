/* speech_prepare.c: what a reply must listen for, and, where a call is forced, the grammar that forces it: one JSON object {"name", "arguments"}
 * whose arguments follow the tool's schema. */
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "serve/speech.h"

/* {"name": const, "arguments": the tool's schema}. Its $defs move to the root, where "#/$defs/..." looks for them. */
static json_t *call_schema(const json_t *function, json_t *defs) {
    const char *name = json_string_value(json_object_get(function, "name"));
    json_t *given = json_object_get(function, "parameters");
    json_t *schema = json_is_object(given) ? json_copy(given)
                                           : json_pack("{s:s}", "type", "object");

    if (json_is_object(json_object_get(schema, "$defs"))) {
        json_object_update(defs, json_object_get(schema, "$defs"));
        json_object_del(schema, "$defs");
    }
    return json_pack("{s:s, s:{s:{s:s}, s:o}, s:[s, s], s:b}", "type", "object", "properties",
                     "name", "const", name, "arguments", schema, "required", "name", "arguments",
                     "additionalProperties", 0);
}

static bool force(lt_reply *r, const char *name, lt_api_error *e) {
    lt_grammar_vocab *v = lt_server_grammar_vocab(r->server, e);
    json_t *any = json_array(), *defs = json_object(), *root;
    char *text;
    lt_err err;

    for (size_t i = 0; i < json_array_size(r->ask.tools); i++) {
        const json_t *f = json_object_get(json_array_get(r->ask.tools, i), "function");
        const char *own = json_string_value(json_object_get(f, "name"));
        if (name == NULL || strcmp(own, name) == 0) {
            json_array_append_new(any, call_schema(f, defs));
        }
    }
    if (v == NULL || json_array_size(any) == 0) {
        json_decref(any);
        json_decref(defs);
        return v != NULL && lt_api_refuse(e, "tool_choice", "'tool_choice': there is no tool %.60s",
                                          name != NULL ? name : "at all");
    }
    root = json_pack("{s:o, s:o}", "anyOf", any, "$defs", defs);
    text = json_dumps(root, JSON_COMPACT);
    json_decref(root);
    if (text == NULL) {
        return lt_api_refuse_oom(e);
    }
    err = lt_grammar_open(&r->grammar, v, LT_GRAMMAR_SCHEMA, text, strlen(text));
    free(text);
    if (err != LT_OK) {
        lt_api_refuse_error(e, "tools", err);
        e->status = 400;
        e->type = "invalid_request_error";
        return false;
    }
    r->request.grammar = r->grammar;
    r->listen.bare = true;
    return true;
}

static bool check_tools(const json_t *tools, lt_api_error *e) {
    if (tools != NULL && !json_is_array(tools)) {
        return lt_api_refuse(e, "tools", "'tools' must be a list");
    }
    for (size_t i = 0; i < json_array_size(tools); i++) {
        const json_t *tool = json_array_get(tools, i);
        const char *type = json_string_value(json_object_get(tool, "type"));
        const json_t *name = json_object_get(json_object_get(tool, "function"), "name");
        if (type == NULL || strcmp(type, "function") != 0 || !json_is_string(name)) {
            return lt_api_refuse(e, "tools",
                                 "'tools[%zu]' must be {type: function, function: {name, "
                                 "...}}",
                                 i);
        }
    }
    return true;
}

/* A mark that is a special token would not be in the text. */
static void keep_marks(lt_reply *r) {
    const lt_speech_marks *m = &r->server->marks;
    const char *const marks[] = {r->listen.think ? m->think_open : NULL,
                                 r->listen.tools ? m->call_open : NULL};
    for (size_t i = 0; i < 2; i++) {
        const uint32_t id = marks[i] != NULL ? lt_tokenizer_find(r->server->tokenizer, marks[i],
                                                                 strlen(marks[i]))
                                             : LT_TOKEN_NONE;
        if (id != LT_TOKEN_NONE && lt_tokenizer_is_special(r->server->tokenizer, id)) {
            r->ask.skip_special = false;
        }
    }
}

bool lt_speech_prepare(lt_reply *r, lt_api_error *e) {
    lt_ask *a = &r->ask;
    const lt_speech_marks *m = &r->server->marks;
    const char *word = json_string_value(a->tool_choice);
    const json_t *named = json_object_get(json_object_get(a->tool_choice, "function"), "name");

    if (!check_tools(a->tools, e)) {
        return false;
    }
    if (a->tool_choice != NULL && !json_is_string(named) &&
        (word == NULL || (strcmp(word, "auto") != 0 && strcmp(word, "none") != 0 &&
                          strcmp(word, "required") != 0))) {
        return lt_api_refuse(e, "tool_choice",
                             "'tool_choice' must be auto, none, required, or {type: "
                             "function, function: {name}}");
    }
    if (word != NULL && strcmp(word, "none") == 0) {
        a->tools = NULL;
    }
    r->listen.tools = json_array_size(a->tools) > 0;
    r->listen.bare = m->bare;
    r->listen.think = m->think_open != NULL &&
                      (a->reasoning_format == NULL || strcmp(a->reasoning_format, "none") != 0);
    keep_marks(r);
    if (!json_is_string(named) && (word == NULL || strcmp(word, "required") != 0)) {
        return true;
    }
    if (r->grammar != NULL) {
        return lt_api_refuse(e, "tool_choice",
                             "a forced call and another form of the answer are asked "
                             "for at once");
    }
    return force(r, json_string_value(named), e);
}
