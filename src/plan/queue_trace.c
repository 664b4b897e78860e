/* queue_trace.c: reads jobs from CSV; see queue.h. A quoted field may hold commas only in a column
 * that is not read. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/rng.h"
#include "data/byte_source.h"
#include "plan/queue.h"

#define MOST_BYTES ((size_t)256 << 20)

/* Read the whole file, unpacked and 0-terminated. */
static lt_err read_all(char **out, const char *path) {
    lt_err err = LT_OK;
    lt_byte_source *s = NULL;
    size_t used = 0, room = (size_t)1 << 20, got = 1;
    char *text = malloc(room);
    LT_TRY_DONE(lt_byte_source_open(&s, path));
    while (got > 0) {
        if (used + 1 >= room) {
            char *grown = room < MOST_BYTES ? realloc(text, room *= 2) : NULL;
            if (grown == NULL) {
                LT_FAIL_DONE(LT_ERR_LIMIT, "%s: more than %zu bytes", path, MOST_BYTES);
            }
            text = grown;
        }
        if (text == NULL) {
            LT_FAIL_DONE(LT_ERR_OOM, "%s", path);
        }
        LT_TRY_DONE(lt_byte_source_read(s, text + used, room - 1 - used, &got));
        used += got;
    }
    text[used] = '\0';
    *out = text;
    text = NULL;
done:
    lt_byte_source_close(s);
    free(text);
    return err;
}

/* Column `index` of a line; its length. Quotes keep commas together. */
static const char *field_at(const char *line, int index, size_t *length) {
    const char *p = line;
    for (int at = 0;; at++) {
        const char *begin = p;
        bool quoted = false;
        while (*p != '\0' && *p != '\n' && *p != '\r' && (quoted || *p != ',')) {
            quoted ^= *p++ == '"';
        }
        if (at == index) {
            *length = (size_t)(p - begin);
            return begin;
        }
        if (*p != ',') {
            return NULL;
        }
        p++;
    }
}

static int column_of(const char *header, const char *name, const char *other) {
    size_t length;
    const char *f;
    for (int i = 0; (f = field_at(header, i, &length)) != NULL; i++) {
        if ((strlen(name) == length && strncmp(f, name, length) == 0) ||
            (other != NULL && strlen(other) == length && strncmp(f, other, length) == 0)) {
            return i;
        }
    }
    return -1;
}

static lt_err number_at(double *out, const char *line, int column, const char *what, size_t number,
                        const char *path) {
    size_t length = 0;
    const char *f = field_at(line, column, &length);
    char *end = NULL;
    *out = f != NULL ? strtod(f, &end) : NAN;
    if (f == NULL || length == 0 || end != f + length || !isfinite(*out) || *out < 0) {
        LT_FAIL(LT_ERR_FORMAT, "%s:%zu: %s '%.*s' is not a number from 0", path, number, what,
                f != NULL ? (int)length : 0, f != NULL ? f : "");
    }
    return LT_OK;
}

static const char *next_line(const char *p) {
    const char *end = strchr(p, '\n');
    return end != NULL ? end + 1 : p + strlen(p);
}

static size_t count_lines(const char *p) {
    size_t n = 0;
    for (; *p != '\0'; p = next_line(p)) {
        n++;
    }
    return n;
}

/* ---- Run times ---- */

typedef struct {
    double *run_s;
    size_t n;
} run_times;

static lt_err read_run_times(run_times *out, const char *path) {
    lt_err err = LT_OK;
    char *text = NULL;
    const char *p;
    int column;
    LT_TRY(read_all(&text, path));
    column = column_of(text, "runtime", "run_s");
    out->run_s = calloc(count_lines(text) + 1, sizeof(double));
    if (column < 0 || out->run_s == NULL) {
        LT_FAIL_DONE(LT_ERR_FORMAT, "%s: its header has no column runtime", path);
    }
    for (p = next_line(text); *p != '\0'; p = next_line(p)) {
        LT_TRY_DONE(number_at(&out->run_s[out->n], p, column, "runtime", out->n + 2, path));
        out->n++;
    }
    if (out->n == 0) {
        LT_FAIL_DONE(LT_ERR_FORMAT, "%s: no run times", path);
    }
done:
    free(text);
    return err;
}

/* ---- Jobs ---- */

typedef struct {
    int tenant, arrival, gpus, run;
} columns;

static lt_err find_columns(columns *c, const char *header, const char *path, bool drawn) {
    *c = (columns){column_of(header, "tenant", "vc"), column_of(header, "arrival_s", NULL),
                   column_of(header, "gpus", "scale_factor"), column_of(header, "run_s", NULL)};
    if (c->tenant < 0 || c->arrival < 0 || c->gpus < 0 || (c->run < 0 && !drawn)) {
        LT_FAIL(LT_ERR_FORMAT, "%s: its header has no column %s", path,
                c->tenant < 0    ? "tenant (or vc)"
                : c->arrival < 0 ? "arrival_s"
                : c->gpus < 0    ? "gpus (or scale_factor)"
                                 : "run_s, and no --runtimes says how long jobs run");
    }
    return LT_OK;
}

static lt_err read_job(lt_queue_job *j, const lt_policy *p, const char *line, const columns *c,
                       size_t number, const char *path) {
    size_t length = 0;
    const char *name = field_at(line, c->tenant, &length);
    double gpus;
    LT_TRY(number_at(&j->arrival_s, line, c->arrival, "arrival_s", number, path));
    LT_TRY(number_at(&gpus, line, c->gpus, "gpus", number, path));
    LT_TRY(c->run >= 0 ? number_at(&j->run_s, line, c->run, "run_s", number, path) : LT_OK);
    j->gpus = (int64_t)gpus;
    if (j->gpus < 1 || (double)j->gpus != gpus) {
        LT_FAIL(LT_ERR_FORMAT, "%s:%zu: %g GPUs", path, number, gpus);
    }
    for (size_t i = 0; name != NULL && i < p->n_tenants; i++) {
        if (strlen(p->tenants[i].name) == length &&
            strncmp(p->tenants[i].name, name, length) == 0) {
            j->tenant = i;
            return LT_OK;
        }
    }
    LT_FAIL(LT_ERR_ARG, "%s:%zu: the policy has no tenant '%.*s'", path, number, (int)length,
            name != NULL ? name : "");
}

static int by_arrival(const void *a, const void *b) {
    const lt_queue_job *x = a, *y = b;
    return x->arrival_s != y->arrival_s
               ? (x->arrival_s > y->arrival_s) - (x->arrival_s < y->arrival_s)
               : (x->end_s > y->end_s) - (x->end_s < y->end_s);
}

lt_err lt_queue_read(lt_queue_job **out, size_t *n, const lt_policy *p, const char *path,
                     const char *runtimes, uint64_t seed) {
    lt_err err = LT_OK;
    lt_rng rng = {.seed = seed, .stream = 1};
    run_times times = {0};
    lt_queue_job *jobs = NULL;
    char *text = NULL;
    columns c;
    size_t count = 0;
    LT_TRY_DONE(read_all(&text, path));
    LT_TRY_DONE(runtimes[0] != '\0' ? read_run_times(&times, runtimes) : LT_OK);
    LT_TRY_DONE(find_columns(&c, text, path, runtimes[0] != '\0'));
    if (c.run >= 0 && runtimes[0] != '\0') {
        LT_FAIL_DONE(LT_ERR_ARG, "%s has a column run_s, which contradicts --runtimes %s", path,
                     runtimes);
    }
    jobs = calloc(count_lines(text) + 1, sizeof *jobs);
    if (jobs == NULL) {
        LT_FAIL_DONE(LT_ERR_OOM, "%s", path);
    }
    for (const char *line = next_line(text); *line != '\0'; line = next_line(line)) {
        LT_TRY_DONE(read_job(&jobs[count], p, line, &c, count + 2, path));
        jobs[count].run_s = times.n > 0 ? times.run_s[lt_rng_below(&rng, times.n)]
                                        : jobs[count].run_s;
        /* Keeps the order of jobs that arrive at the same time. */
        jobs[count].end_s = (double)count;
        count++;
    }
    if (count == 0) {
        LT_FAIL_DONE(LT_ERR_FORMAT, "%s: no jobs", path);
    }
    qsort(jobs, count, sizeof *jobs, by_arrival);
    *out = jobs;
    *n = count;
    jobs = NULL;
done:
    free(jobs);
    free(text);
    free(times.run_s);
    return err;
}
