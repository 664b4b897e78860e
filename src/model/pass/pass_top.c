/* pass_top.c: the most likely tokens of each position of a batch (pass.h): the head's logits, a
 * chunk of rows at a time, from which the host chooses. On a device, a chunk is copied to the
 * host: 600 KB per row for a vocabulary of 150,000. */
#include <math.h>
#include <stdlib.h>

#include "model/infer/logits.h"
#include "model/pass/pass_impl.h"

/* The results of one row. */
typedef struct {
    int64_t k;
    float softcap, scale; /* scale: one over the temperature. */
    int32_t *ids;         /* (k) */
    float *logp;
    lt_candidate *room; /* (V) */
} choice;

static lt_err choose(const choice *c, float *row, int64_t n) {
    double lse;
    int32_t best;
    for (int64_t v = 0; v < n; v++) {
        const float l = c->softcap > 0.0f ? c->softcap * tanhf(row[v] / c->softcap) : row[v];
        row[v] = l * c->scale;
    }
    if (!lt_logits_best(row, n, &best) || !isfinite(row[best])) {
        LT_FAIL(LT_ERR_NUMERIC, "the logits of a token have no finite maximum");
    }
    lse = lt_logits_lse(row, n, row[best]);
    const int64_t found = lt_logits_top(row, n, c->k, c->room);
    lt_candidates_by_id(c->room, found, c->room + found);
    for (int64_t i = 0; i < c->k; i++) {
        c->ids[i] = i < found ? c->room[i].id : -1;
        c->logp[i] = i < found ? (float)((double)c->room[i].p - lse) : -INFINITY;
    }
    return LT_OK;
}

/* Choose for rows [first, first + n), whose logits are on the host. */
static lt_err choose_rows(const choice *c, const int32_t *labels, float *logits, int64_t first,
                          int64_t n, int64_t vocab) {
    lt_err all = LT_OK;
#pragma omp parallel for schedule(dynamic)
    for (int64_t i = 0; i < n; i++) {
        choice own = *c;
        lt_err err = LT_OK;
        if (labels[first + i] < 0) {
            continue;
        }
        own.ids += (first + i) * c->k;
        own.logp += (first + i) * c->k;
        /* The second half is for sorting ids. */
        own.room = malloc(2 * (size_t)vocab * sizeof *own.room);
        err = own.room == NULL ? LT_ERR_OOM : choose(&own, logits + i * vocab, vocab);
        free(own.room);
        if (err != LT_OK) {
#pragma omp critical
            all = err;
        }
    }
    return all == LT_OK ? LT_OK : lt_error_set(all, "tokens of a position: %s", lt_err_text(all));
}

lt_err lt_pass_top(lt_pass *p, const lt_pass_batch *b, int64_t k, float temperature, int32_t *ids,
                   float *logp) {
    lt_exec *r = &p->exec;
    const lt_batch_acts *acts = &p->sets[0].batch;
    const int64_t rows = b->batch * b->seq, chunk = lt_loss_eval_rows(&p->loss),
                  vocab = r->spec->vocab_size;
    const choice c = {.k = k,
                      .softcap = r->spec->final_softcap,
                      .scale = 1.0f / temperature,
                      .ids = ids,
                      .logp = logp};
    const size_t row_bytes = (size_t)vocab * sizeof(float);
    float *host = NULL;
    lt_err err = LT_OK;

    LT_ASSERT(k > 0 && k <= vocab && temperature > 0.0f && r->n_tp == 1);
    LT_TRY(lt_pass_read(p, b));
    if (!r->backend->host_memory) {
        host = malloc((size_t)chunk * row_bytes);
        if (host == NULL) {
            LT_FAIL(LT_ERR_OOM, "logits of %lld positions", (long long)chunk);
        }
    }
    for (int64_t first = 0; first < rows; first += chunk) {
        const int64_t n = rows - first < chunk ? rows - first : chunk;
        lt_tensor logits;
        LT_TRY_DONE(lt_loss_logits(r, &p->loss, acts, first, n, &logits));
        if (host != NULL) {
            LT_TRY_DONE(r->backend->download(r->queue, host, logits.data, (size_t)n * row_bytes));
        }
        LT_TRY_DONE(r->backend->sync(r->queue));
        LT_TRY_DONE(choose_rows(&c, b->labels, host != NULL ? host : logits.data, first, n, vocab));
    }
done:
    free(host);
    return err;
}
