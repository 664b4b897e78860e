/* bench_tokenizer.c: `lateen bench tokenizer`: time to open a tokenizer, and megabytes a second on
 * one thread. The whole file is encoded as one text; the first encoding starts with an empty word
 * cache, later ones find the words of earlier ones in it. Peers: bench/tokenizer.py. */
#include <stdio.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/file.h"
#include "cli/bench/bench.h"
#include "cli/platform/copying.h"
#include "cli/verb.h"
#include "lateen/tokenizer.h"

#define ROUNDS_MAX 1000

#define BENCH_TOKENIZER_OPTIONS(X)                                                                 \
    X(STR, tokenizer, "tokenizer", "", 0, 1, "path",                                               \
      "any tokenizer file that `lateen tokenize` reads")                                           \
    X(STR, input, "input", "", 0, 1, "path", "text to encode")                                     \
    X(I64, rounds, "rounds", "5", 1, ROUNDS_MAX, "rounds",                                         \
      "encodings; the first and the median of the others are printed")                             \
    X(BOOL, json, "json", "false", 0, 0, "", "print JSON")

typedef struct {
    BENCH_TOKENIZER_OPTIONS(LT_OPTION_FIELD)
} bench_tokenizer_options;
#define LT_OPTION_STRUCT bench_tokenizer_options
static const lt_option rows[] = {BENCH_TOKENIZER_OPTIONS(LT_OPTION_ROW)};
static const lt_option_table table = LT_OPTION_TABLE("bench tokenizer", rows);

/* Median of the encodings after the first, or of the only one. Sorts them. */
static double warm_median(double *seconds, int64_t n) {
    return n > 1 ? lt_bench_median(seconds + 1, n - 1) : seconds[0];
}

int lt_bench_tokenizer(int argc, char **argv) {
    bench_tokenizer_options o;
    lt_err err = LT_OK;
    lt_tokenizer *t = NULL;
    lt_tokenizer_scratch *s = NULL;
    lt_file_map text = {0};
    lt_ids ids = {0};
    double load_s, seconds[ROUNDS_MAX];
    int n = 0, status = LT_EXIT_DONE;

    if (!lt_verb_parse(
            &table, &o, argc, argv,
            "bench tokenizer --tokenizer T --input FILE [--rounds N] [--json]",
            "Measure how long a tokenizer takes to open, and how fast one thread encodes a text.",
            NULL, 0, &n, &status)) {
        return status;
    }
    if (o.tokenizer[0] == '\0' || o.input[0] == '\0') {
        LT_FAIL_DONE(LT_ERR_ARG, "bench tokenizer needs --tokenizer T and --input FILE");
    }
    LT_TRY_DONE(lt_cli_bring_option(o.tokenizer));
    LT_TRY_DONE(lt_file_map_open(&text, o.input));
    load_s = lt_clock_s();
    LT_TRY_DONE(lt_tokenizer_open(&t, o.tokenizer, NULL));
    load_s = lt_clock_s() - load_s;
    LT_TRY_DONE(lt_tokenizer_scratch_open(&s, t));
    for (int64_t i = 0; i < o.rounds; i++) {
        const double start_s = lt_clock_s();
        ids.n = 0;
        LT_TRY_DONE(lt_tokenizer_encode(t, s, (const char *)text.data, text.size_bytes,
                                        LT_ENCODE_PLAIN, &ids));
        seconds[i] = lt_clock_s() - start_s;
    }
    if (o.json) {
        printf("{\"load_s\": %.6f, \"bytes\": %zu, \"ids\": %zu, \"seconds\": [", load_s,
               text.size_bytes, ids.n);
        for (int64_t i = 0; i < o.rounds; i++) {
            printf("%s%.6f", i > 0 ? ", " : "", seconds[i]);
        }
        printf("]}\n");
    } else {
        const double mb = (double)text.size_bytes / 1e6;
        printf("opened in %.1f ms; %.1f MB in %zu ids: first %.1f MB/s, median of %lld others %.1f "
               "MB/s\n",
               load_s * 1e3, mb, ids.n, mb / seconds[0], (long long)(o.rounds - 1),
               mb / warm_median(seconds, o.rounds));
    }
done:
    lt_ids_free(&ids);
    lt_tokenizer_scratch_close(s);
    lt_tokenizer_close(t);
    lt_file_map_close(&text);
    return err == LT_OK ? LT_EXIT_DONE : lt_verb_fail(err);
}
