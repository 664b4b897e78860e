/* The grammar of an answer and the parser agree: random texts of the grammar of each format, free
 * or forced, with marks as special tokens or as plain text, are parsed as calls of the tools,
 * with arguments that match their schemas. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/rng.h"
#include "serve/parse.h"

#define P "\xEF\xBD\x9C"
#define U "\xE2\x96\x81"

static const char *const specials[] = {"</s>",
                                       "<think>",
                                       "</think>",
                                       "<tool_call>",
                                       "</tool_call>",
                                       "<|python_tag|>",
                                       "[TOOL_CALLS]",
                                       "[ARGS]",
                                       "[CALL_ID]",
                                       "<|tools_prefix|>",
                                       "<|tools_suffix|>",
                                       "<" P "tool" U "calls" U "begin" P ">",
                                       "<" P "tool" U "calls" U "end" P ">",
                                       "<" P "tool" U "call" U "begin" P ">",
                                       "<" P "tool" U "call" U "end" P ">",
                                       "<" P "tool" U "sep" P ">",
                                       "<|channel|>",
                                       "<|message|>",
                                       "<|constrain|>",
                                       "<|start|>",
                                       "<|end|>",
                                       "<|return|>"};
#define N_SPECIALS (sizeof specials / sizeof *specials)

/* All bytes as single tokens (byte-level BPE without merges), and the marks: all special, or only
 * the end. */
static lt_tokenizer *open_tokenizer(bool special) {
    lt_tokenizer *t = NULL;
    json_t *vocab = json_object(), *added = json_array(), *root;
    char *text;
    int id = 0, moved = 0;
    for (int b = 0; b < 256; b++) {
        const bool shown = (b >= '!' && b <= '~') || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
        const unsigned cp = shown ? (unsigned)b : 256U + (unsigned)moved;
        const char two[] = {(char)(0xC0 | cp >> 6), (char)(0x80 | (cp & 63)), 0};
        const char one[] = {(char)cp, 0};
        moved += !shown;
        json_object_set_new(vocab, cp < 128 ? one : two, json_integer(id++));
    }
    for (size_t i = 0; i < (special ? N_SPECIALS : 1); i++) {
        json_array_append_new(added, json_pack("{s:i, s:s, s:b, s:b, s:b, s:b, s:b}", "id", id++,
                                               "content", specials[i], "single_word", 0, "lstrip",
                                               0, "rstrip", 0, "normalized", 0, "special", 1));
    }
    root = json_pack("{s:s, s:o, s:n, s:{s:s, s:b, s:b}, s:n, s:{s:s}, s:{s:s, s:o, s:[]}}",
                     "version", "1.0", "added_tokens", added, "normalizer", "pre_tokenizer", "type",
                     "ByteLevel", "add_prefix_space", 0, "use_regex", 0, "post_processor",
                     "decoder", "type", "ByteLevel", "model", "type", "BPE", "vocab", vocab,
                     "merges");
    text = json_dumps(root, 0);
    if (lt_tokenizer_open_memory(&t, text, strlen(text), "tokenizer.json", NULL) != LT_OK) {
        fail_msg("%s", lt_error_message());
    }
    free(text);
    json_decref(root);
    return t;
}

static const char tools_text[] =
    "[{\"type\": \"function\", \"function\": {\"name\": \"get_weather\", \"parameters\": "
    "{\"type\": "
    "\"object\", \"properties\": {\"city\": {\"type\": \"string\", \"maxLength\": 4}, \"days\": "
    "{\"$ref\": \"#/$defs/d\"}}, \"required\": [\"city\", \"days\"], \"$defs\": {\"d\": {\"type\": "
    "\"integer\", \"minimum\": 1, \"maximum\": 99}}}}},"
    "{\"type\": \"function\", \"function\": {\"name\": \"add.up\", \"parameters\": {\"type\": "
    "\"object\", \"properties\": {\"x\": {\"$ref\": \"#/$defs/d\"}}, \"required\": [\"x\"], "
    "\"$defs\": {\"d\": {\"enum\": [\"a}\", null, [1]]}}}}}]";

typedef struct {
    char content[4096], args[64][256], names[64][32];
    int n;
} heard;

static void add(char *to, size_t room, const char *s, size_t n) {
    const size_t have = strlen(to);
    assert_true(have + n < room);
    memcpy(to + have, s, n);
    to[have + n] = 0;
}

static void hear(void *ctx, lt_part_kind part, int call, const char *text, size_t n) {
    heard *h = ctx;
    assert_true(call < 64);
    if (part == LT_PART_CALL_NAME) {
        add(h->names[call], sizeof h->names[call], text, n);
        h->n = call + 1;
    } else if (part == LT_PART_CALL_ARGS) {
        add(h->args[call], sizeof h->args[call], text, n);
    } else if (part == LT_PART_CONTENT) {
        add(h->content, sizeof h->content, text, n);
    }
}

static void check_args(const heard *h, int i, const char *text) {
    json_t *j = json_loads(h->args[i], 0, NULL);
    const json_t *days = json_object_get(j, "days"), *x = json_object_get(j, "x");
    const bool weather = strcmp(h->names[i], "get_weather") == 0;
    if (j == NULL ||
        (weather ? !json_is_string(json_object_get(j, "city")) || json_integer_value(days) < 1 ||
                       json_integer_value(days) > 99
                 : strcmp(h->names[i], "add.up") != 0 ||
                       (!json_is_null(x) && !json_is_array(x) && !json_is_string(x)))) {
        fail_msg("call %d of %s: '%s' %s", i, text, h->names[i], h->args[i]);
    }
    json_decref(j);
}

/* A random token that may follow, with ends and closing marks more often; -1: an end. */
static int32_t step(lt_grammar_state *s, int64_t n_ids, int32_t end, lt_rng *rng, bool stop) {
    static const char closing[] = "]}\"";
    uint32_t bits[16];
    int32_t ids[512];
    uint64_t n = 0;
    assert_int_equal(lt_grammar_mask(s, bits, n_ids), LT_OK);
    for (int32_t id = 0; id < n_ids; id++) {
        if (bits[id / 32] >> (id % 32) & 1) {
            ids[n++] = id;
        }
    }
    assert_true(n > 0);
    if ((bits[end / 32] >> (end % 32) & 1) && (stop || n == 1)) {
        return -1;
    }
    for (const char *c = closing; *c != 0 && (stop || lt_rng_below(rng, 3) == 0); c++) {
        for (uint64_t i = 0; i < n; i++) {
            if (ids[i] == *c) { /* The id of a byte is the byte. */
                return ids[i];
            }
        }
    }
    for (;;) {
        const int32_t id = ids[lt_rng_below(rng, n)];
        if (id != end) {
            return id;
        }
    }
}

typedef struct {
    lt_parse_format format;
    const char *lead; /* The beginning of a free answer up to and including the mark. */
} row;

static const row rows[] = {
    {LT_PARSE_HERMES, "Let me see.\n<tool_call>"},
    {LT_PARSE_LLAMA3, "{\"name\":"},
    {LT_PARSE_LLAMA3, "<|python_tag|>"},
    {LT_PARSE_PLAIN, "{ \"name\":"},
    {LT_PARSE_MISTRAL, "[TOOL_CALLS]"},
    {LT_PARSE_MISTRAL_ARGS, "Sure. [TOOL_CALLS]"},
    {LT_PARSE_DEEPSEEK, "ok<" P "tool" U "calls" U "begin" P ">"},
    {LT_PARSE_DEEPSEEK31, "<" P "tool" U "calls" U "begin" P ">"},
    {LT_PARSE_APERTUS, "<|tools_prefix|>"},
    {LT_PARSE_HARMONY, "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>"
                       "commentary to="},
};

/* Feed the text as tokens: special ones if there are any. */
static void feed(lt_grammar_state *s, lt_tokenizer *t, const char *text) {
    lt_tokenizer_scratch *scratch = NULL;
    lt_ids ids = {0};
    assert_int_equal(lt_tokenizer_scratch_open(&scratch, t), LT_OK);
    assert_int_equal(
        lt_tokenizer_encode(t, scratch, text, strlen(text), LT_ENCODE_PARSE_SPECIAL, &ids), LT_OK);
    for (size_t i = 0; i < ids.n; i++) {
        if (lt_grammar_accept(s, (int32_t)ids.data[i]) != LT_OK) {
            fail_msg("%s: token %zu: %s", text, i, lt_error_message());
        }
    }
    lt_ids_free(&ids);
    lt_tokenizer_scratch_close(scratch);
}

static void walk(const row *r, lt_grammar *g, lt_tokenizer *t, const char *lead, uint64_t seed) {
    const int64_t n_ids = (int64_t)lt_tokenizer_describe(t).n_ids;
    const int32_t end = (int32_t)lt_tokenizer_find(t, "</s>", 4);
    lt_rng rng = {.seed = seed};
    lt_grammar_state *s = NULL;
    lt_parser *p = NULL;
    static heard h;
    char text[1 << 16];
    int n_steps = 0;
    memset(&h, 0, sizeof h);
    (void)snprintf(text, sizeof text, "%s", lead);
    assert_int_equal(lt_grammar_state_open(&s, g), LT_OK);
    feed(s, t, lead);
    for (int32_t id; (id = step(s, n_ids, end, &rng, n_steps > 40)) >= 0 && n_steps < 6000;
         n_steps++) {
        size_t n = 0;
        const char *piece = lt_tokenizer_piece(t, (uint32_t)id, &n);
        assert_int_equal(lt_grammar_accept(s, id), LT_OK);
        add(text, sizeof text, piece, n);
    }
    assert_int_equal(
        lt_parser_open(&p,
                       &(lt_parse_options){.format = r->format, .tools = true, .reasoning = true}),
        LT_OK);
    assert_int_equal(lt_parser_feed(p, text, strlen(text), hear, &h), LT_OK);
    assert_int_equal(lt_parser_end(p, hear, &h), LT_OK);
    if (n_steps == 6000 || h.n == 0) {
        fail_msg("%s, %d steps, no call: %s", lt_parse_format_name(r->format), n_steps, text);
    }
    for (int i = 0; i < h.n; i++) {
        check_args(&h, i, text);
    }
    lt_parser_close(p);
    lt_grammar_state_close(s);
}

static void check_row(const row *r, bool special, bool forced, bool parallel) {
    lt_tokenizer *t = open_tokenizer(special);
    lt_grammar_vocab *v = NULL;
    lt_grammar *g = NULL;
    json_t *tools = json_loads(tools_text, 0, NULL);
    const int32_t end = (int32_t)lt_tokenizer_find(t, "</s>", 4);
    assert_non_null(tools);
    assert_int_equal(lt_grammar_vocab_open(&v, t, &end, 1), LT_OK);
    if (lt_parse_grammar(&g, v,
                         &(lt_parse_grammar_options){.marks = {.format = r->format},
                                                     .tools = tools,
                                                     .forced = forced,
                                                     .parallel = parallel}) != LT_OK) {
        fail_msg("%s: %s", lt_parse_format_name(r->format), lt_error_message());
    }
    for (uint64_t seed = 0; seed < 20; seed++) {
        walk(r, g, t, forced && r->format != LT_PARSE_HARMONY ? "" : r->lead, seed);
    }
    lt_grammar_close(g);
    lt_grammar_vocab_close(v);
    lt_tokenizer_close(t);
    json_decref(tools);
}

static void calls_match_their_schemas(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        for (int how = 0; how < 8; how++) {
            check_row(&rows[i], (how & 1) != 0, (how & 2) != 0, (how & 4) != 0);
        }
    }
}

/* Free text, reasoning and forms: what the grammar of the answer accepts. */
static void answers(void **state) {
    static const struct {
        lt_parse_grammar_options o;
        const char *yes, *no; /* no: refused before its end. */
    } all[] = {
        {{.marks = {LT_PARSE_HERMES, NULL, NULL}, .tools = (json_t *)1},
         "Any text at all, {\"name\": too.",
         "<tool_call>no"},
        {{.marks = {LT_PARSE_PLAIN, NULL, NULL}, .tools = (json_t *)1},
         "{\"nam\": 1} is no call",
         "{\"name\": \"other\""},
        {{.marks = {LT_PARSE_HERMES, "<think>", "</think>"},
          .tools = (json_t *)1,
          .reasoning = true,
          .thinks = true},
         "I could write <tool_call> here.</think>\n\nHello",
         "so</think>ok<tool_call>{}"},
        {{.marks = {LT_PARSE_PLAIN, "<think>", "</think>"},
          .reasoning = true,
          .has_form = true,
          .kind = LT_GRAMMAR_REGEX,
          .form = "yes|no",
          .form_bytes = 6},
         "<think>\nhm, yes?\n</think>\n\nno",
         "<think>yes</think>maybe"},
        {{.marks = {LT_PARSE_PLAIN, "<think>", "</think>"},
          .reasoning = true,
          .has_form = true,
          .kind = LT_GRAMMAR_REGEX,
          .form = "yes|no",
          .form_bytes = 6},
         "yes",
         "hm"},
        {{.marks = {LT_PARSE_HERMES, NULL, NULL},
          .tools = (json_t *)1,
          .has_form = true,
          .kind = LT_GRAMMAR_REGEX,
          .form = "yes|no",
          .form_bytes = 6},
         "<tool_call>{\"name\":\"add.up\",\"arguments\":{\"x\":null}}</tool_call>",
         "may"},
        {{.marks = {LT_PARSE_HARMONY, NULL, NULL},
          .has_form = true,
          .kind = LT_GRAMMAR_REGEX,
          .form = "yes|no",
          .form_bytes = 6},
         "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>no",
         "<|channel|>final<|message|>maybe"},
        {{.marks = {LT_PARSE_HARMONY, NULL, NULL},
          .reasoning = true,
          .thinks = true,
          .has_form = true,
          .kind = LT_GRAMMAR_REGEX,
          .form = "yes|no",
          .form_bytes = 6},
         "hm<|end|><|start|>assistant<|channel|>final<|message|>no",
         "hm<|end|><|start|>assistant<|channel|>final<|message|>maybe"},
    };
    json_t *tools = json_loads(tools_text, 0, NULL);
    (void)state;
    for (size_t i = 0; i < 2 * sizeof all / sizeof *all; i++) {
        lt_parse_grammar_options o = all[i / 2].o;
        lt_tokenizer *t = open_tokenizer(i % 2 == 1);
        const int32_t end = (int32_t)lt_tokenizer_find(t, "</s>", 4);
        lt_grammar_vocab *v = NULL;
        lt_grammar *g = NULL;
        lt_grammar_state *s = NULL;
        const char *no = all[i / 2].no;
        bool refused = false;
        o.tools = o.tools != NULL ? tools : NULL;
        assert_int_equal(lt_grammar_vocab_open(&v, t, &end, 1), LT_OK);
        if (lt_parse_grammar(&g, v, &o) != LT_OK) {
            fail_msg("%zu: %s", i, lt_error_message());
        }
        /* Its marks are always special. */
        if (i % 2 == 1 || o.marks.format != LT_PARSE_HARMONY) {
            assert_int_equal(lt_grammar_state_open(&s, g), LT_OK);
            if (i / 2 != 2 || i % 2 == 0) { /* A special mark cannot occur in reasoning. */
                feed(s, t, all[i / 2].yes);
                assert_true(lt_grammar_accepting(s));
            }
            lt_grammar_state_reset(s);
            for (size_t k = 0; i % 2 == 0 && no[k] != 0 && !refused; k++) {
                const char one[] = {no[k], 0};
                uint32_t id = lt_tokenizer_find(t, one[0] == ' ' ? "\xC4\xA0" : one,
                                                one[0] == ' ' ? 2 : 1);
                refused = lt_grammar_accept(s, (int32_t)id) != LT_OK;
            }
            assert_true(refused || i % 2 == 1);
            lt_grammar_state_close(s);
        }
        lt_grammar_close(g);
        lt_grammar_vocab_close(v);
        lt_tokenizer_close(t);
    }
    json_decref(tools);
}

/* A schema that the grammar cannot express: any object if nothing was promised, else refused by
 * name. */
static void schemas_that_grammars_cannot_express(void **state) {
    static const char text[] =
        "[{\"type\": \"function\", \"function\": {\"name\": \"f\", \"strict\": "
        "false, \"parameters\": {\"not\": {\"format\": \"date\"}}}}]";
    lt_tokenizer *t = open_tokenizer(true);
    lt_grammar_vocab *v = NULL;
    lt_grammar *g = NULL;
    json_t *tools = json_loads(text, 0, NULL);
    lt_parse_grammar_options o = {.marks = {.format = LT_PARSE_HERMES}, .tools = tools};
    (void)state;
    assert_int_equal(lt_grammar_vocab_open(&v, t, NULL, 0), LT_OK);
    assert_int_equal(lt_parse_grammar(&g, v, &o), LT_OK);
    lt_grammar_close(g);
    o.forced = true;
    assert_int_equal(lt_parse_grammar(&g, v, &o), LT_ERR_UNSUPPORTED);
    assert_non_null(strstr(lt_error_message(), "'not'"));
    o.forced = false;
    json_object_set_new(json_object_get(json_array_get(tools, 0), "function"), "strict",
                        json_true());
    assert_int_equal(lt_parse_grammar(&g, v, &o), LT_ERR_UNSUPPORTED);
    json_decref(tools);
    lt_grammar_vocab_close(v);
    lt_tokenizer_close(t);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(calls_match_their_schemas),
                                       cmocka_unit_test(answers),
                                       cmocka_unit_test(schemas_that_grammars_cannot_express)};
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
