/* reply_configure.c: translates the parameters of a request for the engine: sampling, penalties,
 * stop strings and ids, the form, log-probabilities. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/json.h"
#include "base/option.h"
#include "base/rng.h"
#include "serve/api/formats/conversation.h"
#include "serve/api/align/guide.h"
#include "serve/api/reply.h"

#define MAX_BIAS 4096

static bool check_id(const lt_server *s, int64_t id, const char *param, lt_api_error *e) {
    const int64_t n = lt_model_get_spec(s->model)->vocab_size;
    if (id < 0 || id >= n) {
        return lt_api_refuse(e, param, "'%s': token %lld is not in the vocabulary of %lld", param,
                             (long long)id, (long long)n);
    }
    return true;
}

/* ---- logit_bias: {"id or text": bias}, or llama-server's [[id or text, bias or false], ...]
 * ---- */

static bool add_bias(lt_reply *j, int64_t id, const json_t *value, lt_api_error *e) {
    float bias = 0;
    if (json_is_false(value)) {
        bias = -LT_BIAS_MOST; /* llama-server: this token is never chosen. */
    } else if (json_is_number(value)) {
        bias = (float)json_number_value(value);
        if (!(fabsf(bias) <= LT_BIAS_MOST)) {
            return lt_api_refuse(e, "logit_bias", "'logit_bias': %g is outside [%g, %g]",
                                 json_number_value(value), (double)-LT_BIAS_MOST,
                                 (double)LT_BIAS_MOST);
        }
    } else {
        return lt_api_refuse(e, "logit_bias", "'logit_bias': a bias must be a number");
    }
    if (!check_id(j->server, id, "logit_bias", e)) {
        return false;
    }
    if (j->request.sampling.n_bias == MAX_BIAS) {
        return lt_api_refuse(e, "logit_bias", "'logit_bias' has more than %d entries", MAX_BIAS);
    }
    if (j->bias == NULL) {
        j->bias = malloc(MAX_BIAS * sizeof *j->bias);
        if (j->bias == NULL) {
            return lt_api_refuse_oom(e);
        }
        j->request.sampling.bias = j->bias;
    }
    j->bias[j->request.sampling.n_bias++] = (lt_logit_bias){(int32_t)id, bias};
    return true;
}

/* llama-server: a bias of each token of a text. */
static bool bias_text(lt_reply *j, const char *text, size_t n, const json_t *value,
                      lt_api_error *e) {
    lt_ids ids = {0};
    bool ok = lt_server_encode(j->server, text, n, LT_ENCODE_PARSE_SPECIAL, &ids, e);
    for (size_t i = 0; ok && i < ids.n; i++) {
        ok = add_bias(j, ids.data[i], value, e);
    }
    lt_ids_free(&ids);
    return ok;
}

static bool bias_pair(lt_reply *j, const json_t *pair, lt_api_error *e) {
    const json_t *who = json_array_get(pair, 0), *value = json_array_get(pair, 1);

    if (json_is_integer(who)) {
        return add_bias(j, json_integer_value(who), value, e);
    }
    if (!json_is_string(who)) {
        return lt_api_refuse(e, "logit_bias", "'logit_bias': an entry is [id or text, bias]");
    }
    return bias_text(j, json_string_value(who), json_string_length(who), value, e);
}

static bool read_biases(lt_reply *j, const json_t *all, lt_api_error *e) {
    if (json_is_array(all)) {
        for (size_t i = 0; i < json_array_size(all); i++) {
            if (!bias_pair(j, json_array_get(all, i), e)) {
                return false;
            }
        }
        return true;
    }
    if (!json_is_object(all)) {
        return lt_api_refuse(e, "logit_bias", "'logit_bias' must be an object of ids and biases");
    }
    for (void *it = json_object_iter((json_t *)all); it != NULL;
         it = json_object_iter_next((json_t *)all, it)) {
        const char *key = json_object_iter_key(it);
        char *end = NULL;
        const int64_t id = strtoll(key, &end, 10);
        const json_t *value = json_object_iter_value(it);
        const bool is_id = end != key && *end == '\0';
        if (is_id ? !add_bias(j, id, value, e) : !bias_text(j, key, strlen(key), value, e)) {
            return false;
        }
    }
    return true;
}

/* With ignore_eos, llama-server never chooses a token that ends an answer. (vLLM may choose it, and
 * continues.) */
static bool ban_ends(lt_reply *j, lt_api_error *e) {
    const lt_ends *ends = &j->server->ends;
    const int64_t V = lt_model_get_spec(j->server->model)->vocab_size;
    bool ok = true;
    if (j->flavour != LT_FLAVOUR_LLAMA || !j->params.ignore_eos) {
        return true;
    }
    for (int i = 0; ok && i < ends->n; i++) {
        ok = ends->ids[i] < 0 || ends->ids[i] >= V || add_bias(j, ends->ids[i], json_false(), e);
    }
    return ok;
}

/* Texts may share tokens; the engine gets each token once, with the sum of its biases. */
static bool read_bias(lt_reply *j, lt_api_error *e) {
    lt_sampling *s = &j->request.sampling;
    if (j->params.logit_bias != NULL && !read_biases(j, j->params.logit_bias, e)) {
        return false;
    }
    if (!ban_ends(j, e)) {
        return false;
    }
    if (s->n_bias > 0) {
        s->n_bias = lt_sampling_merge_bias(j->bias, s->n_bias);
    }
    return true;
}

/* ---- DRY ---- */

/* Each breaker is the last id of its text when encoded after another letter, and so not the form at
 * the beginning of a text. */
static bool read_breakers(lt_reply *j, lt_api_error *e) {
    static const char *const usual[] = {"\n", ":", "\"", "*"}; /* llama-server's. */
    const char *texts[LT_API_PARAMS_BREAKERS];
    size_t lengths[LT_API_PARAMS_BREAKERS];
    int n = 4;
    if (j->request.sampling.dry_multiplier == 0.0) {
        return true;
    }
    for (int i = 0; i < n; i++) {
        texts[i] = usual[i];
        lengths[i] = 1;
    }
    if (j->params.dry_breakers != NULL &&
        !lt_api_params_strings(j->params.dry_breakers, "dry_sequence_breakers", texts, lengths,
                               LT_API_PARAMS_BREAKERS, &n, e)) {
        return false;
    }
    for (int i = 0; i < n; i++) {
        char text[256] = "a";
        lt_ids ids = {0};
        bool ok;
        if (lengths[i] == 0 || lengths[i] > sizeof text - 1) {
            return lt_api_refuse(e, "dry_sequence_breakers",
                                 "'dry_sequence_breakers' must hold texts of 1 to %zu bytes",
                                 sizeof text - 1);
        }
        memcpy(text + 1, texts[i], lengths[i]);
        ok = lt_server_encode(j->server, text, lengths[i] + 1, 0, &ids, e);
        if (ok && ids.n > 0) {
            j->dry_breakers[j->request.sampling.n_dry_breakers++] = (int32_t)ids.data[ids.n - 1];
        }
        lt_ids_free(&ids);
        if (!ok) {
            return false;
        }
    }
    j->request.sampling.dry_breakers = j->dry_breakers;
    return true;
}

/* ---- Stops ---- */

static bool read_stops(lt_reply *j, lt_api_error *e) {
    const json_t *ids = j->params.stop_ids;
    size_t n;

    const char *const stop = lt_api_params_said(
        &j->params, (const char *const[]){"stop", "stop_sequences", NULL});
    if (!lt_api_params_strings(j->params.stop, stop, j->stops, j->stop_lengths, LT_API_PARAMS_STOPS,
                               &j->n_stops, e)) {
        return false;
    }
    for (int i = 0; i < j->n_stops; i++) {
        if (j->stop_lengths[i] == 0) {
            return lt_api_refuse(e, stop, "'%s' holds an empty string", stop);
        }
    }
    n = json_array_size(ids);
    if (ids != NULL && (!json_is_array(ids) || n > 256)) {
        return lt_api_refuse(e, "stop_token_ids", "'stop_token_ids' must be a list of at most 256");
    }
    j->stop_ids = calloc(n + 1, sizeof *j->stop_ids);
    if (j->stop_ids == NULL) {
        return lt_api_refuse_oom(e);
    }
    for (size_t i = 0; i < n; i++) {
        const json_t *id = json_array_get(ids, i);
        if (!json_is_integer(id)) {
            return lt_api_refuse(e, "stop_token_ids", "'stop_token_ids' must hold whole numbers");
        }
        if (!check_id(j->server, json_integer_value(id), "stop_token_ids", e)) {
            return false;
        }
        j->stop_ids[i] = (int32_t)json_integer_value(id);
    }
    j->request.stop_ids = j->stop_ids;
    j->request.n_stop_ids = (int64_t)n;
    return true;
}

/* ---- Thinking ---- */

static bool encode(lt_reply *j, const char *text, int32_t **ids, int64_t *n, lt_api_error *e) {
    lt_ids list = {0};
    if (!lt_server_encode(j->server, text, strlen(text), LT_ENCODE_PARSE_SPECIAL, &list, e)) {
        return false;
    }
    *ids = (int32_t *)list.data;
    *n = (int64_t)list.n;
    return true;
}

/* Whether thinking is off, by its own field (as in Qwen's service) or by the template's
 * variable. */
static bool is_off(const lt_api_params *a) {
    return json_is_false(a->enable_thinking) ||
           json_is_false(json_object_get(a->template_kwargs, "enable_thinking"));
}

/* The request's budget, otherwise the server's. An effort of none, or thinking off, is a budget of
 * 0, for templates that would reason anyway. */
static int64_t think_budget(const lt_reply *j) {
    const char *effort = j->params.reasoning_effort;
    if (j->params.thinking_budget >= 0) {
        return j->params.thinking_budget;
    }
    return (effort != NULL && strcmp(effort, "none") == 0) || is_off(&j->params)
               ? 0
               : j->server->o.think_budget;
}

/* After the budget the engine ends the reasoning. A model that does not reason needs no budget. */
bool lt_reply_think(lt_reply *j, bool opened, lt_api_error *e) {
    const lt_parse_marks *m = &j->server->marks;
    const int64_t budget = think_budget(j);
    if (budget < 0 || !lt_parse_reasons(m)) {
        return true;
    }
    if (j->request.beam.on) {
        return lt_api_refuse(e, "thinking_budget",
                             "a budget of reasoning cannot be combined with beam search");
    }
    if (m->think_close == NULL) {
        return j->params.thinking_budget < 0 ||
               lt_api_refuse(e, "thinking_budget",
                             "'thinking_budget' is not supported for this model's format");
    }
    if (!encode(j, m->think_close, &j->think_end, &j->request.n_think_end, e) ||
        (!opened && !encode(j, m->think_open, &j->think_begin, &j->request.n_think_begin, e))) {
        return false;
    }
    j->request.think_end = j->think_end;
    j->request.think_begin = j->think_begin;
    j->request.think_budget = budget;
    return true;
}

/* ---- Form: at most one of the many ways to ask for a form ---- */

typedef struct {
    lt_grammar_kind kind;
    const char *param, *text; /* text NULL: the tree's JSON is the text. */
    const json_t *tree;       /* NULL, or the source of the text. */
    int n;                    /* Number of forms requested. */
} wanted;

static void want(wanted *w, lt_grammar_kind kind, const char *param, const char *text,
                 const json_t *tree) {
    *w = (wanted){.kind = kind, .param = param, .text = text, .tree = tree, .n = w->n + 1};
}

/* Refuse unknown members: a misspelt one would change the answer silently. */
static bool know_members(const json_t *o, const char *const *names, size_t n, const char *where,
                         lt_api_error *e) {
    for (void *it = json_object_iter((json_t *)o); it != NULL;
         it = json_object_iter_next((json_t *)o, it)) {
        const char *key = json_object_iter_key(it);
        char hint[LT_NAME_HINT_BYTES];
        if (lt_name_find(key, names, sizeof *names, n) == NULL) {
            return lt_api_refuse(e, where, "unknown field '%s.%.60s'%s", where, key,
                                 lt_name_hint(hint, key, names, sizeof *names, n));
        }
    }
    return true;
}

/* {"type": "text" | "json_object" | "json_schema" | "grammar" | "regex", ...}; llama-server's
 * json_object may have a schema. */
static bool want_format(wanted *w, const json_t *format, const char *param, lt_api_error *e) {
    const char *type = json_string_value(json_object_get(format, "type"));
    const json_t *outer = json_object_get(format, "json_schema");
    const json_t *schema = json_object_get(outer != NULL ? outer : format, "schema");
    static const char *const names[] = {"name",   "description", "schema",
                                        "strict", "type",        "json_schema"};

    if (type == NULL) {
        return lt_api_refuse(e, param, "'%s' must be an object with a type", param);
    }
    if (!know_members(format, names, 6, param, e) || !know_members(outer, names, 4, param, e)) {
        return false;
    }
    if (strcmp(type, "text") == 0) {
        return true;
    }
    if (strcmp(type, "json_object") == 0) {
        want(w, schema != NULL ? LT_GRAMMAR_SCHEMA : LT_GRAMMAR_JSON, param,
             schema != NULL ? NULL : "", schema);
        return true;
    }
    if (strcmp(type, "json_schema") == 0) {
        if (schema == NULL) {
            return lt_api_refuse(e, param, "'%s': type json_schema needs a schema", param);
        }
        want(w, LT_GRAMMAR_SCHEMA, param, NULL, schema);
        return true;
    }
    return lt_api_refuse(e, param, "'%s.type' = %.40s; it may be text, json_object or json_schema",
                         param, type);
}

/* vLLM's {"json": ..., "regex": ..., "choice": ..., "grammar": ..., "json_object": true}. */
static bool want_structured(wanted *w, const json_t *o, lt_api_error *e) {
    static const char where[] = "structured_outputs";
    if (!json_is_object(o)) {
        return lt_api_refuse(e, where, "'%s' must be an object", where);
    }
    for (void *it = json_object_iter((json_t *)o); it != NULL;
         it = json_object_iter_next((json_t *)o, it)) {
        const char *key = json_object_iter_key(it);
        const json_t *v = json_object_iter_value(it);
        if (json_is_null(v) || json_is_false(v)) {
            continue;
        }
        if (strcmp(key, "json") == 0) {
            want(w, LT_GRAMMAR_SCHEMA, where, json_string_value(v), v);
        } else if (strcmp(key, "regex") == 0 && json_is_string(v)) {
            want(w, LT_GRAMMAR_REGEX, where, json_string_value(v), v);
        } else if (strcmp(key, "grammar") == 0 && json_is_string(v)) {
            want(w, LT_GRAMMAR_GBNF, where, json_string_value(v), v);
        } else if (strcmp(key, "choice") == 0) {
            want(w, LT_GRAMMAR_CHOICE, where, NULL, v);
        } else if (strcmp(key, "json_object") == 0 && json_is_true(v)) {
            want(w, LT_GRAMMAR_JSON, where, "", NULL);
        } else {
            return lt_api_refuse(e, where, "'%s.%.40s' is not supported here", where, key);
        }
    }
    return true;
}

bool lt_reply_rule(lt_reply *j, lt_api_error *e) {
    if (j->form.text == NULL) {
        return j->params.thinking_budget < 0 || lt_reply_think(j, true, e);
    }
    if (j->params.thinking_budget >= 0) {
        return lt_api_refuse(e, "thinking_budget",
                             "'thinking_budget' and '%s' can be combined in chats only",
                             j->form.param);
    }
    j->ruled = true;
    j->compile.what = (lt_parse_grammar_options){
        .kind = j->form.kind, .form = j->form.text, .form_bytes = j->form.bytes};
    return true;
}

static bool keep_form(lt_reply *j, const wanted *w, lt_api_error *e) {
    j->form = (lt_form){.kind = w->kind, .param = w->param, .text = w->text};
    if (w->text == NULL) {
        j->form.owned = lt_json_dumps_exact(w->tree, JSON_COMPACT | JSON_ENCODE_ANY);
        j->form.text = j->form.owned;
    }
    if (j->form.text == NULL) {
        return lt_api_refuse(e, w->param, "'%s' cannot be read", w->param);
    }
    j->form.bytes = strlen(j->form.text);
    if (w->text != NULL && json_is_string(w->tree) &&
        json_string_length(w->tree) != j->form.bytes) {
        return lt_api_refuse(e, w->param, "'%s' holds a zero character (\\u0000)", w->param);
    }
    return true;
}

static bool read_form(lt_reply *j, lt_api_error *e) {
    const lt_api_params *a = &j->params;
    wanted w = {0};

    const char *name = a->format_name != NULL ? a->format_name : "response_format";

    if (a->response_format != NULL && !want_format(&w, a->response_format, name, e)) {
        return false;
    }
    if (a->structured != NULL && !want_structured(&w, a->structured, e)) {
        return false;
    }
    if (a->grammar != NULL && a->grammar[0] != '\0') {
        want(&w, LT_GRAMMAR_GBNF,
             lt_api_params_said(a, (const char *const[]){"grammar", "guided_grammar", NULL}),
             a->grammar, NULL);
    }
    if (a->regex != NULL) {
        want(&w, LT_GRAMMAR_REGEX, "guided_regex", a->regex, NULL);
    }
    if (a->json_schema != NULL) {
        want(&w, LT_GRAMMAR_SCHEMA,
             lt_api_params_said(a, (const char *const[]){"json_schema", "guided_json", NULL}),
             json_string_value(a->json_schema), a->json_schema);
    }
    if (a->choice != NULL) {
        want(&w, LT_GRAMMAR_CHOICE, "guided_choice", NULL, a->choice);
    }
    if (w.n > 1) {
        return lt_api_refuse(e, w.param,
                             "the request asks for %d forms of the answer at once; only one is "
                             "possible (the last is '%s')",
                             w.n, w.param);
    }
    return w.n == 0 || keep_form(j, &w, e);
}

/* ---- All together ---- */

static void read_sampling(lt_reply *j) {
    const lt_api_params *a = &j->params;
    lt_sampling *s = &j->request.sampling;
    s->temperature = a->temperature;
    s->top_k = a->top_k > 0 ? a->top_k : 0;
    s->top_p = a->top_p > 0 ? a->top_p : 1e-9; /* 0: only the most likely token. */
    s->min_p = a->min_p;
    s->typical_p = a->typical_p > 0 ? a->typical_p : 1e-9; /* 0: only the most typical. */
    s->repetition = a->repetition;
    s->frequency = a->frequency;
    s->presence = a->presence;
    if (a->repeat_last_n == 0) {
        s->repetition = 1;
        s->frequency = s->presence = 0;
    } else if (a->repeat_last_n > -2) { /* -1: all tokens. Below: it was not said. */
        s->penalty_window = a->repeat_last_n > 0 ? a->repeat_last_n : INT64_MAX / 2;
    }
    s->dry_multiplier = a->dry_multiplier;
    s->dry_base = a->dry_base;
    s->dry_allowed = a->dry_allowed;
    s->dry_last_n = a->dry_last_n;
    s->xtc_probability = a->xtc_probability;
    s->xtc_threshold = a->xtc_threshold;
    s->seed = a->seed != -1
                  ? (uint64_t)a->seed /* Negative numbers are valid seeds. */
                  : lt_rng_mix(lt_clock_ns() ^ (atomic_fetch_add(&j->server->next_id, 1) << 32));
}

/* OpenAI's: {"type": "content", "content": a text, or a list of parts}. */
static bool read_prediction(lt_reply *j, lt_api_error *e) {
    const json_t *p = j->params.prediction, *content = json_object_get(p, "content");
    const char *type = json_string_value(json_object_get(p, "type"));
    json_t *text;
    bool right;
    if (p == NULL || json_is_null(p)) {
        return true;
    }
    if (type == NULL || strcmp(type, "content") != 0 || content == NULL ||
        json_object_size(p) != 2) {
        return lt_api_refuse(e, "prediction",
                             "'prediction' must be {\"type\": \"content\", \"content\": ...}");
    }
    text = lt_content_text(content, "", "prediction.content", e);
    right = text != NULL && lt_server_encode(j->server, json_string_value(text),
                                             json_string_length(text), 0, &j->predicted, e);
    json_decref(text);
    j->request.predicted = (const int32_t *)j->predicted.data;
    j->request.n_predicted = right ? (int64_t)j->predicted.n : 0;
    return right;
}

bool lt_reply_configure(lt_reply *j, int64_t max_tokens, int top, lt_api_error *e) {
    const lt_api_params *a = &j->params;
    const int64_t context = lt_server_context(j->server);
    lt_request *r = &j->request;

    r->n_choices = a->best_of > a->n ? a->best_of : a->n;
    r->max_tokens = max_tokens;
    r->min_tokens = a->min_tokens;
    r->ignore_eos = a->ignore_eos;
    r->logprobs = j->top = top;
    r->prompt_logprobs = (int)a->prompt_logprobs;
    r->priority = (int)a->priority;
    if (a->prompt_logprobs >= 0 && a->stream) {
        return lt_api_refuse(e, "prompt_logprobs", "'prompt_logprobs' cannot be streamed");
    }
    if (max_tokens > (j->server->o.context_shift ? LT_SHIFT_TOKENS : context)) {
        const char *const said = lt_api_params_said(
            a, (const char *const[]){"max_tokens", "max_completion_tokens", "max_output_tokens",
                                     "n_predict", NULL});
        return j->server->o.context_shift
                   ? lt_api_refuse(e, said, "%s is %lld; it may be at most %lld", said,
                                   (long long)max_tokens, (long long)LT_SHIFT_TOKENS)
                   : lt_api_refuse(e, said, "%s is %lld; this model's context is %lld tokens", said,
                                   (long long)max_tokens, (long long)context);
    }
    if (max_tokens >= 0 && a->min_tokens > max_tokens) {
        return lt_api_refuse(e, "min_tokens", "min_tokens is %lld, over max_tokens %lld",
                             (long long)a->min_tokens, (long long)max_tokens);
    }
    read_sampling(j);
    r->most_drafts = a->speculate ? a->most_drafts : 0;
    r->fixed_text = a->seed != -1;
    return read_prediction(j, e) && read_bias(j, e) && read_breakers(j, e) && read_stops(j, e) &&
           lt_reply_narrow(j, e) && read_form(j, e) && lt_guide_beam_search(j, e);
}
