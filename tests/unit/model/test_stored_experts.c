/* Experts that stay in the block types of a GGUF, on the CPU and, if there is one, on a GPU:
 * logits close to those of the same file read in F32, and the same random weights from a seed as
 * from a file. All experts are chosen, because a rounding that chooses another expert changes
 * everything; tests/ops and test_cuda_quant_experts.c leave experts out.
 *
 * Tolerance, relative to the largest logit: see test_cuda_stored.c. On the CPU the activations of
 * products with blocks are rounded to 8 bits, 2^-8 of the largest of 32. With BF16 weights only
 * keys and values are rounded there, to F16. */
#include <unistd.h>

#include "unit/device.h"
#include "unit/model/golden.h"
#include "unit/model/tiny.h"

#include "lateen/model.h"
#include "model/alloc.h"
#include "model/files/gguf_save.h"

#define TOLERANCE_BLOCKS 0.05
#define TOLERANCE_CACHE  2e-3

enum { V = 300, EXPERTS = 5, TOP_K = 5, WIDTH = 256, FFN = 512, MANY = 80, FEW = 20 };

static lt_model *random_mixture(lt_family family) {
    return tiny_mixture(family, WIDTH, FFN, V, EXPERTS, TOP_K);
}

/* Logits after MANY ids at once, after FEW more, and after one more. */
static void run(const lt_model *m, float (*logits)[V]) {
    int32_t ids[MANY];
    lt_session *s = NULL;
    for (int i = 0; i < MANY; i++) {
        ids[i] = (i * 31 + 7) % V;
    }
    must(lt_session_open(&s, m, 2, 128), "session");
    must(lt_session_eval(s, 0, ids, MANY, logits[0]), "many rows");
    must(lt_session_eval(s, 1, ids, FEW, logits[1]), "few rows");
    must(lt_session_step(s, (const int64_t[]){1}, ids + FEW, 1, logits[2]), "a row");
    lt_session_close(s);
}

static const lt_stored_weight *stored_of(const lt_model *m, lt_param_kind kind) {
    return &m->stored[lt_param_index(&m->table, kind, 1)];
}

/* Gate and up are a range each, of all experts; down is one. */
static void check_ranges(const lt_model *m, lt_dtype up) {
    const lt_stored_weight *h = stored_of(m, LT_PARAM_UP), *down = stored_of(m, LT_PARAM_DOWN);
    assert_int_equal(h->n_ranges, 2);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(h->ranges[i].n_experts, EXPERTS);
        assert_int_equal(h->ranges[i].first_row, i * FFN);
        assert_int_equal(h->ranges[i].w.shape[0], EXPERTS * FFN);
        assert_int_equal(h->ranges[i].w.dtype, up);
    }
    assert_int_equal(down->n_ranges, 1);
    assert_int_equal(down->ranges[0].w.shape[0], EXPERTS * WIDTH);
    assert_int_equal(down->ranges[0].w.shape[1], FFN);
}

static void check(lt_model *random, lt_gguf_mix mix, lt_dtype up, lt_device *device) {
    static float expected[3][V], logits[3][V];
    const lt_model_options as_stored = {
        .dtype = device != NULL ? LT_BF16 : LT_F32, .stored = true, .device = device};
    lt_model *truth = NULL, *stored = NULL;
    char path[64];
    (void)snprintf(path, sizeof path, "/tmp/lateen_experts_%d.gguf", (int)getpid());
    must(lt_model_save_gguf(random, path, "", mix), "save");
    must(lt_model_open(&truth, path, NULL), "open");
    must(lt_model_open(&stored, path, &as_stored), "open as stored");
    unlink(path);
    if (lt_dtype_is_block(up) || device == NULL) {
        check_ranges(stored, up);
    }
    run(truth, expected);
    run(stored, logits);
    for (int i = 0; i < 3; i++) {
        const double off = distance(logits[i], expected[i], V);
        if (!(off <=
              (lt_dtype_is_block(up) || device != NULL ? TOLERANCE_BLOCKS : TOLERANCE_CACHE))) {
            fail_msg("family %d, mixture %d, run %d: logits are %.3g of the largest off",
                     random->spec.family, mix, i, off);
        }
    }
    lt_model_close(truth);
    lt_model_close(stored);
}

static void check_on(lt_device *device) {
    static const lt_family families[] = {LT_FAMILY_MIXTRAL, LT_FAMILY_QWEN3_MOE};
    for (size_t i = device != NULL && core_only() ? 1 : 0; i < 2; i++) {
        lt_model *random = random_mixture(families[i]);
        check(random, LT_GGUF_MIX_Q8_0, LT_Q8_0, device);
        if (device == NULL || !core_only()) {
            check(random, LT_GGUF_MIX_BF16, LT_BF16, device);
            check(random, LT_GGUF_MIX_Q4_K_M, LT_Q4_K, device);
            check(random, LT_GGUF_MIX_Q5_0, LT_Q5_0, device);
        }
        lt_model_close(random);
    }
}

static void on_the_cpu(void **state) {
    (void)state;
    check_on(NULL);
}

static void on_a_gpu(void **state) {
    (void)state;
    if (gpu_device() == NULL) {
        skip();
    }
    check_on(gpu_device());
}

/* A folder has a tensor for each expert: they stay mapped, as all other matrices do. */
static void a_tensor_for_each_expert(void **state) {
    static float expected[3][V], logits[3][V];
    lt_model *random = random_mixture(LT_FAMILY_MIXTRAL), *truth = NULL, *stored = NULL;
    char folder[] = "/tmp/lateen-experts-XXXXXX";
    (void)state;
    assert_non_null(mkdtemp(folder));
    must(lt_model_save(random, folder, LT_BF16, 0), "save");
    must(lt_model_open(&truth, folder, NULL), "open");
    must(lt_model_open(&stored, folder, &(lt_model_options){.stored = true}), "open as stored");
    check_ranges(stored, LT_BF16);
    assert_non_null(stored_of(stored, LT_PARAM_UP)->ranges[0].each);
    assert_int_equal(stored->stored_copies_bytes, 0);
    assert_true((double)lt_model_bytes(stored) < 2.1 * (double)lt_model_spec_params(&random->spec));
    run(truth, expected);
    run(stored, logits);
    for (int i = 0; i < 3; i++) {
        assert_true(distance(logits[i], expected[i], V) < TOLERANCE_CACHE);
    }
    lt_model_close(random);
    lt_model_close(truth);
    lt_model_close(stored);
    must(lt_file_remove_tree(folder), folder);
}

/* Random weights of a block type are the random numbers, encoded. */
static void random_blocks(void **state) {
    static float expected[3][V], logits[3][V];
    lt_model *random = random_mixture(LT_FAMILY_MIXTRAL), *stored = NULL, *blocks = NULL;
    const lt_model_options o = {.stored = true};
    lt_model_options made = o;
    char path[64];
    (void)state;
    (void)snprintf(path, sizeof path, "/tmp/lateen_experts_%d.gguf", (int)getpid());
    must(lt_model_save_gguf(random, path, "", LT_GGUF_MIX_Q8_0), "save");
    must(lt_model_open(&stored, path, &o), "open");
    unlink(path);
    made.stored_as = LT_Q8_0;
    must(lt_model_create(&blocks, &random->spec, &made, 5), "random blocks");
    assert_int_equal(stored_of(blocks, LT_PARAM_UP)->n_ranges, 1);
    run(stored, expected);
    run(blocks, logits);
    assert_memory_equal(logits, expected, sizeof logits);
    lt_model_close(random);
    lt_model_close(stored);
    lt_model_close(blocks);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(on_the_cpu), cmocka_unit_test(on_a_gpu),
                                       cmocka_unit_test(a_tensor_for_each_expert),
                                       cmocka_unit_test(random_blocks)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
