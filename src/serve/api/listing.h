/* listing.h: lists in OpenAI's format, one page at a time, and the query parameters that select a
 * page. */
#ifndef LT_SERVE_LISTING_H
#define LT_SERVE_LISTING_H

#include "serve/api/api_params.h"
#include "serve/api/json_out.h"
#include "serve/api/server.h"

/* One name=value of a query, percent-decoded. */
typedef struct {
    char name[128], value[1024];
    bool cut; /* One of them is longer than that. */
} lt_query_pair;

/* Read the next pair of the query at *at, and move *at past it; false: there are no more. */
bool lt_query_next(const char **at, lt_query_pair *out);
/* The value of the last pair with that name; false: there is none, and out is "". */
bool lt_query_value(const char *query, const char *name, char *out, size_t room);

typedef struct {
    size_t limit;
    bool ascending;
    char after[96]; /* The page begins after this id; "": at the first item. */
} lt_page;

/* limit, order and after of a query. ascending: the default order. */
bool lt_page_read(const char *query, bool ascending, lt_page *p, lt_api_error *e);
/* The same with a default limit other than 20, and a limit of at most 100. */
bool lt_page_read_most(const char *query, bool ascending, long usual, long most, lt_page *p,
                       lt_api_error *e);

/* The listed items, oldest first. items NULL: memory ran out while they were collected. */
typedef struct {
    size_t n;
    const void *items;
    const char *(*id)(const void *items, size_t i);
    void (*write)(lt_json_out *o, const void *items, size_t i);
} lt_listing;

/* Answer with {object: list, data: [...], first_id, last_id, has_more}; or with 404 if no item has
 * the id of `after`. */
void lt_page_answer(lt_call *call, const lt_listing *l, const lt_page *p);

#endif
