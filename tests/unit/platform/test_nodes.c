/* Which node each part of a run occupies: which parts move to a spare node, which places stay
 * empty, which nodes are used again, and on which node a rank runs. No agent is started; the tests
 * behave as if all of them ran. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/log.h"
#include "platform/agent/nodes.h"

enum { MOST = 6, U = LT_NODE_USED, S = LT_NODE_SPARE, O = LT_NODE_OUT };

typedef struct {
    lt_nodes nodes;
    lt_node all[MOST];
    lt_process agents[MOST];
    int seats[MOST];
    lt_events events;
} fleet;

/* Nodes in these states, and seats with these nodes. */
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

static void seats(void **state) {
    static const struct {
        int n, states[MOST], n_full, seats[MOST];
        bool shrink;
        int n_seats, now[MOST], ahead; /* ahead: before the attempt. */
    } rows[] = {
        {2, {U, U}, 2, {0, 1}, false, 2, {0, 1}, 2},
        {3, {O, U, S}, 2, {0, 1}, false, 2, {2, 1}, 2},
        {3, {U, U, S}, 2, {0, 1}, true, 2, {0, 1}, 2},     /* Nobody needs the spare. */
        {4, {O, O, S, S}, 2, {0, 1}, false, 2, {2, 3}, 2}, /* Two are lost. */
        {3, {O, O, S}, 2, {0, 1}, false, 2, {2, 1}, 1},    /* The second one is used again. */
        {3, {O, O, S}, 2, {0, 1}, true, 1, {2, -1}, 1},    /* Or its seat stays empty. */
        {2, {U, O}, 2, {0, 1}, true, 1, {0, -1}, 1},       /* Without any spare. */
        {2, {O, O}, 2, {0, 1}, true, 1, {-1, 1}, 0},       /* One seat is always taken. */
        {2, {U, S}, 2, {0, -1}, true, 2, {0, 1}, 2},       /* A node is back: it grows. */
        {2, {U, O}, 2, {0, -1}, false, 2, {0, 1}, 1},      /* It cannot be as small as that. */
        {4, {U, O, U, S}, 3, {0, -1, 2}, true, 3, {0, 3, 2}, 3},
        {4, {O, U, U, O}, 3, {-1, 1, 2}, true, 2, {-1, 1, 2}, 2},
    };
    (void)state;
    lt_log_set_level(LT_LOG_ERROR);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        fleet f;
        make(&f, rows[i].n, rows[i].states, rows[i].n_full, rows[i].seats);
        assert_int_equal(lt_nodes_seats_ahead(&f.nodes), rows[i].ahead);
        lt_nodes_seat(&f.nodes, rows[i].shrink, 2);
        assert_int_equal(f.nodes.n_seats, rows[i].n_seats);
        for (int k = 0; k < rows[i].n_full; k++) {
            assert_int_equal(f.seats[k], rows[i].now[k]);
            assert_true(f.seats[k] < 0 || f.all[f.seats[k]].state == LT_NODE_USED);
        }
    }
}

/* Ranks are spread over the seats that have a node, in their order. */
static void ranks(void **state) {
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

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(seats), cmocka_unit_test(ranks)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
