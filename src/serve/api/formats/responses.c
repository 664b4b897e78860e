/* responses.c: /v1/responses: OpenAI's newer API. The request's items, after those of the
 * response that it continues, become chat messages; responses_format.c formats the answer.
 *
 * Reasoning of earlier turns is passed back to the model: a reasoning item's sealed text, else its
 * content, else its summary becomes the reasoning_content of the assistant's message after it, and
 * the template decides what of it the model reads again. */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/json.h"
#include "serve/api/formats/conversation.h"
#include "serve/api/formats/responses.h"
#include "serve/api/route.h"
#include "serve/api/formats/tools_convert.h"

#define MAX_REFERENCES 256 /* Limited because each is searched in all stored responses. */

static const lt_field fields[] = {
    LT_JSON("input", input),
    LT_STR("instructions", instructions),
    LT_STR("model", model),
    LT_BOOL("stream", stream),
    LT_JSON("stream_options", stream_options),
    LT_I64("max_output_tokens", max_tokens, 1, 1e12),
    LT_JSON("tools", tools),
    LT_JSON("tool_choice", tool_choice),
    LT_BOOL("parallel_tool_calls", parallel_tools),
    LT_JSON("text", text),
    LT_JSON("reasoning", reasoning),
    LT_JSON("include", include),
    LT_I64("top_logprobs", top_logprobs, 0, LT_ENGINE_TOP),
    LT_STR("previous_response_id", previous_id),
    LT_JSON("store", store),
    LT_STR("truncation", truncation),
    LT_I64("max_tool_calls", max_tool_calls, 1, 1e9),
    LT_REFUSED("conversation", "conversations are not stored; continue by previous_response_id"),
    LT_REFUSED("prompt", "there are no stored prompts"),
    LT_ONLY("context_management", "[]"),
    LT_REFUSED("access_programs", "there are none"),
    LT_REFUSED("image", "this model writes text"),
    LT_REFUSED("background_options", "responses do not run in the background"),
    LT_JSON("alignment", alignment),
    LT_REFUSED("max_tokens", "use max_output_tokens"),
    LT_REFUSED("max_completion_tokens", "use max_output_tokens"),
    LT_ONLY("background", "false"),
    LT_REFUSED("moderation", "there is no moderation"),
    LT_JSON("metadata", metadata),
    LT_NOTHING("user"),
    LT_NOTHING("service_tier"),
    LT_NOTHING("prompt_cache_key"),
    LT_NOTHING("prompt_cache_options"),
    LT_STR("prompt_cache_retention", cache_retention),
    LT_NOTHING("safety_identifier"),
    LT_JSON("chat_template_kwargs", template_kwargs),
    LT_ONLY("add_special_tokens", "false"),
    LT_REFUSED("return_token_ids", "items have no place for ids"),
    LT_REFUSED("return_tokens", "items have no place for ids"),
    LT_I64("thinking_budget", thinking_budget, -1, 1e9),
    LT_FIELDS_SAMPLING};
const lt_field_table lt_fields_responses = LT_FIELD_TABLE(fields, "input");

/* ---- Nested objects ---- */

static bool one_of(const char *value, const char *const *known, const char *param,
                   lt_api_error *e) {
    char all[200] = "";
    for (const char *const *p = known; value != NULL && *p != NULL; p++) {
        if (strcmp(value, *p) == 0) {
            return true;
        }
        snprintf(all + strlen(all), sizeof all - strlen(all), "%s%s", p != known ? ", " : "", *p);
    }
    return value == NULL ||
           lt_api_refuse(e, param, "'%s' = %.40s; it may be %s", param, value, all);
}

/* OpenAI's members of "reasoning" go to *own. If there is a `control`, all others belong to
 * control.h. */
static bool split_reasoning(lt_api_params *a, const json_t **own, lt_api_error *e) {
    static const char *const members[] = {"effort",  "summary", "generate_summary",
                                          "context", "mode",    NULL};
    const json_t *control = json_object_get(a->reasoning, "control");
    json_t *openai, *others;
    *own = a->reasoning;
    a->reasoning = NULL;
    if (control == NULL || json_is_null(control)) {
        return true;
    }
    openai = json_object();
    others = json_copy((json_t *)(uintptr_t)*own);
    for (const char *const *name = members; *name != NULL; name++) {
        json_t *value = json_object_get(others, *name);
        if (value != NULL) {
            json_object_set(openai, *name, value);
            json_object_del(others, *name);
        }
    }
    *own = openai;
    a->reasoning = others;
    return (json_object_set_new(a->root, "reasoning_own", openai) == 0 &&
            json_object_set_new(a->root, "reasoning_control", others) == 0) ||
           lt_api_refuse_oom(e);
}

/* {format: {type, schema, ...}, verbosity}; {effort, summary}; of a stream. */
static bool read_nested(lt_api_params *a, lt_api_error *e) {
    static const lt_field text[] = {LT_JSON("format", response_format),
                                    LT_STR("verbosity", verbosity)};
    static const lt_field stream[] = {LT_ONLY("include_obfuscation", "false")};
    static const lt_field reasoning[] = {
        LT_STR("effort", reasoning_effort),
        LT_STR("summary", summary),
        LT_STR("generate_summary", summary),
        LT_ONLY("context", "\"auto\""),
        LT_ONLY("mode", "\"standard\""),
        LT_ONLY("control", "null")}; /* With another value: see split_reasoning. */
    static const char *const summaries[] = {"auto", "concise", "detailed", NULL};
    static const char *const verbosities[] = {"low", "medium", "high", NULL};
    static const char *const truncations[] = {"auto", "disabled", NULL};
    const json_t *own = NULL;
    if (a->text != NULL && !json_is_object(a->text)) {
        return lt_api_refuse(e, "text", "'text' must be an object");
    }
    if (a->reasoning != NULL && !json_is_object(a->reasoning)) {
        return lt_api_refuse(e, "reasoning", "'reasoning' must be an object");
    }
    if (a->stream_options != NULL && (!a->stream || !json_is_object(a->stream_options))) {
        return lt_api_refuse(e, "stream_options",
                             "'stream_options' must be an object, and needs 'stream': true");
    }
    a->format_name = "text.format";
    return split_reasoning(a, &own, e) &&
           lt_api_params_object(a, a->text, text, sizeof text / sizeof *text, "text.", e) &&
           lt_api_params_object(a, a->stream_options, stream, 1, "stream_options.", e) &&
           lt_api_params_object(a, own, reasoning, sizeof reasoning / sizeof *reasoning,
                                "reasoning.", e) &&
           one_of(a->verbosity, verbosities, "text.verbosity", e) &&
           one_of(a->summary, summaries, "reasoning.summary", e) &&
           one_of(a->truncation, truncations, "truncation", e);
}

/* A value of `include` that only concerns unsupported items has no effect. */
static bool read_include(const lt_api_params *a, lt_responses *st, lt_api_error *e) {
    static const char *const idle[] = {
        "file_search_call.results",       "web_search_call.results",
        "web_search_call.action.sources", "message.input_image.image_url",
        "code_interpreter_call.outputs",  "computer_call_output.output.image_url",
        "message.output_text.logprobs",   "reasoning.encrypted_content"};
    const json_t *one;
    size_t i;

    st->logprobs = a->top_logprobs >= 0;
    if (a->include != NULL && !json_is_array(a->include)) {
        return lt_api_refuse(e, "include", "'include' must be a list");
    }
    json_array_foreach((json_t *)(uintptr_t)a->include, i, one) {
        const char *what = json_string_value(one);
        bool known = false;
        for (size_t k = 0; what != NULL && k < sizeof idle / sizeof *idle; k++) {
            known |= strcmp(what, idle[k]) == 0;
        }
        if (!known) {
            return lt_api_refuse(e, "include",
                                 "'include': %.60s is not supported here; it may be "
                                 "reasoning.encrypted_content or message.output_text.logprobs",
                                 what != NULL ? what : "?");
        }
        st->logprobs |= strcmp(what, "message.output_text.logprobs") == 0;
        st->sealed |= strcmp(what, "reasoning.encrypted_content") == 0;
    }
    return true;
}

/* ---- Items ---- */

static bool is_type(const json_t *item, const char *type) {
    const char *own = json_string_value(json_object_get(item, "type"));
    return own != NULL && strcmp(own, type) == 0;
}

static const char *id_prefix(const json_t *item) {
    return is_type(item, "reasoning")              ? "rs_"
           : is_type(item, "function_call")        ? "fc_"
           : is_type(item, "function_call_output") ? "fco_"
                                                   : "msg_";
}

/* A new list of the request's input as items with ids, as /input_items shows them. NULL: *e. */
static json_t *own_items(lt_server *s, const json_t *input, lt_api_error *e) {
    json_t *list = json_array(), *item;
    char id[48];
    size_t i;

    if (lt_json_is_text(input)) {
        lt_server_make_id(s, "msg_", id);
        json_array_append_new(list,
                              json_pack("{s:s, s:s, s:s, s:s, s:[{s:s, s:O}]}", "id", id, "type",
                                        "message", "status", "completed", "role", "user", "content",
                                        "type", "input_text", "text", input));
        return list;
    }
    if (!json_is_array(input) || json_array_size(input) == 0) {
        lt_api_refuse(e, "input", "'input' must be a string or a list of items");
        json_decref(list);
        return NULL;
    }
    json_array_foreach((json_t *)(uintptr_t)input, i, item) {
        json_t *own = json_is_object(item) ? json_copy(item) : json_incref(item);
        if (json_is_object(own) && json_object_get(own, "type") == NULL &&
            json_object_get(own, "role") != NULL) {
            json_object_set_new(own, "type", json_string("message"));
        }
        if (json_is_object(own) && !json_is_string(json_object_get(own, "id"))) {
            lt_server_make_id(s, id_prefix(own), id);
            json_object_set_new(own, "id", json_string(id));
        }
        json_array_append_new(list, own);
    }
    return list;
}

/* Add the items of the earlier turns, oldest first. This server wrote the texts, so they can be
 * parsed. */
static bool add_turns(json_t *list, const lt_stored *last, lt_api_error *e) {
    size_t n_turns = 0;
    const lt_stored **turns = lt_stored_line(last, &n_turns);

    if (turns == NULL) {
        return lt_api_refuse_oom(e);
    }
    for (size_t i = 0; i < n_turns; i++) {
        size_t bytes;
        const char *text = lt_stored_text(turns[i], &bytes);
        json_t *turn = lt_json_loadb_exact(text, bytes, JSON_ALLOW_NUL, NULL);
        json_array_extend(list, json_object_get(turn, "input"));
        json_array_extend(list, json_object_get(json_object_get(turn, "response"), "output"));
        json_decref(turn);
    }
    free(turns);
    return true;
}

static json_t *find_id(const json_t *items, const char *id) {
    size_t i;
    json_t *item;
    json_array_foreach((json_t *)(uintptr_t)items, i, item) {
        const char *own = json_string_value(json_object_get(item, "id"));
        if (own != NULL && strcmp(own, id) == 0 && !is_type(item, "item_reference")) {
            return json_incref(item);
        }
    }
    return NULL;
}

/* The item of any stored response, a new reference; NULL: there is none. */
static json_t *find_kept(lt_server *s, const char *owner, const char *id) {
    char words[96];
    lt_stored *entry;
    json_t *turn = NULL, *found = NULL;
    size_t n;

    if (strlen(id) > 64 || strpbrk(id, "\"\\") != NULL) {
        return NULL;
    }
    snprintf(words, sizeof words, "\"id\":\"%s\"", id);
    entry = lt_store_search(s->store, "resp_", words, owner, lt_clock_s());
    if (entry != NULL) {
        const char *text = lt_stored_text(entry, &n);
        turn = lt_json_loadb_exact(text, n, JSON_ALLOW_NUL, NULL);
        found = find_id(json_object_get(json_object_get(turn, "response"), "output"), id);
        found = found != NULL ? found : find_id(json_object_get(turn, "input"), id);
    }
    json_decref(turn);
    lt_store_release(s->store, entry);
    return found;
}

/* Resolve items given by id alone: from the earlier turns, or from any stored response. */
static bool resolve(lt_server *s, const char *owner, json_t *items, lt_api_error *e) {
    int n_looked = 0;
    json_t *item;
    size_t i;

    json_array_foreach(items, i, item) {
        const char *id = json_string_value(json_object_get(item, "id"));
        json_t *found;
        if (!is_type(item, "item_reference")) {
            continue;
        }
        if (++n_looked > MAX_REFERENCES) {
            return lt_api_refuse(e, "input", "more than %d items by reference", MAX_REFERENCES);
        }
        found = id != NULL ? find_id(items, id) : NULL;
        found = found == NULL && id != NULL ? find_kept(s, owner, id) : found;
        if (found == NULL) {
            lt_api_refuse(e, "input", "Item with id '%.80s' not found.", id != NULL ? id : "");
            e->status = 404;
            e->code = "not_found";
            return false;
        }
        json_array_set_new(items, i, found);
    }
    return true;
}

/* A sealed text is the complete reasoning, so it replaces the item's content, of which the client
 * may have only a part. */
static bool unseal(const lt_server *s, const char *owner, json_t *items, lt_api_error *e) {
    lt_seal_key key;
    json_t *item;
    size_t i;

    json_array_foreach(items, i, item) {
        const json_t *sealed = json_object_get(item, "encrypted_content");
        char *text = NULL;
        size_t n = 0;
        if (!is_type(item, "reasoning") || json_string_length(sealed) == 0) {
            continue;
        }
        if (lt_server_seal_key(s, owner, &key)) {
            text = lt_unseal(&key, json_string_value(sealed), json_string_length(sealed), &n);
        }
        if (text == NULL) {
            lt_api_refuse(e, "input",
                          "the encrypted content of item %.60s could not be verified: it was "
                          "changed, or another server or key made it",
                          json_string_value(json_object_get(item, "id")));
            e->code = "invalid_encrypted_content";
            return false;
        }
        item = json_copy(item);
        json_object_set_new(item, "content",
                            json_pack("[{s:s, s:s%}]", "type", "reasoning_text", "text", text, n));
        json_array_set_new(items, i, item);
        free(text);
    }
    return true;
}

static bool read_items(lt_api_params *a, lt_call *call, lt_responses *st, lt_api_error *e) {
    json_t *own, *all = json_array(), *messages = NULL;

    json_object_set_new(a->root, "all_items", all);
    own = own_items(call->server, a->input, e);
    if (own == NULL) {
        return false;
    }
    json_object_set_new(a->root, "own_items", own);
    st->input = own;
    if (a->previous_id != NULL) {
        st->previous = lt_store_hold(call->server->store, a->previous_id, call->owner,
                                     lt_clock_s());
        if (st->previous == NULL) {
            lt_api_refuse(e, "previous_response_id", "Previous response with id '%.80s' not found.",
                          a->previous_id);
            e->code = "previous_response_not_found";
            return false;
        }
    }
    if (add_turns(all, st->previous, e)) {
        json_array_extend(all, own);
        if (resolve(call->server, call->owner, all, e) &&
            unseal(call->server, call->owner, all, e)) {
            messages = lt_convert_responses(call->server->part_gap, a->instructions, all, e);
        }
    }
    if (messages != NULL) {
        json_object_set_new(a->root, "messages", messages);
        a->messages = messages;
    }
    json_object_del(a->root, "all_items");
    return messages != NULL;
}

/* ---- The request ---- */

/* A named tool here is {type: function, name}; in chat {type: function, function: {name}}. */
static void convert_choice(lt_api_params *a) {
    const char *name = json_string_value(json_object_get(a->tool_choice, "name"));
    if (name != NULL) {
        json_t *choice = json_pack("{s:s, s:{s:s}}", "type", "function", "function", "name", name);
        json_object_set_new(a->root, "converted_choice", choice);
        a->tool_choice = choice;
    }
}

/* OpenAI's default is to store. If the server cannot store, only an explicit request to store is
 * refused. */
static bool read_store(const lt_api_params *a, const lt_server *s, lt_responses *st,
                       lt_api_error *e) {
    if (a->store != NULL && !json_is_boolean(a->store)) {
        return lt_api_refuse(e, "store", "'store' must be true or false");
    }
    st->keep = s->o.store.max_entries > 0 && !json_is_false(a->store);
    return st->keep || !json_is_true(a->store) ||
           lt_api_refuse(e, "store", "'store': this server stores nothing (--store-entries 0)");
}

/* st is filled as far as possible, even on failure. */
static bool read_ask(lt_api_params *a, lt_call *call, lt_responses *st, lt_api_error *e) {
    json_t *tools;
    lt_server_ask(call->server, a);
    if (!lt_call_read(call, a, fields, sizeof fields / sizeof *fields, e) || !read_nested(a, e) ||
        !read_include(a, st, e) || !read_store(a, call->server, st, e)) {
        return false;
    }
    if (a->metadata != NULL && !json_is_object(a->metadata)) {
        return lt_api_refuse(e, "metadata", "'metadata' must be an object");
    }
    st->summary = a->summary != NULL;
    if (!read_items(a, call, st, e)) {
        return false;
    }
    tools = lt_convert_responses_tools(a->tools, e);
    if (tools == NULL && e->status != 0) {
        return false;
    }
    if (tools != NULL) {
        json_object_set(a->root, "asked_tools", (json_t *)a->tools);
        json_object_set_new(a->root, "tools", tools);
        a->tools = tools;
    }
    convert_choice(a);
    return true;
}

static bool ids_of(lt_server *s, const lt_api_params *a, lt_ids *ids, bool *opened,
                   lt_api_error *e) {
    const lt_conversation c = lt_conversation_of(a);
    return a->truncation != NULL && strcmp(a->truncation, "auto") == 0
               ? lt_conversation_fit(s, &c, a->max_tokens, ids, opened, e)
               : lt_conversation_ids(s, &c, ids, opened, e);
}

static bool prepare(lt_reply *j, const lt_responses *st, lt_api_error *e) {
    const lt_api_params *a = &j->params;
    const int top = !st->logprobs ? -1 : a->top_logprobs > 0 ? (int)a->top_logprobs : 0;
    lt_ids ids = {0};

    return lt_server_check_model(j->server, a, e) && lt_control_read(j, e) &&
           lt_reply_configure(j, a->max_tokens, top, e) && lt_group_read(j, e) &&
           lt_chat_output_prepare(j, e) && ids_of(j->server, a, &ids, &j->listen.opened, e) &&
           lt_chat_output_add(j, &ids, e);
}

void lt_api_responses(lt_call *call) {
    lt_api_error e = {0};
    lt_api_params a;
    lt_reply *j;
    lt_responses *st = calloc(1, sizeof *st);

    lt_api_params_defaults(&a);
    if (st == NULL ? !lt_api_refuse_oom(&e) : !read_ask(&a, call, st, &e)) {
        lt_call_error(call, &e);
        lt_api_params_free(&a);
        if (st != NULL) {
            lt_store_release(call->server->store, st->previous);
        }
        free(st);
        return;
    }
    j = lt_reply_open(call, &lt_responses_formatter, &a, "resp_");
    if (j == NULL) {
        lt_store_release(call->server->store, st->previous);
        free(st);
        return;
    }
    j->format_state = st;
    if (!prepare(j, st, &e)) {
        lt_reply_refuse(call, j, &e);
        return;
    }
    lt_reply_start(call, j);
}

/* Report the number of tokens in the prompt of a response. */
void lt_api_response_tokens(lt_call *call) {
    lt_api_error e = {0};
    lt_json_out o = {0};
    lt_responses st = {0};
    lt_listen listen = {0};
    lt_ids ids = {0};
    lt_api_params a;

    if (!read_ask(&a, call, &st, &e) || !lt_server_check_model(call->server, &a, &e) ||
        !lt_chat_output_tools(&a, &listen, &e) || !ids_of(call->server, &a, &ids, NULL, &e)) {
        lt_call_error(call, &e);
    } else {
        lt_out_open(&o, '{');
        lt_out_key_str(&o, "object", "response.input_tokens");
        lt_out_key_int(&o, "input_tokens", (int64_t)ids.n);
        lt_out_shut(&o, '}');
        lt_call_json(call, 200, &o);
    }
    lt_store_release(call->server->store, st.previous);
    lt_ids_free(&ids);
    lt_api_params_free(&a);
}
