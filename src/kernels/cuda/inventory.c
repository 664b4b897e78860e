/* inventory.c: see inventory.h. */
#include "kernels/cuda/inventory.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/thread.h"
#include "kernels/cuda/compile.h"
#include "kernels/cuda/source.h"

#define MAX_JOBS      2048
#define MAX_ENTRIES   32 /* Kernels in one text. */
#define DEFINES_BYTES 512
#define ARCH_BYTES    16
#define ERROR_BYTES   1024
static const char spec_mark[] = "* @spec ";

/* One text, one specialisation, one architecture. */
typedef struct {
    const char *file;
    char defines[DEFINES_BYTES], arch[ARCH_BYTES];
    lt_err err;
    char error[ERROR_BYTES];
    int n_costs;
    lt_kernel_cost costs[MAX_ENTRIES];
} job;

/* Jobs of one line behind the mark: "sm_80 sm_90a: BM=128 BN=64". */
static lt_err line_read(job *jobs, int *n, const char *file, const char *line) {
    const char *end = strchr(line, '\n'), *colon = strchr(line, ':'), *defines;
    size_t defines_bytes;
    if (end == NULL || colon == NULL || colon > end) {
        LT_FAIL(LT_ERR_FORMAT, "%s: a @spec line without \"arch:\"", file);
    }
    defines = colon + 1 + strspn(colon + 1, " ");
    defines_bytes = (size_t)(end - defines);
    if (defines_bytes >= 2 && strncmp(end - 2, "*/", 2) == 0) {
        defines_bytes -= 2;
    }
    while (defines_bytes > 0 && defines[defines_bytes - 1] == ' ') {
        defines_bytes--;
    }
    for (const char *p = line; p < colon;) {
        const size_t len = strcspn(p, " :");
        job *j = &jobs[*n];
        if (*n == MAX_JOBS || len >= ARCH_BYTES || defines_bytes >= DEFINES_BYTES) {
            LT_FAIL(LT_ERR_LIMIT, "%s: more than %d specialisations, or one too long", file,
                    MAX_JOBS);
        }
        j->file = file;
        memcpy(j->arch, p, len);
        memcpy(j->defines, defines, defines_bytes);
        (*n)++;
        p += len;
        p += strspn(p, " ");
    }
    return LT_OK;
}

static lt_err jobs_read(job *jobs, int *n, const char *only) {
    const char *name;
    for (size_t i = 0; (name = lt_source_name(i)) != NULL; i++) {
        lt_source s = {0};
        lt_err err = LT_OK;
        if (strstr(name, ".cu") == NULL || (only != NULL && strstr(name, only) == NULL)) {
            continue;
        }
        LT_TRY(lt_source_open(&s, name));
        for (const char *p = s.text[0]; err == LT_OK && (p = strstr(p, spec_mark)) != NULL; p++) {
            err = line_read(jobs, n, name, p + sizeof spec_mark - 1);
        }
        lt_source_close(&s);
        LT_TRY(err);
    }
    return LT_OK;
}

static void job_run(void *ctx, size_t i) {
    job *j = &((job *)ctx)[i];
    lt_cubin c = {0};
    j->err = lt_cubin_get(&c, j->file, j->defines, j->arch);
    if (j->err == LT_OK) {
        j->err = lt_cubin_costs(&c, j->costs, MAX_ENTRIES, &j->n_costs);
    }
    if (j->err != LT_OK) {
        snprintf(j->error, sizeof j->error, "%s", lt_error_message());
    }
    lt_cubin_close(&c);
}

/* True when spills.txt explains this many spilled bytes of file's entry. */
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

lt_err lt_cuda_inventory(FILE *to, const char *only) {
    lt_err err = LT_OK;
    const double start_s = lt_clock_s();
    lt_source allow = {0};
    job *jobs = calloc(MAX_JOBS, sizeof *jobs);
    int n = 0, n_bad = 0, version = 0, n_kernels = 0;
    const char *path = NULL;

    if (jobs == NULL) {
        LT_FAIL(LT_ERR_OOM, "kernel inventory");
    }
    LT_TRY_DONE(lt_nvrtc_version(&version, &path));
    LT_TRY_DONE(lt_source_open(&allow, "spills.txt"));
    LT_TRY_DONE(jobs_read(jobs, &n, only));
    if (n == 0) {
        LT_FAIL_DONE(LT_ERR_ARG, "no kernel's file has '%.60s' in its name",
                     only != NULL ? only : "");
    }
    lt_parallel_for((size_t)n, job_run, jobs);
    fprintf(to, "%-28s %-26s %-7s %4s %7s %5s %5s %7s  %s\n", "file", "kernel", "arch", "regs",
            "shared", "stack", "spill", "code", "defines");
    for (int i = 0; i < n; i++) {
        n_bad += job_print(to, &jobs[i], allow.text[0]);
        n_kernels += jobs[i].n_costs;
    }
    fprintf(to, "%d kernels of %d specialisations, NVRTC %d.%d (%s), %.1f s\n", n_kernels, n,
            version / 1000, version % 1000 / 10, path, lt_clock_s() - start_s);
    if (n_bad > 0) {
        LT_FAIL_DONE(LT_ERR_DEVICE,
                     "%d specialisations do not compile or spill without a reason in spills.txt",
                     n_bad);
    }
done:
    lt_source_close(&allow);
    free(jobs);
    return err;
}
