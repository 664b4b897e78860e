/* make.c: makes the problem of an index, and a line of JSON of it; see include/lateen/make.h. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <xxhash.h>

#include "base/error.h"
#include "base/option.h"
#include "data/make/kind.h"

#define QUESTION_BYTES 4096
#define STEPS_BYTES    16384
#define ANSWER_BYTES   1024
#define PROBLEM_BYTES  4096
#define LINE_BYTES     65536 /* Each byte of the texts takes at most two bytes. */
/* One in LT_MAKE_ONE_IN is held out: none is found with a probability of 1e-89. */
#define MAX_ATTEMPTS 4000

static const lt_kind *const kinds[] = {
#define KIND_ROW(name, summary) &lt_kind_##name,
    LT_KIND_MAP(KIND_ROW)};

static const lt_make_kind_name kind_names[] = {
#define KIND_NAME(name, summary) {#name, summary},
    LT_KIND_MAP(KIND_NAME)};

#define N_KINDS ((size_t)LT_COUNT(kinds))

const lt_make_kind_name *lt_make_kinds(size_t *n) {
    *n = N_KINDS;
    return kind_names;
}

struct lt_maker {
    lt_make_options o;
    size_t kind; /* N_KINDS: all. */
    lt_draft draft;
    lt_page page;
    lt_page_text line;
    char question[QUESTION_BYTES], steps[STEPS_BYTES], answer[ANSWER_BYTES], problem[PROBLEM_BYTES];
    char line_room[LINE_BYTES];
};

static lt_err find_kind(size_t *out, const char *name) {
    const char *names[N_KINDS + 1] = {[N_KINDS] = "all"};
    const char *near;
    for (size_t k = 0; k <= N_KINDS; k++) {
        names[k] = k < N_KINDS ? kind_names[k].name : names[k];
        if (strcmp(names[k], name) == 0) {
            *out = k;
            return LT_OK;
        }
    }
    near = lt_name_nearest(name, names, N_KINDS + 1);
    LT_FAIL(LT_ERR_ARG, "no kind of problem is named '%s'%s%s%s; `lateen help data` lists them",
            name, near != NULL ? " (did you mean '" : "", near != NULL ? near : "",
            near != NULL ? "'?)" : "");
}

lt_err lt_maker_open(lt_maker **out, const lt_make_options *o) {
    lt_maker *m;
    size_t kind = 0;
    if (o->level_min < 1 || o->level_max > LT_MAKE_LEVELS || o->level_min > o->level_max) {
        LT_FAIL(LT_ERR_ARG, "levels %d to %d: levels are 1 to %d", o->level_min, o->level_max,
                LT_MAKE_LEVELS);
    }
    LT_TRY(find_kind(&kind, o->kind));
    m = calloc(1, sizeof *m);
    if (m == NULL) {
        LT_FAIL(LT_ERR_OOM, "a maker of problems");
    }
    m->o = *o;
    m->kind = kind;
    m->o.kind = kind < N_KINDS ? kind_names[kind].name : "all";
    m->page.question = (lt_page_text){m->question, 0, sizeof m->question};
    m->page.steps = (lt_page_text){m->steps, 0, sizeof m->steps};
    m->page.answer = (lt_page_text){m->answer, 0, sizeof m->answer};
    m->problem[0] = '{';
    m->page.problem = (lt_page_text){m->problem + 1, 0, sizeof m->problem - 1};
    m->line = (lt_page_text){m->line_room, 0, sizeof m->line_room};
    *out = m;
    return LT_OK;
}

void lt_maker_close(lt_maker *m) {
    free(m);
}

static const lt_task *pick_task(const lt_kind *kind, int level, lt_rng *r) {
    int n = 0, at = -1;
    for (int t = 0; t < kind->n_tasks; t++) {
        n += kind->tasks[t].level_min <= level && level <= kind->tasks[t].level_max;
    }
    LT_ASSERT(n > 0);
    for (int left = lt_pick(r, n); left >= 0;) {
        at++;
        left -= kind->tasks[at].level_min <= level && level <= kind->tasks[at].level_max;
    }
    return &kind->tasks[at];
}

static uint64_t key_of(const char *kind, const lt_task *task, const lt_draft *d) {
    char name[64];
    const int n = snprintf(name, sizeof name, "%s/%s", kind, task->name);
    LT_ASSERT(n > 0 && (size_t)n < sizeof name && d->n_key > 0);
    return XXH3_64bits_withSeed(d->key, (size_t)d->n_key * sizeof *d->key,
                                XXH3_64bits(name, (size_t)n));
}

static void empty(lt_page_text *t) {
    t->n = 0;
    t->data[0] = 0;
}

lt_err lt_maker_problem(lt_maker *m, uint64_t i, lt_made *out) {
    const size_t k = m->kind < N_KINDS ? m->kind : (size_t)(i % N_KINDS);
    const char *kind = kind_names[k].name;
    /* Each kind has its own seed, so problem i of one kind is independent of problem i of
     * another. */
    lt_rng r = {.seed = m->o.seed ^ XXH3_64bits(kind, strlen(kind)), .stream = i};
    lt_page *p = &m->page;
    const lt_task *task;
    int attempts = 0;
    uint64_t key;

    m->draft.level = (int)lt_between(&r, m->o.level_min, m->o.level_max);
    task = pick_task(kinds[k], m->draft.level, &r);
    do {
        if (attempts++ == MAX_ATTEMPTS) {
            LT_FAIL(LT_ERR_LIMIT, "no %s problem %s/%s of level %d among %d drawn",
                    m->o.split == LT_MAKE_TRAIN ? "training" : "held-out", kind, task->name,
                    m->draft.level, MAX_ATTEMPTS);
        }
        task->draw(&m->draft, &r);
        key = key_of(kind, task, &m->draft);
    } while ((key % LT_MAKE_ONE_IN == 0) != (m->o.split == LT_MAKE_HELD_OUT));
    empty(&p->question);
    empty(&p->steps);
    empty(&p->answer);
    empty(&p->problem);
    p->checker = task->checker;
    task->write(&m->draft, p, &r);
    lt_put(&p->problem, "}");
    *out = (lt_made){.kind = kind,
                     .task = task->name,
                     .level = m->draft.level,
                     .key = key,
                     .question = p->question.data,
                     .steps = p->steps.data,
                     .answer = p->answer.data,
                     .checker = p->checker,
                     .problem = m->problem};
    return LT_OK;
}

/* Append a text inside a JSON string. The texts are ASCII without control characters except
 * newlines. */
static void put_escaped(lt_page_text *t, const char *text) {
    char *to = t->data + t->n;
    LT_ASSERT(t->n + 2 * strlen(text) < t->room);
    for (; *text != 0; text++) {
        if (*text == '\n') {
            *to++ = '\\';
            *to++ = 'n';
        } else {
            if (*text == '"' || *text == '\\') {
                *to++ = '\\';
            }
            *to++ = *text;
        }
    }
    t->n = (size_t)(to - t->data);
    *to = 0;
}

static void put_answer(lt_page_text *t, const char *answer, lt_make_mark mark) {
    static const struct {
        const char *before, *after;
    } marks[] = {{"The answer is ", "."}, {"\\\\boxed{", "}"}, {"#### ", ""}}; /* In JSON. */
    lt_put(t, marks[mark].before);
    put_escaped(t, answer);
    lt_put(t, marks[mark].after);
}

/* The steps, if they are part of the content. */
static void put_content_steps(lt_page_text *t, const char *steps, lt_make_steps where) {
    const bool think = where == LT_MAKE_STEPS_THINK;
    if (think || where == LT_MAKE_STEPS_PLAIN) {
        lt_put(t, think ? "<think>\\n" : "");
        put_escaped(t, steps);
        lt_put(t, think ? "</think>\\n\\n" : "");
    }
}

static void put_chat(const lt_maker *m, lt_page_text *t, const lt_made *p) {
    lt_put(t, "\"messages\": [{\"role\": \"user\", \"content\": \"");
    put_escaped(t, p->question);
    lt_put(t, "\"}, {\"role\": \"assistant\", ");
    if (m->o.steps == LT_MAKE_STEPS_REASONING) {
        lt_put(t, "\"reasoning_content\": \"");
        put_escaped(t, p->steps);
        t->n -= 2; /* The newline at the end. */
        lt_put(t, "\", ");
    }
    lt_put(t, "\"content\": \"");
    put_content_steps(t, p->steps, m->o.steps);
    put_answer(t, p->answer, m->o.mark);
    lt_put(t, "\"}], ");
}

static void put_text(const lt_maker *m, lt_page_text *t, const lt_made *p) {
    lt_put(t, "\"text\": \"");
    put_escaped(t, p->question);
    lt_put(t, "\\n");
    put_content_steps(t, p->steps,
                      m->o.steps == LT_MAKE_STEPS_REASONING ? LT_MAKE_STEPS_PLAIN : m->o.steps);
    put_answer(t, p->answer, m->o.mark);
    lt_put(t, "\", ");
}

lt_err lt_maker_line(lt_maker *m, uint64_t i, const char **line, size_t *bytes, uint64_t *key) {
    lt_page_text *t = &m->line;
    lt_made p;
    LT_TRY(lt_maker_problem(m, i, &p));
    empty(t);
    lt_say(t,
           "{\"id\": \"%s-%s-%" PRIu64 "-%" PRIu64 "\", \"kind\": \"%s\", \"task\": \"%s\", "
           "\"level\": %d, \"key\": \"%016" PRIx64 "\", ",
           p.kind, m->o.split == LT_MAKE_TRAIN ? "train" : "held-out", m->o.seed, i, p.kind, p.task,
           p.level, p.key);
    if (m->o.form == LT_MAKE_CHAT) {
        put_chat(m, t, &p);
    } else {
        put_text(m, t, &p);
    }
    lt_put(t, "\"answer\": \"");
    put_escaped(t, p.answer);
    lt_put(t, "\", \"checker\": \"");
    lt_put(t, p.checker);
    lt_put(t, "\", \"problem\": ");
    lt_put(t, p.problem);
    lt_put(t, "}\n");
    *line = t->data;
    *bytes = t->n;
    if (key != NULL) {
        *key = p.key;
    }
    return LT_OK;
}
