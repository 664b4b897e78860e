/* compile.h: kernel text -> cubin, with NVRTC, cached on disk. Needs no GPU and no driver.
 *
 * A compilation is named by (file, defines, arch). `defines` is one string of words: "BM=128 BN=64
 * -maxrregcount=168"; a word that begins with '-' is handed to the compiler as it is, any other
 * becomes -D<word>.
 *
 * The cache is a folder ($LATEEN_CACHE_DIR, else $XDG_CACHE_HOME/lateen, else ~/.cache/lateen) of
 * files named by the hash of (texts, defines, arch, NVRTC version). A file is written under another
 * name and renamed, so processes that compile the same kernel at the same time each end with a
 * whole file; a damaged or foreign one is compiled again. A file is used only if its key and
 * checksum match. */
#ifndef LT_KERNELS_CUDA_COMPILE_H
#define LT_KERNELS_CUDA_COMPILE_H

#include <stdbool.h>
#include <stddef.h>

#include "lateen/base.h"

typedef struct {
    unsigned char *data; /* An ELF image that cuModuleLoadData takes. */
    size_t size_bytes;
    char *log;       /* The compiler's report: registers, spills. Never NULL. */
    bool from_cache; /* Nothing had to be compiled. */
    double seconds;  /* Time this call took. */
} lt_cubin;

/* arch: "sm_80", "sm_90a", ... DEVICE with the compiler's first errors, naming file, defines and
 * arch, when the text is wrong; UNSUPPORTED when libnvrtc is missing or does not know the arch.
 * Safe from several threads and processes. */
LT_MUST_USE lt_err lt_cubin_get(lt_cubin *out, const char *file, const char *defines,
                                const char *arch);
void lt_cubin_close(lt_cubin *c); /* Accepts a zeroed one. */
/* Whether the cache has it. */
bool lt_cubin_is_cached(const char *file, const char *defines, const char *arch);
/* Print, once per process, that kernels are being compiled. n: how many, 0: not known. */
void lt_cubin_tell(const char *arch, int n);

/* Version of NVRTC as 1000 * major + 10 * minor, and where it was found. UNSUPPORTED when there is
 * none: set LATEEN_NVRTC to its path. */
LT_MUST_USE lt_err lt_nvrtc_version(int *version, const char **path);

/* The resources of one kernel of a cubin, from the compiler's report. */
typedef struct {
    char entry[128];
    int n_regs, shared_bytes, stack_bytes, spill_store_bytes, spill_load_bytes;
    size_t code_bytes;
} lt_kernel_cost;

/* Read at most max costs from a cubin's log and ELF sections; *n is its number of kernels. */
LT_MUST_USE lt_err lt_cubin_costs(const lt_cubin *c, lt_kernel_cost *costs, int max, int *n);

#endif
