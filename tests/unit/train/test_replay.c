/* guard.replay: the rows of a step are computed again on another rank. The ranks are threads; one
 * of them computes wrongly at a step, in the step itself, in the replay, once or permanently. The
 * tests check which rank is named, that data which give a loss that is not finite are told from
 * that, that the run continues with the bits of a run without replays, and which options exclude
 * it. `test_replay N` prints the recall over N flips of bits in gradients before their sum, by
 * bit. */
#include "unit/train/disturbed.h"

#include "base/rng.h"
#include "train/watch/replay.h"

#define FAULT_STEP 5

#define NOT_A_NUMBER 32 /* In place of a bit: the value becomes NaN, so the update is skipped. */

/* When the gradients of FAULT_STEP become wrong on a rank: FIRST: those of the rows of the rank
 * before, which come first if the step is due; SECOND: those of its own rows; ALL: everything
 * that it computes then. FORWARD: like FIRST, and the loss of its rows is wrong, too. */
typedef enum { FIRST, SECOND, ALL, FORWARD } when;

typedef struct {
    when when;
    int rank, bit;
    uint64_t element; /* Modulo the number of elements. */
} fault;

/* ---- The disturbance ------------------------------------------------------------------------- */

/* For the rank that this thread is. Gradients become wrong when the backward pass leaves their
 * unit, the last thing that happens to them before they are hashed or summed. */
static _Thread_local struct {
    lt_training *t;
    const fault *fault;
    int n_left; /* How often unit 0 was left in FAULT_STEP: once per pass. */
    lt_err (*leave)(void *of, int unit, unsigned what);
    lt_err (*combine)(void *of, lt_step_record *record);
} own;

static lt_err leave(void *of, int unit, unsigned what) {
    const fault *f = own.fault;
    if (unit == 0 && (what & LT_UNIT_GRADIENTS) != 0 && own.t->state.step == FAULT_STEP - 1) {
        const int64_t n = own.t->zero.model->table.units[0].n_elements;
        uint32_t *data = own.t->zero.whole->base[0];
        const bool hit = f->when == ALL || own.n_left == (f->when == SECOND ? 1 : 0);
        uint32_t *value = &data[f->element % (uint64_t)n];
        *value = !hit ? *value : f->bit == NOT_A_NUMBER ? 0x7fc00000u : *value ^ 1u << f->bit;
        own.n_left++;
    }
    return own.leave(of, unit, what);
}

static lt_err combine(void *of, lt_step_record *record) {
    if (own.t->state.step == FAULT_STEP - 1 && own.fault->when == FORWARD) {
        own.t->replay.loss += 1.0;
    }
    return own.combine(of, record);
}

static lt_err steps(lt_training *t, const run *r) {
    const fault *f = r->disturbance;
    if (f != NULL && f->rank == t->ranks.rank) {
        own.t = t;
        own.fault = f;
        own.n_left = 0;
        own.leave = t->zero.units.leave;
        own.combine = t->ranks.combine;
        t->zero.units.leave = leave;
        t->ranks.combine = combine;
    }
    while (t->state.step < t->recipe.steps) {
        lt_step_outcome o;
        LT_TRY(lt_training_step(t, &o));
    }
    LT_TRY(lt_training_settle(t));
    return lt_replay_tell(t);
}

/* Run in folder "run", which is new. */
static lt_err train(run *r, const char *options, const char *mesh, int n, const fault *f) {
    forget("run");
    *r = (run){.steps = steps, .disturbance = f};
    return run_disturbed(r, "run", options, mesh, n);
}

/* ---- Verdicts -------------------------------------------------------------------------------- */

enum { R = LT_REPLICA_RIGHT, W = LT_REPLICA_WRONG, U = LT_REPLICA_UNKNOWN };

/* Signs of one set: own, other (of the slot before), third (of the one before that). */
static void verdicts_on_ranks(void **state) {
    static const struct {
        int n;
        int64_t own[4], other[4], third[4];
        int want[4]; /* All RIGHT: nothing differs. */
    } rows[] = {
        {3, {1, 2, 3}, {3, 1, 2}, {0, 0, 0}, {R, R, R}},
        {3, {9, 2, 3}, {3, 1, 2}, {2, 3, 1}, {W, R, R}}, /* Its own rows, once. */
        {3, {1, 2, 3}, {3, 9, 2}, {2, 3, 1}, {R, W, R}}, /* The replay, once. */
        /* Everything that it computes. */
        {3, {1, 9, 3}, {3, 8, 2}, {2, 7, 1}, {R, W, R}},
        {3, {9, 2, 3}, {3, 1, 2}, {2, 3, 8}, {U, U, R}},             /* Three hashes. */
        {4, {1, 2, 9, 4}, {4, 1, 2, 3}, {3, 4, 1, 2}, {R, R, W, R}}, /* One of four. */
        {2, {9, 2}, {2, 1}, {1, 2}, {W, R}}, /* It does not reproduce its own result. */
        /* The replay was wrong, or the rank is wrong permanently. */
        {2, {1, 2}, {9, 1}, {1, 2}, {U, U}},
        {2, {1, 9}, {9, 1}, {1, 9}, {R, R}},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        lt_replay_sign signs[4];
        lt_replica_verdict got[4] = {0};
        bool differ = false;
        for (int k = 0; k < rows[i].n; k++) {
            signs[k] = (lt_replay_sign){.slot = k,
                                        .own = rows[i].own[k],
                                        .other = rows[i].other[k],
                                        .third = rows[i].third[k]};
            differ = differ || rows[i].want[k] != R;
        }
        assert_int_equal(lt_replay_differs(signs, rows[i].n), differ);
        lt_replay_judge(got, signs, rows[i].n);
        for (int k = 0; k < rows[i].n; k++) {
            assert_int_equal((int)got[k], rows[i].want[k]);
        }
    }
}

/* Four ranks in two slots of two: what one rank computes wrongly is attributed to its slot. */
static void a_slot_has_one_verdict(void **state) {
    lt_replay_sign signs[] = {{.slot = 0, .set = 0, .own = 1, .other = 3, .third = 1},
                              {.slot = 0, .set = 1, .own = 9, .other = 4, .third = 2},
                              {.slot = 1, .set = 0, .own = 3, .other = 1, .third = 3},
                              {.slot = 1, .set = 1, .own = 4, .other = 2, .third = 4}};
    static const int want[] = {W, W, R, R};
    lt_replica_verdict got[4];
    (void)state;
    assert_true(lt_replay_differs(signs, 4));
    lt_replay_judge(got, signs, 4);
    for (int k = 0; k < 4; k++) {
        assert_int_equal((int)got[k], want[k]);
    }
    signs[1].own = 2;
    assert_false(lt_replay_differs(signs, 4));
}

/* ---- Runs ------------------------------------------------------------------------------------ */

/* The line of metrics with a verdict; the caller releases it. NULL: there is none. */
static json_t *verdict_line(size_t *n) {
    json_t *lines = run_lines("run", "replay"), *first = json_array_get(lines, 0);
    *n = json_array_size(lines);
    json_incref(first);
    json_decref(lines);
    return first;
}

static void a_verdict_is(const char *want) {
    size_t n;
    json_t *line = verdict_line(&n);
    assert_int_equal(n, want != NULL);
    if (want != NULL) {
        assert_string_equal(json_string_value(json_object_get(line, "verdict")), want);
        assert_int_equal(json_integer_value(json_object_get(line, "step")), FAULT_STEP);
    }
    json_decref(line);
}

/* Without a fault, the bits of a run without replays, on every mesh that it supports. */
static void replays_change_nothing(void **state) {
    static const struct {
        const char *options, *mesh;
        int n;
    } rows[] = {
        {"", "dp=2", 2},
        {"batch.micro=2", "dp=3", 3}, /* Two passes per step. */
        {"mesh.zero=1", "dp=3", 3},
        {"", "dp=2,tp=2", 4},
        {"", "dp=2,cp=2", 4},
        {"model.dtype=bf16 data.packing=single", "dp=2", 2},
        {"model.family=mixtral model.experts=4 model.top_k=2", "dp=2", 2},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char options[256];
        run without, with;
        (void)snprintf(options, sizeof options, "guard.replay=2 %s", rows[i].options);
        must(train(&without, rows[i].options, rows[i].mesh, rows[i].n, NULL), rows[i].mesh);
        must(train(&with, options, rows[i].mesh, rows[i].n, NULL), options);
        assert_true(with.hash == without.hash);
        a_verdict_is(NULL);
    }
}

/* guard.replay=5: FAULT_STEP is due. */
static void the_rank_is_named(void **state) {
    static const struct {
        const char *options, *mesh;
        int n;
        fault fault;
        lt_err want[4];
    } rows[] = {
#define C LT_ERR_CORRUPT
#define E LT_ERR_REMOTE
        {"", "dp=3", 3, {SECOND, 0, 3, 7}, {C, E, E}},
        {"",
         "dp=3",
         3,
         {SECOND, 2, NOT_A_NUMBER, 7},
         {E, E, C}}, /* The update would be skipped, too. */
        {"", "dp=3", 3, {FIRST, 1, 0, 11}, {E, C, E}},
        {"mesh.zero=1", "dp=3", 3, {ALL, 1, 12, 5}, {E, C, E}},
        {"", "dp=2", 2, {SECOND, 1, 9, 40}, {E, C}},
        {"", "dp=2", 2, {ALL, 1, 9, 40}, {C, C}}, /* It is unknown which rank was wrong. */
        {"", "dp=2,tp=2", 4, {SECOND, 3, 9, 2}, {E, E, C, C}},
#undef C
#undef E
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char options[256];
        run r;
        (void)snprintf(options, sizeof options, "guard.replay=5 %s", rows[i].options);
        assert_int_not_equal(train(&r, options, rows[i].mesh, rows[i].n, &rows[i].fault), LT_OK);
        for (int k = 0; k < rows[i].n; k++) {
            if (r.ends[k] != rows[i].want[k] || r.steps_made[k] != FAULT_STEP - 1) {
                fail_msg("row %zu, rank %d: %s", i, k, r.said[k]);
            }
        }
        a_verdict_is("hardware");
    }
}

/* FAULT_STEP is not due: a single fault in a step that the guard refuses is seen in the sum, or
 * in the loss. */
static void a_skipped_update_is_explained(void **state) {
    const fault once = {FIRST, 1, NOT_A_NUMBER, 7}, forward = {FORWARD, 1, NOT_A_NUMBER, 7},
                finite = {FIRST, 1, 30, 7};
    run r, whole;
    (void)state;
    must(train(&r, "guard.replay=1000", "dp=3", 3, &once), "once");
    a_verdict_is("once");
    assert_int_not_equal(train(&r, "guard.replay=1000", "dp=3", 3, &forward), LT_OK);
    assert_true(r.ends[1] == LT_ERR_CORRUPT && r.ends[0] == LT_ERR_REMOTE);
    a_verdict_is("hardware");
    /* A finite error in a step that is not due is not found: the sum carries it to all ranks. */
    must(train(&whole, "guard.replay=1000", "dp=3", 3, NULL), "whole");
    must(train(&r, "guard.replay=1000", "dp=3", 3, &finite), "finite");
    assert_true(r.hash != whole.hash);
    a_verdict_is(NULL);
}

/* Losses that are only high: each skipped update is due to the data, and nothing else changes. */
static void data_are_told_from_hardware(void **state) {
    static const char *const options = "steps=24 guard.loss_z=0.01 guard.window=8 guard.limit=99";
    char with[128];
    run whole, r;
    json_t *lines, *line;
    size_t i;
    (void)state;
    (void)snprintf(with, sizeof with, "guard.replay=1000 %s", options);
    must(train(&whole, options, "dp=2", 2, NULL), "whole");
    must(train(&r, with, "dp=2", 2, NULL), "data");
    assert_true(r.hash == whole.hash);
    lines = run_lines("run", "replay");
    assert_true(json_array_size(lines) > 0);
    json_array_foreach(lines, i, line) {
        assert_string_equal(json_string_value(json_object_get(line, "verdict")), "data");
        assert_int_equal(json_array_size(json_object_get(line, "wrong")), 0);
    }
    json_decref(lines);
}

static void options_that_exclude_it_are_refused(void **state) {
    static const struct {
        const char *options, *mesh;
        int n;
        const char *why; /* NULL: it has no effect. */
    } rows[] = {
        {"mesh.zero=2", "dp=2", 2,
         "mesh.zero 2 and 3, which keep no rank's own gradients; mesh.zero: 1 works"},
        {"model.layers=2 batch.micro=2", "pp=2,dp=2", 4,
         "in a pipeline (pp); mesh: dp=4 works on these ranks"},
        {"batch.size=16 deterministic=mesh-invariant", "dp=2", 2,
         "mesh-invariant; deterministic: run works"},
        {"model.family=mixtral model.experts=4 model.top_k=2", "dp=2,ep=2", 2,
         "(ep); mesh: dp=2 works"},
        {"model.family=mixtral model.experts=4 model.top_k=2", "dp=2,cp=2,ep=2", 4,
         "mesh: dp=2,cp=2 works"},
        {"batch.size=16 deterministic=mesh-invariant", "dp=2,tp=2", 4,
         "mesh: dp=4 with mesh.zero = 0, which has 4 of the 4 ranks, goes with batch.groups = "},
        {"batch.size=16 deterministic=mesh-invariant model.layers=3 batch.micro=2", "pp=3", 3,
         "mesh: dp=2 with mesh.zero = 0, which needs 2 of the 3 ranks"},
        {"batch.size=16 deterministic=mesh-invariant mesh.zero=1", "dp=2", 2,
         "mesh: dp=2 with mesh.zero = 0, which has 2 of the 2"},
        {"", "cp=2", 2, NULL},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char options[256];
        run r;
        lt_err err;
        (void)snprintf(options, sizeof options, "guard.replay=2 %s", rows[i].options);
        err = train(&r, options, rows[i].mesh, rows[i].n, NULL);
        if ((err == LT_OK) != (rows[i].why == NULL) ||
            (rows[i].why != NULL && strstr(r.said[0], rows[i].why) == NULL)) {
            fail_msg("%s %s: %s", options, rows[i].mesh, r.said[0]);
        }
    }
}

/* ---- Recall ---------------------------------------------------------------------------------- */

/* n flips of the gradients that one of three ranks has computed, evenly over bits. */
static int recall(int n) {
    int found[32] = {0}, all[32] = {0}, named = 0, made = 0;
    for (int i = 0; i < n; i++) {
        lt_rng rng = {.seed = 31, .stream = (uint64_t)i};
        const fault f = {i % 2 == 0 ? SECOND : ALL, i % 3, i % 32, lt_rng_u64(&rng)};
        run r;
        const bool differs = train(&r, "guard.replay=5", "dp=3", 3, &f) != LT_OK;
        bool right = differs;
        for (int k = 0; k < 3; k++) {
            right = right && r.ends[k] == (k == f.rank ? LT_ERR_CORRUPT : LT_ERR_REMOTE);
        }
        all[f.bit]++;
        found[f.bit] += differs;
        named += right;
        made++;
    }
    print_message(
        "# %d flips of one bit in a gradient before its sum, found of those made, by bit\n#", made);
    for (int b = 0; b < 32; b++) {
        print_message(" %d: %d of %d%s", b, found[b], all[b], b % 8 == 7 ? "\n#" : ",");
    }
    print_message("\n%sok 1 - the right rank is named for each of %d flips\n1..1\n",
                  named == made ? "" : "not ", made);
    return named != made;
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(verdicts_on_ranks),
                                       cmocka_unit_test(a_slot_has_one_verdict),
                                       cmocka_unit_test(replays_change_nothing),
                                       cmocka_unit_test(the_rank_is_named),
                                       cmocka_unit_test(a_skipped_update_is_explained),
                                       cmocka_unit_test(data_are_told_from_hardware),
                                       cmocka_unit_test(options_that_exclude_it_are_refused)};
    if (argc > 1) {
        void *state = NULL;
        return run_root_make(&state) != 0 || recall(atoi(argv[1])) != 0 ||
               run_root_remove(&state) != 0;
    }
    return cmocka_run_group_tests(tests, run_root_make, run_root_remove);
}
