/* clock.h: time. Durations come from the monotonic clock, dates from the wall clock. */
#ifndef LT_BASE_CLOCK_H
#define LT_BASE_CLOCK_H

#include <stdint.h>
#include <sys/time.h>
#include <time.h>

#define LT_CLOCK_TEXT_BYTES 32

uint64_t lt_clock_ns(void); /* Monotonic, nanoseconds since an arbitrary start. */
double lt_clock_s(void);    /* The same in seconds. */
double lt_clock_unix_s(void);
double lt_clock_of(struct timespec t); /* In seconds. */

/* A duration as a timeval, for timers; below 0 counts as 0. */
struct timeval lt_clock_span(double seconds);

/* "2026-11-21T09:30:05Z", UTC, into buf; returns buf. */
char *lt_clock_text(char buf[LT_CLOCK_TEXT_BYTES]);

/* "1:02:03", "4:05" or "12 s": a duration for people, into buf; returns buf. */
char *lt_duration_text(char buf[LT_CLOCK_TEXT_BYTES], double seconds);

#endif
