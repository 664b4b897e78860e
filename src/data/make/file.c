/* file.c: writes a range of problems to a file.
 *
 * The range is cut into jobs of JOB_PROBLEMS. A round makes some jobs on all threads and writes
 * them in order. The text does not depend on the number of threads, because problem i is a function
 * of i alone. Repeats are found while writing, in a table of the keys written so far. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/aside.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/file.h"
#include "base/thread.h"
#include "data/make/kind.h"

#define JOB_PROBLEMS    512
#define JOBS_PER_THREAD 4

typedef struct {
    lt_maker *maker;
    uint64_t first;
    size_t n;
    char *text; /* The lines, one after another. */
    size_t bytes, room;
    size_t ends[JOB_PROBLEMS];
    uint64_t keys[JOB_PROBLEMS];
    lt_failure failure;
} job;

/* A hash table with open addressing; 0 is an empty slot. */
typedef struct {
    uint64_t *keys;
    size_t n, room; /* room is a power of two. */
} key_set;

static size_t place_of(const key_set *s, uint64_t key) {
    size_t at = (size_t)lt_rng_mix(key) & (s->room - 1);
    while (s->keys[at] != 0 && s->keys[at] != key) {
        at = (at + 1) & (s->room - 1);
    }
    return at;
}

static lt_err key_add(key_set *s, uint64_t key, bool *known) {
    size_t at;
    key = key == 0 ? 1 : key;
    if (3 * s->n >= 2 * s->room) {
        key_set larger = {.n = s->n, .room = s->room == 0 ? 4096 : 2 * s->room};
        larger.keys = calloc(larger.room, sizeof *larger.keys);
        if (larger.keys == NULL) {
            LT_FAIL(LT_ERR_OOM, "keys of %zu problems; --repeats ignore needs none", s->n);
        }
        for (size_t i = 0; i < s->room; i++) {
            if (s->keys[i] != 0) {
                larger.keys[place_of(&larger, s->keys[i])] = s->keys[i];
            }
        }
        free(s->keys);
        *s = larger;
    }
    at = place_of(s, key);
    *known = s->keys[at] == key;
    s->n += !*known;
    s->keys[at] = key;
    return LT_OK;
}

static lt_err job_line(job *j, size_t i) {
    const char *line;
    size_t bytes;
    LT_TRY(lt_maker_line(j->maker, j->first + i, &line, &bytes, &j->keys[i]));
    if (j->bytes + bytes > j->room) {
        const size_t room = 2 * (j->bytes + bytes);
        char *text = realloc(j->text, room);
        if (text == NULL) {
            LT_FAIL(LT_ERR_OOM, "%zu bytes of problems", room);
        }
        j->text = text;
        j->room = room;
    }
    memcpy(j->text + j->bytes, line, bytes);
    j->bytes += bytes;
    j->ends[i] = j->bytes;
    return LT_OK;
}

static void job_run(void *ctx, size_t which) {
    job *j = (job *)ctx + which;
    lt_err err = LT_OK;
    j->bytes = 0;
    for (size_t i = 0; i < j->n && err == LT_OK; i++) {
        err = job_line(j, i);
    }
    lt_failure_keep(&j->failure, err);
}

static lt_err write_text(FILE *to, const char *path, const char *text, size_t bytes,
                         lt_make_totals *totals) {
    if (fwrite(text, 1, bytes, to) != bytes) {
        LT_FAIL(LT_ERR_IO, "write %s: %s", path, strerror(errno));
    }
    totals->bytes += bytes;
    return LT_OK;
}

static lt_err job_write(const job *j, FILE *to, const char *path, lt_make_repeats repeats,
                        key_set *seen, lt_make_totals *totals) {
    if (repeats == LT_MAKE_REPEATS_IGNORE) {
        totals->written += j->n;
        return write_text(to, path, j->text, j->bytes, totals);
    }
    for (size_t i = 0; i < j->n; i++) {
        const size_t begin = i > 0 ? j->ends[i - 1] : 0;
        bool known = false;
        LT_TRY(key_add(seen, j->keys[i], &known));
        totals->repeats += known;
        if (!known || repeats == LT_MAKE_REPEATS_COUNT) {
            LT_TRY(write_text(to, path, j->text + begin, j->ends[i] - begin, totals));
            totals->written++;
        }
    }
    return LT_OK;
}

lt_err lt_make_file(const lt_make_options *o, uint64_t first, uint64_t count,
                    lt_make_repeats repeats, const char *path,
                    void (*progress)(void *ctx, uint64_t done, uint64_t of), void *ctx,
                    lt_make_totals *totals) {
    const size_t n_jobs = (size_t)lt_thread_count() * JOBS_PER_THREAD;
    job *jobs = calloc(n_jobs, sizeof *jobs);
    const double begin_s = lt_clock_s();
    const char *shown = path != NULL ? path : "standard output";
    key_set seen = {0};
    lt_aside aside = {.slot = 0};
    FILE *to = stdout;
    lt_err err = LT_OK;

    *totals = (lt_make_totals){0};
    if (jobs == NULL) {
        LT_FAIL_DONE(LT_ERR_OOM, "%zu jobs", n_jobs);
    }
    if (count > UINT64_MAX - first) {
        LT_FAIL_DONE(LT_ERR_ARG, "the index of the last problem exceeds 64 bits");
    }
    for (size_t j = 0; j < n_jobs; j++) {
        LT_TRY_DONE(lt_maker_open(&jobs[j].maker, o));
    }
    if (path != NULL) {
        LT_TRY_DONE(lt_aside_open(&aside, path));
        to = aside.file;
    }
    for (uint64_t done = 0; done < count;) {
        size_t n = 0;
        for (; n < n_jobs && done < count; n++) {
            const uint64_t left = count - done;
            jobs[n].first = first + done;
            jobs[n].n = left < JOB_PROBLEMS ? (size_t)left : JOB_PROBLEMS;
            done += jobs[n].n;
        }
        lt_parallel_for(n, job_run, jobs);
        for (size_t j = 0; j < n; j++) {
            LT_TRY_DONE(lt_failure_raise(&jobs[j].failure));
            LT_TRY_DONE(job_write(&jobs[j], to, shown, repeats, &seen, totals));
        }
        if (progress != NULL) {
            progress(ctx, done, count);
        }
    }
    if (fflush(to) != 0) {
        LT_FAIL_DONE(LT_ERR_IO, "write %s: %s", shown, strerror(errno));
    }
    LT_TRY_DONE(path != NULL ? lt_aside_publish(&aside) : LT_OK);
    totals->seconds = lt_clock_s() - begin_s;
done:
    lt_aside_close(&aside);
    for (size_t j = 0; jobs != NULL && j < n_jobs; j++) {
        lt_maker_close(jobs[j].maker);
        free(jobs[j].text);
    }
    free(jobs);
    free(seen.keys);
    return err;
}
