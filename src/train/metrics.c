/* metrics.c: see metrics.h. */
#include "train/metrics.h"

#include <errno.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"

#define METRICS_BYTES_MAX ((size_t)1 << 32)

/* Does this line stay when the run goes on after last_step? */
static bool line_stays(const char *line, size_t bytes, int64_t last_step) {
    json_t *o = json_loadb(line, bytes, 0, NULL);
    const bool stays = o != NULL && json_integer_value(json_object_get(o, "step")) <= last_step;
    json_decref(o);
    return stays;
}

static lt_err keep_until(const char *path, int64_t last_step) {
    lt_err err = LT_OK;
    size_t bytes = 0, kept = 0;
    char *text = NULL;

    LT_TRY(lt_file_read(&text, &bytes, path, METRICS_BYTES_MAX));
    for (size_t at = 0; at < bytes;) {
        const char *end = memchr(text + at, '\n', bytes - at);
        const size_t next = end != NULL ? (size_t)(end - text) + 1 : bytes;
        if (end != NULL && line_stays(text + at, next - at, last_step)) {
            memmove(text + kept, text + at, next - at);
            kept += next - at;
        }
        at = next;
    }
    if (kept != bytes) {
        LT_TRY_DONE(lt_file_write_atomic(path, text, kept));
    }
done:
    free(text);
    return err;
}

lt_err lt_metrics_open(lt_metrics *m, const char *path, int64_t last_step) {
    *m = (lt_metrics){.path = path};
    if (lt_file_exists(path)) {
        LT_TRY(keep_until(path, last_step));
    }
    m->file = fopen(path, "ae");
    if (m->file == NULL) {
        LT_FAIL(LT_ERR_IO, "%s: %s", path, strerror(errno));
    }
    return LT_OK;
}

void lt_metrics_close(lt_metrics *m) {
    if (m->file != NULL) {
        fclose(m->file);
    }
    *m = (lt_metrics){0};
}

json_t *lt_metrics_real(double x) {
    return isfinite(x) ? json_real(x) : json_null();
}

lt_err lt_metrics_put(lt_metrics *m, json_t *line) {
    int bad;
    if (line == NULL) {
        LT_FAIL(LT_ERR_OOM, "%s: no room for a line, or text that is not UTF-8", m->path);
    }
    bad = json_dumpf(line, m->file, JSON_COMPACT | JSON_PRESERVE_ORDER | JSON_REAL_PRECISION(9));
    json_decref(line);
    if (bad != 0 || fputc('\n', m->file) == EOF || fflush(m->file) != 0) {
        LT_FAIL(LT_ERR_IO, "%s: %s", m->path, strerror(errno));
    }
    return LT_OK;
}
