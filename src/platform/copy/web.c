/* web.c: see web.h. There is one easy handle per connection, always with HTTP/1.1: a copy is
 * limited by bytes, not by requests, and each connection then has its own flow control.
 *
 * The rate is limited by a virtual clock that all connections advance: a piece of n bytes advances
 * free_at_s by n / rate, and its connection sleeps until then, inside libcurl's callback. */
#include "platform/copy/web.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>
#include <unistd.h>

#include <dlfcn.h>

#define CURL_DISABLE_TYPECHECK /* Its macros would name the functions that are opened below. */
#include <curl/curl.h>

#include "base/clock.h"
#include "base/error.h"

#define BUFFER_BYTES    (512L << 10)
#define LONGEST_WAIT_S  20.0
#define NAME_TRIES      3     /* Tries for a name that cannot be resolved, */
#define LONG_LOOKUP_S   2.0   /* unless the resolver itself has retried for this long. */
#define LONGEST_ASKED_S 300.0 /* A server's Retry-After beyond it is not followed. */
#define SLEEP_S         0.05  /* How long `stop` may remain unnoticed. */
#define MOST_REDIRECTS  10L

struct lt_web {
    lt_web_shared *shared;
    CURL *curl;
    char error[CURL_ERROR_SIZE];
    /* State of the current request: */
    const lt_web_request *request;
    lt_web_reply *reply;
    size_t sent, header_bytes, room;
    bool out_of_memory;
};

/* libcurl is opened when the first copy needs it, because it loads some thirty other libraries,
 * for which other verbs should not wait, and which they should not need. */
#define CURL_MAP(X)                                                                                \
    X(global_init)                                                                                 \
    X(easy_init)                                                                                   \
    X(easy_cleanup)                                                                                \
    X(easy_reset)                                                                                  \
    X(easy_setopt)                                                                                 \
    X(easy_getinfo) X(easy_perform) X(easy_strerror) X(slist_append) X(slist_free_all)

static struct {
#define CURL_MEMBER(name) __typeof__(&(curl_##name)) name;
    CURL_MAP(CURL_MEMBER)
} curl;

static pthread_once_t curl_once = PTHREAD_ONCE_INIT;
static char curl_failed[256]; /* "": it has started. */

static void curl_start(void) {
    void *lib = dlopen("libcurl.so.4", RTLD_NOW | RTLD_LOCAL);
    if (lib == NULL) {
        (void)snprintf(curl_failed, sizeof curl_failed, "%s", dlerror());
        return;
    }
#define CURL_FIND(name)                                                                            \
    *(void **)&curl.name = dlsym(lib, "curl_" #name);                                              \
    if (curl.name == NULL) {                                                                       \
        (void)snprintf(curl_failed, sizeof curl_failed, "libcurl.so.4 has no curl_" #name);        \
        return;                                                                                    \
    }
    CURL_MAP(CURL_FIND)
    if (curl.global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK) {
        (void)snprintf(curl_failed, sizeof curl_failed, "libcurl does not start");
    }
}

void lt_web_shared_open(lt_web_shared *s) {
    *s = (lt_web_shared){.connect_s = 15.0};
    LT_ASSERT(pthread_mutex_init(&s->lock, NULL) == 0);
}

void lt_web_shared_close(lt_web_shared *s) {
    (void)pthread_mutex_destroy(&s->lock);
}

lt_err lt_web_open(lt_web **out, lt_web_shared *shared) {
    lt_web *h;
    (void)pthread_once(&curl_once, curl_start);
    if (curl_failed[0] != '\0') {
        LT_FAIL(LT_ERR_UNSUPPORTED, "%s (Debian's package libcurl4)", curl_failed);
    }
    h = calloc(1, sizeof *h);
    if (h == NULL || (h->curl = curl.easy_init()) == NULL) {
        free(h);
        LT_FAIL(LT_ERR_OOM, "a connection");
    }
    h->shared = shared;
    *out = h;
    return LT_OK;
}

void lt_web_close(lt_web *h) {
    if (h != NULL) {
        curl.easy_cleanup(h->curl);
        free(h);
    }
}

/* Whether requests must end. */
static bool is_stopped(lt_web_shared *s) {
    if (s->asked != NULL && s->asked(s->ctx)) {
        atomic_store(&s->stop, true);
    }
    return atomic_load(&s->stop);
}

const atomic_bool *lt_web_stop(const lt_web *h) {
    return &h->shared->stop;
}

void lt_web_count(lt_web *h, bool read, int64_t bytes) {
    if (read ? h->shared->reads_count : h->shared->writes_count) {
        atomic_fetch_add(&h->shared->moved, (long long)bytes);
    }
}

/* Sleep until the monotonic clock shows until_s, or `stop`. */
static void sleep_until(lt_web_shared *s, double until_s) {
    double left;
    while ((left = until_s - lt_clock_s()) > 0.0 && !is_stopped(s)) {
        const double part = left < SLEEP_S ? left : SLEEP_S;
        const struct timespec span = {.tv_nsec = (long)(part * 1e9)};
        (void)nanosleep(&span, NULL);
    }
}

static void count(lt_web *h, bool read, int64_t bytes) {
    if (h->request->counted) {
        lt_web_count(h, read, bytes);
    }
}

/* Wait until the rate permits what follows these bytes. */
static void wait_for_rate(lt_web_shared *s, int64_t bytes) {
    double until_s;
    const double now_s = lt_clock_s();
    if (s->rate_bytes == 0) {
        return;
    }
    pthread_mutex_lock(&s->lock);
    s->free_at_s = (s->free_at_s > now_s ? s->free_at_s : now_s) +
                   (double)bytes / (double)s->rate_bytes;
    until_s = s->free_at_s;
    pthread_mutex_unlock(&s->lock);
    sleep_until(s, until_s);
}

static void pass(lt_web *h, bool read, size_t bytes) {
    count(h, read, (int64_t)bytes);
    wait_for_rate(h->shared, (int64_t)bytes);
}

void lt_web_read_locally(lt_web *h, int64_t bytes) {
    lt_web_count(h, true, bytes);
    if (h->shared->reads_count) {
        wait_for_rate(h->shared, bytes);
    }
}

static int on_progress(void *ctx, curl_off_t a, curl_off_t b, curl_off_t c, curl_off_t d) {
    lt_web *h = ctx;
    (void)a;
    (void)b;
    (void)c;
    (void)d;
    return is_stopped(h->shared) ? 1 : 0;
}

static size_t on_header(char *data, size_t one, size_t n, void *ctx) {
    lt_web *h = ctx;
    lt_web_reply *r = h->reply;
    (void)one;
    /* The headers of the reply after a redirection begin. */
    if (n >= 5 && memcmp(data, "HTTP/", 5) == 0) {
        h->header_bytes = 0;
    }
    if (h->header_bytes + n < sizeof r->headers) {
        memcpy(r->headers + h->header_bytes, data, n);
        h->header_bytes += n;
    }
    r->headers[h->header_bytes] = '\0';
    return n;
}

static size_t keep_body(lt_web *h, const char *data, size_t n) {
    lt_web_reply *r = h->reply;
    if (r->body_bytes + n > LT_WEB_BODY_MOST) {
        r->too_long = true;
        return 0;
    }
    if (r->body == NULL || r->body_bytes + n >= h->room) {
        const size_t room = 2 * (r->body_bytes + n) + 4096;
        char *grown = realloc(r->body, room);
        if (grown == NULL) {
            h->out_of_memory = true;
            return 0;
        }
        r->body = grown;
        h->room = room;
    }
    memcpy(r->body + r->body_bytes, data, n);
    r->body_bytes += n;
    r->body[r->body_bytes] = '\0';
    return n;
}

static size_t on_body(char *data, size_t one, size_t n, void *ctx) {
    lt_web *h = ctx;
    lt_web_reply *r = h->reply;
    long status = 0;
    (void)one;
    if (n == 0) {
        return 0;
    }
    (void)curl.easy_getinfo(h->curl, CURLINFO_RESPONSE_CODE, &status);
    if (h->request->into == NULL || (status != 200 && status != 206)) {
        return keep_body(h, data, n);
    }
    if (n > h->request->into_bytes - r->got) {
        r->too_long = true;
        return 0;
    }
    memcpy(h->request->into + r->got, data, n);
    r->got += n;
    pass(h, true, n);
    return n;
}

static size_t on_read(char *to, size_t one, size_t room, void *ctx) {
    lt_web *h = ctx;
    const size_t left = h->request->body_bytes - h->sent, n = left < room ? left : room;
    (void)one;
    if (n > 0) {
        memcpy(to, (const char *)h->request->body + h->sent, n);
        h->sent += n;
        pass(h, false, n);
    }
    return n;
}

/* libcurl sends a body again when a connection that it kept turns out to be closed. */
static int on_seek(void *ctx, curl_off_t offset, int origin) {
    lt_web *h = ctx;
    if (origin != SEEK_SET || offset < 0 || (size_t)offset > h->request->body_bytes) {
        return CURL_SEEKFUNC_CANTSEEK;
    }
    count(h, false, (int64_t)offset - (int64_t)h->sent);
    h->sent = (size_t)offset;
    return CURL_SEEKFUNC_OK;
}

/* A file of certificates that the user trusts in addition to the system's. */
static const char *trusted(void) {
    static const char *const variables[] = {"AWS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_FILE"};
    for (size_t i = 0; i < sizeof variables / sizeof *variables; i++) {
        const char *value = getenv(variables[i]);
        if (value != NULL && value[0] != '\0') {
            return value;
        }
    }
    return NULL;
}

static long buffer_bytes(const lt_web_shared *s) {
    const long fit = s->rate_bytes > 0 ? (long)(s->rate_bytes / 16) : BUFFER_BYTES;
    return fit > BUFFER_BYTES ? BUFFER_BYTES : fit < 1024 ? 1024 : fit;
}

static void set_method(lt_web *h, const lt_web_request *r) {
    CURL *c = h->curl;
    if (strcmp(r->method, "HEAD") == 0) {
        curl.easy_setopt(c, CURLOPT_NOBODY, 1L);
    } else if (strcmp(r->method, "PUT") == 0) {
        curl.easy_setopt(c, CURLOPT_UPLOAD, 1L);
        curl.easy_setopt(c, CURLOPT_INFILESIZE_LARGE, (curl_off_t)r->body_bytes);
        curl.easy_setopt(c, CURLOPT_READFUNCTION, on_read);
        curl.easy_setopt(c, CURLOPT_READDATA, h);
        curl.easy_setopt(c, CURLOPT_SEEKFUNCTION, on_seek);
        curl.easy_setopt(c, CURLOPT_SEEKDATA, h);
    } else if (strcmp(r->method, "POST") == 0) {
        curl.easy_setopt(c, CURLOPT_POST, 1L);
        curl.easy_setopt(c, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)r->body_bytes);
        curl.easy_setopt(c, CURLOPT_POSTFIELDS, r->body != NULL ? r->body : "");
    } else if (strcmp(r->method, "GET") != 0) {
        curl.easy_setopt(c, CURLOPT_CUSTOMREQUEST, r->method);
    }
}

static void set_options(lt_web *h, const lt_web_request *r, struct curl_slist *headers) {
    CURL *c = h->curl;
    curl.easy_reset(c);
    curl.easy_setopt(c, CURLOPT_URL, r->url);
    curl.easy_setopt(c, CURLOPT_ERRORBUFFER, h->error);
    curl.easy_setopt(c, CURLOPT_NOSIGNAL, 1L);
    curl.easy_setopt(c, CURLOPT_PATH_AS_IS, 1L);
    curl.easy_setopt(c, CURLOPT_PROTOCOLS_STR, "http,https");
    curl.easy_setopt(c, CURLOPT_REDIR_PROTOCOLS_STR,
                     strncmp(r->url, "https:", 6) == 0 ? "https" : "http,https");
    curl.easy_setopt(c, CURLOPT_FOLLOWLOCATION, r->follow ? 1L : 0L);
    curl.easy_setopt(c, CURLOPT_MAXREDIRS, MOST_REDIRECTS);
    curl.easy_setopt(c, CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1);
    curl.easy_setopt(c, CURLOPT_USERAGENT, "lateen/" LT_VERSION);
    curl.easy_setopt(c, CURLOPT_TCP_KEEPALIVE, 1L);
    curl.easy_setopt(c, CURLOPT_CONNECTTIMEOUT_MS, (long)(h->shared->connect_s * 1e3));
    curl.easy_setopt(c, CURLOPT_LOW_SPEED_LIMIT, 1L);
    curl.easy_setopt(c, CURLOPT_LOW_SPEED_TIME,
                     h->shared->stall_s < 1.0 ? 1L : (long)h->shared->stall_s);
    curl.easy_setopt(c, CURLOPT_BUFFERSIZE, buffer_bytes(h->shared));
    curl.easy_setopt(c, CURLOPT_UPLOAD_BUFFERSIZE,
                     buffer_bytes(h->shared) < 16384 ? 16384L : buffer_bytes(h->shared));
    curl.easy_setopt(c, CURLOPT_HTTPHEADER, headers);
    curl.easy_setopt(c, CURLOPT_HEADERFUNCTION, on_header);
    curl.easy_setopt(c, CURLOPT_HEADERDATA, h);
    curl.easy_setopt(c, CURLOPT_WRITEFUNCTION, on_body);
    curl.easy_setopt(c, CURLOPT_WRITEDATA, h);
    curl.easy_setopt(c, CURLOPT_NOPROGRESS, 0L);
    curl.easy_setopt(c, CURLOPT_XFERINFOFUNCTION, on_progress);
    curl.easy_setopt(c, CURLOPT_XFERINFODATA, h);
    if (trusted() != NULL) {
        curl.easy_setopt(c, CURLOPT_CAINFO, trusted());
    }
    set_method(h, r);
}

static lt_err header_list(struct curl_slist **out, const lt_web_request *r) {
    /* Send no "Expect: 100-continue", which causes a pause, and no type of a form, which would have
     * to be signed. */
    static const char *const none[] = {"Expect:", "Content-Type:", "Accept:"};
    struct curl_slist *list = NULL, *grown;
    lt_err err = LT_OK;
    for (size_t i = 0; i < sizeof none / sizeof *none + r->n_headers; i++) {
        const size_t own = i - sizeof none / sizeof *none;
        char *line = NULL;
        if (i < sizeof none / sizeof *none) {
            grown = curl.slist_append(list, none[i]);
        } else {
            if (asprintf(&line, "%s: %s", r->headers[own].name, r->headers[own].value) < 0) {
                line = NULL;
            }
            grown = line != NULL ? curl.slist_append(list, line) : NULL;
            free(line);
        }
        if (grown == NULL) {
            LT_FAIL_DONE(LT_ERR_OOM, "headers of a request");
        }
        list = grown;
    }
    *out = list;
    list = NULL;
done:
    curl.slist_free_all(list);
    return err;
}

/* Perform a request, without the signal that a write to a closed connection raises in OpenSSL. */
static CURLcode perform(CURL *handle) {
    const struct timespec now = {0};
    sigset_t pipe, before;
    CURLcode code;
    (void)sigemptyset(&pipe);
    (void)sigaddset(&pipe, SIGPIPE);
    (void)pthread_sigmask(SIG_BLOCK, &pipe, &before);
    code = curl.easy_perform(handle);
    while (sigtimedwait(&pipe, NULL, &now) > 0) {
        /* The signal was sent to this thread, and is now consumed. */
    }
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    return code;
}

lt_err lt_web_send(lt_web *h, const lt_web_request *r, lt_web_reply *reply) {
    struct curl_slist *headers = NULL;
    curl_off_t after_s = 0;
    const char *final = NULL;
    long status = 0, redirects = 0;
    double begin_s;
    CURLcode code;

    *reply = (lt_web_reply){0};
    if (is_stopped(h->shared)) {
        LT_FAIL(LT_ERR_INTERRUPTED, "the copy was stopped");
    }
    LT_TRY(header_list(&headers, r));
    h->request = r;
    h->reply = reply;
    h->sent = h->header_bytes = h->room = 0;
    h->out_of_memory = false;
    h->error[0] = '\0';
    set_options(h, r, headers);
    begin_s = lt_clock_s();
    code = perform(h->curl);
    curl.slist_free_all(headers);
    (void)curl.easy_getinfo(h->curl, CURLINFO_RESPONSE_CODE, &status);
    (void)curl.easy_getinfo(h->curl, CURLINFO_RETRY_AFTER, &after_s);
    (void)curl.easy_getinfo(h->curl, CURLINFO_REDIRECT_COUNT, &redirects);
    reply->redirected = redirects > 0;
    (void)curl.easy_getinfo(h->curl, CURLINFO_EFFECTIVE_URL, &final);
    reply->status = (int)status;
    reply->lookup_s = code == CURLE_COULDNT_RESOLVE_HOST ? lt_clock_s() - begin_s : 0.0;
    if (status > 0) {
        atomic_store(&h->shared->reached, true);
    }
    reply->retry_after_s = (double)after_s;
    if (final == NULL || snprintf(reply->final_url, sizeof reply->final_url, "%s", final) >=
                             (int)sizeof reply->final_url) {
        reply->final_url[0] = '\0';
    }
    if (code != CURLE_OK) {
        reply->incomplete = true;
        (void)snprintf(reply->failure, sizeof reply->failure, "%s",
                       h->error[0] != '\0' ? h->error : curl.easy_strerror(code));
    }
    if (code != CURLE_OK || status / 100 != 2) { /* The sent bytes must be sent again. */
        count(h, false, -(int64_t)h->sent);
    }
    if (is_stopped(h->shared)) {
        lt_web_reply_free(reply);
        LT_FAIL(LT_ERR_INTERRUPTED, "the copy was stopped");
    }
    if (h->out_of_memory) {
        lt_web_reply_free(reply);
        LT_FAIL(LT_ERR_OOM, "a reply of more than %zu bytes", reply->body_bytes);
    }
    return LT_OK;
}

void lt_web_reply_free(lt_web_reply *reply) {
    free(reply->body);
    reply->body = NULL;
}

bool lt_web_header(const lt_web_reply *reply, const char *name, char *out, size_t room) {
    const size_t n = strlen(name);
    out[0] = '\0';
    for (const char *line = reply->headers; *line != '\0';) {
        const size_t end = strcspn(line, "\r\n");
        if (end > n && line[n] == ':' && strncasecmp(line, name, n) == 0) {
            const char *value = line + n + 1;
            size_t bytes = end - n - 1;
            while (bytes > 0 && (*value == ' ' || *value == '\t')) {
                value++;
                bytes--;
            }
            while (bytes > 0 && (value[bytes - 1] == ' ' || value[bytes - 1] == '\t')) {
                bytes--;
            }
            (void)snprintf(out, room, "%.*s", (int)(bytes < room ? bytes : room - 1), value);
            return true;
        }
        line += end;
        line += strspn(line, "\r\n");
    }
    return false;
}

void lt_retry_begin(lt_retry *t) {
    static atomic_ullong n; /* Different requests have different random streams. */
    *t = (lt_retry){.rng = {.seed = lt_clock_ns() ^ (uint64_t)getpid() << 32,
                            .stream = atomic_fetch_add(&n, 1)}};
}

bool lt_retry_may_help(const lt_web_reply *reply) {
    static const int passing[] = {408, 429, 500, 502, 503, 504};
    for (size_t i = 0; i < sizeof passing / sizeof *passing; i++) {
        if (reply->status == passing[i]) {
            return true;
        }
    }
    return reply->status == 0 || reply->incomplete;
}

lt_err lt_retry_wait(lt_retry *t, lt_web *h, const lt_web_reply *reply, bool *again) {
    lt_web_shared *s = h->shared;
    double wait_s = s->delay_s * 2.0;
    int64_t tries = s->tries;
    if (reply->lookup_s > 0.0 && !atomic_load(&s->reached)) {
        const int64_t most = reply->lookup_s > LONG_LOOKUP_S ? 1 : NAME_TRIES;
        tries = tries < most ? tries : most;
    }
    t->n++;
    *again = t->n < tries && reply->retry_after_s <= LONGEST_ASKED_S;
    if (!*again) {
        return LT_OK;
    }
    for (int64_t i = 1; i < t->n && wait_s < LONGEST_WAIT_S; i++) {
        wait_s *= 2.0;
    }
    wait_s = (wait_s < LONGEST_WAIT_S ? wait_s : LONGEST_WAIT_S) * lt_rng_uniform(&t->rng);
    wait_s = wait_s > reply->retry_after_s ? wait_s : reply->retry_after_s;
    atomic_fetch_add(&s->n_retries, 1);
    sleep_until(s, lt_clock_s() + wait_s);
    if (is_stopped(s)) {
        LT_FAIL(LT_ERR_INTERRUPTED, "the copy was stopped");
    }
    return LT_OK;
}
