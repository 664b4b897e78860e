/* lease.h: which process may publish into a run folder. An attempt of a run may still exist after
 * it was replaced: it was stopped, its machine was cut off, or it waits for a disk. Whatever it
 * does when it continues must have no effect.
 *
 *     RUN/lease/000000007.json   {"epoch": 7, "job", "attempt", "host", "pid", "taken"}
 *
 * TAKING    The holder of the largest epoch holds the lease. A taker creates the file of the next
 *           epoch, which succeeds for one process only (O_CREAT | O_EXCL), also on NFS. Files are
 *           never removed. No clock is used.
 * CHECKING  Epochs have no gaps, so the holder of epoch e is replaced as soon as the file of e + 1
 *           exists: one call of access().
 * WHO MAY   RUN/lock is locked (flock) by the holder. A taker that gets the lock takes the lease. A
 *           taker that does not get it is refused, because another process trains there, unless
 *           the holder is an earlier attempt of the taker's own job: then the lock file is
 *           replaced by a new one, and the lease is taken. A taker that is an earlier attempt
 *           than the holder of the same job is refused as REPLACED, even if it gets the lock. The
 *           job is Slurm's, or that of `lateen launch`; its attempts are numbered by
 *           SLURM_RESTART_COUNT and by the launcher.
 *
 * PUBLISHING  A process checks the lease right before it publishes. If it is stopped between the
 * check and the publication, the following keeps the folder right:
 *
 *     checkpoint   is renamed from step-N.eE.tmp (E: the epoch), written before the check. The next
 *                  holder creates its epoch's file, then renames all such folders away, and only
 *                  then chooses a checkpoint. So either the old publication came first and is
 *                  valid, or its rename fails
 *     other files  the same, by way of RUN/lease/E.NAME.tmp (lt_lease_write)
 *     metrics      the new holder opens a new file under the name metrics.jsonl, so that a line
 *                  that comes late is written to a file without a name */
#ifndef LT_PLATFORM_LEASE_H
#define LT_PLATFORM_LEASE_H

#include "base/file.h"

typedef struct {
    char folder[LT_PATH_BYTES]; /* RUN/lease; "": another process of the run has taken it. */
    int64_t epoch;              /* 0: no epoch. */
    int lock_fd;                /* -1: none. */
    char job[64];
    uint64_t attempt;
} lt_lease;

/* The job and attempt of this process, from its environment. */
void lt_lease_identify(lt_lease *l);
/* Take the lease of a run folder for the job and attempt that *l names. STATE: another job holds
 * it. REPLACED: a later attempt of the same job holds it. */
LT_MUST_USE lt_err lt_lease_take(lt_lease *l, const char *run_folder);
/* REPLACED: a later attempt has taken it, so this process must publish nothing more. Succeeds for
 * NULL and for a lease that this process has not taken. */
LT_MUST_USE lt_err lt_lease_check(const lt_lease *l);
/* Write a file of the run folder atomically, if this process holds the lease (REPLACED). */
LT_MUST_USE lt_err lt_lease_write(const lt_lease *l, const char *path, const void *data,
                                  size_t bytes);
void lt_lease_close(lt_lease *l); /* Releases the lock; lock_fd -1: there is none. */

#endif
