/* point_layout.c: how a published run was split and scheduled, as a search query: from what the row
 * prints and what the recipes of its software say (runs.c); the rest is searched.
 *
 * A row whose printed degrees contradict each other is left out with the two facts. */
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "plan/point_read.h"

/* Share of expert traffic that hides where it runs beside another micro-batch's compute
 * (overlap_moe_expert_parallel_comm): the first dispatch of the first and the last combine of the
 * last micro-batch have nothing beside them. */
#define EP_OVERLAP 0.95

static int zero_of(const char *text, const char *stack) {
    if (has(text, "grad_op") || has(text, "no re-shard")) {
        return 2;
    }
    if (has(text, "fsdp") || has(text, "zero-3") || has(text, "2d sharding")) {
        return 3;
    }
    if (has(text, "zero-2")) {
        return 2;
    }
    if (has(text, "zero-1") || has(text, "distributed")) {
        return 1;
    }
    if (has(stack, "bridge")) {
        return -1;
    }
    return has(stack, "megatron-20") || has(stack, "deepspeed") ? 0 : 1;
}

static lt_plan_precision precision_of(const char *text) {
    if (has(text, "fp4")) {
        return LT_PLAN_NVFP4;
    }
    if (has(text, "fp8-cs")) {
        return LT_PLAN_FP8;
    }
    if (has(text, "mxfp8") || has(text, "fp8-mx")) {
        return LT_PLAN_MXFP8;
    }
    if (has(text, "fp8") && has(text, "rowwise")) {
        return LT_PLAN_FP8ROW;
    }
    return has(text, "fp8") ? LT_PLAN_FP8 : LT_PLAN_BF16;
}

static int recompute_of(const char *text) {
    if (has(text, "no recompute") || has(text, "none")) {
        return 0;
    }
    if (has(text, "selective")) {
        return 1;
    }
    return has(text, "full") ? 2 : -1;
}

/* Pythia's paper prints no layout, but its training files do (EleutherAI/pythia,
 * models/NAME/pythia-NAME.yml). */
static void pythia_layout(lt_plan_query *q, const char *name) {
    static const struct {
        const char *size;
        int tp, micro;
    } table[] = {{"70m", 1, 32},  {"160m", 1, 32}, {"410m", 1, 32}, {"1b", 1, 16},
                 {"1.4b", 1, 16}, {"2.8b", 1, 16}, {"6.9b", 2, 8},  {"12b", 4, 8}};
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        char word[16];
        snprintf(word, sizeof word, " %s", table[i].size);
        if (has(name, word) && q->tp == 0 && q->pp == 0 && q->micro == 0) {
            q->tp = table[i].tp;
            q->pp = 1;
            q->micro = table[i].micro;
            q->recompute = 2;
        }
    }
}

/* Torchtitan cuts the local batch into as many micro-batches as there are stages unless told
 * otherwise (its pipeline_parallel_microbatches; "local batch 32" in the note). Its loss is
 * compiled too since early 2025. */
static void torchtitan_layout(lt_point_job *j, const lt_point *row) {
    lt_plan_query *q = &j->query;
    static const char words[] = "local batch ";
    const char *local = strstr(F(row, note), words);
    if (q->pp > 1 && q->micro == 0 && local != NULL) {
        q->micro = whole(local + sizeof words - 1) / q->pp;
    }
    if (has(F(row, source), "2025")) {
        j->cluster.stack.logit_bytes = 4;
    }
}

/* Megatron-Bridge's benchmarks: values from their recipes (runs.c) where the page has none. */
static bool bridge_run(lt_point_job *j, const lt_point *row, char *why) {
    static const char *const precisions[LT_PLAN_PRECISION_COUNT] = {"fp32",  "bf16",  "fp8",
                                                                    "mxfp8", "nvfp4", "fp8"};
    static const char *const sizes[][2] = {
        {"405b", "llama31-405b"}, {"70b", "llama3-70b"}, {"8b", "llama3-8b"}};
    lt_plan_query *q = &j->query;
    lt_plan_stack *s = &j->cluster.stack;
    const char *name = F(row, model), *tag = j->model.name;
    char run[LT_PLAN_TEXT_BYTES];
    lt_plan_run r = {0};
    bool found = false;

    for (size_t i = 0; i < sizeof sizes / sizeof *sizes && has(name, "llama"); i++) {
        if (has(name, sizes[i][0])) {
            tag = sizes[i][1];
        }
    }
    snprintf(run, sizeof run, "%.60s%s/%s/%s", tag,
             has(name, "lora")  ? "-lora"
             : has(name, "sft") ? "-sft"
                                : "",
             strcmp(j->cluster.gpu.name, "h100-sxm") == 0 ? "h100" : j->cluster.gpu.name,
             precisions[q->precision]);
    if (lt_plan_run_find(&r, &found, s->name, run, q) != LT_OK) {
        snprintf(why, LT_PLAN_TEXT_BYTES, "%.200s", lt_error_message());
        return false;
    }
    if (j->model.n_experts > 0 || q->precision == LT_PLAN_NVFP4) {
        /* Its recipes overlap tensor parallelism for dense models only, and not in nvfp4. */
        s->tp_overlap = 0;
    }
    if (j->model.latent > 0 && j->model.mtp > 0) {
        /* Its recipes run Nemotron 3 Super's one predictor twice (mtp_use_repeated_layer), and in
         * bf16 (keep_mtp_spec_in_bf16): a layer of attention and one of experts. In nvfp4, its
         * te_quant.cfg also keeps the last 14 of 88 layers, attention's products and the latent
         * maps in bf16. */
        j->model.mtp = 2;
        s->wide_layers = 2.0 * 2.0;
        if (q->precision == LT_PLAN_NVFP4) {
            s->wide_layers += 14;
            s->wide_attention = 1;
        }
    }
    if (found) {
        const int64_t micro = r.micro > 0 ? r.micro : 1;
        s->graph = r.graph;
        s->narrow_attention = r.narrow_attention;
        s->ep_overlap = r.overlap ? EP_OVERLAP : 0;
        s->ep_copies = r.dedupe && !has(name, "tokendrop") ? 0 : 1;
        if (q->recompute < 0) {
            q->recompute = r.again_layers > 0 ? 2 : r.again != 0 ? 1 : 0;
            q->again = r.again;
            q->again_layers = r.again_layers;
        }
        if (q->zero < 0 && r.fsdp && q->pp <= 1) {
            q->zero = 3;
        }
        if (q->micro > 0 && q->micro != micro && q->pp == (r.pp > 0 ? r.pp : 1)) {
            snprintf(j->flag, sizeof j->flag,
                     "prints a micro-batch of %lld, its recipe has %lld for the same stages",
                     (long long)q->micro, (long long)micro);
        }
        if (q->vpp == 0 && q->pp > 1 && q->pp == r.pp) {
            q->vpp = r.vpp; /* The page's column is blank for some recipes that interleave. */
        }
    }
    return true;
}

/* Facts of the stacks that no column holds. */
static bool stack_layout(lt_point_job *j, const lt_point *row, char *why) {
    lt_plan_query *q = &j->query;
    const char *stack = j->cluster.stack.name;
    if (strcmp(stack, "pythia") == 0) {
        pythia_layout(q, F(row, model));
    }
    if (has(stack, "bridge") && !bridge_run(j, row, why)) {
        return false;
    }
    if (q->recompute == -1 && (has(stack, "bridge") || has(stack, "deepseek"))) {
        q->recompute = -2; /* Its recipes recompute modules, never whole layers. */
    }
    if (q->zero == -1 && j->model.n_experts > 0) {
        q->zero = 1; /* They shard only the optimiser; FSDP is for dense models. */
    }
    if (has(F(row, model), "async tp") || has(F(row, note), "asynctp")) {
        /* Products and collectives run in tp pieces; only the last piece of a sum is exposed. */
        j->cluster.stack.tp_overlap = 1.0 - 0.5 / lt_plan_max(1, q->tp);
    }
    if (has(stack, "torchtitan")) {
        torchtitan_layout(j, row);
    }
    q->sp_off = strcmp(stack, "pythia") == 0 || /* GPT-NeoX has no sequence parallelism. */
                (j->cluster.stack.attention == LT_PLAN_ATTENTION_UNFUSED &&
                 !has(F(row, recompute), "sp"));
    j->model.dropout = has(stack, "megatron-20");
    return true;
}

/* Rows that contradict themselves are excluded. */
static bool consistent(const lt_point_job *j, int dp, char *why) {
    const lt_plan_query *q = &j->query;
    const int vpp = q->vpp > 0 ? q->vpp : 1;
    const long long micro = q->micro > 0 ? (long long)q->micro : 1;
    if (q->batch_seqs <= 0) {
        snprintf(why, LT_PLAN_TEXT_BYTES, "global batch is not printed");
    } else if (dp > 0 && q->tp > 0 && q->pp > 0 && (int64_t)dp * q->tp * q->pp * q->cp != q->gpus) {
        snprintf(why, LT_PLAN_TEXT_BYTES,
                 "contradiction: tp %d x pp %d x cp %d x dp %d is not %lld GPUs", q->tp, q->pp,
                 q->cp, dp, (long long)q->gpus);
    } else if (dp > 0 && q->batch_seqs < dp * micro) {
        snprintf(why, LT_PLAN_TEXT_BYTES,
                 "contradiction: a batch of %lld sequences is less than dp %d x micro-batch %lld",
                 (long long)q->batch_seqs, dp, micro);
    } else if (q->pp > 0 && (int64_t)q->pp * vpp > j->model.n_layers + 3) {
        snprintf(why, LT_PLAN_TEXT_BYTES,
                 "contradiction: pp %d x vpp %d is more than the %lld layers", q->pp, vpp,
                 (long long)j->model.n_layers);
    } else {
        return true;
    }
    return false;
}

/* Virtual stages of a row that prints none: 0 (search) for software that interleaves wherever it
 * divides, and for rows that say so. */
static void schedule_of(lt_point_job *j, const lt_point *row) {
    lt_plan_query *q = &j->query;
    const char *stack = j->cluster.stack.name;
    const bool said = has(F(row, note), "interleaved") || has(F(row, model), "interleaved");
    if (q->pp == 1) {
        q->vpp = 1;
    } else if (q->pp > 1 && q->vpp == 0 && said && has(stack, "torchtitan")) {
        q->vpp = 2; /* Two stages a rank under its looped schedules. */
    } else if (q->pp > 1 && q->vpp == 0 && !said && !has(stack, "megatron-core") &&
               !has(stack, "llama3")) {
        q->vpp = 1;
    }
}

bool lt_point_layout_make(lt_point_job *j, const lt_point *row, char why[LT_PLAN_TEXT_BYTES]) {
    lt_plan_query *q = &j->query;
    const char *stack = j->cluster.stack.name;
    const int cp = degree(F(row, cp));
    *q = (lt_plan_query){.gpus = j->cluster.gpus,
                         .batch_seqs = whole(F(row, global_batch_seqs)),
                         .seq = j->model.max_seq,
                         .zero = zero_of(F(row, zero_fsdp), stack),
                         .precision = precision_of(F(row, precision)),
                         .max_results = 1,
                         .tp = degree(F(row, tp)),
                         .pp = degree(F(row, pp)),
                         .vpp = degree(F(row, vpp)),
                         .cp = cp > 0 ? cp : 1,
                         .ep = degree(F(row, ep)),
                         .micro = degree(F(row, micro_batch)),
                         .recompute = recompute_of(F(row, recompute))};
    q->tune = has(F(row, model), "lora") ? LT_PLAN_TUNE_LORA : LT_PLAN_TUNE_ALL;
    q->fp32_grads = has(F(row, precision), "fp32 grad") ||
                    (!has(F(row, note), "pure") && q->zero != 3 && !has(stack, "bridge") &&
                     j->cluster.stack.attention != LT_PLAN_ATTENTION_UNFUSED);
    if (!stack_layout(j, row, why)) {
        return false;
    }
    if (q->batch_seqs == 0 && j->one_layer) {
        q->batch_seqs = q->micro;
    }
    if (!consistent(j, degree(F(row, dp)), why)) {
        return false;
    }
    schedule_of(j, row);
    return true;
}
