/* init.c: draws random weights. Element i of a parameter is a pure function of (seed, the
 * parameter's name, i), so a rank that holds a part of a model draws only that part, and adding a
 * parameter changes no other.
 *
 * Matrices and embeddings are N(0, init_std); the two projections that write to the residual
 * stream are divided by sqrt(2 L) (Radford et al. 2019), so that its variance does not grow with
 * depth. Norm gains are 1 (as gain_offset + gain), biases 0, xIELU's alphas 0.8. */
#include <math.h>
#include <string.h>

#include "base/error.h"
#include "base/rng.h"
#include "base/thread.h"
#include "model/alloc.h"
#include "model/files/stored_weights.h"
#include "model/init.h"
#include "tensor/block.h"

/* Elements that a task fills: a multiple of the 4 normals of one draw, and of the blocks of all
 * types. */
#define CHUNK       ((int64_t)1 << 14)
#define XIELU_ALPHA 0.8 /* Initial value of both alphas. */
#define TWO_PI      6.283185307179586476925

typedef struct {
    lt_model *model; /* The target; NULL: blocks of `type`. */
    const lt_param_table *table;
    const lt_param *param;
    uint64_t seed, stream;
    double std;
    unsigned char *blocks;
    lt_dtype type;
} normal_task;

uint64_t lt_init_stream(const char *name) { /* FNV-1a, then mixed. */
    uint64_t h = 0xCBF29CE484222325u;
    for (; *name != '\0'; name++) {
        h = (h ^ (unsigned char)*name) * 0x100000001B3u;
    }
    return lt_rng_mix(h);
}

/* Two normally distributed numbers from two uniform words (Box-Muller). u is in (0, 1], so the
 * logarithm is finite. */
static void normal_pair(double out[2], uint32_t a, uint32_t b) {
    const double radius = sqrt(-2.0 * log(((double)a + 1.0) * 0x1p-32));
    const double angle = TWO_PI * 0x1p-32 * (double)b;
    out[0] = radius * cos(angle);
    out[1] = radius * sin(angle);
}

/* Each draw gives four. */
void lt_init_normals(float *values, uint64_t seed, uint64_t stream, double std, int64_t first,
                     int64_t count) {
    for (int64_t i = 0; i < count;) {
        const int64_t from = (first + i) % 4;
        uint32_t words[4];
        double z[4];
        lt_rng_block(words, seed, stream, (uint64_t)(first + i) / 4);
        normal_pair(z, words[0], words[1]);
        normal_pair(z + 2, words[2], words[3]);
        for (int64_t j = from; j < 4 && i < count; j++) {
            values[i++] = (float)(std * z[j]);
        }
    }
}

/* Fill a chunk of the held elements. */
static void fill_normal(void *ctx, size_t chunk) {
    const normal_task *t = ctx;
    const int64_t first = (int64_t)chunk * CHUNK, left = t->param->local_count - first;
    const int64_t count = left < CHUNK ? left : CHUNK;
    float values[CHUNK];
    for (int64_t i = 0, run; i < count; i += run) {
        const int64_t whole = lt_param_whole_index(t->table, t->param, first + i, &run);
        run = run < count - i ? run : count - i;
        lt_init_normals(values + i, t->seed, t->stream, t->std, whole, run);
    }
    if (t->model != NULL) {
        lt_model_set(t->model, t->param, first, values, LT_F32, count);
    } else {
        lt_block_encode(t->blocks + lt_dtype_row_bytes(t->type, first), t->type, values,
                        (size_t)count);
    }
}

static normal_task task_of(const lt_model *m, const lt_param *p, uint64_t seed) {
    const lt_model_spec *s = &m->spec;
    const double std = s->init_std > 0 ? (double)s->init_std : 0.02;
    const bool to_residual = p->kind == LT_PARAM_ATTN_OUT || p->kind == LT_PARAM_DOWN;
    return (normal_task){.table = &m->table,
                         .param = p,
                         .seed = seed,
                         .stream = lt_init_stream(p->name),
                         .std = to_residual ? std / sqrt(2.0 * (double)s->n_layers) : std};
}

static void draw(normal_task *task) {
    lt_parallel_for((size_t)((task->param->local_count + CHUNK - 1) / CHUNK), fill_normal, task);
}

void lt_init_blocks(void *dst, lt_dtype type, const lt_model *m, const lt_param *p, uint64_t seed) {
    normal_task task = task_of(m, p, seed);
    task.blocks = dst;
    task.type = type;
    draw(&task);
}

static void fill_constant(lt_model *m, const lt_param *p, float value) {
    float values[256];
    for (int i = 0; i < 256; i++) {
        values[i] = value;
    }
    for (int64_t i = 0; i < p->local_count; i += 256) {
        lt_model_set(m, p, i, values, LT_F32, p->local_count - i < 256 ? p->local_count - i : 256);
    }
}

void lt_init_param(lt_model *m, const lt_param *p, uint64_t seed) {
    const lt_model_spec *s = &m->spec;
    normal_task task = task_of(m, p, seed);

    task.model = m;
    switch (p->kind) {
    case LT_PARAM_NORM1:
    case LT_PARAM_NORM2:
    case LT_PARAM_POST_NORM1:
    case LT_PARAM_POST_NORM2:
    case LT_PARAM_FINAL_NORM:
    case LT_PARAM_Q_NORM:
    case LT_PARAM_K_NORM:
        fill_constant(m, p, 1.0f - s->norm_gain_offset);
        return;
    case LT_PARAM_XIELU: {
        const float scalars[2] = {(float)log(expm1(XIELU_ALPHA)),
                                  (float)log(expm1(XIELU_ALPHA - 0.5))};
        for (int64_t i = 0, run; i < p->local_count; i++) {
            lt_model_set(m, p, i, &scalars[lt_param_whole_index(&m->table, p, i, &run)], LT_F32, 1);
        }
        return;
    }
    default:
        break;
    }
    if (!p->decays) {
        return; /* A bias is already zero. */
    }
    draw(&task);
}

lt_err lt_model_create(lt_model **out, const lt_model_spec *spec, const lt_model_options *options,
                       uint64_t seed) {
    lt_model *m = NULL;
    lt_err err = LT_OK;
    LT_TRY(lt_model_begin(&m, spec, options));
    if (m->options.stored) {
        LT_TRY_DONE(lt_stored_weights_make(m, seed));
    }
    LT_TRY_DONE(lt_model_place(m));
    for (int i = 0; i < m->table.n_params; i++) {
        if (m->stored == NULL || m->stored[i].n_ranges == 0) {
            lt_init_param(m, &m->table.params[i], seed);
        }
    }
    LT_TRY_DONE(lt_model_settle(m));
    *out = m;
    m = NULL;
done:
    lt_model_close(m);
    return err;
}
