/* The text reader: records cut at every place, compressed or not, resuming, and the messages for
 * bad input. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>
#include <zlib.h>
#include <zstd.h>

#include "base/file.h"
#include "data/json_line.h"
#include "data/text_reader.h"
#include "data/text_utf8.h"
#include "unit/scratch_folder.h"

static const char *put(const char *name, const void *data, size_t bytes) {
    static char path[LT_PATH_BYTES];
    assert_int_equal(lt_path_join(path, folder, name), LT_OK);
    assert_int_equal(lt_file_write_atomic(path, data, bytes), LT_OK);
    return path;
}

/* All documents of a file joined by '|', or the message of the error. */
static const char *all(const char *path, const lt_text_options *o) {
    static char joined[4096];
    size_t used = 0;
    bool more = true;
    lt_text_record doc;
    lt_text_reader *r = NULL;
    lt_err err = lt_text_reader_open(&r, path, o);
    joined[0] = '\0';
    while (err == LT_OK && more) {
        err = lt_text_reader_document(r, &doc, &more);
        if (err == LT_OK && more && used + doc.bytes + 2 < sizeof joined) {
            used += (size_t)snprintf(joined + used, sizeof joined - used, "%.*s|", (int)doc.bytes,
                                     doc.data);
        }
    }
    lt_text_reader_close(r);
    return err == LT_OK ? joined : lt_error_message();
}

static void text_is_cut_by_each_rule(void **state) {
    const char *text = "one\r\n\n  \nstill\nhere\n\n\n--\nlast\n";
    const char *path = put("a.txt", text, strlen(text));
    (void)state;
    assert_string_equal(all(path, NULL), "one\r\n\n  \nstill\nhere\n\n\n--\nlast\n|");
    assert_string_equal(all(path, &(lt_text_options){.split_on = "line"}),
                        "one||  |still|here|||--|last|");
    assert_string_equal(all(path, &(lt_text_options){.split_on = "blank"}),
                        "one|still\nhere|--\nlast|");
    assert_string_equal(all(path, &(lt_text_options){.split_on = "--"}),
                        "one\r\n\n  \nstill\nhere\n\n|last|");
    assert_string_equal(all(put("b.txt", "", 0), NULL), "");
    assert_string_equal(all(put("b.txt", "\xEF\xBB\xBFx", 4), NULL), "x|");
    assert_string_equal(all(put("b.txt", "\n\n", 2), &(lt_text_options){.split_on = "blank"}), "");
}

static void jsonl_members_are_found(void **state) {
    const char *text = "{\"text\": \"a\\n\\u00e9\\ud83d\\ude00\\\"\", \"n\": [1, -2.5e3, "
                       "{\"text\": \"no\"}, [], {}]}\n"
                       "  \r\n"
                       "{\"other\": {\"a\": [true, false, null]}, \"te\\u0078t\": \"b\"}\r\n"
                       "{\"text\": \"first\", \"text\": \"\"}";
    (void)state;
    assert_string_equal(all(put("a.jsonl", text, strlen(text)), NULL), "a\n\u00e9\U0001F600\"|b||");
}

static void bad_json_names_file_and_line(void **state) {
    static const struct {
        const char *line, *why;
    } cases[] = {
        {"{\"text\": \"x\"", "a.jsonl:2: column 13: the line ends inside JSON"},
        {"[1]", "a.jsonl:2: column 1: a JSON object was expected"},
        {"{\"body\": \"x\"}", "a.jsonl:2: no member 'text'"},
        {"{\"text\": null}", "a.jsonl:2: no member 'text'"},
        {"{\"text\": 5}", "a.jsonl:2: column 10: 'text' is not a string"},
        {"{\"text\": \"x\"} {}", "a.jsonl:2: column 15: text after the JSON object"},
        {"{\"text\": \"\\x\"}", "a.jsonl:2: column 12: unknown escape in a string"},
        {"{\"text\": \"\\ud800\"}", "a.jsonl:2: column 11: lone surrogate \\ud800"},
        {"{\"a\": 01, \"text\": \"x\"}", "a.jsonl:2: column 8: ',' or '}' was expected"},
        {"{\"a\": [1,], \"text\": \"x\"}", "a.jsonl:2: column 10: not a JSON value"},
        {"{\"text\": \"\xff\"}", "a.jsonl:2: invalid UTF-8 (byte 0xff) at byte 24"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[256];
        snprintf(text, sizeof text, "{\"text\": \"x\"}\n%s\n", cases[i].line);
        const char *said = all(put("a.jsonl", text, strlen(text)), NULL);
        assert_non_null(strstr(said, "a.jsonl"));
        assert_string_equal(strstr(said, "a.jsonl"), cases[i].why);
    }
}

static void elements_of_an_array_are_records(void **state) {
    static const struct {
        const char *text, *said; /* The documents, or the end of the message after the path. */
    } cases[] = {
        {"[{\"text\": \"a]\\\"[\"}, {\"n\": [1, {\"m\": []}],\n\"text\": \"b\"}\n\n]\n",
         "a]\"[|b|"},
        {"\xEF\xBB\xBF\n [\t{\"text\":\"a\"}\r\n,{\"text\":\"b\"}]", "a|b|"},
        {"[]", ""},
        {" [ \n ] \n", ""},
        {"[{\"text\": \"a\"},\n 5\n]", ":2: column 1: a JSON object was expected"},
        {"[{\"text\": \"a\"}\n{\"text\": \"b\"}]", ":2: a ',' was expected between elements"},
        {"[{\"text\": \"a\"},\n]", ":2: an element of the JSON array was expected"},
        {"[,{\"text\": \"a\"}]", ":1: an element of the JSON array was expected"},
        {"[{\"text\": \"a\"},\n{\"text\": \"b", ":2: the file ends inside this element"},
        {"[{\"text\": \"a\"}\n", ":2: the JSON array is not closed"},
        {"[{\"text\": \"a\"}] {", ":1: there is more after the JSON array"},
        {"[", ":1: the file ends inside this element"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *said = all(put("b.json", cases[i].text, strlen(cases[i].text)), NULL),
                   *name = strstr(said, "b.json:");
        if (cases[i].said[0] != ':') {
            assert_string_equal(said, cases[i].said);
        } else if (name == NULL || strncmp(name + 6, cases[i].said, strlen(cases[i].said)) != 0) {
            fail_msg("%s: %s", cases[i].text, said);
        }
    }
}

static void invalid_text_is_replaced_when_asked(void **state) {
    const lt_text_options replace = {.utf8 = LT_UTF8_REPLACE};
    const char *line = "{\"text\": \"a\xe2\x82z\\udc00\\\\\xff\"}\n";
    const char *text = "\xf0\x9f\x98 \xed\xa0\x80.\xc0\xaf";
    (void)state;
    assert_string_equal(all(put("a.jsonl", line, strlen(line)), &replace),
                        "a\uFFFDz\uFFFD\\\uFFFD|");
    assert_string_equal(all(put("a.txt", text, strlen(text)), &replace),
                        "\uFFFD \uFFFD\uFFFD\uFFFD.\uFFFD\uFFFD|");
}

static void depth_is_limited(void **state) {
    char line[4096] = "{\"a\":";
    (void)state;
    memset(line + 5, '[', 2000);
    assert_non_null(strstr(all(put("a.jsonl", line, 2005), NULL), "nested deeper than 512"));
}

/* A few thousand lines, long and short, so that records cross every buffer edge. */
static char *corpus(size_t *bytes) {
    char *text = malloc(8 << 20);
    size_t used = 0;
    assert_non_null(text);
    for (int i = 0; i < 3000; i++) {
        const int len = i % 700 == 699 ? 900000 : i % 97 * 11;
        used += (size_t)sprintf(text + used, "{\"text\": \"%d:", i);
        memset(text + used, 'a' + i % 26, (size_t)len);
        used += (size_t)len;
        used += (size_t)sprintf(text + used, "\"}\n");
    }
    text[used] = '\0';
    *bytes = used;
    return text;
}

/* The corpus as one JSON array, each document on its line. */
static size_t as_array(char *out, const char *text) {
    size_t used = 0;
    out[used++] = '[';
    for (const char *p = text; *p != '\0'; p++) {
        if (*p == '\n' && p[1] != '\0') {
            out[used++] = ',';
        }
        out[used++] = *p;
    }
    out[used++] = ']';
    return used;
}

static uint64_t hash_from(const char *path, uint64_t offset, uint64_t line, int stop_after,
                          uint64_t hash) {
    lt_text_reader *r = NULL;
    lt_text_record doc;
    bool more = true;
    assert_int_equal(lt_text_reader_open(&r, path, NULL), LT_OK);
    assert_int_equal(lt_text_reader_resume(r, offset, line), LT_OK);
    for (int n = 0; n != stop_after; n++) {
        assert_int_equal(lt_text_reader_document(r, &doc, &more), LT_OK);
        if (!more) {
            break;
        }
        for (size_t i = 0; i < doc.bytes; i++) {
            hash = (hash ^ (unsigned char)doc.data[i]) * 1099511628211u;
        }
        hash = hash * 31 + doc.line;
    }
    if (stop_after >= 0) {
        lt_text_reader_tell(r, &offset, &line);
        lt_text_reader_close(r);
        return hash_from(path, offset, line, -1, hash);
    }
    assert_int_equal(lt_text_reader_consumed_bytes(r), lt_text_reader_file_bytes(r));
    lt_text_reader_close(r);
    return hash;
}

static void compressed_equals_plain_and_resumes(void **state) {
    size_t bytes, half, packed;
    char *text = corpus(&bytes), *room = malloc(bytes + 4096);
    uint64_t wanted;
    (void)state;
    assert_non_null(room);
    wanted = hash_from(put("c.jsonl", text, bytes), 0, 1, -1, 1);
    assert_int_equal(hash_from(put("c.jsonl", text, bytes), 0, 1, 1234, 1), wanted);
    for (int stop = -1; stop < 3; stop++) {
        size_t array = as_array(room, text);
        const char *path = put("c.json", room, array);
        assert_int_equal(hash_from(path, 0, 1, stop, 1), wanted);
    }
    assert_int_equal(hash_from(put("c.json", room, as_array(room, text)), 0, 1, 1401, 1), wanted);

    half = bytes / 2; /* Two zstd frames, one after the other. */
    packed = ZSTD_compress(room, bytes, text, half, 3);
    packed += ZSTD_compress(room + packed, bytes - packed, text + half, bytes - half, 3);
    assert_int_equal(hash_from(put("c.jsonl.zst", room, packed), 0, 1, -1, 1), wanted);
    assert_int_equal(hash_from(put("c.jsonl.zst", room, packed), 0, 1, 701, 1), wanted);
    assert_non_null(strstr(all(put("c.jsonl.zst", room, packed - 5), NULL), "truncated"));
    room[packed / 2] ^= 0x55;
    assert_non_null(strstr(all(put("c.jsonl.zst", room, packed), NULL), "damaged"));

    char path[LT_PATH_BYTES];
    assert_int_equal(lt_path_join(path, folder, "c.jsonl.gz"), LT_OK);
    gzFile gz = gzopen(path, "wb"); /* Two gzip members. */
    gzwrite(gz, text, (unsigned)half);
    gzclose(gz);
    gz = gzopen(path, "ab");
    gzwrite(gz, text + half, (unsigned)(bytes - half));
    gzclose(gz);
    assert_int_equal(hash_from(path, 0, 1, -1, 1), wanted);
    assert_int_equal(hash_from(path, 0, 1, 2999, 1), wanted);
    assert_int_equal(truncate(path, 2000), 0);
    assert_non_null(strstr(all(path, NULL), "truncated"));
    free(text);
    free(room);
}

/* The bytes must be what the name of a compressed file promises: an error page that was saved as
 * corpus.txt.gz is not read as text. With a plain name, or the name of the other format, the
 * bytes decide. */
static void names_of_compressed_files_must_be_true(void **state) {
    char packed[256];
    const size_t n = ZSTD_compress(packed, sizeof packed, "good", 4, 3);
    const char *said = all(put("page.txt.gz", "<!DOCTYPE html>", 15), NULL);
    (void)state;

    assert_non_null(strstr(said, "page.txt.gz: its name ends with .gz"));
    assert_non_null(strstr(said, "its first bytes, 3c 21 44 4f 43 54 59 50, are those of neither"));
    assert_non_null(strstr(all(put("a.txt.zst", "ab", 2), NULL), "its first bytes, 61 62, are"));
    assert_non_null(
        strstr(all(put("a.txt.zst", "", 0), NULL), "ends with .zst, but the file is empty"));
    assert_string_equal(all(put("a.txt", packed, n), NULL), "good|");
    assert_string_equal(all(put("a.txt.gz", packed, n), NULL), "good|");
    assert_string_equal(all(put("gz", "plain", 5), NULL), "plain|");
}

static void limits_hold(void **state) {
    (void)state;
    char *text = calloc(1, 3 << 20);
    assert_non_null(text);
    memset(text, 'x', 3 << 20);
    const char *said = all(put("long.txt", text, 3 << 20),
                           &(lt_text_options){.record_bytes_max = 1 << 20});
    assert_non_null(strstr(said, "long.txt:1: a document of more than 1048576 bytes"));
    assert_non_null(strstr(all("/nonexistent/a.txt", NULL), "No such file"));
    assert_non_null(strstr(all(folder, NULL), "folder"));
    free(text);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(text_is_cut_by_each_rule),
        cmocka_unit_test(jsonl_members_are_found),
        cmocka_unit_test(bad_json_names_file_and_line),
        cmocka_unit_test(elements_of_an_array_are_records),
        cmocka_unit_test(invalid_text_is_replaced_when_asked),
        cmocka_unit_test(depth_is_limited),
        cmocka_unit_test(compressed_equals_plain_and_resumes),
        cmocka_unit_test(names_of_compressed_files_must_be_true),
        cmocka_unit_test(limits_hold),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
