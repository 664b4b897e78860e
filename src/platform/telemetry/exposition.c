/* exposition.c: see exposition.h. */
#include "platform/telemetry/exposition.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "base/limits.h"

#define FIRST_BYTES 4096

static const char total[] = "_total";

static void put_args(lt_expo *e, const char *fmt, va_list args) {
    va_list again;
    int n;

    va_copy(again, args);
    n = vsnprintf(e->data != NULL ? e->data + e->n : NULL, e->data != NULL ? e->room - e->n : 0,
                  fmt, args);
    if (n >= 0 && !e->failed && (e->data == NULL || (size_t)n >= e->room - e->n)) {
        const size_t room = 2 * (e->room + (size_t)n) + FIRST_BYTES;
        char *larger = realloc(e->data, room);
        e->failed = larger == NULL;
        if (larger != NULL) {
            e->data = larger;
            e->room = room;
            n = vsnprintf(e->data + e->n, e->room - e->n, fmt, again);
        }
    }
    va_end(again);
    e->n += n >= 0 && !e->failed ? (size_t)n : 0;
}

static void put(lt_expo *e, const char *fmt, ...) LT_PRINTF(2, 3);
static void put(lt_expo *e, const char *fmt, ...) {
    va_list args;
    va_start(args, fmt);
    put_args(e, fmt, args);
    va_end(args);
}

/* ---- Which format ---- */

/* The weight q of one entry of an Accept header, "type/sub;version=1.0.0;q=0.5". */
static double weight(const char *entry, size_t n) {
    for (const char *p = entry; p + 2 < entry + n; p++) {
        if ((*p == ';' || *p == ' ') && p[1] == 'q' && p[2] == '=') {
            return strtod(p + 3, NULL);
        }
    }
    return 1.0;
}

static bool begins(const char *entry, size_t n, const char *type) {
    return n >= strlen(type) && strncmp(entry, type, strlen(type)) == 0;
}

lt_expo_format lt_expo_choose(const char *accept) {
    double open = 0.0, text = 0.0;
    const char *entry = accept != NULL ? accept : "";

    while (*entry != '\0') {
        size_t n;
        entry += strspn(entry, " ,");
        n = strcspn(entry, ",");
        if (begins(entry, n, "application/openmetrics-text")) {
            open = fmax(open, weight(entry, n));
        } else if (begins(entry, n, "text/plain")) {
            text = fmax(text, weight(entry, n));
        }
        entry += n;
    }
    return open > 0.0 && open >= text ? LT_EXPO_OPENMETRICS : LT_EXPO_TEXT;
}

const char *lt_expo_content_type(lt_expo_format format) {
    return format == LT_EXPO_OPENMETRICS
               ? "application/openmetrics-text; version=1.0.0; charset=utf-8"
               : "text/plain; version=0.0.4; charset=utf-8";
}

/* ---- Families ---- */

void lt_expo_family(lt_expo *e, lt_expo_type type, const char *name, const char *help) {
    static const char *const types[] = {"counter", "gauge", "histogram"};
    const bool open = e->format == LT_EXPO_OPENMETRICS;
    size_t n = strlen(name);
    const bool has_total = n > strlen(total) && strcmp(name + n - strlen(total), total) == 0;
    const char *word = types[type];

    if (open && type == LT_EXPO_COUNTER) {
        n -= has_total ? strlen(total) : 0;
        word = has_total ? word : "unknown";
    }
    e->name = name;
    put(e, "# HELP %.*s %s\n# TYPE %.*s %s\n", (int)n, name, help, (int)n, name, word);
}

/* A number in the form of both formats. */
static const char *number(char out[40], double x) {
    if (isnan(x)) {
        return "NaN";
    }
    if (isinf(x)) {
        return x > 0.0 ? "+Inf" : "-Inf";
    }
    (void)snprintf(out, 40, "%.15g", x);
    return out;
}

void lt_expo_value(lt_expo *e, double value, const char *fmt, ...) {
    char text[40];
    va_list args;
    put(e, "%s{", e->name);
    va_start(args, fmt);
    put_args(e, fmt, args);
    va_end(args);
    put(e, "} %s\n", number(text, value));
}

void lt_expo_one(lt_expo *e, lt_expo_type type, const char *name, const char *labels,
                 const char *help, double value) {
    const bool has_labels = labels[0] != '\0';
    char text[40];
    lt_expo_family(e, type, name, help);
    put(e, "%s%s%s%s %s\n", name, has_labels ? "{" : "", labels, has_labels ? "}" : "",
        number(text, value));
}

/* A bound of a bucket: "1.0" in OpenMetrics, "1" in the text format. */
static const char *bound(const lt_expo *e, char out[40], double x) {
    (void)snprintf(out, 40, "%g", x);
    if (e->format == LT_EXPO_OPENMETRICS && strpbrk(out, ".e") == NULL) {
        strcat(out, ".0");
    }
    return out;
}

void lt_expo_buckets(lt_expo *e, const char *labels, const double *bounds, int n_bounds,
                     const uint64_t *counts, double sum) {
    const char *comma = labels[0] != '\0' ? "," : "";
    char text[40];
    uint64_t below = 0;

    for (int i = 0; i < n_bounds; i++) {
        below += counts[i];
        put(e, "%s_bucket{%s%sle=\"%s\"} %llu\n", e->name, labels, comma, bound(e, text, bounds[i]),
            (unsigned long long)below);
    }
    below += counts[n_bounds];
    put(e, "%s_bucket{%s%sle=\"+Inf\"} %llu\n%s_count{%s} %llu\n%s_sum{%s} %s\n", e->name, labels,
        comma, (unsigned long long)below, e->name, labels, (unsigned long long)below, e->name,
        labels, number(text, sum));
}

/* Names and definitions are those of Prometheus's own clients. */
void lt_expo_process(lt_expo *e, double start_unix_s) {
    struct rusage used = {0};
    struct rlimit files = {0};
    (void)getrusage(RUSAGE_SELF, &used);
    (void)getrlimit(RLIMIT_NOFILE, &files);
    lt_expo_one(e, LT_EXPO_COUNTER, "process_cpu_seconds_total", "",
                "Total user and system CPU time spent in seconds.",
                (double)(used.ru_utime.tv_sec + used.ru_stime.tv_sec) +
                    1e-6 * (double)(used.ru_utime.tv_usec + used.ru_stime.tv_usec));
    lt_expo_one(e, LT_EXPO_GAUGE, "process_open_fds", "", "Number of open file descriptors.",
                (double)lt_limits_open_files());
    lt_expo_one(e, LT_EXPO_GAUGE, "process_max_fds", "", "Maximum number of open file descriptors.",
                (double)files.rlim_cur);
    lt_expo_one(e, LT_EXPO_GAUGE, "process_resident_memory_bytes", "",
                "Resident memory size in bytes.", (double)lt_limits_resident_bytes());
    lt_expo_one(e, LT_EXPO_GAUGE, "process_virtual_memory_bytes", "",
                "Virtual memory size in bytes.", (double)lt_limits_virtual_bytes());
    lt_expo_one(e, LT_EXPO_GAUGE, "process_start_time_seconds", "",
                "Start time of the process since unix epoch in seconds.", start_unix_s);
}

void lt_expo_end(lt_expo *e) {
    if (e->format == LT_EXPO_OPENMETRICS) {
        put(e, "# EOF\n");
    }
}

void lt_expo_free(lt_expo *e) {
    free(e->data);
    *e = (lt_expo){.format = e->format};
}

const char *lt_expo_label(char *out, size_t room, const char *text) {
    size_t n = 0;
    for (; *text != '\0' && n + 3 < room; text++) {
        if (*text == '"' || *text == '\\' || *text == '\n') {
            out[n++] = '\\';
        }
        out[n++] = *text;
        out[n - 1] = *text == '\n' ? 'n' : out[n - 1];
    }
    if ((*text & 0xC0) == 0x80) { /* The cut is inside a character: drop that character. */
        while (n > 0 && (out[n - 1] & 0xC0) == 0x80) {
            n--;
        }
        n -= n > 0;
    }
    out[n] = '\0';
    return out;
}
