/* What the op hash must detect: any flipped bit, at every position of a piece, and words that
 * change places; and the values that a Python script computes from the formula in ops.h. This
 * tests the reference, every implementation of the CPU backend that this machine can run, and
 * that of the GPU. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/registry.h"
#include "unit/device.h"

enum { BYTES = 1003, ROOM = 1008, BITS = 8 * BYTES, WORDS = BYTES / 8 };

/* The test's piece, in Python: bytes(i * 7 % 256 for i in range(n)). */
static void fill(unsigned char *piece, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        piece[i] = (unsigned char)(i * 7 % 256);
    }
}

/* Hashes of n pieces of `bytes` each, ROOM bytes apart, by one implementation. */
static void hashes(const lt_backend *b, const lt_op_impl *impl, const unsigned char *data,
                   int64_t bytes, int64_t n, uint64_t *out) {
    lt_device *d = device_of(b);
    int64_t *pieces = malloc((size_t)n * 2 * sizeof *pieces);
    lt_queue *q;
    void *x, *places, *results;
    lt_hash_args a;
    for (int64_t i = 0; i < n; i++) {
        pieces[2 * i] = i * ROOM;
        pieces[2 * i + 1] = bytes;
    }
    assert_int_equal(b->queue_open(d, &q), LT_OK);
    assert_int_equal(b->alloc(d, &x, (size_t)n * ROOM, "memory"), LT_OK);
    assert_int_equal(b->alloc(d, &places, (size_t)n * 16, "pieces"), LT_OK);
    assert_int_equal(b->alloc(d, &results, (size_t)n * 8, "hashes"), LT_OK);
    assert_int_equal(b->upload(q, x, data, (size_t)n * ROOM), LT_OK);
    assert_int_equal(b->upload(q, places, pieces, (size_t)n * 16), LT_OK);
    a = (lt_hash_args){.out = lt_tensor_1d(results, LT_I64, n),
                       .pieces = lt_tensor_2d(places, LT_I64, n, 2),
                       .x = {.data = x}};
    assert_int_equal(impl->run(q, &a), LT_OK);
    assert_int_equal(b->download(q, out, results, (size_t)n * 8), LT_OK);
    assert_int_equal(b->sync(q), LT_OK);
    b->release(d, x, (size_t)n * ROOM);
    b->release(d, places, (size_t)n * 16);
    b->release(d, results, (size_t)n * 8);
    b->queue_close(q);
    free(pieces);
}

typedef void check(const lt_backend *b, const lt_op_impl *impl);

/* Run a check on every implementation that this machine can run. */
static void on_all(check *f) {
    const lt_backend *backends[] = {lt_backend_ref(), lt_backend_cpu(), gpu_backend()};
    for (size_t k = 0; k < sizeof backends / sizeof *backends; k++) {
        const lt_hash_args a = {.out = {.dtype = LT_I64}, .pieces = {.dtype = LT_I64}};
        const lt_op_list list = backends[k] != NULL ? lt_registry_list(backends[k], LT_OP_hash)
                                                    : (lt_op_list){0};
        for (int i = 0; i < list.n_impls; i++) {
            const lt_op_impl *impl = &list.impls[i];
            if (impl->refuse == NULL || impl->refuse(&a, device_of(backends[k])) == NULL) {
                f(backends[k], impl);
            }
        }
    }
}

static void known(const lt_backend *b, const lt_op_impl *impl) {
    static const struct {
        int64_t bytes;
        uint64_t want;
    } rows[] = {{0, 0}, {21, 0xde770b7998714af4u}, {1003, 0x7cf9f66b6ddce86fu}};
    unsigned char piece[ROOM];
    uint64_t got;
    fill(piece, ROOM);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        hashes(b, impl, piece, rows[i].bytes, 1, &got);
        assert_true(got == rows[i].want);
    }
}

static int by_value(const void *x, const void *y) {
    const uint64_t a = *(const uint64_t *)x, b = *(const uint64_t *)y;
    return (a > b) - (a < b);
}

/* No two of n variants of a piece have the same hash. */
static void all_differ(const lt_backend *b, const lt_op_impl *impl, const unsigned char *data,
                       int n) {
    uint64_t *got = malloc((size_t)n * sizeof *got);
    hashes(b, impl, data, BYTES, n, got);
    qsort(got, (size_t)n, sizeof *got, by_value);
    for (int i = 1; i < n; i++) {
        assert_true(got[i] != got[i - 1]);
    }
    free(got);
}

/* The piece, and the piece with each of its bits flipped. */
static void flips(const lt_backend *b, const lt_op_impl *impl) {
    unsigned char *data = calloc(BITS + 1, ROOM);
    for (int i = 0; i <= BITS; i++) {
        fill(data + (size_t)i * ROOM, BYTES);
    }
    for (int i = 0; i < BITS; i++) {
        data[(size_t)i * ROOM + (size_t)i / 8] ^= (unsigned char)(1u << i % 8);
    }
    all_differ(b, impl, data, BITS + 1);
    free(data);
}

/* The piece, and the piece with words that have changed places: each with the next one, and with
 * the one eight further. */
static void swaps(const lt_backend *b, const lt_op_impl *impl) {
    const int n = 2 * (WORDS - 8) + 1;
    unsigned char *data = calloc((size_t)n, ROOM), word[8];
    for (int i = 0; i < n; i++) {
        unsigned char *piece = data + (size_t)i * ROOM;
        const int first = i / 2, second = first + (i % 2 == 0 ? 1 : 8);
        fill(piece, BYTES);
        if (i + 1 < n) {
            memcpy(word, piece + (size_t)8 * (size_t)first, 8);
            memcpy(piece + (size_t)8 * (size_t)first, piece + (size_t)8 * (size_t)second, 8);
            memcpy(piece + (size_t)8 * (size_t)second, word, 8);
        }
    }
    all_differ(b, impl, data, n);
    free(data);
}

static void values_of_the_formula(void **state) {
    (void)state;
    on_all(known);
}
static void every_flipped_bit_is_found(void **state) {
    (void)state;
    on_all(flips);
}
static void words_that_change_places_are_found(void **state) {
    (void)state;
    on_all(swaps);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(values_of_the_formula),
                                       cmocka_unit_test(every_flipped_bit_is_found),
                                       cmocka_unit_test(words_that_change_places_are_found)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
