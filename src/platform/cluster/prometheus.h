/* prometheus.h: queries Prometheus's HTTP API
 * (prometheus.io/docs/prometheus/latest/querying/api). */
#ifndef LT_PLATFORM_CLUSTER_PROMETHEUS_H
#define LT_PLATFORM_CLUSTER_PROMETHEUS_H

#include <jansson.h>

#include "platform/copy/web.h"

typedef struct {
    const char *url; /* "http://127.0.0.1:9090" */
    lt_web *web;
} lt_prometheus;

/* The result of an expression: an array of {"metric": {...}, "value": [time, "text"]}; with span_s
 * above 0, an array of {"metric", "values": [[time, "text"], ...]} over the last span_s seconds,
 * step_s apart. REMOTE: no answer, or an error from Prometheus. */
LT_MUST_USE lt_err lt_prometheus_ask(json_t **out, const lt_prometheus *p, const char *expression,
                                     double span_s, double step_s);

#endif
