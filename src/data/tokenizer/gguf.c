/* tokenizer/gguf.c: reads the tokenizer in a GGUF file's metadata (tokenizer.ggml.*), as
 * llama.cpp interprets it.
 *
 *     model "gpt2"    byte-level BPE: tokens in printable form, merges "left right", `pre` names
 *                     the pre-tokenizer
 *           "llama"   SentencePiece BPE: tokens with scores and types
 *           "t5"      SentencePiece Unigram
 *           "bert"    WordPiece: U+2581 begins a word
 *
 * `pre` is a name that llama.cpp gives to a pattern; see the table below. An unknown name is
 * refused; a missing one is read as "default", as by llama.cpp for old files. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "data/gguf.h"
#include "data/tokenizer/impl.h"
#include "data/tokenizer/scored.h"

#define MAX_PATTERNS LT_GGUF_PATTERNS

/* Patterns, which are applied in turn: '@' and the name of a scanner, or a regular expression. */
typedef struct {
    const char *names; /* "|a|b|" */
    const char *patterns[MAX_PATTERNS];
    bool ignore_merges, add_bos;
} pre_row;

static const pre_row pre_rows[] = {
    {"|default|",
     {"[\\p{P}\\$\\+<=>\\^~\\|]+", "@gpt2", "\\p{N}+", "[0-9][0-9][0-9]"},
     false,
     false},
    {"|gpt-2|phi-2|jina-es|jina-de|gigachat|jina-v2-es|jina-v2-de|a.x-4.0|mpt|olmo|jais|trillion|"
     "granite-docling|"
     "roberta-bpe|modern-bert|jina-v1-en|jina-v2-code|",
     {"@gpt2"},
     false,
     false},
    {"|llama3|llama-v3|llama-bpe|falcon3|falcon-h1|pixtral|midm-2.0|lfm2|jina-v5-nano|",
     {"@cl100k"},
     true,
     true},
    {"|dbrx|smaug-bpe|chatglm-bpe|glm4|hunyuan-dense-v1|", {"@cl100k"}, false, false},
    {"|qwen2|deepseek-r1-qwen|kormo|stablelm2|hunyuan|megrez|solar-open|grok-2|",
     {"@qwen2"},
     false,
     false},
    {"|starcoder|refact|command-r|smollm|codeshell|exaone|minerva-7b|mellum2|",
     {"@smollm"},
     false,
     false},
    {"|deepseek-v3|deepseek-r1|hunyuan-dense|joyai-llm|", {"@deepseek-v3"}, false, false},
    {"|gpt-4o|llama4|minimax-m2|", {"@o200k"}, false, false},
    {"|tekken|", {"@tekken"}, true, true},
    {"|falcon|", {"[\\p{P}\\$\\+<=>\\^~\\|`]+", "@gpt2", "[0-9][0-9][0-9]"}, false, false},
    {"|deepseek-coder|",
     {"[\\r\\n]", "\\s?\\p{L}+", "\\s?\\p{P}+",
      "[\xE4\xB8\x80-\xE9\xBE\xA5\xE0\xA0\x80-\xE4\xB8\x80\xEA\xB0\x80-\xED\x9F\xBF]+", "\\p{N}"},
     false,
     false},
    {"|bloom|poro-chat|gpt3-finnish|",
     {" ?[^(\\s|.,!?\xE2\x80\xA6\xE3\x80\x82\xEF\xBC\x8C\xE3\x80\x81\xE0\xA5\xA4\xDB\x94\xD8\x8C)]"
      "+"},
     false,
     false},
    {"|viking|",
     {" ?[^(\\s|.,!?\xE2\x80\xA6\xE3\x80\x82\xEF\xBC\x8C\xE3\x80\x81\xE0\xA5\xA4\xDB\x94\xD8\x8C)]"
      "+",
      "\\p{N}"},
     false,
     false},
    {"|qwen35|",
     {"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{"
      "M}]+|\\p{N}|"
      " ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"},
     false,
     false},
};

static const pre_row *find_pre(const char *name) {
    char key[80];
    if (snprintf(key, sizeof key, "|%s|", name) >= (int)sizeof key) {
        return NULL;
    }
    for (size_t i = 0; i < sizeof pre_rows / sizeof *pre_rows; i++) {
        if (strstr(pre_rows[i].names, key) != NULL) {
            return &pre_rows[i];
        }
    }
    return NULL;
}

bool lt_gguf_pre_patterns(const char *name, const char *patterns[LT_GGUF_PATTERNS],
                          bool *ignore_merges, bool *add_bos) {
    const pre_row *row = find_pre(name);
    if (row == NULL) {
        return false;
    }
    memcpy(patterns, row->patterns, sizeof row->patterns);
    *ignore_merges = row->ignore_merges;
    *add_bos = row->add_bos;
    return true;
}

static lt_err add_pre(lt_tokenizer *t, const pre_row *row) {
    static const struct {
        const char *name;
        lt_scan_kind kind;
    } scans[] = {
#define GGUF_SCAN(id, name, regex) {"@" name, LT_SCAN_##id},
        LT_SCAN_MAP(GGUF_SCAN)
#undef GGUF_SCAN
    };
    for (int i = 0; i < MAX_PATTERNS && row->patterns[i] != NULL; i++) {
        const char *pattern = row->patterns[i];
        if (pattern[0] != '@') {
            LT_TRY(lt_pretok_add_regex(&t->pretok, pattern, strlen(pattern), LT_REGEX_ONIGURUMA,
                                       LT_CUT_ISOLATED, false, t->name));
        }
        for (size_t k = 0; k < sizeof scans / sizeof *scans; k++) {
            if (strcmp(pattern, scans[k].name) == 0) {
                LT_TRY(
                    lt_pretok_add(&t->pretok, (lt_cut){.kind = LT_CUT_SCAN,
                                                       .scan = lt_scan_function(scans[k].kind)}));
            }
        }
    }
    lt_pretok_optimise(&t->pretok);
    return LT_OK;
}

/* An absent key leaves *out unchanged. */
static lt_err optional_bool(const lt_gguf *g, const char *key, bool *out) {
    const lt_err err = lt_gguf_get_bool(g, key, out);
    return err == LT_ERR_NOT_FOUND ? LT_OK : err;
}

static lt_err optional_id(const lt_gguf *g, const char *key, uint32_t n, uint32_t *out) {
    uint64_t id;
    const lt_err err = lt_gguf_get_u64(g, key, &id);
    if (err == LT_ERR_NOT_FOUND || (err == LT_OK && id == UINT32_MAX)) {
        return LT_OK; /* Some writers use -1 for "none". */
    }
    LT_TRY(err);
    if (id >= n) {
        LT_FAIL(LT_ERR_FORMAT, "%s: %s is %llu, outside of the vocabulary of %u", g->name, key,
                (unsigned long long)id, n);
    }
    *out = (uint32_t)id;
    return LT_OK;
}

/* Read the tokens of fill-in-the-middle; older files use other keys. */
static lt_err fim_ids(lt_tokenizer *t, const lt_gguf *g, uint32_t n) {
    static const char *const keys[LT_FIM_COUNT][2] = {
        [LT_FIM_PREFIX] = {"tokenizer.ggml.prefix_token_id", "tokenizer.ggml.fim_pre_token_id"},
        [LT_FIM_SUFFIX] = {"tokenizer.ggml.suffix_token_id", "tokenizer.ggml.fim_suf_token_id"},
        [LT_FIM_MIDDLE] = {"tokenizer.ggml.middle_token_id", "tokenizer.ggml.fim_mid_token_id"},
        [LT_FIM_REPOSITORY] = {"tokenizer.ggml.fim_rep_token_id", NULL},
        [LT_FIM_FILE] = {"tokenizer.ggml.fim_sep_token_id", NULL},
        [LT_FIM_PAD] = {"tokenizer.ggml.fim_pad_token_id", NULL}};
    for (int i = 0; i < LT_FIM_COUNT; i++) {
        t->fim.ids[i] = LT_NO_ID;
        for (int k = 0; k < 2 && keys[i][k] != NULL; k++) {
            LT_TRY(optional_id(g, keys[i][k], n, &t->fim.ids[i]));
        }
    }
    return LT_OK;
}

static lt_err add_end(lt_tokenizer *t, uint32_t id) {
    return id == LT_NO_ID ? LT_OK : lt_ids_append(&t->ends, &id, 1);
}

/* Read the tokens at which llama.cpp stops, besides eos and eot: the end of a message, and those
 * tokens of fill-in-the-middle after which the model would begin another file. */
static lt_err more_ends(lt_tokenizer *t, const lt_gguf *g, uint32_t n) {
    uint32_t eom = LT_NO_ID;
    t->from_gguf = true;
    LT_TRY(fim_ids(t, g, n));
    LT_TRY(optional_id(g, "tokenizer.ggml.eom_token_id", n, &eom));
    LT_TRY(add_end(t, eom));
    for (int i = LT_FIM_REPOSITORY; i < LT_FIM_COUNT; i++) {
        LT_TRY(add_end(t, t->fim.ids[i]));
    }
    return LT_OK;
}

static lt_err special_ids(lt_tokenizer *t, const lt_gguf *g, uint32_t n) {
    LT_TRY(optional_id(g, "tokenizer.ggml.bos_token_id", n, &t->bos));
    LT_TRY(optional_id(g, "tokenizer.ggml.eos_token_id", n, &t->eos));
    LT_TRY(optional_id(g, "tokenizer.ggml.padding_token_id", n, &t->pad));
    LT_TRY(optional_id(g, "tokenizer.ggml.unknown_token_id", n, &t->unk));
    LT_TRY(optional_id(g, "tokenizer.ggml.eot_token_id", n, &t->eot));
    return more_ends(t, g, n);
}

static lt_err add_ends(lt_tokenizer *t, const lt_gguf *g, bool bos, bool eos) {
    LT_TRY(optional_bool(g, "tokenizer.ggml.add_bos_token", &bos));
    LT_TRY(optional_bool(g, "tokenizer.ggml.add_eos_token", &eos));
    if (bos && t->bos != LT_NO_ID) {
        LT_TRY(lt_ids_append(&t->before, &t->bos, 1));
    }
    if (eos && t->eos != LT_NO_ID) {
        LT_TRY(lt_ids_append(&t->after, &t->eos, 1));
    }
    return LT_OK;
}

static lt_err get_arrays(const lt_gguf *g, const lt_gguf_kv **tokens, const lt_gguf_kv **types) {
    lt_err err;
    LT_TRY(lt_gguf_get_array(g, "tokenizer.ggml.tokens", LT_GGUF_STR, tokens));
    err = lt_gguf_get_array(g, "tokenizer.ggml.token_type", LT_GGUF_I32, types);
    if (err == LT_ERR_NOT_FOUND) {
        *types = NULL;
        err = LT_OK;
    }
    LT_TRY(err);
    if ((*tokens)->n == 0 || (*tokens)->n > LT_VOCAB_MAX ||
        (*types != NULL && (*types)->n != (*tokens)->n)) {
        LT_FAIL(LT_ERR_FORMAT, "%s: %llu tokens with %llu types", g->name,
                (unsigned long long)(*tokens)->n,
                *types != NULL ? (unsigned long long)(*types)->n : 0);
    }
    return LT_OK;
}

/* Tokens that end a text or a turn are special even in files that call them user-defined. */
static bool ends_text(lt_gguf_str s) {
    static const char *const names[] = {"</s>",    "<|endoftext|>", "<|im_end|>",      "<|eot_id|>",
                                        "<|end|>", "<end_of_turn>", "<|end_of_text|>", "<|eom_id|>",
                                        "<EOT>"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (lt_gguf_str_is(s, names[i])) {
            return true;
        }
    }
    return false;
}

static lt_scored_type type_at(const lt_gguf_kv *types, uint64_t i, lt_gguf_str s) {
    const int64_t type = types != NULL ? lt_gguf_elem_i64(types, i) : LT_SCORED_NORMAL;
    if (type == LT_SCORED_USER && ends_text(s)) {
        return LT_SCORED_CONTROL;
    }
    return type >= LT_SCORED_NORMAL && type <= LT_SCORED_BYTE ? (lt_scored_type)type
                                                              : LT_SCORED_NORMAL;
}

static lt_err read_bpe_tokens(lt_tokenizer *t, const lt_gguf_kv *tokens, const lt_gguf_kv *types) {
    lt_err err = LT_OK;
    lt_text raw = {0};
    size_t at = 0;
    bool mapped;
    for (uint32_t id = 0; id < tokens->n; id++) {
        const lt_gguf_str s = lt_gguf_str_next(tokens, &at);
        const lt_scored_type type = type_at(types, id, s);
        if (type == LT_SCORED_CONTROL || type == LT_SCORED_UNKNOWN || type == LT_SCORED_USER) {
            LT_TRY_DONE(lt_vocab_put(&t->vocab, id, s.data, s.bytes, 0, false, t->name));
            /* Its text is not mapped to printable characters, so it is compared as it is. */
            t->byte_level = false;
            err = lt_tokenizer_add(t, (lt_added){.id = id, .special = type != LT_SCORED_USER},
                                   s.data, s.bytes);
            t->byte_level = true;
            LT_TRY_DONE(err);
            continue;
        }
        raw.n = 0;
        LT_TRY_DONE(lt_tokenizer_unmap(s.data, s.bytes, &raw, &mapped));
        LT_TRY_DONE(lt_vocab_put(&t->vocab, id, raw.data, raw.n,
                                 mapped && raw.n > 0 ? LT_PIECE_TEXT : 0, false, t->name));
    }
    LT_TRY_DONE(lt_vocab_index_all(&t->vocab, NULL));
done:
    lt_text_free(&raw);
    return err;
}

static lt_err read_bpe_merges(lt_tokenizer *t, const lt_gguf *g) {
    lt_err err = LT_OK;
    const lt_gguf_kv *merges = NULL;
    lt_merge_batch m = lt_merge_batch_open(&t->bpe, t->name);
    size_t at = 0;
    LT_TRY_DONE(lt_gguf_get_array(g, "tokenizer.ggml.merges", LT_GGUF_STR, &merges));
    LT_TRY_DONE(lt_bpe_reserve_pairs(&t->bpe, (size_t)merges->n));
    for (uint32_t i = 0; i < merges->n; i++) {
        const lt_gguf_str s = lt_gguf_str_next(merges, &at);
        const char *space = s.bytes > 1 ? memchr(s.data + 1, ' ', s.bytes - 1) : NULL;
        if (space == NULL) {
            LT_FAIL_DONE(LT_ERR_FORMAT, "%s: merge %u ('%.*s') is not two pieces", t->name, i,
                         (int)(s.bytes < 64 ? s.bytes : 64), s.data);
        }
        LT_TRY_DONE(lt_tokenizer_merge(t, &m, s.data, (size_t)(space - s.data), space + 1,
                                       s.bytes - (size_t)(space + 1 - s.data)));
    }
    LT_TRY_DONE(lt_merge_batch_flush(&m));
done:
    lt_merge_batch_close(&m);
    return err;
}

static lt_err read_gpt2(lt_tokenizer *t, const lt_gguf *g) {
    const lt_gguf_kv *tokens = NULL, *types = NULL;
    lt_gguf_str pre = {"default", 7};
    char name[64];
    const pre_row *row;
    lt_err err;

    LT_TRY(get_arrays(g, &tokens, &types));
    err = lt_gguf_get_str(g, "tokenizer.ggml.pre", &pre);
    LT_TRY(err == LT_ERR_NOT_FOUND ? LT_OK : err);
    snprintf(name, sizeof name, "%.*s", (int)(pre.bytes < 60 ? pre.bytes : 60), pre.data);
    row = find_pre(name);
    if (row == NULL) {
        LT_FAIL(LT_ERR_UNSUPPORTED, "%s: pre-tokenizer '%s' (tokenizer.ggml.pre) is not known",
                t->name, name);
    }
    t->model = LT_MODEL_BPE;
    t->kind = "byte-level BPE";
    t->byte_level = true;
    t->bpe.mode = LT_BPE_BYTES;
    t->bpe.vocab = &t->vocab;
    t->bpe.ignore_merges = row->ignore_merges;
    LT_TRY(optional_bool(g, LT_GGUF_IGNORE_MERGES, &t->bpe.ignore_merges));
    LT_TRY(special_ids(t, g, (uint32_t)tokens->n));
    LT_TRY(read_bpe_tokens(t, tokens, types));
    LT_TRY(read_bpe_merges(t, g));
    LT_TRY(add_pre(t, row));
    return add_ends(t, g, row->add_bos, false);
}

static lt_err read_scored(lt_tokenizer *t, const lt_gguf *g, lt_scored *v) {
    const lt_gguf_kv *tokens = NULL, *types = NULL, *scores = NULL;
    size_t at = 0;
    LT_TRY(get_arrays(g, &tokens, &types));
    LT_TRY(lt_gguf_get_array(g, "tokenizer.ggml.scores", LT_GGUF_F32, &scores));
    if (scores->n != tokens->n) {
        LT_FAIL(LT_ERR_FORMAT, "%s: %llu tokens with %llu scores", t->name,
                (unsigned long long)tokens->n, (unsigned long long)scores->n);
    }
    LT_TRY(special_ids(t, g, (uint32_t)tokens->n));
    for (uint64_t i = 0; i < tokens->n; i++) {
        const lt_gguf_str s = lt_gguf_str_next(tokens, &at);
        const double score = lt_gguf_elem_f64(scores, i);
        if (score != score) {
            LT_FAIL(LT_ERR_FORMAT, "%s: the score of token %llu is NaN", t->name,
                    (unsigned long long)i);
        }
        LT_TRY(lt_scored_put(v, s.data, s.bytes, (float)score, type_at(types, i, s)));
    }
    return LT_OK;
}

/* Read "llama" and "t5". */
static lt_err read_spm(lt_tokenizer *t, const lt_gguf *g, bool unigram) {
    lt_err err = LT_OK;
    lt_scored v = {0};
    const lt_gguf_kv *charsmap = NULL;

    t->spm = (lt_spm){.active = true, .add_dummy_prefix = true, .escape_whitespaces = true};
    t->model = unigram ? LT_MODEL_UNIGRAM : LT_MODEL_BPE;
    t->kind = unigram ? "SentencePiece Unigram" : "SentencePiece BPE";
    LT_TRY_DONE(read_scored(t, g, &v));
    LT_TRY_DONE(optional_bool(g, "tokenizer.ggml.add_space_prefix", &t->spm.add_dummy_prefix));
    LT_TRY_DONE(optional_bool(g, "tokenizer.ggml.remove_extra_whitespaces",
                              &t->spm.remove_extra_whitespaces));
    charsmap = lt_gguf_find(g, "tokenizer.ggml.precompiled_charsmap");
    if (charsmap != NULL && (charsmap->elem == LT_GGUF_U8 || charsmap->elem == LT_GGUF_I8) &&
        charsmap->n > 0) {
        LT_TRY_DONE(lt_charsmap_open(&t->spm.charsmap, charsmap->data, charsmap->bytes, t->name));
    }
    LT_TRY_DONE(lt_scored_finish(&v, t, LT_BPE_SPM, true));
    LT_TRY_DONE(add_ends(t, g, !unigram, unigram));
done:
    lt_scored_free(&v);
    return err;
}

/* Read "bert". Pieces that begin a word have U+2581, inner ones nothing: the reverse of BERT's
 * "##". */
static lt_err read_bert(lt_tokenizer *t, const lt_gguf *g) {
    lt_err err = LT_OK;
    const lt_gguf_kv *tokens = NULL, *types = NULL;
    lt_text piece = {0};
    size_t at = 0;
    uint32_t cls = LT_NO_ID, sep = LT_NO_ID;

    LT_TRY_DONE(get_arrays(g, &tokens, &types));
    t->model = LT_MODEL_WORDPIECE;
    t->kind = "WordPiece";
    t->wordpiece.max_chars = 1u << 30;
    memcpy(t->wordpiece.prefix, "##", 3);
    LT_TRY_DONE(special_ids(t, g, (uint32_t)tokens->n));
    t->wordpiece.unk = t->unk;
    for (uint32_t id = 0; id < tokens->n; id++) {
        const lt_gguf_str s = lt_gguf_str_next(tokens, &at);
        const bool starts = s.bytes > 3 && memcmp(s.data, "\xE2\x96\x81", 3) == 0;
        const lt_scored_type type = type_at(types, id, s);
        if (type == LT_SCORED_CONTROL || type == LT_SCORED_UNKNOWN || type == LT_SCORED_USER) {
            LT_TRY_DONE(lt_tokenizer_add(t, (lt_added){.id = id, .special = type != LT_SCORED_USER},
                                         s.data, s.bytes));
            continue;
        }
        piece.n = 0;
        LT_TRY_DONE(starts ? LT_OK : lt_text_put(&piece, "##", 2));
        LT_TRY_DONE(lt_text_put(&piece, s.data + (starts ? 3 : 0), s.bytes - (starts ? 3 : 0)));
        LT_TRY_DONE(lt_vocab_put(&t->vocab, id, piece.data, piece.n, 0, piece.n > 0, t->name));
    }
    LT_TRY_DONE(lt_normalizer_add(
        &t->normalizer,
        (lt_norm){
            .kind = LT_NORM_BERT, .clean = true, .han = true, .accents = true, .lower = true}));
    LT_TRY_DONE(lt_pretok_add(&t->pretok, (lt_cut){.kind = LT_CUT_BERT}));
    LT_TRY_DONE(optional_id(g, "tokenizer.ggml.cls_token_id", t->vocab.n, &cls));
    LT_TRY_DONE(optional_id(g, "tokenizer.ggml.seperator_token_id", t->vocab.n, &sep));
    t->bos = t->bos == LT_NO_ID ? cls : t->bos;
    t->eos = t->eos == LT_NO_ID ? sep : t->eos;
    LT_TRY_DONE(add_ends(t, g, true, true));
    LT_TRY_DONE(lt_tokenizer_add_decode(t, LT_DECODE_WORDPIECE, "##", NULL));
done:
    lt_text_free(&piece);
    return err;
}

lt_err lt_tokenizer_read_gguf(lt_tokenizer *t, const lt_gguf *g) {
    lt_gguf_str model, template;
    if (lt_gguf_get_str(g, "tokenizer.chat_template", &template) == LT_OK) {
        LT_TRY(lt_text_put(&t->chat_template, template.data, template.bytes));
        LT_TRY(lt_text_put(&t->chat_template, "", 1)); /* 0-terminated. */
    }
    LT_TRY(lt_gguf_get_str(g, "tokenizer.ggml.model", &model));
    if (lt_gguf_str_is(model, "gpt2")) {
        return read_gpt2(t, g);
    }
    if (lt_gguf_str_is(model, "llama") || lt_gguf_str_is(model, "t5")) {
        return read_spm(t, g, lt_gguf_str_is(model, "t5"));
    }
    if (lt_gguf_str_is(model, "bert")) {
        return read_bert(t, g);
    }
    LT_FAIL(LT_ERR_UNSUPPORTED, "%s: tokenizer model '%.*s'; gpt2, llama, t5 and bert are read",
            t->name, (int)(model.bytes < 40 ? model.bytes : 40), model.data);
}
