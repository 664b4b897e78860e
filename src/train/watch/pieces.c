/* pieces.c: see pieces.h. */
#include "train/watch/pieces.h"

#include <stdlib.h>
#include <xxhash.h>

#include "base/clock.h"
#include "base/error.h"
#include "tensor/ops.h"

#define PIECE_BYTES ((size_t)256 << 10)
#define WHAT        "hashes of pieces"

/* Cut all spans into pieces, and write their places; places NULL: only count them. */
static int cut(const lt_pieces *p, const lt_piece_span *spans, int n_spans, int64_t *places) {
    int n = 0;
    for (int s = 0; s < n_spans; s++) {
        for (size_t at = 0; at < spans[s].bytes; at += PIECE_BYTES, n++) {
            const size_t left = spans[s].bytes - at;
            if (places != NULL) {
                p->span[n] = s;
                places[2 * n] = (int64_t)((uintptr_t)spans[s].data + at - (uintptr_t)p->base);
                places[2 * n + 1] = (int64_t)(left < PIECE_BYTES ? left : PIECE_BYTES);
            }
        }
    }
    return n;
}

static size_t bytes_of(const lt_pieces *p, int numbers) {
    return (size_t)p->n * (size_t)numbers * sizeof(int64_t);
}

static lt_err open_memory(lt_pieces *p) {
    const lt_backend *be = p->device->backend;
    void *places, *results, *hashes;
    LT_TRY(be->alloc(p->device, &places, bytes_of(p, 2), WHAT));
    p->places = places;
    LT_TRY(be->alloc(p->device, &results, bytes_of(p, 1), WHAT));
    p->results = results;
    LT_TRY(be->host_alloc(p->device, &hashes, bytes_of(p, 1), WHAT));
    p->hashes = hashes;
    if (be->moment_open != NULL) {
        LT_TRY(be->moment_open(p->device, &p->began, true));
        LT_TRY(be->moment_open(p->device, &p->ended, true));
    }
    return LT_OK;
}

lt_err lt_pieces_open(lt_pieces *p, lt_device *device, lt_queue *queue, const lt_piece_span *spans,
                      int n_spans) {
    lt_err err = LT_OK;
    int64_t *places = NULL;
    *p = (lt_pieces){.device = device, .queue = queue};
    p->n = cut(p, spans, n_spans, NULL);
    LT_ASSERT(p->n > 0);
    p->base = spans[0].data;
    p->span = calloc((size_t)p->n, sizeof *p->span);
    places = calloc(1, bytes_of(p, 2));
    if (p->span == NULL || places == NULL) {
        LT_FAIL_DONE(LT_ERR_OOM, WHAT ": %d", p->n);
    }
    (void)cut(p, spans, n_spans, places);
    LT_TRY_DONE(open_memory(p));
    LT_TRY_DONE(device->backend->upload(queue, p->places, places, bytes_of(p, 2)));
    LT_TRY_DONE(device->backend->sync(queue));
done:
    free(places);
    return err;
}

void lt_pieces_close(lt_pieces *p) {
    const lt_backend *be = p->device != NULL ? p->device->backend : NULL;
    if (be == NULL) {
        return;
    }
    if (be->moment_close != NULL) {
        be->moment_close(p->device, p->began);
        be->moment_close(p->device, p->ended);
    }
    if (p->places != NULL) {
        be->release(p->device, p->places, bytes_of(p, 2));
    }
    if (p->results != NULL) {
        be->release(p->device, p->results, bytes_of(p, 1));
    }
    if (p->hashes != NULL) {
        be->host_release(p->device, p->hashes, bytes_of(p, 1));
    }
    free(p->span);
    *p = (lt_pieces){0};
}

lt_err lt_pieces_queue(lt_pieces *p, int first, int end) {
    const lt_backend *be = p->device->backend;
    const double start_s = lt_clock_s();
    const int n = end - first;
    const lt_hash_args a = {.out = lt_tensor_1d(p->results + first, LT_I64, n),
                            .pieces = lt_tensor_2d(p->places + 2 * (size_t)first, LT_I64, n, 2),
                            .x = {.data = (void *)(uintptr_t)p->base}};
    LT_ASSERT(first >= 0 && n >= 0 && end <= p->n);
    p->first = first;
    p->end = end;
    if (n == 0) {
        return LT_OK;
    }
    LT_TRY(p->began != NULL ? be->moment_mark(p->queue, p->began) : LT_OK);
    LT_TRY(be->ops->hash(p->queue, &a));
    LT_TRY(be->download(p->queue, p->hashes + first, p->results + first,
                        (size_t)n * sizeof *p->hashes));
    LT_TRY(p->ended != NULL ? be->moment_mark(p->queue, p->ended) : LT_OK);
    p->seconds = lt_clock_s() - start_s;
    return LT_OK;
}

int64_t lt_pieces_sum(const lt_pieces *p) {
    return (int64_t)XXH3_64bits(p->hashes + p->first,
                                (size_t)(p->end - p->first) * sizeof *p->hashes);
}

lt_err lt_pieces_seconds(const lt_pieces *p, double *seconds) {
    *seconds = p->end > p->first ? p->seconds : 0.0;
    return p->began != NULL && p->end > p->first
               ? p->device->backend->moment_between(p->device, p->began, p->ended, seconds)
               : LT_OK;
}
