/* Benches in this process: what they count, which is known beforehand, and that their rates are
 * those of their times. How fast anything is, is not tested. */
#include "unit/cli/verb_run.h"

#include <math.h>
#include <sys/stat.h>

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

static const char *write_script(const char *name, const char *text) {
    static char path[LT_PATH_BYTES];
    assert_int_equal(lt_path_join(path, folder, name), LT_OK);
    assert_int_equal(lt_file_write_atomic(path, text, strlen(text)), LT_OK);
    assert_int_equal(chmod(path, 0755), 0);
    return path;
}

static void is_about(const json_t *o, const char *key, double want, double apart) {
    const double is = number_at(o, key);
    if (!(fabs(is - want) <= apart * fabs(want))) {
        fail_msg("'%s' is %.9g, not about %.9g", key, is, want);
    }
}

/* A peer with llama-bench's options: its rates in three rounds are 10, 30 and 20 tokens a second
 * for the prompt, twice that for single tokens and four times for a batch. */
static void generating_beside_a_peer(void **state) {
    static const char peer[] =
        "#!/bin/sh\n"
        "echo \"$*\" >> \"$0.log\"\n"
        "case $(wc -l < \"$0.log\") in 1) n=1;; 2) n=3;; *) n=2;; esac\n"
        "echo \"[{\\\"n_prompt\\\": 8, \\\"n_gen\\\": 0, \\\"avg_ts\\\": ${n}0},\"\n"
        "echo \"{\\\"n_prompt\\\": 0, \\\"n_gen\\\": 4, \\\"avg_ts\\\": $((2 * n))0},\"\n"
        "echo \"{\\\"test\\\": \\\"tgb\\\", \\\"n_prompt\\\": 0, \\\"avg_ts\\\": $((4 * n))0}]\"\n";
    static const struct {
        const char *name;
        double n, peer;
    } tests[] = {{"prompt", 8, 20}, {"tokens", 4, 40}, {"batch", 4, 80}};
    const char *path = write_script("peer", peer);
    char words[3 * LT_PATH_BYTES], log[LT_PATH_BYTES], *said = NULL, *line, *rest = NULL;
    size_t n = 0;
    json_t *r;
    (void)state;
    (void)snprintf(words, sizeof words,
                   "generate --model tests/golden/stories260k/stories260K.bin --prompt 8 "
                   "--tokens 4 --batch 3 --rounds 3 --threads 1 --json --peer %s",
                   path);
    r = run_json(lt_bench_generate, words);
    near_at(r, "rounds", 3);
    near_at(r, "threads", 1);
    for (size_t i = 0; i < sizeof tests / sizeof *tests; i++) {
        const json_t *t = json_object_get(r, tests[i].name);
        near_at(t, "n", tests[i].n);
        near_at(t, "peer_tokens_per_s", tests[i].peer);
        is_about(t, "ratio", number_at(t, "tokens_per_s") / tests[i].peer, 1e-4);
    }
    json_decref(r);
    (void)snprintf(log, sizeof log, "%.4000s.log", path);
    assert_int_equal(lt_file_read(&said, NULL, log, 4096), LT_OK);
    for (line = strtok_r(said, "\n", &rest); line != NULL; line = strtok_r(NULL, "\n", &rest)) {
        assert_string_equal(line, "-m tests/golden/stories260k/stories260K.bin -p 8 -n 4 -t 1 -r 1 "
                                  "-o json -b 3");
        n++;
    }
    assert_int_equal(n, 3);
    free(said);
    /* What is left out is not measured; without a peer there is no ratio. */
    r = run_json(lt_bench_generate,
                 "generate --model tests/golden/stories260k/stories260K.bin --prompt 0 --tokens 2 "
                 "--rounds 1 --threads 1 --json");
    assert_null(json_object_get(r, "prompt"));
    assert_null(json_object_get(r, "batch"));
    assert_null(json_object_get(json_object_get(r, "tokens"), "ratio"));
    json_decref(r);
    run_refused(lt_bench_generate, "generate --model /no/such", LT_EXIT_FAILED, "/no/such");
    run_refused(lt_bench_generate, "generate x --model /no/such", LT_EXIT_USAGE, "x");
    (void)snprintf(words, sizeof words,
                   "generate --model tests/golden/stories260k/stories260K.bin --prompt 8 "
                   "--tokens 0 --rounds 1 --peer %s",
                   write_script("empty", "#!/bin/sh\necho []\n"));
    run_refused(lt_bench_generate, words, LT_EXIT_FAILED, "the peer's answer is empty");
    (void)snprintf(words, sizeof words,
                   "generate --model tests/golden/stories260k/stories260K.bin --prompt 8 "
                   "--tokens 0 --rounds 1 --peer %s",
                   write_script("mute", "#!/bin/sh\n"));
    run_refused(lt_bench_generate, words, LT_EXIT_FAILED, "the peer printed no JSON");
}

/* apertus-10m has eight layers of width 256 with 8 heads of queries and 4 of keys, FFNs of 1,024
 * without a gate, and 8,192 words. So its linear layers have 8 * (256 * 512 + 256 * 256 + 2 * 256 *
 * 1024) + 256 * 8192 = 7,864,320 weights. Each costs 6 operations a token (Kaplan et al. 2020), in
 * three products for each of 33 layers: queries, keys and values together, their output, up, down;
 * and the head. */
static void training_beside_a_peer(void **state) {
    static const char peer[] = "#!/bin/sh\necho ready\n"
                               "read n; echo \"$n\" > \"$0.log\"; echo 8\n"
                               "read n; echo 2\nread n; echo 4\n";
    const double weights = 7864320, tokens = 2 * 16;
    const char *path = write_script("train_peer", peer);
    char words[3 * LT_PATH_BYTES], log[LT_PATH_BYTES], *said = NULL;
    double ops_ms = 0, fp32_mbytes = 0;
    size_t i;
    json_t *r, *op;
    ran alone;
    (void)state;
    (void)snprintf(words, sizeof words,
                   "train --shape apertus-10m --batch 2 --seq 16 --steps 1 --rounds 3 --threads 1 "
                   "--optim adamw --moments bf16 --json --peer %s",
                   path);
    r = run_json(lt_bench_train, words);
    near_at(r, "batch", 2);
    near_at(r, "seq", 16);
    near_at(r, "peer_step_s", 4); /* The median of 8, 2 and 4. */
    near_at(r, "peer_tokens_per_s", tokens / 4);
    is_about(r, "ratio", 4 / number_at(r, "step_s"), 1e-4);
    is_about(r, "tokens_per_s", tokens / number_at(r, "step_s"), 1e-4);
    near_at(r, "mfu", 0);         /* A CPU's peak is not known, */
    near_at(r, "taken_bytes", 0); /* nor the memory that is left. */
    assert_true(number_at(r, "host_share") >= 0 && number_at(r, "host_share") <= 1);
    assert_true(number_at(r, "optimiser_ms") > 0 && number_at(r, "optimiser_ms") < 60e3);
    assert_string_equal(json_string_value(json_object_get(r, "moments")), "bf16");
    assert_null(json_object_get(r, "optim")); /* The default. */
    /* 6 N + 12 L H D T. N has no embedding, from which a token reads one row, but 4,864 weights of
     * norms: 17 of the width and two of a head in each layer. */
    is_about(r, "tflops",
             (6 * (weights + 4864) + 12.0 * 8 * 256 * 16) * tokens * 1e-12 / number_at(r, "step_s"),
             1e-4);
    json_array_foreach(json_object_get(r, "ops"), i, op) {
        ops_ms += number_at(op, "ms");
        assert_true(number_at(op, "ms") > 0);
        if (strcmp(json_string_value(json_object_get(op, "op")), "matmul") == 0) {
            near_at(op, "calls", 3 * 33);
            is_about(op, "gflop", 6 * weights * tokens * 1e-9, 1e-5);
            fp32_mbytes = number_at(op, "mbytes");
        }
    }
    is_about(r, "rest_ms", 1e3 * number_at(r, "step_s") - ops_ms - number_at(r, "optimiser_ms"),
             0.02);
    json_decref(r);
    (void)snprintf(log, sizeof log, "%.4000s.log", path);
    assert_int_equal(lt_file_read(&said, NULL, log, 4096), LT_OK);
    assert_string_equal(said, "1\n"); /* Steps of a turn. */
    free(said);
    (void)snprintf(words, sizeof words,
                   "train --shape apertus-10m --batch 2 --seq 16 --steps 1 --rounds 1 --threads 1 "
                   "--peer %s",
                   path);
    run_prints(lt_bench_train, words, "peer    8.0000 s a step, 4 tokens/s\n");
    alone = run_verb(lt_bench_train, "train --shape apertus-10m --batch 2 --seq 16 --steps 1 "
                                     "--rounds 1 --threads 1");
    assert_non_null(strstr(alone.out, "apertus-10m fp32 on cpu, B2 T16, 1 threads\n"));
    assert_null(strstr(alone.out, "ratio"));
    ran_close(&alone);
    r = run_json(lt_bench_train,
                 "train --shape apertus-10m --batch 2 --seq 16 --steps 1 --rounds 1 "
                 "--threads 1 --dtype bf16 --json");
    assert_string_equal(json_string_value(json_object_get(r, "dtype")), "bf16");
    assert_null(json_object_get(r, "ratio"));
    json_array_foreach(json_object_get(r, "ops"), i, op) {
        if (strcmp(json_string_value(json_object_get(op, "op")), "matmul") == 0) {
            assert_true(number_at(op, "mbytes") < 0.9 * fp32_mbytes);
        }
    }
    json_decref(r);
}

/* Each of these does not go with a mesh. */
static void a_mesh_is_refused(void **state) {
    static const char *const others[] = {"--device cuda:0",  "--peer x",     "--recompute full",
                                         "--fp8 tensorwise", "--optim muon", "--moments bf16"};
    (void)state;
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        char words[128], why[64];
        (void)snprintf(words, sizeof words, "train --mesh dp=2 %s", others[i]);
        (void)snprintf(why, sizeof why, "--mesh with %.*s: not supported",
                       (int)strcspn(others[i], " "), others[i]);
        run_refused(lt_bench_train, words, LT_EXIT_FAILED, why);
    }
    run_refused(lt_bench_train, "train --mesh dp=2 --steps 1000", LT_EXIT_USAGE,
                "--steps 1000 with --mesh: at most");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(medians),
        cmocka_unit_test(tokenizing),
        cmocka_unit_test(loading),
        cmocka_unit_test(generating_beside_a_peer),
        cmocka_unit_test(training_beside_a_peer),
        cmocka_unit_test(a_mesh_is_refused),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
