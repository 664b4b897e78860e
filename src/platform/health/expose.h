/* expose.h: writes findings and readings of GPUs as metrics. */
#ifndef LT_PLATFORM_HEALTH_EXPOSE_H
#define LT_PLATFORM_HEALTH_EXPOSE_H

#include "platform/health/facts.h"
#include "platform/telemetry/exposition.h"

/* Write lateen_health_result, from 0 (ok) to 3 (evict), and each check's result and value, with
 * the label node. */
void lt_health_expose(lt_expo *e, const lt_health *h, double unix_s);
/* Write readings under the names and labels of dcgm-exporter, for its dashboards. */
void lt_gpus_expose(lt_expo *e, const lt_gpu_reading *gpus, int n, const char *host);

/* health.c: what a server of these metrics needs. */
const lt_machine_source *lt_health_source(const lt_health *h);
const lt_facts *lt_health_facts(const lt_health *h);
double lt_health_unix_s(const lt_health *h); /* When the last check began. */
/* The first of the worst findings, such as "drain: gpu.xid_79 gpu3 = 1, limit 1"; "": all checks
 * are ok. */
#define LT_HEALTH_WHY_BYTES 240
void lt_health_why(const lt_health *h, char out[LT_HEALTH_WHY_BYTES]);

#endif
