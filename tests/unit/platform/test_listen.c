/* The small HTTP server: a reply, and a failure about which the client learns nothing more. */
#include "unit/platform/http_get.h"

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

static void a_failure_tells_no_path(void **state) {
    static const lt_listen_route routes[] = {{"/good", good}, {"/bad", bad}};
    char reply[4096], text[] = "fine";
    lt_listener *l = NULL;
    (void)state;
    assert_int_equal(lt_listen_open(&l, "--listen", ":0", routes, 2, text), LT_OK);
    http_get(lt_listen_address(l), "/good", reply, sizeof reply);
    assert_non_null(strstr(reply, " 200 "));
    assert_non_null(strstr(reply, "fine"));
    http_get(lt_listen_address(l), "/bad", reply, sizeof reply);
    assert_non_null(strstr(reply, " 500 "));
    assert_null(strstr(reply, "secret"));
    http_get(lt_listen_address(l), "/none", reply, sizeof reply);
    assert_non_null(strstr(reply, " 404 "));
    lt_listen_close(l);
}

/* A server ends even if its thread has not begun to serve. */
static void closed_at_once(void **state) {
    static const lt_listen_route routes[] = {{"/good", good}};
    (void)state;
    (void)alarm(20);
    for (int i = 0; i < 200; i++) {
        lt_listener *l = NULL;
        assert_int_equal(lt_listen_open(&l, "--listen", ":0", routes, 1, NULL), LT_OK);
        lt_listen_close(l);
    }
    (void)alarm(0);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_failure_tells_no_path),
                                       cmocka_unit_test(closed_at_once)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
