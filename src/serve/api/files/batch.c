/* batch.c: batches on disk and in answers: see batch.h. */
#include "serve/api/files/batch.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/encoding.h"
#include "base/error.h"
#include "base/json.h"
#include "base/log.h"
#include "serve/api/access.h"
#include "serve/api/files/batch_line.h"

#define MAX_BATCH_BYTES ((size_t)1 << 20) /* Most bytes of the file of a batch. */
#define KEEP_S          (30 * 86400)      /* How long a batch is known after its end. */

static const struct {
    const char *name, *time; /* time: the member with the time of the state; NULL: created_at. */
    bool ended;
} states[LT_BATCH_STATES] = {
    [LT_BATCH_VALIDATING] = {"validating", NULL, false},
    [LT_BATCH_IN_PROGRESS] = {"in_progress", "in_progress_at", false},
    [LT_BATCH_FINALIZING] = {"finalizing", "finalizing_at", false},
    [LT_BATCH_COMPLETED] = {"completed", "completed_at", true},
    [LT_BATCH_EXPIRED] = {"expired", "expired_at", true},
    [LT_BATCH_CANCELLING] = {"cancelling", "cancelling_at", false},
    [LT_BATCH_CANCELLED] = {"cancelled", "cancelled_at", true},
    [LT_BATCH_FAILED] = {"failed", "failed_at", true},
};

bool lt_batch_has_ended(const lt_batch *t) {
    return states[t->state].ended;
}

void lt_batch_come_to(lt_batch *t, lt_batch_state state) {
    t->state = state;
    t->times[state] = (int64_t)lt_clock_unix_s();
}

void lt_batch_result_id(const lt_batch *t, int which, char id[LT_FILE_ID_BYTES]) {
    snprintf(id, LT_FILE_ID_BYTES, "file-%s-%s", t->id, which == 0 ? "output" : "errors");
}

/* ---- As JSON ---- */

static void put_result_id(lt_json_out *o, const char *key, const lt_batch *t, int which, bool has) {
    char id[LT_FILE_ID_BYTES];
    lt_batch_result_id(t, which, id);
    lt_out_key_str(o, key, has ? id : NULL);
}

static void put_why(lt_json_out *o, const lt_batch *t) {
    if (t->state != LT_BATCH_FAILED) {
        lt_out_key_null(o, "errors");
        return;
    }
    lt_out_key_open(o, "errors", '{');
    lt_out_key_str(o, "object", "list");
    lt_out_key_open(o, "data", '[');
    lt_out_open(o, '{');
    lt_out_key_str(o, "code", "failed");
    lt_out_key_str(o, "message", t->why);
    lt_out_key_null(o, "param");
    lt_out_key_null(o, "line");
    lt_out_shut(o, '}');
    lt_out_shut(o, ']');
    lt_out_shut(o, '}');
}

void lt_batch_write(lt_json_out *o, const lt_batch *t) {
    lt_out_open(o, '{');
    lt_out_key_str(o, "id", t->id);
    lt_out_key_str(o, "object", "batch");
    lt_out_key_str(o, "endpoint", t->endpoint);
    put_why(o, t);
    lt_out_key_str(o, "input_file_id", t->input);
    lt_out_key_str(o, "completion_window", t->window);
    lt_out_key_str(o, "status", states[t->state].name);
    put_result_id(o, "output_file_id", t, 0, t->has_output);
    put_result_id(o, "error_file_id", t, 1, t->has_errors);
    lt_out_key_int(o, "created_at", t->times[LT_BATCH_VALIDATING]);
    for (int i = 0; i < LT_BATCH_STATES; i++) {
        if (states[i].time != NULL && t->times[i] > 0) {
            lt_out_key_int(o, states[i].time, t->times[i]);
        } else if (states[i].time != NULL) {
            lt_out_key_null(o, states[i].time);
        }
    }
    lt_out_key_int(o, "expires_at", t->expires);
    lt_out_key_open(o, "request_counts", '{');
    lt_out_key_int(o, "total", t->total);
    lt_out_key_int(o, "completed", t->completed);
    lt_out_key_int(o, "failed", t->failed);
    lt_out_shut(o, '}');
    lt_out_key_value(o, "metadata", t->metadata);
    lt_out_shut(o, '}');
}

static lt_err batch_path(const lt_batches *b, const char *id, char out[LT_PATH_BYTES]) {
    char name[64];
    snprintf(name, sizeof name, "%s.json", id);
    return lt_path_join(out, b->dir, name);
}

/* {"owner": ..., "output_s": ..., "order_us": ..., "batch": as clients see it} */
lt_err lt_batch_save(const lt_batch *t) {
    char path[LT_PATH_BYTES];
    lt_json_out o = {0};
    lt_err err;

    LT_TRY(batch_path(t->all, t->id, path));
    lt_out_open(&o, '{');
    lt_out_key_str(&o, "owner", t->owner);
    lt_out_key_int(&o, "output_s", t->output_s);
    lt_out_key_int(&o, "order_us", t->order_us);
    lt_out_key(&o, "batch");
    lt_batch_write(&o, t);
    lt_out_shut(&o, '}');
    err = o.failed ? lt_error_set(LT_ERR_OOM, "%s", t->id)
                   : lt_file_write_atomic(path, o.data, o.n);
    lt_out_free(&o);
    return err;
}

/* ---- From JSON ---- */

static lt_err copy_text(char *out, size_t room, const json_t *tree, const char *key,
                        const char *path) {
    const char *text = NULL;
    LT_TRY(lt_json_str(tree, key, &text, false, path));
    if (strlen(text) >= room) {
        LT_FAIL(LT_ERR_FORMAT, "%s: '%s' is too long", path, key);
    }
    memcpy(out, text, strlen(text) + 1);
    return LT_OK;
}

static lt_err read_state(lt_batch *t, const json_t *tree, const char *path) {
    const char *name = NULL, *endpoint = NULL, *failure = NULL;
    const json_t *data = json_object_get(json_object_get(tree, "errors"), "data");

    LT_TRY(lt_json_str(tree, "status", &name, false, path));
    LT_TRY(lt_json_str(tree, "endpoint", &endpoint, false, path));
    t->state = LT_BATCH_STATES;
    for (int i = 0; i < LT_BATCH_STATES; i++) {
        t->state = strcmp(states[i].name, name) == 0 ? (lt_batch_state)i : t->state;
        if (states[i].time != NULL) {
            LT_TRY(lt_json_i64(tree, states[i].time, &t->times[i], true, path));
        }
    }
    t->endpoint = lt_batch_endpoint_find(endpoint);
    if (t->state == LT_BATCH_STATES || t->endpoint == NULL) {
        LT_FAIL(LT_ERR_FORMAT, "%s: status %s, endpoint %s", path, name, endpoint);
    }
    failure = json_string_value(json_object_get(json_array_get(data, 0), "message"));
    snprintf(t->why, sizeof t->why, "%s", failure != NULL ? failure : "");
    return LT_OK;
}

static lt_err read_batch(lt_batch *t, const json_t *file, const char *path) {
    const json_t *tree = json_object_get(file, "batch");
    const json_t *counts = json_object_get(tree, "request_counts");

    LT_TRY(copy_text(t->owner, sizeof t->owner, file, "owner", path));
    LT_TRY(lt_json_i64(file, "output_s", &t->output_s, false, path));
    LT_TRY(lt_json_i64(file, "order_us", &t->order_us, false, path));
    LT_TRY(copy_text(t->id, sizeof t->id, tree, "id", path));
    LT_TRY(copy_text(t->input, sizeof t->input, tree, "input_file_id", path));
    LT_TRY(copy_text(t->window, sizeof t->window, tree, "completion_window", path));
    LT_TRY(read_state(t, tree, path));
    LT_TRY(lt_json_i64(tree, "created_at", &t->times[LT_BATCH_VALIDATING], false, path));
    LT_TRY(lt_json_i64(tree, "expires_at", &t->expires, false, path));
    LT_TRY(lt_json_i64(counts, "total", &t->total, false, path));
    LT_TRY(lt_json_i64(counts, "completed", &t->completed, false, path));
    LT_TRY(lt_json_i64(counts, "failed", &t->failed, false, path));
    t->has_output = json_is_string(json_object_get(tree, "output_file_id"));
    t->has_errors = json_is_string(json_object_get(tree, "error_file_id"));
    t->metadata = json_deep_copy(json_object_get(tree, "metadata"));
    if (strncmp(t->id, "batch_", 6) != 0) {
        LT_FAIL(LT_ERR_FORMAT, "%s: id %s", path, t->id);
    }
    return LT_OK;
}

static void batch_free(lt_batch *t) {
    if (t != NULL) {
        lt_batch_work_close(t);
        json_decref(t->metadata);
        free(t);
    }
}

/* Insert it in the order of age. */
static void insert(lt_batches *b, lt_batch *t) {
    lt_batch **at = &b->first;
    while (*at != NULL && (*at)->order_us <= t->order_us) {
        at = &(*at)->next;
    }
    t->next = *at;
    *at = t;
}

/* A batch whose results cannot be continued, e.g. because its input was removed, fails. */
static void go_on(lt_batch *t) {
    if (lt_batch_has_ended(t)) {
        return;
    }
    t->completed = t->failed = t->total = 0; /* They are counted again from the results. */
    if (lt_batch_work_open(t) != LT_OK) {
        snprintf(t->why, sizeof t->why, "%s", lt_error_message());
        lt_log_warn("serve: %s: %s", t->id, t->why);
        lt_api_hide_paths(t->why);
        lt_batch_work_close(t);
        lt_batch_come_to(t, LT_BATCH_FAILED);
    }
}

static bool is_old(const lt_batch *t) {
    const int64_t now = (int64_t)lt_clock_unix_s();
    return lt_batch_has_ended(t) && t->times[t->state] + KEEP_S < now;
}

static lt_err load_batch(lt_batches *b, const char *name) {
    char path[LT_PATH_BYTES];
    json_t *file = NULL;
    lt_batch *t = calloc(1, sizeof *t);
    lt_err err = LT_OK;

    if (t == NULL) {
        LT_FAIL(LT_ERR_OOM, "%s", name);
    }
    t->all = b;
    LT_TRY_DONE(lt_path_join(path, b->dir, name));
    LT_TRY_DONE(lt_json_load(&file, path, MAX_BATCH_BYTES));
    LT_TRY_DONE(read_batch(t, file, path));
    if (is_old(t)) {
        (void)unlink(path);
        goto done;
    }
    go_on(t);
    insert(b, t);
    t = NULL;
done:
    json_decref(file);
    batch_free(t);
    return err;
}

/* ---- Results ---- */

/* Mark the input's lines that a file of results answers, and cut off an incomplete last line. */
static lt_err read_results(lt_batch *t, int which, const char *path) {
    lt_batch_work *w = t->work;
    lt_file_map map = {0};
    size_t at = 0;

    LT_TRY(lt_file_map_open(&map, path));
    while (at < map.size_bytes) {
        const char *text = (const char *)map.data + at;
        const char *end = memchr(text, '\n', map.size_bytes - at);
        const size_t n = end != NULL ? (size_t)(end - text) : 0;
        const int64_t line = end != NULL ? lt_batch_result_line(text, n, t->id) : 0;
        if (line < 1 || line > w->n_lines || w->states[line - 1] == LT_LINE_DONE) {
            break;
        }
        w->states[line - 1] = LT_LINE_DONE;
        *(which == 0 ? &t->completed : &t->failed) += 1;
        at += n + 1;
    }
    lt_file_map_close(&map);
    w->sizes[which] = (int64_t)at;
    if (ftruncate(w->fds[which], (off_t)at) != 0) {
        LT_FAIL(LT_ERR_IO, "%s: %s", path, strerror(errno));
    }
    return LT_OK;
}

static int64_t count_lines(const lt_file_map *m) {
    const char *at = (const char *)m->data, *end = at + m->size_bytes;
    int64_t n = 0;
    while (at < end) {
        const char *newline = memchr(at, '\n', (size_t)(end - at));
        at = newline != NULL ? newline + 1 : end;
        n++;
    }
    return n;
}

static lt_err open_input(lt_batch *t) {
    lt_batch_work *w = t->work;
    lt_file_entry input;
    char path[LT_PATH_BYTES];

    if (!lt_files_get(t->all->files, t->input, t->owner, true, &input)) {
        LT_FAIL(LT_ERR_NOT_FOUND, "the input %s does not exist", t->input);
    }
    w->held = true;
    w->key = lt_access_key_of(t->all->server, t->owner);
    LT_TRY(lt_files_path(t->all->files, t->input, path));
    LT_TRY(lt_file_map_open(&w->input, path));
    w->n_lines = count_lines(&w->input);
    if (w->n_lines > t->all->server->o.batch_lines) {
        LT_FAIL(LT_ERR_ARG, "%lld lines; a batch has at most %lld (--batch-lines)",
                (long long)w->n_lines, (long long)t->all->server->o.batch_lines);
    }
    while (w->n_ids < 2 * (size_t)w->n_lines + 2) {
        w->n_ids = w->n_ids > 0 ? 2 * w->n_ids : 16;
    }
    w->states = calloc((size_t)w->n_lines + 1, 1);
    w->begins = calloc((size_t)w->n_lines + 1, sizeof *w->begins);
    w->ids = calloc(w->n_ids, sizeof *w->ids);
    if (w->states == NULL || w->begins == NULL || w->ids == NULL) {
        LT_FAIL(LT_ERR_OOM, "%s: %lld lines", t->id, (long long)w->n_lines);
    }
    w->begins[0] = lt_utf8_mark_bytes(w->input.data, w->input.size_bytes);
    return LT_OK;
}

lt_err lt_batch_work_open(lt_batch *t) {
    lt_batch_work *w = calloc(1, sizeof *w);
    if (w == NULL) {
        LT_FAIL(LT_ERR_OOM, "%s", t->id);
    }
    t->work = w;
    w->fds[0] = w->fds[1] = -1;
    LT_TRY(open_input(t));
    for (int which = 0; which < 2; which++) {
        char id[LT_FILE_ID_BYTES], path[LT_PATH_BYTES];
        lt_batch_result_id(t, which, id);
        LT_TRY(lt_files_path(t->all->files, id, path));
        w->fds[which] = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
        if (w->fds[which] < 0) {
            LT_FAIL(LT_ERR_IO, "%s: %s", path, strerror(errno));
        }
        LT_TRY(read_results(t, which, path));
    }
    return LT_OK;
}

void lt_batch_work_close(lt_batch *t) {
    lt_batch_work *w = t->work;
    if (w == NULL) {
        return;
    }
    if (w->held) {
        lt_files_release(t->all->files, t->input);
    }
    lt_file_map_close(&w->input);
    for (int which = 0; which < 2; which++) {
        if (w->fds[which] >= 0) {
            close(w->fds[which]);
        }
    }
    free(w->states);
    free(w->begins);
    free(w->ids);
    free(w);
    t->work = NULL;
}

lt_err lt_batch_append(lt_batch *t, int which, const char *text, size_t n) {
    lt_batch_work *w = t->work;
    const ssize_t wrote = write(w->fds[which], text, n);
    if (wrote != (ssize_t)n) {
        const int why = wrote < 0 ? errno : ENOSPC;
        if (ftruncate(w->fds[which], (off_t)w->sizes[which]) != 0) {
            lt_log_error("serve: %s: its results cannot be cut: %s", t->id, strerror(errno));
        }
        LT_FAIL(LT_ERR_IO, "%s: results: %s", t->id, strerror(why));
    }
    w->sizes[which] += (int64_t)n;
    return LT_OK;
}

/* ---- The door ---- */

lt_err lt_batches_open(lt_batches **out, lt_server *s) {
    lt_err err = LT_OK;
    lt_batches *b = calloc(1, sizeof *b);
    char **names = NULL;
    size_t n = 0;

    if (b == NULL) {
        LT_FAIL(LT_ERR_OOM, "batches");
    }
    b->server = s;
    b->files = s->files;
    LT_TRY_DONE(lt_path_join(b->dir, s->o.state, "batches"));
    LT_TRY_DONE(lt_file_make_dirs(b->dir));
    LT_TRY_DONE(lt_file_list(&names, &n, b->dir));
    for (size_t i = 0; i < n; i++) {
        if (lt_path_has_suffix(names[i], ".json") && load_batch(b, names[i]) != LT_OK) {
            lt_log_warn("serve: %s", lt_error_message());
        }
    }
    *out = b;
    b = NULL;
done:
    lt_file_list_free(names, n);
    lt_batches_close(b);
    return err;
}

void lt_batches_close(lt_batches *b) {
    if (b == NULL) {
        return;
    }
    while (b->first != NULL) {
        lt_batch *t = b->first;
        b->first = t->next;
        batch_free(t);
    }
    if (b->on_turn != NULL) {
        event_free(b->on_turn);
    }
    if (b->on_second != NULL) {
        event_free(b->on_second);
    }
    free(b);
}

static int64_t count_unfinished(const lt_batches *b, const char *owner) {
    int64_t n = 0;
    for (const lt_batch *t = b->first; t != NULL; t = t->next) {
        n += strcmp(t->owner, owner) == 0 && !lt_batch_has_ended(t);
    }
    return n;
}

lt_batch *lt_batch_create(lt_batches *b, const lt_batch *asked, lt_api_error *e) {
    lt_batch *t;
    lt_err err;

    if (count_unfinished(b, asked->owner) >= b->server->o.max_batches) {
        lt_api_refuse(e, NULL, "%lld batches have not ended yet (--batches)",
                      (long long)b->server->o.max_batches);
        e->status = 429;
        e->code = "batch_limit";
        return NULL;
    }
    t = calloc(1, sizeof *t);
    if (t == NULL) {
        lt_api_refuse_oom(e);
        return NULL;
    }
    *t = *asked;
    t->all = b;
    t->metadata = json_incref(asked->metadata);
    lt_server_make_id(b->server, "batch_", t->id);
    lt_batch_come_to(t, LT_BATCH_VALIDATING);
    t->expires = t->times[LT_BATCH_VALIDATING] + t->window_s;
    t->order_us = (int64_t)(lt_clock_unix_s() * 1e6);
    err = lt_batch_work_open(t);
    err = err == LT_OK ? lt_batch_save(t) : err;
    if (err != LT_OK) {
        lt_api_refuse_error(e, "input_file_id", err);
        batch_free(t);
        return NULL;
    }
    insert(b, t);
    lt_batches_wake(b);
    return t;
}

lt_batch *lt_batch_first(const lt_batches *b) {
    return b->first;
}

lt_batch *lt_batch_find(const lt_batches *b, const char *id, const char *owner) {
    for (lt_batch *t = b->first; t != NULL; t = t->next) {
        if (strcmp(t->id, id) == 0) {
            return strcmp(t->owner, owner) == 0 ? t : NULL;
        }
    }
    return NULL;
}

void lt_batches_metrics(lt_batches *b, lt_expo *e) {
    const lt_files_stats f = lt_files_get_stats(b->files);
    int64_t unfinished = 0, lines = 0;
    for (const lt_batch *t = b->first; t != NULL; t = t->next) {
        unfinished += !lt_batch_has_ended(t);
        lines += lt_batch_has_ended(t) ? 0 : t->total - t->completed - t->failed;
    }
    lt_expo_family(e, LT_EXPO_COUNTER, "lateen_batch_requests_total",
                   "Requests of batches that were answered.");
    lt_expo_value(e, (double)b->completed, "result=\"completed\"");
    lt_expo_value(e, (double)b->failed, "result=\"failed\"");
    lt_expo_one(e, LT_EXPO_GAUGE, "lateen_batch_requests_left", "",
                "Requests of batches that are not answered yet.", (double)lines);
    lt_expo_one(e, LT_EXPO_GAUGE, "lateen_batches_unfinished", "", "Batches that have not ended.",
                (double)unfinished);
    lt_expo_one(e, LT_EXPO_GAUGE, "lateen_files", "", "Files that are kept.", (double)f.files);
    lt_expo_one(e, LT_EXPO_GAUGE, "lateen_files_bytes", "", "Their bytes.", (double)f.bytes);
}
