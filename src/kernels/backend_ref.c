/* backend_ref.c: the reference as a separate backend, with which models and tests are compared. */
#include "kernels/host.h"
#include "kernels/ref/ref.h"

#define LT_REGISTRY_LISTS lt_ref_lists
LT_OP_MAP(LT_HOST_TRAMPOLINE)
static const lt_ops ops = {LT_OP_MAP(LT_REGISTRY_FIELD)};

/* The reference reads b unpacked. */
static size_t pack_bytes(const lt_device *d, const lt_tensor *b, bool trans_b) {
    (void)d;
    (void)b;
    (void)trans_b;
    return 0;
}

const lt_backend *lt_backend_ref(void) {
    static const lt_backend backend = {.name = "ref",
                                       .ops = &ops,
                                       .lists = lt_ref_lists,
                                       .matmul_pack_bytes = pack_bytes,
                                       LT_HOST_BACKEND_FIELDS};
    return &backend;
}
