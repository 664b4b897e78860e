/* native.c: llama-server's own endpoints: /completion, /infill, /props, /slots, so that its
 * clients and pages work. The sampling defaults are llama-server's, not OpenAI's. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/json.h"
#include "serve/api/formats/infill.h"
#include "serve/api/formats/prompts.h"
#include "serve/api/route.h"

#define NATIVE_FIELDS                                                                              \
    LT_JSON("prompt", prompt), LT_STR("model", model), LT_BOOL("stream", stream),                  \
        LT_I64("max_tokens", max_tokens, -2, 1e12), LT_I64("n", n, 1, 128),                        \
        LT_I64("n_probs", n_probs, 0, LT_ENGINE_TOP), LT_JSON("response_format", response_format), \
        LT_I64("thinking_budget", thinking_budget, -1, 1e9), LT_NOTHING("n_threads"),              \
        LT_NOTHING("min_keep"), LT_ONLY("adaptive_target", "-1|-1.0"),                             \
        LT_NOTHING("adaptive_decay"), LT_ONLY("n_indent", "0"),                                    \
        LT_ONLY("t_max_predict_ms", "0|-1"), LT_ONLY("post_sampling_probs", "false"),              \
        LT_ONLY("image_data", "[]"), LT_JSON("response_fields", response_fields),                  \
        LT_REFUSED("samplers", "their order is fixed"),                                            \
        LT_BOOL("add_special_tokens", add_special), LT_FIELDS_SAMPLING
static const lt_field fields[] = {NATIVE_FIELDS};
const lt_field_table lt_fields_completion = LT_FIELD_TABLE(fields, "prompt");
static const lt_field infill_fields[] = {LT_STR("input_prefix", input_prefix),
                                         LT_STR("input_suffix", input_suffix),
                                         LT_JSON("input_extra", input_extra), NATIVE_FIELDS};
const lt_field_table lt_fields_infill = LT_FIELD_TABLE(infill_fields, "input_prefix,input_suffix");

/* ---- Answers ---- */

static void put_sampling(lt_json_out *o, const lt_api_params *a, uint64_t seed, int64_t n_predict) {
    lt_out_key_int(o, "seed", (int64_t)(seed & 0xFFFFFFFF));
    lt_out_key_real(o, "temperature", a->temperature);
    lt_out_key_int(o, "top_k", a->top_k);
    lt_out_key_real(o, "top_p", a->top_p);
    lt_out_key_real(o, "min_p", a->min_p);
    lt_out_key_real(o, "typical_p", a->typical_p);
    lt_out_key_int(o, "repeat_last_n", a->repeat_last_n);
    lt_out_key_real(o, "repeat_penalty", a->repetition);
    lt_out_key_real(o, "presence_penalty", a->presence);
    lt_out_key_real(o, "frequency_penalty", a->frequency);
    lt_out_key_real(o, "dry_multiplier", a->dry_multiplier);
    lt_out_key_real(o, "dry_base", a->dry_base);
    lt_out_key_int(o, "dry_allowed_length", a->dry_allowed);
    lt_out_key_int(o, "dry_penalty_last_n", a->dry_last_n);
    lt_out_key_real(o, "xtc_probability", a->xtc_probability);
    lt_out_key_real(o, "xtc_threshold", a->xtc_threshold);
    lt_out_key_int(o, "n_predict", n_predict);
    lt_out_key_int(o, "max_tokens", n_predict);
    lt_out_key_bool(o, "ignore_eos", a->ignore_eos);
    lt_out_key_bool(o, "stream", a->stream);
    lt_out_key_int(o, "n_probs", a->n_probs > 0 ? a->n_probs : 0);
    lt_out_key_str(o, "grammar", a->grammar != NULL ? a->grammar : "");
    lt_out_key_bool(o, "timings_per_token", a->timings_per_token);
    /* Unsupported settings, at their neutral values. */
    lt_out_key_int(o, "mirostat", 0);
    lt_out_key_real(o, "dynatemp_range", 0);
    lt_out_key_real(o, "adaptive_target", -1);
    lt_out_key_real(o, "adaptive_decay", 0);
    lt_out_key_bool(o, "post_sampling_probs", false);
    lt_out_key_int(o, "n_keep", a->n_keep);
    lt_out_key_int(o, "n_discard", a->n_discard);
}

/* bias null: the token is never chosen. */
static void put_bias(lt_json_out *o, int64_t id, double bias) {
    lt_out_open(o, '{');
    lt_out_key_real(o, "bias", bias);
    lt_out_key_int(o, "token", id);
    lt_out_shut(o, '}');
}

static void put_choosing(lt_json_out *o, const lt_reply *j) {
    const lt_sampling *s = &j->request.sampling;

    lt_out_key_open(o, "stop", '[');
    for (int i = 0; i < j->n_stops; i++) {
        lt_out_str(o, j->stops[i], j->stop_lengths[i]);
    }
    lt_out_shut(o, ']');
    lt_out_key_open(o, "logit_bias", '[');
    for (int64_t i = 0; i < s->n_bias; i++) {
        put_bias(o, s->bias[i].id,
                 s->bias[i].bias <= -LT_BIAS_MOST ? -INFINITY : (double)s->bias[i].bias);
    }
    lt_out_shut(o, ']');
}

static void put_probabilities(lt_json_out *o, const lt_reply_choice *c, size_t from) {
    const lt_token_logs *l = &c->logs;
    const int top = c->reply->request.logprobs;
    if (top < 0) {
        return;
    }
    lt_out_key_open(o, "completion_probabilities", '[');
    for (size_t i = from; i < l->n; i++) {
        lt_out_open(o, '{');
        lt_out_key_int(o, "id", l->rows[i].id);
        lt_token_write(o, c->reply->server, l->rows[i].id, l->rows[i].logprob, l->as_ids);
        lt_out_key_open(o, "top_logprobs", '[');
        for (int k = 0; k < l->rows[i].n_top && k < top; k++) {
            const struct lt_token_top *t = &l->tops[l->rows[i].top_at + (size_t)k];
            lt_out_open(o, '{');
            lt_out_key_int(o, "id", t->id);
            lt_token_write(o, c->reply->server, t->id, t->logprob, l->as_ids);
            lt_out_shut(o, '}');
        }
        lt_out_shut(o, ']');
        lt_out_shut(o, '}');
    }
    lt_out_shut(o, ']');
}

static void put_tokens(lt_json_out *o, const lt_reply_choice *c, size_t from) {
    lt_out_key_open(o, "tokens", '[');
    for (size_t i = from; c->reply->params.return_ids && i < c->logs.n; i++) {
        lt_out_int(o, c->logs.rows[i].id);
    }
    lt_out_shut(o, ']');
}

static void put_stop(lt_json_out *o, const lt_reply_choice *c) {
    const lt_reply *j = c->reply;
    lt_out_key_str(o, "stop_type",
                   c->stop_index >= 0              ? "word"
                   : c->finish == LT_FINISH_LENGTH ? "limit"
                                                   : "eos");
    lt_out_key(o, "stopping_word");
    if (c->stop_index >= 0) {
        lt_out_str(o, j->stops[c->stop_index], j->stop_lengths[c->stop_index]);
    } else {
        lt_out_text(o, "");
    }
}

/* The last object of a choice: the whole text or, for a stream, the rest, with the tokens whose
 * text was held back. */
static void put_final(lt_json_out *o, const lt_reply_choice *c, bool with_text) {
    const lt_reply *j = c->reply;
    const lt_part *p = c->part;
    const char *text = c->text.data != NULL ? c->text.data : "";
    const bool dropped = j->params.max_tokens == 0;
    const int64_t made = dropped ? 0 : c->new_tokens;
    const size_t from = with_text ? 0 : dropped ? c->logs.n : c->logs.sent;

    lt_out_open(o, '{');
    lt_out_key_int(o, "index", c->index);
    lt_out_key(o, "content");
    lt_out_str(o, text, with_text && !dropped ? c->text.n : 0);
    put_tokens(o, c, from);
    lt_out_key_int(o, "id_slot", 0);
    lt_out_key_bool(o, "stop", true);
    lt_out_key_str(o, "model", lt_reply_model(j));
    lt_out_key_int(o, "tokens_predicted", made);
    lt_out_key_int(o, "tokens_evaluated", (int64_t)p->prompt.n);
    lt_out_key_int(o, "tokens_cached", p->cached_tokens);
    lt_out_key_open(o, "generation_settings", '{');
    put_sampling(o, &j->params, j->request.sampling.seed, j->params.max_tokens);
    lt_adapter_set_write_uses(&j->adapters, o);
    put_choosing(o, j);
    lt_out_shut(o, '}');
    lt_prompt_write(o, p);
    lt_out_key_bool(o, "has_new_line", memchr(text, '\n', c->text.n) != NULL);
    lt_out_key_bool(o, "truncated", /* By the end of the context. */
                    lt_reply_is_truncated(c) ||
                        (c->finish == LT_FINISH_LENGTH &&
                         (j->request.max_tokens < 0 || c->new_tokens < j->request.max_tokens)));
    put_stop(o, c);
    if (with_text || from < c->logs.n) {
        put_probabilities(o, c, from);
    }
    lt_timings_write(o, p, made);
    lt_out_shut(o, '}');
}

/* "generation_settings/n_predict" and the like; a path without a target is left out. */
static void put_path(lt_json_out *o, const json_t *tree, const char *path) {
    const char *rest = path;
    char key[64];
    while (tree != NULL && *rest != '\0') {
        const size_t n = strcspn(rest, "/");
        snprintf(key, sizeof key, "%.*s", (int)(n < sizeof key ? n : sizeof key - 1), rest);
        tree = json_object_get(tree, key);
        rest += n + (rest[n] == '/');
    }
    if (tree != NULL) {
        lt_out_key_value(o, path, tree);
    }
}

/* The last object, or the requested fields of it. */
static void put_answer(lt_json_out *o, const lt_reply_choice *c, bool with_text) {
    const json_t *wanted = c->reply->params.response_fields;
    lt_json_out whole = {0};
    json_t *tree;

    if (json_array_size(wanted) == 0) {
        put_final(o, c, with_text);
        return;
    }
    put_final(&whole, c, with_text);
    tree = whole.failed ? NULL : json_loadb(whole.data, whole.n, JSON_ALLOW_NUL, NULL);
    lt_out_open(o, '{');
    for (size_t i = 0; i < json_array_size(wanted); i++) {
        put_path(o, tree, json_string_value(json_array_get(wanted, i)));
    }
    lt_out_shut(o, '}');
    json_decref(tree);
    lt_out_free(&whole);
}

static void format_text(lt_reply_choice *c, const char *text, size_t n) {
    lt_reply *j = c->reply;
    lt_json_out *o = &j->out;
    if (!j->stream || j->params.max_tokens == 0) {
        return;
    }
    lt_out_open(o, '{');
    lt_out_key_int(o, "index", c->index);
    lt_out_key(o, "content");
    lt_out_str(o, text, n);
    put_tokens(o, c, c->logs.sent);
    lt_out_key_bool(o, "stop", false);
    lt_out_key_int(o, "id_slot", 0);
    lt_out_key_int(o, "tokens_predicted", c->new_tokens);
    lt_out_key_int(o, "tokens_evaluated", (int64_t)c->part->prompt.n);
    put_probabilities(o, c, c->logs.sent);
    c->logs.sent = c->logs.n;
    if (j->params.timings_per_token) {
        lt_timings_write(o, c->part, c->new_tokens);
    }
    lt_out_shut(o, '}');
    lt_reply_send(j, NULL);
}

static void format_choice_end(lt_reply_choice *c) {
    (void)c;
}

static void format_finish(lt_reply *j) {
    lt_json_out *o = &j->out;
    const bool list = j->n_parts * j->n_choices > 1 && !j->stream;
    if (list) {
        lt_out_open(o, '[');
    }
    for (int64_t i = 0; i < j->n_parts; i++) {
        for (int64_t k = 0; k < j->n_choices; k++) {
            put_answer(o, &j->parts[i].choices[k], !j->stream);
            if (j->stream) {
                lt_reply_send(j, NULL);
            }
        }
    }
    if (list) {
        lt_out_shut(o, ']');
    }
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

static bool add_one(lt_reply *j, const json_t *prompt, lt_api_error *e) {
    lt_ids ids = {0};
    if (!lt_server_may_fit(j->server, json_string_length(prompt), "prompt", e)) {
        e->type = "exceed_context_size_error";
        return false;
    }
    if (!lt_prompts_mixed(j->server, prompt, "prompt", j->params.add_special, true, &ids, e)) {
        lt_ids_free(&ids);
        return false;
    }
    if (!lt_reply_add(j, &ids, e)) {
        snprintf(e->param, sizeof e->param, "prompt");
        return false;
    }
    return true;
}

/* A text or a list of ids and texts (one prompt), or a list of only texts or lists (several). */
static bool add_prompts(lt_reply *j, lt_api_error *e) {
    const json_t *prompt = j->params.prompt;
    bool mixed = false;

    if (prompt == NULL) {
        return lt_api_refuse(e, "prompt", "'prompt' is missing");
    }
    for (size_t i = 0; i < json_array_size(prompt); i++) {
        mixed |= json_is_integer(json_array_get(prompt, i));
    }
    if (!json_is_array(prompt) || mixed) {
        return add_one(j, prompt, e);
    }
    if (json_array_size(prompt) == 0) {
        return lt_api_refuse(e, "prompt", "'prompt' is empty");
    }
    for (size_t i = 0; i < json_array_size(prompt); i++) {
        if (!add_one(j, json_array_get(prompt, i), e)) {
            return false;
        }
    }
    return true;
}

static void native_defaults(const lt_server *s, lt_api_params *a) {
    lt_api_params_defaults(a);
    a->temperature = 0.8;
    a->top_k = 40;
    a->top_p = 0.95;
    a->min_p = 0.05;
    a->repeat_last_n = 64;
    a->add_special = true;
    lt_server_preset(s, a);
}

static bool check_fields(const json_t *wanted, lt_api_error *e) {
    bool ok = wanted == NULL || json_is_array(wanted);
    for (size_t i = 0; i < json_array_size(wanted); i++) {
        ok = ok && json_is_string(json_array_get(wanted, i));
    }
    return ok || lt_api_refuse(e, "response_fields", "'response_fields' must be a list of names");
}

/* As in llama-server: the text around the gap, and the beginning of the answer. */
static bool add_infill(lt_reply *j, lt_api_error *e) {
    const lt_api_params *a = &j->params;
    const lt_infill f = {.prefix = a->input_prefix,
                         .suffix = a->input_suffix,
                         .prompt = a->prompt,
                         .extra = a->input_extra,
                         .files = true,
                         .cut = true};
    if (f.prefix == NULL || f.suffix == NULL) {
        return lt_api_refuse(e, f.prefix == NULL ? "input_prefix" : "input_suffix",
                             "'%s' is missing", f.prefix == NULL ? "input_prefix" : "input_suffix");
    }
    if (f.prompt != NULL && !lt_json_is_text(f.prompt)) {
        return lt_api_refuse(e, "prompt", "'prompt' must be a string");
    }
    return lt_infill_add(j, &f, NULL, e);
}

static bool prepare(lt_reply *j, bool (*add)(lt_reply *j, lt_api_error *e), lt_api_error *e) {
    const int64_t context = lt_server_context(j->server);
    /* -1 and -2 mean: to the end. */
    int64_t most = j->params.max_tokens < 0 ? -1 : j->params.max_tokens;
    most = most > context && !j->server->o.context_shift ? context : most == 0 ? 1 : most;
    /* This is the value by which /props reports a random seed. */
    j->params.seed = j->params.seed == 0xFFFFFFFF ? -1 : j->params.seed;
    /* As in llama-server, the ids of a stream are sent with its text. */
    j->params.return_ids |= j->params.stream;
    return lt_server_check_model(j->server, &j->params, e) &&
           check_fields(j->params.response_fields, e) &&
           lt_reply_configure(j, most, j->params.n_probs > 0 ? (int)j->params.n_probs : -1, e) &&
           lt_reply_rule(j, e) && add(j, e);
}

static void answer(lt_call *call, const lt_field *rows, size_t n_rows,
                   bool (*add)(lt_reply *j, lt_api_error *e)) {
    lt_api_error e = {0};
    lt_api_params a;
    lt_reply *j;

    native_defaults(call->server, &a);
    if (!lt_call_read(call, &a, rows, n_rows, &e)) {
        lt_call_error(call, &e);
        lt_api_params_free(&a);
        return;
    }
    j = lt_reply_open(call, &formatter, &a, "cmpl-");
    if (j == NULL) {
        return;
    }
    if (!prepare(j, add, &e)) {
        lt_reply_refuse(call, j, &e);
        return;
    }
    lt_reply_start(call, j);
}

void lt_api_completion(lt_call *call) {
    answer(call, fields, sizeof fields / sizeof *fields, add_prompts);
}

void lt_api_infill(lt_call *call) {
    answer(call, infill_fields, sizeof infill_fields / sizeof *infill_fields, add_infill);
}

/* ---- /props and /slots ---- */

static void put_token(lt_json_out *o, const char *key, const lt_server *s, uint32_t id) {
    lt_out_key(o, key);
    if (id == LT_TOKEN_NONE) {
        lt_out_text(o, "");
    } else {
        lt_piece_write(o, s, (int32_t)id);
    }
}

/* Write the fields of an object that the other one does not have. */
static void put_set(lt_json_out *o, json_t *set, json_t *over) {
    const char *key;
    json_t *value;
    json_object_foreach(set, key, value) {
        if (json_object_get(over, key) == NULL) {
            lt_out_key_value(o, key, value);
        }
    }
}

void lt_api_props(lt_call *call) {
    const lt_server *s = call->server;
    lt_json_out o = {0};
    lt_api_params a;

    native_defaults(s, &a);
    lt_out_open(&o, '{');
    lt_out_key_open(&o, "default_generation_settings", '{');
    lt_out_key_int(&o, "id", 0);
    lt_out_key_int(&o, "n_ctx", lt_server_context(s));
    lt_out_key_bool(&o, "is_processing", false);
    lt_out_key_open(&o, "params", '{');
    put_sampling(&o, &a, a.seed != -1 ? (uint64_t)a.seed : 0xFFFFFFFF, a.max_tokens);
    lt_adapter_set_write_uses(&(lt_adapter_choice){.n = 0}, &o);
    lt_out_shut(&o, '}');
    lt_out_shut(&o, '}');
    /* Those set by the operator or the model's files. */
    lt_out_key_open(&o, "sampling_defaults", '{');
    put_set(&o, s->own, s->preset);
    put_set(&o, s->preset, NULL);
    lt_out_shut(&o, '}');
    lt_out_key_int(&o, "total_slots", s->o.engine.max_running);
    lt_out_key_str(&o, "model_alias", s->name);
    lt_out_key_str(&o, "model_path", s->o.model);
    lt_out_key_open(&o, "modalities", '{');
    lt_out_key_bool(&o, "vision", false);
    lt_out_key_bool(&o, "audio", false);
    lt_out_shut(&o, '}');
    lt_out_key_str(&o, "chat_template", lt_chat_template_text(s->template));
    lt_out_key_str(&o, "chat_template_source", s->template_source);
    put_token(&o, "bos_token", s, s->vocabulary.bos);
    put_token(&o, "eos_token", s, s->vocabulary.eos);
    lt_out_key_str(&o, "build_info", "lateen-" LT_VERSION);
    lt_out_key_bool(&o, "is_sleeping", false);
    lt_out_shut(&o, '}');
    lt_call_json(call, 200, &o);
}

/* A sequence of the batch is a slot; the running ones come first. */
void lt_api_slots(lt_call *call) {
    const lt_server *s = call->server;
    lt_engine_stats st;
    lt_json_out o = {0};

    lt_engine_get_stats(s->engine, &st);
    if (strstr(call->request->query, "fail_on_no_slot") != NULL &&
        st.running >= s->o.engine.max_running) {
        const lt_api_error e = {
            .status = 503, .type = "unavailable_error", .message = "no slot available"};
        lt_call_error(call, &e);
        return;
    }
    lt_out_open(&o, '[');
    for (int64_t i = 0; i < s->o.engine.max_running; i++) {
        lt_out_open(&o, '{');
        lt_out_key_int(&o, "id", i);
        lt_out_key_int(&o, "n_ctx", lt_server_context(s));
        lt_out_key_bool(&o, "speculative", s->o.engine.speculate != LT_SPECULATE_NONE);
        lt_out_key_bool(&o, "is_processing", i < st.running);
        lt_out_shut(&o, '}');
    }
    lt_out_shut(&o, ']');
    lt_call_json(call, 200, &o);
}
