/* stored_chat.c: GET /v1/chat/completions and /v1/chat/completions/{id}: lists, reads, labels
 * and deletes stored chat completions. Those of another key count as not existing.
 *
 * An entry's text is {"completion": {...}, "metadata": {...}, "messages": [...]}, as chat.c writes
 * it. The parts are copied as text, without a tree, so that a list costs little more than its
 * bytes. */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/json.h"
#include "data/tokenizer/json_pull.h"
#include "serve/api/listing.h"
#include "serve/api/models.h"
#include "serve/api/route.h"
#include "serve/api/stored/stored_chat.h"
#include "serve/api/stored/stored_entry.h"

/* OpenAI's bounds of metadata. */
#define MAX_PAIRS            16
#define MAX_KEY_CHARACTERS   64
#define MAX_VALUE_CHARACTERS 512
/* More than these limits allow with every character escaped. */
#define MAX_UPDATE_BYTES ((size_t)256 << 10)

static const lt_field fields[] = {LT_JSON("metadata", metadata)};
const lt_field_table lt_fields_chat_update = LT_FIELD_TABLE(fields, "metadata");

static const lt_stored_kind completions = {"chatcmpl-", "completion_id", "Chat completion",
                                           "chat.completion.deleted"};

/* ---- Parts of an entry ---- */

typedef struct {
    lt_slice completion, metadata, messages;
} parts;

static lt_err find_parts(const char *text, size_t n, parts *out) {
    lt_err err = LT_OK;
    lt_json_pull j = lt_json_pull_over(text, n, "a stored completion");
    lt_slice key;
    bool more;
    LT_TRY_DONE(lt_json_pull_begin(&j, '{'));
    LT_TRY_DONE(lt_json_pull_key(&j, &key, &more));
    LT_TRY_DONE(lt_json_pull_skip(&j, &out->completion));
    LT_TRY_DONE(lt_json_pull_key(&j, &key, &more));
    LT_TRY_DONE(lt_json_pull_skip(&j, &out->metadata));
    LT_TRY_DONE(lt_json_pull_key(&j, &key, &more));
    LT_TRY_DONE(lt_json_pull_skip(&j, &out->messages));
done:
    lt_json_pull_close(&j);
    return err;
}

/* False: out of memory. */
static bool parts_of(const lt_stored *entry, parts *out) {
    size_t n;
    const char *text = lt_stored_text(entry, &n);
    return find_parts(text, n, out) == LT_OK;
}

static void put_slice(lt_json_out *o, const char *key, lt_slice value) {
    lt_out_key(o, key);
    lt_out_raw(o, value.data, value.n);
    o->comma = true;
}

/* The completion, with its metadata as the last member. */
static void put_completion(lt_json_out *o, const lt_stored *entry) {
    parts p;
    if (!parts_of(entry, &p)) {
        o->failed = true;
        return;
    }
    lt_out_open(o, '{');
    lt_out_raw(o, p.completion.data + 1, p.completion.n - 2);
    o->comma = true;
    put_slice(o, "metadata", p.metadata);
    lt_out_shut(o, '}');
}

/* ---- Metadata ---- */

static size_t characters(const char *text) {
    size_t n = 0;
    for (; *text != '\0'; text++) {
        n += ((unsigned char)*text & 0xC0) != 0x80;
    }
    return n;
}

bool lt_metadata_check(const json_t *metadata, lt_api_error *e) {
    const char *key;
    json_t *value;
    if (!json_is_object(metadata)) {
        return lt_api_refuse(e, "metadata", "'metadata' must be an object");
    }
    if (json_object_size(metadata) > MAX_PAIRS) {
        return lt_api_refuse(e, "metadata", "'metadata' has %zu members; at most %d are kept",
                             json_object_size(metadata), MAX_PAIRS);
    }
    json_object_foreach((json_t *)(uintptr_t)metadata, key, value) {
        if (!json_is_string(value) || characters(key) > MAX_KEY_CHARACTERS ||
            characters(json_string_value(value)) > MAX_VALUE_CHARACTERS) {
            return lt_api_refuse(e, "metadata",
                                 "'metadata': '%.64s' must be a string of at most %d characters, "
                                 "and its name one of at most %d",
                                 key, MAX_VALUE_CHARACTERS, MAX_KEY_CHARACTERS);
        }
    }
    return true;
}

bool lt_metadata_fits(const json_t *metadata, const char *query) {
    static const char prefix[] = "metadata[";
    lt_query_pair pair;
    bool same = true;

    while (same && lt_query_next(&query, &pair)) {
        const size_t n = strlen(pair.name);
        const char *value;
        if (strncmp(pair.name, prefix, sizeof prefix - 1) != 0 || pair.name[n - 1] != ']') {
            continue;
        }
        pair.name[n - 1] = '\0';
        value = json_string_value(json_object_get(metadata, pair.name + sizeof prefix - 1));
        same = !pair.cut && value != NULL && strcmp(value, pair.value) == 0;
    }
    return same;
}

static bool has_metadata(const lt_stored *entry, const char *query) {
    json_t *metadata = NULL;
    parts p;
    bool same;
    /* True for most lists: then the entry need not be parsed. */
    if (strstr(query, "metadata") == NULL) {
        return true;
    }
    metadata = parts_of(entry, &p) ? lt_json_loadb_exact(p.metadata.data, p.metadata.n, 0, NULL)
                                   : NULL;
    same = lt_metadata_fits(metadata, query);
    json_decref(metadata);
    return same;
}

/* ---- Lists ---- */

static const char *entry_id(const void *items, size_t i) {
    return lt_stored_id(((lt_stored *const *)items)[i]);
}

static void entry_write(lt_json_out *o, const void *items, size_t i) {
    put_completion(o, ((lt_stored *const *)items)[i]);
}

/* Whether the model of this name wrote the completion. With one model it wrote all. */
static bool is_by(const lt_server *s, const lt_stored *entry, const char *model) {
    json_t *completion;
    parts p;
    bool is;
    if (s->models == NULL) {
        return lt_server_answers_to(s, model);
    }
    completion = parts_of(entry, &p)
                     ? lt_json_loadb_exact(p.completion.data, p.completion.n, 0, NULL)
                     : NULL;
    const char *by = json_string_value(json_object_get(completion, "model"));
    const lt_model_slot *slot = lt_models_find(s->models, model);
    is = by != NULL && slot != NULL && strcmp(by, slot->server->name) == 0;
    json_decref(completion);
    return is;
}

/* OpenAI's filters: model and metadata. */
void lt_api_chat_list(lt_call *call) {
    const char *query = call->request->query;
    lt_store *store = call->server->store;
    lt_api_error e = {0};
    lt_stored **found;
    char model[256];
    size_t n, kept = 0;
    lt_page p;

    if (!lt_page_read(query, true, &p, &e)) {
        lt_call_error(call, &e);
        return;
    }
    found = lt_store_list(store, completions.prefix, call->owner, lt_clock_s(), &n);
    const bool by_model = lt_query_value(query, "model", model, sizeof model);
    for (size_t i = 0; i < n; i++) {
        if (has_metadata(found[i], query) && (!by_model || is_by(call->server, found[i], model))) {
            found[kept++] = found[i];
        } else {
            lt_store_release(store, found[i]);
        }
    }
    lt_page_answer(call, &(lt_listing){kept, found, entry_id, entry_write}, &p);
    for (size_t i = 0; i < kept; i++) {
        lt_store_release(store, found[i]);
    }
    free(found);
}

static const char *message_id(const void *items, size_t i) {
    return json_string_value(json_object_get(json_array_get(items, i), "id"));
}

static void message_write(lt_json_out *o, const void *items, size_t i) {
    lt_out_value(o, json_array_get(items, i));
}

/* Join the texts of a message's parts, and keep the parts, too. */
static bool spread_parts(json_t *message) {
    json_t *content = json_object_get(message, "content"), *part;
    lt_json_out text = {0};
    size_t i;
    bool ok;

    if (!json_is_array(content)) {
        return json_object_set_new(message, "content_parts", json_null()) == 0;
    }
    json_array_foreach(content, i, part) {
        const json_t *said = json_object_get(part, "text");
        lt_out_raw(&text, json_is_string(said) ? json_string_value(said) : "",
                   json_string_length(said));
    }
    ok = !text.failed && json_object_set(message, "content_parts", content) == 0 &&
         json_object_set_new(message, "content",
                             json_stringn(text.data != NULL ? text.data : "", text.n)) == 0;
    lt_out_free(&text);
    return ok;
}

/* List the messages that the completion answered, each with an id. */
static void list_messages(lt_call *call, const lt_stored *entry) {
    lt_api_error e = {0};
    json_t *messages = NULL, *message;
    bool named = true;
    size_t i;
    parts part;
    lt_page p;

    if (!lt_page_read(call->request->query, true, &p, &e)) {
        lt_call_error(call, &e);
        return;
    }
    if (parts_of(entry, &part)) {
        messages = lt_json_loadb_exact(part.messages.data, part.messages.n, JSON_ALLOW_NUL, NULL);
    }
    json_array_foreach(messages, i, message) {
        char id[96];
        snprintf(id, sizeof id, "%s-%zu", lt_stored_id(entry), i);
        named = named && json_object_set_new(message, "id", json_string(id)) == 0 &&
                spread_parts(message);
    }
    lt_page_answer(call,
                   &(lt_listing){json_array_size(messages), named ? messages : NULL, message_id,
                                 message_write},
                   &p);
    json_decref(messages);
}

/* ---- One completion ---- */

void lt_api_chat_get(lt_call *call) {
    const char *rest;
    lt_stored *entry = lt_stored_find(call, &completions, &rest);
    lt_json_out o = {0};

    if (entry == NULL) {
        return;
    }
    if (strcmp(rest, "/messages") == 0) {
        list_messages(call, entry);
    } else if (rest[0] != '\0') {
        lt_stored_absent(call, &completions, strcspn(call->tail, "/"));
    } else {
        put_completion(&o, entry);
        lt_call_json(call, 200, &o);
    }
    lt_store_release(call->server->store, entry);
}

/* null removes all metadata. */
static bool read_metadata(lt_call *call, lt_api_params *a, lt_api_error *e) {
    if (!lt_call_read(call, a, fields, sizeof fields / sizeof *fields, e)) {
        return false;
    }
    if (json_is_null(json_object_get(a->root, "metadata"))) {
        json_t *none = json_object();
        json_object_set_new(a->root, "metadata", none); /* The parameters own it. */
        a->metadata = none;
    }
    return lt_metadata_check(a->metadata, e);
}

/* Replace the entry's metadata. */
static bool relabel(lt_call *call, lt_stored *entry, const json_t *metadata, lt_api_error *e) {
    lt_json_out o = {0};
    parts p;
    bool kept = false;

    if (parts_of(entry, &p)) {
        lt_out_open(&o, '{');
        put_slice(&o, "completion", p.completion);
        lt_out_key_value(&o, "metadata", metadata);
        put_slice(&o, "messages", p.messages);
        lt_out_shut(&o, '}');
        kept = !o.failed && lt_store_replace(call->server->store, entry, o.data, o.n, lt_clock_s());
    }
    lt_out_free(&o);
    if (!kept) {
        lt_api_refuse(e, "metadata",
                      "'metadata': the completion with it does not fit in the store "
                      "(--store-bytes)");
    }
    return kept;
}

void lt_api_chat_update(lt_call *call) {
    const char *rest;
    lt_stored *entry = lt_stored_find(call, &completions, &rest);
    lt_api_error e = {0};
    lt_api_params a;

    if (entry == NULL) {
        return;
    }
    lt_api_params_defaults(&a);
    if (rest[0] != '\0') {
        lt_stored_absent(call, &completions, strcspn(call->tail, "/"));
    } else if (call->request->body_bytes > MAX_UPDATE_BYTES) {
        lt_api_refuse(&e, "metadata", "a body of %zu bytes; metadata has at most %zu",
                      call->request->body_bytes, MAX_UPDATE_BYTES);
    } else if (read_metadata(call, &a, &e) && relabel(call, entry, a.metadata, &e)) {
        lt_store_release(call->server->store, entry);
        entry = lt_stored_find(call, &completions, &rest); /* The text with the new metadata. */
        if (entry != NULL) {
            lt_json_out o = {0};
            put_completion(&o, entry);
            lt_call_json(call, 200, &o);
        }
    }
    if (e.status != 0) {
        lt_call_error(call, &e);
    }
    lt_store_release(call->server->store, entry);
    lt_api_params_free(&a);
}

void lt_api_chat_delete(lt_call *call) {
    lt_stored_delete(call, &completions);
}
