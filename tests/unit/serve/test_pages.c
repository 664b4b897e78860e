/* Which cached pages are evicted first: those that nobody asked to keep, the oldest first; then
 * those that are kept; and those whose time is over as the others. (test_scheduler.c lets random
 * sequences keep pages, and checks all invariants.) */
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
    *w = (world){
        .p = {
            .n_pages = N, .page_tokens = PAGE, .most_cached = N, .most_kept = N / 2, .now_s = 100}};
    lt_pages_carve(&w->p, &w->arena);
    assert_int_equal(lt_arena_open(&w->arena, "pages"), LT_OK);
    lt_pages_carve(&w->p, &w->arena);
    lt_pages_reset(&w->p);
}

static void close_world(world *w) {
    assert_null(lt_pages_check(&w->p));
    lt_arena_close(&w->arena);
}

/* A text of n pages, the tokens of all of which are `text`, passes through the cache. */
static void use(world *w, int32_t text, int64_t n, double keep_s) {
    int32_t tokens[N * PAGE], table[N];
    int64_t found, behind;
    for (int i = 0; i < N * PAGE; i++) {
        tokens[i] = text;
    }
    found = lt_pages_match(&w->p, 0, tokens, n * PAGE, table, &behind);
    for (int64_t i = 0; i < n; i++) {
        if (i >= found) {
            table[i] = lt_pages_publish(&w->p, lt_pages_take(&w->p),
                                        i > 0 ? table[i - 1] : LT_NO_PAGE, 0, tokens + i * PAGE);
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

static void their_time_ends(void **state) {
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

static void they_give_way_to_sequences(void **state) {
    world w;
    (void)state;
    open_world(&w);
    use(&w, 1, 4, 60);
    use(&w, 2, N, 0); /* All pages there are. */
    assert_int_equal(there(&w, 2), N);
    assert_int_equal(there(&w, 1), 0);
    assert_int_equal(w.p.n_kept, 0);
    close_world(&w);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(kept_pages_leave_last), cmocka_unit_test(their_time_ends),
        cmocka_unit_test(a_part_at_most_is_kept), cmocka_unit_test(they_give_way_to_sequences)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
