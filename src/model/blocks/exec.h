/* exec.h: the execution context of a model's blocks: the backend, the weights, the shape of the
 * batch. The pass (training, evaluation), the session (generate, chat) and the paged forward pass
 * (serving) each own one and call the same blocks.
 *
 * Every op goes through lt_exec_<op>, which times it for the table of shares. */
#ifndef LT_MODEL_EXEC_H
#define LT_MODEL_EXEC_H

#include "base/clock.h"
#include "base/error.h"
#include "lateen/comm.h"
#include "model/params.h"
#include "tensor/cost.h"
#include "tensor/ops.h"

/* What is timed: the ops, followed by the verbs between the ranks of tp (tp.h). */
enum { LT_TIMED_GATHER = LT_OP_COUNT, LT_TIMED_SCATTER, LT_TIMED_SUM, LT_TIMED_COUNT };
const char *lt_timed_name(int timed);

/* A verb (collective) between ranks on buffers of a queue. It runs after the work that the queue
 * holds, and work queued later runs after it. If the buffers are on a device, the host does not
 * wait for it. */
typedef enum {
    LT_EXEC_GATHER,  /* lt_all_gather */
    LT_EXEC_SCATTER, /* lt_reduce_scatter, sums */
    LT_EXEC_REDUCE,  /* lt_all_reduce by op */
    LT_EXEC_EXCHANGE /* lt_all_to_all of `count` elements to and from each */
} lt_exec_verb_kind;
/* A verb may be called in two parts, BEGIN and END, with computation in between that does not touch
 * its buffers. Between the two parts of a GATHER, MEMBER waits for the rows of `member` alone.
 * Before a SCATTER, EARLY says that the rows of `member` are complete (lt_reduce_scatter_early). */
typedef enum {
    LT_EXEC_WHOLE,
    LT_EXEC_BEGIN,
    LT_EXEC_MEMBER,
    LT_EXEC_END,
    LT_EXEC_EARLY
} lt_exec_verb_part;
typedef struct {
    lt_exec_verb_kind kind;
    lt_exec_verb_part part;
    lt_group *group;
    void *dst;
    const void *src;
    int64_t count;
    lt_dtype dtype;
    lt_reduce op;
    int member;
} lt_exec_verb;

typedef struct {
    uint64_t started_ns; /* When the current op began. */
    const lt_model *model;
    const lt_model_spec *spec;
    lt_device *device;
    const lt_backend *backend; /* The device's backend. */
    const lt_ops *ops;
    lt_queue *queue;
    bool own_queue;
    lt_dtype dtype;            /* Type of activations and weights. */
    lt_param_buffer gradients; /* F32; without units in inference. */
    /* The first batch of a step: products store the weights' gradients, see lt_linear_bwd. */
    bool fresh;
    /* When fresh: the head's gradient has been stored; its other chunks, and a tied embedding, add
     * to it. */
    bool head_stored;
    /* lora.h: adapters beside linear layers; NULL: there are none. The base then has no
     * gradients. */
    struct lt_lora_run *lora;
    /* lora_pool.h: adapters chosen by the rows of a call; or NULL. */
    struct lt_lora_rows *lora_rows;
    /* By parameter index: weights in matmul_pack's layout, or NULL each; NULL: none. */
    const void **packed;
    lt_tensor decoded; /* (elements) of the model's type: scratch of decoded.h; absent: none. */
    /* Small parameters that ops want in F32 (xIELU's scalars, sinks), on the device when the
     * weights are BF16 without a master, else NULL: lt_exec_f32_count of each layer. */
    const float *f32;
    int64_t batch, seq;           /* B, T of this call. */
    struct lt_deferred *deferred; /* NULL: gradients of weights are computed with the others. */
    struct lt_fp8 *fp8;           /* NULL: linear layers multiply the stored weights. */
    struct lt_experts *experts;   /* NULL: all experts are here (expert.h). */
    struct lt_context *context;   /* NULL: sequences are whole (context.h). */
    struct lt_shared *shared;     /* NULL: each token of the batch has its own row (shared.h). */
    struct lt_exact *exact;       /* NULL: the pass uses its own order of sums (exact.h). */
    lt_group *tp;      /* The ranks that share every layer with this one (tp.h); NULL: none. */
    int n_tp, tp_rank; /* 1 and 0 without them. */
    int64_t first_id;  /* The first of the rows of embedding and head that are held here. */
    bool fixed_order;  /* In products, a row's bits do not depend on the other rows of the call. */
    /* Over 1, without ranks of tp: sums that this many ranks would divide (tp.h) are computed in as
     * many pieces, which are added as ranks add them: each rounded to the activations' type, summed
     * in F32 in the order of the ranks, and the sum rounded once. */
    int pieces;
    lt_tensor piece, total;     /* (rows, C) of that type; (rows, C) F32: scratch of it. */
    lt_tensor positions;        /* (B * T) I32 */
    lt_tensor late;             /* Ids of an embedding's op, or absent. */
    lt_tensor doc_start;        /* (B, T) I32 or absent */
    lt_tensor rope, rope_local; /* (P, columns, 2) F32; rope_local of sliding layers */
    double seconds[LT_TIMED_COUNT];
    int64_t calls[LT_TIMED_COUNT];
    lt_cost least[LT_TIMED_COUNT]; /* While watched. */
    struct lt_watch *watch;        /* NULL: not watched. */
    /* While a pass is recorded: runs a verb between two pieces; NULL: verbs run at once. */
    lt_err (*between_pieces)(void *pass, const lt_exec_verb *v);
    void *pass;
    lt_comm_work begun; /* The verb between its BEGIN and its END. */
    /* Called after each BEGIN: collectives that no rank needs yet may be queued after it. NULL:
     * there are none. */
    lt_err (*beside)(void *of);
    void *beside_of;
} lt_exec;

/* Run a verb. In a pass that is being recorded, it runs between two pieces. */
LT_MUST_USE lt_err lt_exec_run_verb(lt_exec *r, const lt_exec_verb *v);
/* The same, immediately. */
LT_MUST_USE lt_err lt_exec_run_verb_now(lt_exec *r, const lt_exec_verb *v);
/* Call these before and after other verbs, which are not part of a recording. */
void lt_exec_verb_begin(const lt_exec *r, lt_group *g);
lt_err lt_exec_verb_end(const lt_exec *r, lt_group *g, lt_comm_work work);

/* Called around every op: read the clock or, if the backend has a stopwatch and is watched, queue
 * its marks. */
lt_err lt_exec_before(lt_exec *r, lt_op op, const void *args);
lt_err lt_exec_begin(lt_exec *r, int timed, const lt_cost *least);
lt_err lt_exec_end(lt_exec *r, int timed);

#define LT_EXEC_OP(name, args)                                                                     \
    static inline lt_err lt_exec_##name(lt_exec *r, const args *a) {                               \
        lt_err err;                                                                                \
        LT_TRY(lt_exec_before(r, LT_OP_##name, a));                                                \
        err = r->ops->name(r->queue, a);                                                           \
        return err == LT_OK ? lt_exec_end(r, LT_OP_##name) : err;                                  \
    }
LT_OP_MAP(LT_EXEC_OP)
#undef LT_EXEC_OP

/* queue: of the caller, which outlives the context; NULL: its own. */
lt_err lt_exec_open(lt_exec *r, const lt_model *m, lt_queue *queue);
void lt_exec_close(lt_exec *r); /* Accepts one that was never opened. */

/* Begin to watch, with zeroed times, or end. */
lt_err lt_exec_watch(lt_exec *r, bool on);
/* Bring `seconds` up to date with a stopwatch's marks; waits. */
lt_err lt_exec_times(lt_exec *r);

/* The record of a layer, of what this rank computes of it. */
lt_layer_spec lt_exec_layer(const lt_exec *r, int layer);

/* Weight and gradient of a kind in a layer (ignored outside layers); absent kinds give data
 * NULL. */
lt_tensor lt_exec_weight(const lt_exec *r, lt_param_kind kind, int layer);
/* Its ranges in the type of their file; NULL: the model does not have the parameter, or has it in
 * the flat buffer. */
const lt_stored_weight *lt_exec_stored(const lt_exec *r, lt_param_kind kind, int layer);
lt_tensor lt_exec_gradient(const lt_exec *r, lt_param_kind kind, int layer);
/* The same for a bias; absent for LT_PARAM_KIND_COUNT, and on ranks that do not add it: only the
 * first rank adds a bias after a sum over ranks. */
lt_tensor lt_exec_bias(const lt_exec *r, lt_param_kind kind, int layer);
lt_tensor lt_exec_bias_gradient(const lt_exec *r, lt_param_kind kind, int layer);
/* In F32 whatever the weights' type; absent if the layer has none. */
lt_tensor lt_exec_xielu(const lt_exec *r, int layer); /* (2) */
lt_tensor lt_exec_sinks(const lt_exec *r, int layer); /* (H) */
/* Number of these elements per layer. lt_exec_f32_copy copies those of all layers, rounded as in
 * the BF16 weights, to device memory (L, count) F32; then lt_exec_xielu and lt_exec_sinks return
 * views of it. */
int64_t lt_exec_f32_count(const lt_model_spec *spec);
/* Where those of a kind begin in such memory; -1: it is none of them. */
int64_t lt_exec_f32_at(const lt_model_spec *spec, lt_param_kind kind, int layer);
lt_err lt_exec_copy_f32(lt_exec *r, float *device);

/* count heads of d columns of each row of x (B * T, W), from column `first` on: (B, T, count, d);
 * or of x (R, W): (R, count, d), for the ops that work a row at a time. */
lt_tensor lt_heads(const lt_exec *r, const lt_tensor *x, int64_t first, int64_t count, int64_t d);
lt_tensor lt_row_heads(const lt_tensor *x, int64_t first, int64_t count, int64_t d);

/* y (rows, C) = the embedding of ids [+ of r->positions], times the factor rounded to the weights'
 * type. */
lt_err lt_embedding_fwd(lt_exec *r, lt_tensor y, lt_tensor ids);
float lt_embedding_scale(const lt_exec *r);
/* The sum in pieces (pieces > 1), i from 0: r->piece has the next one; the last makes y (rows, C),
 * contiguous. */
lt_err lt_exec_add_piece(lt_exec *r, lt_tensor y, int i);
/* y = x w^T [+ bias]. */
lt_err lt_linear_fwd(lt_exec *r, lt_tensor y, lt_tensor x, lt_param_kind kind, lt_param_kind bias,
                     int layer);
/* The same without adapters, and a bias that is given; absent: none. */
lt_err lt_linear_base(lt_exec *r, lt_tensor y, lt_tensor x, lt_tensor bias, lt_param_kind kind,
                      int layer);
/* Is the layer one product of whole matrices, without adapters or 8-bit products? If so, rows of y
 * may be computed separately, and so may the two halves of its backward pass: lt_linear_bwd_input,
 * and lt_linear_bwd without dx. */
bool lt_linear_is_plain(const lt_exec *r, lt_param_kind kind, int layer);
LT_MUST_USE lt_err lt_linear_bwd_input(lt_exec *r, lt_tensor dx, lt_tensor dy, lt_param_kind kind,
                                       int layer);
/* lt_linear_fwd followed by the spec's plain activation: y = f(x), and x is kept for the backward
 * pass. */
lt_err lt_linear_act_fwd(lt_exec *r, lt_tensor y, lt_tensor x, lt_tensor in, lt_param_kind kind,
                         lt_param_kind bias, int layer);
/* dw += dy^T in; dbias likewise; dx = (dy w) f'(x), which may be in in's memory. */
lt_err lt_linear_act_bwd(lt_exec *r, lt_tensor dx, lt_tensor dy, lt_tensor in, lt_tensor x,
                         lt_param_kind kind, lt_param_kind bias, int layer);
/* dw += dy^T x; dbias += column sums of dy; dx [+]= dy w unless dx is absent. dx may be x: x is
 * read first. If the weights have no gradients, only dx and the gradients of adapters are computed.
 * When r->fresh is set, the first product of a weight stores dw instead; every weight except the
 * head has one product per batch. */
lt_err lt_linear_bwd(lt_exec *r, lt_tensor dx, lt_tensor dy, lt_tensor x, lt_param_kind kind,
                     lt_param_kind bias, int layer, bool add_dx);

/* A norm over C of the spec's kind, and what it keeps for its backward pass. */
typedef struct {
    lt_param_kind gain, bias; /* bias: LT_PARAM_KIND_COUNT for none. */
    int layer;
    lt_tensor mean, rstd;
} lt_norm;
/* y = norm(x [+ add -> sum]); add absent: x alone. */
lt_err lt_norm_fwd(lt_exec *r, const lt_norm *n, lt_tensor y, lt_tensor x, lt_tensor add,
                   lt_tensor sum);
/* The norm before the head; y is divided by the spec's logit_divisor, and so is dy before the
 * backward, in place, because the head is linear. */
lt_err lt_final_norm_fwd(lt_exec *r, const lt_norm *n, lt_tensor y, lt_tensor x, lt_tensor add,
                         lt_tensor sum);
lt_err lt_final_norm_bwd(lt_exec *r, const lt_norm *n, lt_tensor dx, lt_tensor dy, lt_tensor x);
/* dx [+]= backward of dy at input x. */
lt_err lt_norm_bwd(lt_exec *r, const lt_norm *n, lt_tensor dx, lt_tensor dy, lt_tensor x,
                   bool add_dx);

/* Columns of a head that rotate; and pairs in the table, half as many. With proportional scaling
 * the table has pairs for all of the head's columns; those that do not rotate have angle 0. */
int64_t lt_rope_dim(const lt_model_spec *spec);
int64_t lt_rope_columns(const lt_model_spec *spec);
/* If frequencies depend on the length of a text (dynamic, longrope): the length of the longest text
 * with the frequencies of short ones. 0: they do not. */
int64_t lt_rope_switch(const lt_model_spec *spec);
/* The dimensions between which yarn's ramp rises. */
void lt_rope_yarn_range(const lt_model_spec *spec, double *low, double *high);
/* Rotary table of positions [0, n) of a text of `length` tokens; length 0: each position is the
 * last of its text. cos and sin, (n, columns, 2) F32, host memory. local: that of sliding-window
 * layers. */
LT_MUST_USE lt_err lt_rope_table(float *table, const lt_model_spec *spec, int64_t n, bool local,
                                 int64_t length);

#endif
