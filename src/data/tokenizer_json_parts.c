/* tokenizer_json_parts.c: the small parts of tokenizer.json: how its normalizers, pre-tokenizers, post-processors and
 * decoders map to ours. A component that we do not have is refused by name: ids would silently differ. */
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/json.h"
#include "data/regex.h"
#include "data/tokenizer_json.h"

#define MAX_LEAVES 64
#define MAX_NEST   8

static lt_err parse(lt_slice s, const char *name, json_t **out) {
    json_error_t why;
    *out = NULL;
    if (s.data == NULL || (s.n == 4 && memcmp(s.data, "null", 4) == 0)) {
        return LT_OK;
    }
    *out = json_loadb(s.data, s.n, JSON_DECODE_ANY | JSON_ALLOW_NUL, &why);
    if (*out == NULL) {
        LT_FAIL(LT_ERR_FORMAT, "%s: line %d of a part: %s", name, why.line, why.text);
    }
    return LT_OK;
}

static const char *type_of(const json_t *o) {
    const char *type = json_string_value(json_object_get(o, "type"));
    return type != NULL ? type : "";
}

/* The components of nested "Sequence"s, in order. key: "normalizers", "pretokenizers", "processors" or "decoders". */
static lt_err flatten(const json_t *root, const char *key, const json_t *leaves[MAX_LEAVES], int *n,
                      const char *name) {
    const json_t *lists[MAX_NEST];
    size_t at[MAX_NEST];
    int depth = 0;
    const json_t *one = root;
    *n = 0;
    while (one != NULL) {
        if (strcmp(type_of(one), "Sequence") == 0) {
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

static lt_err add_split(lt_tokenizer *t, const json_t *o) {
    const json_t *pattern = json_object_get(o, "pattern");
    const json_t *regex = json_object_get(pattern, "Regex"),
                 *literal = json_object_get(pattern, "String");
    const bool invert = json_is_true(json_object_get(o, "invert"));
    lt_cut cut = {.kind = LT_CUT_LITERAL, .invert = invert};

    LT_TRY(behaviour_of(o, &cut.behaviour, t->name));
    if (json_is_string(regex)) {
        return lt_pretok_add_regex(&t->pretok, json_string_value(regex), json_string_length(regex),
                                   cut.behaviour, invert, t->name);
    }
    if (!json_is_string(literal) || json_string_length(literal) == 0) {
        LT_FAIL(LT_ERR_FORMAT, "%s: a Split without a pattern", t->name);
    }
    LT_TRY(lt_text_put(&cut.literal, json_string_value(literal), json_string_length(literal)));
    return lt_pretok_add(&t->pretok, cut);
}

static lt_err add_metaspace(lt_tokenizer *t, const json_t *o) {
    const char *scheme = json_string_value(json_object_get(o, "prepend_scheme"));
    const json_t *replacement = json_object_get(o, "replacement");
    lt_cut cut = {.kind = LT_CUT_METASPACE, .split = !json_is_false(json_object_get(o, "split"))};

    if (scheme == NULL) { /* Files of before prepend_scheme. */
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

static lt_err add_byte_level(lt_tokenizer *t, const json_t *o, bool last) {
    t->byte_level = true;
    if (json_is_true(json_object_get(o, "add_prefix_space"))) {
        LT_TRY(lt_pretok_add(&t->pretok, (lt_cut){.kind = LT_CUT_PREFIX_SPACE}));
    }
    if (!json_is_false(json_object_get(o, "use_regex"))) {
        LT_TRY(lt_pretok_add(
            &t->pretok, (lt_cut){.kind = LT_CUT_SCAN, .scan = lt_scan_function(LT_SCAN_GPT2)}));
    }
    return last ? LT_OK : lt_pretok_add(&t->pretok, (lt_cut){.kind = LT_CUT_BYTE_MAP});
}

static lt_err add_pre_tokenizer(lt_tokenizer *t, const json_t *o, bool last) {
    const char *type = type_of(o);
    lt_cut cut = {0};
    if (strcmp(type, "Split") == 0) {
        return add_split(t, o);
    }
    if (strcmp(type, "ByteLevel") == 0) {
        return add_byte_level(t, o, last);
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
    for (int i = 0; i < n; i++) {
        LT_TRY_DONE(add_pre_tokenizer(t, leaves[i], i == n - 1));
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
    if (json_is_string(regex)) {
        LT_TRY(lt_regex_open(&norm.regex, json_string_value(regex), json_string_length(regex),
                             t->name));
    } else {
        LT_TRY(lt_text_put(&norm.from, json_string_value(literal), json_string_length(literal)));
    }
    LT_TRY(lt_text_put(&norm.to, json_string_value(content), json_string_length(content)));
    return lt_normalizer_add(&t->normalizer, norm);
}

/* Base64 of the charsmap. */
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
    const char *type = type_of(o);
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

/* A string field into out[0..room); absent or null leaves "". */
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

lt_err lt_json_model_apply(lt_tokenizer *t, lt_json_model *m) {
    char type[64];
    int64_t whole = -1;
    const lt_json_field *f = field(m, "unk_id");

    LT_TRY(string_field(t, m, "type", type, sizeof type));
    if (strcmp(type, "Unigram") == 0 || (type[0] == '\0' && m->scored)) {
        t->model = LT_MODEL_UNIGRAM;
        t->unigram.byte_fallback = is_true(m, "byte_fallback");
        if (f != NULL && f->value.n > 0 && f->value.data[0] != 'n') {
            lt_json_pull j = lt_json_pull_over(f->value.data, f->value.n, t->name);
            LT_TRY(lt_json_pull_i64(&j, &whole));
        }
        t->unigram.unk = whole >= 0 && whole < t->vocab.n ? (uint32_t)whole : LT_NO_ID;
        t->unk = t->unigram.unk;
        return LT_OK;
    }
    if (strcmp(type, "WordPiece") == 0) {
        t->model = LT_MODEL_WORDPIECE;
        t->wordpiece.max_chars = 100;
        f = field(m, "max_input_chars_per_word");
        if (f != NULL) {
            lt_json_pull j = lt_json_pull_over(f->value.data, f->value.n, t->name);
            LT_TRY(lt_json_pull_i64(&j, &whole));
            t->wordpiece.max_chars = whole >= 0 && whole < UINT32_MAX ? (uint32_t)whole : 100;
        }
        LT_TRY(string_field(t, m, "continuing_subword_prefix", t->wordpiece.prefix,
                            sizeof t->wordpiece.prefix));
        LT_TRY(unk_field(t, m, &t->wordpiece.unk));
        t->unk = t->wordpiece.unk;
        return LT_OK;
    }
    if (type[0] != '\0' && strcmp(type, "BPE") != 0) {
        LT_FAIL(LT_ERR_UNSUPPORTED, "%s: model type '%s'", t->name, type);
    }
    t->model = LT_MODEL_BPE;
    t->bpe.mode = t->byte_level ? LT_BPE_BYTES : LT_BPE_CHARS;
    t->bpe.ignore_merges = is_true(m, "ignore_merges");
    t->bpe.fuse_unk = is_true(m, "fuse_unk");
    t->bpe.byte_fallback = is_true(m, "byte_fallback");
    LT_TRY(string_field(t, m, "continuing_subword_prefix", t->bpe.prefix, sizeof t->bpe.prefix));
    LT_TRY(string_field(t, m, "end_of_word_suffix", t->bpe.suffix, sizeof t->bpe.suffix));
    if (t->byte_level && (t->bpe.prefix[0] != '\0' || t->bpe.suffix[0] != '\0')) {
        t->bpe.mode = LT_BPE_CHARS;
        LT_FAIL(LT_ERR_UNSUPPORTED, "%s: a byte-level vocabulary with '%s%s' as affix", t->name,
                t->bpe.prefix, t->bpe.suffix);
    }
    LT_TRY(unk_field(t, m, &t->bpe.unk));
    t->unk = t->bpe.unk;
    return LT_OK;
}

static lt_err add_tokens(lt_tokenizer *t, const json_t *list) {
    size_t i;
    json_t *o;
    json_array_foreach(list, i, o) {
        const json_t *content = json_object_get(o, "content"), *id = json_object_get(o, "id");
        lt_added token = {
            .special = json_is_true(json_object_get(o, "special")),
            .normalized = json_is_true(json_object_get(o, "normalized")),
            .lstrip = json_is_true(json_object_get(o, "lstrip")),
            .rstrip = json_is_true(json_object_get(o, "rstrip")),
            .single_word = json_is_true(json_object_get(o, "single_word")),
        };
        if (!json_is_string(content) || !json_is_integer(id) || json_integer_value(id) < 0 ||
            json_integer_value(id) >= LT_VOCAB_MAX) {
            LT_FAIL(LT_ERR_FORMAT, "%s: added token %zu needs a 'content' and an 'id' from 0 to %u",
                    t->name, i, LT_VOCAB_MAX - 1);
        }
        token.id = (uint32_t)json_integer_value(id);
        LT_TRY(lt_tokenizer_add(t, token, json_string_value(content), json_string_length(content)));
    }
    return LT_OK;
}

static lt_err put_id(lt_tokenizer *t, lt_ids *to, json_int_t id) {
    if (id < 0 || id >= t->vocab.n) {
        LT_FAIL(LT_ERR_FORMAT,
                "%s: the post-processor adds id %lld, outside of the vocabulary of %u", t->name,
                (long long)id, t->vocab.n);
    }
    LT_TRY(lt_ids_reserve(to, 1));
    to->data[to->n++] = (uint32_t)id;
    return LT_OK;
}

/* "single": [{"SpecialToken": {"id": "<s>"}}, {"Sequence": {"id": "A"}}, ...] */
static lt_err read_template(lt_tokenizer *t, const json_t *o) {
    const json_t *tokens = json_object_get(o, "special_tokens");
    lt_ids before = {0}, after = {0};
    bool seen = false;
    lt_err err = LT_OK;
    size_t i, k;
    json_t *item, *id;

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
    /* Processors nest: this one goes around what earlier ones added. */
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
    const char *type = type_of(o);
    if (strcmp(type, "ByteLevel") == 0) {
        return LT_OK; /* Only trims offsets. */
    }
    if (strcmp(type, "TemplateProcessing") == 0) {
        return read_template(t, o);
    }
    if (strcmp(type, "RobertaProcessing") == 0 || strcmp(type, "BertProcessing") == 0) {
        const json_t *cls = json_array_get(json_object_get(o, "cls"), 1);
        const json_t *sep = json_array_get(json_object_get(o, "sep"), 1);
        LT_TRY(put_id(t, &t->before, json_is_integer(cls) ? json_integer_value(cls) : -1));
        return put_id(t, &t->after, json_is_integer(sep) ? json_integer_value(sep) : -1);
    }
    LT_FAIL(LT_ERR_UNSUPPORTED, "%s: post-processor '%s'", t->name, type);
}

static lt_err add_decoder(lt_tokenizer *t, const json_t *o) {
    const char *type = type_of(o), *content = json_string_value(json_object_get(o, "content"));
    if (strcmp(type, "ByteLevel") == 0) {
        return LT_OK; /* Pieces are bytes already. */
    }
    if (strcmp(type, "ByteFallback") == 0) {
        return lt_tokenizer_add_decode(t, LT_DECODE_BYTE_FALLBACK, NULL, NULL);
    }
    if (strcmp(type, "Fuse") == 0) {
        return lt_tokenizer_add_decode(t, LT_DECODE_FUSE, NULL, NULL);
    }
    if (strcmp(type, "Replace") == 0) {
        const char *from = json_string_value(
            json_object_get(json_object_get(o, "pattern"), "String"));
        if (from == NULL || content == NULL || from[0] == '\0') {
            LT_FAIL(LT_ERR_UNSUPPORTED, "%s: a decoder Replace that is not of a string", t->name);
        }
        return lt_tokenizer_add_decode(t, LT_DECODE_REPLACE, from, content);
    }
    if (strcmp(type, "Strip") == 0) {
        LT_TRY(lt_tokenizer_add_decode(t, LT_DECODE_STRIP, content != NULL ? content : " ", NULL));
        t->decode[t->n_decode - 1].start = (uint32_t)json_integer_value(
            json_object_get(o, "start"));
        t->decode[t->n_decode - 1].stop = (uint32_t)json_integer_value(json_object_get(o, "stop"));
        return LT_OK;
    }
    if (strcmp(type, "Metaspace") == 0) {
        const char *scheme = json_string_value(json_object_get(o, "prepend_scheme"));
        const char *replacement = json_string_value(json_object_get(o, "replacement"));
        LT_TRY(lt_tokenizer_add_decode(t, LT_DECODE_METASPACE,
                                       replacement != NULL ? replacement : "\xE2\x96\x81", NULL));
        t->decode[t->n_decode - 1].prepend =
            scheme != NULL ? strcmp(scheme, "never") != 0
                           : !json_is_false(json_object_get(o, "add_prefix_space"));
        return LT_OK;
    }
    if (strcmp(type, "WordPiece") == 0) {
        const char *prefix = json_string_value(json_object_get(o, "prefix"));
        LT_TRY(
            lt_tokenizer_add_decode(t, LT_DECODE_WORDPIECE, prefix != NULL ? prefix : "##", NULL));
        t->decode[t->n_decode - 1].cleanup = json_is_true(json_object_get(o, "cleanup"));
        return LT_OK;
    }
    if (strcmp(type, "BPEDecoder") == 0) {
        const char *suffix = json_string_value(json_object_get(o, "suffix"));
        return lt_tokenizer_add_decode(t, LT_DECODE_SUFFIX, suffix != NULL ? suffix : "</w>", NULL);
    }
    LT_FAIL(LT_ERR_UNSUPPORTED, "%s: decoder '%s'", t->name, type);
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

lt_err lt_json_parts_rest(lt_tokenizer *t, lt_json_parts *parts) {
    json_t *tokens = NULL;
    lt_err err;
    bool present;

    if (t->model == LT_MODEL_BPE && !parts->model.have_merges) {
        LT_FAIL(LT_ERR_FORMAT, "%s: a BPE model without 'merges'", t->name);
    }
    if ((t->model == LT_MODEL_UNIGRAM) != parts->model.scored) {
        LT_FAIL(LT_ERR_FORMAT, "%s: the vocabulary's form does not fit the model", t->name);
    }
    LT_TRY(each_leaf(t, parts->normalizer, "normalizers", add_normalizer, &present));
    LT_TRY(parse(parts->added_tokens, t->name, &tokens));
    err = add_tokens(t, tokens);
    json_decref(tokens);
    LT_TRY(err);
    LT_TRY(each_leaf(t, parts->post_processor, "processors", add_post_processor, &present));
    LT_TRY(each_leaf(t, parts->decoder, "decoders", add_decoder, &present));
    if (!present && !t->byte_level) {
        LT_TRY(lt_tokenizer_add_decode(t, LT_DECODE_JOIN, NULL, NULL));
    }
    t->kind = t->model == LT_MODEL_UNIGRAM     ? "Unigram"
              : t->model == LT_MODEL_WORDPIECE ? "WordPiece"
              : t->byte_level                  ? "byte-level BPE"
                                               : "BPE";
    return LT_OK;
}
