/* gather.c: see gather.h. */
#include "align/gather.h"

#include <poll.h>

#define EVENTS  256
#define WAIT_MS 1000

lt_err lt_gather(lt_engine *e, int64_t n, lt_err (*take)(const lt_event *event)) {
    lt_event events[EVENTS];
    struct pollfd fd = {.fd = lt_engine_fd(e), .events = POLLIN};
    lt_err err = LT_OK;
    while (n > 0) {
        const int64_t got = lt_engine_poll(e, events, EVENTS);
        for (int64_t i = 0; i < got; i++) {
            const lt_err one = take(&events[i]);
            err = err == LT_OK ? one : err;
            n -= events[i].kind == LT_EVENT_DONE;
        }
        if (got == 0) {
            (void)poll(&fd, 1, WAIT_MS);
        }
    }
    return err;
}
