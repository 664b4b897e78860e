/* The store: its keys, waiting requests, epochs, liveness, and clients that misbehave. */
#include <arpa/inet.h>
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
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
#include "base/rng.h"
#include "comm/store_frame.h"
#include "comm/store_table.h"

#define TOKEN "0123456789abcdef"
#define EPOCH ((uint64_t)7 << 32 | 2)

static lt_comm_store_server *server;

static int begin(void **state) {
    (void)state;
    return lt_comm_store_server_open(&server, "127.0.0.1", 0, 4, TOKEN, EPOCH) != LT_OK;
}

static int end(void **state) {
    (void)state;
    lt_comm_store_server_close(server);
    return 0;
}

static lt_comm_store *client(int rank) {
    lt_comm_store *s = NULL;
    if (lt_comm_store_open(&s, lt_comm_store_server_address(server), TOKEN, rank, EPOCH, 60.0) !=
        LT_OK) {
        fail_msg("%s", lt_error_message());
    }
    return s;
}

/* ---- Frames ---------------------------------------------------------------------------------- */

/* ADD of -2 to "key" in epoch 0x0102030405060708, waiting 500 ms, with the value "ab": encoded by
 * hand from the table in store.h. */
static const unsigned char request_bytes[] = {
    37, 0, 0, 0, LT_STORE_ADD, 0,   3,   0,   2,   0,   0,   0,   8,    7, 6, 5,
    4,  3, 2, 1, 0xfe,         255, 255, 255, 255, 255, 255, 255, 0xf4, 1, 0, 0,
    0,  0, 0, 0, 'k',          'e', 'y', 'a', 'b'};
/* FULL, version 9, number 258, value "xyz". */
static const unsigned char reply_bytes[] = {
    27, 0, 0, 0, LT_STORE_FULL, 0,   0,  0, 3, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0, 2, 1, 0, 0,
    0,  0, 0, 0, 'x',           'y', 'z'};

static void frames_are_as_documented(void **state) {
    unsigned char out[256];
    lt_comm_store_request q;
    lt_comm_store_reply r;
    (void)state;
    assert_true(lt_comm_store_request_read(&q, request_bytes, sizeof request_bytes));
    assert_int_equal(q.op, LT_STORE_ADD);
    assert_true(q.epoch == 0x0102030405060708 && q.number == -2 && q.wait_ms == 500);
    assert_string_equal(q.key, "key");
    assert_true(q.value_bytes == 2 && memcmp(q.value, "ab", 2) == 0);
    assert_int_equal(lt_comm_store_request_write(out, &q), sizeof request_bytes);
    assert_memory_equal(out, request_bytes, sizeof request_bytes);
    assert_true(lt_comm_store_reply_read(&r, reply_bytes, sizeof reply_bytes));
    assert_int_equal(r.status, LT_STORE_FULL);
    assert_true(r.version == 9 && r.number == 258 && r.value_bytes == 3);
    assert_memory_equal(r.value, "xyz", 3);
    assert_int_equal(lt_comm_store_reply_write(out, &r), sizeof reply_bytes);
    assert_memory_equal(out, reply_bytes, sizeof reply_bytes);
}

static void lengths_of_frames(void **state) {
    static const struct {
        unsigned char head[4];
        size_t bytes, most;
        int64_t want;
    } rows[] = {{{37, 0, 0, 0}, 4, 100, 41},    {{37, 0, 0, 0}, 3, 100, 0},
                {{0, 0, 0, 0}, 0, 100, 0},      {{24, 0, 0, 0}, 4, 100, 28},
                {{23, 0, 0, 0}, 4, 100, -1},    {{96, 0, 0, 0}, 4, 100, 100},
                {{97, 0, 0, 0}, 4, 100, -1},    {{255, 255, 255, 255}, 4, 1 << 20, -1},
                {{0, 1, 0, 0}, 4, 1 << 20, 260}};
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        assert_int_equal(lt_comm_store_frame_bytes(rows[i].head, rows[i].bytes, rows[i].most),
                         rows[i].want);
    }
}

/* One byte of a valid frame is changed. */
static void frames_that_break_the_protocol(void **state) {
    static const struct {
        int at;
        unsigned char value;
    } of_request[] =
        {{4, 0}, {4, LT_STORE_OPS}, {4, 255}, {5, 1},    {6, 4},  {6, 2}, {7, 1}, {8, 3}, {8, 1},
         {9, 1}, {11, 1},           {32, 1},  {35, 128}, {36, 0}, {38, 0}},
      of_reply[] = {
          {4, LT_STORE_STATUSES}, {4, 255}, {5, 1}, {6, 1}, {7, 1}, {8, 2}, {8, 4}, {11, 1}};
    unsigned char frame[sizeof request_bytes];
    lt_comm_store_request q;
    lt_comm_store_reply r;
    (void)state;
    for (size_t i = 0; i < sizeof of_request / sizeof *of_request; i++) {
        memcpy(frame, request_bytes, sizeof request_bytes);
        frame[of_request[i].at] = of_request[i].value;
        assert_false(lt_comm_store_request_read(&q, frame, sizeof request_bytes));
    }
    for (size_t i = 0; i < sizeof of_reply / sizeof *of_reply; i++) {
        memcpy(frame, reply_bytes, sizeof reply_bytes);
        frame[of_reply[i].at] = of_reply[i].value;
        assert_false(lt_comm_store_reply_read(&r, frame, sizeof reply_bytes));
    }
    for (size_t bytes = 0; bytes < sizeof request_bytes; bytes++) {
        assert_false(lt_comm_store_request_read(&q, request_bytes, bytes));
    }
    for (size_t bytes = 0; bytes < sizeof reply_bytes; bytes++) {
        assert_false(lt_comm_store_reply_read(&r, reply_bytes, bytes));
    }
}

/* Keys and values may fill the table, and a key that exists is replaced in its place. */
static void a_table_is_full(void **state) {
    static lt_comm_store_table t;
    static unsigned char value[LT_STORE_VALUE];
    char key[32];
    size_t used = 0;
    int n = 0;
    (void)state;
    while (used + 4 + sizeof value <= LT_STORE_BYTES) {
        (void)snprintf(key, sizeof key, "%04d", n++);
        assert_int_equal(lt_comm_store_table_set(&t, key, value, sizeof value), LT_STORE_OK);
        used += 4 + sizeof value;
    }
    const size_t left = LT_STORE_BYTES - used;
    assert_true(left > 4 && left < sizeof value);
    assert_int_equal(lt_comm_store_table_set(&t, "last", value, left - 3), LT_STORE_FULL);
    assert_int_equal(lt_comm_store_table_set(&t, "last", value, left - 4), LT_STORE_OK);
    assert_int_equal(lt_comm_store_table_set(&t, "more", value, 0), LT_STORE_FULL);
    assert_int_equal(lt_comm_store_table_set(&t, "last", value, left - 3), LT_STORE_FULL);
    assert_int_equal(lt_comm_store_table_set(&t, "last", value, left - 4), LT_STORE_OK);
    assert_int_equal(lt_comm_store_table_set(&t, "last", value, left - 8), LT_STORE_OK);
    assert_int_equal(lt_comm_store_table_set(&t, "more", value, 0), LT_STORE_OK);
    lt_comm_store_table_clear(&t);
}

/* A client closes everything that it opened. */
static int open_files(void) {
    int n = 0;
    for (int fd = 0; fd < 1024; fd++) {
        n += fcntl(fd, F_GETFD) >= 0;
    }
    return n;
}

static void not_told(void *ctx, const char *text) {
    (void)ctx, (void)text;
}

static void files_are_closed(void **state) {
    const int before = open_files();
    const double until_s = lt_clock_s() + 30.0;
    lt_comm_store *s = client(3);
    (void)state;
    assert_int_equal(lt_comm_store_live(s, 0.0, 0.0, not_told, NULL), LT_OK);
    assert_true(open_files() > before);
    lt_comm_store_close(s);
    while (open_files() > before && lt_clock_s() < until_s) {
        (void)usleep(2000); /* The server closes its side after it has seen the end. */
    }
    assert_int_equal(open_files(), before);
}

static void keys(void **state) {
    lt_comm_store *a = client(0), *b = client(1);
    char text[64];
    unsigned char *large = malloc(LT_STORE_VALUE), *back = malloc(LT_STORE_VALUE);
    size_t bytes = 1;
    int64_t sum;
    uint64_t version = 0, first;
    (void)state;
    assert_int_equal(lt_comm_store_set(a, "name", "value", 5), LT_OK);
    assert_int_equal(lt_comm_store_get(b, "name", text, sizeof text, &bytes, 0.0), LT_OK);
    assert_true(bytes == 5 && memcmp(text, "value", 5) == 0);
    assert_int_equal(lt_comm_store_watch(b, "name", &version, text, sizeof text, &bytes, 0.0),
                     LT_OK);
    first = version;
    assert_int_equal(lt_comm_store_watch(b, "name", &version, text, sizeof text, &bytes, 0.05),
                     LT_ERR_REMOTE);
    assert_non_null(strstr(lt_error_message(), "'name' was not set within 0.05 s"));
    assert_int_equal(lt_comm_store_set(a, "name", "", 0), LT_OK);
    assert_int_equal(lt_comm_store_watch(b, "name", &version, text, sizeof text, &bytes, 0.0),
                     LT_OK);
    assert_true(bytes == 0 && version > first);
    assert_int_equal(lt_comm_store_add(a, "sum", 5, &sum), LT_OK);
    assert_int_equal(lt_comm_store_add(b, "sum", -7, &sum), LT_OK);
    assert_int_equal(sum, -2);
    /* The value is not a number. */
    assert_int_equal(lt_comm_store_add(b, "name", 1, &sum), LT_ERR_ARG);
    assert_int_equal(lt_comm_store_set(b, "life/1", "alive", 5), LT_ERR_ARG);
    for (size_t i = 0; i < LT_STORE_VALUE; i++) {
        large[i] = (unsigned char)lt_rng_mix(i);
    }
    assert_int_equal(lt_comm_store_set(a, "large", large, LT_STORE_VALUE), LT_OK);
    assert_int_equal(lt_comm_store_get(b, "large", back, LT_STORE_VALUE, &bytes, 0.0), LT_OK);
    assert_true(bytes == LT_STORE_VALUE && memcmp(large, back, bytes) == 0);
    assert_int_equal(lt_comm_store_get(b, "large", back, 10, &bytes, 0.0), LT_ERR_LIMIT);
    assert_int_equal(lt_comm_store_set(a, "large", large, LT_STORE_VALUE + 1), LT_ERR_LIMIT);
    assert_int_equal(lt_comm_store_set(a, "", large, 1), LT_ERR_ARG);
    lt_comm_store_close(a);
    lt_comm_store_close(b);
    free(large);
    free(back);
}

/* ---- Waiting ------------------------------------------------------------------------------- */

typedef struct {
    int rank;
    double wait_s, took_s;
    lt_err err;
    char message[512];
} waiter;

static void *wait_for_key(void *arg) {
    waiter *w = arg;
    lt_comm_store *s = client(w->rank);
    const double start_s = lt_clock_s();
    char text[8];
    size_t bytes;
    w->err = lt_comm_store_get(s, "late", text, sizeof text, &bytes, w->wait_s);
    w->took_s = lt_clock_s() - start_s;
    (void)snprintf(w->message, sizeof w->message, "%s", lt_error_message());
    lt_comm_store_close(s);
    return NULL;
}

static void *wait_at_barrier(void *arg) {
    waiter *w = arg;
    lt_comm_store *s = client(w->rank);
    w->err = LT_OK;
    for (int i = 0; i < 20 && w->err == LT_OK; i++) {
        w->err = lt_comm_store_barrier(s, "gate", 4, w->wait_s);
    }
    (void)snprintf(w->message, sizeof w->message, "%s", lt_error_message());
    lt_comm_store_close(s);
    return NULL;
}

static void run_all(waiter *w, int n, void *(*fn)(void *)) {
    pthread_t threads[4];
    for (int i = 0; i < n; i++) {
        assert_int_equal(pthread_create(&threads[i], NULL, fn, &w[i]), 0);
    }
    for (int i = 0; i < n; i++) {
        (void)pthread_join(threads[i], NULL);
    }
}

/* Three clients wait for a key, which is set after a fourth, with a shorter deadline, has given
 * up. */
static void clients_wait_for_a_key(void **state) {
    waiter w[3] = {{.wait_s = 60.0}, {.wait_s = 60.0}, {.wait_s = 60.0}},
           gives_up = {.wait_s = 0.1};
    lt_comm_store *s = client(-1);
    pthread_t threads[3];
    (void)state;
    for (int i = 0; i < 3; i++) {
        assert_int_equal(pthread_create(&threads[i], NULL, wait_for_key, &w[i]), 0);
    }
    (void)wait_for_key(&gives_up);
    assert_int_equal(gives_up.err, LT_ERR_REMOTE);
    assert_int_equal(lt_comm_store_set(s, "late", "x", 1), LT_OK);
    lt_comm_store_close(s);
    for (int i = 0; i < 3; i++) {
        (void)pthread_join(threads[i], NULL);
        assert_int_equal(w[i].err, LT_OK);
        assert_true(w[i].took_s < 30.0);
    }
}

static void barriers(void **state) {
    waiter w[4];
    (void)state;
    for (int i = 0; i < 4; i++) {
        w[i] = (waiter){.rank = i, .wait_s = 60.0};
    }
    run_all(w, 4, wait_at_barrier);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(w[i].err, LT_OK);
    }
    w[0] = (waiter){.rank = 0, .wait_s = 0.3};
    w[1] = (waiter){.rank = 2, .wait_s = 0.3};
    run_all(w, 2, wait_at_barrier);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(w[i].err, LT_ERR_REMOTE);
        assert_non_null(strstr(w[i].message, "barrier 'gate' of 4 ranks: rank "));
        assert_non_null(strstr(w[i].message, "rank 1"));
        assert_non_null(strstr(w[i].message, "rank 3 did not come, after 0.3 s"));
    }
}

/* ---- Epochs ---------------------------------------------------------------------------------- */

static void epochs(void **state) {
    lt_comm_store *old = client(0), *next = NULL;
    waiter w = {.rank = 1, .wait_s = 60.0};
    pthread_t thread;
    char text[8];
    size_t bytes;
    (void)state;
    assert_int_equal(lt_comm_store_set(old, "key", "old", 3), LT_OK);
    assert_int_equal(
        lt_comm_store_open(&next, lt_comm_store_server_address(server), TOKEN, 0, EPOCH + 1, 1.0),
        LT_ERR_STATE);
    assert_non_null(strstr(lt_error_message(), "generation 3 of attempt 7 is not there yet"));
    assert_int_equal(pthread_create(&thread, NULL, wait_for_key, &w), 0);
    (void)usleep(100000);
    lt_comm_store_server_begin(server, EPOCH + 1);
    (void)pthread_join(thread, NULL);
    assert_int_equal(w.err, LT_ERR_STATE);
    assert_non_null(strstr(w.message, "generation 2 of attempt 7 is over"));
    assert_int_not_equal(lt_comm_store_set(old, "key", "late", 4), LT_OK);
    assert_int_equal(
        lt_comm_store_open(&next, lt_comm_store_server_address(server), TOKEN, 0, EPOCH, 1.0),
        LT_ERR_STATE);
    assert_int_equal(
        lt_comm_store_open(&next, lt_comm_store_server_address(server), TOKEN, 0, EPOCH + 1, 1.0),
        LT_OK);
    assert_int_equal(lt_comm_store_get(next, "key", text, sizeof text, &bytes, 0.0), LT_ERR_REMOTE);
    lt_comm_store_close(old);
    lt_comm_store_close(next);
}

/* ---- Liveness ------------------------------------------------------------------------------ */

static void write_notice(void *ctx, const char *text) {
    (void)!write(*(int *)ctx, text, strlen(text) + 1);
}

/* A process that acts as rank r, and, when it reads a byte, says goodbye and ends. */
static pid_t live_process(int rank, int *input, int *output) {
    int in[2], out[2];
    pid_t pid;
    assert_int_equal(pipe(in), 0);
    assert_int_equal(pipe(out), 0);
    pid = fork();
    if (pid == 0) {
        lt_comm_store *s = NULL;
        char c;
        (void)close(in[1]);
        if (lt_comm_store_open(&s, lt_comm_store_server_address(server), TOKEN, rank, EPOCH,
                               60.0) != LT_OK ||
            lt_comm_store_live(s, 0.05, 2.0, write_notice, &out[1]) != LT_OK) {
            _exit(1);
        }
        (void)!read(in[0], &c, 1);
        lt_comm_store_close(s);
        _exit(0);
    }
    (void)close(in[0]);
    (void)close(out[1]);
    *input = in[1];
    *output = out[0];
    return pid;
}

static void reaches(int rank, lt_life life, double within_s) {
    const double until_s = lt_clock_s() + within_s;
    while (lt_comm_store_server_life(server, rank) != life) {
        if (lt_clock_s() > until_s) {
            fail_msg("rank %d: life %d, not %d after %g s", rank,
                     (int)lt_comm_store_server_life(server, rank), (int)life, within_s);
        }
        (void)usleep(2000);
    }
}

static void missing_signs_of_life_are_noticed(void **state) {
    int in[3], out[3];
    pid_t pids[3];
    uint64_t version = 0;
    char text[LT_STORE_NOTICE];
    size_t bytes;
    lt_comm_store *s, *s2 = client(3);
    (void)state;
    for (int r = 0; r < 3; r++) {
        pids[r] = live_process(r, &in[r], &out[r]);
    }
    for (int r = 0; r < 3; r++) {
        reaches(r, LT_LIFE_ALIVE, 60.0);
    }
    assert_int_equal(lt_comm_store_server_life(server, 3), LT_LIFE_NONE);
    (void)kill(pids[1], SIGSTOP);
    reaches(1, LT_LIFE_SILENT, 60.0);
    (void)kill(pids[1], SIGCONT);
    reaches(1, LT_LIFE_ALIVE, 60.0);
    assert_int_equal(lt_comm_store_server_life(server, 0), LT_LIFE_ALIVE);
    (void)kill(pids[2], SIGKILL);
    reaches(2, LT_LIFE_DEAD, 60.0);
    s = client(-1);
    assert_int_equal(lt_comm_store_watch(s, "life/2", &version, text, sizeof text, &bytes, 0.0),
                     LT_OK);
    assert_true(bytes == 4 && memcmp(text, "dead", 4) == 0);
    lt_comm_store_server_notice(server, "rank 2 was killed");
    for (int r = 0; r < 2; r++) {
        assert_true(read(out[r], text, sizeof text) == 18);
        assert_string_equal(text, "rank 2 was killed");
        assert_int_equal(lt_comm_store_barrier(s2, "gate", 4, 5.0), LT_ERR_REMOTE);
        assert_string_equal(lt_error_message(), "rank 2 was killed");
        assert_int_equal(write(in[r], "x", 1), 1);
        reaches(r, LT_LIFE_LEFT, 60.0);
    }
    for (int r = 0; r < 3; r++) {
        int status;
        assert_int_equal(waitpid(pids[r], &status, 0), pids[r]);
        assert_true(r == 2 ? WIFSIGNALED(status) : status == 0);
        (void)close(out[r]);
        (void)close(in[r]);
    }
    lt_comm_store_close(s);
    lt_comm_store_close(s2);
}

/* A client whose server ends gets an error. */
static void a_server_that_ends_is_noticed(void **state) {
    int in, out;
    char text[LT_STORE_NOTICE];
    const pid_t pid = live_process(0, &in, &out);
    (void)state;
    reaches(0, LT_LIFE_ALIVE, 60.0);
    lt_comm_store_server_close(server);
    server = NULL;
    assert_true(read(out, text, sizeof text) > 0);
    assert_non_null(strstr(text, "has gone"));
    (void)close(in);
    (void)close(out);
    assert_int_equal(waitpid(pid, NULL, 0), pid);
}

/* ---- Bad clients ----------------------------------------------------------------------------- */

static int raw(void) {
    const char *port = strrchr(lt_comm_store_server_address(server), ':') + 1;
    const struct sockaddr_in a = {.sin_family = AF_INET,
                                  .sin_port = htons((uint16_t)atoi(port)),
                                  .sin_addr = {htonl(INADDR_LOOPBACK)}};
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(connect(fd, (const struct sockaddr *)&a, sizeof a), 0);
    return fd;
}

static size_t hello(unsigned char *frame, const char *token) {
    lt_comm_store_request q = {.op = LT_STORE_HELLO,
                               .epoch = EPOCH,
                               .number = 1,
                               .value = (const unsigned char *)LT_STORE_GREETING,
                               .value_bytes = (uint32_t)strlen(LT_STORE_GREETING)};
    (void)snprintf(q.key, sizeof q.key, "%s", token);
    return lt_comm_store_request_write(frame, &q);
}

static void bad_clients_do_no_harm(void **state) {
    static unsigned char frame[LT_STORE_REQUEST_MOST];
    lt_comm_store *good = client(0), *s = NULL;
    int fds[300];
    lt_rng rng = {.seed = 3};
    int64_t sum;
    (void)state;
    assert_int_equal(
        lt_comm_store_open(&s, lt_comm_store_server_address(server), "wrong", 0, EPOCH, 1.0),
        LT_ERR_ARG);
    assert_int_equal(
        lt_comm_store_open(&s, lt_comm_store_server_address(server), TOKEN, 4, EPOCH, 1.0),
        LT_ERR_ARG);
    /* Random bytes: at once, or after a valid HELLO; complete frames with bad numbers; many
     * frames, without reading the replies. */
    for (int i = 0; i < 300; i++) {
        const size_t n = lt_rng_below(&rng, 400);
        fds[i] = raw();
        if (i % 3 > 0) {
            (void)!send(fds[i], frame, hello(frame, i % 3 == 1 ? TOKEN : "no"), MSG_NOSIGNAL);
        }
        for (size_t k = 0; k < n; k++) {
            frame[k] = (unsigned char)lt_rng_u64(&rng);
        }
        if (i % 2 == 0 && n > 4) {
            const uint32_t bytes = (uint32_t)lt_rng_below(&rng, 70000);
            memcpy(frame, &bytes, 4);
        }
        (void)!send(fds[i], frame, n, MSG_NOSIGNAL);
        assert_int_equal(lt_comm_store_add(good, "count", 1, &sum), LT_OK);
        assert_int_equal(sum, i + 1);
        if (i >= 40) {
            (void)close(fds[i - 40]);
        }
    }
    for (int i = 260; i < 300; i++) {
        (void)close(fds[i]);
    }
    /* Many strangers do not keep a rank out. */
    for (int i = 0; i < 200; i++) {
        fds[i] = raw();
    }
    s = client(1);
    assert_int_equal(lt_comm_store_add(s, "count", 1, &sum), LT_OK);
    assert_int_equal(sum, 301);
    for (int i = 0; i < 200; i++) {
        (void)close(fds[i]);
    }
    lt_comm_store_close(s);
    lt_comm_store_close(good);
}

/* Several requests in one write are answered in turn; an unread reply does not stop the
 * server. */
static void many_at_once(void **state) {
    static unsigned char data[64 * 128];
    unsigned char back[64 * LT_STORE_REPLY_HEAD];
    size_t n = hello(data, TOKEN), got = 0;
    const int fd = raw();
    (void)state;
    for (int i = 0; i < 60; i++) {
        const lt_comm_store_request q = {
            .op = LT_STORE_ADD, .epoch = EPOCH, .number = 1, .key = "many"};
        n += lt_comm_store_request_write(data + n, &q);
    }
    assert_true(send(fd, data, n, 0) == (ssize_t)n);
    while (got < 61 * LT_STORE_REPLY_HEAD) {
        const ssize_t k = recv(fd, back + got, sizeof back - got, 0);
        assert_true(k > 0);
        got += (size_t)k;
    }
    lt_comm_store_reply r;
    assert_true(lt_comm_store_reply_read(&r, back + 60 * LT_STORE_REPLY_HEAD, LT_STORE_REPLY_HEAD));
    assert_int_equal(r.number, 60);
    (void)close(fd);
}

static void the_table_is_bounded(void **state) {
    static lt_comm_store_table t;
    static unsigned char value[LT_STORE_VALUE];
    char key[32];
    int n = 0;
    int64_t sum;
    (void)state;
    for (;; n++) {
        (void)snprintf(key, sizeof key, "k%d", n);
        if (lt_comm_store_table_set(&t, key, value, sizeof value) == LT_STORE_FULL) {
            break;
        }
    }
    assert_int_equal(n, LT_STORE_BYTES / (LT_STORE_VALUE + 4));
    assert_int_equal(lt_comm_store_table_set(&t, "k7", value, 10), LT_STORE_OK);
    assert_int_equal(lt_comm_store_table_set(&t, key, value, sizeof value - 10), LT_STORE_OK);
    lt_comm_store_table_clear(&t);
    for (n = 0; n < LT_STORE_KEYS; n++) {
        (void)snprintf(key, sizeof key, "k%d", n);
        assert_int_equal(lt_comm_store_table_add(&t, key, n, &sum), LT_STORE_OK);
    }
    assert_int_equal(lt_comm_store_table_add(&t, "one more", 1, &sum), LT_STORE_FULL);
    assert_int_equal(lt_comm_store_table_add(&t, "k9", 1, &sum), LT_STORE_OK);
    assert_int_equal(sum, 10);
    lt_comm_store_table_clear(&t);
    assert_true(t.n_keys == 0 && t.bytes == 0 && lt_comm_store_table_find(&t, "k9") == NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(keys, begin, end),
        cmocka_unit_test_setup_teardown(clients_wait_for_a_key, begin, end),
        cmocka_unit_test_setup_teardown(barriers, begin, end),
        cmocka_unit_test_setup_teardown(epochs, begin, end),
        cmocka_unit_test_setup_teardown(missing_signs_of_life_are_noticed, begin, end),
        cmocka_unit_test_setup_teardown(a_server_that_ends_is_noticed, begin, end),
        cmocka_unit_test_setup_teardown(bad_clients_do_no_harm, begin, end),
        cmocka_unit_test_setup_teardown(many_at_once, begin, end),
        cmocka_unit_test(the_table_is_bounded),
        cmocka_unit_test(a_table_is_full),
        cmocka_unit_test(frames_are_as_documented),
        cmocka_unit_test(lengths_of_frames),
        cmocka_unit_test(frames_that_break_the_protocol),
        cmocka_unit_test_setup_teardown(files_are_closed, begin, end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
