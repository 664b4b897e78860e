/* compile.c: NVRTC by dlopen and the disk cache. See compile.h.
 *
 * Cache file, little endian: "LTCUBIN2" | u64 checksum of what follows | u32 key bytes | u32 log
 * bytes | u64 cubin bytes |
 *                              key | log\0 | cubin
 * The key is the readable text "file defines arch nvrtc source-hash": a hash collision is noticed,
 * and `strings` tells what a file is. */
#include "kernels/cuda/compile.h"

#include <dlfcn.h>
#include <elf.h>
#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "kernels/cuda/source.h"

#define MAGIC             "LTCUBIN2"
#define CACHE_BYTES_MAX   ((size_t)64 << 20)
#define KEY_BYTES         1536
#define MAX_OPTIONS       64
#define LOG_EXCERPT_BYTES 600 /* At most this many bytes of the compiler's errors are shown. */

typedef struct nvrtc_program *nvrtc_program;

/* The part of NVRTC's C interface that is used here. Results are an enum, of which 0 is success. */
#define NVRTC_MAP(X)                                                                               \
    X(version, "nvrtcVersion", (int *, int *))                                                     \
    X(create, "nvrtcCreateProgram",                                                                \
      (nvrtc_program *, const char *, const char *, int, const char *const *,                      \
       const char *const *))                                                                       \
    X(destroy, "nvrtcDestroyProgram", (nvrtc_program *))                                           \
    X(compile, "nvrtcCompileProgram", (nvrtc_program, int, const char *const *))                   \
    X(cubin_size, "nvrtcGetCUBINSize", (nvrtc_program, size_t *))                                  \
    X(cubin, "nvrtcGetCUBIN", (nvrtc_program, char *))                                             \
    X(log_size, "nvrtcGetProgramLogSize", (nvrtc_program, size_t *))                               \
    X(log, "nvrtcGetProgramLog", (nvrtc_program, char *))

static struct {
#define NVRTC_FIELD(field, symbol, params) int(*field) params;
    NVRTC_MAP(NVRTC_FIELD)
#undef NVRTC_FIELD
    const char *path; /* NULL: not found. */
    int number;
    char why[256]; /* Why LATEEN_NVRTC cannot be used. */
} nvrtc;
static pthread_once_t nvrtc_once = PTHREAD_ONCE_INIT;

static const char *own_nvrtc(void) {
    const char *wish = getenv("LATEEN_NVRTC");
    return wish != NULL && wish[0] != '\0' ? wish : NULL;
}

static void nvrtc_load(void) {
    static const char *const places[] = {"libnvrtc.so",
                                         "libnvrtc.so.13",
                                         "libnvrtc.so.12",
                                         "/usr/local/cuda/lib64/libnvrtc.so",
                                         "/usr/local/cuda/lib64/libnvrtc.so.13",
                                         "/usr/local/cuda/lib64/libnvrtc.so.12"};
    const char *const wish = own_nvrtc();
    const char *path = wish;
    void *lib = wish != NULL ? dlopen(wish, RTLD_NOW | RTLD_LOCAL) : NULL;
    int major = 0, minor = 0;
    for (size_t i = 0; wish == NULL && lib == NULL && i < sizeof places / sizeof *places; i++) {
        path = places[i];
        lib = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    }
    if (lib == NULL) {
        (void)snprintf(nvrtc.why, sizeof nvrtc.why, "%s", wish != NULL ? dlerror() : "");
        return;
    }
#define LOAD(field, symbol, params)                                                                \
    *(void **)&nvrtc.field = dlsym(lib, symbol);                                                   \
    if (nvrtc.field == NULL) {                                                                     \
        (void)snprintf(nvrtc.why, sizeof nvrtc.why, "%s has no %s", path, symbol);                 \
        return;                                                                                    \
    }
    NVRTC_MAP(LOAD)
#undef LOAD
    if (nvrtc.version(&major, &minor) != 0) {
        return;
    }
    nvrtc.number = 1000 * major + 10 * minor;
    nvrtc.path = path;
}

lt_err lt_nvrtc_version(int *version, const char **path) {
    pthread_once(&nvrtc_once, nvrtc_load);
    if (nvrtc.path == NULL && own_nvrtc() != NULL) {
        LT_FAIL(LT_ERR_UNSUPPORTED,
                "LATEEN_NVRTC is not a libnvrtc (the CUDA run-time compiler): %s", nvrtc.why);
    }
    if (nvrtc.path == NULL) {
        LT_FAIL(LT_ERR_UNSUPPORTED,
                "no usable libnvrtc (the CUDA run-time compiler): install it or set "
                "LATEEN_NVRTC to its path");
    }
    *version = nvrtc.number;
    if (path != NULL) {
        *path = nvrtc.path;
    }
    return LT_OK;
}

typedef struct {
    uint64_t checksum;
    uint32_t key_bytes, log_bytes;
    uint64_t cubin_bytes;
} cache_head;

static uint64_t cache_checksum(const cache_head *h, const unsigned char *body, size_t bytes) {
    const uint64_t seed = XXH3_64bits(&h->key_bytes, sizeof *h - offsetof(cache_head, key_bytes));
    return XXH3_64bits_withSeed(body, bytes, seed);
}

/* True, with *out filled, if path holds a complete, undamaged cubin of this key. */
static bool cache_read(lt_cubin *out, const char *path, const char *key) {
    const size_t prefix = sizeof MAGIC - 1 + sizeof(cache_head);
    cache_head h;
    char *file = NULL;
    size_t size;
    const unsigned char *body;
    bool good = false;
    if (!lt_file_exists(path) || lt_file_read(&file, &size, path, CACHE_BYTES_MAX) != LT_OK) {
        return false;
    }
    if (size < prefix || memcmp(file, MAGIC, sizeof MAGIC - 1) != 0) {
        goto done;
    }
    memcpy(&h, file + sizeof MAGIC - 1, sizeof h);
    body = (const unsigned char *)file + prefix;
    if (h.cubin_bytes > size ||
        h.key_bytes + (size_t)h.log_bytes + 1 + h.cubin_bytes != size - prefix ||
        h.key_bytes != strlen(key) || memcmp(body, key, h.key_bytes) != 0 ||
        h.checksum != cache_checksum(&h, body, size - prefix)) {
        goto done;
    }
    out->data = malloc(h.cubin_bytes);
    out->log = malloc((size_t)h.log_bytes + 1);
    if (out->data == NULL || out->log == NULL) {
        lt_cubin_close(out);
        goto done;
    }
    memcpy(out->log, body + h.key_bytes, (size_t)h.log_bytes + 1);
    memcpy(out->data, body + h.key_bytes + h.log_bytes + 1, h.cubin_bytes);
    out->log[h.log_bytes] = '\0';
    out->size_bytes = h.cubin_bytes;
    out->from_cache = true;
    good = true;
done:
    free(file);
    return good;
}

/* Best effort: a cache that cannot be written costs time, not results. */
static void cache_write(const lt_cubin *c, const char *path, const char *key) {
    cache_head h = {0, (uint32_t)strlen(key), (uint32_t)strlen(c->log), c->size_bytes};
    const size_t body_bytes = h.key_bytes + (size_t)h.log_bytes + 1 + c->size_bytes;
    const size_t bytes = sizeof MAGIC - 1 + sizeof h + body_bytes;
    unsigned char *const image = malloc(bytes);
    unsigned char *const body = image + sizeof MAGIC - 1 + sizeof h;
    char aside[LT_PATH_BYTES + 16];
    int fd;
    if (image == NULL) {
        return;
    }
    memcpy(body, key, h.key_bytes);
    memcpy(body + h.key_bytes, c->log, (size_t)h.log_bytes + 1);
    memcpy(body + h.key_bytes + h.log_bytes + 1, c->data, c->size_bytes);
    h.checksum = cache_checksum(&h, body, body_bytes);
    memcpy(image, MAGIC, sizeof MAGIC - 1);
    memcpy(image + sizeof MAGIC - 1, &h, sizeof h);
    /* The name is unique: several processes may write the same key. */
    snprintf(aside, sizeof aside, "%s.XXXXXX", path);
    fd = mkstemp(aside);
    if (fd >= 0) {
        FILE *f = fdopen(fd, "wb");
        const bool whole = f != NULL && fwrite(image, 1, bytes, f) == bytes;
        const bool closed = f != NULL ? fclose(f) == 0 : (close(fd), false);
        if (!whole || !closed || rename(aside, path) != 0) {
            (void)unlink(aside);
            fd = -1;
        }
    }
    if (fd < 0) {
        lt_log_debug("kernel cache: cannot write %s: %s", path, strerror(errno));
    }
    free(image);
}

/* Split "A=1 B=2 -maxrregcount=128" into options after *n; the strings are in buf. */
static lt_err options_split(char *buf, size_t buf_bytes, const char *defines, const char **options,
                            int *n) {
    size_t used = 0;
    for (const char *p = defines; *p != '\0';) {
        const size_t len = strcspn(p, " ");
        if (len > 0) {
            if (*n == MAX_OPTIONS || used + len + 3 > buf_bytes) {
                LT_FAIL(LT_ERR_LIMIT, "kernel defines too long: %s", defines);
            }
            options[(*n)++] = buf + used;
            used += (size_t)snprintf(buf + used, buf_bytes - used, "%s%.*s", *p == '-' ? "" : "-D",
                                     (int)len, p) +
                    1;
        }
        p += len;
        p += strspn(p, " ");
    }
    return LT_OK;
}

static lt_err program_compile(lt_cubin *out, const lt_source *s, const char *defines,
                              const char *arch) {
    lt_err err = LT_OK;
    nvrtc_program program = NULL;
    char arch_option[64], words[2048];
    const char *options[MAX_OPTIONS + 8] = {arch_option, "--std=c++17", "-default-device",
                                            "--ptxas-options=-v", "--extra-device-vectorization"};
    int n = 5, r;
    size_t log_bytes = 0;

    snprintf(arch_option, sizeof arch_option, "--gpu-architecture=%s", arch);
    LT_TRY_DONE(options_split(words, sizeof words, defines, options, &n));
    r = nvrtc.create(&program, s->text[0], s->name[0], s->n_parts - 1, &s->text[1], &s->name[1]);
    if (r != 0) {
        LT_FAIL_DONE(LT_ERR_DEVICE, "kernel %s [%s] %s: NVRTC refuses the program (code %d)",
                     s->name[0], defines, arch, r);
    }
    r = nvrtc.compile(program, n, options);
    if (nvrtc.log_size(program, &log_bytes) != 0 || (out->log = calloc(log_bytes + 1, 1)) == NULL ||
        nvrtc.log(program, out->log) != 0) {
        LT_FAIL_DONE(LT_ERR_OOM, "kernel %s: no log", s->name[0]);
    }
    if (r != 0) {
        const char *first = strstr(out->log, "error");
        while (first != NULL && first > out->log && first[-1] != '\n') {
            first--;
        }
        LT_FAIL_DONE(r == 5 ? LT_ERR_UNSUPPORTED : LT_ERR_DEVICE,
                     "kernel %s [%s] %s does not compile: %.*s", s->name[0], defines, arch,
                     LOG_EXCERPT_BYTES, first != NULL ? first : out->log);
    }
    if (nvrtc.cubin_size(program, &out->size_bytes) != 0 ||
        (out->data = malloc(out->size_bytes)) == NULL ||
        nvrtc.cubin(program, (char *)out->data) != 0) {
        LT_FAIL_DONE(LT_ERR_OOM, "kernel %s [%s] %s: no cubin", s->name[0], defines, arch);
    }
done:
    if (program != NULL) {
        nvrtc.destroy(&program);
    }
    return err;
}

/* A compilation: its texts, its name, and its path in the cache; path "": none. */
typedef struct {
    lt_source source;
    char key[KEY_BYTES], path[LT_PATH_BYTES];
} compilation;

static lt_err compilation_open(compilation *k, const char *file, const char *defines,
                               const char *arch) {
    char dir[LT_PATH_BYTES];
    int version = 0;
    XXH128_hash_t name;

    *k = (compilation){0};
    LT_TRY(lt_nvrtc_version(&version, NULL));
    LT_TRY(lt_source_open(&k->source, file));
    if (snprintf(k->key, sizeof k->key, "%s [%s] %s nvrtc %d source %016" PRIx64, file, defines,
                 arch, version, k->source.hash) >= (int)sizeof k->key) {
        LT_FAIL(LT_ERR_LIMIT, "kernel %s: defines too long", file);
    }
    name = XXH3_128bits(k->key, strlen(k->key));
    if (lt_cache_dir(dir) != LT_OK ||
        snprintf(k->path, sizeof k->path, "%s/%016" PRIx64 "%016" PRIx64 ".cubin", dir, name.high64,
                 name.low64) >= (int)sizeof k->path) {
        k->path[0] = '\0';
    }
    return LT_OK;
}

void lt_cubin_tell(const char *arch, int n) {
    static atomic_bool told;
    char dir[LT_PATH_BYTES], number[16] = "";
    const bool kept = lt_cache_dir(dir) == LT_OK;
    if (n > 0) {
        (void)snprintf(number, sizeof number, "%d ", n);
    }
    if (!atomic_exchange(&told, true)) {
        lt_log_info("%skernels for %s are compiled%s%s: a first start takes a while", number, arch,
                    kept ? " and kept in " : "; they cannot be kept in ",
                    kept ? dir : "the cache folder");
    }
}

bool lt_cubin_is_cached(const char *file, const char *defines, const char *arch) {
    compilation k;
    lt_cubin c = {0};
    const bool cached = compilation_open(&k, file, defines, arch) == LT_OK && k.path[0] != '\0' &&
                        cache_read(&c, k.path, k.key);
    lt_source_close(&k.source);
    lt_cubin_close(&c);
    return cached;
}

lt_err lt_cubin_get(lt_cubin *out, const char *file, const char *defines, const char *arch) {
    lt_err err = LT_OK;
    compilation k;
    lt_cubin c = {0};
    const double start_s = lt_clock_s();

    LT_ASSERT(out != NULL && file != NULL && defines != NULL && arch != NULL);
    LT_TRY_DONE(compilation_open(&k, file, defines, arch));
    if (k.path[0] == '\0' || !cache_read(&c, k.path, k.key)) {
        lt_cubin_tell(arch, 0);
        LT_TRY_DONE(program_compile(&c, &k.source, defines, arch));
        if (k.path[0] != '\0') {
            cache_write(&c, k.path, k.key);
        }
        lt_log_debug("compiled %s [%s] %s in %.2f s", file, defines, arch, lt_clock_s() - start_s);
    }
    c.seconds = lt_clock_s() - start_s;
    *out = c;
    c = (lt_cubin){0};
done:
    lt_source_close(&k.source);
    lt_cubin_close(&c);
    return err;
}

void lt_cubin_close(lt_cubin *c) {
    free(c->data);
    free(c->log);
    *c = (lt_cubin){0};
}

/* Bytes of machine code of one kernel: the size of ELF section ".text.<entry>". */
static size_t elf_code_bytes(const lt_cubin *c, const char *entry) {
    Elf64_Ehdr h;
    Elf64_Shdr names, s;
    if (c->size_bytes < sizeof h) {
        return 0;
    }
    memcpy(&h, c->data, sizeof h);
    if (memcmp(h.e_ident, ELFMAG, SELFMAG) != 0 || h.e_shstrndx >= h.e_shnum ||
        h.e_shoff + (uint64_t)h.e_shnum * sizeof s > c->size_bytes) {
        return 0;
    }
    memcpy(&names, c->data + h.e_shoff + h.e_shstrndx * sizeof s, sizeof names);
    for (unsigned i = 0; i < h.e_shnum; i++) {
        const char *name;
        memcpy(&s, c->data + h.e_shoff + i * sizeof s, sizeof s);
        name = (const char *)c->data + names.sh_offset + s.sh_name;
        if (names.sh_offset + s.sh_name + strlen(entry) + 7 <= c->size_bytes &&
            strncmp(name, ".text.", 6) == 0 && strcmp(name + 6, entry) == 0) {
            return s.sh_size;
        }
    }
    return 0;
}

/* The number before `unit` on the line(s) [p, end): "24 bytes spill stores" -> 24; 0 if absent. */
static int number_before(const char *p, const char *end, const char *unit) {
    const char *at = strstr(p, unit);
    if (at == NULL || at >= end) {
        return 0;
    }
    while (at > p && at[-1] == ' ') {
        at--;
    }
    while (at > p && at[-1] >= '0' && at[-1] <= '9') {
        at--;
    }
    return atoi(at);
}

lt_err lt_cubin_costs(const lt_cubin *c, lt_kernel_cost *costs, int max, int *n) {
    static const char mark[] = "Compiling entry function '";
    const char *p = c->log;
    *n = 0;
    while ((p = strstr(p, mark)) != NULL) {
        const char *name = p + sizeof mark - 1, *name_end = strchr(name, '\'');
        const char *next = strstr(name, mark), *end = next != NULL ? next : name + strlen(name);
        lt_kernel_cost *k = &costs[*n];
        if (name_end == NULL || *n == max) {
            LT_FAIL(LT_ERR_LIMIT, "more than %d kernels in a file, or a log we cannot read", max);
        }
        snprintf(k->entry, sizeof k->entry, "%.*s", (int)(name_end - name), name);
        k->n_regs = number_before(name, end, "registers");
        k->shared_bytes = number_before(name, end, "bytes smem");
        k->stack_bytes = number_before(name, end, "bytes stack frame");
        k->spill_store_bytes = number_before(name, end, "bytes spill stores");
        k->spill_load_bytes = number_before(name, end, "bytes spill loads");
        k->code_bytes = elf_code_bytes(c, k->entry);
        (*n)++;
        p = end;
    }
    return LT_OK;
}
