/* Reinforcement learning as an objective of training: the steps that TRL's GRPOTrainer takes on
 * the same answers (tools/make_grpo_goldens.py), and steps whose answers the engine draws. */
#include "unit/align/runs.h"

#include <math.h>
#include <sys/stat.h>
#include <unistd.h>

#include "align/learner.h"
#include "align/train.h"
#include "base/thread.h"
#include "lateen/generate.h"
#include "model/alloc.h"

/* ---- TRL's steps ---- */

/* Answers of a file, by question and number of the draw. */
typedef struct {
    const json_t *draws, *prompts;
    int64_t n_draws, group;
    lt_answer answers[64];
} script;

static bool is_prompt(const json_t *ids, const lt_question *q) {
    bool same = (int64_t)json_array_size(ids) == q->n_prompt;
    for (int64_t i = 0; same && i < q->n_prompt; i++) {
        same = json_integer_value(json_array_get(ids, (size_t)i)) == q->prompt[i];
    }
    return same;
}

static lt_err answer_by_script(void *of, const lt_rollout_args *asked, lt_answer *answers,
                               lt_rollout_stats *stats) {
    script *s = of;
    const lt_question *questions = asked->questions;
    const int64_t n = asked->n;
    const json_t *draw = json_array_get(s->draws, (size_t)s->n_draws++);
    (void)stats;
    assert_true(n * s->group <= 64);
    for (int64_t i = 0; i < n; i++) {
        size_t k = 0;
        while (!is_prompt(json_array_get(s->prompts, k), &questions[i])) {
            k++;
            assert_true(k < json_array_size(s->prompts)); /* The ids that transformers has. */
        }
        for (int64_t c = 0; c < s->group; c++) {
            const json_t *ids = json_array_get(draw, k * (size_t)s->group + (size_t)c);
            lt_answer *a = &s->answers[i * s->group + c];
            a->n = (int64_t)json_array_size(ids);
            a->ids = realloc(a->ids, (size_t)a->n * sizeof *a->ids);
            a->logp = realloc(a->logp, (size_t)a->n * sizeof *a->logp);
            for (int64_t t = 0; t < a->n; t++) {
                a->ids[t] = (int32_t)json_integer_value(json_array_get(ids, (size_t)t));
                a->logp[t] = 0.0f;
            }
            a->ended = a->ids[a->n - 1] == 1;
            answers[i * s->group + c] = *a;
        }
    }
    return LT_OK;
}

/* The record of the newest draw, computed from its ids: an answer is worth 1 if it ends with
 * token 1, less half its share of the limit. An answer from the current weights has a ratio of
 * exactly 1. */
static void told_of_draw(const lt_objective *o, const lt_training *t, const script *s,
                         const lt_step_record *record, bool first_pass) {
    const json_t *draw = json_array_get(s->draws, (size_t)s->n_draws - 1);
    const size_t n = json_array_size(draw), group = (size_t)s->group;
    double sum = 0.0, squares = 0.0, tokens = 0.0, ended = 0.0, equal = 0.0, before = 0.0;
    double values[LT_RL_METRIC_COUNT] = {0};
    bool present[LT_RL_METRIC_COUNT], same = true;
    for (size_t i = 0; i < n; i++) {
        const json_t *ids = json_array_get(draw, i);
        const size_t length = json_array_size(ids);
        const bool ends = json_integer_value(json_array_get(ids, length - 1)) == 1;
        const double reward = ends - 0.5 * (double)length / 10.0;
        sum += reward;
        squares += reward * reward;
        tokens += (double)length;
        ended += ends;
        same = i % group == 0 || (same && reward == before);
        equal += i % group == group - 1 && same;
        before = reward;
    }
    o->report(o->of, record, values, present);
    const double mean = sum / (double)n;
    assert_true(fabs(values[LT_RL_reward] - mean) < 1e-12);
    assert_true(fabs(values[LT_RL_reward_std] - sqrt(squares / (double)n - mean * mean)) < 1e-9);
    assert_true(fabs(values[LT_RL_answer_tokens] - tokens / (double)n) < 1e-12);
    assert_true(fabs(values[LT_RL_ended] - ended / (double)n) < 1e-12);
    assert_true(fabs(values[LT_RL_equal_groups] - equal / (double)(n / group)) < 1e-12);
    assert_true(values[LT_RL_questions] == (double)(n / group));
    assert_true(values[LT_RL_entropy] > 0.0 && values[LT_RL_entropy] < 10.0);
    assert_true((values[LT_RL_off_policy] == 0.0) == first_pass);
    assert_true(first_pass ? values[LT_RL_ratio_most] == 1.0 : values[LT_RL_ratio_most] > 1.0);
    assert_true(!first_pass || values[LT_RL_clipped_low] + values[LT_RL_clipped_high] == 0.0);
    assert_int_equal(present[LT_RL_kl], t->recipe.rl_kl > 0.0);
    /* At first the reference is the model. The estimate of a divergence is not negative. */
    assert_true(t->recipe.rl_kl > 0.0 && t->state.step > 1 ? values[LT_RL_kl] > 0.0
                                                           : values[LT_RL_kl] == 0.0);
    assert_int_equal(present[LT_RL_reward_s], first_pass);
    assert_int_equal(present[LT_RL_mismatch], first_pass && t->recipe.rl_temperature == 1.0);
    assert_true(present[LT_RL_reward] && present[LT_RL_entropy] && !present[LT_RL_passed]);
}

static void run_case(const json_t *golden, const json_t *one) {
    const char *name = json_string_value(json_object_get(one, "name"));
    const json_t *steps = json_object_get(one, "steps");
    script s = {.draws = json_object_get(golden, "draws"),
                .prompts = json_object_get(golden, "prompts"),
                .group = json_integer_value(json_object_get(golden, "group"))};
    lt_learner l = {.answerer = {&s, answer_by_script}};
    const lt_objective objective = lt_learner_objective(&l);
    lt_training *t = calloc(1, sizeof *t);
    lt_recipe *r = recipe_of(name, "questions.jsonl",
                             "steps=12 data.seq=48 batch.size=8 rl.group=4 rl.tokens=10 "
                             "optim.lr=2e-3 rl.rewards=ended,length:-0.5 batch.micro=3");
    const char *key;
    json_t *value;
    assert_non_null(t);
    json_object_foreach(json_object_get(one, "options"), key, value) {
        run_set(r, key, json_string_value(value));
    }
    must(lt_training_open_with(t, r, device_of(lt_backend_cpu()),
                               &(lt_training_with){.objective = &objective}),
         name);
    for (size_t i = 0; i < json_array_size(steps); i++) {
        const json_t *want = json_array_get(steps, i);
        const double loss = json_number_value(json_object_get(want, "loss")),
                     norm = json_number_value(json_object_get(want, "grad_norm"));
        lt_step_outcome got;
        must(lt_training_step(t, &got), name);
        if (!(fabs(got.decision.loss - loss) <= 2e-5) ||
            !(fabs(got.decision.grad_norm - norm) <= 1e-4 * fmax(1.0, norm))) {
            fail_msg("%s, step %zu: loss %.8g, TRL's %.8g; norm %.8g, TRL's %.8g", name, i + 1,
                     got.decision.loss, loss, got.decision.grad_norm, norm);
        }
        told_of_draw(&objective, t, &s, &got.record, (int64_t)i % r->rl_passes == 0);
    }
    lt_training_close(t);
    for (int i = 0; i < 64; i++) {
        free(s.answers[i].ids);
        free(s.answers[i].logp);
    }
    free(t);
    free(r);
}

static void trl_takes_the_same_steps(void **state) {
    json_t *golden = NULL, *one;
    size_t i;
    (void)state;
    must(lt_json_load(&golden, "tests/golden/rl/grpo.json", 1 << 20), "golden");
    json_array_foreach(json_object_get(golden, "cases"), i, one) {
        run_case(golden, one);
    }
    assert_true(i > 4);
    json_decref(golden);
}

/* ---- Answers of the engine ---- */

#define ENGINE_RUN                                                                                 \
    "data.seq=48 batch.size=32 rl.group=8 rl.tokens=16 rl.rewards=ended,length:-0.5 "              \
    "optim.lr=1e-2 "                                                                               \
    "objective.kind=grpo checkpoint.every=2 "

static lt_err train_on(const char *lines, const char *out, const char *options) {
    char all[LT_PATH_BYTES + 1024];
    lt_recipe *r;
    lt_err err;
    (void)snprintf(all, sizeof all, "%s%s", ENGINE_RUN, options);
    r = recipe_of(out, lines, all);
    err = lt_align_train(r, device_of(lt_backend_cpu()));
    free(r);
    return err;
}

static lt_err train(const char *out, const char *options) {
    return train_on("questions.jsonl", out, options);
}

static double number(const json_t *row, const char *name) {
    const json_t *value = json_object_get(row, name);
    if (!json_is_number(value)) {
        fail_msg("a line has no %s", name);
    }
    return json_number_value(value);
}

static double mean(const json_t *rows, size_t from, size_t n, const char *name) {
    double sum = 0.0;
    for (size_t i = from; i < from + n; i++) {
        sum += number(json_array_get(rows, i), name);
    }
    return sum / (double)n;
}

/* The model learns to end its answers, which it seldom does at first; so do its greedy answers to
 * problems that it is not trained on, before the first step, after the twelfth and at the end. */
static void rewards_rise(void **state) {
    char held_out[LT_PATH_BYTES], options[LT_PATH_BYTES + 64];
    json_t *rows;
    (void)state;
    run_path(held_out, "held-out.jsonl");
    (void)snprintf(options, sizeof options, "steps=24 eval.every=12 eval.rows=5 data.valid=%s",
                   held_out);
    must(train("rise", options), "run");
    rows = run_lines("rise", "rl_eval");
    assert_int_equal(json_array_size(rows), 3);
    for (size_t i = 0; i < 3; i++) {
        const json_t *row = json_array_get(rows, i);
        assert_true(number(row, "step") == 12.0 * (double)i && number(row, "questions") == 5.0);
        assert_null(json_object_get(row, "equal_groups")); /* One greedy answer is not a group. */
        assert_null(json_object_get(row, "passed"));
        assert_null(json_object_get(row, "entropy"));
    }
    assert_true(number(json_array_get(rows, 0), "reward") == -0.5);
    assert_true(number(json_array_get(rows, 2), "reward") > 0.0);
    json_decref(rows);
    rows = run_lines("rise", "rl");
    assert_int_equal(json_array_size(rows), 24);
    const double before = mean(rows, 0, 3, "ended"), after = mean(rows, 21, 3, "ended");
    if (!(before < 0.3 && after > 0.8)) {
        fail_msg("answers that ended: %g, then %g", before, after);
    }
    for (size_t i = 0; i < 24; i++) {
        const json_t *row = json_array_get(rows, i);
        assert_true(number(row, "mismatch") < 2e-5); /* Nats; measured: 4e-6. */
        assert_true(number(row, "off_policy") == 0.0 && number(row, "ratio_most") == 1.0);
    }
    json_decref(rows);
}

/* The engine and the trainer give each token the same log-probability, bit for bit: prompts and
 * answers of many lengths, weights that move, with and without adapters, one row or many in a
 * pass. */
static void exact_runs_have_no_mismatch(void **state) {
    static const char *const more[] = {"batch.micro=32 ", "batch.micro=3 rl.running=5 ",
                                       "lora.rank=4 rl.kl=0.1 ", "rl.updates=2 batch.micro=7 "};
    (void)state;
    for (size_t i = 0; i < sizeof more / sizeof *more; i++) {
        char out[32], options[128];
        json_t *rows;
        (void)snprintf(out, sizeof out, "exact%zu", i);
        (void)snprintf(options, sizeof options, "%srl.exact=true steps=6", more[i]);
        must(train(out, options), out);
        rows = run_lines(out, "rl");
        for (size_t k = 0; k < json_array_size(rows); k++) {
            const json_t *row = json_array_get(rows, k);
            if (json_object_get(row, "mismatch") != NULL && number(row, "mismatch") != 0.0) {
                fail_msg("%s: step %zu: mismatch %g", more[i], k + 1, number(row, "mismatch"));
            }
        }
        assert_true(number(json_array_get(rows, 0), "mismatch") == 0.0);
        json_decref(rows);
    }
}

/* Compare a checkpoint of two runs, byte by byte. */
static void same_file(const char *a, const char *b, const char *name) {
    char path[LT_PATH_BYTES], file[512], *x = NULL, *y = NULL;
    size_t n = 0, m = 0;
    (void)snprintf(file, sizeof file, "%s/%s", a, name);
    run_path(path, file);
    must(lt_file_read(&x, &n, path, 1 << 24), path);
    (void)snprintf(file, sizeof file, "%s/%s", b, name);
    run_path(path, file);
    must(lt_file_read(&y, &m, path, 1 << 24), path);
    if (n != m || memcmp(x, y, n) != 0) {
        fail_msg("%s and %s have different %s", a, b, name);
    }
    free(x);
    free(y);
}

/* The same seed gives the same run. A run that was interrupted and resumed has its bits, also
 * with several steps per draw, for which checkpoints wait for the end of the draw. */
static void a_resumed_run_equals_the_uninterrupted_one(void **state) {
    static const char *const more[] = {"", "rl.updates=2 rl.passes=2 checkpoint.every=1 rl.kl=0.1 ",
                                       "lora.rank=2 rl.kl=0.1 "};
    char options[256], whole[32], parts[32];
    (void)state;
    for (int i = 0; i < 3; i++) {
        (void)snprintf(whole, sizeof whole, "whole%d", i);
        (void)snprintf(parts, sizeof parts, "parts%d", i);
        (void)snprintf(options, sizeof options, "%ssteps=8", more[i]);
        must(train(whole, options), whole);
        (void)snprintf(options, sizeof options, "%ssteps=4", more[i]);
        must(train(parts, options), parts);
        if (i == 1) {
            run_holds(parts, "4");
        }
        (void)snprintf(options, sizeof options, "%ssteps=8", more[i]);
        must(train(parts, options), parts);
        same_file(whole, parts, "checkpoints/step-000000008/weights.safetensors");
    }
}

/* Train the copy of the model. */
static lt_err train_copy(const char *out, const char *options) {
    char all[1024], path[LT_PATH_BYTES];
    lt_recipe *r;
    lt_err err;
    (void)snprintf(all, sizeof all, "%s%s", ENGINE_RUN, options);
    r = recipe_of(out, "questions.jsonl", all);
    run_path(path, "copy");
    run_set(r, "model.init", path);
    err = lt_align_train(r, device_of(lt_backend_cpu()));
    free(r);
    return err;
}

/* The reference is read from model.init again when a run resumes. Without a reference nothing is
 * read from there, since the weights are those of the checkpoint. */
static void another_reference_is_not_resumed_with(void **state) {
    (void)state;
    copy_model_folder("copy", MODEL);
    must(train_copy("alone", "steps=2"), "alone");
    must(train_copy("beside", "rl.kl=0.1 steps=2"), "beside");
    change_model_folder("copy");
    must(train_copy("alone", "steps=3"), "alone");
    assert_int_equal(train_copy("beside", "rl.kl=0.1 steps=3"), LT_ERR_STATE);
    says("model.init: the model at");
    says("has changed since the checkpoint");
    change_model_folder("copy");
    must(train_copy("beside", "rl.kl=0.1 steps=3"), "the same reference again");
}

/* A signal to all processes of a job also ends the reward command, here at its 40th answer. The run
 * saves, and continues with the bits of an undisturbed one. */
static void a_stop_that_also_ends_the_reward_command_saves(void **state) {
    char command[2 * LT_PATH_BYTES + 256], options[2 * LT_PATH_BYTES + 512], flag[LT_PATH_BYTES];
    (void)state;
    run_path(flag, "signalled");
    (void)snprintf(command, sizeof command,
                   "#!/bin/sh\n"
                   "n=0\n"
                   "while read -r line; do\n"
                   "    n=$((n + 1))\n"
                   "    [ $n != 40 ] || [ -e %s ] || { : > %s; kill -TERM %d; exit 1; }\n"
                   "    echo $((${#line} %% 3))\n"
                   "done\n",
                   flag, flag, (int)getpid());
    write_file("rewards.sh", command);
    run_path(command, "rewards.sh");
    (void)snprintf(options, sizeof options, "rl.rewards=command rl.command=%s steps=3", command);
    must(chmod(command, 0755) == 0 ? LT_OK : LT_ERR_IO, command);
    assert_int_equal(train("signalled-run", options), LT_ERR_INTERRUPTED);
    says("stopped at step 1 by Terminated; everything is saved");
    run_holds("signalled-run", "1");
    must(train("signalled-run", options), "resumed");
    must(train("undisturbed", options), "undisturbed"); /* The file says not to signal again. */
    same_file("signalled-run", "undisturbed", "checkpoints/step-000000003/weights.safetensors");
}

/* A resumed run with a curriculum asks what the uninterrupted one asks, because pass rates are in
 * the checkpoint. Both parts of the curriculum have an effect: levels open one after the other,
 * and a run without weights by pass rates is different. */
static void curricula_resume(void **state) {
#define LEVELS "rl.curriculum=level rl.curriculum_start=0.2 rl.curriculum_steps=6 batch.size=16 "
    static const char *const more[] = {
        LEVELS "rl.prefer=learnable rl.pass=0.6 rl.resample=1 ",
        LEVELS "rl.prefer=learnable rl.pass=0.6 checkpoint.every=3 rl.staleness=1 "
               "rl.correction=token-truncate "};
    char options[256], whole[32], parts[32];
    json_t *rows, *plain;
    bool differ = false;
    (void)state;
    for (int i = 0; i < 2; i++) {
        (void)snprintf(whole, sizeof whole, "taught%d", i);
        (void)snprintf(parts, sizeof parts, "taught-parts%d", i);
        (void)snprintf(options, sizeof options, "%ssteps=9", more[i]);
        must(train_on("levels.jsonl", whole, options), whole);
        (void)snprintf(options, sizeof options, "%ssteps=6", more[i]);
        must(train_on("levels.jsonl", parts, options), parts);
        (void)snprintf(options, sizeof options, "%ssteps=9", more[i]);
        must(train_on("levels.jsonl", parts, options), parts);
        same_file(whole, parts, "checkpoints/step-000000009/weights.safetensors");
    }
    must(train_on("levels.jsonl", "unweighted", LEVELS "rl.resample=1 steps=9"), "unweighted");
    rows = run_lines("taught0", "rl");
    plain = run_lines("unweighted", "rl");
    for (size_t i = 0; i < 9; i++) {
        const json_t *row = json_array_get(rows, i);
        differ = differ || number(row, "entropy") != number(json_array_get(plain, i), "entropy");
        assert_true(number(row, "passed") >= 0.0 && number(row, "passed") <= 1.0);
    }
    assert_true(differ);
    assert_true(number(json_array_get(rows, 0), "open") == 2.0);
    assert_true(number(json_array_get(rows, 8), "open") == 6.0);
    json_decref(rows);
    json_decref(plain);
}

/* Each method and each option that changes the loss trains for two steps. */
static void every_method_trains(void **state) {
    static const char *const runs[] = {
        "objective.kind=dr_grpo",
        "objective.kind=gspo rl.passes=2",
        "objective.kind=cispo rl.cap=2",
        "objective.kind=luspo",
        "objective.kind=rloo",
        "objective.kind=dapo rl.updates=2 rl.correction=token-truncate rl.weight_low=0.5",
        "rl.passes=2 rl.dual=2 rl.advantage=rloo rl.reduction=fixed-length rl.kl=0.1 rl.kl_kind=k2",
        "rl.resample=2 rl.drop_cut=true rl.rewards=ended,overlong,length:-0.1 rl.soft=4"};
    (void)state;
    for (size_t i = 0; i < sizeof runs / sizeof *runs; i++) {
        char out[32], options[256];
        json_t *rows;
        (void)snprintf(out, sizeof out, "method%zu", i);
        (void)snprintf(options, sizeof options, "steps=2 %s", runs[i]);
        must(train(out, options), runs[i]);
        rows = run_lines(out, "rl");
        assert_int_equal(json_array_size(rows), 2);
        assert_true(number(json_array_get(rows, 0), "off_policy") == 0.0);
        json_decref(rows);
    }
}

/* ---- Answers that are drawn ahead ---- */

#define STALE                                                                                      \
    ENGINE_RUN "checkpoint.every=3 rl.correction=token-truncate objective.kind=dapo steps=8 "

/* Answers from weights that are one update older, except after a checkpoint, by an engine over a
 * copy of them: what rl.staleness does, but one step after the other. */
typedef struct {
    lt_learner learner;
    lt_model *copy;
    lt_lora *adapters; /* Those of the copy; NULL: none. */
    lt_rollouts *rollouts;
} lagging;

static void copy_model(lt_model *to, const lt_model *from) {
    memcpy(to->weights.flat, from->weights.flat,
           lt_param_buffer_bytes(&from->table, from->weights.dtype));
    if (lt_model_has_master(to)) { /* The magnitudes of DoRA are read from there. */
        memcpy(to->master.flat, from->master.flat, lt_param_buffer_bytes(&from->table, LT_F32));
    }
    to->version++;
}

static void copy_weights(lagging *g) {
    const lt_training *t = g->learner.t;
    copy_model(g->copy, t->model);
    if (g->adapters != NULL) {
        copy_model(g->adapters->params, t->lora->params);
    }
}

static lt_err draw_lagging(void *of, const lt_rollout_args *asked, lt_answer *answers,
                           lt_rollout_stats *stats) {
    lagging *g = of;
    lt_training *t = g->learner.t;
    if (g->copy == NULL) {
        const lt_model_options how = {.dtype = t->model->options.dtype, .device = t->device};
        lt_rollout_options o = {
            .max_tokens = 16, .max_seq = 48, .questions = 4, .running = 32, .temperature = 1.0};
        must(lt_model_alloc(&g->copy, &t->model->spec, &how), "copy");
        if (t->lora != NULL) {
            must(lt_lora_open(&g->adapters, g->copy, &t->lora->options, 1), "copy of adapters");
            copy_weights(g); /* With the magnitudes that the engine reads when it opens. */
        }
        lt_model_ends(t->model, t->tokenizer, &o.ends);
        must(lt_rollouts_open(&g->rollouts, g->copy, &o), "rollouts");
    }
    const int64_t step = t->state.step, steps = t->recipe.rl_updates * t->recipe.rl_passes;
    if (step == 0 || step / 3 > (step - steps) / 3) { /* checkpoint.every. */
        copy_weights(g);
    }
    must(lt_rollouts_draw(g->rollouts, asked, answers, stats), "draw");
    copy_weights(g); /* The engine does not run now. */
    return LT_OK;
}

static void train_lagging(const char *out, const char *file, const char *options) {
    lagging g = {.copy = NULL};
    char all[1024];
    (void)snprintf(all, sizeof all, STALE "%s", options);
    lt_recipe *r = recipe_of(out, file, all);
    g.learner.answerer = (lt_answerer){&g, draw_lagging};
    const lt_objective objective = lt_learner_objective(&g.learner);
    must(lt_run_training_with(r, device_of(lt_backend_cpu()), &objective), out);
    lt_rollouts_close(g.rollouts);
    lt_lora_close(g.adapters);
    lt_model_close(g.copy);
    free(r);
}

/* The threads of the engine are returned. */
static lt_err train_stale(const char *out, const char *file, const char *options) {
    const int threads = lt_thread_count();
    char all[1024];
    lt_recipe *r;
    lt_err err;
    (void)snprintf(all, sizeof all, STALE "rl.staleness=1 %s", options);
    r = recipe_of(out, file, all);
    err = lt_align_train(r, device_of(lt_backend_cpu()));
    assert_int_equal(lt_thread_count(), threads);
    free(r);
    return err;
}

/* Compare the metrics of two runs, step by step. */
static void same_steps(const char *a, const char *b) {
    json_t *x = run_lines(a, "rl"), *y = run_lines(b, "rl");
    assert_int_equal(json_array_size(x), 8);
    assert_int_equal(json_array_size(y), 8);
    for (size_t i = 0; i < 8; i++) {
        const json_t *one = json_array_get(x, i), *two = json_array_get(y, i);
        assert_true(number(one, "reward") == number(two, "reward"));
        assert_true(number(one, "entropy") == number(two, "entropy"));
        assert_true(number(one, "answer_tokens") == number(two, "answer_tokens"));
    }
    json_decref(x);
    json_decref(y);
}

static void drawing_ahead_equals_drawing_serially_with_the_same_lag(void **state) {
    const char *const end = "checkpoints/step-000000008/weights.safetensors";
    (void)state;
    train_lagging("lagging", "questions.jsonl", "");
    must(train_stale("ahead", "questions.jsonl", ""), "ahead");
    same_steps("ahead", "lagging");
    same_file("ahead", "lagging", end);
#if !defined(__SANITIZE_THREAD__) /* OpenMP's runtime is not built for ThreadSanitizer. */
    must(train_stale("ahead-threads", "questions.jsonl", "threads=4"), "ahead");
    same_steps("ahead-threads", "lagging");
#endif
    /* A run that resumes from a checkpoint. */
    must(train_stale("ahead-parts", "questions.jsonl", "steps=6"), "ahead");
    must(train_stale("ahead-parts", "questions.jsonl", ""), "ahead");
    same_file("ahead", "ahead-parts", end);
    /* Adapters on a base that both read. */
    train_lagging("lagging-dora", "questions.jsonl", "lora.rank=4 lora.dora=true model.dtype=bf16");
    must(
        train_stale("ahead-dora", "questions.jsonl", "lora.rank=4 lora.dora=true model.dtype=bf16"),
        "ahead with adapters");
    same_steps("ahead-dora", "lagging-dora");
    same_file("ahead-dora", "lagging-dora", end);
    /* Several steps that learn from one draw, during which problems of a level are added. */
    train_lagging("lagging-passes", "levels.jsonl",
                  LEVELS "batch.size=32 rl.curriculum_steps=3 rl.passes=2");
    must(train_stale("ahead-passes", "levels.jsonl",
                     LEVELS "batch.size=32 rl.curriculum_steps=3 rl.passes=2"),
         "with two passes");
    same_steps("ahead-passes", "lagging-passes");
    same_file("ahead-passes", "lagging-passes", end);
    /* Without the lag the run is different. */
    must(train("no-lag",
               "checkpoint.every=3 rl.correction=token-truncate objective.kind=dapo steps=8"),
         "no lag");
    json_t *fresh = run_lines("no-lag", "rl"), *stale = run_lines("ahead", "rl");
    bool differ = false;
    for (size_t i = 0; i < 8; i++) {
        differ = differ || number(json_array_get(fresh, i), "entropy") !=
                               number(json_array_get(stale, i), "entropy");
    }
    assert_true(differ);
    json_decref(fresh);
    json_decref(stale);
}

/* ---- Bad options and bad data ---- */

static void refusals(void **state) {
    static const struct {
        const char *options, *says;
        lt_err err;
    } rows[] = {
        {"steps=3 rl.updates=2", "not a multiple of the 2 steps", LT_ERR_ARG},
        {"steps=4 rl.tokens=48", "leaves no room for a question", LT_ERR_ARG},
        {"steps=4 batch.size=6", "6 answers a step on each rank cannot be divided into groups of 8",
         LT_ERR_ARG},
        {"steps=4 batch.ramp=4@0,16@8", "batch.ramp", LT_ERR_UNSUPPORTED},
        {"steps=4 rl.kl=0.1 lora.init=tests/golden/sft/adapter-all", "rl.kl = 0.1 with lora.init",
         LT_ERR_UNSUPPORTED},
        {"steps=4 rl.rewards=answer", "no \"answer\", which a reward reads", LT_ERR_FORMAT},
        {"steps=4 rl.rewards=ender", "is 'ended' meant", LT_ERR_ARG},
        {"steps=4 rl.staleness=1", "rl.correction = none", LT_ERR_ARG},
        {"steps=4 rl.staleness=1 rl.correction=token-mask checkpoint.every=0",
         "checkpoint.every = 0", LT_ERR_ARG},
        {"steps=4 rl.curriculum=level", "no \"level\", by which rl.curriculum orders",
         LT_ERR_FORMAT},
        {"steps=4 rl.dual=1.1", "dual is 1.1", LT_ERR_ARG},
        {"steps=4 rl.correction=token-mask rl.weight_low=3", "weight_low is 3", LT_ERR_ARG},
        {"steps=4 data.seq=16 rl.tokens=12", "no problem to ask: 2 lines", LT_ERR_FORMAT},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char out[32];
        (void)snprintf(out, sizeof out, "refused%zu", i);
        if (train(out, rows[i].options) != rows[i].err) {
            fail_msg("%s: %s", rows[i].options, lt_error_message());
        }
        says(rows[i].says);
    }
    assert_int_equal(train_on("twice.jsonl", "twice", "steps=4 data.bad_rows=fail"), LT_ERR_FORMAT);
    says("duplicate object key");
    assert_int_equal(run_train("none", "objective.kind=grpo", NULL), LT_ERR_UNSUPPORTED);
    says("objective.kind = grpo");
}

static int make(void **state) {
    if (run_root_make(state) != 0) {
        return -1;
    }
    write_file("held-out.jsonl", "{\"prompt\": \"Who?\"}\n{\"prompt\": \"Why?\"}\n"
                                 "{\"prompt\": \"1+1?\"}\n{\"prompt\": \"Where is Rome?\"}\n"
                                 "{\"prompt\": \"5\"}\n{\"prompt\": \"6\"}\n");
    write_file("levels.jsonl",
               "{\"prompt\": \"a?\", \"level\": 3}\n{\"prompt\": \"b?\", \"level\": 1}\n"
               "{\"prompt\": \"c?\", \"level\": 2}\n{\"prompt\": \"d?\", \"level\": 1}\n"
               "{\"prompt\": \"e?\", \"level\": 3}\n{\"prompt\": \"f?\", \"level\": 2}\n");
    write_file("twice.jsonl", "{\"prompt\": \"5\", \"prompt\": \"6\"}\n");
    write_file("questions.jsonl", "{\"prompt\": \"2+2?\"}\n"
                                  "{\"question\": \"What is the capital of France?\"}\n");
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(trl_takes_the_same_steps),
        cmocka_unit_test(rewards_rise),
        cmocka_unit_test(exact_runs_have_no_mismatch),
        cmocka_unit_test(a_resumed_run_equals_the_uninterrupted_one),
        cmocka_unit_test(another_reference_is_not_resumed_with),
        cmocka_unit_test(a_stop_that_also_ends_the_reward_command_saves),
        cmocka_unit_test(curricula_resume),
        cmocka_unit_test(every_method_trains),
        cmocka_unit_test(drawing_ahead_equals_drawing_serially_with_the_same_lag),
        cmocka_unit_test(refusals),
    };
    return cmocka_run_group_tests(tests, make, run_root_remove);
}
