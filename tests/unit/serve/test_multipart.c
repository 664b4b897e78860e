/* Forms with files: those that curl, browsers and httpx send; and what is wrong with others.
 * Expected values are derived by hand from RFC 7578 and RFC 2046. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <stdio.h>
#include <string.h>

#include "serve/api/files/multipart.h"

#define PART(disposition) "--xyz\r\nContent-Disposition: form-data; " disposition "\r\n"

static bool read_text(lt_multipart *m, const char *body, const char **why) {
    return lt_multipart_read(m, body, strlen(body), why);
}

static void a_form_with_a_file(void **state) {
    const char body[] = PART("name=\"purpose\"") "\r\nbatch\r\n" PART(
        "name=\"file\"; filename=\"a.jsonl\"") "Content-Type: application/octet-stream\r\n\r\n"
                                               "{\"a\": 1}\r\n--xy\r\nmore\r\n--xyz--\r\n";
    lt_multipart m;
    const char *why = NULL;
    const lt_multipart_part *p;
    (void)state;

    assert_true(read_text(&m, body, &why));
    assert_int_equal(m.n, 2);
    p = lt_multipart_find(&m, "purpose");
    assert_non_null(p);
    assert_int_equal(p->n, 5);
    assert_memory_equal(p->data, "batch", 5);
    assert_string_equal(p->filename, "");
    p = lt_multipart_find(&m, "file");
    assert_non_null(p);
    assert_string_equal(p->filename, "a.jsonl");
    /* A line that only begins like the boundary is data. */
    assert_int_equal(p->n, strlen("{\"a\": 1}\r\n--xy\r\nmore"));
    assert_memory_equal(p->data, "{\"a\": 1}\r\n--xy\r\nmore", p->n);
    assert_null(lt_multipart_find(&m, "other"));
}

static void names_as_clients_write_them(void **state) {
    static const struct {
        const char *disposition, *name, *filename;
    } cases[] = {
        {"name=\"f\"; filename=\"C:\\dir\\a.jsonl\"", "f", "a.jsonl"},
        {"name=\"f\"; filename=\"../../etc/passwd\"", "f", "passwd"},
        {"name=\"a;b\"; filename=\"c;name=d\"", "a;b", "c;name=d"},
        {"filename=\"x\"; name=\"f\"", "f", "x"},
        {"name=\"say \\\"hi\\\"\"", "say \"hi\"", ""},
        {"name=\"expires_after[seconds]\"", "expires_after[seconds]", ""},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char body[400];
        lt_multipart m;
        const char *why = NULL;
        snprintf(body, sizeof body, "--b\r\nContent-Disposition: form-data; %s\r\n\r\nx\r\n--b--",
                 cases[i].disposition);
        assert_true(read_text(&m, body, &why));
        assert_string_equal(m.parts[0].name, cases[i].name);
        assert_string_equal(m.parts[0].filename, cases[i].filename);
        assert_int_equal(m.parts[0].n, 1);
    }
}

static void an_empty_part_and_a_zero_byte(void **state) {
    static const char body[] = "--b\r\nContent-Disposition: form-data; name=\"e\"\r\n\r\n\r\n"
                               "--b\r\nContent-Disposition: form-data; name=\"z\"\r\n\r\na\0b\r\n"
                               "--b--";
    lt_multipart m;
    const char *why = NULL;
    (void)state;
    assert_true(lt_multipart_read(&m, body, sizeof body - 1, &why));
    assert_int_equal(m.parts[0].n, 0);
    assert_int_equal(m.parts[1].n, 3);
    assert_memory_equal(m.parts[1].data, "a\0b", 3);
}

static void faults_are_named(void **state) {
    static const struct {
        const char *body, *why;
    } cases[] = {
        {"", "not multipart"},
        {"{\"a\": 1}", "not multipart"},
        {"--\r\n\r\n", "not multipart"},
        {"--b\r\n\r\nx\r\n--b--", "has no name"},
        {"--b\r\nContent-Disposition: form-data; name=\"a\"\r\n", "have no end"},
        {"--b\r\nContent-Disposition: form-data; name=\"a\"\r\n\r\nx", "does not come again"},
        {"--b\r\nContent-Disposition: form-data; name=\"a\"\r\n\r\nx\r\n--bc", "come again"},
        {"--b\r\nContent-Disposition: form-data; name=\"a\"\r\nContent-Transfer-Encoding: "
         "base64\r\n\r\nx\r\n--b--",
         "Content-Transfer-Encoding"},
        {"--b\r\nContent-Disposition: x; "
         "name=\"a\"\r\nContent-Transfer-Encoding:\r\n\r\nx\r\n--b--",
         "Content-Transfer-Encoding"},
    };
    char many[4000] = "";
    lt_multipart m;
    const char *why = NULL;
    (void)state;

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_false(read_text(&m, cases[i].body, &why));
        assert_non_null(strstr(why, cases[i].why));
    }
    for (int i = 0; i <= LT_MULTIPART_PARTS; i++) {
        strcat(many, "--b\r\nContent-Disposition: form-data; name=\"a\"\r\n\r\nx\r\n");
    }
    strcat(many, "--b--");
    assert_false(read_text(&m, many, &why));
    assert_non_null(strstr(why, "too many parts"));
}

/* Limits, each at its last valid value and one beyond it: a name of 255 bytes, a boundary of 70
 * (RFC 2046), 16 header lines, 4,096 bytes of them. */
static void bounds(void **state) {
    static char name[LT_MULTIPART_NAME + 1], body[8192], line[4200];
    static lt_multipart m;
    const char *why = NULL;
    (void)state;
    for (int beyond = 0; beyond < 2; beyond++) {
        memset(name, 'n', sizeof name);
        name[LT_MULTIPART_NAME - 1 + beyond] = '\0';
        snprintf(body, sizeof body, "--b\r\nContent-Disposition: x; name=\"%s\"\r\n\r\nx\r\n--b--",
                 name);
        assert_int_equal(read_text(&m, body, &why), beyond == 0);
        assert_true(beyond == 0 ? strcmp(m.parts[0].name, name) == 0
                                : strstr(why, "has no name") != NULL);

        /* A longer file name is ignored; the part is still read. */
        snprintf(body, sizeof body,
                 "--b\r\nContent-Disposition: x; name=\"a\"; filename=\"%s\"\r\n\r\nx\r\n--b--",
                 name);
        assert_true(read_text(&m, body, &why));
        assert_string_equal(m.parts[0].filename, beyond == 0 ? name : "");

        name[LT_MULTIPART_BOUNDARY + beyond] = '\0';
        snprintf(body, sizeof body, "--%s\r\nContent-Disposition: x; name=\"a\"\r\n\r\nx\r\n--%s--",
                 name, name);
        assert_int_equal(read_text(&m, body, &why), beyond == 0);

        strcpy(body, "--b\r\nContent-Disposition: x; name=\"a\"\r\n");
        for (int i = 0; i < 14 + beyond; i++) { /* With the empty line that ends them: 16. */
            strcat(body, "X: y\r\n");
        }
        strcat(body, "\r\nx\r\n--b--");
        assert_int_equal(read_text(&m, body, &why), beyond == 0);
        assert_true(beyond == 0 || strstr(why, "too many headers") != NULL);

        /* The first line has 36 bytes, the last 2. */
        memset(line, 'y', sizeof line);
        line[4096 - 36 - 2 - 5 + beyond] = '\0';
        snprintf(body, sizeof body,
                 "--b\r\nContent-Disposition: x; name=\"abc\"\r\nX: %s\r\n\r\nx\r\n--b--", line);
        assert_int_equal(strlen("Content-Disposition: x; name=\"abc\"\r\n"), 36);
        assert_int_equal(read_text(&m, body, &why), beyond == 0);
        assert_true(beyond == 0 || strstr(why, "or are too long") != NULL);
    }
}

/* Parameters that are cut off, or that only resemble the name. */
static void parts_without_names(void **state) {
    static const char *const dispositions[] = {"x; name=\"a", "x; name=",       "x; name",
                                               "x;name=a",    "x; names=\"a\"", "x; name=\"",
                                               "name=\"a\"",  "x; nam"};
    static const struct {
        const char *disposition, *name;
    } good[] = {
        {"x;name=\"\\\"\"", "\""}, {"x; NAME=\"a\"", "a"}, {"x; y=\"; name=\"; name=\"b\"", "b"}};
    static const char zero[] = "--b\r\nContent-Disposition: x; name=\"a\0c\"\r\n\r\nx\r\n--b--";
    char body[400];
    lt_multipart m;
    const char *why = NULL;
    (void)state;
    for (size_t i = 0; i < sizeof dispositions / sizeof *dispositions; i++) {
        snprintf(body, sizeof body, "--b\r\nContent-Disposition: %s\r\n\r\nx\r\n--b--",
                 dispositions[i]);
        if (read_text(&m, body, &why) || strstr(why, "has no name") == NULL) {
            fail_msg("%s: %s", dispositions[i], why);
        }
    }
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        snprintf(body, sizeof body, "--b\r\nContent-Disposition: %s\r\n\r\nx\r\n--b--",
                 good[i].disposition);
        if (!read_text(&m, body, &why) || strcmp(m.parts[0].name, good[i].name) != 0) {
            fail_msg("%s: %s", good[i].disposition, why);
        }
    }
    assert_false(lt_multipart_read(&m, zero, sizeof zero - 1, &why));
    assert_non_null(strstr(why, "has no name"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_form_with_a_file),
        cmocka_unit_test(names_as_clients_write_them),
        cmocka_unit_test(an_empty_part_and_a_zero_byte),
        cmocka_unit_test(faults_are_named),
        cmocka_unit_test(bounds),
        cmocka_unit_test(parts_without_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
