/* launch.h: starts a program as the ranks of a run, and watches it until it ends.
 *
 *   start:   a store (store.h), a memory segment (shm.h), a board (board.h), n processes
 *            (process.h).
 *   watch:   output is passed on; SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGUSR2 and SIGXCPU go to all
 *            ranks; SIGTSTP stops all until SIGCONT. A second SIGINT, at least a second after the
 *            first, kills them. Under nohup SIGHUP is ignored.
 *   failure: a rank ends with another status than 0 or 75 or by a signal, sends no heartbeat for
 *            silent_s, or makes no progress for hang_s. The others learn of it through the store
 *            and have grace_s to end by themselves; then all process groups are killed.
 *   again:   controller.h decides whether all ranks are started anew, as the next generation. With
 *            retries, events are written to RUN/events.jsonl (events.h), and the time of each phase
 *            of a recovery is reported.
 *
 *   keep:    ranks whose world has failed because of another rank do not end. They leave the world,
 *            and note it on the board. When all have left or ended, the next attempt starts only
 *            the missing ranks, and the others open the next world in their process. Ranks of other
 *            machines do the same; their agents pass on what is on their boards (remote.h).
 *
 *   nodes:   ranks of a node that is lost move to a spare one; or the run shrinks: it continues
 *            with fewer replicas of the model and the same rows a step, and gets its ranks back
 *            when the node is back (nodes.h).
 *
 *   hosts:   ranks of other machines are started there by a login command (hosts.h), and exchange
 *            messages by TCP.
 *
 *   requeue: when the controller leaves this machine, Slurm's job SLURM_JOB_ID is put back in the
 *   queue (`scontrol requeue`). Refused outside a Slurm job.
 *
 * The exit status: 0 all ranks are done; 75 stopped with everything saved, or this machine is left
 * (the same command resumes the run); 77 a later attempt has taken the run folder; 128 + N: signal
 * N stopped the ranks, which have no handler for it (75 if they were training and had not installed
 * their handlers yet); the status of the first rank that failed by itself; LT_RANK_LOST if ranks
 * failed only by a signal, by silence, or because of another rank. */
#ifndef LT_PLATFORM_LAUNCH_H
#define LT_PLATFORM_LAUNCH_H

#include <stdbool.h>

#include "platform/agent/controller.h"
#include "platform/agent/hosts.h"

typedef struct {
    int n_ranks, retries;
    double grace_s, beat_s, silent_s; /* beat_s 0: a stopped rank is not noticed. */
    double hang_s;                    /* 0: no rank counts as hung. */
    bool plain;                       /* Lines of output are passed on without their rank. */
    bool keep;        /* Ranks that survive a fault wait for the next attempt in their process. */
    bool requeue;     /* A machine that fails is left: the job is put back in the queue. */
    int n_nodes;      /* Nodes with an agent each (nodes.h); 0: no snapshots. */
    int spares;       /* Additional nodes, for the ranks of lost ones. */
    bool shrink;      /* Without a spare, the run continues with fewer ranks. */
    double back_s;    /* A lost node is tried again after this time; 0: never. */
    int64_t snapshot; /* Steps between snapshots in memory; 0: by Daly's formula, */
    double mtbf_s;    /* for this time between faults. */
    /* hosts: the machines, "a:4,b:4", instead of n_ranks on this machine; login: how to start a
     * command there; address: where they reach this machine (hosts.h). NULL or "": this machine
     * alone; ssh; found automatically. */
    const char *hosts, *login, *address;
    uint32_t attempt; /* Attempt of the job, e.g. SLURM_RESTART_COUNT. */
} lt_launch_options;

/* launch_check.c: ARG or UNSUPPORTED for options that contradict each other. If there are hosts,
 * they determine the numbers of ranks and nodes, which are written to *o. */
LT_MUST_USE lt_err lt_launch_check(lt_launch_options *o, const lt_hosts *hosts);
/* path: the program; argv: its words, NULL at the end. *status: the exit status. A returned error
 * is a failure of the launcher itself. */
LT_MUST_USE lt_err lt_launch(const lt_launch_options *o, const char *path, char *const *argv,
                             int *status);

#endif
