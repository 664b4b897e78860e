/* access.c: see access.h. */
#include "serve/api/access.h"

#include <ctype.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "base/error.h"
#include "base/log.h"
#include "serve/api/files/files.h"

#define MAX_HOST 256

/* ---- Keys ---- */

/* Every byte is compared, so the time does not reveal where the first difference is. */
static bool same_key(const char *key, const char *given) {
    const size_t n = strlen(key), m = strlen(given);
    unsigned char differs = n != m;
    for (size_t i = 0; i < n; i++) {
        differs |= (unsigned char)(key[i] ^ (i < m ? given[i] : 0));
    }
    return differs == 0;
}

bool lt_access_has_key(lt_call *call) {
    const lt_server *s = call->server;
    const char *bearer = lt_http_header_get(call->request->head, "authorization");
    const char *given[2] = {NULL, lt_http_header_get(call->request->head, "x-api-key")};
    bool found = s->o.n_keys == 0;

    call->owner = "";
    if (bearer != NULL && strncasecmp(bearer, "bearer ", 7) == 0) {
        given[0] = bearer + 7 + strspn(bearer + 7, " ");
    }
    for (int k = 0; k < 2; k++) {
        for (int i = 0; given[k] != NULL && i < s->o.n_keys; i++) {
            if (same_key(s->o.keys[i], given[k])) {
                found = true;
                call->owner = s->o.keys[i];
            }
        }
    }
    return found;
}

const char *lt_access_key_of(const lt_server *s, const char *owner_name) {
    char name[LT_OWNER_NAME_BYTES];
    if (owner_name[0] == '\0') {
        return s->o.n_keys == 0 ? "" : NULL;
    }
    for (int i = 0; i < s->o.n_keys; i++) {
        if (lt_owner_name(s->o.keys[i], name) && strcmp(name, owner_name) == 0) {
            return s->o.keys[i];
        }
    }
    return NULL;
}

/* ---- Models ---- */

static const char *models_of(const lt_server *s, const char *owner) {
    for (int i = 0; i < s->o.n_keys; i++) {
        if (s->o.key_models[i] != NULL && strcmp(s->o.keys[i], owner) == 0) {
            return s->o.key_models[i];
        }
    }
    return NULL;
}

bool lt_access_may_use(const lt_server *s, const char *owner) {
    const char *rest = owner[0] != '\0' ? models_of(s, owner) : NULL;
    char name[256];
    bool may = rest == NULL;
    while (!may && lt_server_next_alias(&rest, name, sizeof name)) {
        may = lt_server_is_named(s, name);
    }
    return may;
}

bool lt_access_check_model(const lt_server *s, const char *owner, lt_api_error *e) {
    if (lt_access_may_use(s, owner)) {
        return true;
    }
    lt_api_refuse(e, "model", "the API key is not for the model '%.100s'", s->name);
    e->status = 403;
    e->type = "permission_error";
    e->code = "model_not_allowed";
    return false;
}

/* ---- Names ---- */

/* Whether the item is in a comma-separated list. "*" in the list matches any item. */
static bool listed(const char *list, const char *item, size_t n) {
    for (const char *p = list; *p != '\0';) {
        const size_t lead = strspn(p, " "), width = strcspn(p + lead, ", ");
        if ((width == n && strncasecmp(p + lead, item, n) == 0) || (width == 1 && p[lead] == '*')) {
            return true;
        }
        p += lead + width;
        p += strcspn(p, ",");
        p += *p == ',';
    }
    return false;
}

bool lt_access_cors(const lt_server *s, const char *origin) {
    return listed(s->o.cors, origin, strlen(origin));
}

/* Remove the port and brackets from "name:port", "[::1]:port" or "name". */
static void bare_host(char out[MAX_HOST], const char *host) {
    const bool brackets = host[0] == '[';
    const char *from = host + brackets;
    size_t n = strcspn(from, brackets ? "]" : ":");
    n = n < MAX_HOST - 1 ? n : MAX_HOST - 1;
    if (n > 0 && from[n - 1] == '.' && !brackets) {
        n--; /* The root's dot is dropped. */
    }
    memcpy(out, from, n);
    out[n] = '\0';
}

static bool is_address(const char *host, bool brackets) {
    return brackets ? strspn(host, "0123456789abcdefABCDEF:.%") == strlen(host)
                    : host[0] != '\0' && strspn(host, "0123456789.") == strlen(host);
}

static bool ends_with(const char *text, const char *end) {
    const size_t n = strlen(text), m = strlen(end);
    return n >= m && strcasecmp(text + n - m, end) == 0;
}

/* Whether it is a name that no site on the internet can have, or one that the operator allows. */
static bool host_is_ours(const lt_server *s, const char *header) {
    char host[MAX_HOST], own[MAX_HOST];
    bare_host(host, header);
    bare_host(own, s->o.host);
    return is_address(host, header[0] == '[') || strchr(host, '.') == NULL ||
           ends_with(host, ".localhost") || strcasecmp(host, own) == 0 ||
           listed(s->o.allowed_hosts, host, strlen(host)) ||
           listed(s->o.allowed_hosts, header, strlen(header));
}

/* Whether an origin, "https://name:port", is this server under the name that the request uses for
 * it. */
static bool is_own_origin(const char *origin, const char *host) {
    const char *name = strstr(origin, "://");
    return host != NULL && name != NULL && strcasecmp(name + 3, host) == 0;
}

static bool has_type(const char *header, const char *type) {
    const size_t n = strlen(type);
    return strncasecmp(header, type, n) == 0 && (header[n] == '\0' || strchr("; \t", header[n]));
}

/* ---- The check ---- */

static void refuse(lt_access_refusal *r, int status, const char *code, const char *fmt, ...)
    LT_PRINTF(4, 5);
static void refuse(lt_access_refusal *r, int status, const char *code, const char *fmt, ...) {
    va_list args;
    *r = (lt_access_refusal){.status = status, .code = code};
    r->type = status == 415 ? "invalid_request_error" : "permission_error";
    va_start(args, fmt);
    vsnprintf(r->message, sizeof r->message, fmt, args);
    va_end(args);
}

/* A page of another site can send this header only after a preflight request (CORS). */
static bool is_authorized(const lt_http_parser *head) {
    return lt_http_header_get(head, "authorization") != NULL;
}

static void check_page(const lt_call *call, const char *host, lt_access_refusal *out) {
    const lt_server *s = call->server;
    const lt_http_parser *head = call->request->head;
    const char *origin = lt_http_header_get(head, "origin");
    const char *site = lt_http_header_get(head, "sec-fetch-site");
    const char *type = lt_http_header_get(head, "content-type");
    const bool reads = strcmp(call->request->method, "GET") == 0 ||
                       strcmp(call->request->method, "HEAD") == 0;

    if (origin != NULL && !is_own_origin(origin, host) && !lt_access_cors(s, origin)) {
        refuse(out, 403, "origin_not_allowed",
               "pages of %.100s may not call this server, which requires no key; allow them with "
               "--cors",
               origin);
    } else if (origin == NULL && site != NULL && !reads &&
               (strcmp(site, "cross-site") == 0 || strcmp(site, "same-site") == 0)) {
        refuse(out, 403, "origin_not_allowed",
               "a page of another site may not call this server, which requires no key");
    } else if (type != NULL && !reads &&
               (has_type(type, "text/plain") ||
                (has_type(type, "multipart/form-data") && !is_authorized(head)))) {
        refuse(out, 415, "unsupported_media_type",
               "a server without keys does not accept Content-Type: %.60s; send application/json, "
               "or a form with any key as 'Authorization: Bearer KEY'",
               type);
    }
}

void lt_access_check(const lt_call *call, bool open, lt_access_refusal *out) {
    const lt_server *s = call->server;
    const char *host = lt_http_header_get(call->request->head, "host");
    const bool asked = s->o.allowed_hosts[0] != '\0';

    out->status = 0;
    if ((s->o.n_keys == 0 || asked) && host != NULL && !host_is_ours(s, host)) {
        refuse(
            out, 403, "host_not_allowed",
            "this server is not known as '%.100s'; if it is, start it with --allowed-hosts %.100s",
            host, host);
    } else if (s->o.n_keys == 0 && !open) {
        check_page(call, host, out);
    }
}

/* ---- The operator ---- */

static bool is_loopback(const char *host) {
    char bare[MAX_HOST];
    if (strchr(host, ':') != NULL && host[0] != '[') {
        return strcmp(host, "::1") == 0;
    }
    bare_host(bare, host);
    return strncmp(bare, "127.", 4) == 0 || strcmp(bare, "::1") == 0 ||
           strcasecmp(bare, "localhost") == 0 || ends_with(bare, ".localhost");
}

lt_err lt_access_check_options(const lt_server_options *o) {
    if (o->n_keys > 0 && o->no_auth) {
        LT_FAIL(LT_ERR_ARG, "--no-auth contradicts %d API keys: give one or the other", o->n_keys);
    }
    for (int i = 0; i < o->n_keys; i++) {
        for (const char *p = o->keys[i]; *p != '\0'; p++) {
            if ((unsigned char)*p <= 0x20 || *p == 0x7F) {
                LT_FAIL(LT_ERR_ARG, "API key %d holds a space or a control character", i + 1);
            }
        }
    }
    if (o->n_keys == 0 && !o->no_auth && o->host != NULL && !is_loopback(o->host)) {
        lt_log_warn("serve: OPEN TO THE NETWORK: --host %s without a key answers everyone who can "
                    "reach it. Give --api-key or --api-key-file, or --no-auth if this is intended",
                    o->host);
    }
    return LT_OK;
}
