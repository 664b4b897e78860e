/* verb_agent.c: `lateen agent`, which `lateen launch` starts: with --nodes on each node, with
 * --hosts for each rank of another machine and for the snapshots of each machine. */
#include <stdio.h>
#include <stdlib.h>

#include "base/error.h"
#include "base/log.h"
#include "cli/verb.h"
#include "comm/shm.h"
#include "platform/agent/agent.h"
#include "platform/agent/memory.h"
#include "platform/agent/remote.h"

#define AGENT_OPTIONS(X)                                                                           \
    X(STR, memory, "memory", "", 0, 0, "FOLDER", "the run's folder in shared memory")              \
    X(I64, node, "node", "0", 0, 4095, "", "number of this node")                                  \
    X(I64, nodes, "nodes", "1", 1, 4096, "", "number of nodes")                                    \
    X(BOOL, rank, "rank", "false", 0, 0, "",                                                       \
      "start the rank that standard input describes, and end as it does")                          \
    X(BOOL, machine, "machine", "false", 0, 0, "",                                                 \
      "keep the snapshots of the run that standard input describes on this machine")               \
    X(BOOL, sweep, "sweep", "false", 0, 0, "",                                                     \
      "remove snapshots that this user's runs have left in the memory of this machine")

typedef struct {
    AGENT_OPTIONS(LT_OPTION_FIELD)
} agent_options;
#define LT_OPTION_STRUCT agent_options
static const lt_option rows[] = {AGENT_OPTIONS(LT_OPTION_ROW)};
const lt_option_table lt_verb_agent_options = LT_OPTION_TABLE("agent", rows);

static const char usage[] = "agent --memory FOLDER --node K --nodes N | agent --rank | "
                            "agent --machine | agent --sweep";
static const char prose[] =
    "Keep the snapshots of a run in memory: send those that ranks of this node have written to "
    "the\n"
    "agent of the next node, and keep those of the node before. `lateen launch --nodes N` starts\n"
    "one agent a node, and ends it. The environment holds the run's token (LATEEN_TOKEN).\n"
    "With --rank: start a rank of `lateen launch --hosts`, which runs this command on the rank's\n"
    "machine and describes the rank on standard input. When standard input ends, the rank is "
    "killed.\n"
    "With --machine: keep the snapshots of a machine of `lateen launch --hosts`, and send them to\n"
    "the others. When standard input ends, they are removed.\n"
    "With --sweep: a launcher that is killed together with all of its agents leaves snapshots in\n"
    "/dev/shm. Remove them, as the next launcher on this machine does, and as Slurm's epilog may.\n"
    "The snapshots of runs that live are left alone.";

int lt_verb_agent(int argc, char **argv);
int lt_verb_agent(int argc, char **argv) {
    const char *token = getenv(LT_ENV_TOKEN);
    agent_options o;
    int status, n = 0;
    lt_err err;

    if (!lt_verb_parse(&lt_verb_agent_options, &o, argc, argv, usage, prose, NULL, 0, &n,
                       &status)) {
        return status;
    }
    if (o.sweep) {
        const int n_roots = lt_memory_sweep();
        lt_log_info("removed from /dev/shm: snapshots of %d %s", n_roots,
                    n_roots == 1 ? "run" : "runs");
        return LT_EXIT_DONE;
    }
    if (o.rank) {
        err = lt_remote_run(&status);
        return err == LT_OK ? status : lt_verb_fail(err);
    }
    if (o.machine) {
        err = lt_agent_run_machine();
        return err == LT_OK ? LT_EXIT_DONE : lt_verb_fail(err);
    }
    if (o.memory[0] == '\0' || token == NULL || token[0] == '\0' || o.node >= o.nodes) {
        return lt_verb_fail(lt_error_set(
            LT_ERR_ARG,
            "agent needs --memory FOLDER (it is '%s'), --node below --nodes (%lld of %lld), and "
            "the run's LATEEN_TOKEN in the environment (%s)",
            o.memory, (long long)o.node, (long long)o.nodes,
            token == NULL || token[0] == '\0' ? "it is not" : "it is"));
    }
    err = lt_agent_run(&(lt_agent_options){
        .root = o.memory, .token = token, .node = (int)o.node, .n_nodes = (int)o.nodes});
    return err == LT_OK ? LT_EXIT_DONE : lt_verb_fail(err);
}
