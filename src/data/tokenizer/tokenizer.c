/* tokenizer.c: open and encode; see include/lateen/tokenizer.h for the contract and
 * tokenizer/impl.h for the parts.
 *
 * ENCODING follows Hugging Face's order: added tokens that match raw text, normalizer, added tokens
 * that match normalised text, pre-tokenizer, model, post-processor. Formats without some of these
 * steps leave them empty. If the pre-tokenizer is a scanner, words go from it to the model in
 * chunks that stay in the first-level cache, and no intermediate text is made. */
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "data/tokenizer/regex.h"
#include "data/tokenizer/impl.h"

#define CHUNK 128 /* Words that the scanner passes to the model at a time. */

void lt_tokenizer_close(lt_tokenizer *t) {
    if (t == NULL) {
        return;
    }
    for (size_t i = 0; i < t->n_added; i++) {
        lt_text_free(&t->added[i].content);
        lt_text_free(&t->added[i].decoded);
    }
    for (int i = 0; i < t->n_decode; i++) {
        lt_text_free(&t->decode[i].from);
        lt_text_free(&t->decode[i].to);
        lt_regex_close(t->decode[i].regex);
    }
    free(t->added);
    lt_trie_free(&t->raw);
    lt_trie_free(&t->normalized);
    lt_trie_free(&t->spm.user);
    lt_charsmap_free(&t->spm.charsmap);
    lt_text_free(&t->spm.unknown);
    lt_ids_free(&t->before);
    lt_ids_free(&t->after);
    lt_ids_free(&t->ends);
    lt_normalizer_free(&t->normalizer);
    lt_pretok_free(&t->pretok);
    lt_bpe_free(&t->bpe);
    lt_unigram_free(&t->unigram);
    lt_vocab_free(&t->vocab);
    lt_text_free(&t->chat_template);
    lt_text_free(&t->texts);
    free(t->text_ends);
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
    free(s->edges);
    free(s);
}

lt_err lt_tokenizer_add(lt_tokenizer *t, lt_added token, const char *content, size_t n) {
    lt_added *grown;
    unsigned flags = LT_PIECE_ADDED | (token.special ? LT_PIECE_SPECIAL : 0);

    if (n == 0) {
        return LT_OK; /* It matches nothing. */
    }
    /* Pieces are bytes: "<|x|>" stands for itself, but U+00C9 for the byte 0xC9. */
    if (t->byte_level) {
        lt_text mapped = {0};
        bool all;
        lt_err err = lt_tokenizer_unmap(content, n, &mapped, &all);
        if (err == LT_OK) {
            flags |= all ? 0 : LT_PIECE_LITERAL;
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
        if (t->model == LT_MODEL_WORDLEVEL) {
            LT_TRY(lt_wordlevel_encode(&t->wordpiece, words[i].p, words[i].n, out));
        } else if (t->model == LT_MODEL_UNIGRAM) {
            LT_TRY(lt_unigram_encode(&t->unigram, &s->unigram, words[i].p, words[i].n, out));
        } else if (t->model == LT_MODEL_SPM_PIECES) {
            LT_TRY(lt_spm_pieces_encode(&t->spm_pieces, words[i].p, words[i].n, out));
        } else {
            LT_TRY(lt_wordpiece_encode(&t->wordpiece, &s->spm, words[i].p, words[i].n, out));
        }
    }
    return LT_OK;
}

/* The end of a run of U+2581 and the text after it, up to the next run. */
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

/* Encode p..end with one scanner, in chunks. scan NULL: all of it is one word. */
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

/* Run the pre-tokenizer and the model. */
static lt_err encode_words(const lt_tokenizer *t, lt_tokenizer_scratch *s, const char *text,
                           size_t n, bool origin, const char *first, lt_ids *out) {
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
    LT_TRY(lt_pretok_run(&t->pretok, &s->pieces, p, n, origin, first));
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

/* An added token found in a text: the range that it covers, with the white space that it strips,
 * and where the search continues. */
typedef struct {
    const uint8_t *from, *to, *next;
    const lt_added *token;
} found_added;

/* The next added token at or after `at`; false: there is none. As in Hugging Face, the leftmost and
 * longest match wins; a refused match (not a whole word, or a special token if those are not
 * parsed) is skipped as a whole; white space is stripped no further back than floor. A token of
 * white space that strips, and that the token before it has stripped, covers nothing and is
 * dropped. */
static bool next_added(const lt_tokenizer *t, const lt_trie *trie, bool parse_special,
                       const uint8_t *begin, const uint8_t *floor, const uint8_t *at,
                       const uint8_t *end, found_added *f) {
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
        f->token = &t->added[which];
        if ((f->token->special && !parse_special) ||
            (f->token->single_word &&
             ((at > begin && word_at(char_before(begin, at), at)) || word_at(at + n, end)))) {
            at += n;
            continue;
        }
        f->from = f->token->lstrip && at < floor ? floor : at;
        f->to = f->next = at + n;
        while (f->token->lstrip && f->from > floor) {
            const uint8_t *before = char_before(begin, f->from);
            lt_utf8_decode(before, f->from, &cp);
            if ((lt_unicode_flags(cp) & LT_UNICODE_SPACE) == 0) {
                break;
            }
            f->from = before;
        }
        while (f->token->rstrip && f->to < end) {
            const size_t size = lt_utf8_decode(f->to, end, &cp);
            if ((lt_unicode_flags(cp) & LT_UNICODE_SPACE) == 0) {
                break;
            }
            f->to += size;
        }
        if (f->from < f->to) {
            return true;
        }
        at = f->next;
    }
    return false;
}

lt_err lt_tokenizer_normalize(const lt_tokenizer *t, lt_tokenizer_scratch *s, const char *text,
                              size_t n, const char **out, size_t *out_n) {
    if (!t->spm.active) {
        return lt_normalizer_apply(&t->normalizer, &s->norm, text, n, out, out_n);
    }
    s->spm.n = 0;
    LT_TRY(lt_spm_normalize(&t->spm, text, n, &s->spm));
    *out = s->spm.data;
    *out_n = s->spm.n;
    return LT_OK;
}

/* A segment between raw added tokens: normalise, cut out normalised added tokens, encode the
 * rest. */
static lt_err encode_segment(const lt_tokenizer *t, lt_tokenizer_scratch *s, const char *text,
                             size_t n, bool origin, bool parse_special, lt_ids *out) {
    const uint8_t *begin, *p, *at, *end;
    const char *first = NULL; /* See normalize_align.c. */
    found_added f;

    if (n == 0) {
        return LT_OK;
    }
    LT_TRY(origin && t->tracks_first
               ? lt_normalizer_apply_aligned(&t->normalizer, &s->norm, text, n, &text, &n, &first)
               : lt_tokenizer_normalize(t, s, text, n, &text, &n));
    begin = p = at = (const uint8_t *)text;
    end = p + n;
    while (t->normalized.n_first > 0 &&
           next_added(t, &t->normalized, parse_special, begin, p, at, end, &f)) {
        if (f.from > p) {
            LT_TRY(encode_words(t, s, (const char *)p, (size_t)(f.from - p), origin && p == begin,
                                first != NULL ? first + (p - begin) : NULL, out));
        }
        LT_TRY(lt_ids_append(out, &f.token->id, 1));
        p = f.to;
        at = f.next;
    }
    return encode_words(t, s, (const char *)p, (size_t)(end - p), origin && p == begin,
                        first != NULL ? first + (p - begin) : NULL, out);
}

/* Truncate out[first..) to the length that "truncation" allows beside `around` ids, as the
 * tokenizers package does: an impossible setting is an error, and a limit below `around` does not
 * apply. */
static lt_err cut_to_fit(const lt_tokenizer *t, size_t first, size_t around, lt_ids *out) {
    const lt_fit *fit = &t->fit;
    const uint64_t n = out->n - first, most = fit->max_length - around;

    if (!fit->cuts || n <= most || fit->max_length < around) {
        return LT_OK;
    }
    if (fit->only_second && most > 0) {
        LT_FAIL(LT_ERR_UNSUPPORTED,
                "%s: its truncation cuts the second text of a pair only, and this is one text",
                t->name);
    }
    if (most > 0 && fit->stride >= most) {
        LT_FAIL(LT_ERR_UNSUPPORTED, "%s: truncation to %llu ids with a stride of %llu", t->name,
                (unsigned long long)most, (unsigned long long)fit->stride);
    }
    if (fit->cut_left) {
        memmove(out->data + first, out->data + out->n - most, most * sizeof *out->data);
    }
    out->n = first + (size_t)most;
    return LT_OK;
}

static lt_err pad_to_fit(const lt_tokenizer *t, size_t first, lt_ids *out) {
    const lt_fit *fit = &t->fit;
    const size_t n = out->n - first;
    uint64_t want = fit->pads_fixed ? fit->fixed : n;
    size_t more;

    if (!fit->pads) {
        return LT_OK;
    }
    if (fit->multiple > 0 && want % fit->multiple > 0) {
        want += fit->multiple - want % fit->multiple;
    }
    more = want > n ? (size_t)want - n : 0;
    LT_TRY(lt_ids_reserve(out, more));
    if (fit->pad_left && n > 0) {
        memmove(out->data + first + more, out->data + first, n * sizeof *out->data);
    }
    for (size_t i = 0; i < more; i++) {
        out->data[(fit->pad_left ? first : out->n) + i] = fit->pad_id;
    }
    out->n += more;
    return LT_OK;
}

static lt_err keep_edge(lt_tokenizer_scratch *s, size_t ids, size_t bytes) {
    if (!s->keeps_edges) {
        return LT_OK;
    }
    if (s->n_edges == s->edges_room) {
        const size_t room = s->edges_room == 0 ? 64 : 2 * s->edges_room;
        lt_token_edge *grown = realloc(s->edges, room * sizeof *grown);
        if (grown == NULL) {
            LT_FAIL(LT_ERR_OOM, "%zu segments of a text", room);
        }
        s->edges = grown;
        s->edges_room = room;
    }
    s->edges[s->n_edges++] = (lt_token_edge){ids, bytes};
    return LT_OK;
}

lt_err lt_tokenizer_encode(const lt_tokenizer *t, lt_tokenizer_scratch *s, const char *text,
                           size_t bytes, unsigned flags, lt_ids *out) {
    const bool parse_special = (flags & LT_ENCODE_PARSE_SPECIAL) != 0;
    const bool add_special = (flags & LT_ENCODE_ADD_SPECIAL) != 0;
    const bool needs_valid = !t->spm.active &&
                             (!t->byte_level || t->normalizer.n_norms > 0 || t->pretok.n_cuts > 0);
    const size_t around = add_special ? t->before.n + t->after.n : 0, first = out->n;
    const uint8_t *begin, *p, *at, *end;
    found_added f;

    LT_ASSERT(s->owner == t);
    LT_ASSERT(text != NULL || bytes == 0);
    if (needs_valid && lt_utf8_valid_prefix(text, bytes) != bytes) {
        s->valid.n = 0;
        LT_TRY(lt_text_put_valid(&s->valid, text, bytes));
        text = s->valid.data;
        bytes = s->valid.n;
    }
    LT_TRY(add_special ? lt_ids_append(out, t->before.data, t->before.n) : LT_OK);
    begin = p = at = (const uint8_t *)text;
    end = begin + bytes;
    LT_TRY(keep_edge(s, out->n, 0));
    while (t->raw.n_first > 0 && next_added(t, &t->raw, parse_special, begin, p, at, end, &f)) {
        if (f.from > p) {
            LT_TRY(encode_segment(t, s, (const char *)p, (size_t)(f.from - p), p == begin,
                                  parse_special, out));
            LT_TRY(keep_edge(s, out->n, (size_t)(f.from - begin)));
        }
        LT_TRY(lt_ids_append(out, &f.token->id, 1));
        p = f.to;
        at = f.next;
        LT_TRY(keep_edge(s, out->n, (size_t)(p - begin)));
    }
    LT_TRY(
        encode_segment(t, s, (const char *)p, (size_t)(end - p), p == begin, parse_special, out));
    LT_TRY(keep_edge(s, out->n, bytes));
    if ((flags & LT_ENCODE_FIT) != 0) {
        LT_TRY(cut_to_fit(t, add_special ? first + t->before.n : first, around, out));
    }
    LT_TRY(add_special ? lt_ids_append(out, t->after.data, t->after.n) : LT_OK);
    return (flags & LT_ENCODE_FIT) != 0 ? pad_to_fit(t, first, out) : LT_OK;
}

lt_tokenizer_info lt_tokenizer_describe(const lt_tokenizer *t) {
    return (lt_tokenizer_info){
        .n_ids = t->vocab.n,
        .bos = t->bos,
        .eos = t->eos,
        .pad = t->pad,
        .unk = t->unk,
        .eot = t->eot,
        .ends = t->ends.data,
        .n_ends = t->ends.n,
        .adds_bos = t->before.n > 0,
        .adds_eos = t->after.n > 0,
        .kind = t->kind,
        .chat_template = t->chat_template.n > 0 ? t->chat_template.data : NULL,
    };
}

/* Each byte as a text of one byte, for pieces that stand for a byte: <0x0A> is a line feed, not
 * six characters. */
#define BYTES_4(n)  (char)(n), (char)((n) + 1), (char)((n) + 2), (char)((n) + 3)
#define BYTES_16(n) BYTES_4(n), BYTES_4((n) + 4), BYTES_4((n) + 8), BYTES_4((n) + 12)
#define BYTES_64(n) BYTES_16(n), BYTES_16((n) + 16), BYTES_16((n) + 32), BYTES_16((n) + 48)
static const char every_byte[256] = {BYTES_64(0), BYTES_64(64), BYTES_64(128), BYTES_64(192)};

static bool is_byte_piece(const lt_tokenizer *t, uint32_t id, uint8_t *byte) {
    bool fallback = (t->vocab.flags[id] & LT_PIECE_BYTE) != 0;
    for (int i = 0; i < t->n_decode && !fallback; i++) {
        fallback = t->decode[i].kind == LT_DECODE_BYTE_FALLBACK;
    }
    return fallback && lt_piece_is_byte(lt_vocab_text(&t->vocab, id), t->vocab.bytes[id], byte);
}

const char *lt_tokenizer_piece(const lt_tokenizer *t, uint32_t id, size_t *bytes) {
    uint8_t byte;
    *bytes = 0;
    if (id >= t->vocab.n || (t->vocab.flags[id] & LT_PIECE_PRESENT) == 0) {
        return NULL;
    }
    *bytes = t->vocab.bytes[id];
    if (is_byte_piece(t, id, &byte)) {
        *bytes = 1;
        return &every_byte[byte];
    }
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
