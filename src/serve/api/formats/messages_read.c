/* messages_read.c: see messages.h: the conversation of a /v1/messages request, before it becomes
 * chat messages: a thread's earlier turns, signed thinking, edits of the context. */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/json.h"
#include "serve/api/formats/messages.h"

static const char *str(const json_t *object, const char *key) {
    const char *text = json_string_value(json_object_get(object, key));
    return text != NULL ? text : "";
}

/* ---- Threads ---- */

/* The client reads the error's code, and may retry without the thread. */
static bool refuse_thread(lt_api_error *e, int status, const char *detail, const char *message) {
    lt_api_refuse(e, "thread", "%s", message);
    e->status = status;
    e->detail = detail;
    return false;
}

/* Add the messages of all turns, oldest first, each followed by its answer; system and tools are
 * those of the first turn. */
static bool add_turns(lt_api_params *a, json_t *all, const lt_stored *last, lt_api_error *e) {
    size_t n = 0;
    const lt_stored **turns = lt_stored_line(last, &n);

    if (turns == NULL) {
        return lt_api_refuse_oom(e);
    }
    for (size_t i = 0; i < n; i++) {
        size_t bytes;
        const char *text = lt_stored_text(turns[i], &bytes);
        json_t *turn = lt_json_loadb_exact(text, bytes, JSON_ALLOW_NUL, NULL);
        json_array_extend(all, json_object_get(turn, "messages"));
        json_array_append_new(all, json_pack("{s:s, s:O}", "role", "assistant", "content",
                                             json_object_get(turn, "content")));
        if (i == 0 && !json_is_null(json_object_get(turn, "system"))) {
            a->system = json_object_get(turn, "system");
            json_object_set(a->root, "thread_system", (json_t *)(uintptr_t)a->system);
        }
        if (i == 0 && !json_is_null(json_object_get(turn, "tools"))) {
            a->tools = json_object_get(turn, "tools");
            json_object_set(a->root, "thread_tools", (json_t *)(uintptr_t)a->tools);
        }
        json_decref(turn);
    }
    free(turns);
    return true;
}

static bool go_on(lt_api_params *a, const lt_call *call, lt_messages *st, lt_api_error *e) {
    const char *id = str(a->thread, "previous_message_id");
    json_t *all = json_array();

    json_object_set_new(a->root, "thread_messages", all);
    if (a->system != NULL || a->tools != NULL) {
        return lt_api_refuse(e, a->system != NULL ? "system" : "tools",
                             "'%s' cannot change: a thread keeps those with which it was created",
                             a->system != NULL ? "system" : "tools");
    }
    if (strncmp(id, "msg_", 4) == 0 && strlen(id) < 64) {
        st->previous = lt_store_hold(call->server->store, id, call->owner, lt_clock_s());
    }
    if (st->previous == NULL) {
        return refuse_thread(e, 404, "thread_not_found",
                             "thread: no state was found for previous_message_id; send the whole "
                             "conversation with thread {type: create}");
    }
    if (!add_turns(a, all, st->previous, e)) {
        return false;
    }
    json_array_extend(all, (json_t *)(uintptr_t)a->messages);
    a->messages = all;
    return true;
}

bool lt_messages_thread(lt_api_params *a, const lt_call *call, lt_messages *st, lt_api_error *e) {
    const char *type = str(a->thread, "type");
    const bool more = strcmp(type, "continue") == 0;

    st->own = a->messages;
    if (a->thread == NULL) {
        return true;
    }
    if (!more && strcmp(type, "create") != 0) {
        return lt_api_refuse(e, "thread",
                             "'thread' must be {type: create} or {type: continue, "
                             "previous_message_id}");
    }
    if (call->server->o.store.max_entries == 0) {
        return refuse_thread(e, 400, "thread_unsupported_request",
                             "thread: this server stores nothing (--store-entries 0)");
    }
    if (more && !json_is_array(a->messages)) {
        return lt_api_refuse(e, "messages", "'messages' must be a list of messages");
    }
    st->keep = true;
    return !more || go_on(a, call, st, e);
}

/* ---- Thinking ---- */

static bool is_thinking(const json_t *block) {
    return strcmp(str(block, "type"), "thinking") == 0 ||
           strcmp(str(block, "type"), "redacted_thinking") == 0;
}

static bool thinks(const json_t *message) {
    size_t i;
    json_t *block;
    json_array_foreach(json_object_get(message, "content"), i, block) {
        if (is_thinking(block)) {
            return true;
        }
    }
    return false;
}

/* The block with the text from its signature, or an unsigned block unchanged; NULL: another's
 * signature. A new reference. */
static json_t *opened(const lt_seal_key *key, json_t *block) {
    const json_t *sealed = json_object_get(block, "signature");
    size_t n = 0;
    char *text;
    json_t *own;

    if (json_string_length(sealed) == 0) {
        return strcmp(str(block, "type"), "thinking") == 0 ? json_incref(block) : NULL;
    }
    text = lt_unseal(key, json_string_value(sealed), json_string_length(sealed), &n);
    if (text == NULL) {
        return NULL;
    }
    own = json_copy(block);
    json_object_set_new(own, "thinking", json_stringn(text, n));
    free(text);
    return own;
}

/* A copy of the message with its thinking decrypted, or, if key is NULL, removed. */
static json_t *rethought(const lt_seal_key *key, json_t *message) {
    json_t *own = json_copy(message), *blocks = json_array(), *block;
    size_t i;
    json_array_foreach(json_object_get(message, "content"), i, block) {
        json_t *kept = !is_thinking(block) ? json_incref(block)
                       : key != NULL       ? opened(key, block)
                                           : NULL;
        if (kept != NULL) {
            json_array_append_new(blocks, kept);
        }
    }
    json_object_set_new(own, "content", blocks);
    return own;
}

bool lt_messages_open_thinking(lt_api_params *a, const lt_call *call, lt_api_error *e) {
    json_t *all, *message;
    lt_seal_key key;
    size_t i;

    if (!json_is_array(a->messages)) {
        return true; /* The conversion refuses them. */
    }
    if (!lt_server_seal_key(call->server, call->owner, &key)) {
        return lt_api_refuse_oom(e);
    }
    all = json_array();
    json_array_foreach((json_t *)(uintptr_t)a->messages, i, message) {
        json_array_append_new(all,
                              thinks(message) ? rethought(&key, message) : json_incref(message));
    }
    json_object_set_new(a->root, "opened_messages", all);
    a->messages = all;
    return true;
}

/* ---- Edits of the context ---- */

/* Number of turns whose thinking is kept; below 0: all. */
static bool read_keep(const json_t *edit, int64_t *keep, lt_api_error *e) {
    const json_t *value = json_object_get(edit, "keep");
    const char *word = json_is_string(value) ? json_string_value(value) : str(value, "type");
    const json_t *turns = json_object_get(value, "value");
    *keep = -1;
    if (value == NULL || json_is_null(value)) {
        *keep = 1; /* Anthropic's default. */
        return true;
    }
    if (strcmp(word, "all") == 0) {
        return true;
    }
    if (strcmp(word, "thinking_turns") == 0 && json_is_integer(turns) &&
        json_integer_value(turns) > 0) {
        *keep = json_integer_value(turns);
        return true;
    }
    return lt_api_refuse(e, "context_management",
                         "'context_management': keep must be all or {type: thinking_turns, value: "
                         "N}");
}

static void clear_thinking(lt_api_params *a, lt_messages *st, int64_t keep) {
    const size_t n = json_array_size(a->messages);
    json_t *all = json_copy((json_t *)(uintptr_t)a->messages);
    for (size_t i = n; i-- > 0;) {
        json_t *message = json_array_get(all, i);
        if (thinks(message) && keep-- <= 0) {
            json_array_set_new(all, i, rethought(NULL, message));
            st->cleared_turns++;
        }
    }
    json_object_set_new(a->root, "edited_messages", all);
    a->messages = all;
}

bool lt_messages_edit(lt_api_params *a, lt_messages *st, lt_api_error *e) {
    const json_t *edits = json_object_get(a->context_management, "edits");
    json_t *edit;
    size_t i;

    if (a->context_management == NULL) {
        return true;
    }
    if (!json_is_object(a->context_management) ||
        (edits != NULL && !json_is_null(edits) && !json_is_array(edits))) {
        return lt_api_refuse(e, "context_management",
                             "'context_management' must be an object with a list of edits");
    }
    st->edits = true;
    json_array_foreach((json_t *)(uintptr_t)edits, i, edit) {
        int64_t keep;
        if (strcmp(str(edit, "type"), "clear_thinking_20251015") != 0) {
            return lt_api_refuse(e, "context_management",
                                 "'context_management': an edit of type %.60s is not supported "
                                 "here; it may be clear_thinking_20251015",
                                 str(edit, "type"));
        }
        if (!read_keep(edit, &keep, e)) {
            return false;
        }
        if (keep >= 0) {
            clear_thinking(a, st, keep);
        }
    }
    return true;
}
