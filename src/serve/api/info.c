/* info.c: the server's reports about itself: models, health, version, metrics, the numbers of the
 * status page. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/encoding.h"
#include "base/error.h"
#include "base/limits.h"
#include "serve/api/access.h"
#include "serve/api/files/batch.h"
#include "serve/api/models.h"
#include "serve/api/reply.h"
#include "serve/api/route.h"
#include "serve/api/files/tuning.h"

/* The context is known once the model has been loaded. */
static void put_length(lt_json_out *o, const char *key, const lt_server *s) {
    if (lt_server_context(s) > 0) {
        lt_out_key_int(o, key, lt_server_context(s));
    } else {
        lt_out_key_null(o, key);
    }
}

/* Write the state of one of several models: llama-server's name of its status, its memory, the
 * number of waiting requests, and its aliases. */
static void put_state(lt_json_out *o, const lt_model_slot *slot) {
    static const char *const states[] = {[LT_MODEL_UNLOADED] = "unloaded",
                                         [LT_MODEL_LOADING] = "loading",
                                         [LT_MODEL_LOADED] = "loaded",
                                         [LT_MODEL_UNLOADING] = "unloading",
                                         [LT_MODEL_FAILED] = "unloaded"};
    const char *rest = slot->server->o.aliases;
    char alias[256];

    lt_out_key_open(o, "status", '{');
    lt_out_key_str(o, "value", states[slot->state]);
    if (slot->state == LT_MODEL_FAILED) {
        lt_out_key_bool(o, "failed", true);
        lt_out_key_str(o, "reason", slot->why);
    }
    lt_out_shut(o, '}');
    lt_out_key_int(o, "bytes", slot->bytes);
    lt_out_key_int(o, "waiting", slot->n_waiting);
    lt_out_key_open(o, "aliases", '[');
    while (lt_server_next_alias(&rest, alias, sizeof alias)) {
        lt_out_text(o, alias);
    }
    lt_out_shut(o, ']');
}

/* OpenAI's fields, vLLM's, and Anthropic's. */
static void put_model(lt_json_out *o, const lt_server *s) {
    const lt_model_spec *spec = lt_server_has_model(s) ? lt_model_get_spec(s->model) : NULL;
    const time_t created = (time_t)s->created;
    struct tm utc;
    char when[32];

    strftime(when, sizeof when, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&created, &utc));
    lt_out_open(o, '{');
    lt_out_key_str(o, "id", s->name);
    lt_out_key_str(o, "object", "model");
    lt_out_key_int(o, "created", s->created);
    lt_out_key_str(o, "owned_by", "lateen");
    lt_out_key_str(o, "root", s->o.model != NULL ? s->o.model : s->name);
    lt_out_key_null(o, "parent");
    put_length(o, "max_model_len", s);
    lt_out_key_str(o, "type", "model");
    lt_out_key_str(o, "display_name", s->name);
    lt_out_key_str(o, "created_at", when);
    lt_out_key_str(o, "lifecycle", "active");
    put_length(o, "max_input_tokens", s);
    put_length(o, "max_tokens", s);
    if (s->slot != NULL) {
        put_state(o, s->slot);
    }
    if (spec == NULL) {
        lt_out_key_null(o, "meta");
        lt_out_shut(o, '}');
        return;
    }
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
    const char *first = NULL, *last = NULL;
    lt_json_out o = {0};
    lt_out_open(&o, '{');
    lt_out_key_str(&o, "object", "list");
    lt_out_key_open(&o, "data", '[');
    for (int i = 0; i < lt_server_count(call->server); i++) {
        const lt_server *s = lt_server_at(call->server, i);
        if (lt_access_may_use(s, call->owner)) {
            put_model(&o, s);
            first = first != NULL ? first : s->name;
            last = s->name;
            (void)lt_adapter_set_write_models(s->adapters, &o, NULL, call->owner);
        }
    }
    lt_out_shut(&o, ']');
    lt_out_key_bool(&o, "has_more", false);
    lt_out_key_str(&o, "first_id", first);
    lt_out_key_str(&o, "last_id", last);
    lt_out_shut(&o, '}');
    lt_call_json(call, 200, &o);
}

void lt_api_model(lt_call *call) {
    lt_json_out o = {0};
    lt_api_error e;
    char name[sizeof call->server->name + 1];
    /* Clients may encode any character: "org%2Fmodel". A name that does not fit is cut, and then
     * matches no model. */
    (void)lt_percent_decode(name, sizeof name, call->tail, strlen(call->tail), false);
    for (int i = 0; i < lt_server_count(call->server); i++) {
        const lt_server *s = lt_server_at(call->server, i);
        if (!lt_access_may_use(s, call->owner)) {
            continue;
        }
        if (lt_server_is_named(s, name)) {
            put_model(&o, s);
        } else if (!lt_adapter_set_write_models(s->adapters, &o, name, call->owner)) {
            continue;
        }
        lt_call_json(call, 200, &o);
        return;
    }
    lt_server_refuse_model(call->server, call->owner, name, &e);
    lt_call_error(call, &e);
}

void lt_api_health(lt_call *call) {
    lt_json_out o = {0};
    lt_api_error e = {.status = 503, .type = "unavailable_error", .retry_after_s = 1};
    call->flavour = LT_FLAVOUR_LLAMA;
    if (atomic_load(&call->server->state) != LT_SERVER_READY ||
        (call->server->models != NULL && lt_models_starting(call->server->models))) {
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

static void describe_model(lt_server *s, lt_metrics_model *m) {
    m->counters = &s->metrics;
    m->name = s->name;
    m->page_tokens = s->o.engine.page_tokens;
    m->prefix_cache = s->o.engine.prefix_cache;
    if (lt_server_has_model(s)) {
        lt_engine_get_stats(s->engine, &m->st);
        lt_compiler_get_kept(s->compiler, &s->metrics.grammars);
    }
}

/* If the server has several models, write the numbers of each. */
static void put_loads(lt_server *s, const lt_metrics_model *models, lt_expo *o) {
    static const struct {
        lt_expo_type type;
        const char *name, *help;
    } rows[] = {{LT_EXPO_GAUGE, "lateen_model_loaded", "1: the model is loaded."},
                {LT_EXPO_GAUGE, "lateen_model_bytes",
                 "Memory of the model, or what it is expected to take."},
                {LT_EXPO_GAUGE, "lateen_model_waiting", "Requests that wait for its loading."},
                {LT_EXPO_COUNTER, "lateen_model_loads_total", "How often it was loaded."},
                {LT_EXPO_COUNTER, "lateen_model_unloads_total", "How often it was unloaded."}};
    for (size_t row = 0; s->models != NULL && row < sizeof rows / sizeof *rows; row++) {
        lt_expo_family(o, rows[row].type, rows[row].name, rows[row].help);
        for (int i = 0; i < lt_models_count(s->models); i++) {
            const lt_model_slot *slot = lt_models_at(s->models, i);
            const double values[] = {slot->state == LT_MODEL_LOADED, (double)slot->bytes,
                                     (double)slot->n_waiting, (double)slot->n_loads,
                                     (double)slot->n_unloads};
            lt_expo_value(o, values[row], "%s", models[i].labels);
        }
    }
}

void lt_api_metrics(lt_call *call) {
    lt_server *s = call->server;
    const size_t n = strlen(call->extra);
    const lt_http_counts http = lt_http_get_counts(s->http);
    lt_expo o = {.format = lt_expo_choose(lt_http_header_get(call->request->head, "accept"))};
    const int n_models = lt_server_count(s);
    lt_metrics_model *models = calloc((size_t)n_models, sizeof *models);

    for (int i = 0; models != NULL && i < n_models; i++) {
        describe_model(lt_server_at(s, i), &models[i]);
    }
    o.failed = models == NULL;
    if (models != NULL) {
        lt_metrics_write(models, n_models, &s->metrics, &http, &o);
        put_loads(s, models, &o);
        lt_adapter_set_metrics(s->adapters, &o);
        lt_expo_process(&o, (double)s->created);
    }
    free(models);
    if (s->batches != NULL) {
        lt_batches_metrics(s->batches, &o);
    }
    if (s->tunings != NULL) {
        lt_tunings_metrics(s->tunings, &o);
    }
    lt_expo_end(&o);
    snprintf(call->extra + n, sizeof call->extra - n, "Process-Start-Time-Unix: %lld\r\n",
             (long long)s->created);
    lt_http_reply(call->conn, o.failed ? 503 : 200, lt_expo_content_type(o.format), call->extra,
                  o.data, o.n);
    lt_expo_free(&o);
}

/* ---- The status page's numbers ---- */

/* The upper bound of the bucket with the q-quantile. */
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
    STAT(host_pages);
    STAT(host_tokens);
    STAT(disk_pages);
    STAT(disk_tokens);
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
    if (lt_server_has_model(s)) {
        lt_engine_get_stats(s->engine, &st);
        lt_engine_get_cache(s->engine, &cache);
        lt_out_key_int(&o, "context", lt_server_context(s));
        lt_out_key_int(&o, "cache_bytes", cache.pages * cache.page_bytes);
        lt_out_key_str(&o, "cache_why", cache.why);
    }
    put_engine(&o, &st, &s->o.engine);
    lt_out_key_int(&o, "connections", lt_http_get_counts(s->http).connections);
    lt_out_key_int(&o, "requests", s->models != NULL ? lt_models_replies(s->models) : s->n_replies);
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
