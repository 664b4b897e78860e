/* tokenizer/json.c: reads Hugging Face's tokenizer.json.
 *
 * The model's vocabulary and merges are most of the file (up to 28 MB) and are pulled straight into
 * their tables. Everything else is small, kept as slices on the first pass, and read as a tree by
 * tokenizer/json_parts.c. The vocabulary of a byte-level model is stored as raw bytes, so it must
 * be known first whether the model is byte-level. If a file has `model` before `normalizer` and
 * `pre_tokenizer`, or the vocabulary before the model's type, that part is skipped first and read
 * at the end. */
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "data/tokenizer/bpe_load.h"
#include "data/tokenizer/impl.h"
#include "data/tokenizer/json.h"

lt_err lt_tokenizer_unmap(const char *s, size_t n, lt_text *out, bool *mapped) {
    const uint8_t *p = (const uint8_t *)s, *const end = p + n;
    const size_t before = out->n;

    *mapped = true;
    LT_TRY(lt_text_reserve(out, n + 1));
    while (p < end) {
        if (*p >= 0x21 && *p <= 0x7E) {
            out->data[out->n++] = (char)*p++;
        } else {
            uint32_t cp;
            const size_t size = lt_utf8_decode(p, end, &cp);
            const int byte = lt_char_byte(cp);
            if (byte < 0) {
                *mapped = false;
                out->n = before;
                return lt_text_put(out, s, n);
            }
            out->data[out->n++] = (char)byte;
            p += size;
        }
    }
    return LT_OK;
}

static lt_err put_piece(lt_tokenizer *t, uint32_t id, lt_slice piece, lt_text *raw) {
    bool mapped = true;
    if (!t->byte_level) {
        return lt_vocab_put(&t->vocab, id, piece.data, piece.n, LT_PIECE_TEXT, false, t->name);
    }
    raw->n = 0;
    LT_TRY(lt_tokenizer_unmap(piece.data, piece.n, raw, &mapped));
    return lt_vocab_put(&t->vocab, id, raw->data, raw->n,
                        !mapped      ? LT_PIECE_LITERAL
                        : raw->n > 0 ? LT_PIECE_TEXT
                                     : 0,
                        false, t->name);
}

/* Read {"piece": id, ...}. */
static lt_err read_vocab(lt_tokenizer *t, lt_json_pull *j) {
    lt_err err = LT_OK;
    lt_text raw = {0};
    bool more;
    int64_t id;
    lt_slice piece;

    LT_TRY(lt_json_pull_begin(j, '{'));
    LT_TRY(
        lt_vocab_reserve(&t->vocab, (size_t)(j->end - j->at) / 64, (size_t)(j->end - j->at) / 16));
    for (;;) {
        LT_TRY_DONE(lt_json_pull_key(j, &piece, &more));
        if (!more) {
            break;
        }
        LT_TRY_DONE(lt_json_pull_i64(j, &id));
        if (id < 0 || id >= LT_VOCAB_MAX) {
            LT_FAIL_DONE(LT_ERR_FORMAT,
                         "%s: piece '%.*s' has id %lld; ids from 0 to %u are accepted", t->name,
                         (int)(piece.n < 64 ? piece.n : 64), piece.data, (long long)id,
                         LT_VOCAB_MAX - 1);
        }
        LT_TRY_DONE(put_piece(t, (uint32_t)id, piece, &raw));
    }
    if (t->vocab.n == 0) {
        LT_FAIL_DONE(LT_ERR_FORMAT, "%s: the vocabulary is empty", t->name);
    }
    LT_TRY_DONE(lt_vocab_index_all(&t->vocab, NULL));
done:
    lt_text_free(&raw);
    return err;
}

/* Read [["piece", score], ...]; the id is the index in the list. */
static lt_err read_scored(lt_tokenizer *t, lt_json_pull *j) {
    lt_ids scores = {0}; /* Used as an array of doubles, of two words each. */
    lt_err err = LT_OK;
    bool more;
    double score;
    lt_slice piece;

    LT_TRY(lt_json_pull_begin(j, '['));
    for (uint32_t id = 0;; id++) {
        LT_TRY_DONE(lt_json_pull_next(j, &more));
        if (!more) {
            break;
        }
        LT_TRY_DONE(lt_json_pull_begin(j, '['));
        LT_TRY_DONE(lt_json_pull_next(j, &more));
        LT_TRY_DONE(more ? lt_json_pull_string(j, &piece)
                         : lt_error_set(LT_ERR_FORMAT, "%s: entry %u of the vocabulary is empty",
                                        t->name, id));
        LT_TRY_DONE(lt_vocab_put(&t->vocab, id, piece.data, piece.n, 0, piece.n > 0, t->name));
        LT_TRY_DONE(lt_json_pull_next(j, &more));
        LT_TRY_DONE(more
                        ? lt_json_pull_f64(j, &score)
                        : lt_error_set(LT_ERR_FORMAT, "%s: entry %u of the vocabulary has no score",
                                       t->name, id));
        LT_TRY_DONE(lt_json_pull_next(j, &more));
        if (more) {
            LT_FAIL_DONE(LT_ERR_FORMAT, "%s: entry %u of the vocabulary has more than two values",
                         t->name, id);
        }
        LT_TRY_DONE(lt_ids_reserve(&scores, 2));
        memcpy(scores.data + scores.n, &score, sizeof score);
        scores.n += 2;
    }
    t->unigram.score = (double *)(void *)scores.data;
    t->unigram.n_scores = (uint32_t)(scores.n / 2);
    t->unigram.vocab = &t->vocab;
    scores.data = NULL;
done:
    free(scores.data);
    return err;
}

/* Append one half of a merge to m->text, as bytes if the vocabulary is in bytes. */
static lt_err put_half(const lt_tokenizer *t, lt_merge_batch *m, const char *s, size_t n,
                       bool *ok) {
    bool mapped = true;
    LT_TRY(t->byte_level ? lt_tokenizer_unmap(s, n, &m->text, &mapped)
                         : lt_text_put(&m->text, s, n));
    *ok &= mapped;
    return LT_OK;
}

lt_err lt_tokenizer_merge(const lt_tokenizer *t, lt_merge_batch *m, const char *left, size_t left_n,
                          const char *right, size_t right_n) {
    const size_t start = m->text.n;
    size_t cut;
    bool ok = true;
    LT_TRY(put_half(t, m, left, left_n, &ok));
    cut = m->text.n;
    LT_TRY(put_half(t, m, right, right_n, &ok));
    if (!ok) { /* It has characters that stand for no byte, so it never applies to a text. */
        m->text.n = start;
        return lt_merge_batch_skip(m);
    }
    return lt_merge_batch_put(m, cut - start, m->text.n - cut);
}

/* Read a merge: "left right" or ["left", "right"]. */
static lt_err read_merge(lt_tokenizer *t, lt_json_pull *j, lt_merge_batch *m, lt_text *left) {
    const uint32_t index = t->bpe.n_merges;
    lt_slice s;
    bool more = true;
    if (lt_json_pull_peek(j) == '[') {
        LT_TRY(lt_json_pull_begin(j, '['));
        LT_TRY(lt_json_pull_next(j, &more));
        LT_TRY(lt_json_pull_string(j, &s));
        left->n = 0;
        LT_TRY(lt_text_put(left, s.data, s.n)); /* The next string may reuse its buffer. */
        LT_TRY(lt_json_pull_next(j, &more));
        LT_TRY(lt_json_pull_string(j, &s));
        LT_TRY(lt_tokenizer_merge(t, m, left->data, left->n, s.data, s.n));
        LT_TRY(lt_json_pull_next(j, &more));
        if (more) {
            LT_FAIL(LT_ERR_FORMAT, "%s: merge %u has more than two parts", t->name, index);
        }
        return LT_OK;
    }
    LT_TRY(lt_json_pull_string(j, &s));
    const char *space = s.n > 0 ? memchr(s.data, ' ', s.n) : NULL;
    if (space == NULL || memchr(space + 1, ' ', s.n - (size_t)(space + 1 - s.data)) != NULL) {
        LT_FAIL(LT_ERR_FORMAT, "%s: merge %u ('%.*s') is not two pieces with a space between",
                t->name, index, (int)(s.n < 64 ? s.n : 64), s.data);
    }
    return lt_tokenizer_merge(t, m, s.data, (size_t)(space - s.data), space + 1,
                              s.n - (size_t)(space + 1 - s.data));
}

#define SAMPLE 1024 /* Number of merges from whose size the total number is estimated. */

static lt_err read_merges(lt_tokenizer *t, lt_json_pull *j) {
    lt_err err = LT_OK;
    lt_text left = {0};
    lt_merge_batch m = lt_merge_batch_open(&t->bpe, t->name);
    const char *begin = j->at;
    bool more;

    t->bpe.vocab = &t->vocab;
    LT_TRY_DONE(lt_json_pull_begin(j, '['));
    for (;;) {
        LT_TRY_DONE(lt_json_pull_next(j, &more));
        if (!more) {
            break;
        }
        LT_TRY_DONE(read_merge(t, j, &m, &left));
        if (t->bpe.n_merges == SAMPLE) {
            const size_t each = (size_t)(j->at - begin) / SAMPLE + 1;
            const size_t guess = (size_t)(j->end - j->at) / each;
            LT_TRY_DONE(lt_bpe_reserve_pairs(&t->bpe, guess < LT_VOCAB_MAX ? guess : LT_VOCAB_MAX));
        }
    }
    LT_TRY_DONE(lt_merge_batch_flush(&m));
done:
    lt_merge_batch_close(&m);
    lt_text_free(&left);
    return err;
}

/* Before its pieces are read, the kind of the vocabulary must be known: byte-level or not, and its
 * affixes. */
static lt_err begin_vocab(lt_tokenizer *t, lt_json_parts *parts, bool scored) {
    lt_json_model *m = &parts->model;
    m->scored = scored;
    LT_TRY(lt_json_model_type(t, m));
    LT_TRY(lt_json_parts_pre_tokenizer(t, parts));
    return lt_json_model_apply(t, m);
}

/* Read the vocabulary and merges that were skipped because they came before fields that they
 * need. */
static lt_err read_skipped(lt_tokenizer *t, lt_json_parts *parts, bool have_vocab, lt_slice vocab,
                           lt_slice merges) {
    lt_json_model *m = &parts->model;
    lt_json_pull again;
    lt_err err = LT_OK;
    if (!have_vocab) {
        if (vocab.data == NULL) {
            LT_FAIL(LT_ERR_FORMAT, "%s: the model has no vocabulary", t->name);
        }
        again = lt_json_pull_over(vocab.data, vocab.n, t->name);
        err = begin_vocab(t, parts, lt_json_pull_peek(&again) == '[');
        err = err != LT_OK ? err : m->scored ? read_scored(t, &again) : read_vocab(t, &again);
        lt_json_pull_close(&again);
        LT_TRY(err);
    }
    LT_TRY(lt_json_model_apply(t, m));
    if (merges.data != NULL) {
        again = lt_json_pull_over(merges.data, merges.n, t->name);
        err = read_merges(t, &again);
        lt_json_pull_close(&again);
        m->have_merges = true;
    }
    return err;
}

static lt_err read_model(lt_tokenizer *t, lt_json_pull *j, lt_json_parts *parts) {
    lt_json_model *m = &parts->model;
    bool more, have_vocab = false;
    lt_slice key, merges = {0}, vocab = {0};

    LT_TRY(lt_json_pull_begin(j, '{'));
    for (;;) {
        LT_TRY(lt_json_pull_key(j, &key, &more));
        if (!more) {
            break;
        }
        if (lt_slice_is(key, "vocab") && lt_json_model_has(m, "type") && !parts->defer) {
            LT_TRY(begin_vocab(t, parts, lt_json_pull_peek(j) == '['));
            LT_TRY(m->scored ? read_scored(t, j) : read_vocab(t, j));
            LT_TRY(lt_json_model_apply(t, m)); /* Only now can <unk> be found. */
            have_vocab = true;
        } else if (lt_slice_is(key, "vocab")) {
            /* Fields that matter for it may come after it. */
            LT_TRY(lt_json_pull_skip(j, &vocab));
        } else if (lt_slice_is(key, "merges") && have_vocab && !parts->late) {
            /* If they are refused, the reason may be a field that comes after them. */
            parts->merges_first = true;
            LT_TRY(read_merges(t, j));
            parts->merges_first = false;
            m->have_merges = true;
        } else if (lt_slice_is(key, "merges")) {
            LT_TRY(lt_json_pull_skip(j, &merges));
        } else if (m->n_fields < LT_JSON_MODEL_FIELDS && key.n < LT_JSON_KEY_BYTES) {
            lt_json_field *f = &m->fields[m->n_fields++];
            memcpy(f->key, key.data, key.n);
            f->key[key.n] = '\0';
            LT_TRY(lt_json_pull_skip(j, &f->value));
            parts->late |= have_vocab && lt_json_model_late(t, m, f);
        } else {
            LT_TRY(lt_json_pull_skip(j, NULL));
        }
    }
    return parts->late ? LT_OK : read_skipped(t, parts, have_vocab, vocab, merges);
}

static lt_err read_top(lt_tokenizer *t, lt_json_pull *j, lt_json_parts *parts) {
    bool more;
    lt_slice key;

    LT_TRY(lt_json_pull_begin(j, '{'));
    for (;;) {
        LT_TRY(lt_json_pull_key(j, &key, &more));
        if (!more) {
            break;
        }
        if (lt_slice_is(key, "model") && parts->pre_tokenizer.data != NULL &&
            parts->normalizer.data != NULL) {
            LT_TRY(read_model(t, j, parts));
            parts->model_read = true;
        } else {
            lt_slice *slot = lt_slice_is(key, "model")            ? &parts->model_slice
                             : lt_slice_is(key, "added_tokens")   ? &parts->added_tokens
                             : lt_slice_is(key, "normalizer")     ? &parts->normalizer
                             : lt_slice_is(key, "pre_tokenizer")  ? &parts->pre_tokenizer
                             : lt_slice_is(key, "post_processor") ? &parts->post_processor
                             : lt_slice_is(key, "decoder")        ? &parts->decoder
                             : lt_slice_is(key, "truncation")     ? &parts->truncation
                             : lt_slice_is(key, "padding")        ? &parts->padding
                                                                  : NULL;
            LT_TRY(lt_json_pull_skip(j, slot));
        }
    }
    return lt_json_pull_end(j);
}

/* Restore the state before the model was read. */
static void forget_model(lt_tokenizer *t) {
    lt_vocab_free(&t->vocab);
    lt_bpe_free(&t->bpe);
    lt_unigram_free(&t->unigram);
    lt_pretok_free(&t->pretok);
    t->bpe = (lt_bpe){.unk = LT_NO_ID};
    memset(t->bpe.fallback_id, 0xFF, sizeof t->bpe.fallback_id);
    t->unigram = (lt_unigram){.unk = LT_NO_ID};
    t->wordpiece = (lt_wordpiece){.unk = LT_NO_ID};
    t->unk = LT_NO_ID;
    t->byte_level = t->maps_bytes = false;
}

static lt_err read_whole(lt_tokenizer *t, const char *text, size_t n, lt_json_parts *parts) {
    lt_err err = LT_OK;
    lt_json_pull j = lt_json_pull_over(text, n, t->name), model;

    model = j;
    LT_TRY_DONE(read_top(t, &j, parts));
    if (!parts->model_read) {
        if (parts->model_slice.data == NULL) {
            LT_FAIL_DONE(LT_ERR_FORMAT, "%s: no 'model': not a tokenizer.json", t->name);
        }
        model = lt_json_pull_over(parts->model_slice.data, parts->model_slice.n, t->name);
        LT_TRY_DONE(read_model(t, &model, parts));
    }
    LT_TRY_DONE(parts->late ? LT_OK : lt_json_parts_rest(t, parts));
done:
    lt_json_pull_close(&j);
    lt_json_pull_close(&model);
    return err;
}

lt_err lt_tokenizer_read_json(lt_tokenizer *t, const char *text, size_t n) {
    lt_json_parts parts = {0};
    const lt_err err = read_whole(t, text, n, &parts);
    if (err != LT_OK && !parts.merges_first) {
        return err;
    }
    if (err != LT_OK || parts.late) { /* Rare: fields of the model come after its vocabulary. */
        forget_model(t);
        parts = (lt_json_parts){.defer = true};
        LT_TRY(read_whole(t, text, n, &parts));
    }
    return LT_OK;
}
