/* sse.c: see sse.h. */
#include "serve/http/sse.h"

#include <stdio.h>
#include <string.h>

void lt_sse_reset(lt_sse *s) {
    lt_out_clear(&s->line);
    lt_out_clear(&s->data);
    s->event[0] = '\0';
    s->after_cr = s->started = s->failed = false;
}

void lt_sse_free(lt_sse *s) {
    lt_out_free(&s->line);
    lt_out_free(&s->data);
}

static void dispatch(lt_sse *s) {
    if (s->data.n > 0 && !s->failed) {
        s->data.data[--s->data.n] = '\0'; /* Without the last newline. */
        s->on_event(s->ctx, s->event, s->data.data, s->data.n);
    }
    lt_out_clear(&s->data);
    s->event[0] = '\0';
}

/* One line without its end. */
static void take_line(lt_sse *s, char *line, size_t n) {
    char *colon = memchr(line, ':', n), *value = line + n;
    size_t width = n, value_n = 0;

    if (n == 0) {
        dispatch(s);
        return;
    }
    if (colon != NULL) {
        width = (size_t)(colon - line);
        value = colon + 1;
        value_n = n - width - 1;
        if (value_n > 0 && value[0] == ' ') {
            value++;
            value_n--;
        }
    }
    if (width == 4 && memcmp(line, "data", 4) == 0) {
        lt_out_raw(&s->data, value, value_n);
        lt_out_raw(&s->data, "\n", 1);
        s->failed |= s->data.failed || s->data.n > LT_SSE_MAX_BYTES;
    } else if (width == 5 && memcmp(line, "event", 5) == 0) {
        snprintf(s->event, sizeof s->event, "%.*s", (int)(value_n < 63 ? value_n : 63), value);
    }
}

static void end_line(lt_sse *s) {
    char empty[1] = "", *line = s->line.data != NULL ? s->line.data : empty;
    size_t n = s->line.n;
    if (!s->started && n >= 3 && memcmp(line, "\xEF\xBB\xBF", 3) == 0) {
        line += 3;
        n -= 3;
    }
    s->started = true;
    take_line(s, line, n);
    lt_out_clear(&s->line);
}

void lt_sse_feed(lt_sse *s, const char *bytes, size_t n) {
    size_t from = 0;
    for (size_t i = 0; i < n && !s->failed; i++) {
        if (bytes[i] != '\n' && bytes[i] != '\r') {
            s->after_cr = false;
            continue;
        }
        if (bytes[i] == '\n' && s->after_cr) { /* The second half of "\r\n". */
            s->after_cr = false;
            from = i + 1;
            continue;
        }
        s->after_cr = bytes[i] == '\r';
        lt_out_raw(&s->line, bytes + from, i - from);
        from = i + 1;
        end_line(s);
    }
    if (!s->failed && from < n) {
        lt_out_raw(&s->line, bytes + from, n - from);
        s->failed = s->line.failed || s->line.n > LT_SSE_MAX_BYTES;
    }
}
