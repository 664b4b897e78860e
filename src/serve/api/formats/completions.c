/* completions.c: /v1/completions: continues a text or ids, with echo, logprobs in the older format,
 * and best_of. */
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "data/text_utf8.h"
#include "serve/api/formats/infill.h"
#include "serve/api/formats/prompts.h"
#include "serve/api/route.h"

static const lt_field fields[] = {LT_JSON("prompt", prompt),
                                  LT_STR("model", model),
                                  LT_I64("n", n, 1, 128),
                                  LT_I64("best_of", best_of, 1, 128),
                                  LT_BOOL("stream", stream),
                                  LT_JSON("stream_options", stream_options),
                                  LT_I64("max_tokens", max_tokens, -1, 1e12),
                                  LT_BOOL("echo", echo),
                                  LT_STR("suffix", suffix),
                                  LT_JSON("logprobs", logprobs),
                                  LT_I64("n_probs", n_probs, 0, LT_ENGINE_TOP),
                                  LT_I64("prompt_logprobs", prompt_logprobs, 0, LT_ENGINE_TOP),
                                  LT_JSON("response_format", response_format),
                                  LT_I64("thinking_budget", thinking_budget, -1, 1e9),
                                  LT_BOOL("add_special_tokens", add_special),
                                  LT_JSON("alignment", alignment),
                                  LT_NOTHING("user"),
                                  LT_FIELDS_SAMPLING};
const lt_field_table lt_fields_completions = LT_FIELD_TABLE(fields, "");

static const lt_field stream_fields[] = {LT_BOOL("include_usage", include_usage),
                                         LT_BOOL("continuous_usage_stats", continuous_usage),
                                         LT_ONLY("include_obfuscation", "false")};

/* ---- Log-probabilities, in the old shape: parallel lists ---- */

typedef struct {
    const lt_token_logs *logs;
    size_t from, to;
    size_t shift; /* Number of bytes of text before these. */
} rows;

/* Number of most likely tokens to report; -1: report no log-probabilities, even if the engine
 * computes them. */
static int asked_top(const lt_api_params *a) {
    if (json_is_integer(a->logprobs)) {
        return (int)json_integer_value(a->logprobs);
    }
    return a->n_probs > 0 ? (int)a->n_probs : json_is_true(a->logprobs) ? 1 : -1;
}

static void put_tokens(lt_json_out *o, const lt_server *s, const rows *r, size_t n) {
    for (size_t k = 0; k < n; k++) {
        for (size_t i = r[k].from; i < r[k].to; i++) {
            lt_piece_or_id_write(o, s, r[k].logs->rows[i].id, r[k].logs->as_ids);
        }
    }
}

static void put_token_logprobs(lt_json_out *o, const rows *r, size_t n) {
    for (size_t k = 0; k < n; k++) {
        for (size_t i = r[k].from; i < r[k].to; i++) {
            if (r[k].logs->rows[i].has_logprob) {
                lt_out_real(o, r[k].logs->rows[i].logprob);
            } else {
                lt_out_null(o);
            }
        }
    }
}

/* Write an object of token: logprob. As with OpenAI, the chosen token is appended when it is not
 * among the most likely ones. Tokens with the same text (bytes that are not UTF-8) would repeat a
 * key; the first, more likely one is kept. */
static void put_top(lt_json_out *o, const lt_server *s, const lt_token_logs *l,
                    const lt_token_log *row, int top) {
    const struct lt_token_top own = {.id = row->id, .logprob = row->logprob};
    size_t starts[LT_ENGINE_TOP + 1], ends[LT_ENGINE_TOP + 1];
    const int n_top = row->n_top < top ? row->n_top : top;
    bool told = false;
    int n = 0;
    lt_out_open(o, '{');
    for (int k = 0; k < n_top + (told ? 0 : 1); k++) {
        const struct lt_token_top *t = k < n_top ? &l->tops[row->top_at + (size_t)k] : &own;
        const size_t mark = o->n;
        const bool comma = o->comma;
        bool twice = false;
        told |= t->id == row->id;
        lt_piece_or_id_write(o, s, t->id, l->as_ids);
        starts[n] = mark + (comma ? 1 : 0);
        ends[n] = o->n;
        for (int i = 0; !o->failed && i < n && !twice; i++) {
            twice = ends[i] - starts[i] == ends[n] - starts[n] &&
                    memcmp(o->data + starts[i], o->data + starts[n], ends[n] - starts[n]) == 0;
        }
        if (twice) {
            o->n = mark;
            o->comma = comma;
            continue;
        }
        n++;
        lt_out_raw(o, ":", 1);
        o->comma = false;
        lt_out_real(o, t->logprob);
    }
    lt_out_shut(o, '}');
}

static void put_logprobs(lt_json_out *o, const lt_reply *j, const rows *r, size_t n) {
    lt_out_key_open(o, "logprobs", '{');
    lt_out_key_open(o, "tokens", '[');
    put_tokens(o, j->server, r, n);
    lt_out_shut(o, ']');
    lt_out_key_open(o, "token_logprobs", '[');
    put_token_logprobs(o, r, n);
    lt_out_shut(o, ']');
    lt_out_key_open(o, "top_logprobs", '[');
    for (size_t k = 0; k < n; k++) {
        for (size_t i = r[k].from; i < r[k].to; i++) {
            if (r[k].logs->rows[i].has_logprob) {
                put_top(o, j->server, r[k].logs, &r[k].logs->rows[i], j->top);
            } else {
                lt_out_null(o);
            }
        }
    }
    lt_out_shut(o, ']');
    lt_out_key_open(o, "text_offset", '[');
    for (size_t k = 0; k < n; k++) {
        for (size_t i = r[k].from; i < r[k].to; i++) {
            lt_out_int(o, (int64_t)(r[k].shift + r[k].logs->rows[i].text_at));
        }
    }
    lt_out_shut(o, ']');
    lt_out_shut(o, '}');
}

/* ---- Answers ---- */

static void head(lt_json_out *o, const lt_reply *j) {
    lt_out_open(o, '{');
    lt_out_key_str(o, "id", j->id);
    lt_out_key_str(o, "object", "text_completion");
    lt_out_key_int(o, "created", j->created);
    lt_out_key_str(o, "model", lt_reply_model(j));
    lt_out_key_str(o, "system_fingerprint", "lateen-" LT_VERSION);
}

static int64_t wanted_choices(const lt_reply *j) {
    return j->params.n;
}

/* Write a choice with its index in the answer: with best_of only the best are written, prompt by
 * prompt. */
static void put_choice(lt_json_out *o, lt_reply_choice *c, int64_t index, const char *text,
                       size_t n, size_t from, bool with_prompt, bool first, const char *finish) {
    lt_reply *j = c->reply;
    const rows r[2] = {
        {&c->part->prompt_logs, 0, with_prompt ? c->part->prompt_logs.n : 0, 0},
        {&c->logs, from, c->logs.n, j->params.echo ? c->part->prompt_logs.text_n : 0}};
    lt_out_open(o, '{');
    lt_out_key_int(o, "index", index);
    lt_out_key(o, "text");
    lt_out_str(o, text, n);
    if (asked_top(&j->params) >= 0) {
        put_logprobs(o, j, r, 2);
    } else {
        lt_out_key_null(o, "logprobs");
    }
    lt_out_key_str(o, "finish_reason", finish);
    if (finish != NULL) {
        lt_out_key(o, "stop_reason");
        if (c->stop_index >= 0) {
            lt_out_str(o, j->stops[c->stop_index], j->stop_lengths[c->stop_index]);
        } else if (c->stop_id >= 0) {
            lt_out_int(o, c->stop_id);
        } else {
            lt_out_null(o);
        }
    }
    if (j->params.prompt_logprobs >= 0) {
        lt_prompt_logprobs_write(o, c->part);
    }
    if (j->params.return_ids) {
        lt_ids_write(o, "token_ids", &c->logs, from, c->logs.n);
        if (first) {
            lt_prompt_ids_write(o, c->part);
        }
    }
    lt_out_shut(o, '}');
}

static void send_chunk(lt_reply_choice *c, const char *text, size_t n, bool with_prompt,
                       const char *finish) {
    lt_reply *j = c->reply;
    lt_json_out *o = &j->out;
    head(o, j);
    lt_out_key_open(o, "choices", '[');
    put_choice(o, c, c->index, text, n, c->logs.sent, with_prompt, c->state == NULL, finish);
    c->logs.sent = c->logs.n;
    c->state = c; /* Its first chunk has been sent. */
    lt_out_shut(o, ']');
    if (j->params.continuous_usage) {
        lt_usage_write(o, j, "usage");
    } else if (j->params.include_usage) {
        lt_out_key_null(o, "usage");
    }
    if (finish != NULL) {
        lt_reply_reports_write(o, j);
    }
    lt_out_shut(o, '}');
    lt_reply_send(j, NULL);
}

static char *echo_of(const lt_part *p, size_t *n) {
    char *text = NULL;
    if (lt_tokenizer_decode(p->reply->server->tokenizer, p->prompt.data, p->prompt.n,
                            p->reply->params.skip_special, &text, n) != LT_OK) {
        *n = 0;
        return NULL;
    }
    return text;
}

/* A stream with echo begins with the prompt, before the first text of the choice. */
static void send_echo(lt_reply_choice *c) {
    size_t n = 0;
    char *text;
    if (!c->reply->params.echo || c->state != NULL) {
        return;
    }
    text = echo_of(c->part, &n);
    send_chunk(c, text != NULL ? text : "", n, true, NULL);
    free(text);
}

static bool dropped(const lt_reply *j) {
    /* Only the echo was requested, although the engine has made one token. */
    return j->params.max_tokens == 0;
}

static void format_text(lt_reply_choice *c, const char *text, size_t n) {
    if (lt_reply_is_live(c->reply) && !dropped(c->reply)) {
        send_echo(c);
        send_chunk(c, text, n, false, NULL);
    }
}

static void format_choice_end(lt_reply_choice *c) {
    if (dropped(c->reply)) {
        c->logs.n = c->logs.sent = 0;
        c->finish = LT_FINISH_LENGTH;
        c->new_tokens = 0;
        lt_out_clear(&c->text);
    }
    if (lt_reply_is_live(c->reply)) {
        send_echo(c);
        send_chunk(c, "", 0, false, lt_finish_openai(c));
    }
}

static int by_logprob(const void *a, const void *b) {
    const lt_reply_choice *x = *(lt_reply_choice *const *)a, *y = *(lt_reply_choice *const *)b;
    const double p = x->logprob_sum / (double)(x->new_tokens > 0 ? x->new_tokens : 1);
    const double q = y->logprob_sum / (double)(y->new_tokens > 0 ? y->new_tokens : 1);
    return p != q ? (p < q) - (p > q) : x->index - y->index;
}

/* Write the n best choices of a part, by mean log-probability per token. */
static void put_part(lt_reply *j, lt_part *p, lt_json_out *o) {
    lt_reply_choice *order[128];
    const int64_t at = p - j->parts;
    char *echo = NULL;
    size_t echo_n = 0;

    LT_ASSERT(j->n_choices <= 128);
    for (int64_t i = 0; i < j->n_choices; i++) {
        order[i] = &p->choices[i];
    }
    if (j->group != NULL) {
        order[0] = lt_group_kept(j);
    } else if (j->n_choices > wanted_choices(j)) {
        qsort(order, (size_t)j->n_choices, sizeof *order, by_logprob);
    }
    if (j->params.echo) {
        echo = echo_of(p, &echo_n);
    }
    for (int64_t i = 0; i < wanted_choices(j); i++) {
        lt_reply_choice *c = order[i];
        lt_json_out whole = {0};
        lt_out_raw(&whole, echo != NULL ? echo : "", echo_n);
        lt_out_raw(&whole, c->text.data != NULL ? c->text.data : "", c->text.n);
        put_choice(o, c, at * wanted_choices(j) + i, whole.data != NULL ? whole.data : "", whole.n,
                   0, j->params.echo, true, lt_finish_openai(c));
        lt_out_free(&whole);
    }
    free(echo);
}

/* A group's answer is known only at its end; a stream then sends it at once. */
static void send_kept(lt_reply *j) {
    lt_reply_choice *c = lt_group_kept(j);
    send_chunk(c, c->text.data != NULL ? c->text.data : "", c->text.n, false, NULL);
    send_chunk(c, "", 0, false, lt_finish_openai(c));
}

static void format_finish(lt_reply *j) {
    lt_json_out *o = &j->out;
    if (j->stream && j->group != NULL) {
        send_kept(j);
    }
    if (j->stream) {
        if (j->params.include_usage) {
            head(o, j);
            lt_out_key_open(o, "choices", '[');
            lt_out_shut(o, ']');
            lt_usage_write(o, j, "usage");
            lt_out_shut(o, '}');
            lt_reply_send(j, NULL);
        }
        lt_out_raw(o, "[DONE]", 6);
        lt_reply_send(j, NULL);
        return;
    }
    head(o, j);
    lt_out_key_open(o, "choices", '[');
    for (int64_t i = 0; i < j->n_parts; i++) {
        put_part(j, &j->parts[i], o);
    }
    lt_out_shut(o, ']');
    lt_usage_write(o, j, "usage");
    lt_reply_reports_write(o, j);
    lt_out_shut(o, '}');
}

static void format_failed(lt_reply *j, const lt_api_error *e) {
    lt_error_write(&j->out, j->flavour, j->extra, e);
    lt_reply_send(j, NULL);
}

static const lt_formatter formatter = {.text = format_text,
                                       .choice_end = format_choice_end,
                                       .finish = format_finish,
                                       .failed = format_failed};

/* ---- The request ---- */

/* Number of alternatives to report for the tokens of the answer, and of the prompt if echo needs
 * them; -1: none. */
static bool read_logprobs(const lt_api_params *a, int *top, int *of_prompt, lt_api_error *e) {
    if (json_is_integer(a->logprobs)) {
        const json_int_t n = json_integer_value(a->logprobs);
        if (n < 0 || n > LT_ENGINE_TOP) {
            return lt_api_refuse(e, "logprobs", "'logprobs' is %lld; it must be between 0 and %d",
                                 (long long)n, LT_ENGINE_TOP);
        }
    } else if (a->logprobs != NULL && !json_is_boolean(a->logprobs)) {
        return lt_api_refuse(e, "logprobs", "'logprobs' must be a whole number");
    }
    *top = asked_top(a);
    *of_prompt = (int)a->prompt_logprobs;
    if (a->echo && *top >= 0) {
        *of_prompt = a->prompt_logprobs > *top ? (int)a->prompt_logprobs : *top;
    }
    return true;
}

/* The answer comes between the prompt, or each of several, and the suffix. */
static bool add_infills(lt_reply *j, lt_api_error *e) {
    const json_t *prompt = j->params.prompt;
    const size_t n = json_is_array(prompt) ? json_array_size(prompt) : 1;
    for (size_t i = 0; i < n; i++) {
        const json_t *one = json_is_array(prompt) ? json_array_get(prompt, i) : prompt;
        const lt_infill f = {.prefix = json_string_value(one), .suffix = j->params.suffix};
        if (f.prefix == NULL) {
            return lt_api_refuse(e, "prompt",
                                 "'prompt' must be a string, or a list of strings, with 'suffix'");
        }
        if (!lt_infill_add(j, &f, "suffix", e)) {
            return false;
        }
    }
    return n > 0 || lt_api_refuse(e, "prompt", "'prompt' is empty");
}

static bool prepare(lt_reply *j, lt_api_error *e) {
    lt_api_params *a = &j->params;
    int top = -1, of_prompt = -1;
    const int64_t most = a->max_tokens < 0 ? 16 : a->max_tokens; /* OpenAI's default. */

    if (lt_infill_is_asked(a) && a->echo) {
        return lt_api_refuse(e, "echo", "'echo' and 'suffix' exclude each other");
    }
    if (a->best_of > 0 && a->best_of < a->n) {
        return lt_api_refuse(e, "best_of", "'best_of' is %lld, less than 'n' = %lld",
                             (long long)a->best_of, (long long)a->n);
    }
    if (a->best_of > a->n && a->stream) {
        return lt_api_refuse(e, "best_of", "'best_of' greater than 'n' cannot be streamed");
    }
    if (a->max_tokens == 0 && !a->echo) {
        return lt_api_refuse(e, "max_tokens", "'max_tokens' may be 0 only with 'echo'");
    }
    if (!lt_server_check_model(j->server, a, e) || !read_logprobs(a, &top, &of_prompt, e) ||
        !lt_reply_configure(j, most == 0 ? 1 : most, top < 0 && a->best_of > a->n ? 0 : top, e)) {
        return false;
    }
    j->request.prompt_logprobs = of_prompt;
    if (!lt_group_read(j, e) || !lt_reply_rule(j, e) ||
        !(lt_infill_is_asked(a) ? add_infills(j, e) : lt_prompts_add(j, a->prompt, "prompt", e))) {
        return false;
    }
    return (j->group == NULL && j->blocks == NULL) || j->n_parts == 1 ||
           lt_api_refuse(e, "alignment", "'alignment' takes one prompt; the request has %lld",
                         (long long)j->n_parts);
}

static bool read_ask(lt_api_params *a, lt_call *call, lt_api_error *e) {
    lt_server_ask(call->server, a);
    a->add_special = true;
    if (!lt_call_read(call, a, fields, sizeof fields / sizeof *fields, e)) {
        return false;
    }
    if (a->stream_options == NULL) {
        return true;
    }
    if (!a->stream) {
        return lt_api_refuse(e, "stream_options", "'stream_options' needs 'stream': true");
    }
    return json_is_object(a->stream_options)
               ? lt_api_params_object(a, a->stream_options, stream_fields,
                                      sizeof stream_fields / sizeof *stream_fields,
                                      "stream_options.", e)
               : lt_api_refuse(e, "stream_options", "'stream_options' must be an object");
}

void lt_api_completions(lt_call *call) {
    lt_api_error e = {0};
    lt_api_params a;
    lt_reply *j;

    if (!read_ask(&a, call, &e)) {
        lt_call_error(call, &e);
        lt_api_params_free(&a);
        return;
    }
    j = lt_reply_open(call, &formatter, &a, "cmpl-");
    if (j == NULL) {
        return;
    }
    if (!prepare(j, &e)) {
        lt_reply_refuse(call, j, &e);
        return;
    }
    lt_reply_start(call, j);
}
