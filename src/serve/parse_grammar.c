/* parse_grammar.c: a grammar that makes the model call a tool, in the spelling that parse.c reads. */
#include <stdlib.h>
#include <string.h>

#include "serve/grammar_impl.h"
#include "serve/grammar_json.h"
#include "serve/parse.h"

#define DS "\xEF\xBD\x9C"
#define SP "\xE2\x96\x81"

/* A mark: the special token of this name where there is one, else its text. */
static lt_gid mark(lt_gast *g, const lt_grammar_vocab *v, const char *text) {
    const int32_t id = lt_gvocab_find_special(v, text, strlen(text));
    unsigned char code[4];
    if (id < 0) {
        return lt_gast_text(g, text);
    }
    lt_gvocab_special_bytes(id, code);
    return lt_gast_bytes(g, (const char *)code, 4);
}

/* {"name": "f", "KEY": arguments} */
static lt_gid json_call(lt_gast *g, const char *name, const char *key, lt_gid args) {
    const lt_gid ws = lt_gjson_space(g);
    const lt_gid parts[] = {lt_gast_text(g, "{"),
                            ws,
                            lt_gast_text(g, "\"name\""),
                            ws,
                            lt_gast_text(g, ":"),
                            ws,
                            lt_gjson_quoted(g, lt_gjson_content(g, name, strlen(name))),
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

/* One call with the marks around it. */
static lt_gid spell(lt_gast *g, const lt_grammar_vocab *v, lt_parse_format format, const char *name,
                    lt_gid args) {
    const lt_gid newline = lt_gast_repeat(g, lt_gast_text(g, "\n"), 0, 1);
    switch (format) {
    case LT_PARSE_HERMES:
        return lt_gast_list(g, LT_GNODE_SEQ,
                            (const lt_gid[]){mark(g, v, "<tool_call>"), newline,
                                             json_call(g, name, "arguments", args), newline,
                                             mark(g, v, "</tool_call>")},
                            5);
    case LT_PARSE_MISTRAL:
        return json_call(g, name, "arguments", args);
    case LT_PARSE_DEEPSEEK:
        return lt_gast_list(g, LT_GNODE_SEQ,
                            (const lt_gid[]){mark(g, v, "<" DS "tool" SP "call" SP "begin" DS ">"),
                                             lt_gast_text(g, "function"),
                                             mark(g, v, "<" DS "tool" SP "sep" DS ">"),
                                             lt_gast_text(g, name), lt_gast_text(g, "\n```json\n"),
                                             args, lt_gast_text(g, "\n```"),
                                             mark(g, v, "<" DS "tool" SP "call" SP "end" DS ">")},
                            8);
    case LT_PARSE_HARMONY:
        return lt_gast_list(g, LT_GNODE_SEQ,
                            (const lt_gid[]){mark(g, v, "<|channel|>"),
                                             lt_gast_text(g, "commentary to=functions."),
                                             lt_gast_text(g, name), lt_gast_text(g, " "),
                                             mark(g, v, "<|constrain|>"), lt_gast_text(g, "json"),
                                             mark(g, v, "<|message|>"), args},
                            8);
    case LT_PARSE_LLAMA3:
    case LT_PARSE_PLAIN:
        break;
    }
    return json_call(g, name, "parameters", args);
}

/* What stands around all calls, and between two. */
static lt_gid assemble(lt_gast *g, const lt_grammar_vocab *v, lt_parse_format format, lt_gid call,
                       bool parallel) {
    const bool many = parallel && (format == LT_PARSE_HERMES || format == LT_PARSE_MISTRAL ||
                                   format == LT_PARSE_DEEPSEEK);
    const lt_gid ws = lt_gjson_space(g);
    const lt_gid between = format == LT_PARSE_MISTRAL
                               ? lt_gast_seq3(g, ws, lt_gast_text(g, ","), ws)
                               : lt_gast_repeat(g, lt_gast_text(g, "\n"), 0, 1);
    const lt_gid calls =
        many ? lt_gast_seq2(g, call, lt_gast_repeat(g, lt_gast_seq2(g, between, call), 0, LT_GINF))
             : call;
    if (format == LT_PARSE_MISTRAL) {
        return lt_gast_list(g, LT_GNODE_SEQ,
                            (const lt_gid[]){mark(g, v, "[TOOL_CALLS]"), ws, lt_gast_text(g, "["),
                                             calls, lt_gast_text(g, "]")},
                            5);
    }
    if (format == LT_PARSE_DEEPSEEK) {
        return lt_gast_seq3(g, mark(g, v, "<" DS "tool" SP "calls" SP "begin" DS ">"), calls,
                            mark(g, v, "<" DS "tool" SP "calls" SP "end" DS ">"));
    }
    return calls;
}

/* Any text without </think>, then </think> and white space. */
static lt_gid thoughts(lt_gast *g, const lt_grammar_vocab *v) {
    const lt_gid any = lt_gast_repeat(g, lt_gast_char_range(g, 0, 0x10FFFF), 0, LT_GINF),
                 end = mark(g, v, "</think>");
    return lt_gast_seq3(g, lt_gast_pair(g, LT_GNODE_MINUS, any, lt_gast_seq3(g, any, end, any)),
                        end, lt_gast_repeat(g, lt_gast_text(g, "\n"), 0, 2));
}

static lt_err build(lt_gast *g, const lt_grammar_vocab *v, lt_parse_format format,
                    const json_t *tools, const char *name, bool parallel, bool thinks) {
    lt_gids alts = {0};
    const json_t *tool;
    size_t i;
    lt_gid all;
    lt_err err = LT_OK;
    json_array_foreach(tools, i, tool) {
        const json_t *f = json_object_get(tool, "function"), *parameters;
        const char *own;
        lt_gid args = -1;
        f = json_is_object(f) ? f : tool;
        own = json_string_value(json_object_get(f, "name"));
        parameters = json_object_get(f, "parameters");
        if (own == NULL || (name != NULL && strcmp(own, name) != 0)) {
            continue;
        }
        if (json_is_object(parameters) &&
            json_object_size(parameters) >
                0) { /* References are this schema's own: no other tool's rules may answer to them. */
            for (size_t k = 0; k < g->n_rules; k++) {
                if (g->rules[k].name != NULL && g->rules[k].name[0] == '#') {
                    free(g->rules[k].name);
                    g->rules[k].name = NULL;
                }
            }
            LT_TRY_DONE(lt_gschema_tree(g, parameters, parameters, &args));
        } else {
            args = lt_gjson_object(g);
        }
        lt_gids_push(g, &alts, spell(g, v, format, own, args));
    }
    if (alts.n == 0) {
        LT_FAIL_DONE(LT_ERR_NOT_FOUND, "tools: there is none%s%s", name != NULL ? " named " : "",
                     name != NULL ? name : "");
    }
    all = assemble(
        g, v, format,
        lt_gast_ref(g, lt_gast_new_rule(g, lt_gast_list(g, LT_GNODE_ALT, alts.v, alts.n))),
        parallel);
    g->root = lt_gast_new_rule(g, thinks ? lt_gast_seq2(g, thoughts(g, v), all) : all);
done:
    free(alts.v);
    return err;
}

lt_err lt_parse_grammar(lt_grammar **out, const lt_grammar_vocab *v, lt_parse_format format,
                        const json_t *tools, const char *name, bool parallel, bool thinks) {
    lt_gast g = {0};
    lt_err err = build(&g, v, format, tools, name, parallel, thinks);
    if (err == LT_OK) {
        err = lt_grammar_open_tree(out, v, &g);
    }
    lt_gast_free(&g);
    return err;
}
