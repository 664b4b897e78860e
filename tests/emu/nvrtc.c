/* nvrtc.c: libnvrtc without a toolkit: the functions of src/kernels/cuda/compile.c over the host's
 * C++ compiler.
 *
 * The texts of a program are preprocessed, rewritten (rewrite.c) and compiled, after device.h,
 * into a shared library, whose bytes are the "cubin". Line numbers and file names are those of
 * the sources, so that errors of the compiler and a debugger point there.
 *
 *     LATEEN_EMU_CXX       the compiler (default g++)
 *     LATEEN_EMU_CXXFLAGS  further options, after ours: "-O0 -g3" to step through kernels,
 *                          "-fsanitize=address" to find bad accesses
 *     LATEEN_EMU_KEEP=1    leave the temporary folders, and say where */
#include <dlfcn.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "rewrite.h"

#define EXPORT      __attribute__((visibility("default")))
#define MAX_OPTIONS 64
#define PATH_BYTES  1024

enum { FAILED = 1, INVALID_INPUT = 3, INVALID_OPTION = 5, COMPILATION = 6 };

typedef struct nvrtc_program {
    char **texts, **names; /* [0]: the program; its headers follow. */
    int n;
    char *log, *image;
    size_t log_bytes, image_bytes;
} program;

EXPORT int nvrtcVersion(int *major, int *minor) {
    *major = 12;
    *minor = 4;
    return 0;
}

EXPORT int nvrtcDestroyProgram(program **at) {
    program *const p = *at;
    for (int i = 0; i < p->n; i++) {
        free(p->texts[i]);
        free(p->names[i]);
    }
    free(p->texts);
    free(p->names);
    free(p->log);
    free(p->image);
    free(p);
    *at = NULL;
    return 0;
}

EXPORT int nvrtcCreateProgram(program **out, const char *text, const char *name, int n_headers,
                              const char *const *headers, const char *const *header_names) {
    program *const p = calloc(1, sizeof *p);
    if (p == NULL) {
        return FAILED;
    }
    p->texts = calloc((size_t)n_headers + 1, sizeof *p->texts);
    p->names = calloc((size_t)n_headers + 1, sizeof *p->names);
    p->log = calloc(1, 1);
    p->log_bytes = 1;
    for (; p->texts != NULL && p->names != NULL && p->n <= n_headers; p->n++) {
        p->texts[p->n] = strdup(p->n == 0 ? text : headers[p->n - 1]);
        p->names[p->n] = strdup(p->n == 0 ? name : header_names[p->n - 1]);
    }
    *out = p;
    return 0;
}

static char *file_read(const char *path, size_t *bytes) {
    FILE *const f = fopen(path, "rb");
    char *text = NULL;
    struct stat st;
    *bytes = 0;
    if (f != NULL && fstat(fileno(f), &st) == 0 && (text = calloc((size_t)st.st_size + 1, 1))) {
        *bytes = fread(text, 1, (size_t)st.st_size, f);
    }
    if (f != NULL) {
        (void)fclose(f);
    }
    return text;
}

/* Write dir/name, and create missing folders. */
static bool file_write(const char *dir, const char *name, const emu_text *t) {
    char path[2 * PATH_BYTES];
    FILE *f;
    bool whole;
    (void)snprintf(path, sizeof path, "%s/%s", dir, name);
    for (char *slash = path + strlen(dir) + 1; (slash = strchr(slash, '/')) != NULL; slash++) {
        *slash = '\0';
        (void)mkdir(path, 0700);
        *slash = '/';
    }
    f = fopen(path, "wb");
    whole = f != NULL && fwrite(t->text, 1, t->n, f) == t->n;
    return f != NULL && fclose(f) == 0 && whole;
}

static bool texts_write(const program *p, const char *dir) {
    bool good = true;
    for (int i = 0; i < p->n && good; i++) {
        char line[PATH_BYTES + 64], path[PATH_BYTES];
        emu_text t = {0};
        (void)snprintf(path, sizeof path, EMU_DIR "/../../src/kernels/cuda/%s", p->names[i]);
        (void)snprintf(line, sizeof line, "#line 1 \"%s\"\n",
                       access(path, R_OK) == 0 ? path : p->names[i]);
        emu_text_add(&t, line, strlen(line));
        emu_text_add(&t, p->texts[i], strlen(p->texts[i]));
        good = file_write(dir, p->names[i], &t);
        free(t.text);
    }
    return good;
}

/* Write dir/whole.cc from dir/whole.ii: after device.h, for `arch`. */
static bool rewritten_write(const char *dir, int arch) {
    char path[PATH_BYTES + 16], head[128];
    size_t bytes;
    (void)snprintf(path, sizeof path, "%s/whole.ii", dir);
    char *const source = file_read(path, &bytes);
    emu_text ptx = {0}, t = {0};
    static const char *const instructions[] = {EMU_DIR "/ptx.h", EMU_DIR "/ptx_hopper.h"};
    bool good = source != NULL;
    for (int i = 0; i < 2; i++) {
        char *const text = file_read(instructions[i], &bytes);
        emu_text_add(&ptx, text != NULL ? text : "", bytes);
        good = good && text != NULL;
        free(text);
    }
    /* device.h comes first, as make emu has compiled it; the architecture is for what follows. */
    (void)snprintf(head, sizeof head, "#include \"device.h\"\n#define __CUDA_ARCH__ %d\n", arch);
    emu_text_add(&t, head, strlen(head));
    if (good) {
        emu_rewrite(&t, source, ptx.text);
        good = file_write(dir, "whole.cc", &t);
    }
    free(source);
    free(ptx.text);
    free(t.text);
    return good;
}

/* Run the compiler, with its messages in `log` and without the libraries that this program
 * preloads. */
static int compiler_run(char *const *arguments, const char *log) {
    extern char **environ;
    posix_spawn_file_actions_t files;
    char *environment[512];
    int n = 0, status = -1;
    pid_t id;
    for (char **e = environ; *e != NULL && n < 511; e++) {
        if (strncmp(*e, "LD_PRELOAD=", 11) != 0 && strncmp(*e, "LD_LIBRARY_PATH=", 16) != 0) {
            environment[n++] = *e;
        }
    }
    environment[n] = NULL;
    (void)posix_spawn_file_actions_init(&files);
    (void)posix_spawn_file_actions_addopen(&files, 2, log, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    if (posix_spawnp(&id, arguments[0], &files, NULL, arguments, environment) == 0) {
        (void)waitpid(id, &status, 0);
    }
    (void)posix_spawn_file_actions_destroy(&files);
    return status;
}

/* sm_80, sm_90a: 800, 900; 0: an architecture that is not emulated. */
static int arch_of(int n_options, const char *const *options) {
    int arch = 800;
    for (int i = 0; i < n_options; i++) {
        if (strncmp(options[i], "--gpu-architecture=", 19) == 0) {
            const char *const name = options[i] + 19;
            arch = strcmp(name, "sm_80") == 0 ? 800 : strcmp(name, "sm_90a") == 0 ? 900 : 0;
        }
    }
    return arch;
}

/* Add the words of a list, which is split in place, to a[n..]. */
static int words_add(char **a, int n, char *words) {
    for (char *word = strtok(words, " "); word != NULL && n < MAX_OPTIONS - 16;
         word = strtok(NULL, " ")) {
        a[n++] = word;
    }
    return n;
}

/* Write the program as one text with its macros replaced: dir/whole.ii. */
static int preprocess(const program *p, const char *dir, const char *cxx, int arch, int n_options,
                      const char *const *options, const char *log) {
    char include[PATH_BYTES + 8], source[2 * PATH_BYTES], out[PATH_BYTES + 16], define[40];
    char *a[MAX_OPTIONS + 128];
    int n = 0;
    (void)snprintf(include, sizeof include, "-I%s", dir);
    (void)snprintf(source, sizeof source, "%s/%s", dir, p->names[0]);
    (void)snprintf(out, sizeof out, "%s/whole.ii", dir);
    (void)snprintf(define, sizeof define, "-D__CUDA_ARCH__=%d", arch);
    char *const ours[] = {
        (char *)(uintptr_t)cxx, "-E",   "-x",    "c++",  "-std=c++17", "-nostdinc", "-w",
        "-D__CUDACC_RTC__=1",   define, include, source, "-o",         out};
    for (size_t i = 0; i < sizeof ours / sizeof *ours; i++) {
        a[n++] = ours[i];
    }
    for (int i = 0; i < n_options && n < MAX_OPTIONS + 127; i++) {
        if (strncmp(options[i], "-D", 2) == 0) {
            a[n++] = (char *)(uintptr_t)options[i];
        }
    }
    a[n] = NULL;
    return compiler_run(a, log);
}

static int compile(const char *dir, const char *cxx, const char *log) {
    const char *const more = getenv("LATEEN_EMU_CXXFLAGS");
    char source[PATH_BYTES + 16], image[PATH_BYTES + 16], flags[PATH_BYTES], cuda[PATH_BYTES];
    char include[PATH_BYTES + 8];
    /* rules.mk has the options with which it compiles device.h, too. */
    char ours[] = "-x c++ " EMU_KERNEL_FLAGS " -shared";
    /* No C++ run time, nor what `run` preloads for a sanitizer; libm and libc come with
     * libcuda.so.1. Linking them took a third of a small kernel's time. */
    char libraries[] = "-nostdlib -lgcc";
    char *a[MAX_OPTIONS], *slash;
    Dl_info info;
    int n = 0;
    if (dladdr((void *)(uintptr_t)nvrtcVersion, &info) == 0) {
        return FAILED;
    }
    (void)snprintf(source, sizeof source, "%s/whole.cc", dir);
    (void)snprintf(image, sizeof image, "%s/image.so", dir);
    (void)snprintf(cuda, sizeof cuda, "%s", info.dli_fname); /* libcuda is beside this library. */
    slash = strrchr(cuda, '/');
    /* Its folder has device.h.gch, which the compiler uses if the options are the same, and no
     * device.h. */
    (void)snprintf(include, sizeof include, "-I%.*s", slash != NULL ? (int)(slash - cuda) : 1,
                   slash != NULL ? cuda : ".");
    (void)snprintf(slash != NULL ? slash : cuda, 16, "%slibcuda.so.1", slash != NULL ? "/" : "");
    (void)snprintf(flags, sizeof flags, "%s", more != NULL ? more : "");
    a[n++] = (char *)(uintptr_t)cxx;
    n = words_add(a, n, ours);
    n = words_add(a, n, flags);
    if (more == NULL) {
        a[n++] = include;
    }
    a[n++] = "-I" EMU_DIR;
    a[n++] = source;
    a[n++] = "-x";
    a[n++] = "none";
    a[n++] = cuda;
    n = words_add(a, n, libraries);
    a[n++] = "-o";
    a[n++] = image;
    a[n] = NULL;
    return compiler_run(a, log);
}

EXPORT int nvrtcCompileProgram(program *p, int n_options, const char *const *options) {
    const char *const tmp = getenv("TMPDIR"), *const wish = getenv("LATEEN_EMU_CXX");
    const char *const cxx = wish != NULL ? wish : "g++";
    const int arch = arch_of(n_options, options);
    char dir[PATH_BYTES], image[PATH_BYTES + 16], log[PATH_BYTES + 16];
    int status;
    if (arch == 0) {
        return INVALID_OPTION;
    }
    (void)snprintf(dir, sizeof dir, "%s/lateen-nvrtc-XXXXXX", tmp != NULL ? tmp : "/tmp");
    if (mkdtemp(dir) == NULL || !texts_write(p, dir)) {
        return FAILED;
    }
    (void)snprintf(image, sizeof image, "%s/image.so", dir);
    (void)snprintf(log, sizeof log, "%s/log", dir);
    status = preprocess(p, dir, cxx, arch, n_options, options, log);
    if (status == 0) {
        status = rewritten_write(dir, arch) ? compile(dir, cxx, log) : FAILED;
    }
    free(p->log);
    p->log = file_read(log, &p->log_bytes);
    p->log_bytes++; /* Counts the final NUL. */
    p->image = status == 0 ? file_read(image, &p->image_bytes) : NULL;
    if (getenv("LATEEN_EMU_KEEP") != NULL) {
        (void)fprintf(stderr, "emulated NVRTC: %s in %s\n", p->names[0], dir);
    } else {
        char *const remove[] = {"rm", "-rf", dir, NULL};
        (void)compiler_run(remove, "/dev/null");
    }
    return p->image != NULL ? 0 : COMPILATION;
}

EXPORT int nvrtcGetCUBINSize(program *p, size_t *bytes) {
    *bytes = p->image_bytes;
    return 0;
}
EXPORT int nvrtcGetCUBIN(program *p, char *to) {
    memcpy(to, p->image, p->image_bytes);
    return 0;
}
EXPORT int nvrtcGetProgramLogSize(program *p, size_t *bytes) {
    *bytes = p->log_bytes;
    return 0;
}
EXPORT int nvrtcGetProgramLog(program *p, char *to) {
    memcpy(to, p->log, p->log_bytes);
    return 0;
}
