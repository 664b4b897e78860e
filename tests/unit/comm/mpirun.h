/* mpirun.h: runs this test program again as the ranks of mpirun. */
#ifndef TESTS_UNIT_COMM_MPIRUN_H
#define TESTS_UNIT_COMM_MPIRUN_H

#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

static inline int mpirun_is_there(void) {
    return system("command -v mpirun >/dev/null 2>&1") == 0;
}

/* The exit status of mpirun -n n THIS_PROGRAM arg; -1: it was ended by a signal; 124: it took
 * longer than 60 s, which DEADLINE_FACTOR multiplies (tests/run.sh). It allows more ranks than
 * cores, and root, because CI runs in small containers. Leaks and lock order are not checked in
 * the ranks: Open MPI keeps memory until the end, and takes its own locks in two orders; our own
 * allocations and locks are the same between threads. */
static inline int mpirun(int n, const char *arg) {
    char exe[4096], command[8192];
    const ssize_t length = readlink("/proc/self/exe", exe, sizeof exe - 1);
    int status;
    if (length < 0) {
        return -1;
    }
    exe[length] = '\0';
    (void)snprintf(command, sizeof command,
                   "ASAN_OPTIONS=detect_leaks=0 LSAN_OPTIONS=detect_leaks=0 "
                   "TSAN_OPTIONS=detect_deadlocks=0 OMPI_ALLOW_RUN_AS_ROOT=1 "
                   "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 "
                   "timeout $((60 * ${DEADLINE_FACTOR:-1})) mpirun "
                   "--oversubscribe --bind-to none -n %d '%s' %s </dev/null",
                   n, exe, arg);
    status = system(command);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

#endif
