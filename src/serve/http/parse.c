/* http/parse.c: see http/parse.h. */
#include "serve/http/parse.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/error.h"

/* Bytes of a head's buffer that are kept for the connection's next request. */
#define KEEP_HEAD 4096

enum { CHUNK_SIZE, CHUNK_EXTENSION, CHUNK_DATA, CHUNK_CR, CHUNK_LF, CHUNK_TRAILER };

void lt_http_parser_init(lt_http_parser *p, const lt_http_parse_options *o) {
    memset(p, 0, sizeof *p);
    p->o = *o;
    LT_ASSERT(p->o.max_head_bytes > 0);
}

void lt_http_parser_reset(lt_http_parser *p) {
    char *head = p->head;
    const size_t head_room = p->head_room;
    const lt_http_parse_options o = p->o;
    /* Bodies vary in size by a factor of a million, so they are not kept, nor are long heads. */
    free(p->body);
    if (head_room > KEEP_HEAD) {
        free(head);
        head = NULL;
    }
    lt_http_parser_init(p, &o);
    p->head = head;
    p->head_room = head != NULL ? head_room : 0;
}

void lt_http_parser_free(lt_http_parser *p) {
    free(p->head);
    free(p->body);
    memset(p, 0, sizeof *p);
}

static void bad(lt_http_parser *p, int status, const char *why) {
    p->stage = LT_HTTP_BAD;
    p->status = status;
    p->why = why;
}

/* Room for `want` bytes, at most `most`. False: BAD, or starved. */
static bool grow(lt_http_parser *p, char **data, size_t *room, size_t want, size_t most) {
    size_t r = *room > 0 ? *room : 1024;
    char *grown;
    if (want <= *room) {
        return true;
    }
    while (r < want) {
        r *= 2;
    }
    r = r < most || most < want ? r : most;
    if (p->o.may_grow != NULL && !p->o.may_grow(p->o.ctx, r - *room)) {
        p->starved = true;
        return false;
    }
    grown = realloc(*data, r);
    if (grown == NULL) {
        bad(p, 503, "out of memory");
        return false;
    }
    *data = grown;
    *room = r;
    return true;
}

const char *lt_http_header_get(const lt_http_parser *p, const char *name) {
    for (int i = 0; i < p->n_headers; i++) {
        if (strcasecmp(p->headers[i].name, name) == 0) {
            return p->headers[i].value;
        }
    }
    return NULL;
}

static int count_headers(const lt_http_parser *p, const char *name) {
    int n = 0;
    for (int i = 0; i < p->n_headers; i++) {
        n += strcasecmp(p->headers[i].name, name) == 0;
    }
    return n;
}

/* ---- The head ---- */

static bool is_token_byte(char c) {
    return isalnum((unsigned char)c) || (c != '\0' && strchr("!#$%&'*+-.^_`|~", c) != NULL);
}

static bool is_token(const char *s, size_t n) {
    for (size_t i = 0; i < n; i++) {
        if (!is_token_byte(s[i])) {
            return false;
        }
    }
    return n > 0;
}

/* "HTTP/1.x" at s; sets minor. */
static bool version(lt_http_parser *p, const char *s) {
    if (strncmp(s, "HTTP/", 5) != 0 || !isdigit((unsigned char)s[5]) || s[6] != '.' ||
        !isdigit((unsigned char)s[7])) {
        bad(p, 400, "the first line holds no HTTP version");
        return false;
    }
    if (s[5] != '1') {
        bad(p, 505, "only HTTP/1.0 and HTTP/1.1 are spoken here");
        return false;
    }
    p->minor = s[7] - '0' > 0;
    return true;
}

/* "http://host[:port]/path" is the same request as "/path" (RFC 9112, 3.2.2). */
static const char *path_of(const char *target) {
    const size_t n = strncasecmp(target, "http://", 7) == 0    ? 7
                     : strncasecmp(target, "https://", 8) == 0 ? 8
                                                               : 0;
    const char *slash;
    if (n == 0 || target[n] == '/' || target[n] == '\0') {
        return target;
    }
    slash = strchr(target + n, '/');
    return slash != NULL ? slash : "/";
}

static void request_line(lt_http_parser *p, char *line) {
    char *space = strchr(line, ' '), *last = strrchr(line, ' ');
    if (space == NULL || last == space || !is_token(line, (size_t)(space - line))) {
        bad(p, 400, "the first line is not METHOD TARGET VERSION");
        return;
    }
    *space = '\0';
    *last = '\0';
    if (strlen(last + 1) != 8) {
        bad(p, 400, "the first line holds no HTTP version");
        return;
    }
    if (!version(p, last + 1)) {
        return;
    }
    p->method = line;
    p->target = path_of(space + 1);
    for (const char *c = p->target; *c != '\0'; c++) {
        if ((unsigned char)*c <= 0x20 || *c == 0x7F) {
            bad(p, 400, "the target holds a space or a control character");
            return;
        }
    }
    if (p->target[0] != '/' && strcmp(p->target, "*") != 0) {
        bad(p, 400, "the target is not a path");
    }
}

static void status_line(lt_http_parser *p, const char *line) {
    if (strlen(line) < 12 || line[8] != ' ') {
        bad(p, 400, "the first line is not a status line");
        return;
    }
    if (version(p, line)) {
        p->status = atoi(line + 9);
        if (p->status < 100 || p->status > 599) {
            bad(p, 400, "the status is not a number from 100 to 599");
        }
    }
}

static void header_line(lt_http_parser *p, char *line) {
    char *colon = strchr(line, ':'), *value, *end;
    if (line[0] == ' ' || line[0] == '\t') {
        bad(p, 400, "a header line is folded");
        return;
    }
    if (colon == NULL || !is_token(line, (size_t)(colon - line))) {
        bad(p, 400, "a header line has no name");
        return;
    }
    if (p->n_headers == LT_HTTP_MAX_HEADERS) {
        bad(p, 431, "more than 100 header lines");
        return;
    }
    *colon = '\0';
    for (value = colon + 1; *value == ' ' || *value == '\t'; value++) {}
    for (end = value + strlen(value); end > value && (end[-1] == ' ' || end[-1] == '\t'); end--) {}
    *end = '\0';
    for (const char *c = value; *c != '\0'; c++) {
        if (((unsigned char)*c < 0x20 && *c != '\t') || *c == 0x7F) {
            bad(p, 400, "a header holds a control character");
            return;
        }
    }
    p->headers[p->n_headers++] = (lt_http_header){line, value};
}

/* All lengths must be the same plain number. */
static bool content_length(lt_http_parser *p, uint64_t *length) {
    const char *text = NULL;
    *length = 0;
    for (int i = 0; i < p->n_headers; i++) {
        if (strcasecmp(p->headers[i].name, "content-length") != 0) {
            continue;
        }
        if (text != NULL && strcmp(text, p->headers[i].value) != 0) {
            bad(p, 400, "two different Content-Length headers");
            return false;
        }
        text = p->headers[i].value;
    }
    if (text == NULL) {
        return false;
    }
    if (strspn(text, "0123456789") != strlen(text) || text[0] == '\0' || strlen(text) > 18) {
        bad(p, 400, "Content-Length is not a number");
        return false;
    }
    *length = strtoull(text, NULL, 10);
    return true;
}

/* Find how the body ends, by RFC 9112, 6.3. */
static void choose_framing(lt_http_parser *p) {
    const char *coding = lt_http_header_get(p, "transfer-encoding");
    uint64_t length = 0;
    const bool has_length = content_length(p, &length);

    if (p->stage == LT_HTTP_BAD) {
        return;
    }
    p->stage = LT_HTTP_BODY;
    if (p->o.response && (p->o.no_body || p->status == 204 || p->status == 304)) {
        p->stage = LT_HTTP_READY;
    } else if (coding != NULL) {
        if (has_length) {
            bad(p, 400, "both Content-Length and Transfer-Encoding");
        } else if (count_headers(p, "transfer-encoding") > 1) {
            bad(p, 400, "more than one Transfer-Encoding header");
        } else if (p->minor == 0) {
            bad(p, 400, "Transfer-Encoding in HTTP/1.0");
        } else if (strcasecmp(coding, "chunked") != 0) {
            bad(p, 501, "chunked is the only transfer coding supported here");
        }
        p->framing = LT_HTTP_CHUNKED;
        p->chunk = CHUNK_SIZE;
    } else if (has_length) {
        p->framing = LT_HTTP_LENGTH;
        p->left = length;
        if (length > p->o.max_body_bytes) {
            bad(p, 413, "the body is larger than this server takes");
        } else if (length == 0) {
            p->stage = LT_HTTP_READY;
        }
    } else if (p->o.response) {
        p->framing = LT_HTTP_TO_END;
        p->keep_alive = false;
    } else {
        p->stage = LT_HTTP_READY;
    }
}

static void choose_persistence(lt_http_parser *p) {
    const char *connection = lt_http_header_get(p, "connection");
    const char *expect = lt_http_header_get(p, "expect");
    p->keep_alive = p->minor == 1;
    if (connection != NULL && strcasestr(connection, "close") != NULL) {
        p->keep_alive = false;
    } else if (connection != NULL && strcasestr(connection, "keep-alive") != NULL) {
        p->keep_alive = true;
    }
    if (expect != NULL && !p->o.response) {
        p->expects_continue = strcasecmp(expect, "100-continue") == 0;
        if (!p->expects_continue) {
            bad(p, 417, "100-continue is the only expectation supported here");
        }
    }
}

/* The head is complete and 0-terminated: split it into lines in place. */
static void read_head(lt_http_parser *p) {
    char *line = p->head, *end = p->head + p->head_n;
    bool first = true;

    if (memchr(p->head, '\0', p->head_n) != NULL) {
        bad(p, 400, "the head holds a zero byte");
        return;
    }
    while (line < end && p->stage != LT_HTTP_BAD) {
        char *next = memchr(line, '\n', (size_t)(end - line));
        LT_ASSERT(next != NULL);
        *next = '\0';
        if (next > line && next[-1] == '\r') {
            next[-1] = '\0';
        }
        if (line[0] == '\0') {
            break;
        }
        if (first && p->o.response) {
            status_line(p, line);
        } else if (first) {
            request_line(p, line);
        } else {
            header_line(p, line);
        }
        first = false;
        line = next + 1;
    }
    if (p->stage == LT_HTTP_BAD) {
        return;
    }
    if (!p->o.response && p->minor == 1 && lt_http_header_get(p, "host") == NULL) {
        bad(p, 400, "HTTP/1.1 without a Host header");
        return;
    }
    if (!p->o.response && count_headers(p, "host") > 1) {
        bad(p, 400, "more than one Host header");
        return;
    }
    choose_persistence(p);
    if (p->stage != LT_HTTP_BAD) {
        choose_framing(p);
    }
}

/* Input that does not begin like a request, above all a TLS hello, is answered at once and not only
 * after the time limit. */
static bool begins_well(lt_http_parser *p, char c) {
    if (p->o.response || p->method_read) {
        return true;
    }
    p->method_read = c == ' ' || c == '\r' || c == '\n';
    if (!p->method_read && !is_token_byte(c)) {
        bad(p, 400,
            p->head_n == 0 && c == 0x16 ? "this is TLS; plain HTTP is spoken here: http://"
                                        : "the first line is not METHOD TARGET VERSION");
        return false;
    }
    return true;
}

/* The number of bytes up to and including the blank line. */
static size_t feed_head(lt_http_parser *p, const char *data, size_t n) {
    for (size_t i = 0; i < n; i++) {
        const char c = data[i];
        if (p->head_n == 0 && (c == '\r' || c == '\n')) {
            continue; /* Empty lines before a message are skipped (RFC 9112, 2.2). */
        }
        if (p->head_n == p->o.max_head_bytes) {
            bad(p, 431, "the headers are larger than this server takes");
            return i;
        }
        if (!begins_well(p, c)) {
            return i;
        }
        if (!grow(p, &p->head, &p->head_room, p->head_n + 2, p->o.max_head_bytes + 2)) {
            return i;
        }
        p->head[p->head_n++] = c;
        if (c != '\n') {
            continue;
        }
        if ((p->head_n >= 2 && p->head[p->head_n - 2] == '\n') ||
            (p->head_n >= 3 && p->head[p->head_n - 2] == '\r' && p->head[p->head_n - 3] == '\n')) {
            p->head[p->head_n] = '\0';
            read_head(p);
            return i + 1;
        }
    }
    return n;
}

/* ---- The body ---- */

/* False: nothing was taken. */
static bool take(lt_http_parser *p, const char *data, size_t n) {
    const bool known = p->framing == LT_HTTP_LENGTH; /* Whether the length of the body is known. */
    if (p->o.on_body != NULL) {
        p->o.on_body(p->o.ctx, data, n);
        return true;
    }
    if (p->body_n + n > p->o.max_body_bytes) {
        bad(p, 413, "the body is larger than this server takes");
        return false;
    }
    if (!grow(p, &p->body, &p->body_room, p->body_n + n + 1,
              known ? p->body_n + (size_t)p->left + 1 : p->o.max_body_bytes + 1)) {
        return false;
    }
    memcpy(p->body + p->body_n, data, n);
    p->body_n += n;
    p->body[p->body_n] = '\0';
    return true;
}

/* A line "1a3[;extension]" is complete. */
static void chunk_begins(lt_http_parser *p) {
    char *end = NULL;
    p->line[p->line_n] = '\0';
    if (!isxdigit((unsigned char)p->line[0])) {
        bad(p, 400, "a chunk's size is not a number");
        return;
    }
    p->left = strtoull(p->line, &end, 16);
    if (*end != '\0' && *end != ' ' && *end != '\t') {
        bad(p, 400, "a chunk's size is not a number");
        return;
    }
    p->line_n = 0;
    p->chunk = p->left > 0 ? CHUNK_DATA : CHUNK_TRAILER;
}

/* One byte of the framing around the chunks. */
static void chunk_byte(lt_http_parser *p, char c) {
    switch (p->chunk) {
    case CHUNK_SIZE:
        if (c == '\n') {
            chunk_begins(p);
        } else if (c == ';') {
            p->chunk = CHUNK_EXTENSION;
        } else if (c != '\r' && p->line_n == 16) {
            bad(p, 400, "a chunk's size is not a number");
        } else if (c != '\r') {
            p->line[p->line_n++] = c;
        }
        break;
    case CHUNK_EXTENSION:
        if (c == '\n') {
            chunk_begins(p);
        } else if (++p->trailer_n > p->o.max_head_bytes) {
            bad(p, 431, "chunk extensions are larger than this server takes");
        }
        break;
    case CHUNK_CR:
    case CHUNK_LF:
        if (c == '\n') {
            p->chunk = CHUNK_SIZE;
        } else if (c == '\r' && p->chunk == CHUNK_CR) {
            p->chunk = CHUNK_LF;
        } else {
            bad(p, 400, "a chunk is longer than its size");
        }
        break;
    default: /* CHUNK_TRAILER: lines up to an empty one; their content is ignored. */
        if (c == '\n' && p->line_n == 0) {
            p->stage = LT_HTTP_READY;
        } else if (c == '\n') {
            p->line_n = 0;
        } else if (c != '\r') {
            p->line_n = 1;
        }
        if (++p->trailer_n > p->o.max_head_bytes) {
            bad(p, 431, "the trailers are larger than this server takes");
        }
    }
}

static size_t feed_chunks(lt_http_parser *p, const char *data, size_t n) {
    size_t i = 0;
    while (i < n && p->stage == LT_HTTP_BODY) {
        if (p->chunk == CHUNK_DATA) {
            const size_t part = p->left < n - i ? (size_t)p->left : n - i;
            if (!take(p, data + i, part)) {
                break;
            }
            p->left -= part;
            i += part;
            if (p->left == 0) {
                p->chunk = CHUNK_CR;
            }
        } else {
            chunk_byte(p, data[i++]);
        }
    }
    return i;
}

static size_t feed_body(lt_http_parser *p, const char *data, size_t n) {
    size_t part = n;
    if (p->framing == LT_HTTP_CHUNKED) {
        return feed_chunks(p, data, n);
    }
    if (p->framing == LT_HTTP_LENGTH && p->left < n) {
        part = (size_t)p->left;
    }
    if (!take(p, data, part)) {
        return 0;
    }
    if (p->framing == LT_HTTP_LENGTH) {
        p->left -= part;
        if (p->left == 0 && p->stage == LT_HTTP_BODY) {
            p->stage = LT_HTTP_READY;
        }
    }
    return part;
}

size_t lt_http_parser_feed(lt_http_parser *p, const char *data, size_t n) {
    size_t used = 0;
    p->starved = false;
    while (used < n && !p->starved && (p->stage == LT_HTTP_HEAD || p->stage == LT_HTTP_BODY)) {
        const bool in_head = p->stage == LT_HTTP_HEAD;
        used += in_head ? feed_head(p, data + used, n - used) : feed_body(p, data + used, n - used);
        if (in_head && p->stage != LT_HTTP_HEAD && p->o.head_alone) {
            break;
        }
    }
    return used;
}

void lt_http_parser_end(lt_http_parser *p) {
    if (p->stage == LT_HTTP_BODY && p->framing == LT_HTTP_TO_END) {
        p->stage = LT_HTTP_READY;
    } else if (p->stage == LT_HTTP_BODY || (p->stage == LT_HTTP_HEAD && p->head_n > 0)) {
        bad(p, 400, "the message ends in the middle");
    }
}
