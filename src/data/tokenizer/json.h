/* tokenizer/json.h: shared by the files that read tokenizer.json: the slices of text that the
 * first pass (json_pull.h) leaves to the second, which builds a tree. */
#ifndef LT_DATA_TOKENIZER_JSON_H
#define LT_DATA_TOKENIZER_JSON_H

#include <jansson.h>

#include "data/tokenizer/json_pull.h"
#include "data/tokenizer/impl.h"

#define LT_JSON_MODEL_FIELDS 24
#define LT_JSON_KEY_BYTES    40

typedef struct {
    char key[LT_JSON_KEY_BYTES];
    lt_slice value;
} lt_json_field;

/* The model's scalar fields ("unk_token", "byte_fallback", ...) and the kinds of its large ones. */
typedef struct {
    lt_json_field fields[LT_JSON_MODEL_FIELDS];
    int n_fields;
    bool scored; /* The vocabulary is a list with scores: Unigram. */
    bool have_merges;
} lt_json_model;

typedef struct {
    lt_slice added_tokens, normalizer, pre_tokenizer, post_processor, decoder, model_slice;
    lt_slice truncation, padding;
    lt_json_model model;
    bool model_read, pre_tokenizer_read;
    bool defer;        /* The vocabulary is read after all other fields of the model are known. */
    bool merges_first; /* The merges did not fit the vocabulary as it was read. */
    bool late;         /* A later field would have changed how the vocabulary is read. */
} lt_json_parts;

bool lt_json_model_has(const lt_json_model *m, const char *key);

/* Which model it is. */
LT_MUST_USE lt_err lt_json_model_type(lt_tokenizer *t, const lt_json_model *m);

/* Whether a field that came after the vocabulary would have changed how it is read. */
bool lt_json_model_late(const lt_tokenizer *t, const lt_json_model *m, const lt_json_field *f);

/* Read the pre-tokenizer (once) and decide whether the vocabulary is kept as raw bytes:
 * t->byte_level. */
LT_MUST_USE lt_err lt_json_parts_pre_tokenizer(lt_tokenizer *t, lt_json_parts *parts);

/* Apply the model's scalar fields; called again when more of them have been seen. */
LT_MUST_USE lt_err lt_json_model_apply(lt_tokenizer *t, lt_json_model *m);

/* Read the normalizer, added tokens, post-processor and decoder, and set what the model needs from
 * them. */
LT_MUST_USE lt_err lt_json_parts_rest(lt_tokenizer *t, lt_json_parts *parts);

/* The "type" of a part, or "". */
const char *lt_json_type_of(const json_t *o);

/* Compile a pattern, a JSON string; an empty one matches at every position. */
LT_MUST_USE lt_err lt_json_open_regex(const lt_tokenizer *t, const json_t *pattern,
                                      struct lt_regex **out);

/* tokenizer/json_added.c: like Hugging Face's package, take an added token's id from the
 * vocabulary, or otherwise the next free one after it, and only warn if the file has another
 * id. */
LT_MUST_USE lt_err lt_json_add_tokens(lt_tokenizer *t, const json_t *list);

/* tokenizer/json_decoder.c: one decoder that is not a Sequence. */
LT_MUST_USE lt_err lt_json_add_decoder(lt_tokenizer *t, const json_t *o);

/* Called when all decoders are read: a vocabulary in raw bytes needs no ByteLevel decoder; any
 * other decoder needs the printable form. */
LT_MUST_USE lt_err lt_json_settle_decoder(lt_tokenizer *t);

#endif
