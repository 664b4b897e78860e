/* responses_format.c: see responses.h: how /v1/responses formats an answer as it is generated.
 *
 * A stream reports the life of each output item: added, its part added, deltas, done; between
 * response.created and response.completed, with all events numbered. The response is stored before
 * its last event is sent, so that the next request may follow at once. */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "serve/api/formats/responses.h"

/* ---- Events ---- */

static void event_begin(lt_reply *j, const char *type) {
    lt_responses *st = j->format_state;
    lt_out_open(&j->out, '{');
    lt_out_key_str(&j->out, "type", type);
    lt_out_key_int(&j->out, "sequence_number", st->sequence++);
}

static void event_end(lt_reply *j, const char *type) {
    lt_out_shut(&j->out, '}');
    lt_reply_send(j, type);
}

static void response_event(lt_reply *j, const char *type, lt_response_state state) {
    event_begin(j, type);
    lt_out_key(&j->out, "response");
    lt_response_write(&j->out, j, state);
    event_end(j, type);
}

/* Whether the reasoning is sent as a summary, which has its own events. */
static bool as_summary(const lt_reply_choice *c, int index) {
    const lt_responses *st = c->reply->format_state;
    return st->summary && lt_chat_item_at(c, index)->kind == LT_CHAT_REASONING;
}

/* item_id, output_index and, for texts, the index of the part. */
static void put_place(lt_reply_choice *c, int index) {
    lt_json_out *o = &c->reply->out;
    char id[56];
    lt_out_key_str(o, "item_id", lt_response_item_id(lt_chat_item_at(c, index), id));
    lt_out_key_int(o, "output_index", index);
    if (lt_chat_item_at(c, index)->kind != LT_CHAT_CALL) {
        lt_out_key_int(o, as_summary(c, index) ? "summary_index" : "content_index", 0);
    }
}

static void item_event(lt_reply_choice *c, int index, bool done) {
    const char *type = done ? "response.output_item.done" : "response.output_item.added";
    lt_json_out *o = &c->reply->out;
    event_begin(c->reply, type);
    lt_out_key_int(o, "output_index", index);
    lt_out_key(o, "item");
    lt_response_item_write(o, c, index, done);
    event_end(c->reply, type);
}

static void part_event(lt_reply_choice *c, int index, bool done) {
    static const char *const types[2][2] = {
        {"response.content_part.added", "response.content_part.done"},
        {"response.reasoning_summary_part.added", "response.reasoning_summary_part.done"}};
    const char *type = types[as_summary(c, index)][done];
    if (lt_chat_item_at(c, index)->kind == LT_CHAT_CALL) {
        return;
    }
    event_begin(c->reply, type);
    put_place(c, index);
    lt_out_key(&c->reply->out, "part");
    lt_response_part_write(&c->reply->out, c, index, done);
    event_end(c->reply, type);
}

static void text_event(lt_reply_choice *c, int index, bool done, const char *text, size_t n) {
    static const char *const types[4][2] = {
        {"response.output_text.delta", "response.output_text.done"},
        {"response.reasoning_text.delta", "response.reasoning_text.done"},
        {"response.function_call_arguments.delta", "response.function_call_arguments.done"},
        {"response.reasoning_summary_text.delta", "response.reasoning_summary_text.done"}};
    const lt_chat_item *item = lt_chat_item_at(c, index);
    const char *type = types[as_summary(c, index) ? 3 : item->kind][done];
    lt_json_out *o = &c->reply->out;

    event_begin(c->reply, type);
    put_place(c, index);
    if (item->kind == LT_CHAT_CALL && done) {
        lt_out_key_str(o, "name", item->name);
    }
    lt_out_key(o, !done ? "delta" : item->kind == LT_CHAT_CALL ? "arguments" : "text");
    lt_out_str(o, text, n);
    if (item->kind == LT_CHAT_CONTENT) {
        lt_response_logprobs_write(o, c, done ? item->logs_from : c->logs.sent, item->logs_to);
        c->logs.sent = item->logs_to;
    }
    event_end(c->reply, type);
}

static void end_item(lt_reply_choice *c, int index) {
    const lt_json_out *text = &lt_chat_item_at(c, index)->text;
    text_event(c, index, true, text->data != NULL ? text->data : "", text->n);
    part_event(c, index, true);
    item_event(c, index, true);
}

static void begin_item(lt_reply_choice *c, int index) {
    c->logs.sent = lt_chat_item_at(c, index)->logs_from;
    item_event(c, index, false);
    part_event(c, index, false);
}

static void on_piece(lt_reply_choice *c, int item, bool fresh, const char *text, size_t n) {
    if (!lt_reply_is_live(c->reply)) {
        return;
    }
    if (fresh && item > 0) {
        end_item(c, item - 1);
    }
    if (fresh) {
        begin_item(c, item);
    }
    if (n > 0) {
        text_event(c, item, false, text, n);
    }
}

/* ---- The formatter ---- */

static void format_begin(lt_reply *j) {
    response_event(j, "response.created", LT_RESPONSE_RUNNING);
    response_event(j, "response.in_progress", LT_RESPONSE_RUNNING);
}

static void format_choice_end(lt_reply_choice *c) {
    const lt_chat_output *s;
    if (!lt_chat_output_finish(c)) {
        return;
    }
    s = c->state;
    if (lt_reply_is_live(c->reply) && s->n_items > 0) {
        end_item(c, s->n_items - 1);
    }
}

/* A group's answer is known only at its end; a stream then sends it at once. */
static void send_kept(lt_reply *j) {
    lt_reply_choice *c = lt_group_kept(j);
    const lt_chat_output *s = c->state;
    for (int i = 0; i < s->n_items; i++) {
        const lt_json_out *text = &s->items[i].text;
        begin_item(c, i);
        if (text->n > 0) {
            text_event(c, i, false, text->data, text->n);
        }
        end_item(c, i);
    }
}

/* Store the response and its input items, for GET and for the next turn. */
static void keep(lt_reply *j) {
    lt_responses *st = j->format_state;
    lt_json_out o = {0};

    lt_out_open(&o, '{');
    lt_out_key(&o, "response");
    lt_response_write(&o, j, LT_RESPONSE_DONE);
    lt_out_key_value(&o, "input", st->input);
    lt_out_shut(&o, '}');
    st->keep = !o.failed && lt_store_put(j->server->store, j->id, j->owner, st->previous, o.data,
                                         o.n, lt_clock_s());
    if (!st->keep) {
        lt_log_warn("%s is not stored: its %zu bytes do not fit in the store", j->id, o.n);
    }
    lt_out_free(&o);
}

static void format_finish(lt_reply *j) {
    const bool cut = lt_response_choice(j)->finish == LT_FINISH_LENGTH;
    const lt_responses *st = j->format_state;
    if (j->stream && j->group != NULL) {
        send_kept(j);
    }
    if (st->keep) {
        keep(j);
    }
    if (j->stream) {
        response_event(j, cut ? "response.incomplete" : "response.completed", LT_RESPONSE_DONE);
    } else {
        lt_response_write(&j->out, j, LT_RESPONSE_DONE);
    }
}

static void format_failed(lt_reply *j, const lt_api_error *e) {
    lt_responses *st = j->format_state;
    event_begin(j, "error");
    lt_out_key_str(&j->out, "code", e->code != NULL ? e->code : e->type);
    lt_out_key_str(&j->out, "message", e->message);
    lt_out_key_null(&j->out, "param");
    event_end(j, "error");
    st->why = e;
    response_event(j, "response.failed", LT_RESPONSE_FAILED);
    st->why = NULL;
}

static void format_free(lt_reply *j) {
    lt_responses *st = j->format_state;
    for (int64_t i = 0; j->n_parts > 0 && j->parts[0].choices != NULL && i < j->n_choices; i++) {
        lt_chat_output_close(&j->parts[0].choices[i]);
    }
    if (st != NULL) {
        lt_store_release(j->server->store, st->previous);
        free(st);
    }
}

const lt_formatter lt_responses_formatter = {.begin = format_begin,
                                             .token = lt_chat_output_token,
                                             .text = lt_chat_output_text,
                                             .piece = on_piece,
                                             .answer = lt_chat_output_answer,
                                             .choice_end = format_choice_end,
                                             .finish = format_finish,
                                             .failed = format_failed,
                                             .free = format_free};
