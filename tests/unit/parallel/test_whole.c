/* All weights of a divided model on each rank, with the bits of a model that was created whole:
 * heads and columns (tp), key heads with copies, stages with a tied embedding on both ends,
 * experts, slices of ZeRO with and without copies, F32 and BF16. And the role of each rank of a
 * mesh: its neighbours, its part of a checkpoint, what it reports. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/error.h"
#include "model/alloc.h"
#include "parallel/whole.h"

#define SEED 7

typedef struct {
    const char *model, *mesh;
    int n, level, per_group;
    lt_dtype dtype;
} whole_case;

/* Overwrite every word of a new model's memory, so that old values do not count. */
static void soil(lt_model *m) {
    memset(m->weights.flat, 0x55, lt_param_buffer_bytes(&m->table, m->weights.dtype));
}

static lt_err compare(const whole_case *c, const lt_model *got, const lt_model_spec *spec) {
    const lt_model_options o = {.dtype = c->dtype};
    lt_model *want = NULL;
    LT_TRY(lt_model_create(&want, spec, &o, SEED));
    for (int i = 0; i < want->table.n_params; i++) {
        const lt_param *p = &want->table.params[i];
        const size_t bytes = (size_t)p->count * lt_dtype_bytes(c->dtype);
        if (memcmp(lt_param_data(&got->weights, &got->table.params[i]),
                   lt_param_data(&want->weights, p), bytes) != 0) {
            LT_FAIL(LT_ERR_STATE, "%s on %s: %s is another", c->model, c->mesh, p->name);
        }
    }
    lt_model_close(want);
    return LT_OK;
}

static lt_err rank_main(lt_comm *comm, void *ctx) {
    const whole_case *c = ctx;
    lt_model_spec spec;
    lt_world w = {0};
    lt_shards s = {0};
    lt_model *part = NULL, *whole = NULL;
    char path[256];
    (void)snprintf(path, sizeof path, "tests/golden/model/%s/config.json", c->model);
    LT_TRY(lt_model_spec_read(&spec, path));
    LT_TRY(lt_world_open_on(&w, comm, c->mesh));
    LT_TRY(lt_world_divide(&w, &spec, NULL));
    lt_partition held = lt_layout_partition(&w.layout);
    if (c->level > 0) {
        LT_TRY(lt_shards_open(&s, &w, c->level, c->per_group));
        held = lt_shards_own(&s);
    }
    const lt_model_options own = {.dtype = c->dtype, .partition = &held}, all = {.dtype = c->dtype};
    LT_TRY(lt_model_create(&part, &spec, &own, SEED));
    part->version = 41;
    LT_TRY(lt_model_alloc(&whole, &spec, &all));
    soil(whole);
    LT_TRY(lt_whole_bring(&w, c->level > 0 ? &s : NULL, part, whole, NULL));
    LT_ASSERT(whole->version == 41);
    LT_TRY(compare(c, whole, &spec));
    lt_model_close(part);
    lt_model_close(whole);
    if (c->level > 0) {
        lt_shards_close(&s);
    }
    lt_world_close(&w, LT_OK);
    return LT_OK;
}

static void every_rank_gets_all_weights(void **state) {
    static const whole_case cases[] = {
        {"gpt2", "tp=2", 2, 0, 0, LT_F32},
        {"llama3", "tp=4", 4, 0, 0, LT_BF16},
        {"qwen3", "pp=2,tp=2", 4, 0, 0, LT_F32},
        {"gpt2", "pp=2", 2, 0, 0, LT_BF16},
        {"gemma3", "dp=2,pp=2", 4, 0, 0, LT_F32},
        {"mixtral", "dp=2,ep=2", 2, 0, 0, LT_F32},
        {"mixtral", "dp=4,ep=2", 4, 0, 0, LT_BF16},
        {"qwen3_moe", "dp=2,ep=2,tp=2", 4, 0, 0, LT_F32},
        {"mixtral", "dp=4,ep=2", 4, 3, 0, LT_F32},
        {"llama3", "dp=2,tp=2", 4, 3, 0, LT_BF16},
        {"gpt2", "dp=4", 4, 3, 2, LT_F32},
    };
    const lt_comm_options o = {.deadline_s = 60, .check = true};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        whole_case c = cases[i];
        if (lt_comm_run_threads(c.n, &o, rank_main, &c) != LT_OK) {
            fail_msg("%s", lt_error_message());
        }
    }
}

/* ---- The role of each rank of a mesh ---- */

typedef struct {
    const char *model, *mesh;
    int n;
    bool divided;
    /* For each rank: its group with the same rows, the stages with the tied embedding, the ranks
     * with the same key heads; its part of a checkpoint; what it reports: rows, losses, sums of
     * layers; its place among the ranks that share the rows of a step. */
    const char *ranks[8];
} place_case;

static char *members(char *at, const char *what, const lt_group *g) {
    at += sprintf(at, "%s ", what);
    for (int i = 0; g != NULL && i < lt_group_size(g); i++) {
        at += sprintf(at, "%d", lt_group_ranks(g)[i]);
    }
    return at + sprintf(at, g == NULL ? "-, " : ", ");
}

static lt_err place_main(lt_comm *comm, void *ctx) {
    const place_case *c = ctx;
    const int rank = lt_comm_rank(comm);
    char path[256], text[256], *at = text;
    double least = 0.0, most = 0.0;
    int n_parts = 0, part;
    lt_model_spec spec;
    lt_world w;
    lt_group *rows = NULL;
    (void)snprintf(path, sizeof path, "tests/golden/model/%s/config.json", c->model);
    LT_TRY(lt_model_spec_read(&spec, path));
    LT_TRY(lt_world_open_on(&w, comm, c->mesh));
    LT_TRY(lt_world_divide(&w, &spec, NULL));
    LT_TRY(lt_world_open_rows(&w, &rows));
    LT_TRY(lt_world_range(&w, (rank - 1) * (rank - 1), &least, &most));
    LT_TRY(lt_world_connect(&w, NULL));
    part = lt_world_part(&w, &n_parts);
    at = members(members(members(at, "rows", rows), "stages", w.stages), "kv", w.kv);
    at += sprintf(at, "part %d/%d, ", part, n_parts);
    at += sprintf(at, "tells%s%s%s, ", lt_world_tells_rows(&w) ? " rows" : "",
                  lt_world_tells_losses(&w) ? " losses" : "",
                  lt_world_tells_layers(&w) ? " layers" : "");
    (void)sprintf(at, "dp %d/%d", w.dp_rank, w.dp);
    if (strcmp(text, c->ranks[rank]) != 0 || lt_world_is_divided(&w) != c->divided ||
        least != 0.0 || most != (c->n - 2) * (c->n - 2) || w.rank != rank || w.first != 0 ||
        w.full_dp != w.shape.dp || lt_world_buffers(&w) != comm ||
        lt_world_twin(&w, rows) != rows) {
        LT_FAIL(LT_ERR_STATE, "rank %d of %s: %s, not %s; range %g to %g", rank, c->mesh, text,
                c->ranks[rank], least, most);
    }
    lt_world_close(&w, LT_OK);
    return LT_OK;
}

static void each_rank_has_its_role(void **state) {
    static const place_case cases[] = {
        {"gpt2",
         "pp=2,dp=2,tp=2",
         8,
         true,
         {"rows 0145, stages 04, kv -, part 0/4, tells layers, dp 0/2",
          "rows 0145, stages 15, kv -, part 1/4, tells, dp 0/2",
          "rows 2367, stages 26, kv -, part -1/4, tells layers, dp 1/2",
          "rows 2367, stages 37, kv -, part -1/4, tells, dp 1/2",
          "rows 0145, stages 04, kv -, part 2/4, tells rows losses layers, dp 0/2",
          "rows 0145, stages 15, kv -, part 3/4, tells, dp 0/2",
          "rows 2367, stages 26, kv -, part -1/4, tells rows losses layers, dp 1/2",
          "rows 2367, stages 37, kv -, part -1/4, tells, dp 1/2"}},
        {"gpt2",
         "cp=2,tp=2",
         4,
         true,
         {"rows 0123, stages -, kv -, part 0/2, tells rows losses layers, dp 0/1",
          "rows 0123, stages -, kv -, part 1/2, tells, dp 0/1",
          "rows 0123, stages -, kv -, part -1/2, tells losses layers, dp 0/1",
          "rows 0123, stages -, kv -, part -1/2, tells, dp 0/1"}},
        {"llama3", /* Four ranks share two key heads. */
         "tp=4",
         4,
         true,
         {"rows 0123, stages -, kv 01, part 0/4, tells rows losses layers, dp 0/1",
          "rows 0123, stages -, kv 01, part 1/4, tells, dp 0/1",
          "rows 0123, stages -, kv 23, part 2/4, tells, dp 0/1",
          "rows 0123, stages -, kv 23, part 3/4, tells, dp 0/1"}},
        {"mixtral",
         "dp=4,ep=2",
         4,
         true,
         {"rows -, stages -, kv -, part 0/2, tells rows losses layers, dp 0/4",
          "rows -, stages -, kv -, part 1/2, tells rows losses layers, dp 1/4",
          "rows -, stages -, kv -, part -1/2, tells rows losses layers, dp 2/4",
          "rows -, stages -, kv -, part -1/2, tells rows losses layers, dp 3/4"}},
        {"llama3",
         "",
         3,
         false,
         {"rows -, stages -, kv -, part 0/1, tells rows losses layers, dp 0/3",
          "rows -, stages -, kv -, part -1/1, tells rows losses layers, dp 1/3",
          "rows -, stages -, kv -, part -1/1, tells rows losses layers, dp 2/3"}}};
    const lt_comm_options o = {.deadline_s = 60, .check = true};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        place_case c = cases[i];
        if (lt_comm_run_threads(c.n, &o, place_main, &c) != LT_OK) {
            fail_msg("%s", lt_error_message());
        }
    }
}

/* A process that is not a rank is a mesh of one. */
static void a_process_without_ranks(void **state) {
    lt_world w = {.rank = 5};
    lt_group *rows = NULL;
    int n_parts = 0;
    (void)state;
    assert_int_equal(lt_world_open(&w, "", 1, 60, NULL), LT_OK);
    assert_true(w.comm == NULL && w.rank == 0);
    assert_int_equal(lt_world_divide(&w, NULL, NULL), LT_OK);
    assert_int_equal(lt_world_open_rows(&w, &rows), LT_OK);
    assert_null(rows);
    assert_int_equal(lt_world_part(&w, &n_parts), 0);
    assert_int_equal(n_parts, 1);
    assert_int_equal(lt_world_connect(&w, NULL), LT_OK);
    assert_true(lt_world_tells_rows(&w) && lt_world_tells_losses(&w) && lt_world_tells_layers(&w));
    assert_false(lt_world_is_divided(&w));
    lt_world_close(&w, LT_OK);
    assert_int_equal(lt_world_open(&w, "dp=1", 1, 60, NULL), LT_OK);
    lt_world_close(&w, LT_OK);
    assert_int_equal(lt_world_open(&w, "dp=2", 1, 60, NULL), LT_ERR_ARG);
    assert_int_equal(lt_world_open(&w, "nonsense", 1, 60, NULL), LT_ERR_ARG);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_rank_gets_all_weights),
                                       cmocka_unit_test(each_rank_has_its_role),
                                       cmocka_unit_test(a_process_without_ranks)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
