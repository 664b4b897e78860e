/* nodes.h: the nodes of a launch: the machines of `--hosts`, or parts of this machine that are
 * treated as machines. Each has a share of the ranks, an agent (agent.h) and a part of the run's
 * memory (memory.h). An agent that ends is started again; neither the ranks nor the memory depend
 * on it.
 *
 * SEATS  A run has a seat for each node that it was started on. A node is in one of three states:
 *
 *   USED    it has a seat: ranks run on it
 *   SPARE   it has no seat; its agent runs, and keeps copies of snapshots
 *   OUT     it was lost, or is suspect; nothing runs on it, and its memory is abandoned
 *
 *   USED ── lost, suspect ──▶ OUT ── lost, and back_s later its agent answers ──▶ SPARE
 *     ▲                                                                             │
 *     └──────────────────────── a seat is empty when an attempt begins ─────────────┘
 *
 * Before each attempt, seats whose node is out get a spare. If there is none, the run shrinks: the
 * seat stays empty, and the ranks are spread over the others. If it may not shrink, the node is
 * used again.
 *
 * LOST  A node is lost when its agent and all of its ranks have ended in one attempt. A machine is
 * lost, too, when all of its ranks are silent or cut off, even if the connection to its agent is
 * still open. */
#ifndef LT_PLATFORM_NODES_H
#define LT_PLATFORM_NODES_H

#include "comm/board.h"
#include "platform/agent/agent.h"
#include "platform/agent/events.h"
#include "platform/agent/hosts.h"
#include "platform/agent/process.h"

#define LT_NODES_MOST 128 /* Including spares. */

typedef enum { LT_NODE_USED, LT_NODE_SPARE, LT_NODE_OUT } lt_node_state;

typedef struct {
    lt_node_state state;
    bool gone;                      /* Its agent has ended since the attempt began. */
    bool suspect;                   /* It stays OUT. */
    double started_s;               /* When its agent was last started; */
    double out_s;                   /* when it was taken out. */
    char address[LT_AGENT_ADDRESS]; /* Where a machine's agent listens; "": unknown. */
    bool holds; /* A machine's agent has run since the node was empty: it may hold snapshots. */
} lt_node;

typedef struct {
    int n;         /* Including spares; 0: there are no nodes. */
    int n_full;    /* Number of seats, */
    int n_seats;   /* and those that have a node. */
    int *seats;    /* (n_full): their nodes; -1: empty. */
    lt_node *all;  /* (n) */
    double back_s; /* A lost node is tried again after this time; 0: never. */
    char root[LT_PATH_BYTES];
    lt_processes agents;
    const lt_hosts *hosts; /* The machines that are the nodes; NULL: parts of this one. */
    /* When the agents of machines were last told that this process is alive. */
    double alive_s;
    char *token; /* In the environment of the agents. */
    lt_events *events;
} lt_nodes;

/* Events name an attempt; 0: no attempt. */
typedef struct {
    int n, spares;
    const lt_hosts *hosts; /* n + spares machines; NULL or none: parts of this machine. */
    double back_s;
    const char *path;     /* This program. */
    const sigset_t *mask; /* Signals that the agents handle. */
    const char *token;
    lt_events *events;
} lt_nodes_options;

LT_MUST_USE lt_err lt_nodes_open(lt_nodes *nodes, const lt_nodes_options *o);
/* Pass on the agents' output, start again those that have ended, and try nodes that were lost. */
void lt_nodes_look(lt_nodes *nodes, int attempt);
/* Call it when an attempt begins: redirect links into lost memory to copies. */
void lt_nodes_repair(lt_nodes *nodes);
int lt_nodes_of_rank(const lt_nodes *nodes, int rank, int n_ranks);
/* Whether a node is lost, with the ranks that it had in the attempt. */
bool lt_nodes_is_lost(const lt_nodes *nodes, const lt_processes *ranks, int node);
/* The number of ranks, at most `full`, with which a run of these sizes can continue when `seats` of
 * its seats have a node; 0: it cannot. */
int lt_nodes_ranks_on(const lt_nodes *nodes, int seats, int full, const lt_board_room *room);
/* Take out a lost or suspect node, between two attempts. */
void lt_nodes_take_out(lt_nodes *nodes, int node, bool suspect, int attempt);
/* Give seats without a node to spares. shrink: seats that get none stay empty; otherwise their
 * nodes are used again. The last seat never stays empty. */
void lt_nodes_seat(lt_nodes *nodes, bool shrink, int attempt);
/* Number of seats that would have a node if an attempt began now. */
int lt_nodes_seats_ahead(const lt_nodes *nodes);
/* Ends the agents and frees the memory. Accepts a zeroed struct. */
void lt_nodes_close(lt_nodes *nodes);

#endif
