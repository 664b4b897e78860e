/* metrics.c: see metrics.h. */
#include "train/report/metrics.h"

#include <errno.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/file.h"
#include "base/json.h"

#define METRIC(name, kind, unit, help) {#name, LT_METRIC_##kind, unit, help},
const lt_metric lt_train_metrics[LT_TRAIN_METRIC_COUNT] = {LT_TRAIN_METRICS(METRIC)};
const lt_metric lt_eval_metrics[LT_EVAL_METRIC_COUNT] = {LT_EVAL_METRICS(METRIC)};
const lt_metric lt_rl_metrics[LT_RL_METRIC_COUNT] = {LT_RL_METRICS(METRIC)};
const lt_metric lt_distill_metrics[LT_DISTILL_METRIC_COUNT] = {LT_DISTILL_METRICS(METRIC)};
#undef METRIC
#define METRIC(id, kind, unit, help, name) {name, LT_METRIC_##kind, unit, help},
const lt_metric lt_preference_metrics[LT_PREFERENCE_METRIC_COUNT] = {LT_PREFERENCE_METRICS(METRIC)};
#undef METRIC

#define METRICS_BYTES_MAX ((size_t)1 << 32)

/* Whether a line tells of the model at its step, as an evaluation does, and not of the program. */
static bool is_of_model(const json_t *line) {
    static const char *const kinds[] = {"eval", "rl_eval", "sample"};
    const char *kind = json_string_value(json_object_get(line, "kind"));
    for (size_t i = 0; kind != NULL && i < sizeof kinds / sizeof *kinds; i++) {
        if (strcmp(kind, kinds[i]) == 0) {
            return true;
        }
    }
    return false;
}

/* Whether a line stays. *step is that of the line; INT64_MAX if the line is cut or damaged. */
static bool stays(int64_t *step, const char *text, size_t bytes, const lt_metrics_from *from) {
    json_t *line = text[bytes - 1] == '\n' ? json_loadb(text, bytes, 0, NULL) : NULL;
    const bool again = from->evaluates && line != NULL && is_of_model(line);
    *step = line != NULL ? json_integer_value(json_object_get(line, "step")) : INT64_MAX;
    json_decref(line);
    return *step < from->step || (*step == from->step && !again);
}

static lt_err keep_until(lt_metrics *m, const char *path, const lt_metrics_from *from) {
    lt_err err = LT_OK;
    size_t bytes = 0, kept = 0;
    char *text = NULL;

    LT_TRY(lt_file_read(&text, &bytes, path, METRICS_BYTES_MAX));
    for (size_t at = 0; at < bytes;) {
        const char *end = memchr(text + at, '\n', bytes - at);
        const size_t next = end != NULL ? (size_t)(end - text) + 1 : bytes;
        int64_t step;
        const bool kept_line = stays(&step, text + at, next - at, from);
        if (step != INT64_MAX && step > m->step_told) {
            m->step_told = step;
        }
        if (kept_line) {
            memmove(text + kept, text + at, next - at);
            kept += next - at;
        }
        at = next;
    }
    LT_TRY_DONE(lt_lease_write(m->lease, path, text, kept));
done:
    free(text);
    return err;
}

lt_err lt_metrics_open(lt_metrics *m, const char *path, const lt_metrics_from *from,
                       const lt_lease *lease) {
    struct stat st;
    *m = (lt_metrics){.path = path, .lease = lease, .step_told = -1};
    if (stat(path, &st) == 0) {
        m->written_unix_s = lt_clock_of(st.st_mtim);
        LT_TRY(keep_until(m, path, from));
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

/* A number as jansson prints it with nine digits: "0.0", "1e-5"; null if JSON cannot express it. */
static void print_number(FILE *f, lt_metric_kind kind, double x) {
    char text[40], *exponent;
    if (!isfinite(x)) {
        fputs("null", f);
        return;
    }
    if (kind == LT_METRIC_COUNT || kind == LT_METRIC_TOTAL) {
        fprintf(f, "%.0f", x);
        return;
    }
    (void)snprintf(text, sizeof text, "%.9g", x);
    exponent = strchr(text, 'e');
    if (exponent != NULL) { /* Without plus sign and leading zeros. */
        char *from = exponent + 1;
        fwrite(text, 1, (size_t)(from - text), f);
        if (*from == '-') {
            fputc('-', f);
        }
        fputs(from + 1 + strspn(from + 1, "0"), f);
        return;
    }
    fputs(text, f);
    fputs(strchr(text, '.') == NULL ? ".0" : "", f);
}

static lt_err end_line(lt_metrics *m, bool bad) {
    if (fputc('\n', m->file) == EOF || fflush(m->file) != 0 || bad || ferror(m->file) != 0) {
        LT_FAIL(LT_ERR_IO, "%s: %s", m->path, strerror(errno));
    }
    return LT_OK;
}

void lt_metrics_add_sink(lt_metrics *m, lt_metrics_sink sink) {
    LT_ASSERT(m->n_sinks < LT_METRICS_SINKS);
    m->sinks[m->n_sinks++] = sink;
}

lt_err lt_metrics_row(lt_metrics *m, const char *kind, const lt_metric *table, int n,
                      const double *values, const bool *present) {
    if (m->file == NULL) {
        return LT_OK;
    }
    LT_TRY(lt_lease_check(m->lease));
    for (int i = 0; i < m->n_sinks; i++) {
        LT_TRY(m->sinks[i].row(m->sinks[i].of, kind, table, n, values, present));
    }
    fprintf(m->file, "{\"kind\":\"%s\"", kind);
    for (int i = 0; i < n; i++) {
        if (present[i]) {
            fprintf(m->file, ",\"%s\":", table[i].name);
            print_number(m->file, table[i].kind, values[i]);
        }
    }
    return end_line(m, fputc('}', m->file) == EOF);
}

lt_err lt_metrics_put(lt_metrics *m, json_t *line) {
    lt_err held;
    int bad;
    if (line == NULL) {
        LT_FAIL(LT_ERR_OOM, "%s: no memory for a line, or text that is not UTF-8", m->path);
    }
    if (m->file == NULL) {
        json_decref(line);
        return LT_OK;
    }
    held = lt_lease_check(m->lease);
    if (held != LT_OK) {
        json_decref(line);
        return held;
    }
    bad = json_dumpf(line, m->file, JSON_COMPACT | JSON_PRESERVE_ORDER | JSON_REAL_PRECISION(9));
    json_decref(line);
    return end_line(m, bad != 0);
}

static void describe(json_t *all, const lt_metric *table, int n) {
    for (int i = 0; i < n; i++) {
        bool known = false;
        for (size_t k = 0; k < json_array_size(all); k++) {
            const json_t *name = json_object_get(json_array_get(all, k), "name");
            known = known || strcmp(json_string_value(name), table[i].name) == 0;
        }
        if (!known) {
            json_array_append_new(all, json_pack("{s:s, s:s, s:s}", "name", table[i].name, "unit",
                                                 table[i].unit, "help", table[i].help));
        }
    }
}

json_t *lt_metrics_described(void) {
    json_t *all = json_array();
    describe(all, lt_train_metrics, LT_TRAIN_METRIC_COUNT);
    describe(all, lt_eval_metrics, LT_EVAL_METRIC_COUNT);
    describe(all, lt_rl_metrics, LT_RL_METRIC_COUNT);
    describe(all, lt_distill_metrics, LT_DISTILL_METRIC_COUNT);
    describe(all, lt_preference_metrics, LT_PREFERENCE_METRIC_COUNT);
    return all;
}
