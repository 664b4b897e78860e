/* memory.c: see memory.h. Resident memory counts, so a test compares the sum with the peak measured
 * by the system (tests/e2e/memory.sh: within 5 %).
 *
 * The CPU kernels' working memory grows at first use (kernels/cpu/scratch.h). Its size follows from
 * the shapes of the products: packed panels of both sides, F32 sums of a BF16 result that is
 * accumulated in steps, keys and values widened for attention. */
#include "train/recipe/memory.h"

#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/limits.h"
#include "base/log.h"
#include "kernels/cpu/features.h"
#include "model/alloc.h"
#include "model/blocks/fp8.h"
#include "model/infer/session.h"
#include "model/files/stored_weights.h"
#include "train/adapters.h"
#include "train/recipe/fit.h"
#include "train/run.h"

#define MIB 1048576.0

/* Blocks of kernels/cpu/isa/gemm.c. */
#define BLOCK_ROWS 2048
#define BLOCK_COLS 3072
#define BLOCK_K    800
/* A panel of rows, which are PANEL_STEP apart (AVX-512; other sets pack more densely). */
#define PANEL_ROWS 14
#define PANEL_STEP 16
#define PANEL_COLS 32
#define PEAK_SIDE  1024 /* Size of the product that measures the peak (kernels/peak.c). */

#define CHECKPOINT_BYTES ((size_t)4 << 20) /* A chunk of a tensor being written to disk. */
/* For code that is touched later, stacks, messages: measured. */
#define LATER_BYTES ((size_t)3 << 20)
/* For a metrics line that is parsed, printed and put in the page. */
#define REPORT_ROW_BYTES ((size_t)2560)

static size_t smaller(int64_t a, int64_t b) {
    return (size_t)(a < b ? a : b);
}

static size_t larger(size_t a, size_t b) {
    return a > b ? a : b;
}

/* ---- Figures from the system ---- */

size_t lt_memory_resident(void) {
    return (size_t)lt_limits_resident_bytes();
}

size_t lt_memory_grown(size_t before) {
    const size_t now = lt_memory_resident();
    return now > before ? now - before : 0;
}

/* It is not from getrusage, which includes the memory of the parent process when it started this
 * one. */
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
    size_t wide_a, wide_b;   /* 8-bit operands in the type of the result. */
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

/* The 8-bit operands of y (m, n) = a (m, k) b (n, k)^T are widened first. */
static void add_widened(kernel_scratch *s, int64_t m, int64_t n, int64_t k, lt_dtype dtype) {
    s->wide_a = larger(s->wide_a, (size_t)(m * k) * lt_dtype_bytes(dtype));
    s->wide_b = larger(s->wide_b, (size_t)(n * k) * lt_dtype_bytes(dtype));
}

static size_t kernel_scratch_bytes(const lt_recipe *r, const lt_param_table *t,
                                   const lt_model_spec *spec, lt_dtype dtype,
                                   const lt_pass_options *o, size_t logits_bytes) {
    const int64_t all = o->batch * o->seq;
    const int64_t logit_rows = (int64_t)logits_bytes /
                               (lt_model_spec_outputs(spec) * (int64_t)lt_dtype_bytes(dtype));
    const size_t kv = (size_t)(all * spec->n_kv_heads * spec->head_dim) * sizeof(float);
    kernel_scratch s = {.rows = kv, .cols = kv};

    add_product(&s, PEAK_SIDE, PEAK_SIDE, PEAK_SIDE, dtype, dtype);
    for (int i = 0; i < t->n_params; i++) {
        const lt_param *p = &t->params[i];
        const bool head = p->kind == lt_param_head(spec);
        const int64_t rows = head ? logit_rows : all;
        if (!p->matrix && !head) {
            continue;
        }
        const int64_t n = p->shape[p->n_dims - 2], k = p->shape[p->n_dims - 1];
        add_product(&s, rows, n, k, dtype, dtype); /* y = x w^T */
        add_product(&s, rows, k, n, dtype, dtype); /* dx = dy w */
        if (o->lora.rank == 0) {
            add_product(&s, n, k, rows, dtype, LT_F32); /* dw = dy^T x */
        }
        if (r->fp8 != LT_FP8_NONE && lt_fp8_takes(p)) {
            add_widened(&s, rows, n, k, dtype);
            add_widened(&s, rows, k, n, dtype);
            if (r->fp8_wgrad) {
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

static lt_err add_passing(lt_memory_plan *p, const lt_training *t) {
    const lt_recipe *r = &t->recipe;
    const int64_t lines = r->steps / r->log_every;
    if (t->tokenizer != NULL && r->sample_tokens > 0) {
        lt_session_memory m;
        int64_t room;
        LT_TRY(lt_training_sample_room(t, &room));
        lt_session_measure_short(&m, t->model, 1, room);
        add(p, "sampling session", m.cache_bytes + m.activations_bytes, true);
    }
    if (t->valid_options.n_sources > 0) {
        add(p, "validation loader", lt_loader_get_info(t->loader).mapped_bytes, true);
    }
    add(p, "checkpoint writing", CHECKPOINT_BYTES, true);
    add(p, "report", smaller(lines, LT_REPORT_ROWS) * REPORT_ROW_BYTES, true);
    return LT_OK;
}

static void announce(lt_memory_plan *p) {
    size_t passing = 0;
    p->announced_bytes = 0;
    for (int i = 0; i < p->n_rows; i++) {
        const lt_memory_row *r = &p->rows[i];
        p->announced_bytes += r->passing ? 0 : r->bytes;
        passing = r->passing ? larger(passing, r->bytes) : passing;
    }
    p->announced_bytes += passing;
}

static int dp_of(const lt_shards *shards) {
    return shards != NULL && shards->world != NULL ? shards->world->shape.dp : 1;
}

/* Memory of the world in which ranks on GPUs exchange the data of their passes. */
static lt_comm_memory comm_memory(const lt_pass_options *o, const lt_shards *shards) {
    if (!o->on_device || shards == NULL || shards->world == NULL) {
        return (lt_comm_memory){0};
    }
    const lt_world *w = shards->world;
    const int n = w->shape.pp * w->shape.dp * w->shape.cp * w->shape.tp;
    /* Sites of one launch share its world. */
    return lt_comm_device_measure(n > 1 && w->comm != NULL ? lt_comm_size(w->comm) : n);
}

typedef struct {
    size_t weights_bytes, gradients_bytes, optimiser_bytes;
    size_t copy_bytes; /* For checkpoints, on the host. */
} state_memory;

/* Bytes of a pass's part of the model beside adapters; t: its table. */
static lt_err measure_base(size_t *out, const lt_recipe *r, const lt_model_spec *spec,
                           const lt_param_table *t, lt_model_options o,
                           const lt_pass_options *pass) {
    lt_adapters_base(&o, r);
    o.partition = pass->partition;
    o.n_scores = spec->n_scores;
    o.token_scores = spec->token_scores;
    if (o.decoded) {
        return lt_stored_weights_measure(out, r->init, &o, pass->on_device);
    }
    *out = lt_model_weights_bytes(t, &o);
    return LT_OK;
}

/* Bytes of this rank's slices of the model beside adapters, if ranks divide its weights. */
static lt_err measure_slices(size_t *out, const lt_recipe *r, const lt_model_spec *spec,
                             const lt_shards *frozen, lt_model_options o) {
    const lt_partition part = lt_shards_own(frozen);
    lt_param_table own;
    LT_TRY(lt_param_table_open_part(&own, spec, &part));
    lt_adapters_base(&o, r);
    *out = lt_model_weights_bytes(&own, &o);
    for (int u = 0; frozen->block_bytes != NULL && u < frozen->full.n_units; u++) {
        *out += frozen->block_bytes[u] / (size_t)frozen->n;
    }
    *out += (size_t)frozen->numbered_rows * sizeof(int32_t);
    lt_param_table_close(&own);
    return LT_OK;
}

/* For adapters, and the model beside them. held: the adapters with which passes compute; own: those
 * that are trained. They differ only if ZeRO divides them. */
static lt_err measure_adapters(state_memory *out, const lt_recipe *r, const lt_model_spec *spec,
                               lt_dtype dtype, const lt_param_table *t, const lt_shards *shards,
                               const lt_pass_options *pass, const lt_lora_plan *held,
                               const lt_lora_plan *own) {
    const lt_lora_options lora = lt_recipe_lora(r);
    const lt_model_options trained = {.dtype = dtype, .trainable = true}, fixed = {.dtype = dtype};
    const bool divided = shards != NULL && shards->level > 0;
    lt_zero_memory zero = {0};
    size_t base_bytes;
    LT_TRY(divided && shards->frozen != NULL
               ? measure_slices(&base_bytes, r, spec, shards->frozen, trained)
               : measure_base(&base_bytes, r, spec, t, trained, pass));
    if (divided) {
        lt_zero_measure(&zero, shards, dtype);
    }
    *out = (state_memory){
        .weights_bytes = base_bytes + lt_model_weights_bytes(&own->table, &trained) +
                         (divided ? lt_model_weights_bytes(&held->table, &fixed) : 0) +
                         lt_lora_derived_bytes(&lora, &held->sizes) + zero.weights_bytes,
        .gradients_bytes = zero.gradients_bytes,
        .copy_bytes = lt_saver_bytes(r, &own->table, shards)};
    return lt_optimiser_measure(&out->optimiser_bytes, r, &own->table, divided ? shards : NULL);
}

static lt_err measure_adapted(state_memory *out, const lt_recipe *r, const lt_model_spec *spec,
                              lt_dtype dtype, const lt_param_table *t, const lt_shards *shards,
                              const lt_pass_options *o) {
    const bool divided = shards != NULL && shards->level > 0;
    const lt_partition part = divided ? lt_shards_own(shards) : (lt_partition){.ctx = NULL};
    const lt_lora_options lora = lt_recipe_lora(r);
    lt_lora_plan held = {.n_modules = 0}, own = {.n_modules = 0};
    lt_err err = LT_OK;
    LT_TRY_DONE(lt_lora_plan_open(&held, spec, &lora, o->partition, o->lora_partition));
    LT_TRY_DONE(divided ? lt_lora_plan_open(&own, spec, &lora, NULL, &part) : LT_OK);
    LT_TRY_DONE(measure_adapters(out, r, spec, dtype, t, shards, o, &held, divided ? &own : &held));
done:
    lt_lora_plan_close(&held);
    lt_lora_plan_close(&own);
    return err;
}

/* Everything that persists between steps, except the pass's own gradients. t: of the model of the
 * passes. */
static lt_err measure_state(state_memory *out, const lt_recipe *r, const lt_model_spec *spec,
                            lt_dtype dtype, const lt_param_table *t, const lt_shards *shards) {
    lt_model_options run = {.dtype = dtype, .trainable = true}, trained = run;
    lt_param_table own = {0};
    lt_zero_memory zero;
    if (shards == NULL || shards->level == 0) {
        *out = (state_memory){.weights_bytes = lt_model_weights_bytes(t, &run),
                              .copy_bytes = lt_saver_bytes(r, t, shards)};
        return lt_optimiser_measure(&out->optimiser_bytes, r, t, NULL);
    }
    const lt_partition part = lt_shards_own(shards);
    lt_err err;
    LT_TRY(lt_param_table_open_part(&own, spec, &part));
    lt_zero_measure(&zero, shards, dtype);
    run.trainable = false;
    run.elsewhere = shards->level == 3;
    *out = (state_memory){.weights_bytes = lt_model_weights_bytes(t, &run) +
                                           lt_model_weights_bytes(&own, &trained) +
                                           zero.weights_bytes,
                          .gradients_bytes = zero.gradients_bytes,
                          .copy_bytes = lt_saver_bytes(r, &own, shards)};
    err = lt_optimiser_measure(&out->optimiser_bytes, r, &own, shards);
    lt_param_table_close(&own);
    return err;
}

lt_err lt_memory_buffers(lt_memory_plan *out, const lt_recipe *r, const lt_model_spec *spec,
                         lt_dtype dtype, const lt_pass_options *o, const lt_pass_memory *given,
                         const lt_shards *shards) {
    lt_err err = LT_OK;
    lt_param_table table = {0};
    lt_pass_memory m;
    state_memory state;
    if (given != NULL) {
        m = *given;
    } else {
        LT_TRY(lt_pass_measure(&m, spec, dtype, o));
    }
    LT_TRY(lt_param_table_open_part(&table, spec, o->partition));
    const size_t scratch = o->on_device
                               ? 0
                               : kernel_scratch_bytes(r, &table, spec, dtype, o, m.logits_bytes);
    LT_TRY_DONE(o->lora.rank > 0 ? measure_adapted(&state, r, spec, dtype, &table, shards, o)
                                 : measure_state(&state, r, spec, dtype, &table, shards));
    const lt_comm_memory comm = comm_memory(o, shards);
    const size_t drawn = r->guard_replay > 0 && dp_of(shards) > 1 ? 3
                                                                  /* And one for another rank's. */
                                                                  : 2;
    const size_t rows =
        drawn * lt_step_rows_bytes(lt_recipe_largest_batch(r) * lt_recipe_together(r),
                                   lt_pass_whole_seq(o), o->weights) +
        lt_step_rows_bytes(o->joins > 0 ? r->micro : o->batch, lt_pass_whole_seq(o), o->weights) +
        m.host_bytes;

    *out = (lt_memory_plan){0};
    add(out, "weights", state.weights_bytes, false);
    add(out, "gradients", m.gradients_bytes + state.gradients_bytes, false);
    if (r->deterministic != 0) {
        add(out, "sums of groups", lt_invariant_bytes(r, dp_of(shards), &table), false);
    }
    add(out, "optimiser", state.optimiser_bytes, false);
    add(out, "activations", m.activations_bytes, false);
    add(out, "logits", m.logits_bytes, false);
    add(out, "8-bit weights", m.fp8_bytes, false);
    add(out, "tables and scratch", m.scratch_bytes, false);
    if (comm.device_bytes > 0) {
        add(out, "sums over ranks", comm.device_bytes, false);
    }
    announce(out);
    out->device_bytes = out->announced_bytes;
    if (comm.host_bytes > 0) {
        add(out, "sums on the host", comm.host_bytes, false);
    }
    if (state.copy_bytes > 0) {
        add(out, "copy for checkpoints", state.copy_bytes, false);
    }
    add(out, "kernel scratch", scratch, false);
    add(out, "rows of tokens", rows, false);
    announce(out);
    out->buffers_bytes = out->announced_bytes;
done:
    lt_param_table_close(&table);
    return err;
}

static size_t bytes_of(const lt_memory_plan *p, const char *name) {
    size_t bytes = 0;
    for (int i = 0; i < p->n_rows; i++) {
        bytes += strcmp(p->rows[i].name, name) == 0 ? p->rows[i].bytes : 0;
    }
    return bytes;
}

/* Assert that the bytes computed from the recipe are those that were allocated. */
static void assert_placed(const lt_memory_plan *p, const lt_training *t) {
    const lt_pass_memory *m = &t->pass_memory;
    const lt_lora *l = t->lora;
    const size_t shards = (t->model != t->trained ? t->trained->weights_bytes : 0) +
                          (t->kept != NULL ? t->kept->weights_bytes : 0) +
                          (l != NULL && l->params != l->trained ? l->params->weights_bytes : 0) +
                          (l != NULL ? l->dora.arena.size_bytes : 0);
    LT_ASSERT(bytes_of(p, "weights") + bytes_of(p, "gradients") ==
              lt_model_bytes(t->model) + shards + t->zero.arena.size_bytes + m->gradients_bytes);
    LT_ASSERT(bytes_of(p, "sums of groups") == t->invariant.arena.size_bytes);
    LT_ASSERT(bytes_of(p, "optimiser") <= t->optimiser.arena.size_bytes);
    LT_ASSERT(bytes_of(p, "activations") == m->activations_bytes);
    LT_ASSERT(bytes_of(p, "logits") == m->logits_bytes);
    LT_ASSERT(bytes_of(p, "8-bit weights") == m->fp8_bytes);
    LT_ASSERT(bytes_of(p, "tables and scratch") == m->scratch_bytes);
    LT_ASSERT(bytes_of(p, "copy for checkpoints") == t->saver.bytes);
    LT_ASSERT((bytes_of(p, "sums over ranks") > 0) ==
              (t->world != NULL && t->world->device != NULL));
    LT_ASSERT(bytes_of(p, "rows of tokens") ==
              2 * t->draws[0].rows.arena.size_bytes +
                  (t->replay.rows != NULL ? t->replay.rows->arena.size_bytes : 0) +
                  t->valid_rows.arena.size_bytes + m->host_bytes);
}

lt_err lt_memory_plan_make(lt_memory_plan *out, const lt_training *t) {
    const lt_loader_info loader = t->loader != NULL ? lt_loader_get_info(t->loader)
                                                    : (lt_loader_info){.memory_bytes = 0};
    const lt_pass_options o = lt_training_pass_options(t);
    lt_memory_plan buffers;

    LT_TRY(lt_memory_buffers(&buffers, &t->recipe, &t->model->spec, t->model->options.dtype, &o,
                             &t->pass_memory, &t->shards));
    assert_placed(&buffers, t);
    *out = (lt_memory_plan){.buffers_bytes = buffers.buffers_bytes,
                            .device_bytes = buffers.device_bytes};
    add(out, "program and libraries", t->program_bytes + LATER_BYTES, false);
    add(out, "tokenizer", t->tokenizer_bytes, false);
    for (int i = 0; i < buffers.n_rows; i++) {
        add(out, buffers.rows[i].name, buffers.rows[i].bytes, false);
    }
    if (t->together != NULL) {
        add(out, "gradients of this adapter", lt_training_join_bytes(t), false);
    }
    add(out, "loader", loader.memory_bytes, false);
    add(out, "mapped data", loader.mapped_bytes, false);
    if (t->shard_cache != NULL) {
        add(out, "shard fetching", LT_SHARD_CACHE_BYTES, false);
    }
    if (t->mirror.place[0] != '\0') {
        add(out, "checkpoint sending", LT_MIRROR_BYTES, false);
    }
    if (t->objective != NULL) {
        add(out, "objective", t->objective_bytes, false);
    }
    if (t->diloco.on) {
        add(out, "rounds of sites", t->diloco.bytes, false);
    }
    LT_TRY(add_passing(out, t));
    announce(out);
    return LT_OK;
}

void lt_memory_plan_log(const lt_memory_plan *p) {
    lt_log_info("memory, MiB (* temporary; only the largest of these counts):");
    for (int i = 0; i < p->n_rows; i++) {
        const lt_memory_row *r = &p->rows[i];
        lt_log_info("  %-22s %10.1f%s", r->name, (double)r->bytes / MIB, r->passing ? " *" : "");
    }
    lt_log_info("  %-22s %10.1f", "announced", (double)p->announced_bytes / MIB);
    lt_log_info("  of these the recipe decides %zu bytes, %zu of them on the device",
                p->buffers_bytes, p->device_bytes);
}

json_t *lt_memory_plan_json(const lt_memory_plan *p) {
    json_t *all = json_object();
    for (int i = 0; i < p->n_rows; i++) {
        json_object_set_new(all, p->rows[i].name, json_integer((json_int_t)p->rows[i].bytes));
    }
    return all;
}
