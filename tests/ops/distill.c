/* distill.c: cases of distill. K 0: the teacher's whole distribution is given; else its K words,
 * of which every third row has one less, and every fourth has a total probability above 1.
 * normalise: both distributions are divided by the sum over these words. scale: the temperature,
 * where 0 stands for 1; alpha: the weight of the label. It is its own backward op: the gradient
 * replaces the logits. */
#include <math.h>

#include "ops/case.h"

static const lt_case cases[] = {
    {"one", LT_CASE_CHECK, .R = 1, .V = 1, .grad_scale = 1},
    {"loss only", LT_CASE_CHECK | LT_CASE_GOLDEN, .R = 7, .V = 13},
    {"forward", LT_CASE_ALL, .R = 6, .V = 11, .grad_scale = 0.25f},
    {"reverse", LT_CASE_ALL, .R = 6, .V = 11, .grad_scale = 0.25f, .beta = 1},
    {"between", LT_CASE_ALL, .R = 6, .V = 11, .grad_scale = 0.25f, .beta = 0.5f},
    {"near the teacher's end", LT_CASE_ALL, .R = 5, .V = 9, .grad_scale = 1, .beta = 0.9f},
    {"temperature", LT_CASE_ALL, .R = 6, .V = 11, .grad_scale = 1, .beta = 0.5f, .scale = 2},
    {"temperature below 1, reverse", LT_CASE_ALL, .R = 5, .V = 12, .grad_scale = 1, .beta = 1,
     .scale = 0.5f},
    {"with the labels", LT_CASE_ALL, .R = 6, .V = 10, .grad_scale = 0.5f, .alpha = 0.3f,
     .scale = 2},
    {"softcap and weights", LT_CASE_ALL, .R = 7, .V = 12, .grad_scale = 1, .softcap = 4,
     .weights = true, .alpha = 0.25f, .beta = 0.5f},
    {"words and the rest", LT_CASE_ALL, .R = 9, .V = 11, .K = 4, .grad_scale = 1},
    {"words and the rest, reverse", LT_CASE_ALL, .R = 9, .V = 11, .K = 4, .grad_scale = 0.5f,
     .beta = 1},
    {"words and the rest, between", LT_CASE_ALL, .R = 9, .V = 11, .K = 4, .grad_scale = 1,
     .beta = 0.3f, .softcap = 3, .weights = true, .alpha = 0.5f},
    {"words alone", LT_CASE_ALL, .R = 9, .V = 11, .K = 4, .grad_scale = 1, .normalise = true},
    {"words alone, reverse", LT_CASE_ALL, .R = 9, .V = 11, .K = 3, .grad_scale = 1, .beta = 1,
     .normalise = true},
    {"words alone, between", LT_CASE_ALL, .R = 9, .V = 11, .K = 5, .grad_scale = 1, .beta = 0.5f,
     .normalise = true, .alpha = 0.1f},
    {"one word", LT_CASE_CHECK | LT_CASE_GRAD, .R = 6, .V = 7, .K = 1, .grad_scale = 1},
    {"all words", LT_CASE_CHECK, .R = 2, .V = 5, .K = 5, .grad_scale = 1},
    {"wide", LT_CASE_CHECK, .R = 3, .V = 4099, .grad_scale = 1, .beta = 0.5f},
    {"wide, words", LT_CASE_CHECK, .R = 4, .V = 4099, .K = 64, .grad_scale = 1},
    {"many rows, words", LT_CASE_CHECK, .R = 133, .V = 31, .K = 8, .grad_scale = 1, .beta = 1},
    {"extreme", LT_CASE_CHECK, .R = 9, .V = 20, .grad_scale = 1, .extreme = true},
    {"extreme, words", LT_CASE_CHECK, .R = 9, .V = 20, .K = 3, .grad_scale = 1, .extreme = true},
    {"gpt2 chunk", LT_CASE_BENCH, .R = 128, .V = 50304, .grad_scale = 1},
    {"gpt2 chunk, reverse", LT_CASE_BENCH, .R = 128, .V = 50304, .grad_scale = 1, .beta = 1},
    {"gpt2 chunk, between", LT_CASE_BENCH, .R = 128, .V = 50304, .grad_scale = 1, .beta = 0.5f},
    {"gpt2 chunk, 64 words", LT_CASE_BENCH, .R = 128, .V = 50304, .K = 64, .grad_scale = 1},
};

static void fill_labels(double *values, const lt_case_tensor *t, lt_rng *r) {
    for (int64_t i = 0; i < t->count; i++) {
        values[i] = i % 5 == 4 ? -1.0 : (double)lt_rng_below(r, (uint64_t)t->c->V);
    }
}

/* Number of words that a row names. */
static int64_t named(const lt_case *c, int64_t row) {
    return c->K > 1 && c->K < c->V && row % 3 == 1 ? c->K - 1 : c->K;
}

/* Rising ids, with some left out: word k is one of V / K. */
static void fill_words(double *values, const lt_case_tensor *t, lt_rng *r) {
    const int64_t K = t->c->K, each = t->c->V / K;
    for (int64_t i = 0; i < t->count; i++) {
        const int64_t k = i % K;
        values[i] = k < named(t->c, i / K)
                        ? (double)(k * each) + (double)lt_rng_below(r, (uint64_t)each)
                        : -1.0;
    }
}

/* Unequal probabilities, which leave about a third. */
static void fill_logp(double *values, const lt_case_tensor *t, lt_rng *r) {
    const int64_t K = t->c->K;
    for (int64_t i = 0; i < t->count; i++) {
        const double share = 0.4 + 0.5 * (double)lt_rng_below(r, 1024) / 1024.0;
        values[i] = log(i / K % 4 == 3 ? 1.1 : share) - log((double)named(t->c, i / K));
    }
}

/* The rows take turns: deviation 60; all equal; around 1e4. */
static void fill_extreme(double *values, const lt_case_tensor *t, lt_rng *r) {
    for (int64_t i = 0; i < t->count; i++) {
        const int64_t row = i / t->c->V;
        const double x = lt_rng_normal(r);
        values[i] = row % 3 == 0 ? 60.0 * x : row % 3 == 1 ? -7.0 : 1e4 + x;
    }
}

static lt_case_tensor *logits(lt_setup *s, const char *name, lt_tensor *slot, bool inout) {
    const lt_case *c = s->c;
    lt_case_tensor *t = inout ? lt_setup_inout(s, name, slot, s->act, LT_SHAPE(c->R, c->V))
                              : lt_setup_in(s, name, slot, s->act, LT_SHAPE(c->R, c->V));
    t->fill = c->extreme ? fill_extreme : lt_fill_normal;
    t->fill_b = 2.0;
    return t;
}

static void build_words(lt_setup *s, lt_distill_args *a, bool grad) {
    const lt_case *c = s->c;
    lt_case_tensor *t = lt_setup_in(s, "ids", &a->ids, LT_I32, LT_SHAPE(c->R, c->K));
    t->fill = fill_words;
    t->source = grad ? "ids" : NULL;
    t = lt_setup_in(s, "logp", &a->logp, LT_F32, LT_SHAPE(c->R, c->K));
    t->fill = fill_logp;
    t->source = grad ? "logp" : NULL;
}

static void build(lt_setup *s) {
    const lt_case *c = s->c;
    lt_distill_args *a = (lt_distill_args *)s->args;
    const bool grad = c->grad_scale != 0.0f && !s->as_forward;
    lt_case_tensor *t;

    a->grad_scale = grad ? c->grad_scale : 0.0f;
    a->softcap = a->teacher_softcap = c->softcap;
    a->temperature = c->scale > 0.0f ? c->scale : 1.0f;
    a->beta = c->beta;
    a->label_share = c->alpha;
    a->rest = !c->normalise;
    t = logits(s, "logits", &a->logits, grad);
    t->grad_of = grad ? "logits" : NULL;
    t->source = grad ? "logits" : NULL;
    t = lt_setup_in(s, "labels", &a->labels, LT_I32, LT_SHAPE(c->R));
    t->fill = fill_labels;
    t->source = grad ? "labels" : NULL;
    if (c->K > 0) {
        build_words(s, a, grad);
    } else {
        t = logits(s, "teacher", &a->teacher, false);
        t->source = grad ? "teacher" : NULL;
    }
    if (c->weights) {
        t = lt_setup_in(s, "weights", &a->weights, LT_F32, LT_SHAPE(c->R));
        t->source = grad ? "weights" : NULL;
    }
    lt_setup_out(s, "loss", &a->loss, LT_F32, LT_SHAPE(c->R));
}

/* grad_scale * sum over rows of weight * loss. */
static double objective(const lt_setup *f, const lt_setup *b) {
    const double *loss = lt_setup_find(f, "loss")->slot->data;
    const double *weights = f->c->weights ? lt_setup_find(f, "weights")->slot->data : NULL;
    double sum = 0.0;
    for (int64_t r = 0; r < f->c->R; r++) {
        sum += (weights != NULL ? weights[r] : 1.0) * loss[r];
    }
    (void)b;
    return sum * (double)f->c->grad_scale;
}

const lt_op_cases lt_cases_distill = {
    .op = LT_OP_distill,
    .forward = LT_OP_distill,
    LT_CASES(cases),
    .build = build,
    .objective = objective,
    .f32 = {0x1p-16, 0x1p-18},
    .bf16 = {0x1p-8, 0x1p-16},
    .why = "differences of log-probabilities in F32, which cancel where the two distributions are "
           "alike; BF16 rounds the gradient once"};
