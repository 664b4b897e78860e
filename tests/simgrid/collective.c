/* collective.c: the planner's collective model against SimGrid, message by message.
 *
 * Each rank of a collective is an actor that sends and receives real (simulated) messages over a
 * fat tree or a dragonfly; the time of the last actor is compared with lt_plan_collective_s of a
 * cluster with the same bandwidth, latency and oversubscription. Links are split-duplex and the
 * network model is CM02 without correction factors, so that the two describe one machine. Prints
 * TAP. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <simgrid/actor.h>
#include <simgrid/comm.h>
#include <simgrid/engine.h>
#include <simgrid/host.h>
#include <simgrid/mailbox.h>

#include "lateen/plan.h"

typedef struct {
    const char *name, *topology, *shape;
    int ranks;
    lt_plan_verb verb;
    double bytes;
    int tier_gpus; /* Under one leaf switch; 0: full bisection. */
    double oversub, tolerance;
    /* SimGrid 3.32's dragonfly shares a link's two directions: two hosts that exchange get half
     * each. */
    double duplex;
} test_case;

static const test_case cases[] = {
    {"ring all-gather, 64 ranks, fat tree", "FAT_TREE", "2;8,8;1,8;1,1", 64, LT_PLAN_ALL_GATHER,
     1e9, 0, 1, 0.10, 1},
    {"ring all-gather, 256 ranks, fat tree 4:1", "FAT_TREE", "2;16,16;1,4;1,1", 256,
     LT_PLAN_ALL_GATHER, 4e9, 16, 4, 0.10, 1},
    {"ring all-gather, 1024 ranks, fat tree", "FAT_TREE", "2;32,32;1,32;1,1", 1024,
     LT_PLAN_ALL_GATHER, 16e9, 0, 1, 0.10, 1},
    {"ring all-gather, 256 ranks, dragonfly", "DRAGONFLY", "4,1;4,1;4,1;4", 256, LT_PLAN_ALL_GATHER,
     4e9, 0, 1, 0.10, 0.5},
    {"all-to-all, 64 ranks, fat tree", "FAT_TREE", "2;8,8;1,8;1,1", 64, LT_PLAN_ALL_TO_ALL, 64e6, 0,
     1, 0.20, 1},
    {"all-to-all, 64 ranks, fat tree 4:1", "FAT_TREE", "2;8,8;1,2;1,1", 64, LT_PLAN_ALL_TO_ALL,
     64e6, 8, 4, 0.20, 1},
};

static const double bandwidth = 50e9, hop_latency = 0.25e-6;
static const test_case *now;
static double last_end;

static sg_mailbox_t box(int to, int tag) {
    char name[64];
    snprintf(name, sizeof name, "%d-%d", to, tag);
    return sg_mailbox_by_name(name);
}

static int token; /* Payload: only sizes matter. */

static void ring(int rank) {
    const int n = now->ranks, right = (rank + 1) % n;
    for (int step = 0; step < n - 1; step++) {
        sg_comm_t send = sg_mailbox_put_async(box(right, 0), &token, (long)(now->bytes / n));
        sg_mailbox_get(box(rank, 0));
        sg_comm_wait(send);
    }
}

static void all_to_all(int rank) {
    const int n = now->ranks;
    /* Shifted: every step is a permutation, as NCCL schedules it. */
    for (int step = 1; step < n; step++) {
        sg_comm_t send = sg_mailbox_put_async(box((rank + step) % n, step), &token,
                                              (long)(now->bytes / n));
        sg_mailbox_get(box(rank, step));
        sg_comm_wait(send);
    }
}

static void actor(int argc, char **argv) {
    (void)argc;
    const int rank = atoi(argv[1]);
    (now->verb == LT_PLAN_ALL_TO_ALL ? all_to_all : ring)(rank);
    last_end = fmax(last_end, simgrid_get_clock());
}

static double simulate(const test_case *t) {
    char path[] = "/tmp/lateen_simgridXXXXXX.xml", name[64], text[16];
    static char arg0[] = "collective", arg1[] = "--cfg=network/model:CM02",
                arg2[] = "--cfg=network/crosstraffic:0", arg3[] = "--log=root.thresh:error";
    static char *argv[] = {arg0, arg1, arg2, arg3, NULL};
    int argc = 4;
    const int fd = mkstemps(path, 4);
    FILE *f = fd >= 0 ? fdopen(fd, "w") : NULL;
    if (f == NULL) {
        return NAN;
    }
    fprintf(f,
            "<?xml version='1.0'?><!DOCTYPE platform SYSTEM "
            "\"https://simgrid.org/simgrid.dtd\"><platform version=\"4.1\">"
            "<cluster id=\"c\" prefix=\"r\" radical=\"0-%d\" suffix=\"\" speed=\"1Gf\" "
            "bw=\"%gBps\" lat=\"%gs\" sharing_policy=\"SPLITDUPLEX\" "
            "topology=\"%s\" topo_parameters=\"%s\"/></platform>",
            t->ranks - 1, bandwidth, hop_latency, t->topology, t->shape);
    fclose(f);
    now = t;
    simgrid_init(&argc, argv);
    simgrid_load_platform(path);
    for (int i = 0; i < t->ranks; i++) {
        char *args[] = {name, text};
        snprintf(name, sizeof name, "r%d", i);
        snprintf(text, sizeof text, "%d", i);
        sg_actor_create(name, sg_host_by_name(name), actor, 2, args);
    }
    simgrid_run();
    unlink(path);
    return last_end;
}

static double predict(const test_case *t) {
    lt_plan_gpu gpu = {.name = "one", .link_gbps = 1e6, .node_gpus = 1, .domain_gpus = 1, .sms = 1};
    lt_plan_stack stack = {.network = 1.0};
    lt_plan_cluster c;
    lt_plan_cluster_plain(&c, &gpu, &stack, t->ranks);
    c.nic_gbps = bandwidth / 1e9 * t->duplex;
    c.latency_us = 4e6 * hop_latency;
    if (t->tier_gpus > 0) {
        c.n_tiers = 1;
        c.tier[0].gpus = t->tier_gpus;
        c.tier[0].oversub = t->oversub;
        c.tier[0].latency_us = c.latency_us;
    }
    return lt_plan_collective_s(&c, t->verb, t->bytes, t->ranks, 1);
}

static int run_case(int i) {
    const test_case *t = &cases[i];
    const double simulated = simulate(t), ours = predict(t);
    const int ok = fabs(ours / simulated - 1.0) <= t->tolerance;
    printf("%s %d - %s: SimGrid %.3f ms, planner %.3f ms (%+.1f %%)\n", ok ? "ok" : "not ok", i + 1,
           t->name, 1e3 * simulated, 1e3 * ours, 100.0 * (ours / simulated - 1.0));
    fflush(stdout);
    return ok ? 0 : 1;
}

int main(void) {
    const int n = (int)(sizeof cases / sizeof *cases);
    int failed = 0;
    for (int i = 0; i < n; i++) { /* SimGrid can start once per process. */
        int status = 1;
        const pid_t child = fork();
        if (child == 0) {
            exit(run_case(i));
        }
        waitpid(child, &status, 0);
        if (!WIFEXITED(status)) {
            printf("not ok %d - %s: SimGrid died\n", i + 1, cases[i].name);
        }
        failed += status != 0;
    }
    printf("1..%d\n", n);
    return failed > 0;
}
