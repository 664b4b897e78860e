/* controller.c: see controller.h. */
#include "platform/agent/controller.h"

#include <signal.h>
#include <stdio.h>
#include <sys/wait.h>

#include "base/error.h"

#define USAGE 2

typedef struct {
    const char *name;
    bool costs, repeats, ends;
} fault_row;
#define FAULT_ROW(id, name, costs, repeats, ends) {name, costs, repeats, ends},
static const fault_row faults[LT_FAULTS] = {LT_FAULT_MAP(FAULT_ROW)};

/* The header's table of events. DECIDE stands for the result of decide(). */
#define DECIDE LT_CONTROL_STATES
typedef struct {
    lt_control_state from;
    lt_event on;
    lt_control_state to;
    lt_action action;
} transition;
static const transition transitions[] = {
    {LT_CONTROL_STARTING, LT_ON_READY, LT_CONTROL_RUNNING, LT_DO_NOTHING},
    {LT_CONTROL_STARTING, LT_ON_FAULT, LT_CONTROL_ENDING, LT_DO_TELL},
    {LT_CONTROL_STARTING, LT_ON_EMPTY, DECIDE, LT_DO_NOTHING},
    {LT_CONTROL_STARTING, LT_ON_LATE, LT_CONTROL_ENDING, LT_DO_TELL},
    {LT_CONTROL_RUNNING, LT_ON_FAULT, LT_CONTROL_ENDING, LT_DO_TELL},
    {LT_CONTROL_RUNNING, LT_ON_EMPTY, DECIDE, LT_DO_NOTHING},
    {LT_CONTROL_RUNNING, LT_ON_LATE, LT_CONTROL_ENDING, LT_DO_TELL},
    {LT_CONTROL_ENDING, LT_ON_EMPTY, DECIDE, LT_DO_NOTHING},
    {LT_CONTROL_ENDING, LT_ON_LATE, LT_CONTROL_KILLING, LT_DO_KILL},
    {LT_CONTROL_KILLING, LT_ON_EMPTY, DECIDE, LT_DO_NOTHING},
    {LT_CONTROL_KILLING, LT_ON_LATE, DECIDE, LT_DO_NOTHING},
    {LT_CONTROL_WAITING, LT_ON_LATE, LT_CONTROL_STARTING, LT_DO_BEGIN},
    {LT_CONTROL_WAITING, LT_ON_STOP, LT_CONTROL_OVER, LT_DO_END},
};

const char *lt_fault_name(lt_fault_kind kind) {
    return faults[kind].name;
}

lt_fault_kind lt_fault_of_status(int status) {
    static const int crashes[] = {SIGSEGV, SIGABRT, SIGFPE, SIGILL, SIGTRAP, SIGSYS};
    static const struct {
        int status;
        lt_fault_kind kind;
    } statuses[] = {{0, LT_FAULT_NONE},
                    {USAGE, LT_FAULT_USAGE},
                    {LT_RANK_CANNOT_RUN, LT_FAULT_USAGE},
                    {LT_RANK_DEVICE, LT_FAULT_DEVICE},
                    {LT_RANK_STOPPED, LT_FAULT_NONE},
                    {LT_RANK_LOST, LT_FAULT_LOST},
                    {LT_RANK_REPLACED, LT_FAULT_REPLACED},
                    {LT_RANK_CORRUPT, LT_FAULT_CORRUPT}};
    for (size_t i = 0; WIFEXITED(status) && i < sizeof statuses / sizeof *statuses; i++) {
        if (WEXITSTATUS(status) == statuses[i].status) {
            return statuses[i].kind;
        }
    }
    for (size_t i = 0; WIFSIGNALED(status) && i < sizeof crashes / sizeof *crashes; i++) {
        if (WTERMSIG(status) == crashes[i]) {
            return LT_FAULT_CRASH;
        }
    }
    return WIFEXITED(status)            ? LT_FAULT_CRASH
           : WTERMSIG(status) == SIGBUS ? LT_FAULT_DEVICE
                                        : LT_FAULT_KILLED;
}

double lt_controller_back_off(const lt_controller *c) {
    double wait_s = 1.0;
    for (int i = 1; i < c->without_progress && wait_s < LT_BACK_OFF_S; i++) {
        wait_s *= 2.0;
    }
    return c->without_progress == 0 ? 0.0 : wait_s < LT_BACK_OFF_S ? wait_s : LT_BACK_OFF_S;
}

/* ---- Decisions ------------------------------------------------------------------------------- */

static bool is_repeated(const lt_controller *c) {
    const lt_fault *a = &c->fault, *b = &c->before;
    return faults[a->kind].repeats && a->step >= 0 && a->kind == b->kind && a->rank == b->rank &&
           a->status == b->status && a->step == b->step;
}

/* Number of attempts in a row, including this one, that ended with the same status before any
 * step was made. */
static int same_starts(const lt_controller *c) {
    const lt_fault *a = &c->fault, *b = &c->before;
    if (a->kind != LT_FAULT_CRASH || !WIFEXITED(a->status) || c->best_step >= 0) {
        return 0;
    }
    return b->kind == a->kind && b->status == a->status ? c->same_starts + 1 : 1;
}

/* Whether the run ends, with the reason in c->why. If it does not, the fault is counted. */
static bool is_the_end(lt_controller *c) {
    const lt_fault *f = &c->fault;
    const fault_row *row = &faults[f->kind];
    if (f->kind == LT_FAULT_NONE) {
        return snprintf(c->why, sizeof c->why, "the ranks have ended") > 0;
    }
    if (c->stop_asked) {
        return snprintf(c->why, sizeof c->why, "a stop was requested") > 0;
    }
    if (f->kind == LT_FAULT_GROW) {
        (void)snprintf(c->why, sizeof c->why, "a node is back, and the run grows");
        return false;
    }
    if (row->ends) {
        return snprintf(c->why, sizeof c->why, "a fault of kind '%s' would happen again",
                        row->name) > 0;
    }
    if (c->o.requeue && !row->costs && (c->o.retries == 0 || c->free_in_row > 0)) {
        c->elsewhere = true;
        return snprintf(c->why, sizeof c->why, "a fault of hardware%s: the run continues elsewhere",
                        c->free_in_row > 0 ? " again, without a new step" : "") > 0;
    }
    if (c->o.retries == 0) {
        return snprintf(c->why, sizeof c->why, "no retries were asked for") > 0;
    }
    if (is_repeated(c)) {
        return snprintf(c->why, sizeof c->why,
                        "the same fault came twice after step %lld, so another attempt would not "
                        "help",
                        (long long)f->step) > 0;
    }
    if (c->same_starts >= LT_SAME_STARTS) {
        return snprintf(c->why, sizeof c->why,
                        "%d attempts in a row ended with status %d before the first step, so "
                        "another one would not help",
                        c->same_starts, WEXITSTATUS(f->status)) > 0;
    }
    if (row->costs && c->used >= c->o.retries) {
        return snprintf(c->why, sizeof c->why, "all %d retries are used", c->o.retries) > 0;
    }
    if (!row->costs && c->free_in_row >= LT_FREE_IN_A_ROW) {
        return snprintf(c->why, sizeof c->why, "%d faults of hardware in a row without a new step",
                        c->free_in_row + 1) > 0;
    }
    c->used += row->costs;
    c->free_in_row += !row->costs;
    (void)snprintf(c->why, sizeof c->why, "%s; %d of %d retries used",
                   row->costs ? "the fault costs a retry" : "a fault of hardware costs no retry",
                   c->used, c->o.retries);
    return false;
}

static lt_action decide(lt_controller *c, double now_s) {
    if (c->step > c->best_before) {
        c->without_progress = c->free_in_row = 0;
    } else {
        c->without_progress++;
    }
    c->same_starts = same_starts(c);
    if (is_the_end(c)) {
        c->state = LT_CONTROL_OVER;
        c->until_s = 0.0;
        return LT_DO_END;
    }
    c->before = c->fault;
    c->state = LT_CONTROL_WAITING;
    c->until_s = now_s + lt_controller_back_off(c);
    return LT_DO_WAIT;
}

/* ---- States ---------------------------------------------------------------------------------- */

static double deadline_of(const lt_controller *c, double now_s) {
    const double hang_s = c->o.hang_s > 0.0 ? now_s + c->o.hang_s : 0.0;
    const double until_s[LT_CONTROL_STATES] = {hang_s, hang_s, now_s + c->o.grace_s,
                                               now_s + LT_KILL_S};
    return until_s[c->state];
}

static void begin_attempt(lt_controller *c) {
    c->attempt++;
    c->fault = (lt_fault){.rank = -1, .step = -1};
    c->best_before = c->best_step;
    c->step = -1;
}

void lt_controller_open(lt_controller *c, const lt_control_options *o, double now_s) {
    *c = (lt_controller){.o = *o, .state = LT_CONTROL_STARTING, .best_step = -1};
    c->before = (lt_fault){.rank = -1, .step = -1};
    begin_attempt(c);
    c->until_s = deadline_of(c, now_s);
}

void lt_controller_progress(lt_controller *c, int64_t step, double now_s) {
    c->step = step > c->step ? step : c->step;
    c->best_step = step > c->best_step ? step : c->best_step;
    if (c->state == LT_CONTROL_STARTING || c->state == LT_CONTROL_RUNNING) {
        c->until_s = deadline_of(c, now_s);
    }
}

lt_action lt_controller_fault(lt_controller *c, const lt_fault *fault, double now_s) {
    LT_ASSERT(fault->kind != LT_FAULT_NONE);
    if (c->fault.kind != LT_FAULT_NONE && c->fault.kind != LT_FAULT_LOST) {
        return LT_DO_NOTHING;
    }
    c->fault = *fault;
    return lt_controller_event(c, LT_ON_FAULT, now_s);
}

lt_action lt_controller_event(lt_controller *c, lt_event event, double now_s) {
    c->stop_asked = c->stop_asked || event == LT_ON_STOP;
    for (size_t i = 0; i < sizeof transitions / sizeof *transitions; i++) {
        const transition *t = &transitions[i];
        if (t->from != c->state || t->on != event) {
            continue;
        }
        if (t->to == DECIDE) {
            return decide(c, now_s);
        }
        if (event == LT_ON_LATE && t->action == LT_DO_TELL) {
            c->fault = (lt_fault){.kind = LT_FAULT_HANG, .rank = -1, .step = c->step};
        }
        c->state = t->to;
        if (t->action == LT_DO_BEGIN) {
            begin_attempt(c);
        }
        c->until_s = deadline_of(c, now_s);
        return t->action;
    }
    return LT_DO_NOTHING;
}

lt_action lt_controller_tick(lt_controller *c, double now_s) {
    return c->until_s > 0.0 && now_s >= c->until_s ? lt_controller_event(c, LT_ON_LATE, now_s)
                                                   : LT_DO_NOTHING;
}
