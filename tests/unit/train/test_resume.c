/* Which options a resumed run may change, against a list written here, not read from the table. A
 * change of any other option is refused with its name, old and new value; with allow_change it is
 * accepted and recorded. Also data that changed between stop and resume. */
#include <fcntl.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "unit/train/run_folder.h"

/* Steps, rates and limits of a step, saving, inspection, and where and how the run is
 * computed. */
static const char *const may_change[] = {"rl.running",
                                         "rl.sandbox",
                                         "rl.test_parallel",
                                         "mesh",
                                         "mesh.context",
                                         "mesh.expert_room",
                                         "mesh.zero",
                                         "mesh.shard",
                                         "mesh.deadline",
                                         "mesh.schedule",
                                         "mesh.chunks",
                                         "mesh.stages",
                                         "diloco.site",
                                         "diloco.meet",
                                         "diloco.deadline",
                                         "diloco.keep",
                                         "out",
                                         "steps",
                                         "resume",
                                         "allow_change",
                                         "verify",
                                         "device",
                                         "threads",
                                         "page",
                                         "model.recompute",
                                         "objective.keep_logits",
                                         "objective.share_prompts",
                                         "data.valid",
                                         "data.prefetch",
                                         "batch.micro",
                                         "optim.lr",
                                         "optim.clip",
                                         "optim.muon_lr",
                                         "lr.schedule",
                                         "lr.warmup",
                                         "lr.warmup_from",
                                         "lr.min",
                                         "lr.cooldown",
                                         "lr.cooldown_shape",
                                         "guard.loss_z",
                                         "guard.grad_z",
                                         "guard.window",
                                         "guard.limit",
                                         "guard.replicas",
                                         "guard.replicas_parts",
                                         "guard.replay",
                                         "guard.slow",
                                         "guard.slow_s",
                                         "eval.every",
                                         "eval.rows",
                                         "checkpoint.every",
                                         "checkpoint.async",
                                         "data.cache",
                                         "data.cache_bytes",
                                         "checkpoint.mirror",
                                         "checkpoint.mirror_keep",
                                         "checkpoint.mirror_rate",
                                         "checkpoint.keep_last",
                                         "checkpoint.keep_every",
                                         "checkpoint.adapters",
                                         "trace_step",
                                         "stage",
                                         "layout",
                                         "log.every",
                                         "log.plain_every",
                                         "sample.every",
                                         "sample.prompt",
                                         "sample.tokens",
                                         "sample.temperature",
                                         "export",
                                         "metrics.listen",
                                         "log.tensorboard"};

/* The other options: the value of run "base", a different one, and the option that this one also
 * needs. */
static const struct {
    const char *name, *was, *now, *also;
} keeps[] = {
    {"seed", "1234", "7", ""},
    {"deterministic", "run", "mesh-invariant", "batch.size=8"},
    {"batch.groups", "8", "4", "deterministic=mesh-invariant batch.size=8"},
    {"model.family", "apertus", "qwen3", "model.act=silu model.gated=true"},
    {"model.layers", "1", "2", ""},
    {"model.width", "16", "32", "model.head_dim=8 model.ffn=64"},
    {"model.heads", "2", "4", "model.head_dim=8 model.kv_heads=2"},
    {"model.kv_heads", "2", "1", ""},
    {"model.head_dim", "8", "16", ""},
    {"model.ffn", "64", "32", ""},
    {"model.vocab", "64", "128", ""},
    {"model.act", "xielu", "silu", ""},
    {"model.gated", "false", "true", "model.family=qwen3 model.act=silu"},
    {"model.tied", "false", "true", ""},
    {"model.qk_norm", "true", "false", "model.family=llama model.act=silu model.gated=true"},
    {"model.rope_theta", "1.2e+07", "10000", ""},
    {"model.max_seq", "16", "32", ""},
    {"model.init_std", "0.02", "0.1", ""},
    {"model.experts", "0", "2", "model.family=mixtral model.act=silu model.gated=true"},
    {"model.dtype", "fp32", "bf16", ""},
    {"model.fp8", "none", "blockwise", ""},
    {"data.val_fraction", "0", "0.25", ""},
    {"data.seq", "16", "8", "model.max_seq=16"},
    {"data.packing", "stream", "best-fit", ""},
    {"data.shuffle", "rows", "none", ""},
    {"data.shuffle_rows", "0", "2", ""},
    {"data.mask_documents", "true", "false", ""},
    {"data.reset_positions", "true", "false", ""},
    {"data.mask_eod", "true", "false", ""},
    {"data.goldfish_k", "0", "5", "data.goldfish_h=3"},
    {"data.goldfish_h", "50", "3", "data.goldfish_k=5"},
    {"batch.size", "4", "6", ""},
    {"batch.ramp", "empty", "2@0", ""},
    {"optim.kind", "adamw", "lion", ""},
    {"optim.moments", "fp32", "bf16", ""},
    {"optim.beta1", "0.9", "0.8", ""},
    {"optim.beta2", "0.95", "0.99", ""},
    {"optim.eps", "1e-08", "1e-06", ""},
    {"optim.decay", "0.1", "0", ""},
    {"loss.z", "0", "0.0001", ""},
    {"deterministic", "run", "mesh-invariant", "batch.groups=4"},
};

/* Tested elsewhere: their change needs files, or another run than "base". */
static const char *const elsewhere[] = {"data.chat_template",
                                        "data.chat_turns",
                                        "data.bad_rows",
                                        "data.too_long",
                                        "distill.teacher",
                                        "distill.logprobs",
                                        "distill.valid_logprobs",
                                        "distill.beta",
                                        "distill.temperature",
                                        "distill.labels",
                                        "distill.rest",
                                        "distill.on_policy",
                                        "distill.tokens",
                                        "distill.sampling_temperature",
                                        "rl.reward_model",
                                        "rl.temperature",
                                        "lora.rank",
                                        "lora.alpha",
                                        "lora.scale",
                                        "lora.dora",
                                        "lora.dropout",
                                        "lora.targets",
                                        "lora.base",
                                        "lora.init",
                                        "data.train",
                                        "data.tokenizer",
                                        "model.init",
                                        "model.config",
                                        "model.top_k",
                                        "data.add_bos",
                                        "data.add_eod",
                                        "model.capacity",
                                        "model.aux_coef",
                                        "model.router_z_coef",
                                        "optim.beta3",
                                        "optim.alpha",
                                        "optim.mix_warmup",
                                        "optim.muon_momentum",
                                        "optim.muon_steps",
                                        "optim.muon_products",
                                        "model.fp8_wgrad",
                                        "batch.groups",
                                        "diloco.sites",
                                        "diloco.every",
                                        "diloco.fragments",
                                        "diloco.outer_lr",
                                        "diloco.outer_momentum",
                                        "diloco.bits",
                                        "diloco.overlap",
                                        "diloco.merge",
                                        "objective.kind",
                                        "objective.beta",
                                        "objective.smoothing",
                                        "objective.margin",
                                        "objective.center",
                                        "objective.good",
                                        "objective.bad",
                                        "objective.separator",
                                        "rl.group",
                                        "rl.tokens",
                                        "rl.rewards",
                                        "rl.command",
                                        "rl.command_limit",
                                        "rl.test_limit",
                                        "rl.test_memory",
                                        "rl.soft",
                                        "rl.updates",
                                        "rl.passes",
                                        "rl.resample",
                                        "rl.drop_cut",
                                        "rl.curriculum",
                                        "rl.curriculum_start",
                                        "rl.curriculum_steps",
                                        "rl.prefer",
                                        "rl.pass",
                                        "rl.advantage",
                                        "rl.reduction",
                                        "rl.clip_low",
                                        "rl.clip_high",
                                        "rl.dual",
                                        "rl.cap",
                                        "rl.kl",
                                        "rl.kl_kind",
                                        "rl.kl_ratio",
                                        "rl.correction",
                                        "rl.weight_low",
                                        "rl.weight_high",
                                        "rl.staleness",
                                        "rl.exact"};

#define LENGTH(a) (sizeof(a) / sizeof *(a))

static bool among(const char *const *names, size_t n, const char *name) {
    for (size_t i = 0; i < n; i++) {
        if (strcmp(names[i], name) == 0) {
            return true;
        }
    }
    return false;
}

/* A new option must be put into one of the lists here, so that its author decides. */
static void every_option_is_decided(void **state) {
    (void)state;
    for (size_t i = 0; i < lt_recipe_table.n_rows; i++) {
        const lt_option *row = &lt_recipe_table.rows[i];
        const bool may = among(may_change, LENGTH(may_change), row->name);
        bool kept = among(elsewhere, LENGTH(elsewhere), row->name);
        for (size_t k = 0; k < LENGTH(keeps); k++) {
            kept = kept || strcmp(keeps[k].name, row->name) == 0;
        }
        if (may == kept || may != ((row->flags & LT_RECIPE_MAY_CHANGE) != 0)) {
            fail_msg("%s: may change %d, is kept %d", row->name, may, kept);
        }
    }
}

static int base(void **state) {
    if (run_root_make(state) != 0) {
        return -1;
    }
    return run_train("base", "steps=2", NULL) == LT_OK ? 0 : -1;
}

/* Nothing in the run folder changes if a resume is refused. */
static void refused(const char *options, const char *message) {
    char path[LT_PATH_BYTES], *before = NULL, *after = NULL;
    size_t bytes;
    run_path(path, "base/recipe.yaml");
    must(lt_file_read(&before, &bytes, path, 1 << 20), path);
    if (run_train("base", options, NULL) != LT_ERR_STATE) {
        fail_msg("%s: %s", options, lt_error_message());
    }
    says(message);
    must(lt_file_read(&after, &bytes, path, 1 << 20), path);
    assert_string_equal(before, after);
    assert_false(run_has("base", "history"));
    free(before);
    free(after);
}

static void fields_by_name(void **state) {
    char options[256], message[256], allow[64];
    (void)state;
    for (size_t i = 0; i < LENGTH(keeps); i++) {
        (void)snprintf(options, sizeof options, "steps=4 %s=%s %s", keeps[i].name, keeps[i].now,
                       keeps[i].also);
        (void)snprintf(message, sizeof message, "%s was %s, now %s", keeps[i].name, keeps[i].was,
                       keeps[i].now);
        refused(options, message);
        (void)snprintf(allow, sizeof allow, "--allow-change ");
        says(allow);
    }
    refused("steps=4 seed=7 optim.beta1=0.5", "seed was 1234, now 7; optim.beta1 was 0.9, now 0.5");
    says("--allow-change seed,optim.beta1");
    refused("steps=4 seed=7 optim.beta1=0.5 allow_change=seed", "optim.beta1 was 0.9, now 0.5");
    assert_int_equal(run_train("base", "steps=4 allow_change=optim.beta4", NULL), LT_ERR_ARG);
    says("did you mean 'optim.beta");
}

/* A different spelling of the same value is not a change. */
static void same_recipe(void **state) {
    (void)state;
    must(run_train("same", "steps=2", NULL), "begins");
    must(
        run_train("same",
                  "steps=4 model.family=apertus model.kv_heads=2 model.head_dim=8 model.max_seq=16 "
                  "optim.beta1=9e-1 model.act=xielu optim.eps=0.00000001",
                  NULL),
        "sizes that were the defaults");
    run_holds("same", "2 4");
}

static void allowed_changes(void **state) {
    json_t *changes;
    char path[LT_PATH_BYTES], *text = NULL;
    size_t bytes;
    (void)state;
    must(run_train("allowed", "steps=2", NULL), "begins");
    must(run_train("allowed",
                   "steps=4 optim.beta1=0.8 optim.lr=1e-4 seed=7 allow_change=optim.beta1,seed",
                   NULL),
         "allowed");
    changes = run_lines("allowed", "change");
    assert_int_equal(json_array_size(changes), 4); /* seed, steps, lr, beta1. */
    for (size_t i = 0; i < 4; i++) {
        const json_t *c = json_array_get(changes, i);
        const char *name = json_string_value(json_object_get(c, "name"));
        const bool asked = strcmp(name, "seed") == 0 || strcmp(name, "optim.beta1") == 0;
        assert_int_equal(json_integer_value(json_object_get(c, "step")), 2);
        assert_int_equal(json_is_true(json_object_get(c, "allowed")), asked);
        if (strcmp(name, "optim.lr") == 0) {
            assert_string_equal(json_string_value(json_object_get(c, "from")), "0.0003");
            assert_string_equal(json_string_value(json_object_get(c, "to")), "0.0001");
        }
    }
    json_decref(changes);
    run_path(path, "allowed/history/recipe-000.yaml");
    must(lt_file_read(&text, &bytes, path, 1 << 20), path);
    assert_non_null(strstr(text, "# In force until step 2."));
    assert_non_null(strstr(text, "  beta1: 0.9\n"));
    free(text);
    run_path(path, "allowed/recipe.yaml");
    must(lt_file_read(&text, &bytes, path, 1 << 20), path);
    assert_non_null(strstr(text, "  beta1: 0.8\n"));
    assert_non_null(strstr(text, "allow_change: \"\"\n"));
    free(text);
    must(run_train("allowed", "steps=6 optim.beta1=0.8 seed=7", NULL), "then it is the recipe");
}

/* A run folder from the version before manifests kept the recipe: it only has recipe.yaml, with
 * sizes as they were given. */
static void a_folder_of_an_older_version(void **state) {
    static const char yaml[] =
        "seed: 1234\nsteps: 2\nmodel:\n  family: apertus\n  layers: 1\n  width: 16\n"
        "  heads: 2\n  kv_heads: 0\n  head_dim: 0\n  ffn: 0\n  vocab: 64\n"
        "  act: family\n  tied: family\n  rope_theta: 0\n  max_seq: 0\n"
        "data:\n  seq: 16\n  gone_option: 3\nbatch:\n  size: 4\noptim:\n"
        "  beta1: 0.9\n";
    char path[LT_PATH_BYTES], train[LT_PATH_BYTES + 64], *text;
    json_t *manifest = NULL;
    size_t bytes;
    (void)state;
    must(run_train("older", "steps=2", NULL), "begins");
    run_path(path, "older/checkpoints/step-000000002/manifest.json");
    must(lt_json_load(&manifest, path, 1 << 20), path);
    json_object_del(manifest, "recipe");
    json_object_del(manifest, "data");
    json_object_del(manifest, "good");
    text = json_dumps(manifest, 0);
    must(lt_file_write_atomic(path, text, strlen(text)), path);
    free(text);
    json_decref(manifest);
    run_path(path, "shard.bin");
    (void)snprintf(train, sizeof train, "%s  train: %s\n", "data:\n", path);
    text = malloc(sizeof yaml + sizeof train);
    assert_non_null(text);
    (void)snprintf(text, sizeof yaml + sizeof train, "%.*s  train: %s\n%s",
                   (int)(strstr(yaml, "batch:") - yaml), yaml, path, strstr(yaml, "batch:"));
    run_path(path, "older/recipe.yaml");
    must(lt_file_write_atomic(path, text, strlen(text)), path);
    free(text);
    assert_int_equal(run_train("older", "steps=4 optim.beta1=0.5", NULL), LT_ERR_STATE);
    says("optim.beta1 was 0.9, now 0.5");
    assert_int_equal(run_train("older", "steps=4 model.ffn=32", NULL), LT_ERR_STATE);
    says("model.ffn was 64, now 32");
    text = NULL;
    must(lt_file_read(&text, &bytes, path, 1 << 20), path);
    must(lt_file_write_atomic(path, "a: [1\n", 6), path); /* It is unreadable, and not ignored. */
    assert_int_equal(run_train("older", "steps=4", NULL), LT_ERR_STATE);
    says("the recipe of ");
    must(lt_file_write_atomic(path, text, bytes), path);
    free(text);
    must(run_train("older", "steps=4", NULL), "goes on");
    run_holds("older", "2 4");
}

/* ---- Data ---- */

static void touch(const char *name, int64_t seconds_ago) {
    char path[LT_PATH_BYTES];
    struct timespec times[2];
    run_path(path, name);
    times[0] = times[1] = (struct timespec){.tv_sec = time(NULL) - seconds_ago};
    assert_int_equal(utimensat(AT_FDCWD, path, times, 0), 0);
}

static void train_on(const char *out, const char *shard, const char *more, lt_err want) {
    char path[LT_PATH_BYTES], options[LT_PATH_BYTES + 256];
    run_path(path, shard);
    (void)snprintf(options, sizeof options, "data.train=%s %s", path, more);
    if (run_train(out, options, NULL) != want) {
        fail_msg("%s: %s", options, lt_error_message());
    }
}

static void content_of_data(void **state) {
    (void)state;
    run_shard("mine.bin", RUN_TOKENS, 0);
    train_on("data", "mine.bin", "steps=2", LT_OK);
    touch("mine.bin", 5000); /* Another time, the same bytes. */
    train_on("data", "mine.bin", "steps=4", LT_OK);
    train_on("data", "shard.bin", "steps=6", LT_OK); /* Another place, the same bytes. */
    /* The same number of tokens, but different ones. */
    run_shard("mine.bin", RUN_TOKENS, 1);
    train_on("data", "mine.bin", "steps=8", LT_ERR_STATE);
    says("data.train: ");
    says("mine.bin has changed since the checkpoint: the checksum of 9024 of its 9024 bytes was");
    says("--allow-change data.train");
    run_shard("mine.bin", RUN_TOKENS + 100, 0);
    train_on("data", "mine.bin", "steps=8", LT_ERR_STATE);
    says("mine.bin has changed since the checkpoint: it had 9024 bytes, now 9224");
    run_holds("data", "4 6");
    train_on("data", "mine.bin", "steps=8 allow_change=data.train", LT_OK);
    run_holds("data", "6 8");
    run_shard("mine.bin", RUN_TOKENS + 100, 0);
    train_on("data", "mine.bin", "steps=9", LT_OK);
}

/* A shard that appears under the pattern; a mask that appears beside a shard, and one that
 * changes. */
static void files_that_appear(void **state) {
    char path[LT_PATH_BYTES];
    static unsigned char mask[RUN_TOKENS];
    (void)state;
    memset(mask, 1, sizeof mask);
    run_shard("part-0.bin", RUN_TOKENS, 0);
    train_on("parts", "part-*.bin", "steps=2", LT_OK);
    run_shard("part-1.bin", RUN_TOKENS, 3);
    train_on("parts", "part-*.bin", "steps=4", LT_ERR_STATE);
    says("source 1 had 1 files at the checkpoint, now 2; new: part-1.bin");
    run_path(path, "part-1.bin");
    assert_int_equal(unlink(path), 0);
    run_path(path, "part-0.mask");
    must(lt_file_write_atomic(path, mask, sizeof mask), path);
    train_on("parts", "part-*.bin", "steps=4", LT_ERR_STATE);
    says("new: part-0.mask");
    train_on("masked", "part-0.bin", "steps=2", LT_OK);
    mask[2000] = 0;
    must(lt_file_write_atomic(path, mask, sizeof mask), path);
    train_on("masked", "part-0.bin", "steps=4", LT_ERR_STATE);
    says("part-0.mask has changed");
}

static void validation_data(void **state) {
    char path[LT_PATH_BYTES], options[2 * LT_PATH_BYTES];
    (void)state;
    run_shard("valid.bin", 400, 5);
    run_path(path, "valid.bin");
    (void)snprintf(options, sizeof options, "steps=2 data.valid=%s", path);
    must(run_train("valid", options, NULL), "begins");
    run_shard("valid.bin", 400, 6);
    (void)snprintf(options, sizeof options, "steps=4 data.valid=%s", path);
    assert_int_equal(run_train("valid", options, NULL), LT_ERR_STATE);
    says("data.valid: ");
    says("valid.bin has changed");
    run_shard("other.bin", 400, 6);
    run_path(path, "other.bin");
    (void)snprintf(options, sizeof options, "steps=4 data.valid=%s", path);
    must(run_train("valid", options, NULL), "other validation data by another name is a choice");
}

/* The same vocabulary under another name, then another one under the same name. */
static void tokenizer_content(void **state) {
    static const char *const names[] = {"tok.bin", "tok2.bin"};
    char path[LT_PATH_BYTES], options[LT_PATH_BYTES + 128], *text;
    size_t bytes;
    (void)state;
    must(lt_file_read(&text, &bytes, "tests/golden/stories260k/tok512.bin", 1 << 20), "tok512.bin");
    for (int i = 0; i < 2; i++) {
        run_path(path, names[i]);
        must(lt_file_write_atomic(path, text, bytes), path);
        (void)snprintf(options, sizeof options, "steps=%d model.vocab=512 data.tokenizer=%s",
                       2 * i + 2, path);
        must(run_train("tok", options, NULL), path);
    }
    text[bytes - 1] ^= 1; /* A letter of the last piece. */
    must(lt_file_write_atomic(path, text, bytes), path);
    (void)snprintf(options, sizeof options, "steps=6 model.vocab=512 data.tokenizer=%s", path);
    assert_int_equal(run_train("tok", options, NULL), LT_ERR_STATE);
    says("data.tokenizer: ");
    says("tok2.bin has changed since the checkpoint: its checksum was ");
    says("--allow-change data.tokenizer");
    run_holds("tok", "2 4");
    strcat(options, " allow_change=data.tokenizer");
    must(run_train("tok", options, NULL), "allowed");
    run_holds("tok", "4 6");
    free(text);
}

static void mixture_weights(void **state) {
    char a[LT_PATH_BYTES], options[3 * LT_PATH_BYTES];
    (void)state;
    run_path(a, "shard.bin");
    run_shard("second.bin", RUN_TOKENS, 9);
    (void)snprintf(options, sizeof options, "steps=2 data.train=%s:1,%s/second.bin:2", a, run_root);
    must(run_train("mix", options, NULL), "begins");
    (void)snprintf(options, sizeof options, "steps=4 data.train=%s:1,%s/second.bin:3", a, run_root);
    assert_int_equal(run_train("mix", options, NULL), LT_ERR_STATE);
    says("data.train was ");
    (void)snprintf(options, sizeof options, "steps=4 data.train=%s,%s/second.bin:2.0", a, run_root);
    must(run_train("mix", options, NULL), "the same shares");
}

/* ---- Which checkpoint ---- */

/* Back to an older checkpoint of the same run; the same command again resumes where it was,
 * another one goes back again. */
static void resuming_from_a_named_checkpoint(void **state) {
    char path[LT_PATH_BYTES], options[LT_PATH_BYTES + 128];
    json_t *lines;
    (void)state;
    must(run_train("branch", "steps=12 checkpoint.every=4 checkpoint.keep_last=9", NULL), "begins");
    run_path(path, "branch/checkpoints/step-000000004");
    (void)snprintf(options, sizeof options,
                   "steps=8 checkpoint.every=4 checkpoint.keep_last=2 optim.lr=1e-4 resume=%s",
                   path);
    must(run_train("branch", options, NULL), "back to 4");
    run_holds("branch", "4 8");
    assert_true(run_has("branch", "checkpoints/step-000000008.left"));
    assert_true(run_has("branch", "checkpoints/step-000000012.left"));
    assert_true(run_has("branch", "history/metrics-000.jsonl"));
    must(run_train("branch", options, NULL), "the same command again");
    run_holds("branch", "4 8");
    assert_false(run_has("branch", "checkpoints/step-000000008.left2"));
    lines = run_lines("branch", "start");
    assert_int_equal(json_integer_value(json_object_get(
                         json_array_get(lines, json_array_size(lines) - 1), "step")),
                     8);
    json_decref(lines);
    (void)snprintf(options, sizeof options,
                   "steps=8 checkpoint.every=4 checkpoint.keep_last=2 optim.lr=1e-5 resume=%s",
                   path);
    must(run_train("branch", options, NULL), "another rate: back again");
    assert_true(run_has("branch", "checkpoints/step-000000008.left2"));
    run_holds("branch", "4 8");
}

/* A broken newest checkpoint does not count when old ones are removed. */
static void broken_newest(void **state) {
    char path[LT_PATH_BYTES];
    (void)state;
    must(run_train("broken", "steps=10 checkpoint.every=5 checkpoint.keep_last=9", NULL), "begins");
    run_path(path, "broken/checkpoints/step-000000010/m.safetensors");
    assert_int_equal(truncate(path, 100), 0);
    must(run_train("broken", "steps=9 checkpoint.every=2 checkpoint.keep_last=1", NULL), "goes on");
    run_holds("broken", "9");
    assert_true(run_has("broken", "checkpoints/step-000000010.broken"));
}

/* Every file of a run folder with its checksum, except for what each attempt appends to: the log,
 * and the lease. free() it. */
static char *contents(const char *out) {
    char path[LT_PATH_BYTES], command[LT_PATH_BYTES + 256], *text = calloc(1, 1 << 16);
    FILE *from;
    run_path(path, out);
    (void)snprintf(
        command, sizeof command,
        "cd '%s' && find . -path ./lease -prune -o ! -name log.txt ! -name .lock -print | "
        "sort && find checkpoints *.json* -type f | sort | xargs cksum",
        path);
    from = popen(command, "r");
    assert_true(text != NULL && from != NULL);
    assert_true(fread(text, 1, (1 << 16) - 1, from) > 100);
    assert_int_equal(pclose(from), 0);
    return text;
}

static void refused_without_trace(const char *out, const char *options, const char *why) {
    char *before = contents(out), *after;
    assert_int_equal(run_train(out, options, NULL), LT_ERR_STATE);
    says(why);
    after = contents(out);
    assert_string_equal(after, before);
    free(before);
    free(after);
}

/* A start that is refused changes nothing: a broken checkpoint keeps its name, those after a
 * divergence keep theirs, and so do files left by a crash. The next start renames or removes
 * them. */
static void refused_starts(void **state) {
    static const char note[] = "{\"step\": 8, \"why\": \"a test\", \"go_on_from\": 4}";
    char path[LT_PATH_BYTES];
    (void)state;
    must(run_train("refused", "steps=8 checkpoint.every=2 checkpoint.keep_last=9", NULL), "begins");
    run_holds("refused", "2 4 6 8");
    run_path(path, "refused/checkpoints/step-000000008/m.safetensors");
    assert_int_equal(truncate(path, 100), 0);
    run_path(path, "refused/checkpoints/step-000000009.tmp");
    assert_int_equal(mkdir(path, 0700), 0);
    refused_without_trace("refused", "steps=9 optim.beta1=0.8", "optim.beta1 was 0.9, now 0.8");

    /* The valid one before it is compared. */
    must(run_train("refused", "steps=7 checkpoint.every=9 checkpoint.keep_last=9", NULL),
         "goes on");
    run_holds("refused", "2 4 6 7");
    assert_true(run_has("refused", "checkpoints/step-000000008.broken"));
    assert_false(run_has("refused", "checkpoints/step-000000009.tmp"));

    run_path(path, "refused/diverged.json");
    must(lt_file_write_atomic(path, note, strlen(note)), path);
    refused_without_trace("refused", "steps=9 optim.beta1=0.8", "optim.beta1 was 0.9, now 0.8");
    run_path(path, "refused/checkpoints/step-000000004/m.safetensors");
    assert_int_equal(truncate(path, 100), 0);
    refused_without_trace("refused", "steps=9 optim.beta1=0.8", "optim.beta1 was 0.9, now 0.8");
    must(run_train("refused", "steps=5 checkpoint.every=9 checkpoint.keep_last=9", NULL), "back");
    run_holds("refused", "2 5");
    assert_true(run_has("refused", "checkpoints/step-000000004.broken"));
    assert_true(run_has("refused", "checkpoints/step-000000006.left"));
    assert_true(run_has("refused", "checkpoints/step-000000007.left"));
    assert_false(run_has("refused", "diverged.json"));
}

static json_t *manifest_of(const char *out, int step) {
    char path[LT_PATH_BYTES], name[256];
    json_t *manifest = NULL;
    (void)snprintf(name, sizeof name, "%s/checkpoints/step-%09d/manifest.json", out, step);
    run_path(path, name);
    must(lt_json_load(&manifest, path, 1 << 20), path);
    return manifest;
}

/* The newest one is broken: the one before it is compared with the recipe of its own time. If
 * even the manifest cannot be read, it is skipped, too. */
static void broken_manifest(void **state) {
    char path[LT_PATH_BYTES];
    json_t *manifest;
    (void)state;
    must(run_train("cut", "steps=2 checkpoint.keep_last=9", NULL), "begins");
    must(run_train("cut", "steps=4 optim.beta1=0.8 allow_change=optim.beta1", NULL), "changed");
    run_path(path, "cut/checkpoints/step-000000004/m.safetensors");
    assert_int_equal(truncate(path, 100), 0);
    assert_int_equal(run_train("cut", "steps=6 optim.beta1=0.8", NULL), LT_ERR_STATE);
    says("optim.beta1 was 0.9, now 0.8");
    must(run_train("cut", "steps=3", NULL), "the older one's recipe");
    run_path(path, "cut/checkpoints/step-000000003/manifest.json");
    assert_int_equal(truncate(path, 100), 0);
    must(run_train("cut", "steps=3", NULL), "from the older one");
    run_holds("cut", "2 3");
    manifest = manifest_of("cut", 3);
    assert_null(json_object_get(manifest, "outer_step")); /* There are no sites. */
    json_decref(manifest);
}

/* The best loss, and the spread of losses, are kept; after an allowed change they begin again. */
static void the_guard_after_a_change_of_data(void **state) {
    static const char *const options[] = {"steps=3", "steps=4 seed=7 allow_change=seed"};
    (void)state;
    must(run_train("guard", "steps=2", NULL), "begins");
    for (int i = 0; i < 2; i++) {
        char path[LT_PATH_BYTES], name[64];
        json_t *manifest = manifest_of("guard", 2 + i), *guard = json_object_get(manifest, "guard");
        json_object_set_new(guard, "best", json_real(0.25));
        json_object_set_new(guard, "spread", json_real(50.0));
        (void)snprintf(name, sizeof name, "guard/checkpoints/step-%09d/manifest.json", 2 + i);
        run_path(path, name);
        assert_int_equal(json_dump_file(manifest, path, 0), 0);
        json_decref(manifest);
        must(run_train("guard", options[i], NULL), options[i]);
        manifest = manifest_of("guard", 3 + i);
        guard = json_object_get(manifest, "guard");
        const double best = json_real_value(json_object_get(guard, "best"));
        assert_true(i == 0 ? best == 0.25 : best > 1.0);
        assert_true(json_real_value(json_object_get(guard, "spread")) == (i == 0 ? 50.0 : 0.0));
        json_decref(manifest);
    }
}

/* A checkpoint's folder used as a model; a broken one and one of adapters are refused. */
static void a_checkpoint_as_a_model(void **state) {
    char path[LT_PATH_BYTES], file[LT_PATH_BYTES];
    lt_model *m = NULL;
    json_t *manifest;
    (void)state;
    must(run_train("model", "steps=2", NULL), "begins");
    run_path(path, "model");
    assert_false(lt_checkpoint_is(path));
    run_path(path, "model/checkpoints/step-000000002");
    assert_true(lt_checkpoint_is(path));
    must(lt_checkpoint_open_model(&m, path), path);
    lt_model_close(m);
    m = NULL;
    manifest = manifest_of("model", 2);
    json_object_set_new(json_object_get(manifest, "recipe"), "lora.rank", json_string("4"));
    run_path(file, "model/checkpoints/step-000000002/manifest.json");
    assert_int_equal(json_dump_file(manifest, file, 0), 0);
    assert_int_equal(lt_checkpoint_open_model(&m, path), LT_ERR_UNSUPPORTED);
    says("holds adapters, not a model");
    json_object_set_new(manifest, "version", json_integer(99));
    assert_int_equal(json_dump_file(manifest, file, 0), 0);
    assert_false(lt_checkpoint_is(path));
    assert_int_not_equal(lt_checkpoint_open_model(&m, path), LT_OK);
    says("version 99");
    assert_null(m);
    json_decref(manifest);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_option_is_decided),
                                       cmocka_unit_test(fields_by_name),
                                       cmocka_unit_test(same_recipe),
                                       cmocka_unit_test(allowed_changes),
                                       cmocka_unit_test(a_folder_of_an_older_version),
                                       cmocka_unit_test(content_of_data),
                                       cmocka_unit_test(files_that_appear),
                                       cmocka_unit_test(validation_data),
                                       cmocka_unit_test(tokenizer_content),
                                       cmocka_unit_test(mixture_weights),
                                       cmocka_unit_test(resuming_from_a_named_checkpoint),
                                       cmocka_unit_test(broken_newest),
                                       cmocka_unit_test(refused_starts),
                                       cmocka_unit_test(broken_manifest),
                                       cmocka_unit_test(the_guard_after_a_change_of_data),
                                       cmocka_unit_test(a_checkpoint_as_a_model)};
    return cmocka_run_group_tests(tests, base, run_root_remove);
}
