/* copies.c: Hopper's barriers in shared memory and its copy engine. See inside.h.
 *
 * One thread requests a copy. It then stands in the list of its worker, in pieces of at most 16
 * bytes. The worker carries some of them out when no thread can run, and at random moments
 * between:
 *
 *     to shared memory pieces ─▶ the block's memory; after the last one its barrier counts
 *                          the bytes
 *     to global memory     pieces ─▶ held (from here on "read")
 *         ─▶ pieces to, or added to, global memory, in a random number of steps ("done")
 *
 * Which of several copies continues is random, too: neither copies nor additions have an order
 * among each other, and no barrier but their own waits for them. A wait for a group tells only
 * the waiting thread that the group is done. Other threads may rely on it after a release by that
 * thread (a fence, red.release, st.release of its block), but not after a later copy, of a flag
 * for instance, has arrived. So the emulator may complete a group as late as that release.
 *
 * The 8 bytes of a BARRIER: pending arrivals, arrivals of a phase, bytes that were announced and
 * have not arrived (in units of eight; negative if they arrive before they are announced), the
 * parity of the phase, and a mark that identifies a barrier. */
#include <stdlib.h>
#include <string.h>

#include "inside.h"

#define PIECE 16

typedef enum { TO_SHARED, FROM_SHARED } direction;
typedef struct {
    direction way;
    emu_bulk how;
    emu_tensor map; /* rank 0: contiguous bytes. */
    int at[5];
    /* Contiguous bytes: in global memory, in shared memory of the sending block, or in `held`. */
    unsigned char *global;
    uint32_t shared, bytes; /* bytes: of all pieces. */
    uint32_t bar, blocks;   /* blocks: one bit for each block that receives them. */
    int rank; /* FROM_SHARED, and TO_SHARED from the memory of a block: that block; else -1. */
    uint32_t n_pieces, next;
    unsigned char *held;     /* FROM_SHARED, once read; and what st.async stores. */
    const emu_thread *owner; /* NULL: the thread has left. */
    int group;
    bool waited; /* The block has waited for it, and takes it for done. */
    bool slow;   /* One in four is slow, so that others overtake it by far. */
} copy;

struct emu_copies {
    copy *list;
    int n, most;
};

emu_copies *emu_copies_open(void) {
    return calloc(1, sizeof(emu_copies));
}
void emu_copies_close(emu_copies *c) {
    free(c->list);
    free(c);
}
bool emu_copies_under_way(const emu_copies *c) {
    return c->n > 0;
}

/* ---- Barriers ---- */

typedef struct {
    uint16_t pending, arrivals;
    int16_t eights;
    uint8_t parity, mark;
} mbarrier;
_Static_assert(sizeof(mbarrier) == 8, "eight bytes");
#define MBARRIER_MARK 0xb7

static mbarrier *mbarrier_of(int rank, uint32_t address) {
    mbarrier *const b = (mbarrier *)(void *)emu_shared_of(rank, address, sizeof *b);
    if (address % sizeof *b != 0) {
        emu_trap("barrier at shared address %#x: not aligned to 8 bytes", address);
    }
    if (b->mark != MBARRIER_MARK) {
        emu_trap("there is no barrier at shared address %#x", address);
    }
    return b;
}

static void mbarrier_check(mbarrier *b) {
    if (b->pending == 0 && b->eights == 0) {
        b->pending = b->arrivals;
        b->parity ^= 1;
        emu_wake(b);
    }
}

void emu_mbarrier_init(uint32_t bar, int arrivals) {
    mbarrier *const b = (mbarrier *)emu_shared_pointer(bar, sizeof *b);
    if (arrivals < 1 || arrivals > UINT16_MAX) {
        emu_trap("a barrier of %d arrivals", arrivals);
    }
    *b = (mbarrier){(uint16_t)arrivals, (uint16_t)arrivals, 0, 0, MBARRIER_MARK};
}

/* Count bytes that are announced, or that have arrived: these are negative. */
static void bytes_count(mbarrier *b, uint32_t bar, int64_t bytes) {
    const int64_t now = b->eights + bytes / 8;
    if (bytes % 8 != 0 || now < INT16_MIN || now > INT16_MAX) {
        emu_trap("barrier at shared address %#x: %lld bytes beside %d", bar, (long long)bytes,
                 b->eights * 8);
    }
    b->eights = (int16_t)now;
}

void emu_mbarrier_arrive(uint32_t bar, uint32_t bytes) {
    const int rank = emu_shared_rank(bar);
    mbarrier *b;
    emu_give_way();
    if (emu_block_left(rank)) {
        emu_trap("an arrival at shared address %#x of block %d of the cluster, which has left", bar,
                 rank);
    }
    b = mbarrier_of(rank, bar);
    if (b->pending == 0) {
        emu_trap("barrier at shared address %#x: more than %u arrivals in a phase", bar,
                 b->arrivals);
    }
    bytes_count(b, bar, bytes);
    b->pending--;
    mbarrier_check(b);
}

bool emu_mbarrier_wait(uint32_t bar, uint32_t parity) {
    emu_give_way();
    for (mbarrier *b;
         (b = mbarrier_of((int)emu_self->cluster_rank, bar))->parity == (parity & 1);) {
        emu_sleep(b, "a barrier in memory");
    }
    return true;
}

static void bytes_came(int rank, uint32_t bar, uint32_t bytes) {
    mbarrier *const b = mbarrier_of(rank, bar);
    bytes_count(b, bar, -(int64_t)bytes);
    mbarrier_check(b);
}

/* ---- The place of a piece ---- */

typedef struct {
    uint32_t shared;       /* Distance from the beginning of the copy's place. */
    unsigned char *global; /* NULL: the whole piece is outside the tensor. */
    int from, to;          /* The bytes of the piece that are inside. */
} piece;

static piece piece_of(const copy *c, uint32_t i) {
    const emu_tensor *const m = &c->map;
    piece p = {i * PIECE, NULL, 0, PIECE};
    if (m->rank == 0) {
        p.global = c->global + (size_t)i * PIECE;
        return p;
    }
    const uint32_t each = (uint32_t)m->box[0] * m->element_bytes / PIECE;
    const int wide = PIECE / m->element_bytes;
    const int64_t x = c->at[0] + (int64_t)(i % each) * wide, left = (int64_t)m->size[0] - x;
    const int64_t first = x < 0 ? -x : 0, last = left < wide ? left : wide;
    uint32_t row = i / each;
    unsigned char *at = m->base + x * m->element_bytes;
    bool inside = first < last;
    for (int d = 1; d < m->rank; d++) {
        const int64_t y = c->at[d] + (int64_t)(row % m->box[d]);
        row /= m->box[d];
        inside = inside && y >= 0 && y < (int64_t)m->size[d];
        at += y * (int64_t)m->stride[d];
    }
    if (inside) {
        p.global = at;
        p.from = (int)first * m->element_bytes;
        p.to = (int)last * m->element_bytes;
    }
    return p;
}

/* Pieces of 16 bytes are permuted by higher bits of their address: with 128-byte rows by bits 7
 * to 9. */
static uint32_t swizzled(const copy *c, uint32_t address) {
    const uint32_t masks[] = {0, 1, 3, 7}; /* LT_CU_TMAP_SWIZZLE_NONE, 32B, 64B, 128B. */
    return c->map.rank == 0 ? address : address ^ (address >> 7 & masks[c->map.swizzle]) << 4;
}

static uint32_t sum_of(uint32_t a, uint32_t b, int type) {
    float x, y;
    if (type != 7) { /* LT_CU_TMAP_FP32. */
        return a + b;
    }
    memcpy(&x, &a, 4), memcpy(&y, &b, 4);
    x += y;
    memcpy(&a, &x, 4);
    return a;
}

/* Other host threads may add to the same words. Sixteen aligned bytes are added at once, as the
 * L2 does it: PTX promises only that each word is atomic, but bwd_finish.cuh and readers of 16
 * bytes rely on all four. */
static void add_words(unsigned char *to, const unsigned char *from, int bytes, int type) {
    uint32_t by[4], old[4], sum[4];
    memcpy(by, from, (size_t)bytes);
#if defined(__x86_64__)
    typedef unsigned __int128 whole __attribute__((may_alias));
    for (whole *const at = (whole *)(void *)to; bytes == PIECE;) {
        /* It may be read in two halves; then the exchange fails. */
        const whole seen = *(volatile whole *)at;
        whole next;
        memcpy(old, &seen, PIECE);
        for (int i = 0; i < 4; i++) {
            sum[i] = sum_of(old[i], by[i], type);
        }
        memcpy(&next, sum, PIECE);
        if (__sync_bool_compare_and_swap(at, seen, next)) {
            return;
        }
    }
#endif
    for (int i = 0; i < bytes / 4; i++) {
        uint32_t *const word = (uint32_t *)(void *)to + i;
        old[0] = __atomic_load_n(word, __ATOMIC_RELAXED);
        do {
            sum[0] = sum_of(old[0], by[i], type);
        } while (!__atomic_compare_exchange_n(word, old, sum[0], true, __ATOMIC_SEQ_CST,
                                              __ATOMIC_RELAXED));
    }
}

/* ---- Steps ---- */

static void piece_bring(const copy *c, uint32_t i) {
    const piece p = piece_of(c, i);
    const size_t wide = c->bytes < PIECE ? c->bytes : PIECE;
    for (uint32_t rank = 0; c->blocks >> rank != 0; rank++) {
        if (c->blocks >> rank & 1) {
            unsigned char *const to = emu_shared_of((int)rank, swizzled(c, c->shared + p.shared),
                                                    wide);
            if (p.global == NULL || p.from > 0 || p.to < PIECE) {
                memset(to, 0, wide);
            }
            if (p.global != NULL) {
                memcpy(to + p.from, p.global + p.from,
                       wide < PIECE ? wide : (size_t)(p.to - p.from));
            }
        }
    }
}

static void read_whole(copy *c) {
    c->held = malloc(c->bytes);
    if (c->held == NULL) {
        emu_trap("no memory for a copy of %u bytes", c->bytes);
    }
    for (uint32_t i = 0; i < c->n_pieces; i++) {
        memcpy(c->held + i * PIECE,
               emu_shared_of(c->rank, swizzled(c, c->shared + i * PIECE), PIECE), PIECE);
    }
}

static void piece_write(const copy *c, uint32_t i) {
    const piece p = piece_of(c, i);
    if (p.global == NULL) {
        return;
    }
    if (c->how == EMU_ADD) {
        add_words(p.global + p.from, c->held + i * PIECE + p.from, p.to - p.from, c->map.type);
    } else {
        memcpy(p.global + p.from, c->held + i * PIECE + p.from, (size_t)(p.to - p.from));
    }
}

/* Do up to `most` pieces. True: the copy is complete. */
static bool some(copy *c, uint32_t most) {
    const uint32_t end = c->n_pieces - c->next > most ? c->next + most : c->n_pieces;
    if (c->way == FROM_SHARED && c->held == NULL) {
        read_whole(c);
        return false;
    }
    for (uint32_t rank = 0; c->way == TO_SHARED && c->blocks >> rank != 0; rank++) {
        if ((c->blocks >> rank & 1) && emu_block_left((int)rank)) {
            emu_trap("a copy of %u bytes to shared address %#x of a block that has left", c->bytes,
                     c->shared);
        }
    }
    if (c->way == TO_SHARED && c->rank >= 0 && emu_block_left(c->rank)) {
        emu_trap("a copy of %u bytes from shared memory of a block that has left", c->bytes);
    }
    for (; c->next < end; c->next++) {
        if (c->way == TO_SHARED) {
            piece_bring(c, c->next);
        } else {
            piece_write(c, c->next);
        }
    }
    if (c->next < c->n_pieces) {
        return false;
    }
    for (uint32_t rank = 0; c->way == TO_SHARED && c->blocks >> rank != 0; rank++) {
        if (c->blocks >> rank & 1) {
            bytes_came((int)rank, c->bar, c->bytes);
        }
    }
    return true;
}

static void forget(emu_copies *all, int i) {
    free(all->list[i].held);
    all->list[i] = all->list[--all->n];
}

/* Complete a copy that has been read. */
static void finish(emu_copies *all, int i) {
    (void)some(&all->list[i], all->list[i].n_pieces);
    forget(all, i);
}

void emu_copies_step(emu_copies *all) {
    const int i = (int)emu_random((uint32_t)all->n);
    copy *const c = &all->list[i];
    if (c->slow && emu_random(16) != 0) {
        return;
    }
    if (some(c, emu_random(2) == 0 ? c->n_pieces : 1 + emu_random(c->n_pieces))) {
        forget(all, i);
    }
}

static copy *ask(copy what) {
    emu_copies *const all = emu_copies_here();
    if (all->n == all->most) {
        all->most = 2 * all->most + 64;
        all->list = realloc(all->list, (size_t)all->most * sizeof *all->list);
        if (all->list == NULL) {
            emu_trap("no memory for %d copies", all->most);
        }
    }
    what.n_pieces = (what.bytes + PIECE - 1) / PIECE;
    what.slow = emu_random(4) == 0;
    what.owner = emu_self;
    what.group = emu_self->bulk_group;
    all->list[all->n] = what;
    return &all->list[all->n++];
}

void emu_bulk_commit(void) {
    emu_self->bulk_group++;
}

void emu_bulk_wait(int groups, bool read) {
    emu_copies *const all = emu_copies_here();
    for (int i = all->n - 1; i >= 0; i--) {
        copy *const c = &all->list[i];
        if (c->way == FROM_SHARED && c->owner == emu_self &&
            c->group < emu_self->bulk_group - groups) {
            if (c->held == NULL) {
                read_whole(c);
            }
            c->waited = !read;
            if (!read && emu_random(2) == 0) {
                finish(all, i);
            }
        }
    }
    emu_give_way();
}

void emu_release(void) {
    emu_copies *const all = emu_copies_here();
    for (int i = all->n - 1; i >= 0; i--) {
        if (all->list[i].waited && all->list[i].rank == (int)emu_self->cluster_rank) {
            finish(all, i);
        }
    }
}

void emu_copies_thread_ends(emu_copies *all) {
    for (int i = 0; i < all->n; i++) {
        copy *const c = &all->list[i];
        if (c->owner != emu_self) {
            continue;
        }
        if (c->way == FROM_SHARED && c->group == emu_self->bulk_group) {
            emu_trap("a thread ends with copies to global memory that are in no group: no wait "
                     "covers them");
        }
        if (c->way == FROM_SHARED && c->held == NULL) {
            emu_trap("a thread ends while a copy may still read %u bytes at shared address %#x",
                     c->bytes, c->shared);
        }
        c->owner = NULL;
    }
}

/* ---- The interface for kernels ---- */

static void aligned(const char *what, uint64_t address, uint32_t to) {
    if (address % to != 0) {
        emu_trap("%s %#llx is not aligned to %u bytes", what, (unsigned long long)address, to);
    }
}

static void contiguous_check(const void *global, uint32_t shared, uint32_t bytes) {
    aligned("bulk copy: global address", (uintptr_t)global, PIECE);
    aligned("bulk copy: shared address", shared, PIECE);
    if (bytes == 0 || bytes % PIECE != 0) {
        emu_trap("bulk copy of %u bytes: not a multiple of %d", bytes, PIECE);
    }
}

void emu_bulk_load(uint32_t dst, const void *src, uint32_t bytes, uint32_t bar) {
    const int rank = emu_shared_rank(dst);
    contiguous_check(src, dst, bytes);
    (void)emu_shared_of(rank, dst, bytes);
    (void)mbarrier_of(rank, bar);
    (void)ask((copy){.way = TO_SHARED,
                     .global = (unsigned char *)(uintptr_t)src,
                     .shared = dst,
                     .bytes = bytes,
                     .bar = bar,
                     .blocks = 1u << rank,
                     .rank = -1});
}

void emu_bulk_send(uint32_t dst, uint32_t src, uint32_t bytes, uint32_t bar) {
    const int rank = emu_shared_rank(dst);
    unsigned char *const from = emu_shared_of((int)emu_self->cluster_rank, src, bytes);
    contiguous_check(from, dst, bytes);
    (void)emu_shared_of(rank, dst, bytes);
    if (emu_shared_rank(bar) != rank) {
        emu_trap("bulk copy to block %d of the cluster with a barrier of block %d", rank,
                 emu_shared_rank(bar));
    }
    (void)mbarrier_of(rank, bar);
    (void)ask((copy){.way = TO_SHARED,
                     .global = from,
                     .shared = dst,
                     .bytes = bytes,
                     .bar = bar,
                     .blocks = 1u << rank,
                     .rank = (int)emu_self->cluster_rank});
}

void emu_bulk_store(void *dst, uint32_t src, uint32_t bytes, emu_bulk how) {
    contiguous_check(dst, src, bytes);
    (void)emu_shared_of((int)emu_self->cluster_rank, src, bytes);
    (void)ask((copy){.way = FROM_SHARED,
                     .how = how,
                     .global = dst,
                     .shared = src,
                     .bytes = bytes,
                     .rank = (int)emu_self->cluster_rank});
}

static copy tensor_copy(const void *at, uint32_t shared, int rank, const int *where) {
    const emu_tensor *const m = at;
    copy c = {.shared = shared, .rank = -1};
    if (m->mark != EMU_TENSOR_MARK) {
        emu_trap("there is no tensor map at %p", at);
    }
    if (m->rank != rank) {
        emu_trap("a tensor map of %d dimensions used with %d", m->rank, rank);
    }
    aligned("tensor map", (uintptr_t)at, 64);
    aligned("tensor copy: shared address", shared, 128);
    c.map = *m;
    memcpy(c.at, where, (size_t)rank * sizeof *where);
    c.bytes = m->element_bytes;
    for (int d = 0; d < rank; d++) {
        c.bytes *= m->box[d];
    }
    return c;
}

void emu_tensor_load(uint32_t dst, const void *map, uint32_t bar, int rank, const int *at,
                     unsigned blocks) {
    const int own = emu_shared_rank(dst);
    copy c = tensor_copy(map, dst & EMU_SHARED_MASK, rank, at);
    c.way = TO_SHARED;
    c.bar = bar & EMU_SHARED_MASK;
    c.blocks = blocks != 0 ? blocks : 1u << own;
    if (c.blocks >> emu_cluster_blocks() != 0) {
        emu_trap("a copy to blocks %#x of a cluster of %d", c.blocks, emu_cluster_blocks());
    }
    for (int i = 0; c.blocks >> i != 0; i++) {
        if (c.blocks >> i & 1) {
            (void)emu_shared_of(i, c.shared, c.bytes);
            (void)mbarrier_of(i, c.bar);
        }
    }
    (void)ask(c);
}

void emu_tensor_store(const void *map, uint32_t src, int rank, const int *at, emu_bulk how) {
    copy c = tensor_copy(map, src, rank, at);
    c.way = FROM_SHARED;
    c.how = how;
    c.rank = (int)emu_self->cluster_rank;
    if (how == EMU_ADD && c.map.element_bytes != 4) {
        emu_trap("an adding copy of elements of %d bytes", c.map.element_bytes);
    }
    (void)emu_shared_of(c.rank, src, c.bytes);
    (void)ask(c);
}

void emu_store_async(uint32_t dst, const float *values, int n, uint32_t bar) {
    const int rank = emu_shared_rank(dst);
    const uint32_t bytes = (uint32_t)n * 4;
    unsigned char *const held = malloc(bytes);
    aligned("st.async: address", dst & EMU_SHARED_MASK, bytes);
    (void)emu_shared_of(rank, dst, bytes);
    if (emu_shared_rank(bar) != rank || held == NULL) {
        emu_trap("st.async to block %d of the cluster with a barrier of block %d", rank,
                 emu_shared_rank(bar));
    }
    (void)mbarrier_of(rank, bar);
    memcpy(held, values, bytes);
    (void)ask((copy){.way = TO_SHARED,
                     .global = held,
                     .held = held,
                     .shared = dst,
                     .bytes = bytes,
                     .bar = bar,
                     .blocks = 1u << rank,
                     .rank = -1});
}
