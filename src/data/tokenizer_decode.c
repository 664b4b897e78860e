/* tokenizer_decode.c: ids back to text, at once or as they come; see include/lateen/tokenizer.h.
 *
 * There is one machine, the stream; decoding at once feeds it everything. A piece goes through the file's decoder steps, which
 * only ever look at the piece and at a little state (is it the first? how much may still be stripped?), and its bytes go to
 * an assembler that lets out whole characters and holds back at most three bytes that may still become one:
 *
 *     id ─▶ piece ─▶ steps ─▶ bytes ─▶ held (incomplete UTF-8) ─▶ text
 *
 * Bytes that can no longer become a character turn into U+FFFD: one for each maximal ill-formed run in byte-level vocabularies, one
 * a byte for byte-fallback pieces, as the libraries do. */
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "data/tokenizer_impl.h"

struct lt_tokenizer_stream {
    const lt_tokenizer *t;
    bool skip_special;
    bool started;       /* Some token has been decoded. */
    bool pending_space; /* SUFFIX and JOIN: due before the next token. */
    bool per_byte;      /* What is held came from byte-fallback pieces. */
    uint32_t strip;     /* FUSE then STRIP: how many leading characters may still go. */
    lt_text strip_char;
    bool spm_start;       /* SentencePiece: the first piece loses its leading space. */
    lt_text piece, other; /* The token in hand. */
    lt_text held;         /* Bytes before the assembler. */
    lt_text out;
};

lt_err lt_tokenizer_stream_open(lt_tokenizer_stream **out, const lt_tokenizer *t,
                                bool skip_special) {
    bool fused = false;
    lt_tokenizer_stream *s = calloc(1, sizeof *s);
    if (s == NULL) {
        LT_FAIL(LT_ERR_OOM, "tokenizer stream");
    }
    s->t = t;
    s->skip_special = skip_special;
    s->spm_start = t->spm.active && t->spm.add_dummy_prefix;
    for (int i = 0; i < t->n_decode; i++) {
        fused |= t->decode[i].kind == LT_DECODE_FUSE;
        if (fused && t->decode[i].kind == LT_DECODE_STRIP) {
            s->strip = t->decode[i].start;
            if (lt_text_put(&s->strip_char, t->decode[i].from.data, t->decode[i].from.n) != LT_OK) {
                lt_tokenizer_stream_close(s);
                return LT_ERR_OOM;
            }
        }
    }
    *out = s;
    return LT_OK;
}

void lt_tokenizer_stream_close(lt_tokenizer_stream *s) {
    if (s == NULL) {
        return;
    }
    lt_text_free(&s->strip_char);
    lt_text_free(&s->piece);
    lt_text_free(&s->other);
    lt_text_free(&s->held);
    lt_text_free(&s->out);
    free(s);
}

/* All occurrences of from in s->piece become to. */
static lt_err replace_all(lt_tokenizer_stream *s, const lt_text *from, const char *to,
                          size_t to_n) {
    const char *p = s->piece.data, *const end = p + s->piece.n;
    lt_text swap;
    if (from->n == 0 || s->piece.n == 0) {
        return LT_OK;
    }
    s->other.n = 0;
    while (p < end) {
        const char *hit = memmem(p, (size_t)(end - p), from->data, from->n);
        const char *stop = hit != NULL ? hit : end;
        LT_TRY(lt_text_put(&s->other, p, (size_t)(stop - p)));
        if (hit == NULL) {
            break;
        }
        LT_TRY(lt_text_put(&s->other, to, to_n));
        p = hit + from->n;
    }
    swap = s->piece;
    s->piece = s->other;
    s->other = swap;
    return LT_OK;
}

static lt_err prepend_space(lt_tokenizer_stream *s) {
    LT_TRY(lt_text_reserve(&s->piece, 1));
    memmove(s->piece.data + 1, s->piece.data, s->piece.n);
    s->piece.data[0] = ' ';
    s->piece.n++;
    return LT_OK;
}

static bool begins_with(const lt_text *s, const lt_text *prefix) {
    return prefix->n > 0 && s->n >= prefix->n && memcmp(s->data, prefix->data, prefix->n) == 0;
}

static void drop_front(lt_text *s, size_t n) {
    memmove(s->data, s->data + n, s->n - n);
    s->n -= n;
}

static bool ends_with(const lt_text *s, const lt_text *suffix) {
    return suffix->n > 0 && s->n >= suffix->n &&
           memcmp(s->data + s->n - suffix->n, suffix->data, suffix->n) == 0;
}

static lt_err wordpiece_step(lt_tokenizer_stream *s, const lt_decode_op *op) {
    static const char *const cleanups[][2] = {
        {" .", "."},   {" ?", "?"},     {" !", "!"},    {" ,", ","},
        {" ' ", "'"},  {" n't", "n't"}, {" 'm", "'m"},  {" do not", " don't"},
        {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"}};
    if (begins_with(&s->piece, &op->from) && s->started) {
        drop_front(&s->piece, op->from.n);
    } else if (s->started) {
        LT_TRY(prepend_space(s));
    }
    for (size_t i = 0; i < sizeof cleanups / sizeof *cleanups && op->cleanup; i++) {
        const lt_text from = {.data = (char *)(uintptr_t)cleanups[i][0],
                              .n = strlen(cleanups[i][0])};
        LT_TRY(replace_all(s, &from, cleanups[i][1], strlen(cleanups[i][1])));
    }
    return LT_OK;
}

/* STRIP before FUSE: of this token alone. */
static void strip_step(lt_tokenizer_stream *s, const lt_decode_op *op) {
    for (uint32_t i = 0; i < op->start && begins_with(&s->piece, &op->from); i++) {
        drop_front(&s->piece, op->from.n);
    }
    for (uint32_t i = 0; i < op->stop && ends_with(&s->piece, &op->from); i++) {
        s->piece.n -= op->from.n;
    }
}

static lt_err apply(lt_tokenizer_stream *s, const lt_decode_op *op) {
    switch (op->kind) {
    case LT_DECODE_REPLACE:
        return replace_all(s, &op->from, op->to.data, op->to.n);
    case LT_DECODE_METASPACE:
        return replace_all(s, &op->from, " ", op->prepend && !s->started ? 0 : 1);
    case LT_DECODE_STRIP:
        strip_step(s, op);
        return LT_OK;
    case LT_DECODE_WORDPIECE:
        return wordpiece_step(s, op);
    case LT_DECODE_SUFFIX:
        if (s->pending_space) {
            LT_TRY(prepend_space(s));
        }
        s->pending_space = ends_with(&s->piece, &op->from);
        s->piece.n -= s->pending_space ? op->from.n : 0;
        return LT_OK;
    case LT_DECODE_JOIN:
        return s->started ? prepend_space(s) : LT_OK;
    case LT_DECODE_BYTE_FALLBACK:
    case LT_DECODE_FUSE:
        break;
    }
    return LT_OK;
}

/* Let whole characters out of s->held; final: whatever is left is ill-formed. */
static lt_err assemble(lt_tokenizer_stream *s, bool final) {
    size_t at = 0;
    bool incomplete;
    while (at < s->held.n) {
        const size_t good = lt_utf8_valid_prefix(s->held.data + at, s->held.n - at);
        size_t bad;
        LT_TRY(lt_text_put(&s->out, s->held.data + at, good));
        at += good;
        if (at == s->held.n) {
            break;
        }
        bad = lt_utf8_bad((const uint8_t *)s->held.data + at,
                          (const uint8_t *)s->held.data + s->held.n, &incomplete);
        if (incomplete && !final) {
            break;
        }
        bad = s->per_byte ? 1 : bad;
        LT_TRY(lt_text_put_cp(&s->out, LT_UNICODE_REPLACEMENT));
        at += bad;
    }
    if (at > 0) {
        drop_front(&s->held, at);
    }
    return LT_OK;
}

/* Take leading characters off the whole text while some may still go. */
static void strip_start(lt_tokenizer_stream *s) {
    while (s->strip > 0 && s->piece.n > 0) {
        if (!begins_with(&s->piece, &s->strip_char)) {
            s->strip = 0;
            break;
        }
        drop_front(&s->piece, s->strip_char.n);
        s->strip--;
    }
}

static lt_err put_bytes(lt_tokenizer_stream *s, const char *bytes, size_t n, bool fallback) {
    if (s->held.n > 0 && s->per_byte != fallback) {
        LT_TRY(assemble(s, true)); /* Byte pieces and others do not make one character together. */
    }
    s->per_byte = fallback;
    LT_TRY(lt_text_put(&s->held, bytes, n));
    return assemble(s, false);
}

static lt_err put_piece(lt_tokenizer_stream *s, uint32_t id) {
    const lt_tokenizer *t = s->t;
    bool fuse = false, fallback = t->spm.active;
    char byte;

    s->piece.n = 0;
    LT_TRY(lt_text_put(&s->piece, lt_vocab_text(&t->vocab, id), t->vocab.bytes[id]));
    for (int i = 0; i < t->n_decode && !fuse; i++) {
        fuse = t->decode[i].kind == LT_DECODE_FUSE;
        fallback |= t->decode[i].kind == LT_DECODE_BYTE_FALLBACK;
        LT_TRY(apply(s, &t->decode[i]));
    }
    if (fallback && lt_piece_is_byte(s->piece.data, s->piece.n, (uint8_t *)&byte) &&
        (!t->spm.active || (t->vocab.flags[id] & LT_PIECE_BYTE) != 0)) {
        s->started = true;
        s->piece.data[0] = byte;
        s->piece.n = 1;
        strip_start(s);
        s->spm_start = false;
        return put_bytes(s, s->piece.data, s->piece.n, true);
    }
    strip_start(s);
    if (s->spm_start && (t->vocab.flags[id] & LT_PIECE_SPECIAL) == 0) {
        if (s->piece.n > 0 && s->piece.data[0] == ' ') {
            drop_front(&s->piece, 1);
        }
        s->spm_start = false;
    }
    s->started = true;
    return put_bytes(s, s->piece.data, s->piece.n, false);
}

static lt_err give_out(lt_tokenizer_stream *s, const char **text, size_t *bytes) {
    LT_TRY(lt_text_reserve(&s->out, 1));
    s->out.data[s->out.n] = '\0';
    *text = s->out.data;
    *bytes = s->out.n;
    return LT_OK;
}

static lt_err check_id(const lt_tokenizer *t, uint32_t id) {
    if (id >= t->vocab.n) {
        LT_FAIL(LT_ERR_ARG, "%s: id %u is outside of the vocabulary of %u", t->name, id,
                t->vocab.n);
    }
    return LT_OK;
}

lt_err lt_tokenizer_stream_put(lt_tokenizer_stream *s, uint32_t id, const char **text,
                               size_t *bytes) {
    LT_TRY(check_id(s->t, id));
    s->out.n = 0;
    if ((s->t->vocab.flags[id] & LT_PIECE_PRESENT) != 0 &&
        !(s->skip_special && (s->t->vocab.flags[id] & LT_PIECE_SPECIAL) != 0)) {
        LT_TRY(put_piece(s, id));
    }
    return give_out(s, text, bytes);
}

lt_err lt_tokenizer_stream_finish(lt_tokenizer_stream *s, const char **text, size_t *bytes) {
    s->out.n = 0;
    LT_TRY(assemble(s, true));
    return give_out(s, text, bytes);
}

lt_err lt_tokenizer_decode(const lt_tokenizer *t, const uint32_t *ids, size_t n, bool skip_special,
                           char **text, size_t *bytes) {
    lt_err err = LT_OK;
    lt_tokenizer_stream *s = NULL;
    lt_text all = {0};
    const char *part;
    size_t part_n;

    LT_TRY_DONE(lt_tokenizer_stream_open(&s, t, skip_special));
    for (size_t i = 0; i <= n; i++) {
        LT_TRY_DONE(i < n ? lt_tokenizer_stream_put(s, ids[i], &part, &part_n)
                          : lt_tokenizer_stream_finish(s, &part, &part_n));
        LT_TRY_DONE(lt_text_put(&all, part, part_n));
    }
    LT_TRY_DONE(lt_text_reserve(&all, 1));
    all.data[all.n] = '\0';
    *text = all.data;
    *bytes = all.n;
    all = (lt_text){0};
done:
    lt_text_free(&all);
    lt_tokenizer_stream_close(s);
    return err;
}
