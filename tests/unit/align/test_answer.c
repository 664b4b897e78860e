/* The text of an answer that was drawn: without the token that ended it, and without ids that the
 * tokenizer does not have, which a model with a larger vocabulary can choose. */
#include "unit/align/runs.h"

#include "align/rollout.h"

static void ids_without_a_token_are_left_out(void **state) {
    lt_tokenizer *t = NULL;
    lt_tokenizer_scratch *scratch = NULL;
    lt_ids ids = {0};
    char *text;
    int32_t drawn[16];
    (void)state;
    must(lt_tokenizer_open(&t, "tests/golden/sft/tokenizer.json", NULL), "tokenizer");
    must(lt_tokenizer_scratch_open(&scratch, t), "scratch");
    must(lt_tokenizer_encode(t, scratch, "two words", 9, LT_ENCODE_PLAIN, &ids), "ids");
    assert_in_range(ids.n, 2, 12);
    const int32_t known = (int32_t)lt_tokenizer_describe(t).n_ids;
    int64_t at = 0;
    drawn[at++] = known;
    for (size_t i = 0; i < ids.n; i++) {
        drawn[at++] = (int32_t)ids.data[i];
    }
    drawn[at++] = known + 1000;
    lt_answer a = {.ids = drawn, .n = at};
    must(lt_answer_text(&text, &a, t), "text");
    assert_string_equal(text, "two words");
    free(text);
    /* It ended the answer, and is not part of the text. */
    drawn[at - 1] = (int32_t)ids.data[ids.n - 1];
    a.ended = true;
    must(lt_answer_text(&text, &a, t), "ended");
    assert_string_equal(text, "two words");
    free(text);
    a = (lt_answer){.ids = drawn, .n = 1, .ended = true};
    must(lt_answer_text(&text, &a, t), "empty");
    assert_string_equal(text, "");
    free(text);
    lt_ids_free(&ids);
    lt_tokenizer_scratch_close(scratch);
    lt_tokenizer_close(t);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(ids_without_a_token_are_left_out)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
