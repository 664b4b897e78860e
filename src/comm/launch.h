/* launch.h: start a program as the ranks of a run on this machine, and watch it until it ends.
 *
 *   start:   a store (store.h), a memory segment (shm.h), n processes, each in a process group of
 *            its own, killed by the kernel when the launcher ends; standard input is empty.
 *   watch:   output is passed on, each line after "[rank] "; SIGTERM, SIGINT, SIGHUP, SIGUSR1,
 *            SIGUSR2 and SIGXCPU go to all ranks; SIGTSTP stops all until SIGCONT.
 *   failure: a rank ends with another status than 0 or 75 or by a signal, or sends no heartbeat for
 *            silent_s. The others are told through the store and have grace_s to end by themselves;
 *            then all process groups are killed.
 *   restart: with restarts left, unless a stop was asked or the failure is one of usage (2): all
 *            ranks anew, as the next generation, after 1, 2, 4 ... at most 60 s.
 *
 * The exit status: 0 all ranks are done; 75 stopped with everything saved (the same command goes
 * on); 128 + N: stopped by signal N, which the program does not handle; the status of the first
 * rank that failed by itself; LT_LAUNCH_LOST where no rank failed but by a signal, by silence, or
 * because of another. */
#ifndef LT_COMM_LAUNCH_H
#define LT_COMM_LAUNCH_H

#include <stdbool.h>

#include "lateen/base.h"

#define LT_LAUNCH_LOST    76 /* EX_PROTOCOL of sysexits.h. */
#define LT_LAUNCH_STOPPED 75

typedef struct {
    int n_ranks, restarts;
    double grace_s, beat_s, silent_s; /* beat_s 0: a stopped rank is not noticed. */
    bool plain;                       /* Lines of output as they are, without their rank. */
    uint32_t attempt;                 /* Of the job, e.g. SLURM_RESTART_COUNT. */
} lt_launch_options;

/* path: the program; argv: its words, NULL at the end. *status is what to exit with. A failure is
 * one of the launcher itself. */
LT_MUST_USE lt_err lt_launch(const lt_launch_options *o, const char *path, char *const *argv,
                             int *status);

#endif
