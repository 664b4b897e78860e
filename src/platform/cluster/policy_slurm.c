/* policy_slurm.c: expresses a policy as configuration of Slurm.
 *
 * Each tenant has an account, with its share, and two QOS; a third if it has guarantees. A limit of
 * a job's QOS replaces the same limit of its account, so only the QOS have limits. */
#include "platform/cluster/policy.h"

#include <string.h>

void lt_policy_write_conf(const lt_policy *p, FILE *to) {
    fprintf(to,
            "# From `lateen cluster policy`; include it in slurm.conf. Needs slurmdbd.\n"
            "AccountingStorageType=accounting_storage/slurmdbd\n"
            "AccountingStorageEnforce=associations,limits,qos\n"
            "AccountingStorageTRES=gres/gpu\n"
            "PriorityType=priority/multifactor\n"
            "PriorityDecayHalfLife=%lld\n" /* Minutes. */
            "PriorityWeightAge=%lld\n"
            "PriorityWeightFairshare=%lld\n"
            "PriorityWeightQOS=%lld\n"
            "PriorityWeightJobSize=%lld\n"
            "PreemptType=preempt/qos\n"
            "PreemptMode=REQUEUE\n"
            "JobRequeue=1\n",
            (long long)(p->half_life * 1440.0), (long long)p->age, (long long)p->fairshare,
            (long long)p->by_qos, (long long)p->size);
}

static void write_users(const lt_policy_tenant *t, FILE *to) {
    char users[LT_OPTION_STR_BYTES], *next = NULL;
    memcpy(users, t->users, sizeof users);
    for (char *u = strtok_r(users, ", ", &next); u != NULL; u = strtok_r(NULL, ", ", &next)) {
        fprintf(to, "user '%s' '%s'\n", u, t->name);
    }
}

void lt_policy_write_accounts(const lt_policy *p, FILE *to) {
    const char *comma = "";
    fprintf(to,
            "#!/bin/sh\n"
            "# From `lateen cluster policy`: accounts and QOS of tenants; run again, it changes "
            "what is there.\n"
            "# %lld of %lld GPUs live; slack %lld, guarantees at most %lld.\n"
            "set -eu\n"
            "qos() { # NAME OPTION...\n"
            "    name=$1\n"
            "    shift\n"
            "    [ -n \"$(sacctmgr --noheader --parsable2 list qos where name=\"$name\" "
            "format=name)\" ] || sacctmgr --immediate add qos \"$name\"\n"
            "    sacctmgr --immediate modify qos where name=\"$name\" set \"$@\"\n"
            "}\n"
            "account() { # NAME OPTION...\n"
            "    name=$1\n"
            "    shift\n"
            "    [ -n \"$(sacctmgr --noheader --parsable2 list account where name=\"$name\" "
            "format=account)\" ] || sacctmgr --immediate add account \"$name\"\n"
            "    sacctmgr --immediate modify account where name=\"$name\" set \"$@\"\n"
            "}\n"
            "user() { # NAME ACCOUNT\n"
            "    [ -n \"$(sacctmgr --noheader --parsable2 list associations where user=\"$1\" "
            "account=\"$2\" format=user)\" ] || sacctmgr --immediate add user \"$1\" "
            "account=\"$2\"\n"
            "}\n\n",
            (long long)p->live, (long long)p->gpus, (long long)p->slack_now, (long long)p->peak);
    for (size_t i = 0; i < p->n_tenants; i++) {
        const lt_policy_tenant *t = &p->tenants[i];
        fprintf(to,
                "qos '%s-borrow' priority=0 GrpTRES=gres/gpu=%lld PreemptMode=requeue "
                "GraceTime=%lld PreemptExemptTime=%lld:%02lld:%02lld\n",
                t->name, (long long)lt_policy_borrow(p, t), (long long)p->grace_s,
                (long long)(p->exempt_s / 3600), (long long)(p->exempt_s / 60 % 60),
                (long long)(p->exempt_s % 60));
    }
    fputs("borrowed='", to); /* Jobs within a quota preempt jobs that have borrowed. */
    for (size_t i = 0; i < p->n_tenants; i++, comma = ",") {
        fprintf(to, "%s%s-borrow", comma, p->tenants[i].name);
    }
    fputs("'\n", to);
    for (size_t i = 0; i < p->n_tenants; i++) {
        const lt_policy_tenant *t = &p->tenants[i];
        const int64_t promised = lt_policy_peak(p, t->name, NULL);
        fprintf(to, "qos '%s' priority=%lld GrpTRES=gres/gpu=%lld Preempt=\"$borrowed\"\n", t->name,
                (long long)t->priority, (long long)t->granted);
        if (promised > 0) {
            fprintf(to,
                    "qos '%s-guarantee' priority=%lld GrpTRES=gres/gpu=%lld "
                    "Preempt=\"$borrowed\" flags=RequiresReservation\n",
                    t->name, (long long)t->priority, (long long)promised);
        }
        fprintf(to, "account '%s' fairshare=%lld qos='%s,%s-borrow", t->name, (long long)t->share,
                t->name, t->name);
        if (promised > 0) {
            fprintf(to, ",%s-guarantee", t->name);
        }
        fprintf(to, "' DefaultQOS='%s'\n", t->name);
        write_users(t, to);
    }
}

void lt_policy_write_reservations(const lt_policy *p, FILE *to) {
    fputs("#!/bin/sh\n"
          "# From `lateen cluster policy`: guarantees as reservations; run again, it changes what "
          "is there.\n"
          "# A node of one that fails is replaced. One that is over is left out.\n"
          "set -eu\n"
          "reservation() { # NAME FROM UNTIL OPTION...\n"
          "    name=$1 from=$2 until=$3 now=$(date +%Y-%m-%dT%H:%M:%S) verb=create\n"
          "    shift 3\n"
          "    expr \"$until\" '>' \"$now\" >/dev/null || return 0\n"
          "    scontrol show reservation \"$name\" >/dev/null 2>&1 && verb=update\n"
          "    if expr \"$from\" '>' \"$now\" >/dev/null; then\n"
          "        set -- StartTime=\"$from\" \"$@\"\n"
          "    elif [ $verb = create ]; then # Slurm takes no time that has passed.\n"
          "        set -- StartTime=now \"$@\"\n"
          "    fi\n"
          "    scontrol $verb reservation ReservationName=\"$name\" EndTime=\"$until\" \"$@\"\n"
          "}\n\n",
          to);
    for (size_t i = 0; i < p->n_guarantees; i++) {
        const lt_policy_guarantee *g = &p->guarantees[i];
        fprintf(to,
                "reservation '%s' %s %s PartitionName='%s' NodeCnt=%lld Accounts='%s' "
                "Flags=REPLACE_DOWN\n",
                g->name, g->from, g->until, p->partition, (long long)(g->gpus / p->node_gpus),
                g->tenant);
    }
}
