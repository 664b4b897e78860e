/* rehearse.c: see rehearse.h. */
#include "kernels/cuda/rehearse.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/thread.h"
#include "kernels/cuda/compile.h"

#define MAX_MISSING  1024 /* What is beyond is compiled when it is wanted. */
#define MAX_CHILDREN 32
#define MAX_WAIT_S   120

typedef struct {
    char *file, *defines, *arch;
} missing_kernel;

static _Thread_local struct {
    bool on;
    missing_kernel *of;
    int n;
} rehearsal;

bool lt_rehearsing(void) {
    return rehearsal.on;
}

void lt_rehearse_begin(void) {
    LT_ASSERT(!rehearsal.on);
    rehearsal.on = true;
}

int64_t lt_rehearse_missing(void) {
    return rehearsal.n;
}

static bool is_noted(const char *file, const char *defines, const char *arch) {
    for (int i = 0; i < rehearsal.n; i++) {
        const missing_kernel *k = &rehearsal.of[i];
        if (strcmp(k->file, file) == 0 && strcmp(k->defines, defines) == 0 &&
            strcmp(k->arch, arch) == 0) {
            return true;
        }
    }
    return false;
}

lt_err lt_rehearse_note(bool *missing, const char *file, const char *defines, const char *arch) {
    missing_kernel *k;
    const bool noted = is_noted(file, defines, arch);
    *missing = noted || !lt_cubin_is_cached(file, defines, arch);
    if (noted || !*missing) {
        return LT_OK;
    }
    if (rehearsal.of == NULL) {
        rehearsal.of = calloc(MAX_MISSING, sizeof *rehearsal.of);
    }
    if (rehearsal.of == NULL) {
        LT_FAIL(LT_ERR_OOM, "kernels that are missing");
    }
    if (rehearsal.n == MAX_MISSING) {
        return LT_OK;
    }
    k = &rehearsal.of[rehearsal.n++];
    *k = (missing_kernel){strdup(file), strdup(defines), strdup(arch)};
    if (k->file == NULL || k->defines == NULL || k->arch == NULL) {
        LT_FAIL(LT_ERR_OOM, "kernel %s", file);
    }
    return LT_OK;
}

/* In a child: every n-th of them. It ends with its parent, for it may hold copies of the parent's sockets. */
static void compile_some(int first, int step) {
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    lt_log_set_level(LT_LOG_ERROR);
    for (int i = first; i < rehearsal.n; i += step) {
        const missing_kernel *k = &rehearsal.of[i];
        lt_cubin c = {0};
        if (lt_cubin_get(&c, k->file, k->defines, k->arch) == LT_OK) {
            lt_cubin_close(&c);
        }
    }
    _exit(0);
}

/* Children that do not end are ended: what they lack is compiled where it is wanted. */
static void await(const pid_t *children, int n) {
    const double until = lt_clock_s() + MAX_WAIT_S;
    for (int i = 0; i < n; i++) {
        while (children[i] > 0) {
            const pid_t ended = waitpid(children[i], NULL, WNOHANG);
            if (ended > 0 || (ended < 0 && errno != EINTR)) {
                break;
            }
            if (lt_clock_s() >= until) {
                (void)kill(children[i], SIGKILL);
            }
            (void)usleep(2000);
        }
    }
}

static void compile_all(void) {
    const int threads = lt_thread_count(), most = threads < MAX_CHILDREN ? threads : MAX_CHILDREN,
              n = most < rehearsal.n ? most : rehearsal.n;
    pid_t children[MAX_CHILDREN];
    lt_cubin_tell(rehearsal.of[0].arch, rehearsal.n);
    for (int i = 0; i < n; i++) {
        children[i] = fork();
        if (children[i] == 0) {
            compile_some(i, n);
        }
    }
    await(children, n);
}

void lt_rehearse_end(void) {
    LT_ASSERT(rehearsal.on);
    rehearsal.on = false;
    if (rehearsal.n > 1) { /* One is compiled where it is wanted. */
        compile_all();
    }
    for (int i = 0; i < rehearsal.n; i++) {
        free(rehearsal.of[i].file);
        free(rehearsal.of[i].defines);
        free(rehearsal.of[i].arch);
    }
    free(rehearsal.of);
    rehearsal.of = NULL;
    rehearsal.n = 0;
}
