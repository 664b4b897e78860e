/* regex.c: see regex.h. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "data/tokenizer/regex.h"

#include <pcre2.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "data/tokenizer/unicode.h"

#define MAX_PATTERN 65536
/* JIT's stack, which grows on demand: long runs that backtrack need it. */
#define STACK_BYTES (8u << 20)
#define MATCH_LIMIT 100000000u /* Steps, so that a hostile pattern fails instead of running on. */

/* Members of White_Space, as class items. */
#define SPACES                                                                                     \
    "\\x{9}-\\x{d}\\x{20}\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}"    \
    "\\x{205f}\\x{3000}"
#define NOT_SPACES                                                                                 \
    "\\x{0}-\\x{8}\\x{e}-\\x{1f}\\x{21}-\\x{84}\\x{86}-\\x{9f}\\x{a1}-\\x{167f}\\x{1681}-\\x{"     \
    "1fff}"                                                                                        \
    "\\x{200b}-\\x{2027}\\x{202a}-\\x{202e}\\x{2030}-\\x{205e}\\x{2060}-\\x{2fff}\\x{3001}-\\x{"   \
    "10ffff}"

/* \w as Oniguruma means it: letters, marks, all numbers, connectors; PCRE2 lacks marks. */
#define WORDS                                                                                      \
    "\\p{L}\\p{M}\\p{N}\\p{Pc}\\x{24b6}-\\x{24e9}\\x{1f130}-\\x{1f149}\\x{1f150}-\\x{"             \
    "1f169}"                                                                                       \
    "\\x{1f170}-\\x{1f189}"

/* \b and \B, by this definition of words. */
#define WORD_BORDER    "(?:(?<=[" WORDS "])(?![" WORDS "])|(?<![" WORDS "])(?=[" WORDS "]))"
#define NO_WORD_BORDER "(?:(?<=[" WORDS "])(?=[" WORDS "])|(?<![" WORDS "])(?![" WORDS "]))"

struct lt_regex {
    pcre2_code *code;
};

struct lt_regex_scratch {
    pcre2_match_context *context;
    pcre2_jit_stack *stack;
    pcre2_match_data *data;
};

static lt_err put_text(lt_text *out, const char *s) {
    return lt_text_put(out, s, strlen(s));
}

/* The pattern with \s and \S spelled out, inside and outside of classes; && in a class is refused
 * (Oniguruma's intersection). */
static lt_err rewrite(const char *pattern, size_t n, lt_text *out, const char *name) {
    bool in_class = false;
    for (size_t i = 0; i < n; i++) {
        const char c = pattern[i];
        if (c == '\\' && i + 1 < n) {
            const char e = pattern[++i];
            if (e == 's' || e == 'S') {
                LT_TRY(put_text(out, in_class ? "" : "["));
                LT_TRY(put_text(out, e == 's' ? SPACES : NOT_SPACES));
                LT_TRY(put_text(out, in_class ? "" : "]"));
            } else if (!in_class && (e == 'b' || e == 'B')) {
                LT_TRY(put_text(out, e == 'b' ? WORD_BORDER : NO_WORD_BORDER));
            } else if (e == 'w' || (e == 'W' && !in_class)) {
                LT_TRY(put_text(out, in_class ? "" : e == 'w' ? "[" : "[^"));
                LT_TRY(put_text(out, WORDS));
                LT_TRY(put_text(out, in_class ? "" : "]"));
            } else {
                LT_TRY(lt_text_put(out, pattern + i - 1, 2));
            }
            continue;
        }
        if (in_class && c == '&' && i + 1 < n && pattern[i + 1] == '&') {
            LT_FAIL(LT_ERR_UNSUPPORTED, "%s: pattern with a class intersection (&&)", name);
        }
        if (c == '[' && !in_class) {
            in_class = true;
            LT_TRY(lt_text_put(out, &c, 1));
            if (i + 1 < n && pattern[i + 1] == '^') {
                LT_TRY(lt_text_put(out, "^", 1));
                i++;
            }
            if (i + 1 < n && pattern[i + 1] == ']') {
                LT_TRY(lt_text_put(out, "\\]", 2));
                i++;
            }
            continue;
        }
        if (c == ']' && in_class) {
            in_class = false;
        } else if (c == '[' && in_class && !(i + 1 < n && pattern[i + 1] == ':')) {
            /* It is a literal '[', because nested classes are not supported. */
            LT_TRY(lt_text_put(out, "\\", 1));
        }
        LT_TRY(lt_text_put(out, &c, 1));
    }
    return LT_OK;
}

lt_err lt_regex_open(lt_regex **out, const char *pattern, size_t n, const char *name) {
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
    LT_TRY_DONE(rewrite(pattern, n, &text, name));
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
