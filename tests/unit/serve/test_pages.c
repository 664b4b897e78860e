/* Which cached pages are evicted first: those that no request asked to keep, the oldest first;
 * then those that are kept; those whose time is over count as the former. (In test_scheduler.c
 * random sequences keep pages, and all invariants are checked.) */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "serve/pages.h"

enum { N = 8, PAGE = 4 };

typedef struct {
    lt_pages p;
    lt_arena arena;
} world;

static void open_world(world *w) {
    *w = (world){.p = {.n_pages = N,
                       .page_tokens = PAGE,
                       .n_full = 1,
                       .most_cached = N,
                       .most_kept = N / 2,
                       .now_s = 100}};
    lt_pages_carve(&w->p, &w->arena);
    assert_int_equal(lt_arena_open(&w->arena, "pages"), LT_OK);
    lt_pages_carve(&w->p, &w->arena);
    lt_pages_reset(&w->p);
}

static void close_world(world *w) {
    assert_null(lt_pages_check(&w->p));
    lt_arena_close(&w->arena);
}

/* A text of n pages, all of whose tokens are `text`, passes through the cache. */
static void use(world *w, int32_t text, int64_t n, double keep_s) {
    int32_t tokens[N * PAGE], table[N];
    int64_t found, behind;
    for (int i = 0; i < N * PAGE; i++) {
        tokens[i] = text;
    }
    found = lt_pages_match(&w->p, 0, tokens, n * PAGE, table, &behind);
    for (int64_t i = 0; i < n; i++) {
        if (i >= found) {
            table[i] = lt_pages_take(&w->p);
            lt_pages_publish(&w->p, &table[i], i > 0 ? &table[i - 1] : NULL, 0, tokens + i * PAGE);
        }
        if (keep_s > 0.0) {
            lt_pages_keep(&w->p, table[i], w->p.now_s + keep_s);
        }
    }
    for (int64_t i = n; i > 0; i--) {
        lt_pages_drop(&w->p, table[i - 1]);
    }
    assert_null(lt_pages_check(&w->p));
}

static int64_t there(world *w, int32_t text) {
    int32_t tokens[N * PAGE], table[N];
    int64_t found, behind;
    for (int i = 0; i < N * PAGE; i++) {
        tokens[i] = text;
    }
    found = lt_pages_match(&w->p, 0, tokens, N * PAGE, table, &behind);
    for (int64_t i = found; i > 0; i--) {
        lt_pages_drop(&w->p, table[i - 1]);
    }
    return found;
}

static void kept_pages_leave_last(void **state) {
    world w;
    (void)state;
    open_world(&w);
    use(&w, 1, 3, 60);
    use(&w, 2, 3, 0);
    for (int32_t text = 3; text < 20; text++) {
        use(&w, text, 2, 0);
        assert_int_equal(there(&w, 1), 3);
    }
    assert_int_equal(there(&w, 2), 0);
    close_world(&w);
}

static void kept_pages_expire(void **state) {
    world w;
    (void)state;
    open_world(&w);
    use(&w, 1, 3, 60);
    w.p.now_s += 50;
    use(&w, 1, 2, 60); /* The first two are used again. */
    w.p.now_s += 30;
    for (int32_t text = 3; text < 9; text++) {
        use(&w, text, 3, 0);
    }
    assert_int_equal(there(&w, 1), 2);
    w.p.now_s += 31;
    for (int32_t text = 3; text < 9; text++) {
        use(&w, text, 3, 0);
    }
    assert_int_equal(there(&w, 1), 0);
    assert_int_equal(w.p.n_kept, 0);
    close_world(&w);
}

static void a_part_at_most_is_kept(void **state) {
    world w;
    (void)state;
    open_world(&w);
    use(&w, 1, 3, 60);
    use(&w, 2, 3, 60); /* Room for its first page only. */
    assert_int_equal(w.p.n_kept, N / 2);
    for (int32_t text = 3; text < 9; text++) {
        use(&w, text, 3, 0);
    }
    assert_int_equal(there(&w, 1), 3);
    assert_int_equal(there(&w, 2), 1);
    close_world(&w);
}

static void kept_pages_give_way_to_sequences(void **state) {
    world w;
    (void)state;
    open_world(&w);
    use(&w, 1, 4, 60);
    use(&w, 2, N, 0); /* All existing pages. */
    assert_int_equal(there(&w, 2), N);
    assert_int_equal(there(&w, 1), 0);
    assert_int_equal(w.p.n_kept, 0);
    close_world(&w);
}

/* ---- A sliding window ---- */

enum { TEXT = 6, WINDOW = 6 };

/* Publish a text of six pages, then let those in the mask be evicted. */
static void six_but(world *w, unsigned evicted, int32_t *tokens) {
    int32_t table[N];
    int64_t n_taken = 0;
    open_world(w);
    w->p.window = WINDOW;
    w->p.n_full = 0;
    w->p.n_windowed = 1;
    lt_pages_reset(&w->p);
    for (int32_t i = 0; i < TEXT * PAGE; i++) {
        tokens[i] = 100 + i;
    }
    for (int64_t i = 0; i < TEXT; i++) {
        table[i] = lt_pages_take(&w->p);
        lt_pages_publish(&w->p, &table[i], i > 0 ? &table[i - 1] : NULL, 0, tokens + i * PAGE);
    }
    for (unsigned older = 1; older <= 1; older--) { /* Those to evict are released first. */
        for (unsigned i = 0; i < TEXT; i++) {
            if ((evicted >> i & 1) == older) {
                lt_pages_drop(&w->p, table[i]);
                n_taken += older;
            }
        }
    }
    n_taken += N - TEXT;
    for (int64_t i = 0; i < n_taken; i++) {
        table[i] = lt_pages_take(&w->p);
    }
    for (int64_t i = 0; i < n_taken; i++) {
        lt_pages_drop(&w->p, table[i]);
    }
    assert_null(lt_pages_check(&w->p));
}

/* Rows see six tokens, pages hold four: what follows page 3 (tokens 12 to 15) reads from token 11
 * on, so that two pages are needed, and likewise after every later page; one is needed after the
 * first page, and two after the second. */
static void a_window_needs_its_last_pages(void **state) {
    static const struct {
        unsigned evicted;
        int64_t count, behind;
    } rows[] = {{0, 6, 4},
                {1 << 5, 5, 3},
                {1 << 4 | 1 << 5, 4, 2},
                {1 << 3 | 1 << 4 | 1 << 5, 3, 1},
                {1 << 4, 4, 2}, /* Page 5 alone is not enough. */
                {1 << 3, 6, 4},
                {1 << 0 | 1 << 1 | 1 << 2, 6, 4},
                {1 << 2 | 1 << 4, 2, 0},
                {1 << 1 | 1 << 3 | 1 << 5, 1, 0},
                {1 << 0 | 1 << 2 | 1 << 4, 0, 0},
                {1 << 0, 6, 4},
                {1 << 0 | 1 << 5, 5, 3},
                {63, 0, 0}};
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        int32_t tokens[TEXT * PAGE], table[TEXT + 1];
        int64_t behind = -1;
        world w;
        six_but(&w, rows[i].evicted, tokens);
        table[TEXT] = 77;
        assert_int_equal(lt_pages_match(&w.p, 0, tokens, TEXT * PAGE + 3, table, &behind),
                         rows[i].count);
        assert_int_equal(behind, rows[i].behind);
        for (int64_t k = 0; k < rows[i].count; k++) {
            assert_in_range(table[k], 0, N - 1);
            if (k >= behind) {
                assert_int_equal(w.p.page[table[k]].refs, 1);
                assert_memory_equal(lt_pages_tokens(&w.p, table[k]), tokens + k * PAGE,
                                    PAGE * sizeof *tokens);
            }
        }
        assert_int_equal(table[TEXT], 77);
        assert_int_equal(lt_pages_available(&w.p), N - (rows[i].count - behind));
        lt_pages_drop_chain(&w.p, table, behind, rows[i].count);
        close_world(&w);
    }
}

/* The same text with one group of layers that see all tokens and one with the window, each
 * without the pages in its mask. */
static void six_sets_but(world *w, const unsigned evicted[2], int32_t *tokens) {
    int32_t table[4 * N];
    int64_t n_taken = 2 * N - 2 * TEXT;
    *w = (world){.p = {.n_pages = 2 * N,
                       .page_tokens = PAGE,
                       .n_full = 1,
                       .n_windowed = 1,
                       .window = WINDOW,
                       .most_cached = 2 * N}};
    lt_pages_carve(&w->p, &w->arena);
    assert_int_equal(lt_arena_open(&w->arena, "pages"), LT_OK);
    lt_pages_carve(&w->p, &w->arena);
    lt_pages_reset(&w->p);
    for (int32_t i = 0; i < TEXT * PAGE; i++) {
        tokens[i] = 100 + i;
    }
    for (int64_t i = 0; i < TEXT; i++) {
        int32_t *set = table + 2 * i;
        set[0] = lt_pages_take(&w->p);
        set[1] = lt_pages_take(&w->p);
        lt_pages_publish(&w->p, set, i > 0 ? set - 2 : NULL, 0, tokens + i * PAGE);
    }
    for (unsigned older = 1; older <= 1; older--) { /* Those to evict are released first. */
        for (unsigned i = 0; i < 2 * TEXT; i++) {
            if ((evicted[i % 2] >> i / 2 & 1) == older) {
                lt_pages_drop(&w->p, table[i]);
                n_taken += older;
            }
        }
    }
    for (int64_t i = 0; i < n_taken; i++) {
        table[i] = lt_pages_take(&w->p);
    }
    for (int64_t i = 0; i < n_taken; i++) {
        lt_pages_drop(&w->p, table[i]);
    }
    assert_null(lt_pages_check(&w->p));
}

/* All pages of the first group, and those in the window of the second. */
static void groups_need_what_their_layers_read(void **state) {
    static const struct {
        unsigned evicted[2];
        int64_t count, behind;
    } rows[] = {{{0, 0}, 6, 4},
                {{0, 1 << 3}, 6, 4},
                {{0, 1 << 4}, 4, 2},
                {{0, 63}, 0, 0},
                /* Before the window, but read by the first group. */
                {{1 << 5, 0}, 5, 3},
                {{1 << 3, 0}, 3, 1},
                {{1 << 0, 0}, 0, 0},
                {{1 << 3, 1 << 2}, 2, 0},
                {{1 << 5, 1 << 4}, 4, 2},
                {{1 << 5, 1 << 3}, 3, 1}};
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        int32_t tokens[TEXT * PAGE], table[2 * TEXT + 1];
        int64_t behind = -1;
        world w;
        six_sets_but(&w, rows[i].evicted, tokens);
        table[2 * TEXT] = 77;
        assert_int_equal(lt_pages_match(&w.p, 0, tokens, TEXT * PAGE + 3, table, &behind),
                         rows[i].count);
        assert_int_equal(behind, rows[i].behind);
        for (int64_t k = 0; k < 2 * rows[i].count; k++) {
            const bool held = k % 2 == 0 || k / 2 >= behind;
            assert_in_range(table[k], 0, 2 * N - 1);
            if (held) {
                assert_int_equal(w.p.page[table[k]].refs, 1);
                assert_int_equal(w.p.page[table[k]].group, k % 2);
                assert_memory_equal(lt_pages_tokens(&w.p, table[k]), tokens + k / 2 * PAGE,
                                    PAGE * sizeof *tokens);
            }
        }
        assert_int_equal(table[2 * TEXT], 77);
        assert_int_equal(lt_pages_available(&w.p), 2 * N - (2 * rows[i].count - behind));
        assert_int_equal(lt_pages_held(&w.p, behind, rows[i].count), 2 * rows[i].count - behind);
        lt_pages_drop_text(&w.p, table, behind, rows[i].count);
        assert_int_equal(lt_pages_available(&w.p), 2 * N);
        close_world(&w);
    }
}

/* Sets from a new pool are chosen such that the pages of a group are adjacent; what remains of 8
 * pages for 3 groups comes last. */
static void new_pages_of_a_group_are_neighbours(void **state) {
    static const int32_t order[N] = {0, 2, 4, 1, 3, 5, 6, 7};
    world w = {.p = {.n_pages = N,
                     .page_tokens = PAGE,
                     .n_full = 1,
                     .n_windowed = 2,
                     .window = WINDOW,
                     .most_cached = N}};
    (void)state;
    lt_pages_carve(&w.p, &w.arena);
    assert_int_equal(lt_arena_open(&w.arena, "pages"), LT_OK);
    lt_pages_carve(&w.p, &w.arena);
    lt_pages_reset(&w.p);
    for (int i = 0; i < N; i++) {
        assert_int_equal(lt_pages_take(&w.p), order[i]);
    }
    assert_int_equal(lt_pages_take(&w.p), LT_NO_PAGE);
    for (int32_t i = 0; i < N; i++) {
        lt_pages_drop(&w.p, i);
    }
    close_world(&w);
}

/* Erasing a text does not affect others, nor pages that are held or have children. */
static void a_text_is_erased(void **state) {
    int32_t tokens[N * PAGE], table[N], held[N];
    int64_t behind;
    world w;
    (void)state;
    open_world(&w);
    use(&w, 1, 4, 0);
    use(&w, 2, 2, 0);
    for (int i = 0; i < N * PAGE; i++) {
        tokens[i] = i < 3 * PAGE ? 1 : 9; /* Three pages of the first text, and others. */
    }
    assert_int_equal(lt_pages_match(&w.p, 0, tokens + 3 * PAGE, PAGE, held, &behind), 0);
    tokens[0] = 2;
    assert_int_equal(lt_pages_erase(&w.p, 0, tokens, 4 * PAGE, table), 0);
    tokens[0] = 1;
    /* The fourth remains. */
    assert_int_equal(lt_pages_erase(&w.p, 0, tokens, 4 * PAGE, table), 0);
    for (int i = 0; i < N * PAGE; i++) {
        tokens[i] = 1;
    }
    assert_int_equal(lt_pages_match(&w.p, 0, tokens, 2 * PAGE, held, &behind), 2);
    /* After the end of the text follows a page that is not its own. */
    for (int i = 0; i < N; i++) {
        table[i] = held[0] == 0 || held[1] == 0 ? 7 : 0;
    }
    for (int32_t i = 0; i < N; i++) {
        if (w.p.page[i].published && *lt_pages_tokens(&w.p, i) == 2 &&
            w.p.page[i].n_children == 0) {
            table[4] = i;
        }
    }
    assert_int_equal(lt_pages_erase(&w.p, 0, tokens, 4 * PAGE, table), 2);
    assert_int_equal(there(&w, 2), 2);
    lt_pages_drop_chain(&w.p, held, 0, 2);
    assert_int_equal(there(&w, 1), 2);
    assert_int_equal(lt_pages_erase(&w.p, 0, tokens, 6 * PAGE, table), 2);
    assert_int_equal(there(&w, 1), 0);
    assert_int_equal(lt_pages_available(&w.p), N);
    use(&w, 1, 3, 60); /* Pages that are kept are erased, too. */
    use(&w, 3, 1, 60);
    assert_int_equal(lt_pages_erase(&w.p, 0, tokens, 3 * PAGE, table), 3);
    assert_int_equal(w.p.n_kept, 1);
    assert_int_equal(there(&w, 3), 1);
    close_world(&w);
}

/* A page that is reused has no tokens that a draft model has run. */
static void drafts_of_a_page_end_with_it(void **state) {
    int32_t table[N];
    world w;
    (void)state;
    open_world(&w);
    use(&w, 1, N, 0);
    for (int64_t i = 0; i < N; i++) {
        w.p.page[i].n_drafted = PAGE;
    }
    for (int64_t i = 0; i < N; i++) {
        table[i] = lt_pages_take(&w.p);
        assert_int_equal(w.p.page[table[i]].n_drafted, 0);
    }
    assert_int_equal(w.p.n_evicted, N);
    lt_pages_drop_chain(&w.p, table, 0, N);
    close_world(&w);
}

/* The faults that the check of the other tests detects. */
static void each_damage_is_named(void **state) {
    static const struct {
        const char *words;
        int damage;
    } rows[] = {{"a page of the free list is held", 0},
                {"a page of the free list is held", 1},
                {"a page of an age list is held", 2},
                {"a page of an age list is held", 3},
                {"more pages are cached than may be", 4},
                {"a page is kept longer than its parent", 5},
                {"references below zero", 6},
                {"a published page outlives its parent", 7},
                {"a page in a wrong bucket", 8},
                {"the counts are wrong", 9},
                {"the counts are wrong", 10},
                {"a page is lost", 11},
                {"children are miscounted", 12},
                {"pages that are kept are miscounted", 13}};
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        int32_t tokens[PAGE * 2] = {5, 5, 5, 5, 5, 5, 5, 5}, table[2];
        const char *why;
        int64_t behind;
        world w;
        open_world(&w);
        use(&w, 1, 2, 60);
        use(&w, 5, 2, 0);
        assert_null(lt_pages_check(&w.p));
        assert_int_equal(lt_pages_match(&w.p, 0, tokens, 2 * PAGE, table, &behind), 2);
        lt_page *first = &w.p.page[w.p.free_first], *parent = &w.p.page[table[0]],
                *child = &w.p.page[table[1]], *kept = &w.p.page[w.p.kept.newest];
        switch (rows[i].damage) {
        case 0:
            first->refs = 1;
            break;
        case 1:
            first->published = true;
            break;
        case 2:
            kept->refs = 1;
            break;
        case 3:
            kept->prev = LT_NO_PAGE;
            break;
        case 4:
            w.p.most_cached = 1;
            break;
        case 5:
            child->keep_until_s = 200;
            break;
        case 6:
            child->refs = -1;
            break;
        case 7:
            parent->refs = 0;
            break;
        case 8:
            child->chain.low ^= 1;
            break;
        case 9:
            w.p.n_free++;
            break;
        case 10:
            w.p.n_cached--;
            break;
        case 11:
            parent->refs = child->refs = 0;
            break;
        case 12:
            parent->n_children++;
            break;
        default:
            w.p.n_kept++;
            break;
        }
        why = lt_pages_check(&w.p);
        if (why == NULL || strncmp(why, rows[i].words, strlen(rows[i].words)) != 0) {
            fail_msg("damage %d: %s", rows[i].damage, why != NULL ? why : "nothing");
        }
        lt_arena_close(&w.arena);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(kept_pages_leave_last),
                                       cmocka_unit_test(kept_pages_expire),
                                       cmocka_unit_test(a_part_at_most_is_kept),
                                       cmocka_unit_test(kept_pages_give_way_to_sequences),
                                       cmocka_unit_test(a_window_needs_its_last_pages),
                                       cmocka_unit_test(groups_need_what_their_layers_read),
                                       cmocka_unit_test(new_pages_of_a_group_are_neighbours),
                                       cmocka_unit_test(a_text_is_erased),
                                       cmocka_unit_test(drafts_of_a_page_end_with_it),
                                       cmocka_unit_test(each_damage_is_named)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
