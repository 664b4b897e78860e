/* listing.c: see listing.h. */
#include "serve/api/listing.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/encoding.h"

#define USUAL_ITEMS 20 /* Items per page unless the request says otherwise. */
#define MAX_ITEMS   100

/* Returns whether the text was cut. A '+' is a space, as forms and client libraries write it. */
static bool decode(char *out, size_t room, const char *from, size_t n) {
    return lt_percent_decode(out, room, from, n, true) == LT_PERCENT_CUT;
}

bool lt_query_next(const char **at, lt_query_pair *out) {
    const char *p = *at + strspn(*at, "&");
    const size_t width = strcspn(p, "&"), name_n = strcspn(p, "=&");
    const size_t skipped = name_n < width ? name_n + 1 : width;

    *at = p + width;
    out->cut = decode(out->name, sizeof out->name, p, name_n);
    out->cut |= decode(out->value, sizeof out->value, p + skipped, width - skipped);
    return width > 0;
}

bool lt_query_value(const char *query, const char *name, char *out, size_t room) {
    lt_query_pair pair;
    bool found = false;
    out[0] = '\0';
    while (lt_query_next(&query, &pair)) {
        if (strcmp(pair.name, name) == 0) {
            snprintf(out, room, "%s", pair.value);
            found = true;
        }
    }
    return found;
}

bool lt_page_read(const char *query, bool ascending, lt_page *p, lt_api_error *e) {
    return lt_page_read_most(query, ascending, USUAL_ITEMS, MAX_ITEMS, p, e);
}

bool lt_page_read_most(const char *query, bool ascending, long usual, long most, lt_page *p,
                       lt_api_error *e) {
    char text[32], *end = NULL;
    long limit = usual;
    lt_query_value(query, "limit", text, sizeof text);
    if (text[0] != '\0') {
        limit = strtol(text, &end, 10);
        if (*end != '\0' || limit < 1 || limit > most) {
            return lt_api_refuse(e, "limit", "'limit' = %s; it must be between 1 and %ld", text,
                                 most);
        }
    }
    p->limit = (size_t)limit;
    lt_query_value(query, "order", text, sizeof text);
    if (text[0] != '\0' && strcmp(text, "asc") != 0 && strcmp(text, "desc") != 0) {
        return lt_api_refuse(e, "order", "'order' = %s; it may be asc or desc", text);
    }
    p->ascending = text[0] != '\0' ? strcmp(text, "asc") == 0 : ascending;
    lt_query_value(query, "after", p->after, sizeof p->after);
    return true;
}

/* Number of items before the page, in its order; n + 1: no item has the id of `after`. */
static size_t items_before(const lt_listing *l, const lt_page *p) {
    for (size_t i = 0; p->after[0] != '\0' && i < l->n; i++) {
        const char *id = l->id(l->items, p->ascending ? i : l->n - 1 - i);
        if (id != NULL && strcmp(id, p->after) == 0) {
            return i + 1;
        }
    }
    return p->after[0] == '\0' ? 0 : l->n + 1;
}

static void write_page(lt_json_out *o, const lt_listing *l, const lt_page *p, size_t at) {
    const char *first = NULL, *last = NULL;
    size_t told = 0;

    lt_out_open(o, '{');
    lt_out_key_str(o, "object", "list");
    lt_out_key_open(o, "data", '[');
    for (; at < l->n && told < p->limit; at++, told++) {
        const size_t i = p->ascending ? at : l->n - 1 - at;
        l->write(o, l->items, i);
        first = told == 0 ? l->id(l->items, i) : first;
        last = l->id(l->items, i);
    }
    lt_out_shut(o, ']');
    lt_out_key_str(o, "first_id", first);
    lt_out_key_str(o, "last_id", last);
    lt_out_key_bool(o, "has_more", at < l->n);
    lt_out_shut(o, '}');
}

void lt_page_answer(lt_call *call, const lt_listing *l, const lt_page *p) {
    const size_t at = items_before(l, p);
    lt_api_error e = {0};
    lt_json_out o = {0};

    if (l->items == NULL) {
        lt_api_refuse_oom(&e);
    } else if (at > l->n) {
        lt_api_refuse(&e, "after", "'after' = %s: this list has no item with that id", p->after);
        e.status = 404;
    }
    if (e.status != 0) {
        lt_call_error(call, &e);
        return;
    }
    write_page(&o, l, p, at);
    lt_call_json(call, 200, &o);
}
