/* board.h: what the ranks of `lateen launch` show their launcher: a page of memory that all of them
 * map, in which each rank has a place of its own. Writing to it costs a few stores, without a
 * message or a system call, so a rank may do it at every step.
 *
 *     rank       lt_board_phase(b, LT_PHASE_LOADED), lt_board_step(b, 57), lt_board_folder(b, path)
 *     launcher   lt_board_seen(b, rank), lt_board_folder_of(b)
 *
 * Times are of lt_clock_ns, which all processes of a machine share. */
#ifndef LT_COMM_BOARD_H
#define LT_COMM_BOARD_H

#include <stdbool.h>

#include "lateen/base.h"

#define LT_ENV_BOARD    "LATEEN_BOARD" /* Descriptor of the shared page, which the ranks inherit. */
#define LT_BOARD_FOLDER 4096

/* How far a rank has come: started, connected to the others, loaded, ended its first step. */
#define LT_PHASE_MAP(X)                                                                            \
    X(NONE, "before its start")                                                                    \
    X(STARTED, "connecting")                                                                       \
    X(CONNECTED, "loading")                                                                        \
    X(LOADED, "in its first step")                                                                 \
    X(STEPPED, "training")
typedef enum {
#define LT_PHASE_ENUM(name, text) LT_PHASE_##name,
    LT_PHASE_MAP(LT_PHASE_ENUM)
#undef LT_PHASE_ENUM
        LT_PHASES
} lt_phase;

typedef struct lt_board lt_board;

typedef struct {
    lt_phase phase;
    int64_t step;              /* The last step that ended; -1: not known. */
    int64_t loaded_step;       /* Step of the state that was loaded. */
    uint64_t at_ns[LT_PHASES]; /* When each phase began; 0: it has not begun. */
    uint64_t step_ns;          /* When that step ended. */
    int stop;                  /* Why the rank stops (train/record.h); 0: no stop was requested. */
    /* The step after which the rank's state was found to be wrong (train/watch/replicas.h); -1:
     * none. */
    int64_t suspect_step;
    bool left; /* The rank's world has failed, and the rank waits for the next one. */
    /* How much longer its compute takes than the other ranks', as a fraction; 0: it is not slow. */
    double slow;
} lt_board_sight;

/* Called by the launcher. The ranks inherit *fd. */
LT_MUST_USE lt_err lt_board_make(lt_board **out, int *fd, int n_ranks);
/* Called before the ranks start again. The folder and the time of rank 0's last sign are kept. */
void lt_board_clear(lt_board *b);
lt_board_sight lt_board_seen(const lt_board *b, int rank);
/* When the rank last reached a phase or ended a step; 0: not since the board was cleared. */
uint64_t lt_board_last_ns(const lt_board *b, int rank);
/* The launcher fills in the place of a rank of another machine. folder "": not known. */
void lt_board_show(lt_board *b, int rank, const lt_board_sight *s, const char *folder);
const char *lt_board_folder_of(const lt_board *b); /* "": no rank has named one. */
/* The sizes that the run can have: any number of replicas from `least` to dp that divides
 * `rows`. */
typedef struct {
    int dp, least; /* dp 0: only the present size. */
    int64_t rows;
} lt_board_room;
lt_board_room lt_board_sizes_of(const lt_board *b);
/* From now on ranks whose world fails wait for the next one instead of ending. */
void lt_board_keep_ranks(lt_board *b);
/* The world of this epoch can be opened: its memory segment and its store are ready. */
void lt_board_begin(lt_board *b, uint64_t epoch);

/* Called by a rank. NULL if no launcher started this process; the calls below accept NULL. */
lt_board *lt_board_of_rank(void);
void lt_board_phase(lt_board *b, lt_phase phase);
void lt_board_step(lt_board *b, int64_t step);
void lt_board_stop(lt_board *b, int stop);
void lt_board_suspect(lt_board *b, int64_t step);
void lt_board_slow(lt_board *b, double share);
/* Record the run's folder; only rank 0 calls it. */
void lt_board_folder(lt_board *b, const char *path);
void lt_board_sizes(lt_board *b, int dp, int least, int64_t rows);
/* Does the launcher want ranks whose world fails to wait for the next one? */
bool lt_board_keeps(const lt_board *b);
/* This rank has closed its world, which has failed. True if the launcher wants it to wait for the
 * next one, until lt_board_epoch is larger than the epoch of the closed world. */
bool lt_board_leave(lt_board *b);
uint64_t lt_board_epoch(const lt_board *b);
/* When rank 0 gave its last sign in an earlier attempt; 0: there was none on this machine. */
uint64_t lt_board_before_ns(const lt_board *b);

void lt_board_close(lt_board *b); /* Accepts NULL. */

#endif
