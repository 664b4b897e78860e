/* recipe.c: the table of a run's options, their contradictions, and the curves they describe. */
#include "train/recipe.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "model/family.h"
#include "tensor/ops.h"

#define VOCAB_MULTIPLE 64 /* Rows of the embedding stay aligned, products keep whole tiles. */
#define FFN_MULTIPLE   32

#define LT_OPTION_STRUCT lt_recipe
static const lt_option rows[] = {LT_RECIPE_OPTIONS(LT_OPTION_ROW)};
const lt_option_table lt_recipe_table = LT_OPTION_TABLE("a training recipe", rows);

/* The next "SIZE@ROWS" of batch.ramp; *p moves behind it. False at the end; *ok tells whether it was well formed. */
static bool next_ramp(const char **p, int64_t *size, uint64_t *from_rows, bool *ok) {
    char *end = NULL;
    *ok = true;
    if (**p == '\0') {
        return false;
    }
    *size = strtoll(*p, &end, 10);
    if (end == *p || *end != '@' || *size < 1) {
        *ok = false;
        return false;
    }
    *p = end + 1;
    *from_rows = strtoull(*p, &end, 10);
    if (end == *p || (*end != ',' && *end != '\0')) {
        *ok = false;
        return false;
    }
    *p = *end == ',' ? end + 1 : end;
    return true;
}

int64_t lt_recipe_batch(const lt_recipe *r, uint64_t rows_seen) {
    const char *p = r->ramp;
    int64_t size, now = 0;
    uint64_t from;
    bool ok;
    while (next_ramp(&p, &size, &from, &ok)) {
        if (from <= rows_seen) {
            now = size;
        }
    }
    return now > 0 ? now : r->batch;
}

static lt_err check_ramp(const lt_recipe *r) {
    const char *p = r->ramp;
    int64_t size;
    uint64_t from, last = 0;
    bool ok, first = true;
    while (next_ramp(&p, &size, &from, &ok)) {
        if (first && from != 0) {
            LT_FAIL(LT_ERR_ARG, "batch.ramp '%s' must begin at row 0, as in 8@0,16@20000", r->ramp);
        }
        if (!first && from <= last) {
            LT_FAIL(LT_ERR_ARG, "batch.ramp '%s': row %llu does not come after row %llu", r->ramp,
                    (unsigned long long)from, (unsigned long long)last);
        }
        last = from;
        first = false;
    }
    if (!ok) {
        LT_FAIL(LT_ERR_ARG, "batch.ramp '%s' is not SIZE@ROWS,SIZE@ROWS,...", r->ramp);
    }
    return LT_OK;
}

lt_err lt_recipe_check(const lt_recipe *r) {
    LT_TRY(check_ramp(r));
    if (r->micro > r->batch) {
        LT_FAIL(LT_ERR_ARG, "batch.micro = %lld is larger than batch.size = %lld",
                (long long)r->micro, (long long)r->batch);
    }
    if (r->warmup > r->steps && r->steps > 0) {
        LT_FAIL(LT_ERR_ARG, "lr.warmup = %lld steps is longer than the run of %lld steps",
                (long long)r->warmup, (long long)r->steps);
    }
    if (r->lr_kind == LT_LR_WSD && r->warmup + r->cooldown > r->steps) {
        LT_FAIL(LT_ERR_ARG,
                "lr.warmup = %lld and lr.cooldown = %lld together are longer than steps = %lld",
                (long long)r->warmup, (long long)r->cooldown, (long long)r->steps);
    }
    if (r->valid[0] != '\0' && r->val_fraction > 0.0) {
        LT_FAIL(LT_ERR_ARG, "data.valid = %s and data.val_fraction = %g are both given: choose one",
                r->valid, r->val_fraction);
    }
    if (r->init[0] != '\0' && r->config[0] != '\0') {
        LT_FAIL(
            LT_ERR_ARG,
            "model.init = %s and model.config = %s are both given: weights bring their own shape",
            r->init, r->config);
    }
    if (r->moments != 0 && r->optim != LT_OPTIM_ADAMW && r->optim != LT_OPTIM_ADEMAMIX) {
        LT_FAIL(LT_ERR_ARG, "optim.moments = bf16 is for adamw and ademamix, optim.kind is %s",
                r->optim == LT_OPTIM_MUON ? "muon" : "lion");
    }
    if (r->fp8_wgrad && r->fp8 == LT_FP8_NONE) {
        LT_FAIL(LT_ERR_ARG, "model.fp8_wgrad = true, but model.fp8 = none: choose how to scale");
    }
    if (r->goldfish_k == 1) {
        LT_FAIL(LT_ERR_ARG,
                "data.goldfish_k = 1 drops every label: it drops one in k, so take 2 or more");
    }
    if (r->max_seq > 0 && r->max_seq < r->seq) {
        LT_FAIL(LT_ERR_ARG, "data.seq = %lld is longer than model.max_seq = %lld",
                (long long)r->seq, (long long)r->max_seq);
    }
    return LT_OK;
}

static void set_switch(bool *field, int choice) {
    if (choice != LT_SWITCH_FAMILY) {
        *field = choice == LT_SWITCH_ON;
    }
}

static int64_t round_up(int64_t n, int64_t multiple) {
    return (n + multiple - 1) / multiple * multiple;
}

/* Sizes over the family's preset. */
static void apply_sizes(lt_model_spec *s, const lt_recipe *r) {
    s->n_layers = r->layers;
    s->width = r->width;
    s->n_heads = r->heads;
    s->n_kv_heads = r->kv_heads > 0 ? r->kv_heads : r->heads;
    s->head_dim = r->head_dim > 0 ? r->head_dim : r->width / r->heads;
    s->act = r->act > 0 ? r->act - 1 : s->act;
    set_switch(&s->gated, r->gated);
    set_switch(&s->tied, r->tied);
    set_switch(&s->qk_norm, r->qk_norm);
    s->ffn_width = r->ffn > 0 ? r->ffn
                   : s->gated ? round_up(r->width * 8 / 3, FFN_MULTIPLE)
                              : 4 * r->width;
    s->rope_theta = r->rope_theta > 0.0 ? r->rope_theta : s->rope_theta;
    s->init_std = r->init_std > 0.0 ? (float)r->init_std : s->init_std;
    s->max_seq = r->max_seq > 0 ? r->max_seq : r->seq;
    s->n_experts = r->experts > 0 ? r->experts : s->n_experts;
    s->top_k = r->top_k > 0 ? r->top_k : s->top_k;
    s->moe_capacity = r->capacity >= 0.0 ? r->capacity : s->moe_capacity;
    s->moe_aux_coef = r->aux_coef >= 0.0 ? (float)r->aux_coef : s->moe_aux_coef;
    s->moe_z_coef = r->router_z_coef >= 0.0 ? (float)r->router_z_coef : s->moe_z_coef;
    if (lt_family_is_gemma(s->family)) {
        s->embed_scale = sqrtf((float)s->width);
    }
    if (s->window_every > s->n_layers) { /* No layer is global: as config.json says it. */
        s->window_every = 0;
    }
}

lt_err lt_recipe_spec(lt_model_spec *out, const lt_recipe *r, int64_t vocab_size, int64_t bos_id,
                      int64_t eos_id, int64_t pad_id) {
    if (r->config[0] != '\0') {
        LT_TRY(lt_model_spec_read(out, r->config));
    } else {
        *out = lt_family_get((lt_family)r->family)->preset;
        apply_sizes(out, r);
        out->vocab_size = r->vocab > 0 ? r->vocab : round_up(vocab_size, VOCAB_MULTIPLE);
        out->bos_id = bos_id;
        out->eos.n = 0;
        (void)lt_ends_add(&out->eos, eos_id);
        out->pad_id = pad_id;
    }
    if (out->vocab_size <= 0) {
        LT_FAIL(LT_ERR_ARG, "model.vocab = 0 and no data.tokenizer to take it from");
    }
    if (vocab_size > out->vocab_size) {
        LT_FAIL(LT_ERR_ARG, "the tokenizer has %lld entries, model.vocab only %lld",
                (long long)vocab_size, (long long)out->vocab_size);
    }
    return lt_model_spec_check(out);
}

/* Share of the way left, from 1 at t = 0 to 0 at t = 1. */
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
