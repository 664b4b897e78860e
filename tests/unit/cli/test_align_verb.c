/* `lateen align hedge` and `align detect`, whose numbers follow from closed forms: the expected
 * reward of the best of n by order statistics, and the z value of a count of green tokens
 * (Kirchenbauer et al. 2023, arXiv:2301.10226). tests/e2e/align_*.py run the parts that need a
 * model. */
#include "unit/cli/verb_run.h"

#include <inttypes.h>
#include <math.h>

#include "base/file.h"
#include "lateen/watermark.h"
#include "unit/scratch_folder.h"

int lt_verb_align(int argc, char **argv);

static char path[LT_PATH_BYTES], text[8192];

static const char *put(const char *name, const char *content) {
    assert_int_equal(lt_path_join(path, folder, name), LT_OK);
    assert_int_equal(lt_file_write_atomic(path, content, strlen(content)), LT_OK);
    return path;
}

static const char *with(const char *before, const char *after) {
    snprintf(text, sizeof text, "align %s %s %s", before, path, after);
    return text;
}

static void refuses(const char *before, const char *after, int status, const char *why) {
    run_refused(lt_verb_align, with(before, after), status, why);
}

/* ---- hedge ---- */

/* Two prompts: truth by falling proxy 0, 8, 4, 0 and 4, 0, 0, 0. The i-th of 4 is the best of n
 * drawn without putting back with probability C(4 - i, n - 1) / C(4, n). */
#define FOUR                                                                                       \
    "{\"proxy\": [3, 4, 2, 1], \"truth\": [8, 0, 4, 0]}\n\n"                                       \
    "{\"proxy\": [0.5, 0.25, 4.5, -1.5], \"truth\": [0, 0, 4, 0]}\n"

static void the_best_of_n(void **state) {
    static const double want[] = {2, (0 * 3 + 8 * 2 + 4 * 1) / 6.0 / 2 + 4 * 3 / 6.0 / 2,
                                  (8 * 1) / 4.0 / 2 + 4 * 3 / 4.0 / 2, 2};
    (void)state;
    put("four.jsonl", FOUR);
    json_t *r = run_json(lt_verb_align, with("hedge", "--parameters 1,2,3,4 --json --resamples 0"));
    const json_t *values = json_object_get(r, "values");
    assert_string_equal(json_string_value(json_object_get(r, "method")), "best_of_n");
    near_at(r, "prompts", 2);
    assert_int_equal(json_array_size(values), 4);
    for (size_t i = 0; i < 4; i++) {
        near_at(json_array_get(values, i), "parameter", (double)i + 1);
        near_at(json_array_get(values, i), "value", want[i]);
    }
    near_at(r, "best", 2);
    near_at(r, "value", want[1]);
    assert_true(json_is_false(json_object_get(r, "at_edge")));
    json_decref(r);
    ran told = run_verb(lt_verb_align, with("hedge", "--resamples 0 --parameters 1,2,4"));
    assert_int_equal(told.status, LT_EXIT_DONE);
    assert_non_null(strstr(told.out, "best_of_n, 2 prompts\n           n   true reward\n"));
    assert_non_null(strstr(told.out, "           1      2.000000\n"));
    assert_non_null(strstr(told.out, "           2      2.666667  best\n"));
    assert_null(strstr(told.out, "more may lie beyond"));
    ran_close(&told);
    run_prints(lt_verb_align, with("hedge", "--resamples 0 --parameters 2,3,4"),
               "the best is the first value that was tried: more may lie beyond");
    run_prints(lt_verb_align, with("hedge", "--resamples 0 --parameters 1,2"),
               "the best is the last value that was tried: more may lie beyond");
}

/* Without a list: powers of two that all prompts allow, or 40 temperatures. */
static void the_usual_values(void **state) {
    (void)state;
    put("more.jsonl", FOUR "{\"proxy\": [1, 2, 3, 4, 5, 6, 7, 8, 9], \"truth\": [1, 2, 3, 4, 5, 6, "
                           "7, 8, 9]}\n");
    json_t *r = run_json(lt_verb_align, with("hedge", "--json --resamples 0"));
    const json_t *values = json_object_get(r, "values");
    assert_int_equal(json_array_size(values), 3); /* 1, 2, 4: two prompts have 4. */
    near_at(json_array_get(values, 2), "parameter", 4);
    json_decref(r);
    r = run_json(lt_verb_align, with("hedge", "--method soft_best_of_n --json --resamples 0"));
    values = json_object_get(r, "values");
    assert_int_equal(json_array_size(values), 40);
    for (size_t i = 0; i < 40; i++) { /* The scores are from -1.5 to 9. */
        near_at(json_array_get(values, i), "parameter", 10.5 * 0.01 * pow(100, (double)i / 39));
    }
    json_decref(r);
    run_prints(lt_verb_align, with("hedge", "--method soft_best_of_n --resamples 0"),
               " temperature");
    run_prints(lt_verb_align,
               with("hedge", "--method best_of_poisson --resamples 0 --parameters 0.5,1"), " mu ");
    put("equal.jsonl", "{\"proxy\": [2, 2], \"truth\": [1, 3]}\n");
    r = run_json(lt_verb_align, with("hedge", "--method soft_best_of_n --json --resamples 0"));
    near_at(json_array_get(json_object_get(r, "values"), 39), "parameter", 1); /* No range. */
    near_at(json_array_get(json_object_get(r, "values"), 39), "value", 2);
    json_decref(r);
}

static void what_hedge_refuses(void **state) {
    static const struct {
        const char *text, *why;
    } rows[] = {{"", "has no line"},
                {"{\"proxy\": [], \"truth\": []}\n", "they have 0 and 0 numbers"},
                {"{\"proxy\": [1, 2], \"truth\": [1]}\n", "they have 2 and 1 numbers"},
                {"{\"proxy\": [1]}\n", "they have 1 and 0 numbers"},
                {"{\"proxy\": [1, \"2\"], \"truth\": [1, 2]}\n", "\"proxy\"[1] is not a number"},
                {"{\"proxy\": [1], \"truth\": [null]}\n", "\"truth\"[0] is not a number"},
                {"{\"proxy\": [1], \"truth\": [1]}\n{\n", ":2"}};
    static const char *const lists[] = {"1,1", "2,1", "1;2", "x", "1,,2", "1,x"};
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        put("wrong.jsonl", rows[i].text);
        refuses("hedge", "--resamples 0", LT_EXIT_FAILED, rows[i].why);
    }
    put("four.jsonl", FOUR);
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
        char option[64];
        snprintf(option, sizeof option, "--parameters %s", lists[i]);
        refuses("hedge", option, LT_EXIT_USAGE, "is not a list of at most 256 rising numbers");
    }
    for (int n = 256; n <= 257; n++) {
        char list[2000] = "--resamples 0 --method soft_best_of_n --parameters 1";
        for (int i = 2; i <= n; i++) {
            snprintf(list + strlen(list), sizeof list - strlen(list), ",%d", i);
        }
        ran r = run_verb(lt_verb_align, with("hedge", list));
        assert_int_equal(r.status, n == 256 ? LT_EXIT_DONE : LT_EXIT_USAGE);
        ran_close(&r);
    }
    refuses("hedge", "--method best", LT_EXIT_FAILED, "best");
    run_refused(lt_verb_align, "align hedge /no/such.jsonl", LT_EXIT_FAILED, "/no/such.jsonl");
    run_refused(lt_verb_align, "align hedge", LT_EXIT_USAGE, "align: usage: lateen align hedge");
    run_refused(lt_verb_align, "align hedges x", LT_EXIT_USAGE, "align: usage: lateen align hedge");
    run_prints(lt_verb_align, "align --help", "usage: lateen align hedge FILE.jsonl");
}

/* ---- detect ---- */

/* Ids 0, 1, 2, ... of which the report says how many are green. */
static void detecting(void **state) {
    char ids[2048] = "[";
    (void)state;
    for (int i = 0; i < 200; i++) {
        snprintf(ids + strlen(ids), sizeof ids - strlen(ids), "%s%d", i > 0 ? "," : "", i);
    }
    strcat(ids, "]");
    put("ids.json", ids);
    for (int half = 0; half < 2; half++) {
        const double gamma = half ? 0.5 : 0.25;
        json_t *r = run_json(lt_verb_align, with("detect", half ? "--ids --key k --scheme green "
                                                                  "--gamma 0.5 --json"
                                                                : "--ids --key k --scheme green "
                                                                  "--json"));
        assert_string_equal(json_string_value(json_object_get(r, "scheme")), "green");
        near_at(r, "tokens", 200);
        near_at(r, "scored", 199); /* The first has no context. */
        const double t = 199, z = number_at(r, "z");
        const double green = z * sqrt(t * gamma * (1 - gamma)) + gamma * t;
        assert_true(fabs(green - rint(green)) < 1e-5 && fabs(z) < 4);
        json_decref(r);
    }
    json_t *r = run_json(lt_verb_align, with("detect", "--ids --key k --json"));
    assert_string_equal(json_string_value(json_object_get(r, "scheme")), "gumbel");
    near_at(r, "scored", 196);
    json_t *other = run_json(lt_verb_align, with("detect", "--ids --key l --json"));
    assert_true(number_at(r, "p") != number_at(other, "p"));
    json_decref(other);
    other = run_json(lt_verb_align, with("detect", "--ids --key k --json --context 7"));
    near_at(other, "scored", 193);
    json_decref(other);
    ran told = run_verb(lt_verb_align, with("detect", "--ids --key k"));
    assert_int_equal(strncmp(told.out, "gumbel, 200 tokens, 196 of them scored: statistic ", 50),
                     0);
    ran_close(&told);
    json_decref(r);
    r = run_json(
        lt_verb_align,
        with("detect", "--ids --key k --scheme exponential --length 16 --resamples 9 --json"));
    const double p = number_at(r, "p") * 10; /* A rank among ten. */
    assert_true(p >= 1 - 1e-9 && p <= 10 + 1e-9 && fabs(p - rint(p)) < 1e-6);
    json_decref(r);
}

static void what_detect_refuses(void **state) {
    static const struct {
        const char *options, *why;
    } rows[] = {{"--ids", "needs the key of the watermark: --key TEXT"},
                {"--ids --key k --gamma 0.5", "--gamma 0.5 has no effect without --scheme green"},
                {"--ids --key k --length 5", "--length 5 has no effect"},
                {"--ids --key k --resamples 5", "--resamples 5 has no effect"},
                {"--ids --key k --seed 5", "--seed 5 has no effect"},
                {"--ids --key k --scheme exponential --context 5", "--context 5 has no effect"},
                {"--ids --key k --tokenizer t", "--tokenizer t has no effect"},
                {"--key k", "a text needs --tokenizer; token ids need --ids"}};
    static const struct {
        const char *text, *why;
    } lists[] = {{"{}", "not a list of token ids"},
                 {"[1, 2.5]", "entry 1 is not a token id"},
                 {"[-1]", "entry 0 is not a token id"},
                 {"[2147483648]", "entry 0 is not a token id"},
                 {"[1,", ""}};
    (void)state;
    put("ids.json", "[1, 2147483647]");
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        refuses("detect", rows[i].options, LT_EXIT_USAGE, rows[i].why);
    }
    ran r = run_verb(lt_verb_align, with("detect", "--ids --key k --scheme green"));
    assert_int_equal(r.status, LT_EXIT_DONE);
    ran_close(&r);
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
        put("ids.json", lists[i].text);
        refuses("detect", "--ids --key k", LT_EXIT_FAILED, lists[i].why);
    }
    run_refused(lt_verb_align, "align detect --key k", LT_EXIT_USAGE, "align detect needs a file");
    run_refused(lt_verb_align, "align detect /no/such --ids --key k", LT_EXIT_FAILED, "/no/such");
    run_prints(lt_verb_align, "align detect --help", "usage: lateen align detect FILE");
}

/* A text by its tokenizer: 512 ids, of which each letter is one at least. */
static void detecting_texts(void **state) {
    (void)state;
    put("text.txt", "Once upon a time");
    json_t *r = run_json(lt_verb_align, with("detect", "--key k --scheme green --json --tokenizer "
                                                       "tests/golden/stories260k/tok512.bin"));
    assert_true(number_at(r, "tokens") >= 4 && number_at(r, "tokens") <= 17);
    near_at(r, "scored", number_at(r, "tokens") - 1);
    json_decref(r);
    refuses("detect", "--key k --tokenizer /no/such", LT_EXIT_FAILED, "/no/such");
}

/* ---- What computes with a model ---- */

#define SFT "tests/golden/sft"

static int lines_of(const char *file) {
    FILE *f = fopen(file, "r");
    int n = 0;
    assert_non_null(f);
    for (int c = fgetc(f); c != EOF; c = fgetc(f)) {
        n += c == '\n';
    }
    fclose(f);
    return n;
}

static void logprobs(void **state) {
    char all[LT_PATH_BYTES + 400], want[200];
    (void)state;
    assert_int_equal(lt_path_join(path, folder, "teacher"), LT_OK);
    const int n = lines_of(SFT "/chat.jsonl");
    for (int again = 0; again < 2; again++) { /* The second time all is there. */
        snprintf(all, sizeof all,
                 "align logprobs " SFT "/chat.jsonl --model " SFT " --out %s --top-k 4 --seq 64 "
                 "--part 2 --threads 1",
                 path);
        ran r = run_verb(lt_verb_align, all);
        const char *at = strstr(r.err, ": 4 tokens for each of ");
        int64_t places = 0, conversations = 0, kept = -1;
        if (r.status != LT_EXIT_DONE || at == NULL ||
            sscanf(at,
                   ": 4 tokens for each of %" SCNd64 " tokens of %" SCNd64
                   " conversations, %" SCNd64,
                   &places, &conversations, &kept) != 3) {
            fail_msg("%d: %s", r.status, r.err);
        }
        assert_true(conversations > 0 && conversations <= n && places > conversations);
        assert_int_equal(kept, again ? conversations : 0);
        snprintf(want, sizeof want, SFT "/chat.jsonl: %lld conversations",
                 (long long)conversations);
        assert_non_null(strstr(r.err, want));
        ran_close(&r);
    }
    run_refused(lt_verb_align, "align logprobs x.jsonl --model m", LT_EXIT_USAGE, "align logprobs");
    run_refused(lt_verb_align, "align logprobs --model m --out o", LT_EXIT_USAGE, "align logprobs");
    snprintf(all, sizeof all,
             "align logprobs " SFT "/chat.jsonl --model " SFT " --out %s --seq 100000 --quiet",
             path);
    run_refused(lt_verb_align, all, LT_EXIT_USAGE, "--seq 100000 is longer than the model's ");
    snprintf(all, sizeof all,
             "align logprobs " SFT "/chat.jsonl --model " SFT " --out %s --seq 64 --top-k 500000",
             path);
    ran r = run_verb(lt_verb_align, all);
    assert_int_equal(r.status, LT_EXIT_USAGE);
    ran_close(&r);
    snprintf(all, sizeof all,
             "align logprobs " SFT "/config.txt --model " SFT " --out %s --seq 64 --quiet", path);
    run_refused(lt_verb_align, all, LT_EXIT_USAGE, "conversations are JSON lines");
    snprintf(all, sizeof all,
             "align logprobs " SFT "/chat.jsonl --model tests/golden/serve/reward --tokenizer " SFT
             " --out %s --seq 64 --quiet",
             path);
    run_refused(lt_verb_align, all, LT_EXIT_FAILED, "align logprobs");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_best_of_n),
        cmocka_unit_test(the_usual_values),
        cmocka_unit_test(what_hedge_refuses),
        cmocka_unit_test(detecting),
        cmocka_unit_test(what_detect_refuses),
        cmocka_unit_test(detecting_texts),
        cmocka_unit_test(logprobs),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
