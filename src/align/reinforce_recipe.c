/* reinforce_recipe.c: turns a recipe's options into those of reinforcement learning (learner.h),
 * and refuses options that contradict each other. */
#include <inttypes.h>

#include "align/learner.h"
#include "base/error.h"
#include "lateen/generate.h"

/* How many answers are drawn at a time unless the recipe says so. On an H200 the engine makes
 * 113,900 tokens/s with 1,024 streams, and 78,300 with 256 and the same lengths
 * (bench/results/posttrain.md). A host has less memory. */
#define MOST_RUNNING(device) ((device)->backend->host_memory ? 256 : 1024)

/* Refuse what does not work with drawing ahead. */
static lt_err check_staleness(const lt_recipe *r) {
    if (r->rl_staleness == 0) {
        return LT_OK;
    }
    if (r->rl_correction == 0) {
        LT_FAIL(LT_ERR_ARG,
                "rl.staleness = %" PRId64
                " with rl.correction = none: answers are drawn by older weights, which nothing "
                "would correct for; rl.correction = token-truncate does",
                r->rl_staleness);
    }
    if (r->save_every == 0) {
        LT_FAIL(LT_ERR_ARG,
                "rl.staleness = %" PRId64
                " with checkpoint.every = 0: drawing ahead needs checkpoints, because a run can "
                "only be stopped and resumed with the same bits where one is due",
                r->rl_staleness);
    }
    return LT_OK;
}

lt_err lt_reinforce_check_recipe(const lt_recipe *r) {
    static const char *const unbuilt[] = {"data.shuffle", "batch.ramp"};
    const int64_t draw = r->rl_updates * r->rl_passes;
    char value[LT_OPTION_STR_BYTES];
    for (size_t i = 0; i < sizeof unbuilt / sizeof *unbuilt; i++) {
        const lt_option *row = lt_option_find(&lt_recipe_table, unbuilt[i]);
        if (!lt_recipe_is_default(r, row, value)) {
            LT_FAIL(LT_ERR_UNSUPPORTED, "%s = %s with reinforcement learning: not supported",
                    row->name, value);
        }
    }
    LT_TRY(check_staleness(r));
    if (r->rl_kl > 0.0 && r->lora_init[0] != '\0') {
        LT_FAIL(LT_ERR_UNSUPPORTED,
                "rl.kl = %g with lora.init: the reference would be the model without the adapters "
                "that the run begins with; not supported",
                r->rl_kl);
    }
    if (r->rl_temperature != 1.0 && (r->rl_exact || r->rl_correction > 0)) {
        LT_FAIL(LT_ERR_UNSUPPORTED,
                "rl.temperature = %g with %s: the engine reports the probabilities of its tokens "
                "at temperature 1; not supported",
                r->rl_temperature, r->rl_exact ? "rl.exact" : "rl.correction");
    }
    if (r->steps % draw != 0) {
        LT_FAIL(LT_ERR_ARG,
                "steps = %" PRId64 " is not a multiple of the %" PRId64
                " steps that learn from one draw (rl.updates times rl.passes)",
                r->steps, draw);
    }
    if (r->rl_tokens >= r->seq) {
        LT_FAIL(LT_ERR_ARG,
                "rl.tokens = %" PRId64 " leaves no room for a question in data.seq = %" PRId64,
                r->rl_tokens, r->seq);
    }
    return LT_OK;
}

lt_curriculum_options lt_reinforce_curriculum(const lt_recipe *r) {
    return (lt_curriculum_options){.member = r->rl_curriculum,
                                   .start = r->rl_curriculum_start,
                                   .steps = r->rl_curriculum_steps > 0 ? r->rl_curriculum_steps
                                                                       : (r->steps + 1) / 2,
                                   .prefer = (lt_prefer)r->rl_prefer,
                                   .pass = r->rl_pass,
                                   .seed = (uint64_t)r->seed};
}

/* The method of objective.kind, with the changes in the recipe. */
static lt_err read_policy(lt_reinforce_options *o, const lt_recipe *r) {
    const lt_option *row = lt_option_find(&lt_recipe_table, "objective.kind");
    lt_align_policy_options *p = &o->policy;
    char name[LT_OPTION_STR_BYTES];
    lt_option_text(row, r, name, sizeof name);
    LT_TRY(lt_align_policy_find(p, &o->advantage, name));
    o->advantage = r->rl_advantage > 0 ? (lt_align_advantage)(r->rl_advantage - 1) : o->advantage;
    p->reduction = r->rl_reduction > 0 ? (lt_align_reduction)(r->rl_reduction - 1) : p->reduction;
    p->max_tokens = p->reduction == LT_ALIGN_FIXED_LENGTH ? r->rl_tokens : 0;
    p->low = r->rl_clip_low >= 0.0 ? r->rl_clip_low : p->low;
    p->high = r->rl_clip_high >= 0.0 ? r->rl_clip_high : p->high;
    p->dual = r->rl_dual;
    p->cap = r->rl_cap >= 0.0 ? r->rl_cap : p->cap;
    p->kl = r->rl_kl;
    p->kl_kind = (lt_align_kl_kind)r->rl_kl_kind;
    p->kl_ratio = r->rl_kl_ratio;
    p->correction = (lt_align_correction)r->rl_correction;
    if (p->correction != LT_ALIGN_NO_CORRECTION) {
        p->weight_low = r->rl_weight_low;
        p->weight_high = r->rl_weight_high;
    }
    const lt_err err = lt_align_policy_check(p);
    return err == LT_OK ? LT_OK : lt_error_prefix(err, "rl.* with objective.kind = %s", name);
}

lt_err lt_reinforce_read(lt_reinforce_options *o, const lt_training *t) {
    const lt_recipe *r = &t->recipe;
    const int64_t dp = lt_training_dp(t), own = r->batch / dp;
    *o = (lt_reinforce_options){.answers = own,
                                .ranks = dp,
                                .rank = lt_training_dp_rank(t),
                                .group = r->rl_group,
                                .updates = r->rl_updates,
                                .passes = r->rl_passes,
                                .resample = r->rl_resample,
                                .drop_cut = r->rl_drop_cut,
                                .max_tokens = r->rl_tokens,
                                .max_seq = r->seq,
                                .running = r->rl_running > 0 ? r->rl_running
                                           : own < MOST_RUNNING(t->device)
                                               ? own
                                               : MOST_RUNNING(t->device),
                                .seed = (uint64_t)r->seed,
                                .exact = r->rl_exact,
                                .tokenizer = t->tokenizer};
    lt_model_ends(t->model, t->tokenizer, &o->ends);
    if (dp > 1 && r->rl_resample > 0) {
        LT_FAIL(LT_ERR_UNSUPPORTED,
                "rl.resample = %" PRId64 " with %" PRId64 " ranks: each would ask another number "
                "of questions; not supported",
                r->rl_resample, dp);
    }
    return read_policy(o, r);
}
