/* tokenizer/scored.c: see tokenizer/scored.h. */
#include "data/tokenizer/scored.h"

#include <float.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"

lt_err lt_scored_put(lt_scored *v, const char *s, size_t n, float score, lt_scored_type type) {
    if (v->n == LT_VOCAB_MAX || v->text.n > UINT32_MAX - n) {
        LT_FAIL(LT_ERR_LIMIT, "a vocabulary of more than %u pieces", LT_VOCAB_MAX);
    }
    if (v->n == v->room) {
        const uint32_t room = v->room == 0 ? 1024 : 2 * v->room;
        uint32_t *start = realloc(v->start, room * sizeof *start);
        v->start = start != NULL ? start : v->start;
        uint32_t *bytes = realloc(v->bytes, room * sizeof *bytes);
        v->bytes = bytes != NULL ? bytes : v->bytes;
        float *scores = realloc(v->score, room * sizeof *scores);
        v->score = scores != NULL ? scores : v->score;
        uint8_t *types = realloc(v->type, room);
        v->type = types != NULL ? types : v->type;
        if (start == NULL || bytes == NULL || scores == NULL || types == NULL) {
            LT_FAIL(LT_ERR_OOM, "vocabulary of %u pieces", room);
        }
        v->room = room;
    }
    v->start[v->n] = (uint32_t)v->text.n;
    v->bytes[v->n] = (uint32_t)n;
    v->score[v->n] = score;
    v->type[v->n] = (uint8_t)type;
    LT_TRY(lt_text_reserve(&v->text, n + 1));
    LT_TRY(lt_text_put(&v->text, s, n));
    v->n++;
    return LT_OK;
}

void lt_scored_free(lt_scored *v) {
    lt_text_free(&v->text);
    free(v->start);
    free(v->bytes);
    free(v->score);
    free(v->type);
    *v = (lt_scored){0};
}

static bool mergeable(const lt_scored *v, uint32_t id) {
    return v->type[id] == LT_SCORED_NORMAL || v->type[id] == LT_SCORED_USER ||
           v->type[id] == LT_SCORED_UNUSED;
}

/* User-defined symbols are cut out of the text before the model sees it. In SentencePiece's own
 * Unigram they only have a good score, and its word models ignore them. */
static bool cuts_at_user(const lt_tokenizer *t) {
    return !t->spm_pieces.words && !(t->spm.from_model && t->model == LT_MODEL_UNIGRAM);
}

static lt_err put_pieces(const lt_scored *v, lt_tokenizer *t) {
    LT_TRY(lt_vocab_reserve(&t->vocab, v->n, v->text.n));
    for (uint32_t id = 0; id < v->n; id++) {
        const char *s = v->text.data + v->start[id];
        const lt_scored_type type = (lt_scored_type)v->type[id];
        uint8_t byte;
        const unsigned flags = type == LT_SCORED_CONTROL || type == LT_SCORED_UNKNOWN
                                   ? LT_PIECE_SPECIAL
                               : type == LT_SCORED_BYTE   ? LT_PIECE_BYTE
                               : type == LT_SCORED_UNUSED ? LT_PIECE_UNUSED
                                                          : 0;
        LT_TRY(lt_vocab_put(&t->vocab, id, s, v->bytes[id], flags,
                            mergeable(v, id) && v->bytes[id] > 0, t->name));
        if (type == LT_SCORED_BYTE) {
            if (!lt_piece_is_byte(s, v->bytes[id], &byte)) {
                LT_FAIL(LT_ERR_FORMAT, "%s: byte piece %u is '%.*s'", t->name, id,
                        (int)v->bytes[id], s);
            }
            t->bpe.fallback_id[byte] = t->unigram.fallback_id[byte] = id;
        }
        /* A GGUF: llama.cpp knows "<unk>" in a text. SentencePiece does not. */
        const bool named = type == LT_SCORED_CONTROL ||
                           (type == LT_SCORED_UNKNOWN && t->spm.active && !t->spm.from_model);
        if (named || (type == LT_SCORED_USER && cuts_at_user(t))) {
            LT_TRY(lt_tokenizer_add(
                t, (lt_added){.id = id, .special = named, .normalized = type == LT_SCORED_USER}, s,
                v->bytes[id]));
        }
        if (type == LT_SCORED_USER && v->bytes[id] > 0) {
            LT_TRY(lt_trie_add(&t->spm.user, s, v->bytes[id], id));
        }
    }
    return LT_OK;
}

typedef struct {
    float score;
    uint32_t id;
} ranked;

/* Order: best score first; pieces of equal scores by ids. */
static int compare_ranked(const void *a, const void *b) {
    const ranked *x = a, *y = b;
    return x->score > y->score ? -1 : x->score < y->score ? 1 : x->id < y->id ? -1 : x->id > y->id;
}

static lt_err derive(const lt_scored *v, lt_tokenizer *t) {
    lt_err err = LT_OK;
    ranked *rows = malloc((v->n + 1) * sizeof *rows);
    uint32_t *order = malloc((v->n + 1) * sizeof *order), *rank = malloc((v->n + 1) * sizeof *rank);
    uint32_t n = 0;
    bool ties = false;

    if (rows == NULL || order == NULL || rank == NULL) {
        LT_FAIL_DONE(LT_ERR_OOM, "%s: order of %u pieces", t->name, v->n);
    }
    for (uint32_t id = 0; id < v->n; id++) {
        if (mergeable(v, id) && v->bytes[id] > 1) {
            rows[n++] = (ranked){v->score[id], id};
        }
    }
    qsort(rows, n, sizeof *rows, compare_ranked);
    for (uint32_t i = 0; i < n; i++) {
        const bool tie = i > 0 && !(rows[i - 1].score > rows[i].score);
        order[i] = rows[i].id;
        rank[i] = tie ? rank[i - 1] : i;
        ties |= tie;
    }
    LT_TRY_DONE(lt_bpe_derive_pairs(&t->bpe, order, ties ? rank : NULL, n));
done:
    free(rows);
    free(order);
    free(rank);
    return err;
}

static lt_err fill_unigram(const lt_scored *v, lt_tokenizer *t) {
    lt_unigram *u = &t->unigram;
    bool first = true;

    u->score = calloc((size_t)v->n + 1, sizeof *u->score);
    u->user = calloc((size_t)v->n + 1, sizeof *u->user);
    if (u->score == NULL || u->user == NULL) {
        LT_FAIL(LT_ERR_OOM, "%s: %u Unigram scores", t->name, v->n);
    }
    u->single = true;
    /* As in the library; with it, user-defined symbols have nearly no cost. */
    u->max_score = (double)FLT_MIN;
    u->unk = t->unk;
    for (uint32_t id = 0; id < v->n; id++) {
        const double score = (double)v->score[id];
        u->score[id] = score;
        u->user[id] = v->type[id] == LT_SCORED_USER;
        if (v->type[id] == LT_SCORED_NORMAL) {
            u->min_score = first || score < u->min_score ? score : u->min_score;
            u->max_score = score > u->max_score ? score : u->max_score;
            first = false;
        }
        if ((v->type[id] == LT_SCORED_NORMAL || v->type[id] == LT_SCORED_USER) &&
            v->bytes[id] > 0) {
            LT_TRY(lt_trie_add(&u->trie, v->text.data + v->start[id], v->bytes[id], id));
        }
    }
    return u->trie.n_nodes > 0 ? LT_OK : lt_error_set(LT_ERR_FORMAT, "%s: no pieces", t->name);
}

lt_err lt_scored_finish(const lt_scored *v, lt_tokenizer *t, lt_bpe_mode mode, bool byte_fallback) {
    if (v->n == 0) {
        LT_FAIL(LT_ERR_FORMAT, "%s: no pieces", t->name);
    }
    LT_TRY(put_pieces(v, t));
    t->bpe.vocab = &t->vocab;
    if (t->model == LT_MODEL_UNIGRAM) {
        t->unigram.byte_fallback = byte_fallback;
        return fill_unigram(v, t);
    }
    if (t->model == LT_MODEL_SPM_PIECES) {
        t->spm_pieces.vocab = &t->vocab;
        t->spm_pieces.user = &t->spm.user;
        t->spm_pieces.fallback_id = t->bpe.fallback_id;
        t->spm_pieces.byte_fallback = byte_fallback;
        t->spm_pieces.unk = t->unk;
        return LT_OK;
    }
    t->bpe.mode = mode;
    t->bpe.unk = t->unk;
    t->bpe.fuse_unk = true;
    t->bpe.byte_fallback = byte_fallback;
    return derive(v, t);
}
