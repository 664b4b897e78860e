/* plan.h: what a training or serving run will cost, before anyone pays for it. Pure functions: no
 * device is opened.
 *
 *     lt_plan_model_load("llama3-70b")      what is computed       (Hugging Face config.json, or
 *                                                                  recipes/models/)
 *     lt_plan_cluster_load("alps")          on what                (recipes/clusters/NAME.yaml, GPU
 *                                                                  kinds, software stacks)
 *     lt_plan_layout                        how it is split        (TP, SP, PP, CP, EP, DP, ZeRO,
 *                                                                  recompute, ...)
 *        -> lt_plan_memory_estimate()       bytes per GPU, by kind
 *        -> lt_plan_step_estimate()         seconds per step, broken down so that the parts sum to
 *                                           the step
 *     lt_plan_search()                      all layouts that fit, ranked
 *     lt_plan_goodput(), lt_plan_simulate() what failures take away, closed form and by simulation
 *
 * Units stand in the names: _bytes, _s, _gbps (1e9 bytes a second), _tflops, _w. Every fallible
 * function returns lt_err. */
#ifndef LATEEN_PLAN_H
#define LATEEN_PLAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lateen/base.h"
#include "lateen/model.h"

#define LT_PLAN_NAME_BYTES 64
#define LT_PLAN_TEXT_BYTES 256

/* ---- Model ----------------------------------------------------------------------------------- */

/* A decoder as the planner sees it: n_attn + n_mamba mixers and n_dense + n_moe feed-forward
 * blocks. In the usual transformer n_attn == n_dense + n_moe == n_layers; in hybrids
 * (Nemotron-H) each block is a layer. Fields that lt_model_spec has too have its names. */
typedef struct {
    char name[LT_PLAN_NAME_BYTES];
    int64_t n_layers, width, n_heads, n_kv_heads, head_dim, vocab_size, max_seq;
    int64_t ffn_width; /* Width of a dense layer, also in a model with experts. */
    int64_t n_attn, n_mamba, n_dense, n_moe;
    /* latent: width inside routed experts, 0 = model width. */
    int64_t n_experts, top_k, expert_ffn_width, shared_ffn_width, latent;
    /* MLA (DeepSeek); kv_rank 0 = plain attention. */
    int64_t q_rank, kv_rank, rope_dim, nope_dim, v_dim;
    int64_t mamba_heads, mamba_dim, mamba_state, mamba_groups;
    int64_t mtp;    /* Multi-token-prediction layers. */
    int64_t window; /* Tokens that `n_windowed` of the attention layers look back; 0: none. */
    int64_t n_windowed;
    int64_t positions; /* Learned position embeddings; 0 = rotary or ALiBi. */
    /* A token's experts come from route_limit of route_groups groups; 0: from all. */
    int64_t route_groups, route_limit;
    bool gated;    /* The feed-forward has three matrices (SwiGLU), not two. */
    bool tied;     /* The output matrix is the input embedding. */
    bool biases;   /* GPT-2/3, Megatron: biases on every linear layer, LayerNorm. */
    bool qkv_bias; /* Qwen2, gpt-oss. */
    bool qk_norm;  /* Qwen3, Apertus. */
    /* The activation has no fused kernel (gpt-oss clamps, and its experts have biases). */
    bool unfused_act;
    bool dropout; /* Masks are kept for the backward pass (the Megatron papers). */
} lt_plan_model;

typedef struct {
    double total;
    double active;          /* The parameters that one token uses (top_k of the routed experts). */
    double embedding, head; /* Input embedding (and positions); output matrix (0 when tied). */
    double attention, dense, moe; /* Sums over all layers. */
    /* Part of moe: the experts that ep divides, without router, latent maps and shared experts. */
    double routed;
} lt_plan_params;

/* Training FLOPs of one token by each convention in use; docs/plan/README.md says who uses
 * which. */
#define LT_PLAN_FLOPS_MAP(X)                                                                       \
    X(SIX_N, "6n", "6 N, N without the input embedding")                                           \
    X(MODEL_CAUSAL, "causal",                                                                      \
      "6 N + 6 l a d s: attention counted under the causal mask (Megatron-Bridge, llm.c)")         \
    X(MODEL_FULL, "full", "6 N + 12 l a d s: full attention (PaLM, llm-foundry, Apertus, DGXC)")   \
    X(MEGATRON_MODEL, "megatron-model", "72 s l h^2 (1 + s/6h + V/12lh) / s (Korthikanti)")        \
    X(MEGATRON_HARDWARE, "megatron-hardware",                                                      \
      "96 s l h^2 (1 + s/6h + V/16lh) / s: full recompute (SC'21 eq. 3)")

typedef enum {
#define LT_PLAN_FLOPS_ENUM(code, name, text) LT_PLAN_FLOPS_##code,
    LT_PLAN_FLOPS_MAP(LT_PLAN_FLOPS_ENUM)
#undef LT_PLAN_FLOPS_ENUM
        LT_PLAN_FLOPS_COUNT
} lt_plan_flops_kind;

/* path: a config.json, a folder that holds one, or a name under recipes/models. */
LT_MUST_USE lt_err lt_plan_model_load(lt_plan_model *out, const char *path);
/* Refuse a model that contradicts itself; the message names the two facts. */
LT_MUST_USE lt_err lt_plan_model_check(const lt_plan_model *m);
/* Describe a model that Lateen trains; its total parameters equal lt_model_spec_params. */
void lt_plan_model_from_spec(lt_plan_model *out, const lt_model_spec *spec, const char *name);
lt_plan_params lt_plan_model_params(const lt_plan_model *m);
/* Per token of training. */
double lt_plan_model_flops(const lt_plan_model *m, lt_plan_flops_kind kind, int64_t seq);

/* ---- Cluster --------------------------------------------------------------------------------- */

#define LT_PLAN_PRECISION_MAP(X)                                                                   \
    X(FP32, "fp32")                                                                                \
    X(BF16, "bf16") X(FP8, "fp8") X(MXFP8, "mxfp8") X(NVFP4, "nvfp4") X(FP8ROW, "fp8-rowwise")
typedef enum {
#define LT_PLAN_PRECISION_ENUM(code, name) LT_PLAN_##code,
    LT_PLAN_PRECISION_MAP(LT_PLAN_PRECISION_ENUM)
#undef LT_PLAN_PRECISION_ENUM
        LT_PLAN_PRECISION_COUNT
} lt_plan_precision;

#define LT_PLAN_ATTENTION_MAP(X)                                                                   \
    X(UNFUSED, "unfused") X(FLASH1, "flash1") X(FLASH2, "flash2") X(FLASH3, "flash3")
typedef enum {
#define LT_PLAN_ATTENTION_ENUM(code, name) LT_PLAN_ATTENTION_##code,
    LT_PLAN_ATTENTION_MAP(LT_PLAN_ATTENTION_ENUM)
#undef LT_PLAN_ATTENTION_ENUM
        LT_PLAN_ATTENTION_COUNT
} lt_plan_attention;

typedef struct {
    char name[LT_PLAN_NAME_BYTES];
    /* Dense, as published by the maker; 0 = the chip has no such unit. */
    double peak_tflops[LT_PLAN_PRECISION_COUNT];
    double memory_bytes, memory_gbps;
    double link_gbps; /* Scale-up links (NVLink), one direction. */
    /* Scale-out network per GPU, one direction, unless the cluster says otherwise. */
    double nic_gbps;
    double pcie_gbps; /* One GPU to its host's memory, one direction. */
    double host_time; /* Time in which the host launches a kernel, relative to an x86 server's. */
    double power_w, host_power_w;
    int sms, node_gpus, domain_gpus; /* domain: GPUs connected by scale-up links. */
} lt_plan_gpu;

/* Parts of a step that a CUDA graph may hold; their launches cost the host nothing. ROUTER:
 * everything up to the dispatch of tokens to their experts. */
enum {
    LT_PLAN_PART_ATTENTION = 1,
    LT_PLAN_PART_MAMBA = 2,
    LT_PLAN_PART_DENSE = 4,
    LT_PLAN_PART_ROUTER = 8,
    LT_PLAN_PART_ALL = 31
};

/* Modules that selective recomputation may recompute in the backward pass (Megatron's
 * recompute_modules). */
enum {
    LT_PLAN_AGAIN_CORE = 1,
    LT_PLAN_AGAIN_NORM = 2,
    LT_PLAN_AGAIN_MLA_UP = 4,
    LT_PLAN_AGAIN_DENSE = 8,
    LT_PLAN_AGAIN_MOE = 16,
    LT_PLAN_AGAIN_MOE_ACT = 32,
    LT_PLAN_AGAIN_SHARED = 64
};

/* The performance of a software stack on a kind of GPU: at most three fitted efficiencies, and
 * facts about its kernels. */
typedef struct {
    char name[LT_PLAN_NAME_BYTES], gpu[LT_PLAN_NAME_BYTES];
    /* Fractions of the peaks. Fitted by `lateen plan fit` on the anchors. */
    double gemm, memory, network;
    lt_plan_attention attention;
    /* Elementwise memory traffic relative to fully fused kernels: 1 fused ... 2 eager. */
    double passes;
    double launch_us;  /* GPU time lost around each counted kernel: ramp, drain, small kernels. */
    double host_us;    /* Host time to launch a kernel; it counts where the GPU would be faster. */
    unsigned graph;    /* LT_PLAN_PART_*: launched by CUDA graphs. */
    double tp_overlap; /* Share of tensor-parallel traffic hidden behind matrix products. */
    double dp_overlap; /* Share of gradient and parameter traffic that can be hidden. */
    double ep_overlap; /* The same for the all-to-all of experts. */
    /* 1: every copy of a token is sent (NCCL's all-to-all); 0: one to each node and one to each
     * rank (DeepEP, HybridEP). */
    double ep_copies;
    /* 1: tensor parallelism casts inputs to 8 bits before it gathers them. */
    double quantised_gather;
    /* 1: data parallelism gathers the weights of fp8 products in 8 bits. */
    double quantised_params;
    /* 1: mxfp8 experts run as one fused kernel inside a graph of the whole step (ops.c). */
    double moe_fused;
    /* 1: DeepSpeed's pipeline engine: one more buffer per stage, stages keep their input and
     * output, and gradients exist in fp16 and fp32. */
    double deepspeed_pipe;
    /* Bytes in use per logit at the loss: 6 where softmax and loss are fused, 10 where they make
     * fp32 copies (2 + 4 + 4), 4 when compiled. */
    double logit_bytes;
    double op_selective; /* 1: selective recomputation keeps every other product (torchtitan). */
    /* 1: full recomputation stops at the last tensor that the backward pass needs, before the last
     * product of a block (torch.utils.checkpoint's early stop, and torch.compile). */
    double early_stop;
    /* 1: every launch waits for its kernel (CUDA_LAUNCH_BLOCKING): launch_us is added, and is
     * fitted. */
    double launch_blocking;
    /* 1: context-parallel ranks divide causal attention evenly; 0: the last rank does most of
     * it. */
    double cp_balance;
    double split_products; /* 1: q, k, v, gate and up are separate products. */
    /* Number of layers whose products run in bf16 although the others run in a narrower type. */
    double wide_layers;
    /* 1: in all layers, the products around attention and the latent projections run in bf16. */
    double wide_attention;
    double narrow_attention; /* 1: attention's own products run in 8 bits too. */
    bool anchored;           /* False: the GPU's default, not measurements of this stack. */
} lt_plan_stack;

typedef enum { LT_PLAN_FAT_TREE, LT_PLAN_DRAGONFLY } lt_plan_topology;
#define LT_PLAN_TIERS  4
#define LT_PLAN_CAUSES 24

typedef struct {
    char cause[LT_PLAN_NAME_BYTES];
    double per_node_day;
} lt_plan_cause;

typedef struct {
    char name[LT_PLAN_NAME_BYTES];
    lt_plan_gpu gpu;
    lt_plan_stack stack;
    int64_t gpus; /* GPUs of the site. */
    lt_plan_topology topology;
    double nic_gbps, latency_us, link_latency_us;
    double link_share; /* Share of the scale-up links' rate that collectives reach. */
    int n_tiers;
    struct {
        int64_t gpus;      /* GPUs below one switch group of this tier (rack, pod, building). */
        double oversub;    /* NIC bandwidth below / uplink bandwidth, over all tiers up to here. */
        double latency_us; /* One way. */
    } tier[LT_PLAN_TIERS];
    bool rails; /* Tier 0 is a rail: a switch joins the GPUs with the same index in many nodes. */
    double storage_write_gbps, storage_read_gbps;
    int n_causes;
    lt_plan_cause cause[LT_PLAN_CAUSES];
    double detect_s, reschedule_s, load_s, warmup_s; /* Phases of a restart. */
    double repair_h;                                 /* Repair of a node. */
    double straggler; /* Fraction of step time lost to the slowest of many. */
    double price_gpu_h, price_mwh, pue;
} lt_plan_cluster;

/* path: a YAML file, a name under recipes/clusters, or a kind of GPU (gpus.yaml), which stands for
 * one node of them. NOT_FOUND: none of these. */
LT_MUST_USE lt_err lt_plan_cluster_load(lt_plan_cluster *out, const char *path);
LT_MUST_USE lt_err lt_plan_gpu_find(lt_plan_gpu *out, const char *name);
/* The stack of that name on that GPU; else the GPU's default with anchored = false. */
LT_MUST_USE lt_err lt_plan_stack_find(lt_plan_stack *out, const char *gpu, const char *stack);
/* A cluster of `gpus` GPUs of one kind with the defaults of that kind (full-bisection fat tree). */
void lt_plan_cluster_plain(lt_plan_cluster *out, const lt_plan_gpu *gpu, const lt_plan_stack *stack,
                           int64_t gpus);
double lt_plan_cluster_failures_per_s(const lt_plan_cluster *c, int64_t gpus);

/* ---- Layout ---------------------------------------------------------------------------------- */

#define LT_PLAN_SCHEDULE_MAP(X)                                                                    \
    X(GPIPE, "gpipe")                                                                              \
    X(ONE_F_ONE_B, "1f1b") X(INTERLEAVED, "interleaved") X(ZERO_BUBBLE, "zero-bubble")
typedef enum {
#define LT_PLAN_SCHEDULE_ENUM(code, name) LT_PLAN_##code,
    LT_PLAN_SCHEDULE_MAP(LT_PLAN_SCHEDULE_ENUM)
#undef LT_PLAN_SCHEDULE_ENUM
        LT_PLAN_SCHEDULE_COUNT
} lt_plan_schedule;

typedef enum {
    LT_PLAN_RECOMPUTE_NONE,
    LT_PLAN_RECOMPUTE_SELECTIVE,
    LT_PLAN_RECOMPUTE_FULL
} lt_plan_recompute;
typedef enum { LT_PLAN_TUNE_ALL, LT_PLAN_TUNE_LORA } lt_plan_tune;

typedef struct {
    /* dp includes the expert-parallel ranks: ep divides dp * cp * (tp when experts fold). */
    int tp, pp, vpp, cp, ep, dp;
    bool sp;       /* Sequence parallelism together with tp. */
    bool dp_outer; /* Ranks in the order tp-cp-pp-dp (Llama 3) instead of tp-cp-dp-pp (Megatron). */
    int zero;      /* 0..3; 3 is FSDP full shard, 2 FSDP shard-grad-op. */
    int64_t micro, accum; /* Sequences per micro-batch; micro-batches per step and replica. */
    lt_plan_schedule schedule;
    lt_plan_recompute recompute;
    lt_plan_precision precision;
    lt_plan_tune tune;
    bool fp32_grads;   /* 4-byte main gradients (Megatron) or 2-byte. */
    bool bf16_moments; /* Adam's two moments in 2 bytes each instead of 4. */
    /* LT_PLAN_AGAIN_*: modules of selective recomputation; 0: the stack's default. */
    unsigned again;
    int again_layers; /* Layers of a stage under full recomputation; 0: all of them. */
} lt_plan_layout;

int64_t lt_plan_layout_gpus(const lt_plan_layout *l);
/* Refuse a layout that contradicts the model or the cluster; the message names the two facts. */
LT_MUST_USE lt_err lt_plan_layout_check(const lt_plan_layout *l, const lt_plan_model *m,
                                        const lt_plan_cluster *c);
char *lt_plan_layout_text(char out[LT_PLAN_TEXT_BYTES], const lt_plan_layout *l);

/* ---- Memory ---------------------------------------------------------------------------------- */

/* Bytes per GPU on the fullest pipeline stage. */
typedef struct {
    double weights, gradients, optimiser, activations, logits, buffers, margin, total;
    int stage;
} lt_plan_memory;

/* Bytes per GPU that one layer keeps of one micro-batch for the backward pass (Korthikanti 2022,
 * eq. 1 to 6). */
double lt_plan_activation_layer_bytes(const lt_plan_model *m, const lt_plan_layout *l,
                                      lt_plan_attention attention);
lt_plan_memory lt_plan_memory_estimate(const lt_plan_model *m, const lt_plan_cluster *c,
                                       const lt_plan_layout *l);

/* Memory as different tools report it: the tensors, what PyTorch's allocator holds, what nvidia-smi
 * counts. */
typedef enum {
    LT_PLAN_MEMORY_ALLOCATED,
    LT_PLAN_MEMORY_RESERVED,
    LT_PLAN_MEMORY_DEVICE
} lt_plan_memory_figure;
double lt_plan_memory_shown(const lt_plan_memory *r, const lt_plan_layout *l,
                            lt_plan_memory_figure figure);

/* ---- Time ------------------------------------------------------------------------------------ */

#define LT_PLAN_PART_MAP(X) /* field, JSON key, description */                                     \
    X(gemm, "gemm", "matrix products")                                                             \
    X(attention, "attention", "attention")                                                         \
    X(elementwise, "elementwise", "elementwise")                                                   \
    X(launch, "launch", "launch gaps")                                                             \
    X(tp_comm, "tp_comm", "tensor parallel")                                                       \
    X(cp_comm, "cp_comm", "context parallel")                                                      \
    X(ep_comm, "ep_comm", "expert parallel")                                                       \
    X(pp_comm, "pp_comm", "pipeline sends")                                                        \
    X(dp_comm, "dp_comm", "data parallel")                                                         \
    X(bubble, "bubble", "pipeline bubble")                                                         \
    X(optimiser, "optimizer", "optimiser")                                                         \
    X(data, "data", "waiting for data")                                                            \
    X(straggler, "straggler", "stragglers and jitter")
#define LT_PLAN_PART_COUNT 13

/* Seconds of one step on the critical stage, with only the exposed part of communication. The parts
 * sum to step_s. */
typedef struct {
#define LT_PLAN_PART_FIELD(field, key, text) double field;
    LT_PLAN_PART_MAP(LT_PLAN_PART_FIELD)
#undef LT_PLAN_PART_FIELD
    double step_s, tokens_s, tokens_s_gpu, mfu, hfu;
    double comm_total_s;          /* Exposed and hidden. */
    double forward_s, backward_s; /* One micro-batch on the slowest stage (all chunks). */
} lt_plan_time;

lt_plan_time lt_plan_step_estimate(const lt_plan_model *m, const lt_plan_cluster *c,
                                   const lt_plan_layout *l);
/* The same with the pipeline simulated slot by slot instead of its closed form, unless it is too
 * large to simulate. */
lt_plan_time lt_plan_step_simulate(const lt_plan_model *m, const lt_plan_cluster *c,
                                   const lt_plan_layout *l);

/* Time of a collective by the hierarchical alpha-beta model, the faster of ring and tree. stride:
 * distance in ranks between neighbours of the group. */
typedef enum {
    LT_PLAN_ALL_REDUCE,
    LT_PLAN_ALL_GATHER,
    LT_PLAN_REDUCE_SCATTER,
    LT_PLAN_ALL_TO_ALL,
    LT_PLAN_SEND
} lt_plan_verb;
double lt_plan_collective_s(const lt_plan_cluster *c, lt_plan_verb verb, double bytes,
                            int64_t ranks, int64_t stride);

/* One pipeline, simulated from its schedule. */
typedef struct {
    int stages, chunks;
    int64_t micros;
    lt_plan_schedule schedule;
    double forward_s, backward_s; /* One micro-batch through one stage (all its chunks). */
    /* Share of the backward pass that computes weight gradients (zero-bubble schedules it
     * separately). */
    double weight_share;
    double send_s;
    double first_extra_s, last_extra_s; /* Embedding; output head and loss (forward + backward). */
} lt_plan_pipeline;

typedef struct {
    double start_s, end_s;
    int stage, chunk;
    int64_t micro;
    char kind; /* 'F', 'B', 'W'. */
} lt_plan_slot;

/* Seconds from first forward to last backward. slots (NULL: not wanted) receives at most
 * max_slots. */
LT_MUST_USE lt_err lt_plan_pipeline_simulate(const lt_plan_pipeline *p, double *makespan_s,
                                             lt_plan_slot *slots, size_t max_slots,
                                             size_t *n_slots);
/* The closed form that the search uses. */
double lt_plan_pipeline_closed(const lt_plan_pipeline *p);

/* ---- Reliability ----------------------------------------------------------------------------- */

double lt_plan_young_s(double mtbf_s, double save_s);
double lt_plan_daly_first_s(double mtbf_s, double save_s);
double lt_plan_daly_s(double mtbf_s, double save_s);
double lt_plan_ettr_exact(double mtbf_s, double save_s, double restart_s, double interval_s);
double lt_plan_ettr_first_order(double mtbf_s, double save_s, double restart_s, double interval_s);

typedef struct {
    double mtbf_s, interval_s, save_s, block_s, restart_s, ettr;
    double checkpoint_loss, rework_loss, restart_loss, straggler_loss, goodput;
    double failures_per_day;
    int64_t spares; /* Nodes that cover repairs with probability 0.99. */
    double checkpoint_bytes;
} lt_plan_goodput;

/* interval_s 0: Daly's optimum. async: a save blocks only for the copy to host memory. */
lt_plan_goodput lt_plan_goodput_estimate(const lt_plan_model *m, const lt_plan_cluster *c,
                                         int64_t gpus, double interval_s, bool async);
int64_t lt_plan_spares(double nodes, double node_rate_per_s, double repair_s, double quantile);

typedef struct lt_plan_recoveries lt_plan_recoveries;

typedef struct {
    double mtbf_s, save_s, restart_s, interval_s, work_s; /* work_s: productive seconds needed. */
    /* Measured recoveries, of which each failure draws one (restart_s is then their mean); NULL:
     * every restart takes restart_s. */
    const lt_plan_recoveries *recoveries;
    double persist_lag_s; /* Asynchronous saves are durable only after this delay. */
    int64_t nodes, spares;
    double repair_s;      /* 0: nodes come back at once. */
    double weibull_shape; /* 1: exponential. */
    int64_t runs;
    uint64_t seed;
} lt_plan_sim;

typedef struct {
    double ettr_mean, ettr_p5, ettr_p50, ettr_p95;
    double wall_days_mean, wall_days_p95;
    double failures_mean, lost_work_h_mean, restart_h_mean, save_h_mean, wait_h_mean;
    int64_t runs;
    /* With recoveries: of up to LT_PLAN_SIM_LOST failures, spread over the runs, the seconds until
     * the step that the failure interrupted has ended, as a launcher counts them; sorted. Free
     * it. */
    double *lost_s;
    int64_t n_lost;
} lt_plan_sim_result;

#define LT_PLAN_SIM_LOST 20000

/* *out is written only on success. */
LT_MUST_USE lt_err lt_plan_simulate(const lt_plan_sim *s, lt_plan_sim_result *out);

/* ---- Search ---------------------------------------------------------------------------------- */

typedef struct {
    int64_t gpus, batch_seqs, seq;
    int zero; /* -1: choose. */
    lt_plan_precision precision;
    lt_plan_tune tune;
    int64_t max_results;
    void (*progress)(void *ctx, size_t done, size_t all);
    void *progress_ctx;
    /* The known part of a layout; 0 = search over it. recompute: -1 all three kinds, -2 none or
     * selective. */
    int tp, pp, vpp, cp, ep;
    int64_t micro;
    int recompute;
    int schedule; /* 0: 1F1B and interleaved; else 1 + lt_plan_schedule. */
    bool fp32_grads, bf16_moments, sp_off, dropout;
    unsigned again; /* As in the layout. */
    int again_layers;
    /* Requested degrees must divide model, batch and GPUs; false: a published layout is accepted as
     * it is. */
    bool exact;
} lt_plan_query;

typedef struct {
    lt_plan_layout layout;
    lt_plan_memory memory;
    lt_plan_time time;
    bool simulated; /* time comes from a simulated pipeline, not from the closed form. */
} lt_plan_choice;

#define LT_PLAN_PRUNE_MAP(X)                                                                       \
    X(MEMORY, "do not fit in memory")                                                              \
    X(BATCH, "batch is not divisible")                                                             \
    X(SHAPE, "heads, layers or experts do not divide")                                             \
    X(TOPOLOGY, "tensor parallel group leaves the scale-up domain")
typedef enum {
#define LT_PLAN_PRUNE_ENUM(code, text) LT_PLAN_PRUNE_##code,
    LT_PLAN_PRUNE_MAP(LT_PLAN_PRUNE_ENUM)
#undef LT_PLAN_PRUNE_ENUM
        LT_PLAN_PRUNE_COUNT
} lt_plan_prune;

typedef struct {
    lt_plan_choice *best; /* Ranked by step time; free with lt_plan_found_free. */
    size_t n_best, n_tried, n_fit, pruned[LT_PLAN_PRUNE_COUNT];
    double nearest_bytes; /* When nothing fits: the least memory that a layout needs. */
    double seconds;
} lt_plan_found;

LT_MUST_USE lt_err lt_plan_search(const lt_plan_model *m, const lt_plan_cluster *c,
                                  const lt_plan_query *q, lt_plan_found *out);
void lt_plan_found_free(lt_plan_found *f);

/* ---- Serving --------------------------------------------------------------------------------- */

typedef struct {
    int tp;
    int64_t prompt, output, batch; /* batch 0: as many sequences as fit in the KV cache. */
    lt_plan_precision precision;
    double kv_bytes; /* Per element: 2 bf16, 1 fp8. */
} lt_plan_serve_query;

typedef struct {
    bool fits;
    double weight_bytes, kv_bytes_token, kv_tokens, first_token_s, token_s, output_tokens_s,
        total_tokens_s, stream_tokens_s;
    int64_t batch;
} lt_plan_serve;

/* Can q->tp GPUs divide a copy of the model? Each needs the same number of heads, and keys and
 * values of whole heads. ARG names the nearest number that can. */
LT_MUST_USE lt_err lt_plan_serve_check(const lt_plan_model *m, const lt_plan_serve_query *q);
lt_plan_serve lt_plan_serve_estimate(const lt_plan_model *m, const lt_plan_cluster *c,
                                     const lt_plan_serve_query *q);

#endif
