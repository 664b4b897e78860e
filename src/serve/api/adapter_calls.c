/* adapter_calls.c: loads and unloads adapters: vLLM's /v1/load_lora_adapter and
 * /v1/unload_lora_adapter, and llama-server's /lora-adapters. */
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/json.h"
#include "serve/api/reply.h"
#include "serve/api/route.h"

static const lt_field load_fields[] = {
    LT_STR("lora_name", lora_name), LT_STR("lora_path", lora_path),
    LT_BOOL("load_inplace", load_inplace), LT_NOTHING("base_model_name"),
    LT_ONLY("is_3d_lora_weight", "false")};
const lt_field_table lt_fields_lora_load = LT_FIELD_TABLE(load_fields, "lora_name,lora_path");

static const lt_field unload_fields[] = {LT_STR("lora_name", lora_name), LT_NOTHING("lora_int_id")};
const lt_field_table lt_fields_lora_unload = LT_FIELD_TABLE(unload_fields, "lora_name");

/* Clients name folders of this machine, so the operator must have allowed it. */
static bool may_update(const lt_call *call, lt_api_error *e) {
    if (call->server->o.lora_updating) {
        return true;
    }
    lt_api_refuse(e, NULL,
                  "adapters are loaded and unloaded only where the server was started with "
                  "--lora-updating");
    e->status = 404;
    e->type = "NotFoundError";
    return false;
}

static bool read(lt_call *call, lt_api_params *a, const lt_field_table *t, lt_api_error *e) {
    lt_api_params_defaults(a);
    return may_update(call, e) && lt_call_read(call, a, t->rows, t->n, e);
}

/* Answer with vLLM's message, as a JSON string. */
static void answer(lt_call *call, const char *name, const char *done) {
    lt_json_out o = {0};
    char text[400];
    (void)snprintf(text, sizeof text, "Success: LoRA adapter '%s' %s successfully.", name, done);
    lt_out_text(&o, text);
    lt_call_json(call, 200, &o);
}

static bool is_given(const char *text) {
    return text != NULL && text[0] != '\0';
}

static bool need(bool given, const char *message, lt_api_error *e) {
    if (!given) {
        lt_api_refuse(e, NULL, "%s", message);
        e->type = "InvalidUserInput";
    }
    return given;
}

void lt_api_lora_load(lt_call *call) {
    lt_api_params a;
    lt_api_error e;
    const bool ok = read(call, &a, &lt_fields_lora_load, &e) &&
                    need(is_given(a.lora_name) && is_given(a.lora_path),
                         "Both 'lora_name' and 'lora_path' must be provided.", &e) &&
                    lt_adapter_set_add(call->server->adapters, a.lora_name, a.lora_path,
                                       a.load_inplace, &e);
    if (ok) {
        answer(call, a.lora_name, "added");
    } else {
        lt_call_error(call, &e);
    }
    lt_api_params_free(&a);
}

void lt_api_lora_unload(lt_call *call) {
    lt_api_params a;
    lt_api_error e;
    const bool ok = read(call, &a, &lt_fields_lora_unload, &e) &&
                    need(is_given(a.lora_name),
                         "'lora_name' needs to be provided to unload a LoRA adapter.", &e) &&
                    lt_adapter_set_remove(call->server->adapters, a.lora_name, &e);
    if (ok) {
        answer(call, a.lora_name, "removed");
    } else {
        lt_call_error(call, &e);
    }
    lt_api_params_free(&a);
}

void lt_api_lora_list(lt_call *call) {
    lt_json_out o = {0};
    lt_adapter_set_write(call->server->adapters, &o);
    lt_call_json(call, 200, &o);
}

void lt_api_lora_scale(lt_call *call) {
    const lt_http_request *r = call->request;
    json_error_t why;
    json_t *list = call->body != NULL ? NULL : lt_json_loadb(r->body, r->body_bytes, 0, &why);
    lt_api_error e;
    bool ok = list != NULL;
    if (call->body != NULL) {
        lt_api_refuse(&e, NULL, "a list of %zu bytes is too long", r->body_bytes);
    } else if (!ok) {
        lt_api_refuse(&e, NULL, "the body is not JSON: %.200s", why.text);
    }
    ok = ok && lt_adapter_set_set_scales(call->server->adapters, list, &e);
    json_decref(list);
    if (ok) {
        lt_call_success(call);
    } else {
        lt_call_error(call, &e);
    }
}
