/* verb_launch.c: `lateen launch --ranks N VERB ...`: runs any verb as several ranks on one machine
 * or, with --hosts, on several. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/log.h"
#include "cli/verb.h"
#include "platform/agent/launch.h"

#define LAUNCH_OPTIONS(X)                                                                          \
    X(I64, ranks, "ranks", "2", 1, 256, "ranks", "how many processes to start")                    \
    X(STR, hosts, "hosts", "", 0, 0, "HOST:RANKS,...",                                             \
      "machines and how many ranks each has, instead of --ranks on this one")                      \
    X(STR, login, "login", "", 0, 0, "COMMAND",                                                    \
      "command that runs another one on a machine: the machine's name and the words to run are "   \
      "appended; put words with spaces in quotes; empty: ssh, without questions")                  \
    X(STR, address, "address", "", 0, 0, "IPv4",                                                   \
      "address at which the other machines reach this one; empty: that of the route to them")      \
    X(I64, retries, "retries", "0", 0, 1e6, "",                                                    \
      "how often all ranks are started again after one has failed; a fault of hardware does not "  \
      "count")                                                                                     \
    X(F64, grace, "grace", "10", 0, 1e5, "s",                                                      \
      "how long the others may take to end when a rank has failed; then they are killed")          \
    X(F64, beat, "beat", "1", 0, 1e4, "s", "time between two heartbeats of a rank; 0: none")       \
    X(F64, silent, "silent", "30", 0, 1e6, "s",                                                    \
      "time without a heartbeat after which a rank has "                                           \
      "failed; 0: never")                                                                          \
    X(F64, hang, "hang", "0", 0, 1e6, "s",                                                         \
      "time without a new step of a training after which it has failed; 0: never")                 \
    X(BOOL, keep, "keep", "false", 0, 0, "",                                                       \
      "ranks that survive a fault do not end: they load the newest state again, and only those "   \
      "that are missing start")                                                                    \
    X(BOOL, requeue, "requeue", "false", 0, 0, "",                                                 \
      "put Slurm's job back in the queue when hardware fails and a retry here brings no new step") \
    X(I64, nodes, "nodes", "0", 0, 64, "nodes",                                                    \
      "keep snapshots of a training in memory, with an agent for each of this many parts of this " \
      "machine, or, with --hosts, on each machine that is not spare; 0: none")                     \
    X(I64, spares, "spares", "0", 0, 64, "nodes",                                                  \
      "further nodes, to which the ranks of a node move that is lost or suspect; with "            \
      "--hosts, the last machines")                                                                \
    X(BOOL, shrink, "shrink", "false", 0, 0, "",                                                   \
      "without a spare node, continue with fewer replicas of the model and the same rows a step; " \
      "grow again when the node is back")                                                          \
    X(F64, back, "back", "60", 0, 1e6, "s",                                                        \
      "how long after its loss a node is tried again; 0: never")                                   \
    X(I64, snapshot, "snapshot", "0", 0, 1e9, "steps",                                             \
      "steps between two snapshots; 0: by Daly's formula, from what one costs")                    \
    X(F64, mtbf, "mtbf", "28800", 1, 1e9, "s", "expected time between faults, for that formula")   \
    X(BOOL, plain, "plain", "false", 0, 0, "", "print lines of output without their rank")

typedef struct {
    LAUNCH_OPTIONS(LT_OPTION_FIELD)
} launch_options;
#define LT_OPTION_STRUCT launch_options
static const lt_option rows[] = {LAUNCH_OPTIONS(LT_OPTION_ROW)};
const lt_option_table lt_verb_launch_options = LT_OPTION_TABLE("launch", rows);

static const char usage[] = "launch [--ranks N | --hosts A:N,B:N] [--retries N] VERB [options]";
static const char prose[] =
    "Start `lateen VERB options` as N ranks of one run on this machine: processes that exchange\n"
    "messages through shared memory. When a rank fails, the others are told which one and why,\n"
    "and end. With --retries a run of training resumes from its newest checkpoint, and "
    "OUT/events.jsonl\n"
    "records what happened. Options of launch come before VERB.\n"
    "With --hosts the ranks are on several machines, which ssh reaches without a password; they\n"
    "exchange messages by TCP, and find program, data and run folder at the same paths. mpirun\n"
    "and srun start the same programs as ranks, too.\n"
    "Exit status: 0 finished, 75 stopped with everything saved, or (--requeue) hardware failed "
    "and\n"
    "the same command continues elsewhere, 76 a rank was killed, stopped\n"
    "answering or failed because of another one; otherwise the status of the first rank that\n"
    "failed.";

/* Whether this flag has no value in the next word. */
static bool is_alone(const char *flag) {
    const lt_option *row = strncmp(flag, "--", 2) == 0
                               ? lt_option_find(&lt_verb_launch_options, flag + 2)
                               : NULL;
    return strchr(flag, '=') != NULL || strcmp(flag, "--help") == 0 || strcmp(flag, "-h") == 0 ||
           strcmp(flag, "--verbose") == 0 || strcmp(flag, "--log-json") == 0 ||
           (row != NULL && row->type == LT_OPTION_BOOL);
}

/* The word with which the ranks' own command begins. */
static int verb_at(int argc, char **argv) {
    int i = 1;
    while (i < argc && argv[i][0] == '-') {
        i += is_alone(argv[i]) ? 1 : 2;
    }
    return i < argc ? i : argc;
}

/* A job that Slurm has restarted has a new number. */
static uint32_t attempt(void) {
    const char *text = getenv("SLURM_RESTART_COUNT");
    const long n = text != NULL ? atol(text) : 0;
    return n > 0 ? (uint32_t)n : 0;
}

/* The launcher reads these signals. They stay blocked after it has ended, so that a late signal
 * does not replace the exit status. */
static void block_signals(void) {
    const int numbers[] = {SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGUSR2, SIGXCPU};
    sigset_t set;
    (void)sigemptyset(&set);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        (void)sigaddset(&set, numbers[i]);
    }
    (void)sigprocmask(SIG_BLOCK, &set, NULL);
}

/* Whether this flag is one of the first n words. Its value may equal the default. */
static bool is_given(const char *flag, int n, char **argv) {
    const size_t bytes = strlen(flag);
    for (int i = 1; i < n; i++) {
        if (strncmp(argv[i], flag, bytes) == 0 && (argv[i][bytes] == '=' || argv[i][bytes] == 0)) {
            return true;
        }
    }
    return false;
}

/* `launch train --ranks 4`: train has no options of these names, so the launcher's are meant. */
static lt_err check_place(int n, char **words) {
    char name[LT_OPTION_STR_BYTES];
    if (n < 1 || strcmp(words[0], "train") != 0) {
        return LT_OK;
    }
    for (int i = 1; i < n; i++) {
        const size_t bytes = strncmp(words[i], "--", 2) == 0 ? strcspn(words[i] + 2, "=") : 0;
        if (bytes == 0 || bytes >= sizeof name) {
            continue;
        }
        (void)snprintf(name, sizeof name, "%.*s", (int)bytes, words[i] + 2);
        if (lt_option_find(&lt_verb_launch_options, name) != NULL) {
            LT_FAIL(LT_ERR_ARG,
                    "--%s is an option of launch and must stand before the verb: lateen launch "
                    "--%s ... %s",
                    name, name, words[0]);
        }
    }
    return LT_OK;
}

static lt_err check_idle(const launch_options *o, bool ranks, bool hosts) {
    const bool nodes = o->nodes > 0 || (o->hosts[0] != '\0' && (o->spares > 0 || o->shrink));
    const lt_verb_use uses[] = {
        {"snapshot", nodes, "--nodes"},
        {"mtbf", nodes && o->snapshot == 0, "--nodes and --snapshot 0"},
        {"back", o->spares > 0 || o->shrink, "--spares or --shrink"},
        {"silent", o->beat > 0.0, "--beat"},
        {"login", o->hosts[0] != '\0', "--hosts"},
        {"address", o->hosts[0] != '\0', "--hosts"},
    };
    if (hosts && o->hosts[0] == '\0') {
        LT_FAIL(LT_ERR_ARG, "--hosts '' names no machine; --ranks starts ranks on this one");
    }
    if (o->hosts[0] != '\0' && ranks) {
        LT_FAIL(LT_ERR_ARG, "--ranks %lld beside --hosts %s, which says how many ranks each has",
                (long long)o->ranks, o->hosts);
    }
    /* A single late beat must not count as a failure. */
    if (o->silent > 0.0 && o->silent < 2.0 * o->beat) {
        LT_FAIL(LT_ERR_ARG,
                "--silent %g is less than two heartbeats of --beat %g s: ranks that are alive "
                "would count as silent",
                o->silent, o->beat);
    }
    return lt_verb_idle(&lt_verb_launch_options, o, uses, sizeof uses / sizeof *uses);
}

/* Append a flag to the words of the ranks, unless the user has given it to them. */
static void add_flag(char **words, const char *flag) {
    int n = 0;
    while (words[n] != NULL && strcmp(words[n], flag) != 0) {
        n++;
    }
    words[n] = (char *)(uintptr_t)flag;
}

int lt_verb_launch(int argc, char **argv);
int lt_verb_launch(int argc, char **argv) {
    const int at = verb_at(argc, argv);
    const bool ranks = is_given("--ranks", at, argv), hosts = is_given("--hosts", at, argv);
    launch_options o;
    lt_launch_options launch;
    char **words;
    int status, n = 0;
    lt_err err;

    if (!lt_verb_parse(&lt_verb_launch_options, &o, at, argv, usage, prose, NULL, 0, &n, &status)) {
        return status;
    }
    if (at == argc) {
        (void)fprintf(stderr, "lateen: launch: no verb to start\nusage: lateen %s\n", usage);
        return LT_EXIT_USAGE;
    }
    err = check_place(argc - at, argv + at);
    err = err == LT_OK ? check_idle(&o, ranks, hosts) : err;
    if (err != LT_OK) {
        return lt_verb_fail(err);
    }
    words = calloc((size_t)(argc - at) + 4, sizeof *words);
    if (words == NULL) {
        return lt_verb_fail(lt_error_set(LT_ERR_OOM, "command line"));
    }
    words[0] = (char *)(uintptr_t) "lateen";
    memcpy(words + 1, argv + at, (size_t)(argc - at) * sizeof *words);
    /* What holds for the launcher's messages holds for those of its ranks. */
    if (lt_log_is_json()) {
        add_flag(words, "--log-json");
    }
    if (lt_log_shows(LT_LOG_DEBUG)) {
        add_flag(words, "--verbose");
    }
    launch = (lt_launch_options){.n_ranks = (int)o.ranks,
                                 .hosts = o.hosts,
                                 .login = o.login,
                                 .address = o.address,
                                 .retries = (int)o.retries,
                                 .hang_s = o.hang,
                                 .keep = o.keep,
                                 .requeue = o.requeue,
                                 .n_nodes = (int)o.nodes,
                                 .spares = (int)o.spares,
                                 .shrink = o.shrink,
                                 .back_s = o.back,
                                 .snapshot = o.snapshot,
                                 .mtbf_s = o.mtbf,
                                 .grace_s = o.grace,
                                 .beat_s = o.silent > 0.0 ? o.beat : 0.0,
                                 .silent_s = o.silent,
                                 .plain = o.plain || lt_log_is_json(),
                                 .attempt = attempt()};
    block_signals();
    err = lt_launch(&launch, "/proc/self/exe", words, &status);
    free(words);
    return err == LT_OK ? status : lt_verb_fail(err);
}
