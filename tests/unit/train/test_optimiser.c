/* Steps of the optimisers on a model, element by element from the papers' formulas in double:
 * AdamW (Loshchilov and Hutter 2019), AdEMAMix (Pagliardini and others 2024), Lion (Chen and
 * others 2023) and what Jordan's Muon leaves to AdamW; which unit is reported when; how many
 * bytes everything takes. */
#include "unit/train/side.h"

#include <math.h>

#include "base/thread.h"

static const lt_step_plan plans[] = {
    {.step = 1, .lr = 0.01, .muon_lr = 0.25, .mix_alpha = 2.0, .mix_beta3 = 0.9},
    {.step = 2, .lr = 0.02, .muon_lr = 0.5, .mix_alpha = 3.0, .mix_beta3 = 0.95}};

static lt_recipe *recipe(const char *kind) {
    lt_recipe *r = recipe_of(kind, "fp32");
    r->beta1 = 0.8;
    r->beta2 = 0.96;
    r->eps = 1e-3;
    r->decay = 0.1;
    return r;
}

#define SCALE 0.5f

/* An element after two steps; m: its moments. */
static double element(const lt_recipe *r, double p, const double g[2], bool decays) {
    double m = 0, v = 0, slow = 0;
    for (int i = 0; i < 2; i++) {
        const lt_step_plan *at = &plans[i];
        const double x = SCALE * g[i], decay = decays ? r->decay : 0;
        if (r->optim == LT_OPTIM_LION) {
            const double u = r->beta1 * m + (1 - r->beta1) * x;
            p -= at->lr * ((u > 0) - (u < 0) + decay * p);
            m = r->beta2 * m + (1 - r->beta2) * x;
            continue;
        }
        m = r->beta1 * m + (1 - r->beta1) * x;
        v = r->beta2 * v + (1 - r->beta2) * x * x;
        slow = at->mix_beta3 * slow + (1 - at->mix_beta3) * x;
        const double mix = r->optim == LT_OPTIM_ADEMAMIX ? at->mix_alpha * slow : 0;
        const double m_hat = m / (1 - pow(r->beta1, (double)at->step)),
                     v_hat = v / (1 - pow(r->beta2, (double)at->step));
        p -= at->lr * ((m_hat + mix) / (sqrt(v_hat) + r->eps) + decay * p);
    }
    return p;
}

static void elements_follow_the_papers(void **state) {
    static const char *const kinds[] = {"adamw", "ademamix", "lion", "muon"};
    const lt_model_spec spec = spec_of(true, 37);
    (void)state;
    for (int kind = 0; kind < 4; kind++) {
        lt_recipe *r = recipe(kinds[kind]);
        int64_t n_matrix = 0, n_decays = 0, n_plain = 0;
        side s;
        must(side_open(&s, r, &spec, LT_F32, NULL), kinds[kind]);
        const lt_param_table *t = &s.model->table;
        const size_t bytes = lt_param_buffer_bytes(t, LT_F32);
        float *before = malloc(bytes), *g[2] = {malloc(bytes), malloc(bytes)};
        assert_true(before != NULL && g[0] != NULL && g[1] != NULL);
        memcpy(before, s.model->master.flat, bytes);
        for (int i = 0; i < 2; i++) {
            fill_gradients(&s, 7 + i);
            memcpy(g[i], s.gradients.flat, bytes);
            must(lt_optimiser_step(&s.optimiser, &s.gradients, SCALE, &plans[i]), kinds[kind]);
        }
        must(s.model->backend->sync(s.queue), "sync");
        for (int i = 0; i < t->n_params; i++) {
            const lt_param *p = &t->params[i];
            const float *now = lt_param_data(&s.model->master, p);
            const int64_t at = now - (const float *)s.model->master.flat;
            if (r->optim == LT_OPTIM_MUON && p->matrix) {
                n_matrix += p->count;
                continue;
            }
            *(p->decays ? &n_decays : &n_plain) += p->count;
            for (int64_t k = 0; k < p->count; k++) {
                const double both[2] = {g[0][at + k], g[1][at + k]};
                const double want = element(r, before[at + k], both, p->decays);
                if (!(fabs(now[k] - want) <= 2e-6)) {
                    fail_msg("%s: element %lld of %s is %.9g, not %.9g", kinds[kind], (long long)k,
                             p->name, (double)now[k], want);
                }
            }
        }
        assert_true(n_decays > 0 && n_plain > 0 && (n_matrix > 0) == (r->optim == LT_OPTIM_MUON));
        free(before);
        free(g[0]);
        free(g[1]);
        side_close(&s);
        free(r);
    }
}

/* Muon turns the matrix G of 40 x 20 (the first in up) and its transpose of 20 x 40 (down) into
 * the same orthogonal matrix; the update of the taller one is larger by sqrt(40 / 20). Decay is
 * the plan's muon_lr times optim.decay. */
static void muon_scales_by_the_shape(void **state) {
    lt_model_spec spec = spec_of(false, 37);
    lt_recipe *r = recipe("muon");
    const lt_param *tall = NULL, *wide = NULL;
    float p_tall[40 * 20], p_wide[40 * 20];
    double sum = 0;
    side s;
    (void)state;
    r->decay = 0.125;
    spec.ffn_width = 40;
    must(side_open(&s, r, &spec, LT_F32, NULL), "muon");
    const lt_param_table *t = &s.model->table;
    for (int i = 0; i < t->n_params; i++) {
        const lt_param *p = &t->params[i];
        tall = p->matrix && p->block_rows[0] == 40 && p->shape[1] == 20 ? p : tall;
        wide = p->matrix && p->shape[0] == 20 && p->shape[1] == 40 ? p : wide;
    }
    assert_true(tall != NULL && wide != NULL && tall->decays && wide->decays);
    fill_gradients(&s, 3);
    const float *g = lt_param_data(&s.gradients, tall);
    for (int64_t i = 0; i < 40; i++) {
        for (int64_t k = 0; k < 20; k++) {
            ((float *)lt_param_data(&s.gradients, wide))[k * 40 + i] = g[i * 20 + k];
        }
    }
    memcpy(p_tall, lt_param_data(&s.model->master, tall), sizeof p_tall);
    memcpy(p_wide, lt_param_data(&s.model->master, wide), sizeof p_wide);
    must(lt_optimiser_step(&s.optimiser, &s.gradients, SCALE, &plans[0]), "step");
    must(s.model->backend->sync(s.queue), "sync");
    for (int64_t i = 0; i < 40; i++) {
        for (int64_t k = 0; k < 20; k++) {
            const double keeps = 1 - plans[0].muon_lr * r->decay;
            const int64_t a = i * 20 + k, b = k * 40 + i;
            const double u = keeps * (double)p_tall[a] -
                             (double)((float *)lt_param_data(&s.model->master, tall))[a],
                         v = keeps * (double)p_wide[b] -
                             (double)((float *)lt_param_data(&s.model->master, wide))[b];
            sum += v * v;
            assert_true(fabs(u - sqrt(40.0 / 20.0) * v) <= 1e-5);
        }
    }
    /* Twenty singular values, which five iterations bring to between 0.68 and 1.13 (Jordan
     * 2024). */
    sum /= 20 * plans[0].muon_lr * plans[0].muon_lr;
    assert_true(sum > 0.68 * 0.68 && sum < 1.13 * 1.13);
    side_close(&s);
    free(r);
}

/* The first matrix of the layers after one step of Muon; freed by the caller. */
static float *after_muon(lt_dtype model, const char *products, int64_t *count) {
    const lt_model_spec spec = spec_of(false, 37);
    lt_recipe *r = recipe("muon");
    const lt_param *p = NULL;
    side s;
    must(lt_options_set(&lt_recipe_table, r, "optim.muon_products", products, "test"), products);
    must(side_open(&s, r, &spec, model, NULL), products);
    fill_gradients(&s, 3);
    must(lt_optimiser_step(&s.optimiser, &s.gradients, SCALE, &plans[0]), products);
    must(s.model->backend->sync(s.queue), products);
    for (int i = s.model->table.n_params - 1; i >= 0; i--) {
        p = s.model->table.params[i].matrix ? &s.model->table.params[i] : p;
    }
    *count = p->count;
    float *out = malloc((size_t)*count * sizeof *out);
    assert_non_null(out);
    memcpy(out, lt_param_data(&s.model->master, p), (size_t)*count * sizeof *out);
    side_close(&s);
    free(r);
    return out;
}

/* optim.muon_products: the type of the model unless another is named; BF16 rounds the products of
 * the iterations, by less than a tenth of an update. */
static void muon_multiplies_in_the_type_of_the_model(void **state) {
    static const lt_dtype models[] = {LT_F32, LT_BF16};
    static const char *const same[] = {"fp32", "bf16"};
    (void)state;
    for (int k = 0; k < 2; k++) {
        int64_t n;
        float *own = after_muon(models[k], "model", &n),
              *named = after_muon(models[k], same[k], &n),
              *other = after_muon(models[k], same[1 - k], &n);
        double apart = 0;
        for (int64_t i = 0; i < n; i++) {
            apart += pow((double)own[i] - (double)other[i], 2);
        }
        assert_memory_equal(own, named, (size_t)n * sizeof *own);
        /* An update of S singular values near 1 has the norm muon_lr sqrt(S). */
        assert_true(apart > 0 && sqrt(apart) < 0.1 * plans[0].muon_lr * sqrt(20));
        free(own);
        free(named);
        free(other);
    }
}

typedef struct {
    int units[16], n, fails_at;
} told;

static lt_err on_updated(void *of, int unit) {
    told *t = of;
    assert_true(t->n < 16);
    t->units[t->n++] = unit;
    if (unit == t->fails_at) {
        return LT_ERR_STATE;
    }
    return LT_OK;
}

/* Each unit is reported once, when its last parameter is queued; none if more changes follow; a
 * failure of the callback ends the step. */
static void units_are_reported(void **state) {
    const lt_model_spec spec = spec_of(false, 37);
    lt_recipe *r = recipe("adamw");
    told t = {.fails_at = -1};
    side s;
    (void)state;
    must(side_open(&s, r, &spec, LT_F32, NULL), "adamw");
    const uint64_t version = s.model->version;
    assert_int_equal(s.model->table.n_units, 4); /* Embedding, two layers, norm and head. */
    s.optimiser.updated = on_updated;
    s.optimiser.of = &t;
    fill_gradients(&s, 1);
    must(lt_optimiser_step(&s.optimiser, &s.gradients, SCALE, &plans[0]), "step");
    assert_int_equal(t.n, 4);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(t.units[i], i);
    }
    assert_int_equal(s.model->version, version + 1);
    t.n = 0;
    s.optimiser.gathers_late = true;
    must(lt_optimiser_step(&s.optimiser, &s.gradients, SCALE, &plans[1]), "late");
    assert_int_equal(t.n, 0);
    s.optimiser.gathers_late = false;
    t.fails_at = 1;
    assert_int_equal(lt_optimiser_step(&s.optimiser, &s.gradients, SCALE, &plans[1]), LT_ERR_STATE);
    assert_int_equal(t.n, 2);
    side_close(&s);
    free(r);
}

/* Moments of n elements and one sum of squares, each aligned to 64 bytes; for Muon the scratch
 * memory of its largest matrix: two of its size and two squares of its smaller side. */
static void bytes_by_kind(void **state) {
    static const struct {
        const char *kind, *moments;
        int f32, bf16, sites;
        int64_t scratch;
    } rows[] = {
        {"adamw", "fp32", 2, 0, 1, 0},    {"adamw", "bf16", 0, 2, 1, 0},
        {"ademamix", "fp32", 3, 0, 1, 0}, {"ademamix", "bf16", 0, 3, 1, 0},
        {"lion", "fp32", 1, 0, 1, 0},     {"muon", "fp32", 2, 0, 1, 2 * 26 * 20 + 2 * 20 * 20},
        {"adamw", "fp32", 4, 0, 2, 0},    {"adamw", "bf16", 2, 2, 2, 0},
        {"lion", "fp32", 3, 0, 3, 0}};
    const lt_model_spec spec = spec_of(false, 37);
    lt_param_table t;
    int64_t n = 0;
    (void)state;
    must(lt_param_table_open(&t, &spec), "table");
    for (int i = 0; i < t.n_params; i++) {
        int64_t count = 1;
        for (int d = 0; d < t.params[i].n_dims; d++) {
            count *= t.params[i].shape[d];
        }
        n += (count + 15) / 16 * 16;
    }
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        lt_recipe *r = recipe_of(rows[i].kind, rows[i].moments);
        const int64_t f32 = rows[i].f32 * n * 4, bf16 = rows[i].bf16 * ((n * 2 + 63) / 64 * 64),
                      scratch = (rows[i].scratch * 4 + 63) / 64 * 64;
        size_t bytes = 0;
        r->sites = rows[i].sites;
        must(lt_optimiser_measure(&bytes, r, &t, NULL), rows[i].kind);
        /* The end is not rounded up. */
        if (scratch == 0) {
            assert_in_range(bytes, f32 + bf16 + 8, f32 + bf16 + 64);
        } else {
            assert_in_range(bytes, f32 + bf16 + 64 + rows[i].scratch * 4,
                            f32 + bf16 + 64 + scratch);
        }
        assert_int_equal(lt_optimiser_state_bytes(r, &t), n * 4 + f32 + rows[i].bf16 * n * 2);
        free(r);
    }
    lt_param_table_close(&t);
}

/* What is measured is what is allocated; what sites exchange follows the optimiser's own. */
static void moments_have_names(void **state) {
    static const struct {
        const char *kind, *names[5];
    } rows[] = {{"adamw", {"m", "v", "outer", "outer_momentum", NULL}},
                {"ademamix", {"m", "v", "slow", "outer", "outer_momentum"}},
                {"lion", {"m", "outer", "outer_momentum", NULL, NULL}}};
    const lt_model_spec spec = spec_of(false, 37);
    (void)state;
    for (int i = 0; i < 3; i++) {
        lt_recipe *r = recipe_of(rows[i].kind, i < 2 ? "bf16" : "fp32");
        size_t bytes;
        side s;
        r->sites = 2;
        must(side_open(&s, r, &spec, LT_F32, NULL), rows[i].kind);
        const lt_optimiser *o = &s.optimiser;
        must(lt_optimiser_measure(&bytes, r, &s.model->table, NULL), rows[i].kind);
        assert_int_equal(bytes, o->arena.used_bytes);
        int n = 0;
        while (n < 5 && rows[i].names[n] != NULL) {
            n++;
        }
        assert_int_equal(o->n_moments, n);
        for (int m = 0; m < n; m++) {
            assert_string_equal(o->moment_names[m], rows[i].names[m]);
            assert_int_equal(o->moments[m].dtype, i < 2 && m < n - 2 ? LT_BF16 : LT_F32);
        }
        const lt_outer_state outer = lt_optimiser_outer(&s.optimiser);
        assert_ptr_equal(outer.outer, &o->moments[n - 2]);
        assert_ptr_equal(outer.momentum, &o->moments[n - 1]);
        lt_optimiser_close(&s.optimiser);
        lt_optimiser_close(&s.optimiser); /* A closed optimiser has nothing to free. */
        assert_int_equal(s.optimiser.n_moments, 0);
        assert_null(s.optimiser.host_sumsq);
        side_close(&s);
        free(r);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(elements_follow_the_papers),
                                       cmocka_unit_test(muon_scales_by_the_shape),
                                       cmocka_unit_test(muon_multiplies_in_the_type_of_the_model),
                                       cmocka_unit_test(units_are_reported),
                                       cmocka_unit_test(bytes_by_kind),
                                       cmocka_unit_test(moments_have_names)};
    lt_thread_set_count(1); /* The models are small, so threads would only wait for each other. */
    return cmocka_run_group_tests(tests, NULL, NULL);
}
