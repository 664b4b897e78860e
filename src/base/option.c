/* option.c: reads, checks, prints and explains options from one table (see option.h). */
#include "base/option.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/error.h"
#include "base/log.h"
#include "base/yaml.h"

#define NAME_BYTES        128
#define NEAREST_MAX_EDITS 3

/* "-" and "_" are equal in names. */
static bool same_name(const char *a, const char *b) {
    for (; *a != '\0' && *b != '\0'; a++, b++) {
        const char ca = *a == '-' ? '_' : *a, cb = *b == '-' ? '_' : *b;
        if (ca != cb) {
            return false;
        }
    }
    return *a == *b;
}

static const lt_option *find_row(const lt_option_table *t, const char *name) {
    for (size_t i = 0; i < t->n_rows; i++) {
        if (same_name(t->rows[i].name, name)) {
            return &t->rows[i];
        }
    }
    return NULL;
}

const lt_option *lt_option_find(const lt_option_table *t, const char *name) {
    for (size_t i = 0; i < t->n_shorts; i++) {
        if (same_name(t->shorts[i].name, name)) {
            return find_row(t, t->shorts[i].of);
        }
    }
    return find_row(t, name);
}

/* Insertions, deletions, substitutions and swaps of neighbours that turn a into b (optimal string
 * alignment; Damerau 1964), if they are below limit, else limit. Stopping at the limit is fast:
 * most pairs differ enough in length, most others in their first rows. Of long names only the first
 * NAME_BYTES - 1 characters are compared. */
static size_t edit_distance(const char *a, const char *b, size_t limit) {
    size_t rows[3][NAME_BYTES]; /* Row i is rows[i % 3]. */
    const size_t na = strlen(a), nb = strnlen(b, NAME_BYTES - 1);
    size_t least_above = 0;
    if ((na > nb ? na - nb : nb - na) >= limit) {
        return limit;
    }
    for (size_t j = 0; j <= nb; j++) {
        rows[0][j] = j;
    }
    for (size_t i = 1; i <= na; i++) {
        const size_t *before = rows[(i + 1) % 3], *above = rows[(i + 2) % 3];
        size_t *row = rows[i % 3], least = i;
        row[0] = i;
        for (size_t j = 1; j <= nb; j++) {
            const bool swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
            const size_t substitute = above[j - 1] + (a[i - 1] != b[j - 1]);
            const size_t drop = above[j] + 1, insert = row[j - 1] + 1;
            row[j] = drop < insert ? drop : insert;
            row[j] = substitute < row[j] ? substitute : row[j];
            row[j] = swapped && before[j - 2] + 1 < row[j] ? before[j - 2] + 1 : row[j];
            least = row[j] < least ? row[j] : least;
        }
        if (least >= limit && least_above >= limit) {
            return limit;
        }
        least_above = least;
    }
    return rows[na % 3][nb] < limit ? rows[na % 3][nb] : limit;
}

static const char *name_at(const void *rows, size_t row_bytes, size_t i) {
    const char *name;
    memcpy(&name, (const char *)rows + i * row_bytes, sizeof name);
    return name;
}

/* Most edits between a name of this length and the intended one: a third of its characters. With
 * more, 'foo' would count as near 'n', and 'optim.xy' as near 'optim.lr'. */
static size_t most_edits(const char *name) {
    const size_t n = strlen(name), third = n / 3;
    return n < 2 ? 0 : third < 1 ? 1 : third < NEAREST_MAX_EDITS ? third : NEAREST_MAX_EDITS;
}

/* The distance between a part of a name and another one: the number of edits, or of letters that
 * are missing at its end. `limit` or more: the two are not near. */
static size_t part_distance(const char *part, const char *other, size_t limit) {
    const size_t most = most_edits(part) + 1, n = strlen(part);
    const size_t edits = edit_distance(part, other, most);
    const size_t missing = n >= 2 && strncmp(part, other, n) == 0 ? strlen(other) - n : limit;
    const size_t near = edits < most ? edits : limit;
    return missing <= NEAREST_MAX_EDITS && missing < near ? missing : near;
}

/* Names of the same group ('optim.') are compared by what follows the group; a name without a group
 * is also compared with the last part of each name. */
static size_t name_distance(const char *name, const char *other, size_t limit) {
    const char *dot = strrchr(name, '.'), *last = strrchr(other, '.');
    const size_t group = dot != NULL ? (size_t)(dot - name) + 1 : 0;
    if (group > 0 && strncmp(name, other, group) == 0) {
        return part_distance(dot + 1, other + group, limit);
    }
    const size_t whole = part_distance(name, other, limit);
    return last != NULL ? part_distance(name, last + 1, whole) : whole;
}

static const char *nearest_of(const char *name, const void *rows, size_t row_bytes, size_t n) {
    const char *best = NULL;
    size_t best_edits = NEAREST_MAX_EDITS + 1;
    for (size_t i = 0; i < n && best_edits > 0; i++) {
        const char *other = name_at(rows, row_bytes, i);
        const size_t edits = name_distance(name, other, best_edits);
        if (edits < best_edits) {
            best_edits = edits;
            best = other;
        }
    }
    return best;
}

const char *lt_name_nearest(const char *name, const char *const *names, size_t n) {
    return nearest_of(name, names, sizeof *names, n);
}

bool lt_name_is_one_of(const char *name, const char *const *names) {
    while (*names != NULL && strcmp(*names, name) != 0) {
        names++;
    }
    return *names != NULL;
}

const void *lt_name_find(const char *name, const void *rows, size_t row_bytes, size_t n) {
    for (size_t i = 0; i < n; i++) {
        if (strcmp(name_at(rows, row_bytes, i), name) == 0) {
            return (const char *)rows + i * row_bytes;
        }
    }
    return NULL;
}

const char *lt_name_hint(char out[LT_NAME_HINT_BYTES], const char *name, const void *rows,
                         size_t row_bytes, size_t n) {
    const char *nearest = nearest_of(name, rows, row_bytes, n);
    out[0] = '\0';
    if (nearest != NULL) {
        (void)snprintf(out, LT_NAME_HINT_BYTES, "; is '%s' meant?", nearest);
    }
    return out;
}

const char *lt_name_list(char *out, size_t out_bytes, const void *rows, size_t row_bytes,
                         size_t n) {
    size_t used = 0;
    out[0] = '\0';
    for (size_t i = 0; i < n; i++) {
        used += (size_t)snprintf(out + used, out_bytes - used, " %s", name_at(rows, row_bytes, i));
        LT_ASSERT(used < out_bytes);
    }
    return out;
}

/* " MiB", or nothing for a unit that stands for the value itself, as N and PORT do. */
static const char *shown_unit(const lt_option *row, char out[LT_NAME_HINT_BYTES]) {
    const char *c = row->unit;
    while (*c != '\0' && !islower((unsigned char)*c)) {
        c++;
    }
    (void)snprintf(out, LT_NAME_HINT_BYTES, "%s%s", *c != '\0' ? " " : "",
                   *c != '\0' ? row->unit : "");
    return out;
}

static lt_err unknown_name(const lt_option_table *t, const char *name, const char *origin) {
    const char *nearest = nearest_of(name, &t->rows->name, sizeof *t->rows, t->n_rows);
    if (nearest != NULL) {
        LT_FAIL(LT_ERR_ARG, "%s: unknown option '%s'; did you mean '%s'?", origin, name, nearest);
    }
    LT_FAIL(LT_ERR_ARG, "%s: unknown option '%s' for %s", origin, name, t->title);
}

lt_err lt_option_need(const lt_option **out, const lt_option_table *t, const char *name,
                      const char *origin) {
    *out = lt_option_find(t, name);
    return *out != NULL ? LT_OK : unknown_name(t, name, origin);
}

/* Parse a number with an optional suffix. K M G B T are powers of 1000 (B = 1e9, as in "15B
 * tokens"). */
static bool parse_number(const char *text, double *out) {
    static const struct {
        const char *suffix;
        double factor;
    } suffixes[] = {{"", 1},     {"K", 1e3},    {"M", 1e6},       {"G", 1e9},      {"B", 1e9},
                    {"T", 1e12}, {"KiB", 1024}, {"MiB", 1048576}, {"GiB", 0x1p30}, {"TiB", 0x1p40}};
    char *end = NULL;
    const double x = strtod(text, &end);
    if (end == text || isnan(x)) {
        return false;
    }
    for (size_t i = 0; i < sizeof suffixes / sizeof *suffixes; i++) {
        if (strcasecmp(end, suffixes[i].suffix) == 0) {
            *out = x * suffixes[i].factor;
            return true;
        }
    }
    return false;
}

static bool parse_bool(const char *text, bool *out) {
    static const char *const words[2][5] = {{"false", "no", "off", "0", NULL},
                                            {"true", "yes", "on", "1", NULL}};
    for (int value = 0; value < 2; value++) {
        for (int i = 0; words[value][i] != NULL; i++) {
            if (strcasecmp(text, words[value][i]) == 0) {
                *out = value == 1;
                return true;
            }
        }
    }
    return false;
}

/* Index of text among "a|b|c", or -1. Case does not count: papers write AdamW, llama.cpp Q4_K_M. */
static int choice_index(const char *choices, const char *text) {
    const size_t len = strlen(text);
    int index = 0;
    for (const char *p = choices;; index++) {
        const char *bar = strchr(p, '|');
        const size_t n = bar != NULL ? (size_t)(bar - p) : strlen(p);
        if (n == len && strncasecmp(p, text, n) == 0) {
            return index;
        }
        if (bar == NULL) {
            return -1;
        }
        p = bar + 1;
    }
}

static bool in_range(const lt_option *row, double x) {
    const bool over = (row->flags & LT_OPTION_ABOVE_MIN) != 0 ? x > row->min : x >= row->min;
    const bool under = (row->flags & LT_OPTION_BELOW_MAX) != 0 ? x < row->max : x <= row->max;
    return over && under;
}

static lt_err set_number(const lt_option *row, void *at, const char *value, const char *origin) {
    const bool whole = row->type == LT_OPTION_I64;
    double x = 0.0;
    char *end = NULL;
    int64_t exact;
    char unit[LT_NAME_HINT_BYTES];

    if (!parse_number(value, &x)) {
        LT_FAIL(LT_ERR_ARG, "%s: %s: '%s' is not a number", origin, row->name, value);
    }
    if (!in_range(row, x)) {
        LT_FAIL(LT_ERR_ARG, "%s: %s = %s is outside %c%.15g, %.15g%c%s", origin, row->name, value,
                (row->flags & LT_OPTION_ABOVE_MIN) != 0 ? '(' : '[', row->min, row->max,
                (row->flags & LT_OPTION_BELOW_MAX) != 0 ? ')' : ']', shown_unit(row, unit));
    }
    if (!whole) {
        *(double *)at = x;
        return LT_OK;
    }
    errno = 0;
    exact = strtoll(value, &end, 10); /* Exact beyond 2^53, where a double is not. */
    if (*end == '\0' && errno == 0) {
        *(int64_t *)at = exact;
        return LT_OK;
    }
    if (x != floor(x) || fabs(x) > 0x1p62) {
        LT_FAIL(LT_ERR_ARG, "%s: %s: '%s' is not a whole number", origin, row->name, value);
    }
    *(int64_t *)at = (int64_t)x;
    return LT_OK;
}

static lt_err set_row(const lt_option *row, void *obj, const char *value, const char *origin) {
    void *at = (char *)obj + row->offset;
    const size_t len = strlen(value);
    int choice;

    switch (row->type) {
    case LT_OPTION_BOOL:
        if (!parse_bool(value, at)) {
            LT_FAIL(LT_ERR_ARG, "%s: %s: '%s' is neither true nor false", origin, row->name, value);
        }
        return LT_OK;
    case LT_OPTION_I64:
    case LT_OPTION_F64:
        return set_number(row, at, value, origin);
    case LT_OPTION_STR:
        if (len >= LT_OPTION_STR_BYTES) {
            LT_FAIL(LT_ERR_ARG, "%s: %s: %zu characters, at most %d fit", origin, row->name, len,
                    LT_OPTION_STR_BYTES - 1);
        }
        if (len == 0 && row->max >= 1) {
            LT_FAIL(LT_ERR_ARG, "%s: %s must not be empty", origin, row->name);
        }
        memcpy(at, value, len + 1);
        return LT_OK;
    case LT_OPTION_TEXT:
        *(const char **)at = value;
        return LT_OK;
    case LT_OPTION_ENUM:
        choice = choice_index(row->unit, value);
        if (choice < 0) {
            LT_FAIL(LT_ERR_ARG, "%s: %s: '%s' is not one of %s", origin, row->name, value,
                    row->unit);
        }
        *(int *)at = choice;
        return LT_OK;
    }
    LT_ASSERT(false);
    return LT_ERR_ARG;
}

void lt_options_default(const lt_option_table *t, void *obj) {
    for (size_t i = 0; i < t->n_rows; i++) {
        const lt_option *row = &t->rows[i];
        lt_option relaxed = *row;
        /* A required STR defaults to "". */
        relaxed.max = row->type == LT_OPTION_STR ? 0 : row->max;
        LT_ASSERT(set_row(&relaxed, obj, row->fallback, "default") == LT_OK);
    }
}

lt_err lt_options_set(const lt_option_table *t, void *obj, const char *name, const char *value,
                      const char *origin) {
    const lt_option *row = NULL;
    LT_TRY(lt_option_need(&row, t, name, origin));
    return set_row(row, obj, value, origin);
}

/* "NAME,...", "WARN, DRAIN, EVICT": a STR with several values. */
static bool takes_list(const lt_option *row) {
    return row->type == LT_OPTION_STR && strchr(row->unit, ',') != NULL;
}

static lt_err check_kind(const lt_option *row, const lt_yaml_entry *e, const char *origin) {
    static const struct {
        lt_yaml_kind kind;
        const char *is;
    } rows[] = {{LT_YAML_NULL, "null"},
                {LT_YAML_BOOL, "true or false"},
                {LT_YAML_LIST, "a list"},
                {LT_YAML_EMPTY_LIST, "an empty list"},
                {LT_YAML_EMPTY_MAP, "an empty mapping"}};
    const bool list = e->kind == LT_YAML_LIST || e->kind == LT_YAML_EMPTY_LIST;
    if (e->kind == LT_YAML_TEXT || (e->kind == LT_YAML_BOOL && row->type != LT_OPTION_STR) ||
        (list && takes_list(row) && !e->holds_null)) {
        return LT_OK;
    }
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        if (rows[i].kind == e->kind) {
            LT_FAIL(LT_ERR_ARG, "%s: %s is %s%s; it takes %s%s", origin, row->name, rows[i].is,
                    list && e->holds_null ? " with a null" : "",
                    row->type == LT_OPTION_STR ? "text" : "one value",
                    e->kind == LT_YAML_NULL   ? ", or is left out for its default"
                    : e->kind == LT_YAML_BOOL ? ", in quotes if that is meant"
                                              : "");
        }
    }
    return LT_OK;
}

lt_err lt_options_set_yaml(const lt_option_table *t, void *obj, const char *name,
                           const lt_yaml_entry *e, const char *origin) {
    const lt_option *row = NULL;
    LT_TRY(lt_option_need(&row, t, name, origin));
    LT_ASSERT(row->type != LT_OPTION_TEXT); /* The entry's text is freed. */
    LT_TRY(check_kind(row, e, origin));
    return set_row(row, obj, e->value, origin);
}

lt_err lt_options_load_yaml(const lt_option_table *t, void *obj, const char *path) {
    lt_err err = LT_OK;
    char origin[LT_OPTION_STR_BYTES];
    lt_yaml_entry *entries = NULL;
    size_t n = 0;

    LT_TRY_DONE(lt_yaml_load(&entries, &n, path));
    for (size_t i = 0; i < n; i++) {
        snprintf(origin, sizeof origin, "%s:%d", path, entries[i].line);
        LT_TRY_DONE(lt_options_set_yaml(t, obj, entries[i].key, &entries[i], origin));
    }
done:
    lt_yaml_free(entries, n);
    return err;
}

/* Parse the flag at argv[*i] and advance *i past it and its value. */
static lt_err parse_flag(const lt_option_table *t, void *obj, int argc, char **argv, int *i) {
    const char *flag = argv[*i] + 2;
    const char *equals = strchr(flag, '=');
    const size_t len = equals != NULL ? (size_t)(equals - flag) : strlen(flag);
    char name[NAME_BYTES];
    const lt_option *row;

    if (len >= sizeof name) {
        LT_FAIL(LT_ERR_ARG, "flag of %zu characters", len);
    }
    memcpy(name, flag, len);
    name[len] = '\0';
    row = lt_option_find(t, name);
    if (row == NULL && equals == NULL && strncmp(name, "no-", 3) == 0) {
        row = lt_option_find(t, name + 3);
        if (row != NULL && row->type == LT_OPTION_BOOL) {
            return set_row(row, obj, "false", argv[*i]);
        }
        row = NULL;
    }
    if (row == NULL) {
        return unknown_name(t, name, "command line");
    }
    if (equals != NULL) {
        return set_row(row, obj, equals + 1, "command line");
    }
    if (row->type == LT_OPTION_BOOL) { /* "--flag", or "--flag true". */
        const bool has_word = *i + 1 < argc && (strcmp(argv[*i + 1], "true") == 0 ||
                                                strcmp(argv[*i + 1], "false") == 0);
        *i += has_word ? 1 : 0;
        return set_row(row, obj, has_word ? argv[*i] : "true", "command line");
    }
    if ((row->flags & LT_OPTION_BARE) != 0 &&
        (*i + 1 >= argc || strncmp(argv[*i + 1], "--", 2) == 0)) {
        return set_row(row, obj, row->fallback, "command line");
    }
    if (*i + 1 >= argc) {
        LT_FAIL(LT_ERR_ARG, "--%s needs a value", name);
    }
    *i += 1;
    return set_row(row, obj, argv[*i], "command line");
}

lt_err lt_options_parse(const lt_option_table *t, void *obj, int argc, char **argv,
                        const char **positional, int max_positional, int *n_positional,
                        bool *help) {
    bool flags_over = false;
    *n_positional = 0;
    *help = false;
    for (int i = 1; i < argc; i++) {
        const bool is_flag = !flags_over && argv[i][0] == '-' && argv[i][1] != '\0';
        if (is_flag && strcmp(argv[i], "--") == 0) {
            flags_over = true;
        } else if (is_flag && (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0)) {
            *help = true;
            return LT_OK;
        } else if (is_flag && strcmp(argv[i], "--verbose") == 0 &&
                   lt_option_find(t, "verbose") == NULL) {
            lt_log_set_level(LT_LOG_DEBUG);
        } else if (is_flag && strcmp(argv[i], "--log-json") == 0 &&
                   lt_option_find(t, "log-json") == NULL) {
            lt_log_set_json();
        } else if (is_flag && argv[i][1] == '-') {
            LT_TRY(parse_flag(t, obj, argc, argv, &i));
        } else if (is_flag) {
            LT_FAIL(LT_ERR_ARG, "unknown flag '%s'; flags are long: --name value", argv[i]);
        } else if (*n_positional < max_positional) {
            positional[(*n_positional)++] = argv[i];
        } else {
            LT_FAIL(LT_ERR_ARG, "unexpected argument '%s'", argv[i]);
        }
    }
    return LT_OK;
}

/* The text of a choice by index, not 0-terminated; returns its length. */
static size_t choice_text(const char *choices, int index, const char **start) {
    const char *p = choices;
    for (int i = 0; i < index; i++) {
        p = strchr(p, '|') + 1;
    }
    *start = p;
    return strcspn(p, "|");
}

void lt_option_text(const lt_option *row, const void *obj, char *out, size_t out_bytes) {
    const void *at = (const char *)obj + row->offset;
    const char *choice;
    size_t len;

    switch (row->type) {
    case LT_OPTION_BOOL:
        snprintf(out, out_bytes, "%s", *(const bool *)at ? "true" : "false");
        return;
    case LT_OPTION_I64:
        snprintf(out, out_bytes, "%" PRId64, *(const int64_t *)at);
        return;
    case LT_OPTION_F64:
        for (int digits = 6; digits <= 17; digits++) { /* The fewest digits that read back equal. */
            snprintf(out, out_bytes, "%.*g", digits, *(const double *)at);
            if (strtod(out, NULL) == *(const double *)at) {
                break;
            }
        }
        return;
    case LT_OPTION_STR:
        snprintf(out, out_bytes, "%s", (const char *)at);
        return;
    case LT_OPTION_TEXT:
        snprintf(out, out_bytes, "%s", *(const char *const *)at);
        return;
    case LT_OPTION_ENUM:
        len = choice_text(row->unit, *(const int *)at, &choice);
        snprintf(out, out_bytes, "%.*s", (int)len, choice);
        return;
    }
}

static void dump_string(const char *text, FILE *to) {
    fputc('"', to);
    for (const char *p = text; *p != '\0'; p++) {
        if (*p == '"' || *p == '\\') {
            fputc('\\', to);
        }
        if (*p == '\n') {
            fputs("\\n", to);
        } else {
            fputc(*p, to);
        }
    }
    fputc('"', to);
}

/* Options of a section are neighbours in the table, so a new prefix begins a new mapping. */
void lt_options_dump_yaml(const lt_option_table *t, const void *obj, FILE *to) {
    char text[LT_OPTION_STR_BYTES], section[NAME_BYTES] = "";
    for (size_t i = 0; i < t->n_rows; i++) {
        const lt_option *row = &t->rows[i];
        const char *dot = strrchr(row->name, '.');
        const int section_len = dot != NULL ? (int)(dot - row->name) : 0;
        const char *leaf = dot != NULL ? dot + 1 : row->name;
        if (dot != NULL && (strncmp(section, row->name, (size_t)section_len) != 0 ||
                            section[section_len] != '\0')) {
            snprintf(section, sizeof section, "%.*s", section_len, row->name);
            fprintf(to, "%s:\n", section);
        }
        lt_option_text(row, obj, text, sizeof text);
        fprintf(to, "%s%s: ", dot != NULL ? "  " : "", leaf);
        if (row->type == LT_OPTION_STR) {
            dump_string(text, to);
            fputc('\n', to);
        } else {
            fprintf(to, "%s\n", text);
        }
    }
}

void lt_options_help(const lt_option_table *t, FILE *to) {
    for (size_t i = 0; i < t->n_rows; i++) {
        const lt_option *row = &t->rows[i];
        char left[NAME_BYTES];
        snprintf(left, sizeof left, "--%s%s%s", row->name, row->type == LT_OPTION_BOOL ? "" : " ",
                 row->type == LT_OPTION_BOOL                           ? ""
                 : row->type == LT_OPTION_ENUM || row->unit[0] == '\0' ? "X"
                                                                       : row->unit);
        fprintf(to, "  %-30s %s", left, row->help);
        if (row->type == LT_OPTION_ENUM) {
            fprintf(to, ": %s", row->unit);
        }
        if (row->fallback[0] != '\0') {
            fprintf(to, " (default %s)", row->fallback);
        }
        fputc('\n', to);
    }
    for (size_t i = 0; i < t->n_shorts; i++) {
        fprintf(to, "  --%-28s short for --%s\n", t->shorts[i].name, t->shorts[i].of);
    }
}
