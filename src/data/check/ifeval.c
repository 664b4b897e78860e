/* ifeval.c: see ifeval.h. One table of instructions; each has a function of the response and its
 * arguments. */
#include "data/check/ifeval.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/json.h"
#include "base/option.h"
#include "data/check/python_text.h"

#define MOST INT64_MAX
#define LESS "less than" /* The other relation is "at least". */

/* The arguments of a checker. */
typedef struct {
    const json_t *arguments;
    const lt_punkt *punkt; /* NULL: its parameters are not available. */
    lt_ifeval_outcome out;
} question;

static lt_err answer(question *q, bool follows) {
    q->out = follows ? LT_IFEVAL_YES : LT_IFEVAL_NO;
    return LT_OK;
}

static lt_err unknown(question *q) {
    q->out = LT_IFEVAL_UNKNOWN;
    return LT_OK;
}

/* ---- Arguments (one that is empty or 0 counts as missing, as in the harness) ---- */

static const char *text_of(const question *q, const char *key) {
    const char *text = json_string_value(json_object_get(q->arguments, key));
    return text != NULL && text[0] != '\0' ? text : NULL;
}

static bool number_of(const question *q, const char *key, int64_t *out) {
    const json_t *x = json_object_get(q->arguments, key);
    *out = json_is_integer(x) ? json_integer_value(x) : (int64_t)json_real_value(x);
    return json_is_number(x) && *out > 0;
}

/* Whether n is "less than" or "at least" a threshold; the names are those of the two
 * arguments. */
static lt_err compare(question *q, int64_t n, const char *threshold, const char *relation) {
    const char *how = text_of(q, relation);
    int64_t bound;
    if (how == NULL || !number_of(q, threshold, &bound)) {
        return unknown(q);
    }
    return answer(q, strcmp(how, LESS) == 0 ? n < bound : n >= bound);
}

/* ---- Keywords ---- */

static lt_err existence(question *q, lt_span s) {
    const json_t *list = json_object_get(q->arguments, "keywords");
    if (json_array_size(list) == 0) {
        return unknown(q);
    }
    for (size_t i = 0; i < json_array_size(list); i++) {
        int64_t n = 0;
        LT_TRY(lt_re_count(&n, json_string_value(json_array_get(list, i)), s, LT_RE_CASELESS, 1));
        if (n == 0) {
            return answer(q, false);
        }
    }
    return answer(q, true);
}

static lt_err forbidden_words(question *q, lt_span s) {
    const json_t *list = json_object_get(q->arguments, "forbidden_words");
    if (json_array_size(list) == 0) {
        return unknown(q);
    }
    for (size_t i = 0; i < json_array_size(list); i++) {
        char pattern[512];
        int64_t n = 0;
        if (snprintf(pattern, sizeof pattern, "\\b%s\\b",
                     json_string_value(json_array_get(list, i))) >= (int)sizeof pattern) {
            LT_FAIL(LT_ERR_LIMIT, "a forbidden word of over %zu bytes", sizeof pattern);
        }
        LT_TRY(lt_re_count(&n, pattern, s, LT_RE_CASELESS, 1));
        if (n > 0) {
            return answer(q, false);
        }
    }
    return answer(q, true);
}

static lt_err frequency(question *q, lt_span s) {
    const char *keyword = text_of(q, "keyword");
    char pattern[512];
    int64_t n = 0;
    if (keyword == NULL) {
        return unknown(q);
    }
    const lt_span bare = lt_span_strip((lt_span){keyword, strlen(keyword)});
    if (bare.n >= sizeof pattern) {
        LT_FAIL(LT_ERR_LIMIT, "a keyword of %zu bytes", bare.n);
    }
    memcpy(pattern, bare.data, bare.n);
    pattern[bare.n] = '\0';
    LT_TRY(lt_re_count(&n, pattern, s, LT_RE_CASELESS, MOST));
    return compare(q, n, "frequency", "relation");
}

static lt_err letter_frequency(question *q, lt_span s) {
    const char *letter = text_of(q, "letter");
    size_t n_lower = 0;
    char *lower;
    int64_t n = 0;
    if (letter == NULL || letter[1] != '\0' || (letter[0] | 32) < 'a' || (letter[0] | 32) > 'z') {
        return unknown(q);
    }
    lower = lt_span_lower(s, &n_lower);
    if (lower == NULL) {
        LT_FAIL(LT_ERR_OOM, "a response of %zu bytes", s.n);
    }
    for (size_t i = 0; i < n_lower; i++) {
        n += lower[i] == (letter[0] | 32);
    }
    free(lower);
    return compare(q, n, "let_frequency", "let_relation");
}

/* ---- Lengths ---- */

static lt_err number_words(question *q, lt_span s) {
    int64_t n = 0;
    LT_TRY(lt_re_count(&n, "\\w+", s, 0, MOST));
    return compare(q, n, "num_words", "relation");
}

static lt_err number_sentences(question *q, lt_span s) {
    int64_t n = 0;
    if (q->punkt == NULL) {
        return unknown(q);
    }
    LT_TRY(lt_punkt_count(q->punkt, s, &n));
    return compare(q, n, "num_sentences", "relation");
}

static lt_err capital_word_frequency(question *q, lt_span s) {
    int64_t n = 0;
    if (q->punkt == NULL) {
        return unknown(q);
    }
    LT_TRY(lt_punkt_count_capital(q->punkt, s, &n));
    return compare(q, n, "capital_frequency", "capital_relation");
}

/* Parts of a text between separators; the first and the last part may be blank. */
typedef struct {
    lt_span text;
    size_t at;
    int64_t n;
    bool blank_inside;
} parts;

static void add_part(parts *p, size_t end, bool last) {
    const lt_span part = {p->text.data + p->at, end - p->at};
    if (lt_span_strip(part).n > 0) {
        p->n++;
    } else if (p->at > 0 && !last) {
        p->blank_inside = true;
    }
}

static bool part_ends(void *ctx, lt_span separator) {
    parts *p = ctx;
    const size_t begin = (size_t)(separator.data - p->text.data);
    add_part(p, begin, false);
    p->at = begin + separator.n;
    return true;
}

static lt_err number_paragraphs(question *q, lt_span s) {
    parts p = {.text = s};
    int64_t wanted;
    if (!number_of(q, "num_paragraphs", &wanted)) {
        return unknown(q);
    }
    LT_TRY(lt_re_each("\\s?\\*\\*\\*\\s?", s, 0, part_ends, &p));
    add_part(&p, s.n, true);
    return answer(q, !p.blank_inside && p.n == wanted);
}

/* Whether the first word of a paragraph, up to its punctuation and in lower case, is the wanted
 * one. */
static bool first_word_is(lt_span paragraph, const char *wanted) {
    lt_span word = paragraph;
    char *a, *b;
    size_t a_n = 0, b_n = 0, end = 0;
    bool same;

    while (end < word.n && lt_span_strip((lt_span){word.data + end, 1}).n > 0) {
        end++;
    }
    word.n = end;
    while (word.n > 0 && word.data[0] == '\'') {
        word.data++;
        word.n--;
    }
    while (word.n > 0 && word.data[0] == '"') {
        word.data++;
        word.n--;
    }
    for (end = 0; end < word.n && strchr(".,?!'\"", word.data[end]) == NULL;) {
        end++;
    }
    word.n = end;
    a = lt_span_lower(word, &a_n);
    b = lt_span_lower((lt_span){wanted, strlen(wanted)}, &b_n);
    same = a != NULL && b != NULL && a_n == b_n && memcmp(a, b, a_n) == 0;
    free(a);
    free(b);
    return same;
}

static lt_err nth_paragraph_first_word(question *q, lt_span s) {
    const char *word = text_of(q, "first_word");
    lt_span rest = s, part, found = {NULL, 0};
    int64_t wanted, nth, n = 0, at = 0;
    if (word == NULL || !number_of(q, "num_paragraphs", &wanted) ||
        !number_of(q, "nth_paragraph", &nth) || nth > wanted) {
        return unknown(q);
    }
    while (lt_span_split(&rest, LT_SPAN("\n\n"), &part)) {
        found = ++at == nth ? lt_span_strip(part) : found;
        n += lt_span_strip(part).n > 0;
    }
    return answer(q, nth <= n && found.n > 0 && n == wanted && first_word_is(found, word));
}

/* ---- Contents and formats ---- */

static lt_err number_placeholders(question *q, lt_span s) {
    int64_t n = 0, wanted;
    if (!number_of(q, "num_placeholders", &wanted)) {
        return unknown(q);
    }
    LT_TRY(lt_re_count(&n, "\\[.*?\\]", s, 0, MOST));
    return answer(q, n >= wanted);
}

static lt_err postscript(question *q, lt_span s) {
    const char *marker = text_of(q, "postscript_marker");
    size_t n_lower = 0, n_marker = 0;
    char *lower, *low_marker, pattern[256];
    int64_t n = 0;
    lt_err err;
    if (marker == NULL) {
        return unknown(q);
    }
    lower = lt_span_lower(s, &n_lower);
    low_marker = lt_span_lower(lt_span_strip((lt_span){marker, strlen(marker)}), &n_marker);
    snprintf(pattern, sizeof pattern, "%s",
             low_marker == NULL                 ? ""
             : strcmp(low_marker, "p.p.s") == 0 ? "\\s*p\\.\\s?p\\.\\s?s.*$"
             : strcmp(low_marker, "p.s.") == 0  ? "\\s*p\\.\\s?s\\..*$"
                                                : "");
    if (low_marker != NULL && pattern[0] == '\0') {
        snprintf(pattern, sizeof pattern, "\\s*%.200s.*$", low_marker);
    }
    err = lower == NULL || low_marker == NULL
              ? lt_error_set(LT_ERR_OOM, "a response of %zu bytes", s.n)
              : lt_re_count(&n, pattern, (lt_span){lower, n_lower}, LT_RE_MULTILINE, 1);
    free(lower);
    free(low_marker);
    LT_TRY(err);
    return answer(q, n > 0);
}

static lt_err number_bullet_lists(question *q, lt_span s) {
    int64_t stars = 0, dashes = 0, wanted;
    if (!number_of(q, "num_bullets", &wanted)) {
        return unknown(q);
    }
    LT_TRY(lt_re_count(&stars, "^\\s*\\*[^\\*].*$", s, LT_RE_MULTILINE, MOST));
    LT_TRY(lt_re_count(&dashes, "^\\s*-.*$", s, LT_RE_MULTILINE, MOST));
    return answer(q, stars + dashes == wanted);
}

static lt_err constrained_response(question *q, lt_span s) {
    int64_t n = 0;
    LT_TRY(lt_re_count(&n, "My answer is (yes|no|maybe)\\.", s, 0, 1));
    return answer(q, n > 0);
}

/* Count a text between asterisks that is not blank. */
static bool count_highlight(void *ctx, lt_span match) {
    *(int64_t *)ctx += lt_span_strip(lt_span_strip_char(match, '*')).n > 0;
    return true;
}

static bool count_double(void *ctx, lt_span match) {
    *(int64_t *)ctx += lt_span_strip((lt_span){match.data + 2, match.n - 4}).n > 0;
    return true;
}

static lt_err number_highlighted_sections(question *q, lt_span s) {
    int64_t n = 0, wanted;
    if (!number_of(q, "num_highlights", &wanted)) {
        return unknown(q);
    }
    LT_TRY(lt_re_each("\\*[^\\n\\*]*\\*", s, 0, count_highlight, &n));
    LT_TRY(lt_re_each("\\*\\*[^\\n\\*]*\\*\\*", s, 0, count_double, &n));
    return answer(q, n >= wanted);
}

static lt_err multiple_sections(question *q, lt_span s) {
    const char *mark = text_of(q, "section_spliter");
    char pattern[256];
    int64_t n = 0, wanted;
    if (mark == NULL || !number_of(q, "num_sections", &wanted)) {
        return unknown(q);
    }
    const lt_span bare = lt_span_strip((lt_span){mark, strlen(mark)});
    snprintf(pattern, sizeof pattern, "\\s?%.*s\\s?\\d+\\s?", (int)(bare.n < 200 ? bare.n : 200),
             bare.data);
    LT_TRY(lt_re_count(&n, pattern, s, 0, MOST));
    return answer(q, n >= wanted);
}

/* Python's json also takes NaN and Infinity, and lone surrogates: answers that have them differ. */
static lt_err json_format(question *q, lt_span s) {
    static const lt_span fences[] = {LT_SPAN_OF("```json"), LT_SPAN_OF("```Json"),
                                     LT_SPAN_OF("```JSON"), LT_SPAN_OF("```")};
    json_t *tree;
    s = lt_span_strip(s);
    for (size_t i = 0; i < sizeof fences / sizeof *fences; i++) {
        if (lt_span_begins(s, fences[i])) {
            s.data += fences[i].n;
            s.n -= fences[i].n;
        }
    }
    if (lt_span_ends(s, fences[3])) {
        s.n -= fences[3].n;
    }
    s = lt_span_strip(s);
    tree = lt_json_loadb(s.data, s.n, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
    LT_TRY(answer(q, tree != NULL));
    json_decref(tree);
    return LT_OK;
}

static bool find_title(void *ctx, lt_span match) {
    while (match.n > 0 && match.data[0] == '<') {
        match.data++;
        match.n--;
    }
    while (match.n > 0 && match.data[match.n - 1] == '>') {
        match.n--;
    }
    *(bool *)ctx = lt_span_strip(match).n > 0;
    return !*(bool *)ctx;
}

static lt_err title(question *q, lt_span s) {
    bool found = false;
    LT_TRY(lt_re_each("<<[^\\n]+>>", s, 0, find_title, &found));
    return answer(q, found);
}

/* ---- Combinations, ends, punctuation ---- */

static lt_err two_responses(question *q, lt_span s) {
    lt_span rest = s, part, said[2] = {{NULL, 0}, {NULL, 0}};
    int64_t n = 0;
    for (int64_t i = 0; lt_span_split(&rest, LT_SPAN("******"), &part); i++) {
        const lt_span bare = lt_span_strip(part);
        if (bare.n == 0 && i > 0 && rest.data != NULL) {
            return answer(q, false);
        }
        if (bare.n > 0 && n < 2) {
            said[n] = bare;
        }
        n += bare.n > 0;
    }
    return answer(q, n == 2 && !lt_span_same(said[0], said[1]));
}

/* Whether the response begins, or ends, with a text; both are compared in lower case. */
static lt_err compare_lower(question *q, lt_span s, lt_span with, bool at_end) {
    size_t a_n = 0, b_n = 0;
    char *a = lt_span_lower(s, &a_n), *b = lt_span_lower(with, &b_n);
    const bool room = a != NULL && b != NULL;
    const bool fits = room && (at_end ? lt_span_ends : lt_span_begins)((lt_span){a, a_n},
                                                                       (lt_span){b, b_n});
    free(a);
    free(b);
    return room ? answer(q, fits) : lt_error_set(LT_ERR_OOM, "a response of %zu bytes", s.n);
}

static lt_err repeat_prompt(question *q, lt_span s) {
    const char *prompt = text_of(q, "prompt_to_repeat");
    if (prompt == NULL) {
        return unknown(q);
    }
    return compare_lower(q, lt_span_strip(s), lt_span_strip((lt_span){prompt, strlen(prompt)}),
                         false);
}

static lt_err end_checker(question *q, lt_span s) {
    const char *phrase = text_of(q, "end_phrase");
    if (phrase == NULL) {
        return unknown(q);
    }
    return compare_lower(q, lt_span_strip_char(lt_span_strip(s), '"'),
                         lt_span_strip((lt_span){phrase, strlen(phrase)}), true);
}

static lt_err no_comma(question *q, lt_span s) {
    return answer(q, memchr(s.data, ',', s.n) == NULL);
}

static lt_err quotation(question *q, lt_span s) {
    s = lt_span_strip(s);
    return answer(q, s.n > 1 && s.data[0] == '"' && s.data[s.n - 1] == '"');
}

static lt_err other_data(question *q, lt_span s) {
    (void)s;
    return unknown(q);
}

/* ---- The table ---- */

typedef enum { ARG_NONE, ARG_TEXT, ARG_NUMBER, ARG_TEXTS, ARG_RELATION } argument_type;

typedef struct {
    const char *key;
    argument_type type;
} argument_row;

#define ARGUMENTS_MAX 3

typedef struct {
    const char *name;
    lt_err (*check)(question *q, lt_span s);
    argument_row arguments[ARGUMENTS_MAX]; /* Those that the instruction reads. */
} instruction;

static const instruction instructions[] = {
    {"keywords:existence", existence, {{"keywords", ARG_TEXTS}}},
    {"keywords:frequency",
     frequency,
     {{"keyword", ARG_TEXT}, {"frequency", ARG_NUMBER}, {"relation", ARG_RELATION}}},
    {"keywords:forbidden_words", forbidden_words, {{"forbidden_words", ARG_TEXTS}}},
    {"keywords:letter_frequency",
     letter_frequency,
     {{"letter", ARG_TEXT}, {"let_frequency", ARG_NUMBER}, {"let_relation", ARG_RELATION}}},
    {"language:response_language", other_data, {{0}}},
    {"length_constraints:number_sentences",
     number_sentences,
     {{"num_sentences", ARG_NUMBER}, {"relation", ARG_RELATION}}},
    {"length_constraints:number_paragraphs", number_paragraphs, {{"num_paragraphs", ARG_NUMBER}}},
    {"length_constraints:number_words",
     number_words,
     {{"num_words", ARG_NUMBER}, {"relation", ARG_RELATION}}},
    {"length_constraints:nth_paragraph_first_word",
     nth_paragraph_first_word,
     {{"num_paragraphs", ARG_NUMBER}, {"nth_paragraph", ARG_NUMBER}, {"first_word", ARG_TEXT}}},
    {"detectable_content:number_placeholders",
     number_placeholders,
     {{"num_placeholders", ARG_NUMBER}}},
    {"detectable_content:postscript", postscript, {{"postscript_marker", ARG_TEXT}}},
    {"detectable_format:number_bullet_lists", number_bullet_lists, {{"num_bullets", ARG_NUMBER}}},
    {"detectable_format:constrained_response", constrained_response, {{0}}},
    {"detectable_format:number_highlighted_sections",
     number_highlighted_sections,
     {{"num_highlights", ARG_NUMBER}}},
    {"detectable_format:multiple_sections",
     multiple_sections,
     {{"section_spliter", ARG_TEXT}, {"num_sections", ARG_NUMBER}}},
    {"detectable_format:json_format", json_format, {{0}}},
    {"detectable_format:title", title, {{0}}},
    {"combination:two_responses", two_responses, {{0}}},
    {"combination:repeat_prompt", repeat_prompt, {{"prompt_to_repeat", ARG_TEXT}}},
    {"startend:end_checker", end_checker, {{"end_phrase", ARG_TEXT}}},
    {"startend:quotation", quotation, {{0}}},
    {"change_case:capital_word_frequency",
     capital_word_frequency,
     {{"capital_frequency", ARG_NUMBER}, {"capital_relation", ARG_RELATION}}},
    {"change_case:english_capital", other_data, {{0}}},
    {"change_case:english_lowercase", other_data, {{0}}},
    {"punctuation:no_comma", no_comma, {{0}}},
};
#define N_INSTRUCTIONS (sizeof instructions / sizeof *instructions)

static lt_err find(const instruction **out, const char *id) {
    *out = lt_name_find(id, instructions, sizeof *instructions, N_INSTRUCTIONS);
    if (*out == NULL) {
        LT_FAIL(LT_ERR_NOT_FOUND, "IFEval has no instruction \"%.80s\"", id);
    }
    return LT_OK;
}

static bool is_list_of_texts(const json_t *x) {
    for (size_t i = 0; i < json_array_size(x); i++) {
        if (!json_is_string(json_array_get(x, i))) {
            return false;
        }
    }
    return json_is_array(x);
}

static bool has_type(const json_t *x, argument_type type) {
    const char *text = json_string_value(x);
    return type == ARG_NUMBER  ? json_is_number(x)
           : type == ARG_TEXTS ? is_list_of_texts(x)
           : type == ARG_RELATION && text != NULL
               ? text[0] == '\0' || strcmp(text, LESS) == 0 || strcmp(text, "at least") == 0
               : text != NULL;
}

/* An argument that is missing or null is drawn at random by the harness; one of another type is a
 * fault of the data. */
static lt_err check_arguments(const instruction *i, const json_t *arguments) {
    static const char *const wanted[] = {[ARG_TEXT] = "a string",
                                         [ARG_NUMBER] = "a number",
                                         [ARG_TEXTS] = "a list of strings",
                                         [ARG_RELATION] = "\"less than\" or \"at least\""};
    for (size_t k = 0; k < ARGUMENTS_MAX && i->arguments[k].key != NULL; k++) {
        const argument_row *row = &i->arguments[k];
        const json_t *x = json_object_get(arguments, row->key);
        if (x != NULL && !json_is_null(x) && !has_type(x, row->type)) {
            char *text = json_dumps(x, JSON_COMPACT | JSON_ENCODE_ANY);
            const lt_err err = lt_error_set(LT_ERR_FORMAT, "%s: \"%s\" is %.60s, not %s", i->name,
                                            row->key, text != NULL ? text : "something else",
                                            wanted[row->type]);
            free(text);
            return err;
        }
    }
    return LT_OK;
}

lt_err lt_ifeval_line_check(const json_t *line) {
    const json_t *ids = json_object_get(line, "instruction_id_list");
    const json_t *arguments = json_object_get(line, "kwargs");
    const size_t n = json_array_size(ids);

    if (n == 0 || json_array_size(arguments) != n) {
        LT_FAIL(
            LT_ERR_FORMAT,
            "\"instruction_id_list\" must be a list of at least one name, and \"kwargs\" a list "
            "as long; they have %zu and %zu elements",
            n, json_array_size(arguments));
    }
    for (size_t k = 0; k < n; k++) {
        const char *id = json_string_value(json_array_get(ids, k));
        const instruction *i = NULL;
        if (id == NULL) {
            LT_FAIL(LT_ERR_FORMAT, "element %zu of \"instruction_id_list\" is not a string", k + 1);
        }
        LT_TRY(find(&i, id));
        if (!json_is_object(json_array_get(arguments, k)) &&
            !json_is_null(json_array_get(arguments, k))) {
            LT_FAIL(LT_ERR_FORMAT, "element %zu of \"kwargs\", for %s, is not an object", k + 1,
                    id);
        }
        LT_TRY(check_arguments(i, json_array_get(arguments, k)));
    }
    return LT_OK;
}

/* A response that is only white space follows no instruction. */
static lt_err ask(const instruction *i, question *q, lt_span s) {
    if (lt_span_strip(s).n == 0) {
        q->out = LT_IFEVAL_NO;
        return LT_OK;
    }
    return i->check(q, s);
}

/* The response without its first line, without its last line, or without both. */
static lt_span without_lines(lt_span s, bool first, bool last) {
    const char *newline = memchr(s.data, '\n', s.n);
    if (first) {
        const size_t skip = newline != NULL ? (size_t)(newline - s.data) + 1 : s.n;
        s.data += skip;
        s.n -= skip;
    }
    if (last) {
        newline = s.n > 0 ? memrchr(s.data, '\n', s.n) : NULL;
        s.n = newline != NULL ? (size_t)(newline - s.data) : 0;
    }
    return lt_span_strip(s);
}

static lt_err ask_without_asterisks(const instruction *i, question *q, lt_span s) {
    char *copy = malloc(s.n + 1);
    lt_span bare = {copy, 0};
    lt_err err;
    if (copy == NULL) {
        LT_FAIL(LT_ERR_OOM, "a response of %zu bytes", s.n);
    }
    for (size_t k = 0; k < s.n; k++) {
        copy[bare.n] = s.data[k];
        bare.n += s.data[k] != '*';
    }
    err = ask(i, q, bare);
    free(copy);
    return err;
}

static lt_err ask_loosely(const instruction *i, question *q, lt_span s) {
    for (int lines = 0; lines < 4; lines++) {
        const lt_span part = lines == 0 ? s : without_lines(s, lines != 2, lines >= 2);
        LT_TRY(ask(i, q, part));
        if (q->out != LT_IFEVAL_NO) {
            return LT_OK;
        }
        LT_TRY(ask_without_asterisks(i, q, part));
        if (q->out != LT_IFEVAL_NO) {
            return LT_OK;
        }
    }
    return LT_OK;
}

lt_err lt_ifeval_check(lt_ifeval_verdict *out, const char *id, const json_t *arguments,
                       const char *text, size_t n, const lt_punkt *punkt) {
    const instruction *i = NULL;
    question q = {.arguments = arguments, .punkt = punkt};
    const lt_span s = {text, n};

    LT_TRY(find(&i, id));
    LT_TRY(ask(i, &q, s));
    out->strict = q.out;
    LT_TRY(ask_loosely(i, &q, s));
    out->loose = q.out;
    return LT_OK;
}
