/* tournament.c: see tournament.h. */
#include "serve/api/align/tournament.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "data/tokenizer/bpe.h"
#include "serve/api/formats/conversation.h"

static const char asks[] = "Here is a request, and two answers to it.\n\nRequest:\n";
static const char first[] = "\n\nAnswer A:\n", second[] = "\n\nAnswer B:\n";
static const char criterion[] = "Which answer is better?";
static const char letters[] = " Reply with one letter, A or B.";

/* A match of two texts, in both orders: share is that of x. */
typedef struct {
    int64_t x, y;
    double share;
    lt_part parts[2]; /* x as A; y as A. */
} match;

struct lt_tournament {
    lt_reply *reply;
    lt_json_out question, *texts;         /* (n) */
    int64_t n, n_left, n_matches, n_open; /* n_open: number of open requests of this round. */
    int64_t *left, *wins;                 /* (n) */
    match *matches;                       /* (n / 2) of this round */
    int32_t ids[2];                       /* Ids of the letters. */
    int64_t tokens;
};

/* ---- What is asked ---- */

/* The token that ends the letter's encoding, if it is the letter alone or after a space. */
static bool letter_id(lt_server *s, const char *letter, int32_t *out, lt_api_error *e) {
    lt_ids ids = {0};
    size_t n = 0;
    const char *piece;
    bool ok = lt_server_encode(s, letter, 1, 0, &ids, e);
    *out = ok && ids.n > 0 ? (int32_t)ids.data[ids.n - 1] : -1;
    lt_ids_free(&ids);
    piece = *out >= 0 ? lt_tokenizer_text(s->tokenizer, (uint32_t)*out, &n) : NULL;
    if (ok && (piece == NULL || n < 1 || n > 2 || piece[n - 1] != letter[0])) {
        return lt_api_refuse(e, "alignment.method",
                             "method tournament: no single token of this model is the letter %s",
                             letter);
    }
    return ok;
}

static bool letter_ids(lt_server *s, int32_t ids[2], lt_api_error *e) {
    return letter_id(s, "A", &ids[0], e) && letter_id(s, "B", &ids[1], e);
}

bool lt_tournament_check(const lt_reply *j, lt_api_error *e) {
    int32_t ids[2];
    return letter_ids(j->server, ids, e);
}

/* The request that the texts answer: the last message of a chat's user, or the prompt. */
static bool read_question(lt_tournament *t, lt_api_error *e) {
    const lt_reply *j = t->reply;
    const json_t *found = NULL;
    json_t *text;
    char *prompt = NULL;
    size_t n = 0;
    for (size_t i = 0; i < json_array_size(j->params.messages); i++) {
        const json_t *one = json_array_get(j->params.messages, i);
        const char *role = json_string_value(json_object_get(one, "role"));
        found = role != NULL && strcmp(role, "user") == 0 ? json_object_get(one, "content") : found;
    }
    if (found != NULL) {
        text = lt_content_text(found, j->server->part_gap, "messages", e);
        lt_out_raw(&t->question, json_string_value(text), json_string_length(text));
        json_decref(text);
        return text != NULL;
    }
    if (lt_tokenizer_decode(j->server->tokenizer, j->parts[0].prompt.data, j->parts[0].prompt.n,
                            true, &prompt, &n) != LT_OK) {
        return lt_api_refuse_oom(e);
    }
    lt_out_raw(&t->question, prompt, n);
    free(prompt);
    return true;
}

static void put(lt_json_out *o, const char *text) {
    lt_out_raw(o, text, strlen(text));
}

static void put_text(lt_json_out *o, const lt_json_out *text) {
    lt_out_raw(o, text->data != NULL ? text->data : "", text->n);
}

/* The ids of a match's prompt: by the chat template, if there is one, with reasoning switched
 * off. */
static bool ids_of(const lt_tournament *t, int64_t a, int64_t b, lt_ids *out, lt_api_error *e) {
    const lt_reply *j = t->reply;
    const char *asked = j->params.criterion != NULL ? j->params.criterion : criterion;
    lt_conversation c = {.reasoning_effort = "none", .add_generation_prompt = true};
    lt_json_out o = {0};
    json_t *messages;
    bool opened = false, ok;
    put(&o, asks);
    put_text(&o, &t->question);
    put(&o, first);
    put_text(&o, &t->texts[a]);
    put(&o, second);
    put_text(&o, &t->texts[b]);
    put(&o, "\n\n");
    put(&o, asked);
    put(&o, letters);
    messages = o.failed ? NULL : json_pack("[{s:s, s:s%}]", "role", "user", "content", o.data, o.n);
    lt_out_free(&o);
    if (messages == NULL) {
        return lt_api_refuse_oom(e);
    }
    c.messages = messages;
    ok = lt_conversation_ids(j->server, &c, out, &opened, e);
    json_decref(messages);
    if (ok && opened && j->server->marks.think_close != NULL) {
        ok = lt_server_encode(j->server, j->server->marks.think_close,
                              strlen(j->server->marks.think_close), LT_ENCODE_PARSE_SPECIAL, out,
                              e);
    }
    return ok;
}

/* ---- Rounds ---- */

static bool submit(lt_tournament *t, lt_part *p, int64_t a, int64_t b, lt_api_error *e) {
    lt_reply *j = t->reply;
    lt_request r = lt_request_defaults();
    lt_ids ids = {0};
    lt_err err;
    *p = (lt_part){.reply = j, .judged = true};
    if (!ids_of(t, a, b, &ids, e)) {
        lt_ids_free(&ids);
        return false;
    }
    r.prompt = (const int32_t *)ids.data;
    r.n_prompt = (int64_t)ids.n;
    r.max_tokens = 1;
    r.logprobs = LT_ENGINE_TOP;
    r.allowed = t->ids;
    r.n_allowed = 2;
    r.sampling.temperature = 0;
    r.priority = j->request.priority;
    r.background = j->request.background;
    r.cache_salt = lt_server_cache_salt(j->server, j->owner, j->params.cache_salt);
    err = lt_engine_submit(j->server->engine, &r, p, &p->id);
    lt_ids_free(&ids);
    if (err != LT_OK) {
        return lt_api_refuse_error(e, "alignment.method", err);
    }
    t->n_open++;
    j->parts_left++;
    return true;
}

static bool begin_round(lt_tournament *t, lt_api_error *e) {
    t->n_matches = t->n_left / 2;
    for (int64_t i = 0; i < t->n_matches; i++) {
        match *m = &t->matches[i];
        m->x = t->left[2 * i];
        m->y = t->left[2 * i + 1];
        m->share = 0;
        if (!submit(t, &m->parts[0], m->x, m->y, e) || !submit(t, &m->parts[1], m->y, m->x, e)) {
            return false;
        }
    }
    return true;
}

/* All matches are decided: keep the winners. */
static void end_round(lt_tournament *t) {
    int64_t n = 0;
    for (int64_t i = 0; i < t->n_matches; i++) {
        const match *m = &t->matches[i];
        t->left[n++] = m->share >= 1 ? m->x : m->y; /* The sum of two shares. */
    }
    if (t->n_left % 2 == 1) {
        t->left[n++] = t->left[t->n_left - 1];
    }
    for (int64_t i = 0; i < n; i++) {
        t->wins[t->left[i]]++;
    }
    t->n_left = n;
}

bool lt_tournament_open(lt_tournament **out, lt_reply *j, lt_json_out *texts, int64_t n,
                        lt_api_error *e) {
    lt_tournament *t = calloc(1, sizeof *t);
    bool ok = t != NULL;
    if (ok) {
        t->left = calloc((size_t)n, sizeof *t->left);
        t->wins = calloc((size_t)n, sizeof *t->wins);
        t->matches = calloc((size_t)n / 2 + 1, sizeof *t->matches);
        ok = t->left != NULL && t->wins != NULL && t->matches != NULL;
    }
    if (!ok) {
        lt_tournament_close(t);
        for (int64_t i = 0; i < n; i++) {
            lt_out_free(&texts[i]);
        }
        free(texts);
        return lt_api_refuse_oom(e);
    }
    t->reply = j;
    t->texts = texts;
    t->n = t->n_left = n;
    for (int64_t i = 0; i < n; i++) {
        t->left[i] = i;
    }
    *out = t;
    return letter_ids(j->server, t->ids, e) && read_question(t, e) && begin_round(t, e);
}

void lt_tournament_close(lt_tournament *t) {
    if (t == NULL) {
        return;
    }
    for (int64_t i = 0; t->texts != NULL && i < t->n; i++) {
        lt_out_free(&t->texts[i]);
    }
    lt_out_free(&t->question);
    free(t->texts);
    free(t->left);
    free(t->wins);
    free(t->matches);
    free(t);
}

/* ---- Events ---- */

/* The share of A. A letter that is not among the likeliest tokens counts as impossible, unless it
 * was chosen, which makes it the likelier of the two. */
static double share_of_a(const lt_tournament *t, const lt_event *ev) {
    double p[2] = {0, 0};
    for (int i = 0; i < ev->n_top; i++) {
        for (int k = 0; k < 2; k++) {
            p[k] = ev->top[i].id == t->ids[k] ? exp((double)ev->top[i].logprob) : p[k];
        }
    }
    p[ev->id == t->ids[1]] = exp((double)ev->logprob);
    return p[0] + p[1] > 0 ? p[0] / (p[0] + p[1]) : 0.5;
}

static void take_share(lt_tournament *t, const lt_part *p, const lt_event *ev) {
    for (int64_t i = 0; i < t->n_matches; i++) {
        match *m = &t->matches[i];
        if (p == &m->parts[0]) {
            m->share += share_of_a(t, ev);
        } else if (p == &m->parts[1]) {
            m->share += 1 - share_of_a(t, ev);
        }
    }
}

bool lt_tournament_event(lt_tournament *t, lt_part *p, const lt_event *ev, lt_api_error *e) {
    const lt_reply *j = t->reply;
    if (ev->kind == LT_EVENT_TOKEN) {
        take_share(t, p, ev);
    } else if (ev->kind == LT_EVENT_CHOICE && ev->finish == LT_FINISH_FAILED) {
        *e = (lt_api_error){.status = 500, .type = "server_error"};
        snprintf(e->message, sizeof e->message, "a match failed: %s", lt_err_text(ev->failure));
    } else if (ev->kind == LT_EVENT_DONE) {
        t->tokens += ev->prompt_tokens;
        if (--t->n_open > 0 || j->conn == NULL || j->failed) {
            return false;
        }
        end_round(t);
        return t->n_left == 1 || !begin_round(t, e);
    }
    return false;
}

int64_t lt_tournament_wins(const lt_tournament *t, int64_t i) {
    return t->wins[i];
}

int64_t lt_tournament_tokens(const lt_tournament *t) {
    return t->tokens;
}
