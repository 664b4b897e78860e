/* sigv4.c: see sigv4.h. Texts are built with open_memstream. Keys that are derived from the secret
 * are wiped. */
#include "platform/copy/sigv4.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>

#include "base/encoding.h"
#include "base/error.h"
#include "platform/copy/digest.h"

#define MAC_BYTES 32

static bool unreserved(unsigned char c) {
    return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '.' || c == '_' || c == '~';
}

void lt_uri_encode(FILE *to, const char *text, bool slash) {
    for (; *text != '\0'; text++) {
        const unsigned char c = (unsigned char)*text;
        if (unreserved(c) || (slash && c == '/')) {
            fputc(c, to);
        } else {
            fprintf(to, "%%%02X", c);
        }
    }
}

/* Close a stream of open_memstream. */
static lt_err finish(FILE *f, char **text) {
    const bool failed = ferror(f) != 0;
    if (fclose(f) != 0 || failed) {
        free(*text);
        *text = NULL;
        LT_FAIL(LT_ERR_OOM, "a request to sign");
    }
    return LT_OK;
}

static lt_err encode(char **out, const char *text, bool slash) {
    size_t bytes = 0;
    FILE *f = open_memstream(out, &bytes);
    if (f == NULL) {
        LT_FAIL(LT_ERR_OOM, "a request to sign");
    }
    lt_uri_encode(f, text, slash);
    return finish(f, out);
}

typedef struct {
    char *name, *value; /* Both are encoded. */
    size_t at;          /* Its position: headers of the same name keep their order. */
} item;

static int compare_query(const void *a, const void *b) {
    const item *x = a, *y = b;
    const int names = strcmp(x->name, y->name);
    return names != 0 ? names : strcmp(x->value, y->value);
}

static int compare_header(const void *a, const void *b) {
    const item *x = a, *y = b;
    const int names = strcmp(x->name, y->name);
    return names != 0 ? names : (x->at > y->at) - (x->at < y->at);
}

static void free_items(item *items, size_t n) {
    for (size_t i = 0; i < n; i++) {
        free(items[i].name);
        free(items[i].value);
    }
}

lt_err lt_uri_query(char **out, const lt_pair *query, size_t n) {
    lt_err err = LT_OK;
    item items[LT_SIGV4_MAX_PAIRS] = {{0}};
    size_t bytes = 0;
    FILE *f = NULL;
    char *text = NULL;

    if (n > LT_SIGV4_MAX_PAIRS) {
        LT_FAIL(LT_ERR_LIMIT, "a query of %zu parameters; at most %d", n, LT_SIGV4_MAX_PAIRS);
    }
    for (size_t i = 0; i < n; i++) {
        LT_TRY_DONE(encode(&items[i].name, query[i].name, false));
        LT_TRY_DONE(encode(&items[i].value, query[i].value, false));
    }
    qsort(items, n, sizeof *items, compare_query);
    f = open_memstream(&text, &bytes);
    if (f == NULL) {
        LT_FAIL_DONE(LT_ERR_OOM, "a request to sign");
    }
    for (size_t i = 0; i < n; i++) {
        fprintf(f, "%s%s=%s", i > 0 ? "&" : "", items[i].name, items[i].value);
    }
    LT_TRY_DONE(finish(f, &text));
    *out = text;
done:
    free_items(items, n);
    return err;
}

/* Remove empty parts and ".", and with ".." the part before it; a slash at the end stays. */
static lt_err normal(char **out, const char *path) {
    char *text = malloc(strlen(path) + 2);
    size_t n = 0;
    if (text == NULL) {
        LT_FAIL(LT_ERR_OOM, "a path of %zu bytes", strlen(path));
    }
    text[n++] = '/';
    for (const char *p = path; *p != '\0';) {
        const size_t part = strcspn(p, "/");
        if (part == 2 && p[0] == '.' && p[1] == '.') {
            if (n > 1) {
                n--; /* Drop the slash after the part to be removed. */
                while (text[n - 1] != '/') {
                    n--;
                }
            }
        } else if (part > 0 && !(part == 1 && p[0] == '.')) {
            memcpy(text + n, p, part);
            n += part;
            if (p[part] == '/') {
                text[n++] = '/';
            }
        }
        p += part + (p[part] == '/');
    }
    text[n] = '\0';
    *out = text;
    return LT_OK;
}

/* Remove blanks from the ends of a header's value, and replace every run of blanks by one. */
static void fold(char *text) {
    size_t n = 0;
    for (const char *p = text; *p != '\0'; p++) {
        const bool blank = *p == ' ' || *p == '\t' || *p == '\n' || *p == '\r';
        if (!blank) {
            text[n++] = *p;
        } else if (n > 0 && text[n - 1] != ' ') {
            text[n++] = ' ';
        }
    }
    n -= n > 0 && text[n - 1] == ' ';
    text[n] = '\0';
}

/* The lines of the headers, and their names: "host;x-amz-date". */
static lt_err header_lines(char **lines, char **names, const lt_pair *headers, size_t n) {
    lt_err err = LT_OK;
    item items[LT_SIGV4_MAX_PAIRS] = {{0}};
    size_t line_bytes = 0, name_bytes = 0;
    FILE *to_lines = open_memstream(lines, &line_bytes),
         *to_names = open_memstream(names, &name_bytes);

    if (to_lines == NULL || to_names == NULL) {
        LT_FAIL_DONE(LT_ERR_OOM, "headers to sign");
    }
    for (size_t i = 0; i < n; i++) {
        items[i] = (item){strdup(headers[i].name), strdup(headers[i].value), i};
        if (items[i].name == NULL || items[i].value == NULL) {
            LT_FAIL_DONE(LT_ERR_OOM, "headers to sign");
        }
        for (char *p = items[i].name; *p != '\0'; p++) {
            *p = (char)(*p >= 'A' && *p <= 'Z' ? *p + ('a' - 'A') : *p);
        }
        fold(items[i].value);
    }
    qsort(items, n, sizeof *items, compare_header);
    for (size_t i = 0; i < n; i++) {
        const bool again = i > 0 && strcmp(items[i].name, items[i - 1].name) == 0;
        if (again) {
            fprintf(to_lines, ",%s", items[i].value);
        } else {
            fprintf(to_lines, "%s%s:%s", i > 0 ? "\n" : "", items[i].name, items[i].value);
            fprintf(to_names, "%s%s", i > 0 ? ";" : "", items[i].name);
        }
    }
    fputs(n > 0 ? "\n" : "", to_lines);
done:
    free_items(items, n);
    if (to_lines != NULL && finish(to_lines, lines) != LT_OK && err == LT_OK) {
        err = LT_ERR_OOM;
    }
    if (to_names != NULL && finish(to_names, names) != LT_OK && err == LT_OK) {
        err = LT_ERR_OOM;
    }
    return err;
}

static lt_err canonical(char **out, char **names, const lt_sigv4_request *r) {
    lt_err err = LT_OK;
    size_t bytes = 0;
    FILE *f = NULL;
    char *path = NULL, *query = NULL, *lines = NULL;

    if (r->normal_path) {
        LT_TRY_DONE(normal(&path, r->path));
    }
    LT_TRY_DONE(lt_uri_query(&query, r->query, r->n_query));
    LT_TRY_DONE(header_lines(&lines, names, r->headers, r->n_headers));
    f = open_memstream(out, &bytes);
    if (f == NULL) {
        LT_FAIL_DONE(LT_ERR_OOM, "a request to sign");
    }
    fprintf(f, "%s\n", r->method);
    lt_uri_encode(f, path != NULL ? path : r->path, true);
    fprintf(f, "\n%s\n%s\n%s\n%s", query, lines, *names, r->payload);
    LT_TRY_DONE(finish(f, out));
done:
    free(path);
    free(query);
    free(lines);
    return err;
}

static void mac(unsigned char out[MAC_BYTES], const void *key, size_t key_bytes, const char *text) {
    unsigned n = MAC_BYTES;
    LT_ASSERT(HMAC(EVP_sha256(), key, (int)key_bytes, (const unsigned char *)text, strlen(text),
                   out, &n) != NULL &&
              n == MAC_BYTES);
}

static lt_err sign(char hex[2 * MAC_BYTES + 1], const lt_sigv4_request *r, const char *secret,
                   const char *to_sign) {
    const size_t n = strlen(secret) + 4;
    unsigned char key[MAC_BYTES];
    char day[9];
    char *first = malloc(n + 1);

    if (first == NULL) {
        LT_FAIL(LT_ERR_OOM, "a key");
    }
    (void)snprintf(first, n + 1, "AWS4%s", secret);
    (void)snprintf(day, sizeof day, "%.8s", r->date);
    mac(key, first, n, day);
    mac(key, key, sizeof key, r->region);
    mac(key, key, sizeof key, r->service);
    mac(key, key, sizeof key, "aws4_request");
    mac(key, key, sizeof key, to_sign);
    lt_hex_write(hex, key, sizeof key);
    OPENSSL_cleanse(first, n);
    free(first);
    return LT_OK;
}

lt_err lt_sigv4_sign(lt_sigv4 *out, const lt_sigv4_request *r, const lt_sigv4_key *key) {
    lt_err err = LT_OK;
    lt_sigv4 s = {0};
    char hex[LT_DIGEST_TEXT_BYTES], *names = NULL;

    LT_ASSERT(strlen(r->date) == LT_SIGV4_DATE_BYTES - 1 && r->path[0] == '/');
    if (r->n_headers > LT_SIGV4_MAX_PAIRS) {
        LT_FAIL(LT_ERR_LIMIT, "%zu headers to sign; at most %d", r->n_headers, LT_SIGV4_MAX_PAIRS);
    }
    LT_TRY_DONE(canonical(&s.canonical, &names, r));
    LT_TRY_DONE(lt_digest_hex(hex, LT_DIGEST_SHA256, s.canonical, strlen(s.canonical)));
    if (asprintf(&s.to_sign, "AWS4-HMAC-SHA256\n%s\n%.8s/%s/%s/aws4_request\n%s", r->date, r->date,
                 r->region, r->service, hex) < 0) {
        s.to_sign = NULL;
        LT_FAIL_DONE(LT_ERR_OOM, "a request to sign");
    }
    LT_TRY_DONE(sign(hex, r, key->secret, s.to_sign));
    if (asprintf(&s.authorization,
                 "AWS4-HMAC-SHA256 Credential=%s/%.8s/%s/%s/aws4_request, SignedHeaders=%s, "
                 "Signature=%s",
                 key->access, r->date, r->region, r->service, names, hex) < 0) {
        s.authorization = NULL;
        LT_FAIL_DONE(LT_ERR_OOM, "a request to sign");
    }
    *out = s;
    s = (lt_sigv4){0};
done:
    free(names);
    lt_sigv4_free(&s);
    return err;
}

void lt_sigv4_free(lt_sigv4 *s) {
    free(s->canonical);
    free(s->to_sign);
    free(s->authorization);
    *s = (lt_sigv4){0};
}
