/* Optimiser and gradient norm on parts: a step on a part has the bits of the whole step's slice,
 * for every optimiser, in F32 and BF16, moments in BF16 too; partial sums of the norm give the bits
 * of the whole where cuts are on the grid, and equal the sum over elements everywhere. */
#include "unit/train/side.h"

#include <math.h>

#include "base/thread.h"
#include "train/norm.h"

static void expect_steps(const lt_recipe *r, bool experts, lt_dtype dtype, parts_kind kind, int n) {
    const lt_model_spec spec = spec_of(experts, 37);
    int64_t n_held = 0, other = 0;
    side whole;
    must(side_open(&whole, r, &spec, dtype, NULL), "whole");
    take_steps(&whole, r);
    for (int part = 0; part < n; part++) {
        const parts_of of = parts_make(kind, n, part, &whole.model->table);
        const lt_partition partition = {parts_boxes, &of, NULL};
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

/* Flat ranges that end at multiples of the padding, so that units of a share lie inside those of
 * the whole. */
static lt_err share_boxes(const void *ctx, const lt_param *p, lt_box_list *out) {
    parts_of of = *(const parts_of *)ctx;
    lt_box whole = {.first = {0}};
    const int64_t step = LT_PARAM_ALIGN, n = of.whole_elements / step;
    const int64_t from = n * of.part / of.n * step - p->whole_at,
                  to = n * (of.part + 1) / of.n * step - p->whole_at;
    memcpy(whole.extent, p->shape, sizeof p->shape);
    return lt_box_cut(out, &whole, 1, p->n_dims, from > 0 ? from : 0,
                      to < p->count ? to : p->count);
}

/* Make a buffer over a share whose units point into a whole one. */
static void point_into(lt_param_buffer *b, const lt_param_table *t, const lt_param_buffer *whole) {
    must(lt_param_buffer_open(b, t, whole->dtype), "share");
    for (int i = 0; i < t->n_params; i++) {
        const lt_param *p = &t->params[i];
        int64_t run;
        if (p->local_count > 0 && b->base[p->unit] == NULL) {
            const int64_t at = p->whole_at + lt_param_whole_index(t, p, 0, &run) - p->at;
            b->base[p->unit] = (char *)whole->flat + (size_t)at * lt_dtype_bytes(b->dtype);
        }
    }
}

/* ZeRO-1: the model is whole; each of three ranks updates its share of it in place. */
static void shares_update_one_model(void **state) {
    lt_recipe *r = recipe_of("adamw", "bf16");
    const lt_model_spec spec = spec_of(true, 37);
    int64_t n_held = 0, n_weights = 0;
    side whole, shared;
    (void)state;
    must(side_open(&whole, r, &spec, LT_BF16, NULL), "whole");
    must(side_open(&shared, r, &spec, LT_BF16, NULL), "shared");
    take_steps(&whole, r);
    for (int part = 0; part < 3; part++) {
        const parts_of of = parts_make(PARTS_FLAT, 3, part, &whole.model->table);
        const lt_partition partition = {share_boxes, &of, NULL};
        lt_param_table t;
        lt_param_buffer master, copy, gradients;
        lt_optimiser o;
        must(lt_param_table_open_part(&t, &spec, &partition), "table");
        point_into(&master, &t, &shared.model->master);
        point_into(&copy, &t, &shared.model->weights);
        point_into(&gradients, &t, &shared.gradients);
        must(lt_optimiser_open_share(&o, r, shared.model,
                                     &(lt_optimiser_share){&t, &master, &copy, NULL}, shared.queue),
             "share");
        for (int step = 1; step <= N_STEPS; step++) {
            const lt_step_plan plan = lt_recipe_plan(r, step, 0);
            fill_gradients(&shared, step);
            must(lt_optimiser_step(&o, &gradients, 0.7f, &plan), "step");
        }
        parts_expect_slice(&t, &o.moments[1], &whole.model->table, &whole.optimiser.moments[1],
                           &n_held, "moments of a share");
        lt_optimiser_close(&o);
        lt_param_buffer_close(&master);
        lt_param_buffer_close(&copy);
        lt_param_buffer_close(&gradients);
        lt_param_table_close(&t);
    }
    parts_expect_slice(&shared.model->table, &shared.model->weights, &whole.model->table,
                       &whole.model->weights, &n_weights, "weights of all shares");
    assert_int_equal(n_held, n_weights);
    side_close(&whole);
    side_close(&shared);
    free(r);
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
        const lt_partition partition = {parts_boxes, &of, NULL};
        side s;
        assert_int_equal(side_open(&s, r, &spec, LT_F32, &partition), LT_ERR_UNSUPPORTED);
        assert_non_null(strstr(lt_error_message(), "whole matrices"));
        side_close(&s);
    }
    side_close(&all);
    free(r);
}

/* Flat ranges whose ends are multiples of the cells of the norm. */
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
    memset(cells, 0x41, (size_t)lt_norm_cells(&s->model->table) * sizeof *cells);
    must(lt_norm_partials(cells, s->model->backend, s->queue, &s->model->table, &s->gradients),
         "partials");
    return cells;
}

/* Compare with the total of n parts by the definition: cells from the elements, one by one. */
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
        const lt_model_spec spec = spec_of(experts == 1, 6997); /* Four cells, and a remainder. */
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
            expect_norm(r, &spec, (lt_partition){grid_boxes, &of, NULL}, &of, sum, true);
        }
        for (int kind = 0; kind < PARTS_KIND_COUNT; kind++) {
            parts_of of = parts_make((parts_kind)kind, 3, 0, &whole.model->table);
            expect_norm(r, &spec, (lt_partition){parts_boxes, &of, NULL}, &of, sum, false);
        }
        side_close(&whole);
    }
    free(r);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(steps_on_parts_are_slices),
        cmocka_unit_test(shares_update_one_model),
        cmocka_unit_test(muon_keeps_whole_matrices),
        cmocka_unit_test(partial_sums_give_the_norm),
    };
    lt_thread_set_count(1); /* The models are small, so threads would only wait for each other. */
    return cmocka_run_group_tests(tests, NULL, NULL);
}
