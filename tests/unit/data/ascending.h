/* ascending.h: a shard whose tokens are 0, 1, 2, ..., so that a token is its position. */
#ifndef TESTS_DATA_ASCENDING_H
#define TESTS_DATA_ASCENDING_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "data/shard_writer.h"

enum { ASCENDING_VOCAB = 60000, ASCENDING_LONGEST = 1000 };

/* Write n documents of these lengths in tokens. */
static inline void write_ascending(const char *to, const int32_t *sizes, size_t n) {
    lt_shard_writer *w = NULL;
    int32_t at = 0;
    assert_int_equal(lt_shard_writer_open(&w, to, ASCENDING_VOCAB, NULL), LT_OK);
    for (size_t d = 0; d < n; d++) {
        int32_t ids[ASCENDING_LONGEST];
        assert_true(sizes[d] <= ASCENDING_LONGEST);
        for (int32_t i = 0; i < sizes[d]; i++) {
            ids[i] = at++;
        }
        assert_int_equal(lt_shard_writer_append(w, ids, (size_t)sizes[d]), LT_OK);
    }
    assert_int_equal(lt_shard_writer_finish(w), LT_OK);
    lt_shard_writer_close(w);
}

#endif
