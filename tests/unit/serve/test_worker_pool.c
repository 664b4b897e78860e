/* Work outside the event loop: jobs begin in order and report on the loop, as many at a time as
 * there are threads and memory for their trees; the queue is bounded; a job is cancelled before
 * it begins or not at all; trees are freed first, and jobs that are left at the end are reported
 * or freed (sanitizers find leaks). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <event2/thread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "serve/api/worker_pool.h"

#define N_JOBS 4

typedef struct {
    lt_pool_job job;
    lt_worker_pool *pool;
    atomic_bool *gate; /* The work waits for it. */
    atomic_int begun, worked;
    int told;
    int *order;
} task;

static void work(lt_pool_job *job) {
    task *t = (task *)job;
    assert_true(lt_worker_pool_thread(t->pool) >= 0);
    atomic_store(&t->begun, 1);
    while (!atomic_load(t->gate)) {
        usleep(100);
    }
    atomic_fetch_add(&t->worked, 1);
}

static void done(lt_pool_job *job) {
    task *t = (task *)job;
    assert_int_equal(lt_worker_pool_thread(t->pool), -1);
    assert_int_equal(atomic_load(&t->worked), 1);
    t->told = ++*t->order;
}

static void in_order_and_bounded(void **state) {
    struct event_base *base;
    lt_worker_pool *a = NULL;
    atomic_bool gate = false;
    int order = 0;
    task t[N_JOBS];
    lt_body *tree;
    (void)state;
    assert_int_equal(evthread_use_pthreads(), 0);
    base = event_base_new();
    assert_int_equal(lt_worker_pool_open(&a, base, 1, 2), LT_OK);
    for (int i = 0; i < N_JOBS; i++) {
        t[i] = (task){
            .job = {.work = work, .done = done}, .pool = a, .gate = &gate, .order = &order};
    }
    assert_int_equal(lt_worker_pool_submit(a, &t[0].job), LT_OK);
    assert_int_equal(lt_worker_pool_submit(a, &t[1].job), LT_OK);
    while (atomic_load(&t[0].begun) == 0) {
        usleep(100);
    }
    assert_int_equal(lt_worker_pool_submit(a, &t[2].job), LT_OK);
    assert_int_equal(lt_worker_pool_submit(a, &t[3].job), LT_ERR_LIMIT);
    assert_false(lt_worker_pool_cancel(a, &t[0].job));
    assert_true(lt_worker_pool_cancel(a, &t[1].job));
    assert_int_equal(lt_worker_pool_submit(a, &t[3].job), LT_OK);
    tree = lt_body_open(a, "{\"a\": [1, 2]}", 13);
    assert_non_null(tree);
    assert_int_equal(json_array_size(json_object_get(tree->root, "a")), 2);
    lt_body_free(tree);
    tree = lt_body_open(a, "{\"a\": [1, 2}", 12);
    assert_non_null(tree);
    assert_null(tree->root);
    assert_int_equal(tree->error.status, 400);
    lt_body_free(tree);
    atomic_store(&gate, true);
    while (t[2].told == 0) {
        event_base_loop(base, EVLOOP_ONCE);
    }
    assert_int_equal(t[0].told, 1);
    assert_int_equal(t[1].told, 0);
    assert_int_equal(t[2].told, 2);
    while (atomic_load(&t[3].worked) == 0) {
        usleep(100);
    }
    lt_worker_pool_stop(a); /* Whether the loop has run or not, it is reported. */
    assert_int_equal(t[3].told, 3);
    tree = lt_body_open(a, "{}", 2);
    lt_body_free(tree); /* At once. */
    lt_worker_pool_close(a);
    event_base_free(base);
}

static bool begins(task *t) {
    for (int i = 0; i < 20000 && atomic_load(&t->begun) == 0; i++) {
        usleep(100);
    }
    return atomic_load(&t->begun) != 0;
}

/* Three threads. Two jobs begin; the third has no room beside them until one is taken; the last,
 * which exceeds the limit, runs alone, and no job overtakes it. */
static void several_at_once(void **state) {
    enum { N = 5 };
    static const size_t bytes[N] = {LT_WORKER_POOL_BYTES / 2, LT_WORKER_POOL_BYTES / 4,
                                    LT_WORKER_POOL_BYTES / 2, 2 * LT_WORKER_POOL_BYTES, 1};
    struct event_base *base = event_base_new();
    atomic_bool gates[N];
    lt_worker_pool *a = NULL;
    int order = 0;
    task t[N];
    (void)state;
    assert_int_equal(lt_worker_pool_open(&a, base, 3, N), LT_OK);
    for (int i = 0; i < N; i++) {
        atomic_init(&gates[i], false);
        t[i] = (task){.job = {.work = work, .done = done, .bytes = bytes[i]},
                      .pool = a,
                      .gate = &gates[i],
                      .order = &order};
        assert_int_equal(lt_worker_pool_submit(a, &t[i].job), LT_OK);
    }
    assert_true(begins(&t[0]) && begins(&t[1]));
    usleep(20000);
    assert_int_equal(atomic_load(&t[2].begun), 0);
    atomic_store(&gates[1], true); /* The second is reported before the first. */
    while (t[1].told == 0) {
        event_base_loop(base, EVLOOP_ONCE);
    }
    assert_int_equal(t[0].told, 0);
    assert_true(begins(&t[2]));
    atomic_store(&gates[0], true);
    while (t[0].told == 0) {
        event_base_loop(base, EVLOOP_ONCE);
    }
    usleep(20000);
    assert_int_equal(atomic_load(&t[3].begun) + atomic_load(&t[4].begun), 0);
    atomic_store(&gates[2], true);
    while (t[2].told == 0) {
        event_base_loop(base, EVLOOP_ONCE);
    }
    assert_true(begins(&t[3]));
    usleep(20000);
    assert_int_equal(atomic_load(&t[4].begun), 0);
    atomic_store(&gates[3], true);
    atomic_store(&gates[4], true);
    while (t[4].told == 0) {
        event_base_loop(base, EVLOOP_ONCE);
    }
    assert_int_equal(t[4].told, N);
    lt_worker_pool_close(a);
    event_base_free(base);
}

/* Replaces that of the allocator in this program: counts calls, and notes from a thread of which
 * pool. */
static lt_worker_pool *trimmed_by;
static atomic_int n_trimmed, n_trimmed_by_loop;
int malloc_trim(size_t pad);
int malloc_trim(size_t pad) {
    (void)pad;
    atomic_fetch_add(lt_worker_pool_thread(trimmed_by) >= 0 ? &n_trimmed : &n_trimmed_by_loop, 1);
    return 0;
}

/* It may take a second, during which the loop would serve no client. */
static void memory_is_given_back_by_a_thread(void **state) {
    struct event_base *base = event_base_new();
    lt_worker_pool *a = NULL;
    (void)state;
    assert_int_equal(lt_worker_pool_open(&a, base, 2, 2), LT_OK);
    trimmed_by = a;
    lt_worker_pool_give_back(a, 1000);
    lt_worker_pool_give_back(a, 5000000);
    for (int i = 0; i < 100000 && atomic_load(&n_trimmed) == 0; i++) {
        usleep(100);
    }
    assert_int_equal(atomic_load(&n_trimmed), 1);
    assert_int_equal(atomic_load(&n_trimmed_by_loop), 0);
    lt_worker_pool_close(a);
    event_base_free(base);
}

static void values_of_a_body_are_counted(void **state) {
    const size_t n = LT_BODY_VALUES + 64;
    char *text = malloc(2 * n + 16);
    lt_api_error e;
    (void)state;
    assert_non_null(text);
    memcpy(text, "{\"a\": \"\\\"", 9);
    memset(text + 9, ',', 2 * n); /* In a string they do not count. */
    memcpy(text + 9 + 2 * n, "\"}", 3);
    json_t *root = lt_body_parse(text, strlen(text), &e);
    assert_non_null(root);
    json_decref(root);
    memcpy(text, "{\"a\": [1", 8);
    for (size_t i = 0; i < n; i++) {
        memcpy(text + 8 + 2 * i, ",1", 2);
    }
    memcpy(text + 8 + 2 * n, "]}", 3);
    assert_null(lt_body_parse(text, strlen(text), &e));
    assert_int_equal(e.status, 413);
    free(text);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(in_order_and_bounded),
                                       cmocka_unit_test(several_at_once),
                                       cmocka_unit_test(memory_is_given_back_by_a_thread),
                                       cmocka_unit_test(values_of_a_body_are_counted)};
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
