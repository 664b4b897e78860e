/* remote.h: `lateen agent --rank`, the agent of one rank of `lateen launch --hosts` on its
 * machine. It reads what to start on standard input (hosts.h), starts it, passes on its output
 * and the signals that standard input names, and reports its progress and its end to the store.
 *
 *     {"version", "program", "path", "words": [], "folder", "environment": ["NAME=VALUE"], "rank",
 *      "ranks", "full", "local", "locals", "store", "token", "epoch", "beat", "silent", "memory",
 *      "node", "snapshot", "mtbf", "keep"}\n
 *     signal 15\n
 *     epoch 7\n
 *
 * When standard input ends, the launcher or the connection to it is gone, and the rank is killed. A
 * rank that waits for its next world is also killed when the launcher's store does not answer,
 * because the end of standard input may never arrive. */
#ifndef LT_PLATFORM_REMOTE_H
#define LT_PLATFORM_REMOTE_H

#include <jansson.h>

#include "comm/board.h"
#include "lateen/base.h"

#define LT_REMOTE_MOST    ((size_t)1 << 20) /* Bytes of that first line. */
#define LT_REMOTE_PROGRAM 17

/* *status: the exit status: the rank's, or 128 + N for signal N. */
LT_MUST_USE lt_err lt_remote_run(int *status);

/* A number, as text, that differs between two builds of this program. */
LT_MUST_USE lt_err lt_remote_program(char out[LT_REMOTE_PROGRAM]);

/* The first line of standard input, without its end; free it. FORMAT: no line came in time. */
LT_MUST_USE lt_err lt_remote_first_line(char **out);
/* Fails with FORMAT if this program's version or file differs from the launcher's. */
LT_MUST_USE lt_err lt_remote_check_build(const char *version, const char *program);

/* A rank's place on the board, with ages instead of times, because the clocks of machines
 * differ. */
json_t *lt_remote_sight(const lt_board_sight *s, const lt_board_room *room, const char *folder,
                        uint64_t now_ns);
/* Read such an object. False: j is not one. *folder is valid as long as j; "": j names none. */
bool lt_remote_sight_read(const json_t *j, lt_board_sight *s, lt_board_room *room,
                          const char **folder, uint64_t now_ns);

#endif
