/* recipe.c: the table of a run's options, checks for contradictions, and the schedules that they
 * describe. */
#include "train/recipe/recipe.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "model/family.h"
#include "tensor/ops.h"

/* It keeps rows of the embedding aligned, and tiles of products whole. */
#define VOCAB_MULTIPLE   64
#define FFN_MULTIPLE     32
#define DEFAULT_LAYERS   6
#define DEFAULT_WIDTH    256
#define DEFAULT_HEADS    4
#define DEFAULT_INIT_STD 0.02f /* The meaning of 0 in lt_model_spec. */

#define LT_OPTION_STRUCT lt_recipe
static const lt_option rows[] = {LT_RECIPE_OPTIONS(LT_OPTION_ROW)};
static const lt_option_short shorts[] = {LT_RECIPE_SHORTS};
const lt_option_table lt_recipe_table = LT_OPTION_TABLE_SHORT("a training recipe", rows, shorts);

/* Read a number of decimal digits only; strtoull would also accept " -5". */
static bool read_count(const char **p, uint64_t *out) {
    char *end = NULL;
    if (!isdigit((unsigned char)**p)) {
        return false;
    }
    errno = 0;
    *out = strtoull(*p, &end, 10);
    *p = end;
    return errno == 0;
}

bool lt_recipe_next_ramp(const char **p, int64_t *size, uint64_t *from_rows, bool *ok) {
    uint64_t n = 0;
    *ok = true;
    if (**p == '\0') {
        return false;
    }
    *ok = read_count(p, &n) && n >= 1 && n <= LT_RECIPE_BATCH_MAX && *(*p)++ == '@' &&
          read_count(p, from_rows) && (**p == '\0' || (**p == ',' && (*p)[1] != '\0'));
    *size = (int64_t)n;
    *p += *ok && **p == ',';
    return *ok;
}

int64_t lt_recipe_batch(const lt_recipe *r, uint64_t rows_seen) {
    const char *p = r->ramp;
    int64_t size, now = 0;
    uint64_t from;
    bool ok;
    while (lt_recipe_next_ramp(&p, &size, &from, &ok)) {
        if (from <= rows_seen) {
            now = size;
        }
    }
    return now > 0 ? now : r->batch;
}

static int64_t common_divisor(int64_t a, int64_t b) {
    while (b != 0) {
        const int64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

int64_t lt_recipe_common_rows(const lt_recipe *r) {
    const char *p = r->ramp;
    int64_t common = r->batch, size;
    uint64_t from;
    bool ok;
    while (lt_recipe_next_ramp(&p, &size, &from, &ok)) {
        common = common_divisor(common, size);
    }
    return r->deterministic != 0 ? common_divisor(common, r->groups) : common;
}

int64_t lt_recipe_largest_batch(const lt_recipe *r) {
    const char *p = r->ramp;
    int64_t most = r->batch, size;
    uint64_t from;
    bool ok;
    while (lt_recipe_next_ramp(&p, &size, &from, &ok)) {
        most = size > most ? size : most;
    }
    return most;
}

bool lt_recipe_is_rl(const lt_recipe *r) {
    return r->objective >= LT_RECIPE_METHODS_FROM;
}

lt_dtype lt_recipe_dtype(const lt_recipe *r) {
    LT_ASSERT(r->dtype == LT_RECIPE_DTYPE_FP32 || r->dtype == LT_RECIPE_DTYPE_BF16);
    return r->dtype == LT_RECIPE_DTYPE_FP32 ? LT_F32 : LT_BF16;
}

const lt_align_objective *lt_recipe_align(const lt_recipe *r) {
    size_t n;
    const lt_align_objective *rows_of = lt_align_objectives(&n);
    /* The number of names in the list before the methods. */
    enum { BEFORE = LT_RECIPE_OBJECTIVE_distill + 1 };
    LT_ASSERT(n == LT_RECIPE_METHODS_FROM - BEFORE);
    return r->objective < BEFORE || lt_recipe_is_rl(r) ? NULL : &rows_of[r->objective - BEFORE];
}

int64_t lt_recipe_together(const lt_recipe *r) {
    const lt_align_objective *o = lt_recipe_align(r);
    return o != NULL ? lt_align_rows(o->given) : 1;
}

int64_t lt_recipe_width(const lt_recipe *r) {
    return r->width > 0 ? r->width : DEFAULT_WIDTH;
}

int64_t lt_recipe_heads(const lt_recipe *r) {
    return r->heads > 0 ? r->heads : DEFAULT_HEADS;
}

static void set_switch(bool *field, int choice) {
    if (choice != LT_SWITCH_FAMILY) {
        *field = choice == LT_SWITCH_ON;
    }
}

static int64_t round_up(int64_t n, int64_t multiple) {
    return (n + multiple - 1) / multiple * multiple;
}

/* Apply the given sizes to the family's preset. */
static void apply_sizes(lt_model_spec *s, const lt_recipe *r) {
    s->n_layers = r->layers > 0 ? r->layers : DEFAULT_LAYERS;
    s->width = lt_recipe_width(r);
    s->n_heads = lt_recipe_heads(r);
    s->n_kv_heads = r->kv_heads > 0 ? r->kv_heads : s->n_heads;
    s->head_dim = r->head_dim > 0 ? r->head_dim : s->width / s->n_heads;
    s->act = r->act > 0 ? r->act - 1 : s->act;
    set_switch(&s->gated, r->gated);
    set_switch(&s->tied, r->tied);
    set_switch(&s->qk_norm, r->qk_norm);
    s->ffn_width = r->ffn > 0 ? r->ffn
                   : s->gated ? round_up(s->width * 8 / 3, FFN_MULTIPLE)
                              : 4 * s->width;
    s->rope_theta = r->rope_theta > 0.0 ? r->rope_theta : s->rope_theta;
    s->init_std = r->init_std > 0.0 ? (float)r->init_std : s->init_std;
    s->max_seq = r->max_seq > 0 ? r->max_seq : r->seq;
    s->n_experts = r->experts > 0 ? r->experts : s->n_experts;
    s->top_k = r->top_k > 0 ? r->top_k : s->top_k;
    if (s->embed_scale == 0.0f) {
        s->embed_scale = sqrtf((float)s->width);
    }
    if (s->window_every > s->n_layers) { /* No layer is global, in the form of config.json. */
        s->window_every = 0;
    }
}

/* The number from which a float was read: 0.02, not 0.0199999996. */
static double as_written(float x) {
    char text[32];
    for (int digits = 6; digits <= 9; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, (double)x);
        if (strtof(text, NULL) == x) {
            break;
        }
    }
    return strtod(text, NULL);
}

static void keep_or_take(double *field, float actual) {
    if ((float)*field != actual) {
        *field = as_written(actual);
    }
}

void lt_recipe_resolve(lt_recipe *r, const lt_model_spec *s) {
    r->family = (int)s->family;
    r->layers = s->n_layers;
    r->width = s->width;
    r->heads = s->n_heads;
    r->kv_heads = s->n_kv_heads;
    r->head_dim = s->head_dim;
    r->ffn = s->ffn_width;
    r->vocab = s->vocab_size;
    r->act = 1 + s->act;
    r->gated = s->gated ? LT_SWITCH_ON : LT_SWITCH_OFF;
    r->tied = s->tied ? LT_SWITCH_ON : LT_SWITCH_OFF;
    r->qk_norm = s->qk_norm ? LT_SWITCH_ON : LT_SWITCH_OFF;
    r->rope_theta = s->pos == LT_POS_ROPE ? s->rope_theta : 0.0;
    r->max_seq = s->max_seq;
    keep_or_take(&r->init_std, s->init_std > 0.0f ? s->init_std : DEFAULT_INIT_STD);
    r->experts = s->n_experts;
    r->top_k = s->n_experts > 0 ? s->top_k : 0;
    if (s->n_experts > 0) {
        r->capacity = s->moe_capacity;
        keep_or_take(&r->aux_coef, s->moe_aux_coef);
        keep_or_take(&r->router_z_coef, s->moe_z_coef);
    }
}

/* Refuse given options that contradict the model. */
static lt_err contradiction(const lt_recipe *r, const lt_model_spec *s, const char *from) {
    char given[LT_OPTION_STR_BYTES], actual[LT_OPTION_STR_BYTES];
    lt_recipe *effective = malloc(sizeof *effective);

    if (effective == NULL) {
        LT_FAIL(LT_ERR_OOM, "recipe");
    }
    *effective = *r;
    lt_recipe_resolve(effective, s);
    for (size_t i = 0; i < lt_recipe_table.n_rows; i++) {
        const lt_option *row = &lt_recipe_table.rows[i];
        lt_option_text(row, r, given, sizeof given);
        lt_option_text(row, effective, actual, sizeof actual);
        if (strcmp(given, actual) != 0 && strcmp(given, row->fallback) != 0) {
            free(effective);
            LT_FAIL(LT_ERR_ARG, "%s = %s was given, but %s has %s", row->name, given,
                    from != NULL ? from : "this model", actual);
        }
    }
    free(effective);
    return LT_OK;
}

lt_err lt_recipe_adopt(lt_model_spec *s, const lt_recipe *r, const char *from) {
    const bool of_experts = r->capacity >= 0.0 || r->aux_coef >= 0.0 || r->router_z_coef >= 0.0;
    if (s->n_experts == 0 && of_experts) {
        LT_FAIL(LT_ERR_ARG,
                "model.capacity = %g, model.aux_coef = %g, model.router_z_coef = %g (-1: not "
                "given), but %s has no experts: see model.experts",
                r->capacity, r->aux_coef, r->router_z_coef, from != NULL ? from : "this model");
    }
    s->moe_capacity = r->capacity >= 0.0 ? r->capacity : s->moe_capacity;
    s->moe_aux_coef = r->aux_coef >= 0.0 ? (float)r->aux_coef : s->moe_aux_coef;
    s->moe_z_coef = r->router_z_coef >= 0.0 ? (float)r->router_z_coef : s->moe_z_coef;
    return contradiction(r, s, from);
}

lt_err lt_recipe_spec(lt_model_spec *out, const lt_recipe *r, int64_t vocab_size, int64_t bos_id,
                      int64_t eos_id, int64_t pad_id) {
    if (r->config[0] != '\0') {
        const lt_err err = lt_model_spec_read(out, r->config);
        if (err != LT_OK) {
            return lt_error_prefix(err, "model.config");
        }
    } else {
        const bool named = r->family != LT_FAMILY_COUNT;
        *out = lt_family_get(named ? (lt_family)r->family : LT_FAMILY_APERTUS)->preset;
        apply_sizes(out, r);
        out->vocab_size = r->vocab > 0 ? r->vocab : round_up(vocab_size, VOCAB_MULTIPLE);
        out->bos_id = bos_id;
        out->eos.n = 0;
        (void)lt_ends_add(&out->eos, eos_id);
        out->pad_id = pad_id;
    }
    if (out->vocab_size <= 0) {
        LT_FAIL(LT_ERR_ARG, "the size of the vocabulary is not known: give data.tokenizer, "
                            "model.init or model.vocab");
    }
    if (vocab_size > out->vocab_size) {
        LT_FAIL(LT_ERR_ARG, "the tokenizer has %lld entries, model.vocab only %lld",
                (long long)vocab_size, (long long)out->vocab_size);
    }
    LT_TRY(lt_recipe_adopt(out, r, r->config[0] != '\0' ? r->config : NULL));
    return lt_model_spec_check(out);
}

/* Factor of the cooldown, from 1 at t = 0 to 0 at t = 1. */
static double cooldown_curve(int kind, double t) {
    switch (kind) {
    case LT_COOLDOWN_SQRT:
        return 1.0 - sqrt(t);
    case LT_COOLDOWN_LINEAR:
        return 1.0 - t;
    default:
        return 0.5 * (1.0 + cos(3.14159265358979323846 * t));
    }
}

double lt_recipe_lr(const lt_recipe *r, int64_t step) {
    const double after = (double)(step - r->warmup), length = (double)(r->steps - r->warmup);
    const double t = length > 0.0 ? fmin(after / length, 1.0) : 1.0;

    if (step <= r->warmup) {
        return r->warmup_from + (1.0 - r->warmup_from) * (double)step / (double)r->warmup;
    }
    switch (r->lr_kind) {
    case LT_LR_LINEAR:
        return r->lr_min + (1.0 - r->lr_min) * (1.0 - t);
    case LT_LR_COSINE:
        return r->lr_min + (1.0 - r->lr_min) * cooldown_curve(LT_COOLDOWN_COSINE, t);
    case LT_LR_WSD:
        if (r->cooldown > 0 && step > r->steps - r->cooldown) {
            const double c = (double)(step - (r->steps - r->cooldown)) / (double)r->cooldown;
            return r->lr_min + (1.0 - r->lr_min) * cooldown_curve(r->cooldown_kind, fmin(c, 1.0));
        }
        return 1.0;
    default:
        return 1.0;
    }
}

static double mix_share(const lt_recipe *r, int64_t step) {
    const int64_t length = r->mix_warmup > 0 ? r->mix_warmup : r->steps;
    return length > 0 ? fmin((double)step / (double)length, 1.0) : 1.0;
}

double lt_recipe_mix_alpha(const lt_recipe *r, int64_t step) {
    return r->alpha * mix_share(r, step);
}

/* The half-life, ln 0.5 / ln b - 1, grows linearly from beta1's to beta3's. */
double lt_recipe_mix_beta3(const lt_recipe *r, int64_t step) {
    const double a = mix_share(r, step);
    const double from = log(0.5) / log(r->beta1 + 1e-8) - 1.0,
                 to = log(0.5) / log(r->beta3 + 1e-8) - 1.0;
    if (a >= 1.0 || r->beta1 <= 0.0 || r->beta3 >= 1.0) {
        return r->beta3;
    }
    return pow(0.5, 1.0 / ((1.0 - a) * from + a * to + 1.0));
}

lt_step_plan lt_recipe_plan(const lt_recipe *r, int64_t step, uint64_t rows_seen) {
    const double share = lt_recipe_lr(r, step);
    return (lt_step_plan){.step = step,
                          .rows = lt_recipe_batch(r, rows_seen),
                          .lr = r->lr * share,
                          .muon_lr = r->muon_lr * share,
                          .mix_alpha = lt_recipe_mix_alpha(r, step),
                          .mix_beta3 = lt_recipe_mix_beta3(r, step)};
}
