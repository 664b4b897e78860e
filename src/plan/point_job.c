/* point_job.c: one published row read as planner input.
 *
 * What a row does not print is either a fact of its model or stack (looked up below) or a free
 * choice of the people who ran it (micro-batch, recompute, split), which the planner chooses by
 * search under the memory limit. A row whose facts contradict each other or do not suffice is left
 * out, with the reason. Times are compared, never FLOP/s: a row that prints only TFLOP/s is turned
 * into seconds by the convention it names. */
#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "plan/point_read.h"

/* Share of an Omni-Path link's rate that NCCL's rings reach beside InfiniBand with GPUDirect,
 * because data is staged through the host's memory: 40.5 Gb/s a 100 Gb/s link between nodes of Jean
 * Zay's A100 partition, measured by BigScience (its benchmarks of all-reduce). */
#define OMNI_PATH 0.405

/* ---- Which software ---- */

/* By BigScience's log (train/tr11-176B-ml/chronicles-prequel.md), figures before and after two days
 * cannot be compared: the day on which the nodes' PCIe and NUMA settings were fixed ("GBS
 * Variations"), and the day from which gradients accumulate in fp32 ("Rebalancing layers"). */
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
                 {"mt-nlg", "", "mt-nlg"},
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
    char name[LT_PLAN_TEXT_BYTES]; /* Ends with a newline, so that a pattern can match the end. */
    snprintf(name, sizeof name, "%.200s\n", F(row, model));
    if (has(group,
            /* There is one stack per release: "26.04.01 NeMo Container" -> bridge-260401. */
            "megatron-bridge")) {
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

/* Models whose sizes a row does not print completely (experts, MLA, hybrids). */
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

/* Gating and tying are not printed, but the parameter count determines them. */
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
        m->max_seq = num(F(row, seq_len)) > 0 ? whole(F(row, seq_len)) : m->max_seq;
        return true;
    }
    *m = (lt_plan_model){.n_layers = whole(F(row, layers)),
                         .width = whole(F(row, hidden)),
                         .n_heads = whole(F(row, heads)),
                         .n_kv_heads = whole(F(row, kv_heads)),
                         .ffn_width = whole(F(row, ffn)),
                         .vocab_size = whole(F(row, vocab)),
                         .max_seq = whole(F(row, seq_len))};
    snprintf(m->name, sizeof m->name, "%.60s", name);
    if (num(F(row, experts)) > 0) {
        snprintf(why, LT_PLAN_TEXT_BYTES, "mixture of experts whose inner sizes are not printed");
        return false;
    }
    j->one_layer = m->n_layers == 1 && m->vocab_size == 0;
    if (m->vocab_size == 0) {
        m->vocab_size = j->one_layer ? 128 : 50304;
    }
    m->n_kv_heads = m->n_kv_heads > 0 ? m->n_kv_heads : m->n_heads;
    m->ffn_width = m->ffn_width > 0 ? m->ffn_width : 4 * m->width;
    m->head_dim = m->n_heads > 0 ? m->width / m->n_heads : 0;
    m->n_attn = m->n_dense = m->n_layers;
    m->biases = !llama && !has(F(row, group), "llm-foundry");
    m->positions = llama ? 0 : m->max_seq;
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

/* ---- What was measured ---- */

/* What mem_gb means depends on the source: torchtitan its allocator's max_reserved in GiB
 * (components/metrics.py); BigScience what nvidia-smi shows, in thousands of MiB ("quickly getting
 * the memory snapshot": chronicles-prequel.md). Others: decimal GB of the device. */
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

/* FLOPs per token by the convention of the row's source. Utilisations follow the PaLM paper (6 N
 * and all of the attention matrix) unless the Megatron papers are the source, who leave that
 * paper's convention for their equations. */
static lt_plan_flops_kind printed_flops(const lt_point_job *j, const lt_point *row, bool share) {
    const char *group = F(row, group);
    if (has(F(row, tflops_kind), "hardware")) {
        return LT_PLAN_FLOPS_MEGATRON_HARDWARE;
    }
    if ((has(group, "mcore") || (share && (has(group, "korthikanti") || has(group, "mega")))) &&
        j->model.n_experts == 0) {
        return LT_PLAN_FLOPS_MEGATRON_MODEL;
    }
    return !share                ? LT_PLAN_FLOPS_SIX_N
           : has(group, "llama") ? LT_PLAN_FLOPS_SIX_N
           : has(group, "moe")   ? LT_PLAN_FLOPS_MODEL_CAUSAL
                                 : LT_PLAN_FLOPS_MODEL_FULL;
}

/* A vendor's page prints tokens per second and FLOP/s side by side; if no convention relates them,
 * one of the two is wrong. */
static void check_rates(lt_point_job *j, double rate, double tflops) {
    const double per_token = tflops * 1e12 / rate;
    double low = INFINITY, high = 0;
    for (int k = 0; k < LT_PLAN_FLOPS_COUNT; k++) {
        const double f = lt_plan_model_flops(&j->model, (lt_plan_flops_kind)k, j->model.max_seq);
        low = lt_plan_min(low, f);
        high = lt_plan_max(high, f);
    }
    if (j->query.tune == LT_PLAN_TUNE_ALL && (per_token < 0.8 * low || per_token > 1.25 * high)) {
        snprintf(j->flag, sizeof j->flag,
                 "prints %.0f tokens/s and %.0f TFLOP/s: %.1f GFLOP a token, the conventions give "
                 "%.1f to %.1f",
                 rate, tflops, per_token * 1e-9, low * 1e-9, high * 1e-9);
    }
}

static bool make_measure(lt_point_job *j, const lt_point *row, char *why) {
    static const char *const names[LT_PLAN_FLOPS_COUNT] = {
        [LT_PLAN_FLOPS_SIX_N] = "6 N",
        [LT_PLAN_FLOPS_MODEL_CAUSAL] = "6 N and half of attention",
        [LT_PLAN_FLOPS_MODEL_FULL] = "6 N and attention",
        [LT_PLAN_FLOPS_MEGATRON_MODEL] = "Korthikanti",
        [LT_PLAN_FLOPS_MEGATRON_HARDWARE] = "SC'21 eq. 3"};
    const double tokens = (double)(j->query.batch_seqs * j->model.max_seq),
                 gpus = (double)j->cluster.gpus, peak = j->cluster.gpu.peak_tflops[LT_PLAN_BF16];
    const double seconds = num(F(row, iter_time_s)), rate = num(F(row, tokens_s_gpu)),
                 mfu = num(F(row, mfu_pct)), hfu = num(F(row, hfu_pct));
    const bool share = num(F(row, tflops_gpu)) <= 0;
    double tflops = num(F(row, tflops_gpu));
    lt_plan_flops_kind kind;
    make_memory(j, row);
    if (rate > 0 && tflops > 0) {
        check_rates(j, rate, tflops);
    }
    if (seconds > 0 || rate > 0) {
        j->measured_s = seconds > 0 ? seconds : tokens / (rate * gpus);
        snprintf(j->measure, sizeof j->measure, "%s", seconds > 0 ? "iteration time" : "tokens/s");
        return true;
    }
    kind = share && mfu <= 0 ? LT_PLAN_FLOPS_MEGATRON_HARDWARE : printed_flops(j, row, share);
    if (share) {
        tflops = (mfu > 0 ? mfu : hfu) / 100.0 * peak;
    }
    if (tflops <= 0) {
        snprintf(why, LT_PLAN_TEXT_BYTES, "no time, rate, FLOP/s or utilisation printed");
        return false;
    }
    j->measured_s = lt_plan_model_flops(&j->model, kind, j->model.max_seq) * tokens /
                    (tflops * 1e12 * gpus);
    snprintf(j->measure, sizeof j->measure, "%s by %s",
             !share    ? "TFLOP/s"
             : mfu > 0 ? "MFU"
                       : "HFU",
             names[kind]);
    return true;
}

bool lt_point_job_make(lt_point_job *out, const lt_point *row, char why[LT_PLAN_TEXT_BYTES]) {
    *out = (lt_point_job){0};
    why[0] = 0;
    if (!make_cluster(out, row, why) || !make_model(out, row, why) ||
        !lt_point_layout_make(out, row, why) || !make_measure(out, row, why)) {
        return false;
    }
    if (!(out->measured_s > 1e-6 && out->measured_s < 1e7)) {
        snprintf(why, LT_PLAN_TEXT_BYTES, "%g s is not a time of a step", out->measured_s);
        return false;
    }
    return true;
}

double lt_point_predict(lt_point_job *j, char why[LT_PLAN_TEXT_BYTES]) {
    lt_plan_found found = {0};
    lt_plan_time t;
    if (!j->layout_known) {
        lt_plan_cluster roomy = j->cluster;
        /* The run did fit, so the planner's margins must not exclude its layout. */
        roomy.gpu.memory_bytes *= 1.1;
        if (lt_plan_search(&j->model, &roomy, &j->query, &found) != LT_OK) {
            snprintf(why, LT_PLAN_TEXT_BYTES, "%.240s", lt_error_message());
            return 0;
        }
        /* The run did fit, so the memory model is too strict here: take the layout with the least
         * memory. */
        if (found.n_fit == 0) {
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
