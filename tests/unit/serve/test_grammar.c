/* Grammars: every mask equals brute force over a small vocabulary; random walks end in texts of the
 * language; accepted and refused grammars, by name. tools/check_grammar.py compares with other
 * implementations (jsonschema, re). */
#include <time.h>

#include "base/rng.h"
#include "unit/serve/small_vocab.h"

/* Compute the mask of a state token by token: are its bytes accepted one after the other? */
static void check_mask(const lt_grammar *g, lt_grammar_state *s, const char *what) {
    uint32_t bits[N_IDS / 32 + 1];
    lt_grammar_state *probe = NULL;
    assert_int_equal(lt_grammar_mask(s, bits, N_IDS), LT_OK);
    assert_int_equal(lt_grammar_state_open(&probe, g), LT_OK);
    for (int id = 0; id < N_IDS; id++) {
        const char c = (char)id;
        const bool in = (bits[id / 32] >> (id % 32) & 1) != 0;
        bool want;
        lt_grammar_state_copy(probe, s);
        want = id == N_IDS - 1 ? lt_grammar_accepting(s)
                               : feed(probe, id < 256 ? &c : more[id - 256],
                                      id < 256 ? 1 : strlen(more[id - 256]));
        if (in != want) {
            fail_msg("%s: token %d is %s its mask", what, id, in ? "wrongly in" : "missing from");
        }
    }
    lt_grammar_state_close(probe);
}

/* A walk of random allowed tokens, on which all masks equal brute force; true if it came to an
 * end. */
static bool walk(const lt_grammar *g, lt_rng *rng, const char *what, char *text, size_t room) {
    lt_grammar_state *s = NULL;
    uint32_t bits[N_IDS / 32 + 1];
    size_t n = 0;
    bool ended = false;
    assert_int_equal(lt_grammar_state_open(&s, g), LT_OK);
    for (int step = 0; step < 60 && !ended; step++) {
        int allowed[N_IDS], n_allowed = 0, id;
        check_mask(g, s, what);
        assert_int_equal(lt_grammar_mask(s, bits, N_IDS), LT_OK);
        for (id = 0; id < N_IDS; id++) {
            if ((bits[id / 32] >> (id % 32) & 1) != 0) {
                allowed[n_allowed++] = id;
            }
        }
        assert_true(n_allowed > 0); /* Never a dead end, since every byte is a token. */
        id = allowed[lt_rng_below(rng, (uint64_t)n_allowed)];
        for (const char *c = "\"}]0"; step > 20 && *c != 0; c++) {
            id = (bits[*c / 32] >> (*c % 32) & 1) != 0 ? *c : id;
        }
        id = lt_grammar_accepting(s) && (step > 20 || lt_rng_below(rng, 4) == 0) ? N_IDS - 1 : id;
        assert_int_equal(lt_grammar_accept(s, id), LT_OK);
        ended = id == N_IDS - 1;
        if (!ended && n + 64 < room) {
            n += (size_t)(id < 256 ? sprintf(text + n, "%c", id)
                                   : sprintf(text + n, "%s", more[id - 256]));
        }
    }
    text[n] = 0;
    assert_true(!ended || lt_grammar_done(s));
    lt_grammar_state_close(s);
    return ended;
}

static void masks_equal_brute_force(void **state) {
    static const struct {
        lt_grammar_kind kind;
        const char *text;
        bool json;
    } rows[] = {
        {LT_GRAMMAR_REGEX, "(a|bb)*abc?|[^a-m]{3}", false},
        {LT_GRAMMAR_REGEX, "[^\"]{0,40}x{300}", false},
        {LT_GRAMMAR_GBNF, "root ::= (\"(\" root \")\" | \"a\" | \"[\" root \",\" root \"]\")",
         false},
        /* A repetition of a rule that may be empty. */
        {LT_GRAMMAR_GBNF, "root ::= x+\nx ::= \"a\"* | \"(\" x+ \")\"", false},
        {LT_GRAMMAR_GBNF, "root ::= word (\" \" word)*\nword ::= [a-z]{1,4} | \"\\u00f6\" # x\n",
         false},
        {LT_GRAMMAR_JSON, "", true},
        {LT_GRAMMAR_CHOICE, "[\"yes\", \"no\", \"nobody\", \"\xC3\xB6\\n\"]", false},
        {LT_GRAMMAR_SCHEMA, "{\"type\": \"string\", \"maxLength\": 3}", true},
        {LT_GRAMMAR_SCHEMA, "{\"type\": \"string\", \"minLength\": 2, \"maxLength\": 1000}", true},
        {LT_GRAMMAR_SCHEMA,
         "{\"type\": \"object\", \"properties\": {\"a\": {\"type\": \"integer\", \"minimum\": -12, "
         "\"maximum\": 120}, \"b\": {\"type\": \"array\", \"items\": {\"type\": "
         "\"boolean\"}, \"maxItems\": 2}, \"c\": {\"anyOf\": [{\"$ref\": \"#\"}, {\"type\": "
         "\"null\"}]}}, \"required\": [\"a\"]}",
         true},
        {LT_GRAMMAR_SCHEMA,
         "{\"type\": \"object\", \"properties\": {\"a\": {\"const\": 1}}, "
         "\"additionalProperties\": {\"type\": \"number\", \"exclusiveMinimum\": 0.5, \"maximum\": "
         "12}}",
         true},
        {LT_GRAMMAR_SCHEMA,
         "{\"type\": \"string\", \"pattern\": \"^\\\\d{4}-[ab]+$\", \"maxLength\": 8}", true}};
    lt_rng rng = {.seed = 7};
    char text[4096];
    int ended = 0;
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        lt_grammar *g = open_grammar(rows[i].kind, rows[i].text);
        for (int k = 0; k < 6; k++) {
            const bool end = walk(g, &rng, rows[i].text, text, sizeof text);
            ended += end;
            if (end) {
                json_t *j = rows[i].json ? json_loads(text, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL)
                                         : NULL;
                if (!accepts(g, text) || (rows[i].json && j == NULL)) {
                    fail_msg("%s walked to %s", rows[i].text, text);
                }
                json_decref(j);
            }
        }
        lt_grammar_close(g);
    }
    print_message("%d of %zu walks ended\n", ended, 6 * sizeof rows / sizeof *rows);
    assert_true(ended > 30);
}

static void regular_expressions(void **state) {
    (void)state;
    expect(LT_GRAMMAR_REGEX, "^a{2,3}$|b\\d+|[x-z_]?", LIST("aa", "aaa", "b1", "b123", "x", ""),
           LIST("a", "aaaa", "b", "w"));
    expect(LT_GRAMMAR_REGEX, "(?:\\w+@)+\\.[^.]", LIST("a@.x", "a_1@b@.\xC3\xB6"),
           LIST("@.x", "a@.."));
    expect(LT_GRAMMAR_REGEX, "\\u00f6\\x41{0,200}",
           LIST("\xC3\xB6", "\xC3\xB6"
                            "AAAA"),
           LIST("A", "\xC3"));
    expect(LT_GRAMMAR_REGEX, "\\p{L}+", LIST("a", "z\xC3\xB6", "\xE4\xB8\xAD"),
           LIST("1", "-", "\xE2\x82\xAC"));
    expect(LT_GRAMMAR_REGEX, "\\P{L}[^\\P{N}]",
           LIST("-1",
                "\xE2\x82\xAC"
                "9",
                "11"),
           LIST("a1", "--",
                "\xE4\xB8\xAD"
                "1"));
}

/* Bounds that are equal leave one value, or one size; values just inside and just outside of
 * each. */
static void equal_bounds(void **state) {
    (void)state;
    expect(LT_GRAMMAR_SCHEMA, "{\"type\": \"integer\", \"minimum\": 7, \"maximum\": 7}", LIST("7"),
           LIST("6", "8", "77", "-7", "0"));
    expect(LT_GRAMMAR_SCHEMA, "{\"type\": \"integer\", \"minimum\": 0, \"maximum\": 0}", LIST("0"),
           LIST("1", "-1", "00"));
    expect(LT_GRAMMAR_SCHEMA, "{\"type\": \"integer\", \"minimum\": -10, \"maximum\": -10}",
           LIST("-10"), LIST("-9", "-11", "10", "-1", "-100"));
    expect(LT_GRAMMAR_SCHEMA, "{\"type\": \"integer\", \"exclusiveMinimum\": 99, \"maximum\": 100}",
           LIST("100"), LIST("99", "101", "10"));
    expect(LT_GRAMMAR_SCHEMA,
           "{\"type\": \"integer\", \"exclusiveMinimum\": 6, \"exclusiveMaximum\": 8}", LIST("7"),
           LIST("6", "8"));
    expect(LT_GRAMMAR_SCHEMA, "{\"type\": \"number\", \"minimum\": 2.5, \"maximum\": 2.5}",
           LIST("2.5", "2.50"), LIST("2.49", "2.51", "2", "3"));
    expect(LT_GRAMMAR_SCHEMA, "{\"type\": \"string\", \"minLength\": 2, \"maxLength\": 2}",
           LIST("\"ab\"", "\"\xC3\xB6\xC3\xB6\""), LIST("\"\"", "\"a\"", "\"abc\""));
    expect(LT_GRAMMAR_SCHEMA, "{\"type\": \"string\", \"minLength\": 0, \"maxLength\": 0}",
           LIST("\"\""), LIST("\"a\""));
    expect(LT_GRAMMAR_SCHEMA,
           "{\"type\": \"array\", \"items\": {\"enum\": [1]}, \"minItems\": 2, \"maxItems\": 2}",
           LIST("[1,1]", "[1, 1]"), LIST("[]", "[1]", "[1,1,1]"));
    expect(LT_GRAMMAR_SCHEMA,
           "{\"type\": \"array\", \"items\": {\"enum\": [1]}, \"minItems\": 0, \"maxItems\": 0}",
           LIST("[]"), LIST("[1]"));
    expect(LT_GRAMMAR_SCHEMA,
           "{\"type\": \"object\", \"additionalProperties\": {\"enum\": [1]}, \"propertyNames\": "
           "{\"enum\": [\"a\", \"b\", \"c\"]}, \"minProperties\": 2, \"maxProperties\": 2}",
           LIST("{\"a\":1,\"b\":1}", "{\"a\": 1, \"c\": 1}"),
           LIST("{}", "{\"a\":1}", "{\"a\":1,\"b\":1,\"c\":1}"));
    expect(LT_GRAMMAR_REGEX, "a{3,3}", LIST("aaa"), LIST("aa", "aaaa", ""));
    expect(LT_GRAMMAR_REGEX, "(ab){0,0}c", LIST("c"), LIST("abc", "ab"));
}

/* The notation of llama.cpp's grammars/README.md. */
static void gbnf(void **state) {
    const struct {
        const char *text;
        const char *const *yes, *const *no;
    } rows[] = {
        {"root ::= \"a\"{2}", LIST("aa"), LIST("", "a", "aaa")},
        {"root ::= \"a\"{12}", LIST("aaaaaaaaaaaa"), LIST("aaaaaaaaaaa", "aaaaaaaaaaaaa")},
        {"root ::= \"a\"{2,}", LIST("aa", "aaaaaa"), LIST("", "a")},
        {"root ::= \"a\"{2,3} \"b\"", LIST("aab", "aaab"), LIST("ab", "aaaab", "aa")},
        {"root ::= \"a\"{0,1}\"b\"", LIST("b", "ab"), LIST("aab", "a")},
        {"root ::= \"ab\"+", LIST("ab", "abab"), LIST("", "a", "aba")},
        {"root ::= \"ab\"* \"c\"?", LIST("", "ab", "c", "ababc"), LIST("cc", "abcab")},
        {"root ::= [a-c]", LIST("a", "b", "c"), LIST("d", "-", "")},
        {"root ::= [a-]", LIST("a", "-"), LIST("b", "]")},
        {"root ::= [^a-c]", LIST("d", "-", "\n", "\xC3\xB6"), LIST("a", "c", "")},
        {"root ::= [^\\]\\n]", LIST("a", "\\"), LIST("]", "\n")},
        {"root ::= [\\x41-\\x43\\u00f6]", LIST("A", "C", "\xC3\xB6"), LIST("D", "x", "\xC3")},
        {"root ::= \"\\t\\r\\n\\\"\\\\\\[\"", LIST("\t\r\n\"\\["), LIST("trn\"\\[")},
        {"root ::= \"\\U0001F600\"", LIST("\xF0\x9F\x98\x80"), LIST("\xF0\x9F\x98\x81")},
        {"root ::= . \"b\"",
         LIST("ab", "\xC3\xB6"
                    "b"),
         LIST("b", "aab")},
        {"# a comment\nroot ::= (\n \"a\" # one\n | b-2\n) \"c\"\n\nb-2 ::= \"b\"\n",
         LIST("ac", "bc"), LIST("a", "c", "abc")},
        {"root ::= a | (b a)*\na ::= \"x\"\nb ::= \"y\" | \"z\"", LIST("x", "", "yx", "yxzx"),
         LIST("xx", "y", "xy")},
        {"root ::= a |\n \"\"\na ::= \"x\"", LIST("x", ""), LIST("xx")},
    };
    static const struct {
        const char *text, *says;
    } wrong[] = {{"root ::= \"a\"{3,2}", "a malformed repetition"},
                 {"root ::= \"a\"{2", "a malformed repetition"},
                 {"root ::= \"a\"{,2}", "expected a number of repetitions"},
                 {"root ::= [c-a]", "a range that runs backwards"},
                 {"root ::= [a", "a class that is not closed"},
                 {"root ::= (\"a\"", "a group that is not closed"},
                 {"root ::= <x", "a token that is not closed"},
                 {"root ::= <x>", "no special token of this name"},
                 {"root ::= <[9999]>", "no special token of this name"},
                 {"root ::= <[65]>", "no special token of this name"}};
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        expect(LT_GRAMMAR_GBNF, rows[i].text, rows[i].yes, rows[i].no);
    }
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        lt_grammar *g = NULL;
        assert_int_equal(
            lt_grammar_open(&g, vocab, LT_GRAMMAR_GBNF, wrong[i].text, strlen(wrong[i].text)),
            LT_ERR_FORMAT);
        if (strstr(lt_error_message(), wrong[i].says) == NULL) {
            fail_msg("%s says '%s'", wrong[i].text, lt_error_message());
        }
    }
}

static void schemas(void **state) {
    (void)state;
    expect(LT_GRAMMAR_SCHEMA, "{\"type\": \"integer\", \"minimum\": -5, \"exclusiveMaximum\": 103}",
           LIST("-5", "-1", "0", "9", "10", "99", "102"),
           LIST("-6", "103", "1000", "01", "-0", "1.0"));
    expect(LT_GRAMMAR_SCHEMA, "{\"type\": \"number\", \"minimum\": 1.25, \"maximum\": 3}",
           LIST("1.25", "1.3", "1.250", "2", "3", "3.00", "2.999"),
           LIST("1", "1.2", "1.249", "3.1", "4", "-2"));
    expect(LT_GRAMMAR_SCHEMA,
           "{\"oneOf\": [{\"type\": \"object\", \"properties\": {\"kind\": {\"const\": \"a\"}, "
           "\"x\": {\"type\": \"null\"}}, \"required\": [\"kind\"]}, {\"type\": \"object\", "
           "\"properties\": {\"kind\": {\"const\": \"b\"}}, \"required\": [\"kind\"]}, {\"enum\": "
           "[null, 3]}]}",
           LIST("{\"kind\":\"a\",\"x\":null}", "{\"kind\":\"b\"}", "3"),
           LIST("{\"kind\":\"b\",\"x\":null}", "4", "{}"));
    expect(LT_GRAMMAR_SCHEMA,
           "{\"type\": \"integer\", \"multipleOf\": 5, \"exclusiveMinimum\": -10, \"maximum\": 10}",
           LIST("-5", "0", "5", "10"), LIST("-10", "15", "3"));
    expect(LT_GRAMMAR_SCHEMA,
           "{\"type\": \"object\", \"properties\": {\"ab\": {\"type\": \"integer\"}}, "
           "\"patternProperties\": {\"^a\": {\"minimum\": 5}, \"z$\": {\"maximum\": 9}}, "
           "\"additionalProperties\": {\"type\": \"null\"}}",
           LIST("{\"ab\":7}", "{\"ax\":7.5}", "{\"az\":7}", "{\"z\":0}", "{\"q\":null}"),
           LIST("{\"ab\":4}", "{\"ab\":7.5}", "{\"az\":10}", "{\"q\":1}", "{\"a\":null}"));
    expect(LT_GRAMMAR_SCHEMA,
           "{\"type\": \"object\", \"additionalProperties\": {\"type\": \"boolean\"}, "
           "\"propertyNames\": {\"enum\": [\"yes\", \"no\"]}}",
           LIST("{}", "{\"yes\":true,\"no\":false}"), LIST("{\"ye\":true}", "{\"x\":true}"));
    expect(LT_GRAMMAR_SCHEMA,
           "{\"enum\": [\"abc\", \"b\", 12, 3, null], \"maxLength\": 1, \"minimum\": 10}",
           LIST("\"b\"", "12", "null"), LIST("\"abc\"", "3"));
    expect(LT_GRAMMAR_SCHEMA, "{\"type\": \"integer\", \"multipleOf\": 7}",
           LIST("0", "7", "-14", "700"), LIST("1", "8", "71"));
    expect(LT_GRAMMAR_SCHEMA,
           "{\"allOf\": [{\"properties\": {\"a\": {\"type\": \"null\"}}, \"required\": [\"a\"]}, "
           "{\"properties\": {\"b\": {\"enum\": [1, \"x\"]}}}]}",
           LIST("{\"a\":null}", "{\"a\": null, \"b\": \"x\"}", "{\n  \"a\": null,\n  \"b\": 1\n}"),
           LIST("{}", "{\"b\": 1}", "{\"a\": null, \"b\": 2}", "{\"a\":null,}"));
    expect(LT_GRAMMAR_SCHEMA,
           "{\"type\": \"array\", \"prefixItems\": [{\"type\": \"null\"}], \"items\": {\"type\": "
           "\"boolean\"}, \"minItems\": 1, \"maxItems\": 3}",
           LIST("[null]", "[null, true]", "[null,true,false]"),
           LIST("[]", "[true]", "[null,null]", "[null,true,true,true]"));
    expect(LT_GRAMMAR_SCHEMA,
           "{\"type\": \"object\", \"patternProperties\": {\"^k\\\\d$\": {\"type\": \"null\"}}, "
           "\"additionalProperties\": false, \"maxProperties\": 2}",
           LIST("{}", "{\"k1\": null}", "{\"k1\": null, \"k2\": null}"),
           LIST("{\"k\": null}", "{\"k1\": 1}", "{\"k1\":null,\"k2\":null,\"k3\":null}"));
    expect(LT_GRAMMAR_SCHEMA, "{\"type\": [\"string\", \"null\"], \"format\": \"date\"}",
           LIST("null", "\"2026-11-21\""), LIST("\"2026-13-21\"", "\"x\""));
}

static void refusals(void **state) {
    static const struct {
        lt_grammar_kind kind;
        const char *text;
        lt_err err;
        const char *says;
    } rows[] = {
        {LT_GRAMMAR_SCHEMA, "{\"not\": {}}", LT_ERR_FORMAT, "no text matches"},
        {LT_GRAMMAR_SCHEMA,
         "{\"properties\": {\"a\": {\"type\": \"array\", \"items\": {\"type\": \"object\"}, "
         "\"uniqueItems\": true}}}",
         LT_ERR_UNSUPPORTED, "(at #/properties/a)"},
        {LT_GRAMMAR_SCHEMA, "{\"not\": {\"format\": \"date\"}}", LT_ERR_UNSUPPORTED, "'not'"},
        {LT_GRAMMAR_SCHEMA, "{\"multipleOf\": 123457, \"type\": \"integer\", \"minimum\": 4}",
         LT_ERR_UNSUPPORTED, "123457 remainders"},
        {LT_GRAMMAR_SCHEMA, "{\"$ref\": \"other.json#/a\"}", LT_ERR_UNSUPPORTED,
         "not within the document"},
        {LT_GRAMMAR_SCHEMA, "{\"type\": \"strnig\"}", LT_ERR_FORMAT, "strnig"},
        {LT_GRAMMAR_SCHEMA, "{\"$ref\": \"#/$defs/x\"}", LT_ERR_FORMAT, "#/$defs/x"},
        {LT_GRAMMAR_SCHEMA, "{\"enum\": []}", LT_ERR_FORMAT, "no text matches"},
        {LT_GRAMMAR_SCHEMA, "[", LT_ERR_FORMAT, "JSON"},
        {LT_GRAMMAR_SCHEMA, "{\"properties\": []}", LT_ERR_FORMAT, "'properties' is not an object"},
        {LT_GRAMMAR_SCHEMA, "{\"required\": \"a\"}", LT_ERR_FORMAT, "'required' is not a list"},
        {LT_GRAMMAR_SCHEMA, "{\"allOf\": [{\"required\": {}}]}", LT_ERR_FORMAT, "'required'"},
        {LT_GRAMMAR_SCHEMA, "{\"allOf\": {}}", LT_ERR_FORMAT, "'allOf' is not a list"},
        {LT_GRAMMAR_SCHEMA, "{\"prefixItems\": {}}", LT_ERR_FORMAT, "'prefixItems'"},
        {LT_GRAMMAR_SCHEMA, "{\"$defs\": 5}", LT_ERR_FORMAT, "'$defs'"},
        {LT_GRAMMAR_SCHEMA, "{\"$ref\": 5}", LT_ERR_FORMAT, "'$ref' is not a string"},
        {LT_GRAMMAR_SCHEMA, "{\"propertyNames\": 5}", LT_ERR_FORMAT, "'propertyNames'"},
        {LT_GRAMMAR_SCHEMA, "{\"\\u0001not\": []}", LT_ERR_FORMAT, "u0001"},
        {LT_GRAMMAR_SCHEMA, "{\"multipleOf\": 0}", LT_ERR_FORMAT, "over 0"},
        {LT_GRAMMAR_SCHEMA, "{\"enum\": [\"a\\u0000\"]}", LT_ERR_UNSUPPORTED, "\\u0000"},
        {LT_GRAMMAR_REGEX, "a(?=b)", LT_ERR_UNSUPPORTED, "offset 3"},
        {LT_GRAMMAR_REGEX, "a(b", LT_ERR_FORMAT, "not closed"},
        {LT_GRAMMAR_REGEX, "(a)\\1", LT_ERR_UNSUPPORTED, "back-reference"},
        /* Python's re accepts "-" for [^]a], ECMAScript "-a]". */
        {LT_GRAMMAR_REGEX, "[^]a]", LT_ERR_UNSUPPORTED, "a class that begins with ]"},
        {LT_GRAMMAR_REGEX, "x[]a]", LT_ERR_UNSUPPORTED, "a class that begins with ]"},
        {LT_GRAMMAR_REGEX, "a{,3}", LT_ERR_UNSUPPORTED, "{0,n}"},
        {LT_GRAMMAR_GBNF, "root ::= a", LT_ERR_FORMAT, "'a'"},
        {LT_GRAMMAR_GBNF, "root ::= root \"a\" | \"b\"", LT_ERR_UNSUPPORTED, "left recursion"},
        {LT_GRAMMAR_GBNF, "root ::= x* \"b\"\nx ::= y root\ny ::= \"a\"?", LT_ERR_UNSUPPORTED,
         "left recursion"},
        {LT_GRAMMAR_GBNF, "x ::= \"a\"", LT_ERR_FORMAT, "'root'"},
        {LT_GRAMMAR_GBNF, "root ::= \"a\"\nb = 1", LT_ERR_FORMAT, "grammar:2"},
        {LT_GRAMMAR_GBNF, "root ::= \"a\" <|endoftext|>", LT_ERR_FORMAT, "ends the text"},
        {LT_GRAMMAR_CHOICE, "[1]", LT_ERR_FORMAT, "item 0"}};
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        lt_grammar *g = NULL;
        assert_int_equal(
            lt_grammar_open(&g, vocab, rows[i].kind, rows[i].text, strlen(rows[i].text)),
            rows[i].err);
        if (strstr(lt_error_message(), rows[i].says) == NULL) {
            fail_msg("%s says '%s'", rows[i].text, lt_error_message());
        }
    }
}

/* Each rule is the next one twice, so the last has 2^40 letters; a repetition of that has a size
 * beyond all integers. */
static void sizes_beyond_all_integers(void **state) {
    char text[2048];
    size_t n = (size_t)snprintf(text, sizeof text, "root ::= r0{2}\n");
    lt_grammar *g = NULL;
    lt_grammar_state *s = NULL;
    (void)state;
    for (int i = 0; i < 40; i++) {
        n += (size_t)snprintf(text + n, sizeof text - n, "r%d ::= r%d r%d\n", i, i + 1, i + 1);
    }
    n += (size_t)snprintf(text + n, sizeof text - n, "r40 ::= \"a\"\n");
    assert_int_equal(lt_grammar_open(&g, vocab, LT_GRAMMAR_GBNF, text, n), LT_OK);
    assert_int_equal(lt_grammar_state_open(&s, g), LT_OK);
    assert_true(feed(s, "aaaa", 4) && !lt_grammar_accepting(s));
    lt_grammar_state_close(s);
    lt_grammar_close(g);
}

/* n rules begin alike and are found twice each: after "xx", 2 n states are possible, not 4 n. */
static lt_grammar *ambiguous(int n) {
    char *text = malloc((size_t)n * 80 + 64);
    size_t at = 0;
    lt_grammar *g = NULL;
    assert_non_null(text);
    for (int k = 0; k < 3; k++) {
        at += (size_t)sprintf(text + at, "%s ::= ", (const char *[]){"root", "t", "u"}[k]);
        for (int i = 0; i < n && k > 0; i++) {
            const int rule = k == 1 ? i : n - 1 - i;
            at += (size_t)sprintf(text + at, "%sr%d", i > 0 ? " | " : "", rule);
        }
        at += (size_t)sprintf(text + at, k == 0 ? "t | u\n" : "\n");
    }
    for (int i = 0; i < n; i++) {
        at += (size_t)sprintf(text + at, "r%d ::= \"x\" r%d \"%d.\" | \"w%d.\"\n", i, i, i, i);
    }
    assert_int_equal(lt_grammar_open(&g, vocab, LT_GRAMMAR_GBNF, text, at), LT_OK);
    free(text);
    return g;
}

/* Time grows with the number of rules, not with its square: 120,000 take a fifth of a second of a
 * core, and took 39 s when each name was compared with all others. */
static void many_rules(void **state) {
    const int n = 120000;
    char *text = malloc((size_t)n * 32 + 64);
    size_t at = 0;
    lt_grammar *g = NULL;
    const clock_t begin = clock();
    (void)state;
    assert_non_null(text);
    at += (size_t)sprintf(text + at, "root ::= r%d | r%d\n", n - 1, n / 2);
    for (int i = 0; i < n; i++) {
        at += (size_t)sprintf(text + at, "r%d ::= \"a\" | \"b%d\"\n", i, i);
    }
    assert_int_equal(lt_grammar_open(&g, vocab, LT_GRAMMAR_GBNF, text, at), LT_OK);
    assert_true(accepts(g, "a") && accepts(g, "b60000") && accepts(g, "b119999"));
    assert_false(accepts(g, "b7"));
    assert_true((double)(clock() - begin) / CLOCKS_PER_SEC < 15);
    lt_grammar_close(g);
    free(text);
}

static void many_ways_to_read(void **state) {
    static const int sizes[] = {7, 8, 9, 15, 16, 17, 300, 1000};
    (void)state;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        const int last = sizes[i] - 1;
        lt_grammar *g = ambiguous(sizes[i]);
        char text[64];
        for (int k = 0; k < 2; k++) {
            snprintf(text, sizeof text, "xxw%d.%d.%d.", last, last, k == 0 ? last : last - 1);
            assert_int_equal(accepts(g, text), k == 0);
        }
        assert_true(accepts(g, "xw0.0.") && accepts(g, "xxxw1.1.1.1.") && !accepts(g, "xxw1.1."));
        assert_false(accepts(g, "xxw0.1.0."));
        lt_grammar_close(g);
    }
}

static void too_many_ways_to_read(void **state) {
    lt_grammar *g = ambiguous(1100);
    lt_grammar_state *s = NULL;
    (void)state;
    assert_int_equal(lt_grammar_state_open(&s, g), LT_OK);
    assert_int_equal(lt_grammar_accept(s, 'x'), LT_ERR_LIMIT);
    assert_non_null(strstr(lt_error_message(), "more than 2048 ways"));
    lt_grammar_state_close(s);
    lt_grammar_close(g);
}

static void forced_bytes(void **state) {
    lt_grammar *g = open_grammar(LT_GRAMMAR_CHOICE, "[\"abcd\", \"abce\"]");
    lt_grammar_state *s = NULL, *t = NULL;
    char out[16];
    (void)state;
    assert_int_equal(lt_grammar_state_open(&s, g), LT_OK);
    assert_int_equal(lt_grammar_state_open(&t, g), LT_OK);
    assert_int_equal(lt_grammar_forced(s, out, sizeof out), 3);
    assert_memory_equal(out, "abc", 3);
    assert_int_equal(lt_grammar_accept(s, 'x'), LT_ERR_ARG); /* The state is not changed. */
    assert_true(feed(s, "abc", 3));
    lt_grammar_state_copy(t, s);
    assert_true(feed(s, "d", 1) && lt_grammar_done(s));
    assert_true(!lt_grammar_done(t) && feed(t, "e", 1));
    assert_int_equal(lt_grammar_accept(t, N_IDS - 1), LT_OK);
    lt_grammar_state_reset(t);
    assert_true(!lt_grammar_accepting(t));
    lt_grammar_state_close(s);
    lt_grammar_state_close(t);
    lt_grammar_close(g);
}

/* SentencePiece writes U+2581 where the text has a space, and the grammar speaks of the text. */
static void spaces_of_sentencepiece(void **state) {
    static const int32_t words[] = {383, 286, 261, 280, 294}; /* " there was a cat" in tok512.bin */
    static const char rule[] = "root ::= \" there was a cat\"";
    lt_tokenizer *t = NULL;
    lt_grammar_vocab *v = NULL;
    lt_grammar *g = NULL;
    lt_grammar_state *s = NULL;
    uint32_t bits[512 / 32];
    (void)state;
    assert_int_equal(lt_tokenizer_open(&t, "tests/golden/stories260k/tok512.bin", NULL), LT_OK);
    assert_int_equal(lt_grammar_vocab_open(&v, t, NULL, 0), LT_OK);
    assert_int_equal(lt_grammar_open(&g, v, LT_GRAMMAR_GBNF, rule, strlen(rule)), LT_OK);
    assert_int_equal(lt_grammar_state_open(&s, g), LT_OK);
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        assert_int_equal(lt_grammar_mask(s, bits, 512), LT_OK);
        assert_true(bits[words[i] / 32] >> (words[i] % 32) & 1u);
        assert_int_equal(lt_grammar_accept(s, words[i]), LT_OK);
    }
    assert_true(lt_grammar_accepting(s));
    lt_grammar_state_close(s);
    lt_grammar_close(g);
    lt_grammar_vocab_close(v);
    lt_tokenizer_close(t);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(masks_equal_brute_force),
                                       cmocka_unit_test(spaces_of_sentencepiece),
                                       cmocka_unit_test(regular_expressions),
                                       cmocka_unit_test(gbnf),
                                       cmocka_unit_test(schemas),
                                       cmocka_unit_test(equal_bounds),
                                       cmocka_unit_test(refusals),
                                       cmocka_unit_test(sizes_beyond_all_integers),
                                       cmocka_unit_test(many_rules),
                                       cmocka_unit_test(many_ways_to_read),
                                       cmocka_unit_test(too_many_ways_to_read),
                                       cmocka_unit_test(forced_bytes)};
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, open_vocab, close_vocab);
}
