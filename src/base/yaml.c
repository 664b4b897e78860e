/* yaml.c: a small state machine over libyaml's events.
 *
 *     stack of frames: MAPPING expects key, then value; SEQUENCE expects scalars only, or mappings
 *     whose keys get the index: "layers.0.kind". */
#include "base/yaml.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <yaml.h>

#include "base/error.h"
#include "base/file.h"

#define MAX_DEPTH  16
#define KEY_BYTES  512
#define FILE_BYTES ((size_t)16 << 20)

typedef struct {
    bool is_sequence, has_key, holds_scalars;
    bool is_filled;    /* A mapping that has had a key. */
    size_t prefix_len; /* Length of the path up to and without this frame's key. */
    size_t index;      /* Next element of a sequence. */
    size_t entry;      /* The row that a sequence of scalars fills. */
} frame;

typedef struct {
    lt_yaml_entry *rows;
    size_t n, room;
    frame stack[MAX_DEPTH];
    int depth;
    int documents;
    char path[KEY_BYTES];
    const char *name;
} reader;

/* Whether its key has an empty value, as a key followed by nothing has. */
static bool is_empty(const frame *f) {
    return f->is_sequence ? f->index == 0 && !f->holds_scalars : !f->is_filled;
}

static lt_err push_name(reader *r, const char *word, int line) {
    const size_t at = r->stack[r->depth - 1].prefix_len;
    const int put = snprintf(r->path + at, KEY_BYTES - at, "%s%s", at > 0 ? "." : "", word);
    if (put < 0 || (size_t)put >= KEY_BYTES - at) {
        LT_FAIL(LT_ERR_LIMIT, "%s:%d: key too long", r->name, line);
    }
    return LT_OK;
}

static bool is_word(const char *text, const char *const *words) {
    while (*words != NULL && strcmp(text, *words) != 0) {
        words++;
    }
    return *words != NULL;
}

/* The kind of a scalar by YAML 1.2's core schema. The value of a key that is followed by nothing is
 * an empty text. */
static lt_yaml_kind kind_of(const char *text, bool plain) {
    static const char *const nulls[] = {"null", "Null", "NULL", "~", NULL};
    static const char *const bools[] = {"true", "True", "TRUE", "false", "False", "FALSE", NULL};
    return !plain                 ? LT_YAML_TEXT
           : is_word(text, nulls) ? LT_YAML_NULL
           : is_word(text, bools) ? LT_YAML_BOOL
                                  : LT_YAML_TEXT;
}

static lt_err add_row(reader *r, const char *value, lt_yaml_kind kind, int line) {
    for (size_t i = 0; i < r->n; i++) {
        if (strcmp(r->rows[i].key, r->path) == 0) {
            LT_FAIL(LT_ERR_FORMAT, "%s:%d: key '%s' is already on line %d", r->name, line, r->path,
                    r->rows[i].line);
        }
    }
    if (r->n == r->room) {
        const size_t room = r->room == 0 ? 32 : 2 * r->room;
        lt_yaml_entry *grown = realloc(r->rows, room * sizeof *grown);
        if (grown == NULL) {
            LT_FAIL(LT_ERR_OOM, "%s: %zu keys", r->name, room);
        }
        r->rows = grown;
        r->room = room;
    }
    r->rows[r->n] = (lt_yaml_entry){
        .key = strdup(r->path), .value = strdup(value), .line = line, .kind = kind};
    r->n++;
    if (r->rows[r->n - 1].key == NULL || r->rows[r->n - 1].value == NULL) {
        LT_FAIL(LT_ERR_OOM, "%s: key %s", r->name, r->path);
    }
    return LT_OK;
}

static lt_err append_scalar(reader *r, size_t entry, const char *value) {
    const size_t old = strlen(r->rows[entry].value), more = strlen(value);
    char *grown = realloc(r->rows[entry].value, old + more + 2);
    if (grown == NULL) {
        LT_FAIL(LT_ERR_OOM, "%s: key %s", r->name, r->rows[entry].key);
    }
    snprintf(grown + old, more + 2, ",%s", value);
    r->rows[entry].value = grown;
    return LT_OK;
}

static lt_err on_scalar(reader *r, const char *value, bool plain, int line) {
    const lt_yaml_kind kind = kind_of(value, plain);
    frame *f;
    if (r->depth == 0) {
        LT_FAIL(LT_ERR_FORMAT, "%s:%d: expected 'key: value'", r->name, line);
    }
    f = &r->stack[r->depth - 1];
    if (f->is_sequence) {
        if (f->index++ == 0) {
            f->holds_scalars = true;
            LT_TRY(add_row(r, value, LT_YAML_LIST, line));
            f->entry = r->n - 1;
            r->rows[f->entry].holds_null = kind == LT_YAML_NULL;
            return LT_OK;
        }
        if (!f->holds_scalars) {
            LT_FAIL(LT_ERR_FORMAT, "%s:%d: a list mixes scalars and mappings", r->name, line);
        }
        r->rows[f->entry].holds_null = r->rows[f->entry].holds_null || kind == LT_YAML_NULL;
        return append_scalar(r, f->entry, value);
    }
    if (!f->has_key) {
        f->has_key = f->is_filled = true;
        return push_name(r, value, line);
    }
    f->has_key = false;
    return add_row(r, value, kind, line);
}

static lt_err open_frame(reader *r, bool is_sequence, int line) {
    if (r->depth == MAX_DEPTH) {
        LT_FAIL(LT_ERR_LIMIT, "%s:%d: nesting deeper than %d", r->name, line, MAX_DEPTH);
    }
    if (r->depth > 0) {
        frame *f = &r->stack[r->depth - 1];
        if (!f->is_sequence && !f->has_key) {
            LT_FAIL(LT_ERR_FORMAT, "%s:%d: a key must be a plain word", r->name, line);
        }
        if (f->is_sequence) {
            char word[24];
            if (f->holds_scalars || is_sequence) {
                LT_FAIL(LT_ERR_FORMAT, "%s:%d: nested lists are not supported", r->name, line);
            }
            snprintf(word, sizeof word, "%zu", f->index++);
            LT_TRY(push_name(r, word, line));
        }
        f->has_key = false;
    } else if (is_sequence) {
        LT_FAIL(LT_ERR_FORMAT, "%s:%d: expected a mapping, found a list", r->name, line);
    }
    r->stack[r->depth] = (frame){.is_sequence = is_sequence, .prefix_len = strlen(r->path)};
    r->depth++;
    return LT_OK;
}

static lt_err on_event(reader *r, const yaml_event_t *event) {
    const int line = (int)event->start_mark.line + 1;
    switch (event->type) {
    case YAML_DOCUMENT_START_EVENT:
        if (r->documents++ > 0) {
            LT_FAIL(LT_ERR_FORMAT, "%s:%d: a second document begins; a file holds one", r->name,
                    line);
        }
        return LT_OK;
    case YAML_SCALAR_EVENT:
        return on_scalar(r, (const char *)event->data.scalar.value,
                         event->data.scalar.style == YAML_PLAIN_SCALAR_STYLE, line);
    case YAML_MAPPING_START_EVENT:
        return open_frame(r, false, line);
    case YAML_SEQUENCE_START_EVENT:
        return open_frame(r, true, line);
    case YAML_MAPPING_END_EVENT:
    case YAML_SEQUENCE_END_EVENT:
        if (r->depth > 1 && is_empty(&r->stack[r->depth - 1])) {
            LT_TRY(add_row(r, "",
                           event->type == YAML_MAPPING_END_EVENT ? LT_YAML_EMPTY_MAP
                                                                 : LT_YAML_EMPTY_LIST,
                           line));
        }
        r->depth--;
        r->path[r->depth > 0 ? r->stack[r->depth - 1].prefix_len : 0] = '\0';
        if (r->depth > 0 && r->stack[r->depth - 1].is_sequence) {
            r->path[r->stack[r->depth - 1].prefix_len] = '\0';
        }
        return LT_OK;
    case YAML_ALIAS_EVENT:
        LT_FAIL(LT_ERR_UNSUPPORTED, "%s:%d: aliases (*name) are not accepted", r->name, line);
    default:
        return LT_OK;
    }
}

lt_err lt_yaml_parse(lt_yaml_entry **out, size_t *n, const char *text, size_t bytes,
                     const char *name) {
    lt_err err = LT_OK;
    reader r = {.name = name};
    yaml_parser_t parser;
    yaml_event_t event;
    bool over = false;

    if (!yaml_parser_initialize(&parser)) {
        LT_FAIL(LT_ERR_OOM, "%s: the YAML reader", name);
    }
    yaml_parser_set_input_string(&parser, (const unsigned char *)text, bytes);
    while (!over) {
        if (!yaml_parser_parse(&parser, &event)) {
            LT_FAIL_DONE(LT_ERR_FORMAT, "%s:%d: %s", name, (int)parser.problem_mark.line + 1,
                         parser.problem != NULL ? parser.problem : "malformed YAML");
        }
        over = event.type == YAML_STREAM_END_EVENT;
        err = on_event(&r, &event);
        yaml_event_delete(&event);
        if (err != LT_OK) {
            goto done;
        }
    }
    *out = r.rows;
    *n = r.n;
    r.rows = NULL;
done:
    yaml_parser_delete(&parser);
    lt_yaml_free(r.rows, r.rows == NULL ? 0 : r.n);
    return err;
}

lt_err lt_yaml_load(lt_yaml_entry **out, size_t *n, const char *path) {
    lt_err err;
    char *text = NULL;
    size_t bytes = 0;

    *out = NULL;
    *n = 0;
    LT_TRY(lt_file_read(&text, &bytes, path, FILE_BYTES));
    err = lt_yaml_parse(out, n, text, bytes, path);
    free(text);
    return err;
}

void lt_yaml_free(lt_yaml_entry *entries, size_t n) {
    for (size_t i = 0; entries != NULL && i < n; i++) {
        free(entries[i].key);
        free(entries[i].value);
    }
    free(entries);
}
