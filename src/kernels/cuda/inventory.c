/* inventory.c: see inventory.h. NVRTC compiles one program at a time per process, however many
 * threads there are, so forked children share the jobs. */
#include "kernels/cuda/inventory.h"

#include <errno.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <signal.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/thread.h"
#include "kernels/cuda/compile.h"
#include "kernels/cuda/source.h"
#include "kernels/cuda/specs.h"

#define MAX_JOBS      2048
#define MAX_TEXTS     256
#define MAX_ENTRIES   32 /* Most kernels in one source text. */
#define MAX_CHILDREN  256
#define DEFINES_BYTES 512
#define ARCH_BYTES    16
#define ERROR_BYTES   1024

/* One source text, specialisation and architecture. */
typedef struct {
    const char *file;
    char defines[DEFINES_BYTES], arch[ARCH_BYTES];
    lt_err err;
    char error[ERROR_BYTES];
    int n_costs;
    lt_kernel_cost costs[MAX_ENTRIES];
    bool tried;
} job;

/* In memory shared by the children and their parent. */
typedef struct {
    atomic_int next; /* The first job that is not yet taken. */
    int n;
    job jobs[MAX_JOBS];
} work;

struct lt_specs {
    work *w;
    const char *only, *arch; /* NULL: all. */
    bool sample;
    lt_err err; /* The first failure, after which nothing more is collected. */
    int n_told; /* Number of texts that are launched somewhere, on any architecture. */
    const char *told[MAX_TEXTS];
};

/* Whether both lists of -D constants define the same names in the same order ("A=1 B=2", "A=3
 * B=4"). */
static bool names_equal(const char *a, const char *b) {
    while (*a != '\0' || *b != '\0') {
        const size_t n = strcspn(a, "= "), m = strcspn(b, "= ");
        if (n != m || strncmp(a, b, n) != 0) {
            return false;
        }
        a += strcspn(a, " ");
        b += strcspn(b, " ");
        a += strspn(a, " ");
        b += strspn(b, " ");
    }
    return true;
}

static bool is_noted(const work *w, const job *j, bool sample) {
    for (int i = 0; i < w->n; i++) {
        const job *const o = &w->jobs[i];
        if (strcmp(o->file, j->file) == 0 && strcmp(o->arch, j->arch) == 0 &&
            (sample ? names_equal(o->defines, j->defines) : strcmp(o->defines, j->defines) == 0)) {
            return true;
        }
    }
    return false;
}

static void add_job(lt_specs *l, const char *file, const char *defines, const char *arch) {
    work *const w = l->w;
    if (w->n == MAX_JOBS || strlen(defines) >= DEFINES_BYTES) {
        l->err = lt_error_set(LT_ERR_LIMIT, "%s: more than %d specialisations, or one too long",
                              file, MAX_JOBS);
        return;
    }
    job *const j = &w->jobs[w->n];
    j->file = file;
    snprintf(j->arch, sizeof j->arch, "%s", arch);
    memcpy(j->defines, defines, strlen(defines) + 1);
    w->n += is_noted(w, j, l->sample) ? 0 : 1;
}

static bool is_told(const lt_specs *l, const char *file) {
    for (int i = 0; i < l->n_told; i++) {
        if (strcmp(l->told[i], file) == 0) {
            return true;
        }
    }
    return false;
}

void lt_spec(lt_specs *l, int archs, const char *file, const char *format, ...) {
    static const struct {
        int bit;
        const char *name;
    } all[] = {{LT_SM80, "sm_80"}, {LT_SM90, "sm_90a"}};
    char defines[DEFINES_BYTES + 1];
    va_list ap;
    va_start(ap, format);
    vsnprintf(defines, sizeof defines, format, ap);
    va_end(ap);
    if (!is_told(l, file)) {
        LT_ASSERT(l->n_told < MAX_TEXTS);
        l->told[l->n_told++] = file;
    }
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        const bool wanted = (archs & all[i].bit) != 0 &&
                            (l->arch == NULL || strcmp(l->arch, all[i].name) == 0) &&
                            (l->only == NULL || strstr(file, l->only) != NULL);
        if (wanted && l->err == LT_OK) {
            add_job(l, file, defines, all[i].name);
        }
    }
}

/* Check that each shipped text is listed by the code that launches it. */
static lt_err check_complete(const lt_specs *l) {
    const char *name;
    for (size_t i = 0; (name = lt_source_name(i)) != NULL; i++) {
        const size_t n = strlen(name);
        if (n > 3 && strcmp(name + n - 3, ".cu") == 0 && !is_told(l, name)) {
            LT_FAIL(LT_ERR_NOT_FOUND, "no launcher tells a specialisation of %s (specs.h)", name);
        }
    }
    return LT_OK;
}

static lt_err jobs_collect(work *w, const char *only, const char *arch, bool sample) {
    lt_specs l = {.w = w, .only = only, .arch = arch, .sample = sample};
#define TELL(name) lt_specs_##name(&l);
    LT_SPEC_TELLERS(TELL)
#undef TELL
    LT_TRY(l.err);
    return check_complete(&l);
}

static void job_run(job *j) {
    lt_cubin c = {0};
    j->err = lt_cubin_get(&c, j->file, j->defines, j->arch);
    if (j->err == LT_OK) {
        j->err = lt_cubin_costs(&c, j->costs, MAX_ENTRIES, &j->n_costs);
    }
    if (j->err != LT_OK) {
        snprintf(j->error, sizeof j->error, "%s", lt_error_message());
    }
    lt_cubin_close(&c);
    j->tried = true;
}

/* In one process: take jobs until none is left. */
static void jobs_take(work *w) {
    int i;
    while ((i = atomic_fetch_add(&w->next, 1)) < w->n) {
        job_run(&w->jobs[i]);
    }
}

/* As many processes as threads; this one is among them. What a child that died left untried is
 * said to have failed. */
static void jobs_run(work *w) {
    const int threads = lt_thread_count(), most = threads < MAX_CHILDREN ? threads : MAX_CHILDREN;
    pid_t children[MAX_CHILDREN] = {0};
    (void)fflush(NULL); /* Otherwise a child would print it again. */
    for (int i = 1; i < most && i < w->n; i++) {
        children[i] = fork();
        if (children[i] == 0) {
            (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
            jobs_take(w);
            _exit(0);
        }
    }
    jobs_take(w);
    for (int i = 1; i < most; i++) {
        while (children[i] > 0 && waitpid(children[i], NULL, 0) < 0 && errno == EINTR) {}
    }
    for (int i = 0; i < w->n; i++) {
        job *const j = &w->jobs[i];
        if (!j->tried) {
            j->err = LT_ERR_DEVICE;
            snprintf(j->error, sizeof j->error, "the process that compiled it died");
        }
    }
}

/* True if spills.txt explains this number of spilled bytes for the file's entry. */
static bool spill_explained(const char *allow, const char *file, const lt_kernel_cost *k) {
    for (const char *line = allow; line != NULL;
         line = (line = strchr(line, '\n')) == NULL ? NULL : line + 1) {
        char name[256], entry[128], reason[8];
        int bytes;
        if (line[0] != '#' &&
            sscanf(line, "%255s %127s %d %7s", name, entry, &bytes, reason) == 4 &&
            strcmp(name, file) == 0 && strcmp(entry, k->entry) == 0 &&
            k->spill_store_bytes <= bytes && k->spill_load_bytes <= 4 * bytes) {
            return true;
        }
    }
    return false;
}

static int job_print(FILE *to, const job *j, const char *allow) {
    int n_bad = j->err != LT_OK;
    if (j->err != LT_OK) {
        fprintf(to, "%-28s %-7s %s\n    FAILED: %s\n", j->file, j->arch, j->defines, j->error);
    }
    for (int i = 0; i < j->n_costs; i++) {
        const lt_kernel_cost *k = &j->costs[i];
        const bool spills = k->spill_store_bytes > 0 || k->spill_load_bytes > 0;
        const bool bad = spills && !spill_explained(allow, j->file, k);
        fprintf(to, "%-28s %-26s %-7s %4d %7d %5d %5d %7zu  %s%s\n", j->file, k->entry, j->arch,
                k->n_regs, k->shared_bytes, k->stack_bytes, k->spill_store_bytes, k->code_bytes,
                j->defines, bad ? "  UNEXPLAINED SPILL" : "");
        n_bad += bad;
    }
    return n_bad;
}

/* Print the table of all jobs; returns how many are bad. */
static int jobs_print(FILE *to, const work *w, const char *allow, int *n_kernels) {
    int n_bad = 0;
    *n_kernels = 0;
    fprintf(to, "%-28s %-26s %-7s %4s %7s %5s %5s %7s  %s\n", "file", "kernel", "arch", "regs",
            "shared", "stack", "spill", "code", "defines");
    for (int i = 0; i < w->n; i++) {
        n_bad += job_print(to, &w->jobs[i], allow);
        *n_kernels += w->jobs[i].n_costs;
    }
    return n_bad;
}

lt_err lt_cuda_inventory(FILE *to, const char *only, const char *arch, bool sample) {
    lt_err err = LT_OK;
    const double start_s = lt_clock_s();
    lt_source allow = {0};
    work *const w = mmap(NULL, sizeof *w, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1,
                         0);
    int n_bad, version = 0, n_kernels = 0;
    const char *path = NULL;

    if (w == MAP_FAILED) {
        LT_FAIL(LT_ERR_OOM, "kernel inventory");
    }
    LT_TRY_DONE(lt_nvrtc_version(&version, &path));
    LT_TRY_DONE(lt_source_open(&allow, "spills.txt"));
    LT_TRY_DONE(jobs_collect(w, only, arch, sample));
    if (w->n == 0) {
        LT_FAIL_DONE(LT_ERR_ARG, "no kernel's file has '%.60s' in its name and is made for '%.20s'",
                     only != NULL ? only : "", arch != NULL ? arch : "any architecture");
    }
    jobs_run(w);
    n_bad = jobs_print(to, w, allow.text[0], &n_kernels);
    fprintf(to, "%d kernels of %d specialisations, NVRTC %d.%d (%s), %.1f s\n", n_kernels, w->n,
            version / 1000, version % 1000 / 10, path, lt_clock_s() - start_s);
    if (n_bad > 0) {
        LT_FAIL_DONE(LT_ERR_DEVICE,
                     "%d specialisations do not compile or spill without a reason in spills.txt",
                     n_bad);
    }
done:
    lt_source_close(&allow);
    (void)munmap(w, sizeof *w);
    return err;
}
