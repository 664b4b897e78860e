/* speech.c: see speech.h.
 *
 *   START ──<think>──▶ THINK ──</think>──▶ TEXT ──<tool_call>──▶ CALL ──</tool_call>──▶ TEXT ...
 *     └── anything else ───────────────────▶ │
 *     └── "{" where calls are bare ──▶ BARE ─┴─ end: parsed, or content after all */
#include "serve/speech.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"

lt_speech_marks lt_speech_detect(const char *template_text) {
    lt_speech_marks m = {0};
    const char *t = template_text != NULL ? template_text : "";
    if (strstr(t, "</think>") != NULL) {
        m.think_open = "<think>";
        m.think_close = "</think>";
    } else if (strstr(t, "[/THINK]") != NULL) {
        m.think_open = "[THINK]";
        m.think_close = "[/THINK]";
    }
    if (strstr(t, "[TOOL_CALLS]") != NULL) {
        m.call_open = "[TOOL_CALLS]"; /* A list, to the end. */
    } else if (strstr(t, "<tool_call>") != NULL) {
        m.call_open = "<tool_call>";
        m.call_close = "</tool_call>";
    } else {
        m.bare = true;
    }
    return m;
}

/* ---- Items ---- */

bool lt_speech_open(lt_strand *c) {
    lt_speech *s = calloc(1, sizeof *s);
    c->face = s;
    if (s != NULL && c->reply->listen.opened) {
        s->state = LT_HEARING_THINK; /* The prompt ended with the opening mark. */
    }
    return s != NULL;
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
    lt_out_free(&s->held);
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

static void say_call(lt_strand *c, const char *name, const json_t *arguments, lt_speech_fn on) {
    lt_speech *s = c->face;
    lt_json_out text = {0};
    if (begin_item(c, LT_SPEECH_CALL, name) == NULL) {
        return;
    }
    on(c, s->n_items - 1, true, "", 0);
    if (json_is_string(arguments)) {
        lt_out_raw(&text, json_string_value(arguments), json_string_length(arguments));
    } else if (arguments != NULL) {
        lt_out_value(&text, arguments);
    } else {
        lt_out_raw(&text, "{}", 2);
    }
    if (text.data != NULL) {
        lt_out_raw(&s->items[s->n_items - 1].text, text.data, text.n);
        on(c, s->n_items - 1, false, text.data, text.n);
    }
    lt_out_free(&text);
}

/* ---- Calls ---- */

static bool is_call(const json_t *v) {
    return json_is_string(json_object_get(v, "name"));
}

static void say_object(lt_strand *c, const json_t *v, lt_speech_fn on) {
    const json_t *arguments = json_object_get(v, "arguments");
    if (arguments == NULL) {
        arguments = json_object_get(v, "parameters"); /* Llama 3. */
    }
    say_call(c, json_string_value(json_object_get(v, "name")), arguments, on);
}

/* name[ARGS]{...}, as newer Mistral models write. */
static bool say_named(lt_strand *c, const char *text, size_t n, lt_speech_fn on) {
    const char *brace = memchr(text, '{', n);
    char name[128];
    size_t width = brace != NULL ? (size_t)(brace - text) : 0;
    json_t *arguments;

    if (width > 6 && memcmp(brace - 6, "[ARGS]", 6) == 0) {
        width -= 6;
    }
    while (width > 0 && isspace((unsigned char)text[width - 1])) {
        width--;
    }
    if (width == 0 || width >= sizeof name || memchr(text, ' ', width) != NULL) {
        return false;
    }
    arguments = json_loadb(brace, n - (size_t)(brace - text), JSON_ALLOW_NUL, NULL);
    if (arguments == NULL) {
        return false;
    }
    memcpy(name, text, width);
    name[width] = '\0';
    say_call(c, name, arguments, on);
    json_decref(arguments);
    return true;
}

/* One call, a list of calls, or NAME{...}. */
static bool say_calls(lt_strand *c, const char *text, size_t n, lt_speech_fn on) {
    json_t *v;
    bool ok;
    for (; n > 0 && isspace((unsigned char)*text); text++, n--) {}
    v = json_loadb(text, n, JSON_ALLOW_NUL | JSON_DISABLE_EOF_CHECK, NULL);
    ok = is_call(v) || (json_is_array(v) && json_array_size(v) > 0);
    for (size_t i = 0; ok && i < json_array_size(v); i++) {
        ok = is_call(json_array_get(v, i));
    }
    if (!ok) {
        json_decref(v);
        return say_named(c, text, n, on);
    }
    if (json_is_object(v)) {
        say_object(c, v, on);
    }
    for (size_t i = 0; i < json_array_size(v); i++) {
        say_object(c, json_array_get(v, i), on);
    }
    json_decref(v);
    return true;
}

/* ---- Hearing ---- */

static void drop(lt_speech *s, size_t n) {
    memmove(s->held.data, s->held.data + n, s->held.n - n);
    s->held.n -= n;
    s->held.data[s->held.n] = '\0';
}

/* Bytes at the end of what is held that begin the mark. */
static size_t begins(const lt_speech *s, const char *mark) {
    const size_t width = strlen(mark);
    size_t k = width - 1 < s->held.n ? width - 1 : s->held.n;
    while (k > 0 && memcmp(s->held.data + s->held.n - k, mark, k) != 0) {
        k--;
    }
    return k;
}

/* Say what stands before the mark; true: the mark was there, and is dropped. */
static bool until(lt_strand *c, const char *mark, lt_speech_kind kind, lt_speech_fn on) {
    lt_speech *s = c->face;
    const char *hit = memmem(s->held.data, s->held.n, mark, strlen(mark));
    const size_t n = hit != NULL ? (size_t)(hit - s->held.data) : s->held.n - begins(s, mark);
    say(c, kind, s->held.data, n, on);
    drop(s, hit != NULL ? n + strlen(mark) : n);
    return hit != NULL;
}

/* The first words tell what comes. False: they are not enough yet. */
static bool hear_start(lt_strand *c) {
    lt_speech *s = c->face;
    const lt_speech_marks *m = &c->reply->server->marks;
    const lt_listen *l = &c->reply->listen;
    const char *p = s->held.data;
    size_t n = s->held.n;

    for (; n > 0 && isspace((unsigned char)*p); p++, n--) {}
    if (n == 0) {
        return false;
    }
    if (l->think) {
        const size_t width = strlen(m->think_open);
        if (n >= width && memcmp(p, m->think_open, width) == 0) {
            drop(s, (size_t)(p - s->held.data) + width);
            s->state = LT_HEARING_THINK;
            s->trim = true;
            return true;
        }
        if (n < width && memcmp(p, m->think_open, n) == 0) {
            return false;
        }
    }
    if (l->tools && l->bare && (*p == '{' || *p == '[')) {
        s->state = LT_HEARING_BARE;
        return false;
    }
    s->state = LT_HEARING_TEXT;
    return true;
}

static bool hear_call(lt_strand *c, lt_speech_fn on) {
    lt_speech *s = c->face;
    const lt_speech_marks *m = &c->reply->server->marks;
    const char *hit = m->call_close != NULL
                          ? memmem(s->held.data, s->held.n, m->call_close, strlen(m->call_close))
                          : NULL;
    if (hit == NULL) {
        return false;
    }
    if (!say_calls(c, s->held.data, (size_t)(hit - s->held.data), on)) {
        say(c, LT_SPEECH_CONTENT, m->call_open, strlen(m->call_open), on);
        say(c, LT_SPEECH_CONTENT, s->held.data, (size_t)(hit - s->held.data), on);
        say(c, LT_SPEECH_CONTENT, m->call_close, strlen(m->call_close), on);
    }
    drop(s, (size_t)(hit - s->held.data) + strlen(m->call_close));
    s->state = LT_HEARING_TEXT;
    s->trim = true;
    return true;
}

/* One step; false: more text is needed. */
static bool hear(lt_strand *c, lt_speech_fn on) {
    lt_speech *s = c->face;
    const lt_speech_marks *m = &c->reply->server->marks;
    const lt_listen *l = &c->reply->listen;

    while (s->trim && s->held.n > 0 && isspace((unsigned char)s->held.data[0])) {
        drop(s, 1);
    }
    if (s->held.n == 0) {
        return false;
    }
    s->trim = false;
    switch (s->state) {
    case LT_HEARING_START:
        return hear_start(c);
    case LT_HEARING_THINK:
        if (!until(c, m->think_close, LT_SPEECH_REASONING, on)) {
            return false;
        }
        s->state = l->bare ? LT_HEARING_START : LT_HEARING_TEXT;
        s->trim = true;
        return true;
    case LT_HEARING_TEXT:
        if (!l->tools || l->bare || m->call_open == NULL) {
            say(c, LT_SPEECH_CONTENT, s->held.data, s->held.n, on);
            drop(s, s->held.n);
            return false;
        }
        if (!until(c, m->call_open, LT_SPEECH_CONTENT, on)) {
            return false;
        }
        s->state = LT_HEARING_CALL;
        return true;
    case LT_HEARING_CALL:
        return hear_call(c, on);
    case LT_HEARING_BARE:
        break;
    }
    return false;
}

void lt_speech_feed(lt_strand *c, const char *text, size_t n, lt_speech_fn on) {
    lt_speech *s = c->face;
    lt_out_raw(&s->held, text, n);
    while (!s->held.failed && hear(c, on)) {}
}

void lt_speech_end(lt_strand *c, lt_speech_fn on) {
    lt_speech *s = c->face;
    const lt_speech_marks *m = &c->reply->server->marks;
    if (s->held.n == 0 || s->held.failed || s->trim) {
        return;
    }
    if ((s->state == LT_HEARING_CALL || s->state == LT_HEARING_BARE) &&
        say_calls(c, s->held.data, s->held.n, on)) {
        return;
    }
    if (s->state == LT_HEARING_CALL) {
        say(c, LT_SPEECH_CONTENT, m->call_open, strlen(m->call_open), on);
    }
    say(c, s->state == LT_HEARING_THINK ? LT_SPEECH_REASONING : LT_SPEECH_CONTENT, s->held.data,
        s->held.n, on);
}

bool lt_speech_in_reasoning(const lt_strand *c) {
    return ((const lt_speech *)c->face)->state == LT_HEARING_THINK;
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
