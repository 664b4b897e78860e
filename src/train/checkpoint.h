/* checkpoint.h: a training run on disk, whole or not at all.
 *
 *   RUN/checkpoints/step-000001000/
 *       weights.safetensors      F32 master parameters, one tensor a parameter, by our names (model/params.h)
 *       <moment>.safetensors     one file a moment of the optimiser, the same names
 *       config.json              the model
 *       manifest.json            {"format": "lateen-checkpoint", "version": 1, "step", "rows", "tokens", "optimiser",
 *                                 "loader": {...}, "guard": {...}, "files": [{"name", "bytes", "xxh3"}]}
 *
 * Writing: everything goes into step-N.tmp/, each file synced, the manifest last; then the folder is renamed and its parent
 * synced. So a folder without ".tmp" is whole unless the disk lied, and that the checksums show. A crash leaves at most one .tmp folder,
 * which the next save or open removes. Old checkpoints are removed only after the new one stands.
 *
 *   crash while writing files      .tmp folder, ignored and removed
 *   crash before the rename        the same
 *   crash after the rename         the new one counts (the rename may be lost with the parent's sync: then as above)
 *   crash while pruning            a folder renamed to .old is removed by the next open
 *   a flipped bit, a short file    its checksum or size fails: the next older one is taken, with a warning that says so
 */
#ifndef LT_TRAIN_CHECKPOINT_H
#define LT_TRAIN_CHECKPOINT_H

#include <jansson.h>

#include "model/params.h"
#include "train/optimiser.h"

/* What a checkpoint holds besides tensors. loader and guard are JSON objects owned by the holder. */
typedef struct {
    int64_t step;
    uint64_t rows, tokens;
    json_t *loader, *guard;
} lt_run_state;

void lt_run_state_clear(lt_run_state *s);

/* Save the state after `state->step` steps under folder (RUN/checkpoints). */
LT_MUST_USE lt_err lt_checkpoint_save(const char *folder, const lt_model *m, const lt_optimiser *o,
                                      const lt_run_state *state);

/* What a manifest's text says of the run; its files are not looked at. Free with lt_run_state_clear. */
LT_MUST_USE lt_err lt_checkpoint_parse(lt_run_state *state, const char *text, size_t bytes,
                                       const char *path);

/* Load the newest whole checkpoint under folder; those passed over are named with the reason in a warning. NOT_FOUND: there is none (an empty or absent
 * folder, or only broken ones: *n_broken tells). */
LT_MUST_USE lt_err lt_checkpoint_load_newest(const char *folder, lt_model *m, lt_optimiser *o,
                                             lt_run_state *state, int64_t *n_broken);

/* Load one checkpoint folder. FORMAT or IO: it is broken. STATE: it belongs to another model or optimiser. */
LT_MUST_USE lt_err lt_checkpoint_load(const char *path, lt_model *m, lt_optimiser *o,
                                      lt_run_state *state);

/* Keep the newest keep_last, and those whose step is a multiple of keep_every (if > 0); remove the others and leftovers. */
LT_MUST_USE lt_err lt_checkpoint_prune(const char *folder, int64_t keep_last, int64_t keep_every);

#endif
