/* api/stored.c: /v1/responses/{id}: reads, lists and deletes stored responses. Those of another key
 * count as not existing. */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/json.h"
#include "serve/api/listing.h"
#include "serve/api/responses.h"
#include "serve/api/route.h"

static void refuse_absent(lt_call *call, const char *id, int n) {
    lt_api_error e;
    lt_api_refuse(&e, "response_id", "Response with id '%.*s' not found.", n < 80 ? n : 80, id);
    e.status = 404;
    e.code = "not_found";
    lt_call_error(call, &e);
}

/* The entry as a tree; NULL: the call was answered. tail: the id and the rest of the path. */
static json_t *find(lt_call *call, const char **tail) {
    const size_t n = strcspn(call->tail, "/");
    char id[64] = "";
    lt_stored *entry = NULL;
    json_t *tree = NULL;

    *tail = call->tail + n;
    if (n > 0 && n < sizeof id && strncmp(call->tail, "resp_", 5) == 0) {
        memcpy(id, call->tail, n);
        entry = lt_store_hold(call->server->store, id, call->owner, lt_clock_s());
    }
    if (entry != NULL) {
        size_t bytes;
        const char *text = lt_stored_text(entry, &bytes);
        tree = lt_json_loadb(text, bytes, JSON_ALLOW_NUL, NULL);
    }
    lt_store_release(call->server->store, entry);
    if (tree == NULL) {
        refuse_absent(call, call->tail, (int)n);
    }
    return tree;
}

static const char *item_id(const void *items, size_t i) {
    return json_string_value(json_object_get(json_array_get(items, i), "id"));
}

static void item_write(lt_json_out *o, const void *items, size_t i) {
    lt_out_value(o, json_array_get(items, i));
}

/* The items that the response answered; newest first unless asked otherwise. */
static void put_items(lt_call *call, const json_t *items, const lt_page *p) {
    lt_json_out o = {0};
    const lt_listing l = {json_array_size(items), items, item_id, item_write};
    lt_page_write(&o, &l, p);
    lt_call_json(call, 200, &o);
}

void lt_api_response_get(lt_call *call) {
    const char *tail, *query = call->request->query;
    char stream[16];
    json_t *tree = find(call, &tail);
    lt_api_error e = {0};
    lt_json_out o = {0};
    lt_page p;

    if (tree == NULL) {
        return;
    }
    lt_query_value(query, "stream", stream, sizeof stream);
    if (strcmp(tail, "/input_items") == 0) {
        if (lt_page_read(query, false, &p, &e)) {
            put_items(call, json_object_get(tree, "input"), &p);
        }
    } else if (tail[0] != '\0') {
        refuse_absent(call, call->tail, (int)strlen(call->tail));
    } else if (stream[0] != '\0' && strcmp(stream, "false") != 0) {
        lt_api_refuse(&e, "stream",
                      "'stream': only responses in the background can be resumed, "
                      "and there are none here");
    } else {
        lt_out_value(&o, json_object_get(tree, "response"));
        lt_call_json(call, 200, &o);
    }
    if (e.status != 0) {
        lt_call_error(call, &e);
    }
    json_decref(tree);
}

void lt_api_response_delete(lt_call *call) {
    lt_json_out o = {0};
    if (strlen(call->tail) >= 64 || strncmp(call->tail, "resp_", 5) != 0 ||
        !lt_store_forget(call->server->store, call->tail, call->owner, lt_clock_s())) {
        refuse_absent(call, call->tail, (int)strcspn(call->tail, "/"));
        return;
    }
    lt_out_open(&o, '{');
    lt_out_key_str(&o, "id", call->tail);
    lt_out_key_str(&o, "object", "response");
    lt_out_key_bool(&o, "deleted", true);
    lt_out_shut(&o, '}');
    lt_call_json(call, 200, &o);
}

void lt_api_response_cancel(lt_call *call) {
    const char *tail;
    json_t *tree = find(call, &tail);
    lt_api_error e;

    if (tree == NULL) {
        return;
    }
    if (strcmp(tail, "/cancel") == 0) {
        lt_api_refuse(&e, "response_id",
                      "only responses in the background can be cancelled; leave the connection of "
                      "one that runs");
        lt_call_error(call, &e);
    } else {
        refuse_absent(call, call->tail, (int)strlen(call->tail));
    }
    json_decref(tree);
}
