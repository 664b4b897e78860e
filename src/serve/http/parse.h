/* http/parse.h: parses one HTTP/1.1 message from bytes that arrive in any portions; without sockets
 * or clocks, so that it can be tested and fuzzed.
 *
 *     HEAD ──blank line──▶ BODY (Content-Length or chunked, or until the end) ──▶ READY
 *       └────────────────────┴──▶ BAD: status and why say what to answer (RFC 9112)
 *
 * Both directions: requests (the server) and responses (bench's client, which takes the body as it
 * comes through on_body). Deliberately refused, because they serve to smuggle requests past
 * proxies: both Content-Length and Transfer-Encoding, two of the latter or one in HTTP/1.0, two
 * different lengths, two Hosts, a space before the colon, folded header lines, control characters
 * in values, anything but a plain number as a length. */
#ifndef LT_SERVE_HTTP_PARSE_H
#define LT_SERVE_HTTP_PARSE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define LT_HTTP_MAX_HEADERS 100

typedef enum { LT_HTTP_HEAD, LT_HTTP_BODY, LT_HTTP_READY, LT_HTTP_BAD } lt_http_stage;

typedef struct {
    const char *name, *value; /* 0-terminated, in the parser's head buffer. */
} lt_http_header;

typedef struct {
    bool response;         /* Parse a response instead of a request. */
    bool no_body;          /* Responses: this one has none (it answers a HEAD). */
    size_t max_head_bytes; /* A longer one gets 431. */
    size_t max_body_bytes; /* A longer one gets 413. */
    /* NULL: the body is collected in `body`. */
    void (*on_body)(void *ctx, const char *data, size_t n);
    /* Whether there is memory for this many more bytes of head and body; if not, `feed` stops until
     * it is called again. NULL: always. */
    bool (*may_grow)(void *ctx, size_t more);
    void *ctx;
    bool head_alone; /* `feed` returns after the head, before any of the body. */
} lt_http_parse_options;

typedef struct {
    lt_http_parse_options o;
    lt_http_stage stage;
    int status;      /* BAD: the status to answer with; a response: its status. */
    const char *why; /* BAD: a sentence. */

    char *head; /* Owned; the names and values point here. */
    size_t head_n, head_room;
    const char *method, *target; /* Requests; the target's path and query. */
    bool method_read;            /* The first word of the first line has been read. */
    int minor;                   /* HTTP/1.minor */
    lt_http_header headers[LT_HTTP_MAX_HEADERS];
    int n_headers;
    bool keep_alive, expects_continue;

    char *body; /* Owned, 0-terminated. */
    size_t body_n, body_room;
    bool starved; /* may_grow returned false. */
    enum { LT_HTTP_LENGTH, LT_HTTP_CHUNKED, LT_HTTP_TO_END } framing;
    uint64_t left;            /* Remaining bytes of the body or of the chunk. */
    int chunk;                /* Stage inside the chunked framing. */
    size_t line_n, trailer_n; /* Bytes of the chunk line; of all trailers. */
    char line[32];            /* The chunk-size line so far. */
} lt_http_parser;

void lt_http_parser_init(lt_http_parser *p, const lt_http_parse_options *o);
void lt_http_parser_reset(lt_http_parser *p); /* For the next message of the connection. */
void lt_http_parser_free(lt_http_parser *p);

/* Parse bytes; returns how many belong to this message: all of them until READY, when the rest
 * belongs to the next message; fewer if head_alone or may_grow stopped it. */
size_t lt_http_parser_feed(lt_http_parser *p, const char *data, size_t n);
/* The sender has closed: READY if that ends the body, otherwise BAD (or still HEAD if nothing was
 * read). */
void lt_http_parser_end(lt_http_parser *p);

/* First header of this name, case-insensitive; NULL if there is none. */
const char *lt_http_header_get(const lt_http_parser *p, const char *name);

#endif
