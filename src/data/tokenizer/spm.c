/* tokenizer/spm.c: reads SentencePiece .model files, and llama2.c's tokenizer.bin, which is made
 * from one.
 *
 * A .model is one protobuf message. The few fields that are needed are read by hand (wire format:
 * varint key = field << 3 | type):
 *     1 SentencePiece*   1 piece (string)  2 score (float)  3 type (1 normal, 2 unknown,
 *                        3 control, 4 user-defined, 5 unused, 6 byte)
 *     2 TrainerSpec      3 model_type (1 unigram, 2 bpe, 3 word, 4 char)
 *                        24 treat_whitespace_as_suffix  35 byte_fallback
 *                        41..43 bos, eos, pad id  44 unk_surface
 *     3 NormalizerSpec   2 precompiled_charsmap  3 add_dummy_prefix
 *                        4 remove_extra_whitespaces  5 escape_whitespaces
 *     5 NormalizerSpec   of the denormalizer, which decoding would apply: refused if it has a
 *                        charsmap
 *
 * SentencePiece normalises by longest match in its charsmap, merges adjacent spaces and replaces
 * them by U+2581, and then encodes the text as one word. In BPE a piece's score is its merge
 * priority, so pairs are derived from the pieces. */
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "data/tokenizer/impl.h"
#include "data/tokenizer/scored.h"

static const char mark[] = "\xE2\x96\x81"; /* U+2581 */

static lt_err put_space(const lt_spm *m, lt_text *out) {
    return m->escape_whitespaces ? lt_text_put(out, mark, 3) : lt_text_put(out, " ", 1);
}

/* The replacement of the text at s: *to, *to_n. Returns how many bytes of s it replaces. */
static size_t normal_prefix(const lt_spm *m, const char *s, size_t n, const char **to,
                            size_t *to_n) {
    uint32_t id, cp;
    size_t size = m->user.n_first > 0 ? lt_trie_longest(&m->user, (const uint8_t *)s, n, &id) : 0;
    *to = s;
    *to_n = size;
    if (size > 0) {
        return size;
    }
    size = lt_charsmap_find(&m->charsmap, s, n, true, to, to_n);
    if (size > 0) {
        return size;
    }
    size = lt_utf8_decode((const uint8_t *)s, (const uint8_t *)s + n, &cp);
    *to_n = size;
    if (cp == LT_UNICODE_REPLACEMENT && size == 1) {
        *to = "\xEF\xBF\xBD";
        *to_n = 3;
    }
    return size;
}

lt_err lt_spm_normalize(const lt_spm *m, const char *text, size_t n, lt_text *out) {
    const size_t start = out->n, space_n = m->escape_whitespaces ? 3 : 1;
    bool after_space = m->remove_extra_whitespaces;
    const char *to;
    size_t to_n, at = 0;

    while (m->remove_extra_whitespaces && at < n) {
        const size_t size = normal_prefix(m, text + at, n - at, &to, &to_n);
        if (to_n != 1 || *to != ' ') {
            break;
        }
        at += size;
    }
    if (at == n) {
        return LT_OK;
    }
    LT_TRY(lt_text_reserve(out, (n - at) + n / 4 + 8));
    if (m->add_dummy_prefix && !m->suffix_whitespace) {
        LT_TRY(put_space(m, out));
    }
    while (at < n) {
        at += normal_prefix(m, text + at, n - at, &to, &to_n);
        while (after_space && to_n > 0 && *to == ' ') {
            to++;
            to_n--;
        }
        for (size_t i = 0; i < to_n; i++) {
            LT_TRY(to[i] == ' ' ? put_space(m, out) : lt_text_put(out, to + i, 1));
        }
        after_space = m->remove_extra_whitespaces && (to_n > 0 ? to[to_n - 1] == ' ' : after_space);
    }
    while (m->remove_extra_whitespaces && out->n - start >= space_n &&
           memcmp(out->data + out->n - space_n, m->escape_whitespaces ? mark : " ", space_n) == 0) {
        out->n -= space_n;
    }
    return m->add_dummy_prefix && m->suffix_whitespace ? put_space(m, out) : LT_OK;
}

/* A protobuf message being read. */
typedef struct {
    const uint8_t *at, *end;
    const char *name;
} message;

static lt_err varint(message *m, uint64_t *out) {
    uint64_t v = 0;
    for (int shift = 0; shift < 64; shift += 7) {
        if (m->at == m->end) {
            LT_FAIL(LT_ERR_FORMAT, "%s: SentencePiece model is cut off", m->name);
        }
        v |= (uint64_t)(*m->at & 0x7F) << shift;
        if ((*m->at++ & 0x80) == 0) {
            *out = v;
            return LT_OK;
        }
    }
    LT_FAIL(LT_ERR_FORMAT, "%s: SentencePiece model: a number of more than 64 bits", m->name);
}

/* One field: its number, and by wire type a number (0, 1, 5) or a sub-message (2). */
typedef struct {
    uint32_t number;
    int wire;
    uint64_t value;
    message sub;
} field;

static lt_err next_field(message *m, field *f) {
    uint64_t key, n;
    LT_TRY(varint(m, &key));
    f->number = (uint32_t)(key >> 3);
    f->wire = (int)(key & 7);
    f->value = 0;
    switch (f->wire) {
    case 0:
        return varint(m, &f->value);
    case 1:
    case 5:
        n = f->wire == 1 ? 8 : 4;
        break;
    case 2:
        LT_TRY(varint(m, &n));
        break;
    default:
        LT_FAIL(LT_ERR_FORMAT, "%s: not a SentencePiece model (wire type %d)", m->name, f->wire);
    }
    if (n > (size_t)(m->end - m->at)) {
        LT_FAIL(LT_ERR_FORMAT,
                "%s: SentencePiece model is cut off: a field of %llu bytes, %zu are left", m->name,
                (unsigned long long)n, (size_t)(m->end - m->at));
    }
    if (f->wire != 2) {
        memcpy(&f->value, m->at, (size_t)n);
    }
    f->sub = (message){m->at, m->at + n, m->name};
    m->at += n;
    return LT_OK;
}

static lt_err read_piece(lt_scored *v, message m, const char *name) {
    float score = 0;
    uint64_t type = LT_SCORED_NORMAL;
    const uint8_t *text = NULL;
    size_t n = 0;
    field f;
    while (m.at < m.end) {
        LT_TRY(next_field(&m, &f));
        if (f.number == 1 && f.wire == 2) {
            text = f.sub.at;
            n = (size_t)(f.sub.end - f.sub.at);
        } else if (f.number == 2 && f.wire == 5) {
            memcpy(&score, &f.value, sizeof score);
        } else if (f.number == 3 && f.wire == 0) {
            type = f.value;
        }
    }
    if (n == 0 || type < LT_SCORED_NORMAL || type > LT_SCORED_BYTE || score != score) {
        LT_FAIL(LT_ERR_FORMAT, "%s: piece %u has %zu bytes, type %llu, score %g", name, v->n, n,
                (unsigned long long)type, (double)score);
    }
    return lt_scored_put(v, (const char *)text, n, score, (lt_scored_type)type);
}

typedef struct {
    uint64_t model_type;
    bool byte_fallback;
    int32_t bos, eos, pad;
} trainer;

static lt_err set_unknown(lt_spm *spm, message m) {
    const char *text = (const char *)m.at;
    spm->unknown.n = 0;
    return lt_text_put(&spm->unknown, text, strnlen(text, (size_t)(m.end - m.at)));
}

static lt_err read_trainer(trainer *t, lt_spm *spm, message m) {
    field f;
    while (m.at < m.end) {
        LT_TRY(next_field(&m, &f));
        switch (f.number) {
        case 3:
            t->model_type = f.value;
            break;
        case 24:
            spm->suffix_whitespace = f.value != 0;
            break;
        case 35:
            t->byte_fallback = f.value != 0;
            break;
        case 41:
            t->bos = (int32_t)f.value;
            break;
        case 42:
            t->eos = (int32_t)f.value;
            break;
        case 43:
            t->pad = (int32_t)f.value;
            break;
        case 44: /* The library reads it as a C string, up to a 0. */
            LT_TRY(f.wire == 2 ? set_unknown(spm, f.sub) : LT_OK);
            break;
        default:
            break;
        }
    }
    return LT_OK;
}

static lt_err read_normalizer(lt_spm *spm, message m) {
    field f;
    while (m.at < m.end) {
        LT_TRY(next_field(&m, &f));
        if (f.number == 2 && f.wire == 2 && f.sub.end > f.sub.at) {
            lt_charsmap_free(&spm->charsmap);
            LT_TRY(
                lt_charsmap_open(&spm->charsmap, f.sub.at, (size_t)(f.sub.end - f.sub.at), m.name));
        } else if (f.number == 3) {
            spm->add_dummy_prefix = f.value != 0;
        } else if (f.number == 4) {
            spm->remove_extra_whitespaces = f.value != 0;
        } else if (f.number == 5) {
            spm->escape_whitespaces = f.value != 0;
        }
    }
    return LT_OK;
}

static uint32_t id_or_none(int32_t id, uint32_t n) {
    return id >= 0 && (uint32_t)id < n ? (uint32_t)id : LT_NO_ID;
}

/* Check that there is exactly one piece of type unknown and, with byte_fallback, all byte pieces:
 * SentencePiece accepts no other model. */
static lt_err check_pieces(const lt_scored *v, bool byte_fallback, uint32_t *unk,
                           const char *name) {
    uint32_t n_unknown = 0, n_bytes = 0;
    *unk = LT_NO_ID;
    for (uint32_t id = 0; id < v->n; id++) {
        n_bytes += v->type[id] == LT_SCORED_BYTE;
        n_unknown += v->type[id] == LT_SCORED_UNKNOWN;
        *unk = v->type[id] == LT_SCORED_UNKNOWN ? id : *unk;
    }
    if (n_unknown != 1) {
        LT_FAIL(LT_ERR_FORMAT, "%s: %u pieces of type unknown in %u; a SentencePiece model has one",
                name, n_unknown, v->n);
    }
    if (n_bytes != (byte_fallback ? 256u : 0u)) {
        LT_FAIL(LT_ERR_FORMAT,
                "%s: %u byte pieces; a SentencePiece model %s byte_fallback has %u (is the file "
                "cut off?)",
                name, n_bytes, byte_fallback ? "with" : "without", byte_fallback ? 256u : 0u);
    }
    return LT_OK;
}

static lt_err set_model(lt_tokenizer *t, uint64_t type) {
    static const struct {
        lt_model_kind model;
        const char *kind;
    } models[] = {{LT_MODEL_UNIGRAM, "SentencePiece Unigram"},
                  {LT_MODEL_BPE, "SentencePiece BPE"},
                  {LT_MODEL_SPM_PIECES, "SentencePiece words"},
                  {LT_MODEL_SPM_PIECES, "SentencePiece characters"}};
    if (type < 1 || type > sizeof models / sizeof *models) {
        LT_FAIL(LT_ERR_UNSUPPORTED,
                "%s: SentencePiece model type %llu; unigram (1), BPE (2), word (3) and char (4) "
                "are read",
                t->name, (unsigned long long)type);
    }
    t->model = models[type - 1].model;
    t->kind = models[type - 1].kind;
    t->spm_pieces.words = type == 3;
    return LT_OK;
}

static lt_err refuse_denormalizer(message m) {
    field f;
    while (m.at < m.end) {
        LT_TRY(next_field(&m, &f));
        if (f.number == 2 && f.wire == 2 && f.sub.end > f.sub.at) {
            LT_FAIL(LT_ERR_UNSUPPORTED,
                    "%s: the model has a denormalizer (a charsmap of %zu bytes), which is not "
                    "applied here",
                    m.name, (size_t)(f.sub.end - f.sub.at));
        }
    }
    return LT_OK;
}

lt_err lt_tokenizer_read_spm(lt_tokenizer *t, const void *data, size_t n) {
    lt_err err = LT_OK;
    lt_scored v = {0};
    trainer tr = {.model_type = 1, .bos = 1, .eos = 2, .pad = -1};
    message m = {data, (const uint8_t *)data + n, t->name};
    field f;

    t->spm = (lt_spm){.active = true,
                      .from_model = true,
                      .add_dummy_prefix = true,
                      .remove_extra_whitespaces = true,
                      .escape_whitespaces = true};
    LT_TRY_DONE(lt_text_put(&t->spm.unknown, " \xE2\x81\x87 ", 5)); /* unk_surface's default */
    while (m.at < m.end) {
        LT_TRY_DONE(next_field(&m, &f));
        if (f.wire == 2 && f.number == 1) {
            LT_TRY_DONE(read_piece(&v, f.sub, t->name));
        } else if (f.wire == 2 && f.number == 2) {
            LT_TRY_DONE(read_trainer(&tr, &t->spm, f.sub));
        } else if (f.wire == 2 && f.number == 3) {
            LT_TRY_DONE(read_normalizer(&t->spm, f.sub));
        } else if (f.wire == 2 && f.number == 5) {
            LT_TRY_DONE(refuse_denormalizer(f.sub));
        }
    }
    LT_TRY_DONE(set_model(t, tr.model_type));
    LT_TRY_DONE(check_pieces(&v, tr.byte_fallback, &t->unk, t->name));
    t->bos = id_or_none(tr.bos, v.n);
    t->eos = id_or_none(tr.eos, v.n);
    t->pad = id_or_none(tr.pad, v.n);
    LT_TRY_DONE(lt_scored_finish(&v, t, LT_BPE_SPM, tr.byte_fallback));
done:
    lt_scored_free(&v);
    return err;
}

lt_err lt_tokenizer_read_llama2c(lt_tokenizer *t, const void *data, size_t n) {
    lt_err err = LT_OK;
    lt_scored v = {0};
    lt_norm prepend = {.kind = LT_NORM_PREPEND};
    const char *p = data, *const end = p + n;
    int32_t longest, size;
    float score;
    uint8_t byte;

    if (n < 4 || (memcpy(&longest, p, 4), longest < 1 || longest > 65536)) {
        LT_FAIL_DONE(LT_ERR_FORMAT, "%s: not llama2.c's tokenizer.bin", t->name);
    }
    for (p += 4; p < end; p += size) {
        if (end - p < 8) {
            LT_FAIL_DONE(LT_ERR_FORMAT, "%s: cut off in token %u", t->name, v.n);
        }
        memcpy(&score, p, 4);
        memcpy(&size, p + 4, 4);
        p += 8;
        if (size < 0 || size > longest || size > end - p || score != score) {
            LT_FAIL_DONE(LT_ERR_FORMAT,
                         "%s: token %u announces %d bytes (longest %d), %zu are left", t->name, v.n,
                         size, longest, (size_t)(end - p));
        }
        /* Rows 0 to 2 are <unk>, BOS, EOS; then 256 byte tokens. */
        LT_TRY_DONE(lt_scored_put(&v, p, (size_t)size, score,
                                  v.n == 0  ? LT_SCORED_UNKNOWN
                                  : v.n < 3 ? LT_SCORED_CONTROL
                                  : lt_piece_is_byte(p, (size_t)size, &byte) && v.n == byte + 3u
                                      ? LT_SCORED_BYTE
                                      : LT_SCORED_NORMAL));
    }
    if (v.n < 259) {
        LT_FAIL_DONE(LT_ERR_FORMAT, "%s: %u tokens; 3 special and 256 byte tokens come first",
                     t->name, v.n);
    }
    t->model = LT_MODEL_BPE;
    t->kind = "llama2.c BPE";
    t->unk = 0;
    t->bos = 1;
    t->eos = 2;
    LT_TRY_DONE(lt_scored_finish(&v, t, LT_BPE_CHARS, true));
    LT_TRY_DONE(lt_text_put(&prepend.to, " ", 1));
    LT_TRY_DONE(lt_normalizer_add(&t->normalizer, prepend));
    LT_TRY_DONE(lt_ids_append(&t->before, &t->bos, 1)); /* llama2.c's encoder puts BOS first. */
    LT_TRY_DONE(lt_tokenizer_add_decode(t, LT_DECODE_BYTE_FALLBACK, NULL, NULL));
    LT_TRY_DONE(lt_tokenizer_add_decode(t, LT_DECODE_FUSE, NULL, NULL));
    LT_TRY_DONE(lt_tokenizer_add_decode(t, LT_DECODE_STRIP, " ", NULL));
done:
    lt_scored_free(&v);
    return err;
}
