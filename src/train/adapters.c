/* adapters.c: see adapters.h. */
#include "train/adapters.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/log.h"
#include "model/alloc.h"
#include "model/files/source.h"
#include "train/objective.h"

lt_lora_options lt_recipe_lora(const lt_recipe *r) {
    return (lt_lora_options){.rank = r->lora_rank,
                             .alpha = r->lora_alpha > 0.0 ? r->lora_alpha : (double)r->lora_rank,
                             .scaling = (lt_lora_scaling)r->lora_scale,
                             .dora = r->lora_dora,
                             .dropout = r->lora_dropout > 0.0 ? r->lora_dropout : 0.0,
                             .targets = r->lora_targets};
}

static bool trains_scores(const lt_recipe *r) {
    return r->objective == LT_RECIPE_OBJECTIVE_reward || r->objective == LT_RECIPE_OBJECTIVE_prm;
}

lt_err lt_adapters_check(const lt_recipe *r, int zero) {
    const bool drops = r->lora_dropout > 0.0;
    const struct {
        const char *what;
        bool asked;
    } refused[] = {{"model.fp8", r->fp8 != LT_FP8_NONE},
                   {"deterministic = mesh-invariant", r->deterministic != 0},
                   {"optim.kind = muon", r->optim == LT_OPTIM_MUON},
                   {"lora.dropout and lora.dora", drops && r->lora_dora},
                   {"lora.dropout and another objective.kind than sft",
                    drops && r->objective != LT_RECIPE_OBJECTIVE_sft},
                   {"lora.dropout and guard.replay", drops && r->guard_replay > 0},
                   {"lora.dropout and diloco.sites", drops && r->sites > 1},
                   {"a score head and mesh.zero = 3", zero == 3 && trains_scores(r)}};
    if (r->lora_rank == 0 && r->lora_init[0] == '\0') {
        return LT_OK;
    }
    if (r->init[0] == '\0') {
        LT_FAIL(LT_ERR_ARG, "lora.%s is given, but no model.init: adapters need a model",
                r->lora_rank > 0 ? "rank" : "init");
    }
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        if (refused[i].asked) {
            LT_FAIL(LT_ERR_UNSUPPORTED, "lora.rank with %s: not supported", refused[i].what);
        }
    }
    return LT_OK;
}

/* Whether both name the same modules, in any order or by all-linear. */
static lt_err same_modules(bool *same, const lt_recipe *a, const lt_recipe *b,
                           const lt_model_spec *spec) {
    const lt_lora_options of_a = {.rank = 1, .alpha = 1, .targets = a->lora_targets},
                          of_b = {.rank = 1, .alpha = 1, .targets = b->lora_targets};
    lt_lora_plan plan_a = {0}, plan_b = {0};
    lt_err err = LT_OK;
    LT_TRY_DONE(lt_lora_plan_open(&plan_a, spec, &of_a, NULL, NULL));
    LT_TRY_DONE(lt_lora_plan_open(&plan_b, spec, &of_b, NULL, NULL));
    *same = true;
    for (int i = 0; i < lt_lora_n_sites(spec); i++) {
        const lt_lora_site *x = &plan_a.sites[i], *y = &plan_b.sites[i];
        *same = *same && x->n_parts == y->n_parts;
        for (int k = 0; k < x->n_parts && *same; k++) {
            *same = x->parts[k].name == y->parts[k].name;
        }
    }
done:
    lt_lora_plan_close(&plan_a);
    lt_lora_plan_close(&plan_b);
    return err;
}

/* Refuse a given value that differs from the folder's. */
static lt_err check_given(const lt_recipe *r, const lt_recipe *actual, const lt_model_spec *spec) {
    static const char *const names[] = {"lora.rank", "lora.alpha", "lora.scale", "lora.dora",
                                        "lora.targets"};
    char given[LT_OPTION_STR_BYTES], found[LT_OPTION_STR_BYTES];
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const lt_option *row = lt_option_find(&lt_recipe_table, names[i]);
        if (lt_recipe_is_default(r, row, given)) {
            continue;
        }
        lt_option_text(row, actual, found, sizeof found);
        bool same = strcmp(given, found) == 0;
        if (!same && strcmp(names[i], "lora.targets") == 0) {
            LT_TRY(same_modules(&same, r, actual, spec));
        }
        if (!same) {
            LT_FAIL(LT_ERR_ARG, "%s = %s was given, but lora.init %s has %s", names[i], given,
                    r->lora_init, found);
        }
    }
    return LT_OK;
}

/* ---- The base ---- */

static const lt_dtype base_types[] = {LT_NF4,  LT_NF4_DOUBLE, LT_Q4_0, LT_Q5_0,
                                      LT_Q8_0, LT_Q4_K,       LT_Q5_K, LT_Q6_K};

/* Type of the base in memory; F32: none. */
static lt_dtype base_type(const lt_recipe *r) {
    return r->lora_base > LT_LORA_BASE_AS_STORED
               ? base_types[r->lora_base - LT_LORA_BASE_AS_STORED - 1]
               : LT_F32;
}

bool lt_adapters_decode(const lt_recipe *r) {
    return r->lora_rank > 0 && r->lora_base >= LT_LORA_BASE_AS_STORED;
}

void lt_adapters_base(lt_model_options *o, const lt_recipe *r) {
    o->trainable = r->lora_rank == 0;
    if (lt_adapters_decode(r)) {
        o->stored = o->decoded = true;
        o->stored_as = base_type(r);
    }
}

/* Whether the base can be decoded. A GPU multiplies in bf16, a CPU in fp32. */
static bool decodes_in(const lt_recipe *r, bool on_device) {
    return (lt_recipe_dtype(r) == LT_F32) != on_device;
}

static lt_err check_base(const lt_recipe *r, bool on_device) {
    char name[LT_OPTION_STR_BYTES];
    lt_option_text(lt_option_find(&lt_recipe_table, "lora.base"), r, name, sizeof name);
    if (lt_adapters_decode(r) && !decodes_in(r, on_device)) {
        LT_FAIL(
            LT_ERR_UNSUPPORTED,
            "lora.base = %s with model.dtype = %s on a %s: not supported; with %s it is supported",
            name, on_device ? "fp32" : "bf16", on_device ? "GPU" : "CPU",
            on_device ? "bf16" : "fp32");
    }
    return LT_OK;
}

static lt_err resolve_base(lt_recipe *r, bool on_device) {
    bool blocks = false;
    if (r->lora_rank == 0) {
        return LT_OK;
    }
    if (r->lora_base == LT_LORA_BASE_AUTO && decodes_in(r, on_device)) {
        LT_TRY(lt_weight_source_has_blocks(&blocks, r->init));
        r->lora_base = blocks ? LT_LORA_BASE_AS_STORED : LT_LORA_BASE_AUTO;
    }
    return check_base(r, on_device);
}

/* Rank, alpha, ... of lora.init. */
static lt_err resolve_init(lt_recipe *r, const lt_model_spec *spec) {
    lt_err err = LT_OK;
    lt_lora_config c = {.targets = NULL};
    lt_recipe *actual = NULL;
    if (r->lora_init[0] == '\0') {
        r->lora_alpha = lt_recipe_lora(r).alpha;
        return LT_OK;
    }
    err = lt_lora_config_read(&c, r->lora_init, spec);
    if (err != LT_OK) {
        return lt_error_prefix(err, "lora.init");
    }
    actual = malloc(sizeof *actual);
    if (actual == NULL) {
        LT_FAIL_DONE(LT_ERR_OOM, "recipe");
    }
    *actual = *r;
    actual->lora_rank = c.options.rank;
    actual->lora_alpha = c.options.alpha;
    actual->lora_scale = (int)c.options.scaling;
    actual->lora_dora = c.options.dora;
    if (r->lora_dropout < 0.0 && c.dropout > 0.0) {
        actual->lora_dropout = c.dropout;
    }
    LT_TRY_DONE(lt_options_set(&lt_recipe_table, actual, "lora.targets", c.targets, "lora.init"));
    LT_TRY_DONE(check_given(r, actual, spec));
    *r = *actual;
done:
    free(actual);
    lt_lora_config_close(&c);
    return err;
}

lt_err lt_adapters_resolve(lt_recipe *r, const lt_model_spec *spec, bool on_device) {
    LT_TRY(resolve_init(r, spec));
    LT_TRY(lt_adapters_check(r, (int)r->zero)); /* This also checks the values of lora.init. */
    return resolve_base(r, on_device);
}

lt_err lt_adapters_open(lt_lora **out, lt_model *base, const lt_recipe *r,
                        const lt_lora_parts *parts) {
    const lt_lora_options o = lt_recipe_lora(r);
    lt_lora *l = NULL;
    lt_err err = lt_lora_open_parts(&l, base, &o, (uint64_t)r->seed, parts);
    if (err == LT_OK && r->lora_init[0] != '\0') {
        err = lt_lora_load(l, r->lora_init);
        err = err != LT_OK ? lt_error_prefix(err, "lora.init") : err;
    }
    if (err != LT_OK) {
        lt_lora_close(l);
        return err;
    }
    lt_log_info("adapters of rank %lld beside %d linear layers, %.3fM parameters; the model's own "
                "%.2fM stay as they are, in %.1f MiB",
                (long long)o.rank, l->n_modules, (double)l->params->table.whole_elements * 1e-6,
                (double)lt_model_spec_params(&base->spec) * 1e-6,
                (double)lt_model_bytes(base) / 1048576.0);
    *out = l;
    return LT_OK;
}

double lt_adapters_train_flops(const lt_lora *l, const lt_model_spec *base, int64_t seq) {
    return lt_model_spec_train_flops(base, seq) - 2.0 * (double)lt_model_spec_active_params(base) +
           6.0 * (double)l->params->table.whole_elements;
}
