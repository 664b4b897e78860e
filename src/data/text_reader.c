/* text_reader.c: see text_reader.h.
 *
 * One window [at, filled) of unpacked bytes slides over the file:
 *
 *     buffer   |.. given out ..|  current record so far  |  not yet looked at  |   room   |
 *              0               at                      scanned              filled      room
 *
 * A record is cut when its end is found between scanned and filled. Otherwise the bytes before `at`
 * are dropped, the window grows if necessary, and more is read. So memory is bounded by the longest
 * record, not by the file. A byte-order mark at the very beginning is dropped. */
#include "data/text_reader.h"

#include <limits.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/encoding.h"
#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "data/byte_source.h"
#include "data/text_utf8.h"

#ifndef FUZZING_BUILD_MODE_UNSAFE_FOR_PRODUCTION
#define WINDOW_BYTES ((size_t)128 << 10)
#else
#define WINDOW_BYTES ((size_t)512)
#endif
#define RECORD_BYTES_MAX ((size_t)1 << 30)

typedef enum { CUT_FILE, CUT_LINE, CUT_ELEMENT, CUT_BLANK, CUT_SEPARATOR } cut_rule;

/* Counts of replaced parts, to which several threads add. parts: all of them; lone: those that were
 * lone surrogate escapes; first: position of the first one in the unpacked file. */
typedef struct {
    atomic_ullong parts, lone, records, first;
} mended;

struct lt_text_reader {
    char path[LT_PATH_BYTES];
    lt_byte_source *source;
    bool jsonl;
    cut_rule cut;
    const char *field, *separator;
    lt_utf8_policy utf8;
    size_t record_bytes_max;
    lt_text_buffer window, decoded;
    size_t at, filled;
    uint64_t offset, line; /* Position of window.data[at] in the file. */
    uint64_t array;        /* CUT_ELEMENT: offset of the '['. */
    bool ended;            /* The source is at its end. */
    mended *mended;
};

bool lt_text_path_is_jsonl(const char *path) {
    static const char *const packed[] = {"", ".gz", ".zst"}, *const kinds[] = {".jsonl", ".ndjson",
                                                                               ".json"};
    char suffix[16];
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        for (size_t j = 0; j < sizeof packed / sizeof *packed; j++) {
            strcpy(suffix, kinds[i]);
            strcat(suffix, packed[j]);
            if (lt_path_has_suffix(path, suffix)) {
                return true;
            }
        }
    }
    return false;
}

static void set_rules(lt_text_reader *r, const lt_text_options *o) {
    const char *split = o->split_on != NULL ? o->split_on : "file";
    r->jsonl = o->format == LT_TEXT_JSONL ||
               (o->format == LT_TEXT_AUTO && lt_text_path_is_jsonl(r->path));
    r->field = o->field != NULL ? o->field : "text";
    r->separator = split;
    r->cut = r->jsonl || strcmp(split, "line") == 0 ? CUT_LINE
             : strcmp(split, "file") == 0           ? CUT_FILE
             : strcmp(split, "blank") == 0          ? CUT_BLANK
                                                    : CUT_SEPARATOR;
    r->utf8 = o->utf8;
    r->record_bytes_max = o->record_bytes_max > 0 ? o->record_bytes_max : RECORD_BYTES_MAX;
}

/* Read more after `filled`, keeping [at, filled). The record must not exceed its limit. */
static lt_err fill(lt_text_reader *r) {
    size_t got;
    if (r->filled - r->at > r->record_bytes_max) {
        LT_FAIL(LT_ERR_LIMIT, "%s:%llu: a document of more than %zu bytes%s", r->path,
                (unsigned long long)r->line, r->record_bytes_max,
                r->cut == CUT_FILE
                    ? "; split the file into documents (line, blank, or a separator line)"
                    : "");
    }
    if (r->at > 0) {
        memmove(r->window.data, r->window.data + r->at, r->filled - r->at);
        r->filled -= r->at;
        r->at = 0;
    }
    LT_TRY(lt_text_buffer_reserve(&r->window, r->filled + WINDOW_BYTES / 2));
    LT_TRY(lt_byte_source_read(r->source, r->window.data + r->filled, r->window.room - r->filled,
                               &got));
    r->filled += got;
    r->ended = got == 0;
    return LT_OK;
}

static lt_err skip_byte_order_mark(lt_text_reader *r) {
    while (!r->ended && r->filled < LT_UTF8_MARK_BYTES) {
        LT_TRY(fill(r));
    }
    r->at = lt_utf8_mark_bytes(r->window.data, r->filled);
    r->offset = r->at;
    return LT_OK;
}

/* *c: the byte at `at` + from, or EOF at the end of the file. */
static lt_err byte_at(lt_text_reader *r, size_t from, int *c) {
    while (!r->ended && r->filled - r->at <= from) {
        LT_TRY(fill(r));
    }
    *c = r->filled - r->at > from ? (unsigned char)r->window.data[r->at + from] : EOF;
    return LT_OK;
}

/* Advance *from to the next byte that is not white space, which is *c. */
static lt_err skip_white(lt_text_reader *r, size_t *from, int *c) {
    LT_TRY(byte_at(r, *from, c));
    while (*c == ' ' || *c == '\t' || *c == '\r' || *c == '\n') {
        LT_TRY(byte_at(r, ++*from, c));
    }
    return LT_OK;
}

/* Find out whether the file is one JSON array. Then its elements are the records. */
static lt_err find_array(lt_text_reader *r) {
    size_t from = 0;
    int c;
    LT_TRY(skip_white(r, &from, &c));
    if (c == '[') {
        r->cut = CUT_ELEMENT;
        r->array = r->offset + from;
    }
    return LT_OK;
}

lt_err lt_text_reader_open(lt_text_reader **out, const char *path, const lt_text_options *options) {
    static const lt_text_options defaults = {0};
    lt_err err = LT_OK;
    lt_text_reader *r = calloc(1, sizeof *r);

    if (r == NULL) {
        LT_FAIL_DONE(LT_ERR_OOM, "reader of %s", path);
    }
    if (strlen(path) >= sizeof r->path) {
        LT_FAIL_DONE(LT_ERR_LIMIT, "path of %zu characters", strlen(path));
    }
    r->mended = calloc(1, sizeof *r->mended);
    if (r->mended == NULL) {
        LT_FAIL_DONE(LT_ERR_OOM, "reader of %s", path);
    }
    atomic_init(&r->mended->first, ULLONG_MAX);
    memcpy(r->path, path, strlen(path) + 1);
    set_rules(r, options != NULL ? options : &defaults);
    r->line = 1;
    LT_TRY_DONE(lt_byte_source_open(&r->source, path));
    LT_TRY_DONE(lt_text_buffer_reserve(&r->window, WINDOW_BYTES));
    LT_TRY_DONE(skip_byte_order_mark(r));
    LT_TRY_DONE(r->jsonl ? find_array(r) : LT_OK);
    *out = r;
    r = NULL;
done:
    lt_text_reader_close(r);
    return err;
}

void lt_text_reader_close(lt_text_reader *r) {
    if (r == NULL) {
        return;
    }
    if (r->mended != NULL && atomic_load(&r->mended->parts) > 0) {
        char lone[64] = "";
        if (atomic_load(&r->mended->lone) > 0) {
            snprintf(lone, sizeof lone, LT_LONE_ESCAPES_SAID, atomic_load(&r->mended->lone));
        }
        lt_log_warn("%s: invalid UTF-8: %llu parts%s in %llu documents, the first at byte %llu; "
                    "each is read as U+FFFD",
                    r->path, atomic_load(&r->mended->parts), lone, atomic_load(&r->mended->records),
                    atomic_load(&r->mended->first));
    }
    free(r->mended);
    lt_byte_source_close(r->source);
    lt_text_buffer_free(&r->window);
    lt_text_buffer_free(&r->decoded);
    free(r);
}

/* Read the complete line that starts at `at` + from: *len is its length without the newline, *full
 * with it (equal at the end of a file without a final newline). */
static lt_err whole_line(lt_text_reader *r, size_t from, size_t *len, size_t *full) {
    size_t scanned = from;
    for (;;) {
        const char *start = r->window.data + r->at;
        const char *newline = memchr(start + scanned, '\n', r->filled - r->at - scanned);
        if (newline != NULL) {
            *len = (size_t)(newline - start) - from;
            *full = *len + 1;
            return LT_OK;
        }
        scanned = r->filled - r->at;
        if (r->ended) {
            *len = *full = scanned - from;
            return LT_OK;
        }
        LT_TRY(fill(r));
    }
}

static bool is_blank(const char *line, size_t len) {
    for (size_t i = 0; i < len; i++) {
        if (line[i] != ' ' && line[i] != '\t' && line[i] != '\r') {
            return false;
        }
    }
    return true;
}

/* Return the next `bytes` as a record and advance by `pass`. */
static void take(lt_text_reader *r, lt_text_record *out, size_t bytes, size_t pass,
                 uint64_t lines) {
    *out = (lt_text_record){
        .data = r->window.data + r->at, .bytes = bytes, .line = r->line, .offset = r->offset};
    r->at += pass;
    r->offset += pass;
    r->line += lines;
}

static lt_err next_file(lt_text_reader *r, lt_text_record *out, bool *more) {
    while (!r->ended) {
        LT_TRY(fill(r));
    }
    *more = r->filled > r->at;
    take(r, out, r->filled - r->at, r->filled - r->at, 1);
    return LT_OK;
}

static lt_err next_line(lt_text_reader *r, lt_text_record *out, bool *more) {
    size_t len, full;
    do { /* Skip blank lines of a JSONL file, which are not records. */
        LT_TRY(whole_line(r, 0, &len, &full));
        *more = full > 0;
        take(r, out, len, full, 1);
    } while (*more && r->jsonl && is_blank(out->data, out->bytes));
    if (!r->jsonl && out->bytes > 0 && out->data[out->bytes - 1] == '\r') {
        out->bytes--;
    }
    return LT_OK;
}

static lt_err bad_array(const lt_text_reader *r, const char *why) {
    LT_FAIL(LT_ERR_FORMAT, "%s:%llu: %s", r->path, (unsigned long long)r->line, why);
}

/* Advance by n bytes, which may contain newlines. */
static void pass(lt_text_reader *r, size_t n) {
    for (size_t i = 0; i < n; i++) {
        r->line += r->window.data[r->at + i] == '\n';
    }
    r->at += n;
    r->offset += n;
}

/* Length of the element at `at`, which must be closed. The caller checks its content. */
static lt_err element_length(lt_text_reader *r, size_t *len) {
    size_t depth = 0, i = 0;
    bool quoted = false, escaped = false;
    int c;
    for (;; i++) {
        LT_TRY(byte_at(r, i, &c));
        if (c == EOF) {
            return bad_array(r, "the file ends inside this element of a JSON array");
        }
        if (quoted) {
            quoted = escaped || c != '"';
            escaped = !escaped && c == '\\';
        } else if (c == '"') {
            quoted = true;
        } else if (c == '{' || c == '[') {
            depth++;
        } else if (depth == 0 && (c == ',' || c == ']')) {
            break;
        } else if (c == '}' || c == ']') {
            if (depth <= 1) {
                i++;
                break;
            }
            depth--;
        }
    }
    *len = i;
    return LT_OK;
}

/* The next element of a file that is a JSON array, from the white space or comma before it. */
static lt_err next_element(lt_text_reader *r, lt_text_record *out, bool *more) {
    const bool first = r->offset <= r->array;
    size_t from = 0, len = 0;
    int c;

    *more = false;
    LT_TRY(skip_white(r, &from, &c));
    if (first) {
        pass(r, from + 1); /* The '[' that find_array has found. */
        from = 0;
        LT_TRY(skip_white(r, &from, &c));
    }
    if (c == ']') { /* The position stays before it, so that the next call finds it again. */
        from++;
        LT_TRY(skip_white(r, &from, &c));
        return c == EOF ? LT_OK : bad_array(r, "there is more after the JSON array");
    }
    pass(r, from);
    if (!first) {
        if (c != ',') {
            return bad_array(r, c == EOF ? "the JSON array is not closed"
                                         : "a ',' was expected between elements of the JSON array");
        }
        pass(r, 1);
        from = 0;
        LT_TRY(skip_white(r, &from, &c));
        pass(r, from);
    }
    LT_TRY(element_length(r, &len));
    if (len == 0) {
        return bad_array(r, "an element of the JSON array was expected");
    }
    *more = true;
    *out = (lt_text_record){
        .data = r->window.data + r->at, .bytes = len, .line = r->line, .offset = r->offset};
    pass(r, len);
    return LT_OK;
}

/* Read the lines up to a blank line or a separator; the newline before it belongs to the
 * separator. */
static lt_err next_paragraph(lt_text_reader *r, lt_text_record *out, bool *more) {
    const size_t separator_bytes = r->cut == CUT_SEPARATOR ? strlen(r->separator) : 0;
    size_t body = 0, passed = 0, lines = 0, len, full;

    for (;;) {
        const char *line;
        bool parts;
        size_t trimmed;
        LT_TRY(whole_line(r, passed, &len, &full));
        if (full == 0) {
            break;
        }
        line = r->window.data + r->at + passed;
        trimmed = len > 0 && line[len - 1] == '\r' ? len - 1 : len;
        parts = r->cut == CUT_BLANK
                    ? is_blank(line, len)
                    : trimmed == separator_bytes && memcmp(line, r->separator, trimmed) == 0;
        passed += full;
        lines++;
        if (!parts) {
            body = passed - (full - trimmed);
        } else if (r->cut == CUT_SEPARATOR || body > 0) {
            break;
        } else { /* Further blank lines before a paragraph. */
            lt_text_record unused;
            take(r, &unused, 0, passed, lines);
            passed = lines = 0;
        }
    }
    *more = passed > 0 && (body > 0 || r->cut == CUT_SEPARATOR);
    take(r, out, body, passed, lines);
    return LT_OK;
}

lt_err lt_text_reader_next(lt_text_reader *r, lt_text_record *out, bool *more) {
    LT_ASSERT(r != NULL && out != NULL && more != NULL);
    switch (r->cut) {
    case CUT_FILE:
        return next_file(r, out, more);
    case CUT_LINE:
        return next_line(r, out, more);
    case CUT_ELEMENT:
        return next_element(r, out, more);
    case CUT_BLANK:
    case CUT_SEPARATOR:
        return next_paragraph(r, out, more);
    }
    LT_ASSERT(false);
    return LT_ERR_ARG;
}

/* Add parts of a record to the counts; the first of them is at byte `first` of the record. */
static void count(mended *m, lt_text_record *record, size_t parts, size_t first) {
    const unsigned long long at = record->offset + first;
    unsigned long long before = atomic_load(&m->first);
    atomic_fetch_add(&m->parts, parts);
    atomic_fetch_add(&m->records, !record->mended);
    record->mended = true;
    while (at < before && !atomic_compare_exchange_weak(&m->first, &before, at)) {}
}

/* Lone escapes of text that may be a repaired copy of the record. If the repair moved them, the
 * record's first invalid part comes before them, so `first` is still right. */
static void count_lone(mended *m, lt_text_record *record, const lt_lone_escapes *lone) {
    if (lone->n > 0) {
        count(m, record, lone->n, lone->first);
        atomic_fetch_add(&m->lone, lone->n);
    }
}

/* The record as valid UTF-8: the record itself, or a repaired copy in the second half of the
 * buffer, whose first half has room for as many bytes. */
static lt_err valid_record(const lt_text_reader *r, lt_text_record *record, lt_text_buffer *buffer,
                           const char **text, size_t *bytes) {
    const size_t valid = lt_utf8_valid_prefix(record->data, record->bytes);
    size_t fixed_bytes, first = 0;

    *text = record->data;
    *bytes = record->bytes;
    if (valid == record->bytes) {
        return LT_OK;
    }
    if (r->utf8 != LT_UTF8_REPLACE) {
        LT_FAIL(LT_ERR_FORMAT, "%s:%llu: invalid UTF-8 (byte 0x%02x) at byte %llu", r->path,
                (unsigned long long)record->line, (unsigned char)record->data[valid],
                (unsigned long long)(record->offset + valid));
    }
    if (!record->searched) {
        const size_t parts = lt_utf8_count_invalid(record->data, record->bytes, &first);
        count(r->mended, record, parts, first);
        record->searched = true;
    }
    fixed_bytes = lt_utf8_replace_invalid(NULL, record->data, record->bytes);
    LT_TRY(lt_text_buffer_reserve(buffer, 2 * fixed_bytes + 1));
    lt_utf8_replace_invalid(buffer->data + fixed_bytes + 1, record->data, record->bytes);
    *text = buffer->data + fixed_bytes + 1;
    *bytes = fixed_bytes;
    return LT_OK;
}

lt_err lt_text_record_line(const lt_text_reader *r, lt_text_record *record, lt_text_buffer *buffer,
                           const char **text, size_t *bytes) {
    lt_lone_escapes lone = {0};
    LT_TRY(valid_record(r, record, buffer, text, bytes));
    if (r->jsonl) {
        lone = lt_json_line_lone(*text, *bytes);
    }
    if (lone.n > 0 && r->utf8 != LT_UTF8_REPLACE) {
        LT_FAIL(LT_ERR_FORMAT, "%s:%llu: column %zu: lone surrogate %.6s", r->path,
                (unsigned long long)record->line, lone.first + 1, *text + lone.first);
    }
    if (lone.n > 0) { /* They are replaced in a copy, unless the record is one already. */
        const char *from = *text;
        LT_TRY(from == record->data ? lt_text_buffer_reserve(buffer, *bytes + 1) : LT_OK);
        memmove(buffer->data, from, *bytes);
        lt_json_line_replace_lone(buffer->data, *bytes);
        count_lone(r->mended, record, &lone);
        *text = buffer->data;
    }
    return LT_OK;
}

lt_err lt_text_record_decode_field(const lt_text_reader *r, lt_text_record *record,
                                   const char *field, lt_text_buffer *buffer, const char **text,
                                   size_t *bytes) {
    lt_err err;
    lt_lone_escapes lone = {0};
    const char *raw;
    size_t raw_bytes;

    LT_TRY(valid_record(r, record, buffer, &raw, &raw_bytes));
    if (!r->jsonl) {
        *text = raw;
        *bytes = raw_bytes;
        return LT_OK;
    }
    err = lt_json_line_string(buffer, bytes, raw, raw_bytes, field,
                              r->utf8 == LT_UTF8_REPLACE ? &lone : NULL);
    if (err != LT_OK) {
        return lt_error_prefix(err, "%s:%llu", r->path, (unsigned long long)record->line);
    }
    count_lone(r->mended, record, &lone);
    *text = buffer->data;
    return LT_OK;
}

lt_err lt_text_record_decode(const lt_text_reader *r, lt_text_record *record,
                             lt_text_buffer *buffer, const char **text, size_t *bytes) {
    return lt_text_record_decode_field(r, record, r->field, buffer, text, bytes);
}

lt_err lt_text_reader_document(lt_text_reader *r, lt_text_record *out, bool *more) {
    LT_TRY(lt_text_reader_next(r, out, more));
    return *more ? lt_text_record_decode(r, out, &r->decoded, &out->data, &out->bytes) : LT_OK;
}

void lt_text_reader_tell(const lt_text_reader *r, uint64_t *offset, uint64_t *line) {
    *offset = r->offset;
    *line = r->line;
}

lt_err lt_text_reader_resume(lt_text_reader *r, uint64_t offset, uint64_t line) {
    const uint64_t here = r->offset + (r->filled - r->at);
    if (offset < r->offset) {
        LT_FAIL(LT_ERR_STATE, "%s: cannot resume from byte %llu: the file has changed", r->path,
                (unsigned long long)offset);
    }
    if (offset > here) {
        LT_TRY(lt_byte_source_skip(r->source, offset - here));
        r->at = r->filled = 0;
    } else {
        r->at += (size_t)(offset - r->offset);
    }
    r->offset = offset;
    r->line = line;
    return LT_OK;
}

uint64_t lt_text_reader_consumed_bytes(const lt_text_reader *r) {
    return lt_byte_source_consumed_bytes(r->source);
}

uint64_t lt_text_reader_file_bytes(const lt_text_reader *r) {
    return lt_byte_source_file_bytes(r->source);
}
