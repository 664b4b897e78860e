/* stored_entry.c: see stored_entry.h. */
#include "serve/api/stored/stored_entry.h"

#include <string.h>

#include "base/clock.h"

#define ID_BYTES 64 /* Longer ids are not ours. */

static bool is_of(const char *tail, const lt_stored_kind *kind) {
    return strncmp(tail, kind->prefix, strlen(kind->prefix)) == 0;
}

void lt_stored_absent(lt_call *call, const lt_stored_kind *kind, size_t n) {
    lt_api_error e;
    lt_api_refuse(&e, kind->param, "%s with id '%.*s' not found.", kind->noun, n < 80 ? (int)n : 80,
                  call->tail);
    e.status = 404;
    e.code = "not_found";
    lt_call_error(call, &e);
}

lt_stored *lt_stored_find(lt_call *call, const lt_stored_kind *kind, const char **rest) {
    const size_t n = strcspn(call->tail, "/");
    char id[ID_BYTES] = "";
    lt_stored *entry = NULL;

    *rest = call->tail + n;
    if (n < sizeof id && is_of(call->tail, kind)) {
        memcpy(id, call->tail, n);
        entry = lt_store_hold(call->server->store, id, call->owner, lt_clock_s());
    }
    if (entry == NULL) {
        lt_stored_absent(call, kind, n);
    }
    return entry;
}

void lt_stored_delete(lt_call *call, const lt_stored_kind *kind) {
    lt_json_out o = {0};
    if (strlen(call->tail) >= ID_BYTES || !is_of(call->tail, kind) ||
        !lt_store_forget(call->server->store, call->tail, call->owner, lt_clock_s())) {
        lt_stored_absent(call, kind, strcspn(call->tail, "/"));
        return;
    }
    lt_out_open(&o, '{');
    lt_out_key_str(&o, "id", call->tail);
    lt_out_key_str(&o, "object", kind->deleted);
    lt_out_key_bool(&o, "deleted", true);
    lt_out_shut(&o, '}');
    lt_call_json(call, 200, &o);
}
