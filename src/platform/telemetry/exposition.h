/* exposition.h: writes metrics for Prometheus, in its text format 0.0.4 or as OpenMetrics 1.0.
 *
 *     lt_expo e = {.format = lt_expo_choose(accept)};
 *     lt_expo_family(&e, LT_EXPO_COUNTER, "lateen_steps_total", "Optimiser steps.");
 *     lt_expo_value(&e, 12.0, "run=\"demo\"");
 *     lt_expo_end(&e);                              e.data[0 .. e.n), unless e.failed
 *
 * The formats differ in four points, which are handled here: OpenMetrics names the family of a
 * counter without "_total", has no counters whose names do not end in it (they become "unknown"),
 * writes bounds of buckets as floats ("1.0"), and ends with "# EOF". Sources:
 * prometheus.io/docs/instrumenting/exposition_formats, OpenMetrics 1.0. */
#ifndef LT_PLATFORM_TELEMETRY_EXPOSITION_H
#define LT_PLATFORM_TELEMETRY_EXPOSITION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lateen/base.h"

typedef enum { LT_EXPO_TEXT, LT_EXPO_OPENMETRICS } lt_expo_format;
typedef enum { LT_EXPO_COUNTER, LT_EXPO_GAUGE, LT_EXPO_HISTOGRAM } lt_expo_type;

typedef struct {
    lt_expo_format format;
    char *data; /* 0-terminated after the first write; freed by lt_expo_free. */
    size_t n, room;
    bool failed;      /* Out of memory: the rest was dropped. */
    const char *name; /* Name of the family whose samples follow. */
} lt_expo;

/* The format that an Accept header asks for; NULL: there was no header. */
lt_expo_format lt_expo_choose(const char *accept);
const char *lt_expo_content_type(lt_expo_format format);

/* Begin a family; all its samples follow. name: the full one ("..._total"), which must live until
 * the next family begins.
 * */
void lt_expo_family(lt_expo *e, lt_expo_type type, const char *name, const char *help);
/* A sample of the family. fmt gives its labels, without braces. */
void lt_expo_value(lt_expo *e, double value, const char *fmt, ...) LT_PRINTF(3, 4);
/* A family of one sample with these labels, which may be "". */
void lt_expo_one(lt_expo *e, lt_expo_type type, const char *name, const char *labels,
                 const char *help, double value);
/* The samples of a histogram, whose family has begun: counts[i] are values up to bounds[i], and
 * the last, counts[n_bounds], are those above all bounds. */
void lt_expo_buckets(lt_expo *e, const char *labels, const double *bounds, int n_bounds,
                     const uint64_t *counts, double sum);
/* The metrics of Prometheus's own clients about their process: CPU time, files, memory, start. */
void lt_expo_process(lt_expo *e, double start_unix_s);
void lt_expo_end(lt_expo *e);
void lt_expo_free(lt_expo *e);

/* Write text as the value of a label, without quotes: quotes, backslashes and newlines are
 * escaped, and the text is cut after the last character that fits. Returns out. */
const char *lt_expo_label(char *out, size_t room, const char *text);

#endif
