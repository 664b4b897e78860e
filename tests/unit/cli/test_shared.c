/* What several verbs share: flags and exit statuses, lists and lines, text that is not UTF-8,
 * biases, names of models, medians, completion; named lists in recipes. */
#include "unit/cli/verb_run.h"

#include <math.h>

#include "base/error.h"
#include "base/file.h"
#include "cli/bench/bench.h"
#include "cli/beside.h"
#include "cli/gguf_out.h"
#include "cli/opened.h"
#include "cli/read_lines.h"
#include "cli/serve_models.h"
#include "cli/train/named_recipes.h"
#include "cli/utf8_text.h"
#include "unit/scratch_folder.h"

int lt_verb_completion(int argc, char **argv);

static const char *path_of(const char *name) {
    static char path[LT_PATH_BYTES];
    assert_int_equal(lt_path_join(path, folder, name), LT_OK);
    return path;
}

static const char *put(const char *name, const char *text) {
    const char *path = path_of(name);
    assert_int_equal(lt_file_write_atomic(path, text, strlen(text)), LT_OK);
    return path;
}

static void fails(lt_err err, lt_err want, const char *text) {
    if (err != want || strstr(lt_error_message(), text) == NULL) {
        fail_msg("%d and not %d, '%s' without '%s'", (int)err, (int)want, lt_error_message(), text);
    }
}

/* ---- Flags ---- */

#define SMALL_OPTIONS(X)                                                                           \
    X(I64, bytes, "bytes", "4KiB", 0, 1e9, "", "a size")                                           \
    X(ENUM, kind, "kind", "one", 0, 0, "one|two", "a kind")                                        \
    X(BOOL, on, "on", "false", 0, 0, "", "a switch")
typedef struct {
    SMALL_OPTIONS(LT_OPTION_FIELD)
} small_options;
#define LT_OPTION_STRUCT small_options
static const lt_option small_rows[] = {SMALL_OPTIONS(LT_OPTION_ROW)};
static const lt_option_table small_table = LT_OPTION_TABLE("small", small_rows);
static small_options small;
static const char *small_words[2];
static int n_small;

static int small_verb(int argc, char **argv) {
    int status = LT_EXIT_DONE;
    if (!lt_verb_parse(&small_table, &small, argc, argv, "small FILE", "A small verb.", small_words,
                       2, &n_small, &status)) {
        return status;
    }
    const lt_verb_use uses[] = {{"bytes", small.on, "--on"}, {"kind", small.on, "--on"}};
    const lt_err err = lt_verb_idle(&small_table, &small, uses, 2);
    return err == LT_OK ? LT_EXIT_DONE : lt_verb_fail(err);
}

static void flags_are_read(void **state) {
    (void)state;
    ran r = run_verb(small_verb, "small --help");
    assert_int_equal(r.status, LT_EXIT_DONE);
    assert_int_equal(strncmp(r.out, "usage: lateen small FILE\n\nA small verb.\n\noptions:\n", 49),
                     0);
    assert_non_null(strstr(r.out, "--kind"));
    assert_string_equal(r.err, "");
    ran_close(&r);
    r = run_verb(small_verb, "small --kind three");
    assert_int_equal(r.status, LT_EXIT_USAGE);
    assert_string_equal(r.out, "");
    assert_int_equal(strncmp(r.err, "lateen: ", 8), 0);
    assert_non_null(strstr(r.err, "three"));
    assert_non_null(strstr(r.err, "\nusage: lateen small FILE\n"));
    ran_close(&r);
    r = run_verb(small_verb, "small a --on --bytes 5 b");
    assert_int_equal(r.status, LT_EXIT_DONE);
    assert_int_equal(n_small, 2);
    assert_int_equal(small.bytes, 5);
    ran_close(&r);
    /* An option without effect is refused, unless it has its default value, however that is
     * written. */
    run_refused(small_verb, "small --bytes 4097", LT_EXIT_USAGE,
                "--bytes 4097 has no effect without --on");
    run_refused(small_verb, "small --kind two", LT_EXIT_USAGE,
                "--kind two has no effect without --on");
    r = run_verb(small_verb, "small --bytes 4096 --kind one");
    assert_int_equal(r.status, LT_EXIT_DONE);
    ran_close(&r);
}

static lt_err failure;

static int failing_verb(int argc, char **argv) {
    (void)argc;
    (void)argv;
    return lt_verb_fail(lt_error_set(failure, "it failed"));
}

static void statuses_tell_the_failure(void **state) {
    static const struct {
        lt_err err;
        int status;
    } cases[] = {{LT_ERR_ARG, 2},          {LT_ERR_IO, 1},     {LT_ERR_FORMAT, 1},
                 {LT_ERR_INTERRUPTED, 75}, {LT_ERR_REMOTE, 1}, {LT_ERR_NOT_FOUND, 1}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        failure = cases[i].err;
        ran r = run_verb(failing_verb, "failing");
        assert_int_equal(r.status, cases[i].status);
        assert_non_null(strstr(r.err, "it failed\n"));
        assert_int_equal(strncmp(r.err, "lateen: ", 8), 0);
        ran_close(&r);
    }
}

/* ---- Lists and lines ---- */

static void numbers_of_lists(void **state) {
    const char *at = "1,-4,16";
    long long v = 0;
    (void)state;
    assert_true(lt_cli_next_number(&at, &v) && v == 1);
    assert_true(lt_cli_next_number(&at, &v) && v == -4);
    assert_true(lt_cli_next_number(&at, &v) && v == 16);
    assert_int_equal(*at, '\0');
    for (int i = 0; i < 4; i++) {
        const char *const bad[] = {"", ",1", "2;3", "x"}, *before = bad[i];
        at = before;
        assert_false(lt_cli_next_number(&at, &v));
        assert_ptr_equal(at, before);
    }
}

static lt_err note_line(void *ctx, const char *where, const char *text, size_t n) {
    char *out = ctx;
    (void)snprintf(out + strlen(out), 256 - strlen(out), "[%s|%.*s]", where, (int)n, text);
    return strncmp(text, "stop", 4) == 0 ? lt_error_set(LT_ERR_LIMIT, "stop") : LT_OK;
}

static void lines_have_numbers(void **state) {
    static char text[] = "one\n\n \t\r\nfour\nstop\nnever\n";
    char out[256] = "";
    FILE *f = fmemopen(text, sizeof text - 1, "r");
    (void)state;
    fails(lt_cli_each_line(f, "F", note_line, out), LT_ERR_LIMIT, "stop");
    assert_string_equal(out, "[F, line 1|one\n][F, line 4|four\n][F, line 5|stop\n]");
    (void)fclose(f);
    f = fopen(folder, "r");
    fails(lt_cli_each_line(f, "F", note_line, out), LT_ERR_IO, "read F: ");
    (void)fclose(f);
}

static void medians(void **state) {
    double odd[] = {9, -1, 4}, even[] = {8, 1, 2, 5}, one[] = {3};
    (void)state;
    assert_true(lt_bench_median(odd, 3) == 4);
    assert_true(lt_bench_median(even, 4) == 3.5);
    assert_true(lt_bench_median(one, 1) == 3);
}

/* ---- Text ---- */

/* Each invalid part becomes one U+FFFD, as the Unicode standard (section 3.9) and Python's
 * errors="replace" define it: E2 82, a character that is cut off, becomes one. */
static void invalid_text_is_replaced(void **state) {
    const char *text = "a\xE2\x82z\xFF", *good = "gr\xC3\xBCn";
    size_t n = strlen(text);
    lt_text room = {0};
    lt_utf8_tally tally = {0};
    const lt_lone_escapes lone = {.n = 2, .first = 1};
    (void)state;
    fails(lt_utf8_mend("W", 7, true, &text, &n, NULL, &room, &tally), LT_ERR_FORMAT,
          "W: invalid UTF-8: 2 parts, the first at byte 1 (0xe2); --invalid-utf8 replace");
    assert_int_equal(tally.parts, 0);
    assert_int_equal(lt_utf8_mend("W", 7, false, &text, &n, NULL, &room, &tally), LT_OK);
    assert_string_equal(text, "a\xEF\xBF\xBDz\xEF\xBF\xBD");
    assert_int_equal(n, strlen(text));
    assert_int_equal(tally.line, 7);
    assert_int_equal(tally.byte, 1);
    n = strlen(good);
    text = good;
    assert_int_equal(lt_utf8_mend("W", 8, true, &text, &n, NULL, &room, &tally), LT_OK);
    assert_ptr_equal(text, good);
    assert_int_equal(tally.texts, 1);
    /* Escapes of lone surrogates count, too, and the first fault of all is reported. */
    text = "abc\xFF";
    n = 4;
    fails(lt_utf8_mend("W", 9, true, &text, &n, &lone, &room, &tally), LT_ERR_FORMAT,
          "3 parts, the first at byte 1 (a lone surrogate escape)");
    assert_int_equal(lt_utf8_mend("W", 9, false, &text, &n, &lone, &room, &tally), LT_OK);
    assert_string_equal(text, "abc\xEF\xBF\xBD");
    assert_int_equal(tally.parts, 5);
    assert_int_equal(tally.lone, 2);
    assert_int_equal(tally.texts, 2);
    assert_int_equal(tally.line, 7);
    text = "\xFF"
           "b";
    n = 2;
    fails(lt_utf8_mend("W", 9, true, &text, &n, &lone, &room, &tally), LT_ERR_FORMAT,
          "3 parts, the first at byte 0 (0xff)");
    lt_text_free(&room);
}

static void biases_are_read(void **state) {
    lt_sampling s = lt_sampling_defaults();
    lt_logit_bias *owned = NULL;
    static const char *const bad[] = {"x",    "1",  "1=",    "1=2,",         "1=2;3=4",
                                      "-1=2", "=3", "1=2,,", "2147483648=1", "1=2x"};
    (void)state;
    assert_int_equal(lt_bias_read(&s, &owned, ""), LT_OK);
    assert_int_equal(s.n_bias, 0);
    assert_null(owned);
    assert_int_equal(lt_bias_read(&s, &owned, "5=-1.5,2147483647=100,0=2e-1"), LT_OK);
    assert_int_equal(s.n_bias, 3);
    for (int64_t i = 0; i < 3; i++) {
        const double want = s.bias[i].id == 0 ? 0.2 : s.bias[i].id == 5 ? -1.5 : 100;
        assert_true(fabs((double)s.bias[i].bias - want) < 1e-6);
    }
    free(owned);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        owned = NULL;
        fails(lt_bias_read(&s, &owned, bad[i]), LT_ERR_ARG, "is not ID=BIAS");
        free(owned);
    }
}

static void prompts_and_rates(void **state) {
    char *text = NULL;
    lt_generate_stats st = {.new_tokens = 11, .new_s = 2};
    (void)state;
    assert_true(lt_generate_rate(&st) == 5); /* The first token came with the prompt. */
    st.new_tokens = 1;
    assert_true(lt_generate_rate(&st) == 0);
    assert_int_equal(lt_prompt_read(&text, put("prompt", "say")), LT_OK);
    assert_string_equal(text, "say");
    lt_prompt_free(text);
    assert_int_equal(lt_file_write_atomic(path_of("zero"), "a\0b", 3), LT_OK);
    fails(lt_prompt_read(&text, path_of("zero")), LT_ERR_FORMAT, "holds a zero byte");
    assert_null(text);
}

static void new_files_are_checked(void **state) {
    (void)state;
    put("there.gguf", "x");
    fails(lt_cli_check_new(""), LT_ERR_ARG, "the name of what is to be written is empty");
    fails(lt_cli_check_new(path_of("there.gguf")), LT_ERR_ARG, "there.gguf exists already");
    fails(lt_cli_check_new(path_of("none/new.gguf")), LT_ERR_NOT_FOUND, "none is not a folder");
    assert_int_equal(lt_cli_check_new(path_of("new.gguf")), LT_OK);
    /* Missing folders are created. */
    assert_int_equal(lt_cli_check_new(path_of("none/new")), LT_OK);
    assert_int_equal(lt_cli_check_new("lateen-no-such-file.gguf"), LT_OK);
    assert_int_equal(lt_cli_check_new("/lateen-no-such-file.gguf"), LT_OK);
}

/* ---- Names of models ---- */

static void models_beside_the_served_one_have_names(void **state) {
    char text[400];
    lt_served s = {.reward = "", .reward_tokenizer = ""};
    (void)state;
    assert_int_equal(lt_served_read(&s, ""), LT_OK);
    assert_int_equal(s.beside.n, 0);
    assert_int_equal(lt_served_read(&s, "m.gguf"), LT_OK);
    assert_string_equal(s.beside.name_list[0], "second");
    assert_string_equal(s.beside.paths[0], "m.gguf");
    s.beside.n = 0;
    assert_int_equal(lt_served_read(&s, "a=x,b=y=z,c=w,d=v"), LT_OK);
    assert_int_equal(s.beside.n, 4);
    assert_string_equal(s.beside.names[1], "b");
    assert_string_equal(s.beside.paths[1], "y=z");
    assert_string_equal(s.beside.paths[3], "v");
    fails(lt_served_read(&s, "e=u"), LT_ERR_ARG, "--second: more than 4 models");
    s.beside.n = 0;
    fails(lt_served_read(&s, "a=x,a=y"), LT_ERR_ARG, "the name 'a' is given twice");
    s.beside.n = 0;
    fails(lt_served_read(&s, "=x"), LT_ERR_ARG, "'=x' is not NAME=MODEL with a name of 1 to 63");
    fails(lt_served_read(&s, "a="), LT_ERR_ARG, "'a=' is not NAME=MODEL");
    memset(text, 'n', 63);
    strcpy(text + 63, "=x");
    assert_int_equal(lt_served_read(&s, text), LT_OK);
    memset(text, 'm', 64);
    strcpy(text + 64, "=x");
    fails(lt_served_read(&s, text), LT_ERR_ARG, "is not NAME=MODEL");
    s.reward_tokenizer = "t";
    fails(lt_served_read(&s, ""), LT_ERR_ARG, "--reward-tokenizer has no effect without --reward");
    s.reward = "r";
    s.beside.n = 0;
    assert_int_equal(lt_served_read(&s, ""), LT_OK);
}

static void drafts_need_their_kind(void **state) {
    static const struct {
        lt_speculate by;
        const char *path, *draft, *why;
        bool head;
    } cases[] = {{LT_SPECULATE_NONE, "", "", NULL, false},
                 {LT_SPECULATE_NGRAM, "", "", NULL, false},
                 {LT_SPECULATE_NONE, "d", NULL, "--draft d is for --speculate model and", false},
                 {LT_SPECULATE_NGRAM, "d", NULL, "--draft d is for --speculate model and", false},
                 {LT_SPECULATE_MODEL, "", NULL, "--speculate model needs a draft model", false},
                 {LT_SPECULATE_MODEL, "d", "d", NULL, false},
                 {LT_SPECULATE_HEAD, "d", "d", NULL, true},
                 {LT_SPECULATE_HEAD, "", "served", NULL, true}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        lt_served s = {.model = "served"};
        lt_engine_options e = {.speculate = cases[i].by};
        const lt_err err = lt_served_draft(&s, &e, cases[i].path);
        if (cases[i].why != NULL) {
            fails(err, LT_ERR_ARG, cases[i].why);
            continue;
        }
        assert_int_equal(err, LT_OK);
        assert_string_equal(s.draft, cases[i].draft);
        assert_int_equal(s.draft_is_head, cases[i].head);
        assert_int_equal(e.draft != NULL, cases[i].by == LT_SPECULATE_MODEL);
        assert_int_equal(e.head != NULL, cases[i].by == LT_SPECULATE_HEAD);
    }
}

/* A model beside the served one must have the same tokenizer, piece by piece. */
static void models_beside_the_served_one_are_loaded(void **state) {
    char model[LT_PATH_BYTES], second[LT_PATH_BYTES], *text = NULL, *at;
    size_t bytes;
    lt_model *m = NULL;
    lt_tokenizer *t = NULL;
    (void)state;
    for (int i = 0; i < 3; i++) { /* The same tokenizer twice, and one whose token 'x' differs. */
        const char *name = (const char *const[]){"served", "same", "other"}[i];
        assert_int_equal(lt_file_make_dirs(path_of(name)), LT_OK);
        strcpy(model, path_of(name));
        for (int k = 0; k < 3; k++) {
            const char *const from[] = {"tests/golden/model/llama3/config.json",
                                        "tests/golden/model/llama3/model.safetensors",
                                        "tests/golden/sft/tokenizer.json"};
            char to[LT_PATH_BYTES];
            assert_int_equal(lt_path_join(to, model, strrchr(from[k], '/') + 1), LT_OK);
            assert_int_equal(lt_file_copy(from[k], to, 1 << 24), LT_OK);
        }
    }
    assert_int_equal(lt_path_join(second, model, "tokenizer.json"), LT_OK);
    assert_int_equal(lt_file_read(&text, &bytes, second, 1 << 24), LT_OK);
    at = strstr(text, "\"b\"");
    assert_non_null(at);
    memcpy(at, "\"\x7f\"", 3);
    assert_int_equal(lt_file_write_atomic(second, text, bytes), LT_OK);
    free(text);
    for (int i = 0; i < 2; i++) {
        lt_served s = {.lora = "",
                       .tokenizer = "",
                       .steer = "",
                       .reward = "",
                       .reward_tokenizer = "",
                       .device = "cpu",
                       .threads = 1};
        strcpy(model, path_of("served"));
        strcpy(second, path_of(i == 0 ? "same" : "other"));
        s.model = model;
        assert_int_equal(lt_served_read(&s, second), LT_OK);
        const lt_err err = lt_served_load(&s, &m, &t);
        if (i == 0) {
            assert_int_equal(err, LT_OK);
            assert_ptr_equal(s.beside.models[0], s.beside.opened[0].model);
            assert_null(s.opened.model); /* The server closes it. */
        } else {
            fails(err, LT_ERR_UNSUPPORTED,
                  "its tokenizer is another than that of the served model");
        }
        lt_served_unload(&s);
        lt_model_close(m);
        lt_tokenizer_close(t);
    }
}

static lt_serve_model_options served_defaults(void) {
    return (lt_serve_model_options){.device = "cpu", .max_running = 3, .context = 5, .idle_s = 7};
}

static void served_models_are_listed(void **state) {
    const lt_serve_model_options defaults = served_defaults();
    const lt_engine_options engine = {.speculate = LT_SPECULATE_NGRAM,
                                      .draft_tokens = 4,
                                      .draft_branches = 2,
                                      .n_beside = 1,
                                      .ends = {.n = 1}};
    lt_serve_models m = {NULL, 0};
    lt_server_model row;
    (void)state;
    assert_int_equal(lt_serve_models_read(&m, "a=x.gguf,b=y=z", &defaults), LT_OK);
    assert_int_equal(m.n, 2);
    assert_string_equal(m.rows[0].name, "a");
    assert_string_equal(m.rows[0].o.path, "x.gguf");
    assert_string_equal(m.rows[1].o.path, "y=z");
    assert_int_equal(m.rows[1].o.max_running, 3);
    assert_int_equal(lt_serve_model_row(&m.rows[1], &engine, &row), LT_OK);
    assert_string_equal(row.name, "b");
    assert_string_equal(row.model, "y=z");
    assert_null(row.template);
    assert_true(row.idle_s == 7);
    assert_int_equal(row.engine.max_running, 3);
    assert_int_equal(row.engine.max_seq, 5);
    assert_int_equal(row.engine.n_beside, 0);
    assert_int_equal(row.engine.ends.n, 1); /* The server adds the rest. */
    assert_int_equal(row.engine.speculate, LT_SPECULATE_NGRAM);
    assert_int_equal(row.engine.draft_tokens, 4);
    const lt_served *s = &m.rows[1].served;
    assert_ptr_equal(row.ctx, s);
    assert_string_equal(s->model, "y=z");
    assert_string_equal(s->device, "cpu");
    assert_true(s->lora[0] == '\0' && s->steer[0] == '\0' && s->reward[0] == '\0');
    assert_true(s->tokenizer[0] == '\0' && s->reward_tokenizer[0] == '\0');
    lt_serve_models_free(&m);
    assert_true(m.n == 0 && m.rows == NULL);
    fails(lt_serve_models_read(&m, "a=x,a=y", &defaults), LT_ERR_ARG, "--models names 'a' twice");
    fails(lt_serve_models_read(&m, "a=x,b=", &defaults), LT_ERR_ARG, "'b=' is neither NAME=PATH");
    fails(lt_serve_models_read(&m, "x", &defaults), LT_ERR_ARG, "'x' is neither NAME=PATH nor a");
    fails(lt_serve_models_read(&m, "=x", &defaults), LT_ERR_ARG, "'' is not a name of a model");
}

static void served_models_have_options(void **state) {
    const lt_serve_model_options defaults = served_defaults();
    const lt_engine_options head = {.speculate = LT_SPECULATE_HEAD, .draft_tokens = 4};
    lt_serve_models m = {NULL, 0};
    lt_server_model row;
    (void)state;
    assert_int_equal(
        lt_serve_models_read(&m,
                             put("models.yaml",
                                 "small.v2: {path: s, idle-s: 0, context: 11, cache-dtype: fp8, "
                                 "cache-type-v: bf16, preload: true, chat-template: t}\n"
                                 "large: {path: l, draft: d}\n"),
                             &defaults),
        LT_OK);
    assert_int_equal(m.n, 2);
    assert_string_equal(m.rows[0].name, "small.v2");
    assert_int_equal(lt_serve_model_row(&m.rows[0], &head, &row), LT_OK);
    assert_true(row.idle_s == -1 && row.preload);
    assert_string_equal(row.template, "t");
    assert_int_equal(row.engine.max_seq, 11);
    assert_int_equal(row.engine.cache_dtype, LT_F8_E4M3);
    assert_int_equal(row.engine.value_dtype, LT_BF16);
    /* The head belongs to another model. */
    assert_int_equal(row.engine.speculate, LT_SPECULATE_NONE);
    assert_int_equal(row.engine.draft_tokens, 0);
    assert_int_equal(lt_serve_model_row(&m.rows[1], &head, &row), LT_OK);
    assert_int_equal(row.engine.speculate, LT_SPECULATE_MODEL);
    assert_int_equal(row.engine.draft_tokens, 4);
    assert_string_equal(m.rows[1].served.draft, "d");
    lt_serve_models_free(&m);
    fails(lt_serve_models_read(&m, put("none.yaml", "a: {context: 1}\n"), &defaults), LT_ERR_ARG,
          "the model a has no path");
    fails(lt_serve_models_read(&m, put("flat.yaml", "a: x\n"), &defaults), LT_ERR_ARG,
          "a must be a mapping with the model's path");
    fails(lt_serve_models_read(&m, put("empty.yaml", "\n"), &defaults), LT_ERR_ARG,
          "names no model");
    fails(lt_serve_models_read(&m, put("bad.yaml", "a: {paths: x}\n"), &defaults), LT_ERR_ARG,
          "bad.yaml:1: a: ");
}

/* ---- Completion ---- */

static void words_are_completed(void **state) {
    (void)state;
    run_prints(lt_verb_completion, "completion verbs", "tokenize\ntokenizer\ndata\ntrain\n");
    run_prints(lt_verb_completion, "completion flags quantize", "--type\n--tokenizer\n--threads\n");
    ran r = run_verb(lt_verb_completion, "completion values generate --dtype");
    assert_string_equal(r.out, "stored\nfp32\nbf16\n");
    ran_close(&r);
    for (int i = 0; i < 4; i++) {
        const char *const empty[] = {
            "completion values generate dtype", "completion values nothing --dtype",
            "completion flags nothing", "completion values generate --prompt"};
        r = run_verb(lt_verb_completion, empty[i]);
        assert_int_equal(r.status, LT_EXIT_DONE);
        assert_string_equal(r.out, "");
        ran_close(&r);
    }
    run_refused(lt_verb_completion, "completion", LT_EXIT_USAGE, "completion takes verbs, flags");
    run_refused(lt_verb_completion, "completion flags", LT_EXIT_USAGE, "completion takes verbs,");
    run_refused(lt_verb_completion, "completion values train", LT_EXIT_USAGE, "completion takes");
    run_prints(lt_verb_completion, "completion --help", "usage: lateen completion");
}

/* ---- Named lists of recipes ---- */

static lt_err no_steps(const lt_option *row, const char *name, const char *origin) {
    return strcmp(row->name, "steps") != 0
               ? LT_OK
               : lt_error_set(LT_ERR_ARG, "%s: %s may not have steps", origin, name);
}

enum { MOST = 3 };

static lt_err read_named(lt_named_recipe *all, int *n, lt_recipe *common, bool limited,
                         const char *text, int argc, char **argv) {
    const lt_named_kind kind = {
        .key = "parts", .what = "item", .most = MOST, .may_have = limited ? no_steps : NULL};
    const lt_err err = lt_named_recipes_read(all, n, common, &kind, put("r.yaml", text), argc,
                                             argv);
    return err != LT_OK || *n == 0 ? err : lt_named_recipes_place(all, *n, common, &kind);
}

static void entries_override_common_options(void **state) {
    static char verb[] = "train", flag[] = "--seed=9";
    char *argv[] = {verb, flag, NULL};
    lt_named_recipe all[MOST] = {0};
    lt_recipe *common = calloc(1, sizeof *common);
    int n = -1;
    (void)state;
    assert_int_equal(read_named(all, &n, common, false,
                                "steps: 5\nseed: 3\nout: runs\ncheckpoint.mirror: away\nparts:\n"
                                "  one: {steps: 7, data.train: x}\n  two-2:\n  three_: {seed: 4}\n",
                                2, argv),
                     LT_OK);
    assert_int_equal(n, 3);
    assert_string_equal(all[0].name, "one");
    assert_string_equal(all[1].name, "two-2");
    assert_int_equal(all[0].recipe->steps, 7);
    assert_int_equal(all[1].recipe->steps, 5);
    assert_int_equal(common->steps, 5);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(all[i].recipe->seed, 9);
    }
    assert_string_equal(all[0].recipe->out, "runs/one");
    assert_string_equal(all[2].recipe->out, "runs/three_");
    assert_string_equal(all[1].recipe->mirror, "away/two-2");
    assert_string_equal(common->mirror, "away");
    lt_named_recipes_free(all, n);
    assert_int_equal(read_named(all, &n, common, false, "steps: 5\n", 1, argv), LT_OK);
    assert_int_equal(n, 0);
    free(common);
}

static void lists_are_refused(void **state) {
    static const struct {
        const char *text, *why;
        lt_err err;
        bool limited;
    } cases[] = {
        {"out: r\nparts: x\n", "r.yaml:2: parts: x: each item has a name and its options",
         LT_ERR_ARG, false},
        {"out: r\nparts:\n  A: {steps: 1}\n", "r.yaml:3: 'A' is not a name of an item", LT_ERR_ARG,
         false},
        {"out: r\nparts:\n  a: x\n", "r.yaml:3: parts: a: x: each item has a name", LT_ERR_ARG,
         false},
        {"out: r\nparts:\n  a: {name: x}\n", "parts: name: x: each item has a name", LT_ERR_ARG,
         false},
        {"out: r\nparts:\n  a: {step: 1}\n", "r.yaml:3", LT_ERR_ARG, false},
        {"out: r\nparts:\n  a:\n  b:\n  c:\n  d:\n", "more than 3 parts", LT_ERR_LIMIT, false},
        {"out: r\nparts:\n  a: {out: s}\n", "item a: out = s, but its folder is r/a", LT_ERR_ARG,
         false},
        {"parts:\n  a:\n", "no run folder: give --out FOLDER", LT_ERR_ARG, false},
        {"out: r\nparts:\n  a: {steps: 1}\n", "r.yaml:3: a may not have steps", LT_ERR_ARG, true}};
    static char verb[] = "train";
    char *argv[] = {verb, NULL};
    lt_named_recipe all[MOST] = {0};
    lt_recipe *common = calloc(1, sizeof *common);
    int n = 0;
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        fails(read_named(all, &n, common, cases[i].limited, cases[i].text, 1, argv), cases[i].err,
              cases[i].why);
        lt_named_recipes_free(all, n);
    }
    assert_int_equal(read_named(all, &n, common, false, "out: r\nparts:\n  a:\n", 1, argv), LT_OK);
    fails(lt_named_recipe_check(&all[0], "item"), LT_ERR_ARG,
          "item a: no data: it needs data.train");
    lt_named_recipes_free(all, n);
    free(common);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(flags_are_read),
                                       cmocka_unit_test(statuses_tell_the_failure),
                                       cmocka_unit_test(numbers_of_lists),
                                       cmocka_unit_test(lines_have_numbers),
                                       cmocka_unit_test(medians),
                                       cmocka_unit_test(invalid_text_is_replaced),
                                       cmocka_unit_test(biases_are_read),
                                       cmocka_unit_test(prompts_and_rates),
                                       cmocka_unit_test(new_files_are_checked),
                                       cmocka_unit_test(models_beside_the_served_one_have_names),
                                       cmocka_unit_test(drafts_need_their_kind),
                                       cmocka_unit_test(models_beside_the_served_one_are_loaded),
                                       cmocka_unit_test(served_models_are_listed),
                                       cmocka_unit_test(served_models_have_options),
                                       cmocka_unit_test(words_are_completed),
                                       cmocka_unit_test(entries_override_common_options),
                                       cmocka_unit_test(lists_are_refused)};
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
