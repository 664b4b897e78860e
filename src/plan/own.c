/* own.c: see own.h. */
#include "plan/own.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "plan/plan.h"
#include "tensor/cost.h"
#include "train/adapters.h"
#include "train/recipe/fit.h"
#include "train/run.h"

/* One for all GPU kinds, chosen from op times in bench/results/train_h100.json and h200/train.json
 * (products: 4 % off in the mean of 13 rows). */
#define K_RAMP   684.0 /* Depth at which half of a product's time is not its inner loop. */
#define LAUNCH_S 3e-6
/* Causal attention with heads of 64 within steps of training: the share of the peak that it reaches
 * at some lengths of rows, between which the logarithm of the length is interpolated; below the
 * shortest it falls as T / (T + ramp), beyond the longest it stays. The means of the rows in
 * bench/results/h200/train.json, and of longer ones there. The steps are limited by power, so that
 * attention is the faster, the less of a step products take. Wider heads: by the ratio of rows of
 * 4096 tokens in bench/results/kernels_attention_h100.json. */
static const struct {
    double tokens, forward, backward;
} by_length[] = {{1024, 0.294, 0.261},  {2048, 0.369, 0.316},  {4096, 0.420, 0.332},
                 {16384, 0.496, 0.389}, {32768, 0.523, 0.480}, {65536, 0.569, 0.548}};
#define FORWARD_RAMP  674.0
#define BACKWARD_RAMP 369.0
static const struct {
    int64_t width;
    double forward, backward;
} by_width[] = {{64, 1.0, 1.0}, {128, 1.32, 1.10}, {192, 1.32, 1.0}, {256, 1.43, 0.93}};
/* Multiples of bytes: cross-entropy also computes exponentials, and a cast of a whole tensor first
 * reads it for its largest value. */
#define XENT_SHARE  1.25
#define SCALE_READS 1.5
/* Routing counts, scans and places: small kernels, one after another. */
#define ROUTE_FORWARD_S  50e-6
#define ROUTE_BACKWARD_S 25e-6

typedef struct {
    const lt_plan_gpu *gpu;
    const lt_own_rates *rates;
} machine;

static double stream_s(const void *ctx, double bytes) {
    const machine *m = ctx;
    return bytes / (m->gpu->memory_gbps * LT_PLAN_GB * m->rates->memory) + LAUNCH_S;
}

static double product_s(const machine *m, lt_cost cost, double k, lt_plan_precision precision) {
    const double *peaks = m->gpu->peak_tflops;
    const double peak = (peaks[precision] > 0 ? peaks[precision] : peaks[LT_PLAN_BF16]) * 1e12;
    const double compute = cost.flops / (peak * m->rates->gemm) * (k + K_RAMP) / k;
    return lt_plan_max(compute + LAUNCH_S, stream_s(m, cost.bytes));
}

static lt_plan_precision precision_of(const lt_tensor *a) {
    return a->dtype == LT_F32 ? LT_PLAN_FP32 : LT_PLAN_BF16;
}

static double share_of(double tokens, bool backward) {
    const size_t n = sizeof by_length / sizeof *by_length;
    const double ramp = backward ? BACKWARD_RAMP : FORWARD_RAMP, shortest = by_length[0].tokens,
                 first = backward ? by_length[0].backward : by_length[0].forward;
    size_t i = 1;
    if (tokens < shortest) {
        return first * tokens / (tokens + ramp) * (shortest + ramp) / shortest;
    }
    while (i < n && by_length[i].tokens <= tokens) {
        i++;
    }
    if (i == n) {
        return backward ? by_length[n - 1].backward : by_length[n - 1].forward;
    }
    const double low = backward ? by_length[i - 1].backward : by_length[i - 1].forward,
                 high = backward ? by_length[i].backward : by_length[i].forward,
                 way = log(tokens / by_length[i - 1].tokens) /
                       log(by_length[i].tokens / by_length[i - 1].tokens);
    return low + way * (high - low);
}

static double attention_s(const machine *m, lt_cost cost, const lt_attention_args *a,
                          bool backward) {
    const int64_t width = a->q.shape[3];
    double share = share_of((double)a->k.shape[1], backward);
    size_t i = 0;
    while (i + 1 < sizeof by_width / sizeof *by_width && by_width[i].width < width) {
        i++;
    }
    share *= (backward ? by_width[i].backward : by_width[i].forward) * (double)width /
             (double)by_width[i].width;
    return cost.flops / (m->gpu->peak_tflops[LT_PLAN_BF16] * 1e12 * m->rates->attention * share) +
           LAUNCH_S;
}

static double grouped_s(const machine *m, lt_cost cost, const lt_matmul_grouped_args *a) {
    /* In the product that gives weight gradients, K is an expert's rows. */
    const double k = a->weights ? (double)a->a.shape[0] / (double)a->y.shape[0]
                                : (double)a->a.shape[1];
    return product_s(m, cost, lt_plan_max(k, 1.0), precision_of(&a->a));
}

/* One scale for the whole tensor needs another read. */
static double reads_of(const lt_cast_scaled_args *a) {
    const lt_tensor *scale = a->scale.data != NULL ? &a->scale : &a->t_scale;
    return lt_tensor_count(scale) == 1 ? SCALE_READS : 1.0;
}

static double clock_s(const void *ctx, lt_op op, const void *args) {
    const machine *m = ctx;
    const lt_cost cost = lt_op_cost(op, args);
    const lt_matmul_args *product = args;
    const lt_matmul_act_args *act = args;
    const lt_matmul_lora_args *lora = args;
    const lt_matmul_scaled_args *scaled = args;
    switch (op) {
    case LT_OP_matmul:
        return product_s(m, cost, (double)product->a.shape[product->trans_a ? 0 : 1],
                         precision_of(&product->a));
    case LT_OP_matmul_act:
        return product_s(m, cost, (double)act->a.shape[1], precision_of(&act->a));
    case LT_OP_matmul_lora:
        return product_s(m, cost, (double)lora->base.a.shape[1], precision_of(&lora->u));
    case LT_OP_matmul_scaled:
        return product_s(m, cost, (double)scaled->a.shape[1], LT_PLAN_FP8);
    case LT_OP_matmul_grouped:
        return grouped_s(m, cost, args);
    case LT_OP_attention_fwd:
        return attention_s(m, cost, args, false);
    case LT_OP_attention_bwd:
        return attention_s(m, cost, &((const lt_attention_bwd_args *)args)->fwd, true);
    case LT_OP_xent:
        return stream_s(m, XENT_SHARE * cost.bytes);
    case LT_OP_cast_scaled:
        return stream_s(m, cost.bytes * reads_of(args));
    case LT_OP_moe_route_fwd:
        return stream_s(m, cost.bytes) + ROUTE_FORWARD_S;
    case LT_OP_moe_route_bwd:
        return stream_s(m, cost.bytes) + ROUTE_BACKWARD_S;
    default:
        return stream_s(m, cost.bytes);
    }
}

lt_err lt_own_rates_find(lt_own_rates *out, const char *gpu) {
    const lt_yaml_entry *rows;
    const char *path;
    size_t n;
    char key[2 * LT_PLAN_NAME_BYTES];
    static const char *const names[] = {"gemm", "attention", "memory"};
    double *const to[] = {&out->gemm, &out->attention, &out->memory};

    LT_TRY(lt_plan_stacks_table(&rows, &n, &path));
    snprintf(key, sizeof key, "own.%s.gemm", gpu);
    out->measured = lt_plan_yaml_get(rows, n, key) != NULL;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        snprintf(key, sizeof key, "own.%s.%s", out->measured ? gpu : "default", names[i]);
        if (lt_plan_yaml_get(rows, n, key) == NULL) {
            LT_FAIL(LT_ERR_FORMAT, "%s: '%s' is missing", path, key);
        }
        LT_TRY(lt_plan_yaml_number(rows, n, key, to[i], 0.01, 1.5, path));
    }
    return LT_OK;
}

lt_err lt_own_step(lt_dry_step *out, const lt_own_run *run, const lt_plan_gpu *gpu,
                   const lt_own_rates *rates) {
    const machine m = {gpu, rates};
    const lt_dry_rates dry = {clock_s, stream_s, &m};
    LT_ASSERT(rates->gemm > 0 && rates->attention > 0 && rates->memory > 0);
    if (run->recipe.lora_rank > 0) {
        LT_FAIL(LT_ERR_UNSUPPORTED,
                "lora.rank = %lld: the time of a step that trains adapters is not predicted; the "
                "memory is (without a kind of GPU)",
                (long long)run->recipe.lora_rank);
    }
    return lt_dry_step_run(out, &run->recipe, &run->spec, run->dtype, &run->pass, run->micros,
                           &dry);
}

lt_err lt_own_run_open(lt_own_run *out, const lt_recipe *r, bool on_device) {
    lt_mesh_shape mesh;
    *out = (lt_own_run){.recipe = *r};
    LT_TRY(lt_recipe_check(r));
    LT_TRY(lt_training_spec(&out->spec, r));
    LT_TRY(lt_training_resolve_dtype(&out->recipe, on_device));
    out->dtype = lt_recipe_dtype(&out->recipe);
    lt_recipe_resolve(&out->recipe, &out->spec);
    LT_TRY(lt_mesh_parse(&mesh, r->mesh));
    LT_TRY(lt_adapters_resolve(&out->recipe, &out->spec, on_device));
    out->pass = lt_fit_pass_options(&out->recipe, on_device);
    out->micros = lt_recipe_largest_batch(&out->recipe) / out->pass.batch;
    out->micros = out->micros > 0 ? out->micros : 1;
    return LT_OK;
}

/* ---- The fit: Gauss-Newton over the logarithms of the three efficiencies ---- */

#define N_RATES 3
#define ROUNDS  6
#define SIGMA   0.02 /* Relative spread of a measured step. */
#define DELTA   0.01
/* Centres of the rates, and how far a kind may deviate: the tensor cores of all kinds run the same
 * kernels, but memory differs. */
static const double centre[N_RATES] = {0.84, 1.0, 0.85}, width[N_RATES] = {0.03, 0.03, 0.10};

static lt_own_rates rates_at(const double x[N_RATES]) {
    return (lt_own_rates){exp(x[0]), exp(x[1]), exp(x[2]), true};
}

static lt_err error_at(double *e, const double x[N_RATES], const lt_plan_gpu *gpu,
                       const lt_own_point *p) {
    const lt_own_rates rates = rates_at(x);
    lt_dry_step step;
    LT_TRY(lt_own_step(&step, p->run, gpu, &rates));
    *e = log(step.step_s / p->step_s) / SIGMA;
    return LT_OK;
}

/* Solve a x = b: three unknowns, a symmetric and positive. */
static void solve(double a[N_RATES][N_RATES], double b[N_RATES]) {
    for (int i = 0; i < N_RATES; i++) {
        for (int r = 0; r < N_RATES; r++) {
            const double f = r == i ? 0.0 : a[r][i] / a[i][i];
            for (int c = 0; c < N_RATES; c++) {
                a[r][c] -= f * a[i][c];
            }
            b[r] -= f * b[i];
        }
    }
    for (int i = 0; i < N_RATES; i++) {
        b[i] /= a[i][i];
    }
}

lt_err lt_own_fit(lt_own_rates *out, const lt_plan_gpu *gpu, const lt_own_point *points, size_t n) {
    double x[N_RATES];
    for (int i = 0; i < N_RATES; i++) {
        x[i] = log(centre[i]);
    }
    for (int round = 0; round < ROUNDS; round++) {
        double a[N_RATES][N_RATES] = {{0}}, b[N_RATES] = {0};
        for (int i = 0; i < N_RATES; i++) {
            a[i][i] = 1.0 / (width[i] * width[i]);
            b[i] = (log(centre[i]) - x[i]) * a[i][i];
        }
        for (size_t k = 0; k < n; k++) {
            double e, slope[N_RATES];
            LT_TRY(error_at(&e, x, gpu, &points[k]));
            for (int i = 0; i < N_RATES; i++) {
                double moved[N_RATES], there;
                memcpy(moved, x, sizeof moved);
                moved[i] += DELTA;
                LT_TRY(error_at(&there, moved, gpu, &points[k]));
                slope[i] = (there - e) / DELTA;
            }
            for (int i = 0; i < N_RATES; i++) {
                b[i] -= slope[i] * e;
                for (int j = 0; j < N_RATES; j++) {
                    a[i][j] += slope[i] * slope[j];
                }
            }
        }
        solve(a, b);
        for (int i = 0; i < N_RATES; i++) {
            x[i] += b[i];
        }
    }
    *out = rates_at(x);
    return LT_OK;
}
