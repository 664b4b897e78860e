/* What the ranks of a divided model do together, with ranks as threads and meshes of every axis:
 * gradients become the sum over all ranks that hold a box; the norm counts each element once; the
 * parts of a checkpoint that the ranks write are the whole model. */
#include "unit/train/side.h"

#include <math.h>

#include "base/file.h"
#include "base/rng.h"
#include "base/thread.h"
#include "parallel/gradients.h"
#include "parallel/slice.h"
#include "train/checkpoint/checkpoint.h"
#include "train/norm.h"

static char root[] = "/tmp/lateen-gradients-XXXXXX";

typedef struct {
    lt_model_spec spec;
    const char *mesh;
    const lt_recipe *recipe;
    double sumsq[16]; /* Of each rank. */
} job;

static lt_model_spec model_spec(bool experts, bool tied) {
    lt_model_spec s = spec_of(experts, 37); /* A vocabulary that ranks cannot divide evenly. */
    s.n_heads = 4;
    s.n_kv_heads = 2;
    s.ffn_width = 24;
    s.n_layers = 4;
    s.tied = tied;
    s.qk_norm = true;
    s.family = experts ? LT_FAMILY_QWEN3_MOE : LT_FAMILY_QWEN3;
    return s;
}

/* The gradient of an element on rank `rank`: whole numbers, whose sums are exact. */
static float seen(int rank, int64_t at) {
    return (float)(lt_rng_mix((uint64_t)(at * 64 + rank)) % 17);
}

/* If a rank holds an element of p, its gradient counts. */
static lt_err add_expected(double *want, const job *j, const lt_world *w, const lt_param *p) {
    for (int rank = 0; rank < lt_comm_size(w->comm); rank++) {
        lt_layout l;
        lt_box_list list = {0};
        LT_TRY(lt_layout_open(&l, &j->spec, &w->shape, rank));
        const lt_partition part = lt_layout_partition(&l);
        LT_TRY(part.boxes(part.ctx, p, &list));
        int64_t local = 0, n = 0;
        for (int b = 0; b < list.n; b++) {
            n += lt_box_count(&list.boxes[b], p->n_dims);
        }
        for (int64_t run; local < n; local++) {
            const int64_t at = lt_box_whole_index(list.boxes, list.n, p->n_dims, p->shape, local,
                                                  &run);
            want[at] += (double)seen(rank, p->whole_at + at);
        }
        free(list.boxes);
    }
    return LT_OK;
}

static lt_err expect_sums(const job *j, const lt_world *w, const side *s) {
    const lt_param_table *t = &s->model->table;
    for (int i = 0; i < t->n_params; i++) {
        const lt_param *p = &t->params[i];
        const float *g = lt_param_data(&s->gradients, p);
        double *want = calloc((size_t)p->count, sizeof *want);
        LT_ASSERT(want != NULL);
        LT_TRY(add_expected(want, j, w, p));
        for (int64_t local = 0, run; local < p->local_count; local++) {
            const int64_t at = lt_param_whole_index(t, p, local, &run);
            if ((double)g[local] != want[at]) {
                LT_FAIL(LT_ERR_STATE, "%s: element %lld is %g, wanted %g", p->name, (long long)at,
                        (double)g[local], want[at]);
            }
        }
        free(want);
    }
    return LT_OK;
}

static lt_err write_part(const lt_world *w, side *s, int64_t step) {
    int n_parts;
    const int part = lt_world_part(w, &n_parts);
    lt_run_state state = {.step = step, .loader = json_object(), .guard = json_object()};
    LT_TRY(w->rank == 0 ? lt_checkpoint_begin(root, step, NULL) : LT_OK);
    LT_TRY(lt_barrier(w->mesh.world));
    if (part >= 0) {
        LT_TRY(lt_checkpoint_write_part(root, step, part, n_parts, s->model, &s->optimiser,
                                        &w->layout, NULL));
    }
    LT_TRY(lt_barrier(w->mesh.world));
    LT_TRY(w->rank == 0
               ? lt_checkpoint_publish(root, n_parts, s->model, &s->optimiser, &state, NULL)
               : LT_OK);
    lt_run_state_clear(&state);
    return LT_OK;
}

static lt_err rank_main(lt_comm *c, void *ctx) {
    job *j = ctx;
    lt_world w;
    side s;
    LT_TRY(lt_world_open_on(&w, c, j->mesh));
    LT_TRY(lt_world_divide(&w, &j->spec, NULL));
    const lt_partition partition = lt_layout_partition(&w.layout);
    LT_TRY(side_open(&s, j->recipe, &j->spec, LT_F32, &partition));
    const lt_param_table *t = &s.model->table;
    for (int i = 0; i < t->n_params; i++) {
        float *g = lt_param_data(&s.gradients, &t->params[i]);
        for (int64_t local = 0, run; local < t->params[i].local_count; local++) {
            const int64_t at = lt_param_whole_index(t, &t->params[i], local, &run);
            g[local] = seen(w.rank, t->params[i].whole_at + at);
        }
    }
    LT_TRY(lt_gradients_sum(&w, t, &s.gradients));
    LT_TRY(expect_sums(j, &w, &s));
    fill_gradients(&s, 1); /* The same for an element on every rank. */
    LT_TRY(lt_norm_share(&j->sumsq[w.rank], s.model->backend, s.queue,
                         &(lt_shards){.world = &w, .n = 1}, t, &s.gradients));
    LT_TRY(write_part(&w, &s, 1));
    side_close(&s);
    lt_world_close(&w, LT_OK);
    return LT_OK;
}

static void expect_norm(const job *j, const side *whole, int n) {
    double want = 0.0, got = 0.0;
    for (int64_t i = 0; i < whole->model->table.n_elements; i++) {
        const double g = (double)lt_param_floats(&whole->gradients)[i];
        want += g * g;
    }
    for (int r = 0; r < n; r++) {
        got += j->sumsq[r];
    }
    if (fabs(got - want) > 1e-9 * want) {
        fail_msg("%s: squares of all ranks %.12g, of the whole %.12g", j->mesh, got, want);
    }
}

static void expect_model(const side *whole) {
    char path[LT_PATH_BYTES];
    int64_t n_held = 0;
    lt_model *m = NULL;
    must(lt_checkpoint_path(path, root, 1), "path");
    assert_true(lt_checkpoint_is(path));
    must(lt_checkpoint_open_model(&m, path), "model of a checkpoint");
    parts_expect_slice(&m->table, &m->master, &whole->model->table, &whole->model->master, &n_held,
                       "model of a checkpoint");
    assert_int_equal(n_held, parts_count(&whole->model->table));
    lt_model_close(m);
    must(lt_checkpoint_remove(path), path);
}

static void check(bool experts, bool tied, const char *mesh, int n) {
    const lt_comm_options o = {.deadline_s = 60, .check = true};
    lt_recipe *r = recipe_of("lion", "fp32");
    job j = {.spec = model_spec(experts, tied), .mesh = mesh, .recipe = r};
    side whole;
    must(side_open(&whole, r, &j.spec, LT_F32, NULL), "whole");
    fill_gradients(&whole, 1);
    must(lt_comm_run_threads(n, &o, rank_main, &j), mesh);
    expect_norm(&j, &whole, n);
    expect_model(&whole);
    side_close(&whole);
    free(r);
}

static void meshes(void **state) {
    (void)state;
    check(false, false, "tp=2", 2);
    check(false, true, "tp=4", 4); /* Fewer key heads than ranks. */
    check(false, true, "pp=2,tp=2,dp=2", 8);
    check(false, false, "pp=4,cp=2", 8);
    check(true, false, "dp=4,ep=2", 4);
    check(true, true, "pp=2,dp=2,cp=2,ep=4", 8);
    check(true, false, "dp=2,tp=4,ep=2", 8);
}

static void slices_cover_a_unit_once(void **state) {
    (void)state;
    for (int64_t elements = 0; elements < 400; elements += LT_PARAM_ALIGN) {
        for (int n = 1; n < 9; n++) {
            int64_t at = 0;
            for (int i = 0; i < n; i++) {
                const lt_slice s = lt_slice_of(elements, n, i);
                assert_true(s.first == at && s.end >= s.first && s.first % LT_PARAM_ALIGN == 0);
                assert_true(s.end - s.first <= lt_slice_size(elements, n));
                at = s.end;
            }
            assert_int_equal(at, elements);
        }
    }
}

static int set_up(void **state) {
    (void)state;
    lt_thread_set_count(1);
    return mkdtemp(root) == NULL;
}

static int tear_down(void **state) {
    (void)state;
    return lt_file_remove_tree(root) != LT_OK;
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(meshes),
                                       cmocka_unit_test(slices_cover_a_unit_once)};
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
