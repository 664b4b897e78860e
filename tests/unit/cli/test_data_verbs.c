/* `lateen tokenize`, `tokenizer train`, `data make` and `data check`: what they print beside values
 * that follow from the definitions of BPE, pass@k and maj@k, and what they refuse. */
#include "unit/cli/verb_run.h"

#include "base/error.h"
#include "base/file.h"
#include "unit/scratch_folder.h"

int lt_verb_tokenize(int argc, char **argv);
int lt_verb_tokenizer(int argc, char **argv);
int lt_verb_data(int argc, char **argv);

static void put(const char *name, const char *text) {
    char path[LT_PATH_BYTES];
    assert_int_equal(lt_path_join(path, folder, name), LT_OK);
    assert_int_equal(lt_file_write_atomic(path, text, strlen(text)), LT_OK);
}

/* Split the arguments; @ stands for the folder. */
static const char *words(const char *text) {
    static char out[2048];
    size_t n = 0;
    for (const char *p = text; *p != '\0'; p++) {
        n += (size_t)snprintf(out + n, sizeof out - n, *p == '@' ? "%s" : "%.1s",
                              *p == '@' ? folder : p);
    }
    return out;
}

static void prints(int (*verb)(int, char **), const char *text, const char *input,
                   const char *want) {
    run_input = input;
    ran r = run_verb(verb, words(text));
    run_input = "";
    if (r.status != LT_EXIT_DONE || strcmp(r.out, want) != 0) {
        fail_msg("%s: status %d, '%s' and not '%s': %s", text, r.status, r.out, want, r.err);
    }
    ran_close(&r);
}

static void refuses(int (*verb)(int, char **), const char *text, const char *input, int status,
                    const char *before, const char *why) {
    run_input = input;
    ran r = run_verb(verb, words(text));
    run_input = "";
    if (r.status != status || strcmp(r.out, before) != 0 || strstr(r.err, why) == NULL) {
        fail_msg("%s: status %d, not %d with '%s' and '%s': %s%s", text, r.status, status, before,
                 why, r.out, r.err);
    }
    ran_close(&r);
}

/* ---- tokenize ---- */

/* Pieces a, b, ab, a line break, U+FFFD and quotes; the only merge joins a and b. */
static const char tokenizer[] =
    "{\"version\": \"1.0\", \"added_tokens\": [{\"id\": 7, \"content\": \"<s>\", \"special\": "
    "true, \"single_word\": false, \"lstrip\": false, \"rstrip\": false, \"normalized\": false}], "
    "\"normalizer\": null, \"pre_tokenizer\": null, \"post_processor\": null, \"decoder\": "
    "{\"type\": \"Fuse\"}, "
    "\"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": 0, \"b\": 1, \"ab\": 2, \"\\n\": 3, "
    "\"\\ufffd\": 4, \"\\\"\": 5, \"\\\\\": 6, \"<s>\": 7}, \"merges\": [\"a b\"]}}";

#define TOKENIZE "tokenize --tokenizer @/t.json "

static void text_becomes_ids(void **state) {
    (void)state;
    put("t.json", tokenizer);
    prints(lt_verb_tokenize, TOKENIZE "--text aabb", "", "{\"ids\": [0, 2, 1]}\n");
    prints(lt_verb_tokenize, TOKENIZE "--text=ab<s>a", "", "{\"ids\": [2, 7, 0]}\n");
    prints(lt_verb_tokenize, TOKENIZE "--text=", "", "{\"ids\": []}\n");
    prints(lt_verb_tokenize,
           TOKENIZE "--text a\xff"
                    "b\xfe",
           "", "{\"ids\": [0, 4, 1, 4]}\n");
    refuses(lt_verb_tokenize,
            TOKENIZE "--invalid-utf8 fail --text ab\xff"
                     "b\xfe",
            "", LT_EXIT_FAILED, "", "--text: invalid UTF-8: 2 parts, the first at byte 2 (0xff)");
}

/* A byte-order mark counts only before the first line; blank lines and a missing final line break
 * change nothing, except for line numbers. */
static void lines_become_ids(void **state) {
    (void)state;
    prints(lt_verb_tokenize, TOKENIZE "--jsonl",
           "\xEF\xBB\xBF{\"text\": \"ab\"}\r\n \t\r\n\n{\"id\": [1], \"text\": \"b\\na\"}\n"
           "{\"text\": \"a\", \"text\": \"b\"}",
           "{\"ids\": [2]}\n{\"ids\": [1, 3, 0]}\n{\"ids\": [1]}\n");
    prints(lt_verb_tokenize, TOKENIZE "--jsonl", "", "");
    prints(lt_verb_tokenize, TOKENIZE "--jsonl", "{\"text\": \"a\\ud800b\"}\n",
           "{\"ids\": [0, 4, 1]}\n");
    /* The lines before a bad line are written. */
    refuses(lt_verb_tokenize, TOKENIZE "--jsonl", "{\"text\": \"ab\"}\n\n{\"texts\": \"b\"}\n",
            LT_EXIT_FAILED, "{\"ids\": [2]}\n", "line 3: standard input: an object without");
    refuses(lt_verb_tokenize, TOKENIZE "--jsonl --invalid-utf8 fail",
            "{\"text\": \"ab\"}\n{\"text\": \"ab\\udc00\"}\n", LT_EXIT_FAILED, "{\"ids\": [2]}\n",
            "(a lone surrogate escape)");
    run_input = "{\"text\": \"a\xff\"}\n{\"text\": \"a\"}\n{\"text\": \"\xff\xff\\ud800\"}\n";
    ran r = run_verb(lt_verb_tokenize, words(TOKENIZE "--jsonl"));
    run_input = "";
    assert_int_equal(r.status, LT_EXIT_DONE);
    assert_non_null(strstr(r.err, "invalid UTF-8: 4 parts"));
    assert_non_null(strstr(r.err, "in 2 lines, the first in line 1 at byte 1"));
    ran_close(&r);
}

static void ids_become_text(void **state) {
    (void)state;
    prints(lt_verb_tokenize, TOKENIZE "--decode",
           "0 1,2\t ,0\r\n[2, 0]\n{\"ids\": [1]}\n\n  7 1\n 2", "ababa\naba\nb\n\n<s>b\nab\n");
    prints(lt_verb_tokenize, TOKENIZE "--decode --no-special", "7 1\n", "b\n");
    prints(lt_verb_tokenize, TOKENIZE "--decode --jsonl", "5 6 3 0\n",
           "{\"text\": \"\\u0022\\u005c\\u000aa\"}\n");
    refuses(lt_verb_tokenize, TOKENIZE "--decode", "0\n1 x2\n", LT_EXIT_USAGE, "a\n",
            "standard input, line 2: 'x2' is not a token id");
    refuses(lt_verb_tokenize, TOKENIZE "--decode", "4294967295\n", LT_EXIT_USAGE, "",
            "'4294967295' is not a token id");
    refuses(lt_verb_tokenize, TOKENIZE "--decode", "18446744073709551617\n", LT_EXIT_USAGE, "",
            "'18446744073709551617' is not a token id");
    refuses(lt_verb_tokenize, TOKENIZE "--decode", "[0, -1]\n", LT_EXIT_FAILED, "",
            "ids[1] is not a token id");
    refuses(lt_verb_tokenize, TOKENIZE "--decode", "[4294967295]\n", LT_EXIT_FAILED, "",
            "ids[0] is not a token id");
    refuses(lt_verb_tokenize, TOKENIZE "--decode", "[1.5]\n", LT_EXIT_FAILED, "",
            "ids[0] is not a token id");
    refuses(lt_verb_tokenize, TOKENIZE "--decode", "{\"id\": [1]}\n", LT_EXIT_FAILED, "",
            "not a list of ids");
}

/* A line that is longer than several of the reader's buffers, of 1 MiB each: all of its ids
 * appear, once. */
static void long_lines_are_read(void **state) {
    enum { IDS = 1300000 };
    char *line = malloc(2 * IDS + 2), *text = malloc(IDS + 3);
    (void)state;
    assert_true(line != NULL && text != NULL);
    for (int i = 0; i < IDS; i++) {
        line[2 * i] = i % 7 == 0 ? '1' : '0';
        line[2 * i + 1] = i + 1 < IDS ? ' ' : '\n';
        text[i] = i % 7 == 0 ? 'b' : 'a';
    }
    strcpy(line + 2 * IDS, "1");
    strcpy(text + IDS, "\nb");
    run_input = line;
    ran r = run_verb(lt_verb_tokenize, words(TOKENIZE "--decode"));
    run_input = "";
    assert_int_equal(r.status, LT_EXIT_DONE);
    assert_int_equal(strlen(r.out), IDS + 3);
    assert_int_equal(strncmp(r.out, text, IDS + 2), 0);
    ran_close(&r);
    free(line);
    free(text);
}

/* The file's "truncation" applies to texts and lines, as in its own package. */
static void texts_are_cut_as_the_file_says(void **state) {
    char *cut = strdup(tokenizer), *at, *whole;
    static const char truncation[] = "\"truncation\": {\"direction\": \"Right\", \"max_length\": "
                                     "2, \"strategy\": \"LongestFirst\", \"stride\": 0}, ";
    (void)state;
    at = strstr(cut, "\"normalizer\"");
    assert_non_null(at);
    whole = malloc(strlen(cut) + sizeof truncation);
    (void)sprintf(whole, "%.*s%s%s", (int)(at - cut), cut, truncation, at);
    put("cut.json", whole);
    free(whole);
    free(cut);
    prints(lt_verb_tokenize, "tokenize --tokenizer @/cut.json --text aaba", "",
           "{\"ids\": [0, 2]}\n");
    prints(lt_verb_tokenize, "tokenize --tokenizer @/cut.json --jsonl", "{\"text\": \"bbb\"}\n",
           "{\"ids\": [1, 1]}\n");
}

static void modes_exclude_each_other(void **state) {
    static const struct {
        const char *words, *why;
    } cases[] = {{TOKENIZE, "name input files, or say one of --jsonl, --text and --decode"},
                 {TOKENIZE "--text a --jsonl", "name input files, or say one of"},
                 {TOKENIZE "--text a --decode", "name input files, or say one of"},
                 {TOKENIZE "x.txt --jsonl --out p", "name input files, or say one of"},
                 {TOKENIZE "x.txt", "tokenize: input files need --out PREFIX"},
                 {TOKENIZE "--jsonl --out p", "tokenize: --out needs input files"},
                 {"tokenize --text a", "no tokenizer: give --tokenizer with a file or folder"},
                 {TOKENIZE "--text a --chat", "--chat needs input files or --jsonl"},
                 {TOKENIZE "--decode --chat", "--chat needs input files or --jsonl"},
                 {TOKENIZE "--jsonl --chat --no-special", "--chat does not go with --no-special"}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        refuses(lt_verb_tokenize, cases[i].words, "", LT_EXIT_USAGE, "", cases[i].why);
    }
}

/* ---- tokenize FILE --out SHARD ---- */

/* The command prints these lines first, and the shard's ids are these, in 16 bits each. */
static void makes(const char *text, const char *want, const uint16_t *ids, size_t n) {
    char path[LT_PATH_BYTES], *data = NULL;
    size_t bytes = 0;
    ran r = run_verb(lt_verb_tokenize, words(text));
    if (r.status != LT_EXIT_DONE || strncmp(r.out, words(want), strlen(words(want))) != 0) {
        fail_msg("%s: status %d, '%s' and not '%s': %s", text, r.status, r.out, want, r.err);
    }
    ran_close(&r);
    assert_int_equal(lt_path_join(path, folder, "shard.bin"), LT_OK);
    assert_int_equal(lt_file_read(&data, &bytes, path, 4096), LT_OK);
    assert_int_equal(bytes, 2 * n);
    assert_memory_equal(data, ids, bytes);
    free(data);
}

static void files_become_shards(void **state) {
    static const uint16_t plain[] = {2, 0, 2}, marked[] = {2, 7, 0, 2, 7},
                          twice[] = {2, 0, 2, 2, 0, 2}, masked[] = {0, 2, 1},
                          begun[] = {7, 2, 7, 0, 2};
    char why[400];
    (void)state;
    put("x.jsonl", "{\"text\": \"ab\"}\n{\"text\": \"\"}\n{\"text\": \"aab\"}\n");
    put("y.jsonl", "{\"ask\": \"a\", \"text\": \"abb\"}\n");
    makes(TOKENIZE "@/x.jsonl --out @/shard --threads 1",
          "documents    2 (1 empty ones left out)\ntokens       3\nbytes/token  1.667\ntime ",
          plain, 3);
    makes(TOKENIZE "@/x.jsonl --out @/shard --threads 1",
          "@/shard: already complete\ndocuments    2 (1 empty ones left out)\ntokens       3\n"
          "bytes/token  1.667\nwritten      @/shard.bin  @/shard.idx  @/shard.json\n",
          plain, 3);
    makes(TOKENIZE "@/x.jsonl --out @/shard --threads 1 --overwrite --eod <s>",
          "documents    2 (1 empty ones left out)\ntokens       5\nbytes/token  1.000\n", marked,
          5);
    makes(TOKENIZE "@/x.jsonl @/x.jsonl --out @/shard --threads 2 --overwrite",
          "documents    4 (2 empty ones left out)\ntokens       6\nbytes/token  1.667\n", twice, 6);
    makes(TOKENIZE "@/y.jsonl --out @/shard --overwrite --prompt-field ask",
          "documents    1\ntokens       3\nbytes/token  1.333\nlabels       2 (66.7 % of the "
          "tokens)\n",
          masked, 3);
    refuses(lt_verb_tokenize, TOKENIZE "@/x.jsonl --out @/shard --overwrite --eod <x>", "",
            LT_EXIT_USAGE, "", "--eod: the tokenizer has no token '<x>'");
    refuses(lt_verb_tokenize, TOKENIZE "@/x.jsonl --out @/shard --overwrite --append-eod", "",
            LT_EXIT_USAGE, "", "--append-eod: the tokenizer names no end token");
    makes(TOKENIZE "@/x.jsonl --out @/shard --overwrite --prepend-bos",
          "documents    2 (1 empty ones left out)\ntokens       5\n", begun, 5);
    snprintf(why, sizeof why, "--out %s is a folder; name the shard in it, for example %s/shard",
             folder, folder);
    refuses(lt_verb_tokenize, TOKENIZE "@/x.jsonl --out @", "", LT_EXIT_USAGE, "", why);
    refuses(lt_verb_tokenize, TOKENIZE "@/x.jsonl --out @/new/", "", LT_EXIT_USAGE, "",
            "/new/shard");
}

/* ---- tokenizer train ---- */

/* In the words "ab", " ab" and " ab" the pair (a, b) occurs three times, then (space, ab) twice;
 * special tokens have the first ids, and 256 bytes follow. */
static void merges_are_counted(void **state) {
    json_t *root = NULL;
    const json_t *model, *merges, *vocab;
    char path[LT_PATH_BYTES];
    (void)state;
    put("words.txt", "ab ab ab");
    ran r = run_verb(lt_verb_tokenizer, words("tokenizer train @/words.txt --out @/new.json "
                                              "--vocab-size 300 --special <s>,,<e> --threads 1"));
    assert_int_equal(r.status, LT_EXIT_DONE);
    assert_non_null(strstr(r.err, "260 ids from 1 documents"));
    assert_non_null(strstr(r.err, "no more pairs to merge: 260 ids of the 300 asked for"));
    ran_close(&r);
    assert_int_equal(lt_path_join(path, folder, "new.json"), LT_OK);
    root = json_load_file(path, 0, NULL);
    model = json_object_get(root, "model");
    merges = json_object_get(model, "merges");
    vocab = json_object_get(model, "vocab");
    assert_int_equal(json_array_size(merges), 2);
    near_at(vocab, "ab", 2 + 256);
    near_at(vocab,
            "\xC4\xA0"
            "ab",
            2 + 256 + 1);
    assert_int_equal(json_object_size(vocab), 260);
    json_decref(root);
    r = run_verb(lt_verb_tokenizer, words("tokenizer train @/words.txt --out @/new2.json "
                                          "--vocab-size 259 --special <s>,<e>"));
    assert_int_equal(r.status, LT_EXIT_DONE);
    assert_null(strstr(r.err, "no more pairs"));
    ran_close(&r);
    r = run_verb(lt_verb_tokenizer, words("tokenizer train @/words.txt --out @/new3.json "
                                          "--vocab-size 300 --min-frequency 3"));
    assert_non_null(strstr(r.err, "258 ids from"));
    ran_close(&r);
    refuses(lt_verb_tokenizer, "tokenizer train", "", LT_EXIT_USAGE, "", "usage: lateen tokenizer");
    refuses(lt_verb_tokenizer, "tokenizer learn @/words.txt", "", LT_EXIT_USAGE, "",
            "usage: lateen tokenizer");
    refuses(lt_verb_tokenizer, "tokenizer train @/none.txt --out @/new4.json", "", LT_EXIT_FAILED,
            "", "none.txt");
}

/* ---- data ---- */

/* pass@k of n answers of which c are right is 1 - C(n - c, k) / C(n, k) (Chen et al. 2021,
 * arXiv:2107.03374); maj@k is the probability that the most frequent answer of k is right. Of 4
 * answers with 1 right: pass@1 1/4, pass@2 1/2. Of 2 with 2 right, and of 1 with none. A text
 * without an answer has no vote, and equal votes are shared: of the 6 pairs of "5 4 4 none", 5
 * wins one and shares two. A problem with fewer than k answers does not count for k. */
static void answers_are_counted(void **state) {
    json_t *root;
    const json_t *row;
    (void)state;
    put("answers.jsonl",
        "{\"answer\": \"5\", \"checker\": \"number\", \"kind\": \"sum\", \"level\": 2, "
        "\"completions\": [\"The answer is 5.\", \"The answer is 4.\", \"The answer is 4.\", "
        "\"none\"]}\n\n"
        "{\"answer\": \"7\", \"checker\": \"number\", \"kind\": \"sum\", \"level\": 10, "
        "\"completions\": [\"The answer is 7.\", \"The answer is 7.\"]}\n"
        "{\"answer\": \"8\", \"checker\": \"number\", \"kind\": \"word\", \"level\": 2, "
        "\"completion\": \"The answer is 7.\"}\n");
    root = run_json(lt_verb_data, words("data check @/answers.jsonl --k 1,2,4 --json"));
    assert_int_equal(json_object_size(root), 5);
    row = json_object_get(root, "all");
    near_at(row, "problems", 3);
    near_at(row, "answers", 7);
    near_at(row, "found", 6.0 / 7);
    near_at(row, "right", 3.0 / 7);
    near_at(row, "pass@1", (0.25 + 1 + 0) / 3);
    near_at(row, "maj@1", (0.25 + 1 + 0) / 3);
    near_at(row, "pass@2", (0.5 + 1) / 2);
    near_at(row, "maj@2", ((1 + 2 * 0.5) / 6 + 1) / 2);
    near_at(row, "pass@4", 1);
    near_at(row, "maj@4", 0); /* 4 occurs twice, 5 once. */
    row = json_object_get(root, "sum");
    near_at(row, "problems", 2);
    near_at(row, "pass@1", (0.25 + 1) / 2);
    row = json_object_get(root, "word");
    near_at(row, "problems", 1);
    near_at(row, "right", 0);
    assert_null(json_object_get(row, "pass@2"));
    row = json_object_get(root, "level 2");
    near_at(row, "answers", 5);
    near_at(json_object_get(root, "level 10"), "right", 1);
    json_decref(root);
    /* As a table: first all, then kinds in order of appearance, then levels as numbers. */
    prints(lt_verb_data, "data check @/answers.jsonl --k 2", "",
           "              problems   answers    found    right  pass@2    maj@2  \n"
           "all                  3         7   85.71%   42.86%   75.00%   66.67%\n"
           "sum                  2         6   83.33%   50.00%   75.00%   66.67%\n"
           "word                 1         1  100.00%    0.00%        -        -\n"
           "level 2              2         5   80.00%   20.00%   50.00%   33.33%\n"
           "level 10             1         2  100.00%  100.00%  100.00%  100.00%\n");
}

static void verdicts_are_written(void **state) {
    char path[LT_PATH_BYTES], *text = NULL;
    size_t bytes;
    (void)state;
    run_input = "{\"answer\": \"5\", \"checker\": \"number\", \"completions\": [\"4\", \"5\"]}\n";
    ran r = run_verb(lt_verb_data, words("data check - --marks number --out @/right.jsonl"));
    run_input = "";
    assert_int_equal(r.status, LT_EXIT_DONE);
    ran_close(&r);
    assert_int_equal(lt_path_join(path, folder, "right.jsonl"), LT_OK);
    assert_int_equal(lt_file_read(&text, &bytes, path, 1 << 20), LT_OK);
    assert_string_equal(text, "{\"answer\":\"5\",\"checker\":\"number\",\"completions\":[\"4\","
                              "\"5\"],\"right\":[false,true]}\n");
    free(text);
    /* Without marks, only the last number of a line counts. */
    run_input = "{\"answer\": \"5\", \"checker\": \"number\", \"completions\": [\"4\", \"5\"]}\n";
    json_t *root = run_json(lt_verb_data, "data check - --json");
    near_at(json_object_get(root, "all"), "found", 0);
    json_decref(root);
    run_input =
        "{\"answer\": \"5\", \"checker\": \"number\", \"completion\": \"5\", \"level\": 0}\n"
        "{\"answer\": \"5\", \"checker\": \"number\", \"completion\": \"5\", \"level\": 1000}\n";
    root = run_json(lt_verb_data, "data check - --json");
    near_at(json_object_get(root, "level 0"), "problems", 1);
    near_at(json_object_get(root, "level 1000"), "problems", 1);
    json_decref(root);
    run_input = "";
    refuses(lt_verb_data, "data check - --k 0", "", LT_EXIT_USAGE, "", "k: \"0\" is not a list");
    refuses(lt_verb_data, "data check - --k 1,2,3,4,5,6,7,8,9", "", LT_EXIT_USAGE, "",
            "is not a list of at most 8 numbers from 1 to");
    refuses(lt_verb_data, "data check - --k 1;2", "", LT_EXIT_USAGE, "", "is not a list");
    refuses(lt_verb_data, "data check -", "\n \n", LT_EXIT_FAILED, "", "standard input: no lines");
    refuses(lt_verb_data, "data check -", "\n[]\n", LT_EXIT_FAILED, "",
            "standard input, line 2: column 1: not a JSON object");
    refuses(lt_verb_data, "data check -",
            "{\"answer\": \"5\", \"checker\": \"number\", \"completion\": \"5\", "
            "\"level\": 1001}\n",
            LT_EXIT_FAILED, "", "\"level\" is 1001, outside of [0, 1000]");
    refuses(lt_verb_data, "data check -",
            "{\"answer\": \"5\", \"checker\": \"number\", \"completion\": \"5\", "
            "\"level\": -1}\n",
            LT_EXIT_FAILED, "", "\"level\" is -1, outside of [0, 1000]");
    refuses(lt_verb_data, "data check @/none.jsonl", "", LT_EXIT_FAILED, "", "none.jsonl");
    refuses(lt_verb_data, "data check", "", LT_EXIT_USAGE, "", "usage: lateen data check");
    refuses(lt_verb_data, "data check @/answers.jsonl --out @/answers.jsonl", "", LT_EXIT_USAGE, "",
            "answers.jsonl");
}

/* Problems first to first + count of a seed are the same, whatever range is requested. */
static void problems_are_made_in_ranges(void **state) {
    ran whole, part;
    (void)state;
    whole = run_verb(lt_verb_data, "data make arithmetic --count 5 --seed 3 --level 2 --threads 2");
    if (whole.status != LT_EXIT_DONE) {
        fail_msg("%s", whole.err);
    }
    part = run_verb(lt_verb_data, "data make arithmetic --count 2 --first 3 --seed 3 --level 2-2");
    assert_int_equal(part.status, LT_EXIT_DONE);
    assert_true(strlen(part.out) > 0 && strlen(part.out) < strlen(whole.out));
    assert_string_equal(whole.out + strlen(whole.out) - strlen(part.out), part.out);
    ran_close(&part);
    ran_close(&whole);
    refuses(lt_verb_data, "data make arithmetic --level 2-", "", LT_EXIT_USAGE, "",
            "level: \"2-\" is neither a level nor a range such as 2-4");
    refuses(lt_verb_data, "data make arithmetic --level 2-3x", "", LT_EXIT_USAGE, "", "2-3x");
    refuses(lt_verb_data, "data make arithmetic --level x", "", LT_EXIT_USAGE, "", "level: \"x\"");
    refuses(lt_verb_data, "data make arithmetic --level 4-2", "", LT_EXIT_USAGE, "", "4");
    refuses(lt_verb_data, "data make", "", LT_EXIT_USAGE, "", "usage: lateen data make");
    refuses(lt_verb_data, "data take arithmetic", "", LT_EXIT_USAGE, "", "usage: lateen data make");
    refuses(lt_verb_data, "data make nothing", "", LT_EXIT_USAGE, "", "nothing");
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(text_becomes_ids),
                                       cmocka_unit_test(lines_become_ids),
                                       cmocka_unit_test(ids_become_text),
                                       cmocka_unit_test(long_lines_are_read),
                                       cmocka_unit_test(texts_are_cut_as_the_file_says),
                                       cmocka_unit_test(modes_exclude_each_other),
                                       cmocka_unit_test(merges_are_counted),
                                       cmocka_unit_test(answers_are_counted),
                                       cmocka_unit_test(verdicts_are_written),
                                       cmocka_unit_test(files_become_shards),
                                       cmocka_unit_test(problems_are_made_in_ranges)};
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
