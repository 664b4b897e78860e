/* tokenize.c: see tokenize.h. Three kinds of threads and a ring of jobs between them:
 *
 *     reader (1)  cuts records out of the inputs, about JOB_BYTES of them a job      filled ──▶
 *     workers (n) take jobs in order, decode and encode their records                taken  ──▶
 *     writer      (the caller) appends done jobs in order, commits from time to time      written
 *                 ─▶
 *
 * The input alone determines where jobs are cut, and jobs are written in order, so the shard does
 * not depend on the number of threads. An error takes the place of a job: the jobs before it are
 * written and committed, then it is returned. The ring and a limit on bytes in flight bound the
 * memory: a job is larger than JOB_BYTES only when a single document is. */
#include "data/tokenize.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "data/shard_format.h"
#include "data/tokenize_journal.h"

#define JOB_BYTES           ((size_t)1 << 20)
#define JOB_KEEP_BYTES      ((size_t)8 << 20) /* Larger buffers are freed after use. */
#define IN_FLIGHT_BYTES_MAX ((size_t)1 << 30)
#define THREADS_MAX         1024
#define COMMIT_EVERY_S      1.0

/* A record of a job: a slice of its text. */
typedef struct {
    size_t at, bytes;
    uint64_t line, offset;
} record_slice;

typedef struct {
    bool done;
    size_t input;        /* Index of the file that holds the records. */
    bool closes_input;   /* The last job of its file. */
    lt_text_buffer text; /* Raw records, concatenated. */
    size_t text_bytes;
    record_slice *records;
    size_t n_records, room_records;
    lt_id_buffer ids;       /* Ids of all documents. */
    lt_text_buffer mask;    /* (ids.n) LT_MASK_*, if the shard has a mask. */
    size_t *doc_tokens;     /* (room_records) Number of tokens of each document. */
    uint64_t decoded_bytes; /* Bytes of the documents' UTF-8 text. */
    uint64_t offset, line;  /* Position of the next record of this input. */
    uint64_t file_bytes;    /* Bytes of all inputs read so far. */
    lt_failure failure;
} job;

typedef struct {
    const lt_tokenize_options *o;
    lt_tokenize_position from; /* Where this run begins; used by the reader. */
    lt_tokenize_position at;   /* What is written so far; used by the writer. */
    uint64_t resumed_bytes;    /* Bytes of the files before `from`; set before the first job. */
    lt_text_reader **readers;  /* (n_inputs) open from the first job of a file to its last. */
    job *jobs;                 /* (n_jobs) ring */
    size_t n_jobs;
    pthread_mutex_t lock; /* Guards everything below, and job.done. */
    pthread_cond_t changed;
    uint64_t filled, taken, written;
    size_t in_flight_bytes;
    bool ended; /* The reader has filled its last job. */
    bool stop;  /* All threads must end. */
} pipeline;

typedef struct {
    pipeline *p;
    int worker;
    lt_text_buffer scratch;
} worker_ctx;

lt_err lt_id_buffer_reserve(lt_id_buffer *b, size_t room) {
    size_t grown_room = b->room < 1024 ? 1024 : b->room;
    int32_t *grown;
    if (room <= b->room) {
        return LT_OK;
    }
    while (grown_room < room) {
        grown_room += grown_room / 2;
    }
    grown = realloc(b->ids, grown_room * sizeof *grown);
    if (grown == NULL) {
        LT_FAIL(LT_ERR_OOM, "%zu token ids", room);
    }
    b->ids = grown;
    b->room = grown_room;
    return LT_OK;
}

static void job_fail(job *j, lt_err err) {
    lt_failure_keep(&j->failure, err);
}

/* ---- Reader ---- */

static lt_err job_add(job *j, const lt_text_record *r) {
    LT_TRY(lt_text_buffer_reserve(&j->text, j->text_bytes + r->bytes));
    if (j->n_records == j->room_records) {
        const size_t room = j->room_records == 0 ? 256 : 2 * j->room_records;
        record_slice *records = realloc(j->records, room * sizeof *records);
        size_t *doc_tokens = records != NULL ? realloc(j->doc_tokens, room * sizeof *doc_tokens)
                                             : NULL;
        j->records = records != NULL ? records : j->records;
        if (doc_tokens == NULL) {
            LT_FAIL(LT_ERR_OOM, "%zu records", room);
        }
        j->doc_tokens = doc_tokens;
        j->room_records = room;
    }
    memcpy(j->text.data + j->text_bytes, r->data, r->bytes);
    j->records[j->n_records++] = (record_slice){j->text_bytes, r->bytes, r->line, r->offset};
    j->text_bytes += r->bytes;
    return LT_OK;
}

/* Add records of one reader until the job is full or the file ends. */
static lt_err job_fill(job *j, lt_text_reader *r) {
    while (j->text_bytes < JOB_BYTES) {
        lt_text_record record;
        bool more;
        LT_TRY(lt_text_reader_next(r, &record, &more));
        if (!more) {
            j->closes_input = true;
            break;
        }
        LT_TRY(job_add(j, &record));
    }
    lt_text_reader_tell(r, &j->offset, &j->line);
    return LT_OK;
}

/* Take the next free job, emptied; NULL: the thread must stop. */
static job *reader_claim(pipeline *p) {
    job *j = NULL;
    pthread_mutex_lock(&p->lock);
    while (!p->stop &&
           (p->filled - p->written == p->n_jobs || p->in_flight_bytes > IN_FLIGHT_BYTES_MAX)) {
        pthread_cond_wait(&p->changed, &p->lock);
    }
    if (!p->stop) {
        j = &p->jobs[p->filled % p->n_jobs];
        j->n_records = j->text_bytes = 0;
        j->closes_input = false;
        j->failure.err = LT_OK;
    }
    pthread_mutex_unlock(&p->lock);
    return j;
}

static void reader_submit(pipeline *p, const job *j) {
    pthread_mutex_lock(&p->lock);
    p->in_flight_bytes += j->text_bytes;
    p->filled++;
    pthread_cond_broadcast(&p->changed);
    pthread_mutex_unlock(&p->lock);
}

/* Fill all jobs of one input. False: the thread must stop. */
static bool reader_input(pipeline *p, size_t input, uint64_t *file_bytes_before) {
    const lt_tokenize_options *o = p->o;
    lt_text_reader *r = NULL;
    lt_err err = lt_text_reader_open(&r, o->inputs[input], &o->text);
    bool go_on = true;

    if (err == LT_OK && input == p->from.input) {
        if (p->from.offset > 0) {
            err = lt_text_reader_resume(r, p->from.offset, p->from.line);
        }
        p->resumed_bytes = *file_bytes_before +
                           (p->from.offset > 0 ? lt_text_reader_consumed_bytes(r) : 0);
    }
    p->readers[input] = r;
    for (bool over = false; !over && go_on;) {
        job *j = reader_claim(p);
        if (j == NULL) {
            return false;
        }
        j->input = input;
        err = err == LT_OK ? job_fill(j, r) : err;
        if (err != LT_OK) {
            job_fail(j, err);
            go_on = false;
        } else {
            j->file_bytes = *file_bytes_before + lt_text_reader_consumed_bytes(r);
        }
        over = j->closes_input;
        if (over) {
            *file_bytes_before = j->file_bytes;
        }
        reader_submit(p, j);
    }
    return go_on;
}

static void *reader_main(void *arg) {
    pipeline *p = arg;
    uint64_t file_bytes = 0;
    for (size_t i = 0; i < p->o->n_inputs; i++) {
        if (i < p->from.input) { /* This input was done in an earlier run. */
            lt_text_reader *r = NULL;
            if (lt_text_reader_open(&r, p->o->inputs[i], &p->o->text) == LT_OK) {
                file_bytes += lt_text_reader_file_bytes(r);
                lt_text_reader_close(r);
            }
            continue;
        }
        if (!reader_input(p, i, &file_bytes)) {
            break;
        }
    }
    pthread_mutex_lock(&p->lock);
    p->ended = true;
    pthread_cond_broadcast(&p->changed);
    pthread_mutex_unlock(&p->lock);
    return NULL;
}

/* ---- Workers ---- */

/* Set the mask of the job's tokens from `from` on. */
static lt_err mark_tokens(worker_ctx *w, job *j, size_t from, int what) {
    if (!lt_tokenize_is_masked(w->p->o)) {
        return LT_OK;
    }
    LT_TRY(lt_text_buffer_reserve(&j->mask, j->ids.n));
    if (j->ids.n > from) {
        memset(j->mask.data + from, what, j->ids.n - from);
    }
    return LT_OK;
}

/* Append the tokens of one member's text to the job; field NULL: the record's text. */
static lt_err encode_part(worker_ctx *w, job *j, lt_text_record *record, const char *field,
                          int what) {
    const lt_tokenize_options *o = w->p->o;
    const lt_text_reader *r = w->p->readers[j->input];
    const size_t before = j->ids.n;
    const char *text;
    size_t bytes;
    lt_err err;

    LT_TRY(field != NULL ? lt_text_record_decode_field(r, record, field, &w->scratch, &text, &bytes)
                         : lt_text_record_decode(r, record, &w->scratch, &text, &bytes));
    err = o->encode(o->encode_ctx, w->worker, text, bytes, &j->ids);
    if (err != LT_OK) {
        return lt_error_prefix(err, "%s:%llu", o->inputs[j->input],
                               (unsigned long long)record->line);
    }
    j->decoded_bytes += bytes;
    return mark_tokens(w, j, before, what);
}

/* Encode a whole line with the caller's encoder. BOS is put before it unless the line begins with
 * it. */
static lt_err encode_line(worker_ctx *w, job *j, lt_text_record *record, size_t bos) {
    const lt_tokenize_options *o = w->p->o;
    const lt_text_reader *r = w->p->readers[j->input];
    const size_t before = j->ids.n;
    lt_record_line line = {.file = o->inputs[j->input], .number = record->line};
    size_t text_bytes = 0;
    lt_err err;

    LT_TRY(lt_text_record_line(r, record, &w->scratch, &line.text, &line.bytes));
    err = o->encode_record(o->encode_ctx, w->worker, &line, &j->ids, &j->mask, &text_bytes);
    if (err != LT_OK) {
        return lt_error_prefix(err, "%s:%llu", o->inputs[j->input],
                               (unsigned long long)record->line);
    }
    j->decoded_bytes += text_bytes;
    if (bos > 0 && j->ids.n > before && j->ids.ids[before] == (int32_t)o->bos_id) {
        j->ids.n--;
        memmove(j->ids.ids + before, j->ids.ids + before + 1,
                (j->ids.n - before) * sizeof *j->ids.ids);
        memmove(j->mask.data + before, j->mask.data + before + 1, j->ids.n - before);
    }
    return LT_OK;
}

static lt_err encode_record(worker_ctx *w, job *j, size_t i) {
    const lt_tokenize_options *o = w->p->o;
    const record_slice *s = &j->records[i];
    lt_text_record record = {
        .data = j->text.data + s->at, .bytes = s->bytes, .line = s->line, .offset = s->offset};
    const size_t before = j->ids.n, bos = o->bos_id >= 0;

    LT_TRY(lt_id_buffer_reserve(&j->ids, before + 2));
    j->ids.ids[before] = (int32_t)o->bos_id;
    j->ids.n += bos;
    LT_TRY(mark_tokens(w, j, before, LT_MASK_SILENT));
    if (o->encode_record != NULL) {
        LT_TRY(encode_line(w, j, &record, bos));
    } else {
        LT_TRY(o->prompt_field != NULL ? encode_part(w, j, &record, o->prompt_field, LT_MASK_SILENT)
                                       : LT_OK);
        LT_TRY(encode_part(w, j, &record, NULL, LT_MASK_LABEL));
    }
    if (j->ids.n == before + bos) {
        j->ids.n = before; /* The document is empty. */
    } else if (o->eod_id >= 0) {
        /* The EOD after an answer is a label, too; a line's own encoder has marked the ends of
         * turns. */
        LT_TRY(lt_id_buffer_reserve(&j->ids, j->ids.n + 1));
        j->ids.ids[j->ids.n++] = (int32_t)o->eod_id;
        LT_TRY(mark_tokens(w, j, j->ids.n - 1,
                           o->encode_record != NULL ? LT_MASK_SILENT : LT_MASK_LABEL));
    }
    j->doc_tokens[i] = j->ids.n - before;
    return LT_OK;
}

static void encode_job(worker_ctx *w, job *j) {
    j->ids.n = 0;
    j->decoded_bytes = 0;
    for (size_t i = 0; i < j->n_records; i++) {
        const lt_err err = encode_record(w, j, i);
        /* This error is earlier than one that the reader may have found after these records. */
        if (err != LT_OK) {
            job_fail(j, err);
            return;
        }
    }
}

static void *worker_main(void *arg) {
    worker_ctx *w = arg;
    pipeline *p = w->p;
    for (;;) {
        job *j;
        pthread_mutex_lock(&p->lock);
        while (p->taken == p->filled && !p->ended && !p->stop) {
            pthread_cond_wait(&p->changed, &p->lock);
        }
        if (p->stop || p->taken == p->filled) {
            pthread_mutex_unlock(&p->lock);
            break;
        }
        j = &p->jobs[p->taken++ % p->n_jobs];
        pthread_mutex_unlock(&p->lock);
        encode_job(w, j);
        pthread_mutex_lock(&p->lock);
        j->done = true;
        pthread_cond_broadcast(&p->changed);
        pthread_mutex_unlock(&p->lock);
    }
    lt_text_buffer_free(&w->scratch);
    return NULL;
}

/* ---- Writer ---- */

/* Wait for the next job in order to be done; NULL: there is none. */
static job *writer_claim(pipeline *p) {
    job *j = NULL;
    pthread_mutex_lock(&p->lock);
    for (;;) {
        job *next = &p->jobs[p->written % p->n_jobs];
        if (p->written < p->filled && next->done) {
            j = next;
            break;
        }
        if (p->ended && p->written == p->filled) {
            break;
        }
        pthread_cond_wait(&p->changed, &p->lock);
    }
    pthread_mutex_unlock(&p->lock);
    return j;
}

static void writer_release(pipeline *p, job *j) {
    if (j->closes_input) {
        lt_text_reader_close(p->readers[j->input]);
        p->readers[j->input] = NULL;
    }
    if (j->text.room > JOB_KEEP_BYTES) {
        lt_text_buffer_free(&j->text);
    }
    if (j->ids.room * sizeof *j->ids.ids > JOB_KEEP_BYTES) {
        free(j->ids.ids);
        j->ids = (lt_id_buffer){0};
        lt_text_buffer_free(&j->mask);
    }
    pthread_mutex_lock(&p->lock);
    p->in_flight_bytes -= j->text_bytes;
    j->done = false;
    p->written++;
    pthread_cond_broadcast(&p->changed);
    pthread_mutex_unlock(&p->lock);
}

/* Append a job's documents and move the position past them. */
static lt_err write_job(pipeline *p, lt_shard_writer *w, const job *j) {
    const bool masked = lt_tokenize_is_masked(p->o);
    size_t at = 0;
    for (size_t i = 0; i < j->n_records; at += j->doc_tokens[i++]) {
        const size_t n = j->doc_tokens[i];
        const unsigned char *mask = masked && n > 0 ? (const unsigned char *)j->mask.data + at
                                                    : NULL;
        if (n == 0) {
            p->at.empty++;
            continue;
        }
        LT_TRY(lt_shard_writer_append_masked(w, j->ids.ids + at, mask, n));
        for (size_t t = 0; masked && t < n; t++) {
            p->at.labels += mask[t];
        }
    }
    p->at.text_bytes += j->decoded_bytes;
    p->at.input = j->input + j->closes_input;
    p->at.offset = j->closes_input ? 0 : j->offset;
    p->at.line = j->closes_input ? 1 : j->line;
    return LT_OK;
}

static lt_err commit(pipeline *p, lt_shard_writer *w, uint64_t fingerprint) {
    LT_TRY(lt_shard_writer_sync(w, &p->at.mark));
    return lt_tokenize_save_journal(p->o->out_prefix, fingerprint, &p->at);
}

static void fill_stats(lt_tokenize_stats *stats, const pipeline *p, const lt_shard_writer *w) {
    const lt_shard_mark mark = lt_shard_writer_mark(w);
    stats->documents = mark.n_documents;
    stats->tokens = mark.n_tokens;
    stats->empty = p->at.empty;
    stats->labels = p->at.labels;
    stats->text_bytes = p->at.text_bytes;
    stats->resumed_text_bytes = p->from.text_bytes;
}

/* Write until the jobs end, one fails, or a signal stops the work. Nothing of a failed job is
 * written; the next run begins with it. */
static lt_err write_all(pipeline *p, lt_shard_writer *w, uint64_t fingerprint,
                        lt_tokenize_stats *stats) {
    const double every_s = p->o->commit_every_s > 0 ? p->o->commit_every_s : COMMIT_EVERY_S;
    double next_s = lt_clock_s() + every_s;
    job *j;

    while ((j = writer_claim(p)) != NULL) {
        if (j->failure.err != LT_OK) {
            LT_TRY(commit(p, w, fingerprint));
            LT_TRY(lt_failure_raise(&j->failure));
        }
        LT_TRY(write_job(p, w, j));
        stats->file_bytes = j->file_bytes;
        stats->resumed_bytes = p->resumed_bytes;
        writer_release(p, j);
        fill_stats(stats, p, w);
        if (p->o->progress != NULL) {
            p->o->progress(p->o->progress_ctx, stats);
        }
        if (p->o->stop != NULL && *p->o->stop != 0) {
            LT_TRY(commit(p, w, fingerprint));
            LT_FAIL(LT_ERR_INTERRUPTED,
                    "%s: stopped after %llu documents; the same command continues from there",
                    p->o->out_prefix, (unsigned long long)stats->documents);
        }
        if (lt_clock_s() >= next_s) {
            LT_TRY(commit(p, w, fingerprint));
            next_s = lt_clock_s() + every_s;
        }
    }
    return LT_OK;
}

/* ---- All together ---- */

static void pipeline_free(pipeline *p) {
    for (size_t i = 0; p->readers != NULL && i < p->o->n_inputs; i++) {
        lt_text_reader_close(p->readers[i]);
    }
    for (size_t i = 0; p->jobs != NULL && i < p->n_jobs; i++) {
        lt_text_buffer_free(&p->jobs[i].text);
        free(p->jobs[i].records);
        free(p->jobs[i].doc_tokens);
        free(p->jobs[i].ids.ids);
        lt_text_buffer_free(&p->jobs[i].mask);
    }
    free(p->readers);
    free(p->jobs);
    pthread_cond_destroy(&p->changed);
    pthread_mutex_destroy(&p->lock);
}

/* Start the threads, write their jobs, and join them. */
static lt_err run_threads(pipeline *p, lt_shard_writer *w, uint64_t fingerprint,
                          lt_tokenize_stats *stats) {
    lt_err err = LT_OK;
    const int n = p->o->n_threads;
    int started = 0;
    bool reading = false;
    pthread_t reader;
    pthread_t *threads = calloc((size_t)n, sizeof *threads);
    worker_ctx *workers = calloc((size_t)n, sizeof *workers);

    if (threads == NULL || workers == NULL) {
        LT_FAIL_DONE(LT_ERR_OOM, "%d threads", n);
    }
    for (; started < n; started++) {
        workers[started] = (worker_ctx){.p = p, .worker = started};
        if (pthread_create(&threads[started], NULL, worker_main, &workers[started]) != 0) {
            LT_FAIL_DONE(LT_ERR_OOM, "thread %d of %d", started + 1, n);
        }
    }
    if (pthread_create(&reader, NULL, reader_main, p) != 0) {
        LT_FAIL_DONE(LT_ERR_OOM, "reader thread");
    }
    reading = true;
    err = write_all(p, w, fingerprint, stats);
done:
    pthread_mutex_lock(&p->lock);
    p->stop = true;
    pthread_cond_broadcast(&p->changed);
    pthread_mutex_unlock(&p->lock);
    for (int i = 0; i < started; i++) {
        pthread_join(threads[i], NULL);
    }
    if (reading) {
        pthread_join(reader, NULL);
    }
    free(threads);
    free(workers);
    return err;
}

/* After a failure before any document was durable (because of a wrong field, for example), remove
 * the files, so that they do not prevent a second attempt. */
static lt_err discard_nothing(const char *prefix, lt_err err) {
    lt_failure failure;
    lt_failure_keep(&failure, err);
    if (lt_shard_writer_discard(prefix) != LT_OK || lt_tokenize_remove_journal(prefix) != LT_OK) {
        lt_log_warn("%s", lt_error_message());
    }
    return lt_failure_raise(&failure);
}

static lt_err check(const lt_tokenize_options *o) {
    LT_ASSERT(o->n_inputs > 0 && (o->encode != NULL || o->encode_record != NULL));
    LT_ASSERT(o->out_prefix != NULL);
    if (o->n_threads < 1 || o->n_threads > THREADS_MAX) {
        LT_FAIL(LT_ERR_ARG, "%d threads: 1 to %d", o->n_threads, THREADS_MAX);
    }
    if (o->eod_id >= o->vocab_size || o->bos_id >= o->vocab_size) {
        LT_FAIL(LT_ERR_ARG, "BOS id %lld, EOD id %lld: the vocabulary has %lld",
                (long long)o->bos_id, (long long)o->eod_id, (long long)o->vocab_size);
    }
    for (size_t i = 0; lt_tokenize_is_masked(o) && i < o->n_inputs; i++) {
        if (o->text.format == LT_TEXT_PLAIN ||
            (o->text.format == LT_TEXT_AUTO && !lt_text_path_is_jsonl(o->inputs[i]))) {
            LT_FAIL(LT_ERR_ARG, "%s: not JSONL: it has no %s%s%s (say --format jsonl if it is)",
                    o->inputs[i], o->prompt_field != NULL ? "member '" : "conversations",
                    o->prompt_field != NULL ? o->prompt_field : "",
                    o->prompt_field != NULL ? "' for prompts" : "");
        }
    }
    return LT_OK;
}

lt_err lt_tokenize_files(const lt_tokenize_options *o, lt_tokenize_stats *stats) {
    lt_err err = LT_OK;
    lt_output_state found = LT_OUTPUT_NONE;
    lt_shard_writer *w = NULL;
    uint64_t fingerprint;
    pipeline p = {.o = o, .lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

    *stats = (lt_tokenize_stats){0};
    LT_TRY_DONE(check(o));
    LT_TRY_DONE(lt_tokenize_spare(o));
    LT_TRY_DONE(lt_tokenize_fingerprint(&fingerprint, &stats->file_bytes_total, o));
    if (o->overwrite) {
        LT_TRY_DONE(lt_tokenize_remove_output(o->out_prefix));
    }
    LT_TRY_DONE(lt_tokenize_find_output(&found, &p.from, o->out_prefix, fingerprint));
    p.at = p.from;
    p.n_jobs = 2 * (size_t)o->n_threads + 2;
    p.readers = calloc(o->n_inputs, sizeof *p.readers);
    p.jobs = calloc(p.n_jobs, sizeof *p.jobs);
    if (p.readers == NULL || p.jobs == NULL) {
        LT_FAIL_DONE(LT_ERR_OOM, "%zu inputs", o->n_inputs);
    }
    if (found == LT_OUTPUT_COMPLETE) {
        *stats = (lt_tokenize_stats){.documents = p.at.mark.n_documents,
                                     .tokens = p.at.mark.n_tokens,
                                     .empty = p.at.empty,
                                     .labels = p.at.labels,
                                     .text_bytes = p.at.text_bytes,
                                     .was_complete = true};
        LT_TRY_DONE(lt_tokenize_remove_journal(o->out_prefix));
        goto done;
    }
    LT_TRY_DONE(found == LT_OUTPUT_NONE ? lt_shard_writer_discard(o->out_prefix) : LT_OK);
    LT_TRY_DONE(lt_shard_writer_open(&w, o->out_prefix, o->vocab_size,
                                     found == LT_OUTPUT_UNFINISHED ? &p.at.mark : NULL));
    LT_TRY_DONE(lt_tokenize_is_masked(o) ? lt_shard_writer_add_mask(w) : LT_OK);
    LT_TRY_DONE(commit(&p, w, fingerprint));
    LT_TRY_DONE(run_threads(&p, w, fingerprint, stats));
    fill_stats(stats, &p, w);
    LT_TRY_DONE(commit(&p, w, fingerprint));
    LT_TRY_DONE(lt_tokenize_save_manifest(o, fingerprint, &p.at));
    LT_TRY_DONE(lt_shard_writer_finish(w));
    LT_TRY_DONE(lt_tokenize_remove_journal(o->out_prefix));
done:
    if (err != LT_OK && err != LT_ERR_INTERRUPTED && w != NULL &&
        p.at.mark.n_documents + p.at.empty == 0) {
        err = discard_nothing(o->out_prefix, err);
    }
    lt_shard_writer_close(w);
    pipeline_free(&p);
    return err;
}
