/* access.h: who may call. It is decided when the headers of a request have arrived, before its body
 * is read, by keys, hosts, origins and content types.
 *
 * KEYS      Authorization: Bearer KEY or x-api-key: KEY. Every key is compared completely, so the
 *           time reveals nothing but its length.
 * BROWSERS  A server without keys answers everyone who reaches it, and a page of any site can reach
 *           127.0.0.1 through its reader's browser. So without keys
 *           Host     must be an address, localhost, a name without dots (which no site on the
 *                    internet has), the --host, or one of --allowed-hosts: a site that lets its own
 *                    name point to 127.0.0.1 (DNS rebinding) is refused by its name
 *           Origin   must be the server's own or one of --cors (--allowed-origins); browsers send
 *                    it with every POST of a page
 *           Sec-Fetch-Site  a request with no Origin that a browser says came from another site is
 *                           refused, unless it only reads
 *           Content-Type    text/plain and multipart/form-data are refused, because a page may send
 *                           them without asking; a form is accepted with Authorization, which
 *                           OpenAI's clients always send and a page may not. (A page may also send
 *                           application/x-www-form-urlencoded, but curl -d gives JSON this type;
 *                           the Origin covers it.)
 * MODELS    A key with a list of models may use these only, and their adapters.
 * With keys, a page of another site can do nothing, because it does not know a key; --allowed-hosts
 * then applies only if it was given. */
#ifndef LT_SERVE_ACCESS_H
#define LT_SERVE_ACCESS_H

#include "serve/api/server.h"

typedef struct {
    int status; /* 0: the call is allowed. */
    const char *type, *code;
    char message[400];
} lt_access_refusal;

/* call->owner becomes the key. False: the request has none of the server's keys. */
bool lt_access_has_key(lt_call *call);
/* The server's key whose name (lt_owner_name) is the owner's; NULL: the server has none. */
const char *lt_access_key_of(const lt_server *s, const char *owner_name);
/* Whether the owner's key is for all models, or names this one; "": no key is required. */
bool lt_access_may_use(const lt_server *s, const char *owner);
/* The same; if false, e is the 403. */
bool lt_access_check_model(const lt_server *s, const char *owner, lt_api_error *e);
/* Whether the origin is one of --cors. */
bool lt_access_cors(const lt_server *s, const char *origin);
/* Check Host, Origin and Content-Type. open: the answer is not secret, so any page may read it. */
void lt_access_check(const lt_call *call, bool open, lt_access_refusal *out);
/* Fail if the options for keys and host contradict each other; warn if they open the server to a
 * network. */
LT_MUST_USE lt_err lt_access_check_options(const lt_server_options *o);

#endif
