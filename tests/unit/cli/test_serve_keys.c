/* The keys of `lateen serve`: lists and files that give none, or that would make something else a
 * key, are refused before anything is served, as are options without effect. The model is not
 * there, so that a server whose keys are accepted fails later, for another reason. */
#include "unit/cli/verb_run.h"

#include "base/error.h"
#include "base/file.h"
#include "unit/scratch_folder.h"

int lt_verb_serve(int argc, char **argv);

#define SERVE  "serve /no/such --host 127.0.0.1 --port 0 --quiet "
#define ACCEPT NULL

static void key(const char *words, const char *variable, const char *why) {
    char all[2 * LT_PATH_BYTES];
    ran r;
    (void)snprintf(all, sizeof all, SERVE "%s", words);
    assert_int_equal(
        variable != NULL ? setenv("LATEEN_API_KEY", variable, 1) : unsetenv("LATEEN_API_KEY"), 0);
    r = run_verb(lt_verb_serve, all);
    assert_int_not_equal(r.status, LT_EXIT_DONE);
    if (strstr(r.err, why != ACCEPT ? why : "/no/such") == NULL ||
        (why != ACCEPT && r.status != LT_EXIT_USAGE)) {
        fail_msg("%s: %d, without '%s': %s", words, r.status, why != ACCEPT ? why : "/no/such",
                 r.err);
    }
    ran_close(&r);
}

static void keys_of_options(void **state) {
    static const char empty[] = "--api-key is empty: give a key, or --no-auth";
    char many[600] = "--api-key k0";
    (void)state;
    key("", NULL, ACCEPT);
    key("--api-key a,b", NULL, ACCEPT);
    key("--no-auth", NULL, ACCEPT);
    key("--no-auth --api-key a", NULL, "--no-auth contradicts 1 API keys");
    key("--api-key=", NULL, empty);
    key("--api_key=", NULL, empty);
    key("--api-key-file=", NULL, empty);
    key("--api-key ,", NULL, "--api-key contains no key; --no-auth serves without one");
    key("", "", "LATEEN_API_KEY contains no key");
    key("", ", ,", "LATEEN_API_KEY contains no key");
    key("", "a", ACCEPT);
    key("--no-auth", "", ACCEPT);
    key("--no-auth", "a", ACCEPT);
    key("--api-key b", "", ACCEPT); /* The option takes precedence. */
    key("--api-key k,models=small,judge", NULL, "--api-key: models=small is for a line of");
    key("", "k,models=small", "LATEEN_API_KEY: models=small is for a line of");
    for (int i = 1; i < 65; i++) {
        if (i == 64) {
            key(many, NULL, ACCEPT);
        }
        (void)snprintf(many + strlen(many), sizeof many - strlen(many), ",k%d", i);
    }
    char all[700];
    (void)snprintf(all, sizeof all, SERVE "%s", many);
    run_refused(lt_verb_serve, all, LT_EXIT_FAILED, "more than 64 API keys");
}

static void keys_of_a_file(void **state) {
    static const struct {
        const char *text, *why;
    } rows[] = {
        {"a\n", ACCEPT},
        {"a", ACCEPT},
        {"\r\n  a \r\n\r\nb\tmodels=/no/such\r\n", ACCEPT},
        {"", "contains no key"},
        {" \n\r\n\t", "contains no key"},
        {"models=x\n", "keys:1: models=x stands before its key"},
        {"a\nmodels=x\n", "keys:2: models=x stands before its key"},
        {"a b\n", "keys:1: a line has one key"},
        {"a\n\nb models=small, judge\n", "keys:3: a line has one key"},
        {"a models=\n", "keys:1: a line has one key"},
        {"a models=x models=y\n", "keys:1: a line has one key"},
        {"a models=elsewhere\n", "the model 'elsewhere', which is not served"},
    };
    char path[LT_PATH_BYTES], words[2 * LT_PATH_BYTES];
    (void)state;
    assert_int_equal(lt_path_join(path, folder, "keys"), LT_OK);
    (void)snprintf(words, sizeof words, "--alias /no/such --api-key-file %s", path);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        assert_int_equal(lt_file_write_atomic(path, rows[i].text, strlen(rows[i].text)), LT_OK);
        key(words, NULL, rows[i].why);
        key(words, "", rows[i].why); /* The file takes precedence over the variable. */
    }
    key("--api-key-file /no/such.keys", NULL, ACCEPT); /* This is what the message names. */
    (void)snprintf(words, sizeof words, "--no-auth --api-key-file %s", path);
    key(words, NULL, "--no-auth contradicts 1 API keys");
}

/* Options that need another one have no effect without it, which is said; with it they have. */
static void options_that_need_others(void **state) {
    static const struct {
        const char *words, *need; /* %s: a folder. */
    } rows[] = {
        {"--fine-tuning-jobs 2", "--fine-tuning %s"},
        {"--fine-tuning-waiting 3", "--fine-tuning %s"},
        {"--fine-tuning-bytes 99", "--fine-tuning %s"},
        {"--fine-tuning-rank 3", "--fine-tuning %s"},
        {"--fine-tuning-device cuda", "--fine-tuning %s"},
        {"--fine-tuning-threads 3", "--fine-tuning %s"},
        {"--fine-tuning-submit slurm", NULL},
        {"--fine-tuning-sbatch x", NULL},
        {"--files 3", "--state %s"},
        {"--files-bytes 99", "--fine-tuning %s"},
        {"--upload-s 3", "--state %s"},
        {"--batches 3", "--fine-tuning %s"},
        {"--batch-lines 3", "--state %s"},
        {"--batch-tokens 3", "--state %s"},
        {"--prefix-cache-bytes 99", ""},
        {"--no-prefix-cache --prefix-cache-bytes 99", NULL},
        {"--prefix-cache-by-key", ""},
        {"--no-prefix-cache --prefix-cache-by-key", NULL},
        {"--cache-disk-bytes 99", "--cache-disk %s/cache"},
        {"--store-bytes 99", ""},
        {"--store-entries 0 --store-bytes 99", NULL},
        {"--store-s 9", ""},
        {"--store-entries 0 --store-s 9", NULL},
        {"--draft-tokens 3", "--speculate ngram"},
        {"--draft-branches 3", "--speculate ngram"},
        {"--draft-tokens 3", "--models other=/no/such"},
        {"--models-memory 99", "--models other=/no/such"},
        {"--models-idle-s 9", "--models other=/no/such"},
    };
    char words[4 * LT_PATH_BYTES], need[2 * LT_PATH_BYTES];
    (void)state;
    assert_int_equal(unsetenv("LATEEN_API_KEY"), 0);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const char *option = strstr(rows[i].words, " --");
        const char *own = option != NULL ? option + 1 : rows[i].words;
        char name[64];
        ran r;
        (void)snprintf(name, sizeof name, "%.*s", (int)strcspn(own, " "), own);
        (void)snprintf(words, sizeof words, SERVE "%s", rows[i].words);
        r = run_verb(lt_verb_serve, words);
        const bool idle = strstr(r.err, "has no effect") != NULL && strstr(r.err, name) != NULL;
        if (idle != (rows[i].need == NULL || rows[i].need[0] != '\0') ||
            (idle && r.status != LT_EXIT_USAGE)) {
            fail_msg("%s: %d, %s", rows[i].words, r.status, r.err);
        }
        ran_close(&r);
        if (rows[i].need == NULL || rows[i].need[0] == '\0') {
            continue;
        }
        (void)snprintf(need, sizeof need, "%s", rows[i].need);
        if (strstr(need, "%s") != NULL) {
            const char *rest = strstr(rows[i].need, "%s") + 2;
            (void)snprintf(need, sizeof need, "%.*s%s%s", (int)(rest - 2 - rows[i].need),
                           rows[i].need, folder, rest);
        }
        (void)snprintf(words, sizeof words, SERVE "%s %s", rows[i].words, need);
        r = run_verb(lt_verb_serve, words);
        if (strstr(r.err, "has no effect") != NULL) {
            fail_msg("%s %s: %s", rows[i].words, need, r.err);
        }
        ran_close(&r);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(keys_of_options),
        cmocka_unit_test(keys_of_a_file),
        cmocka_unit_test(options_that_need_others),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
