/* guard.replicas: bits are flipped in what one of several ranks holds, and in what it computes.
 * The ranks are threads, each with a GPU if LATEEN_TEST_DEVICE=cuda (three GPUs; tests of meshes
 * need four); the flip happens at an element and a bit chosen by number. The tests check which
 * flips are found, which rank is named, what the next start decides, and that it ends with the
 * bits of a run without the flip. `test_replicas N [FIRST [RANKS]]` instead prints the recall
 * over N flips by place and bit, from number FIRST on, on three ranks or two. */
#include "unit/train/disturbed.h"

#include "base/rng.h"
#include "train/watch/replicas.h"
#include "unit/device.h"

#define FLIP_STEP 5

/* Where a bit flips, on one rank: name, and whether a comparison sees it. BF16_WEIGHT: the
 * weights that passes use; GRADIENT: after the sum over ranks; TOKEN: before it (the rank
 * computes wrongly); SAVED: between the last step and the checkpoint. */
#define PLACES(X)                                                                                  \
    X(WEIGHT, "master weight", true)                                                               \
    X(M, "first moment", true)                                                                     \
    X(V, "second moment", true)                                                                    \
    X(BF16_WEIGHT, "BF16 weight", true)                                                            \
    X(GRADIENT, "summed gradient", true)                                                           \
    X(SAVED, "state before a save", true)                                                          \
    X(TOKEN, "before the sum", false)
typedef enum {
#define PLACE(id, name, found) PLACE_##id,
    PLACES(PLACE)
#undef PLACE
        N_PLACES
} place;
static const struct {
    const char *name;
    bool found;
} places[N_PLACES] = {
#define PLACE(id, name, found) {name, found},
    PLACES(PLACE)
#undef PLACE
};

typedef struct {
    place where;
    int rank, bit;
    uint64_t element; /* Modulo the number of elements. */
} flip;

/* ---- The disturbance ------------------------------------------------------------------------- */

/* For the rank that this thread is. */
static _Thread_local struct {
    lt_training *t;
    const flip *flip;
    lt_err (*next)(void *of, int64_t n, lt_row_batch *out);
} own;

/* In a number in the device's memory. */
static void flip_bit(unsigned char *at, size_t bytes, size_t bit) {
    const lt_backend *be = own.t->device->backend;
    lt_queue *q = lt_training_queue(own.t);
    unsigned char number[8];
    must(be->download(q, number, at, bytes), "a number of the device");
    must(be->sync(q), "a number of the device");
    number[bit / 8] ^= (unsigned char)(1u << bit % 8);
    must(be->upload(q, at, number, bytes), "a number of the device");
    must(be->sync(q), "a number of the device");
}

static void flip_in(const lt_param_buffer *b, const flip *f) {
    const lt_param_table *table = own.t->optimiser.share.table;
    const size_t bytes = lt_dtype_bytes(b->dtype);
    int64_t at, n = 0;
    for (int i = 0; i < table->n_params; i++) {
        n += table->params[i].local_count;
    }
    at = (int64_t)(f->element % (uint64_t)n);
    for (int i = 0; i < table->n_params; i++) {
        const lt_param *p = &table->params[i];
        if (at < p->local_count) {
            const size_t bit = (size_t)f->bit % (8 * bytes);
            flip_bit((unsigned char *)lt_param_data(b, p) + (size_t)at * bytes, bytes, bit);
            return;
        }
        at -= p->local_count;
    }
    fail_msg("no element %llu", (unsigned long long)f->element);
}

static const lt_param_buffer *buffer_of(place where) {
    const lt_optimiser *o = &own.t->optimiser;
    return where == PLACE_M             ? &o->moments[0]
           : where == PLACE_V           ? &o->moments[1]
           : where == PLACE_BF16_WEIGHT ? o->share.copy
           : where == PLACE_GRADIENT    ? lt_training_gradients(own.t)
                                        : o->share.master;
}

/* The rows of the step after FLIP_STEP are drawn between the sum of its gradients and the
 * comparison; those of FLIP_STEP itself a step earlier. */
static lt_err next_rows(void *of, int64_t n, lt_row_batch *out) {
    const lt_err err = own.next(of, n, out);
    const int64_t step = own.t->state.step + 1;
    if (own.flip->where == PLACE_GRADIENT && step == FLIP_STEP) {
        flip_in(lt_training_gradients(own.t), own.flip);
    }
    if (own.flip->where == PLACE_TOKEN && step == FLIP_STEP - 1) {
        ((int32_t *)(uintptr_t)out->ids.tokens)[own.flip->element % (uint64_t)out->ids.seq] ^= 1;
    }
    return err;
}

static lt_err steps(lt_training *t, const run *r) {
    const flip *f = r->disturbance;
    const bool here = f != NULL && f->rank == t->ranks.rank;
    if (here) {
        own.t = t;
        own.flip = f;
        own.next = t->source.next;
        t->source.next = next_rows;
    }
    while (t->state.step < t->recipe.steps) {
        lt_step_outcome o;
        if (here && t->state.step == FLIP_STEP - 1 && f->where <= PLACE_BF16_WEIGHT) {
            flip_in(buffer_of(f->where), f);
        }
        LT_TRY(lt_training_step(t, &o));
    }
    LT_TRY(lt_training_settle(t));
    if (here && f->where == PLACE_SAVED) {
        flip_in(buffer_of(PLACE_WEIGHT), f);
    }
    LT_TRY(lt_training_save(t));
    return lt_replicas_tell(t);
}

/* Ranks in runs whose flips are counted. With two, it is unknown which one is wrong. */
static int ranks = 3;

static lt_err attempt(run *r, const char *out, const char *options, const char *mesh, int n,
                      const flip *f) {
    *r = (run){.steps = steps, .disturbance = f};
    return run_disturbed(r, out, options, mesh, n);
}

/* ---- Verdicts -------------------------------------------------------------------------------- */

enum { R = LT_REPLICA_RIGHT, W = LT_REPLICA_WRONG, U = LT_REPLICA_UNKNOWN };

static void verdicts_on_ranks(void **state) {
    static const struct {
        int n;
        int64_t sets[6], hashes[6];
        int want[6]; /* All RIGHT: nothing was found. */
    } rows[] = {
        {3, {0, 0, 0}, {7, 7, 7}, {R, R, R}},
        {3, {0, 0, 0}, {7, 8, 7}, {R, W, R}},
        {3, {0, 0, 0}, {8, 7, 7}, {W, R, R}}, /* The majority is right, not the first rank. */
        {3, {0, 0, 0}, {7, 8, 9}, {U, U, U}},
        {2, {0, 0}, {7, 8}, {U, U}},
        {4, {0, 0, 0, 0}, {7, 7, 8, 8}, {U, U, U, U}}, /* Half of them are no majority. */
        {5, {0, 0, 0, 0, 0}, {1, 7, 2, 7, 7}, {W, R, W, R, R}},
        /* Different sets may differ. */
        {6, {0, 1, 0, 1, 0, 1}, {7, 1, 7, 1, 7, 1}, {R, R, R, R, R, R}},
        {6, {0, 1, 0, 1, 0, 1}, {7, 1, 8, 1, 7, 1}, {R, R, W, R, R, R}},
        {4, {0, 1, 0, 1}, {7, 1, 8, 1}, {U, R, U, R}},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        lt_replica_sign signs[6];
        lt_replica_verdict got[6] = {0};
        bool differ = false;
        for (int k = 0; k < rows[i].n; k++) {
            signs[k] = (lt_replica_sign){rows[i].sets[k], rows[i].hashes[k]};
            differ = differ || rows[i].want[k] != R;
        }
        assert_int_equal(lt_replicas_judge(got, signs, rows[i].n), differ);
        for (int k = 0; differ && k < rows[i].n; k++) {
            assert_int_equal((int)got[k], rows[i].want[k]);
        }
    }
}

static void verdicts_of_a_replay(void **state) {
    static const struct {
        int64_t before[3], now[3];
        int want[3];
    } rows[] = {
        {{7, 8, 1}, {7, 7, 1}, {R, W, R}}, /* The last rank is a set of its own. */
        {{8, 7, 1}, {7, 7, 1}, {W, R, R}},
        {{7, 8, 1}, {7, 9, 1}, {R, W, R}}, /* Wrong again, in another way. */
        {{7, 8, 1}, {7, 8, 1}, {U, U, R}}, /* The same again: it cannot be decided. */
        {{7, 8, 1}, {9, 9, 1}, {U, U, R}}, /* Neither hash is reproduced. */
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        lt_replica_sign before[3], now[3];
        lt_replica_verdict got[3];
        for (int k = 0; k < 3; k++) {
            before[k] = (lt_replica_sign){k < 2 ? 0 : 2, rows[i].before[k]};
            now[k] = (lt_replica_sign){k < 2 ? 0 : 2, rows[i].now[k]};
        }
        assert_true(lt_replicas_judge_again(got, before, now, 3));
        for (int k = 0; k < 3; k++) {
            assert_int_equal((int)got[k], rows[i].want[k]);
        }
    }
}

/* ---- Flips ----------------------------------------------------------------------------------- */

static const char *options_of(place where) {
    return where == PLACE_BF16_WEIGHT ? "guard.replicas=1 model.dtype=bf16" : "guard.replicas=1";
}

/* Is the flip found at the step at which it happens, and the rank named? *right: everything is as
 * it should be. */
static bool is_found(const flip *f, bool *right) {
    run r;
    const lt_err err = attempt(&r, "flips", options_of(f->where), ranks == 2 ? "dp=2" : "dp=3",
                               ranks, f);
    const int64_t ends_at = f->where == PLACE_SAVED ? 8 : FLIP_STEP - 1;
    *right = (err == LT_OK) != places[f->where].found;
    for (int k = 0; err != LT_OK && k < ranks; k++) {
        *right = *right && r.steps_made[k] == ends_at &&
                 r.ends[k] == (ranks == 2 || k == f->rank ? LT_ERR_CORRUPT : LT_ERR_REMOTE);
    }
    if (!*right) {
        print_message("%s, rank %d, bit %d: %s | %s | %s\n", places[f->where].name, f->rank, f->bit,
                      r.said[0], r.said[1], ranks > 2 ? r.said[2] : "");
    }
    forget("flips");
    return err != LT_OK;
}

static flip draw(place where, uint64_t number) {
    lt_rng rng = {.seed = 29, .stream = number};
    return (flip){.where = where,
                  .rank = (int)(number % (uint64_t)ranks),
                  .bit = (int)(number % 32),
                  .element = lt_rng_u64(&rng)};
}

static void flips_are_found(void **state) {
    (void)state;
    for (int where = 0; where < N_PLACES; where += core_only() ? 3 : 1) {
        const flip f = draw((place)where, (uint64_t)where * 5 + 1);
        bool right;
        (void)is_found(&f, &right);
        assert_true(right);
    }
}

/* The message says what differs, and the run folder which ranks. */
static void difference_is_named(void **state) {
    const flip f = {.where = PLACE_V, .rank = 1, .bit = 3, .element = 40};
    run r;
    json_t *lines;
    (void)state;
    assert_int_not_equal(attempt(&r, "named", "guard.replicas=1", "dp=3", 3, &f), LT_OK);
    assert_non_null(strstr(r.said[1], "step 5: rank 1 holds other bits"));
    assert_non_null(strstr(r.said[0], "step 5: rank 1 holds other bits"));
    lines = run_lines("named", "corrupt");
    assert_int_equal(json_array_size(lines), 1);
    assert_true(json_is_false(json_object_get(json_array_get(lines, 0), "replayed")));
    assert_int_equal(
        json_integer_value(json_array_get(json_object_get(json_array_get(lines, 0), "wrong"), 0)),
        1);
    json_decref(lines);
    assert_false(run_has("named", LT_REPLICAS_FILE));
}

/* Two ranks: the next start repeats the steps, names the rank, and ends as if nothing had
 * happened. A flip before a save is found before the checkpoint, which then does not exist. A
 * weight that flips before a step may also change the sum of the gradients, by rounding, so that
 * neither rank's bits are reproduced: that depends on the instruction set, and is not among these
 * places. */
static void next_start_decides(void **state) {
    static const place where[] = {PLACE_GRADIENT, PLACE_M, PLACE_SAVED};
    run whole, r;
    (void)state;
    must(attempt(&whole, "whole", "", "dp=2", 2, NULL), "undisturbed");
    for (int i = core_only() ? 2 : 0; i < 3; i++) {
        flip f = draw(where[i], (uint64_t)i);
        json_t *lines, *last;
        f.rank = i % 2;
        assert_int_not_equal(attempt(&r, "two", "guard.replicas=1", "dp=2", 2, &f), LT_OK);
        assert_int_equal(r.ends[0], LT_ERR_CORRUPT);
        assert_int_equal(r.ends[1], LT_ERR_CORRUPT);
        assert_true(run_has("two", LT_REPLICAS_FILE));
        run_holds("two", "");
        /* Now every third step is compared, and the one that is undecided. */
        must(attempt(&r, "two", "guard.replicas=3", "dp=2", 2, NULL), "the next start");
        assert_true(r.hash == whole.hash);
        assert_false(run_has("two", LT_REPLICAS_FILE));
        lines = run_lines("two", "corrupt");
        last = json_array_get(lines, json_array_size(lines) - 1);
        assert_true(json_is_true(json_object_get(last, "replayed")));
        assert_int_equal(json_integer_value(json_array_get(json_object_get(last, "wrong"), 0)),
                         f.rank);
        json_decref(lines);
        forget("two");
    }
}

/* One of three parts of the state is compared at each step: a flip is found in one of three
 * steps, later or earlier depending on its place, and the rank is named. Before a save everything
 * is compared. */
static void parts_are_compared_in_turn(void **state) {
    int64_t first = 9, last = 0;
    (void)state;
    for (int i = 0; i < (core_only() ? 1 : 6); i++) {
        const flip f = {
            .where = (place)(i % 3), .rank = i % 3, .bit = 9 + i, .element = 700 * (uint64_t)i};
        run r;
        assert_int_not_equal(
            attempt(&r, "parts", "guard.replicas=1 guard.replicas_parts=3", "dp=3", 3, &f), LT_OK);
        for (int k = 0; k < 3; k++) {
            const lt_err end = k == f.rank ? LT_ERR_CORRUPT : LT_ERR_REMOTE;
            assert_int_equal(r.ends[k], end);
            assert_in_range(r.steps_made[k], FLIP_STEP - 1, FLIP_STEP + 1);
        }
        first = r.steps_made[0] < first ? r.steps_made[0] : first;
        last = r.steps_made[0] > last ? r.steps_made[0] : last;
        forget("parts");
    }
    if (core_only()) {
        return;
    }
    assert_true(first < last);
    const flip late = {.where = PLACE_SAVED, .rank = 2, .bit = 4, .element = 11};
    run r;
    assert_int_not_equal(
        attempt(&r, "parts", "guard.replicas=1 guard.replicas_parts=100", "dp=3", 3, &late), LT_OK);
    assert_int_equal(r.ends[2], LT_ERR_CORRUPT);
    run_holds("parts", "");
    forget("parts");
}

/* Two ranks whose parts differed compare the same part again, whatever the next start would
 * compare. */
static void next_start_decides_on_a_part(void **state) {
    const flip f = {.where = PLACE_GRADIENT, .rank = 1, .bit = 3, .element = 40};
    run whole, r;
    json_t *lines, *last;
    (void)state;
    if (core_only()) {
        skip();
    }
    must(attempt(&whole, "whole-of-parts", "", "dp=2", 2, NULL), "undisturbed");
    assert_int_not_equal(
        attempt(&r, "part", "guard.replicas=1 guard.replicas_parts=2", "dp=2", 2, &f), LT_OK);
    assert_true(run_has("part", LT_REPLICAS_FILE));
    must(attempt(&r, "part", "guard.replicas=3 guard.replicas_parts=5", "dp=2", 2, NULL), "again");
    assert_true(r.hash == whole.hash);
    lines = run_lines("part", "corrupt");
    last = json_array_get(lines, json_array_size(lines) - 1);
    assert_true(json_is_true(json_object_get(last, "replayed")));
    assert_int_equal(json_integer_value(json_array_get(json_object_get(last, "wrong"), 0)), 1);
    json_decref(lines);
    forget("part");
}

/* If the part differs in the same way again, the start after that compares it once more. */
static void parts_stay_until_it_is_decided(void **state) {
    const flip f = {.where = PLACE_GRADIENT, .rank = 1, .bit = 3, .element = 40};
    run r;
    json_t *lines, *last;
    (void)state;
    if (core_only()) {
        skip();
    }
    assert_int_not_equal(
        attempt(&r, "twice", "guard.replicas=1 guard.replicas_parts=2", "dp=2", 2, &f), LT_OK);
    assert_int_not_equal(
        attempt(&r, "twice", "guard.replicas=3 guard.replicas_parts=5", "dp=2", 2, &f), LT_OK);
    must(attempt(&r, "twice", "guard.replicas=3 guard.replicas_parts=5", "dp=2", 2, NULL), "last");
    lines = run_lines("twice", "corrupt");
    last = json_array_get(lines, json_array_size(lines) - 1);
    assert_true(json_is_true(json_object_get(last, "replayed")));
    assert_int_equal(json_integer_value(json_array_get(json_object_get(last, "wrong"), 0)), 1);
    json_decref(lines);
    forget("twice");
}

/* What is compared when: steps that are due, and each save; nothing by default. */
static void compared_at_the_requested_steps(void **state) {
    run r;
    json_t *lines;
    (void)state;
    must(attempt(&r, "often", "guard.replicas=3", "dp=2", 2, NULL), "often");
    lines = run_lines("often", "replicas");
    /* Steps 3 and 6, and the checkpoint. */
    assert_int_equal(json_integer_value(json_object_get(json_array_get(lines, 0), "compared")), 3);
    json_decref(lines);
    must(attempt(&r, "never", "", "dp=2", 2, NULL), "never");
    lines = run_lines("never", "replicas");
    assert_int_equal(json_array_size(lines), 0);
    json_decref(lines);
}

/* Meshes whose ranks hold copies, of everything or of slices; and those that hold none. */
static void meshes_with_and_without_copies(void **state) {
    static const struct {
        const char *options, *mesh;
        int n;
        const char *refused;
    } rows[] = {
        {"guard.replicas=1", "dp=2,tp=2", 4, NULL},
        {"guard.replicas=1", "pp=2,dp=2", 4, "no"},
        {"guard.replicas=1 mesh.zero=1 mesh.shard=2", "dp=4", 4, NULL},
        {"guard.replicas=1 mesh.zero=3 mesh.shard=2", "dp=4", 4, NULL},
        {"guard.replicas=1", "cp=2", 2, NULL},
        {"guard.replicas=1 mesh.zero=1", "dp=2", 2, "no two ranks hold the same of everything"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows && !core_only(); i++) {
        const flip f = {.where = PLACE_M, .rank = 1, .bit = 5, .element = 3};
        const char *refused = rows[i].refused != NULL && rows[i].refused[2] != '\0'
                                  ? rows[i].refused
                                  : NULL;
        char all[256];
        run r;
        lt_err err;
        (void)snprintf(all, sizeof all, "%s %s", rows[i].options,
                       rows[i].refused != NULL && refused == NULL ? "model.layers=2 batch.micro=2"
                                                                  : "");
        err = attempt(&r, "mesh", all, rows[i].mesh, rows[i].n, NULL);
        if (refused != NULL) {
            assert_int_not_equal(err, LT_OK);
            assert_non_null(strstr(r.said[0], refused));
            forget("mesh");
            continue;
        }
        must(err, rows[i].mesh);
        forget("mesh");
        assert_int_not_equal(attempt(&r, "mesh", all, rows[i].mesh, rows[i].n, &f), LT_OK);
        assert_int_equal(r.ends[1], LT_ERR_CORRUPT);
        forget("mesh");
    }
}

/* ---- Recall ---------------------------------------------------------------------------------- */

#define BANDS 4

/* n flips, evenly over places and bits; a table of how many were found. */
static int recall(int n, int first) {
    static const char *const bands[BANDS] = {"0-7", "8-15", "16-23", "24-31"};
    int found[N_PLACES][BANDS] = {{0}}, all[N_PLACES][BANDS] = {{0}}, wrong = 0;
    for (int i = first; i < first + n; i++) {
        flip f = draw((place)(i % N_PLACES), (uint64_t)(i / N_PLACES));
        bool right;
        f.bit = i / N_PLACES % (f.where == PLACE_BF16_WEIGHT ? 16 : 32);
        all[f.where][f.bit / 8]++;
        const bool is = is_found(&f, &right);
        found[f.where][f.bit / 8] += is;
        wrong += !right;
        print_message("# %d: %s, bit %d, rank %d: %s, %s\n", i, places[f.where].name, f.bit, f.rank,
                      is ? "found" : "not found", right ? "as it should" : "which is wrong");
        (void)fflush(stdout);
    }
    print_message("# %d flips, found of those made; by bits (0: the lowest of the mantissa)\n", n);
    for (int where = 0; where < N_PLACES; where++) {
        print_message("# %-20s", places[where].name);
        for (int b = 0; b < BANDS; b++) {
            print_message("  bits %s: %d of %d", bands[b], found[where][b], all[where][b]);
        }
        print_message("\n");
    }
    print_message("%sok 1 - %d flips are found where they can be, and the rank is named\n1..1\n",
                  wrong > 0 ? "not " : "", n);
    return wrong > 0;
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(verdicts_on_ranks),
                                       cmocka_unit_test(verdicts_of_a_replay),
                                       cmocka_unit_test(flips_are_found),
                                       cmocka_unit_test(difference_is_named),
                                       cmocka_unit_test(next_start_decides),
                                       cmocka_unit_test(parts_are_compared_in_turn),
                                       cmocka_unit_test(next_start_decides_on_a_part),
                                       cmocka_unit_test(parts_stay_until_it_is_decided),
                                       cmocka_unit_test(compared_at_the_requested_steps),
                                       cmocka_unit_test(meshes_with_and_without_copies)};
    if (argc > 1) {
        void *state = NULL;
        ranks = argc > 3 ? atoi(argv[3]) : ranks;
        return run_root_make(&state) != 0 ||
               recall(atoi(argv[1]), argc > 2 ? atoi(argv[2]) : 0) != 0 ||
               run_root_remove(&state) != 0;
    }
    return cmocka_run_group_tests(tests, run_root_make, run_root_remove);
}
