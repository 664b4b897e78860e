/* What a GGUF file says about a model besides its weights: a file without a key that llama.cpp
 * treats as optional, and ids that lie outside of the vocabulary. The files are those of a golden
 * model, in which one key is left out or has another value. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/error.h"
#include "data/gguf_write.h"
#include "lateen/model.h"
#include "model/files/gguf_save.h"
#include "model/files/source.h"

#define GOLDEN "tests/golden/model/llama3"
#define WHOLE  "/tmp/lateen-test-gguf-spec.gguf"
#define MADE   "/tmp/lateen-test-gguf-spec-made.gguf"

static void must(lt_err err, const char *what) {
    if (err != LT_OK) {
        fail_msg("%s: %s", what, lt_error_message());
    }
}

static lt_err copy_rows(const void *ctx, void *dst, uint64_t first, uint64_t n) {
    const lt_gguf_tensor *t = ctx;
    const uint64_t row_bytes = t->bytes / (t->n_elems / t->dims[0]);
    memcpy(dst, t->data + first * row_bytes, n * row_bytes);
    return LT_OK;
}

static bool is_key(const lt_gguf_kv *kv, const char *key) {
    return kv->key.bytes == strlen(key) && memcmp(kv->key.data, key, kv->key.bytes) == 0;
}

/* Write WHOLE again without the list of ends, as llama.cpp writes it; `key` has this value, or is
 * left out if the value is negative. */
static void write_with(const char *key, int64_t value) {
    lt_gguf *g = NULL;
    lt_gguf_out *o = NULL;
    must(lt_gguf_open(&g, WHOLE), WHOLE);
    must(lt_gguf_out_open(&o), MADE);
    for (size_t i = 0; i < g->n_kvs; i++) {
        if (!is_key(&g->kvs[i], key) && !is_key(&g->kvs[i], LT_GGUF_ENDS)) {
            lt_gguf_out_copy(o, &g->kvs[i]);
        }
    }
    if (value >= 0) {
        lt_gguf_out_u32(o, key, value);
    }
    for (size_t i = 0; i < g->n_tensors; i++) {
        const lt_gguf_tensor *t = &g->tensors[i];
        char name[128];
        (void)snprintf(name, sizeof name, "%.*s", (int)t->name.bytes, t->name.data);
        lt_gguf_out_tensor(o, name, t->n_dims, t->dims, t->type, copy_rows, t);
    }
    must(lt_gguf_out_write(o, MADE), MADE);
    lt_gguf_out_close(o);
    lt_gguf_close(g);
}

static lt_model_spec spec_with(const char *key, int64_t value) {
    lt_model *m = NULL;
    write_with(key, value);
    must(lt_model_open(&m, MADE, NULL), key);
    const lt_model_spec spec = *lt_model_get_spec(m);
    lt_model_close(m);
    (void)unlink(MADE);
    return spec;
}

static void optional_keys(void **state) {
    const lt_model_spec own = spec_with("none", -1);
    lt_model_spec s = spec_with("llama.attention.key_length", -1);
    (void)state;
    assert_int_equal(s.head_dim, own.width / own.n_heads); /* The width of the model over heads. */
    s = spec_with("llama.rope.dimension_count", -1);
    assert_int_equal(s.rope_dim, 0); /* A whole head rotates. */
}

static void ids_of_tokens(void **state) {
    const lt_model_spec own = spec_with("none", -1);
    const int64_t V = own.vocab_size;
    lt_model_spec s = spec_with("tokenizer.ggml.padding_token_id", 7);
    (void)state;
    assert_int_equal(s.pad_id, 7);
    assert_int_equal(spec_with("tokenizer.ggml.padding_token_id", V - 1).pad_id, V - 1);
    assert_int_equal(spec_with("tokenizer.ggml.padding_token_id", V).pad_id, -1);
    assert_int_equal(spec_with("tokenizer.ggml.bos_token_id", V - 1).bos_id, V - 1);
    assert_int_equal(spec_with("tokenizer.ggml.bos_token_id", V).bos_id, -1);
    s = spec_with("tokenizer.ggml.eos_token_id", 9);
    assert_true(s.eos.n == 1 && s.eos.ids[0] == 9);
    assert_int_equal(spec_with("tokenizer.ggml.eos_token_id", V).eos.n, 0);
    s = spec_with("tokenizer.ggml.eos_token_id", V - 1);
    assert_true(s.eos.n == 1 && s.eos.ids[0] == V - 1);
}

static void keys_that_are_needed(void **state) {
    static const char *const needed[] = {"llama.block_count", "llama.embedding_length",
                                         "llama.context_length", "llama.feed_forward_length",
                                         "llama.attention.head_count"};
    (void)state;
    for (size_t i = 0; i < sizeof needed / sizeof *needed; i++) {
        lt_model *m = NULL;
        write_with(needed[i], -1);
        assert_int_not_equal(lt_model_open(&m, MADE, NULL), LT_OK);
        assert_non_null(strstr(lt_error_message(), needed[i]));
    }
    lt_model *m = NULL;
    write_with("llama.attention.head_count", 0);
    assert_int_equal(lt_model_open(&m, MADE, NULL), LT_ERR_FORMAT);
    assert_non_null(strstr(lt_error_message(), "0 heads of a model"));
    (void)unlink(MADE);
}

static int make_whole(void **state) {
    lt_model *m = NULL;
    (void)state;
    must(lt_model_open(&m, GOLDEN, NULL), GOLDEN);
    must(lt_model_save_gguf(m, WHOLE, "", LT_GGUF_MIX_F32), WHOLE);
    lt_model_close(m);
    return 0;
}

static int remove_whole(void **state) {
    (void)state;
    return unlink(WHOLE);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(optional_keys),
        cmocka_unit_test(ids_of_tokens),
        cmocka_unit_test(keys_that_are_needed),
    };
    return cmocka_run_group_tests(tests, make_whole, remove_whole);
}
