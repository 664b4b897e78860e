/* multipart.c: see multipart.h.
 *
 *     --BOUNDARY CRLF
 *     Content-Disposition: form-data; name="file"; filename="a.jsonl" CRLF
 *     Content-Type: ... CRLF
 *     CRLF
 *     data CRLF
 *     --BOUNDARY--
 */
#include "serve/api/files/multipart.h"

#include <string.h>
#include <strings.h>

#define MAX_HEADERS      16
#define MAX_HEADER_BYTES 4096

/* Position of the reader, and the boundary with its two dashes. */
typedef struct {
    const char *at, *end, *boundary, *why;
    size_t boundary_n;
} reader;

static bool fail(reader *r, const char *why) {
    r->why = why;
    return false;
}

/* The line at r->at without its CRLF; r->at moves past it. False: the line has no end. */
static bool next_line(reader *r, const char **line, size_t *n) {
    const char *newline = memchr(r->at, '\n', (size_t)(r->end - r->at));
    if (newline == NULL || newline == r->at || newline[-1] != '\r') {
        return false;
    }
    *line = r->at;
    *n = (size_t)(newline - 1 - r->at);
    r->at = newline + 1;
    return true;
}

/* The value of a parameter of a header line, such as name="..."; false: it is missing or too long.
 * Browsers write a quote as %22, others as \". */
static bool read_parameter(char out[LT_MULTIPART_NAME], const char *line, size_t n,
                           const char *name) {
    const size_t name_n = strlen(name);
    size_t used = 0;
    bool quoted = false;

    for (size_t i = 0; i + name_n + 2 < n; i++) {
        quoted ^= line[i] == '"' && (i == 0 || line[i - 1] != '\\');
        if (quoted || line[i] != ';') {
            continue;
        }
        i += line[i + 1] == ' ' ? 2 : 1;
        if (i + name_n + 2 > n || strncasecmp(line + i, name, name_n) != 0 ||
            line[i + name_n] != '=' || line[i + name_n + 1] != '"') {
            i--;
            continue;
        }
        for (i += name_n + 2; i < n && line[i] != '"'; i++) {
            i += line[i] == '\\' && i + 1 < n && line[i + 1] == '"';
            if (used + 1 == LT_MULTIPART_NAME || line[i] == '\0') {
                return false;
            }
            out[used++] = line[i];
        }
        out[used] = '\0';
        return i < n;
    }
    return false;
}

/* Some clients send the full path of a file. */
static void drop_folder(char *name) {
    const char *slash = strrchr(name, '/'), *back = strrchr(name, '\\');
    const char *from = slash > back ? slash : back;
    if (from != NULL) {
        memmove(name, from + 1, strlen(from));
    }
}

static bool starts(const char *line, size_t n, const char *header) {
    const size_t header_n = strlen(header);
    return n >= header_n && strncasecmp(line, header, header_n) == 0;
}

static bool read_headers(reader *r, lt_multipart_part *p) {
    const char *from = r->at, *line;
    size_t n;

    for (int i = 0; i < MAX_HEADERS; i++) {
        if (!next_line(r, &line, &n) || (size_t)(r->at - from) > MAX_HEADER_BYTES) {
            return fail(r, "the headers of a part have no end, or are too long");
        }
        if (n == 0) {
            return p->name[0] != '\0' || fail(r, "a part has no name");
        }
        if (starts(line, n, "content-disposition:")) {
            if (!read_parameter(p->name, line, n, "name")) {
                p->name[0] = '\0';
            }
            if (!read_parameter(p->filename, line, n, "filename")) {
                p->filename[0] = '\0';
            }
            drop_folder(p->filename);
        } else if (starts(line, n, "content-transfer-encoding:") &&
                   memmem(line, n, "binary", 6) == NULL && memmem(line, n, "bit", 3) == NULL) {
            return fail(r, "a part has a Content-Transfer-Encoding");
        }
    }
    return fail(r, "a part has too many headers");
}

/* Data up to the next boundary; r->at moves past that. */
static bool read_data(reader *r, lt_multipart_part *p) {
    p->data = r->at;
    for (;;) {
        const char *found = memmem(r->at, (size_t)(r->end - r->at), r->boundary, r->boundary_n);
        if (found == NULL) {
            return fail(r, "a part has no end: its boundary does not come again");
        }
        r->at = found + r->boundary_n;
        if (found - p->data >= 2 && found[-1] == '\n' && found[-2] == '\r' && r->end - r->at >= 2 &&
            (memcmp(r->at, "\r\n", 2) == 0 || memcmp(r->at, "--", 2) == 0)) {
            p->n = (size_t)(found - 2 - p->data);
            return true;
        }
    }
}

bool lt_multipart_read(lt_multipart *out, const char *body, size_t n, const char **why) {
    reader r = {.at = body, .end = body + n, .why = "the body is not multipart/form-data"};
    bool ok = next_line(&r, &r.boundary, &r.boundary_n) && r.boundary_n > 2 &&
              r.boundary_n <= 2 + LT_MULTIPART_BOUNDARY && memcmp(r.boundary, "--", 2) == 0;

    out->n = 0;
    while (ok) {
        lt_multipart_part *p = &out->parts[out->n];
        if (out->n == LT_MULTIPART_PARTS) {
            ok = fail(&r, "the form has too many parts");
            break;
        }
        *p = (lt_multipart_part){0};
        ok = read_headers(&r, p) && read_data(&r, p);
        out->n += ok;
        if (!ok || memcmp(r.at, "--", 2) == 0) {
            break;
        }
        r.at += 2;
    }
    *why = r.why;
    return ok;
}

const lt_multipart_part *lt_multipart_find(const lt_multipart *m, const char *name) {
    for (int i = 0; i < m->n; i++) {
        if (strcmp(m->parts[i].name, name) == 0) {
            return &m->parts[i];
        }
    }
    return NULL;
}
