/* checkpoint.h: a training run on disk, complete or not at all.
 *
 *   RUN/checkpoints/step-000001000/
 *       weights.safetensors      F32 master parameters, one tensor a parameter, by the names of
 *                                model/params.h
 *       <moment>.safetensors     one file for each moment of the optimiser, with the same names
 *       config.json              the model
 *       manifest.json            {"format": "lateen-checkpoint", "version": 1, "step", "rows",
 *                                 "tokens", "good", "loss", "optimiser",
 *                                 "outer_step" (with several sites),
 *                                 "loader": {...}, "guard": {...}, "recipe": {name: value, ...},
 *                                 "data": {...}, "files": [{"name", "bytes", "xxh3"}]}
 *
 * Parts: where ranks divide the run (model/params.h, "boxes"), each writes its own files, and the
 * manifest ("version": 2, "parts": n) lists the manifests of the parts (checkpoint_parts.h). A run
 * with another partition can read them.
 *
 * Writing: everything goes into step-N.eE.tmp/ (E: the epoch of the lease), each file synced, the
 * manifest last; then the lease is checked, the folder is renamed and its parent synced. So a
 * folder without ".tmp" is complete unless the disk lied, which the checksums reveal. A crash
 * leaves at most one .tmp folder, which the next save or open removes. Old checkpoints are removed
 * only after the new one is complete.
 *
 *   crash while writing files      .tmp folder, ignored and removed
 *   crash before the rename        the same
 *   crash after the rename         the new one counts; if the parent was not yet synced, the rename
 *                                  may be lost: then as above
 *   crash while pruning            a folder renamed to .old is removed by the next open
 *   an attempt that was replaced   cannot rename its .tmp folder: the lease is lost, or the folder
 *                                  is gone (platform/agent/lease.h)
 *   a flipped bit, a short file    its checksum or size fails: the next older one is taken, with a
 *                                  warning that says so
 *
 * Weights and moments are checked when they are written and when they are read. If one number is
 * NaN or infinite, nothing is published, or the checkpoint counts as broken. "good": false marks
 * one whose loss is finite but far above the losses before it (health.c): it is published, since
 * the run may recover, but it does not replace the newest good one.
 *
 * Names: only step-N counts. A checkpoint that a resume skips, because it is broken or because the
 * run continues from an older one, is renamed, and from then on neither counted nor removed:
 * step-N.broken, step-N.left. */
#ifndef LT_TRAIN_CHECKPOINT_H
#define LT_TRAIN_CHECKPOINT_H

#include <jansson.h>

#include "base/file.h"
#include "model/params.h"
#include "parallel/layout.h"
#include "platform/agent/lease.h"
#include "train/optimiser.h"

#define LT_MANIFEST           "manifest.json" /* File in a checkpoint's folder. */
#define LT_MANIFEST_BYTES_MAX ((size_t)16 << 20)

/* The state in a checkpoint other than tensors. The holder owns the JSON objects; recipe and data
 * are NULL in older checkpoints. */
typedef struct {
    int64_t step;
    uint64_t rows, tokens;
    double loss;        /* Loss of its weights on the rows on which they were just trained. */
    bool suspect;       /* Negation of "good". */
    int64_t outer_step; /* The newest round whose outer step it includes (diloco.h). */
    json_t *loader, *guard, *recipe, *data;
} lt_run_state;

void lt_run_state_clear(lt_run_state *s);

/* Save the state after `state->step` steps under folder (RUN/checkpoints). NUMERIC: a weight or a
 * moment is not finite, nothing was published. lease: of the run folder; NULL: there is none.
 * REPLACED: the lease is lost, nothing was published. */
LT_MUST_USE lt_err lt_checkpoint_save(const char *folder, const lt_model *m, const lt_optimiser *o,
                                      const lt_run_state *state, const lt_lease *lease);

/* Where the files of a checkpoint are until it is published. */
LT_MUST_USE lt_err lt_checkpoint_aside(char path[LT_PATH_BYTES], const char *folder, int64_t step,
                                       const lt_lease *lease);

/* The same by several ranks: one of them begins, each writes its part (n_parts > 1), and when all
 * are written, one publishes; or one abandons, so that nothing half done stays. layout: of boxes
 * that other ranks hold too, this rank writes those that it answers for; NULL: all that it holds.
 * All ranks pass a lease of the same epoch. */
LT_MUST_USE lt_err lt_checkpoint_begin(const char *folder, int64_t step, const lt_lease *lease);
LT_MUST_USE lt_err lt_checkpoint_write_part(const char *folder, int64_t step, int part, int n_parts,
                                            const lt_model *m, const lt_optimiser *o,
                                            const lt_layout *layout, const lt_lease *lease);
LT_MUST_USE lt_err lt_checkpoint_publish(const char *folder, int n_parts, const lt_model *m,
                                         const lt_optimiser *o, const lt_run_state *state,
                                         const lt_lease *lease);
void lt_checkpoint_abandon(const char *folder, int64_t step, const lt_lease *lease);
/* The last part of publish: the folder named by aside, with all files, gets the checkpoint's name.
 * REPLACED: the lease is no longer held. */
LT_MUST_USE lt_err lt_checkpoint_take_name(const char *folder, int64_t step, const lt_lease *lease);
/* Abandon a checkpoint because of a failure, so that it does not fill the disk. Returns err, with
 * the checkpoint's name put before its message. */
LT_MUST_USE lt_err lt_checkpoint_give_up(const char *folder, int64_t step, const lt_lease *lease,
                                         lt_err err);

/* Parse a manifest's text, without looking at its files. Free with lt_run_state_clear. */
LT_MUST_USE lt_err lt_checkpoint_parse(lt_run_state *state, const char *text, size_t bytes,
                                       const char *path);

/* Load the newest whole checkpoint under folder whose step is at most `most`. A warning names each
 * broken one that is newer, with the reason, and *n_broken counts them. NOT_FOUND: the folder is
 * empty or absent, or holds only broken ones. */
LT_MUST_USE lt_err lt_checkpoint_load_newest(const char *folder, int64_t most, lt_model *m,
                                             lt_optimiser *o, lt_run_state *state,
                                             int64_t *n_broken);

/* Load one checkpoint folder. FORMAT or IO: it is broken. STATE: it belongs to another model or
 * optimiser. */
LT_MUST_USE lt_err lt_checkpoint_load(const char *path, lt_model *m, lt_optimiser *o,
                                      lt_run_state *state);

/* Check that every file of a checkpoint has the checksum in the manifest. Needs no model. */
LT_MUST_USE lt_err lt_checkpoint_verify(const char *path);

/* Whether a folder is a checkpoint. The second function opens its whole model in F32, whatever
 * parts it was written in. */
bool lt_checkpoint_is(const char *path);
LT_MUST_USE lt_err lt_checkpoint_open_model(lt_model **out, const char *path);

/* checkpoint_keep.c. Which checkpoints are kept: the newest `last`, the newest good one, and those
 * whose step is a multiple of `every` (if > 0). */
typedef struct {
    int64_t last, every;
    int64_t also; /* Also keep this one, because it is being read; -1: none. */
} lt_checkpoint_keep;
/* Whether a checkpoint is kept if there are n_newer newer ones. */
bool lt_checkpoint_stays(const lt_checkpoint_keep *keep, int64_t step, int64_t n_newer,
                         int64_t last_good);

/* Remove the other checkpoints and leftovers, but not those of an epoch after the lease's.
 * keep->last INT64_MAX: leftovers only. */
LT_MUST_USE lt_err lt_checkpoint_prune(const char *folder, const lt_checkpoint_keep *keep,
                                       const lt_lease *lease);
/* Whether this manifest calls its checkpoint good. An unreadable one does not; an older version,
 * without "good", does. */
bool lt_checkpoint_is_good(const char *manifest);

/* Step of the newest checkpoint before step `before`, among all or the good ones; -1: there is
 * none. */
LT_MUST_USE lt_err lt_checkpoint_newest(int64_t *step, const char *folder, int64_t before,
                                        bool good);

/* Rename the checkpoints after `step` with ".left" or ".broken". */
LT_MUST_USE lt_err lt_checkpoint_set_aside(const char *folder, int64_t step, const char *suffix);

LT_MUST_USE lt_err lt_checkpoint_remove(const char *path);

/* Steps of a folder's checkpoints, newest first; free() them. There are none if the folder does not
 * exist. */
LT_MUST_USE lt_err lt_checkpoint_list(int64_t **steps, size_t *count, const char *folder);
LT_MUST_USE lt_err lt_checkpoint_path(char path[LT_PATH_BYTES], const char *folder, int64_t step);

/* "step-000000012" + suffix, and the reverse: -1 for any other name. */
#define LT_CHECKPOINT_NAME_BYTES 64
void lt_checkpoint_name(char name[LT_CHECKPOINT_NAME_BYTES], int64_t step, const char *suffix);
int64_t lt_checkpoint_step(const char *name);

#endif
