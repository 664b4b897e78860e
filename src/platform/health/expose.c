/* expose.c: see expose.h. */
#include "platform/health/expose.h"

#include <math.h>
#include <stdio.h>

#define LABEL_BYTES 256

/* Write a finding, with its object escaped. */
static void write_finding(lt_expo *e, const lt_health_finding *x, const char *node, double value) {
    char object[LABEL_BYTES];
    lt_expo_value(e, value, "node=\"%s\",check=\"%s\",object=\"%s\"", node, x->check,
                  lt_expo_label(object, sizeof object, x->object));
}

void lt_health_expose(lt_expo *e, const lt_health *h, double unix_s) {
    char node[LABEL_BYTES], label[LABEL_BYTES + 16];
    int n, n_skips;
    const lt_health_finding *x = lt_health_findings(h, &n);

    (void)lt_health_skips(h, &n_skips);
    (void)lt_expo_label(node, sizeof node, lt_health_node(h));
    snprintf(label, sizeof label, "node=\"%s\"", node);
    lt_expo_one(e, LT_EXPO_GAUGE, "lateen_health_result", label,
                "Result of the last check: 0 ok, 1 warn, 2 drain, 3 evict.",
                (double)lt_health_result_of(h));
    lt_expo_one(e, LT_EXPO_GAUGE, "lateen_health_timestamp_seconds", label,
                "When the last check began, since 1970.", unix_s);
    lt_expo_one(e, LT_EXPO_GAUGE, "lateen_health_duration_seconds", label,
                "How long the last check took.", lt_health_seconds(h));
    lt_expo_one(e, LT_EXPO_GAUGE, "lateen_health_skipped", label,
                "Things that the last check could not read.", (double)n_skips);
    lt_expo_family(e, LT_EXPO_GAUGE, "lateen_health_check_result",
                   "Result of one check of one object: 0 ok, 1 warn, 2 drain, 3 evict.");
    for (int i = 0; i < n; i++) {
        write_finding(e, &x[i], node, (double)x[i].result);
    }
    lt_expo_family(e, LT_EXPO_GAUGE, "lateen_health_check_value",
                   "Value that one check found of one object.");
    for (int i = 0; i < n; i++) {
        write_finding(e, &x[i], node, x[i].value);
    }
}

#define READING_ROW(field, dcgm, type, help)                                                       \
    {offsetof(lt_gpu_reading, field), dcgm, LT_EXPO_##type, help},
static const struct {
    size_t offset;
    const char *name;
    lt_expo_type type;
    const char *help;
} readings[] = {LT_GPU_READING_MAP(READING_ROW)};
#undef READING_ROW

static void write_gpu(lt_expo *e, const lt_gpu_reading *g, const char *host, double value) {
    char uuid[LABEL_BYTES], name[LABEL_BYTES];
    lt_expo_value(e, value,
                  "gpu=\"%d\",UUID=\"%s\",pci_bus_id=\"%s\",device=\"nvidia%d\",modelName=\"%s\","
                  "Hostname=\"%s\"",
                  g->index, lt_expo_label(uuid, sizeof uuid, g->uuid), g->pci, g->index,
                  lt_expo_label(name, sizeof name, g->name), host);
}

void lt_gpus_expose(lt_expo *e, const lt_gpu_reading *gpus, int n, const char *host) {
    char node[LABEL_BYTES];
    (void)lt_expo_label(node, sizeof node, host);
    for (size_t r = 0; r < sizeof readings / sizeof *readings; r++) {
        bool begun = false;
        for (int i = 0; i < n && readings[r].name[0] != '\0'; i++) {
            const double value = *(const double *)(const void *)((const char *)&gpus[i] +
                                                                 readings[r].offset);
            if (isnan(value)) {
                continue;
            }
            if (!begun) {
                lt_expo_family(e, readings[r].type, readings[r].name, readings[r].help);
                begun = true;
            }
            write_gpu(e, &gpus[i], node, value);
        }
    }
}
