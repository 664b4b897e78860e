/* faults.c: the emulated GPU against kernels with deliberate faults (faults/faults.cu; on an
 * H100, hopper.cu). Each runs in a process of its own: first correct (n 0: y is 64 ones), then
 * faulty (n 1 and more). Then the emulator must end the process and name the fault, or y must be
 * wrong. Faults that depend on the order of events are run in many random orders: the correct
 * kernel must pass in all of them, and the faulty one must fail in some. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/error.h"
#include "kernels/cuda/runtime.h"

#define N 64

#define ORDERS 40

static const struct {
    const char *kernel;
    int n;
    unsigned blocks, threads;
    unsigned cluster; /* In units of blocks, on an H100; 0: on an A100. */
    /* NULL: it runs, and y is right; "y": it runs, and y is wrong; else a part of the message. */
    const char *says;
} cases[] = {
    {"shared_past", 0, 1, N, 0, NULL},
    {"shared_past", 1, 1, N, 0, "past the end of shared array a of 256"},
    {"global_past", 0, 1, N, 0, NULL},
    {"global_past", 64 + 40, 1, N, 0, "past the end of an allocation of 416"},
    {"no_barrier", 0, 1, N, 0, NULL},
    {"no_barrier", 1, 1, N, 0, "y"},
    {"no_wait", 0, 1, N, 0, NULL},
    {"no_wait", 1, 1, N, 0, "y"},
    {"no_wait", 2, 1, N, 0, "never committed"},
    {"half_barrier", 0, 1, N, 0, NULL},
    {"half_barrier", 1, 1, N, 0, "wait for each other for ever"},
    {"absent_lane", 0, 1, N, 0, NULL},
    {"absent_lane", 1, 1, N, 0, "lane 31, which takes no part"},
    {"two_places", 0, 1, N, 0, NULL},
    {"two_places", 1, 1, N, 0, "meet in different instructions"},
    {"not_aligned", 0, 1, N, 0, NULL},
    {"not_aligned", 1, 1, N, 0, "not aligned"},
    {"blackwell", 0, 1, N, 0, NULL},
    {"blackwell", 1, 1, N, 0, "no such instruction"},
    {"meet", 0, 40, N, 0, NULL},
    /* More threads than __launch_bounds__ allows. */
    {"meet", 0, 1, 2 * N, 0, "invalid argument"},
    {"unwaited", 0, 1, N, 1, NULL},
    {"unwaited", 1, 1, N, 1, "y"},
    {"unwaited", 2, 1, N, 1, "wait for each other for ever"},
    {"unwaited", 3, 1, N, 1, "there is no barrier"},
    {"unwaited", 4, 1, N, 1, "more than 1 arrivals"},
    {"unwaited", 5, 1, N, 1, "is not aligned to 16 bytes"},
    {"written_over", 0, 1, N, 1, NULL},
    {"written_over", 1, 1, N, 1, "y"},
    {"written_over", 2, 1, N, 1, "may still read 256 bytes"},
    {"written_over", 3, 1, N, 1, "in no group"},
    {"overtaken", 0, 2, N, 1, NULL},
    {"overtaken", 1, 2, N, 1, "y"},
    {"left", 0, 2, N, 2, NULL},
    {"left", 1, 2, N, 2, "a block that has left"},
    {"left", 0, 3, N, 2, "invalid argument"}, /* Not a whole number of clusters. */
    {"product", 0, 1, 2 * N, 1, NULL},
    {"product", 1, 1, 2 * N, 1, "y"},
    {"product", 2, 1, 2 * N, 1, "y"},
    {"product", 3, 1, 2 * N, 1, "never waited for"},
    {"product", 4, 1, 2 * N, 1, "wait for each other for ever"},
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
    LT_TRY(lt_cuda_kernel_get(gpu, &k, cases[i].cluster > 0 ? "hopper.cu" : "faults.cu",
                              cases[i].kernel, ""));
    LT_TRY(lt_cuda_launch(gpu, NULL, k,
                          &(lt_cuda_dims){.grid = {cases[i].blocks},
                                          .block = {cases[i].threads},
                                          .cluster = {cases[i].cluster, 1, 1}},
                          (void *[]){&data, &n}));
    LT_TRY(lt_cuda_download(gpu, NULL, y, data, N * sizeof *y));
    return lt_cuda_sync(gpu, NULL);
}

static void child(int i, int order) {
    float y[N];
    char seed[16];
    (void)snprintf(seed, sizeof seed, "%d", order);
    (void)setenv("LATEEN_EMU_SEED", seed, 1);
    (void)setenv("LATEEN_EMU_CAPABILITY", cases[i].cluster > 0 ? "90" : "80", 1);
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

/* The child's output, and whether it ended well. */
static bool child_run(int i, int order, char *text, size_t size) {
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
        child(i, order);
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
        const char *const says = cases[i].says;
        const bool by_order = cases[i].cluster > 0 && (says == NULL || strcmp(says, "y") == 0);
        bool well = true;
        for (int order = 0; order < (by_order ? ORDERS : 1) && well; order++) {
            well = child_run(i, order, text, sizeof text);
        }
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
