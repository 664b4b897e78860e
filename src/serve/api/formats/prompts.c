/* prompts.c: see prompts.h. */
#include "serve/api/formats/prompts.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/json.h"

#define MAX_IDS (1 << 24)

static bool put_id(lt_server *s, const json_t *value, lt_ids *out, const char *param,
                   lt_api_error *e) {
    const json_int_t id = json_integer_value(value);
    const int64_t n = lt_model_get_spec(s->model)->vocab_size;

    if (!json_is_integer(value)) {
        return lt_api_refuse(e, param, "'%s' mixes texts, ids and other things", param);
    }
    if (id < 0 || id >= n) {
        return lt_api_refuse(e, param, "'%s': %lld is not in the vocabulary of %lld tokens", param,
                             (long long)id, (long long)n);
    }
    if (out->n == out->room) {
        const size_t room = out->room > 0 ? 2 * out->room : 64;
        uint32_t *grown = room <= MAX_IDS ? realloc(out->data, room * sizeof *grown) : NULL;
        if (grown == NULL) {
            return lt_api_refuse(e, param, "'%s' has more ids than this server takes", param);
        }
        out->data = grown;
        out->room = room;
    }
    out->data[out->n++] = (uint32_t)id;
    return true;
}

bool lt_prompts_mixed(lt_server *s, const json_t *value, const char *param, bool add_special,
                      bool parse_special, lt_ids *out, lt_api_error *e) {
    const unsigned parse = parse_special ? LT_ENCODE_PARSE_SPECIAL : 0;
    bool first = true;

    if (lt_json_is_text(value)) {
        return lt_server_encode(s, json_string_value(value), json_string_length(value),
                                parse | (add_special ? LT_ENCODE_ADD_SPECIAL : 0), out, e);
    }
    if (json_is_object(value) && json_is_string(json_object_get(value, "prompt_string"))) {
        if (json_object_get(value, "multimodal_data") != NULL) {
            return lt_api_refuse(e, param,
                                 "'multimodal_data' is not supported: this model reads text");
        }
        return lt_prompts_mixed(s, json_object_get(value, "prompt_string"), param, add_special,
                                parse_special, out, e);
    }
    if (!json_is_array(value)) {
        return lt_api_refuse(e, param, "'%s' must be a string, or a list of strings and ids",
                             param);
    }
    for (size_t i = 0; i < json_array_size(value); i++) {
        const json_t *one = json_array_get(value, i);
        const unsigned flags = parse | (add_special && first ? LT_ENCODE_ADD_SPECIAL : 0);
        if (lt_json_is_text(one) ? !lt_server_encode(s, json_string_value(one),
                                                     json_string_length(one), flags, out, e)
                                 : !put_id(s, one, out, param, e)) {
            return false;
        }
        first = false;
    }
    return true;
}

static bool add_text(lt_reply *j, const json_t *text, const char *param, lt_api_error *e) {
    lt_ids ids = {0};
    if (j->params.truncate_prompt < -1 &&
        !lt_server_may_fit(j->model, json_string_length(text), param, e)) {
        return false;
    }
    if (!lt_server_encode(j->model, json_string_value(text), json_string_length(text),
                          j->params.add_special ? LT_ENCODE_DEFAULT : LT_ENCODE_PARSE_SPECIAL, &ids,
                          e)) {
        lt_ids_free(&ids);
        return false;
    }
    if (!lt_reply_add(j, &ids, e)) {
        snprintf(e->param, sizeof e->param, "%s", param);
        return false;
    }
    return true;
}

static bool add_ids(lt_reply *j, const json_t *list, const char *param, lt_api_error *e) {
    lt_ids ids = {0};
    for (size_t i = 0; i < json_array_size(list); i++) {
        if (!put_id(j->model, json_array_get(list, i), &ids, param, e)) {
            lt_ids_free(&ids);
            return false;
        }
    }
    if (!lt_reply_add(j, &ids, e)) {
        snprintf(e->param, sizeof e->param, "%s", param);
        return false;
    }
    return true;
}

static bool add_begin(lt_reply *j, const char *param, lt_api_error *e) {
    const lt_tokenizer_info *v = &j->model->vocabulary;
    const uint32_t id = v->bos != LT_TOKEN_NONE ? v->bos : v->eos;
    json_t *list;
    bool ok;
    if (id == LT_TOKEN_NONE) {
        return lt_api_refuse(e, param, "'%s' is missing", param);
    }
    list = json_pack("[i]", (int)id);
    ok = list != NULL && add_ids(j, list, param, e);
    json_decref(list);
    return ok;
}

bool lt_prompts_add(lt_reply *j, const json_t *value, const char *param, lt_api_error *e) {
    const json_t *first = json_array_get(value, 0);

    if (value == NULL) {
        return add_begin(j, param, e);
    }
    if (lt_json_is_text(value)) {
        return add_text(j, value, param, e);
    }
    if (first == NULL) {
        return lt_api_refuse(e, param, "'%s' must be a string, or a list of strings or of ids",
                             param);
    }
    if (json_is_integer(first)) {
        return add_ids(j, value, param, e);
    }
    for (size_t i = 0; i < json_array_size(value); i++) {
        const json_t *one = json_array_get(value, i);
        if (lt_json_is_text(one) ? !add_text(j, one, param, e)
            : json_is_array(one)
                ? !add_ids(j, one, param, e)
                : !lt_api_refuse(e, param, "'%s' mixes texts, ids and other things", param)) {
            return false;
        }
    }
    return true;
}
