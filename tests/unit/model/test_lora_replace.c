/* Adapters whose folder holds whole weights of the model beside the low-rank ones: embedding,
 * output head, norms and an MLP (modules_to_save), biases, and matrices that are stored
 * transposed; also with different ranks and with DoRA, whose lengths of rows are then those of
 * these weights. Merged, they equal those of PEFT (merge_and_unload; golden:
 * tools/make_lora_whole_goldens.py). If the base must not change, they are refused, and the
 * message says what helps. */
#include "unit/model/adapters.h"

#include <unistd.h>

#include "base/file.h"

#define GOLDEN "tests/golden/model/lora_whole/"

/* A difference of order: PEFT adds B A to W with another order of sums. */
#define NEAR 2e-6f

static lt_err open_beside(lt_lora **out, lt_model *m, const char *folder, bool whole) {
    lt_lora_config c = {.targets = NULL};
    lt_err err = lt_lora_config_read_uneven(&c, folder, &m->spec, whole);
    *out = NULL;
    if (err == LT_OK) {
        err = lt_lora_open(out, m, &c.options, 0);
        err = err != LT_OK ? err
              : c.uneven   ? lt_lora_load_uneven(*out, folder)
                           : lt_lora_load(*out, folder);
    }
    lt_lora_config_close(&c);
    return err;
}

static void same_tensor(const lt_safetensor *want, const lt_safetensors *got, const char *name) {
    const lt_safetensor *is = lt_safetensors_find(got, want->name);
    const float *a = (const float *)(const void *)want->data;
    if (is == NULL || is->bytes != want->bytes || is->dtype != LT_F32) {
        fail_msg("%s: %s is not there, or of another size", name, want->name);
    }
    const float *b = (const float *)(const void *)is->data;
    for (size_t i = 0; i < want->bytes / sizeof *a; i++) {
        if (!(fabsf(a[i] - b[i]) <= NEAR * (1.0f + fabsf(a[i])))) {
            fail_msg("%s: %s: element %zu is %g, PEFT's %g", name, want->name, i, (double)b[i],
                     (double)a[i]);
        }
    }
}

static void merging_equals_peft(void **state) {
    static const char *const cases[][2] = {
        {"llama3", "llama3"}, {"bias", "llama_bias"}, {"gpt2", "gpt2"}, {"uneven", "llama3"}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char folder[64], base[64], path[128], to[] = "/tmp/lateen-whole-XXXXXX";
        char model[LT_PATH_BYTES], out[LT_PATH_BYTES];
        lt_safetensors want = {0}, got = {0};
        lt_lora *l = NULL;
        (void)snprintf(folder, sizeof folder, GOLDEN "%s", cases[i][0]);
        (void)snprintf(base, sizeof base, "tests/golden/model/%s", cases[i][1]);
        (void)snprintf(path, sizeof path, "%s/merged.safetensors", folder);
        lt_model *m = open_base(base, lt_backend_cpu(), LT_F32);
        must(open_beside(&l, m, folder, true), folder);
        must(lt_lora_merge(l), folder);
        assert_non_null(mkdtemp(to));
        must(lt_path_join(out, to, "model"), to);
        must(lt_model_save(m, out, LT_F32, (int64_t)1 << 30), out);
        must(lt_path_join(model, out, "model.safetensors"), out);
        must(lt_safetensors_open(&want, path), path);
        must(lt_safetensors_open(&got, model), model);
        assert_true(want.n_tensors > 10);
        for (size_t t = 0; t < want.n_tensors; t++) {
            same_tensor(&want.tensors[t], &got, cases[i][0]);
        }
        lt_safetensors_close(&want);
        lt_safetensors_close(&got);
        lt_lora_close(l);
        lt_model_close(m);
        must(lt_file_remove_tree(to), to);
    }
}

static void whole_weights_are_refused_if_the_base_is_fixed(void **state) {
    static const struct {
        const char *folder, *base, *words;
        bool whole;
    } cases[] = {
        {"llama3", "llama3",
         "modules_to_save has 'embed_tokens': weights of the model itself "
         "were trained",
         false},
        {"bias", "llama_bias", "bias is \"all\": weights of the model itself were trained", false},
        {"tied", "qwen2", "which are one matrix in this model (tie_word_embeddings)", true},
        {"bias", "llama3", ".bias belongs to no adapter of this model", true}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char folder[128], base[128];
        lt_lora *l = NULL;
        (void)snprintf(folder, sizeof folder, GOLDEN "%s", cases[i].folder);
        (void)snprintf(base, sizeof base, "tests/golden/model/%s", cases[i].base);
        lt_model *m = open_base(base, lt_backend_cpu(), LT_F32);
        assert_int_not_equal(open_beside(&l, m, folder, cases[i].whole), LT_OK);
        if (strstr(lt_error_message(), cases[i].words) == NULL) {
            fail_msg("%s: %s", cases[i].folder, lt_error_message());
        }
        lt_lora_close(l);
        lt_model_close(m);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(merging_equals_peft),
        cmocka_unit_test(whole_weights_are_refused_if_the_base_is_fixed)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
