/* log.h: messages for people, on stderr and optionally in a file, too (the log of a run folder).
 * Programs read metrics.jsonl instead. */
#ifndef LT_BASE_LOG_H
#define LT_BASE_LOG_H

#include <stdbool.h>
#include <stdint.h>

#include "lateen/base.h"

typedef enum { LT_LOG_ERROR, LT_LOG_WARN, LT_LOG_INFO, LT_LOG_DEBUG } lt_log_level;

/* Messages above this level are dropped; the default is INFO, or
 * LATEEN_LOG=error|warn|info|debug. `--verbose` of the command line sets DEBUG. */
void lt_log_set_level(lt_log_level level);

/* From now on every message, in the file too, and every plain progress line is a line of JSON:
 *
 *     {"time": "2026-11-28T09:00:00Z", "level": "info", "run": "demo", "attempt": 0, "epoch": 1,
 *      "rank": 0, "step": 120, "message": "..."}
 *
 * `--log-json` on the command line calls it. Members whose value is unknown are left out. */
void lt_log_set_json(void);
bool lt_log_is_json(void);
/* Set what lines of JSON say about this process. run is copied; NULL: there is no run. */
void lt_log_set_run(const char *run, uint32_t attempt, uint32_t epoch, int rank);
void lt_log_set_step(int64_t step);

/* Also append every message to this file, which stays open; NULL ends that. */
LT_MUST_USE lt_err lt_log_to_file(const char *path);

void lt_log(lt_log_level level, const char *fmt, ...) LT_PRINTF(2, 3);

/* Write to the file only; for messages that the program prints on stderr in another form. */
void lt_log_note(lt_log_level level, const char *fmt, ...) LT_PRINTF(2, 3);

/* Replace control characters by '?', because names and texts from elsewhere may contain terminal
 * commands. lines: keep line feeds and tabs. Messages of lt_log are treated in this way. */
void lt_log_tame(char *text, bool lines);

/* Whether a message of this level is shown. */
bool lt_log_shows(lt_log_level level);

/* Write the trace of this thread's last failure (lt_error_trace_text), after its message.
 * lt_log_trace writes it to the file, and to stderr when messages of level DEBUG are shown; the
 * other function writes it to the file only. */
void lt_log_trace(void);
void lt_log_note_trace(void);

#define lt_log_error(...) lt_log(LT_LOG_ERROR, __VA_ARGS__)
#define lt_log_warn(...)  lt_log(LT_LOG_WARN, __VA_ARGS__)
#define lt_log_info(...)  lt_log(LT_LOG_INFO, __VA_ARGS__)
#define lt_log_debug(...) lt_log(LT_LOG_DEBUG, __VA_ARGS__)

/* A progress line on stderr. On a terminal it redraws itself (lt_progress_show overwrites the
 * line); elsewhere a line is printed at most every plain_every_s seconds. lt_log does not overwrite
 * it. */
typedef struct {
    double plain_every_s; /* 0: print no plain line except the last one. */
    double next_plain_s;
} lt_progress;

void lt_progress_show(lt_progress *p, const char *fmt, ...) LT_PRINTF(2, 3);
/* Keep the last state on the terminal and start a new line. */
void lt_progress_end(lt_progress *p);

#endif
