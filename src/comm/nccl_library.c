/* nccl_library.c: see nccl_library.h. The table is filled once per process and then only read. */
#include "comm/nccl_library.h"

#include <dlfcn.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/error.h"

#define CONFIG_2_27 22700

static lt_nccl_library library;
static char load_message[512];
static pthread_once_t load_once = PTHREAD_ONCE_INIT;

static void load(void) {
    const char *named = getenv("LATEEN_NCCL"), *missing = NULL;
    void *lib = dlopen(named != NULL && named[0] != '\0' ? named : "libnccl.so.2",
                       RTLD_NOW | RTLD_LOCAL);
    if (lib == NULL) {
        (void)snprintf(load_message, sizeof load_message,
                       "NCCL cannot be opened (%s); install libnccl2, or let LATEEN_NCCL name it",
                       dlerror());
        return;
    }
    *(void **)&library.GetVersion = dlsym(lib, "ncclGetVersion");
    if (library.GetVersion == NULL || library.GetVersion(&library.version) != LT_NCCL_SUCCESS) {
        (void)snprintf(load_message, sizeof load_message, "NCCL does not tell its version");
        return;
    }
    if (library.version < LT_NCCL_OLDEST) {
        (void)snprintf(load_message, sizeof load_message,
                       "NCCL %d.%d.%d is too old; 2.18 or newer is needed", library.version / 10000,
                       library.version / 100 % 100, library.version % 100);
        return;
    }
#define LOAD(name, params)                                                                         \
    *(void **)&library.name = dlsym(lib, "nccl" #name);                                            \
    missing = library.name == NULL ? "nccl" #name : missing;
    LT_NCCL_MAP(LOAD)
    LOAD(GetErrorString, )
    LOAD(GetLastError, )
#undef LOAD
    if (missing != NULL) {
        (void)snprintf(load_message, sizeof load_message, "NCCL %d.%d.%d has no symbol %s",
                       library.version / 10000, library.version / 100 % 100, library.version % 100,
                       missing);
    }
}

lt_err lt_nccl_load(const lt_nccl_library **out) {
    (void)pthread_once(&load_once, load);
    if (load_message[0] != '\0') {
        LT_FAIL(LT_ERR_UNSUPPORTED, "%s", load_message);
    }
    *out = &library;
    return LT_OK;
}

lt_err lt_nccl_check(const lt_nccl_library *n, int result, const char *what) {
    if (result != LT_NCCL_SUCCESS && result != LT_NCCL_IN_PROGRESS) {
        const char *last = n->GetLastError(NULL);
        LT_FAIL(LT_ERR_REMOTE, "NCCL: %s: %s%s%s", what, n->GetErrorString(result),
                last != NULL && last[0] != '\0' ? ": " : "", last != NULL ? last : "");
    }
    return LT_OK;
}

lt_nccl_config lt_nccl_config_make(const lt_nccl_library *n, const char *name) {
    const bool modern = n->version >= CONFIG_2_27;
    return (lt_nccl_config){.size = modern ? sizeof(lt_nccl_config)
                                           : offsetof(lt_nccl_config, comm_name),
                            .magic = LT_NCCL_MAGIC,
                            .version = modern ? CONFIG_2_27 : LT_NCCL_OLDEST,
                            .blocking = 0,
                            .cga_cluster_size = INT_MIN,
                            .min_ctas = INT_MIN,
                            .max_ctas = INT_MIN,
                            .split_share = INT_MIN,
                            .traffic_class = INT_MIN,
                            .comm_name = name,
                            .collnet_enable = INT_MIN,
                            .cta_policy = INT_MIN,
                            .shrink_share = INT_MIN,
                            .nvls_ctas = INT_MIN};
}

int lt_nccl_type(lt_dtype dtype) {
    switch (dtype) {
    case LT_F32:
        return LT_NCCL_FLOAT32;
    case LT_BF16:
        return LT_NCCL_BFLOAT16;
    case LT_F16:
        return LT_NCCL_FLOAT16;
    case LT_F64:
        return LT_NCCL_FLOAT64;
    case LT_I64:
        return LT_NCCL_INT64;
    case LT_I32:
        return LT_NCCL_INT32;
    case LT_U8:
        return LT_NCCL_UINT8;
    default:
        return -1;
    }
}
