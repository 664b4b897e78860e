/* loader.c: mixes sources into one endless sequence of global rows and gives this rank its share; a
 * thread prefetches (lateen/data.h).
 *
 *     packers (1 per source) ──row──▶ ring of slots ──copy──▶ the caller's
 *     batch
 *          prefetch thread                │                    training thread
 *     `produced` advances here            └ each slot carries the state after it; `consumed` is
 *                                           that of the last one
 *
 * MIXTURE   At each global row, every source is credited with its share (weights in units of 2^-32
 *           that add up to one), and the source with the largest credit supplies the row, for
 *           which its credit is reduced by one. Counts stay within about a row of their share,
 *           however long the run, and nothing is random.
 * RANKS     All ranks walk through all global rows with the same cursors and build only their own
 *           rows; skipping a row costs a few additions. So the state is the same on every rank, and
 *           any number of ranks can continue from it.
 * STATE     lt_loader_state is a function of the number of global rows handed out. A slot is a
 *           round of `world` rows, so a state is only seen between rounds.
 * MEMORY    One arena at open; afterwards nothing is allocated (tests/unit/data/test_loader.c
 *           counts). Shards are mapped; resident pages are released every MAPPED_MAX bytes, so that
 *           a run over terabytes needs no more memory than one over megabytes. */
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/rng.h"
#include "data/goldfish.h"
#include "data/packer.h"
#include "data/row.h"
#include "lateen/data.h"

#define SHARE_ONE    ((int64_t)1 << 32)
#define SEQ_MAX      ((int64_t)1 << 24)
#define PREFETCH_MAX 65536
#define MAPPED_MAX   ((size_t)16 << 20) /* Most resident bytes of the mapped files. */
#define FAULT_BYTES  ((size_t)64 << 10) /* Linux maps this much around a touched page. */
/* Page faults of one document: its tokens, its pointer, its entry in the table (and its mask). */
#define DOC_FAULTS 3

typedef enum { SLOT_ROW, SLOT_BLANK, SLOT_END } slot_kind;

typedef struct {
    slot_kind kind;
    lt_err err; /* Set if there is no row because of a failure, which the loader keeps. */
    lt_row row;
    lt_loader_state after;
} slot;

struct lt_loader {
    lt_loader_options options;
    char **paths;       /* (n_sources) copies, for messages */
    lt_packer *packers; /* (n_sources) */
    int64_t share[LT_LOADER_SOURCES_MAX];
    lt_arena arena;
    lt_row_builder builder;
    lt_loader_state produced, consumed;
    /* Bytes of the shards; bytes touched since pages were released. */
    size_t mapped_bytes, touched_bytes;
    double wait_s;
    slot *slots; /* (n_slots) a ring: `filled` slots from `head` on */
    size_t n_slots, head, filled;
    lt_failure failure;   /* The failure of the last slot. */
    pthread_mutex_t lock; /* Guards head, filled, stop; a slot belongs to one thread at a time. */
    pthread_cond_t changed;
    bool stop, running, lock_made;
    pthread_t thread;
};

lt_loader_options lt_loader_defaults(void) {
    return (lt_loader_options){.seq = 1024,
                               .packing = LT_PACK_STREAM,
                               .shuffle = LT_SHUFFLE_ROWS,
                               .bos_id = -1,
                               .eod_id = -1,
                               .pad_id = -1,
                               .mask_documents = true,
                               .reset_positions = true,
                               .goldfish_h = 50,
                               .world = 1,
                               .prefetch_rows = 64,
                               .llmc_document_id = -1};
}

static lt_err check_id(const char *what, int64_t id, int64_t vocab_size, bool needed) {
    if (id < -1 || id >= vocab_size || (needed && id < 0)) {
        LT_FAIL(LT_ERR_ARG, "loader: %s id %lld%s, the vocabulary has %lld", what, (long long)id,
                needed && id < 0 ? " is not set but needed" : "", (long long)vocab_size);
    }
    return LT_OK;
}

static lt_err check_range(const char *what, int64_t x, int64_t least, int64_t most) {
    if (x < least || x > most) {
        LT_FAIL(LT_ERR_ARG, "loader: %s = %lld is outside [%lld, %lld]", what, (long long)x,
                (long long)least, (long long)most);
    }
    return LT_OK;
}

static lt_err check_options(const lt_loader_options *o) {
    LT_TRY(check_range("sources", o->n_sources, 1, LT_LOADER_SOURCES_MAX));
    LT_TRY(check_range("seq", o->seq, 1, SEQ_MAX));
    LT_TRY(check_range("vocab_size", o->vocab_size, 1, (int64_t)1 << 31));
    LT_TRY(check_range("epochs", o->epochs, 0, INT64_MAX));
    LT_TRY(check_range("shuffle_rows", o->shuffle_rows, 0, INT64_MAX));
    if (o->shuffle_rows > 0 && !(o->packing == LT_PACK_STREAM && o->shuffle == LT_SHUFFLE_ROWS)) {
        LT_FAIL(LT_ERR_ARG, "loader: windows of %lld rows need a stream whose rows are shuffled",
                (long long)o->shuffle_rows);
    }
    LT_TRY(check_range("goldfish_k", o->goldfish_k, 0, INT32_MAX));
    LT_TRY(check_range("goldfish_h", o->goldfish_h, o->goldfish_k > 0 ? 1 : 0, SEQ_MAX));
    LT_TRY(check_range("world", o->world, 1, INT32_MAX));
    LT_TRY(check_range("rank", o->rank, 0, o->world - 1));
    LT_TRY(check_range("prefetch_rows", o->prefetch_rows, 0, PREFETCH_MAX));
    LT_TRY(check_id("BOS", o->bos_id, o->vocab_size, o->add_bos));
    LT_TRY(check_id("EOD", o->eod_id, o->vocab_size, o->add_eod || o->mask_eod));
    LT_TRY(check_id("padding", o->pad_id, o->vocab_size, false));
    if (o->split != LT_SPLIT_ALL && !(o->val_fraction > 0 && o->val_fraction < 1)) {
        LT_FAIL(LT_ERR_ARG, "loader: a validation split needs a fraction between 0 and 1, not %g",
                o->val_fraction);
    }
    for (int64_t i = 0; i < o->n_sources; i++) {
        if (!(o->sources[i].weight > 0) || !isfinite(o->sources[i].weight)) {
            LT_FAIL(LT_ERR_ARG, "loader: weight %g of %s", o->sources[i].weight,
                    o->sources[i].path);
        }
    }
    return LT_OK;
}

/* Shares in units of 2^-32 that add up to exactly one; the largest takes the rounding error. */
static void set_shares(lt_loader *l) {
    const lt_loader_options *o = &l->options;
    double sum = 0;
    int64_t left = SHARE_ONE, largest = 0;
    for (int64_t i = 0; i < o->n_sources; i++) {
        sum += o->sources[i].weight;
    }
    for (int64_t i = 0; i < o->n_sources; i++) {
        l->share[i] = (int64_t)(o->sources[i].weight / sum * (double)SHARE_ONE);
        left -= l->share[i];
        largest = l->share[i] > l->share[largest] ? i : largest;
    }
    l->share[largest] += left;
}

/* Hash of everything that decides which tokens are in which row. */
static uint64_t fingerprint(const lt_loader *l) {
    const lt_loader_options *o = &l->options;
    const uint64_t numbers[] = {(uint64_t)o->seq,
                                o->seed,
                                (uint64_t)o->packing,
                                (uint64_t)o->shuffle,
                                (uint64_t)o->split,
                                (uint64_t)o->epochs,
                                (uint64_t)((o->add_bos ? o->bos_id : -1) + 1),
                                (uint64_t)((o->add_eod ? o->eod_id : -1) + 1),
                                (uint64_t)o->n_sources};
    uint64_t h = 0;
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        h = lt_rng_mix(h ^ numbers[i]);
    }
    /* Left out if 0, so that states saved before this option existed stay valid. */
    if (o->shuffle_rows > 0) {
        h = lt_rng_mix(h ^ (uint64_t)o->shuffle_rows);
    }
    for (int64_t i = 0; i < o->n_sources; i++) {
        const lt_doc_stream *s = &l->packers[i].source;
        h = lt_rng_mix(h ^ (uint64_t)l->share[i]);
        h = lt_rng_mix(h ^ s->lo);
        h = lt_rng_mix(h ^ s->hi);
        h = lt_rng_mix(h ^ (s->doc_hi - s->doc_lo));
    }
    return h;
}

/* The source of the next global row: the one with the largest credit; in a bounded loader, the
 * first that is not finished. -1: none. */
static int64_t pick_source(lt_loader *l) {
    lt_loader_state *s = &l->produced;
    const int64_t n = l->options.n_sources;
    int64_t best = 0;
    if (l->options.epochs > 0) {
        while (best < n && s->sources[best].epoch >= (uint64_t)l->options.epochs) {
            best++;
        }
        return best < n ? best : -1;
    }
    for (int64_t i = 0; i < n; i++) {
        s->sources[i].credit += l->share[i];
        best = s->sources[i].credit > s->sources[best].credit ? i : best;
    }
    s->sources[best].credit -= SHARE_ONE;
    return best;
}

/* Called after a row: release the shards' pages if many may be resident. */
static void bound_resident(lt_loader *l) {
    if (l->mapped_bytes <= MAPPED_MAX) {
        return;
    }
    l->touched_bytes += (size_t)l->options.seq * (sizeof(int32_t) + l->builder.masked) +
                        (size_t)(l->builder.n_starts + 1) * (DOC_FAULTS + l->builder.masked) *
                            FAULT_BYTES;
    if (l->touched_bytes >= MAPPED_MAX) {
        for (int64_t i = 0; i < l->options.n_sources; i++) {
            lt_doc_stream_forget(&l->packers[i].source);
        }
        l->touched_bytes = 0;
    }
}

/* Produce one round: `world` global rows, of which only this rank's row is built. */
static void produce(lt_loader *l, slot *to) {
    int64_t n = 0;
    bool mine = false;

    to->err = LT_OK;
    for (; n < l->options.world; n++) {
        const int64_t i = pick_source(l);
        if (i < 0) {
            break;
        }
        to->err = lt_packer_take(&l->packers[i], &l->produced.sources[i], &l->builder,
                                 n == l->options.rank ? &to->row : NULL);
        if (to->err != LT_OK) {
            lt_failure_keep(&l->failure, to->err);
            return;
        }
        mine = mine || n == l->options.rank;
        l->produced.rows++;
    }
    to->kind = n == 0 ? SLOT_END : mine ? SLOT_ROW : SLOT_BLANK;
    if (to->kind != SLOT_ROW) {
        lt_row_blank(&l->builder, &to->row);
    }
    to->after = l->produced;
    bound_resident(l);
}

/* Whether it is an end or an error: no slot follows it. */
static bool is_last(const slot *s) {
    return s->err != LT_OK || s->kind == SLOT_END;
}

static void *prefetch(void *arg) {
    lt_loader *l = arg;
    bool over = false;
    while (!over) {
        slot *to;
        pthread_mutex_lock(&l->lock);
        while (l->filled == l->n_slots && !l->stop) {
            pthread_cond_wait(&l->changed, &l->lock);
        }
        over = l->stop;
        to = &l->slots[(l->head + l->filled) % l->n_slots];
        pthread_mutex_unlock(&l->lock);
        if (over) {
            break;
        }
        produce(l, to);
        over = is_last(to);
        pthread_mutex_lock(&l->lock);
        l->filled++;
        pthread_cond_signal(&l->changed);
        pthread_mutex_unlock(&l->lock);
    }
    return NULL;
}

/* Start the thread from the state `consumed`. It blocks signals, so that other threads receive
 * them. */
static lt_err start(lt_loader *l) {
    sigset_t all, before;
    int status;
    l->produced = l->consumed;
    l->head = l->filled = 0;
    l->stop = false;
    if (l->options.prefetch_rows == 0) {
        return LT_OK;
    }
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    status = pthread_create(&l->thread, NULL, prefetch, l);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (status != 0) {
        LT_FAIL(LT_ERR_OOM, "loader: prefetch thread: %s", strerror(status));
    }
    l->running = true;
    return LT_OK;
}

static void halt(lt_loader *l) {
    if (!l->running) {
        return;
    }
    pthread_mutex_lock(&l->lock);
    l->stop = true;
    pthread_cond_signal(&l->changed);
    pthread_mutex_unlock(&l->lock);
    pthread_join(l->thread, NULL);
    l->running = false;
}

static void carve(lt_loader *l) {
    l->slots = lt_arena_take(&l->arena, l->n_slots * sizeof *l->slots, LT_ARENA_ALIGN);
    lt_row_builder_carve(&l->builder, l->options.seq, &l->arena);
    for (int64_t i = 0; i < l->options.n_sources; i++) {
        lt_packer_carve(&l->packers[i], &l->options, &l->arena);
    }
    for (size_t i = 0; i < l->n_slots; i++) {
        lt_row measured; /* While measuring there are no slots to write to. */
        lt_row_carve(l->slots != NULL ? &l->slots[i].row : &measured, l->options.seq, &l->arena);
    }
}

static lt_err open_sources(lt_loader *l, const lt_loader_options *o) {
    const size_t n = (size_t)o->n_sources;
    l->paths = calloc(n, sizeof *l->paths);
    l->packers = calloc(n, sizeof *l->packers);
    if (l->paths == NULL || l->packers == NULL) {
        LT_FAIL(LT_ERR_OOM, "loader of %zu sources", n);
    }
    for (size_t i = 0; i < n; i++) {
        l->paths[i] = strdup(o->sources[i].path);
        if (l->paths[i] == NULL) {
            LT_FAIL(LT_ERR_OOM, "loader of %zu sources", n);
        }
        l->packers[i].options = &l->options;
        l->packers[i].seed = lt_rng_mix(o->seed ^ lt_rng_mix(i));
        LT_TRY(lt_doc_stream_open(&l->packers[i].source, l->paths[i], o));
        /* Opening has touched pages of the tables. */
        lt_doc_stream_forget(&l->packers[i].source);
        l->mapped_bytes += lt_doc_stream_mapped_bytes(&l->packers[i].source);
        l->builder.masked |= l->packers[i].source.masked;
    }
    set_shares(l);
    l->options.sources = NULL; /* They belong to the caller, who may free them. */
    return LT_OK;
}

lt_err lt_loader_open(lt_loader **out, const lt_loader_options *options) {
    lt_err err = LT_OK;
    lt_loader *l = NULL;

    LT_ASSERT(out != NULL && options != NULL);
    LT_TRY_DONE(check_options(options));
    l = calloc(1, sizeof *l);
    if (l == NULL) {
        LT_FAIL_DONE(LT_ERR_OOM, "loader");
    }
    l->options = *options;
    LT_TRY_DONE(open_sources(l, options));
    if (options->goldfish_k > 0) {
        LT_TRY_DONE(
            lt_goldfish_open(&l->builder.goldfish, options->goldfish_k, options->goldfish_h));
    }
    l->builder.options = &l->options;
    l->n_slots = options->prefetch_rows > 0 ? (size_t)options->prefetch_rows : 1;
    carve(l);
    LT_TRY_DONE(lt_arena_open(&l->arena, "loader"));
    carve(l);
    pthread_mutex_init(&l->lock, NULL); /* Neither call fails on Linux. */
    pthread_cond_init(&l->changed, NULL);
    l->lock_made = true;
    l->consumed = (lt_loader_state){.fingerprint = fingerprint(l), .n_sources = options->n_sources};
    LT_TRY_DONE(start(l));
    *out = l;
    l = NULL;
done:
    lt_loader_close(l);
    return err;
}

void lt_loader_close(lt_loader *l) {
    if (l == NULL) {
        return;
    }
    halt(l);
    if (l->lock_made) {
        pthread_cond_destroy(&l->changed);
        pthread_mutex_destroy(&l->lock);
    }
    for (int64_t i = 0; l->packers != NULL && i < l->options.n_sources; i++) {
        lt_doc_stream_close(&l->packers[i].source);
    }
    for (int64_t i = 0; l->paths != NULL && i < l->options.n_sources; i++) {
        free(l->paths[i]);
    }
    free(l->packers);
    free(l->paths);
    lt_goldfish_close(l->builder.goldfish);
    lt_arena_close(&l->arena);
    free(l);
}

/* The oldest filled slot; if there is no thread, it is filled now. */
static slot *front(lt_loader *l) {
    slot *s;
    if (!l->running) {
        if (l->filled == 0) {
            produce(l, &l->slots[l->head]);
            l->filled = 1;
        }
        return &l->slots[l->head];
    }
    pthread_mutex_lock(&l->lock);
    if (l->filled == 0) {
        const double from_s = lt_clock_s();
        while (l->filled == 0) {
            pthread_cond_wait(&l->changed, &l->lock);
        }
        l->wait_s += lt_clock_s() - from_s;
    }
    s = &l->slots[l->head];
    pthread_mutex_unlock(&l->lock);
    return s;
}

static void pop(lt_loader *l) {
    pthread_mutex_lock(&l->lock);
    l->head = (l->head + 1) % l->n_slots;
    l->filled--;
    pthread_cond_signal(&l->changed);
    pthread_mutex_unlock(&l->lock);
}

lt_err lt_loader_next(lt_loader *l, int64_t n_rows, lt_batch *batch, int64_t *got) {
    const size_t bytes = (size_t)l->options.seq * sizeof(int32_t);
    int64_t n_real = 0;

    LT_ASSERT(n_rows >= 1 && n_rows <= batch->batch);
    LT_ASSERT(batch->seq == l->options.seq);
    LT_ASSERT(got != NULL || l->options.epochs == 0);
    for (int64_t i = 0; i < n_rows; i++) {
        const slot *s = front(l);
        const size_t at = (size_t)(i * l->options.seq);
        if (s->err != LT_OK) {
            LT_TRY(lt_failure_raise(&l->failure));
        }
        memcpy(batch->tokens + at, s->row.tokens, bytes);
        memcpy(batch->labels + at, s->row.labels, bytes);
        memcpy(batch->doc_start + at, s->row.doc_start, bytes);
        memcpy(batch->positions + at, s->row.positions, bytes);
        n_real += s->kind == SLOT_ROW;
        l->consumed = s->after;
        if (s->kind != SLOT_END) { /* The end stays at the front. */
            pop(l);
        }
    }
    if (got != NULL) {
        *got = n_real;
    }
    return LT_OK;
}

void lt_loader_get_state(const lt_loader *l, lt_loader_state *out) {
    *out = l->consumed;
}

lt_err lt_loader_set_state(lt_loader *l, const lt_loader_state *state) {
    if (state->fingerprint != l->consumed.fingerprint || state->n_sources != l->options.n_sources) {
        LT_FAIL(
            LT_ERR_STATE,
            "loader: the saved position (after %llu rows) belongs to other rows: seed, tokens in a "
            "row, packing, shuffle, split, BOS and EOD, weights, and the tokens and documents of "
            "each source must be the same as then (fingerprint %016llx, now %016llx)",
            (unsigned long long)state->rows, (unsigned long long)state->fingerprint,
            (unsigned long long)l->consumed.fingerprint);
    }
    halt(l);
    l->consumed = *state;
    return start(l);
}

lt_loader_info lt_loader_get_info(const lt_loader *l) {
    lt_loader_info info = {.wait_s = l->wait_s,
                           .memory_bytes = sizeof *l + l->arena.size_bytes,
                           .mapped_bytes = l->mapped_bytes < MAPPED_MAX ? l->mapped_bytes
                                                                        : MAPPED_MAX};
    bool known = true;
    for (int64_t i = 0; i < l->options.n_sources; i++) {
        const lt_doc_stream *s = &l->packers[i].source;
        const uint64_t rows = lt_packer_epoch_rows(&l->packers[i], 0);
        info.tokens += s->hi - s->lo;
        info.documents += s->doc_hi - s->doc_lo;
        info.rows += rows;
        known = known && rows > 0;
    }
    info.rows = known ? info.rows : 0;
    return info;
}

int64_t lt_loader_n_sources(const lt_loader *l) {
    return l->options.n_sources;
}

size_t lt_loader_n_shards(const lt_loader *l, int64_t source) {
    LT_ASSERT(source >= 0 && source < l->options.n_sources);
    return l->packers[source].source.n_shards;
}

const char *lt_loader_shard_path(const lt_loader *l, int64_t source, size_t shard) {
    LT_ASSERT(shard < lt_loader_n_shards(l, source));
    return lt_shard_path(l->packers[source].source.shards[shard]);
}

const lt_far_shard *lt_loader_far_shard(const lt_loader *l, int64_t source, size_t shard) {
    LT_ASSERT(shard < lt_loader_n_shards(l, source));
    return lt_shard_far(l->packers[source].source.shards[shard]);
}

bool lt_loader_in_order(const lt_loader_options *o) {
    return o->shuffle == LT_SHUFFLE_NONE ||
           (o->shuffle == LT_SHUFFLE_ROWS && (o->packing != LT_PACK_STREAM || o->shuffle_rows > 0));
}

/* Consecutive tokens of a source's stream from which rows are drawn at random; if rows come from
 * windows of documents, the average length of a window. */
static double window_tokens(const lt_loader_options *o, const lt_doc_stream *s) {
    const double tokens = (double)(s->hi - s->lo), n = (double)(s->doc_hi - s->doc_lo);
    const double mean = n > 0.0 ? tokens / n : 0.0, seq = (double)o->seq;
    if (!lt_loader_in_order(o)) {
        return tokens;
    }
    return o->shuffle == LT_SHUFFLE_NONE  ? 0.0
           : o->packing == LT_PACK_STREAM ? (double)o->shuffle_rows * seq
                                          : LT_PACK_WINDOW * (mean < seq ? mean : seq);
}

/* A window may begin and end anywhere in a shard. */
size_t lt_loader_far_bytes(const lt_loader *l, size_t *window_bytes) {
    size_t bytes = 0;
    *window_bytes = 0;
    for (int64_t i = 0; i < l->options.n_sources; i++) {
        const lt_doc_stream *s = &l->packers[i].source;
        size_t all = 0, largest = 0, each = 0;
        double most, window;
        for (size_t k = 0; k < s->n_shards; k++) {
            const lt_far_shard *far = lt_shard_far(s->shards[k]);
            const lt_shard_info info = lt_shard_get_info(s->shards[k]);
            const size_t of = far != NULL ? far->bin_bytes + far->mask_bytes : 0;
            all += of;
            largest = of > largest ? of : largest;
            each = far != NULL && (size_t)info.token_bytes + info.masked > each
                       ? (size_t)info.token_bytes + info.masked
                       : each;
        }
        window = window_tokens(&l->options, s) * (double)each;
        *window_bytes = window > (double)*window_bytes ? (size_t)window : *window_bytes;
        most = window + 2.0 * (double)largest;
        bytes += most < (double)all ? (size_t)most : all;
    }
    return bytes;
}
