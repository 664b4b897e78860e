/* location.c: see location.h. */
#include "platform/copy/location.h"

#include <stdio.h>
#include <string.h>

#include "base/encoding.h"
#include "base/error.h"

#define LONGEST_KEY 1024 /* S3's limit. */

bool lt_uri_decode(char *text, bool plus) {
    const size_t n = strlen(text);
    return lt_percent_decode(text, n + 1, text, n, plus) == LT_PERCENT_STRICT;
}

const char *lt_location_name(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash != NULL ? slash + 1 : path;
}

bool lt_location_is_safe(const char *name) {
    for (const char *p = name;;) {
        const size_t n = strcspn(p, "/");
        if (n == 0 || (n == 1 && p[0] == '.') || (n == 2 && p[0] == '.' && p[1] == '.')) {
            return false;
        }
        if (p[n] == '\0') {
            return true;
        }
        p += n + 1;
    }
}

static bool begins(const char *text, const char *prefix) {
    return strncmp(text, prefix, strlen(prefix)) == 0;
}

bool lt_location_is_remote(const char *text) {
    return begins(text, "s3://") || begins(text, "http://") || begins(text, "https://") ||
           begins(text, "hf://") || begins(text, "file://");
}

static bool ends_in_slash(const char *text) {
    return text[0] == '\0' || text[strlen(text) - 1] == '/';
}

static bool name_fits(const char *text, size_t n, size_t most) {
    for (size_t i = 0; i < n; i++) {
        const char c = text[i];
        if (!((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
              c == '-' || c == '_' || c == '.')) {
            return false;
        }
    }
    return n > 0 && n <= most && !(n <= 2 && strspn(text, ".") >= n);
}

static lt_err read_s3(lt_location *l, const char *text) {
    const char *p = text + strlen("s3://");
    const size_t n = strcspn(p, "/");
    if (!name_fits(p, n, 255)) {
        LT_FAIL(LT_ERR_ARG,
                "%s: the bucket's name '%.*s' has characters other than letters, digits, '-', '.' "
                "and '_', or none",
                text, (int)n, p);
    }
    memcpy(l->place, p, n);
    p += n + (p[n] == '/');
    if (strlen(p) > LONGEST_KEY) {
        LT_FAIL(LT_ERR_ARG, "%.60s...: a key of %zu bytes; S3 allows %d", text, strlen(p),
                LONGEST_KEY);
    }
    l->at = LT_AT_S3;
    l->many = ends_in_slash(p);
    (void)snprintf(l->path, sizeof l->path, "%s", p);
    return LT_OK;
}

/* "http://user:password@host/path?query#fragment" is shown as "http://host/path". */
static lt_err read_web(lt_location *l, const char *text) {
    const char *host = strstr(text, "://") + 3;
    const size_t authority = strcspn(host, "/?#");
    const char *at = memrchr(host, '@', authority);
    const char *shown = at != NULL ? at + 1 : host;
    const char *fragment = strchr(host, '#');
    if (host + authority == shown) {
        LT_FAIL(LT_ERR_ARG, "%.8s...: a web address without a host", text);
    }
    for (const char *p = text; *p != '\0'; p++) {
        if ((unsigned char)*p <= ' ' || *p == 127) {
            LT_FAIL(LT_ERR_ARG, "%.*s...: a web address holds a blank or a control character",
                    (int)strcspn(shown, "/?#"), shown);
        }
    }
    l->at = LT_AT_WEB;
    (void)snprintf(l->path, sizeof l->path, "%.*s",
                   fragment != NULL ? (int)(fragment - text) : (int)strlen(text), text);
    (void)snprintf(l->shown, sizeof l->shown, "%.*s%.*s", (int)(host - text), text,
                   (int)strcspn(shown, "?#"), shown);
    if (host[authority] != '/' || ends_in_slash(l->shown)) {
        LT_FAIL(LT_ERR_ARG, "%s names no file, and a web server does not list its files", l->shown);
    }
    return LT_OK;
}

static lt_err read_hub(lt_location *l, const char *text) {
    static const char *const kinds[] = {"datasets", "spaces", "models"};
    const char *p = text + strlen("hf://"), *rest;
    size_t first, second = 0, n;

    (void)snprintf(l->kind, sizeof l->kind, "models");
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        if (begins(p, kinds[i]) && p[strlen(kinds[i])] == '/') {
            (void)snprintf(l->kind, sizeof l->kind, "%s", kinds[i]);
            p += strlen(kinds[i]) + 1;
            break;
        }
    }
    first = strcspn(p, "/@");
    if (p[first] == '/') {
        second = strcspn(p + first + 1, "/@");
    }
    n = first + (second > 0 ? 1 + second : 0);
    if (!name_fits(p, first, 96) || (second > 0 && !name_fits(p + first + 1, second, 96))) {
        LT_FAIL(LT_ERR_ARG, "%s is not hf://[datasets/|spaces/]ORG/NAME[@REVISION][/FILE]", text);
    }
    memcpy(l->place, p, n);
    rest = p + n;
    (void)snprintf(l->revision, sizeof l->revision, "main");
    if (*rest == '@') {
        n = strcspn(rest + 1, "/");
        if (n == 0 || n >= sizeof l->revision) {
            LT_FAIL(LT_ERR_ARG, "%s: a revision of %zu characters", text, n);
        }
        memcpy(l->revision, rest + 1, n);
        l->revision[n] = '\0';
        if (!lt_uri_decode(l->revision, false) || !lt_location_is_safe(l->revision)) {
            LT_FAIL(LT_ERR_ARG, "%s: no revision can have this name", text);
        }
        rest += 1 + n;
    }
    rest += *rest == '/';
    l->at = LT_AT_HUB;
    l->many = *rest == '\0';
    (void)snprintf(l->path, sizeof l->path, "%s", rest);
    if (!l->many && !lt_location_is_safe(l->path)) {
        LT_FAIL(LT_ERR_ARG, "%s: '%s' is not the name of a file in a repository", text, rest);
    }
    return LT_OK;
}

lt_err lt_location_read(lt_location *out, const char *text) {
    lt_location l = {0};
    if (strlen(text) >= LT_PATH_BYTES) {
        LT_FAIL(LT_ERR_ARG, "%.40s...: a location of %zu bytes; at most %d", text, strlen(text),
                LT_PATH_BYTES - 1);
    }
    (void)snprintf(l.shown, sizeof l.shown, "%s", text);
    if (begins(text, "s3://")) {
        LT_TRY(read_s3(&l, text));
    } else if (begins(text, "https://") || begins(text, "http://")) {
        LT_TRY(read_web(&l, text));
    } else if (begins(text, "hf://")) {
        LT_TRY(read_hub(&l, text));
    } else {
        const char *path = begins(text, "file://") ? text + strlen("file://") : text;
        const size_t scheme = strspn(text, "abcdefghijklmnopqrstuvwxyz0123456789+-.");
        if (path == text && scheme > 0 && begins(text + scheme, "://")) {
            LT_FAIL(LT_ERR_ARG,
                    "%s: unknown scheme '%.*s'; a copy knows s3, https, http, hf and file", text,
                    (int)scheme, text);
        }
        if (path[0] == '\0' || (path != text && path[0] != '/')) {
            LT_FAIL(LT_ERR_ARG, "'%s' names no file or folder", text);
        }
        l.at = LT_AT_FILE;
        (void)snprintf(l.path, sizeof l.path, "%s", path);
        l.many = ends_in_slash(path);
    }
    *out = l;
    return LT_OK;
}
