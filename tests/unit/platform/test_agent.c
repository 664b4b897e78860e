/* Agents: what ranks of one node write arrives on the next node, completely or not at all; a
 * client that does not know the token, sends a false checksum or names a path is refused. Each
 * agent is a process. */
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/clock.h"
#include "platform/agent/agent.h"
#include "platform/agent/memory.h"
#include "platform/agent/remote.h"

#define TOKEN "a-token"
#define NODES 2

static char root[LT_PATH_BYTES];
static pid_t agents[NODES];

static pid_t start(int node) {
    const pid_t pid = fork();
    if (pid == 0) {
        _exit(lt_agent_run(&(lt_agent_options){
                  .root = root, .token = TOKEN, .node = node, .n_nodes = NODES}) == LT_OK
                  ? 0
                  : 1);
    }
    return pid;
}

static void put(const char *name, const char *text) {
    char path[LT_PATH_BYTES];
    assert_int_equal(lt_path_join(path, root, name), LT_OK);
    assert_int_equal(lt_file_make_parent(path), LT_OK);
    assert_int_equal(lt_file_write_atomic(path, text, strlen(text)), LT_OK);
}

/* A snapshot of two files appears at once. */
static void publish(const char *folder) {
    char name[256], from[2 * LT_PATH_BYTES], to[LT_PATH_BYTES];
    (void)snprintf(name, sizeof name, "%s.e2.tmp/weights", folder);
    put(name, folder);
    (void)snprintf(name, sizeof name, "%s.e2.tmp/manifest.json", folder);
    put(name, "{}");
    assert_int_equal(lt_path_join(to, root, folder), LT_OK);
    (void)snprintf(from, sizeof from, "%s/%s.e2.tmp", root, folder);
    assert_int_equal(rename(from, to), 0);
}

static bool there(const char *name) {
    char path[LT_PATH_BYTES];
    return lt_path_join(path, root, name) == LT_OK && lt_file_exists(path);
}

static void wait_until(const char *name, bool want) {
    const double until_s = lt_clock_s() + 60.0;
    while (there(name) != want) {
        if (lt_clock_s() > until_s) {
            fail_msg("%s is %sthere", name, want ? "not " : "");
        }
        (void)usleep(5000);
    }
}

static int open_all(void **state) {
    (void)state;
    assert_int_equal(lt_memory_make(root, NODES), LT_OK);
    for (int k = 0; k < NODES; k++) {
        agents[k] = start(k);
    }
    wait_until("node-0/agent", true);
    wait_until("node-1/agent", true);
    return 0;
}

static int close_all(void **state) {
    (void)state;
    for (int k = 0; k < NODES; k++) {
        int status;
        (void)kill(agents[k], SIGTERM);
        assert_int_equal(waitpid(agents[k], &status, 0), agents[k]);
        assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
    return lt_file_remove_tree(root) == LT_OK ? 0 : -1;
}

/* In both directions; the newest two are kept; a folder that is not complete yet is left
 * alone. */
static void snapshots_arrive(void **state) {
    char path[LT_PATH_BYTES], *text = NULL;
    size_t bytes;
    (void)state;
    put("node-0/own/rank-0/step-000000005.e1.tmp/weights", "half");
    publish("node-0/own/rank-0/step-000000005");
    publish("node-1/own/rank-1/step-000000005");
    wait_until("node-1/kept/rank-0/step-000000005", true);
    wait_until("node-0/kept/rank-1/step-000000005", true);
    assert_true(there("node-1/kept/rank-0/step-000000005/manifest.json"));
    assert_int_equal(lt_path_join(path, root, "node-1/kept/rank-0/step-000000005/weights"), LT_OK);
    assert_int_equal(lt_file_read(&text, &bytes, path, 64), LT_OK);
    assert_string_equal(text, "node-0/own/rank-0/step-000000005");
    free(text);
    publish("node-0/own/rank-0/step-000000010");
    wait_until("node-1/kept/rank-0/step-000000010", true);
    publish("node-0/own/rank-0/step-000000015");
    wait_until("node-1/kept/rank-0/step-000000015", true);
    wait_until("node-1/kept/rank-0/step-000000005", false);
    assert_true(there("node-1/kept/rank-0/step-000000010"));
    assert_false(there("node-1/kept/rank-0/step-000000005.e1.tmp"));
}

/* An agent that was killed and is started again sends what was written meanwhile. */
static void a_restarted_agent_catches_up(void **state) {
    (void)state;
    (void)kill(agents[0], SIGKILL);
    assert_int_equal(waitpid(agents[0], NULL, 0), agents[0]);
    publish("node-0/own/rank-2/step-000000007");
    agents[0] = start(0);
    wait_until("node-1/kept/rank-2/step-000000007", true);
}

/* An agent that is told to end leaves the memory to the launcher. One whose launcher was killed
 * removes it, even if threads of the launcher still run, so that it is still the parent. */
static void an_orphan_removes_the_memory(void **state) {
    (void)state;
    (void)kill(agents[0], SIGTERM);
    assert_int_equal(waitpid(agents[0], NULL, 0), agents[0]);
    assert_true(there("launcher"));
    agents[0] = start(0);
    publish("node-0/own/rank-3/step-000000001");
    wait_until("node-1/kept/rank-3/step-000000001", true);
    (void)kill(agents[0], LT_AGENT_ORPHANED);
    assert_int_equal(waitpid(agents[0], NULL, 0), agents[0]);
    assert_false(lt_file_has_name(root));
    agents[0] = start(0);
    wait_until("node-0/agent", true);
}

/* The answer of the agent of node 1; "": it has closed the connection. */
static void say(char answer[8], const char *text, size_t bytes) {
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    char path[LT_PATH_BYTES], *address = NULL;
    size_t n;
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(lt_path_join(path, root, "node-1/agent"), LT_OK);
    assert_int_equal(lt_file_read(&address, &n, path, 64), LT_OK);
    to.sin_port = htons((uint16_t)atoi(strchr(address, ':') + 1));
    free(address);
    assert_int_equal(connect(fd, (struct sockaddr *)&to, sizeof to), 0);
    (void)!send(fd, text, bytes, MSG_NOSIGNAL);
    (void)shutdown(fd, SHUT_WR);
    memset(answer, 0, 8);
    (void)!recv(fd, answer, 7, MSG_WAITALL);
    (void)close(fd);
}

static void bad_clients_are_refused(void **state) {
    /* xxh3 of "abc" is 78af5f94892f3950. */
    static const struct {
        const char *text;
        bool kept;
    } cases[] = {
        {"{\"token\":\"" TOKEN "\",\"holder\":\"rank-9\",\"step\":3,\"files\":[{\"name\":\"w\","
         "\"bytes\":3,\"xxh3\":\"78af5f94892f3950\"}]}\nabc",
         true},
        {"{\"token\":\"A-token\",\"holder\":\"rank-8\",\"step\":3,\"files\":[{\"name\":\"w\","
         "\"bytes\":3,\"xxh3\":\"78af5f94892f3950\"}]}\nabc",
         false},
        {"{\"holder\":\"rank-8\",\"step\":3,\"files\":[]}\n", false},
        {"{\"token\":\"" TOKEN "\",\"holder\":\"rank-8\",\"step\":3,\"files\":[{\"name\":\"w\","
         "\"bytes\":3,\"xxh3\":\"78af5f94892f3951\"}]}\nabc",
         false},
        {"{\"token\":\"" TOKEN "\",\"holder\":\"rank-8\",\"step\":3,\"files\":[{\"name\":\"w\","
         "\"bytes\":4,\"xxh3\":\"78af5f94892f3950\"}]}\nabc",
         false},
        {"{\"token\":\"" TOKEN "\",\"holder\":\"../../x\",\"step\":3,\"files\":[{\"name\":\"w\","
         "\"bytes\":3,\"xxh3\":\"78af5f94892f3950\"}]}\nabc",
         false},
        {"{\"token\":\"" TOKEN "\",\"holder\":\"rank-8\",\"step\":3,\"files\":[{\"name\":\"../w\","
         "\"bytes\":3,\"xxh3\":\"78af5f94892f3950\"}]}\nabc",
         false},
        {"{\"token\":\"" TOKEN "\",\"holder\":\"rank-8\",\"step\":3,\"files\":[{\"name\":\"w\","
         "\"bytes\":-3,\"xxh3\":\"78af5f94892f3950\"}]}\nabc",
         false},
        {"no json\n", false},
        {"[[[[\n", false},
        {"", false},
    };
    char answer[8], *endless = malloc(100000);
    (void)state;
    assert_non_null(endless);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        say(answer, cases[i].text, strlen(cases[i].text));
        if (strcmp(answer, cases[i].kept ? "ok\n" : "") != 0) {
            fail_msg("case %zu: '%s'", i, answer);
        }
    }
    memset(endless, 'x', 100000); /* A header without an end. */
    say(answer, endless, 100000);
    assert_string_equal(answer, "");
    free(endless);
    assert_true(there("node-1/kept/rank-9/step-000000003/w"));
    assert_false(there("node-1/kept/rank-8/step-000000003"));
    assert_false(there("x"));
}

/* ---- On machines ----------------------------------------------------------------------------- */

typedef struct {
    pid_t pid;
    int in;
    char address[LT_AGENT_ADDRESS];
    char root[64];
} machine;

/* Start this program, with its standard input and output held by the test, as another machine:
 * its memory has a name of its own. */
static void start_machine(machine *m, int node, int n, bool keep, const char *token) {
    int in[2], out[2];
    char program[LT_REMOTE_PROGRAM], text[512], said[64] = "";
    size_t got = 0;
    assert_int_equal(pipe(in), 0);
    assert_int_equal(pipe(out), 0);
    m->pid = fork();
    if (m->pid == 0) {
        (void)dup2(in[0], 0);
        (void)dup2(out[1], 1);
        for (int fd = 3; fd < 64; fd++) {
            (void)close(fd); /* The standard inputs of other machines. */
        }
        _exit(lt_agent_run_machine() == LT_OK ? 0 : 1);
    }
    (void)close(in[0]);
    (void)close(out[1]);
    m->in = in[1];
    assert_int_equal(fcntl(m->in, F_SETFD, FD_CLOEXEC), 0);
    assert_int_equal(lt_remote_program(program), LT_OK);
    (void)snprintf(m->root, sizeof m->root, "/dev/shm/lateen-run-m%d.%d", (int)getpid(), node);
    (void)snprintf(text, sizeof text,
                   "{\"version\": \"%s\", \"program\": \"%s\", \"memory\": \"%s\", \"node\": "
                   "%d, \"nodes\": %d, \"token\": \"%s\", \"launcher\": \"127.0.0.1\", "
                   "\"keep\": %s}\n",
                   LT_VERSION, program, m->root, node, n, token, keep ? "true" : "false");
    assert_int_equal(write(m->in, text, strlen(text)), (ssize_t)strlen(text));
    while (got + 1 < sizeof said && strchr(said, '\n') == NULL) {
        const ssize_t k = read(out[0], said + got, sizeof said - 1 - got);
        assert_true(k > 0);
        got += (size_t)k;
    }
    (void)close(out[0]);
    assert_int_equal(sscanf(said, "listens %31s", m->address), 1);
    assert_int_equal(strncmp(m->address, "127.0.0.1:", 10), 0);
}

static void tell(const machine *m, const char *format, ...) {
    va_list more;
    va_start(more, format);
    assert_true(vdprintf(m->in, format, more) > 0);
    va_end(more);
}

static void end_machine(machine *m, const char *how) {
    int status;
    if (how != NULL) {
        tell(m, "%s", how);
    }
    (void)close(m->in);
    assert_int_equal(waitpid(m->pid, &status, 0), m->pid);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    assert_false(lt_file_exists(m->root)); /* Nothing of it is left. */
}

/* The same as `there`, for a machine. */
static void wait_on(const machine *m, const char *name, bool want) {
    (void)snprintf(root, sizeof root, "%s", m->root);
    wait_until(name, want);
}

static void write_on(const machine *m, const char *folder) {
    (void)snprintf(root, sizeof root, "%s", m->root);
    publish(folder);
}

/* Each machine sends to all others that it knows; one that starts anew gets everything again. */
static void machines_send_to_each_other(void **state) {
    machine m[3];
    char was[sizeof root];
    (void)state;
    memcpy(was, root, sizeof was);
    for (int k = 0; k < 3; k++) {
        start_machine(&m[k], k, 3, false, TOKEN);
    }
    write_on(&m[0], "node-0/own/rank-0/step-000000005");
    tell(&m[0], "alive\npeer 1 %s\npeer 0 127.0.0.1:1\npeer 7 127.0.0.1:1\n", m[1].address);
    wait_on(&m[1], "node-1/kept/rank-0/step-000000005/weights", true);
    wait_on(&m[2], "node-2/kept/rank-0", false); /* It is not known yet. */
    tell(&m[0], "peer 2 %s\n", m[2].address);
    wait_on(&m[2], "node-2/kept/rank-0/step-000000005/weights", true);

    /* Its end is reported; the next one sends to all that are left, and everything to its
     * successor. */
    end_machine(&m[1], "signal 15\n");
    tell(&m[0], "peer 1 -\n");
    write_on(&m[0], "node-0/own/rank-0/step-000000010");
    wait_on(&m[2], "node-2/kept/rank-0/step-000000010/weights", true);
    start_machine(&m[1], 1, 3, false, TOKEN);
    tell(&m[0], "peer 1 %s\n", m[1].address);
    wait_on(&m[1], "node-1/kept/rank-0/step-000000005/weights", true);
    wait_on(&m[1], "node-1/kept/rank-0/step-000000010/weights", true);

    /* When killed, it keeps what it has, if it was told to. */
    write_on(&m[1], "node-1/own/rank-1/step-000000010");
    (void)kill(m[1].pid, SIGKILL);
    assert_int_equal(waitpid(m[1].pid, NULL, 0), m[1].pid);
    (void)close(m[1].in);
    start_machine(&m[1], 1, 3, true, TOKEN);
    wait_on(&m[1], "node-1/own/rank-1/step-000000010/weights", true);
    (void)kill(m[1].pid, SIGKILL);
    assert_int_equal(waitpid(m[1].pid, NULL, 0), m[1].pid);
    (void)close(m[1].in);
    start_machine(&m[1], 1, 3, false, TOKEN);
    wait_on(&m[1], "node-1/own/rank-1", false);

    end_machine(&m[0], NULL); /* The launcher has ended. */
    end_machine(&m[1], NULL);
    end_machine(&m[2], "signal 2\n");
    memcpy(root, was, sizeof root);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(snapshots_arrive),
        cmocka_unit_test(a_restarted_agent_catches_up),
        cmocka_unit_test(bad_clients_are_refused),
        cmocka_unit_test(machines_send_to_each_other),
        cmocka_unit_test(an_orphan_removes_the_memory),
    };
    return cmocka_run_group_tests(tests, open_all, close_all);
}
