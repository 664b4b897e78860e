/* gsm8k.c: see gsm8k.h. The regular expressions of the harness, written out:
 *
 *     #### (\-?[0-9\.\,]+)             (-?[$0-9.,]{2,})|(-?[0-9]+)
 */
#include "data/check/gsm8k.h"

#include <string.h>

#include "data/check/chars.h"

#define MARK "#### "

const char *lt_gsm8k_filter_name(lt_gsm8k_filter filter) {
    return filter == LT_GSM8K_STRICT ? "strict-match" : "flexible-extract";
}

static const char *invalid(size_t *n) {
    static const char text[] = "[invalid]";
    *n = sizeof text - 1;
    return text;
}

static size_t run_of(const char *text, size_t n, const char *set) {
    size_t i = 0;
    while (i < n && lt_is_one_of(text[i], set)) {
        i++;
    }
    return i;
}

/* The number after the first mark that is followed by one. */
static const char *strict(const char *text, size_t n, size_t *found_n) {
    const size_t mark_n = sizeof MARK - 1;
    for (size_t i = 0; i + mark_n < n; i++) {
        const char *at = text + i + mark_n;
        const size_t left = n - i - mark_n, sign = *at == '-';
        const size_t digits = run_of(at + sign, left - sign, "0123456789.,");
        if (memcmp(text + i, MARK, mark_n) == 0 && digits > 0) {
            *found_n = sign + digits;
            return at;
        }
    }
    return invalid(found_n);
}

/* The length of the match at the beginning of the text; 0: none. */
static size_t flexible_at(const char *text, size_t n) {
    const size_t sign = n > 0 && text[0] == '-';
    const size_t wide = run_of(text + sign, n - sign, "$0123456789.,");
    const size_t digits = run_of(text + sign, n - sign, "0123456789");
    return wide >= 2 ? sign + wide : digits > 0 ? sign + digits : 0;
}

static const char *flexible(const char *text, size_t n, size_t *found_n) {
    const char *found = invalid(found_n);
    for (size_t i = 0; i < n;) {
        const size_t width = flexible_at(text + i, n - i);
        if (width > 0) {
            found = text + i;
            *found_n = width;
        }
        i += width > 0 ? width : 1;
    }
    return found;
}

/* Reads a text character by character, in the form in which it is compared. */
typedef struct {
    const char *at, *end;
} reader;

static void skip(reader *r) {
    while (r->at < r->end && (*r->at == ',' || *r->at == '$')) {
        r->at++;
    }
}

static reader open_reader(const char *text, size_t n) {
    const size_t mark_n = sizeof MARK - 1;
    reader r = {text, text + n};
    for (size_t i = 0; i + mark_n <= n; i++) {
        if (memcmp(text + i, MARK, mark_n) == 0) {
            r.at = text + i + mark_n;
        }
    }
    skip(&r);
    return r;
}

static int next(reader *r) {
    int c;
    if (r->at == r->end) {
        return -1;
    }
    c = (unsigned char)*r->at++;
    skip(r);
    if (c == '.' && (r->at == r->end || (*r->at == '\n' && r->at + 1 == r->end))) {
        return next(r); /* "\.$" also matches before a newline that ends the text. */
    }
    return c >= 'A' && c <= 'Z' ? c + 32 : c;
}

bool lt_gsm8k_right(lt_gsm8k_filter filter, const char *text, size_t n, const char *gold,
                    size_t gold_n) {
    size_t found_n = 0;
    const char *found = filter == LT_GSM8K_STRICT ? strict(text, n, &found_n)
                                                  : flexible(text, n, &found_n);
    reader a = open_reader(found, found_n), b = open_reader(gold, gold_n);
    int x, y;
    do {
        x = next(&a);
        y = next(&b);
    } while (x == y && x >= 0);
    return x == y;
}
