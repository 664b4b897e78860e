/* api/info.c: what the server reports about itself: models, health, version, metrics, the numbers
 * of the status page. */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/encoding.h"
#include "base/error.h"
#include "base/limits.h"
#include "serve/api/batch.h"
#include "serve/api/reply.h"
#include "serve/api/route.h"

/* OpenAI's fields, vLLM's, and Anthropic's. */
static void put_model(lt_json_out *o, const lt_server *s) {
    const lt_model_spec *spec = lt_model_get_spec(s->model);
    const time_t created = (time_t)s->created;
    struct tm utc;
    char when[32];

    strftime(when, sizeof when, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&created, &utc));
    lt_out_open(o, '{');
    lt_out_key_str(o, "id", s->name);
    lt_out_key_str(o, "object", "model");
    lt_out_key_int(o, "created", s->created);
    lt_out_key_str(o, "owned_by", "lateen");
    lt_out_key_int(o, "max_model_len", lt_server_context(s));
    lt_out_key_str(o, "type", "model");
    lt_out_key_str(o, "display_name", s->name);
    lt_out_key_str(o, "created_at", when);
    lt_out_key_str(o, "lifecycle", "active");
    lt_out_key_int(o, "max_input_tokens", lt_server_context(s));
    lt_out_key_int(o, "max_tokens", lt_server_context(s));
    lt_out_key_open(o, "meta", '{');
    lt_out_key_str(o, "family", lt_family_name(spec->family));
    lt_out_key_int(o, "n_vocab", spec->vocab_size);
    lt_out_key_int(o, "n_ctx_train", spec->max_seq);
    lt_out_key_int(o, "n_embd", spec->width);
    lt_out_key_int(o, "n_params", lt_model_spec_params(spec));
    lt_out_shut(o, '}');
    lt_out_shut(o, '}');
}

void lt_api_models(lt_call *call) {
    lt_json_out o = {0};
    lt_out_open(&o, '{');
    lt_out_key_str(&o, "object", "list");
    lt_out_key_open(&o, "data", '[');
    put_model(&o, call->server);
    lt_out_shut(&o, ']');
    lt_out_key_bool(&o, "has_more", false);
    lt_out_key_str(&o, "first_id", call->server->name);
    lt_out_key_str(&o, "last_id", call->server->name);
    lt_out_shut(&o, '}');
    lt_call_json(call, 200, &o);
}

void lt_api_model(lt_call *call) {
    lt_json_out o = {0};
    char name[sizeof call->server->name + 1];
    /* Clients may encode any character: "org%2Fmodel". A name that does not fit is cut, and then
     * matches no model. */
    (void)lt_percent_decode(name, sizeof name, call->tail, strlen(call->tail), false);
    if (strcmp(name, call->server->name) != 0) {
        lt_api_error e = {.status = 404, .type = "not_found_error", .code = "model_not_found"};
        snprintf(e.message, sizeof e.message, "the model '%.100s' is not served here; '%s' is",
                 name, call->server->name);
        snprintf(e.param, sizeof e.param, "model");
        lt_call_error(call, &e);
        return;
    }
    put_model(&o, call->server);
    lt_call_json(call, 200, &o);
}

void lt_api_health(lt_call *call) {
    lt_json_out o = {0};
    lt_api_error e = {.status = 503, .type = "unavailable_error", .retry_after_s = 1};
    call->flavour = LT_FLAVOUR_LLAMA;
    if (atomic_load(&call->server->state) != LT_SERVER_READY) {
        snprintf(e.message, sizeof e.message, "Loading model");
        lt_call_error(call, &e);
        return;
    }
    if (call->server->draining) {
        snprintf(e.message, sizeof e.message, "the server is ending");
        lt_call_error(call, &e);
        return;
    }
    lt_out_open(&o, '{');
    lt_out_key_str(&o, "status", "ok");
    lt_out_shut(&o, '}');
    lt_call_json(call, 200, &o);
}

void lt_api_version(lt_call *call) {
    lt_json_out o = {0};
    lt_out_open(&o, '{');
    lt_out_key_str(&o, "version", lt_version());
    lt_out_shut(&o, '}');
    lt_call_json(call, 200, &o);
}

void lt_api_metrics(lt_call *call) {
    lt_server *s = call->server;
    const size_t n = strlen(call->extra);
    const lt_http_counts http = lt_http_get_counts(s->http);
    lt_expo o = {.format = lt_expo_choose(lt_http_header_get(call->request->head, "accept"))};
    lt_engine_stats st;

    lt_engine_get_stats(s->engine, &st);
    lt_compiler_get_kept(s->compiler, &s->metrics.grammars);
    lt_metrics_write(&s->metrics, &st, &s->o.engine, s->name, &http, s->created, &o);
    if (s->batches != NULL) {
        lt_batches_metrics(s->batches, &o);
    }
    lt_expo_end(&o);
    snprintf(call->extra + n, sizeof call->extra - n, "Process-Start-Time-Unix: %lld\r\n",
             (long long)s->created);
    lt_http_reply(call->conn, o.failed ? 503 : 200, lt_expo_content_type(o.format), call->extra,
                  o.data, o.n);
    lt_expo_free(&o);
}

/* ---- The status page's numbers ---- */

/* The bound of the bucket that holds the q-th part of the values. */
static double quantile(const lt_histogram *h, double q) {
    uint64_t below = 0;
    for (int i = 0; i < h->n_bounds; i++) {
        below += h->counts[i];
        if (h->n > 0 && (double)below >= q * (double)h->n) {
            return h->bounds[i];
        }
    }
    return 0;
}

static void put_engine(lt_json_out *o, const lt_engine_stats *st, const lt_engine_options *e) {
#define STAT(name) lt_out_key_int(o, #name, st->name)
    STAT(running);
    STAT(waiting);
    STAT(pages);
    STAT(pages_used);
    STAT(pages_cached);
    STAT(steps);
    STAT(prompt_tokens);
    STAT(cached_tokens);
    STAT(new_tokens);
    STAT(preemptions);
    STAT(finished);
    STAT(cancelled);
    STAT(failed);
    STAT(step_tokens);
    STAT(step_sequences);
#undef STAT
    lt_out_key_real(o, "step_s", st->step_s);
    lt_out_key_int(o, "max_running", e->max_running);
    lt_out_key_int(o, "max_waiting", e->max_waiting);
    lt_out_key_int(o, "page_tokens", e->page_tokens);
}

void lt_api_status_json(lt_call *call) {
    static const char *const states[] = {"loading", "ready", "failed"};
    lt_server *s = call->server;
    const lt_server_state state = atomic_load(&s->state);
    lt_json_out o = {0};
    lt_engine_stats st = {0};
    lt_engine_cache cache;

    lt_out_open(&o, '{');
    lt_out_key_str(&o, "state", s->draining ? "ending" : states[state]);
    lt_out_key_str(&o, "model", s->name);
    lt_out_key_str(&o, "version", lt_version());
    lt_out_key_real(&o, "uptime_s", lt_clock_s() - s->started_s);
    lt_out_key_real(&o, "now_s", lt_clock_s());
    lt_out_key_real(&o, "load_s", s->load_s);
    if (state == LT_SERVER_READY) {
        lt_engine_get_stats(s->engine, &st);
        lt_engine_get_cache(s->engine, &cache);
        lt_out_key_int(&o, "context", lt_server_context(s));
        lt_out_key_int(&o, "cache_bytes", cache.pages * cache.page_bytes);
        lt_out_key_str(&o, "cache_why", cache.why);
    }
    put_engine(&o, &st, &s->o.engine);
    lt_out_key_int(&o, "connections", lt_http_get_counts(s->http).connections);
    lt_out_key_int(&o, "requests", s->n_replies);
    lt_out_key_int(&o, "http_requests", (int64_t)s->metrics.http_requests);
    lt_out_key_int(&o, "http_errors", (int64_t)s->metrics.http_errors);
    lt_out_key_real(&o, "ttft_p50_s", quantile(&s->metrics.h[LT_HIST_TTFT], 0.5));
    lt_out_key_real(&o, "ttft_p99_s", quantile(&s->metrics.h[LT_HIST_TTFT], 0.99));
    lt_out_key_real(&o, "itl_p50_s", quantile(&s->metrics.h[LT_HIST_ITL], 0.5));
    lt_out_key_real(&o, "itl_p99_s", quantile(&s->metrics.h[LT_HIST_ITL], 0.99));
    lt_out_key_int(&o, "resident_bytes", (int64_t)lt_limits_resident_bytes());
    lt_out_key_int(&o, "descriptors", lt_limits_open_files());
    lt_out_shut(&o, '}');
    lt_call_json(call, 200, &o);
}
