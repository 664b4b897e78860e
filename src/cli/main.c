/* main.c: `lateen <verb>`: finds the verb in the table and runs it. */
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/thread.h"
#include "cli/verb.h"
#include "cli/verbs.h"

static void print_help(void) {
    printf("usage: lateen [--verbose] [--log-json] <verb> [options]\n\n"
           "The whole life of a language model in one program.\n\nverbs:\n");
    for (size_t i = 0; i < lt_n_verbs; i++) {
        printf("  %-12s %s\n", lt_verbs[i].name, lt_verbs[i].summary);
    }
    printf(
        "\n`lateen <verb> --help` or `lateen help <verb>` explains one; `lateen --version` prints "
        "the "
        "version.\n"
        "--verbose, before the verb or among its options, prints debugging messages and, when a\n"
        "command fails, where in the source the failure arose and which calls passed it on.\n"
        "--log-json, likewise, makes every message a line of JSON with run, attempt, rank and "
        "step.\n");
}

static int unknown_verb(const char *word) {
    const char *names[LT_MAX_VERBS];
    const char *nearest;
    for (size_t i = 0; i < lt_n_verbs; i++) {
        names[i] = lt_verbs[i].name;
    }
    nearest = lt_name_nearest(word, names, lt_n_verbs);
    fprintf(stderr, "lateen: unknown verb '%s'%s%s%s; `lateen help` lists all verbs\n", word,
            nearest != NULL ? " (did you mean '" : "", nearest != NULL ? nearest : "",
            nearest != NULL ? "'?)" : "");
    return LT_EXIT_USAGE;
}

/* libgomp counts the cores that the process may run on, but ignores the quota of a control group.
 * With more threads than the quota allows, the kernel would stop all of them for most of each
 * period, in the middle of a parallel region. Returns true when it has changed the environment. */
static bool bound_threads(void) {
    lt_limits l;
    char n[16];
    if (getenv("OMP_NUM_THREADS") != NULL) {
        return false;
    }
    lt_limits_read(&l);
    snprintf(n, sizeof n, "%d", l.n_cpus);
    return l.n_cpus < lt_thread_count() && setenv("OMP_NUM_THREADS", n, 1) == 0;
}

/* By default libgomp spins some 15 ms at the end of a parallel region before it sleeps. On a
 * machine with other work this wastes whole time slices: a token of 1.5 ms took 40 to 1,500 ms.
 * With 4,000 turns it spins 0.1 to 0.2 ms, which is longer than an op waits for its threads or for
 * its serial part. libgomp reads its environment before main, so the program starts itself
 * again. */
static bool bound_spinning(void) {
    return getenv("OMP_WAIT_POLICY") == NULL && getenv("GOMP_SPINCOUNT") == NULL &&
           setenv("GOMP_SPINCOUNT", "4000", 1) == 0;
}

static void prepare_openmp(char **argv) {
    const bool threads = bound_threads(), spinning = bound_spinning();
    if (threads || spinning) {
        (void)execv("/proc/self/exe", argv); /* If this fails, the program continues without it. */
    }
}

/* `whole` is the original command line, for a second start. */
static int run(int argc, char **argv, char **whole) {
    static char help[] = "--help";

    if (argc < 2) {
        print_help();
        return LT_EXIT_USAGE;
    }
    if (strcmp(argv[1], "help") == 0 && argc > 2) { /* help VERB is VERB --help. */
        memmove(argv + 1, argv + 2, (size_t)(argc - 2) * sizeof *argv);
        argv[argc - 1] = help;
    } else if (strcmp(argv[1], help) == 0 || strcmp(argv[1], "-h") == 0 ||
               strcmp(argv[1], "help") == 0) {
        print_help();
        return LT_EXIT_DONE;
    }
    if (strcmp(argv[1], "--version") == 0) {
        printf("lateen %s\n", lt_version());
        return LT_EXIT_DONE;
    }
    for (size_t i = 0; i < lt_n_verbs; i++) {
        if (strcmp(argv[1], lt_verbs[i].name) == 0) {
            /* The launcher does not do it, but its ranks do, with their share. */
            if (strcmp(argv[1], "launch") != 0) {
                prepare_openmp(whole);
            }
            return lt_verbs[i].run(argc - 1, argv + 1);
        }
    }
    return unknown_verb(argv[1]);
}

/* If output did not reach its file (full disk, closed descriptor), the verb has failed. */
int main(int argc, char **argv) {
    int skip = 0, status;
    bool flushed;

    for (; argc > skip + 1; skip++) {
        if (strcmp(argv[skip + 1], "--verbose") == 0) {
            lt_log_set_level(LT_LOG_DEBUG);
        } else if (strcmp(argv[skip + 1], "--log-json") == 0) {
            lt_log_set_json();
        } else {
            break;
        }
    }
    status = run(argc - skip, argv + skip, argv);
    flushed = fflush(stdout) == 0;
    if ((!flushed || ferror(stdout) != 0) && status == LT_EXIT_DONE) {
        fprintf(stderr, "lateen: standard output: %s\n",
                flushed ? "not all of it could be written" : strerror(errno));
        return LT_EXIT_FAILED;
    }
    return status;
}
