/* lora_dropout.c: see lora_dropout.h. The host computes it: devices refuse it (pass.c). */
#include "model/lora_dropout.h"

#include "base/rng.h"
#include "lateen/tensor.h"
#include "model/context.h"
#include "model/init.h"

#define BLOCK     256 /* Columns at once; a multiple of the four numbers of lt_rng_block. */
#define ROW_SHIFT 22  /* Rows have at most 2^22 tokens. */

typedef struct {
    uint64_t seed, stream;
    uint64_t at;        /* Number of the first column of the token's whole row. */
    int64_t column;     /* The first of these columns that this rank has. */
    uint32_t threshold; /* Numbers under it are dropped. */
    float factor;
} mask;

static char *number_at(const lt_tensor *t, int64_t row, int64_t column) {
    return (char *)t->data + (size_t)(row * t->stride[0] + column) * lt_dtype_bytes(t->dtype);
}

/* Columns [first, first + n) of a row. */
static void drop_block(const mask *m, const lt_tensor *y, const lt_tensor *x, int64_t row,
                       int64_t first, int64_t n, bool add) {
    float values[BLOCK], sums[BLOCK] = {0};
    lt_convert(values, LT_F32, number_at(x, row, first), x->dtype, (size_t)n);
    if (add) {
        lt_convert(sums, LT_F32, number_at(y, row, first), y->dtype, (size_t)n);
    }
    for (int64_t i = 0; i < n;) {
        const int64_t column = m->column + first + i;
        uint32_t words[4];
        lt_rng_block(words, m->seed, m->stream, m->at + (uint64_t)column / 4);
        for (int64_t k = column % 4; k < 4 && i < n; k++, i++) {
            sums[i] += words[k] < m->threshold ? 0.0f : m->factor * values[i];
        }
    }
    lt_convert(number_at(y, row, first), y->dtype, sums, LT_F32, (size_t)n);
}

/* The position in its whole row of the token that is number t of those that this rank has. */
static int64_t position(const lt_exec *r, int64_t t) {
    const lt_context *c = r->context;
    const int64_t piece = r->seq / 2;
    return c == NULL ? t : lt_context_piece(c->n, c->rank, (int)(t / piece)) * piece + t % piece;
}

void lt_lora_drop(const lt_exec *r, const lt_lora_site *s, int part, lt_tensor y, lt_tensor x,
                  bool add) {
    const lt_lora_run *run = r->lora;
    const double p = run->lora->options.dropout;
    const lt_param_table *t = &run->lora->params->table;
    const lt_param *a = &t->params[s->a];
    const bool divided = a->local_shape[1] < a->shape[1];
    const int64_t n = x.shape[1];
    const uint64_t blocks = (uint64_t)((divided ? a->shape[1] : n) + 3) / 4;
    const mask all = {.seed = run->lora->seed,
                      .stream = lt_rng_mix(lt_init_stream(a->name) + (uint64_t)part + 1),
                      .column = divided ? lt_param_boxes(t, a)[0].first[1] : 0,
                      .threshold = (uint32_t)(p * 0x1p32),
                      .factor = (float)(1.0 / (1.0 - p))};
    LT_ASSERT(x.shape[0] == r->batch * r->seq && y.shape[0] == x.shape[0] && y.shape[1] == n);
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < x.shape[0]; i++) {
        const uint64_t row = run->drop.first_row + (uint64_t)(i / r->seq) * run->drop.row_step;
        mask m = all;
        m.at = ((row << ROW_SHIFT) + (uint64_t)position(r, i % r->seq)) * blocks;
        for (int64_t c = 0; c < n; c += BLOCK) {
            drop_block(&m, &y, &x, i, c, n - c < BLOCK ? n - c : BLOCK, add);
        }
    }
}
