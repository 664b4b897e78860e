/* events.c: see events.h. */
#include "platform/agent/events.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"

#define RECOVERY_NAME(id, name, text) name,
#define RECOVERY_TEXT(id, name, text) text,
const char *const lt_recovery_names[LT_RECOVERY_PHASES] = {LT_RECOVERY_MAP(RECOVERY_NAME)};
const char *const lt_recovery_texts[LT_RECOVERY_PHASES] = {LT_RECOVERY_MAP(RECOVERY_TEXT)};

void lt_events_open(lt_events *e, bool wanted, int restart) {
    *e = (lt_events){.wanted = wanted, .restart = restart, .fd = -1};
}

/* Write a whole line, or nothing. */
static bool write_line(int fd, const json_t *line) {
    char *text = json_dumps(line, JSON_COMPACT | JSON_PRESERVE_ORDER | JSON_REAL_PRECISION(13));
    const size_t n = text != NULL ? strlen(text) : 0;
    const struct iovec parts[] = {{text, n}, {(char[]){'\n'}, 1}};
    struct stat before;
    bool done = false;
    if (text == NULL || fstat(fd, &before) != 0) {
        free(text);
        return text == NULL; /* Out of memory for the text: another try would not help. */
    }
    done = writev(fd, parts, 2) == (ssize_t)(n + 1);
    if (!done && ftruncate(fd, before.st_size) != 0) {
        lt_log_warn("events.jsonl: %s", strerror(errno));
    }
    free(text);
    return done;
}

/* Write the held lines, as many as the disk has room for. */
static void write_held(lt_events *e) {
    while (e->fd >= 0 && json_array_size(e->held) > 0) {
        errno = 0;
        if (!write_line(e->fd, json_array_get(e->held, 0))) {
            if (!e->late) {
                lt_log_warn("events.jsonl: %s; events are kept until it can be written",
                            errno != 0 ? strerror(errno) : "a part of a line was written");
            }
            e->late = true;
            return;
        }
        e->late = false;
        (void)json_array_remove(e->held, 0);
    }
}

void lt_events_close(lt_events *e) {
    write_held(e);
    if (e->fd >= 0) {
        (void)close(e->fd);
    }
    json_decref(e->held);
    *e = (lt_events){.fd = -1};
}

void lt_events_folder(lt_events *e, const char *folder) {
    char path[LT_PATH_BYTES];
    if (!e->wanted || e->fd >= 0 || folder[0] == '\0') {
        return;
    }
    if (lt_path_join(path, folder, "events.jsonl") != LT_OK ||
        (e->fd = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666)) < 0) {
        lt_log_warn("%s/events.jsonl: %s", folder, strerror(errno));
        e->wanted = false;
        return;
    }
    write_held(e);
}

void lt_events_put(lt_events *e, int attempt, json_t *line) {
    char text[LT_CLOCK_TEXT_BYTES];
    json_t *whole = !e->wanted || line == NULL
                        ? NULL
                        : json_pack("{s:s, s:f, s:i, s:i}", "time", lt_clock_text(text), "unix_s",
                                    lt_clock_unix_s(), "attempt", attempt, "restart", e->restart);
    if (whole != NULL && json_object_update(whole, line) == 0) {
        e->held = e->held != NULL ? e->held : json_array();
        (void)json_array_append(e->held, whole);
        write_held(e);
    }
    json_decref(whole);
    json_decref(line);
}

json_t *lt_events_words(const char *text, size_t bytes) {
    json_t *words = json_array();
    while (bytes > 0) {
        const char *end = memchr(text, '\n', bytes);
        const size_t n = end != NULL ? (size_t)(end - text) : bytes;
        json_t *line = json_stringn(text, n);
        json_array_append_new(words, line != NULL ? line : json_string("(not UTF-8)"));
        bytes -= n < bytes ? n + 1 : n;
        text += n + 1;
    }
    return words;
}
