/* ops.h: every operation that models use: arguments, shapes, numerics. This file holds the
 * contracts; kernels/ implements them.
 *
 * Notation: B sequences, T query tokens each, S keys, R = B * T rows, C width, H query heads, G
 * key/value heads, D head width, F feed-forward width, V vocabulary, E experts, K experts per
 * token. "act dtype" is F32 or BF16, the same for all activation tensors of a call unless stated
 * otherwise. "[+ x]" is optional, "[+]=" adds where the arguments say so and writes otherwise.
 * Gradients of parameters are F32 and accumulated (added to); gradients of activations are
 * written, or added to where `add_dx` is set. All arithmetic is F32 (F64 in ref/); a BF16 result
 * is rounded once, at the store. Reductions have a fixed order: the same call gives the same
 * bits, for any number of threads.
 *
 * Views may be strided in all but the last dimension (stride 1) unless an op says "contiguous".
 * An optional tensor is absent when its data is NULL. The caller checks shapes: a wrong one fails
 * an assertion. No op allocates memory in steady state. */
#ifndef LT_TENSOR_OPS_H
#define LT_TENSOR_OPS_H

#include <stdbool.h>
#include <stdint.h>

#include "lateen/tensor.h"
#include "tensor/backend.h"

/* y (M, N) = op(a) (M, K) . op(b) (K, N) [+ bias (N)] [+ y]. a, b: act dtype or F16/F32 pairs of
 * equal type; y: F32 or BF16; bias F32 or BF16. trans_a: a is stored (K, M). trans_b: b is stored
 * (N, K), as linear layers keep weights. F32 accumulation. b may also be of a block type
 * (tensor/block.h) with a partner: trans_b, a and y F32, K whole blocks. Then each row of a is
 * rounded to the partner's 8 bits, and y is ggml's dot product (kernels/ref/qdot.c states the order
 * of its sums), bit for bit, whatever M, N, packing or threads. b_packed: the contents of b in the
 * backend's own layout, from matmul_pack, or NULL. b still gives shape and dtype, and its data must
 * stay valid, because an implementation that does not know the layout reads it. For a block type,
 * data may be NULL once b is packed. fixed_order: a row of y has the same bits for every M, so
 * that the result for a token does not depend on its batch. */
typedef struct {
    lt_tensor y, a, b, bias;
    bool trans_a, trans_b, accumulate, fixed_order;
    const void *b_packed;
} lt_matmul_args;

/* Pack b for later products with b_packed. dst has backend->matmul_pack_bytes(b, trans_b) bytes (0:
 * this backend does not pack). */
typedef struct {
    void *dst;
    lt_tensor b;
    bool trans_b;
} lt_matmul_pack_args;

/* y (N) F32 += sum over rows of x (R, N): the gradient of a bias. */
typedef struct {
    lt_tensor y, x;
} lt_colsum_args;

/* y (R, C) = scale * table (V, C)[ids (R) I32] [+ pos_table (P, C)[positions (R) I32]]. An id
 * outside [0, V) is a bug, because ids are checked where data enters. Forward, with late (K) I32,
 * an id -1 - k stands for late[k], which an earlier op has written, or for 0 if late[k] is
 * negative. Backward: dtable (V, C) F32 += scale * dy rows, in order of rows; dpos_table += dy
 * rows in the same way, unscaled. Forward, table may have any type that lt_block_decodes accepts,
 * or be NF4_DOUBLE with its scales (block.h) in table_scales, F32; table_packed is like b_packed
 * of a product.
 * With part, the table holds rows [first, first + V) of a larger table. Forward, a row of y whose
 * id is not among them is 0, without a position; backward, such a row of dy adds nothing to
 * either table. late is then absent. */
typedef struct {
    lt_tensor y, table, ids, pos_table, positions, late;
    float scale;
    const void *table_packed;
    lt_tensor table_scales;
    bool part;
    int64_t first;
} lt_embed_args;
typedef struct {
    lt_tensor dtable, dpos_table, dy, ids, positions;
    float scale;
    bool part;
    int64_t first;
} lt_embed_bwd_args;

/* RMSNorm (Zhang & Sennrich 2019, arXiv:1910.07467) over the last dimension:
 *   x' = x [+ add; x' is also stored to sum, and used as stored]
 *   rstd = 1 / sqrt(mean(x'^2) + eps); y = x' * rstd * (gain_offset + gain)
 * x, y, add, sum: (R, C) or (R, H, C) for per-head norms; gain (C) F32 or BF16; rstd F32, one per
 * normalised row, contiguous, may be absent. Backward from x' (= sum): dx [+]= ..., dgain (C) F32
 * += ..., unless it is absent. dy and dx may be the same tensor.
 *
 * x may have only some columns of wider rows, of which other ranks have as many columns each.
 * Then a norm takes two calls, and between them the caller averages the results of the first one:
 *   forward   LT_NORM_MEASURE writes mean(x^2) to rstd, and nothing else;
 *             LT_NORM_GIVEN reads the mean of the whole row there, and writes rstd and y
 *   backward  LT_NORM_MEASURE writes mean(gain dy x rstd) to mean (R) F32, and nothing else;
 *             LT_NORM_GIVEN reads the mean of the whole row there. */
typedef enum { LT_NORM_ALONE, LT_NORM_MEASURE, LT_NORM_GIVEN } lt_norm_part;
typedef struct {
    lt_tensor y, x, add, sum, gain, rstd;
    float eps, gain_offset;
    lt_norm_part part;
} lt_rmsnorm_args;
typedef struct {
    lt_tensor dx, dgain, dy, x, gain, rstd, mean;
    float gain_offset;
    bool add_dx;
    lt_norm_part part;
} lt_rmsnorm_bwd_args;

/* LayerNorm (Ba et al. 2016, arXiv:1607.06450): y = (x' - mean) * rstd * gain + bias, x' and sum as
 * in rmsnorm; biased variance. */
typedef struct {
    lt_tensor y, x, add, sum, gain, bias, mean, rstd;
    float eps;
} lt_layernorm_args;
typedef struct {
    lt_tensor dx, dgain, dbias, dy, x, gain, mean, rstd;
    bool add_dx;
} lt_layernorm_bwd_args;

/* Rotary embedding (Su et al. 2021, arXiv:2104.09864), halves convention (GPT-NeoX, Hugging Face):
 * for i < N/2, with (c, s) = table[position][i]: y[i] = x[i] c - x[i+N/2] s; y[i+N/2] = x[i+N/2] c
 * + x[i] s; columns from N on are copied. x, y (R, H, D), may be the same; positions (R) I32; table
 * (P, N/2, 2) F32 cos, sin. inverse: rotate back (the backward pass). */
typedef struct {
    lt_tensor y, x, positions, table;
    bool inverse;
} lt_rope_args;

/* QK-norm and rotation in one pass (Henry et al. 2020, arXiv:2010.04245). x, y (R, H, D): the first
 * n_q heads of a row are queries, the others keys;
 *   n = x * rstd, rstd = 1 / sqrt(mean(x^2) + eps); y = rotate(n * (gain_offset + gain))
 * The rotation is that of rope; gain: q_gain or k_gain (D), F32 or BF16.
 * Nothing is rounded between norm and rotation. y is not x. rstd (R, H) F32, contiguous; may be
 * absent. Backward: g = rotate back(dy), and from g as in rmsnorm: dx, dq_gain (D) F32 +=, dk_gain
 * (D) F32 +=, unless both are absent. dx may be dy. */
typedef struct {
    lt_tensor y, x, positions, table, q_gain, k_gain, rstd;
    float eps, gain_offset;
    int64_t n_q;
} lt_qk_norm_args;
typedef struct {
    lt_tensor dx, dq_gain, dk_gain, dy, x, positions, table, q_gain, k_gain, rstd;
    float gain_offset;
    int64_t n_q;
} lt_qk_norm_bwd_args;

/* Attention, out (B, T, H, D) = softmax(mask(softcap(scale * q k^T))) v, without ever storing T x
 * S. q (B, T, H, D); k, v (B, S, G, D), H a multiple of G (head h reads h / (H / G)). Query row t
 * of sequence b has key position p = kv_len[b] - T + t, where kv_len (B) I32 defaults to S; keys
 * from kv_len[b] on do not exist. Visible keys s: s <= p if causal; s > p - window if window > 0; s
 * >= doc_start[b][t] if doc_start (B, T) I32 is given (index of the first token of the token's
 * document). softcap c > 0: x -> c tanh(x / c). alibi (H) F32 slopes: adds slope * (s - p), after
 * the softcap. sinks (H) F32: one more logit in the softmax's denominator. lse (B, H, T) F32:
 * log-sum-exp of the masked logits (sink included), for the backward pass; may be absent. A row
 * without visible keys: out 0, lse -inf. Forward, k and v may be F16 if q and out are F32.
 * Backward (Dao et al. 2022, arXiv:2205.14135, appendix B): dq, dk, dv written; dsinks F32 added
 * to; delta (B, H, T) F32 is scratch. */
typedef struct {
    lt_tensor out, lse, q, k, v, kv_len, doc_start, alibi, sinks;
    float scale, softcap;
    int64_t window; /* 0: unlimited. */
    bool causal;
} lt_attention_args;
typedef struct {
    lt_tensor dq, dk, dv, dsinks, delta, dout;
    lt_attention_args fwd; /* The forward call's arguments; out and lse hold its results. */
} lt_attention_bwd_args;

/* Attention whose keys are divided among calls: combine the result of one call with those of
 * earlier calls (Dao et al. 2022, section 3.1). out (B, T, H, D) F32 and lse (B, H, T) are the
 * results so far, part and part_lse those of more keys:
 *   l = log(exp(lse) + exp(part_lse) [+ exp(sinks[h])]),
 *   out = out exp(lse - l) + part exp(part_lse - l),  lse = l
 * first: there are no earlier results, and out and lse are only written. Rows without any key in
 * part have part_lse -inf. sinks (H) F32 are given to one of the calls, and were not part of its
 * inputs. */
typedef struct {
    lt_tensor out, lse, part, part_lse, sinks;
    bool first;
} lt_attention_merge_args;

/* For an attention call with the keys of another rank: the first key that each query sees, for
 * doc_start of that call. A sequence is cut into pieces of `piece` tokens. A rank's queries are
 * those of pieces q_piece[0] and q_piece[1], one after the other, of which the call has T from
 * q_first on; the keys are those of k_piece[0] and k_piece[1]. y (B, T) I32 = how many of the
 * keys are before position doc_start[b][t] (B, T) I32 (absent: 0) or, with window > 0, before the
 * query's position - window + 1 if that is larger. */
typedef struct {
    lt_tensor y, doc_start;
    int64_t window, piece, q_first;
    int q_piece[2], k_piece[2];
} lt_attention_starts_args;

/* A paged key/value cache: pages (n, P, G, D) of keys and as many of values, contiguous, each of
 * a type of tensor/cached.h, independent of the act dtype; P is a multiple of 16. Token s of a
 * sequence lies in page table[s / P] at row s % P; its slot is page * P + row. kv_write: stores
 * rows of k and v (R, G, D) at slots (R) I32, rounded once. Slot -1: the row is dropped. No two
 * rows share a slot. */
typedef struct {
    lt_tensor k_pages, v_pages, k, v, slots;
} lt_kv_write_args;

/* Causal attention of the newest tokens of N sequences over such a cache. Rows [q_start[n],
 * q_start[n + 1]) of q and out (R, H, D) are the last tokens of sequence n, which has kv_len[n]
 * tokens, these included and already written. q_start (N + 1), kv_len (N), table (N, most pages)
 * I32; entries of table after the last page of a sequence are not read. window, softcap, alibi,
 * sinks: as in attention. q_max, kv_max: no sequence has more rows or tokens, so that a device can
 * size its launch without reading the arrays. table, q_start, kv_len and the keys of tokens before
 * these rows exist before the step: a device may read them before preceding ops have finished.
 * prompt_keys: the total number of tokens of all sequences with at least LT_PROMPT_ROWS rows, so
 * that a device can size a copy of their keys; 0: unknown.
 * fixed_order: a row's bits depend only on its own query and keys, not on R, N, other rows of the
 * sequence or the places of its pages.
 * packs (N, 3) I32, absent: none. Sequence n belongs to a pack that begins with sequence
 * packs[n][0] and has packs[n][1] sequences, 1 if n is alone; they are consecutive and have one
 * row each. Their first packs[n][2] tokens, fewer than the kv_len of any, are in the same pages,
 * so that a device may read those keys once for several sequences. Results have the same bits
 * without packs. Devices ignore packs with a window. */
typedef struct {
    lt_tensor out, q, k_pages, v_pages, table, q_start, kv_len, alibi, sinks, packs;
    float scale, softcap;
    int64_t window; /* 0: unlimited. */
    int64_t q_max, kv_max, prompt_keys;
    bool fixed_order;
} lt_attention_paged_args;
#define LT_PROMPT_ROWS 64

/* Activations. name, text in config.json */
#define LT_ACT_MAP(X)                                                                              \
    X(GELU_TANH, "gelu_pytorch_tanh") /* 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))) */        \
    X(GELU, "gelu")                   /* x Phi(x), erf form */                                     \
    X(SILU, "silu")                                                                                \
    X(RELU, "relu")                                                                                \
    X(RELU2, "relu2")                   /* max(x, 0)^2 */                                          \
    X(XIELU, "xielu")                   /* research: training.md 1.1, arXiv:2411.13010 */          \
    X(SWIGLU_CLAMPED, "swiglu_clamped") /* gpt_oss; gated only */
typedef enum {
#define LT_ACT_ENUM(name, text) LT_ACT_##name,
    LT_ACT_MAP(LT_ACT_ENUM)
#undef LT_ACT_ENUM
        LT_ACT_COUNT
} lt_act_kind;

/* Plain: y (R, F) = f(x (R, F)). Gated: x (R, 2F) = [gate | up], y = f(gate) * up.
 * xIELU, x > 0: a_p x^2 + b x; x <= 0: a_n (expm1(min(x, eps)) - x) + b x; a_p = softplus(p), a_n =
 * b + softplus(n); b = 0.5, eps = -1e-6; xielu_params (2) F32 = p, n. Backward: dx; dxielu_params
 * (2) F32 +=. dx may be x's own memory or, not gated, dy's.
 * SWIGLU_CLAMPED, gated: y = g sigmoid(alpha g) (u + 1), g = min(gate, limit), u = up clamped to
 * [-limit, limit]; clipped values have no gradient. alpha and limit, above 0, are only for this
 * kind. */
typedef struct {
    lt_tensor y, x, xielu_params;
    lt_act_kind kind;
    bool gated;
    float alpha, limit;
} lt_act_args;
typedef struct {
    lt_tensor dx, dxielu_params, dy, x, xielu_params;
    lt_act_kind kind;
    bool gated;
    float alpha, limit;
} lt_act_bwd_args;
#define LT_XIELU_BETA 0.5f
#define LT_XIELU_EPS  (-1e-6f)

/* A product followed by a plain activation, or preceded by its backward, so that a device can do
 * both in one pass. xIELU is excluded.
 *   forward   x (M, N) = a (M, K) . op(b) [+ bias], stored; y = f(x) of x as stored, with the bits
 *             of act_fwd
 *   backward  y = d f'(x), d = a . op(b); y may share memory with x or d. d (M, N), act dtype, is
 *             scratch for implementations in two steps.
 * op(b) as in matmul; fixed_order too. */
typedef struct {
    lt_tensor y, x, a, b, bias, d;
    lt_act_kind kind;
    bool trans_b, backward, fixed_order;
    const void *b_packed;
} lt_matmul_act_args;

/* y = alpha * a + beta * b (b optional). Any equal shapes; dtypes may differ. y may be a or b. */
typedef struct {
    lt_tensor y, a, b;
    float alpha, beta;
} lt_add_args;

/* y = part + x[0] + x[1] + ... + x[n - 1], in this order, in F32, rounded once; part F32 or absent.
 * All are (C), contiguous; the x have the same type, F32 or BF16; y has this type or F32. y may
 * be part or any of the x. */
#define LT_SUM_MOST 16
typedef struct {
    lt_tensor y, part, x[LT_SUM_MOST];
    int n;
} lt_sum_args;

/* y[i] = the sum of rows index[start[i]], ..., index[start[i + 1] - 1] of x, in this order, in F32,
 * rounded once; without start, row index[i] alone. An index of -1 stands for a row of zeros, and
 * so is an empty sum. y (N, C), x (M, C), F32 or BF16, rows contiguous; index (K) and start (N +
 * 1) I32. */
typedef struct {
    lt_tensor y, x, index, start;
} lt_gather_rows_args;

/* Cross-entropy of logits (R, V), F32 or BF16, against labels (R) I32, -1 = ignored. The caller
 * passes a chunk of rows at a time, so that the logits of all rows never exist at once. l =
 * softcap(logits) first if softcap > 0. Per row: lse; loss = lse - l[label]; z = z_coef * lse^2
 * (PaLM's z-loss). loss (R) F32 gets lse - l[label] (0 where ignored), lse (R) F32 optional (of
 * every row). With grad_scale != 0 the logits are replaced by grad_scale * d(loss + z)/d(logits), 0
 * in ignored rows. weights (R) F32 optional: each row's gradient, but not its loss, is multiplied
 * by its weight, which may have any sign. best (R) I32 optional: argmax (lowest index of ties).
 *
 * The logits may be those of a part of the vocabulary, ids [first, first + V). labels and best are
 * ids of the whole vocabulary, which has less than 2^24 of them. Such a row takes two calls:
 *   1. with part (R, LT_XENT_PART) F32, contiguous: writes the numbers of this part that the
 *      softmax of the whole row needs, and nothing else;
 *   2. with parts (n, R, LT_XENT_PART) F32: the results of the first call for each part, by
 *   ascending ids.
 *      loss, lse, best and the gradient are those of the whole row. The parts are summed in their
 *      order, so the results have the same bits whichever part the call has. */
enum {
    LT_XENT_MAX,  /* The largest l. */
    LT_XENT_SUM,  /* The sum of exp(l - max). */
    LT_XENT_HIT,  /* l[label]; 0 if the label is in another part or is ignored. */
    LT_XENT_BEST, /* The lowest id whose l is the largest. */
    LT_XENT_PART
};
typedef struct {
    lt_tensor logits, labels, loss, lse, best, weights, part, parts;
    float grad_scale, softcap, z_coef;
    int64_t first;
} lt_xent_args;

/* The divergence of two distributions of the next token, one row for each: q of a student, logits
 * (R, V) F32 or BF16, and p of a teacher. loss (R) F32 = (1 - label_share) D + label_share * (the
 * label's cross-entropy), 0 in rows with label -1. labels (R) I32, weights and softcap are as in
 * xent; with grad_scale != 0 the logits are replaced by grad_scale * weight * d(loss)/d(logits).
 *
 * q = softmax(softcap(logits) / temperature); the cross-entropy is that of temperature 1. The
 * teacher is given in one of two forms:
 *   teacher (R, V) F32 or BF16: its logits. p = softmax(softcap(teacher) / temperature), with
 *     teacher_softcap;
 *   ids (R, K) I32, logp (R, K) F32: K tokens of the row, by ascending ids, and the logarithms of
 *     their probabilities at this temperature; -1 follows the last one. With `rest`, the
 *     remaining probability of each distribution is that of one further token, if the teacher's
 *     is at least LT_DISTILL_REST; otherwise both are divided by their sums over the K tokens.
 *
 * D is the generalised Jensen-Shannon divergence of Agarwal et al. 2024, arXiv:2306.13649, equation
 * 1, in nats: beta KL(p, m) + (1 - beta) KL(q, m) with m = beta p + (1 - beta) q. beta 0 stands for
 * KL(p, q), the forward divergence, and 1 for KL(q, p), the reverse one. */
#define LT_DISTILL_REST 1e-7 /* About the rounding of a sum of F32 probabilities. */
typedef struct {
    lt_tensor logits, labels, loss, weights, teacher, ids, logp;
    float grad_scale, softcap, teacher_softcap, temperature, beta, label_share;
    bool rest;
} lt_distill_args;

/* The penalty states of S sequences, which choose reads: penalties (S, V + LT_PENALTY_BIASES) I32,
 * rows contiguous. Word `id` of a row combines LT_PENALTY_PROMPT (the id occurs in the prompt),
 * LT_PENALTY_END (it ends a text), LT_PENALTY_BIAS (k > 0: word V + k holds the bits of an F32 that
 * is added to its logit) and LT_PENALTY_COUNT (how often it occurs in the output).
 *
 * penalty_set starts N rows: it zeroes row slots[n] (N) I32, then sets word `place` of it to `word`
 * for each (place, word) in edits (E, 2) I32 [starts[n], starts[n + 1]); starts (N + 1) I32. Each
 * slot occurs at most once, and so does each place in a slot. */
enum {
    LT_PENALTY_PROMPT = INT32_MIN,
    LT_PENALTY_END = 1 << 30,
    LT_PENALTY_BIAS_SHIFT = 20,
    LT_PENALTY_BIASES = 1 << 10,
    LT_PENALTY_COUNT = (1 << LT_PENALTY_BIAS_SHIFT) - 1
};
typedef struct {
    lt_tensor penalties, slots, starts, edits;
} lt_penalty_set_args;

/* Choose one token for each of P picks from a row of logits (R, V) F32 on the device, as
 * model/infer/sampler.h does on the host. rows (P) I32 is the row of each pick; -1: the pick is
 * idle; LT_CHOOSE_SKIP: the pick is ignored. how (P, LT_CHOOSE_HOW_COUNT) F64, contiguous, holds
 * its options, named here in capitals. l = softcap(logits) if softcap > 0, otherwise the logits.
 *
 * SLOT >= 0 is a row of penalties (-1: none). First, the output count of id NEW in that row grows
 * by 1, unless NEW is LT_CHOOSE_NO_NEW; NEW = -1 - k stands for late[k], of late (K) I32, or for 0
 * if late[k] is negative. Then l, rounded to F32, is adjusted to x, in this order:
 *   the bias of the id is added (F32);
 *   x = -inf if BANS is not 0 and the id ends a text, or if row MASK >= 0 (-1: none) of masks
 *   (M, ceil(V / 32)) I32 lacks bit id % 32 in word id / 32;
 *   if the id occurs in the prompt, or n times in the output, then in F64, each operation rounded:
 *   a positive x is divided by REPETITION, another one multiplied by it; minus FREQUENCY * n; minus
 *   PRESENCE if n > 0; rounded to F32. A NaN stays NaN.
 *
 * FORCED >= 0 (-1: none) is chosen if any l is above -inf. Otherwise, TEMPERATURE t <= 0 chooses
 * the largest x, the lowest index of ties. Otherwise each id has the weight w = exp((x - max x) /
 * t), and the ids are ordered by weight, the largest first, then by index. In this order:
 *   TOP_K > 0 keeps that many;
 *   TYPICAL < 1 keeps the fewest, at least one, that make up this share of the remaining weight,
 *   beginning with those whose -log w is nearest to its mean weighted by w (whose information is
 *   nearest to the entropy), then by index;
 *   TOP_P < 1 keeps the fewest, at least one, that make up this share of the remaining weight;
 *   MIN_P keeps those whose w is at least MIN_P times the largest w that is left;
 *   DRAW in [0, 1) chooses, by ascending index, the first id at which the running sum of w
 *   exceeds DRAW times the total.
 *
 * id (P) I32 is the token, or one of LT_CHOOSE_*. With N_TOP >= 0: logprob (P) F32 is
 * log softmax(l)[id]; rank (P) I32 the number of larger l; top_id and top_logprob
 * (P, LT_CHOOSE_TOP) I32 and F32, contiguous, the N_TOP ids of largest l above -inf, the largest
 * first, then by index, followed by -1 and 0. Otherwise, and for picks that choose nothing, they
 * are 0, 0, -1 and 0. All four may be absent if no pick needs them. Devices sum weights as
 * integers, exactly in any order. Picks that are not idle have distinct slots. penalties, masks and
 * late may be absent if no pick needs them. */
enum {
    LT_CHOOSE_TEMPERATURE,
    LT_CHOOSE_TOP_K,
    LT_CHOOSE_TOP_P,
    LT_CHOOSE_MIN_P,
    LT_CHOOSE_DRAW,
    LT_CHOOSE_N_TOP,
    LT_CHOOSE_TYPICAL,
    LT_CHOOSE_REPETITION,
    LT_CHOOSE_FREQUENCY,
    LT_CHOOSE_PRESENCE,
    LT_CHOOSE_BANS,
    LT_CHOOSE_SLOT,
    LT_CHOOSE_NEW,
    LT_CHOOSE_MASK,
    LT_CHOOSE_FORCED,
    LT_CHOOSE_HOW_COUNT
};
#define LT_CHOOSE_TOP    20
#define LT_CHOOSE_NO_NEW INT32_MIN
#define LT_CHOOSE_SKIP   (-2) /* A value of rows. */
#define LT_CHOOSE_IDLE   (-1)
#define LT_CHOOSE_NONE   (-2) /* All x are -inf. */
#define LT_CHOOSE_NAN    (-3)
/* The options after N_TOP for a pick that uses none of them. */
#define LT_CHOOSE_PLAIN 1, 1, 0, 0, 0, -1, LT_CHOOSE_NO_NEW, -1, -1
typedef struct {
    lt_tensor id, logprob, rank, top_id, top_logprob, logits, rows, how, penalties, masks, late;
    float softcap;
} lt_choose_args;

/* Mixture-of-experts routing (Shazeer 2017, Fedus 2021 [switch], Jiang 2024 [mixtral]). logits (R,
 * E) F32. probs (R, E) F32 = softmax; experts (R, K) I32 the K largest (ties: lower index), weights
 * (R, K) F32 their probabilities, divided by their sum if normalise. slots: a stable counting sort
 * of the R * K assignments (row-major) by expert: slot_row (R * K) I32 has, for each slot in
 * expert order, its assignment r * K + k; expert_start (E + 1) I32. capacity > 0: assignments
 * beyond the first `capacity` of an expert are dropped (weight 0, placed after expert_start[E],
 * which then is the number kept; weights are normalised before dropping). aux (2) F32: [0]
 * load-balancing loss E * sum_e f_e P_e, f_e = share of the R * K assignments (before dropping)
 * that chose e, P_e = mean probability (transformers' Mixtral counts each of a row's K choices as
 * a whole row: K times this); [1] mean over rows of lse(logits)^2 (router z-loss). Backward:
 * dlogits (R, E) from dweights (R, K), plus aux_coef and z_coef times the gradients of the two
 * aux losses (f_e is constant); aux_scale (1) F32, optional, multiplies both on the device, so
 * that a recorded graph reads its current value. */
#define LT_MOE_MAX_EXPERTS 1024
#define LT_MOE_MAX_TOP_K   64
typedef struct {
    lt_tensor probs, experts, weights, slot_row, expert_start, aux, logits;
    int64_t capacity; /* 0: dropless. */
    bool normalise;
} lt_moe_route_args;
typedef struct {
    lt_tensor dlogits, dweights, logits, probs, experts, weights, expert_start, aux_scale;
    float aux_coef, z_coef;
    bool normalise;
} lt_moe_route_bwd_args;

/* Copy rows into expert order and back. n = expert_start[E] rows are valid.
 * gather   y (n, C) = x[slot_row[i] / K]
 *          backward: dx (R, C) [+]= sum of dy over a row's slots
 * combine  y (R, C) = sum_k weights[r][k] * x[slot of (r, k)]
 *          backward: dx (n, C) = w * dy[row]; dweights[r][k] = <x[slot], dy[row]> */
typedef struct {
    lt_tensor y, x, slot_row, expert_start;
    int64_t top_k;
} lt_moe_gather_args;
typedef struct {
    lt_tensor dx, dy, slot_row, expert_start;
    int64_t top_k;
    bool add_dx;
} lt_moe_gather_bwd_args;
typedef struct {
    lt_tensor y, x, weights, slot_row, expert_start;
} lt_moe_combine_args;
typedef struct {
    lt_tensor dx, dweights, dy, x, weights, slot_row, expert_start;
} lt_moe_combine_bwd_args;
/* Biases of experts, bias (E, N): y (n, N), rows in expert order, += that of the row's expert. Rows
 * beyond start[E] are not touched. Backward: dbias (E, N) F32 += sums over an expert's rows. */
typedef struct {
    lt_tensor y, bias, expert_start;
} lt_moe_bias_args;
typedef struct {
    lt_tensor dbias, dy, expert_start;
} lt_moe_bias_bwd_args;

/* The experts' products, dropless: expert e owns rows [start[e], start[e + 1]) of the rows in
 * expert order; start = expert_start (E + 1) I32, contiguous, is read on the device, never by the
 * host.
 *   rows     y (n, N) rows of e [+]= a (n, K) rows of e . op(b[e]), b (E, K, N), or (E, N, K) with
 *            trans_b. Rows beyond start[E] are not touched.
 *   weights  y (E, M, N) F32 [e] [+]= (a rows of e)^T . b rows of e, a (n, M), b (n, N): the
 *            gradient of the experts' matrices. trans_b is ignored.
 * a, b: one type; y: F32 or BF16. Rows: b may also have a type that matmul takes beside a's, with
 * trans_b. b_packed: b as a matrix (E N, K) in the layout of matmul_pack, packed_step bytes for
 * each expert, or NULL; data of blocks may then be NULL. b_each, on a host: b[e] is at b_each[e],
 * with b's strides; NULL: in b. */
typedef struct {
    lt_tensor y, a, b, expert_start;
    bool weights, trans_b, accumulate, fixed_order; /* fixed_order: as in matmul. */
    const void *b_packed;
    size_t packed_step;
    const unsigned char *const *b_each;
} lt_matmul_grouped_args;

/* Add the products of adapters when each row has its own (Chen et al. 2023, "Punica",
 * arXiv:2310.18547): for a step of serving in which few rows have many adapters.
 *
 *     u (n, parts R) F32 = x (n, K) . a[place] (parts, R, K)^T
 *     y (n, first_of_y ..) += scale * u of the part (n, R) . b[place] (R, first_of_b ..), each part
 *
 * a (places, parts, R, K), b (places, R, columns), of x's type, rows contiguous; place (n) I32, -1:
 * the row has none, and its u and y are not written; scale (n) F32, absent: 1. Sums in F32; y is
 * rounded once. A row's bits depend neither on n nor on the other rows. place, a and b exist before
 * the step: a device may read them before preceding ops have finished. */
#define LT_LORA_ADD_PARTS 3
typedef struct {
    int64_t first_of_y, first_of_b, columns;
} lt_lora_add_part;

typedef struct {
    lt_tensor y, x, a, b, u, place, scale;
    int n_parts;
    lt_lora_add_part parts[LT_LORA_ADD_PARTS];
} lt_lora_add_args;

/* Scale and shift the product with the base as DoRA does (model/lora/dora.h), before that with
 * the adapter is added:
 *
 *     y (n, columns) = factor[place] (columns) * y + offset[place] (columns)
 *
 * factor, offset (places, columns) F32, offset absent: 0; place (n) I32, -1: the row of y is not
 * changed. y is rounded once. All but y exist before the step. */
typedef struct {
    lt_tensor y, factor, offset, place;
} lt_lora_scale_args;

/* A linear layer with an adapter (Hu et al. 2021, arXiv:2106.09685), or the gradient of its input:
 * the product `base`, then for each part of y's columns
 *
 *     y (M, first_of_y ..) += u (M, part R .. part R + R) . op(v)
 *
 * u (M, parts R), rows contiguous; op(v) (R, columns) as base.trans_b says: rows first_of_b on of v
 * (rows, R), transposed, or columns first_of_b on of v (R, columns). Implementations in one pass
 * round y once, those in two passes twice. */
typedef struct {
    lt_matmul_args base;
    lt_tensor u, v;
    int n_parts;
    lt_lora_add_part parts[LT_LORA_ADD_PARTS];
} lt_matmul_lora_args;

/* Optimiser steps over flat buffers of count elements; p, g, moments F32 contiguous; all moments of
 * AdamW and AdEMAMix may be BF16 instead (see below). copy: BF16 copy of p, written if present.
 * decay: decoupled weight decay. g is multiplied by grad_scale (clipping) when it is read. step
 * counts from 1.
 *   AdamW     (Loshchilov & Hutter 2017, arXiv:1711.05101), as torch.optim.AdamW:
 *             p *= 1 - lr * decay; m, v EMAs; p -= lr * m^ / (sqrt(v^) + eps)
 *   AdEMAMix  (Pagliardini et al. 2024, arXiv:2409.03137), as in swiss-ai's code: m1 EMA(beta1)
 *             bias-corrected, m2 EMA(beta3) not, v EMA(beta2) bias-corrected;
 *             p -= lr * ((m1^ + alpha * m2) / (sqrt(v^) + eps) + decay * p);
 *             the caller has applied the warm-up of alpha and beta3
 *   Lion      (Chen et al. 2023, arXiv:2302.06675): p *= 1 - lr * decay;
 *             p -= lr * sign(beta1 m + (1 - beta1) g); m = beta2 m + (1 - beta2) g */
/* Moments in BF16 are stored with stochastic rounding (lt_f32_to_bf16_drawn). With rounding to
 * nearest a slow moment would never change, because 1 - beta is less than half a unit of BF16. The
 * step itself uses the F32 values. The random bits of element i come from lt_rng_block(words, seed,
 * LT_OPTIM_STREAM | step mod 2^24, first + i): m (m1), v and m2 take the low halves of words 0, 1,
 * 2. first is the index of element 0 in the whole model, so a part, a rank or a resumed run draws
 * the same bits as the whole. */
#define LT_OPTIM_STREAM    (UINT64_C(0x6d6f6d73) << 32)
#define LT_OPTIM_STEP_MASK 0xFFFFFF /* An F32 holds such numbers exactly. */
/* now, optional, (LT_OPTIM_NOW_COUNT) F32 in device memory, holds what changes from step to step,
 * so that a recorded graph reads the current values; lr, alpha, beta3, grad_scale and step of the
 * arguments are then ignored. CORRECT1, CORRECT2: 1 - beta^step. SKIP not 0: nothing changes. STEP:
 * step mod 2^24, read only for moments in BF16. */
enum {
    LT_OPTIM_LR,
    LT_OPTIM_GRAD_SCALE,
    LT_OPTIM_CORRECT1,
    LT_OPTIM_CORRECT2,
    LT_OPTIM_ALPHA,
    LT_OPTIM_BETA3,
    LT_OPTIM_SKIP,
    LT_OPTIM_STEP,
    LT_OPTIM_NOW_COUNT
};
typedef struct {
    lt_tensor p, g, m, v, copy, now;
    float lr, beta1, beta2, eps, decay, grad_scale;
    int64_t step, first;
    uint64_t seed;
} lt_adamw_args;
typedef struct {
    lt_tensor p, g, m1, m2, v, copy, now;
    float lr, beta1, beta2, beta3, alpha, eps, decay, grad_scale;
    int64_t step, first;
    uint64_t seed;
} lt_ademamix_args;
typedef struct {
    lt_tensor p, g, m, copy, now;
    float lr, beta1, beta2, decay, grad_scale;
} lt_lion_args;

/* Gradient clipping on the device: norm = scale * sqrt(sumsq (1) F64); now[GRAD_SCALE] = scale *
 * min(1, max_norm / norm), without clipping for max_norm 0; now[SKIP] = 0 if norm is finite,
 * otherwise 1. norm (1) F32 is optional. */
typedef struct {
    lt_tensor now, sumsq, norm;
    float scale, max_norm;
} lt_clip_args;

/* Muon (Jordan 2024; Newton-Schulz with a = 3.4445, b = -4.7750, c = 2.0315), one 2-D parameter p
 * (N, M) at a time: m = momentum * m + g; u = g + momentum * m (Nesterov); u = NS5(u / max(|u|_F,
 * 1e-7)) in `steps` iterations; p *= 1 - lr * decay; p -= lr * scale * u. scratch: F32,
 * lt_muon_scratch_count(N, M) elements. products: F32, or BF16: then the operands and results of
 * the iterations' products are rounded to BF16, and their sums are F32. */
typedef struct {
    lt_tensor p, g, m, copy, scratch, now; /* now: only LR, GRAD_SCALE and SKIP are read. */
    float lr, momentum, decay, scale, grad_scale;
    int64_t steps;
    bool nesterov;
    lt_dtype products;
} lt_muon_args;
int64_t lt_muon_scratch_count(int64_t rows, int64_t cols);

/* out (1) F64 [+]= sum of squares of x (contiguous F32), summed in a fixed order for any number of
 * threads; a NaN or Inf in x makes out NaN or Inf. */
typedef struct {
    lt_tensor out, x;
    bool accumulate;
} lt_sumsq_args;

/* out (n) I64: hashes of n pieces of memory. Piece i is the pieces[i][1] bytes that begin at byte
 * pieces[i][0] of x.data; pieces (n, 2) is I64. Shape and type of x only say how many bytes may
 * be read. With w_k the 64-bit words of a piece, k = 1, 2, ..., little endian, the last one
 * padded with zeros:
 *
 *     out[i] = sum over k of mix(w_k xor k LT_HASH_STEP), modulo 2^64
 *
 * mix is the 64-bit finaliser of MurmurHash3 (Appleby, github.com/aappleby/smhasher, fmix64), a
 * permutation of 64-bit numbers. So bits that flip within one word always change the hash; of any
 * other change, such as two words that change places, it misses one in 2^64. The order of the sum
 * does not matter, so the bits do not depend on the device. Pieces that begin at multiples of 16
 * bytes are read fastest. */
#define LT_HASH_STEP 0x9E3779B97F4A7C15u /* 2^64 / golden ratio (Steele et al. 2014, SplitMix). */
#define LT_HASH_MIX1 0xFF51AFD7ED558CCDu
#define LT_HASH_MIX2 0xC4CEB9FE1A85EC53u
typedef struct {
    lt_tensor out, pieces, x;
} lt_hash_args;

/* y = x converted, same shape, F32/BF16/F16. */
typedef struct {
    lt_tensor y, x;
} lt_cast_args;

/* Dropout: y (R, C) [+]= d(x), x (R, C), where d sets some elements to 0 and multiplies the
 * others by `factor`. An element becomes 0 if its random word is less than `threshold`: column c
 * of row r has word (column + c) % 4 of lt_rng_block (base/rng.h) of seed and stream at
 *
 *     ((first_row + r / seq * row_step) 2^LT_DROP_ROW_BITS + place) blocks + (column + c) / 4
 *
 * with place = starts[t / piece] + t % piece and t = r % seq. So 4 * `blocks` is at least the
 * number of columns of a whole row, of which these are C from `column` on, and place is less than
 * 2^LT_DROP_ROW_BITS. y may be x. */
#define LT_DROP_ROW_BITS 22
typedef struct {
    lt_tensor y, x;
    uint64_t seed, stream, first_row, row_step;
    int64_t seq, piece, starts[2], blocks, column;
    uint32_t threshold;
    float factor;
    bool add;
} lt_drop_args;

/* Matrices of 8-bit floats (F8_E4M3, F8_E5M2; lateen/tensor.h) with an F32 scale per block: an
 * element is code * scale. A scale is a power of two (lt_scale_of), so scaling is exact, the only
 * rounding is that to 8 bits, and a BF16 or F32 matrix can hold the same numbers.
 *   LT_SCALE_TENSOR  one for all      scale (1)
 *   LT_SCALE_ROW     1 x 128          scale (ceil(C / 128), R): the scales of a column of blocks
 *                                     lie together
 *   LT_SCALE_BLOCK   128 x 128        scale (ceil(R / 128), ceil(C / 128)) */
#define LT_SCALE_SPAN   128
#define LT_SCALE_MAP(X) X(TENSOR, "tensor") X(ROW, "1x128") X(BLOCK, "128x128")
typedef enum {
#define LT_SCALE_ENUM(name, text) LT_SCALE_##name,
    LT_SCALE_MAP(LT_SCALE_ENUM)
#undef LT_SCALE_ENUM
} lt_scale_kind;
/* The scales of a (rows, cols) matrix, contiguous F32. */
lt_tensor lt_scale_tensor(void *data, lt_scale_kind kind, int64_t rows, int64_t cols);

/* y (R, C), scaled by `kind`, = x (R, C) F32 or BF16; t (C, R), scaled by t_kind, = x transposed.
 * Either may be absent; scales are contiguous. A block that holds Inf or NaN becomes NaN. Bits do
 * not depend on the device.
 * given: the scales of kind TENSOR are read, not computed: x is a part of a matrix that has one
 * scale. */
typedef struct {
    lt_tensor y, scale, t, t_scale, x;
    lt_scale_kind kind, t_kind;
    bool given;
} lt_cast_scaled_args;

/* y (M, N) F32 or BF16 [+]= a (M, K) . b (N, K)^T [+ bias (N)], both of 8-bit floats with scales: a
 * by TENSOR or ROW, b by TENSOR or BLOCK. Products of a block of 128 along K are summed first (on
 * Hopper's tensor cores: with 14 bits), then scaled and added in F32. */
typedef struct {
    lt_tensor y, a, a_scale, b, b_scale, bias;
    lt_scale_kind a_kind, b_kind;
    bool accumulate;
} lt_matmul_scaled_args;

/* The op table: name, argument struct. The order is the order of `lateen doctor --ops`. */
#define LT_OP_MAP(X)                                                                               \
    X(matmul, lt_matmul_args)                                                                      \
    X(matmul_pack, lt_matmul_pack_args)                                                            \
    X(colsum, lt_colsum_args)                                                                      \
    X(embed_fwd, lt_embed_args)                                                                    \
    X(embed_bwd, lt_embed_bwd_args)                                                                \
    X(rmsnorm_fwd, lt_rmsnorm_args)                                                                \
    X(rmsnorm_bwd, lt_rmsnorm_bwd_args)                                                            \
    X(layernorm_fwd, lt_layernorm_args)                                                            \
    X(layernorm_bwd, lt_layernorm_bwd_args)                                                        \
    X(rope, lt_rope_args)                                                                          \
    X(qk_norm_fwd, lt_qk_norm_args)                                                                \
    X(qk_norm_bwd, lt_qk_norm_bwd_args)                                                            \
    X(attention_fwd, lt_attention_args)                                                            \
    X(attention_bwd, lt_attention_bwd_args)                                                        \
    X(attention_merge, lt_attention_merge_args)                                                    \
    X(attention_starts, lt_attention_starts_args)                                                  \
    X(kv_write, lt_kv_write_args)                                                                  \
    X(attention_paged, lt_attention_paged_args)                                                    \
    X(act_fwd, lt_act_args)                                                                        \
    X(act_bwd, lt_act_bwd_args)                                                                    \
    X(matmul_act, lt_matmul_act_args)                                                              \
    X(add, lt_add_args)                                                                            \
    X(sum, lt_sum_args)                                                                            \
    X(gather_rows, lt_gather_rows_args)                                                            \
    X(xent, lt_xent_args)                                                                          \
    X(distill, lt_distill_args)                                                                    \
    X(penalty_set, lt_penalty_set_args)                                                            \
    X(choose, lt_choose_args)                                                                      \
    X(moe_route_fwd, lt_moe_route_args)                                                            \
    X(moe_route_bwd, lt_moe_route_bwd_args)                                                        \
    X(moe_gather_fwd, lt_moe_gather_args)                                                          \
    X(moe_gather_bwd, lt_moe_gather_bwd_args)                                                      \
    X(moe_combine_fwd, lt_moe_combine_args)                                                        \
    X(moe_combine_bwd, lt_moe_combine_bwd_args)                                                    \
    X(moe_bias_fwd, lt_moe_bias_args)                                                              \
    X(moe_bias_bwd, lt_moe_bias_bwd_args)                                                          \
    X(matmul_grouped, lt_matmul_grouped_args)                                                      \
    X(lora_add, lt_lora_add_args)                                                                  \
    X(lora_scale, lt_lora_scale_args)                                                              \
    X(matmul_lora, lt_matmul_lora_args)                                                            \
    X(adamw, lt_adamw_args)                                                                        \
    X(ademamix, lt_ademamix_args)                                                                  \
    X(lion, lt_lion_args)                                                                          \
    X(muon, lt_muon_args)                                                                          \
    X(sumsq, lt_sumsq_args)                                                                        \
    X(clip, lt_clip_args)                                                                          \
    X(hash, lt_hash_args)                                                                          \
    X(cast, lt_cast_args)                                                                          \
    X(drop, lt_drop_args)                                                                          \
    X(cast_scaled, lt_cast_scaled_args)                                                            \
    X(matmul_scaled, lt_matmul_scaled_args)

typedef enum {
#define LT_OP_ENUM(name, args) LT_OP_##name,
    LT_OP_MAP(LT_OP_ENUM)
#undef LT_OP_ENUM
        LT_OP_COUNT
} lt_op;

/* Call:  LT_TRY(ops->rmsnorm_fwd(q, &(lt_rmsnorm_args){.y = y, .x = x, ...})); */
struct lt_ops {
#define LT_OP_FIELD(name, args) lt_err (*name)(lt_queue * q, const args *a);
    LT_OP_MAP(LT_OP_FIELD)
#undef LT_OP_FIELD
};

const char *lt_op_name(lt_op op);

#endif
