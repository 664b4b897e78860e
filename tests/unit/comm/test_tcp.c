/* Ranks that exchange messages by TCP: which connections are accepted while a world opens, what a
 * rank does with a frame that no rank sends and with a rank that fails, and that a message
 * without a receive delays no other. test_verbs.c tests the verbs themselves. The test is rank 0;
 * its child is rank 1. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/error.h"
#include "comm/shm.h"
#include "lateen/comm.h"

#define TOKEN "the token of this run"
#define EPOCH 3

/* The first bytes of a connection, as in tcp.c. */
typedef struct {
    uint64_t magic, epoch;
    int32_t rank, n;
    char token[72];
} greeting;
#define MAGIC 0x6c617465656e7431u

static lt_comm_store_server *store;

static void put(const char *name, const char *value) {
    assert_int_equal(setenv(name, value, 1), 0);
}

/* Set the environment that the launcher gives a rank. */
static void become(const char *rank) {
    put(LT_ENV_RANKS, "2");
    put(LT_ENV_RANK, rank);
    put(LT_ENV_SEGMENT, LT_SEGMENT_TCP);
    put(LT_ENV_EPOCH, "3");
    put(LT_ENV_STORE, lt_comm_store_server_address(store));
    put(LT_ENV_TOKEN, TOKEN);
}

static int begin(void **state) {
    (void)state;
    return lt_comm_store_server_open(&store, "127.0.0.1", 0, 2, TOKEN, EPOCH) != LT_OK;
}

static int end(void **state) {
    (void)state;
    lt_comm_store_server_close(store);
    return 0;
}

/* Connect to the port on which a rank listens, and send this. -1: there is no listener. */
static int knock(int rank, const void *data, size_t bytes) {
    struct sockaddr_in a = {.sin_family = AF_INET};
    lt_comm_store *s = NULL;
    char key[16], address[64] = "";
    size_t n = 0;
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    (void)snprintf(key, sizeof key, "tcp/%d", rank);
    if (lt_comm_store_open(&s, lt_comm_store_server_address(store), TOKEN, -1, EPOCH, 10.0) !=
            LT_OK ||
        lt_comm_store_get(s, key, address, sizeof address - 1, &n, 10.0) != LT_OK) {
        return -1;
    }
    lt_comm_store_close(s);
    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    a.sin_port = htons((uint16_t)atoi(strrchr(address, ':') + 1));
    if (connect(fd, (const struct sockaddr *)&a, sizeof a) != 0 ||
        send(fd, data, bytes, MSG_NOSIGNAL) != (ssize_t)bytes) {
        return -1;
    }
    return fd;
}

/* Start rank 1 in a process of its own; its exit status is 0 if fn returns LT_OK. */
static pid_t other_rank(lt_err (*fn)(lt_comm *c, lt_group *g)) {
    static const int ranks[] = {0, 1};
    const pid_t pid = fork();
    lt_comm *c = NULL;
    lt_group *g = NULL;
    lt_err err;
    assert_true(pid >= 0);
    if (pid > 0) {
        return pid;
    }
    become("1");
    err = lt_comm_open(&c, &(lt_comm_options){.deadline_s = 20.0});
    err = err == LT_OK ? lt_group_open(&g, c, "all", ranks, 2) : err;
    err = err == LT_OK ? fn(c, g) : err;
    if (err != LT_OK) {
        (void)fprintf(stderr, "# rank 1: %s\n", lt_error_message());
    }
    lt_comm_close(c);
    _exit(err != LT_OK);
}

static void ended_well(pid_t pid) {
    int status = -1;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
}

static lt_group *open_rank_0(lt_comm **c) {
    static const int ranks[] = {0, 1};
    lt_group *g = NULL;
    become("0");
    assert_int_equal(lt_comm_open(c, &(lt_comm_options){.deadline_s = 20.0}), LT_OK);
    assert_string_equal(lt_comm_transport(*c), "tcp");
    assert_int_equal(lt_group_open(&g, *c, "all", ranks, 2), LT_OK);
    return g;
}

/* ---- Strangers ------------------------------------------------------------------------------- */

static lt_err sum_rank(lt_comm *c, lt_group *g) {
    float x = 1.0f + (float)lt_comm_rank(c);
    LT_TRY(lt_all_reduce(g, &x, &x, 1, LT_F32, LT_REDUCE_SUM, NULL));
    return x == 3.0f ? LT_OK : lt_error_set(LT_ERR_STATE, "the sum is %g", (double)x);
}

/* Each of them is closed, and does not take the place of rank 1, which comes last. */
static void strangers_are_closed(void **state) {
    const greeting good = {.magic = MAGIC, .epoch = EPOCH, .rank = 1, .n = 2, .token = TOKEN};
    greeting bad[8];
    pid_t knocker;
    lt_comm *c = NULL;
    lt_group *g;
    (void)state;
    for (size_t i = 0; i < 8; i++) {
        bad[i] = good;
    }
    bad[0].magic++;
    bad[1].epoch++;
    bad[2].rank = 0;
    bad[3].rank = 2;
    bad[4].n = 3;
    (void)snprintf(bad[5].token, sizeof bad[5].token, "%s", "another token");
    memset(bad[6].token, 't', sizeof bad[6].token); /* Without a final zero. */
    bad[7].rank = 1 << 30;                          /* There is no such rank. */
    knocker = fork();
    assert_true(knocker >= 0);
    if (knocker == 0) { /* While rank 0 waits for rank 1. */
        int wrong = 0;
        for (size_t i = 0; i < 8; i++) {
            char byte;
            const int fd = knock(0, &bad[i], sizeof bad[i]);
            wrong += fd < 0 || recv(fd, &byte, 1, 0) > 0; /* Wait until it is closed. */
        }
        wrong += knock(0, "GET", 3) < 0; /* It sends nothing further. */
        ended_well(other_rank(sum_rank));
        _exit(wrong);
    }
    g = open_rank_0(&c);
    assert_int_equal(sum_rank(c, g), LT_OK);
    lt_comm_close(c);
    ended_well(knocker);
}

/* A new connection arrives while as many silent ones wait as there are places: the oldest is
 * closed. */
static void the_oldest_silent_connection_is_closed(void **state) {
    pid_t knocker = fork();
    lt_comm *c = NULL;
    lt_group *g;
    (void)state;
    assert_true(knocker >= 0);
    if (knocker == 0) {
        int wrong = 0;
        for (int i = 0; i < 70; i++) {
            wrong += knock(0, "x", 1) < 0;
        }
        ended_well(other_rank(sum_rank));
        _exit(wrong);
    }
    g = open_rank_0(&c);
    assert_int_equal(sum_rank(c, g), LT_OK);
    lt_comm_close(c);
    ended_well(knocker);
}

/* ---- Messages -------------------------------------------------------------------------------- */

enum { LARGE = 3000000 };

static float *numbers(float first) {
    float *x = malloc(LARGE * sizeof *x);
    assert_non_null(x);
    for (int i = 0; i < LARGE; i++) {
        x[i] = first + (float)(i % 1000);
    }
    return x;
}

static lt_err late_receiver(lt_comm *c, lt_group *g) {
    float *got = numbers(0.0f), *want = numbers(7.0f);
    lt_err err = sum_rank(c, g); /* It was called after the send, and completes first. */
    if (err == LT_OK) {
        err = lt_recv(g, 0, got, LARGE, LT_F32, NULL);
    }
    if (err == LT_OK && memcmp(got, want, LARGE * sizeof *got) != 0) {
        err = lt_error_set(LT_ERR_STATE, "other numbers");
    }
    free(got);
    free(want);
    return err;
}

/* 12 MB are more than the connection buffers. */
static void a_message_without_a_receive_delays_no_other(void **state) {
    const pid_t pid = other_rank(late_receiver);
    lt_comm *c = NULL;
    lt_group *g = open_rank_0(&c);
    float *x = numbers(7.0f);
    lt_comm_work work;
    (void)state;
    assert_int_equal(lt_send(g, 1, x, LARGE, LT_F32, &work), LT_OK);
    assert_int_equal(sum_rank(c, g), LT_OK);
    assert_int_equal(lt_comm_wait(c, work), LT_OK);
    lt_comm_close(c);
    free(x);
    ended_well(pid);
}

/* ---- Failures -------------------------------------------------------------------------------- */

static void fails(const char *says, double within_s, lt_err (*other)(lt_comm *c, lt_group *g)) {
    const pid_t pid = other_rank(other);
    lt_comm *c = NULL;
    lt_group *g = open_rank_0(&c);
    float x[2] = {0.0f};
    const double start_s = lt_clock_s();
    assert_int_equal(lt_recv(g, 1, x, 2, LT_F32, NULL), LT_ERR_REMOTE);
    if (strstr(lt_error_message(), says) == NULL) {
        fail_msg("'%s' does not say '%s'", lt_error_message(), says);
    }
    assert_true(lt_clock_s() - start_s < within_s);
    lt_comm_close(c);
    (void)waitpid(pid, NULL, 0);
}

static lt_err aborts(lt_comm *c, lt_group *g) {
    (void)g;
    lt_comm_abort(c, "rank 1 has had enough");
    return LT_OK;
}

static lt_err dies(lt_comm *c, lt_group *g) {
    (void)c;
    (void)g;
    _exit(0);
}

static lt_err sends_more(lt_comm *c, lt_group *g) {
    const float x[3] = {1.0f};
    (void)c;
    return lt_send(g, 0, x, 3, LT_F32, NULL);
}

static void a_failure_is_reported(void **state) {
    (void)state;
    fails("rank 1 has had enough", 10.0, aborts);
}

static void an_end_is_noticed(void **state) {
    (void)state;
    fails("rank 1 has closed its connection (127.0.0.1:", 10.0, dies);
}

static void another_size_is_named(void **state) {
    (void)state;
    fails("rank 1 sends 12 bytes, rank 0 awaits 8", 10.0, sends_more);
}

/* The test itself is rank 1, and sends a frame, or closes its side of the connection. */
static void forged(const void *frame, size_t bytes, const char *says) {
    const greeting good = {.magic = MAGIC, .epoch = EPOCH, .rank = 1, .n = 2, .token = TOKEN};
    const pid_t pid = fork();
    int status = -1, fd, later;
    lt_comm_store *s = NULL;
    assert_true(pid >= 0);
    if (pid == 0) {
        lt_comm *c = NULL;
        lt_group *g = open_rank_0(&c);
        float x[2];
        const bool right = lt_recv(g, 1, x, 2, LT_F32, NULL) == LT_ERR_REMOTE &&
                           strstr(lt_error_message(), says) != NULL;
        (void)fprintf(stderr, "%s", right ? "" : lt_error_message());
        _exit(right ? 0 : 1);
    }
    fd = knock(0, "", 0);
    later = knock(0, "", 0); /* It does not take the place of the one that identifies itself. */
    (void)usleep(10000);
    assert_true(fd >= 0 && later >= 0);
    assert_int_equal(send(fd, &good, sizeof good, MSG_NOSIGNAL), sizeof good);
    assert_int_equal(
        lt_comm_store_open(&s, lt_comm_store_server_address(store), TOKEN, 1, EPOCH, 10.0), LT_OK);
    assert_int_equal(lt_comm_store_barrier(s, "open", 2, 10.0), LT_OK);
    if (frame != NULL) {
        assert_int_equal(send(fd, frame, bytes, MSG_NOSIGNAL), (ssize_t)bytes);
    } else {
        (void)usleep(50000); /* Before this, rank 0 has found nothing to read. */
        assert_int_equal(shutdown(fd, SHUT_WR), 0);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
    (void)close(fd);
    (void)close(later);
    lt_comm_store_close(s);
}

static void forged_frames(void **state) {
    const struct {
        int32_t kind, id, tag, unused;
        uint64_t bytes;
    } frames[] = {{0, 0, 0, 0, 0}, /* An unknown kind. */
                  /* DATA for a request that does not exist: before the first, */
                  {2, -1, 0, 0, 8},
                  {2, 1 << 20, 0, 0, 8},  /* after the last, */
                  {2, 5, 0, 0, 8},        /* one that is not in use, */
                  {2, 0, 0, 0, 1 << 30},  /* and of another size than requested. */
                  {3, 9, 0, 0, 8},        /* UNEQUAL for a request that does not exist. */
                  {4, 0, 0, 0, 1 << 20}}; /* FAILED with a reason that is too long. */
    (void)state;
    for (size_t i = 0; i < sizeof frames / sizeof *frames; i++) {
        begin(NULL);
        forged(&frames[i], sizeof frames[i], "sends a frame that no rank sends");
        lt_comm_store_server_close(store);
    }
    store = NULL;
}

/* The stream ends without an error: everything that was sent has been read. */
static void a_stream_that_ends(void **state) {
    (void)state;
    forged(NULL, 0, "rank 1 has closed its connection (127.0.0.1:");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(strangers_are_closed, begin, end),
        cmocka_unit_test_setup_teardown(the_oldest_silent_connection_is_closed, begin, end),
        cmocka_unit_test_setup_teardown(a_message_without_a_receive_delays_no_other, begin, end),
        cmocka_unit_test_setup_teardown(a_failure_is_reported, begin, end),
        cmocka_unit_test_setup_teardown(an_end_is_noticed, begin, end),
        cmocka_unit_test_setup_teardown(another_size_is_named, begin, end),
        cmocka_unit_test(forged_frames),
        cmocka_unit_test_setup_teardown(a_stream_that_ends, begin, end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
