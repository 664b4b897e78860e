/* policy.c: reads a policy and checks that its promises can be kept; see policy.h. */
#define _XOPEN_SOURCE 700 /* strptime */
#include "platform/cluster/policy.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/error.h"
#include "base/yaml.h"

#define MOST_ENTRIES 4096 /* Tenants, and guarantees. */

#define LT_OPTION_STRUCT lt_policy
static const lt_option rows[] = {LT_POLICY_OPTIONS(LT_OPTION_ROW)};
static const lt_option_table table = LT_OPTION_TABLE("a policy", rows);
#undef LT_OPTION_STRUCT
#define LT_OPTION_STRUCT lt_policy_tenant
static const lt_option tenant_rows[] = {LT_POLICY_TENANT_OPTIONS(LT_OPTION_ROW)};
static const lt_option_table tenant_table = LT_OPTION_TABLE("a tenant", tenant_rows);
#undef LT_OPTION_STRUCT
#define LT_OPTION_STRUCT lt_policy_guarantee
static const lt_option guarantee_rows[] = {LT_POLICY_GUARANTEE_OPTIONS(LT_OPTION_ROW)};
static const lt_option_table guarantee_table = LT_OPTION_TABLE("a guarantee", guarantee_rows);

/* ---- Reading ---- */

/* Check a name. Names become accounts, QOS and reservations, which sacctmgr makes lower-case. */
static lt_err check_name(const char *name, size_t length, const char *origin) {
    const size_t good = strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789_-");
    if (length == 0 || length >= LT_POLICY_NAME_BYTES || good < length || name[0] == '-') {
        LT_FAIL(LT_ERR_ARG,
                "%s: name '%.*s': 1 to %d lower-case letters, digits, '_' and '-' are allowed",
                origin, (int)length, name, LT_POLICY_NAME_BYTES - 1);
    }
    return LT_OK;
}

/* Entry `name` of a list of structs that begin with their name. It is created if it is new. */
static lt_err entry_of(void **list, size_t *n, size_t bytes, const lt_option_table *t,
                       const char *name, size_t length, void **out) {
    char *grown;
    for (size_t i = 0; i < *n; i++) {
        char *entry = (char *)*list + i * bytes;
        if (strncmp(entry, name, length) == 0 && entry[length] == '\0') {
            *out = entry;
            return LT_OK;
        }
    }
    if (*n == MOST_ENTRIES) {
        LT_FAIL(LT_ERR_LIMIT, "more than %d tenants or guarantees", MOST_ENTRIES);
    }
    grown = realloc(*list, (*n + 1) * bytes);
    if (grown == NULL) {
        LT_FAIL(LT_ERR_OOM, "policy");
    }
    *list = grown;
    *out = grown + (*n)++ * bytes;
    memset(*out, 0, bytes);
    lt_options_default(t, *out);
    memcpy(*out, name, length);
    return LT_OK;
}

/* The name in messages: "tenants.NAME.KEY", "guarantees.NAME.KEY", or "KEY" of the whole policy. */
static lt_err read_entry(lt_policy *p, const lt_yaml_entry *e, const char *path) {
    const struct {
        const char *prefix;
        void **list;
        size_t *n, bytes;
        const lt_option_table *table;
    } lists[] = {
        {"tenants.", (void **)&p->tenants, &p->n_tenants, sizeof *p->tenants, &tenant_table},
        {"guarantees.", (void **)&p->guarantees, &p->n_guarantees, sizeof *p->guarantees,
         &guarantee_table}};
    char origin[LT_ERROR_MESSAGE_BYTES / 2];
    (void)snprintf(origin, sizeof origin, "%s:%d", path, e->line);
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
        const char *name = e->key + strlen(lists[i].prefix), *dot;
        void *entry;
        if (strncmp(e->key, lists[i].prefix, strlen(lists[i].prefix)) != 0) {
            continue;
        }
        dot = strchr(name, '.');
        if (dot == NULL) {
            LT_FAIL(LT_ERR_ARG, "%s: %s has no options", origin, e->key);
        }
        LT_TRY(check_name(name, (size_t)(dot - name), origin));
        LT_TRY(entry_of(lists[i].list, lists[i].n, lists[i].bytes, lists[i].table, name,
                        (size_t)(dot - name), &entry));
        return lt_options_set_yaml(lists[i].table, entry, dot + 1, e, origin);
    }
    return lt_options_set_yaml(&table, p, e->key, e, origin);
}

static lt_err read_file(lt_policy *p, const char *path) {
    lt_err err = LT_OK;
    lt_yaml_entry *entries = NULL;
    size_t n = 0;
    LT_TRY(lt_yaml_load(&entries, &n, path));
    for (size_t i = 0; i < n; i++) {
        LT_TRY_DONE(read_entry(p, &entries[i], path));
    }
done:
    lt_yaml_free(entries, n);
    return err;
}

/* ---- Guarantees ---- */

/* Whether it is a time YYYY-MM-DDTHH:MM:SS; such times sort like their texts. A day that the
 * month does not have changes when it is parsed and printed again, so it is refused. */
static bool is_time(const char *text) {
    struct tm t = {0};
    char again[32] = "";
    const char *end = strptime(text, "%Y-%m-%dT%H:%M:%S", &t);
    (void)timegm(&t);
    (void)strftime(again, sizeof again, "%Y-%m-%dT%H:%M:%S", &t);
    return end != NULL && strcmp(again, text) == 0;
}

static const lt_policy_tenant *tenant_of(const lt_policy *p, const char *name) {
    for (size_t i = 0; i < p->n_tenants; i++) {
        if (strcmp(p->tenants[i].name, name) == 0) {
            return &p->tenants[i];
        }
    }
    return NULL;
}

/* GPUs of the guarantees of one tenant (NULL: all) at a time. */
static int64_t guaranteed(const lt_policy *p, const char *tenant, const char *at) {
    int64_t sum = 0;
    for (size_t i = 0; i < p->n_guarantees; i++) {
        const lt_policy_guarantee *g = &p->guarantees[i];
        const bool counts = tenant == NULL || strcmp(g->tenant, tenant) == 0;
        sum += counts && strcmp(g->from, at) <= 0 && strcmp(at, g->until) < 0 ? g->gpus : 0;
    }
    return sum;
}

int64_t lt_policy_peak(const lt_policy *p, const char *tenant, const char **at) {
    int64_t most = 0;
    /* The sum grows only when a guarantee begins. */
    for (size_t i = 0; i < p->n_guarantees; i++) {
        const int64_t sum = guaranteed(p, tenant, p->guarantees[i].from);
        if (sum > most) {
            most = sum;
            if (at != NULL) {
                *at = p->guarantees[i].from;
            }
        }
    }
    return most;
}

static lt_err check_guarantee(const lt_policy *p, const lt_policy_guarantee *g) {
    if (tenant_of(p, g->tenant) == NULL) {
        LT_FAIL(LT_ERR_ARG, "guarantee %s: there is no tenant '%s'", g->name, g->tenant);
    }
    if (!is_time(g->from) || !is_time(g->until)) {
        LT_FAIL(LT_ERR_ARG, "guarantee %s: '%s' is not a time YYYY-MM-DDTHH:MM:SS", g->name,
                is_time(g->from) ? g->until : g->from);
    }
    if (strcmp(g->from, g->until) >= 0) {
        LT_FAIL(LT_ERR_ARG, "guarantee %s of tenant %s: it ends at %s, before it begins at %s",
                g->name, g->tenant, g->until, g->from);
    }
    if (g->gpus < 1 || g->gpus % p->node_gpus != 0) {
        LT_FAIL(LT_ERR_ARG, "guarantee %s of tenant %s: %lld GPUs are not whole nodes of %lld GPUs",
                g->name, g->tenant, (long long)g->gpus, (long long)p->node_gpus);
    }
    return LT_OK;
}

/* ---- Quotas ---- */

/* Names of users and partitions become part of commands. between: the separator that is allowed
 * between several. */
static lt_err check_words(const char *what, const char *text, const char *between) {
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                  "0123456789._-";
    for (const char *p = text; *p != '\0'; p++) {
        const bool begins = p == text || strchr(between, p[-1]) != NULL;
        if (strchr(between, *p) == NULL && (strchr(letters, *p) == NULL || (begins && *p == '-'))) {
            LT_FAIL(LT_ERR_ARG, "%s '%s': '%c' cannot stand %s", what, text, *p,
                    *p == '-' ? "at the beginning of a name" : "in a name");
        }
    }
    return LT_OK;
}

/* Refuse names of accounts and QOS that are Slurm's own, or that this policy makes for another
 * tenant. */
static lt_err check_place(const lt_policy *p, const lt_policy_tenant *t) {
    static const char *const ends[] = {"-borrow", "-guarantee"};
    if (strcmp(t->name, "root") == 0 || strcmp(t->name, "normal") == 0) {
        LT_FAIL(LT_ERR_ARG, "tenant %s: Slurm itself has %s of this name, for everybody", t->name,
                t->name[0] == 'r' ? "an account" : "a QOS");
    }
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
        char base[LT_POLICY_NAME_BYTES];
        const size_t n = strlen(t->name), end = strlen(ends[i]);
        if (n <= end || strcmp(t->name + n - end, ends[i]) != 0) {
            continue;
        }
        (void)snprintf(base, sizeof base, "%.*s", (int)(n - end), t->name);
        if (tenant_of(p, base) != NULL) {
            LT_FAIL(LT_ERR_ARG, "tenant %s: a QOS of tenant %s has this name", t->name, base);
        }
    }
    return LT_OK;
}

static lt_err check_tenant(const lt_policy *p, const lt_policy_tenant *t) {
    if (t->quota < 0) {
        LT_FAIL(LT_ERR_ARG, "tenant %s has no quota", t->name);
    }
    LT_TRY(check_place(p, t));
    LT_TRY(check_words("users", t->users, ", "));
    if (t->borrow > p->gpus - t->quota) {
        LT_FAIL(LT_ERR_ARG,
                "tenant %s: a quota of %lld and %lld to borrow are more than the cluster's %lld "
                "GPUs",
                t->name, (long long)t->quota, (long long)t->borrow, (long long)p->gpus);
    }
    return LT_OK;
}

int64_t lt_policy_borrow(const lt_policy *p, const lt_policy_tenant *t) {
    const int64_t left = p->live - t->granted;
    return t->borrow < 0 || t->borrow > left ? left : t->borrow;
}

static lt_err check_sum(const lt_policy *p, int64_t quotas) {
    char list[LT_ERROR_MESSAGE_BYTES / 2] = "", peak[96] = "";
    size_t used = 0;
    if (quotas + p->slack + p->peak <= p->gpus) {
        return LT_OK;
    }
    for (size_t i = 0; i < p->n_tenants && used < sizeof list - 64; i++) {
        used += (size_t)snprintf(list + used, sizeof list - used, "%s%s %lld", i > 0 ? ", " : "",
                                 p->tenants[i].name, (long long)p->tenants[i].quota);
    }
    if (p->peak > 0) {
        (void)snprintf(peak, sizeof peak, " and guarantees of %lld at %s", (long long)p->peak,
                       p->peak_at);
    }
    LT_FAIL(LT_ERR_ARG,
            "quotas of %lld GPUs (%s), a slack of %lld%s are %lld GPUs; %lld nodes have %lld",
            (long long)quotas, list, (long long)p->slack, peak,
            (long long)(quotas + p->slack + p->peak), (long long)p->nodes, (long long)p->gpus);
}

/* Take `lack` GPUs from the tenants of one priority, whose quotas are `sum`: each loses its
 * share, rounded down; the first of the list lose one more until the sum is right. */
static int64_t take_from(lt_policy *p, int64_t priority, int64_t sum, int64_t lack) {
    const int64_t take = lack < sum ? lack : sum;
    int64_t rest = take;
    for (size_t i = 0; i < p->n_tenants; i++) {
        lt_policy_tenant *t = &p->tenants[i];
        if (t->priority == priority) {
            const int64_t share = (int64_t)((double)t->quota / (double)sum * (double)take);
            t->granted = t->quota - share;
            rest -= share;
        }
    }
    for (size_t i = 0; rest > 0; i = (i + 1) % p->n_tenants) {
        lt_policy_tenant *t = &p->tenants[i];
        if (t->priority == priority && t->granted > 0) {
            t->granted--;
            rest--;
        }
    }
    return take;
}

/* Take the GPUs of lost nodes from slack and quotas. */
static void shrink(lt_policy *p, int64_t quotas, int64_t promised) {
    const int64_t lost = p->gpus - p->live;
    int64_t lack = quotas - (p->live - promised), done = 0;
    p->slack_now = p->slack > lost ? p->slack - lost : 0;
    while (lack > 0) {
        int64_t lowest = INT64_MAX, sum = 0;
        for (size_t i = 0; i < p->n_tenants; i++) {
            const int64_t priority = p->tenants[i].priority;
            if (priority > done && priority < lowest) {
                lowest = priority;
            }
        }
        for (size_t i = 0; i < p->n_tenants; i++) {
            sum += p->tenants[i].priority == lowest ? p->tenants[i].quota : 0;
        }
        lack -= sum > 0 ? take_from(p, lowest, sum, lack) : 0;
        done = lowest;
    }
}

static lt_err find_time(char out[32], const char *at) {
    const time_t now = time(NULL);
    struct tm local;
    (void)snprintf(out, 32, "%.31s", at);
    if (at[0] == '\0') {
        (void)strftime(out, 32, "%Y-%m-%dT%H:%M:%S", localtime_r(&now, &local));
    }
    if (!is_time(out)) {
        LT_FAIL(LT_ERR_ARG, "'%s' is not a time YYYY-MM-DDTHH:MM:SS", at);
    }
    return LT_OK;
}

static lt_err check(lt_policy *p, int64_t live, const char *at) {
    char moment[32];
    int64_t quotas = 0, promised;
    p->gpus = p->nodes * p->node_gpus;
    p->live = live >= 0 ? live : p->gpus;
    if (p->gpus == 0 || p->n_tenants == 0) {
        LT_FAIL(LT_ERR_ARG,
                p->gpus == 0 ? "cluster.nodes is missing, or 0" : "there are no tenants");
    }
    if (p->live > p->gpus) {
        LT_FAIL(LT_ERR_ARG, "--live %lld: the cluster has %lld GPUs", (long long)live,
                (long long)p->gpus);
    }
    for (size_t i = 0; i < p->n_tenants; i++) {
        LT_TRY(check_tenant(p, &p->tenants[i]));
        p->tenants[i].granted = p->tenants[i].quota;
        quotas += p->tenants[i].quota;
    }
    for (size_t i = 0; i < p->n_guarantees; i++) {
        LT_TRY(check_guarantee(p, &p->guarantees[i]));
    }
    p->peak = lt_policy_peak(p, NULL, &p->peak_at);
    LT_TRY(check_sum(p, quotas));
    LT_TRY(check_words("cluster.partition", p->partition, ""));
    LT_TRY(find_time(moment, at));
    promised = guaranteed(p, NULL, moment);
    if (promised > p->live) {
        LT_FAIL(LT_ERR_ARG, "guarantees of %lld GPUs at %s are more than the %lld that work",
                (long long)promised, moment, (long long)p->live);
    }
    shrink(p, quotas, promised);
    return LT_OK;
}

lt_err lt_policy_open(lt_policy *out, const char *path, int64_t live, const char *at) {
    lt_err err;
    *out = (lt_policy){0};
    lt_options_default(&table, out);
    LT_TRY(read_file(out, path));
    err = check(out, live, at);
    return err == LT_OK ? LT_OK : lt_error_prefix(err, "%s", path);
}

void lt_policy_close(lt_policy *p) {
    free(p->tenants);
    free(p->guarantees);
    *p = (lt_policy){0};
}
