/* invariant.c: see invariant.h. */
#include "train/invariant.h"

#include <math.h>
#include <stdio.h>

#include "base/error.h"
#include "model/pass/acts.h"
#include "tensor/ops.h"

#define GRID 0x1p24

static bool has_ranks(const lt_world *w) {
    return w != NULL && w->comm != NULL;
}

static bool power_of_two(int64_t n) {
    return n > 0 && (n & (n - 1)) == 0;
}

static int log2_of(int64_t n) {
    int k = 0;
    while ((int64_t)1 << k < n) {
        k++;
    }
    return k;
}

/* The k lowest bits of i in reverse order. */
static int64_t reversed(int64_t i, int k) {
    int64_t out = 0;
    for (int b = 0; b < k; b++) {
        out |= (i >> b & 1) << (k - 1 - b);
    }
    return out;
}

/* ---- Open and close ---- */

/* The largest number of ranks, at most n, that divides a step's groups. */
static int largest_dp(int64_t groups, int n) {
    while (groups % n != 0) {
        n--;
    }
    return n;
}

static lt_err check_mesh(const lt_recipe *r, const lt_world *w) {
    const lt_mesh_shape *s = &w->shape;
    const int ranks = s->pp * s->dp * s->cp * s->tp, dp = largest_dp(r->groups, ranks);
    if (!has_ranks(w)) {
        return LT_OK;
    }
    if (s->pp > 1 || s->cp > 1 || s->tp > 1 || s->ep > 1 || r->zero > 0) {
        LT_FAIL(LT_ERR_UNSUPPORTED,
                "deterministic = mesh-invariant is for meshes that divide rows alone (dp), with "
                "mesh.zero = 0; here pp=%d, cp=%d, tp=%d, ep=%d, zero=%lld; mesh: dp=%d with "
                "mesh.zero = 0, which %s %d of the %d ranks, goes with batch.groups = %lld",
                s->pp, s->cp, s->tp, s->ep, (long long)r->zero, dp, dp < ranks ? "needs" : "has",
                dp, ranks, (long long)r->groups);
    }
    return LT_OK;
}

static lt_err check_rows(const lt_recipe *r, int64_t rows) {
    if (rows % r->groups != 0) {
        LT_FAIL(LT_ERR_ARG,
                "deterministic = mesh-invariant: a step of %lld rows cannot be divided into "
                "batch.groups = %lld; %lld rows can",
                (long long)rows, (long long)r->groups,
                (long long)((rows + r->groups - 1) / r->groups * r->groups));
    }
    return LT_OK;
}

lt_err lt_invariant_check(lt_recipe *r, const lt_world *world) {
    const char *p = r->ramp;
    int64_t size;
    uint64_t from;
    bool ok;
    if (r->deterministic == 0) {
        return LT_OK;
    }
    if (!power_of_two(r->groups) || r->groups > (int64_t)1 << LT_INVARIANT_LEVELS) {
        LT_FAIL(LT_ERR_ARG, "batch.groups = %lld is not a power of two up to %d",
                (long long)r->groups, 1 << LT_INVARIANT_LEVELS);
    }
    LT_TRY(world != NULL ? check_mesh(r, world) : LT_OK);
    LT_TRY(check_rows(r, r->batch));
    while (lt_recipe_next_ramp(&p, &size, &from, &ok)) {
        LT_TRY(check_rows(r, size));
    }
    const int64_t most = lt_recipe_largest_batch(r) / r->groups;
    if (r->micro == 0 || r->micro > most) {
        r->micro = most;
    }
    return LT_OK;
}

static void carve(lt_invariant *v, lt_arena *a) {
    for (int i = 0; i < v->n_waiting; i++) {
        v->waiting[i] = lt_arena_take(a, (size_t)v->n_elements * sizeof(float), LT_ARENA_ALIGN);
    }
}

static lt_invariant shape_of(const lt_recipe *r, int dp, const lt_param_table *t) {
    return r->deterministic == 0 ? (lt_invariant){0}
                                 : (lt_invariant){.n_groups = (int)r->groups,
                                                  .n_own = (int)r->groups / dp,
                                                  .n_waiting = log2_of(r->groups / dp),
                                                  .n_elements = t->n_elements};
}

size_t lt_invariant_bytes(const lt_recipe *r, int dp, const lt_param_table *t) {
    lt_invariant v = shape_of(r, dp, t);
    lt_arena a = {0};
    carve(&v, &a);
    return a.used_bytes;
}

/* Groups with the rank whose number differs in one bit, from the highest bit on. */
static lt_err open_pairs(lt_invariant *v) {
    const int rank = v->world->rank;
    for (int bit = v->world->dp / 2; bit > 0; bit /= 2) {
        const int low = rank & ~bit, both[2] = {low, low | bit};
        char name[LT_COMM_NAME];
        (void)snprintf(name, sizeof name, "pair of %d", bit);
        LT_TRY(lt_group_open(&v->pairs[v->n_pairs], v->world->comm, name, both, 2));
        LT_TRY(lt_world_add_twin(v->world, v->pairs[v->n_pairs++]));
    }
    return LT_OK;
}

lt_err lt_invariant_open(lt_invariant *v, const lt_recipe *r, lt_world *world, const lt_model *m) {
    lt_arena a = {0};
    *v = shape_of(r, has_ranks(world) ? world->dp : 1, &m->table);
    if (v->n_groups == 0) {
        return LT_OK;
    }
    v->world = world;
    LT_TRY(has_ranks(world) ? open_pairs(v) : LT_OK);
    carve(v, &a);
    if (a.used_bytes == 0) { /* With one group per rank, no sum waits here. */
        return LT_OK;
    }
    LT_TRY(lt_arena_place(&a, m->device, "sums of groups"));
    v->arena = a;
    carve(v, &v->arena);
    return LT_OK;
}

void lt_invariant_close(lt_invariant *v, lt_device *device) {
    if (v->n_waiting > 0) {
        lt_arena_release(&v->arena, device);
    }
    *v = (lt_invariant){0};
}

/* ---- A step ---- */

int64_t lt_invariant_row(const lt_invariant *v, int64_t i, int64_t n_rows) {
    const int64_t each = n_rows / v->n_own;
    return reversed(i % v->n_own, v->n_waiting) * each + i / v->n_own;
}

lt_err lt_invariant_add(lt_invariant *v, int s, const lt_backend *be, lt_queue *queue,
                        float *gradients) {
    const lt_tensor sum = lt_tensor_1d(gradients, LT_F32, v->n_elements);
    int level = 0;
    for (; (s >> level & 1) != 0; level++) {
        const lt_add_args add = {.y = sum,
                                 .a = lt_tensor_1d(v->waiting[level], LT_F32, v->n_elements),
                                 .b = sum,
                                 .alpha = 1.0f,
                                 .beta = 1.0f};
        LT_TRY(be->ops->add(queue, &add));
    }
    return level == v->n_waiting ? LT_OK
                                 : be->copy(queue, v->waiting[level], gradients,
                                            (size_t)v->n_elements * sizeof(float));
}

lt_err lt_invariant_sum(lt_invariant *v, lt_queue *queue, float *gradients) {
    lt_comm_work last = 0;
    for (int i = 0; i < v->n_pairs; i++) {
        LT_TRY(lt_all_reduce(lt_world_twin(v->world, v->pairs[i]), gradients, gradients,
                             v->n_elements, LT_F32, LT_REDUCE_SUM, &last));
    }
    return last > 0 ? lt_comm_order(lt_world_buffers(v->world), last, queue) : LT_OK;
}

void lt_invariant_round(lt_pass_result *r) {
    double *const sums[] = {&r->loss_sum, &r->weight_sum, &r->aux_sum, &r->z_sum};
    for (size_t i = 0; i < sizeof sums / sizeof *sums; i++) {
        *sums[i] = isfinite(*sums[i]) ? rint(*sums[i] * GRID) / GRID : *sums[i];
    }
}
