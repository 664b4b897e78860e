/* peer.h: another program, measured in alternation with this one.
 *
 * The peer is a shell command with the parameters $1, $2, …. After its warm-up it prints "ready".
 * It then answers each line on its standard input with a line that holds one number, or "-" where
 * it has nothing to measure, and ends at the end of its input. A bench and its scripts in
 * bench/peers/ agree on the meaning of the lines. The two programs take turns, so that noise of the
 * machine affects both. */
#ifndef LT_BASE_PEER_H
#define LT_BASE_PEER_H

#include <stdio.h>
#include <sys/types.h>

#include "base/error.h"

typedef struct {
    const char *command; /* Lives as long as the peer. */
    FILE *to, *from;
    pid_t pid;
} lt_peer;

/* Start command with args (at most 8, then NULL) and wait for its "ready". Fails with REMOTE when
 * it ends before that. */
LT_MUST_USE lt_err lt_peer_open(lt_peer *p, const char *command, const char *const *args);

/* Send a line (without its newline) and read the number in the answer; 0: the peer has nothing to
 * measure for this line ("-"). Fails with REMOTE when the peer has ended or answers anything but a
 * number above zero. */
LT_MUST_USE lt_err lt_peer_ask(lt_peer *p, const char *line, double *answer);

/* End its input and wait for the process to exit. No-op on a zeroed peer. */
void lt_peer_close(lt_peer *p);

#endif
