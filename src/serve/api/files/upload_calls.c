/* upload_calls.c: /v1/uploads: begin an upload, send its parts, complete or cancel it: see
 * uploads.h. */
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "serve/api/files/multipart.h"
#include "serve/api/route.h"
#include "serve/api/state_calls.h"
#include "serve/api/files/uploads.h"

static const lt_field create_fields[] = {
    LT_STR("filename", filename), LT_STR("purpose", purpose), LT_I64("bytes", file_bytes, 1, 1e15),
    LT_STR("mime_type", mime_type), LT_JSON("expires_after", output_expires)};
const lt_field_table lt_fields_upload_create = LT_FIELD_TABLE(create_fields,
                                                              "filename,purpose,bytes,mime_type");

static const lt_field complete_fields[] = {LT_JSON("part_ids", part_ids), LT_STR("md5", md5)};
const lt_field_table lt_fields_upload_complete = LT_FIELD_TABLE(complete_fields, "part_ids");

static void answer(lt_call *call, const lt_upload *t) {
    static const char *const states[] = {"pending", "completed", "cancelled", "expired"};
    lt_json_out o = {0};
    lt_out_open(&o, '{');
    lt_out_key_str(&o, "id", t->id);
    lt_out_key_str(&o, "object", "upload");
    lt_out_key_int(&o, "bytes", t->bytes);
    lt_out_key_int(&o, "created_at", t->created);
    lt_out_key_str(&o, "filename", t->file.name);
    lt_out_key_str(&o, "purpose", t->file.purpose);
    lt_out_key_str(&o, "status", states[t->state]);
    lt_out_key_int(&o, "expires_at", t->expires);
    lt_out_key(&o, "file");
    if (t->state == LT_UPLOAD_COMPLETED) {
        lt_state_put_file(&o, &t->file);
    } else {
        lt_out_null(&o);
    }
    lt_out_shut(&o, '}');
    lt_call_json(call, 200, &o);
}

/* ---- Create ---- */

static bool read_upload(const lt_api_params *a, lt_upload *t, lt_api_error *e) {
    const size_t n = a->filename != NULL ? strlen(a->filename) : 0;
    const json_t *expires = a->output_expires;
    if (a->filename == NULL || a->purpose == NULL || a->mime_type == NULL || a->file_bytes < 1) {
        return lt_api_refuse(e, NULL, "filename, purpose, bytes and mime_type are required");
    }
    if (strcmp(a->purpose, "batch") != 0 && strcmp(a->purpose, "fine-tune") != 0) {
        return lt_api_refuse(e, "purpose", "'purpose' must be batch or fine-tune");
    }
    if (n == 0 || n >= sizeof t->file.name || strpbrk(a->filename, "/\\") != NULL) {
        return lt_api_refuse(e, "filename", "'filename' must have 1 to %zu bytes, and no folder",
                             sizeof t->file.name - 1);
    }
    if (expires != NULL &&
        !lt_state_expires(json_integer_value(json_object_get(expires, "seconds")),
                          json_string_value(json_object_get(expires, "anchor")), e)) {
        return false;
    }
    memcpy(t->file.name, a->filename, n + 1);
    t->file.purpose = lt_file_purpose_find(a->purpose);
    t->bytes = a->file_bytes;
    t->keep_s = json_integer_value(json_object_get(expires, "seconds"));
    return true;
}

void lt_api_upload_create(lt_call *call) {
    lt_upload t = {0};
    lt_api_error e = {0};
    lt_api_params a;

    if (!lt_state_check(call, t.file.owner)) {
        return;
    }
    lt_api_params_defaults(&a);
    lt_server_make_id(call->server, "upload_", t.id);
    if (lt_call_read(call, &a, create_fields, sizeof create_fields / sizeof *create_fields, &e) &&
        read_upload(&a, &t, &e) && lt_uploads_create(call->server->uploads, &t, &e)) {
        answer(call, &t);
    } else {
        lt_call_error(call, &e);
    }
    lt_api_params_free(&a);
}

/* ---- What stands behind an id ---- */

typedef struct {
    char id[LT_FILE_ID_BYTES], owner[LT_OWNER_NAME_BYTES];
} which;

/* The form has one field, `data`. */
static bool add_part(lt_call *call, const which *w, const char *part, lt_api_error *e) {
    lt_multipart m;
    const char *why = NULL;
    const lt_multipart_part *data;
    if (!lt_multipart_read(&m, call->request->body, call->request->body_bytes, &why)) {
        return lt_api_refuse(e, NULL, "%s", why);
    }
    data = lt_multipart_find(&m, "data");
    if (data == NULL || data->n == 0) {
        return lt_api_refuse(e, "data", "the form has no 'data', or it is empty");
    }
    for (int i = 0; i < m.n; i++) {
        if (&m.parts[i] != data) {
            return lt_api_refuse(e, m.parts[i].name, "the form's field '%.60s' is not known",
                                 m.parts[i].name);
        }
    }
    return lt_uploads_add(call->server->uploads, w->id, w->owner, part, data->data, data->n, e);
}

static bool on_part(lt_call *call, const which *w, lt_api_error *e) {
    char part[LT_FILE_ID_BYTES];
    lt_json_out o = {0};
    lt_server_make_id(call->server, "part_", part);
    if (!add_part(call, w, part, e)) {
        return false;
    }
    lt_out_open(&o, '{');
    lt_out_key_str(&o, "id", part);
    lt_out_key_str(&o, "object", "upload.part");
    lt_out_key_int(&o, "created_at", (int64_t)lt_clock_unix_s());
    lt_out_key_str(&o, "upload_id", w->id);
    lt_out_shut(&o, '}');
    lt_call_json(call, 200, &o);
    return true;
}

static bool on_complete(lt_call *call, const which *w, lt_api_error *e) {
    char file[48];
    lt_upload t;
    lt_api_params a;
    bool ok;
    lt_api_params_defaults(&a);
    lt_server_make_id(call->server, "file-", file);
    ok = lt_call_read(call, &a, complete_fields, sizeof complete_fields / sizeof *complete_fields,
                      e) &&
         lt_uploads_complete(call->server->uploads, w->id, w->owner, a.part_ids, a.md5, file, &t,
                             e);
    if (ok) {
        answer(call, &t);
    }
    lt_api_params_free(&a);
    return ok;
}

static bool on_cancel(lt_call *call, const which *w, lt_api_error *e) {
    lt_upload t;
    const bool ok = lt_uploads_cancel(call->server->uploads, w->id, w->owner, &t, e);
    if (ok) {
        answer(call, &t);
    }
    return ok;
}

void lt_api_upload_change(lt_call *call) {
    static const struct {
        const char *path;
        bool (*change)(lt_call *call, const which *w, lt_api_error *e); /* False: e. */
    } changes[] = {{"/parts", on_part}, {"/complete", on_complete}, {"/cancel", on_cancel}};
    const size_t n = strcspn(call->tail, "/");
    which w = {"", ""};
    lt_api_error e = {0};

    if (!lt_state_check(call, w.owner)) {
        return;
    }
    memcpy(w.id, call->tail, n < sizeof w.id ? n : 0);
    for (size_t i = 0; i < sizeof changes / sizeof *changes; i++) {
        if (strcmp(call->tail + n, changes[i].path) == 0) {
            if (!changes[i].change(call, &w, &e)) {
                lt_call_error(call, &e);
            }
            return;
        }
    }
    lt_api_refuse(&e, NULL, "there is no /v1/uploads/%.60s here", call->tail);
    e.status = 404;
    lt_call_error(call, &e);
}
