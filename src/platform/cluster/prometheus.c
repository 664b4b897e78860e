/* prometheus.c: see prometheus.h. */
#include "platform/cluster/prometheus.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/json.h"

/* The address of a request; free it. */
static char *address(const lt_prometheus *p, const char *expression, double span_s, double step_s) {
    const double now_s = lt_clock_unix_s();
    char *text = NULL;
    size_t n = 0;
    FILE *f = open_memstream(&text, &n);

    if (f == NULL) {
        return NULL;
    }
    fprintf(f, "%s/api/v1/%s?query=", p->url, span_s > 0.0 ? "query_range" : "query");
    lt_uri_encode(f, expression, true);
    if (span_s > 0.0) {
        fprintf(f, "&start=%.3f&end=%.3f&step=%.3f", now_s - span_s, now_s, step_s);
    }
    if (fclose(f) != 0) {
        free(text);
        return NULL;
    }
    return text;
}

/* Read data.result of an answer; if it is an error, fail with Prometheus's own message. */
static lt_err read_answer(json_t **out, const lt_prometheus *p, const lt_web_reply *reply) {
    json_t *answer = NULL, *result;
    const char *error;

    if (reply->status == 0 || reply->body == NULL) {
        LT_FAIL(LT_ERR_REMOTE, "Prometheus at %s: %s", p->url,
                reply->failure[0] != '\0' ? reply->failure : "no answer");
    }
    if (lt_json_parse(&answer, reply->body, reply->body_bytes, "Prometheus") != LT_OK) {
        LT_FAIL(LT_ERR_REMOTE, "%s answers with status %d and no JSON; is it Prometheus?", p->url,
                reply->status);
    }
    error = json_string_value(json_object_get(answer, "error"));
    result = json_object_get(json_object_get(answer, "data"), "result");
    *out = json_is_array(result) ? json_incref(result) : NULL;
    if (*out == NULL) {
        (void)lt_error_set(LT_ERR_REMOTE, "Prometheus: %s",
                           error != NULL ? error : "an answer without a result");
    }
    json_decref(answer);
    return *out != NULL ? LT_OK : LT_ERR_REMOTE;
}

lt_err lt_prometheus_ask(json_t **out, const lt_prometheus *p, const char *expression,
                         double span_s, double step_s) {
    lt_err err = LT_OK;
    lt_web_reply *reply = calloc(1, sizeof *reply);
    char *url = address(p, expression, span_s, step_s);

    if (url == NULL || reply == NULL) {
        LT_FAIL_DONE(LT_ERR_OOM, "a question to Prometheus");
    }
    LT_TRY_DONE(lt_web_send(p->web, &(lt_web_request){.method = "GET", .url = url}, reply));
    LT_TRY_DONE(read_answer(out, p, reply));
done:
    if (reply != NULL) {
        lt_web_reply_free(reply);
    }
    free(reply);
    free(url);
    return err;
}
