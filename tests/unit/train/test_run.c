/* What a whole run leaves: each recipe that was used, what is saved and when, the exported model
 * with its tokenizer, adapters as PEFT loads them; and how a run that is asked to stop ends. */
#include "unit/train/run_folder.h"

#include <fcntl.h>
#include <math.h>
#include <pthread.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define TOKENIZER "tests/golden/data/demo_tokenizer.json"
/* A run on conversations, from an existing model, whose sizes are not given. */
#define CHAT                                                                                       \
    "model.init=tests/golden/sft data.train=tests/golden/sft/chat.jsonl model.vocab=0 "            \
    "model.layers=0 model.width=0 model.heads=0 data.seq=64 batch.size=2 "

static char *read_of(const char *out, const char *file, size_t *bytes) {
    char path[LT_PATH_BYTES], name[256], *text = NULL;
    (void)snprintf(name, sizeof name, "%s/%s", out, file);
    run_path(path, name);
    must(lt_file_read(&text, bytes, path, 1 << 24), path);
    return text;
}

static void contains(const char *out, const char *file, const char *what) {
    size_t bytes;
    char *text = read_of(out, file, &bytes);
    if (strstr(text, what) == NULL) {
        fail_msg("%s/%s does not hold '%s':\n%s", out, file, what, text);
    }
    free(text);
}

/* A recipe is kept when it is replaced, under the next number; an identical one is not. */
static void recipes_are_kept(void **state) {
    char path[LT_PATH_BYTES];
    (void)state;
    must(run_train("kept", "steps=2", NULL), "begins");
    assert_false(run_has("kept", "history"));
    must(run_train("kept", "steps=4", NULL), "goes on");
    must(run_train("kept", "steps=4", NULL), "has nothing to do");
    must(run_train("kept", "steps=5", NULL), "goes on again");
    contains("kept", "history/recipe-000.yaml", "# In force until step 2.\n");
    contains("kept", "history/recipe-000.yaml", "\nsteps: 2\n");
    contains("kept", "history/recipe-001.yaml", "# In force until step 4.\n");
    contains("kept", "history/recipe-001.yaml", "\nsteps: 4\n");
    contains("kept", "recipe.yaml", "\nsteps: 5\n");
    assert_false(run_has("kept", "history/recipe-002.yaml"));
    /* Options that concern one start only are not part of the recipe. */
    must(run_train("start", "steps=2 trace_step=2 allow_change=seed", NULL), "start");
    contains("start", "recipe.yaml", "\ntrace_step: 0\n");
    contains("start", "recipe.yaml", "\nallow_change: \"\"\n");
    /* A recipe that cannot be kept is not replaced. */
    run_path(path, "kept/history");
    must(lt_file_remove_tree(path), path);
    must(lt_file_write_atomic(path, "x", 1), path);
    assert_int_not_equal(run_train("kept", "steps=6", NULL), LT_OK);
    contains("kept", "recipe.yaml", "\nsteps: 5\n");
    assert_int_equal(unlink(path), 0);
    run_path(path, "kept/recipe.yaml");
    assert_int_equal(unlink(path), 0);
    assert_int_equal(mkdir(path, 0755), 0);
    assert_int_not_equal(run_train("kept", "steps=6", NULL), LT_OK);
}

/* Check the steps of the lines of metrics of a kind. */
static void told(const char *out, const char *kind, const char *want) {
    char text[256] = "";
    json_t *lines = run_lines(out, kind);
    for (size_t i = 0; i < json_array_size(lines); i++) {
        const size_t used = strlen(text);
        (void)snprintf(
            text + used, sizeof text - used, "%s%lld", used > 0 ? " " : "",
            (long long)json_integer_value(json_object_get(json_array_get(lines, i), "step")));
    }
    json_decref(lines);
    if (strcmp(text, want) != 0) {
        fail_msg("%s: %s at steps %s, not %s", out, kind, text, want);
    }
}

/* One layer of width 16: 64 x 16 embedding and head, four 16 x 16 products of attention, two of
 * 16 x 64, norms of 16 and, of queries and keys, of 8, and the two numbers of the activation. MFU
 * is the rate of tokens, times 6 operations for each weight of a product and 12 L H D T for
 * attention, divided by the peak. */
static void a_run_describes_itself(void **state) {
    enum { LAYER = 4 * 16 * 16 + 2 * 16 * 64, HEAD = 64 * 16 };
    json_t *lines;
    const json_t *line;
    (void)state;
    assert_int_equal(setenv("LATEEN_PEAK_GFLOPS", "123.5", 1), 0);
    must(run_train("says", "steps=2", NULL), "says");
    assert_int_equal(unsetenv("LATEEN_PEAK_GFLOPS"), 0);
    lines = run_lines("says", "start");
    line = json_array_get(lines, 0);
    assert_int_equal(json_array_size(lines), 1);
    assert_true(json_number_value(json_object_get(line, "peak_gflops")) == 123.5);
    assert_int_equal(json_integer_value(json_object_get(line, "steps")), 2);
    assert_int_equal(json_integer_value(json_object_get(line, "step")), 0);
    assert_int_equal(json_integer_value(json_object_get(line, "parameters")),
                     LAYER + 2 * HEAD + 3 * 16 + 2 * 8 + 2);
    json_decref(lines);
    lines = run_lines("says", "train");
    line = json_array_get(lines, 1);
    const double rate = json_number_value(json_object_get(line, "tokens_per_s")),
                 mfu = json_number_value(json_object_get(line, "mfu"));
    /* The embedding is read, not multiplied. */
    const double flops = 6.0 * (LAYER + HEAD + 3 * 16 + 2 * 8 + 2) + 12.0 * 16 * 16;
    assert_true(fabs(mfu * 123.5e9 / rate / flops - 1.0) < 1e-4);
    json_decref(lines);
}

/* Numbers of this process's open files, as a set. */
static uint64_t open_files(void) {
    uint64_t set = 0;
    for (int fd = 0; fd < 64; fd++) {
        set |= (uint64_t)(fcntl(fd, F_GETFD) != -1) << fd;
    }
    return set;
}

/* A run that ends before it has its folder, or soon after, closes no other file of the process,
 * such as its standard output. */
static void a_run_that_cannot_begin_closes_its_own_files_alone(void **state) {
    const uint64_t before = open_files();
    lt_recipe *r = run_recipe("cannot", "objective.kind=dpo");
    lt_training *t = calloc(1, sizeof *t);
    (void)state;
    assert_non_null(t);
    assert_int_equal(lt_training_open(t, r, device_of(lt_backend_cpu())), LT_ERR_UNSUPPORTED);
    lt_training_close(t);
    assert_true((open_files() & before) == before);
    assert_int_not_equal(run_train("cannot", "data.train=/no/such.bin", NULL), LT_OK);
    assert_true((open_files() & before) == before);
    free(t);
    free(r);
}

/* The report exists after a checkpoint, before the run has ended; not after any other step, nor
 * after a checkpoint that is written in the background. */
static void a_report_follows_a_checkpoint(void **state) {
    (void)state;
    for (int async = 0; async < 2; async++) {
        lt_recipe *r = run_recipe(async ? "behind" : "reported",
                                  async ? "steps=3 checkpoint.every=2 checkpoint.async=true"
                                        : "steps=3 checkpoint.every=2");
        lt_training *t = calloc(1, sizeof *t);
        assert_non_null(t);
        must(lt_training_open(t, r, device_of(lt_backend_cpu())), "open");
        for (int step = 1; step <= 2; step++) {
            lt_step_outcome out;
            bool slow;
            must(lt_training_step(t, &out), "step");
            must(lt_training_follow(t, &out.decision, &slow), "follow");
            assert_int_equal(slow, step == 2);
            assert_int_equal(run_has(r->out + strlen(run_root) + 1, "report.html"),
                             step == 2 && !async);
        }
        must(lt_saver_wait(t), "save");
        lt_training_close(t);
        free(t);
        free(r);
    }
}

/* The curve at the end has at most 2,048 values. When there are as many, each two become their
 * mean, and every later value is a mean of twice as many losses. */
static void a_curve_of_many_steps(void **state) {
    enum { ROOM = LT_CURVE_ROOM, STEPS = ROOM + 5 };
    static double losses[STEPS];
    lt_recipe *r = run_recipe("curve", "steps=9000 data.seq=4 batch.size=1 log.every=4000 "
                                       "checkpoint.every=9000");
    lt_training *t = calloc(1, sizeof *t);
    (void)state;
    assert_non_null(t);
    must(lt_training_open(t, r, device_of(lt_backend_cpu())), "open");
    for (int i = 0; i < STEPS; i++) {
        lt_step_outcome out;
        must(lt_training_step(t, &out), "step");
        losses[i] = out.decision.loss;
        must(lt_training_tell(t, &out), "tell");
        if (i == ROOM - 2) { /* One loss a value so far. */
            assert_int_equal(t->n_losses, ROOM - 1);
            assert_int_equal(t->losses_each, 1);
            assert_memory_equal(t->losses, losses, (ROOM - 1) * sizeof *losses);
        }
    }
    assert_int_equal(t->losses_each, 2);
    assert_int_equal(t->n_losses, ROOM / 2 + 2);
    for (int i = 0; i < ROOM / 2 + 2; i++) {
        assert_true(fabs(t->losses[i] - (losses[2 * i] + losses[2 * i + 1]) / 2) < 1e-12);
    }
    assert_int_equal(t->losses_in_open, 1);
    assert_true(t->losses_open == losses[STEPS - 1]);
    lt_training_close(t);
    free(t);
    free(r);
}

/* The peak is that of the kernel's own count, which getrusage gives in KiB, too. */
static void the_peak_of_memory(void **state) {
    struct rusage u;
    (void)state;
    const double peak = (double)lt_memory_peak();
    assert_int_equal(getrusage(RUSAGE_SELF, &u), 0);
    assert_true(fabs(peak / ((double)u.ru_maxrss * 1024.0) - 1.0) < 0.01);
}

static void at_each_step(void **state) {
    (void)state;
    run_shard("valid.bin", 100, 3);
    must(run_train("each",
                   "steps=3 checkpoint.every=1 checkpoint.keep_last=9 eval.every=1 sample.every=1 "
                   "sample.tokens=2 model.vocab=2048 data.tokenizer=" TOKENIZER,
                   NULL),
         "each");
    run_holds("each", "1 2 3");
    told("each", "train", "1 2 3");
    told("each", "sample", "1 2 3");
}

/* 100 tokens in rows of 16 have 99 labels: 7 rows, the last of which has 3; labels that training
 * drops count. Perplexity is e to the mean loss. */
static void a_validation_counts_its_labels(void **state) {
    static const struct {
        const char *rows;
        int labels, tokens;
    } cases[] = {{"0", 99, 100}, {"1", 16, 100},   {"5", 80, 100}, {"6", 96, 100},
                 {"7", 99, 100}, {"100", 99, 100}, {"0", 1, 2}};
    char options[LT_PATH_BYTES + 128], valid[LT_PATH_BYTES], out[32];
    (void)state;
    run_path(valid, "valid.bin");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        run_shard("valid.bin", cases[i].tokens, 3);
        (void)snprintf(out, sizeof out, "valid-%zu", i);
        (void)snprintf(options, sizeof options,
                       "steps=1 batch.micro=2 eval.every=1 data.goldfish_k=3 data.goldfish_h=4 "
                       "eval.rows=%s data.valid=%s",
                       cases[i].rows, valid);
        must(run_train(out, options, NULL), out);
        json_t *lines = run_lines(out, "eval");
        const json_t *line = json_array_get(lines, 0);
        const double loss = json_number_value(json_object_get(line, "loss")),
                     perplexity = json_number_value(json_object_get(line, "perplexity"));
        assert_int_equal(json_array_size(lines), 1);
        assert_int_equal(json_number_value(json_object_get(line, "tokens")), cases[i].labels);
        assert_true(fabs(perplexity / exp(loss) - 1.0) < 1e-6);
        assert_true(loss > 3.5 && loss < 5.0); /* About ln 64 = 4.16, after one step. */
        assert_null(json_object_get(line, "bits_per_byte"));
        json_decref(lines);
    }
}

/* Rows that cannot be read end the validation, and no loss is reported. */
static void bad_rows_end_a_validation(void **state) {
    char options[LT_PATH_BYTES + 128], valid[LT_PATH_BYTES];
    const uint16_t id = 64; /* The vocabulary has 64. */
    FILE *f;
    (void)state;
    run_shard("bad.bin", 100, 3);
    run_path(valid, "bad.bin");
    f = fopen(valid, "r+b");
    assert_non_null(f);
    assert_int_equal(fseek(f, 1024 + 2 * 70, SEEK_SET), 0);
    assert_int_equal(fwrite(&id, sizeof id, 1, f), 1);
    fclose(f);
    (void)snprintf(options, sizeof options, "steps=1 eval.every=1 data.valid=%s", valid);
    assert_int_equal(run_train("bad", options, NULL), LT_ERR_FORMAT);
    says("token 70 is id 64, the vocabulary has 64");
    told("bad", "eval", "");
}

/* More than the text of the last token: no token of this vocabulary has more than 13 bytes. */
static void a_sample_is_written_completely(void **state) {
    json_t *lines;
    (void)state;
    must(run_train("sample",
                   "steps=1 sample.every=1 sample.tokens=60 sample.prompt=is model.vocab=2048 "
                   "data.tokenizer=" TOKENIZER,
                   NULL),
         "sample");
    lines = run_lines("sample", "sample");
    assert_int_equal(json_array_size(lines), 1);
    const json_t *line = json_array_get(lines, 0);
    assert_string_equal(json_string_value(json_object_get(line, "prompt")), "is");
    assert_in_range(strlen(json_string_value(json_object_get(line, "text"))), 14, 60 * 13);
    json_decref(lines);
}

/* The template is beside the tokenizer, or in the folder of the model that the run begins with. A
 * template that was named is not searched for elsewhere. */
static void a_template_is_found(void **state) {
    char options[2 * LT_PATH_BYTES + 512], path[LT_PATH_BYTES];
    (void)state;
    run_path(path, "tokenizer.json");
    must(lt_file_copy("tests/golden/sft/tokenizer.json", path, 1 << 24), path);
    (void)snprintf(options, sizeof options, CHAT "steps=1 data.tokenizer=%s", path);
    must(run_train("of-model", options, NULL), "of the model");
    (void)snprintf(options, sizeof options,
                   CHAT "steps=1 data.tokenizer=%s data.chat_template=/no/such.jinja", path);
    assert_int_not_equal(run_train("named", options, NULL), LT_OK);
    says("/no/such.jinja");
    (void)snprintf(options, sizeof options,
                   "steps=1 model.vocab=0 data.train=tests/golden/sft/chat.jsonl "
                   "data.tokenizer=%s",
                   path);
    assert_int_equal(run_train("nowhere", options, NULL), LT_ERR_NOT_FOUND);
}

static void an_export_has_its_tokenizer(void **state) {
    size_t bytes, wanted;
    char *text, *source = NULL;
    (void)state;
    must(run_train("plain", "steps=1 export=true", NULL), "plain");
    assert_true(run_has("plain", "model/config.json"));
    assert_true(run_has("plain", "model/model.safetensors"));
    assert_false(run_has("plain", "model/tokenizer.json"));
    must(run_train("text", "steps=1 export=true model.vocab=2048 data.tokenizer=" TOKENIZER, NULL),
         "text");
    must(lt_file_read(&source, &wanted, TOKENIZER, 1 << 24), TOKENIZER);
    text = read_of("text", "model/tokenizer.json", &bytes);
    assert_int_equal(bytes, wanted);
    assert_memory_equal(text, source, bytes);
    free(text);
    free(source);
    assert_false(run_has("text", "model/chat_template.jinja"));
    must(run_train("chat", CHAT "steps=1 export=true", NULL), "chat");
    assert_true(run_has("chat", "model/tokenizer.json"));
    contains("chat", "model/chat_template.jinja", "message");
    must(run_train("none", "steps=1 export=false", NULL), "none");
    assert_false(run_has("none", "model"));
}

static void adapters_are_kept_as_checkpoints_are(void **state) {
    (void)state;
    must(run_train("lora",
                   CHAT "steps=4 lora.rank=2 checkpoint.every=1 checkpoint.adapters=true "
                        "checkpoint.keep_last=2 export=true",
                   NULL),
         "lora");
    run_holds("lora", "3 4");
    assert_false(run_has("lora", "adapters/step-000000002"));
    for (int step = 3; step <= 4; step++) {
        char file[128];
        (void)snprintf(file, sizeof file, "adapters/step-%09d/adapter_config.json", step);
        contains("lora", file, "\"r\": 2");
        (void)snprintf(file, sizeof file, "adapters/step-%09d/adapter_model.safetensors", step);
        assert_true(run_has("lora", file));
    }
    assert_true(run_has("lora", "adapter/adapter_model.safetensors"));
    assert_true(run_has("lora", "adapter/tokenizer.json"));
    must(run_train("lora-only", CHAT "steps=1 lora.rank=2 export=false", NULL), "lora-only");
    assert_false(run_has("lora-only", "adapters"));
    assert_false(run_has("lora-only", "adapter"));
}

/* A step that is repeated, after its checkpoint was lost and the rate was changed, replaces the
 * adapters that the first attempt left: they are those of the end of the run. */
static void adapters_of_a_repeated_step_are_replaced(void **state) {
    char path[LT_PATH_BYTES];
    size_t bytes[2];
    char *text[2];
    (void)state;
#define AGAIN CHAT "steps=2 lora.rank=2 checkpoint.every=1 checkpoint.adapters=true export=true "
    must(run_train("again", AGAIN "optim.lr=1e-3", NULL), "first");
    run_path(path, "again/checkpoints/step-000000002");
    must(lt_file_remove_tree(path), path);
    run_path(path, "again/adapter");
    must(lt_file_remove_tree(path), path);
    must(run_train("again", AGAIN "optim.lr=1e-2", NULL), "again");
    text[0] = read_of("again", "adapter/adapter_model.safetensors", &bytes[0]);
    text[1] = read_of("again", "adapters/step-000000002/adapter_model.safetensors", &bytes[1]);
    assert_int_equal(bytes[0], bytes[1]);
    assert_memory_equal(text[0], text[1], bytes[0]);
    free(text[0]);
    free(text[1]);
#undef AGAIN
}

/* Write the file when the third line of metrics is there. */
static void *ask_to_stop(void *arg) {
    static const struct timespec pause = {.tv_nsec = 1000000};
    char path[LT_PATH_BYTES], line[4096];
    (void)arg;
    for (int lines = 0; lines < 3;) {
        FILE *f;
        run_path(path, "stopped/metrics.jsonl");
        f = fopen(path, "r");
        for (lines = 0; f != NULL && fgets(line, sizeof line, f) != NULL; lines++) {}
        if (f != NULL) {
            fclose(f);
        }
        (void)nanosleep(&pause, NULL);
    }
    run_path(path, "stopped/exit");
    return lt_file_write_atomic(path, "", 0) == LT_OK ? NULL : arg;
}

static void a_run_stops_on_request(void **state) {
    enum { STEPS = 200000 };
    pthread_t thread;
    void *failed = NULL;
    int64_t *steps = NULL;
    size_t n = 0;
    char path[LT_PATH_BYTES];
    (void)state;
    assert_int_equal(pthread_create(&thread, NULL, ask_to_stop, path), 0);
    assert_int_equal(run_train("stopped", "steps=200000", NULL), LT_ERR_INTERRUPTED);
    says("by the file named exit; everything is saved");
    assert_int_equal(pthread_join(thread, &failed), 0);
    assert_null(failed);
    assert_false(run_has("stopped", "exit")); /* It was obeyed. */
    run_path(path, "stopped/checkpoints");
    must(lt_checkpoint_list(&steps, &n, path), path);
    assert_int_equal(n, 1);
    assert_in_range(steps[0], 3, STEPS - 1);
    free(steps);
}

/* A later attempt takes the run if `of` is not null; then something fails. */
static lt_err fail_to_open(void *of, lt_training *t) {
    char path[LT_PATH_BYTES];
    if (of != NULL) {
        LT_TRY(lt_path_join(path, t->recipe.out, "lease/000000002.json"));
        LT_TRY(lt_file_write_atomic(path, "{}", 2));
    }
    LT_FAIL(LT_ERR_IO, "a file is gone");
}

/* What a later attempt removes or changes makes an earlier one fail, but the cause is that it was
 * replaced. */
static void an_attempt_that_was_replaced_says_so(void **state) {
    static const lt_err want[2] = {LT_ERR_IO, LT_ERR_REPLACED};
    static const char *const names[2] = {"gone", "replaced"};
    (void)state;
    for (int i = 0; i < 2; i++) {
        lt_recipe *r = run_recipe(names[i], CHAT "objective.kind=dpo");
        const lt_objective fails = {.of = i > 0 ? r : NULL, .kind = "dpo", .open = fail_to_open};
        const lt_err err = lt_run_training_with(r, device_of(lt_backend_cpu()), &fails);
        if (err != want[i]) {
            fail_msg("error %d, not %d: %s", (int)err, (int)want[i], lt_error_message());
        }
        says(i == 0 ? "a file is gone" : "(epoch 1) was replaced by epoch 2, process ");
        free(r);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(recipes_are_kept),
        cmocka_unit_test(a_run_describes_itself),
        cmocka_unit_test(a_run_that_cannot_begin_closes_its_own_files_alone),
        cmocka_unit_test(a_report_follows_a_checkpoint),
        cmocka_unit_test(a_curve_of_many_steps),
        cmocka_unit_test(the_peak_of_memory),
        cmocka_unit_test(at_each_step),
        cmocka_unit_test(a_validation_counts_its_labels),
        cmocka_unit_test(bad_rows_end_a_validation),
        cmocka_unit_test(a_sample_is_written_completely),
        cmocka_unit_test(a_template_is_found),
        cmocka_unit_test(an_export_has_its_tokenizer),
        cmocka_unit_test(adapters_are_kept_as_checkpoints_are),
        cmocka_unit_test(adapters_of_a_repeated_step_are_replaced),
        cmocka_unit_test(a_run_stops_on_request),
        cmocka_unit_test(an_attempt_that_was_replaced_says_so)};
    return cmocka_run_group_tests(tests, run_root_make, run_root_remove);
}
