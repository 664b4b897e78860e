/* Weights that are loaded in the background equal those loaded at once. Weights that are not
 * finite: in every tensor of every golden model, whether stored in the same form, transposed
 * (GPT-2), split (q, k, v) or one of many experts, a single NaN or infinity is refused with a
 * message that names the tensor and the element; with background loading, by lt_model_wait. A
 * folder with one file and an index is read as transformers reads it. */
#include "unit/model/far.h"
#include "unit/model/golden.h"

#include <fcntl.h>
#include <unistd.h>

#include "base/file.h"
#include "model/alloc.h"

static void put_file(const char *folder, const char *name, const void *data, size_t bytes) {
    char path[LT_PATH_BYTES];
    must(lt_path_join(path, folder, name), name);
    must(lt_file_write_atomic(path, data, bytes), name);
}

/* Overwrite bytes at `at` of the weights' file in `folder`. */
static void poke(const char *folder, size_t at, const void *value, size_t bytes) {
    char path[LT_PATH_BYTES];
    must(lt_path_join(path, folder, "model.safetensors"), folder);
    const int fd = open(path, O_WRONLY);
    assert_true(fd >= 0 && pwrite(fd, value, bytes, (off_t)at) == (ssize_t)bytes);
    close(fd);
}

static void try_tensor(const char *folder, const lt_safetensor *t, const char *base, bool infinite,
                       bool load_async) {
    const lt_model_options far = {.device = device_of(far_backend()), .load_async = true};
    const size_t each = lt_dtype_bytes(t->dtype);
    const int64_t last = (int64_t)(t->bytes / each) - 1;
    const size_t at = (size_t)((const char *)t->data - base) + (size_t)last * each;
    const uint32_t bad_f32 = infinite ? 0xFF800000u : 0x7FC00000u;
    const uint16_t bad_bf16 = (uint16_t)(bad_f32 >> 16);
    char element[64];
    lt_model *m = NULL;

    poke(folder, at, t->dtype == LT_F32 ? (const void *)&bad_f32 : &bad_bf16, each);
    lt_err err = lt_model_open(&m, folder, load_async ? &far : NULL);
    if (load_async) {
        assert_true(err == LT_OK || strstr(t->name, "act_fn") != NULL ||
                    strstr(t->name, "sinks") != NULL);
        err = err == LT_OK ? lt_model_wait(m) : err;
        lt_model_close(m);
    }
    snprintf(element, sizeof element, "element %lld of", (long long)last);
    if (err == LT_OK || strstr(lt_error_message(), t->name) == NULL) {
        fail_msg("%s: %s", t->name, err == LT_OK ? "accepted" : lt_error_message());
    }
    if (strstr(t->name, "act_fn.beta") == NULL && strstr(t->name, "act_fn.eps") == NULL) {
        assert_int_equal(err, LT_ERR_NUMERIC); /* Those two are not loaded, only compared. */
        assert_non_null(strstr(lt_error_message(), element));
    }
    poke(folder, at, base + at, each);
}

static void not_a_number_is_refused(void **state) {
    (void)state;
    for (int c = 0; c < N_GOLDEN_CASES; c++) {
        char from[LT_PATH_BYTES], path[LT_PATH_BYTES], folder[] = "/tmp/lateen-weights-XXXXXX";
        char *weights = NULL, *config = NULL;
        size_t n_weights = 0, n_config = 0;
        lt_safetensors s;
        lt_model *m = NULL;

        assert_non_null(mkdtemp(folder));
        must(lt_path_join(from, GOLDEN_ROOT, golden_cases[c]), "path");
        must(lt_path_join(path, from, "config.json"), "path");
        must(lt_file_read(&config, &n_config, path, 1 << 20), path);
        must(lt_path_join(path, from, "model.safetensors"), "path");
        must(lt_file_read(&weights, &n_weights, path, 1 << 26), path);
        put_file(folder, "config.json", config, n_config);
        put_file(folder, "model.safetensors", weights, n_weights);
        must(lt_safetensors_parse(&s, weights, n_weights, path), path);
        for (size_t i = 0; i < s.n_tensors; i++) {
            assert_true(s.tensors[i].dtype == LT_F32 || s.tensors[i].dtype == LT_BF16);
            try_tensor(folder, &s.tensors[i], weights, i % 2 == 1, i % 4 > 1);
        }
        must(lt_model_open(&m, folder, NULL), "whole again");
        lt_model_close(m);
        lt_safetensors_close(&s);
        free(weights);
        free(config);
        must(lt_file_remove_tree(folder), folder);
    }
}

/* Weights that a separate thread loads are the same; a model may be closed before they are
 * complete. */
static void weights_load_async(void **state) {
    (void)state;
    for (int i = 0; i < N_GOLDEN_CASES; i++) {
        const lt_dtype dtype = i % 2 != 0 ? LT_BF16 : LT_F32;
        const lt_model_options load_async = {
            .dtype = dtype, .device = device_of(far_backend()), .load_async = true};
        char path[256];
        lt_model *near_model = NULL, *far = NULL;
        (void)snprintf(path, sizeof path, GOLDEN_ROOT "%s", golden_cases[i]);
        must(lt_model_open(&near_model, path, &(lt_model_options){.dtype = dtype}), path);
        must(lt_model_open(&far, path, &load_async), path);
        lt_model_close(far);
        must(lt_model_open(&far, path, &load_async), path);
        must(lt_model_wait(far), path);
        must(lt_model_wait(far), "once more");
        unsigned char *weights = malloc(far->weights_bytes);
        must(lt_model_download(far, weights, far->weights.flat, far->weights_bytes), path);
        assert_int_equal(far->weights_bytes, near_model->weights_bytes);
        assert_memory_equal(weights, near_model->weights.flat, far->weights_bytes);
        free(weights);
        lt_model_close(far);
        lt_model_close(near_model);
    }
}

static void same_weights(const char *folder, const lt_model *want) {
    lt_model *m = NULL;
    must(lt_model_open(&m, folder, NULL), folder);
    assert_int_equal(m->weights_bytes, want->weights_bytes);
    assert_memory_equal(m->weights.flat, want->weights.flat, want->weights_bytes);
    lt_model_close(m);
}

static void copy_weights(const char *from, const char *to, const char *name) {
    char path[LT_PATH_BYTES], *data = NULL;
    size_t n = 0;
    must(lt_path_join(path, from, "model.safetensors"), from);
    must(lt_file_read(&data, &n, path, 1 << 26), path);
    put_file(to, name, data, n);
    free(data);
}

static bool has_file(const char *folder, const char *name) {
    char path[LT_PATH_BYTES];
    must(lt_path_join(path, folder, name), name);
    return lt_file_has_name(path);
}

/* A model of any family that is written in F16 opens again, with weights that differ by a rounding:
 * also Apertus, whose file has constants so small that an F16 holds them to 3 % only. */
static void opens_what_is_written_in_f16(void **state) {
    (void)state;
    for (int c = 0; c < N_GOLDEN_CASES; c++) {
        char folder[] = "/tmp/lateen-weights-XXXXXX", path[LT_PATH_BYTES];
        lt_model *a = NULL, *b = NULL;
        assert_non_null(mkdtemp(folder));
        must(lt_path_join(path, GOLDEN_ROOT, golden_cases[c]), "path");
        must(lt_model_open(&a, path, &(lt_model_options){.trainable = true}), path);
        must(lt_model_save(a, folder, LT_F16, 0), path);
        must(lt_model_open(&b, folder, &(lt_model_options){.trainable = true}), path);
        const float *x = lt_param_floats(&a->master), *y = lt_param_floats(&b->master);
        for (int64_t i = 0; i < a->table.n_elements; i++) {
            assert_true(fabsf(x[i] - y[i]) <= fmaxf(0x1p-11f * fabsf(x[i]), 0x1p-25f));
        }
        lt_model_close(a);
        lt_model_close(b);
        must(lt_file_remove_tree(folder), folder);
    }
}

/* If both exist, transformers (modeling_utils.py, _get_resolved_checkpoint_files) takes
 * model.safetensors. If two shards hold a tensor with different values, it takes that of the last
 * file: here such a folder is refused. Saving a model removes the files of an earlier one that
 * would be read in its place. */
static void one_file_or_shards(void **state) {
    static const char index[] =
        "{\"weight_map\":{\"x\":\"a.safetensors\",\"y\":\"b.safetensors\"}}";
    char folder[] = "/tmp/lateen-weights-XXXXXX", other[] = "/tmp/lateen-weights-XXXXXX";
    char path[LT_PATH_BYTES];
    const int64_t small = 20000;
    lt_model *a = NULL, *b = NULL;
    (void)state;
    assert_true(mkdtemp(folder) != NULL && mkdtemp(other) != NULL);
    must(lt_model_open(&a, GOLDEN_ROOT "llama3", NULL), "llama3");
    must(lt_model_create(&b, lt_model_get_spec(a), NULL, 7), "another");
    must(lt_model_save(b, other, LT_F32, 0), other);

    must(lt_model_save(a, folder, LT_F32, small), folder);
    assert_true(has_file(folder, "model.safetensors.index.json"));
    same_weights(folder, a);
    copy_weights(other, folder, "model.safetensors");
    same_weights(folder, b);
    must(lt_model_save(a, folder, LT_F32, small), folder);
    assert_false(has_file(folder, "model.safetensors"));
    same_weights(folder, a);
    must(lt_model_save(b, folder, LT_F32, 0), folder);
    assert_false(has_file(folder, "model.safetensors.index.json"));
    same_weights(folder, b);

    copy_weights(folder, folder, "a.safetensors");
    copy_weights(folder, folder, "b.safetensors");
    must(lt_path_join(path, folder, "model.safetensors"), folder);
    must(lt_file_remove_tree(path), path);
    put_file(folder, "model.safetensors.index.json", index, sizeof index - 1);
    same_weights(folder, b);
    must(lt_model_save(a, other, LT_F32, 0), other);
    copy_weights(other, folder, "b.safetensors");
    lt_model *m = NULL;
    assert_int_equal(lt_model_open(&m, folder, NULL), LT_ERR_FORMAT);
    assert_non_null(strstr(lt_error_message(), "of shard 'b.safetensors' differs"));
    lt_model_close(a);
    lt_model_close(b);
    must(lt_file_remove_tree(folder), folder);
    must(lt_file_remove_tree(other), other);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(not_a_number_is_refused), cmocka_unit_test(weights_load_async),
        cmocka_unit_test(opens_what_is_written_in_f16), cmocka_unit_test(one_file_or_shards)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
