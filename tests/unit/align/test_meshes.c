/* Objectives on meshes of ranks: each takes the steps that one rank takes, with the same
 * gradients of every tensor. Passes of a rank differ in length, and in number if examples are
 * held out. */
#include "unit/align/runs.h"

#include <sys/stat.h>

#include "align/distill.h"
#include "align/learner.h"
#include "align/preference.h"
#include "base/rng.h"
#include "unit/parallel/ranks.h"

#define TEACHER "tests/golden/distill/teacher"

static const ranks_bound bound = {5e-5, 1e-5, 5e-5, 1e-3};

/* ---- Objectives of ranks ---- */

static lt_objective prefer(void *state, const lt_recipe *r) {
    return lt_preference_open(state, r);
}

static lt_objective distill(void *state, const lt_recipe *r) {
    return lt_distill_objective(state, r);
}

/* A learner whose answers are random tokens, which depend only on the seed of their question. */
typedef struct {
    lt_learner learner;
    int32_t ids[64][16];
    float logp[64][16];
} scripted;

static lt_err answer_by_seed(void *of, const lt_rollout_args *asked, lt_answer *answers,
                             lt_rollout_stats *stats) {
    scripted *s = of;
    (void)stats;
    assert_true(asked->n * asked->group <= 64);
    for (int64_t i = 0; i < asked->n * asked->group; i++) {
        lt_rng rng = {.seed = asked->questions[i / asked->group].seed,
                      .stream = (uint64_t)(i % asked->group)};
        const int64_t n = 2 + (int64_t)(lt_rng_u64(&rng) % 13);
        for (int64_t k = 0; k < n; k++) {
            s->ids[i][k] = 3 + (int32_t)(lt_rng_u64(&rng) % 200);
            s->logp[i][k] = -5.0f;
        }
        answers[i] = (lt_answer){.ids = s->ids[i], .logp = s->logp[i], .n = n, .ended = n % 2 == 0};
    }
    return LT_OK;
}

static lt_objective reinforce(void *state, const lt_recipe *r) {
    scripted *s = state;
    (void)r;
    s->learner.answerer = (lt_answerer){s, answer_by_seed};
    return lt_learner_objective(&s->learner);
}

/* A learner whose answers the engine draws. */
static lt_objective draw(void *state, const lt_recipe *r) {
    (void)r;
    return lt_learner_objective(state);
}

static const ranks_objective preferences = {sizeof(lt_preference_objective), prefer},
                             distillation = {sizeof(lt_distill), distill},
                             reinforcement = {sizeof(scripted), reinforce},
                             drawing = {sizeof(lt_learner), draw};

/* ---- Runs ---- */

#define PAIRS  "tests/golden/preference/pairs.jsonl"
#define LABELS "tests/golden/preference/labels.jsonl"
#define CHAT   "tests/golden/sft/chat.jsonl"

/* The objective of a run, and its options. Validations have five examples, which ranks cannot
 * divide evenly. */
typedef struct {
    const ranks_objective *trains;
    const char *options;
} kind;

static const kind dpo = {&preferences, "objective.kind=dpo objective.beta=0.5 data.train=" PAIRS
                                       " data.valid=" PAIRS};
static const kind reward = {&preferences,
                            "objective.kind=reward data.train=" PAIRS " data.valid=" PAIRS};
static const kind kto = {&preferences, "objective.kind=kto objective.beta=0.5 data.train=" LABELS
                                       " data.valid=" LABELS};
static const kind distilled = {&distillation,
                               "objective.kind=distill distill.teacher=" TEACHER
                               " distill.beta=0.5 data.train=" CHAT " data.valid=" CHAT};
/* Half of the answers are from the student, drawn by the engine. */
static const kind drawn = {&distillation, "objective.kind=distill distill.teacher=" TEACHER
                                          " distill.beta=0.5 distill.on_policy=0.5 "
                                          "distill.tokens=8 data.train=" CHAT " data.valid=" CHAT};
static const kind grpo = {&reinforcement,
                          "objective.kind=grpo rl.group=4 rl.tokens=16 rl.passes=2 rl.kl=0.1 "
                          "rl.rewards=ended,length:-0.5 data.train=" CHAT};

/* The loss is a mean over tokens: that of grpo is 0 up to rounding if ratios are 1. */
static const kind dapo = {&reinforcement,
                          "objective.kind=dapo rl.group=4 rl.tokens=16 rl.passes=2 rl.kl=0.1 "
                          "rl.temperature=0.7 "
                          "rl.rewards=ended,length:-0.5 data.train=" CHAT};

/* Each rank knows the pass rates of all problems. */
static const kind taught = {&reinforcement,
                            "objective.kind=dapo rl.group=2 rl.tokens=16 rl.prefer=failed "
                            "rl.pass=0.6 rl.rewards=ended,length:-0.5 data.train=" CHAT};

/* Answers for the next step are drawn ahead in steps after which no checkpoint is due. */
#define STALE "rl.staleness=1 rl.correction=token-truncate checkpoint.every=4 data.train=" CHAT
static const kind stale = {&reinforcement, "objective.kind=dapo rl.tokens=16 rl.group=4 "
                                           "rl.rewards=ended,length:-0.5 " STALE},
                  resampled = {&reinforcement, "objective.kind=dapo rl.tokens=16 rl.group=2 "
                                               "rl.rewards=ended rl.resample=2 " STALE};

/* The reference is the model without its adapters. */
#define ADAPTED " lora.rank=4 lora.targets=all-linear"
static const kind
    adapted_drawn = {&distillation, "objective.kind=distill distill.teacher=" TEACHER
                                    " distill.beta=0.5 distill.on_policy=0.5 distill.tokens=8 "
                                    "data.train=" CHAT " data.valid=" CHAT ADAPTED},
    adapted_dpo = {&preferences, "objective.kind=dpo objective.beta=0.5 data.train=" PAIRS
                                 " data.valid=" PAIRS ADAPTED},
    adapted_dapo = {&reinforcement,
                    "objective.kind=dapo rl.group=4 rl.tokens=16 rl.passes=2 "
                    "rl.kl=0.1 rl.rewards=ended,length:-0.5 data.train=" CHAT ADAPTED},
    adapted_reward = {&preferences,
                      "objective.kind=reward data.train=" PAIRS " data.valid=" PAIRS ADAPTED};

/* The engine has the lengths of rows, which it gets separately from the other numbers of the
 * adapters. */
static const kind dora = {&drawing, "objective.kind=dapo rl.group=4 rl.tokens=8 rl.passes=2 "
                                    "rl.rewards=ended,length:-0.5 optim.lr=2e-4 data.train=" CHAT
                                    " lora.rank=4 lora.targets=q_proj,o_proj lora.dora=true"};
/* The model is kept as in its file: each rank has its part, and the engine the whole file. */
#define STORED " lora.base=as_stored"
static const kind stored_dpo = {&preferences,
                                "objective.kind=dpo objective.beta=0.5 data.train=" PAIRS
                                " data.valid=" PAIRS ADAPTED STORED},
                  stored_dapo = {
                      &drawing,
                      "objective.kind=dapo rl.group=4 rl.tokens=8 rl.passes=2 "
                      "rl.rewards=ended,length:-0.5 optim.lr=2e-4 data.train=" CHAT ADAPTED STORED};
#define MOST_MISMATCH 1 /* Index in the numbers of a step's record (learner.c). */

/* One rank computes each row separately; meshes share prompts if they can. */
#define ALONE " objective.share_prompts=false"

/* mesh: "", or a mesh and further options. Returns the loss of a validation: on one rank, and on
 * meshes whose ranks take part in each other's passes. */
static double run(ranks_result *result, const kind *k, const char *model, const char *mesh) {
    static int n_runs;
    char all[2048], out[32], axes[64];
    const char *more = strchr(mesh, ' ');
    const bool validates = mesh[0] == '\0' || strstr(mesh, "zero=3") != NULL ||
                           strstr(mesh, "ep=") != NULL;
    lt_mesh_shape s = {1, 1, 1, 1, 1};
    double loss = 0.0;
    (void)snprintf(out, sizeof out, "run%d", n_runs++);
    (void)snprintf(axes, sizeof axes, "%.*s",
                   (int)(more != NULL ? more - mesh : (long)strlen(mesh)), mesh);
    (void)snprintf(all, sizeof all,
                   "steps=10 model.vocab=0 model.layers=0 model.width=0 model.heads=0 "
                   "model.init=%s data.tokenizer=" MODEL " data.seq=64 sample.tokens=0 "
                   "optim.decay=0 optim.lr=1e-3 batch.size=8 eval.rows=5 %s%s%s",
                   model, k->options, more != NULL ? more : "",
                   mesh[0] == '\0' && k->trains != &distillation ? ALONE : "");
    must(axes[0] != '\0' ? lt_mesh_parse(&s, axes) : LT_OK, mesh);
    ranks_trained_for = k->trains;
    must(ranks_try(result, out, all, axes[0] != '\0' ? axes : NULL, s.pp * s.dp * s.cp * s.tp,
                   validates),
         all);
    if (validates && (k->trains == &preferences || k->trains == &distillation)) {
        json_t *rows = run_lines(out, "eval");
        assert_int_equal(json_array_size(rows), 1);
        loss = json_number_value(json_object_get(json_array_get(rows, 0), "loss"));
        json_decref(rows);
    }
    return loss;
}

/* The run on each mesh must equal that on one rank; the last mesh is NULL. */
static void compare(const kind *k, const char *model, const char *const *meshes) {
    ranks_result one = {0};
    const double validation = run(&one, k, model, "");
    for (; *meshes != NULL; meshes++) {
        ranks_result many = {0};
        char who[640];
        (void)snprintf(who, sizeof who, "%s, mesh %s", k->options, *meshes);
        const double loss = run(&many, k, model, *meshes);
        ranks_equal(&many, &one, &bound, who);
        if (loss != 0.0) {
            ranks_close(loss, validation, bound.loss, "validation", who);
        }
        ranks_result_free(&many);
    }
    ranks_result_free(&one);
}

static void zero_three(void **state) {
    static const char *const two[] = {"dp=2 mesh.zero=3", NULL},
                             *const four[] = {"dp=4 mesh.zero=3 mesh.shard=2 batch.micro=1", NULL};
    (void)state;
    compare(&dpo, MODEL, four);
    compare(&reward, MODEL, two);
    compare(&kto, MODEL, two);
    compare(&distilled, MODEL, two);
    compare(&grpo, MODEL, two);
    compare(&taught, MODEL, two);
}

/* A score head, pairs, single completions with sums over the whole step. */
static void compare_preferences(const char *first, const char *second) {
    compare(&dpo, MODEL, (const char *const[]){first, second, NULL});
    compare(&reward, MODEL, (const char *const[]){first, NULL});
    compare(&kto, MODEL, (const char *const[]){second, NULL});
}

static void tensors(void **state) {
    (void)state;
    compare_preferences("tp=2", "dp=2,tp=2 mesh.zero=3 batch.micro=2");
    compare(&dapo, MODEL, (const char *const[]){"tp=2", "dp=2,tp=2 mesh.zero=3", NULL});
    compare(&taught, MODEL, (const char *const[]){"tp=2 batch.micro=3", NULL});
    compare(&stale, MODEL, (const char *const[]){"dp=2,tp=2 mesh.zero=3", NULL});
    compare(&resampled, MODEL, (const char *const[]){"tp=2", NULL});
}

static void contexts(void **state) {
    (void)state;
    compare_preferences("cp=2", "cp=2,tp=2");
    compare(&distilled, MODEL, (const char *const[]){"dp=2,cp=2 mesh.zero=3", NULL});
    compare(&dapo, MODEL, (const char *const[]){"cp=2", "cp=2,tp=2", NULL});
    compare(&drawn, MODEL, (const char *const[]){"cp=2", "dp=2,cp=2 mesh.zero=3", NULL});
}

static void pipelines(void **state) {
    (void)state;
    compare_preferences("pp=2,tp=2", "pp=2,dp=2 mesh.zero=3 batch.micro=2");
    compare(&dpo, MODEL, (const char *const[]){"pp=2,cp=2 batch.micro=3", NULL});
    compare(&dapo, MODEL, (const char *const[]){"pp=2,tp=2", "pp=2,dp=2 mesh.zero=1", NULL});
    compare(&taught, MODEL, (const char *const[]){"pp=2 batch.micro=3", NULL});
    compare(&stale, MODEL, (const char *const[]){"pp=2,cp=2", NULL});
}

static void adapters(void **state) {
    static const char *const shared[] = {"dp=2,tp=2 mesh.zero=3 batch.micro=2", "pp=2,cp=2", NULL},
                             *const heads[] = {"dp=2,tp=2 mesh.zero=2", NULL};
    (void)state;
    compare(&adapted_dpo, MODEL, shared);
    compare(&adapted_reward, MODEL, heads);
    compare(&adapted_dapo, MODEL, shared);
    compare(&stored_dpo, MODEL, (const char *const[]){"pp=2,tp=2", NULL});
    compare(&stored_dapo, MODEL, (const char *const[]){"tp=2", "dp=2 mesh.zero=3", NULL});
}

/* Engine and trainer agree. In BF16, where lengths would be rounded unless they are sent in F32,
 * they agree as well as two ways of computing do. */
static void magnitudes_of_dora(void **state) {
    static const char *const meshes[] = {"tp=2", "pp=2", "dp=2 mesh.zero=3", NULL};
    (void)state;
    compare(&dora, MODEL, meshes);
    for (int i = 0; meshes[i] != NULL; i++) {
        ranks_result r = {0};
        char mesh[64];
        (void)snprintf(mesh, sizeof mesh, "%s model.dtype=bf16", meshes[i]);
        (void)run(&r, &dora, MODEL, mesh);
        assert_true(r.most[MOST_MISMATCH] > 0.0 && r.most[MOST_MISMATCH] < 0.05);
        ranks_result_free(&r);
    }
}

/* Write a model with experts, and return its folder. */
static void make_experts(char folder[LT_PATH_BYTES]) {
    lt_recipe *r = run_recipe("moe", "model.family=mixtral model.layers=2 model.width=32 "
                                     "model.heads=4 model.kv_heads=2 model.ffn=32 model.experts=4 "
                                     "model.top_k=2 model.aux_coef=0 model.vocab=320 data.seq=64");
    lt_model_spec spec;
    lt_model *m = NULL;
    must(lt_training_spec(&spec, r), "moe");
    must(lt_model_create(&m, &spec, NULL, 1), "moe");
    run_path(folder, "moe-model");
    must(lt_model_save(m, folder, LT_F32, 0), folder);
    lt_model_close(m);
    free(r);
}

/* Answers of the same length get different rewards, so that weights change. */
static void write_judge(char path[LT_PATH_BYTES]) {
    write_file("judge",
               "#!/bin/sh\nwhile read -r line; do\n    sum=$(printf %s \"$line\" | cksum)\n"
               "    echo \"{\\\"reward\\\": $((${sum%% *} % 7))}\"\ndone\n");
    run_path(path, "judge");
    assert_int_equal(chmod(path, 0700), 0);
}

/* Engine and trainer have the same bits: with `exact` the largest difference in a run is 0. */
static void agree(const char *model, const char *mesh, const char *more, bool exact) {
    char options[LT_PATH_BYTES + 512], judge[LT_PATH_BYTES];
    const kind k = {&drawing, options};
    ranks_result r = {0};
    write_judge(judge);
    (void)snprintf(options, sizeof options,
                   "objective.kind=dapo rl.group=4 rl.tokens=8 rl.rewards=command rl.command=%s "
                   "data.train=" CHAT "%s%s",
                   judge, more, exact ? " rl.exact=true" : "");
    (void)run(&r, &k, model, mesh);
    if ((r.most[MOST_MISMATCH] == 0.0) != exact) {
        fail_msg("%s, mesh %s: engine and trainer differ by %g", options, mesh,
                 r.most[MOST_MISMATCH]);
    }
    ranks_result_free(&r);
}

static void engine_and_trainer_have_the_same_bits(void **state) {
    char folder[LT_PATH_BYTES];
    (void)state;
    agree(MODEL, "cp=2 mesh.context=ring", "", true);
    agree(MODEL, "cp=2,tp=2 mesh.context=ulysses", "", true);
    agree(MODEL, "tp=2", ADAPTED, true);
    agree(MODEL, "cp=2", ADAPTED, true);
    agree(MODEL, "", ADAPTED STORED, true);
    make_experts(folder);
    agree(folder, "", "", false);
    agree(folder, "", "", true);
    agree(folder, "dp=2,tp=2,ep=2", "", true);
    agree(folder, "tp=2", ADAPTED, true);
    agree(folder, "dp=2,ep=2", ADAPTED, true);
    agree(folder, "dp=2,ep=2", ADAPTED STORED, true);
}

/* Ranks that divide experts send rows to each other. So all of them take part in each pass, and
 * one with short rows has memory for the rows of the others. */
static void experts(void **state) {
    char folder[LT_PATH_BYTES];
    (void)state;
    make_experts(folder);
    compare(&dpo, folder, (const char *const[]){"dp=2,ep=2", "dp=2,tp=2,ep=2", NULL});
    compare(&dapo, folder, (const char *const[]){"dp=2,ep=2", "dp=2,tp=2,ep=2", NULL});
    compare(&stale, folder, (const char *const[]){"dp=2,ep=2", NULL});
    compare(&distilled, folder, (const char *const[]){"dp=2,ep=2", NULL});
    compare(&drawn, folder, (const char *const[]){"cp=2,ep=2", "dp=4,ep=2 mesh.zero=3", NULL});
    compare(&adapted_dpo, folder, (const char *const[]){"dp=4,ep=2 mesh.zero=3", NULL});
    compare(&adapted_reward, folder, (const char *const[]){"dp=2,pp=2,ep=2", NULL});
    compare(&adapted_dapo, folder, (const char *const[]){"dp=2,tp=2,ep=2", NULL});
    compare(&stored_dpo, folder, (const char *const[]){"dp=2,ep=2", "dp=4,ep=2 mesh.zero=3", NULL});
    compare(&stored_dapo, folder, (const char *const[]){"dp=2,ep=2", "dp=2 mesh.zero=3", NULL});
    compare(&dora, folder, (const char *const[]){"dp=2,ep=2", NULL});
    compare(&adapted_drawn, folder, (const char *const[]){"dp=2,ep=2", NULL});
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(zero_three), cmocka_unit_test(tensors),
        cmocka_unit_test(contexts),   cmocka_unit_test(pipelines),
        cmocka_unit_test(adapters),   cmocka_unit_test(magnitudes_of_dora),
        cmocka_unit_test(experts),    cmocka_unit_test(engine_and_trainer_have_the_same_bits)};
    return cmocka_run_group_tests(tests, run_root_make, run_root_remove);
}
