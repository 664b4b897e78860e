/* punkt.c: see punkt.h. All parameters are in one table from texts to numbers, by their hash; the
 * first byte of a text says what it is. */
#include "data/check/punkt.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "base/error.h"
#include "base/file.h"

#define MAX_FILE     ((size_t)64 << 20)
#define MAX_WORDS    4096 /* Most words in the context of one full stop. */
#define ABBREVIATION 'a'
#define COLLOCATION  'c'
#define STARTER      's'
#define CONTEXT      'o'

/* How a word was written in the training texts: at the beginning of a sentence, inside one or at an
 * unknown place, with an upper-case or a lower-case letter. */
enum { BEG_UC = 2, MID_UC = 4, UNK_UC = 8, BEG_LC = 16, MID_LC = 32, UNK_LC = 64 };
#define ANY_UC (BEG_UC | MID_UC | UNK_UC)
#define ANY_LC (BEG_LC | MID_LC | UNK_LC)

/* Characters that cannot be within words, other than spaces. */
#define NON_WORD   "[)\";}\\]*:@'({\\[\\x{2018}\\x{2019}\\x{201c}\\x{201d}\\x{ab}\\x{bb}?!]"
#define MULTI      "(?:-{2,}|\\.{2,}|(?:\\.\\s){2,}\\.)"
#define WORD_START "[^(\"`{\\[:;&#*@)}\\]\\-,]"
#define WORD                                                                                       \
    MULTI "|(?=" WORD_START ")\\S+?(?=\\s|$|" NON_WORD "|" MULTI "|,(?=$|\\s|" NON_WORD "|" MULTI  \
          "))|\\S"

typedef struct {
    uint64_t hash; /* 0: an empty slot. */
    int64_t value;
} row;

struct lt_punkt {
    row *rows;
    size_t n, room; /* room is a power of two. */
};

/* ---- The table ---- */

static uint64_t hash_of(char kind, const char *text, size_t n) {
    return XXH3_64bits_withSeed(text, n, (uint64_t)(unsigned char)kind) | 1;
}

static void insert(row *rows, size_t room, row r) {
    size_t at = r.hash & (room - 1);
    while (rows[at].hash != 0 && rows[at].hash != r.hash) {
        at = (at + 1) & (room - 1);
    }
    rows[at] = r;
}

static lt_err add(lt_punkt *p, char kind, const char *text, size_t n, int64_t value) {
    if (2 * p->n >= p->room) {
        const size_t room = p->room > 0 ? 2 * p->room : 1024;
        row *rows = calloc(room, sizeof *rows);
        if (rows == NULL) {
            LT_FAIL(LT_ERR_OOM, "punkt: %zu words", room);
        }
        for (size_t i = 0; i < p->room; i++) {
            if (p->rows[i].hash != 0) {
                insert(rows, room, p->rows[i]);
            }
        }
        free(p->rows);
        p->rows = rows;
        p->room = room;
    }
    insert(p->rows, p->room, (row){hash_of(kind, text, n), value});
    p->n++;
    return LT_OK;
}

static int64_t get(const lt_punkt *p, char kind, const char *text, size_t n) {
    const uint64_t hash = hash_of(kind, text, n);
    size_t at = hash & (p->room - 1);
    while (p->rows[at].hash != 0) {
        if (p->rows[at].hash == hash) {
            return p->rows[at].value;
        }
        at = (at + 1) & (p->room - 1);
    }
    return 0;
}

/* Read a file with one text on each line. value: a number follows its last tab. */
static lt_err read_file(lt_punkt *p, const char *folder, const char *name, char kind, bool value) {
    char path[LT_PATH_BYTES], *text = NULL;
    size_t n = 0;
    lt_err err = LT_OK;
    lt_span rest, line;

    LT_TRY(lt_path_join(path, folder, name));
    LT_TRY(lt_file_read(&text, &n, path, MAX_FILE));
    rest = (lt_span){text, n};
    while (err == LT_OK && lt_span_split(&rest, LT_SPAN("\n"), &line)) {
        const char *tab = value && line.n > 0 ? memrchr(line.data, '\t', line.n) : NULL;
        const size_t key_n = tab != NULL ? (size_t)(tab - line.data) : line.n;
        if (line.n > 0 && value && tab == NULL) {
            err = lt_error_set(LT_ERR_FORMAT, "%s: a line without a number", path);
        } else if (line.n > 0) {
            err = add(p, kind, line.data, key_n, tab != NULL ? strtoll(tab + 1, NULL, 10) : 1);
        }
    }
    free(text);
    return err;
}

lt_err lt_punkt_open(lt_punkt **out, const char *nltk_data) {
    char folder[LT_PATH_BYTES];
    lt_punkt *p = calloc(1, sizeof *p);
    lt_err err = LT_OK;
    if (p == NULL) {
        LT_FAIL(LT_ERR_OOM, "punkt");
    }
    LT_TRY_DONE(lt_path_join(folder, nltk_data, "tokenizers/punkt_tab/english"));
    LT_TRY_DONE(read_file(p, folder, "abbrev_types.txt", ABBREVIATION, false));
    LT_TRY_DONE(read_file(p, folder, "collocations.tab", COLLOCATION, false));
    LT_TRY_DONE(read_file(p, folder, "sent_starters.txt", STARTER, false));
    LT_TRY_DONE(read_file(p, folder, "ortho_context.tab", CONTEXT, true));
    *out = p;
    p = NULL;
done:
    lt_punkt_close(p);
    return err;
}

void lt_punkt_close(lt_punkt *p) {
    if (p != NULL) {
        free(p->rows);
        free(p);
    }
}

/* ---- Words of a context ---- */

typedef struct {
    lt_span word;
    char *type; /* In lower case; numbers are ##number##. */
    size_t type_n;
    bool ends, abbreviation, ellipsis; /* ends: it ends a sentence. */
    bool stop;                         /* Its last character is a full stop. */
} word;

typedef struct {
    word words[MAX_WORDS];
    int n;
    bool no_memory;
} context;

static bool matches(const char *pattern, lt_span s) {
    int64_t n = 0;
    return lt_re_count(&n, pattern, s, 0, 1) == LT_OK && n > 0;
}

static bool add_word(void *ctx, lt_span match) {
    context *c = ctx;
    word *w = &c->words[c->n];
    if (c->n == MAX_WORDS) {
        return false;
    }
    *w = (word){.word = match, .stop = match.data[match.n - 1] == '.'};
    w->type = lt_span_lower(match, &w->type_n);
    if (w->type == NULL) {
        c->no_memory = true;
        return false;
    }
    if (matches("^-?[.,]?\\d[\\d,.-]*\\.?$", (lt_span){w->type, w->type_n})) {
        free(w->type);
        w->type = strdup("##number##");
        w->type_n = w->type != NULL ? strlen(w->type) : 0;
    }
    c->no_memory = c->no_memory || w->type == NULL;
    c->n++;
    return !c->no_memory;
}

static void context_free(context *c) {
    for (int i = 0; i < c->n; i++) {
        free(c->words[i].type);
    }
    free(c);
}

static bool is_one_of(lt_span s, const char *set) {
    return s.n == 1 && strchr(set, s.data[0]) != NULL;
}

/* The type without its full stop. */
static size_t bare_n(const word *w) {
    return w->type_n > 1 && w->type[w->type_n - 1] == '.' ? w->type_n - 1 : w->type_n;
}

/* The same, if the full stop ends a sentence. */
static size_t unless_end_n(const word *w) {
    return w->ends ? bare_n(w) : w->type_n;
}

/* Decide what can be decided from the word alone. */
static lt_err look_at(const lt_punkt *p, word *w) {
    char *lower;
    const char *dash;
    size_t n = 0;
    if (is_one_of(w->word, ".?!")) {
        w->ends = true;
        return LT_OK;
    }
    if (w->word.n >= 2 && lt_span_strip_char(w->word, '.').n == 0) {
        w->ellipsis = true;
        return LT_OK;
    }
    if (!w->stop || lt_span_ends(w->word, LT_SPAN(".."))) {
        return LT_OK;
    }
    lower = lt_span_lower((lt_span){w->word.data, w->word.n - 1}, &n);
    if (lower == NULL) {
        LT_FAIL(LT_ERR_OOM, "a word of %zu bytes", w->word.n);
    }
    dash = n > 0 ? memrchr(lower, '-', n) : NULL;
    dash = dash != NULL ? dash + 1 : lower;
    w->abbreviation = get(p, ABBREVIATION, lower, n) != 0 ||
                      get(p, ABBREVIATION, dash, n - (size_t)(dash - lower)) != 0;
    w->ends = !w->abbreviation;
    free(lower);
    return LT_OK;
}

typedef enum { NO, YES, MAYBE } belief;

static bool first_is_large(const word *w) {
    return matches("^\\p{Lu}", w->word);
}

/* Whether the word begins a sentence, judged by its first letter. */
static belief begins(const lt_punkt *p, const word *w) {
    const int64_t seen = get(p, CONTEXT, w->type, unless_end_n(w));
    if (is_one_of(w->word, ";:,.!?")) {
        return NO;
    }
    if (first_is_large(w) && (seen & ANY_LC) != 0 && (seen & MID_UC) == 0) {
        return YES;
    }
    if (matches("^\\p{Ll}", w->word) && ((seen & ANY_UC) != 0 || (seen & BEG_LC) == 0)) {
        return NO;
    }
    return MAYBE;
}

static bool are_collocated(const lt_punkt *p, const word *a, const word *b) {
    char pair[512];
    const int n = snprintf(pair, sizeof pair, "%.*s\t%.*s", (int)bare_n(a), a->type,
                           (int)unless_end_n(b), b->type);
    return n > 0 && n < (int)sizeof pair && get(p, COLLOCATION, pair, (size_t)n) != 0;
}

/* Decide the rest from the next word. */
static void look_behind(const lt_punkt *p, word *w, const word *next) {
    const bool initial = matches("^[^\\W\\d]\\.$", w->word);
    belief next_begins;
    if (!w->stop) {
        return;
    }
    if (are_collocated(p, w, next)) {
        w->ends = false;
        w->abbreviation = true;
        return;
    }
    next_begins = begins(p, next);
    if ((w->abbreviation || w->ellipsis) && !initial) {
        if (next_begins == YES ||
            (first_is_large(next) && get(p, STARTER, next->type, unless_end_n(next)) != 0)) {
            w->ends = true;
            return;
        }
    }
    if (!initial && !(bare_n(w) == 10 && memcmp(w->type, "##number##", 10) == 0)) {
        return;
    }
    if (next_begins == NO || (next_begins == MAYBE && initial && first_is_large(next) &&
                              (get(p, CONTEXT, next->type, unless_end_n(next)) & ANY_LC) == 0)) {
        w->ends = false;
        w->abbreviation = true;
    }
}

/* Whether a sentence ends in the text, with a word after it. */
static lt_err has_end(const lt_punkt *p, lt_span text, bool *found) {
    context *c = calloc(1, sizeof *c);
    lt_span rest = text, line;
    lt_err err = c != NULL ? LT_OK : lt_error_set(LT_ERR_OOM, "punkt: a context");

    *found = false;
    while (err == LT_OK && lt_span_split(&rest, LT_SPAN("\n"), &line)) {
        if (lt_span_strip(line).n > 0) {
            err = lt_re_each(WORD, line, 0, add_word, c);
        }
    }
    if (c == NULL) {
        return err;
    }
    if (err == LT_OK && c->no_memory) {
        err = lt_error_set(LT_ERR_OOM, "punkt: a context");
    }
    for (int i = 0; i < c->n && err == LT_OK; i++) {
        err = look_at(p, &c->words[i]);
    }
    for (int i = 0; i + 1 < c->n && err == LT_OK && !*found; i++) {
        look_behind(p, &c->words[i], &c->words[i + 1]);
        *found = c->words[i].ends;
    }
    context_free(c);
    return err;
}

/* ---- Sentences ---- */

/* A place where a sentence may end: after the byte at `at`. The context begins at `begin`, with the
 * word before, and ends with the word after, or with the punctuation there. */
typedef struct {
    size_t begin, at, end, next; /* next: where the next sentence would begin. */
} candidate;

typedef struct {
    const lt_punkt *p;
    lt_span text;
    size_t last;    /* Where the current sentence begins. */
    size_t realign; /* Bytes at its beginning that belong to the previous one. */
    bool has;       /* A sentence has not yet been passed on. */
    size_t from, to;
    lt_err (*each)(void *ctx, lt_span sentence);
    void *ctx;
} splitter;

static lt_span from(const splitter *s, size_t at) {
    return (lt_span){s->text.data + at, s->text.n - at};
}

static size_t non_word_at(lt_span s) {
    static const char *const wide[] = {"\u2018", "\u2019", "\u201c", "\u201d", "\u00ab", "\u00bb"};
    if (s.n > 0 && strchr(")\";}]*:@'({[?!", s.data[0]) != NULL && s.data[0] != '\0') {
        return 1;
    }
    for (size_t i = 0; i < sizeof wide / sizeof *wide; i++) {
        if (lt_span_begins(s, (lt_span){wide[i], strlen(wide[i])})) {
            return strlen(wide[i]);
        }
    }
    return 0;
}

/* The same, but only for characters that still belong to a sentence after its end, such as a quote
 * or a closing bracket. */
static size_t closer_at(lt_span s) {
    return s.n > 0 && strchr(";*:@({[?!", s.data[0]) != NULL ? 0 : non_word_at(s);
}

static size_t spaces_at(lt_span s) {
    return s.n - lt_span_strip_left(s).n;
}

/* Set the fields for the text after a full stop at c->at; false: a sentence cannot end there. */
static bool look_ahead(const splitter *s, candidate *c) {
    const lt_span behind = from(s, c->at + 1);
    const size_t punctuation = non_word_at(behind), spaces = spaces_at(behind);
    size_t n = spaces;
    if (punctuation > 0) {
        c->end = c->at + 1 + punctuation;
        c->next = c->at + 1;
        return true;
    }
    while (n < behind.n && spaces_at((lt_span){behind.data + n, behind.n - n}) == 0) {
        n++;
    }
    c->end = c->at + 1 + n;
    c->next = c->at + 1 + spaces;
    return spaces > 0 && n > spaces;
}

/* Pass on the waiting sentence, now that the next is known: closing quotes and brackets at the
 * beginning of the next one belong to it. */
static lt_err tell(splitter *s, size_t next_from, size_t next_to, bool is_last) {
    size_t begin = s->from + s->realign, closers = 0, end = 0;
    const lt_span next = {s->text.data + next_from, next_to > next_from ? next_to - next_from : 0};

    if (!s->has) {
        return LT_OK;
    }
    while (!is_last && end == 0 && closers < next.n) {
        const size_t width = closer_at((lt_span){next.data + closers, next.n - closers});
        if (width == 0) {
            break;
        }
        closers += width;
        const lt_span rest = {next.data + closers, next.n - closers};
        if (rest.n == 0 || spaces_at(rest) > 0 || lt_span_begins(rest, LT_SPAN("--"))) {
            end = closers + spaces_at(rest);
        }
    }
    s->realign = end;
    if (end > 0) {
        return s->each(s->ctx, (lt_span){s->text.data + begin, next_from + closers - begin});
    }
    return begin < s->to ? s->each(s->ctx, (lt_span){s->text.data + begin, s->to - begin}) : LT_OK;
}

static lt_err add_sentence(splitter *s, size_t begin, size_t end) {
    LT_TRY(tell(s, begin, end, false));
    s->has = true;
    s->from = begin;
    s->to = end;
    return LT_OK;
}

static lt_err try_end(splitter *s, const candidate *c) {
    bool found = false;
    LT_TRY(has_end(s->p, (lt_span){s->text.data + c->begin, c->end - c->begin}, &found));
    if (found) {
        LT_TRY(add_sentence(s, s->last, c->at + 1));
        s->last = c->next;
    }
    return LT_OK;
}

/* Where the word before a full stop begins: after the last space since the previous candidate, or
 * where the word of that candidate begins. As in NLTK, a space at the very beginning of the text
 * does not count. */
static size_t word_begin(const splitter *s, const candidate *before, bool has, size_t at) {
    const size_t stop = has ? before->at : 0;
    for (size_t i = at; i > stop + 1; i--) {
        if (strchr(" \t\n\r\v\f", s->text.data[i - 1]) != NULL && s->text.data[i - 1] != '\0') {
            return i;
        }
    }
    return has ? before->begin : 0;
}

lt_err lt_punkt_each(const lt_punkt *p, lt_span text, lt_err (*each)(void *ctx, lt_span sentence),
                     void *ctx) {
    splitter s = {.p = p, .text = text, .each = each, .ctx = ctx};
    candidate before = {0};
    bool has = false;
    lt_span bare;
    size_t end;

    for (size_t at = 0; at < text.n; at++) {
        candidate c = {.at = at};
        if (strchr(".?!", text.data[at]) == NULL || text.data[at] == '\0' || !look_ahead(&s, &c)) {
            continue;
        }
        c.begin = word_begin(&s, &before, has, at);
        if (has && before.at <= c.begin) {
            LT_TRY(try_end(&s, &before));
        }
        before = c;
        has = true;
    }
    if (has) {
        LT_TRY(try_end(&s, &before));
    }
    bare = lt_span_strip(text);
    end = bare.n > 0 ? (size_t)(bare.data - text.data) + bare.n : 0;
    LT_TRY(add_sentence(&s, s.last, end > s.last ? end : s.last));
    return tell(&s, 0, 0, true);
}

static lt_err count_one(void *ctx, lt_span sentence) {
    (void)sentence;
    *(int64_t *)ctx += 1;
    return LT_OK;
}

lt_err lt_punkt_count(const lt_punkt *p, lt_span text, int64_t *sentences) {
    *sentences = 0;
    return lt_punkt_each(p, text, count_one, sentences);
}
