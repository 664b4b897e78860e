/* history.h: the history of a node, as JSON lines in a file to which lines are appended, until
 * those older than twice the window are dropped:
 *
 *     {"kind": "check", "time": 1795000000, "node": "n7", "tier": 1, "result": "drain",
 *      "boot": "...", "uptime_s": 8000, "xids": 1,
 *      "counters": {"gpu.pcie_replays_per_h gpu0": 12},
 *      "findings": [{"check": ..., "object": ..., "value": ..., "result": ...}]}
 *     {"kind": "note", "time": 1795000001, "node": "n7", "what": "ticket", "text": "..."}
 *
 * A line that cannot be read, such as one cut by a full disk, does not count and is dropped at
 * the next write; the check reports the file among those that it could not read. A file without
 * any line of this form is not a history, and is refused. FILE.lock serialises checks that run at
 * the same time, such as those of Slurm's prolog and of its health program. */
#ifndef LT_PLATFORM_HEALTH_HISTORY_H
#define LT_PLATFORM_HEALTH_HISTORY_H

#include "platform/health/facts.h"

#define LT_HISTORY_DAYS 28

/* The information from earlier lines that a check needs. */
typedef struct {
    int lock_fd;  /* -1: there is no history. */
    double time;  /* Time of this check: seconds since 1970. */
    json_t *last; /* The newest check; NULL: none. */
    /* The signals, in the order of the table. */
    double signals[LT_CHECK_LEMON_SCORE - LT_CHECK_LEMON_EXCLUSIONS];
    /* Number of lines that cannot be read; number of the first one, from 1. */
    int64_t n_unread, first_unread;
    bool has_old; /* There are lines to drop. */
    bool is_cut;  /* The last line has no end. */
} lt_history;

/* Lock and read a history; path "": an empty one. Close it in any case. */
LT_MUST_USE lt_err lt_history_open(lt_history *h, const char *path);
/* Growth per hour of a counter since the last check of this boot, or since the boot; NAN: it is
 * not known. */
double lt_history_rate(const lt_history *h, const lt_facts *f, const lt_fact *fact);
/* The uptime at the last check if it was in this boot, otherwise 0. */
double lt_history_last_uptime(const lt_history *h, const char *boot);
/* ARG: there is no such kind of note. */
LT_MUST_USE lt_err lt_history_note_check(const char *what);
/* Append a line, which this takes over, and drop old lines if there are any. */
LT_MUST_USE lt_err lt_history_append(lt_history *h, const char *path, json_t *line);
void lt_history_close(lt_history *h);

#endif
