/* Hashes of pieces of memory: where spans are cut, and each hash, worked out here from the
 * definition in tensor/ops.h. */
#include "unit/device.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include <cmocka.h>

#include "base/error.h"
#include "train/watch/pieces.h"

#define PIECE (256 * 1024)

static uint64_t mix(uint64_t x) {
    x = (x ^ (x >> 33)) * 0xff51afd7ed558ccdu;
    x = (x ^ (x >> 33)) * 0xc4ceb9fe1a85ec53u;
    return x ^ (x >> 33);
}

static int64_t hash_of(const unsigned char *data, size_t bytes) {
    uint64_t sum = 0;
    for (size_t at = 0, k = 1; at < bytes; at += 8, k++) {
        uint64_t word = 0;
        memcpy(&word, data + at, bytes - at < 8 ? bytes - at : 8);
        sum += mix(word ^ (k * 0x9e3779b97f4a7c15u));
    }
    return (int64_t)sum;
}

static void spans_are_cut(void **state) {
    /* Spans in any order in memory, one of them empty: 2 pieces and a rest, none, one, a rest. */
    enum { LONG = 2 * PIECE + 40, ONE = PIECE, SHORT = 24 };
    unsigned char *memory = malloc(LONG + ONE + SHORT);
    lt_device *device = device_of(lt_backend_cpu());
    lt_queue *queue = NULL;
    lt_pieces p;
    (void)state;
    assert_non_null(memory);
    for (int i = 0; i < LONG + ONE + SHORT; i++) {
        memory[i] = (unsigned char)(i * 31 + i / 251);
    }
    const unsigned char *const of_long = memory + ONE, *const of_one = memory,
                               *const of_short = memory + ONE + LONG;
    const lt_piece_span spans[] = {{of_long, LONG}, {of_long, 0}, {of_one, ONE}, {of_short, SHORT}};
    const struct {
        int span;
        const unsigned char *data;
        size_t bytes;
    } want[] = {{0, of_long, PIECE},
                {0, of_long + PIECE, PIECE},
                {0, of_long + 2 * PIECE, 40},
                {2, of_one, PIECE},
                {3, of_short, SHORT}};
    enum { N = sizeof want / sizeof *want };
    int64_t hashes[N];
    for (int i = 0; i < N; i++) {
        hashes[i] = hash_of(want[i].data, want[i].bytes);
    }
    assert_int_equal(device->backend->queue_open(device, &queue), LT_OK);
    assert_int_equal(lt_pieces_open(&p, device, queue, spans, 4), LT_OK);
    assert_int_equal(p.n, N);
    const int ranges[][2] = {{0, N}, {1, 4}, {4, 5}, {0, 1}};
    for (size_t k = 0; k < sizeof ranges / sizeof *ranges; k++) {
        const int first = ranges[k][0], end = ranges[k][1];
        double seconds = -1.0;
        memset(p.hashes, 0, N * sizeof *p.hashes);
        assert_int_equal(lt_pieces_queue(&p, first, end), LT_OK);
        assert_int_equal(device->backend->sync(queue), LT_OK);
        for (int i = 0; i < N; i++) {
            assert_int_equal(p.span[i], want[i].span);
            assert_true(p.hashes[i] == (i >= first && i < end ? hashes[i] : 0));
        }
        assert_true(lt_pieces_sum(&p) ==
                    (int64_t)XXH3_64bits(hashes + first, (size_t)(end - first) * 8));
        assert_int_equal(lt_pieces_seconds(&p, &seconds), LT_OK);
        assert_true(seconds > 0.0 && seconds < 60.0);
    }
    double seconds = -1.0;
    assert_int_equal(lt_pieces_queue(&p, 2, 2), LT_OK); /* None of them. */
    assert_int_equal(lt_pieces_seconds(&p, &seconds), LT_OK);
    assert_true(seconds == 0.0);
    lt_pieces_close(&p);
    assert_null(p.device);
    lt_pieces_close(&p); /* Closed twice, as after a failure. */
    device->backend->queue_close(queue);
    free(memory);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(spans_are_cut)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
