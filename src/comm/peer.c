/* peer.c: boxes, lanes and pieces; see peer.h. An allocation:
 *
 *     | words of each neighbour | box of neighbour 0: lane 0, lane 1, ... | box of neighbour 1 |
 *
 * Neighbours are numbered by rank, without the owner. */
#include "comm/peer.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"

#define BOXES_MIB   192 /* At most, for one rank. */
#define MIB_MOST    (64 << 10)
#define SLOT_MOST   ((size_t)16 << 20)
#define PAIR_PART   4 /* A slot of a pair is this fraction of a collective's. */
#define SLOT_ALIGN  ((size_t)64 << 10)
#define WORDS_BYTES ((size_t)4096)
/* After a failure, words are set this far ahead, so that nobody waits for them. */
#define PAST       (1u << 30)
#define FINALIZE_S 5.0
#define FAILED_S   1.0 /* The same if a neighbour may have died. */
#define POLL_US    1000

/* The words that a neighbour writes here. */
typedef struct {
    uint32_t arrived[LT_PEER_LANES][LT_PEER_SLOTS], freed[LT_PEER_LANES][LT_PEER_SLOTS];
    uint32_t ended;
    uint32_t unused[63 - 2 * LT_PEER_LANES * LT_PEER_SLOTS];
} words;
_Static_assert(sizeof(words) * LT_PEER_MOST <= WORDS_BYTES, "words of all neighbours");

/* Another rank of this machine. */
typedef struct {
    int rank;
    char *theirs; /* Its allocation; NULL: this rank itself. */
    uint64_t put[LT_PEER_LANES], taken[LT_PEER_LANES];
    /* One for each call in flight; opened when it is first marked. */
    lt_moment *came[LT_COMM_AHEAD];
    int64_t early; /* Pieces that were sent before their call was made. */
} neighbour;

struct lt_peers {
    lt_device *device;
    const lt_backend *backend;
    int rank, size, own; /* own: this rank's index among those of its machine. */
    char *memory;
    size_t bytes, box_bytes, slot_bytes, pair_bytes;
    lt_memory_handle *handles; /* (size) */
    bool *good;                /* (size): all ranks of that rank's machine reach each other. */
    int *place_of;             /* (size): -1: on another machine. */
    int n_local;
    neighbour local[LT_PEER_MOST];
    lt_queue *sends, *takes[LT_PEER_TAKES], *control;
    lt_moment *moments[LT_PEER_TAKES];
    words *mirror;    /* (LT_PEER_MOST) on the host, for transfers of words. */
    pthread_t opener; /* After a failure, this thread keeps all words ahead. */
    bool has_opener;
    atomic_bool closing;
    /* For each call in flight: the first piece from each neighbour, and whether there is one. */
    uint64_t expects[LT_COMM_AHEAD][LT_PEER_MOST];
    bool waits[LT_COMM_AHEAD][LT_PEER_MOST];
};

/* ---- Sizes ----------------------------------------------------------------------------------- */

static int n_boxes(int n_ranks) {
    return (n_ranks < LT_PEER_MOST ? n_ranks : LT_PEER_MOST) - 1;
}

long lt_transfer_mib(long usual) {
    const char *text = getenv("LATEEN_TRANSFER_MIB");
    char *end = NULL;
    const long mib = text != NULL ? strtol(text, &end, 10) : usual;
    const bool good = mib > 0 && mib <= MIB_MOST && (end == NULL || *end == '\0');
    return good ? mib : 0;
}

static size_t slot_of(int n_ranks) {
    const size_t share = ((size_t)lt_transfer_mib(BOXES_MIB) << 20) / (size_t)n_boxes(n_ranks) /
                         LT_PEER_SLOTS * PAIR_PART / (PAIR_PART + LT_PEER_PAIR_LANES);
    return share > SLOT_MOST    ? SLOT_MOST
           : share < SLOT_ALIGN ? SLOT_ALIGN
                                : share / SLOT_ALIGN * SLOT_ALIGN;
}

static size_t pair_slot_of(int n_ranks) {
    return slot_of(n_ranks) / PAIR_PART;
}

static size_t box_of(int n_ranks) {
    return LT_PEER_SLOTS * (slot_of(n_ranks) + LT_PEER_PAIR_LANES * pair_slot_of(n_ranks));
}

size_t lt_peers_bytes(int n_ranks) {
    return n_ranks > 1 ? WORDS_BYTES + (size_t)n_boxes(n_ranks) * box_of(n_ranks) : 0;
}

size_t lt_comm_device_piece(int n_ranks) {
    return slot_of(n_ranks);
}

size_t lt_peer_slot_bytes(const lt_peers *p, int lane) {
    return lane == 0 ? p->slot_bytes : p->pair_bytes;
}

/* Index of neighbour `of` among those of rank `owner`; both are indices on this machine. */
static size_t box_number(int owner, int of) {
    return (size_t)(of < owner ? of : of - 1);
}

static words *words_at(char *memory, size_t box) {
    return (words *)(void *)memory + box;
}

static char *slot_at(const lt_peers *p, char *memory, size_t box, int lane, uint64_t piece) {
    const size_t before =
        lane == 0 ? 0 : LT_PEER_SLOTS * (p->slot_bytes + (size_t)(lane - 1) * p->pair_bytes);
    return memory + WORDS_BYTES + box * p->box_bytes + before +
           (size_t)(piece % LT_PEER_SLOTS) * lt_peer_slot_bytes(p, lane);
}

static neighbour *neighbour_of(lt_peers *p, int rank) {
    LT_ASSERT(p->place_of[rank] >= 0 && p->place_of[rank] != p->own);
    return &p->local[p->place_of[rank]];
}

/* ---- Pieces ---------------------------------------------------------------------------------- */

/* How often the slot of piece k has been filled once k is in it. */
static uint32_t times_filled(uint64_t k) {
    return (uint32_t)(k / LT_PEER_SLOTS + 1);
}

lt_err lt_peer_put(lt_peers *p, int to, int lane, const void *src, size_t bytes, lt_queue *q) {
    neighbour *n = neighbour_of(p, to);
    const int place = (int)(n - p->local);
    const uint64_t k = n->put[lane]++, slot = k % LT_PEER_SLOTS;
    const size_t there = box_number(place, p->own);
    words *own = words_at(p->memory, box_number(p->own, place));
    LT_ASSERT(bytes <= lt_peer_slot_bytes(p, lane));
    q = q != NULL ? q : p->sends;
    if (k >= LT_PEER_SLOTS) {
        LT_TRY(p->backend->flag_wait(q, &own->freed[lane][slot], times_filled(k) - 1));
    }
    LT_TRY(p->backend->copy(q, slot_at(p, n->theirs, there, lane, k), src, bytes));
    return p->backend->flag_set(q, &words_at(n->theirs, there)->arrived[lane][slot],
                                times_filled(k));
}

lt_err lt_peer_await(lt_peers *p, int from, int lane, lt_queue *q, char **out) {
    neighbour *n = neighbour_of(p, from);
    const size_t mine = box_number(p->own, (int)(n - p->local));
    const uint64_t k = n->taken[lane];
    *out = slot_at(p, p->memory, mine, lane, k);
    return p->backend->flag_wait(q, &words_at(p->memory, mine)->arrived[lane][k % LT_PEER_SLOTS],
                                 times_filled(k));
}

lt_err lt_peer_free(lt_peers *p, int from, int lane, lt_queue *q) {
    neighbour *n = neighbour_of(p, from);
    const size_t there = box_number((int)(n - p->local), p->own);
    const uint64_t k = n->taken[lane]++;
    return p->backend->flag_set(q, &words_at(n->theirs, there)->freed[lane][k % LT_PEER_SLOTS],
                                times_filled(k));
}

int64_t *lt_peer_early(lt_peers *p, int to) {
    return &neighbour_of(p, to)->early;
}

lt_queue *lt_peer_sends(lt_peers *p) {
    return p->sends;
}

lt_queue *lt_peer_takes(lt_peers *p, int i) {
    return p->takes[i];
}

const lt_backend *lt_peer_backend(const lt_peers *p) {
    return p->backend;
}

lt_moment *lt_peer_moment(lt_peers *p, int i) {
    return p->moments[i];
}

bool lt_peers_all(const lt_peers *p) {
    bool all = p != NULL;
    for (int i = 0; all && i < p->size; i++) {
        all = p->good[i];
    }
    return all;
}

bool lt_peers_reach(const lt_peers *p, const lt_group *g) {
    bool all = p != NULL;
    for (int i = 0; i < g->n && all; i++) {
        all = p->good[g->ranks[i]];
    }
    return all;
}

int lt_peers_lane(const lt_peers *p, const lt_group *g, int member) {
    int lane = 1;
    if (p == NULL || !p->good[p->rank] || !p->good[g->ranks[member]]) {
        return -1;
    }
    /* Groups that were opened earlier. */
    for (const lt_group *o = g->next; o != NULL; o = o->next) {
        for (int i = 0; i < o->n; i++) {
            lane += o->ranks[i] == g->ranks[member];
        }
    }
    return lane < LT_PEER_LANES ? lane : -1;
}

/* ---- Whom a call waits for ------------------------------------------------------------------- */

void lt_peer_expect(lt_peers *p, uint64_t call, int from, bool any) {
    const neighbour *n = neighbour_of(p, from);
    const size_t place = call % LT_COMM_AHEAD;
    p->waits[place][n - p->local] = any;
    p->expects[place][n - p->local] = n->taken[0];
}

lt_err lt_peer_has_come(lt_peers *p, uint64_t call, int from, lt_queue *q) {
    lt_moment **came = &neighbour_of(p, from)->came[call % LT_COMM_AHEAD];
    LT_TRY(*came == NULL ? p->backend->moment_open(p->device, came, false) : LT_OK);
    return p->backend->moment_mark(q, *came);
}

lt_err lt_peers_follow(lt_peers *p, const lt_call *call, int member, lt_queue *q) {
    lt_moment *came =
        neighbour_of(p, call->group->ranks[member])->came[call->number % LT_COMM_AHEAD];
    LT_ASSERT(came != NULL);
    return p->backend->moment_follow(q, came);
}

static lt_err read_words(lt_peers *p) {
    const size_t bytes = (size_t)(p->n_local > 1 ? p->n_local - 1 : 1) * sizeof *p->mirror;
    LT_TRY(p->backend->download(p->control, p->mirror, p->memory, bytes));
    return p->backend->sync(p->control);
}

static bool has_come(const lt_peers *p, size_t call, int place) {
    const uint64_t k = p->expects[call][place];
    const words *w = &p->mirror[box_number(p->own, place)];
    return (int32_t)(w->arrived[0][k % LT_PEER_SLOTS] - times_filled(k)) >= 0;
}

bool lt_peers_missing(lt_peers *p, const lt_call *call, char *out, size_t out_bytes) {
    const size_t at = call->number % LT_COMM_AHEAD;
    size_t used = 0;
    if (read_words(p) != LT_OK) {
        return false;
    }
    for (int i = 0; i < call->group->n && used < out_bytes; i++) {
        const int rank = call->group->ranks[i], place = p->place_of[rank];
        if (rank != p->rank && p->waits[at][place] && !has_come(p, at, place)) {
            used += (size_t)snprintf(out + used, out_bytes - used, "%srank %d did not come",
                                     used > 0 ? ", " : "", rank);
        }
    }
    return used > 0;
}

/* ---- Opening --------------------------------------------------------------------------------- */

static lt_err reserve(lt_peers *p, int n_ranks) {
    void *memory = NULL, *mirror = NULL;
    const size_t n = (size_t)n_ranks;
    p->slot_bytes = slot_of(n_ranks);
    p->pair_bytes = pair_slot_of(n_ranks);
    p->box_bytes = box_of(n_ranks);
    p->bytes = lt_peers_bytes(n_ranks);
    p->handles = calloc(n, sizeof *p->handles);
    p->good = calloc(n, sizeof *p->good);
    p->place_of = calloc(n, sizeof *p->place_of);
    if (p->handles == NULL || p->good == NULL || p->place_of == NULL) {
        LT_FAIL(LT_ERR_OOM, "neighbours of %d ranks", n_ranks);
    }
    LT_TRY(p->backend->queue_open_first(p->device, &p->sends));
    for (int i = 0; i < LT_PEER_TAKES; i++) {
        LT_TRY(p->backend->queue_open_first(p->device, &p->takes[i]));
        LT_TRY(p->backend->moment_open(p->device, &p->moments[i], false));
    }
    LT_TRY(p->backend->queue_open(p->device, &p->control));
    LT_TRY(p->backend->host_alloc(p->device, &mirror, LT_PEER_MOST * sizeof *p->mirror,
                                  "words of neighbours"));
    p->mirror = mirror;
    LT_TRY(p->backend->alloc(p->device, &memory, p->bytes, "transfers between GPUs"));
    p->memory = memory;
    return LT_OK;
}

/* Map the memory of every handle. False: a GPU of this machine cannot be reached. */
static bool map_all(lt_peers *p) {
    bool all = true;
    for (int i = 0; i < p->size; i++) {
        void *memory = p->memory;
        const lt_err err = i == p->rank
                               ? LT_OK
                               : p->backend->memory_reach(p->device, &p->handles[i], &memory);
        p->place_of[i] = -1;
        if (err == LT_ERR_UNSUPPORTED) { /* A rank of another machine. */
            continue;
        }
        if (err != LT_OK || p->n_local == LT_PEER_MOST) {
            lt_log_debug("rank %d does not reach the GPU of rank %d: %s", p->rank, i,
                         err != LT_OK ? lt_error_message() : "too many ranks");
            all = false;
            continue;
        }
        p->own = i == p->rank ? p->n_local : p->own;
        p->place_of[i] = p->n_local;
        p->local[p->n_local++] = (neighbour){.rank = i, .theirs = i == p->rank ? NULL : memory};
    }
    return all;
}

/* Both sides of a box must divide it in the same way. */
static lt_err compare_bytes(const lt_peers *p, lt_group *g) {
    const int64_t own = (int64_t)p->bytes;
    int64_t *all = calloc((size_t)p->size, sizeof *all);
    lt_err err = LT_OK;
    if (all == NULL) {
        LT_FAIL_DONE(LT_ERR_OOM, "neighbours of %d ranks", p->size);
    }
    LT_TRY_DONE(lt_all_gather(g, all, &own, 1, LT_I64, NULL));
    for (int i = 1; i < p->size; i++) {
        if (all[i] != all[0]) {
            LT_FAIL_DONE(LT_ERR_ARG,
                         "rank 0 has %lld bytes for transfers between GPUs, rank %d %lld: "
                         "LATEEN_TRANSFER_MIB must be the same for all",
                         (long long)all[0], i, (long long)all[i]);
        }
    }
done:
    free(all);
    return err;
}

lt_err lt_peers_meet(lt_peers *p, lt_comm *host, bool none) {
    const char *wanted = getenv("LATEEN_PEER_COPIES");
    const bool off = none || (wanted != NULL && strcmp(wanted, "0") == 0);
    unsigned char *all = calloc((size_t)p->size, 1), mine = 0;
    int *ranks = calloc((size_t)p->size, sizeof *ranks);
    lt_group *g = NULL;
    lt_err err = LT_OK;
    if (all == NULL || ranks == NULL) {
        LT_FAIL_DONE(LT_ERR_OOM, "neighbours of %d ranks", p->size);
    }
    for (int i = 0; i < p->size; i++) {
        ranks[i] = i;
    }
    LT_TRY_DONE(lt_group_open(&g, host, "neighbours", ranks, p->size));
    if (off || p->backend->memory_share(p->device, p->memory, &p->handles[p->rank]) != LT_OK) {
        memset(&p->handles[p->rank], 0, sizeof p->handles[p->rank]);
    }
    LT_TRY_DONE(compare_bytes(p, g));
    LT_TRY_DONE(
        lt_all_gather(g, p->handles, &p->handles[p->rank], sizeof *p->handles, LT_U8, NULL));
    mine = map_all(p) && !off && p->n_local > 1;
    LT_TRY_DONE(lt_all_gather(g, all, &mine, 1, LT_U8, NULL));
    for (int i = 0; i < p->size; i++) {
        p->good[i] = p->place_of[i] >= 0 && all[i] != 0 && mine != 0;
    }
    lt_log_debug("rank %d: %d GPUs of this machine copy directly", p->rank,
                 mine != 0 ? p->n_local : 0);
done:
    free(all);
    free(ranks);
    return err;
}

lt_err lt_peers_open(lt_peers **out, lt_comm *host, lt_device *device) {
    lt_err err = LT_OK;
    lt_peers *p = calloc(1, sizeof *p);
    if (p == NULL) {
        LT_FAIL(LT_ERR_OOM, "neighbours");
    }
    p->device = device;
    p->backend = device->backend;
    p->rank = lt_comm_rank(host);
    p->size = lt_comm_size(host);
    if (lt_transfer_mib(BOXES_MIB) == 0) {
        LT_FAIL_DONE(LT_ERR_ARG, "LATEEN_TRANSFER_MIB = '%s' is not a number from 1 to %d",
                     getenv("LATEEN_TRANSFER_MIB"), MIB_MOST);
    }
    LT_TRY_DONE(reserve(p, p->size));
    *out = p;
    p = NULL;
done:
    lt_peers_close(p);
    return err;
}

/* ---- The end --------------------------------------------------------------------------------- */

/* A neighbour's queue may still write a word after it was set, so the words are set repeatedly. */
static void *keep_open(void *arg) {
    lt_peers *p = arg;
    words *ahead = calloc(LT_PEER_MOST, sizeof *ahead);
    for (int i = 0; ahead != NULL && i < p->n_local; i++) {
        words *w = i != p->own ? &ahead[box_number(p->own, i)] : NULL;
        for (int lane = 0; w != NULL && lane < LT_PEER_LANES; lane++) {
            for (int slot = 0; slot < LT_PEER_SLOTS; slot++) {
                w->arrived[lane][slot] = times_filled(p->local[i].taken[lane]) + PAST;
                w->freed[lane][slot] = times_filled(p->local[i].put[lane]) + PAST;
            }
        }
    }
    while (ahead != NULL && !atomic_load(&p->closing)) {
        for (int i = 0; i < p->n_local - 1; i++) {
            (void)p->backend->upload(p->control, words_at(p->memory, (size_t)i), &ahead[i],
                                     offsetof(words, ended));
        }
        (void)p->backend->sync(p->control);
        (void)usleep(POLL_US);
    }
    free(ahead);
    return NULL;
}

void lt_peers_abort(lt_peers *p) {
    if (p != NULL && !p->has_opener && p->n_local > 1) {
        p->has_opener = pthread_create(&p->opener, NULL, keep_open, p) == 0;
    }
}

/* Tell the neighbours that this rank writes no more, and wait until all have said the same. True if
 * they have. */
static bool part(lt_peers *p, bool failed) {
    const double until_s = lt_clock_s() + (failed ? FAILED_S : FINALIZE_S);
    int left = p->n_local - 1;
    for (int i = 0; i < p->n_local; i++) {
        if (i != p->own) {
            (void)p->backend->flag_set(
                p->control, &words_at(p->local[i].theirs, box_number(i, p->own))->ended, 1);
        }
    }
    (void)p->backend->sync(p->control);
    for (int i = 0; i < p->n_local; i++) {
        if (i != p->own) {
            p->backend->memory_leave(p->device, &p->handles[p->local[i].rank], p->local[i].theirs);
        }
    }
    while (left > 0 && lt_clock_s() < until_s && read_words(p) == LT_OK) {
        left = 0;
        for (int i = 0; i < p->n_local - 1; i++) {
            left += p->mirror[i].ended == 0;
        }
        (void)(left > 0 ? usleep(POLL_US) : 0);
    }
    return left == 0;
}

void lt_peers_close(lt_peers *p) {
    bool parted = true;
    if (p == NULL) {
        return;
    }
    if (p->n_local > 1) {
        (void)p->backend->sync(p->sends);
        atomic_store(&p->closing, true);
        if (p->has_opener) {
            (void)pthread_join(p->opener, NULL);
        }
        parted = part(p, p->has_opener);
    }
    p->backend->queue_close(p->sends);
    for (int i = 0; i < LT_PEER_TAKES; i++) {
        p->backend->queue_close(p->takes[i]);
        p->backend->moment_close(p->device, p->moments[i]);
    }
    p->backend->queue_close(p->control);
    for (int i = 0; i < p->n_local * LT_COMM_AHEAD; i++) {
        p->backend->moment_close(p->device, p->local[i / LT_COMM_AHEAD].came[i % LT_COMM_AHEAD]);
    }
    if (p->mirror != NULL) {
        p->backend->host_release(p->device, p->mirror, LT_PEER_MOST * sizeof *p->mirror);
    }
    /* Otherwise a neighbour might still write there, so the memory is kept. */
    if (parted && p->memory != NULL) {
        p->backend->release(p->device, p->memory, p->bytes);
    }
    free(p->handles);
    free(p->good);
    free(p->place_of);
    free(p);
}
