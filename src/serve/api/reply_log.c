/* reply_log.c: stores the tokens of an answer that are reported: their log-probabilities, the
 * alternatives, and where each begins in the text. */
#include <stdlib.h>

#include "data/tokenizer/bpe.h"
#include "serve/api/reply.h"

void lt_token_logs_free(lt_token_logs *l) {
    free(l->rows);
    free(l->tops);
}

static void *grown(void *data, size_t *room, size_t n, size_t size) {
    if (n <= *room) {
        return data;
    }
    *room = *room > 0 ? 2 * *room : 16;
    *room = *room < n ? n : *room;
    return realloc(data, *room * size);
}

/* Number of characters that a token adds to the text; an incomplete character counts for the token
 * in which it begins. */
static size_t characters(const lt_reply *j, const lt_token_logs *l, uint32_t id) {
    const lt_tokenizer *t = j->server->tokenizer;
    size_t bytes = 0, n = 0;
    const char *piece = lt_tokenizer_text(t, id, &bytes);
    char *first = NULL;
    if (piece == NULL || (j->params.skip_special && lt_tokenizer_is_special(t, id))) {
        return 0;
    }
    if (l->text_n == 0 && !l->behind_text &&
        lt_tokenizer_decode(t, &id, 1, false, &first, &bytes) == LT_OK) {
        piece = first;
    }
    for (size_t i = 0; i < bytes; i++) {
        n += ((unsigned char)piece[i] & 0xC0) != 0x80;
    }
    free(first);
    return n;
}

void lt_reply_log_token(lt_reply *j, lt_token_logs *l, const lt_event *ev, bool has_logprob) {
    const int n_top = has_logprob ? ev->n_top : 0;
    void *rows = grown(l->rows, &l->room, l->n + 1, sizeof *l->rows);
    void *tops;

    if (rows == NULL) {
        return;
    }
    l->rows = rows;
    tops = grown(l->tops, &l->tops_room, l->n_tops + (size_t)n_top + 1, sizeof *l->tops);
    if (tops == NULL) {
        return;
    }
    l->tops = tops;
    l->rows[l->n++] = (lt_token_log){.id = ev->id,
                                     .n_top = n_top,
                                     .rank = ev->rank,
                                     .logprob = ev->logprob,
                                     .has_logprob = has_logprob,
                                     .top_at = l->n_tops,
                                     .text_at = l->text_n};
    for (int i = 0; i < n_top; i++) {
        l->tops[l->n_tops].id = ev->top[i].id;
        l->tops[l->n_tops++].logprob = ev->top[i].logprob;
    }
    l->text_n += characters(j, l, (uint32_t)ev->id);
}
