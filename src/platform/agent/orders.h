/* orders.h: the lines that the launcher writes to the standard input of an agent after the first
 * one (hosts.h, agent.h). */
#ifndef LT_PLATFORM_ORDERS_H
#define LT_PLATFORM_ORDERS_H

#include <stdbool.h>
#include <stddef.h>

typedef struct {
    char line[256], data[256];
    /* Bytes of the line; where the rest of data begins, and bytes in data. */
    size_t n, at, bytes;
    bool ended; /* The input has ended. */
} lt_orders;

/* The next line, without its newline, valid until the next call; a line that is too long is cut.
 * NULL: none has come within wait_s. */
const char *lt_orders_next(lt_orders *o, int fd, double wait_s);

#endif
