/* schedule_order.h: the order of a rank's operations in each schedule; schedule.c adds messages and
 * sets of activations. */
#ifndef LT_PARALLEL_SCHEDULE_ORDER_H
#define LT_PARALLEL_SCHEDULE_ORDER_H

#include "parallel/schedule.h"

/* Kind, chunk and micro of every operation of every row; the rows have room for them. */
LT_MUST_USE lt_err lt_schedule_order(lt_schedule *t);

#endif
