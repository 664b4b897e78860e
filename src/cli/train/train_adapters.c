/* train_adapters.c: see train_adapters.h. */
#include "cli/train/train_adapters.h"

#include <stdlib.h>

#include "base/error.h"

static lt_err may_have(const lt_option *row, const char *name, const char *origin) {
    if (!lt_together_own(row)) {
        LT_FAIL(LT_ERR_ARG,
                "%s: adapter %s: %s is the same for all adapters: give it beside `adapters`, not "
                "in one of them",
                origin, name, row->name);
    }
    return LT_OK;
}

static const lt_named_kind kind = {
    .key = "adapters", .what = "adapter", .most = LT_TOGETHER_MAX, .may_have = may_have};

lt_err lt_many_adapters_open(lt_many_adapters *m, const char *path, int argc, char **argv) {
    *m = (lt_many_adapters){.common = calloc(1, sizeof *m->common)};
    if (m->common == NULL) {
        LT_FAIL(LT_ERR_OOM, "recipe");
    }
    LT_TRY(lt_named_recipes_read(m->adapters, &m->n, m->common, &kind, path, argc, argv));
    LT_TRY(m->n > 0 ? lt_named_recipes_place(m->adapters, m->n, m->common, &kind) : LT_OK);
    for (int i = 0; i < m->n; i++) {
        m->adapters[i].recipe->micro = 0; /* The option counts rows of all adapters. */
        LT_TRY(lt_named_recipe_check(&m->adapters[i], kind.what));
    }
    return m->n > 0 ? lt_together_check(m->adapters, m->n) : LT_OK;
}

void lt_many_adapters_close(lt_many_adapters *m) {
    lt_named_recipes_free(m->adapters, m->n);
    free(m->common);
    *m = (lt_many_adapters){.n = 0};
}
