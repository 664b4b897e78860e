/* goodput.c: see goodput.h. */
#include "train/watch/goodput.h"

#include <math.h>

#include "base/clock.h"

#define TIME_NAME(name, help) #name,
const char *const lt_goodput_names[LT_GOODPUT_COUNT] = {LT_GOODPUT_MAP(TIME_NAME)};
#undef TIME_NAME

void lt_goodput_begin(lt_goodput *t, double start_s, double gap_s) {
    *t = (lt_goodput){.mark_s = start_s, .s[LT_GOODPUT_restart] = fmax(gap_s, 0.0)};
}

void lt_goodput_spend(lt_goodput *t, lt_goodput_kind kind) {
    const double now_s = lt_clock_s();
    t->s[kind] += now_s - t->mark_s;
    t->mark_s = now_s;
}

void lt_goodput_step(lt_goodput *t, double wait_s, bool productive) {
    const double now_s = lt_clock_s(), all_s = now_s - t->mark_s, stall_s = fmin(wait_s, all_s);
    t->s[LT_GOODPUT_stall] += stall_s;
    t->s[productive ? LT_GOODPUT_productive : LT_GOODPUT_rework] += all_s - stall_s;
    t->mark_s = now_s;
}
