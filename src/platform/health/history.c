/* history.c: see history.h. */
#include "platform/health/history.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/json.h"
#include "base/option.h"

#define HISTORY_BYTES ((size_t)1 << 28)
#define DAY_S         86400.0
/* Two checks may follow each other immediately; one error between them must not count as thousands
 * an hour. */
#define RATE_LEAST_S 300.0

typedef enum {
    SIGNAL_EXCLUSIONS,
    SIGNAL_XIDS,
    SIGNAL_TICKETS,
    SIGNAL_OUTS,
    SIGNAL_MULTI,
    SIGNAL_SINGLE,
    SIGNAL_SHARE,
    SIGNAL_NONE
} signal_index;

/* The signal for which a note counts. Jobs that ended well count only in the share. */
#define SIGNAL_OF_EXCLUSION      SIGNAL_EXCLUSIONS
#define SIGNAL_OF_TICKET         SIGNAL_TICKETS
#define SIGNAL_OF_OUT            SIGNAL_OUTS
#define SIGNAL_OF_MULTI_FAILURE  SIGNAL_MULTI
#define SIGNAL_OF_SINGLE_FAILURE SIGNAL_SINGLE
#define SIGNAL_OF_SINGLE_JOB     SIGNAL_NONE
typedef struct {
    const char *name;
    signal_index signal;
} note_row;
#define NOTE_ROW(id, name, help) {name, SIGNAL_OF_##id},
static const note_row notes[] = {LT_HEALTH_NOTE_MAP(NOTE_ROW)};
#undef NOTE_ROW
#define N_NOTES (sizeof notes / sizeof *notes)

typedef struct {
    lt_history *h;
    bool was_out; /* The result of the previous check was drain or evict. */
    double single_jobs;
    int64_t line, n_read; /* The current line, from 1; how many could be read before it. */
} reader;

static double number_of(const json_t *line, const char *key) {
    return json_number_value(json_object_get(line, key));
}

static bool is(const json_t *line, const char *key, const char *text) {
    const char *value = json_string_value(json_object_get(line, key));
    return value != NULL && strcmp(value, text) == 0;
}

static const note_row *note_of(const json_t *line) {
    const char *what = json_string_value(json_object_get(line, "what"));
    return what != NULL ? lt_name_find(what, notes, sizeof *notes, N_NOTES) : NULL;
}

static void count_note(reader *r, const note_row *row) {
    if (row->signal == SIGNAL_NONE) {
        r->single_jobs += 1.0;
    } else {
        r->h->signals[row->signal] += 1.0;
    }
}

static void count_check(reader *r, json_t *line, bool counts) {
    const bool out = is(line, "result", lt_health_result_text(LT_HEALTH_DRAIN)) ||
                     is(line, "result", lt_health_result_text(LT_HEALTH_EVICT));
    if (counts) {
        r->h->signals[SIGNAL_XIDS] += number_of(line, "xids");
        r->h->signals[SIGNAL_OUTS] += out && !r->was_out;
    }
    r->was_out = out;
    json_decref(r->h->last);
    r->h->last = json_incref(line);
}

static void count_line(reader *r, const char *text, size_t bytes) {
    json_t *line = json_loadb(text, bytes, 0, NULL);
    const double age_s = r->h->time - number_of(line, "time");
    /* Lines from the future, written when the clock was ahead, count as little as old ones. */
    const bool counts = fabs(age_s) <= LT_HISTORY_DAYS * DAY_S,
               is_check = is(line, "kind", "check");
    const note_row *note = is(line, "kind", "note") ? note_of(line) : NULL;

    if (!json_is_number(json_object_get(line, "time")) || (!is_check && note == NULL)) {
        r->h->first_unread = r->h->n_unread > 0 ? r->h->first_unread : r->line;
        r->h->n_unread++;
    } else {
        r->n_read++;
    }
    if (is_check) {
        count_check(r, line, counts);
    } else if (counts && note != NULL) {
        count_note(r, note);
    }
    r->h->has_old = r->h->has_old || age_s > 2 * LT_HISTORY_DAYS * DAY_S;
    json_decref(line);
}

static lt_err read_lines(lt_history *h, const char *path) {
    reader r = {.h = h};
    char *text = NULL;
    size_t bytes = 0;
    double singles;

    if (!lt_file_exists(path)) {
        return LT_OK;
    }
    LT_TRY(lt_file_read(&text, &bytes, path, HISTORY_BYTES));
    for (char *line = text, *end; line < text + bytes; line = end + 1) {
        end = memchr(line, '\n', bytes - (size_t)(line - text));
        end = end != NULL ? end : text + bytes;
        r.line++;
        if (end > line) {
            count_line(&r, line, (size_t)(end - line));
        }
    }
    h->is_cut = bytes > 0 && text[bytes - 1] != '\n';
    free(text);
    /* Writing it again would drop all of its lines. */
    if (r.n_read == 0 && h->n_unread > h->is_cut) {
        LT_FAIL(LT_ERR_FORMAT,
                "%s: none of its lines is from a history of lateen health; line %lld is "
                "the first that is not",
                path, (long long)h->first_unread);
    }
    singles = h->signals[SIGNAL_SINGLE];
    h->signals[SIGNAL_SHARE] = singles > 0.0 ? singles / (singles + r.single_jobs) : 0.0;
    return LT_OK;
}

lt_err lt_history_open(lt_history *h, const char *path) {
    char lock[LT_PATH_BYTES + 8];

    *h = (lt_history){.lock_fd = -1, .time = lt_clock_unix_s()};
    if (path[0] == '\0') {
        return LT_OK;
    }
    snprintf(lock, sizeof lock, "%s.lock", path);
    LT_TRY(lt_file_make_parent(path));
    h->lock_fd = open(lock, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (h->lock_fd < 0 || flock(h->lock_fd, LOCK_EX) != 0) {
        LT_FAIL(LT_ERR_IO, "%s: %s", lock, strerror(errno));
    }
    return read_lines(h, path);
}

double lt_history_last_uptime(const lt_history *h, const char *boot) {
    return boot[0] != '\0' && is(h->last, "boot", boot) ? number_of(h->last, "uptime_s") : 0.0;
}

double lt_history_rate(const lt_history *h, const lt_facts *f, const lt_fact *fact) {
    const double last_s = lt_history_last_uptime(h, f->boot), span_s = f->uptime_s - last_s;
    const json_t *counters = json_object_get(h->last, "counters");
    char key[160];
    double before = 0.0;

    snprintf(key, sizeof key, "%s %s", lt_check_rows[fact->check].name, fact->object);
    if (last_s > 0.0) {
        before = number_of(counters, key);
    }
    if (before > fact->value) { /* The counter began again, because the device was reset. */
        before = 0.0;
    }
    return (fact->value - before) / fmax(span_s, RATE_LEAST_S) * 3600.0;
}

/* Write the lines again, without those older than the window. */
static lt_err drop_old(const lt_history *h, const char *path) {
    lt_err err = LT_OK;
    char *text = NULL;
    size_t bytes = 0, kept = 0;

    LT_TRY(lt_file_read(&text, &bytes, path, HISTORY_BYTES));
    for (size_t at = 0, next; at < bytes; at = next) {
        const char *end = memchr(text + at, '\n', bytes - at);
        json_t *line;
        next = end != NULL ? (size_t)(end - text) + 1 : bytes;
        line = json_loadb(text + at, next - at, 0, NULL);
        if (end != NULL && h->time - number_of(line, "time") <= LT_HISTORY_DAYS * DAY_S) {
            memmove(text + kept, text + at, next - at);
            kept += next - at;
        }
        json_decref(line);
    }
    LT_TRY_DONE(lt_file_write_atomic(path, text, kept));
done:
    free(text);
    return err;
}

lt_err lt_history_note_check(const char *what) {
    char names[256], hint[LT_NAME_HINT_BYTES];
    if (lt_name_find(what, notes, sizeof *notes, N_NOTES) == NULL) {
        LT_FAIL(LT_ERR_ARG, "unknown note '%s'%s; there are%s", what,
                lt_name_hint(hint, what, notes, sizeof *notes, N_NOTES),
                lt_name_list(names, sizeof names, notes, sizeof *notes, N_NOTES));
    }
    return LT_OK;
}

lt_err lt_history_append(lt_history *h, const char *path, json_t *line) {
    lt_err err = LT_OK;
    char *text = line != NULL ? json_dumps(line, JSON_COMPACT | JSON_REAL_PRECISION(9)) : NULL;
    FILE *file = NULL;

    json_decref(line);
    if (text == NULL) {
        LT_FAIL_DONE(LT_ERR_OOM, "%s: a line", path);
    }
    if (h->has_old) { /* This also drops a line that was cut. */
        LT_TRY_DONE(drop_old(h, path));
        h->is_cut = false;
    }
    file = fopen(path, "ae");
    if (file == NULL || fprintf(file, "%s%s\n", h->is_cut ? "\n" : "", text) < 0 ||
        fflush(file) != 0) {
        LT_FAIL_DONE(LT_ERR_IO, "%s: %s", path, strerror(errno));
    }
done:
    if (file != NULL) {
        fclose(file);
    }
    free(text);
    return err;
}

void lt_history_close(lt_history *h) {
    json_decref(h->last);
    if (h->lock_fd >= 0) {
        close(h->lock_fd);
    }
    *h = (lt_history){.lock_fd = -1};
}
