/* registry.c: choosing and running an implementation (see registry.h). */
#include "kernels/registry.h"

#include <stdio.h>

#include "base/error.h"

const char *lt_op_name(lt_op op) {
    static const char *const names[LT_OP_COUNT] = {
#define OP_NAME(name, args) [LT_OP_##name] = #name,
        LT_OP_MAP(OP_NAME)
#undef OP_NAME
    };
    LT_ASSERT(op >= 0 && op < LT_OP_COUNT);
    return names[op];
}

lt_op_list lt_registry_list(const lt_backend *backend, lt_op op) {
    LT_ASSERT(backend != NULL && backend->lists != NULL);
    LT_ASSERT(op >= 0 && op < LT_OP_COUNT);
    return backend->lists[op];
}

const lt_op_impl *lt_registry_choose(lt_op_list list, const void *args, const lt_device *device,
                                     char *refusals, int refusals_bytes) {
    int used = 0;
    if (refusals != NULL && refusals_bytes > 0) {
        refusals[0] = '\0';
    }
    for (int i = 0; i < list.n_impls; i++) {
        const lt_op_impl *impl = &list.impls[i];
        const char *why = impl->refuse != NULL ? impl->refuse(args, device) : NULL;
        if (why == NULL) {
            return impl;
        }
        if (refusals != NULL && used < refusals_bytes) {
            used += snprintf(refusals + used, (size_t)(refusals_bytes - used), "%s: %s\n",
                             impl->name, why);
        }
    }
    return NULL;
}

lt_err lt_registry_run(const lt_op_list *list, lt_op op, lt_queue *q, const void *args) {
    const lt_op_impl *impl = lt_registry_choose(*list, args, lt_queue_device(q), NULL, 0);
    lt_err err;

    if (impl == NULL) {
        LT_FAIL(LT_ERR_UNSUPPORTED, "%s: no implementation accepts these arguments",
                lt_op_name(op));
    }
    err = impl->run(q, args);
    return err == LT_OK ? LT_OK : lt_error_prefix(err, "%s/%s", lt_op_name(op), impl->name);
}
