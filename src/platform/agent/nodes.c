/* nodes.c: see nodes.h. */
#include "platform/agent/nodes.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "comm/shm.h"
#include "platform/agent/memory.h"

#define AGAIN_S 1.0 /* Between two starts of an agent. */
#define END_S   2.0 /* An agent may take so long to end. */

extern char **environ;

static lt_err start_agent(lt_nodes *nodes, int node) {
    char token[160], number[16], count[16];
    char *words[] = {(char *)(uintptr_t) "lateen",
                     (char *)(uintptr_t) "agent",
                     (char *)(uintptr_t) "--memory",
                     nodes->root,
                     (char *)(uintptr_t) "--node",
                     number,
                     (char *)(uintptr_t) "--nodes",
                     count,
                     NULL};
    char **environment = NULL;
    size_t n = 0;
    lt_err err;
    while (environ[n] != NULL) {
        n++;
    }
    environment = calloc(n + 2, sizeof *environment);
    if (environment == NULL) {
        LT_FAIL(LT_ERR_OOM, "environment of the agent of node %d", node);
    }
    (void)snprintf(token, sizeof token, "%s=%s", LT_ENV_TOKEN, nodes->token);
    (void)snprintf(number, sizeof number, "%d", node);
    (void)snprintf(count, sizeof count, "%d", nodes->n);
    environment[0] = token; /* The first of a name counts. */
    memcpy(environment + 1, environ, n * sizeof *environment);
    nodes->agents.argv = words;
    err = lt_process_start(&nodes->agents, node, environment, NULL);
    nodes->agents.argv = NULL;
    nodes->all[node].started_s = lt_clock_s();
    free(environment);
    return err;
}

lt_err lt_nodes_open(lt_nodes *nodes, const lt_nodes_options *o) {
    const int n = o->n > 0 ? o->n + o->spares : 0;
    *nodes = (lt_nodes){
        .n = n, .n_full = o->n, .n_seats = o->n, .back_s = o->back_s, .events = o->events};
    nodes->agents = (lt_processes){
        .label = "agent ", .path = o->path, .mask = *o->mask, .signals = -1, .dies_by = SIGTERM};
    if (n == 0) {
        return LT_OK;
    }
    LT_TRY(lt_processes_open(&nodes->agents, n));
    nodes->all = calloc((size_t)n, sizeof *nodes->all);
    nodes->seats = calloc((size_t)n, sizeof *nodes->seats);
    nodes->token = strdup(o->token);
    if (nodes->all == NULL || nodes->seats == NULL || nodes->token == NULL) {
        LT_FAIL(LT_ERR_OOM, "%d nodes", n);
    }
    LT_TRY(lt_memory_make(nodes->root, n));
    for (int k = 0; k < n; k++) {
        nodes->all[k].state = k < o->n ? LT_NODE_USED : LT_NODE_SPARE;
        nodes->seats[k] = k;
        LT_TRY(start_agent(nodes, k));
    }
    return LT_OK;
}

/* ---- Telling --------------------------------------------------------------------------------- */

static void tell_end(lt_nodes *nodes, int node, int attempt) {
    const int status = nodes->agents.all[node].status;
    char what[160];
    (void)snprintf(what, sizeof what, "the agent of node %d %s %d%s", node,
                   WIFSIGNALED(status) ? "was ended by signal" : "ended with status",
                   WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status),
                   nodes->all[node].state == LT_NODE_OUT ? "" : ", and is started again");
    lt_log_warn("%s", what);
    lt_events_put(nodes->events, attempt,
                  json_pack("{s:s, s:i, s:s}", "event", "agent", "node", node, "what", what));
}

/* state: "lost", "suspect", "back", "used". spare: the node that takes its seat; -1: none. */
static void tell_state(lt_nodes *nodes, int node, const char *state, int spare, int attempt) {
    lt_events_put(nodes->events, attempt,
                  json_pack("{s:s, s:i, s:s, s:i}", "event", "node", "node", node, "state", state,
                            "spare", spare));
}

/* ---- Agents ---------------------------------------------------------------------------------- */

static bool answers(const lt_nodes *nodes, int node) {
    char path[LT_PATH_BYTES];
    return snprintf(path, sizeof path, "%s/node-%d/agent", nodes->root, node) < LT_PATH_BYTES &&
           lt_file_exists(path);
}

/* A node that was lost: is it back? */
static void try_again(lt_nodes *nodes, int node, int attempt) {
    lt_node *x = &nodes->all[node];
    if (nodes->agents.all[node].runs && answers(nodes, node)) {
        x->state = LT_NODE_SPARE;
        lt_log_info("node %d is back", node);
        tell_state(nodes, node, "back", -1, attempt);
        return;
    }
    if (!nodes->agents.all[node].runs && !x->suspect && nodes->back_s > 0.0 &&
        lt_clock_s() - fmax(x->out_s, x->started_s) > nodes->back_s &&
        start_agent(nodes, node) != LT_OK) {
        lt_log_warn("%s", lt_error_message());
    }
}

void lt_nodes_look(lt_nodes *nodes, int attempt) {
    if (nodes->n == 0) {
        return;
    }
    (void)lt_processes_wait(&nodes->agents, 0);
    for (int k = 0; k < nodes->n; k++) {
        lt_process *p = &nodes->agents.all[k];
        if (p->runs && waitpid(p->pid, &p->status, WNOHANG) == p->pid) {
            p->runs = false;
            nodes->all[k].gone = true;
            tell_end(nodes, k, attempt);
        }
        if (nodes->all[k].state == LT_NODE_OUT) {
            try_again(nodes, k, attempt);
        } else if (!p->runs && lt_clock_s() - nodes->all[k].started_s > AGAIN_S &&
                   start_agent(nodes, k) != LT_OK) {
            lt_log_warn("%s", lt_error_message());
        }
    }
}

void lt_nodes_repair(lt_nodes *nodes) {
    if (nodes->n > 0) {
        lt_memory_repair(nodes->root, nodes->n);
    }
    for (int k = 0; k < nodes->n; k++) {
        nodes->all[k].gone = false;
    }
}

/* ---- Seats ----------------------------------------------------------------------------------- */

int lt_nodes_of_rank(const lt_nodes *nodes, int rank, int n_ranks) {
    int left = rank * nodes->n_seats / n_ranks, seat = 0;
    while (nodes->seats[seat] < 0 || left-- > 0) {
        seat++;
    }
    LT_ASSERT(seat < nodes->n_full);
    return nodes->seats[seat];
}

void lt_nodes_take_out(lt_nodes *nodes, int node, bool suspect, int attempt) {
    lt_node *x = &nodes->all[node];
    lt_process *p = &nodes->agents.all[node];
    char path[LT_PATH_BYTES];
    x->state = LT_NODE_OUT;
    x->suspect = suspect;
    x->out_s = lt_clock_s();
    if (p->runs) {
        (void)kill(-p->pid, SIGKILL);
        p->runs = waitpid(p->pid, &p->status, 0) != p->pid;
    }
    if (snprintf(path, sizeof path, "%s/node-%d", nodes->root, node) < LT_PATH_BYTES &&
        lt_file_remove_tree(path) != LT_OK) {
        lt_log_warn("%s", lt_error_message());
    }
    lt_log_warn("node %d is %s", node, suspect ? "suspect, and is used no more" : "lost");
    tell_state(nodes, node, suspect ? "suspect" : "lost", -1, attempt);
}

static int find_spare(const lt_nodes *nodes) {
    for (int k = 0; k < nodes->n; k++) {
        if (nodes->all[k].state == LT_NODE_SPARE) {
            return k;
        }
    }
    return -1;
}

/* No spare is left, and the run may not shrink. */
static void use_again(lt_nodes *nodes, int seat, int attempt) {
    int node = nodes->seats[seat];
    for (int k = 0; node < 0 && k < nodes->n; k++) { /* The seat was empty. */
        node = nodes->all[k].state == LT_NODE_OUT ? k : -1;
    }
    LT_ASSERT(node >= 0);
    nodes->seats[seat] = node;
    nodes->all[node].state = LT_NODE_USED;
    nodes->all[node].suspect = false;
    lt_log_warn("no spare node is left: node %d is used again", node);
    tell_state(nodes, node, "used", -1, attempt);
    if (!nodes->agents.all[node].runs && start_agent(nodes, node) != LT_OK) {
        lt_log_warn("%s", lt_error_message());
    }
}

static bool is_empty(const lt_nodes *nodes, int seat) {
    return nodes->seats[seat] < 0 || nodes->all[nodes->seats[seat]].state == LT_NODE_OUT;
}

void lt_nodes_seat(lt_nodes *nodes, bool shrink, int attempt) {
    nodes->n_seats = 0;
    for (int i = 0; i < nodes->n_full; i++) {
        const int before = nodes->seats[i], spare = find_spare(nodes);
        const bool last = i == nodes->n_full - 1 && nodes->n_seats == 0;
        if (is_empty(nodes, i) && spare >= 0) {
            nodes->seats[i] = spare;
            nodes->all[spare].state = LT_NODE_USED;
            lt_log_info("the ranks of node %d move to node %d", before >= 0 ? before : i, spare);
            tell_state(nodes, before >= 0 ? before : i, "moved", spare, attempt);
        } else if (is_empty(nodes, i) && (!shrink || last)) {
            use_again(nodes, i, attempt);
        } else if (is_empty(nodes, i)) {
            nodes->seats[i] = -1;
        }
        nodes->n_seats += nodes->seats[i] >= 0;
    }
}

int lt_nodes_seats_ahead(const lt_nodes *nodes) {
    int n = 0;
    for (int i = 0; i < nodes->n_full; i++) {
        n += !is_empty(nodes, i);
    }
    for (int k = 0; k < nodes->n; k++) {
        n += nodes->all[k].state == LT_NODE_SPARE;
    }
    return n < nodes->n_full ? n : nodes->n_full;
}

void lt_nodes_close(lt_nodes *nodes) {
    const double until_s = lt_clock_s() + END_S;
    bool left = nodes->n > 0 && nodes->agents.all != NULL;
    lt_processes_signal(&nodes->agents, SIGTERM);
    while (left) {
        (void)lt_processes_wait(&nodes->agents, 10);
        left = false;
        for (int k = 0; k < nodes->n; k++) {
            lt_process *p = &nodes->agents.all[k];
            p->runs = p->runs && waitpid(p->pid, &p->status, WNOHANG) != p->pid;
            left = left || p->runs;
        }
        if (left && lt_clock_s() > until_s) {
            lt_processes_signal(&nodes->agents, SIGKILL);
        }
    }
    if (nodes->root[0] != '\0' && lt_file_remove_tree(nodes->root) != LT_OK) {
        lt_log_warn("%s", lt_error_message());
    }
    lt_processes_close(&nodes->agents);
    free(nodes->all);
    free(nodes->seats);
    free(nodes->token);
    *nodes = (lt_nodes){.n = 0};
}
