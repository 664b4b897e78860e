/* point_job.c: one published row read as planner input.
 *
 * What a row does not print is either a fact of its model or stack (looked up, below) or a free choice of whoever ran it (micro-batch,
 * recompute, split): that the planner chooses itself, by search under the memory limit. A row whose facts contradict or do
 * not suffice is left out with the reason. Times are compared, never FLOP/s: a row that prints only TFLOP/s is turned into seconds
 * by the convention it names. */
#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "plan/points.h"

/* Of an Omni-Path link's rate that NCCL's rings reach beside InfiniBand with GPUDirect, staged through the host's memory: 40.5 Gb/s a
 * 100 Gb/s link between nodes of Jean Zay's A100 partition, measured by BigScience (its benchmarks of all-reduce). */
#define OMNI_PATH 0.405

#define F(row, name) ((row)->field[LT_POINT_##name])

static bool has(const char *text, const char *word) {
    const size_t n = strlen(word);
    for (const char *p = text; *p != 0; p++) {
        size_t i = 0;
        while (i < n && p[i] != 0 && tolower((unsigned char)p[i]) == word[i]) {
            i++;
        }
        if (i == n) {
            return true;
        }
    }
    return false;
}

/* Leading number of a field ("1536 per expert"); 0 when there is none. */
static double num(const char *text) {
    char *end = NULL;
    const double v = strtod(text, &end);
    return end == text || !isfinite(v) || fabs(v) > 1e15 ? 0.0 : v;
}

static int64_t whole(const char *text) {
    return (int64_t)llround(num(text));
}

/* Small degrees: 0 when absent, out of range or not a number. */
static int degree(const char *text) {
    const double v = num(text);
    return v >= 1 && v <= 1e6 ? (int)v : 0;
}

/* ---- Which software ---- */

/* BigScience's log (train/tr11-176B-ml/chronicles-prequel.md) forbids comparing across two days: one on which the nodes' PCIe and
 * NUMA settings were mended ("GBS Variations"), and one from which on gradients gather in fp32 ("Rebalancing layers"). */
static const char *bigscience_phase(const lt_point *row) {
    const char *note = F(row, note);
    if (has(F(row, precision), "fp32 grad") || has(note, "rebalancing")) {
        return "-3";
    }
    if (has(note, "48 node") || has(note, "final round") || has(note, "nheads comparison")) {
        return "-1";
    }
    return has(note, "gbs variations") || has(note, "another round") || has(note, "warmup") ||
                   has(note, "re-do")
               ? "-2"
               : "";
}

const char *lt_point_stack(const lt_point *row, char out[LT_PLAN_NAME_BYTES]) {
    static const struct {
        const char *group, *model, *stack;
    } table[] = {{"megatron-sc21", "zero-3", "deepspeed"},
                 {"megatron-sc21", "", "megatron-2021"},
                 {"korthikanti", "", "megatron-2022"},
                 {"bloomberg", "", "sagemaker"},
                 {"mt-nlg", "", "deepspeed"},
                 {"megascale", "megatron", "megatron-core"},
                 {"megascale", "", "megascale"},
                 {"mcore-moe", "", "bridge"},
                 {"moe-folding", "", "megatron-core"},
                 {"mcore", "", "megatron-core"},
                 {"nemotron4", "", "megatron-core"},
                 {"apertus", "", "swiss-megatron"},
                 {"llama3", "", "llama3"},
                 {"llm-foundry", "", "llm-foundry"},
                 {"torchtitan", "compile", "torchtitan"},
                 {"torchtitan", "8b fsdp\n", "torchtitan-eager"},
                 {"torchtitan", "", "torchtitan"},
                 {"pythia", "", "pythia"},
                 {"gpt-neox", "", "gpt-neox"},
                 {"deepseek", "", "deepseek"},
                 {"opt", "", "metaseq"},
                 {"llama1", "", "metaseq"},
                 {"palm", "", "palm"}};
    const char *group = F(row, group);
    char name[LT_PLAN_TEXT_BYTES]; /* With its end marked, so that a word may ask for it. */
    snprintf(name, sizeof name, "%.200s\n", F(row, model));
    if (has(group,
            "megatron-bridge")) { /* One stack a release: "26.04.01 NeMo Container" -> bridge-260401. */
        const char *source = F(row, source);
        for (const char *p = source; *p != 0; p++) {
            if (isdigit((unsigned char)p[0]) && isdigit((unsigned char)p[1]) && p[2] == '.' &&
                isdigit((unsigned char)p[3]) && isdigit((unsigned char)p[4])) {
                const bool patch = p[5] == '.' && isdigit((unsigned char)p[6]) &&
                                   isdigit((unsigned char)p[7]);
                snprintf(out, LT_PLAN_NAME_BYTES, "bridge-%.2s%.2s%.2s", p, p + 3,
                         patch ? p + 6 : "");
                return out;
            }
        }
        snprintf(out, LT_PLAN_NAME_BYTES, "bridge");
        return out;
    }
    if (has(group, "bigscience") || strcmp(group, "bloom") == 0) {
        snprintf(out, LT_PLAN_NAME_BYTES, "bigscience%s", bigscience_phase(row));
        return out;
    }
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        if (has(group, table[i].group) && has(name, table[i].model)) {
            snprintf(out, LT_PLAN_NAME_BYTES, "%s", table[i].stack);
            return out;
        }
    }
    snprintf(out, LT_PLAN_NAME_BYTES, "default");
    return out;
}

/* ---- What is computed ---- */

/* Models whose sizes a row does not print in full (experts, MLA, hybrids). */
static bool known_model(lt_plan_model *m, const char *name) {
    static const struct {
        const char *word, *word2, *recipe;
    } table[] = {{"deepseek", "v3", "deepseek-v3"},        {"kimi", "k2", "kimi-k2"},
                 {"qwen3", "235b", "qwen3-235b-a22b"},     {"qwen3", "30b", "qwen3-30b-a3b"},
                 {"gpt", "oss 120b", "gpt-oss-120b"},      {"gpt", "oss 20b", "gpt-oss-20b"},
                 {"gpt", "oss-120b", "gpt-oss-120b"},      {"gpt", "oss-20b", "gpt-oss-20b"},
                 {"gpt_oss", "20b", "gpt-oss-20b"},        {"nemotron", "nano", "nemotron3-nano"},
                 {"nemotron", "super", "nemotron3-super"}, {"nemotron", "ultra", "nemotron3-ultra"},
                 {"mixtral", "8x22b", "mixtral-8x22b"},    {"mixtral", "8x7b", "mixtral-8x7b"}};
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        if (has(name, table[i].word) && has(name, table[i].word2)) {
            return lt_plan_model_load(m, table[i].recipe) == LT_OK;
        }
    }
    return false;
}

/* Gate and tying are not printed; the parameter count tells. */
static void infer_form(lt_plan_model *m, double params_b) {
    double best = INFINITY;
    lt_plan_model pick = *m;
    for (int form = 0; form < 4; form++) {
        lt_plan_model t = *m;
        double miss;
        t.gated = (form & 1) != 0;
        t.tied = (form & 2) != 0;
        miss = fabs(lt_plan_model_params(&t).total - params_b * 1e9);
        if (miss < best * 0.999) {
            best = miss;
            pick = t;
        }
    }
    *m = pick;
}

static bool make_model(lt_point_job *j, const lt_point *row, char *why) {
    lt_plan_model *m = &j->model;
    const char *name = F(row, model);
    const bool llama = has(name, "llama") || has(name, "qwen") || has(name, "apertus") ||
                       has(name, "nemotron");
    if (known_model(m, name)) {
        if (has(name, "w/o mtp")) {
            m->mtp = 0;
        }
        m->seq = num(F(row, seq_len)) > 0 ? whole(F(row, seq_len)) : m->seq;
        return true;
    }
    *m = (lt_plan_model){.layers = whole(F(row, layers)),
                         .width = whole(F(row, hidden)),
                         .heads = whole(F(row, heads)),
                         .kv_heads = whole(F(row, kv_heads)),
                         .ffn = whole(F(row, ffn)),
                         .vocab = whole(F(row, vocab)),
                         .seq = whole(F(row, seq_len))};
    snprintf(m->name, sizeof m->name, "%.60s", name);
    if (num(F(row, experts)) > 0) {
        snprintf(why, LT_PLAN_TEXT_BYTES, "mixture of experts whose inner sizes are not printed");
        return false;
    }
    j->one_layer = m->layers == 1 && m->vocab == 0;
    if (m->vocab == 0) {
        m->vocab = j->one_layer ? 128 : 50304;
    }
    m->kv_heads = m->kv_heads > 0 ? m->kv_heads : m->heads;
    m->ffn = m->ffn > 0 ? m->ffn : 4 * m->width;
    m->head_dim = m->heads > 0 ? m->width / m->heads : 0;
    m->n_attn = m->n_dense = m->layers;
    m->biases = !llama && !has(F(row, group), "llm-foundry");
    m->positions = llama ? 0 : m->seq;
    m->tied = !llama;
    if (num(F(row, params_b)) > 0 && !j->one_layer) {
        infer_form(m, num(F(row, params_b)));
    }
    if (lt_plan_model_check(m) != LT_OK) {
        snprintf(why, LT_PLAN_TEXT_BYTES, "sizes of the model are not printed");
        return false;
    }
    return true;
}

/* ---- On what ---- */

/* "8x 400G", "1600 Gb/s ... per node" -> GB/s of one GPU; 0: not stated. */
static double nic_of(const char *text, double per_node) {
    for (const char *p = text; *p != 0; p++) {
        if (isdigit((unsigned char)*p) && (p == text || !isalnum((unsigned char)p[-1]))) {
            char *end = NULL;
            const double a = strtod(p, &end);
            const char *q = end;
            if (*q == 'x') {
                q += 1 + (q[1] == ' ');
                while (*q != 0 && !isdigit((unsigned char)*q) && *q != ' ' && *q != ',') {
                    q++; /* "8x HDR200" */
                }
                if (isdigit((unsigned char)*q)) {
                    const double b = strtod(q, &end);
                    if (b >= 10 && b <= 1600 && a <= 16) {
                        return a * b / 8.0 / per_node;
                    }
                }
            } else if (strncmp(q, " Gb/s", 5) == 0 && a >= 100) {
                return a / 8.0 / per_node;
            }
            p = end - 1;
        }
    }
    return 0;
}

static bool make_cluster(lt_point_job *j, const lt_point *row, char *why) {
    lt_plan_gpu g;
    lt_plan_stack s;
    char stack[LT_PLAN_NAME_BYTES];
    const int gpus = degree(F(row, gpus)), node = degree(F(row, gpus_per_node));
    double nic;

    if (lt_plan_gpu_match(&g, F(row, gpu)) != LT_OK) {
        snprintf(why, LT_PLAN_TEXT_BYTES, "%.200s", lt_error_message());
        return false;
    }
    if (gpus == 0) {
        snprintf(why, LT_PLAN_TEXT_BYTES, "number of GPUs is not printed");
        return false;
    }
    if (lt_plan_stack_find(&s, g.name, lt_point_stack(row, stack)) != LT_OK) {
        snprintf(why, LT_PLAN_TEXT_BYTES, "%.200s", lt_error_message());
        return false;
    }
    if (node > 0 && node <= 1024) {
        g.domain_gpus = g.domain_gpus == g.node_gpus ? node : g.domain_gpus;
        g.node_gpus = node;
    }
    lt_plan_cluster_plain(&j->cluster, &g, &s, gpus);
    nic = nic_of(F(row, interconnect), g.node_gpus);
    if (nic > 0) {
        j->cluster.nic_gbps = nic * (has(F(row, interconnect), "omni-path") ? OMNI_PATH : 1.0);
    }
    return true;
}

/* ---- How it was split ---- */

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

/* Pythia's paper prints no layout; its training files do (EleutherAI/pythia, models/NAME/pythia-NAME.yml). */
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

/* Torchtitan cuts the local batch into as many micro-batches as there are stages unless told otherwise (its
 * pipeline_parallel_microbatches; "local batch 32" in the note). Its loss is compiled too since early 2025. */
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

static bool make_layout(lt_point_job *j, const lt_point *row, char *why) {
    lt_plan_query *q = &j->query;
    const char *stack = j->cluster.stack.name;
    const int dp = degree(F(row, dp));
    *q = (lt_plan_query){.gpus = j->cluster.gpus,
                         .batch_seqs = whole(F(row, global_batch_seqs)),
                         .seq = j->model.seq,
                         .zero = zero_of(F(row, zero_fsdp), stack),
                         .precision = precision_of(F(row, precision)),
                         .max_results = 1,
                         .tp = degree(F(row, tp)),
                         .pp = degree(F(row, pp)),
                         .vpp = degree(F(row, vpp)),
                         .cp = degree(F(row, cp)),
                         .ep = degree(F(row, ep)),
                         .micro = degree(F(row, micro_batch)),
                         .recompute = recompute_of(F(row, recompute))};
    if (strcmp(stack, "pythia") == 0) {
        pythia_layout(q, F(row, model));
    }
    q->tune = has(F(row, model), "lora") ? LT_PLAN_TUNE_LORA : LT_PLAN_TUNE_ALL;
    q->fp32_grads = has(F(row, precision), "fp32 grad") ||
                    (!has(F(row, note), "pure") && q->zero != 3 && !has(stack, "bridge") &&
                     j->cluster.stack.attention != LT_PLAN_ATTENTION_UNFUSED);
    q->cp = q->cp > 0 ? q->cp : 1;
    if (q->recompute == -1 && (has(stack, "bridge") || has(stack, "deepseek"))) {
        q->recompute = -2; /* Its recipes recompute modules, never whole layers. */
    }
    if (q->zero == -1 && j->model.experts > 0) {
        q->zero =
            1; /* And shard the optimiser only; FSDP is for dense models without other splits. */
    }
    q->sp_off = j->cluster.stack.attention == LT_PLAN_ATTENTION_UNFUSED &&
                !has(F(row, recompute), "sp");
    q->sp_off = q->sp_off || strcmp(stack, "pythia") == 0; /* GPT-NeoX has none. */
    j->model.dropout = has(stack, "megatron-20");
    if (has(F(row, model), "async tp") || has(F(row, note), "asynctp")) {
        j->cluster.stack.tp_overlap = 0.7;
    }
    if (has(stack, "torchtitan")) {
        torchtitan_layout(j, row);
    }
    if (q->batch_seqs == 0 && j->one_layer) {
        q->batch_seqs = q->micro;
    }
    if (q->batch_seqs <= 0) {
        snprintf(why, LT_PLAN_TEXT_BYTES, "global batch is not printed");
        return false;
    }
    if (dp > 0 && q->tp > 0 && q->pp > 0 && (int64_t)dp * q->tp * q->pp * q->cp != q->gpus) {
        snprintf(why, LT_PLAN_TEXT_BYTES,
                 "contradiction: tp %d x pp %d x cp %d x dp %d is not %lld GPUs", q->tp, q->pp,
                 q->cp, dp, (long long)q->gpus);
        return false;
    }
    if (dp > 0 && q->batch_seqs < dp * lt_plan_max(1, (double)q->micro)) {
        snprintf(why, LT_PLAN_TEXT_BYTES,
                 "contradiction: a batch of %lld sequences is less than dp %d x micro-batch %lld",
                 (long long)q->batch_seqs, dp, (long long)(q->micro > 0 ? q->micro : 1));
        return false;
    }
    if (q->pp > 0 && (int64_t)q->pp * (q->vpp > 0 ? q->vpp : 1) > j->model.layers + 3) {
        snprintf(why, LT_PLAN_TEXT_BYTES,
                 "contradiction: pp %d x vpp %d is more than the %lld layers", q->pp,
                 q->vpp > 0 ? q->vpp : 1, (long long)j->model.layers);
        return false;
    }
    if (q->vpp == 0 && q->pp > 0) {
        q->vpp = q->pp == 1 ? 1 : 0;
    }
    if (q->pp > 1 && q->vpp == 0 && !has(F(row, note), "interleaved") &&
        !has(stack, "megatron-core") && !has(stack, "llama3")) {
        q->vpp = 1; /* Those two interleave where it divides, the others say so when they do. */
    }
    if (q->vpp > 1 && q->pp == 1) {
        q->vpp = 1;
    }
    return true;
}

/* ---- What was measured ---- */

/* Who prints mem_gb, and what: torchtitan its allocator's max_reserved in GiB (components/metrics.py); BigScience what nvidia-smi shows,
 * in thousands of MiB ("quickly getting the memory snapshot": chronicles-prequel.md). Others: decimal GB of the device. */
static void make_memory(lt_point_job *j, const lt_point *row) {
    const double mib = 1048576.0, figure = num(F(row, mem_gb));
    j->memory_figure = LT_PLAN_MEMORY_DEVICE;
    if (has(F(row, group), "torchtitan")) {
        j->memory_bytes = figure * 1024.0 * mib;
        j->memory_figure = LT_PLAN_MEMORY_RESERVED;
    } else if (has(F(row, group), "bigscience")) {
        j->memory_bytes = figure * 1000.0 * mib;
    } else {
        j->memory_bytes = figure * LT_PLAN_GB;
    }
}

static bool make_measure(lt_point_job *j, const lt_point *row, char *why) {
    const double tokens = (double)(j->query.batch_seqs * j->model.seq),
                 gpus = (double)j->cluster.gpus;
    const double seconds = num(F(row, iter_time_s)), rate = num(F(row, tokens_s_gpu)),
                 tflops = num(F(row, tflops_gpu));
    lt_plan_flops_kind kind = LT_PLAN_FLOPS_SIX_N;
    make_memory(j, row);
    if (seconds > 0) {
        j->measured_s = seconds;
        j->measure = "iteration time";
        return true;
    }
    if (rate > 0) {
        j->measured_s = tokens / (rate * gpus);
        j->measure = "tokens/s";
        return true;
    }
    if (tflops <= 0) {
        snprintf(why, LT_PLAN_TEXT_BYTES, "no time, rate or FLOP/s printed");
        return false;
    }
    if (has(F(row, tflops_kind), "hardware")) {
        kind = LT_PLAN_FLOPS_MEGATRON_HARDWARE;
    } else if (has(F(row, group), "mcore")) {
        kind = LT_PLAN_FLOPS_MEGATRON_MODEL;
    }
    j->measured_s = lt_plan_model_flops(&j->model, kind, j->model.seq) * tokens /
                    (tflops * 1e12 * gpus);
    j->measure = kind == LT_PLAN_FLOPS_MEGATRON_HARDWARE ? "TFLOP/s by SC'21 eq. 3"
                 : kind == LT_PLAN_FLOPS_SIX_N           ? "TFLOP/s by 6 N"
                                                         : "TFLOP/s by Korthikanti";
    return true;
}

bool lt_point_job_make(lt_point_job *out, const lt_point *row, char why[LT_PLAN_TEXT_BYTES]) {
    *out = (lt_point_job){0};
    why[0] = 0;
    if (!make_cluster(out, row, why) || !make_model(out, row, why) || !make_layout(out, row, why) ||
        !make_measure(out, row, why)) {
        return false;
    }
    if (!(out->measured_s > 1e-6 && out->measured_s < 1e7)) {
        snprintf(why, LT_PLAN_TEXT_BYTES, "%g s is no time of a step", out->measured_s);
        return false;
    }
    return true;
}

double lt_point_predict(lt_point_job *j, char why[LT_PLAN_TEXT_BYTES]) {
    lt_plan_found found = {0};
    lt_plan_time t;
    if (!j->layout_known) {
        lt_plan_cluster roomy = j->cluster;
        roomy.gpu.memory_bytes *= 1.1; /* It did run: our margins may not forbid what it chose. */
        if (lt_plan_search(&j->model, &roomy, &j->query, &found) != LT_OK) {
            snprintf(why, LT_PLAN_TEXT_BYTES, "%.240s", lt_error_message());
            return 0;
        }
        if (found.n_fit ==
            0) { /* It did run, so our memory model is too strict here: take the leanest. */
            roomy.gpu.memory_bytes = found.nearest_bytes * 1.0001;
            lt_plan_found_free(&found);
            if (!isfinite(roomy.gpu.memory_bytes) ||
                lt_plan_search(&j->model, &roomy, &j->query, &found) != LT_OK || found.n_fit == 0) {
                snprintf(why, LT_PLAN_TEXT_BYTES,
                         "no layout with the printed degrees divides the model and batch");
                lt_plan_found_free(&found);
                return 0;
            }
        }
        j->layout = found.best[0].layout;
        j->layout_known = true;
        lt_plan_found_free(&found);
    }
    t = lt_plan_step_estimate(&j->model, &j->cluster, &j->layout);
    return j->one_layer ? t.forward_s + t.backward_s : t.step_s;
}
