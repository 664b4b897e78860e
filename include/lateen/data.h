/* data.h: token shards and the loader that turns them into training batches.
 *
 *     lt_loader_options o = lt_loader_defaults();
 *     o.sources = &(lt_loader_source){.path = "data/corpus", .weight = 1};
 *     o.n_sources = 1, o.seq = 1024, o.vocab_size = 50257;
 *     lt_loader_open(&l, &o);
 *     lt_loader_next(l, 8, &batch);             8 rows of 1024 tokens into the caller's arrays
 *     lt_loader_get_state(l, &state);           goes into the checkpoint
 *     ...
 *     lt_loader_set_state(l, &state); a resumed run sees exactly the batches it would have seen
 *
 * Shards are Megatron's pair PREFIX.bin + PREFIX.idx, or llm.c's .bin; see docs/formats.md. */
#ifndef LATEEN_DATA_H
#define LATEEN_DATA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lateen/base.h"

/* ---- Shards ---------------------------------------------------------------------------------- */

typedef struct lt_shard lt_shard;

typedef enum { LT_SHARD_MEGATRON, LT_SHARD_LLMC } lt_shard_format;

typedef struct {
    lt_shard_format format;
    int token_bytes;      /* Size of an id in the file: 1, 2, 4 or 8. */
    uint64_t n_tokens;    /* Positions 0 .. n_tokens - 1. */
    uint64_t n_documents; /* Including empty ones. */
    bool masked;          /* The shard has a label mask (PREFIX.mask). */
} lt_shard_info;

/* Map a shard read-only: PREFIX, PREFIX.idx or PREFIX.bin of a Megatron pair, or a .bin of llm.c.
 * llm.c's files have no document table: a document begins at each token llmc_document_id (50256 in
 * its GPT-2 data); -1: the file is one document. Header, sizes, pointers and bounds are checked
 * here, token ids when they are read. If PREFIX.mask exists beside PREFIX.bin, it is the shard's
 * label mask and must hold one byte a token. *out is written only on success; free with
 * lt_shard_close. */
LT_MUST_USE lt_err lt_shard_open(lt_shard **out, const char *path, int64_t llmc_document_id);
void lt_shard_close(lt_shard *s); /* Accepts NULL. */
lt_shard_info lt_shard_get_info(const lt_shard *s);
const char *lt_shard_path(const lt_shard *s); /* Path of the .bin. */

/* Bytes of the mapped files. lt_shard_forget releases the pages that reading has made resident; any
 * thread may call it at any time. */
size_t lt_shard_mapped_bytes(const lt_shard *s);
void lt_shard_forget(const lt_shard *s);

/* Token positions of document d: [*first, *first + *n). */
void lt_shard_document(const lt_shard *s, uint64_t d, uint64_t *first, uint64_t *n);

/* The document that holds token position (< n_tokens). O(log n_documents). */
uint64_t lt_shard_find(const lt_shard *s, uint64_t position);

/* Copy n ids, starting at position. An id outside [0, id_end) fails with FORMAT; the message names
 * shard, position and id, and the content of `ids` is undefined. */
LT_MUST_USE lt_err lt_shard_read(const lt_shard *s, uint64_t position, size_t n, int32_t *ids,
                                 int64_t id_end);

/* silent[i] = true when token position + i is never a label, for n tokens; all false when the shard
 * has no mask. A byte of the mask that is neither 0 nor 1 fails with FORMAT. */
LT_MUST_USE lt_err lt_shard_read_mask(const lt_shard *s, uint64_t position, size_t n, bool *silent);

/* ---- Shards whose tokens are elsewhere ------------------------------------------------------- */

/* A shard whose PREFIX.idx is local; PREFIX.bin and PREFIX.mask are fetched when they are read. */
typedef struct {
    size_t bin_bytes, mask_bytes; /* mask_bytes 0: it has no mask. */
    double modified_s;            /* Unix time; 0: not known. */
} lt_far_shard;

/* Its files while they are held: PREFIX.bin, PREFIX.mask. */
typedef struct {
    char prefix[4096];
    int lock; /* Used by the store. */
} lt_held_shard;

/* The store that fetches them. Threads may call it at the same time. */
typedef struct lt_shard_store lt_shard_store;
struct lt_shard_store {
    /* NULL: the store knows no shard with this prefix; all its files are local. */
    const lt_far_shard *(*find)(lt_shard_store *s, const char *prefix);
    /* Fetch the files, if they are not local, and keep them until let_go. */
    lt_err (*hold)(lt_shard_store *s, const lt_far_shard *shard, lt_held_shard *out);
    void (*let_go)(lt_shard_store *s, lt_held_shard *held);
};

/* lt_shard_open for a Megatron pair that may be in the store; store NULL: there is none. */
LT_MUST_USE lt_err lt_shard_open_far(lt_shard **out, const char *path, int64_t llmc_document_id,
                                     lt_shard_store *store);
const lt_far_shard *lt_shard_far(const lt_shard *s); /* NULL: all its files are local. */

/* ---- Batches --------------------------------------------------------------------------------- */

#define LT_LABEL_IGNORED (-1)

/* All arrays are (batch, seq) int32 and belong to the caller. */
typedef struct {
    int64_t batch, seq;
    int32_t *tokens;
    int32_t *labels; /* The next token, or LT_LABEL_IGNORED. */
    /* Index in the row of the first token of this token's document, before which attention does not
     * look. 0 everywhere if documents are not masked. */
    int32_t *doc_start;
    /* Position ids: the index in the row, or in the document if positions are reset. */
    int32_t *positions;
} lt_batch;

/* ---- Loader ---------------------------------------------------------------------------------- */

typedef struct lt_loader lt_loader;

#define LT_LOADER_SOURCES_MAX 64

/* How documents become rows.
 * STREAM    documents concatenated and cut every seq tokens (Megatron, nanoGPT). Padding only at
 *           the end of an epoch.
 * BEST_FIT  each row begins with a document; documents of at most seq tokens stay whole (longer
 *           ones are cut every seq tokens) and are placed by best-fit decreasing within a window,
 *           so that unshuffled rows begin with the longest; the small rest of a row is padding.
 * SINGLE    no row holds two documents: an epoch has as many rows as documents of at most seq
 *           tokens, so the rows of a step are a number of examples. Unshuffled rows come in the
 *           order of the documents. */
typedef enum { LT_PACK_STREAM, LT_PACK_BEST_FIT, LT_PACK_SINGLE } lt_pack;

/* NONE       in the order of the files.
 * ROWS       rows of the unshuffled stream in random order: STREAM within windows of shuffle_rows
 *            rows, and each epoch cuts the stream at other positions; else within windows of a few
 *            thousand documents.
 * DOCUMENTS  documents in random order, then rows in random order within windows of a few
 * thousand. */
typedef enum { LT_SHUFFLE_NONE, LT_SHUFFLE_ROWS, LT_SHUFFLE_DOCUMENTS } lt_shuffle;

/* ALL of a source, the last val_fraction of its tokens (VAL; the cut is moved to a document's end
 * if one is near), or the rest (TRAIN). */
typedef enum { LT_SPLIT_ALL, LT_SPLIT_TRAIN, LT_SPLIT_VAL } lt_split;

typedef struct {
    /* A shard, or a glob pattern of several ("fineweb_train_*.bin"), in sorted order. */
    const char *path;
    double weight; /* Share of the rows, relative to the other sources; > 0. */
} lt_loader_source;

typedef struct {
    const lt_loader_source *sources;
    int64_t n_sources;  /* 1 .. LT_LOADER_SOURCES_MAX */
    int64_t seq;        /* Tokens in a row, T. */
    int64_t vocab_size; /* Ids at or above it are errors. */
    uint64_t seed;
    lt_pack packing;
    lt_shuffle shuffle;
    int64_t shuffle_rows; /* STREAM with ROWS: rows of a window; 0: the whole epoch is one. */
    lt_split split;
    double val_fraction; /* Share of the tokens that VAL gets. */
    /* 0: endless, mixed by weight. n: each source n times, one after another (evaluation). */
    int64_t epochs;
    int64_t bos_id, eod_id, pad_id; /* -1: none. pad_id -1: padding holds id 0. */
    bool add_bos, add_eod; /* Put bos_id before and eod_id after each document of the shards. */
    /* Attention stays inside documents; a document's last token predicts nothing. */
    bool mask_documents;
    bool reset_positions; /* Position ids start at 0 in each document. */
    /* The label is ignored where the input is eod_id (Megatron's --eod-mask-loss). */
    bool mask_eod;
    /* Drop 1/k of the labels by the hash of h labels (Goldfish); k 0: off. */
    int64_t goldfish_k, goldfish_h;
    int64_t rank,
        /* Rank r of n gets global rows r, r + n, ...; n ranks together see the rows that one
         * would. */
        world;
    int64_t prefetch_rows;    /* Rows that a thread prepares in advance; 0: no thread. */
    int64_t llmc_document_id; /* See lt_shard_open. */
    lt_shard_store *store;    /* Fetches shards that are not local; NULL: all are local. */
} lt_loader_options;

/* seq 1024, STREAM, ROWS, documents masked, positions reset, one rank, 64 rows prefetched; no
 * sources. */
lt_loader_options lt_loader_defaults(void);

/* The position of a loader between two global rows, which is all that a resumed run needs. */
typedef struct {
    uint64_t rows;     /* Rows drawn from this source. */
    uint64_t epoch;    /* Passes over it. */
    uint64_t document; /* Where its current window of rows begins: document in shuffled order ... */
    uint64_t offset;   /* ... and token in that document. */
    uint64_t row;      /* Rows drawn from the current window (ROWS: from the epoch). */
    int64_t credit;    /* Rows that the mixture owes this source, in units of 2^-32. */
} lt_loader_cursor;

typedef struct {
    uint64_t rows; /* Number of global rows of all ranks so far. */
    /* Hash of the data and of the options that determine the rows, and so not of rank, world and
     * prefetch. */
    uint64_t fingerprint;
    int64_t n_sources;
    lt_loader_cursor sources[LT_LOADER_SOURCES_MAX];
} lt_loader_state;

/* Open the shards and start prefetching. Nothing is allocated afterwards. Options are copied; free
 * with lt_loader_close. */
LT_MUST_USE lt_err lt_loader_open(lt_loader **out, const lt_loader_options *options);
void lt_loader_close(lt_loader *l); /* Accepts NULL. */

/* Fill the first n_rows rows of the batch (its `batch` says how many it can hold, and its seq must
 * be the loader's). *got < n_rows only at the end of a bounded loader: the other rows are then
 * padding. got may be NULL when the loader is endless. Global rows advance by n_rows * world;
 * n_rows may change from call to call (batch ramp). */
LT_MUST_USE lt_err lt_loader_next(lt_loader *l, int64_t n_rows, lt_batch *batch, int64_t *got);

/* The state after the rows handed out so far; valid on any number of ranks. */
void lt_loader_get_state(const lt_loader *l, lt_loader_state *out);
/* Continue from a state. Fails with STATE when it belongs to other data or options. */
LT_MUST_USE lt_err lt_loader_set_state(lt_loader *l, const lt_loader_state *state);

/* Write a state as one line of JSON and read it back. LIMIT when `bytes` is too small; 256 per
 * source are plenty. */
LT_MUST_USE lt_err lt_loader_state_print(const lt_loader_state *state, char *out, size_t bytes);
LT_MUST_USE lt_err lt_loader_state_parse(lt_loader_state *out, const char *text, size_t bytes);

typedef struct {
    uint64_t tokens; /* In one epoch of all sources, after the split, with added BOS and EOD. */
    uint64_t documents;
    uint64_t rows;       /* In one epoch; 0: not known in advance (all but STREAM). */
    double wait_s;       /* Time that lt_loader_next has spent waiting for rows since open. */
    size_t memory_bytes; /* Memory of the loader, without the mapped files. */
    size_t mapped_bytes; /* Most that can be resident of the mapped files. */
} lt_loader_info;
lt_loader_info lt_loader_get_info(const lt_loader *l);

/* The shards of a source, in order: their number and their paths. */
int64_t lt_loader_n_sources(const lt_loader *l);
size_t lt_loader_n_shards(const lt_loader *l, int64_t source);
const char *lt_loader_shard_path(const lt_loader *l, int64_t source, size_t shard);
const lt_far_shard *lt_loader_far_shard(const lt_loader *l, int64_t source, size_t shard);
/* Bytes of the shards brought when read, from which consecutive rows are read: if fewer are kept,
 * the same shards are brought again and again. window_bytes: of these, the most that consecutive
 * rows of one source span. */
size_t lt_loader_far_bytes(const lt_loader *l, size_t *window_bytes);
/* Whether shards are read one after another, at least in windows. */
bool lt_loader_in_order(const lt_loader_options *o);

#endif
