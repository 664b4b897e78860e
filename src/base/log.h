/* log.h: messages for people, on stderr and optionally into a file too (a run folder's log).
 * Numbers for programs go to metrics.jsonl; nobody parses this. */
#ifndef LT_BASE_LOG_H
#define LT_BASE_LOG_H

#include <stdbool.h>

#include "lateen/base.h"

typedef enum { LT_LOG_ERROR, LT_LOG_WARN, LT_LOG_INFO, LT_LOG_DEBUG } lt_log_level;

/* Messages above this level are dropped; the default is INFO, or
 * LATEEN_LOG=error|warn|info|debug. `--verbose` of the command line sets DEBUG. */
void lt_log_set_level(lt_log_level level);

/* Also append every message to this file; NULL stops that. The path's file stays open. */
LT_MUST_USE lt_err lt_log_to_file(const char *path);

void lt_log(lt_log_level level, const char *fmt, ...) LT_PRINTF(2, 3);

/* Into the file only: what the program says on stderr in its own words. */
void lt_log_note(lt_log_level level, const char *fmt, ...) LT_PRINTF(2, 3);

/* Is a message of this level shown? */
bool lt_log_shows(lt_log_level level);

/* The trace of this thread's last failure (lt_error_trace_text), to follow its message: into the
 * file, and on stderr when messages of level DEBUG are shown; or into the file only. */
void lt_log_trace(void);
void lt_log_note_trace(void);

#define lt_log_error(...) lt_log(LT_LOG_ERROR, __VA_ARGS__)
#define lt_log_warn(...)  lt_log(LT_LOG_WARN, __VA_ARGS__)
#define lt_log_info(...)  lt_log(LT_LOG_INFO, __VA_ARGS__)
#define lt_log_debug(...) lt_log(LT_LOG_DEBUG, __VA_ARGS__)

/* A progress line on stderr. On a terminal it redraws itself (lt_progress_show overwrites the
 * line); elsewhere a line is printed at most every plain_every_s seconds. lt_log keeps clear of
 * it. */
typedef struct {
    double plain_every_s; /* 0: never print plain lines except the last one. */
    double next_plain_s;
} lt_progress;

void lt_progress_show(lt_progress *p, const char *fmt, ...) LT_PRINTF(2, 3);
void lt_progress_end(lt_progress *p); /* Leave the last line standing and go to the next one. */

#endif
