/* batch_run.c: running batches: see batch.h. Each turn of the loop validates a slice of an input,
 * or starts a few requests, so that streams are not delayed. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "serve/api/files/batch.h"
#include "serve/api/files/batch_line.h"
#include "serve/api/route.h"

/* Bytes of an input that one turn validates: about 1 ms. */
#define SLICE_BYTES  ((size_t)128 << 10)
#define TURN_STARTS  8  /* Requests that one turn starts. */
#define MOST_PAUSE_S 60 /* Longest pause between attempts to store a result. */

/* Line i of the input, from 0, without its line end. It was validated, or is the next to be. */
static const char *line_at(const lt_batch_work *w, int64_t i, size_t *n) {
    const char *text = (const char *)w->input.data + w->begins[i];
    const size_t left = w->input.size_bytes - w->begins[i];
    const char *newline = memchr(text, '\n', left);
    *n = newline != NULL ? (size_t)(newline - text) : left;
    return text;
}

void lt_batches_wake(lt_batches *b) {
    if (b->runs) {
        event_active(b->on_turn, EV_TIMEOUT, 1);
    }
}

/* ---- The end of a batch ---- */

/* Write lines that were not answered to the errors. */
static lt_err put_rest(lt_batch *t) {
    lt_batch_work *w = t->work;
    const bool expired = w->ends == LT_BATCH_EXPIRED;
    const char *code = expired ? "batch_expired" : "batch_cancelled";
    const char *message =
        expired ? "This request could not be executed before the completion window expired."
                : "The batch was cancelled before this request was executed.";
    lt_json_out o = {0};
    lt_err err = LT_OK;

    for (int64_t i = 0; i < w->n_lines && err == LT_OK; i++) {
        lt_batch_line line = {0};
        size_t n;
        const char *text = line_at(w, i, &n);
        if (i >= w->n_valid) {
            w->begins[i + 1] = w->begins[i] + n + 1;
            w->n_more += !lt_batch_line_is_blank(text, n);
        }
        if (w->states[i] == LT_LINE_DONE || lt_batch_line_is_blank(text, n)) {
            continue;
        }
        (void)lt_batch_line_read(&line, text, n, t->endpoint);
        lt_out_clear(&o);
        lt_batch_put_error(&o, t->id, i + 1, line.custom_id, code, message);
        err = o.failed ? lt_error_set(LT_ERR_OOM, "%s", t->id) : lt_batch_append(t, 1, o.data, o.n);
        w->states[i] = LT_LINE_DONE;
        w->n_rest++;
        lt_batch_line_free(&line);
    }
    lt_out_free(&o);
    return err;
}

/* Make files of the results; those without a line are removed. */
static lt_err make_files(lt_batch *t) {
    lt_batch_work *w = t->work;
    for (int which = 0; which < 2; which++) {
        lt_file_entry f = {.purpose = "batch_output", .created = (int64_t)lt_clock_unix_s()};
        lt_api_error e = {0};
        char path[LT_PATH_BYTES];
        lt_batch_result_id(t, which, f.id);
        if (w->sizes[which] == 0) {
            LT_TRY(lt_files_path(t->all->files, f.id, path));
            (void)unlink(path);
            continue;
        }
        if (fsync(w->fds[which]) != 0) {
            LT_FAIL(LT_ERR_IO, "%s: results", t->id);
        }
        memcpy(f.owner, t->owner, sizeof f.owner);
        snprintf(f.name, sizeof f.name, "%s_%s.jsonl", t->id, which == 0 ? "output" : "error");
        f.expires = t->output_s > 0 ? f.created + t->output_s : 0;
        if (!lt_files_put(t->all->files, &f, NULL, 0, &e)) {
            LT_FAIL(LT_ERR_IO, "%s: %s", t->id, e.message);
        }
    }
    return LT_OK;
}

static void end_work(lt_pool_job *job) {
    lt_batch_work *w = (lt_batch_work *)((char *)job - offsetof(lt_batch_work, job));
    w->job_err = w->ends != LT_BATCH_COMPLETED ? put_rest(w->batch) : LT_OK;
    w->job_err = w->job_err == LT_OK ? make_files(w->batch) : w->job_err;
    if (w->job_err != LT_OK) {
        snprintf(w->job_message, sizeof w->job_message, "%s", lt_error_message());
    }
}

/* End the batch in this state. */
static void end_batch(lt_batch *t, lt_batch_state state) {
    lt_batch_come_to(t, state);
    lt_batch_work_close(t);
    if (lt_batch_save(t) != LT_OK) {
        lt_log_error("serve: %s", lt_error_message());
    }
}

static void end_done(lt_pool_job *job) {
    lt_batch_work *w = (lt_batch_work *)((char *)job - offsetof(lt_batch_work, job));
    lt_batch *t = w->batch;
    lt_batches *b = t->all;

    t->total += w->n_more;
    t->failed += w->n_rest;
    t->has_output = w->sizes[0] > 0;
    t->has_errors = w->sizes[1] > 0;
    if (w->job_err != LT_OK) {
        t->has_output = t->has_errors = false;
        snprintf(t->why, sizeof t->why, "%s", w->job_message);
        lt_log_error("serve: %s: %s", t->id, t->why);
        lt_api_hide_paths(t->why);
    }
    end_batch(t, w->job_err == LT_OK ? w->ends : LT_BATCH_FAILED);
    lt_batches_wake(b);
}

/* The pool may be full; then the next turn tries again. */
static void submit_end(lt_batch *t) {
    lt_batch_work *w = t->work;
    w->batch = t;
    w->job = (lt_pool_job){.work = end_work, .done = end_done};
    w->submitted = lt_worker_pool_submit(t->all->server->pool, &w->job) == LT_OK;
}

static void begin_end(lt_batch *t, lt_batch_state ends) {
    t->work->ends = ends;
    lt_batch_come_to(t, LT_BATCH_FINALIZING);
    submit_end(t);
}

/* End the batch if it has no more work. */
static void settle(lt_batch *t) {
    const lt_batch_work *w = t->work;
    if (t->state == LT_BATCH_IN_PROGRESS && w->n_runs == 0 && w->next == w->n_lines) {
        begin_end(t, LT_BATCH_COMPLETED);
    } else if (t->state == LT_BATCH_CANCELLING && w->n_runs == 0) {
        begin_end(t, LT_BATCH_CANCELLED);
    } else if (t->state == LT_BATCH_FINALIZING && !w->submitted) {
        submit_end(t);
    }
}

/* ---- Requests ---- */

static void flight_free(lt_flight *f) {
    lt_batches *b = f->batch->all;
    *(f->prev != NULL ? &f->prev->next : &b->flights) = f->next;
    if (f->next != NULL) {
        f->next->prev = f->prev;
    }
    b->n_flights--;
    f->batch->work->n_runs--;
    lt_http_inner_close(f->conn);
    free(f->custom_id);
    free(f);
}

static void to_do_again(lt_batch_work *w, int64_t line) {
    w->states[line] = LT_LINE_TO_DO;
    w->next = line < w->next ? line : w->next;
}

/* Give up the running requests of a batch, or of all (NULL). Their lines will be run again. */
static void give_up_running(lt_batches *b, const lt_batch *t) {
    for (lt_flight *f = b->flights, *next; f != NULL; f = next) {
        next = f->next;
        if (t == NULL || f->batch == t) {
            to_do_again(f->batch->work, f->line);
            flight_free(f);
        }
    }
}

/* A line's result cannot be written, for example because the disk is full. A running request will
 * run again, so none starts for a while, and then only one. One message covers all that were
 * running. */
static void hold_back(lt_batch *t, int64_t line, const char *why) {
    lt_batches *b = t->all;
    const double now_s = lt_clock_s();
    b->pause = true;
    if (now_s < b->until_s) {
        return;
    }
    b->pause_s = b->pause_s == 0 ? 1 : fmin(2 * b->pause_s, MOST_PAUSE_S);
    b->until_s = now_s + b->pause_s;
    lt_log_error("serve: %s: the result of line %lld cannot be kept: %s. It and those that run now "
                 "run again, the first in %g s",
                 t->id, (long long)line + 1, why, b->pause_s);
}

static bool keep_answer(const lt_flight *f, int status, const char *extra, const void *body,
                        size_t n) {
    lt_batch *t = f->batch;
    const bool good = status < 400;
    lt_json_out o = {0};
    bool kept;

    lt_batch_put_answer(&o, t->id, f->line + 1, f->custom_id, status, extra, body, n);
    kept = !o.failed && lt_batch_append(t, good ? 0 : 1, o.data, o.n) == LT_OK;
    if (!kept) {
        hold_back(t, f->line, o.failed ? "out of memory" : lt_error_message());
    }
    lt_out_free(&o);
    if (kept) {
        t->all->pause_s = t->all->until_s = 0;
        t->work->states[f->line] = LT_LINE_DONE;
        *(good ? &t->completed : &t->failed) += 1;
        *(good ? &t->all->completed : &t->all->failed) += 1;
    }
    return kept;
}

/* A full queue and lack of memory are not the request's answer, so it is run again. */
static void answered(void *ctx, int status, const char *extra, const void *body, size_t n) {
    lt_flight *f = ctx;
    lt_batch *t = f->batch;
    const bool later = status == 429 || status == 503;

    if (later || !keep_answer(f, status, extra, body, n)) {
        to_do_again(t->work, f->line);
        t->all->pause = true;
    }
    flight_free(f);
    settle(t);
    lt_batches_wake(t->all);
}

static bool find_line(lt_batch_work *w) {
    while (w->next < w->n_lines && w->states[w->next] != LT_LINE_TO_DO) {
        w->next++;
    }
    return w->next < w->n_lines;
}

/* Start the next line. False: there is no memory. */
static bool start(lt_batch *t) {
    lt_batches *b = t->all;
    lt_batch_work *w = t->work;
    lt_batch_line line;
    lt_json_out body = {0};
    lt_flight *f = calloc(1, sizeof *f);
    size_t n;
    const char *text = line_at(w, w->next, &n);
    const bool ok = lt_batch_line_read(&line, text, n, t->endpoint);

    if (ok && f != NULL) {
        lt_out_value(&body, line.body);
        f->custom_id = strdup(line.custom_id);
    }
    lt_batch_line_free(&line);
    if (!ok || f == NULL || f->custom_id == NULL || body.failed) {
        free(f != NULL ? f->custom_id : NULL);
        free(f);
        lt_out_free(&body);
        return false;
    }
    f->batch = t;
    f->line = w->next;
    f->conn = lt_http_inner_open(b->server->http, body.data, body.n, answered, f);
    if (f->conn == NULL) {
        free(f->custom_id);
        free(f);
        return false;
    }
    f->next = b->flights;
    if (b->flights != NULL) {
        b->flights->prev = f;
    }
    b->flights = f;
    b->n_flights++;
    w->n_runs++;
    w->states[w->next++] = LT_LINE_RUNS;
    lt_route_inner(b->server, f->conn, t->endpoint, w->key, true);
    return true;
}

/* ---- Validation ---- */

/* Whether the custom id is new in this batch. */
static bool is_new(lt_batch_work *w, const char *custom_id) {
    const uint64_t hash = XXH3_64bits(custom_id, strlen(custom_id)) | 1;
    size_t at = hash & (w->n_ids - 1);
    while (w->ids[at] != 0) {
        if (w->ids[at] == hash) {
            return false;
        }
        at = (at + 1) & (w->n_ids - 1);
    }
    w->ids[at] = hash;
    return true;
}

/* False: the error cannot be written now. */
static bool validate_line(lt_batch *t, const char *text, size_t n) {
    lt_batch_work *w = t->work;
    unsigned char *state = &w->states[w->n_valid];
    lt_batch_line line;
    lt_json_out o = {0};
    bool ok = true;

    if (lt_batch_line_is_blank(text, n)) {
        *state = LT_LINE_BLANK;
        return true;
    }
    if (lt_batch_line_read(&line, text, n, t->endpoint) && !is_new(w, line.custom_id)) {
        line.code = "duplicate_custom_id";
        snprintf(line.message, sizeof line.message, "'custom_id' is that of an earlier line");
    }
    if (line.code != NULL && *state != LT_LINE_DONE) {
        lt_batch_put_error(&o, t->id, w->n_valid + 1, line.custom_id, line.code, line.message);
        ok = !o.failed && lt_batch_append(t, 1, o.data, o.n) == LT_OK;
        if (ok) {
            *state = LT_LINE_DONE;
            t->failed++;
            t->all->failed++;
        }
    }
    lt_out_free(&o);
    lt_batch_line_free(&line);
    t->total += ok;
    return ok;
}

static void validate(lt_batch *t) {
    lt_batch_work *w = t->work;
    const size_t end = w->begins[w->n_valid] + SLICE_BYTES;

    while (w->n_valid < w->n_lines && w->begins[w->n_valid] < end) {
        size_t n;
        const char *text = line_at(w, w->n_valid, &n);
        if (!validate_line(t, text, n)) {
            hold_back(t, w->n_valid, lt_error_message());
            return;
        }
        w->begins[++w->n_valid] = (size_t)(text - (const char *)w->input.data) + n + 1;
    }
    if (w->n_valid < w->n_lines) {
        return;
    }
    free(w->ids);
    w->ids = NULL;
    if (t->total == 0) {
        snprintf(t->why, sizeof t->why, "the input has no line");
        end_batch(t, LT_BATCH_FAILED);
        return;
    }
    lt_batch_come_to(t, LT_BATCH_IN_PROGRESS);
    (void)find_line(w);
    settle(t);
}

/* ---- Turns ---- */

/* Number of requests that may start: the engine runs no more of them than fit beside the others,
 * and a few wait, so that no place is unused. */
static int64_t count_room(const lt_batches *b) {
    const int64_t most = b->server->o.engine.max_running;
    lt_engine_stats st = {0};
    if (lt_server_has_model(b->server)) {
        lt_engine_get_stats(b->server->engine, &st);
    }
    return most + LT_ENGINE_SPARE(most) - b->n_flights - (st.running - st.background_running) -
           (st.waiting - st.background_waiting);
}

static bool has_line(const lt_batch *t) {
    return t->state == LT_BATCH_IN_PROGRESS && t->work->key != NULL && find_line(t->work);
}

/* The batch whose turn is next; NULL: none has lines left. */
static lt_batch *take_turn(lt_batches *b) {
    lt_batch *const from = b->turn != NULL ? b->turn : b->first;
    lt_batch *t = from;
    while (t != NULL && !has_line(t)) {
        t = t->next != NULL ? t->next : b->first;
        t = t != from ? t : NULL; /* All batches have been tried. */
    }
    b->turn = t != NULL ? t->next : b->turn;
    return t;
}

static bool start_some(lt_batches *b) {
    int64_t room = count_room(b);
    room = room < TURN_STARTS ? room : TURN_STARTS;
    if (b->pause_s > 0) { /* Its answer will show whether results can be stored again. */
        room = b->n_flights == 0 ? 1 : 0;
    }
    for (int64_t i = 0; i < room && !b->pause; i++) {
        lt_batch *t = take_turn(b);
        if (t == NULL) {
            return false;
        }
        b->pause = !start(t) || b->pause;
    }
    return room == TURN_STARTS && !b->pause;
}

static lt_batch *first_to_validate(const lt_batches *b) {
    lt_batch *t = b->first;
    while (t != NULL && t->state != LT_BATCH_VALIDATING) {
        t = t->next;
    }
    return t;
}

static void on_turn(evutil_socket_t fd, short what, void *arg) {
    lt_batches *b = arg;
    const struct timeval second = {.tv_sec = 1};
    lt_batch *t = first_to_validate(b);
    bool unfinished = false;
    (void)fd;
    (void)what;

    if (!b->runs) {
        return;
    }
    if (!b->pause && t != NULL) {
        validate(t);
        lt_batches_wake(b);
    }
    if (start_some(b)) {
        lt_batches_wake(b);
    }
    for (t = b->first; t != NULL; t = t->next) {
        unfinished = unfinished || !lt_batch_has_ended(t);
    }
    if (unfinished && !event_pending(b->on_second, EV_TIMEOUT, NULL)) {
        event_add(b->on_second, &second);
    }
}

static void on_second(evutil_socket_t fd, short what, void *arg) {
    lt_batches *b = arg;
    const int64_t now = (int64_t)lt_clock_unix_s();
    (void)fd;
    (void)what;

    b->pause = lt_clock_s() < b->until_s;
    for (lt_batch *t = b->first; t != NULL; t = t->next) {
        if (t->work != NULL && now >= t->expires &&
            (t->state == LT_BATCH_VALIDATING || t->state == LT_BATCH_IN_PROGRESS)) {
            give_up_running(b, t);
            begin_end(t, LT_BATCH_EXPIRED);
        } else if (t->work != NULL) {
            settle(t);
        }
    }
    lt_batches_wake(b);
}

/* ---- The door ---- */

bool lt_batch_cancel(lt_batch *t, lt_api_error *e) {
    lt_err err;
    if (t->state == LT_BATCH_CANCELLING) {
        return true;
    }
    if (t->state != LT_BATCH_VALIDATING && t->state != LT_BATCH_IN_PROGRESS) {
        return lt_api_refuse(e, "batch_id", "%s has ended, or is about to: it cannot be cancelled",
                             t->id);
    }
    lt_batch_come_to(t, LT_BATCH_CANCELLING);
    err = lt_batch_save(t);
    if (err != LT_OK) {
        return lt_api_refuse_error(e, NULL, err);
    }
    give_up_running(t->all, t);
    settle(t);
    lt_batches_wake(t->all);
    return true;
}

void lt_batches_begin(lt_batches *b) {
    if (b == NULL || b->runs) {
        return;
    }
    b->on_turn = event_new(b->server->base, -1, 0, on_turn, b);
    b->on_second = event_new(b->server->base, -1, 0, on_second, b);
    if (b->on_turn == NULL || b->on_second == NULL) {
        lt_log_error("serve: batches do not run: out of memory");
        return;
    }
    b->runs = true;
    for (lt_batch *t = b->first; t != NULL; t = t->next) {
        if (t->work != NULL) {
            settle(t);
        }
    }
    lt_batches_wake(b);
}

void lt_batches_stop(lt_batches *b) {
    if (b != NULL) {
        b->runs = false;
        give_up_running(b, NULL);
    }
}
