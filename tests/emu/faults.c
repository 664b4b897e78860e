/* faults.c: the emulated GPU against kernels that are wrong on purpose (faults/faults.cu). Each runs twice in a process of its own: right (n 0: y is 64
 * ones), then wrong (n 1), where the emulator must end the process and name the fault, or y must show it. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/error.h"
#include "kernels/cuda/runtime.h"

#define N 64

static const struct {
    const char *kernel;
    int n;
    unsigned blocks, threads;
    const char *
        says; /* NULL: runs, and y is right; "y": runs, and y is wrong; else a part of the message. */
} cases[] = {
    {"shared_past", 0, 1, N, NULL},
    {"shared_past", 1, 1, N, "behind shared array a of 256"},
    {"global_past", 0, 1, N, NULL},
    {"global_past", 64 + 40, 1, N, "behind an allocation of 416"},
    {"no_barrier", 0, 1, N, NULL},
    {"no_barrier", 1, 1, N, "y"},
    {"no_wait", 0, 1, N, NULL},
    {"no_wait", 1, 1, N, "y"},
    {"no_wait", 2, 1, N, "never committed"},
    {"half_barrier", 0, 1, N, NULL},
    {"half_barrier", 1, 1, N, "wait for each other for ever"},
    {"absent_lane", 0, 1, N, NULL},
    {"absent_lane", 1, 1, N, "lane 31, which is not there"},
    {"two_places", 0, 1, N, NULL},
    {"two_places", 1, 1, N, "meet in different instructions"},
    {"not_aligned", 0, 1, N, NULL},
    {"not_aligned", 1, 1, N, "not aligned"},
    {"hopper", 0, 1, N, NULL},
    {"hopper", 1, 1, N, "no such instruction"},
    {"meet", 0, 40, N, NULL},
    {"meet", 0, 1, 2 * N, "invalid argument"}, /* More threads than __launch_bounds__. */
};

static lt_err run(int i, float *y) {
    const size_t bytes = (N + 40) * sizeof(float);
    const lt_cuda_kernel *k;
    lt_cuda *gpu;
    void *data;
    int n = cases[i].n;
    LT_TRY(lt_cuda_open(&gpu, 0));
    LT_TRY(lt_cuda_alloc(gpu, &data, bytes, "y"));
    LT_TRY(lt_cuda_fill(gpu, NULL, data, 0, bytes));
    LT_TRY(lt_cuda_kernel_get(gpu, &k, "faults.cu", cases[i].kernel, ""));
    LT_TRY(lt_cuda_launch(gpu, NULL, k,
                          &(lt_cuda_dims){.grid = {cases[i].blocks}, .block = {cases[i].threads}},
                          (void *[]){&data, &n}));
    LT_TRY(lt_cuda_download(gpu, NULL, y, data, N * sizeof *y));
    return lt_cuda_sync(gpu, NULL);
}

static void child(int i) {
    float y[N];
    if (run(i, y) != LT_OK) {
        (void)fprintf(stderr, "%s\n", lt_error_message());
        _exit(1);
    }
    for (int j = 0; j < N; j++) {
        if (!(fabsf(y[j] - 1.0f) < 1e-6f)) {
            (void)fprintf(stderr, "y[%d] = %g\n", j, (double)y[j]);
            _exit(1);
        }
    }
    _exit(0);
}

/* What the child wrote, and whether it ended well. */
static bool child_run(int i, char *text, size_t size) {
    int ends[2], status = 0;
    size_t n = 0;
    ssize_t got;
    pid_t id;
    if (pipe(ends) != 0 || (id = fork()) < 0) {
        return false;
    }
    if (id == 0) {
        (void)dup2(ends[1], 2);
        (void)close(ends[1]);
        child(i);
    }
    (void)close(ends[1]);
    while (n + 1 < size && (got = read(ends[0], text + n, size - 1 - n)) > 0) {
        n += (size_t)got;
    }
    text[n] = '\0';
    (void)close(ends[0]);
    (void)waitpid(id, &status, 0);
    return status == 0;
}

int main(void) {
    const int n = (int)(sizeof cases / sizeof *cases);
    int bad = 0;
    for (int i = 0; i < n; i++) {
        static char text[1 << 16];
        const bool well = child_run(i, text, sizeof text);
        const char *const says = cases[i].says;
        const bool good = says == NULL
                              ? well
                              : !well && strstr(text, strcmp(says, "y") == 0 ? "y[" : says);
        printf("%sok %d - %s, n %d: %s\n", good ? "" : "not ", i + 1, cases[i].kernel, cases[i].n,
               says != NULL ? says : "runs");
        if (!good) {
            printf("# %s\n", text);
            bad = 1;
        }
    }
    printf("1..%d\n", n);
    return bad;
}
