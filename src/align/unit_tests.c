/* unit_tests.c: see unit_tests.h. */
#include "align/unit_tests.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/json.h"
#include "platform/sandbox/jobs.h"

/* The most processes of a run: the judge, the answer's program, and those that the program
 * starts. */
#define PROCESSES 16
#define MOST_JOBS 512 /* At the same time: each has a copy of the judge. */

extern const char lt_unit_tests_py[];
__asm__(".section .rodata\n"
        ".global lt_unit_tests_py\n"
        "lt_unit_tests_py:\n"
        ".incbin \"src/align/unit_tests.py\"\n"
        ".byte 0\n"
        ".previous\n");

/* ---- The code of an answer ---- */

/* A fence that names a language opens a block, even if the previous block was not closed. */
const char *lt_unit_code(const char *text, size_t *bytes) {
    const char *begin = NULL, *code = NULL, *next;
    for (const char *line = text; *line != '\0'; line = next) {
        const char *end = strchrnul(line, '\n'), *at = line + strspn(line, " \t");
        next = *end == '\n' ? end + 1 : end;
        if (strncmp(at, "```", 3) != 0) {
            continue;
        }
        at += strspn(at, "`");
        at += strspn(at, " \t\r");
        if (begin == NULL || at < end) {
            begin = next;
        } else {
            code = begin;
            *bytes = (size_t)(line - begin);
            begin = NULL;
        }
    }
    return code;
}

/* ---- The tests of a problem ---- */

/* The judge's input, and the files beside the answer's. */
typedef struct {
    json_t *task;
    int64_t total;
    const char *before; /* Python code before the answer; NULL: none. */
    const char *file;   /* Name of the answer's file. */
} unit_task;

static const struct {
    const char *name, *file;
} languages[] = {{"python", "answer.py"}, {"c", "answer.c"}, {"sh", "answer.sh"}};
#define N_LANGUAGES (sizeof languages / sizeof *languages)

static lt_err read_language(unit_task *t, const json_t *problem, bool calls) {
    const char *name = "python";
    size_t i = 0;
    LT_TRY(lt_json_str(problem, "language", &name, true, "the problem"));
    while (i < N_LANGUAGES && strcmp(languages[i].name, name) != 0) {
        i++;
    }
    if (i == N_LANGUAGES || (calls && i > 0)) {
        LT_FAIL(LT_ERR_FORMAT, "\"language\" is \"%.40s\"; %s", name,
                calls ? "tests that are statements are Python's" : "it is python, c or sh");
    }
    t->file = languages[i].file;
    json_object_set_new(t->task, "language", json_string(name));
    return LT_OK;
}

static bool is_pair(const json_t *test) {
    return json_is_string(json_object_get(test, "input")) &&
           json_is_string(json_object_get(test, "output"));
}

/* All statements, or all pairs. */
static lt_err read_list(unit_task *t, const char *name, json_t *list) {
    const bool pairs = json_is_object(json_array_get(list, 0));
    const size_t n = json_array_size(list);
    if (n == 0) {
        LT_FAIL(LT_ERR_FORMAT, "\"%s\" is not a list of tests", name);
    }
    for (size_t i = 0; i < n; i++) {
        const json_t *test = json_array_get(list, i);
        if (pairs ? !is_pair(test) : !json_is_string(test)) {
            LT_FAIL(LT_ERR_FORMAT, "\"%s\"[%zu] is not %s", name, i,
                    pairs ? "an object of two texts, \"input\" and \"output\"" : "a text");
        }
    }
    t->total = (int64_t)n;
    json_object_set(t->task, pairs ? "pairs" : "tests", list);
    return LT_OK;
}

/* MBPP: imports of the tests, and the code before them. */
static lt_err read_setup(unit_task *t, const json_t *problem) {
    const json_t *imports = json_object_get(problem, "test_imports");
    const char *setup = "";
    json_t *text;
    LT_TRY(lt_json_str(problem, "test_setup_code", &setup, true, "the problem"));
    text = json_string("");
    for (size_t i = 0; i < json_array_size(imports) && text != NULL; i++) {
        const char *line = json_string_value(json_array_get(imports, i));
        json_t *longer = line == NULL ? NULL
                                      : json_sprintf("%s%s\n", json_string_value(text), line);
        json_decref(text);
        text = longer;
        if (line == NULL) {
            LT_FAIL(LT_ERR_FORMAT, "\"test_imports\"[%zu] is not a text", i);
        }
    }
    json_object_set_new(t->task, "setup",
                        text != NULL ? json_sprintf("%s%s", json_string_value(text), setup) : NULL);
    json_decref(text);
    return LT_OK;
}

/* HumanEval: a single test of everything. */
static lt_err read_check(unit_task *t, const json_t *problem) {
    const char *test = NULL, *entry = NULL;
    LT_TRY(lt_json_str(problem, "test", &test, false, "the problem"));
    LT_TRY(lt_json_str(problem, "entry_point", &entry, false, "the problem"));
    t->before = json_string_value(json_object_get(problem, "prompt"));
    t->total = 1;
    json_object_set_new(t->task, "setup", json_string(test));
    json_object_set_new(t->task, "tests", json_pack("[o]", json_sprintf("check(%s)", entry)));
    return LT_OK;
}

/* Close it also after a failure. */
static lt_err read_task(unit_task *t, const json_t *problem) {
    static const char *const lists[] = {"tests", "test_list"};
    *t = (unit_task){.task = json_pack("{s:s, s:[], s:[]}", "setup", "", "tests", "pairs")};
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
        json_t *list = json_object_get(problem, lists[i]);
        if (list != NULL) {
            LT_TRY(read_list(t, lists[i], list));
            LT_TRY(read_setup(t, problem));
            return read_language(t, problem, json_is_string(json_array_get(list, 0)));
        }
    }
    if (json_object_get(problem, "test") == NULL) {
        LT_FAIL(LT_ERR_FORMAT, "no \"tests\", \"test_list\", or \"test\" with \"entry_point\"");
    }
    LT_TRY(read_check(t, problem));
    return read_language(t, problem, true);
}

lt_err lt_unit_tests_check(const json_t *problem) {
    unit_task t;
    const lt_err err = read_task(&t, problem);
    json_decref(t.task);
    return err;
}

/* ---- The runs ---- */

lt_err lt_unit_tests_probe(const lt_unit_tests_options *o) {
    static const char *const command[] = {"python3", "-I", "-c", "", NULL};
    const lt_sandbox_job job = {.kind = o->kind, .limits = LT_SANDBOX_LIMITS, .command = command};
    lt_sandbox_result r = {0};
    lt_sandbox_job slow = job;
    slow.limits.wall_s = 60;
    LT_TRY(lt_sandbox_run(&r, &slow));
    lt_sandbox_result_free(&r);
    return LT_OK;
}

static json_t *job_json(const lt_unit_tests_options *o, const unit_task *t, const lt_tested *a) {
    char *task = json_dumps(t->task, JSON_COMPACT);
    json_t *files = json_pack("{s:s, s:s%}", "judge.py", lt_unit_tests_py, t->file, a->code,
                              a->bytes);
    json_t *job = json_pack("{s:[s, s, s], s:s, s:o, s:f, s:f, s:I, s:i, s:i}", "command",
                            "python3", "-I", "judge.py", "stdin", task, "files", files, "wall_s",
                            o->limit_s, "cpu_s", o->limit_s + 1.0, "memory_bytes",
                            (json_int_t)o->memory_bytes, "processes", PROCESSES, "output_bytes",
                            1 << 16);
    if (job != NULL && t->before != NULL) {
        json_object_set_new(files, "before.py", json_string(t->before));
    }
    free(task);
    return job;
}

/* Only the judge writes to standard output. */
static int64_t count_passed(const json_t *result, int64_t total) {
    const char *said = json_string_value(json_object_get(result, "stdout"));
    int64_t passed = 0;
    for (int64_t i = 0; said != NULL && i < total && said[i] != '\0'; i++) {
        passed += said[i] == '1';
    }
    return passed;
}

static lt_err ask(const lt_unit_tests_options *o, json_t *jobs, const int64_t *of,
                  lt_unit_verdict *out) {
    json_t *results = NULL;
    if (json_array_size(jobs) == 0) {
        return LT_OK;
    }
    LT_TRY(lt_sandbox_jobs_ask(&results, jobs, o->program, o->kind, o->parallel));
    for (size_t i = 0; i < json_array_size(results); i++) {
        out[of[i]].passed = count_passed(json_array_get(results, i), out[of[i]].total);
    }
    json_decref(results);
    return LT_OK;
}

static lt_err run_some(const lt_unit_tests_options *o, const lt_tested *answers, int64_t n,
                       lt_unit_verdict *out) {
    json_t *jobs = json_array();
    int64_t *of = calloc((size_t)n + 1, sizeof *of); /* (jobs): index of each job's answer. */
    lt_err err = LT_OK;

    if (jobs == NULL || of == NULL) {
        LT_FAIL_DONE(LT_ERR_OOM, "unit tests of %lld answers", (long long)n);
    }
    for (int64_t i = 0; i < n; i++) {
        unit_task t;
        err = read_task(&t, answers[i].problem);
        out[i] = (lt_unit_verdict){.total = t.total};
        if (err == LT_OK && answers[i].code != NULL) {
            of[json_array_size(jobs)] = i;
            if (json_array_append_new(jobs, job_json(o, &t, &answers[i])) != 0) {
                err = lt_error_set(LT_ERR_OOM, "a job of unit tests");
            }
        }
        json_decref(t.task);
        LT_TRY_DONE(err);
    }
    LT_TRY_DONE(ask(o, jobs, of, out));
done:
    json_decref(jobs);
    free(of);
    return err;
}

lt_err lt_unit_tests_run(const lt_unit_tests_options *o, const lt_tested *answers, int64_t n,
                         lt_unit_verdict *out) {
    for (int64_t i = 0; i < n; i += MOST_JOBS) {
        LT_TRY(run_some(o, answers + i, n - i < MOST_JOBS ? n - i : MOST_JOBS, out + i));
    }
    return LT_OK;
}
