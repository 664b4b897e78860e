/* conversation_fit.c: drops the oldest turns of a conversation that is too long: `truncation: auto`
 * of /v1/responses. The leading system and developer messages stay; the rest begins at a user's
 * message, so that no result is without its call. The number of turns to drop is found by
 * bisection, because each attempt renders and encodes the rest. */
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "serve/api/formats/conversation.h"

static const char *role_of(const json_t *messages, size_t i) {
    const char *role = json_string_value(json_object_get(json_array_get(messages, i), "role"));
    return role != NULL ? role : "";
}

static size_t n_leading(const json_t *messages) {
    size_t n = 0;
    while (strcmp(role_of(messages, n), "system") == 0 ||
           strcmp(role_of(messages, n), "developer") == 0) {
        n++;
    }
    return n;
}

/* The leading messages, and those starting at `at`. */
static json_t *without(const json_t *messages, size_t n_lead, size_t at) {
    json_t *left = json_array();
    for (size_t i = 0; i < json_array_size(messages); i++) {
        if (i < n_lead || i >= at) {
            json_array_append(left, json_array_get(messages, i));
        }
    }
    return left;
}

/* Whether the prompt starting at `at` leaves `room` tokens. An error other than the length is left
 * in *e. */
static bool fits(lt_server *s, const lt_conversation *c, size_t n_lead, size_t at, int64_t room,
                 lt_ids *out, bool *opened, lt_api_error *e) {
    lt_conversation left = *c;
    json_t *messages = without(c->messages, n_lead, at);
    bool ok;

    left.messages = messages;
    ok = lt_conversation_ids(s, &left, out, opened, e);
    json_decref(messages);
    if (ok && (int64_t)out->n + room > lt_server_context(s)) {
        lt_api_refuse(e, "input",
                      "the last turn's prompt of %zu tokens exceeds the available "
                      "context size of %lld tokens",
                      out->n, (long long)lt_server_context(s));
        e->code = "context_length_exceeded";
        lt_ids_free(out);
        *out = (lt_ids){0};
        ok = false;
    }
    return ok;
}

static bool too_long(const lt_api_error *e) {
    return e->code != NULL && strcmp(e->code, "context_length_exceeded") == 0;
}

bool lt_conversation_fit(lt_server *s, const lt_conversation *c, int64_t max_tokens, lt_ids *out,
                         bool *opened, lt_api_error *e) {
    const int64_t context = lt_server_context(s), most = context / 2;
    const int64_t room = max_tokens >= 0 && max_tokens < most ? max_tokens : context / 4;
    const size_t n = json_array_size(c->messages), n_lead = n_leading(c->messages);
    size_t *turns, n_turns = 0, low = 0, high;

    if (fits(s, c, n_lead, 0, 1, out, opened, e) || !too_long(e)) {
        return e->status == 0;
    }
    turns = malloc((n + 1) * sizeof *turns);
    if (turns == NULL) {
        return lt_api_refuse_oom(e);
    }
    for (size_t i = n_lead; i < n; i++) {
        if (i > n_lead && strcmp(role_of(c->messages, i), "user") == 0) {
            turns[n_turns++] = i;
        }
    }
    /* turns[high] fits, or does not exist; those below low do not fit. */
    high = n_turns;
    while (low < high) {
        const size_t middle = (low + high) / 2;
        lt_ids ids = {0};
        lt_api_error why = {0};
        if (fits(s, c, n_lead, turns[middle], room, &ids, opened, &why)) {
            lt_ids_free(out);
            *out = ids;
            high = middle;
        } else if (too_long(&why)) {
            *e = why;
            low = middle + 1;
        } else {
            *e = why;
            break;
        }
    }
    free(turns);
    if (out->n > 0 && low == high) {
        *e = (lt_api_error){0};
        return true;
    }
    lt_ids_free(out);
    *out = (lt_ids){0};
    return false;
}
