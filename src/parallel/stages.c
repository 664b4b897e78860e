/* stages.c: see stages.h. */
#include "parallel/stages.h"

#include <ctype.h>
#include <float.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "model/layer.h"

/* ---- Work ---- */

double lt_layer_work(const lt_model_spec *spec, int64_t layer, int64_t seq) {
    const lt_layer_spec l = lt_model_layer(spec, layer);
    const double width = (double)spec->width, experts = l.n_experts > 0 ? (double)spec->top_k : 1.0;
    /* On average a token attends to half of the sequence, or to the window. */
    const double half = (double)seq / 2.0,
                 keys = l.window > 0 && (double)l.window < half ? (double)l.window : half;
    return width * (double)(lt_layer_qkv_cols(&l) + lt_layer_att_cols(&l) + l.n_experts) +
           keys * (double)(l.n_heads * (l.head_dim + l.value_dim)) +
           experts * width * (double)(lt_layer_up_rows(&l) + l.ffn_width);
}

double lt_head_work(const lt_model_spec *spec) {
    return (double)spec->width * (double)spec->vocab_size;
}

static double stage_work(const lt_model_spec *spec, int first, int end, const double *before) {
    return before[end] - before[first] + (end == spec->n_layers ? lt_head_work(spec) : 0.0);
}

/* before[i]: work of layers [0, i). */
static void sum_up(double *before, const lt_model_spec *spec, int64_t seq) {
    before[0] = 0.0;
    for (int i = 0; i < spec->n_layers; i++) {
        before[i + 1] = before[i] + lt_layer_work(spec, i, seq);
    }
}

void lt_stages_shares(double *out, const lt_stages *s, const lt_model_spec *spec, int64_t seq) {
    double before[LT_MAX_LAYERS + 1];
    sum_up(before, spec, seq);
    for (int i = 0; i < s->ranks * s->chunks; i++) {
        out[i] = stage_work(spec, s->first[i], s->first[i + 1], before) /
                 (before[spec->n_layers] + lt_head_work(spec));
    }
}

/* ---- By cost ---- */

/* The best way to divide layers [0, end) into a number of stages: with the smallest cost of the
 * costliest stage, then the smallest sum of squares. */
typedef struct {
    double most, squares;
    int last; /* The first layer of its last stage. */
} way;

static bool is_better(const way *a, const way *b) {
    return a->most < b->most * (1.0 - 1e-12) ||
           (a->most <= b->most * (1.0 + 1e-12) && a->squares < b->squares * (1.0 - 1e-12));
}

static lt_err place(lt_stages *s, const lt_model_spec *spec, int64_t seq) {
    const int n = s->ranks * s->chunks, n_layers = (int)spec->n_layers;
    const size_t row = (size_t)n_layers + 1;
    double before[LT_MAX_LAYERS + 1];
    way *ways = calloc((size_t)(n + 1) * row, sizeof *ways); /* (stages, layers) */
    if (ways == NULL) {
        LT_FAIL(LT_ERR_OOM, "%d stages of %d layers", n, n_layers);
    }
    sum_up(before, spec, seq);
    for (int stage = 1; stage <= n; stage++) {
        for (int end = stage; end <= n_layers; end++) {
            way *best = &ways[(size_t)stage * row + (size_t)end];
            *best = (way){DBL_MAX, DBL_MAX, 0};
            /* The first stage begins at layer 0, and each stage has at least one layer. */
            for (int first = stage == 1 ? 0 : end - 1; first >= stage - 1; first--) {
                const way *prior = &ways[(size_t)(stage - 1) * row + (size_t)first];
                const double work = stage_work(spec, first, end, before);
                const way now = {work > prior->most ? work : prior->most,
                                 prior->squares + work * work, first};
                if (is_better(&now, best)) {
                    *best = now;
                }
                if (stage == 1) {
                    break;
                }
            }
        }
    }
    s->first[n] = n_layers;
    for (int stage = n; stage > 0; stage--) {
        s->first[stage - 1] = ways[(size_t)stage * row + (size_t)s->first[stage]].last;
    }
    free(ways);
    return LT_OK;
}

/* ---- By list ---- */

static lt_err read_list(lt_stages *s, const lt_model_spec *spec, const char *list) {
    const int n = s->ranks * s->chunks;
    const char *at = list;
    int stage = 0;
    s->first[0] = 0;
    while (*at != '\0') {
        char *end;
        const long layers = strtol(at, &end, 10);
        if (!isdigit((unsigned char)*at) || layers < 1 || layers > LT_MAX_LAYERS ||
            (*end != ',' && *end != '\0') || (*end == ',' && end[1] == '\0')) {
            LT_FAIL(LT_ERR_ARG, "stages '%s': '%s' is not a number of layers, 1 or more", list, at);
        }
        if (stage == n) {
            LT_FAIL(LT_ERR_ARG, "stages '%s': more than the %d stages (%d ranks x %d chunks)", list,
                    n, s->ranks, s->chunks);
        }
        s->first[stage + 1] = s->first[stage] + (int)layers;
        if (s->first[++stage] > spec->n_layers) {
            LT_FAIL(LT_ERR_ARG, "stages '%s': more than the model's %lld layers", list,
                    (long long)spec->n_layers);
        }
        at = *end == ',' ? end + 1 : end;
    }
    if (stage != n || s->first[n] != spec->n_layers) {
        LT_FAIL(LT_ERR_ARG,
                "stages '%s': %d stages of together %d layers; the mesh has %d stages (%d ranks x "
                "%d chunks), the model %lld layers",
                list, stage, s->first[stage], n, s->ranks, s->chunks, (long long)spec->n_layers);
    }
    return LT_OK;
}

lt_err lt_stages_open(lt_stages *out, const lt_model_spec *spec, lt_schedule_kind schedule,
                      int ranks, int chunks, int64_t seq, const char *list) {
    const int least = lt_schedule_fewest_chunks(schedule);
    lt_stages s = {.schedule = schedule, .ranks = ranks, .chunks = chunks > 0 ? chunks : least};
    const lt_schedule_shape shape = {schedule, ranks, s.chunks, 1};
    LT_TRY(lt_schedule_check_shape(&shape));
    if ((int64_t)ranks * s.chunks > spec->n_layers) {
        const int64_t fits = spec->n_layers / s.chunks, layers = spec->n_layers;
        if (s.chunks == 1) {
            LT_FAIL(LT_ERR_ARG, "mesh: pp=%d stages, and the model has %lld layers; pp=%lld fits",
                    ranks, (long long)layers, (long long)fits);
        }
        LT_FAIL(LT_ERR_ARG,
                "mesh: pp=%d with %d chunks a rank (schedule %s) is %lld stages, and the model has "
                "%lld layers; pp=%lld fits%s",
                ranks, s.chunks, lt_schedule_name(schedule), (long long)ranks * s.chunks,
                (long long)layers,
                (long long)(fits > 1         ? fits
                            : ranks < layers ? ranks
                                             : layers),
                fits > 1 ? "" : " with mesh.schedule 1f1b");
    }
    LT_TRY(list[0] != '\0' ? read_list(&s, spec, list) : place(&s, spec, seq));
    *out = s;
    return LT_OK;
}

void lt_stages_layers(const lt_stages *s, int rank, int chunk, int *first, int *end) {
    const lt_schedule_shape shape = {s->schedule, s->ranks, s->chunks, 1};
    const int stage = lt_schedule_stage(&shape, rank, chunk);
    *first = s->first[stage];
    *end = s->first[stage + 1];
}
