/* The part of the model that each rank of a mesh holds: for every element of every parameter,
 * exactly one rank of each set of copies is responsible, and as many ranks hold it as
 * lt_layout_copies says; boxes of a small model against a list worked out by hand; sizes that do
 * not divide are refused with both numbers. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/error.h"
#include "parallel/layout.h"

static const lt_model_spec *spec_of(const char *name) {
    static lt_model_spec spec;
    char path[256];
    (void)snprintf(path, sizeof path, "tests/golden/model/%s/config.json", name);
    if (lt_model_spec_read(&spec, path) != LT_OK) {
        fail_msg("%s", lt_error_message());
    }
    return &spec;
}

/* For each element: how many ranks hold it, how many of them are responsible, how many should
 * hold it. */
typedef struct {
    int *held, *answered, *expected;
} tally;

static void count_box(const lt_layout *l, const lt_param_table *t, const lt_param *p, int box,
                      int64_t at, tally *c) {
    const lt_mesh_shape *m = &l->shape;
    const unsigned copies = lt_layout_copies(l, p, &lt_param_boxes(t, p)[box]);
    int expected = m->dp * m->cp / (lt_layout_expert(l, p) ? m->ep : 1);
    expected *= (copies & LT_COPIES_TP) != 0 ? m->tp : 1;
    expected *= (copies & LT_COPIES_KV) != 0 ? l->kv_copies : 1;
    expected *= (copies & LT_COPIES_STAGES) != 0 ? 2 : 1;
    for (int64_t i = 0, run; i < lt_box_count(&lt_param_boxes(t, p)[box], p->n_dims); i += run) {
        const int64_t whole = lt_param_whole_index(t, p, at + i, &run);
        run = 1;
        c->held[whole]++;
        c->answered[whole] += lt_layout_answers(l, p, &lt_param_boxes(t, p)[box]);
        c->expected[whole] = expected;
    }
}

static void check_mesh(const char *model, const lt_mesh_shape *m) {
    const lt_model_spec *spec = spec_of(model);
    const int n_ranks = m->pp * m->dp * m->cp * m->tp;
    lt_param_table whole;
    assert_int_equal(lt_param_table_open(&whole, spec), LT_OK);
    for (int i = 0; i < whole.n_params; i++) {
        const size_t n = (size_t)whole.params[i].count;
        tally c = {calloc(n, sizeof(int)), calloc(n, sizeof(int)), calloc(n, sizeof(int))};
        int per = m->dp * m->cp;
        for (int r = 0; r < n_ranks; r++) {
            lt_layout l;
            lt_box_list list = {0};
            lt_param p = whole.params[i];
            lt_param_table one = {.params = &p, .n_params = 1};
            lt_partition part;
            int64_t at = 0;
            assert_int_equal(lt_layout_open(&l, spec, m, r), LT_OK);
            part = lt_layout_partition(&l);
            assert_int_equal(part.boxes(part.ctx, &p, &list), LT_OK);
            p.first_box = 0;
            p.n_boxes = list.n;
            one.boxes = list.boxes;
            for (int b = 0; b < list.n; b++) {
                count_box(&l, &one, &p, b, at, &c);
                at += lt_box_count(&list.boxes[b], p.n_dims);
            }
            per = m->dp * m->cp / (lt_layout_expert(&l, &p) ? m->ep : 1);
            free(list.boxes);
        }
        for (size_t k = 0; k < n; k++) {
            if (c.held[k] != c.expected[k] || c.answered[k] != per) {
                fail_msg("%s, %s[%zu] on pp=%d dp=%d cp=%d tp=%d ep=%d: %d hold it (expected %d), "
                         "%d answer (expected %d)",
                         model, whole.params[i].name, k, m->pp, m->dp, m->cp, m->tp, m->ep,
                         c.held[k], c.expected[k], c.answered[k], per);
            }
        }
        free(c.held);
        free(c.answered);
        free(c.expected);
    }
    lt_param_table_close(&whole);
}

static void each_element_has_one_responsible_rank(void **state) {
    static const char *const models[] = {"gpt2",  "llama3",  "llama_bias", "qwen3", "gemma3",
                                         "olmo2", "mixtral", "qwen3_moe",  "switch"};
    (void)state;
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        const bool experts = spec_of(models[i])->n_experts > 0;
        int n = 0;
        for (int pp = 1; pp <= 2; pp++) {
            for (int tp = 1; tp <= 4; tp *= 2) {
                for (int cp = 1; cp <= 2; cp++) {
                    for (int ep = 1; ep <= (experts ? 2 : 1); ep++) {
                        const lt_mesh_shape m = {pp, 2, cp, tp, ep};
                        lt_layout l;
                        if (lt_layout_open(&l, spec_of(models[i]), &m, 0) == LT_OK) {
                            check_mesh(models[i], &m);
                            n++;
                        }
                    }
                }
            }
        }
        if (n < 4) {
            fail_msg("%s: only %d meshes fit", models[i], n);
        }
    }
}

/* A Llama with 4 heads of 8 columns and 2 key heads: what rank 1 of tp=2 and rank 3 of tp=4 hold
 * of the rows of q, k and v (32, 16, 16), counted by hand. */
static void rows_of_heads(void **state) {
    static const struct {
        int tp, rank;
        int64_t first[3], extent[3];
    } cases[] = {
        {2, 1, {16, 40, 56}, {16, 8, 8}},
        {4, 3, {24, 40, 56}, {8, 8, 8}},
        {4, 1, {8, 32, 48}, {8, 8, 8}},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        lt_model_spec spec = *spec_of("llama3");
        lt_layout l;
        lt_param_table t;
        lt_partition part;
        const lt_param *p;
        spec.n_heads = 4, spec.n_kv_heads = 2, spec.head_dim = 8, spec.width = 32;
        spec.ffn_width = 64;
        assert_int_equal(
            lt_layout_open(&l, &spec, &(lt_mesh_shape){1, 1, 1, cases[i].tp, 1}, cases[i].rank),
            LT_OK);
        part = lt_layout_partition(&l);
        assert_int_equal(lt_param_table_open_part(&t, &spec, &part), LT_OK);
        p = lt_param_find(&t, "layers.0.qkv");
        assert_int_equal(p->n_boxes, 3);
        for (int b = 0; b < 3; b++) {
            assert_int_equal(lt_param_boxes(&t, p)[b].first[0], cases[i].first[b]);
            assert_int_equal(lt_param_boxes(&t, p)[b].extent[0], cases[i].extent[b]);
        }
        assert_int_equal(p->local_dims, 2);
        lt_param_table_close(&t);
    }
}

static void sizes_that_do_not_divide_are_refused(void **state) {
    static const struct {
        lt_mesh_shape mesh;
        const char *why;
    } cases[] = {
        {{1, 1, 1, 3, 1}, "tp=3 does not divide the model's 4 heads; tp=2 does"},
        {{9, 1, 1, 1, 1}, "pp=9 stages, and the model has 2 layers; pp=2 fits"},
        {{1, 2, 1, 1, 2}, "ep=2, and the model has no experts; leave ep out"},
        {{1, 3, 1, 1, 2}, "ep=2 does not divide dp * cp = 3 * 1; ep=1 does"},
        {{1, 4, 1, 1, 3}, "ep=3 does not divide dp * cp = 4 * 1; ep=2 does"},
    };
    /* 12 heads, 4 key heads, an MLP of 96 columns, 10 words, 4 experts. */
    static const struct {
        lt_mesh_shape mesh;
        const char *why;
    } others[] = {
        {{1, 1, 1, 5, 1}, "tp=5 does not divide the model's 12 heads; tp=4 does"},
        {{1, 1, 1, 3, 1}, "tp=3 and the model's 4 key heads: neither divides the other; tp=2 fits"},
        {{1, 1, 1, 12, 1}, "tp=12 is more than the vocabulary's 10 entries; tp=4 fits"},
        {{1, 3, 1, 1, 3}, "ep=3 does not divide the model's 4 experts; ep=2 does"},
    };
    lt_model_spec spec = *spec_of("llama3");
    (void)state;
    spec.n_heads = 12, spec.n_kv_heads = 4, spec.n_layers = 2, spec.ffn_width = 96;
    spec.n_experts = 4, spec.top_k = 2, spec.vocab_size = 10;
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        lt_layout l;
        assert_int_equal(lt_layout_open(&l, &spec, &others[i].mesh, 0), LT_ERR_ARG);
        if (strstr(lt_error_message(), others[i].why) == NULL) {
            fail_msg("'%s' instead of '%s'", lt_error_message(), others[i].why);
        }
    }
    spec = *spec_of("llama3");
    spec.n_heads = 4, spec.n_kv_heads = 2, spec.n_layers = 2;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        lt_layout l;
        assert_int_equal(lt_layout_open(&l, &spec, &cases[i].mesh, 0), LT_ERR_ARG);
        if (strstr(lt_error_message(), cases[i].why) == NULL) {
            fail_msg("'%s' instead of '%s'", lt_error_message(), cases[i].why);
        }
    }
}

static void shares_cover_all(void **state) {
    (void)state;
    for (int64_t count = 0; count < 40; count++) {
        for (int n = 1; n < 9; n++) {
            assert_int_equal(lt_share_first(count, n, 0), 0);
            assert_int_equal(lt_share_first(count, n, n), count);
            for (int i = 0; i < n; i++) {
                const int64_t size = lt_share_first(count, n, i + 1) - lt_share_first(count, n, i);
                assert_true(size == count / n || size == count / n + 1);
            }
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_element_has_one_responsible_rank), cmocka_unit_test(rows_of_heads),
        cmocka_unit_test(sizes_that_do_not_divide_are_refused), cmocka_unit_test(shares_cover_all)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
