/* facts.h: the results of reading for one check: values of objects, and what could not be
 * read. */
#ifndef LT_PLATFORM_HEALTH_FACTS_H
#define LT_PLATFORM_HEALTH_FACTS_H

#include "platform/health/checks.h"
#include "platform/health/machine.h"

typedef struct {
    lt_health_check_id check;
    char object[sizeof((lt_health_finding *)0)->object];
    double value;
} lt_fact;

typedef struct {
    lt_fact *facts;
    lt_health_skip *skips;
    int n, n_skips;
    bool out_of_memory; /* Tested once, at the end. */
    /* For the history and for metrics. */
    lt_gpu_reading gpus[LT_HEALTH_GPUS];
    int n_gpus;
    char boot[64];   /* The kernel's name of this boot. */
    double uptime_s; /* NAN: unknown. */
    /* Kernel messages count from the uptime log_from_s on; those that the history does not yet
     * have, from new_from_s on. */
    double log_from_s, new_from_s;
    int n_xids_new;
} lt_facts;

void lt_facts_clear(lt_facts *f); /* Frees them; accepts a zeroed struct. */
/* Add a value of an object ("": the node); an unknown value, NAN, is not added. */
void lt_facts_add(lt_facts *f, lt_health_check_id check, const char *object, double value);
/* Add 1 to the value of this check and object, from 0 on. */
void lt_facts_count(lt_facts *f, lt_health_check_id check, const char *object);
void lt_facts_skip(lt_facts *f, const char *what, const char *fmt, ...) LT_PRINTF(3, 4);

/* What to read; the strings live as long as the check. */
typedef struct {
    const lt_machine_source *source;
    const char *mounts;
    double log_window_s, mount_s;
} lt_facts_plan;

/* gpu.c, log.c, links.c, host.c: tier 1. boot comes first: it sets boot and uptime_s. gpus comes
 * before the log, whose messages name GPUs by their address on the bus. */
void lt_facts_of_boot(lt_facts *f, const lt_facts_plan *p);
void lt_facts_of_gpus(lt_facts *f, const lt_facts_plan *p);
void lt_facts_of_log(lt_facts *f, const lt_facts_plan *p);
void lt_facts_of_links(lt_facts *f, const lt_facts_plan *p);
void lt_facts_of_host(lt_facts *f, const lt_facts_plan *p);

/* work.c, work_gpu.c: tiers 2 and 3; burn_s is 0 for tier 2. */
typedef struct {
    double burn_s, memory_share;
} lt_work_plan;
LT_MUST_USE lt_err lt_facts_of_cores(lt_facts *f, const lt_work_plan *p);
LT_MUST_USE lt_err lt_facts_of_gpu_work(lt_facts *f, const lt_work_plan *p);

#endif
