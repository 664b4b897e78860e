/* fleet.h: many requests at once to an engine, and their results, for tests of the engine. */
#ifndef TESTS_SERVE_FLEET_H
#define TESTS_SERVE_FLEET_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <math.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/error.h"
#include "base/json.h"
#include "base/rng.h"
#include "lateen/serve.h"
#include "model/params.h"
#include "unit/device.h"

#ifndef FLEET_CHOICES
#define FLEET_CHOICES 4
#endif
enum { FLEET_TOKENS = 256, FLEET_EVENTS = 64 };

typedef struct {
    int32_t ids[FLEET_TOKENS];
    float logprobs[FLEET_TOKENS];
    uint64_t tops[FLEET_TOKENS]; /* Hashes of the most likely ids, in order. */
    int64_t n;
    lt_finish finish;
    lt_err failure;
} continuation;

typedef struct {
    uint64_t id;
    continuation choices[FLEET_CHOICES];
    float prompt_logprobs[FLEET_TOKENS];
    /* Versions of the weights for the tokens of the first choice. */
    uint64_t versions[FLEET_TOKENS];
    float embedding[512];
    int64_t n_prompt_told, cached_tokens, new_tokens, n_tokens;
    int64_t drafted, accepted; /* Over all choices. */
    bool done;
} answer;

static inline void must(lt_err err, const char *what) {
    if (err != LT_OK) {
        fail_msg("%s: %s", what, lt_error_message());
    }
}

/* A small model of the given shape with random weights, large enough that its tokens vary. */
static inline lt_model *random_model_of(int64_t vocab_size, int64_t max_seq, int64_t head_dim,
                                        lt_dtype dtype, float softcap, const lt_backend *backend) {
    const lt_model_spec spec = {.family = LT_FAMILY_LLAMA,
                                .n_layers = 2,
                                .width = 64,
                                .n_heads = 4,
                                .n_kv_heads = 2,
                                .head_dim = head_dim,
                                .ffn_width = 96,
                                .vocab_size = vocab_size,
                                .max_seq = max_seq,
                                .norm_eps = 1e-5f,
                                .act = 2, /* SiLU. */
                                .gated = true,
                                .embed_scale = 1.0f,
                                .pos = LT_POS_ROPE,
                                .rope_theta = 10000,
                                .bos_id = 1,
                                .eos = {.ids = {2}, .n = 1},
                                .pad_id = -1,
                                .init_std = 0.15f,
                                .final_softcap = softcap};
    lt_model *m = NULL;
    must(lt_model_create(&m, &spec,
                         &(lt_model_options){.dtype = dtype, .device = device_of(backend)}, 7),
         "model");
    return m;
}

static inline lt_model *random_model_on(int64_t vocab_size, int64_t max_seq, lt_dtype dtype,
                                        float softcap, const lt_backend *backend) {
    return random_model_of(vocab_size, max_seq, 16, dtype, softcap, backend);
}

static inline lt_model *random_model(int64_t vocab_size, int64_t max_seq, lt_dtype dtype) {
    return random_model_on(vocab_size, max_seq, dtype, 0.0f, NULL);
}

static inline void take_event(answer *a, const lt_event *e, int64_t width) {
    continuation *c = &a->choices[e->choice];
    assert_false(a->done);
    switch (e->kind) {
    case LT_EVENT_PROMPT:
        a->prompt_logprobs[a->n_prompt_told++] = e->logprob;
        break;
    case LT_EVENT_TOKEN:
        assert_true(c->finish == LT_FINISH_NONE && c->n < FLEET_TOKENS);
        c->ids[c->n] = e->id;
        for (int i = 0; i < e->n_top; i++) {
            c->tops[c->n] = lt_rng_mix(c->tops[c->n] + (uint64_t)e->top[i].id);
        }
        if (e->choice == 0) {
            a->versions[c->n] = e->version;
        }
        c->logprobs[c->n++] = e->logprob;
        a->n_tokens++;
        break;
    case LT_EVENT_EMBED:
        assert_true(e->n_embedding <= 512 && (width == 0 || width == e->n_embedding));
        memcpy(a->embedding, e->embedding, (size_t)e->n_embedding * sizeof(float));
        break;
    case LT_EVENT_CHOICE:
        assert_int_equal(c->finish, LT_FINISH_NONE);
        assert_int_equal(e->new_tokens, c->n);
        c->finish = e->finish;
        c->failure = e->failure;
        a->drafted += e->drafted;
        a->accepted += e->accepted;
        break;
    case LT_EVENT_DONE:
        a->done = true;
        a->cached_tokens = e->cached_tokens;
        a->new_tokens = e->new_tokens;
        assert_int_equal(a->new_tokens, a->n_tokens);
        break;
    }
}

static inline void send(lt_engine *e, const lt_request *r, answer *a) {
    *a = (answer){0};
    must(lt_engine_submit(e, r, a, &a->id), "submit");
}

/* How long an engine may return no event. DEADLINE_FACTOR multiplies it like the deadlines of
 * suites (tests/run.sh): a busy machine takes longer if kernels are compiled first. */
static inline int patience_ms(void) {
    const char *text = getenv("DEADLINE_FACTOR");
    const int factor = text != NULL ? atoi(text) : 1;
    return 20000 * (factor > 1 ? factor : 1);
}

/* Wait for events and take them; returns how many requests they complete. */
static inline int64_t receive(lt_engine *e, int64_t width) {
    static lt_event events[FLEET_EVENTS];
    struct pollfd p = {.fd = lt_engine_fd(e), .events = POLLIN};
    int64_t n, n_done = 0;
    if (poll(&p, 1, patience_ms()) != 1) {
        fail_msg("the engine returns no event for %d s", patience_ms() / 1000);
    }
    n = lt_engine_poll(e, events, FLEET_EVENTS);
    for (int64_t i = 0; i < n; i++) {
        take_event(events[i].user, &events[i], width);
        n_done += events[i].kind == LT_EVENT_DONE;
    }
    return n_done;
}

static inline void receive_all(lt_engine *e, int64_t n, int64_t width) {
    while (n > 0) {
        n -= receive(e, width);
    }
}

/* Bytes of a cache of this many pages, for an engine with these options. */
static inline int64_t bytes_of_pages(const lt_model *m, const lt_engine_options *o, int64_t pages) {
    lt_engine *e = NULL;
    lt_engine_cache c;
    must(lt_engine_open(&e, m, o), "engine");
    lt_engine_get_cache(e, &c);
    lt_engine_close(e);
    return pages * c.page_bytes;
}

static inline void assert_no_page_held(lt_engine *e) {
    lt_engine_stats stats;
    for (int i = 0; i < 1000; i++) { /* The last step is published after its events. */
        lt_engine_get_stats(e, &stats);
        if (stats.running == 0 && stats.pages_used == 0) {
            break;
        }
        usleep(1000);
    }
    assert_int_equal(stats.running, 0);
    assert_int_equal(stats.waiting, 0);
    assert_int_equal(stats.pages_used, 0);
}

/* Read the numbers of a list into out; returns their count. */
static inline int64_t read_ids(const json_t *list, int32_t *out) {
    for (size_t i = 0; i < json_array_size(list); i++) {
        out[i] = (int32_t)json_integer_value(json_array_get(list, i));
    }
    return (int64_t)json_array_size(list);
}

static inline void assert_same(const continuation *a, const continuation *b, const char *what) {
    if (a->n != b->n || a->finish != b->finish ||
        memcmp(a->ids, b->ids, (size_t)a->n * sizeof *a->ids) != 0) {
        fail_msg("%s: %lld and %lld tokens (%d, %d), or others", what, (long long)a->n,
                 (long long)b->n, (int)a->finish, (int)b->finish);
    }
}

/* The two must be equal, bit for bit. */
static inline void assert_equal(const continuation *a, const continuation *b, const char *what) {
    assert_same(a, b, what);
    if (memcmp(a->logprobs, b->logprobs, (size_t)a->n * sizeof *a->logprobs) != 0) {
        fail_msg("%s: log-probabilities differ in their bits", what);
    }
}

static inline void fill_prompt(int32_t *ids, int64_t n, int64_t vocab_size, uint64_t seed) {
    for (int64_t i = 0; i < n; i++) {
        ids[i] = (int32_t)(3 + lt_rng_mix(seed * 1000 + (uint64_t)i) % (uint64_t)(vocab_size - 3));
    }
}

static inline int32_t best_of(const float *x, int64_t n) {
    int32_t best = 0;
    for (int32_t i = 1; i < n; i++) {
        best = x[i] > x[best] ? i : best;
    }
    return best;
}

/* The greedy tokens of a session, one by one. */
static inline void greedy_session(const lt_model *m, const int32_t *prompt, int64_t n_prompt,
                                  int64_t n_new, continuation *out) {
    const int64_t V = lt_model_get_spec(m)->vocab_size;
    static float logits[512];
    lt_session *s = NULL;
    *out = (continuation){.finish = LT_FINISH_LENGTH};
    assert_true(V <= 512);
    must(lt_session_open(&s, m, 1, n_prompt + n_new), "session");
    must(lt_session_eval(s, 0, prompt, n_prompt, logits), "prompt");
    while (out->n < n_new) {
        const int32_t id = best_of(logits, V);
        out->ids[out->n++] = id;
        must(lt_session_eval(s, 0, &id, 1, logits), "token");
    }
    lt_session_close(s);
}

/* Six greedy requests whose prompts are processed in pieces, beside others that decode, against
 * one session at a time of `judge`, which may be the same model on another device. */
static inline void engine_says_what_a_session_says(const lt_model *m, const lt_model *judge,
                                                   const char *name) {
    enum { N = 6 };
    static answer answers[N];
    int32_t prompts[N][18];
    lt_engine_options o = lt_engine_defaults();
    lt_request r = lt_request_defaults();
    lt_engine *e = NULL;
    o.max_running = 4;
    o.step_tokens = 7;
    o.max_seq = 24;
    must(lt_engine_open(&e, m, &o), name);
    r.sampling.temperature = 0;
    r.ignore_eos = true;
    memset(answers, 0, sizeof answers);
    for (int i = 0; i < N; i++) {
        fill_prompt(prompts[i], 3 + 3 * i, lt_model_get_spec(m)->vocab_size, (uint64_t)i + 50);
        r.prompt = prompts[i];
        r.n_prompt = 3 + 3 * i; /* Longrope's original context is 16. */
        r.max_tokens = 24 - r.n_prompt;
        send(e, &r, &answers[i]);
    }
    receive_all(e, N, 0);
    for (int i = 0; i < N; i++) {
        continuation want;
        greedy_session(judge, prompts[i], 3 + 3 * i, 21 - 3 * i, &want);
        assert_same(&answers[i].choices[0], &want, name);
    }
    lt_engine_close(e);
}

#endif
