/* mirror_store.h: what the phases of mirror.h ask of the mirror, which is a folder or a prefix of
 * an object store. Called by a thread, except for those of lateen/copy.h that mirror.h names. */
#ifndef LT_TRAIN_MIRROR_STORE_H
#define LT_TRAIN_MIRROR_STORE_H

#include "train/run.h"

/* Rank 0: is this step there? Sets mirror.there. Files of another checkpoint of the same step are
 * deleted, its manifest first. */
LT_MUST_USE lt_err lt_mirror_store_clear(lt_training *t);
/* Each rank: its files. */
LT_MUST_USE lt_err lt_mirror_store_send(lt_training *t);
/* Rank 0: the manifest; then delete what checkpoint.mirror_keep does not keep. */
LT_MUST_USE lt_err lt_mirror_store_end(lt_training *t);

#endif
