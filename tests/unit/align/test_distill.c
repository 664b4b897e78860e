/* Distillation as an objective of runs: the steps of TRL's losses (tools/make_distill_goldens.py),
 * from a teacher beside the run, from its likeliest tokens in files, and on answers of the student;
 * held-out conversations; runs that are resumed; teachers and recipes that are refused. */
#include "unit/align/runs.h"

#include <math.h>

#include "align/distill.h"
#include "align/train.h"
#include "data/conversations.h"
#include "lateen/tokenizer.h"
#include "tensor/backend.h"

#define TEACHER "tests/golden/distill/teacher"
#define CHAT    MODEL "/chat.jsonl"
enum { SEQ = 112, BATCH = 5, STEPS = 4, TOP_K = 8, CONVERSATIONS = 20 };

/* The options with run_root instead of each ROOT. */
static void put_root(char *out, size_t room, const char *options) {
    const char *root;
    size_t used = 0;
    while ((root = strstr(options, "ROOT")) != NULL) {
        used += (size_t)snprintf(out + used, room - used, "%.*s%s", (int)(root - options), options,
                                 run_root);
        options = root + strlen("ROOT");
    }
    (void)snprintf(out + used, room - used, "%s", options);
}

/* Learn from CHAT, if the options do not name other conversations. */
static lt_err learn(const char *out, const char *options) {
    char text[1024], all[2048];
    put_root(text, sizeof text, options);
    (void)snprintf(all, sizeof all,
                   "objective.kind=distill data.seq=112 batch.size=5 steps=4 optim.lr=3e-3 "
                   "optim.beta2=0.999 data.shuffle=none %s",
                   text);
    lt_recipe *r = recipe_of(out, "none", all);
    const char *named = strstr(text, "data.train=");
    char *train = named != NULL ? strdup(named + strlen("data.train=")) : strdup(CHAT);
    assert_non_null(train);
    train[strcspn(train, " ")] = '\0';
    run_set(r, "data.train", train);
    const lt_err err = lt_align_train(r, NULL);
    free(train);
    free(r);
    return err;
}

/* Write the teacher's k likeliest tokens for each place of the conversations. */
static void write_logprobs(const char *name, double temperature, int64_t per_part, int64_t k) {
    char folder[LT_PATH_BYTES], data[LT_PATH_BYTES], prefix[LT_PATH_BYTES];
    lt_tokenizer *t = NULL;
    lt_chat_source chat;
    lt_conversations_stats stats;
    lt_teacher_logprobs_stats written;
    lt_dialogues dialogues = {.n = 0};
    lt_model *teacher = NULL;
    lt_pass *pass = NULL;
    run_path(folder, name);
    run_path(data, "logprobs-data");
    must(lt_tokenizer_open(&t, MODEL, NULL), MODEL);
    must(lt_chat_source_open(&chat, &(lt_chat_source_options){.tokenizer = t,
                                                              .tokenizer_path = MODEL,
                                                              .template = "",
                                                              .option = "template",
                                                              .messages = "messages"}),
         MODEL);
    must(lt_conversations_shard(prefix, &stats,
                                &(lt_conversations_options){.path = CHAT,
                                                            .folder = data,
                                                            .source = &chat,
                                                            .tokenizer_path = MODEL,
                                                            .longest = SEQ,
                                                            .n_threads = 1}),
         CHAT);
    must(lt_dialogues_add(&dialogues, prefix), prefix);
    must(lt_model_open(&teacher, TEACHER, NULL), TEACHER);
    must(lt_pass_open(&pass, teacher, &(lt_pass_options){.batch = 4, .seq = SEQ}), "pass");
    must(lt_teacher_logprobs_write(&(lt_teacher_logprobs_options){.folder = folder,
                                                                  .model = TEACHER,
                                                                  .dialogues = &dialogues,
                                                                  .pass = pass,
                                                                  .teacher = teacher,
                                                                  .k = k,
                                                                  .per_part = per_part,
                                                                  .rows = 4,
                                                                  .seq = SEQ,
                                                                  .temperature = temperature},
                                   &written),
         folder);
    assert_int_equal(written.conversations, CONVERSATIONS);
    lt_pass_close(pass);
    lt_model_close(teacher);
    lt_dialogues_close(&dialogues);
    lt_chat_source_close(&chat);
    lt_tokenizer_close(t);
}

/* ---- TRL's steps ---- */

static double metric(const json_t *lines, size_t i, const char *name) {
    const json_t *value = json_object_get(json_array_get(lines, i), name);
    if (!json_is_number(value)) {
        fail_msg("line %zu has no number '%s'", i, name);
    }
    return json_number_value(value);
}

static void expect_near(const char *run, size_t step, const char *name, double got, double want,
                        double most) {
    if (!(fabs(got - want) <= most * fabs(want))) {
        fail_msg("%s, step %zu: %s is %.9g, TRL's %.9g", run, step + 1, name, got, want);
    }
}

/* PyTorch computed in double, this in float. */
static void expect_steps(const char *out, const char *name, const json_t *want) {
    json_t *train = run_lines(out, "train"), *distill = run_lines(out, "distill");
    assert_int_equal(json_array_size(train), STEPS);
    assert_int_equal(json_array_size(distill), STEPS);
    for (size_t i = 0; i < STEPS; i++) {
        expect_near(name, i, "loss", metric(train, i, "loss"), metric(want, i, "loss"), 1e-5);
        expect_near(name, i, "grad_norm", metric(train, i, "grad_norm"),
                    metric(want, i, "grad_norm"), 1e-4);
        expect_near(name, i, "labels", metric(distill, i, "labels"), metric(want, i, "labels"), 0);
    }
    json_decref(train);
    json_decref(distill);
}

static void options_of(char *text, size_t room, const json_t *run) {
    const bool words = json_is_true(json_object_get(run, "words"));
    const double temperature = json_number_value(json_object_get(run, "temperature"));
    const char *key;
    json_t *value;
    size_t used = words
                      ? (size_t)snprintf(text, room, "distill.logprobs=ROOT/words-%g", temperature)
                      : (size_t)snprintf(text, room, "distill.teacher=" TEACHER);
    if (json_is_true(json_object_get(run, "lora"))) {
        used += (size_t)snprintf(text + used, room - used, " lora.init=" MODEL "/adapter-all");
    }
    json_object_foreach(json_object_get(run, "options"), key, value) {
        if (json_is_string(value)) {
            used += (size_t)snprintf(text + used, room - used, " %s=%s", key,
                                     json_string_value(value));
        } else {
            used += (size_t)snprintf(text + used, room - used, " %s=%.17g", key,
                                     json_number_value(value));
        }
    }
}

static void trl_takes_the_same_steps(void **state) {
    json_t *truth = NULL, *run;
    char options[512];
    size_t i;
    (void)state;
    must(lt_json_load(&truth, "tests/golden/distill/truth.json", 1 << 20), "truth.json");
    assert_int_equal(json_integer_value(json_object_get(truth, "k")), TOP_K);
    assert_int_equal(json_integer_value(json_object_get(truth, "batch")), BATCH);
    write_logprobs("words-1", 1.0, 100, TOP_K);
    write_logprobs("words-2", 2.0, 7, TOP_K);
    json_array_foreach(json_object_get(truth, "runs"), i, run) {
        const char *name = json_string_value(json_object_get(run, "name"));
        options_of(options, sizeof options, run);
        must(learn(name, options), name);
        expect_steps(name, name, json_object_get(run, "steps"));
        if (json_is_true(json_object_get(run, "words"))) { /* In passes of two rows and of one. */
            char out[64], micro[640];
            (void)snprintf(out, sizeof out, "%s-micro", name);
            (void)snprintf(micro, sizeof micro, "%s batch.micro=2", options);
            must(learn(out, micro), out);
            expect_steps(out, name, json_object_get(run, "steps"));
        }
    }
    assert_int_equal(i, 11);
    json_decref(truth);
}

/* All labels of a step on policy belong to answers, of at most distill.tokens tokens. */
static void answers_of_the_student_are_counted(void **state) {
    json_t *distill;
    (void)state;
    copy_model_folder("teacher", TEACHER);
    write_file("short.jsonl", "{\"prompt\": \"Hi\", \"completion\": \"Hello\"}\n"
                              "{\"prompt\": \"2+2?\", \"completion\": \"4\"}\n"
                              "{\"prompt\": \"why\", \"completion\": \"so\"}\n");
    must(learn("counted", "distill.teacher=" TEACHER " distill.on_policy=1 distill.tokens=6 "
                          "data.train=ROOT/short.jsonl"),
         "counted");
    distill = run_lines("counted", "distill");
    assert_int_equal(json_array_size(distill), STEPS);
    for (size_t i = 0; i < STEPS; i++) {
        const double tokens = metric(distill, i, "answer_tokens"),
                     ended = metric(distill, i, "ended");
        assert_true(metric(distill, i, "on_policy") == 1.0 && tokens >= 1.0 && tokens <= 6.0);
        assert_true(fabs(tokens * BATCH - metric(distill, i, "labels")) < 1e-9);
        assert_true(ended >= 0.0 && ended <= 1.0 && (ended > 0.0 || tokens == 6.0));
        assert_true(metric(distill, i, "rollout_s") > 0.0);
    }
    json_decref(distill);
    must(learn("single", "distill.teacher=ROOT/teacher distill.on_policy=1 distill.tokens=6 "
                         "batch.size=1 data.train=ROOT/short.jsonl"),
         "single");
    distill = run_lines("single", "distill");
    assert_true(metric(distill, 0, "answer_tokens") == metric(distill, 0, "labels"));
    json_decref(distill);
    must(learn("given", "distill.teacher=" TEACHER), "given");
    distill = run_lines("given", "distill");
    assert_null(json_object_get(json_array_get(distill, 0), "on_policy"));
    assert_null(json_object_get(json_array_get(distill, 0), "answer_tokens"));
    json_decref(distill);
}

/* ---- Held-out conversations ---- */

/* At a rate of 0 a step over all conversations, and the validation on them, have one loss. */
static void held_out_conversations(void **state) {
    static const char *const teachers[] = {
        "distill.teacher=" TEACHER,
        "distill.logprobs=ROOT/words-1 distill.valid_logprobs=ROOT/words-1"};
    (void)state;
    for (int i = 0; i < 2; i++) {
        char options[512], out[16];
        json_t *train, *eval;
        (void)snprintf(options, sizeof options,
                       "data.valid=" CHAT " batch.size=20 steps=1 eval.every=1 optim.lr=0 %s",
                       teachers[i]);
        (void)snprintf(out, sizeof out, "held%d", i);
        must(learn(out, options), out);
        train = run_lines(out, "train");
        eval = run_lines(out, "eval");
        assert_true(json_array_size(eval) >= 1);
        expect_near(out, 0, "loss", metric(eval, json_array_size(eval) - 1, "loss"),
                    metric(train, 0, "loss"), 1e-6);
        json_decref(train);
        json_decref(eval);
    }
}

/* ---- Resumed runs ---- */

/* Rows that are on policy, and those that are not, are the same after a stop, and so are the
 * student's answers. */
static void a_resumed_run_takes_the_same_steps(void **state) {
    static const char options[] = "distill.teacher=" TEACHER " distill.on_policy=0.5 "
                                  "distill.tokens=6 data.shuffle=rows checkpoint.every=3 "
                                  "optim.lr=3e-3";
    char first[256], whole[256];
    json_t *straight[2], *pieces[2];
    double drawn = 0.0;
    (void)state;
    (void)snprintf(first, sizeof first, "%s steps=3", options);
    (void)snprintf(whole, sizeof whole, "%s steps=8", options);
    must(learn("straight", whole), "straight");
    must(learn("pieces", first), "pieces");
    must(learn("pieces", whole), "pieces");
    for (int i = 0; i < 2; i++) {
        static const char *const kinds[] = {"train", "distill"};
        straight[i] = run_lines("straight", kinds[i]);
        pieces[i] = run_lines("pieces", kinds[i]);
        assert_int_equal(json_array_size(straight[i]), 8);
        assert_int_equal(json_array_size(pieces[i]), 8);
    }
    for (size_t i = 0; i < 8; i++) {
        assert_true(metric(straight[0], i, "loss") == metric(pieces[0], i, "loss"));
        assert_true(metric(straight[1], i, "labels") == metric(pieces[1], i, "labels"));
        drawn += metric(straight[1], i, "on_policy");
        assert_true(metric(straight[1], i, "on_policy") == metric(pieces[1], i, "on_policy"));
    }
    assert_true(drawn > 2.0 && drawn < 6.0); /* About half of eight steps. */
    for (int i = 0; i < 2; i++) {
        json_decref(straight[i]);
        json_decref(pieces[i]);
    }
}

static void other_data_are_not_resumed_with(void **state) {
#define TALK "distill.teacher=" TEACHER " data.train=ROOT/talk.jsonl"
    static const char one[] = "{\"prompt\": \"Hi\", \"completion\": \"Hello\"}\n",
                      other[] = "{\"prompt\": \"Hi\", \"completion\": \"Good day\"}\n";
    char path[LT_PATH_BYTES];
    (void)state;
    write_file("talk.jsonl", one);
    must(learn("talked", TALK " steps=2"), "talked");
    write_file("talk.jsonl", other);
    assert_int_equal(learn("talked", TALK " steps=3"), LT_ERR_STATE);
    says("data.train: the data have changed since the checkpoint");
    write_file("talk.jsonl", one);
    must(learn("talked", TALK " steps=3"), "the same again");
    write_logprobs("own", 1.0, 100, TOP_K);
    must(learn("own-run", "distill.logprobs=ROOT/own steps=2"), "own-run");
    must(learn("own-run", "distill.logprobs=ROOT/own steps=3"), "own-run");
    run_path(path, "own");
    must(lt_file_remove_tree(path), path);
    write_logprobs("own", 1.0, 9, TOP_K); /* In parts of another size. */
    assert_int_equal(learn("own-run", "distill.logprobs=ROOT/own steps=4"), LT_ERR_STATE);
    says("distill.logprobs: the data have changed since the checkpoint");
}

static void another_teacher_is_not_resumed_with(void **state) {
#define CHANGES "distill.teacher=ROOT/changes "
    (void)state;
    copy_model_folder("changes", TEACHER);
    must(learn("taught", CHANGES "steps=2"), "taught");
    change_model_folder("changes");
    assert_int_equal(learn("taught", CHANGES "steps=3"), LT_ERR_STATE);
    says("distill.teacher: the model at");
    says("has changed since the checkpoint");
    must(learn("taught", CHANGES "steps=3 allow_change=distill.teacher"), "allowed");
    change_model_folder("changes"); /* Back, but the newest checkpoint is of the other. */
    assert_int_equal(learn("taught", CHANGES "steps=4"), LT_ERR_STATE);
    change_model_folder("changes");
    must(learn("taught", CHANGES "steps=4"), "the same teacher, with another date");
}

/* ---- What is refused ---- */

/* The tokenizer of tests/golden/sft with the token `piece` renamed to `instead`; "": without that
 * token, so that no token has its id. */
static lt_tokenizer *tokenizer_with(const char *piece, const char *instead) {
    char path[LT_PATH_BYTES];
    json_t *t = NULL, *model, *vocab, *merges, *merge, *kept = json_array();
    lt_tokenizer *out = NULL;
    size_t i;
    must(lt_json_load(&t, MODEL "/tokenizer.json", 1 << 20), MODEL);
    model = json_object_get(t, "model");
    vocab = json_object_get(model, "vocab");
    merges = json_object_get(model, "merges");
    json_array_foreach(merges, i, merge) { /* Merges that make or use the piece are left out. */
        char made[64];
        const char *a = json_string_value(json_array_get(merge, 0)),
                   *b = json_string_value(json_array_get(merge, 1));
        (void)snprintf(made, sizeof made, "%s%s", a, b);
        if (strcmp(a, piece) != 0 && strcmp(b, piece) != 0 && strcmp(made, piece) != 0) {
            json_array_append(kept, merge);
        }
    }
    json_object_set_new(model, "merges", kept);
    if (instead[0] != '\0') {
        json_object_set(vocab, instead, json_object_get(vocab, piece));
    }
    json_object_del(vocab, piece);
    char *text = json_dumps(t, JSON_COMPACT);
    write_file("tokenizer.json", text);
    free(text);
    json_decref(t);
    run_path(path, "tokenizer.json");
    must(lt_tokenizer_open(&out, path, NULL), path);
    return out;
}

/* Teachers whose tokens are not the student's: the message names the first id that differs. */
static void teachers_of_other_tokens(void **state) {
    static const struct {
        const char *piece, *instead, *says;
    } rows[] = {
        {"C", "Q9", "id 40 is \"Q9\", and the student's \"C\""}, /* Another length. */
        {"why", "whx", "id 319 is \"whx\", and the student's \"why\""},
        {"why", "", "id 319 is \"\", and the student's \"why\""},
    };
    lt_model *student = NULL, *teacher = NULL, *other = NULL;
    lt_tokenizer *own = NULL, *its;
    (void)state;
    must(lt_model_open(&student, MODEL, NULL), MODEL);
    must(lt_model_open(&teacher, TEACHER, NULL), TEACHER);
    must(lt_model_open(&other, "tests/golden/model/llama3", NULL), "llama3");
    must(lt_tokenizer_open(&own, MODEL, NULL), MODEL);
    must(lt_distill_check_teacher(student, own, teacher, own, "itself"), "itself");
    must(lt_distill_check_teacher(student, own, teacher, NULL, "none"), "no tokenizer");
    must(lt_distill_check_teacher(student, NULL, teacher, own, "none"), "no tokenizer");
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        its = tokenizer_with(rows[i].piece, rows[i].instead);
        assert_int_equal(lt_distill_check_teacher(student, own, teacher, its, "stranger"),
                         LT_ERR_UNSUPPORTED);
        says("the teacher stranger has another tokenizer than the student: ");
        says(rows[i].says);
        if (rows[i].instead[0] == '\0') { /* The student's may lack it, or both. */
            assert_int_equal(lt_distill_check_teacher(student, its, teacher, own, "stranger"),
                             LT_ERR_UNSUPPORTED);
            must(lt_distill_check_teacher(student, its, teacher, its, "both"), "both");
        }
        lt_tokenizer_close(its);
    }
    assert_int_equal(lt_distill_check_teacher(student, own, other, own, "llama3"),
                     LT_ERR_UNSUPPORTED);
    says("the teacher llama3 has a vocabulary of ");
    says("the student one of 320");
    lt_tokenizer_close(own);
    lt_model_close(other);
    lt_model_close(teacher);
    lt_model_close(student);
}

/* The teacher with a context of 64 tokens. */
static void make_short_teacher(void) {
    char folder[LT_PATH_BYTES], path[LT_PATH_BYTES];
    json_t *config = NULL;
    run_path(folder, "teacher-64");
    must(lt_file_make_dirs(folder), folder);
    must(lt_path_join(path, folder, "model.safetensors"), folder);
    must(lt_file_copy(TEACHER "/model.safetensors", path, 1 << 22), path);
    must(lt_json_load(&config, TEACHER "/config.json", 1 << 16), TEACHER);
    (void)json_object_set_new(config, "max_position_embeddings", json_integer(64));
    char *text = json_dumps(config, 0);
    must(lt_path_join(path, folder, "config.json"), folder);
    must(lt_file_write_atomic(path, text, strlen(text)), path);
    free(text);
    json_decref(config);
}

static void recipes_that_are_refused(void **state) {
#define LIVE  "distill.teacher=" TEACHER
#define FILES "distill.logprobs=ROOT/words-1"
    static const struct {
        const char *options, *says;
    } rows[] = {
        {"", "learns from one teacher: give distill.teacher, a model, or distill.logprobs"},
        {LIVE " " FILES, "distill.teacher and distill.logprobs are both given"},
        {FILES " distill.on_policy=0.5", "distill.on_policy = 0.5 with distill.logprobs"},
        {FILES " distill.temperature=2",
         "words-1 has log-probabilities at temperature 1, distill.temperature is 2"},
        {FILES " data.valid=" CHAT, "needs distill.valid_logprobs"},
        {"distill.logprobs=ROOT/none", "distill.logprobs: "},
        {FILES " data.valid=" CHAT " distill.valid_logprobs=ROOT/none", "distill.valid_logprobs: "},
        {FILES " data.valid=" CHAT " distill.valid_logprobs=ROOT/words-5",
         "distill.valid_logprobs has 5 tokens for each position, distill.logprobs 8"},
        {FILES " data.train=" CHAT "," CHAT, "has 20 conversations, the data 40"},
        {LIVE " batch.ramp=5@0,10@2", "batch.ramp = 5@0,10@2 with objective.kind = distill"},
        {LIVE " distill.on_policy=0.5 distill.tokens=112",
         "distill.tokens = 112 leaves no room for a question in data.seq = 112"},
        {LIVE " data.train=" CHAT ":2," CHAT,
         "chat.jsonl:2: weights with objective.kind = distill"},
        {LIVE " data.train=none.bin," CHAT, "none.bin: objective.kind = distill learns from"},
        {LIVE " data.train=" CHAT ",none.bin", "none.bin: objective.kind = distill learns from"},
        {"distill.teacher=tests/golden/model/llama3", "the student one of 320"},
        {"distill.teacher=ROOT/none", "distill.teacher: "},
        {LIVE " data.seq=129", "data.seq"},
        {"distill.teacher=ROOT/teacher-64",
         "data.seq = 112 is longer than the 64 positions of distill.teacher"},
    };
    (void)state;
    make_short_teacher();
    write_logprobs("words-5", 1.0, 100, 5);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char out[32];
        (void)snprintf(out, sizeof out, "refused%zu", i);
        if (learn(out, rows[i].options) == LT_OK) {
            fail_msg("accepted: %s", rows[i].options);
        }
        says(rows[i].says);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(trl_takes_the_same_steps),
        cmocka_unit_test(answers_of_the_student_are_counted),
        cmocka_unit_test(held_out_conversations),
        cmocka_unit_test(a_resumed_run_takes_the_same_steps),
        cmocka_unit_test(other_data_are_not_resumed_with),
        cmocka_unit_test(another_teacher_is_not_resumed_with),
        cmocka_unit_test(teachers_of_other_tokens),
        cmocka_unit_test(recipes_that_are_refused),
    };
    return cmocka_run_group_tests(tests, run_root_make, run_root_remove);
}
