/* Which node each part of a run occupies: which parts move to a spare node, which places stay
 * empty, which nodes are used again, and on which node a rank runs. These tests start no agents;
 * they behave as if all of them ran. Other tests start agents, watch them and end them; a script
 * runs in place of each agent. */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "platform/agent/memory.h"
#include "platform/agent/nodes.h"

enum { MOST = 6, U = LT_NODE_USED, S = LT_NODE_SPARE, O = LT_NODE_OUT };

typedef struct {
    lt_nodes nodes;
    lt_node all[MOST];
    lt_process agents[MOST];
    int seats[MOST];
    lt_events events;
} fleet;

/* Make nodes in these states, and seats with these nodes. */
static void make(fleet *f, int n, const int *states, int n_full, const int *seats) {
    memset(f, 0, sizeof *f);
    f->nodes = (lt_nodes){.n = n,
                          .n_full = n_full,
                          .seats = f->seats,
                          .all = f->all,
                          .agents = {.n = n, .all = f->agents},
                          .events = &f->events};
    for (int k = 0; k < n; k++) {
        f->all[k].state = (lt_node_state)states[k];
        f->agents[k].runs = true;
    }
    memcpy(f->seats, seats, (size_t)n_full * sizeof *seats);
}

static void seats_of_parts(void **state) {
    static const struct {
        int n, states[MOST], n_full, seats[MOST];
        bool shrink;
        int n_seats, now[MOST], ahead; /* ahead: index of the next node, before the attempt. */
    } rows[] = {
        {2, {U, U}, 2, {0, 1}, false, 2, {0, 1}, 2},
        {3, {O, U, S}, 2, {0, 1}, false, 2, {2, 1}, 2},
        {3, {U, U, S}, 2, {0, 1}, true, 2, {0, 1}, 2},     /* The spare is not needed. */
        {4, {O, O, S, S}, 2, {0, 1}, false, 2, {2, 3}, 2}, /* Two nodes are lost. */
        {3, {O, O, S}, 2, {0, 1}, false, 2, {2, 1}, 1},    /* The second node is used again. */
        {3, {O, O, S}, 2, {0, 1}, true, 1, {2, -1}, 1},    /* Or its seat stays empty. */
        {2, {U, O}, 2, {0, 1}, true, 1, {0, -1}, 1},       /* Without any spare. */
        {2, {O, O}, 2, {0, 1}, true, 1, {-1, 1}, 0},       /* One seat is always taken. */
        {2, {U, S}, 2, {0, -1}, true, 2, {0, 1}, 2},       /* A node is back, so the run grows. */
        {2, {U, O}, 2, {0, -1}, false, 2, {0, 1}, 1},      /* The run cannot be that small. */
        {4, {U, O, U, S}, 3, {0, -1, 2}, true, 3, {0, 3, 2}, 3},
        {4, {O, U, U, O}, 3, {-1, 1, 2}, true, 2, {-1, 1, 2}, 2},
        {3, {S, O, U}, 2, {1, 2}, false, 2, {0, 2}, 2}, /* The first node is the spare one. */
    };
    (void)state;
    lt_log_set_level(LT_LOG_ERROR);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        fleet f;
        make(&f, rows[i].n, rows[i].states, rows[i].n_full, rows[i].seats);
        for (int k = 0; k < rows[i].n; k++) {
            f.all[k].suspect = rows[i].states[k] == O;
        }
        assert_int_equal(lt_nodes_seats_ahead(&f.nodes), rows[i].ahead);
        lt_nodes_seat(&f.nodes, rows[i].shrink, 2);
        assert_int_equal(f.nodes.n_seats, rows[i].n_seats);
        for (int k = 0; k < rows[i].n; k++) {
            assert_int_equal(f.agents[k].pid, 0); /* Agents that run are not started again. */
        }
        for (int k = 0; k < rows[i].n_full; k++) {
            assert_int_equal(f.seats[k], rows[i].now[k]);
            assert_true(f.seats[k] < 0 ||
                        (f.all[f.seats[k]].state == LT_NODE_USED && !f.all[f.seats[k]].suspect));
        }
    }
}

/* Ranks are spread over the seats that have a node, in order. */
static void ranks_on_nodes(void **state) {
    static const struct {
        int n_full, seats[MOST], n_ranks, on[8];
    } rows[] = {
        {2, {0, 1}, 4, {0, 0, 1, 1}},
        {2, {2, 1}, 4, {2, 2, 1, 1}},
        {3, {-1, 1, 3}, 4, {1, 1, 3, 3}},
        {3, {0, -1, -1}, 2, {0, 0}},
        {4, {0, 1, -1, 3}, 8, {0, 0, 0, 1, 1, 1, 3, 3}},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        static const int used[MOST] = {U, U, U, U, U, U};
        fleet f;
        make(&f, MOST, used, rows[i].n_full, rows[i].seats);
        for (int k = 0; k < rows[i].n_full; k++) {
            f.nodes.n_seats += rows[i].seats[k] >= 0;
        }
        for (int r = 0; r < rows[i].n_ranks; r++) {
            assert_int_equal(lt_nodes_of_rank(&f.nodes, r, rows[i].n_ranks), rows[i].on[r]);
        }
    }
}

/* A node is lost with its agent and all of its ranks; a machine also if all of these are
 * unreachable. */
static void lost_nodes(void **state) {
    static const struct {
        bool machines, gone;
        struct {
            bool lost, silent, cut;
        } ranks[2]; /* Those of node 1. */
        bool is;
    } rows[] = {
        {false, true, {{true, false, false}, {true, false, false}}, true},
        /* Its agent lives. */
        {false, false, {{true, false, false}, {true, false, false}}, false},
        {false, false, {{true, true, false}, {true, true, false}}, false},
        {false, true, {{true, false, false}, {false, false, false}}, false}, /* A rank lives. */
        {true, true, {{true, false, false}, {true, false, false}}, true},
        {true, false, {{true, false, false}, {true, false, true}}, false}, /* One was killed. */
        {true, false, {{true, true, false}, {true, false, true}}, true},
        {true, false, {{true, false, true}, {true, false, true}}, true},
        {true, true, {{false, false, false}, {true, false, true}}, false},
    };
    static const int used[2] = {U, U}, seats_of[2] = {0, 1};
    static lt_hosts hosts;
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        lt_process all[4] = {0};
        const lt_processes p = {.n = 4, .all = all};
        fleet f;
        make(&f, 2, used, 2, seats_of);
        f.nodes.n_seats = 2;
        f.nodes.hosts = rows[i].machines ? &hosts : NULL;
        f.all[1].gone = rows[i].gone;
        for (int r = 0; r < 2; r++) {
            all[2 + r].lost = rows[i].ranks[r].lost;
            all[2 + r].silent = rows[i].ranks[r].silent;
            all[2 + r].cut = rows[i].ranks[r].cut;
        }
        if (lt_nodes_is_lost(&f.nodes, &p, 1) != rows[i].is) {
            fail_msg("row %zu", i);
        }
        assert_false(lt_nodes_is_lost(&f.nodes, &p, 0));
    }
}

/* How many ranks continue: whole replicas, as many as fit on the seats, whose number divides the
 * rows. */
static void numbers_of_ranks_that_continue(void **state) {
    static const struct {
        int n_full, seats, full;
        lt_board_room room;
        int n;
    } rows[] = {
        {4, 4, 8, {.dp = 0}, 8}, /* All are there. */
        {4, 3, 4, {.dp = 4, .least = 1, .rows = 12}, 3},
        {4, 3, 4, {.dp = 4, .least = 1, .rows = 16}, 2}, /* Three do not divide 16 rows. */
        {4, 3, 8, {.dp = 4, .least = 1, .rows = 12}, 6}, /* Replicas of two ranks. */
        {2, 1, 8, {.dp = 2, .least = 1, .rows = 12}, 4},
        {2, 1, 8, {.dp = 2, .least = 2, .rows = 12}, 0}, /* It needs two. */
        {2, 1, 8, {.dp = 1, .least = 1, .rows = 12}, 0}, /* One replica has all ranks. */
        {2, 1, 8, {.dp = 0}, 0},                         /* No other size is allowed. */
        {8, 7, 8, {.dp = 8, .least = 1, .rows = 10}, 5},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const lt_nodes nodes = {.n_full = rows[i].n_full};
        const int n = lt_nodes_ranks_on(&nodes, rows[i].seats, rows[i].full, &rows[i].room);
        if (n != rows[i].n) {
            fail_msg("row %zu: %d ranks, not %d", i, n, rows[i].n);
        }
    }
}

/* ---- Agents ---------------------------------------------------------------------------------- */

/* Like an agent, it reports that it answers, and what it was given; then it waits. */
static const char script[] = "#!/bin/sh\n"
                             "mkdir -p \"$3/node-$5\"\n"
                             "echo \"$LATEEN_TOKEN $1 $2 $4 $6 $7\" > \"$3/node-$5/agent\"\n"
                             "exec sleep 1000\n";

static void until(lt_nodes *nodes, bool (*is)(const lt_nodes *), const char *what) {
    const double until_s = lt_clock_s() + 60.0;
    while (!is(nodes)) {
        if (lt_clock_s() > until_s) {
            fail_msg("a minute has passed until %s", what);
        }
        lt_nodes_look(nodes, 1);
        (void)usleep(2000);
    }
}

static bool says(const lt_nodes *nodes, int node) {
    char path[LT_PATH_BYTES], name[32], *text = NULL;
    bool same;
    (void)snprintf(name, sizeof name, "node-%d/agent", node);
    assert_int_equal(lt_path_join(path, nodes->root, name), LT_OK);
    same = lt_file_exists(path) && lt_file_read(&text, NULL, path, 256) == LT_OK &&
           strcmp(text, "secret agent --memory --node --nodes 3\n") == 0;
    free(text);
    return same;
}

static bool all_say(const lt_nodes *nodes) {
    return says(nodes, 0) && says(nodes, 1) && says(nodes, 2);
}

/* Create a link under set/ to a file that node 0 has lost, and of which node 1 has a copy. */
static void break_link(const lt_nodes *nodes, char path[LT_PATH_BYTES]) {
    static const char *const names[] = {"node-0/own/rank-0/step-000000005", "set/step-000000005",
                                        "node-1/kept/rank-0/step-000000005"};
    char at[3][LT_PATH_BYTES];
    for (int i = 0; i < 3; i++) {
        assert_int_equal(lt_path_join(at[i], nodes->root, names[i]), LT_OK);
    }
    assert_int_equal(lt_file_make_parent(at[1]), LT_OK);
    assert_int_equal(lt_memory_link(at[0], at[1]), LT_OK);
    assert_int_equal(lt_file_make_dirs(at[2]), LT_OK);
    assert_false(lt_file_exists(at[1]));
    memcpy(path, at[1], LT_PATH_BYTES);
}

static bool second_is_gone(const lt_nodes *nodes) {
    return nodes->all[1].gone && !nodes->agents.all[1].runs;
}

static bool second_runs(const lt_nodes *nodes) {
    return nodes->agents.all[1].runs;
}

static bool first_is_spare(const lt_nodes *nodes) {
    return nodes->all[0].state == LT_NODE_SPARE;
}

static void agents_live(void **state) {
    char path[] = "/tmp/lt_agent_XXXXXX", node[LT_PATH_BYTES], root[LT_PATH_BYTES];
    lt_events events;
    lt_nodes nodes;
    sigset_t mask;
    double before_s;
    pid_t pid;
    const int fd = mkstemp(path);
    (void)state;
    lt_events_open(&events, false, 0);
    assert_true(fd >= 0 && write(fd, script, strlen(script)) == (ssize_t)strlen(script));
    assert_int_equal(fchmod(fd, 0700), 0);
    (void)close(fd);
    (void)sigemptyset(&mask);
    const lt_nodes_options options = {.n = 2,
                                      .spares = 1,
                                      .back_s = 0.2,
                                      .path = path,
                                      .mask = &mask,
                                      .token = "secret",
                                      .events = &events};
    assert_int_equal(lt_nodes_open(&nodes, &options), LT_OK);
    assert_int_equal(nodes.n, 3);
    assert_int_equal(nodes.n_full, 2);
    assert_int_equal(nodes.n_seats, 2);
    assert_true(nodes.seats[0] == 0 && nodes.seats[1] == 1);
    assert_true(nodes.all[0].state == LT_NODE_USED && nodes.all[1].state == LT_NODE_USED &&
                nodes.all[2].state == LT_NODE_SPARE);
    until(&nodes, all_say, "the agents answer");

    /* When one ends, this is reported, and it is started again a second after its last start. */
    pid = nodes.agents.all[1].pid;
    before_s = nodes.all[1].started_s;
    assert_int_equal(kill(pid, SIGKILL), 0);
    until(&nodes, second_is_gone, "its end is seen");
    assert_true(nodes.all[1].state == LT_NODE_USED);
    until(&nodes, second_runs, "it is started again");
    assert_true(nodes.all[1].started_s - before_s >= 1.0);
    assert_int_not_equal(nodes.agents.all[1].pid, pid);
    assert_true(nodes.all[1].gone);
    nodes.all[0].gone = true;
    break_link(&nodes, node);
    lt_nodes_repair(&nodes);
    assert_false(nodes.all[0].gone || nodes.all[1].gone);
    assert_true(lt_file_exists(node)); /* The link leads to the copy. */

    /* A lost node leaves nothing behind, and is a spare one when it answers again. */
    before_s = lt_clock_s();
    lt_nodes_take_out(&nodes, 0, false, 1);
    assert_true(nodes.all[0].state == LT_NODE_OUT && !nodes.all[0].suspect &&
                !nodes.agents.all[0].runs);
    assert_true(nodes.all[0].out_s >= before_s && nodes.all[0].out_s <= lt_clock_s());
    assert_int_equal(lt_path_join(node, nodes.root, "node-0"), LT_OK);
    assert_false(lt_file_exists(node));
    nodes.back_s = 0.0; /* Never. */
    (void)usleep(10000);
    lt_nodes_look(&nodes, 1);
    assert_false(nodes.agents.all[0].runs);
    nodes.back_s = 0.2;
    lt_nodes_look(&nodes, 1);
    assert_false(nodes.agents.all[0].runs && lt_clock_s() - before_s < 0.2);
    until(&nodes, first_is_spare, "it is back");
    assert_true(nodes.all[0].started_s - before_s >= 0.2);

    /* A suspect node is not tried again. */
    lt_nodes_take_out(&nodes, 2, true, 1);
    assert_true(nodes.all[2].suspect);
    before_s = lt_clock_s();
    while (lt_clock_s() - before_s < 0.4) {
        lt_nodes_look(&nodes, 1);
        (void)usleep(20000);
    }
    assert_false(nodes.agents.all[2].runs);
    assert_true(nodes.all[2].state == LT_NODE_OUT);

    memcpy(root, nodes.root, sizeof root);
    pid = nodes.agents.all[1].pid;
    assert_int_equal(kill(pid, SIGSTOP), 0); /* An agent that cannot end by itself is killed. */
    assert_int_equal(waitpid(pid, NULL, WUNTRACED), pid);
    lt_nodes_close(&nodes);
    assert_false(lt_file_exists(root));
    assert_int_equal(kill(pid, 0), -1); /* It has ended and was waited for. */
    assert_int_equal(nodes.n, 0);
    lt_nodes_close(&nodes);
    lt_events_close(&events);
    assert_int_equal(unlink(path), 0);
}

/* ---- Machines -------------------------------------------------------------------------------- */

/* This program as the agent of a machine: it reports where it listens, and writes what it was
 * told, in its first line and later, to files. */
static int as_machine(void) {
    char line[4096], path[128];
    json_t *j = fgets(line, sizeof line, stdin) != NULL ? json_loads(line, 0, NULL) : NULL;
    const int node = j != NULL ? (int)json_integer_value(json_object_get(j, "node")) : -1;
    FILE *f;
    (void)snprintf(path, sizeof path, "%s/told-%d", getenv("LT_NODES_LEFT"), node);
    f = fopen(path, "we");
    if (f == NULL || node < 0) {
        return 1;
    }
    (void)fprintf(f, "%s %d %d %s %s\n", json_string_value(json_object_get(j, "token")),
                  (int)json_integer_value(json_object_get(j, "nodes")),
                  json_is_true(json_object_get(j, "keep")),
                  json_string_value(json_object_get(j, "launcher")),
                  json_string_value(json_object_get(j, "memory")));
    (void)fflush(f);
    (void)printf("hello\nlistens 10.0.0.%d:7\n", node);
    (void)fflush(stdout);
    while (fgets(line, sizeof line, stdin) != NULL && strncmp(line, "signal", 6) != 0) {
        (void)fputs(line, f);
        (void)fflush(f);
    }
    return fclose(f) == 0 ? 0 : 1;
}

static char left[] = "/tmp/lt_nodes_XXXXXX";

/* Lines that a machine's agent was told, without the first one; *first: that one. */
static void told(int node, char *first, char *rest) {
    char path[128], *text = NULL, *end;
    size_t bytes;
    (void)snprintf(path, sizeof path, "%s/told-%d", left, node);
    first[0] = rest[0] = '\0';
    if (lt_file_exists(path) && lt_file_read(&text, &bytes, path, 1 << 12) == LT_OK &&
        (end = strchr(text, '\n')) != NULL) {
        *end = '\0';
        (void)snprintf(first, 512, "%s", text);
        (void)snprintf(rest, 4096, "%s", end + 1);
    }
    free(text);
}

/* Wait until the last line is this one. */
static void told_at_last(lt_nodes *nodes, int node, const char *line) {
    const double until_s = lt_clock_s() + 60.0;
    char first[512], rest[4096], want[256];
    size_t n = 0;
    (void)snprintf(want, sizeof want, "%s\n", line);
    while (n < strlen(want) || strcmp(rest + n - strlen(want), want) != 0) {
        if (lt_clock_s() > until_s) {
            fail_msg("node %d was told '%s', and not '%s'", node, rest, line);
        }
        lt_nodes_look(nodes, 1);
        (void)usleep(2000);
        told(node, first, rest);
        n = strlen(rest);
    }
}

static bool all_listen(const lt_nodes *nodes) {
    return nodes->all[0].holds && nodes->all[1].holds && nodes->all[2].holds;
}

static bool second_listens(const lt_nodes *nodes) {
    return nodes->all[1].address[0] != '\0';
}

static bool second_is_spare(const lt_nodes *nodes) {
    return nodes->all[1].state == LT_NODE_SPARE;
}

static bool second_has_ended(const lt_nodes *nodes) {
    return !nodes->agents.all[1].runs;
}

static void machines(void **state) {
    static lt_hosts hosts;
    char login[128], first[512], rest[4096], want[5000], root[LT_PATH_BYTES], link[LT_PATH_BYTES];
    lt_events events;
    lt_nodes nodes;
    sigset_t mask;
    FILE *f;
    (void)state;
    lt_events_open(&events, false, 0);
    (void)sigemptyset(&mask);
    assert_non_null(mkdtemp(left));
    assert_int_equal(setenv("LT_NODES_LEFT", left, 1), 0);
    (void)snprintf(login, sizeof login, "%s/login", left);
    f = fopen(login, "we");
    assert_true(f != NULL && fputs("#!/bin/sh\nshift\nexec \"$@\"\n", f) >= 0);
    assert_true(fchmod(fileno(f), 0700) == 0 && fclose(f) == 0);
    assert_int_equal(lt_hosts_open(&hosts, "localhost:1,b:1,c:1", 1, login, "10.9.9.9"), LT_OK);
    const lt_nodes_options options = {.n = 2,
                                      .spares = 1,
                                      .hosts = &hosts,
                                      .back_s = 0.2,
                                      .path = "/proc/self/exe",
                                      .mask = &mask,
                                      .token = "secret",
                                      .events = &events};
    assert_int_equal(lt_nodes_open(&nodes, &options), LT_OK);
    until(&nodes, all_listen, "all agents listen");
    for (int k = 0; k < 3; k++) {
        told(k, first, rest);
        (void)snprintf(want, sizeof want, "secret 3 0 10.9.9.9 %s", nodes.root);
        assert_string_equal(first, want);
        (void)snprintf(want, sizeof want, "10.0.0.%d:7", k);
        assert_string_equal(nodes.all[k].address, want);
    }
    /* Each machine knows every other one, and not itself. */
    for (int k = 0; k < 3; k++) {
        for (int other = 0; other < 3; other++) {
            (void)snprintf(want, sizeof want, "peer %d 10.0.0.%d:7\n", other, other);
            const double until_s = lt_clock_s() + 60.0;
            do {
                told(k, first, rest);
            } while (k != other && strstr(rest, want) == NULL && lt_clock_s() < until_s);
            assert_true((strstr(rest, want) != NULL) == (k != other));
        }
    }
    nodes.alive_s = lt_clock_s() - 9.0; /* Not yet. */
    lt_nodes_look(&nodes, 1);
    assert_true(nodes.alive_s < lt_clock_s() - 8.0);
    nodes.alive_s = lt_clock_s() - 10.5;
    lt_nodes_look(&nodes, 1);
    assert_true(nodes.alive_s > lt_clock_s() - 5.0);
    told_at_last(&nodes, 2, "alive");

    /* When one ends, the others are told at once, and again when it is back, with what it has
     * kept. */
    assert_int_equal(kill(-nodes.agents.all[1].pid, SIGKILL), 0);
    until(&nodes, second_has_ended, "its end is seen");
    assert_true(nodes.all[1].gone && nodes.all[1].address[0] == '\0');
    told_at_last(&nodes, 0, "peer 1 -");
    until(&nodes, second_listens, "it is started again");
    told_at_last(&nodes, 2, "peer 1 10.0.0.1:7");
    told(1, first, rest);
    (void)snprintf(want, sizeof want, "secret 3 1 10.9.9.9 %s", nodes.root);
    assert_string_equal(first, want);

    /* A lost one begins without it. */
    lt_nodes_take_out(&nodes, 1, false, 1);
    assert_true(nodes.all[1].address[0] == '\0' && !nodes.all[1].holds);
    told_at_last(&nodes, 0, "peer 1 -");
    until(&nodes, second_is_spare, "it is back");
    told(1, first, rest);
    (void)snprintf(want, sizeof want, "secret 3 0 10.9.9.9 %s", nodes.root);
    assert_string_equal(first, want);
    break_link(&nodes, link);
    lt_nodes_repair(&nodes);
    assert_false(lt_file_exists(link)); /* Ranks assemble their sets themselves. */

    memcpy(root, nodes.root, sizeof root);
    lt_nodes_close(&nodes);
    assert_false(lt_file_exists(root));
    lt_hosts_close(&hosts);
    lt_events_close(&events);
    assert_int_equal(lt_file_remove_tree(left), LT_OK);
}

static void a_run_without_nodes(void **state) {
    sigset_t mask;
    lt_nodes nodes;
    (void)state;
    (void)sigemptyset(&mask);
    const lt_nodes_options none = {.spares = 2, .mask = &mask, .token = ""};
    assert_int_equal(lt_nodes_open(&nodes, &none), LT_OK);
    assert_int_equal(nodes.n, 0);
    assert_string_equal(nodes.root, ""); /* No memory is created. */
    lt_nodes_look(&nodes, 0);
    lt_nodes_repair(&nodes);
    lt_nodes_close(&nodes);
}

int main(int argc, char **argv) {
    if (argc > 1 && strcmp(argv[1], "agent") == 0) {
        return as_machine();
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(seats_of_parts),     cmocka_unit_test(ranks_on_nodes),
        cmocka_unit_test(lost_nodes),         cmocka_unit_test(numbers_of_ranks_that_continue),
        cmocka_unit_test(agents_live),        cmocka_unit_test(machines),
        cmocka_unit_test(a_run_without_nodes)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
