/* GGUF files of adapters: those in llama.cpp's format (tools/make_lora_gguf_golden.py) are read
 * like the PEFT folders they were made from, and written unchanged; what the format cannot hold
 * is refused by name. */
#include "unit/model/adapters.h"

#include <unistd.h>

#include "base/file.h"
#include "data/gguf.h"
#include "model/lora/lora_gguf.h"
#include "model/lora/lora_pool.h"

#define SFT "tests/golden/sft"

static void says(const char *text) {
    if (strstr(lt_error_message(), text) == NULL) {
        fail_msg("'%s' is not in: %s", text, lt_error_message());
    }
}

static lt_lora *open_folder(lt_model *m, const char *folder) {
    lt_lora_config c;
    lt_lora *l = NULL;
    must(lt_lora_config_read(&c, folder, &m->spec), folder);
    must(lt_lora_open(&l, m, &c.options, 1), folder);
    must(lt_lora_load(l, folder), folder);
    lt_lora_config_close(&c);
    return l;
}

static lt_err open_gguf(lt_lora **l, lt_model *m, const char *path) {
    lt_lora_config c;
    lt_err err;
    LT_TRY(lt_lora_gguf_config_read(&c, path, &m->spec));
    err = lt_lora_open(l, m, &c.options, 1);
    lt_lora_config_close(&c);
    err = err == LT_OK ? lt_lora_gguf_load(*l, path) : err;
    if (err != LT_OK) {
        lt_lora_close(*l);
        *l = NULL;
    }
    return err;
}

static void same_tensors(const char *a, const char *b) {
    lt_gguf *g = NULL, *other = NULL;
    double alpha[2];
    must(lt_gguf_open(&g, a), a);
    must(lt_gguf_open(&other, b), b);
    must(lt_gguf_get_f64(g, "adapter.lora.alpha", &alpha[0]), a);
    must(lt_gguf_get_f64(other, "adapter.lora.alpha", &alpha[1]), b);
    assert_true(fabs(alpha[0] - alpha[1]) < 1e-5);
    assert_int_equal(g->n_tensors, other->n_tensors);
    for (size_t i = 0; i < g->n_tensors; i++) {
        const lt_gguf_tensor *t = &g->tensors[i], *u;
        char name[160];
        (void)snprintf(name, sizeof name, "%.*s", (int)t->name.bytes, t->name.data);
        u = lt_gguf_tensor_find(other, name);
        assert_non_null(u);
        assert_int_equal(t->dims[0], u->dims[0]);
        assert_int_equal(t->dims[1], u->dims[1]);
        assert_int_equal(t->bytes, u->bytes);
        assert_memory_equal(t->data, u->data, t->bytes);
    }
    lt_gguf_close(g);
    lt_gguf_close(other);
}

static void read_as_the_folder_of_peft(void **state) {
    static const char *const names[] = {"adapter-all-end", "adapter-rs-end"};
    (void)state;
    for (size_t i = 0; i < 2; i++) {
        char folder[] = "/tmp/lateen-lora-XXXXXX", path[LT_PATH_BYTES], file[LT_PATH_BYTES];
        lt_model *m[2] = {open_base(SFT, lt_backend_cpu(), LT_F32),
                          open_base(SFT, lt_backend_cpu(), LT_F32)};
        lt_lora *l[2] = {NULL, NULL};
        (void)snprintf(path, sizeof path, SFT "/%s", names[i]);
        (void)snprintf(file, sizeof file, SFT "/%s.gguf", names[i]);
        assert_true(lt_lora_is_gguf(file));
        assert_false(lt_lora_is_gguf(path));
        l[0] = open_folder(m[0], path);
        must(open_gguf(&l[1], m[1], file), file);
        assert_string_equal(l[0]->targets, l[1]->targets);
        assert_true(fabsf(l[0]->scale - l[1]->scale) < 1e-6f);
        assert_int_equal(l[0]->params->table.n_elements, l[1]->params->table.n_elements);
        assert_memory_equal(lt_param_floats(&l[0]->params->master),
                            lt_param_floats(&l[1]->params->master),
                            lt_param_buffer_bytes(&l[0]->params->table, LT_F32));
        assert_non_null(mkdtemp(folder));
        must(lt_path_join(path, folder, "adapter.gguf"), path);
        must(lt_lora_gguf_save(l[0], path), path);
        same_tensors(path, file);
        assert_int_equal(lt_file_remove_tree(folder), LT_OK);
        for (int k = 0; k < 2; k++) {
            lt_lora_close(l[k]);
            lt_model_close(m[k]);
        }
    }
}

/* Fail at the first number that differs by more than rounding does. */
static void same_numbers(const float *a, const float *b, size_t n, float most) {
    for (size_t i = 0; i < n; i++) {
        if (!(fabsf(a[i] - b[i]) <= most * fabsf(b[i]))) {
            fail_msg("number %zu: %.9g, %.9g", i, (double)a[i], (double)b[i]);
        }
    }
}

/* With a served model: the same bits, except that the file's alpha of rsLoRA is rounded. */
static void read_as_the_folder_of_peft_in_a_pool(void **state) {
    static const struct {
        const char *folder, *file;
        int64_t rank;
        float most;
    } cases[] = {{SFT "/adapter-all-end", SFT "/adapter-all-end.gguf", 4, 0.0f},
                 {SFT "/adapter-rs-end", SFT "/adapter-rs-end.gguf", 3, 3e-7f}};
    lt_model *m = open_base(SFT, lt_backend_cpu(), LT_F32);
    (void)state;
    must(lt_lora_pool_open(m, 1, 8, false), SFT);
    for (size_t i = 0; i < 2; i++) {
        const lt_lora_source both[] = {{cases[i].folder, 0.5f}, {cases[i].file, 0.5f}};
        const size_t bytes = lt_lora_pool_place_bytes(m->lora_pool);
        lt_lora_image of_folder, of_file, sum;
        int64_t rank;
        must(lt_lora_rank_of(&rank, cases[i].file), cases[i].file);
        assert_int_equal(rank, cases[i].rank);
        must(lt_lora_image_open(&of_folder, m->lora_pool, &both[0], 1), cases[i].folder);
        must(lt_lora_image_open(&of_file, m->lora_pool, &both[1], 1), cases[i].file);
        same_numbers(of_file.data, of_folder.data, bytes / sizeof(float), cases[i].most);
        assert_memory_equal(of_file.ranks, of_folder.ranks,
                            (size_t)m->spec.n_layers * LT_LORA_LAYER_KINDS * LT_LORA_PARTS *
                                sizeof(uint16_t));
        assert_true(cases[i].most > 0.0f || of_file.digest == of_folder.digest);
        must(lt_lora_image_open(&sum, m->lora_pool, both, 2), "both"); /* One after the other. */
        lt_lora_image_close(&of_folder);
        lt_lora_image_close(&of_file);
        lt_lora_image_close(&sum);
    }
    lt_model_close(m);
}

static void refused_in_a_pool(void **state) {
    static const struct {
        const char *path;
        lt_err err;
        const char *words;
    } cases[] = {{"nowhere.gguf", LT_ERR_NOT_FOUND, "nowhere.gguf"},
                 {"models/polyglot-46m.gguf", LT_ERR_UNSUPPORTED, "holds no adapters"},
                 {SFT "/adapter-all-end.gguf", LT_ERR_UNSUPPORTED,
                  "has rank 4, where 2 are left: rank 2 is the most"}};
    lt_model *m = open_base(SFT, lt_backend_cpu(), LT_F32),
             *other = open_base(GOLDEN_ROOT "llama3", lt_backend_cpu(), LT_F32);
    lt_lora_image image;
    (void)state;
    must(lt_lora_pool_open(m, 1, 2, false), SFT);
    must(lt_lora_pool_open(other, 1, 8, false), "llama3");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_int_equal(
            lt_lora_image_open(&image, m->lora_pool, &(lt_lora_source){cases[i].path, 1.0f}, 1),
            cases[i].err);
        says(cases[i].words);
    }
    assert_int_equal(lt_lora_image_open(&image, other->lora_pool,
                                        &(lt_lora_source){SFT "/adapter-all-end.gguf", 1.0f}, 1),
                     LT_ERR_FORMAT);
    says("is expected");
    lt_model_close(m);
    lt_model_close(other);
}

/* For every family that both formats support: written and read again, the same numbers. */
static void every_family(void **state) {
    int n = 0;
    (void)state;
    for (int i = 0; i < N_GOLDEN_CASES; i++) {
        char path[256], folder[] = "/tmp/lateen-lora-XXXXXX", file[LT_PATH_BYTES];
        lt_lora *l = NULL;
        lt_err err;
        (void)snprintf(path, sizeof path, GOLDEN_ROOT "%s", golden_cases[i]);
        lt_model *m = open_base(path, lt_backend_cpu(), LT_F32);
        if (m->spec.n_experts > 0) {
            lt_model_close(m);
            continue;
        }
        assert_non_null(mkdtemp(folder));
        must(lt_path_join(file, folder, "adapter.gguf"), path);
        must(lt_lora_open(&l, m, &adapters_of_all, 1), path);
        fill(l);
        err = lt_lora_gguf_save(l, file);
        if (err == LT_OK) {
            const size_t bytes = lt_param_buffer_bytes(&l->params->table, LT_F32);
            float *was = malloc(bytes);
            assert_non_null(was);
            memcpy(was, lt_param_floats(&l->params->master), bytes);
            lt_lora_close(l);
            must(open_gguf(&l, m, file), path);
            assert_memory_equal(was, lt_param_floats(&l->params->master), bytes);
            free(was);
            n++;
        } else {
            assert_int_equal(err, LT_ERR_UNSUPPORTED);
            says("GGUF");
        }
        lt_lora_close(l);
        lt_model_close(m);
        assert_int_equal(lt_file_remove_tree(folder), LT_OK);
    }
    assert_true(n >= 10);
}

static void what_the_format_cannot_hold_is_refused(void **state) {
    lt_model *m = open_base(SFT, lt_backend_cpu(), LT_F32),
             *other = open_base(GOLDEN_ROOT "qwen2", lt_backend_cpu(), LT_F32);
    lt_lora *l = NULL;
    lt_lora_options o = adapters_of_all;
    (void)state;
    assert_int_equal(open_gguf(&l, other, SFT "/adapter-all-end.gguf"), LT_ERR_UNSUPPORTED);
    says("general.architecture is 'llama' where 'qwen2' is expected");
    assert_int_equal(open_gguf(&l, m, "models/polyglot-46m.gguf"), LT_ERR_UNSUPPORTED);
    says("polyglot-46m.gguf holds no adapters");
    assert_int_equal(lt_model_open(&other, SFT "/adapter-all-end.gguf", NULL), LT_ERR_ARG);
    says("adapter-all-end.gguf holds adapters (general.type is 'adapter'), not a model");
    o.dora = true;
    must(lt_lora_open(&l, m, &o, 1), "open");
    assert_int_equal(lt_lora_gguf_save(l, "never.gguf"), LT_ERR_UNSUPPORTED);
    says("no place for the magnitudes of DoRA");
    lt_lora_close(l);
    lt_model_close(m);
    lt_model_close(other);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(read_as_the_folder_of_peft),
        cmocka_unit_test(read_as_the_folder_of_peft_in_a_pool),
        cmocka_unit_test(refused_in_a_pool),
        cmocka_unit_test(every_family),
        cmocka_unit_test(what_the_format_cannot_hold_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
