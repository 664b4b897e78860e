/* aside.h: calls that are not handled at once: large ones, whose handler runs on the worker pool,
 * and those that wait until their model is loaded. */
#ifndef LT_SERVE_ASIDE_H
#define LT_SERVE_ASIDE_H

#include "serve/api/server.h"

typedef struct {
    void (*handler)(lt_call *call);
    bool form; /* The body is a form, not JSON. */
} lt_aside_how;

/* Handle it on the worker pool. */
void lt_aside(lt_call *call, const lt_aside_how *how);
/* Handle it by the model that it names, once that is loaded. large: its body is read on the worker
 * pool. */
void lt_aside_by_model(lt_call *call, const lt_aside_how *how, bool large);

#endif
