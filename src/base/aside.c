/* aside.c: see aside.h. The paths are global, because a signal handler has nothing else; it calls
 * only what POSIX allows in it (unlink, sigaction, raise). */
#include "base/aside.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"

#define MOST 8

static char paths[MOST][LT_PATH_BYTES]; /* Written before its `used`. */
static atomic_bool used[MOST];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int n_used;
static const int numbers[] = {SIGINT, SIGTERM, SIGHUP};
#define N_NUMBERS (sizeof numbers / sizeof *numbers)

static void set_default(int number) {
    struct sigaction plain = {.sa_handler = SIG_DFL};
    (void)sigemptyset(&plain.sa_mask);
    (void)sigaction(number, &plain, NULL);
}

static void remove_all(int number) {
    for (int i = 0; i < MOST; i++) {
        if (atomic_load(&used[i])) {
            (void)unlink(paths[i]);
        }
    }
    set_default(number);
    (void)raise(number); /* It ends the process when this function returns. */
}

/* Where a signal would end the process. */
static void watch(void) {
    struct sigaction now, ours = {.sa_handler = remove_all};
    (void)sigemptyset(&ours.sa_mask);
    for (size_t i = 0; i < N_NUMBERS; i++) {
        if (sigaction(numbers[i], NULL, &now) == 0 && now.sa_handler == SIG_DFL) {
            (void)sigaction(numbers[i], &ours, NULL);
        }
    }
}

static void forget(void) {
    struct sigaction now;
    for (size_t i = 0; i < N_NUMBERS; i++) {
        if (sigaction(numbers[i], NULL, &now) == 0 && now.sa_handler == remove_all) {
            set_default(numbers[i]);
        }
    }
}

int lt_aside_begin(const char *path) {
    const size_t n = strlen(path);
    int found = -1;
    if (n >= LT_PATH_BYTES) {
        return -1;
    }
    (void)pthread_mutex_lock(&lock);
    for (int i = 0; i < MOST && found < 0; i++) {
        found = atomic_load(&used[i]) ? -1 : i;
    }
    if (found >= 0) {
        memcpy(paths[found], path, n + 1);
        atomic_store(&used[found], true);
        if (n_used++ == 0) {
            watch();
        }
    }
    (void)pthread_mutex_unlock(&lock);
    return found;
}

void lt_aside_end(int aside) {
    if (aside < 0) {
        return;
    }
    (void)pthread_mutex_lock(&lock);
    atomic_store(&used[aside], false);
    if (--n_used == 0) {
        forget();
    }
    (void)pthread_mutex_unlock(&lock);
}
