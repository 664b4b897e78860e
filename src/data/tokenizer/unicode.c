/* unicode.c: see unicode.h.
 *
 * NORMALISATION follows UAX #15: decompose each character fully (tables hold full decompositions;
 * Hangul is arithmetic), order marks by combining class, then for the C forms compose each starter
 * with what follows. Text is cut at starters, so the buffer of pending characters stays as short as
 * the longest run of marks; a long run costs a merge sort, so hostile input stays O(n log n). Pure
 * ASCII is copied as it is. */
#include "data/tokenizer/unicode.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"

#define HANGUL_S       0xAC00u
#define HANGUL_L       0x1100u
#define HANGUL_V       0x1161u
#define HANGUL_T       0x11A7u
#define HANGUL_V_COUNT 21u
#define HANGUL_T_COUNT 28u
#define HANGUL_L_COUNT 19u
#define HANGUL_COUNT   (HANGUL_L_COUNT * HANGUL_V_COUNT * HANGUL_T_COUNT)

size_t lt_utf8_bad(const uint8_t *p, const uint8_t *end, bool *incomplete) {
    const size_t room = (size_t)(end - p);
    uint8_t low = 0x80, high = 0xBF;
    size_t need;

    *incomplete = false;
    if (p[0] < 0x80) {
        return 0;
    }
    if (p[0] < 0xC2 || p[0] > 0xF4) {
        return 1;
    }
    need = p[0] < 0xE0 ? 2 : p[0] < 0xF0 ? 3 : 4;
    low = p[0] == 0xE0 ? 0xA0 : p[0] == 0xF0 ? 0x90 : low;
    high = p[0] == 0xED ? 0x9F : p[0] == 0xF4 ? 0x8F : high;
    for (size_t i = 1; i < need; i++) {
        if (i == room) {
            *incomplete = true;
            return i;
        }
        if (p[i] < low || p[i] > high) {
            return i;
        }
        low = 0x80;
        high = 0xBF;
    }
    return 0;
}

size_t lt_utf8_decode(const uint8_t *p, const uint8_t *end, uint32_t *cp) {
    bool incomplete;
    if (p[0] < 0x80) {
        *cp = p[0];
        return 1;
    }
    if (lt_utf8_bad(p, end, &incomplete) != 0) {
        *cp = LT_UNICODE_REPLACEMENT;
        return 1;
    }
    if (p[0] < 0xE0) {
        *cp = (p[0] & 0x1Fu) << 6 | (p[1] & 0x3Fu);
        return 2;
    }
    if (p[0] < 0xF0) {
        *cp = (p[0] & 0x0Fu) << 12 | (p[1] & 0x3Fu) << 6 | (p[2] & 0x3Fu);
        return 3;
    }
    *cp = (p[0] & 0x07u) << 18 | (p[1] & 0x3Fu) << 12 | (p[2] & 0x3Fu) << 6 | (p[3] & 0x3Fu);
    return 4;
}

lt_err lt_text_reserve(lt_text *t, size_t extra) {
    size_t room = t->room < 64 ? 64 : t->room;
    char *grown;
    if (extra <= t->room - t->n) {
        return LT_OK;
    }
    while (room - t->n < extra) {
        if (room > SIZE_MAX / 2) {
            LT_FAIL(LT_ERR_OOM, "text of %zu bytes", t->n);
        }
        room *= 2;
    }
    grown = realloc(t->data, room);
    if (grown == NULL) {
        LT_FAIL(LT_ERR_OOM, "text of %zu bytes", room);
    }
    t->data = grown;
    t->room = room;
    return LT_OK;
}

lt_err lt_text_put(lt_text *t, const char *s, size_t n) {
    if (n == 0) {
        return LT_OK;
    }
    LT_TRY(lt_text_reserve(t, n));
    memcpy(t->data + t->n, s, n);
    t->n += n;
    return LT_OK;
}

lt_err lt_text_put_cp(lt_text *t, uint32_t cp) {
    LT_TRY(lt_text_reserve(t, 4));
    t->n += lt_utf8_encode(cp, t->data + t->n);
    return LT_OK;
}

void lt_text_free(lt_text *t) {
    free(t->data);
    *t = (lt_text){0};
}

lt_err lt_text_put_valid(lt_text *t, const char *s, size_t n) {
    bool incomplete;
    while (n > 0) {
        const size_t good = lt_utf8_valid_prefix(s, n);
        LT_TRY(lt_text_put(t, s, good));
        s += good;
        n -= good;
        if (n > 0) {
            const size_t bad = lt_utf8_bad((const uint8_t *)s, (const uint8_t *)s + n, &incomplete);
            LT_TRY(lt_text_put_cp(t, LT_UNICODE_REPLACEMENT));
            s += bad;
            n -= bad;
        }
    }
    return LT_OK;
}

lt_err lt_text_assemble(lt_text *out, lt_text *held, bool per_byte, bool final) {
    size_t at = 0;
    bool incomplete;
    while (at < held->n) {
        const size_t good = lt_utf8_valid_prefix(held->data + at, held->n - at);
        size_t bad;
        LT_TRY(lt_text_put(out, held->data + at, good));
        at += good;
        if (at == held->n) {
            break;
        }
        bad = lt_utf8_bad((const uint8_t *)held->data + at, (const uint8_t *)held->data + held->n,
                          &incomplete);
        if (incomplete && !final) {
            break;
        }
        LT_TRY(lt_text_put_cp(out, LT_UNICODE_REPLACEMENT));
        at += per_byte ? 1 : bad;
    }
    if (at > 0) {
        memmove(held->data, held->data + at, held->n - at);
        held->n -= at;
    }
    return LT_OK;
}

/* Index of key in the ascending table, or n. */
static size_t find_u32(const uint32_t *table, size_t n, uint32_t key) {
    size_t low = 0, high = n;
    while (low < high) {
        const size_t mid = (low + high) / 2;
        if (table[mid] < key) {
            low = mid + 1;
        } else {
            high = mid;
        }
    }
    return low < n && table[low] == key ? low : n;
}

uint32_t lt_unicode_script(uint32_t cp) {
    size_t low = 0, high = lt_unicode_script_count; /* The run is in [low, high). */
    while (high - low > 1) {
        const size_t mid = (low + high) / 2;
        if (lt_unicode_script_runs[mid] >> 8 <= cp) {
            low = mid;
        } else {
            high = mid;
        }
    }
    return lt_unicode_script_runs[low] & 0xFF;
}

const uint32_t *lt_unicode_lower(const uint32_t *cp, size_t *n) {
    const size_t i = find_u32(lt_unicode_lower_from, lt_unicode_lower_count, *cp);
    if (i == lt_unicode_lower_count) {
        *n = 1;
        return cp;
    }
    *n = (size_t)(lt_unicode_lower_start[i + 1] - lt_unicode_lower_start[i]);
    return lt_unicode_lower_pool + lt_unicode_lower_start[i];
}

/* The first code point whose lower case is cp; and letters that are the lower case of none. */
uint32_t lt_unicode_upper(uint32_t cp) {
    static const uint32_t others[][2] = {
        {0xB5, 0x39C},  {0x131, 'I'},     {0x17F, 'S'},   {0x3C2, 0x3A3}, {0x3D0, 0x392},
        {0x3D1, 0x398}, {0x3D5, 0x3A6},   {0x3D6, 0x3A0}, {0x3F0, 0x39A}, {0x3F1, 0x3A1},
        {0x3F5, 0x395}, {0x1E9B, 0x1E60}, {0x1FBE, 0x399}};
    if (cp < 0x80) {
        return cp >= 'a' && cp <= 'z' ? cp - 32 : cp;
    }
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        if (others[i][0] == cp) {
            return others[i][1];
        }
    }
    for (size_t i = 0; i < lt_unicode_lower_count; i++) {
        const size_t at = lt_unicode_lower_start[i];
        if (lt_unicode_lower_start[i + 1] - at == 1 && lt_unicode_lower_pool[at] == cp) {
            return lt_unicode_lower_from[i];
        }
    }
    return cp;
}

unsigned lt_unicode_class(uint32_t cp) {
    size_t low = 0, high = lt_unicode_ccc_count;
    if (cp < 0x300) {
        return 0;
    }
    while (low < high) {
        const size_t mid = (low + high) / 2;
        if (lt_unicode_ccc[mid] >> 8 < cp) {
            low = mid + 1;
        } else {
            high = mid;
        }
    }
    return low < lt_unicode_ccc_count && lt_unicode_ccc[low] >> 8 == cp ? lt_unicode_ccc[low] & 0xFF
                                                                        : 0;
}

/* The composite of two characters, or 0. */
uint32_t lt_unicode_compose(uint32_t a, uint32_t b) {
    const uint64_t key = (uint64_t)a << 32 | b;
    size_t low = 0, high = lt_unicode_compose_count;
    if (a - HANGUL_L < HANGUL_L_COUNT && b - HANGUL_V < HANGUL_V_COUNT) {
        return HANGUL_S + ((a - HANGUL_L) * HANGUL_V_COUNT + (b - HANGUL_V)) * HANGUL_T_COUNT;
    }
    if (a - HANGUL_S < HANGUL_COUNT && (a - HANGUL_S) % HANGUL_T_COUNT == 0 &&
        b - HANGUL_T - 1 < HANGUL_T_COUNT - 1) {
        return a + (b - HANGUL_T);
    }
    while (low < high) {
        const size_t mid = (low + high) / 2;
        if (lt_unicode_compose_from[mid] < key) {
            low = mid + 1;
        } else {
            high = mid;
        }
    }
    return low < lt_unicode_compose_count && lt_unicode_compose_from[low] == key
               ? lt_unicode_compose_to[low]
               : 0;
}

/* Characters since the last boundary. The order within a class matters, so they are sorted by
 * (class, arrival). */
typedef struct {
    uint64_t *marks; /* class << 56 | arrival << 21 | code point */
    size_t n, room;
} pending;

static int compare_u64(const void *a, const void *b) {
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

static uint32_t mark_cp(uint64_t mark) {
    return (uint32_t)(mark & 0x1FFFFF);
}

static unsigned mark_class(uint64_t mark) {
    return (unsigned)(mark >> 56);
}

/* Order the run [starter] marks..., compose it if `composing`, and append it. */
static lt_err flush(pending *p, bool composing, lt_text *out) {
    const size_t first = p->n > 0 && mark_class(p->marks[0]) == 0 ? 1 : 0;
    unsigned last_class = 0;
    size_t kept = first;

    if (p->n > first + 1) {
        qsort(p->marks + first, p->n - first, sizeof *p->marks, compare_u64);
    }
    for (size_t i = first; i < p->n && composing && first == 1; i++) {
        const unsigned class = mark_class(p->marks[i]);
        const uint32_t both = kept == 1 || last_class < class ? lt_unicode_compose(
                                                                    mark_cp(p->marks[0]),
                                                                    mark_cp(p->marks[i]))
                                                              : 0;
        if (both != 0) {
            p->marks[0] = both;
        } else {
            p->marks[kept++] = p->marks[i];
            last_class = class;
        }
    }
    if (composing && first == 1) {
        p->n = kept;
    }
    for (size_t i = 0; i < p->n; i++) {
        LT_TRY(lt_text_put_cp(out, mark_cp(p->marks[i])));
    }
    p->n = 0;
    return LT_OK;
}

static lt_err add_char(pending *p, uint32_t cp, bool composing, lt_text *out) {
    const unsigned class = lt_unicode_class(cp);
    if (class == 0 && p->n > 0) {
        /* A starter ends the run unless it composes with the starter directly before it (Hangul,
         * some Indic vowels). */
        const bool adjacent = p->n == 1 && mark_class(p->marks[0]) == 0;
        const uint32_t both = composing && adjacent ? lt_unicode_compose(mark_cp(p->marks[0]), cp)
                                                    : 0;
        if (both != 0) {
            p->marks[0] = both;
            return LT_OK;
        }
        if (composing && !adjacent) {
            /* All marks may have been composed into the starter, and then cp is adjacent to
             * it. */
            const size_t before = out->n;
            uint32_t single;
            LT_TRY(flush(p, composing, out));
            if (lt_utf8_decode((const uint8_t *)out->data + before,
                               (const uint8_t *)out->data + out->n, &single) == out->n - before &&
                lt_unicode_class(single) == 0) {
                const uint32_t joined = lt_unicode_compose(single, cp);
                if (joined != 0) {
                    out->n = before;
                    p->marks[0] = joined;
                    p->n = 1;
                    return LT_OK;
                }
            }
        } else {
            LT_TRY(flush(p, composing, out));
        }
    }
    if (p->n == p->room) {
        const size_t room = p->room == 0 ? 32 : 2 * p->room;
        uint64_t *grown = realloc(p->marks, room * sizeof *grown);
        if (grown == NULL) {
            LT_FAIL(LT_ERR_OOM, "run of %zu combining marks", room);
        }
        p->marks = grown;
        p->room = room;
    }
    p->marks[p->n] = (uint64_t) class << 56 | (uint64_t)p->n << 21 | cp;
    p->n++;
    return LT_OK;
}

size_t lt_unicode_decompose(uint32_t cp, bool compat, uint32_t parts[LT_UNICODE_PARTS]) {
    const uint32_t *const from = compat ? lt_unicode_nfkd_from : lt_unicode_nfd_from;
    const uint32_t *const pool = compat ? lt_unicode_nfkd_pool : lt_unicode_nfd_pool;
    const uint16_t *const start = compat ? lt_unicode_nfkd_start : lt_unicode_nfd_start;
    const size_t count = compat ? lt_unicode_nfkd_count : lt_unicode_nfd_count;
    size_t i;

    if (cp - HANGUL_S < HANGUL_COUNT) {
        const uint32_t s = cp - HANGUL_S, t = s % HANGUL_T_COUNT;
        parts[0] = HANGUL_L + s / (HANGUL_V_COUNT * HANGUL_T_COUNT);
        parts[1] = HANGUL_V + s / HANGUL_T_COUNT % HANGUL_V_COUNT;
        parts[2] = HANGUL_T + t;
        return t == 0 ? 2 : 3;
    }
    i = cp < 0xA0 ? count : find_u32(from, count, cp);
    if (i == count) {
        parts[0] = cp;
        return 1;
    }
    LT_ASSERT(start[i + 1] - start[i] <= LT_UNICODE_PARTS);
    memcpy(parts, pool + start[i], (size_t)(start[i + 1] - start[i]) * sizeof *parts);
    return (size_t)(start[i + 1] - start[i]);
}

static lt_err add_decomposed(pending *p, uint32_t cp, bool compat, bool composing, lt_text *out) {
    uint32_t parts[LT_UNICODE_PARTS];
    const size_t n = lt_unicode_decompose(cp, compat, parts);
    for (size_t i = 0; i < n; i++) {
        LT_TRY(add_char(p, parts[i], composing, out));
    }
    return LT_OK;
}

lt_err lt_unicode_normalize(lt_unicode_form form, const char *s, size_t n, lt_text *out) {
    const bool compat = form == LT_UNICODE_NFKC || form == LT_UNICODE_NFKD;
    const bool composing = form == LT_UNICODE_NFC || form == LT_UNICODE_NFKC;
    const uint8_t *p = (const uint8_t *)(s != NULL ? s : ""), *const end = p + n;
    lt_err err = LT_OK;
    pending run = {0};

    LT_TRY_DONE(lt_text_reserve(out, n));
    while (p < end) {
        uint32_t cp;
        const uint8_t *ascii = p;
        while (ascii < end && *ascii < 0x80) {
            ascii++;
        }
        /* All but the last ASCII character of a run are complete. */
        if (ascii - p > 1) {
            LT_TRY_DONE(flush(&run, composing, out));
            LT_TRY_DONE(lt_text_put(out, (const char *)p, (size_t)(ascii - p) - 1));
            p = ascii - 1;
        }
        p += lt_utf8_decode(p, end, &cp);
        LT_TRY_DONE(add_decomposed(&run, cp, compat, composing, out));
    }
    LT_TRY_DONE(flush(&run, composing, out));
done:
    free(run.marks);
    return err;
}
