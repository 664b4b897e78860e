/* open_ranks.c: opens a run on all ranks of a world, one after another, from the same checkpoint,
 * and does what ranks do together before the first step. */
#include "base/error.h"
#include "base/log.h"
#include "train/run.h"

/* The collective part of an objective's start, after the weights of the first step. */
static lt_err start_objective(lt_training *t) {
    const lt_objective *o = t->objective;
    return o != NULL && o->start != NULL ? o->start(o->of, t) : LT_OK;
}

lt_err lt_training_open_in_turn(lt_training *t, const lt_recipe *r, lt_device *device,
                                lt_world *world, const lt_training_with *common) {
    lt_training_with with = *common;
    const bool leads = lt_ranks_lead(&with.ranks);
    lt_rank_records *records = NULL;
    lt_step_record record = {0};
    lt_err err = LT_OK;
    LT_TRY(lt_rank_records_open(&records, world, r));
    with.ranks.of = t->rank_records = records;
    if (!leads) {
        LT_TRY(lt_ranks_combine(&with.ranks, &record, LT_OK));
    }
    with.epoch = (int64_t)record.epoch;
    err = lt_training_open_with(t, r, device, &with);
    t->rank_records = records;
    if (leads) {
        record.epoch = (double)t->lease.epoch;
        LT_TRY(lt_ranks_combine(&with.ranks, &record, err));
    }
    record = (lt_step_record){0};
    return lt_ranks_combine(&with.ranks, &record, err);
}

/* Each rank checks only the files that it reads, so a checkpoint that is damaged for one rank may
 * be whole for the others. */
lt_err lt_training_agree_on_step(const lt_training *t, const lt_world *w, bool *same) {
    double least, most;
    LT_TRY(lt_world_range(w, (double)t->state.step, &least, &most));
    *same = least == most;
    if (!*same) {
        lt_log_warn("the checkpoint of step %.0f is whole for some ranks only; all go on from that "
                    "of step %.0f",
                    most, least);
    }
    return LT_OK;
}

/* Needed if no rank had all weights when the adapters were opened, or did not have what it
 * trains. */
static lt_err begin_magnitudes(lt_training *t) {
    lt_pass *passes[LT_MAX_LAYERS];
    const int n = lt_training_passes_of(t, passes);
    const bool begins = t->lora != NULL && t->recipe.lora_dora && t->recipe.lora_init[0] == '\0' &&
                        t->resume_path[0] == '\0';
    for (int i = 0; begins && i < n; i++) {
        LT_TRY(lt_pass_begin_magnitudes(passes[i]));
    }
    return LT_OK;
}

lt_err lt_training_begin(lt_training *t) {
    LT_TRY(begin_magnitudes(t));
    LT_TRY(lt_training_gather(t));
    return lt_training_compare_base(t);
}

lt_err lt_training_open_ranks(lt_training *t, const lt_recipe *r, lt_device *device,
                              lt_world *world, const lt_objective *objective) {
    lt_snapshots snapshots;
    const lt_training_with with = {
        .ranks = {.rank = world->rank, .combine = lt_rank_records_combine},
        .world = world,
        .objective = objective,
        .snapshots = &snapshots};
    bool same = false;
    if (world->comm == NULL) {
        LT_TRY(lt_training_open_with(t, r, device, &(lt_training_with){.objective = objective}));
        LT_TRY(lt_diloco_join(t));
        return start_objective(t);
    }
    LT_TRY(lt_training_agree(&snapshots, world));
    LT_TRY(lt_training_open_in_turn(t, r, device, world, &with));
    LT_TRY(lt_training_agree_on_step(t, world, &same));
    while (!same) { /* The loop ends, because the rank that found a checkpoint damaged has set it
                     * aside. */
        lt_training_close(t);
        *t = (lt_training){.lease.lock_fd = -1};
        LT_TRY(lt_training_open_in_turn(t, r, device, world, &with));
        LT_TRY(lt_training_agree_on_step(t, world, &same));
    }
    LT_TRY(lt_replay_meet(t));
    LT_TRY(lt_world_connect(world, lt_training_queue(t)));
    LT_TRY(lt_training_begin(t));
    LT_TRY(lt_diloco_join(t));
    return start_objective(t);
}
