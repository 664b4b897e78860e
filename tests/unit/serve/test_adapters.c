/* Adapters that requests choose: log-probabilities against PEFT's (tools/make_lora_goldens.py),
 * all in one step, on each backend; DoRA's also against PEFT's merged model; every family against
 * a model that is opened with the adapter; requests keep their bits among others, and share pages
 * only with requests of the same adapter; places are held and reused; faulty folders are refused
 * by name and change nothing. */
#include "unit/serve/fleet.h"

#include <stdlib.h>
#include <unistd.h>

#include "base/file.h"
#include "model/alloc.h"
#include "model/lora/lora_pool.h"
#include "model/files/safetensors.h"
#include "tensor/backend.h"

#define ROOT  "tests/golden/serve/lora/"
#define MODEL "tests/golden/model/llama3"
#define SFT   "tests/golden/sft"
enum { N = 20, PLACES = 8, RANK = 16 };

typedef struct {
    json_t *root;
    lt_model *model;
    lt_engine *engine;
    int32_t tokens[N];
} fixture;

static void says(const char *text) {
    if (strstr(lt_error_message(), text) == NULL) {
        fail_msg("'%s' is not in: %s", text, lt_error_message());
    }
}

static lt_err put(lt_model *m, int32_t place, const lt_lora_source *sources, int n) {
    lt_lora_image i = {0};
    LT_TRY(lt_lora_image_open(&i, m->lora_pool, sources, n));
    const lt_err err = lt_lora_pool_fill(m->lora_pool, place, &i);
    lt_lora_image_close(&i);
    return err;
}

static void put_one(lt_model *m, int32_t place, const char *folder) {
    const lt_lora_source one = {folder, 1.0f};
    must(put(m, place, &one, 1), folder);
}

static lt_model *open_model(const char *path, const lt_model_options *o, int32_t places) {
    lt_model *m = NULL;
    must(lt_model_open(&m, path, o), path);
    must(lt_lora_pool_open(m, places, RANK, true), "places");
    return m;
}

/* Places 0 to 3 have red, green, blue and gold. */
static void open_fixture_on(fixture *f, bool deterministic, const lt_backend *b, bool stored) {
    lt_engine_options o = lt_engine_defaults();
    *f = (fixture){.root = NULL};
    must(lt_json_load(&f->root, ROOT "lora.json", 1 << 20), "golden");
    f->model = open_model(MODEL,
                          &(lt_model_options){.dtype = b != NULL ? LT_BF16 : LT_F32,
                                              .stored = stored,
                                              .device = device_of(b)},
                          PLACES);
    put_one(f->model, 0, ROOT "red");
    put_one(f->model, 1, ROOT "green");
    put_one(f->model, 2, ROOT "blue");
    put_one(f->model, 3, ROOT "gold");
    assert_int_equal(read_ids(json_object_get(f->root, "tokens"), f->tokens), N);
    o.max_seq = 64;
    o.deterministic = deterministic;
    must(lt_engine_open(&f->engine, f->model, &o), "engine");
}

static void close_fixture(fixture *f) {
    lt_engine_close(f->engine);
    for (int32_t p = 0; p < PLACES; p++) { /* No place is held any more. */
        assert_int_equal(lt_lora_pool_holds(f->model->lora_pool, p), 0);
    }
    lt_model_close(f->model);
    json_decref(f->root);
}

static lt_request request_of(const int32_t *tokens, int32_t adapter, float scale) {
    lt_request r = lt_request_defaults();
    r.prompt = tokens;
    r.n_prompt = N;
    r.max_tokens = 8;
    r.ignore_eos = true;
    r.logprobs = 3;
    r.sampling.temperature = 0;
    r.adapter = adapter;
    r.adapter_scale = scale;
    return r;
}

static int32_t place_of(const char *name) {
    static const char *const names[] = {"red", "green", "blue", "gold"};
    int32_t place = 0;
    while (strcmp(name, names[place]) != 0) {
        place++;
    }
    return place;
}

/* The adapter of a case, numbered from 1: for one adapter its place, with the scale in *scale;
 * for several, which are added up, and for DoRA's with a scale, the place `next`. */
static int32_t adapter_of(fixture *f, const json_t *c, int32_t next, float *scale) {
    static const char *const folders[] = {ROOT "red", ROOT "green", ROOT "blue", ROOT "gold"};
    const json_t *names = json_object_get(c, "adapters"), *scales = json_object_get(c, "scales");
    const int n = (int)json_array_size(names);
    lt_lora_source sources[2];
    *scale = 1.0f;
    for (int i = 0; i < n; i++) {
        sources[i] = (lt_lora_source){
            folders[place_of(json_string_value(json_array_get(names, (size_t)i)))],
            (float)json_real_value(json_array_get(scales, (size_t)i))};
    }
    const int32_t place = n == 1 ? place_of(json_string_value(json_array_get(names, 0))) : 0;
    if (n == 1 && (place != 3 || sources[0].scale == 1.0f)) {
        *scale = sources[0].scale;
        return place + 1;
    }
    if (n > 0) {
        must(put(f->model, next, sources, n), "several");
    }
    return n > 0 ? next + 1 : 0;
}

enum { CASES = 10 };

/* Send all requests, so that they run in one step. */
static void ask_all(fixture *f, answer answers[CASES]) {
    const json_t *cases = json_object_get(f->root, "cases");
    int32_t next = 4;
    assert_int_equal(json_array_size(cases), CASES);
    for (int i = 0; i < CASES; i++) {
        float scale;
        const int32_t adapter = adapter_of(f, json_array_get(cases, (size_t)i), next, &scale);
        lt_request r = request_of(f->tokens, adapter, scale);
        next += adapter == next + 1;
        r.prompt_logprobs = 0;
        send(f->engine, &r, &answers[i]);
    }
    receive_all(f->engine, CASES, 0);
}

static void compare_with_peft(bool stored, double tolerance) {
    static answer answers[CASES];
    fixture f;
    open_fixture_on(&f, false, NULL, stored);
    ask_all(&f, answers);
    const json_t *cases = json_object_get(f.root, "cases");
    for (int i = 0; i < CASES; i++) {
        const json_t *want = json_object_get(json_array_get(cases, (size_t)i), "logprobs");
        for (int k = 1; k < N; k++) {
            const double x = json_real_value(json_array_get(want, (size_t)k - 1));
            if (!(fabs((double)answers[i].prompt_logprobs[k] - x) < tolerance)) {
                fail_msg("case %d, token %d: %.7g, expected %.7g", i, k,
                         (double)answers[i].prompt_logprobs[k], x);
            }
        }
    }
    close_fixture(&f);
}

static void logprobs_are_those_of_peft(void **state) {
    (void)state;
    compare_with_peft(false, 1e-4);
}

static void logprobs_with_stored_weights(void **state) {
    (void)state;
    compare_with_peft(true, 1e-2); /* Activations and the cache in 16 bits. */
}

/* The log-probabilities of single tokens, step by step, each row with its own adapter, against
 * those of a prompt with the same text. */
static void single_tokens_agree_with_prompts(void **state) {
    enum { NEW = 8 };
    static answer answers[CASES], again[CASES];
    static int32_t texts[CASES][N + NEW];
    fixture f;
    (void)state;
    open_fixture_on(&f, false, NULL, false);
    const json_t *cases = json_object_get(f.root, "cases");
    lt_request r[CASES];
    int32_t next = 4;
    for (int i = 0; i < CASES; i++) {
        float scale;
        const int32_t adapter = adapter_of(&f, json_array_get(cases, (size_t)i), next, &scale);
        r[i] = request_of(f.tokens, adapter, scale);
        next += adapter == next + 1;
        send(f.engine, &r[i], &answers[i]);
    }
    receive_all(f.engine, CASES, 0);
    for (int i = 0; i < CASES; i++) {
        memcpy(texts[i], f.tokens, sizeof f.tokens);
        memcpy(texts[i] + N, answers[i].choices[0].ids, NEW * sizeof **texts);
        r[i].prompt = texts[i];
        r[i].n_prompt = N + NEW;
        r[i].max_tokens = 1;
        r[i].prompt_logprobs = 0;
        send(f.engine, &r[i], &again[i]);
    }
    receive_all(f.engine, CASES, 0);
    for (int i = 0; i < CASES; i++) {
        for (int k = 0; k < NEW; k++) {
            const double step = (double)answers[i].choices[0].logprobs[k],
                         prompt = (double)again[i].prompt_logprobs[N + k];
            if (!(fabs(step - prompt) < 1e-4)) {
                fail_msg("case %d, token %d: %.7g, as a prompt %.7g", i, k, step, prompt);
            }
        }
    }
    close_fixture(&f);
}

/* The log-probabilities of a text with the adapter of a place. */
static void with_place(lt_model *m, const int32_t *tokens, int32_t adapter, answer *a) {
    lt_engine_options o = lt_engine_defaults();
    lt_engine *e = NULL;
    lt_request r = request_of(tokens, adapter, 1.0f);
    o.max_seq = 64;
    r.prompt_logprobs = 0;
    must(lt_engine_open(&e, m, &o), "engine");
    send(e, &r, a);
    receive_all(e, 1, 0);
    lt_engine_close(e);
}

/* The largest difference. */
static double apart(const answer *a, const answer *b) {
    double most = 0;
    for (int k = 1; k < N; k++) {
        most = fmax(most, fabs((double)(a->prompt_logprobs[k] - b->prompt_logprobs[k])));
    }
    return most;
}

/* PEFT's merged model gives the numbers of PEFT's adapter with its base: in F32, with weights as
 * stored in the file, and with blocks of 8 bits, whose rounding also affects the lengths of
 * rows. */
static void magnitudes_are_those_of_peft(void **state) {
    static const struct {
        lt_model_options o;
        double bound;
    } kinds[] = {{{.dtype = LT_F32}, 2e-5},
                 {{.dtype = LT_F32, .stored = true}, 1e-2},
                 {{.dtype = LT_F32, .stored = true, .stored_as = LT_Q8_0}, 0.05}};
    char folder[] = "/tmp/lateen-merged-XXXXXX", from[LT_PATH_BYTES], to[LT_PATH_BYTES],
         root[LT_PATH_BYTES];
    static answer want, got, plain;
    int32_t tokens[N];
    (void)state;
    assert_non_null(mkdtemp(folder));
    assert_non_null(getcwd(root, sizeof root - 64));
    static const char *const files[][2] = {{"config.json", "config.json"},
                                           {"merged-dora.safetensors", "model.safetensors"}};
    for (int i = 0; i < 2; i++) {
        (void)snprintf(from, sizeof from, "%.900s/" SFT "/%s", root, files[i][0]);
        must(lt_path_join(to, folder, files[i][1]), folder);
        assert_int_equal(symlink(from, to), 0);
    }
    fill_prompt(tokens, N, 320, 3);
    lt_model *m = open_model(folder, &(lt_model_options){.dtype = LT_F32}, 1);
    with_place(m, tokens, 0, &want);
    lt_model_close(m);
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        m = open_model(SFT, &kinds[i].o, 2);
        put_one(m, 0, SFT "/adapter-all-end");
        put_one(m, 1, SFT "/adapter-dora-end");
        with_place(m, tokens, 2, &got);
        with_place(m, tokens, 0, &plain);
        if (!(apart(&got, &want) < kinds[i].bound) || !(apart(&plain, &want) > 0.1)) {
            fail_msg("kind %zu: log-probabilities are %g apart, without an adapter %g", i,
                     apart(&got, &want), apart(&plain, &want));
        }
        lt_model_close(m);
    }
    must(lt_file_remove_tree(folder), folder);
}

/* In 16 bits, whose rounding errors the random weights multiply: compared with the CPU in 16
 * bits. */
static void logprobs_on_a_gpu(void **state) {
    static answer on[2][CASES];
    const lt_backend *const backends[] = {lt_backend_cpu(), gpu_backend()};
    (void)state;
    if (gpu_backend() == NULL) {
        skip();
    }
    for (int k = 0; k < 2; k++) {
        fixture f;
        open_fixture_on(&f, false, backends[k], false);
        ask_all(&f, on[k]);
        close_fixture(&f);
    }
    for (int i = 0; i < CASES; i++) {
        for (int k = 1; k < N; k++) {
            const float x = on[1][i].prompt_logprobs[k], y = on[0][i].prompt_logprobs[k];
            if (!(fabsf(x - y) < 0.05f)) {
                fail_msg("case %d, token %d: %.7g, on the CPU %.7g", i, k, (double)x, (double)y);
            }
        }
    }
}

/* Steps are recorded with a plain adapter first, and then get magnitudes: single tokens against a
 * prompt with the same text. */
static void recorded_steps_get_magnitudes(void **state) {
    enum { NEW = 8 };
    static answer plain, step, prompt;
    int32_t text[N + NEW];
    fixture f;
    (void)state;
    if (gpu_backend() == NULL) {
        skip();
    }
    open_fixture_on(&f, false, gpu_backend(), false);
    lt_request r = request_of(f.tokens, 2, 1.0f); /* Green has larger ranks, and all modules. */
    send(f.engine, &r, &plain);
    receive_all(f.engine, 1, 0);
    r.adapter = 4;
    send(f.engine, &r, &step);
    receive_all(f.engine, 1, 0);
    memcpy(text, f.tokens, sizeof f.tokens);
    memcpy(text + N, step.choices[0].ids, NEW * sizeof *text);
    r.prompt = text;
    r.n_prompt = N + NEW;
    r.max_tokens = 1;
    r.prompt_logprobs = 0;
    send(f.engine, &r, &prompt);
    receive_all(f.engine, 1, 0);
    for (int k = 0; k < NEW; k++) {
        const float x = step.choices[0].logprobs[k], y = prompt.prompt_logprobs[N + k];
        if (!(fabsf(x - y) < 0.05f)) {
            fail_msg("token %d: %.7g, as a prompt %.7g", k, (double)x, (double)y);
        }
    }
    close_fixture(&f);
}

/* Numbers of similar size in A and B. */
static void fill(lt_lora *l) {
    const lt_param_table *t = &l->params->table;
    for (int i = 0; i < t->n_params; i++) {
        const lt_param *p = &t->params[i];
        for (int64_t k = 0; k < p->count; k++) {
            const uint64_t r = lt_rng_mix((uint64_t)(p->whole_at + k) * 77);
            const float x = ((float)(r >> 40) * 0x1p-24f - 0.5f) * 0.3f;
            lt_model_set(l->params, p, k, &x, LT_F32, 1);
        }
    }
    must(lt_model_settle(l->params), "settle");
}

static void prompt_logprobs(const lt_model *m, int32_t adapter, answer *a) {
    lt_engine_options o = lt_engine_defaults();
    lt_engine *e = NULL;
    int32_t tokens[N];
    o.max_seq = 32;
    fill_prompt(tokens, N, lt_model_get_spec(m)->vocab_size, 3);
    lt_request r = request_of(tokens, adapter, 1.0f);
    r.prompt_logprobs = 0;
    must(lt_engine_open(&e, m, &o), "engine");
    send(e, &r, a);
    receive_all(e, 1, 0);
    lt_engine_close(e);
}

/* The model with adapters of its own, which test_lora.c compares with merged weights, against the
 * same adapters in a place. */
static void every_family(void **state) {
    static const char *const families[] = {"gpt2",    "llama_bias", "qwen2",   "qwen3", "gemma2",
                                           "gemma3",  "apertus",    "mistral", "phi3",  "olmo2",
                                           "smollm3", "granite",    "phi4"};
    static answer own, placed;
    (void)state;
    for (size_t n = 0; n < 2 * sizeof families / sizeof *families; n++) {
        const size_t i = n / 2;
        char folder[] = "/tmp/lateen-lora-XXXXXX", path[256];
        const lt_lora_options o = {
            .rank = 3, .alpha = 4.5, .targets = LT_LORA_ALL, .dora = n % 2 == 1};
        lt_model *m = NULL;
        lt_lora *l = NULL;
        (void)snprintf(path, sizeof path, "tests/golden/model/%s", families[i]);
        assert_non_null(mkdtemp(folder));
        must(lt_model_open(&m, path, &(lt_model_options){.dtype = LT_F32}), path);
        must(lt_lora_open(&l, m, &o, 1), path);
        fill(l);
        must(lt_lora_save(l, folder, path), folder);
        prompt_logprobs(m, 0, &own);
        lt_lora_close(l);
        lt_model_close(m);
        m = open_model(path, &(lt_model_options){.dtype = LT_F32}, 2);
        put_one(m, 1, folder);
        prompt_logprobs(m, 2, &placed);
        if (!(apart(&own, &placed) < 1e-4)) { /* F32 sums in another order. */
            fail_msg("%s, %s: log-probabilities are %g apart", families[i],
                     o.dora ? "with magnitudes" : "without", apart(&own, &placed));
        }
        lt_model_close(m);
        must(lt_file_remove_tree(folder), folder);
    }
}

/* The fixture with two adapters in place 4, whose ranks are higher than those of the others. */
static void open_with_two(fixture *f) {
    const lt_lora_source both[] = {{ROOT "green", 1.0f}, {ROOT "red", 1.0f}};
    open_fixture_on(f, true, NULL, false);
    must(put(f->model, 4, both, 2), "two");
}

/* Alone and among others; from the prefix cache and without it. */
static void requests_keep_their_bits(void **state) {
    enum { KINDS = 7, EACH = 3 };
    static const struct {
        int32_t adapter;
        float scale;
    } kinds[KINDS] = {{0, 1}, {1, 1}, {2, 1}, {2, -0.5f}, {3, 1}, {4, 1}, {5, 1}};
    static answer alone[KINDS], among[KINDS * EACH];
    fixture f;
    (void)state;
    for (int k = 0; k < KINDS; k++) {
        open_with_two(&f);
        const lt_request r = request_of(f.tokens, kinds[k].adapter, kinds[k].scale);
        send(f.engine, &r, &alone[k]);
        receive_all(f.engine, 1, 0);
        close_fixture(&f);
        for (int i = 0; i < k; i++) {
            assert_true(memcmp(alone[i].choices[0].logprobs, alone[k].choices[0].logprobs,
                               8 * sizeof(float)) != 0);
        }
    }
    open_with_two(&f);
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < KINDS * EACH; i++) {
            const lt_request r = request_of(f.tokens, kinds[i % KINDS].adapter,
                                            kinds[i % KINDS].scale);
            send(f.engine, &r, &among[i]);
        }
        receive_all(f.engine, KINDS * EACH, 0);
        for (int i = 0; i < KINDS * EACH; i++) {
            assert_equal(&among[i].choices[0], &alone[i % KINDS].choices[0], "among others");
            assert_true(round == 0 || among[i].cached_tokens == 16);
        }
    }
    close_fixture(&f);
}

/* Drafts, several choices, and guidance, whose second sequence uses the adapter, too. */
static void other_features_keep_working(void **state) {
    enum { KINDS = 3 };
    static answer plain[KINDS], drafted[KINDS], forked, guided;
    lt_engine_options o = lt_engine_defaults();
    lt_engine_stats stats;
    fixture f;
    (void)state;
    open_fixture_on(&f, true, NULL, false);
    lt_engine_close(f.engine);
    o.max_seq = 64;
    o.deterministic = true;
    for (int pass = 0; pass < 3; pass++) { /* The last pass has branches. */
        o.speculate = pass > 0;
        o.draft_tokens = pass > 0 ? 4 : 0;
        o.draft_branches = pass == 2 ? 4 : 0;
        must(lt_engine_open(&f.engine, f.model, &o), "engine");
        for (int k = 0; k < KINDS; k++) {
            lt_request r = request_of(f.tokens, k, 1.0f);
            r.max_tokens = 40;
            send(f.engine, &r, pass == 0 ? &plain[k] : &drafted[k]);
        }
        receive_all(f.engine, KINDS, 0);
        for (int k = 0; k < KINDS && pass > 0; k++) {
            assert_equal(&drafted[k].choices[0], &plain[k].choices[0], "with drafts");
        }
        lt_engine_get_stats(f.engine, &stats);
        assert_true((stats.branches > 0) == (pass == 2));
        if (pass < 2) {
            lt_engine_close(f.engine);
        }
    }
    lt_request r = request_of(f.tokens, 2, 1.0f);
    r.n_choices = 3;
    r.max_tokens = 40;
    send(f.engine, &r, &forked);
    r.n_choices = 1;
    r.guidance = (lt_guidance){.on = true, .scale = 1.0f}; /* The same as without guidance. */
    send(f.engine, &r, &guided);
    receive_all(f.engine, 2, 0);
    for (int c = 0; c < 3; c++) {
        assert_equal(&forked.choices[c], &plain[2].choices[0], "a fork");
    }
    assert_same(&guided.choices[0], &plain[2].choices[0], "guided");
    close_fixture(&f);
}

/* A place is held until its request is done; then it can have another adapter, whose requests do
 * not read the pages of the first. */
static void places_are_reused(void **state) {
    static answer red, green, before, again;
    fixture f;
    (void)state;
    open_fixture_on(&f, true, NULL, false);
    lt_request r = request_of(f.tokens, 1, 1.0f);
    must(lt_engine_hold(f.engine, LT_HOLD_FINISH), "hold");
    send(f.engine, &r, &red);
    assert_int_equal(lt_lora_pool_holds(f.model->lora_pool, 0), 1);
    must(lt_engine_refresh(f.engine, NULL), "refresh");
    receive_all(f.engine, 1, 0);
    assert_int_equal(lt_lora_pool_holds(f.model->lora_pool, 0), 0);
    r.adapter = 2;
    send(f.engine, &r, &green);
    receive_all(f.engine, 1, 0);
    assert_true(lt_lora_pool_digest(f.model->lora_pool, 0) !=
                lt_lora_pool_digest(f.model->lora_pool, 1));
    put_one(f.model, 0, ROOT "green");
    r.adapter = 1;
    send(f.engine, &r, &before); /* The same numbers in another place: its pages are shared. */
    receive_all(f.engine, 1, 0);
    assert_equal(&before.choices[0], &green.choices[0], "in another place");
    assert_int_equal(before.cached_tokens, 16);
    put_one(f.model, 1, ROOT "red");
    r.adapter = 2;
    send(f.engine, &r, &again);
    receive_all(f.engine, 1, 0);
    assert_equal(&again.choices[0], &red.choices[0], "back again");
    close_fixture(&f);
}

/* ---- Faults ---- */

/* Adapters that differ only in their magnitudes, since B is zero, share no pages. */
static void magnitudes_are_in_the_digest(void **state) {
    const lt_lora_options o = {.rank = 2, .alpha = 2, .targets = "q_proj", .dora = true};
    lt_model *m = NULL;
    lt_lora *l = NULL;
    (void)state;
    must(lt_model_open(&m, MODEL, &(lt_model_options){.dtype = LT_F32}), MODEL);
    must(lt_lora_pool_open(m, 2, RANK, true), "places");
    lt_model *base = NULL;
    must(lt_model_open(&base, MODEL, &(lt_model_options){.dtype = LT_F32}), MODEL);
    must(lt_lora_open(&l, base, &o, 1), "adapters");
    for (int32_t place = 0; place < 2; place++) {
        char folder[] = "/tmp/lateen-lora-XXXXXX";
        assert_non_null(mkdtemp(folder));
        must(lt_lora_save(l, folder, MODEL), folder);
        put_one(m, place, folder);
        must(lt_file_remove_tree(folder), folder);
        for (int i = 0; i < l->params->table.n_params; i++) {
            const lt_param *p = &l->params->table.params[i];
            const float x = 7.0f;
            if (p->n_dims == 1) {
                lt_model_set(l->params, p, 0, &x, LT_F32, 1);
            }
        }
        must(lt_model_settle(l->params), "settle");
    }
    assert_true(lt_lora_pool_digest(m->lora_pool, 0) != lt_lora_pool_digest(m->lora_pool, 1));
    lt_lora_close(l);
    lt_model_close(base);
    lt_model_close(m);
}

/* A server without memory for magnitudes says how to get it. */
static void missing_memory_for_magnitudes_is_reported(void **state) {
    lt_model *m = NULL;
    (void)state;
    must(lt_model_open(&m, MODEL, &(lt_model_options){.dtype = LT_F32}), MODEL);
    must(lt_lora_pool_open(m, 1, RANK, false), "places");
    assert_int_equal(put(m, 0, &(lt_lora_source){ROOT "gold", 1.0f}, 1), LT_ERR_UNSUPPORTED);
    says("name an adapter with use_dora when it starts");
    must(put(m, 0, &(lt_lora_source){ROOT "red", 1.0f}, 1), "red");
    lt_model_close(m);
}

/* A folder with one tensor, and further keys in its configuration. */
static void write_folder(const char *folder, const char *name, int64_t rows, int64_t cols,
                         float value, const char *more) {
    char path[LT_PATH_BYTES], *text;
    float *x = calloc((size_t)(rows * cols), sizeof *x);
    json_t *config = json_pack("{s:s, s:i, s:i, s:s}", "peft_type", "LORA", "r", 4, "lora_alpha", 8,
                               "target_modules", "all-linear");
    json_t *keys = json_loads(more, 0, NULL);
    assert_true(x != NULL && keys != NULL);
    x[0] = value;
    const lt_safetensor_memory memory = {x, sizeof *x};
    const lt_safetensor_out t = {.name = name,
                                 .dtype = LT_F32,
                                 .n_dims = 2,
                                 .shape = {rows, cols},
                                 .fill = lt_safetensor_fill_memory,
                                 .ctx = &memory};
    must(lt_path_join(path, folder, "adapter_model.safetensors"), folder);
    must(lt_safetensors_write(path, &t, 1, NULL, NULL), path);
    assert_int_equal(json_object_update(config, keys), 0);
    text = json_dumps(config, 0);
    assert_non_null(text);
    must(lt_path_join(path, folder, "adapter_config.json"), folder);
    must(lt_file_write_atomic(path, text, strlen(text)), path);
    free(text);
    json_decref(keys);
    json_decref(config);
    free(x);
}

#define Q_A "base_model.model.model.layers.1.self_attn.q_proj.lora_A.weight"
#define Q_B "base_model.model.model.layers.1.self_attn.q_proj.lora_B.weight"
#define Q_M "base_model.model.model.layers.1.self_attn.q_proj.lora_magnitude_vector"

static void faults_are_reported(void **state) {
    static const struct {
        const char *tensor;
        int64_t rows, cols;
        float value;
        const char *more;
        lt_err err;
        const char *words;
    } files[] = {
        {Q_A, 4, 48, 1, "{}", LT_ERR_FORMAT, "is (4, 48) where (4, 32) is expected"},
        {Q_A, 4, 32, 1, "{}", LT_ERR_FORMAT, "no tensor " Q_B},
        {Q_A, 4, 32, INFINITY, "{}", LT_ERR_FORMAT, "element 0 is not finite"},
        {Q_A, 17, 32, 1, "{}", LT_ERR_UNSUPPORTED, "q_proj has rank 17, where 16 are left"},
        {Q_B, 32, 4, 1, "{}", LT_ERR_FORMAT, "is there without " Q_A},
        {"base_model.model.lm_head.lora_A.weight", 4, 32, 1, "{}", LT_ERR_UNSUPPORTED,
         "base_model.model.lm_head.lora_A.weight belongs to no linear layer"},
        {"base_model.model.model.layers.2.self_attn.q_proj.lora_A.weight", 4, 32, 1, "{}",
         LT_ERR_UNSUPPORTED, "llama, 2 layers"},
        {Q_A, 4, 32, 1, "{\"r\": 5}", LT_ERR_FORMAT,
         "q_proj has an adapter of rank 4, of which adapter_config.json says rank 5"},
        {Q_A, 4, 32, 1, "{\"exclude_modules\": \".*q_proj\"}", LT_ERR_FORMAT,
         "q_proj has an adapter of rank 4, of which adapter_config.json says rank 0"},
        {Q_A, 4, 32, 1, "{\"r\": 5, \"rank_pattern\": {\"q_proj\": 4}}", LT_ERR_FORMAT,
         "no tensor " Q_B},
        {Q_A, 4, 32, 1, "{\"use_dora\": true}", LT_ERR_FORMAT, "no tensor " Q_B},
        {Q_M, 4, 32, 1, "{\"use_dora\": true}", LT_ERR_FORMAT, "has no tensor of an adapter"},
        {Q_M, 4, 32, 1, "{}", LT_ERR_UNSUPPORTED, Q_M " belongs to no linear layer"},
        {Q_A, 4, 32, 1, "{\"modules_to_save\": [\"lm_head\"]}", LT_ERR_UNSUPPORTED, "'lm_head'"},
        {Q_A, 4, 32, 1, "{\"peft_type\": \"IA3\"}", LT_ERR_UNSUPPORTED, "only LORA"}};
    char folder[] = "/tmp/lateen-lora-XXXXXX";
    static answer before, after;
    lt_request r;
    uint64_t id;
    fixture f;
    (void)state;
    assert_non_null(mkdtemp(folder));
    open_fixture_on(&f, true, NULL, false);
    r = request_of(f.tokens, 1, 1.0f);
    send(f.engine, &r, &before);
    receive_all(f.engine, 1, 0);
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        const lt_lora_source one = {folder, 1.0f};
        write_folder(folder, files[i].tensor, files[i].rows, files[i].cols, files[i].value,
                     files[i].more);
        assert_int_equal(put(f.model, 0, &one, 1), files[i].err);
        says(files[i].words);
    }
    assert_int_equal(put(f.model, 0, &(lt_lora_source){"/nowhere", 1.0f}, 1), LT_ERR_NOT_FOUND);
    says("/nowhere is not an adapter: /nowhere/adapter_config.json is not there");
    const lt_lora_source three[] = {
        {ROOT "green", 1.0f}, {ROOT "green", 0.5f}, {ROOT "green", 0.25f}};
    assert_int_equal(put(f.model, 0, three, 3), LT_ERR_UNSUPPORTED); /* 6 of each of the 16. */
    says("has rank 6, where 4 are left");
    const lt_lora_source gold[] = {{ROOT "red", 1.0f}, {ROOT "gold", 1.0f}};
    assert_int_equal(put(f.model, 0, gold, 2), LT_ERR_UNSUPPORTED);
    says("is not added to others");
    send(f.engine, &r, &after);
    receive_all(f.engine, 1, 0);
    assert_equal(&after.choices[0], &before.choices[0], "after faults");
    r.adapter = PLACES + 1;
    assert_int_equal(lt_engine_submit(f.engine, &r, NULL, &id), LT_ERR_ARG);
    r.adapter = 4; /* Gold. */
    r.adapter_scale = 0.5f;
    assert_int_equal(lt_engine_submit(f.engine, &r, NULL, &id), LT_ERR_ARG);
    says("adapter 4 with the scale 0.5: it has magnitudes");
    r.adapter = 1;
    r.adapter_scale = NAN;
    assert_int_equal(lt_engine_submit(f.engine, &r, NULL, &id), LT_ERR_ARG);
    close_fixture(&f);
    must(lt_file_remove_tree(folder), folder);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(logprobs_are_those_of_peft),
        cmocka_unit_test(single_tokens_agree_with_prompts),
        cmocka_unit_test(logprobs_with_stored_weights),
        cmocka_unit_test(magnitudes_are_those_of_peft),
        cmocka_unit_test(logprobs_on_a_gpu),
        cmocka_unit_test(recorded_steps_get_magnitudes),
        cmocka_unit_test(every_family),
        cmocka_unit_test(requests_keep_their_bits),
        cmocka_unit_test(other_features_keep_working),
        cmocka_unit_test(places_are_reused),
        cmocka_unit_test(magnitudes_are_in_the_digest),
        cmocka_unit_test(missing_memory_for_magnitudes_is_reported),
        cmocka_unit_test(faults_are_reported),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
