/* The log-probabilities that the engine gives to the tokens it draws, and those of an exact pass
 * with the same weights, have the same bits: for each family that is served, in batches of any
 * shape, and also if ranks of tp divide the pass. */
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
#include "base/file.h"
#include "model/blocks/context.h"
#include "model/pass/pass.h"
#include "parallel/world.h"
#include "unit/device.h"

enum { QUESTIONS = 3, GROUP = 3, ANSWERS = QUESTIONS * GROUP, LENGTH = 19, SEQ = 32 };

static void must(lt_err err) {
    if (err != LT_OK) {
        fail_msg("%s", lt_error_message());
    }
}

/* Memory for the rows of a batch. */
typedef struct {
    int32_t tokens[ANSWERS * SEQ], labels[ANSWERS * SEQ], start[ANSWERS * SEQ],
        positions[ANSWERS * SEQ];
    float logp[ANSWERS * SEQ];
} room;

/* How a pass computes; the other options are 0. */
typedef struct {
    int64_t micro, seq; /* Rows of a pass, and their tokens. */
    bool exact, shares;
    const lt_world *world; /* The ranks that share the rows; NULL: none. */
    lt_context_kind kind;
    lt_queue *queue;
} way;

static lt_pass_options options_of(const way *how) {
    const lt_mesh *mesh = how->world != NULL ? &how->world->mesh : NULL;
    lt_pass_options o = {.batch = how->micro,
                         .seq = how->seq,
                         .exact = how->exact,
                         .masks = how->shares,
                         .shares = how->shares,
                         .queue = how->queue};
    if (mesh != NULL) {
        o.tp = lt_world_twin(how->world, mesh->tp);
        o.experts = how->world->shape.ep > 1 ? lt_world_twin(how->world, mesh->ep) : NULL;
        o.experts_host = o.experts != NULL ? mesh->ep : NULL;
        o.context = (lt_context_options){lt_world_twin(how->world, mesh->cp), how->kind};
        o.seq /= how->world->shape.cp;
    }
    return o;
}

/* Log-probabilities of the rows of b that this rank computes, in their places in b->logp.
 * b->start has the place of each of these tokens in its row. */
static lt_err score(lt_pass *p, room *b, const way *how, int64_t n) {
    const lt_group *cp = how->world != NULL ? how->world->mesh.cp : NULL;
    const int n_cp = how->world != NULL ? how->world->shape.cp : 1;
    const int64_t own = how->seq / n_cp;
    float here[ANSWERS * SEQ];
    for (int64_t i = 0; i < n * how->seq; i++) {
        b->start[i] = b->positions[i] = (int32_t)(i % how->seq);
        b->logp[i] = NAN;
    }
    if (n_cp > 1) {
        int32_t *const all[] = {b->tokens, b->labels, b->start, b->positions};
        for (int k = 0; k < 4; k++) {
            lt_context_take(all[k], n, how->seq, n_cp, lt_group_rank(cp));
        }
    }
    LT_TRY(lt_pass_logprobs(p, 0,
                            &(lt_pass_batch){.batch = n,
                                             .seq = own,
                                             .tokens = b->tokens,
                                             .labels = b->labels,
                                             .positions = n_cp > 1 ? b->positions : NULL},
                            here));
    for (int64_t i = 0; i < n * own; i++) {
        b->logp[i / own * how->seq + b->start[i]] = here[i];
    }
    return LT_OK;
}

/* The largest difference over the tokens that this rank computes, in all answers. */
static lt_err measure(double *most, lt_model *m, const lt_drawn *drawn, const way *how) {
    const lt_pass_options o = options_of(how);
    room *b = calloc(1, sizeof *b);
    lt_pass *p = NULL;
    int64_t seen = 0;
    lt_err err = LT_OK;
    LT_ASSERT(b != NULL);
    const lt_batch rows = {.batch = how->micro,
                           .seq = how->seq,
                           .tokens = b->tokens,
                           .labels = b->labels,
                           .doc_start = b->start,
                           .positions = b->positions};
    LT_TRY_DONE(lt_pass_open(&p, m, &o));
    if (how->world != NULL && how->queue != NULL) {
        LT_TRY_DONE(lt_world_connect((lt_world *)how->world, how->queue));
    }
    for (int64_t first = 0; first < ANSWERS; first += how->micro) {
        const int64_t n = ANSWERS - first < how->micro ? ANSWERS - first : how->micro;
        for (int64_t i = 0; i < n; i++) {
            lt_reinforce_row(&drawn[first + i], &rows, i);
        }
        LT_TRY_DONE(score(p, b, how, n));
        for (int64_t i = 0; i < n; i++) {
            const lt_drawn *d = &drawn[first + i];
            for (int64_t t = 0; t < d->answer.n; t++) {
                const float here = b->logp[i * how->seq + d->problem->n_prompt - 1 + t];
                if (!isnan(here)) {
                    seen++;
                    *most = fmax(*most, fabs((double)here - (double)d->answer.logp[t]));
                }
            }
        }
    }
    LT_ASSERT(seen > 0);
    LT_ASSERT(!how->shares || lt_pass_shared(p).rows < ANSWERS * how->seq);
done:
    lt_pass_close(p);
    free(b);
    return err;
}

static double gap(lt_model *m, const lt_drawn *drawn, int64_t micro, int64_t seq, bool exact,
                  bool shares) {
    double most = 0.0;
    must(measure(&most, m, drawn,
                 &(way){.micro = micro, .seq = seq, .exact = exact, .shares = shares}));
    return most;
}

/* The same on the ranks of a mesh, each of which holds a part of the model. */
typedef struct {
    const char *path, *mesh;
    const lt_model_spec *spec;
    const lt_drawn *drawn;
    lt_context_kind kind;
    lt_dtype dtype;
    bool on_gpu;
    double most[4]; /* Of each rank. */
} divided;

static lt_err measure_rank(lt_world *w, lt_device *device, divided *d) {
    const lt_partition part = lt_layout_partition(&w->layout);
    const bool whole = w->shape.cp == 1 && w->shape.ep == 1;
    way how = {.micro = 4, .seq = whole ? 29 : 28, .exact = true, .world = w, .kind = d->kind};
    lt_model *m = NULL;
    lt_err err = LT_OK;
    LT_TRY_DONE(lt_model_open(
        &m, d->path, &(lt_model_options){.partition = &part, .device = device, .dtype = d->dtype}));
    if (device != NULL) {
        LT_TRY_DONE(device->backend->queue_open(device, &how.queue));
    }
    LT_TRY_DONE(measure(&d->most[w->rank], m, d->drawn, &how));
    if (device == NULL) { /* GPUs are connected once. */
        how.micro = ANSWERS;
        how.seq = SEQ;
        how.shares = whole && d->spec->n_experts == 0;
        LT_TRY_DONE(measure(&d->most[w->rank], m, d->drawn, &how));
    }
done:
    if (how.queue != NULL) {
        device->backend->queue_close(how.queue);
    }
    lt_model_close(m);
    return err;
}

static lt_err rank_main(lt_comm *c, void *ctx) {
    divided *d = ctx;
    lt_world w = {0};
    lt_device *device = NULL;
    lt_err err = LT_OK;
    LT_TRY(lt_world_open_on(&w, c, d->mesh));
    if (d->on_gpu) {
        LT_TRY_DONE(lt_device_open(&device, LT_DEVICE_CUDA, w.rank));
        LT_TRY_DONE(lt_world_open_device(&w, device));
    }
    LT_TRY_DONE(lt_world_divide(&w, d->spec, NULL));
    LT_TRY_DONE(measure_rank(&w, device, d));
done:
    lt_world_close(&w, err);
    lt_device_close(device);
    return err;
}

/* A rank has 12 columns of the golden model's MLP. */
static void refuses_narrow(void) {
    lt_engine_options how = lt_engine_defaults();
    lt_engine *e = NULL;
    lt_model *m = NULL;
    if (gpu_device() == NULL) {
        return;
    }
    how.tp = 2;
    how.deterministic = true;
    must(lt_model_open(&m, "tests/golden/model/mixtral",
                       &(lt_model_options){.device = gpu_device(), .dtype = LT_BF16}));
    assert_int_equal(lt_engine_open(&e, m, &how), LT_ERR_UNSUPPORTED);
    assert_non_null(strstr(lt_error_message(), "not multiples of 8"));
    lt_model_close(m);
}

/* A pass for training would drop rows of full experts. */
static void refuses_capacity(void) {
    const lt_pass_options o = {.batch = 1, .seq = SEQ, .exact = true, .train = true};
    lt_model *m = NULL;
    lt_pass *p = NULL;
    must(lt_model_open(&m, "tests/golden/model/switch", NULL));
    assert_int_equal(lt_pass_open(&p, m, &o), LT_ERR_UNSUPPORTED);
    assert_non_null(strstr(lt_error_message(), "rl.exact with model.capacity over 0"));
    lt_model_close(m);
}

/* Norms of q and k over all heads are refused, because several ranks add the squares in another
 * order than one rank does. */
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

static void what_has_no_exact_pass_is_refused(void **state) {
    static const struct {
        const char *path, *says;
        int tp;
        bool deterministic;
    } engines[] = {{"llama3", "without deterministic", 2, false},
                   {"llama3", "that do not divide heads", 3, true}};
    const lt_comm_options o = {.deadline_s = 120, .check = true};
    divided d = {.path = "tests/golden/model/olmo2"};
    lt_model *m = NULL;
    (void)state;
    must(lt_model_open(&m, d.path, NULL));
    d.spec = lt_model_get_spec(m);
    must(lt_comm_run_threads(2, &o, refusing_rank, &d));
    lt_model_close(m);
    refuses_capacity();
    refuses_narrow();
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

/* Draw, and let the ranks of a mesh compute the log-probabilities again. */
static void on_ranks(divided *d, int n) {
    const lt_comm_options o = {.deadline_s = 240, .check = true};
    must(lt_comm_run_threads(n, &o, rank_main, d));
    for (int i = 0; i < n; i++) {
        if (d->most[i] != 0.0) {
            fail_msg("%s: log-probabilities of rank %d of %s differ by %g", d->path, i, d->mesh,
                     d->most[i]);
        }
    }
}

static char made_folder[] = "/tmp/lateen_exact_XXXXXX";

static int made_open(void **state) {
    (void)state;
    return mkdtemp(made_folder) != NULL ? 0 : -1;
}

static int made_remove(void **state) {
    (void)state;
    return lt_file_remove_tree(made_folder) == LT_OK ? 0 : -1;
}

/* Like the golden model, but each of four ranks of tp has a number of columns of the MLP that
 * 16-bit products on GPUs can read: a multiple of 8. */
static void make_wide(char *path, size_t bytes, const char *family) {
    lt_model *m = NULL;
    lt_model_spec spec;
    (void)snprintf(path, bytes, "tests/golden/model/%s", family);
    must(lt_model_open(&m, path, NULL));
    spec = *lt_model_get_spec(m);
    lt_model_close(m);
    spec.ffn_width = 64;
    spec.init_std = 0.2f;
    must(lt_model_create(&m, &spec, NULL, 3));
    (void)snprintf(path, bytes, "%s/%s", made_folder, family);
    must(lt_model_save(m, path, LT_F32, 0));
    lt_model_close(m);
}

/* What an engine drew, and the model that drew it. */
typedef struct {
    char path[128];
    lt_model *m;
    lt_rollouts *r;
    lt_answer answers[ANSWERS];
    lt_problem problems[QUESTIONS];
    lt_drawn drawn[ANSWERS];
    int32_t prompts[QUESTIONS][16];
} draw;

/* tp: the number of ranks whose order of sums the engine uses; 1: of one. how: on which GPU, and
 * in which type; NULL: on the CPU, in F32. */
static void draw_open(draw *d, const char *family, int tp, const lt_model_options *how) {
    lt_rollout_stats stats;
    lt_question questions[QUESTIONS];
    int64_t n_prompts = 0, n_new = 0;
    *d = (draw){.m = NULL};
    if (tp > 1 && how != NULL) {
        make_wide(d->path, sizeof d->path, family);
    } else {
        (void)snprintf(d->path, sizeof d->path, "tests/golden/model/%s", family);
    }
    must(lt_model_open(&d->m, d->path, how));
    must(lt_rollouts_open(&d->r, d->m,
                          &(lt_rollout_options){.max_tokens = LENGTH,
                                                .max_seq = SEQ,
                                                .questions = QUESTIONS,
                                                .running = 5,
                                                .temperature = 1.0,
                                                .exact = true,
                                                .tp = tp}));
    for (int q = 0; q < QUESTIONS; q++) {
        d->problems[q] = (lt_problem){.prompt = d->prompts[q], .n_prompt = 1 + 4 * q};
        for (int64_t i = 0; i < d->problems[q].n_prompt; i++) {
            d->prompts[q][i] = (int32_t)((5 + 7 * i + q) % lt_model_get_spec(d->m)->vocab_size);
        }
        questions[q] = (lt_question){d->prompts[q], d->problems[q].n_prompt, (uint64_t)q};
        n_prompts += d->problems[q].n_prompt;
    }
    must(lt_rollouts_draw(d->r, &(lt_rollout_args){questions, QUESTIONS, GROUP, false}, d->answers,
                          &stats));
    for (int i = 0; i < ANSWERS; i++) {
        n_new += d->answers[i].n;
        d->drawn[i] = (lt_drawn){.problem = &d->problems[i / GROUP], .answer = d->answers[i]};
    }
    assert_int_equal(stats.prompt_tokens, n_prompts); /* Once per group. */
    assert_int_equal(stats.new_tokens, n_new);
}

static void draw_close(draw *d) {
    lt_rollouts_close(d->r);
    lt_model_close(d->m);
}

static void check_family(const char *family, const lt_model_options *how) {
    draw d;
    draw_open(&d, family, 1, how);
    const bool shares = lt_model_get_spec(d.m)->n_experts == 0;
    const double one = gap(d.m, d.drawn, 1, SEQ, true, false),
                 some = gap(d.m, d.drawn, 4, 29, true, false),
                 all = gap(d.m, d.drawn, ANSWERS, SEQ, true, false),
                 shared = shares ? gap(d.m, d.drawn, ANSWERS, SEQ, true, true) : 0.0;
    if (one != 0.0 || some != 0.0 || all != 0.0 || shared != 0.0) {
        fail_msg("%s: log-probabilities differ by %g, %g, %g, and %g with shared rows", family, one,
                 some, all, shared);
    }
    /* Without it the difference has a bound: measured in F32, 1e-6 to 4e-6. */
    const double other = gap(d.m, d.drawn, 4, SEQ, false, false),
                 most = how != NULL && how->dtype == LT_BF16 ? 0.2 : 2e-5;
    if (!(other > 0.0 && other < most)) {
        fail_msg("%s: another order of sums differs by %g", family, other);
    }
    draw_close(&d);
}

/* Ranks of a mesh, and an engine that sums in the order of the ranks of tp. */
static void check_mesh(const char *family, const char *mesh, int n, int tp, lt_context_kind kind,
                       const lt_model_options *how) {
    draw d;
    draw_open(&d, family, tp, how);
    on_ranks(&(divided){.path = d.path,
                        .mesh = mesh,
                        .spec = lt_model_get_spec(d.m),
                        .drawn = d.drawn,
                        .kind = kind,
                        .dtype = how != NULL ? how->dtype : LT_F32,
                        .on_gpu = how != NULL,
                        .most = {0}},
             n);
    if (tp > 1) { /* One rank sums in another order. */
        assert_true(gap(d.m, d.drawn, 4, SEQ, true, false) > 0.0);
    }
    draw_close(&d);
}

/* The last five have experts: gated, with biases, with norms of q and k, in some of the layers,
 * and one expert per row. */
static const char *const families[] = {"apertus",   "gemma3",          "gpt2",    "granite",
                                       "llama3",    "mistral",         "olmo2",   "phi4",
                                       "qwen2",     "qwen3",           "yarn",    "llama_bias",
                                       "gemma2",    "smollm3",         "mixtral", "gpt_oss",
                                       "qwen3_moe", "qwen3_moe_dense", "switch"};
enum { FAMILIES = sizeof families / sizeof *families };

static void every_family(void **state) {
    (void)state;
    for (int i = 0; i < FAMILIES; i++) {
        check_family(families[i], NULL);
    }
}

/* Core: caps, windows and a tied head; experts. */
static bool is_core(const char *family) {
    return strcmp(family, "gemma2") == 0 || strcmp(family, "mixtral") == 0;
}

static void every_family_on_a_gpu(void **state) {
    (void)state;
    if (gpu_device() == NULL) {
        skip();
    }
    for (int i = 0; i < FAMILIES; i++) {
        for (int k = core_only() ? 1 : 0; k < 2 && (is_core(families[i]) || !core_only()); k++) {
            check_family(families[i], &(lt_model_options){.device = gpu_device(),
                                                          .dtype = k == 0 ? LT_F32 : LT_BF16});
        }
    }
}

/* Biases, gated or not, key heads that several ranks hold, a tied head, experts; three and more
 * ranks add in a fixed order. */
static void exact_with_divided_layers(void **state) {
    static const char *const names[] = {"apertus", "gemma2",  "gpt2",    "llama_bias", "qwen2",
                                        "qwen3",   "mixtral", "gpt_oss", "yarn",       "switch"};
    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        check_mesh(names[i], "tp=2", 2, 2, LT_CONTEXT_GATHER, NULL);
        check_mesh(names[i], "tp=4", 4, 4, LT_CONTEXT_GATHER, NULL);
    }
    check_mesh("mixtral", "dp=2,ep=2", 2, 1, LT_CONTEXT_GATHER, NULL);
    check_mesh("mixtral", "dp=2,tp=2,ep=2", 4, 2, LT_CONTEXT_GATHER, NULL);
}

/* Windows, sinks and experts, with each way of attention; pieces of rows are not whole pages. */
static void exact_with_divided_rows(void **state) {
    static const char *const names[] = {"llama3", "gemma2", "gpt_oss"};
    (void)state;
    for (int kind = 0; kind < LT_CONTEXT_KIND_COUNT; kind++) {
        for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
            check_mesh(names[i], "cp=2", 2, 1, (lt_context_kind)kind, NULL);
        }
        check_mesh("gemma2", "cp=2,tp=2", 4, 2, (lt_context_kind)kind, NULL);
    }
}

static bool has_gpus(int n) {
    lt_device *d = NULL;
    const bool has = lt_device_open(&d, LT_DEVICE_CUDA, n - 1) == LT_OK;
    lt_device_close(d);
    return has;
}

static void exact_on_several_gpus(void **state) {
    static const struct {
        const char *family, *mesh;
        int n, tp;
        lt_context_kind kind;
        bool core;
    } cases[] = {{"gemma2", "tp=2", 2, 2, LT_CONTEXT_GATHER, false},
                 {"mixtral", "tp=2", 2, 2, LT_CONTEXT_GATHER, true},
                 {"gpt_oss", "tp=2", 2, 2, LT_CONTEXT_GATHER, false},
                 {"gemma2", "tp=4", 4, 4, LT_CONTEXT_GATHER, false},
                 {"mixtral", "dp=2,ep=2", 2, 1, LT_CONTEXT_GATHER, false},
                 {"gemma2", "cp=2", 2, 1, LT_CONTEXT_GATHER, true},
                 {"gemma2", "cp=2", 2, 1, LT_CONTEXT_ULYSSES, false},
                 {"gemma2", "cp=2", 2, 1, LT_CONTEXT_RING, false}};
    (void)state;
    if (!has_gpus(2)) {
        skip();
    }
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        for (int k = core_only() ? 1 : 0; k < 2; k++) {
            if (has_gpus(cases[i].n) && (cases[i].core || !core_only())) {
                check_mesh(cases[i].family, cases[i].mesh, cases[i].n, cases[i].tp, cases[i].kind,
                           &(lt_model_options){.device = gpu_device(),
                                               .dtype = k == 0 ? LT_F32 : LT_BF16});
            }
        }
    }
}

/* Phi-3 rotates long texts differently from the short ones that they began as. */
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

/* The rollouts refuse what the engine refuses: GPT-2 has a vector for each position. */
static void models_without_an_engine_are_refused(void **state) {
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
                                       cmocka_unit_test(exact_with_divided_layers),
                                       cmocka_unit_test(exact_with_divided_rows),
                                       cmocka_unit_test(exact_on_several_gpus),
                                       cmocka_unit_test(what_has_no_exact_pass_is_refused),
                                       cmocka_unit_test(texts_whose_rotation_changes),
                                       cmocka_unit_test(models_without_an_engine_are_refused)};
    return cmocka_run_group_tests(tests, made_open, made_remove);
}
