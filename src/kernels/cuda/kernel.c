/* kernel.c: find, compile, load and launch kernels. See runtime.h.
 *
 * A lookup is one hash of three strings and a probe under a lock (about 0.1 us); launchers may keep
 * the pointer, which stays valid while the device is open. Compilation also happens under the lock,
 * so two threads that need the same kernel compile it once. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "base/error.h"
#include "kernels/cuda/compile.h"
#include "kernels/cuda/preload.h"
#include "kernels/cuda/runtime_private.h"

static lt_err module_load(lt_cuda *c, int *out, const char *file, const char *defines) {
    lt_err err = LT_OK;
    lt_cubin cubin = {0};
    lt_cuda_module *m = &c->modules[c->n_modules];
    CUresult r;

    for (int i = 0; i < c->n_modules; i++) {
        if (strcmp(c->modules[i].file, file) == 0 && strcmp(c->modules[i].defines, defines) == 0) {
            *out = i;
            return LT_OK;
        }
    }
    if (c->n_modules == LT_CUDA_MAX_MODULES) {
        LT_FAIL(LT_ERR_LIMIT, "kernel %s [%s]: %d specialisations are loaded already", file,
                defines, c->n_modules);
    }
    lt_preload_await(file, defines, c->info.arch);
    LT_TRY_DONE(lt_cubin_get(&cubin, file, defines, c->info.arch));
    r = c->cu->cuModuleLoadData(&m->handle, cubin.data);
    if (r == LT_CU_ERROR_NO_BINARY_FOR_GPU || r == LT_CU_ERROR_UNSUPPORTED_PTX_VERSION) {
        int nvrtc = 0;
        LT_TRY_DONE(lt_nvrtc_version(&nvrtc, NULL));
        LT_FAIL_DONE(
            LT_ERR_UNSUPPORTED,
            "kernel %s for %s: the driver (CUDA %d.%d) does not accept code from libnvrtc %d.%d; "
            "use a newer driver or an older libnvrtc (LATEEN_NVRTC)",
            file, c->info.arch, c->info.driver_version / 1000, c->info.driver_version % 1000 / 10,
            nvrtc / 1000, nvrtc % 1000 / 10);
    }
    LT_TRY_DONE(lt_cu_check(r, "load kernel %s [%s] for %s", file, defines, c->info.arch));
    m->file = strdup(file);
    m->defines = strdup(defines);
    if (m->file == NULL || m->defines == NULL) {
        (void)c->cu->cuModuleUnload(m->handle);
        LT_FAIL_DONE(LT_ERR_OOM, "kernel %s", file);
    }
    c->n_compiled += !cubin.from_cache;
    *out = c->n_modules++;
done:
    lt_cubin_close(&cubin);
    return err;
}

/* Fill a new slot with the kernel's handle and its costs. */
static lt_err slot_fill(lt_cuda *c, lt_cuda_slot *s, const char *file, const char *entry,
                        const char *defines) {
    lt_cuda_kernel *k = &s->kernel;
    LT_TRY(module_load(c, &s->module, file, defines));
    LT_TRY(
        lt_cu_check(c->cu->cuModuleGetFunction(&k->function, c->modules[s->module].handle, entry),
                    "kernel %s has no entry %s", file, entry));
    k->file = c->modules[s->module].file;
    k->defines = c->modules[s->module].defines;
    k->entry = strdup(entry);
    if (k->entry == NULL) {
        LT_FAIL(LT_ERR_OOM, "kernel %s %s", file, entry);
    }
    (void)c->cu->cuFuncGetAttribute(&k->n_regs, LT_CU_FUNC_N_REGS, k->function);
    (void)c->cu->cuFuncGetAttribute(&k->shared_bytes, LT_CU_FUNC_SHARED_BYTES, k->function);
    (void)c->cu->cuFuncGetAttribute(&k->local_bytes, LT_CU_FUNC_LOCAL_BYTES, k->function);
    /* Clusters of 16; only matters on sm_90. */
    (void)c->cu->cuFuncSetAttribute(k->function, LT_CU_FUNC_NON_PORTABLE_CLUSTER, 1);
    return lt_cu_check(c->cu->cuFuncSetAttribute(k->function, LT_CU_FUNC_MAX_DYNAMIC_SHARED,
                                                 (int)c->info.shared_optin_bytes - k->shared_bytes),
                       "kernel %s %s: dynamic shared memory", file, entry);
}

/* Result of a preload for a kernel that is missing. */
static const lt_cuda_kernel absent = {.file = "", .entry = "", .defines = ""};

lt_err lt_cuda_kernel_get(lt_cuda *c, const lt_cuda_kernel **out, const char *file,
                          const char *entry, const char *defines) {
    lt_err err = LT_OK;
    uint64_t h = XXH3_64bits(file, strlen(file));
    size_t at;
    LT_ASSERT(c != NULL && out != NULL);
    h = XXH3_64bits_withSeed(entry, strlen(entry), h);
    h = XXH3_64bits_withSeed(defines, strlen(defines), h);
    pthread_mutex_lock(&c->lock);
    for (at = h % LT_CUDA_TABLE_SLOTS; c->slots[at] != NULL; at = (at + 1) % LT_CUDA_TABLE_SLOTS) {
        const lt_cuda_kernel *k = &c->slots[at]->kernel;
        if (strcmp(k->entry, entry) == 0 && strcmp(k->file, file) == 0 &&
            strcmp(k->defines, defines) == 0) {
            *out = k;
            goto done;
        }
    }
    if (c->n_kernels == LT_CUDA_TABLE_SLOTS / 2) {
        LT_FAIL_DONE(LT_ERR_LIMIT, "kernel %s: %d kernels are loaded already", entry, c->n_kernels);
    }
    if (lt_is_preloading(c)) {
        bool missing = false;
        LT_TRY_DONE(lt_preload_note(&missing, file, defines, c->info.arch));
        if (missing) {
            *out = &absent;
            goto done;
        }
    }
    LT_TRY_DONE(lt_cuda_make_current(c));
    lt_cuda_slot *s = calloc(1, sizeof *s);
    if (s == NULL) {
        LT_FAIL_DONE(LT_ERR_OOM, "kernel %s", entry);
    }
    err = slot_fill(c, s, file, entry, defines);
    if (err != LT_OK) {
        free((void *)(uintptr_t)s->kernel.entry);
        free(s);
        goto done;
    }
    c->slots[at] = s;
    c->n_kernels++;
    *out = &s->kernel;
done:
    pthread_mutex_unlock(&c->lock);
    return err;
}

lt_err lt_cuda_kernel_global(lt_cuda *c, const lt_cuda_kernel *k, const char *name, void **ptr,
                             size_t *bytes) {
    /* The kernel is the slot's first member. */
    const lt_cuda_slot *s = (const lt_cuda_slot *)(const void *)k;
    CUdeviceptr p = 0;
    LT_TRY(lt_cuda_make_current(c));
    LT_TRY(lt_cu_check(c->cu->cuModuleGetGlobal(&p, bytes, c->modules[s->module].handle, name),
                       "kernel %s has no variable %s", k->file, name));
    *ptr = (void *)(uintptr_t)p;
    return LT_OK;
}

lt_err lt_cuda_occupancy(lt_cuda *c, const lt_cuda_kernel *k, int threads, size_t dynamic_shared,
                         int *blocks) {
    if (k == &absent) {
        *blocks = 1;
        return LT_OK;
    }
    LT_TRY(lt_cuda_make_current(c));
    return lt_cu_check(c->cu->cuOccupancyMaxActiveBlocksPerMultiprocessor(blocks, k->function,
                                                                          threads, dynamic_shared),
                       "occupancy of %s", k->entry);
}

lt_err lt_cuda_last_launch(lt_cuda *c, lt_cuda_launched *out) {
    const lt_cuda_kernel *k = c->last_launch;
    if (k == NULL) {
        LT_FAIL(LT_ERR_UNSUPPORTED, "GPU %d: nothing was launched yet", c->info.index);
    }
    *out = (lt_cuda_launched){.n_regs = k->n_regs, .threads = c->last_threads};
    return lt_cuda_occupancy(c, k, c->last_threads, c->last_shared, &out->blocks_per_sm);
}

int lt_cuda_n_compiled(const lt_cuda *c) {
    return c->n_compiled;
}

int lt_cuda_n_kernels(const lt_cuda *c) {
    return c->n_kernels;
}

static unsigned at_least_1(unsigned n) {
    return n > 0 ? n : 1;
}

lt_err lt_cuda_launch(lt_cuda *c, CUstream s, const lt_cuda_kernel *k, const lt_cuda_dims *d,
                      void **args) {
    CUlaunchAttribute attrs[2];
    CUlaunchConfig config = {.gridDimX = at_least_1(d->grid[0]),
                             .gridDimY = at_least_1(d->grid[1]),
                             .gridDimZ = at_least_1(d->grid[2]),
                             .blockDimX = at_least_1(d->block[0]),
                             .blockDimY = at_least_1(d->block[1]),
                             .blockDimZ = at_least_1(d->block[2]),
                             .sharedMemBytes = (unsigned)d->dynamic_shared_bytes,
                             .hStream = s,
                             .attrs = attrs,
                             .numAttrs = 0};
    CUresult r;
    if (lt_is_preloading(c)) {
        return LT_OK;
    }
    memset(attrs, 0, sizeof attrs);
    if (d->cluster[0] != 0) {
        CUlaunchAttribute *a = &attrs[config.numAttrs++];
        a->id = LT_CU_LAUNCH_CLUSTER;
        a->value.clusterDim.x = at_least_1(d->cluster[0]);
        a->value.clusterDim.y = at_least_1(d->cluster[1]);
        a->value.clusterDim.z = at_least_1(d->cluster[2]);
    }
    if (d->overlap_previous) {
        CUlaunchAttribute *a = &attrs[config.numAttrs++];
        a->id = LT_CU_LAUNCH_PROGRAMMATIC_SERIALIZATION;
        a->value.programmaticStreamSerializationAllowed = 1;
    }
    LT_TRY(lt_cuda_make_current(c));
    r = c->cu->cuLaunchKernelEx(&config, k->function, args, NULL);
    atomic_store_explicit(&c->last_launch, k, memory_order_relaxed);
    atomic_store_explicit(&c->last_threads,
                          (int)(config.blockDimX * config.blockDimY * config.blockDimZ),
                          memory_order_relaxed);
    atomic_store_explicit(&c->last_shared, d->dynamic_shared_bytes, memory_order_relaxed);
    if (r == LT_CU_SUCCESS && c->sync_each) {
        r = c->cu->cuStreamSynchronize(s);
    }
    return lt_cu_check(r,
                       "launch %s %s [%s]: grid %u x %u x %u, block %u x %u x %u, cluster %u, "
                       "shared %d + %zu bytes, %d registers",
                       k->file, k->entry, k->defines, config.gridDimX, config.gridDimY,
                       config.gridDimZ, config.blockDimX, config.blockDimY, config.blockDimZ,
                       d->cluster[0], k->shared_bytes, d->dynamic_shared_bytes, k->n_regs);
}

void lt_cuda_all_shared(lt_cuda *c, const lt_cuda_kernel *k) {
    if (k != &absent) {
        (void)c->cu->cuFuncSetAttribute(k->function, LT_CU_FUNC_CARVEOUT, 100);
    }
}

void lt_cuda_kernels_unload(lt_cuda *c) {
    for (size_t i = 0; i < LT_CUDA_TABLE_SLOTS; i++) {
        if (c->slots[i] != NULL) {
            free((void *)(uintptr_t)c->slots[i]->kernel.entry);
            free(c->slots[i]);
        }
    }
    for (int i = 0; i < c->n_modules; i++) {
        (void)c->cu->cuModuleUnload(c->modules[i].handle);
        free((void *)(uintptr_t)c->modules[i].file);
        free((void *)(uintptr_t)c->modules[i].defines);
    }
}
