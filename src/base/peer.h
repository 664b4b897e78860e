/* peer.h: another program that is measured in turn with us.
 *
 * The peer is a shell command that gets its parameters as $1, $2, …; when it is warm it prints
 * "ready"; then it answers each line on its standard input with a line that holds one number, or
 * "-" where it has nothing to measure, and ends with its input. What the lines say is between a
 * bench and its scripts in bench/peers/. Turns alternate, so that a noisy machine is noisy for
 * both. */
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

/* Starts command with args (ended by NULL, at most 8) and waits for its "ready". REMOTE when it
 * ends before that. */
LT_MUST_USE lt_err lt_peer_open(lt_peer *p, const char *command, const char *const *args);

/* Sends a line (without its newline) and reads the number that answers it; 0: the peer has nothing
 * to measure for this line ("-"). REMOTE when it ended or answered no number above zero. */
LT_MUST_USE lt_err lt_peer_ask(lt_peer *p, const char *line, double *answer);

/* Ends its input and waits for its end. Nothing to do for a peer of zeros. */
void lt_peer_close(lt_peer *p);

#endif
