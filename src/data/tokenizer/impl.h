/* tokenizer/impl.h: the parts of a loaded tokenizer; shared by tokenizer.c, the decoder and the
 * readers of each format.
 *
 *     text ──added tokens──▶ segments ──normalizer──▶ ──added tokens──▶ segments
 *         ──pre-tokenizer──▶ words ──model──▶ ids
 *
 * A reader (tokenizer/json.c, tokenizer/rank.c, ...) fills one of these from a file;
 * lt_tokenizer_finish then builds the tables that follow from these. */
#ifndef LT_DATA_TOKENIZER_IMPL_H
#define LT_DATA_TOKENIZER_IMPL_H

#include "data/tokenizer/bpe.h"
#include "data/tokenizer/bpe_load.h"
#include "data/tokenizer/decode_chain.h"
#include "data/tokenizer/json_pull.h"
#include "data/tokenizer/normalize.h"
#include "data/tokenizer/pretokenize.h"
#include "data/tokenizer/spm_pieces.h"
#include "data/tokenizer/trie.h"
#include "data/tokenizer/unigram.h"
#include "data/tokenizer/vocab.h"
#include "data/tokenizer/wordpiece.h"
#include "lateen/tokenizer.h"

typedef enum {
    LT_MODEL_BPE,
    LT_MODEL_UNIGRAM,
    LT_MODEL_WORDPIECE,
    LT_MODEL_WORDLEVEL,
    LT_MODEL_SPM_PIECES /* SentencePiece's CHAR and WORD */
} lt_model_kind;

/* An added token, which is cut out of the text before the model sees it. */
typedef struct {
    uint32_t id;
    bool special, normalized, lstrip, rstrip, single_word;
    lt_text content;
    lt_text decoded; /* LT_PIECE_RENAMED: the normal form, to which it is decoded. */
} lt_added;

/* Settings of SentencePiece's own normalizer (for files in its format and GGUF "llama"). */
typedef struct {
    bool active;
    bool add_dummy_prefix, remove_extra_whitespaces, escape_whitespaces, suffix_whitespace;
    /* Ids are decoded as by SentencePiece; otherwise, for a GGUF, as by llama.cpp. */
    bool from_model;
    lt_text unknown; /* from_model: what <unk> is decoded to. */
    lt_charsmap charsmap;
    lt_trie user; /* User-defined symbols: passed through unchanged, value = id. */
} lt_spm;

/* "truncation" and "padding" of a tokenizer.json: what LT_ENCODE_FIT applies. */
typedef struct {
    bool cuts, cut_left, only_second;
    bool pads, pad_left, pads_fixed;
    uint64_t max_length, stride, fixed, multiple; /* ids */
    uint32_t pad_id;
} lt_fit;

struct lt_tokenizer {
    char *name; /* For messages. */
    const char *kind;
    lt_model_kind model;
    bool byte_level; /* Pieces are raw bytes, not characters. */
    /* Words may also be cut before each run of U+2581, because no piece crosses such a place. */
    bool cut_at_metaspace;
    bool maps_bytes; /* A ByteLevel pre-tokenizer is in the file. */
    /* It must be determined byte by byte which words are first words: normalize_align.c. */
    bool tracks_first;
    lt_vocab vocab;
    lt_bpe bpe;
    lt_unigram unigram;
    lt_wordpiece wordpiece;
    lt_spm_pieces spm_pieces;
    lt_normalizer normalizer;
    lt_pretok pretok;
    lt_spm spm;

    lt_added *added;
    size_t n_added, added_room;
    lt_trie raw, normalized; /* Values index `added`. */

    lt_ids before, after; /* Ids that LT_ENCODE_ADD_SPECIAL adds. */
    bool template_read;   /* A template has set them; it must be the last post-processor. */
    lt_fit fit;
    /* Pieces of a byte_level vocabulary are decoded in printable form, because the decoder is not
     * ByteLevel. */
    bool printable;
    lt_decode_op decode[LT_MAX_DECODE_OPS];
    int n_decode;
    /* What each id adds to a text: that of id ends before texts.data[text_ends[id]], and begins
     * where that of the id before it ends. Empty if every text is the piece. */
    lt_text texts;
    uint32_t *text_ends;

    uint32_t bos, eos, pad, unk, eot;
    /* For lt_tokenizer_info. A GGUF's reader begins the list, lt_tokenizer_find_ends completes
     * it. */
    lt_ids ends;
    bool from_gguf;
    lt_tokenizer_fim fim; /* The tokens that a GGUF's keys name. */
    lt_text chat_template;
};

/* The number of ids and bytes up to an edge of a segment; see tokenizer/mask.c. */
typedef struct {
    size_t ids, bytes;
} lt_token_edge;

struct lt_tokenizer_scratch {
    const lt_tokenizer *owner;
    lt_bpe_scratch *bpe;
    lt_unigram_scratch unigram;
    lt_norm_scratch norm;
    lt_pieces pieces;
    lt_text valid; /* The input with ill-formed UTF-8 replaced. */
    lt_text spm;
    bool keeps_edges; /* Encoding stores the edges of its segments in `edges`. */
    lt_token_edge *edges;
    size_t n_edges, edges_room;
};

/* Normalise a segment, as the model sees it. *out is the segment itself, or scratch that is valid
 * until the next call. */
LT_MUST_USE lt_err lt_tokenizer_normalize(const lt_tokenizer *t, lt_tokenizer_scratch *s,
                                          const char *text, size_t n, const char **out,
                                          size_t *out_n);

/* tokenizer/ends.c: find the tokens that end a text, after all special ones are known. */
LT_MUST_USE lt_err lt_tokenizer_find_ends(lt_tokenizer *t);

/* tokenizer/decode.c: make the texts of all ids, after the decoder is known. */
LT_MUST_USE lt_err lt_tokenizer_make_texts(lt_tokenizer *t);

/* Add one added token (content is copied); vocab gets its piece. */
LT_MUST_USE lt_err lt_tokenizer_add(lt_tokenizer *t, lt_added token, const char *content, size_t n);
LT_MUST_USE lt_err lt_tokenizer_add_decode(lt_tokenizer *t, lt_decode_kind kind, const char *from,
                                           const char *to);

/* Append text to out as SentencePiece normalises it, with U+2581 for spaces. User-defined symbols
 * are not changed. */
LT_MUST_USE lt_err lt_spm_normalize(const lt_spm *m, const char *text, size_t n, lt_text *out);

/* Readers: they fill a zeroed tokenizer whose name is set. `text` is needed only during the
 * call. */
LT_MUST_USE lt_err lt_tokenizer_read_json(lt_tokenizer *t, const char *text, size_t n);
LT_MUST_USE lt_err lt_tokenizer_read_tekken(lt_tokenizer *t, const char *text, size_t n);
LT_MUST_USE lt_err lt_tokenizer_read_ranks(lt_tokenizer *t, const char *text, size_t n,
                                           const char *pattern);
LT_MUST_USE lt_err lt_tokenizer_read_gpt2(lt_tokenizer *t, const char *vocab, size_t vocab_n,
                                          const char *merges, size_t merges_n, const char *pattern);
LT_MUST_USE lt_err lt_tokenizer_read_spm(lt_tokenizer *t, const void *data, size_t n);
LT_MUST_USE lt_err lt_tokenizer_read_llama2c(lt_tokenizer *t, const void *data, size_t n);
struct lt_gguf;
LT_MUST_USE lt_err lt_tokenizer_read_gguf(lt_tokenizer *t, const struct lt_gguf *g);
/* The patterns that a GGUF's pre-tokenizer name stands for, to be applied in turn ('@' and a
 * scanner's name, or a regular expression; NULL after the last). False: the name is unknown. */
#define LT_GGUF_PATTERNS 6
/* A key of our own, BOOL: set if merges are not treated as the name of the pre-tokenizer
 * implies. */
#define LT_GGUF_IGNORE_MERGES "lateen.ignore_merges"
bool lt_gguf_pre_patterns(const char *name, const char *patterns[LT_GGUF_PATTERNS],
                          bool *ignore_merges, bool *add_bos);

/* Set the pre-tokenizer of a byte-level model from a pattern's name ("cl100k", "cl100k_base", ...)
 * or a regular expression. */
LT_MUST_USE lt_err lt_tokenizer_set_pattern(lt_tokenizer *t, const char *pattern);

/* The next merge of a file's list, "left right", in the file's spelling. */
LT_MUST_USE lt_err lt_tokenizer_merge(const lt_tokenizer *t, lt_merge_batch *m, const char *left,
                                      size_t left_n, const char *right, size_t right_n);

/* Append the bytes for which the printable form ("Ġthe") of a byte-level vocabulary stands.
 * *mapped false: a character stands for no byte, and out gets the text itself. */
LT_MUST_USE lt_err lt_tokenizer_unmap(const char *s, size_t n, lt_text *out, bool *mapped);

/* Append the bytes that base64 text stands for (standard alphabet, '=' padding optional). */
LT_MUST_USE lt_err lt_base64_decode(const char *s, size_t n, lt_text *out, const char *name);

/* Called after a reader: build tries and pair tables, and find special ids by their usual
 * names. */
LT_MUST_USE lt_err lt_tokenizer_finish(lt_tokenizer *t);

#endif
