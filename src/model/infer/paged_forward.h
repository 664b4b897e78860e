/* paged_forward.h: the forward pass that serving runs: rows of many sequences whose keys and values
 * lie in pages. (Training and evaluation run pass.h; `generate` and `chat` run session.c.)
 *
 * Ownership: the caller assigns pages (serve/pages.h) and describes them in host arrays; the
 * forward pass owns the pool of pages, the activations and the transfers. Rows may be prompts,
 * pieces of prompts and single new tokens, mixed:
 *
 *     rows       ids, positions (R), slots (groups, R): row r is the token ids[r] at positions[r];
 *                its key and value go to slots[g, r] in layers of group g (page_groups.h).
 *                positions are rows of the rotary table: where the length of a text decides its
 *                rotation (longrope), with lt_paged_forward_rope_rows added
 *     sequences  q_start (N + 1): rows of sequence n; kv_len (N): its tokens after this call; table
 *                (groups, N, max_pages): where they lie
 *     wanted     out_rows (O): rows whose logits or hidden states are wanted; choose, how: for
 *                which rows a token is chosen on the device, and how
 *     penalties  penalty states of sequences (tensor/ops.h, op penalty_set), which picks need
 *                besides their options. begin_penalties sets them, and each pick counts its token
 *
 *     LT_TRY(lt_paged_forward_run(f, &rows));
 *     for (first = 0; first < O; first += n) {
 *         n = ... at most options.out_rows;
 *         LT_TRY(lt_paged_forward_choose_late(f, first, n, ...));   rows whose options came late
 *         LT_TRY(lt_paged_forward_read_picks(f, first, n, &picks));   rows with choose, and those
 *         LT_TRY(lt_paged_forward_logits(f, first, n, wanted, &logits));   the others
 *     }
 *
 * On a backend that works asynchronously, the next call can be queued before the picks of this one
 * are known:
 *
 *     run(1), send(1) ─▶ run(2), send(2) ─▶ take(1) ─▶ run(3), send(3) ─▶ take(2) ...
 *         ids of call 2 that call 1 chooses are written as -1 - the number of the pick
 *     run(1), send(1) ─▶ run(2) ─▶ take(1) ─▶ choose_late(2), send(2) ─▶ run(3) ─▶ ...
 *         picks of call 2 that depend on those of call 1 */
#ifndef LT_MODEL_PAGED_FORWARD_H
#define LT_MODEL_PAGED_FORWARD_H

#include "lateen/model.h"
#include "model/infer/page_groups.h"
#include "tensor/ops.h"

/* Calls of few rows a sequence are padded to at most this many of each, or else to few_rows: a
 * group of four heads with four rows fills a row tile of attention. */
#define LT_PAGED_FORWARD_FEW 4

typedef struct lt_paged_forward lt_paged_forward;
struct lt_draft_pass;

typedef struct {
    int64_t max_rows, max_seqs, max_out;     /* Most rows, sequences and outputs of one call. */
    int64_t out_rows;                        /* Rows of logits at a time. */
    int64_t n_penalty_states;                /* Sequences that can have penalty states. */
    int64_t max_seq;                         /* Most tokens of a sequence. */
    int64_t n_pages, page_tokens, max_pages; /* In the pool; in a page; sets of a sequence. */
    const lt_page_groups *groups;            /* NULL: all layers are one group. It is copied. */
    /* Calls in which each sequence has at most this many rows, all of them wanted, are padded and
     * recorded: 1, or more where drafts are verified (serve/draft.h). 0: 1. Warm-up steps record
     * those of at most few_most rows in all. */
    int64_t few_rows, few_most;
    lt_dtype cache_dtype, value_dtype; /* Types of keys and values (tensor/cached.h). */
    /* A row's bits depend only on its sequence, not on the other rows of the call. */
    bool fixed_order;
    int pieces; /* As in lt_exec. */
    /* A draft pass that gets the input of each layer and the final norm's output (draft_head.h);
     * NULL: none. */
    struct lt_draft_pass *listener;
    bool pad;   /* Pad single tokens to buckets even without graphs; for tests. */
    bool packs; /* Use packs (packs.h) even if they do not pay; for tests. */
} lt_paged_forward_options;

typedef struct {
    int64_t n_rows, n_seqs, n_out;
    int64_t q_max, kv_max;                   /* The largest of the sequences' rows and kv_len. */
    int64_t max_pages;                       /* Columns of table in this call. */
    const int32_t *ids, *positions;          /* ids: -1 - k is pick k that the call before sent. */
    const int32_t *slots;                    /* (groups, n_rows) */
    const int32_t *q_start, *kv_len, *table; /* table: (groups, n_seqs, max_pages) */
    const int32_t *out_rows;
    /* For wanted rows [0, n_choose): whether a token is chosen, and (n_choose, LT_CHOOSE_HOW_COUNT)
     * how, as the op choose defines it. */
    int64_t n_choose;
    const bool *choose;
    const double *how;
    /* (n_rows) the number of each row's steering vector, 0: none, and its scale (steering.h); NULL:
     * no row has one. */
    const int32_t *steer;
    const float *steer_scale;
    /* Rows [0, n_adapted) have an adapter, in the order of places: adapter_start (places + 1) has
     * the first row of each place (lora_pool.h), adapter_scale (n_adapted) the rows' scales; NULL:
     * all are 1. */
    int64_t n_adapted;
    const int32_t *adapter_start;
    const float *adapter_scale;
    bool packed; /* Run as calls with packs do (packs.h), also where no sequences share pages. */
} lt_paged_forward_rows;

LT_MUST_USE lt_err lt_paged_forward_open(lt_paged_forward **out, const lt_model *m,
                                         const lt_paged_forward_options *o);
void lt_paged_forward_close(lt_paged_forward *f);

/* Called between completed calls when the model's weights may have changed. *changed: they have,
 * and everything derived from them was made again; pages still hold keys and values of the older
 * weights. */
LT_MUST_USE lt_err lt_paged_forward_refresh(lt_paged_forward *f, bool *changed);

/* Did the last call run as later calls of its kind will? If it was the first of its shape, or not
 * recorded on a backend with graphs, it did not, and its time says nothing about later calls. */
bool lt_paged_forward_usual(const lt_paged_forward *f);

/* On a backend with graphs: run warm-up step i. There is an empty step for every length of prompt
 * and every number of sequences with kernels or a graph of its own, so that no request waits while
 * these are compiled and recorded. *more: there is another one. Call it between completed calls.
 * No-op on other backends. */
LT_MUST_USE lt_err lt_paged_forward_warm(lt_paged_forward *f, int64_t i, bool *more);
/* Before these: compile the missing kernels of the `first` warm-up steps, many at a time. If there
 * were any, those of the other steps are then compiled in the background. */
LT_MUST_USE lt_err lt_paged_forward_preload(lt_paged_forward *f, int64_t first);
/* Whether the background is still compiling. */
bool lt_paged_forward_compiling(const lt_paged_forward *f);

/* UNSUPPORTED: the model's keys and values cannot be held in these types. */
LT_MUST_USE lt_err lt_paged_forward_check_types(const lt_model *m, lt_dtype keys, lt_dtype values);
/* Bytes of keys and values of page_tokens tokens in one layer, and in all layers. A page holds
 * those of the n_places layers of its group. */
size_t lt_paged_forward_layer_bytes(const lt_model_spec *spec, int64_t page_tokens, lt_dtype keys,
                                    lt_dtype values);
size_t lt_paged_forward_page_bytes(const lt_model_spec *spec, int64_t page_tokens, lt_dtype keys,
                                   lt_dtype values);

/* Copy page src to page dst, all of its layers, in order with the other calls. */
LT_MUST_USE lt_err lt_paged_forward_copy_page(lt_paged_forward *f, int64_t dst, int64_t src);

/* Copy the contents of a set of pages, one of each group, to the caller's page_bytes, or from
 * there: for each layer its keys, then its values. If the backend's memory is the host's, any
 * thread may call these; no call may write the pages at the same time, or read pages that are being
 * put. */
void lt_paged_forward_get_set(const lt_paged_forward *f, const int32_t *set, void *to);
void lt_paged_forward_put_set(lt_paged_forward *f, const int32_t *set, const void *from);

/* The same where there is one group, on any device, queued in order with the other calls, to or
 * from memory of host_alloc (tensor/backend.h), which only further calls of these two may use
 * before they are done. */
LT_MUST_USE lt_err lt_paged_forward_send_page(lt_paged_forward *f, int64_t page, void *to);
LT_MUST_USE lt_err lt_paged_forward_fetch_page(lt_paged_forward *f, int64_t page, const void *from);
/* A number for a send that is queued now; and, without waiting, whether its data has arrived. */
int64_t lt_paged_forward_next(const lt_paged_forward *f);
bool lt_paged_forward_passed(const lt_paged_forward *f, int64_t number);
LT_MUST_USE lt_err lt_paged_forward_sync(lt_paged_forward *f); /* Wait for all that is queued. */
/* From any thread, on a separate queue, and complete on return: for a page that no step uses. */
LT_MUST_USE lt_err lt_paged_forward_load_page(lt_paged_forward *f, lt_queue *queue, int64_t page,
                                              const void *from);

/* The offset added to the positions of a text whose first call has n tokens. */
int64_t lt_paged_forward_rope_rows(const lt_paged_forward *f, int64_t n);

LT_MUST_USE lt_err lt_paged_forward_run(lt_paged_forward *f, const lt_paged_forward_rows *rows);

/* Set the penalty states of n sequences, in order with the other calls: the arguments are those of
 * the op penalty_set, n <= max_seqs, starts[n] <= lt_paged_forward_max_edits. The arrays are
 * copied. The first call before each run or choose_late does not wait; further ones may. */
LT_MUST_USE lt_err lt_paged_forward_begin_penalties(lt_paged_forward *f, int64_t n,
                                                    const int32_t *slots, const int32_t *starts,
                                                    const int32_t *edits);
int64_t lt_paged_forward_max_edits(const lt_paged_forward *f);

/* The results of the op choose, in host memory until the next call: id and rank (n), logprob (n),
 * top_id and top_logprob (n, LT_CHOOSE_TOP). */
typedef struct {
    const int32_t *id, *rank, *top_id;
    const float *logprob, *top_logprob;
} lt_paged_forward_picks;

/* The picks of wanted rows [first, first + n); IDLE for rows without a choice. Here and below,
 * first is a multiple of out_rows, and n <= out_rows. */
LT_MUST_USE lt_err lt_paged_forward_read_picks(lt_paged_forward *f, int64_t first, int64_t n,
                                               lt_paged_forward_picks *out);
/* Choose tokens now for those of the wanted rows [first, first + n) with choose[i]; picks, and the
 * next call's ids, then refer to them. how (n); it uses the first n_masks of
 * lt_paged_forward_masks. At most once per row and call, and not before the picks of the previous
 * call were taken. turn (n), each below few_rows: picks of turn 1 are made after those of turn 0,
 * and so on, because each counts a token in the same penalty state; NULL: all at once. */
LT_MUST_USE lt_err lt_paged_forward_choose_late(lt_paged_forward *f, int64_t first, int64_t n,
                                                const bool *choose, const double *how,
                                                const int32_t *turn, int64_t n_masks);
/* (out_rows, ceil(V / 32)) in host memory, to be written before choose_late and choose_more: the
 * rows to which MASK in `how` refers. */
uint32_t *lt_paged_forward_masks(lt_paged_forward *f);
/* n <= out_rows further picks from the rows of the last call of read_picks; rows[i] counts from its
 * first. */
LT_MUST_USE lt_err lt_paged_forward_choose_more(lt_paged_forward *f, int64_t n, const int32_t *rows,
                                                const double *how, int64_t n_masks,
                                                lt_paged_forward_picks *out);
/* Instead of read_picks: start copying the picks of all n wanted rows, n <= out_rows, to the host,
 * without waiting. n 0: only to know when the call is done. At most one call may be run before they
 * are taken. */
LT_MUST_USE lt_err lt_paged_forward_send_picks(lt_paged_forward *f, int64_t n);
/* Wait for the picks that were sent first, but not for later work. Valid until the next call but
 * one. */
LT_MUST_USE lt_err lt_paged_forward_take_picks(lt_paged_forward *f, lt_paged_forward_picks *out);
/* After a failure: wait for all queued work and ignore its results; there is nothing to take
 * afterwards. */
void lt_paged_forward_drop(lt_paged_forward *f);
/* Logits of those rows of the wanted rows [first, first + n) for which wanted[i] is true (NULL:
 * all): (*logits)[i] (V) F32 in host memory, softcapped, valid until the next call; NULL for the
 * others, which are not copied. */
LT_MUST_USE lt_err lt_paged_forward_logits(lt_paged_forward *f, int64_t first, int64_t n,
                                           const bool *wanted, float *const **logits);
/* The final norm's output (n, C) F32, to host memory of the caller. */
LT_MUST_USE lt_err lt_paged_forward_hidden(lt_paged_forward *f, int64_t first, int64_t n,
                                           float *hidden);

typedef struct {
    size_t cache_bytes, activations_bytes, packed_bytes;
} lt_paged_forward_memory;
/* Seconds and calls by op since open; arrays of LT_OP_COUNT. */
void lt_paged_forward_profile(const lt_paged_forward *f, double *seconds, int64_t *calls);
void lt_paged_forward_get_memory(const lt_paged_forward *f, lt_paged_forward_memory *out);

#endif
