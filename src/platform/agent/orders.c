/* orders.c: see orders.h. */
#include "platform/agent/orders.h"

#include <poll.h>
#include <sys/types.h>
#include <unistd.h>

static bool read_more(lt_orders *o, int fd, double wait_s) {
    struct pollfd p = {.fd = fd, .events = POLLIN};
    const ssize_t got = !o->ended && poll(&p, 1, (int)(wait_s * 1e3)) > 0
                            ? read(fd, o->data, sizeof o->data)
                            : -1;
    o->ended = o->ended || got == 0;
    o->at = 0;
    o->bytes = got > 0 ? (size_t)got : 0;
    return got > 0;
}

const char *lt_orders_next(lt_orders *o, int fd, double wait_s) {
    for (;;) {
        if (o->at == o->bytes && !read_more(o, fd, wait_s)) {
            return NULL;
        }
        const char c = o->data[o->at++];
        if (c == '\n') {
            o->line[o->n] = '\0';
            o->n = 0;
            return o->line;
        }
        if (o->n + 1 < sizeof o->line) {
            o->line[o->n++] = c;
        }
    }
}
