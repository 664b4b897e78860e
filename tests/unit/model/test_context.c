/* Ranks that divide the tokens of a sequence compute what one rank does, with each of the three
 * ways of attention (context.h): gradients and loss of every family's golden batch, with its
 * documents, windows, sinks, softcaps and few key heads, on 2, 3 and 4 ranks. */
#include "unit/model/golden.h"

#include <pthread.h>

#include "model/blocks/context.h"

static const char *const kinds[] = {"mesh.context=gather", "mesh.context=ulysses",
                                    "mesh.context=ring"};

typedef struct {
    const char *name;
    lt_context_kind kind;
    float *gradients; /* Sum over the ranks. */
    double loss;
    int64_t labels;
    pthread_mutex_t lock;
} job;

static int32_t *tokens_of(const int32_t *ids, const lt_pass_batch *b, int n, int rank) {
    int32_t *out = malloc((size_t)(b->batch * b->seq) * sizeof *out);
    assert_non_null(out);
    for (int64_t i = 0; i < b->batch * b->seq; i++) {
        out[i] = ids != NULL ? ids[i] : (int32_t)(i % b->seq);
    }
    lt_context_take(out, b->batch, b->seq, n, rank);
    return out;
}

/* Run a pass over these rows, in a model without losses and limits that depend on all rows of a
 * pass. */
static lt_err run(golden *g, const lt_pass_batch *b, lt_context_options context, lt_pass **p,
                  lt_pass_result *r) {
    const lt_pass_options o = {
        .batch = b->batch, .seq = b->seq, .train = true, .z_coef = 1e-3f, .context = context};
    g->model->spec.moe_aux_coef = 0.0f;
    g->model->spec.moe_z_coef = 0.0f;
    g->model->spec.moe_capacity = 0.0;
    LT_TRY(lt_pass_open(p, g->model, &o));
    LT_TRY(lt_pass_zero_gradients(*p));
    return lt_pass_train(*p, b, 0.25f, r);
}

static lt_err rank_main(lt_comm *c, void *ctx) {
    job *j = ctx;
    const int n = lt_comm_size(c), rank = lt_comm_rank(c);
    int ranks[8];
    lt_group *group;
    lt_pass *p = NULL;
    lt_pass_result r = {0};
    golden g;
    for (int i = 0; i < n; i++) {
        ranks[i] = i;
    }
    LT_TRY(lt_group_open(&group, c, "cp", ranks, n));
    golden_open(&g, j->name, lt_backend_cpu(), LT_F32);
    const lt_pass_batch all = g.batch;
    int32_t *const tokens = tokens_of(all.tokens, &all, n, rank),
                   *const labels = tokens_of(all.labels, &all, n, rank),
                   *const positions = tokens_of(all.positions, &all, n, rank),
                   *const starts = tokens_of(all.doc_start, &all, n, rank);
    const lt_pass_batch mine = {.batch = all.batch,
                                .seq = all.seq / n,
                                .tokens = tokens,
                                .labels = labels,
                                .positions = positions,
                                .doc_start = all.doc_start != NULL ? starts : NULL};
    const lt_err err = run(&g, &mine, (lt_context_options){group, j->kind}, &p, &r);
    if (err == LT_OK) {
        const lt_param_table *t = &g.model->table;
        const float *from = lt_param_floats(lt_pass_gradients(p));
        pthread_mutex_lock(&j->lock);
        for (int64_t i = 0; i < t->n_elements; i++) {
            j->gradients[i] += from[i];
        }
        j->loss += r.loss_sum;
        j->labels += r.n_labels;
        pthread_mutex_unlock(&j->lock);
    }
    lt_pass_close(p);
    golden_close(&g);
    free(tokens);
    free(labels);
    free(positions);
    free(starts);
    return err;
}

static void same_tensors(const job *j, const golden *g, const float *want, int n) {
    for (int i = 0; i < g->model->table.n_params; i++) {
        const lt_param *p = &g->model->table.params[i];
        const int64_t at = g->model->table.units[p->unit].at + p->at;
        double off = 0.0, size = 0.0;
        for (int64_t k = at; k < at + p->local_count; k++) {
            const double d = (double)j->gradients[k] - (double)want[k];
            off += d * d;
            size += (double)want[k] * (double)want[k];
        }
        if (sqrt(off) > 1e-5 * sqrt(size) + 1e-9) {
            fail_msg("%s, %s over %d ranks: gradient of %s is %.3g off, its size %.3g", j->name,
                     kinds[j->kind], n, p->name, sqrt(off), sqrt(size));
        }
    }
}

static void golden_batch(const char *name, int n) {
    const lt_comm_options o = {.deadline_s = 60, .check = true};
    lt_pass *p = NULL;
    lt_pass_result r = {0};
    golden g;
    golden_open(&g, name, lt_backend_cpu(), LT_F32);
    must(run(&g, &g.batch, (lt_context_options){0}, &p, &r), name);
    for (int kind = 0; kind < LT_CONTEXT_KIND_COUNT; kind++) {
        job j = {.name = name, .kind = (lt_context_kind)kind};
        if (kind == LT_CONTEXT_ULYSSES && g.model->spec.n_heads % n != 0) {
            continue;
        }
        j.gradients = calloc((size_t)g.model->table.n_elements, sizeof *j.gradients);
        pthread_mutex_init(&j.lock, NULL);
        must(lt_comm_run_threads(n, &o, rank_main, &j), name);
        assert_int_equal(j.labels, r.n_labels);
        if (fabs(j.loss - r.loss_sum) > 1e-6 * r.loss_sum) {
            fail_msg("%s, %s over %d ranks: loss %.9g, not %.9g", name, kinds[kind], n, j.loss,
                     r.loss_sum);
        }
        same_tensors(&j, &g, lt_param_floats(lt_pass_gradients(p)), n);
        pthread_mutex_destroy(&j.lock);
        free(j.gradients);
    }
    lt_pass_close(p);
    golden_close(&g);
}

static void golden_batches(void **state) {
    (void)state;
    lt_thread_set_count(1);
    for (int i = 0; i < N_GOLDEN_CASES; i++) {
        golden_batch(golden_cases[i], 2 + i % 3);
        golden_batch(golden_cases[i], 2 + (i + 1) % 3);
    }
}

static void tokens_of_a_rank(void **state) {
    (void)state;
    int32_t rows[2][12];
    static const int32_t want[] = {2, 3, 8, 9, 102, 103, 108, 109}; /* Pieces 1 and 4 of 6. */
    for (int i = 0; i < 12; i++) {
        rows[0][i] = i;
        rows[1][i] = 100 + i;
    }
    lt_context_take(rows, 2, 12, 3, 1);
    assert_memory_equal(rows, want, sizeof want);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(tokens_of_a_rank),
                                       cmocka_unit_test(golden_batches)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
