/* The log-probabilities that the engine gives to the tokens it draws, and those of an exact pass
 * with the same weights, have the same bits: for each family that is served, in batches of any
 * shape, and where ranks of tp divide the pass. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "align/reinforce.h"
#include "base/error.h"
#include "model/pass/pass.h"
#include "parallel/world.h"
#include "unit/device.h"

enum { QUESTIONS = 3, GROUP = 3, ANSWERS = QUESTIONS * GROUP, LENGTH = 19, SEQ = 32 };

static void must(lt_err err) {
    if (err != LT_OK) {
        fail_msg("%s", lt_error_message());
    }
}

/* Room for the rows of a batch. */
typedef struct {
    int32_t tokens[ANSWERS * SEQ], labels[ANSWERS * SEQ], start[ANSWERS * SEQ],
        positions[ANSWERS * SEQ];
    float logp[ANSWERS * SEQ];
} room;

/* The largest difference over all answers, in passes of `micro` rows of `seq` tokens. tp: the ranks
 * that share them; NULL: none. */
static double gap_of(lt_model *m, const lt_drawn *drawn, int64_t micro, int64_t seq, bool exact,
                     bool shares, lt_group *tp) {
    lt_pass_options o = {
        .batch = micro, .seq = seq, .exact = exact, .masks = shares, .shares = shares, .tp = tp};
    room *b = calloc(1, sizeof *b);
    lt_pass *p = NULL;
    double most = 0.0;
    assert_non_null(b);
    const lt_batch rows = {.batch = micro,
                           .seq = seq,
                           .tokens = b->tokens,
                           .labels = b->labels,
                           .doc_start = b->start,
                           .positions = b->positions};
    must(lt_pass_open(&p, m, &o));
    for (int64_t first = 0; first < ANSWERS; first += micro) {
        const int64_t n = ANSWERS - first < micro ? ANSWERS - first : micro;
        for (int64_t i = 0; i < n; i++) {
            lt_reinforce_row(&drawn[first + i], &rows, i);
        }
        must(lt_pass_logprobs(
            p, 0,
            &(lt_pass_batch){.batch = n, .seq = seq, .tokens = b->tokens, .labels = b->labels},
            b->logp));
        for (int64_t i = 0; i < n; i++) {
            const lt_drawn *d = &drawn[first + i];
            for (int64_t t = 0; t < d->answer.n; t++) {
                const float here = b->logp[i * seq + d->problem->n_prompt - 1 + t];
                most = fmax(most, fabs((double)here - (double)d->answer.logp[t]));
            }
        }
    }
    if (shares) {
        assert_true(lt_pass_shared(p).rows < ANSWERS * seq);
    }
    lt_pass_close(p);
    free(b);
    return most;
}

static double gap(lt_model *m, const lt_drawn *drawn, int64_t micro, int64_t seq, bool exact) {
    return gap_of(m, drawn, micro, seq, exact, false, NULL);
}

/* The same of ranks of tp, each of which holds a part of the model. */
typedef struct {
    const char *path;
    const lt_model_spec *spec;
    const lt_drawn *drawn;
    int tp;
    double most; /* Of rank 0. */
} divided;

static lt_err rank_main(lt_comm *c, void *ctx) {
    divided *d = ctx;
    char mesh[16];
    lt_world w = {0};
    lt_model *m = NULL;
    (void)snprintf(mesh, sizeof mesh, "tp=%d", d->tp);
    LT_TRY(lt_world_open_on(&w, c, mesh));
    LT_TRY(lt_world_divide(&w, d->spec, NULL));
    const lt_partition part = lt_layout_partition(&w.layout);
    LT_TRY(lt_model_open(&m, d->path, &(lt_model_options){.partition = &part}));
    const double some = gap_of(m, d->drawn, 4, 29, true, false, w.mesh.tp),
                 all = gap_of(m, d->drawn, ANSWERS, SEQ, true, true, w.mesh.tp);
    if (w.rank == 0) {
        d->most = fmax(some, all);
    }
    lt_model_close(m);
    lt_world_close(&w, LT_OK);
    return LT_OK;
}

/* Norms of q and k over all heads are refused: several ranks add the squares in another order than
 * one rank does. */
static lt_err refusing_rank(lt_comm *c, void *ctx) {
    divided *d = ctx;
    lt_world w = {0};
    lt_model *m = NULL;
    lt_pass *p = NULL;
    LT_TRY(lt_world_open_on(&w, c, "tp=2"));
    LT_TRY(lt_world_divide(&w, d->spec, NULL));
    const lt_partition part = lt_layout_partition(&w.layout);
    LT_TRY(lt_model_open(&m, d->path, &(lt_model_options){.partition = &part}));
    const lt_pass_options o = {.batch = 1, .seq = SEQ, .exact = true, .tp = w.mesh.tp};
    LT_ASSERT(lt_pass_open(&p, m, &o) == LT_ERR_UNSUPPORTED);
    LT_ASSERT(strstr(lt_error_message(), "norms of q and k over all heads") != NULL);
    lt_model_close(m);
    lt_world_close(&w, LT_OK);
    return LT_OK;
}

static void refused(void **state) {
    static const struct {
        const char *path, *says;
        int tp;
        bool deterministic;
    } engines[] = {{"llama3", "without deterministic", 2, false},
                   {"mixtral", "with experts", 2, true},
                   {"llama3", "that do not divide heads", 3, true}};
    const lt_comm_options o = {.deadline_s = 120, .check = true};
    divided d = {.path = "tests/golden/model/olmo2"};
    lt_model *m = NULL;
    (void)state;
    must(lt_model_open(&m, d.path, NULL));
    d.spec = lt_model_get_spec(m);
    must(lt_comm_run_threads(2, &o, refusing_rank, &d));
    lt_model_close(m);
    for (size_t i = 0; i < sizeof engines / sizeof *engines; i++) {
        char path[128];
        lt_engine_options how = lt_engine_defaults();
        lt_engine *e = NULL;
        how.tp = engines[i].tp;
        how.deterministic = engines[i].deterministic;
        (void)snprintf(path, sizeof path, "tests/golden/model/%s", engines[i].path);
        must(lt_model_open(&m, path, NULL));
        assert_int_equal(lt_engine_open(&e, m, &how), LT_ERR_UNSUPPORTED);
        assert_non_null(strstr(lt_error_message(), engines[i].says));
        lt_model_close(m);
    }
}

static void on_ranks(const char *path, const lt_model *m, const lt_drawn *drawn, int tp) {
    const lt_comm_options o = {.deadline_s = 120, .check = true};
    divided d = {
        .path = path, .spec = lt_model_get_spec(m), .drawn = drawn, .tp = tp, .most = INFINITY};
    must(lt_comm_run_threads(tp, &o, rank_main, &d));
    if (d.most != 0.0) {
        fail_msg("%s: log-probabilities of %d ranks of tp differ by %g", path, tp, d.most);
    }
}

/* tp: the ranks that the engine computes as; 1: none. how: where, and in which type; NULL: on the
 * CPU, in F32. */
static void check_family(const char *family, bool served, int tp, const lt_model_options *how) {
    char path[128];
    lt_model *m = NULL;
    lt_rollouts *r = NULL;
    lt_rollout_stats stats;
    lt_answer answers[ANSWERS];
    lt_question questions[QUESTIONS];
    lt_problem problems[QUESTIONS] = {{.n_prompt = 0}};
    lt_drawn drawn[ANSWERS] = {{.reward = 0.0}};
    int32_t prompts[QUESTIONS][16];
    (void)snprintf(path, sizeof path, "tests/golden/model/%s", family);
    must(lt_model_open(&m, path, how));
    must(lt_rollouts_open(&r, m,
                          &(lt_rollout_options){.max_tokens = LENGTH,
                                                .max_seq = SEQ,
                                                .questions = QUESTIONS,
                                                .running = 5,
                                                .temperature = 1.0,
                                                .exact = true,
                                                .tp = tp}));
    for (int q = 0; q < QUESTIONS; q++) {
        problems[q] = (lt_problem){.prompt = prompts[q], .n_prompt = 1 + 4 * q};
        for (int64_t i = 0; i < problems[q].n_prompt; i++) {
            prompts[q][i] = (int32_t)((5 + 7 * i + q) % lt_model_get_spec(m)->vocab_size);
        }
        questions[q] = (lt_question){prompts[q], problems[q].n_prompt, (uint64_t)q};
    }
    must(lt_rollouts_draw(r, &(lt_rollout_args){questions, QUESTIONS, GROUP, false}, answers,
                          &stats));
    int64_t n_prompts = 0, n_new = 0;
    for (int q = 0; q < QUESTIONS; q++) {
        n_prompts += problems[q].n_prompt;
    }
    for (int i = 0; i < ANSWERS; i++) {
        n_new += answers[i].n;
    }
    assert_int_equal(stats.prompt_tokens, n_prompts); /* Once a group. */
    assert_int_equal(stats.new_tokens, n_new);
    for (int i = 0; i < ANSWERS; i++) {
        drawn[i] = (lt_drawn){.problem = &problems[i / GROUP], .answer = answers[i]};
    }
    if (tp > 1) {
        on_ranks(path, m, drawn, tp);
        assert_true(gap(m, drawn, 4, SEQ, true) > 0.0); /* One rank has sums of another order. */
    } else if (served) {
        const double one = gap(m, drawn, 1, SEQ, true), some = gap(m, drawn, 4, 29, true),
                     all = gap(m, drawn, ANSWERS, SEQ, true),
                     shared = gap_of(m, drawn, ANSWERS, SEQ, true, true, NULL);
        if (one != 0.0 || some != 0.0 || all != 0.0 || shared != 0.0) {
            fail_msg("%s: log-probabilities differ by %g, %g, %g, and %g with shared rows", family,
                     one, some, all, shared);
        }
    } else {
        const lt_pass_options o = {.batch = 1, .seq = SEQ, .exact = true};
        lt_pass *p = NULL;
        assert_int_equal(lt_pass_open(&p, m, &o), LT_ERR_UNSUPPORTED);
        assert_non_null(strstr(lt_error_message(), "rl.exact with"));
    }
    /* Without it, a bound: the figures in F32 are 1e-6 to 4e-6. */
    const double other = gap(m, drawn, 4, SEQ, false),
                 most = how != NULL && how->dtype == LT_BF16 ? 0.2 : 2e-5;
    if (!(other > 0.0 && other < most)) {
        fail_msg("%s: another order of sums differs by %g", family, other);
    }
    lt_rollouts_close(r);
    lt_model_close(m);
}

static const struct {
    const char *name;
    bool served;
} families[] = {{"apertus", true},    {"gemma3", true},  {"gpt2", true},    {"granite", true},
                {"llama3", true},     {"mistral", true}, {"olmo2", true},   {"phi4", true},
                {"qwen2", true},      {"qwen3", true},   {"smollm3", true}, {"yarn", true},
                {"llama_bias", true}, {"gemma2", true},  {"mixtral", false}};
enum { FAMILIES = sizeof families / sizeof *families };

static void every_family(void **state) {
    (void)state;
    for (int i = 0; i < FAMILIES; i++) {
        check_family(families[i].name, families[i].served, 1, NULL);
    }
}

static void every_family_on_a_gpu(void **state) {
    (void)state;
    if (gpu_device() == NULL) {
        skip();
    }
    for (int i = 0; i < FAMILIES; i++) {
        const bool core = strcmp(families[i].name, "gemma2") == 0; /* Caps, windows, a tied head. */
        for (int k = core_only() ? 1 : 0; k < 2 && (core || !core_only()); k++) {
            check_family(
                families[i].name, families[i].served, 1,
                &(lt_model_options){.device = gpu_device(), .dtype = k == 0 ? LT_F32 : LT_BF16});
        }
    }
}

/* Biases, gated and not, key heads that ranks hold alike, a tied head; three and more ranks add in
 * an order. */
static void divided_layers(void **state) {
    static const char *const names[] = {"apertus", "gemma2", "gpt2", "llama_bias",
                                        "qwen2",   "qwen3",  "yarn"};
    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        check_family(names[i], true, 2, NULL);
        check_family(names[i], true, 4, NULL);
    }
}

/* Phi-3's long texts are rotated otherwise than the short ones with which they began. */
static void texts_whose_rotation_changes(void **state) {
    const lt_rollout_options o = {
        .max_tokens = LENGTH, .max_seq = SEQ, .questions = 1, .running = 2, .temperature = 1.0};
    lt_rollouts *r = NULL;
    lt_model *m = NULL;
    (void)state;
    must(lt_model_open(&m, "tests/golden/model/phi3", NULL));
    assert_int_equal(lt_rollouts_open(&r, m, &o), LT_ERR_UNSUPPORTED);
    assert_non_null(strstr(lt_error_message(), "texts of 32 tokens"));
    assert_null(r);
    lt_model_close(m);
}

/* What the engine refuses, the rollouts refuse: GPT-2 has a vector for each position. */
static void no_engine(void **state) {
    const lt_rollout_options o = {
        .max_tokens = LENGTH, .max_seq = 4096, .questions = 1, .running = 2, .temperature = 1.0};
    lt_rollouts *r = NULL;
    lt_model *m = NULL;
    (void)state;
    must(lt_model_open(&m, "tests/golden/model/gpt2", NULL));
    assert_int_equal(lt_rollouts_open(&r, m, &o), LT_ERR_ARG);
    assert_null(r);
    lt_model_close(m);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_family),
                                       cmocka_unit_test(every_family_on_a_gpu),
                                       cmocka_unit_test(divided_layers),
                                       cmocka_unit_test(refused),
                                       cmocka_unit_test(texts_whose_rotation_changes),
                                       cmocka_unit_test(no_engine)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
