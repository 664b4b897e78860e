/* What verbs refuse before they do anything: options without effect, options that contradict each
 * other, and missing input; recipes with stages, whose order follows from what is finished. */
#include "unit/cli/verb_run.h"

#include "base/error.h"
#include "base/file.h"
#include "cli/train/train_stages.h"
#include "unit/scratch_folder.h"

int lt_verb_align(int argc, char **argv);
int lt_verb_bench(int argc, char **argv);
int lt_verb_cluster(int argc, char **argv);
int lt_verb_comm(int argc, char **argv);
int lt_verb_convert(int argc, char **argv);
int lt_verb_copy(int argc, char **argv);
int lt_verb_eval(int argc, char **argv);
int lt_verb_generate(int argc, char **argv);
int lt_verb_launch(int argc, char **argv);
int lt_verb_quantize(int argc, char **argv);
int lt_verb_sandbox(int argc, char **argv);
int lt_verb_train(int argc, char **argv);

static const struct {
    const char *name;
    int (*run)(int argc, char **argv);
} verbs[] = {
    {"align", lt_verb_align},       {"bench", lt_verb_bench},       {"cluster", lt_verb_cluster},
    {"comm", lt_verb_comm},         {"convert", lt_verb_convert},   {"copy", lt_verb_copy},
    {"eval", lt_verb_eval},         {"generate", lt_verb_generate}, {"launch", lt_verb_launch},
    {"quantize", lt_verb_quantize}, {"sandbox", lt_verb_sandbox},   {"train", lt_verb_train}};

static void refuse(const char *words, int status, const char *why) {
    for (size_t i = 0; i < sizeof verbs / sizeof *verbs; i++) {
        const size_t n = strlen(verbs[i].name);
        if (strncmp(words, verbs[i].name, n) == 0 && (words[n] == ' ' || words[n] == '\0')) {
            run_refused(verbs[i].run, words, status, why);
            return;
        }
    }
    fail_msg("no verb of '%s'", words);
}

/* Each of these options, after the words, is refused. */
static void refuse_each(const char *words, const char *const *options, size_t n, const char *why) {
    for (size_t i = 0; i < n; i++) {
        char all[256];
        (void)snprintf(all, sizeof all, "%s %s", words, options[i]);
        refuse(all, LT_EXIT_USAGE, why);
    }
}
#define EACH(words, options, why)                                                                  \
    refuse_each(words, options, sizeof(options) / sizeof *(options), why)

static void generating(void **state) {
    static const char *const aligned[] = {"--json",           "--steer a=b", "--second m",
                                          "--reward r",       "--draft d",   "--reward-tokenizer t",
                                          "--speculate ngram"};
    (void)state;
    EACH("generate --prompt a", aligned, "have no effect without --align");
    refuse("generate --prompt a --prompt-file b", 2, "give --prompt or --prompt-file, not both");
    refuse("generate --prompt-file /no/such", 1, "/no/such");
    refuse("generate --prompt a\xff --invalid-utf8 fail", 1, "--prompt: invalid UTF-8: 1 parts");
    refuse("generate --model m --align x --draft d", 2, "--draft d is for --speculate model and");
    refuse("generate --model m --align x --second a=b,a=c", 2, "the name 'a' is given twice");
    refuse("generate --model m --align x --reward-tokenizer t", 2, "without --reward");
}

static void evaluating(void **state) {
    static const char *const generative[] = {
        "--examples e",   "--responses r",  "--outputs o",     "--nltk n",
        "--chat",         "--align a",      "--request r",     "--steer s",
        "--second s",     "--reward r",     "--samples 2",     "--k 2",
        "--max-tokens 5", "--test-limit 5", "--max-running 5", "--reward-tokenizer t"};
    static const char *const asked[] = {"--align a", "--request r", "--lora l",
                                        "--steer s", "--second s",  "--reward r"};
    static const char *const samples[] = {"--samples 2", "--k 2"};
    static const char *const tests[] = {"--test-limit 5"};
    (void)state;
    EACH("eval a.txt", generative, "--sandbox and --test-limit are for ");
    EACH("eval --task gsm8k d --responses r", asked, "have no effect with --responses");
    EACH("eval --task gsm8k d --responses r", samples, "--samples and --k are for humaneval, mbpp");
    EACH("eval --task gsm8k d --responses r", tests,
         "--sandbox and --test-limit are for humaneval");
    EACH("eval --task problems d --responses r", tests, "--sandbox and --test-limit are for human");
    refuse("eval", 2, "eval needs a text file to evaluate; 0 were given");
    refuse("eval --task mmlu a b", 2, "--task takes one data file; 2 were given");
    refuse("eval --task gsm8k", 2, "a task takes one data file, 0 given");
    refuse("eval --task gsm8k a b", 2, "a task takes one data file, 2 given");
    refuse("eval --task gsm8k d --seq 5", 2, "--seq has no effect on tasks that generate");
    refuse("eval --task humaneval d --responses r --samples 4 --k 5", 2,
           "--k 5 is not a list of at most 4 numbers from 1 to the 4 samples");
    refuse("eval --task humaneval d --responses r --samples 4 --k 1,x", 2, "--k 1,x is not a list");
    refuse("eval --task humaneval d --responses r --samples 4 --k 0", 2, "--k 0 is not a list");
    refuse("eval a.txt --shots 1", 2, "--shots 1: a text without --task has no examples");
    refuse("eval --task hellaswag a --shots 1", 2, "--shots 1: hellaswag has no examples");
    refuse("eval --task mmlu a --shots 6", 2, "--shots 6: mmlu has at most 5");
}

static void launching(void **state) {
    (void)state;
    refuse("launch", 2, "launch: no verb to start");
    refuse("launch --ranks 2", 2, "launch: no verb to start");
    refuse("launch --plain", 2, "launch: no verb to start"); /* It takes no value. */
    refuse("launch --ranks 2 train --ranks 3", 2,
           "--ranks is an option of launch and must stand before the verb: lateen launch --ranks");
    refuse("launch train r --retries=2", 2, "--retries is an option of launch");
    refuse("launch --plain train r --keep", 2, "--keep is an option of launch");
    refuse("launch --hosts= train r", 2, "--hosts '' names no machine");
    refuse("launch --ranks 2 --hosts a:1 train r", 2, "--ranks 2 beside --hosts a:1");
    refuse("launch --ranks=2 --hosts a:1 train r", 2, "--ranks 2 beside --hosts a:1");
    refuse("launch --silent 1 --beat 0.6 train r", 2, "--silent 1 is less than two heartbeats");
    refuse("launch --beat 0 --silent 5 train r", 2, "--silent 5 has no effect without --beat");
    refuse("launch --snapshot 7 train r", 2, "--snapshot 7 has no effect without --nodes");
    refuse("launch --mtbf 7 train r", 2, "--mtbf 7 has no effect without --nodes and --snapshot 0");
    refuse("launch --nodes 2 --snapshot 7 --mtbf 7 train r", 2,
           "--mtbf 7 has no effect without --nodes and --snapshot 0");
    refuse("launch --back 7 train r", 2, "--back 7 has no effect without --spares or --shrink");
    refuse("launch --login x train r", 2, "--login x has no effect without --hosts");
    refuse("launch --address 1.2.3.4 train r", 2,
           "--address 1.2.3.4 has no effect without --hosts");
}

static void writing_and_copying(void **state) {
    (void)state;
    refuse("quantize a", 2, "quantize takes a model and a file to write");
    refuse("quantize a b", 2, "b: quantize writes a GGUF file, so its name must end in .gguf");
    refuse("quantize /no/such b.gguf", 1, "/no/such");
    refuse("quantize a tests/golden/fp8/no/x.gguf", 1, "is not a folder");
    refuse("convert a", 2, "convert takes a model and a folder to write");
    refuse("convert a b.safetensors", 2, "b.safetensors: convert writes a folder, whose name must");
    refuse("convert a b.json", 2, "b.json: convert writes a folder");
    refuse("convert a tests", 2, "tests exists already");
    refuse("copy", 2, "copy takes a source and a target; usage: lateen copy");
    refuse("copy a", 2, "a: copy takes a source and a target; only s3://, https:// and hf://");
    refuse("copy --list a b", 2, "--list takes one place and no target");
    refuse("copy --delete a b", 2, "--delete takes one place and no target");
    refuse("sandbox", 2, "sandbox needs either a command after -- or --jobs");
    refuse("sandbox --", 2, "sandbox needs either a command after -- or --jobs");
    refuse("sandbox --jobs f -- true", 2, "sandbox needs either a command after -- or --jobs");
    refuse("sandbox --jobs /no/such", 1, "/no/such");
    refuse("sandbox --files /no/such -- true", 1, "/no/such");
    refuse("cluster policy", 2, "cluster policy needs a file, as recipes/policy.yaml");
    refuse("comm", 2, "comm");
    refuse("comm blame /no/such", 1, "/no/such");
    refuse("align", 2, "align: usage: lateen align");
    refuse("bench generate", 2, "bench generate needs --model MODEL");
    refuse("bench tokenizer", 2, "bench tokenizer needs --tokenizer T and --input FILE");
}

static void training(void **state) {
    (void)state;
    refuse("train", 2, "no run folder: give --out FOLDER, or out: in the recipe");
    refuse("train --out o", 2, "no data: give --data.train SHARD, or data.train in the recipe");
    refuse("train --out o --data.train d --stage s", 2, "--stage s needs a recipe with stages");
    refuse("train /no/such.yaml", 1, "/no/such.yaml");
    refuse("train a b", 2, "b");
    refuse("train --steps x", 2, "x");
}

/* ---- Stages ---- */

static lt_err open_life(lt_life *l, const char *text, const char *flag) {
    static char verb[] = "train";
    char path[LT_PATH_BYTES], all[2048], word[128];
    char *argv[] = {verb, word, NULL};
    (void)snprintf(all, sizeof all, "out: %s\ndata.train: x\nmodel.init: base\n%s", folder, text);
    (void)snprintf(word, sizeof word, "%s", flag);
    assert_int_equal(lt_path_join(path, folder, "life.yaml"), LT_OK);
    assert_int_equal(lt_file_write_atomic(path, all, strlen(all)), LT_OK);
    return lt_life_open(l, path, flag[0] != '\0' ? 2 : 1, argv);
}

static void ends_with(const char *text, const char *end) {
    const size_t n = strlen(text), m = strlen(end);
    if (n < m || strcmp(text + n - m, end) != 0) {
        fail_msg("'%s' does not end with '%s'", text, end);
    }
}

/* Each stage starts from the model of the previous one, or from its model and adapters. */
static void stages_follow_each_other(void **state) {
    static const struct {
        const char *text, *why;
    } wrong[] = {
        {"stages:\n  a:\n  b: {model.init: other}\n",
         "stage b: model.init = other, but it begins with what stage a has made"},
        {"stages:\n  a:\n  b: {lora.init: other}\n",
         "stage b: lora.init = other, but it begins with what stage a has made"},
        {"stages:\n  a: {export: false}\n  b:\n",
         "stage a: export = false leaves no model, with which stage b begins"},
        {"stages:\n  a: {objective.kind: reward}\n  b:\n",
         "stage a trains a reward model, which writes no text: stage b cannot begin with it"}};
    lt_life l;
    lt_recipe r;
    (void)state;
    assert_int_equal(open_life(&l, "stages:\n  a: {steps: 3}\n  b: {lora.rank: 2}\n  c:\n", ""),
                     LT_OK);
    assert_int_equal(l.n, 3);
    assert_string_equal(l.stages[0].recipe->init, "base");
    ends_with(l.stages[1].recipe->init, "/a/model");
    ends_with(l.stages[2].recipe->init, "/a/model");
    ends_with(l.stages[2].recipe->lora_init, "/b/adapter");
    assert_string_equal(l.stages[1].recipe->lora_init, "");
    ends_with(l.record, "/stages.json");
    assert_int_equal(lt_life_stage(&l, &r), LT_ERR_ARG);
    assert_non_null(strstr(lt_error_message(), "the recipe has 3 stages: name one, --stage a"));
    lt_life_close(&l);
    assert_int_equal(open_life(&l, "stages:\n  a:\n  b: {steps: 9}\n", "--stage=b"), LT_OK);
    assert_int_equal(lt_life_stage(&l, &r), LT_OK);
    assert_int_equal(r.steps, 9);
    lt_life_close(&l);
    assert_int_equal(open_life(&l, "stages:\n  a:\n", "--stage=z"), LT_OK);
    assert_int_equal(lt_life_stage(&l, &r), LT_ERR_ARG);
    assert_non_null(strstr(lt_error_message(), "--stage z: the recipe has no such stage"));
    lt_life_close(&l);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        assert_int_equal(open_life(&l, wrong[i].text, ""), LT_ERR_ARG);
        if (strstr(lt_error_message(), wrong[i].why) == NULL) {
            fail_msg("%s: %s", wrong[i].text, lt_error_message());
        }
        lt_life_close(&l);
    }
}

static char trained[64];
static const char *fails_in;

static lt_err train_fake(lt_recipe *r) {
    const char *name = strrchr(r->out, '/') + 1;
    strncat(trained, name, sizeof trained - strlen(trained) - 1);
    return strcmp(name, fails_in) == 0 ? lt_error_set(LT_ERR_IO, "it failed") : LT_OK;
}

static void trains(const char *stages, const char *flag, const char *fail, lt_err err,
                   const char *want) {
    lt_life l;
    trained[0] = '\0';
    fails_in = fail;
    assert_int_equal(open_life(&l, stages, flag), LT_OK);
    const lt_err is = lt_life_train(&l, train_fake);
    if (is != err || strcmp(trained, want) != 0) {
        fail_msg("%s %s: %d and '%s', not '%s': %s", stages, flag, (int)is, trained, want,
                 lt_error_message());
    }
    lt_life_close(&l);
}

/* A finished stage is not trained again; a stage whose predecessor is not finished does not
 * begin; a last stage that gets more steps continues. */
static void finished_stages_stay(void **state) {
    static const char three[] = "steps: 4\nstages:\n  a:\n  b:\n  c:\n";
    (void)state;
    trains(three, "--stage=b", "", LT_ERR_STATE, "");
    assert_non_null(strstr(lt_error_message(), "--stage b: stage a before it is not finished"));
    trains(three, "", "b", LT_ERR_IO, "ab");
    trains(three, "--stage=b", "", LT_OK, "b");
    trains(three, "--stage=b", "", LT_OK, "");
    trains(three, "", "", LT_OK, "c");
    trains(three, "", "", LT_OK, "");
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(generating),
                                       cmocka_unit_test(evaluating),
                                       cmocka_unit_test(launching),
                                       cmocka_unit_test(writing_and_copying),
                                       cmocka_unit_test(training),
                                       cmocka_unit_test(stages_follow_each_other),
                                       cmocka_unit_test(finished_stages_stay)};
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
