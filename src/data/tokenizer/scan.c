/* scan.c: pre-tokenizer scanners; scan.h has the patterns that they implement.
 *
 * Each scanner follows its pattern's alternatives in their order, and the result of backtracking
 * is worked out by hand (the comments say how). ASCII characters are classified by a table with
 * an entry per byte, others by the Unicode tables; runs of ASCII letters are skipped eight bytes
 * at a time.
 *
 * Case-insensitive contractions: (?i:'s) also matches U+017F, the long s, whose simple case folding
 * is s. */
#include "data/tokenizer/scan.h"

#include <stdbool.h>
#include <string.h>

#include "base/error.h"
#include "data/tokenizer/unicode.h"

typedef const uint8_t *cursor;

#define L   LT_UNICODE_LETTER
#define N   LT_UNICODE_NUMBER
#define WS  LT_UNICODE_SPACE
#define NL  LT_UNICODE_NEWLINE
#define UP  LT_UNICODE_UPPERISH
#define LOW LT_UNICODE_LOWERISH
#define MK  LT_UNICODE_MARK
#define PS  (LT_UNICODE_PUNCT | LT_UNICODE_SYMBOL)

/* Flags of ASCII, filled from the same facts as the big table. */
#define U10                                                                                        \
    (L | UP), (L | UP), (L | UP), (L | UP), (L | UP), (L | UP), (L | UP), (L | UP), (L | UP),      \
        (L | UP)
#define D10                                                                                        \
    (L | LOW), (L | LOW), (L | LOW), (L | LOW), (L | LOW), (L | LOW), (L | LOW), (L | LOW),        \
        (L | LOW), (L | LOW)
#define P10 PS, PS, PS, PS, PS, PS, PS, PS, PS, PS
static const uint16_t ascii[128] = {
    0,       0,       0,       0,       0,       0,       0,  0,  0,   WS,  WS | NL, WS,
    WS,      WS | NL, 0,       0,       0,       0,       0,  0,  0,   0,   0,       0,
    0,       0,       0,       0,       0,       0,       0,  0,  WS,  P10, PS,      PS,
    PS,      PS,      PS,      N,       N,       N,       N,  N,  N,   N,   N,       N,
    N,       PS,      PS,      PS,      PS,      PS,      PS, PS, U10, U10, L | UP,  L | UP,
    L | UP,  L | UP,  L | UP,  L | UP,  PS,      PS,      PS, PS, PS,  PS,  D10,     D10,
    L | LOW, L | LOW, L | LOW, L | LOW, L | LOW, L | LOW, PS, PS, PS,  PS,  0};

/* Flags and length of the character at p < end. */
static inline uint32_t look(cursor p, cursor end, size_t *size) {
    uint32_t cp;
    if (*p < 0x80) {
        *size = 1;
        return ascii[*p];
    }
    if (end - p >= 4) { /* Well-formed characters of two and three bytes, without a call. */
        if ((*p & 0xE0) == 0xC0 && *p >= 0xC2 && (p[1] & 0xC0) == 0x80) {
            *size = 2;
            return lt_unicode_flags((p[0] & 0x1Fu) << 6 | (p[1] & 0x3Fu));
        }
        cp = (p[0] & 0x0Fu) << 12 | (p[1] & 0x3Fu) << 6 | (p[2] & 0x3Fu);
        if ((*p & 0xF0) == 0xE0 && (p[1] & 0xC0) == 0x80 && (p[2] & 0xC0) == 0x80 && cp >= 0x800 &&
            cp - 0xD800 >= 0x800) {
            *size = 3;
            return lt_unicode_flags(cp);
        }
    }
    *size = lt_utf8_decode(p, end, &cp);
    return lt_unicode_flags(cp);
}

/* The end of the ASCII letters at p. */
static inline cursor ascii_letters(cursor p, cursor end) {
    while (end - p >= 8) {
        const uint64_t ones = 0x0101010101010101u, highs = ones * 0x80;
        uint64_t w, low, stop;
        memcpy(&w, p, 8);
        /* Lower case, 7 bits, so that the sums below have no carries. */
        low = (w | ones * 0x20) & ~highs;
        /* The high bit of each byte of `stop` is set where the byte is below 'a', above 'z' or not
         * ASCII. */
        stop = (~(low + ones * (0x80 - 'a')) | (low + ones * (0x7F - 'z')) | w) & highs;
        if (stop != 0) {
            return p + (__builtin_ctzll(stop) >> 3);
        }
        p += 8;
    }
    while (p < end && *p < 0x80 && (ascii[*p] & L) != 0) {
        p++;
    }
    return p;
}

/* The end of the characters at p that have one of these flags. */
static inline cursor run_of(cursor p, cursor end, uint32_t flags) {
    size_t size;
    while (p < end && (look(p, end, &size) & flags) != 0) {
        p += size;
    }
    return p;
}

static inline cursor run_letters(cursor p, cursor end) {
    size_t size;
    for (;;) {
        p = ascii_letters(p, end);
        if (p == end || *p < 0x80 || (look(p, end, &size) & L) == 0) {
            return p;
        }
        p += size;
    }
}

/* The end of the characters at p that have none of these flags. */
static inline cursor run_without(cursor p, cursor end, uint32_t flags) {
    size_t size;
    while (p < end && (look(p, end, &size) & flags) == 0) {
        p += size;
    }
    return p;
}

/* Length of a contraction at p, where *p is the apostrophe; 0 if there is none. */
static inline size_t contraction(cursor p, cursor end, bool any_case) {
    const size_t room = (size_t)(end - p);
    const uint8_t fold = any_case ? 0x20 : 0;
    uint8_t a, b;
    if (room < 2) {
        return 0;
    }
    a = p[1] | fold;
    if (a == 's' || a == 't' || a == 'm' || a == 'd') {
        return 2;
    }
    if (any_case && room >= 3 && p[1] == 0xC5 && p[2] == 0xBF) {
        return 3; /* U+017F */
    }
    if (room < 3) {
        return 0;
    }
    b = p[2] | fold;
    return (a == 'r' && b == 'e') || (a == 'v' && b == 'e') || (a == 'l' && b == 'l') ? 3 : 0;
}

/* \s+(?!\S)|\s+ on the white space p..q that is followed by text at q < end: all but its last
 * character, or that one. */
static inline cursor before_last(cursor p, cursor q) {
    cursor last = q - 1;
    while ((*last & 0xC0) == 0x80 && last > p) {
        last--;
    }
    return last > p ? last : q;
}

/* \s*[\r\n]+|\s+(?!\S)|\s+ at white space p. `tail`: \s++$ comes first. */
static inline cursor space_word(cursor p, cursor end, bool tail) {
    cursor q = p, newline = NULL;
    size_t size;
    while (q < end) {
        const uint32_t flags = look(q, end, &size);
        if ((flags & WS) == 0) {
            break;
        }
        q += size;
        newline = (flags & NL) != 0 ? q : newline;
    }
    if (newline != NULL && !(tail && q == end)) {
        return newline;
    }
    return q == end ? q : before_last(p, q);
}

static const uint8_t *scan_gpt2(cursor p, cursor end) {
    cursor q = p;
    size_t size = 0;
    uint32_t flags;

    if (*p == '\'' && (size = contraction(p, end, false)) != 0) {
        return p + size;
    }
    q += *p == ' ' && p + 1 < end;
    flags = look(q, end, &size);
    if ((flags & L) != 0) {
        return run_letters(q + size, end);
    }
    if ((flags & N) != 0) {
        return run_of(q + size, end, N);
    }
    if ((flags & WS) == 0) {
        return run_without(q + size, end, L | N | WS);
    }
    q = run_of(p, end, WS);
    return q == end ? q : before_last(p, q);
}

/* Each digit is a separate segment, so white space before a digit is at the end of its
 * segment. */
static const uint8_t *scan_smollm(cursor p, cursor end) {
    size_t size = 0;
    uint32_t flags = look(p, end, &size);
    cursor q;

    if ((flags & LT_UNICODE_NUMBER) != 0) {
        return p + size;
    }
    q = scan_gpt2(p, end);
    if ((flags & WS) != 0) {
        /* " 1" and "  1": the white space alone; the general rule would have held its last
         *             character back. */
        cursor ws = run_of(p, end, WS);
        if (ws < end && (look(ws, end, &size) & N) != 0) {
            return ws;
        }
    }
    return q;
}

/* [^\r\n\p{L}\p{N}]?\p{L}+ and what follows it in the cl100k family. */
static inline cursor scan_cl100k_like(cursor p, cursor end, int digits_max, bool tail) {
    size_t size = 0, next_size = 0;
    const uint32_t flags = look(p, end, &size);
    cursor q = p + size;

    if ((flags & L) != 0) {
        return run_letters(q, end);
    }
    if (*p == '\'') {
        const size_t n = contraction(p, end, true);
        if (n != 0) {
            return p + n;
        }
    }
    if ((flags & N) != 0) {
        for (int i = 1; i < digits_max && q < end && (look(q, end, &next_size) & N) != 0; i++) {
            q += next_size;
        }
        return q;
    }
    if (q < end && (flags & NL) == 0) {
        const uint32_t next = look(q, end, &next_size);
        if ((next & L) != 0) {
            return run_letters(q + next_size, end);
        }
        if (*p == ' ' && (next & (N | WS)) == 0) {
            q = run_without(q + next_size, end, L | N | WS);
            return run_of(q, end, NL);
        }
    }
    if ((flags & WS) == 0) {
        return run_of(run_without(q, end, L | N | WS), end, NL);
    }
    return space_word(p, end, tail);
}

static const uint8_t *scan_cl100k(cursor p, cursor end) {
    return scan_cl100k_like(p, end, 3, false);
}

static const uint8_t *scan_cl100k_tail(cursor p, cursor end) {
    return scan_cl100k_like(p, end, 3, true);
}

static const uint8_t *scan_qwen2(cursor p, cursor end) {
    return scan_cl100k_like(p, end, 1, false);
}

/* [Upper]*[Lower]+ at q, greedy, where Upper and Lower share caseless letters and marks. Upper*
 * runs to r. If there is a lower-case letter, Lower+ continues from it; otherwise Upper* gives
 * back characters until one is also Lower, the last such x, and the match ends after x. NULL: no
 * match. *upper_end = r. */
static inline cursor word_lower(cursor q, cursor end, cursor *upper_end) {
    cursor r = q, shared_end = NULL;
    size_t size = 0;
    uint32_t flags = 0;
    while (r < end && ((flags = look(r, end, &size)) & UP) != 0) {
        r += size;
        shared_end = (flags & LOW) != 0 ? r : shared_end;
    }
    *upper_end = r;
    if (r < end && (flags & LOW) != 0) {
        return run_of(r + size, end, LOW);
    }
    return shared_end;
}

/* The two word alternatives of o200k: with the optional first character taken, then without it
 * (which can only matter when that character is a mark, the one kind that is neither \p{L} nor
 * excluded from words). */
static inline cursor case_word(cursor p, cursor end, uint32_t flags, size_t size) {
    const bool first = (flags & (L | N | NL)) == 0;
    cursor upper_with = NULL, upper_without = NULL, hit = NULL;

    if (first && p + size < end) {
        hit = word_lower(p + size, end, &upper_with);
    }
    if (hit == NULL && (flags & (UP | LOW)) != 0) {
        hit = word_lower(p, end, &upper_without);
    }
    if (hit == NULL && upper_with > p + size) {
        hit = upper_with;
    }
    if (hit == NULL && upper_without > p) {
        hit = upper_without;
    }
    return hit;
}

static inline cursor scan_o200k_like(cursor p, cursor end, int digits_max, bool contractions) {
    size_t size = 0, next_size = 0;
    const uint32_t flags = look(p, end, &size);
    cursor q = (flags & N) == 0 ? case_word(p, end, flags, size) : NULL;

    if (q != NULL) {
        return q + (contractions && q < end && *q == '\'' ? contraction(q, end, true) : 0);
    }
    q = p + size;
    if ((flags & N) != 0) {
        for (int i = 1; i < digits_max && q < end && (look(q, end, &next_size) & N) != 0; i++) {
            q += next_size;
        }
        return q;
    }
    if (*p == ' ' && q < end && (look(q, end, &next_size) & (L | N | WS)) == 0) {
        q += next_size;
    } else if ((flags & WS) != 0) {
        return space_word(p, end, false);
    }
    q = run_without(q, end, L | N | WS);
    while (q < end && (*q == '\r' || *q == '\n' || *q == '/')) {
        q++;
    }
    return q;
}

static const uint8_t *scan_o200k(cursor p, cursor end) {
    return scan_o200k_like(p, end, 3, true);
}

static const uint8_t *scan_tekken(cursor p, cursor end) {
    return scan_o200k_like(p, end, 1, false);
}

/* DeepSeek-V3 applies three patterns, each inside the pieces that the previous ones left:
 *     \p{N}{1,3}
 *     [U+4E00-U+9FA5 U+3040-U+309F U+30A0-U+30FF]+
 *     [ASCII punctuation][A-Za-z]+ | [^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+ | ?[\p{P}\p{S}]+[\r\n]* |
 *     white space as usual
 * So digits and CJK characters end a segment. Each gap that the last pattern leaves unmatched
 * (control characters) is one piece. */
static bool is_cjk(cursor p, cursor end) {
    uint32_t cp = 0;
    return *p >= 0xE3 && (lt_utf8_decode(p, end, &cp),
                          (cp >= 0x4E00 && cp <= 0x9FA5) || (cp >= 0x3040 && cp <= 0x30FF));
}

/* Flags of the character at p as the third pattern sees it; 0 at the segment's end. */
static inline uint32_t look_inside(cursor p, cursor end, size_t *size) {
    uint32_t flags;
    *size = 0;
    if (p == end) {
        return 0;
    }
    flags = look(p, end, size);
    if ((flags & N) != 0 || (*p >= 0xE3 && is_cjk(p, end))) {
        *size = 0;
        return 0;
    }
    return flags;
}

static inline cursor run_inside(cursor p, cursor end, uint32_t wanted) {
    size_t size;
    while ((look_inside(p, end, &size) & wanted) != 0) {
        p += size;
    }
    return p;
}

static cursor deepseek_space(cursor p, cursor end) {
    cursor q = p, newline = NULL;
    size_t size;
    for (;;) {
        const uint32_t flags = look_inside(q, end, &size);
        if ((flags & WS) == 0) {
            break;
        }
        q += size;
        newline = (flags & NL) != 0 ? q : newline;
    }
    return newline != NULL ? newline : size == 0 ? q : before_last(p, q);
}

/* The end of a piece that no alternative matches: where the next match begins. */
static cursor deepseek_gap(cursor q, cursor end) {
    size_t size, next_size;
    for (;;) {
        const uint32_t flags = look_inside(q, end, &size);
        if (size == 0 || (flags & (L | MK | PS | WS)) != 0 ||
            (look_inside(q + size, end, &next_size) & (L | MK)) != 0) {
            return q;
        }
        q += size;
    }
}

static const uint8_t *scan_deepseek(cursor p, cursor end) {
    size_t size = 0, next_size = 0;
    uint32_t flags = look(p, end, &size), next;
    cursor q = p + size;

    if ((flags & N) != 0) {
        for (int i = 1; i < 3 && q < end && (look(q, end, &next_size) & N) != 0; i++) {
            q += next_size;
        }
        return q;
    }
    if (is_cjk(p, end)) {
        while (q < end && is_cjk(q, end)) {
            q += 3;
        }
        return q;
    }
    if (*p < 0x80 && (flags & PS) != 0 && q < end && *q < 0x80 && (ascii[*q] & L) != 0) {
        return ascii_letters(q, end);
    }
    if ((flags & (L | MK)) != 0 && (flags & L) != 0) {
        return run_inside(q, end, L | MK);
    }
    next = look_inside(q, end, &next_size);
    if ((flags & (NL | L | PS)) == 0 && (next & (L | MK)) != 0) {
        return run_inside(q + next_size, end, L | MK);
    }
    if ((flags & MK) != 0) {
        return q; /* A mark alone: [\p{L}\p{M}]+ without its optional first character. */
    }
    if ((flags & PS) != 0 || (*p == ' ' && (next & PS) != 0)) {
        q = run_inside(q, end, PS);
        return run_inside(q, end, NL);
    }
    return (flags & WS) != 0 ? deepseek_space(p, end) : deepseek_gap(q, end);
}

lt_scan_fn lt_scan_function(lt_scan_kind kind) {
    static const lt_scan_fn functions[LT_SCAN_COUNT] = {
        [LT_SCAN_GPT2] = scan_gpt2,     [LT_SCAN_CL100K] = scan_cl100k,
        [LT_SCAN_QWEN2] = scan_qwen2,   [LT_SCAN_O200K] = scan_o200k,
        [LT_SCAN_TEKKEN] = scan_tekken, [LT_SCAN_CL100K_TAIL] = scan_cl100k_tail,
        [LT_SCAN_SMOLLM] = scan_smollm, [LT_SCAN_DEEPSEEK3] = scan_deepseek,
    };
    LT_ASSERT(kind >= 0 && kind < LT_SCAN_COUNT);
    return functions[kind];
}

static const char *const regexes[LT_SCAN_COUNT] = {
#define SCAN_REGEX(id, name, regex) regex,
    LT_SCAN_MAP(SCAN_REGEX)
#undef SCAN_REGEX
};

const char *lt_scan_name(lt_scan_kind kind) {
    static const char *const names[LT_SCAN_COUNT] = {
#define SCAN_NAME(id, name, regex) name,
        LT_SCAN_MAP(SCAN_NAME)
#undef SCAN_NAME
    };
    LT_ASSERT(kind >= 0 && kind < LT_SCAN_COUNT);
    return names[kind];
}

const char *lt_scan_regex(lt_scan_kind kind) {
    LT_ASSERT(kind >= 0 && kind < LT_SCAN_COUNT);
    return regexes[kind];
}

/* Other spellings of the same language. */
static const struct {
    lt_scan_kind kind;
    const char *regex;
} spellings[] = {
    {LT_SCAN_GPT2,
     "'(?:[sdmt]|ll|ve|re)| ?\\p{L}++| ?\\p{N}++| ?[^\\s\\p{L}\\p{N}]++|\\s++$|\\s+(?!\\S)|\\s"},
    {LT_SCAN_GPT2,
     "'(?:[sdmt]|ll|ve|re)| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"},
    {LT_SCAN_GPT2,
     "'s|'t|'re|'ve|'m|'ll|'d| ?[\\p{L}]+| ?[\\p{N}]+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"},
    {LT_SCAN_CL100K,
     "(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|"
     "\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"},
    {LT_SCAN_QWEN2,
     "(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|"
     "\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"},
};

lt_scan_kind lt_scan_by_regex(const char *regex, size_t n) {
    for (int i = 0; i < LT_SCAN_COUNT; i++) {
        if (regexes[i] != NULL && strlen(regexes[i]) == n && memcmp(regexes[i], regex, n) == 0) {
            return (lt_scan_kind)i;
        }
    }
    for (size_t i = 0; i < sizeof spellings / sizeof *spellings; i++) {
        if (strlen(spellings[i].regex) == n && memcmp(spellings[i].regex, regex, n) == 0) {
            return spellings[i].kind;
        }
    }
    return LT_SCAN_COUNT;
}
