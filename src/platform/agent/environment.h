/* environment.h: the environment variables that a rank gets from its launcher: where the ranks
 * meet, which rank it is, and where snapshots are kept. */
#ifndef LT_PLATFORM_ENVIRONMENT_H
#define LT_PLATFORM_ENVIRONMENT_H

#include <stdbool.h>

#include "lateen/base.h"

typedef struct {
    int rank, n;        /* This rank, from 0, and the number of ranks; */
    int full;           /* the number of ranks when none is missing. */
    int segment, board; /* Descriptors that it inherits. */
    bool keep;          /* The rank outlives its world (board.h). Not in the environment. */
    bool apart;         /* Ranks are on several machines: there is no segment, and */
    int local, locals;  /* this is the rank's number among the `locals` ranks of its machine. */
    const char *store, *token;
    uint64_t epoch;
    double beat_s, silent_s;
    /* Name of the memory for snapshots; "": there is none, and the next three are not used. */
    const char *memory;
    int node;
    int64_t snapshot;
    double mtbf_s;
} lt_environment;

/* The environment of a rank: that of this process, without variables of an outer launcher. NULL:
 * out of memory. */
char **lt_environment_make(const lt_environment *e);
void lt_environment_free(char **words); /* Accepts NULL. */

#endif
