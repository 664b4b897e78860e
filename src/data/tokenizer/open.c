/* tokenizer/open.c: finds the reader that a file needs, and has the last steps that all readers
 * share.
 *
 * The format is recognised by content if possible: GGUF and protobuf by their first bytes, JSON
 * by its keys, "base64 rank" and "left right" lines by their shape. Compressed files (zstd, gzip)
 * are unpacked first. */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>
#include <zstd.h>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/log.h"
#include "data/gguf.h"
#include "data/tokenizer/regex.h"
#include "data/tokenizer/impl.h"

/* Most bytes of an unpacked tokenizer file; the largest public one has 34 MB. */
#define MAX_FILE (1ull << 30)

typedef enum {
    FORMAT_JSON,
    FORMAT_TEKKEN,
    FORMAT_RANKS,
    FORMAT_MERGES,
    FORMAT_SPM,
    FORMAT_LLAMA2C,
    FORMAT_GGUF
} format;

static lt_err unpack_zstd(const void *data, size_t n, lt_text *out, const char *name) {
    lt_err err = LT_OK;
    ZSTD_DStream *z = ZSTD_createDStream();
    ZSTD_inBuffer in = {data, n, 0};
    size_t left = 1;
    if (z == NULL) {
        LT_FAIL(LT_ERR_OOM, "%s: zstd", name);
    }
    ZSTD_DCtx_setParameter(z, ZSTD_d_windowLogMax, 27);
    while (in.pos < in.size) {
        ZSTD_outBuffer to;
        LT_TRY_DONE(lt_text_reserve(out, ZSTD_DStreamOutSize()));
        to = (ZSTD_outBuffer){out->data + out->n, out->room - out->n, 0};
        left = ZSTD_decompressStream(z, &to, &in);
        if (ZSTD_isError(left)) {
            LT_FAIL_DONE(LT_ERR_FORMAT, "%s: zstd: %s", name, ZSTD_getErrorName(left));
        }
        out->n += to.pos;
        if (out->n > MAX_FILE) {
            LT_FAIL_DONE(LT_ERR_LIMIT, "%s: more than %llu bytes unpacked", name, MAX_FILE);
        }
        if (in.pos == in.size && to.pos == to.size && left != 0) {
            in.pos -= in.size > 0 && to.pos == 0; /* The output was full: repeat. */
        }
    }
    while (left != 0) { /* Flush what the decoder still holds. */
        ZSTD_outBuffer to;
        LT_TRY_DONE(lt_text_reserve(out, ZSTD_DStreamOutSize()));
        to = (ZSTD_outBuffer){out->data + out->n, out->room - out->n, 0};
        left = ZSTD_decompressStream(z, &to, &in);
        if (ZSTD_isError(left) || to.pos == 0) {
            LT_FAIL_DONE(LT_ERR_FORMAT, "%s: zstd stream is cut off", name);
        }
        out->n += to.pos;
    }
done:
    ZSTD_freeDStream(z);
    return err;
}

static lt_err unpack_gzip(const void *data, size_t n, lt_text *out, const char *name) {
    lt_err err = LT_OK;
    z_stream z = {.next_in = (Bytef *)(uintptr_t)data, .avail_in = (uInt)n};
    int status;
    if (n > UINT32_MAX || inflateInit2(&z, 15 + 16) != Z_OK) {
        LT_FAIL(LT_ERR_OOM, "%s: gzip", name);
    }
    do {
        LT_TRY_DONE(lt_text_reserve(out, 1u << 16));
        z.next_out = (Bytef *)out->data + out->n;
        z.avail_out = 1u << 16;
        status = inflate(&z, Z_NO_FLUSH);
        out->n += (1u << 16) - z.avail_out;
        if (status != Z_OK && status != Z_STREAM_END) {
            LT_FAIL_DONE(LT_ERR_FORMAT, "%s: gzip: %s", name, z.msg != NULL ? z.msg : "cut off");
        }
        if (out->n > MAX_FILE) {
            LT_FAIL_DONE(LT_ERR_LIMIT, "%s: more than %llu bytes unpacked", name, MAX_FILE);
        }
    } while (status != Z_STREAM_END);
done:
    inflateEnd(&z);
    return err;
}

/* Unpack into *unpacked if data is compressed; *data and *n then point there. */
static lt_err unpack(const uint8_t **data, size_t *n, lt_text *unpacked, const char *name) {
    if (*n >= 4 && memcmp(*data, "\x28\xB5\x2F\xFD", 4) == 0) {
        LT_TRY(unpack_zstd(*data, *n, unpacked, name));
    } else if (*n >= 3 && memcmp(*data, "\x1F\x8B\x08", 3) == 0) {
        LT_TRY(unpack_gzip(*data, *n, unpacked, name));
    } else {
        return LT_OK;
    }
    *data = (const uint8_t *)(unpacked->data != NULL ? unpacked->data : "");
    *n = unpacked->n;
    return LT_OK;
}

static bool name_ends(const char *name, const char *suffix) {
    const size_t n = strlen(name), m = strlen(suffix);
    return n >= m && strcmp(name + n - m, suffix) == 0;
}

/* Whether a line has the form "base64 number". */
static bool looks_like_rank(const char *p, const char *end) {
    const char *space = memchr(p, ' ', (size_t)(end - p));
    if (space == NULL || space + 1 == end) {
        return false;
    }
    for (const char *q = space + 1; q < end; q++) {
        if ((*q < '0' || *q > '9') && *q != '\r') {
            return false;
        }
    }
    return true;
}

/* Recognise the format. A pair of files as of GPT-2 is recognised by its names, ranks by their
 * form, protobuf because it begins with field 1; everything else is taken for llama2.c's. */
static lt_err tell(const uint8_t *data, size_t n, const char *name, format *out) {
    const char *text = (const char *)data, *const end = text + n, *line;
    while (text < end && (*text == ' ' || *text == '\n' || *text == '\r' || *text == '\t')) {
        text++;
    }
    if (n >= 4 && memcmp(data, "GGUF", 4) == 0) {
        *out = FORMAT_GGUF;
        return LT_OK;
    }
    if (text < end && *text == '{') {
        /* tekken.json has its config first; tokenizer.json has "version" or "model" near its
         * beginning or end. */
        const size_t head = (size_t)(end - text) < 4096 ? (size_t)(end - text) : 4096;
        *out = memmem(text, head, "\"default_vocab_size\"", 20) != NULL ||
                       strstr(name, "tekken") != NULL
                   ? FORMAT_TEKKEN
                   : FORMAT_JSON;
        return LT_OK;
    }
    line = n > 0 ? memchr(data, '\n', n) : NULL;
    line = line != NULL ? line : end;
    if (n >= 8 && memcmp(data, "#version", 8) == 0) {
        *out = FORMAT_MERGES;
    } else if (name_ends(name, ".tiktoken") ||
               (line > (const char *)data && looks_like_rank((const char *)data, line))) {
        *out = FORMAT_RANKS;
    } else if (name_ends(name, ".bin")) {
        *out = FORMAT_LLAMA2C;
    } else if (n >= 2 && data[0] == 0x0A) {
        *out = FORMAT_SPM;
    } else {
        LT_FAIL(LT_ERR_FORMAT,
                "%s: %zu bytes that are not a tokenizer file (tokenizer.json, tekken.json, .model, "
                "vocab.bpe, .tiktoken, "
                "tokenizer.bin, GGUF)",
                name, n);
    }
    return LT_OK;
}

static lt_err finish_added(lt_tokenizer *t) {
    lt_norm_scratch scratch = {0};
    lt_err err = LT_OK;
    for (size_t i = 0; i < t->n_added; i++) {
        lt_added *a = &t->added[i];
        const char *content = a->content.data;
        size_t n = a->content.n;
        if (a->normalized && t->normalizer.n_norms > 0) {
            LT_TRY_DONE(lt_normalizer_apply(&t->normalizer, &scratch, content, n, &content, &n));
            if (n != a->content.n || memcmp(content, a->content.data, n) != 0) {
                LT_TRY_DONE(lt_text_put(&a->decoded, content, n));
                t->vocab.flags[a->id] = (uint8_t)(t->vocab.flags[a->id] | LT_PIECE_RENAMED);
            }
        }
        if (n > 0) {
            LT_TRY_DONE(
                lt_trie_add(a->normalized ? &t->normalized : &t->raw, content, n, (uint32_t)i));
        }
    }
    if (t->normalizer.n_norms == 0 && !t->spm.active && t->raw.n_first == 0) {
        /* Without a normalizer, the second search can be done as the first: the result is the
         * same, and it is cheaper. */
        const lt_trie swap = t->raw;
        t->raw = t->normalized;
        t->normalized = swap;
    }
done:
    lt_norm_scratch_free(&scratch);
    return err;
}

static uint32_t first_found(const lt_tokenizer *t, const char *const *names) {
    for (; *names != NULL; names++) {
        const uint32_t id = lt_tokenizer_find(t, *names, strlen(*names));
        if (id != LT_NO_ID) {
            return id;
        }
    }
    return LT_NO_ID;
}

static void find_special(lt_tokenizer *t) {
    static const char *const bos[] = {"<s>",
                                      "<|begin_of_text|>",
                                      "<bos>",
                                      "<\xEF\xBD\x9C"
                                      "begin\xE2\x96\x81of\xE2\x96\x81sentence\xEF\xBD\x9C>",
                                      "<|startoftext|>",
                                      "[CLS]",
                                      "<|endoftext|>",
                                      NULL};
    static const char *const eos[] = {"</s>",
                                      "<|end_of_text|>",
                                      "<eos>",
                                      "<\xEF\xBD\x9C"
                                      "end\xE2\x96\x81of\xE2\x96\x81sentence\xEF\xBD\x9C>",
                                      "<|endoftext|>",
                                      "[SEP]",
                                      NULL};
    static const char *const pad[] = {"<pad>", "<|finetune_right_pad_id|>", "[PAD]",
                                      "<\xEF\xBD\x9C\xE2\x96\x81pad\xE2\x96\x81\xEF\xBD\x9C>",
                                      NULL};
    static const char *const eot[] = {
        "<|im_end|>", "<|eot_id|>", "<end_of_turn>", "<|return|>", "<|end|>", "<|eot|>", NULL};
    static const char *const unk[] = {"<unk>", "[UNK]", NULL};
    t->bos = t->bos == LT_NO_ID ? first_found(t, bos) : t->bos;
    t->eos = t->eos == LT_NO_ID ? first_found(t, eos) : t->eos;
    t->pad = t->pad == LT_NO_ID ? first_found(t, pad) : t->pad;
    t->eot = t->eot == LT_NO_ID ? first_found(t, eot) : t->eot;
    if (t->eot != LT_NO_ID && t->eot == lt_tokenizer_find(t, "<|end|>", 7)) {
        t->eot = first_found(t, eot); /* gpt-oss: <|end|> ends a message, <|return|> the turn. */
    }
    t->unk = t->unk == LT_NO_ID ? first_found(t, unk) : t->unk;
}

/* Whether no piece has U+2581 after another character, and U+2581 itself is a piece. */
static bool metaspace_never_inside(const lt_tokenizer *t) {
    static const char mark[] = "\xE2\x96\x81";
    if (lt_vocab_find(&t->vocab, mark, 3) == LT_NO_ID) {
        return false;
    }
    for (uint32_t id = 0; id < t->vocab.n; id++) {
        const char *s = lt_vocab_text(&t->vocab, id), *hit;
        size_t n = t->vocab.bytes[id];
        if ((t->vocab.flags[id] & (LT_PIECE_ADDED | LT_PIECE_SPECIAL)) != 0 || n == 0) {
            continue;
        }
        while (n >= 3 && memcmp(s, mark, 3) == 0) {
            s += 3;
            n -= 3;
        }
        hit = n > 0 ? memmem(s, n, mark, 3) : NULL;
        if (hit != NULL) {
            return false;
        }
    }
    return true;
}

static void find_byte_pieces(lt_tokenizer *t) {
    for (int b = 0; b < 256; b++) {
        char name[8];
        const char byte = (char)b;
        uint32_t id;
        snprintf(name, sizeof name, "<0x%02X>", b);
        id = t->byte_level ? LT_NO_ID : lt_vocab_find(&t->vocab, name, 6);
        if (id == LT_NO_ID) { /* Byte pieces of SentencePiece files are not in the index. */
            id = t->bpe.fallback_id[b];
        }
        t->bpe.fallback_id[b] = t->unigram.fallback_id[b] = id;
        t->bpe.byte_id[b] = t->byte_level ? lt_vocab_find(&t->vocab, &byte, 1) : LT_NO_ID;
    }
}

lt_err lt_tokenizer_finish(lt_tokenizer *t) {
    t->bpe.vocab = &t->vocab;
    t->wordpiece.vocab = &t->vocab;
    find_byte_pieces(t);
    if (t->model == LT_MODEL_BPE) {
        LT_TRY(lt_bpe_finish(&t->bpe));
        t->cut_at_metaspace = !t->byte_level && t->bpe.prefix[0] == '\0' &&
                              t->bpe.suffix[0] == '\0' && !t->bpe.ignore_merges &&
                              metaspace_never_inside(t);
    }
    if (t->model == LT_MODEL_UNIGRAM && t->unigram.trie.n_nodes == 0) {
        t->unigram.min_score = 0;
        /* Of equal pieces the last one counts. */
        for (uint32_t id = t->unigram.n_scores; id-- > 0;) {
            const double score = t->unigram.score[id];
            t->unigram.min_score = id + 1 == t->unigram.n_scores || score < t->unigram.min_score
                                       ? score
                                       : t->unigram.min_score;
            if (t->vocab.bytes[id] > 0) {
                LT_TRY(lt_trie_add(&t->unigram.trie, lt_vocab_text(&t->vocab, id),
                                   t->vocab.bytes[id], id));
            }
        }
    }
    t->tracks_first = lt_pretok_needs_first(&t->pretok, t->normalizer.n_norms > 0);
    LT_TRY(finish_added(t));
    find_special(t);
    return LT_OK;
}

/* Let the caller's add_bos and add_eos override those of the file. */
static lt_err apply_options(lt_tokenizer *t, const lt_tokenizer_options *o) {
    const lt_choice choices[2] = {o->add_bos, o->add_eos};
    lt_ids *const lists[2] = {&t->before, &t->after};
    const uint32_t ids[2] = {t->bos, t->eos};
    for (int i = 0; i < 2; i++) {
        if (choices[i] == LT_NO) {
            lists[i]->n = 0;
        } else if (choices[i] == LT_YES && lists[i]->n == 0) {
            if (ids[i] == LT_NO_ID) {
                LT_FAIL(LT_ERR_ARG, "%s: names no %s token to add", t->name,
                        i == 0 ? "BOS" : "EOS");
            }
            LT_TRY(lt_ids_append(lists[i], &ids[i], 1));
        }
    }
    return LT_OK;
}

/* Read another file of the same folder; *text, which the caller frees, is NULL if it is
 * absent. */
static lt_err read_sibling(const char *path, const char *sibling, char **text, size_t *n) {
    char other[LT_PATH_BYTES];
    const char *slash = strrchr(path, '/');
    const int dir = slash != NULL ? (int)(slash - path) + 1 : 0;
    *text = NULL;
    if (snprintf(other, sizeof other, "%.*s%s", dir, path, sibling) >= (int)sizeof other ||
        !lt_file_exists(other)) {
        return LT_OK;
    }
    return lt_file_read(text, n, other, MAX_FILE);
}

/* Read vocab.bpe or merges.txt with the vocabulary beside it, or a vocabulary with the merges
 * beside it. */
static lt_err read_pair(lt_tokenizer *t, const char *path, const uint8_t *data, size_t n,
                        bool have_merges, const char *pattern) {
    static const char *const vocabs[] = {"encoder.json", "vocab.json"}, *const merges[] = {
                                                                            "vocab.bpe",
                                                                            "merges.txt"};
    lt_err err;
    char *other = NULL;
    size_t other_n = 0;
    for (int i = 0; i < 2 && other == NULL && path != NULL; i++) {
        LT_TRY(read_sibling(path, have_merges ? vocabs[i] : merges[i], &other, &other_n));
    }
    if (other == NULL) {
        LT_FAIL(LT_ERR_NOT_FOUND, "%s: needs %s beside it", t->name,
                have_merges ? "encoder.json or vocab.json" : "vocab.bpe or merges.txt");
    }
    err = have_merges ? lt_tokenizer_read_gpt2(t, other, other_n, (const char *)data, n, pattern)
                      : lt_tokenizer_read_gpt2(t, (const char *)data, n, other, other_n, pattern);
    free(other);
    return err;
}

/* Read <name>.meta.json beside a rank file: its pattern and special tokens. */
static lt_err read_meta(lt_tokenizer *t, const char *path, char **pattern, json_t **special) {
    char name[LT_PATH_BYTES];
    const char *base = strrchr(path, '/'), *dot;
    char *text = NULL;
    size_t n = 0;
    json_t *meta;
    base = base != NULL ? base + 1 : path;
    dot = strstr(base, ".tiktoken");
    if (dot == NULL || snprintf(name, sizeof name, "%.*s.meta.json", (int)(dot - base), base) >=
                           (int)sizeof name) {
        return LT_OK;
    }
    LT_TRY(read_sibling(path, name, &text, &n));
    if (text == NULL) {
        return LT_OK;
    }
    meta = lt_json_loadb(text, n, 0, NULL);
    free(text);
    if (!json_is_string(json_object_get(meta, "pat_str"))) {
        json_decref(meta);
        LT_FAIL(LT_ERR_FORMAT, "%s: %s beside it has no 'pat_str'", t->name, name);
    }
    *pattern = strdup(json_string_value(json_object_get(meta, "pat_str")));
    *special = json_incref(json_object_get(meta, "special_tokens"));
    json_decref(meta);
    return *pattern == NULL ? lt_error_set(LT_ERR_OOM, "%s: pattern", t->name) : LT_OK;
}

static lt_err read_ranks(lt_tokenizer *t, const char *path, const uint8_t *data, size_t n,
                         const char *pattern) {
    lt_err err = LT_OK;
    char *meta_pattern = NULL;
    json_t *special = NULL, *id;
    const char *text;

    if (pattern == NULL && path != NULL) {
        LT_TRY_DONE(read_meta(t, path, &meta_pattern, &special));
    }
    LT_TRY_DONE(lt_tokenizer_read_ranks(t, (const char *)data, n,
                                        pattern != NULL ? pattern : meta_pattern));
    json_object_foreach(special, text, id) {
        if (!json_is_integer(id) || json_integer_value(id) < 0 ||
            json_integer_value(id) >= LT_VOCAB_MAX) {
            LT_FAIL_DONE(LT_ERR_FORMAT, "%s: special token '%s' of the meta.json", t->name, text);
        }
        LT_TRY_DONE(
            lt_tokenizer_add(t, (lt_added){.id = (uint32_t)json_integer_value(id), .special = true},
                             text, strlen(text)));
    }
done:
    free(meta_pattern);
    json_decref(special);
    return err;
}

static lt_err read_gguf(lt_tokenizer *t, const uint8_t *data, size_t n) {
    lt_gguf *g = NULL;
    lt_err err;
    LT_TRY(lt_gguf_parse(&g, data, n, t->name));
    err = lt_tokenizer_read_gguf(t, g);
    lt_gguf_close(g);
    return err;
}

static bool is_vocab_pair_json(const char *name) {
    return name_ends(name, "encoder.json") || name_ends(name, "vocab.json");
}

static lt_err read_any(lt_tokenizer *t, const char *path, const uint8_t *data, size_t n,
                       const char *pattern) {
    format f;
    LT_TRY(tell(data, n, t->name, &f));
    switch (f) {
    case FORMAT_JSON:
        return is_vocab_pair_json(t->name) ? read_pair(t, path, data, n, false, pattern)
                                           : lt_tokenizer_read_json(t, (const char *)data, n);
    case FORMAT_TEKKEN:
        return lt_tokenizer_read_tekken(t, (const char *)data, n);
    case FORMAT_RANKS:
        return read_ranks(t, path, data, n, pattern);
    case FORMAT_MERGES:
        return read_pair(t, path, data, n, true, pattern);
    case FORMAT_SPM:
        return lt_tokenizer_read_spm(t, data, n);
    case FORMAT_LLAMA2C:
        return lt_tokenizer_read_llama2c(t, data, n);
    case FORMAT_GGUF:
        return read_gguf(t, data, n);
    }
    LT_ASSERT(!"tokenizer format");
    return LT_OK;
}

/* "bos_token": "<s>" or {"content": "<s>"}: the id, if the tokenizer has that token. */
static void config_token(const lt_tokenizer *t, const json_t *config, const char *key,
                         uint32_t *id) {
    const json_t *token = json_object_get(config, key);
    const char *text = json_string_value(json_is_object(token) ? json_object_get(token, "content")
                                                               : token);
    const uint32_t found = text != NULL ? lt_tokenizer_find(t, text, strlen(text)) : LT_NO_ID;
    *id = found != LT_NO_ID ? found : *id;
}

/* Read the names of special tokens from tokenizer_config.json beside tokenizer.json. */
static lt_err read_config(lt_tokenizer *t, const char *path) {
    char *text = NULL;
    size_t n = 0;
    json_t *config;
    json_error_t why;
    LT_TRY(read_sibling(path, "tokenizer_config.json", &text, &n));
    config = text != NULL ? lt_json_loadb(text, n, 0, &why) : NULL;
    if (text != NULL && config == NULL) {
        lt_log_warn("%s: tokenizer_config.json beside it is left out: %s (line %d)", t->name,
                    why.text, why.line);
    }
    free(text);
    config_token(t, config, "bos_token", &t->bos);
    config_token(t, config, "eos_token", &t->eos);
    config_token(t, config, "pad_token", &t->pad);
    config_token(t, config, "unk_token", &t->unk);
    json_decref(config);
    return LT_OK;
}

static lt_err open_bytes(lt_tokenizer **out, const char *path, const uint8_t *data, size_t n,
                         const char *name, const lt_tokenizer_options *options) {
    static const lt_tokenizer_options nothing = {0};
    lt_err err = LT_OK;
    lt_text unpacked = {0};
    lt_tokenizer *t = calloc(1, sizeof *t);

    options = options != NULL ? options : &nothing;
    if (t == NULL || (t->name = strdup(name)) == NULL) {
        LT_FAIL_DONE(LT_ERR_OOM, "%s: tokenizer", name);
    }
    t->bos = t->eos = t->pad = t->unk = t->eot = LT_NO_ID;
    t->bpe.unk = t->unigram.unk = t->wordpiece.unk = LT_NO_ID;
    memset(t->bpe.fallback_id, 0xFF, sizeof t->bpe.fallback_id);
    LT_TRY_DONE(unpack(&data, &n, &unpacked, name));
    LT_TRY_DONE(read_any(t, path, data, n, options->pattern));
    LT_TRY_DONE(lt_tokenizer_finish(t));
    if (path != NULL) {
        LT_TRY_DONE(read_config(t, path));
    }
    LT_TRY_DONE(lt_tokenizer_find_ends(t));
    LT_TRY_DONE(apply_options(t, options));
    LT_TRY_DONE(lt_tokenizer_make_texts(t));
    *out = t;
    t = NULL;
done:
    lt_text_free(&unpacked);
    lt_tokenizer_close(t);
    return err;
}

lt_err lt_tokenizer_open_memory(lt_tokenizer **out, const void *data, size_t bytes,
                                const char *name, const lt_tokenizer_options *options) {
    LT_ASSERT(out != NULL);
    LT_ASSERT(data != NULL || bytes == 0);
    return open_bytes(out, NULL, data, bytes, name, options);
}

static lt_err search_folder(char out[LT_PATH_BYTES], const char *folder) {
    static const char *const names[] = {"tokenizer.json", "tekken.json", "tokenizer.model",
                                        "vocab.bpe",      "merges.txt",  "tokenizer.bin"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        LT_TRY(lt_path_join(out, folder, names[i]));
        if (lt_file_has_name(out)) {
            return LT_OK;
        }
    }
    LT_FAIL(
        LT_ERR_NOT_FOUND,
        "folder %s has no tokenizer.json, tekken.json, tokenizer.model, vocab.bpe, merges.txt or "
        "tokenizer.bin",
        folder);
}

lt_err lt_tokenizer_open(lt_tokenizer **out, const char *path,
                         const lt_tokenizer_options *options) {
    char found[LT_PATH_BYTES];
    lt_file_map map = {0};
    lt_err err;

    LT_ASSERT(out != NULL);
    LT_ASSERT(path != NULL);
    if (lt_file_is_dir(path)) {
        LT_TRY(search_folder(found, path));
        path = found;
    }
    LT_TRY(lt_file_map_open(&map, path));
    err = open_bytes(out, path, map.data, map.size_bytes, path, options);
    lt_file_map_close(&map);
    return err;
}
