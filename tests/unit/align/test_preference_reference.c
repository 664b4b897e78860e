/* The reference model of preferences: before the first update the model equals it, so that DPO's
 * loss is log 2; and its file, which a resumed run needs, and which may be missing, damaged, or
 * that of another model. */
#include "unit/align/runs.h"

#include <math.h>

#include "align/train.h"

#define OTHER "tests/golden/distill/teacher"

static const char pairs[] =
    "{\"prompt\": \"Hi\", \"chosen\": \"Hello!\", \"rejected\": \"no\"}\n"
    "{\"prompt\": \"2+2?\", \"chosen\": \"4\", \"rejected\": \"5, I think\"}\n"
    "{\"prompt\": \"why\", \"chosen\": \"so\", \"rejected\": \"because\"}\n",
                  held_out[] = "{\"prompt\": \"Ho\", \"chosen\": \"yes\", \"rejected\": \"no\"}\n"
                               "{\"prompt\": \"who\", \"chosen\": \"me\", \"rejected\": \"you\"}\n";

/* At a rate of 0, so that the model stays the reference. */
static lt_err learn(const char *out, const char *model, const char *options) {
    char all[1024], valid[LT_PATH_BYTES];
    write_file("pairs.jsonl", pairs);
    write_file("held.jsonl", held_out);
    (void)snprintf(all, sizeof all,
                   "objective.kind=dpo objective.beta=1 batch.size=2 batch.micro=1 data.seq=48 "
                   "optim.lr=0 eval.every=1 checkpoint.every=2 %s",
                   options);
    lt_recipe *r = recipe_of(out, "pairs.jsonl", all);
    run_path(valid, "held.jsonl");
    run_set(r, "data.valid", valid);
    run_set(r, "data.tokenizer", MODEL);
    run_set(r, "model.init", model);
    const lt_err err = lt_align_train(r, NULL);
    free(r);
    return err;
}

/* Every loss of a run is log 2. */
static void expect_log_2(const char *out, size_t steps) {
    static const char *const kinds[] = {"train", "eval"};
    for (int k = 0; k < 2; k++) {
        json_t *lines = run_lines(out, kinds[k]), *line;
        size_t i;
        assert_true(json_array_size(lines) >= steps);
        json_array_foreach(lines, i, line) {
            const double loss = json_number_value(json_object_get(line, "loss"));
            if (!(fabs(loss - log(2.0)) < 1e-5)) {
                fail_msg("%s, %s %zu: %.9g, not log 2", out, kinds[k], i, loss);
            }
        }
        json_decref(lines);
    }
}

/* The run's file with the reference of this many rows. */
static void reference_of(char path[LT_PATH_BYTES], const char *out, size_t rows) {
    char folder[LT_PATH_BYTES], name[64];
    char **names = NULL;
    size_t n = 0, found = 0;
    (void)snprintf(name, sizeof name, "%s/data", out);
    run_path(folder, name);
    must(lt_file_list(&names, &n, folder), folder);
    for (size_t i = 0; i < n; i++) {
        char *data = NULL, one[LT_PATH_BYTES], *shape, want[32];
        size_t bytes;
        if (strncmp(names[i], "reference-", strlen("reference-")) != 0) {
            continue;
        }
        must(lt_path_join(one, folder, names[i]), folder);
        must(lt_file_read(&data, &bytes, one, 1 << 16), one);
        (void)snprintf(want, sizeof want, "\"shape\":[%zu]", rows);
        shape = memmem(data, bytes, want, strlen(want));
        if (shape != NULL) {
            found++;
            (void)snprintf(path, LT_PATH_BYTES, "%s", one);
        }
        free(data);
    }
    lt_file_list_free(names, n);
    if (found != 1) {
        fail_msg("%s: %zu files with the reference of %zu rows", out, found, rows);
    }
}

/* Change the lowest bits of the last number of a file. */
static void change_file(const char *path) {
    char *data = NULL;
    size_t bytes;
    must(lt_file_read(&data, &bytes, path, 1 << 16), path);
    data[bytes - sizeof(double)] ^= 1;
    must(lt_file_write_atomic(path, data, bytes), path);
    free(data);
}

enum { TRAIN_ROWS = 6, VALID_ROWS = 4 };

static void losses_begin_at_log_2(void **state) {
    (void)state;
    must(learn("whole", MODEL, "steps=3"), "whole");
    expect_log_2("whole", 3);
    must(learn("lora", MODEL, "steps=3 lora.rank=2"), "lora");
    expect_log_2("lora", 3);
    /* The reference has the adapters that the run begins with. */
    must(learn("adapted", MODEL, "steps=3 lora.init=" MODEL "/adapter-all"), "adapted");
    expect_log_2("adapted", 3);
}

/* A file that an earlier run of another model left in the folder is made anew. */
static void another_model(void **state) {
    char path[LT_PATH_BYTES];
    (void)state;
    must(learn("models", MODEL, "steps=1"), "models");
    run_path(path, "models/checkpoints");
    must(lt_file_remove_tree(path), path);
    run_path(path, "models/metrics.jsonl");
    assert_int_equal(remove(path), 0);
    must(learn("models", OTHER, "steps=1"), "models");
    expect_log_2("models", 1);
}

/* The model has been trained since: its reference cannot be computed again. */
static void a_missing_file_ends_a_resumed_run(void **state) {
    static const size_t rows[] = {TRAIN_ROWS, VALID_ROWS};
    (void)state;
    for (int i = 0; i < 2; i++) {
        char path[LT_PATH_BYTES], out[16];
        (void)snprintf(out, sizeof out, "missing%d", i);
        must(learn(out, MODEL, "steps=2"), out);
        reference_of(path, out, rows[i]);
        assert_int_equal(remove(path), 0);
        assert_int_equal(learn(out, MODEL, "steps=4"), LT_ERR_STATE);
        says(path);
        says("is missing. It comes from the model before the first step, and 2 steps are done");
    }
}

static void a_changed_file_ends_a_resumed_run(void **state) {
    static const size_t rows[] = {TRAIN_ROWS, VALID_ROWS};
    (void)state;
    for (int i = 0; i < 2; i++) {
        char path[LT_PATH_BYTES], out[16];
        (void)snprintf(out, sizeof out, "changed%d", i);
        must(learn(out, MODEL, "steps=2"), out);
        must(learn(out, MODEL, "steps=3"), out); /* Unchanged, it is used. */
        reference_of(path, out, rows[i]);
        change_file(path);
        assert_int_equal(learn(out, MODEL, "steps=4"), LT_ERR_STATE);
        says(path);
        says("the reference's log-probabilities have changed since the checkpoint: their checksum");
    }
}

/* The model without its adapters is the reference at every step: the file is made again. */
static void adapters_can_do_without_the_file(void **state) {
    static const size_t rows[] = {TRAIN_ROWS, VALID_ROWS};
    (void)state;
    for (int i = 0; i < 2; i++) {
        char path[LT_PATH_BYTES], out[16];
        (void)snprintf(out, sizeof out, "again%d", i);
        must(learn(out, MODEL, "steps=2 lora.rank=2"), out);
        reference_of(path, out, rows[i]);
        assert_int_equal(remove(path), 0);
        must(learn(out, MODEL, "steps=3 lora.rank=2"), out);
        reference_of(path, out, rows[i]);
        change_file(path);
        must(learn(out, MODEL, "steps=4 lora.rank=2"), out);
        expect_log_2(out, 4);
    }
}

/* A file of the right name that holds something else. */
static void a_file_of_other_rows_is_refused(void **state) {
    char train[LT_PATH_BYTES], valid[LT_PATH_BYTES];
    (void)state;
    must(learn("rows", MODEL, "steps=2"), "rows");
    reference_of(train, "rows", TRAIN_ROWS);
    reference_of(valid, "rows", VALID_ROWS);
    must(lt_file_copy(valid, train, 1 << 16), valid);
    assert_int_equal(learn("rows", MODEL, "steps=4"), LT_ERR_FORMAT);
    says(train);
    says("does not hold 6 log-probabilities");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(losses_begin_at_log_2),
        cmocka_unit_test(another_model),
        cmocka_unit_test(a_missing_file_ends_a_resumed_run),
        cmocka_unit_test(a_changed_file_ends_a_resumed_run),
        cmocka_unit_test(adapters_can_do_without_the_file),
        cmocka_unit_test(a_file_of_other_rows_is_refused),
    };
    return cmocka_run_group_tests(tests, run_root_make, run_root_remove);
}
