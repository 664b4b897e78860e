/* loader_state.c: the loader's position as one line of JSON, for a checkpoint's manifest:
 *
 *     {"rows": 8192, "fingerprint": "9e3779b97f4a7c15", "sources": [[5000, 1, 0, 0, 17, -4096],
 *     ...]}
 *
 * each source: rows, epoch, document, offset, row, credit (lt_loader_cursor). */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/json.h"
#include "lateen/data.h"

#define CURSOR_NUMBERS 6

/* Append to out[*used ..bytes). False: it does not fit. */
LT_PRINTF(4, 5) static bool append(char *out, size_t bytes, size_t *used, const char *fmt, ...) {
    va_list args;
    int n;
    va_start(args, fmt);
    n = vsnprintf(out + *used, bytes - *used, fmt, args);
    va_end(args);
    if (n < 0 || (size_t)n >= bytes - *used) {
        return false;
    }
    *used += (size_t)n;
    return true;
}

lt_err lt_loader_state_print(const lt_loader_state *s, char *out, size_t bytes) {
    size_t used = 0;
    bool fits = append(out, bytes, &used,
                       "{\"rows\": %" PRIu64 ", \"fingerprint\": \"%016" PRIx64
                       "\", \"sources\": [",
                       s->rows, s->fingerprint);
    for (int64_t i = 0; fits && i < s->n_sources; i++) {
        const lt_loader_cursor *c = &s->sources[i];
        fits = append(
            out, bytes, &used,
            "%s[%" PRIu64 ", %" PRIu64 ", %" PRIu64 ", %" PRIu64 ", %" PRIu64 ", %" PRId64 "]",
            i > 0 ? ", " : "", c->rows, c->epoch, c->document, c->offset, c->row, c->credit);
    }
    if (!fits || !append(out, bytes, &used, "]}")) {
        LT_FAIL(LT_ERR_LIMIT, "loader state of %lld sources does not fit in %zu bytes",
                (long long)s->n_sources, bytes);
    }
    return LT_OK;
}

static lt_err parse_cursor(lt_loader_cursor *c, const json_t *row, size_t i) {
    uint64_t *const fields[] = {&c->rows, &c->epoch, &c->document, &c->offset, &c->row};
    if (json_array_size(row) != CURSOR_NUMBERS) {
        LT_FAIL(LT_ERR_FORMAT, "loader state: source %zu has %zu numbers, not %d", i,
                json_array_size(row), CURSOR_NUMBERS);
    }
    for (size_t k = 0; k < CURSOR_NUMBERS; k++) {
        const json_t *number = json_array_get(row, k);
        if (!json_is_integer(number) ||
            (k < CURSOR_NUMBERS - 1 && json_integer_value(number) < 0)) {
            LT_FAIL(LT_ERR_FORMAT, "loader state: number %zu of source %zu is not a count", k, i);
        }
        if (k < CURSOR_NUMBERS - 1) {
            *fields[k] = (uint64_t)json_integer_value(number);
        } else {
            c->credit = json_integer_value(number);
        }
    }
    return LT_OK;
}

lt_err lt_loader_state_parse(lt_loader_state *out, const char *text, size_t bytes) {
    lt_err err = LT_OK;
    lt_loader_state s = {0};
    json_t *root = NULL;
    const json_t *sources;
    const char *hex = NULL;
    char *end = NULL;
    int64_t rows = 0;

    LT_TRY_DONE(lt_json_parse(&root, text, bytes, "loader state"));
    LT_TRY_DONE(lt_json_i64(root, "rows", &rows, false, "loader state"));
    LT_TRY_DONE(lt_json_str(root, "fingerprint", &hex, false, "loader state"));
    s.fingerprint = strtoull(hex, &end, 16);
    sources = json_object_get(root, "sources");
    s.n_sources = (int64_t)json_array_size(sources);
    if (rows < 0 || *end != '\0' || strlen(hex) != 16 || s.n_sources < 1 ||
        s.n_sources > LT_LOADER_SOURCES_MAX) {
        LT_FAIL_DONE(LT_ERR_FORMAT, "loader state: %lld rows, fingerprint '%s', %lld sources",
                     (long long)rows, hex, (long long)s.n_sources);
    }
    s.rows = (uint64_t)rows;
    for (size_t i = 0; i < (size_t)s.n_sources; i++) {
        LT_TRY_DONE(parse_cursor(&s.sources[i], json_array_get(sources, i), i));
    }
    *out = s;
done:
    json_decref(root);
    return err;
}
