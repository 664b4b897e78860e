/* chat_output.c: see chat_output.h. */
#include "serve/api/formats/chat_output.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/log.h"

static bool open_speech(lt_reply_choice *c) {
    const lt_listen *l = &c->reply->listen;
    const lt_parse_marks *marks = &c->reply->server->marks;
    lt_chat_output *s = calloc(1, sizeof *s);
    if (s == NULL || lt_parser_open(&s->parser, &(lt_parse_options){
                                                    .format = marks->format,
                                                    .tools = l->tools,
                                                    .reasoning = l->think,
                                                    .thinks = l->opened,
                                                    .think_open = marks->think_open,
                                                    .think_close = marks->think_close}) != LT_OK) {
        free(s);
        return false;
    }
    c->state = s;
    return true;
}

void lt_chat_output_close(lt_reply_choice *c) {
    lt_chat_output *s = c->state;
    if (s == NULL) {
        return;
    }
    for (int i = 0; i < s->n_items; i++) {
        free(s->items[i].name);
        lt_out_free(&s->items[i].text);
    }
    free(s->items);
    lt_parser_close(s->parser);
    free(s);
    c->state = NULL;
}

/* Append a new item; NULL: out of memory. */
static lt_chat_item *begin_item(lt_reply_choice *c, lt_chat_item_kind kind, const char *name,
                                size_t n) {
    static const char *const prefixes[] = {"msg_", "rs_", "call_"};
    lt_chat_output *s = c->state;
    lt_chat_item *item;

    if (s->n_items == s->room) {
        const int room = s->room > 0 ? 2 * s->room : 4;
        lt_chat_item *grown = realloc(s->items, (size_t)room * sizeof *grown);
        if (grown == NULL) {
            return NULL;
        }
        s->items = grown;
        s->room = room;
    }
    item = &s->items[s->n_items];
    *item = (lt_chat_item){.kind = kind, .call = -1};
    lt_server_make_id(c->reply->server, prefixes[kind], item->id);
    if (kind == LT_CHAT_CALL) {
        item->name = strndup(name, n);
        if (item->name == NULL) {
            return NULL;
        }
        item->call = s->n_calls++;
    }
    s->n_items++;
    return item;
}

/* The last item consists of the tokens up to the current one. A later item begins with the current
 * token, unless the previous item already has it. */
static void note_logs(const lt_reply_choice *c, bool fresh) {
    const lt_chat_output *s = c->state;
    lt_chat_item *item = &s->items[s->n_items - 1];
    if (fresh && s->n_items > 1) {
        const size_t behind = item[-1].logs_to, at = c->logs.n > 0 ? c->logs.n - 1 : 0;
        item->logs_from = behind > at ? behind : at;
    }
    item->logs_to = c->logs.n;
}

static void on_part(void *ctx, lt_part_kind part, int call, const char *text, size_t n) {
    static const lt_chat_item_kind kinds[] = {LT_CHAT_CONTENT, LT_CHAT_REASONING, LT_CHAT_CALL,
                                              LT_CHAT_CALL};
    lt_reply_choice *c = ctx;
    lt_chat_output *s = c->state;
    const lt_chat_item_kind kind = kinds[part];
    const bool fresh = part == LT_PART_CALL_NAME || s->n_items == 0 ||
                       s->items[s->n_items - 1].kind != kind;
    (void)call;
    if (fresh && begin_item(c, kind, text, n) == NULL) {
        return;
    }
    note_logs(c, fresh);
    if (part == LT_PART_CALL_NAME) {
        c->reply->formatter->piece(c, s->n_items - 1, true, "", 0);
        return;
    }
    lt_out_raw(&s->items[s->n_items - 1].text, text, n);
    c->reply->formatter->piece(c, s->n_items - 1, fresh, text, n);
}

void lt_chat_output_token(lt_reply_choice *c) {
    const lt_chat_output *s = c->state;
    if (s != NULL && lt_parser_in_reasoning(s->parser)) {
        c->reasoning_tokens++;
    }
}

void lt_chat_output_text(lt_reply_choice *c, const char *text, size_t n) {
    const lt_chat_output *s;
    if (c->state == NULL && !open_speech(c)) {
        return;
    }
    s = c->state;
    if (lt_parser_feed(s->parser, text, n, on_part, c) != LT_OK) {
        lt_log_warn("an answer's text is lost: %s", lt_error_message());
    }
}

bool lt_chat_output_finish(lt_reply_choice *c) {
    const lt_listen *l = &c->reply->listen;
    const bool whole = c->finish == LT_FINISH_EOS || c->finish == LT_FINISH_GRAMMAR;
    const lt_chat_output *s;
    if (c->state == NULL && !open_speech(c)) {
        return false;
    }
    s = c->state;
    if ((whole ? lt_parser_end(s->parser, on_part, c)
               : lt_parser_cut(s->parser, l->callable, l->forced, on_part, c)) != LT_OK) {
        lt_log_warn("an answer's text is lost: %s", lt_error_message());
    }
    return true;
}

void lt_chat_output_gather(const lt_chat_output *s, lt_chat_item_kind kind, lt_json_out *out) {
    for (int i = 0; i < s->n_items; i++) {
        if (s->items[i].kind == kind && s->items[i].text.n > 0) {
            lt_out_raw(out, s->items[i].text.data, s->items[i].text.n);
        }
    }
}

void lt_chat_output_answer(const lt_reply_choice *c, lt_json_out *out) {
    if (c->state != NULL) { /* Otherwise it has no text yet. */
        lt_chat_output_gather(c->state, LT_CHAT_CONTENT, out);
    }
}

bool lt_chat_output_has(const lt_chat_output *s, lt_chat_item_kind kind) {
    for (int i = 0; i < s->n_items; i++) {
        if (s->items[i].kind == kind) {
            return true;
        }
    }
    return false;
}
