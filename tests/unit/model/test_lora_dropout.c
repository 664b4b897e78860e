/* Dropout of the input of adapters. Loss and gradients are those of PEFT with the same masks
 * (golden: tools/make_lora_dropout_goldens.py), at every level of recompute; evaluation has no
 * dropout; masks drop the requested share, and differ between modules, rows, positions and seeds;
 * and what is not supported is refused. */
#include "unit/model/adapters.h"

#include "model/lora/adapted.h"
#include "model/lora/lora_dropout.h"
#include "model/files/safetensors.h"

#define SFT    "tests/golden/sft"
#define GOLDEN "tests/golden/lora_dropout.safetensors"

/* F32 against PEFT's F64. */
#define TOLERANCE 2e-5

enum { ROWS = 3, SEQ = 7, SEED = 7 };

static void says(const char *text) {
    if (strstr(lt_error_message(), text) == NULL) {
        fail_msg("'%s' is not in: %s", text, lt_error_message());
    }
}

static lt_lora *open_adapters(lt_model *m, double dropout, uint64_t seed) {
    lt_lora_config c;
    lt_lora *l = NULL;
    must(lt_lora_config_read(&c, SFT "/adapter-all-end", &m->spec), "config");
    c.options.dropout = dropout;
    must(lt_lora_open(&l, m, &c.options, seed), "open");
    must(lt_lora_load(l, SFT "/adapter-all-end"), "load");
    lt_lora_config_close(&c);
    return l;
}

/* Row k is row 5 + 2 k of the run. */
static lt_pass_batch batch_of(const lt_safetensors *file, int32_t *tokens, int32_t *labels) {
    const int32_t *all = (const int32_t *)(const void *)lt_safetensors_find(file, "tokens")->data;
    for (int i = 0; i < ROWS * SEQ; i++) {
        tokens[i] = all[i / SEQ * (SEQ + 1) + i % SEQ];
        labels[i] = all[i / SEQ * (SEQ + 1) + i % SEQ + 1];
    }
    return (lt_pass_batch){.batch = ROWS,
                           .seq = SEQ,
                           .tokens = tokens,
                           .labels = labels,
                           .first_row = 5,
                           .row_step = 2};
}

static void gradient_is(const lt_safetensors *file, const char *module, char letter,
                        const float *ours, int64_t n) {
    char name[LT_LORA_TENSOR_BYTES];
    double most = 0.0, apart = 0.0;
    (void)snprintf(name, sizeof name, LT_LORA_TENSOR, module, letter);
    const lt_safetensor *t = lt_safetensors_find(file, name);
    assert_non_null(t);
    assert_int_equal(t->shape[0] * t->shape[1], n);
    for (int64_t i = 0; i < n; i++) {
        const double want = (double)((const float *)(const void *)t->data)[i];
        most = fmax(most, fabs(want));
        apart = fmax(apart, fabs(want - (double)ours[i]));
    }
    if (apart > TOLERANCE * most) {
        fail_msg("%s: %g apart, of %g", name, apart, most);
    }
}

static void gradients_are(const lt_safetensors *file, const lt_lora *l, const float *gradient) {
    const lt_param_table *t = &l->params->table;
    const int64_t rank = l->options.rank;
    int n = 0;
    for (int k = 0; k < lt_lora_n_sites(&l->base->spec); k++) {
        const lt_lora_site *s = &l->sites[k];
        for (int i = 0; i < s->n_parts; i++) {
            const lt_param *a = &t->params[s->a], *b = &t->params[s->b];
            const lt_lora_part *p = &s->parts[i];
            char module[LT_FOREIGN_NAME_BYTES];
            lt_lora_module(module, p, a->layer);
            gradient_is(file, module, 'A',
                        gradient + t->units[a->unit].at + a->at + i * rank * a->shape[1],
                        rank * a->shape[1]);
            gradient_is(file, module, 'B',
                        gradient + t->units[b->unit].at + b->at + p->b_row * rank,
                        p->n_rows * rank);
            n++;
        }
    }
    assert_int_equal(n, 14);
}

static void equals_peft(void **state) {
    lt_safetensors file;
    int32_t tokens[ROWS * SEQ], labels[ROWS * SEQ];
    lt_model *m = open_base(SFT, lt_backend_cpu(), LT_F32);
    lt_lora *l = open_adapters(m, 0.25, SEED);
    (void)state;
    must(lt_safetensors_open(&file, GOLDEN), GOLDEN);
    const lt_pass_batch b = batch_of(&file, tokens, labels);
    const double want =
        (double)*(const float *)(const void *)lt_safetensors_find(&file, "loss")->data;
    for (int level = 0; level < 3; level++) {
        lt_pass *p = NULL;
        lt_pass_result r, without;
        must(lt_pass_open(
                 &p, m,
                 &(lt_pass_options){
                     .batch = ROWS, .seq = SEQ, .train = true, .recompute = (lt_recompute)level}),
             "pass");
        must(lt_pass_zero_gradients(p), "zero");
        must(lt_pass_train(p, &b, 1.0f, &r), "train");
        if (fabs(r.loss_sum - want) > TOLERANCE * want) {
            fail_msg("loss %.9f, PEFT has %.9f", r.loss_sum, want);
        }
        gradients_are(&file, l, lt_param_floats(lt_pass_gradients(p)));
        must(lt_pass_eval(p, &b, &without, NULL), "eval");
        assert_true(fabs(without.loss_sum - want) > 1e-2);
        l->options.dropout = 0.0;
        must(lt_pass_eval(p, &b, &r, NULL), "eval");
        assert_true(r.loss_sum == without.loss_sum);
        l->options.dropout = 0.25;
        lt_pass_close(p);
    }
    lt_safetensors_close(&file);
    lt_lora_close(l);
    lt_model_close(m);
}

/* The mask of (ROWS, SEQ) tokens and n columns. */
static void draw(const lt_lora *l, int part, uint64_t first_row, int64_t seq, float *y, int64_t n) {
    lt_lora_run run = {.lora = l};
    lt_exec r;
    float *ones = malloc((size_t)(ROWS * SEQ * n) * sizeof *ones);
    assert_non_null(ones);
    must(lt_exec_open(&r, l->base, NULL), "exec");
    r.lora = &run;
    r.batch = ROWS * SEQ / seq;
    r.seq = seq;
    run.drop.first_row = first_row;
    run.drop.row_step = 1;
    for (int64_t i = 0; i < ROWS * SEQ * n; i++) {
        ones[i] = 1.0f;
        y[i] = 2.0f;
    }
    must(lt_lora_drop(&r, lt_lora_site_of(l->sites, LT_PARAM_QKV, 1), part,
                      lt_tensor_2d(y, LT_F32, ROWS * SEQ, n),
                      lt_tensor_2d(ones, LT_F32, ROWS * SEQ, n), false),
         "drop");
    must(r.backend->sync(r.queue), "wait");
    lt_exec_close(&r);
    free(ones);
}

/* The share of numbers that are dropped in both or in neither. */
static double alike(const float *a, const float *b, int64_t n) {
    int64_t same = 0;
    for (int64_t i = 0; i < n; i++) {
        same += (a[i] == 0.0f) == (b[i] == 0.0f);
    }
    return (double)same / (double)n;
}

static void masks_are_independent(void **state) {
    enum { N = 4099, ALL = ROWS * SEQ * N };
    static float one[ALL], other[ALL];
    const double p = 0.25, by_chance = p * p + (1 - p) * (1 - p), far = 6 * 0.5 / sqrt(ALL);
    lt_model *m = open_base(SFT, lt_backend_cpu(), LT_F32);
    lt_lora *l = open_adapters(m, p, SEED);
    int64_t dropped = 0;
    (void)state;
    draw(l, 0, 4, SEQ, one, N);
    for (int64_t i = 0; i < ALL; i++) {
        assert_true(one[i] == 0.0f || one[i] == (float)(1.0 / (1.0 - p)));
        dropped += one[i] == 0.0f;
    }
    assert_true(fabs((double)dropped / ALL - p) < far);
    draw(l, 0, 4, SEQ, other, N);
    assert_true(alike(one, other, ALL) == 1.0);
    draw(l, 1, 4, SEQ, other, N);
    assert_true(fabs(alike(one, other, ALL) - by_chance) < far);
    draw(l, 0, 5, SEQ, other, N); /* Its row 0 is row 1 of the first. */
    assert_true(alike(one + SEQ * N, other, SEQ * N) == 1.0);
    assert_true(fabs(alike(one, other, ALL) - by_chance) < far);
    /* Rows that are cut after their last label, and positions. */
    draw(l, 0, 4, 1, other, N);
    assert_true(alike(one, other, N) == 1.0);
    assert_true(fabs(alike(one, one + N, N) - by_chance) < 6 * 0.5 / sqrt(N));
    l->seed++;
    draw(l, 0, 4, SEQ, other, N);
    assert_true(fabs(alike(one, other, ALL) - by_chance) < far);
    lt_lora_close(l);
    lt_model_close(m);
}

static void refused_by_name(void **state) {
    static const struct {
        const char *targets, *words;
        bool dora;
    } cases[] = {
        {"q_proj,lm_head", "lora.dropout of the output head", false},
        {"q_proj", "lora.dropout and lora.dora", true},
        {"q_proj", "several adapters in one batch, with dropout (lora.dropout)", false},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        lt_model *m = open_base(SFT, lt_backend_cpu(), LT_F32);
        lt_lora *l = NULL;
        lt_pass *p = NULL;
        must(lt_lora_open(&l, m,
                          &(lt_lora_options){.rank = 2,
                                             .alpha = 2,
                                             .dropout = 0.5,
                                             .dora = cases[i].dora,
                                             .targets = cases[i].targets},
                          1),
             "open");
        if (i < 2) {
            assert_int_equal(
                lt_pass_open(&p, m, &(lt_pass_options){.batch = 1, .seq = 8, .train = true}),
                LT_ERR_UNSUPPORTED);
        } else {
            assert_int_equal(lt_lora_check_shared(l), LT_ERR_UNSUPPORTED);
        }
        says(cases[i].words);
        lt_lora_close(l);
        lt_model_close(m);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equals_peft),
        cmocka_unit_test(masks_are_independent),
        cmocka_unit_test(refused_by_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
