/* Stored answers: found by id and owner, within limits of number, bytes and time; a turn keeps
 * the previous one. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "lateen/base.h"
#include "serve/api/stored/store.h"

static lt_store *opened(int64_t entries, size_t bytes, double lifetime_s) {
    lt_store *s = NULL;
    const lt_store_options o = {entries, bytes, lifetime_s};
    assert_int_equal(lt_store_open(&s, &o), LT_OK);
    return s;
}

static bool put(lt_store *s, const char *id, lt_stored *previous, double now_s) {
    return lt_store_put(s, id, "owner", previous, id, strlen(id), now_s);
}

static bool there(lt_store *s, const char *id, double now_s) {
    lt_stored *e = lt_store_hold(s, id, "owner", now_s);
    lt_store_release(s, e);
    return e != NULL;
}

static void found_by_id_and_owner(void **state) {
    lt_store *s = opened(8, 1 << 20, 100);
    lt_stored *e;
    size_t n = 0;
    (void)state;
    assert_true(lt_store_put(s, "a", "one", NULL, "{\"a\":1}", 7, 0));
    assert_null(lt_store_hold(s, "a", "two", 0));
    assert_null(lt_store_hold(s, "b", "one", 0));
    assert_false(lt_store_forget(s, "a", "two", 0));
    e = lt_store_hold(s, "a", "one", 0);
    assert_string_equal(lt_stored_text(e, &n), "{\"a\":1}");
    assert_int_equal(n, 7);
    assert_true(lt_store_forget(s, "a", "one", 0));
    assert_false(lt_store_forget(s, "a", "one", 0));
    /* A reader that holds it may go on reading. */
    assert_string_equal(lt_stored_text(e, &n), "{\"a\":1}");
    assert_int_equal(lt_store_get_stats(s).entries, 0);
    assert_true(lt_store_get_stats(s).bytes > 0);
    lt_store_release(s, e);
    assert_int_equal(lt_store_get_stats(s).bytes, 0);
    lt_store_close(s);
}

static void nothing_is_kept_where_nothing_may_be(void **state) {
    lt_store *s = opened(0, 8000, 100);
    (void)state;
    assert_false(put(s, "a", NULL, 0));
    assert_false(there(s, "a", 0));
    lt_store_close(s);
}

static void longest_unused_goes_first(void **state) {
    lt_store *s = opened(3, 1 << 20, 100);
    (void)state;
    assert_true(put(s, "a", NULL, 0) && put(s, "b", NULL, 1) && put(s, "c", NULL, 2));
    assert_true(there(s, "a", 3)); /* It was used: now b is the oldest. */
    assert_true(put(s, "d", NULL, 4));
    assert_true(there(s, "a", 5) && !there(s, "b", 5) && there(s, "c", 5) && there(s, "d", 5));
    assert_int_equal(lt_store_get_stats(s).entries, 3);
    lt_store_close(s);
}

static void time_is_since_the_last_use(void **state) {
    lt_store *s = opened(8, 1 << 20, 10);
    (void)state;
    assert_true(put(s, "a", NULL, 0) && put(s, "b", NULL, 0));
    assert_true(there(s, "a", 9));
    assert_true(there(s, "a", 18) && !there(s, "b", 18));
    assert_false(there(s, "a", 28.5));
    assert_int_equal(lt_store_get_stats(s).bytes, 0);
    lt_store_close(s);
}

static void bytes_are_bounded(void **state) {
    static char big[3000];
    lt_store *s = opened(100, 8000, 100);
    lt_stored *held;
    char id[16];
    (void)state;
    memset(big, 'x', sizeof big);
    for (int i = 0; i < 20; i++) {
        snprintf(id, sizeof id, "%d", i);
        assert_true(lt_store_put(s, id, "o", NULL, big, sizeof big, i));
        assert_true(lt_store_get_stats(s).bytes <= 8000);
    }
    assert_int_equal(lt_store_get_stats(s).entries, 2);
    held = lt_store_hold(s, "19", "o", 20);
    assert_false(lt_store_put(s, "huge", "o", NULL, big, 9000, 21));
    assert_true(lt_store_put(s, "20", "o", held, big, sizeof big, 22));
    lt_store_release(s, held);
    held = lt_store_hold(s, "20", "o", 23);
    /* Both are held, one by the other: there is no room for a third, and nothing can be found. */
    assert_false(lt_store_put(s, "21", "o", held, big, sizeof big, 24));
    assert_int_equal(lt_store_get_stats(s).entries, 0);
    lt_store_release(s, held);
    assert_int_equal(lt_store_get_stats(s).bytes, 0);
    lt_store_close(s);
}

static void turns_hold_the_ones_before(void **state) {
    lt_store *s = opened(4, 1 << 20, 100);
    lt_stored *last = NULL, *next;
    char id[16];
    int turns = 0;
    (void)state;
    /* Long enough that freeing by recursion would overflow the stack. */
    for (int i = 0; i < 50000; i++) {
        snprintf(id, sizeof id, "%d", i);
        if (!put(s, id, last, i * 0.001)) {
            break;
        }
        next = lt_store_hold(s, id, "owner", i * 0.001);
        lt_store_release(s, last);
        last = next;
    }
    for (const lt_stored *e = last; e != NULL; e = lt_stored_previous(e)) {
        turns++;
    }
    assert_true(turns > 4); /* 4 are found; all that fitted are read. */
    lt_store_release(s, last);
    lt_store_close(s);
}

/* The ids of a list, joined. */
static const char *listed(lt_store *s, const char *prefix, const char *owner, double now_s) {
    static char text[256];
    size_t n;
    lt_stored **list = lt_store_list(s, prefix, owner, now_s, &n);
    assert_non_null(list);
    text[0] = '\0';
    for (size_t i = 0; i < n; i++) {
        snprintf(text + strlen(text), sizeof text - strlen(text), "%s ", lt_stored_id(list[i]));
        lt_store_release(s, list[i]);
    }
    free(list);
    return text;
}

static void listed_in_the_order_of_putting(void **state) {
    lt_store *s = opened(8, 1 << 20, 100);
    (void)state;
    assert_string_equal(listed(s, "", "owner", 0), "");
    assert_true(put(s, "x-1", NULL, 0) && put(s, "y-1", NULL, 1) && put(s, "x-2", NULL, 2));
    assert_true(lt_store_put(s, "x-3", "another", NULL, "", 0, 3));
    assert_true(there(s, "x-1", 50)); /* Using it does not move it. */
    assert_string_equal(listed(s, "x-", "owner", 50), "x-1 x-2 ");
    assert_string_equal(listed(s, "", "owner", 50), "x-1 y-1 x-2 ");
    assert_string_equal(listed(s, "x-", "another", 50), "x-3 ");
    /* Listing is no use, either: what was not used for 100 s is gone. */
    assert_string_equal(listed(s, "", "owner", 120), "x-1 ");
    lt_store_close(s);
}

static void replaced_text_keeps_its_place(void **state) {
    static char big[3000];
    lt_store *s = opened(2, 8000, 100);
    lt_stored *a, *c, *d;
    size_t n;
    (void)state;
    memset(big, 'x', sizeof big);
    assert_true(put(s, "a", NULL, 0) && put(s, "b", NULL, 1));
    a = lt_store_hold(s, "a", "owner", 2);
    assert_true(lt_store_replace(s, a, "new", 3, 3));
    assert_int_equal(lt_store_get_stats(s).entries, 2);
    /* It is no longer the one that is found. */
    assert_false(lt_store_replace(s, a, "newer", 5, 4));
    assert_string_equal(lt_stored_text(a, &n), "a");
    lt_store_release(s, a);
    a = lt_store_hold(s, "a", "owner", 5);
    assert_string_equal(lt_stored_text(a, &n), "new");
    assert_string_equal(listed(s, "", "owner", 5), "a b ");
    /* A text that does not fit changes nothing: alone, or with what others hold. */
    assert_false(lt_store_replace(s, a, big, 9000, 6));
    assert_true(lt_store_put(s, "c", "owner", NULL, big, sizeof big, 7)); /* b is dropped. */
    c = lt_store_hold(s, "c", "owner", 8);
    assert_true(lt_store_put(s, "d", "owner", NULL, big, sizeof big, 9)); /* a is the oldest. */
    assert_false(there(s, "a", 9));
    assert_false(lt_store_replace(s, a, "again", 5, 10));
    d = lt_store_hold(s, "d", "owner", 11);
    assert_false(lt_store_replace(s, c, big, sizeof big, 12));
    assert_true(there(s, "c", 13));
    lt_store_release(s, a);
    lt_store_release(s, c);
    lt_store_release(s, d);
    assert_true(lt_store_forget(s, "c", "owner", 14));
    assert_int_equal(lt_store_get_stats(s).bytes, 0);
    lt_store_close(s);
}

static void replaced_turn_holds_the_one_before(void **state) {
    lt_store *s = opened(4, 1 << 20, 100);
    lt_stored *a, *b;
    (void)state;
    assert_true(put(s, "a", NULL, 0));
    a = lt_store_hold(s, "a", "owner", 0);
    assert_true(put(s, "b", a, 1));
    lt_store_release(s, a);
    b = lt_store_hold(s, "b", "owner", 2);
    assert_true(lt_store_replace(s, b, "new", 3, 3));
    lt_store_release(s, b);
    assert_true(lt_store_forget(s, "a", "owner", 4));
    b = lt_store_hold(s, "b", "owner", 5);
    assert_string_equal(lt_stored_id(lt_stored_previous(b)), "a");
    lt_store_release(s, b);
    assert_true(lt_store_forget(s, "b", "owner", 6));
    assert_int_equal(lt_store_get_stats(s).bytes, 0);
    lt_store_close(s);
}

static void searched_by_prefix(void **state) {
    lt_store *s = opened(4, 1 << 20, 100);
    lt_stored *e;
    (void)state;
    assert_true(lt_store_put(s, "x-1", "owner", NULL, "the word", 8, 0));
    assert_true(lt_store_put(s, "y-1", "owner", NULL, "the word", 8, 1));
    e = lt_store_search(s, "x-", "word", "owner", 2);
    assert_string_equal(lt_stored_id(e), "x-1");
    lt_store_release(s, e);
    assert_null(lt_store_search(s, "x-", "words", "owner", 2));
    assert_null(lt_store_search(s, "x-", "word", "another", 2));
    lt_store_close(s);
}

/* Exactly the limit still fits, for one text, and for one that another reader holds while its
 * successor arrives. */
static void bytes_that_just_fit(void **state) {
    static char text[1000];
    lt_store *s = opened(8, 1 << 20, 100);
    size_t one;
    (void)state;
    memset(text, 'x', sizeof text);
    assert_true(lt_store_put(s, "a", "o", NULL, text, sizeof text, 0));
    one = lt_store_get_stats(s).bytes;
    assert_true(one >= sizeof text);
    lt_store_close(s);
    for (size_t less = 0; less < 2; less++) {
        s = opened(8, one - less, 100);
        assert_int_equal(lt_store_put(s, "a", "o", NULL, text, sizeof text, 0), less == 0);
        lt_store_close(s);
        s = opened(8, 2 * one - less, 100);
        assert_true(lt_store_put(s, "a", "o", NULL, text, sizeof text, 0));
        lt_stored *held = lt_store_hold(s, "a", "o", 0);
        text[0] = 'y';
        assert_int_equal(lt_store_replace(s, held, text, sizeof text, 0), less == 0);
        text[0] = 'x';
        lt_store_release(s, held);
        held = lt_store_hold(s, "a", "o", 0);
        size_t n = 0;
        assert_int_equal(lt_stored_text(held, &n)[0], less == 0 ? 'y' : 'x');
        lt_store_release(s, held);
        assert_int_equal(lt_store_get_stats(s).bytes, one);
        lt_store_close(s);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(found_by_id_and_owner),
        cmocka_unit_test(longest_unused_goes_first),
        cmocka_unit_test(time_is_since_the_last_use),
        cmocka_unit_test(bytes_are_bounded),
        cmocka_unit_test(bytes_that_just_fit),
        cmocka_unit_test(nothing_is_kept_where_nothing_may_be),
        cmocka_unit_test(turns_hold_the_ones_before),
        cmocka_unit_test(listed_in_the_order_of_putting),
        cmocka_unit_test(replaced_text_keeps_its_place),
        cmocka_unit_test(replaced_turn_holds_the_one_before),
        cmocka_unit_test(searched_by_prefix),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
