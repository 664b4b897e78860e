/* stop_scan.h: finds stop strings in a text that arrives in pieces, and never passes on the
 * beginning of one.
 *
 * Text that may still become a stop string is held back: the longest suffix so far that begins one.
 * With "END" as stop string, of "the E" the part "the " passes and "E" is held. */
#ifndef LT_SERVE_STOP_SCAN_H
#define LT_SERVE_STOP_SCAN_H

#include <stdbool.h>
#include <stddef.h>

#include "serve/api/json_out.h"

typedef struct {
    const char *const *stops; /* Not owned; n_stops texts of lengths[i] > 0 bytes. */
    const size_t *lengths;
    int n_stops;
    bool include; /* The stop string is part of the text. */
    /* Owned. The text that the last call passed on, followed by the text that it held back. */
    lt_json_out held;
    size_t passed; /* Bytes of `held` that were passed on; the next call drops them. */
} lt_stop_scan;

void lt_stop_scan_free(lt_stop_scan *s);

/* Take a piece; *out, *out_n: the text that may be passed on, valid until the next call. Returns
 * the index of the stop string that was found (the rest is dropped), or -1. */
int lt_stop_scan_feed(lt_stop_scan *s, const char *text, size_t n, const char **out, size_t *out_n);
/* The text has ended: what was held back is ordinary text. */
void lt_stop_scan_end(lt_stop_scan *s, const char **out, size_t *out_n);

#endif
