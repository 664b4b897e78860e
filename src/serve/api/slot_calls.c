/* slot_calls.c: llama-server's POST /slots/ID?action=save|restore|erase: pages of a text in a file
 * of --slot-save-path (lateen/serve.h, "Pages in files").
 *
 * Slots have no texts here: any request finds the pages of any text. So save and erase name the
 * text, by a prompt or by messages, and ID is only returned. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/file.h"
#include "serve/api/formats/chat_output.h"
#include "serve/api/formats/conversation.h"
#include "serve/api/listing.h"
#include "serve/api/formats/prompts.h"
#include "serve/api/reply.h"
#include "serve/api/route.h"

static const lt_field slot_fields[] = {LT_STR("filename", filename),
                                       LT_JSON("prompt", prompt),
                                       LT_JSON("messages", messages),
                                       LT_JSON("tools", tools),
                                       LT_JSON("chat_template_kwargs", template_kwargs),
                                       LT_STR("cache_salt", cache_salt),
                                       LT_STR("model", model)};
const lt_field_table lt_fields_slot_action = LT_FIELD_TABLE(slot_fields, "");

typedef struct {
    const lt_call *call;
    lt_api_params a;
    uint64_t salt;
    lt_ids ids;               /* Ids of the text that the request names. */
    char path[LT_PATH_BYTES]; /* Path of the named file. */
    lt_engine_kept kept;
} slot_action;

static lt_err save(slot_action *w) {
    return lt_engine_save(w->call->server->engine, w->path, w->salt, (const int32_t *)w->ids.data,
                          (int64_t)w->ids.n, &w->kept);
}

static lt_err restore(slot_action *w) {
    return lt_engine_restore(w->call->server->engine, w->path, w->salt, &w->kept);
}

static lt_err erase(slot_action *w) {
    return lt_engine_erase(w->call->server->engine, w->salt, (const int32_t *)w->ids.data,
                           (int64_t)w->ids.n, &w->kept);
}

/* llama-server's names of the answer's numbers. */
static const struct {
    const char *name;
    bool text, file; /* Whether the request names these. */
    lt_err (*run)(slot_action *w);
    const char *tokens, *bytes, *ms;
} actions[] = {{"save", true, true, save, "n_saved", "n_written", "save_ms"},
               {"restore", false, true, restore, "n_restored", "n_read", "restore_ms"},
               {"erase", true, false, erase, "n_erased", NULL, NULL}};
#define N_ACTIONS (sizeof actions / sizeof *actions)

static bool read_ids(slot_action *w, lt_api_error *e) {
    lt_server *s = w->call->server;
    lt_listen listen = {0};
    if (!lt_chat_output_tools(&w->a, &listen, e)) {
        return false;
    }
    const lt_conversation c = {.messages = w->a.messages,
                               .tools = w->a.tools,
                               .kwargs = w->a.template_kwargs,
                               .add_generation_prompt = true};
    if ((w->a.prompt == NULL) == (w->a.messages == NULL)) {
        return lt_api_refuse(e, "prompt",
                             "'prompt' or 'messages' must name the text whose pages are meant");
    }
    return w->a.messages != NULL
               ? lt_conversation_ids(s, &c, &w->ids, NULL, e)
               : lt_prompts_mixed(s, w->a.prompt, "prompt", true, true, &w->ids, e);
}

/* A name, not a path: all files are in one folder. */
static bool read_path(slot_action *w, lt_api_error *e) {
    const char *name = w->a.filename, *folder = w->call->server->o.pages_folder;
    if (name == NULL || name[0] == '\0' || name[0] == '.' || strchr(name, '/') != NULL ||
        strlen(name) > 200) {
        return lt_api_refuse(e, "filename",
                             "'filename' is the name of a file in the folder of --slot-save-path: "
                             "at most 200 bytes, no '/', no '.' at its beginning");
    }
    return lt_path_join(w->path, folder, name) == LT_OK ||
           lt_api_refuse_error(e, "filename", LT_ERR_LIMIT);
}

static bool may_act(const lt_call *call, lt_api_error *e) {
    const char *folder = call->server->o.pages_folder;
    if (folder != NULL && folder[0] != '\0' && call->server->models == NULL) {
        return true;
    }
    lt_api_refuse(e, NULL, "%s",
                  call->server->models != NULL
                      ? "pages are saved and restored only where one model is served"
                      : "pages are saved and restored only where the server was started with "
                        "--slot-save-path DIR");
    e->status = 501;
    e->type = "not_supported_error";
    return false;
}

static bool find_action(const lt_call *call, size_t *which, lt_api_error *e) {
    char name[32];
    const size_t digits = strspn(call->tail, "0123456789");
    (void)lt_query_value(call->request->query, "action", name, sizeof name);
    for (*which = 0; *which < N_ACTIONS && strcmp(actions[*which].name, name) != 0; ++*which) {}
    if (*which == N_ACTIONS) {
        return lt_api_refuse(e, "action", "'action' must be save, restore or erase");
    }
    return (digits > 0 && digits < 10 && call->tail[digits] == '\0') ||
           lt_api_refuse(e, "id_slot", "the path is /slots/NUMBER");
}

/* The failure with the file's name instead of its path: clients need not know where the folder is
 * on the server's machine. */
static lt_err by_name(const slot_action *w, lt_err err) {
    char text[LT_ERROR_MESSAGE_BYTES], *at;
    const size_t n = strlen(w->path);
    (void)snprintf(text, sizeof text, "%s", lt_error_message());
    /* A name has no '/', so the loop ends. */
    while (n > 0 && (at = strstr(text, w->path)) != NULL) {
        const size_t name = strlen(w->a.filename);
        memcpy(at, w->a.filename, name);
        memmove(at + name, at + n, strlen(at + n) + 1);
    }
    return lt_error_set(err, "%s", text);
}

static bool act(slot_action *w, size_t which, lt_api_error *e) {
    lt_err err;
    w->salt = lt_server_cache_salt(w->call->server, w->call->owner, w->a.cache_salt);
    if ((actions[which].text && !read_ids(w, e)) || (actions[which].file && !read_path(w, e))) {
        return false;
    }
    err = actions[which].run(w);
    if (err != LT_OK) {
        lt_api_refuse_error(e, NULL, by_name(w, err));
    }
    if (err == LT_ERR_STATE) { /* The file belongs to another model. */
        e->status = 400;
        e->type = "invalid_request_error";
    }
    return err == LT_OK;
}

static void answer(lt_call *call, const slot_action *w, size_t which, double ms) {
    lt_json_out o = {0};
    lt_out_open(&o, '{');
    lt_out_key_int(&o, "id_slot", strtol(call->tail, NULL, 10));
    if (actions[which].file) {
        lt_out_key_str(&o, "filename", w->a.filename);
    }
    lt_out_key_int(&o, actions[which].tokens, w->kept.tokens);
    if (actions[which].bytes != NULL) {
        lt_out_key_int(&o, actions[which].bytes, w->kept.bytes);
        lt_out_key_open(&o, "timings", '{');
        lt_out_key_real(&o, actions[which].ms, ms);
        lt_out_shut(&o, '}');
    }
    lt_out_shut(&o, '}');
    lt_call_json(call, 200, &o);
}

void lt_api_slot_action(lt_call *call) {
    const double start_s = lt_clock_s();
    slot_action w = {.call = call};
    lt_api_error e = {0};
    size_t which;

    lt_api_params_defaults(&w.a);
    if (may_act(call, &e) && find_action(call, &which, &e) &&
        lt_call_read(call, &w.a, slot_fields, sizeof slot_fields / sizeof *slot_fields, &e) &&
        lt_server_check_model(call->server, &w.a, &e) && act(&w, which, &e)) {
        answer(call, &w, which, 1e3 * (lt_clock_s() - start_s));
    } else {
        lt_call_error(call, &e);
    }
    lt_ids_free(&w.ids);
    lt_api_params_free(&w.a);
}
