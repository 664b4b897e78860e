/* reply.c: see reply.h: the life of a request from submission to the end of the answer. */
#include "serve/api/reply.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "data/tokenizer/bpe.h"

#define MAX_PARTS   2048
#define MAX_CHOICES 4096

/* ---- Opening and freeing ---- */

static void cancel(lt_reply *j) {
    for (int64_t i = 0; i < j->n_parts; i++) {
        if (j->parts[i].submitted && !j->parts[i].done) {
            lt_engine_cancel(j->model->engine, j->parts[i].id);
        }
    }
    lt_control_cancel(j);
    lt_blocks_cancel(j);
}

/* The client is gone. */
static void on_gone(lt_disconnect_listener *listener) {
    lt_reply *j = (lt_reply *)listener;
    j->conn = NULL;
    if (j->adapters.waits) {
        lt_reply_free(j);
    } else if (!j->compiling) {
        cancel(j);
    } else if (lt_compiler_cancel(j->server->compiler, &j->compile)) {
        lt_reply_free(j);
    }
}

lt_reply *lt_reply_open(lt_call *call, const lt_formatter *formatter, lt_api_params *params,
                        const char *id_prefix) {
    lt_reply *j = calloc(1, sizeof *j);

    if (j == NULL) {
        lt_api_error e = {.status = 503, .type = "server_error", .message = "out of memory"};
        lt_call_error(call, &e);
        lt_api_params_free(params);
        return NULL;
    }
    j->listener.disconnected = on_gone;
    j->server = j->model = call->server;
    j->conn = call->conn;
    j->flavour = call->flavour;
    memcpy(j->extra, call->extra, sizeof j->extra);
    j->owner = call->owner;
    j->formatter = formatter;
    j->params = *params;
    params->root = NULL;
    params->body = NULL;
    j->created = (int64_t)lt_clock_unix_s();
    j->arrived_s = call->arrived_s;
    j->body_bytes = j->params.body == NULL ? call->request->body_bytes : 0;
    j->stream = j->params.stream;
    j->request = lt_request_defaults();
    j->request.background = call->background;
    snprintf(j->id, sizeof j->id, "%s%s", id_prefix, call->id);
    return j;
}

/* Register the reply with the server when it starts; before that, another thread may own it. */
static void enlist(lt_reply *j) {
    lt_server *s = j->server;
    j->next = s->replies;
    if (s->replies != NULL) {
        s->replies->prev = j;
    }
    s->replies = j;
    s->n_replies++;
    j->listed = true;
}

static void unlist(lt_reply *j) {
    lt_server *s = j->server;
    if (j->next != NULL) {
        j->next->prev = j->prev;
    }
    if (j->prev != NULL) {
        j->prev->next = j->next;
    } else {
        s->replies = j->next;
    }
    s->n_replies--;
}

static void part_free(lt_part *p, int64_t n_choices) {
    for (int64_t i = 0; p->choices != NULL && i < n_choices; i++) {
        lt_reply_choice *c = &p->choices[i];
        lt_tokenizer_stream_close(c->stream);
        lt_stop_scan_free(&c->stop);
        lt_out_free(&c->text);
        lt_token_logs_free(&c->logs);
    }
    free(p->choices);
    lt_ids_free(&p->prompt);
    lt_token_logs_free(&p->prompt_logs);
    free(p->embedding);
    lt_ids_free(&p->score_at);
}

void lt_reply_free(lt_reply *j) {
    lt_server *s = j->server;
    if (j->formatter->free != NULL) {
        j->formatter->free(j);
    }
    for (int64_t i = 0; i < j->n_parts; i++) {
        part_free(&j->parts[i], j->n_choices);
    }
    free(j->parts);
    lt_group_free(j->group);
    lt_blocks_free(j->blocks);
    lt_control_free(j->control);
    free(j->bias);
    free(j->stop_ids);
    free(j->think_begin);
    free(j->think_end);
    free(j->allowed);
    free(j->bad_ends);
    lt_ids_free(&j->bad);
    lt_ids_free(&j->predicted);
    lt_ids_free(&j->negative);
    free(j->form.owned);
    lt_grammar_close(j->compile.grammar);
    lt_out_free(&j->out);
    lt_out_free(&j->error);
    lt_api_params_free(&j->params);
    const size_t let_go = j->body_bytes;
    const bool listed = j->listed;
    lt_adapter_set_drop(j);
    if (listed) {
        unlist(j);
    }
    free(j);
    lt_worker_pool_give_back(s->pool, let_go);
    if (listed) {
        lt_server_ended(s);
    }
}

void lt_reply_refuse(lt_call *call, lt_reply *j, const lt_api_error *e) {
    lt_call_error(call, e);
    j->conn = NULL;
    lt_reply_free(j);
}

bool lt_reply_add(lt_reply *j, lt_ids *prompt, lt_api_error *e) {
    lt_part *p;
    const int64_t context = lt_server_context(j->model);

    lt_reply_truncate(j, prompt);
    const bool cut = lt_reply_shifts(j) && lt_reply_cut(j, prompt);
    if (prompt->n == 0) {
        lt_ids_free(prompt);
        return lt_api_refuse(e, "prompt", "the prompt is empty: it has no token");
    }
    if ((int64_t)prompt->n >= context + (j->request.embed ? 1 : 0)) {
        lt_api_refuse(
            e, "messages",
            "the prompt of %zu tokens exceeds the available context size of %lld tokens%s",
            prompt->n, (long long)context,
            j->request.embed ? "" : ": there is no room for an answer");
        /* Agents search the message for these words, and then shorten their history. */
        if (j->flavour == LT_FLAVOUR_ANTHROPIC) {
            snprintf(e->message, sizeof e->message, "prompt is too long: %zu tokens > %lld maximum",
                     prompt->n, (long long)context - 1);
        }
        e->type = j->flavour == LT_FLAVOUR_LLAMA ? "exceed_context_size_error" : e->type;
        e->code = "context_length_exceeded";
        e->n_prompt = (int64_t)prompt->n;
        e->n_context = context;
        lt_ids_free(prompt);
        return false;
    }
    if (j->n_parts == MAX_PARTS) {
        lt_ids_free(prompt);
        return lt_api_refuse(e, "prompt", "more than %d prompts in one request", MAX_PARTS);
    }
    if ((j->n_parts & (j->n_parts - 1)) == 0) { /* The array grows at powers of two. */
        p = realloc(j->parts, (size_t)(j->n_parts > 0 ? 2 * j->n_parts : 1) * sizeof *p);
        if (p == NULL) {
            lt_ids_free(prompt);
            return lt_api_refuse_oom(e);
        }
        j->parts = p;
    }
    p = &j->parts[j->n_parts++];
    *p = (lt_part){.reply = j, .prompt = *prompt, .cut = cut};
    *prompt = (lt_ids){0};
    return true;
}

/* ---- Starting ---- */

/* An answer continues text unless the prompt ends with a special token; with a form, every
 * character counts. */
static bool choices_open(lt_reply *j, lt_part *p, lt_api_error *e) {
    const int64_t at = p - j->parts;
    const bool behind_text = j->request.grammar != NULL ||
                             (p->prompt.n > 0 &&
                              !lt_tokenizer_is_special(j->model->tokenizer,
                                                       p->prompt.data[p->prompt.n - 1]));
    p->prompt_logs.as_ids = j->params.tokens_as_ids;
    p->choices = calloc((size_t)j->n_choices, sizeof *p->choices);
    if (p->choices == NULL) {
        return lt_api_refuse_oom(e);
    }
    for (int64_t i = 0; i < j->n_choices; i++) {
        lt_reply_choice *c = &p->choices[i];
        lt_err err;
        *c = (lt_reply_choice){.reply = j,
                               .part = p,
                               .choice = (int32_t)i,
                               .index = (int)(at * j->n_choices + i),
                               .stop_index = -1,
                               .stop_id = -1};
        c->stop = (lt_stop_scan){.stops = j->stops,
                                 .lengths = j->stop_lengths,
                                 .n_stops = j->n_stops,
                                 .include = j->params.include_stop};
        err = lt_tokenizer_stream_open(&c->stream, j->model->tokenizer, j->params.skip_special);
        if (err != LT_OK) {
            return lt_api_refuse_error(e, NULL, err);
        }
        lt_tokenizer_stream_show(c->stream, j->listen.shown, j->listen.n_shown);
        c->logs.behind_text = behind_text;
        c->logs.as_ids = j->params.tokens_as_ids;
        if (behind_text) {
            lt_tokenizer_stream_continue(c->stream);
        }
    }
    return true;
}

/* max_tokens is an upper bound: a prompt near the end of the context gets only the remaining
 * tokens. */
static lt_err submit_to_engine(lt_reply *j, lt_part *p, const lt_ids *prompt, size_t n_given) {
    lt_request r = j->request;
    r.prompt = (const int32_t *)prompt->data;
    r.n_prompt = (int64_t)prompt->n;
    r.n_given = (int64_t)n_given;
    r.max_tokens = p->most_tokens;
    r.last = r.embed && !r.score && j->model->last_pooling;
    r.score_at = (const int32_t *)p->score_at.data;
    r.n_score_at = (int64_t)p->score_at.n;
    if (j->blocks != NULL) {
        lt_blocks_shape(j->blocks, p, &r, r.n_given, p->most_tokens);
    }
    if (j->group != NULL) {
        lt_group_shape(j->group, p, &r);
    }
    LT_TRY(lt_control_shape(j->control, &r));
    r.shift = lt_reply_shift(j);
    r.min_tokens = r.min_tokens > r.max_tokens ? r.max_tokens : r.min_tokens;
    r.cache_salt = lt_server_cache_salt(j->server, j->owner, j->params.cache_salt);
    r.keep_s = j->params.keep_s;
    return lt_engine_submit(j->model->engine, &r, p, &p->id);
}

/* OpenAI's prompt_cache_retention. */
static bool read_retention(lt_api_params *a, lt_api_error *e) {
    const char *how = a->cache_retention;
    if (how == NULL || strcmp(how, "in-memory") == 0 || strcmp(how, "in_memory") == 0) {
        return true;
    }
    a->keep_s = LT_ENGINE_KEEP_S;
    return strcmp(how, "24h") == 0 ||
           lt_api_refuse(e, "prompt_cache_retention",
                         "'prompt_cache_retention' is \"in-memory\" or \"24h\"");
}

static bool submit(lt_reply *j, lt_part *p, lt_api_error *e) {
    const lt_request *r = &j->request;
    const int64_t room = lt_reply_room(j, p);
    lt_err err;

    p->reply = j; /* The array has moved while it grew. */
    if (j->params.cache_salt != NULL && j->params.cache_salt[0] == '\0') {
        return lt_api_refuse(e, "cache_salt", "'cache_salt' is empty: leave it out, or name one");
    }
    if (!read_retention(&j->params, e) || !choices_open(j, p, e)) {
        return false;
    }
    p->most_tokens = r->embed                                    ? 0
                     : r->max_tokens < 0 || r->max_tokens > room ? room
                                                                 : r->max_tokens;
    err = submit_to_engine(j, p, &p->prompt, 0);
    if (err != LT_OK) {
        return lt_api_refuse_error(e, NULL, err);
    }
    p->submitted = true;
    j->parts_left++;
    return true;
}

bool lt_reply_resume(lt_part *p, const lt_ids *made, lt_api_error *e) {
    lt_ids all = {0};
    lt_err err = lt_ids_append(&all, p->prompt.data, p->prompt.n);
    err = err == LT_OK ? lt_ids_append(&all, made->data, made->n) : err;
    if (err == LT_OK) {
        p->resumed = true;
        err = submit_to_engine(p->reply, p, &all, made->n);
    }
    lt_ids_free(&all);
    return err == LT_OK || lt_api_refuse_error(e, NULL, err);
}

static void stream_begin(lt_reply *j) {
    char headers[640];
    snprintf(headers, sizeof headers, "Cache-Control: no-cache\r\nX-Accel-Buffering: no\r\n%s",
             j->extra);
    lt_http_stream(j->conn, 200,
                   j->lines ? "application/x-ndjson" : "text/event-stream; charset=utf-8", headers);
    j->begun = true;
    if (j->formatter->begin != NULL) {
        j->formatter->begin(j);
    }
}

/* Start the answer. */
static void begin(lt_call *call, lt_reply *j) {
    lt_api_error e = {0};
    bool ok = true;

    for (int64_t i = 0; ok && i < j->n_parts; i++) {
        ok = submit(j, &j->parts[i], &e);
    }
    if (!j->request.background) {
        lt_metrics_observe(&j->server->metrics, LT_HIST_PARAMS_N, (double)j->n_choices);
        lt_metrics_observe(&j->server->metrics, LT_HIST_PARAMS_MAX, (double)j->request.max_tokens);
    }
    if (!ok) {
        lt_call_error(call, &e);
        j->conn = NULL;
        j->failed = true;
        if (e.status == 429 && !j->request.background) {
            j->server->metrics.refused++;
        }
        cancel(j);
        if (j->parts_left == 0) {
            lt_reply_free(j);
        }
        return;
    }
    lt_http_set_user(j->conn, &j->listener);
    if (j->stream) {
        stream_begin(j);
    }
}

/* Compile the grammar, or begin. */
static void proceed(lt_call *call, lt_reply *j) {
    lt_api_error e = {0};
    lt_err err;

    if (!j->ruled) {
        begin(call, j);
        return;
    }
    j->compile.user = j;
    err = lt_compiler_submit(j->server->compiler, &j->compile);
    if (err != LT_OK) {
        j->server->metrics.refused += !j->request.background;
        lt_api_refuse_error(&e, NULL, err);
        lt_http_set_user(j->conn, NULL);
        lt_reply_refuse(call, j, &e);
        return;
    }
    j->compiling = true;
    lt_http_set_user(j->conn, &j->listener);
}

void lt_reply_start(lt_call *call, lt_reply *j) {
    lt_api_error e = {0};
    lt_adapter_take how;

    if (call->outcome != NULL) {
        call->outcome->reply = j;
        return;
    }
    enlist(j);
    j->n_choices = j->request.n_choices;
    LT_ASSERT(j->n_parts > 0);
    if (j->n_parts * j->n_choices > MAX_CHOICES) {
        lt_api_refuse(&e, "n", "%lld prompts times %lld choices are more than %d",
                      (long long)j->n_parts, (long long)j->n_choices, MAX_CHOICES);
        lt_reply_refuse(call, j, &e);
        return;
    }
    how = lt_adapter_set_choose(j, &e) ? lt_adapter_set_take(j, &e) : LT_ADAPTER_REFUSED;
    if (how == LT_ADAPTER_REFUSED) {
        lt_reply_refuse(call, j, &e);
    } else if (how == LT_ADAPTER_WAIT) {
        lt_http_set_user(j->conn, &j->listener);
    } else {
        proceed(call, j);
    }
}

/* The call, reconstructed after the reply has waited. */
static lt_call call_of(const lt_reply *j) {
    lt_call call = {
        .server = j->server, .conn = j->conn, .flavour = j->flavour, .arrived_s = j->arrived_s};
    memcpy(call.extra, j->extra, sizeof call.extra);
    return call;
}

void lt_reply_adapted(lt_reply *j, const lt_api_error *e) {
    lt_call call = call_of(j);
    if (j->conn == NULL) { /* It was answered with an error while it waited. */
        lt_reply_free(j);
    } else if (e != NULL) {
        lt_http_set_user(j->conn, NULL);
        lt_reply_refuse(&call, j, e);
    } else {
        proceed(&call, j);
    }
}

/* A grammar that cannot be compiled is an error of the request. */
static void refuse_grammar(lt_call *call, lt_reply *j) {
    lt_api_error e;
    lt_api_refuse(&e, j->form.text != NULL ? j->form.param : "tools", "%s", j->compile.message);
    if (j->compile.err == LT_ERR_OOM) {
        lt_api_refuse_oom(&e);
    }
    lt_http_set_user(j->conn, NULL);
    lt_reply_refuse(call, j, &e);
}

void lt_reply_compiled(lt_compile *made) {
    lt_reply *j = made->user;
    lt_call call = call_of(j);

    j->compiling = false;
    if (j->conn == NULL) { /* Its client is gone. */
        lt_reply_free(j);
    } else if (made->err != LT_OK) {
        refuse_grammar(&call, j);
    } else {
        j->request.grammar = made->grammar;
        begin(&call, j);
    }
}

/* ---- The stream's events ---- */

void lt_reply_send(lt_reply *j, const char *event) {
    lt_json_out *line = &j->server->line;
    if (j->conn != NULL && !j->out.failed) {
        lt_out_clear(line);
        if (event != NULL) {
            lt_out_raw(line, "event: ", 7);
            lt_out_raw(line, event, strlen(event));
            lt_out_raw(line, "\n", 1);
        }
        lt_out_raw(line, "data: ", j->lines ? 0 : 6);
        lt_out_raw(line, j->out.data != NULL ? j->out.data : "", j->out.n);
        lt_out_raw(line, "\n\n", j->lines ? 1 : 2);
        if (!line->failed) {
            lt_http_write(j->conn, line->data, line->n);
        }
    }
    lt_out_clear(&j->out);
}

void lt_reply_fail(lt_reply *j, const lt_api_error *e) {
    if (j->failed) {
        return;
    }
    j->failed = true;
    if (j->conn == NULL) {
        return;
    }
    lt_out_clear(&j->out);
    if (j->begun) {
        j->formatter->failed(j, e);
        lt_http_end(j->conn);
    } else {
        lt_error_write(&j->out, j->flavour, j->extra, e);
        lt_http_reply(j->conn, lt_error_status(j->flavour, e), "application/json", j->extra,
                      j->out.data, j->out.n);
    }
    j->conn = NULL;
}

static void finish(lt_reply *j) {
    lt_api_error e = {0};
    if (j->conn == NULL || j->failed) {
        return;
    }
    if (j->group != NULL && !lt_group_keep(j, &e)) {
        lt_reply_fail(j, &e);
        return;
    }
    lt_out_clear(&j->out);
    j->formatter->finish(j);
    if (j->stream) {
        lt_http_end(j->conn);
    } else if (j->out.failed) {
        e = (lt_api_error){.status = 503, .type = "server_error", .message = "out of memory"};
        lt_reply_fail(j, &e);
        return;
    } else {
        lt_http_reply(j->conn, 200, "application/json", j->extra, j->out.data, j->out.n);
    }
    j->conn = NULL;
}

/* ---- The engine's events ---- */

static void choice_end(lt_reply_choice *c, lt_finish why) {
    if (c->ended) {
        return;
    }
    c->ended = true;
    c->finish = why;
    if (c->reply->conn != NULL && !c->reply->failed) {
        c->reply->formatter->choice_end(c);
        if (c->reply->group != NULL) {
            lt_group_ended(c);
        }
    }
}

/* Stop strings are not searched before min_tokens; text there cannot begin one either. */
static bool may_stop(const lt_reply_choice *c) {
    return c->new_tokens >= c->reply->request.min_tokens;
}

/* Pass on text that contains no stop string. */
static void let_through(lt_reply_choice *c, const char *text, size_t n) {
    if (n > 0) {
        lt_out_raw(&c->text, text, n);
        c->reply->formatter->text(c, text, n);
    }
}

static void take_text(lt_reply_choice *c, const char *text, size_t n) {
    const char *out = NULL;
    size_t out_n = 0;
    int hit;

    if (!may_stop(c)) {
        let_through(c, text, n);
        return;
    }
    hit = lt_stop_scan_feed(&c->stop, text, n, &out, &out_n);
    let_through(c, out, out_n);
    if (hit >= 0) {
        c->stop_index = hit;
        choice_end(c, LT_FINISH_STOP_ID);
        lt_engine_cancel_choice(c->reply->server->engine, c->part->id,
                                c->choice - c->part->first_choice);
    }
}

/* Background requests are not timed: their times would hide those of requests that someone waits
 * for. */
static void observe_token(lt_part *p) {
    lt_metrics *m = &p->reply->server->metrics;
    const bool waited_for = !p->reply->request.background;
    const double now = lt_clock_s();
    if (p->first_s == 0) {
        p->first_s = now;
        if (waited_for) {
            lt_metrics_observe(m, LT_HIST_TTFT, now - p->reply->arrived_s);
        }
    } else if (waited_for && p->reply->n_choices == 1) {
        lt_metrics_observe(m, LT_HIST_ITL, now - p->last_s);
    }
    p->last_s = now;
}

/* Add the token's text, which is valid until the next token's. */
static void take_token(lt_reply_choice *c, const lt_event *ev, const char **text, size_t *n) {
    lt_reply *j = c->reply;
    *text = NULL;
    *n = 0;
    c->new_tokens++;
    c->logprob_sum += ev->logprob;
    if (j->top >= 0 || j->params.return_ids) {
        lt_reply_log_token(j, &c->logs, ev, j->top >= 0);
    }
    if (j->group != NULL) {
        lt_group_token(c, ev);
    }
    if (c->ended) { /* The group has cut it. */
        return;
    }
    if (j->formatter->token != NULL) {
        j->formatter->token(c);
    }
    if (ev->finish != LT_FINISH_NONE) {
        c->stop_id = ev->finish == LT_FINISH_STOP_ID ? ev->id : -1;
        return; /* The token that ends the text is not part of it. */
    }
    if (lt_tokenizer_stream_put(c->stream, (uint32_t)ev->id, text, n) == LT_OK) {
        take_text(c, *text, *n);
    }
    if (j->group != NULL && !c->ended) {
        lt_group_grown(c);
    }
}

void lt_reply_put_token(lt_reply_choice *c, int32_t id) {
    const lt_event ev = {.id = id};
    const char *text;
    size_t n;
    if (!c->ended) {
        take_token(c, &ev, &text, &n);
    }
}

void lt_reply_token(lt_part *p, const lt_event *ev) {
    lt_reply *j = p->reply;
    lt_reply_choice *c = &p->choices[p->first_choice + ev->choice];
    const char *text = NULL;
    size_t n = 0;

    if (lt_control_stopped(p) || lt_control_closes(p, ev)) {
        return;
    }
    observe_token(p);
    if (!p->resumed) {
        p->cached_tokens = ev->cached_tokens;
        p->prefill_s = ev->prefill_s;
    }
    p->decode_s = p->last_s - p->first_s;
    if (c->ended || j->conn == NULL || j->failed) {
        return;
    }
    take_token(c, ev, &text, &n);
    if (j->control != NULL && !c->ended && ev->finish == LT_FINISH_NONE) {
        lt_control_token(c, ev->id, text, n);
    }
}

void lt_reply_choice_over(lt_part *p, const lt_event *ev) {
    static const lt_done how[] = {
        [LT_FINISH_NONE] = LT_DONE_ERROR,   [LT_FINISH_EOS] = LT_DONE_STOP,
        [LT_FINISH_STOP_ID] = LT_DONE_STOP, [LT_FINISH_LENGTH] = LT_DONE_LENGTH,
        [LT_FINISH_GRAMMAR] = LT_DONE_STOP, [LT_FINISH_CANCELLED] = LT_DONE_ABORT,
        [LT_FINISH_FAILED] = LT_DONE_ERROR};
    lt_reply *j = p->reply;
    lt_reply_choice *c = &p->choices[p->first_choice + ev->choice];
    const char *text = NULL;
    size_t n = 0;

    if (lt_control_stopped(p)) {
        return;
    }
    c->dropped = ev->dropped;
    c->drafted += ev->drafted;
    c->accepted += ev->accepted;
    j->server->metrics
        .done[c->ended && c->finish != LT_FINISH_CANCELLED && ev->finish == LT_FINISH_CANCELLED
                  ? LT_DONE_STOP
                  : how[ev->finish]]++;
    if (ev->finish == LT_FINISH_FAILED) {
        lt_api_error e = {.status = 500, .type = "server_error"};
        snprintf(e.message, sizeof e.message, "the engine failed: %s", lt_err_text(ev->failure));
        lt_reply_fail(j, &e);
        return;
    }
    if (c->ended || j->conn == NULL || j->failed) {
        return;
    }
    if (lt_tokenizer_stream_finish(c->stream, &text, &n) == LT_OK && n > 0) {
        take_text(c, text, n);
    }
    if (!c->ended) {
        lt_stop_scan_end(&c->stop, &text, &n);
        let_through(c, text, n);
        choice_end(c, ev->finish);
    }
}

static void observe_done(const lt_part *p) {
    lt_metrics *m = &p->reply->server->metrics;
    int64_t tokens = 0, longest = 0;
    for (int64_t i = 0; i < p->reply->n_choices; i++) {
        const int64_t n = p->choices[i].new_tokens;
        tokens += n;
        longest = n > longest ? n : longest;
    }
    if (p->reply->request.background) {
        return;
    }
    lt_metrics_observe(m, LT_HIST_E2E, lt_clock_s() - p->reply->arrived_s);
    lt_metrics_observe(m, LT_HIST_QUEUE, p->queue_s);
    lt_metrics_observe(m, LT_HIST_PREFILL, p->prefill_s);
    lt_metrics_observe(m, LT_HIST_DECODE, p->decode_s);
    lt_metrics_observe(m, LT_HIST_INFERENCE, p->prefill_s + p->decode_s);
    lt_metrics_observe(m, LT_HIST_PROMPT, (double)p->prompt.n);
    lt_metrics_observe(m, LT_HIST_GENERATION, (double)tokens);
    lt_metrics_observe(m, LT_HIST_MAX_GENERATION, (double)longest);
    if (p->reply->n_choices == 1 && tokens > 1) {
        lt_metrics_observe(m, LT_HIST_TPOT, (p->last_s - p->first_s) / (double)(tokens - 1));
    }
    if ((int64_t)p->prompt.n + tokens > m->n_tokens_max) {
        m->n_tokens_max = (int64_t)p->prompt.n + tokens;
    }
    m->prompt_s += p->prefill_s;
    m->generation_s += p->decode_s;
}

static void on_embed(lt_part *p, const lt_event *ev) {
    const size_t bytes = (size_t)ev->n_embedding * sizeof *ev->embedding;
    p->n_embedding = ev->n_embedding;
    p->embedding = malloc(bytes);
    if (p->embedding != NULL) {
        memcpy(p->embedding, ev->embedding, bytes);
    }
}

void lt_reply_let_go(lt_reply *j) {
    if (--j->parts_left == 0) {
        finish(j);
        lt_reply_free(j);
    }
}

void lt_reply_part_done(lt_part *p) {
    p->done = true;
    observe_done(p);
    lt_reply_let_go(p->reply);
}

void lt_reply_event(const lt_event *ev) {
    lt_part *p = ev->user;
    lt_reply *j = p->reply;

    if (p->judged) {
        (j->blocks != NULL ? lt_blocks_judged : lt_group_judged)(p, ev);
        return;
    }
    if (j->blocks != NULL) {
        lt_blocks_event(ev);
        return;
    }
    if (lt_control_event(ev)) {
        return;
    }

    switch (ev->kind) {
    case LT_EVENT_PROMPT:
        /* n_top -1: the first token of a prompt has no log-probability. */
        lt_reply_log_token(j, &p->prompt_logs, ev, ev->n_top >= 0);
        break;
    case LT_EVENT_TOKEN:
        lt_reply_token(p, ev);
        break;
    case LT_EVENT_EMBED:
        on_embed(p, ev);
        break;
    case LT_EVENT_CHOICE:
        if (!j->request.embed) {
            lt_reply_choice_over(p, ev);
        }
        break;
    case LT_EVENT_DONE:
        if (lt_control_stopped(p)) {
            lt_control_stop(j);
            break;
        }
        if (j->group != NULL && lt_group_goes_on(p)) {
            break;
        }
        if (!p->resumed) {
            p->cached_tokens = ev->cached_tokens;
            p->queue_s = ev->queue_s;
            p->prefill_s = ev->prefill_s;
            p->decode_s = ev->decode_s;
        }
        lt_reply_part_done(p);
        break;
    }
}
