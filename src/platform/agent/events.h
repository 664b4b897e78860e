/* events.h: writes what happens to the attempts of a run to RUN/events.jsonl: one JSON object per
 * line, appended immediately and by one write, so that a full disk leaves no part of a line.
 *
 *   {"time", "unix_s", "attempt", "event": "start", "ranks"}
 *   {..., "event": "fault", "kind", "rank", "step", "what", "words"}   kinds: controller.h; words:
 *                                                                      the rank's last lines
 *   {..., "event": "phase", "phase", "seconds"}      LT_RECOVERY_MAP, in their order
 *   {..., "event": "decision", "again", "why", "wait_s"}
 *   {..., "event": "recovered", "seconds", "step", "steps_lost"}
 *   {..., "event": "agent", "node", "what"}          an agent has ended and is started again
 *   {..., "event": "suspect", "rank", "node", "step"}  what it holds or computes was
 *                              wrong (train/watch/replicas.h, train/watch/replay.h); node -1: of no
 *                              agent's
 *   {..., "event": "straggler", "rank", "node", "slow", "share"}  a rank has become slow, or is no
 *                                                                 longer (train/watch/stragglers.h)
 *   {..., "event": "node", "node", "state", "spare"}  lost, suspect, back, used again; moved: its
 *                                                     ranks are on the node `spare` now
 *   {..., "event": "requeue", "job", "queued"}       this machine is left; queued: scontrol did it
 *   {..., "event": "end", "status"}
 *
 * attempt: the generation within the job; "restart": how often Slurm has started the job again.
 * Events that happen before the run folder is known, or while the disk is full, are held until
 * then. */
#ifndef LT_PLATFORM_EVENTS_H
#define LT_PLATFORM_EVENTS_H

#include <stdbool.h>

#include <jansson.h>

#include "base/file.h"

/* The phases of a recovery: name, sentence with its seconds. */
#define LT_RECOVERY_MAP(X)                                                                         \
    X(DETECT, "detect", "the fault was noticed within %.2f s")                                     \
    X(FENCE, "fence", "all ranks of the attempt had ended %.2f s later")                           \
    X(DECIDE, "decide", "the decision and the back-off took %.2f s")                               \
    X(RELAUNCH, "relaunch", "the ranks started in %.2f s")                                         \
    X(CONNECT, "connect", "they connected in %.2f s")                                              \
    X(LOAD, "load", "they loaded their state in %.2f s")                                           \
    X(RECOMPUTE, "recompute", "the steps that the fault undid were made again in %.2f s")
typedef enum {
#define LT_RECOVERY_ENUM(id, name, text) LT_RECOVERY_##id,
    LT_RECOVERY_MAP(LT_RECOVERY_ENUM)
#undef LT_RECOVERY_ENUM
        LT_RECOVERY_PHASES
} lt_recovery_phase;
extern const char *const lt_recovery_names[LT_RECOVERY_PHASES];
extern const char *const lt_recovery_texts[LT_RECOVERY_PHASES];

typedef struct {
    bool wanted;  /* False: nothing is kept or written. */
    int fd;       /* -1: the folder is not yet known. */
    json_t *held; /* Lines that are not yet written; NULL: none. */
    bool late;    /* The last attempt to write them failed, which was reported. */
    int restart;
} lt_events;

void lt_events_open(lt_events *e, bool wanted, int restart);
void lt_events_close(lt_events *e);
/* Set the run folder: events are written there from now on. A second call changes nothing. A
 * failure is only a warning, because a run does not end if its events cannot be written. */
void lt_events_folder(lt_events *e, const char *folder);
/* Takes the reference to `line`, and adds time and attempt. */
void lt_events_put(lt_events *e, int attempt, json_t *line);

/* The lines of a text as an array. */
json_t *lt_events_words(const char *text, size_t bytes);

#endif
