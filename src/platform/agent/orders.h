/* orders.h: the lines that the launcher writes to the standard input of an agent after the first
 * one (hosts.h, agent.h). */
#ifndef LT_PLATFORM_ORDERS_H
#define LT_PLATFORM_ORDERS_H

#include <stdbool.h>
#include <stddef.h>

typedef struct {
    char line[256], data[256];
    size_t n, at, bytes; /* Of the line; of data: what is read, and where the rest begins. */
    bool ended;          /* Nothing comes any more. */
} lt_orders;

/* The next line, without its end, valid until the next call; a line that is too long is cut. NULL:
 * none has come within wait_s. */
const char *lt_orders_next(lt_orders *o, int fd, double wait_s);

#endif
