/* pass_impl.h: private declarations of a pass: pass.c opens it and owns its memory, pass_range.c
 * computes ranges of layers, pass_train.c queues and records whole training batches, and
 * pass_join.c handles several adapters. */
#ifndef LT_MODEL_PASS_IMPL_H
#define LT_MODEL_PASS_IMPL_H

#include "model/blocks/deferred.h"
#include "model/blocks/block.h"
#include "model/blocks/context.h"
#include "model/pass/exact.h"
#include "model/blocks/expert.h"
#include "model/blocks/fp8.h"
#include "model/pass/loss.h"
#include "model/pass/pass.h"
#include "model/pass/shared.h"
#include "model/pass/stage.h"
#include "tensor/timeline.h"

/* Shapes of batches, each with gradients that are stored or added to. A ramp of the batch size
 * needs a few of them; batches in which different numbers of labels count need more. */
#define LT_PASS_MAX_GRAPHS 64

/* A graph, and what follows it: a callback, a verb between ranks, or the end of the pass. */
typedef struct {
    lt_graph *graph;                                   /* NULL: nothing was queued. */
    lt_err (*tell)(void *of, int unit, unsigned what); /* NULL: none. */
    int unit;
    unsigned what;
    lt_exec_verb verb; /* group NULL: none. */
} lt_pass_piece;

/* One of several adapters that are trained together. */
typedef struct {
    lt_lora_run run;
    int64_t max_rows; /* Most rows of a batch. */
    lt_arena arena;   /* Its gradients and scratch. */
} lt_pass_joined;

/* A training pass of one shape; recorded at its second use, when nothing is compiled or allocated
 * any more. */
typedef struct {
    int64_t batch, seq;
    bool has_documents, has_weights, fresh;
    float grad_scale;
    uint64_t division; /* A digest of the batch's rows_of; 0: it has none. */
    int64_t head_rows;
    lt_pass_piece *pieces; /* (n_pieces) */
    int n_pieces, room;
} lt_pass_recorded;

struct lt_pass {
    lt_exec exec;
    lt_model *model;
    lt_pass_options options;
    int first, end;                                          /* Its layers. */
    lt_arena activations, gradients, logits, scratch, eight; /* Arenas in the backend's memory. */
    lt_fp8 fp8;
    lt_context context;
    lt_shared shared;      /* For the context's current set; rows 0: not shared. */
    lt_pass_shares shares; /* Sums over all batches. */
    lt_exact exact;
    lt_experts experts;
    lt_deferred deferred;  /* The gradients that options.split_backward defers. */
    lt_acts_set *sets;     /* (n_sets) */
    lt_layer_acts *layers; /* (n_sets, end - first) */
    lt_arena shared_acts;  /* The part of the activations that all sets share. */
    lt_loss loss;
    float temperature;       /* Set by lt_pass_set_temperature; 0: 1. */
    lt_loss_target target;   /* Set by lt_pass_aim. */
    bool aimed;              /* There is a target. */
    lt_lora_dropping *drops; /* (n_sets): dropout of the batches in them. */
    lt_lora_run lora;        /* The adapters of options.lora, */
    lt_pass_joined *joined;  /* or (options.joins), of which n_joined have joined. */
    int n_joined;
    float *rope, *rope_local, *f32; /* Device tables, in scratch. */
    lt_stage stage;
    lt_pass_recorded graphs[LT_PASS_MAX_GRAPHS];
    int n_shapes;
    int64_t n_graphs;
    lt_pass_recorded *recording; /* NULL: queued work runs immediately. */
    const lt_pass_units *units;  /* NULL: no callbacks. */
    bool mute;
    lt_timeline *timeline; /* NULL: no spans. */
    bool zero_due; /* Nothing has been added to the gradients since lt_pass_zero_gradients. */
    /* (n_layers + 1), the last for the head: whether products of this unit have been stored since
     * then, so that further ones are added. */
    bool *stored;
    /* The set and the layer whose values are in the shared tensors; -1: none. */
    int recomputed_set, recomputed;
    int kept_set; /* The set of the batch whose logits loss.kept holds; -1: none. */
};

/* pass.c. */
lt_err lt_pass_check_batch(const lt_pass *p, const lt_pass_batch *b);
/* Gradients of a whole model, or of its adapters, are one piece; those of a stage are carved unit
 * by unit. t: the table of the model, or of the adapters. */
void lt_pass_carve_gradients(lt_param_buffer *g, const lt_model_spec *s, const lt_param_table *t,
                             const lt_pass_options *o, lt_arena *a);
/* Give the tensors of the set, and of the context, this shape; the stage fills them. given: B and
 * T of the batch if its rows are shared, otherwise 0. */
typedef struct {
    int64_t batch, seq, given_batch, given_seq;
    bool has_documents;
} lt_pass_shape;
void lt_pass_shape_set(lt_pass *p, int set, const lt_pass_shape *shape);

/* pass_join.c. Set the rows, of seq tokens each, that the joined adapters have in the next
 * batches. They must add up to the rows of a batch. */
void lt_pass_divide(lt_pass *p, const int64_t *rows_of, int64_t seq);
void lt_pass_check_division(const lt_pass *p, const lt_pass_batch *b);

/* pass_range.c. For a whole batch in a set: forward to h_final; and its loss and gradients.
 * labels: on the host, to skip chunks without a label; NULL: skip none. */
lt_err lt_pass_forward_all(lt_pass *p, int set, bool train);
lt_err lt_pass_compute(lt_pass *p, const int32_t *labels, float grad_scale);

/* Before a batch goes forward: derive again the numbers that depend on changed weights and
 * adapters (fp8.h, dora.h). */
lt_err lt_pass_refresh(lt_pass *p);

/* pass_train.c. Call the callbacks; while a pass is recorded, between two pieces. */
lt_err lt_pass_enter(lt_pass *p, int unit, unsigned what);
lt_err lt_pass_leave(lt_pass *p, int unit, unsigned what);
void lt_pass_recorded_close(lt_pass *p, lt_pass_recorded *r);

static inline lt_layer_acts *lt_pass_layer(const lt_pass *p, int set, int layer) {
    LT_ASSERT(layer >= p->first && layer < p->end);
    return &p->sets[set].layers[layer - p->first];
}

#endif
