/* pretokenize.c: the general chain of pre-tokenizer stages; see pretokenize.h.
 *
 * Each stage turns w->pieces into w->next. A matcher finds the matched ranges ("stretches") of a
 * piece; put_stretch applies the behaviour, which decides whether a stretch becomes a piece, joins
 * its neighbour or disappears (Hugging Face's SplitDelimiterBehavior). Stages that rewrite text
 * write a whole new text and move all pieces into it. */
#include "data/tokenizer/pretokenize.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "data/tokenizer/regex.h"

uint32_t lt_byte_char(uint8_t byte) {
    if ((byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte != 0xAD)) {
        return byte;
    }
    return 0x100u + (byte <= 0x20 ? byte : byte == 0xAD ? 67u : byte - 0x7Fu + 33u);
}

int lt_char_byte(uint32_t cp) {
    if ((cp >= 0x21 && cp <= 0x7E) || (cp >= 0xA1 && cp <= 0xFF && cp != 0xAD)) {
        return (int)cp;
    }
    if (cp < 0x100 || cp > 0x143) {
        return -1;
    }
    cp -= 0x100;
    return (int)(cp <= 0x20 ? cp : cp == 67 ? 0xAD : cp - 33 + 0x7F);
}

void lt_pieces_free(lt_pieces *w) {
    free(w->pieces);
    free(w->next);
    lt_text_free(&w->texts[0]);
    lt_text_free(&w->texts[1]);
    lt_text_free(&w->firsts[0]);
    lt_text_free(&w->firsts[1]);
    lt_regex_scratch_close(w->regex);
    *w = (lt_pieces){0};
}

static lt_err put_piece(lt_pieces *w, size_t begin, size_t end) {
    if (begin == end) {
        return LT_OK;
    }
    if (w->n_next == w->next_room) {
        const size_t room = w->next_room == 0 ? 256 : 2 * w->next_room;
        lt_range *grown = realloc(w->next, room * sizeof *grown);
        if (grown == NULL) {
            LT_FAIL(LT_ERR_OOM, "%zu pre-tokens", room);
        }
        w->next = grown;
        w->next_room = room;
    }
    w->next[w->n_next++] = (lt_range){begin, end};
    return LT_OK;
}

/* Holds the last stretch of a piece, because the next one may be joined to it. */
typedef struct {
    lt_cut_behaviour behaviour;
    bool holds, last_was_match;
    size_t begin, end;
} joiner;

static lt_err end_piece(lt_pieces *w, joiner *j) {
    const bool held = j->holds;
    j->holds = false;
    return held ? put_piece(w, j->begin, j->end) : LT_OK;
}

/* Add a stretch. Stretches cover the piece without gaps; an empty match cuts between its
 * neighbours. */
static lt_err put_stretch(lt_pieces *w, joiner *j, size_t begin, size_t end, bool match) {
    const bool joins = (j->behaviour == LT_CUT_CONTIGUOUS && match == j->last_was_match) ||
                       (j->behaviour == LT_CUT_WITH_PREVIOUS && match && !j->last_was_match) ||
                       (j->behaviour == LT_CUT_WITH_NEXT && !match && j->last_was_match);
    if (j->behaviour == LT_CUT_REMOVED && match) {
        return end_piece(w, j);
    }
    if (j->holds && joins) {
        j->end = end;
    } else {
        LT_TRY(end_piece(w, j));
        j->holds = true;
        j->begin = begin;
        j->end = end;
    }
    j->last_was_match = match;
    return LT_OK;
}

/* Find the next match in a piece, for REGEX, LITERAL and CHARS. *at: the position of the REGEX
 * search; the others begin at `from`. */
static lt_err find_match(const lt_cut *c, lt_pieces *w, lt_range r, lt_regex_cursor *at,
                         bool *found, size_t *begin, size_t *end) {
    const uint8_t *text = w->text;
    size_t size = 1;
    *found = false;
    if (c->kind == LT_CUT_REGEX) {
        LT_TRY(lt_regex_next(c->regex, w->regex, (const char *)text + r.begin, r.end - r.begin, at,
                             found, begin, end));
        *begin += r.begin;
        *end += r.begin;
        return LT_OK;
    }
    if (c->kind == LT_CUT_LITERAL) {
        const size_t from = r.begin + at->from;
        const uint8_t *hit = memmem(text + from, r.end - from, c->literal.data, c->literal.n);
        *found = hit != NULL;
        *begin = hit != NULL ? (size_t)(hit - text) : 0;
        *end = *begin + c->literal.n;
    }
    for (size_t i = r.begin + at->from; c->kind == LT_CUT_CHARS && i < r.end && !*found;
         i += size) {
        uint32_t cp;
        size = lt_utf8_decode(text + i, text + r.end, &cp);
        if ((lt_unicode_flags(cp) & c->flags) != 0) {
            *found = true;
            *begin = i;
            *end = i + size;
        }
    }
    at->from = *found ? *end - r.begin : at->from;
    return LT_OK;
}

static lt_err cut_matches(const lt_cut *c, lt_pieces *w, lt_range r) {
    joiner j = {.behaviour = c->behaviour};
    lt_regex_cursor cursor = {0};
    size_t at = r.begin;
    for (;;) {
        bool found;
        size_t begin = 0, end = 0;
        LT_TRY(find_match(c, w, r, &cursor, &found, &begin, &end));
        if (!found) {
            break;
        }
        LT_TRY(at < begin ? put_stretch(w, &j, at, begin, c->invert) : LT_OK);
        LT_TRY(put_stretch(w, &j, begin, end, !c->invert));
        at = end;
    }
    LT_TRY(at < r.end ? put_stretch(w, &j, at, r.end, c->invert) : LT_OK);
    return end_piece(w, &j);
}

static lt_err cut_scan(const lt_cut *c, lt_pieces *w, lt_range r) {
    const uint8_t *p = w->text + r.begin, *const end = w->text + r.end;
    while (p < end) {
        const uint8_t *q = c->scan(p, end);
        LT_TRY(put_piece(w, (size_t)(p - w->text), (size_t)(q - w->text)));
        p = q;
    }
    return LT_OK;
}

/* WORDS and BERT: each character has a class. Runs of one class are pieces; class 0 is dropped;
 * each character of class 3 is a piece. */
static lt_err cut_classes(const lt_cut *c, lt_pieces *w, lt_range r) {
    size_t begin = r.begin, size;
    int open = 0;
    for (size_t at = r.begin; at < r.end; at += size) {
        uint32_t cp, flags;
        int class;
        size = lt_utf8_decode(w->text + at, w->text + r.end, &cp);
        flags = lt_unicode_flags(cp);
        if (c->kind == LT_CUT_WORDS) {
            class = (flags & LT_UNICODE_WORD) != 0 ? 1 : (flags & LT_UNICODE_SPACE) != 0 ? 0 : 2;
        } else {
            class = (flags & LT_UNICODE_SPACE) != 0         ? 0
                    : (flags & LT_UNICODE_PUNCT_SPLIT) != 0 ? 3
                                                            : 1;
        }
        if (class != open || class == 3) {
            LT_TRY(open != 0 ? put_piece(w, begin, at) : LT_OK);
            begin = at;
            open = class;
        }
    }
    return open != 0 ? put_piece(w, begin, r.end) : LT_OK;
}

/* Cut where the script changes. Characters that belong to every script stay with the text before
 * them. */
static lt_err cut_scripts(lt_pieces *w, lt_range r) {
    size_t begin = r.begin, size;
    uint32_t last = 0, cp;
    bool started = false;
    for (size_t at = r.begin; at < r.end; at += size) {
        uint32_t script;
        size = lt_utf8_decode(w->text + at, w->text + r.end, &cp);
        script = lt_unicode_script(cp);
        if (script != 0) {
            if (!started || script != last) {
                LT_TRY(started ? put_piece(w, begin, at) : LT_OK);
                begin = at;
            }
            started = true;
            last = script;
        }
    }
    return started ? put_piece(w, begin, r.end) : LT_OK;
}

static lt_err cut_length(const lt_cut *c, lt_pieces *w, lt_range r) {
    size_t begin = r.begin, chars = 0;
    for (size_t at = r.begin; at < r.end;) {
        uint32_t cp;
        at += lt_utf8_decode(w->text + at, w->text + r.end, &cp);
        if (++chars == c->length || at == r.end) {
            LT_TRY(put_piece(w, begin, at));
            begin = at;
            chars = 0;
        }
    }
    return LT_OK;
}

/* Append bytes that stand for the same range as byte `at` of the piece. */
static lt_err put_for(lt_pieces *w, lt_text *out, const char *s, size_t n, size_t at) {
    LT_TRY(lt_text_put(out, s, n));
    for (size_t i = 0; w->first != NULL && i < n; i++) {
        LT_TRY(lt_text_put(&w->firsts[w->n_rewrites % 2], w->first + at, 1));
    }
    return LT_OK;
}

static lt_err rewrite_metaspace(const lt_cut *c, lt_pieces *w, lt_range r, bool origin,
                                lt_text *out) {
    const lt_text *mark = &c->literal;
    const char *s = (const char *)w->text;
    const bool has = r.end - r.begin >= mark->n && memcmp(s + r.begin, mark->data, mark->n) == 0;
    if ((c->prepend == LT_PREPEND_ALWAYS || (c->prepend == LT_PREPEND_FIRST && origin)) && !has &&
        s[r.begin] != ' ') {
        LT_TRY(put_for(w, out, mark->data, mark->n, r.begin));
    }
    for (size_t i = r.begin; i < r.end; i++) {
        LT_TRY(s[i] == ' ' ? put_for(w, out, mark->data, mark->n, i)
                           : put_for(w, out, s + i, 1, i));
    }
    return LT_OK;
}

static lt_err rewrite_piece(const lt_cut *c, lt_pieces *w, lt_range r, bool origin, lt_text *out) {
    if (c->kind == LT_CUT_METASPACE) {
        return rewrite_metaspace(c, w, r, origin, out);
    }
    if (c->kind == LT_CUT_PREFIX_SPACE && w->text[r.begin] != ' ') {
        LT_TRY(put_for(w, out, " ", 1, r.begin));
    }
    for (size_t i = r.begin; i < r.end; i++) {
        char bytes[4] = {(char)w->text[i]};
        const size_t n = c->kind == LT_CUT_PREFIX_SPACE
                             ? 1
                             : lt_utf8_encode(lt_byte_char(w->text[i]), bytes);
        LT_TRY(put_for(w, out, bytes, n, i));
    }
    return LT_OK;
}

/* Cut before each replacement character: MergedWithNext on the literal. */
static lt_err cut_metaspace(const lt_cut *c, lt_pieces *w, lt_range r) {
    const lt_cut literal = {
        .kind = LT_CUT_LITERAL, .behaviour = LT_CUT_WITH_NEXT, .literal = c->literal};
    return c->split ? cut_matches(&literal, w, r) : put_piece(w, r.begin, r.end);
}

/* Move every piece into a rewritten text. */
static lt_err rewrite_all(const lt_cut *c, lt_pieces *w, bool origin) {
    lt_text *to = &w->texts[w->n_rewrites % 2], *first = &w->firsts[w->n_rewrites % 2];
    to->n = first->n = 0;
    for (size_t i = 0; i < w->n; i++) {
        const lt_range r = w->pieces[i];
        const size_t begin = to->n;
        const bool begins = w->first != NULL ? w->first[r.begin] != 0
                                             : origin && i == 0 && r.begin == 0;
        LT_TRY(rewrite_piece(c, w, r, begins, to));
        w->pieces[i] = (lt_range){begin, to->n};
    }
    w->text = (const uint8_t *)to->data;
    w->text_bytes = to->n;
    w->first = w->first != NULL ? first->data : NULL;
    w->n_rewrites++;
    return LT_OK;
}

static bool is_rewrite(const lt_cut *c) {
    return c->kind == LT_CUT_METASPACE || c->kind == LT_CUT_PREFIX_SPACE ||
           c->kind == LT_CUT_BYTE_MAP;
}

static lt_err run_cut(const lt_cut *c, lt_pieces *w, bool origin) {
    lt_range *swap;
    size_t swap_room;
    if (is_rewrite(c)) {
        LT_TRY(rewrite_all(c, w, origin));
        if (c->kind != LT_CUT_METASPACE) {
            return LT_OK;
        }
    }
    if (c->kind == LT_CUT_REGEX && w->regex == NULL) {
        LT_TRY(lt_regex_scratch_open(&w->regex));
    }
    w->n_next = 0;
    for (size_t i = 0; i < w->n; i++) {
        switch (c->kind) {
        case LT_CUT_SCAN:
            LT_TRY(cut_scan(c, w, w->pieces[i]));
            break;
        case LT_CUT_WORDS:
        case LT_CUT_BERT:
            LT_TRY(cut_classes(c, w, w->pieces[i]));
            break;
        case LT_CUT_SCRIPTS:
            LT_TRY(cut_scripts(w, w->pieces[i]));
            break;
        case LT_CUT_LENGTH:
            LT_TRY(cut_length(c, w, w->pieces[i]));
            break;
        case LT_CUT_METASPACE:
            LT_TRY(cut_metaspace(c, w, w->pieces[i]));
            break;
        default:
            LT_TRY(cut_matches(c, w, w->pieces[i]));
            break;
        }
    }
    swap = w->pieces;
    swap_room = w->room;
    w->pieces = w->next;
    w->n = w->n_next;
    w->room = w->next_room;
    w->next = swap;
    w->next_room = swap_room;
    return LT_OK;
}

bool lt_pretok_needs_first(const lt_pretok *p, bool normalised) {
    bool rewritten = normalised;
    for (int i = 0; i < p->n_cuts; i++) {
        if (p->cuts[i].kind == LT_CUT_METASPACE && p->cuts[i].prepend == LT_PREPEND_FIRST &&
            rewritten) {
            return true;
        }
        rewritten |= is_rewrite(&p->cuts[i]);
    }
    return false;
}

lt_err lt_pretok_run(const lt_pretok *p, lt_pieces *w, const uint8_t *text, size_t n, bool origin,
                     const char *first) {
    w->first = first;
    w->text = text;
    w->text_bytes = n;
    w->n_rewrites = 0;
    w->n_next = 0;
    LT_TRY(put_piece(w, 0, n));
    if (w->n_next > 0) {
        lt_range *swap = w->pieces;
        const size_t swap_room = w->room;
        w->pieces = w->next;
        w->room = w->next_room;
        w->next = swap;
        w->next_room = swap_room;
    }
    w->n = w->n_next;
    for (int i = 0; i < p->n_cuts; i++) {
        LT_TRY(run_cut(&p->cuts[i], w, origin));
    }
    return LT_OK;
}

static void free_cut(lt_cut *c) {
    lt_text_free(&c->literal);
    lt_regex_close(c->regex);
    c->regex = NULL;
}

lt_err lt_pretok_add(lt_pretok *p, lt_cut cut) {
    if (p->n_cuts == LT_MAX_CUTS) {
        free_cut(&cut);
        LT_FAIL(LT_ERR_LIMIT, "a pre-tokenizer of more than %d stages", LT_MAX_CUTS);
    }
    p->cuts[p->n_cuts++] = cut;
    return LT_OK;
}

static const char *const deepseek_parts[3] = {
    "\\p{N}{1,3}",
    "[一-龥぀-ゟ゠-ヿ]+",
    "[!\"#$%&'()*+,\\-./"
    ":;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?"
    "[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+",
};

lt_err lt_pretok_add_regex(lt_pretok *p, const char *regex, size_t n, lt_regex_dialect dialect,
                           lt_cut_behaviour behaviour, bool invert, const char *name) {
    lt_cut cut = {.kind = LT_CUT_REGEX, .behaviour = behaviour, .invert = invert};
    const lt_scan_kind known = lt_scan_by_regex(regex, n);
    /* Scanners cover the text without gaps, so isolated matches (or inverted removed ones) are just
     * the words. Oniguruma reads {1,3}+ and $ of cl100k-tiktoken in another way. */
    if (known != LT_SCAN_COUNT && (known != LT_SCAN_CL100K_TAIL || dialect == LT_REGEX_RUST) &&
        (behaviour == LT_CUT_ISOLATED || (behaviour == LT_CUT_REMOVED && invert))) {
        return lt_pretok_add(p, (lt_cut){.kind = LT_CUT_SCAN, .scan = lt_scan_function(known)});
    }
    for (int i = 0; i < 3; i++) {
        if (strlen(deepseek_parts[i]) == n && memcmp(deepseek_parts[i], regex, n) == 0 &&
            behaviour == LT_CUT_ISOLATED && !invert) {
            cut.deepseek = i + 1;
        }
    }
    LT_TRY(lt_regex_open(&cut.regex, regex, n, dialect, name));
    return lt_pretok_add(p, cut);
}

void lt_pretok_optimise(lt_pretok *p) {
    const bool ends_in_scan = p->n_cuts > 0 && p->cuts[p->n_cuts - 1].kind == LT_CUT_SCAN;
    if (p->n_cuts == 1 && ends_in_scan) {
        p->scan = p->cuts[0].scan;
        p->n_cuts = 0;
    } else if (p->n_cuts == 2 && ends_in_scan &&
               p->cuts[1].scan == lt_scan_function(LT_SCAN_GPT2) &&
               p->cuts[0].kind == LT_CUT_CHARS && p->cuts[0].behaviour == LT_CUT_ISOLATED &&
               (p->cuts[0].flags & ~(uint32_t)(LT_UNICODE_NUMBER | LT_UNICODE_NUMERIC)) == 0) {
        p->scan = lt_scan_function(LT_SCAN_SMOLLM);
        p->n_cuts = 0;
    } else if (p->n_cuts == 3 && p->cuts[0].deepseek == 1 && p->cuts[1].deepseek == 2 &&
               p->cuts[2].deepseek == 3) {
        for (int i = 0; i < 3; i++) {
            free_cut(&p->cuts[i]);
        }
        p->scan = lt_scan_function(LT_SCAN_DEEPSEEK3);
        p->n_cuts = 0;
    }
}

void lt_pretok_free(lt_pretok *p) {
    for (int i = 0; i < p->n_cuts; i++) {
        free_cut(&p->cuts[i]);
    }
    *p = (lt_pretok){0};
}
