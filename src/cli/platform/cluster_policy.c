/* cluster_policy.c: `lateen cluster policy FILE.yaml`: checks a policy of how tenants share a
 * cluster, and writes Slurm's configuration for it. */
#include <stdio.h>
#include <stdlib.h>

#include "base/error.h"
#include "base/file.h"
#include "cli/platform/cluster_verbs.h"
#include "cli/verb.h"
#include "platform/cluster/policy.h"

#define POLICY_VERB_OPTIONS(X)                                                                     \
    X(STR, out, "out", "", 0, 0, "FOLDER",                                                         \
      "write slurm.conf lines and scripts there; empty: print")                                    \
    X(I64, live, "live", "-1", -1, 1e9, "GPUS",                                                    \
      "GPUs that work now: for those that are lost, first slack and then quotas shrink; -1: all")  \
    X(STR, at, "at", "", 0, 0, "TIME",                                                             \
      "with --live: when, YYYY-MM-DDTHH:MM:SS; guarantees at that time are kept; empty: now")      \
    X(BOOL, check, "check", "false", 0, 0, "", "only check, and print what each tenant gets")

typedef struct {
    POLICY_VERB_OPTIONS(LT_OPTION_FIELD)
} policy_options;
#define LT_OPTION_STRUCT policy_options
static const lt_option rows[] = {POLICY_VERB_OPTIONS(LT_OPTION_ROW)};
static const lt_option_table table = LT_OPTION_TABLE("cluster policy", rows);

static const struct {
    const char *name;
    void (*write)(const lt_policy *p, FILE *to);
} files[] = {{"policy.conf", lt_policy_write_conf},
             {"accounts.sh", lt_policy_write_accounts},
             {"reservations.sh", lt_policy_write_reservations}};

static lt_err write_file(const lt_policy *p, size_t i, const char *folder) {
    char path[LT_PATH_BYTES], *text = NULL;
    size_t bytes = 0;
    FILE *to;
    lt_err err;
    LT_TRY(lt_path_join(path, folder, files[i].name));
    to = open_memstream(&text, &bytes);
    if (to == NULL) {
        LT_FAIL(LT_ERR_OOM, "%s", path);
    }
    files[i].write(p, to);
    err = fclose(to) == 0 ? lt_file_write_atomic(path, text, bytes)
                          : lt_error_set(LT_ERR_OOM, "%s", path);
    free(text);
    return err;
}

static void print_table(const lt_policy *p) {
    printf("%lld of %lld GPUs live; slack %lld, guarantees at most %lld%s%s\n\n",
           (long long)p->live, (long long)p->gpus, (long long)p->slack_now, (long long)p->peak,
           p->peak > 0 ? " at " : "", p->peak > 0 ? p->peak_at : "");
    printf("%-31s %8s %8s %8s %8s %8s\n", "tenant", "quota", "now", "borrows", "share", "priority");
    for (size_t i = 0; i < p->n_tenants; i++) {
        const lt_policy_tenant *t = &p->tenants[i];
        printf("%-31s %8lld %8lld %8lld %8lld %8lld\n", t->name, (long long)t->quota,
               (long long)t->granted, (long long)lt_policy_borrow(p, t), (long long)t->share,
               (long long)t->priority);
    }
}

static lt_err run(lt_policy *p, const char *path, const policy_options *o) {
    const lt_verb_use uses[] = {{"at", o->live >= 0, "--live"},
                                {"out", !o->check, "leaving out --check"}};
    LT_TRY(lt_verb_idle(&table, o, uses, sizeof uses / sizeof *uses));
    LT_TRY(lt_policy_open(p, path, o->live, o->at));
    if (o->check) {
        print_table(p);
        return LT_OK;
    }
    LT_TRY(o->out[0] != '\0' ? lt_file_make_dirs(o->out) : LT_OK);
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        if (o->out[0] != '\0') {
            LT_TRY(write_file(p, i, o->out));
        } else {
            printf("%s==> %s <==\n", i > 0 ? "\n" : "", files[i].name);
            files[i].write(p, stdout);
        }
    }
    return LT_OK;
}

int lt_cluster_policy(int argc, char **argv) {
    policy_options o;
    lt_policy p = {0};
    const char *path[1] = {NULL};
    int n = 0, status = LT_EXIT_DONE;
    lt_err err;
    if (!lt_verb_parse(&table, &o, argc, argv, "cluster policy FILE.yaml [--out FOLDER | --check]",
                       "Check how tenants share a cluster, and write the configuration of Slurm "
                       "that enforces it:\nlines for slurm.conf, a script of sacctmgr (accounts, "
                       "QOS) and one of scontrol (reservations).",
                       path, 1, &n, &status)) {
        return status;
    }
    err = n == 1 ? run(&p, path[0], &o)
                 : lt_error_set(LT_ERR_ARG, "cluster policy needs a file, as recipes/policy.yaml");
    lt_policy_close(&p);
    return err == LT_OK ? LT_EXIT_DONE : lt_verb_fail(err);
}
