/* Steps of answers: their ids are those of TRL's PRMTrainer (tools/make_prm_goldens.py), an answer
 * is divided at its borders, and scores of steps become one. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <math.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

#include "base/error.h"
#include "base/json.h"
#include "data/steps.h"

#define SFT "tests/golden/sft"
#define PRM "tests/golden/prm/"

static lt_tokenizer *tokenizer;
static lt_tokenizer_scratch *scratch;

static void must(lt_err err) {
    if (err != LT_OK) {
        fail_msg("%s", lt_error_message());
    }
}

/* The ids of a line's steps end with those of TRL. */
static void check_line(const lt_steps *s, const char *text, const json_t *says) {
    const json_t *want = json_object_get(says, "ids");
    json_t *line = json_loads(text, 0, NULL);
    const json_t *steps = json_object_get(line, "completions");
    const size_t n = json_array_size(want);
    lt_ids ids = {0};
    assert_non_null(line);
    for (size_t i = 0; i < json_array_size(steps); i++) {
        const json_t *step = json_array_get(steps, i);
        must(lt_steps_add(s, scratch, json_string_value(step), json_string_length(step), &ids));
    }
    assert_true(ids.n > 0 && ids.n < n);
    for (size_t i = 0; i < ids.n; i++) {
        assert_int_equal(ids.data[i], json_integer_value(json_array_get(want, n - ids.n + i)));
    }
    lt_ids_free(&ids);
    json_decref(line);
}

static void ids_are_those_of_trl(void **state) {
    char text[1024];
    FILE *f = fopen(PRM "steps.jsonl", "r");
    json_t *truth = NULL;
    lt_steps s;
    size_t i = 0;
    (void)state;
    assert_non_null(f);
    must(lt_json_load(&truth, PRM "truth.json", 1 << 20));
    must(lt_steps_open(&s, tokenizer, scratch, ""));
    assert_string_equal(s.text, "\n");
    for (; fgets(text, sizeof text, f) != NULL; i++) {
        check_line(&s, text, json_array_get(json_object_get(truth, "says"), i));
    }
    assert_int_equal(i, 16);
    assert_string_equal(lt_steps_border(&s), "\n");
    lt_steps_close(&s);
    /* It is special, so no answer contains it. */
    must(lt_steps_open(&s, tokenizer, scratch, "<|tool|>"));
    assert_int_equal(s.ids.n, 1);
    assert_string_equal(lt_steps_border(&s), "\n\n");
    lt_steps_close(&s);
    json_decref(truth);
    fclose(f);
}

static void answers_are_divided(void **state) {
    const char *const borders[] = {"\n\n", "--"};
    const size_t lengths[] = {2, 2};
    static const struct {
        const char *text;
        int n_borders;
        const char *steps[4];
    } cases[] = {{"a\n\nb\nc\n\n", 2, {"a", "b\nc"}},
                 {"a--b\n\nc", 2, {"a", "b", "c"}},
                 {"a--b\n\nc", 1, {"a--b", "c"}},
                 {"\n\n \n\n--a", 2, {"a"}},
                 {"a\n\nb", 0, {"a\n\nb"}},
                 {" \n", 2, {NULL}},
                 {"", 2, {NULL}}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *text = cases[i].text, *step;
        size_t bytes = strlen(text), n, k = 0;
        while (lt_steps_next(&text, &bytes, borders, lengths, cases[i].n_borders, &step, &n)) {
            assert_true(k < 4 && cases[i].steps[k] != NULL);
            assert_int_equal(n, strlen(cases[i].steps[k]));
            assert_memory_equal(step, cases[i].steps[k++], n);
        }
        assert_null(cases[i].steps[k]);
    }
}

static void scores_become_one(void **state) {
    const double scores[] = {0.5, 0.25, 0.75};
    const float values[] = {1.0f, 1.0f + 0x1p-1f};
    (void)state;
    assert_true(lt_steps_fold(LT_STEPS_min, scores, 3) == 0.25);
    assert_true(lt_steps_fold(LT_STEPS_product, scores, 3) == 0.09375);
    assert_true(lt_steps_fold(LT_STEPS_last, scores, 3) == 0.75);
    assert_true(lt_steps_fold(LT_STEPS_mean, scores, 3) == 0.5);
    for (int kind = 0; kind < LT_STEPS_FOLDS; kind++) {
        assert_true(lt_steps_fold((lt_steps_fold_kind)kind, NULL, 0) == 0);
    }
    assert_true(fabs(lt_steps_score(values) - exp(1.5) / (exp(1) + exp(1.5))) < 1e-12);
}

static int open_tokenizer(void **state) {
    (void)state;
    return lt_tokenizer_open(&tokenizer, SFT, NULL) != LT_OK ||
           lt_tokenizer_scratch_open(&scratch, tokenizer) != LT_OK;
}

static int close_tokenizer(void **state) {
    (void)state;
    lt_tokenizer_scratch_close(scratch);
    lt_tokenizer_close(tokenizer);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ids_are_those_of_trl),
        cmocka_unit_test(answers_are_divided),
        cmocka_unit_test(scores_become_one),
    };
    return cmocka_run_group_tests(tests, open_tokenizer, close_tokenizer);
}
