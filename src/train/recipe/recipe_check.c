/* recipe_check.c: options that contradict each other, numbers that F32 cannot represent, and
 * options that have no effect together with the others. */
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "train/chat_data.h"
#include "train/recipe/recipe.h"

static lt_err check_ramp(const lt_recipe *r) {
    const char *p = r->ramp;
    int64_t size;
    uint64_t from, last = 0;
    bool ok, first = true;
    while (lt_recipe_next_ramp(&p, &size, &from, &ok)) {
        if (first && from != 0) {
            LT_FAIL(LT_ERR_ARG, "batch.ramp '%s' must begin at row 0, as in 8@0,16@20000", r->ramp);
        }
        if (!first && from <= last) {
            LT_FAIL(LT_ERR_ARG, "batch.ramp '%s': row %llu does not come after row %llu", r->ramp,
                    (unsigned long long)from, (unsigned long long)last);
        }
        last = from;
        first = false;
    }
    if (!ok) {
        LT_FAIL(LT_ERR_ARG,
                "batch.ramp '%s' is not SIZE@ROWS,SIZE@ROWS,... with sizes from 1 to %d", r->ramp,
                LT_RECIPE_BATCH_MAX);
    }
    return LT_OK;
}

/* The positive multiple of `each` that is nearest to n; of two at the same distance, the larger. */
static long long nearest_multiple(int64_t n, int64_t each) {
    const int64_t below = n / each * each, above = below + each;
    return below > 0 && n - below < above - n ? below : above;
}

static lt_err check_shares(const lt_recipe *r, const lt_mesh_shape *s) {
    const int64_t plane = (int64_t)s->dp * s->cp;
    if (r->deterministic != 0 && r->groups % s->dp != 0) {
        LT_FAIL(LT_ERR_ARG,
                "deterministic = mesh-invariant: batch.groups = %lld cannot be divided by dp=%d; "
                "%lld can",
                (long long)r->groups, s->dp, nearest_multiple(r->groups, s->dp));
    }
    if (r->zero > 0 && r->shard > 0 && plane % r->shard != 0) {
        LT_FAIL(LT_ERR_ARG,
                "mesh.shard = %lld does not divide the %lld ranks of dp x cp; mesh.shard = %lld "
                "does",
                (long long)r->shard, (long long)plane, (long long)lt_mesh_divisor(plane, r->shard));
    }
    return LT_OK;
}

lt_err lt_recipe_divides(const lt_recipe *r, const lt_mesh_shape *s) {
    const int64_t dp = s->dp * r->sites, pieces = 2 * (int64_t)s->cp;
    const char *p = r->ramp;
    int64_t size;
    uint64_t from;
    bool ok;
    if (r->batch % dp != 0) {
        LT_FAIL(LT_ERR_ARG, "batch.size = %lld rows cannot be divided by %lld ranks; %lld rows can",
                (long long)r->batch, (long long)dp, nearest_multiple(r->batch, dp));
    }
    if (r->seq % pieces != 0) {
        LT_FAIL(LT_ERR_ARG,
                "data.seq = %lld tokens cannot be divided into %lld pieces, two for each of cp=%d "
                "ranks; %lld tokens can",
                (long long)r->seq, (long long)pieces, s->cp, nearest_multiple(r->seq, pieces));
    }
    while (lt_recipe_next_ramp(&p, &size, &from, &ok)) {
        if (size % dp != 0) {
            LT_FAIL(LT_ERR_ARG,
                    "batch.ramp '%s': %lld rows cannot be divided by %lld ranks; %lld rows can",
                    r->ramp, (long long)size, (long long)dp, nearest_multiple(size, dp));
        }
    }
    return check_shares(r, s);
}

static lt_err check_schedule(const lt_recipe *r) {
    if (r->warmup > r->steps && r->steps > 0) {
        LT_FAIL(LT_ERR_ARG, "lr.warmup = %lld steps is longer than the run of %lld steps",
                (long long)r->warmup, (long long)r->steps);
    }
    if (r->lr_kind == LT_LR_WSD && r->warmup + r->cooldown > r->steps && r->steps > 0) {
        LT_FAIL(LT_ERR_ARG,
                "lr.warmup = %lld and lr.cooldown = %lld together are longer than steps = %lld",
                (long long)r->warmup, (long long)r->cooldown, (long long)r->steps);
    }
    return LT_OK;
}

/* The kernels compute in F32, where a value that rounds to 1 or 0 would cause a division by
 * zero. */
static lt_err check_rounding(const lt_recipe *r) {
    const struct {
        const char *name;
        double value;
    } decays[] = {{"optim.beta1", r->beta1},
                  {"optim.beta2", r->beta2},
                  {"optim.beta3", r->beta3},
                  {"optim.muon_momentum", r->muon_momentum}};
    for (size_t i = 0; i < sizeof decays / sizeof *decays; i++) {
        if ((float)decays[i].value >= 1.0f) {
            LT_FAIL(LT_ERR_ARG, "%s = %.12g is 1 in F32: it must be below 1, 0.9999999 at most",
                    decays[i].name, decays[i].value);
        }
    }
    if ((float)r->eps < FLT_MIN) {
        LT_FAIL(LT_ERR_ARG, "optim.eps = %g is too small for F32: %g at least", r->eps,
                (double)FLT_MIN);
    }
    return LT_OK;
}

/* -1 means that another option gives the value; other negative numbers are invalid. */
static lt_err check_own_values(const lt_recipe *r) {
    const struct {
        const char *name;
        double value;
        const char *whose;
    } values[] = {{"model.capacity", r->capacity, "the family's"},
                  {"model.aux_coef", r->aux_coef, "the family's"},
                  {"model.router_z_coef", r->router_z_coef, "the family's"},
                  {"lora.dropout", r->lora_dropout, "that of lora.init"},
                  {"rl.clip_low", r->rl_clip_low, "the method's"},
                  {"rl.clip_high", r->rl_clip_high, "the method's"},
                  {"rl.cap", r->rl_cap, "the method's"}};
    for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
        if (values[i].value < 0.0 && values[i].value != -1.0) {
            LT_FAIL(LT_ERR_ARG, "%s = %g is neither -1 (%s) nor 0 or more", values[i].name,
                    values[i].value, values[i].whose);
        }
    }
    return LT_OK;
}

static lt_err check_model(const lt_recipe *r) {
    const bool from_file = r->init[0] != '\0' || r->config[0] != '\0';
    const int64_t width = lt_recipe_width(r), heads = lt_recipe_heads(r);

    if (r->init[0] != '\0' && r->config[0] != '\0') {
        LT_FAIL(
            LT_ERR_ARG,
            "model.init = %s and model.config = %s are both given: weights bring their own shape",
            r->init, r->config);
    }
    if (!from_file && r->head_dim == 0 && width % heads != 0) {
        LT_FAIL(
            LT_ERR_ARG,
            "model.width = %lld is not a multiple of model.heads = %lld: choose another, or give "
            "model.head_dim",
            (long long)width, (long long)heads);
    }
    if (r->rope_theta > 0.0 && r->rope_theta < 1.0) {
        LT_FAIL(LT_ERR_ARG, "model.rope_theta = %g is neither 0 (the family's) nor 1 or more",
                r->rope_theta);
    }
    if (r->fp8_wgrad && r->fp8 == LT_FP8_NONE) {
        LT_FAIL(LT_ERR_ARG, "model.fp8_wgrad = true, but model.fp8 = none: choose how to scale");
    }
    if (r->max_seq > 0 && r->max_seq < r->seq) {
        LT_FAIL(LT_ERR_ARG, "data.seq = %lld is longer than model.max_seq = %lld",
                (long long)r->seq, (long long)r->max_seq);
    }
    return LT_OK;
}

static lt_err check_sites(const lt_recipe *r) {
    if (r->site >= r->sites) {
        LT_FAIL(LT_ERR_ARG, "diloco.site = %lld of diloco.sites = %lld: they count from 0",
                (long long)r->site, (long long)r->sites);
    }
    if (r->every % r->fragments != 0) {
        LT_FAIL(LT_ERR_ARG, "diloco.fragments = %lld does not divide diloco.every = %lld",
                (long long)r->fragments, (long long)r->every);
    }
    if (r->overlap >= r->every) {
        LT_FAIL(LT_ERR_ARG,
                "diloco.overlap = %lld: a round ends before the next one of the same parameters "
                "begins, so it is less than diloco.every = %lld",
                (long long)r->overlap, (long long)r->every);
    }
    if (r->sites > 1 && r->deterministic != 0) {
        LT_FAIL(LT_ERR_UNSUPPORTED,
                "diloco.sites = %lld with deterministic = mesh-invariant: rounds are made of a "
                "mesh's parts",
                (long long)r->sites);
    }
    if (r->sites > 1 && r->objective != LT_RECIPE_OBJECTIVE_sft) {
        LT_FAIL(LT_ERR_UNSUPPORTED,
                "diloco.sites = %lld: objective.kind other than sft does not train at several "
                "sites yet",
                (long long)r->sites);
    }
    return LT_OK;
}

lt_err lt_recipe_check(const lt_recipe *r) {
    LT_TRY(check_sites(r));
    LT_TRY(check_ramp(r));
    LT_TRY(check_schedule(r));
    LT_TRY(check_rounding(r));
    LT_TRY(check_own_values(r));
    LT_TRY(check_model(r));
    if (r->micro > r->batch) {
        LT_FAIL(LT_ERR_ARG, "batch.micro = %lld is larger than batch.size = %lld",
                (long long)r->micro, (long long)r->batch);
    }
    if (r->valid[0] != '\0' && r->val_fraction > 0.0) {
        LT_FAIL(LT_ERR_ARG, "data.valid = %s and data.val_fraction = %g are both given: choose one",
                r->valid, r->val_fraction);
    }
    if (r->moments != 0 && r->optim != LT_OPTIM_ADAMW && r->optim != LT_OPTIM_ADEMAMIX) {
        LT_FAIL(LT_ERR_ARG, "optim.moments = bf16 is for adamw and ademamix, optim.kind is %s",
                r->optim == LT_OPTIM_MUON ? "muon" : "lion");
    }
    if (r->goldfish_k == 1) {
        LT_FAIL(LT_ERR_ARG,
                "data.goldfish_k = 1 drops every label: it drops one in k, so take 2 or more");
    }
    if (r->goldfish_k > 0 && r->goldfish_h > r->seq) {
        LT_FAIL(
            LT_ERR_ARG,
            "data.goldfish_h = %lld labels do not fit into rows of data.seq = %lld: no label would "
            "be dropped",
            (long long)r->goldfish_h, (long long)r->seq);
    }
    if (r->verify && r->cache[0] != '\0') {
        LT_FAIL(LT_ERR_ARG,
                "verify reads all data at the start, and data.cache = %s fetches it as "
                "it is read: choose one",
                r->cache);
    }
    return LT_OK;
}

/* ---- Options without effect ---- */

typedef struct {
    const char *name;
    bool used;
    const char *needs;
} use;

/* What the option of this name lacks; NULL: it has an effect. */
static const char *unmet(const use *uses, size_t n, const char *name) {
    for (size_t i = 0; i < n; i++) {
        if (strcmp(uses[i].name, name) == 0 && !uses[i].used) {
            return uses[i].needs;
        }
    }
    return NULL;
}

/* The same for the options of reinforcement learning. */
static const char *rl_idle(const lt_recipe *r, const lt_option *row) {
    const bool cispo = r->objective == LT_RECIPE_OBJECTIVE_cispo;
    const bool tests = strstr(r->rl_rewards, "unit_tests") != NULL;
    const use uses[] = {
        {"rl.command_limit", r->rl_command[0] != '\0', "rl.command"},
        {"rl.sandbox", tests, "a reward unit_tests"},
        {"rl.test_limit", tests, "a reward unit_tests"},
        {"rl.test_memory", tests, "a reward unit_tests"},
        {"rl.test_parallel", tests, "a reward unit_tests"},
        {"rl.curriculum_start", r->rl_curriculum[0] != '\0', "rl.curriculum"},
        {"rl.curriculum_steps", r->rl_curriculum[0] != '\0', "rl.curriculum"},
        {"rl.pass", r->rl_prefer > 0 || r->rl_curriculum[0] != '\0', "rl.curriculum or rl.prefer"},
        {"rl.clip_low", !cispo, "an objective.kind other than cispo"},
        {"rl.clip_high", !cispo, "an objective.kind other than cispo"},
        {"rl.dual", !cispo, "an objective.kind other than cispo"},
        {"rl.cap", cispo, "objective.kind = cispo"},
        {"rl.kl_kind", r->rl_kl > 0.0, "rl.kl"},
        {"rl.kl_ratio", r->rl_kl > 0.0, "rl.kl"},
        {"rl.weight_low", r->rl_correction > 0, "rl.correction"},
        {"rl.weight_high", r->rl_correction > 0, "rl.correction"},
    };
    if (!lt_recipe_is_rl(r)) {
        return "an objective.kind of reinforcement learning";
    }
    return unmet(uses, sizeof uses / sizeof *uses, row->name);
}

/* And for those of distillation. */
static const char *distill_idle(const lt_recipe *r, const lt_option *row) {
    const bool words = r->distill_words[0] != '\0', draws = r->distill_on_policy > 0.0;
    const use uses[] = {
        {"distill.valid_logprobs", words && r->valid[0] != '\0', "distill.logprobs and data.valid"},
        {"distill.rest", words, "distill.logprobs"},
        {"distill.tokens", draws, "distill.on_policy"},
        {"distill.sampling_temperature", draws, "distill.on_policy"},
    };
    if (r->objective != LT_RECIPE_OBJECTIVE_distill) {
        return "objective.kind = distill";
    }
    return unmet(uses, sizeof uses / sizeof *uses, row->name);
}

/* And for those of the mesh. layout: auto may choose any axis. */
static const char *mesh_idle(const lt_recipe *r, const lt_option *row) {
    const bool any = r->layout == LT_LAYOUT_AUTO;
    lt_mesh_shape s = {1, 1, 1, 1, 1};
    if (r->mesh[0] != '\0' && lt_mesh_parse(&s, r->mesh) != LT_OK) {
        return NULL; /* The option's own error says more. */
    }
    const use uses[] = {
        {"mesh.shard", r->zero > 0, "mesh.zero"},
        {"mesh.context", any || s.cp > 1, "cp in mesh"},
        {"mesh.expert_room", any || s.ep > 1, "ep in mesh"},
        {"mesh.schedule", any || s.pp > 1, "pp in mesh"},
        {"mesh.chunks", any || s.pp > 1, "pp in mesh"},
        {"mesh.stages", any || s.pp > 1, "pp in mesh"},
    };
    return unmet(uses, sizeof uses / sizeof *uses, row->name);
}

const char *lt_recipe_idle(const lt_recipe *r, const lt_option *row) {
    const bool mix = r->optim == LT_OPTIM_ADEMAMIX, muon = r->optim == LT_OPTIM_MUON,
               wsd = r->lr_kind == LT_LR_WSD, valid = r->valid[0] != '\0' || r->val_fraction > 0.0,
               chats = lt_recipe_has_chats(r), writes = r->tokenizer[0] != '\0' || chats,
               samples = writes && r->sample_tokens > 0,
               adapts = r->lora_rank > 0 || r->lora_init[0] != '\0';
    const lt_align_objective *o = lt_recipe_align(r), none = {.name = NULL};
    const lt_align_objective *const reads = o != NULL ? o : &none;
    const char *const of_sft = "objective.kind = sft";
    const bool sft = r->objective == LT_RECIPE_OBJECTIVE_sft,
               imitates = sft || r->objective == LT_RECIPE_OBJECTIVE_distill;
    const bool streams = strstr(r->train, "://") != NULL || strstr(r->valid, "://") != NULL;
    const use uses[] = {
        {"model.init_std", r->init[0] == '\0', "model.init empty"},
        {"diloco.merge", r->overlap > 0, "diloco.overlap"},
        {"batch.groups", r->deterministic != 0, "deterministic = mesh-invariant"},
        {"data.goldfish_h", r->goldfish_k > 0, "data.goldfish_k"},
        {"lora.alpha", adapts, "lora.rank"},
        {"lora.scale", adapts, "lora.rank"},
        {"lora.dora", adapts, "lora.rank"},
        {"lora.dropout", adapts, "lora.rank"},
        {"lora.targets", adapts, "lora.rank"},
        {"lora.base", adapts, "lora.rank"},
        {"checkpoint.adapters", adapts, "lora.rank"},
        {"checkpoint.mirror_keep", r->mirror[0] != '\0', "checkpoint.mirror"},
        {"checkpoint.mirror_rate", r->mirror[0] != '\0', "checkpoint.mirror"},
        {"data.chat_template", chats, "a .jsonl file in data.train or data.valid"},
        {"data.chat_turns", chats, "a .jsonl file in data.train or data.valid"},
        {"data.bad_rows", chats, "a .jsonl file in data.train or data.valid"},
        {"data.too_long", chats, "a .jsonl file in data.train or data.valid"},
        {"objective.beta", reads->beta, "an objective.kind with a beta"},
        {"objective.smoothing", reads->smoothing, "objective.kind = dpo, dpo_robust or dpo_norm"},
        {"objective.margin", reads->margin && reads->given == LT_ALIGN_PAIR,
         "objective.kind = simpo (a reward model's margins are members of its lines)"},
        {"objective.center", reads->center, "objective.kind = reward"},
        {"objective.good", reads->weights, "objective.kind = kto or apo_zero"},
        {"objective.bad", reads->weights, "objective.kind = kto or apo_zero"},
        {"objective.separator", reads->given == LT_ALIGN_STEPS, "objective.kind = prm"},
        {"objective.keep_logits", !sft, "an objective.kind other than sft"},
        {"objective.share_prompts", !sft && r->objective != LT_RECIPE_OBJECTIVE_distill,
         "an objective.kind other than sft and distill"},
        {"data.packing", sft, of_sft},
        {"data.shuffle_rows",
         sft && r->shuffle == LT_SHUFFLE_ROWS &&
             (r->packing == LT_RECIPE_PACK_STREAM || (r->packing == LT_RECIPE_PACK_AUTO && !chats)),
         "data.shuffle = rows and data.packing = stream"},
        {"data.cache", sft && streams, "shards with an address in data.train"},
        {"data.cache_bytes", sft && r->cache[0] != '\0', "data.cache"},
        {"data.chat_turns", imitates, "objective.kind = sft or distill"},
        {"data.val_fraction", sft, of_sft},
        {"data.mask_documents", sft, of_sft},
        {"data.reset_positions", sft, of_sft},
        {"data.mask_eod", sft, of_sft},
        {"data.add_bos", sft, of_sft},
        {"data.add_eod", sft, of_sft},
        {"data.goldfish_k", sft, of_sft},
        {"data.prefetch", sft, of_sft},
        {"optim.beta3", mix, "optim.kind = ademamix"},
        {"optim.alpha", mix, "optim.kind = ademamix"},
        {"optim.mix_warmup", mix, "optim.kind = ademamix"},
        {"optim.eps", r->optim != LT_OPTIM_LION, "an optim.kind other than lion"},
        {"optim.muon_lr", muon, "optim.kind = muon"},
        {"optim.muon_momentum", muon, "optim.kind = muon"},
        {"optim.muon_steps", muon, "optim.kind = muon"},
        {"optim.muon_products", muon, "optim.kind = muon"},
        {"lr.warmup_from", r->warmup > 0, "lr.warmup"},
        {"lr.min", r->lr_kind != LT_LR_CONSTANT && (!wsd || r->cooldown > 0),
         "an lr.schedule that decays"},
        {"lr.cooldown", wsd, "lr.schedule = wsd"},
        {"lr.cooldown_shape", wsd && r->cooldown > 0, "lr.schedule = wsd with lr.cooldown"},
        {"guard.window", r->guard_loss > 0.0 || r->guard_grad > 0.0,
         "guard.loss_z or guard.grad_z"},
        {"guard.slow_s", r->guard_slow > 0.0, "guard.slow"},
        {"guard.replicas_parts", r->guard_replicas > 0, "guard.replicas"},
        {"eval.every", valid, "data.valid or data.val_fraction"},
        {"eval.rows", valid, "data.valid or data.val_fraction"},
        {"sample.every", samples || lt_recipe_is_rl(r), "data.tokenizer and sample.tokens"},
        {"sample.prompt", samples, "data.tokenizer and sample.tokens"},
        {"sample.tokens", writes || r->sample_tokens == 0, "data.tokenizer"},
        {"sample.temperature", samples, "data.tokenizer and sample.tokens"},
    };
    char value[LT_OPTION_STR_BYTES];
    const bool of_sites = strncmp(row->name, "diloco.", 7) == 0;
    const char *needs = strncmp(row->name, "rl.", 3) == 0        ? rl_idle(r, row)
                        : strncmp(row->name, "distill.", 8) == 0 ? distill_idle(r, row)
                        : strncmp(row->name, "mesh.", 5) == 0    ? mesh_idle(r, row)
                        : of_sites && r->sites == 1
                            ? "diloco.sites"
                            : unmet(uses, sizeof uses / sizeof *uses, row->name);

    return needs == NULL || lt_recipe_is_default(r, row, value) ? NULL : needs;
}

/* Values are compared after parsing: "3e-4" and "0.0003" are equal. */
bool lt_recipe_is_default(const lt_recipe *r, const lt_option *row,
                          char value[LT_OPTION_STR_BYTES]) {
    lt_option_text(row, r, value, LT_OPTION_STR_BYTES);
    if (row->type == LT_OPTION_I64 || row->type == LT_OPTION_F64) {
        return strtod(value, NULL) == strtod(row->fallback, NULL);
    }
    return strcmp(value, row->fallback) == 0;
}
