/* mirror_store.h: the work of the phases of mirror.h. The mirror is a folder or a prefix of an
 * object store. The rank's thread makes these calls. */
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
