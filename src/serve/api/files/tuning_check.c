/* tuning_check.c: checks the files of a fine-tuning job line by line on the worker pool, a slice at
 * a time, and writes them in the trainer's format: see tuning.h. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/encoding.h"
#include "base/error.h"
#include "base/log.h"
#include "serve/api/files/batch_line.h"
#include "serve/api/files/tuning.h"
#include "serve/api/files/tuning_data.h"

#define SLICE_BYTES ((size_t)128 << 10) /* Bytes that a thread reads in one turn. */

/* OpenAI's defaults for epochs: 3, or more in order to see 100 examples. */
#define USUAL_EPOCHS 3
#define MIN_EXAMPLES 100
#define MAX_EXAMPLES 25000
#define MOST_EPOCHS  25
#define BATCH_SHARE  500 /* Likewise for the batch: 0.2 % of the examples, at most */
#define MOST_BATCH   256
#define USUAL_BETA   0.1

struct lt_tuning_check {
    lt_pool_job job;
    lt_tuning *t; /* NULL: it has been cancelled. */
    lt_server *server;
    bool pairs;
    int which;    /* 0: the training file; 1: the validation file. */
    bool held[2]; /* lt_files_get keeps the file from being removed. */
    bool at_work; /* The pool has it. */
    char ids[2][LT_FILE_ID_BYTES];
    lt_file_map map;
    FILE *out;
    size_t at;
    int64_t line, most;
    int64_t examples[2], tokens, longest;
    bool failed;
    lt_api_error e;
};

static void check_free(lt_tuning_check *c) {
    if (c->out != NULL) {
        fclose(c->out);
    }
    lt_file_map_close(&c->map);
    for (int i = 0; i < 2; i++) {
        if (c->held[i]) {
            lt_files_release(c->server->files, c->ids[i]);
        }
    }
    free(c);
}

/* ---- On a thread of the pool ---- */

static bool check_line(lt_tuning_check *c, const char *text, size_t n, lt_json_out *o) {
    lt_tuning_line_size size;
    c->line++;
    if (lt_batch_line_is_blank(text, n)) {
        return true;
    }
    if (!lt_tuning_line_read(c->server, c->pairs, text, n, c->most, o, &size, &c->e)) {
        return false;
    }
    c->examples[c->which]++;
    c->tokens += c->which == 0 ? size.tokens : 0;
    c->longest = size.longest > c->longest ? size.longest : c->longest;
    return true;
}

static void check_work(lt_pool_job *job) {
    lt_tuning_check *c = (lt_tuning_check *)job;
    const size_t end = c->map.size_bytes - c->at < SLICE_BYTES ? c->map.size_bytes
                                                               : c->at + SLICE_BYTES;
    lt_json_out o = {0};
    while (c->at < end && !c->failed) {
        const char *text = (const char *)c->map.data + c->at;
        const char *newline = memchr(text, '\n', c->map.size_bytes - c->at);
        const size_t n = newline != NULL ? (size_t)(newline - text) : c->map.size_bytes - c->at;
        c->failed = !check_line(c, text, n, &o);
        c->at += n + 1;
    }
    if (!c->failed && o.n > 0 && fwrite(o.data, 1, o.n, c->out) != o.n) {
        c->failed = true;
        c->line = 0;
        lt_api_refuse(&c->e, NULL, "the data cannot be written: the disk may be full");
    }
    lt_out_free(&o);
}

/* ---- On the loop ---- */

static void resolve(lt_tuning *t, const lt_tuning_check *c) {
    const int64_t n = c->examples[0];
    t->examples = n;
    t->held_out = c->examples[1];
    t->tokens = c->tokens;
    t->longest = c->longest;
    if (t->epochs == 0) {
        const int64_t few = MIN_EXAMPLES / n < MOST_EPOCHS ? MIN_EXAMPLES / n : MOST_EPOCHS;
        t->epochs = n * USUAL_EPOCHS < MIN_EXAMPLES ? few
                    : n * USUAL_EPOCHS > MAX_EXAMPLES
                        ? (MAX_EXAMPLES / n > 1 ? MAX_EXAMPLES / n : 1)
                        : USUAL_EPOCHS;
    }
    if (t->batch == 0) {
        const int64_t share = (n + BATCH_SHARE / 2) / BATCH_SHARE;
        t->batch = share < 1 ? 1 : share > MOST_BATCH ? MOST_BATCH : share;
    }
    t->multiplier = t->multiplier == 0 ? 1.0 : t->multiplier;
    t->beta = t->beta == 0 ? USUAL_BETA : t->beta;
    t->steps = (n * t->epochs + t->batch - 1) / t->batch;
}

/* Open the next file, and the file to which its data are written. */
static lt_err open_file(lt_tuning_check *c) {
    char path[LT_PATH_BYTES];
    LT_TRY(lt_files_path(c->server->files, c->ids[c->which], path));
    LT_TRY(lt_file_map_open(&c->map, path));
    LT_TRY(lt_tuning_path(c->t, c->which == 0 ? "train.jsonl" : "valid.jsonl", path));
    c->out = fopen(path, "we");
    if (c->out == NULL) {
        LT_FAIL(LT_ERR_IO, "%s cannot be written", path);
    }
    c->at = lt_utf8_mark_bytes(c->map.data, c->map.size_bytes);
    c->line = 0;
    return LT_OK;
}

static void fail(lt_tuning *t) {
    const lt_tuning_check *c = t->check;
    const char *param = c->which == 0 ? "training_file" : "validation_file";
    char why[sizeof t->why];
    if (c->line > 0) {
        snprintf(why, sizeof why, "line %lld: %.360s", (long long)c->line, c->e.message);
    } else {
        snprintf(why, sizeof why, "%.390s", c->e.message);
    }
    const int64_t line = c->line;
    lt_tuning_end_check(t);
    lt_tuning_fail(t, c->which == 0 ? "invalid_training_file" : "invalid_validation_file", param,
                   line, why);
}

/* All lines of a file are valid: open the next file, or end. */
static void next_file(lt_tuning *t) {
    lt_tuning_check *c = t->check;
    lt_err err = fclose(c->out) == 0 ? LT_OK : lt_error_set(LT_ERR_IO, "%s: its data", t->id);
    c->out = NULL;
    lt_file_map_close(&c->map);
    c->map = (lt_file_map){0};
    c->line = 0;
    if (err == LT_OK && c->examples[c->which] == 0) {
        lt_api_refuse(&c->e, NULL, "the file has no line");
        fail(t);
        return;
    }
    if (err == LT_OK && c->which == 0 && c->ids[1][0] != '\0') {
        c->which = 1;
        err = open_file(c);
    } else if (err == LT_OK) {
        resolve(t, c);
        lt_tuning_end_check(t);
        lt_tuning_come_to(t, LT_TUNING_QUEUED);
        return;
    }
    if (err != LT_OK) {
        (void)lt_api_refuse_error(&c->e, NULL, err);
        fail(t);
    }
}

static void check_done(lt_pool_job *job) {
    lt_tuning_check *c = (lt_tuning_check *)job;
    lt_tuning *t = c->t;
    c->at_work = false;
    if (t == NULL) {
        check_free(c);
        return;
    }
    if (c->failed) {
        fail(t);
    } else if (c->at >= c->map.size_bytes) {
        next_file(t);
    }
    lt_tunings_wake(t->all);
}

static lt_err begin(lt_tuning *t, lt_tuning_check *c) {
    const lt_model_spec *spec = lt_model_get_spec(t->all->server->model);
    lt_file_entry entry;
    c->most = spec->max_seq;
    snprintf(c->ids[0], sizeof c->ids[0], "%s", t->training);
    snprintf(c->ids[1], sizeof c->ids[1], "%s", t->validation);
    for (int i = 0; i < 2; i++) {
        c->which = i;
        c->held[i] = c->ids[i][0] != '\0' &&
                     lt_files_get(c->server->files, c->ids[i], t->owner, true, &entry);
        if (c->ids[i][0] != '\0' && !c->held[i]) {
            LT_FAIL(LT_ERR_NOT_FOUND, "the file %s does not exist", c->ids[i]);
        }
    }
    c->which = 0;
    return open_file(c);
}

void lt_tuning_begin_check(lt_tuning *t) {
    lt_tuning_check *c = t->check;
    if (c == NULL) {
        c = calloc(1, sizeof *c);
        if (c == NULL) {
            return; /* It will be tried again. */
        }
        c->job = (lt_pool_job){.bytes = SLICE_BYTES, .work = check_work, .done = check_done};
        c->t = t;
        c->server = t->all->server;
        c->pairs = t->pairs;
        t->check = c;
        const lt_err err = begin(t, c);
        if (err != LT_OK) {
            (void)lt_api_refuse_error(&c->e, NULL, err);
            fail(t);
            return;
        }
    }
    if (!c->at_work) { /* If the queue is full, try again. */
        c->at_work = lt_worker_pool_submit(c->server->pool, &c->job) == LT_OK;
    }
}

void lt_tuning_end_check(lt_tuning *t) {
    lt_tuning_check *c = t->check;
    if (c == NULL) {
        return;
    }
    t->check = NULL;
    c->t = NULL;
    if (!c->at_work || lt_worker_pool_cancel(c->server->pool, &c->job)) {
        check_free(c);
    }
}

void lt_tuning_drop_check(lt_tuning *t) {
    if (t->check != NULL) {
        check_free(t->check);
        t->check = NULL;
    }
}
