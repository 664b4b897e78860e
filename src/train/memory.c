/* memory.c: see memory.h. What counts is resident memory, so the sum is held against the peak that
 * the system saw (tests/e2e/memory.sh: within 5 %).
 *
 * The CPU kernels' working memory grows at first use (kernels/cpu/scratch.h). Its size follows from
 * the shapes of the products: packed panels of both sides, F32 sums of a BF16 result that is summed
 * in steps, keys and values widened for attention. */
#include "train/memory.h"

#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/limits.h"
#include "base/log.h"
#include "kernels/cpu/features.h"
#include "model/fp8.h"
#include "model/session.h"
#include "train/run.h"

#define MIB 1048576.0

/* Blocks of kernels/cpu/isa/gemm.c. */
#define BLOCK_ROWS 2048
#define BLOCK_COLS 3072
#define BLOCK_K    800
#define PANEL_ROWS                                                                                 \
    14 /* A panel of rows; they lie PANEL_STEP apart (AVX-512; others pack closer). */
#define PANEL_STEP 16
#define PANEL_COLS 32
#define PEAK_SIDE  1024 /* Of the product that measures the peak (kernels/peak.c). */

#define CHECKPOINT_BYTES ((size_t)4 << 20) /* A chunk of a tensor on its way to the disk. */
#define LATER_BYTES      ((size_t)3 << 20) /* Code touched later, stacks, messages: measured. */
#define REPORT_ROW_BYTES ((size_t)2560)    /* A metrics line parsed, printed and put in the page. */

static size_t smaller(int64_t a, int64_t b) {
    return (size_t)(a < b ? a : b);
}

static size_t larger(size_t a, size_t b) {
    return a > b ? a : b;
}

/* ---- What the system says ---- */

size_t lt_memory_resident(void) {
    return (size_t)lt_limits_resident_bytes();
}

/* Not getrusage: its figure is never below what the parent process had when it started this one. */
size_t lt_memory_peak(void) {
    char line[128];
    unsigned long long kib = 0;
    FILE *f = fopen("/proc/self/status", "re");
    if (f == NULL) {
        return 0;
    }
    while (fgets(line, sizeof line, f) != NULL && sscanf(line, "VmHWM: %llu kB", &kib) != 1) {}
    fclose(f);
    return (size_t)kib * 1024;
}

/* ---- The CPU kernels' scratch ---- */

typedef struct {
    size_t rows, cols, sums; /* Panels of a, panels of b, unfinished sums: bytes. */
    size_t wide_a, wide_b;   /* Operands of 8 bits in the type of the result. */
} kernel_scratch;

/* y (m, n) = a (m, k) b (k, n), a and b in `from`, y in `to`. */
static void add_product(kernel_scratch *s, int64_t m, int64_t n, int64_t k, lt_dtype from,
                        lt_dtype to) {
    const bool pairs = from == LT_BF16 && k % 2 == 0 && lt_cpu_features_get()->bf16_dot;
    const int64_t floats = pairs ? k / 2 : k; /* kernels/cpu/isa/gemm_pairs.c: two terms in one */
    const int64_t steps = (floats + BLOCK_K - 1) / BLOCK_K;
    const size_t depth = steps > 0 ? (size_t)((floats + steps - 1) / steps) : 0;
    const size_t rows = (smaller(m, BLOCK_ROWS) + 2 * PANEL_ROWS) * PANEL_STEP / PANEL_ROWS,
                 cols = smaller(n, BLOCK_COLS) + PANEL_COLS;
    s->rows = larger(s->rows, rows * depth * sizeof(float));
    s->cols = larger(s->cols, cols * depth * sizeof(float));
    if (to != LT_F32 && steps > 1) {
        s->sums = larger(s->sums, (size_t)(m * n) * sizeof(float));
    }
}

/* The operands of y (m, n) = a (m, k) b (n, k)^T, of 8 bits until then. */
static void add_widened(kernel_scratch *s, int64_t m, int64_t n, int64_t k, lt_dtype dtype) {
    s->wide_a = larger(s->wide_a, (size_t)(m * k) * lt_dtype_bytes(dtype));
    s->wide_b = larger(s->wide_b, (size_t)(n * k) * lt_dtype_bytes(dtype));
}

static size_t kernel_scratch_bytes(const lt_training *t) {
    const lt_model_spec *spec = &t->model->spec;
    const lt_dtype dtype = t->model->options.dtype;
    const int64_t all = t->micro * t->recipe.seq;
    const int64_t logit_rows = (int64_t)t->pass_memory.logits_bytes /
                               (spec->vocab_size * (int64_t)lt_dtype_bytes(dtype));
    const size_t kv = (size_t)(all * spec->n_kv_heads * spec->head_dim) * sizeof(float);
    kernel_scratch s = {.rows = kv, .cols = kv};

    add_product(&s, PEAK_SIDE, PEAK_SIDE, PEAK_SIDE, dtype, dtype);
    for (int i = 0; i < t->model->table.n_params; i++) {
        const lt_param *p = &t->model->table.params[i];
        const bool head = p->kind == LT_PARAM_HEAD || (p->kind == LT_PARAM_EMBED && spec->tied);
        const int64_t rows = head ? logit_rows : all;
        if (!p->matrix && !head) {
            continue;
        }
        const int64_t n = p->shape[p->n_dims - 2], k = p->shape[p->n_dims - 1];
        add_product(&s, rows, n, k, dtype, dtype);  /* y = x w^T */
        add_product(&s, rows, k, n, dtype, dtype);  /* dx = dy w */
        add_product(&s, n, k, rows, dtype, LT_F32); /* dw = dy^T x */
        if (t->recipe.fp8 != LT_FP8_NONE && lt_fp8_takes(p)) {
            add_widened(&s, rows, n, k, dtype);
            add_widened(&s, rows, k, n, dtype);
            if (t->recipe.fp8_wgrad) {
                add_widened(&s, n, k, rows, LT_F32);
            }
        }
    }
    return s.rows + s.cols + s.sums + s.wide_a + s.wide_b;
}

/* ---- The plan ---- */

static void add(lt_memory_plan *p, const char *name, size_t bytes, bool passing) {
    LT_ASSERT(p->n_rows < LT_MEMORY_ROWS_MAX);
    p->rows[p->n_rows++] = (lt_memory_row){name, bytes, passing};
}

static void add_passing(lt_memory_plan *p, const lt_training *t) {
    const lt_recipe *r = &t->recipe;
    const int64_t lines = r->steps / r->log_every;
    if (t->tokenizer != NULL && r->sample_tokens > 0) {
        lt_session_memory m;
        lt_session_measure_short(&m, t->model, 1, lt_training_sample_room(t));
        add(p, "sampling session", m.cache_bytes + m.activations_bytes, true);
    }
    if (t->valid_options.n_sources > 0) {
        add(p, "validation loader", lt_loader_get_info(t->loader).mapped_bytes, true);
    }
    add(p, "checkpoint writing", CHECKPOINT_BYTES, true);
    add(p, "report", smaller(lines, LT_REPORT_ROWS) * REPORT_ROW_BYTES, true);
}

void lt_memory_plan_make(lt_memory_plan *out, const lt_training *t) {
    const lt_pass_memory *m = &t->pass_memory;
    const lt_loader_info loader = lt_loader_get_info(t->loader);
    const bool host = t->model->backend->host_memory;
    size_t passing = 0;

    *out = (lt_memory_plan){0};
    add(out, "program and libraries", t->program_bytes + LATER_BYTES, false);
    add(out, "tokenizer", t->tokenizer_bytes, false);
    add(out, "weights", t->model->weights_bytes, false);
    add(out, "gradients", m->gradients_bytes, false);
    add(out, "optimiser", lt_optimiser_bytes(&t->recipe, &t->model->table), false);
    add(out, "activations", m->activations_bytes, false);
    add(out, "logits", m->logits_bytes, false);
    add(out, "8-bit weights", m->fp8_bytes, false);
    add(out, "tables", m->scratch_bytes, false);
    add(out, "kernel scratch", host ? kernel_scratch_bytes(t) : 0, false);
    add(out, "rows of tokens",
        2 * t->draws[0].rows.arena.size_bytes + t->valid_rows.arena.size_bytes + m->host_bytes,
        false);
    add(out, "loader", loader.memory_bytes, false);
    add(out, "mapped data", loader.mapped_bytes, false);
    add_passing(out, t);
    for (int i = 0; i < out->n_rows; i++) {
        const lt_memory_row *r = &out->rows[i];
        out->announced_bytes += r->passing ? 0 : r->bytes;
        passing = r->passing ? larger(passing, r->bytes) : passing;
    }
    out->announced_bytes += passing;
}

void lt_memory_plan_log(const lt_memory_plan *p) {
    lt_log_info("memory, MiB (* for a moment; the largest of them counts):");
    for (int i = 0; i < p->n_rows; i++) {
        const lt_memory_row *r = &p->rows[i];
        lt_log_info("  %-22s %10.1f%s", r->name, (double)r->bytes / MIB, r->passing ? " *" : "");
    }
    lt_log_info("  %-22s %10.1f", "announced", (double)p->announced_bytes / MIB);
}

json_t *lt_memory_plan_json(const lt_memory_plan *p) {
    json_t *all = json_object();
    for (int i = 0; i < p->n_rows; i++) {
        json_object_set_new(all, p->rows[i].name, json_integer((json_int_t)p->rows[i].bytes));
    }
    return all;
}
