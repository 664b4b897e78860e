/* tokenizer/json_parts.c: reads the small parts of tokenizer.json: maps its normalizers,
 * pre-tokenizers, post-processors and decoders to ours. A component that we do not have is
 * refused by name, because without it ids would silently differ. */
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/json.h"
#include "data/tokenizer/regex.h"
#include "data/tokenizer/json.h"

#define MAX_LEAVES 64
#define MAX_NEST   8

static lt_err parse(lt_slice s, const char *name, json_t **out) {
    json_error_t why;
    *out = NULL;
    if (s.data == NULL || (s.n == 4 && memcmp(s.data, "null", 4) == 0)) {
        return LT_OK;
    }
    *out = lt_json_loadb(s.data, s.n, JSON_DECODE_ANY | JSON_ALLOW_NUL, &why);
    if (*out == NULL) {
        LT_FAIL(LT_ERR_FORMAT, "%s: line %d of a part: %s", name, why.line, why.text);
    }
    return LT_OK;
}

const char *lt_json_type_of(const json_t *o) {
    const char *type = json_string_value(json_object_get(o, "type"));
    return type != NULL ? type : "";
}

/* List the components of nested "Sequence"s, in order. key: "normalizers", "pretokenizers",
 * "processors" or "decoders". */
static lt_err flatten(const json_t *root, const char *key, const json_t *leaves[MAX_LEAVES], int *n,
                      const char *name) {
    const json_t *lists[MAX_NEST];
    size_t at[MAX_NEST];
    int depth = 0;
    const json_t *one = root;
    *n = 0;
    while (one != NULL) {
        if (strcmp(lt_json_type_of(one), "Sequence") == 0) {
            if (depth == MAX_NEST || !json_is_array(json_object_get(one, key))) {
                LT_FAIL(LT_ERR_FORMAT, "%s: a Sequence without '%s', or too deep", name, key);
            }
            lists[depth] = json_object_get(one, key);
            at[depth++] = 0;
        } else if (*n == MAX_LEAVES) {
            LT_FAIL(LT_ERR_LIMIT, "%s: more than %d '%s'", name, MAX_LEAVES, key);
        } else {
            leaves[(*n)++] = one;
        }
        while (depth > 0 && at[depth - 1] >= json_array_size(lists[depth - 1])) {
            depth--;
        }
        one = depth > 0 ? json_array_get(lists[depth - 1], at[depth - 1]++) : NULL;
    }
    return LT_OK;
}

static const lt_json_field *field(const lt_json_model *m, const char *key) {
    for (int i = 0; i < m->n_fields; i++) {
        if (strcmp(m->fields[i].key, key) == 0) {
            return &m->fields[i];
        }
    }
    return NULL;
}

static bool is_true(const lt_json_model *m, const char *key) {
    const lt_json_field *f = field(m, key);
    return f != NULL && lt_slice_is(f->value, "true");
}

/* Copy a string field to out[0..room); "" if it is absent or null. */
static lt_err string_field(const lt_tokenizer *t, const lt_json_model *m, const char *key,
                           char *out, size_t room) {
    lt_err err = LT_OK;
    const lt_json_field *f = field(m, key);
    lt_slice s;
    lt_json_pull j;
    out[0] = '\0';
    if (f == NULL || f->value.n == 0 || f->value.data[0] != '"') {
        return LT_OK;
    }
    j = lt_json_pull_over(f->value.data, f->value.n, t->name);
    LT_TRY_DONE(lt_json_pull_string(&j, &s));
    if (s.n >= room) {
        LT_FAIL_DONE(LT_ERR_LIMIT, "%s: '%s' has %zu bytes", t->name, key, s.n);
    }
    memcpy(out, s.data, s.n);
    out[s.n] = '\0';
done:
    lt_json_pull_close(&j);
    return err;
}

static bool affix_free(const lt_json_model *m) {
    const char *const keys[2] = {"continuing_subword_prefix", "end_of_word_suffix"};
    for (int i = 0; i < 2; i++) {
        const lt_json_field *f = field(m, keys[i]);
        if (f != NULL && !lt_slice_is(f->value, "null") && !lt_slice_is(f->value, "\"\"")) {
            return false;
        }
    }
    return true;
}

bool lt_json_model_has(const lt_json_model *m, const char *key) {
    return field(m, key) != NULL;
}

static lt_err behaviour_of(const json_t *o, lt_cut_behaviour *out, const char *name) {
    static const char *const names[] = {"Isolated", "Removed", "MergedWithPrevious",
                                        "MergedWithNext", "Contiguous"};
    const char *text = json_string_value(json_object_get(o, "behavior"));
    for (int i = 0; i < 5 && text != NULL; i++) {
        if (strcmp(text, names[i]) == 0) {
            *out = (lt_cut_behaviour)i;
            return LT_OK;
        }
    }
    LT_FAIL(LT_ERR_FORMAT, "%s: split behaviour '%s'", name, text != NULL ? text : "(none)");
}

lt_err lt_json_open_regex(const lt_tokenizer *t, const json_t *pattern, lt_regex **out) {
    const size_t n = json_string_length(pattern);
    return lt_regex_open(out, n > 0 ? json_string_value(pattern) : "(?:)", n > 0 ? n : 4,
                         LT_REGEX_ONIGURUMA, t->name);
}

static lt_err add_split(lt_tokenizer *t, const json_t *o) {
    const json_t *pattern = json_object_get(o, "pattern");
    const json_t *regex = json_object_get(pattern, "Regex"),
                 *literal = json_object_get(pattern, "String");
    const bool invert = json_is_true(json_object_get(o, "invert"));
    lt_cut cut = {.kind = LT_CUT_LITERAL, .invert = invert};

    LT_TRY(behaviour_of(o, &cut.behaviour, t->name));
    if (json_string_length(regex) > 0) {
        return lt_pretok_add_regex(&t->pretok, json_string_value(regex), json_string_length(regex),
                                   LT_REGEX_ONIGURUMA, cut.behaviour, invert, t->name);
    }
    if (!json_is_string(literal) && !json_is_string(regex)) {
        LT_FAIL(LT_ERR_FORMAT, "%s: a Split without a pattern", t->name);
    }
    if (json_string_length(literal) == 0) {
        cut.kind = LT_CUT_REGEX;
        LT_TRY(lt_json_open_regex(t, literal, &cut.regex));
        return lt_pretok_add(&t->pretok, cut);
    }
    LT_TRY(lt_text_put(&cut.literal, json_string_value(literal), json_string_length(literal)));
    return lt_pretok_add(&t->pretok, cut);
}

static lt_err add_metaspace(lt_tokenizer *t, const json_t *o) {
    const char *scheme = json_string_value(json_object_get(o, "prepend_scheme"));
    const json_t *replacement = json_object_get(o, "replacement");
    lt_cut cut = {.kind = LT_CUT_METASPACE, .split = !json_is_false(json_object_get(o, "split"))};

    if (scheme == NULL) { /* The file is older than prepend_scheme. */
        cut.prepend = json_is_false(json_object_get(o, "add_prefix_space")) ? LT_PREPEND_NEVER
                                                                            : LT_PREPEND_ALWAYS;
    } else {
        cut.prepend = strcmp(scheme, "always") == 0  ? LT_PREPEND_ALWAYS
                      : strcmp(scheme, "first") == 0 ? LT_PREPEND_FIRST
                                                     : LT_PREPEND_NEVER;
    }
    if (!json_is_string(replacement) || json_string_length(replacement) == 0) {
        LT_FAIL(LT_ERR_FORMAT, "%s: a Metaspace without replacement", t->name);
    }
    LT_TRY(
        lt_text_put(&cut.literal, json_string_value(replacement), json_string_length(replacement)));
    return lt_pretok_add(&t->pretok, cut);
}

/* If the vocabulary is kept as raw bytes, the mapping to printable characters is left out on both
 * sides. */
static lt_err add_byte_level(lt_tokenizer *t, const json_t *o) {
    t->maps_bytes = true;
    if (json_is_true(json_object_get(o, "add_prefix_space"))) {
        LT_TRY(lt_pretok_add(&t->pretok, (lt_cut){.kind = LT_CUT_PREFIX_SPACE}));
    }
    if (!json_is_false(json_object_get(o, "use_regex"))) {
        LT_TRY(lt_pretok_add(
            &t->pretok, (lt_cut){.kind = LT_CUT_SCAN, .scan = lt_scan_function(LT_SCAN_GPT2)}));
    }
    return t->byte_level ? LT_OK : lt_pretok_add(&t->pretok, (lt_cut){.kind = LT_CUT_BYTE_MAP});
}

static lt_err add_pre_tokenizer(lt_tokenizer *t, const json_t *o) {
    const char *type = lt_json_type_of(o);
    lt_cut cut = {0};
    if (strcmp(type, "Split") == 0) {
        return add_split(t, o);
    }
    if (strcmp(type, "ByteLevel") == 0) {
        return add_byte_level(t, o);
    }
    if (strcmp(type, "Metaspace") == 0) {
        return add_metaspace(t, o);
    }
    if (strcmp(type, "Digits") == 0) {
        cut = (lt_cut){.kind = LT_CUT_CHARS, .flags = LT_UNICODE_NUMERIC};
        cut.behaviour = json_is_true(json_object_get(o, "individual_digits")) ? LT_CUT_ISOLATED
                                                                              : LT_CUT_CONTIGUOUS;
    } else if (strcmp(type, "Punctuation") == 0) {
        cut = (lt_cut){.kind = LT_CUT_CHARS, .flags = LT_UNICODE_PUNCT_SPLIT};
        if (json_object_get(o, "behavior") != NULL) {
            LT_TRY(behaviour_of(o, &cut.behaviour, t->name));
        }
    } else if (strcmp(type, "Whitespace") == 0) {
        cut.kind = LT_CUT_WORDS;
    } else if (strcmp(type, "WhitespaceSplit") == 0) {
        cut = (lt_cut){
            .kind = LT_CUT_CHARS, .flags = LT_UNICODE_SPACE, .behaviour = LT_CUT_REMOVED};
    } else if (strcmp(type, "BertPreTokenizer") == 0) {
        cut.kind = LT_CUT_BERT;
    } else if (strcmp(type, "UnicodeScripts") == 0) {
        cut.kind = LT_CUT_SCRIPTS;
    } else if (strcmp(type, "FixedLength") == 0) {
        const json_t *length = json_object_get(o, "length");
        cut = (lt_cut){.kind = LT_CUT_LENGTH, .length = 5};
        if (length != NULL && (!json_is_integer(length) || json_integer_value(length) < 1)) {
            LT_FAIL(LT_ERR_FORMAT, "%s: a FixedLength needs a length of at least 1", t->name);
        }
        cut.length = length != NULL ? (size_t)json_integer_value(length) : cut.length;
    } else if (strcmp(type, "CharDelimiterSplit") == 0) {
        const char *delimiter = json_string_value(json_object_get(o, "delimiter"));
        cut = (lt_cut){.kind = LT_CUT_LITERAL, .behaviour = LT_CUT_REMOVED};
        if (delimiter == NULL || delimiter[0] == '\0') {
            LT_FAIL(LT_ERR_FORMAT, "%s: a CharDelimiterSplit without delimiter", t->name);
        }
        LT_TRY(lt_text_put(&cut.literal, delimiter, strlen(delimiter)));
    } else {
        LT_FAIL(LT_ERR_UNSUPPORTED, "%s: pre-tokenizer '%s'", t->name, type);
    }
    return lt_pretok_add(&t->pretok, cut);
}

/* Whether the vocabulary can be kept as raw bytes. It can if the last pre-tokenizer is the only
 * ByteLevel, on a BPE without affixes or byte pieces: then printable characters and bytes
 * correspond one to one. In all other cases the steps are done exactly, on printable
 * characters. */
static bool bytes_will_do(const lt_tokenizer *t, const lt_json_parts *parts,
                          const json_t *const leaves[], int n) {
    int n_byte_level = 0;
    for (int i = 0; i < n; i++) {
        n_byte_level += strcmp(lt_json_type_of(leaves[i]), "ByteLevel") == 0;
    }
    return t->model == LT_MODEL_BPE && n_byte_level == 1 &&
           strcmp(lt_json_type_of(leaves[n - 1]), "ByteLevel") == 0 && affix_free(&parts->model) &&
           !is_true(&parts->model, "byte_fallback") &&
           (parts->normalizer.data == NULL ||
            memmem(parts->normalizer.data, parts->normalizer.n, "ByteLevel", 9) == NULL);
}

lt_err lt_json_parts_pre_tokenizer(lt_tokenizer *t, lt_json_parts *parts) {
    lt_err err = LT_OK;
    const json_t *leaves[MAX_LEAVES];
    json_t *root = NULL;
    int n = 0;

    if (parts->pre_tokenizer_read) {
        return LT_OK;
    }
    parts->pre_tokenizer_read = true;
    LT_TRY(parse(parts->pre_tokenizer, t->name, &root));
    LT_TRY_DONE(flatten(root, "pretokenizers", leaves, &n, t->name));
    t->byte_level = bytes_will_do(t, parts, leaves, n);
    for (int i = 0; i < n; i++) {
        LT_TRY_DONE(add_pre_tokenizer(t, leaves[i]));
    }
    lt_pretok_optimise(&t->pretok);
done:
    json_decref(root);
    return err;
}

static lt_err add_replace(lt_tokenizer *t, const json_t *o, lt_norm norm) {
    const json_t *pattern = json_object_get(o, "pattern"), *content = json_object_get(o, "content");
    const json_t *regex = json_object_get(pattern, "Regex"),
                 *literal = json_object_get(pattern, "String");
    norm.kind = LT_NORM_REPLACE;
    if (!json_is_string(content) || (!json_is_string(regex) && !json_is_string(literal))) {
        LT_FAIL(LT_ERR_FORMAT, "%s: a Replace without pattern or content", t->name);
    }
    if (json_is_string(regex) || json_string_length(literal) == 0) {
        LT_TRY(lt_json_open_regex(t, json_is_string(regex) ? regex : literal, &norm.regex));
    } else {
        LT_TRY(lt_text_put(&norm.from, json_string_value(literal), json_string_length(literal)));
    }
    LT_TRY(lt_text_put(&norm.to, json_string_value(content), json_string_length(content)));
    return lt_normalizer_add(&t->normalizer, norm);
}

/* Add the charsmap, which is in Base64. */
static lt_err add_charsmap(lt_tokenizer *t, const json_t *o) {
    lt_err err = LT_OK;
    const json_t *map = json_object_get(o, "precompiled_charsmap");
    lt_norm norm = {.kind = LT_NORM_CHARSMAP};
    lt_text raw = {0};

    if (!json_is_string(map)) {
        LT_FAIL(LT_ERR_FORMAT, "%s: a Precompiled normalizer without charsmap", t->name);
    }
    LT_TRY_DONE(lt_base64_decode(json_string_value(map), json_string_length(map), &raw, t->name));
    if (raw.n == 0) {
        goto done;
    }
    LT_TRY_DONE(lt_charsmap_open(&norm.charsmap, raw.data, raw.n, t->name));
    LT_TRY_DONE(lt_normalizer_add(&t->normalizer, norm));
done:
    lt_text_free(&raw);
    return err;
}

static lt_err add_normalizer(lt_tokenizer *t, const json_t *o) {
    static const char *const forms[] = {"NFC", "NFD", "NFKC", "NFKD"};
    const char *type = lt_json_type_of(o);
    lt_norm norm = {0};

    for (int i = 0; i < 4; i++) {
        if (strcmp(type, forms[i]) == 0) {
            norm.form = (lt_unicode_form)i;
            return lt_normalizer_add(&t->normalizer, norm);
        }
    }
    if (strcmp(type, "Replace") == 0) {
        return add_replace(t, o, norm);
    }
    if (strcmp(type, "Precompiled") == 0) {
        return add_charsmap(t, o);
    }
    if (strcmp(type, "Lowercase") == 0) {
        norm.kind = LT_NORM_LOWERCASE;
    } else if (strcmp(type, "Nmt") == 0) {
        norm.kind = LT_NORM_NMT;
    } else if (strcmp(type, "ByteLevel") == 0) {
        norm.kind = LT_NORM_BYTE_MAP;
    } else if (strcmp(type, "StripAccents") == 0) {
        norm.kind = LT_NORM_STRIP_ACCENTS;
    } else if (strcmp(type, "Strip") == 0) {
        norm.kind = LT_NORM_STRIP;
        norm.left = json_is_true(json_object_get(o, "strip_left"));
        norm.right = json_is_true(json_object_get(o, "strip_right"));
    } else if (strcmp(type, "Prepend") == 0) {
        const json_t *prepend = json_object_get(o, "prepend");
        norm.kind = LT_NORM_PREPEND;
        LT_TRY(json_is_string(prepend)
                   ? lt_text_put(&norm.to, json_string_value(prepend), json_string_length(prepend))
                   : LT_OK);
    } else if (strcmp(type, "BertNormalizer") == 0) {
        const json_t *accents = json_object_get(o, "strip_accents");
        norm.kind = LT_NORM_BERT;
        norm.clean = json_is_true(json_object_get(o, "clean_text"));
        norm.han = json_is_true(json_object_get(o, "handle_chinese_chars"));
        norm.lower = json_is_true(json_object_get(o, "lowercase"));
        norm.accents = json_is_boolean(accents) ? json_is_true(accents) : norm.lower;
    } else {
        LT_FAIL(LT_ERR_UNSUPPORTED, "%s: normalizer '%s'", t->name, type);
    }
    return lt_normalizer_add(&t->normalizer, norm);
}

static lt_err unk_field(lt_tokenizer *t, const lt_json_model *m, uint32_t *out) {
    char unk[256];
    lt_text raw = {0};
    bool mapped;
    lt_err err = LT_OK;
    LT_TRY(string_field(t, m, "unk_token", unk, sizeof unk));
    *out = LT_NO_ID;
    if (unk[0] != '\0') {
        LT_TRY_DONE(t->byte_level ? lt_tokenizer_unmap(unk, strlen(unk), &raw, &mapped)
                                  : lt_text_put(&raw, unk, strlen(unk)));
        *out = lt_vocab_find(&t->vocab, raw.data, raw.n);
    }
done:
    lt_text_free(&raw);
    return err;
}

lt_err lt_json_model_type(lt_tokenizer *t, const lt_json_model *m) {
    static const char *const names[] = {"BPE", "Unigram", "WordPiece", "WordLevel"};
    char type[64];
    LT_TRY(string_field(t, m, "type", type, sizeof type));
    if (type[0] == '\0') { /* The file is older than "type": infer it from the fields. */
        t->model = m->scored                                      ? LT_MODEL_UNIGRAM
                   : field(m, "max_input_chars_per_word") != NULL ? LT_MODEL_WORDPIECE
                                                                  : LT_MODEL_BPE;
        return LT_OK;
    }
    for (int i = 0; i < 4; i++) {
        if (strcmp(type, names[i]) == 0) {
            t->model = (lt_model_kind)i;
            return LT_OK;
        }
    }
    LT_FAIL(LT_ERR_UNSUPPORTED, "%s: model type '%s'", t->name, type);
}

bool lt_json_model_late(const lt_tokenizer *t, const lt_json_model *m, const lt_json_field *f) {
    return t->model == LT_MODEL_BPE &&
           ((strcmp(f->key, "byte_fallback") == 0 && is_true(m, f->key)) || !affix_free(m));
}

static lt_err apply_unigram(lt_tokenizer *t, const lt_json_model *m) {
    const lt_json_field *f = field(m, "unk_id");
    int64_t id = -1;
    t->unigram.byte_fallback = is_true(m, "byte_fallback");
    if (f != NULL && f->value.n > 0 && f->value.data[0] != 'n') {
        lt_json_pull j = lt_json_pull_over(f->value.data, f->value.n, t->name);
        LT_TRY(lt_json_pull_i64(&j, &id));
    }
    t->unigram.unk = id >= 0 && id < t->vocab.n ? (uint32_t)id : LT_NO_ID;
    t->unk = t->unigram.unk;
    return LT_OK;
}

static lt_err apply_words(lt_tokenizer *t, const lt_json_model *m) {
    const lt_json_field *f = field(m, "max_input_chars_per_word");
    int64_t most = -1;
    t->wordpiece.max_chars = 100;
    if (f != NULL) {
        lt_json_pull j = lt_json_pull_over(f->value.data, f->value.n, t->name);
        LT_TRY(lt_json_pull_i64(&j, &most));
        t->wordpiece.max_chars = most >= 0 && most < UINT32_MAX ? (uint32_t)most : 100;
    }
    LT_TRY(string_field(t, m, "continuing_subword_prefix", t->wordpiece.prefix,
                        sizeof t->wordpiece.prefix));
    LT_TRY(string_field(t, m, "unk_token", t->wordpiece.unk_name, sizeof t->wordpiece.unk_name));
    LT_TRY(unk_field(t, m, &t->wordpiece.unk));
    t->unk = t->wordpiece.unk;
    return LT_OK;
}

/* "dropout", which makes encoding random during training, is ignored: ids are those of dropout
 * 0. */
lt_err lt_json_model_apply(lt_tokenizer *t, lt_json_model *m) {
    const lt_json_field *unk = field(m, "unk_token");
    if (t->model == LT_MODEL_UNIGRAM) {
        return apply_unigram(t, m);
    }
    if (t->model != LT_MODEL_BPE) {
        return apply_words(t, m);
    }
    t->bpe.mode = t->byte_level ? LT_BPE_BYTES : LT_BPE_CHARS;
    t->bpe.ignore_merges = is_true(m, "ignore_merges");
    t->bpe.fuse_unk = is_true(m, "fuse_unk");
    t->bpe.byte_fallback = is_true(m, "byte_fallback");
    LT_TRY(string_field(t, m, "continuing_subword_prefix", t->bpe.prefix, sizeof t->bpe.prefix));
    LT_TRY(string_field(t, m, "end_of_word_suffix", t->bpe.suffix, sizeof t->bpe.suffix));
    LT_TRY(unk_field(t, m, &t->bpe.unk));
    t->bpe.unk_missing = unk != NULL && !lt_slice_is(unk->value, "null") && t->bpe.unk == LT_NO_ID;
    t->unk = t->bpe.unk;
    return LT_OK;
}

static lt_err put_id(lt_tokenizer *t, lt_ids *to, json_int_t id) {
    if (id < 0 || id >= t->vocab.n) {
        LT_FAIL(LT_ERR_FORMAT,
                "%s: the post-processor adds id %lld, outside of the vocabulary of %u", t->name,
                (long long)id, t->vocab.n);
    }
    return lt_ids_append(to, &(uint32_t){(uint32_t)id}, 1);
}

/* Read "single": [{"SpecialToken": {"id": "<s>"}}, {"Sequence": {"id": "A"}}, ...]. */
static lt_err read_template(lt_tokenizer *t, const json_t *o) {
    const json_t *tokens = json_object_get(o, "special_tokens");
    lt_ids before = {0}, after = {0};
    bool seen = false;
    lt_err err = LT_OK;
    size_t i, k;
    json_t *item, *id;

    if (t->template_read) {
        LT_FAIL(LT_ERR_UNSUPPORTED, "%s: two templates in the post-processor", t->name);
    }
    t->template_read = true;
    json_array_foreach(json_object_get(o, "single"), i, item) {
        const json_t *special = json_object_get(item, "SpecialToken");
        const char *name = json_string_value(json_object_get(special, "id"));
        if (special == NULL) {
            if (seen) {
                LT_FAIL_DONE(LT_ERR_UNSUPPORTED, "%s: a template that repeats the text", t->name);
            }
            seen = true;
            continue;
        }
        item = name != NULL ? json_object_get(json_object_get(tokens, name), "ids") : NULL;
        if (!json_is_array(item)) {
            LT_FAIL_DONE(LT_ERR_FORMAT, "%s: the template's token '%s' has no ids", t->name,
                         name != NULL ? name : "");
        }
        json_array_foreach(item, k, id) {
            LT_TRY_DONE(put_id(t, seen ? &after : &before,
                               json_is_integer(id) ? json_integer_value(id) : -1));
        }
    }
    if (!seen) {
        LT_FAIL_DONE(LT_ERR_UNSUPPORTED, "%s: a template without the text", t->name);
    }
    /* Processors nest: the ids of this one go around those that earlier ones added. */
    for (size_t n = 0; n < t->before.n; n++) {
        LT_TRY_DONE(put_id(t, &before, t->before.data[n]));
    }
    for (size_t n = 0; n < after.n; n++) {
        LT_TRY_DONE(put_id(t, &t->after, after.data[n]));
    }
    lt_ids_free(&t->before);
    t->before = before;
    before = (lt_ids){0};
done:
    lt_ids_free(&before);
    lt_ids_free(&after);
    return err;
}

static lt_err add_post_processor(lt_tokenizer *t, const json_t *o) {
    const char *type = lt_json_type_of(o);
    if (strcmp(type, "ByteLevel") == 0) {
        return LT_OK; /* It only changes offsets. */
    }
    if (strcmp(type, "TemplateProcessing") == 0) {
        return read_template(t, o);
    }
    if (strcmp(type, "RobertaProcessing") == 0 || strcmp(type, "BertProcessing") == 0) {
        const json_t *cls = json_array_get(json_object_get(o, "cls"), 1);
        const json_t *sep = json_array_get(json_object_get(o, "sep"), 1);
        if (t->template_read) {
            LT_FAIL(LT_ERR_UNSUPPORTED, "%s: post-processor '%s' after a template", t->name, type);
        }
        LT_TRY(put_id(t, &t->before, json_is_integer(cls) ? json_integer_value(cls) : -1));
        memmove(t->before.data + 1, t->before.data, (t->before.n - 1) * sizeof *t->before.data);
        /* The ids of this one go around those that earlier ones added. */
        t->before.data[0] = (uint32_t)json_integer_value(cls);
        return put_id(t, &t->after, json_is_integer(sep) ? json_integer_value(sep) : -1);
    }
    LT_FAIL(LT_ERR_UNSUPPORTED, "%s: post-processor '%s'", t->name, type);
}

static lt_err fit_number(const lt_tokenizer *t, const json_t *o, const char *key, uint64_t *out) {
    const json_t *v = json_object_get(o, key);
    if (v == NULL || json_is_null(v)) {
        return LT_OK;
    }
    if (!json_is_integer(v) || json_integer_value(v) < 0 || json_integer_value(v) > 1 << 28) {
        LT_FAIL(LT_ERR_FORMAT, "%s: '%s' of its truncation or padding is not from 0 to %d", t->name,
                key, 1 << 28);
    }
    *out = (uint64_t)json_integer_value(v);
    return LT_OK;
}

static bool says(const json_t *o, const char *key, const char *value) {
    const char *s = json_string_value(json_object_get(o, key));
    return s != NULL && strcmp(s, value) == 0;
}

/* Read truncation, {"max_length", "stride", "direction", "strategy"}, and padding, {"strategy":
 * "BatchLongest" or {"Fixed": n}, "direction", ...}. */
static lt_err read_fit(lt_tokenizer *t, const json_t *cut, const json_t *pad) {
    lt_fit *f = &t->fit;
    uint64_t pad_id = 0;
    f->cuts = json_is_object(cut);
    f->cut_left = says(cut, "direction", "Left");
    f->only_second = says(cut, "strategy", "OnlySecond");
    LT_TRY(fit_number(t, cut, "max_length", &f->max_length));
    LT_TRY(fit_number(t, cut, "stride", &f->stride));
    f->pads = json_is_object(pad);
    f->pad_left = says(pad, "direction", "Left");
    f->pads_fixed = json_is_object(json_object_get(pad, "strategy"));
    LT_TRY(fit_number(t, json_object_get(pad, "strategy"), "Fixed", &f->fixed));
    LT_TRY(fit_number(t, pad, "pad_to_multiple_of", &f->multiple));
    LT_TRY(fit_number(t, pad, "pad_id", &pad_id));
    f->pad_id = (uint32_t)pad_id;
    return LT_OK;
}

typedef lt_err (*leaf_fn)(lt_tokenizer *t, const json_t *leaf);

static lt_err each_leaf(lt_tokenizer *t, lt_slice part, const char *key, leaf_fn add,
                        bool *present) {
    lt_err err = LT_OK;
    const json_t *leaves[MAX_LEAVES];
    json_t *root = NULL;
    int n = 0;
    LT_TRY(parse(part, t->name, &root));
    *present = root != NULL;
    LT_TRY_DONE(flatten(root, key, leaves, &n, t->name));
    for (int i = 0; i < n; i++) {
        LT_TRY_DONE(add(t, leaves[i]));
    }
done:
    json_decref(root);
    return err;
}

static lt_err read_added(lt_tokenizer *t, lt_json_parts *parts) {
    json_t *tokens = NULL, *cut = NULL, *pad = NULL;
    lt_err err = LT_OK;
    LT_TRY_DONE(parse(parts->added_tokens, t->name, &tokens));
    LT_TRY_DONE(lt_json_add_tokens(t, tokens));
    LT_TRY_DONE(parse(parts->truncation, t->name, &cut));
    LT_TRY_DONE(parse(parts->padding, t->name, &pad));
    LT_TRY_DONE(read_fit(t, cut, pad));
done:
    json_decref(tokens);
    json_decref(cut);
    json_decref(pad);
    return err;
}

/* If a normalizer puts something before the first character, Hugging Face's package loses the
 * alignment of the text: the next step that works character by character panics on most texts and
 * repeats a character in others. So there are no ids to reproduce. */
static lt_err check_alignment(const lt_tokenizer *t) {
    const lt_norm *inserts = NULL;
    for (int i = 0; i < t->normalizer.n_norms; i++) {
        const lt_norm *n = &t->normalizer.norms[i];
        const bool aligned = n->kind == LT_NORM_REPLACE || n->kind == LT_NORM_PREPEND;
        if (inserts != NULL && !aligned) {
            LT_FAIL(LT_ERR_UNSUPPORTED,
                    "%s: step %d of its normalizer follows one that may insert before the first "
                    "character (step %d); the tokenizers package fails on such a text",
                    t->name, i + 1, (int)(inserts - t->normalizer.norms) + 1);
        }
        if ((n->kind == LT_NORM_PREPEND && n->to.n == 0) ||
            (n->kind == LT_NORM_REPLACE && n->regex != NULL && n->to.n > 0 &&
             lt_regex_may_be_empty(n->regex))) {
            inserts = n;
        }
    }
    if (inserts != NULL && t->maps_bytes) {
        LT_FAIL(LT_ERR_UNSUPPORTED,
                "%s: step %d of its normalizer may insert before the first character, and a "
                "ByteLevel pre-tokenizer follows; the tokenizers package fails on such a text",
                t->name, (int)(inserts - t->normalizer.norms) + 1);
    }
    return LT_OK;
}

lt_err lt_json_parts_rest(lt_tokenizer *t, lt_json_parts *parts) {
    static const char *const kinds[] = {"BPE", "Unigram", "WordPiece", "WordLevel"};
    bool present;

    if (t->model == LT_MODEL_BPE && !parts->model.have_merges) {
        LT_FAIL(LT_ERR_FORMAT, "%s: a BPE model without 'merges'", t->name);
    }
    if ((t->model == LT_MODEL_UNIGRAM) != parts->model.scored) {
        LT_FAIL(LT_ERR_FORMAT, "%s: the vocabulary's form does not fit the model", t->name);
    }
    LT_TRY(each_leaf(t, parts->normalizer, "normalizers", add_normalizer, &present));
    LT_TRY(read_added(t, parts));
    LT_TRY(each_leaf(t, parts->post_processor, "processors", add_post_processor, &present));
    LT_TRY(each_leaf(t, parts->decoder, "decoders", lt_json_add_decoder, &present));
    if (!present) {
        LT_TRY(lt_tokenizer_add_decode(t, LT_DECODE_JOIN, NULL, NULL));
    }
    LT_TRY(lt_json_settle_decoder(t));
    LT_TRY(check_alignment(t));
    t->kind = t->byte_level ? "byte-level BPE" : kinds[t->model];
    return LT_OK;
}
