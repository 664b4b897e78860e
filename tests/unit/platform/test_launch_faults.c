/* What a launcher does when it is asked to stop, when hardware fails, and when a node is lost, as
 * launch.h, controller.h and nodes.h specify. The test program is its own rank and its own agent;
 * scontrol is a script of this test. */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "comm/board.h"
#include "comm/shm.h"
#include "lateen/comm.h"
#include "platform/agent/agent.h"
#include "platform/agent/launch.h"
#include "platform/agent/memory.h"
#include "unit/scratch_folder.h"

#define ENV_FOLDER "LATEEN_TEST_FOLDER" /* The scratch folder, for ranks and agents. */
#define MOST_S     30.0

static void path_of(char path[LT_PATH_BYTES], const char *name, int number) {
    (void)snprintf(path, LT_PATH_BYTES, "%s/%s-%d", getenv(ENV_FOLDER), name, number);
}

static void put(const char *name, int number, const char *text) {
    char path[LT_PATH_BYTES];
    path_of(path, name, number);
    (void)!lt_file_write_atomic(path, text, strlen(text));
}

static void put_number(const char *name, int number, int value) {
    char text[32];
    (void)snprintf(text, sizeof text, "%d", value);
    put(name, number, text);
}

/* The number in a file, which is waited for. */
static int number_in(const char *name, int number) {
    const double until_s = lt_clock_s() + MOST_S;
    char path[LT_PATH_BYTES], *text = NULL;
    int value;
    path_of(path, name, number);
    while (lt_file_read(&text, NULL, path, 64) != LT_OK) {
        if (lt_clock_s() > until_s) {
            return -1;
        }
        (void)usleep(5000);
    }
    value = atoi(text);
    free(text);
    return value;
}

/* ---- A rank, an agent ------------------------------------------------------------------------ */

static volatile sig_atomic_t stopped;

static void on_term(int number) {
    stopped = number;
}

static void train_until_term(lt_board *b) {
    (void)signal(SIGTERM, on_term);
    lt_board_phase(b, LT_PHASE_STEPPED);
    for (int64_t step = 6; stopped == 0; step++) {
        lt_board_step(b, step);
        (void)usleep(20000);
    }
}

/* Node 1 has ranks 2 and 3. */
static void lose_node(lt_board *b, int rank) {
    if (rank == 0) {
        lt_board_sizes(b, 4, 1, 8);
    }
    lt_board_step(b, 5);
    put_number("ready", rank, (int)getpid());
    for (int r = 0; r < 4; r++) {
        (void)number_in("ready", r);
    }
    if (rank == 2) {
        (void)kill(number_in("agent", 1), SIGKILL);
    }
    if (rank >= 2) {
        (void)raise(SIGKILL);
    }
    (void)sleep(60);
}

/* Rank 1 dies; the others leave the world, and wait for the next one. */
static int keep(lt_board *b, int rank) {
    const uint64_t epoch = lt_board_epoch(b);
    const double until_s = lt_clock_s() + MOST_S;
    if (rank == 1) {
        (void)raise(SIGKILL);
    }
    if (!lt_board_leave(b)) {
        return 3;
    }
    while (lt_board_epoch(b) == epoch && lt_clock_s() < until_s) {
        (void)usleep(5000);
    }
    put_number("kept", rank, (int)getpid());
    return 0;
}

/* Returns the status with which the rank ends. */
static int first_attempt(lt_board *b, const char *how, int rank) {
    lt_comm *c = NULL;
    if (strcmp(how, "node") == 0 || strcmp(how, "shrinks") == 0) {
        lose_node(b, rank);
    }
    if (strcmp(how, "silent") == 0) {
        if (lt_comm_open(&c, NULL) != LT_OK) {
            return 3;
        }
        (void)usleep(300000);
        lt_board_step(b, 5);
        if (rank == 1) {
            (void)raise(SIGSTOP);
        }
        (void)sleep(60);
    }
    lt_board_step(b, 5);
    put_number("ready", rank, (int)getpid());
    for (int r = 0; r < atoi(getenv(LT_ENV_RANKS)); r++) {
        (void)number_in("ready", r);
    }
    if (strcmp(how, "wrong") == 0) {
        return LT_RANK_CORRUPT;
    }
    if (strcmp(how, "keeps") == 0) {
        return keep(b, rank);
    }
    if (strcmp(how, "suspect") == 0 && rank == 3) {
        lt_board_suspect(b, 5);
        return LT_RANK_CORRUPT;
    }
    if (strcmp(how, "device") == 0 && rank == 3) {
        return LT_RANK_DEVICE;
    }
    (void)sleep(60);
    return 0;
}

static int play(lt_board *b, const char *how, int rank) {
    const int attempt = (int)(strtoull(getenv(LT_ENV_EPOCH), NULL, 10) & 0xffffffffu);
    const char *node = getenv(LT_ENV_NODE);
    char name[32];
    if (rank == 0) {
        lt_board_folder(b, getenv(ENV_FOLDER));
    }
    if (strcmp(how, "deaf") == 0) {
        (void)signal(SIGINT, SIG_IGN);
    }
    if (strcmp(how, "half") == 0 && rank == 0) {
        (void)signal(SIGTERM, SIG_IGN);
    }
    if (strcmp(how, "deaf") == 0 || strcmp(how, "train") == 0 || strcmp(how, "other") == 0 ||
        strcmp(how, "half") == 0) {
        put_number("ready", rank, (int)getpid());
        (void)sleep(60);
        return 0;
    }
    if (strcmp(how, "works") == 0) {
        (void)signal(SIGTERM, on_term);
        put_number("ready", rank, (int)getpid());
        while (stopped == 0) {
            (void)usleep(5000);
        }
        return LT_RANK_STOPPED;
    }
    if (attempt == 1) {
        return first_attempt(b, how, rank);
    }
    (void)snprintf(name, sizeof name, "attempt-%d", attempt);
    put_number(name, rank, node != NULL ? atoi(node) : -1);
    if (strcmp(how, "shrinks") == 0 && attempt == 2) {
        train_until_term(b);
        return LT_RANK_STOPPED;
    }
    return 0;
}

static int as_rank(const char *how) {
    lt_board *b = lt_board_of_rank();
    const int status = b == NULL ? 3 : play(b, how, atoi(getenv(LT_ENV_RANK)));
    lt_board_close(b);
    return status;
}

/* argv: PROGRAM agent --memory FOLDER --node K --nodes N */
static int as_agent(char **argv) {
    const int node = atoi(argv[5]);
    sigset_t blocked;
    (void)sigprocmask(SIG_BLOCK, NULL, &blocked);
    put_number("orphaned", node, sigismember(&blocked, LT_AGENT_ORPHANED));
    put_number("agent", node, (int)getpid());
    return lt_agent_run(&(lt_agent_options){.root = argv[3],
                                            .token = getenv(LT_ENV_TOKEN),
                                            .node = node,
                                            .n_nodes = atoi(argv[7])}) != LT_OK;
}

/* ---- The launcher ---------------------------------------------------------------------------- */

static lt_launch_options options_of(int n_ranks) {
    return (lt_launch_options){
        .n_ranks = n_ranks, .retries = 3, .grace_s = 0.3, .beat_s = 0.1, .silent_s = 60.0};
}

static int launch(const lt_launch_options *o, const char *how) {
    char word[] = "test_launch_faults", a[32];
    char *const argv[] = {word, a, NULL};
    int status = -1;
    (void)snprintf(a, sizeof a, "%s", how);
    if (lt_launch(o, "/proc/self/exe", argv, &status) != LT_OK) {
        fail_msg("%s: %s", how, lt_error_message());
    }
    return status;
}

static void forget(void) {
    assert_int_equal(lt_file_remove_tree(folder), LT_OK);
    assert_int_equal(lt_file_make_dirs(folder), LT_OK);
}

/* The i-th event of a kind; NULL: there are fewer. The caller owns the reference. */
static json_t *event(const char *kind, size_t i) {
    char path[LT_PATH_BYTES], *text = NULL, *rest = NULL;
    json_t *found = NULL;
    (void)snprintf(path, sizeof path, "%s/events.jsonl", folder);
    assert_int_equal(lt_file_read(&text, NULL, path, 1 << 20), LT_OK);
    for (char *line = strtok_r(text, "\n", &rest); line != NULL && found == NULL;
         line = strtok_r(NULL, "\n", &rest)) {
        json_t *e = json_loads(line, 0, NULL);
        const char *is = json_string_value(json_object_get(e, "event"));
        if (is != NULL && strcmp(is, kind) == 0 && i-- == 0) {
            found = json_incref(e);
        }
        json_decref(e);
    }
    free(text);
    return found;
}

static double number_at(const char *kind, size_t i, const char *key) {
    json_t *e = event(kind, i);
    const double value = json_number_value(json_object_get(e, key));
    if (!json_is_number(json_object_get(e, key))) {
        fail_msg("event %zu of kind %s has no number '%s'", i, kind, key);
    }
    json_decref(e);
    return value;
}

static void text_at(const char *kind, size_t i, const char *key, const char *want) {
    json_t *e = event(kind, i);
    const char *is = json_string_value(json_object_get(e, key));
    if (is == NULL || strcmp(is, want) != 0) {
        fail_msg("event %zu of kind %s: '%s' is '%s', not '%s'", i, kind, key,
                 is != NULL ? is : "nothing", want);
    }
    json_decref(e);
}

static void no_event(const char *kind, size_t i) {
    json_t *e = event(kind, i);
    assert_null(e);
}

/* ---- Requests to stop ------------------------------------------------------------------------ */

typedef bool signaller(pid_t launcher, const pid_t ranks[2]);

/* The status of a launch of two ranks. When they run, another process sends signals; it returns
 * whether it has seen what it expects. */
static int launch_with(const char *how, signaller *send) {
    const lt_launch_options o = {.n_ranks = 2, .grace_s = 1.0};
    const pid_t launcher = getpid();
    pid_t child, ranks[2];
    int status, sent;
    forget();
    child = fork();
    if (child == 0) {
        ranks[0] = (pid_t)number_in("ready", 0);
        ranks[1] = (pid_t)number_in("ready", 1);
        _exit(ranks[0] > 0 && ranks[1] > 0 && send(launcher, ranks) ? 0 : 1);
    }
    status = launch(&o, how);
    assert_int_equal(waitpid(child, &sent, 0), child);
    assert_int_equal(sent, 0);
    for (int r = 0; r < 2; r++) {
        assert_true(kill((pid_t)number_in("ready", r), 0) != 0);
    }
    return status;
}

/* Of a process: 'T' is stopped. */
static bool becomes(pid_t pid, bool stops) {
    const double until_s = lt_clock_s() + MOST_S;
    char path[64], *text = NULL, *at;
    bool is = !stops;
    (void)snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    while (is != stops && lt_clock_s() < until_s) {
        if (lt_file_read(&text, NULL, path, 4096) == LT_OK) {
            at = strrchr(text, ')');
            is = at != NULL && at[2] == 'T';
            free(text);
        }
        (void)usleep(5000);
    }
    return is == stops;
}

/* The ranks live until the last signal is sent. On a busy machine the second one may be late, and
 * then it is the one that kills. */
static bool interrupt(pid_t launcher, const pid_t ranks[2]) {
    static const unsigned waits_us[] = {50000, 1200000, 0};
    double sent_s[3] = {0.0};
    for (int i = 0; i < 3; i++) {
        const bool late = sent_s[1] - sent_s[0] > 0.5;
        sent_s[i] = lt_clock_s();
        if (!late &&
            (kill(ranks[0], 0) != 0 || kill(ranks[1], 0) != 0 || kill(launcher, SIGINT) != 0)) {
            return false;
        }
        (void)usleep(waits_us[i]);
    }
    return true;
}

/* Two SIGINTs within a second are one; a third one later kills ranks that ignore them. */
static void a_second_interrupt_kills(void **state) {
    (void)state;
    assert_int_equal(launch_with("deaf", interrupt), 128 + SIGKILL);
}

static bool suspend(pid_t launcher, const pid_t ranks[2]) {
    bool seen = kill(launcher, SIGTSTP) == 0 && becomes(launcher, true) &&
                becomes(ranks[0], true) && becomes(ranks[1], true);
    seen = kill(launcher, SIGCONT) == 0 && becomes(launcher, false) && becomes(ranks[0], false) &&
           becomes(ranks[1], false) && seen;
    return kill(launcher, SIGTERM) == 0 && seen;
}

/* SIGTSTP stops all until SIGCONT. */
static void all_are_suspended_together(void **state) {
    (void)state;
    assert_int_equal(launch_with("works", suspend), LT_RANK_STOPPED);
}

static bool terminate(pid_t launcher, const pid_t ranks[2]) {
    (void)ranks;
    return kill(launcher, SIGTERM) == 0;
}

/* A signal that ends ranks is the status, except before training has installed its handlers: there
 * is nothing to save then. */
static void a_stop_before_training(void **state) {
    (void)state;
    assert_int_equal(launch_with("train", terminate), LT_RANK_STOPPED);
    assert_int_equal(launch_with("other", terminate), 128 + SIGTERM);
}

/* The launcher reads both signals together, and the ranks get SIGINT first. */
static bool interrupt_and_terminate(pid_t launcher, const pid_t ranks[2]) {
    (void)ranks;
    return kill(launcher, SIGSTOP) == 0 && becomes(launcher, true) && kill(launcher, SIGINT) == 0 &&
           kill(launcher, SIGTERM) == 0 && kill(launcher, SIGCONT) == 0;
}

/* A rank that has no handler is ended by the first of several stop signals; that is no fault. */
static void several_stops_before_training(void **state) {
    (void)state;
    assert_int_equal(launch_with("train", interrupt_and_terminate), LT_RANK_STOPPED);
    assert_int_equal(launch_with("other", interrupt_and_terminate), 128 + SIGINT);
}

/* A rank that goes on although the signal has ended another one is killed after the grace period,
 * and the status is still that of the signal. */
static void a_stop_that_only_one_rank_heeds(void **state) {
    const double start_s = lt_clock_s();
    (void)state;
    assert_int_equal(launch_with("half", terminate), 128 + SIGTERM);
    assert_true(lt_clock_s() - start_s < MOST_S);
}

/* ---- Hardware -------------------------------------------------------------------------------- */

/* A run that leaves a machine whose device has failed puts its job back in the queue. */
static void a_job_leaves_its_machine(void **state) {
    static const char *const scripts[] = {"#!/bin/sh\necho \"$*\" > \"$LATEEN_TEST_FOLDER/said\"\n",
                                          "#!/bin/sh\nexit 1\n"};
    char path[LT_PATH_BYTES], all[2 * LT_PATH_BYTES], *said = NULL, *before = getenv("PATH");
    lt_launch_options o = options_of(4);
    (void)state;
    before = strdup(before != NULL ? before : "/bin");
    o.retries = 0;
    o.requeue = true;
    assert_int_equal(setenv("SLURM_JOB_ID", "77", 1), 0);
    for (int i = 0; i < 2; i++) {
        json_t *e;
        forget();
        (void)snprintf(path, sizeof path, "%s/scontrol", folder);
        assert_int_equal(lt_file_write_atomic(path, scripts[i], strlen(scripts[i])), LT_OK);
        assert_int_equal(chmod(path, 0755), 0);
        (void)snprintf(all, sizeof all, "%s:%s", folder, before);
        assert_int_equal(setenv("PATH", all, 1), 0);
        assert_int_equal(launch(&o, "device"), LT_RANK_STOPPED);
        (void)snprintf(path, sizeof path, "%s/said", folder);
        if (i == 0) {
            assert_int_equal(lt_file_read(&said, NULL, path, 64), LT_OK);
            assert_string_equal(said, "requeue 77\n");
            free(said);
        }
        text_at("fault", 0, "kind", "device");
        text_at("fault", 0, "what", "rank 3 ended with status 74");
        assert_true(number_at("fault", 0, "rank") == 3 && number_at("fault", 0, "step") == 5);
        text_at("decision", 0, "why", "a fault of hardware: the run continues elsewhere");
        e = event("decision", 0);
        assert_true(json_is_false(json_object_get(e, "again")));
        json_decref(e);
        text_at("requeue", 0, "job", "77");
        e = event("requeue", 0);
        assert_true(json_is_true(json_object_get(e, "queued")) == (i == 0));
        json_decref(e);
        assert_true(number_at("end", 0, "status") == LT_RANK_STOPPED);
        no_event("start", 1);
    }
    assert_int_equal(unsetenv("SLURM_JOB_ID"), 0);
    assert_int_equal(setenv("PATH", before, 1), 0);
    free(before);
}

/* The time without a sign of life belongs to the time until the fault is found. */
static void a_silent_rank(void **state) {
    lt_launch_options o = options_of(2);
    (void)state;
    forget();
    o.silent_s = 1.0;
    assert_int_equal(launch(&o, "silent"), 0);
    text_at("fault", 0, "kind", "silent");
    text_at("fault", 0, "what", "rank 1 has stopped answering: no heartbeat for 1 s");
    assert_true(number_at("fault", 0, "rank") == 1 && number_at("fault", 0, "step") == 5);
    text_at("phase", 0, "phase", "detect");
    assert_true(number_at("phase", 0, "seconds") > 0.8 && number_at("phase", 0, "seconds") < 15.0);
    no_event("fault", 1);
}

/* Ranks that find different bits, none of which is known to be wrong, are no fault of one rank. */
static void wrong_bits_of_nobody(void **state) {
    const lt_launch_options o = options_of(2);
    (void)state;
    forget();
    assert_int_equal(launch(&o, "wrong"), 0);
    text_at("fault", 0, "kind", "corrupt");
    text_at("fault", 0, "what", "ranks do not hold the same bits, and none is known to be wrong");
    assert_true(number_at("fault", 0, "rank") == -1);
    no_event("suspect", 0);
}

/* ---- Nodes ----------------------------------------------------------------------------------- */

/* Whatever takes node 1 out, its ranks move to the spare one, and the others stay. A fault of
 * hardware and a suspect make its node suspect: it is not used again. */
static void ranks_move_to_a_spare_node(void **state) {
    static const struct {
        const char *how, *kind, *state;
        double rank; /* The least that the fault can have. */
    } cases[] = {{"node", "killed", "lost", 2},
                 {"suspect", "corrupt", "suspect", 3},
                 {"device", "device", "suspect", 3}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        lt_launch_options o = options_of(4);
        forget();
        o.n_nodes = 2;
        o.spares = 1;
        assert_int_equal(launch(&o, cases[i].how), 0);
        text_at("fault", 0, "kind", cases[i].kind);
        assert_true(number_at("fault", 0, "rank") >= cases[i].rank);
        text_at("node", 0, "state", cases[i].state);
        text_at("node", 1, "state", "moved");
        assert_true(number_at("node", 0, "node") == 1 && number_at("node", 1, "spare") == 2);
        assert_true(number_at("start", 1, "ranks") == 4);
        for (int r = 0; r < 4; r++) {
            assert_int_equal(number_in("attempt-2", r), r < 2 ? 0 : 2);
        }
        /* In an agent that has just begun, the signal of the launcher's end is blocked: otherwise
         * it would end the agent before this could remove the run's memory. */
        assert_int_equal(number_in("orphaned", 0), 1);
    }
}

/* Ranks that survive a fault wait for the next attempt in their process. */
static void ranks_are_kept(void **state) {
    (void)state;
    for (int nodes = 0; nodes <= 2; nodes += 2) {
        lt_launch_options o = options_of(4);
        forget();
        o.keep = true;
        o.n_nodes = nodes;
        o.grace_s = 5.0;
        assert_int_equal(launch(&o, "keeps"), 0);
        text_at("fault", 0, "kind", "killed");
        no_event("fault", 1);
        for (int r = 0; r < 4; r++) {
            char path[LT_PATH_BYTES];
            path_of(path, "attempt-2", r);
            assert_int_equal(lt_file_exists(path), r == 1); /* Only this one is started again. */
            assert_true(r == 1 || number_in("kept", r) == number_in("ready", r));
        }
    }
}

/* Without a spare node the run goes on with the ranks of one; when the other is back, all save, and
 * it has all its ranks again. */
static void a_run_shrinks_and_grows(void **state) {
    lt_launch_options o = options_of(4);
    (void)state;
    forget();
    o.n_nodes = 2;
    o.shrink = true;
    o.back_s = 0.5;
    o.grace_s = 2.0;
    assert_int_equal(launch(&o, "shrinks"), 0);
    assert_true(number_at("start", 0, "ranks") == 4 && number_at("start", 1, "ranks") == 2);
    assert_true(number_at("start", 2, "ranks") == 4);
    text_at("fault", 0, "kind", "killed");
    text_at("fault", 1, "kind", "grow");
    text_at("fault", 1, "what", "a node is back, and all have saved");
    assert_true(number_at("fault", 1, "rank") == -1 && number_at("fault", 1, "step") >= 6);
    no_event("start", 3);
    text_at("node", 1, "state", "back");
    text_at("node", 2, "state", "used"); /* Not moved: nobody had the ranks that it takes. */
    assert_true(number_at("node", 2, "node") == 1 && number_at("node", 2, "spare") == -1);
    for (int r = 0; r < 4; r++) {
        assert_int_equal(number_in("attempt-3", r), r < 2 ? 0 : 1);
        assert_true(r >= 2 || number_in("attempt-2", r) == 0);
    }
    assert_true(number_at("end", 0, "status") == 0);
}

int main(int argc, char **argv) {
    if (argc == 2 && lt_comm_under_launch()) {
        return as_rank(argv[1]);
    }
    if (argc == 8 && strcmp(argv[1], "agent") == 0) {
        return as_agent(argv);
    }
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_second_interrupt_kills),
                                       cmocka_unit_test(all_are_suspended_together),
                                       cmocka_unit_test(a_stop_before_training),
                                       cmocka_unit_test(several_stops_before_training),
                                       cmocka_unit_test(a_stop_that_only_one_rank_heeds),
                                       cmocka_unit_test(a_job_leaves_its_machine),
                                       cmocka_unit_test(a_silent_rank),
                                       cmocka_unit_test(wrong_bits_of_nobody),
                                       cmocka_unit_test(ranks_move_to_a_spare_node),
                                       cmocka_unit_test(ranks_are_kept),
                                       cmocka_unit_test(a_run_shrinks_and_grows)};
    int failed;
    if (make_folder(NULL) != 0 || setenv(ENV_FOLDER, folder, 1) != 0) {
        return 1;
    }
    failed = cmocka_run_group_tests(tests, NULL, NULL);
    return remove_folder(NULL) != 0 || failed;
}
