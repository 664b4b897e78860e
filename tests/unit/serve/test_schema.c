/* JSON schemas as grammars: the official test suite's verdicts; no name and no item occurs twice,
 * with any random choice; keywords and formats by example; refusals by keyword and place; sizes
 * that would stall a server. tools/check_grammar.py compares many more with jsonschema. */
#include "base/rng.h"
#include "unit/serve/small_vocab.h"

/* ---- The official suite (tools/check_grammar.py wrote the rows) ---- */

static void one_row(const json_t *row, int *refused) {
    char *text = json_dumps(json_object_get(row, "schema"), JSON_ENCODE_ANY);
    const char *from = json_string_value(json_object_get(row, "from"));
    lt_grammar *g = NULL;
    json_t *v;
    size_t i;
    const lt_err err = lt_grammar_open(&g, vocab, LT_GRAMMAR_SCHEMA, text, strlen(text));
    if (err != LT_OK) {
        (*refused)++;
        assert_true(err == LT_ERR_UNSUPPORTED || err == LT_ERR_FORMAT || err == LT_ERR_LIMIT);
        if (!json_is_true(json_object_get(row, "refused"))) {
            fail_msg("%s: %s: %s", from, text, lt_error_message());
        }
        free(text);
        return;
    }
    json_array_foreach(json_object_get(row, "invalid"), i, v) {
        if (accepts(g, json_string_value(v))) {
            fail_msg("%s: %s accepts %s", from, text, json_string_value(v));
        }
    }
    json_array_foreach(json_object_get(row, "valid"), i, v) {
        if (!accepts(g, json_string_value(v))) {
            fail_msg("%s: %s does not accept %s", from, text, json_string_value(v));
        }
    }
    lt_grammar_close(g);
    free(text);
}

/* The number of rows, and of those that are refused. */
static int all_rows(const char *path, int *refused) {
    FILE *f = fopen(path, "r");
    char *line = NULL;
    size_t room = 0;
    int rows = 0;
    *refused = 0;
    assert_non_null(f);
    while (getline(&line, &room, f) > 0) {
        json_t *row = lt_json_loadb(line, strlen(line), JSON_ALLOW_NUL, NULL);
        assert_non_null(row);
        one_row(row, refused);
        json_decref(row);
        rows++;
    }
    free(line);
    fclose(f);
    print_message("%d schemas, %d refused\n", rows, *refused);
    return rows;
}

static void official_suite(void **state) {
    int refused;
    (void)state;
    const int rows = all_rows("tests/golden/serve/json_schema_suite.jsonl", &refused);
    assert_true(rows > 350 && refused * 7 < rows);
}

/* Random schemas, every second of which lists the values that it judges, with jsonschema's verdicts
 * (tools/check_grammar.py values). */
static void random_schemas(void **state) {
    int refused;
    (void)state;
    const int rows = all_rows("tests/golden/serve/json_schema_values.jsonl", &refused);
    assert_true(rows == 500 && refused * 9 < rows);
}

/* ---- Random texts ---- */

/* A text of random allowed bytes, mostly the first allowed ones, so that names and items tend to
 * repeat. */
static bool draw(const lt_grammar *g, lt_rng *rng, char *text, size_t room) {
    static const char liked[] = "ab1\"2,:{}[]kxyz0tfn ";
    lt_grammar_state *s = NULL;
    uint32_t bits[N_IDS / 32 + 1];
    size_t n = 0;
    bool ended = false;
    assert_int_equal(lt_grammar_state_open(&s, g), LT_OK);
    while (!ended && n + 64 < room) {
        int allowed[N_IDS], n_allowed = 0, id;
        assert_int_equal(lt_grammar_mask(s, bits, N_IDS), LT_OK);
        for (id = 0; id < N_IDS; id++) {
            if ((bits[id / 32] >> (id % 32) & 1) != 0) {
                allowed[n_allowed++] = id;
            }
        }
        if (n_allowed == 0) {
            text[n] = 0;
            fail_msg("nothing may follow %s", text);
        }
        id = allowed[lt_rng_below(rng, (uint64_t)n_allowed)];
        if (lt_rng_below(rng, 4) > 0) {
            const int like = liked[lt_rng_below(rng, sizeof liked - 1)];
            id = (bits[like / 32] >> (like % 32) & 1) != 0 ? like : id;
        }
        id = lt_grammar_accepting(s) && n > 40 ? N_IDS - 1 : id;
        assert_int_equal(lt_grammar_accept(s, id), LT_OK);
        ended = id == N_IDS - 1;
        if (!ended) {
            n += (size_t)(id < 256 ? sprintf(text + n, "%c", id)
                                   : sprintf(text + n, "%s", more[id - 256]));
        }
    }
    text[n] = 0;
    lt_grammar_state_close(s);
    return ended;
}

static void check_items(const json_t *list, const char *text) {
    json_t *v, *w;
    size_t i, k;
    json_array_foreach(list, i, v) {
        for (k = 0; k < i; k++) {
            w = json_array_get(list, k);
            if (json_is_number(v) && json_is_number(w)
                    ? json_number_value(v) == json_number_value(w)
                    : json_equal(v, w)) {
                fail_msg("items %zu and %zu are the same: %s", k, i, text);
            }
        }
    }
}

/* Each schema, with the minimum and maximum number of members or items of a text. */
static void no_name_and_no_item_twice(void **state) {
    static const struct {
        const char *schema;
        size_t min, max;
    } rows[] = {
        {"{\"type\":\"object\",\"minProperties\":3,\"additionalProperties\":{\"type\":\"boolean\"}"
         "}",
         3, 1000},
        {"{\"type\":\"object\",\"minProperties\":9,\"patternProperties\":{\"^k[0-9]$\":{\"type\":"
         "\"null\"}},\"additionalProperties\":false}",
         9, 10},
        {"{\"type\":\"object\",\"minProperties\":95,\"patternProperties\":{\"^[a-h]?[0-9]$\":{"
         "\"type\":"
         "\"null\"},\"^[xyz]{1,2}$\":{\"type\":\"null\"}},\"additionalProperties\":false}",
         95, 102},
        {"{\"type\":\"object\",\"minProperties\":4,\"maxProperties\":5,\"properties\":{\"a\":{"
         "\"type\":"
         "\"null\"},\"b\":{}},\"additionalProperties\":{\"type\":\"null\"},\"propertyNames\":{"
         "\"maxLength\":2,\"pattern\":\"^[abz]\"}}",
         4, 5},
        {"{\"type\":\"object\",\"minProperties\":2}", 2, 1000},
        {"{\"type\":\"array\",\"uniqueItems\":true,\"items\":{\"enum\":[\"a\",\"ab\",\"b\",1,12,2."
         "0,null,"
         "true,2]},\"minItems\":7}",
         7, 8},
        {"{\"type\":\"array\",\"uniqueItems\":true,\"items\":{\"type\":\"integer\",\"minimum\":-3,"
         "\"maximum\":12},\"minItems\":15}",
         15, 16},
        {"{\"type\":\"array\",\"uniqueItems\":true,\"items\":{\"type\":\"string\",\"pattern\":\"^["
         "ab]{1,3}"
         "$\"},\"minItems\":13}",
         13, 14},
        {"{\"type\":\"array\",\"uniqueItems\":true,\"items\":{\"type\":\"number\"},\"minItems\":4,"
         "\"maxItems\":9}",
         4, 9},
        {"{\"type\":\"array\",\"uniqueItems\":true,\"items\":{\"type\":[\"string\",\"null\"],"
         "\"maxLength\":1},\"minItems\":4}",
         4, 1000}};
    lt_rng rng = {.seed = 11};
    char text[20000];
    int ended = 0;
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        lt_grammar *g = open_grammar(LT_GRAMMAR_SCHEMA, rows[i].schema);
        for (int k = 0; k < 8; k++) {
            json_t *v;
            size_t n;
            if (!draw(g, &rng, text, sizeof text)) {
                continue;
            }
            ended++;
            v = json_loads(text, JSON_DECODE_ANY | JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, NULL);
            n = json_is_object(v) ? json_object_size(v) : json_array_size(v);
            if (v == NULL || n < rows[i].min || n > rows[i].max) {
                fail_msg("%s: %s", rows[i].schema, text);
            }
            check_items(v, text);
            json_decref(v);
        }
        lt_grammar_close(g);
    }
    assert_true(ended > 60);
}

/* A fork has its own names, and shares those before it. */
static void copies_keep_their_names(void **state) {
    lt_grammar *g = open_grammar(
        LT_GRAMMAR_SCHEMA, "{\"type\":\"object\",\"additionalProperties\":{\"type\":\"null\"}}");
    lt_grammar_state *s = NULL, *t = NULL;
    (void)state;
    assert_int_equal(lt_grammar_state_open(&s, g), LT_OK);
    assert_int_equal(lt_grammar_state_open(&t, g), LT_OK);
    assert_true(feed(s, "{\"a\":null,\"b", 12));
    lt_grammar_state_copy(t, s);
    assert_true(feed(s, "\":null,\"c\":null,\"b", 18));
    assert_false(feed(s, "\"", 1)); /* The state is not changed. */
    assert_true(feed(s, "b\":null}", 8) && lt_grammar_done(s));
    assert_true(feed(t, "c\":null,\"b\":null,\"b", 19) && !feed(t, "\"", 1));
    lt_grammar_state_reset(t);
    assert_true(feed(t, "{\"b\":null}", 10) && lt_grammar_done(t));
    lt_grammar_state_close(s);
    lt_grammar_state_close(t);
    lt_grammar_close(g);
}

/* ---- By example ---- */

static void keywords(void **state) {
    (void)state;
    expect(LT_GRAMMAR_SCHEMA,
           "{\"type\":\"number\",\"multipleOf\":0.5,\"minimum\":-1,\"maximum\":2}",
           LIST("-1", "-0.5", "0", "1.5", "2.0", "1.50"), LIST("-1.5", "0.25", "2.5", "1.55"));
    expect(LT_GRAMMAR_SCHEMA, "{\"type\":\"number\",\"multipleOf\":0.01}",
           LIST("19.99", "0.07", "-3", "1.50"), LIST("0.005", "19.999"));
    expect(LT_GRAMMAR_SCHEMA, "{\"type\":\"integer\",\"multipleOf\":2500,\"minimum\":1}",
           LIST("2500", "5000", "12500"), LIST("0", "250", "25001"));
    expect(LT_GRAMMAR_SCHEMA,
           "{\"oneOf\":[{\"multipleOf\":3,\"type\":\"integer\"},{\"multipleOf\":5}]}",
           LIST("3", "10", "-9"), LIST("15", "0", "4", "30"));
    expect(LT_GRAMMAR_SCHEMA,
           "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\"},\"b\":{\"type\":"
           "\"integer\"},"
           "\"c\":{}},\"minProperties\":2,\"dependencies\":{\"a\":[\"b\"],\"c\":{\"properties\":{"
           "\"b\":{"
           "\"minimum\":5}}}}}",
           LIST("{\"a\":1,\"b\":2}", "{\"b\":5,\"c\":0}", "{\"a\":1,\"b\":7,\"c\":0}"),
           LIST("{}", "{\"b\":2}", "{\"a\":1,\"c\":1}", "{\"b\":2,\"c\":0}"));
    expect(LT_GRAMMAR_SCHEMA,
           "{\"allOf\":[{\"title\":\"x\",\"description\":\"y\",\"default\":1,\"readOnly\":true,\"x-"
           "a\":1,"
           "\"type\":\"string\",\"pattern\":\"^a\"},{\"title\":\"z\",\"description\":\"w\","
           "\"default\":2,"
           "\"readOnly\":false,\"x-a\":2,\"pattern\":\"b$\",\"maxLength\":4}]}",
           LIST("\"ab\"", "\"aaab\""), LIST("\"a\"", "\"ba\"", "\"aaaab\""));
    expect(LT_GRAMMAR_SCHEMA,
           "{\"type\":\"string\",\"not\":{\"enum\":[\"a\",\"b\"]},\"maxLength\":2}",
           LIST("\"c\"", "\"ab\"", "\"\""), LIST("\"a\"", "\"b\"", "\"\\u0061\"", "\"abc\""));
    expect(LT_GRAMMAR_SCHEMA,
           "{\"type\":\"object\",\"properties\":{\"a\":{\"const\":1},\"b\":{\"type\":\"null\"}},"
           "\"if\":{"
           "\"required\":[\"a\"]},\"then\":{\"required\":[\"b\"]},\"else\":{\"maxProperties\":0}}",
           LIST("{}", "{\"a\":1,\"b\":null}"), LIST("{\"a\":1}", "{\"b\":null}"));
    expect(LT_GRAMMAR_SCHEMA,
           "{\"type\":\"array\",\"items\":{\"type\":\"integer\"},\"contains\":{\"minimum\":5},"
           "\"minContains\":2,\"maxContains\":3}",
           LIST("[5,6]", "[1,5,2,6,7]"), LIST("[]", "[5]", "[5,6,7,8]", "[1,2]"));
    expect(LT_GRAMMAR_SCHEMA,
           "{\"oneOf\":[{\"properties\":{\"a\":{}},\"additionalProperties\":false},{\"properties\":"
           "{\"b\":"
           "{}},\"additionalProperties\":false}],\"type\":\"object\"}",
           LIST("{\"a\":1}", "{\"b\":1}"), LIST("{}", "{\"a\":1,\"b\":1}"));
    expect(LT_GRAMMAR_SCHEMA,
           "{\"$id\":\"http://a.b/c\",\"$ref\":\"d#/$defs/"
           "e\",\"$defs\":{\"x\":{\"$id\":\"d\",\"$defs\":{"
           "\"e\":{\"$ref\":\"#n\"},\"f\":{\"$anchor\":\"n\",\"type\":\"null\"}}}}}",
           LIST("null"), LIST("1"));
    expect(LT_GRAMMAR_SCHEMA, "{\"enum\":[0.1,1.0,1e2]}", LIST("0.1", "1", "1.0", "100"),
           LIST("0.10", "2"));
    expect(
        LT_GRAMMAR_SCHEMA,
        "{\"type\":\"integer\",\"minimum\":-9223372036854775808,\"maximum\":9223372036854775807}",
        LIST("-999999999999999999", "0"), LIST("1.5"));
}

static void formats(void **state) {
    const struct {
        const char *format;
        const char *const *yes, *const *no;
    } rows[] = {
        {"date", LIST("2024-02-29", "2023-12-31", "2000-02-29"),
         LIST("2023-02-29", "1900-02-29", "0000-01-01", "2023-13-01")},
        {"time", LIST("12:00:00Z", "23:59:60z", "01:02:03.5+05:30"), LIST("24:00:00Z", "12:00:00")},
        {"duration", LIST("P3W", "P1Y2M", "PT36H"), LIST("P1Y2D", "PT1D", "P", "P1YT")},
        {"ipv6", LIST("::1", "1:2:3:4:5:6:7:8", "::ffff:1.2.3.4", "1::8"),
         LIST("1:2:3:4:5:6:7", ":::", "1::2::3", "12345::", "fe80::1%25eth0")},
        {"hostname", LIST("a", "www.example.com", "1-2"),
         LIST("-a", "a-", "a..b", "a_b", "ab--c", ".")},
        {"email", LIST("a.b@c.de", "a@[127.0.0.1]"), LIST("a", ".a@b", "a..b@c", "a@b_c")},
        {"uri", LIST("mailto:a@b.c", "http://a.b/c?d#e", "urn:a:b"),
         LIST("/a", "a b:c", "http://a b", "//a", "http://[::1")},
        {"uri-reference", LIST("/a/b?c", "#f", "a", ""), LIST("a b", "\\\\a", "a#b#c")},
        {"iri", LIST("http://\xC3\xB6.de/\xC3\xA4"), LIST("/a", "http://a b")},
        {"iri-reference", LIST("\xC3\xB6#\xC3\xA4", "//\xC3\xB6/a"), LIST("a b", "#\\\\")},
        {"uri-template", LIST("http://a/{b}/{?c,d*}", "{+a:3}"), LIST("{", "a}", "{}", "{a b}")},
        {"json-pointer", LIST("", "/a/b~0c~1", "/"), LIST("a", "/~", "/~2")},
        {"relative-json-pointer", LIST("0", "1/a", "2#"), LIST("/a", "01", "-1", "1#a")},
        {"regex", LIST("^a(b|c)+[a-z0-9]{2,10}$", "\\\\d+", "(?:x)?"), LIST("(", "a)", "*", "[a")},
        {"idn-email", LIST("\xC3\xB6@\xC3\xB6.de"), LIST("a", "@a")},
        {"uuid", LIST("123e4567-e89b-12d3-a456-426614174000"),
         LIST("123e4567e89b12d3a456426614174000")}};
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char schema[100], text[200];
        lt_grammar *g;
        (void)snprintf(schema, sizeof schema, "{\"type\":\"string\",\"format\":\"%s\"}",
                       rows[i].format);
        g = open_grammar(LT_GRAMMAR_SCHEMA, schema);
        for (int no = 0; no < 2; no++) {
            for (const char *const *p = no == 0 ? rows[i].yes : rows[i].no; *p != NULL; p++) {
                (void)snprintf(text, sizeof text, "\"%s\"", *p);
                if (accepts(g, text) == (no == 1)) {
                    fail_msg("%s: %s", rows[i].format, text);
                }
            }
        }
        lt_grammar_close(g);
    }
}

/* Patterns that ECMAScript and Python read differently are left out. */
static void patterns(void **state) {
    (void)state;
    expect(LT_GRAMMAR_SCHEMA, "{\"type\":\"string\",\"pattern\":\"^\\\\S\\\\W\\\\D.$\"}",
           LIST("\"a-bc\"", "\"a-b\xC3\xB6\""),
           LIST("\"\xC2\xA0-bc\"",
                "\"a\xC3\xB6"
                "bc\"",
                "\"a-\xD9\xA1"
                "c\"",
                "\"a-b\\r\""));
    expect(LT_GRAMMAR_SCHEMA, "{\"type\":\"string\",\"pattern\":\"^[^\\\\w]$\"}", LIST("\"-\""),
           LIST("\"\xC3\xB6\"", "\"a\""));
    expect(LT_GRAMMAR_SCHEMA,
           "{\"type\":\"string\",\"pattern\":\"^[\\\\uD83D\\\\uDE00a]+$\",\"minLength\":2,"
           "\"maxLength\":3}",
           LIST("\"\xF0\x9F\x98\x80\xF0\x9F\x98\x80\"", "\"aaa\""),
           LIST("\"\xF0\x9F\x98\x80\"", "\"aaaa\""));
    expect(LT_GRAMMAR_SCHEMA, "{\"type\":\"string\",\"pattern\":\"^[a-z]+$\",\"maxLength\":3000}",
           LIST("\"abc\""), LIST("\"A\"", "\"\""));
}

/* Against Python's re: tools/check_grammar.py regex. */
static void anchors_anywhere(void **state) {
    (void)state;
    expect(LT_GRAMMAR_SCHEMA, "{\"type\":\"string\",\"pattern\":\"(^a|b)c(d$|e)\"}",
           LIST("\"acd\"", "\"acex\"", "\"xbcd\"", "\"xbcey\""),
           LIST("\"xacd\"", "\"acdx\"", "\"ac\""));
    expect(LT_GRAMMAR_SCHEMA, "{\"type\":\"string\",\"pattern\":\"^(?:$|a+$)|(?:^b)\"}",
           LIST("\"\"", "\"aa\"", "\"bx\""), LIST("\"ab\"", "\"xb\""));
    expect(LT_GRAMMAR_REGEX, "(?:^a$)?|(b|c^)d", LIST("a", "", "bd"), LIST("cd", "aa"));
}

/* Texts made to take long are refused within the time that others wait. */
static void hostile_schemas(void **state) {
    char *text = malloc(1 << 20), *p = text;
    lt_grammar *g = NULL;
    lt_err err;
    (void)state;
    p += sprintf(p, "{\"allOf\":[");
    for (int i = 0; i < 24; i++) { /* 3^24 combinations. */
        p += sprintf(
            p,
            "%s{\"anyOf\":[{\"required\":[\"a%d\"]},{\"required\":[\"b%d\"]},{\"required\":"
            "[\"c%d\"]}]}",
            i > 0 ? "," : "", i, i, i);
    }
    p += sprintf(p, "]}");
    err = lt_grammar_open(&g, vocab, LT_GRAMMAR_SCHEMA, text, (size_t)(p - text));
    assert_int_equal(err, LT_ERR_LIMIT);
    p = text + sprintf(text, "{\"pattern\":\"(a|b)*a(a|b){40}\",\"maxLength\":100000}");
    err = lt_grammar_open(&g, vocab, LT_GRAMMAR_SCHEMA, text, (size_t)(p - text));
    assert_int_equal(err, LT_ERR_LIMIT);
    p = text;
    for (int i = 0; i < 1000; i++) {
        p += sprintf(p, "{\"not\":");
    }
    p += sprintf(p, "{\"type\":\"null\"}");
    memset(p, '}', 1000);
    err = lt_grammar_open(&g, vocab, LT_GRAMMAR_SCHEMA, text, (size_t)(p + 1000 - text));
    assert_true(err == LT_ERR_LIMIT || err == LT_OK);
    lt_grammar_close(err == LT_OK ? g : NULL);
    free(text);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(official_suite),
                                       cmocka_unit_test(random_schemas),
                                       cmocka_unit_test(no_name_and_no_item_twice),
                                       cmocka_unit_test(copies_keep_their_names),
                                       cmocka_unit_test(keywords),
                                       cmocka_unit_test(formats),
                                       cmocka_unit_test(patterns),
                                       cmocka_unit_test(anchors_anywhere),
                                       cmocka_unit_test(hostile_schemas)};
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, open_vocab, close_vocab);
}
