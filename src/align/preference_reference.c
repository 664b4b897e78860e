/* preference_reference.c: sums of log-probabilities of rows under the reference model
 * (preference.h).
 *
 * The file holds one F64 for each row, and in its metadata the checksum of the weights that gave
 * it. Before the first step the model still has these weights, and a file of other weights is made
 * anew. Later the sums exist in the file alone, so every checkpoint holds the file's checksum. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <xxhash.h>

#include "align/preference.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "model/alloc.h"
#include "model/files/safetensors.h"
#include "train/checkpoint/checksum.h"

#define TENSOR "log_probabilities"
#define MODEL  "model"

typedef struct {
    lt_preference_objective *p;
    lt_preference_set *set;
    lt_training *t;
    const char *name;
    char path[LT_PATH_BYTES];
    char model[17]; /* Checksum of the reference's weights if they are available; else "". */
} reference;

static void print_hash(char hex[17], uint64_t hash) {
    (void)snprintf(hex, 17, "%016" PRIx64, hash);
}

static void sums_hash(const lt_preference_set *set, char hex[17]) {
    print_hash(hex, XXH3_64bits(set->reference, (size_t)set->n_reference * sizeof(double)));
}

/* The adapters start as zeros, so the model without them is the reference at every step. */
static bool is_without_adapters(const lt_training *t) {
    return t->lora != NULL && t->recipe.lora_init[0] == '\0';
}

/* Whether the weights of the reference are available. */
static bool at_hand(const lt_training *t) {
    return t->state.step == 0 || is_without_adapters(t);
}

static lt_err hash_model(reference *r) {
    uint64_t base, adapters = 0;
    if (!at_hand(r->t)) {
        return LT_OK;
    }
    LT_TRY(lt_training_checksum(&base, r->t));
    if (r->t->lora != NULL && !is_without_adapters(r->t)) {
        LT_TRY(lt_weights_checksum(&adapters, r->t->trained, r->t->world, &r->t->shards));
    }
    print_hash(r->model, base ^ (adapters * 3));
    return LT_OK;
}

/* ---- The file ---- */

/* found: the file exists and fits. was: the checksum that it must have, or "". */
static lt_err load(reference *r, const char *was, bool *found) {
    lt_err err = LT_OK;
    lt_safetensors file = {0};
    const lt_safetensor *x;
    const char *model;
    char hex[17];

    *found = false;
    if (!lt_file_exists(r->path)) {
        return LT_OK;
    }
    LT_TRY_DONE(lt_safetensors_open(&file, r->path));
    x = lt_safetensors_find(&file, TENSOR);
    model = lt_safetensors_metadata(&file, MODEL);
    if (x == NULL || x->dtype != LT_F64 || x->n_dims != 1 || x->shape[0] != r->set->n_reference ||
        model == NULL) {
        LT_FAIL_DONE(LT_ERR_FORMAT, "%s does not hold %lld log-probabilities", r->path,
                     (long long)r->set->n_reference);
    }
    if (r->model[0] != '\0' && strcmp(model, r->model) != 0) {
        goto done; /* The file belongs to another model. */
    }
    memcpy(r->set->reference, x->data, x->bytes);
    sums_hash(r->set, hex);
    if (was[0] != '\0' && strcmp(was, hex) != 0) {
        LT_FAIL_DONE(LT_ERR_STATE,
                     "%s: the reference's log-probabilities have changed since the checkpoint: "
                     "their checksum was %s, now %s",
                     r->path, was, hex);
    }
    *found = true;
done:
    lt_safetensors_close(&file);
    return err;
}

static lt_err save(const reference *r) {
    const lt_safetensor_memory memory = {r->set->reference, sizeof(double)};
    const lt_safetensor_out out = {.name = TENSOR,
                                   .dtype = LT_F64,
                                   .n_dims = 1,
                                   .shape = {r->set->n_reference},
                                   .fill = lt_safetensor_fill_memory,
                                   .ctx = &memory};
    json_t *metadata = json_pack("{s:s}", MODEL, r->model);
    lt_err err = metadata == NULL ? lt_error_set(LT_ERR_OOM, "%s", r->path)
                                  : lt_safetensors_write(r->path, &out, 1, metadata, NULL);
    json_decref(metadata);
    return err;
}

/* ---- Computing ---- */

/* Passes are divided between the ranks in turn. */
typedef struct {
    const reference *r;
    lt_step_rows rows;
    lt_progress progress;
} computing;

static lt_err check_stop(const reference *r, int64_t pass) {
    int why;
    LT_TRY(lt_training_ask_stop(r->t, &why));
    if (why != 0) {
        lt_board_stop(lt_training_board(r->t), why);
        LT_FAIL(LT_ERR_INTERRUPTED,
                "stopped while the reference of %s was computed, at %lld of %lld rows; the same "
                "command begins it anew",
                r->name, (long long)(pass * r->set->stride * r->t->micro),
                (long long)r->set->n_reference);
    }
    return LT_OK;
}

/* All ranks have the same number of passes; the last may be without rows on some. */
static lt_err compute_pass(void *of, int64_t pass) {
    computing *c = of;
    const reference *r = c->r;
    const lt_training *t = r->t;
    const int64_t first = (r->set->offset + pass * r->set->stride) * t->micro,
                  left = r->set->n_reference - first;
    const int64_t n = left < 0 ? 0 : left < t->micro ? left : t->micro;
    const float *values;
    int64_t used;
    LT_TRY(check_stop(r, pass));
    for (int64_t i = 0; i < n; i++) {
        c->rows.batch.index[i] = first + i;
    }
    LT_TRY(lt_preference_values(r->p, r->set, r->t, &c->rows.batch, n, &values, &used));
    for (int64_t i = 0; i < n; i++) {
        r->set->reference[first + i] = lt_preference_sum(values + i * used, used);
    }
    if (lt_ranks_lead(&t->ranks)) {
        lt_progress_show(&c->progress, "reference of %s: %lld of %lld rows", r->name,
                         (long long)first, (long long)r->set->n_reference);
    }
    return LT_OK;
}

static lt_err compute(const reference *r) {
    lt_training *t = r->t;
    lt_err err = LT_OK;
    computing c = {.r = r, .progress = {.plain_every_s = t->recipe.plain_every}};
    const double start_s = lt_clock_s();
    const int64_t n = r->set->n_reference, passes = (n + t->micro - 1) / t->micro,
                  dp = r->set->stride;

    memset(r->set->reference, 0, (size_t)n * sizeof(double));
    LT_TRY(lt_training_settle(t));
    LT_TRY_DONE(lt_step_rows_open(&c.rows, t->micro, t->recipe.seq, false));
    err = lt_objective_passes(t, (passes + dp - 1) / dp, compute_pass, &c);
    lt_progress_end(&c.progress);
    LT_TRY_DONE(err);
    LT_TRY_DONE(lt_objective_sum(t, r->set->reference, n));
    lt_log_info("reference of %s: %lld rows in %.1f s", r->name, (long long)n,
                lt_clock_s() - start_s);
done:
    lt_arena_close(&c.rows.arena);
    return err;
}

static lt_err compute_and_save(const reference *r) {
    lt_err err;
    if (!at_hand(r->t)) {
        LT_FAIL(LT_ERR_STATE,
                "%s is missing. It comes from the model before the first step, and %lld steps are "
                "done: restore the file, or begin again with another --out",
                r->path, (long long)r->t->state.step);
    }
    if (is_without_adapters(r->t)) {
        lt_training_use_adapters(r->t, false);
    }
    err = compute(r);
    if (is_without_adapters(r->t)) {
        lt_training_use_adapters(r->t, true);
    }
    LT_TRY(err);
    return lt_ranks_lead(&r->t->ranks) ? save(r) : LT_OK;
}

lt_err lt_preference_reference(lt_preference_objective *p, lt_preference_set *set, lt_training *t,
                               const char *name, const char *was, char hex[17]) {
    reference r = {.p = p, .set = set, .t = t, .name = name};
    const int64_t rows = set->rows.n * set->rows.together;
    char folder[LT_PATH_BYTES], file[64];
    bool found;
    lt_err err;

    set->n_reference = lt_preference_is_kto(p) ? 2 * rows : rows;
    set->reference = malloc((size_t)set->n_reference * sizeof(double));
    if (set->reference == NULL) {
        LT_FAIL(LT_ERR_OOM, "reference of %lld rows", (long long)set->n_reference);
    }
    (void)snprintf(file, sizeof file, "reference-%016" PRIx64 ".safetensors",
                   set->rows.hash ^ (uint64_t)(set->n_reference * p->block));
    LT_TRY(lt_path_join(folder, t->recipe.out, "data"));
    LT_TRY(lt_file_make_dirs(folder));
    LT_TRY(lt_path_join(r.path, folder, file));
    LT_TRY(hash_model(&r));
    err = load(&r, was, &found);
    if (err == LT_ERR_STATE && is_without_adapters(t)) { /* The file can be made again. */
        err = LT_OK;
    }
    LT_TRY(err);
    LT_TRY(lt_objective_all(t, &found)); /* All ranks take the file, or none does. */
    LT_TRY(found ? LT_OK : compute_and_save(&r));
    sums_hash(set, hex);
    return LT_OK;
}
