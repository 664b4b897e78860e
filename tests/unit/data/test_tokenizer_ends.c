/* Which tokens end a text according to the files of a tokenizer: names, the keys of a GGUF,
 * tokenizer_config.json; and how the GGUF writer stores the ids of a model. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>
#include <jansson.h>

#include "base/error.h"
#include "base/file.h"
#include "data/gguf.h"
#include "data/tokenizer/gguf_tokenizer.h"
#include "lateen/tokenizer.h"

#define N_BYTES 256

static void must(lt_err err, const char *what) {
    if (err != LT_OK) {
        fail_msg("%s: %s", what, lt_error_message());
    }
}

/* GPT-2's printable form of a byte. */
static void printable(int byte, char out[3]) {
    static const int plain[][2] = {{0x21, 0x7E}, {0xA1, 0xAC}, {0xAE, 0xFF}};
    int code = byte, n = 0;
    bool is_plain = false;
    for (int i = 0; i < 3; i++) {
        is_plain |= byte >= plain[i][0] && byte <= plain[i][1];
    }
    for (int b = 0; b < byte && !is_plain; b++) {
        n += !((b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE);
    }
    code = is_plain ? byte : 256 + n;
    if (code < 0x80) {
        out[0] = (char)code;
        out[1] = '\0';
        return;
    }
    out[0] = (char)(0xC0 | code >> 6);
    out[1] = (char)(0x80 | (code & 0x3F));
    out[2] = '\0';
}

/* A byte-level tokenizer.json: 256 bytes, then special tokens of these names. */
static char *tokenizer_text(const char *const *names) {
    json_t *vocab = json_object(), *added = json_array();
    char piece[3];
    for (int i = 0; i < N_BYTES; i++) {
        printable(i, piece);
        json_object_set_new(vocab, piece, json_integer(i));
    }
    for (int i = 0; names[i] != NULL; i++) {
        json_array_append_new(added,
                              json_pack("{s:i, s:s, s:b, s:b, s:b, s:b, s:b}", "id", N_BYTES + i,
                                        "content", names[i], "single_word", 0, "lstrip", 0,
                                        "rstrip", 0, "normalized", 0, "special", 1));
    }
    json_t *level = json_pack("{s:s, s:b, s:b, s:b}", "type", "ByteLevel", "add_prefix_space", 0,
                              "trim_offsets", 1, "use_regex", 1);
    json_t *root = json_pack("{s:s, s:o, s:n, s:O, s:n, s:o, s:{s:s, s:o, s:[]}}", "version", "1.0",
                             "added_tokens", added, "normalizer", "pre_tokenizer", level,
                             "post_processor", "decoder", level, "model", "type", "BPE", "vocab",
                             vocab, "merges");
    char *text = json_dumps(root, 0);
    assert_non_null(text);
    json_decref(root);
    return text;
}

/* The names of the ends, each after a space. */
static void spell(char out[256], const lt_tokenizer *t) {
    const lt_tokenizer_info info = lt_tokenizer_describe(t);
    out[0] = '\0';
    for (size_t i = 0; i < info.n_ends; i++) {
        size_t n = 0;
        const char *piece = lt_tokenizer_piece(t, info.ends[i], &n);
        (void)snprintf(out + strlen(out), 256 - strlen(out), " %.*s", (int)n, piece);
    }
}

static void check_names(const char *const *names, const char *want) {
    char *text = tokenizer_text(names), ends[256];
    lt_tokenizer *t = NULL;
    must(lt_tokenizer_open_memory(&t, text, strlen(text), "tokenizer.json", NULL), "tokenizer");
    spell(ends, t);
    assert_string_equal(ends, want);
    lt_tokenizer_close(t);
    free(text);
}

static void ends_by_name(void **state) {
    (void)state;
    check_names((const char *const[]){"<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>",
                                      "<|eom_id|>", "<|python_tag|>", NULL},
                " <|end_of_text|> <|eot_id|> <|eom_id|>");
    check_names(
        (const char *const[]){"<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|file_sep|>", NULL},
        " <|endoftext|> <|im_end|>"); /* For filling in the middle: only GGUF uses it. */
    check_names((const char *const[]){"<bos>", "<eos>", "<end_of_turn>", "<pad>", NULL},
                " <eos> <end_of_turn>");
    check_names((const char *const[]){"<|endoftext|>", "<|return|>", "<|call|>", "<|end|>", NULL},
                " <|endoftext|> <|return|> <|call|>");
    check_names((const char *const[]){"<|endoftext|>", "<|user|>", "<|end|>", NULL},
                " <|endoftext|> <|end|>");
    check_names((const char *const[]){"x", NULL}, "");
    /* As in llama.cpp, </s> does not end a text if the tokenizer has <|tool_response>. */
    check_names((const char *const[]){"<eos>", "</s>", NULL}, " </s> <eos>");
    check_names((const char *const[]){"<eos>", "</s>", "<|tool_response>", NULL},
                " <eos> <|tool_response>");
}

/* Published files write "no limit" as a number beyond 64 bits. */
static void ends_in_tokenizer_config(void **state) {
    char folder[] = "/tmp/lateen-ends-XXXXXX", path[LT_PATH_BYTES], ends[256], command[64];
    static const char config[] = "{\"eos_token\": {\"content\": \"<|im_end|>\"}, "
                                 "\"model_max_length\": 1000000000000000019884624838656}";
    char *text = tokenizer_text(
        (const char *const[]){"<|endoftext|>", "<|im_start|>", "<|im_end|>", NULL});
    lt_tokenizer *t = NULL;
    (void)state;
    assert_non_null(mkdtemp(folder));
    must(lt_path_join(path, folder, "tokenizer.json"), path);
    must(lt_file_write_atomic(path, text, strlen(text)), path);
    must(lt_path_join(path, folder, "tokenizer_config.json"), path);
    must(lt_file_write_atomic(path, config, sizeof config - 1), path);
    must(lt_tokenizer_open(&t, folder, NULL), folder);
    assert_int_equal(lt_tokenizer_describe(t).eos, N_BYTES + 2);
    spell(ends, t);
    assert_string_equal(ends, " <|im_end|> <|endoftext|>");
    lt_tokenizer_close(t);
    free(text);
    (void)snprintf(command, sizeof command, "rm -rf %s", folder);
    assert_int_equal(system(command), 0);
}

/* Write a GGUF with this tokenizer alone; keys: further keys. */
static void write_gguf(const char *path, const char *const *names, const int32_t *ends, int n_ends,
                       const char *const *keys, const int *ids) {
    char json[] = "/tmp/lateen-ends-XXXXXX.json", *text = tokenizer_text(names);
    lt_gguf_out *o = NULL;
    int n = 0;
    const int fd = mkstemps(json, 5);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, strlen(text)), strlen(text));
    close(fd);
    while (names[n] != NULL) {
        n++;
    }
    must(lt_gguf_out_open(&o), path);
    must(lt_gguf_put_tokenizer(o, json, N_BYTES + n, ends, n_ends), json);
    for (int i = 0; keys != NULL && keys[i] != NULL; i++) {
        lt_gguf_out_u32(o, keys[i], ids[i]);
    }
    must(lt_gguf_out_write(o, path), path);
    lt_gguf_out_close(o);
    unlink(json);
    free(text);
}

static int64_t key_of(const char *path, const char *key) {
    lt_gguf *g = NULL;
    int64_t id = -1;
    must(lt_gguf_open(&g, path), path);
    if (lt_gguf_get_i64(g, key, &id) != LT_OK) {
        id = -1;
    }
    lt_gguf_close(g);
    return id;
}

static void ends_in_the_keys_of_a_gguf(void **state) {
    char path[] = "/tmp/lateen-ends-XXXXXX", ends[256];
    lt_tokenizer *t = NULL;
    (void)state;
    close(mkstemp(path));
    write_gguf(path,
               (const char *const[]){"<|endoftext|>", "<a>", "<b>", "<c>", "<|file_sep|>",
                                     "<|repo_name|>", NULL},
               NULL, 0,
               (const char *const[]){"tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id",
                                     "tokenizer.ggml.fim_pad_token_id", NULL},
               (const int[]){N_BYTES + 1, N_BYTES + 2, N_BYTES + 3});
    must(lt_tokenizer_open(&t, path, NULL), path);
    spell(ends, t);
    assert_string_equal(ends, " <b> <c> <|endoftext|> <a> <|repo_name|> <|file_sep|>");
    lt_tokenizer_close(t);
    unlink(path);
}

/* The names are those of llama.cpp; the keys of a GGUF take precedence, old ones included. */
static void filling_in_the_middle(void **state) {
    char path[] = "/tmp/lateen-ends-XXXXXX";
    static const char *const sets[][4] = {
        {"<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", NULL},
        {"<fim_prefix>", "<fim_suffix>", "<fim_middle>", NULL},
        {"<PRE>", "<SUF>", "<MID>", NULL},
        {"\xE2\x96\x81<PRE>", "\xE2\x96\x81<SUF>", "\xE2\x96\x81<MID>", NULL},
        {"<\xEF\xBD\x9C"
         "fim\xE2\x96\x81"
         "begin\xEF\xBD\x9C>",
         "<\xEF\xBD\x9C"
         "fim\xE2\x96\x81hole\xEF\xBD\x9C>",
         "<\xEF\xBD\x9C"
         "fim\xE2\x96\x81"
         "end\xEF\xBD\x9C>",
         NULL},
        {"<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>", NULL}};
    lt_tokenizer *t = NULL;
    lt_tokenizer_fim fim;
    (void)state;
    close(mkstemp(path));
    for (size_t i = 0; i < sizeof sets / sizeof *sets; i++) {
        write_gguf(path, sets[i], NULL, 0, NULL, NULL);
        must(lt_tokenizer_open(&t, path, NULL), path);
        fim = lt_tokenizer_find_fim(t);
        for (int k = LT_FIM_PREFIX; k <= LT_FIM_MIDDLE; k++) {
            assert_int_equal(fim.ids[k], N_BYTES + k);
        }
        assert_int_equal(fim.ids[LT_FIM_FILE], LT_TOKEN_NONE);
        lt_tokenizer_close(t);
    }
    write_gguf(path,
               (const char *const[]){"<|fim_prefix|>", "<a>", "<b>", "<c>", "<|file_sep|>",
                                     "<|repo_name|>", NULL},
               NULL, 0,
               (const char *const[]){"tokenizer.ggml.fim_pre_token_id",
                                     "tokenizer.ggml.suffix_token_id",
                                     "tokenizer.ggml.fim_mid_token_id", NULL},
               (const int[]){N_BYTES + 1, N_BYTES + 2, N_BYTES + 3});
    must(lt_tokenizer_open(&t, path, NULL), path);
    fim = lt_tokenizer_find_fim(t);
    const uint32_t want[LT_FIM_COUNT] = {N_BYTES + 1, N_BYTES + 2, N_BYTES + 3,
                                         N_BYTES + 5, N_BYTES + 4, LT_TOKEN_NONE};
    assert_memory_equal(fim.ids, want, sizeof want);
    lt_tokenizer_close(t);
    unlink(path);
}

/* The tokens of a GGUF are not copied into another if their number is not the model's. */
static void tokens_of_another_model(void **state) {
    char path[] = "/tmp/lateen-ends-XXXXXX.gguf";
    lt_gguf_out *o = NULL;
    (void)state;
    close(mkstemps(path, 5));
    write_gguf(path, (const char *const[]){"<a>", NULL}, NULL, 0, NULL, NULL);
    must(lt_gguf_out_open(&o), path);
    assert_int_equal(lt_gguf_put_tokenizer(o, path, N_BYTES + 2, NULL, 0), LT_ERR_ARG);
    assert_non_null(strstr(lt_error_message(), "257 tokens, but the model's vocabulary has 258"));
    must(lt_gguf_put_tokenizer(o, path, N_BYTES + 1, NULL, 0), path);
    lt_gguf_out_close(o);
    unlink(path);
}

/* The ids of the model take the keys that neither the tokenizer nor llama.cpp's names need. */
static void ids_of_a_model_as_keys(void **state) {
    char path[] = "/tmp/lateen-ends-XXXXXX";
    const int32_t glm[] = {N_BYTES, N_BYTES + 1, N_BYTES + 2},
                  llama[] = {N_BYTES + 2, N_BYTES + 1, N_BYTES};
    (void)state;
    close(mkstemp(path));
    write_gguf(path, (const char *const[]){"<|endoftext|>", "<|user|>", "<|observation|>", NULL},
               glm, 3, NULL, NULL);
    assert_int_equal(key_of(path, "tokenizer.ggml.eos_token_id"), N_BYTES);
    assert_int_equal(key_of(path, "tokenizer.ggml.eot_token_id"), N_BYTES + 1);
    assert_int_equal(key_of(path, "tokenizer.ggml.eom_token_id"), N_BYTES + 2);
    write_gguf(path, (const char *const[]){"<|end_of_text|>", "<|eot_id|>", "<|eom_id|>", NULL},
               llama, 3, NULL, NULL);
    assert_int_equal(key_of(path, "tokenizer.ggml.eos_token_id"), N_BYTES);
    assert_int_equal(key_of(path, "tokenizer.ggml.eot_token_id"), N_BYTES + 1);
    assert_int_equal(key_of(path, "tokenizer.ggml.eom_token_id"), N_BYTES + 2);
    write_gguf(path, (const char *const[]){"<|endoftext|>", "x", NULL}, NULL, 0, NULL, NULL);
    assert_int_equal(key_of(path, "tokenizer.ggml.eot_token_id"), -1);
    unlink(path);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ends_by_name),
        cmocka_unit_test(ends_in_tokenizer_config),
        cmocka_unit_test(ends_in_the_keys_of_a_gguf),
        cmocka_unit_test(filling_in_the_middle),
        cmocka_unit_test(tokens_of_another_model),
        cmocka_unit_test(ids_of_a_model_as_keys),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
