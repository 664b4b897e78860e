/* verb_run.h: runs a verb in the test's own process, with its arguments as one string, and keeps
 * what it writes to standard output and to standard error. Standard input is run_input. */
#ifndef TESTS_CLI_VERB_RUN_H
#define TESTS_CLI_VERB_RUN_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdio_ext.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>
#include <jansson.h>

#include "cli/verb.h"

enum { RUN_WORDS = 64 };

static const char *run_input = "";

typedef struct {
    char *out, *err; /* What the verb wrote. */
    int status;
} ran;

static inline char *run_text_of(FILE *f) {
    long n;
    char *text;
    assert_int_equal(fseek(f, 0, SEEK_END), 0);
    n = ftell(f);
    assert_true(n >= 0);
    rewind(f);
    text = calloc(1, (size_t)n + 1);
    assert_non_null(text);
    assert_int_equal(fread(text, 1, (size_t)n, f), (size_t)n);
    (void)fclose(f);
    return text;
}

/* words: the verb's name and its arguments, separated by single spaces. */
static inline ran run_verb(int (*verb)(int, char **), const char *words) {
    char *text = strdup(words), *argv[RUN_WORDS + 1], *rest = NULL;
    FILE *files[3] = {tmpfile(), tmpfile(), tmpfile()};
    int kept[3], argc = 0;
    ran r = {.status = -1};
    assert_non_null(text);
    for (char *w = strtok_r(text, " ", &rest); w != NULL; w = strtok_r(NULL, " ", &rest)) {
        assert_true(argc < RUN_WORDS);
        argv[argc++] = w;
    }
    argv[argc] = NULL;
    (void)fflush(NULL);
    for (int i = 0; i < 3; i++) {
        assert_non_null(files[i]);
        kept[i] = dup(i);
        assert_true(kept[i] >= 0);
        if (i == STDIN_FILENO) {
            assert_true(fputs(run_input, files[i]) >= 0);
            rewind(files[i]);
        }
        (void)dup2(fileno(files[i]), i);
    }
    __fpurge(stdin); /* What an earlier verb has left unread. */
    clearerr(stdin);
    r.status = verb(argc, argv);
    (void)fflush(NULL);
    for (int i = 0; i < 3; i++) {
        (void)dup2(kept[i], i);
        (void)close(kept[i]);
    }
    (void)fclose(files[STDIN_FILENO]);
    r.out = run_text_of(files[STDOUT_FILENO]);
    r.err = run_text_of(files[STDERR_FILENO]);
    free(text);
    return r;
}

static inline void ran_close(ran *r) {
    free(r->out);
    free(r->err);
    *r = (ran){0};
}

/* The verb succeeds and prints one JSON value; the caller owns the reference. */
static inline json_t *run_json(int (*verb)(int, char **), const char *words) {
    ran r = run_verb(verb, words);
    json_error_t why;
    json_t *value = json_loads(r.out, JSON_DECODE_ANY, &why);
    if (r.status != LT_EXIT_DONE || value == NULL) {
        fail_msg("%s: status %d, %s%s", words, r.status, r.err, value == NULL ? why.text : "");
    }
    ran_close(&r);
    return value;
}

/* The verb ends with this status, and standard error contains the text. */
static inline void run_refused(int (*verb)(int, char **), const char *words, int status,
                               const char *text) {
    ran r = run_verb(verb, words);
    if (r.status != status || strstr(r.err, text) == NULL) {
        fail_msg("%s: status %d, not %d with '%s': %s", words, r.status, status, text, r.err);
    }
    ran_close(&r);
}

/* The verb succeeds, and standard output contains the text. */
static inline void run_prints(int (*verb)(int, char **), const char *words, const char *text) {
    ran r = run_verb(verb, words);
    if (r.status != LT_EXIT_DONE || strstr(r.out, text) == NULL) {
        fail_msg("%s: status %d, without '%s': %s%s", words, r.status, text, r.out, r.err);
    }
    ran_close(&r);
}

static inline double number_at(const json_t *o, const char *key) {
    const json_t *v = json_object_get(o, key);
    if (!json_is_number(v)) {
        fail_msg("no number '%s'", key);
    }
    return json_number_value(v);
}

static inline void near_at(const json_t *o, const char *key, double want) {
    const double is = number_at(o, key), apart = is > want ? is - want : want - is;
    if (!(apart <= 1e-6 * (want > 0 ? want : -want) + 1e-9)) {
        fail_msg("'%s' is %.12g, not %.12g", key, is, want);
    }
}

#endif
