/* board.c: see board.h. */
#include "comm/board.h"

#include <errno.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "comm/shm.h"

#define MAGIC 0x6c617465656e6264u

typedef struct {
    _Alignas(64) _Atomic int phase;
    _Atomic int stop;
    _Atomic bool left;
    _Atomic int64_t step, loaded_step, suspect_step;
    _Atomic double slow;
    _Atomic uint64_t step_ns, at_ns[LT_PHASES];
} place;

typedef struct {
    uint64_t magic;
    int64_t n;
    _Atomic bool named; /* The folder's name is complete. */
    _Atomic bool keeps; /* Ranks whose world fails wait for the next one. */
    _Atomic uint64_t epoch, before_ns;
    _Atomic int dp, least;
    _Atomic int64_t rows;
    char folder[LT_BOARD_FOLDER];
    place places[]; /* (n) */
} page;

struct lt_board {
    page *page;
    size_t bytes;
    int rank; /* -1 in the launcher. */
};

static lt_err map(lt_board **out, int fd, size_t bytes, int rank) {
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    lt_board *b = at != MAP_FAILED ? calloc(1, sizeof *b) : NULL;
    if (b == NULL) {
        LT_FAIL(LT_ERR_OOM, "a board of %zu bytes: %s", bytes, strerror(errno));
    }
    *b = (lt_board){.page = at, .bytes = bytes, .rank = rank};
    *out = b;
    return LT_OK;
}

lt_board_sight lt_board_seen(const lt_board *b, int rank) {
    place *p = &b->page->places[rank];
    lt_board_sight s = {.phase = (lt_phase)atomic_load(&p->phase),
                        .step = atomic_load(&p->step),
                        .loaded_step = atomic_load(&p->loaded_step),
                        .step_ns = atomic_load(&p->step_ns),
                        .stop = atomic_load(&p->stop),
                        .suspect_step = atomic_load(&p->suspect_step),
                        .left = atomic_load(&p->left),
                        .slow = atomic_load(&p->slow)};
    for (int i = 0; i < LT_PHASES; i++) {
        s.at_ns[i] = atomic_load(&p->at_ns[i]);
    }
    return s;
}

lt_err lt_board_make(lt_board **out, int *fd, int n_ranks) {
    const size_t bytes = sizeof(page) + (size_t)n_ranks * sizeof(place);
    lt_err err;
    LT_ASSERT(n_ranks > 0);
    *fd = memfd_create("lateen-board", 0); /* The ranks inherit the descriptor. */
    if (*fd < 0 || ftruncate(*fd, (off_t)bytes) != 0) {
        LT_FAIL(LT_ERR_IO, "a board of %zu bytes: %s", bytes, strerror(errno));
    }
    err = map(out, *fd, bytes, -1);
    if (err == LT_OK) {
        (*out)->page->magic = MAGIC;
        (*out)->page->n = n_ranks;
        lt_board_clear(*out);
    }
    return err;
}

uint64_t lt_board_last_ns(const lt_board *b, int rank) {
    const lt_board_sight s = lt_board_seen(b, rank);
    uint64_t ns = s.step_ns;
    for (int i = 0; i < LT_PHASES; i++) {
        ns = s.at_ns[i] > ns ? s.at_ns[i] : ns;
    }
    return ns;
}

void lt_board_clear(lt_board *b) {
    const uint64_t last_ns = lt_board_last_ns(b, 0);
    if (last_ns > 0) {
        atomic_store(&b->page->before_ns, last_ns);
    }
    for (int64_t i = 0; i < b->page->n; i++) {
        place *p = &b->page->places[i];
        memset(p, 0, sizeof *p);
        atomic_store(&p->step, -1);
        atomic_store(&p->loaded_step, -1);
        atomic_store(&p->suspect_step, -1);
    }
}

void lt_board_show(lt_board *b, int rank, const lt_board_sight *s, const char *folder) {
    place *p = &b->page->places[rank];
    atomic_store(&p->phase, (int)s->phase);
    atomic_store(&p->step, s->step);
    atomic_store(&p->loaded_step, s->loaded_step);
    atomic_store(&p->step_ns, s->step_ns);
    atomic_store(&p->stop, s->stop);
    atomic_store(&p->suspect_step, s->suspect_step);
    atomic_store(&p->left, s->left);
    atomic_store(&p->slow, s->slow);
    for (int i = 0; i < LT_PHASES; i++) {
        atomic_store(&p->at_ns[i], s->at_ns[i]);
    }
    if (folder[0] != '\0') {
        lt_board_folder(b, folder);
    }
}

const char *lt_board_folder_of(const lt_board *b) {
    return atomic_load(&b->page->named) ? b->page->folder : "";
}

lt_board *lt_board_of_rank(void) {
    const char *fd_text = getenv(LT_ENV_BOARD), *rank_text = getenv(LT_ENV_RANK);
    const int fd = fd_text != NULL ? atoi(fd_text) : -1,
              rank = rank_text != NULL ? atoi(rank_text) : -1;
    struct stat st;
    lt_board *b = NULL;
    if (fd < 0 || rank < 0 || fstat(fd, &st) != 0 || st.st_size < (off_t)sizeof(page) ||
        map(&b, fd, (size_t)st.st_size, rank) != LT_OK) {
        return NULL;
    }
    if (b->page->magic != MAGIC || rank >= b->page->n ||
        b->bytes < sizeof(page) + (size_t)b->page->n * sizeof(place)) {
        lt_board_close(b);
        return NULL;
    }
    return b;
}

void lt_board_phase(lt_board *b, lt_phase phase) {
    if (b != NULL) {
        place *p = &b->page->places[b->rank];
        atomic_store(&p->at_ns[phase], lt_clock_ns());
        if (phase == LT_PHASE_LOADED) {
            atomic_store(&p->loaded_step, atomic_load(&p->step));
        }
        atomic_store(&p->phase, (int)phase);
    }
}

void lt_board_step(lt_board *b, int64_t step) {
    if (b != NULL) {
        place *p = &b->page->places[b->rank];
        atomic_store(&p->step_ns, lt_clock_ns());
        atomic_store(&p->step, step);
        if (atomic_load(&p->phase) == LT_PHASE_LOADED) {
            lt_board_phase(b, LT_PHASE_STEPPED);
        }
    }
}

void lt_board_stop(lt_board *b, int stop) {
    if (b != NULL) {
        atomic_store(&b->page->places[b->rank].stop, stop);
    }
}

void lt_board_suspect(lt_board *b, int64_t step) {
    if (b != NULL) {
        atomic_store(&b->page->places[b->rank].suspect_step, step);
    }
}

void lt_board_slow(lt_board *b, double share) {
    if (b != NULL) {
        atomic_store(&b->page->places[b->rank].slow, share);
    }
}

void lt_board_folder(lt_board *b, const char *path) {
    if (b != NULL && !atomic_load(&b->page->named)) {
        /* An absolute path, because the two processes may run in different folders. */
        char whole[PATH_MAX];
        (void)snprintf(b->page->folder, sizeof b->page->folder, "%s",
                       realpath(path, whole) != NULL ? whole : path);
        atomic_store(&b->page->named, true);
    }
}

void lt_board_sizes(lt_board *b, int dp, int least, int64_t rows) {
    if (b != NULL) {
        atomic_store(&b->page->rows, rows);
        atomic_store(&b->page->least, least);
        atomic_store(&b->page->dp, dp);
    }
}

lt_board_room lt_board_sizes_of(const lt_board *b) {
    return (lt_board_room){.dp = atomic_load(&b->page->dp),
                           .least = atomic_load(&b->page->least),
                           .rows = atomic_load(&b->page->rows)};
}

void lt_board_keep_ranks(lt_board *b) {
    atomic_store(&b->page->keeps, true);
}

void lt_board_begin(lt_board *b, uint64_t epoch) {
    atomic_store(&b->page->epoch, epoch);
}

bool lt_board_keeps(const lt_board *b) {
    return b != NULL && atomic_load(&b->page->keeps);
}

bool lt_board_leave(lt_board *b) {
    if (!lt_board_keeps(b)) {
        return false;
    }
    atomic_store(&b->page->places[b->rank].left, true);
    return true;
}

uint64_t lt_board_before_ns(const lt_board *b) {
    return b != NULL ? atomic_load(&b->page->before_ns) : 0;
}

uint64_t lt_board_epoch(const lt_board *b) {
    return atomic_load(&b->page->epoch);
}

void lt_board_close(lt_board *b) {
    if (b != NULL) {
        (void)munmap(b->page, b->bytes);
        free(b);
    }
}
