/* Benches in this process: what they count, which is known beforehand, and that their rates are
 * those of their times. How fast anything is, is not tested. */
#include "unit/cli/verb_run.h"

#include "base/error.h"
#include "base/file.h"
#include "cli/bench/bench.h"
#include "unit/scratch_folder.h"

static void medians(void **state) {
    double odd[] = {5, 1, 3}, even[] = {8, 1, 4, 2}, one[] = {7};
    (void)state;
    assert_true(lt_bench_median(odd, 3) == 3);
    assert_true(lt_bench_median(even, 4) == 3);
    assert_true(lt_bench_median(one, 1) == 7);
}

static const char *write_text(const char *name, int lines) {
    static char path[LT_PATH_BYTES];
    char text[4096] = "";
    for (int i = 0; i < lines; i++) {
        strcat(text, "one two three\n");
    }
    assert_int_equal(lt_path_join(path, folder, name), LT_OK);
    assert_int_equal(lt_file_write_atomic(path, text, strlen(text)), LT_OK);
    return path;
}

/* A tokenizer whose ids are bytes gives as many ids as the text has bytes. */
static void tokenizing(void **state) {
    static const char *const bytes = "{\"model\": {\"type\": \"BPE\", \"vocab\": {%s}, "
                                     "\"merges\": []}, \"pre_tokenizer\": {\"type\": "
                                     "\"ByteLevel\", \"add_prefix_space\": false}}";
    /* ByteLevel's letters for the text: a space is U+0120, the end of a line U+010A. */
    static const char *const letters =
        "\"o\":0,\"n\":1,\"e\":2,\"t\":3,\"w\":4,\"h\":5,\"r\":6,\"\\u0120\":7,\"\\u010a\":8";
    char text[1024], tokenizer[LT_PATH_BYTES], words[3 * LT_PATH_BYTES];
    json_t *r;
    (void)state;
    (void)snprintf(text, sizeof text, bytes, letters);
    assert_int_equal(lt_path_join(tokenizer, folder, "tokenizer.json"), LT_OK);
    assert_int_equal(lt_file_write_atomic(tokenizer, text, strlen(text)), LT_OK);
    (void)snprintf(words, sizeof words, "tokenizer --tokenizer %s --input %s --rounds 4 --json",
                   tokenizer, write_text("text.txt", 10));
    r = run_json(lt_bench_tokenizer, words);
    assert_int_equal(number_at(r, "bytes"), 140);
    assert_int_equal(number_at(r, "ids"), 140);
    assert_int_equal(json_array_size(json_object_get(r, "seconds")), 4);
    assert_true(number_at(r, "load_s") > 0);
    json_decref(r);
    *strstr(words, " --rounds") = '\0';
    run_prints(lt_bench_tokenizer, words, "in 140 ids: first ");
    run_prints(lt_bench_tokenizer, words, ", median of 4 others "); /* 5 rounds by default. */
}

/* Every way of making rows has its line; the text's line is there only if a text is given. */
static void loading(void **state) {
    static const char *const cases[] = {"stream, file order",
                                        "stream, rows shuffled",
                                        "stream, documents shuffled",
                                        "best fit, documents shuffled",
                                        "stream, rows shuffled, Goldfish",
                                        "the same, a thread ahead"};
    char words[3 * LT_PATH_BYTES];
    (void)state;
    for (int texts = 0; texts < 2; texts++) {
        ran r;
        char *line, *rest = NULL;
        size_t n = 0;
        (void)snprintf(words, sizeof words,
                       "data --tokens 20000 --seq 64 --rows 2 --seconds 0.01 --json%s%s",
                       texts ? " --text " : "", texts ? write_text("text.txt", 100) : "");
        r = run_verb(lt_bench_data, words);
        assert_int_equal(r.status, LT_EXIT_DONE);
        for (line = strtok_r(r.out, "\n", &rest); line != NULL;
             line = strtok_r(NULL, "\n", &rest), n++) {
            json_t *row = json_loads(line, 0, NULL);
            assert_non_null(row);
            if (n < 6) {
                assert_string_equal(json_string_value(json_object_get(row, "case")), cases[n]);
                assert_int_equal(number_at(row, "seq"), 64);
                assert_true(number_at(row, "tokens_per_s") >= 2 * 64 / 10.0);
            } else {
                assert_string_equal(json_string_value(json_object_get(row, "bench")),
                                    "text reader");
                assert_true(number_at(row, "mb_per_s") > 0);
            }
            json_decref(row);
        }
        assert_int_equal(n, 6 + texts);
        ran_close(&r);
    }
    run_refused(lt_bench_data, "data --tokens 20000 --seconds 0.01 --text /no/such.txt",
                LT_EXIT_FAILED, "/no/such.txt");
    run_refused(lt_bench_data, "data --shard /no/such --seconds 0.01", LT_EXIT_FAILED, "/no/such");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(medians),
        cmocka_unit_test(tokenizing),
        cmocka_unit_test(loading),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
