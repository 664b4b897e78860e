/* api/stored.c: /v1/responses/{id}: reads, lists and deletes stored responses. Those of another key
 * count as not existing. */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/json.h"
#include "serve/api/responses.h"
#include "serve/api/route.h"

#define MAX_ITEMS 100 /* Of one page of a list. */

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

/* name=value of a query; out "" when it is not there. */
static void query_value(const char *query, const char *name, char *out, size_t room) {
    const size_t n = strlen(name);
    out[0] = '\0';
    while (*query != '\0') {
        const size_t width = strcspn(query, "&");
        if (width > n && memcmp(query, name, n) == 0 && query[n] == '=') {
            snprintf(out, room, "%.*s", (int)(width - n - 1), query + n + 1);
        }
        query += width + (query[width] == '&');
    }
}

typedef struct {
    size_t limit;
    bool ascending;
    char after[64];
} page;

static bool read_page(const char *query, page *p, lt_api_error *e) {
    char text[32], *end = NULL;
    long limit = 20;
    query_value(query, "limit", text, sizeof text);
    if (text[0] != '\0') {
        limit = strtol(text, &end, 10);
        if (*end != '\0' || limit < 1 || limit > MAX_ITEMS) {
            return lt_api_refuse(e, "limit", "'limit' = %s; it must be between 1 and %d", text,
                                 MAX_ITEMS);
        }
    }
    p->limit = (size_t)limit;
    query_value(query, "order", text, sizeof text);
    if (text[0] != '\0' && strcmp(text, "asc") != 0 && strcmp(text, "desc") != 0) {
        return lt_api_refuse(e, "order", "'order' = %s; it may be asc or desc", text);
    }
    p->ascending = strcmp(text, "asc") == 0;
    query_value(query, "after", p->after, sizeof p->after);
    return true;
}

static const char *id_of(const json_t *items, size_t i) {
    return json_string_value(json_object_get(json_array_get(items, i), "id"));
}

/* {object: list, data: [...], first_id, last_id, has_more}; newest first unless asked otherwise. */
static void put_items(lt_call *call, const json_t *items, const page *p) {
    const size_t n = json_array_size(items);
    const char *first = NULL, *last = NULL;
    lt_json_out o = {0};
    size_t told = 0, at = 0;

    for (size_t i = 0; p->after[0] != '\0' && i < n; i++) {
        const char *id = id_of(items, p->ascending ? i : n - 1 - i);
        if (id != NULL && strcmp(id, p->after) == 0) {
            at = i + 1;
        }
    }
    lt_out_open(&o, '{');
    lt_out_key_str(&o, "object", "list");
    lt_out_key_open(&o, "data", '[');
    for (; at < n && told < p->limit; at++, told++) {
        const size_t i = p->ascending ? at : n - 1 - at;
        lt_out_value(&o, json_array_get(items, i));
        first = told == 0 ? id_of(items, i) : first;
        last = id_of(items, i);
    }
    lt_out_shut(&o, ']');
    lt_out_key_str(&o, "first_id", first);
    lt_out_key_str(&o, "last_id", last);
    lt_out_key_bool(&o, "has_more", at < n);
    lt_out_shut(&o, '}');
    lt_call_json(call, 200, &o);
}

void lt_api_response_get(lt_call *call) {
    const char *tail, *query = call->request->query;
    char stream[16];
    json_t *tree = find(call, &tail);
    lt_api_error e = {0};
    lt_json_out o = {0};
    page p;

    if (tree == NULL) {
        return;
    }
    query_value(query, "stream", stream, sizeof stream);
    if (strcmp(tail, "/input_items") == 0) {
        if (read_page(query, &p, &e)) {
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
