/* recovery.h: times the recovery of a run from a fault. It begins when the ranks were last known to
 * be well and ends when the run has passed the step that it had reached before. Its phases
 * (LT_RECOVERY_MAP) follow each other without a gap, so their times add up to that of the recovery.
 * Each is reported when it is over, as a line of the log and as an event of RUN/events.jsonl. */
#ifndef LT_PLATFORM_RECOVERY_H
#define LT_PLATFORM_RECOVERY_H

#include <stdbool.h>
#include <stdint.h>

#include "comm/board.h"
#include "platform/agent/events.h"

typedef struct {
    lt_events *events;
    bool runs;
    lt_recovery_phase next; /* The phase that is not over yet. */
    double well_s, mark_s;  /* When the ranks were last known to be well; end of the last phase. */
    int64_t step;           /* The step to reach again; -1: unknown. */
} lt_recovery;

/* A fault of ranks that were well at well_s and have reached `step` is noticed now: the first phase
 * is over. If a recovery runs already, the further of the two steps is to be reached. */
void lt_recovery_begin(lt_recovery *r, int attempt, int64_t step, double well_s, double now_s);
/* The phase that runs is over. */
void lt_recovery_end_phase(lt_recovery *r, int attempt, double now_s);
/* Record the phases that are over, now that all n ranks of the board have reached `phase` and
 * `step`. Does nothing if no recovery runs. */
void lt_recovery_follow(lt_recovery *r, int attempt, const lt_board *board, int n, lt_phase phase,
                        int64_t step);

#endif
