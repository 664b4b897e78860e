/* fifo.h: a queue of jobs, first in, first out, between the event loop and another thread. A job is
 * in at most one list, by a link that is its first member. Users of a shared list must lock it. */
#ifndef LT_SERVE_FIFO_H
#define LT_SERVE_FIFO_H

#include <stdbool.h>
#include <stddef.h>

typedef struct lt_fifo_link lt_fifo_link;
struct lt_fifo_link {
    lt_fifo_link *next;
};

typedef struct {
    lt_fifo_link *first, *last;
} lt_fifo;

static inline void lt_fifo_push(lt_fifo *l, lt_fifo_link *job) {
    job->next = NULL;
    *(l->last != NULL ? &l->last->next : &l->first) = job;
    l->last = job;
}

/* NULL: there is none. */
static inline lt_fifo_link *lt_fifo_pop(lt_fifo *l) {
    lt_fifo_link *job = l->first;
    if (job != NULL) {
        l->first = job->next;
        l->last = l->first != NULL ? l->last : NULL;
    }
    return job;
}

/* False: the job is not in the list. */
static inline bool lt_fifo_take_out(lt_fifo *l, const lt_fifo_link *job) {
    lt_fifo_link *before = NULL;
    for (lt_fifo_link *at = l->first; at != NULL; before = at, at = at->next) {
        if (at == job) {
            *(before != NULL ? &before->next : &l->first) = at->next;
            l->last = l->last == at ? before : l->last;
            return true;
        }
    }
    return false;
}

#endif
