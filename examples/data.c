/* The smallest use of lateen/data.h: open a token shard and print the first training row.
 *
 *     build/examples/data PREFIX [SEQ]            PREFIX.bin and PREFIX.idx, as `lateen tokenize`
 *                                                 writes them */
#include <stdio.h>
#include <stdlib.h>

#include "lateen/data.h"

int main(int argc, char **argv) {
    const lt_loader_source source = {argc > 1 ? argv[1] : "tests/golden/data/megatron_u16", 1.0};
    const int64_t seq = argc > 2 ? strtoll(argv[2], NULL, 10) : 16;
    lt_loader_options o = lt_loader_defaults();
    lt_loader *loader = NULL;
    lt_batch batch = {.batch = 1, .seq = seq};
    int32_t *memory = calloc((size_t)(4 * seq), sizeof *memory);
    lt_err err;

    if (memory == NULL) {
        return 1;
    }
    batch.tokens = memory;
    batch.labels = memory + seq;
    batch.doc_start = memory + 2 * seq;
    batch.positions = memory + 3 * seq;
    o.sources = &source;
    o.n_sources = 1;
    o.seq = seq;
    o.vocab_size = (int64_t)1 << 31; /* The model's; here whatever the shard holds. */
    err = lt_loader_open(&loader, &o);
    if (err == LT_OK) {
        err = lt_loader_next(loader, 1, &batch, NULL);
    }
    if (err == LT_OK) {
        printf("%llu tokens in %llu documents\n",
               (unsigned long long)lt_loader_get_info(loader).tokens,
               (unsigned long long)lt_loader_get_info(loader).documents);
        for (int64_t t = 0; t < seq; t++) {
            printf("%6d -> %6d   document from %d, position %d\n", batch.tokens[t], batch.labels[t],
                   batch.doc_start[t], batch.positions[t]);
        }
    } else {
        fprintf(stderr, "%s\n", lt_error_message());
    }
    lt_loader_close(loader);
    free(memory);
    return err != LT_OK;
}
