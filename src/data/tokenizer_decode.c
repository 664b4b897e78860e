/* tokenizer_decode.c: ids back to text, at once or as they come; see include/lateen/tokenizer.h.
 *
 * There is one machine, the stream; decoding at once feeds it everything. A piece goes through the file's decoder steps, which
 * look at the piece and at a little state (is it the first? the last? how much may still be stripped?), and its bytes go to
 * an assembler that lets out whole characters and holds back at most three bytes that may still become one:
 *
 *     id ─▶ piece ─▶ steps ─▶ bytes ─▶ held (incomplete UTF-8) ─▶ text
 *
 * Bytes that can no longer become a character turn into U+FFFD, one for each maximal ill-formed run. Byte-fallback pieces
 * (<0x0A>) are another matter: Hugging Face makes a run of them text if all of it is UTF-8 and one U+FFFD a byte if not, so
 * such a run is held until it ends; SentencePiece goes character by character. BPEDecoder treats the last token differently, so
 * with it every token waits for the next. */
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "data/pretokenize.h"
#include "data/regex.h"
#include "data/tokenizer_impl.h"

struct lt_tokenizer_stream {
    const lt_tokenizer *t;
    bool skip_special;
    bool started;     /* Some token has been decoded. */
    bool delayed;     /* SUFFIX: tokens wait for the next one. */
    bool last;        /* The token in hand is the last one. */
    uint32_t waiting; /* The id that waits, or LT_NO_ID. */
    bool per_byte;    /* What is held came from byte-fallback pieces. */
    uint32_t strip;   /* FUSE then STRIP: how many leading characters may still go. */
    lt_text strip_char;
    bool spm_start;       /* SentencePiece: the first piece loses its leading space. */
    lt_text piece, other; /* The token in hand. */
    lt_text before;       /* CTC: the token before. */
    lt_regex_scratch *regex;
    lt_text held; /* Bytes before the assembler. */
    lt_text out;
};

lt_err lt_tokenizer_stream_open(lt_tokenizer_stream **out, const lt_tokenizer *t,
                                bool skip_special) {
    bool fused = false;
    lt_tokenizer_stream *s;
    if (t->odd_decoder) {
        LT_FAIL(LT_ERR_UNSUPPORTED,
                "%s: its decoder has its steps in an order that cannot be decoded", t->name);
    }
    s = calloc(1, sizeof *s);
    if (s == NULL) {
        LT_FAIL(LT_ERR_OOM, "tokenizer stream");
    }
    s->t = t;
    s->waiting = LT_NO_ID;
    s->skip_special = skip_special;
    s->spm_start = t->spm.active && t->spm.add_dummy_prefix;
    for (int i = 0; i < t->n_decode; i++) {
        fused |= t->decode[i].kind == LT_DECODE_FUSE || t->decode[i].kind == LT_DECODE_BYTE_LEVEL;
        s->delayed |= t->decode[i].kind == LT_DECODE_SUFFIX;
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

void lt_tokenizer_stream_continue(lt_tokenizer_stream *s) {
    s->started = true;
    s->spm_start = false;
    s->strip = 0;
}

void lt_tokenizer_stream_close(lt_tokenizer_stream *s) {
    if (s == NULL) {
        return;
    }
    lt_text_free(&s->strip_char);
    lt_text_free(&s->piece);
    lt_text_free(&s->other);
    lt_text_free(&s->before);
    lt_regex_scratch_close(s->regex);
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

static lt_err clean_up(lt_tokenizer_stream *s) {
    static const char *const cleanups[][2] = {
        {" .", "."},   {" ?", "?"},     {" !", "!"},    {" ,", ","},
        {" ' ", "'"},  {" n't", "n't"}, {" 'm", "'m"},  {" do not", " don't"},
        {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"}};
    for (size_t i = 0; i < sizeof cleanups / sizeof *cleanups; i++) {
        const lt_text from = {.data = (char *)(uintptr_t)cleanups[i][0],
                              .n = strlen(cleanups[i][0])};
        LT_TRY(replace_all(s, &from, cleanups[i][1], strlen(cleanups[i][1])));
    }
    return LT_OK;
}

static lt_err wordpiece_step(lt_tokenizer_stream *s, const lt_decode_op *op) {
    if (begins_with(&s->piece, &op->from) && s->started) {
        drop_front(&s->piece, op->from.n);
    } else if (s->started) {
        LT_TRY(prepend_space(s));
    }
    return op->cleanup ? clean_up(s) : LT_OK;
}

static lt_err ctc_step(lt_tokenizer_stream *s, const lt_decode_op *op) {
    const bool repeated = s->started && s->before.n == s->piece.n &&
                          (s->piece.n == 0 ||
                           memcmp(s->before.data, s->piece.data, s->piece.n) == 0);
    if (repeated) {
        s->piece.n = 0;
        return LT_OK;
    }
    s->before.n = 0;
    LT_TRY(lt_text_put(&s->before, s->piece.data, s->piece.n));
    LT_TRY(replace_all(s, &op->from, "", 0));
    if (op->cleanup) {
        LT_TRY(clean_up(s));
        LT_TRY(replace_all(s, &op->to, " ", 1));
    }
    return LT_OK;
}

/* Every match in the piece becomes op->to, empty matches too. */
static lt_err regex_step(lt_tokenizer_stream *s, const lt_decode_op *op) {
    size_t at = 0, from = 0;
    lt_text swap;
    LT_TRY(s->regex == NULL ? lt_regex_scratch_open(&s->regex) : LT_OK);
    LT_TRY(lt_text_reserve(&s->piece, 1));
    s->other.n = 0;
    while (from <= s->piece.n) {
        bool found;
        size_t begin, end;
        LT_TRY(lt_regex_find(op->regex, s->regex, s->piece.data, s->piece.n, from, &found, &begin,
                             &end));
        if (!found) {
            break;
        }
        LT_TRY(lt_text_put(&s->other, s->piece.data + at, begin - at));
        LT_TRY(lt_text_put(&s->other, op->to.data, op->to.n));
        at = from = end;
        if (begin == end) {
            uint32_t cp;
            if (end >= s->piece.n) {
                break;
            }
            from += lt_utf8_decode((const uint8_t *)s->piece.data + end,
                                   (const uint8_t *)s->piece.data + s->piece.n, &cp);
        }
    }
    LT_TRY(lt_text_put(&s->other, s->piece.data + at, s->piece.n - at));
    swap = s->piece;
    s->piece = s->other;
    s->other = swap;
    return LT_OK;
}

static lt_err byte_level_step(lt_tokenizer_stream *s) {
    lt_text swap;
    bool mapped;
    s->other.n = 0;
    LT_TRY(lt_tokenizer_unmap(s->piece.data, s->piece.n, &s->other, &mapped));
    swap = s->piece;
    s->piece = s->other;
    s->other = swap;
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
        return op->regex != NULL ? regex_step(s, op)
                                 : replace_all(s, &op->from, op->to.data, op->to.n);
    case LT_DECODE_METASPACE:
        return replace_all(s, &op->from, " ", op->prepend && !s->started ? 0 : 1);
    case LT_DECODE_STRIP:
        strip_step(s, op);
        return LT_OK;
    case LT_DECODE_WORDPIECE:
        return wordpiece_step(s, op);
    case LT_DECODE_SUFFIX:
        return replace_all(s, &op->from, " ", s->last ? 0 : 1);
    case LT_DECODE_CTC:
        return ctc_step(s, op);
    case LT_DECODE_BYTE_LEVEL:
        return byte_level_step(s);
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

/* What is held came from byte pieces and their run is over: text, or one U+FFFD a byte. */
static lt_err end_run(lt_tokenizer_stream *s) {
    if (lt_utf8_valid_prefix(s->held.data, s->held.n) == s->held.n) {
        LT_TRY(lt_text_put(&s->out, s->held.data, s->held.n));
    } else {
        for (size_t i = 0; i < s->held.n; i++) {
            LT_TRY(lt_text_put_cp(&s->out, LT_UNICODE_REPLACEMENT));
        }
    }
    s->held.n = 0;
    return LT_OK;
}

static lt_err put_bytes(lt_tokenizer_stream *s, const char *bytes, size_t n, bool fallback) {
    const bool runs = !s->t->spm.active; /* Hugging Face's rule for byte pieces. */
    if (s->held.n > 0 && s->per_byte != fallback) {
        LT_TRY(s->per_byte && runs ? end_run(s) : assemble(s, true));
    }
    s->per_byte = fallback;
    LT_TRY(lt_text_put(&s->held, bytes, n));
    return fallback && runs ? LT_OK : assemble(s, false);
}

/* The piece as the decoder's steps expect it: where they are not made for raw bytes, in printable form. */
static lt_err take_piece(lt_tokenizer_stream *s, uint32_t id) {
    const lt_vocab *v = &s->t->vocab;
    const char *text = lt_vocab_text(v, id);
    s->piece.n = 0;
    if (!s->t->printable || (v->flags[id] & LT_PIECE_LITERAL) != 0) {
        return lt_text_put(&s->piece, text, v->bytes[id]);
    }
    for (uint32_t i = 0; i < v->bytes[id]; i++) {
        LT_TRY(lt_text_put_cp(&s->piece, lt_byte_char((uint8_t)text[i])));
    }
    return LT_OK;
}

static lt_err put_piece(lt_tokenizer_stream *s, uint32_t id) {
    const lt_tokenizer *t = s->t;
    bool fuse = false, fallback = t->spm.active;
    char byte;

    LT_TRY(take_piece(s, id));
    for (int i = 0; i < t->n_decode && !fuse; i++) {
        fuse = t->decode[i].kind == LT_DECODE_FUSE || t->decode[i].kind == LT_DECODE_BYTE_LEVEL;
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

/* Where the last token is different each one waits for the next. */
static lt_err put_or_wait(lt_tokenizer_stream *s, uint32_t id) {
    const uint32_t before = s->waiting;
    if (!s->delayed) {
        return put_piece(s, id);
    }
    s->waiting = id;
    return before != LT_NO_ID ? put_piece(s, before) : LT_OK;
}

lt_err lt_tokenizer_stream_put(lt_tokenizer_stream *s, uint32_t id, const char **text,
                               size_t *bytes) {
    LT_TRY(check_id(s->t, id));
    s->out.n = 0;
    if ((s->t->vocab.flags[id] & LT_PIECE_PRESENT) != 0 &&
        !(s->skip_special && (s->t->vocab.flags[id] & LT_PIECE_SPECIAL) != 0)) {
        LT_TRY(put_or_wait(s, id));
    }
    return give_out(s, text, bytes);
}

lt_err lt_tokenizer_stream_finish(lt_tokenizer_stream *s, const char **text, size_t *bytes) {
    s->out.n = 0;
    if (s->waiting != LT_NO_ID) {
        const uint32_t id = s->waiting;
        s->waiting = LT_NO_ID;
        s->last = true;
        LT_TRY(put_piece(s, id));
    }
    LT_TRY(s->per_byte && !s->t->spm.active ? end_run(s) : assemble(s, true));
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
