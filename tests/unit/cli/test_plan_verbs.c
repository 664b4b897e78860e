/* `lateen plan schedule`, `plan serve`, `plan` and `simulate policy`: what they print beside closed
 * forms, and what they refuse. */
#include "unit/cli/verb_run.h"

#include <math.h>

#include "base/file.h"
#include "cli/plan/plan_verbs.h"

int lt_verb_plan(int argc, char **argv);
int lt_verb_simulate(int argc, char **argv);

static json_t *schedule_of(const char *options) {
    char words[256];
    (void)snprintf(words, sizeof words, "plan schedule --json %s", options);
    return run_json(lt_verb_plan, words);
}

/* With F, B and W of all micro-batches and no messages, a step of m micro-batches over p ranks
 * takes (m + p - 1) (F + B + W) with GPipe (Huang et al. 2019) and with 1F1B (Narayanan et al.
 * 2021), so that (p - 1) / (m + p - 1) of it is idle; interleaved with v chunks it takes m (F + B
 * + W) + (p - 1) (F + B + W) / v. GPipe holds m micro-batches, and the first rank of 1F1B holds
 * p. */
static void schedules_take_their_closed_forms(void **state) {
    static const struct {
        const char *kind;
        int p, m, v;
        double f, b, w, held;
    } cases[] = {{"gpipe", 4, 8, 1, 1, 1, 1, 8},        {"1f1b", 4, 8, 1, 1, 1, 1, 4},
                 {"1f1b", 4, 8, 1, 2, 3, 1, 4},         {"1f1b", 8, 3, 1, 1, 2, 0, 3},
                 {"gpipe", 3, 5, 1, 1, 1, 4, 5},        {"1f1b", 1, 6, 1, 1, 2, 3, 1},
                 {"interleaved", 4, 8, 2, 1, 1, 1, 5.5}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char options[200];
        const double all = cases[i].f + cases[i].b + cases[i].w, m = cases[i].m, p = cases[i].p,
                     step = m * all + (p - 1) * all / cases[i].v;
        (void)snprintf(options, sizeof options,
                       "--schedule %s --pp %d --micros %d --forward %g --backward %g --weights %g",
                       cases[i].kind, cases[i].p, cases[i].m, cases[i].f, cases[i].b, cases[i].w);
        json_t *root = schedule_of(options);
        const json_t *ranks = json_object_get(root, "ranks"), *first = json_array_get(ranks, 0);
        assert_string_equal(json_string_value(json_object_get(root, "schedule")), cases[i].kind);
        near_at(root, "pp", p);
        near_at(root, "micros", m);
        near_at(root, "chunks", cases[i].v);
        near_at(root, "step", step);
        near_at(root, "idle_share", 1 - m * all / step);
        assert_int_equal(json_array_size(ranks), cases[i].p);
        near_at(first, "busy", m * all);
        near_at(first, "idle_share", 1 - m * all / step);
        near_at(first, "held", cases[i].held);
        /* A forward and a backward pass of each micro-batch through each chunk. */
        assert_int_equal(json_array_size(json_object_get(first, "operations")),
                         2 * cases[i].m * cases[i].v);
        json_decref(root);
    }
}

/* On one rank everything runs in turn: the head costs its time forward and twice that backward,
 * whether or not gradients of weights are computed separately. A message of time s is waited for
 * once on the way to each rank and once on the way back. */
static void heads_and_messages_count(void **state) {
    json_t *root = schedule_of("--pp 1 --micros 6 --forward 2 --backward 3 --weights 5 --head 7");
    (void)state;
    near_at(root, "step", 6 * (2 + 3 + 5 + 3 * 7));
    json_decref(root);
    root = schedule_of("--pp 2 --micros 1 --forward 2 --backward 3 --weights 5 --head 7 "
                       "--schedule zb-h1");
    near_at(json_array_get(json_object_get(root, "ranks"), 0), "busy", 2 + 3 + 5);
    near_at(json_array_get(json_object_get(root, "ranks"), 1), "busy", 2 + 3 + 5 + 3 * 7);
    json_decref(root);
    root = schedule_of("--pp 3 --micros 1 --send 11");
    near_at(root, "step", 3 * 3 + 2 * 2 * 11);
    json_decref(root);
}

static const json_t *row_of(const json_t *list, const char *name) {
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *row = json_array_get(list, i);
        if (strcmp(json_string_value(json_object_get(row, "schedule")), name) == 0) {
            return row;
        }
    }
    return NULL;
}

/* ZB-H1 is idle for (p - 1)(F + B - W) (Qi et al. 2023, arXiv:2401.10241, table 2). */
static void all_schedules_are_compared(void **state) {
    json_t *list = schedule_of("--schedule all --pp 4 --micros 8");
    (void)state;
    near_at(row_of(list, "gpipe"), "step", 33);
    near_at(row_of(list, "gpipe"), "held", 8);
    near_at(row_of(list, "1f1b"), "step", 33);
    near_at(row_of(list, "1f1b"), "idle_share", 3.0 / 11);
    near_at(row_of(list, "1f1b"), "held", 4);
    near_at(row_of(list, "interleaved"), "chunks", 2);
    near_at(row_of(list, "interleaved"), "step", 24 + 3 * 1.5);
    near_at(row_of(list, "zb-h1"), "step", 24 + 3 * (1 + 1 - 1));
    json_decref(list);
    /* Schedules that cannot have this many chunks are left out. */
    list = schedule_of("--schedule all --pp 4 --micros 8 --chunks 3");
    assert_null(row_of(list, "1f1b"));
    near_at(row_of(list, "interleaved"), "step", 24 + 3 * 1.0);
    json_decref(list);
    run_prints(lt_verb_plan, "plan schedule --schedule all --pp 4 --micros 8",
               "1f1b               1           33    27.3%      4\n");
    run_refused(lt_verb_plan, "plan schedule --schedule all --svg x.svg", LT_EXIT_USAGE,
                "--svg draws one schedule: --schedule all contradicts it");
    run_refused(lt_verb_plan, "plan schedule --schedule 1f1b --chunks 2", LT_EXIT_USAGE,
                "schedule 1f1b has one chunk a rank; 2 were asked for");
    /* A picture has a box for each operation. */
    char path[] = "/tmp/lateen-cli-schedule-XXXXXX", words[128], *text = NULL;
    size_t bytes, n = 0;
    const int fd = mkstemp(path);
    assert_true(fd >= 0);
    (void)close(fd);
    (void)snprintf(words, sizeof words, "plan schedule --pp 3 --micros 5 --svg %s", path);
    run_prints(lt_verb_plan, words, "step 21");
    assert_int_equal(lt_file_read(&text, &bytes, path, 1 << 20), LT_OK);
    for (const char *at = strstr(text, "<rect"); at != NULL; at = strstr(at + 1, "<rect")) {
        n++;
    }
    assert_true(n >= 3 * 5 * 2);
    assert_non_null(strstr(text, "</svg>"));
    free(text);
    assert_int_equal(unlink(path), 0);
    run_refused(lt_verb_plan, "plan schedule --svg /no/such/folder/x.svg", LT_EXIT_FAILED,
                "/no/such/folder/x.svg");
}

/* Llama 3's 8B: 8.03e9 weights of 2 bytes; 32 layers with 8 heads of keys and of values, each 128
 * wide. */
static void a_server_has_its_sizes(void **state) {
    json_t *root = run_json(lt_verb_plan,
                            "plan serve --json --model llama3-8b --cluster h100-node");
    (void)state;
    assert_true(json_is_true(json_object_get(root, "fits")));
    near_at(root, "kv_bytes_token", 2 * 32 * 8 * 128 * 2);
    assert_true(fabs(number_at(root, "weight_bytes") - 16.06e9) < 0.01e9);
    /* Prompts are processed, too: as many tokens again. */
    near_at(root, "total_tokens_s", 2 * number_at(root, "output_tokens_s"));
    assert_true(number_at(root, "batch") <= 1024);
    char line[200]; /* The same as text: ms, GB, thousands of tokens. */
    (void)snprintf(line, sizeof line,
                   "  %.1f ms a token then; alone %.0f tokens/s, first token after %.0f ms\n"
                   "  weights %.1f GB, KV cache %.0f k tokens (131.1 KB each)\n",
                   1000 * number_at(root, "token_s"), number_at(root, "stream_tokens_s"),
                   1000 * number_at(root, "first_token_s"), number_at(root, "weight_bytes") / 1e9,
                   number_at(root, "kv_tokens") / 1000);
    run_prints(lt_verb_plan, "plan serve --model llama3-8b --cluster h100-node", line);
    json_decref(root);
    root = run_json(lt_verb_plan,
                    "plan serve --json --model llama3-8b --cluster h100-node --kv fp8 "
                    "--batch 7 --precision fp8 --prompt 3000");
    near_at(root, "kv_bytes_token", 2 * 32 * 8 * 128);
    near_at(root, "batch", 7);
    near_at(root, "total_tokens_s", 4 * number_at(root, "output_tokens_s"));
    json_decref(root);
    run_prints(lt_verb_plan, "plan serve --model llama3-8b --cluster h100-node --tp 2",
               "the whole cluster: 4 copies");
    run_prints(lt_verb_plan, "plan serve --model llama3-8b --cluster h100-node --tp 4",
               "the whole cluster: 2 copies");
    ran r = run_verb(lt_verb_plan, "plan serve --model llama3-8b --cluster h100-node --tp 8");
    assert_int_equal(r.status, LT_EXIT_DONE);
    assert_null(strstr(r.out, "the whole cluster"));
    ran_close(&r);
    run_prints(lt_verb_plan, "plan serve --model llama3-405b --cluster h100-node --tp 1",
               "does not fit: 811.7 GB of weights, 1 x 80 GiB of memory.");
    run_refused(lt_verb_plan, "plan serve --cluster h100-node", LT_EXIT_USAGE,
                "plan serve needs --model: a name under recipes/models or a file");
    run_refused(lt_verb_plan, "plan serve --model llama3-8b", LT_EXIT_USAGE,
                "plan serve needs --cluster: a name under recipes/clusters or a file");
    run_refused(lt_verb_plan, "plan serve --model llama3-8b --cluster h100-node --tp 9",
                LT_EXIT_USAGE, "--tp 9 contradicts cluster");
    run_refused(lt_verb_plan, "plan serve --model llama3-8b --cluster h100-node --precision nvfp4",
                LT_EXIT_USAGE, "has no units for this precision");
}

/* Sequences per step. */
static double sequences(const char *options) {
    char words[256];
    (void)snprintf(words, sizeof words, "plan --json --top 1 --cluster alps %s", options);
    json_t *root = run_json(lt_verb_plan, words);
    const json_t *l = json_object_get(json_array_get(json_object_get(root, "layouts"), 0),
                                      "layout");
    const double n = number_at(l, "dp") * number_at(l, "micro_batch") *
                     number_at(l, "accumulation");
    json_decref(root);
    return n;
}

/* Tokens of a step if the model's size decides: 4 Mi below 20 B of active parameters, 8 Mi below
 * 100 B, then 16 Mi, in sequences of 8,192. For 512 sequences and 8 GPUs, no number within 5 %
 * has a larger common divisor than 8; 100 sequences and 32 GPUs have 4, while 96 has 32, which no
 * other number from 95 to 105 has. */
static void a_plan_fills_its_batch(void **state) {
    (void)state;
    assert_true(sequences("--model llama3-8b --gpus 8 --tp 1 --pp 1 --cp 1 --micro 1") == 512);
    assert_true(sequences("--model llama3-70b --gpus 64 --tp 8 --pp 1 --cp 1 --micro 1") == 1024);
    assert_true(sequences("--model llama3-405b --gpus 512 --tp 8 --pp 16 --cp 1 --micro 1") ==
                2048);
    assert_true(sequences("--model llama3-8b --gpus 32 --batch 409600 --seq 4096 --tp 1 --pp 1 "
                          "--cp 1 --micro 1") == 96);
    assert_true(sequences("--model llama3-8b --gpus 8 --batch 65536 --seq 4096 --tp 1 --pp 1 --cp "
                          "1 --micro 1") == 16);
    run_refused(lt_verb_plan, "plan --cluster alps", LT_EXIT_USAGE,
                "plan needs --model: a name under recipes/models or a file");
    run_refused(lt_verb_plan, "plan --model llama3-8b", LT_EXIT_USAGE,
                "plan needs --cluster: a name under recipes/clusters or a file");
    run_refused(lt_verb_plan, "plan --model llama3-8b --cluster alps --batch 4095 --seq 4096",
                LT_EXIT_USAGE, "a batch of 4095 tokens contradicts sequences of 4096");
    run_refused(lt_verb_plan, "plan --model recipes/demo.yaml --cluster alps --tp 2", LT_EXIT_USAGE,
                "--tp 2 contradicts --model recipes/demo.yaml: a recipe says how it is trained");
}

/* Ten jobs of 100 s that are submitted at once wait 0, 100, ..., 900 s on one GPU: the fifth
 * value is the (lower) median, the ninth the 90th percentile. The time they ran is 1/1, 1/2, ...,
 * 1/10 of the time they took, with mean x; the other tenant has 1, so that Jain's index is (x +
 * 1)^2 / (2 (x^2 + 1)). */
static void waits_of_tenants_are_counted(void **state) {
    char dir[] = "/tmp/lateen-cli-plan-XXXXXX", path[LT_PATH_BYTES], trace[LT_PATH_BYTES],
         text[1024] = "tenant,arrival_s,gpus,run_s\n", words[3 * LT_PATH_BYTES];
    static const char policy[] = "cluster: {nodes: 1, node_gpus: 2}\n"
                                 "tenants:\n"
                                 "  a: {quota: 1, borrow: 0}\n"
                                 "  b: {quota: 1, borrow: 0}\n";
    double x = 0;
    json_t *root;
    const json_t *lines, *a, *b, *all;
    (void)state;
    assert_non_null(mkdtemp(dir));
    for (int i = 0; i < 10; i++) {
        strcat(text, "a,1000,1,100\n");
        x += 0.1 / (i + 1);
    }
    strcat(text, "b,1050,1,30\n");
    assert_int_equal(lt_path_join(path, dir, "policy.yaml"), LT_OK);
    assert_int_equal(lt_path_join(trace, dir, "trace.csv"), LT_OK);
    assert_int_equal(lt_file_write_atomic(path, policy, strlen(policy)), LT_OK);
    assert_int_equal(lt_file_write_atomic(trace, text, strlen(text)), LT_OK);
    (void)snprintf(words, sizeof words, "simulate policy %s --trace %s --json", path, trace);
    root = run_json(lt_verb_simulate, words);
    lines = json_object_get(root, "tenants");
    assert_int_equal(json_array_size(lines), 3);
    a = json_array_get(lines, 0);
    b = json_array_get(lines, 1);
    all = json_array_get(lines, 2);
    assert_string_equal(json_string_value(json_object_get(a, "tenant")), "a");
    near_at(a, "jobs", 10);
    near_at(a, "gpu_hours", 1000.0 / 3600);
    near_at(a, "wait_p50_s", 400);
    near_at(a, "wait_p90_s", 800);
    near_at(a, "wait_mean_s", 450);
    near_at(a, "ran_share", x);
    near_at(a, "preemptions", 0);
    near_at(b, "jobs", 1);
    near_at(b, "wait_p90_s", 0);
    near_at(b, "ran_share", 1);
    assert_string_equal(json_string_value(json_object_get(all, "tenant")), "all");
    near_at(all, "jobs", 11);
    near_at(all, "gpu_hours", 1030.0 / 3600);
    near_at(all, "wait_p50_s", 400);
    near_at(all, "wait_mean_s", 4500.0 / 11);
    near_at(root, "gpus", 2);
    near_at(root, "span_s", 1000);
    near_at(root, "busy_gpu_s", 1030);
    near_at(root, "begun_s", 50);
    near_at(root, "busy_until_begun_gpu_s", 50);
    near_at(root, "jain", (x + 1) * (x + 1) / (2 * (x * x + 1)));
    json_decref(root);
    (void)snprintf(words, sizeof words, "simulate policy %s --trace %s", path, trace);
    run_prints(lt_verb_simulate, words,
               "2 GPUs for 0.0 days: utilisation 51.5 %, until the last arrival 50.0 %");
    run_refused(lt_verb_simulate, "simulate policy x.yaml", LT_EXIT_USAGE,
                "simulate policy needs a policy and --trace");
    (void)snprintf(words, sizeof words, "simulate policy --trace %s", trace);
    run_refused(lt_verb_simulate, words, LT_EXIT_USAGE,
                "simulate policy needs a policy and --trace");
    assert_int_equal(lt_file_remove_tree(dir), LT_OK);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(schedules_take_their_closed_forms),
                                       cmocka_unit_test(heads_and_messages_count),
                                       cmocka_unit_test(all_schedules_are_compared),
                                       cmocka_unit_test(a_server_has_its_sizes),
                                       cmocka_unit_test(a_plan_fills_its_batch),
                                       cmocka_unit_test(waits_of_tenants_are_counted)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
