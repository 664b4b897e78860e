/* queue.c: see queue.h. A pass looks at the waiting jobs in the order of their weight. It follows
 * every event: an arrival, an end, the moment from which a job may be preempted. */
#include "plan/queue.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"

#define MAX_AGE_S (7.0 * 86400.0)
#define DEPTH     200 /* Number of a tenant's waiting jobs that a pass looks at. */

typedef struct {
    size_t *waiting; /* Jobs, in order of arrival. */
    size_t n_waiting, cursor;
    int64_t own, lent; /* GPUs within the quota, and borrowed ones. */
    double usage_s;    /* GPU seconds, decayed. */
} tenant_state;

typedef struct {
    size_t job;
    bool borrowed;
    double begun_s, end_s;
} running_job;

typedef struct {
    const lt_policy *p;
    lt_queue_job *jobs;
    /* For each job: its remaining run time, and since when it has waited. */
    double *left_s, *since_s;
    tenant_state *tenants;
    running_job *running;
    size_t n_running;
    int64_t free, shares, top;
    double now_s, usage_s;
    lt_queue_result *result;
} queue;

double lt_queue_jain(const double *x, size_t n) {
    double sum = 0, squares = 0;
    for (size_t i = 0; i < n; i++) {
        sum += x[i];
        squares += x[i] * x[i];
    }
    return squares > 0 ? sum * sum / ((double)n * squares) : 1.0;
}

static double weight(const queue *q, size_t tenant, size_t job) {
    const lt_policy *p = q->p;
    const lt_policy_tenant *t = &p->tenants[tenant];
    const double age = (q->now_s - q->jobs[job].arrival_s) / MAX_AGE_S;
    const double used = q->usage_s > 0 ? q->tenants[tenant].usage_s / q->usage_s : 0;
    const double share = (double)t->share / (double)q->shares;
    return (double)p->by_qos * (double)t->priority / (double)q->top +
           (double)p->fairshare * exp2(-used / share) + (double)p->age * (age < 1 ? age : 1) +
           (double)p->size * (double)q->jobs[job].gpus / (double)p->live;
}

/* ---- Begin and end ---- */

static void wait_again(queue *q, size_t job) {
    tenant_state *t = &q->tenants[q->jobs[job].tenant];
    size_t at = t->n_waiting++;
    for (; at > 0 && t->waiting[at - 1] > job; at--) {
        t->waiting[at] = t->waiting[at - 1];
    }
    t->waiting[at] = job;
    q->since_s[job] = q->now_s;
}

static void begin(queue *q, tenant_state *t, size_t at, bool borrowed) {
    const size_t job = t->waiting[at];
    lt_queue_job *j = &q->jobs[job];
    t->n_waiting--;
    memmove(t->waiting + at, t->waiting + at + 1, (t->n_waiting - at) * sizeof *t->waiting);
    j->wait_s += q->now_s - q->since_s[job];
    q->free -= j->gpus;
    *(borrowed ? &t->lent : &t->own) += j->gpus;
    q->running[q->n_running++] = (running_job){job, borrowed, q->now_s, q->now_s + q->left_s[job]};
}

static void leave(queue *q, size_t at) {
    const running_job r = q->running[at];
    const lt_queue_job *j = &q->jobs[r.job];
    tenant_state *t = &q->tenants[j->tenant];
    q->free += j->gpus;
    *(r.borrowed ? &t->lent : &t->own) -= j->gpus;
    q->running[at] = q->running[--q->n_running];
}

static bool may_be_preempted(const queue *q, const running_job *r) {
    return r->borrowed && q->now_s >= r->begun_s + (double)q->p->exempt_s;
}

static void preempt_youngest(queue *q) {
    size_t at = q->n_running;
    running_job r;
    for (size_t i = 0; i < q->n_running; i++) {
        const running_job *x = &q->running[i];
        if (may_be_preempted(q, x) &&
            (at == q->n_running || x->begun_s > q->running[at].begun_s ||
             (x->begun_s >= q->running[at].begun_s && x->job > q->running[at].job))) {
            at = i;
        }
    }
    LT_ASSERT(at < q->n_running);
    r = q->running[at];
    leave(q, at);
    q->left_s[r.job] = r.end_s - q->now_s;
    q->jobs[r.job].preemptions++;
    q->result->preemptions++;
    wait_again(q, r.job);
}

/* ---- A pass ---- */

typedef struct {
    bool blocked;   /* A job waits for GPUs: */
    double begin_s; /* when it will begin, */
    int64_t beside; /* and how many GPUs it will leave free. */
} reservation;

static int by_end(const void *a, const void *b) {
    const running_job *x = a, *y = b;
    return (x->end_s > y->end_s) - (x->end_s < y->end_s);
}

static void reserve(queue *q, reservation *r, int64_t gpus) {
    int64_t free = q->free;
    r->blocked = true;
    r->begin_s = q->now_s;
    qsort(q->running, q->n_running, sizeof *q->running, by_end);
    for (size_t i = 0; i < q->n_running && free < gpus; i++) {
        free += q->jobs[q->running[i].job].gpus;
        r->begin_s = q->running[i].end_s;
    }
    r->beside = free - gpus;
}

static int64_t preemptible(const queue *q) {
    int64_t sum = 0;
    for (size_t i = 0; i < q->n_running; i++) {
        sum += may_be_preempted(q, &q->running[i]) ? q->jobs[q->running[i].job].gpus : 0;
    }
    return sum;
}

/* The tenant whose next job has the largest weight; NULL: all have been looked at. */
static tenant_state *next_tenant(queue *q) {
    tenant_state *best = NULL;
    double most = 0;
    for (size_t i = 0; i < q->p->n_tenants; i++) {
        tenant_state *t = &q->tenants[i];
        double w;
        if (t->cursor == t->n_waiting || t->cursor == DEPTH) {
            continue;
        }
        w = weight(q, i, t->waiting[t->cursor]);
        if (best == NULL || w > most) {
            best = t;
            most = w;
        }
    }
    return best;
}

/* Try the tenant's next job. True if a job was preempted, so that the order may have changed. */
static bool try_next(queue *q, tenant_state *t, reservation *r) {
    const size_t job = t->waiting[t->cursor], tenant = q->jobs[job].tenant;
    const lt_policy_tenant *limits = &q->p->tenants[tenant];
    const int64_t gpus = q->jobs[job].gpus;
    const bool own = t->own + gpus <= limits->granted;
    const bool any = own || t->lent + gpus <= lt_policy_borrow(q->p, limits);
    const bool early = !r->blocked || gpus <= r->beside || q->now_s + q->left_s[job] <= r->begin_s;
    bool preempted = false;
    if (!any || !early) {
        t->cursor++;
        return false;
    }
    if (gpus > q->free && (!own || gpus > q->free + preemptible(q))) {
        if (!r->blocked) {
            reserve(q, r, gpus);
        }
        t->cursor++;
        return false;
    }
    begin(q, t, t->cursor, !own); /* q->free may be negative until enough jobs are preempted. */
    while (q->free < 0) {
        preempt_youngest(q);
        preempted = true;
    }
    if (r->blocked && q->now_s + q->left_s[job] > r->begin_s) {
        r->beside -= gpus;
    }
    return preempted;
}

static void pass(queue *q) {
    bool again = true;
    while (again) {
        reservation r = {.blocked = false};
        tenant_state *t;
        again = false;
        for (size_t i = 0; i < q->p->n_tenants; i++) {
            q->tenants[i].cursor = 0;
        }
        while (!again && (t = next_tenant(q)) != NULL) {
            again = try_next(q, t, &r);
        }
    }
}

/* ---- Time ---- */

static void advance(queue *q, double to_s) {
    const double half_s = q->p->half_life * 86400.0, dt = to_s - q->now_s;
    const double decay = exp2(-dt / half_s), gained = half_s / log(2.0) * (1.0 - decay);
    q->usage_s = 0;
    for (size_t i = 0; i < q->p->n_tenants; i++) {
        tenant_state *t = &q->tenants[i];
        t->usage_s = t->usage_s * decay + (double)(t->own + t->lent) * gained;
        q->usage_s += t->usage_s;
    }
    q->result->busy_s += (double)(q->p->live - q->free) * dt;
    q->now_s = to_s;
}

static double next_event(const queue *q, double arrival_s) {
    double at = arrival_s;
    for (size_t i = 0; i < q->n_running; i++) {
        const running_job *r = &q->running[i];
        const double exempt = r->begun_s + (double)q->p->exempt_s;
        at = r->end_s < at ? r->end_s : at;
        at = r->borrowed && exempt > q->now_s && exempt < at ? exempt : at;
    }
    return at;
}

static void end_jobs(queue *q) {
    for (size_t i = 0; i < q->n_running;) {
        if (q->running[i].end_s <= q->now_s) {
            q->jobs[q->running[i].job].end_s = q->now_s;
            leave(q, i);
        } else {
            i++;
        }
    }
}

static void run(queue *q, size_t n) {
    size_t arrived = 0;
    q->now_s = q->jobs[0].arrival_s;
    while (arrived < n || q->n_running > 0) {
        advance(q, next_event(q, arrived < n ? q->jobs[arrived].arrival_s : INFINITY));
        end_jobs(q);
        for (; arrived < n && q->jobs[arrived].arrival_s <= q->now_s; arrived++) {
            wait_again(q, arrived);
            q->result->busy_until_begun_s = q->result->busy_s;
        }
        pass(q);
    }
    q->result->span_s = q->now_s - q->jobs[0].arrival_s;
    q->result->begun_s = q->jobs[n - 1].arrival_s - q->jobs[0].arrival_s;
}

/* ---- Open ---- */

static lt_err check(const lt_policy *p, const lt_queue_job *jobs, size_t n) {
    for (size_t i = 0; i < n; i++) {
        const lt_policy_tenant *t = &p->tenants[jobs[i].tenant];
        const int64_t borrow = lt_policy_borrow(p, t);
        LT_ASSERT(i == 0 || jobs[i].arrival_s >= jobs[i - 1].arrival_s);
        if (jobs[i].gpus > t->granted && jobs[i].gpus > borrow) {
            LT_FAIL(LT_ERR_ARG,
                    "job %zu of tenant %s needs %lld GPUs: its quota is %lld, and it may borrow "
                    "%lld",
                    i + 1, t->name, (long long)jobs[i].gpus, (long long)t->granted,
                    (long long)borrow);
        }
    }
    return LT_OK;
}

static lt_err open_tenants(queue *q, const size_t *counts) {
    for (size_t i = 0; i < q->p->n_tenants; i++) {
        q->shares += q->p->tenants[i].share;
        q->top = q->p->tenants[i].priority > q->top ? q->p->tenants[i].priority : q->top;
        q->tenants[i].waiting = calloc(counts[i] + 1, sizeof(size_t));
        if (q->tenants[i].waiting == NULL) {
            LT_FAIL(LT_ERR_OOM, "queue of %zu jobs", counts[i]);
        }
    }
    return LT_OK;
}

lt_err lt_queue_simulate(lt_queue_result *out, const lt_policy *p, lt_queue_job *jobs, size_t n) {
    lt_err err = LT_OK;
    queue q = {.p = p, .jobs = jobs, .free = p->live, .result = out};
    size_t *counts = NULL;
    *out = (lt_queue_result){0};
    LT_ASSERT(n > 0);
    LT_TRY(check(p, jobs, n));
    counts = calloc(p->n_tenants, sizeof *counts);
    q.tenants = calloc(p->n_tenants, sizeof *q.tenants);
    q.running = calloc(n + 1, sizeof *q.running);
    q.left_s = calloc(n, sizeof *q.left_s);
    q.since_s = calloc(n, sizeof *q.since_s);
    if (counts == NULL || q.tenants == NULL || q.running == NULL || q.left_s == NULL ||
        q.since_s == NULL) {
        LT_FAIL_DONE(LT_ERR_OOM, "simulation of %zu jobs", n);
    }
    for (size_t i = 0; i < n; i++) {
        counts[jobs[i].tenant]++;
        q.left_s[i] = jobs[i].run_s;
        jobs[i].wait_s = jobs[i].end_s = 0;
        jobs[i].preemptions = 0;
    }
    LT_TRY_DONE(open_tenants(&q, counts));
    run(&q, n);
done:
    for (size_t i = 0; q.tenants != NULL && i < p->n_tenants; i++) {
        free(q.tenants[i].waiting);
    }
    free(counts);
    free(q.tenants);
    free(q.running);
    free(q.left_s);
    free(q.since_s);
    return err;
}
