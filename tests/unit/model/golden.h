/* golden.h: cases of tests/golden/model, made by tools/make_model_goldens.py, for tests of pass
 * and session. */
#ifndef TESTS_MODEL_GOLDEN_H
#define TESTS_MODEL_GOLDEN_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/error.h"
#include "base/thread.h"
#include "model/pass/pass.h"
#include "model/files/safetensors.h"
#include "unit/device.h"
#include "tensor/ops.h"

#define GOLDEN_ROOT "tests/golden/model/"

static const char *const golden_cases[] = {
    "gpt2",   "gpt2_scaled", "llama3",  "llama_bias", "qwen2",   "qwen3",   "gemma2",
    "gemma3", "apertus",     "mixtral", "switch",     "mistral", "phi3",    "yarn",
    "olmo2",  "smollm3",     "granite", "qwen3_moe",  "phi4",    "gpt_oss", "qwen3_moe_dense"};
#define N_GOLDEN_CASES ((int)(sizeof golden_cases / sizeof golden_cases[0]))

typedef struct {
    const char *name;
    lt_model *model;
    lt_safetensors file;
    lt_pass_batch batch;
} golden;

static inline void must(lt_err err, const char *what) {
    if (err != LT_OK) {
        fail_msg("%s: %s", what, lt_error_message());
    }
}

static inline const void *golden_data(const golden *g, const char *name) {
    const lt_safetensor *t = lt_safetensors_find(&g->file, name);
    return t != NULL ? t->data : NULL;
}

static inline lt_model *golden_model(const char *name, const char *part, const lt_backend *backend,
                                     lt_dtype dtype) {
    char path[256];
    lt_model *m = NULL;
    (void)snprintf(path, sizeof path, GOLDEN_ROOT "%s%s", name, part);
    must(lt_model_open(&m, path, &(lt_model_options){.dtype = dtype, .trainable = true}), path);
    m->device = device_of(backend); /* Both backends compute on host memory. */
    m->backend = backend;
    return m;
}

static inline void golden_open(golden *g, const char *name, const lt_backend *backend,
                               lt_dtype dtype) {
    char path[256];
    const lt_safetensor *tokens;
    *g = (golden){.name = name, .model = golden_model(name, "", backend, dtype)};
    (void)snprintf(path, sizeof path, GOLDEN_ROOT "%s/golden.safetensors", name);
    must(lt_safetensors_open(&g->file, path), path);
    tokens = lt_safetensors_find(&g->file, "tokens");
    assert_non_null(tokens);
    g->batch = (lt_pass_batch){.batch = tokens->shape[0],
                               .seq = tokens->shape[1],
                               .tokens = golden_data(g, "tokens"),
                               .labels = golden_data(g, "labels"),
                               .doc_start = golden_data(g, "doc_start"),
                               .positions = golden_data(g, "positions")};
}

static inline void golden_close(golden *g) {
    lt_safetensors_close(&g->file);
    lt_model_close(g->model);
}

static inline lt_pass *golden_pass(golden *g, lt_recompute recompute) {
    lt_pass *p = NULL;
    const lt_pass_options o = {.batch = g->batch.batch,
                               .seq = g->batch.seq,
                               .train = true,
                               .recompute = recompute,
                               .loss_chunk_rows = 16};
    must(lt_pass_open(&p, g->model, &o), g->name);
    return p;
}

static inline double max_abs(const float *x, int64_t n) {
    double max = 0;
    for (int64_t i = 0; i < n; i++) {
        max = fmax(max, isfinite(x[i]) ? fabs((double)x[i]) : INFINITY);
    }
    return max;
}

/* Largest |a - b| over the largest |b|. */
static inline double distance(const float *a, const float *b, int64_t n) {
    double max = 0;
    for (int64_t i = 0; i < n; i++) {
        const double d = fabs((double)a[i] - (double)b[i]);
        max = isfinite(d) ? fmax(max, d) : INFINITY;
    }
    return max / fmax(max_abs(b, n), 1e-30);
}

/* Check that each parameter of two flat buffers is within tolerance, relative to its own largest
 * element. */
static inline void assert_params_near(const lt_param_table *t, const float *a, const float *b,
                                      double tolerance, const char *what) {
    for (int i = 0; i < t->n_params; i++) {
        const lt_param *p = &t->params[i];
        const double d = distance(a + p->whole_at, b + p->whole_at, p->count);
        if (!(d <= tolerance)) {
            fail_msg("%s: %s differs by %.3g of its largest element, tolerance %.3g", what, p->name,
                     d, tolerance);
        }
    }
}

#endif
