/* draft_head.h: a head beside a model that drafts its next tokens from the model's hidden states of
 * the tokens before them: an EAGLE-3 head (Li et al. 2025, arXiv:2503.01840), or the model's own
 * layers of multi-token prediction (MTP; Gloeckle et al. 2024, DeepSeek-V3, arXiv:2412.19437).
 *
 * EAGLE-3
 *     model     hidden states that enter layers 2, L / 2 and L - 3, of every row that it runs
 *                 └▶ fc ─▶ fused[p] (C)                  kept in the pool, by slot
 *     head      token[p + 1] ─▶ embedding ─▶ input_layernorm ─┐
 *               fused[p]     ─▶ hidden_norm ──────────────────┴▶ attention ─▶ + fused[p] ─▶ MLP
 *                                                                      ─▶ last[p] (C)
 *               last[p] ─▶ norm ─▶ lm_head ─▶ logits (Vd) of token p + 2
 *
 * MTP, in the form of Xiaomi's MiMo
 *     model     the final norm's output of every row that it runs = fused[p] (C), kept in the
 *     pool, too
 *     layer 0   token[p + 1] ─▶ embedding ─▶ token_layernorm ──┐
 *               fused[p]     ─▶ hidden_layernorm ─▶ first half ┴▶ input_proj
 *                 ─▶ a layer of the model's kind ─▶ final_layernorm ─▶ last[p] (C)
 *               last[p] ─▶ the model's head ─▶ logits (V) of token p + 2
 *     layer k   the same with token[p + k + 1], and `last` of layer k - 1 in the place of `fused`:
 *               logits of token p + k + 2 (equations 21 to 23 of DeepSeek-V3)
 *
 * For the first draft token p is the last position that the model has run. Layer k makes draft
 * token k (from 0) in the same row. After the last layer, as after an EAGLE-3 head, the row of the
 * next position reads `last` of the row before instead of `fused`. Each layer has its own keys and
 * values, in pages with the same numbers as the model's. Rows that read `last` in this way, or a
 * draft token, do not have the keys and values of the text: these are written again when the
 * tokens are known.
 *
 * EAGLE-3   config.json with the architecture LlamaForCausalLMEagle3 and the keys of a Llama of one
 *           layer; vocab_size is the model's, draft_vocab_size (Vd; absent: V) the head's own.
 *           model.safetensors, all matrices (out, in):
 *               fc.weight (C, 3 C)                      low, middle and high side by side
 *               midlayer.{input_layernorm,hidden_norm,post_attention_layernorm}.weight (C)
 *               midlayer.self_attn.{q,k,v}_proj.weight (.., 2 C)   embedding, then hidden state
 *               midlayer.self_attn.o_proj.weight, midlayer.mlp.{gate,up,down}_proj.weight
 *               norm.weight (C), lm_head.weight (Vd, C)
 *               d2t (Vd) I64: id i of the head is the model's id i + d2t[i]; absent if Vd = V
 *               t2d (V) BOOL: the model's ids that the head has; may be absent
 *               embed_tokens.weight (V, C); absent: the model's embedding
 * MTP       the model's folder: config.json of a Qwen2 or MiMo with num_nextn_predict_layers N of 1
 *           to 8, and in its shards model.mtp_layers.0. to model.mtp_layers.N-1. followed by
 *               {token_layernorm,hidden_layernorm,final_layernorm}.weight (C)
 *               input_proj.weight (C, 2 C)   hidden state, then embedding
 *               {input_layernorm,post_attention_layernorm}.weight, self_attn.{q,k,v,o}_proj.weight,
 *               self_attn.{q,k,v}_proj.bias, mlp.{gate,up,down}_proj.weight   as in other layers
 * DEVICES   Hidden states, keys and values stay on the model's device. Draft tokens are chosen
 *           there by the op choose, from the head's own ids.
 * REFUSED   MTP in other forms, biases of EAGLE-3 heads, hidden states of other layers, models that
 *           scale their embeddings. */
#ifndef LT_MODEL_DRAFT_HEAD_H
#define LT_MODEL_DRAFT_HEAD_H

#include "model/blocks/exec.h"
#include "model/infer/paged_forward.h"

#define LT_DRAFT_HEAD_LAYERS 8 /* Most layers of multi-token prediction. */

typedef struct lt_draft_head lt_draft_head;
typedef struct lt_draft_pass lt_draft_pass;

/* Read a head for this model, which must outlive it, from the folder of an EAGLE-3 head, or from
 * that of a model with layers of multi-token prediction, usually this model's. FORMAT, UNSUPPORTED:
 * head and model do not fit; the message has the numbers of both. */
LT_MUST_USE lt_err lt_draft_head_open(lt_draft_head **out, const lt_model *target,
                                      const char *path);
void lt_draft_head_close(lt_draft_head *h); /* Accepts NULL. */

int64_t lt_draft_head_vocab(const lt_draft_head *h);  /* Vd */
int64_t lt_draft_head_layers(const lt_draft_head *h); /* 1 for an EAGLE-3 head. */
/* Convert logits (Vd) of the head to logits of the model's ids (V): -inf for ids that the head
 * lacks. */
void lt_draft_head_widen(const lt_draft_head *h, const float *logits, float *wide);
/* Bytes of a page: keys, values and fused hidden states. */
size_t lt_draft_head_page_bytes(const lt_draft_head *h, int64_t page_tokens, lt_dtype keys,
                                lt_dtype values);

typedef struct {
    int64_t target_rows;                   /* Most rows of a call of the model. */
    int64_t max_rows, max_seqs, max_out;   /* Limits of a call of the head. */
    int64_t max_seq, n_pages, page_tokens; /* As in lt_paged_forward_options. */
    lt_dtype cache_dtype, value_dtype;
    bool fixed_order;
} lt_draft_pass_options;

LT_MUST_USE lt_err lt_draft_pass_open(lt_draft_pass **out, const lt_draft_head *h,
                                      const lt_draft_pass_options *o);
void lt_draft_pass_close(lt_draft_pass *p); /* Accepts NULL. */

/* Called by the model's forward pass, whose listener this is: all work uses that pass's queue and
 * packed weights. The draft pass may be closed before it. */
LT_MUST_USE lt_err lt_draft_pass_follow(lt_draft_pass *p, const lt_exec *r);

/* From the model's forward pass (lt_paged_forward_options.listener): x (R, C) is the input of this
 * layer, or the final norm's output if `layer` is the number of layers. slots (R) I32; slot -1: the
 * row belongs to no sequence. */
LT_MUST_USE lt_err lt_draft_pass_listen(lt_draft_pass *p, int layer, lt_tensor x, lt_tensor slots);

LT_MUST_USE lt_err lt_draft_pass_copy_page(lt_draft_pass *p, int64_t dst, int64_t src);

/* Queue a call of a layer of the head. rows:
 *     ids[r]       the token that this layer reads in its row of positions[r]
 *     slots[r]     -1: the row's key and value exist already, or are not needed
 *     n_choose     0, or n_out with `how` of each wanted row. Penalties and masks of `how`, and the
 *                  members of rows after it, are not read
 * hidden[r] >= 0 is the slot of the row's fused hidden state; -1 - k means `last` of row k of the
 * previous call. If that call was one of the last layer, it must have had wanted rows. */
LT_MUST_USE lt_err lt_draft_pass_run(lt_draft_pass *p, int64_t layer,
                                     const lt_paged_forward_rows *rows, const int32_t *hidden);
LT_MUST_USE lt_err lt_draft_pass_wait(lt_draft_pass *p); /* Wait until the last call is done. */
/* Make warm-up call i, like lt_paged_forward_warm. Afterwards no request waits for kernels to be
 * compiled, and the time measured for a call predicts the time of later ones. */
LT_MUST_USE lt_err lt_draft_pass_warm(lt_draft_pass *p, int64_t i, bool *more);
/* Wait for the last call. *logits: its logits (n_out, Vd) in host memory, valid until the next
 * call. */
LT_MUST_USE lt_err lt_draft_pass_logits(lt_draft_pass *p, const float **logits);
/* Wait for the last call. *ids: the tokens that it chose (n_out), as ids of the model, or
 * LT_CHOOSE_NONE or LT_CHOOSE_NAN. */
LT_MUST_USE lt_err lt_draft_pass_chosen(lt_draft_pass *p, const int32_t **ids);

#endif
