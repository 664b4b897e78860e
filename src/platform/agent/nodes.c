/* nodes.c: see nodes.h. */
#include "platform/agent/nodes.h"

#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "comm/shm.h"
#include "platform/agent/agent.h"
#include "platform/agent/memory.h"
#include "platform/agent/remote.h"

#define AGAIN_S 1.0  /* Seconds between two starts of an agent. */
#define END_S   2.0  /* Seconds that an agent may take to end. */
#define ALIVE_S 10.0 /* Seconds between two lines which say that the launcher is alive. */
#define NAME    300

extern char **environ;

/* "node 1", or "node 1 (b)". */
static const char *name_of(const lt_nodes *nodes, int node, char out[NAME]) {
    (void)snprintf(out, NAME, "node %d%s%s%s", node, nodes->hosts != NULL ? " (" : "",
                   nodes->hosts != NULL ? nodes->hosts->all[node].name : "",
                   nodes->hosts != NULL ? ")" : "");
    return out;
}

/* ---- Machines -------------------------------------------------------------------------------- */

/* Tell one agent where another one is. */
static void tell_peer(const lt_nodes *nodes, int to, int node) {
    const char *address = nodes->all[node].address;
    if (to != node && nodes->agents.all[to].in > 0) {
        (void)dprintf(nodes->agents.all[to].in, "peer %d %s\n", node,
                      address[0] != '\0' ? address : "-");
    }
}

static void tell_peers(const lt_nodes *nodes, int node) {
    for (int k = 0; nodes->hosts != NULL && k < nodes->n; k++) {
        tell_peer(nodes, k, node);
    }
}

/* Read a line in which a machine's agent says where it listens. */
static bool takes_line(void *of, int node, const char *line) {
    lt_nodes *nodes = of;
    char address[LT_AGENT_ADDRESS];
    if (sscanf(line, "listens %31s", address) != 1) {
        return false;
    }
    memcpy(nodes->all[node].address, address, sizeof address);
    nodes->all[node].holds = true;
    tell_peers(nodes, node);
    for (int k = 0; k < nodes->n; k++) {
        tell_peer(nodes, node, k);
    }
    return true;
}

static void tell_alive(lt_nodes *nodes) {
    if (nodes->hosts == NULL || lt_clock_s() < nodes->alive_s + ALIVE_S) {
        return;
    }
    nodes->alive_s = lt_clock_s();
    for (int k = 0; k < nodes->n; k++) {
        if (nodes->agents.all[k].in > 0) {
            (void)dprintf(nodes->agents.all[k].in, "alive\n");
        }
    }
}

static lt_err start_machine(lt_nodes *nodes, int node) {
    char program[LT_REMOTE_PROGRAM], *text, *line = NULL;
    lt_err err;
    LT_TRY(lt_remote_program(program));
    json_t *j = json_pack("{s:s, s:s, s:s, s:i, s:i, s:s, s:s, s:b}", "version", LT_VERSION,
                          "program", program, "memory", nodes->root, "node", node, "nodes",
                          nodes->n, "token", nodes->token, "launcher", nodes->hosts->address,
                          "keep", nodes->all[node].holds);
    text = j != NULL ? json_dumps(j, JSON_COMPACT) : NULL;
    json_decref(j);
    if (text == NULL || asprintf(&line, "%s\n", text) < 0) {
        free(text);
        LT_FAIL(LT_ERR_OOM, "agent of node %d", node);
    }
    err = lt_hosts_start_agent(nodes->hosts, node, &nodes->agents, line);
    free(line);
    free(text);
    return err;
}

/* ---- Starting -------------------------------------------------------------------------------- */

static lt_err start_part(lt_nodes *nodes, int node) {
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
    environment[0] = token; /* If a name occurs twice, the first value counts. */
    memcpy(environment + 1, environ, n * sizeof *environment);
    nodes->agents.argv = words;
    err = lt_process_start(&nodes->agents, node, environment, NULL);
    nodes->agents.argv = NULL;
    free(environment);
    return err;
}

static lt_err start_agent(lt_nodes *nodes, int node) {
    nodes->all[node].started_s = lt_clock_s();
    nodes->all[node].address[0] = '\0';
    return nodes->hosts != NULL ? start_machine(nodes, node) : start_part(nodes, node);
}

lt_err lt_nodes_open(lt_nodes *nodes, const lt_nodes_options *o) {
    const int n = o->n > 0 ? o->n + o->spares : 0;
    *nodes = (lt_nodes){
        .n = n, .n_full = o->n, .n_seats = o->n, .back_s = o->back_s, .events = o->events};
    nodes->hosts = o->hosts != NULL && o->hosts->n > 0 ? o->hosts : NULL;
    nodes->agents = (lt_processes){.label = "agent ",
                                   .path = o->path,
                                   .mask = *o->mask,
                                   .signals = -1,
                                   .takes = nodes->hosts != NULL ? takes_line : NULL,
                                   .ctx = nodes,
                                   .dies_by = nodes->hosts != NULL ? SIGTERM : LT_AGENT_ORPHANED};
    if (n == 0) {
        return LT_OK;
    }
    if (nodes->hosts == NULL) { /* Blocked until the agent waits for it; it would end it before. */
        (void)sigaddset(&nodes->agents.mask, LT_AGENT_ORPHANED);
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

/* ---- Events ---------------------------------------------------------------------------------- */

static void tell_end(lt_nodes *nodes, int node, int attempt) {
    const int status = nodes->agents.all[node].status;
    char what[NAME + 80], name[NAME];
    (void)snprintf(what, sizeof what, "the agent of %s %s %d%s", name_of(nodes, node, name),
                   WIFSIGNALED(status) ? "was ended by signal" : "ended with status",
                   WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status),
                   nodes->all[node].state == LT_NODE_OUT ? "" : ", and is started again");
    lt_log_warn("%s", what);
    lt_events_put(nodes->events, attempt,
                  json_pack("{s:s, s:i, s:s}", "event", "agent", "node", node, "what", what));
}

/* Record an event. state: "lost", "suspect", "back", "used". spare: the node that gets its seat;
 * -1: none. */
static void tell_state(lt_nodes *nodes, int node, const char *state, int spare, int attempt) {
    lt_events_put(nodes->events, attempt,
                  json_pack("{s:s, s:i, s:s, s:i}", "event", "node", "node", node, "state", state,
                            "spare", spare));
}

/* ---- Agents ---------------------------------------------------------------------------------- */

static bool answers(const lt_nodes *nodes, int node) {
    char path[LT_PATH_BYTES];
    return nodes->hosts != NULL ? nodes->all[node].address[0] != '\0'
                                : snprintf(path, sizeof path, "%s/node-%d/agent", nodes->root,
                                           node) < LT_PATH_BYTES &&
                                      lt_file_exists(path);
}

/* Check whether a lost node is back. */
static void try_again(lt_nodes *nodes, int node, int attempt) {
    lt_node *x = &nodes->all[node];
    char name[NAME];
    if (nodes->agents.all[node].runs && answers(nodes, node)) {
        x->state = LT_NODE_SPARE;
        lt_log_info("%s is back", name_of(nodes, node, name));
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
    tell_alive(nodes);
    for (int k = 0; k < nodes->n; k++) {
        lt_process *p = &nodes->agents.all[k];
        if (p->runs && waitpid(p->pid, &p->status, WNOHANG) == p->pid) {
            p->runs = false;
            nodes->all[k].gone = true;
            nodes->all[k].address[0] = '\0';
            tell_peers(nodes, k);
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
    if (nodes->n > 0 && nodes->hosts == NULL) { /* Machines repair their own links: memory.h. */
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

bool lt_nodes_is_lost(const lt_nodes *nodes, const lt_processes *ranks, int node) {
    const lt_node *x = &nodes->all[node];
    bool all = true, apart = nodes->hosts != NULL;
    for (int r = 0; r < ranks->n; r++) {
        if (lt_nodes_of_rank(nodes, r, ranks->n) == node) {
            all = all && ranks->all[r].lost;
            apart = apart && (ranks->all[r].silent || ranks->all[r].cut);
        }
    }
    return all && (x->gone || apart);
}

int lt_nodes_ranks_on(const lt_nodes *nodes, int seats, int full, const lt_board_room *room) {
    const int each = room->dp > 0 ? full / room->dp : 0; /* Ranks of a replica. */
    int dp;
    if (seats == nodes->n_full) {
        return full;
    }
    dp = each > 0 ? full * seats / nodes->n_full / each : 0;
    while (dp > 0 && room->rows % dp != 0) {
        dp--;
    }
    return dp >= room->least ? dp * each : 0;
}

void lt_nodes_take_out(lt_nodes *nodes, int node, bool suspect, int attempt) {
    lt_node *x = &nodes->all[node];
    lt_process *p = &nodes->agents.all[node];
    char path[LT_PATH_BYTES], name[NAME];
    x->state = LT_NODE_OUT;
    x->suspect = suspect;
    x->holds = false;
    x->address[0] = '\0';
    tell_peers(nodes, node);
    x->out_s = lt_clock_s();
    if (p->runs) {
        (void)kill(-p->pid, SIGKILL);
        p->runs = waitpid(p->pid, &p->status, 0) != p->pid;
    }
    if (snprintf(path, sizeof path, "%s/node-%d", nodes->root, node) < LT_PATH_BYTES &&
        lt_file_remove_tree(path) != LT_OK) {
        lt_log_warn("%s", lt_error_message());
    }
    lt_log_warn("%s is %s", name_of(nodes, node, name),
                suspect ? "suspect, and is no longer used" : "lost");
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

/* Use a node again, because no spare is left and the run may not shrink. */
static void use_again(lt_nodes *nodes, int seat, int attempt) {
    int node = nodes->seats[seat];
    char name[NAME];
    for (int k = 0; node < 0 && k < nodes->n; k++) { /* The seat was empty. */
        node = nodes->all[k].state == LT_NODE_OUT ? k : -1;
    }
    LT_ASSERT(node >= 0);
    nodes->seats[seat] = node;
    nodes->all[node].state = LT_NODE_USED;
    nodes->all[node].suspect = false;
    lt_log_warn("no spare node is left: %s is used again", name_of(nodes, node, name));
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
        char from[NAME], to[NAME];
        if (is_empty(nodes, i) && spare >= 0) {
            nodes->seats[i] = spare;
            nodes->all[spare].state = LT_NODE_USED;
            if (before >= 0) {
                lt_log_info("the ranks of %s move to %s", name_of(nodes, before, from),
                            name_of(nodes, spare, to));
                tell_state(nodes, before, "moved", spare, attempt);
            } else { /* The run had shrunk. */
                lt_log_info("%s takes the ranks that were left out", name_of(nodes, spare, to));
                tell_state(nodes, spare, "used", -1, attempt);
            }
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
