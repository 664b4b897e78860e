/* Stop strings: for any cut of a text into pieces, the output is the text up to the first stop
 * string, and never a part of one. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "base/rng.h"
#include "serve/stop_scan.h"

/* Feed text in random pieces; out gets what is passed through. Returns which stop was found. */
static int scan(const char *const *stops, int n_stops, bool include, const char *text, lt_rng *r,
                char *out) {
    size_t lengths[4], n = strlen(text), at = 0, out_n = 0;
    lt_stop_scan s = {.stops = stops, .lengths = lengths, .n_stops = n_stops, .include = include};
    const char *piece;
    size_t piece_n;
    int hit = -1;

    for (int i = 0; i < n_stops; i++) {
        lengths[i] = strlen(stops[i]);
    }
    while (at < n && hit < 0) {
        const size_t room = n - at < 5 ? n - at : 5;
        const size_t take = lt_rng_below(r, room + 1);
        hit = lt_stop_scan_feed(&s, text + at, take, &piece, &piece_n);
        memcpy(out + out_n, piece, piece_n);
        out_n += piece_n;
        at += take;
    }
    if (hit < 0) {
        lt_stop_scan_end(&s, &piece, &piece_n);
        memcpy(out + out_n, piece, piece_n);
        out_n += piece_n;
    }
    out[out_n] = '\0';
    lt_stop_scan_free(&s);
    return hit;
}

static void random_texts(void **state) {
    static const char *const stops[] = {"aab", "ba", "bbbb"};
    lt_rng r = {.seed = 5};
    (void)state;
    for (int round = 0; round < 20000; round++) {
        char text[32], out[64], want[64];
        const size_t n = lt_rng_below(&r, 30);
        size_t first = n, length = 0;
        for (size_t i = 0; i < n; i++) {
            text[i] = "aabc"[lt_rng_below(&r, 4)];
        }
        text[n] = '\0';
        const int k = (int)lt_rng_below(&r, 3);
        const char *hit = strstr(text, stops[k]);
        const bool include = lt_rng_below(&r, 2) == 1;
        if (hit != NULL) {
            first = (size_t)(hit - text);
            length = include ? strlen(stops[k]) : 0;
        }
        memcpy(want, text, first + length);
        want[first + length] = '\0';
        assert_int_equal(scan(&stops[k], 1, include, text, &r, out), hit != NULL ? 0 : -1);
        assert_string_equal(out, want);
    }
}

static void several_stops(void **state) {
    static const char *const stops[] = {"</s>", "\n\n", "END"};
    lt_rng r = {.seed = 1};
    char out[64];
    (void)state;
    for (int round = 0; round < 200; round++) {
        assert_int_equal(scan(stops, 3, false, "one <s> two\n EN </s>END", &r, out), 0);
        assert_string_equal(out, "one <s> two\n EN ");
        assert_int_equal(scan(stops, 3, false, "no stop \n EN </s", &r, out), -1);
        assert_string_equal(out, "no stop \n EN </s");
    }
}

static void nothing_is_held_without_stops(void **state) {
    lt_stop_scan s = {0};
    const char *out;
    size_t n;
    (void)state;
    assert_int_equal(lt_stop_scan_feed(&s, "abc", 3, &out, &n), -1);
    assert_int_equal(n, 3);
    lt_stop_scan_end(&s, &out, &n);
    assert_int_equal(n, 0);
    lt_stop_scan_free(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(random_texts),
                                       cmocka_unit_test(several_stops),
                                       cmocka_unit_test(nothing_is_held_without_stops)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
