/* mirror_store.h: the work in the phases of mirror.h, called on the rank's thread. The mirror is a
 * folder or a prefix of an object store. */
#ifndef LT_TRAIN_MIRROR_STORE_H
#define LT_TRAIN_MIRROR_STORE_H

#include "train/run.h"

/* Rank 0: find whether the mirror has this step, and set mirror.there. Files of another checkpoint
 * with the same step are deleted, its manifest first. */
LT_MUST_USE lt_err lt_mirror_store_clear(lt_training *t);
/* Each rank sends its files. */
LT_MUST_USE lt_err lt_mirror_store_send(lt_training *t);
/* Rank 0 sends the manifest, then deletes what checkpoint.mirror_keep does not keep. */
LT_MUST_USE lt_err lt_mirror_store_end(lt_training *t);

#endif
