/* Which checkpoints are kept, against lists worked out by hand from keep_last, keep_every and which
 * checkpoints are good. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/error.h"
#include "base/json.h"
#include "train/checkpoint/checkpoint.h"

static char folder[] = "/tmp/lateen-keep-XXXXXX";

static void must(lt_err err) {
    if (err != LT_OK) {
        fail_msg("%s", lt_error_message());
    }
}

static void put(const char *name, const char *manifest) {
    char path[256];
    (void)snprintf(path, sizeof path, "%s/%s", folder, name);
    must(lt_file_make_dirs(path));
    if (manifest != NULL) {
        (void)snprintf(path, sizeof path, "%s/%s/manifest.json", folder, name);
        must(lt_file_write_atomic(path, manifest, strlen(manifest)));
    }
}

static void put_step(int64_t step, const char *manifest) {
    char name[LT_CHECKPOINT_NAME_BYTES];
    lt_checkpoint_name(name, step, "");
    put(name, manifest);
}

static void clear(void) {
    must(lt_file_remove_tree(folder));
    must(lt_file_make_dirs(folder));
}

static void expect(const char *want) {
    int64_t *steps = NULL;
    size_t n = 0;
    char text[256] = "";
    must(lt_checkpoint_list(&steps, &n, folder));
    for (size_t i = n; i > 0; i--) {
        const size_t used = strlen(text);
        (void)snprintf(text + used, sizeof text - used, "%s%lld", used > 0 ? " " : "",
                       (long long)steps[i - 1]);
    }
    free(steps);
    assert_string_equal(text, want);
}

/* Steps with a mark: g good, s suspect, o of an older version without a mark, x unreadable. */
static const lt_checkpoint_keep leftovers = {.last = INT64_MAX, .also = -1},
                                one = {.last = 1, .also = -1};

static void prune(void **state) {
    static const struct {
        const char *steps;
        int64_t keep_last, keep_every;
        const char *left;
    } cases[] = {
        {"4g 8g 12g 16g", 2, 0, "12 16"},
        {"4g 8g 12g 16g", 1, 0, "16"},
        {"4g 8g 12g 16g", 9, 0, "4 8 12 16"},
        {"4g 8g 12g 16g", 1, 8, "8 16"},
        {"4g 8g 12g 16g", 1, 5, "16"},
        /* The newest good one is kept in addition to them. */
        {"4g 8g 12s 16s", 2, 0, "8 12 16"},
        {"4g 8g 12s 16s", 1, 0, "8 16"},      /* Even if only one is kept. */
        {"4g 8s 12s 16s 20s", 1, 0, "4 20"},  /* However old it is. */
        {"4g 8s 12g 16s", 1, 0, "12 16"},     /* Only the newest good one, not every good one. */
        {"4g 8g 12s 16g", 1, 0, "16"},        /* The run has recovered. */
        {"4g 8g 12s 16s", 2, 4, "4 8 12 16"}, /* keep_every keeps its checkpoints. */
        {"4s 8s 12s 16s", 2, 0, "12 16"},     /* None is good: the newest are kept. */
        {"4o 8o 12s 16s", 1, 0, "8 16"},      /* Without a mark it counts as good. */
        {"4g 8x 12s", 1, 0, "4 12"},          /* An unreadable one does not. */
        {"0g 999999999g 1000000000g 1000000001g", 2, 0, "1000000000 1000000001"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        clear();
        for (const char *p = cases[i].steps; *p != '\0'; p += *p == ' ') {
            char *mark = NULL;
            const int64_t step = strtoll(p, &mark, 10);
            put_step(step, *mark == 'g'   ? "{\"good\": true}"
                           : *mark == 's' ? "{\"good\": false}"
                           : *mark == 'o' ? "{}"
                                          : "{");
            p = mark + 1;
        }
        must(lt_checkpoint_prune(folder,
                                 &(lt_checkpoint_keep){.last = cases[i].keep_last,
                                                       .every = cases[i].keep_every,
                                                       .also = -1},
                                 NULL));
        expect(cases[i].left);
    }
}

/* A checkpoint that a process reads is kept, whatever its age. */
static void a_checkpoint_in_use_is_kept(void **state) {
    (void)state;
    clear();
    for (int64_t step = 0; step <= 16; step += 4) {
        put_step(step, "{\"good\": true}");
    }
    must(lt_checkpoint_prune(folder, &(lt_checkpoint_keep){.last = 1, .also = 4}, NULL));
    expect("4 16");
    put_step(0, "{\"good\": true}");
    must(lt_checkpoint_prune(folder, &(lt_checkpoint_keep){.last = 1, .also = 0}, NULL));
    expect("0 16");
}

static void newest_checkpoint(void **state) {
    int64_t step = 0;
    (void)state;
    clear();
    must(lt_checkpoint_newest(&step, folder, INT64_MAX, false));
    assert_int_equal(step, -1);
    put_step(4, "{\"good\": true}");
    put_step(8, "{\"good\": true}");
    put_step(12, "{\"good\": false}");
    must(lt_checkpoint_newest(&step, folder, INT64_MAX, false));
    assert_int_equal(step, 12);
    must(lt_checkpoint_newest(&step, folder, INT64_MAX, true));
    assert_int_equal(step, 8);
    must(lt_checkpoint_newest(&step, folder, 8, true));
    assert_int_equal(step, 4);
    must(lt_checkpoint_newest(&step, folder, 4, true));
    assert_int_equal(step, -1);
    must(lt_checkpoint_newest(&step, "/nonexistent/folder", 4, true));
    assert_int_equal(step, -1);
}

/* Only step-N counts; files left by a crash are removed; what was set aside stays, also with the
 * same name twice. */
static void names_of_folders(void **state) {
    char path[256];
    (void)state;
    assert_int_equal(lt_checkpoint_step("step-000000012"), 12);
    assert_int_equal(lt_checkpoint_step("step-1000000000"), 1000000000);
    assert_int_equal(lt_checkpoint_step("step-12"), -1);
    assert_int_equal(lt_checkpoint_step("step-"), -1);
    assert_int_equal(lt_checkpoint_step("step-00000001x"), -1);
    assert_int_equal(lt_checkpoint_step("step--00000012"), -1);
    assert_int_equal(lt_checkpoint_step("step-99999999999999999999"), -1);
    clear();
    put_step(4, "{}");
    put_step(8, "{}");
    put("step-000000012.tmp", NULL);
    put("step-000000008.old", NULL);
    put("mine", NULL);
    must(lt_checkpoint_prune(folder, &leftovers, NULL));
    expect("4 8");
    must(lt_checkpoint_set_aside(folder, 4, ".left"));
    expect("4");
    put_step(8, "{}");
    must(lt_checkpoint_set_aside(folder, 4, ".left"));
    must(lt_checkpoint_prune(folder, &one, NULL));
    expect("4");
    (void)snprintf(path, sizeof path, "%s/step-000000008.left", folder);
    assert_true(lt_file_is_dir(path));
    (void)snprintf(path, sizeof path, "%s/step-000000008.left2", folder);
    assert_true(lt_file_is_dir(path));
    (void)snprintf(path, sizeof path, "%s/mine", folder);
    assert_true(lt_file_is_dir(path));
    (void)snprintf(path, sizeof path, "%s/step-000000012.tmp", folder);
    assert_false(lt_file_exists(path));
}

/* Without checkpoints the list is empty; all of them may be set aside. */
static void none_and_all(void **state) {
    int64_t *steps = (int64_t *)1;
    size_t n = 7;
    (void)state;
    must(lt_checkpoint_list(&steps, &n, "/nonexistent/folder"));
    assert_null(steps);
    assert_int_equal(n, 0);
    must(lt_checkpoint_set_aside("/nonexistent/folder", -1, ".left"));
    must(lt_checkpoint_prune("/nonexistent/folder", &one, NULL));
    clear();
    must(lt_checkpoint_set_aside(folder, -1, ".left"));
    put_step(8, "{}");
    must(lt_checkpoint_set_aside(folder, 8, ".left"));
    expect("8");
    must(lt_checkpoint_set_aside(folder, -1, ".left"));
    expect("");
    assert_int_equal(lt_checkpoint_remove("/nonexistent/step-000000001"), LT_ERR_IO);
}

static int make(void **state) {
    (void)state;
    return mkdtemp(folder) != NULL ? 0 : -1;
}

static int drop(void **state) {
    (void)state;
    return lt_file_remove_tree(folder) == LT_OK ? 0 : -1;
}

/* A checkpoint replaces a broken one of the same step, whose files are then removed. */
static void replaces_a_broken_one(void **state) {
    char path[256];
    (void)state;
    clear();
    put_step(7, "{\"broken\": true}");
    put("step-000000007.tmp", "{\"whole\": true}");
    must(lt_checkpoint_take_name(folder, 7, NULL));
    expect("7");
    (void)snprintf(path, sizeof path, "%s/step-000000007.tmp", folder);
    assert_false(lt_file_exists(path));
    (void)snprintf(path, sizeof path, "%s/step-000000007/manifest.json", folder);
    json_t *manifest = NULL;
    must(lt_json_load(&manifest, path, 1000));
    assert_true(json_is_true(json_object_get(manifest, "whole")));
    json_decref(manifest);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(prune),
        cmocka_unit_test(a_checkpoint_in_use_is_kept),
        cmocka_unit_test(newest_checkpoint),
        cmocka_unit_test(names_of_folders),
        cmocka_unit_test(none_and_all),
        cmocka_unit_test(replaces_a_broken_one),
    };
    return cmocka_run_group_tests(tests, make, drop);
}
