/* Generation settings in a model's own files: end tokens and defaults against transformers'
 * generate (tests/golden/model/generation.json, made by tools/make_generation_goldens.py),
 * written to folders and GGUF and read back, and faulty files. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "lateen/generate.h"
#include "model/files/gguf_save.h"
#include "model/infer/generation.h"
#include "model/params.h"
#include "unit/letters.h"

#define GOLDEN "tests/golden/model/llama3/"

static const char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

static void must(lt_err err, const char *what) {
    if (err != LT_OK) {
        fail_msg("%s: %s", what, lt_error_message());
    }
}

static void put(const char *folder, const char *name, const char *text) {
    char path[LT_PATH_BYTES];
    must(lt_path_join(path, folder, name), name);
    must(lt_file_write_atomic(path, text, strlen(text)), name);
}

static void put_json(const char *folder, const char *name, const json_t *value) {
    char *text = json_dumps(value, 0);
    put(folder, name, text);
    free(text);
}

/* The golden llama3 in a folder of its own, with these ends and this generation_config.json
 * (NULL: none). */
static void make_folder(char folder[64], const json_t *eos, const json_t *generation) {
    json_t *config = NULL;
    char path[LT_PATH_BYTES];
    (void)snprintf(folder, 64, "/tmp/lateen-generation-XXXXXX");
    assert_non_null(mkdtemp(folder));
    must(lt_json_load(&config, GOLDEN "config.json", 1 << 20), "config");
    json_object_set(config, "eos_token_id", (json_t *)eos);
    put_json(folder, "config.json", config);
    json_decref(config);
    must(lt_path_join(path, folder, "model.safetensors"), folder);
    must(lt_file_copy(GOLDEN "model.safetensors", path, 1 << 24), folder);
    if (generation != NULL && !json_is_null(generation)) {
        put_json(folder, "generation_config.json", generation);
    }
}

static void remove_folder(const char *folder) {
    char command[128];
    (void)snprintf(command, sizeof command, "rm -rf %s", folder);
    assert_int_equal(system(command), 0);
}

typedef struct {
    char text[256];
    size_t n;
} heard;

static bool hear(void *ctx, const char *text, size_t n) {
    heard *h = ctx;
    assert_true(h->n + n < sizeof h->text);
    memcpy(h->text + h->n, text, n);
    h->n += n;
    return true;
}

static double value_of(const lt_generation_defaults *d, const char *name, double otherwise) {
    for (int i = 0; i < d->n; i++) {
        if (strcmp(d->rows[i].name, name) == 0) {
            return d->rows[i].value;
        }
    }
    return otherwise;
}

static void check_case(const json_t *c, const lt_tokenizer *t) {
    const json_t *ids = json_object_get(c, "ids"), *prompt = json_object_get(c, "prompt");
    char folder[64], words[64] = "", want[128] = "";
    lt_generate_options o = lt_generate_defaults();
    lt_generate_stats st;
    lt_generation_defaults d;
    lt_model *m = NULL;
    lt_session *s = NULL;
    heard h = {.n = 0};
    lt_ends ends;

    make_folder(folder, json_object_get(c, "eos"), json_object_get(c, "generation"));
    must(lt_model_open(&m, folder, NULL), folder);
    must(lt_session_open(&s, m, 1, 64), "session");
    d = lt_model_generation(m);
    o.sampling.repetition = value_of(&d, "repetition_penalty", 1);
    o.sampling.temperature = value_of(&d, "temperature", 0);
    o.max_tokens = (int64_t)value_of(&d, "max_tokens", 40);
    for (size_t i = 0; i < json_array_size(prompt); i++) {
        words[i] = letters[json_integer_value(json_array_get(prompt, i))];
    }
    must(lt_generate(s, m, t, words, &o, hear, &h, &st), "generate");
    lt_model_ends(m, t, &ends);
    for (size_t i = 0; i < json_array_size(ids); i++) {
        const json_int_t id = json_integer_value(json_array_get(ids, i));
        if (!lt_ends_has(&ends, id)) {
            want[i] = letters[id];
        } else {
            assert_int_equal(i + 1, json_array_size(ids));
            assert_int_equal(st.stop, LT_STOP_EOS);
        }
    }
    h.text[h.n] = '\0';
    assert_string_equal(h.text, want);
    assert_int_equal(st.new_tokens, json_array_size(ids));
    lt_session_close(s);
    lt_model_close(m);
    remove_folder(folder);
}

static void writes_what_transformers_writes(void **state) {
    json_t *cases = NULL;
    lt_tokenizer *t = letter_tokenizer(letters);
    (void)state;
    must(lt_json_load(&cases, "tests/golden/model/generation.json", 1 << 20), "goldens");
    assert_true(json_array_size(cases) >= 6);
    for (size_t i = 0; i < json_array_size(cases); i++) {
        check_case(json_array_get(cases, i), t);
    }
    json_decref(cases);
    lt_tokenizer_close(t);
}

static lt_model *open_with(char folder[64], const char *eos, const char *generation) {
    json_t *e = json_loads(eos, JSON_DECODE_ANY, NULL);
    lt_model *m = NULL;
    make_folder(folder, e, NULL);
    json_decref(e);
    if (generation != NULL) {
        put(folder, "generation_config.json", generation);
    }
    must(lt_model_open(&m, folder, NULL), folder);
    return m;
}

/* From a faulty file only the faulty settings are left out. */
static void faulty_settings_are_left_out(void **state) {
    static const struct {
        const char *generation;
        int n_ends, first, n_defaults;
    } rows[] = {
        {"{", 2, 5, 0},
        {"[1, 2]", 2, 5, 0},
        {"{\"eos_token_id\": \"</s>\", \"top_k\": 7}", 2, 5, 1},
        {"{\"eos_token_id\": [9, 1.5]}", 2, 5, 0},
        {"{\"eos_token_id\": 4000000000}", 2, 5, 0},
        {"{\"eos_token_id\": null}", 2, 5, 0},
        {"{\"eos_token_id\": []}", 2, 5, 0},
        {"{\"eos_token_id\": [9, 64, 9, -1, 63]}", 2, 9, 0}, /* 64 is outside the vocabulary. */
        {"{\"temperature\": \"hot\", \"top_p\": 0.5, \"top_k\": 1.5}", 2, 5, 1},
        {"{\"temperature\": -1, \"top_p\": 7, \"max_new_tokens\": 0, \"min_p\": 0.1}", 2, 5, 1},
        {"{\"num_beams\": 4, \"do_sample\": true, \"stop_strings\": [\"x\"]}", 2, 5, 1},
        {"{\"top_k\": null, \"repetition_penalty\": 0}", 2, 5, 0},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char folder[64];
        lt_model *m = open_with(folder, "[5, 6, 5]", rows[i].generation);
        const lt_generation_defaults d = lt_model_generation(m);
        lt_ends ends;
        lt_model_ends(m, NULL, &ends);
        assert_int_equal(ends.n, rows[i].n_ends);
        assert_int_equal(ends.ids[0], rows[i].first);
        assert_int_equal(d.n, rows[i].n_defaults);
        lt_model_close(m);
        remove_folder(folder);
    }
}

static void draws_as_the_file_says(void **state) {
    static const struct {
        const char *generation;
        double temperature; /* -1: the file does not set it. */
    } rows[] = {{"{}", -1},
                {"{\"do_sample\": true}", 1},
                {"{\"do_sample\": true, \"temperature\": 0.6}", 0.6},
                {"{\"temperature\": 0.6}", 0.6},
                {"{\"do_sample\": false, \"temperature\": 0.6}", 0},
                {"{\"do_sample\": false}", 0}};
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char folder[64];
        lt_model *m = open_with(folder, "2", rows[i].generation);
        const lt_generation_defaults d = lt_model_generation(m);
        assert_true(value_of(&d, "temperature", -1) == rows[i].temperature);
        lt_model_close(m);
        remove_folder(folder);
    }
}

static json_t *load(const char *folder, const char *name) {
    char path[LT_PATH_BYTES];
    json_t *root = NULL;
    must(lt_path_join(path, folder, name), name);
    must(lt_json_load(&root, path, 1 << 20), name);
    return root;
}

static void same_key(const char *a, const char *b, const char *name, const char *key) {
    json_t *x = load(a, name), *y = load(b, name);
    assert_true(json_equal(key != NULL ? json_object_get(x, key) : x,
                           key != NULL ? json_object_get(y, key) : y));
    json_decref(x);
    json_decref(y);
}

/* Folder -> folder, and folder -> GGUF -> GGUF -> folder: the ids of both files and every setting
 * of generation_config.json. */
static void nothing_is_lost(void **state) {
    static const char generation[] =
        "{\"bos_token_id\": 1, \"pad_token_id\": 0, \"eos_token_id\": [3, 4, 5, 6, 7], "
        "\"temperature\": 0.6, \"top_p\": 0.95, \"top_k\": 20, \"max_new_tokens\": 33, "
        "\"repetition_penalty\": 1.05, \"typical_p\": 0.9, \"do_sample\": true, "
        "\"custom\": {\"a\": [1, \"\\u00e9\"]}}";
    char folder[64], copy[80], first[80], second[80], back[80];
    lt_model *m = open_with(folder, "[11, 12, 10, 13]", generation), *again = NULL;
    (void)state;

    (void)snprintf(copy, sizeof copy, "%s/copy", folder);
    (void)snprintf(first, sizeof first, "%s/1.gguf", folder);
    (void)snprintf(second, sizeof second, "%s/2.gguf", folder);
    (void)snprintf(back, sizeof back, "%s/back", folder);
    must(lt_model_save(m, copy, LT_F32, 0), copy);
    must(lt_model_save_gguf(m, first, "", LT_GGUF_MIX_F32), first);
    lt_model_close(m);
    must(lt_model_open(&m, first, NULL), first);
    must(lt_model_save_gguf(m, second, "", LT_GGUF_MIX_F32), second);
    lt_model_close(m);
    must(lt_model_open(&again, second, NULL), second);
    assert_int_equal(again->generation_ends.n, 5);
    must(lt_model_save(again, back, LT_F32, 0), back);
    lt_model_close(again);
    same_key(folder, copy, "generation_config.json", NULL);
    same_key(folder, back, "generation_config.json", NULL);
    same_key(folder, copy, "config.json", "eos_token_id");
    same_key(folder, back, "config.json", "eos_token_id");
    remove_folder(folder);
}

/* A folder without the file gets one with the ids of its config.json. */
static void a_missing_file_is_made_from_the_spec(void **state) {
    char folder[64], copy[80];
    lt_model *m = open_with(folder, "[11, 12]", NULL);
    (void)state;
    (void)snprintf(copy, sizeof copy, "%s/copy", folder);
    must(lt_model_save(m, copy, LT_F32, 0), copy);
    lt_model_close(m);
    json_t *made = load(copy, "generation_config.json");
    json_t *want = json_pack("{s:i, s:[i, i]}", "bos_token_id", 1, "eos_token_id", 11, 12);
    assert_true(json_equal(made, want));
    json_decref(made);
    json_decref(want);
    remove_folder(folder);
}

/* A copy has the settings of the model, which may be none. */
static void settings_are_copied(void **state) {
    char folder[64], plain[64];
    lt_model *from = open_with(folder, "[11, 12]", "{\"top_k\": 5, \"eos_token_id\": [3, 4]}"),
             *none = open_with(plain, "[11]", NULL), *to = NULL;
    lt_ends ends;
    (void)state;
    for (int i = 0; i < 2; i++) {
        must(lt_model_open(&to, plain, NULL), plain);
        must(lt_generation_copy(to, i == 0 ? none : from), "copy");
        const lt_generation_defaults d = lt_model_generation(to);
        assert_int_equal(d.n, i);
        lt_model_ends(to, NULL, &ends);
        assert_true(lt_ends_has(&ends, 11) == (i == 0) && lt_ends_has(&ends, 3) == (i == 1));
        lt_model_close(to);
    }
    lt_model_close(from);
    lt_model_close(none);
    remove_folder(folder);
    remove_folder(plain);
}

/* ---- Beginning and end of a text ---- */

/* The golden llama3: 64 ids, a context of 64 tokens; texts begin with id 1, which is B. */
typedef struct {
    lt_model *model;
    lt_tokenizer *tokenizer;
    lt_session *session;
    lt_generate_options o;
    lt_generate_stats st;
    heard h;
} writer;

static writer open_writer(const char *with) {
    writer w = {.tokenizer = letter_tokenizer(with), .o = lt_generate_defaults()};
    must(lt_model_open(&w.model, GOLDEN, NULL), GOLDEN);
    must(lt_session_open(&w.session, w.model, 1, 80), "session");
    w.o.ignore_eos = true;
    return w;
}

static lt_err writes(writer *w, const char *prompt, int64_t max_tokens, lt_text_fn on_text) {
    w->h.n = 0;
    w->o.max_tokens = max_tokens;
    if (w->o.tokens == NULL) {
        lt_session_truncate(w->session, 0, 0);
    }
    const lt_err err = lt_generate(w->session, w->model, w->tokenizer, prompt, &w->o, on_text,
                                   &w->h, &w->st);
    w->h.text[w->h.n] = '\0';
    return err;
}

static void close_writer(writer *w) {
    lt_session_close(w->session);
    lt_tokenizer_close(w->tokenizer);
    lt_model_close(w->model);
}

static bool hear_one(void *ctx, const char *text, size_t n) {
    (void)hear(ctx, text, n);
    return ((heard *)ctx)->n < 2;
}

/* A context of 64 tokens is read, and one token follows it: after a prompt of n, 65 - n are
 * written. */
static void lengths_are_kept(void **state) {
    static const struct {
        int n_prompt, most, n_new;
    } cases[] = {{3, 0, 0},  {3, 1, 1},    {3, 5, 5}, {60, 100, 5},
                 {60, 4, 4}, {63, 100, 2}, {64, 9, 1}};
    writer w = open_writer(letters);
    char prompt[80] = "";
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        memset(prompt, 'Q', sizeof prompt);
        prompt[cases[i].n_prompt] = '\0';
        must(writes(&w, prompt, cases[i].most, hear), prompt);
        assert_int_equal(w.st.prompt_tokens, cases[i].n_prompt);
        assert_int_equal(w.st.new_tokens, cases[i].n_new);
        assert_int_equal(w.h.n, cases[i].n_new);
        assert_int_equal(w.st.stop, LT_STOP_LENGTH);
        assert_true(w.st.prompt_s > 0 && w.st.new_s >= 0);
    }
    prompt[64] = 'Q';
    prompt[65] = '\0';
    assert_int_equal(writes(&w, prompt, 1, hear), LT_ERR_LIMIT);
    assert_non_null(
        strstr(lt_error_message(), "the prompt has 65 tokens; the model's context is 64"));
    /* Tokens that the session already holds count, too. */
    prompt[32] = '\0';
    must(writes(&w, prompt, 1, hear), "the first half");
    lt_generate_stats st;
    must(lt_generate(w.session, w.model, w.tokenizer, prompt, &w.o, NULL, NULL, &st), "the other");
    assert_int_equal(lt_generate(w.session, w.model, w.tokenizer, "Q", &w.o, NULL, NULL, &st),
                     LT_ERR_LIMIT);
    must(writes(&w, "QRS", 9, hear_one), "a caller who stops");
    assert_int_equal(w.st.stop, LT_STOP_CALLER);
    assert_int_equal(w.st.new_tokens, 2);
    close_writer(&w);
}

/* An empty prompt begins with BOS, unless the session holds tokens already. */
static void texts_begin_with_bos(void **state) {
    char first[16];
    writer w = open_writer(letters);
    (void)state;
    must(writes(&w, "B", 5, hear), "B");
    memcpy(first, w.h.text, sizeof first);
    must(writes(&w, "", 5, hear), "nothing");
    assert_int_equal(w.st.prompt_tokens, 1);
    assert_string_equal(w.h.text, first);
    assert_int_equal(lt_generate(w.session, w.model, w.tokenizer, "", &w.o, NULL, NULL, NULL),
                     LT_ERR_ARG);
    assert_non_null(strstr(lt_error_message(), "there is nothing to continue"));
    close_writer(&w);
    w = open_writer("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/!");
    assert_int_equal(writes(&w, "AB!", 5, hear), LT_ERR_ARG);
    assert_non_null(strstr(lt_error_message(), "token 64 of the tokenizer lies outside the model's "
                                               "vocabulary of 64"));
    close_writer(&w);
}

/* Of a prompt that begins like the session's tokens, only the rest is computed, but at least its
 * last token; the text is that of a session that has read nothing. */
static void turns_reuse_the_tokens_of_the_session(void **state) {
    static const struct {
        const char *prompt;
        int computed;
    } turns[] = {{"QRSTUV", 6}, {"QRSTUV", 1}, {"QRSTUVWX", 2}, {"QRSTU", 1},
                 {"QRZTU", 3},  {"ZRZTU", 5},  {"Z", 1}};
    writer kept = open_writer(letters), fresh = open_writer(letters);
    lt_ids ids = {0};
    (void)state;
    kept.o.tokens = &ids;
    for (size_t i = 0; i < sizeof turns / sizeof *turns; i++) {
        const char *prompt = turns[i].prompt;
        must(writes(&kept, prompt, 1, hear), prompt);
        must(writes(&fresh, prompt, 1, hear), prompt);
        assert_int_equal(kept.st.prompt_tokens, turns[i].computed);
        assert_string_equal(kept.h.text, fresh.h.text);
        assert_int_equal(ids.n, strlen(prompt) + 1);
        assert_int_equal(lt_session_length(kept.session, 0), strlen(prompt));
    }
    lt_ids_free(&ids);
    close_writer(&kept);
    close_writer(&fresh);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(writes_what_transformers_writes),
        cmocka_unit_test(faulty_settings_are_left_out),
        cmocka_unit_test(draws_as_the_file_says),
        cmocka_unit_test(nothing_is_lost),
        cmocka_unit_test(a_missing_file_is_made_from_the_spec),
        cmocka_unit_test(settings_are_copied),
        cmocka_unit_test(lengths_are_kept),
        cmocka_unit_test(texts_begin_with_bos),
        cmocka_unit_test(turns_reuse_the_tokens_of_the_session),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
