/* What a run needs of a GPU's memory with ranks that divide the state: the table of bytes a
 * parameter in docs/parallel.md (BF16, AdamW), the rooms of units that are present for a while, and
 * the memory in which ranks make sums. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <math.h>

#include <cmocka.h>

#include "base/error.h"
#include "train/fit.h"
#include "train/shapes.h"

#define N 4 /* Ranks. */

static void must(lt_err err) {
    if (err != LT_OK) {
        fail_msg("%s", lt_error_message());
    }
}

/* Elements of the embeddings, the head and two layers. */
static double rooms(const lt_param_table *t) {
    return (double)(t->units[0].n_elements + t->units[t->n_units - 1].n_elements +
                    2 * t->units[1].n_elements);
}

static double needed(const lt_recipe *r, const lt_model_spec *spec, int level, double *room) {
    const lt_mesh_shape shape = {.pp = 1, .dp = N, .cp = 1, .tp = 1, .ep = 1};
    lt_world world = {.shape = shape};
    lt_pass_options o = lt_fit_pass_options(r, true);
    lt_shards shards;
    lt_partition full;
    size_t bytes;
    must(lt_layout_open(&world.layout, spec, &shape, 0));
    must(lt_shards_open(&shards, &world, level, 0));
    if (level > 0) {
        full = lt_shards_full(&shards);
        o.partition = &full;
        o.master_elsewhere = true;
        o.gradients_elsewhere = level > 1;
        *room = rooms(&shards.full);
    }
    must(lt_fit_bytes(&bytes, r, spec, LT_BF16, &o, &shards));
    lt_shards_close(&shards);
    return (double)bytes;
}

static void state_is_divided(void **state) {
    const double of_parameter[] = {18.0, 6.0 + 14.0 / N, 2.0 + 18.0 / N, 18.0 / N},
                 of_room[] = {0.0, 0.0, 4.0, 4.0 + 2.0};
    const lt_train_shape *shape = lt_train_shape_find("gpt2-124m");
    static lt_recipe r;
    lt_pass_options o;
    size_t alone;
    double room = 0.0;
    (void)state;
    lt_options_default(&lt_recipe_table, &r);
    r.dtype = 1;
    r.batch = 4;
    r.seq = 1024;
    assert_non_null(shape);
    const lt_model_spec spec = lt_train_shape_spec(shape, r.seq);
    const double params = (double)lt_model_spec_params(&spec);
    o = lt_fit_pass_options(&r, true);
    must(lt_fit_bytes(&alone, &r, &spec, LT_BF16, &o, NULL));
    for (int level = 0; level <= 3; level++) {
        const double sums = (double)lt_comm_device_measure(N).device_bytes;
        const double got = needed(&r, &spec, level, &room) - (double)alone - sums,
                     want = (of_parameter[level] - of_parameter[0]) * params +
                            of_room[level] * room;
        if (fabs(got - want) > 1e-3 * of_parameter[0] * params) {
            fail_msg("level %d: %.0f bytes more than one rank, expected %.0f", level, got, want);
        }
    }
}

/* 16 MiB for each rank and 16 for the sum, up to 8 ranks; then 128 MiB in all and one piece; at
 * least 1 MiB a rank. */
static void sums(void **state) {
    const int ranks[] = {1, 2, 8, 16, 256};
    const size_t mib[] = {0, 48, 144, 136, 257};
    (void)state;
    for (size_t i = 0; i < sizeof ranks / sizeof *ranks; i++) {
        assert_int_equal(lt_comm_device_measure(ranks[i]).device_bytes >> 20, mib[i]);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(state_is_divided), cmocka_unit_test(sums)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
