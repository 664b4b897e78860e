/* s3_xml.c: parses the answers of S3; see s3.h. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/error.h"
#include "platform/copy/location.h"
#include "platform/copy/s3.h"
#include "platform/copy/xml.h"

double lt_s3_time(const char *text) {
    static const char *const forms[] = {"%a, %d %b %Y %H:%M:%S GMT", "%Y-%m-%dT%H:%M:%S"};
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
        struct tm tm = {0};
        const char *rest = strptime(text, forms[i], &tm);
        if (rest != NULL && (*rest == '\0' || *rest == '.' || *rest == 'Z')) {
            const double fraction = *rest == '.' ? strtod(rest, NULL) : 0.0;
            return (double)timegm(&tm) + fraction;
        }
    }
    return 0.0;
}

/* Parse a text that is a whole number. */
static bool number(const char *text, int64_t *out) {
    char *end = NULL;
    long long n;
    errno = 0;
    n = strtoll(text, &end, 10);
    if (text[0] < '0' || text[0] > '9' || *end != '\0' || errno != 0) {
        return false;
    }
    *out = n;
    return true;
}

typedef struct {
    char key[LT_XML_TEXT_BYTES];
    int64_t size_bytes;
    double modified_s;
    bool has_size;
} entry;

static lt_err entry_end(const entry *e, bool encoded, lt_s3_found found, void *ctx) {
    char key[LT_XML_TEXT_BYTES];
    memcpy(key, e->key, sizeof key);
    if (key[0] == '\0' || !e->has_size || (encoded && !lt_uri_decode(key, true))) {
        LT_FAIL(LT_ERR_FORMAT, "a list of objects has an entry without %s",
                key[0] == '\0' ? "a key" : "a size, or with a key that is wrongly encoded");
    }
    return found(ctx, key, e->size_bytes, e->modified_s);
}

/* Find out whether keys are encoded. This must be known before they are read, and services write
 * EncodingType before or after the keys, so a page is read twice. */
static lt_err is_encoded(const char *xml, size_t bytes, lt_xml *x, bool *encoded) {
    lt_xml_kind kind;
    *encoded = false;
    lt_xml_begin(x, xml, bytes);
    do {
        LT_TRY(lt_xml_next(x, &kind));
        if (kind == LT_XML_CLOSE && x->depth == 1 && strcmp(x->name, "EncodingType") == 0) {
            *encoded = strcmp(x->value, "url") == 0;
        }
    } while (kind != LT_XML_END);
    return LT_OK;
}

lt_err lt_s3_list_page(const char *xml, size_t bytes, lt_s3_found found, void *ctx,
                       char next[LT_S3_UPLOAD_BYTES]) {
    lt_err err = LT_OK;
    lt_xml *x = malloc(sizeof *x);
    entry *e = calloc(1, sizeof *e);
    lt_xml_kind kind;
    bool encoded = false, inside = false, more = false;

    next[0] = '\0';
    if (x == NULL || e == NULL) {
        LT_FAIL_DONE(LT_ERR_OOM, "a list of objects");
    }
    LT_TRY_DONE(is_encoded(xml, bytes, x, &encoded));
    lt_xml_begin(x, xml, bytes);
    for (;;) {
        LT_TRY_DONE(lt_xml_next(x, &kind));
        if (kind == LT_XML_END) {
            break;
        }
        if (x->depth == 1 && kind == LT_XML_CLOSE && strcmp(x->name, "Contents") == 0) {
            LT_TRY_DONE(entry_end(e, encoded, found, ctx));
            inside = false;
        } else if (x->depth == 2 && kind == LT_XML_OPEN && strcmp(x->name, "Contents") == 0) {
            *e = (entry){0};
            inside = true;
        } else if (kind == LT_XML_CLOSE && inside && x->depth == 2) {
            if (strcmp(x->name, "Key") == 0) {
                memcpy(e->key, x->value, sizeof e->key);
            } else if (strcmp(x->name, "Size") == 0) {
                e->has_size = number(x->value, &e->size_bytes);
            } else if (strcmp(x->name, "LastModified") == 0) {
                e->modified_s = lt_s3_time(x->value);
            }
        } else if (kind == LT_XML_CLOSE && x->depth == 1) {
            if (strcmp(x->name, "IsTruncated") == 0) {
                more = strcmp(x->value, "true") == 0;
            } else if (strcmp(x->name, "NextContinuationToken") == 0 &&
                       snprintf(next, LT_S3_UPLOAD_BYTES, "%s", x->value) >= LT_S3_UPLOAD_BYTES) {
                LT_FAIL_DONE(LT_ERR_LIMIT, "a list's token of %zu bytes", strlen(x->value));
            }
        }
    }
    if (more && next[0] == '\0') {
        LT_FAIL_DONE(LT_ERR_FORMAT, "a list of objects goes on, but does not say where");
    }
    if (!more) {
        next[0] = '\0';
    }
done:
    free(e);
    free(x);
    return err;
}

void lt_s3_error(const char *xml, size_t bytes, char code[64], char message[256]) {
    lt_xml *x = malloc(sizeof *x);
    lt_xml_kind kind = LT_XML_OPEN;
    code[0] = message[0] = '\0';
    if (x == NULL || xml == NULL) {
        free(x);
        return;
    }
    lt_xml_begin(x, xml, bytes);
    while (lt_xml_next(x, &kind) == LT_OK && kind != LT_XML_END) {
        if (kind == LT_XML_CLOSE && x->depth == 1 && strcmp(x->names[0], "Error") == 0) {
            if (strcmp(x->name, "Code") == 0) {
                (void)snprintf(code, 64, "%.63s", x->value);
            } else if (strcmp(x->name, "Message") == 0) {
                (void)snprintf(message, 256, "%.255s", x->value);
            }
        }
    }
    free(x);
}
