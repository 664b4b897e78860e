/* job.h: the batch script of a training run under Slurm.
 *
 *   nodes    Slurm grants a number of nodes between the smallest and the largest of `sizes`, and
 *   `spares` more. The
 *            script trains on the largest size for which enough nodes pass `lateen health
 *            --tier 2`; dp follows from it; the rows of a step do not change.
 *   ends     Before the time limit and on preemption Slurm signals the ranks; they save and end
 *            with status 75, and the job is queued again. It then begins again with the nodes
 *            that are free. A job that is cancelled is not queued again.
 *   faults   After a fault the nodes are checked again, and the ranks start on those that are fit,
 *            without leaving the allocation. Three faults without a new checkpoint end the job.
 *   growth   A job that runs on fewer nodes than it may have checks from time to time whether
 *            enough are idle and no other job waits for them. If so, it saves, is queued again,
 *            and gets them.
 *
 * job.sh is the part of the script that all jobs share. */
#ifndef LT_PLATFORM_CLUSTER_JOB_H
#define LT_PLATFORM_CLUSTER_JOB_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lateen/base.h"

/* How srun starts a container; the rows of a table in job.c. */
typedef enum { LT_JOB_PYXIS, LT_JOB_ENVIRONMENT, LT_JOB_APPTAINER } lt_job_container;
#define LT_JOB_CONTAINERS "pyxis|environment|apptainer"

typedef struct {
    const char *name, *account;
    const char *qos, *partition, *time, *reservation, *log; /* "": Slurm's default. */
    const char *container;                                  /* Image or file; "": none. */
    lt_job_container by;
    const char *program;      /* The path of lateen. */
    const char *const *words; /* After `lateen train`: the recipe and options; NULL at the end. */
    const char *out;          /* Run folder. */
    int64_t metrics_port; /* Of the run's /metrics, for deploy/slurm/targets.sh; 0: it has none. */
    const char *axes;     /* Axes of the mesh, without dp: "pp=2,tp=4"; "": dp alone. */
    int64_t rest;         /* Their product, without ep: ranks of one replica. */
    const int64_t *sizes; /* Nodes on which the recipe can train, largest first. */
    size_t n_sizes;
    int64_t node_gpus; /* Ranks of a node, one for each GPU. */
    int64_t spares, cpus, lead_s, grow_s, retries;
    const char *mpi; /* The value for `srun --mpi`. */
    bool asks_gpus;  /* False: the nodes have no GPUs, and ranks compute on CPUs. */
    bool checks;     /* Check the nodes first. */
} lt_job;

/* The script, 0-terminated; free it. ARG: a name that Slurm or a script cannot carry. */
LT_MUST_USE lt_err lt_job_script(char **out, const lt_job *j);

#endif
