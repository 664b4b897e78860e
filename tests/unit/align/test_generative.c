/* Tasks that are answered with a text: the verdicts of lm-evaluation-harness on the same
 * responses (tools/make_generative_goldens.py), and the examples that Python's random draws. With
 * NLTK_DATA, the number of sentences and of capitalised words against NLTK's. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "align/python_random.h"
#include "data/check/gsm8k.h"
#include "data/check/ifeval.h"

#define GOLDEN "tests/golden/eval/generative/"

/* Call a function with each line of a file. */
static int64_t each_line(const char *path, void (*line)(const json_t *row, int64_t at)) {
    FILE *f = fopen(path, "r");
    char *text = NULL;
    size_t room = 0;
    int64_t n = 0;
    assert_non_null(f);
    while (getline(&text, &room, f) > 0) {
        json_t *row = json_loads(text, JSON_ALLOW_NUL, NULL);
        assert_non_null(row);
        line(row, n++);
        json_decref(row);
    }
    free(text);
    fclose(f);
    return n;
}

static lt_span span_of(const json_t *row, const char *key) {
    const json_t *text = json_object_get(row, key);
    assert_true(json_is_string(text));
    return (lt_span){json_string_value(text), json_string_length(text)};
}

static int64_t rights[2];

static void gsm8k_line(const json_t *row, int64_t at) {
    const lt_span text = span_of(row, "response"), gold = span_of(row, "answer");
    for (int f = 0; f < LT_GSM8K_FILTERS; f++) {
        const bool want = json_is_true(json_array_get(json_object_get(row, "right"), (size_t)f));
        const bool got = lt_gsm8k_right((lt_gsm8k_filter)f, text.data, text.n, gold.data, gold.n);
        if (got != want) {
            fail_msg("line %lld, %s: %s", (long long)at + 1,
                     lt_gsm8k_filter_name((lt_gsm8k_filter)f), text.data);
        }
        rights[f] += got;
    }
}

static void gsm8k(void **state) {
    (void)state;
    assert_int_equal(each_line(GOLDEN "gsm8k.jsonl", gsm8k_line), 80);
    assert_in_range(rights[0], 10, 70);
    assert_in_range(rights[1], rights[0] + 1, 79);
}

static lt_punkt *punkt;
static int64_t n_yes, n_no, n_unknown;

static bool needs_punkt(const char *id) {
    return strcmp(id, "length_constraints:number_sentences") == 0 ||
           strcmp(id, "change_case:capital_word_frequency") == 0;
}

static void check_verdict(const json_t *want, lt_ifeval_outcome got, const char *id, int64_t at,
                          const char *how) {
    const lt_ifeval_outcome outcome = json_is_null(want)   ? LT_IFEVAL_UNKNOWN
                                      : json_is_true(want) ? LT_IFEVAL_YES
                                                           : LT_IFEVAL_NO;
    n_yes += got == LT_IFEVAL_YES;
    n_no += got == LT_IFEVAL_NO;
    n_unknown += got == LT_IFEVAL_UNKNOWN;
    if (punkt == NULL && needs_punkt(id) && got != outcome) {
        assert_int_equal(got, LT_IFEVAL_UNKNOWN);
    } else if (outcome == LT_IFEVAL_UNKNOWN) {
        assert_int_not_equal(got, LT_IFEVAL_YES); /* A blank response follows no instruction. */
    } else if (got != outcome) {
        fail_msg("line %lld, %s, %s: %d, not %d", (long long)at + 1, id, how, (int)got,
                 (int)outcome);
    }
}

static void check_counts(const json_t *row, lt_span text, int64_t at) {
    int64_t sentences = 0, words = 0;
    assert_int_equal(lt_punkt_count(punkt, text, &sentences), LT_OK);
    assert_int_equal(lt_punkt_count_capital(punkt, text, &words), LT_OK);
    if (sentences != json_integer_value(json_object_get(row, "sentences")) ||
        words != json_integer_value(json_object_get(row, "capital_words"))) {
        fail_msg("line %lld: %lld sentences, %lld words in capitals: %s", (long long)at + 1,
                 (long long)sentences, (long long)words, text.data);
    }
}

static void ifeval_line(const json_t *row, int64_t at) {
    const lt_span text = span_of(row, "response");
    const json_t *ids = json_object_get(row, "instruction_id_list");
    const json_t *arguments = json_object_get(row, "kwargs");
    const json_t *follows = json_object_get(row, "follows");
    assert_int_equal(lt_ifeval_line_check(row), LT_OK);
    for (size_t i = 0; i < json_array_size(ids); i++) {
        const char *id = json_string_value(json_array_get(ids, i));
        const json_t *want = json_array_get(follows, i);
        lt_ifeval_verdict got;
        assert_int_equal(
            lt_ifeval_check(&got, id, json_array_get(arguments, i), text.data, text.n, punkt),
            LT_OK);
        check_verdict(json_array_get(want, 0), got.strict, id, at, "strict");
        check_verdict(json_array_get(want, 1), got.loose, id, at, "loose");
    }
    if (punkt != NULL && lt_span_strip(text).n > 0) {
        check_counts(row, text, at);
    }
}

/* Of the parts between asterisks only the first and the last may be empty, and two different ones
 * must be left (instructions.py, TwoResponsesChecker). */
static void two_responses(void **state) {
    static const struct {
        const char *text;
        lt_ifeval_outcome want;
    } cases[] = {{"A******B", LT_IFEVAL_YES},
                 {"******A******B", LT_IFEVAL_YES},
                 {"A******B\n****** ", LT_IFEVAL_YES},
                 {"A****** ******B", LT_IFEVAL_NO},
                 {"A******A", LT_IFEVAL_NO},
                 {"A******B******C", LT_IFEVAL_NO},
                 {"A", LT_IFEVAL_NO}};
    json_t *none = json_object();
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        lt_ifeval_verdict got;
        assert_int_equal(lt_ifeval_check(&got, "combination:two_responses", none, cases[i].text,
                                         strlen(cases[i].text), NULL),
                         LT_OK);
        assert_int_equal(got.strict, cases[i].want);
    }
    json_decref(none);
}

static void ifeval(void **state) {
    const char *data = getenv("NLTK_DATA");
    (void)state;
    if (data != NULL) {
        assert_int_equal(lt_punkt_open(&punkt, data), LT_OK);
    }
    assert_int_equal(each_line(GOLDEN "ifeval.jsonl", ifeval_line), 260);
    print_message("%lld followed, %lld not, %lld unknown%s\n", (long long)n_yes, (long long)n_no,
                  (long long)n_unknown, data != NULL ? ", with NLTK's parameters" : "");
    assert_true(n_yes > 200 && n_no > 100);
    lt_punkt_close(punkt);
    punkt = NULL;
}

/* Lines that do not match the published data, and the words of the message for each; NULL: it
 * matches. If arguments were read wrongly, the score would mean nothing. */
static void malformed_instructions_are_refused(void **state) {
    static const struct {
        const char *ids, *arguments, *says;
    } cases[] = {
        {"[\"punctuation:no_comma\"]", "[{}]", NULL},
        {"[\"punctuation:no_comma\"]", "[null]", NULL},
        {"[\"punctuation:no_comma\"]", "[{\"num_words\": \"of another\"}]", NULL},
        {"[\"keywords:existence\"]", "[{\"keywords\": null}]", NULL},
        {"[\"length_constraints:number_words\"]",
         "[{\"num_words\": 300.0, \"relation\": \"less than\"}]", NULL},
        {"\"punctuation:no_comma\"", "[{}]", "they have 0 and 1 elements"},
        {"[]", "[]", "they have 0 and 0 elements"},
        {"[\"punctuation:no_comma\"]", "[]", "they have 1 and 0 elements"},
        {"[\"punctuation:no_comma\"]", "{}", "they have 1 and 0 elements"},
        {"[\"punctuation:no_comma\", 3]", "[{}, {}]", "element 2 of \"instruction_id_list\""},
        {"[\"punctuation:no_coma\"]", "[{}]", "no instruction \"punctuation:no_coma\""},
        {"[\"punctuation:no_comma\"]", "[7]", "element 1 of \"kwargs\""},
        {"[\"keywords:existence\"]", "[{\"keywords\": \"rain\"}]",
         "keywords:existence: \"keywords\" is \"rain\", not a list of strings"},
        {"[\"keywords:forbidden_words\"]", "[{\"forbidden_words\": [\"a\", 3]}]",
         "\"forbidden_words\" is [\"a\",3], not a list of strings"},
        {"[\"length_constraints:number_words\"]",
         "[{\"num_words\": \"300\", \"relation\": \"less than\"}]",
         "\"num_words\" is \"300\", not a number"},
        {"[\"length_constraints:number_words\"]",
         "[{\"num_words\": 300, \"relation\": \"at most\"}]",
         "\"relation\" is \"at most\", not \"less than\" or \"at least\""},
        {"[\"keywords:letter_frequency\"]",
         "[{\"letter\": 5, \"let_frequency\": 3, \"let_relation\": \"at least\"}]",
         "\"letter\" is 5, not a string"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        json_t *line = json_object();
        json_object_set_new(line, "instruction_id_list",
                            json_loads(cases[i].ids, JSON_DECODE_ANY, NULL));
        json_object_set_new(line, "kwargs", json_loads(cases[i].arguments, JSON_DECODE_ANY, NULL));
        if (cases[i].says == NULL) {
            assert_int_equal(lt_ifeval_line_check(line), LT_OK);
        } else {
            assert_int_not_equal(lt_ifeval_line_check(line), LT_OK);
            if (strstr(lt_error_message(), cases[i].says) == NULL) {
                fail_msg("case %zu: %s", i, lt_error_message());
            }
        }
        json_decref(line);
    }
}

/* Parameters that were written for this test: what each of the files decides. */
static void sentences_by_own_parameters(void **state) {
    static const struct {
        const char *text;
        int64_t n;
    } cases[] = {
        {"One. Two! Three? Four", 4},
        {"See dr. Smith. He knows.", 2}, /* An abbreviation. */
        /* ... before a word that often begins a sentence. */
        {"See dr. The end.", 2},
        {"J. Bach wrote. It is good.", 2},           /* An initial before a name. */
        {"It is 5. the rest is small.", 1},          /* A number before a small letter. */
        {"No. 5 and vol. iii. Yes.", 2},             /* A collocation. */
        {"(He knew.) We did. \"Go!\" she said.", 4}, /* Closing marks belong to what they close. */
        {"What...? Really.", 2},
        {"a.b.c", 1},
        {"  Leading. Space ", 2},
    };
    char folder[] = "/tmp/lateen-punkt-XXXXXX", path[256];
    static const char *const files[][2] = {
        {"abbrev_types.txt", "dr\nvol\n"},
        {"collocations.tab", "no\t##number##\nvol\tiii\n"},
        {"sent_starters.txt", "the\nhe\n"},
        {"ortho_context.tab", "the\t18\nhe\t18\nit\t18\nsmith\t4\nbach\t4\nrest\t32\nsaid\t32\n"}};
    (void)state;

    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "mkdir -p %s/tokenizers/punkt_tab/english", folder);
    assert_int_equal(system(path), 0);
    for (size_t i = 0; i < 4; i++) {
        FILE *f;
        snprintf(path, sizeof path, "%s/tokenizers/punkt_tab/english/%s", folder, files[i][0]);
        f = fopen(path, "w");
        assert_non_null(f);
        fputs(files[i][1], f);
        fclose(f);
    }
    assert_int_equal(lt_punkt_open(&punkt, folder), LT_OK);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int64_t n = 0;
        const lt_span text = {cases[i].text, strlen(cases[i].text)};
        assert_int_equal(lt_punkt_count(punkt, text, &n), LT_OK);
        if (n != cases[i].n) {
            fail_msg("%s: %lld sentences", cases[i].text, (long long)n);
        }
    }
    lt_punkt_close(punkt);
    punkt = NULL;
    snprintf(path, sizeof path, "rm -r %s", folder);
    assert_int_equal(system(path), 0);
}

static lt_python_random generator;

static void sample_line(const json_t *row, int64_t at) {
    const json_t *drawn = json_object_get(row, "drawn");
    int64_t got[64];
    const int64_t k = json_integer_value(json_object_get(row, "k"));
    lt_python_random_sample(&generator, json_integer_value(json_object_get(row, "n")), k, got);
    for (int64_t i = 0; i < k; i++) {
        if (got[i] != json_integer_value(json_array_get(drawn, (size_t)i))) {
            fail_msg("line %lld, number %lld: %lld", (long long)at + 1, (long long)i,
                     (long long)got[i]);
        }
    }
}

static void examples_of_the_harness(void **state) {
    (void)state;
    lt_python_random_seed(&generator, 1234);
    assert_int_equal(each_line(GOLDEN "samples.jsonl", sample_line), 14);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gsm8k),
        cmocka_unit_test(two_responses),
        cmocka_unit_test(ifeval),
        cmocka_unit_test(malformed_instructions_are_refused),
        cmocka_unit_test(sentences_by_own_parameters),
        cmocka_unit_test(examples_of_the_harness),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
