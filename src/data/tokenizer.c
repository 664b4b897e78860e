/* tokenizer.c: open and encode; see include/lateen/tokenizer.h for the contract and tokenizer_impl.h for the parts.
 *
 * ENCODING follows Hugging Face's order: added tokens that match raw text, normalizer, added tokens that match normalised
 * text, pre-tokenizer, model, post-processor. Formats without some of these steps leave them empty. When the pre-tokenizer is
 * one scanner, words go from it to the model in chunks that stay in the first-level cache; nothing is materialised. */
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "data/tokenizer_impl.h"

#define CHUNK 128 /* Words between scanner and model. */

void lt_tokenizer_close(lt_tokenizer *t) {
    if (t == NULL) {
        return;
    }
    for (size_t i = 0; i < t->n_added; i++) {
        lt_text_free(&t->added[i].content);
    }
    for (int i = 0; i < t->n_decode; i++) {
        lt_text_free(&t->decode[i].from);
        lt_text_free(&t->decode[i].to);
    }
    free(t->added);
    lt_trie_free(&t->raw);
    lt_trie_free(&t->normalized);
    lt_trie_free(&t->spm.user);
    lt_charsmap_free(&t->spm.charsmap);
    lt_ids_free(&t->before);
    lt_ids_free(&t->after);
    lt_normalizer_free(&t->normalizer);
    lt_pretok_free(&t->pretok);
    lt_bpe_free(&t->bpe);
    lt_unigram_free(&t->unigram);
    lt_vocab_free(&t->vocab);
    lt_text_free(&t->chat_template);
    free(t->name);
    free(t);
}

lt_err lt_tokenizer_scratch_open(lt_tokenizer_scratch **out, const lt_tokenizer *t) {
    lt_err err = LT_OK;
    lt_tokenizer_scratch *s = calloc(1, sizeof *s);
    if (s == NULL) {
        LT_FAIL(LT_ERR_OOM, "tokenizer scratch");
    }
    s->owner = t;
    if (t->model == LT_MODEL_BPE) {
        LT_TRY_DONE(lt_bpe_scratch_open(&s->bpe));
    }
    *out = s;
    s = NULL;
done:
    lt_tokenizer_scratch_close(s);
    return err;
}

void lt_tokenizer_scratch_close(lt_tokenizer_scratch *s) {
    if (s == NULL) {
        return;
    }
    lt_bpe_scratch_close(s->bpe);
    lt_unigram_scratch_free(&s->unigram);
    lt_norm_scratch_free(&s->norm);
    lt_pieces_free(&s->pieces);
    lt_text_free(&s->valid);
    lt_text_free(&s->spm);
    free(s);
}

lt_err lt_tokenizer_add(lt_tokenizer *t, lt_added token, const char *content, size_t n) {
    lt_added *grown;
    unsigned flags = LT_PIECE_ADDED | (token.special ? LT_PIECE_SPECIAL : 0);

    if (n == 0) {
        return LT_OK; /* Matches nothing. */
    }
    if (token.id < t->vocab.n && (t->vocab.flags[token.id] & LT_PIECE_PRESENT) != 0 &&
        t->byte_level) {
        /* The vocabulary's entry was read as printable bytes; compare in that form. */
        lt_text mapped = {0};
        bool all;
        lt_err err = lt_tokenizer_unmap(content, n, &mapped, &all);
        if (err == LT_OK) {
            err = lt_vocab_put(&t->vocab, token.id, mapped.data, mapped.n, flags, false, t->name);
        }
        lt_text_free(&mapped);
        LT_TRY(err);
    } else {
        LT_TRY(lt_vocab_put(&t->vocab, token.id, content, n, flags, false, t->name));
    }
    if (t->n_added == t->added_room) {
        const size_t room = t->added_room == 0 ? 64 : 2 * t->added_room;
        grown = realloc(t->added, room * sizeof *grown);
        if (grown == NULL) {
            LT_FAIL(LT_ERR_OOM, "%s: %zu added tokens", t->name, room);
        }
        t->added = grown;
        t->added_room = room;
    }
    token.content = (lt_text){0};
    LT_TRY(lt_text_put(&token.content, content, n));
    t->added[t->n_added++] = token;
    return LT_OK;
}

lt_err lt_tokenizer_add_decode(lt_tokenizer *t, lt_decode_kind kind, const char *from,
                               const char *to) {
    lt_decode_op *op;
    if (t->n_decode == LT_MAX_DECODE_OPS) {
        LT_FAIL(LT_ERR_LIMIT, "%s: a decoder of more than %d steps", t->name, LT_MAX_DECODE_OPS);
    }
    op = &t->decode[t->n_decode++];
    *op = (lt_decode_op){.kind = kind, .start = 1};
    LT_TRY(from != NULL ? lt_text_put(&op->from, from, strlen(from)) : LT_OK);
    return to != NULL ? lt_text_put(&op->to, to, strlen(to)) : LT_OK;
}

static lt_err encode_spans(const lt_tokenizer *t, lt_tokenizer_scratch *s, const lt_span *words,
                           size_t n, const uint8_t *end, size_t floor, lt_ids *out) {
    if (t->model == LT_MODEL_BPE) {
        return lt_bpe_encode(&t->bpe, s->bpe, words, n, end, floor, out);
    }
    for (size_t i = 0; i < n; i++) {
        if (t->model == LT_MODEL_UNIGRAM) {
            LT_TRY(lt_unigram_encode(&t->unigram, &s->unigram, words[i].p, words[i].n, out));
        } else {
            LT_TRY(lt_wordpiece_encode(&t->wordpiece, &s->spm, words[i].p, words[i].n, out));
        }
    }
    return LT_OK;
}

/* A run of U+2581 and what follows it up to the next one. */
static const uint8_t *scan_metaspace(const uint8_t *p, const uint8_t *end) {
    bool started = false;
    while (p < end) {
        const bool mark = end - p >= 3 && p[0] == 0xE2 && p[1] == 0x96 && p[2] == 0x81;
        if (mark && started) {
            break;
        }
        started |= !mark;
        p += mark ? 3 : 1;
        while (p < end && *p != 0xE2 && started) {
            p++;
        }
    }
    return p;
}

/* Words of p..end by one scanner, in chunks. scan NULL: all of it is one word. */
static lt_err encode_scanned(const lt_tokenizer *t, lt_tokenizer_scratch *s, lt_scan_fn scan,
                             const uint8_t *p, const uint8_t *end, size_t floor, lt_ids *out) {
    lt_span words[CHUNK];
    if (scan == NULL && t->cut_at_metaspace) {
        scan = scan_metaspace;
    }
    while (p < end) {
        size_t n = 0;
        while (p < end && n < CHUNK) {
            const uint8_t *q = scan != NULL ? scan(p, end) : end;
            words[n++] = (lt_span){p, (size_t)(q - p)};
            p = q;
        }
        LT_TRY(encode_spans(t, s, words, n, end, floor, out));
    }
    return LT_OK;
}

/* Pre-tokenizer and model. */
static lt_err encode_words(const lt_tokenizer *t, lt_tokenizer_scratch *s, const char *text,
                           size_t n, bool origin, lt_ids *out) {
    const uint8_t *p = (const uint8_t *)text;
    const size_t floor = out->n;
    lt_span words[CHUNK];
    size_t n_words = 0;

    if (n == 0) {
        return LT_OK;
    }
    if (t->pretok.n_cuts == 0) {
        return encode_scanned(t, s, t->pretok.scan, p, p + n, floor, out);
    }
    LT_TRY(lt_pretok_run(&t->pretok, &s->pieces, p, n, origin));
    for (size_t i = 0; i < s->pieces.n; i++) {
        const lt_range r = s->pieces.pieces[i];
        if (t->cut_at_metaspace) {
            LT_TRY(encode_scanned(t, s, NULL, s->pieces.text + r.begin, s->pieces.text + r.end,
                                  floor, out));
            continue;
        }
        words[n_words++] = (lt_span){s->pieces.text + r.begin, r.end - r.begin};
        if (n_words == CHUNK) {
            LT_TRY(encode_spans(t, s, words, n_words, s->pieces.text + s->pieces.text_bytes, floor,
                                out));
            n_words = 0;
        }
    }
    return encode_spans(t, s, words, n_words, s->pieces.text + s->pieces.text_bytes, floor, out);
}

static bool word_at(const uint8_t *p, const uint8_t *end) {
    uint32_t cp;
    return p < end && (lt_utf8_decode(p, end, &cp), (lt_unicode_flags(cp) & LT_UNICODE_WORD) != 0);
}

static const uint8_t *char_before(const uint8_t *begin, const uint8_t *p) {
    do {
        p--;
    } while (p > begin && (*p & 0xC0) == 0x80);
    return p;
}

/* The next added token in at..end: false if none. Follows Hugging Face: leftmost, longest; a match refused (not a whole
 * word, special while those are off) is skipped whole. [*from, *to) includes stripped white space, no further back than floor. */
static bool next_added(const lt_tokenizer *t, const lt_trie *trie, bool parse_special,
                       const uint8_t *begin, const uint8_t *at, const uint8_t *end,
                       const uint8_t **from, const uint8_t **to, const lt_added **token) {
    const uint8_t *floor = at;
    while (at < end) {
        uint32_t which, cp;
        size_t n;
        if (trie->n_first == 1) {
            at = memchr(at, trie->only_first, (size_t)(end - at));
            if (at == NULL) {
                return false;
            }
        }
        n = trie->first[*at] != 0 ? lt_trie_longest(trie, at, (size_t)(end - at), &which) : 0;
        if (n == 0) {
            at++;
            continue;
        }
        *token = &t->added[which];
        if (((*token)->special && !parse_special) ||
            ((*token)->single_word &&
             ((at > begin && word_at(char_before(begin, at), at)) || word_at(at + n, end)))) {
            at += n;
            continue;
        }
        *from = at;
        *to = at + n;
        while ((*token)->lstrip && *from > floor) {
            const uint8_t *before = char_before(floor, *from);
            lt_utf8_decode(before, *from, &cp);
            if ((lt_unicode_flags(cp) & LT_UNICODE_SPACE) == 0) {
                break;
            }
            *from = before;
        }
        while ((*token)->rstrip && *to < end) {
            const size_t size = lt_utf8_decode(*to, end, &cp);
            if ((lt_unicode_flags(cp) & LT_UNICODE_SPACE) == 0) {
                break;
            }
            *to += size;
        }
        return true;
    }
    return false;
}

static lt_err put_id(lt_ids *out, uint32_t id) {
    LT_TRY(lt_ids_reserve(out, 1));
    out->data[out->n++] = id;
    return LT_OK;
}

/* A segment between raw added tokens: normalise, cut out normalised added tokens, encode the rest. */
static lt_err encode_segment(const lt_tokenizer *t, lt_tokenizer_scratch *s, const char *text,
                             size_t n, bool origin, bool parse_special, lt_ids *out) {
    const uint8_t *begin, *p, *end, *from, *to;
    const lt_added *token;

    if (n == 0) {
        return LT_OK;
    }
    if (t->spm.active) {
        s->spm.n = 0;
        LT_TRY(lt_spm_normalize(&t->spm, text, n, &s->spm));
        text = s->spm.data;
        n = s->spm.n;
    } else {
        LT_TRY(lt_normalizer_run(&t->normalizer, &s->norm, text, n, &text, &n));
    }
    begin = p = (const uint8_t *)text;
    end = p + n;
    while (t->normalized.n_first > 0 &&
           next_added(t, &t->normalized, parse_special, begin, p, end, &from, &to, &token)) {
        LT_TRY(encode_words(t, s, (const char *)p, (size_t)(from - p), origin && p == begin, out));
        LT_TRY(put_id(out, token->id));
        p = to;
    }
    return encode_words(t, s, (const char *)p, (size_t)(end - p), origin && p == begin, out);
}

lt_err lt_tokenizer_encode(const lt_tokenizer *t, lt_tokenizer_scratch *s, const char *text,
                           size_t bytes, unsigned flags, lt_ids *out) {
    const bool parse_special = (flags & LT_ENCODE_PARSE_SPECIAL) != 0;
    const bool add_special = (flags & LT_ENCODE_ADD_SPECIAL) != 0;
    const bool needs_valid = !t->spm.active &&
                             (!t->byte_level || t->normalizer.n_norms > 0 || t->pretok.n_cuts > 0);
    const uint8_t *begin, *p, *end, *from, *to;
    const lt_added *token;

    LT_ASSERT(s->owner == t);
    LT_ASSERT(text != NULL || bytes == 0);
    if (needs_valid && lt_utf8_valid_prefix(text, bytes) != bytes) {
        s->valid.n = 0;
        LT_TRY(lt_text_put_valid(&s->valid, text, bytes));
        text = s->valid.data;
        bytes = s->valid.n;
    }
    for (size_t i = 0; i < t->before.n && add_special; i++) {
        LT_TRY(put_id(out, t->before.data[i]));
    }
    begin = p = (const uint8_t *)text;
    end = begin + bytes;
    while (t->raw.n_first > 0 &&
           next_added(t, &t->raw, parse_special, begin, p, end, &from, &to, &token)) {
        LT_TRY(encode_segment(t, s, (const char *)p, (size_t)(from - p), p == begin, parse_special,
                              out));
        LT_TRY(put_id(out, token->id));
        p = to;
    }
    LT_TRY(
        encode_segment(t, s, (const char *)p, (size_t)(end - p), p == begin, parse_special, out));
    for (size_t i = 0; i < t->after.n && add_special; i++) {
        LT_TRY(put_id(out, t->after.data[i]));
    }
    return LT_OK;
}

lt_tokenizer_info lt_tokenizer_describe(const lt_tokenizer *t) {
    return (lt_tokenizer_info){
        .n_ids = t->vocab.n,
        .bos = t->bos,
        .eos = t->eos,
        .pad = t->pad,
        .unk = t->unk,
        .eot = t->eot,
        .adds_bos = t->before.n > 0,
        .adds_eos = t->after.n > 0,
        .kind = t->kind,
        .chat_template = t->chat_template.n > 0 ? t->chat_template.data : NULL,
    };
}

const char *lt_tokenizer_piece(const lt_tokenizer *t, uint32_t id, size_t *bytes) {
    *bytes = 0;
    if (id >= t->vocab.n || (t->vocab.flags[id] & LT_PIECE_PRESENT) == 0) {
        return NULL;
    }
    *bytes = t->vocab.bytes[id];
    return lt_vocab_text(&t->vocab, id);
}

bool lt_tokenizer_is_special(const lt_tokenizer *t, uint32_t id) {
    return id < t->vocab.n && (t->vocab.flags[id] & LT_PIECE_SPECIAL) != 0;
}

uint32_t lt_tokenizer_find(const lt_tokenizer *t, const char *piece, size_t bytes) {
    for (size_t i = 0; i < t->n_added; i++) {
        if (t->added[i].content.n == bytes && memcmp(t->added[i].content.data, piece, bytes) == 0) {
            return t->added[i].id;
        }
    }
    return lt_vocab_find(&t->vocab, piece, bytes);
}
