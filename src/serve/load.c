/* load.c: see load.h. */
#include "serve/load.h"

#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <event2/event.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/rng.h"
#include "serve/http/parse.h"
#include "serve/http/sse.h"

#define BLOCK_TOKENS 512 /* Tokens per hash id of the Mooncake traces. */

typedef struct load load;

/* A lane: a connection to the server and its current request. */
typedef struct {
    load *l;
    struct bufferevent *bev;
    struct event *timeout;
    lt_http_parser parser;
    lt_sse sse;
    int64_t request; /* Index; -1: idle. */
    int64_t drop_at; /* Disconnect after this many tokens; -1: never. */
    bool fresh;      /* Connected anew for this request. */
    /* The beginning of an answer with a status other than 200, or of an error in a stream. */
    char said[1024];
    size_t said_n;
} lane;

struct load {
    const lt_load_options *o;
    const lt_load_request *requests;
    lt_load_result *results;
    int64_t n, next, finished, running;
    struct event_base *base;
    struct event *clock; /* When the next request is due. */
    struct event *second;
    struct sockaddr_storage to;
    socklen_t to_n;
    lane *lanes;
    double start_s;
    int64_t unreachable;
};

static double now_of(const load *l) {
    return lt_clock_s() - l->start_s;
}

static void send_due(load *l);

/* ---- Bodies ---- */

static int64_t id_at(const lt_load_options *o, const lt_load_request *r, int64_t i) {
    /* Skip the special tokens at the beginning of most vocabularies. */
    const int64_t low = o->vocab > 64 ? 16 : 3;
    uint64_t seed = r->prompt_seed;
    if (r->n_blocks > 0 && i / BLOCK_TOKENS < r->n_blocks) {
        seed = lt_rng_mix((uint64_t)r->blocks[i / BLOCK_TOKENS] + 1);
        i %= BLOCK_TOKENS;
    }
    return low + (int64_t)(lt_rng_mix(seed ^ (uint64_t)i * 0x9E3779B97F4A7C15U) %
                           (uint64_t)(o->vocab - low));
}

static void put_words(lt_json_out *b, const lt_load_options *o, const lt_load_request *r) {
    lt_json_out words = {0};
    for (int64_t i = 0; i < r->prompt_tokens; i++) {
        static const char *const some[] = {" the", " a",    " day", " little", " boat",
                                           " was", " and",  " sea", " wind",   " sail",
                                           " to",  " said", " in",  " he",     " she"};
        const char *w = some[id_at(o, r, i) % 15];
        lt_out_raw(&words, w, strlen(w));
    }
    lt_out_str(b, words.data != NULL ? words.data : "", words.n);
    lt_out_free(&words);
}

static void put_prompt(lt_json_out *b, const lt_load_options *o, const lt_load_request *r) {
    if (o->chat) {
        lt_out_key_open(b, "messages", '[');
        lt_out_open(b, '{');
        lt_out_key_str(b, "role", "user");
        lt_out_key(b, "content");
        put_words(b, o, r);
        lt_out_shut(b, '}');
        lt_out_shut(b, ']');
        return;
    }
    lt_out_key(b, "prompt");
    if (o->text_prompt) {
        put_words(b, o, r);
        return;
    }
    lt_out_open(b, '[');
    for (int64_t i = 0; i < r->prompt_tokens; i++) {
        lt_out_int(b, id_at(o, r, i));
    }
    lt_out_shut(b, ']');
}

/* Names separated by commas are used in turn. */
static void put_model(lt_json_out *b, const lt_load_options *o, int64_t index) {
    const char *name = o->model;
    int64_t n = 1;
    for (const char *p = name; *p != '\0'; p++) {
        n += *p == ',';
    }
    for (int64_t i = index % n; i > 0; i--) {
        name = strchr(name, ',') + 1;
    }
    if (*name != '\0' && *name != ',') {
        lt_out_key(b, "model");
        lt_out_str(b, name, strcspn(name, ","));
    }
}

static void put_body(lt_json_out *b, const lt_load_options *o, const lt_load_request *r,
                     int64_t index) {
    lt_out_open(b, '{');
    put_model(b, o, index);
    put_prompt(b, o, r);
    lt_out_key_int(b, "max_tokens", r->max_tokens);
    lt_out_key_real(b, "temperature", o->temperature);
    lt_out_key_bool(b, "ignore_eos", true);
    lt_out_key_bool(b, "stream", true);
    lt_out_key_open(b, "stream_options", '{');
    lt_out_key_bool(b, "include_usage", true);
    lt_out_shut(b, '}');
    lt_out_shut(b, '}');
}

/* ---- A request on a lane ---- */

static void disconnect(lane *w) {
    if (w->bev != NULL) {
        bufferevent_free(w->bev);
        w->bev = NULL;
    }
}

static void hear(lane *w, const char *text, size_t n) {
    const size_t room = sizeof w->said - 1 - w->said_n;
    memcpy(w->said + w->said_n, text, n < room ? n : room);
    w->said_n += n < room ? n : room;
    w->said[w->said_n] = '\0';
}

/* Keep the server's text of the first failure for the caller. */
static void tell_why(const lane *w, const lt_load_result *r) {
    const lt_load_options *o = w->l->o;
    const double took = r->end_s - r->sent_s;
    json_t *v, *e;
    const char *text;

    if (r->done || r->dropped || r->status == 429 || o->why == NULL || o->why[0] != '\0') {
        return;
    }
    v = json_loadb(w->said, w->said_n, 0, NULL);
    e = json_object_get(v, "error");
    text = json_string_value(json_is_object(e) ? json_object_get(e, "message") : e);
    text = text != NULL ? text : w->said;
    if (r->status == 0) {
        snprintf(o->why, o->why_n, "no answer after %.3g s", took);
    } else if (text[0] != '\0') {
        snprintf(o->why, o->why_n, "HTTP %d: %s", r->status, text);
    } else {
        snprintf(o->why, o->why_n, "HTTP %d, and no end after %.3g s", r->status, took);
    }
    json_decref(v);
}

static void finish(lane *w, bool keep) {
    load *l = w->l;
    lt_load_result *r = &l->results[w->request];
    r->end_s = now_of(l);
    tell_why(w, r);
    w->request = -1;
    event_del(w->timeout);
    if (!keep) {
        disconnect(w);
    }
    l->running--;
    if (++l->finished == l->n) {
        event_base_loopbreak(l->base);
        return;
    }
    send_due(l);
}

static void on_usage(lt_load_result *r, const json_t *usage) {
    const json_t *details = json_object_get(usage, "prompt_tokens_details");
    if (json_is_object(usage)) {
        r->prompt_tokens = json_integer_value(json_object_get(usage, "prompt_tokens"));
        r->cached_tokens = json_integer_value(json_object_get(details, "cached_tokens"));
        r->new_tokens = json_integer_value(json_object_get(usage, "completion_tokens"));
    }
}

/* A chunk with text is a token, or several that a server sends together: the usage at the end has
 * the exact number. */
static bool has_text(const char *data) {
    const char *p = strstr(data, "\"text\":\"");
    if (p == NULL) {
        p = strstr(data, "\"content\":\"");
        p = p != NULL ? p + 11 : NULL;
    } else {
        p += 8;
    }
    return (p != NULL && *p != '"') || strstr(data, "\"reasoning") != NULL;
}

static void on_sse(void *ctx, const char *event, const char *data, size_t n) {
    lane *w = ctx;
    load *l = w->l;
    lt_load_result *r;
    const double now = now_of(l);
    (void)event;

    if (w->request < 0) {
        return;
    }
    r = &l->results[w->request];
    if (strcmp(data, "[DONE]") == 0) {
        r->done = true;
        return;
    }
    if (strncmp(data, "{\"error\"", 8) == 0) {
        hear(w, data, n);
    }
    if (has_text(data)) {
        if (r->first_s == 0) {
            r->first_s = now;
        } else {
            const double gap = now - r->last_s;
            r->gap_max_s = gap > r->gap_max_s ? gap : r->gap_max_s;
            if (l->o->on_gap != NULL) {
                l->o->on_gap(l->o->ctx, gap);
            }
        }
        r->last_s = now;
        r->new_tokens++;
    }
    if (strstr(data, "\"usage\":{") != NULL || strstr(data, "\"usage\": {") != NULL) {
        json_t *v = json_loadb(data, n, 0, NULL);
        on_usage(r, json_object_get(v, "usage"));
        json_decref(v);
    }
}

static void on_body(void *ctx, const char *data, size_t n) {
    lane *w = ctx;
    if (w->parser.status == 200) {
        lt_sse_feed(&w->sse, data, n);
    } else {
        hear(w, data, n);
    }
}

static void on_read(struct bufferevent *bev, void *arg) {
    lane *w = arg;
    struct evbuffer *in = bufferevent_get_input(bev);
    struct evbuffer_iovec v;

    while (w->request >= 0 && evbuffer_peek(in, -1, NULL, &v, 1) > 0 && v.iov_len > 0) {
        evbuffer_drain(in, lt_http_parser_feed(&w->parser, v.iov_base, v.iov_len));
        w->l->results[w->request].status = w->parser.status;
        if (w->drop_at >= 0 && w->l->results[w->request].new_tokens >= w->drop_at) {
            w->l->results[w->request].dropped = true;
            finish(w, false);
            return;
        }
        if (w->parser.stage == LT_HTTP_READY || w->parser.stage == LT_HTTP_BAD) {
            finish(w, w->parser.stage == LT_HTTP_READY && w->parser.keep_alive);
            return;
        }
    }
}

static void write_request(lane *w);

static void on_event(struct bufferevent *bev, short what, void *arg) {
    lane *w = arg;
    (void)bev;
    if ((what & BEV_EVENT_CONNECTED) != 0) {
        return;
    }
    if (w->request < 0) {
        disconnect(w); /* An idle connection was closed by the server. */
        return;
    }
    if (!w->fresh && w->parser.head_n == 0) {
        disconnect(w); /* It was closed just as the request was sent: retry on a new connection. */
        write_request(w);
        return;
    }
    if (w->fresh && w->l->results[w->request].status == 0) {
        w->l->unreachable++;
    }
    lt_http_parser_end(&w->parser);
    finish(w, false);
}

static void on_timeout(evutil_socket_t fd, short what, void *arg) {
    lane *w = arg;
    (void)fd;
    (void)what;
    if (w->request >= 0) {
        finish(w, false);
    }
}

static void write_request(lane *w) {
    load *l = w->l;
    lt_json_out body = {0};
    const int one = 1;

    w->fresh = w->bev == NULL;
    if (w->bev == NULL) {
        w->bev = bufferevent_socket_new(l->base, -1, BEV_OPT_CLOSE_ON_FREE);
        LT_ASSERT(w->bev != NULL);
        bufferevent_setcb(w->bev, on_read, NULL, on_event, w);
        bufferevent_enable(w->bev, EV_READ | EV_WRITE);
    }
    put_body(&body, l->o, &l->requests[w->request], w->request);
    const bool v6 = strchr(l->o->host, ':') != NULL;
    evbuffer_add_printf(
        bufferevent_get_output(w->bev),
        "POST %s/v1/%s HTTP/1.1\r\nHost: %s%s%s:%d\r\nContent-Type: application/json\r\n"
        "Content-Length: %zu\r\n%s%s%s\r\n",
        l->o->path_prefix, l->o->chat ? "chat/completions" : "completions", v6 ? "[" : "",
        l->o->host, v6 ? "]" : "", l->o->port, body.n,
        l->o->key[0] != '\0' ? "Authorization: Bearer " : "", l->o->key,
        l->o->key[0] != '\0' ? "\r\n" : "");
    bufferevent_write(w->bev, body.data, body.n);
    lt_out_free(&body);
    if (w->fresh &&
        bufferevent_socket_connect(w->bev, (struct sockaddr *)&l->to, (int)l->to_n) == 0) {
        setsockopt(bufferevent_getfd(w->bev), IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    }
}

static void start(lane *w, int64_t request) {
    load *l = w->l;
    const struct timeval most = lt_clock_span(l->o->timeout_s);
    lt_rng r = {.seed = l->o->seed, .stream = 7, .position = (uint64_t)request};

    w->request = request;
    w->drop_at = -1;
    if (lt_rng_uniform(&r) < l->o->drop) {
        w->drop_at = (int64_t)lt_rng_below(&r, (uint64_t)l->requests[request].max_tokens + 1);
    }
    lt_http_parser_reset(&w->parser);
    lt_sse_reset(&w->sse);
    w->said_n = 0;
    w->said[0] = '\0';
    l->results[request].sent_s = now_of(l);
    l->running++;
    event_add(w->timeout, &most);
    write_request(w);
}

/* Send the requests that are due and have a lane; otherwise set the timer. */
static void send_due(load *l) {
    int64_t free_lane = 0;
    while (l->next < l->n && l->running < l->o->concurrency) {
        const double wait = l->requests[l->next].at_s - now_of(l);
        if (wait > 0) {
            const struct timeval tv = lt_clock_span(wait);
            event_add(l->clock, &tv);
            return;
        }
        while (l->lanes[free_lane].request >= 0) {
            free_lane++;
        }
        start(&l->lanes[free_lane], l->next++);
    }
}

static void on_clock(evutil_socket_t fd, short what, void *arg) {
    (void)fd;
    (void)what;
    send_due(arg);
}

static void on_second(evutil_socket_t fd, short what, void *arg) {
    load *l = arg;
    (void)fd;
    (void)what;
    if (l->o->on_progress != NULL) {
        l->o->on_progress(l->o->ctx, l->finished, l->running, now_of(l));
    }
}

/* ---- All of it ---- */

lt_err lt_load_url(const char *url, char *host, size_t host_n, int *port, char *prefix,
                   size_t prefix_n) {
    const char *at = strncmp(url, "http://", 7) == 0 ? url + 7 : NULL, *slash, *colon, *shut;
    size_t n;

    if (at == NULL) {
        LT_FAIL(LT_ERR_ARG, "%s is not an http:// address", url);
    }
    slash = strchr(at, '/');
    n = slash != NULL ? (size_t)(slash - at) : strlen(at);
    shut = at[0] == '[' ? memchr(at, ']', n) : NULL; /* Around an IPv6 address. */
    colon = shut == NULL                          ? memchr(at, ':', n)
            : shut + 1 < at + n && shut[1] == ':' ? shut + 1
                                                  : NULL;
    *port = colon != NULL ? atoi(colon + 1) : 80;
    n = colon != NULL ? (size_t)(colon - at) : n;
    if (shut != NULL) {
        at++;
        n = (size_t)(shut - at);
    }
    if (n == 0 || n >= host_n || *port < 1 || *port > 65535) {
        LT_FAIL(LT_ERR_ARG, "%s has no usable host or port", url);
    }
    memcpy(host, at, n);
    host[n] = '\0';
    snprintf(prefix, prefix_n, "%s", slash != NULL ? slash : "");
    n = strlen(prefix);
    while (n > 0 && prefix[n - 1] == '/') {
        prefix[--n] = '\0';
    }
    if (n >= 3 && strcmp(prefix + n - 3, "/v1") == 0) {
        prefix[n - 3] = '\0'; /* The base URL is given with or without "/v1". */
    }
    return LT_OK;
}

static lt_err resolve(load *l) {
    struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM}, *found = NULL;
    char port[16];
    int why;
    snprintf(port, sizeof port, "%d", l->o->port);
    why = getaddrinfo(l->o->host, port, &hints, &found);
    if (why != 0) {
        LT_FAIL(LT_ERR_REMOTE, "%s: %s", l->o->host, gai_strerror(why));
    }
    memcpy(&l->to, found->ai_addr, found->ai_addrlen);
    l->to_n = found->ai_addrlen;
    freeaddrinfo(found);
    return LT_OK;
}

static lt_err open_lanes(load *l) {
    l->lanes = calloc((size_t)l->o->concurrency, sizeof *l->lanes);
    if (l->lanes == NULL) {
        LT_FAIL(LT_ERR_OOM, "%lld connections", (long long)l->o->concurrency);
    }
    for (int64_t i = 0; i < l->o->concurrency; i++) {
        lane *w = &l->lanes[i];
        w->l = l;
        w->request = -1;
        lt_http_parser_init(&w->parser, &(lt_http_parse_options){.response = true,
                                                                 .max_head_bytes = 64 << 10,
                                                                 .max_body_bytes = 64 << 20,
                                                                 .on_body = on_body,
                                                                 .ctx = w});
        w->sse.on_event = on_sse;
        w->sse.ctx = w;
        w->timeout = evtimer_new(l->base, on_timeout, w);
        if (w->timeout == NULL) {
            LT_FAIL(LT_ERR_OOM, "%lld connections", (long long)l->o->concurrency);
        }
    }
    return LT_OK;
}

static void close_all(load *l) {
    for (int64_t i = 0; l->lanes != NULL && i < l->o->concurrency; i++) {
        lane *w = &l->lanes[i];
        disconnect(w);
        if (w->timeout != NULL) {
            event_free(w->timeout);
        }
        lt_http_parser_free(&w->parser);
        lt_sse_free(&w->sse);
    }
    free(l->lanes);
    if (l->clock != NULL) {
        event_free(l->clock);
    }
    if (l->second != NULL) {
        event_free(l->second);
    }
    if (l->base != NULL) {
        event_base_free(l->base);
    }
}

lt_err lt_load_run(const lt_load_options *o, const lt_load_request *requests, int64_t n,
                   lt_load_result *results, double *took_s) {
    const struct timeval second = {.tv_sec = 1};
    lt_err err = LT_OK;
    load l = {.o = o, .requests = requests, .results = results, .n = n};

    LT_ASSERT(n > 0 && o->concurrency > 0 && o->vocab > 8);
    memset(results, 0, (size_t)n * sizeof *results);
    if (o->why != NULL) {
        o->why[0] = '\0';
    }
    LT_TRY_DONE(resolve(&l));
    l.base = event_base_new();
    if (l.base != NULL) {
        l.clock = evtimer_new(l.base, on_clock, &l);
        l.second = event_new(l.base, -1, EV_PERSIST, on_second, &l);
    }
    if (l.clock == NULL || l.second == NULL || event_add(l.second, &second) != 0) {
        LT_FAIL_DONE(LT_ERR_OOM, "load generator");
    }
    LT_TRY_DONE(open_lanes(&l));
    l.start_s = lt_clock_s();
    send_due(&l);
    event_base_dispatch(l.base);
    *took_s = now_of(&l);
    if (l.unreachable == n) {
        LT_FAIL_DONE(LT_ERR_REMOTE, "%s:%d does not answer", o->host, o->port);
    }
done:
    close_all(&l);
    return err;
}
