/* One published row read as planner input (point_job.c, point_layout.c): each fact that a row
 * prints, or that the papers, logs and recipes of its software state, and which query to the
 * planner follows from it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "plan/points.h"

static void near(double got, double want, double share) {
    if (!(fabs(got - want) <= share * fabs(want) + 1e-300)) {
        fail_msg("got %.10g, want %.10g within %.2g", got, want, share);
    }
}

typedef struct {
    lt_point_column column;
    const char *text;
} cell;

#define CELLS 8
#define C(name, text)                                                                              \
    { LT_POINT_##name, text }

/* 32 layers of width 4096 on 8 H100s, a step of 64 sequences in a second; then the cells. */
static lt_point row_of(const cell cells[CELLS]) {
    static const cell base[] = {
        C(id, "a"),           C(group, "g"),      C(model, "M"),       C(layers, "32"),
        C(hidden, "4096"),    C(heads, "32"),     C(ffn, "16384"),     C(vocab, "50304"),
        C(seq_len, "2048"),   C(gpu, "H100"),     C(gpus, "8"),        C(tp, "1"),
        C(pp, "1"),           C(dp, "8"),         C(micro_batch, "1"), C(global_batch_seqs, "64"),
        C(precision, "bf16"), C(iter_time_s, "1")};
    lt_point p;
    for (int i = 0; i < LT_POINT_COLUMNS; i++) {
        p.field[i] = "";
    }
    p.line = 1;
    for (size_t i = 0; i < sizeof base / sizeof *base; i++) {
        p.field[base[i].column] = base[i].text;
    }
    for (int i = 0; i < CELLS && cells[i].text != NULL; i++) {
        p.field[cells[i].column] = cells[i].text;
    }
    return p;
}

static lt_point_job job_of(const cell cells[CELLS]) {
    const lt_point row = row_of(cells);
    lt_point_job j;
    char why[LT_PLAN_TEXT_BYTES];
    memset(&j, 0x7f, sizeof j); /* All of it must be written. */
    if (!lt_point_job_make(&j, &row, why)) {
        fail_msg("left out: %s", why);
    }
    assert_string_equal(why, "");
    return j;
}

/* ---- The split and the schedule ---- */

typedef enum {
    ZERO,
    PRECISION,
    RECOMPUTE,
    AGAIN,
    AGAIN_LAYERS,
    TP,
    PP,
    VPP,
    CP,
    MICRO,
    BATCH,
    LORA,
    FP32_GRADS,
    SP_OFF,
    DROPOUT,
    TP_OVERLAP,
    LOGIT_BYTES,
    WIDE_LAYERS,
    WIDE_ATTENTION,
    MTP,
    GRAPH,
    EP_OVERLAP,
    EP_COPIES
} fact;

static double fact_of(const lt_point_job *j, fact f) {
    const lt_plan_query *q = &j->query;
    const lt_plan_stack *s = &j->cluster.stack;
    const double facts[] = {[ZERO] = q->zero,
                            [PRECISION] = q->precision,
                            [RECOMPUTE] = q->recompute,
                            [AGAIN] = q->again,
                            [AGAIN_LAYERS] = q->again_layers,
                            [TP] = q->tp,
                            [PP] = q->pp,
                            [VPP] = q->vpp,
                            [CP] = q->cp,
                            [MICRO] = (double)q->micro,
                            [BATCH] = (double)q->batch_seqs,
                            [LORA] = q->tune == LT_PLAN_TUNE_LORA,
                            [FP32_GRADS] = q->fp32_grads,
                            [SP_OFF] = q->sp_off,
                            [DROPOUT] = j->model.dropout,
                            [TP_OVERLAP] = s->tp_overlap,
                            [LOGIT_BYTES] = s->logit_bytes,
                            [WIDE_LAYERS] = s->wide_layers,
                            [WIDE_ATTENTION] = s->wide_attention,
                            [MTP] = (double)j->model.mtp,
                            [GRAPH] = s->graph,
                            [EP_OVERLAP] = s->ep_overlap,
                            [EP_COPIES] = s->ep_copies};
    return facts[f];
}

/* Rows of Megatron-Bridge's page, release 25.09 or 25.11. */
#define BRIDGE(name, kind, type)                                                                   \
    C(group, "megatron-bridge"), C(model, name), C(gpu, kind), C(precision, type)
#define R2509 C(source, "25.09 NeMo Container")
#define R2511 C(source, "25.11 NeMo Container")
#define PYTHIA(size)                                                                               \
    C(group, "pythia"), C(model, "Pythia " size), C(tp, ""), C(pp, ""), C(dp, ""),                 \
        C(micro_batch, "")

static void rows_become_queries(void **state) {
    static const struct {
        cell cells[CELLS];
        fact fact;
        double want;
    } rows[] = {
        /* Sharding by its words; if it is not named, that of the software. */
        {{C(zero_fsdp, "FSDP grad_op")}, ZERO, 2},
        {{C(zero_fsdp, "FSDP, no re-shard")}, ZERO, 2},
        {{C(zero_fsdp, "FSDP")}, ZERO, 3},
        {{C(zero_fsdp, "ZeRO-3")}, ZERO, 3},
        {{C(zero_fsdp, "2D sharding")}, ZERO, 3},
        {{C(zero_fsdp, "ZeRO-2")}, ZERO, 2},
        {{C(zero_fsdp, "ZeRO-1")}, ZERO, 1},
        {{C(zero_fsdp, "distributed optimizer"), C(group, "megatron-sc21")}, ZERO, 1},
        {{{0, NULL}}, ZERO, 1},
        {{C(group, "megatron-sc21")}, ZERO, 0},
        {{C(group, "megatron-sc21"), C(model, "GPT ZeRO-3")}, ZERO, 0},
        {{BRIDGE("Dense 7B", "H100", "BF16"), R2509}, ZERO, -1},
        {{BRIDGE("Qwen3 30B", "H100", "BF16"), R2509}, ZERO, 1},
        {{BRIDGE("LLAMA3_8B", "H100", "FP8-CS"), R2509}, ZERO, 3},
        {{BRIDGE("LLAMA3_8B", "H100", "FP8-CS"), R2509, C(pp, "2"), C(dp, "4")}, ZERO, -1},
        /* Number formats. */
        {{C(precision, "NVFP4")}, PRECISION, LT_PLAN_NVFP4},
        {{C(precision, "FP8-CS")}, PRECISION, LT_PLAN_FP8},
        {{C(precision, "MXFP8")}, PRECISION, LT_PLAN_MXFP8},
        {{C(precision, "FP8-MX")}, PRECISION, LT_PLAN_MXFP8},
        {{C(precision, "fp8 rowwise")}, PRECISION, LT_PLAN_FP8ROW},
        {{C(precision, "rowwise")}, PRECISION, LT_PLAN_BF16},
        {{C(precision, "fp8")}, PRECISION, LT_PLAN_FP8},
        {{C(precision, "bf16")}, PRECISION, LT_PLAN_BF16},
        /* Recomputation; recipes of some software recompute modules only. */
        {{C(recompute, "no recompute")}, RECOMPUTE, 0},
        {{C(recompute, "none")}, RECOMPUTE, 0},
        {{C(recompute, "selective")}, RECOMPUTE, 1},
        {{C(recompute, "full")}, RECOMPUTE, 2},
        {{{0, NULL}}, RECOMPUTE, -1},
        {{C(group, "deepseek")}, RECOMPUTE, -2},
        {{C(group, "deepseek"), C(recompute, "full")}, RECOMPUTE, 2},
        {{BRIDGE("Dense 7B", "H100", "BF16"), R2509}, RECOMPUTE, -2},
        /* EleutherAI/pythia, models/NAME/pythia-NAME.yml: recomputation; degrees and batches. */
        {{PYTHIA("70m")}, MICRO, 32},
        {{PYTHIA("160m")}, MICRO, 32},
        {{PYTHIA("410m")}, MICRO, 32},
        {{PYTHIA("1b")}, MICRO, 16},
        {{PYTHIA("1.4b")}, MICRO, 16},
        {{PYTHIA("2.8b")}, MICRO, 16},
        {{PYTHIA("6.9b")}, MICRO, 8},
        {{PYTHIA("12b")}, MICRO, 8},
        {{PYTHIA("70m")}, TP, 1},
        {{PYTHIA("160m")}, TP, 1},
        {{PYTHIA("410m")}, TP, 1},
        {{PYTHIA("1b")}, TP, 1},
        {{PYTHIA("1.4b")}, TP, 1},
        {{PYTHIA("2.8b")}, TP, 1},
        {{PYTHIA("6.9b")}, TP, 2},
        {{PYTHIA("12b")}, TP, 4},
        {{PYTHIA("12b")}, PP, 1},
        {{PYTHIA("12b")}, RECOMPUTE, 2},
        {{PYTHIA("12b"), C(tp, "2")}, TP, 2}, /* Printed values take precedence. */
        {{PYTHIA("12b"), C(micro_batch, "3")}, MICRO, 3},
        {{C(model, "Pythia 12b"), C(micro_batch, "")}, MICRO, 0}, /* Not in other software. */
        {{PYTHIA("12b")}, SP_OFF, 1},
        /* torchtitan cuts a local batch into as many micro-batches as stages. */
        {{C(group, "torchtitan"), C(note, "local batch 32"), C(pp, "8"), C(dp, "1"),
          C(micro_batch, "")},
         MICRO,
         4},
        {{C(group, "torchtitan"), C(note, "local batch 32"), C(pp, "8"), C(dp, "1")}, MICRO, 1},
        {{C(group, "torchtitan"), C(note, "local batch 32"), C(micro_batch, "")}, MICRO, 0},
        {{C(group, "torchtitan"), C(source, "torchtitan 2025")}, LOGIT_BYTES, 4},
        {{C(group, "torchtitan"), C(source, "torchtitan 2024")}, LOGIT_BYTES, 10},
        /* Collectives in tp pieces during the products: half of the last one is exposed. */
        {{C(model, "M Async TP"), C(tp, "8"), C(dp, "1")}, TP_OVERLAP, 1 - 0.5 / 8},
        {{C(note, "AsyncTP"), C(tp, "2"), C(dp, "4")}, TP_OVERLAP, 1 - 0.5 / 2},
        {{C(tp, "2"), C(dp, "4")}, TP_OVERLAP, 0},
        /* Sequence parallelism came with flash attention, or is named. */
        {{{0, NULL}}, SP_OFF, 0},
        {{C(group, "megatron-sc21")}, SP_OFF, 1},
        {{C(group, "megatron-sc21"), C(recompute, "full SP")}, SP_OFF, 0},
        {{C(recompute, "full SP")}, SP_OFF, 0},
        {{C(group, "megatron-sc21")}, DROPOUT, 1},
        {{{0, NULL}}, DROPOUT, 0},
        /* Gradients are in fp32, unless the note, FSDP, the page or the date says otherwise. */
        {{{0, NULL}}, FP32_GRADS, 1},
        {{C(note, "pure bf16")}, FP32_GRADS, 0},
        {{C(zero_fsdp, "FSDP")}, FP32_GRADS, 0},
        {{C(group, "megatron-sc21")}, FP32_GRADS, 0},
        {{BRIDGE("Dense 7B", "H100", "BF16"), R2509}, FP32_GRADS, 0},
        {{C(precision, "bf16, fp32 grad"), C(zero_fsdp, "FSDP")}, FP32_GRADS, 1},
        {{C(model, "M LoRA")}, LORA, 1},
        {{{0, NULL}}, LORA, 0},
        {{C(cp, "2"), C(dp, "4")}, CP, 2},
        {{{0, NULL}}, CP, 1},
        /* A row that times one layer may lack the batch. */
        {{C(layers, "1"), C(vocab, ""), C(global_batch_seqs, ""), C(micro_batch, "4"), C(dp, "")},
         BATCH,
         4},
        /* Chunks of a stage: one without a pipeline; searched if the software interleaves. */
        {{C(vpp, "4")}, VPP, 1},
        {{C(pp, "2"), C(dp, "4"), C(vpp, "3")}, VPP, 3},
        {{C(pp, "2"), C(dp, "4")}, VPP, 1},
        {{C(pp, "2"), C(dp, "4"), C(note, "interleaved")}, VPP, 0},
        {{C(pp, "2"), C(dp, "4"), C(group, "moe-folding")}, VPP, 0},
        {{C(pp, "2"), C(dp, "4"), C(group, "llama3")}, VPP, 0},
        {{C(pp, "2"), C(dp, "4"), C(group, "torchtitan")}, VPP, 1},
        {{C(pp, "2"), C(dp, "4"), C(group, "torchtitan"), C(note, "Interleaved 1F1B")}, VPP, 2},
        {{C(pp, "2"), C(dp, "4"), C(group, "torchtitan"), C(model, "M Interleaved")}, VPP, 2},
        {{C(pp, ""), C(dp, "")}, VPP, 0},
        /* Megatron-Bridge's recipes (recipes/clusters/runs.yaml names their files). */
        {{BRIDGE("LLAMA31_405B", "H100", "BF16"), R2509, C(pp, "8"), C(dp, "1"), C(layers, "126")},
         VPP,
         8},
        {{BRIDGE("LLAMA3_70B", "H100", "FP8-CS"), R2509, C(pp, "8"), C(dp, "1"), C(layers, "80")},
         VPP,
         5},
        {{BRIDGE("LLAMA3_70B", "H100", "FP8-CS"), R2509, C(pp, "4"), C(dp, "2")}, VPP, 1},
        {{BRIDGE("LLAMA3_70B", "B200", "FP8-CS"), R2509}, RECOMPUTE, 2},
        {{BRIDGE("LLAMA3_70B", "B200", "FP8-CS"), R2509}, AGAIN_LAYERS, 5},
        {{BRIDGE("LLAMA3_8B", "H100", "BF16"), R2509}, RECOMPUTE, 0},
        {{BRIDGE("LLAMA3_8B", "H100", "BF16"), R2509, C(recompute, "full")}, RECOMPUTE, 2},
        {{BRIDGE("LLAMA3_8B", "B200", "BF16"), R2509}, GRAPH, LT_PLAN_PART_ALL},
        {{BRIDGE("LLAMA3_8B", "H100", "BF16"), R2509}, GRAPH, 0},
        {{BRIDGE("LLAMA3_8B", "H100", "BF16"), R2509}, TP_OVERLAP, 0.875},
        {{BRIDGE("LLAMA3_8B", "GB200", "NVFP4"), R2509}, TP_OVERLAP, 0},
        {{BRIDGE("Qwen3 30B", "H100", "BF16"), R2509}, TP_OVERLAP, 0},
        {{BRIDGE("Qwen3 30B", "H100", "BF16"), R2509}, EP_COPIES, 1},
        {{BRIDGE("DeepSeekV3", "GB300", "BF16"), R2511}, RECOMPUTE, 1},
        {{BRIDGE("DeepSeekV3", "GB300", "BF16"), R2511}, AGAIN, LT_PLAN_AGAIN_MOE_ACT},
        {{BRIDGE("DeepSeekV3", "GB300", "BF16"), R2511}, EP_COPIES, 0},
        {{BRIDGE("DeepSeekV3 TokenDrop", "GB300", "BF16"), R2511}, EP_COPIES, 1},
        {{BRIDGE("DeepSeekV3", "GB300", "BF16"), R2511}, EP_OVERLAP, 0},
        {{BRIDGE("DeepSeekV3", "H100", "BF16"), R2511}, EP_OVERLAP, 0.95},
        {{BRIDGE("DeepSeekV3", "GB300", "BF16"), R2511}, MTP, 1},
        {{BRIDGE("DeepSeekV3 w/o MTP", "GB300", "BF16"), R2511}, MTP, 0},
        /* Nemotron 3 Super runs its predictor twice; in nvfp4 it keeps 14 layers wide. */
        {{BRIDGE("Nemotron Super", "GB300", "BF16"), R2511}, MTP, 2},
        {{BRIDGE("Nemotron Super w/o MTP", "GB300", "BF16"), R2511}, MTP, 0},
        {{BRIDGE("Nemotron Super", "GB300", "NVFP4"), R2511}, WIDE_LAYERS, 18},
        {{BRIDGE("Nemotron Super", "GB300", "NVFP4"), R2511}, WIDE_ATTENTION, 1},
        {{BRIDGE("Nemotron Super", "GB300", "MXFP8"), R2511}, WIDE_LAYERS, 4},
        {{BRIDGE("Nemotron Super", "GB300", "MXFP8"), R2511}, WIDE_ATTENTION, 0},
        {{BRIDGE("DeepSeekV3", "GB300", "NVFP4"), R2511}, WIDE_LAYERS, 0}};
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const lt_point_job j = job_of(rows[i].cells);
        const double got = fact_of(&j, rows[i].fact);
        if (!(fabs(got - rows[i].want) < 1e-12)) {
            fail_msg("row %zu (%s, %s, %s): %g, not %g", i, rows[i].cells[0].text,
                     rows[i].cells[1].text, rows[i].cells[2].text, got, rows[i].want);
        }
    }
}

static void contradictions_are_left_out(void **state) {
    static const struct {
        cell cells[CELLS];
        const char *why; /* NULL: the row is accepted. */
    } rows[] = {
        {{C(global_batch_seqs, "7")}, "a batch of 7 sequences is less than dp 8 x micro-batch 1"},
        {{C(global_batch_seqs, "8")}, NULL},
        {{C(micro_batch, "2"), C(global_batch_seqs, "15")}, "dp 8 x micro-batch 2"},
        {{C(micro_batch, "2"), C(global_batch_seqs, "16")}, NULL},
        {{C(global_batch_seqs, "")}, "global batch is not printed"},
        {{C(tp, "2")}, "tp 2 x pp 1 x cp 1 x dp 8 is not 8 GPUs"},
        {{C(cp, "2")}, "tp 1 x pp 1 x cp 2 x dp 8 is not 8 GPUs"},
        /* 5 x 7 chunks are allowed: up to 3 more than the 32 layers, for a pipeline's ends. */
        {{C(pp, "5"), C(vpp, "7"), C(dp, "")}, NULL},
        {{C(pp, "6"), C(vpp, "6"), C(dp, "")}, "pp 6 x vpp 6 is more than the 32 layers"},
        {{C(pp, "36"), C(dp, "")}, "pp 36 x vpp 1"},
        {{C(gpus, "")}, "number of GPUs is not printed"},
        {{C(gpu, "Abacus")}, "unknown GPU kind"},
        {{C(experts, "1")}, "mixture of experts"},
        {{C(heads, "")}, "sizes of the model are not printed"},
        {{C(iter_time_s, "")}, "no time, rate, FLOP/s or utilisation printed"},
        {{C(iter_time_s, "1e-7")}, "1e-07 s is not a time of a step"},
        {{C(iter_time_s, "1e8")}, "1e+08 s is not a time of a step"}};
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const lt_point row = row_of(rows[i].cells);
        lt_point_job j;
        char why[LT_PLAN_TEXT_BYTES];
        const bool taken = lt_point_job_make(&j, &row, why);
        if (taken != (rows[i].why == NULL) || (!taken && strstr(why, rows[i].why) == NULL)) {
            fail_msg("row %zu: '%s'", i, why);
        }
    }
}

/* A page that prints another micro-batch than its recipe, with the same stages, is flagged. */
static void a_recipe_with_another_batch_is_flagged(void **state) {
    static const cell same[CELLS] = {BRIDGE("LLAMA3_8B", "B200", "BF16"), R2509,
                                     C(micro_batch, "2")},
                      other[CELLS] = {BRIDGE("LLAMA3_8B", "B200", "BF16"), R2509},
                      unsaid[CELLS] = {BRIDGE("LLAMA3_8B", "B200", "BF16"), R2509,
                                       C(micro_batch, "")};
    (void)state;
    assert_string_equal(job_of(same).flag, "");
    assert_string_equal(job_of(unsaid).flag, "");
    assert_string_equal(job_of(other).flag,
                        "prints a micro-batch of 1, its recipe has 2 for the same stages");
}

/* ---- Software, model, machine, measure ---- */

static void groups_name_their_software(void **state) {
    static const struct {
        cell cells[CELLS];
        const char *stack;
    } rows[] = {{{C(group, "megatron-sc21")}, "megatron-2021"},
                {{C(group, "megatron-sc21"), C(model, "GPT ZeRO-3")}, "deepspeed"},
                {{C(group, "megascale"), C(model, "175B Megatron-LM")}, "megatron-core"},
                {{C(group, "megascale")}, "megascale"},
                {{C(group, "torchtitan"), C(model, "8B FSDP")}, "torchtitan-eager"},
                {{C(group, "torchtitan"), C(model, "8B FSDP compile")}, "torchtitan"},
                {{C(group, "torchtitan"), C(model, "8B FSDP x2")}, "torchtitan"},
                {{C(group, "nobody")}, "default"},
                {{C(group, "megatron-bridge"), C(source, "26.04 NeMo")}, "bridge-2604"},
                {{C(group, "megatron-bridge"), C(source, "v1 26.04.01 NeMo")}, "bridge-260401"},
                {{C(group, "megatron-bridge"), C(source, "26.04.1 NeMo")}, "bridge-2604"},
                {{C(group, "megatron-bridge"), C(source, "a page")}, "bridge"},
                /* BigScience's log has three phases, with two dates between them
                 * (point_job.c). */
                {{C(group, "bigscience")}, "bigscience"},
                {{C(group, "bloom")}, "bigscience"},
                {{C(group, "bigscience"), C(precision, "bf16 fp32 grad")}, "bigscience-3"},
                {{C(group, "bigscience"), C(note, "Rebalancing layers")}, "bigscience-3"},
                {{C(group, "bigscience"), C(note, "48 nodes")}, "bigscience-1"},
                {{C(group, "bigscience"), C(note, "final round")}, "bigscience-1"},
                {{C(group, "bigscience"), C(note, "NHEADS comparison")}, "bigscience-1"},
                {{C(group, "bigscience"), C(note, "GBS Variations")}, "bigscience-2"},
                {{C(group, "bigscience"), C(note, "another round")}, "bigscience-2"},
                {{C(group, "bigscience"), C(note, "warmup")}, "bigscience-2"},
                {{C(group, "bigscience"), C(note, "re-do")}, "bigscience-2"}};
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const lt_point row = row_of(rows[i].cells);
        char out[LT_PLAN_NAME_BYTES];
        assert_string_equal(lt_point_stack(&row, out), rows[i].stack);
    }
}

static void sizes_that_are_not_printed(void **state) {
    static const cell plain[CELLS] = {{0, NULL}},
                      few[CELLS] = {C(ffn, ""), C(vocab, ""), C(kv_heads, "8")},
                      narrow[CELLS] = {C(ffn, "11008"), C(vocab, "32000")},
                      one[CELLS] = {C(layers, "1"), C(vocab, ""), C(params_b, "100")},
                      llama[CELLS] = {C(model, "Llama")},
                      foundry[CELLS] = {C(group, "llm-foundry")};
    lt_point_job j = job_of(plain);
    (void)state;
    assert_int_equal(j.model.n_kv_heads, 32);
    assert_int_equal(j.model.head_dim, 128);
    assert_int_equal(j.model.ffn_width, 16384);
    assert_int_equal(j.model.vocab_size, 50304);
    assert_true(j.model.biases && j.model.tied && !j.model.gated && !j.one_layer);
    assert_int_equal(j.model.positions, 2048);
    j = job_of(few);
    assert_int_equal(j.model.n_kv_heads, 8);
    assert_int_equal(j.model.ffn_width, 4 * 4096);
    assert_int_equal(j.model.vocab_size, 50304); /* That of GPT-2, padded. */
    j = job_of(narrow);
    assert_int_equal(j.model.ffn_width, 11008);
    assert_int_equal(j.model.vocab_size, 32000);
    j = job_of(one);
    assert_true(j.one_layer && j.model.tied && !j.model.gated);
    assert_int_equal(j.model.vocab_size, 128);
    j = job_of(llama);
    assert_true(!j.model.biases && !j.model.tied);
    assert_int_equal(j.model.positions, 0);
    assert_false(job_of(foundry).model.biases);
}

/* The parameter count tells the form: Llama 3 8B has 8.03 billion parameters because it is gated
 * and not tied; GPT-3 6.7B is neither, and so on. */
static void the_parameter_count_tells_the_form(void **state) {
    static const struct {
        const char *params;
        bool gated, tied;
    } rows[] = {
        {"6.65", false, true}, {"6.86", false, false}, {"8.8", true, true}, {"9.01", true, false}};
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        /* 32 layers: attention 67.1 M; two matrices 134.2 M or three 201.3 M; vocabulary 206
         * M. */
        const cell cells[CELLS] = {C(params_b, rows[i].params)};
        const lt_point_job j = job_of(cells);
        if (j.model.gated != rows[i].gated || j.model.tied != rows[i].tied) {
            fail_msg("%s: gated %d, tied %d", rows[i].params, j.model.gated, j.model.tied);
        }
    }
}

/* GB/s per GPU of a node of 8: links are given in Gb/s per NIC, or per node. */
static void networks_are_read(void **state) {
    static const struct {
        const char *text;
        double gbps; /* 0: that of the kind of GPU. */
    } rows[] = {{"8x 400G", 50},
                {"8x400G IB", 50},
                {"4x HDR200 IB", 12.5},
                {"8x 10G", 1.25},
                {"8x 9G", 0},
                {"8x 1600G", 200},
                {"8x 1601G", 0},
                {"16x 100G", 25},
                {"17x 100G", 0},
                {"1600 Gb/s RoCE per node", 25},
                {"100 Gb/s", 1.5625},
                {"99 Gb/s", 0},
                {"NDR400", 0},
                {"4x Omni-Path 100", 0},
                {"omni-path 4x 100G", 4 * 100 / 8.0 / 8 * 0.405},
                {"", 0}};
    static const cell none[CELLS] = {{0, NULL}};
    const double own = job_of(none).cluster.nic_gbps;
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const cell cells[CELLS] = {C(interconnect, rows[i].text)};
        near(job_of(cells).cluster.nic_gbps, rows[i].gbps > 0 ? rows[i].gbps : own, 1e-12);
    }
    {
        const cell four[CELLS] = {C(gpus_per_node, "4"), C(interconnect, "8x 400G")};
        const lt_point_job j = job_of(four);
        near(j.cluster.nic_gbps, 100, 1e-12);
        assert_int_equal(j.cluster.gpu.node_gpus, 4);
        assert_int_equal(j.cluster.gpu.domain_gpus, 4);
    }
}

/* Seconds of a step of 64 x 2,048 tokens on 8 GPUs. */
static void measures_become_seconds(void **state) {
    static const double tokens = 64 * 2048;
    static const struct {
        cell cells[CELLS];
        lt_plan_flops_kind kind; /* COUNT: a time or a rate. */
        double tflops_or_s;
        const char *measure;
    } rows[] = {
        {{C(iter_time_s, "3")}, LT_PLAN_FLOPS_COUNT, 3, "iteration time"},
        {{C(iter_time_s, ""), C(tokens_s_gpu, "4096")}, LT_PLAN_FLOPS_COUNT, 4, "tokens/s"},
        {{C(iter_time_s, "3"), C(tokens_s_gpu, "4096")}, LT_PLAN_FLOPS_COUNT, 3, "iteration time"},
        {{C(iter_time_s, ""), C(tflops_gpu, "400")}, LT_PLAN_FLOPS_SIX_N, 400, "TFLOP/s by 6 N"},
        {{C(iter_time_s, ""), C(tflops_gpu, "400"), C(tflops_kind, "hardware")},
         LT_PLAN_FLOPS_MEGATRON_HARDWARE,
         400,
         "TFLOP/s by SC'21 eq. 3"},
        {{C(iter_time_s, ""), C(tflops_gpu, "400"), C(group, "mcore")},
         LT_PLAN_FLOPS_MEGATRON_MODEL,
         400,
         "TFLOP/s by Korthikanti"},
        {{C(iter_time_s, ""), C(tflops_gpu, "400"), C(group, "korthikanti")},
         LT_PLAN_FLOPS_SIX_N,
         400,
         "TFLOP/s by 6 N"},
        /* Shares of the peak of an H100, 989.4 TFLOP/s in bf16. */
        {{C(iter_time_s, ""), C(mfu_pct, "50"), C(group, "korthikanti")},
         LT_PLAN_FLOPS_MEGATRON_MODEL,
         494.7,
         "MFU by Korthikanti"},
        {{C(iter_time_s, ""), C(mfu_pct, "50"), C(group, "megascale")},
         LT_PLAN_FLOPS_MEGATRON_MODEL,
         494.7,
         "MFU by Korthikanti"},
        {{C(iter_time_s, ""), C(mfu_pct, "50")},
         LT_PLAN_FLOPS_MODEL_FULL,
         494.7,
         "MFU by 6 N and attention"},
        {{C(iter_time_s, ""), C(mfu_pct, "50"), C(group, "llama3")},
         LT_PLAN_FLOPS_SIX_N,
         494.7,
         "MFU by 6 N"},
        {{C(iter_time_s, ""), C(mfu_pct, "50"), C(group, "moe-folding")},
         LT_PLAN_FLOPS_MODEL_CAUSAL,
         494.7,
         "MFU by 6 N and half of attention"},
        {{C(iter_time_s, ""), C(hfu_pct, "1")},
         LT_PLAN_FLOPS_MEGATRON_HARDWARE,
         9.894,
         "HFU by SC'21 eq. 3"},
        {{C(iter_time_s, ""), C(mfu_pct, "50"), C(hfu_pct, "60")},
         LT_PLAN_FLOPS_MODEL_FULL,
         494.7,
         "MFU by 6 N and attention"}};
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const lt_point_job j = job_of(rows[i].cells);
        near(j.measured_s,
             rows[i].kind == LT_PLAN_FLOPS_COUNT
                 ? rows[i].tflops_or_s
                 : lt_plan_model_flops(&j.model, rows[i].kind, 2048) * tokens /
                       (rows[i].tflops_or_s * 1e12 * 8),
             1e-3);
        assert_string_equal(j.measure, rows[i].measure);
        assert_string_equal(j.flag, "");
    }
}

static void memory_is_what_the_source_means(void **state) {
    static const struct {
        const char *group;
        double bytes;
        lt_plan_memory_figure figure;
    } rows[] = {{"torchtitan", 10 * 1073741824.0, LT_PLAN_MEMORY_RESERVED}, /* GiB, reserved. */
                {"bigscience", 10 * 1048576000.0, LT_PLAN_MEMORY_DEVICE},   /* 1,000 MiB. */
                {"g", 1e10, LT_PLAN_MEMORY_DEVICE}};
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const cell cells[CELLS] = {C(group, rows[i].group), C(mem_gb, "10")};
        const lt_point_job j = job_of(cells);
        near(j.memory_bytes, rows[i].bytes, 1e-15);
        assert_int_equal(j.memory_figure, rows[i].figure);
    }
}

/* On 8 GPUs the layout that the row prints fits, and is kept. A row that fits nowhere gets the
 * leanest layout, and one that no layout divides gets a reason. */
static void rows_are_predicted(void **state) {
    static const cell fits[CELLS] = {{0, NULL}},
                      tight[CELLS] = {C(layers, "80"), C(hidden, "8192"), C(heads, "64"),
                                      C(ffn, "32768")},
                      odd[CELLS] = {C(tp, "3"), C(dp, "")},
                      wide[CELLS] = {C(tp, "16"), C(pp, ""), C(dp, "")};
    lt_point_job j = job_of(fits);
    char why[LT_PLAN_TEXT_BYTES] = "";
    double s;
    (void)state;
    assert_false(j.layout_known);
    s = lt_point_predict(&j, why);
    assert_true(s > 0 && j.layout_known);
    assert_int_equal(j.layout.dp, 8);
    assert_int_equal(j.layout.accum, 8);
    near(lt_plan_step_estimate(&j.model, &j.cluster, &j.layout).step_s, s, 1e-15);
    j.layout.accum = 16; /* Known values are not searched again. */
    assert_true(lt_point_predict(&j, why) > 1.5 * s);
    j = job_of(tight);
    assert_true(lt_point_predict(&j, why) > 0);
    assert_int_equal(j.layout.recompute, LT_PLAN_RECOMPUTE_FULL);
    j = job_of(odd);
    assert_true(lt_point_predict(&j, why) == 0);
    assert_string_equal(why, "tp 3 x pp 1 does not divide 8 GPUs");
    j = job_of(wide);
    assert_true(lt_point_predict(&j, why) == 0);
    assert_string_equal(why, "no layout with the printed degrees divides the model and batch");
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(rows_become_queries),
                                       cmocka_unit_test(contradictions_are_left_out),
                                       cmocka_unit_test(a_recipe_with_another_batch_is_flagged),
                                       cmocka_unit_test(groups_name_their_software),
                                       cmocka_unit_test(sizes_that_are_not_printed),
                                       cmocka_unit_test(the_parameter_count_tells_the_form),
                                       cmocka_unit_test(networks_are_read),
                                       cmocka_unit_test(measures_become_seconds),
                                       cmocka_unit_test(memory_is_what_the_source_means),
                                       cmocka_unit_test(rows_are_predicted)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
