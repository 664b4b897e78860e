/* batch_calls.c: /v1/batches: create, list, describe and cancel batches: see batch.h. */
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "serve/api/files/batch.h"
#include "serve/api/files/batch_line.h"
#include "serve/api/listing.h"
#include "serve/api/route.h"
#include "serve/api/state_calls.h"
#include "serve/api/stored/stored_chat.h"

#define MAX_WINDOW_S (30 * 86400)

static const lt_field fields[] = {LT_STR("input_file_id", input_file), LT_STR("endpoint", endpoint),
                                  LT_STR("completion_window", completion_window),
                                  LT_JSON("metadata", metadata),
                                  LT_JSON("output_expires_after", output_expires)};
const lt_field_table lt_fields_batch_create = LT_FIELD_TABLE(
    fields, "input_file_id,endpoint,completion_window");

/* ---- Create ---- */

/* OpenAI accepts only "24h"; here it is a number of s, m, h or d, up to 30 days. 0: invalid. */
static int64_t window_s(const char *text) {
    static const char units[] = "smhd";
    static const int64_t seconds[] = {1, 60, 3600, 86400};
    const size_t n = strspn(text, "0123456789");
    const char *unit = text[n] != '\0' ? strchr(units, text[n]) : NULL;
    const int64_t count = n > 0 && n < 8 ? strtoll(text, NULL, 10) : 0;
    if (unit == NULL || text[n + 1] != '\0' || count * seconds[unit - units] > MAX_WINDOW_S) {
        return 0;
    }
    return count * seconds[unit - units];
}

static bool read_output_expires(const json_t *o, int64_t *seconds, lt_api_error *e) {
    *seconds = 0;
    if (o == NULL) {
        return true;
    }
    *seconds = json_integer_value(json_object_get(o, "seconds"));
    return lt_state_expires(*seconds, json_string_value(json_object_get(o, "anchor")), e);
}

static bool read_batch(const lt_server *s, const lt_api_params *a, lt_batch *t, lt_api_error *e) {
    lt_file_entry input;
    int64_t window;

    if (a->input_file == NULL || a->endpoint == NULL || a->completion_window == NULL) {
        return lt_api_refuse(e, NULL, "input_file_id, endpoint and completion_window are required");
    }
    t->endpoint = lt_batch_endpoint_find(a->endpoint);
    if (t->endpoint == NULL) {
        return lt_api_refuse(e, "endpoint",
                             "'endpoint' = %.80s; it may be /v1/chat/completions, /v1/completions "
                             "or /v1/embeddings",
                             a->endpoint);
    }
    window = window_s(a->completion_window);
    if (window == 0 || strlen(a->completion_window) >= sizeof t->window) {
        return lt_api_refuse(
            e, "completion_window",
            "'completion_window' = %.40s; it may be a number of s, m, h or d, such "
            "as 24h, up to 30d",
            a->completion_window);
    }
    if (strlen(a->input_file) >= sizeof t->input ||
        !lt_files_get(s->files, a->input_file, t->owner, false, &input) ||
        strcmp(input.purpose, "batch") != 0) {
        return lt_api_refuse(e, "input_file_id", "there is no file %.80s whose purpose is batch",
                             a->input_file);
    }
    if (a->metadata != NULL && !lt_metadata_check(a->metadata, e)) {
        return false;
    }
    memcpy(t->input, a->input_file, strlen(a->input_file) + 1);
    memcpy(t->window, a->completion_window, strlen(a->completion_window) + 1);
    t->metadata = (json_t *)(uintptr_t)a->metadata;
    t->window_s = window;
    return read_output_expires(a->output_expires, &t->output_s, e);
}

static void answer(lt_call *call, const lt_batch *t) {
    lt_json_out o = {0};
    lt_batch_write(&o, t);
    lt_call_json(call, 200, &o);
}

void lt_api_batch_create(lt_call *call) {
    lt_server *s = call->server;
    lt_batch asked = {0}, *t = NULL;
    lt_api_error e = {0};
    lt_api_params a;

    if (!lt_state_check(call, asked.owner)) {
        return;
    }
    lt_api_params_defaults(&a);
    if (lt_call_read(call, &a, fields, sizeof fields / sizeof *fields, &e) &&
        read_batch(s, &a, &asked, &e)) {
        t = lt_batch_create(s->batches, &asked, &e);
    }
    if (t != NULL) {
        answer(call, t);
    } else {
        lt_call_error(call, &e);
    }
    lt_api_params_free(&a);
}

/* ---- List ---- */

static const char *batch_id(const void *items, size_t i) {
    return ((const lt_batch *const *)items)[i]->id;
}

static void batch_write(lt_json_out *o, const void *items, size_t i) {
    lt_batch_write(o, ((const lt_batch *const *)items)[i]);
}

void lt_api_batch_list(lt_call *call) {
    char owner[LT_OWNER_NAME_BYTES];
    const lt_batch **list;
    lt_api_error e = {0};
    lt_page p;
    size_t n = 0;

    if (!lt_state_check(call, owner)) {
        return;
    }
    if (!lt_page_read(call->request->query, false, &p, &e)) {
        lt_call_error(call, &e);
        return;
    }
    for (const lt_batch *t = lt_batch_first(call->server->batches); t != NULL; t = t->next) {
        n++;
    }
    list = malloc((n + 1) * sizeof *list);
    n = 0;
    for (const lt_batch *t = lt_batch_first(call->server->batches); t != NULL; t = t->next) {
        if (list != NULL && strcmp(t->owner, owner) == 0) {
            list[n++] = t;
        }
    }
    lt_page_answer(call, &(lt_listing){n, list, batch_id, batch_write}, &p);
    free(list);
}

/* ---- One batch ---- */

/* The batch at the beginning of the path's tail, if the rest of that is `rest`; NULL: the call was
 * answered. */
static lt_batch *find(lt_call *call, const char *rest) {
    char owner[LT_OWNER_NAME_BYTES], id[sizeof((lt_batch *)0)->id] = "";
    const size_t n = strcspn(call->tail, "/");
    lt_batch *t;
    lt_api_error e;

    if (!lt_state_check(call, owner)) {
        return NULL;
    }
    memcpy(id, call->tail, n < sizeof id ? n : 0);
    t = strcmp(call->tail + n, rest) == 0 ? lt_batch_find(call->server->batches, id, owner) : NULL;
    if (t == NULL) {
        lt_api_refuse(&e, "batch_id", "No batch found with id '%.*s'.", (int)(n < 80 ? n : 80),
                      call->tail);
        e.status = 404;
        lt_call_error(call, &e);
    }
    return t;
}

void lt_api_batch_get(lt_call *call) {
    const lt_batch *t = find(call, "");
    if (t != NULL) {
        answer(call, t);
    }
}

void lt_api_batch_cancel(lt_call *call) {
    lt_batch *t = find(call, "/cancel");
    lt_api_error e = {0};
    if (t == NULL) {
        return;
    }
    if (lt_batch_cancel(t, &e)) {
        answer(call, t);
    } else {
        lt_call_error(call, &e);
    }
}
