/* clock.c: a clock that jumps. A program that loads this library (LD_PRELOAD) sees a time of day
 * that is ahead of the machine's by the seconds in the file that LATEEN_CLOCK_AHEAD names, if it
 * exists. The monotonic clock is not changed, as when an administrator or NTP sets the time. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>

static time_t ahead(void) {
    const char *path = getenv("LATEEN_CLOCK_AHEAD");
    FILE *f = path != NULL ? fopen(path, "re") : NULL;
    long long s = 0;
    if (f != NULL) {
        (void)!fscanf(f, "%lld", &s);
        fclose(f);
    }
    return (time_t)s;
}

int clock_gettime(clockid_t clock, struct timespec *t) {
    static int (*real)(clockid_t, struct timespec *);
    int status;
    if (real == NULL) {
        *(void **)&real = dlsym(RTLD_NEXT, "clock_gettime");
    }
    status = real(clock, t);
    if (status == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) {
        t->tv_sec += ahead();
    }
    return status;
}

time_t time(time_t *out) {
    struct timespec t;
    (void)clock_gettime(CLOCK_REALTIME, &t);
    if (out != NULL) {
        *out = t.tv_sec;
    }
    return t.tv_sec;
}

int gettimeofday(struct timeval *restrict out, void *restrict zone) {
    struct timespec t;
    (void)zone;
    (void)clock_gettime(CLOCK_REALTIME, &t);
    *out = (struct timeval){.tv_sec = t.tv_sec, .tv_usec = t.tv_nsec / 1000};
    return 0;
}
