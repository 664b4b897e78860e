/* gguf_tokenizer.c: see gguf_tokenizer.h.
 *
 * It writes arrays of n_ids: tokens (text), token_type (SentencePiece's numbers) and, for
 * "llama", scores; for "gpt2", merges and llama.cpp's name of the pre-tokenizer. That name is
 * found by loading the tokenizer: it follows from the scanner that its pattern is mapped to (the
 * reverse of the table in tokenizer/gguf.c). A tokenizer.json of SentencePiece's kind has merges
 * but no scores: the piece that a merge of rank r makes gets the score -r, so that the same pairs
 * win. */
#include "data/tokenizer/gguf_tokenizer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "data/tokenizer/impl.h"
#include "data/tokenizer/scored.h"

#define JSON_BYTES_MAX ((size_t)256 << 20)
#define BIN_BYTES_MAX  ((size_t)64 << 20)

typedef struct {
    lt_gguf_out *o;
    const char *path;
    int64_t n_ids;
    const int32_t *ends; /* (n_ends) ids of the model that end a text */
    int n_ends;
    char **text; /* (n_ids) owned; NULL: there is no token */
    int32_t *type;
    float *score;
} vocab;

static lt_err vocab_open(vocab *v) {
    v->text = calloc((size_t)v->n_ids, sizeof *v->text);
    v->type = calloc((size_t)v->n_ids, sizeof *v->type);
    v->score = calloc((size_t)v->n_ids, sizeof *v->score);
    if (v->text == NULL || v->type == NULL || v->score == NULL) {
        LT_FAIL(LT_ERR_OOM, "%s: %lld tokens", v->path, (long long)v->n_ids);
    }
    return LT_OK;
}

static void vocab_close(vocab *v) {
    for (int64_t i = 0; v->text != NULL && i < v->n_ids; i++) {
        free(v->text[i]);
    }
    free(v->text);
    free(v->type);
    free(v->score);
}

static lt_err vocab_set(vocab *v, int64_t id, const char *text, lt_scored_type type, float score) {
    if (id < 0 || id >= v->n_ids) {
        LT_FAIL(LT_ERR_ARG,
                "%s: token %lld lies outside the model's vocabulary of %lld: they do not belong "
                "together",
                v->path, (long long)id, (long long)v->n_ids);
    }
    free(v->text[id]);
    v->text[id] = strdup(text);
    v->type[id] = (int32_t)type;
    v->score[id] = score;
    return v->text[id] != NULL ? LT_OK : lt_error_set(LT_ERR_OOM, "%s: tokens", v->path);
}

static void put_vocab(const vocab *v, bool scores) {
    lt_gguf_out_strings(v->o, "tokenizer.ggml.tokens", (uint64_t)v->n_ids);
    for (int64_t i = 0; i < v->n_ids; i++) {
        char hole[32];
        const int n = snprintf(hole, sizeof hole, "[PAD%lld]", (long long)i);
        const bool is_hole = v->text[i] == NULL;
        lt_gguf_out_string(v->o, is_hole ? hole : v->text[i],
                           is_hole ? (size_t)n : strlen(v->text[i]));
        v->type[i] = is_hole ? LT_SCORED_UNUSED : v->type[i];
    }
    if (scores) {
        lt_gguf_out_array(v->o, "tokenizer.ggml.scores", LT_GGUF_F32, v->score, (uint64_t)v->n_ids);
    }
    lt_gguf_out_array(v->o, "tokenizer.ggml.token_type", LT_GGUF_I32, v->type, (uint64_t)v->n_ids);
}

static void put_id(lt_gguf_out *o, const char *key, uint32_t id) {
    if (id != LT_NO_ID) {
        lt_gguf_out_u32(o, key, id);
    }
}

static bool knows_end(const lt_tokenizer *t, uint32_t id) {
    for (size_t i = 0; i < t->ends.n; i++) {
        if (t->ends.data[i] == id) {
            return true;
        }
    }
    return false;
}

/* GGUF has three keys for ids that end a text; llama.cpp finds further ones by name. Ids of the
 * model that it would not find get keys that are free. */
static void put_ends(const vocab *v, const lt_tokenizer *t) {
    uint32_t ids[] = {t->eos, t->eot, lt_tokenizer_find(t, "<|eom_id|>", 10)};
    for (int i = 0; i < v->n_ends; i++) {
        const uint32_t id = (uint32_t)v->ends[i];
        for (int k = 1; k < 3 && !knows_end(t, id) && id != ids[1]; k++) {
            if (ids[k] == LT_NO_ID) {
                ids[k] = id;
            }
        }
    }
    put_id(v->o, "tokenizer.ggml.eos_token_id", ids[0]);
    put_id(v->o, "tokenizer.ggml.eot_token_id", ids[1]);
    put_id(v->o, "tokenizer.ggml.eom_token_id", ids[2]);
}

static void put_ids(const vocab *v, const lt_tokenizer *t) {
    const lt_tokenizer_info info = lt_tokenizer_describe(t);
    lt_gguf_out *o = v->o;
    put_id(o, "tokenizer.ggml.bos_token_id", t->bos);
    put_ends(v, t);
    put_id(o, "tokenizer.ggml.padding_token_id", t->pad);
    put_id(o, "tokenizer.ggml.unknown_token_id", t->unk);
    lt_gguf_out_bool(o, "tokenizer.ggml.add_bos_token", info.adds_bos);
    lt_gguf_out_bool(o, "tokenizer.ggml.add_eos_token", info.adds_eos);
}

/* ---- tokenizer.json ---- */

/* llama.cpp's name for the pre-tokenizer, preferably one for which it treats merges in the same
 * way. NULL: llama.cpp has no name for it. */
static const char *pre_name(const lt_tokenizer *t) {
    static const struct {
        lt_scan_kind kind;
        const char *name;
    } names[] = {
        {LT_SCAN_CL100K, "llama-bpe"},      {LT_SCAN_CL100K, "dbrx"},  {LT_SCAN_QWEN2, "qwen2"},
        {LT_SCAN_SMOLLM, "smollm"},         {LT_SCAN_GPT2, "gpt-2"},   {LT_SCAN_O200K, "gpt-4o"},
        {LT_SCAN_DEEPSEEK3, "deepseek-v3"}, {LT_SCAN_TEKKEN, "tekken"}};
    const char *other = NULL;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const char *patterns[LT_GGUF_PATTERNS];
        bool ignore_merges, add_bos;
        if (t->pretok.n_cuts != 0 || t->pretok.scan != lt_scan_function(names[i].kind) ||
            !lt_gguf_pre_patterns(names[i].name, patterns, &ignore_merges, &add_bos)) {
            continue;
        }
        if (t->bpe.ignore_merges == ignore_merges) {
            return names[i].name;
        }
        other = names[i].name;
    }
    return other;
}

/* Say how merges are treated if a reader would not infer it from the name. */
static void put_ignore_merges(lt_gguf_out *o, const lt_tokenizer *t, const char *pre) {
    const char *patterns[LT_GGUF_PATTERNS];
    bool ignore_merges, add_bos;
    if (lt_gguf_pre_patterns(pre, patterns, &ignore_merges, &add_bos) &&
        ignore_merges != t->bpe.ignore_merges) {
        lt_gguf_out_bool(o, LT_GGUF_IGNORE_MERGES, t->bpe.ignore_merges);
    }
}

static lt_err read_json_tokens(vocab *v, const json_t *root, const lt_tokenizer *t) {
    const json_t *model = json_object_get(root, "model");
    const char *text;
    json_t *value;
    size_t i;

    if (!json_is_object(json_object_get(model, "vocab"))) {
        LT_FAIL(LT_ERR_UNSUPPORTED, "%s: GGUF takes BPE; this vocabulary is another model's",
                v->path);
    }
    json_object_foreach(json_object_get(model, "vocab"), text, value) {
        uint8_t byte;
        const bool is_byte = !t->byte_level && lt_piece_is_byte(text, strlen(text), &byte);
        LT_TRY(vocab_set(v, json_integer_value(value), text,
                         is_byte ? LT_SCORED_BYTE : LT_SCORED_NORMAL, -1e9f));
    }
    json_array_foreach(json_object_get(root, "added_tokens"), i, value) {
        const int64_t id = json_integer_value(json_object_get(value, "id"));
        text = json_string_value(json_object_get(value, "content"));
        const bool special = json_is_true(json_object_get(value, "special"));
        if (text != NULL) {
            LT_TRY(vocab_set(v, id, text,
                             (uint32_t)id == t->unk && !t->byte_level ? LT_SCORED_UNKNOWN
                             : special                                ? LT_SCORED_CONTROL
                                                                      : LT_SCORED_USER,
                             0.0f));
        }
    }
    return LT_OK;
}

/* Split a merge, which is a string "left right" or a pair, into its two pieces. */
static bool merge_at(const json_t *merge, const char **left, size_t *left_n, const char **right) {
    const char *text = json_string_value(merge);
    if (text != NULL) {
        const char *space = strchr(text + (text[0] == ' '), ' ');
        *left = text;
        *left_n = space != NULL ? (size_t)(space - text) : 0;
        *right = space != NULL ? space + 1 : NULL;
        return space != NULL;
    }
    *left = json_string_value(json_array_get(merge, 0));
    *right = json_string_value(json_array_get(merge, 1));
    *left_n = *left != NULL ? strlen(*left) : 0;
    return *left != NULL && *right != NULL;
}

static lt_err put_json_merges(vocab *v, const json_t *merges) {
    json_t *merge;
    size_t i;
    lt_gguf_out_strings(v->o, "tokenizer.ggml.merges", json_array_size(merges));
    json_array_foreach(merges, i, merge) {
        char both[512];
        const char *left, *right;
        size_t left_n;
        if (!merge_at(merge, &left, &left_n, &right)) {
            LT_FAIL(LT_ERR_FORMAT, "%s: merge %zu is not two pieces", v->path, i);
        }
        const int n = snprintf(both, sizeof both, "%.*s %s", (int)left_n, left, right);
        if (n >= (int)sizeof both) {
            LT_FAIL(LT_ERR_LIMIT, "%s: merge %zu has %d bytes", v->path, i, n);
        }
        lt_gguf_out_string(v->o, both, (size_t)n);
    }
    return LT_OK;
}

/* Set scores: the piece of the merge of rank r has the score -r. */
static lt_err score_merges(vocab *v, const json_t *merges, const lt_tokenizer *t) {
    json_t *merge;
    size_t i;
    json_array_foreach(merges, i, merge) {
        char both[512];
        const char *left, *right;
        size_t left_n;
        if (!merge_at(merge, &left, &left_n, &right)) {
            LT_FAIL(LT_ERR_FORMAT, "%s: merge %zu is not two pieces", v->path, i);
        }
        const int n = snprintf(both, sizeof both, "%.*s%s", (int)left_n, left, right);
        const uint32_t id = n < (int)sizeof both ? lt_vocab_find(&t->vocab, both, (size_t)n)
                                                 : LT_NO_ID;
        if (id != LT_NO_ID && (int64_t)id < v->n_ids && v->score[id] == -1e9f) {
            v->score[id] = -(float)i;
        }
    }
    return LT_OK;
}

/* The default chat template: a string, the entry "default" of a list, or a separate file. */
static lt_err put_template(lt_gguf_out *o, const char *folder) {
    char path[LT_PATH_BYTES], *text = NULL;
    json_t *config = NULL, *row;
    size_t bytes, i;

    LT_TRY(lt_path_join(path, folder, "chat_template.jinja"));
    if (lt_file_exists(path)) {
        LT_TRY(lt_file_read(&text, &bytes, path, (size_t)1 << 20));
        lt_gguf_out_str(o, "tokenizer.chat_template", text);
        free(text);
        return LT_OK;
    }
    LT_TRY(lt_path_join(path, folder, "tokenizer_config.json"));
    if (!lt_file_exists(path)) {
        return LT_OK;
    }
    LT_TRY(lt_json_load(&config, path, JSON_BYTES_MAX));
    const json_t *t = json_object_get(config, "chat_template");
    const char *chosen = json_string_value(t);
    json_array_foreach(t, i, row) {
        const char *name = json_string_value(json_object_get(row, "name"));
        if (name != NULL && strcmp(name, "default") == 0) {
            chosen = json_string_value(json_object_get(row, "template"));
        }
    }
    if (chosen != NULL) {
        lt_gguf_out_str(o, "tokenizer.chat_template", chosen);
    }
    json_decref(config);
    return LT_OK;
}

static lt_err put_json(vocab *v, const char *json_path, const char *open_path) {
    lt_err err = LT_OK;
    json_t *root = NULL;
    lt_tokenizer *t = NULL;

    LT_TRY_DONE(lt_tokenizer_open(&t, open_path, NULL));
    LT_TRY_DONE(lt_json_load(&root, json_path, JSON_BYTES_MAX));
    const json_t *merges = json_object_get(json_object_get(root, "model"), "merges");
    const char *pre = pre_name(t);
    if (t->model != LT_MODEL_BPE || !json_is_array(merges) || (t->byte_level && pre == NULL)) {
        LT_FAIL_DONE(LT_ERR_UNSUPPORTED,
                     "%s: a %s tokenizer with this pre-tokenizer has no name in GGUF", json_path,
                     t->kind);
    }
    LT_TRY_DONE(read_json_tokens(v, root, t));
    lt_gguf_out_str(v->o, "tokenizer.ggml.model", t->byte_level ? "gpt2" : "llama");
    lt_gguf_out_str(v->o, "tokenizer.ggml.pre", t->byte_level ? pre : "default");
    if (t->byte_level) {
        put_ignore_merges(v->o, t, pre);
        put_vocab(v, false);
        LT_TRY_DONE(put_json_merges(v, merges));
    } else {
        LT_TRY_DONE(score_merges(v, merges, t));
        put_vocab(v, true);
    }
    put_ids(v, t);
done:
    json_decref(root);
    lt_tokenizer_close(t);
    return err;
}

/* ---- llama2.c ---- */

/* Set a token, with U+2581 for spaces; tokens 1 and 2 are "\n<s>\n" and "\n</s>\n" in the
 * file. */
static lt_err set_llama2c(vocab *v, int64_t id, const char *text, size_t n, float score) {
    char piece[1024];
    size_t at = 0;
    uint8_t byte;
    for (size_t i = 0; i < n && at + 4 < sizeof piece; i++) {
        if (text[i] == ' ') {
            memcpy(piece + at, "\xE2\x96\x81", 3);
            at += 3;
        } else {
            piece[at++] = text[i];
        }
    }
    piece[at] = '\0';
    if (id < 3) {
        static const char *const names[] = {"<unk>", "<s>", "</s>"};
        return vocab_set(v, id, names[id], id == 0 ? LT_SCORED_UNKNOWN : LT_SCORED_CONTROL, 0.0f);
    }
    const bool is_byte = id < 259 && lt_piece_is_byte(text, n, &byte);
    return vocab_set(v, id, piece, is_byte ? LT_SCORED_BYTE : LT_SCORED_NORMAL, score);
}

static lt_err put_llama2c(vocab *v) {
    lt_err err = LT_OK;
    char *data = NULL;
    size_t bytes, at = 4;
    lt_tokenizer *t = NULL;

    LT_TRY_DONE(lt_tokenizer_open(&t, v->path, NULL)); /* This checks the file. */
    LT_TRY_DONE(lt_file_read(&data, &bytes, v->path, BIN_BYTES_MAX));
    for (int64_t id = 0; at + 8 <= bytes; id++) {
        float score;
        int32_t n;
        memcpy(&score, data + at, 4);
        memcpy(&n, data + at + 4, 4);
        at += 8;
        LT_ASSERT(n >= 0 && (size_t)n <= bytes - at);
        LT_TRY_DONE(set_llama2c(v, id, data + at, (size_t)n, score));
        at += (size_t)n;
    }
    lt_gguf_out_str(v->o, "tokenizer.ggml.model", "llama");
    lt_gguf_out_str(v->o, "tokenizer.ggml.pre", "default");
    put_vocab(v, true);
    put_ids(v, t);
done:
    free(data);
    lt_tokenizer_close(t);
    return err;
}

static lt_err copy_gguf(lt_gguf_out *o, const char *path, int64_t n_ids) {
    lt_gguf *g = NULL;
    const lt_gguf_kv *tokens = NULL;
    lt_err err = LT_OK;
    LT_TRY(lt_gguf_open(&g, path));
    LT_TRY_DONE(lt_gguf_get_array(g, "tokenizer.ggml.tokens", LT_GGUF_STR, &tokens));
    if (tokens->n != (uint64_t)n_ids) {
        LT_FAIL_DONE(LT_ERR_ARG, "%s: %llu tokens, but the model's vocabulary has %lld", path,
                     (unsigned long long)tokens->n, (long long)n_ids);
    }
    for (uint64_t i = 0; i < g->n_kvs; i++) {
        if (g->kvs[i].key.bytes > 10 && memcmp(g->kvs[i].key.data, "tokenizer.", 10) == 0) {
            lt_gguf_out_copy(o, &g->kvs[i]);
        }
    }
done:
    lt_gguf_close(g);
    return err;
}

lt_err lt_gguf_put_tokenizer(lt_gguf_out *o, const char *path, int64_t n_ids, const int32_t *ends,
                             int n_ends) {
    vocab v = {.o = o, .path = path, .n_ids = n_ids, .ends = ends, .n_ends = n_ends};
    char json[LT_PATH_BYTES];
    lt_err err = LT_OK;

    if (lt_path_has_suffix(path, ".gguf")) {
        return copy_gguf(o, path, n_ids);
    }
    LT_TRY_DONE(vocab_open(&v));
    if (lt_file_is_dir(path)) {
        LT_TRY_DONE(lt_path_join(json, path, "tokenizer.json"));
        if (!lt_file_exists(json)) {
            LT_FAIL_DONE(LT_ERR_NOT_FOUND, "%s holds no tokenizer.json: give --tokenizer", path);
        }
        LT_TRY_DONE(put_json(&v, json, path));
        LT_TRY_DONE(put_template(o, path));
    } else if (lt_path_has_suffix(path, ".json")) {
        LT_TRY_DONE(put_json(&v, path, path));
    } else {
        LT_TRY_DONE(put_llama2c(&v));
    }
done:
    vocab_close(&v);
    return err;
}
