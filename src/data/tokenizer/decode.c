/* tokenizer/decode.c: decodes ids to text, all at once or as they arrive; see
 * include/lateen/tokenizer.h.
 *
 * Both use the same stream; decoding at once feeds it everything. A piece passes the decoder
 * steps of the file (decode_chain.h), and its bytes go to an assembler, which passes on whole
 * characters and holds back at most three bytes that may still become one:
 *
 *     id ─▶ piece ─▶ steps ─▶ bytes ─▶ held (incomplete UTF-8) ─▶ text
 *
 * Bytes that can no longer become a character turn into U+FFFD, one for each maximal ill-formed
 * run.
 *
 * SentencePiece's vocabularies have fixed rules instead of steps: a byte piece (<0x0A>) is a byte,
 * and each ill-formed byte becomes U+FFFD; U+2581 is a space, except for the one that normalisation
 * put in front of the text. SentencePiece's own decoder (a .model) writes " ⁇ " or the model's
 * own text for <unk>, and nothing for control pieces; we write their names unless skip_special is
 * set. */
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "data/tokenizer/impl.h"

static const char mark[] = "\xE2\x96\x81"; /* U+2581 */
#define MARK_BYTES 3

struct lt_tokenizer_stream {
    const lt_tokenizer *t;
    bool skip_special;
    const uint32_t *shown; /* Special tokens that are shown even with skip_special. */
    size_t n_shown;
    lt_decode_chain chain;
    bool at_start; /* SentencePiece: a leading U+2581 is dropped. */
    bool per_byte; /* The held bytes came from byte pieces. */
    lt_text piece; /* The current token. */
    lt_text held;  /* Bytes that wait for the assembler. */
    lt_text out;
};

lt_err lt_tokenizer_stream_open(lt_tokenizer_stream **out, const lt_tokenizer *t,
                                bool skip_special) {
    lt_tokenizer_stream *s = calloc(1, sizeof *s);
    if (s == NULL) {
        LT_FAIL(LT_ERR_OOM, "tokenizer stream");
    }
    s->t = t;
    s->skip_special = skip_special;
    s->at_start = t->spm.active && (t->spm.add_dummy_prefix ||
                                    (t->spm.from_model && t->spm.remove_extra_whitespaces));
    lt_decode_chain_open(&s->chain, t->decode, t->n_decode);
    *out = s;
    return LT_OK;
}

void lt_tokenizer_stream_continue(lt_tokenizer_stream *s) {
    s->at_start = false;
    lt_decode_chain_continue(&s->chain);
}

void lt_tokenizer_stream_show(lt_tokenizer_stream *s, const uint32_t *ids, size_t n) {
    s->shown = ids;
    s->n_shown = n;
}

void lt_tokenizer_stream_close(lt_tokenizer_stream *s) {
    if (s == NULL) {
        return;
    }
    lt_decode_chain_close(&s->chain);
    lt_text_free(&s->piece);
    lt_text_free(&s->held);
    lt_text_free(&s->out);
    free(s);
}

/* The normal form of an added token that has LT_PIECE_RENAMED. */
static const lt_text *renamed(const lt_tokenizer *t, uint32_t id) {
    for (size_t i = 0; i < t->n_added; i++) {
        if (t->added[i].id == id) {
            return &t->added[i].decoded;
        }
    }
    LT_ASSERT(!"a renamed token is an added one");
    return NULL;
}

/* Set the piece to the token in the form that the decoder's steps expect: printable, unless they
 * work on raw bytes. */
static lt_err take_piece(lt_tokenizer_stream *s, uint32_t id) {
    const lt_vocab *v = &s->t->vocab;
    const char *text = lt_vocab_text(v, id);
    s->piece.n = 0;
    if ((v->flags[id] & LT_PIECE_RENAMED) != 0) {
        const lt_text *to = renamed(s->t, id);
        bool mapped;
        return s->t->byte_level && !s->t->printable
                   ? lt_tokenizer_unmap(to->data, to->n, &s->piece, &mapped)
                   : lt_text_put(&s->piece, to->data, to->n);
    }
    if (!s->t->printable || (v->flags[id] & LT_PIECE_LITERAL) != 0) {
        return lt_text_put(&s->piece, text, v->bytes[id]);
    }
    for (uint32_t i = 0; i < v->bytes[id]; i++) {
        LT_TRY(lt_text_put_cp(&s->piece, lt_byte_char((uint8_t)text[i])));
    }
    return LT_OK;
}

/* Hold the bytes until they form characters. */
static lt_err put_bytes(lt_tokenizer_stream *s, const char *bytes, size_t n, bool per_byte) {
    if (s->held.n > 0 && s->per_byte != per_byte) {
        LT_TRY(lt_text_assemble(&s->out, &s->held, s->per_byte, true));
    }
    s->per_byte = per_byte;
    LT_TRY(lt_text_put(&s->held, bytes, n));
    return lt_text_assemble(&s->out, &s->held, s->per_byte, false);
}

/* Append a piece of text, in which U+2581 is a space. */
static lt_err put_marked(lt_text *out, const char *p, size_t n) {
    const char *const end = p + n;
    while (p < end) {
        const char *hit = memmem(p, (size_t)(end - p), mark, MARK_BYTES);
        const char *stop = hit != NULL ? hit : end;
        LT_TRY(lt_text_put(out, p, (size_t)(stop - p)));
        LT_TRY(hit != NULL ? lt_text_put(out, " ", 1) : LT_OK);
        p = hit != NULL ? hit + MARK_BYTES : end;
    }
    return LT_OK;
}

/* Append a piece and strip U+2581 at the beginning of the text. For a .model that removes extra
 * white space, every leading one is stripped; for another .model, and for a GGUF, that of the
 * first piece. */
static lt_err put_spm(lt_tokenizer_stream *s, uint32_t id) {
    const lt_tokenizer *t = s->t;
    const char *text = lt_vocab_text(&t->vocab, id);
    const unsigned flags = t->vocab.flags[id];
    size_t n = t->vocab.bytes[id];
    uint8_t byte;
    bool stripped;

    if ((flags & LT_PIECE_BYTE) != 0 && lt_piece_is_byte(text, n, &byte)) {
        s->at_start = false;
        return put_bytes(s, (const char *)&byte, 1, true);
    }
    if (t->spm.from_model && id == t->unk) {
        s->at_start &= t->spm.unknown.n == 0;
        return put_bytes(s, t->spm.unknown.data, t->spm.unknown.n, false);
    }
    if ((flags & LT_PIECE_SPECIAL) != 0) {
        return put_bytes(s, text, n, false);
    }
    stripped = s->at_start && n >= MARK_BYTES && memcmp(text, mark, MARK_BYTES) == 0;
    text += stripped ? MARK_BYTES : 0;
    n -= stripped ? MARK_BYTES : 0;
    s->at_start = s->at_start && t->spm.from_model && n == 0 &&
                  (t->spm.remove_extra_whitespaces || !stripped);
    s->piece.n = 0;
    LT_TRY(put_marked(&s->piece, text, n));
    return put_bytes(s, s->piece.data, s->piece.n, false);
}

static lt_err put_piece(lt_tokenizer_stream *s, uint32_t id) {
    if (s->t->spm.active) {
        return put_spm(s, id);
    }
    LT_TRY(take_piece(s, id));
    if (s->t->n_decode > 0) {
        const size_t n = s->piece.n;
        LT_TRY(lt_text_reserve(&s->piece, 1)); /* So that an empty token has an address, too. */
        LT_TRY(lt_decode_chain_apply(&s->chain, s->piece.data, n, false, &s->held));
        return put_bytes(s, NULL, 0, false);
    }
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

/* SentencePiece writes <unk> even if control pieces are left out. Hugging Face checks whether the
 * token's normalised text is that of a special token. */
static bool skipped(const lt_tokenizer *t, uint32_t id) {
    const unsigned flags = t->vocab.flags[id];
    if ((flags & LT_PIECE_RENAMED) != 0) {
        const lt_text *to = renamed(t, id);
        for (size_t i = 0; i < t->n_added; i++) {
            const lt_text *name = &t->added[i].content;
            if (t->added[i].special && name->n == to->n &&
                memcmp(name->data, to->data, to->n) == 0) {
                return true;
            }
        }
        return false;
    }
    return (flags & LT_PIECE_SPECIAL) != 0 && !(t->spm.from_model && id == t->unk);
}

static bool is_shown(const lt_tokenizer_stream *s, uint32_t id) {
    for (size_t i = 0; i < s->n_shown; i++) {
        if (s->shown[i] == id) {
            return true;
        }
    }
    return !s->skip_special || !skipped(s->t, id);
}

lt_err lt_tokenizer_stream_put(lt_tokenizer_stream *s, uint32_t id, const char **text,
                               size_t *bytes) {
    LT_TRY(check_id(s->t, id));
    s->out.n = 0;
    if ((s->t->vocab.flags[id] & LT_PIECE_PRESENT) == 0) {
        return give_out(s, text, bytes);
    }
    if (is_shown(s, id)) {
        LT_TRY(put_piece(s, id));
    } else if (s->t->spm.from_model) {
        /* A skipped piece still ends a run of byte pieces. */
        LT_TRY(put_bytes(s, NULL, 0, false));
    }
    return give_out(s, text, bytes);
}

lt_err lt_tokenizer_stream_finish(lt_tokenizer_stream *s, const char **text, size_t *bytes) {
    s->out.n = 0;
    LT_TRY(s->t->n_decode > 0 ? lt_decode_chain_apply(&s->chain, NULL, 0, true, &s->held) : LT_OK);
    LT_TRY(lt_text_assemble(&s->out, &s->held, s->per_byte, true));
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

/* ---- The texts of single ids ---- */

/* The most bytes of all texts together: a decoder may replace a character by a long text. */
#ifndef FUZZING_BUILD_MODE_UNSAFE_FOR_PRODUCTION
#define TEXTS_BYTES_MAX ((size_t)64 << 20)
#else
#define TEXTS_BYTES_MAX ((size_t)1 << 22)
#endif

/* Append what an id adds to a text that it stands inside of. */
static lt_err put_alone(lt_tokenizer_stream *s, uint32_t id) {
    const lt_tokenizer *t = s->t;
    size_t n;
    const char *piece = lt_tokenizer_piece(t, id, &n);
    if (piece == NULL) {
        return LT_OK;
    }
    if (piece != lt_vocab_text(&t->vocab, id) || lt_tokenizer_is_special(t, id)) {
        return lt_text_put(&s->out, piece, n); /* A byte, or a name. */
    }
    if (t->spm.active) {
        return put_marked(&s->out, piece, n);
    }
    LT_TRY(take_piece(s, id));
    return lt_decode_chain_alone(&s->chain, s->piece.data, s->piece.n, &s->out);
}

/* Whether an id may add something else to a text than its piece. */
static bool changes_pieces(const lt_tokenizer *t) {
    bool renames = false;
    for (size_t i = 0; i < t->n_added && !renames; i++) {
        renames = (t->vocab.flags[t->added[i].id] & LT_PIECE_RENAMED) != 0;
    }
    return renames || t->spm.active || t->n_decode > 0;
}

lt_err lt_tokenizer_make_texts(lt_tokenizer *t) {
    lt_err err = LT_OK;
    lt_tokenizer_stream *s = NULL;
    if (!changes_pieces(t)) {
        return LT_OK;
    }
    LT_TRY_DONE(lt_tokenizer_stream_open(&s, t, false));
    lt_tokenizer_stream_continue(s);
    t->text_ends = malloc((size_t)t->vocab.n * sizeof *t->text_ends + 1);
    if (t->text_ends == NULL) {
        LT_FAIL_DONE(LT_ERR_OOM, "%s: texts of %u ids", t->name, t->vocab.n);
    }
    for (uint32_t id = 0; id < t->vocab.n; id++) {
        LT_TRY_DONE(put_alone(s, id));
        if (s->out.n > TEXTS_BYTES_MAX) {
            LT_FAIL_DONE(LT_ERR_LIMIT,
                         "%s: the decoder makes more than %zu bytes of the first %u pieces",
                         t->name, TEXTS_BYTES_MAX, id + 1);
        }
        t->text_ends[id] = (uint32_t)s->out.n;
    }
    t->texts = s->out;
    s->out = (lt_text){0};
done:
    lt_tokenizer_stream_close(s);
    return err;
}

const char *lt_tokenizer_text(const lt_tokenizer *t, uint32_t id, size_t *bytes) {
    const char *piece = lt_tokenizer_piece(t, id, bytes);
    size_t begin;
    if (piece == NULL || t->texts.n == 0) {
        return piece;
    }
    begin = id > 0 ? t->text_ends[id - 1] : 0;
    *bytes = t->text_ends[id] - begin;
    return t->texts.data + begin;
}
