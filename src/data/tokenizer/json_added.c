/* tokenizer/json_added.c: the added tokens of a tokenizer.json and the ids that they get. */
#include <string.h>

#include "base/error.h"
#include "base/log.h"
#include "data/tokenizer/json.h"

/* The earlier added token with the same text, which a later one replaces; NULL: there is none. */
static lt_added *added_before(const lt_tokenizer *t, const char *text, size_t n) {
    for (size_t i = 0; i < t->n_added; i++) {
        if (t->added[i].content.n == n && memcmp(t->added[i].content.data, text, n) == 0) {
            return &t->added[i];
        }
    }
    return NULL;
}

/* The vocabulary's id of exactly this text, or LT_NO_ID. */
static lt_err vocab_id(const lt_tokenizer *t, const char *text, size_t n, uint32_t *id) {
    lt_err err = LT_OK;
    lt_text raw = {0};
    bool mapped = true;
    LT_TRY_DONE(t->byte_level ? lt_tokenizer_unmap(text, n, &raw, &mapped)
                              : lt_text_put(&raw, text, n));
    *id = mapped ? lt_vocab_find(&t->vocab, raw.data, raw.n) : LT_NO_ID;
    /* Pieces that are not mapped are not in the index. */
    for (uint32_t k = 0; !mapped && k < t->vocab.n; k++) {
        if ((t->vocab.flags[k] & LT_PIECE_LITERAL) != 0 && t->vocab.bytes[k] == n &&
            memcmp(lt_vocab_text(&t->vocab, k), text, n) == 0) {
            *id = k;
            break;
        }
    }
done:
    lt_text_free(&raw);
    return err;
}

static lt_err read_added_token(const lt_tokenizer *t, const json_t *o, size_t i, lt_added *out) {
    const json_t *id = json_object_get(o, "id");
    if (!json_is_string(json_object_get(o, "content")) || !json_is_integer(id) ||
        json_integer_value(id) < 0 || json_integer_value(id) >= LT_VOCAB_MAX) {
        LT_FAIL(LT_ERR_FORMAT, "%s: added token %zu needs a 'content' and an 'id' from 0 to %u",
                t->name, i, LT_VOCAB_MAX - 1);
    }
    *out = (lt_added){
        .id = (uint32_t)json_integer_value(id),
        .special = json_is_true(json_object_get(o, "special")),
        .normalized = json_is_true(json_object_get(o, "normalized")),
        .lstrip = json_is_true(json_object_get(o, "lstrip")),
        .rstrip = json_is_true(json_object_get(o, "rstrip")),
        .single_word = json_is_true(json_object_get(o, "single_word")),
    };
    return LT_OK;
}

/* Fails if the file's id of an added token belongs to another piece: the two lists then belong to
 * different vocabularies. */
static lt_err check_taken(const lt_tokenizer *t, uint32_t id, const char *text, size_t n) {
    if (id < t->vocab.n && (t->vocab.flags[id] & LT_PIECE_PRESENT) != 0) {
        LT_FAIL(LT_ERR_FORMAT,
                "%s: duplicate id %u, of '%.*s' and the added token '%.*s'; is the file cut off?",
                t->name, id, (int)(t->vocab.bytes[id] < 64 ? t->vocab.bytes[id] : 64),
                lt_vocab_text(&t->vocab, id), (int)(n < 64 ? n : 64), text);
    }
    return LT_OK;
}

lt_err lt_json_add_tokens(lt_tokenizer *t, const json_t *list) {
    uint32_t next = 0;
    size_t i;
    json_t *o;
    for (uint32_t id = 0; id < t->vocab.n; id++) {
        next += (t->vocab.flags[id] & LT_PIECE_PRESENT) != 0;
    }
    json_array_foreach(list, i, o) {
        const json_t *content = json_object_get(o, "content");
        const char *text = json_string_value(content);
        const size_t n = json_string_length(content);
        lt_added token, *before;
        uint32_t id;
        LT_TRY(read_added_token(t, o, i, &token));
        before = added_before(t, text, n);
        if (before != NULL) {
            token.id = before->id;
            token.content = before->content;
            *before = token;
            continue;
        }
        LT_TRY(vocab_id(t, text, n, &id));
        id = id != LT_NO_ID || n == 0 ? id : next++;
        if (n > 0 && id != token.id) {
            LT_TRY(check_taken(t, token.id, text, n));
            lt_log_warn("%s: added token '%.*s' gets id %u, not %u as the file says, as in the "
                        "tokenizers package",
                        t->name, (int)(n < 64 ? n : 64), text, id, token.id);
            token.id = id;
        }
        LT_TRY(lt_tokenizer_add(t, token, text, n));
    }
    return LT_OK;
}
