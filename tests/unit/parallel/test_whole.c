/* All weights of a divided model on each rank, with the bits of a model that was made whole: heads
 * and columns (tp), key heads with copies, stages with a tied embedding on both ends, experts,
 * slices of ZeRO with and without copies, F32 and BF16. */
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

/* Every word of a new model's memory is overwritten: what was there before does not count. */
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

static void every_rank_has_all(void **state) {
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

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_rank_has_all)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
