/* data_check.c: `lateen data check`: judges the answers in a file of JSON lines and prints how many
 * are right, by kind and by level, with pass@k and maj@k. */
#include "cli/data/data_check.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/aside.h"
#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "cli/read_lines.h"
#include "cli/verb.h"
#include "data/check/line.h"

#define MOST_K    8
#define MOST_ROWS 256

#define CHECK_OPTIONS(X)                                                                           \
    X(ENUM, marks, "marks", "strict", 0, 0, "strict|lenient|number",                               \
      "how an answer is found: by a mark; also as the last line; as the last number")              \
    X(STR, k, "k", "1", 0, 1, "list", "sizes of samples for pass@k and maj@k, e.g. 1,4,16")        \
    X(STR, out, "out", "", 0, 0, "path",                                                           \
      "also write each line with \"right\", a list of true and false")                             \
    X(BOOL, json, "json", "false", 0, 0, "", "print one JSON object")

typedef struct {
    CHECK_OPTIONS(LT_OPTION_FIELD)
} check_options;
#define LT_OPTION_STRUCT check_options
static const lt_option rows[] = {CHECK_OPTIONS(LT_OPTION_ROW)};
static const lt_option_table table = LT_OPTION_TABLE("data check", rows);

static const char usage[] = "data check FILE.jsonl|- [--marks strict|lenient|number] [--k 1,4,16]";
static const char prose[] =
    "Judge answers. A line has the members \"answer\" and \"checker\", and the texts to judge as\n"
    "\"completions\" (a list) or \"completion\"; or \"messages\", as `lateen data make` writes "
    "them.\nThe table has a row for each kind and each level that the lines name.";

/* Sums over problems. A problem with fewer than k answers does not count in the columns for k. */
typedef struct {
    char name[64];
    int64_t order; /* Row in the table: all, kinds in order of occurrence, levels. */
    int64_t problems, answers, right, found;
    int64_t problems_k[MOST_K];
    double pass[MOST_K], majority[MOST_K];
} tally;

typedef struct {
    tally rows[MOST_ROWS];
    int n_rows, k[MOST_K], n_k;
} report;

static lt_err read_k(report *r, const char *text) {
    for (const char *at = text; *at != 0;) {
        long long k;
        if (!lt_cli_next_number(&at, &k) || k < 1 || k > LT_SCORE_ANSWERS || r->n_k == MOST_K) {
            LT_FAIL(LT_ERR_ARG, "k: \"%s\" is not a list of at most %d numbers from 1 to %d", text,
                    MOST_K, LT_SCORE_ANSWERS);
        }
        r->k[r->n_k++] = (int)k;
    }
    return LT_OK;
}

#define LEVELS 1000 /* The order of level 0. */

static lt_err row_of(tally **out, report *r, const char *group, const char *name, int64_t order) {
    char full[sizeof r->rows->name];
    const int n = snprintf(full, sizeof full, "%s%s", group, name);
    if (n < 0 || (size_t)n >= sizeof full) {
        LT_FAIL(LT_ERR_LIMIT, "the name \"%.100s\" is longer than %zu bytes", name, sizeof full);
    }
    for (int i = 0; i < r->n_rows; i++) {
        if (strcmp(r->rows[i].name, full) == 0) {
            *out = &r->rows[i];
            return LT_OK;
        }
    }
    if (r->n_rows == MOST_ROWS) {
        LT_FAIL(LT_ERR_LIMIT, "more than %d kinds and levels", MOST_ROWS);
    }
    *out = &r->rows[r->n_rows++];
    (*out)->order = order;
    memcpy((*out)->name, full, sizeof full);
    return LT_OK;
}

static lt_err add(report *r, tally *row, const lt_check_verdict *v) {
    row->problems++;
    row->answers += v->n;
    row->right += v->n_right;
    row->found += v->n_found;
    for (int i = 0; i < r->n_k; i++) {
        double majority;
        if (r->k[i] > v->n) {
            continue;
        }
        LT_TRY(
            lt_score_majority(&majority, v->counts, v->class_right, v->n_classes, v->n, r->k[i]));
        row->problems_k[i]++;
        row->pass[i] += lt_score_pass(v->n, v->n_right, r->k[i]);
        row->majority[i] += majority;
    }
    return LT_OK;
}

static lt_err add_line(report *r, const json_t *line, const lt_check_verdict *v) {
    const json_t *kind = json_object_get(line, "kind"), *level = json_object_get(line, "level");
    tally *row;
    char digits[24];
    LT_TRY(row_of(&row, r, "all", "", 0));
    LT_TRY(add(r, row, v));
    if (json_is_string(kind)) {
        LT_TRY(row_of(&row, r, "", json_string_value(kind), r->n_rows));
        LT_TRY(add(r, row, v));
    }
    if (json_is_integer(level)) {
        const int64_t which = json_integer_value(level);
        if (which < 0 || which > LEVELS) {
            LT_FAIL(LT_ERR_FORMAT, "\"level\" is %lld, outside of [0, %d]", (long long)which,
                    LEVELS);
        }
        (void)snprintf(digits, sizeof digits, "%lld", (long long)which);
        LT_TRY(row_of(&row, r, "level ", digits, LEVELS + which));
        LT_TRY(add(r, row, v));
    }
    return LT_OK;
}

static lt_err write_line(FILE *to, json_t *line, const lt_check_verdict *v) {
    json_t *right = json_array();
    bool put = right != NULL;
    for (int i = 0; i < v->n && put; i++) {
        put = json_array_append_new(right, json_boolean(v->right[i])) == 0;
    }
    if (json_object_set_new(line, "right", right) != 0 || !put) {
        LT_FAIL(LT_ERR_OOM, "a line with %d verdicts", v->n);
    }
    if (json_dumpf(line, to, JSON_COMPACT | JSON_PRESERVE_ORDER) != 0 || fputc('\n', to) == EOF) {
        LT_FAIL(LT_ERR_IO, "write: %s", strerror(errno));
    }
    return LT_OK;
}

typedef struct {
    report *report;
    unsigned allowed; /* The marks. */
    FILE *to;         /* May be NULL. */
} checking;

static lt_err check_line(void *ctx, const char *where, const char *text, size_t n) {
    static lt_check_verdict v;
    const checking *c = ctx;
    json_error_t why;
    json_t *line = lt_json_loadb(text, n, 0, &why);
    lt_err err = LT_OK;
    if (line == NULL || !json_is_object(line)) {
        LT_FAIL_DONE(LT_ERR_FORMAT, "column %d: %s", line == NULL ? why.column : 1,
                     line == NULL ? why.text : "not a JSON object");
    }
    LT_TRY_DONE(lt_check_line(&v, line, c->allowed));
    LT_TRY_DONE(add_line(c->report, line, &v));
    LT_TRY_DONE(c->to != NULL ? write_line(c->to, line, &v) : LT_OK);
done:
    json_decref(line);
    return err == LT_OK ? LT_OK : lt_error_prefix(err, "%s", where);
}

static int in_order(const void *a, const void *b) {
    const int64_t x = ((const tally *)a)->order, y = ((const tally *)b)->order;
    return (x > y) - (x < y);
}

static double share(double part, int64_t of) {
    return of > 0 ? part / (double)of : 0;
}

static void print_table(const report *r) {
    printf("%-12s %9s %9s %8s %8s", "", "problems", "answers", "found", "right");
    for (int i = 0; i < r->n_k; i++) {
        printf("  pass@%-3d  maj@%-3d", r->k[i], r->k[i]);
    }
    putchar('\n');
    for (int at = 0; at < r->n_rows; at++) {
        const tally *t = &r->rows[at];
        printf("%-12s %9lld %9lld %7.2f%% %7.2f%%", t->name, (long long)t->problems,
               (long long)t->answers, 100 * share((double)t->found, t->answers),
               100 * share((double)t->right, t->answers));
        for (int i = 0; i < r->n_k; i++) {
            if (t->problems_k[i] > 0) {
                printf(" %7.2f%% %7.2f%%", 100 * share(t->pass[i], t->problems_k[i]),
                       100 * share(t->majority[i], t->problems_k[i]));
            } else {
                printf(" %8s %8s", "-", "-");
            }
        }
        putchar('\n');
    }
}

static void print_json(const report *r) {
    json_t *all = json_object();
    for (int at = 0; at < r->n_rows; at++) {
        const tally *t = &r->rows[at];
        json_t *row = json_pack("{s:I, s:I, s:f, s:f}", "problems", (json_int_t)t->problems,
                                "answers", (json_int_t)t->answers, "found",
                                share((double)t->found, t->answers), "right",
                                share((double)t->right, t->answers));
        for (int i = 0; i < r->n_k && row != NULL; i++) {
            char name[24];
            if (t->problems_k[i] == 0) {
                continue;
            }
            (void)snprintf(name, sizeof name, "pass@%d", r->k[i]);
            json_object_set_new(row, name, json_real(share(t->pass[i], t->problems_k[i])));
            (void)snprintf(name, sizeof name, "maj@%d", r->k[i]);
            json_object_set_new(row, name, json_real(share(t->majority[i], t->problems_k[i])));
        }
        json_object_set_new(all, t->name, row);
    }
    json_dumpf(all, stdout, JSON_INDENT(2) | JSON_PRESERVE_ORDER | JSON_REAL_PRECISION(10));
    putchar('\n');
    json_decref(all);
}

static lt_err check(const check_options *o, const char *path, report *r) {
    static const unsigned marks[] = {LT_ANSWER_STRICT, LT_ANSWER_LENIENT, LT_ANSWER_LAST_NUMBER};
    const bool input = strcmp(path, "-") == 0;
    const char *name = input ? "standard input" : path;
    lt_aside aside = {.slot = 0};
    checking c = {.report = r, .allowed = marks[o->marks]};
    FILE *from = NULL;
    lt_err err = LT_OK;
    LT_TRY_DONE(read_k(r, o->k));
    from = input ? stdin : fopen(path, "rb");
    if (from == NULL) {
        LT_FAIL_DONE(LT_ERR_IO, "open %s: %s", path, strerror(errno));
    }
    if (o->out[0] != '\0') {
        LT_TRY_DONE(lt_file_spare(o->out, path));
        LT_TRY_DONE(lt_aside_open(&aside, o->out));
    }
    c.to = aside.file;
    LT_TRY_DONE(lt_cli_each_line(from, name, check_line, &c));
    if (r->n_rows == 0) {
        LT_FAIL_DONE(LT_ERR_FORMAT, "%s: no lines", name);
    }
    LT_TRY_DONE(aside.file != NULL ? lt_aside_publish(&aside) : LT_OK);
done:
    lt_aside_close(&aside);
    if (from != NULL && !input) {
        (void)fclose(from);
    }
    return err;
}

int lt_data_check(int argc, char **argv) {
    static report r;
    check_options o;
    const char *path[2];
    int n = 0, status = LT_EXIT_DONE;
    lt_err err;

    if (!lt_verb_parse(&table, &o, argc, argv, usage, prose, path, 2, &n, &status)) {
        return status;
    }
    r = (report){.n_rows = 0};
    if (n != 1) {
        return lt_verb_fail(lt_error_set(LT_ERR_ARG, "data check: usage: lateen %s", usage));
    }
    err = check(&o, path[0], &r);
    if (err != LT_OK) {
        return lt_verb_fail(err);
    }
    qsort(r.rows, (size_t)r.n_rows, sizeof *r.rows, in_order);
    if (o.json) {
        print_json(&r);
    } else {
        print_table(&r);
    }
    return LT_EXIT_DONE;
}
