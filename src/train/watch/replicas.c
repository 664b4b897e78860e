/* replicas.c: see replicas.h. The hashes of a step are queued after its gradients, so whoever waits
 * for its loss has waited for them, too. On a difference the ranks of the set exchange the hashes
 * of all pieces, so that the message can name the tensor. */
#include "train/watch/replicas.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/json.h"
#include "train/run.h"

#define FILE_BYTES_MAX   ((size_t)1 << 22)
#define BUFFERS          (3 + LT_OPTIM_MAX_MOMENTS) /* Master, moments, weights, gradients. */
#define GRADIENTS        (BUFFERS - 1)
#define PERCENT_OF(a, b) ((b) > 0.0 ? 100.0 * (a) / (b) : 0.0)

/* ---- Verdicts -------------------------------------------------------------------------------- */

static int count(const lt_replica_sign *signs, int n, int64_t set, const int64_t *hash) {
    int found = 0;
    for (int i = 0; i < n; i++) {
        found += signs[i].set == set && (hash == NULL || signs[i].hash == *hash);
    }
    return found;
}

/* Do all ranks in the set of this one have its hash? */
static bool is_one(const lt_replica_sign *signs, int n, int i) {
    const int64_t set = signs[i].set;
    return count(signs, n, set, &signs[i].hash) == count(signs, n, set, NULL);
}

/* The hash that more than half of a set has: the one that is left when each cancels a different
 * one (Boyer and Moore), provided that it has the majority. */
static bool majority_of(const lt_replica_sign *signs, int n, int64_t set, int64_t *hash) {
    int left = 0;
    for (int i = 0; i < n; i++) {
        if (signs[i].set == set) {
            *hash = left == 0 ? signs[i].hash : *hash;
            left += signs[i].hash == *hash ? 1 : -1;
        }
    }
    return 2 * count(signs, n, set, hash) > count(signs, n, set, NULL);
}

static bool agree(const lt_replica_sign *signs, int n) {
    for (int i = 0; i < n; i++) {
        if (signs[i].hash != signs[signs[i].set].hash) {
            return false;
        }
    }
    return true;
}

bool lt_replicas_judge(lt_replica_verdict *verdicts, const lt_replica_sign *signs, int n) {
    if (agree(signs, n)) {
        return false;
    }
    for (int i = 0; i < n; i++) {
        int64_t right = 0;
        verdicts[i] = !majority_of(signs, n, signs[i].set, &right) ? LT_REPLICA_UNKNOWN
                      : signs[i].hash == right                     ? LT_REPLICA_RIGHT
                                                                   : LT_REPLICA_WRONG;
    }
    return true;
}

bool lt_replicas_judge_again(lt_replica_verdict *verdicts, const lt_replica_sign *before,
                             const lt_replica_sign *now, int n) {
    bool found = false;
    for (int i = 0; i < n; i++) {
        int again = 0; /* Ranks of the set that came to the same hash both times. */
        for (int k = 0; k < n; k++) {
            again += now[k].set == now[i].set && now[k].hash == before[k].hash;
        }
        if (is_one(before, n, i)) {
            verdicts[i] = LT_REPLICA_RIGHT;
        } else if (again == 0 || again == count(now, n, now[i].set, NULL)) {
            verdicts[i] = LT_REPLICA_UNKNOWN;
        } else {
            verdicts[i] = now[i].hash == before[i].hash ? LT_REPLICA_RIGHT : LT_REPLICA_WRONG;
        }
        found = found || verdicts[i] != LT_REPLICA_RIGHT;
    }
    return found;
}

const char *lt_replicas_list(char out[LT_REPLICAS_LIST], const lt_replica_verdict *verdicts, int n,
                             lt_replica_verdict of) {
    int left = 0;
    size_t used = 0;
    bool first = true;
    out[0] = '\0';
    for (int i = 0; i < n; i++) {
        left += verdicts[i] == of;
    }
    for (int i = 0; i < n && used < LT_REPLICAS_LIST - 16; i++) {
        if (verdicts[i] == of) {
            left--;
            used += (size_t)snprintf(out + used, LT_REPLICAS_LIST - used, "%s%d",
                                     first       ? ""
                                     : left == 0 ? " and "
                                                 : ", ",
                                     i);
            first = false;
        }
    }
    if (left > 0) {
        (void)snprintf(out + used, LT_REPLICAS_LIST - used, ", ...");
    }
    return out;
}

static int number_of(const lt_replica_verdict *verdicts, int n, lt_replica_verdict of) {
    int found = 0;
    for (int i = 0; i < n; i++) {
        found += verdicts[i] == of;
    }
    return found;
}

/* ---- Hashes ---------------------------------------------------------------------------------- */

/* The buffers of the optimiser's share, in the order of the pieces; NULL: this one does not
 * exist. */
static const lt_param_buffer *buffer_of(const lt_training *t, int i) {
    const lt_optimiser *o = &t->optimiser;
    return i == 0                 ? o->share.master
           : i == 1               ? o->share.copy
           : i == GRADIENTS       ? lt_training_gradients(t)
           : i - 2 < o->n_moments ? &o->moments[i - 2]
                                  : NULL;
}

static const char *name_of(const lt_training *t, int buffer) {
    return buffer <= 1           ? "weight"
           : buffer == GRADIENTS ? "summed gradient"
                                 : t->optimiser.moment_names[buffer - 2];
}

/* Add the parameters of a buffer as spans after those already there. */
static int add_spans(const lt_training *t, int buffer, lt_piece_span *spans, int n) {
    const lt_param_table *table = t->optimiser.share.table;
    const lt_param_buffer *b = buffer_of(t, buffer);
    for (int i = 0; b != NULL && i < table->n_params; i++) {
        const lt_param *p = &table->params[i];
        const void *data = lt_param_data(b, p);
        LT_ASSERT(data != NULL || p->local_count == 0);
        spans[n++] = (lt_piece_span){data, (size_t)p->local_count * lt_dtype_bytes(b->dtype)};
    }
    return n;
}

static lt_err open_pieces(lt_training *t) {
    lt_replicas *x = &t->replicas;
    const int n_params = t->optimiser.share.table->n_params;
    lt_piece_span *spans = calloc((size_t)(BUFFERS * n_params), sizeof *spans);
    lt_err err = LT_OK;
    int n = 0, n_buffers = 0;
    if (spans == NULL) {
        LT_FAIL_DONE(LT_ERR_OOM, "guard.replicas: %d parameters", n_params);
    }
    for (int b = 0; b < BUFFERS; b++) {
        const int before = n;
        n = add_spans(t, b, spans, n);
        if (n > before) {
            x->buffers[n_buffers++] = b;
        }
    }
    LT_TRY_DONE(lt_pieces_open(&x->pieces, t->device, lt_training_queue(t), spans, n));
    for (x->n_state = x->pieces.n; x->n_state > 0; x->n_state--) {
        if (x->buffers[x->pieces.span[x->n_state - 1] / n_params] != GRADIENTS) {
            break;
        }
    }
done:
    free(spans);
    return err;
}

/* ---- Open and close -------------------------------------------------------------------------- */

/* The ranks that hold the same state; NULL: no other rank does. */
static lt_group *set_of(const lt_training *t) {
    const lt_mesh *m = &t->world->mesh;
    const bool experts = t->world->shape.ep > 1;
    lt_group *g = t->shards.level > 0 ? (experts ? NULL : t->shards.replicas)
                  : experts           ? m->edp
                                      : m->grad;
    return g != NULL && lt_group_size(g) > 1 ? g : NULL;
}

static lt_err check(const lt_training *t) {
    const lt_recipe *r = &t->recipe;
    if (set_of(t) == NULL) {
        LT_FAIL(LT_ERR_UNSUPPORTED,
                "guard.replicas = %lld: no two ranks hold the same of everything (mesh '%s', "
                "mesh.zero = %lld%s)",
                (long long)r->guard_replicas, r->mesh, (long long)r->zero,
                t->shards.level > 0 ? "; with mesh.shard there are copies" : "");
    }
    return LT_OK;
}

static lt_err allocate(lt_training *t) {
    lt_replicas *x = &t->replicas;
    const size_t ranks = (size_t)lt_group_size(t->world->mesh.world),
                 set = (size_t)lt_group_size(x->set);
    x->hashes_of_set = calloc(set * LT_REPLICAS_AT_ONCE, sizeof *x->hashes_of_set);
    x->signs = calloc(ranks, sizeof *x->signs);
    x->verdicts = calloc(ranks, sizeof *x->verdicts);
    if (x->hashes_of_set == NULL || x->signs == NULL || x->verdicts == NULL) {
        LT_FAIL(LT_ERR_OOM, "guard.replicas: hashes of %zu ranks", ranks);
    }
    return open_pieces(t);
}

static lt_err note_path(char path[LT_PATH_BYTES], const lt_training *t) {
    return lt_path_join(path, t->recipe.out, LT_REPLICAS_FILE);
}

/* Read the hashes that an earlier attempt left, in case this one reaches their step. */
static lt_err read_before(lt_training *t) {
    lt_err err = LT_OK;
    lt_replicas *x = &t->replicas;
    const int n = lt_group_size(t->world->mesh.world);
    char path[LT_PATH_BYTES];
    const char *mesh = "";
    json_t *note = NULL, *signs, *one;
    size_t i;
    LT_TRY(note_path(path, t));
    if (!lt_file_exists(path)) {
        return LT_OK;
    }
    LT_TRY_DONE(lt_json_load(&note, path, FILE_BYTES_MAX));
    LT_TRY_DONE(lt_json_i64(note, "step", &x->before_step, false, path));
    LT_TRY_DONE(lt_json_bool(note, "saving", &x->before_saving, false, path));
    LT_TRY_DONE(lt_json_str(note, "mesh", &mesh, false, path));
    x->before_part = 0;
    x->before_parts = 1;
    LT_TRY_DONE(lt_json_i64(note, "part", &x->before_part, true, path));
    LT_TRY_DONE(lt_json_i64(note, "parts", &x->before_parts, true, path));
    if (x->before_parts < 1 || x->before_part < 0 || x->before_part >= x->before_parts) {
        LT_FAIL_DONE(LT_ERR_FORMAT, "%s: part %" PRId64 " of %" PRId64, path, x->before_part,
                     x->before_parts);
    }
    signs = json_object_get(note, "signs");
    if ((int)json_array_size(signs) != n || strcmp(mesh, t->recipe.mesh) != 0 ||
        x->before_step <= t->state.step) {
        goto done; /* Other ranks, or the steps are not repeated. */
    }
    x->before = calloc((size_t)n, sizeof *x->before);
    if (x->before == NULL) {
        LT_FAIL_DONE(LT_ERR_OOM, "%s", path);
    }
    json_array_foreach(signs, i, one) {
        const char *hash = "";
        LT_TRY_DONE(lt_json_i64(one, "set", &x->before[i].set, false, path));
        LT_TRY_DONE(lt_json_str(one, "hash", &hash, false, path));
        x->before[i].hash = (int64_t)strtoull(hash, NULL, 16);
    }
done:
    json_decref(note);
    return err;
}

lt_err lt_replicas_open(lt_training *t) {
    lt_replicas *x = &t->replicas;
    *x = (lt_replicas){.saved = -1};
    if (t->recipe.guard_replicas == 0) {
        return LT_OK;
    }
    if (!lt_training_has_ranks(t) || lt_group_size(t->world->mesh.grad) == 1) {
        lt_log_warn("guard.replicas has no effect: no two ranks hold the same");
        return LT_OK;
    }
    LT_TRY(check(t));
    x->every = t->recipe.guard_replicas;
    x->parts = t->recipe.guard_replicas_parts;
    x->set = set_of(t);
    x->set_rank = lt_group_ranks(x->set)[0] - t->world->first;
    LT_TRY(allocate(t));
    return read_before(t);
}

void lt_replicas_close(lt_training *t) {
    lt_replicas *x = &t->replicas;
    lt_pieces_close(&x->pieces);
    free(x->hashes_of_set);
    free(x->signs);
    free(x->verdicts);
    free(x->before);
    *x = (lt_replicas){0};
}

/* ---- Which pieces ---------------------------------------------------------------------------- */

/* Is this the step that the earlier attempt left undecided? If so, the same part is compared
 * again. */
static bool is_open(const lt_replicas *x, int64_t step) {
    return x->before != NULL && step == x->before_step && !x->before_saving;
}

/* Choose the part that is compared after this step. */
static void choose_part(lt_replicas *x, int64_t step) {
    const bool open = is_open(x, step);
    x->of_parts = open ? x->before_parts : x->parts;
    x->part = open ? x->before_part : step / x->every % x->parts;
}

/* If there are more parts than pieces, some parts are empty. */
static int first_piece(const lt_replicas *x, int64_t part) {
    return (int)(part * x->pieces.n / x->of_parts);
}

/* ---- After a difference -------------------------------------------------------------------- */

/* Write a note for the next start, which decides. */
static lt_err write_note(const lt_training *t, int64_t step, bool saving) {
    const lt_replicas *x = &t->replicas;
    lt_err err = LT_OK;
    char path[LT_PATH_BYTES], hash[24];
    json_t *signs = json_array(), *note = NULL;
    char *text = NULL;
    for (int i = 0; i < lt_group_size(t->world->mesh.world); i++) {
        (void)snprintf(hash, sizeof hash, "%016" PRIx64, (uint64_t)x->signs[i].hash);
        json_array_append_new(
            signs, json_pack("{s:I, s:s}", "set", (json_int_t)x->signs[i].set, "hash", hash));
    }
    note = json_pack("{s:I, s:b, s:s, s:I, s:I, s:o}", "step", (json_int_t)step, "saving", saving,
                     "mesh", t->recipe.mesh, "part", (json_int_t)x->part, "parts",
                     (json_int_t)x->of_parts, "signs", signs);
    text = note != NULL ? json_dumps(note, JSON_INDENT(1)) : NULL;
    if (text == NULL) {
        LT_FAIL_DONE(LT_ERR_OOM, "hashes of the ranks");
    }
    LT_TRY_DONE(note_path(path, t));
    LT_TRY_DONE(lt_lease_write(&t->lease, path, text, strlen(text)));
done:
    json_decref(note);
    free(text);
    return err;
}

json_t *lt_replicas_json(const lt_replica_verdict *verdicts, int n, lt_replica_verdict of) {
    json_t *ranks = json_array();
    for (int i = 0; i < n; i++) {
        if (verdicts[i] == of) {
            json_array_append_new(ranks, json_integer(i));
        }
    }
    return ranks;
}

static lt_err tell(lt_training *t, int64_t step, bool again) {
    const lt_replicas *x = &t->replicas;
    const int n = lt_group_size(t->world->mesh.world);
    return lt_metrics_put(&t->metrics,
                          json_pack("{s:s, s:I, s:b, s:o, s:o}", "kind", "corrupt", "step",
                                    (json_int_t)step, "replayed", again, "wrong",
                                    lt_replicas_json(x->verdicts, n, LT_REPLICA_WRONG), "unknown",
                                    lt_replicas_json(x->verdicts, n, LT_REPLICA_UNKNOWN)));
}

/* Name the first tensor that differs between the ranks in the set of this one. */
static lt_err name_difference(lt_training *t, char *out, size_t bytes) {
    const lt_replicas *x = &t->replicas;
    const lt_param_table *table = t->optimiser.share.table;
    const int n = x->pieces.end;
    for (int from = x->pieces.first, some; from < n; from += some) {
        some = n - from < LT_REPLICAS_AT_ONCE ? n - from : LT_REPLICAS_AT_ONCE;
        LT_TRY(
            lt_all_gather(x->set, x->hashes_of_set, x->pieces.hashes + from, some, LT_I64, NULL));
        for (int i = 0; i < some; i++) {
            const int span = x->pieces.span[from + i];
            bool same = true;
            for (int k = 1; k < lt_group_size(x->set); k++) {
                same = same && x->hashes_of_set[(int64_t)k * some + i] == x->hashes_of_set[i];
            }
            if (!same) {
                (void)snprintf(out, bytes, "%s of %s",
                               name_of(t, x->buffers[span / table->n_params]),
                               table->params[span % table->n_params].name);
                return LT_OK;
            }
        }
    }
    LT_FAIL(LT_ERR_STATE, "the hashes of all pieces are equal");
}

/* Ranks differ, so the run ends. */
static lt_err end_run(lt_training *t, int64_t step, bool saving) {
    const lt_replicas *x = &t->replicas;
    const int n = lt_group_size(t->world->mesh.world);
    const lt_replica_verdict own = x->verdicts[t->ranks.rank];
    const int n_unknown = number_of(x->verdicts, n, LT_REPLICA_UNKNOWN);
    char wrong[LT_REPLICAS_LIST], unknown[LT_REPLICAS_LIST], what[128];
    if (own == LT_REPLICA_WRONG) {
        lt_board_suspect(lt_training_board(t), step);
    }
    if (is_one(x->signs, n, t->ranks.rank) || name_difference(t, what, sizeof what)) {
        (void)snprintf(what, sizeof what, "some of what they hold");
    }
    /* The first rank that fails ends the world; before that, all must have received the results. */
    if (lt_barrier(t->world->mesh.world) != LT_OK) {
        lt_log_debug("%s", lt_error_message());
    }
    if (lt_ranks_lead(&t->ranks)) {
        LT_TRY(n_unknown > 0 ? write_note(t, step, saving) : LT_OK);
        LT_TRY(tell(t, step, false));
    }
    (void)lt_replicas_list(wrong, x->verdicts, n, LT_REPLICA_WRONG);
    (void)lt_replicas_list(unknown, x->verdicts, n, LT_REPLICA_UNKNOWN);
    if (own == LT_REPLICA_WRONG) {
        LT_FAIL(
            LT_ERR_CORRUPT,
            "step %lld: rank %d holds other bits than the ranks that should hold the same (%s): "
            "memory or arithmetic has failed there without an error; nothing of it was saved",
            (long long)step, t->ranks.rank, what);
    }
    if (own == LT_REPLICA_UNKNOWN) {
        LT_FAIL(LT_ERR_CORRUPT,
                "step %lld: ranks %s should hold the same bits and do not (%s); the next start "
                "repeats these steps and says which rank was wrong",
                (long long)step, unknown, what);
    }
    LT_FAIL(LT_ERR_REMOTE,
            "step %lld: rank %s holds other bits than the ranks that should hold the same",
            (long long)step, wrong[0] != '\0' ? wrong : unknown);
}

/* The step at which ranks differed has been repeated: decide which of them was wrong. */
static lt_err decide_again(lt_training *t, int64_t step) {
    lt_replicas *x = &t->replicas;
    const int n = lt_group_size(t->world->mesh.world);
    char path[LT_PATH_BYTES], ranks[LT_REPLICAS_LIST];
    (void)lt_replicas_judge_again(x->verdicts, x->before, x->signs, n);
    free(x->before);
    x->before = NULL;
    if (x->verdicts[t->ranks.rank] == LT_REPLICA_WRONG) {
        lt_board_suspect(lt_training_board(t), step);
    }
    if (!lt_ranks_lead(&t->ranks)) {
        return LT_OK;
    }
    (void)lt_replicas_list(ranks, x->verdicts, n, LT_REPLICA_WRONG);
    if (ranks[0] != '\0') {
        lt_log_warn("step %lld was made again: it was rank %s that held other bits before",
                    (long long)step, ranks);
    } else {
        lt_log_warn("step %lld was made again: it cannot be told which of ranks %s was wrong",
                    (long long)step, lt_replicas_list(ranks, x->verdicts, n, LT_REPLICA_UNKNOWN));
    }
    LT_TRY(tell(t, step, true));
    LT_TRY(lt_lease_check(&t->lease));
    LT_TRY(note_path(path, t));
    (void)unlink(path);
    return LT_OK;
}

/* ---- Comparing ------------------------------------------------------------------------------- */

/* Compare the hashes, which have arrived. */
static lt_err compare(lt_training *t, int64_t step, bool saving) {
    lt_replicas *x = &t->replicas;
    const double start_s = lt_clock_s();
    const lt_replica_sign own = {.set = x->set_rank, .hash = lt_pieces_sum(&x->pieces)};
    double hashed_s;
    LT_TRY(lt_all_gather(t->world->mesh.world, x->signs, &own, sizeof own / sizeof(int64_t), LT_I64,
                         NULL));
    LT_TRY(lt_pieces_seconds(&x->pieces, &hashed_s));
    x->n_compared++;
    x->spent_s += hashed_s + lt_clock_s() - start_s;
    if (x->before != NULL && step == x->before_step && saving == x->before_saving) {
        LT_TRY(decide_again(t, step));
    }
    return lt_replicas_judge(x->verdicts, x->signs, lt_group_size(t->world->mesh.world))
               ? end_run(t, step, saving)
               : LT_OK;
}

static bool is_due(const lt_replicas *x, int64_t step) {
    return x->every > 0 && (step % x->every == 0 || is_open(x, step));
}

lt_err lt_replicas_hash_gradients(lt_training *t) {
    lt_replicas *x = &t->replicas;
    const int64_t step = t->state.step + 1;
    if (!is_due(x, step)) {
        return LT_OK;
    }
    choose_part(x, step);
    return lt_pieces_queue(&x->pieces, first_piece(x, x->part), first_piece(x, x->part + 1));
}

lt_err lt_replicas_compare_gradients(lt_training *t) {
    const int64_t step = t->state.step + 1;
    return is_due(&t->replicas, step) ? compare(t, step, false) : LT_OK;
}

lt_err lt_replicas_compare_state(lt_training *t) {
    lt_replicas *x = &t->replicas;
    if (x->every == 0 || x->saved == t->state.step) {
        return LT_OK;
    }
    x->saved = t->state.step;
    x->part = 0;
    x->of_parts = 1;
    LT_TRY(lt_pieces_queue(&x->pieces, 0, x->n_state));
    LT_TRY(t->device->backend->sync(lt_training_queue(t)));
    return compare(t, t->state.step, true);
}

lt_err lt_replicas_tell(lt_training *t) {
    const lt_replicas *x = &t->replicas;
    const double run_s = lt_clock_s() - t->start_s;
    if (x->every == 0 || !lt_ranks_lead(&t->ranks)) {
        return LT_OK;
    }
    lt_log_info("the state of the ranks was compared %lld times, in %.3f s: %.2f %% of the run",
                (long long)x->n_compared, x->spent_s, PERCENT_OF(x->spent_s, run_s));
    return lt_metrics_put(&t->metrics, json_pack("{s:s, s:I, s:I, s:f}", "kind", "replicas", "step",
                                                 (json_int_t)t->state.step, "compared",
                                                 (json_int_t)x->n_compared, "seconds", x->spent_s));
}
