/* pass_join.c: several adapters of one model in one pass (pass.h): their gradients and scratch,
 * and the rows of a batch with which each of them computes. */
#include "base/error.h"
#include "model/lora/adapted.h"
#include "model/pass/pass_impl.h"

static void joined_carve(lt_pass *p, lt_pass_joined *j, const lt_lora *l, lt_arena *a) {
    const lt_pass_options *o = &p->options;
    if (!o->gradients_elsewhere) {
        lt_pass_carve_gradients(&j->run.gradients, p->exec.spec, &l->params->table, o, a);
    }
    lt_lora_carve(&j->run, &l->options, &l->sizes, j->max_rows * o->seq, p->exec.dtype, true, a);
}

lt_err lt_pass_join(lt_pass *p, lt_lora *l, int64_t max_rows) {
    lt_pass_joined *j = &p->joined[p->n_joined];
    lt_arena a = {0};
    LT_ASSERT(p->n_joined < p->options.joins && l->base == p->model);
    LT_TRY(lt_lora_check_shared(l));
    j->max_rows = max_rows;
    joined_carve(p, j, l, &a);
    LT_TRY(lt_arena_place(&a, p->exec.device, "gradients and products of adapters"));
    j->arena = a;
    p->n_joined++;
    LT_TRY(lt_param_buffer_open(&j->run.gradients, &l->params->table, LT_F32));
    joined_carve(p, j, l, &a);
    j->run.lora = l;
    j->run.divides = true;
    if (p->n_joined > 1) {
        j[-1].run.next = &j->run;
    }
    p->exec.lora = &p->joined[0].run;
    return LT_OK;
}

size_t lt_pass_join_bytes(const lt_pass *p, int which) {
    return p->joined[which].arena.size_bytes;
}

const lt_param_buffer *lt_pass_gradients_of(const lt_pass *p, int which) {
    return &p->joined[which].run.gradients;
}

void lt_pass_bring_gradients_of(lt_pass *p, int which, int unit, float *base) {
    LT_ASSERT(p->options.gradients_elsewhere && which < p->n_joined);
    p->joined[which].run.gradients.base[unit] = base;
}

bool lt_pass_has_rows_of(const lt_pass *p, int which) {
    return p->joined[which].run.n_rows > 0;
}

void lt_pass_divide(lt_pass *p, const int64_t *rows_of, int64_t seq) {
    int64_t at = 0;
    for (int i = 0; i < p->n_joined; i++) {
        p->joined[i].run.first_row = at * seq;
        p->joined[i].run.n_rows = rows_of[i] * seq;
        at += rows_of[i];
    }
}

void lt_pass_check_division(const lt_pass *p, const lt_pass_batch *b) {
    int64_t rows = 0;
    LT_ASSERT(p->n_joined == p->options.joins);
    LT_ASSERT((b->rows_of != NULL) == (p->n_joined > 0));
    for (int i = 0; i < p->n_joined; i++) {
        LT_ASSERT(b->rows_of[i] >= 0 && b->rows_of[i] <= p->joined[i].max_rows);
        rows += b->rows_of[i];
    }
    LT_ASSERT(p->n_joined == 0 || rows == b->batch);
}
