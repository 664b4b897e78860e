/* file_calls.c: /v1/files: upload, list, describe, read and delete files: see files.h. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/option.h"
#include "data/text_utf8.h"
#include "serve/api/files/files.h"
#include "serve/api/listing.h"
#include "serve/api/files/multipart.h"
#include "serve/api/route.h"
#include "serve/api/state_calls.h"

#define MIN_EXPIRES_S 3600 /* OpenAI's bounds of expires_after. */
#define MAX_EXPIRES_S 2592000

bool lt_state_check(lt_call *call, char owner[LT_OWNER_NAME_BYTES]) {
    lt_api_error e;
    if (call->server->files == NULL) {
        lt_api_refuse(&e, NULL,
                      "files, batches and jobs need a folder: start the server with --state DIR");
        e.status = 501;
        e.code = "not_supported";
        lt_call_error(call, &e);
        return false;
    }
    if (!lt_owner_name(call->owner, owner)) {
        lt_api_refuse_oom(&e);
        lt_call_error(call, &e);
        return false;
    }
    return true;
}

bool lt_state_expires(int64_t seconds, const char *anchor, lt_api_error *e) {
    if (anchor == NULL || strcmp(anchor, "created_at") != 0) {
        return lt_api_refuse(e, "expires_after[anchor]", "the anchor must be created_at");
    }
    return (seconds >= MIN_EXPIRES_S && seconds <= MAX_EXPIRES_S) ||
           lt_api_refuse(e, "expires_after[seconds]", "%lld seconds; it may be %d to %d",
                         (long long)seconds, MIN_EXPIRES_S, MAX_EXPIRES_S);
}

void lt_state_put_file(lt_json_out *o, const lt_file_entry *f) {
    lt_out_open(o, '{');
    lt_out_key_str(o, "id", f->id);
    lt_out_key_str(o, "object", "file");
    lt_out_key_int(o, "bytes", f->bytes);
    lt_out_key_int(o, "created_at", f->created);
    if (f->expires > 0) {
        lt_out_key_int(o, "expires_at", f->expires);
    } else {
        lt_out_key_null(o, "expires_at");
    }
    lt_out_key_str(o, "filename", f->name);
    lt_out_key_str(o, "purpose", f->purpose);
    lt_out_key_str(o, "status", "processed");
    lt_out_key_null(o, "status_details");
    lt_out_shut(o, '}');
}

/* ---- Upload ---- */

static bool field_is(const lt_multipart_part *p, const char *text) {
    return p != NULL && p->n == strlen(text) && memcmp(p->data, text, p->n) == 0;
}

static bool read_expiry(const lt_multipart *m, int64_t *seconds, lt_api_error *e) {
    const lt_multipart_part *s = lt_multipart_find(m, "expires_after[seconds]");
    const lt_multipart_part *anchor = lt_multipart_find(m, "expires_after[anchor]");
    char text[24] = "";

    *seconds = 0;
    if (s == NULL && anchor == NULL) {
        return true;
    }
    if (s != NULL && s->n < sizeof text) {
        memcpy(text, s->data, s->n);
        *seconds = strspn(text, "0123456789") == s->n ? strtoll(text, NULL, 10) : 0;
    }
    return lt_state_expires(*seconds, field_is(anchor, "created_at") ? "created_at" : NULL, e);
}

/* A field that has no effect is refused by name. */
static bool check_names(const lt_multipart *m, lt_api_error *e) {
    static const char *const known[] = {"file", "purpose", "expires_after[seconds]",
                                        "expires_after[anchor]", NULL};
    for (int i = 0; i < m->n; i++) {
        if (!lt_name_is_one_of(m->parts[i].name, known)) {
            return lt_api_refuse(e, m->parts[i].name, "the form's field '%.60s' is not known",
                                 m->parts[i].name);
        }
    }
    return true;
}

/* Read the form; *file points into it. */
static bool read_form(const lt_call *call, lt_multipart *m, lt_file_entry *f,
                      const lt_multipart_part **file, lt_api_error *e) {
    const char *why = NULL;
    const lt_multipart_part *purpose;
    int64_t seconds = 0;

    if (!lt_multipart_read(m, call->request->body, call->request->body_bytes, &why)) {
        return lt_api_refuse(e, NULL, "%s", why);
    }
    *file = lt_multipart_find(m, "file");
    purpose = lt_multipart_find(m, "purpose");
    if (*file == NULL || (*file)->n == 0) {
        return lt_api_refuse(e, "file", "the form has no 'file', or an empty one");
    }
    if (purpose == NULL) {
        return lt_api_refuse(e, "purpose", "the form has no 'purpose'");
    }
    if (!field_is(purpose, "batch") && !field_is(purpose, "fine-tune")) {
        return lt_api_refuse(e, "purpose", "'purpose' must be batch or fine-tune");
    }
    if (!check_names(m, e) || !read_expiry(m, &seconds, e)) {
        return false;
    }
    *f = (lt_file_entry){.purpose = field_is(purpose, "batch") ? "batch" : "fine-tune",
                         .created = (int64_t)lt_clock_unix_s()};
    f->expires = seconds > 0 ? f->created + seconds : 0;
    snprintf(f->name, sizeof f->name, "%s",
             (*file)->filename[0] != '\0' ? (*file)->filename : "upload");
    if (lt_utf8_valid_prefix(f->name, strlen(f->name)) != strlen(f->name)) {
        return lt_api_refuse(e, "file", "the file's name is not UTF-8");
    }
    return true;
}

void lt_api_file_create(lt_call *call) {
    char owner[LT_OWNER_NAME_BYTES];
    const lt_multipart_part *file = NULL;
    lt_multipart m;
    lt_file_entry f;
    lt_api_error e = {0};
    lt_json_out o = {0};

    if (!lt_state_check(call, owner)) {
        return;
    }
    if (!read_form(call, &m, &f, &file, &e)) {
        lt_call_error(call, &e);
        return;
    }
    memcpy(f.owner, owner, sizeof f.owner);
    lt_server_make_id(call->server, "file-", f.id);
    if (!lt_files_put(call->server->files, &f, file->data, file->n, &e)) {
        lt_call_error(call, &e);
        return;
    }
    lt_state_put_file(&o, &f);
    lt_call_json(call, 200, &o);
}

/* ---- List ---- */

static const char *entry_id(const void *items, size_t i) {
    return ((const lt_file_entry *)items)[i].id;
}

static void entry_write(lt_json_out *o, const void *items, size_t i) {
    lt_state_put_file(o, &((const lt_file_entry *)items)[i]);
}

/* Keep only those of a purpose. */
static size_t keep_purpose(lt_file_entry *list, size_t n, const char *purpose) {
    size_t kept = 0;
    for (size_t i = 0; i < n; i++) {
        if (purpose[0] == '\0' || strcmp(list[i].purpose, purpose) == 0) {
            list[kept++] = list[i];
        }
    }
    return kept;
}

void lt_api_file_list(lt_call *call) {
    char owner[LT_OWNER_NAME_BYTES], purpose[32];
    const char *query = call->request->query;
    lt_file_entry *list;
    lt_api_error e = {0};
    lt_page p;
    size_t n;

    if (!lt_state_check(call, owner)) {
        return;
    }
    if (!lt_page_read_most(query, false, 10000, 10000, &p, &e)) {
        lt_call_error(call, &e);
        return;
    }
    lt_query_value(query, "purpose", purpose, sizeof purpose);
    list = lt_files_list(call->server->files, owner, &n);
    n = keep_purpose(list, n, purpose);
    lt_page_answer(call, &(lt_listing){n, list, entry_id, entry_write}, &p);
    free(list);
}

/* ---- One file ---- */

static void absent(lt_call *call, const char *id) {
    const size_t n = strcspn(id, "/"); /* It is followed by /content. */
    lt_api_error e;
    lt_api_refuse(&e, "file_id", "No such File object: %.*s", (int)(n < 80 ? n : 80), id);
    e.status = 404;
    lt_call_error(call, &e);
}

static void send_content(lt_call *call, const lt_file_entry *f) {
    char path[LT_PATH_BYTES];
    int fd = -1;
    if (lt_files_path(call->server->files, f->id, path) == LT_OK) {
        fd = open(path, O_RDONLY | O_CLOEXEC);
    }
    if (fd < 0) {
        absent(call, f->id);
        return;
    }
    lt_http_reply_file(call->conn, 200, "application/octet-stream", call->extra, fd,
                       (size_t)f->bytes);
}

void lt_api_file_get(lt_call *call) {
    char owner[LT_OWNER_NAME_BYTES], id[sizeof((lt_file_entry *)0)->id] = "";
    const size_t n = strcspn(call->tail, "/");
    const char *rest = call->tail + n;
    lt_file_entry f;
    lt_json_out o = {0};

    if (!lt_state_check(call, owner)) {
        return;
    }
    memcpy(id, call->tail, n < sizeof id ? n : 0);
    if (!lt_files_get(call->server->files, id, owner, false, &f) ||
        (rest[0] != '\0' && strcmp(rest, "/content") != 0)) {
        absent(call, call->tail);
    } else if (rest[0] != '\0') {
        send_content(call, &f);
    } else {
        lt_state_put_file(&o, &f);
        lt_call_json(call, 200, &o);
    }
}

void lt_api_file_delete(lt_call *call) {
    char owner[LT_OWNER_NAME_BYTES];
    lt_api_error e = {0};
    lt_json_out o = {0};

    if (!lt_state_check(call, owner)) {
        return;
    }
    if (!lt_files_delete(call->server->files, call->tail, owner, &e)) {
        lt_call_error(call, &e);
        return;
    }
    lt_out_open(&o, '{');
    lt_out_key_str(&o, "id", call->tail);
    lt_out_key_str(&o, "object", "file");
    lt_out_key_bool(&o, "deleted", true);
    lt_out_shut(&o, '}');
    lt_call_json(call, 200, &o);
}
