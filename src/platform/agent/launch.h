/* launch.h: start a program as the ranks of a run, and watch it until it ends.
 *
 *   start:   a store (store.h), a memory segment (shm.h), a board (board.h), n processes
 *            (process.h).
 *   watch:   output is passed on; SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGUSR2 and SIGXCPU go to all
 *            ranks; SIGTSTP stops all until SIGCONT. A second SIGINT, at least a second after the
 *            first, kills them. Under nohup SIGHUP is ignored.
 *   failure: a rank ends with another status than 0 or 75 or by a signal, sends no heartbeat for
 *            silent_s, or makes no progress for hang_s. The others are told through the store and
 *            have grace_s to end by themselves; then all process groups are killed.
 *   again:   controller.h decides whether all ranks are started anew, as the next generation. With
 *            retries, what happens is written to RUN/events.jsonl (events.h), and the time of each
 *            phase of a recovery is told.
 *
 *   keep:    ranks whose world has failed because of another one do not end. They leave it, which
 *            the board says; once all have left or ended, the next attempt starts only those that
 *            are missing, and the others open the next world in their process. Ranks of other
 *            machines do the same; their agents pass on what the boards say (remote.h).
 *
 *   nodes:   ranks of a node that is lost move to a spare one; or the run shrinks: it goes on with
 *            fewer replicas of the model, the same rows a step, and grows again when the node is
 *            back (nodes.h).
 *
 *   hosts:   ranks of other machines are started there by a login command (hosts.h), and exchange
 *            messages by TCP.
 *
 *   requeue: where the controller leaves this machine, Slurm's job SLURM_JOB_ID is put back in the
 *            queue (`scontrol requeue`). Refused outside a job of Slurm.
 *
 * The exit status: 0 all ranks are done; 75 stopped with everything saved, or this machine is
 * left (the same command goes on); 77 a later attempt has taken the run folder; 128 + N: signal
 * N stopped the ranks, which have no handler for it (75 if they are of a training and had not
 * installed their handlers yet); the status of the first rank that failed by itself;
 * LT_RANK_LOST where no rank failed but by a signal, by silence, or because of another. */
#ifndef LT_PLATFORM_LAUNCH_H
#define LT_PLATFORM_LAUNCH_H

#include <stdbool.h>

#include "platform/agent/controller.h"
#include "platform/agent/hosts.h"

typedef struct {
    int n_ranks, retries;
    double grace_s, beat_s, silent_s; /* beat_s 0: a stopped rank is not noticed. */
    double hang_s;                    /* 0: no rank counts as hung. */
    bool plain;                       /* Lines of output as they are, without their rank. */
    bool keep;        /* Ranks that survive a fault wait for the next attempt in their process. */
    bool requeue;     /* A machine that fails is left: the job is put back in the queue. */
    int n_nodes;      /* Nodes with an agent each (nodes.h); 0: no snapshots. */
    int spares;       /* Further nodes, for the ranks of those that are lost. */
    bool shrink;      /* Where there is no spare, the run goes on with fewer ranks. */
    double back_s;    /* A node that was lost is tried again after so long; 0: never. */
    int64_t snapshot; /* Steps between snapshots in memory; 0: by Daly's formula, */
    double mtbf_s;    /* for this time between faults. */
    /* "a:4,b:4": the machines, instead of n_ranks on this one; how to start a command there, and at
     * which address they reach this one (hosts.h). NULL or "": this machine, ssh, find it. */
    const char *hosts, *login, *address;
    uint32_t attempt; /* Attempt of the job, e.g. SLURM_RESTART_COUNT. */
} lt_launch_options;

/* launch_check.c: ARG or UNSUPPORTED for options that contradict each other. Where there are hosts,
 * they say how many ranks and nodes there are, and *o gets these numbers. */
LT_MUST_USE lt_err lt_launch_check(lt_launch_options *o, const lt_hosts *hosts);
/* path: the program; argv: its words, NULL at the end. *status is what to exit with. A failure is
 * one of the launcher itself. */
LT_MUST_USE lt_err lt_launch(const lt_launch_options *o, const char *path, char *const *argv,
                             int *status);

#endif
