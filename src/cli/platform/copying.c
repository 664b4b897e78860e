/* copying.c: see copying.h. A process makes one copy at a time. */
#include "cli/platform/copying.h"

#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "platform/copy/shard_cache.h"

#define JSON_EVERY_S  1.0
#define PLAIN_EVERY_S 10.0
#define RATE_OVER_S   5.0 /* The rate shown is that of about the last five seconds. */

enum { SIGNALS = 3 };
static const int signals[SIGNALS] = {SIGINT, SIGTERM, SIGHUP};

static struct {
    atomic_bool stop; /* Set by signal handlers. */
    bool json;
    bool own[SIGNALS]; /* Our handler replaces `before`. */
    lt_progress line;
    double next_json_s, at_s, rate_bytes; /* at_s: of the last call. */
    int64_t moved_bytes;
    struct sigaction before[SIGNALS], before_size;
} shown;

static void on_signal(int number) {
    (void)number;
    atomic_store(&shown.stop, true);
}

/* Stop the copy and call the previous handler, e.g. the server's. */
static void on_signal_too(int number) {
    atomic_store(&shown.stop, true);
    for (int i = 0; i < SIGNALS; i++) {
        if (signals[i] == number) {
            shown.before[i].sa_handler(number);
        }
    }
}

/* Install our handler for the time of a copy. A SIGHUP that is ignored because of nohup stays
 * ignored. If the process does more than copy, signals that would end it or that it ignores are
 * left alone. Returns whether the handler was installed. */
static bool take_signal(int number, bool alone, struct sigaction *before) {
    const struct sigaction own = {.sa_handler = alone ? on_signal : on_signal_too};
    if (sigaction(number, NULL, before) != 0 ||
        (number == SIGHUP && before->sa_handler == SIG_IGN) ||
        (!alone && (before->sa_handler == SIG_DFL || before->sa_handler == SIG_IGN ||
                    (before->sa_flags & SA_SIGINFO) != 0))) {
        return false;
    }
    return sigaction(number, &own, NULL) == 0;
}

static void bytes_text(char out[32], double bytes) {
    static const char *const units[] = {"B", "kB", "MB", "GB", "TB", "PB"};
    size_t unit = 0;
    for (; bytes >= 999.5 && unit + 1 < sizeof units / sizeof *units; unit++) {
        bytes *= 1e-3;
    }
    (void)snprintf(out, 32, bytes < 9.95 && unit > 0 ? "%.1f %s" : "%.0f %s", bytes, units[unit]);
}

static void measure_rate(const lt_copy_report *r) {
    const double now_s = lt_clock_s(), span_s = now_s - shown.at_s;
    if (shown.at_s > 0.0 && span_s > 0.0) {
        const double share = span_s < RATE_OVER_S ? span_s / RATE_OVER_S : 1.0;
        const double rate = (double)(r->moved_bytes - shown.moved_bytes) / span_s;
        shown.rate_bytes = shown.rate_bytes > 0.0 ? (1.0 - share) * shown.rate_bytes + share * rate
                                                  : rate;
    }
    shown.at_s = now_s;
    shown.moved_bytes = r->moved_bytes;
}

static bool tick(void *ctx, const lt_copy_report *r) {
    char done[32], total[32], rate[32], eta[LT_CLOCK_TEXT_BYTES] = "?", files[64] = "";
    const double left = (double)(r->total_bytes - r->done_bytes);
    (void)ctx;
    measure_rate(r);
    const bool known = shown.rate_bytes > 0.0 && left >= 0.0;
    if (shown.json) {
        if (lt_clock_s() >= shown.next_json_s) {
            shown.next_json_s = lt_clock_s() + JSON_EVERY_S;
            printf("{\"event\": \"progress\", \"files\": %lld, \"files_done\": %lld, \"bytes\": "
                   "%lld, \"total_bytes\": %lld, \"rate_bytes_s\": %.0f, \"eta_s\": ",
                   (long long)r->n_files, (long long)r->n_files_done, (long long)r->done_bytes,
                   (long long)r->total_bytes, shown.rate_bytes);
            printf(known ? "%.1f}\n" : "null}\n", left / shown.rate_bytes);
            fflush(stdout);
        }
        return atomic_load(&shown.stop);
    }
    bytes_text(done, (double)r->done_bytes);
    bytes_text(total, (double)r->total_bytes);
    bytes_text(rate, shown.rate_bytes);
    if (known) {
        (void)lt_duration_text(eta, left / shown.rate_bytes);
    }
    if (r->n_files > 1) {
        (void)snprintf(files, sizeof files, ", %lld of %lld files", (long long)r->n_files_done,
                       (long long)r->n_files);
    }
    lt_progress_show(&shown.line, "copy: %s of %s%s, %s/s, %s left", done, total, files, rate, eta);
    return atomic_load(&shown.stop);
}

static bool is_stopped(void *ctx) {
    (void)ctx;
    return atomic_load(&shown.stop);
}

void lt_copying_show(lt_copy_options *o, bool json, bool alone) {
    const struct sigaction ignored = {.sa_handler = SIG_IGN};
    atomic_store(&shown.stop, false);
    shown.json = json;
    /* A short copy shows no line if there is no terminal. */
    shown.line = (lt_progress){.plain_every_s = PLAIN_EVERY_S,
                               .next_plain_s = lt_clock_s() + PLAIN_EVERY_S};
    shown.next_json_s = shown.at_s = shown.rate_bytes = 0.0;
    shown.moved_bytes = 0;
    o->tick = tick;
    o->stop = is_stopped;
    for (int i = 0; i < SIGNALS; i++) {
        shown.own[i] = take_signal(signals[i], alone, &shown.before[i]);
    }
    /* A write beyond `ulimit -f` should fail; the signal would end the process. */
    (void)sigaction(SIGXFSZ, &ignored, &shown.before_size);
}

void lt_copying_shown(void) {
    lt_progress_end(&shown.line);
    for (int i = 0; i < SIGNALS; i++) {
        if (shown.own[i]) {
            (void)sigaction(signals[i], &shown.before[i], NULL);
        }
    }
    (void)sigaction(SIGXFSZ, &shown.before_size, NULL);
}

typedef lt_err bring_fn(char out[LT_COPY_PATH_BYTES], const char *text, const lt_copy_options *o);

static lt_err bring_by(bring_fn *bring, char out[LT_PATH_BYTES], const char *text) {
    lt_copy_options o = lt_copy_defaults();
    lt_err err;
    if (strstr(text, "://") == NULL) {
        return bring(out, text, &o); /* A path needs no progress line. */
    }
    /* If a signal ends the verb, what has arrived is kept for the next attempt. */
    lt_copying_show(&o, false, false);
    err = bring(out, text, &o);
    lt_copying_shown();
    return err;
}

lt_err lt_cli_bring(char out[LT_PATH_BYTES], const char *text) {
    return bring_by(lt_copy_bring, out, text);
}

lt_err lt_cli_bring_option(char value[LT_OPTION_STR_BYTES]) {
    char path[LT_PATH_BYTES];
    LT_TRY(lt_cli_bring(path, value));
    if (strlen(path) >= LT_OPTION_STR_BYTES) {
        LT_FAIL(LT_ERR_LIMIT, "%s is at a path of %zu bytes; at most %d", value, strlen(path),
                LT_OPTION_STR_BYTES - 1);
    }
    memcpy(value, path, strlen(path) + 1);
    return LT_OK;
}

/* Length of a mixture's entry without its weight, a number after the last colon. */
static size_t path_length(const char *entry, size_t n) {
    size_t at = n;
    while (at > 0 && entry[at - 1] != ':' && entry[at - 1] != '/') {
        at--;
    }
    return at > 0 && at < n && entry[at - 1] == ':' &&
                   strspn(entry + at, "0123456789.eE+-") >= n - at
               ? at - 1
               : n;
}

lt_err lt_cli_bring_data(char value[LT_OPTION_STR_BYTES], bool streams) {
    char all[LT_OPTION_STR_BYTES] = "", text[LT_OPTION_STR_BYTES], path[LT_PATH_BYTES];
    size_t used = 0;
    for (const char *at = value; *at != '\0';) {
        const size_t n = strcspn(at, ","), bare = path_length(at, n);
        int more;
        (void)snprintf(text, sizeof text, "%.*s", (int)bare, at);
        if (streams && lt_shard_cache_takes(text)) {
            memcpy(path, text, sizeof text);
        } else {
            LT_TRY(bring_by(lt_copy_bring_data, path, text));
        }
        more = snprintf(all + used, sizeof all - used, "%s%s%.*s", used > 0 ? "," : "", path,
                        (int)(n - bare), at + bare);
        if (more < 0 || (size_t)more >= sizeof all - used) {
            LT_FAIL(LT_ERR_LIMIT, "%.200s: with the paths in the cache, the mixture is too long",
                    value);
        }
        used += (size_t)more;
        at += n + (at[n] == ',');
    }
    memcpy(value, all, used + 1);
    return LT_OK;
}
