/* hosts.h: the machines of `lateen launch --hosts a:4,b:4`, and how their ranks are started.
 *
 * Ranks of this machine ("localhost", or its own name) are processes of the launcher, as they are
 * without --hosts. For each rank of another machine the launcher runs
 *
 *     LOGIN HOST PROGRAM agent --rank         by default: ssh -o BatchMode=yes ... HOST PROGRAM ...
 *
 * and that agent (remote.h) starts the rank there, passes on its output, and ends with its status.
 * So to the launcher a rank of another machine is a process like any other, with these
 * differences:
 *
 *     standard input    begins with a line of JSON that describes the rank, with its environment
 *                       and the run's token, so that no list of processes shows it. Then a line
 *                       "signal N" for each signal to the rank, and "epoch N" when a rank that
 *                       has left its world may open the next one; its end kills the rank
 *     exit status       is the rank's; the store has it, too ("end/R"), with the signal that ended
 *                       it. If the store has none, the connection to the machine was lost
 *     place on the board is written by the launcher, from what the agent tells the store
 *                       ("sight/R")
 *
 * If the machines are nodes (nodes.h), the last ones may be spares, without ranks at first.
 *
 * The program, the working folder, the data and the run folder have the same paths on all machines:
 * they share a file system, as under mpirun. */
#ifndef LT_PLATFORM_HOSTS_H
#define LT_PLATFORM_HOSTS_H

#include "base/file.h"
#include "comm/board.h"
#include "comm/store.h"
#include "platform/agent/environment.h"
#include "platform/agent/process.h"

#define LT_HOSTS_MOST 256
#define LT_LOGIN_MOST 32   /* Words of the login command. */
#define LT_HOSTS_LATE 45.0 /* Seconds: less than ranks wait for each other (launched.c). */
#define LT_LOGIN      "ssh -o BatchMode=yes -o ConnectTimeout=10 -o ServerAliveInterval=5"

typedef struct {
    char name[256];
    int ranks; /* Number of ranks that it has or, as a spare, would have. */
    bool here;
} lt_host;

typedef struct {
    int n; /* Including spares. 0: all ranks are on this machine, and share memory. */
    int n_ranks;
    lt_host all[LT_HOSTS_MOST];
    int *places;                    /* (n_ranks): the machine of each rank. */
    char address[LT_STORE_ADDRESS]; /* The address at which the others reach this machine. */
    char program[LT_PATH_BYTES];
    char login[1024], *login_words[LT_LOGIN_MOST + 1];
    uint64_t *seen; /* (n_ranks): last version read of each sight. */
    double began_s; /* When the attempt began. */
} lt_hosts;

/* text: the machines and the number of ranks of each, "a:4,b:4" (default: one); "": no machines.
 * The last `spares` have no ranks at first. login: the command; words with spaces are in quotes.
 * address: the address of this machine; "": that of the route to the first other machine. */
LT_MUST_USE lt_err lt_hosts_open(lt_hosts *h, const char *text, int spares, const char *login,
                                 const char *address);
void lt_hosts_close(lt_hosts *h); /* Accepts a zeroed struct. */
/* From the next attempt on, this rank runs on this machine. */
void lt_hosts_place(lt_hosts *h, int rank, int host);
/* The machine of a rank; NULL: there are no hosts. */
const lt_host *lt_hosts_of_rank(const lt_hosts *h, int rank);
/* The rank's number among those of its machine, and how many of n_ranks are there; 0 and 0: there
 * are no hosts. */
void lt_hosts_count(const lt_hosts *h, int rank, int n_ranks, int *local, int *locals);
/* Whether the rank is a process of another machine. */
bool lt_hosts_far(const lt_hosts *h, int rank);
/* Start a rank of another machine. */
LT_MUST_USE lt_err lt_hosts_start(const lt_hosts *h, lt_processes *ranks, const lt_environment *e);
/* Let a rank of another machine that has left its world open the world of this epoch. */
void lt_hosts_go_on(const lt_processes *ranks, int rank, uint64_t epoch);
/* Start a machine's agent for snapshots, as process `host` of `agents`; line: what it reads first.
 */
LT_MUST_USE lt_err lt_hosts_start_agent(const lt_hosts *h, int host, const lt_processes *agents,
                                        const char *line);
/* Call it when an attempt begins: the store is then empty. */
void lt_hosts_begin(lt_hosts *h);
/* Copy what the agents have told the store to the board. */
void lt_hosts_look(lt_hosts *h, lt_comm_store_server *store, lt_board *board);
/* If a machine has not started its rank in time, mark the rank as `late`, and its login command as
 * failed with the status of ssh for a machine that cannot be reached. */
void lt_hosts_find_late(const lt_hosts *h, int rank, lt_process *p, double now_s);
/* How a rank has ended, as waitpid would report it. False: it is not known. */
bool lt_hosts_end(lt_comm_store_server *store, int rank, int *status);

#endif
