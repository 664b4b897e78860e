/* Locations as users write them, names that may become names of files, and percent-encoding. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/error.h"
#include "platform/copy/location.h"

static void locations(void **state) {
    static const struct {
        const char *text;
        lt_at at;
        bool many;
        /* NULL: the text itself; "": empty. */
        const char *path, *place, *kind, *revision, *shown;
    } rows[] = {
        {"a/b", LT_AT_FILE, false, "a/b", "", "", "", NULL},
        {"a/b/", LT_AT_FILE, true, "a/b/", "", "", "", NULL},
        {"file:///a/b", LT_AT_FILE, false, "/a/b", "", "", "", NULL},
        {"s3:/a", LT_AT_FILE, false, "s3:/a", "", "", "", NULL},
        {"s3://b", LT_AT_S3, true, "", "b", "", "", NULL},
        {"s3://b.c/k?x#y", LT_AT_S3, false, "k?x#y", "b.c", "", "", NULL},
        {"s3://b/p/", LT_AT_S3, true, "p/", "b", "", "", NULL},
        {"s3://b//p", LT_AT_S3, false, "/p", "b", "", "", NULL},
        {"https://h/f.gguf", LT_AT_WEB, false, "https://h/f.gguf", "", "", "", NULL},
        {"https://u:pw@h:1/f?token=t#x", LT_AT_WEB, false, "https://u:pw@h:1/f?token=t", "", "", "",
         "https://h:1/f"},
        {"http://h/a@b/f", LT_AT_WEB, false, "http://h/a@b/f", "", "", "", NULL},
        {"http://h/f?d=/", LT_AT_WEB, false, "http://h/f?d=/", "", "", "", "http://h/f"},
        {"hf://o/m", LT_AT_HUB, true, "", "o/m", "models", "main", NULL},
        {"hf://organisation/my.model", LT_AT_HUB, true, "", "organisation/my.model", "models",
         "main", NULL},
        {"hf://spaces/o/long-name@v1/f", LT_AT_HUB, false, "f", "o/long-name", "spaces", "v1",
         NULL},
        {"hf://gpt2", LT_AT_HUB, true, "", "gpt2", "models", "main", NULL},
        {"hf://o/m@v1/", LT_AT_HUB, true, "", "o/m", "models", "v1", NULL},
        {"hf://o/m@refs%2Fpr%2F1/d/f", LT_AT_HUB, false, "d/f", "o/m", "models", "refs/pr/1", NULL},
        {"hf://datasets/o/d/f", LT_AT_HUB, false, "f", "o/d", "datasets", "main", NULL},
        {"hf://o/m/f@x", LT_AT_HUB, false, "f@x", "o/m", "models", "main", NULL},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        lt_location l;
        assert_int_equal(lt_location_read(&l, rows[i].text), LT_OK);
        assert_int_equal(l.at, rows[i].at);
        assert_int_equal(l.many, rows[i].many);
        assert_string_equal(l.path, rows[i].path);
        assert_string_equal(l.place, rows[i].place);
        assert_string_equal(l.kind, rows[i].kind);
        assert_string_equal(l.revision, rows[i].revision);
        assert_string_equal(l.shown, rows[i].shown != NULL ? rows[i].shown : rows[i].text);
    }
}

static void refused(void **state) {
    static const char *const rows[] = {"",
                                       "file://a",
                                       "ftp://h/f",
                                       "s3://",
                                       "s3://b b/k",
                                       "s3://../k",
                                       "https://",
                                       "https:///f",
                                       "https://h",
                                       "https://h/",
                                       "https://h/d/",
                                       "https://h/a b",
                                       "http://u@/",
                                       "hf://",
                                       "hf://o//m",
                                       "hf://o/m@",
                                       "hf://o/m@%2",
                                       "hf://o/m@a%2F..",
                                       "hf://../m",
                                       "hf://o/m/a/..",
                                       "hf://o/m//f",
                                       "hf://o/..",
                                       "hf://o/m@%00",
                                       "hf://o/m@/f",
                                       "gs://b/k",
                                       "hf://o/m/./f",
                                       "https://h/?f/",
                                       "http://h/\x7f"};
    char key[1200];
    lt_location l;
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        if (lt_location_read(&l, rows[i]) != LT_ERR_ARG) {
            fail_msg("%s is accepted", rows[i]);
        }
    }
    (void)snprintf(key, sizeof key, "s3://b/%01024d", 0);
    assert_int_equal(lt_location_read(&l, key), LT_OK);
    (void)snprintf(key, sizeof key, "s3://b/%01025d", 0);
    assert_int_equal(lt_location_read(&l, key), LT_ERR_ARG);
}

/* A path may have the maximum length of a path. */
static void long_locations(void **state) {
    static char text[LT_PATH_BYTES + 1];
    lt_location l;
    (void)state;
    memset(text, 'a', LT_PATH_BYTES - 1);
    assert_int_equal(lt_location_read(&l, text), LT_OK);
    assert_string_equal(l.path, text);
    text[LT_PATH_BYTES - 1] = 'a';
    assert_int_equal(lt_location_read(&l, text), LT_ERR_ARG);
    assert_non_null(strstr(lt_error_message(), "a location of 4096 bytes; at most 4095"));
}

/* A message about an invalid web address shows nothing of its user, password and query. */
static void secrets_are_not_shown(void **state) {
    static const char *const rows[] = {"https://u:secret@/f", "https://u:secret@h/f?a b",
                                       "https://h/f?secret=a b", "https://u:secret@h/"};
    lt_location l;
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        assert_int_equal(lt_location_read(&l, rows[i]), LT_ERR_ARG);
        assert_null(strstr(lt_error_message(), "secret"));
    }
}

static void safe_names(void **state) {
    static const char *const good[] = {"a", "a/b", "...", "a/..b", ".a/b.", "a b"};
    static const char *const bad[] = {"",     "/",    "/a",   "a/",  ".",     "..",
                                      "a/..", "../a", "a//b", "./a", "a/./b", "a/../b"};
    (void)state;
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        assert_true(lt_location_is_safe(good[i]));
    }
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_false(lt_location_is_safe(bad[i]));
    }
}

static void decoding(void **state) {
    static const struct {
        const char *text, *plain, *plus;
    } rows[] = {{"a+b%2Bc%20", "a+b+c ", "a b+c "}, {"%e6%97%A5", "日", "日"}, {"", "", ""}};
    static const char *const bad[] = {"%", "%2", "%2g", "%g2", "a%00"};
    char text[32];
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        (void)snprintf(text, sizeof text, "%s", rows[i].text);
        assert_true(lt_uri_decode(text, false));
        assert_string_equal(text, rows[i].plain);
        (void)snprintf(text, sizeof text, "%s", rows[i].text);
        assert_true(lt_uri_decode(text, true));
        assert_string_equal(text, rows[i].plus);
    }
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        (void)snprintf(text, sizeof text, "%s", bad[i]);
        assert_false(lt_uri_decode(text, false));
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(locations),      cmocka_unit_test(refused),
        cmocka_unit_test(long_locations), cmocka_unit_test(secrets_are_not_shown),
        cmocka_unit_test(safe_names),     cmocka_unit_test(decoding),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
