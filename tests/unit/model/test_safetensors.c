/* The safetensors container: written and read back; every kind of false entry is refused with a
 * message that names it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "model/files/safetensors.h"

static void written_is_read(void **state) {
    char path[] = "/tmp/lateen-st-XXXXXX";
    const float a[6] = {1, 2, 3, 4, 5, 6};
    const uint16_t b[3] = {7, 8, 9};
    const lt_safetensor_memory am = {a, 4}, bm = {b, 2};
    const lt_safetensor_out out[2] = {
        {"z.weight", LT_F32, 2, {2, 3}, lt_safetensor_fill_memory, &am},
        {"a.bias", LT_BF16, 1, {3}, lt_safetensor_fill_memory, &bm}};
    json_t *meta = json_pack("{s:s}", "format", "pt");
    lt_safetensors s;
    uint64_t hash = 0, again = 0;
    const lt_safetensor *t;
    (void)state;
    close(mkstemp(path));
    assert_int_equal(lt_safetensors_write(path, out, 2, meta, &hash), LT_OK);
    assert_int_equal(lt_safetensors_write(path, out, 2, meta, &again), LT_OK);
    assert_true(hash == again && hash != 0);
    assert_int_equal(lt_safetensors_open(&s, path), LT_OK);
    assert_int_equal(s.n_tensors, 2);
    t = lt_safetensors_find(&s, "z.weight");
    assert_non_null(t);
    assert_int_equal(t->shape[0], 2);
    assert_int_equal(t->shape[1], 3);
    assert_memory_equal(t->data, a, sizeof a);
    t = lt_safetensors_find(&s, "a.bias");
    assert_int_equal(t->dtype, LT_BF16);
    assert_memory_equal(t->data, b, sizeof b);
    assert_null(lt_safetensors_find(&s, "nope"));
    assert_string_equal(lt_safetensors_metadata(&s, "format"), "pt");
    lt_safetensors_close(&s);
    json_decref(meta);
    unlink(path);
}

/* Header text, bytes of data after it, a word of the message. */
static const struct {
    const char *header;
    size_t data_bytes;
    const char *word;
} lies[] = {
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", 7, "outside"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", 9, "cover"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[0,8]}}", 8, "need 12"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[8,0]}}", 8, "outside"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[-2],\"data_offsets\":[0,8]}}", 8, "dimension 0"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[4294967296,4294967296,4294967296],\"data_offsets\":[0,8]"
     "}}",
     8, "dimension"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1,1,1,1,2],\"data_offsets\":[0,8]}}", 8, "at most 4"},
    {"{\"a\":{\"dtype\":\"Q7\",\"shape\":[2],\"data_offsets\":[0,8]}}", 8, "Q7"},
    {"{\"a\":{\"shape\":[2],\"data_offsets\":[0,8]}}", 8, "dtype"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},\"b\":{\"dtype\":\"F32\","
     "\"shape\":[1],\"data_offsets\":[0,4]}}",
     4, "overlap"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},\"b\":{\"dtype\":\"F32\","
     "\"shape\":[1],\"data_offsets\":[8,12]}}",
     12, "hole"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},\"a\":{\"dtype\":\"F32\","
     "\"shape\":[1],\"data_offsets\":[4,8]}}",
     8, "duplicate"},
    {"[1]", 0, "object"},
    {"{", 0, "t:1"},
};

static void false_headers_are_refused(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof lies / sizeof *lies; i++) {
        unsigned char file[512] = {0};
        const size_t n = strlen(lies[i].header);
        lt_safetensors s;
        file[0] = (unsigned char)n;
        memcpy(file + 8, lies[i].header, n);
        assert_int_not_equal(lt_safetensors_parse(&s, file, 8 + n + lies[i].data_bytes, "t"),
                             LT_OK);
        if (strstr(lt_error_message(), lies[i].word) == NULL) {
            fail_msg("%s: message '%s' lacks '%s'", lies[i].header, lt_error_message(),
                     lies[i].word);
        }
    }
}

static void short_files_are_refused(void **state) {
    const unsigned char file[16] = {255, 255, 255, 255, 255, 255, 255, 255};
    lt_safetensors s;
    (void)state;
    for (size_t n = 0; n <= sizeof file; n++) {
        assert_int_equal(lt_safetensors_parse(&s, file, n, "t"), LT_ERR_FORMAT);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(written_is_read),
                                       cmocka_unit_test(false_headers_are_refused),
                                       cmocka_unit_test(short_files_are_refused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
