/* peer.c: see peer.h. */
#include "base/peer.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define MOST_ARGS  8
#define LINE_BYTES 128

static void run_child(const char *command, const char *const *args, const int to[2],
                      const int from[2]) {
    /* sh -c command NAME $1 $2 …: the array is only read. */
    const char *argv[4 + MOST_ARGS + 1] = {"sh", "-c", command, "peer"};
    for (int i = 0; args[i] != NULL; i++) {
        argv[4 + i] = args[i];
    }
    dup2(to[0], STDIN_FILENO);
    dup2(from[1], STDOUT_FILENO);
    close(to[1]);
    close(from[0]);
    execv("/bin/sh", (char *const *)(uintptr_t)argv);
    _exit(127);
}

lt_err lt_peer_open(lt_peer *p, const char *command, const char *const *args) {
    int to[2], from[2], n = 0;
    char line[LINE_BYTES];
    while (args[n] != NULL) {
        n++;
    }
    LT_ASSERT(n <= MOST_ARGS);
    if (pipe(to) != 0) {
        LT_FAIL(LT_ERR_IO, "pipe to the peer");
    }
    if (pipe(from) != 0) {
        close(to[0]);
        close(to[1]);
        LT_FAIL(LT_ERR_IO, "pipe from the peer");
    }
    /* A peer that died must be reported as an error and not kill this process. */
    signal(SIGPIPE, SIG_IGN);
    *p = (lt_peer){.command = command, .pid = fork()};
    if (p->pid == 0) {
        run_child(command, args, to, from);
    }
    close(to[0]);
    close(from[1]);
    p->to = fdopen(to[1], "w");
    p->from = fdopen(from[0], "r");
    if (p->pid < 0 || p->to == NULL || p->from == NULL ||
        fgets(line, sizeof line, p->from) == NULL || strcmp(line, "ready\n") != 0) {
        LT_FAIL(LT_ERR_REMOTE, "the peer did not start: %s", command);
    }
    return LT_OK;
}

lt_err lt_peer_ask(lt_peer *p, const char *line, double *answer) {
    char said[LINE_BYTES] = "";
    if (fprintf(p->to, "%s\n", line) < 0 || fflush(p->to) != 0 ||
        fgets(said, sizeof said, p->from) == NULL) {
        LT_FAIL(LT_ERR_REMOTE, "the peer ended at '%s': %s", line, p->command);
    }
    *answer = atof(said);
    if (!(*answer > 0.0) && strcmp(said, "-\n") != 0) {
        said[strcspn(said, "\n")] = '\0';
        LT_FAIL(LT_ERR_REMOTE, "the peer answered '%s' to '%s': %s", said, line, p->command);
    }
    return LT_OK;
}

void lt_peer_close(lt_peer *p) {
    if (p->to != NULL) {
        fclose(p->to);
    }
    if (p->from != NULL) {
        fclose(p->from);
    }
    if (p->pid > 0) {
        waitpid(p->pid, NULL, 0);
    }
    *p = (lt_peer){0};
}
