/* The small HTTP server: a reply, and a failure about which the client learns nothing more. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/error.h"
#include "platform/telemetry/listen.h"

static lt_err good(void *ctx, const char *accept, lt_answer *out) {
    (void)accept;
    out->type = "text/plain";
    out->text = strdup(ctx);
    out->bytes = strlen(ctx);
    return LT_OK;
}

static lt_err bad(void *ctx, const char *accept, lt_answer *out) {
    (void)ctx;
    (void)accept;
    (void)out;
    LT_FAIL(LT_ERR_IO, "/srv/secret/metrics.jsonl: no such file");
}

/* The complete reply to a GET. */
static void get(const lt_listener *l, const char *path, char *reply, size_t room) {
    struct sockaddr_in to = {.sin_family = AF_INET};
    char ask[128];
    size_t n = 0;
    ssize_t got;
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    to.sin_port = htons((uint16_t)atoi(strrchr(lt_listen_address(l), ':') + 1));
    assert_int_equal(connect(fd, (struct sockaddr *)&to, sizeof to), 0);
    snprintf(ask, sizeof ask, "GET %s HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", path);
    assert_int_equal(write(fd, ask, strlen(ask)), (ssize_t)strlen(ask));
    while ((got = read(fd, reply + n, room - 1 - n)) > 0) {
        n += (size_t)got;
    }
    reply[n] = '\0';
    close(fd);
}

static void a_failure_tells_no_path(void **state) {
    static const lt_listen_route routes[] = {{"/good", good}, {"/bad", bad}};
    char reply[4096], text[] = "fine";
    lt_listener *l = NULL;
    (void)state;
    assert_int_equal(lt_listen_open(&l, "--listen", ":0", routes, 2, text), LT_OK);
    get(l, "/good", reply, sizeof reply);
    assert_non_null(strstr(reply, " 200 "));
    assert_non_null(strstr(reply, "fine"));
    get(l, "/bad", reply, sizeof reply);
    assert_non_null(strstr(reply, " 500 "));
    assert_null(strstr(reply, "secret"));
    get(l, "/none", reply, sizeof reply);
    assert_non_null(strstr(reply, " 404 "));
    lt_listen_close(l);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_failure_tells_no_path)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
