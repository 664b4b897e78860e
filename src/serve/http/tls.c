/* http/tls.c: see http/tls.h. */
#include "serve/http/tls.h"

#include <event2/bufferevent_ssl.h>
#include <event2/event.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"

#define LOOK_EVERY_S 2.0

/* The identity of a file when it was read. */
typedef struct {
    struct timespec changed;
    off_t bytes;
    ino_t inode;
} stamp;

struct lt_tls {
    const char *cert, *key;
    SSL_CTX *context;
    stamp seen[2]; /* Stamps of cert and key, whether reading them succeeded or not. */
    struct event *look;
};

static stamp stamp_of(const char *path) {
    struct stat st;
    if (stat(path, &st) != 0) {
        return (stamp){0};
    }
    return (stamp){st.st_mtim, st.st_size, st.st_ino};
}

static bool same_stamp(const stamp *a, const stamp *b) {
    return a->changed.tv_sec == b->changed.tv_sec && a->changed.tv_nsec == b->changed.tv_nsec &&
           a->bytes == b->bytes && a->inode == b->inode;
}

/* OpenSSL's text of its last failure; clears the others. */
static const char *why(char *text, size_t n) {
    const unsigned long code = ERR_get_error();
    const char *reason = ERR_reason_error_string(code);
    snprintf(text, n, "%s", reason != NULL ? reason : "unknown");
    ERR_clear_error();
    return text;
}

/* Without this, a key with a password would ask for it on the terminal. */
static int no_password(char *out, int n, int writes, void *ctx) {
    (void)out;
    (void)n;
    (void)writes;
    (void)ctx;
    return -1;
}

static int choose_protocol(SSL *ssl, const unsigned char **out, unsigned char *out_n,
                           const unsigned char *in, unsigned in_n, void *ctx) {
    static const unsigned char ours[] = "\x08http/1.1";
    (void)ssl;
    (void)ctx;
    return SSL_select_next_proto((unsigned char **)(uintptr_t)out, out_n, ours, sizeof ours - 1, in,
                                 in_n) == OPENSSL_NPN_NEGOTIATED
               ? SSL_TLSEXT_ERR_OK
               : SSL_TLSEXT_ERR_NOACK;
}

static lt_err make_context(SSL_CTX **out, const char *cert, const char *key) {
    lt_err err = LT_OK;
    char text[200];
    SSL_CTX *c = SSL_CTX_new(TLS_server_method());

    ERR_clear_error();
    if (c == NULL || SSL_CTX_set_min_proto_version(c, TLS1_2_VERSION) != 1) {
        LT_FAIL_DONE(LT_ERR_OOM, "TLS: %s", why(text, sizeof text));
    }
    SSL_CTX_set_options(c, SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION);
    SSL_CTX_set_mode(c, SSL_MODE_RELEASE_BUFFERS);
    SSL_CTX_set_alpn_select_cb(c, choose_protocol, NULL);
    SSL_CTX_set_default_passwd_cb(c, no_password);
    if (SSL_CTX_use_certificate_chain_file(c, cert) != 1) {
        LT_FAIL_DONE(LT_ERR_FORMAT, "--tls-cert %s: %s", cert, why(text, sizeof text));
    }
    if (SSL_CTX_use_PrivateKey_file(c, key, SSL_FILETYPE_PEM) != 1 ||
        SSL_CTX_check_private_key(c) != 1) {
        LT_FAIL_DONE(LT_ERR_FORMAT, "--tls-key %s for --tls-cert %s: %s", key, cert,
                     why(text, sizeof text));
    }
    if (X509_cmp_current_time(X509_get0_notAfter(SSL_CTX_get0_certificate(c))) < 0) {
        lt_log_warn("serve: the certificate %s has expired", cert);
    }
    *out = c;
    c = NULL;
done:
    SSL_CTX_free(c);
    return err;
}

static void on_look(evutil_socket_t fd, short what, void *arg) {
    lt_tls *t = arg;
    const stamp now[2] = {stamp_of(t->cert), stamp_of(t->key)};
    SSL_CTX *fresh = NULL;
    (void)fd;
    (void)what;
    if (same_stamp(&now[0], &t->seen[0]) && same_stamp(&now[1], &t->seen[1])) {
        return;
    }
    memcpy(t->seen, now, sizeof now);
    if (make_context(&fresh, t->cert, t->key) != LT_OK) {
        lt_log_error(
            "serve: the changed certificate cannot be used, so the previous one stays in use: %s",
            lt_error_message());
        return;
    }
    SSL_CTX_free(t->context); /* Connections keep their own references. */
    t->context = fresh;
    lt_log_info("serve: the certificate %s was read again", t->cert);
}

lt_err lt_tls_open(lt_tls **out, struct event_base *base, const char *cert, const char *key) {
    lt_err err = LT_OK;
    const struct timeval every = lt_clock_span(LOOK_EVERY_S);
    lt_tls *t = calloc(1, sizeof *t);

    if (t == NULL) {
        LT_FAIL_DONE(LT_ERR_OOM, "TLS");
    }
    t->cert = cert;
    t->key = key;
    t->seen[0] = stamp_of(cert);
    t->seen[1] = stamp_of(key);
    LT_TRY_DONE(make_context(&t->context, cert, key));
    t->look = event_new(base, -1, EV_PERSIST, on_look, t);
    if (t->look == NULL || event_add(t->look, &every) != 0) {
        LT_FAIL_DONE(LT_ERR_OOM, "TLS: no event");
    }
    *out = t;
    t = NULL;
done:
    lt_tls_close(t);
    return err;
}

void lt_tls_close(lt_tls *t) {
    if (t == NULL) {
        return;
    }
    if (t->look != NULL) {
        event_free(t->look);
    }
    SSL_CTX_free(t->context);
    free(t);
}

struct bufferevent *lt_tls_accept(lt_tls *t, struct event_base *base, evutil_socket_t fd) {
    SSL *ssl = SSL_new(t->context);
    struct bufferevent *bev;
    if (ssl == NULL) {
        return NULL;
    }
    /* Deferred: a failed write must not free its connection while it is written to. */
    bev = bufferevent_openssl_socket_new(base, fd, ssl, BUFFEREVENT_SSL_ACCEPTING,
                                         BEV_OPT_CLOSE_ON_FREE | BEV_OPT_DEFER_CALLBACKS);
    if (bev == NULL) {
        SSL_free(ssl);
        return NULL;
    }
    bufferevent_openssl_set_allow_dirty_shutdown(bev, 1); /* Many clients close without notice. */
    return bev;
}

void lt_tls_say_goodbye(struct bufferevent *bev) {
    (void)SSL_shutdown(bufferevent_openssl_get_ssl(bev));
    ERR_clear_error();
}
