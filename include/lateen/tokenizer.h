/* tokenizer.h: text to token ids and back, for the tokenizer files in common use.
 *
 *     lt_tokenizer *t = NULL;
 *     lt_tokenizer_scratch *s = NULL;
 *     lt_ids ids = {0};
 *     LT_TRY(lt_tokenizer_open(&t, "model/tokenizer.json", NULL));
 *     LT_TRY(lt_tokenizer_scratch_open(&s, t));
 *     LT_TRY(lt_tokenizer_encode(t, s, "Hello", 5, LT_ENCODE_DEFAULT, &ids));
 *
 * It reads tokenizer.json (Hugging Face), tekken.json (Mistral), SentencePiece .model, vocab.bpe
 * with encoder.json or vocab.json with merges.txt, .tiktoken rank files, llama2.c's tokenizer.bin,
 * GGUF metadata; any of them may be compressed with zstd or gzip. A folder is searched for the
 * first of these.
 *
 * An open tokenizer is read-only and may be used by many threads at once; each thread brings its
 * own scratch, which holds its buffers and a cache of recent words. Token ids are exact: equal to
 * those of the library that owns the file's format (tokenizers, tiktoken, sentencepiece, llama.cpp,
 * llama2.c). */
#ifndef LATEEN_TOKENIZER_H
#define LATEEN_TOKENIZER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lateen/base.h"

typedef struct lt_tokenizer lt_tokenizer;
typedef struct lt_tokenizer_scratch lt_tokenizer_scratch;
typedef struct lt_tokenizer_stream lt_tokenizer_stream;

typedef enum { LT_FROM_FILE, LT_YES, LT_NO } lt_choice;

typedef struct {
    /* For files that name no pre-tokenizer (.tiktoken, vocab.bpe): gpt2, cl100k, o200k, llama3,
     * qwen2, tekken, deepseek, ... or a regular expression. NULL: by the file's name. */
    const char *pattern;
    lt_choice add_bos, add_eos; /* Override what the file says about LT_ENCODE_ADD_SPECIAL. */
} lt_tokenizer_options;

/* A growing array of ids; zeroed is empty. */
typedef struct {
    uint32_t *data;
    size_t n, room;
} lt_ids;

void lt_ids_free(lt_ids *ids);

/* Open a file or a folder. options may be NULL. *out is written only on success; close accepts
 * NULL. */
LT_MUST_USE lt_err lt_tokenizer_open(lt_tokenizer **out, const char *path,
                                     const lt_tokenizer_options *options);

/* The same from memory. Messages begin with name; its suffix gives the format if the content does
 * not. */
LT_MUST_USE lt_err lt_tokenizer_open_memory(lt_tokenizer **out, const void *data, size_t bytes,
                                            const char *name, const lt_tokenizer_options *options);
void lt_tokenizer_close(lt_tokenizer *t);

LT_MUST_USE lt_err lt_tokenizer_scratch_open(lt_tokenizer_scratch **out, const lt_tokenizer *t);
void lt_tokenizer_scratch_close(lt_tokenizer_scratch *s);

enum {
    LT_ENCODE_PLAIN = 0,         /* No special tokens: all of the text is ordinary text. */
    LT_ENCODE_ADD_SPECIAL = 1,   /* Add what the file's post-processor adds: BOS, EOS, ... */
    LT_ENCODE_PARSE_SPECIAL = 2, /* "<|im_end|>" in the text becomes that token. */
    LT_ENCODE_DEFAULT = 3,       /* Both, the default of the format's own library. */
    /* Truncate and pad as "truncation" and "padding" of a tokenizer.json say. The tokenizers
     * package does so whenever it encodes; transformers does not, nor do training and serving
     * here. */
    LT_ENCODE_FIT = 4
};

/* Append the ids of text[0..bytes) to *out. Bytes that are not UTF-8 are kept by byte-level
 * vocabularies and read as U+FFFD by the others. */
LT_MUST_USE lt_err lt_tokenizer_encode(const lt_tokenizer *t, lt_tokenizer_scratch *s,
                                       const char *text, size_t bytes, unsigned flags, lt_ids *out);

/* Bytes [begin, end) of a text. */
typedef struct {
    size_t begin, end;
} lt_text_span;

/* Encode valid UTF-8 (without LT_ENCODE_FIT) and report which ids cover the given spans: *mask gets
 * a byte for each id that is appended to *out, 1 when the id covers a byte of a span, else 0. spans
 * are in order and do not overlap. *mask is malloc'ed. */
LT_MUST_USE lt_err lt_tokenizer_encode_masked(const lt_tokenizer *t, lt_tokenizer_scratch *s,
                                              const char *text, size_t bytes, unsigned flags,
                                              const lt_text_span *spans, size_t n_spans,
                                              lt_ids *out, unsigned char **mask);

/* Decode ids into malloc'ed, 0-terminated, valid UTF-8 (*text, *bytes without the 0); ill-formed
 * bytes become U+FFFD. skip_special leaves special tokens out. An id outside the vocabulary is an
 * error. */
LT_MUST_USE lt_err lt_tokenizer_decode(const lt_tokenizer *t, const uint32_t *ids, size_t n,
                                       bool skip_special, char **text, size_t *bytes);

/* Streaming decode: each id yields the text that is final so far, never part of a UTF-8 character;
 * finish yields the rest. The concatenation equals lt_tokenizer_decode of all ids. The text is
 * owned by the stream, 0-terminated, and valid until the next call. */
LT_MUST_USE lt_err lt_tokenizer_stream_open(lt_tokenizer_stream **out, const lt_tokenizer *t,
                                            bool skip_special);
LT_MUST_USE lt_err lt_tokenizer_stream_put(lt_tokenizer_stream *s, uint32_t id, const char **text,
                                           size_t *bytes);
LT_MUST_USE lt_err lt_tokenizer_stream_finish(lt_tokenizer_stream *s, const char **text,
                                              size_t *bytes);
/* Call it before the first put if the ids continue an earlier text, so that nothing is stripped
 * from the beginning (SentencePiece's space). */
void lt_tokenizer_stream_continue(lt_tokenizer_stream *s);
/* Special tokens that skip_special keeps. ids remains the caller's. */
void lt_tokenizer_stream_show(lt_tokenizer_stream *s, const uint32_t *ids, size_t n);
void lt_tokenizer_stream_close(lt_tokenizer_stream *s);

#define LT_TOKEN_NONE UINT32_MAX

typedef struct {
    uint32_t n_ids; /* One more than the largest id. */
    /* LT_TOKEN_NONE if the file names none. eot ends a turn (<|im_end|>, <|eot_id|>). */
    uint32_t bos, eos, pad, unk, eot;
    /* All tokens that end a text or a turn: eos, eot, and others known by a GGUF's keys or by name.
     * The array lives as long as the tokenizer. */
    const uint32_t *ends;
    size_t n_ends;
    bool adds_bos, adds_eos;   /* What LT_ENCODE_ADD_SPECIAL adds. */
    const char *kind;          /* "byte-level BPE", "SentencePiece BPE", "Unigram", "WordPiece". */
    const char *chat_template; /* From GGUF metadata, NULL elsewhere. */
} lt_tokenizer_info;

lt_tokenizer_info lt_tokenizer_describe(const lt_tokenizer *t);

/* The piece of an id as the vocabulary has it, with SentencePiece's U+2581 or WordPiece's "##"; a
 * byte-level piece, and one that stands for a byte, as raw bytes; for a special token, its name.
 * NULL for an id without a piece. Not 0-terminated. */
const char *lt_tokenizer_piece(const lt_tokenizer *t, uint32_t id, size_t *bytes);
/* The bytes that the decoder writes for an id between others: the same, with a space for U+2581,
 * and for a special token its name. NULL for an id without a piece. Not 0-terminated. */
const char *lt_tokenizer_text(const lt_tokenizer *t, uint32_t id, size_t *bytes);
bool lt_tokenizer_is_special(const lt_tokenizer *t, uint32_t id);

/* Id of the piece or special token with exactly these bytes, or LT_TOKEN_NONE. */
uint32_t lt_tokenizer_find(const lt_tokenizer *t, const char *piece, size_t bytes);

/* Tokens for filling in the middle of a text: before the text that precedes the gap, before the
 * text that follows it, and before the answer; a repository's name, a file's border, padding. */
typedef enum {
    LT_FIM_PREFIX,
    LT_FIM_SUFFIX,
    LT_FIM_MIDDLE,
    LT_FIM_REPOSITORY,
    LT_FIM_FILE,
    LT_FIM_PAD,
    LT_FIM_COUNT
} lt_fim;
typedef struct {
    uint32_t ids[LT_FIM_COUNT]; /* LT_TOKEN_NONE: the tokenizer has none. */
} lt_tokenizer_fim;
lt_tokenizer_fim lt_tokenizer_find_fim(const lt_tokenizer *t);

/* Train byte-level BPE and write a tokenizer.json: see lt_bpe_train in
 * data/tokenizer/bpe_train.h. */

#endif
