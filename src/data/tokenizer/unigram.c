/* unigram.c: Viterbi over the byte positions of a word; see unigram.h.
 *
 * From each character boundary all pieces that begin there are found in the trie and may improve
 * the best path to their end. A character that is no piece by itself may be an unknown at min_score
 * - 10. Sums have the precision of the library that is reproduced, because a tie in single
 * precision is not one in double; of equal paths the first one found is kept. */
#include "data/tokenizer/unigram.h"

#include <math.h>
#include <stdlib.h>

#include "base/error.h"
#include "data/tokenizer/unicode.h"

#define UNK_PENALTY 10.0

void lt_unigram_free(lt_unigram *u) {
    lt_trie_free(&u->trie);
    free(u->score);
    free(u->user);
    u->score = NULL;
    u->user = NULL;
}

void lt_unigram_scratch_free(lt_unigram_scratch *s) {
    free(s->best);
    free(s->from);
    free(s->id);
    *s = (lt_unigram_scratch){0};
}

static lt_err reserve(lt_unigram_scratch *s, size_t n) {
    size_t room = 256;
    if (n + 1 <= s->room) {
        return LT_OK;
    }
    while (room < n + 1) {
        room *= 2;
    }
    lt_unigram_scratch_free(s);
    s->best = malloc(room * sizeof *s->best);
    s->from = malloc(room * sizeof *s->from);
    s->id = malloc(room * sizeof *s->id);
    if (s->best == NULL || s->from == NULL || s->id == NULL || n >= UINT32_MAX) {
        lt_unigram_scratch_free(s);
        LT_FAIL(LT_ERR_OOM, "a word of %zu bytes", n);
    }
    s->room = room;
    return LT_OK;
}

/* SentencePiece compares sums in single precision (since 0.2.2; before, it compared the sum in
 * double and took 0.1 off a user-defined symbol), Hugging Face in double. */
static void relax(const lt_unigram *u, lt_unigram_scratch *s, size_t from, size_t to, uint32_t id,
                  double score) {
    const double exact = s->best[from] + score;
    const double sum = u->single ? (double)(float)exact : exact;
    if (s->from[to] == UINT32_MAX || sum > s->best[to]) {
        s->best[to] = sum;
        s->from[to] = (uint32_t)from;
        s->id[to] = id;
    }
}

static double piece_score(const lt_unigram *u, uint32_t id, size_t bytes) {
    /* Better than any other way to write these characters. */
    if (u->user != NULL && u->user[id] != 0) {
        return (double)((float)bytes * (float)u->max_score);
    }
    return u->score[id];
}

/* Append one step of the path; an unknown is joined to the one before. */
static lt_err put_unknown(const lt_unigram *u, const uint8_t *p, size_t n, bool after_unknown,
                          lt_ids *out) {
    bool all = u->byte_fallback;
    for (size_t i = 0; i < n && all; i++) {
        all = u->fallback_id[p[i]] != LT_NO_ID;
    }
    LT_TRY(lt_ids_reserve(out, n));
    for (size_t i = 0; i < n && all; i++) {
        out->data[out->n++] = u->fallback_id[p[i]];
    }
    if (!all && !after_unknown && u->unk != LT_NO_ID) {
        out->data[out->n++] = u->unk;
    }
    return LT_OK;
}

/* As in Hugging Face, look up a whole run of unknowns once more: it may be a piece, or its bytes
 * may be. */
static lt_err put_unknown_run(const lt_unigram *u, const uint8_t *p, size_t n, lt_ids *out) {
    const uint32_t id = lt_vocab_find(u->vocab, (const char *)p, n);
    return id != LT_NO_ID ? lt_ids_append(out, &id, 1) : put_unknown(u, p, n, false, out);
}

static lt_err put_path(const lt_unigram *u, lt_unigram_scratch *s, const uint8_t *p, size_t n,
                       lt_ids *out) {
    bool after_unknown = false;
    size_t at = n;
    uint32_t next = UINT32_MAX;
    while (at > 0) { /* Reverse the back pointers. */
        const uint32_t from = s->from[at];
        s->from[at] = next;
        next = (uint32_t)at;
        at = from;
    }
    for (at = 0; next != UINT32_MAX; at = next, next = s->from[next]) {
        const uint32_t id = s->id[next];
        if (id == u->unk && u->vocab != NULL) {
            while (s->from[next] != UINT32_MAX && s->id[s->from[next]] == id) {
                next = s->from[next];
            }
            LT_TRY(put_unknown_run(u, p + at, next - at, out));
        } else if (id == u->unk || id == LT_NO_ID) {
            LT_TRY(put_unknown(u, p + at, next - at, after_unknown, out));
            after_unknown = true;
        } else {
            LT_TRY(lt_ids_append(out, &id, 1));
            after_unknown = false;
        }
    }
    return LT_OK;
}

lt_err lt_unigram_encode(const lt_unigram *u, lt_unigram_scratch *s, const uint8_t *p, size_t n,
                         lt_ids *out) {
    size_t size;

    LT_TRY(reserve(s, n));
    for (size_t i = 0; i <= n; i++) {
        s->from[i] = UINT32_MAX;
    }
    s->best[0] = 0;
    for (size_t at = 0; at < n; at += size) {
        uint32_t cp, node = 0;
        bool single = false;
        size = lt_utf8_decode(p + at, p + n, &cp);
        for (size_t i = at; i < n && u->trie.edges != NULL; i++) {
            node = lt_trie_step(&u->trie, node, p[i]);
            if (node == 0) {
                break;
            }
            if (u->trie.value[node] != LT_TRIE_NONE) {
                const uint32_t id = u->trie.value[node];
                relax(u, s, at, i + 1, id, piece_score(u, id, i + 1 - at));
                single |= i + 1 - at == size;
            }
        }
        if (!single) {
            const double penalty = u->min_score - UNK_PENALTY;
            if (u->unk == LT_NO_ID && u->vocab != NULL &&
                (s->from[at + size] == UINT32_MAX || s->best[at] + penalty > s->best[at + size])) {
                LT_FAIL(LT_ERR_FORMAT,
                        "a character is not a piece, and the vocabulary has no unk_id");
            }
            relax(u, s, at, at + size, u->unk, penalty);
        }
    }
    return put_path(u, s, p, n, out);
}
