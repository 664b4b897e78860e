/* messages_format.c: see messages.h: how /v1/messages formats an answer.
 *
 * A stream is message_start, then for each block content_block_start, content_block_delta ...,
 * content_block_stop, then message_delta with the reason and the usage, then message_stop. A
 * thinking block ends with its signature: the sealed text (seal.h), so that a client that does not
 * receive the text (display: omitted) still returns it. */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/json.h"
#include "base/log.h"
#include "serve/api/formats/messages.h"

/* ---- The stream ---- */

static void event_begin(lt_reply *j, const char *type) {
    lt_out_open(&j->out, '{');
    lt_out_key_str(&j->out, "type", type);
}

static void event_end(lt_reply *j, const char *type) {
    lt_out_shut(&j->out, '}');
    lt_reply_send(j, type);
}

static const lt_messages *state_of(const lt_reply_choice *c) {
    return c->reply->format_state;
}

static void put_usage(lt_json_out *o, const lt_reply *j) {
    const int64_t cached = lt_reply_cached_tokens(j);
    lt_out_key_open(o, "usage", '{');
    lt_out_key_int(o, "input_tokens", lt_reply_prompt_tokens(j) - cached);
    lt_out_key_int(o, "cache_creation_input_tokens", 0);
    lt_out_key_int(o, "cache_read_input_tokens", cached);
    lt_out_key_int(o, "output_tokens", lt_reply_new_tokens(j));
    lt_out_key_open(o, "output_tokens_details", '{');
    lt_out_key_int(o, "thinking_tokens", lt_reply_reasoning_tokens(j));
    lt_out_shut(o, '}');
    lt_out_shut(o, '}');
}

/* Report what was removed from the conversation, if edits were requested. */
static void put_edits(lt_json_out *o, const lt_messages *st) {
    if (!st->edits) {
        return;
    }
    lt_out_key_open(o, "context_management", '{');
    lt_out_key_open(o, "applied_edits", '[');
    if (st->cleared_turns > 0) {
        lt_out_open(o, '{');
        lt_out_key_str(o, "type", "clear_thinking_20251015");
        lt_out_key_int(o, "cleared_thinking_turns", st->cleared_turns);
        lt_out_key_int(o, "cleared_input_tokens", st->cleared_tokens);
        lt_out_shut(o, '}');
    }
    lt_out_shut(o, ']');
    lt_out_shut(o, '}');
}

/* The sealed text of a thinking block; "" if memory is exhausted. */
static char *sign(const lt_reply_choice *c, const lt_chat_item *item) {
    lt_seal_key key;
    return lt_server_seal_key(c->reply->server, c->reply->owner, &key)
               ? lt_seal(&key, item->text.data != NULL ? item->text.data : "", item->text.n)
               : NULL;
}

static void format_begin(lt_reply *j) {
    lt_json_out *o = &j->out;
    event_begin(j, "message_start");
    lt_out_key_open(o, "message", '{');
    lt_out_key_str(o, "id", j->id);
    lt_out_key_str(o, "type", "message");
    lt_out_key_str(o, "role", "assistant");
    lt_out_key_str(o, "model", lt_reply_model(j));
    lt_out_key_open(o, "content", '[');
    lt_out_shut(o, ']');
    lt_out_key_null(o, "stop_reason");
    lt_out_key_null(o, "stop_sequence");
    put_usage(o, j);
    lt_out_shut(o, '}');
    event_end(j, "message_start");
}

static void delta_event(lt_reply_choice *c, int index, const char *type, const char *key,
                        const char *text, size_t n) {
    lt_json_out *o = &c->reply->out;
    event_begin(c->reply, "content_block_delta");
    lt_out_key_int(o, "index", index);
    lt_out_key_open(o, "delta", '{');
    lt_out_key_str(o, "type", type);
    lt_out_key(o, key);
    lt_out_str(o, text, n);
    lt_out_shut(o, '}');
    event_end(c->reply, "content_block_delta");
}

static void block_stop(lt_reply_choice *c, int index) {
    const lt_chat_item *item = lt_chat_item_at(c, index);
    if (item->kind == LT_CHAT_REASONING) {
        char *signature = sign(c, item);
        if (signature != NULL) {
            delta_event(c, index, "signature_delta", "signature", signature, strlen(signature));
        }
        free(signature);
    }
    event_begin(c->reply, "content_block_stop");
    lt_out_key_int(&c->reply->out, "index", index);
    event_end(c->reply, "content_block_stop");
}

static void block_start(lt_reply_choice *c, int index) {
    lt_json_out *o = &c->reply->out;
    const lt_chat_item *item = lt_chat_item_at(c, index);
    event_begin(c->reply, "content_block_start");
    lt_out_key_int(o, "index", index);
    lt_out_key_open(o, "content_block", '{');
    switch (item->kind) {
    case LT_CHAT_CONTENT:
        lt_out_key_str(o, "type", "text");
        lt_out_key_str(o, "text", "");
        break;
    case LT_CHAT_REASONING:
        lt_out_key_str(o, "type", "thinking");
        lt_out_key_str(o, "thinking", "");
        lt_out_key_str(o, "signature", "");
        break;
    case LT_CHAT_CALL:
        lt_out_key_str(o, "type", "tool_use");
        lt_out_key_str(o, "id", item->id);
        lt_out_key_str(o, "name", item->name);
        lt_out_key_open(o, "input", '{');
        lt_out_shut(o, '}');
        break;
    }
    lt_out_shut(o, '}');
    event_end(c->reply, "content_block_start");
}

static void on_piece(lt_reply_choice *c, int item, bool fresh, const char *text, size_t n) {
    static const char *const types[] = {"text_delta", "thinking_delta", "input_json_delta"};
    static const char *const keys[] = {"text", "thinking", "partial_json"};
    const lt_chat_item_kind kind = lt_chat_item_at(c, item)->kind;

    if (!c->reply->stream) {
        return;
    }
    if (fresh && item > 0) {
        block_stop(c, item - 1);
    }
    if (fresh) {
        block_start(c, item);
    }
    if (n > 0 && !(kind == LT_CHAT_REASONING && state_of(c)->omitted)) {
        delta_event(c, item, types[kind], keys[kind], text, n);
    }
}

static void put_stop(lt_json_out *o, const lt_reply_choice *c) {
    const lt_reply *j = c->reply;
    const char *why = "end_turn";
    if (c->stop_index >= 0) {
        why = "stop_sequence";
    } else if (c->finish == LT_FINISH_LENGTH) {
        why = c->new_tokens < j->params.max_tokens ? "model_context_window_exceeded" : "max_tokens";
    } else if (c->state != NULL && ((const lt_chat_output *)c->state)->n_calls > 0) {
        why = "tool_use";
    }
    lt_out_key_str(o, "stop_reason", why);
    lt_out_key(o, "stop_sequence");
    if (c->stop_index >= 0) {
        lt_out_str(o, j->stops[c->stop_index], j->stop_lengths[c->stop_index]);
    } else {
        lt_out_null(o);
    }
}

/* ---- The formatter ---- */

static void format_choice_end(lt_reply_choice *c) {
    if (!lt_chat_output_finish(c)) {
        return;
    }
    if (c->reply->stream && ((const lt_chat_output *)c->state)->n_items > 0) {
        block_stop(c, ((const lt_chat_output *)c->state)->n_items - 1);
    }
}

static void put_block(lt_json_out *o, const lt_reply_choice *c, const lt_chat_item *item) {
    const char *text = item->text.data != NULL ? item->text.data : "";
    char *signature = NULL;
    json_t *input;
    lt_out_open(o, '{');
    switch (item->kind) {
    case LT_CHAT_CONTENT:
        lt_out_key_str(o, "type", "text");
        lt_out_key(o, "text");
        lt_out_str(o, text, item->text.n);
        break;
    case LT_CHAT_REASONING:
        lt_out_key_str(o, "type", "thinking");
        lt_out_key(o, "thinking");
        lt_out_str(o, text, state_of(c)->omitted ? 0 : item->text.n);
        signature = sign(c, item);
        lt_out_key_str(o, "signature", signature != NULL ? signature : "");
        free(signature);
        break;
    case LT_CHAT_CALL:
        lt_out_key_str(o, "type", "tool_use");
        lt_out_key_str(o, "id", item->id);
        lt_out_key_str(o, "name", item->name);
        input = lt_json_loadb_exact(text, item->text.n, JSON_ALLOW_NUL, NULL);
        lt_out_key(o, "input");
        if (json_is_object(input)) {
            lt_out_value(o, input);
        } else { /* It was cut off because the length was reached. */
            lt_out_open(o, '{');
            lt_out_shut(o, '}');
        }
        json_decref(input);
        break;
    }
    lt_out_shut(o, '}');
}

static void put_content(lt_json_out *o, const lt_reply_choice *c) {
    const lt_chat_output *s = c->state;
    lt_out_key_open(o, "content", '[');
    for (int i = 0; s != NULL && i < s->n_items; i++) {
        put_block(o, c, &s->items[i]);
    }
    lt_out_shut(o, ']');
}

/* Store what the next turn of the thread needs. */
static void keep(lt_reply *j) {
    const lt_messages *st = j->format_state;
    const json_t *root = j->params.root;
    lt_json_out o = {0};

    lt_out_open(&o, '{');
    if (st->previous == NULL) {
        lt_out_key_value(&o, "system", json_object_get(root, "system"));
        lt_out_key_value(&o, "tools", json_object_get(root, "asked_tools"));
    }
    lt_out_key_value(&o, "messages", st->own);
    put_content(&o, &j->parts[0].choices[0]);
    lt_out_shut(&o, '}');
    if (o.failed ||
        !lt_store_put(j->server->store, j->id, j->owner, st->previous, o.data, o.n, lt_clock_s())) {
        lt_log_warn("the thread of %s is not kept: its %zu bytes do not fit in the store", j->id,
                    o.n);
    }
    lt_out_free(&o);
}

static void format_finish(lt_reply *j) {
    lt_json_out *o = &j->out;
    const lt_messages *st = j->format_state;
    lt_reply_choice *c = &j->parts[0].choices[0];

    if (st->keep) {
        keep(j);
    }
    if (j->stream) {
        event_begin(j, "message_delta");
        lt_out_key_open(o, "delta", '{');
        put_stop(o, c);
        lt_out_shut(o, '}');
        put_usage(o, j);
        put_edits(o, st);
        event_end(j, "message_delta");
        event_begin(j, "message_stop");
        event_end(j, "message_stop");
        return;
    }
    lt_out_open(o, '{');
    lt_out_key_str(o, "id", j->id);
    lt_out_key_str(o, "type", "message");
    lt_out_key_str(o, "role", "assistant");
    lt_out_key_str(o, "model", lt_reply_model(j));
    put_content(o, c);
    put_stop(o, c);
    put_usage(o, j);
    put_edits(o, st);
    lt_out_shut(o, '}');
}

static void format_failed(lt_reply *j, const lt_api_error *e) {
    lt_error_write(&j->out, j->flavour, j->extra, e);
    lt_reply_send(j, "error");
}

static void format_free(lt_reply *j) {
    if (j->n_parts > 0 && j->parts[0].choices != NULL) {
        lt_chat_output_close(&j->parts[0].choices[0]);
    }
    if (j->format_state != NULL) {
        lt_store_release(j->server->store, ((lt_messages *)j->format_state)->previous);
        free(j->format_state);
    }
}

const lt_formatter lt_messages_formatter = {.begin = format_begin,
                                            .token = lt_chat_output_token,
                                            .text = lt_chat_output_text,
                                            .piece = on_piece,
                                            .choice_end = format_choice_end,
                                            .finish = format_finish,
                                            .failed = format_failed,
                                            .free = format_free};
