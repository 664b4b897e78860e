/* The GGUF container: a file built in memory is read back; every truncation and every false
 * number gives one clear error. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/error.h"
#include "data/gguf.h"

typedef struct {
    unsigned char data[2048];
    size_t n;
} image;

static void put(image *m, const void *data, size_t n) {
    assert_true(m->n + n <= sizeof m->data);
    memcpy(m->data + m->n, data, n);
    m->n += n;
}

static void put_u32(image *m, uint32_t v) {
    put(m, &v, 4);
}

static void put_u64(image *m, uint64_t v) {
    put(m, &v, 8);
}

static void put_str(image *m, const char *s) {
    put_u64(m, strlen(s));
    put(m, s, strlen(s));
}

/* Two tensors the size of 32 and 64 floats, four metadata entries. */
static void build(image *m, uint32_t version, uint64_t offset_b, uint32_t type_b,
                  const char *name_b) {
    const float eps = 0.5f;
    *m = (image){0};
    put(m, "GGUF", 4);
    put_u32(m, version);
    put_u64(m, 2);
    put_u64(m, 4);
    put_str(m, "general.architecture");
    put_u32(m, LT_GGUF_STR);
    put_str(m, "llama");
    put_str(m, "llama.block_count");
    put_u32(m, LT_GGUF_U32);
    put_u32(m, 7);
    put_str(m, "eps");
    put_u32(m, LT_GGUF_F32);
    put(m, &eps, 4);
    put_str(m, "tokens");
    put_u32(m, LT_GGUF_ARRAY);
    put_u32(m, LT_GGUF_STR);
    put_u64(m, 3);
    put_str(m, "a");
    put_str(m, "");
    put_str(m, "xyz");
    put_str(m, "one");
    put_u32(m, 1);
    put_u64(m, 8);
    put_u32(m, LT_GGML_F32);
    put_u64(m, 0);
    put_str(m, name_b);
    put_u32(m, 2);
    put_u64(m, 32);
    put_u64(m, 2);
    put_u32(m, type_b);
    put_u64(m, offset_b);
    while (m->n % 32 != 0) {
        put(m, "", 1);
    }
    for (int i = 0; i < 32 + 36; i++) {
        const unsigned char v = (unsigned char)i;
        put(m, &v, 1);
    }
}

static void reads_back(void **state) {
    image m;
    lt_gguf *g = NULL;
    const lt_gguf_kv *kv = NULL;
    const lt_gguf_tensor *t;
    uint64_t n = 0;
    double eps = 0;
    size_t at = 0;
    lt_gguf_str s;
    (void)state;
    build(&m, 3, 32, LT_GGML_Q4_0, "two");
    assert_int_equal(lt_gguf_parse(&g, m.data, m.n, "m"), LT_OK);
    assert_int_equal(lt_gguf_get_u64(g, "llama.block_count", &n), LT_OK);
    assert_int_equal(n, 7);
    assert_int_equal(lt_gguf_get_f64(g, "eps", &eps), LT_OK);
    assert_true(eps == 0.5);
    assert_int_equal(lt_gguf_get_str(g, "general.architecture", &s), LT_OK);
    assert_true(lt_gguf_str_is(s, "llama"));
    assert_int_equal(lt_gguf_get_array(g, "tokens", LT_GGUF_STR, &kv), LT_OK);
    assert_int_equal(kv->n, 3);
    assert_true(lt_gguf_str_is(lt_gguf_str_next(kv, &at), "a"));
    assert_true(lt_gguf_str_is(lt_gguf_str_next(kv, &at), ""));
    assert_true(lt_gguf_str_is(lt_gguf_str_next(kv, &at), "xyz"));
    assert_int_equal(lt_gguf_get_u64(g, "absent", &n), LT_ERR_NOT_FOUND);
    assert_int_equal(lt_gguf_get_u64(g, "tokens", &n), LT_ERR_FORMAT);
    assert_int_equal(lt_gguf_get_str(g, "eps", &s), LT_ERR_FORMAT);
    t = lt_gguf_tensor_find(g, "two");
    assert_non_null(t);
    assert_int_equal(t->bytes, 36);
    assert_int_equal(t->dims[1], 2);
    assert_int_equal(t->data[0], 32);
    assert_null(lt_gguf_tensor_find(g, "three"));
    lt_gguf_close(g);
}

/* A value of each type, alone and as an array of two, before a key that is found only if all
 * sizes are right. Sizes: the GGUF specification, gguf_metadata_value_type. */
static void sizes_of_all_types(void **state) {
    static const struct {
        uint32_t type;
        size_t bytes;
    } types[] = {{0, 1}, {1, 1}, {2, 2},  {3, 2},  {4, 4}, {5, 4},
                 {6, 4}, {7, 1}, {10, 8}, {11, 8}, {12, 8}};
    static const unsigned char zeros[16];
    const size_t n_types = sizeof types / sizeof *types;
    image m = {0};
    lt_gguf *g = NULL;
    uint64_t n = 0;
    (void)state;
    put(&m, "GGUF", 4);
    put_u32(&m, 3);
    put_u64(&m, 0);
    put_u64(&m, 2 * n_types + 1);
    for (size_t i = 0; i < n_types; i++) {
        char key[8];
        snprintf(key, sizeof key, "k%zu", i);
        put_str(&m, key);
        put_u32(&m, types[i].type);
        put(&m, zeros, types[i].bytes);
        snprintf(key, sizeof key, "a%zu", i);
        put_str(&m, key);
        put_u32(&m, LT_GGUF_ARRAY);
        put_u32(&m, types[i].type);
        put_u64(&m, 2);
        put(&m, zeros, 2 * types[i].bytes);
    }
    put_str(&m, "last");
    put_u32(&m, 10);
    put_u64(&m, UINT64_C(0x1122334455667788));
    if (lt_gguf_parse(&g, m.data, m.n, "m") != LT_OK) {
        fail_msg("%s", lt_error_message());
    }
    assert_int_equal(lt_gguf_get_u64(g, "last", &n), LT_OK);
    assert_true(n == UINT64_C(0x1122334455667788));
    lt_gguf_close(g);
}

static void truncation_is_refused(void **state) {
    image m;
    (void)state;
    build(&m, 3, 32, LT_GGML_Q4_0, "two");
    for (size_t n = 0; n < m.n; n++) {
        lt_gguf *g = NULL;
        /* Allocated with exactly this size, so that a sanitizer sees any overrun. */
        unsigned char *part = malloc(n + 1);
        memcpy(part, m.data, n);
        assert_int_not_equal(lt_gguf_parse(&g, part, n, "m"), LT_OK);
        assert_null(g);
        assert_non_null(strstr(lt_error_message(), "m: "));
        free(part);
    }
}

static void false_numbers_are_refused(void **state) {
    static const struct {
        uint32_t version;
        uint64_t offset;
        uint32_t type;
        const char *name, *says;
    } cases[] = {
        {1, 32, LT_GGML_Q4_0, "two", "version 1"},
        {3, 0, LT_GGML_Q4_0, "two", "overlap"},
        {3, 33, LT_GGML_Q4_0, "two", "aligned"},
        {3, 64, LT_GGML_Q4_0, "two", "data section"},
        {3, ~31ull, LT_GGML_Q4_0, "two", "data section"},
        {3, 32, LT_GGML_Q4_K, "two", "multiple of 256"},
        {3, 32, 77, "two", "type 77"},
        {3, 32, LT_GGML_Q4_0, "one", "twice"},
        {3, 32, LT_GGML_Q4_0, "", "0 bytes"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        image m;
        lt_gguf *g = NULL;
        build(&m, cases[i].version, cases[i].offset, cases[i].type, cases[i].name);
        assert_int_not_equal(lt_gguf_parse(&g, m.data, m.n, "m"), LT_OK);
        assert_non_null(strstr(lt_error_message(), cases[i].says));
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_back),
        cmocka_unit_test(sizes_of_all_types),
        cmocka_unit_test(truncation_is_refused),
        cmocka_unit_test(false_numbers_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
