/* schedule_view.h: prints the table of a pipeline as text and as a picture. */
#ifndef LT_PARALLEL_SCHEDULE_VIEW_H
#define LT_PARALLEL_SCHEDULE_VIEW_H

#include <stdio.h>

#include "parallel/schedule.h"

/* Idle share of a rank during the step, and of all ranks together. */
double lt_schedule_idle(const lt_schedule *t, const lt_schedule_times *times, int rank);
double lt_schedule_idle_all(const lt_schedule *t, const lt_schedule_times *times);

/* One line per rank, one cell per unit_s: "F3" an operation begins (of chunk b: "F3b"), '=' it
 * continues, '.' the rank waits. Then what each rank does, holds and receives. */
void lt_schedule_text(FILE *out, const lt_schedule *t, const lt_schedule_times *times,
                      double unit_s);
/* The complete text of an SVG file. */
void lt_schedule_svg(FILE *out, const lt_schedule *t, const lt_schedule_times *times,
                     double unit_s);

#endif
