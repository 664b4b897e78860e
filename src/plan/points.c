/* points.c: a table of published measurements: CSV in, rows of named fields out. */
#include "plan/points.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/file.h"
#include "base/option.h"

#define FILE_BYTES  ((size_t)64 << 20)
#define MAX_COLUMNS 256

static const char *const column_names[] = {
#define COLUMN_NAME(name) #name,
    LT_POINT_COLUMN_MAP(COLUMN_NAME)};

typedef struct {
    char *at, *end; /* Fields are unquoted in place, so the text is overwritten from the left. */
    int line;
    const char *name;
    bool row_ended;
} reader;

/* Next field, 0-terminated in place. */
static lt_err next_field(reader *r, char **out) {
    char *to = r->at;
    *out = to;
    if (r->at < r->end && *r->at == '"') {
        const int opened = r->line;
        r->at++;
        for (;; r->at++) {
            if (r->at >= r->end) {
                LT_FAIL(LT_ERR_FORMAT, "%s:%d: a quoted field is never closed", r->name, opened);
            }
            if (*r->at == '"') {
                if (r->at + 1 < r->end && r->at[1] == '"') {
                    r->at++;
                } else {
                    r->at++;
                    break;
                }
            }
            r->line += *r->at == '\n';
            *to++ = *r->at;
        }
        if (r->at < r->end && *r->at != ',' && *r->at != '\n' && *r->at != '\r') {
            LT_FAIL(LT_ERR_FORMAT, "%s:%d: '%c' after a closing quote", r->name, r->line, *r->at);
        }
    } else {
        while (r->at < r->end && *r->at != ',' && *r->at != '\n' && *r->at != '\r') {
            *to++ = *r->at++;
        }
    }
    r->row_ended = r->at >= r->end || *r->at != ',';
    if (r->at < r->end && *r->at == '\r') {
        r->at++;
    }
    if (r->at < r->end) {
        r->line += *r->at == '\n';
        r->at++;
    }
    *to = 0;
    return LT_OK;
}

static lt_err read_row(reader *r, char **fields, int *n) {
    *n = 0;
    do {
        char *field = NULL;
        LT_TRY(next_field(r, &field));
        if (*n == MAX_COLUMNS) {
            LT_FAIL(LT_ERR_LIMIT, "%s:%d: more than %d columns", r->name, r->line, MAX_COLUMNS);
        }
        fields[(*n)++] = field;
    } while (!r->row_ended);
    return LT_OK;
}

/* Map the columns of the file to the known columns. */
static lt_err read_header(reader *r, int *column_of, int *n_columns) {
    static const int needed[] = {LT_POINT_model, LT_POINT_gpu, LT_POINT_gpus};
    char *fields[MAX_COLUMNS];
    LT_TRY(read_row(r, fields, n_columns));
    for (int i = 0; i < *n_columns; i++) {
        column_of[i] = -1;
        for (int c = 0; c < LT_POINT_COLUMNS; c++) {
            if (fields[i][0] == column_names[c][0] && strcmp(fields[i], column_names[c]) == 0) {
                column_of[i] = c;
            }
        }
    }
    for (size_t k = 0; k < sizeof needed / sizeof *needed; k++) {
        bool found = false;
        for (int i = 0; i < *n_columns; i++) {
            found = found || column_of[i] == needed[k];
        }
        if (!found) {
            LT_FAIL(
                LT_ERR_FORMAT,
                "%s: the header has no column '%s'; see docs/plan/validation.md for the columns",
                r->name, column_names[needed[k]]);
        }
    }
    return LT_OK;
}

static lt_err add_row(lt_points *p, size_t *room, char **fields, int n, const int *column_of,
                      int line) {
    lt_point *row;
    if (p->n == *room) {
        const size_t grown = *room == 0 ? 256 : 2 * *room;
        lt_point *rows = realloc(p->rows, grown * sizeof *rows);
        if (rows == NULL) {
            LT_FAIL(LT_ERR_OOM, "%zu rows of points", grown);
        }
        p->rows = rows;
        *room = grown;
    }
    row = &p->rows[p->n++];
    for (int c = 0; c < LT_POINT_COLUMNS; c++) {
        row->field[c] = "";
    }
    row->line = line;
    for (int i = 0; i < n; i++) {
        if (column_of[i] >= 0) {
            row->field[column_of[i]] = fields[i];
        }
    }
    return LT_OK;
}

lt_err lt_points_parse(lt_points *out, const char *text, size_t bytes, const char *name) {
    lt_err err = LT_OK;
    lt_points p = {0};
    reader r = {.line = 1, .name = name};
    char *fields[MAX_COLUMNS];
    int column_of[MAX_COLUMNS], n_columns = 0, n = 0;
    size_t room = 0;

    LT_ASSERT(out != NULL && (text != NULL || bytes == 0));
    p.text = malloc(bytes + 2);
    if (p.text == NULL) {
        LT_FAIL(LT_ERR_OOM, "%s: %zu bytes", name, bytes);
    }
    if (bytes > 0) {
        memcpy(p.text, text, bytes);
    }
    p.text[bytes] = 0;
    r.at = p.text;
    r.end = p.text + bytes;
    if (bytes >= 3 && memcmp(p.text, "\xEF\xBB\xBF", 3) == 0) {
        r.at += 3; /* A byte order mark, also before a quote. */
    }
    LT_TRY_DONE(read_header(&r, column_of, &n_columns));
    while (r.at < r.end) {
        const int line = r.line;
        LT_TRY_DONE(read_row(&r, fields, &n));
        if (n == 1 && fields[0][0] == 0) {
            continue; /* Skip an empty line. */
        }
        if (n != n_columns) {
            LT_FAIL_DONE(LT_ERR_FORMAT, "%s:%d: %d fields, the header has %d", name, line, n,
                         n_columns);
        }
        LT_TRY_DONE(add_row(&p, &room, fields, n, column_of, line));
    }
    *out = p;
    p = (lt_points){0};
done:
    lt_points_free(&p);
    return err;
}

lt_err lt_points_load(lt_points *out, const char *path) {
    char *text = NULL;
    size_t bytes = 0;
    lt_err err;
    LT_TRY(lt_file_read(&text, &bytes, path, FILE_BYTES));
    err = lt_points_parse(out, text, bytes, path);
    free(text);
    return err;
}

void lt_points_free(lt_points *p) {
    if (p != NULL) {
        free(p->rows);
        free(p->text);
        *p = (lt_points){0};
    }
}

/* FNV-1a, 64 bits, of "source|id". */
bool lt_point_held_out(const lt_point *row) {
    const char *const parts[] = {row->field[LT_POINT_source], "|", row->field[LT_POINT_id]};
    uint64_t h = 14695981039346656037u;
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        for (const char *c = parts[i]; *c != 0; c++) {
            h = (h ^ (unsigned char)*c) * 1099511628211u;
        }
    }
    return h % 3 == 0;
}
