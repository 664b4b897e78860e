/* Rows of conversations: where an answer begins, and which tokens have labels. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "align/dialogues.h"

static void where_the_last_answer_begins(void **state) {
    static const bool two[] = {0, 0, 1, 1, 0, 0, 1, 1, 1, 0}, none[] = {0, 0, 0}, all[] = {1, 1},
                      end[] = {0, 1};
    (void)state;
    assert_int_equal(lt_dialogues_last_answer(two, 10), 6);
    assert_int_equal(lt_dialogues_last_answer(two, 8), 6); /* The row is cut off within it. */
    assert_int_equal(lt_dialogues_last_answer(two, 6), 2);
    assert_int_equal(lt_dialogues_last_answer(none, 3), 0);
    assert_int_equal(lt_dialogues_last_answer(all, 2), 0);
    assert_int_equal(lt_dialogues_last_answer(end, 2), 1);
}

static void a_row_has_labels_before_what_is_learnt(void **state) {
    static const int32_t ids[] = {5, 6, 7, 8};
    static const bool learnt[] = {1, 0, 1, 1}; /* No token predicts the first one. */
    int32_t tokens[12], labels[12], doc_start[12], positions[12];
    const lt_batch to = {2, 6, tokens, labels, doc_start, positions};
    static const int32_t want_tokens[] = {5, 6, 7, 8, 0, 0}, want_labels[] = {-1, 7, 8, -1, -1, -1};
    (void)state;
    lt_dialogues_row(ids, learnt, 4, &to, 1);
    assert_memory_equal(tokens + 6, want_tokens, sizeof want_tokens);
    assert_memory_equal(labels + 6, want_labels, sizeof want_labels);
    assert_int_equal(positions[11], 5);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(where_the_last_answer_begins),
        cmocka_unit_test(a_row_has_labels_before_what_is_learnt),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
