/* How verbs open models, adapters and tokenizers: which of them name which, what is refused, in
 * which types weights are held; the list of --lora; the room for an answer. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <cmocka.h>

#include "base/error.h"
#include "cli/adapter_list.h"
#include "cli/opened.h"
#include "model/params.h"
#include "unit/scratch_folder.h"

#define SFT       "tests/golden/sft"
#define LLAMA     "tests/golden/model/llama3"
#define STORIES   "tests/golden/stories260k/stories260K.bin"
#define TOKENIZER "tests/golden/sft/tokenizer.json"
#define RED       "tests/golden/serve/lora/red"

static void must(lt_err err, const char *what) {
    if (err != LT_OK) {
        fail_msg("%s: %s", what, lt_error_message());
    }
}

static void says(const char *text) {
    if (strstr(lt_error_message(), text) == NULL) {
        fail_msg("'%s' is not in: %s", text, lt_error_message());
    }
}

static void in_folder(char path[LT_PATH_BYTES], const char *name) {
    must(lt_path_join(path, folder, name), name);
}

static void write_in(const char *name, const char *text) {
    char path[LT_PATH_BYTES];
    in_folder(path, name);
    must(lt_file_write_atomic(path, text, strlen(text)), path);
}

static void models_and_adapters(void **state) {
    static const struct {
        const char *model, *lora, *tokenizer, *path; /* path: o.path. */
        lt_opened_dtype dtype;
        bool adapted;
        lt_dtype type; /* Of activations. */
    } cases[] = {
        {SFT, "", "", SFT, LT_OPENED_STORED, false, LT_F32},
        {SFT, "", "", SFT, LT_OPENED_BF16, false, LT_BF16},
        {SFT, "", "", SFT, LT_OPENED_F32, false, LT_F32},
        {LLAMA, "", TOKENIZER, LLAMA, LT_OPENED_F32, false, LT_F32},
        {SFT, SFT "/adapter-rs", "", SFT, LT_OPENED_F32, true, LT_F32},
        {SFT, SFT "/adapter-rs-end.gguf", "", SFT, LT_OPENED_F32, true, LT_F32},
        {SFT, SFT "/adapter-dora", "", SFT, LT_OPENED_STORED, true, LT_F32},
        {RED, "", TOKENIZER, LLAMA, LT_OPENED_F32, true, LT_F32},
        {LLAMA, RED, TOKENIZER, LLAMA, LT_OPENED_BF16, true, LT_BF16},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        lt_opened o;
        must(lt_opened_open(&o, cases[i].model, cases[i].lora, cases[i].tokenizer, cases[i].dtype,
                            "cpu", 0),
             cases[i].model);
        assert_non_null(o.model);
        assert_non_null(o.tokenizer);
        assert_int_equal(o.adapters != NULL, cases[i].adapted);
        assert_string_equal(o.path, cases[i].path);
        assert_int_equal(o.model->options.stored, cases[i].dtype == LT_OPENED_STORED &&
                                                      strstr(cases[i].lora, "dora") == NULL);
        if (cases[i].dtype != LT_OPENED_STORED) {
            assert_int_equal(o.model->options.dtype, cases[i].type);
        }
        lt_opened_close(&o);
        assert_null(o.model);
    }
}

static void what_cannot_be_opened(void **state) {
    static const char config[] =
        "{\"peft_type\": \"LORA\", \"r\": 2, \"lora_alpha\": 2, \"target_modules\": [\"q_proj\"], "
        "\"base_model_name_or_path\": \"no/such/base\"}";
    char orphan[LT_PATH_BYTES];
    (void)state;
    in_folder(orphan, "orphan");
    assert_int_equal(mkdir(orphan, 0755), 0);
    write_in("orphan/adapter_config.json", config);
    write_in("orphan/adapter_model.safetensors", "x");
    const struct {
        const char *model, *lora, *tokenizer;
        lt_err err;
        const char *says;
    } cases[] = {
        {"no/such", "", "", LT_ERR_NOT_FOUND, "model no/such: no such file or folder"},
        {STORIES, "", "", LT_ERR_ARG, "has no tokenizer: give --tokenizer"},
        {RED, RED, TOKENIZER, LT_ERR_ARG, "--lora " RED " beside the model " RED ", which is an"},
        {orphan, "", TOKENIZER, LT_ERR_NOT_FOUND, "is an adapter of the model 'no/such/base'"},
        {SFT, "no/such", "", LT_ERR_NOT_FOUND, "no/such"},
        {SFT, "", "no/such.json", LT_ERR_NOT_FOUND, "no/such.json"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        lt_opened o = {.model = NULL};
        const lt_err err = lt_opened_open(&o, cases[i].model, cases[i].lora, cases[i].tokenizer,
                                          LT_OPENED_F32, "cpu", 0);
        if (err != cases[i].err) {
            fail_msg("%s: %d: %s", cases[i].says, (int)err, lt_error_message());
        }
        says(cases[i].says);
        assert_null(o.model);
    }
}

static void types_are_told_once(void **state) {
    char types[LT_OPENED_TYPES_BYTES];
    lt_opened o;
    bool blocks = true;
    (void)state;
    must(lt_opened_open(&o, SFT, "", "", LT_OPENED_BF16, "cpu", 0), SFT);
    lt_opened_types(o.model, types, &blocks);
    assert_string_equal(types, "BF16");
    assert_false(blocks);
    lt_opened_close(&o);
}

/* Weights of block types, from the quantised model that comes with Lateen. */
static void a_quantised_model(void **state) {
    char types[LT_OPENED_TYPES_BYTES];
    lt_opened o;
    bool blocks = false;
    (void)state;
    must(lt_opened_open(&o, "models/polyglot-46m.gguf", "", "", LT_OPENED_STORED, "cpu", 0),
         "polyglot");
    lt_opened_types(o.model, types, &blocks);
    assert_true(blocks);
    lt_opened_close(&o);
}

static void lists_of_adapters(void **state) {
    static char argv0[] = "serve";
    static const struct {
        const char *words[6];
        const char *rows[4]; /* NULL at the end. */
        const char *refused;
    } cases[] = {
        {{"--port", "1"}, {NULL}, NULL},
        {{"--lora", "a=" RED}, {"a=" RED}, NULL},
        {{"--lora=a=" RED, "--lora", RED}, {"a=" RED, RED}, NULL},
        {{"--lora", "a=" RED ",b=" RED, "--lora=c=" RED}, {"a=" RED, "b=" RED, "c=" RED}, NULL},
        {{"--lora", "a=" RED ","}, {"a=" RED}, NULL},
        {{"--", "--lora", "a=" RED}, {NULL}, NULL},
        {{"--loras", "x", "--lora", RED}, {RED}, NULL},
        {{"--lora"}, {NULL}, NULL}, /* The parser of options reports it. */
        {{"--lora="}, {NULL}, "--lora is empty: NAME=PATH is expected"},
        {{"--lora", ""}, {NULL}, "--lora is empty"},
        {{"--lora", "a=" RED ",,b=" RED}, {"a=" RED}, "--lora: NAME=PATH of 1 to 4095 bytes"},
        {{"--lora", "a=no/such"}, {NULL}, "--lora a=no/such"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *argv[8] = {argv0};
        int argc = 1, n = 0;
        lt_adapter_list l;
        for (int k = 0; k < 6 && cases[i].words[k] != NULL; k++) {
            argv[argc] = strdup(cases[i].words[k]);
            assert_non_null(argv[argc++]);
        }
        const lt_err err = lt_adapter_list_read(&l, argc, argv);
        if ((err != LT_OK) != (cases[i].refused != NULL)) {
            fail_msg("case %zu: %d %s", i, (int)err, lt_error_message());
        }
        if (err != LT_OK) {
            assert_int_equal(err, LT_ERR_ARG);
            says(cases[i].refused);
        }
        for (; cases[i].rows[n] != NULL; n++) {
            assert_true(n < l.n);
            assert_string_equal(l.rows[n], cases[i].rows[n]);
        }
        assert_int_equal(l.n, n);
        lt_adapter_list_free(&l);
        assert_true(l.rows == NULL && l.n == 0);
        while (argc > 1) {
            free(argv[--argc]);
        }
    }
}

static void a_list_with_long_paths(void **state) {
    static char word[LT_PATH_BYTES + 16];
    char name[] = "serve", flag[] = "--lora";
    char *argv[] = {name, flag, word};
    lt_adapter_list l;
    (void)state;
    memset(word, 'x', LT_PATH_BYTES);
    assert_int_equal(lt_adapter_list_read(&l, 3, argv), LT_ERR_ARG);
    says("NAME=PATH of 1 to 4095 bytes is expected");
    lt_adapter_list_free(&l);
}

/* BOS and one token in reserve, at most the 512 tokens of a sequence. */
static void rooms_for_answers(void **state) {
    lt_model *m = NULL;
    (void)state;
    must(lt_model_open(&m, STORIES, NULL), STORIES);
    assert_int_equal(lt_generate_room(m, 10, 20), 32);
    assert_int_equal(lt_generate_room(m, 490, 20), 512);
    assert_int_equal(lt_generate_room(m, 489, 20), 511);
    assert_int_equal(lt_generate_room(m, 9000, 20), 512);
    lt_model_close(m);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(models_and_adapters), cmocka_unit_test(what_cannot_be_opened),
        cmocka_unit_test(types_are_told_once), cmocka_unit_test(a_quantised_model),
        cmocka_unit_test(lists_of_adapters),   cmocka_unit_test(a_list_with_long_paths),
        cmocka_unit_test(rooms_for_answers)};
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
