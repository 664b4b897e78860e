/* Optimiser and gradient norm on parts: a step on a part has the bits of the whole step's slice, for
 * every optimiser, in F32 and BF16, moments in BF16 too; partial sums of the norm give the whole's
 * bits where cuts lie on the grid, and are the sum over elements everywhere. */
#include "unit/model/parts.h"

#include <math.h>
#include <string.h>

#include "base/option.h"
#include "model/alloc.h"
#include "tensor/ops.h"
#include "train/norm.h"
#include "train/optimiser.h"

#define N_STEPS 3

static void must(lt_err err, const char *what) {
    if (err != LT_OK) {
        fail_msg("%s: %s", what, lt_error_message());
    }
}

/* Two layers with experts or without, and dimensions that are no multiples of each other. */
static lt_model_spec spec_of(bool experts, int64_t vocab) {
    lt_model_spec s = {.family = experts ? LT_FAMILY_MIXTRAL : LT_FAMILY_LLAMA,
                       .n_layers = 2,
                       .width = 20,
                       .n_heads = 2,
                       .n_kv_heads = 1,
                       .head_dim = 10,
                       .ffn_width = 26,
                       .vocab_size = vocab,
                       .max_seq = 8,
                       .norm = LT_NORM_RMS,
                       .norm_eps = 1e-5f,
                       .act = LT_ACT_SILU,
                       .gated = true,
                       .embed_scale = 1,
                       .pos = LT_POS_ROPE,
                       .rope_theta = 10000,
                       .bos_id = -1,
                       .pad_id = -1,
                       .init_std = 0.08f};
    if (experts) {
        s.n_experts = 4;
        s.top_k = 2;
    }
    return s;
}

/* A model with gradients and an optimiser. */
typedef struct {
    lt_model *model;
    lt_queue *queue;
    lt_param_buffer gradients;
    lt_optimiser optimiser;
} side;

static lt_err side_open(side *s, const lt_recipe *r, const lt_model_spec *spec, lt_dtype dtype,
                        const lt_partition *partition) {
    void *flat;
    const lt_model_options o = {.dtype = dtype, .trainable = true, .partition = partition};
    *s = (side){.model = NULL};
    must(lt_model_create(&s->model, spec, &o, 5), "model");
    must(s->model->backend->queue_open(s->model->device, &s->queue), "queue");
    must(lt_param_buffer_open(&s->gradients, &s->model->table, LT_F32), "gradients");
    flat = calloc(1, lt_param_buffer_bytes(&s->model->table, LT_F32) + 1);
    assert_non_null(flat);
    lt_param_buffer_place(&s->gradients, &s->model->table, flat);
    return lt_optimiser_open(&s->optimiser, r, s->model, s->queue);
}

static void side_close(side *s) {
    lt_optimiser_close(&s->optimiser);
    s->model->backend->queue_close(s->queue);
    free(s->gradients.flat);
    lt_param_buffer_close(&s->gradients);
    lt_model_close(s->model);
}

/* A function of the place in the whole and the step. */
static void fill_gradients(side *s, int step) {
    const lt_param_table *t = &s->model->table;
    for (int i = 0; i < t->n_params; i++) {
        const lt_param *p = &t->params[i];
        float *g = lt_param_data(&s->gradients, p);
        for (int64_t local = 0, run; local < p->local_count; local++) {
            const int64_t at = p->whole_at + lt_param_whole_index(t, p, local, &run);
            const uint64_t r = lt_rng_mix((uint64_t)at * 31 + (uint64_t)step);
            g[local] = ((float)(r >> 40) * 0x1p-24f - 0.5f) * (1.0f + (float)(at % 7));
        }
    }
}

static void take_steps(side *s, const lt_recipe *r) {
    for (int step = 1; step <= N_STEPS; step++) {
        const lt_step_plan plan = lt_recipe_plan(r, step, 0);
        fill_gradients(s, step);
        must(lt_optimiser_step(&s->optimiser, &s->gradients, 0.7f, &plan), "step");
    }
}

static lt_recipe *recipe_of(const char *kind, const char *moments) {
    lt_recipe *r = calloc(1, sizeof *r);
    assert_non_null(r);
    lt_options_default(&lt_recipe_table, r);
    must(lt_options_set(&lt_recipe_table, r, "optim.kind", kind, "test"), kind);
    must(lt_options_set(&lt_recipe_table, r, "optim.moments", moments, "test"), moments);
    r->steps = 100;
    return r;
}

static void expect_steps(const lt_recipe *r, bool experts, lt_dtype dtype, parts_kind kind, int n) {
    const lt_model_spec spec = spec_of(experts, 37);
    int64_t n_held = 0, other = 0;
    side whole;
    must(side_open(&whole, r, &spec, dtype, NULL), "whole");
    take_steps(&whole, r);
    for (int part = 0; part < n; part++) {
        const parts_of of = parts_make(kind, n, part, &whole.model->table);
        const lt_partition partition = {parts_boxes, &of};
        const lt_param_table *t = &whole.model->table;
        char what[96];
        side s;
        (void)snprintf(what, sizeof what, "optimiser %d, %s, %d of %d", (int)r->optim,
                       parts_names[kind], part, n);
        must(side_open(&s, r, &spec, dtype, &partition), what);
        take_steps(&s, r);
        parts_expect_slice(&s.model->table, &s.model->master, t, &whole.model->master, &n_held,
                           what);
        parts_expect_slice(&s.model->table, &s.model->weights, t, &whole.model->weights, &other,
                           what);
        for (int m = 0; m < s.optimiser.n_moments; m++) {
            parts_expect_slice(&s.model->table, &s.optimiser.moments[m], t,
                               &whole.optimiser.moments[m], &other, what);
        }
        side_close(&s);
    }
    assert_int_equal(n_held, parts_count(&whole.model->table));
    side_close(&whole);
}

static void steps_on_parts_are_slices(void **state) {
    static const struct {
        const char *kind, *moments;
    } cases[] = {{"adamw", "fp32"},
                 {"adamw", "bf16"},
                 {"ademamix", "fp32"},
                 {"ademamix", "bf16"},
                 {"lion", "fp32"}};
    (void)state;
    for (int c = 0; c < 5; c++) {
        lt_recipe *r = recipe_of(cases[c].kind, cases[c].moments);
        for (int kind = 0; kind < PARTS_KIND_COUNT; kind++) {
            expect_steps(r, kind % 2 == 0, c % 2 == 0 ? LT_BF16 : LT_F32, (parts_kind)kind,
                         2 + kind % 3);
        }
        expect_steps(r, true, LT_BF16, PARTS_RANDOM, 5);
        free(r);
    }
}

static void muon_keeps_whole_matrices(void **state) {
    static const parts_kind whole[] = {PARTS_LAYERS, PARTS_EXPERTS, PARTS_MATRICES};
    static const parts_kind cut[] = {PARTS_ROWS, PARTS_COLUMNS, PARTS_FLAT};
    lt_recipe *r = recipe_of("muon", "fp32");
    const lt_model_spec spec = spec_of(true, 37);
    side all;
    (void)state;
    for (int i = 0; i < 3; i++) {
        expect_steps(r, true, LT_BF16, whole[i], 3);
        expect_steps(r, false, LT_F32, whole[i], 2);
    }
    must(side_open(&all, r, &spec, LT_F32, NULL), "whole");
    for (int i = 0; i < 3; i++) {
        const parts_of of = parts_make(cut[i], 3, 1, &all.model->table);
        const lt_partition partition = {parts_boxes, &of};
        side s;
        assert_int_equal(side_open(&s, r, &spec, LT_F32, &partition), LT_ERR_UNSUPPORTED);
        assert_non_null(strstr(lt_error_message(), "whole matrices"));
        side_close(&s);
    }
    side_close(&all);
    free(r);
}

/* Flat ranges whose ends are multiples of the norm's cells. */
static lt_err grid_boxes(const void *ctx, const lt_param *p, lt_box_list *out) {
    parts_of of = *(const parts_of *)ctx;
    const int64_t cells = (of.whole_elements + LT_NORM_CELL - 1) / LT_NORM_CELL;
    lt_box whole = {.first = {0}};
    const int64_t from = cells * of.part / of.n * LT_NORM_CELL - p->whole_at,
                  to = cells * (of.part + 1) / of.n * LT_NORM_CELL - p->whole_at;
    memcpy(whole.extent, p->shape, sizeof p->shape);
    return lt_box_cut(out, &whole, 1, p->n_dims, from > 0 ? from : 0,
                      to < p->count ? to : p->count);
}

static double *partials_of(side *s) {
    double *cells = malloc((size_t)lt_norm_cells(&s->model->table) * sizeof *cells);
    assert_non_null(cells);
    must(lt_norm_partials(cells, s->model->backend, s->queue, &s->model->table, &s->gradients),
         "partials");
    return cells;
}

/* The total of n parts by the definition: cells from the elements, one by one. */
static void expect_norm(const lt_recipe *r, const lt_model_spec *spec, lt_partition partition,
                        parts_of *of, double whole, bool bits) {
    double *cells[5];
    int64_t n_cells = 0;
    for (of->part = 0; of->part < of->n; of->part++) {
        side s;
        must(side_open(&s, r, spec, LT_F32, &partition), "part");
        fill_gradients(&s, 1);
        n_cells = lt_norm_cells(&s.model->table);
        cells[of->part] = partials_of(&s);
        side_close(&s);
    }
    const double total = lt_norm_total((const double *const *)cells, of->n, n_cells);
    if (bits ? total != whole : fabs(total - whole) > 1e-13 * whole) {
        fail_msg("%s, %d parts: %.17g, the whole %.17g", bits ? "grid" : parts_names[of->kind],
                 of->n, total, whole);
    }
    for (int i = 0; i < of->n; i++) {
        free(cells[i]);
    }
}

static void partial_sums_give_the_norm(void **state) {
    lt_recipe *r = recipe_of("adamw", "fp32");
    (void)state;
    for (int experts = 0; experts < 2; experts++) {
        const lt_model_spec spec = spec_of(experts == 1, 6997); /* Four cells, and a bit. */
        side whole;
        must(side_open(&whole, r, &spec, LT_F32, NULL), "whole");
        fill_gradients(&whole, 1);
        must(lt_optimiser_sumsq(&whole.optimiser, &whole.gradients), "sum");
        must(whole.model->backend->sync(whole.queue), "sum");
        const double sum = *whole.optimiser.host_sumsq;
        double *cells = partials_of(&whole);
        assert_true(lt_norm_cells(&whole.model->table) >= 5);
        assert_true(sum == lt_norm_total((const double *const *)&cells, 1,
                                         lt_norm_cells(&whole.model->table)));
        free(cells);
        for (int n = 2; n <= 5; n += 3) {
            parts_of of = parts_make(PARTS_FLAT, n, 0, &whole.model->table);
            expect_norm(r, &spec, (lt_partition){grid_boxes, &of}, &of, sum, true);
        }
        for (int kind = 0; kind < PARTS_KIND_COUNT; kind++) {
            parts_of of = parts_make((parts_kind)kind, 3, 0, &whole.model->table);
            expect_norm(r, &spec, (lt_partition){parts_boxes, &of}, &of, sum, false);
        }
        side_close(&whole);
    }
    free(r);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(steps_on_parts_are_slices),
        cmocka_unit_test(muon_keeps_whole_matrices),
        cmocka_unit_test(partial_sums_give_the_norm),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
