/* auto.c: see auto.h. */
#include "plan/auto.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "comm/call.h"
#include "comm/peer.h"
#include "model/layer.h"
#include "parallel/pipeline.h"
#include "plan/plan.h"
#include "train/adapters.h"
#include "train/recipe/fit.h"
#include "train/run.h"

/* Usable share of a GPU's memory; the driver, NCCL and the kernels take the rest. */
#define MEMORY_SHARE 0.92
/* Share of the passes' time in which gradients and weights can move beside them. */
#define HIDDEN_SHARE 0.9
#define RING_SHARE   0.3 /* Share of a ring's transfers that its attention does not hide. */
/* Copies between GPUs of one machine (comm/peer.h), measured on two H200: the share of the link's
 * bandwidth that large copies reach, and the loss per piece (docs/speed/parallel.md, 3 and 4). */
#define COPY_SHARE   0.84
#define COPY_PIECE_S 20e-6
/* Time that the passes wait for each transfer of tp, even one that products hide: ranks arrive at
 * different times, and the last rows are copied or added. Measured with tp of two and of four. */
#define COPY_LATE_S 80e-6
/* CPU ranks: rates of a core in F32 products, and of messages through memory. They are rough; the
 * choice depends only on their ratio. */
#define CORE_FLOPS 30e9
#define CPU_GBPS   3.0

/* ---- The machine ---- */

lt_err lt_auto_machine_gpu(lt_auto_machine *out, const char *name, int n_ranks) {
    *out = (lt_auto_machine){.on_device = true};
    LT_TRY(lt_plan_cluster_load(&out->cluster, name));
    /* A GPU kind without a cluster has as many as needed. */
    if (strcmp(out->cluster.name, out->cluster.gpu.name) == 0) {
        out->cluster.gpus = n_ranks;
    }
    out->memory_bytes = MEMORY_SHARE * out->cluster.gpu.memory_bytes;
    return lt_own_rates_find(&out->rates, out->cluster.gpu.name);
}

void lt_auto_machine_cpu(lt_auto_machine *out, int n_cores, int n_ranks) {
    const double cores = lt_plan_max(1.0, (double)n_cores / n_ranks);
    const lt_plan_gpu gpu = {.name = "cpu",
                             .link_gbps = CPU_GBPS,
                             .nic_gbps = CPU_GBPS,
                             .node_gpus = n_ranks,
                             .domain_gpus = n_ranks};
    const lt_plan_stack stack = {.name = "lateen", .network = 1.0};
    *out = (lt_auto_machine){.flops_per_s = CORE_FLOPS * cores};
    lt_plan_cluster_plain(&out->cluster, &gpu, &stack, n_ranks);
    out->cluster.link_latency_us = 20;
}

/* ---- What training accepts ---- */

typedef struct {
    const lt_auto_machine *machine;
    lt_own_run run; /* The recipe's run on a single rank. */
    lt_plan_params params;
    int n_ranks;
    lt_auto_layout *list;
    size_t n, room;
    /* One rank's compute times, by rows of a micro-batch. */
    int64_t known_micro;
    double known_pass_s, known_update_s;
} finder;

static int64_t rows_of(const finder *f, const lt_mesh_shape *s) {
    return lt_recipe_largest_batch(&f->run.recipe) / s->dp;
}

/* The micro-batch size, computed as in lt_training_open. */
static int64_t micro_of(const finder *f, const lt_mesh_shape *s) {
    const int64_t most = rows_of(f, s), asked = f->run.recipe.micro, share = most / (4 * s->pp);
    const int64_t usual = s->pp == 1 ? most : share > 0 ? share : 1;
    return asked == 0 ? usual : asked < most ? asked : most;
}

static bool accepts(const finder *f, const lt_mesh_shape *s, int zero) {
    const lt_recipe *r = &f->run.recipe;
    const bool dense = s->pp * s->cp * s->tp * s->ep == 1;
    lt_layout layout;
    if (lt_recipe_divides(r, s) != LT_OK || lt_layout_open(&layout, &f->run.spec, s, 0) != LT_OK ||
        lt_adapters_check(r, zero) != LT_OK || lt_objective_check(r, s) != LT_OK) {
        return false;
    }
    return !(zero > 0 && (s->dp * s->cp == s->ep || (s->ep > 1 && r->shard > 0))) &&
           !(zero > 0 && r->shard > 0 && s->dp * s->cp % r->shard != 0) &&
           !(zero > 1 && s->pp > 1 && lt_training_zero_refused(r, &f->run.spec) != NULL) &&
           !(zero == 3 && r->fp8 != LT_FP8_NONE) &&
           !(r->deterministic != 0 && (!dense || zero > 0)) &&
           !(r->optim == LT_OPTIM_MUON && s->tp > 1) && !(r->fp8 == LT_FP8_BLOCKWISE && s->tp > 1);
}

/* ---- Memory ---- */

/* The options with which training would open a rank's passes. Groups only stand for their sizes. */
typedef struct {
    lt_group tp, cp, ep;
    lt_world world;
    lt_shards shards;
    lt_rank_parts parts;
    lt_pass_options pass;
    lt_recipe recipe;
} rank_of;

static lt_err open_rank(rank_of *x, const finder *f, const lt_auto_layout *l,
                        const lt_stages *stages, int rank) {
    const lt_mesh_shape *s = &l->mesh;
    x->recipe = f->run.recipe;
    x->recipe.micro = l->micro;
    x->recipe.zero = l->zero;
    x->tp = (lt_group){.n = s->tp};
    x->cp = (lt_group){.n = s->cp};
    x->ep = (lt_group){.n = s->ep};
    x->world = (lt_world){.shape = *s, .rank = rank};
    LT_TRY(lt_layout_open(&x->world.layout, &f->run.spec, s, rank));
    if (stages != NULL) {
        lt_layout_place(&x->world.layout, stages);
    }
    LT_TRY(lt_fit_shards_open(&x->shards, &x->world, &x->recipe));
    x->pass = lt_fit_pass_options(&x->recipe, f->machine->on_device);
    x->pass.seq /= s->cp;
    x->pass.tp = &x->tp;
    x->pass.context = (lt_context_options){s->cp > 1 ? &x->cp : NULL,
                                           (lt_context_kind)x->recipe.context};
    x->pass.experts = s->ep > 1 ? &x->ep : NULL;
    x->pass.expert_room = x->recipe.expert_room;
    x->parts = lt_fit_parts(&x->shards, x->pass.lora.rank > 0);
    lt_fit_divide(&x->pass, &x->shards, &x->parts, l->zero > 0 || s->pp * s->tp * s->ep > 1);
    return LT_OK;
}

static lt_err measure_rank(double *bytes, const finder *f, const lt_auto_layout *l,
                           const lt_stages *stages, int stage) {
    const lt_mesh_shape *s = &l->mesh;
    const int64_t micros = (rows_of(f, s) + l->micro - 1) / l->micro;
    lt_err err = LT_OK;
    lt_memory_plan plan;
    lt_pass_memory passes;
    rank_of *x = calloc(1, sizeof *x);
    if (x == NULL) {
        LT_FAIL(LT_ERR_OOM, "a rank's memory");
    }
    LT_TRY_DONE(open_rank(x, f, l, stages, stage * s->dp * s->cp * s->tp));
    if (stages != NULL) {
        LT_TRY_DONE(lt_pipeline_measure(&passes, &f->run.spec, f->run.dtype, &x->pass, stages,
                                        stage, &micros, 1));
    }
    LT_TRY_DONE(lt_memory_buffers(&plan, &x->recipe, &f->run.spec, f->run.dtype, &x->pass,
                                  stages != NULL ? &passes : NULL, &x->shards));
    *bytes = (double)(f->machine->on_device ? plan.device_bytes : plan.buffers_bytes);
done:
    lt_shards_close(&x->shards);
    free(x);
    return err;
}

static lt_err measure(lt_auto_layout *l, const finder *f, const lt_stages *stages) {
    for (int stage = 0; stage < l->mesh.pp; stage++) {
        double bytes = 0.0;
        LT_TRY(measure_rank(&bytes, f, l, stages, stage));
        l->bytes = lt_plan_max(l->bytes, bytes);
    }
    l->fits = f->machine->memory_bytes == 0.0 || l->bytes <= f->machine->memory_bytes;
    return LT_OK;
}

/* ---- Time ---- */

/* Seconds of one micro-batch's passes through the whole model on one rank, and of an update. */
static lt_err compute_of(finder *f, int64_t micro, double *pass_s, double *update_s) {
    const lt_op updates[] = {LT_OP_adamw, LT_OP_ademamix, LT_OP_lion, LT_OP_muon, LT_OP_sumsq};
    const lt_recipe *r = &f->run.recipe;
    if (f->known_micro != micro && f->machine->on_device) {
        lt_own_run run = f->run;
        lt_dry_step step;
        run.pass.batch = micro * lt_recipe_together(r);
        run.micros = 1;
        LT_TRY(lt_own_step(&step, &run, &f->machine->cluster.gpu, &f->machine->rates));
        f->known_update_s = 0.0;
        for (size_t i = 0; i < sizeof updates / sizeof *updates; i++) {
            f->known_update_s += step.ops_s[updates[i]];
        }
        f->known_pass_s = step.step_s - f->known_update_s;
    } else if (f->known_micro != micro) {
        const double again = r->recompute == LT_RECOMPUTE_FULL ? 4.0 / 3.0 : 1.0;
        f->known_pass_s = again * (double)(micro * r->seq) *
                          lt_model_spec_train_flops(&f->run.spec, r->seq) / f->machine->flops_per_s;
        f->known_update_s = f->params.total * 10.0 / f->machine->flops_per_s;
    }
    f->known_micro = micro;
    *pass_s = f->known_pass_s;
    *update_s = f->known_update_s;
    return LT_OK;
}

/* Seconds of a gather, or a reduction to shards, of `bytes` in total over n ranks that are `stride`
 * apart. */
static double transfer_s(const finder *f, lt_plan_verb verb, double bytes, int64_t n,
                         int64_t stride) {
    const lt_plan_gpu *gpu = &f->machine->cluster.gpu;
    if (!f->machine->on_device || n * stride > gpu->node_gpus || f->n_ranks > LT_PEER_MOST ||
        n == 1) {
        return lt_plan_collective_s(&f->machine->cluster, verb, bytes, n, stride);
    }
    const double shard = bytes / (double)n, others = (double)n - 1.0;
    const double pieces = ceil(shard / (double)lt_comm_device_piece(f->n_ranks));
    return others * (shard / (gpu->link_gbps * LT_PLAN_GB * COPY_SHARE) + pieces * COPY_PIECE_S);
}

/* Exposed seconds of transfers of `seconds` that run beside passes of `beside`. A share of them,
 * that of the last or first unit, is never hidden. */
static double exposed(double seconds, double beside, double alone) {
    return lt_plan_max(seconds - HIDDEN_SHARE * beside, seconds * alone);
}

static double dp_wait(const finder *f, const lt_auto_layout *l, double passes_s, double micros) {
    const lt_mesh_shape *s = &l->mesh;
    const lt_model_spec *spec = &f->run.spec;
    const double experts = f->params.routed / s->ep, others = f->params.total - f->params.routed;
    const double held = (others + experts) / (s->tp * s->pp);
    /* The embedding is the first unit forward and the last backward, and in one stage. */
    const double first = (double)(spec->vocab_size * spec->width) / s->tp,
                 alone = lt_plan_max(first / s->pp / held, 1.0 / (double)spec->n_layers);
    const double weight = (double)lt_dtype_bytes(f->run.dtype);
    const int64_t n = (int64_t)s->dp * s->cp;
    const double sum = transfer_s(f, LT_PLAN_REDUCE_SCATTER, 4.0 * held, n, s->tp);
    const double gather = transfer_s(f, LT_PLAN_ALL_GATHER, weight * held, n, s->tp);
    const double forward = passes_s / 3.0, backward = passes_s - forward;
    switch (l->zero) {
    case 0:
        return exposed(2.0 * sum, backward / micros, alone);
    case 1:
        return exposed(sum, backward / micros, alone) + exposed(gather, forward / micros, alone);
    case 2:
        return exposed(micros * sum, backward, alone) + exposed(gather, forward / micros, alone);
    default:
        return exposed(micros * gather, forward, alone) +
               exposed(micros * (gather + sum), backward, alone);
    }
}

/* Bytes of a micro-batch's residual stream on all ranks of tp together. */
static double stream_bytes(const finder *f, const lt_auto_layout *l) {
    return (double)(l->micro * f->run.recipe.seq) / l->mesh.cp * (double)f->run.spec.width *
           (double)lt_dtype_bytes(f->run.dtype);
}

/* Seconds of a product of one rank's rows with `columns` that the ranks of tp divide. */
static double rows_product_s(const finder *f, const lt_auto_layout *l, double columns) {
    const double rows = (double)(l->micro * f->run.recipe.seq) / l->mesh.cp / l->mesh.tp;
    const double flops = 2.0 * rows * (double)f->run.spec.width * columns / l->mesh.tp;
    return flops /
           (f->machine->cluster.gpu.peak_tflops[LT_PLAN_BF16] * 1e12 * f->machine->rates.gemm);
}

/* What a layer waits for its 8 gathers and scatters. On GPUs the products of all ranks' rows but
 * the last one's run beside them (model/blocks/tp.h): one of each rank's rows forward; backward
 * two, or one and the whole gradient of the weight. Experts, and products that are one op with
 * their activation, wait. */
static double tp_layer_s(const finder *f, const lt_auto_layout *l, double transfer) {
    const lt_layer_spec layer = lt_layer_part(&f->run.spec, 0, 1);
    const double n = l->mesh.tp, others = n - 1.0, mlp = layer.n_experts > 0 ? 0.0 : 1.0,
                 apart = layer.gated ? mlp : 0.0;
    const struct {
        double columns, forward, backward; /* Products that run beside the transfer. */
    } products[] = {{(double)lt_layer_qkv_cols(&layer), others, others + n},
                    {(double)lt_layer_att_cols(&layer), others, 2.0 * others},
                    {(double)lt_layer_up_rows(&layer), apart * others, mlp * (others + n)},
                    {(double)layer.ffn_width, mlp * others, apart * 2.0 * others}};
    double sum = 0.0;
    for (size_t i = 0; i < sizeof products / sizeof *products; i++) {
        const double beside = f->machine->on_device ? rows_product_s(f, l, products[i].columns)
                                                    : 0.0;
        sum += 2.0 * COPY_LATE_S + lt_plan_max(0.0, transfer - products[i].forward * beside) +
               lt_plan_max(0.0, transfer - products[i].backward * beside);
    }
    return sum;
}

static double tp_wait(const finder *f, const lt_auto_layout *l, double micros) {
    const lt_mesh_shape *s = &l->mesh;
    const double layers = (double)f->run.spec.n_layers / s->pp;
    const double again = f->run.recipe.recompute == LT_RECOMPUTE_FULL        ? 4.0
                         : f->run.recipe.recompute == LT_RECOMPUTE_SELECTIVE ? 2.0
                                                                             : 0.0;
    const double transfer = transfer_s(f, LT_PLAN_ALL_GATHER, stream_bytes(f, l), s->tp, 1);
    return micros * layers * (tp_layer_s(f, l, transfer) + again * transfer);
}

static double cp_wait(const finder *f, const lt_auto_layout *l, double micros) {
    const lt_mesh_shape *s = &l->mesh;
    const lt_model_spec *spec = &f->run.spec;
    const double kv = 2.0 * (double)(l->micro * f->run.recipe.seq) *
                      (double)(spec->n_kv_heads * spec->head_dim) / s->tp *
                      (double)lt_dtype_bytes(f->run.dtype);
    const double share = f->run.recipe.context == LT_CONTEXT_RING ? RING_SHARE : 1.0;
    return share * micros * (double)spec->n_layers / s->pp * 3.0 *
           transfer_s(f, LT_PLAN_ALL_GATHER, kv, s->cp, s->tp);
}

static double ep_wait(const finder *f, const lt_auto_layout *l, double micros) {
    const lt_mesh_shape *s = &l->mesh;
    return micros * (double)f->run.spec.n_layers / s->pp * 4.0 *
           lt_plan_collective_s(&f->machine->cluster, LT_PLAN_ALL_TO_ALL,
                                stream_bytes(f, l) / s->tp * (double)f->run.spec.top_k, s->ep,
                                s->tp);
}

/* The bubble of a schedule, in units of a rank's compute time for one micro-batch
 * (docs/parallel.md). */
static double bubble_of(const lt_stages *stages) {
    const double p = stages->ranks - 1.0;
    switch (stages->schedule) {
    case LT_SCHEDULE_INTERLEAVED:
        return p / stages->chunks;
    case LT_SCHEDULE_ZB_H1:
        return p / 3.0;
    case LT_SCHEDULE_ZBV:
        return p / 6.0;
    case LT_SCHEDULE_V_HALF:
        return p / 2.0;
    default:
        return p;
    }
}

static double largest_share(const finder *f, const lt_stages *stages) {
    double shares[LT_MAX_LAYERS], most = 0.0;
    const int n = stages->ranks * stages->chunks;
    const lt_schedule_shape shape = {stages->schedule, stages->ranks, stages->chunks, 1};
    lt_stages_shares(shares, stages, &f->run.spec, f->run.recipe.seq);
    for (int rank = 0; rank < stages->ranks; rank++) {
        double own = 0.0;
        for (int s = 0; s < n; s++) {
            own += lt_schedule_rank_of(&shape, s) == rank ? shares[s] : 0.0;
        }
        most = lt_plan_max(most, own);
    }
    return most;
}

static lt_err price(lt_auto_layout *l, finder *f, const lt_stages *stages) {
    const lt_mesh_shape *s = &l->mesh;
    const double micros = ceil((double)rows_of(f, s) / (double)l->micro);
    const double share = stages != NULL ? largest_share(f, stages) : 1.0;
    double pass_s, update_s, passes_s;
    LT_TRY(compute_of(f, l->micro, &pass_s, &update_s));
    pass_s *= share / (s->tp * s->cp);
    passes_s = micros * pass_s;
    l->compute_s = passes_s +
                   update_s * share / (s->tp * (l->zero > 0 ? (double)s->dp * s->cp : 1.0));
    l->dp_s = s->dp * s->cp > 1 ? dp_wait(f, l, passes_s, micros) : 0.0;
    l->tp_s = s->tp > 1 ? tp_wait(f, l, micros) : 0.0;
    l->cp_s = s->cp > 1 ? cp_wait(f, l, micros) : 0.0;
    l->ep_s = s->ep > 1 ? ep_wait(f, l, micros) : 0.0;
    if (stages != NULL) {
        const int64_t stride = (int64_t)s->dp * s->cp * s->tp;
        l->pp_s = micros * 2.0 * stages->chunks *
                  lt_plan_collective_s(&f->machine->cluster, LT_PLAN_SEND,
                                       stream_bytes(f, l) / s->tp, 2, stride);
        l->bubble_s = bubble_of(stages) * (pass_s + (l->tp_s + l->cp_s + l->ep_s) / micros);
    }
    l->step_s = l->compute_s + lt_auto_exposed_s(l);
    return LT_OK;
}

double lt_auto_exposed_s(const lt_auto_layout *l) {
    return l->dp_s + l->tp_s + l->cp_s + l->ep_s + l->pp_s + l->bubble_s;
}

/* ---- The search ---- */

static lt_err consider(finder *f, const lt_mesh_shape *s, int zero) {
    const lt_recipe *r = &f->run.recipe;
    lt_auto_layout l = {.mesh = *s, .zero = zero};
    lt_stages stages;
    if (!accepts(f, s, zero) ||
        (s->pp > 1 && lt_stages_open(&stages, &f->run.spec, (lt_schedule_kind)r->schedule, s->pp,
                                     (int)r->chunks, r->seq, r->stages) != LT_OK)) {
        return LT_OK;
    }
    if (f->n == f->room) {
        const size_t room = 2 * f->room + 64;
        lt_auto_layout *grown = realloc(f->list, room * sizeof *grown);
        if (grown == NULL) {
            LT_FAIL(LT_ERR_OOM, "%zu layouts", room);
        }
        f->list = grown;
        f->room = room;
    }
    l.micro = micro_of(f, s);
    LT_TRY(measure(&l, f, s->pp > 1 ? &stages : NULL));
    LT_TRY(price(&l, f, s->pp > 1 ? &stages : NULL));
    f->list[f->n++] = l;
    return LT_OK;
}

static lt_err with_experts(finder *f, lt_mesh_shape s) {
    const int plane = s.dp * s.cp;
    for (s.ep = 1; s.ep <= plane; s.ep++) {
        if (plane % s.ep != 0 || (s.ep > 1 && f->run.spec.n_experts % s.ep != 0) ||
            (s.ep > 1 && f->run.spec.n_experts == 0)) {
            continue;
        }
        for (int zero = 0; zero <= 3; zero++) {
            LT_TRY(consider(f, &s, zero));
        }
    }
    return LT_OK;
}

static lt_err enumerate(finder *f) {
    lt_mesh_shape s = {1, 1, 1, 1, 1};
    for (s.tp = 1; s.tp <= f->n_ranks; s.tp++) {
        for (s.cp = 1; s.cp * s.tp <= f->n_ranks; s.cp++) {
            for (s.pp = 1; s.pp * s.cp * s.tp <= f->n_ranks; s.pp++) {
                const int used = s.pp * s.cp * s.tp;
                s.dp = f->n_ranks / used;
                LT_TRY(f->n_ranks % used == 0 ? with_experts(f, s) : LT_OK);
            }
        }
    }
    return LT_OK;
}

/* Layouts that fit come first, ordered by time, then the others by memory; of equal ones, that with
 * less memory. */
static int by_merit(const void *a, const void *b) {
    const lt_auto_layout *x = a, *y = b;
    if (x->fits != y->fits) {
        return x->fits ? -1 : 1;
    }
    if (x->fits && x->step_s != y->step_s) {
        return x->step_s < y->step_s ? -1 : 1;
    }
    return x->bytes != y->bytes ? (x->bytes < y->bytes ? -1 : 1) : x->zero - y->zero;
}

static lt_err finder_open(finder **out, const lt_recipe *r, int n_ranks, const lt_auto_machine *m) {
    lt_plan_model model;
    finder *f = calloc(1, sizeof *f); /* It contains a recipe, so it is too large for the stack. */
    if (f == NULL) {
        LT_FAIL(LT_ERR_OOM, "search of layouts");
    }
    *out = f;
    f->machine = m;
    f->n_ranks = n_ranks;
    LT_TRY(lt_own_run_open(&f->run, r, m->on_device));
    lt_plan_model_from_spec(&model, &f->run.spec, "run");
    f->params = lt_plan_model_params(&model);
    return LT_OK;
}

static void finder_close(finder *f) {
    if (f != NULL) {
        free(f->list);
        free(f);
    }
}

lt_err lt_auto_price(lt_auto_layout *out, const lt_recipe *r, const lt_mesh_shape *mesh,
                     const lt_auto_machine *m) {
    lt_err err = LT_OK;
    char text[LT_AUTO_MESH_BYTES];
    finder *f = NULL;
    LT_TRY_DONE(finder_open(&f, r, mesh->pp * mesh->dp * mesh->cp * mesh->tp, m));
    LT_TRY_DONE(consider(f, mesh, (int)r->zero));
    if (f->n == 0) {
        LT_FAIL_DONE(LT_ERR_ARG, "mesh %s with mesh.zero = %lld cannot train this recipe",
                     lt_auto_mesh_text(text, mesh), (long long)r->zero);
    }
    *out = f->list[0];
done:
    finder_close(f);
    return err;
}

lt_err lt_auto_find(lt_auto_layout **out, size_t *n, const lt_recipe *r, int n_ranks,
                    const lt_auto_machine *m) {
    lt_err err = LT_OK;
    finder *f = NULL;
    LT_TRY_DONE(finder_open(&f, r, n_ranks, m));
    LT_TRY_DONE(enumerate(f));
    if (f->n == 0) {
        LT_FAIL_DONE(LT_ERR_ARG,
                     "no mesh of %d ranks can train this recipe: batch.size = %lld rows, %lld "
                     "layers, %lld heads",
                     n_ranks, (long long)r->batch, (long long)f->run.spec.n_layers,
                     (long long)f->run.spec.n_heads);
    }
    qsort(f->list, f->n, sizeof *f->list, by_merit);
    *out = f->list;
    *n = f->n;
    f->list = NULL;
done:
    finder_close(f);
    return err;
}

char *lt_auto_mesh_text(char out[LT_AUTO_MESH_BYTES], const lt_mesh_shape *mesh) {
    const struct {
        const char *name;
        int size;
    } axes[] = {
        {"dp", mesh->dp}, {"pp", mesh->pp}, {"cp", mesh->cp}, {"tp", mesh->tp}, {"ep", mesh->ep}};
    int at = 0;
    (void)snprintf(out, LT_AUTO_MESH_BYTES, "dp=1");
    for (size_t i = 0; i < sizeof axes / sizeof *axes; i++) {
        if (axes[i].size > 1) {
            at += snprintf(out + at, (size_t)(LT_AUTO_MESH_BYTES - at), "%s%s=%d",
                           at > 0 ? "," : "", axes[i].name, axes[i].size);
        }
    }
    return out;
}
