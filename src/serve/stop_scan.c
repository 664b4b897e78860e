/* stop_scan.c: see stop_scan.h. */
#include "serve/stop_scan.h"

#include <string.h>

void lt_stop_scan_free(lt_stop_scan *s) {
    lt_out_free(&s->held);
}

/* Where the first stop string begins, and its index; n if there is none. */
static size_t find(const lt_stop_scan *s, const char *text, size_t n, int *which) {
    size_t first = n;
    for (int i = 0; i < s->n_stops; i++) {
        const char *hit = memmem(text, n, s->stops[i], s->lengths[i]);
        if (hit != NULL && ((size_t)(hit - text) < first)) {
            first = (size_t)(hit - text);
            *which = i;
        }
    }
    return first;
}

/* Bytes at the end of text that begin a stop string. */
static size_t undecided(const lt_stop_scan *s, const char *text, size_t n) {
    size_t most = 0;
    for (int i = 0; i < s->n_stops; i++) {
        size_t k = s->lengths[i] - 1 < n ? s->lengths[i] - 1 : n;
        while (k > most && memcmp(text + n - k, s->stops[i], k) != 0) {
            k--;
        }
        most = k > most ? k : most;
    }
    return most;
}

static void drop_passed(lt_stop_scan *s) {
    if (s->passed > 0) {
        memmove(s->held.data, s->held.data + s->passed, s->held.n - s->passed);
        s->held.n -= s->passed;
        s->passed = 0;
    }
}

int lt_stop_scan_feed(lt_stop_scan *s, const char *text, size_t n, const char **out,
                      size_t *out_n) {
    int which = -1;
    size_t at;

    *out = text;
    *out_n = n;
    if (s->n_stops == 0) {
        return -1;
    }
    drop_passed(s);
    lt_out_raw(&s->held, text, n);
    if (s->held.failed || s->held.n == 0) {
        return -1;
    }
    at = find(s, s->held.data, s->held.n, &which);
    *out = s->held.data;
    if (which >= 0) {
        *out_n = at + (s->include ? s->lengths[which] : 0);
        return which;
    }
    s->passed = s->held.n - undecided(s, s->held.data, s->held.n);
    *out_n = s->passed;
    return -1;
}

void lt_stop_scan_end(lt_stop_scan *s, const char **out, size_t *out_n) {
    drop_passed(s);
    *out = s->held.data != NULL ? s->held.data : "";
    *out_n = s->held.n;
}
