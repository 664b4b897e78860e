/* conversation.c: see conversation.h. */
#include "serve/api/formats/conversation.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/json.h"

#define MAX_MESSAGES 16384
#define MAX_KWARGS   256 /* Templates search their names in this list, so it is limited. */

/* ---- Content ---- */

static bool is_text_type(const char *type) {
    return type != NULL && (strcmp(type, "text") == 0 || strcmp(type, "input_text") == 0 ||
                            strcmp(type, "output_text") == 0 || strcmp(type, "refusal") == 0);
}

const char *lt_content_gap(const char *part_gap, const char *role) {
    return strcmp(role, "assistant") == 0 ? "" : part_gap;
}

json_t *lt_content_text(const json_t *content, const char *gap, const char *where,
                        lt_api_error *e) {
    lt_json_out all = {0};
    json_t *joined = NULL;

    if (lt_json_is_text(content)) {
        return json_incref((json_t *)content);
    }
    if (content == NULL || json_is_null(content)) {
        return json_string("");
    }
    if (!json_is_array(content)) {
        lt_api_refuse(e, where, "'%s' must be a string or a list of parts", where);
        return NULL;
    }
    lt_out_raw(&all, "", 0);
    for (size_t i = 0; i < json_array_size(content); i++) {
        const json_t *part = json_array_get(content, i);
        const char *type = json_string_value(json_object_get(part, "type"));
        const json_t *text = json_object_get(part, "text");
        if (text == NULL) {
            text = json_object_get(part, "refusal");
        }
        if (!is_text_type(type) || !lt_json_is_text(text)) {
            lt_api_refuse(
                e, where,
                is_text_type(type)
                    ? "'%s': a part of type %.40s has no text"
                    : "'%s': a part of type %.40s is not supported: this model reads text",
                where, type != NULL ? type : "?");
            lt_out_free(&all);
            return NULL;
        }
        lt_out_raw(&all, gap, i > 0 ? strlen(gap) : 0);
        lt_out_raw(&all, json_string_value(text), json_string_length(text));
    }
    joined = json_stringn(all.data, all.n);
    if (joined == NULL) {
        lt_api_refuse_oom(e);
    }
    lt_out_free(&all);
    return joined;
}

/* ---- One message, as templates expect it: content a string, the arguments of tool calls objects
 * ---- */

static bool copy_tool_calls(json_t *to, const json_t *calls, const char *where, lt_api_error *e) {
    json_t *list = json_array();
    json_object_set_new(to, "tool_calls", list);
    if (!json_is_array(calls)) {
        return lt_api_refuse(e, where, "'%s.tool_calls' must be a list", where);
    }
    for (size_t i = 0; i < json_array_size(calls); i++) {
        json_t *call = json_deep_copy(json_array_get(calls, i));
        json_t *function = json_object_get(call, "function");
        const json_t *args = json_object_get(function, "arguments");
        json_t *parsed;
        if (!json_is_string(json_object_get(function, "name")) ||
            json_array_append_new(list, call) != 0) {
            json_decref(call);
            return lt_api_refuse(e, where, "'%s.tool_calls[%zu]' has no function with a name",
                                 where, i);
        }
        if (!json_is_string(args)) {
            continue;
        }
        parsed = lt_json_loadb_exact(json_string_value(args), json_string_length(args),
                                     JSON_ALLOW_NUL | JSON_DECODE_ANY, NULL);
        if (parsed != NULL) {
            json_object_set_new(function, "arguments", parsed);
        }
    }
    return true;
}

static bool known_role(const char *role) {
    static const char *const roles[] = {"system",    "developer", "user",
                                        "assistant", "tool",      "function"};
    for (size_t i = 0; role != NULL && i < sizeof roles / sizeof *roles; i++) {
        if (strcmp(role, roles[i]) == 0) {
            return true;
        }
    }
    return false;
}

static bool copy_message(const lt_server *s, json_t *list, const json_t *from, const char *where,
                         bool knows_developer, lt_api_error *e) {
    const char *role = json_string_value(json_object_get(from, "role"));
    const json_t *calls = json_object_get(from, "tool_calls");
    const json_t *said = json_object_get(from, "content");
    json_t *to, *content;

    if (!json_is_object(from)) {
        return lt_api_refuse(e, where, "'%s' must be an object with a role and a content", where);
    }
    if (!known_role(role)) {
        return lt_api_refuse(e, where,
                             "'%s.role' = %.40s; it may be system, developer, user, "
                             "assistant or tool",
                             where, role != NULL ? role : "?");
    }
    if ((said == NULL || json_is_null(said)) && strcmp(role, "assistant") != 0) {
        return lt_api_refuse(e, where, "'%s' has no content", where);
    }
    if (json_is_object(json_object_get(from, "audio")) ||
        json_is_object(json_object_get(from, "function_call"))) {
        return lt_api_refuse(e, where, "'%s': audio and function_call are not supported", where);
    }
    content = lt_content_text(said, lt_content_gap(s->part_gap, role), where, e);
    if (content == NULL) {
        return false;
    }
    to = json_copy((json_t *)from);
    if (to == NULL || json_array_append_new(list, to) != 0) {
        json_decref(content);
        return lt_api_refuse_oom(e);
    }
    json_object_set_new(to, "content", content);
    if (strcmp(role, "developer") == 0 && !knows_developer) {
        json_object_set_new(to, "role", json_string("system"));
    }
    if (json_is_null(calls) || (json_is_array(calls) && json_array_size(calls) == 0)) {
        json_object_del(to, "tool_calls");
        return true;
    }
    return calls == NULL || copy_tool_calls(to, calls, where, e);
}

static json_t *copy_messages(const lt_server *s, const json_t *messages, lt_api_error *e) {
    json_t *list = json_array();
    const bool developer = strstr(lt_chat_template_text(s->template), "developer") != NULL;

    if (!json_is_array(messages) || json_array_size(messages) == 0 ||
        json_array_size(messages) > MAX_MESSAGES) {
        lt_api_refuse(e, "messages", "'messages' must be a list of 1 to %d messages", MAX_MESSAGES);
        json_decref(list);
        return NULL;
    }
    for (size_t i = 0; i < json_array_size(messages); i++) {
        char where[48];
        snprintf(where, sizeof where, "messages[%zu]", i);
        if (!copy_message(s, list, json_array_get(messages, i), where, developer, e)) {
            json_decref(list);
            return NULL;
        }
    }
    return list;
}

/* ---- The context of the template ---- */

/* Templates turn it into words, so a value with which no model was trained is an error. */
static bool check_effort(const char *effort, lt_api_error *e) {
    static const char *const known[] = {"none", "minimal", "low", "medium", "high", "xhigh", "max"};
    for (size_t i = 0; effort != NULL && i < sizeof known / sizeof *known; i++) {
        if (strcmp(effort, known[i]) == 0) {
            return true;
        }
    }
    return effort == NULL ||
           lt_api_refuse(e, "reasoning_effort",
                         "the reasoning effort = %.40s; it may be none, minimal, low, medium, "
                         "high, xhigh or max",
                         effort);
}

static bool check_verbosity(const char *verbosity, lt_api_error *e) {
    return verbosity == NULL || strcmp(verbosity, "low") == 0 || strcmp(verbosity, "medium") == 0 ||
           strcmp(verbosity, "high") == 0 ||
           lt_api_refuse(e, "verbosity", "'verbosity' = %.40s; it may be low, medium or high",
                         verbosity);
}

json_t *lt_conversation_context(const lt_server *s, const lt_conversation *c, lt_api_error *e) {
    json_t *messages = check_effort(c->reasoning_effort, e) && check_verbosity(c->verbosity, e)
                           ? copy_messages(s, c->messages, e)
                           : NULL;
    static const char *const ours[] = {"messages", "tools", "add_generation_prompt"};
    json_t *context;

    if (messages == NULL) {
        return NULL;
    }
    context = json_object();
    json_object_set_new(context, "messages", messages);
    if (strstr(lt_chat_template_text(s->template), "tool") == NULL) {
        lt_conversation_teach(messages, c->tools);
    } else if (json_is_array(c->tools) && json_array_size(c->tools) > 0) {
        json_object_set(context, "tools", (json_t *)c->tools);
    }
    if (c->verbosity != NULL) {
        json_object_set_new(context, "verbosity", json_string(c->verbosity));
        if (strstr(lt_chat_template_text(s->template), "verbosity") == NULL) {
            lt_conversation_steer(messages, c->verbosity);
        }
    }
    if (c->reasoning_effort != NULL) {
        json_object_set_new(context, "reasoning_effort", json_string(c->reasoning_effort));
        json_object_set_new(context, "enable_thinking",
                            json_boolean(strcmp(c->reasoning_effort, "none") != 0));
    }
    if (c->enable_thinking != NULL) {
        json_object_set(context, "enable_thinking", (json_t *)(uintptr_t)c->enable_thinking);
    }
    json_object_set_new(context, "add_generation_prompt",
                        json_boolean(c->add_generation_prompt && !c->continue_final));
    if (c->kwargs != NULL && !json_is_object(c->kwargs)) {
        json_decref(context);
        lt_api_refuse(e, "chat_template_kwargs", "'chat_template_kwargs' must be an object");
        return NULL;
    }
    if (json_object_size(c->kwargs) > MAX_KWARGS) {
        json_decref(context);
        lt_api_refuse(e, "chat_template_kwargs",
                      "'chat_template_kwargs' holds %zu names; %d are allowed",
                      json_object_size(c->kwargs), MAX_KWARGS);
        return NULL;
    }
    for (size_t i = 0; i < sizeof ours / sizeof *ours; i++) {
        if (json_object_get(c->kwargs, ours[i]) != NULL) {
            json_decref(context);
            lt_api_refuse(e, "chat_template_kwargs",
                          "'chat_template_kwargs.%s' must be given as the field '%s'", ours[i],
                          ours[i]);
            return NULL;
        }
    }
    json_object_update(context, (json_t *)c->kwargs);
    return context;
}

/* Cut the text after the last message's content, because the template's text there would end the
 * message: as transformers, after its last occurrence, since templates may trim white space. White
 * space at the content's end stays where the template keeps it. */
static bool cut_final(const json_t *context, char *text, size_t *n, lt_api_error *e) {
    static const char blank[] = " \n\r\t";
    const json_t *messages = json_object_get(context, "messages");
    const json_t *last = json_array_get(messages, json_array_size(messages) - 1);
    const char *content = json_string_value(json_object_get(last, "content"));
    size_t whole, width;

    content = content != NULL ? content : "";
    content += strspn(content, blank);
    whole = width = strlen(content);
    while (width > 0 && strchr(blank, content[width - 1]) != NULL) {
        width--;
    }
    if (width == 0) {
        return true;
    }
    for (size_t at = *n; at-- > 0;) {
        if (*n - at >= width && memcmp(text + at, content, width) == 0) {
            const bool kept = *n - at >= whole && memcmp(text + at, content, whole) == 0;
            *n = at + (kept ? whole : width);
            text[*n] = '\0';
            return true;
        }
    }
    return lt_api_refuse(
        e, "messages",
        "the last message cannot be continued: the chat template changes its content");
}

bool lt_conversation_text(const lt_server *s, const lt_conversation *c, char **text, size_t *n,
                          lt_api_error *e) {
    json_t *context = lt_conversation_context(s, c, e);
    lt_err err;
    bool ok;

    if (context == NULL) {
        return false;
    }
    err = lt_chat_template_render(s->template, context, text, n);
    ok = err == LT_OK;
    if (!ok) {
        lt_api_refuse_error(e, "messages", err);
        e->status = 400; /* An error of the template, or a conversation beyond its limits. */
        e->type = "invalid_request_error";
        e->retry_after_s = 0;
    } else if (c->continue_final && !cut_final(context, *text, n, e)) {
        free(*text);
        *text = NULL;
        ok = false;
    }
    json_decref(context);
    return ok;
}

bool lt_conversation_ids(lt_server *s, const lt_conversation *c, lt_ids *out, bool *opened,
                         lt_api_error *e) {
    char *text = NULL;
    size_t n = 0;
    lt_ids body = {0};
    bool ok;

    if (!lt_conversation_text(s, c, &text, &n, e)) {
        return false;
    }
    if (opened != NULL) {
        *opened = lt_parse_prompt_thinks(&s->marks, text, n);
    }
    ok = (opened == NULL || lt_server_may_fit(s, n, "messages", e)) &&
         lt_server_encode(s, text, n, LT_ENCODE_PARSE_SPECIAL, &body, e);
    free(text);
    if (ok && lt_chat_ids_begin(&body, &s->vocabulary) != LT_OK) {
        ok = lt_api_refuse_oom(e);
    }
    if (!ok) {
        lt_ids_free(&body);
        return false;
    }
    *out = body;
    return true;
}

lt_conversation lt_conversation_of(const lt_api_params *a) {
    return (lt_conversation){.messages = a->messages,
                             .tools = a->tools, /* There are none if tool_choice is none. */
                             .kwargs = a->template_kwargs,
                             .reasoning_effort = a->reasoning_effort,
                             .verbosity = a->verbosity,
                             .enable_thinking = a->enable_thinking,
                             .add_generation_prompt = a->add_generation_prompt,
                             .continue_final = a->continue_final};
}
