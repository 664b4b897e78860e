/* launch.c: see launch.h. The loop at the end carries out the controller's decisions; everything
 * above it detects events for the controller, or reports its decisions to users. */
#include "platform/agent/launch.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "comm/board.h"
#include "comm/shm.h"
#include "platform/agent/environment.h"
#include "platform/agent/events.h"
#include "platform/agent/hosts.h"
#include "platform/agent/memory.h"
#include "platform/agent/nodes.h"
#include "platform/agent/process.h"
#include "platform/agent/recovery.h"
#include "platform/command.h"

#define LOOK_MS      100  /* Interval between checks of the ranks. */
#define LOOK_FAST_MS 10   /* The same while a recovery is timed. */
#define SAME_INT_S   1.0  /* Two SIGINTs within this time are one. */
#define REQUEUE_S    30.0 /* scontrol gives up by itself after MessageTimeout, which is 10 s. */

typedef struct {
    const lt_launch_options *o;
    lt_processes ranks;
    lt_nodes nodes;
    lt_hosts hosts;
    lt_comm_store_server *store;
    char token[LT_STORE_TOKEN];
    int segment, board_fd;
    lt_board *board;
    sigset_t before, none; /* Signals that the caller blocked; what ranks and agents block. */
    uint64_t epoch;
    lt_controller control;
    lt_events events;
    lt_recovery recovery;
    sigset_t stops;         /* The stop signals that came. */
    int asked, own_status;  /* The last of them; the status of the first rank that failed. */
    double int_s;           /* When the first SIGINT came; 0: none did. */
    bool killed, growing;   /* The ranks were killed; were told to save, since a node is back. */
    double begun_s, look_s; /* When the attempt began; when its ranks were last checked. */
    uint64_t progress;      /* Progress of all ranks together; the number never decreases. */
} launcher;

/* Whether faults, decisions and recoveries are reported. */
static bool is_told(const launcher *l) {
    return l->o->retries > 0 || l->o->requeue || l->o->n_nodes > 0;
}

/* ---- Starting -------------------------------------------------------------------------------- */

/* The node of a rank; -1: there are no nodes. */
static int node_of(const launcher *l, int rank) {
    return l->nodes.n > 0 ? lt_nodes_of_rank(&l->nodes, rank, l->ranks.n) : -1;
}

static lt_err start_rank(launcher *l, int rank) {
    lt_environment e = {.rank = rank,
                        .n = l->ranks.n,
                        .full = l->o->n_ranks,
                        .apart = l->hosts.n > 0,
                        .keep = l->o->keep,
                        .segment = l->segment,
                        .board = l->board_fd,
                        .store = lt_comm_store_server_address(l->store),
                        .token = l->token,
                        .epoch = l->epoch,
                        .beat_s = l->o->beat_s,
                        .silent_s = l->o->silent_s,
                        .memory = l->nodes.root,
                        .node = node_of(l, rank),
                        .snapshot = l->o->snapshot,
                        .mtbf_s = l->o->mtbf_s};
    lt_hosts_count(&l->hosts, rank, l->ranks.n, &e.local, &e.locals);
    if (lt_hosts_far(&l->hosts, rank)) {
        return lt_hosts_start(&l->hosts, &l->ranks, &e);
    }
    char **words = lt_environment_make(&e);
    const lt_err err = words == NULL ? lt_error_set(LT_ERR_OOM, "environment of rank %d", rank)
                                     : lt_process_start(&l->ranks, rank, words, NULL);
    lt_environment_free(words);
    return err;
}

/* Start the ranks that do not run yet, and let the others open the next world. */
static lt_err start_ranks(launcher *l) {
    LT_TRY(l->hosts.n > 0 ? LT_OK : lt_shm_make(&l->segment, l->ranks.n, l->epoch));
    lt_hosts_begin(&l->hosts);
    lt_board_begin(l->board, l->epoch);
    for (int r = 0; r < l->ranks.n; r++) {
        if (!l->ranks.all[r].runs) {
            LT_TRY(start_rank(l, r));
        } else if (lt_hosts_far(&l->hosts, r)) {
            lt_hosts_go_on(&l->ranks, r, l->epoch);
        }
    }
    return LT_OK;
}

/* End all ranks, those that wait for the next attempt included, and close their segment. */
static void end_ranks(launcher *l) {
    for (int r = 0; r < l->ranks.n; r++) {
        lt_process_end(&l->ranks, r);
    }
    if (l->segment >= 0) {
        (void)close(l->segment);
    }
    l->segment = -1;
}

/* When an attempt begins, forget everything about its ranks except which of them still run. */
static void clear_ranks(launcher *l) {
    for (int r = 0; r < l->ranks.n; r++) {
        lt_process *p = &l->ranks.all[r];
        if (p->runs) {
            p->failed = p->late = p->silent = p->suspect = p->slow = p->lost = false;
            p->n_words = 0;
        } else {
            *p = (lt_process){.out = {.fd = -1}, .err = {.fd = -1}};
        }
    }
}

/* The number of ranks with which the run can continue when `seats` of its seats have a node; 0: it
 * cannot. */
static int ranks_on(const launcher *l, int seats) {
    const lt_board_room room = lt_board_sizes_of(l->board);
    return lt_nodes_ranks_on(&l->nodes, seats, l->o->n_ranks, &room);
}

/* Whether a rank of the node holds wrong bits, or its device has failed. */
static bool is_suspect(const launcher *l, int node) {
    const lt_fault *f = &l->control.before;
    bool suspect = f->kind == LT_FAULT_DEVICE && f->rank >= 0 && node_of(l, f->rank) == node;
    for (int r = 0; r < l->ranks.n; r++) {
        suspect = suspect || (node_of(l, r) == node && l->ranks.all[r].suspect);
    }
    return suspect;
}

/* Take out nodes that were lost or became suspect in the previous attempt, and fill the seats,
 * which determines the number of ranks. */
static void place_ranks(launcher *l) {
    const bool takes_out = l->nodes.n > 0 && (l->o->spares > 0 || l->o->shrink);
    bool out[LT_NODES_MOST] = {false}, lost[LT_NODES_MOST] = {false};
    int n, before[LT_SHM_MOST_RANKS];
    for (int k = 0; takes_out && l->control.attempt > 1 && k < l->nodes.n; k++) {
        lost[k] = lt_nodes_is_lost(&l->nodes, &l->ranks, k);
        out[k] = l->nodes.all[k].state == LT_NODE_USED && (lost[k] || is_suspect(l, k));
    }
    for (int r = 0; r < l->ranks.n; r++) {
        before[r] = node_of(l, r);
        if (before[r] >= 0 && out[before[r]]) {
            lt_process_end(&l->ranks, r);
        }
    }
    for (int k = 0; takes_out && k < l->nodes.n; k++) {
        if (out[k]) {
            lt_nodes_take_out(&l->nodes, k, !lost[k], l->control.attempt);
        }
    }
    lt_nodes_seat(&l->nodes, l->o->shrink, l->control.attempt);
    n = ranks_on(l, l->nodes.n_seats);
    if (n == 0) { /* It cannot shrink. */
        lt_nodes_seat(&l->nodes, false, l->control.attempt);
        n = l->o->n_ranks;
    }
    if (n != l->ranks.n) {
        end_ranks(l); /* Another number of ranks needs another segment. */
        lt_log_info("the run continues with %d of %d ranks", n, l->o->n_ranks);
    }
    l->ranks.n = n;
    for (int r = 0; r < n; r++) {
        if (l->ranks.all[r].runs && node_of(l, r) != before[r]) {
            lt_process_end(&l->ranks, r); /* It waits on a node to which it no longer belongs. */
        }
        if (l->hosts.n > 0 && l->nodes.n > 0) {
            lt_hosts_place(&l->hosts, r, node_of(l, r));
        }
    }
}

static lt_err begin_attempt(launcher *l) {
    place_ranks(l);
    l->own_status = 0;
    l->killed = l->growing = false;
    l->progress = 0;
    lt_board_clear(l->board);
    lt_nodes_repair(&l->nodes);
    clear_ranks(l);
    lt_events_put(&l->events, l->control.attempt,
                  json_pack("{s:s, s:i}", "event", "start", "ranks", l->ranks.n));
    l->begun_s = l->look_s = lt_clock_s(); /* No fault of this attempt happened before. */
    return start_ranks(l);
}

/* Clean up after an attempt: processes in the ranks' process groups, output, the segment. Ranks
 * that wait for the next attempt stay, with their segment. */
static void end_attempt(launcher *l) {
    if (lt_processes_run(&l->ranks) && !l->killed) {
        for (int r = 0; r < l->ranks.n; r++) {
            if (!l->ranks.all[r].runs) {
                lt_process_end(&l->ranks, r);
            }
        }
        return;
    }
    lt_processes_drain(&l->ranks);
    lt_processes_signal(&l->ranks, SIGKILL);
    for (int r = 0; r < l->ranks.n; r++) {
        lt_process *p = &l->ranks.all[r];
        if (p->runs && waitpid(p->pid, &p->status, WNOHANG) != p->pid) {
            lt_log_warn("rank %d (process %d) does not end even when it is killed; it is left "
                        "behind, and can publish nothing",
                        r, (int)p->pid);
        }
        p->runs = false;
    }
    if (l->segment >= 0) {
        (void)close(l->segment);
    }
    l->segment = -1;
}

/* ---- Reports --------------------------------------------------------------------------------- */

static void describe(const launcher *l, int rank, char *out, size_t bytes) {
    const lt_process *p = &l->ranks.all[rank];
    const lt_host *host = lt_hosts_of_rank(&l->hosts, rank);
    const char *on = host != NULL ? " on " : "", *name = host != NULL ? host->name : "";
    if (p->late) {
        (void)snprintf(out, bytes,
                       "rank %d: %s runs, but %s has not started the rank within %.3g s", rank,
                       l->hosts.login_words[0], name, LT_HOSTS_LATE);
    } else if (p->silent) {
        (void)snprintf(out, bytes, "rank %d%s%s has stopped answering: no heartbeat for %.3g s",
                       rank, on, name, l->o->silent_s);
    } else if (p->cut) {
        (void)snprintf(out, bytes, "rank %d: the connection to %s has ended (%s %d of %s)", rank,
                       name, WIFSIGNALED(p->status) ? "signal" : "status",
                       WIFSIGNALED(p->status) ? WTERMSIG(p->status) : WEXITSTATUS(p->status),
                       l->hosts.login_words[0]);
    } else if (WIFSIGNALED(p->status)) {
        (void)snprintf(out, bytes, "rank %d%s%s was ended by signal %d (%s)", rank, on, name,
                       WTERMSIG(p->status), strsignal(WTERMSIG(p->status)));
    } else {
        const int status = WEXITSTATUS(p->status);
        (void)snprintf(out, bytes, "rank %d%s%s ended with status %d%s", rank, on, name, status,
                       status == LT_RANK_LOST      ? ", because of another rank"
                       : status == LT_RANK_CORRUPT ? ", because ranks do not hold the same bits"
                                                   : "");
    }
}

/* Write the event of the attempt's fault, with the lines that the rank has written up to now. */
static void tell_fault(launcher *l) {
    const lt_fault *f = &l->control.fault;
    const lt_process *p = f->rank >= 0 ? &l->ranks.all[f->rank] : NULL;
    char what[LT_STORE_NOTICE] = "";
    if (f->kind == LT_FAULT_TOLD) {
        (void)snprintf(what, sizeof what, "a rank was asked to stop, and all have saved");
    } else if (f->kind == LT_FAULT_HANG) {
        (void)snprintf(what, sizeof what, "no rank made progress for %.3g s", l->o->hang_s);
    } else if (f->kind == LT_FAULT_GROW) {
        (void)snprintf(what, sizeof what, "a node is back, and all have saved");
    } else if (f->rank < 0) {
        (void)snprintf(what, sizeof what,
                       "ranks do not hold the same bits, and none is known to "
                       "be wrong");
    } else {
        describe(l, f->rank, what, sizeof what);
    }
    lt_events_put(
        &l->events, l->control.attempt,
        json_pack("{s:s, s:s, s:i, s:I, s:s, s:o}", "event", "fault", "kind",
                  lt_fault_name(f->kind), "rank", f->rank, "step", (json_int_t)f->step, "what",
                  what, "words",
                  lt_events_words(p != NULL ? p->words : "", p != NULL ? p->n_words : 0)));
}

/* ---- Faults ---------------------------------------------------------------------------------- */

/* Report ranks that have become slow, or are no longer slow. */
static void look_at_stragglers(launcher *l) {
    for (int r = 0; r < l->ranks.n; r++) {
        lt_process *p = &l->ranks.all[r];
        const double share = lt_board_seen(l->board, r).slow;
        if (p->slow == (share > 0.0)) {
            continue;
        }
        p->slow = share > 0.0;
        lt_events_put(&l->events, l->control.attempt,
                      json_pack("{s:s, s:i, s:i, s:b, s:f}", "event", "straggler", "rank", r,
                                "node", node_of(l, r), "slow", p->slow, "share", share));
    }
}

/* Note ranks whose state or gradients others, or a repeated step, have found to be wrong. */
static void look_at_suspects(launcher *l) {
    for (int r = 0; r < l->ranks.n; r++) {
        lt_process *p = &l->ranks.all[r];
        const int64_t step = lt_board_seen(l->board, r).suspect_step;
        const int node = node_of(l, r);
        char where[32] = "";
        if (step < 0 || p->suspect) {
            continue;
        }
        p->suspect = true;
        if (node >= 0) {
            (void)snprintf(where, sizeof where, " (node %d)", node);
        }
        lt_log_warn("rank %d%s is suspect: what it held or computed was wrong at step %lld", r,
                    where, (long long)step);
        lt_events_put(&l->events, l->control.attempt,
                      json_pack("{s:s, s:i, s:i, s:I}", "event", "suspect", "rank", r, "node", node,
                                "step", (json_int_t)step));
    }
}

/* At the first fault of an attempt, start to time its recovery. */
static void time_recovery(launcher *l, const lt_fault *f, double happened_s, double now_s) {
    if (is_told(l)) {
        lt_recovery_begin(&l->recovery, l->control.attempt, f->step, happened_s, now_s);
    }
}

static void on_fault(launcher *l, const lt_fault *f, double happened_s) {
    const double now_s = lt_clock_s();
    const bool first = l->control.fault.kind == LT_FAULT_NONE;
    (void)lt_controller_fault(&l->control, f, now_s); /* It says TELL, which the caller did. */
    if (first) {
        time_recovery(l, f, happened_s, now_s);
    }
}

/* A rank has failed. The first one ends the world. */
static void fail(launcher *l, int rank) {
    lt_process *p = &l->ranks.all[rank];
    char why[LT_STORE_NOTICE];
    const lt_board_sight seen = lt_board_seen(l->board, rank);
    const bool by_itself = !p->silent && !p->cut && WIFEXITED(p->status) &&
                           WEXITSTATUS(p->status) != LT_RANK_LOST;
    /* A machine that is lost while it works has a fault of hardware; one that was never reached may
     * not. */
    const bool silent = p->silent || (p->cut && seen.phase != LT_PHASE_NONE);
    lt_fault f = {.kind = silent ? LT_FAULT_SILENT : lt_fault_of_status(p->status),
                  .rank = rank,
                  .status = silent ? 0 : p->status,
                  .step = seen.step};
    double sign_s;
    p->failed = true;
    look_at_suspects(l);
    if (f.kind == LT_FAULT_CORRUPT && !p->suspect) {
        f.rank = -1; /* It is one of several, and it is not known which. */
    }
    describe(l, rank, why, sizeof why);
    if (l->own_status == 0 && by_itself) {
        l->own_status = WEXITSTATUS(p->status);
    }
    if (l->killed && !by_itself && !p->silent) {
        return; /* The launcher itself has killed it. */
    }
    p->lost = p->silent || p->cut || WIFSIGNALED(p->status);
    lt_log_error("%s", why);
    if (l->control.fault.kind == LT_FAULT_NONE) {
        lt_comm_store_server_notice(l->store, why);
    }
    sign_s = (double)lt_board_last_ns(l->board, rank) * 1e-9;
    on_fault(l, &f, p->silent ? fmax(sign_s, l->begun_s) : l->look_s);
}

/* Whether a stop signal itself has ended a rank, which had no handler. */
static bool is_ended_by_stop(const launcher *l, int status) {
    return WIFSIGNALED(status) && sigismember(&l->stops, WTERMSIG(status)) == 1;
}

static bool is_stop(const launcher *l, int status) {
    return (WIFEXITED(status) &&
            (WEXITSTATUS(status) == 0 || WEXITSTATUS(status) == LT_RANK_STOPPED)) ||
           is_ended_by_stop(l, status);
}

/* When a stop signal comes while ranks start, it ends those that have no handler yet. The others
 * must not wait for them: they are told, and are killed if they do not end in time. */
static void look_at_unready(launcher *l) {
    for (int r = 0; lt_processes_run(&l->ranks) && r < l->ranks.n; r++) {
        lt_process *p = &l->ranks.all[r];
        const lt_fault f = {.kind = LT_FAULT_KILLED, .rank = r, .status = p->status, .step = -1};
        char why[LT_STORE_NOTICE];
        if (p->runs || p->failed || !is_ended_by_stop(l, p->status)) {
            continue;
        }
        p->failed = true;
        if (l->control.fault.kind == LT_FAULT_NONE) {
            describe(l, r, why, sizeof why);
            lt_comm_store_server_notice(l->store, why);
        }
        (void)lt_controller_fault(&l->control, &f, lt_clock_s()); /* No recovery follows. */
    }
}

static void reap(launcher *l) {
    for (int r = 0; r < l->ranks.n; r++) {
        lt_process *p = &l->ranks.all[r];
        if (p->runs && waitpid(p->pid, &p->status, WNOHANG) == p->pid) {
            p->runs = false;
            p->cut = lt_hosts_far(&l->hosts, r) && !lt_hosts_end(l->store, r, &p->status);
            /* If a machine is off, only its first rank has been killed because of its silence. */
            p->silent = p->silent ||
                        (p->cut && lt_comm_store_server_life(l->store, r) == LT_LIFE_SILENT);
            if (!p->failed && (p->cut || !is_stop(l, p->status))) {
                fail(l, r);
            }
        }
    }
}

/* Find ranks that have left their world: another's failure is the cause, as for LT_RANK_LOST. */
static void look_at_leavers(launcher *l) {
    for (int r = 0; r < l->ranks.n; r++) {
        lt_process *p = &l->ranks.all[r];
        const lt_board_sight s = lt_board_seen(l->board, r);
        const lt_fault f = {.kind = LT_FAULT_LOST, .rank = r, .step = s.step};
        if (!p->runs || p->failed || !s.left) {
            continue;
        }
        p->failed = true;
        if (l->control.fault.kind == LT_FAULT_NONE) {
            lt_comm_store_server_notice(l->store, "a rank has left");
        }
        on_fault(l, &f, l->look_s);
    }
}

/* Whether no rank is in the attempt's world any more. */
static bool is_empty(const launcher *l) {
    for (int r = 0; r < l->ranks.n; r++) {
        if (l->ranks.all[r].runs && !lt_board_seen(l->board, r).left) {
            return false;
        }
    }
    return true;
}

static void look_at_hearts(launcher *l) {
    for (int r = 0; l->control.fault.kind == LT_FAULT_NONE && r < l->ranks.n; r++) {
        lt_process *p = &l->ranks.all[r];
        lt_hosts_find_late(&l->hosts, r, p, lt_clock_s());
        p->silent = p->runs && lt_comm_store_server_life(l->store, r) == LT_LIFE_SILENT;
        if (p->late || p->silent) {
            fail(l, r);
            /* It does not respond, so it is not given the time that the others have to end. */
            lt_process_kill(&l->ranks, r);
        }
    }
}

static void heed_signals(launcher *l) {
    struct signalfd_siginfo info;
    while (read(l->ranks.signals, &info, sizeof info) == (ssize_t)sizeof info) {
        const int number = (int)info.ssi_signo;
        if (number == SIGTSTP) {
            lt_processes_signal(&l->ranks, SIGSTOP);
            (void)raise(SIGSTOP);
            lt_processes_signal(&l->ranks, SIGCONT);
        } else if (number == SIGINT && l->int_s > 0.0 && lt_clock_s() - l->int_s >= SAME_INT_S) {
            l->killed = true;
            lt_processes_signal(&l->ranks, SIGKILL);
        } else if (number != SIGCHLD && number != SIGCONT) {
            l->int_s = number == SIGINT && l->int_s == 0.0 ? lt_clock_s() : l->int_s;
            l->asked = number;
            (void)sigaddset(&l->stops, number);
            lt_processes_signal(&l->ranks, number);
        }
    }
}

/* The phase that all ranks have reached, and the least step. */
static lt_phase slowest(const launcher *l, int64_t *step) {
    lt_phase least = LT_PHASES - 1;
    *step = INT64_MAX;
    for (int r = 0; r < l->ranks.n; r++) {
        const lt_board_sight s = lt_board_seen(l->board, r);
        least = s.phase < least ? s.phase : least;
        *step = s.step < *step ? s.step : *step;
    }
    return least;
}

static void look_at_progress(launcher *l) {
    uint64_t progress = 0;
    int64_t step;
    const lt_phase phase = slowest(l, &step);
    for (int r = 0; r < l->ranks.n; r++) {
        const lt_board_sight s = lt_board_seen(l->board, r);
        progress += (uint64_t)(s.step + 1) + (uint64_t)s.phase;
    }
    lt_events_folder(&l->events, lt_board_folder_of(l->board));
    look_at_suspects(l);
    look_at_stragglers(l);
    if (progress > l->progress) {
        l->progress = progress;
        lt_controller_progress(&l->control, step, lt_clock_s());
    }
    if (phase == LT_PHASE_STEPPED && l->control.state == LT_CONTROL_STARTING) {
        (void)lt_controller_event(&l->control, LT_ON_READY, lt_clock_s());
    }
    if (l->control.fault.kind == LT_FAULT_NONE) {
        lt_recovery_follow(&l->recovery, l->control.attempt, l->board, l->ranks.n, phase, step);
    }
}

/* ---- Carrying out ---------------------------------------------------------------------------- */

static int status_of(const launcher *l) {
    const char *verb = l->ranks.argv[0] != NULL ? l->ranks.argv[1] : NULL;
    const int ended_by = lt_processes_ended_by(&l->ranks, &l->stops);
    if (l->own_status == 0 && ended_by != 0) {
        /* Training had no handler yet, so it had nothing to save. */
        return verb != NULL && strcmp(verb, "train") == 0 ? LT_RANK_STOPPED : 128 + ended_by;
    }
    if (l->control.fault.kind != LT_FAULT_NONE && l->control.fault.kind != LT_FAULT_TOLD) {
        return l->own_status != 0 ? l->own_status : LT_RANK_LOST;
    }
    return lt_processes_status(&l->ranks);
}

/* Notice that a rank, and not the launcher, received a signal, and that the ranks have saved and
 * ended. A stop by the file RUN/exit comes from the user and has no signal number. */
static void notice_told(launcher *l) {
    const int stop = lt_board_seen(l->board, 0).stop;
    if (l->control.fault.kind == LT_FAULT_NONE && l->growing && l->asked == 0 &&
        status_of(l) == LT_RANK_STOPPED) {
        const lt_fault f = {
            .kind = LT_FAULT_GROW, .rank = -1, .step = lt_board_seen(l->board, 0).step};
        on_fault(l, &f, lt_clock_s());
        return;
    }
    if (l->control.fault.kind == LT_FAULT_NONE && l->asked == 0 && stop > 0 && stop < NSIG &&
        status_of(l) == LT_RANK_STOPPED && l->o->retries > 0) {
        const lt_fault f = {
            .kind = LT_FAULT_TOLD, .rank = -1, .step = lt_board_seen(l->board, 0).step};
        lt_log_warn("a rank, and not the launcher, was asked to stop by signal %d (%s)", stop,
                    strsignal(stop));
        on_fault(l, &f, lt_clock_s());
    }
}

static void tell_decision(launcher *l, bool again, double wait_s) {
    if (!is_told(l) || l->control.fault.kind == LT_FAULT_NONE) {
        return;
    }
    tell_fault(l);
    lt_events_put(&l->events, l->control.attempt,
                  json_pack("{s:s, s:b, s:s, s:f}", "event", "decision", "again", again, "why",
                            l->control.why, "wait_s", wait_s));
    if (l->recovery.runs) {
        lt_recovery_end_phase(&l->recovery, l->control.attempt, lt_clock_s());
    }
    if (again) {
        lt_log_info("attempt %d begins in %.0f s: %s", l->control.attempt + 1, wait_s,
                    l->control.why);
    } else {
        lt_log_error("attempt %d was the last one: %s", l->control.attempt, l->control.why);
    }
}

/* Called when no process of the attempt is left, or none that can be ended. */
static lt_action on_empty(launcher *l, lt_event event) {
    lt_action action;
    end_attempt(l);
    lt_nodes_look(&l->nodes, l->control.attempt); /* The agent of a node may have ended, too. */
    notice_told(l);
    action = lt_controller_event(&l->control, event, lt_clock_s());
    tell_decision(l, action == LT_DO_WAIT, lt_controller_back_off(&l->control));
    return action;
}

/* If a node is back while ranks are missing, all save and end, and the next attempt has more. */
static void look_at_growth(launcher *l) {
    if (!l->o->shrink || l->growing || l->asked != 0 || l->ranks.n == l->o->n_ranks ||
        l->control.state != LT_CONTROL_RUNNING ||
        ranks_on(l, lt_nodes_seats_ahead(&l->nodes)) <= l->ranks.n) {
        return;
    }
    lt_log_info("the ranks save, so that the run can grow");
    l->growing = true;
    lt_processes_signal(&l->ranks, SIGTERM);
}

/* The last resort: Slurm starts the job again, on nodes that it considers healthy. */
static void leave_machine(launcher *l, int *status) {
    const char *job = getenv("SLURM_JOB_ID");
    const char *const words[] = {"scontrol", "requeue", job, NULL};
    char *text = NULL;
    const bool queued = job != NULL && lt_command_run(&text, words, REQUEUE_S) == LT_OK;
    *status = LT_RANK_STOPPED;
    if (job != NULL && !queued) {
        lt_log_warn("job %s is not queued again (%s); this command, started again, continues", job,
                    lt_error_message());
    }
    lt_events_put(&l->events, l->control.attempt,
                  json_pack("{s:s, s:s, s:b}", "event", "requeue", "job", job != NULL ? job : "",
                            "queued", queued));
    free(text);
}

static lt_err carry_out(launcher *l, lt_action action) {
    if (action == LT_DO_TELL) { /* The attempt hangs. */
        char why[LT_STORE_NOTICE];
        (void)snprintf(why, sizeof why, "no rank has made progress for %.3g s", l->o->hang_s);
        lt_log_error("%s", why);
        lt_comm_store_server_notice(l->store, why);
        time_recovery(l, &l->control.fault, lt_clock_s() - l->o->hang_s, lt_clock_s());
    }
    if (action == LT_DO_KILL) {
        l->killed = true;
        lt_processes_signal(&l->ranks, SIGKILL);
    }
    if (action == LT_DO_BEGIN) {
        if (l->recovery.runs) {
            lt_recovery_end_phase(&l->recovery, l->control.attempt, lt_clock_s());
        }
        lt_comm_store_server_begin(l->store, ++l->epoch);
        return begin_attempt(l);
    }
    return LT_OK;
}

/* Check everything once. */
static lt_err look(launcher *l) {
    const bool waits = l->control.state == LT_CONTROL_WAITING;
    const double now_s = lt_clock_s();
    (void)lt_processes_wait(&l->ranks, l->recovery.runs ? LOOK_FAST_MS : LOOK_MS);
    lt_nodes_look(&l->nodes, l->control.attempt);
    heed_signals(l);
    if (l->asked != 0) {
        (void)lt_controller_event(&l->control, LT_ON_STOP, lt_clock_s());
    }
    if (waits) {
        return carry_out(l, lt_controller_tick(&l->control, lt_clock_s()));
    }
    lt_hosts_look(&l->hosts, l->store, l->board);
    reap(l);
    look_at_unready(l);
    look_at_hearts(l);
    look_at_leavers(l);
    look_at_progress(l);
    look_at_growth(l);
    l->look_s = now_s;
    if (is_empty(l)) {
        return carry_out(l, on_empty(l, LT_ON_EMPTY));
    }
    if (l->control.state == LT_CONTROL_KILLING && lt_clock_s() >= l->control.until_s) {
        return carry_out(l, on_empty(l, LT_ON_LATE));
    }
    return carry_out(l, lt_controller_tick(&l->control, lt_clock_s()));
}

static lt_err open_launcher(launcher *l, const char *path, char *const *argv) {
    const int numbers[] = {SIGCHLD, SIGTERM, SIGINT,  SIGHUP, SIGUSR1,
                           SIGUSR2, SIGXCPU, SIGTSTP, SIGCONT};
    struct sigaction hup;
    sigset_t set;
    (void)sigemptyset(&l->none);
    (void)sigemptyset(&l->stops);
    (void)sigemptyset(&set);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        (void)sigaddset(&set, numbers[i]);
    }
    if (sigaction(SIGHUP, NULL, &hup) == 0 && hup.sa_handler == SIG_IGN) {
        (void)sigdelset(&set, SIGHUP); /* Under nohup; a signalfd would receive it anyway. */
    }
    (void)sigprocmask(SIG_BLOCK, &set, &l->before); /* Before the store's thread starts. */
    (void)signal(SIGPIPE, SIG_IGN);
    l->ranks = (lt_processes){.plain = l->o->plain,
                              .path = path,
                              .argv = argv,
                              .mask = l->none,
                              .signals = signalfd(-1, &set, SFD_NONBLOCK | SFD_CLOEXEC)};
    LT_TRY(lt_processes_open(&l->ranks, l->o->n_ranks));
    if (l->ranks.signals < 0) {
        LT_FAIL(LT_ERR_IO, "signals: %s", strerror(errno));
    }
    LT_TRY(lt_board_make(&l->board, &l->board_fd, l->o->n_ranks));
    if (l->o->keep) {
        lt_board_keep_ranks(l->board);
    }
    LT_TRY(lt_comm_store_token(l->token));
    LT_TRY(lt_nodes_open(&l->nodes, &(lt_nodes_options){.n = l->o->n_nodes,
                                                        .spares = l->o->spares,
                                                        .hosts = &l->hosts,
                                                        .back_s = l->o->back_s,
                                                        .path = "/proc/self/exe",
                                                        .mask = &l->none,
                                                        .token = l->token,
                                                        .events = &l->events}));
    return lt_comm_store_server_open(&l->store, l->hosts.n > 0 ? l->hosts.address : "127.0.0.1", 0,
                                     l->o->n_ranks, l->token, l->epoch);
}

static void close_launcher(launcher *l) {
    lt_processes_signal(&l->ranks, SIGKILL);
    lt_comm_store_server_close(l->store);
    if (l->ranks.signals >= 0) {
        (void)close(l->ranks.signals);
    }
    lt_board_close(l->board);
    if (l->board_fd >= 0) {
        (void)close(l->board_fd);
    }
    (void)sigprocmask(SIG_SETMASK, &l->before, NULL);
    lt_processes_close(&l->ranks);
    lt_nodes_close(&l->nodes);
    lt_hosts_close(&l->hosts);
    lt_events_close(&l->events);
}

lt_err lt_launch(const lt_launch_options *o, const char *path, char *const *argv, int *status) {
    const lt_control_options control = {o->retries, o->grace_s, o->hang_s, o->requeue};
    lt_err err = LT_OK;
    lt_launch_options all = *o;
    launcher l = {.o = &all,
                  .segment = -1,
                  .board_fd = -1,
                  .ranks = {.signals = -1},
                  .recovery = {.events = &l.events, .step = -1},
                  .epoch = (uint64_t)o->attempt << 32 | 1};

    LT_TRY_DONE(lt_hosts_open(&l.hosts, o->hosts != NULL ? o->hosts : "", o->spares,
                              o->login != NULL ? o->login : "",
                              o->address != NULL ? o->address : ""));
    LT_TRY_DONE(lt_launch_check(&all, &l.hosts));
    lt_events_open(&l.events, is_told(&l), (int)o->attempt);
    LT_TRY_DONE(open_launcher(&l, path, argv));
    lt_controller_open(&l.control, &control, lt_clock_s());
    LT_TRY_DONE(begin_attempt(&l));
    while (l.control.state != LT_CONTROL_OVER) {
        LT_TRY_DONE(look(&l));
    }
    *status = status_of(&l);
    if (l.control.elsewhere) {
        leave_machine(&l, status);
    }
    lt_events_put(&l.events, l.control.attempt,
                  json_pack("{s:s, s:i}", "event", "end", "status", *status));
done:
    close_launcher(&l);
    return err;
}
