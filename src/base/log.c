/* log.c: level filter, stderr, optional file; and the progress line that shares the terminal.
 * One mutex keeps lines whole. A message erases the progress line, and the next update of its owner
 * draws it again, so the two never mix. */
#include "base/log.h"

#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"

#define LINE_BYTES 512

static struct {
    pthread_mutex_t lock;
    pthread_once_t once;
    lt_log_level level;
    FILE *file;
    bool line_shown; /* The terminal shows a progress line that has no newline yet. */
    bool terminal;
    bool json;
    char run[256]; /* "": none. */
    uint32_t attempt, epoch;
    int rank;
    int64_t step; /* -1: none. */
} logger = {
    .lock = PTHREAD_MUTEX_INITIALIZER, .once = PTHREAD_ONCE_INIT, .level = LT_LOG_INFO, .step = -1};

static const char *const level_names[] = {"error", "warn", "info", "debug"};

static void logger_open(void) {
    const char *wanted = getenv("LATEEN_LOG");
    logger.terminal = isatty(STDERR_FILENO) != 0;
    for (int i = 0; wanted != NULL && i <= LT_LOG_DEBUG; i++) {
        if (strcmp(wanted, level_names[i]) == 0) {
            logger.level = (lt_log_level)i;
        }
    }
}

void lt_log_set_level(lt_log_level level) {
    pthread_once(&logger.once, logger_open);
    logger.level = level;
}

lt_err lt_log_to_file(const char *path) {
    FILE *file = NULL;
    if (path != NULL) {
        file = fopen(path, "ae");
        if (file == NULL) {
            LT_FAIL(LT_ERR_IO, "log %s: %s", path, strerror(errno));
        }
    }
    pthread_mutex_lock(&logger.lock);
    if (logger.file != NULL) {
        fclose(logger.file);
    }
    logger.file = file;
    pthread_mutex_unlock(&logger.lock);
    return LT_OK;
}

void lt_log_set_json(void) {
    logger.json = true;
}

bool lt_log_is_json(void) {
    return logger.json;
}

void lt_log_set_run(const char *run, uint32_t attempt, uint32_t epoch, int rank) {
    pthread_mutex_lock(&logger.lock);
    snprintf(logger.run, sizeof logger.run, "%s", run != NULL ? run : "");
    logger.attempt = attempt;
    logger.epoch = epoch;
    logger.rank = rank;
    logger.step = -1;
    pthread_mutex_unlock(&logger.lock);
}

void lt_log_set_step(int64_t step) {
    pthread_mutex_lock(&logger.lock);
    logger.step = step;
    pthread_mutex_unlock(&logger.lock);
}

/* Number of bytes of the UTF-8 character at text; 0: it is not one. */
static size_t utf8_length(const unsigned char *text) {
    const size_t n = text[0] < 0x80                      ? 1
                     : text[0] >= 0xC2 && text[0] < 0xE0 ? 2
                     : text[0] >= 0xE0 && text[0] < 0xF0 ? 3
                     : text[0] >= 0xF0 && text[0] < 0xF5 ? 4
                                                         : 0;
    for (size_t i = 1; i < n; i++) {
        if ((text[i] & 0xC0) != 0x80) {
            return 0;
        }
    }
    return n;
}

void lt_log_tame(char *text, bool lines) {
    for (unsigned char *p = (unsigned char *)text; *p != '\0'; p++) {
        if (p[0] == 0xC2 && p[1] >= 0x80 && p[1] < 0xA0) { /* U+0080 to U+009F in UTF-8. */
            p[0] = p[1] = '?';
        } else if ((p[0] < ' ' || p[0] == 127) && !(lines && (p[0] == '\n' || p[0] == '\t'))) {
            p[0] = '?';
        }
    }
}

/* A line of JSON under construction. Every character of a message takes at most 6 bytes of it. */
typedef struct {
    char bytes[6 * (2 * LINE_BYTES + sizeof logger.run) + 512];
    size_t n;
} json_line;

LT_PRINTF(2, 3) static void add(json_line *line, const char *fmt, ...) {
    va_list args;
    va_start(args, fmt);
    line->n += (size_t)vsnprintf(line->bytes + line->n, sizeof line->bytes - line->n, fmt, args);
    va_end(args);
}

/* Add a JSON string. Bytes that are not UTF-8 become '?'. */
static void add_string(json_line *line, const char *text) {
    add(line, "\"");
    while (*text != '\0') {
        const unsigned char c = (unsigned char)*text;
        const size_t n = utf8_length((const unsigned char *)text);
        if (c == '"' || c == '\\') {
            add(line, "\\%c", c);
        } else if (c < 0x20) {
            add(line, "\\u%04x", c);
        } else if (n == 0) {
            add(line, "?");
        } else {
            add(line, "%.*s", (int)n, text);
        }
        text += n > 0 ? n : 1;
    }
    add(line, "\"");
}

/* The caller holds the lock. */
static void format_json(json_line *line, lt_log_level level, const char *now, const char *text) {
    line->n = 0;
    add(line, "{\"time\": \"%s\", \"level\": \"%s\"", now, level_names[level]);
    if (logger.run[0] != '\0') {
        add(line, ", \"run\": ");
        add_string(line, logger.run);
        add(line, ", \"attempt\": %u, \"epoch\": %u, \"rank\": %d", logger.attempt, logger.epoch,
            logger.rank);
    }
    if (logger.step >= 0) {
        add(line, ", \"step\": %lld", (long long)logger.step);
    }
    add(line, ", \"message\": ");
    add_string(line, text);
    add(line, "}\n");
}

/* Write a message to stderr if shown, and to the file if there is one and kept is set. Both get
 * the same time, and a line of JSON is one write, so that lines of several processes that share a
 * stderr do not mix. The caller holds the lock. */
static void write_message(bool shown, bool kept, lt_log_level level, const char *text) {
    char now[LT_CLOCK_TEXT_BYTES];
    json_line line;
    lt_clock_text(now);
    kept = kept && logger.file != NULL;
    if (logger.json) {
        format_json(&line, level, now, text);
    }
    if (shown && logger.json) {
        fwrite(line.bytes, 1, line.n, stderr);
    } else if (shown) {
        fprintf(stderr, "%s%s%s\n", level == LT_LOG_INFO ? "" : level_names[level],
                level == LT_LOG_INFO ? "" : ": ", text);
    }
    if (kept && logger.json) {
        fwrite(line.bytes, 1, line.n, logger.file);
    } else if (kept) {
        fprintf(logger.file, "%s %s %s\n", now, level_names[level], text);
    }
    if (kept) {
        fflush(logger.file);
    }
}

void lt_log(lt_log_level level, const char *fmt, ...) {
    char text[2 * LINE_BYTES];
    va_list args;

    pthread_once(&logger.once, logger_open);
    if (level > logger.level) {
        return;
    }
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    pthread_mutex_lock(&logger.lock);
    if (logger.line_shown) {
        fputs("\r\033[K", stderr);
        logger.line_shown = false;
    }
    if (!logger.json) {
        lt_log_tame(text, true);
    }
    write_message(true, true, level, text);
    pthread_mutex_unlock(&logger.lock);
}

void lt_log_note(lt_log_level level, const char *fmt, ...) {
    char text[2 * LINE_BYTES];
    va_list args;

    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    pthread_mutex_lock(&logger.lock);
    write_message(false, true, level, text);
    pthread_mutex_unlock(&logger.lock);
}

bool lt_log_shows(lt_log_level level) {
    pthread_once(&logger.once, logger_open);
    return level <= logger.level;
}

static void write_trace(bool shown) {
    char text[LT_ERROR_TRACE_BYTES];

    (void)lt_error_trace_text(text);
    pthread_mutex_lock(&logger.lock);
    if (shown) {
        fputs(text, stderr);
    }
    if (logger.file != NULL) {
        fputs(text, logger.file);
        fflush(logger.file);
    }
    pthread_mutex_unlock(&logger.lock);
}

void lt_log_trace(void) {
    write_trace(lt_log_shows(LT_LOG_DEBUG));
}

void lt_log_note_trace(void) {
    write_trace(false);
}

void lt_progress_show(lt_progress *p, const char *fmt, ...) {
    char text[LINE_BYTES];
    const double now_s = lt_clock_s();
    va_list args;

    pthread_once(&logger.once, logger_open);
    if (logger.level < LT_LOG_INFO) {
        return;
    }
    const bool redraws = logger.terminal && !logger.json;
    if (!redraws && (p->plain_every_s <= 0.0 || now_s < p->next_plain_s)) {
        return;
    }
    p->next_plain_s = now_s + p->plain_every_s;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    pthread_mutex_lock(&logger.lock);
    if (redraws) {
        fprintf(stderr, "\r\033[K%s", text);
        fflush(stderr);
        logger.line_shown = true;
    } else {
        write_message(true, false, LT_LOG_INFO, text);
    }
    pthread_mutex_unlock(&logger.lock);
}

void lt_progress_end(lt_progress *p) {
    pthread_mutex_lock(&logger.lock);
    if (logger.line_shown) {
        fputc('\n', stderr);
        logger.line_shown = false;
    }
    pthread_mutex_unlock(&logger.lock);
    p->next_plain_s = 0.0;
}
