/* How layers are divided into groups: the sizes of published models by hand, and that each layer
 * has a place of its own in a group of its kind. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "model/infer/page_groups.h"

static lt_model_spec spec_of(int64_t n_layers, int64_t window, int64_t every) {
    return (lt_model_spec){.n_layers = n_layers, .window = window, .window_every = every};
}

static void each_layer_has_its_place(const lt_model_spec *s, const lt_page_groups *g) {
    bool taken[LT_MAX_PAGE_GROUPS][LT_MAX_LAYERS] = {{false}};
    for (int64_t i = 0; i < s->n_layers; i++) {
        assert_true(g->group[i] < lt_page_groups_count(g) && g->place[i] < g->n_places);
        assert_false(taken[g->group[i]][g->place[i]]);
        taken[g->group[i]][g->place[i]] = true;
        if (g->n_windowed > 0) {
            assert_int_equal(g->group[i] >= g->n_full, lt_model_layer(s, i).window > 0);
        }
    }
}

/* Texts of 131,072 tokens, windows of `near` pages. */
static void models_are_divided_where_it_saves(void **state) {
    static const struct {
        const char *name;
        int64_t n_layers, every, all, near, n_full, n_windowed, n_places;
    } rows[] = {
        {"gpt-oss 20b, 12 of each kind", 24, 2, 8192, 43, 1, 1, 12},
        {"Gemma 2 9b, 21 of each kind", 42, 2, 512, 291, 1, 1, 21},
        {"Gemma 3 1b, 4 and 22: 2 places unused", 26, 6, 2048, 67, 1, 6, 4},
        {"Gemma 3 4b, 5 and 29: 1 unused", 34, 6, 8192, 99, 1, 6, 5},
        {"Gemma 3 12b, 8 and 40", 48, 6, 8192, 99, 1, 5, 8},
        {"Gemma 3 27b, 10 and 52: 8 unused, as eleven groups of 5 are too many", 62, 6, 8192, 99, 1,
         6, 10},
        {"more full layers than others", 9, 0, 8192, 99, 2, 1, 3},
        {"a text hardly longer than its window: padding costs more", 26, 6, 70, 67, 1, 0, 26},
        {"the same where nothing is padded", 48, 6, 70, 67, 1, 5, 8},
        {"a text that a window holds", 48, 6, 67, 67, 1, 0, 48},
        {"one layer sees all: its group has room for four", 26, 26, 8192, 99, 1, 7, 4},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        lt_model_spec s = spec_of(rows[i].n_layers, 1024, rows[i].every);
        lt_page_groups g;
        for (int64_t k = 0; k < s.n_layers && rows[i].every == 0; k++) {
            s.no_window[k] = k % 3 != 1;
        }
        lt_page_groups_choose(&g, &s, rows[i].all, rows[i].near);
        if (g.n_full != rows[i].n_full || g.n_windowed != rows[i].n_windowed ||
            g.n_places != rows[i].n_places) {
            fail_msg("%s: %lld and %lld groups of %lld", rows[i].name, (long long)g.n_full,
                     (long long)g.n_windowed, (long long)g.n_places);
        }
        each_layer_has_its_place(&s, &g);
    }
}

static void layers_of_one_kind_are_one_group(void **state) {
    const lt_model_spec full = spec_of(32, 0, 0), windowed = spec_of(32, 4096, 0);
    lt_page_groups g;
    (void)state;
    lt_page_groups_choose(&g, &full, 8192, 99);
    assert_true(g.n_full == 1 && g.n_windowed == 0 && g.n_places == 32);
    each_layer_has_its_place(&full, &g);
    lt_page_groups_one(&g, &windowed, true);
    assert_true(g.n_full == 0 && g.n_windowed == 1 && g.n_places == 32);
    each_layer_has_its_place(&windowed, &g);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(models_are_divided_where_it_saves),
                                       cmocka_unit_test(layers_of_one_kind_are_one_group)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
