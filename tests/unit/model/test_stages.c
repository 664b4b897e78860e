/* A pass in parts has the bits of the whole: cut into stages at any layer, with two micro-batches
 * in flight in the order of a 1F1B pipeline (one forward, one backward); in one pass, and with
 * one pass per stage, which exchange the residual stream and its gradient. On the CPU and, if
 * there is one, on the GPU. */
#include "unit/model/golden.h"

#include "model/alloc.h"

enum { N_BATCHES = 2, MAX_STAGES = 3 };

typedef struct {
    lt_model *model;
    lt_pass_batch batches[N_BATCHES];
    int n_stages, cut[MAX_STAGES + 1];
    const char *name;
} work;

static float *download(lt_model *m, const lt_pass *p) {
    const size_t bytes = lt_param_buffer_bytes(&m->table, LT_F32);
    float *out = malloc(bytes);
    assert_non_null(out);
    const lt_param_buffer *g = lt_pass_gradients(p);
    for (int u = 0; u < m->table.n_units; u++) { /* A stage has only its own units. */
        const lt_unit *unit = &m->table.units[u];
        if (g->base[u] != NULL) {
            must(lt_model_download(m, out + unit->at, g->base[u],
                                   (size_t)unit->n_elements * sizeof *out),
                 "download");
        }
    }
    return out;
}

static lt_pass_options options_of(const work *w, lt_recompute level) {
    return (lt_pass_options){.batch = w->batches[0].batch,
                             .seq = w->batches[0].seq,
                             .train = true,
                             .recompute = level,
                             .z_coef = 1e-3f,
                             .eager = true};
}

/* The next work of a stage; F of all batches that fit before the first B. */
typedef struct {
    int forward, backward;
} progress;

/* Passes of the stages: the same one, or one each. */
typedef struct {
    const work *w;
    lt_pass *of[MAX_STAGES];
    progress done[MAX_STAGES];
    bool apart;
} pipeline;

/* Copy from one pass to another, each after the work of its own queue. */
static void carry(const pipeline *l, lt_pass *to, lt_tensor y, lt_pass *from, lt_tensor x) {
    const lt_backend *be = l->w->model->backend;
    const size_t bytes = (size_t)lt_tensor_count(&x) * lt_dtype_bytes(x.dtype);
    must(be->sync(lt_pass_queue(from)), "sync");
    must(be->copy(lt_pass_queue(to), y.data, x.data, bytes), "copy");
    must(be->sync(lt_pass_queue(to)), "sync");
}

static void forward(pipeline *l, int stage, int set) {
    const work *w = l->w;
    lt_pass *p = l->of[stage];
    const int first = w->cut[stage];
    if (stage == 0 || l->apart) {
        must(lt_pass_load(p, set, &w->batches[set]), w->name);
    }
    if (stage > 0 && l->apart) {
        carry(l, p, lt_pass_stream(p, set, first), l->of[stage - 1],
              lt_pass_stream(l->of[stage - 1], set, first));
    }
    must(lt_pass_forward(p, set, first, w->cut[stage + 1]), w->name);
    l->done[stage].forward++;
}

static void backward(pipeline *l, int stage, int set) {
    const work *w = l->w;
    lt_pass *p = l->of[stage];
    if (stage == w->n_stages - 1) {
        must(lt_pass_loss(p, set, 0.25f), w->name);
    } else if (l->apart) {
        carry(l, p, lt_pass_stream_gradient(p, set), l->of[stage + 1],
              lt_pass_stream_gradient(l->of[stage + 1], set));
    }
    must(lt_pass_backward(p, set, w->cut[stage], w->cut[stage + 1], 0.25f), w->name);
    l->done[stage].backward++;
}

/* In each tick every stage does its next work whose input was there before the tick. */
static void run_1f1b(pipeline *l) {
    const int last = l->w->n_stages - 1;
    for (int tick = 0; l->done[0].backward < N_BATCHES; tick++) {
        progress before[MAX_STAGES];
        memcpy(before, l->done, sizeof before);
        assert_true(tick < 20);
        for (int s = 0; s <= last; s++) {
            const int in_flight = before[s].forward - before[s].backward, f = before[s].forward,
                      b = before[s].backward;
            const bool may_forward = f < N_BATCHES && in_flight < last - s + 1 &&
                                     (s == 0 || before[s - 1].forward > f);
            const bool may_backward = b < f && (s == last || before[s + 1].backward > b);
            if (may_backward && (in_flight == last - s + 1 || f == N_BATCHES)) {
                backward(l, s, b);
            } else if (may_forward) {
                forward(l, s, f);
            }
        }
    }
}

static void check(const work *w, const lt_pass_result *want, const float *gradients, bool apart,
                  lt_recompute level) {
    pipeline l = {.w = w, .apart = apart};
    lt_pass_result got = {0};
    float loss_rows[256];
    for (int s = 0; s < w->n_stages; s++) {
        lt_pass_options o = options_of(w, level);
        o.n_sets = N_BATCHES;
        if (apart) {
            o.first_layer = w->cut[s];
            o.end_layer = w->cut[s + 1];
        }
        if (s == 0 || apart) {
            must(lt_pass_open(&l.of[s], w->model, &o), w->name);
            must(lt_pass_zero_gradients(l.of[s]), w->name);
        } else {
            l.of[s] = l.of[0];
        }
    }
    run_1f1b(&l);
    for (int set = 0; set < N_BATCHES; set++) {
        for (int s = 0; s < (apart ? w->n_stages : 1); s++) {
            must(lt_pass_result_of(l.of[s], set, &got, loss_rows), w->name);
        }
    }
    if (memcmp(&got.loss_sum, &want->loss_sum, sizeof got.loss_sum) != 0 ||
        got.n_correct != want->n_correct || got.n_labels != want->n_labels ||
        fabs(got.aux_sum - want->aux_sum) > 1e-12 * fabs(want->aux_sum)) {
        fail_msg("%s, %d stages%s: loss %.17g, whole %.17g; auxiliary %.17g, whole %.17g", w->name,
                 w->n_stages, apart ? " apart" : "", got.loss_sum, want->loss_sum, got.aux_sum,
                 want->aux_sum);
    }
    for (int s = 0; s < (apart ? w->n_stages : 1); s++) {
        float *ours = download(w->model, l.of[s]);
        const lt_param_table *t = &w->model->table;
        for (int i = 0; i < t->n_params; i++) {
            const lt_param *p = &t->params[i];
            const bool embeds = p->kind == LT_PARAM_EMBED || p->kind == LT_PARAM_POS_EMBED,
                       tied = p->kind == LT_PARAM_EMBED && w->model->spec.tied;
            const bool here = p->layer >= 0 ? p->layer >= w->cut[s] && p->layer < w->cut[s + 1]
                              : embeds      ? s == 0
                                            : s == w->n_stages - 1;
            if (apart && !here && p->layer >= 0) {
                assert_null(lt_pass_gradients(l.of[s])->base[p->unit]);
            }
            /* Both ends hold a part of the gradient of a tied embedding. */
            if (apart && (!here || tied)) {
                continue;
            }
            if (memcmp(ours + p->whole_at, gradients + p->whole_at,
                       (size_t)p->count * sizeof *ours) != 0) {
                fail_msg("%s on %s in %s, %d stages cut at %d%s, recompute %d: the gradient of %s "
                         "is off by %.3g",
                         w->name, w->model->backend->name, lt_dtype_name(w->model->options.dtype),
                         w->n_stages, w->cut[1], apart ? ", a pass each" : "", (int)level, p->name,
                         distance(ours + p->whole_at, gradients + p->whole_at, p->count));
            }
        }
        free(ours);
        if (s == 0 || apart) {
            lt_pass_close(l.of[s]);
        }
    }
}

/* The whole pass, one batch after the other. */
static float *whole(const work *w, lt_recompute level, lt_pass_result *sum) {
    const lt_pass_options o = options_of(w, level);
    lt_pass *p = NULL;
    float *out;
    *sum = (lt_pass_result){0};
    must(lt_pass_open(&p, w->model, &o), w->name);
    must(lt_pass_zero_gradients(p), w->name);
    for (int i = 0; i < N_BATCHES; i++) {
        lt_pass_result r;
        must(lt_pass_train(p, &w->batches[i], 0.25f, &r), w->name);
        sum->loss_sum += r.loss_sum;
        sum->aux_sum += r.aux_sum;
        sum->n_correct += r.n_correct;
        sum->n_labels += r.n_labels;
    }
    out = download(w->model, p);
    lt_pass_close(p);
    return out;
}

static void all_cuts(work *w, lt_recompute level, bool every) {
    const int n_layers = (int)w->model->spec.n_layers;
    lt_pass_result want;
    float *gradients = whole(w, level, &want);
    for (int a = 1; a < n_layers; a++) {
        for (int b = a; b < n_layers; b++) {
            w->n_stages = b > a ? 3 : 2;
            w->cut[1] = a;
            w->cut[2] = b > a ? b : n_layers;
            w->cut[3] = n_layers;
            if (every || a == 1) {
                check(w, &want, gradients, false, level);
                check(w, &want, gradients, true, level);
            }
        }
    }
    free(gradients);
}

/* A model of the golden's family with three layers, and forward and backward passes of the golden
 * batch. */
static void family(const char *name, const lt_backend *be, lt_dtype dtype, bool every,
                   lt_recompute first, lt_recompute last) {
    static int32_t tokens[256], labels[256];
    const lt_model_options o = {.dtype = dtype, .trainable = true, .device = device_of(be)};
    work w = {.name = name};
    golden g;
    golden_open(&g, name, lt_backend_cpu(), LT_F32);
    lt_model_spec spec = g.model->spec;
    const int64_t n = g.batch.batch * g.batch.seq;
    spec.n_layers = 3;
    spec.init_std = 0.3f;
    assert_true(n <= 256);
    for (int64_t i = 0; i < n; i++) {
        tokens[i] = g.batch.tokens[n - 1 - i];
        labels[i] = i % 5 == 0 ? -1 : g.batch.tokens[i];
    }
    w.batches[0] = g.batch;
    w.batches[1] = (lt_pass_batch){
        .batch = g.batch.batch, .seq = g.batch.seq, .tokens = tokens, .labels = labels};
    must(lt_model_create(&w.model, &spec, &o, 5), name);
    for (int level = (int)first; level <= (int)last; level++) {
        all_cuts(&w, (lt_recompute)level, every);
    }
    lt_model_close(w.model);
    golden_close(&g);
}

static void on_the_cpu(void **state) {
    (void)state;
    for (int i = 0; i < N_GOLDEN_CASES; i++) {
        family(golden_cases[i], lt_backend_cpu(), LT_F32, true, LT_RECOMPUTE_NONE,
               LT_RECOMPUTE_FULL);
        family(golden_cases[i], lt_backend_cpu(), LT_BF16, false, LT_RECOMPUTE_NONE,
               LT_RECOMPUTE_FULL);
    }
}

/* Core: each family at one level of recomputation, each level in at least one family. */
static void on_the_gpu(void **state) {
    const char *const few[] = {"gpt2", "apertus", "gemma3", "mixtral"};
    const lt_backend *gpu = gpu_backend();
    (void)state;
    if (gpu == NULL) {
        skip();
    }
    for (int i = 0; i < 4; i++) {
        const lt_recompute one = (lt_recompute)(i % (LT_RECOMPUTE_FULL + 1));
        family(few[i], gpu, i % 2 == 0 ? LT_BF16 : LT_F32, false,
               core_only() ? one : LT_RECOMPUTE_NONE, core_only() ? one : LT_RECOMPUTE_FULL);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(on_the_cpu), cmocka_unit_test(on_the_gpu)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
