/* word_count.c: see word_count.h.
 *
 * Documents are gathered into a batch, the batch is cut into tasks, and each worker counts its
 * tasks in its own map; at the end the maps are added up. The sums do not depend on which thread
 * counted what, so any number of threads gives the same result. A long document is cut into several
 * tasks, but only before a character that follows a newline and is not white space: there every
 * pattern with a scanner begins a new word, and a scanner may look behind the cut, so the words are
 * those of the whole document. (With a pattern that has no scanner, documents are not cut.) */
#define XXH_INLINE_ALL
#include "data/tokenizer/word_count.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "base/error.h"
#include "base/thread.h"

#define BATCH_BYTES (64u << 20)
#define TASK_BYTES  (1u << 20)

typedef struct {
    size_t begin, stop; /* Words that begin here are this task's. */
    size_t end;         /* End of the document: the end of what look-aheads can see. */
} task;

typedef struct {
    lt_word_map map;
    lt_pieces pieces;
    lt_failure failure;
} worker;

typedef struct {
    const lt_pretok *pretok;
    lt_text text;
    task *tasks;
    size_t n_tasks, task_room;
    worker *workers;
    size_t n_workers;
} batch;

void lt_word_map_free(lt_word_map *m) {
    free(m->slots);
    lt_text_free(&m->pool);
    *m = (lt_word_map){0};
}

static lt_err grow(lt_word_map *m) {
    const size_t room = m->slots == NULL ? 4096 : 2 * (m->mask + 1);
    lt_word *slots;
    if (m->slots != NULL && 2 * (m->n + 1) <= m->mask + 1) {
        return LT_OK;
    }
    slots = calloc(room, sizeof *slots);
    if (slots == NULL) {
        LT_FAIL(LT_ERR_OOM, "table of %zu words", room);
    }
    for (size_t i = 0; m->slots != NULL && i <= m->mask; i++) {
        if (m->slots[i].hash != 0) {
            size_t at = m->slots[i].hash & (room - 1);
            while (slots[at].hash != 0) {
                at = (at + 1) & (room - 1);
            }
            slots[at] = m->slots[i];
        }
    }
    free(m->slots);
    m->slots = slots;
    m->mask = room - 1;
    return LT_OK;
}

static lt_err add_word(lt_word_map *m, const char *s, size_t n, uint64_t count) {
    const uint32_t hash = (uint32_t)(XXH3_64bits(s, n) >> 16) | 1;
    size_t at;
    LT_TRY(grow(m));
    for (at = hash & m->mask; m->slots[at].hash != 0; at = (at + 1) & m->mask) {
        const lt_word *w = &m->slots[at];
        if (w->hash == hash && w->bytes == n && memcmp(m->pool.data + w->start, s, n) == 0) {
            m->slots[at].count += count;
            return LT_OK;
        }
    }
    if (n > UINT32_MAX / 8) {
        LT_FAIL(LT_ERR_LIMIT, "a word of %zu bytes", n);
    }
    m->slots[at] = (lt_word){
        .start = m->pool.n, .bytes = (uint32_t)n, .hash = hash, .count = count};
    m->n++;
    return lt_text_put(&m->pool, s, n);
}

static lt_err count_task(const batch *b, worker *w, const task *k) {
    const uint8_t *text = (const uint8_t *)b->text.data;
    if (b->pretok->n_cuts == 0) {
        const uint8_t *p = text + k->begin;
        while (p < text + k->stop) {
            const uint8_t *q = b->pretok->scan(p, text + k->end);
            LT_TRY(add_word(&w->map, (const char *)p, (size_t)(q - p), 1));
            p = q;
        }
        return LT_OK;
    }
    LT_TRY(lt_pretok_run(b->pretok, &w->pieces, text + k->begin, k->end - k->begin, true, NULL));
    for (size_t i = 0; i < w->pieces.n; i++) {
        const lt_range r = w->pieces.pieces[i];
        LT_TRY(add_word(&w->map, (const char *)w->pieces.text + r.begin, r.end - r.begin, 1));
    }
    return LT_OK;
}

static void run_worker(void *ctx, size_t i) {
    batch *b = ctx;
    worker *w = &b->workers[i];
    for (size_t k = i; k < b->n_tasks && w->failure.err == LT_OK; k += b->n_workers) {
        lt_failure_keep(&w->failure, count_task(b, w, &b->tasks[k]));
    }
}

static lt_err put_task(batch *b, size_t begin, size_t stop, size_t end) {
    if (b->n_tasks == b->task_room) {
        const size_t room = b->task_room == 0 ? 256 : 2 * b->task_room;
        task *grown = realloc(b->tasks, room * sizeof *grown);
        if (grown == NULL) {
            LT_FAIL(LT_ERR_OOM, "%zu tasks", room);
        }
        b->tasks = grown;
        b->task_room = room;
    }
    b->tasks[b->n_tasks++] = (task){begin, stop, end};
    return LT_OK;
}

/* The first safe cut at or after `at`, or end. */
static size_t safe_cut(const char *text, size_t at, size_t end) {
    while (at < end) {
        const char *newline = memchr(text + at, '\n', end - at);
        if (newline == NULL || newline + 1 >= text + end) {
            return end;
        }
        at = (size_t)(newline + 1 - text);
        /* ASCII and visible, so certainly not white space. */
        if (text[at] > ' ' && (uint8_t)text[at] < 0x7F) {
            return at;
        }
    }
    return end;
}

static lt_err put_document(batch *b, const char *data, size_t n) {
    size_t begin = b->text.n, end;
    LT_TRY(lt_text_put(&b->text, data, n));
    end = b->text.n;
    while (begin < end) {
        const bool cut = b->pretok->n_cuts == 0 && end - begin > TASK_BYTES;
        const size_t stop = cut ? safe_cut(b->text.data, begin + TASK_BYTES, end) : end;
        LT_TRY(put_task(b, begin, stop, end));
        begin = stop;
    }
    return LT_OK;
}

static lt_err run_batch(batch *b) {
    lt_parallel_for(b->n_workers, run_worker, b);
    for (size_t i = 0; i < b->n_workers; i++) {
        LT_TRY(lt_failure_raise(&b->workers[i].failure));
    }
    b->text.n = 0;
    b->n_tasks = 0;
    return LT_OK;
}

static lt_err read_input(const lt_bpe_train_options *o, batch *b, const char *path,
                         lt_bpe_train_progress *p, lt_bpe_train_stats *stats) {
    lt_err err = LT_OK;
    lt_text_reader *r = NULL;
    lt_text_record doc;
    const uint64_t before = p->done;
    bool more;

    LT_TRY_DONE(lt_text_reader_open(&r, path, &o->text));
    p->total += lt_text_reader_file_bytes(r);
    for (;;) {
        LT_TRY_DONE(lt_text_reader_document(r, &doc, &more));
        if (!more) {
            break;
        }
        LT_TRY_DONE(put_document(b, doc.data, doc.bytes));
        stats->documents++;
        stats->text_bytes += doc.bytes;
        if (b->text.n >= BATCH_BYTES) {
            LT_TRY_DONE(run_batch(b));
            p->done = before + lt_text_reader_consumed_bytes(r);
            p->words = b->workers[0].map.n;
            if (o->progress != NULL) {
                o->progress(o->progress_ctx, p);
            }
        }
    }
    p->done = before + lt_text_reader_file_bytes(r);
done:
    lt_text_reader_close(r);
    return err;
}

lt_err lt_word_count(const lt_bpe_train_options *o, const lt_pretok *pretok, lt_word_map *out,
                     lt_bpe_train_stats *stats) {
    lt_err err = LT_OK;
    lt_bpe_train_progress p = {.stage = "read"};
    batch b = {.pretok = pretok,
               .n_workers = (size_t)(o->n_threads > 0 ? o->n_threads : lt_thread_count())};

    b.workers = calloc(b.n_workers, sizeof *b.workers);
    if (b.workers == NULL) {
        LT_FAIL(LT_ERR_OOM, "%zu word counters", b.n_workers);
    }
    for (size_t i = 0; i < o->n_inputs; i++) {
        LT_TRY_DONE(read_input(o, &b, o->inputs[i], &p, stats));
    }
    LT_TRY_DONE(run_batch(&b));
    *out = b.workers[0].map;
    b.workers[0].map = (lt_word_map){0};
    for (size_t i = 1; i < b.n_workers; i++) {
        const lt_word_map *m = &b.workers[i].map;
        for (size_t k = 0; m->slots != NULL && k <= m->mask; k++) {
            if (m->slots[k].hash != 0) {
                LT_TRY_DONE(add_word(out, m->pool.data + m->slots[k].start, m->slots[k].bytes,
                                     m->slots[k].count));
            }
        }
    }
    stats->words = out->n;
done:
    for (size_t i = 0; i < b.n_workers; i++) {
        lt_word_map_free(&b.workers[i].map);
        lt_pieces_free(&b.workers[i].pieces);
    }
    free(b.workers);
    free(b.tasks);
    lt_text_free(&b.text);
    return err;
}
