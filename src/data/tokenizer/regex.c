/* regex.c: see regex.h. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "data/tokenizer/regex.h"

#include <pcre2.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "data/tokenizer/regex_rewrite.h"
#include "data/tokenizer/unicode.h"

#define MAX_PATTERN 65536
/* JIT's stack, which grows on demand: long runs that backtrack need it. */
#define STACK_BYTES (8u << 20)
#define MATCH_LIMIT 100000000u /* Steps, so that a hostile pattern fails instead of running on. */

struct lt_regex {
    pcre2_code *code;
};

struct lt_regex_scratch {
    pcre2_match_context *context;
    pcre2_jit_stack *stack;
    pcre2_match_data *data;
};

lt_err lt_regex_open(lt_regex **out, const char *pattern, size_t n, lt_regex_dialect dialect,
                     const char *name) {
    lt_err err = LT_OK;
    lt_text text = {0};
    int why = 0;
    size_t where = 0;
    lt_regex *r = calloc(1, sizeof *r);

    if (r == NULL) {
        LT_FAIL_DONE(LT_ERR_OOM, "%s: pattern", name);
    }
    if (n == 0 || n > MAX_PATTERN || lt_utf8_valid_prefix(pattern, n) != n) {
        LT_FAIL_DONE(LT_ERR_FORMAT, "%s: pattern of %zu bytes is empty, too long or not UTF-8",
                     name, n);
    }
    LT_TRY_DONE(lt_regex_rewrite(pattern, n, dialect, name, &text));
    /* Byte tokens may decode to text that is not UTF-8; without this option, compiled patterns read
     * beyond their tables there. */
    r->code = pcre2_compile((PCRE2_SPTR)text.data, text.n,
                            PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_MATCH_INVALID_UTF, &why,
                            &where, NULL);
    if (r->code == NULL) {
        PCRE2_UCHAR message[128] = "";
        pcre2_get_error_message(why, message, sizeof message);
        LT_FAIL_DONE(LT_ERR_FORMAT, "%s: pattern '%.*s': %s", name, (int)(n < 80 ? n : 80), pattern,
                     (const char *)message);
    }
    pcre2_jit_compile(r->code, PCRE2_JIT_COMPLETE); /* Without JIT it is only slower. */
    *out = r;
    r = NULL;
done:
    lt_text_free(&text);
    lt_regex_close(r);
    return err;
}

void lt_regex_close(lt_regex *r) {
    if (r != NULL) {
        pcre2_code_free(r->code);
        free(r);
    }
}

bool lt_regex_may_be_empty(const lt_regex *r) {
    uint32_t empty = 0;
    return pcre2_pattern_info(r->code, PCRE2_INFO_MATCHEMPTY, &empty) != 0 || empty != 0;
}

lt_err lt_regex_scratch_open(lt_regex_scratch **out) {
    lt_regex_scratch *s = calloc(1, sizeof *s);
    if (s != NULL) {
        s->context = pcre2_match_context_create(NULL);
        s->stack = pcre2_jit_stack_create(32 * 1024, STACK_BYTES, NULL);
        s->data = pcre2_match_data_create(1, NULL);
    }
    if (s == NULL || s->context == NULL || s->stack == NULL || s->data == NULL) {
        lt_regex_scratch_close(s);
        LT_FAIL(LT_ERR_OOM, "regular expression scratch");
    }
    pcre2_jit_stack_assign(s->context, NULL, s->stack);
    pcre2_set_match_limit(s->context, MATCH_LIMIT);
    *out = s;
    return LT_OK;
}

void lt_regex_scratch_close(lt_regex_scratch *s) {
    if (s != NULL) {
        pcre2_match_data_free(s->data);
        pcre2_jit_stack_free(s->stack);
        pcre2_match_context_free(s->context);
        free(s);
    }
}

lt_err lt_regex_find(const lt_regex *r, lt_regex_scratch *s, const char *text, size_t n,
                     size_t from, bool *found, size_t *begin, size_t *end) {
    const size_t *places;
    const int hit = pcre2_match(r->code, (PCRE2_SPTR)text, n, from, 0, s->data, s->context);
    *found = hit >= 0;
    if (hit == PCRE2_ERROR_NOMATCH) {
        return LT_OK;
    }
    if (hit < 0) {
        PCRE2_UCHAR message[128] = "";
        pcre2_get_error_message(hit, message, sizeof message);
        LT_FAIL(LT_ERR_LIMIT, "pre-tokenizer pattern on %zu bytes of text: %s", n,
                (const char *)message);
    }
    places = pcre2_get_ovector_pointer(s->data);
    *begin = places[0];
    *end = places[1] < places[0] ? places[0] : places[1];
    return LT_OK;
}

lt_err lt_regex_next(const lt_regex *r, lt_regex_scratch *s, const char *text, size_t n,
                     lt_regex_cursor *at, bool *found, size_t *begin, size_t *end) {
    *found = false;
    while (n > 0 && at->from <= n) {
        LT_TRY(lt_regex_find(r, s, text, n, at->from, found, begin, end));
        if (!*found) {
            return LT_OK;
        }
        if (*begin < *end || !at->any || at->last_end != *end) {
            at->from = at->last_end = *end;
            at->any = true;
            return LT_OK;
        }
        *found = false;
        if (at->from == n) {
            return LT_OK;
        }
        uint32_t cp;
        at->from += lt_utf8_decode((const uint8_t *)text + at->from, (const uint8_t *)text + n,
                                   &cp);
    }
    return LT_OK;
}
