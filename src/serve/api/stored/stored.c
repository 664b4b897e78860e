/* stored.c: /v1/responses/{id}: reads, lists and deletes stored responses. A response of another
 * key is treated as missing. */
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/json.h"
#include "serve/api/listing.h"
#include "serve/api/formats/responses.h"
#include "serve/api/route.h"
#include "serve/api/stored/stored_entry.h"

static const lt_stored_kind responses = {"resp_", "response_id", "Response", "response"};

/* The entry as a tree; NULL: the call was answered. *tail: the path after the id. */
static json_t *find(lt_call *call, const char **tail) {
    lt_stored *entry = lt_stored_find(call, &responses, tail);
    const char *text;
    json_t *tree;
    size_t bytes;

    if (entry == NULL) {
        return NULL;
    }
    text = lt_stored_text(entry, &bytes);
    tree = lt_json_loadb_exact(text, bytes, JSON_ALLOW_NUL, NULL);
    lt_store_release(call->server->store, entry);
    if (tree == NULL) {
        lt_stored_absent(call, &responses, strcspn(call->tail, "/"));
    }
    return tree;
}

static const char *item_id(const void *items, size_t i) {
    return json_string_value(json_object_get(json_array_get(items, i), "id"));
}

static void item_write(lt_json_out *o, const void *items, size_t i) {
    lt_out_value(o, json_array_get(items, i));
}

/* The input items of the response; newest first by default. */
static void put_items(lt_call *call, const json_t *items, const lt_page *p) {
    const lt_listing l = {json_array_size(items), items, item_id, item_write};
    lt_page_answer(call, &l, p);
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
        lt_stored_absent(call, &responses, strlen(call->tail));
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
    lt_stored_delete(call, &responses);
}

void lt_api_response_cancel(lt_call *call) {
    const char *tail;
    json_t *tree;
    lt_api_error e;

    /* Another path, such as OpenAI's "compact", is not supported. */
    if (strchr(call->tail, '/') == NULL) {
        lt_api_refuse(&e, NULL, "there is no POST /v1/responses/%.100s here", call->tail);
        e.status = 404;
        e.type = "not_found_error";
        e.code = "not_found";
        lt_call_error(call, &e);
        return;
    }
    tree = find(call, &tail);
    if (tree == NULL) {
        return;
    }
    if (strcmp(tail, "/cancel") == 0) {
        lt_api_refuse(&e, "response_id",
                      "only responses in the background can be cancelled; close the connection of "
                      "a running one");
        lt_call_error(call, &e);
    } else {
        lt_stored_absent(call, &responses, strlen(call->tail));
    }
    json_decref(tree);
}
