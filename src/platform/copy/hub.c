/* hub.c: see hub.h. The token goes to the hub's own address only: libcurl drops the header when a
 * redirection leads to another host, and requests to a remembered address of another host are sent
 * without it. */
#include "platform/copy/hub.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <openssl/crypto.h>

#include "base/encoding.h"
#include "base/error.h"
#include "base/json.h"
#include "base/log.h"

#define TOKEN_BYTES 512

struct lt_hub {
    char endpoint[512]; /* Without a slash at its end. */
    char bearer[TOKEN_BYTES + 8];
};

struct lt_hub_file {
    const lt_hub *hub; /* NULL: a web address. */
    const char *shown;
    char *url;
    pthread_mutex_t lock;
    char direct[4096]; /* The address to which url redirects; "": not known. */
};

/* The value of the first of two variables that is set; NULL: neither is. */
static const char *setting(const char *name, const char *older) {
    const char *value = getenv(name);
    if ((value == NULL || value[0] == '\0') && older != NULL) {
        value = getenv(older);
    }
    return value != NULL && value[0] != '\0' ? value : NULL;
}

static bool is_on(const char *value) {
    static const char *const words[] = {"1", "true", "yes", "on"};
    for (size_t i = 0; i < sizeof words / sizeof *words && value != NULL; i++) {
        if (strcasecmp(value, words[i]) == 0) {
            return true;
        }
    }
    return false;
}

/* A path in a variable. If no shell has expanded it (in a systemd unit, a container), it may still
 * begin with ~, which is replaced here as in huggingface_hub. */
static lt_err path_of(char out[LT_PATH_BYTES], const char *name, const char *value) {
    const char *home = getenv("HOME");
    const bool at_home = value[0] == '~' && (value[1] == '/' || value[1] == '\0');
    if (strchr(value, '$') != NULL || (at_home && home == NULL)) {
        LT_FAIL(LT_ERR_ARG, "%s='%s': %s", name, value,
                at_home ? "HOME is not set" : "variables within a path are not replaced");
    }
    if (snprintf(out, LT_PATH_BYTES, "%s%s", at_home ? home : "", value + at_home) >=
        LT_PATH_BYTES) {
        LT_FAIL(LT_ERR_LIMIT, "%s: a path of %zu bytes", name, strlen(value));
    }
    return LT_OK;
}

/* The folder of the hub's files: HF_HOME, or XDG_CACHE_HOME/huggingface. */
static lt_err home_folder(char out[LT_PATH_BYTES]) {
    const char *own = setting("HF_HOME", NULL), *xdg = setting("XDG_CACHE_HOME", NULL),
               *home = setting("HOME", NULL);
    char base[LT_PATH_BYTES];
    if (own != NULL) {
        return path_of(out, "HF_HOME", own);
    }
    if (xdg != NULL) {
        LT_TRY(path_of(base, "XDG_CACHE_HOME", xdg));
    } else {
        LT_TRY(lt_path_join(base, home != NULL ? home : "/tmp", ".cache"));
    }
    return lt_path_join(out, base, "huggingface");
}

lt_err lt_hub_cache(char out[LT_PATH_BYTES], const lt_location *at) {
    const char *own = setting("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE");
    char base[LT_PATH_BYTES], name[300];
    size_t n = 0;
    if (own != NULL) {
        LT_TRY(path_of(base, "HF_HUB_CACHE", own));
    } else {
        char home[LT_PATH_BYTES];
        LT_TRY(home_folder(home));
        LT_TRY(lt_path_join(base, home, "hub"));
    }
    n = (size_t)snprintf(name, sizeof name, "%s--", at->kind);
    for (const char *p = at->place; *p != '\0'; p++) { /* ORG/NAME, with "--" for the slash. */
        n += (size_t)snprintf(name + n, sizeof name - n, *p == '/' ? "--" : "%c", *p);
    }
    return lt_path_join(out, base, name);
}

bool lt_hub_is_offline(void) {
    return is_on(setting("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"));
}

/* Read HF_TOKEN, or the first line of the file that `hf auth login` writes; or none. */
static lt_err read_token(char out[TOKEN_BYTES]) {
    const char *own = setting("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"),
               *file = setting("HF_TOKEN_PATH", NULL);
    char path[LT_PATH_BYTES], *text = NULL;
    lt_err err;

    out[0] = '\0';
    if (is_on(getenv("HF_HUB_DISABLE_IMPLICIT_TOKEN"))) {
        return LT_OK;
    }
    if (own == NULL) {
        if (file != NULL) {
            LT_TRY(path_of(path, "HF_TOKEN_PATH", file));
        } else {
            char home[LT_PATH_BYTES];
            LT_TRY(home_folder(home));
            LT_TRY(lt_path_join(path, home, "token"));
        }
        err = lt_file_read(&text, NULL, path, 1 << 16);
        if (err == LT_ERR_NOT_FOUND) {
            return LT_OK;
        }
        LT_TRY(err);
        own = text;
    }
    own += strspn(own, " \t\r\n");
    err = snprintf(out, TOKEN_BYTES, "%.*s", (int)strcspn(own, " \t\r\n"), own) >= TOKEN_BYTES
              ? lt_error_set(LT_ERR_LIMIT, "the token of the hub has over %d bytes", TOKEN_BYTES)
              : LT_OK;
    if (text != NULL) {
        OPENSSL_cleanse(text, strlen(text));
        free(text);
    }
    return err;
}

lt_err lt_hub_open(lt_hub **out) {
    const char *own = getenv("HF_ENDPOINT");
    lt_err err = LT_OK;
    char token[TOKEN_BYTES] = "";
    size_t n;
    lt_hub *hub = calloc(1, sizeof *hub);

    if (hub == NULL) {
        LT_FAIL(LT_ERR_OOM, "a client of the hub");
    }
    own = own != NULL && own[0] != '\0' ? own : "https://huggingface.co";
    if ((strncmp(own, "https://", 8) != 0 && strncmp(own, "http://", 7) != 0) ||
        strpbrk(own, "?#@ \t") != NULL || strlen(own) >= sizeof hub->endpoint) {
        LT_FAIL_DONE(LT_ERR_ARG, "HF_ENDPOINT is not http(s)://HOST[:PORT][/PATH]");
    }
    (void)snprintf(hub->endpoint, sizeof hub->endpoint, "%s", own);
    n = strlen(hub->endpoint);
    while (n > 0 && hub->endpoint[n - 1] == '/') {
        hub->endpoint[--n] = '\0';
    }
    LT_TRY_DONE(read_token(token));
    if (token[0] != '\0') {
        (void)snprintf(hub->bearer, sizeof hub->bearer, "Bearer %s", token);
    }
    *out = hub;
    hub = NULL;
done:
    OPENSSL_cleanse(token, sizeof token);
    lt_hub_close(hub);
    return err;
}

void lt_hub_close(lt_hub *hub) {
    if (hub != NULL) {
        OPENSSL_cleanse(hub, sizeof *hub);
        free(hub);
    }
}

/* endpoint/middle/REPOSITORY/verb/revision[/name], with the last two encoded. */
static lt_err make_url(char **out, const lt_hub *hub, const lt_location *at, const char *middle,
                       const char *verb, const char *revision, const char *name) {
    size_t bytes = 0;
    FILE *f = open_memstream(out, &bytes);
    if (f == NULL) {
        LT_FAIL(LT_ERR_OOM, "an address");
    }
    fprintf(f, "%s/%s%s/%s/", hub->endpoint, middle, at->place, verb);
    lt_uri_encode(f, revision, false);
    if (name != NULL) {
        fputc('/', f);
        lt_uri_encode(f, name, true);
    } else {
        fputs("?blobs=true", f);
    }
    if (fclose(f) != 0) {
        free(*out);
        LT_FAIL(LT_ERR_OOM, "an address");
    }
    return LT_OK;
}

lt_err lt_hub_url(char **out, const lt_hub *hub, const lt_location *at, const char *commit,
                  const char *name) {
    char middle[32] = "";
    if (strcmp(at->kind, "models") != 0) {
        (void)snprintf(middle, sizeof middle, "%s/", at->kind);
    }
    return make_url(out, hub, at, middle, "resolve", commit, name);
}

static lt_err read_sibling(const json_t *row, lt_hub_found found, void *ctx) {
    const json_t *lfs = json_object_get(row, "lfs");
    const char *name = NULL, *digest = NULL;
    lt_checksum check = {.kind = LT_DIGEST_NONE};
    int64_t size_bytes = -1;

    LT_TRY(lt_json_str(row, "rfilename", &name, false, "list of files"));
    LT_TRY(lt_json_i64(row, "size", &size_bytes, true, name));
    if (json_is_object(lfs)) {
        LT_TRY(lt_json_str(lfs, "sha256", &digest, false, name));
        LT_TRY(lt_json_i64(lfs, "size", &size_bytes, true, name));
        check.kind = LT_DIGEST_SHA256;
    } else {
        LT_TRY(lt_json_str(row, "blobId", &digest, false, name));
        check.kind = LT_DIGEST_GIT;
    }
    if (size_bytes < 0 || !lt_hex_is(digest, 2 * lt_digest_bytes(check.kind))) {
        LT_FAIL(LT_ERR_FORMAT, "list of files: '%.100s' has no size or no checksum", name);
    }
    if (!lt_location_is_safe(name)) {
        LT_FAIL(LT_ERR_FORMAT, "list of files: '%.100s' is not allowed as the name of a file",
                name);
    }
    memcpy(check.hex, digest, 2 * lt_digest_bytes(check.kind) + 1);
    return found(ctx, name, size_bytes, &check);
}

lt_err lt_hub_list_read(const char *text, size_t bytes, char commit[LT_HUB_COMMIT_BYTES],
                        lt_hub_found found, void *ctx) {
    lt_err err = LT_OK;
    json_t *json = NULL;
    const json_t *list, *row;
    const char *sha = NULL;
    size_t i;

    LT_TRY(lt_json_parse(&json, text, bytes, "list of files"));
    LT_TRY_DONE(lt_json_str(json, "sha", &sha, false, "list of files"));
    if (!lt_hex_is(sha, LT_HUB_COMMIT_BYTES - 1)) {
        LT_FAIL_DONE(LT_ERR_FORMAT, "list of files: 'sha' is not a commit");
    }
    memcpy(commit, sha, LT_HUB_COMMIT_BYTES);
    list = json_object_get(json, "siblings");
    if (!json_is_array(list)) {
        LT_FAIL_DONE(LT_ERR_FORMAT, "list of files: 'siblings' is missing");
    }
    json_array_foreach(list, i, row) {
        LT_TRY_DONE(read_sibling(row, found, ctx));
    }
done:
    json_decref(json);
    return err;
}

static void explain(const lt_web_reply *reply, char out[LT_CALL_TEXT_BYTES]) {
    (void)lt_web_header(reply, "x-error-message", out, LT_CALL_TEXT_BYTES);
    if (reply->status == 401 && strlen(out) + 60 < LT_CALL_TEXT_BYTES) {
        strcat(out, " (HF_TOKEN, or `hf auth login`, opens it)");
    }
}

static bool is_at(const lt_hub *hub, const char *url) {
    const size_t n = strlen(hub->endpoint);
    return strncmp(url, hub->endpoint, n) == 0 && url[n] == '/';
}

/* lt_caller's send for both kinds of address. */
static lt_err send(void *ctx, lt_web *h, const lt_web_request *r, lt_web_reply *reply) {
    lt_hub_file *f = ctx;
    lt_pair headers[8];
    lt_web_request full = *r;
    char url[sizeof f->direct];
    size_t n = r->n_headers;
    lt_err err;

    LT_ASSERT(n < sizeof headers / sizeof *headers);
    pthread_mutex_lock(&f->lock);
    memcpy(url, f->direct, sizeof url);
    pthread_mutex_unlock(&f->lock);
    full.url = url[0] != '\0' ? url : f->url;
    full.follow = true;
    if (n > 0) {
        memcpy(headers, r->headers, n * sizeof *headers);
    }
    if (f->hub != NULL && f->hub->bearer[0] != '\0') {
        if (is_at(f->hub, full.url)) {
            headers[n++] = (lt_pair){"Authorization", f->hub->bearer};
        }
    }
    full.headers = headers;
    full.n_headers = n;
    err = lt_web_send(h, &full, reply);
    if (err == LT_OK && (reply->status == 200 || reply->status == 206) && url[0] == '\0') {
        pthread_mutex_lock(&f->lock);
        memcpy(f->direct, reply->final_url, sizeof f->direct);
        pthread_mutex_unlock(&f->lock);
    }
    return err;
}

/* The address to which the hub redirects is valid for a limited time; after that, ask the hub
 * again. */
static bool passes(void *ctx, const lt_web_reply *reply) {
    lt_hub_file *f = ctx;
    if (reply->status != 400 && reply->status != 401 && reply->status != 403 &&
        reply->status != 404 && reply->status != 410) {
        return false;
    }
    if (strcmp(reply->final_url, f->url) == 0 ||
        (reply->redirected && (f->hub == NULL || is_at(f->hub, reply->final_url)))) {
        /* The hub itself refused, or the address to which it has just redirected. */
        return false;
    }
    pthread_mutex_lock(&f->lock);
    /* Another thread may have set a new address. */
    if (strcmp(f->direct, reply->final_url) == 0) {
        f->direct[0] = '\0';
    }
    pthread_mutex_unlock(&f->lock);
    return true;
}

static lt_caller caller_of(lt_hub_file *f) {
    return (lt_caller){.shown = f->shown,
                       .ctx = f,
                       .send = send,
                       .passes = passes,
                       .explain = f->hub != NULL ? explain : NULL};
}

lt_err lt_hub_file_open(lt_hub_file **out, const lt_hub *hub, const char *url, const char *shown) {
    lt_hub_file *f = calloc(1, sizeof *f);
    if (f == NULL || (f->url = strdup(url)) == NULL) {
        free(f);
        LT_FAIL(LT_ERR_OOM, "%s", shown);
    }
    f->hub = hub;
    f->shown = shown;
    LT_ASSERT(pthread_mutex_init(&f->lock, NULL) == 0);
    *out = f;
    return LT_OK;
}

lt_err lt_hub_file_read(lt_hub_file *f, lt_web *h, const char *version, bool in_one,
                        int64_t size_bytes, int64_t at, int64_t n, unsigned char *into) {
    lt_caller c = caller_of(f);
    c.in_one = in_one;
    return lt_call_range(&c, h, version, size_bytes, at, n, into);
}

lt_err lt_hub_file_probe(lt_hub_file *f, lt_web *h, lt_web_reply *reply) {
    const lt_pair range = {"Range", "bytes=0-0"};
    unsigned char byte[1];
    const lt_caller c = caller_of(f);
    lt_retry retry;
    bool again = true;

    lt_retry_begin(&retry);
    for (;;) { /* As lt_call, but it is not a failure if a server sends the whole file instead. */
        LT_TRY(send(
            f, h,
            &(lt_web_request){
                .method = "GET", .headers = &range, .n_headers = 1, .into = byte, .into_bytes = 1},
            reply));
        if (reply->too_long || (!lt_retry_may_help(reply) && !passes(f, reply))) {
            return LT_OK;
        }
        LT_TRY(lt_retry_wait(&retry, h, reply, &again));
        if (!again) {
            reply->status = reply->incomplete ? 0 : reply->status;
            const lt_err err = lt_call_refused(&c, "GET", reply);
            lt_web_reply_free(reply);
            return err;
        }
        lt_web_reply_free(reply);
    }
}

void lt_hub_file_close(lt_hub_file *f) {
    if (f != NULL) {
        free(f->url);
        (void)pthread_mutex_destroy(&f->lock);
        free(f);
    }
}

lt_err lt_hub_list(lt_hub *hub, lt_web *h, const lt_location *at, char commit[LT_HUB_COMMIT_BYTES],
                   lt_hub_found found, void *ctx) {
    char middle[40], code[64], words[200] = "", *url = NULL;
    lt_hub_file *f = NULL;
    lt_web_reply reply = {0};
    lt_caller c;
    lt_err err = LT_OK;

    (void)snprintf(middle, sizeof middle, "api/%s/", at->kind);
    LT_TRY_DONE(make_url(&url, hub, at, middle, "revision", at->revision, NULL));
    LT_TRY_DONE(lt_hub_file_open(&f, hub, url, at->shown));
    c = caller_of(f);
    LT_TRY_DONE(lt_call(&c, h, &(lt_web_request){.method = "GET"}, &reply));
    (void)lt_web_header(&reply, "x-error-code", code, sizeof code);
    if (reply.status == 401 || reply.status == 403 || strcmp(code, "RepoNotFound") == 0) {
        (void)lt_web_header(&reply, "x-error-message", words, sizeof words);
        lt_log_tame(words, false);
        LT_FAIL_DONE(LT_ERR_NOT_FOUND,
                     "%s: the hub refuses it (status %d%s%s): there is no such repository, or it "
                     "is private or gated and %s",
                     at->shown, reply.status, words[0] != '\0' ? ": " : "", words,
                     hub->bearer[0] != '\0' ? "the token does not open it, or is no longer valid"
                                            : "HF_TOKEN is not set");
    }
    if (reply.status != 200) {
        LT_TRY_DONE(lt_call_refused(&c, "list of files", &reply));
    }
    err = lt_hub_list_read(reply.body != NULL ? reply.body : "", reply.body_bytes, commit, found,
                           ctx);
    if (err != LT_OK) {
        err = lt_error_prefix(err, "%s", at->shown);
    }
done:
    lt_web_reply_free(&reply);
    lt_hub_file_close(f);
    free(url);
    return err;
}
