/* events.c: see events.h. */
#include "platform/agent/events.h"

#include <errno.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"

#define RECOVERY_NAME(id, name, text) name,
#define RECOVERY_TEXT(id, name, text) text,
const char *const lt_recovery_names[LT_RECOVERY_PHASES] = {LT_RECOVERY_MAP(RECOVERY_NAME)};
const char *const lt_recovery_texts[LT_RECOVERY_PHASES] = {LT_RECOVERY_MAP(RECOVERY_TEXT)};

void lt_events_open(lt_events *e, bool wanted, int restart) {
    *e = (lt_events){.wanted = wanted, .restart = restart};
}

void lt_events_close(lt_events *e) {
    if (e->file != NULL) {
        (void)fclose(e->file);
    }
    json_decref(e->held);
    *e = (lt_events){0};
}

static void write_line(lt_events *e, const json_t *line) {
    if (json_dumpf(line, e->file, JSON_COMPACT | JSON_PRESERVE_ORDER | JSON_REAL_PRECISION(13)) !=
            0 ||
        fputc('\n', e->file) == EOF || fflush(e->file) != 0) {
        lt_log_warn("events.jsonl: %s", strerror(errno));
        clearerr(e->file);
    }
}

void lt_events_folder(lt_events *e, const char *folder) {
    char path[LT_PATH_BYTES];
    size_t i;
    json_t *line;
    if (!e->wanted || e->file != NULL || folder[0] == '\0') {
        return;
    }
    if (lt_path_join(path, folder, "events.jsonl") != LT_OK ||
        (e->file = fopen(path, "ae")) == NULL) {
        lt_log_warn("%s/events.jsonl: %s", folder, strerror(errno));
        e->wanted = false;
        return;
    }
    json_array_foreach(e->held, i, line) {
        write_line(e, line);
    }
    json_decref(e->held);
    e->held = NULL;
}

void lt_events_put(lt_events *e, int attempt, json_t *line) {
    char text[LT_CLOCK_TEXT_BYTES];
    json_t *whole = !e->wanted || line == NULL
                        ? NULL
                        : json_pack("{s:s, s:f, s:i, s:i}", "time", lt_clock_text(text), "unix_s",
                                    lt_clock_unix_s(), "attempt", attempt, "restart", e->restart);
    if (whole != NULL && json_object_update(whole, line) == 0) {
        if (e->file != NULL) {
            write_line(e, whole);
        } else {
            e->held = e->held != NULL ? e->held : json_array();
            (void)json_array_append(e->held, whole);
        }
    }
    json_decref(whole);
    json_decref(line);
}
