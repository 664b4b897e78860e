/* adapters.h: models with adapters, as files, for runs on meshes (ranks.h). All numbers of the
 * adapters are random, so that each has a gradient from the first step on. */
#ifndef TESTS_PARALLEL_ADAPTERS_H
#define TESTS_PARALLEL_ADAPTERS_H

#include "unit/parallel/ranks.h"

#include "base/rng.h"
#include "model/alloc.h"

typedef struct {
    ranks_model model; /* Its options name the two folders. */
    char options[768], base[LT_PATH_BYTES], adapter[LT_PATH_BYTES];
} ranks_adapted;

static inline void ranks_fill(lt_model *m) {
    lt_rng r = {.seed = 7};
    for (int i = 0; i < m->table.n_params; i++) {
        const lt_param *p = &m->table.params[i];
        for (int64_t k = 0; k < p->count; k++) {
            const float value = 0.2f * (float)lt_rng_uniform(&r) - 0.1f;
            lt_model_set(m, p, k, &value, LT_F32, 1);
        }
    }
}

/* Write a model with these options, and adapters of rank 4 for the targets. */
static inline void ranks_adapt(ranks_adapted *a, const ranks_model *m, const char *more,
                               const lt_lora_options *o) {
    char options[512], name[64];
    lt_model_spec spec;
    lt_model *base = NULL;
    lt_lora *l = NULL;
    lt_recipe *r;
    (void)snprintf(options, sizeof options, "%s %s", m->options, more);
    r = run_recipe("shape", options);
    must(lt_training_spec(&spec, r), options);
    free(r);
    must(lt_model_create(&base, &spec, NULL, 1), options);
    (void)snprintf(name, sizeof name, "%s-base", m->name);
    run_path(a->base, name);
    must(lt_model_save(base, a->base, LT_F32, 0), a->base);
    must(lt_lora_open(&l, base, o, 1), a->base);
    ranks_fill(l->params);
    (void)snprintf(name, sizeof name, "%s-adapter", m->name);
    run_path(a->adapter, name);
    must(lt_lora_save(l, a->adapter, a->base), a->adapter);
    lt_lora_close(l);
    lt_model_close(base);
    (void)snprintf(a->options, sizeof a->options,
                   "model.vocab=0 model.layers=0 model.width=0 model.heads=0 optim.decay=0 "
                   "optim.lr=1e-3 model.init=%.240s lora.init=%.240s",
                   a->base, a->adapter);
    a->model = (ranks_model){m->name, a->options};
}

#endif
