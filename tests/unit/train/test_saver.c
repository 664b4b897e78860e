/* Checkpoints that are written while the run goes on: they hold the same bytes as those that a run
 * waits for, the same ones are kept, and a save that fails ends the run; the memory of the copy.
 * And the checksum of weights, by the formula of its file, element by element. */
#include "unit/train/run_folder.h"

#include <sys/stat.h>
#include <unistd.h>

#include "model/params.h"
#include "train/checkpoint/checksum.h"
#include "train/checkpoint/saver.h"

static int begin(void **state) {
    (void)state;
    if (mkdtemp(run_root) == NULL) {
        return 1;
    }
    run_shard("shard.bin", RUN_TOKENS, 0);
    return 0;
}

static int end(void **state) {
    (void)state;
    return lt_file_remove_tree(run_root) != LT_OK;
}

/* ---- The saver ---- */

#define OPTIONS "steps=7 checkpoint.every=2 checkpoint.keep_last=2 optim.lr=0.01 "

/* The files of weights and moments of a checkpoint are the same, byte for byte. */
static void same_files(const char *a, const char *b, const char *step) {
    char path[2][LT_PATH_BYTES], name[256], **names = NULL;
    size_t n = 0, n_compared = 0;
    for (int i = 0; i < 2; i++) {
        snprintf(name, sizeof name, "%s/checkpoints/%s", i == 0 ? a : b, step);
        run_path(path[i], name);
    }
    must(lt_file_list(&names, &n, path[0]), path[0]);
    for (size_t k = 0; k < n; k++) {
        char file[LT_PATH_BYTES], *text[2] = {NULL};
        size_t bytes[2];
        if (!lt_path_has_suffix(names[k], ".safetensors")) {
            continue;
        }
        for (int i = 0; i < 2; i++) {
            must(lt_path_join(file, path[i], names[k]), names[k]);
            must(lt_file_read(&text[i], &bytes[i], file, 1 << 24), file);
        }
        assert_int_equal(bytes[0], bytes[1]);
        assert_memory_equal(text[0], text[1], bytes[0]);
        assert_true(bytes[0] > 5000 || n > 1);
        free(text[0]);
        free(text[1]);
        n_compared++;
    }
    assert_true(n_compared > 0);
    lt_file_list_free(names, n);
}

static void the_same_checkpoints(void **state) {
    static const char *const optimisers[] = {"adamw", "ademamix", "muon"};
    (void)state;
    for (int i = 0; i < 3; i++) {
        char options[200], waits[16], goes_on[16];
        snprintf(waits, sizeof waits, "waits%d", i);
        snprintf(goes_on, sizeof goes_on, "goes%d", i);
        snprintf(options, sizeof options, OPTIONS "optim.kind=%s", optimisers[i]);
        must(run_train(waits, options, NULL), "waits");
        snprintf(options, sizeof options, OPTIONS "optim.kind=%s checkpoint.async=true",
                 optimisers[i]);
        must(run_train(goes_on, options, NULL), "goes on");
        run_holds(waits, "6 7");
        run_holds(goes_on, "6 7");
        same_files(waits, goes_on, "step-000000006");
        same_files(waits, goes_on, "step-000000007");
    }
}

/* A run goes on from one as from any other. */
static void it_goes_on(void **state) {
    (void)state;
    must(run_train("first", OPTIONS "checkpoint.async=true", NULL), "first");
    must(run_train("first",
                   "steps=9 checkpoint.every=2 checkpoint.keep_last=2 optim.lr=0.01 "
                   "checkpoint.async=true",
                   NULL),
         "goes on");
    must(
        run_train("whole", "steps=9 checkpoint.every=2 checkpoint.keep_last=2 optim.lr=0.01", NULL),
        "whole");
    run_holds("first", "8 9");
    same_files("whole", "first", "step-000000009");
}

static void it_fails(void **state) {
    char path[LT_PATH_BYTES];
    (void)state;
    run_path(path, "full");
    assert_int_equal(mkdir(path, 0755), 0);
    run_path(path, "full/checkpoints");
    must(lt_file_write_atomic(path, "", 0), path); /* Not a folder. */
    assert_int_not_equal(run_train("full", OPTIONS "checkpoint.async=true", NULL), LT_OK);
    says("checkpoints");
}

/* Of each parameter the master weight and two moments, in 4 bytes each. */
static void bytes_of_the_copy(void **state) {
    lt_model *m = NULL;
    lt_recipe *r = run_recipe("unused", "optim.kind=adamw");
    (void)state;
    must(lt_model_open(&m, "tests/golden/model/llama3", &(lt_model_options){.dtype = LT_F32}),
         "model");
    const size_t n = (size_t)lt_model_spec_params(lt_model_get_spec(m));
    assert_int_equal(lt_saver_bytes(r, &m->table, NULL), 0);
    run_set(r, "checkpoint.async", "true");
    const size_t bytes = lt_saver_bytes(r, &m->table, NULL);
    assert_true(bytes >= 12 * n && bytes < 12 * n + 12 * 64 * 200); /* Buffers are aligned. */
    free(r);
    lt_model_close(m);
}

/* ---- The checksum ---- */

static uint64_t sum_of(const lt_model *m) {
    uint64_t sum = 0;
    must(lt_weights_checksum(&sum, m, NULL, NULL), "checksum");
    return sum;
}

/* The sum over elements i of the whole model, with bits x, of (x + A i) (B i | 1) in 32 bits each,
 * multiplied in 64. */
static uint64_t expected(const lt_model *m) {
    uint64_t sum = 0;
    for (int k = 0; k < m->table.n_params; k++) {
        const lt_param *p = &m->table.params[k];
        const char *data = lt_param_data(&m->weights, p);
        const size_t each = lt_dtype_bytes(m->weights.dtype);
        for (int64_t i = 0; i < p->local_count; i++) {
            uint32_t x = 0;
            const uint32_t at = (uint32_t)(p->whole_at + i);
            memcpy(&x, data + (size_t)i * each, each); /* Little-endian. */
            sum += (uint64_t)(uint32_t)(x + at * 2654435769u) * (uint32_t)(at * 2246822507u | 1u);
        }
    }
    return sum;
}

static void sums_of_elements(void **state) {
    static const lt_dtype types[] = {LT_F32, LT_BF16};
    (void)state;
    for (int t = 0; t < 2; t++) {
        lt_model *m = NULL;
        must(lt_model_open(&m, "tests/golden/model/llama3", &(lt_model_options){.dtype = types[t]}),
             "model");
        const uint64_t sum = sum_of(m);
        const size_t each = lt_dtype_bytes(types[t]);
        assert_true(sum == expected(m));
        for (int k = 0; k < m->table.n_params; k++) { /* Each bit counts; so does the order. */
            const lt_param *p = &m->table.params[k];
            char *data = lt_param_data(&m->weights, p), *last;
            last = data + (size_t)(p->local_count - 1) * each;
            data[0] ^= 1;
            assert_true(sum_of(m) != sum);
            data[0] ^= 1;
            last[each - 1] ^= (char)0x80;
            assert_true(sum_of(m) != sum);
            last[each - 1] ^= (char)0x80;
        }
        char *data = lt_param_data(&m->weights, &m->table.params[0]), kept[4];
        memcpy(kept, data, each);
        memcpy(data, data + each, each);
        memcpy(data + each, kept, each);
        assert_true(sum_of(m) != sum);
        memcpy(data + each, data, each);
        memcpy(data, kept, each);
        assert_true(sum_of(m) == sum);
        lt_model_close(m);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_same_checkpoints),
        cmocka_unit_test(it_goes_on),
        cmocka_unit_test(it_fails),
        cmocka_unit_test(bytes_of_the_copy),
        cmocka_unit_test(sums_of_elements),
    };
    return cmocka_run_group_tests(tests, begin, end);
}
