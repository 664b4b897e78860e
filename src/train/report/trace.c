/* trace.c: the trace of one step: RUN/trace-step-N.json in the trace event format, which Perfetto
 * (ui.perfetto.dev) and chrome://tracing open.
 *
 * Each rank is a process with these rows:
 *
 *     host           phases of the step: passes, sums, the record of all ranks, the update; waits
 *     passes         embedding, layers, head; on a GPU measured on the queue that computes them
 *     transfers      collectives, sends and receives; as many rows as overlapping ones need
 *     host transfers the calls of the world of host memory, where ranks are on GPUs
 *
 * On CPUs the host computes, so passes lie among the phases. Every event is complete ("ph": "X",
 * microseconds from the first one of all ranks), and events of one row nest. Ranks of several
 * machines have clocks of their own; the leading rank asks each for its time and takes the middle
 * of question and answer as the moment of the reply. A difference smaller than its own uncertainty
 * counts as none. (Trace Event Format:
 * docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU.) */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "train/run.h"

enum { ROW_HOST, ROW_PASSES, ROW_TRANSFERS, ROW_HOST_TRANSFERS = 100 };
#define ROWS_MAX 64 /* Most rows for transfers that overlap. */

/* A rank's contribution: the counts, then its spans and its calls. */
typedef struct {
    int64_t n_spans, n_calls, n_host_calls, n_lost;
    int64_t on_device;
    int64_t ahead_ns; /* How far this rank's clock is ahead of the leading rank's. */
} head;
typedef struct {
    head head;
    lt_span *spans;
    lt_comm_call *calls; /* (n_calls + n_host_calls) */
} part;

static void part_close(part *p) {
    free(p->spans);
    free(p->calls);
    *p = (part){0};
}

static lt_err part_room(part *p) {
    const size_t n = (size_t)(p->head.n_calls + p->head.n_host_calls);
    p->spans = calloc((size_t)p->head.n_spans + 1, sizeof *p->spans);
    p->calls = calloc(n + 1, sizeof *p->calls);
    if (p->spans == NULL || p->calls == NULL) {
        LT_FAIL(LT_ERR_OOM, "trace of %lld spans and %zu calls", (long long)p->head.n_spans, n);
    }
    return LT_OK;
}

/* ---- This rank's part ---- */

/* The calls after `first` that have ended; waits for the newest of them. */
static lt_err recall(lt_comm *c, lt_comm_work first, lt_comm_call *out, int64_t *n,
                     int64_t *n_lost) {
    const lt_comm_work last = lt_comm_last(c);
    *n = 0;
    for (lt_comm_work k = first + 1; k <= last; k++) {
        LT_TRY(lt_comm_wait(c, k));
        const bool there = lt_comm_recall(c, k, &out[*n]);
        *n_lost += !there;
        *n += there && out[*n].members > 1;
    }
    return LT_OK;
}

static lt_err own_part(lt_training *t, part *p) {
    const lt_times *x = &t->times;
    lt_world *w = lt_training_has_ranks(t) ? t->world : NULL;
    lt_comm *device = w != NULL ? w->device : NULL;
    *p = (part){.head = {.n_spans = x->line.n,
                         .n_calls = LT_COMM_RECORDS,
                         .n_host_calls = LT_COMM_RECORDS,
                         .n_lost = x->line.n_lost,
                         .on_device = !t->device->backend->host_memory}};
    LT_TRY(part_room(p));
    memcpy(p->spans, x->line.spans, (size_t)x->line.n * sizeof *p->spans);
    p->head.n_calls = p->head.n_host_calls = 0;
    if (device != NULL) {
        LT_TRY(recall(device, x->first_device, p->calls, &p->head.n_calls, &p->head.n_lost));
        LT_TRY(recall(w->comm, x->first_host, p->calls + p->head.n_calls, &p->head.n_host_calls,
                      &p->head.n_lost));
    } else if (w != NULL) {
        LT_TRY(recall(w->comm, x->first_host, p->calls, &p->head.n_calls, &p->head.n_lost));
    }
    return LT_OK;
}

/* ---- All parts come to the leading rank ---- */

static lt_err give(lt_group *g, const part *p) {
    const int64_t n = p->head.n_calls + p->head.n_host_calls;
    int64_t now = 0;
    LT_TRY(lt_recv(g, 0, &now, 1, LT_I64, NULL)); /* The request for the time. */
    now = (int64_t)lt_clock_ns();
    LT_TRY(lt_send(g, 0, &now, 1, LT_I64, NULL));
    LT_TRY(lt_send(g, 0, &p->head, sizeof p->head, LT_U8, NULL));
    LT_TRY(lt_send(g, 0, p->spans, p->head.n_spans * (int64_t)sizeof *p->spans, LT_U8, NULL));
    return lt_send(g, 0, p->calls, n * (int64_t)sizeof *p->calls, LT_U8, NULL);
}

static lt_err take(lt_group *g, int from, part *p) {
    int64_t asked = (int64_t)lt_clock_ns(), theirs = 0, now, ahead;
    LT_TRY(lt_send(g, from, &asked, 1, LT_I64, NULL));
    LT_TRY(lt_recv(g, from, &theirs, 1, LT_I64, NULL));
    now = (int64_t)lt_clock_ns();
    LT_TRY(lt_recv(g, from, &p->head, sizeof p->head, LT_U8, NULL));
    LT_TRY(part_room(p));
    LT_TRY(lt_recv(g, from, p->spans, p->head.n_spans * (int64_t)sizeof *p->spans, LT_U8, NULL));
    LT_TRY(lt_recv(g, from, p->calls,
                   (p->head.n_calls + p->head.n_host_calls) * (int64_t)sizeof *p->calls, LT_U8,
                   NULL));
    ahead = theirs - (asked + (now - asked) / 2);
    p->head.ahead_ns = 2 * llabs(ahead) <= now - asked ? 0 : ahead;
    return LT_OK;
}

/* ---- The file ---- */

typedef struct {
    FILE *f;
    int64_t zero_ns; /* Zero on the leading rank's clock. */
    int rank;
    bool begun;
} writer;

static int64_t since(const writer *w, const part *p, uint64_t ns) {
    return (int64_t)ns - p->head.ahead_ns - w->zero_ns;
}

/* One event: its members after "pid", in printf's format. */
LT_PRINTF(2, 3) static void event(writer *w, const char *members, ...) {
    va_list args;
    fprintf(w->f, "%s{\"pid\":%d,", w->begun ? ",\n" : "\n", w->rank);
    va_start(args, members);
    (void)vfprintf(w->f, members, args);
    va_end(args);
    fputc('}', w->f);
    w->begun = true;
}

/* Name a row or a process, and give it its place. what: "thread" or "process". */
static void put_name(writer *w, const char *what, int row, int place, const char *name) {
    event(w, "\"tid\":%d,\"ph\":\"M\",\"name\":\"%s_name\",\"args\":{\"name\":\"%s\"}", row, what,
          name);
    event(w, "\"tid\":%d,\"ph\":\"M\",\"name\":\"%s_sort_index\",\"args\":{\"sort_index\":%d}", row,
          what, place);
}

static void name_row(writer *w, int row, const char *name) {
    put_name(w, "thread", row, row, name);
}

/* args: the text in its braces. */
static void put_event(writer *w, int row, const char *kind, const char *name, int64_t from_ns,
                      int64_t to_ns, const char *args) {
    event(
        w,
        "\"tid\":%d,\"ph\":\"X\",\"cat\":\"%s\",\"name\":\"%s\",\"ts\":%.3f,\"dur\":%.3f,\"args\":"
        "{%s}",
        row, kind, name, (double)from_ns * 1e-3, (double)(to_ns - from_ns) * 1e-3, args);
}

static void put_span(writer *w, const part *p, const lt_span *s) {
    const lt_span_words *words = &lt_span_words_of[s->kind];
    const bool waits = s->kind == LT_SPAN_WAIT || s->kind == LT_SPAN_HOST_WAIT;
    const int64_t from = since(w, p, s->from_ns), to = since(w, p, s->to_ns);
    char name[160], args[160] = "";
    int at = 0;
    (void)snprintf(name, sizeof name, "%s", words->name);
    if (words->first[0] != '\0') {
        at = snprintf(args, sizeof args, "\"%s\":%" PRId64, words->first, s->first);
    }
    if (words->second[0] != '\0') {
        (void)snprintf(args + at, sizeof args - (size_t)at, ",\"%s\":%" PRId64, words->second,
                       s->second);
    }
    if (strcmp(words->first, "layer") == 0) {
        (void)snprintf(name, sizeof name, "%s, layer %" PRId64, words->name, s->first);
    } else if (words->second[0] != '\0') {
        (void)snprintf(name, sizeof name, "%s, chunk %" PRId64 ", micro-batch %" PRId64,
                       words->name, s->first, s->second);
    }
    put_event(w, words->queued && p->head.on_device ? ROW_PASSES : ROW_HOST,
              waits ? "wait" : "computing", name, from, to > from ? to : from, args);
}

static int by_start(const void *a, const void *b) {
    const lt_comm_call *x = a, *y = b;
    return x->started_ns < y->started_ns ? -1 : x->started_ns > y->started_ns;
}

/* Each call goes to the first row that is free when it starts. Returns the number of rows. */
static int put_calls(writer *w, const part *p, lt_comm_call *calls, int64_t n, int first_row) {
    int64_t free_at[ROWS_MAX];
    int n_rows = 0;
    qsort(calls, (size_t)n, sizeof *calls, by_start);
    for (int64_t i = 0; i < n; i++) {
        const lt_comm_call *c = &calls[i];
        const int64_t from = since(w, p, c->started_ns), to = since(w, p, c->done_ns);
        char name[80], args[256], peer[40] = "";
        int row = 0;
        while (row < n_rows && free_at[row] > from && row < ROWS_MAX - 1) {
            row++;
        }
        n_rows = row == n_rows ? n_rows + 1 : n_rows;
        free_at[row] = to > from ? to : from;
        if (c->peer >= 0) {
            (void)snprintf(peer, sizeof peer, ",\"peer\":%d", c->peer);
        }
        (void)snprintf(name, sizeof name, "%s %s", c->verb, c->group);
        (void)snprintf(
            args, sizeof args,
            "\"call\":%" PRIu64 ",\"bytes\":%" PRId64 ",\"members\":%d,\"queued_us\":%.3f%s",
            c->call, c->bytes, c->members,
            c->started_ns > c->issued_ns ? (double)(c->started_ns - c->issued_ns) * 1e-3 : 0.0,
            peer);
        put_event(w, first_row + row, c->is_pair ? "message" : "collective", name, from,
                  free_at[row], args);
    }
    return n_rows;
}

static void put_rank(writer *w, part *p, const char *host) {
    char name[64];
    int n_rows;
    (void)snprintf(name, sizeof name, "rank %d%s", w->rank, host);
    put_name(w, "process", 0, w->rank, name);
    name_row(w, ROW_HOST, p->head.on_device ? "host" : "host and passes");
    if (p->head.on_device) {
        name_row(w, ROW_PASSES, "passes");
    }
    for (int64_t i = 0; i < p->head.n_spans; i++) {
        put_span(w, p, &p->spans[i]);
    }
    n_rows = put_calls(w, p, p->calls, p->head.n_calls, ROW_TRANSFERS);
    for (int i = 0; i < n_rows; i++) {
        name_row(w, ROW_TRANSFERS + i, "transfers");
    }
    n_rows = put_calls(w, p, p->calls + p->head.n_calls, p->head.n_host_calls, ROW_HOST_TRANSFERS);
    for (int i = 0; i < n_rows; i++) {
        name_row(w, ROW_HOST_TRANSFERS + i, "host transfers");
    }
}

/* The earliest time of all, on the leading rank's clock. */
static int64_t earliest(const part *parts, int n) {
    int64_t first = INT64_MAX;
    for (int r = 0; r < n; r++) {
        const part *p = &parts[r];
        for (int64_t i = 0; i < p->head.n_spans; i++) {
            const int64_t at = (int64_t)p->spans[i].from_ns - p->head.ahead_ns;
            first = at < first ? at : first;
        }
        for (int64_t i = 0; i < p->head.n_calls + p->head.n_host_calls; i++) {
            const int64_t at = (int64_t)p->calls[i].started_ns - p->head.ahead_ns;
            first = at < first ? at : first;
        }
    }
    return first == INT64_MAX ? 0 : first;
}

static lt_err write_file(const lt_training *t, part *parts, int n, int64_t step) {
    lt_err err = LT_OK;
    char path[LT_PATH_BYTES], name[48];
    char *text = NULL;
    size_t bytes = 0;
    int64_t n_lost = 0;
    writer w = {.f = open_memstream(&text, &bytes), .zero_ns = earliest(parts, n)};
    if (w.f == NULL) {
        LT_FAIL(LT_ERR_OOM, "trace of step %lld", (long long)step);
    }
    fputs("{\"traceEvents\":[", w.f);
    for (int r = 0; r < n; r++) {
        w.rank = r;
        n_lost += parts[r].head.n_lost;
        put_rank(&w, &parts[r], t->device->backend->host_memory ? "" : ", GPU");
    }
    fprintf(w.f,
            "\n],\"displayTimeUnit\":\"ms\",\"otherData\":{\"program\":\"lateen "
            "%s\",\"step\":%" PRId64 ",\"ranks\":%d,\"lost\":%" PRId64 "}}\n",
            lt_version(), step, n, n_lost);
    if (fclose(w.f) != 0 || text == NULL) {
        LT_FAIL_DONE(LT_ERR_OOM, "trace of step %lld", (long long)step);
    }
    (void)snprintf(name, sizeof name, "trace-step-%" PRId64 ".json", step);
    LT_TRY_DONE(lt_path_join(path, t->recipe.out, name));
    LT_TRY_DONE(lt_file_write_atomic(path, text, bytes));
    lt_log_info("trace of step %lld: %s", (long long)step, path);
    if (n_lost > 0) {
        lt_log_warn("%s: %lld spans and transfers are missing, which did not fit", path,
                    (long long)n_lost);
    }
done:
    free(text);
    return err;
}

lt_err lt_trace_write(lt_training *t, int64_t step) {
    lt_err err = LT_OK;
    const bool several = lt_training_has_ranks(t);
    const int n = several ? lt_group_size(t->world->mesh.world) : 1;
    part *parts = calloc((size_t)n, sizeof *parts);
    if (parts == NULL) {
        LT_FAIL(LT_ERR_OOM, "trace of %d ranks", n);
    }
    LT_TRY_DONE(own_part(t, &parts[0]));
    if (!lt_ranks_lead(&t->ranks)) {
        LT_TRY_DONE(give(t->world->mesh.world, &parts[0]));
    }
    for (int r = 1; r < n && lt_ranks_lead(&t->ranks); r++) {
        LT_TRY_DONE(take(t->world->mesh.world, r, &parts[r]));
    }
    LT_TRY_DONE(lt_ranks_lead(&t->ranks) ? write_file(t, parts, n, step) : LT_OK);
    /* Otherwise the other ranks would wait for the leading rank in their next step. */
    LT_TRY_DONE(several ? lt_barrier(t->world->mesh.world) : LT_OK);
done:
    for (int r = 0; r < n; r++) {
        part_close(&parts[r]);
    }
    free(parts);
    return err;
}
