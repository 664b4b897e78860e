/* bench_data.c: `lateen bench data`: tokens per second of the loader, for each way of making rows,
 * and megabytes per second of the text reader. One thread makes rows, so the figure is the most
 * that a training step could consume. Without --shard, a temporary shard of random tokens is
 * written: documents of 1 to 1,400 tokens, 700 on average. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/arena.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/file.h"
#include "base/rng.h"
#include "cli/bench/bench.h"
#include "cli/verb.h"
#include "data/batch.h"
#include "data/shard_writer.h"
#include "data/text_reader.h"

#define BENCH_DATA_OPTIONS(X)                                                                      \
    X(STR, shard, "shard", "", 0, 0, "PREFIX", "token shard to read; empty: random tokens")        \
    X(STR, text, "text", "", 0, 0, "FILE", "text file to read as well (.txt, .jsonl, .gz, .zst)")  \
    X(I64, tokens, "tokens", "64M", 1e4, 1e10, "tokens", "size of the random shard")               \
    X(I64, seq, "seq", "4096", 16, 1e6, "tokens", "tokens in a row")                               \
    X(I64, rows, "rows", "8", 1, 1e4, "rows", "rows in a batch")                                   \
    X(F64, seconds, "seconds", "1", 0.01, 600, "s", "how long to measure each")                    \
    X(BOOL, json, "json", "false", 0, 0, "", "print JSON")

typedef struct {
    BENCH_DATA_OPTIONS(LT_OPTION_FIELD)
} bench_data_options;
#define LT_OPTION_STRUCT bench_data_options
static const lt_option rows[] = {BENCH_DATA_OPTIONS(LT_OPTION_ROW)};
static const lt_option_table table = LT_OPTION_TABLE("bench data", rows);

#define VOCAB 50257

typedef struct {
    const char *name;
    lt_pack packing;
    lt_shuffle shuffle;
    int64_t goldfish_k, prefetch_rows;
} bench_case;

static const bench_case cases[] = {
    {"stream, file order", LT_PACK_STREAM, LT_SHUFFLE_NONE, 0, 0},
    {"stream, rows shuffled", LT_PACK_STREAM, LT_SHUFFLE_ROWS, 0, 0},
    {"stream, documents shuffled", LT_PACK_STREAM, LT_SHUFFLE_DOCUMENTS, 0, 0},
    {"best fit, documents shuffled", LT_PACK_BEST_FIT, LT_SHUFFLE_DOCUMENTS, 0, 0},
    {"stream, rows shuffled, Goldfish", LT_PACK_STREAM, LT_SHUFFLE_ROWS, 50, 0},
    {"the same, a thread ahead", LT_PACK_STREAM, LT_SHUFFLE_ROWS, 50, 64},
};

static lt_err write_random(const char *prefix, int64_t n_tokens) {
    lt_err err = LT_OK;
    int32_t ids[1400];
    lt_shard_writer *w = NULL;
    LT_TRY_DONE(lt_shard_writer_open(&w, prefix, VOCAB, NULL));
    for (uint64_t d = 0; n_tokens > 0; d++) {
        size_t n = 1 + lt_rng_mix(d) % 1400;
        n = (int64_t)n < n_tokens ? n : (size_t)n_tokens;
        for (size_t i = 0; i < n; i++) {
            ids[i] = (int32_t)(lt_rng_mix(d << 16 ^ i) % VOCAB);
        }
        LT_TRY_DONE(lt_shard_writer_append(w, ids, n));
        n_tokens -= (int64_t)n;
    }
    LT_TRY_DONE(lt_shard_writer_finish(w));
done:
    lt_shard_writer_close(w);
    return err;
}

static lt_err measure(double *tokens_per_s, const bench_case *c, const bench_data_options *o,
                      const char *shard, lt_batch *b) {
    lt_err err = LT_OK;
    const lt_loader_source source = {shard, 1};
    lt_loader_options lo = lt_loader_defaults();
    lt_loader *l = NULL;
    double from_s = 0;
    int64_t n = 0;

    lo.sources = &source;
    lo.n_sources = 1;
    lo.seq = o->seq;
    lo.vocab_size = (int64_t)1 << 31;
    lo.packing = c->packing;
    lo.shuffle = c->shuffle;
    lo.goldfish_k = c->goldfish_k;
    lo.prefetch_rows = c->prefetch_rows;
    LT_TRY_DONE(lt_loader_open(&l, &lo));
    /* Warm-up: plans the first window and touches the first pages. */
    LT_TRY_DONE(lt_loader_next(l, o->rows, b, NULL));
    from_s = lt_clock_s();
    do {
        LT_TRY_DONE(lt_loader_next(l, o->rows, b, NULL));
        n += o->rows * o->seq;
    } while (lt_clock_s() - from_s < o->seconds);
    *tokens_per_s = (double)n / (lt_clock_s() - from_s);
done:
    lt_loader_close(l);
    return err;
}

static lt_err measure_text(double *mb_per_s, const char *path) {
    lt_err err = LT_OK;
    lt_text_reader *r = NULL;
    const double from_s = lt_clock_s();
    uint64_t bytes = 0;
    bool more = true;

    LT_TRY_DONE(lt_text_reader_open(&r, path, NULL));
    while (more) {
        lt_text_record doc;
        LT_TRY_DONE(lt_text_reader_document(r, &doc, &more));
        bytes += more ? doc.bytes : 0;
    }
    *mb_per_s = (double)bytes / (lt_clock_s() - from_s) / 1e6;
done:
    lt_text_reader_close(r);
    return err;
}

static lt_err run(const bench_data_options *o, const char *shard) {
    lt_err err = LT_OK;
    lt_arena arena = {0};
    lt_batch b;
    double per_s;

    lt_batch_carve(&b, o->rows, o->seq, &arena);
    LT_TRY_DONE(lt_arena_open(&arena, "batch"));
    lt_batch_carve(&b, o->rows, o->seq, &arena);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        LT_TRY_DONE(measure(&per_s, &cases[i], o, shard, &b));
        printf(o->json ? "{\"bench\": \"loader\", \"case\": \"%s\", \"seq\": %lld, "
                         "\"tokens_per_s\": %.0f}\n"
                       : "%-34s seq %lld %10.1f M tokens/s\n",
               cases[i].name, (long long)o->seq, o->json ? per_s : per_s / 1e6);
    }
    if (o->text[0] != '\0') {
        LT_TRY_DONE(measure_text(&per_s, o->text));
        printf(o->json ? "{\"bench\": \"text reader\", \"file\": \"%s\", \"mb_per_s\": %.1f}\n"
                       : "%-34s %19.1f MB/s of text\n",
               o->text, per_s);
    }
done:
    lt_arena_close(&arena);
    return err;
}

int lt_bench_data(int argc, char **argv) {
    bench_data_options o;
    char folder[] = "/tmp/lateen-bench-XXXXXX", shard[LT_PATH_BYTES];
    int n = 0, status = LT_EXIT_DONE;
    lt_err err = LT_OK;

    if (!lt_verb_parse(
            &table, &o, argc, argv, "bench data [--shard PREFIX] [--text FILE]",
            "Measure the loader (tokens/s for each way of making rows) and the text reader.", NULL,
            0, &n, &status)) {
        return status;
    }
    if (o.shard[0] != '\0') {
        err = run(&o, o.shard);
    } else if (mkdtemp(folder) == NULL) {
        err = lt_error_set(LT_ERR_IO, "folder %s", folder);
    } else {
        snprintf(shard, sizeof shard, "%s/random", folder);
        err = write_random(shard, o.tokens);
        err = err == LT_OK ? run(&o, shard) : err;
        if (lt_file_remove_tree(folder) != LT_OK && err == LT_OK) {
            err = LT_ERR_IO;
        }
    }
    return err == LT_OK ? LT_EXIT_DONE : lt_verb_fail(err);
}
