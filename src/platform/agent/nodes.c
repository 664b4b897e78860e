/* nodes.c: see nodes.h. */
#include "platform/agent/nodes.h"

#include <errno.h>
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
    err = lt_process_start(&nodes->agents, node, environment);
    nodes->agents.argv = NULL;
    nodes->started_s[node] = lt_clock_s();
    free(environment);
    return err;
}

lt_err lt_nodes_open(lt_nodes *nodes, int n, const char *path, const sigset_t *mask,
                     const char *token, lt_events *events) {
    *nodes = (lt_nodes){.n = n, .events = events};
    nodes->agents = (lt_processes){
        .label = "agent ", .path = path, .mask = *mask, .signals = -1, .dies_by = SIGTERM};
    if (n == 0) {
        return LT_OK;
    }
    LT_TRY(lt_processes_open(&nodes->agents, n));
    nodes->started_s = calloc((size_t)n, sizeof *nodes->started_s);
    nodes->token = strdup(token);
    if (nodes->started_s == NULL || nodes->token == NULL) {
        LT_FAIL(LT_ERR_OOM, "%d nodes", n);
    }
    LT_TRY(lt_memory_make(nodes->root, n));
    for (int k = 0; k < n; k++) {
        LT_TRY(start_agent(nodes, k));
    }
    return LT_OK;
}

static void tell_end(lt_nodes *nodes, int node, int attempt) {
    const int status = nodes->agents.all[node].status;
    char what[160];
    (void)snprintf(what, sizeof what, "the agent of node %d %s %d, and is started again", node,
                   WIFSIGNALED(status) ? "was ended by signal" : "ended with status",
                   WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
    lt_log_warn("%s", what);
    lt_events_put(nodes->events, attempt,
                  json_pack("{s:s, s:i, s:s}", "event", "agent", "node", node, "what", what));
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
            tell_end(nodes, k, attempt);
        }
        if (!p->runs && lt_clock_s() - nodes->started_s[k] > AGAIN_S &&
            start_agent(nodes, k) != LT_OK) {
            lt_log_warn("%s", lt_error_message());
        }
    }
}

void lt_nodes_repair(const lt_nodes *nodes) {
    if (nodes->n > 0) {
        lt_memory_repair(nodes->root, nodes->n);
    }
}

int lt_nodes_of_rank(const lt_nodes *nodes, int rank, int n_ranks) {
    return rank * nodes->n / n_ranks;
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
    free(nodes->started_s);
    free(nodes->token);
    *nodes = (lt_nodes){.n = 0};
}
