/* machine.c: see machine.h. */
#include "kernels/cpu/machine.h"

#include <hwloc.h>
#include <string.h>

#include "base/error.h"

static void read_caches(lt_machine *out, hwloc_topology_t topology) {
    static const hwloc_obj_type_t types[] = {HWLOC_OBJ_L1CACHE, HWLOC_OBJ_L2CACHE,
                                             HWLOC_OBJ_L3CACHE, HWLOC_OBJ_L4CACHE};
    for (int i = 0; i < (int)(sizeof types / sizeof *types); i++) {
        const int n = hwloc_get_nbobjs_by_type(topology, types[i]);
        const hwloc_obj_t first = n > 0 ? hwloc_get_obj_by_type(topology, types[i], 0) : NULL;
        if (first != NULL && first->attr->cache.size > 0) {
            out->caches[out->n_caches].level = i + 1;
            out->caches[out->n_caches].count = n;
            out->caches[out->n_caches].bytes = first->attr->cache.size;
            out->n_caches++;
        }
    }
}

static int at_least_one(int n) {
    return n > 0 ? n : 1;
}

lt_err lt_machine_read(lt_machine *out) {
    hwloc_topology_t topology;

    memset(out, 0, sizeof *out);
    if (hwloc_topology_init(&topology) != 0) {
        LT_FAIL(LT_ERR_UNSUPPORTED, "hwloc cannot describe this machine");
    }
    if (hwloc_topology_load(topology) != 0) {
        hwloc_topology_destroy(topology);
        LT_FAIL(LT_ERR_UNSUPPORTED, "hwloc cannot read this machine's topology");
    }
    out->n_packages = at_least_one(hwloc_get_nbobjs_by_type(topology, HWLOC_OBJ_PACKAGE));
    out->n_numa = at_least_one(hwloc_get_nbobjs_by_type(topology, HWLOC_OBJ_NUMANODE));
    out->n_cores = at_least_one(hwloc_get_nbobjs_by_type(topology, HWLOC_OBJ_CORE));
    out->n_pus = at_least_one(hwloc_get_nbobjs_by_type(topology, HWLOC_OBJ_PU));
    read_caches(out, topology);
    hwloc_topology_destroy(topology);
    lt_limits_read(&out->limits);
    return LT_OK;
}
