/* model_calls.c: llama-server's /models/load and /models/unload, for a server with several models.
 * Both only begin the work. */
#include "serve/api/access.h"
#include "serve/api/models.h"
#include "serve/api/reply.h"
#include "serve/api/route.h"

static const lt_field fields[] = {LT_STR("model", model)};
const lt_field_table lt_fields_model_load = LT_FIELD_TABLE(fields, "model");

/* NULL: the call was answered. */
static lt_model_slot *read_slot(lt_call *call) {
    lt_server *s = call->server;
    lt_model_slot *slot = NULL;
    lt_api_error e = {0};
    lt_api_params a;

    lt_api_params_defaults(&a);
    if (s->models == NULL) {
        lt_api_refuse(&e, NULL, "%.60s is not supported here: the server has one model, '%.100s'",
                      call->request->path, s->name);
        e.status = 501;
        e.type = "not_supported_error";
    } else if (lt_call_read(call, &a, fields, sizeof fields / sizeof *fields, &e)) {
        slot = a.model != NULL ? lt_models_find(s->models, a.model) : NULL;
        if (slot == NULL) {
            lt_server_refuse_model(s, call->owner, a.model != NULL ? a.model : "", &e);
        } else if (!lt_access_check_model(slot->server, call->owner, &e)) {
            slot = NULL;
        }
    }
    if (slot == NULL) {
        lt_call_error(call, &e);
    }
    lt_api_params_free(&a);
    return slot;
}

void lt_api_model_load(lt_call *call) {
    lt_model_slot *slot = read_slot(call);
    if (slot != NULL) {
        lt_models_load(call->server->models, slot);
        lt_call_success(call);
    }
}

void lt_api_model_unload(lt_call *call) {
    lt_model_slot *slot = read_slot(call);
    if (slot != NULL) {
        lt_models_unload(call->server->models, slot);
        lt_call_success(call);
    }
}
