/* speech.c: see speech.h. */
#include "serve/speech.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"

bool lt_speech_open(lt_strand *c) {
    c->face = calloc(1, sizeof(lt_speech));
    return c->face != NULL;
}

void lt_speech_close(lt_strand *c) {
    lt_speech *s = c->face;
    if (s == NULL) {
        return;
    }
    for (int i = 0; i < s->n_items; i++) {
        free(s->items[i].name);
        lt_out_free(&s->items[i].text);
    }
    free(s->items);
    free(s);
    c->face = NULL;
}

/* A new item at the end; NULL: out of memory. */
static lt_speech_item *begin_item(lt_strand *c, lt_speech_kind kind, const char *name) {
    static const char *const prefixes[] = {"msg_", "rs_", "call_"};
    lt_speech *s = c->face;
    lt_speech_item *item;

    if (s->n_items == s->room) {
        const int room = s->room > 0 ? 2 * s->room : 4;
        lt_speech_item *grown = realloc(s->items, (size_t)room * sizeof *grown);
        if (grown == NULL) {
            return NULL;
        }
        s->items = grown;
        s->room = room;
    }
    item = &s->items[s->n_items++];
    *item = (lt_speech_item){.kind = kind, .call = -1};
    lt_server_make_id(c->reply->server, prefixes[kind], item->id);
    if (kind == LT_SPEECH_CALL) {
        item->call = s->n_calls++;
        item->name = strdup(name != NULL ? name : "");
    }
    return item;
}

static void say(lt_strand *c, lt_speech_kind kind, const char *text, size_t n, lt_speech_fn on) {
    lt_speech *s = c->face;
    bool fresh = false;
    if (n == 0) {
        return;
    }
    if (s->n_items == 0 || s->items[s->n_items - 1].kind != kind) {
        fresh = true;
        if (begin_item(c, kind, NULL) == NULL) {
            return;
        }
    }
    lt_out_raw(&s->items[s->n_items - 1].text, text, n);
    on(c, s->n_items - 1, fresh, text, n);
}

void lt_speech_feed(lt_strand *c, const char *text, size_t n, lt_speech_fn on) {
    say(c, LT_SPEECH_CONTENT, text, n, on);
}

void lt_speech_end(lt_strand *c, lt_speech_fn on) {
    (void)c;
    (void)on;
}

bool lt_speech_in_reasoning(const lt_strand *c) {
    (void)c;
    return false;
}

void lt_speech_gather(const lt_speech *s, lt_speech_kind kind, lt_json_out *out) {
    for (int i = 0; i < s->n_items; i++) {
        if (s->items[i].kind == kind && s->items[i].text.n > 0) {
            lt_out_raw(out, s->items[i].text.data, s->items[i].text.n);
        }
    }
}

bool lt_speech_has(const lt_speech *s, lt_speech_kind kind) {
    for (int i = 0; i < s->n_items; i++) {
        if (s->items[i].kind == kind) {
            return true;
        }
    }
    return false;
}
