/* Tokenizers against the libraries that own their formats: the ids of whole corpora, as CRC-32, in
 * tests/golden/tokenizer/ids.tsv (tools/make_tokenizer_goldens.py). The tokenizer files and corpora
 * are ../shared/data; without it the tests are skipped. Also llama.cpp's own vectors, one by
 * one. */
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

#include "base/error.h"
#include "base/file.h"
#include "data/tokenizer/json_pull.h"
#include "data/tokenizer/unicode.h"
#include "lateen/tokenizer.h"

#define SHARED "../shared/data/"
#define GOLDEN "tests/golden/tokenizer/"

/* A corpus: texts one after the other, each ending at ends[i]. */
typedef struct {
    lt_text text;
    size_t ends[2048];
    size_t n;
} corpus;

static corpus udhr, tatoeba, hostile;

static void add_text(corpus *c, const char *s, size_t n) {
    assert_true(c->n < sizeof c->ends / sizeof *c->ends);
    assert_int_equal(lt_text_put_valid(&c->text, s, n), LT_OK);
    c->ends[c->n++] = c->text.n;
}

static void read_command(lt_text *out, const char *command) {
    FILE *from = popen(command, "r");
    size_t got;
    assert_non_null(from);
    do {
        assert_int_equal(lt_text_reserve(out, 1 << 16), LT_OK);
        got = fread(out->data + out->n, 1, 1 << 16, from);
        out->n += got;
    } while (got > 0);
    pclose(from);
}

/* Regular files of a tar archive, in order. */
static void load_tar(corpus *c, const char *path) {
    lt_text tar = {0};
    char command[512];
    snprintf(command, sizeof command, "zstd -dcq %s", path);
    read_command(&tar, command);
    for (size_t at = 0; at + 512 <= tar.n && tar.data[at] != '\0';) {
        const size_t size = strtoul(tar.data + at + 124, NULL, 8);
        if (tar.data[at + 156] == '0') {
            add_text(c, tar.data + at + 512, size);
        }
        at += 512 + (size + 511) / 512 * 512;
    }
    lt_text_free(&tar);
}

static void load_lines(corpus *c, const char *path) {
    char *data = NULL;
    size_t n = 0;
    lt_json_pull j;
    assert_int_equal(lt_file_read(&data, &n, path, 1 << 24), LT_OK);
    for (char *line = data; line < data + n;) {
        char *end = memchr(line, '\n', (size_t)(data + n - line));
        lt_slice key, value;
        bool more;
        j = lt_json_pull_over(line, (size_t)(end - line), "line");
        assert_int_equal(lt_json_pull_begin(&j, '{'), LT_OK);
        assert_int_equal(lt_json_pull_key(&j, &key, &more), LT_OK);
        assert_int_equal(lt_json_pull_string(&j, &value), LT_OK);
        add_text(c, value.data, value.n);
        lt_json_pull_close(&j);
        line = end + 1;
    }
    free(data);
}

static bool have_shared(void) {
    return access(SHARED "text-udhr/udhr2.tar.zst", R_OK) == 0;
}

static int load(void **state) {
    (void)state;
    if (have_shared()) {
        load_tar(&udhr, SHARED "text-udhr/udhr2.tar.zst");
        load_tar(&tatoeba, SHARED "text-tatoeba/tatoeba-v1.tar.zst");
    }
    load_lines(&hostile, GOLDEN "hostile.jsonl");
    return 0;
}

static int unload(void **state) {
    (void)state;
    lt_text_free(&udhr.text);
    lt_text_free(&tatoeba.text);
    lt_text_free(&hostile.text);
    return 0;
}

static void check_row(const lt_tokenizer *t, const char *file, const corpus *c, bool special,
                      size_t want_n, unsigned long want) {
    lt_tokenizer_scratch *s = NULL;
    lt_ids ids = {0};
    unsigned long crc = 0;
    size_t begin = 0, count = 0;
    const uint32_t mark = 0xFFFFFFFF;
    assert_int_equal(lt_tokenizer_scratch_open(&s, t), LT_OK);
    for (size_t i = 0; i < c->n; i++) {
        ids.n = 0;
        assert_int_equal(lt_tokenizer_encode(t, s, c->text.data + begin, c->ends[i] - begin,
                                             special ? LT_ENCODE_DEFAULT : LT_ENCODE_PLAIN, &ids),
                         LT_OK);
        crc = crc32(crc, (const Bytef *)ids.data, (uInt)(ids.n * sizeof *ids.data));
        crc = crc32(crc, (const Bytef *)&mark, sizeof mark);
        count += ids.n;
        begin = c->ends[i];
    }
    if (count != want_n || crc != want) {
        fail_msg("%s: %zu ids with CRC %08lx, not %zu with %08lx", file, count, crc, want_n, want);
    }
    lt_ids_free(&ids);
    lt_tokenizer_scratch_close(s);
}

static void ids_equal_the_libraries(void **state) {
    FILE *rows = fopen(GOLDEN "ids.tsv", "r");
    char file[256], name[32], open_file[256] = "", path[512];
    int special, n_rows = 0;
    size_t count;
    unsigned long crc;
    lt_tokenizer *t = NULL;
    (void)state;
    if (!have_shared()) {
        skip();
    }
    assert_non_null(rows);
    while (fscanf(rows, "%255s %31s %d %zu %lx", file, name, &special, &count, &crc) == 5) {
        const corpus *c = strcmp(name, "udhr") == 0      ? &udhr
                          : strcmp(name, "tatoeba") == 0 ? &tatoeba
                                                         : &hostile;
        if (strcmp(file, open_file) != 0) {
            lt_tokenizer_close(t);
            t = NULL;
            snprintf(path, sizeof path, SHARED "%s", file);
            if (lt_tokenizer_open(&t, path, NULL) != LT_OK) {
                fail_msg("%s", lt_error_message());
            }
            strcpy(open_file, file);
        }
        check_row(t, file, c, special != 0, count, crc);
        n_rows++;
    }
    assert_true(n_rows > 30);
    lt_tokenizer_close(t);
    fclose(rows);
}

/* One vocabulary of llama.cpp: texts separated by a marker line, and their ids, one line per
 * text. */
static void check_vectors(const char *tokenizer, const char *expected) {
    static const char marker[] = "\n__ggml_vocab_test__\n";
    char path[512], *input = NULL, *want = NULL, *piece, *line;
    size_t n;
    lt_tokenizer *t = NULL;
    lt_tokenizer_scratch *s = NULL;
    lt_ids ids = {0};
    bool last = false;

    assert_int_equal(lt_file_read(&input, &n, SHARED "tok-llamacpp-vectors/inputs.inp", 1 << 20),
                     LT_OK);
    snprintf(path, sizeof path, SHARED "tok-llamacpp-vectors/ggml-vocab-%s.out", expected);
    assert_int_equal(lt_file_read(&want, &n, path, 1 << 20), LT_OK);
    snprintf(path, sizeof path, SHARED "%s", tokenizer);
    assert_int_equal(lt_tokenizer_open(&t, path, NULL), LT_OK);
    assert_int_equal(lt_tokenizer_scratch_open(&s, t), LT_OK);
    piece = input;
    line = want;
    while (!last) {
        char *end = strstr(piece, marker);
        last = end == NULL;
        end = last ? piece + strlen(piece) : end;
        ids.n = 0;
        assert_int_equal(
            lt_tokenizer_encode(t, s, piece, (size_t)(end - piece), LT_ENCODE_PLAIN, &ids), LT_OK);
        for (size_t i = 0; i < ids.n; i++) {
            assert_int_equal(ids.data[i], strtoul(line, &line, 10));
        }
        line += strspn(line, " ");
        assert_true(*line == '\n' || *line == '\0');
        line += *line == '\n';
        piece = end + (last ? 0 : sizeof marker - 1);
    }
    lt_ids_free(&ids);
    lt_tokenizer_scratch_close(s);
    lt_tokenizer_close(t);
    free(input);
    free(want);
}

static void llama_cpp_vectors(void **state) {
    static const char *const rows[][2] = {
        {"tok-llamacpp-vectors/ggml-vocab-gpt-2.gguf.zst", "gpt-2"},
        {"tok-llamacpp-vectors/ggml-vocab-phi-3.gguf.zst", "phi-3"},
        {"tok-llamacpp-vectors/ggml-vocab-falcon.gguf.zst", "falcon"},
        {"tok-llamacpp-vectors/ggml-vocab-mpt.gguf.zst", "mpt"},
        {"tok-llamacpp-vectors/ggml-vocab-bert-bge.gguf.zst", "bert-bge"},
        {"tok-qwen3/tokenizer.json.zst", "qwen2"},
        {"tok-qwen3/tokenizer.json.zst", "deepseek-r1-qwen"},
        {"tok-tiktoken/r50k_base.tiktoken.zst", "gpt-2"},
        {"tok-gpt2/encoder.json", "gpt-2"},
    };
    (void)state;
    if (!have_shared()) {
        skip();
    }
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        check_vectors(rows[i][0], rows[i][1]);
    }
}

/* Decoding the ids of a text gives the text, streamed or at once, and every streamed part is
 * valid UTF-8. */
static void decoding_gives_the_text_back(void **state) {
    static const char *const files[] = {"tok-qwen3/tokenizer.json.zst",
                                        "tok-tiktoken/o200k_base.tiktoken.zst",
                                        "tok-gpt2/vocab.bpe"};
    (void)state;
    if (!have_shared()) {
        skip();
    }
    for (size_t f = 0; f < sizeof files / sizeof *files; f++) {
        char path[512];
        lt_tokenizer *t = NULL;
        lt_tokenizer_scratch *s = NULL;
        lt_ids ids = {0};
        size_t begin = 0;
        snprintf(path, sizeof path, SHARED "%s", files[f]);
        assert_int_equal(lt_tokenizer_open(&t, path, NULL), LT_OK);
        assert_int_equal(lt_tokenizer_scratch_open(&s, t), LT_OK);
        for (size_t i = 0; i < udhr.n; i += 7) {
            lt_tokenizer_stream *stream = NULL;
            lt_text all = {0};
            const char *part;
            char *text;
            size_t n, part_n;
            begin = i > 0 ? udhr.ends[i - 1] : 0;
            ids.n = 0;
            assert_int_equal(
                lt_tokenizer_encode(t, s, udhr.text.data + begin, udhr.ends[i] - begin, 0, &ids),
                LT_OK);
            assert_int_equal(lt_tokenizer_decode(t, ids.data, ids.n, false, &text, &n), LT_OK);
            assert_int_equal(lt_tokenizer_stream_open(&stream, t, false), LT_OK);
            for (size_t k = 0; k <= ids.n; k++) {
                assert_int_equal(k < ids.n
                                     ? lt_tokenizer_stream_put(stream, ids.data[k], &part, &part_n)
                                     : lt_tokenizer_stream_finish(stream, &part, &part_n),
                                 LT_OK);
                assert_int_equal(lt_utf8_valid_prefix(part, part_n), part_n);
                assert_int_equal(lt_text_put(&all, part, part_n), LT_OK);
            }
            assert_int_equal(all.n, n);
            assert_memory_equal(all.data, text, n);
            if (f > 0) { /* Qwen3 normalises. */
                assert_int_equal(n, udhr.ends[i] - begin);
                assert_memory_equal(text, udhr.text.data + begin, n);
            }
            lt_tokenizer_stream_close(stream);
            lt_text_free(&all);
            free(text);
        }
        lt_ids_free(&ids);
        lt_tokenizer_scratch_close(s);
        lt_tokenizer_close(t);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ids_equal_the_libraries),
        cmocka_unit_test(llama_cpp_vectors),
        cmocka_unit_test(decoding_gives_the_text_back),
    };
    return cmocka_run_group_tests(tests, load, unload);
}
