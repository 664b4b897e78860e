/* tokenizer/json_decoder.c: the decoders of a tokenizer.json as steps of decode_chain.h. */
#include <string.h>

#include "base/error.h"
#include "data/tokenizer/regex.h"
#include "data/tokenizer/json.h"

static lt_err add_decode_replace(lt_tokenizer *t, const json_t *o, const char *content) {
    const json_t *pattern = json_object_get(o, "pattern");
    const json_t *from = json_object_get(pattern, "String"),
                 *regex = json_object_get(pattern, "Regex");
    if (content == NULL || (!json_is_string(from) && !json_is_string(regex))) {
        LT_FAIL(LT_ERR_FORMAT, "%s: a decoder Replace without pattern or content", t->name);
    }
    LT_TRY(lt_tokenizer_add_decode(t, LT_DECODE_REPLACE, json_string_value(from), content));
    return json_is_string(regex) ? lt_json_open_regex(t, regex, &t->decode[t->n_decode - 1].regex)
           : json_string_length(from) == 0
               ? lt_json_open_regex(t, from, &t->decode[t->n_decode - 1].regex)
               : LT_OK;
}

static bool is_one_char(const char *s) {
    const size_t n = strlen(s);
    uint32_t cp;
    return n > 0 && lt_utf8_decode((const uint8_t *)s, (const uint8_t *)s + n, &cp) == n;
}

static lt_err add_decode_metaspace(lt_tokenizer *t, const json_t *o) {
    const char *scheme = json_string_value(json_object_get(o, "prepend_scheme"));
    const char *replacement = json_string_value(json_object_get(o, "replacement"));
    replacement = replacement != NULL ? replacement : "\xE2\x96\x81";
    if (!is_one_char(replacement)) {
        LT_FAIL(LT_ERR_FORMAT,
                "%s: the 'replacement' of a decoder Metaspace is one character, not '%.40s'",
                t->name, replacement);
    }
    LT_TRY(lt_tokenizer_add_decode(t, LT_DECODE_METASPACE, replacement, NULL));
    t->decode[t->n_decode - 1].prepend =
        scheme != NULL ? strcmp(scheme, "never") != 0
                       : !json_is_false(json_object_get(o, "add_prefix_space"));
    return LT_OK;
}

/* Read a number of characters from a decoder. */
static lt_err strip_count(const lt_tokenizer *t, const json_t *o, const char *key, uint32_t *out) {
    const json_t *v = json_object_get(o, key);
    if (!json_is_integer(v) || json_integer_value(v) < 0) {
        LT_FAIL(LT_ERR_FORMAT, "%s: a decoder Strip needs '%s', a number from 0", t->name, key);
    }
    *out = json_integer_value(v) < UINT32_MAX ? (uint32_t)json_integer_value(v) : UINT32_MAX;
    return LT_OK;
}

static lt_err add_decode_strip(lt_tokenizer *t, const json_t *o, const char *content) {
    lt_decode_op *op;
    if (content == NULL || !is_one_char(content)) {
        LT_FAIL(LT_ERR_FORMAT, "%s: the 'content' of a decoder Strip is one character, not '%.40s'",
                t->name, content != NULL ? content : "");
    }
    LT_TRY(lt_tokenizer_add_decode(t, LT_DECODE_STRIP, content, NULL));
    op = &t->decode[t->n_decode - 1];
    LT_TRY(strip_count(t, o, "start", &op->start));
    return strip_count(t, o, "stop", &op->stop);
}

static const char *string_or(const json_t *o, const char *key, const char *fallback) {
    const char *s = json_string_value(json_object_get(o, key));
    return s != NULL ? s : fallback;
}

lt_err lt_json_add_decoder(lt_tokenizer *t, const json_t *o) {
    const char *type = lt_json_type_of(o),
               *content = json_string_value(json_object_get(o, "content"));
    if (strcmp(type, "ByteLevel") == 0) {
        return lt_tokenizer_add_decode(t, LT_DECODE_BYTE_LEVEL, NULL, NULL);
    }
    if (strcmp(type, "ByteFallback") == 0) {
        return lt_tokenizer_add_decode(t, LT_DECODE_BYTE_FALLBACK, NULL, NULL);
    }
    if (strcmp(type, "Fuse") == 0) {
        return lt_tokenizer_add_decode(t, LT_DECODE_FUSE, NULL, NULL);
    }
    if (strcmp(type, "Replace") == 0) {
        return add_decode_replace(t, o, content);
    }
    if (strcmp(type, "Strip") == 0) {
        return add_decode_strip(t, o, content);
    }
    if (strcmp(type, "Metaspace") == 0) {
        return add_decode_metaspace(t, o);
    }
    if (strcmp(type, "WordPiece") == 0) {
        LT_TRY(lt_tokenizer_add_decode(t, LT_DECODE_WORDPIECE, string_or(o, "prefix", "##"), NULL));
        t->decode[t->n_decode - 1].cleanup = json_is_true(json_object_get(o, "cleanup"));
        return LT_OK;
    }
    if (strcmp(type, "CTC") == 0) {
        LT_TRY(lt_tokenizer_add_decode(t, LT_DECODE_CTC, string_or(o, "pad_token", "<pad>"),
                                       string_or(o, "word_delimiter_token", "|")));
        t->decode[t->n_decode - 1].cleanup = json_is_true(json_object_get(o, "cleanup"));
        return LT_OK;
    }
    if (strcmp(type, "BPEDecoder") == 0) {
        return lt_tokenizer_add_decode(t, LT_DECODE_SUFFIX, string_or(o, "suffix", "</w>"), NULL);
    }
    LT_FAIL(LT_ERR_UNSUPPORTED, "%s: decoder '%s'", t->name, type);
}

lt_err lt_json_settle_decoder(lt_tokenizer *t) {
    if (t->byte_level && t->n_decode == 0) { /* An empty Sequence. */
        LT_TRY(lt_tokenizer_add_decode(t, LT_DECODE_FUSE, NULL, NULL));
    }
    if (t->byte_level && t->n_decode == 1 && t->decode[0].kind == LT_DECODE_BYTE_LEVEL) {
        t->n_decode = 0;
    }
    t->printable = t->byte_level && t->n_decode > 0;
    return LT_OK;
}
