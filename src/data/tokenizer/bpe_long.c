/* bpe_long.c: merges a word of many symbols; see bpe_merge.h.
 *
 * The word is a doubly linked list of symbols. There are two ways to find the next pair:
 *
 *     HEAP     (rank, position) in a 4-ary heap: O(n log n), right for every vocabulary
 *     BUCKETS  a chain of positions for each rank and a small heap of the ranks in use: O(n + ranks
 *              log ranks)
 *
 * A megabyte of one letter has a handful of ranks, each with 100,000 positions, and a heap spends
 * its time on cache misses among equal keys. In the buckets one rank is swept from left to right
 * and its products go to the buckets of other ranks. This is the heap's order as long as no product
 * makes a pair of a better rank, which never happens with trained vocabularies. If it happens
 * during a sweep, the rest of the sweep is put back, and after MAX_PUT_BACKS such cases the heap
 * takes over from the current list. With ties between ranks (merge_rank) only the heap is right.
 *
 * Entries whose pair has changed since are recognised when they are taken. A merge's product never
 * makes a pair of the same rank again, because pieces are never empty; so both ways take equal
 * ranks from left to right. */
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "data/tokenizer/bpe_merge.h"

#define BUCKETS_FROM  2048 /* Number of symbols; with fewer, the heap stays in the cache. */
#define MAX_PUT_BACKS 32

/* A 4-ary min-heap of rank << 40 | position. */
static void sift_down(uint64_t *heap, size_t n, size_t at) {
    const uint64_t moved = heap[at];
    for (;;) {
        const size_t child = 4 * at + 1;
        const size_t end = child + 4 < n ? child + 4 : n;
        size_t least = child;
        if (child >= n) {
            break;
        }
        for (size_t i = child + 1; i < end; i++) {
            least = heap[i] < heap[least] ? i : least;
        }
        if (heap[least] >= moved) {
            break;
        }
        heap[at] = heap[least];
        at = least;
    }
    heap[at] = moved;
}

static void heap_push(uint64_t *heap, size_t *n, uint64_t key) {
    size_t at = (*n)++;
    while (at > 0 && heap[(at - 1) / 4] > key) {
        heap[at] = heap[(at - 1) / 4];
        at = (at - 1) / 4;
    }
    heap[at] = key;
}

static uint64_t heap_pop(uint64_t *heap, size_t *n) {
    const uint64_t top = heap[0];
    heap[0] = heap[--*n];
    if (*n > 1) {
        sift_down(heap, *n, 0);
    }
    return top;
}

/* Merge of the pair that begins at node i, or LT_NO_ID at the end of the list. */
static uint32_t pair_at(const lt_bpe *b, const lt_bpe_list *l, uint32_t i) {
    return l->next[i] == LT_NO_ID ? LT_NO_ID : lt_bpe_find_pair(b, l->ids[i], l->ids[l->next[i]]);
}

/* Merge the pair that begins at node i. */
static void join(const lt_bpe *b, lt_bpe_list *l, uint32_t i) {
    const uint32_t gone = l->next[i];
    l->ids[i] = lt_bpe_piece_of(b, l->merge[i]);
    l->next[i] = l->next[gone];
    if (l->next[gone] != LT_NO_ID) {
        l->prev[l->next[gone]] = i;
    }
    l->merge[gone] = LT_NO_ID;
}

static void offer(const lt_bpe *b, lt_bpe_list *l, size_t *n_heap, uint32_t i) {
    l->merge[i] = pair_at(b, l, i);
    if (l->merge[i] != LT_NO_ID) {
        heap_push(l->heap, n_heap, (uint64_t)lt_bpe_rank_of(b, l->merge[i]) << 40 | i);
    }
}

/* Merge the current list, whose l->merge is filled. */
static void merge_by_heap(const lt_bpe *b, lt_bpe_list *l) {
    size_t n_heap = 0;
    for (uint32_t i = 0; i != LT_NO_ID; i = l->next[i]) {
        if (l->merge[i] != LT_NO_ID) {
            l->heap[n_heap++] = (uint64_t)lt_bpe_rank_of(b, l->merge[i]) << 40 | i;
        }
    }
    for (size_t i = n_heap / 4 + 1; i-- > 0;) {
        if (i < n_heap) {
            sift_down(l->heap, n_heap, i);
        }
    }
    /* At most 2n iterations: each merge removes a symbol and offers two pairs. */
    while (n_heap > 0) {
        const uint64_t top = heap_pop(l->heap, &n_heap);
        const uint32_t i = (uint32_t)(top & 0xFFFFFFFFFFu);
        if (l->merge[i] == LT_NO_ID || lt_bpe_rank_of(b, l->merge[i]) != (uint32_t)(top >> 40)) {
            continue; /* The pair has changed since it was offered. */
        }
        join(b, l, i);
        offer(b, l, &n_heap, i);
        if (l->prev[i] != LT_NO_ID) {
            offer(b, l, &n_heap, l->prev[i]);
        }
    }
}

/* A binary min-heap of ranks. */
static void ranks_push(lt_bpe_list *l, uint32_t rank) {
    size_t at = l->n_ranks++;
    while (at > 0 && l->ranks[(at - 1) / 2] > rank) {
        l->ranks[at] = l->ranks[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    l->ranks[at] = rank;
}

static uint32_t ranks_pop(lt_bpe_list *l) {
    const uint32_t top = l->ranks[0], moved = l->ranks[--l->n_ranks];
    size_t at = 0;
    for (size_t child; (child = 2 * at + 1) < l->n_ranks; at = child) {
        child += child + 1 < l->n_ranks && l->ranks[child + 1] < l->ranks[child];
        if (l->ranks[child] >= moved) {
            break;
        }
        l->ranks[at] = l->ranks[child];
    }
    l->ranks[at] = moved;
    return top;
}

static void put_in_bucket(lt_bpe_list *l, uint32_t rank, uint32_t position) {
    lt_bpe_bucket *k = &l->buckets[rank];
    uint32_t e = l->free_entry;
    if (e != 0) {
        l->free_entry = l->link[e];
    } else {
        e = ++l->n_entries;
    }
    l->at[e] = position;
    l->link[e] = 0;
    if (k->head == 0) {
        k->head = e;
        ranks_push(l, rank);
    } else {
        l->link[k->tail] = e;
    }
    k->tail = e;
}

/* Sort 32-bit keys: three passes of 11 bits. */
static uint32_t *sort_positions(uint32_t *from, uint32_t *to, size_t n) {
    for (int shift = 0; shift < 33; shift += 11) {
        size_t start[2048] = {0}, sum = 0;
        uint32_t *swap;
        for (size_t i = 0; i < n; i++) {
            start[from[i] >> shift & 2047]++;
        }
        for (size_t k = 0; k < 2048; k++) {
            const size_t count = start[k];
            start[k] = sum;
            sum += count;
        }
        for (size_t i = 0; i < n; i++) {
            to[start[from[i] >> shift & 2047]++] = from[i];
        }
        swap = from;
        from = to;
        to = swap;
    }
    return from;
}

static int compare_positions(const void *a, const void *b) {
    const uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return x < y ? -1 : x > y;
}

/* Empty a bucket, and sort its positions from left to right. They are a few ascending runs, often
 * one. */
static uint32_t *take_bucket(lt_bpe_list *l, uint32_t rank, size_t *n) {
    lt_bpe_bucket *k = &l->buckets[rank];
    bool ascending = true;
    size_t count = 0;
    for (uint32_t e = k->head; e != 0; e = l->link[e]) {
        ascending &= count == 0 || l->taken[count - 1] <= l->at[e];
        l->taken[count++] = l->at[e];
    }
    l->link[k->tail] = l->free_entry;
    l->free_entry = k->head;
    *k = (lt_bpe_bucket){0};
    *n = count;
    if (ascending) {
        return l->taken;
    }
    if (count < 1024) {
        qsort(l->taken, count, sizeof *l->taken, compare_positions);
        return l->taken;
    }
    return sort_positions(l->taken, l->sorted, count);
}

/* Look up the pair at i again and put it in its bucket. True: its rank is better than the one
 * being swept. */
static bool offer_bucket(const lt_bpe *b, lt_bpe_list *l, uint32_t i, uint32_t sweeping) {
    l->merge[i] = pair_at(b, l, i);
    if (l->merge[i] == LT_NO_ID) {
        return false;
    }
    put_in_bucket(l, l->merge[i], i);
    return l->merge[i] < sweeping;
}

/* Merge the pairs of one rank from left to right; false: a pair of a better rank has appeared, and
 * the rest was put back in its bucket. */
static bool sweep(const lt_bpe *b, lt_bpe_list *l, uint32_t rank) {
    size_t n;
    const uint32_t *positions = take_bucket(l, rank, &n);
    for (size_t k = 0; k < n; k++) {
        const uint32_t i = positions[k];
        bool better;
        if (l->merge[i] != rank) {
            continue; /* The pair has changed since it was put here. */
        }
        join(b, l, i);
        better = offer_bucket(b, l, i, rank);
        if (l->prev[i] != LT_NO_ID) {
            better |= offer_bucket(b, l, l->prev[i], rank);
        }
        if (better) {
            for (k++; k < n; k++) {
                if (l->merge[positions[k]] == rank) {
                    put_in_bucket(l, rank, positions[k]);
                }
            }
            return false;
        }
    }
    return true;
}

static lt_err reserve_buckets(const lt_bpe *b, lt_bpe_list *l) {
    if (l->n_buckets < b->n_merges) {
        free(l->buckets);
        free(l->ranks);
        l->buckets = calloc(b->n_merges, sizeof *l->buckets);
        l->ranks = malloc((b->n_merges + (size_t)1) * sizeof *l->ranks);
        l->n_buckets = l->buckets != NULL && l->ranks != NULL ? b->n_merges : 0;
    }
    if (l->bucket_room < l->room) {
        /* Each merge removes a symbol and adds two entries. */
        const size_t n = 3 * l->room + 1;
        free(l->at);
        l->at = malloc(4 * n * sizeof *l->at);
        l->bucket_room = l->at != NULL ? l->room : 0;
        l->link = l->at != NULL ? l->at + n : NULL;
        l->taken = l->at != NULL ? l->at + 2 * n : NULL;
        l->sorted = l->at != NULL ? l->at + 3 * n : NULL;
    }
    if (l->n_buckets < b->n_merges || l->bucket_room < l->room) {
        LT_FAIL(LT_ERR_OOM, "buckets for a word of %zu symbols", l->room);
    }
    return LT_OK;
}

static lt_err merge_by_buckets(const lt_bpe *b, lt_bpe_list *l) {
    int put_backs = 0;
    LT_TRY(reserve_buckets(b, l));
    l->n_entries = l->free_entry = 0;
    l->n_ranks = 0;
    for (uint32_t i = 0; i != LT_NO_ID; i = l->next[i]) {
        if (l->merge[i] != LT_NO_ID) {
            put_in_bucket(l, l->merge[i], i);
        }
    }
    while (l->n_ranks > 0) {
        const uint32_t rank = ranks_pop(l);
        put_backs += !sweep(b, l, rank);
        if (put_backs > MAX_PUT_BACKS) {
            while (l->n_ranks > 0) {
                l->buckets[ranks_pop(l)] = (lt_bpe_bucket){0};
            }
            merge_by_heap(b, l);
        }
    }
    return LT_OK;
}

lt_err lt_bpe_merge_list(const lt_bpe *b, lt_bpe_list *l, size_t n, size_t *left) {
    LT_ASSERT(n >= 1 && n <= l->room);
    for (uint32_t i = 0; i < n; i++) {
        l->next[i] = i + 1 < n ? i + 1 : LT_NO_ID;
        l->prev[i] = i > 0 ? i - 1 : LT_NO_ID;
    }
    for (uint32_t i = 0; i < n; i++) {
        l->merge[i] = pair_at(b, l, i);
    }
    if (n >= BUCKETS_FROM && b->merge_rank == NULL) {
        LT_TRY(merge_by_buckets(b, l));
    } else {
        merge_by_heap(b, l);
    }
    *left = 0;
    for (uint32_t i = 0; i != LT_NO_ID; i = l->next[i]) {
        l->ids[(*left)++] = l->ids[i];
    }
    return LT_OK;
}

lt_err lt_bpe_list_reserve(lt_bpe_list *l, size_t n) {
    size_t room = 1024;
    if (n <= l->room) {
        return LT_OK;
    }
    if (n >= UINT32_MAX / 8) {
        LT_FAIL(LT_ERR_LIMIT, "a word of %zu symbols", n);
    }
    while (room < n) {
        room *= 2;
    }
    lt_bpe_list_free(l);
    l->ids = malloc(4 * room * sizeof *l->ids);
    l->heap = malloc((2 * room + 4) * sizeof *l->heap);
    if (l->ids == NULL || l->heap == NULL) {
        lt_bpe_list_free(l);
        LT_FAIL(LT_ERR_OOM, "a word of %zu symbols", n);
    }
    l->merge = l->ids + room;
    l->next = l->ids + 2 * room;
    l->prev = l->ids + 3 * room;
    l->room = room;
    return LT_OK;
}

void lt_bpe_list_free(lt_bpe_list *l) {
    free(l->ids);
    free(l->heap);
    free(l->buckets);
    free(l->ranks);
    free(l->at);
    *l = (lt_bpe_list){0};
}
