/* Ranks that share memory. `lateen launch` gives a rank variables in the environment: one that is
 * missing, is not a number or contradicts the memory segment is refused by name. A message that
 * is longer than its ring arrives complete. A rank that waits on a busy machine yields once. */
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/error.h"
#include "comm/shm.h"
#include "lateen/comm.h"

static void put(const char *name, const char *value) {
    assert_int_equal(value != NULL ? setenv(name, value, 1) : unsetenv(name), 0);
}

/* NULL: not set. segment "ours": that of two ranks in epoch 3. */
static void refused(const char *ranks, const char *rank, const char *segment, const char *epoch,
                    const char *token, lt_err want, const char *words) {
    lt_comm *c = NULL;
    char number[16];
    int fd = -1;
    assert_int_equal(lt_shm_make(&fd, 2, 3), LT_OK);
    (void)snprintf(number, sizeof number, "%d", fd);
    put(LT_ENV_RANKS, ranks);
    put(LT_ENV_RANK, rank);
    put(LT_ENV_SEGMENT, segment != NULL && strcmp(segment, "ours") == 0 ? number : segment);
    put(LT_ENV_EPOCH, epoch);
    put(LT_ENV_STORE, "127.0.0.1:1");
    put(LT_ENV_TOKEN, token);
    assert_int_equal(lt_comm_open_shm(&c, NULL), want);
    assert_null(c);
    if (strstr(lt_error_message(), words) == NULL) {
        fail_msg("'%s' does not say '%s'", lt_error_message(), words);
    }
    (void)close(fd);
}

static void bad_numbers_are_refused(void **state) {
    (void)state;
    refused(NULL, "0", "ours", "3", "t", LT_ERR_ARG,
            "LATEEN_RANKS='' is not a value that lateen launch sets");
    refused("", "0", "ours", "3", "t", LT_ERR_ARG, "LATEEN_RANKS=''");
    refused("257", "0", "ours", "3", "t", LT_ERR_ARG, "LATEEN_RANKS='257'");
    refused("2x", "0", "ours", "3", "t", LT_ERR_ARG, "LATEEN_RANKS='2x'");
    refused("-2", "0", "ours", "3", "t", LT_ERR_ARG, "LATEEN_RANKS='-2'");
    refused(" 2", "0", "ours", "3", "t", LT_ERR_ARG, "LATEEN_RANKS=' 2'");
    refused("2", "2", "ours", "3", "t", LT_ERR_ARG, "LATEEN_RANK='2'");
    refused("2", NULL, "ours", "3", "t", LT_ERR_ARG, "LATEEN_RANK=''");
    refused("2", "x", "ours", "3", "t", LT_ERR_ARG, "LATEEN_RANK='x'");
    refused("2", "1", "-1", "3", "t", LT_ERR_ARG, "LATEEN_SEGMENT='-1'");
    refused("2", "1", "ours", "late", "t", LT_ERR_ARG, "LATEEN_EPOCH='late'");
    refused("0", "0", "ours", "3", "t", LT_ERR_ARG, "LATEEN_SEGMENT without LATEEN_RANKS");
    refused("2", "1", "ours", "3", NULL, LT_ERR_ARG, "LATEEN_SEGMENT without LATEEN_RANKS");
}

static void bad_segments_are_refused(void **state) {
    (void)state;
    refused("2", "1", "1048576", "3", "t", LT_ERR_ARG,
            "LATEEN_SEGMENT=1048576 is not the memory segment of 2 ranks");
    refused("3", "1", "ours", "3", "t", LT_ERR_ARG, "is not the memory segment of 3 ranks");
    refused("2", "1", "ours", "4", "t", LT_ERR_STATE,
            "memory segment of 2 ranks and epoch 3, not of 2 and 4");
}

/* ---- Messages -------------------------------------------------------------------------------- */

enum { LONG = 1000003 }; /* 4 MB, while a ring has 512 KiB. */

/* Rank 0 sends, and its send is complete before it sends again; rank 1 is late, so that the ring
 * is full. */
static lt_err long_message(int rank) {
    static const int ranks[] = {0, 1};
    static int32_t x[LONG];
    lt_comm *c = NULL;
    lt_group *g = NULL;
    int32_t wrong = 0;
    lt_err err = lt_comm_open_shm(&c, &(lt_comm_options){.deadline_s = 30.0});
    err = err == LT_OK ? lt_group_open(&g, c, "all", ranks, 2) : err;
    for (int32_t again = 0; again < 2 && err == LT_OK; again++) {
        for (int32_t i = 0; i < LONG && rank == 0; i++) {
            x[i] = i + again;
        }
        (void)usleep(rank == 1 ? 20000 : 0);
        err = rank == 0 ? lt_send(g, 1, x, LONG, LT_I32, NULL)
                        : lt_recv(g, 0, x, LONG, LT_I32, NULL);
        for (int32_t i = 0; i < LONG; i++) {
            wrong += x[i] != i + again;
        }
    }
    err = err == LT_OK ? lt_barrier(g) : err;
    lt_comm_close(c);
    return err == LT_OK && wrong > 0 ? lt_error_set(LT_ERR_STATE, "%d are wrong", (int)wrong) : err;
}

/* Run two ranks; rank 1 is another process. */
static void run_two(lt_err (*rank_of)(int rank)) {
    lt_comm_store_server *store = NULL;
    char number[16];
    int fd = -1, status = -1;
    assert_int_equal(lt_shm_make(&fd, 2, 3), LT_OK);
    assert_int_equal(lt_comm_store_server_open(&store, "127.0.0.1", 0, 2, "t", 3), LT_OK);
    (void)snprintf(number, sizeof number, "%d", fd);
    put(LT_ENV_RANKS, "2");
    put(LT_ENV_RANK, "1");
    put(LT_ENV_SEGMENT, number);
    put(LT_ENV_EPOCH, "3");
    put(LT_ENV_STORE, lt_comm_store_server_address(store));
    put(LT_ENV_TOKEN, "t");
    const pid_t other = fork();
    assert_true(other >= 0);
    if (other == 0) {
        const lt_err err = rank_of(1);
        (void)fprintf(stderr, "%s", err != LT_OK ? lt_error_message() : "");
        _exit(err != LT_OK);
    }
    put(LT_ENV_RANK, "0");
    if (rank_of(0) != LT_OK) {
        fail_msg("%s", lt_error_message());
    }
    assert_int_equal(waitpid(other, &status, 0), other);
    assert_int_equal(status, 0);
    lt_comm_store_server_close(store);
    (void)close(fd);
}

static void messages_longer_than_the_ring(void **state) {
    (void)state;
    run_two(long_message);
}

/* ---- A busy machine -------------------------------------------------------------------------- */

#define YIELD_US 2000
static atomic_int yields;

/* It takes the place of the C library's. A yield takes as long as others need the core. */
int sched_yield(void) {
    atomic_fetch_add(&yields, 1);
    return usleep(YIELD_US);
}

/* Rank 1 is late; rank 0 polls meanwhile. */
static lt_err late_rank(int rank) {
    static const int ranks[] = {0, 1};
    lt_comm *c = NULL;
    lt_group *g = NULL;
    lt_err err = lt_comm_open_shm(&c, &(lt_comm_options){.deadline_s = 30.0});
    err = err == LT_OK ? lt_group_open(&g, c, "all", ranks, 2) : err;
    err = err == LT_OK ? lt_barrier(g) : err;
    atomic_store(&yields, 0);
    (void)usleep(rank == 1 ? 100 * YIELD_US : 0);
    err = err == LT_OK ? lt_barrier(g) : err;
    const int n = atomic_load(&yields);
    lt_comm_close(c);
    return err == LT_OK && n > 10 ? lt_error_set(LT_ERR_STATE, "%d yields", n) : err;
}

/* A worker that has waited for its core does not give it away again. */
static void long_yields_are_not_repeated(void **state) {
    (void)state;
    run_two(late_rank);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(bad_numbers_are_refused),
                                       cmocka_unit_test(bad_segments_are_refused),
                                       cmocka_unit_test(messages_longer_than_the_ring),
                                       cmocka_unit_test(long_yields_are_not_repeated)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
