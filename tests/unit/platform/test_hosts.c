/* Ranks on other machines: the list of machines and the login command, as a user writes them; the
 * place of each rank; what the launcher learns through the store; lines that arrive in pieces. */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/error.h"
#include "platform/agent/hosts.h"
#include "platform/agent/orders.h"
#include "platform/agent/remote.h"

static lt_hosts h;

static void open_hosts(const char *text, int spares, const char *login, const char *address) {
    if (lt_hosts_open(&h, text, spares, login, address) != LT_OK) {
        fail_msg("'%s': %s", text, lt_error_message());
    }
}

static void places_are(const int *want, int n) {
    assert_int_equal(h.n_ranks, n);
    for (int r = 0; r < n; r++) {
        assert_ptr_equal(lt_hosts_of_rank(&h, r), &h.all[want[r]]);
    }
}

static void counts_are(int rank, int n_ranks, int local, int locals) {
    int a = -1, b = -1;
    lt_hosts_count(&h, rank, n_ranks, &a, &b);
    assert_int_equal(a, local);
    assert_int_equal(b, locals);
}

static void lists_of_machines(void **state) {
    char own[300] = "", text[320];
    (void)state;
    open_hosts("", 0, "", "");
    assert_true(h.n == 0 && lt_hosts_of_rank(&h, 0) == NULL && !lt_hosts_far(&h, 0));
    counts_are(0, 4, 0, 0);
    lt_hosts_close(&h);

    open_hosts("a:2,b,user@c.d:3", 0, "", "10.0.0.9");
    assert_int_equal(h.n, 3);
    places_are((const int[]){0, 0, 1, 2, 2, 2}, 6);
    assert_string_equal(h.all[0].name, "a");
    assert_string_equal(h.all[2].name, "user@c.d");
    assert_true(h.all[0].ranks == 2 && h.all[1].ranks == 1 && h.all[2].ranks == 3);
    assert_true(lt_hosts_far(&h, 0) && lt_hosts_far(&h, 5));
    assert_string_equal(h.address, "10.0.0.9");
    counts_are(0, 6, 0, 2);
    counts_are(1, 6, 1, 2);
    counts_are(2, 6, 0, 1);
    counts_are(5, 6, 2, 3);
    counts_are(3, 4, 0, 1); /* Only four are in use. */
    lt_hosts_close(&h);
    lt_hosts_close(&h); /* Closing it twice is allowed. */

    /* The last ones are spare, until a rank is placed there. */
    open_hosts("a:2,b:2,c:2,d:2", 2, "", "10.0.0.9");
    assert_int_equal(h.n, 4);
    places_are((const int[]){0, 0, 1, 1}, 4);
    lt_hosts_place(&h, 2, 3);
    lt_hosts_place(&h, 3, 3);
    places_are((const int[]){0, 0, 3, 3}, 4);
    counts_are(3, 4, 1, 2);
    lt_hosts_close(&h);

    /* This machine has two names; the address of the other one is the way to it. */
    open_hosts("localhost:2,127.0.0.2:1", 0, "", "");
    assert_true(!lt_hosts_far(&h, 0) && !lt_hosts_far(&h, 1) && lt_hosts_far(&h, 2));
    assert_string_equal(h.address, "127.0.0.1");
    lt_hosts_close(&h);
    assert_int_equal(gethostname(own, sizeof own - 1), 0);
    (void)snprintf(text, sizeof text, "%s:3", own);
    open_hosts(text, 0, "", "");
    assert_false(lt_hosts_far(&h, 2));
    assert_string_equal(h.address, "127.0.0.1"); /* There is no other. */
    lt_hosts_close(&h);
    open_hosts("me@127.0.0.3", 0, "", "");
    assert_string_equal(h.address, "127.0.0.1");
    lt_hosts_close(&h);
    open_hosts("a:256", 0, "", "1.2.3.4");
    assert_int_equal(h.n_ranks, 256);
    lt_hosts_close(&h);
    open_hosts("a:09", 0, "", "1.2.3.4");
    assert_int_equal(h.n_ranks, 9);
    lt_hosts_close(&h);
    open_hosts("a:200,b:56", 0, "", "1.2.3.4");
    assert_int_equal(h.n_ranks, 256);
    lt_hosts_close(&h);
}

static void refused(const char *text, int spares, const char *login, const char *says) {
    const lt_err err = lt_hosts_open(&h, text, spares, login, "10.0.0.9");
    if (err != LT_ERR_ARG || strstr(lt_error_message(), says) == NULL) {
        fail_msg("'%s' '%s': %s", text, login, err == LT_OK ? "taken" : lt_error_message());
    }
    lt_hosts_close(&h);
}

static void bad_lists_are_refused(void **state) {
    static const char *const names[] = {"-x",   "a b", "a'b",  "a\"b", "a$b", "a;b", "a&b", "a|b",
                                        "a<b",  "a>b", "a(b",  "a*b",  "a?b", "a!b", "a#b", "a~b",
                                        "a\tb", "a`b", "a\\b", "[a]",  ":2",  "::1"};
    char long_name[300], many[257 * 5 + 1] = "";
    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        refused(names[i], 0, "", "is not the name or the IPv4 address of a machine");
    }
    refused("a:0", 0, "", "'a:0': a machine has 1 to 256 ranks");
    refused("a:257", 0, "", "a machine has 1 to 256 ranks");
    refused("a:1x", 0, "", "a machine has 1 to 256 ranks");
    refused("a:+1", 0, "", "a machine has 1 to 256 ranks");
    refused("a:", 0, "", "a machine has 1 to 256 ranks");
    refused(",a", 0, "", "is not HOST or HOST:RANKS");
    refused("a,,b", 0, "", "a comma without a machine");
    refused("a,", 0, "", "a comma without a machine");
    refused("a:2,b,a:1", 0, "", "a and a are the same machine; a:3 has the ranks of both");
    refused("a:200,b:57", 0, "", "257 ranks; at most 256 are possible");
    refused("a,b", 2, "", "--spares 2 of the 2 machines of --hosts: none is left");
    refused("a", 0, "   ", "--login has no command");
    refused("a", 0, "ssh 'x", "--login ssh 'x: a quote without its end");
    refused("a", 0, "\"", "a quote without its end");
    memset(long_name, 'x', sizeof long_name - 1);
    long_name[sizeof long_name - 1] = '\0';
    refused(long_name, 0, "", "is not HOST or HOST:RANKS");
    for (int i = 0; i < 257; i++) {
        (void)snprintf(many + strlen(many), 6, "%s%03d", i > 0 ? "," : "", i % 1000);
    }
    refused(many, 0, "", "or one of more than 256");
    many[strlen(many) - 4] = '\0'; /* One less. */
    open_hosts(many, 0, "", "10.0.0.9");
    assert_int_equal(h.n_ranks, 256);
    lt_hosts_close(&h);
}

/* ---- Starting -------------------------------------------------------------------------------- */

/* The login command, and this program as the agent of this machine: they write their arguments
 * and the first line of standard input to files. */
static char left[] = "/tmp/lt_hosts_XXXXXX";

static int as_agent(int argc, char **argv) {
    char path[128], line[1 << 16];
    FILE *f;
    (void)snprintf(path, sizeof path, "%s/words", getenv("LT_HOSTS_LEFT"));
    f = fopen(path, "we");
    for (int i = 1; f != NULL && i < argc; i++) {
        (void)fprintf(f, "%s\n", argv[i]);
    }
    if (f == NULL || fclose(f) != 0 || fgets(line, sizeof line, stdin) == NULL) {
        return 1;
    }
    (void)snprintf(path, sizeof path, "%s/line", getenv("LT_HOSTS_LEFT"));
    f = fopen(path, "we");
    return f != NULL && fputs(line, f) >= 0 && fclose(f) == 0 ? 7 : 1;
}

/* The first line of a process after it has ended; json_decref it. */
static json_t *what_came(lt_processes *p, int process, const char *words) {
    char path[128], *text = NULL;
    size_t bytes;
    json_t *j;
    assert_int_equal(waitpid(p->all[process].pid, &p->all[process].status, 0), p->all[process].pid);
    p->all[process].runs = false;
    lt_processes_drain(p);
    assert_true(WIFEXITED(p->all[process].status) && WEXITSTATUS(p->all[process].status) == 7);
    (void)snprintf(path, sizeof path, "%s/words", left);
    assert_int_equal(lt_file_read(&text, &bytes, path, 1 << 16), LT_OK);
    assert_string_equal(text, words);
    free(text);
    text = NULL;
    (void)snprintf(path, sizeof path, "%s/line", left);
    j = json_load_file(path, 0, NULL);
    assert_non_null(j);
    return j;
}

static void words_are(const char *login, const char *const *want) {
    int n = 0;
    open_hosts("a", 0, login, "10.0.0.9");
    for (; want[n] != NULL && h.login_words[n] != NULL; n++) {
        assert_string_equal(h.login_words[n], want[n]);
    }
    assert_true(want[n] == NULL && h.login_words[n] == NULL);
    lt_hosts_close(&h);
}

static void login_commands(void **state) {
    char text[1025] = "";
    (void)state;
    words_are("", (const char *const[]){"ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10",
                                        "-o", "ServerAliveInterval=5", NULL});
    words_are("  a  'b c' \"d'e\" f\"g h\"i ''",
              (const char *const[]){"a", "b c", "d'e", "fg hi", "", NULL});
    for (int i = 0; i < LT_LOGIN_MOST; i++) {
        (void)strcat(text, "w ");
    }
    open_hosts("a", 0, text, "10.0.0.9");
    assert_true(h.login_words[LT_LOGIN_MOST - 1] != NULL && h.login_words[LT_LOGIN_MOST] == NULL);
    lt_hosts_close(&h);
    (void)strcat(text, "w");
    refused("a", 0, text, "--login has more than 32 words");
    memset(text, 'w', sizeof text - 1);
    refused("a", 0, text, "--login has more than 1023 bytes");
    text[1023] = '\0';
    open_hosts("a", 0, text, "10.0.0.9");
    lt_hosts_close(&h);
}

/* A machine is late if it has not started its rank in time; this machine never is. */
static void late_machines(void **state) {
    static const struct {
        bool runs;
        int rank;
        uint64_t seen;
        double after_s;
        bool late;
    } rows[] = {
        {true, 1, 0, LT_HOSTS_LATE + 0.1, true},   {true, 1, 0, LT_HOSTS_LATE - 0.1, false},
        {true, 1, 3, LT_HOSTS_LATE + 0.1, false},  {true, 0, 0, LT_HOSTS_LATE + 0.1, false},
        {false, 1, 0, LT_HOSTS_LATE + 0.1, false},
    };
    (void)state;
    open_hosts("localhost,b", 0, "", "10.0.0.9");
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        lt_process p = {.runs = rows[i].runs};
        h.seen[rows[i].rank] = 1;
        lt_hosts_begin(&h);
        assert_int_equal(h.seen[rows[i].rank], 0);
        h.began_s = 1000.0;
        h.seen[rows[i].rank] = rows[i].seen;
        lt_hosts_find_late(&h, rows[i].rank, &p, 1000.0 + rows[i].after_s);
        assert_int_equal(p.late, rows[i].late);
        assert_int_equal(p.cut, rows[i].late);
        assert_int_equal(p.status, rows[i].late ? 255 << 8 : 0);
    }
    lt_hosts_close(&h);
}

#define S 1000000000u

/* Machines have different clocks, so ages are sent, not times. */
static void signs_of_life(void **state) {
    const lt_board_room room = {.dp = 4, .least = 2, .rows = 48};
    lt_board_sight s = {
        .phase = LT_PHASE_STEPPED,
        .step = 57,
        .loaded_step = 40,
        .step_ns = 95u * (uint64_t)S,
        .stop = 15,
        .suspect_step = 50,
        .left = true,
        .slow = 0.25,
        .at_ns = {0, 10u * (uint64_t)S, 20u * (uint64_t)S, 30u * (uint64_t)S, 101u * (uint64_t)S}};
    lt_board_sight got;
    lt_board_room sizes;
    const char *folder;
    json_t *j = lt_remote_sight(&s, &room, "runs/x", 100u * (uint64_t)S);
    (void)state;
    assert_true(lt_remote_sight_read(j, &got, &sizes, &folder, 1000u * (uint64_t)S));
    assert_true(got.phase == LT_PHASE_STEPPED && got.step == 57 && got.loaded_step == 40);
    assert_true(got.stop == 15 && got.suspect_step == 50 && got.slow == 0.25 && got.left);
    assert_true(sizes.dp == 4 && sizes.least == 2 && sizes.rows == 48);
    assert_string_equal(folder, "runs/x");
    assert_true(got.step_ns == 995u * (uint64_t)S);
    assert_true(got.at_ns[0] == 0 && got.at_ns[1] == 910u * (uint64_t)S);
    assert_true(got.at_ns[4] == 1000u * (uint64_t)S); /* A time in the future becomes now. */
    /* Older than the reader's clock: the earliest possible time, and not "never". */
    assert_true(lt_remote_sight_read(j, &got, &sizes, &folder, 50u * (uint64_t)S));
    assert_true(got.at_ns[1] == 1 && got.step_ns == 45u * (uint64_t)S);
    json_object_set_new(j, "phase", json_integer(LT_PHASES));
    assert_false(lt_remote_sight_read(j, &got, &sizes, &folder, S));
    json_object_set_new(j, "phase", json_integer(-1));
    assert_false(lt_remote_sight_read(j, &got, &sizes, &folder, S));
    json_object_set_new(j, "phase", json_integer(1));
    json_object_set_new(j, "ages", json_array());
    assert_false(lt_remote_sight_read(j, &got, &sizes, &folder, S));
    json_decref(j);
}

/* What agents write to the store about ranks on other machines is copied to the board, once
 * each. */
static void signs_of_life_reach_the_board(void **state) {
    const lt_board_sight s = {.phase = LT_PHASE_LOADED, .step = 12, .suspect_step = -1};
    const lt_board_room room = {.dp = 2, .least = 1, .rows = 8};
    char token[LT_STORE_TOKEN], *text;
    lt_comm_store_server *server;
    lt_comm_store *client;
    lt_board *board;
    json_t *j = lt_remote_sight(&s, &room, "/runs/y", lt_clock_ns());
    int fd, status = -1;
    (void)state;
    open_hosts("localhost,b", 0, "", "10.0.0.9");
    assert_int_equal(lt_comm_store_token(token), LT_OK);
    assert_int_equal(lt_comm_store_server_open(&server, "127.0.0.1", 0, 2, token, 1), LT_OK);
    assert_int_equal(
        lt_comm_store_open(&client, lt_comm_store_server_address(server), token, -1, 1, 10.0),
        LT_OK);
    assert_int_equal(lt_board_make(&board, &fd, 2), LT_OK);
    text = json_dumps(j, JSON_COMPACT);
    for (int r = 0; r < 2; r++) {
        char key[24];
        (void)snprintf(key, sizeof key, "sight/%d", r);
        assert_int_equal(lt_comm_store_set(client, key, text, strlen(text)), LT_OK);
    }
    lt_hosts_begin(&h);
    lt_hosts_look(&h, server, board);
    assert_true(lt_board_seen(board, 1).step == 12);
    assert_true(lt_board_seen(board, 0).step == -1); /* A rank on this machine writes itself. */
    assert_string_equal(lt_board_folder_of(board), "/runs/y");
    assert_true(lt_board_sizes_of(board).dp == 2 && lt_board_sizes_of(board).rows == 8);
    assert_true(h.seen[1] > 0 && h.seen[0] == 0);
    lt_board_clear(board);
    lt_hosts_look(&h, server, board); /* It is not new. */
    assert_true(lt_board_seen(board, 1).step == -1);
    assert_false(lt_hosts_end(server, 1, &status));
    assert_int_equal(lt_comm_store_set(client, "end/1", "{\"status\": 9}", 13), LT_OK);
    assert_true(lt_hosts_end(server, 1, &status) && status == 9);
    assert_false(lt_hosts_end(server, 0, &status));
    assert_int_equal(lt_comm_store_set(client, "end/0", "{\"state\": 9}", 12), LT_OK);
    assert_false(lt_hosts_end(server, 0, &status));
    lt_comm_store_close(client);
    lt_comm_store_server_close(server);
    lt_board_close(board);
    (void)close(fd);
    free(text);
    json_decref(j);
    lt_hosts_close(&h);
}

static void orders_arrive_in_pieces(void **state) {
    char much[600];
    lt_orders o = {.n = 0};
    int fd[2];
    double before_s = lt_clock_s();
    const char *line;
    (void)state;
    assert_int_equal(pipe(fd), 0);
    assert_null(lt_orders_next(&o, fd[0], 0.05));
    assert_true(lt_clock_s() - before_s >= 0.04 && !o.ended);
    assert_int_equal(write(fd[1], "signal 15\nali", 13), 13);
    assert_string_equal(lt_orders_next(&o, fd[0], 1.0), "signal 15");
    assert_null(lt_orders_next(&o, fd[0], 0.0));
    assert_int_equal(write(fd[1], "ve\n\nx\n", 6), 6);
    assert_string_equal(lt_orders_next(&o, fd[0], 1.0), "alive");
    assert_string_equal(lt_orders_next(&o, fd[0], 0.0), "");
    assert_string_equal(lt_orders_next(&o, fd[0], 0.0), "x");
    memset(much, 'y', sizeof much);
    much[sizeof much - 1] = '\n';
    assert_int_equal(write(fd[1], much, sizeof much), sizeof much);
    line = lt_orders_next(&o, fd[0], 1.0);
    assert_true(line != NULL && strlen(line) == 255 && strspn(line, "y") == 255);
    assert_int_equal(write(fd[1], "z\nhalf", 6), 6);
    assert_string_equal(lt_orders_next(&o, fd[0], 1.0), "z");
    (void)close(fd[1]);
    assert_null(lt_orders_next(&o, fd[0], 1.0));
    assert_true(o.ended);
    before_s = lt_clock_s();
    assert_null(lt_orders_next(&o, fd[0], 5.0)); /* There is nothing left to wait for. */
    assert_true(lt_clock_s() - before_s < 4.0);
    (void)close(fd[0]);
}

static void ranks_are_started(void **state) {
    char word[] = "lateen", verb[] = "train", odd[] = "two words", bad[] = "\xff", login[4400];
    char *argv[] = {word, verb, odd, NULL}, own[4096] = "", words[4400], folder[4096];
    char path[] = "/bin/lateen";
    lt_processes p = {.path = path, .argv = argv, .signals = -1};
    const lt_environment e = {.rank = 2,
                              .n = 4,
                              .full = 6,
                              .apart = true,
                              .local = 1,
                              .locals = 2,
                              .store = "10.0.0.9:1",
                              .token = "secret",
                              .epoch = 5,
                              .beat_s = 0.5,
                              .silent_s = 3.0,
                              .memory = "/dev/shm/x",
                              .node = 1,
                              .snapshot = 7,
                              .mtbf_s = 600.0};
    json_t *j;
    (void)state;
    assert_non_null(mkdtemp(left));
    assert_int_equal(setenv("LT_HOSTS_LEFT", left, 1), 0);
    assert_true(readlink("/proc/self/exe", own, sizeof own - 1) > 0);
    (void)sigemptyset(&p.mask);
    /* As with ssh, the name of the machine is the first argument. */
    (void)snprintf(login, sizeof login, "'%s' login", own);
    open_hosts("localhost,b:2,c", 0, login, "10.0.0.9");
    assert_int_equal(lt_processes_open(&p, 4), LT_OK);
    assert_int_equal(lt_hosts_start(&h, &p, &e), LT_OK);
    (void)snprintf(words, sizeof words, "login\nb\n%s\nagent\n--rank\n", own);
    j = what_came(&p, 2, words);
    assert_non_null(getcwd(folder, sizeof folder));
    assert_string_equal(json_string_value(json_object_get(j, "folder")), folder);
    assert_string_equal(json_string_value(json_object_get(j, "path")), "/bin/lateen");
    assert_string_equal(json_string_value(json_object_get(j, "version")), LT_VERSION);
    assert_string_equal(json_string_value(json_object_get(j, "store")), "10.0.0.9:1");
    assert_string_equal(json_string_value(json_object_get(j, "token")), "secret");
    assert_string_equal(json_string_value(json_object_get(j, "memory")), "/dev/shm/x");
    const struct {
        const char *name;
        double value;
    } numbers[] = {{"rank", 2},   {"ranks", 4},    {"full", 6},   {"local", 1},
                   {"locals", 2}, {"epoch", 5},    {"beat", 0.5}, {"silent", 3},
                   {"node", 1},   {"snapshot", 7}, {"mtbf", 600}};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        if (json_number_value(json_object_get(j, numbers[i].name)) != numbers[i].value) {
            fail_msg("%s", numbers[i].name);
        }
    }
    assert_int_equal(json_array_size(json_object_get(j, "words")), 3);
    assert_string_equal(json_string_value(json_array_get(json_object_get(j, "words"), 2)),
                        "two words");
    assert_true(json_array_size(json_object_get(j, "environment")) > 1);
    json_decref(j);

    /* Agents of snapshots, here and on another machine. */
    assert_int_equal(lt_hosts_start_agent(&h, 0, &p, "{\"a\": 1}\n"), LT_OK);
    j = what_came(&p, 0, "agent\n--machine\n");
    assert_int_equal(json_integer_value(json_object_get(j, "a")), 1);
    json_decref(j);
    assert_int_equal(lt_hosts_start_agent(&h, 1, &p, "{\"a\": 2}\n"), LT_OK);
    (void)snprintf(words, sizeof words, "login\nb\n%s\nagent\n--machine\n", own);
    j = what_came(&p, 1, words);
    assert_int_equal(json_integer_value(json_object_get(j, "a")), 2);
    json_decref(j);

    /* A word that cannot be sent is not silently left out. */
    argv[2] = bad;
    assert_int_equal(lt_hosts_start(&h, &p, &e), LT_ERR_ARG);
    assert_non_null(strstr(lt_error_message(), "rank 2 on b: its command line is not UTF-8"));
    lt_processes_close(&p);
    lt_hosts_close(&h);
    assert_int_equal(lt_file_remove_tree(left), LT_OK);

    assert_int_equal(lt_hosts_open(&h, "no.such.machine.invalid,localhost", 0, "", ""), LT_ERR_ARG);
    lt_hosts_close(&h);

    /* The address is that of the way to the first machine that is not this one. */
    assert_int_equal(lt_hosts_open(&h, "localhost,no.such.machine.invalid", 0, "", ""), LT_ERR_ARG);
    assert_non_null(strstr(lt_error_message(), "no.such.machine.invalid has no IPv4 address here"));
    lt_hosts_close(&h);
}

/* The launcher is killed while the agent of a rank tries to reach its store: the agent ends with
 * its standard input, and not only when it gives up after half a minute. */
static void an_agent_ends_with_its_launcher(void **state) {
    char word[] = "lateen", *argv[] = {word, NULL}, own[4096] = "", login[4400];
    lt_processes p = {.path = word, .argv = argv, .signals = -1};
    const lt_environment e = {.n = 1,
                              .full = 1,
                              .apart = true,
                              .locals = 1,
                              .store = "127.0.0.1:1", /* Nobody listens there. */
                              .token = "secret",
                              .epoch = 1,
                              .memory = ""};
    lt_process *one;
    double closed_s;
    (void)state;
    assert_int_equal(setenv("LT_HOSTS_RUN", "1", 1), 0);
    assert_true(readlink("/proc/self/exe", own, sizeof own - 1) > 0);
    (void)sigemptyset(&p.mask);
    (void)snprintf(login, sizeof login, "'%s' login", own);
    open_hosts("b", 0, login, "127.0.0.1");
    assert_int_equal(lt_processes_open(&p, 1), LT_OK);
    assert_int_equal(lt_hosts_start(&h, &p, &e), LT_OK);
    one = &p.all[0];
    (void)usleep(500000);
    assert_int_equal(waitpid(one->pid, &one->status, WNOHANG), 0); /* It tries. */
    (void)close(one->in);
    one->in = 0;
    closed_s = lt_clock_s();
    assert_int_equal(waitpid(one->pid, &one->status, 0), one->pid);
    assert_true(lt_clock_s() - closed_s < 10.0);
    one->runs = false;
    lt_processes_drain(&p);
    assert_true(WIFEXITED(one->status) && WEXITSTATUS(one->status) == 8);
    assert_non_null(strstr(one->words, "rank 0: the launcher ended before the rank began"));
    lt_processes_close(&p);
    lt_hosts_close(&h);
    assert_int_equal(unsetenv("LT_HOSTS_RUN"), 0);
}

int main(int argc, char **argv) {
    if (argc > 1 && getenv("LT_HOSTS_RUN") != NULL) {
        int status = 0;
        const bool ok = lt_remote_run(&status) == LT_OK;
        (void)fprintf(stderr, "%s\n", ok ? "it ran" : lt_error_message());
        return ok ? status : 8;
    }
    if (argc > 1) {
        return as_agent(argc, argv);
    }
    const struct CMUnitTest tests[] = {cmocka_unit_test(lists_of_machines),
                                       cmocka_unit_test(bad_lists_are_refused),
                                       cmocka_unit_test(login_commands),
                                       cmocka_unit_test(ranks_are_started),
                                       cmocka_unit_test(an_agent_ends_with_its_launcher),
                                       cmocka_unit_test(late_machines),
                                       cmocka_unit_test(signs_of_life),
                                       cmocka_unit_test(signs_of_life_reach_the_board),
                                       cmocka_unit_test(orders_arrive_in_pieces)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
