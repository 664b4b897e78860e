/* teacher_logprobs_write.c: writing of teacher_logprobs.h. */
#include "align/teacher_logprobs.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <xxhash.h>

#include "base/error.h"
#include "model/alloc.h"
#include "model/params.h"
#include "train/checkpoint/checksum.h"

#define SEQ_STEP 16 /* Tokens of a pass are a multiple of this: few shapes. */

/* A growing array of 4-byte numbers. */
typedef struct {
    int32_t *data;
    size_t n, room;
} numbers;

static lt_err append(numbers *a, const void *x, size_t n) {
    if (a->n + n > a->room) {
        const size_t room = 2 * (a->n + n) + 256;
        int32_t *grown = realloc(a->data, room * sizeof *grown);
        if (grown == NULL) {
            LT_FAIL(LT_ERR_OOM, "%zu numbers of a part", room);
        }
        a->data = grown;
        a->room = room;
    }
    memcpy(a->data + a->n, x, n * sizeof *a->data);
    a->n += n;
    return LT_OK;
}

static lt_err append_count(numbers *a, size_t n) {
    const int32_t x = (int32_t)n;
    if (n > INT32_MAX) {
        LT_FAIL(LT_ERR_LIMIT, "a part of %zu tokens; a part of fewer conversations has fewer", n);
    }
    return append(a, &x, 1);
}

enum { TOKENS, STARTS, PLACES, FIRST, IDS, LOGPROBS, TENSORS };

typedef struct {
    const lt_teacher_logprobs_options *o;
    char key[17];
    numbers out[TENSORS]; /* Numbers of the part that is being written. */
    /* Buffers of a pass: (rows, seq), and the likeliest tokens (rows * seq, k). */
    int32_t *ids, *tokens, *labels, *likeliest;
    float *logp;
    bool *learnt;
    int64_t *n; /* (rows) tokens. */
} writing;

static lt_err open_writing(writing *w) {
    const lt_teacher_logprobs_options *o = w->o;
    const size_t places = (size_t)(o->rows * o->seq);
    w->ids = malloc(places * sizeof *w->ids);
    w->tokens = malloc(places * sizeof *w->tokens);
    w->labels = malloc(places * sizeof *w->labels);
    w->likeliest = malloc(places * (size_t)o->k * sizeof *w->likeliest);
    w->logp = malloc(places * (size_t)o->k * sizeof *w->logp);
    w->learnt = malloc(places * sizeof *w->learnt);
    w->n = malloc((size_t)o->rows * sizeof *w->n);
    if (w->ids == NULL || w->tokens == NULL || w->labels == NULL || w->likeliest == NULL ||
        w->logp == NULL || w->learnt == NULL || w->n == NULL) {
        LT_FAIL(LT_ERR_OOM, "%" PRId64 " tokens for each of %zu places", o->k, places);
    }
    return LT_OK;
}

static void close_writing(writing *w) {
    for (int i = 0; i < TENSORS; i++) {
        free(w->out[i].data);
    }
    free(w->ids);
    free(w->tokens);
    free(w->labels);
    free(w->likeliest);
    free(w->logp);
    free(w->learnt);
    free(w->n);
}

/* Read conversations [first, first + rows) and lay them out as rows as long as the longest. */
static lt_err lay_out(writing *w, int64_t first, int64_t rows, lt_pass_batch *out) {
    const lt_teacher_logprobs_options *o = w->o;
    int64_t longest = 1;
    for (int64_t i = 0; i < rows; i++) {
        LT_TRY(lt_dialogues_read(o->dialogues, first + i, o->seq, o->teacher->spec.vocab_size,
                                 w->ids + i * o->seq, w->learnt + i * o->seq, &w->n[i]));
        longest = w->n[i] > longest ? w->n[i] : longest;
    }
    longest = (longest + SEQ_STEP - 1) / SEQ_STEP * SEQ_STEP;
    longest = longest < o->seq ? longest : o->seq;
    for (int64_t i = 0; i < rows * longest; i++) {
        const int64_t row = i / longest, t = i % longest, at = row * o->seq + t;
        w->tokens[i] = t < w->n[row] ? w->ids[at] : 0;
        w->labels[i] = t + 1 < w->n[row] && w->learnt[at + 1] ? w->ids[at + 1] : -1;
    }
    *out = (lt_pass_batch){.batch = rows, .seq = longest, .tokens = w->tokens, .labels = w->labels};
    return LT_OK;
}

/* A conversation behind those of the part; row: of the pass. */
static lt_err take(writing *w, int64_t row, int64_t seq) {
    const lt_teacher_logprobs_options *o = w->o;
    LT_TRY(append_count(&w->out[STARTS], w->out[TOKENS].n));
    LT_TRY(append_count(&w->out[FIRST], w->out[PLACES].n));
    LT_TRY(append(&w->out[TOKENS], w->ids + row * o->seq, (size_t)w->n[row]));
    for (int64_t t = 1; t < w->n[row]; t++) {
        const int32_t place = (int32_t)t;
        const int64_t at = (row * seq + t - 1) * o->k;
        if (w->learnt[row * o->seq + t]) {
            LT_TRY(append(&w->out[PLACES], &place, 1));
            LT_TRY(append(&w->out[IDS], w->likeliest + at, (size_t)o->k));
            LT_TRY(append(&w->out[LOGPROBS], w->logp + at, (size_t)o->k));
        }
    }
    return LT_OK;
}

static lt_err save_part(writing *w, const char *path) {
    static const char *const names[] = {"tokens", "starts", "places", "first", "ids", "logprobs"};
    lt_safetensor_memory memory[TENSORS];
    lt_safetensor_out out[TENSORS];
    json_t *metadata = json_pack("{s:s}", "key", w->key);
    lt_err err;
    for (int i = 0; i < TENSORS; i++) {
        const int64_t k = i == IDS || i == LOGPROBS ? w->o->k : 1;
        memory[i] = (lt_safetensor_memory){w->out[i].data, sizeof(int32_t)};
        out[i] = (lt_safetensor_out){.name = names[i],
                                     .dtype = i == LOGPROBS ? LT_F32 : LT_I32,
                                     .n_dims = i == IDS || i == LOGPROBS ? 2 : 1,
                                     .shape = {(int64_t)w->out[i].n / k, k},
                                     .fill = lt_safetensor_fill_memory,
                                     .ctx = &memory[i]};
    }
    err = metadata == NULL ? lt_error_set(LT_ERR_OOM, "%s", path)
                           : lt_safetensors_write(path, out, TENSORS, metadata, NULL);
    json_decref(metadata);
    return err;
}

/* Conversations [first, end) into a file. */
static lt_err write_part(writing *w, const char *path, int64_t first, int64_t end) {
    const lt_teacher_logprobs_options *o = w->o;
    for (int i = 0; i < TENSORS; i++) {
        w->out[i].n = 0;
    }
    for (int64_t at = first; at < end; at += o->rows) {
        const int64_t rows = end - at < o->rows ? end - at : o->rows;
        lt_pass_batch b;
        LT_TRY(lay_out(w, at, rows, &b));
        LT_TRY(lt_pass_top(o->pass, &b, o->k, (float)o->temperature, w->likeliest, w->logp));
        for (int64_t i = 0; i < rows; i++) {
            LT_TRY(take(w, i, b.seq));
        }
        if (o->progress != NULL) {
            o->progress(o->ctx, at + rows, o->dialogues->n);
        }
    }
    LT_TRY(append_count(&w->out[STARTS], w->out[TOKENS].n));
    LT_TRY(append_count(&w->out[FIRST], w->out[PLACES].n));
    return save_part(w, path);
}

/* *done: the part is there. STATE: it is of something else. */
static lt_err find_part(const writing *w, const char *path, bool *done, int64_t *places) {
    lt_safetensors file = {0};
    lt_err err = LT_OK;
    *done = lt_file_exists(path);
    if (!*done) {
        return LT_OK;
    }
    LT_TRY_DONE(lt_safetensors_open(&file, path));
    const char *key = lt_safetensors_metadata(&file, "key");
    const lt_safetensor *t = lt_safetensors_find(&file, "places");
    if (key == NULL || t == NULL || strcmp(key, w->key) != 0) {
        LT_FAIL_DONE(LT_ERR_STATE,
                     "%s was made from other conversations, by another model or with other "
                     "options; choose another "
                     "folder, or remove this one",
                     path);
    }
    *places = t->shape[0];
done:
    lt_safetensors_close(&file);
    return err;
}

static lt_err save_header(const writing *w) {
    const lt_teacher_logprobs_options *o = w->o;
    char path[LT_PATH_BYTES], *text;
    json_t *header = json_pack(
        "{s:s, s:s, s:s, s:I, s:I, s:f, s:I, s:I, s:I}", "format", LT_TEACHER_LOGPROBS_FORMAT,
        "key", w->key, "model", o->model, "vocab_size", (json_int_t)o->teacher->spec.vocab_size,
        "top_k", (json_int_t)o->k, "temperature", o->temperature, "longest", (json_int_t)o->seq,
        "conversations", (json_int_t)o->dialogues->n, "per_part", (json_int_t)o->per_part);
    lt_err err;
    text = header != NULL ? json_dumps(header, JSON_INDENT(2) | JSON_PRESERVE_ORDER) : NULL;
    json_decref(header);
    if (text == NULL) {
        LT_FAIL(LT_ERR_OOM, "%s", LT_TEACHER_LOGPROBS_FILE);
    }
    err = lt_path_join(path, o->folder, LT_TEACHER_LOGPROBS_FILE);
    err = err == LT_OK ? lt_file_write_atomic(path, text, strlen(text)) : err;
    free(text);
    return err;
}

static lt_err make_key(writing *w) {
    const lt_teacher_logprobs_options *o = w->o;
    uint64_t weights, parts[6], temperature;
    LT_TRY(lt_weights_checksum(&weights, o->teacher, NULL, NULL));
    memcpy(&temperature, &o->temperature, sizeof temperature);
    parts[0] = o->dialogues->hash;
    parts[1] = weights;
    parts[2] = (uint64_t)o->k;
    parts[3] = temperature;
    parts[4] = (uint64_t)o->seq;
    parts[5] = (uint64_t)o->per_part;
    (void)snprintf(w->key, sizeof w->key, "%016" PRIx64,
                   (uint64_t)XXH3_64bits(parts, sizeof parts));
    return LT_OK;
}

static lt_err write_all(writing *w, lt_teacher_logprobs_stats *stats) {
    const lt_teacher_logprobs_options *o = w->o;
    const int64_t n = o->dialogues->n;
    for (int64_t first = 0; first < n; first += o->per_part) {
        const int64_t end = n - first < o->per_part ? n : first + o->per_part;
        char path[LT_PATH_BYTES];
        int64_t places = 0;
        bool done;
        LT_TRY(lt_teacher_logprobs_part(path, o->folder, first / o->per_part));
        LT_TRY(find_part(w, path, &done, &places));
        if (!done) {
            LT_TRY(write_part(w, path, first, end));
            places = (int64_t)w->out[PLACES].n;
        }
        stats->kept += done ? end - first : 0;
        stats->places += places;
    }
    stats->conversations = n;
    return save_header(w);
}

lt_err lt_teacher_logprobs_write(const lt_teacher_logprobs_options *o,
                                 lt_teacher_logprobs_stats *stats) {
    writing w = {.o = o};
    lt_err err = LT_OK;
    *stats = (lt_teacher_logprobs_stats){0};
    LT_TRY_DONE(open_writing(&w));
    LT_TRY_DONE(make_key(&w));
    LT_TRY_DONE(lt_file_make_dirs(o->folder));
    LT_TRY_DONE(write_all(&w, stats));
done:
    close_writing(&w);
    return err;
}
