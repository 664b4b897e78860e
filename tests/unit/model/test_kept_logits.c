/* Logits that are kept from the log-probabilities to their backward pass (loss.c): every bit of
 * the log-probabilities and of the gradients is that of a pass that computes them twice, and the
 * second products are saved. All rows and packed ones, several chunks, a temperature, a cap; a
 * set that another one has overtaken, or whose batch has changed; F32 and BF16; on the CPU and,
 * if there is one, on the GPU. */
#include "unit/model/golden.h"

#include "model/alloc.h"
#include "model/family.h"
#include "model/pass/pass_impl.h"

enum { B = 2, T = 72, ROWS = B * T, VOCAB = 300, CHUNK = 48, SETS = 2 };

typedef struct {
    int32_t tokens[ROWS], labels[ROWS];
    float d[ROWS];
    lt_pass_batch batch;
} example;

/* In each row of the batch the last `answer` labels count. */
static void make(example *e, int64_t answer, int64_t seed) {
    for (int64_t i = 0; i < ROWS; i++) {
        e->tokens[i] = (int32_t)((i * 7919 + seed) % VOCAB);
        e->labels[i] = i % T >= T - answer ? (int32_t)((i * 104729 + seed) % VOCAB) : -1;
        e->d[i] = (float)((i + seed) % 11 - 5);
    }
    e->batch = (lt_pass_batch){.batch = B, .seq = T, .tokens = e->tokens, .labels = e->labels};
}

typedef struct {
    lt_model *model;
    lt_pass *pass;
    float *gradients;
    float logprobs[SETS][ROWS];
} side;

static void side_open(side *x, const lt_model_spec *s, const lt_backend *be, lt_dtype dtype,
                      bool keep) {
    *x = (side){0};
    must(lt_model_create(
             &x->model, s,
             &(lt_model_options){.dtype = dtype, .trainable = true, .device = device_of(be)}, 1),
         be->name);
    must(lt_pass_open(&x->pass, x->model,
                      &(lt_pass_options){.batch = B,
                                         .seq = T,
                                         .train = true,
                                         .loss_chunk_rows = CHUNK,
                                         .weights = true,
                                         .masks = true,
                                         .n_sets = SETS,
                                         .keep_logits = keep}),
         be->name);
    x->gradients = malloc(lt_param_buffer_bytes(&x->model->table, LT_F32));
    assert_non_null(x->gradients);
}

static void side_close(side *x) {
    free(x->gradients);
    lt_pass_close(x->pass);
    lt_model_close(x->model);
}

static void forward(side *x, int set, const example *e) {
    must(lt_pass_logprobs(x->pass, set, &e->batch, x->logprobs[set]), "logprobs");
}

static void backward(side *x, int set, const example *e) {
    must(lt_pass_logprobs_backward(x->pass, set, e->d, 0.5f), "backward");
}

static void download(side *x) {
    must(x->pass->exec.backend->sync(lt_pass_queue(x->pass)), "wait");
    must(lt_model_download(x->model, x->gradients, lt_param_floats(lt_pass_gradients(x->pass)),
                           lt_param_buffer_bytes(&x->model->table, LT_F32)),
         "gradients");
}

static int64_t products(side *x) {
    lt_pass_op_time times[LT_TIMED_COUNT];
    must(lt_pass_profile(x->pass, times), "profile");
    return times[LT_OP_matmul].calls;
}

/* What a case does with a pass: two batches in the given order. */
typedef struct {
    const char *name;
    void (*run)(side *x, const example *a, const example *b);
    int kept; /* Number of batches whose backward pass finds its logits. */
} order;

static void one_after_the_other(side *x, const example *a, const example *b) {
    forward(x, 0, a);
    backward(x, 0, a);
    forward(x, 1, b);
    backward(x, 1, b);
}

static void overtaken(side *x, const example *a, const example *b) {
    forward(x, 0, a);
    forward(x, 1, b);
    backward(x, 0, a);
    backward(x, 1, b);
}

static void backward_twice(side *x, const example *a, const example *b) {
    (void)b;
    forward(x, 0, a);
    backward(x, 0, a);
    must(lt_pass_objective(x->pass, 0, a->d, 0.5f), "the head once more");
}

/* The second batch in this set computes losses only, and does not keep its logits. */
static void another_batch(side *x, const example *a, const example *b) {
    lt_pass_result r = {0};
    forward(x, 0, a);
    must(lt_pass_load(x->pass, 0, &b->batch), "load");
    must(lt_pass_forward(x->pass, 0, 0, 1), "forward");
    must(lt_pass_loss(x->pass, 0, 0.0f), "loss");
    must(lt_pass_result_of(x->pass, 0, &r, x->logprobs[0]), "losses");
    backward(x, 0, b);
}

static void compare(const order *o, const lt_model_spec *s, const lt_backend *be, lt_dtype dtype,
                    int64_t answer, float temperature) {
    const int64_t rows = B * answer, chunks = (rows + CHUNK - 1) / CHUNK;
    static example a, b;
    side kept, twice;
    make(&a, answer, 1);
    make(&b, answer, 2);
    side_open(&kept, s, be, dtype, true);
    side_open(&twice, s, be, dtype, false);
    side *const sides[] = {&kept, &twice};
    for (int i = 0; i < 2; i++) {
        lt_pass_set_temperature(sides[i]->pass, temperature);
        must(lt_pass_zero_gradients(sides[i]->pass), "zero");
        o->run(sides[i], &a, &b);
        download(sides[i]);
    }
    assert_memory_equal(kept.logprobs, twice.logprobs, sizeof kept.logprobs);
    assert_memory_equal(kept.gradients, twice.gradients,
                        lt_param_buffer_bytes(&kept.model->table, LT_F32));
    if (be->host_memory && products(&twice) - products(&kept) != o->kept * chunks) {
        fail_msg("%s: %lld products less, not %lld", o->name,
                 (long long)(products(&twice) - products(&kept)), (long long)(o->kept * chunks));
    }
    side_close(&kept);
    side_close(&twice);
}

static lt_model_spec small(void) {
    lt_model_spec s = lt_family_get(LT_FAMILY_APERTUS)->preset;
    s.n_layers = 1;
    s.width = 64;
    s.n_heads = 4;
    s.n_kv_heads = 2;
    s.head_dim = 16;
    s.ffn_width = 96;
    s.vocab_size = VOCAB;
    return s;
}

static void on(const lt_backend *be) {
    static const order orders[] = {{"one after the other", one_after_the_other, 2},
                                   {"overtaken", overtaken, 1},
                                   {"backward twice", backward_twice, 1},
                                   {"another batch", another_batch, 0}};
    static const lt_dtype dtypes[] = {LT_F32, LT_BF16};
    static const float caps[] = {0.0f, 7.5f}, temperatures[] = {1.0f, 0.7f};
    lt_model_spec s = small();
    for (size_t i = 0; i < sizeof orders / sizeof *orders; i++) {
        /* All rows, and packed ones. An emulated GPU is slow: there F32 has all rows and BF16
         * packed ones; core: the orders in turn. */
        for (int k = 0; k < 4; k += be->host_memory ? 1 : 3) {
            if (!be->host_memory && core_only() && i > 0 && k / 3 != (int)(i % 2)) {
                continue;
            }
            s.final_softcap = caps[k / 2];
            compare(&orders[i], &s, be, dtypes[k % 2], k / 2 == 0 ? T : 32, temperatures[k / 2]);
        }
    }
}

static void the_same_on_the_cpu(void **state) {
    (void)state;
    on(lt_backend_cpu());
}

static void the_same_on_the_gpu(void **state) {
    (void)state;
    if (gpu_backend() == NULL) {
        skip();
    }
    on(gpu_backend());
}

/* One number per row of the batch and word, in the type in which the backward pass reads it; none
 * without the head, or without a backward pass. */
static void bytes_of_kept_logits(void **state) {
    lt_model_spec s = small();
    lt_pass_options o = {.batch = 3, .seq = 64, .train = true, .weights = true};
    lt_pass_memory without, with;
    (void)state;
    s.n_layers = 2; /* Stages of one layer each. */
    s.vocab_size = 4096;
    must(lt_pass_measure(&without, &s, LT_BF16, &o), "without");
    o.keep_logits = true;
    must(lt_pass_measure(&with, &s, LT_BF16, &o), "with");
    assert_int_equal(with.logits_bytes - without.logits_bytes, 3 * 64 * 4096 * 2);
    assert_int_equal(with.activations_bytes, without.activations_bytes);
    o.end_layer = 1;
    must(lt_pass_measure(&with, &s, LT_BF16, &o), "a stage");
    o.keep_logits = false;
    must(lt_pass_measure(&without, &s, LT_BF16, &o), "a stage");
    assert_int_equal(with.logits_bytes, without.logits_bytes);
    o = (lt_pass_options){.batch = 3, .seq = 64, .keep_logits = true};
    must(lt_pass_measure(&with, &s, LT_BF16, &o), "evaluation");
    o.keep_logits = false;
    must(lt_pass_measure(&without, &s, LT_BF16, &o), "evaluation");
    assert_int_equal(with.logits_bytes, without.logits_bytes);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_same_on_the_cpu),
                                       cmocka_unit_test(the_same_on_the_gpu),
                                       cmocka_unit_test(bytes_of_kept_logits)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
