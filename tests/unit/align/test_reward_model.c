/* Reward models: scores as transformers computes them (tools/make_reward_goldens.py), of a few
 * texts and of more than the engine holds; the lowest step of a process reward model
 * (tools/make_prm_goldens.py); texts and models that are refused. */
#include "unit/align/runs.h"

#include <math.h>

#include "align/reward.h"
#include "align/reward_model.h"
#include "tensor/backend.h"

enum { LONGEST = 128, MANY = 600 };

static lt_device *device(void) {
    return device_of(lt_backend_cpu());
}

/* A folder in run_root with the golden's model and sft's tokenizer. */
static void make_folder(char path[LT_PATH_BYTES], const char *name, const char *golden) {
    static const char *const of_model[] = {"config.json", "model.safetensors"},
                             *const of_sft[] = {"tokenizer.json", "tokenizer_config.json"};
    char from[LT_PATH_BYTES], to[LT_PATH_BYTES];
    run_path(path, name);
    must(lt_file_make_dirs(path), path);
    for (int i = 0; i < 4; i++) {
        const char *file = i < 2 ? of_model[i] : of_sft[i - 2];
        must(lt_path_join(from, i < 2 ? golden : MODEL, file), file);
        must(lt_path_join(to, path, file), file);
        must(lt_file_copy(from, to, 1 << 22), from);
    }
}

/* Set members of a folder's config.json. */
static void change_config(const char *folder, json_t *members) {
    char path[LT_PATH_BYTES];
    json_t *config = NULL;
    must(lt_path_join(path, folder, "config.json"), folder);
    must(lt_json_load(&config, path, 1 << 16), path);
    assert_int_equal(json_object_update(config, members), 0);
    char *text = json_dumps(config, JSON_INDENT(1));
    must(lt_file_write_atomic(path, text, strlen(text)), path);
    free(text);
    json_decref(config);
    json_decref(members);
}

static void expect_score(size_t i, double got, double want) {
    if (!(fabs(got - want) <= 1e-5 * fmax(1.0, fabs(want)))) {
        fail_msg("text %zu: %.9g, not %.9g", i, got, want);
    }
}

/* The golden conversations one after another, over and over. */
static void scores_of_transformers(void **state) {
    static const int64_t numbers[] = {1, 8, MANY};
    static const json_t *conversations[MANY];
    static const char *texts[MANY];
    static double scores[MANY];
    char path[LT_PATH_BYTES];
    lt_reward_model *m = NULL;
    json_t *golden = NULL;
    (void)state;
    make_folder(path, "judge", "tests/golden/preference/reward");
    must(lt_json_load(&golden, "tests/golden/rl/scores.json", 1 << 20), "scores.json");
    const size_t n_golden = json_array_size(golden);
    assert_int_equal(n_golden, 8);
    for (size_t i = 0; i < MANY; i++) {
        const json_t *one = json_array_get(golden, i % n_golden);
        conversations[i] = json_object_get(one, "messages");
        texts[i] = json_string_value(json_object_get(one, "answer"));
    }
    must(lt_reward_model_open(&m, path, device(), 1000), path); /* Its context is 128. */
    assert_true(lt_reward_model_bytes(m) > 0);
    for (size_t k = 0; k < sizeof numbers / sizeof *numbers; k++) {
        memset(scores, 0, sizeof scores);
        must(lt_reward_model_judge(m, conversations, texts, numbers[k], scores), "scores");
        for (size_t i = 0; i < MANY; i++) {
            const json_t *want = json_object_get(json_array_get(golden, i % n_golden), "score");
            expect_score(i, scores[i], i < (size_t)numbers[k] ? json_real_value(want) : 0.0);
        }
    }
    lt_reward_model_close(m);
    json_decref(golden);
}

/* A sum of the model's score and of another reward, for problems of reinforcement learning. The
 * model reads the question without the turn that answers it. */
static void scores_in_a_sum(void **state) {
    enum { N = 8 };
    static const lt_answer answers[N] = {[1] = {.ended = true}};
    char path[LT_PATH_BYTES];
    lt_problem problems[N];
    const lt_problem *asked[N];
    const char *texts[N];
    double rewards[N], parts[2 * N];
    lt_rewards *r = NULL;
    json_t *golden = NULL;
    (void)state;
    run_path(path, "judge");
    must(lt_json_load(&golden, "tests/golden/rl/scores.json", 1 << 20), "scores.json");
    for (size_t i = 0; i < N; i++) {
        json_t *one = json_array_get(golden, i);
        texts[i] = json_string_value(json_object_get(one, "answer"));
        json_array_append_new(json_object_get(one, "messages"),
                              json_pack("{s:s, s:s}", "role", "assistant", "content", "old"));
        problems[i] = (lt_problem){.line = one, .path = "p.jsonl"};
        asked[i] = &problems[i];
    }
    must(lt_rewards_open(&r, &(lt_reward_options){.sum = "model:2,ended:0.5",
                                                  .command = "",
                                                  .model = path,
                                                  .device = device(),
                                                  .longest = LONGEST,
                                                  .max_tokens = 8}),
         path);
    assert_true(lt_rewards_bytes(r) > 0);
    must(lt_rewards_judge(r, asked, answers, texts, N, rewards, parts), "rewards");
    for (size_t i = 0; i < N; i++) {
        const double score = json_real_value(json_object_get(json_array_get(golden, i), "score"));
        expect_score(i, rewards[i], 2 * score + (i == 1 ? 0.5 : 0.0));
        expect_score(i, parts[2 * i], score);
        assert_true(parts[2 * i + 1] == (i == 1 ? 1.0 : 0.0));
    }
    lt_rewards_close(r);
    json_decref(golden);
}

/* A text that is too long names its length; the model judges other texts afterwards. A text of just
 * as many tokens is read. */
static void texts_that_are_too_long(void **state) {
    char path[LT_PATH_BYTES];
    const char *texts[3] = {NULL, NULL, NULL};
    const json_t *conversations[3];
    double scores[3], want;
    lt_reward_model *m = NULL;
    json_t *golden = NULL;
    int64_t tokens = 1;
    (void)state;
    run_path(path, "judge");
    must(lt_json_load(&golden, "tests/golden/rl/scores.json", 1 << 20), "scores.json");
    for (size_t i = 0; i < 3; i++) {
        const json_t *one = json_array_get(golden, i);
        conversations[i] = json_object_get(one, "messages");
        texts[i] = json_string_value(json_object_get(one, "answer"));
    }
    want = json_real_value(json_object_get(json_array_get(golden, 0), "score"));
    for (;; tokens++) { /* The least length at which the first text can be read. */
        lt_err err;
        must(lt_reward_model_open(&m, path, device(), tokens), path);
        err = lt_reward_model_judge(m, conversations, texts, 1, scores);
        if (err == LT_OK) {
            break;
        }
        assert_int_equal(err, LT_ERR_LIMIT);
        says("tokens of the reward model, which reads ");
        lt_reward_model_close(m);
    }
    expect_score(0, scores[0], want);
    char told[128]; /* The second text is longer. */
    (void)snprintf(told, sizeof told, "which reads %lld at most", (long long)tokens);
    assert_int_equal(lt_reward_model_judge(m, conversations, texts, 3, scores), LT_ERR_LIMIT);
    says(told);
    must(lt_reward_model_judge(m, conversations, texts, 1, scores), "again");
    expect_score(0, scores[0], want);
    lt_reward_model_close(m);
    json_decref(golden);
}

/* ---- Process reward models ---- */

/* The least of the golden's probabilities of a step to be good. */
static double least_step(const json_t *steps, bool log) {
    const json_t *one;
    double least = 1.0;
    size_t i;
    json_array_foreach(steps, i, one) {
        const double good = json_number_value(json_array_get(one, 1));
        least = fmin(least, log ? exp(good) : good);
    }
    return least;
}

static double judge_steps(lt_reward_model *m, const char *prompt, const char *text) {
    json_t *messages = json_pack("[{s:s, s:s}]", "role", "user", "content", prompt);
    const json_t *const conversations[] = {messages};
    double score = NAN;
    must(lt_reward_model_judge(m, conversations, &text, 1, &score), prompt);
    json_decref(messages);
    return score;
}

static void join(char *out, size_t room, const json_t *steps, const char *border) {
    const json_t *step;
    size_t used = 0, i;
    json_array_foreach(steps, i, step) {
        used += (size_t)snprintf(out + used, room - used, "%s%s", i > 0 ? border : "",
                                 json_string_value(step));
    }
}

static void the_worst_step_counts(void **state) {
    char path[LT_PATH_BYTES], text[512];
    lt_reward_model *m = NULL;
    json_t *truth = NULL, *chat, *one;
    FILE *lines = fopen("tests/golden/prm/steps.jsonl", "r");
    size_t i;
    (void)state;
    assert_non_null(lines);
    make_folder(path, "prm", "tests/golden/prm/model");
    change_config(path, json_pack("{s:s}", "step_separator", "\n"));
    must(lt_json_load(&truth, "tests/golden/prm/truth.json", 1 << 20), "truth.json");
    must(lt_reward_model_open(&m, path, device(), LONGEST), path);
    chat = json_object_get(truth, "chat");
    assert_int_equal(json_array_size(chat), 4);
    json_array_foreach(chat, i, one) {
        char buffer[2048];
        assert_non_null(fgets(buffer, sizeof buffer, lines));
        json_t *line = json_loads(buffer, 0, NULL);
        join(text, sizeof text, json_object_get(line, "completions"), "\n");
        expect_score(i, judge_steps(m, json_string_value(json_object_get(line, "prompt")), text),
                     least_step(json_object_get(one, "logps"), true));
        json_decref(line);
    }
    /* An answer without a step is judged, too: as one that is empty. */
    const double empty = judge_steps(m, "why", "");
    assert_true(empty > 0.0 && empty < 1.0 && judge_steps(m, "why", "\n") == empty);
    fclose(lines);
    lt_reward_model_close(m);
    json_decref(truth);
}

/* A head of two layers (tools/make_prm_head_goldens.py), whose separator is a special token: empty
 * lines divide an answer. */
static void a_head_of_two_layers(void **state) {
    char path[LT_PATH_BYTES], file[LT_PATH_BYTES], text[512], *tokens = NULL, *at;
    lt_reward_model *m = NULL;
    json_t *truth = NULL, *one;
    size_t bytes, i;
    (void)state;
    make_folder(path, "head", "tests/golden/prm_head/model");
    must(lt_path_join(file, path, "tokenizer.json"), path);
    must(lt_file_read(&tokens, &bytes, file, 1 << 22), file);
    char *named = NULL; /* Qwen's name of the separator. */
    FILE *to = open_memstream(&named, &bytes);
    assert_non_null(to);
    for (const char *from = tokens; from != NULL; from = at != NULL ? at + 8 : NULL) {
        at = strstr(from, "<|tool|>");
        fprintf(to, "%.*s%s", at != NULL ? (int)(at - from) : (int)strlen(from), from,
                at != NULL ? "<extra_0>" : "");
    }
    assert_int_equal(fclose(to), 0);
    must(lt_file_write_atomic(file, named, bytes), file);
    free(named);
    free(tokens);
    must(lt_json_load(&truth, "tests/golden/prm_head/truth.json", 1 << 20), "truth.json");
    must(lt_reward_model_open(&m, path, device(), LONGEST), path);
    json_array_foreach(truth, i, one) {
        join(text, sizeof text, json_object_get(one, "steps"), "\n\n");
        expect_score(i, judge_steps(m, json_string_value(json_object_get(one, "prompt")), text),
                     least_step(json_object_get(one, "chat"), false));
    }
    assert_int_equal(i, 6);
    lt_reward_model_close(m);
    json_decref(truth);
}

/* ---- Models that are refused ---- */

static void models_that_are_refused(void **state) {
    char path[LT_PATH_BYTES], file[LT_PATH_BYTES];
    lt_reward_model *m = NULL;
    (void)state;
    assert_int_equal(lt_reward_model_open(&m, MODEL, device(), LONGEST), LT_ERR_UNSUPPORTED);
    says("reward model " MODEL ": ");
    says("is not a reward model: it has no score head");
    make_folder(path, "plain", "tests/golden/preference/reward");
    must(lt_path_join(file, path, "tokenizer_config.json"), path);
    must(lt_file_write_atomic(file, "{}", 2), file); /* Without a template. */
    assert_int_equal(lt_reward_model_open(&m, path, device(), LONGEST), LT_ERR_NOT_FOUND);
    says("template");
    /* A template that refuses the conversation. */
    static const char template[] = "{\"chat_template\": \"{{ raise_exception('never') }}\"}";
    must(lt_file_write_atomic(file, template, strlen(template)), file);
    must(lt_reward_model_open(&m, path, device(), LONGEST), path);
    json_t *messages = json_pack("[{s:s, s:s}]", "role", "user", "content", "Hi");
    const json_t *const conversations[] = {messages};
    const char *const texts[] = {"yes"};
    double score;
    assert_int_equal(lt_reward_model_judge(m, conversations, texts, 1, &score), LT_ERR_ARG);
    says("never");
    json_decref(messages);
    lt_reward_model_close(m);
    m = NULL;
    must(lt_path_join(file, path, "tokenizer.json"), path);
    assert_int_equal(remove(file), 0);
    assert_int_not_equal(lt_reward_model_open(&m, path, device(), LONGEST), LT_OK);
    assert_null(m);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(scores_of_transformers),  cmocka_unit_test(scores_in_a_sum),
        cmocka_unit_test(texts_that_are_too_long), cmocka_unit_test(the_worst_step_counts),
        cmocka_unit_test(a_head_of_two_layers),    cmocka_unit_test(models_that_are_refused),
    };
    return cmocka_run_group_tests(tests, run_root_make, run_root_remove);
}
