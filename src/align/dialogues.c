/* dialogues.c: see dialogues.h. */
#include "align/dialogues.h"

#include <string.h>

#include <xxhash.h>

#include "base/error.h"

lt_err lt_dialogues_add(lt_dialogues *d, const char *prefix) {
    const char *slash = strrchr(prefix, '/'), *name = slash != NULL ? slash + 1 : prefix;
    LT_ASSERT(d->n_shards < LT_LOADER_SOURCES_MAX);
    LT_TRY(lt_shard_open(&d->shards[d->n_shards], prefix, -1));
    d->n_shards++;
    d->n += (int64_t)lt_shard_get_info(d->shards[d->n_shards - 1]).n_documents;
    d->first[d->n_shards] = d->n;
    d->hash = XXH3_64bits_withSeed(name, strlen(name), d->hash);
    return LT_OK;
}

void lt_dialogues_close(lt_dialogues *d) {
    for (int i = 0; i < d->n_shards; i++) {
        lt_shard_close(d->shards[i]);
    }
    *d = (lt_dialogues){0};
}

lt_err lt_dialogues_read(const lt_dialogues *d, int64_t i, int64_t most, int64_t id_end,
                         int32_t *ids, bool *learnt, int64_t *n) {
    uint64_t at, tokens;
    int k = 0;
    LT_ASSERT(i >= 0 && i < d->n);
    while (i >= d->first[k + 1]) {
        k++;
    }
    lt_shard_document(d->shards[k], (uint64_t)(i - d->first[k]), &at, &tokens);
    *n = (int64_t)tokens < most ? (int64_t)tokens : most;
    LT_TRY(lt_shard_read(d->shards[k], at, (size_t)*n, ids, id_end));
    LT_TRY(lt_shard_read_mask(d->shards[k], at, (size_t)*n, learnt));
    for (int64_t t = 0; t < *n; t++) { /* The shard says which tokens are silent. */
        learnt[t] = !learnt[t];
    }
    return LT_OK;
}

void lt_dialogues_row(const int32_t *ids, const bool *learnt, int64_t n, const lt_batch *to,
                      int64_t row) {
    const int64_t at = row * to->seq;
    LT_ASSERT(n <= to->seq + 1);
    for (int64_t i = 0; i < to->seq; i++) {
        to->tokens[at + i] = i < n ? ids[i] : 0;
        to->labels[at + i] = i + 1 < n && learnt[i + 1] ? ids[i + 1] : -1;
        to->doc_start[at + i] = 0;
        to->positions[at + i] = (int32_t)i;
    }
}

int64_t lt_dialogues_last_answer(const bool *learnt, int64_t n) {
    int64_t end = n;
    while (end > 0 && !learnt[end - 1]) {
        end--;
    }
    while (end > 0 && learnt[end - 1]) {
        end--;
    }
    return end;
}
