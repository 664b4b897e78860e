/* chat_output_prepare.c: decides into which parts a reply is separated (reasoning, text, tool
 * calls), and makes the grammar that enforces them, in the language of parse_grammar.c. */
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "serve/api/formats/chat_output.h"

#define NAME_BYTES 128
#define MOST_TOOLS 2048 /* Limited because compiling their grammar takes time. */

/* Names are copied unchanged into prompts and grammars. */
static bool plain_name(const json_t *name) {
    static const char allowed[] =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-";
    const char *text = json_string_value(name);
    const size_t n = json_string_length(name);
    return text != NULL && n > 0 && n <= NAME_BYTES && strspn(text, allowed) == n;
}

/* Two tools with the same name would be one tool. */
static bool unique_names(const json_t *tools, lt_api_error *e) {
    json_t *places = json_object();
    bool unique = places != NULL || lt_api_refuse_oom(e);
    for (size_t i = 0; unique && i < json_array_size(tools); i++) {
        const json_t *tool = json_array_get(tools, i);
        const char *name = json_string_value(
            json_object_get(json_object_get(tool, "function"), "name"));
        const json_t *before = json_object_get(places, name);
        const size_t first = before != NULL ? (size_t)json_integer_value(before) : i;
        if (before == NULL && json_object_set_new(places, name, json_integer((json_int_t)i)) != 0) {
            unique = lt_api_refuse_oom(e);
        } else if (before != NULL && !json_equal(json_array_get(tools, first), tool)) {
            unique = lt_api_refuse(e, "tools", "'tools[%zu]' and 'tools[%zu]' are both called '%s'",
                                   first, i, name);
        }
    }
    json_decref(places);
    return unique;
}

static bool check_tools(const json_t *tools, lt_api_error *e) {
    if (tools != NULL && !json_is_array(tools)) {
        return lt_api_refuse(e, "tools", "'tools' must be a list");
    }
    if (json_array_size(tools) > MOST_TOOLS) {
        return lt_api_refuse(e, "tools", "'tools' has %zu tools; %d are allowed",
                             json_array_size(tools), MOST_TOOLS);
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
    return unique_names(tools, e);
}

/* Special tokens are left out of the text; a mark that is one is kept in it. */
static void keep_mark(lt_reply *r, const char *mark) {
    const uint32_t id = mark != NULL ? lt_tokenizer_find(r->server->tokenizer, mark, strlen(mark))
                                     : LT_TOKEN_NONE;
    if (id != LT_TOKEN_NONE && lt_tokenizer_is_special(r->server->tokenizer, id)) {
        LT_ASSERT(r->listen.n_shown < sizeof r->listen.shown / sizeof *r->listen.shown);
        r->listen.shown[r->listen.n_shown++] = id;
    }
}

static void keep_marks(lt_reply *r) {
    const lt_parse_marks *m = &r->server->marks;
    if (m->format == LT_PARSE_HARMONY) { /* Every message is surrounded by special tokens. */
        r->params.skip_special = false;
        return;
    }
    if (r->listen.think) {
        keep_mark(r, m->think_open);
        keep_mark(r, m->think_close);
    }
    if (r->listen.tools) {
        for (const char *const *p = lt_parse_all_call_marks(m->format); *p != NULL; p++) {
            keep_mark(r, *p);
        }
    }
}

static const char *name_of(const json_t *tool) {
    const json_t *f = json_object_get(tool, "function");
    return json_string_value(json_object_get(f != NULL ? f : tool, "name"));
}

static json_t *find_tool(const json_t *tools, const char *name) {
    size_t i;
    json_t *tool;
    json_array_foreach(tools, i, tool) {
        if (name != NULL && strcmp(name_of(tool), name) == 0) {
            return tool;
        }
    }
    return NULL;
}

static bool no_such_tool(const char *name, lt_api_error *e) {
    return lt_api_refuse(e, "tool_choice", "'tool_choice': there is no tool %.60s",
                         name != NULL ? name : "at all");
}

/* {type: allowed_tools, allowed_tools: {mode: auto | required, tools}}; in responses, mode and
 * tools are beside the type. */
static bool read_allowed(lt_api_params *a, lt_listen *l, const json_t *choice, lt_api_error *e) {
    const json_t *inner = json_object_get(choice, "allowed_tools"), *tool;
    const char *mode;
    json_t *allowed = json_array();
    size_t i;

    choice = inner != NULL ? inner : choice;
    mode = json_string_value(json_object_get(choice, "mode"));
    json_object_set_new(a->root, "allowed_tools", allowed); /* The parameters own it. */
    if (mode == NULL || (strcmp(mode, "auto") != 0 && strcmp(mode, "required") != 0)) {
        return lt_api_refuse(e, "tool_choice", "'tool_choice.mode' must be auto or required");
    }
    json_array_foreach(json_object_get(choice, "tools"), i, tool) {
        json_t *found = find_tool(a->tools, name_of(tool));
        if (found == NULL) {
            return no_such_tool(name_of(tool), e);
        }
        json_array_append(allowed, found);
    }
    if (json_array_size(allowed) == 0) {
        return no_such_tool(NULL, e);
    }
    l->callable = allowed;
    l->forced = mode[0] == 'r';
    return true;
}

/* auto, none, required, {type: function, function: {name}}, allowed_tools. */
static bool read_choice(lt_api_params *a, lt_listen *l, lt_api_error *e) {
    const json_t *choice = a->tool_choice;
    const char *word = json_string_value(choice);
    const char *type = json_string_value(json_object_get(choice, "type"));

    l->callable = a->tools;
    if (choice == NULL || (word != NULL && strcmp(word, "auto") == 0)) {
        return true;
    }
    if (word != NULL && strcmp(word, "none") == 0) {
        a->tools = l->callable = NULL;
        return true;
    }
    if (type != NULL && strcmp(type, "allowed_tools") == 0) {
        return read_allowed(a, l, choice, e);
    }
    l->forced = true;
    if (word != NULL && strcmp(word, "required") == 0) {
        return json_array_size(a->tools) > 0 || no_such_tool(NULL, e);
    }
    l->tool = json_string_value(json_object_get(json_object_get(choice, "function"), "name"));
    if (l->tool == NULL) {
        return lt_api_refuse(e, "tool_choice",
                             "'tool_choice' must be auto, none, required, {type: function, "
                             "function: {name}} or {type: allowed_tools, ...}");
    }
    return find_tool(a->tools, l->tool) != NULL || no_such_tool(l->tool, e);
}

/* llama-server's names: none leaves the reasoning in the content, the others remove it. */
static bool check_format(const char *format, lt_api_error *e) {
    static const char *const known[] = {"none", "auto", "deepseek", "deepseek-legacy"};
    for (size_t i = 0; format != NULL && i < sizeof known / sizeof *known; i++) {
        if (strcmp(format, known[i]) == 0) {
            return true;
        }
    }
    return format == NULL || lt_api_refuse(e, "reasoning_format",
                                           "'reasoning_format' = %.40s; it may be none, auto, "
                                           "deepseek or deepseek-legacy",
                                           format);
}

bool lt_chat_output_tools(lt_api_params *a, lt_listen *l, lt_api_error *e) {
    if (!check_tools(a->tools, e) || !read_choice(a, l, e)) {
        return false;
    }
    if (json_array_size(a->tools) == 0) {
        a->tools = l->callable = NULL;
    }
    return true;
}

bool lt_chat_output_prepare(lt_reply *r, lt_api_error *e) {
    lt_api_params *a = &r->params;
    lt_listen *l = &r->listen;

    if (!lt_chat_output_tools(a, l, e) || !check_format(a->reasoning_format, e)) {
        return false;
    }
    l->tools = a->tools != NULL;
    l->think = lt_parse_reasons(&r->server->marks) &&
               (a->reasoning_format == NULL || strcmp(a->reasoning_format, "none") != 0);
    keep_marks(r);
    if (l->forced && r->control != NULL && r->server->marks.format == LT_PARSE_HARMONY) {
        return lt_api_refuse(e, "tool_choice",
                             "'reasoning.control' ends the reasoning with the channel of an "
                             "answer in this model's format, so no call can be required");
    }
    if (l->forced) {
        r->form.text = NULL; /* The form applies to text, and there will be none. */
    }
    return true;
}

/* ---- Rules ---- */

static bool rule(lt_reply *r, lt_api_error *e) {
    const lt_listen *l = &r->listen;

    if (!lt_reply_think(r, r->listen.opened, e)) {
        return false;
    }
    if (!l->tools && r->form.text == NULL) {
        return true;
    }
    r->ruled = r->compile.chat = true;
    r->compile.what = (lt_parse_grammar_options){.marks = r->server->marks,
                                                 .reasoning = lt_parse_reasons(&r->server->marks),
                                                 .thinks = l->opened,
                                                 .tools = l->callable,
                                                 .forced = l->forced,
                                                 .name = l->tool,
                                                 .parallel = r->params.parallel_tools &&
                                                             /* A named tool: only that one. */
                                                             l->tool == NULL,
                                                 .has_form = r->form.text != NULL,
                                                 .kind = r->form.kind,
                                                 .form = r->form.text,
                                                 .form_bytes = r->form.bytes};
    return true;
}

bool lt_chat_output_add(lt_reply *r, lt_ids *prompt, lt_api_error *e) {
    if (!rule(r, e)) {
        lt_ids_free(prompt);
        return false;
    }
    return lt_reply_add(r, prompt, e);
}
