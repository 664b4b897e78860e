/* controller.h: decides when the ranks of an attempt at a run are ended, and whether another
 * attempt begins. It starts and kills nothing and reads no clock, so tests drive it with invented
 * times; launch.c carries out its decisions.
 *
 * STATES, each with a deadline, after which it is left even if no message ever comes:
 *
 *   state      the ranks                    deadline             when it passes
 *   STARTING   start, connect, load         hang_s without a     the attempt has failed: it hangs
 *                                           new phase or step
 *   RUNNING    train                        the same             the same
 *   ENDING     know that one failed     grace_s              they are killed
 *   KILLING    were killed                  LT_KILL_S            those that remain are left behind;
 *                                                                the lease (lease.h) keeps them out
 *   WAITING    have ended; the back-off     the back-off         the next attempt begins
 *   OVER       have ended, for good         none
 *
 * EVENTS, and what follows:
 *
 *   state      READY      FAULT           EMPTY         LATE            STOP
 *   STARTING   RUNNING    ENDING (tell)   decide        ENDING (tell)
 *   RUNNING               ENDING (tell)   decide        ENDING (tell)
 *   ENDING                                decide        KILLING (kill)
 *   KILLING                               decide        decide
 *   WAITING                                             STARTING (begin) OVER (end)
 *   OVER
 *
 * An empty field changes nothing. READY: every rank trains. FAULT: the first fault of the attempt.
 * EMPTY: no process is left. LATE: the deadline has passed. STOP: the launcher was asked to stop.
 *
 * DECIDE reads the first fault of the attempt in this table:
 *
 *   kind      sign                                             costs a retry   stops when repeated
 *   usage     status 2, or the program cannot be run           never tried again
 *   replaced  status 77: a newer attempt holds the run folder  never tried again
 *   crash     another status; SIGSEGV, SIGABRT, SIGFPE, ...    yes             yes
 *   killed    any other signal                                 yes             no
 *   told      a rank, not the launcher, was asked to stop      yes             no
 *   hang      no progress for hang_s                           yes             yes
 *   silent    no heartbeat: a stopped rank or machine          no              no
 *   device    status 74: the device failed; SIGBUS             no              no
 *   corrupt   status 78: ranks do not hold the same bits       no              yes
 *   grow      all were told to save, since a node is back      no              no
 *   lost      status 76: because of another rank, if no rank   yes             no
 *             has one of the faults above
 *
 * A fault of hardware costs no retry, but LT_FREE_IN_A_ROW of them without a new step end the run.
 *
 * AFTER A FAULT all ranks are started here again. But if `requeue` is set, the run leaves this
 * machine after a fault of hardware if it has no retries at all, or if it is the second one without
 * a new step: it ends with `elsewhere` set, and the launcher puts its job back in the queue.
 *
 * A fault that may repeat is compared with the one before it: the same kind, rank, status and known
 * step mean that it follows from the program and its data, and the run ends at once with this
 * reason.
 *
 * A rank that ends with a status before any attempt has made a step has probably been given a path
 * that does not exist, or a recipe that contradicts itself. A file system that is mounted late
 * looks the same, so the run ends only when LT_SAME_STARTS attempts in a row have ended with the
 * same status.
 *
 * BACK-OFF: none after an attempt that made a new step; otherwise 1, 2, 4 ... at most LT_BACK_OFF_S
 * seconds. */
#ifndef LT_PLATFORM_CONTROLLER_H
#define LT_PLATFORM_CONTROLLER_H

#include <stdbool.h>

#include "lateen/base.h"

#define LT_KILL_S        10.0
#define LT_BACK_OFF_S    60.0
#define LT_FREE_IN_A_ROW 10
#define LT_SAME_STARTS   3

/* Exit statuses of ranks, beside 0, 1 and 2; sysexits.h names the values. */
#define LT_RANK_DEVICE     74  /* EX_IOERR: the device failed. */
#define LT_RANK_STOPPED    75  /* EX_TEMPFAIL: stopped, with everything saved. */
#define LT_RANK_LOST       76  /* EX_PROTOCOL: another rank failed. */
#define LT_RANK_REPLACED   77  /* EX_NOPERM: a newer attempt holds the run folder. */
#define LT_RANK_CORRUPT    78  /* Its state, or that of others that hold the same, is wrong. */
#define LT_RANK_CANNOT_RUN 127 /* The program cannot be run; a shell gives the same status. */

/* Name; whether it costs a retry; whether it ends the run when repeated; whether it ends the run
 * at once. */
#define LT_FAULT_MAP(X)                                                                            \
    X(NONE, "none", false, false, false)                                                           \
    X(USAGE, "usage", false, false, true)                                                          \
    X(REPLACED, "replaced", false, false, true)                                                    \
    X(CRASH, "crash", true, true, false)                                                           \
    X(KILLED, "killed", true, false, false)                                                        \
    X(TOLD, "told", true, false, false)                                                            \
    X(HANG, "hang", true, true, false)                                                             \
    X(SILENT, "silent", false, false, false)                                                       \
    X(DEVICE, "device", false, false, false)                                                       \
    X(CORRUPT, "corrupt", false, true, false)                                                      \
    X(GROW, "grow", false, false, false)                                                           \
    X(LOST, "lost", true, false, false)
typedef enum {
#define LT_FAULT_ENUM(id, name, costs, repeats, ends) LT_FAULT_##id,
    LT_FAULT_MAP(LT_FAULT_ENUM)
#undef LT_FAULT_ENUM
        LT_FAULTS
} lt_fault_kind;
const char *lt_fault_name(lt_fault_kind kind);

/* The kind of fault for a rank that ended with a status of waitpid. */
lt_fault_kind lt_fault_of_status(int status);

typedef struct {
    lt_fault_kind kind; /* NONE: the attempt has had no fault. */
    int rank;           /* -1: not a fault of a single rank. */
    int status;         /* As returned by waitpid; 0: the rank had not ended. */
    int64_t step;       /* The last step that was completed before it; -1: unknown. */
} lt_fault;

#define LT_CONTROL_STATE_MAP(X) X(STARTING) X(RUNNING) X(ENDING) X(KILLING) X(WAITING) X(OVER)
typedef enum {
#define LT_CONTROL_STATE_ENUM(id) LT_CONTROL_##id,
    LT_CONTROL_STATE_MAP(LT_CONTROL_STATE_ENUM)
#undef LT_CONTROL_STATE_ENUM
        LT_CONTROL_STATES
} lt_control_state;

typedef enum { LT_ON_READY, LT_ON_FAULT, LT_ON_EMPTY, LT_ON_LATE, LT_ON_STOP, LT_EVENTS } lt_event;

/* What the launcher must do: nothing; tell the ranks that one has failed; kill them; wait until
 * the back-off is over; start the next attempt; end. */
typedef enum {
    LT_DO_NOTHING,
    LT_DO_TELL,
    LT_DO_KILL,
    LT_DO_WAIT,
    LT_DO_BEGIN,
    LT_DO_END
} lt_action;

typedef struct {
    int retries;    /* How many faults that cost a retry may be followed by another attempt. */
    double grace_s; /* Time for ranks to end by themselves. */
    double hang_s;  /* 0: no attempt is considered to hang. */
    bool requeue;   /* The job can be queued again, for another machine. */
} lt_control_options;

typedef struct {
    lt_control_options o;
    lt_control_state state;
    double until_s;         /* The state's deadline; 0: it has none. */
    int attempt;            /* The current attempt, from 1. */
    int used, free_in_row;  /* Retries used; faults since the last new step that cost none. */
    int without_progress;   /* Attempts in a row that made no new step. */
    int same_starts;        /* How many of them ended before any step and with the same status. */
    int64_t best_step;      /* The largest step of all attempts. */
    int64_t step;           /* The largest step of this attempt. */
    int64_t best_before;    /* The largest step of all attempts before this one. */
    lt_fault fault, before; /* Faults of this attempt and of the one before it. */
    bool stop_asked, elsewhere;
    char why[256]; /* Why the last decision was made. */
} lt_controller;

/* The first attempt begins. */
void lt_controller_open(lt_controller *c, const lt_control_options *o, double now_s);
/* A rank has reached a new phase or step. */
void lt_controller_progress(lt_controller *c, int64_t step, double now_s);
/* The first fault is kept. Later ones of the same attempt are consequences of it and are dropped,
 * unless the first is LOST. */
lt_action lt_controller_fault(lt_controller *c, const lt_fault *fault, double now_s);
lt_action lt_controller_event(lt_controller *c, lt_event event, double now_s);
/* Seconds from the last decision to the next attempt. */
double lt_controller_back_off(const lt_controller *c);
/* Handle LATE if a deadline has passed. Call it repeatedly. */
lt_action lt_controller_tick(lt_controller *c, double now_s);

#endif
