/* guide.c: see guide.h. */
#include "serve/api/align/guide.h"

#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/option.h"
#include "model/params.h"
#include "model/infer/steering.h"
#include "serve/api/formats/conversation.h"
#include "serve/api/reply.h"

bool lt_guide_fields(const json_t *alignment, const char *const *reads, const char *const *needs,
                     const char *by, lt_api_error *e) {
    char param[64];
    const char *name;
    const json_t *value;
    json_object_foreach((json_t *)alignment, name, value) {
        const lt_field_table *all = &lt_fields_alignment;
        /* A field that no method has was refused or ignored earlier. */
        if (lt_name_find(name, all->rows, sizeof *all->rows, all->n) != NULL &&
            strcmp(name, "method") != 0 && !json_is_null(value) &&
            !lt_name_is_one_of(name, reads)) {
            snprintf(param, sizeof param, "alignment.%s", name);
            return lt_api_refuse(e, param, "'%s' has no effect with %s", param, by);
        }
    }
    for (; *needs != NULL; needs++) {
        value = json_object_get(alignment, *needs);
        if (value == NULL || json_is_null(value)) {
            snprintf(param, sizeof param, "alignment.%s", *needs);
            return lt_api_refuse(e, param, "%s needs '%s'", by, param);
        }
    }
    return true;
}

static bool mark_fields(const lt_api_params *a, const char *scheme, lt_watermark_scheme which,
                        lt_api_error *e) {
    static const char *const needs[] = {"key", NULL};
    static const char *const reads[][8] = {
        [LT_WATERMARK_GREEN] = {"key", "scheme", "context", "gamma", "delta"},
        [LT_WATERMARK_GUMBEL] = {"key", "scheme", "context"},
        [LT_WATERMARK_EXPONENTIAL] = {"key", "scheme", "length"}};
    char by[64];
    snprintf(by, sizeof by, "method watermark and scheme %s", scheme);
    return lt_guide_fields(a->alignment, reads[which], needs, by, e) &&
           (a->mark.key[0] != '\0' || lt_api_refuse(e, "alignment.key",
                                                    "'alignment.key' is empty: anyone could find "
                                                    "and write such a mark"));
}

/* With one key, all texts of a prompt draw the same numbers; with gumbel they would be the same
 * text. */
static bool check_choices(const lt_reply *j, lt_watermark_scheme which, lt_api_error *e) {
    return which != LT_WATERMARK_GUMBEL || j->request.n_choices == 1 ||
           lt_api_refuse(e, j->params.best_of > j->params.n ? "best_of" : "n",
                         "scheme gumbel gives every choice of a prompt the same text; scheme "
                         "exponential does not");
}

bool lt_guide_watermark(lt_reply *j, lt_api_error *e) {
    const lt_api_params *a = &j->params;
    const char *scheme = a->mark.scheme != NULL ? a->mark.scheme : "gumbel";
    lt_watermark *w = &j->request.sampling.watermark;
    lt_watermark_scheme which;
    lt_err err = lt_watermark_find(&which, scheme);
    if (err != LT_OK) {
        return lt_api_refuse_error(e, "alignment.scheme", err);
    }
    if (!mark_fields(a, scheme, which, e) || !check_choices(j, which, e)) {
        return false;
    }
    *w = lt_watermark_defaults(which);
    w->key = lt_watermark_key(a->mark.key, strlen(a->mark.key));
    w->gamma = a->mark.gamma >= 0 ? a->mark.gamma : w->gamma;
    w->delta = a->mark.delta >= 0 ? a->mark.delta : w->delta;
    w->context = a->mark.context > 0 ? a->mark.context : w->context;
    w->length = a->mark.length > 0 ? a->mark.length : w->length;
    err = lt_watermark_check(w);
    if (err == LT_OK && which != LT_WATERMARK_GREEN && j->request.sampling.temperature <= 0) {
        return lt_api_refuse(
            e, "temperature",
            "'temperature' is 0: no token is drawn, so scheme %s cannot leave its marks", scheme);
    }
    return err == LT_OK || lt_api_refuse_error(e, "alignment", err);
}

bool lt_guide_steer(lt_reply *j, lt_api_error *e) {
    static const char *const reads[] = {"vector", "scale", NULL}, *const needs[] = {"vector", NULL};
    const lt_api_params *a = &j->params;
    lt_err err;
    if (!lt_guide_fields(a->alignment, reads, needs, "method steer", e)) {
        return false;
    }
    err = lt_steering_find(j->server->model->steering, a->vector, &j->request.steer);
    j->request.steer_scale = (float)a->scale;
    return err == LT_OK || lt_api_refuse_error(e, "alignment.vector", err);
}

/* ---- Guidance by a negative prompt ---- */

static bool is_system(const json_t *message) {
    const char *role = json_string_value(json_object_get(message, "role"));
    return role != NULL && (strcmp(role, "system") == 0 || strcmp(role, "developer") == 0);
}

/* The request's messages with another system message; "": with none. */
static json_t *with_system(const json_t *messages, const json_t *text) {
    json_t *list = json_string_length(text) > 0
                       ? json_pack("[{s:s, s:O}]", "role", "system", "content", text)
                       : json_array();
    for (size_t i = 0; list != NULL && i < json_array_size(messages); i++) {
        json_t *one = json_array_get(messages, i);
        if (!is_system(one) && json_array_append(list, one) != 0) {
            json_decref(list);
            list = NULL;
        }
    }
    return list;
}

static bool negative_chat(lt_reply *j, lt_api_error *e) {
    const json_t *said = j->params.negative;
    lt_conversation c = lt_conversation_of(&j->params);
    json_t *messages = json_is_string(said) ? with_system(c.messages, said)
                                            : json_incref((json_t *)said);
    bool opened, ok;
    if (messages == NULL) {
        return lt_api_refuse_oom(e);
    }
    c.messages = messages;
    ok = lt_conversation_ids(j->server, &c, &j->negative, &opened, e);
    json_decref(messages);
    return ok;
}

/* A text; in a chat, a system message that replaces the request's, or a list of messages. */
static bool read_negative(lt_reply *j, lt_api_error *e) {
    const json_t *said = j->params.negative;
    const bool chat = j->params.messages != NULL;
    if (said == NULL) {
        return true;
    }
    if (!json_is_string(said) && !(chat && json_is_array(said))) {
        return lt_api_refuse(e, "alignment.negative", "'alignment.negative' must be a text%s",
                             chat ? " or a list of messages" : "");
    }
    if (chat) {
        return negative_chat(j, e);
    }
    return lt_server_may_fit(j->server, json_string_length(said), "alignment.negative", e) &&
           lt_server_encode(j->server, json_string_value(said), json_string_length(said),
                            LT_ENCODE_DEFAULT, &j->negative, e);
}

bool lt_guide_negative(lt_reply *j, lt_api_error *e) {
    static const char *const reads[] = {"negative", "scale", "plausibility", NULL};
    static const char *const needs[] = {"scale", NULL};
    const lt_api_params *a = &j->params;
    if (!lt_guide_fields(a->alignment, reads, needs, "method guidance", e)) {
        return false;
    }
    if (j->request.n_choices != 1) {
        return lt_api_refuse(e, a->n > 1 ? "n" : "best_of",
                             "method guidance gives one choice, because it runs a second sequence");
    }
    if (!read_negative(j, e)) {
        return false;
    }
    j->request.guidance = (lt_guidance){.on = true,
                                        .prompt = (const int32_t *)j->negative.data,
                                        .n_prompt = (int64_t)j->negative.n,
                                        .scale = (float)a->scale,
                                        .plausibility = (float)a->plausibility};
    return true;
}

/* ---- Blends of models ---- */

/* The index of the model that the field names, among those beside the served one. */
static bool find_second(const lt_reply *j, const char *name, const char *param, int *out,
                        lt_api_error *e) {
    const lt_server_options *o = &j->server->o;
    const size_t n = (size_t)o->engine.n_beside;
    const char *const *row;
    if (n == 0) {
        return lt_api_refuse(
            e, "alignment.method",
            "'alignment.method' = %s: the server has no second model (serve --second NAME=MODEL)",
            j->params.group.method);
    }
    if (name == NULL && n == 1) {
        *out = 0;
        return true;
    }
    if (name == NULL) {
        return lt_api_refuse(e, param, "'%s' must name one of the %zu models beside the served one",
                             param, n);
    }
    row = lt_api_params_row(name, param, o->second, sizeof *o->second, n, e);
    *out = row != NULL ? (int)(row - o->second) : 0;
    return row != NULL;
}

static bool said(const lt_reply *j, const char *name) {
    const json_t *value = json_object_get(j->params.alignment, name);
    return value != NULL && !json_is_null(value);
}

static bool no_search(const lt_reply *j, lt_api_error *e) {
    return !j->params.use_beam_search ||
           lt_api_refuse(e, "use_beam_search",
                         "'use_beam_search' cannot be combined with method %s",
                         j->params.group.method);
}

/* Li et al.'s difference of the log-probabilities; with a scale O'Brien and Lewis's
 * (1 + scale) log p - scale log p_amateur. */
bool lt_guide_contrastive(lt_reply *j, lt_api_error *e) {
    static const char *const reads[] = {"amateur", "scale", "plausibility", NULL};
    static const char *const needs[] = {NULL};
    const lt_api_params *a = &j->params;
    const bool scaled = said(j, "scale");
    lt_blend *b = &j->request.blend;
    *b = (lt_blend){.n = 1,
                    .own = scaled ? 1 + (float)a->scale : 1,
                    .weight = {scaled ? -(float)a->scale : -1},
                    .plausibility = said(j, "plausibility") ? (float)a->plausibility : 0.1F};
    return lt_guide_fields(a->alignment, reads, needs, "method contrastive", e) &&
           no_search(j, e) && find_second(j, a->amateur, "alignment.amateur", &b->model[0], e);
}

/* log p + scale (log p_expert - log p_anti). */
bool lt_guide_experts(lt_reply *j, lt_api_error *e) {
    static const char *const reads[] = {"expert", "anti", "scale", "plausibility", NULL};
    static const char *const needs[] = {"expert", "anti", NULL};
    const lt_api_params *a = &j->params;
    lt_blend *b = &j->request.blend;
    char by[64];
    snprintf(by, sizeof by, "method %s", a->group.method);
    *b = (lt_blend){.n = 2,
                    .own = 1,
                    .weight = {(float)a->scale, -(float)a->scale},
                    .plausibility = (float)a->plausibility};
    return lt_guide_fields(a->alignment, reads, needs, by, e) && no_search(j, e) &&
           find_second(j, a->expert, "alignment.expert", &b->model[0], e) &&
           find_second(j, a->anti, "alignment.anti", &b->model[1], e);
}

/* ---- Beam search ---- */

/* Fields that change the choice of tokens, and the values with which they do not; an empty list or
 * object does not, either. Defaults of the server or of the model's files are not considered. */
static const struct {
    const char *name;
    double neutral[2];
} draws[] = {{"temperature", {0, 1}},
             {"top_p", {1, 1}},
             {"top_k", {-1, 0}},
             {"min_p", {0, 0}},
             {"typical_p", {1, 1}},
             {"typ_p", {1, 1}},
             {"repetition_penalty", {1, 1}},
             {"repeat_penalty", {1, 1}},
             {"frequency_penalty", {0, 0}},
             {"presence_penalty", {0, 0}},
             {"dry_multiplier", {0, 0}},
             {"xtc_probability", {0, 0}},
             {"min_tokens", {0, 0}},
             {"logit_bias", {0, 0}},
             {"bad_words", {0, 0}},
             {"allowed_token_ids", {0, 0}}};

static bool is_neutral(const json_t *value, const double *neutral) {
    const double x = json_number_value(value);
    return value == NULL || json_is_null(value) ||
           (json_is_number(value) ? x == neutral[0] || x == neutral[1]
                                  : json_array_size(value) + json_object_size(value) == 0);
}

static bool no_draws(const lt_reply *j, const char *by, lt_api_error *e) {
    for (size_t i = 0; i < sizeof draws / sizeof *draws; i++) {
        if (!is_neutral(json_object_get(j->params.root, draws[i].name), draws[i].neutral)) {
            return lt_api_refuse(e, draws[i].name, "'%s' has no effect with %s", draws[i].name, by);
        }
    }
    if (j->n_stops > 0) {
        return lt_api_refuse(e, "stop", "'stop' cannot be combined with %s; 'stop_token_ids' can",
                             by);
    }
    return j->control == NULL ||
           lt_api_refuse(e, "reasoning", "'reasoning.control' cannot be combined with %s", by);
}

static bool read_early(const json_t *early, lt_beam_stop *out, lt_api_error *e) {
    const char *text = json_string_value(early);
    *out = json_is_true(early) ? LT_BEAM_FIRST : text != NULL ? LT_BEAM_NEVER : LT_BEAM_USUAL;
    return early == NULL || json_is_null(early) || json_is_boolean(early) ||
           (text != NULL && strcmp(text, "never") == 0) ||
           lt_api_refuse(e, "early_stopping", "'early_stopping' may be true, false or \"never\"");
}

bool lt_guide_set_beam(lt_reply *j, const char *by, lt_api_error *e) {
    lt_request *r = &j->request;
    const uint64_t seed = r->sampling.seed;
    r->beam.on = true;
    r->beam.length_penalty = j->params.length_penalty;
    if (!no_draws(j, by, e) || !read_early(j->params.early_stopping, &r->beam.stop, e)) {
        return false;
    }
    r->sampling = lt_sampling_defaults();
    r->sampling.seed = seed;
    r->min_tokens = 0;
    return true;
}

bool lt_guide_beam_search(lt_reply *j, lt_api_error *e) {
    const lt_api_params *a = &j->params;
    if (!a->use_beam_search) {
        const bool early = a->early_stopping != NULL && !json_is_false(a->early_stopping);
        if (!early && a->length_penalty == 1) {
            return true;
        }
        const char *const param = early ? "early_stopping" : "length_penalty";
        return lt_api_refuse(e, param, "'%s' has no effect without 'use_beam_search'", param);
    }
    if (a->best_of > a->n) {
        return lt_api_refuse(e, "best_of",
                             "'best_of' cannot be combined with 'use_beam_search': "
                             "'n' is the width, and all its texts are answers");
    }
    return lt_guide_set_beam(j, "use_beam_search", e);
}
