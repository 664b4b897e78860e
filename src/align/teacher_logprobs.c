/* teacher_logprobs.c: reads the files of teacher_logprobs.h. Tensors in safetensors files are not
 * aligned, so numbers are copied out of them. */
#include "align/teacher_logprobs.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/json.h"

#define HEADER_BYTES ((size_t)1 << 20)

static int32_t number_at(const lt_safetensor *t, int64_t i) {
    int32_t x;
    memcpy(&x, t->data + (size_t)i * sizeof x, sizeof x);
    return x;
}

lt_err lt_teacher_logprobs_part(char out[LT_PATH_BYTES], const char *folder, int64_t i) {
    char name[64];
    (void)snprintf(name, sizeof name, "part-%05" PRId64 ".safetensors", i);
    return lt_path_join(out, folder, name);
}

/* Find a tensor of `rows` rows (-1: any number), of k columns (0: it has one dimension). */
static lt_err find(const lt_safetensor **out, const lt_teacher_part *p, const char *name,
                   lt_dtype dtype, int64_t rows, int64_t k) {
    const lt_safetensor *t = lt_safetensors_find(&p->file, name);
    const bool fits = t != NULL && t->dtype == dtype && t->n_dims == (k > 0 ? 2 : 1) &&
                      (rows < 0 || t->shape[0] == rows) && (k == 0 || t->shape[1] == k);
    if (!fits) {
        LT_FAIL(LT_ERR_FORMAT,
                "tensor '%s' is missing, or has another type or shape than it must have", name);
    }
    *out = t;
    return LT_OK;
}

/* Numbers that rise from 0 to `last`. */
static lt_err check_starts(const lt_safetensor *t, int64_t last) {
    const int64_t n = t->shape[0];
    bool rises = n > 0 && number_at(t, 0) == 0 && number_at(t, n - 1) == last;
    for (int64_t i = 1; rises && i < n; i++) {
        rises = number_at(t, i) >= number_at(t, i - 1);
    }
    if (!rises) {
        LT_FAIL(LT_ERR_FORMAT, "'%s' does not rise from 0 to %" PRId64, t->name, last);
    }
    return LT_OK;
}

/* The ids of each place are in ascending order and in the vocabulary, and then -1. */
static lt_err check_ids(const lt_safetensor *t, int64_t vocab_size) {
    for (int64_t i = 0; i < t->shape[0] * t->shape[1]; i++) {
        const int32_t id = number_at(t, i), before = i % t->shape[1] > 0 ? number_at(t, i - 1) : -1;
        const bool first = i % t->shape[1] == 0, ends = id == -1 && !first;
        if (!ends && !(id > before && id < vocab_size && (first || before >= 0))) {
            LT_FAIL(LT_ERR_FORMAT,
                    "'ids' of place %" PRId64 " are not rising ids below %" PRId64
                    ", followed by -1",
                    i / t->shape[1], vocab_size);
        }
    }
    return LT_OK;
}

static lt_err check_part(lt_teacher_part *p, const lt_teacher_logprobs *w) {
    LT_TRY(find(&p->tokens, p, "tokens", LT_I32, -1, 0));
    LT_TRY(find(&p->places, p, "places", LT_I32, -1, 0));
    LT_TRY(find(&p->starts, p, "starts", LT_I32, p->n + 1, 0));
    LT_TRY(find(&p->first, p, "first", LT_I32, p->n + 1, 0));
    LT_TRY(find(&p->ids, p, "ids", LT_I32, p->places->shape[0], w->k));
    LT_TRY(find(&p->logprobs, p, "logprobs", LT_F32, p->places->shape[0], w->k));
    LT_TRY(check_starts(p->starts, p->tokens->shape[0]));
    LT_TRY(check_starts(p->first, p->places->shape[0]));
    return check_ids(p->ids, w->vocab_size);
}

static lt_err open_part(lt_teacher_logprobs *w, int64_t i) {
    lt_teacher_part *p = &w->parts[i];
    char path[LT_PATH_BYTES];
    const char *key;
    lt_err err;
    LT_TRY(lt_teacher_logprobs_part(path, w->folder, i));
    LT_TRY(lt_safetensors_open(&p->file, path));
    p->n = w->n - i * w->per_part < w->per_part ? w->n - i * w->per_part : w->per_part;
    key = lt_safetensors_metadata(&p->file, "key");
    if (key == NULL || strcmp(key, w->key) != 0) {
        LT_FAIL(LT_ERR_FORMAT, "%s does not belong to %s of its folder", path,
                LT_TEACHER_LOGPROBS_FILE);
    }
    err = check_part(p, w);
    return err == LT_OK ? LT_OK : lt_error_prefix(err, "%s", path);
}

static lt_err read_header(lt_teacher_logprobs *w, const json_t *header, const char *path) {
    const char *format, *key;
    LT_TRY(lt_json_str(header, "format", &format, false, path));
    if (strcmp(format, LT_TEACHER_LOGPROBS_FORMAT) != 0) {
        LT_FAIL(LT_ERR_FORMAT, "%s: format '%s', this version reads %s", path, format,
                LT_TEACHER_LOGPROBS_FORMAT);
    }
    LT_TRY(lt_json_str(header, "key", &key, false, path));
    LT_TRY(lt_json_i64(header, "conversations", &w->n, false, path));
    LT_TRY(lt_json_i64(header, "per_part", &w->per_part, false, path));
    LT_TRY(lt_json_i64(header, "top_k", &w->k, false, path));
    LT_TRY(lt_json_i64(header, "vocab_size", &w->vocab_size, false, path));
    LT_TRY(lt_json_f64(header, "temperature", &w->temperature, false, path));
    (void)snprintf(w->key, sizeof w->key, "%s", key);
    if (w->n < 1 || w->n > INT32_MAX || w->per_part < 1 || w->k < 1 ||
        w->k > LT_TEACHER_LOGPROBS_MOST || w->k > w->vocab_size || !(w->temperature > 0.0)) {
        LT_FAIL(LT_ERR_FORMAT,
                "%s: %" PRId64 " conversations, %" PRId64 " a part, %" PRId64 " tokens of %" PRId64
                ", temperature %g: out of range",
                path, w->n, w->per_part, w->k, w->vocab_size, w->temperature);
    }
    return LT_OK;
}

lt_err lt_teacher_logprobs_open(lt_teacher_logprobs *out, const char *folder) {
    char path[LT_PATH_BYTES];
    json_t *header = NULL;
    lt_err err;
    *out = (lt_teacher_logprobs){.n = 0};
    (void)snprintf(out->folder, sizeof out->folder, "%s", folder);
    LT_TRY(lt_path_join(path, folder, LT_TEACHER_LOGPROBS_FILE));
    if (!lt_file_exists(path)) {
        LT_FAIL(LT_ERR_NOT_FOUND,
                "%s is not there: `lateen align logprobs --out %s` writes it when it is done", path,
                folder);
    }
    LT_TRY(lt_json_load(&header, path, HEADER_BYTES));
    err = read_header(out, header, path);
    json_decref(header);
    LT_TRY(err);
    out->n_parts = (out->n + out->per_part - 1) / out->per_part;
    out->parts = calloc((size_t)out->n_parts, sizeof *out->parts);
    if (out->parts == NULL) {
        LT_FAIL(LT_ERR_OOM, "%" PRId64 " parts of %s", out->n_parts, folder);
    }
    for (int64_t i = 0; i < out->n_parts; i++) {
        LT_TRY(open_part(out, i));
    }
    return LT_OK;
}

void lt_teacher_logprobs_close(lt_teacher_logprobs *w) {
    for (int64_t i = 0; i < w->n_parts && w->parts != NULL; i++) {
        lt_safetensors_close(&w->parts[i].file);
    }
    free(w->parts);
    *w = (lt_teacher_logprobs){0};
}

/* One conversation against its part: i is numbered within that. */
static lt_err match_one(const lt_teacher_part *p, int64_t i, const int32_t *ids, const bool *learnt,
                        int64_t n) {
    const int64_t start = number_at(p->starts, i), has = number_at(p->starts, i + 1) - start;
    int64_t place = number_at(p->first, i);
    const int64_t end = number_at(p->first, i + 1);
    for (int64_t t = 0; t < n; t++) {
        if (t >= has || number_at(p->tokens, start + t) != ids[t]) {
            LT_FAIL(LT_ERR_FORMAT,
                    "token %" PRId64 " is %d, and %d there: another tokenizer, template or file", t,
                    ids[t], t < has ? number_at(p->tokens, start + t) : -1);
        }
        if (t > 0 && learnt[t] && (place == end || number_at(p->places, place++) != t)) {
            LT_FAIL(LT_ERR_FORMAT, "token %" PRId64 " is learnt, and has no probabilities there",
                    t);
        }
    }
    return LT_OK;
}

lt_err lt_teacher_logprobs_match(const lt_teacher_logprobs *w, const lt_dialogues *d,
                                 int64_t longest, int64_t id_end) {
    int32_t *ids = malloc((size_t)longest * sizeof *ids);
    bool *learnt = malloc((size_t)longest * sizeof *learnt);
    lt_err err = LT_OK;
    if (ids == NULL || learnt == NULL) {
        LT_FAIL_DONE(LT_ERR_OOM, "a conversation of %" PRId64 " tokens", longest);
    }
    if (w->n != d->n) {
        LT_FAIL_DONE(LT_ERR_FORMAT, "%s has %" PRId64 " conversations, the data %" PRId64,
                     w->folder, w->n, d->n);
    }
    for (int64_t i = 0; i < d->n; i++) {
        int64_t n;
        LT_TRY_DONE(lt_dialogues_read(d, i, longest, id_end, ids, learnt, &n));
        err = match_one(&w->parts[i / w->per_part], i % w->per_part, ids, learnt, n);
        if (err != LT_OK) {
            err = lt_error_prefix(err, "conversation %" PRId64 " differs from that of %s", i,
                                  w->folder);
            goto done;
        }
    }
done:
    free(ids);
    free(learnt);
    return err;
}

void lt_teacher_logprobs_row(const lt_teacher_logprobs *w, int64_t i, int64_t seq, int32_t *ids,
                             float *logp) {
    const lt_teacher_part *p = &w->parts[i / w->per_part];
    const int64_t own = i % w->per_part, end = number_at(p->first, own + 1);
    const size_t bytes = (size_t)w->k * sizeof *ids;
    for (int64_t place = number_at(p->first, own); place < end; place++) {
        const int64_t at = number_at(p->places, place) - 1;
        if (at >= 0 && at < seq) {
            memcpy(ids + at * w->k, p->ids->data + (size_t)place * bytes, bytes);
            memcpy(logp + at * w->k, p->logprobs->data + (size_t)place * bytes, bytes);
        }
    }
}
