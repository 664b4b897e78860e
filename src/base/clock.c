/* clock.c: see clock.h. */
#include "base/clock.h"

#include <stdio.h>
#include <time.h>

uint64_t lt_clock_ns(void) {
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

double lt_clock_s(void) {
    return (double)lt_clock_ns() * 1e-9;
}

double lt_clock_of(struct timespec t) {
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

double lt_clock_unix_s(void) {
    struct timespec ts;
    clock_gettime(CLOCK_REALTIME, &ts);
    return lt_clock_of(ts);
}

struct timeval lt_clock_span(double seconds) {
    const double s = seconds > 0.0 ? seconds : 0.0;
    struct timeval tv = {.tv_sec = (time_t)s};
    tv.tv_usec = (suseconds_t)((s - (double)tv.tv_sec) * 1e6);
    return tv;
}

char *lt_clock_text(char buf[LT_CLOCK_TEXT_BYTES]) {
    const time_t now = time(NULL);
    struct tm tm;
    gmtime_r(&now, &tm);
    strftime(buf, LT_CLOCK_TEXT_BYTES, "%Y-%m-%dT%H:%M:%SZ", &tm);
    return buf;
}

char *lt_duration_text(char buf[LT_CLOCK_TEXT_BYTES], double seconds) {
    const long s = seconds > 0.0 ? (long)(seconds + 0.5) : 0;
    if (s < 60) {
        snprintf(buf, LT_CLOCK_TEXT_BYTES, "%ld s", s);
    } else if (s < 3600) {
        snprintf(buf, LT_CLOCK_TEXT_BYTES, "%ld:%02ld", s / 60, s % 60);
    } else {
        snprintf(buf, LT_CLOCK_TEXT_BYTES, "%ld:%02ld:%02ld", s / 3600, s / 60 % 60, s % 60);
    }
    return buf;
}
