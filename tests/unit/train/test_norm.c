/* The squares of gradients that ranks hold in parts: each element of the model counts once over all
 * ranks of a mesh, at each level of ZeRO; and cells hold the squares of their own elements. The
 * elements are small whole numbers, known by parameter and index, so that every sum is exact. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/error.h"
#include "parallel/slice.h"
#include "tensor/backend.h"
#include "train/norm.h"

static void must(lt_err err) {
    if (err != LT_OK) {
        fail_msg("%s", lt_error_message());
    }
}

static lt_model_spec spec_of(const char *name, int64_t vocab_size) {
    lt_model_spec spec;
    char path[256];
    (void)snprintf(path, sizeof path, "tests/golden/model/%s/config.json", name);
    must(lt_model_spec_read(&spec, path));
    spec.vocab_size = vocab_size;
    return spec;
}

static double element(const lt_param *p, int64_t whole) {
    return (double)((whole * 7 + p->number * 3) % 11 - 5);
}

/* Fill the part of the table that is held, in one piece; the caller frees it. */
static float *fill(const lt_param_table *t, lt_param_buffer *b) {
    float *flat = calloc(1, lt_param_buffer_bytes(t, LT_F32));
    assert_non_null(flat);
    must(lt_param_buffer_open(b, t, LT_F32));
    lt_param_buffer_place(b, t, flat);
    for (int i = 0; i < t->n_params; i++) {
        const lt_param *p = &t->params[i];
        float *data = lt_param_data(b, p);
        for (int64_t at = 0, run; at < p->local_count; at++) {
            data[at] = (float)element(p, lt_param_whole_index(t, p, at, &run));
        }
    }
    return flat;
}

static double whole_sum(const lt_model_spec *spec) {
    lt_param_table t;
    double sum = 0;
    must(lt_param_table_open(&t, spec));
    for (int i = 0; i < t.n_params; i++) {
        for (int64_t k = 0; k < t.params[i].count; k++) {
            const double x = element(&t.params[i], k);
            sum += x * x;
        }
    }
    lt_param_table_close(&t);
    return sum;
}

/* The share of one rank. With a level, its gradients are its slices of the units. */
static double share_of(const lt_model_spec *spec, const lt_mesh_shape *m, int rank, int level) {
    lt_world w = {.shape = *m};
    lt_shards s;
    lt_param_table held = {0};
    const lt_param_table *t = &held;
    lt_param_buffer b;
    float *flat;
    double sum = -1;
    lt_queue *q = NULL;
    lt_device *d = NULL;
    must(lt_layout_open(&w.layout, spec, m, rank));
    must(lt_shards_open(&s, &w, level, 0));
    if (level == 0) {
        const lt_partition part = lt_layout_partition(&w.layout);
        must(lt_param_table_open_part(&held, spec, &part));
    } else {
        t = &s.full;
    }
    flat = fill(t, &b);
    for (int u = 0; level > 0 && u < t->n_units; u++) {
        if (b.base[u] != NULL) {
            b.base[u] = (float *)b.base[u] + lt_slice_of(t->units[u].n_elements, s.n, s.own).first;
        }
    }
    must(lt_device_open(&d, LT_DEVICE_CPU, 1));
    const lt_backend *be = d->backend;
    must(be->queue_open(d, &q));
    must(lt_norm_share(&sum, be, q, &s, t, &b));
    must(be->sync(q));
    be->queue_close(q);
    lt_device_close(d);
    lt_param_buffer_close(&b);
    free(flat);
    lt_param_table_close(&held);
    lt_shards_close(&s);
    return sum;
}

static void each_element_counts_once(void **state) {
    static const struct {
        const char *model;
        lt_mesh_shape mesh; /* pp, dp, cp, tp, ep. */
        int levels;
    } cases[] = {
        {"llama3", {1, 1, 1, 1, 1}, 2},  {"llama3", {1, 3, 1, 1, 1}, 2},
        {"llama3", {1, 2, 2, 2, 1}, 2},  {"llama3", {2, 2, 1, 2, 1}, 2},
        {"llama3", {1, 2, 1, 4, 1}, 2},  {"gpt2", {2, 1, 3, 2, 1}, 2},
        {"apertus", {1, 3, 1, 1, 1}, 2}, {"apertus", {2, 1, 2, 2, 1}, 2},
        {"mixtral", {1, 4, 1, 1, 1}, 2}, {"mixtral", {1, 4, 1, 1, 2}, 0},
        {"mixtral", {1, 2, 2, 2, 2}, 0}, {"mixtral", {2, 4, 1, 1, 4}, 0},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const lt_model_spec spec = spec_of(cases[i].model, 131); /* The shares are uneven. */
        const lt_mesh_shape *m = &cases[i].mesh;
        const double want = whole_sum(&spec);
        for (int level = 0; level <= cases[i].levels; level++) {
            double sum = 0;
            for (int r = 0; r < m->pp * m->dp * m->cp * m->tp; r++) {
                sum += share_of(&spec, m, r, level);
            }
            if (sum != want) {
                fail_msg("case %zu, %s, level %d: %.0f, not %.0f", i, cases[i].model, level, sum,
                         want);
            }
        }
    }
}

/* Cells are 65,536 elements of the whole model's layout, whatever a rank holds of it. */
static void cells_hold_their_elements(void **state) {
    static const lt_mesh_shape meshes[] = {{1, 1, 1, 1, 1}, {1, 1, 1, 2, 1}, {2, 1, 1, 4, 1}};
    (void)state;
    for (size_t i = 0; i < 2 * sizeof meshes / sizeof *meshes; i++) {
        /* Several cells; parameters of one element, which are followed by padding. */
        const lt_model_spec spec = spec_of(i % 2 == 0 ? "llama3" : "apertus", 5003);
        for (int r = 0; r < meshes[i / 2].pp * meshes[i / 2].tp; r++) {
            lt_layout l;
            lt_param_table t;
            lt_param_buffer b;
            lt_queue *q = NULL;
            lt_device *d = NULL;
            must(lt_layout_open(&l, &spec, &meshes[i / 2], r));
            const lt_partition part = lt_layout_partition(&l);
            must(lt_param_table_open_part(&t, &spec, &part));
            const int64_t n = lt_norm_cells(&t);
            assert_int_equal(n, (t.whole_elements + 65535) / 65536);
            assert_true(n > 3);
            double *cells = calloc((size_t)n, sizeof *cells),
                   *want = calloc((size_t)n, sizeof *want);
            float *flat = fill(&t, &b);
            for (int k = 0; k < t.n_params; k++) {
                const lt_param *p = &t.params[k];
                for (int64_t at = 0, run; at < p->local_count; at++) {
                    const int64_t whole = lt_param_whole_index(&t, p, at, &run);
                    want[(p->whole_at + whole) / 65536] += element(p, whole) * element(p, whole);
                }
            }
            must(lt_device_open(&d, LT_DEVICE_CPU, 1));
            const lt_backend *be = d->backend;
            must(be->queue_open(d, &q));
            must(lt_norm_partials(cells, be, q, &t, &b));
            must(be->sync(q));
            for (int64_t c = 0; c < n; c++) {
                assert_true(cells[c] == want[c]);
            }
            be->queue_close(q);
            lt_device_close(d);
            lt_param_buffer_close(&b);
            lt_param_table_close(&t);
            free(flat);
            free(cells);
            free(want);
        }
    }
}

static void totals_add_parts(void **state) {
    const double a[] = {1, 2, 4}, b[] = {8, 16, 32};
    const double *const parts[] = {a, b};
    (void)state;
    assert_true(lt_norm_total(parts, 2, 3) == 63);
    assert_true(lt_norm_total(parts, 2, 2) == 27);
    assert_true(lt_norm_total(parts, 1, 3) == 7);
    assert_true(lt_norm_total(parts, 0, 3) == 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(each_element_counts_once),
                                       cmocka_unit_test(cells_hold_their_elements),
                                       cmocka_unit_test(totals_add_parts)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
