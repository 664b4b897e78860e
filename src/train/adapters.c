/* adapters.c: see adapters.h. */
#include "train/adapters.h"

#include <stdlib.h>
#include <string.h>

#include <xxhash.h>

#include "base/error.h"
#include "base/log.h"
#include "model/alloc.h"

#define PIECE_BYTES ((size_t)16 << 20)

lt_lora_options lt_recipe_lora(const lt_recipe *r) {
    return (lt_lora_options){.rank = r->lora_rank,
                             .alpha = r->lora_alpha > 0.0 ? r->lora_alpha : (double)r->lora_rank,
                             .scaling = (lt_lora_scaling)r->lora_scale,
                             .dora = r->lora_dora,
                             .targets = r->lora_targets};
}

lt_err lt_adapters_check(const lt_recipe *r, const lt_mesh_shape *mesh) {
    const struct {
        const char *what;
        bool asked;
    } refused[] = {{"model.fp8", r->fp8 != LT_FP8_NONE},
                   {"deterministic = mesh-invariant", r->deterministic != 0},
                   {"optim.kind = muon", r->optim == LT_OPTIM_MUON},
                   {"mesh.zero", r->zero > 0},
                   {"pp (mesh)", mesh != NULL && mesh->pp > 1},
                   {"cp (mesh)", mesh != NULL && mesh->cp > 1},
                   {"tp (mesh)", mesh != NULL && mesh->tp > 1},
                   {"ep (mesh)", mesh != NULL && mesh->ep > 1}};
    if (r->lora_rank == 0 && r->lora_init[0] == '\0') {
        return LT_OK;
    }
    if (r->init[0] == '\0') {
        LT_FAIL(LT_ERR_ARG, "lora.%s is given, but no model.init: adapters stand beside a model",
                r->lora_rank > 0 ? "rank" : "init");
    }
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        if (refused[i].asked) {
            LT_FAIL(LT_ERR_UNSUPPORTED, "lora.rank with %s: not built", refused[i].what);
        }
    }
    return LT_OK;
}

/* A value that was given and is not the folder's. */
static lt_err check_given(const lt_recipe *r, const lt_recipe *actual) {
    static const char *const names[] = {"lora.rank", "lora.alpha", "lora.scale", "lora.dora",
                                        "lora.targets"};
    char given[LT_OPTION_STR_BYTES], found[LT_OPTION_STR_BYTES];
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const lt_option *row = lt_option_find(&lt_recipe_table, names[i]);
        if (lt_recipe_is_default(r, row, given)) {
            continue;
        }
        lt_option_text(row, actual, found, sizeof found);
        if (strcmp(given, found) != 0) {
            LT_FAIL(LT_ERR_ARG, "%s = %s was given, but lora.init %s has %s", names[i], given,
                    r->lora_init, found);
        }
    }
    return LT_OK;
}

lt_err lt_adapters_resolve(lt_recipe *r, const lt_model_spec *spec) {
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
    if (c.dropout > 0.0) {
        LT_FAIL_DONE(
            LT_ERR_UNSUPPORTED,
            "lora.init: %s has lora_dropout %g: training with dropout is not built; with 0 "
            "there it goes on without",
            r->lora_init, c.dropout);
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
    LT_TRY_DONE(lt_options_set(&lt_recipe_table, actual, "lora.targets", c.targets, "lora.init"));
    LT_TRY_DONE(check_given(r, actual));
    *r = *actual;
done:
    free(actual);
    lt_lora_config_close(&c);
    return err;
}

lt_err lt_adapters_open(lt_lora **out, lt_model *base, const lt_recipe *r) {
    const lt_lora_options o = lt_recipe_lora(r);
    lt_lora *l = NULL;
    lt_err err = lt_lora_open(&l, base, &o, (uint64_t)r->seed);
    if (err == LT_OK && r->lora_init[0] != '\0') {
        err = lt_lora_load(l, r->lora_init);
        err = err != LT_OK ? lt_error_prefix(err, "lora.init") : err;
    }
    if (err != LT_OK) {
        lt_lora_close(l);
        return err;
    }
    lt_log_info("adapters of rank %lld beside %d linear layers, %.3fM parameters; the model's own "
                "%.2fM stay as they are",
                (long long)o.rank, l->n_modules, (double)l->params->table.n_elements * 1e-6,
                (double)lt_model_spec_params(&base->spec) * 1e-6);
    *out = l;
    return LT_OK;
}

lt_err lt_model_weights_hash(uint64_t *out, const lt_model *m) {
    const size_t bytes = lt_param_buffer_bytes(&m->table, m->weights.dtype);
    lt_err err = LT_OK;
    unsigned char *piece = NULL;

    if (m->backend->host_memory) {
        *out = XXH3_64bits(m->weights.flat, bytes);
        return LT_OK;
    }
    XXH3_state_t *state = XXH3_createState();
    piece = malloc(PIECE_BYTES);
    if (state == NULL || piece == NULL) {
        LT_FAIL_DONE(LT_ERR_OOM, "checksum of the weights");
    }
    XXH3_64bits_reset(state);
    for (size_t at = 0; at < bytes; at += PIECE_BYTES) {
        const size_t n = bytes - at < PIECE_BYTES ? bytes - at : PIECE_BYTES;
        LT_TRY_DONE(lt_model_download(m, piece, (const char *)m->weights.flat + at, n));
        XXH3_64bits_update(state, piece, n);
    }
    *out = XXH3_64bits_digest(state);
done:
    XXH3_freeState(state);
    free(piece);
    return err;
}
