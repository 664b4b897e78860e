/* Metrics in both formats, written by hand from their specifications; which one an Accept header
 * requests; labels. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "platform/telemetry/exposition.h"

static void what_is_accepted(void **state) {
    static const struct {
        const char *accept;
        bool open;
    } rows[] = {{NULL, false},
                {"", false},
                {"*/*", false},
                {"text/plain", false},
                {"application/json", false},
                {"application/openmetrics-text", true},
                {"application/openmetrics-text;version=1.0.0;q=0.5,text/plain;q=0.9", false},
                {"application/openmetrics-text;version=1.0.0;q=0.9,text/plain;q=0.5", true},
                {"text/plain;q=0.5, application/openmetrics-text; q=0.5", true},
                {"text/plain, application/openmetrics-text;q=0.99", false},
                {"application/openmetrics-text;q=0", false},
                {"text/plain;q=0.1,application/openmetrics-text;q=0.2,text/plain;q=0.3", false},
                /* That of Prometheus 2.5x. */
                {"application/openmetrics-text;version=1.0.0;q=0.5,application/openmetrics-text;"
                 "version=0.0.1;q=0.4,text/plain;version=0.0.4;q=0.3,*/*;q=0.2",
                 true}};
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        assert_int_equal(lt_expo_choose(rows[i].accept),
                         rows[i].open ? LT_EXPO_OPENMETRICS : LT_EXPO_TEXT);
    }
    assert_string_equal(lt_expo_content_type(LT_EXPO_TEXT),
                        "text/plain; version=0.0.4; charset=utf-8");
    assert_string_equal(lt_expo_content_type(LT_EXPO_OPENMETRICS),
                        "application/openmetrics-text; version=1.0.0; charset=utf-8");
}

static void fill(lt_expo *e) {
    static const double bounds[] = {0.5, 1, 1e6, 25};
    static const uint64_t counts[] = {3, 0, 4, 0, 2};
    lt_expo_family(e, LT_EXPO_COUNTER, "a_total", "Steps.");
    lt_expo_value(e, 12.0, "run=\"%s\"", "x");
    lt_expo_value(e, 0.1, "run=\"y\",n=\"%d\"", 7);
    lt_expo_one(e, LT_EXPO_COUNTER, "b", "", "No total.", 1e15);
    lt_expo_one(e, LT_EXPO_GAUGE, "c_total", "k=\"v\"", "A gauge.", NAN);
    lt_expo_one(e, LT_EXPO_GAUGE, "d", "", "Far.", INFINITY);
    lt_expo_one(e, LT_EXPO_GAUGE, "d", "", "Far.", -INFINITY);
    lt_expo_family(e, LT_EXPO_HISTOGRAM, "h", "Times.");
    lt_expo_buckets(e, "m=\"q\"", bounds, 4, counts, 2.5);
    lt_expo_buckets(e, "", bounds, 1, counts, -1.0);
    lt_expo_end(e);
}

static void both_formats(void **state) {
    static const char text[] = "# HELP a_total Steps.\n# TYPE a_total counter\n"
                               "a_total{run=\"x\"} 12\na_total{run=\"y\",n=\"7\"} 0.1\n"
                               "# HELP b No total.\n# TYPE b counter\nb 1e+15\n"
                               "# HELP c_total A gauge.\n# TYPE c_total gauge\n"
                               "c_total{k=\"v\"} NaN\n"
                               "# HELP d Far.\n# TYPE d gauge\nd +Inf\n"
                               "# HELP d Far.\n# TYPE d gauge\nd -Inf\n"
                               "# HELP h Times.\n# TYPE h histogram\n"
                               "h_bucket{m=\"q\",le=\"0.5\"} 3\nh_bucket{m=\"q\",le=\"1\"} 3\n"
                               "h_bucket{m=\"q\",le=\"1e+06\"} 7\nh_bucket{m=\"q\",le=\"25\"} 7\n"
                               "h_bucket{m=\"q\",le=\"+Inf\"} 9\nh_count{m=\"q\"} 9\n"
                               "h_sum{m=\"q\"} 2.5\n"
                               "h_bucket{le=\"0.5\"} 3\nh_bucket{le=\"+Inf\"} 3\n"
                               "h_count{} 3\nh_sum{} -1\n";
    static const char open[] = "# HELP a Steps.\n# TYPE a counter\n"
                               "a_total{run=\"x\"} 12\na_total{run=\"y\",n=\"7\"} 0.1\n"
                               "# HELP b No total.\n# TYPE b unknown\nb 1e+15\n"
                               "# HELP c_total A gauge.\n# TYPE c_total gauge\n"
                               "c_total{k=\"v\"} NaN\n"
                               "# HELP d Far.\n# TYPE d gauge\nd +Inf\n"
                               "# HELP d Far.\n# TYPE d gauge\nd -Inf\n"
                               "# HELP h Times.\n# TYPE h histogram\n"
                               "h_bucket{m=\"q\",le=\"0.5\"} 3\nh_bucket{m=\"q\",le=\"1.0\"} 3\n"
                               "h_bucket{m=\"q\",le=\"1e+06\"} 7\nh_bucket{m=\"q\",le=\"25.0\"} 7\n"
                               "h_bucket{m=\"q\",le=\"+Inf\"} 9\nh_count{m=\"q\"} 9\n"
                               "h_sum{m=\"q\"} 2.5\n"
                               "h_bucket{le=\"0.5\"} 3\nh_bucket{le=\"+Inf\"} 3\n"
                               "h_count{} 3\nh_sum{} -1\n# EOF\n";
    (void)state;
    for (int format = LT_EXPO_TEXT; format <= LT_EXPO_OPENMETRICS; format++) {
        lt_expo e = {.format = (lt_expo_format)format};
        fill(&e);
        assert_false(e.failed);
        assert_string_equal(e.data, format == LT_EXPO_TEXT ? text : open);
        assert_int_equal(e.n, strlen(e.data));
        lt_expo_free(&e);
        assert_true(e.data == NULL && e.n == 0 && (int)e.format == format);
    }
}

/* The buffer grows with the text, whatever the length of a line. */
static void long_texts(void **state) {
    static char label[5000];
    size_t want = 0;
    lt_expo e = {.format = LT_EXPO_TEXT};
    (void)state;
    memset(label, 'x', sizeof label - 1);
    lt_expo_family(&e, LT_EXPO_GAUGE, "g", "Long.");
    want = e.n;
    for (int i = 0; i < 40; i++) {
        lt_expo_value(&e, i, "l=\"%.*s\"", i * 120, label);
        want += strlen("g{l=\"\"} 0\n") + (size_t)i * 120 + (i > 9);
        assert_int_equal(e.n, want);
        assert_int_equal(strlen(e.data), want);
    }
    lt_expo_free(&e);
    /* A line that is longer than the whole buffer. */
    lt_expo_one(&e, LT_EXPO_GAUGE, "g", label, "Long.", 1);
    assert_false(e.failed);
    assert_int_equal(e.n, strlen("# HELP g Long.\n# TYPE g gauge\ng{} 1\n") + strlen(label));
    assert_int_equal(strlen(e.data), e.n);
    lt_expo_free(&e);
}

/* A text that is cut ends with a whole character, and never within an escape. */
static void labels(void **state) {
    static const struct {
        const char *text;
        size_t room;
        const char *want;
    } rows[] = {{"plain", 64, "plain"},
                {"a\"b\\c\nd", 64, "a\\\"b\\\\c\\nd"},
                {"", 64, ""},
                {"abcdef", 7, "abcd"},
                {"abc\"ef", 7, "abc\\\""},
                {"ab\xc3\xa4\xc3\xb6", 8, "ab\xc3\xa4"},
                {"abc\xc3\xa4\xc3\xb6", 7, "abc"},
                {"ab\xe6\x97\xa5", 7, "ab"},
                {"abcd\xe6\x97\xa5", 7, "abcd"},
                {"\xf0\x9f\x98\x80\xf0\x9f\x98\x80", 8, "\xf0\x9f\x98\x80"},
                {"\xe6\x97\xa5", 5, ""}};
    char out[64];
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        assert_ptr_equal(lt_expo_label(out, rows[i].room, rows[i].text), out);
        assert_string_equal(out, rows[i].want);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(what_is_accepted),
                                       cmocka_unit_test(both_formats), cmocka_unit_test(long_texts),
                                       cmocka_unit_test(labels)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
