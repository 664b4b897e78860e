/* experiment_task.c: the problems of an experiment's task: generated (lateen/make.h), or read from
 * a file of lines such as `lateen data make` writes.
 *
 * A completion's prompt is a list of examples and the question:
 *
 *     Question: ...
 *     Answer: STEPS The answer is 42.
 *                                            an empty line between
 *     Question: ...
 *     Answer:
 *
 * A line of a file may have "prompt" in place of messages: the whole text that is continued. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "align/experiment.h"
#include "base/error.h"
#include "base/json.h"
#include "lateen/make.h"
#include "serve/api/json_out.h"

#define MAX_PROBLEMS 100000
#define MAX_SHOTS    64

/* The options of a task. */
typedef struct {
    const char *make, *file;
    int64_t count, first, seed, shots;
    int level_min, level_max;
    bool steps, held_out;
} source;

static int64_t whole(const json_t *task, const char *key, int64_t usual) {
    const json_t *x = json_object_get(task, key);
    return json_is_integer(x) ? json_integer_value(x) : usual;
}

static bool flag(const json_t *task, const char *key, bool usual) {
    const json_t *x = json_object_get(task, key);
    return json_is_boolean(x) ? json_is_true(x) : usual;
}

/* "2" or "1-3". */
static bool read_levels(const json_t *level, int *from, int *to) {
    const char *text = json_string_value(level);
    *from = *to = (int)json_integer_value(level);
    if (text != NULL && sscanf(text, "%d-%d", from, to) != 2) {
        return false;
    }
    if (level == NULL) {
        *from = *to = 1;
    }
    return *from >= 1 && *to <= LT_MAKE_LEVELS && *from <= *to;
}

static lt_err read_source(source *s, const json_t *task, const char *where) {
    static const char *const known[] = {"name",  "make",  "file",  "count", "first",  "seed",
                                        "level", "shots", "steps", "split", "strict", NULL};
    const char *split = json_string_value(json_object_get(task, "split"));

    LT_TRY(lt_experiment_check_keys(task, known, where));
    *s = (source){.make = json_string_value(json_object_get(task, "make")),
                  .file = json_string_value(json_object_get(task, "file")),
                  .count = whole(task, "count", 100),
                  .first = whole(task, "first", 0),
                  .seed = whole(task, "seed", 0),
                  .shots = whole(task, "shots", 0),
                  .steps = flag(task, "steps", false),
                  .held_out = split == NULL || strcmp(split, "held-out") == 0};
    if ((s->make == NULL) == (s->file == NULL)) {
        LT_FAIL(LT_ERR_ARG, "%s: a task has either 'make' or 'file'", where);
    }
    if (split != NULL && !s->held_out && strcmp(split, "train") != 0) {
        LT_FAIL(LT_ERR_ARG, "%s: split %s; it may be held-out or train", where, split);
    }
    if (s->count < 1 || s->count > MAX_PROBLEMS || s->shots < 0 || s->shots > MAX_SHOTS ||
        s->first < 0 ||
        !read_levels(json_object_get(task, "level"), &s->level_min, &s->level_max)) {
        LT_FAIL(LT_ERR_ARG,
                "%s: count must be 1 to %d, shots 0 to %d, first at least 0, level 1 to %d or a "
                "range such as 1-3",
                where, MAX_PROBLEMS, MAX_SHOTS, LT_MAKE_LEVELS);
    }
    return LT_OK;
}

/* ---- Prompts ---- */

/* Write an example or, if answer is NULL, the question. */
static void put_turn(lt_json_out *o, bool chat, const char *question, const char *steps,
                     const char *answer) {
    if (!chat) {
        lt_out_rawf(o, "%sQuestion: %s\nAnswer:", o->n > 0 ? "\n\n" : "", question);
        if (answer != NULL) {
            lt_out_rawf(o, " %s%sThe answer is %s.", steps, steps[0] != '\0' ? " " : "", answer);
        }
        return;
    }
    lt_out_open(o, '{');
    lt_out_key_str(o, "role", "user");
    lt_out_key_str(o, "content", question);
    lt_out_shut(o, '}');
    if (answer != NULL) {
        lt_json_out text = {0};
        lt_out_rawf(&text, "%s%sThe answer is %s.", steps, steps[0] != '\0' ? "\n" : "", answer);
        lt_out_open(o, '{');
        lt_out_key_str(o, "role", "assistant");
        lt_out_key_str(o, "content", text.data);
        lt_out_shut(o, '}');
        o->failed = o->failed || text.failed;
        lt_out_free(&text);
    }
}

/* The prompt of a question; NULL: out of memory. */
static char *prompt_of(const lt_json_out *examples, bool chat, const char *question) {
    lt_json_out o = {0};

    if (chat) {
        lt_out_open(&o, '[');
    }
    if (examples->n > 0) {
        lt_out_raw(&o, examples->data, examples->n);
        o.comma = true;
    }
    put_turn(&o, chat, question, "", NULL);
    if (chat) {
        lt_out_shut(&o, ']');
    }
    if (o.failed || examples->failed) {
        lt_out_free(&o);
    }
    return o.data;
}

/* Takes the prompt over, even if it fails; NULL means OOM. */
static lt_err add_problem(lt_experiment_task *t, char *prompt, const char *answer,
                          const char *checker) {
    lt_experiment_problem *p = &t->problems[t->n_problems];
    lt_err err = LT_OK;

    LT_TRY_DONE(lt_check_kind_find(&p->checker, checker));
    p->answer = strdup(answer);
    if (prompt == NULL || p->answer == NULL) {
        free(p->answer);
        LT_FAIL_DONE(LT_ERR_OOM, "a problem");
    }
    p->prompt = prompt;
    prompt = NULL;
    t->n_problems++;
done:
    free(prompt);
    return err;
}

/* ---- By procedure ---- */

static lt_err open_maker(lt_maker **m, const source *s, bool held_out) {
    return lt_maker_open(m, &(lt_make_options){.kind = s->make,
                                               .seed = (uint64_t)s->seed,
                                               .split = held_out ? LT_MAKE_HELD_OUT : LT_MAKE_TRAIN,
                                               .level_min = s->level_min,
                                               .level_max = s->level_max,
                                               .steps = LT_MAKE_STEPS_PLAIN});
}

/* Solved examples are training problems with indices above all ranges of problems. */
static lt_err make_problems(lt_experiment_task *t, const source *s, bool chat) {
    lt_json_out examples = {0};
    lt_maker *m = NULL;
    lt_made made;
    lt_err err = LT_OK;

    LT_TRY_DONE(open_maker(&m, s, false));
    for (int64_t i = 0; i < s->shots; i++) {
        LT_TRY_DONE(lt_maker_problem(m, (uint64_t)(MAX_PROBLEMS + i), &made));
        put_turn(&examples, chat, made.question, s->steps ? made.steps : "", made.answer);
    }
    lt_maker_close(m);
    m = NULL;
    LT_TRY_DONE(open_maker(&m, s, s->held_out));
    for (int64_t i = 0; i < s->count; i++) {
        LT_TRY_DONE(lt_maker_problem(m, (uint64_t)(s->first + i), &made));
        LT_TRY_DONE(
            add_problem(t, prompt_of(&examples, chat, made.question), made.answer, made.checker));
    }
done:
    lt_maker_close(m);
    lt_out_free(&examples);
    return err;
}

/* ---- From a file ---- */

static const char *question_of(const json_t *line) {
    const json_t *message = json_array_get(json_object_get(line, "messages"), 0);
    return json_string_value(json_object_get(message, "content"));
}

/* One line: an example until there are `shots`, then a problem. */
static lt_err take_line(lt_experiment_task *t, const source *s, bool chat, lt_json_out *examples,
                        const json_t *line, int64_t at, const char *where) {
    const char *prompt = json_string_value(json_object_get(line, "prompt"));
    const char *answer = json_string_value(json_object_get(line, "answer"));
    const char *checker = json_string_value(json_object_get(line, "checker"));
    const char *question = question_of(line);

    if ((prompt == NULL && question == NULL) || answer == NULL || checker == NULL) {
        LT_FAIL(LT_ERR_FORMAT, "%s needs 'messages' or 'prompt', and 'answer' and 'checker'",
                where);
    }
    if (prompt != NULL && (chat || s->shots > 0)) {
        LT_FAIL(LT_ERR_FORMAT, "%s has a 'prompt', which cannot be combined with shots or chat",
                where);
    }
    if (at < s->shots) {
        put_turn(examples, chat, question, "", answer);
        return LT_OK;
    }
    return add_problem(t, prompt != NULL ? strdup(prompt) : prompt_of(examples, chat, question),
                       answer, checker);
}

static lt_err read_problems(lt_experiment_task *t, const source *s, bool chat) {
    lt_json_out examples = {0};
    FILE *f = fopen(s->file, "re");
    char *text = NULL;
    size_t room = 0;
    ssize_t n;
    lt_err err = LT_OK;

    if (f == NULL) {
        LT_FAIL(LT_ERR_IO, "%s: %s", s->file, strerror(errno));
    }
    for (int64_t at = 0; t->n_problems < s->count && (n = getline(&text, &room, f)) > 0; at++) {
        char where[LT_PATH_BYTES];
        json_t *line = NULL;
        snprintf(where, sizeof where, "%.2000s:%lld", s->file, (long long)at + 1);
        LT_TRY_DONE(lt_json_parse(&line, text, (size_t)n, where));
        err = take_line(t, s, chat, &examples, line, at, where);
        json_decref(line);
        if (err != LT_OK) {
            goto done;
        }
    }
    if (t->n_problems == 0) {
        LT_FAIL_DONE(LT_ERR_FORMAT, "%s: no problem after %lld examples", s->file,
                     (long long)s->shots);
    }
done:
    free(text);
    lt_out_free(&examples);
    (void)fclose(f);
    return err;
}

lt_err lt_experiment_read_task(lt_experiment_task *t, const json_t *task, bool chat,
                               const char *where) {
    const char *name = json_string_value(json_object_get(task, "name"));
    source s;

    LT_TRY(read_source(&s, task, where));
    t->name = strdup(name != NULL ? name : s.make != NULL ? s.make : s.file);
    t->strict = flag(task, "strict", false);
    t->problems = calloc((size_t)s.count, sizeof *t->problems);
    if (t->name == NULL || t->problems == NULL) {
        LT_FAIL(LT_ERR_OOM, "%s", where);
    }
    return s.make != NULL ? make_problems(t, &s, chat) : read_problems(t, &s, chat);
}
