/* Jobs of tenants in a queue, against closed forms: M/M/1 and M/D/1 (Pollaczek and Khinchine),
 * priorities without preemption (Cobham 1954) and with it (White and Christie 1958); conservation
 * of GPU seconds; limits at every moment; backfill and exemption by hand. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/rng.h"
#include "lateen/base.h"
#include "plan/queue.h"

#define N_JOBS 200000

static void close_to(double got, double want, double tolerance) {
    if (!(fabs(got - want) <= tolerance)) {
        fail_msg("got %.6g, want %.6g +- %.2g", got, want, tolerance);
    }
}

static lt_policy_tenant tenants[4];

/* Jobs are ordered only by the priorities of the tenants. */
static lt_policy policy_of(int64_t gpus, size_t n_tenants) {
    memset(tenants, 0, sizeof tenants);
    for (size_t i = 0; i < n_tenants; i++) {
        tenants[i].name[0] = (char)('a' + i);
        tenants[i].share = 1;
        tenants[i].priority = 100;
        tenants[i].borrow = -1;
    }
    return (lt_policy){.gpus = gpus,
                       .live = gpus,
                       .by_qos = 1,
                       .half_life = 7,
                       .tenants = tenants,
                       .n_tenants = n_tenants};
}

static double exponential(lt_rng *rng) {
    return -log(1.0 - lt_rng_uniform(rng));
}

/* Poisson arrivals of all tenants together, each with its rate; mean run time 1. */
static lt_queue_job *poisson(size_t n, const double *rates, size_t n_tenants, bool fixed) {
    lt_rng rng = {.seed = 5, .stream = 1};
    lt_queue_job *jobs = calloc(n, sizeof *jobs);
    double all = 0, now = 0;
    assert_non_null(jobs);
    for (size_t i = 0; i < n_tenants; i++) {
        all += rates[i];
    }
    for (size_t i = 0; i < n; i++) {
        double draw = lt_rng_uniform(&rng) * all;
        now += exponential(&rng) / all;
        jobs[i] = (lt_queue_job){
            .arrival_s = now, .run_s = fixed ? 1.0 : exponential(&rng), .gpus = 1};
        while (jobs[i].tenant + 1 < n_tenants && draw > rates[jobs[i].tenant]) {
            draw -= rates[jobs[i].tenant++];
        }
    }
    return jobs;
}

static double mean_wait(const lt_queue_job *jobs, size_t n, size_t tenant) {
    double sum = 0;
    size_t count = 0;
    for (size_t i = 0; i < n; i++) {
        if (jobs[i].tenant == tenant) {
            sum += jobs[i].wait_s;
            count++;
        }
    }
    return sum / (double)count;
}

static void conserves(const lt_queue_result *r, const lt_queue_job *jobs, size_t n) {
    double all = 0;
    for (size_t i = 0; i < n; i++) {
        all += (double)jobs[i].gpus * jobs[i].run_s;
        close_to(jobs[i].end_s, jobs[i].arrival_s + jobs[i].wait_s + jobs[i].run_s,
                 1e-6 * (1.0 + jobs[i].end_s));
    }
    close_to(r->busy_s, all, 1e-9 * all);
}

static void a_single_queue(void **state) {
    const double rates[] = {0.7};
    const double want[] = {0.7 / 0.3, 0.7 / 0.6}; /* M/M/1, M/D/1. */
    (void)state;
    for (int fixed = 0; fixed < 2; fixed++) {
        lt_policy p = policy_of(1, 1);
        lt_queue_job *jobs = poisson(N_JOBS, rates, 1, fixed == 1);
        lt_queue_result r;
        tenants[0].granted = 1;
        assert_int_equal(lt_queue_simulate(&r, &p, jobs, N_JOBS), LT_OK);
        close_to(mean_wait(jobs, N_JOBS, 0), want[fixed], 0.06 * want[fixed]);
        close_to(r.busy_s / r.span_s, 0.7, 0.01);
        conserves(&r, jobs, N_JOBS);
        free(jobs);
    }
}

/* rho = 0.3 + 0.4, mean residual time 0.7. Without quotas both borrow and no job is preempted. */
static void priorities(void **state) {
    const double rates[] = {0.3, 0.4};
    const double cobham[] = {0.7 / 0.7, 0.7 / (0.7 * 0.3)};
    const double preempted[] = {0.3 / 0.7, 1 / 0.7 + 0.7 / (0.7 * 0.3) - 1};
    (void)state;
    for (int quota = 0; quota < 2; quota++) {
        const double *want = quota ? preempted : cobham;
        lt_policy p = policy_of(1, 2);
        lt_queue_job *jobs = poisson(N_JOBS, rates, 2, false);
        lt_queue_result r;
        tenants[0].priority = 200;
        tenants[0].granted = quota;
        assert_int_equal(lt_queue_simulate(&r, &p, jobs, N_JOBS), LT_OK);
        close_to(mean_wait(jobs, N_JOBS, 0), want[0], 0.06 * want[0]);
        close_to(mean_wait(jobs, N_JOBS, 1), want[1], 0.06 * want[1]);
        assert_true((r.preemptions > 0) == (quota == 1));
        conserves(&r, jobs, N_JOBS);
        free(jobs);
    }
}

/* Two tenants whose jobs always wait get GPUs in the ratio of their shares. */
static void fair_share(void **state) {
    enum { N = 4000 };
    lt_policy p = policy_of(8, 2);
    lt_queue_job *jobs = calloc(N, sizeof *jobs);
    lt_queue_result r;
    double used[2] = {0};
    (void)state;
    p.by_qos = 0;
    p.fairshare = 1000;
    tenants[0].share = 3;
    for (size_t i = 0; i < N; i++) {
        jobs[i] = (lt_queue_job){.tenant = i % 2, .run_s = 600 + (double)(i % 7), .gpus = 1};
    }
    assert_int_equal(lt_queue_simulate(&r, &p, jobs, N), LT_OK);
    for (size_t i = 0; i < N; i++) { /* Tenant 1 has jobs left when tenant 0 has none. */
        used[jobs[i].tenant] += jobs[i].end_s < 0.5 * r.span_s ? jobs[i].run_s : 0;
    }
    close_to(used[0] / used[1], 3.0, 0.1);
    free(jobs);
}

/* Without borrowing no job is preempted, so each job holds its GPUs from its start to its end. */
static void quotas_hold(void **state) {
    enum { N = 600 };
    lt_rng rng = {.seed = 3, .stream = 1};
    lt_policy p = policy_of(12, 3);
    lt_queue_job *jobs = calloc(N, sizeof *jobs);
    lt_queue_result r;
    double now = 0;
    (void)state;
    for (size_t i = 0; i < 3; i++) {
        tenants[i].granted = 3 + (int64_t)i;
        tenants[i].borrow = 0;
    }
    for (size_t i = 0; i < N; i++) {
        now += exponential(&rng);
        jobs[i] = (lt_queue_job){.tenant = i % 3,
                                 .arrival_s = now,
                                 .run_s = 5 * exponential(&rng),
                                 .gpus = 1 + (int64_t)lt_rng_below(&rng, 3)};
    }
    assert_int_equal(lt_queue_simulate(&r, &p, jobs, N), LT_OK);
    conserves(&r, jobs, N);
    for (size_t i = 0; i < N; i++) {
        const double at = jobs[i].end_s - jobs[i].run_s; /* Sums grow only when a job starts. */
        int64_t used[3] = {0};
        for (size_t k = 0; k < N; k++) {
            const bool runs = jobs[k].end_s - jobs[k].run_s <= at + 1e-9 &&
                              jobs[k].end_s > at + 1e-9;
            used[jobs[k].tenant] += runs ? jobs[k].gpus : 0;
        }
        for (size_t t = 0; t < 3; t++) {
            assert_true(used[t] <= tenants[t].granted);
        }
    }
    free(jobs);
}

static void backfill_and_exemption_by_hand(void **state) {
    lt_queue_job easy[] = {{.run_s = 100, .gpus = 2},
                           {.arrival_s = 1, .run_s = 10, .gpus = 4},
                           {.arrival_s = 2, .run_s = 50, .gpus = 2},
                           {.arrival_s = 3, .run_s = 200, .gpus = 2}};
    lt_queue_job exempt[] = {{.tenant = 1, .run_s = 100, .gpus = 1},
                             {.tenant = 0, .arrival_s = 10, .run_s = 20, .gpus = 1}};
    lt_queue_job large[] = {{.run_s = 1, .gpus = 5}};
    lt_policy p = policy_of(4, 1);
    lt_queue_result r;
    (void)state;
    tenants[0].granted = 100; /* No limit. */
    assert_int_equal(lt_queue_simulate(&r, &p, easy, 4), LT_OK);
    close_to(easy[1].end_s, 110, 1e-9); /* The first waiting job is not delayed, */
    close_to(easy[2].end_s, 52, 1e-9);  /* by one that ends before it starts, */
    close_to(easy[3].end_s, 310, 1e-9); /* nor by one that does not. */
    tenants[0].granted = 4;
    assert_int_equal(lt_queue_simulate(&r, &p, large, 1), LT_ERR_ARG);
    assert_non_null(strstr(lt_error_message(), "tenant a needs 5 GPUs: its quota is 4"));
    p = policy_of(1, 2);
    p.exempt_s = 60;
    tenants[0].granted = 1;
    assert_int_equal(lt_queue_simulate(&r, &p, exempt, 2), LT_OK);
    close_to(exempt[1].end_s, 80, 1e-9);
    close_to(exempt[0].end_s, 120, 1e-9);
    assert_int_equal(exempt[0].preemptions, 1);
}

static void jains_index(void **state) {
    (void)state;
    close_to(lt_queue_jain((const double[]){2, 2, 2}, 3), 1.0, 1e-12);
    close_to(lt_queue_jain((const double[]){1, 0, 0, 0}, 4), 0.25, 1e-12);
    close_to(lt_queue_jain((const double[]){1, 2, 3}, 3), 36.0 / 42.0, 1e-12);
    close_to(lt_queue_jain((const double[]){0, 0}, 2), 1.0, 1e-12);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_single_queue),
                                       cmocka_unit_test(priorities),
                                       cmocka_unit_test(fair_share),
                                       cmocka_unit_test(quotas_hold),
                                       cmocka_unit_test(backfill_and_exemption_by_hand),
                                       cmocka_unit_test(jains_index)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
