/* `lateen train`: recipes and flags that override them, recipes with stages and with adapters, its
 * exit status, and its help; `lateen quantize`. Runs have one layer of width 16. */
#include "unit/cli/verb_run.h"

#include <math.h>
#include <sys/stat.h>

#include "base/file.h"
#include "cli/train/train_recipe.h"
#include "lateen/model.h"
#include "train/recipe/recipe.h"
#include "unit/train/run_folder.h"

int lt_verb_train(int argc, char **argv);
int lt_verb_quantize(int argc, char **argv);

static int begin(void **state) {
    (void)state;
    if (mkdtemp(run_root) == NULL) {
        return 1;
    }
    run_shard("shard.bin", RUN_TOKENS, 0);
    return 0;
}

static int end(void **state) {
    (void)state;
    return lt_file_remove_tree(run_root) != LT_OK;
}

/* "@" stands for the folder. */
static const char *words(const char *text) {
    static char all[8192];
    size_t n = 0;
    for (const char *p = text; *p != '\0'; p++) {
        n += (size_t)snprintf(all + n, sizeof all - n, "%.*s", *p == '@' ? 1000 : 1,
                              *p == '@' ? run_root : p);
    }
    return all;
}

static void put(const char *name, const char *text) {
    char path[LT_PATH_BYTES];
    const char *all = words(text);
    run_path(path, name);
    must(lt_file_write_atomic(path, all, strlen(all)), path);
}

#define SMALL                                                                                      \
    "data.train: @/shard.bin\ndata.seq: 16\nmodel.vocab: 64\nmodel.layers: 1\nmodel.width: 16\n"   \
    "model.heads: 2\nbatch.size: 4\nlr.schedule: constant\nthreads: 1\nlog.plain_every: 1000\n"

static void trains(const char *text) {
    ran r = run_verb(lt_verb_train, words(text));
    if (r.status != LT_EXIT_DONE) {
        fail_msg("%s: status %d: %s", text, r.status, r.err);
    }
    ran_close(&r);
}

static void refuses(const char *text, int status, const char *why) {
    run_refused(lt_verb_train, words(text), status, why);
}

/* The recipe that a run has kept; valid until the next one is read. */
static const lt_recipe *kept(const char *out) {
    static lt_recipe r;
    char path[LT_PATH_BYTES], name[256];
    snprintf(name, sizeof name, "%s/recipe.yaml", out);
    run_path(path, name);
    lt_options_default(&lt_recipe_table, &r);
    must(lt_options_load_yaml(&lt_recipe_table, &r, path), path);
    return &r;
}

static size_t lines_of(const char *out) {
    json_t *lines = run_lines(out, "train");
    const size_t n = json_array_size(lines);
    json_decref(lines);
    return n;
}

/* ---- One run ---- */

static void flags_override_the_recipe(void **state) {
    (void)state;
    put("one.yaml", SMALL "out: @/one\nsteps: 5\nseed: 7\nexport: false\n");
    trains("train @/one.yaml --steps 3");
    assert_int_equal(lines_of("one"), 3);
    assert_int_equal(kept("one")->steps, 3);
    assert_int_equal(kept("one")->seed, 7);
    trains("train --steps=2 @/one.yaml --out @/two --seed 8"); /* In any order. */
    assert_int_equal(lines_of("two"), 2);
    assert_int_equal(kept("two")->seed, 8);
    trains("train @/one.yaml"); /* It goes on to the recipe's own number. */
    assert_int_equal(lines_of("one"), 5);
    assert_int_equal(kept("one")->steps, 5);
}

static void what_has_no_effect(void **state) {
    (void)state;
    put("idle.yaml", SMALL "out: @/idle\nsteps: 1\nexport: false\nlora.alpha: 3\n");
    trains("train @/idle.yaml"); /* In a file it is reported only. */
    refuses("train @/idle.yaml --lora.alpha 4", LT_EXIT_USAGE,
            "--lora.alpha 4 has no effect: it needs ");
    refuses("train @/one.yaml --stage a", LT_EXIT_USAGE, "--stage a needs a recipe with stages");
    put("none.yaml", "steps: 1\ndata.train: x\n");
    refuses("train @/none.yaml", LT_EXIT_USAGE, "no run folder");
    put("none.yaml", "steps: 1\nout: @/none\n");
    refuses("train @/none.yaml", LT_EXIT_USAGE, "no data");
    refuses("train @/one.yaml @/none.yaml", LT_EXIT_USAGE, "none.yaml");
    put("bad.yaml", "stepz: 1\n");
    refuses("train @/bad.yaml", LT_EXIT_USAGE, "stepz");
}

static void statuses(void **state) {
    char path[LT_PATH_BYTES];
    (void)state;
    refuses("train @/one.yaml --out @/lost --data.train @/no.bin", LT_EXIT_FAILED, "no.bin");
    put("one/exit", ""); /* A request to stop. */
    ran r = run_verb(lt_verb_train, words("train @/one.yaml --steps 9"));
    assert_int_equal(r.status, LT_EXIT_INTERRUPTED);
    ran_close(&r);
    run_path(path, "one/exit");
    (void)unlink(path);
    assert_true(lines_of("one") < 9);
    trains("train @/one.yaml --steps 9");
    assert_int_equal(lines_of("one"), 9);
}

/* The help names every option, and those that a resumed run may change, in lines of a terminal. */
static void help(void **state) {
    (void)state;
    ran r = run_verb(lt_verb_train, "train --help");
    assert_int_equal(r.status, LT_EXIT_DONE);
    assert_int_equal(strncmp(r.out, "usage: lateen train [RECIPE.yaml]", 33), 0);
    char *list = strstr(r.out, "A resumed run may change these options");
    assert_non_null(list);
    for (size_t i = 0; i < lt_recipe_table.n_rows; i++) {
        const lt_option *row = &lt_recipe_table.rows[i];
        char name[128];
        snprintf(name, sizeof name, "--%s", row->name);
        assert_non_null(strstr(r.out, name));
    }
    list = strchr(list, '\n') + 1;
    const char *const may[] = {"steps", "optim.lr", "checkpoint.every"};
    const char *const never[] = {"seed", "model.width", "data.seq", "optim.kind", "trace_step"};
    size_t n_lines = 0;
    bool found[3] = {false};
    for (char *line = strtok(list, "\n"); line != NULL; line = strtok(NULL, "\n"), n_lines++) {
        char padded[256];
        assert_true(strlen(line) <= 130);
        assert_int_equal(strncmp(line, "  ", 2), 0);
        assert_int_not_equal(line[2], ' ');
        snprintf(padded, sizeof padded, "%s ", line + 1);
        for (int i = 0; i < 3; i++) {
            char one[64];
            snprintf(one, sizeof one, " %s ", may[i]);
            found[i] = found[i] || strstr(padded, one) != NULL;
        }
        for (int i = 0; i < 5; i++) {
            char one[64];
            snprintf(one, sizeof one, " %s ", never[i]);
            assert_null(strstr(padded, one));
        }
    }
    assert_true(found[0] && found[1] && found[2] && n_lines > 2);
    ran_close(&r);
}

/* ---- Stages and adapters ---- */

static void stages(void **state) {
    (void)state;
    put("life.yaml", SMALL "out: @/life\nsteps: 2\nstages:\n  first: {steps: 3}\n  second: "
                           "{optim.lr: 0.001}\n");
    trains("train @/life.yaml --stage first");
    assert_int_equal(lines_of("life/first"), 3);
    assert_false(run_has("life", "second"));
    trains("train @/life.yaml");
    assert_int_equal(lines_of("life/first"), 3); /* It is not repeated. */
    assert_int_equal(lines_of("life/second"), 2);
    assert_string_equal(kept("life/second")->init, words("@/life/first/model"));
    refuses("train @/life.yaml --stage third", LT_EXIT_USAGE, "third");
    refuses("train @/life.yaml --lora.alpha 4", LT_EXIT_USAGE, "--lora.alpha 4 has no effect");
    put("mixed.yaml", SMALL "out: @/mixed\nsteps: 1\nstages:\n  plain:\n  small: {lora.rank: 2}\n");
    trains("train @/mixed.yaml --lora.alpha 4"); /* It has an effect in one of them. */
    assert_true(kept("mixed/small")->lora_alpha == 4);
    assert_true(run_has("mixed/small", "adapter/adapter_config.json"));
}

static void adapters(void **state) {
    (void)state;
    put("base.yaml", SMALL "out: @/base\nsteps: 1\n");
    trains("train @/base.yaml");
    put("many.yaml", "data.train: @/shard.bin\ndata.seq: 16\nbatch.size: 4\nthreads: 1\nsteps: 2\n"
                     "model.init: @/base/model\nmodel.vocab: 0\nmodel.layers: 0\nmodel.width: 0\n"
                     "model.heads: 0\nout: @/many\nlora.rank: 2\nlog.plain_every: 1000\nadapters:\n"
                     "  a: {optim.lr: 0.01}\n  b: {lora.rank: 4}\n");
    trains("train @/many.yaml --seed 5");
    assert_true(run_has("many/a", "adapter/adapter_config.json"));
    assert_true(run_has("many/b", "adapter/adapter_config.json"));
    assert_true(kept("many/a")->lr == 0.01);
    assert_int_equal(kept("many/b")->lora_rank, 4);
    assert_int_equal(kept("many/b")->seed, 5);
    put("single.yaml",
        "data.train: @/shard.bin\ndata.seq: 16\nbatch.size: 4\nthreads: 1\nsteps: 1\n"
        "model.init: @/base/model\nmodel.vocab: 0\nmodel.layers: 0\n"
        "model.width: 0\nmodel.heads: 0\nout: @/single\nlora.rank: 2\n"
        "log.plain_every: 1000\nadapters:\n  only:\n");
    trains("train @/single.yaml");
    assert_true(run_has("single/only", "adapter/adapter_config.json"));
    refuses("train @/single.yaml --out @/other --lora.rank 0", LT_EXIT_USAGE, "lora.rank");
    put("wrong.yaml", "data.train: @/shard.bin\nout: @/wrong\nmodel.init: @/base/model\n"
                      "lora.rank: 2\nadapters:\n  a:\n  b: {threads: 2}\n");
    refuses("train @/wrong.yaml", LT_EXIT_USAGE,
            "adapter b: threads is the same for all adapters: give it beside `adapters`");
    refuses("train @/many.yaml --objective.beta 0.5", LT_EXIT_USAGE, "has no effect");
}

/* Other verbs take the recipe of one stage, and none of several adapters. */
static void recipes_of_other_verbs(void **state) {
    char verb[] = "plan", path[LT_PATH_BYTES], stage[] = "--stage", second[] = "second";
    char *argv[] = {verb, path, stage, second, NULL};
    lt_recipe *r = calloc(1, sizeof *r);
    bool is_help = false;
    (void)state;
    run_path(path, "life.yaml");
    must(lt_cli_recipe_load(r, 4, argv, &is_help), path);
    assert_true(r->steps == 2 && strstr(r->init, "/life/first/model") != NULL);
    run_path(path, "many.yaml");
    assert_int_equal(lt_cli_recipe_load(r, 2, argv, &is_help), LT_ERR_UNSUPPORTED);
    says("only `lateen train` accepts it");
    run_path(path, "one.yaml");
    must(lt_cli_recipe_load(r, 2, argv, &is_help), path);
    assert_int_equal(r->steps, 5);
    assert_false(is_help);
    free(r);
}

/* ---- quantize ---- */

#define STORIES "tests/golden/stories260k/stories260K.bin"
#define IDS     "tests/golden/stories260k/tok512.bin"

static void sizes_that_are_told(void **state) {
    char path[LT_PATH_BYTES], want[200];
    struct stat st;
    lt_model *m = NULL;
    (void)state;
    ran r = run_verb(
        lt_verb_quantize,
        words("quantize " STORIES " @/q8.gguf --type q8_0 --threads 1 --tokenizer " IDS));
    assert_int_equal(r.status, LT_EXIT_DONE);
    run_path(path, "q8.gguf");
    assert_int_equal(stat(path, &st), 0);
    must(lt_model_open(&m, path, NULL), path);
    const double n = (double)lt_model_spec_params(lt_model_get_spec(m));
    assert_true(n > 255e3 && n < 265e3); /* Its name says so. */
    lt_model_close(m);
    snprintf(want, sizeof want, "%.2fM parameters, %.1f MB (%.2f bits a weight), 0.", n / 1e6,
             (double)st.st_size / 1e6, (double)st.st_size * 8 / n);
    if (strstr(r.err, want) == NULL) {
        fail_msg("no '%s' in %s", want, r.err);
    }
    ran_close(&r);
    run_refused(lt_verb_quantize, words("quantize " STORIES " @/q8.gguf"), LT_EXIT_USAGE,
                "exists already");
    run_refused(lt_verb_quantize, words("quantize " STORIES " @/q4.gguf --tokenizer @/no.json"),
                LT_EXIT_FAILED, "no.json");
    run_refused(lt_verb_quantize, words("quantize " STORIES), LT_EXIT_USAGE,
                "quantize takes a model and a file to write");
    run_prints(lt_verb_quantize, "quantize --help", "usage: lateen quantize MODEL OUT.gguf");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(flags_override_the_recipe),
        cmocka_unit_test(what_has_no_effect),
        cmocka_unit_test(statuses),
        cmocka_unit_test(help),
        cmocka_unit_test(stages),
        cmocka_unit_test(adapters),
        cmocka_unit_test(recipes_of_other_verbs),
        cmocka_unit_test(sizes_that_are_told),
    };
    return cmocka_run_group_tests(tests, begin, end);
}
