/* chat_template.c: finds the templates of models, opens and renders them. jinja.h describes the
 * language. */
#include "data/chat_template.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "data/chat_format.h"
#include "data/jinja/jinja.h"
#include "data/tokenizer/bpe.h"

/* Largest tokenizer_config.json: some list every added token. */
#define CONFIG_BYTES ((size_t)64 << 20)

struct lt_chat_template {
    char *name, *text;
    lt_jpool pool; /* Memory of the tree. */
    lt_jnode *body;
    json_t *defaults;
    bool marks_answers;
};

static bool has_generation(const lt_jtok *tokens, size_t n) {
    for (size_t i = 0; i + 1 < n; i++) {
        if (tokens[i].kind == LT_TOK_BLOCK_BEGIN && tokens[i + 1].kind == LT_TOK_NAME &&
            tokens[i + 1].n == 10 && memcmp(tokens[i + 1].s, "generation", 10) == 0) {
            return true;
        }
    }
    return false;
}

lt_err lt_chat_template_open(lt_chat_template **out, const char *text, size_t bytes,
                             const char *name) {
    lt_err err = LT_OK;
    lt_chat_template *t = calloc(1, sizeof *t);
    lt_jtok *tokens = NULL;
    size_t n = 0;

    LT_ASSERT(out != NULL && name != NULL);
    if (t == NULL) {
        LT_FAIL(LT_ERR_OOM, "%s", name);
    }
    t->pool.limit_bytes = LT_JINJA_POOL_BYTES;
    t->name = strdup(name);
    t->text = malloc(bytes + 1);
    t->defaults = json_object();
    if (t->name == NULL || t->text == NULL || t->defaults == NULL) {
        LT_FAIL_DONE(LT_ERR_OOM, "%s: a template of %zu bytes", name, bytes);
    }
    if (bytes > LT_TEMPLATE_BYTES) {
        LT_FAIL_DONE(LT_ERR_LIMIT, "%s: a template of %zu bytes; at most %zu are read", name, bytes,
                     LT_TEMPLATE_BYTES);
    }
    if (bytes > 0) {
        memcpy(t->text, text, bytes);
    }
    t->text[bytes] = 0;
    LT_TRY_DONE(lt_jinja_lex(&t->pool, t->text, bytes, t->name, &tokens, &n));
    LT_TRY_DONE(lt_jinja_parse(&t->pool, tokens, n, t->name, &t->body));
    t->marks_answers = has_generation(tokens, n);
    *out = t;
    t = NULL;
done:
    lt_chat_template_close(t);
    return err;
}

void lt_chat_template_close(lt_chat_template *t) {
    if (t == NULL) {
        return;
    }
    json_decref(t->defaults);
    lt_jpool_free(&t->pool);
    free(t->text);
    free(t->name);
    free(t);
}

const char *lt_chat_template_text(const lt_chat_template *t) {
    return t->text;
}

bool lt_chat_template_marks_answers(const lt_chat_template *t) {
    return t->marks_answers;
}

lt_err lt_chat_template_default(lt_chat_template *t, const char *name, const json_t *value) {
    json_t *copy = json_deep_copy(value);
    if (copy == NULL || json_object_set_new(t->defaults, name, copy) != 0) {
        LT_FAIL(LT_ERR_OOM, "%s: default of %s", t->name, name);
    }
    return LT_OK;
}

/* ---- the table of formats as templates ---- */

static lt_err put_literal(lt_jbuf *b, const char *text) {
    json_t *s = json_string(text);
    char *quoted = s != NULL ? json_dumps(s, JSON_ENCODE_ANY) : NULL;
    lt_err err = LT_ERR_OOM;
    if (quoted != NULL) { /* A JSON string literal means the same string in a template. */
        err = lt_jbuf_puts(b, quoted);
    } else {
        lt_error_set(LT_ERR_OOM, "a literal of a chat format");
    }
    free(quoted);
    json_decref(s);
    return err;
}

static lt_err put_role(lt_jbuf *b, const char *test, const char *open, const char *close) {
    LT_TRY(lt_jbuf_puts(b, "{% "));
    LT_TRY(lt_jbuf_puts(b, test));
    LT_TRY(lt_jbuf_puts(b, " %}{{ "));
    LT_TRY(put_literal(b, open));
    LT_TRY(lt_jbuf_puts(b, " + text(m.content) + "));
    LT_TRY(put_literal(b, close));
    return lt_jbuf_puts(b, " }}");
}

static lt_err format_text(lt_jbuf *b, const lt_chat_format *f) {
    LT_TRY(lt_jbuf_puts(
        b, "{% macro text(c) %}{% if c is string %}{{ c }}{% elif c is iterable %}{% for p in c %}"
           "{{ p.text }}{% endfor %}{% endif %}{% endmacro %}{{ "));
    LT_TRY(put_literal(b, f->begin));
    LT_TRY(lt_jbuf_puts(b, " }}"));
    if (f->system_default != NULL) {
        LT_TRY(lt_jbuf_puts(b, "{% if not messages or messages[0].role != 'system' %}{{ "));
        LT_TRY(put_literal(b, f->system_open));
        LT_TRY(lt_jbuf_puts(b, " + "));
        LT_TRY(put_literal(b, f->system_default));
        LT_TRY(lt_jbuf_puts(b, " + "));
        LT_TRY(put_literal(b, f->system_close));
        LT_TRY(lt_jbuf_puts(b, " }}{% endif %}"));
    }
    LT_TRY(lt_jbuf_puts(b, "{% for m in messages %}"));
    LT_TRY(put_role(b, "if m.role == 'system' or m.role == 'developer'", f->system_open,
                    f->system_close));
    LT_TRY(put_role(b, "elif m.role == 'assistant'", f->answer_open, f->answer_close));
    LT_TRY(put_role(b, "else", f->user_open, f->user_close));
    LT_TRY(lt_jbuf_puts(b, "{% endif %}{% endfor %}{% if add_generation_prompt %}{{ "));
    LT_TRY(put_literal(b, f->answer_open));
    return lt_jbuf_puts(b, " }}{% endif %}");
}

lt_err lt_chat_template_open_format(lt_chat_template **out, const char *format) {
    const lt_chat_format *f = lt_chat_format_find(format);
    lt_jpool pool = {.limit_bytes = LT_TEMPLATE_BYTES};
    lt_jbuf b = {.pool = &pool};
    lt_err err;
    if (f == NULL) {
        LT_FAIL(LT_ERR_NOT_FOUND, "chat template %s: neither a file nor one of %s", format,
                lt_chat_format_names());
    }
    err = format_text(&b, f);
    if (err == LT_OK) {
        err = lt_chat_template_open(out, b.s, b.n, f->name);
    }
    lt_jpool_free(&pool);
    return err;
}

/* ---- a model's own ---- */

/* bos_token, eos_token and the others: a string, or an object with "content". */
static lt_err take_special(lt_chat_template *t, const json_t *config) {
    static const char *const names[] = {"bos_token", "eos_token", "unk_token", "pad_token",
                                        "sep_token", "cls_token", "mask_token"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const json_t *v = json_object_get(config, names[i]);
        v = json_is_object(v) ? json_object_get(v, "content") : v;
        if (json_is_string(v)) {
            LT_TRY(lt_chat_template_default(t, names[i], v));
        }
    }
    return LT_OK;
}

static lt_err take_id(lt_chat_template *t, const lt_tokenizer *tokenizer, const char *name,
                      uint32_t id) {
    size_t n = 0;
    const char *piece = id == LT_TOKEN_NONE ? NULL : lt_tokenizer_piece(tokenizer, id, &n);
    json_t *text;
    lt_err err;
    if (piece == NULL || json_object_get(t->defaults, name) != NULL) {
        return LT_OK;
    }
    text = json_stringn(piece, n);
    if (text == NULL) {
        return LT_OK; /* Not UTF-8, so a template could not print it. */
    }
    err = lt_chat_template_default(t, name, text);
    json_decref(text);
    return err;
}

/* Read the chat_template member: a string, or a list of {"name", "template"}. NULL: none of this
 * name. */
static const char *pick(const json_t *member, const char *variant) {
    const json_t *row;
    size_t i;
    if (json_is_string(member)) {
        return json_string_value(member);
    }
    json_array_foreach(member, i, row) {
        const char *name = json_string_value(json_object_get(row, "name"));
        if (name != NULL && strcmp(name, variant) == 0) {
            return json_string_value(json_object_get(row, "template"));
        }
    }
    return NULL;
}

/* path itself if it is a folder, otherwise the folder it is in. */
static lt_err folder_of(char out[LT_PATH_BYTES], const char *path) {
    const char *slash = strrchr(path, '/');
    const int n = snprintf(out, LT_PATH_BYTES, "%.*s",
                           lt_file_is_dir(path) ? (int)strlen(path)
                           : slash != NULL      ? (int)(slash - path)
                                                : 1,
                           lt_file_is_dir(path) || slash != NULL ? path : ".");
    if (n < 0 || n >= LT_PATH_BYTES) {
        LT_FAIL(LT_ERR_LIMIT, "path of %zu bytes", strlen(path));
    }
    return LT_OK;
}

/* Read the template of a folder: chat_template.jinja (additional_chat_templates/NAME.jinja), or
 * the member of config. *text is malloc'ed or NULL. */
static lt_err find_text(const char *folder, const json_t *config, const char *variant, char **text,
                        size_t *bytes, char path[LT_PATH_BYTES]) {
    const bool plain = strcmp(variant, "default") == 0;
    char more[LT_PATH_BYTES];
    const char *member;
    *text = NULL;
    if (plain) {
        LT_TRY(lt_path_join(path, folder, "chat_template.jinja"));
    } else {
        if (strchr(variant, '/') != NULL || strlen(variant) > 200) {
            LT_FAIL(LT_ERR_ARG, "a template named '%.200s'", variant);
        }
        snprintf(more, sizeof more, "additional_chat_templates/%s.jinja", variant);
        LT_TRY(lt_path_join(path, folder, more));
    }
    if (lt_file_exists(path)) {
        return lt_file_read(text, bytes, path, LT_TEMPLATE_BYTES);
    }
    member = pick(json_object_get(config, "chat_template"), variant);
    if (member != NULL) {
        LT_TRY(lt_path_join(path, folder, "tokenizer_config.json"));
        *text = strdup(member);
        *bytes = strlen(member);
        if (*text == NULL) {
            LT_FAIL(LT_ERR_OOM, "%s: chat_template", path);
        }
    }
    return LT_OK;
}

/* tokenizer_config.json in or beside path; *config stays NULL if there is none. */
static lt_err load_config(json_t **config, const char *path) {
    char folder[LT_PATH_BYTES], file[LT_PATH_BYTES];
    LT_TRY(folder_of(folder, path));
    LT_TRY(lt_path_join(file, folder, "tokenizer_config.json"));
    return lt_path_has_suffix(path, ".gguf") || !lt_file_has_name(file)
               ? LT_OK
               : lt_json_load(config, file, CONFIG_BYTES);
}

static lt_err name_tokens(lt_chat_template *t, const json_t *config,
                          const lt_tokenizer *tokenizer) {
    const lt_tokenizer_info info = tokenizer != NULL ? lt_tokenizer_describe(tokenizer)
                                                     : (lt_tokenizer_info){0};
    LT_TRY(take_special(t, config));
    if (tokenizer != NULL) {
        LT_TRY(take_id(t, tokenizer, "bos_token", info.bos));
        LT_TRY(take_id(t, tokenizer, "eos_token", info.eos));
    }
    return LT_OK;
}

lt_err lt_chat_template_name_tokens(lt_chat_template *t, const char *path,
                                    const lt_tokenizer *tokenizer) {
    json_t *config = NULL;
    lt_err err = load_config(&config, path);
    err = err == LT_OK ? name_tokens(t, config, tokenizer) : err;
    json_decref(config);
    return err;
}

lt_err lt_chat_template_open_model(lt_chat_template **out, const char *path,
                                   const lt_tokenizer *tokenizer, const char *variant) {
    lt_err err = LT_OK;
    char folder[LT_PATH_BYTES], file[LT_PATH_BYTES];
    json_t *config = NULL;
    lt_chat_template *t = NULL;
    char *text = NULL;
    size_t bytes = 0;
    const char *held = tokenizer != NULL ? lt_tokenizer_describe(tokenizer).chat_template : NULL;

    LT_TRY_DONE(folder_of(folder, path));
    LT_TRY_DONE(load_config(&config, path));
    if (!lt_path_has_suffix(path, ".gguf")) {
        LT_TRY_DONE(
            find_text(folder, config, variant != NULL ? variant : "default", &text, &bytes, file));
    }
    if (text != NULL) {
        LT_TRY_DONE(lt_chat_template_open(&t, text, bytes, file));
    } else if (held != NULL && variant == NULL) {
        LT_TRY_DONE(lt_chat_template_open(&t, held, strlen(held), "tokenizer.chat_template"));
    } else {
        LT_FAIL_DONE(LT_ERR_NOT_FOUND, "%s: no chat template%s%s", path,
                     variant != NULL ? " named " : "", variant != NULL ? variant : "");
    }
    LT_TRY_DONE(name_tokens(t, config, tokenizer));
    *out = t;
    t = NULL;
done:
    lt_chat_template_close(t);
    json_decref(config);
    free(text);
    return err;
}

/* ---- rendering ---- */

static lt_err set_globals(lt_jrun *r, const json_t *from) {
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)from, key, value) {
        lt_jv v;
        LT_TRY(lt_jv_from_json(&r->pool, value, &v));
        LT_TRY(lt_jscope_set(r, r->globals, LT_JV_OF_STR(key, strlen(key)), v));
    }
    return LT_OK;
}

static lt_err render(lt_jrun *r, const lt_chat_template *t, const json_t *context, lt_jbuf *out) {
    const json_t *now = json_object_get(context, "lateen_now");
    lt_jscope *top = NULL;
    lt_jflow flow;
    r->now_s = json_is_integer(now) ? json_integer_value(now) : -1;
    r->out = r->top = out;
    LT_TRY(lt_jscope_open(r, NULL, &r->globals));
    LT_TRY(set_globals(r, t->defaults));
    LT_TRY(set_globals(r, context));
    LT_TRY(lt_jscope_open(r, r->globals, &top));
    return lt_jinja_exec(r, top, t->body, &flow);
}

/* The pairs that a rendering recorded, as ascending spans clipped to the text. A macro that is
 * called early may record pairs out of order. */
static lt_err take_spans(const lt_jlist *pairs, size_t bytes, lt_text_span **spans, size_t *n) {
    size_t after = 0;
    *n = 0;
    *spans = malloc((pairs->n / 2 + 1) * sizeof **spans);
    if (*spans == NULL) {
        LT_FAIL(LT_ERR_OOM, "%zu answers", pairs->n / 2);
    }
    for (size_t i = 0; i + 1 < pairs->n; i += 2) {
        size_t begin = (size_t)pairs->v[i].i, end = (size_t)pairs->v[i + 1].i;
        begin = begin > after ? begin : after;
        end = end < bytes ? end : bytes;
        if (begin < end) {
            (*spans)[(*n)++] = (lt_text_span){begin, end};
            after = end;
        }
    }
    return LT_OK;
}

lt_err lt_chat_template_render_answers(const lt_chat_template *t, const json_t *context,
                                       char **text, size_t *bytes, lt_text_span **answers,
                                       size_t *n_answers) {
    lt_jrun r = {.name = t->name, .pool = {.limit_bytes = LT_JINJA_POOL_BYTES}};
    lt_jbuf out = {.pool = &r.pool};
    lt_jv pairs = LT_JV(NONE);
    lt_err err = LT_OK;
    char *made = NULL;

    if (!json_is_object(context)) {
        LT_FAIL(LT_ERR_ARG, "%s: the context is not an object", t->name);
    }
    if (answers != NULL) {
        LT_TRY_DONE(lt_jv_new_list(&r.pool, LT_JLIST_LIST, 16, &pairs));
        r.generated = pairs.list;
    }
    LT_TRY_DONE(render(&r, t, context, &out));
    made = malloc(out.n + 1);
    if (made == NULL) {
        LT_FAIL_DONE(LT_ERR_OOM, "%s: a text of %zu bytes", t->name, out.n);
    }
    if (out.n > 0) {
        memcpy(made, out.s, out.n);
    }
    made[out.n] = 0;
    LT_TRY_DONE(answers != NULL ? take_spans(pairs.list, out.n, answers, n_answers) : LT_OK);
    *text = made;
    *bytes = out.n;
    made = NULL;
done:
    free(made);
    lt_jpool_free(&r.pool);
    return err;
}

lt_err lt_chat_template_render(const lt_chat_template *t, const json_t *context, char **text,
                               size_t *bytes) {
    return lt_chat_template_render_answers(t, context, text, bytes, NULL, NULL);
}

lt_err lt_chat_ids_begin(lt_ids *ids, const lt_tokenizer_info *info) {
    if (!info->adds_bos || info->bos == LT_TOKEN_NONE ||
        (ids->n > 0 && ids->data[0] == info->bos)) {
        return LT_OK;
    }
    LT_TRY(lt_ids_reserve(ids, 1));
    memmove(ids->data + 1, ids->data, ids->n * sizeof *ids->data);
    ids->data[0] = info->bos;
    ids->n++;
    return LT_OK;
}
