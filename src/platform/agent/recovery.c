/* recovery.c: see recovery.h. */
#include "platform/agent/recovery.h"

#include <stdio.h>

#include "base/clock.h"
#include "base/log.h"

void lt_recovery_end_phase(lt_recovery *r, int attempt, double now_s) {
    const double seconds = now_s > r->mark_s ? now_s - r->mark_s : 0.0;
    char text[160];
    (void)snprintf(text, sizeof text, lt_recovery_texts[r->next], seconds);
    lt_log_info("attempt %d: %s", attempt, text);
    lt_events_put(r->events, attempt,
                  json_pack("{s:s, s:s, s:f}", "event", "phase", "phase",
                            lt_recovery_names[r->next], "seconds", seconds));
    r->mark_s += seconds;
    r->next++;
}

void lt_recovery_begin(lt_recovery *r, int attempt, int64_t step, double well_s, double now_s) {
    r->runs = true;
    r->next = 0;
    r->well_s = r->mark_s = well_s;
    r->step = step > r->step ? step : r->step;
    lt_recovery_end_phase(r, attempt, now_s);
}

/* When the last rank reached a phase. */
static double reached_s(const lt_board *board, int n, lt_phase phase) {
    uint64_t at_ns = 0;
    for (int r = 0; r < n; r++) {
        const uint64_t ns = lt_board_seen(board, r).at_ns[phase];
        at_ns = ns > at_ns ? ns : at_ns;
    }
    return (double)at_ns * 1e-9;
}

static void end(lt_recovery *r, int attempt, int64_t from) {
    const int64_t lost = r->step > from && from >= 0 ? r->step - from : 0;
    lt_log_info("attempt %d has recovered: %.2f s and %lld steps were lost", attempt,
                r->mark_s - r->well_s, (long long)lost);
    lt_events_put(r->events, attempt,
                  json_pack("{s:s, s:f, s:I, s:I}", "event", "recovered", "seconds",
                            r->mark_s - r->well_s, "step", (json_int_t)r->step, "steps_lost",
                            (json_int_t)lost));
    r->runs = false;
    r->step = -1;
}

void lt_recovery_follow(lt_recovery *r, int attempt, const lt_board *board, int n, lt_phase phase,
                        int64_t step) {
    static const struct {
        lt_recovery_phase ends;
        lt_phase at;
    } rows[] = {{LT_RECOVERY_RELAUNCH, LT_PHASE_STARTED},
                {LT_RECOVERY_CONNECT, LT_PHASE_CONNECTED},
                {LT_RECOVERY_LOAD, LT_PHASE_LOADED}};
    if (!r->runs) {
        return;
    }
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        if (r->next == rows[i].ends && phase >= rows[i].at) {
            lt_recovery_end_phase(r, attempt, reached_s(board, n, rows[i].at));
        }
    }
    if (r->next == LT_RECOVERY_RECOMPUTE && phase == LT_PHASE_STEPPED && step > r->step) {
        lt_recovery_end_phase(r, attempt, lt_clock_s());
        end(r, attempt, lt_board_seen(board, 0).loaded_step);
    }
}
