/* tokenizer/save.c: see tokenizer/save.h.
 *
 * "gpt2" is nearly a tokenizer.json already: tokens in printable form, merges, and a name that
 * stands for patterns. "llama" has scores instead of merges. Its algorithm joins the pair whose
 * piece has the best score. So every way to split a piece into two pieces becomes a merge, and
 * merges are ordered by their piece's score, longer left parts first, as in transformers' own
 * converter. */
#include "data/tokenizer/save.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "data/gguf.h"
#include "data/tokenizer/impl.h"
#include "data/tokenizer/scored.h"

#define SPACE "\xE2\x96\x81" /* U+2581 stands for a space in SentencePiece's texts. */

typedef struct {
    const lt_gguf *g;
    const lt_gguf_kv *tokens, *types;
    json_t *vocab, *added; /* Parts of tokenizer.json. */
    json_t *config;        /* tokenizer_config.json */
} save;

static lt_scored_type type_of(const save *s, uint64_t id) {
    return s->types != NULL ? (lt_scored_type)lt_gguf_elem_i64(s->types, id) : LT_SCORED_NORMAL;
}

static json_t *text_of(lt_gguf_str s) {
    return json_stringn(s.data, s.bytes);
}

static lt_err read_tokens(save *s) {
    size_t at = 0;
    lt_err err;
    LT_TRY(lt_gguf_get_array(s->g, "tokenizer.ggml.tokens", LT_GGUF_STR, &s->tokens));
    err = lt_gguf_get_array(s->g, "tokenizer.ggml.token_type", LT_GGUF_I32, &s->types);
    LT_TRY(err == LT_ERR_NOT_FOUND ? LT_OK : err);
    if (s->types != NULL && s->types->n != s->tokens->n) {
        LT_FAIL(LT_ERR_FORMAT, "%s: tokens and types differ in number", s->g->name);
    }
    for (uint64_t id = 0; id < s->tokens->n; id++) {
        const lt_gguf_str text = lt_gguf_str_next(s->tokens, &at);
        const lt_scored_type type = type_of(s, id);
        json_t *content = text_of(text);
        if (content == NULL) {
            LT_FAIL(LT_ERR_UNSUPPORTED, "%s: token %llu is not UTF-8", s->g->name,
                    (unsigned long long)id);
        }
        if (type != LT_SCORED_UNUSED) {
            json_object_set_new(s->vocab, json_string_value(content), json_integer((json_int_t)id));
        }
        if (type == LT_SCORED_CONTROL || type == LT_SCORED_UNKNOWN || type == LT_SCORED_USER) {
            json_array_append_new(
                s->added, json_pack("{s:I, s:O, s:b, s:b, s:b, s:b, s:b}", "id", (json_int_t)id,
                                    "content", content, "single_word", 0, "lstrip", 0, "rstrip", 0,
                                    "normalized", 0, "special", type != LT_SCORED_USER));
        }
        json_decref(content);
    }
    return LT_OK;
}

/* The text of the token that a key names; NULL: none. */
static const char *named_token(const save *s, const char *key, int64_t *id) {
    const char *text;
    json_t *value;
    if (lt_gguf_get_i64(s->g, key, id) != LT_OK) {
        return NULL;
    }
    json_object_foreach(s->vocab, text, value) {
        if (json_integer_value(value) == *id) {
            return text;
        }
    }
    return NULL;
}

static bool flag(const save *s, const char *key, bool otherwise) {
    bool value = otherwise;
    return lt_gguf_get_bool(s->g, key, &value) == LT_OK ? value : otherwise;
}

/* The post-processor that adds BOS before and EOS after a text, if the file asks for them. */
static json_t *post_processor(const save *s, bool bos_by_default) {
    static const char *const keys[] = {"tokenizer.ggml.bos_token_id",
                                       "tokenizer.ggml.eos_token_id"};
    const bool wanted[] = {flag(s, "tokenizer.ggml.add_bos_token", bos_by_default),
                           flag(s, "tokenizer.ggml.add_eos_token", false)};
    json_t *single = json_array(), *pair = json_array(), *tokens = json_object();
    for (int side = 0; side < 2; side++) {
        for (int which = 0; which < 2; which++) {
            int64_t id = -1;
            const char *text = wanted[which] ? named_token(s, keys[which], &id) : NULL;
            if (which == 1) {
                json_t *piece = json_pack("{s:{s:s, s:i}}", "Sequence", "id", side ? "B" : "A",
                                          "type_id", side);
                if (side == 0) {
                    json_array_append(single, piece);
                }
                json_array_append_new(pair, piece);
            }
            if (text != NULL) {
                json_t *piece = json_pack("{s:{s:s, s:i}}", "SpecialToken", "id", text, "type_id",
                                          side);
                if (side == 0) {
                    json_array_append(single, piece);
                }
                json_array_append_new(pair, piece);
                json_object_set_new(tokens, text,
                                    json_pack("{s:s, s:[I], s:[s]}", "id", text, "ids",
                                              (json_int_t)id, "tokens", text));
            }
        }
    }
    return json_pack("{s:s, s:o, s:o, s:o}", "type", "TemplateProcessing", "single", single, "pair",
                     pair, "special_tokens", tokens);
}

static json_t *split(const char *regex) {
    return json_pack("{s:s, s:{s:s}, s:s, s:b}", "type", "Split", "pattern", "Regex", regex,
                     "behavior", "Isolated", "invert", 0);
}

static json_t *byte_level(bool by_regex) {
    return json_pack("{s:s, s:b, s:b, s:b}", "type", "ByteLevel", "add_prefix_space", 0,
                     "trim_offsets", 1, "use_regex", by_regex);
}

static lt_err pre_tokenizer(const save *s, json_t *steps, bool *ignore_merges, bool *add_bos) {
    lt_gguf_str pre = {"default", 7};
    char name[64];
    const char *patterns[LT_GGUF_PATTERNS] = {NULL};
    const lt_err err = lt_gguf_get_str(s->g, "tokenizer.ggml.pre", &pre);
    LT_TRY(err == LT_ERR_NOT_FOUND ? LT_OK : err);
    snprintf(name, sizeof name, "%.*s", (int)(pre.bytes < 60 ? pre.bytes : 60), pre.data);
    if (!lt_gguf_pre_patterns(name, patterns, ignore_merges, add_bos)) {
        LT_FAIL(LT_ERR_UNSUPPORTED, "%s: pre-tokenizer '%s' is not known", s->g->name, name);
    }
    if (lt_gguf_find(s->g, LT_GGUF_IGNORE_MERGES) != NULL) {
        LT_TRY(lt_gguf_get_bool(s->g, LT_GGUF_IGNORE_MERGES, ignore_merges));
    }
    for (int i = 0; i < LT_GGUF_PATTERNS && patterns[i] != NULL; i++) {
        const char *regex = patterns[i];
        for (int kind = 0; kind < LT_SCAN_COUNT && patterns[i][0] == '@'; kind++) {
            if (strcmp(patterns[i] + 1, lt_scan_name((lt_scan_kind)kind)) == 0) {
                regex = lt_scan_regex((lt_scan_kind)kind);
            }
        }
        if (regex == NULL && strcmp(patterns[i], "@smollm") == 0) {
            json_array_append_new(
                steps, json_pack("{s:s, s:b}", "type", "Digits", "individual_digits", 1));
            regex = lt_scan_regex(LT_SCAN_GPT2);
        }
        if (regex == NULL) {
            LT_FAIL(LT_ERR_UNSUPPORTED, "%s: pre-tokenizer '%s' is not a single pattern",
                    s->g->name, name);
        }
        json_array_append_new(steps, split(regex));
    }
    json_array_append_new(steps, byte_level(false));
    return LT_OK;
}

/* Convert model "gpt2". */
static lt_err byte_level_bpe(save *s, json_t *root) {
    const lt_gguf_kv *merges = NULL;
    json_t *steps = json_array(), *list = json_array();
    bool ignore_merges = false, add_bos = false;
    size_t at = 0;

    json_object_set_new(root, "normalizer", json_null());
    json_object_set_new(root, "pre_tokenizer",
                        json_pack("{s:s, s:o}", "type", "Sequence", "pretokenizers", steps));
    json_object_set_new(root, "model",
                        json_pack("{s:s, s:n, s:n, s:n, s:n, s:b, s:b, s:O, s:o}", "type", "BPE",
                                  "dropout", "unk_token", "continuing_subword_prefix",
                                  "end_of_word_suffix", "fuse_unk", 0, "byte_fallback", 0, "vocab",
                                  s->vocab, "merges", list));
    LT_TRY(pre_tokenizer(s, steps, &ignore_merges, &add_bos));
    LT_TRY(lt_gguf_get_array(s->g, "tokenizer.ggml.merges", LT_GGUF_STR, &merges));
    for (uint64_t i = 0; i < merges->n; i++) {
        json_array_append_new(list, text_of(lt_gguf_str_next(merges, &at)));
    }
    json_object_set_new(json_object_get(root, "model"), "ignore_merges",
                        json_boolean(ignore_merges));
    json_object_set_new(root, "post_processor", post_processor(s, add_bos));
    json_object_set_new(root, "decoder", byte_level(true));
    return LT_OK;
}

/* ---- SentencePiece ---- */

typedef struct {
    const char *text; /* Text of the piece, in the file; its left part has `left` bytes. */
    size_t left, bytes;
    int left_chars, right_chars;
    float score;
} merge;

static int by_rank(const void *a, const void *b) {
    const merge *x = a, *y = b;
    if (x->score != y->score) {
        return x->score > y->score ? -1 : 1;
    }
    if (x->left_chars != y->left_chars) {
        return y->left_chars - x->left_chars;
    }
    if (x->right_chars != y->right_chars) {
        return y->right_chars - x->right_chars;
    }
    return x->text < y->text ? -1 : x->text > y->text; /* Otherwise in the order of the file. */
}

static bool is_piece(const save *s, const char *text, size_t n) {
    return json_object_getn(s->vocab, text, n) != NULL;
}

/* Add all ways to split a piece into two. */
static lt_err add_merges(const save *s, lt_gguf_str piece, float score, merge **list, size_t *n,
                         size_t *room) {
    int chars = 0, before = 0;
    for (size_t i = 0; i < piece.bytes; i++) {
        chars += ((unsigned char)piece.data[i] & 0xC0) != 0x80;
    }
    for (size_t cut = 1; cut < piece.bytes; cut++) {
        before += ((unsigned char)piece.data[cut - 1] & 0xC0) != 0x80;
        if (((unsigned char)piece.data[cut] & 0xC0) == 0x80 || !is_piece(s, piece.data, cut) ||
            !is_piece(s, piece.data + cut, piece.bytes - cut)) {
            continue;
        }
        if (*n == *room) {
            const size_t more = *room > 0 ? 2 * *room : 4096;
            merge *grown = realloc(*list, more * sizeof *grown);
            if (grown == NULL) {
                LT_FAIL(LT_ERR_OOM, "%s: %zu merges", s->g->name, more);
            }
            *list = grown;
            *room = more;
        }
        (*list)[(*n)++] = (merge){piece.data, cut, piece.bytes, before, chars - before, score};
    }
    return LT_OK;
}

static lt_err put_merges(const save *s, json_t *to) {
    lt_err err = LT_OK;
    const lt_gguf_kv *scores = NULL;
    merge *list = NULL;
    size_t n = 0, room = 0, at = 0;

    LT_TRY(lt_gguf_get_array(s->g, "tokenizer.ggml.scores", LT_GGUF_F32, &scores));
    if (scores->n != s->tokens->n) {
        LT_FAIL(LT_ERR_FORMAT, "%s: tokens and scores differ in number", s->g->name);
    }
    for (uint64_t id = 0; id < s->tokens->n; id++) {
        const lt_gguf_str piece = lt_gguf_str_next(s->tokens, &at);
        if (type_of(s, id) == LT_SCORED_NORMAL) {
            LT_TRY_DONE(
                add_merges(s, piece, (float)lt_gguf_elem_f64(scores, id), &list, &n, &room));
        }
    }
    if (n > 0) {
        qsort(list, n, sizeof *list, by_rank);
    }
    for (size_t i = 0; i < n; i++) {
        json_t *two = json_array();
        json_array_append_new(two, json_stringn(list[i].text, list[i].left));
        json_array_append_new(
            two, json_stringn(list[i].text + list[i].left, list[i].bytes - list[i].left));
        json_array_append_new(to, two);
    }
done:
    free(list);
    return err;
}

static json_t *replace(const char *from, const char *to) {
    return json_pack("{s:s, s:{s:s}, s:s}", "type", "Replace", "pattern", "String", from, "content",
                     to);
}

/* Convert model "llama". */
static lt_err sentencepiece_bpe(save *s, json_t *root) {
    const bool prefix = flag(s, "tokenizer.ggml.add_space_prefix", true);
    const lt_gguf_kv *charsmap = lt_gguf_find(s->g, "tokenizer.ggml.precompiled_charsmap");
    json_t *normal = json_array(), *decode = json_array(), *merges = json_array();
    int64_t unk = -1;
    const char *unknown = named_token(s, "tokenizer.ggml.unknown_token_id", &unk);

    json_object_set_new(root, "normalizer",
                        json_pack("{s:s, s:o}", "type", "Sequence", "normalizers", normal));
    json_object_set_new(root, "decoder",
                        json_pack("{s:s, s:o}", "type", "Sequence", "decoders", decode));
    json_object_set_new(root, "model",
                        json_pack("{s:s, s:n, s:s?, s:n, s:n, s:b, s:b, s:b, s:O, s:o}", "type",
                                  "BPE", "dropout", "unk_token", unknown,
                                  "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk", 1,
                                  "byte_fallback", 1, "ignore_merges", 0, "vocab", s->vocab,
                                  "merges", merges));
    if (flag(s, "tokenizer.ggml.remove_extra_whitespaces", false) ||
        (charsmap != NULL && charsmap->n > 0)) {
        LT_FAIL(LT_ERR_UNSUPPORTED, "%s: its SentencePiece normalises texts", s->g->name);
    }
    if (prefix) {
        json_array_append_new(normal, json_pack("{s:s, s:s}", "type", "Prepend", "prepend", SPACE));
    }
    json_array_append_new(normal, replace(" ", SPACE));
    json_array_append_new(decode, replace(SPACE, " "));
    json_array_append_new(decode, json_pack("{s:s}", "type", "ByteFallback"));
    json_array_append_new(decode, json_pack("{s:s}", "type", "Fuse"));
    if (prefix) {
        json_array_append_new(decode, json_pack("{s:s, s:s, s:i, s:i}", "type", "Strip", "content",
                                                " ", "start", 1, "stop", 0));
    }
    json_object_set_new(root, "pre_tokenizer", json_null());
    json_object_set_new(root, "post_processor", post_processor(s, true));
    return put_merges(s, merges);
}

/* ---- Files ---- */

static void fill_config(save *s) {
    static const char *const names[][2] = {{"bos_token", "tokenizer.ggml.bos_token_id"},
                                           {"eos_token", "tokenizer.ggml.eos_token_id"},
                                           {"pad_token", "tokenizer.ggml.padding_token_id"},
                                           {"unk_token", "tokenizer.ggml.unknown_token_id"}};
    lt_gguf_str template;
    json_object_set_new(s->config, "tokenizer_class", json_string("PreTrainedTokenizerFast"));
    json_object_set_new(s->config, "clean_up_tokenization_spaces", json_false());
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        int64_t id;
        const char *text = named_token(s, names[i][1], &id);
        if (text != NULL) {
            json_object_set_new(s->config, names[i][0], json_string(text));
        }
    }
    if (lt_gguf_get_str(s->g, "tokenizer.chat_template", &template) == LT_OK) {
        json_object_set_new(s->config, "chat_template", text_of(template));
    }
}

static lt_err put_file(const json_t *value, const char *folder, const char *name) {
    char path[LT_PATH_BYTES];
    char *text = json_dumps(value, JSON_INDENT(1));
    lt_err err = text != NULL ? lt_path_join(path, folder, name)
                              : lt_error_set(LT_ERR_OOM, "%s", name);
    if (err == LT_OK) {
        err = lt_file_write_atomic(path, text, strlen(text));
    }
    free(text);
    return err;
}

lt_err lt_tokenizer_save(const char *gguf_path, const char *folder) {
    lt_err err = LT_OK;
    lt_gguf *g = NULL;
    lt_gguf_str model;
    save s = {.vocab = json_object(), .added = json_array(), .config = json_object()};
    json_t *root = json_pack("{s:s, s:n, s:n, s:O}", "version", "1.0", "truncation", "padding",
                             "added_tokens", s.added);

    LT_TRY_DONE(lt_gguf_open(&g, gguf_path));
    s.g = g;
    LT_TRY_DONE(lt_gguf_get_str(g, "tokenizer.ggml.model", &model));
    LT_TRY_DONE(read_tokens(&s));
    if (lt_gguf_str_is(model, "gpt2")) {
        LT_TRY_DONE(byte_level_bpe(&s, root));
    } else if (lt_gguf_str_is(model, "llama")) {
        LT_TRY_DONE(sentencepiece_bpe(&s, root));
    } else {
        LT_FAIL_DONE(LT_ERR_UNSUPPORTED, "%s: a tokenizer of kind '%.*s'", gguf_path,
                     (int)model.bytes, model.data);
    }
    fill_config(&s);
    LT_TRY_DONE(put_file(root, folder, "tokenizer.json"));
    LT_TRY_DONE(put_file(s.config, folder, "tokenizer_config.json"));
done:
    lt_gguf_close(g);
    json_decref(root);
    json_decref(s.vocab);
    json_decref(s.added);
    json_decref(s.config);
    return err;
}
