/* tokenizer/rank.c: reads byte-level vocabularies in files of ranks or merges, without a
 * pre-tokenizer: .tiktoken files, Mistral's tekken.json, GPT-2's vocab.bpe with encoder.json (or
 * merges.txt with vocab.json).
 *
 * In a rank file a token's rank is both its id and its merge priority: two neighbours merge if
 * their concatenation is a token, lowest rank first. The pattern and the special tokens are not in
 * the file; they follow from the encoding's name, or a <name>.meta.json beside the file ("pat_str",
 * "special_tokens") gives them. Tekken's ids are ranks + 1000, the first thousand being special
 * tokens. */
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "data/tokenizer/regex.h"
#include "data/tokenizer/impl.h"

#define TEKKEN_SPECIAL 1000
#define TEKKEN_IDS     131072 /* default_vocab_size of every published tekken.json */

lt_err lt_base64_decode(const char *s, size_t n, lt_text *out, const char *name) {
    uint32_t bits = 0;
    int n_bits = 0;
    while (n > 0 && s[n - 1] == '=') {
        n--;
    }
    LT_TRY(lt_text_reserve(out, n * 3 / 4 + 4));
    for (size_t i = 0; i < n; i++) {
        const char c = s[i];
        const int v = c >= 'A' && c <= 'Z'   ? c - 'A'
                      : c >= 'a' && c <= 'z' ? c - 'a' + 26
                      : c >= '0' && c <= '9' ? c - '0' + 52
                      : c == '+'             ? 62
                      : c == '/'             ? 63
                                             : -1;
        if (v < 0) {
            LT_FAIL(LT_ERR_FORMAT, "%s: '%c' is not a base64 digit", name,
                    c >= 32 && c < 127 ? c : '?');
        }
        bits = bits << 6 | (uint32_t)v;
        n_bits += 6;
        if (n_bits >= 8) {
            n_bits -= 8;
            out->data[out->n++] = (char)(bits >> n_bits);
        }
    }
    if (n % 4 == 1 || (bits & ((1u << n_bits) - 1)) != 0) {
        LT_FAIL(LT_ERR_FORMAT, "%s: base64 text '%.*s' is cut off", name, (int)(n < 32 ? n : 32),
                s);
    }
    return LT_OK;
}

/* Encodings by name: pattern, the number of ranks in the published file (0: unknown), and special
 * tokens as pairs of "text" and id. */
typedef struct {
    const char *name;
    lt_scan_kind scan;
    uint32_t ranks;
    struct {
        const char *text;
        uint32_t id;
    } special[20];
} encoding;

static const encoding encodings[] = {
    {"gpt2", LT_SCAN_GPT2, 50256, {{"<|endoftext|>", 50256}}},
    {"r50k", LT_SCAN_GPT2, 50256, {{"<|endoftext|>", 50256}}},
    {"p50k_edit",
     LT_SCAN_GPT2,
     50280,
     {{"<|endoftext|>", 50256},
      {"<|fim_prefix|>", 50281},
      {"<|fim_middle|>", 50282},
      {"<|fim_suffix|>", 50283}}},
    {"p50k", LT_SCAN_GPT2, 50280, {{"<|endoftext|>", 50256}}},
    {"cl100k",
     LT_SCAN_CL100K,
     100256,
     {{"<|endoftext|>", 100257},
      {"<|fim_prefix|>", 100258},
      {"<|fim_middle|>", 100259},
      {"<|fim_suffix|>", 100260},
      {"<|endofprompt|>", 100276}}},
    {"o200k_harmony",
     LT_SCAN_O200K,
     199998,
     {{"<|startoftext|>", 199998},
      {"<|endoftext|>", 199999},
      {"<|return|>", 200002},
      {"<|constrain|>", 200003},
      {"<|channel|>", 200005},
      {"<|start|>", 200006},
      {"<|end|>", 200007},
      {"<|message|>", 200008},
      {"<|call|>", 200012},
      {"<|endofprompt|>", 200018}}},
    {"o200k", LT_SCAN_O200K, 199998, {{"<|endoftext|>", 199999}, {"<|endofprompt|>", 200018}}},
    {"llama3", LT_SCAN_CL100K, 0, {{NULL, 0}}},
    {"llama-3", LT_SCAN_CL100K, 0, {{NULL, 0}}},
    {"qwen", LT_SCAN_QWEN2, 0, {{NULL, 0}}},
    {"tekken", LT_SCAN_TEKKEN, 0, {{NULL, 0}}},
    {"deepseek", LT_SCAN_DEEPSEEK3, 0, {{NULL, 0}}},
    {"smollm", LT_SCAN_SMOLLM, 0, {{NULL, 0}}},
};

/* The first encoding of the table whose name occurs in `text` (the value of an option or the name
 * of a file). */
static const encoding *find_encoding(const char *text) {
    const char *base = strrchr(text, '/');
    base = base != NULL ? base + 1 : text;
    for (size_t i = 0; i < sizeof encodings / sizeof *encodings; i++) {
        if (strstr(base, encodings[i].name) != NULL) {
            return &encodings[i];
        }
    }
    return NULL;
}

static lt_err set_scan(lt_tokenizer *t, lt_scan_fn scan) {
    LT_TRY(lt_pretok_add(&t->pretok, (lt_cut){.kind = LT_CUT_SCAN, .scan = scan}));
    lt_pretok_optimise(&t->pretok);
    return LT_OK;
}

lt_err lt_tokenizer_set_pattern(lt_tokenizer *t, const char *pattern) {
    const encoding *e;
    if (strcmp(pattern, "cl100k-tiktoken") == 0) {
        return set_scan(t, lt_scan_function(LT_SCAN_CL100K_TAIL));
    }
    /* A name has none of the characters of which every useful pattern has some. */
    e = strpbrk(pattern, "\\[]()|+*?^$ ") == NULL ? find_encoding(pattern) : NULL;
    if (e != NULL) {
        return set_scan(t, lt_scan_function(e->scan));
    }
    if (strpbrk(pattern, "\\[]()|+*?^$ ") == NULL) {
        LT_FAIL(LT_ERR_ARG,
                "%s: unknown pattern '%s'; known are gpt2, cl100k, o200k, llama3, qwen2, tekken, "
                "deepseek, smollm and any regular expression",
                t->name, pattern);
    }
    LT_TRY(lt_pretok_add_regex(&t->pretok, pattern, strlen(pattern), LT_REGEX_RUST, LT_CUT_ISOLATED,
                               false, t->name));
    lt_pretok_optimise(&t->pretok);
    return LT_OK;
}

static lt_err start_bytes(lt_tokenizer *t, const char *kind) {
    t->kind = kind;
    t->model = LT_MODEL_BPE;
    t->byte_level = true;
    t->bpe.mode = LT_BPE_BYTES;
    t->bpe.unk = LT_NO_ID;
    return LT_OK;
}

/* Read lines "base64 rank". */
static lt_err read_rank_lines(lt_tokenizer *t, const char *text, size_t n, uint32_t first_id) {
    lt_err err = LT_OK;
    lt_text raw = {0};
    size_t line = 0;
    uint32_t twice;
    const char *p = text, *const end = text + n;

    LT_TRY_DONE(lt_vocab_reserve(&t->vocab, n / 16, n / 2));
    while (p < end) {
        const char *stop = memchr(p, '\n', (size_t)(end - p));
        const char *next = stop != NULL ? stop + 1 : end;
        const char *space;
        uint64_t rank = 0;
        stop = stop != NULL ? stop : end;
        stop -= stop > p && stop[-1] == '\r';
        line++;
        if (stop == p) {
            p = next;
            continue;
        }
        space = memchr(p, ' ', (size_t)(stop - p));
        if (space == NULL || space + 1 == stop || space == p) {
            LT_FAIL_DONE(LT_ERR_FORMAT, "%s:%zu: not a line 'base64 rank'", t->name, line);
        }
        for (const char *d = space + 1; d < stop; d++) {
            if (*d < '0' || *d > '9' || rank > LT_VOCAB_MAX) {
                LT_FAIL_DONE(LT_ERR_FORMAT, "%s:%zu: '%.*s' is not a rank below %u", t->name, line,
                             (int)(stop - space - 1 < 40 ? stop - space - 1 : 40), space + 1,
                             LT_VOCAB_MAX);
            }
            rank = rank * 10 + (uint64_t)(*d - '0');
        }
        raw.n = 0;
        LT_TRY_DONE(lt_base64_decode(p, (size_t)(space - p), &raw, t->name));
        LT_TRY_DONE(lt_vocab_put(&t->vocab, (uint32_t)rank + first_id, raw.data, raw.n,
                                 raw.n > 0 ? LT_PIECE_TEXT : 0, false, t->name));
        p = next;
    }
    if (t->vocab.n == 0) {
        LT_FAIL_DONE(LT_ERR_FORMAT, "%s: no ranks", t->name);
    }
    LT_TRY_DONE(lt_vocab_index_all(&t->vocab, &twice));
    if (twice != LT_NO_ID) {
        LT_FAIL_DONE(LT_ERR_FORMAT, "%s: the token of rank %u has another rank already", t->name,
                     twice - first_id);
    }
done:
    lt_text_free(&raw);
    return err;
}

/* Finish as tiktoken does: a word that is a token becomes that token, and others are merged by
 * rank. */
static lt_err finish_ranks(lt_tokenizer *t) {
    t->bpe.vocab = &t->vocab;
    t->bpe.ignore_merges = true;
    for (int b = 0; b < 256; b++) {
        const char byte = (char)b;
        if (lt_vocab_find(&t->vocab, &byte, 1) == LT_NO_ID) {
            LT_FAIL(LT_ERR_FORMAT, "%s: byte 0x%02x has no rank", t->name, b);
        }
    }
    return lt_bpe_derive_ranks(&t->bpe);
}

lt_err lt_tokenizer_read_ranks(lt_tokenizer *t, const char *text, size_t n, const char *pattern) {
    const encoding *e = find_encoding(pattern != NULL ? pattern : t->name);
    const bool tekken = e != NULL && e->scan == LT_SCAN_TEKKEN;

    LT_TRY(start_bytes(t, "tiktoken BPE"));
    LT_TRY(read_rank_lines(t, text, n, tekken ? TEKKEN_SPECIAL : 0));
    LT_TRY(finish_ranks(t));
    if (e == NULL && pattern == NULL) {
        LT_FAIL(LT_ERR_ARG,
                "%s: a rank file does not say its pattern, and its name is none of the known "
                "encodings; say "
                "which with --pattern (gpt2, cl100k, o200k, llama3, qwen2, tekken, ... or a "
                "regular expression)",
                t->name);
    }
    if (pattern == NULL && e->ranks > 0 && t->vocab.n_indexed < e->ranks) {
        LT_FAIL(LT_ERR_FORMAT,
                "%s: cut short: %zu ranks, and %s has %u; if it is another vocabulary, say its "
                "pattern with --pattern",
                t->name, t->vocab.n_indexed, e->name, e->ranks);
    }
    LT_TRY(pattern != NULL ? lt_tokenizer_set_pattern(t, pattern)
                           : set_scan(t, lt_scan_function(e->scan)));
    for (size_t i = 0; e != NULL && e->special[i].text != NULL; i++) {
        if (e->special[i].id >= t->vocab.n ||
            (t->vocab.flags[e->special[i].id] & LT_PIECE_PRESENT) == 0) {
            LT_TRY(lt_tokenizer_add(t, (lt_added){.id = e->special[i].id, .special = true},
                                    e->special[i].text, strlen(e->special[i].text)));
        }
    }
    return LT_OK;
}

/* Add the special tokens of Tekken, with mistral-common's names if the file has none. */
static lt_err add_tekken_special(lt_tokenizer *t, const json_t *list, uint32_t n_special) {
    static const char *const names[] = {"<unk>",
                                        "<s>",
                                        "</s>",
                                        "[INST]",
                                        "[/INST]",
                                        "[AVAILABLE_TOOLS]",
                                        "[/AVAILABLE_TOOLS]",
                                        "[TOOL_RESULTS]",
                                        "[/TOOL_RESULTS]",
                                        "[TOOL_CALLS]",
                                        "[IMG]",
                                        "<pad>",
                                        "[IMG_BREAK]",
                                        "[IMG_END]",
                                        "[PREFIX]",
                                        "[MIDDLE]",
                                        "[SUFFIX]",
                                        "[SYSTEM_PROMPT]",
                                        "[/SYSTEM_PROMPT]",
                                        "[TOOL_CONTENT]"};
    size_t i;
    json_t *o;
    if (!json_is_array(list)) {
        for (uint32_t k = 0; k < sizeof names / sizeof *names && k < n_special; k++) {
            LT_TRY(lt_tokenizer_add(t, (lt_added){.id = k, .special = true}, names[k],
                                    strlen(names[k])));
        }
        return LT_OK;
    }
    json_array_foreach(list, i, o) {
        const json_t *rank = json_object_get(o, "rank"), *text = json_object_get(o, "token_str");
        if (!json_is_integer(rank) || json_integer_value(rank) < 0 ||
            json_integer_value(rank) >= n_special || !json_is_string(text)) {
            LT_FAIL(LT_ERR_FORMAT,
                    "%s: special token %zu needs a 'token_str' and a 'rank' below %u", t->name, i,
                    n_special);
        }
        LT_TRY(lt_tokenizer_add(
            t, (lt_added){.id = (uint32_t)json_integer_value(rank), .special = true},
            json_string_value(text), json_string_length(text)));
    }
    return LT_OK;
}

static lt_err read_tekken_ranks(lt_tokenizer *t, lt_json_pull *j, uint32_t n_special,
                                uint32_t n_ids) {
    lt_err err = LT_OK;
    lt_text raw = {0};
    bool more;
    LT_TRY(lt_json_pull_begin(j, '['));
    for (;;) {
        int64_t rank = -1;
        bool field;
        lt_slice key, s;
        LT_TRY_DONE(lt_json_pull_next(j, &more));
        if (!more) {
            break;
        }
        raw.n = 0;
        LT_TRY_DONE(lt_json_pull_begin(j, '{'));
        for (;;) {
            LT_TRY_DONE(lt_json_pull_key(j, &key, &field));
            if (!field) {
                break;
            }
            if (lt_slice_is(key, "rank")) {
                LT_TRY_DONE(lt_json_pull_i64(j, &rank));
            } else if (lt_slice_is(key, "token_bytes")) {
                LT_TRY_DONE(lt_json_pull_string(j, &s));
                LT_TRY_DONE(lt_base64_decode(s.data, s.n, &raw, t->name));
            } else {
                LT_TRY_DONE(lt_json_pull_skip(j, NULL));
            }
        }
        if (rank < 0 || raw.n == 0) {
            LT_FAIL_DONE(LT_ERR_FORMAT, "%s: an entry of 'vocab' lacks 'rank' or 'token_bytes'",
                         t->name);
        }
        if (rank + n_special < n_ids) { /* The file lists more ranks than the model uses. */
            LT_TRY_DONE(lt_vocab_put(&t->vocab, (uint32_t)rank + n_special, raw.data, raw.n,
                                     LT_PIECE_TEXT, false, t->name));
        }
    }
    LT_TRY_DONE(lt_vocab_index_all(&t->vocab, NULL));
done:
    lt_text_free(&raw);
    return err;
}

static lt_err tekken_config(lt_tokenizer *t, const json_t *config, int64_t *n_special,
                            int64_t *n_ids) {
    const json_t *pattern = json_object_get(config, "pattern");
    const json_t *special = json_object_get(config, "default_num_special_tokens");
    const json_t *size = json_object_get(config, "default_vocab_size");
    *n_special = json_is_integer(special) ? json_integer_value(special) : TEKKEN_SPECIAL;
    *n_ids = json_is_integer(size) ? json_integer_value(size) : TEKKEN_IDS;
    if (!json_is_string(pattern) || *n_special < 0 || *n_special > *n_ids ||
        *n_ids > LT_VOCAB_MAX) {
        LT_FAIL(LT_ERR_FORMAT, "%s: 'config' without pattern, or with %lld special tokens of %lld",
                t->name, (long long)*n_special, (long long)*n_ids);
    }
    LT_TRY(lt_pretok_add_regex(&t->pretok, json_string_value(pattern), json_string_length(pattern),
                               LT_REGEX_RUST, LT_CUT_ISOLATED, false, t->name));
    lt_pretok_optimise(&t->pretok);
    return LT_OK;
}

lt_err lt_tokenizer_read_tekken(lt_tokenizer *t, const char *text, size_t n) {
    lt_err err = LT_OK;
    lt_json_pull j = lt_json_pull_over(text, n, t->name), ranks = j;
    lt_slice key, config = {0}, vocab = {0}, special = {0};
    json_t *config_tree = NULL, *special_tree = NULL;
    int64_t n_special, n_ids;
    bool more;

    LT_TRY_DONE(start_bytes(t, "tekken BPE"));
    LT_TRY_DONE(lt_json_pull_begin(&j, '{'));
    for (;;) {
        LT_TRY_DONE(lt_json_pull_key(&j, &key, &more));
        if (!more) {
            break;
        }
        LT_TRY_DONE(lt_json_pull_skip(&j, lt_slice_is(key, "config")           ? &config
                                          : lt_slice_is(key, "vocab")          ? &vocab
                                          : lt_slice_is(key, "special_tokens") ? &special
                                                                               : NULL));
    }
    config_tree = config.data != NULL ? json_loadb(config.data, config.n, 0, NULL) : NULL;
    special_tree = special.data != NULL ? json_loadb(special.data, special.n, 0, NULL) : NULL;
    LT_TRY_DONE(tekken_config(t, config_tree, &n_special, &n_ids));
    ranks = lt_json_pull_over(vocab.data, vocab.n, t->name);
    LT_TRY_DONE(read_tekken_ranks(t, &ranks, (uint32_t)n_special, (uint32_t)n_ids));
    LT_TRY_DONE(finish_ranks(t));
    LT_TRY_DONE(add_tekken_special(t, special_tree, (uint32_t)n_special));
done:
    json_decref(config_tree);
    json_decref(special_tree);
    lt_json_pull_close(&j);
    lt_json_pull_close(&ranks);
    return err;
}

static lt_err read_encoder(lt_tokenizer *t, const char *text, size_t n) {
    lt_err err = LT_OK;
    lt_json_pull j = lt_json_pull_over(text, n, t->name);
    lt_text raw = {0};
    lt_slice piece;
    int64_t id;
    bool more, mapped;
    LT_TRY_DONE(lt_json_pull_begin(&j, '{'));
    for (;;) {
        LT_TRY_DONE(lt_json_pull_key(&j, &piece, &more));
        if (!more) {
            break;
        }
        LT_TRY_DONE(lt_json_pull_i64(&j, &id));
        raw.n = 0;
        LT_TRY_DONE(lt_tokenizer_unmap(piece.data, piece.n, &raw, &mapped));
        if (id < 0 || id >= LT_VOCAB_MAX) {
            LT_FAIL_DONE(LT_ERR_FORMAT, "%s: id %lld in the vocabulary", t->name, (long long)id);
        }
        LT_TRY_DONE(lt_vocab_put(&t->vocab, (uint32_t)id, raw.data, raw.n,
                                 mapped && raw.n > 0 ? LT_PIECE_TEXT : 0, false, t->name));
    }
    LT_TRY_DONE(lt_vocab_index_all(&t->vocab, NULL));
done:
    lt_json_pull_close(&j);
    lt_text_free(&raw);
    return err;
}

/* Read lines "left right"; a first line "#version" is skipped. */
static lt_err read_merge_lines(lt_tokenizer *t, const char *text, size_t n) {
    lt_err err = LT_OK;
    lt_merge_batch m = lt_merge_batch_open(&t->bpe, t->name);
    const char *p = text, *const end = text + n;
    size_t line = 0;
    LT_TRY_DONE(lt_bpe_reserve_pairs(&t->bpe, t->vocab.n));
    while (p < end) {
        const char *stop = memchr(p, '\n', (size_t)(end - p)), *next, *space;
        next = stop != NULL ? stop + 1 : end;
        stop = stop != NULL ? stop : end;
        stop -= stop > p && stop[-1] == '\r';
        line++;
        if (stop > p &&
            !(line == 1 && *p == '#' && (stop - p) >= 8 && memcmp(p, "#version", 8) == 0)) {
            space = memchr(p, ' ', (size_t)(stop - p));
            if (space == NULL || space == p || space + 1 == stop) {
                LT_FAIL_DONE(LT_ERR_FORMAT, "%s:%zu: not a merge 'left right'", t->name, line);
            }
            LT_TRY_DONE(lt_tokenizer_merge(t, &m, p, (size_t)(space - p), space + 1,
                                           (size_t)(stop - space - 1)));
        }
        p = next;
    }
    LT_TRY_DONE(lt_merge_batch_flush(&m));
done:
    lt_merge_batch_close(&m);
    return err;
}

lt_err lt_tokenizer_read_gpt2(lt_tokenizer *t, const char *vocab, size_t vocab_n,
                              const char *merges, size_t merges_n, const char *pattern) {
    static const char end_of_text[] = "<|endoftext|>";
    uint32_t id;
    LT_TRY(start_bytes(t, "byte-level BPE"));
    LT_TRY(read_encoder(t, vocab, vocab_n));
    t->bpe.vocab = &t->vocab;
    LT_TRY(read_merge_lines(t, merges, merges_n));
    LT_TRY(lt_tokenizer_set_pattern(t, pattern != NULL ? pattern : "gpt2"));
    id = lt_vocab_find(&t->vocab, end_of_text, sizeof end_of_text - 1);
    return id == LT_NO_ID ? LT_OK
                          : lt_tokenizer_add(t, (lt_added){.id = id, .special = true}, end_of_text,
                                             sizeof end_of_text - 1);
}
