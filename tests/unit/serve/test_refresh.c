/* An engine on weights that a trainer changes: after hold, a few steps of the optimiser and
 * refresh, its output equals, bit for bit, that of an engine opened on these weights; no page of
 * older weights is found; each token reports the version that chose it; calls come from several
 * threads at once. */
#include "unit/serve/fleet.h"

#include <pthread.h>
#include <stdatomic.h>
#include <time.h>

#include "model/pass/pass.h"
#include "tensor/ops.h"
#include "train/optimiser.h"

enum { V = 300, SEQ = 160, BATCH = 2, ROW = 16 };

/* ---- The trainer ---- */

typedef struct {
    lt_model *model;
    lt_recipe *recipe;
    lt_pass *pass;
    lt_optimiser optimiser;
    int64_t step;
} trainer;

static void open_trainer(trainer *t, lt_dtype dtype, const lt_backend *backend) {
    lt_model *shape = random_model(V, SEQ, LT_F32);
    lt_model_spec spec = *lt_model_get_spec(shape);
    lt_model_close(shape);
    spec.act = LT_ACT_XIELU; /* Its scalars are copied for the engine. */
    spec.gated = false;
    spec.family = LT_FAMILY_APERTUS;
    *t = (trainer){.recipe = calloc(1, sizeof *t->recipe)};
    assert_non_null(t->recipe);
    lt_options_default(&lt_recipe_table, t->recipe);
    t->recipe->lr = 2e-2;
    t->recipe->warmup = 0;
    must(lt_model_create(
             &t->model, &spec,
             &(lt_model_options){.dtype = dtype, .trainable = true, .device = device_of(backend)},
             7),
         "model");
    must(lt_pass_open(&t->pass, t->model,
                      &(lt_pass_options){.batch = BATCH, .seq = ROW, .train = true}),
         "pass");
    must(lt_optimiser_open(&t->optimiser, t->recipe, t->model, lt_pass_queue(t->pass)),
         "optimiser");
}

static void close_trainer(trainer *t) {
    lt_optimiser_close(&t->optimiser);
    lt_pass_close(t->pass);
    lt_model_close(t->model);
    free(t->recipe);
}

static void train(trainer *t, int n) {
    for (int i = 0; i < n; i++) {
        int32_t tokens[BATCH * ROW], labels[BATCH * ROW];
        const lt_pass_batch b = {.batch = BATCH, .seq = ROW, .tokens = tokens, .labels = labels};
        lt_step_plan plan;
        lt_pass_result r;
        t->step++;
        for (int k = 0; k < BATCH * ROW; k++) {
            tokens[k] = (int32_t)(lt_rng_mix((uint64_t)(t->step * 1000 + k)) % V);
            labels[k] = (int32_t)(lt_rng_mix((uint64_t)(t->step * 1000 + k + 1)) % V);
        }
        must(lt_pass_zero_gradients(t->pass), "zero");
        must(lt_pass_train(t->pass, &b, 1.0f / (BATCH * ROW), &r), "backward");
        plan = lt_recipe_plan(t->recipe, t->step, 0);
        must(lt_optimiser_step(&t->optimiser, lt_pass_gradients(t->pass), 1.0f, &plan), "step");
    }
    must(t->model->backend->sync(lt_pass_queue(t->pass)), "sync");
}

/* ---- A backend that packs every matrix: into a copy, which its products read ---- */

static size_t copy_bytes(const lt_device *d, const lt_tensor *b, bool trans_b) {
    (void)d;
    return trans_b && b->dtype == LT_F32 ? (size_t)(b->shape[0] * b->shape[1]) * sizeof(float) : 0;
}

static lt_err copy_matrix(lt_queue *q, const lt_matmul_pack_args *a) {
    (void)q;
    memcpy(a->dst, a->b.data, copy_bytes(NULL, &a->b, a->trans_b));
    return LT_OK;
}

static int64_t n_packed_products;

static lt_err multiply_copy(lt_queue *q, const lt_matmul_args *a) {
    lt_matmul_args plain = *a;
    if (a->b_packed != NULL) {
        plain.b.data = (void *)(uintptr_t)a->b_packed;
        plain.b_packed = NULL;
        n_packed_products++;
    }
    return lt_backend_cpu()->ops->matmul(q, &plain);
}

static const lt_backend *packing_backend(void) {
    static lt_ops ops;
    static lt_backend backend;
    ops = *lt_backend_cpu()->ops;
    ops.matmul_pack = copy_matrix;
    ops.matmul = multiply_copy;
    backend = *lt_backend_cpu();
    backend.ops = &ops;
    backend.matmul_pack_bytes = copy_bytes;
    return &backend;
}

/* ---- The engine ---- */

static lt_engine *open_engine(const lt_model *m) {
    lt_engine_options o = lt_engine_defaults();
    lt_engine *e = NULL;
    o.max_running = 8;
    o.step_tokens = 40;
    o.max_seq = SEQ;
    o.page_tokens = 16;
    o.deterministic = true;
    must(lt_engine_open(&e, m, &o), "engine");
    return e;
}

static lt_request greedy(int32_t *prompt, int64_t n, int64_t max_tokens, uint64_t seed) {
    lt_request r = lt_request_defaults();
    fill_prompt(prompt, n, V, seed);
    r.prompt = prompt;
    r.n_prompt = n;
    r.max_tokens = max_tokens;
    r.ignore_eos = true;
    r.logprobs = 5;
    r.sampling.temperature = 0;
    return r;
}

enum { N = 5, N_NEW = 24 };

static void ask(lt_engine *e, answer *answers) {
    int32_t prompts[N][64];
    for (int i = 0; i < N; i++) {
        const lt_request r = greedy(prompts[i], 20 + 7 * i, N_NEW, (uint64_t)i);
        send(e, &r, &answers[i]);
    }
    receive_all(e, N, 0);
}

/* Tokens, their log-probabilities and the most likely others. */
static void assert_bits(const answer *a, const answer *b, const char *what) {
    const continuation *x = &a->choices[0], *y = &b->choices[0];
    assert_same(x, y, what);
    assert_memory_equal(x->logprobs, y->logprobs, (size_t)x->n * sizeof *x->logprobs);
    assert_memory_equal(x->tops, y->tops, (size_t)x->n * sizeof *x->tops);
}

static void refreshed_is_opened_anew(lt_dtype dtype, const lt_backend *backend) {
    static answer before[N], after[N], again[N], want[N];
    trainer t;
    lt_engine *e, *fresh;
    lt_engine_stats stats;
    uint64_t version = 0;
    int n_others = 0;
    open_trainer(&t, dtype, backend);
    e = open_engine(t.model);
    for (int round = 0; round < 3; round++) {
        const uint64_t old = lt_model_version(t.model);
        ask(e, before);
        ask(e, again); /* From the prefix cache. */
        for (int i = 0; i < N; i++) {
            assert_bits(&again[i], &before[i], "the same weights");
            assert_true(again[i].cached_tokens >= 16);
            assert_int_equal(before[i].versions[0], old);
        }
        must(lt_engine_hold(e, round == 1 ? LT_HOLD_PREEMPT : LT_HOLD_FINISH), "hold");
        train(&t, 3);
        must(lt_engine_refresh(e, &version), "refresh");
        assert_int_equal(version, old + 3);
        ask(e, after);
        fresh = open_engine(t.model);
        ask(fresh, want);
        lt_engine_close(fresh);
        for (int i = 0; i < N; i++) {
            assert_bits(&after[i], &want[i], "weights that have changed");
            assert_int_equal(after[i].cached_tokens, 0);
            assert_int_equal(after[i].versions[N_NEW - 1], version);
            n_others += memcmp(before[i].choices[0].ids, after[i].choices[0].ids,
                               N_NEW * sizeof(int32_t)) != 0;
        }
    }
    assert_true(n_others > N);                       /* Otherwise nothing was learnt. */
    must(lt_engine_hold(e, LT_HOLD_FINISH), "hold"); /* Nothing changed, so pages stay. */
    must(lt_engine_refresh(e, NULL), "refresh");
    ask(e, again);
    for (int i = 0; i < N; i++) {
        assert_bits(&again[i], &after[i], "weights that have not changed");
        assert_true(again[i].cached_tokens >= 16);
    }
    lt_engine_get_stats(e, &stats);
    assert_int_equal(stats.version, version);
    lt_engine_close(e);
    close_trainer(&t);
}

static void equal_to_a_new_engine(void **state) {
    (void)state;
    refreshed_is_opened_anew(LT_F32, lt_backend_cpu());
    refreshed_is_opened_anew(LT_BF16, lt_backend_cpu());
    refreshed_is_opened_anew(LT_F32, lt_backend_ref());
    refreshed_is_opened_anew(LT_F32, packing_backend());
    assert_true(n_packed_products > 0);
}

static void equal_to_a_new_engine_on_a_gpu(void **state) {
    (void)state;
    if (gpu_backend() == NULL) {
        skip();
    }
    refreshed_is_opened_anew(LT_BF16, gpu_backend());
}

/* A session packs weights, too. */
static void sessions_refresh_themselves(void **state) {
    static float got[V], want[V];
    const int32_t ids[] = {5, 77, 123, 9};
    lt_session *s = NULL, *fresh = NULL;
    trainer t;
    (void)state;
    open_trainer(&t, LT_F32, lt_backend_cpu());
    must(lt_session_open(&s, t.model, 1, 32), "session");
    must(lt_session_eval(s, 0, ids, 4, want), "eval");
    train(&t, 2);
    lt_session_truncate(s, 0, 0);
    must(lt_session_eval(s, 0, ids, 4, got), "eval");
    assert_memory_not_equal(got, want, sizeof got);
    must(lt_session_open(&fresh, t.model, 1, 32), "session");
    must(lt_session_eval(fresh, 0, ids, 4, want), "eval");
    assert_memory_equal(got, want, sizeof got);
    lt_session_close(fresh);
    lt_session_close(s);
    close_trainer(&t);
}

/* FINISH: requests that were submitted before are completed with the old weights; those that
 * arrive while the engine is held use the new ones, and can be cancelled before. */
static void finish_then_refresh(void **state) {
    static answer old[N], late[2], want;
    int32_t prompt[64];
    lt_event event;
    trainer t;
    lt_engine *e, *fresh;
    lt_engine_stats stats;
    lt_request r;
    (void)state;
    open_trainer(&t, LT_F32, lt_backend_cpu());
    e = open_engine(t.model);
    assert_int_equal(lt_engine_refresh(e, NULL), LT_ERR_ARG);
    for (int i = 0; i < N; i++) {
        r = greedy(prompt, 30, 60, (uint64_t)i);
        send(e, &r, &old[i]);
    }
    must(lt_engine_hold(e, LT_HOLD_FINISH), "hold");
    assert_int_equal(lt_engine_hold(e, LT_HOLD_PREEMPT), LT_ERR_ARG);
    receive_all(e, N, 0); /* All of it has arrived. */
    for (int i = 0; i < 2; i++) {
        r = greedy(prompt, 30, 20, 77);
        send(e, &r, &late[i]);
    }
    lt_engine_cancel(e, late[0].id);
    receive_all(e, 1, 0); /* Although the engine rests. */
    assert_int_equal(late[0].choices[0].finish, LT_FINISH_CANCELLED);
    lt_engine_get_stats(e, &stats);
    assert_int_equal(stats.waiting, 1);
    train(&t, 2);
    assert_int_equal(lt_engine_poll(e, &event, 1), 0);
    must(lt_engine_refresh(e, NULL), "refresh");
    receive_all(e, 1, 0);
    fresh = open_engine(t.model);
    send(fresh, &r, &want);
    receive_all(fresh, 1, 0);
    assert_bits(&late[1], &want, "submitted while held");
    for (int i = 0; i < N; i++) {
        assert_int_equal(old[i].choices[0].n, 60);
        assert_int_equal(old[i].versions[59], 0);
    }
    assert_int_equal(late[1].versions[0], 2);
    lt_engine_close(fresh);
    lt_engine_close(e);
    close_trainer(&t);
}

/* PREEMPT: a text continues after its present tokens with the new weights. */
static void preempt_then_refresh(void **state) {
    enum { NEW = 110 };
    static answer cut, want;
    int32_t prompt[64], text[SEQ];
    int64_t n_old = 0;
    trainer t;
    lt_engine *e, *fresh;
    lt_request r;
    (void)state;
    open_trainer(&t, LT_F32, lt_backend_cpu());
    e = open_engine(t.model);
    r = greedy(prompt, 30, NEW, 3);
    send(e, &r, &cut);
    while (cut.n_tokens < 5) {
        assert_int_equal(receive(e, 0), 0);
    }
    must(lt_engine_hold(e, LT_HOLD_PREEMPT), "hold");
    train(&t, 3);
    must(lt_engine_refresh(e, NULL), "refresh");
    receive_all(e, 1, 0);
    assert_int_equal(cut.choices[0].n, NEW);
    while (n_old < NEW && cut.versions[n_old] == 0) {
        n_old++;
    }
    assert_in_range(n_old, 5, NEW - 1);
    for (int64_t i = n_old; i < NEW; i++) {
        assert_int_equal(cut.versions[i], 3);
    }
    memcpy(text, prompt, sizeof *text * 30);
    memcpy(text + 30, cut.choices[0].ids, sizeof *text * (size_t)n_old);
    r.prompt = text;
    r.n_prompt = 30 + n_old;
    r.max_tokens = NEW - n_old;
    fresh = open_engine(t.model);
    send(fresh, &r, &want);
    receive_all(fresh, 1, 0);
    assert_memory_equal(cut.choices[0].ids + n_old, want.choices[0].ids,
                        sizeof *text * (size_t)(NEW - n_old));
    assert_memory_equal(cut.choices[0].logprobs + n_old, want.choices[0].logprobs,
                        sizeof(float) * (size_t)(NEW - n_old));
    lt_engine_close(fresh);
    lt_engine_close(e);
    close_trainer(&t);
}

/* ---- Many threads ---- */

typedef struct {
    lt_engine *e;
    answer *answers;
    int64_t n;
    atomic_bool stop;
    int64_t n_sent;
} client;

static void *submit_on(void *arg) {
    client *c = arg;
    for (c->n_sent = 0; c->n_sent < c->n && !atomic_load(&c->stop); c->n_sent++) {
        int32_t prompt[64];
        const int64_t i = c->n_sent;
        lt_request r = greedy(prompt, 10 + i % 40, 4 + i % 30, (uint64_t)(i % 9));
        if (i % 7 == 3) {
            r.n_choices = 3;
            r.sampling.temperature = 1;
        } else if (i % 7 == 5) {
            r.embed = true;
            r.max_tokens = 0;
            r.logprobs = -1;
        } else if (i % 7 == 6) {
            r.prompt_logprobs = 2;
        }
        send(c->e, &r, &c->answers[i]);
        if (i % 11 == 10) {
            lt_engine_cancel(c->e, c->answers[i].id);
        }
        nanosleep(&(struct timespec){.tv_nsec = 300000}, NULL);
    }
    return NULL;
}

static void *train_on(void *arg) {
    struct {
        trainer *t;
        lt_engine *e;
    } *a = arg;
    for (int i = 0; i < 6; i++) {
        uint64_t version = 0;
        must(lt_engine_hold(a->e, i % 2 == 0 ? LT_HOLD_PREEMPT : LT_HOLD_FINISH), "hold");
        train(a->t, 1);
        must(lt_engine_refresh(a->e, &version), "refresh");
        assert_int_equal(version, i + 1);
        nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
    }
    return NULL;
}

static void from_many_threads(void **state) {
    enum { MOST = 120 };
    static answer answers[MOST];
    trainer t;
    client c = {.answers = answers, .n = MOST};
    struct {
        trainer *t;
        lt_engine *e;
    } both = {.t = &t};
    pthread_t clients, trains;
    (void)state;
    open_trainer(&t, LT_F32, lt_backend_cpu());
    c.e = both.e = open_engine(t.model);
    assert_int_equal(pthread_create(&clients, NULL, submit_on, &c), 0);
    assert_int_equal(pthread_create(&trains, NULL, train_on, &both), 0);
    receive_all(c.e, MOST, 64);
    assert_int_equal(pthread_join(clients, NULL), 0);
    assert_int_equal(pthread_join(trains, NULL), 0);
    for (int i = 0; i < MOST; i++) {
        for (int s = 0; s < FLEET_CHOICES; s++) {
            const lt_finish finish = answers[i].choices[s].finish;
            assert_true(finish == LT_FINISH_NONE || finish == LT_FINISH_LENGTH ||
                        finish == LT_FINISH_CANCELLED);
        }
        assert_true(answers[i].done);
    }
    lt_engine_close(c.e);
    close_trainer(&t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equal_to_a_new_engine),
        cmocka_unit_test(equal_to_a_new_engine_on_a_gpu),
        cmocka_unit_test(sessions_refresh_themselves),
        cmocka_unit_test(finish_then_refresh),
        cmocka_unit_test(preempt_then_refresh),
        cmocka_unit_test(from_many_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
