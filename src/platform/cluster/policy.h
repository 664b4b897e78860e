/* policy.h: reads a file that says how tenants share the GPUs of a cluster, and writes the
 * configuration of Slurm that enforces it.
 *
 *   quota      GPUs that a tenant gets at any time: its QOS preempts jobs that have borrowed
 *   borrow     further GPUs that it may use while others leave them idle: QOS TENANT-borrow,
 *              preempted
 *   slack      GPUs that belong to no quota. They can be borrowed until nodes fail; the quotas can
 *              then still be met (MLBatch's slack queue)
 *   guarantee  whole nodes for a tenant between two times, beyond its quota: a reservation
 *   share      weight of fair share among tenants that borrow or wait; priority orders quotas
 *
 * Invariant: at every moment quotas + slack + guarantees <= working GPUs. Lost GPUs are taken from
 * the slack first, then from the quotas: from those of the lowest priority first, and among equals
 * in proportion. Slurm does the scheduling. */
#ifndef LT_PLATFORM_CLUSTER_POLICY_H
#define LT_PLATFORM_CLUSTER_POLICY_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "base/option.h"

#define LT_POLICY_NAME_BYTES 32

#define LT_POLICY_OPTIONS(X)                                                                       \
    X(STR, partition, "cluster.partition", "batch", 0, 1, "NAME", "Slurm's partition")             \
    X(I64, nodes, "cluster.nodes", "0", 0, 1e6, "NODES", "nodes of the partition")                 \
    X(I64, node_gpus, "cluster.node_gpus", "8", 1, 1024, "GPUS", "GPUs of each node")              \
    X(I64, slack, "slack", "0", 0, 1e9, "GPUS", "GPUs in nobody's quota")                          \
    X(I64, grace_s, "preempt.grace_s", "120", 0, 86400, "S",                                       \
      "time to save for a job that is preempted")                                                  \
    X(I64, exempt_s, "preempt.exempt_s", "600", 0, 1e7, "S",                                       \
      "how long a job runs before it may be preempted")                                            \
    X(I64, age, "priority.age", "1000", 0, 1e9, "", "weight of the time that a job has waited")    \
    X(I64, fairshare, "priority.fairshare", "10000", 0, 1e9, "", "weight of fair share")           \
    X(I64, by_qos, "priority.qos", "100000", 0, 1e9, "", "weight of the tenant's priority")        \
    X(I64, size, "priority.size", "0", 0, 1e9, "", "weight of the size of a job")                  \
    X(F64, half_life, "priority.half_life_days", "7", 0.01, 3650, "DAYS",                          \
      "after which use counts half for fair share")

#define LT_POLICY_TENANT_OPTIONS(X)                                                                \
    X(I64, quota, "quota", "-1", -1, 1e9, "GPUS", "GPUs at any time")                              \
    X(I64, borrow, "borrow", "-1", -1, 1e9, "GPUS", "GPUs beyond it; -1: all that are left")       \
    X(I64, share, "share", "1", 1, 1e6, "", "weight of fair share")                                \
    X(I64, priority, "priority", "100", 1, 1e6, "", "order of the quotas")                         \
    X(STR, users, "users", "", 0, 0, "NAME,...", "who may submit")

#define LT_POLICY_GUARANTEE_OPTIONS(X)                                                             \
    X(STR, tenant, "tenant", "", 0, 1, "NAME", "for whom")                                         \
    X(I64, gpus, "gpus", "0", 0, 1e9, "GPUS", "of whole nodes, beyond the quota")                  \
    X(STR, from, "from", "", 0, 1, "YYYY-MM-DDTHH:MM:SS", "begin")                                 \
    X(STR, until, "until", "", 0, 1, "YYYY-MM-DDTHH:MM:SS", "end")

typedef struct {
    char name[LT_POLICY_NAME_BYTES];
    LT_POLICY_TENANT_OPTIONS(LT_OPTION_FIELD)
    int64_t granted; /* The quota, minus the part that lost nodes take. */
} lt_policy_tenant;

typedef struct {
    char name[LT_POLICY_NAME_BYTES];
    LT_POLICY_GUARANTEE_OPTIONS(LT_OPTION_FIELD)
} lt_policy_guarantee;

typedef struct {
    LT_POLICY_OPTIONS(LT_OPTION_FIELD)
    int64_t gpus, live;  /* GPUs of all nodes; those that work. */
    int64_t slack_now;   /* The slack, minus the part that lost nodes take. */
    int64_t peak;        /* Largest sum of the guarantees at one moment. */
    const char *peak_at; /* When: the beginning of a guarantee; NULL: there is none. */
    lt_policy_tenant *tenants;
    size_t n_tenants;
    lt_policy_guarantee *guarantees;
    size_t n_guarantees;
} lt_policy;

/* Read and check a file. live: GPUs that work now; -1: all. at: the time for which lost GPUs are
 * distributed, because guarantees count only while they last; "": now. ARG: the invariant does
 * not hold, or a value contradicts another; the message names tenant and numbers. Close it in
 * every case. */
LT_MUST_USE lt_err lt_policy_open(lt_policy *out, const char *path, int64_t live, const char *at);
void lt_policy_close(lt_policy *p);

/* The largest sum of guarantees of one tenant (NULL: all) at one moment; *at: when, if not NULL. */
int64_t lt_policy_peak(const lt_policy *p, const char *tenant, const char **at);
/* GPUs that a tenant may borrow. */
int64_t lt_policy_borrow(const lt_policy *p, const lt_policy_tenant *t);

/* Write files for Slurm: lines for slurm.conf; a script that makes or changes accounts, QOS and
 * users with sacctmgr; one that makes the reservations with scontrol. */
void lt_policy_write_conf(const lt_policy *p, FILE *to);
void lt_policy_write_accounts(const lt_policy *p, FILE *to);
void lt_policy_write_reservations(const lt_policy *p, FILE *to);

#endif
