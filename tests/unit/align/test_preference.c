/* Preferences as rows of tokens, and runs that learn from them: what a row holds, which
 * completion KTO pairs with which prompt, two steps of every objective, and TRL's steps
 * (tools/make_preference_goldens.py). */
#include "unit/align/runs.h"

#include <math.h>

#include "align/preference.h"
#include "align/train.h"
#include "data/chat_source.h"
#include "tensor/backend.h"
#include "tensor/ops.h"

static const char pairs[] =
    "{\"prompt\": \"Hi\", \"chosen\": \"Hello!\", \"rejected\": \"no\"}\n"
    "{\"chosen\": [{\"role\": \"user\", \"content\": \"2+2?\"}, {\"role\": \"assistant\", "
    "\"content\": \"4\"}], \"rejected\": [{\"role\": \"user\", \"content\": \"2+2?\"}, {\"role\": "
    "\"assistant\", \"content\": \"5, I think\"}], \"margin\": 0.5}\n"
    "\n"
    "{\"prompt\": [{\"role\": \"user\", \"content\": \"why\"}], \"chosen\": \"so\", \"rejected\": "
    "[{\"role\": \"assistant\", \"content\": \"because\"}]}\n"
    "{\"prompt\": \"a string says nothing here\", \"chosen\": [{\"role\": \"user\", \"content\": "
    "\"x\"}, {\"role\": \"assistant\", \"content\": \"y\"}], \"rejected\": [{\"role\": \"user\", "
    "\"content\": \"x\"}, {\"role\": \"assistant\", \"content\": \"z\"}]}\n";
static const char labels[] = "{\"prompt\": \"Hi\", \"completion\": \"Hello!\", \"label\": true}\n"
                             "{\"prompt\": \"2+2?\", \"completion\": \"5\", \"label\": false}\n"
                             "{\"prompt\": \"why\", \"completion\": \"because\", \"label\": true}\n"
                             "{\"prompt\": \"a\", \"completion\": \"b c\", \"label\": false}\n"
                             "{\"prompt\": \"one\", \"completion\": \"two\", \"label\": true}\n";
static const char quantiles[] =
    "{\"prompt\": \"a\", \"completion\": \"b\", \"reward\": 2, \"ref_rewards\": [1, 2, 3, 4]}\n"
    "{\"prompt\": \"a\", \"completion\": \"c\", \"reward\": 9, \"ref_rewards\": [1, 2, 3, 4]}\n";
static const char steps[] =
    "{\"prompt\": \"a\", \"completions\": [\"b\", \"c\"], \"labels\": [true, false]}\n"
    "{\"prompt\": \"b\", \"completions\": [\"d\"], \"labels\": [1]}\n";

/* ---- Rows ---- */

typedef struct {
    lt_tokenizer *tokenizer;
    lt_chat_source source;
    lt_preferences rows;
} lines;

static lt_err lines_open(lines *l, const char *name, lt_preferences_options o) {
    static char path[LT_PATH_BYTES];
    const char *paths[1] = {path};
    *l = (lines){.tokenizer = NULL};
    must(lt_tokenizer_open(&l->tokenizer, MODEL, NULL), MODEL);
    must(lt_chat_source_open(&l->source, &(lt_chat_source_options){.tokenizer = l->tokenizer,
                                                                   .tokenizer_path = MODEL,
                                                                   .template = "",
                                                                   .option = "template",
                                                                   .messages = "messages"}),
         MODEL);
    run_path(path, name);
    o.paths = paths;
    o.n_paths = 1;
    o.rows = &l->source.rows;
    o.longest = o.longest > 0 ? o.longest : 64;
    return lt_preferences_read(&l->rows, &o);
}

static void lines_close(lines *l) {
    lt_preferences_close(&l->rows);
    lt_chat_source_close(&l->source);
    lt_tokenizer_close(l->tokenizer);
}

/* A row is the prompt, the opening of the answer, and the answer with the end of its turn. */
static void expect_text(const lines *l, int64_t row, const char *prompt, const char *completion) {
    const lt_preferences *p = &l->rows;
    const int32_t *ids = p->ids + p->start[row];
    const int64_t n = lt_preferences_tokens(p, row), first = p->first[row];
    char *text = NULL;
    size_t bytes;
    must(lt_tokenizer_decode(l->tokenizer, (const uint32_t *)ids, (size_t)first, false, &text,
                             &bytes),
         "prompt");
    assert_string_equal(text, prompt);
    free(text);
    must(lt_tokenizer_decode(l->tokenizer, (const uint32_t *)ids + first, (size_t)(n - first),
                             false, &text, &bytes),
         "completion");
    assert_string_equal(text, completion);
    free(text);
}

static void texts_of_pairs(void **state) {
    lines l;
    (void)state;
    write_file("pairs.jsonl", pairs);
    must(lines_open(&l, "pairs.jsonl", (lt_preferences_options){.given = LT_ALIGN_SCORES}), "rows");
    assert_true(l.rows.n == 4 && l.rows.together == 2 && l.rows.left_out == 0);
    expect_text(&l, 0, "<s><|user|>Hi<|end|><|assistant|>", "Hello!<|end|>");
    expect_text(&l, 1, "<s><|user|>Hi<|end|><|assistant|>", "no<|end|>");
    expect_text(&l, 3, "<s><|user|>2+2?<|end|><|assistant|>", "5, I think<|end|>");
    expect_text(&l, 4, "<s><|user|>why<|end|><|assistant|>", "so<|end|>");
    expect_text(&l, 5, "<s><|user|>why<|end|><|assistant|>", "because<|end|>");
    expect_text(&l, 7, "<s><|user|>x<|end|><|assistant|>", "z<|end|>");
    assert_true(l.rows.examples[0].margin == 0.0 && l.rows.examples[1].margin == 0.5);
    lines_close(&l);
}

static void labels_and_quantiles(void **state) {
    lines l, other;
    (void)state;
    write_file("labels.jsonl", labels);
    write_file("quantiles.jsonl", quantiles);
    must(lines_open(&l, "labels.jsonl", (lt_preferences_options){.given = LT_ALIGN_SINGLE}), "l");
    assert_true(l.rows.n == 5 && l.rows.together == 1);
    assert_true(l.rows.examples[0].good && !l.rows.examples[1].good && l.rows.examples[4].good);
    must(lines_open(&other, "quantiles.jsonl",
                    (lt_preferences_options){.given = LT_ALIGN_SINGLE, .quantiles = true}),
         "q");
    assert_true(other.rows.examples[0].quantile == 0.5 && other.rows.examples[1].quantile == 1.0);
    assert_true(other.rows.examples[0].n_refs == 4 && other.rows.hash != l.rows.hash);
    lines_close(&other);
    lines_close(&l);
}

/* Each of these lines is skipped, and nothing else happens. The first does not begin with a
 * bracket, because a file that does is one array. */
static void hostile_lines(void **state) {
    static const char *const bad[] = {
        "{",
        "[]",
        "{}",
        "\"text\"",
        "{\"prompt\": \"a\", \"chosen\": null, \"rejected\": \"b\"}",
        "{\"prompt\": [], \"chosen\": [], \"rejected\": []}",
        "{\"chosen\": [], \"rejected\": [1]}",
        "{\"chosen\": [{\"role\": 1}], \"rejected\": [{\"role\": \"user\"}]}",
        "{\"chosen\": [{}], \"rejected\": [[]]}",
        "{\"chosen\": [{\"role\": \"user\", \"content\": \"a\"}, {\"role\": \"assistant\", "
        "\"content\": \"b\"}], \"rejected\": [{\"role\": \"user\", \"content\": \"other\"}, "
        "{\"role\": \"assistant\", \"content\": \"c\"}]}",
        "{\"prompt\": \"a\", \"chosen\": \"b\", \"rejected\": \"c\", \"system\": 3}",
        "{\"prompt\": {\"role\": \"user\"}, \"chosen\": \"a\", \"rejected\": \"b\"}",
        "{\"prompt\": \"a\", \"chosen\": \"\", \"rejected\": \"\"}",
        "{\"prompt\": \"a\", \"chosen\": \"b\", \"rejected\": \"c\", \"tools\": \"{\"}",
        "{\"prompt\": \"a\", \"chosen\": \"b\", \"rejected\": \"c\", \"margin\": \"x\"}",
        "{\"prompt\": \"a\", \"chosen\": \"b\", \"rejected\": \"c\", \"margin\": -1}",
        "{\"prompt\": \"a\", \"chosen\": \"b\", \"chosen\": \"d\", \"rejected\": \"c\"}",
        "{\"prompt\": \"a\", \"chosen\": \"b\", \"rejected\": \"c\", "
        "\"chat_template_kwargs\": 3}",
        "{\"prompt\": \"a\", \"chosen\": [{\"role\": \"assistant\", \"content\": "
        "[{\"type\": \"image\"}]}], \"rejected\": 1}"};
    enum { N = sizeof bad / sizeof *bad };
    static const char *const told[][2] = {
        /* null is as good as none. */
        {"{\"prompt\": \"a\", \"chosen\": null, \"rejected\": \"b\"}", "no member 'chosen'"},
        {"{\"prompt\": \"a\"}", "no member 'chosen'"},
        {"{\"prompt\": \"a\", \"chosen\": \"b\"}", "no member 'rejected'"},
        {"{\"prompt\": \"a\", \"chosen\": \"b\", \"rejected\": \"b\"}",
         "chosen and rejected are the same text"}};
    char text[4096] = "";
    lines l;
    (void)state;
    for (size_t i = 0; i < N; i++) {
        (void)snprintf(text + strlen(text), sizeof text - strlen(text), "%s\n", bad[i]);
    }
    (void)snprintf(text + strlen(text), sizeof text - strlen(text), "%s", pairs);
    write_file("hostile.jsonl", text);
    must(lines_open(&l, "hostile.jsonl", (lt_preferences_options){.given = LT_ALIGN_SCORES}), "l");
    assert_int_equal(l.rows.left_out, N);
    assert_int_equal(l.rows.n, 4);
    lines_close(&l);
    assert_int_equal(lines_open(&l, "hostile.jsonl",
                                (lt_preferences_options){.given = LT_ALIGN_SINGLE,
                                                         .bad_rows = LT_BAD_ROWS_FAIL}),
                     LT_ERR_FORMAT);
    says("hostile.jsonl:1: column 1: string or '}' expected");
    lines_close(&l);
    for (size_t i = 0; i < sizeof told / sizeof *told; i++) {
        (void)snprintf(text, sizeof text, "%s\n", told[i][0]);
        write_file("told.jsonl", text);
        assert_int_equal(lines_open(&l, "told.jsonl",
                                    (lt_preferences_options){.given = LT_ALIGN_PAIR,
                                                             .bad_rows = LT_BAD_ROWS_FAIL}),
                         LT_ERR_FORMAT);
        says(told[i][1]);
        lines_close(&l);
    }
}

/* A label is true or false, and a quantile needs rewards that are numbers. */
static void hostile_singles(void **state) {
    static const struct {
        const char *more, *says;
        bool quantiles;
    } rows[] = {
        {"", "'label' is neither true nor false", false},
        {", \"label\": 1", "'label' is neither true nor false", false},
        {", \"label\": null", "'label' is neither true nor false", false},
        {", \"label\": true", "reward", true},
        {", \"reward\": 1", "'ref_rewards' is not a list of rewards", true},
        {", \"reward\": 1, \"ref_rewards\": []", "'ref_rewards' is not a list of rewards", true},
        {", \"reward\": 1, \"ref_rewards\": [1, \"2\"]", "ref_rewards[1] is not a number", true},
        {", \"reward\": \"1\", \"ref_rewards\": [1]", "reward", true},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char text[256];
        lines l;
        (void)snprintf(text, sizeof text, "{\"prompt\": \"a\", \"completion\": \"b\"%s}\n",
                       rows[i].more);
        write_file("single.jsonl", text);
        assert_int_not_equal(lines_open(&l, "single.jsonl",
                                        (lt_preferences_options){.given = LT_ALIGN_SINGLE,
                                                                 .bad_rows = LT_BAD_ROWS_FAIL,
                                                                 .quantiles = rows[i].quantiles}),
                             LT_OK);
        says("single.jsonl:1: ");
        says(rows[i].says);
        lines_close(&l);
    }
}

/* Rows above the limit are cut, skipped or refused; a row that is cut keeps its first tokens. */
static void long_rows(void **state) {
    lines whole, cut, none;
    (void)state;
    write_file("pairs.jsonl", pairs);
    must(lines_open(&whole, "pairs.jsonl", (lt_preferences_options){.given = LT_ALIGN_PAIR}), "w");
    const int64_t limit = lt_preferences_tokens(&whole.rows, 3) - 1;
    must(lines_open(&cut, "pairs.jsonl",
                    (lt_preferences_options){.given = LT_ALIGN_PAIR, .longest = limit}),
         "cut");
    assert_true(cut.rows.n == 4 && cut.rows.cut == 1 && cut.rows.hash != whole.rows.hash);
    assert_int_equal(lt_preferences_tokens(&cut.rows, 3), limit);
    assert_memory_equal(cut.rows.ids + cut.rows.start[3], whole.rows.ids + whole.rows.start[3],
                        (size_t)limit * sizeof(int32_t));
    assert_int_equal(lines_open(&none, "pairs.jsonl",
                                (lt_preferences_options){.given = LT_ALIGN_PAIR, .longest = 3}),
                     LT_ERR_FORMAT);
    assert_int_equal(none.rows.left_out, 4);
    lines_close(&none);
    assert_int_equal(lines_open(&none, "pairs.jsonl",
                                (lt_preferences_options){.given = LT_ALIGN_SCORES,
                                                         .longest = limit,
                                                         .too_long = LT_TOO_LONG_FAIL}),
                     LT_ERR_FORMAT);
    assert_non_null(strstr(lt_error_message(), "pairs.jsonl:2: 'rejected' has"));
    lines_close(&none);
    lines_close(&cut);
    lines_close(&whole);
}

/* Files that differ in one number of one example have different hashes. */
static void the_hash_covers_each_number(void **state) {
#define PAIR(chosen, rejected, more)                                                               \
    "{\"prompt\": \"a\", \"chosen\": \"" chosen "\", \"rejected\": \"" rejected "\"" more "}\n"
#define LABEL(label) "{\"prompt\": \"a\", \"completion\": \"b\", \"label\": " label "}\n"
#define REWARD(reward, refs)                                                                       \
    "{\"prompt\": \"a\", \"completion\": \"b\", \"reward\": " reward ", \"ref_rewards\": [" refs   \
    "]}\n"
#define MANY PAIR("some words and more of them", "others", "")
    static const struct {
        lt_align_given given;
        bool quantiles;
        const char *one, *other;
    } rows[] = {
        {LT_ALIGN_PAIR, false, MANY PAIR("b", "c", ""), MANY PAIR("d", "c", "")},
        {LT_ALIGN_PAIR, false, MANY PAIR("b", "c", ""), MANY PAIR("b", "d", "")},
        {LT_ALIGN_PAIR, false, MANY PAIR("b", "c", ""), PAIR("b", "c", "") MANY},
        {LT_ALIGN_SCORES, false, PAIR("b", "c", ""), PAIR("b", "c", ", \"margin\": 1")},
        {LT_ALIGN_SINGLE, false, LABEL("true"), LABEL("false")},
        {LT_ALIGN_SINGLE, true, REWARD("1", "1, 2"), REWARD("2", "1, 2")},
        {LT_ALIGN_SINGLE, true, REWARD("1", "1, 2"), REWARD("1", "1, 1, 2, 3")}, /* n_refs */
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const lt_preferences_options o = {.given = rows[i].given, .quantiles = rows[i].quantiles};
        lines one, other;
        write_file("hash.jsonl", rows[i].one);
        must(lines_open(&one, "hash.jsonl", o), rows[i].one);
        write_file("hash.jsonl", rows[i].other);
        must(lines_open(&other, "hash.jsonl", o), rows[i].other);
        if (one.rows.hash == other.rows.hash) {
            fail_msg("one hash of %s and of %s", rows[i].one, rows[i].other);
        }
        const size_t n = (size_t)(one.rows.n * one.rows.together); /* Four arrays. */
        assert_int_equal(one.rows.bytes, (size_t)one.rows.n * sizeof(lt_preference) +
                                             (size_t)one.rows.start[n] * sizeof(int32_t) +
                                             (n + 1) * sizeof *one.rows.start +
                                             n * sizeof *one.rows.first);
        lines_close(&other);
        lines_close(&one);
    }
}

/* Labels are the tokens of the completion, each at the token before it; a score has one, at the
 * end. */
static void labels_of_rows(void **state) {
    enum { SEQ = 24 };
    const lt_model_spec spec = {.pad_id = 1};
    int32_t tokens[SEQ], at[SEQ];
    lines l;
    size_t n;
    lt_preference_objective p = {.row = lt_align_objectives(&n), .block = 4};
    (void)state;
    write_file("pairs.jsonl", pairs);
    must(lines_open(&l, "pairs.jsonl", (lt_preferences_options){.given = LT_ALIGN_PAIR}), "rows");
    const lt_preference_set set = {.rows = l.rows};
    const int64_t first = l.rows.first[1], end = lt_preferences_tokens(&l.rows, 1);
    lt_preference_row(&p, &set, &spec, 1, SEQ, tokens, at);
    for (int64_t i = 0; i < SEQ; i++) {
        const bool labelled = i + 1 >= first && i + 1 < end;
        assert_int_equal(at[i], labelled ? tokens[i + 1] : -1);
        assert_int_equal(tokens[i], i < end ? l.rows.ids[l.rows.start[1] + i] : 0);
    }
    must(lt_align_find(&p.row, "reward"), "reward");
    lt_preference_row(&p, &set, &spec, 1, SEQ, tokens, at);
    for (int64_t i = 0; i < SEQ; i++) { /* The last token is <|end|>, which is padding here. */
        assert_int_equal(at[i], i == end - 2 ? 0 : -1);
    }
    lines_close(&l);
}

/* Five examples in blocks of two: 1, 0, 3, 2, and the last is paired with the one before it. */
static void mismatched_rows(void **state) {
    enum { SEQ = 24 };
    static const int64_t partners[] = {1, 0, 3, 2, 3};
    const lt_model_spec spec = {.pad_id = -1};
    int32_t tokens[SEQ], at[SEQ];
    lt_preference_objective p = {.block = 2};
    lines l;
    (void)state;
    must(lt_align_find(&p.row, "kto"), "kto");
    write_file("labels.jsonl", labels);
    must(lines_open(&l, "labels.jsonl", (lt_preferences_options){.given = LT_ALIGN_SINGLE}), "l");
    const lt_preference_set set = {.rows = l.rows};
    for (int64_t i = 0; i < 5; i++) {
        const int64_t other = partners[i], first = l.rows.first[i];
        const int64_t n = lt_preferences_tokens(&l.rows, other) - l.rows.first[other];
        lt_preference_row(&p, &set, &spec, 5 + i, SEQ, tokens, at);
        assert_memory_equal(tokens, l.rows.ids + l.rows.start[i], (size_t)first * sizeof *tokens);
        assert_memory_equal(tokens + first, l.rows.ids + l.rows.start[other] + l.rows.first[other],
                            (size_t)n * sizeof *tokens);
        assert_true(at[first - 2] == -1 && at[first - 1] == tokens[first]);
        assert_true(at[first + n - 2] == 1 && at[first + n - 1] == -1);
    }
    lines_close(&l);
}

/* ---- Runs ---- */

static lt_err learn(const char *out, const char *file, const char *options) {
    lt_recipe *r = recipe_of(out, file, options);
    const lt_err err = lt_align_train(r, NULL);
    free(r);
    return err;
}

static void every_objective_learns(void **state) {
    size_t n;
    const lt_align_objective *row = lt_align_objectives(&n);
    (void)state;
    write_file("pairs.jsonl", pairs);
    write_file("labels.jsonl", labels);
    write_file("quantiles.jsonl", quantiles);
    write_file("steps.jsonl", steps);
    for (size_t i = 0; i < n; i++) {
        char options[160];
        const char *file = row[i].given == LT_ALIGN_STEPS    ? "steps.jsonl"
                           : row[i].given != LT_ALIGN_SINGLE ? "pairs.jsonl"
                           : row[i].weights                  ? "labels.jsonl"
                                                             : "quantiles.jsonl";
        (void)snprintf(options, sizeof options,
                       "objective.kind=%s steps=2 batch.size=2 batch.micro=1 data.seq=32 "
                       "data.valid=%s/%s",
                       row[i].name, run_root, file);
        must(learn(row[i].name, file, options), row[i].name);
    }
}

/* Steps without a prompt, without a text, or with other labels than steps are named. */
static void hostile_steps(void **state) {
    static const struct {
        const char *line, *why;
    } rows[] = {
        {"{\"completions\": [\"b\"], \"labels\": [true]}",
         "'prompt' is neither a string nor a list of messages"},
        {"{\"prompt\": 3, \"completions\": [\"b\"], \"labels\": [true]}",
         "'prompt' is neither a string nor a list of messages"},
        {"{\"prompt\": \"a\", \"completions\": [\"b\", 4], \"labels\": [true, false]}",
         "completions[1] is not a text"},
        {"{\"prompt\": \"a\", \"completions\": [\"b\"], \"labels\": [2]}",
         "labels[0] is neither true nor false"},
        {"{\"prompt\": \"a\", \"completions\": [\"b\"], \"labels\": [\"true\"]}",
         "labels[0] is neither true nor false"},
        {"{\"prompt\": \"a\", \"completions\": [\"b\"], \"labels\": []}",
         "they have 1 and 0 elements"},
        {"{\"prompt\": \"a\", \"completions\": [], \"labels\": []}", "they have 0 and 0 elements"},
        {"{\"prompt\": \"a\", \"completions\": [\"b\", \"c\"], \"labels\": [null, null]}",
         "no step with a label ends within its "},
    };
    size_t n, of_steps = 0;
    const lt_align_objective *objectives = lt_align_objectives(&n);
    char options[160], text[1024];
    (void)state;
    while (of_steps < n && objectives[of_steps].given != LT_ALIGN_STEPS) {
        of_steps++;
    }
    assert_true(of_steps < n);
    (void)snprintf(options, sizeof options,
                   "objective.kind=%s steps=1 batch.size=1 data.seq=32 data.bad_rows=fail",
                   objectives[of_steps].name);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        (void)snprintf(text, sizeof text, "%s%s\n", steps, rows[i].line);
        write_file("bad-steps.jsonl", text);
        assert_int_equal(learn("bad-steps", "bad-steps.jsonl", options), LT_ERR_FORMAT);
        says("bad-steps.jsonl:3: ");
        says(rows[i].why);
    }
}

/* ---- TRL's runs ---- */

/* Compare a metric of a step with the line that has it. TRL computed in double and prints
 * losses and metrics in float; rewards are differences of log-probabilities, and as exact as
 * those are. */
static void expect_metric(const char *run, size_t step, const char *name, double want, double scale,
                          const json_t *train, const json_t *preference) {
    const json_t *of = json_object_get(train, name) != NULL ? train : preference;
    const json_t *value = json_object_get(of, name);
    const double got = json_number_value(value),
                 most = strcmp(name, "loss") == 0        ? 1e-5 * fabs(want)
                        : strcmp(name, "grad_norm") == 0 ? 1e-4 * fabs(want)
                                                         : 1e-6 * scale;
    if (!json_is_number(value) || !(fabs(got - want) <= most)) {
        fail_msg("%s, step %zu: %s is %.9g, TRL's %.9g", run, step + 1, name, got, want);
    }
}

static double scale_of(const json_t *want) {
    const char *names[] = {"logps/chosen", "logps/rejected"};
    double scale = 10.0;
    for (int i = 0; i < 2; i++) {
        scale = fmax(scale, fabs(json_number_value(json_object_get(want, names[i]))));
    }
    return scale;
}

/* The first steps of a run, in passes of two rows. */
static void run_as_trl(const json_t *golden, const json_t *run, bool of_steps) {
    const char *name = json_string_value(json_object_get(run, "name")), *key;
    char out[64];
    const char *labels_of = json_string_value(json_object_get(run, "data"));
    /* In TRL, KTO's reference point is 0 for ten steps. */
    const size_t n = strncmp(name, "kto", 3) == 0 ? 12 : 4;
    const bool scores = strncmp(name, "reward", 6) == 0,
               singles = labels_of != NULL && strcmp(labels_of, "labels") == 0;
    (void)snprintf(out, sizeof out, "trl-%s", name);
    lt_recipe *r = recipe_of(out, "none",
                             "batch.micro=2 optim.beta2=0.999 data.shuffle=none "
                             "data.seq=96 batch.size=4 optim.lr=1e-3");
    json_t *value, *train, *preference;
    assert_int_equal(json_integer_value(json_object_get(golden, "seq")), 96);
    run_set(r, "steps", n == 12 ? "12" : "4");
    run_set(r, "data.tokenizer", MODEL);
    run_set(r, "data.train",
            of_steps  ? "tests/golden/prm/steps.jsonl"
            : singles ? "tests/golden/preference/labels.jsonl"
                      : "tests/golden/preference/pairs.jsonl");
    run_set(r, "model.init",
            of_steps ? "tests/golden/prm/model"
            : scores ? "tests/golden/preference/reward"
                     : MODEL);
    if (json_is_true(json_object_get(run, "lora"))) {
        run_set(r, "lora.init",
                of_steps ? "tests/golden/prm/adapter"
                : scores ? "tests/golden/preference/reward-adapter"
                         : MODEL "/adapter-all");
    }
    json_object_foreach(json_object_get(run, "options"), key, value) {
        char number[32];
        (void)snprintf(number, sizeof number, "%.17g", json_number_value(value));
        run_set(r, key, json_is_string(value) ? json_string_value(value) : number);
    }
    must(lt_align_train(r, NULL), name);
    train = run_lines(out, "train");
    preference = run_lines(out, "preference");
    assert_true(json_array_size(train) == n && json_array_size(preference) == n);
    for (size_t i = 0; i < n; i++) {
        const json_t *want = json_array_get(json_object_get(run, "steps"), i);
        json_object_foreach((json_t *)(uintptr_t)want, key, value) {
            if (strcmp(name, "apo_zero") != 0 || strcmp(key, "kl") != 0) { /* TRL reports none. */
                expect_metric(name, i, key, json_number_value(value), scale_of(want),
                              json_array_get(train, i), json_array_get(preference, i));
            }
        }
    }
    json_decref(train);
    json_decref(preference);
    free(r);
}

static void trl_takes_the_same_steps(void **state) {
    static const char *const files[] = {"tests/golden/preference/truth.json",
                                        "tests/golden/prm/truth.json"};
    (void)state;
    for (int f = 0; f < 2; f++) {
        json_t *golden = NULL, *run;
        size_t i;
        must(lt_json_load(&golden, files[f], 1 << 20), files[f]);
        json_array_foreach(json_object_get(golden, "runs"), i, run) {
            run_as_trl(golden, run, f == 1);
        }
        assert_true(i > 2);
        json_decref(golden);
    }
}

/* What a recipe cannot learn from. X64: a separator of 64 bytes. */
static void refusals(void **state) {
#define X16 "xxxxxxxxxxxxxxxx"
#define X64 X16 X16 X16 X16
    static const struct {
        const char *file, *options, *says;
    } rows[] = {
        {"text.txt", "objective.kind=dpo", "learns from JSON lines, in a file named .jsonl"},
        {"pairs.jsonl:2", "objective.kind=dpo", "has weight 2: files of preferences"},
        {"pairs.jsonl", "objective.kind=dpo data.valid=none.jsonl:0",
         "data.valid: 'none.jsonl' with weight 0"},
        {"labels.jsonl", "objective.kind=kto objective.good=0 objective.bad=0",
         "objective.good and objective.bad are both 0"},
        {"single.jsonl", "objective.kind=kto", "1 example: kto compares each completion"},
        {"steps.jsonl", "objective.kind=prm objective.separator=" X64,
         "objective.separator has 64 bytes; at most 63"},
    };
    (void)state;
    write_file("pairs.jsonl", pairs);
    write_file("labels.jsonl", labels);
    write_file("steps.jsonl", steps);
    write_file("text.txt", "text");
    write_file("single.jsonl", "{\"prompt\": \"a\", \"completion\": \"b\", \"label\": true}\n");
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char out[32], options[256];
        (void)snprintf(out, sizeof out, "refused%zu", i);
        (void)snprintf(options, sizeof options, "steps=1 batch.size=2 data.seq=32 %s",
                       rows[i].options);
        assert_int_not_equal(learn(out, rows[i].file, options), LT_OK);
        says(rows[i].says);
    }
    must(learn("weightless", "labels.jsonl",
               "steps=1 batch.size=2 data.seq=32 objective.kind=kto objective.good=0"),
         "one weight of 0");
    must(learn("separated", "steps.jsonl",
               "steps=1 batch.size=2 data.seq=128 objective.kind=prm objective.separator=" X16 X16
               "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"),
         "a separator of 63 bytes");
}

static lt_err spoiling_adamw(lt_queue *q, const lt_adamw_args *a) {
    LT_TRY(lt_backend_cpu()->ops->adamw(q, a));
    for (int64_t i = 0; i < a->p.shape[0]; i++) {
        ((float *)a->p.data)[i] = NAN;
    }
    return LT_OK;
}

/* The first update ruins the weights: the losses of steps 2 and 3 are not finite, their updates
 * are skipped, and the run ends like any other that diverges. */
static void losses_that_are_not_finite_are_skipped(void **state) {
    static const char *const rows[][2] = {
        {"dpo", "pairs.jsonl"}, {"kto", "labels.jsonl"}, {"qrpo", "quantiles.jsonl"}};
    lt_ops ops = *lt_backend_cpu()->ops;
    lt_backend spoiling = *lt_backend_cpu();
    (void)state;
    ops.adamw = spoiling_adamw;
    spoiling.ops = &ops;
    write_file("pairs.jsonl", pairs);
    write_file("labels.jsonl", labels);
    write_file("quantiles.jsonl", quantiles);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char out[32], options[128];
        (void)snprintf(out, sizeof out, "spoiled-%s", rows[i][0]);
        (void)snprintf(options, sizeof options,
                       "steps=9 batch.size=2 data.seq=32 guard.limit=2 objective.kind=%s",
                       rows[i][0]);
        lt_recipe *r = recipe_of(out, rows[i][1], options);
        assert_int_equal(lt_align_train(r, device_of(&spoiling)), LT_ERR_NUMERIC);
        says("step 3: 2 updates in a row were skipped");
        json_t *skips = run_lines(out, "skip");
        assert_int_equal(json_array_size(skips), 1); /* The second one ends the run. */
        json_decref(skips);
        free(r);
    }
}

static void a_caller_without_objectives_says_so(void **state) {
    lt_recipe *r = recipe_of("none", "pairs.jsonl", "objective.kind=dpo steps=1 data.seq=32");
    (void)state;
    assert_int_equal(lt_run_training(r, NULL), LT_ERR_UNSUPPORTED);
    assert_non_null(strstr(lt_error_message(), "objective.kind = dpo"));
    free(r);
    assert_int_equal(learn("bad", "missing.jsonl", "objective.kind=dpo steps=1 data.seq=32"),
                     LT_ERR_NOT_FOUND);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(texts_of_pairs),
        cmocka_unit_test(labels_and_quantiles),
        cmocka_unit_test(long_rows),
        cmocka_unit_test(the_hash_covers_each_number),
        cmocka_unit_test(hostile_lines),
        cmocka_unit_test(hostile_singles),
        cmocka_unit_test(hostile_steps),
        cmocka_unit_test(labels_of_rows),
        cmocka_unit_test(mismatched_rows),
        cmocka_unit_test(every_objective_learns),
        cmocka_unit_test(trl_takes_the_same_steps),
        cmocka_unit_test(refusals),
        cmocka_unit_test(losses_that_are_not_finite_are_skipped),
        cmocka_unit_test(a_caller_without_objectives_says_so),
    };
    return cmocka_run_group_tests(tests, run_root_make, run_root_remove);
}
