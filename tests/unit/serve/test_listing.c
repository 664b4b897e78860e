/* Queries of lists: names and values as application/x-www-form-urlencoded has them, and the limits,
 * order and beginning of a page. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "serve/api/listing.h"

static void pairs_of_a_query(void **state) {
    static const struct {
        const char *query, *pairs[3][2];
        int n;
    } rows[] = {
        {"", {{NULL, NULL}}, 0},
        {"&&", {{NULL, NULL}}, 0},
        {"a=1", {{"a", "1"}}, 1},
        {"a=1&b=2&c=3", {{"a", "1"}, {"b", "2"}, {"c", "3"}}, 3},
        {"&a=1&&b=2&", {{"a", "1"}, {"b", "2"}}, 2},
        {"a", {{"a", ""}}, 1},
        {"a=", {{"a", ""}}, 1},
        {"=1", {{"", "1"}}, 1},
        {"a=b=c", {{"a", "b=c"}}, 1},
        {"a&b=2", {{"a", ""}, {"b", "2"}}, 2},
        {"a%26=%3d+x%2B", {{"a&", "= x+"}}, 1},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const char *at = rows[i].query;
        lt_query_pair pair;
        for (int k = 0; k < rows[i].n; k++) {
            assert_true(lt_query_next(&at, &pair));
            assert_string_equal(pair.name, rows[i].pairs[k][0]);
            assert_string_equal(pair.value, rows[i].pairs[k][1]);
            assert_false(pair.cut);
        }
        assert_false(lt_query_next(&at, &pair));
    }
}

/* What is longer than its room is cut, and that is said. */
static void long_pairs_are_cut(void **state) {
    char query[1400];
    (void)state;
    for (size_t name = 126; name <= 129; name++) {
        for (size_t value = 1022; value <= 1025; value++) {
            const char *at = query;
            lt_query_pair pair;
            memset(query, 'n', name);
            query[name] = '=';
            memset(query + name + 1, 'v', value);
            query[name + 1 + value] = '\0';
            assert_true(lt_query_next(&at, &pair));
            assert_int_equal(pair.cut, name > 127 || value > 1023);
            assert_int_equal(strlen(pair.name), name > 127 ? 127 : name);
            assert_int_equal(strlen(pair.value), value > 1023 ? 1023 : value);
        }
    }
}

static void the_last_value_counts(void **state) {
    char out[8];
    (void)state;
    assert_true(lt_query_value("a=1&b=2&a=3", "a", out, sizeof out));
    assert_string_equal(out, "3");
    assert_false(lt_query_value("a=1&b=2", "c", out, sizeof out));
    assert_string_equal(out, "");
    assert_true(lt_query_value("a=123456789", "a", out, sizeof out));
    assert_string_equal(out, "1234567");
}

static void pages(void **state) {
    static const struct {
        const char *query;
        long usual, most; /* 0: lt_page_read, with 20 and 100. */
        size_t limit;     /* 0: refused. */
        bool ascending;
        const char *after; /* Of one that is refused: the parameter. */
    } rows[] = {
        {"", 0, 0, 20, false, ""},
        {"limit=1", 0, 0, 1, false, ""},
        {"limit=100", 0, 0, 100, false, ""},
        {"limit=101", 0, 0, 0, false, "limit"},
        {"limit=0", 0, 0, 0, false, "limit"},
        {"limit=-1", 0, 0, 0, false, "limit"},
        {"limit=5x", 0, 0, 0, false, "limit"},
        {"limit=x", 0, 0, 0, false, "limit"},
        {"limit=", 0, 0, 20, false, ""},
        {"limit=10000", 500, 10000, 10000, false, ""},
        {"limit=10001", 500, 10000, 0, false, "limit"},
        {"other=1", 500, 10000, 500, false, ""},
        {"order=asc", 0, 0, 20, true, ""},
        {"order=desc&after=file-7&limit=3", 0, 0, 3, false, "file-7"},
        {"order=up", 0, 0, 0, false, "order"},
        {"after=a%2Fb", 0, 0, 20, false, "a/b"},
    };
    lt_page p;
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        lt_api_error e = {0};
        const bool read = rows[i].most == 0 ? lt_page_read(rows[i].query, false, &p, &e)
                                            : lt_page_read_most(rows[i].query, false, rows[i].usual,
                                                                rows[i].most, &p, &e);
        if (read != (rows[i].limit > 0)) {
            fail_msg("%s: %s", rows[i].query, e.message);
        }
        if (!read) {
            assert_string_equal(e.param, rows[i].after);
            continue;
        }
        assert_int_equal(p.limit, rows[i].limit);
        assert_int_equal(p.ascending, rows[i].ascending);
        assert_string_equal(p.after, rows[i].after);
    }
    /* The default order is the caller's. */
    lt_api_error e = {0};
    assert_true(lt_page_read("", true, &p, &e) && p.ascending);
    assert_true(lt_page_read("order=desc", true, &p, &e) && !p.ascending);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pairs_of_a_query),
        cmocka_unit_test(long_pairs_are_cut),
        cmocka_unit_test(the_last_value_counts),
        cmocka_unit_test(pages),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
