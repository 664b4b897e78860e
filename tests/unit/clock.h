/* clock.h: a clock of the time of day that a test moves. The program's clock_gettime stands before
 * libc's, so the code under test reads it. time() is no substitute in a test: it reads a coarser
 * clock, which may still say the second before. */
#ifndef LT_TESTS_UNIT_CLOCK_H
#define LT_TESTS_UNIT_CLOCK_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static atomic_long clock_ahead_s;
/* Each reading is a second after the one before, so that times which must agree do so only if they
 * come from one reading. */
static atomic_bool clock_hurries;

int clock_gettime(clockid_t clock, struct timespec *now) {
    const long failed = syscall(SYS_clock_gettime, clock, now);
    if (failed == 0 && clock == CLOCK_REALTIME) {
        now->tv_sec += clock_hurries ? ++clock_ahead_s : clock_ahead_s;
    }
    return (int)failed;
}

static int64_t clock_now(void) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return now.tv_sec;
}

#endif
