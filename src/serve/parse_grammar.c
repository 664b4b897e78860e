/* parse_grammar.c: the language of a whole answer, in the spelling that parse.c reads.
 *
 *     answer  = [reasoning] body
 *     body    = calls                         where a call is forced
 *             | form                          response_format and similar fields
 *             | form or calls
 *             | content [calls]               content: any text without the mark that begins a call
 *
 * So when tools are available and none is forced, the text is free until the model writes the mark
 * of a call; from there on the tool's schema applies. Bare formats have no mark: an answer that
 * begins with {"name": is a call. Free text is any bytes: a character may be split between two
 * tokens, and a thinking budget may end within it. Special tokens are in it only where a format
 * has them.
 *
 * An answer in harmony is a sequence of messages, each with its channel; a call, or the final
 * channel, ends it. */
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/json.h"
#include "serve/grammar/impl.h"
#include "serve/grammar/json.h"
#include "serve/parse_impl.h"

typedef struct {
    lt_gast *g;
    const lt_grammar_vocab *v;
    const lt_parse_grammar_options *o;
} maker;

/* ---- Texts and marks ---- */

static bool is_special(const maker *m, const char *text) {
    return lt_gvocab_find_special(m->v, text, strlen(text)) >= 0;
}

/* A mark: the special token of this name if there is one, otherwise its text. */
static lt_gid mark(const maker *m, const char *text) {
    const int32_t id = lt_gvocab_find_special(m->v, text, strlen(text));
    unsigned char code[4];
    if (id < 0) {
        return lt_gast_text(m->g, text);
    }
    lt_gvocab_special_bytes(id, code);
    return lt_gast_bytes(m->g, (const char *)code, 4);
}

static lt_gid optional(lt_gast *g, lt_gid a) {
    return lt_gast_repeat(g, a, 0, 1);
}

static lt_gid any(lt_gast *g) {
    return lt_gast_repeat(g, lt_gast_byte(g, 0, 0xFE), 0, LT_GINF);
}

/* a without texts that contain the mark. Free text has no special tokens anyway. */
static lt_gid without(const maker *m, lt_gid a, const char *text) {
    lt_gast *g = m->g;
    if (is_special(m, text)) {
        return a;
    }
    return lt_gast_pair(g, LT_GNODE_MINUS, a,
                        lt_gast_seq3(g, any(g), lt_gast_text(g, text), any(g)));
}

/* ---- One call ---- */

/* {"name": "f", "KEY": arguments} */
static lt_gid json_call(lt_gast *g, const char *name, const char *key, lt_gid args) {
    const lt_gid ws = lt_gjson_space(g);
    const lt_gid parts[] = {lt_gast_text(g, "{"),
                            ws,
                            lt_gast_text(g, "\"name\""),
                            ws,
                            lt_gast_text(g, ":"),
                            ws,
                            lt_gjson_quoted(g, lt_gast_text(g, name)),
                            ws,
                            lt_gast_text(g, ","),
                            ws,
                            lt_gjson_quoted(g, lt_gast_text(g, key)),
                            ws,
                            lt_gast_text(g, ":"),
                            ws,
                            args,
                            ws,
                            lt_gast_text(g, "}")};
    return lt_gast_list(g, LT_GNODE_SEQ, parts, sizeof parts / sizeof *parts);
}

static lt_gid deepseek_call(const maker *m, const char *name, lt_gid args) {
    lt_gast *g = m->g;
    const lt_gid begin = mark(m, DS_CALL_BEGIN), sep = mark(m, DS_SEP), end = mark(m, DS_CALL_END),
                 called = lt_gast_text(g, name);
    if (m->o->marks.format == LT_PARSE_DEEPSEEK31) {
        return lt_gast_list(g, LT_GNODE_SEQ, (const lt_gid[]){begin, called, sep, args, end}, 5);
    }
    return lt_gast_list(g, LT_GNODE_SEQ,
                        (const lt_gid[]){begin, lt_gast_text(g, "function"), sep, called,
                                         lt_gast_text(g, "\n```json\n"), args,
                                         lt_gast_text(g, "\n```"), end},
                        8);
}

static lt_gid harmony_call(const maker *m, const char *name, lt_gid args) {
    lt_gast *g = m->g;
    const lt_gid json = lt_gast_text(g, "json");
    const lt_gid marked = lt_gast_seq3(g, optional(g, lt_gast_text(g, " ")),
                                       mark(m, "<|constrain|>"), json);
    const lt_gid kind = lt_gast_alt2(g, marked, lt_gast_seq2(g, lt_gast_text(g, " "), json));
    return lt_gast_list(g, LT_GNODE_SEQ,
                        (const lt_gid[]){mark(m, "<|channel|>"),
                                         lt_gast_text(g, "commentary to=functions."),
                                         lt_gast_text(g, name), kind, mark(m, "<|message|>"), args},
                        6);
}

/* [TOOL_CALLS]name[ARGS]{...}, in some versions with the call's id between them. */
static lt_gid mistral_call(const maker *m, const char *name, lt_gid args) {
    lt_gast *g = m->g;
    const lt_gid id = lt_gast_repeat(
        g, lt_gast_alt2(g, lt_gast_char_range(g, '0', '9'), lt_gast_char_range(g, 'a', 'z')), 9, 9);
    return lt_gast_list(g, LT_GNODE_SEQ,
                        (const lt_gid[]){mark(m, "[TOOL_CALLS]"), lt_gast_text(g, name),
                                         optional(g, lt_gast_seq2(g, mark(m, "[CALL_ID]"), id)),
                                         mark(m, "[ARGS]"), args},
                        5);
}

static lt_gid spell(const maker *m, const char *name, lt_gid args) {
    lt_gast *g = m->g;
    switch (m->o->marks.format) {
    case LT_PARSE_HERMES:
        return lt_gast_list(
            g, LT_GNODE_SEQ,
            (const lt_gid[]){mark(m, "<tool_call>"), optional(g, lt_gast_text(g, "\n")),
                             json_call(g, name, "arguments", args),
                             optional(g, lt_gast_text(g, "\n")), mark(m, "</tool_call>")},
            5);
    case LT_PARSE_MISTRAL_ARGS:
        return mistral_call(m, name, args);
    case LT_PARSE_DEEPSEEK:
    case LT_PARSE_DEEPSEEK31:
        return deepseek_call(m, name, args);
    case LT_PARSE_HARMONY:
        return harmony_call(m, name, args);
    case LT_PARSE_LLAMA3:
        return json_call(g, name, "parameters", args);
    case LT_PARSE_APERTUS:
        return lt_gast_list(g, LT_GNODE_SEQ,
                            (const lt_gid[]){lt_gast_text(g, "{\""), lt_gast_text(g, name),
                                             lt_gast_text(g, "\":"), lt_gjson_space(g), args,
                                             lt_gast_text(g, "}")},
                            6);
    case LT_PARSE_MISTRAL:
    case LT_PARSE_PLAIN:
        break;
    }
    return json_call(g, name, "arguments", args);
}

/* ---- All calls ---- */

static lt_err arguments(const maker *m, const json_t *function, lt_gid *out) {
    const json_t *schema = json_object_get(function, "parameters");
    char *text;
    json_t *tree;
    lt_err err;
    *out = lt_gjson_text(m->g, lt_gjson_object(m->g));
    if (!json_is_object(schema) || json_object_size(schema) == 0) {
        return LT_OK;
    }
    /* In the reader's tree, large integers would be reals. */
    text = lt_json_dumps_exact(schema, 0);
    tree = text != NULL ? lt_json_loadb(text, strlen(text), JSON_ALLOW_NUL, NULL) : NULL;
    free(text);
    if (tree == NULL) {
        LT_FAIL(LT_ERR_OOM, "a tool's schema");
    }
    err = lt_gschema_tree(m->g, tree, tree, out);
    json_decref(tree);
    if ((err == LT_ERR_UNSUPPORTED || err == LT_ERR_LIMIT) && !m->o->forced &&
        !json_is_true(json_object_get(function, "strict"))) {
        *out = lt_gjson_text(m->g, lt_gjson_object(m->g));
        return LT_OK;
    }
    return err;
}

/* One of the tools. */
static lt_err one_call(const maker *m, lt_gid *out) {
    lt_gids alts = {0};
    lt_err err = LT_OK;
    const json_t *tool;
    size_t i;
    json_array_foreach(m->o->tools, i, tool) {
        const json_t *f = json_object_get(tool, "function");
        const char *own = json_string_value(json_object_get(f, "name"));
        lt_gid args = -1;
        if (own != NULL && (m->o->name == NULL || strcmp(own, m->o->name) == 0)) {
            LT_TRY_DONE(arguments(m, f, &args));
            lt_gids_push(m->g, &alts, spell(m, own, args));
        }
    }
    if (alts.n == 0) {
        LT_FAIL_DONE(LT_ERR_NOT_FOUND, "tools: there is none%s%s",
                     m->o->name != NULL ? " named " : "", m->o->name != NULL ? m->o->name : "");
    }
    *out = lt_gast_ref(m->g,
                       lt_gast_new_rule(m->g, lt_gast_list(m->g, LT_GNODE_ALT, alts.v, alts.n)));
done:
    free(alts.v);
    return err;
}

/* The text around all calls, and between two of them. */
static lt_err calls_of(const maker *m, lt_gid *out) {
    lt_gast *g = m->g;
    const lt_gid ws = lt_gjson_space(g);
    const lt_parse_format f = m->o->marks.format;
    const bool bare = f == LT_PARSE_LLAMA3 || f == LT_PARSE_PLAIN || f == LT_PARSE_HARMONY;
    const lt_gid between = f == LT_PARSE_MISTRAL || f == LT_PARSE_APERTUS
                               ? lt_gast_seq3(g, ws, lt_gast_text(g, ","), ws)
                           : f == LT_PARSE_MISTRAL_ARGS ? lt_gast_empty(g)
                                                        : optional(g, lt_gast_text(g, "\n"));
    lt_gid call = -1;
    LT_TRY(one_call(m, &call));
    if (m->o->parallel && !bare) {
        call = lt_gast_seq2(g, call, lt_gast_repeat(g, lt_gast_seq2(g, between, call), 0, LT_GINF));
    }
    *out = call;
    if (f == LT_PARSE_MISTRAL) {
        *out = lt_gast_list(g, LT_GNODE_SEQ,
                            (const lt_gid[]){mark(m, "[TOOL_CALLS]"), ws, lt_gast_text(g, "["),
                                             call, lt_gast_text(g, "]")},
                            5);
    } else if (f == LT_PARSE_APERTUS) {
        *out = lt_gast_list(g, LT_GNODE_SEQ,
                            (const lt_gid[]){mark(m, "<|tools_prefix|>"), lt_gast_text(g, "["),
                                             call, lt_gast_text(g, "]"),
                                             mark(m, "<|tools_suffix|>")},
                            5);
    } else if (f == LT_PARSE_DEEPSEEK || f == LT_PARSE_DEEPSEEK31) {
        *out = lt_gast_seq3(g, mark(m, DS_CALLS_BEGIN), call, mark(m, DS_CALLS_END));
    } else if (f == LT_PARSE_LLAMA3) {
        *out = lt_gast_seq2(g, optional(g, mark(m, "<|python_tag|>")), call);
    }
    return LT_OK;
}

/* ---- The answer ---- */

/* Text that a call may follow, or no text. */
static lt_gid content(const maker *m) {
    lt_gast *g = m->g;
    lt_gid text = any(g);
    for (const char *const *mark = lt_parse_call_marks(m->o->marks.format); *mark != NULL; mark++) {
        text = mark[0][0] == '[' && strcmp(*mark, "[ARGS]") == 0 ? text : without(m, text, *mark);
    }
    if (m->o->marks.format == LT_PARSE_LLAMA3 || m->o->marks.format == LT_PARSE_PLAIN) {
        const lt_gid ws = lt_gast_repeat(
            g, lt_gast_alt2(g, lt_gast_byte(g, ' ', ' '), lt_gast_byte(g, '\n', '\n')), 0, LT_GINF);
        const lt_gid call[] = {ws, lt_gast_text(g, "{"), ws,    lt_gast_text(g, "\"name\""),
                               ws, lt_gast_text(g, ":"), any(g)};
        text = lt_gast_pair(g, LT_GNODE_MINUS, text, lt_gast_list(g, LT_GNODE_SEQ, call, 7));
    }
    return text;
}

/* Reasoning up to its closing mark, and the white space after it. */
static lt_gid thoughts(const maker *m) {
    lt_gast *g = m->g;
    const lt_parse_marks *marks = &m->o->marks;
    const lt_gid gap = lt_gast_repeat(g, lt_gast_text(g, "\n"), 0, 2);
    lt_gid end = mark(m, marks->think_close), inside;
    if (marks->format == LT_PARSE_APERTUS && m->o->tools != NULL) {
        end = optional(g, end); /* The model calls inside its reasoning. */
    }
    inside = lt_gast_seq3(g, without(m, any(g), marks->think_close), end, gap);
    if (m->o->thinks) {
        return inside;
    }
    return optional(g, lt_gast_seq3(g, lt_gast_repeat(g, lt_gast_text(g, "\n"), 0, 1),
                                    mark(m, marks->think_open), inside));
}

static lt_gid harmony_message(const maker *m, const char *channel, lt_gid body) {
    lt_gast *g = m->g;
    return lt_gast_list(g, LT_GNODE_SEQ,
                        (const lt_gid[]){mark(m, "<|channel|>"), lt_gast_text(g, channel),
                                         mark(m, "<|message|>"), body},
                        4);
}

/* form, calls: -1 if there are none. */
static lt_gid harmony(const maker *m, lt_gid form, lt_gid calls) {
    lt_gast *g = m->g;
    const lt_gid text = without(m, without(m, any(g), "<|end|>"), "<|channel|>");
    const lt_gid aside = lt_gast_alt2(g, harmony_message(m, "analysis", text),
                                      harmony_message(m, "commentary", text));
    const lt_gid next = lt_gast_seq3(g, mark(m, "<|end|>"), mark(m, "<|start|>"),
                                     lt_gast_text(g, "assistant"));
    const lt_gid last = harmony_message(m, "final", form >= 0 ? form : text);
    const lt_gid asides = lt_gast_repeat(g, lt_gast_seq2(g, aside, next), 0, LT_GINF);
    return lt_gast_seq2(g, m->o->thinks ? lt_gast_seq3(g, text, next, asides) : asides,
                        calls < 0      ? last
                        : m->o->forced ? calls
                                       : lt_gast_alt2(g, last, calls));
}

static lt_err answer(const maker *m) {
    const lt_parse_grammar_options *o = m->o;
    lt_gast *g = m->g;
    lt_gid form = -1, calls = -1, body;

    if (o->has_form && !o->forced) {
        LT_TRY(lt_grammar_read(g, m->v, o->kind, o->form, o->form_bytes));
        form = lt_gast_ref(g, g->root);
    }
    if (o->tools != NULL) {
        LT_TRY(calls_of(m, &calls));
    }
    if (o->marks.format == LT_PARSE_HARMONY) {
        body = harmony(m, form, calls);
    } else if (calls < 0 || form >= 0) {
        body = calls < 0 ? form : lt_gast_alt2(g, form, calls);
    } else if (o->forced) {
        body = calls;
    } else if (o->marks.format == LT_PARSE_LLAMA3 || o->marks.format == LT_PARSE_PLAIN) {
        body = lt_gast_alt2(g, content(m), calls);
    } else {
        body = lt_gast_seq2(g, content(m), optional(g, calls));
    }
    if (o->reasoning && o->marks.think_close != NULL) {
        body = lt_gast_seq2(g, thoughts(m), body);
    }
    g->root = lt_gast_new_rule(g, body);
    return lt_gast_check(g);
}

lt_err lt_parse_grammar(lt_grammar **out, const lt_grammar_vocab *v,
                        const lt_parse_grammar_options *o) {
    lt_gast g = {.stop = o->stop};
    lt_err err = answer(&(maker){.g = &g, .v = v, .o = o});
    if (err == LT_OK) {
        err = lt_grammar_open_tree(out, v, &g);
    }
    lt_gast_free(&g);
    return err;
}
