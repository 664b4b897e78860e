/* Files of conversations as shards: which conversations are used, cut, left out or refused; and a
 * shard that is found again by its content. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "data/conversations.h"
#include "lateen/data.h"

#define TOKENIZER "tests/golden/data/demo_tokenizer.json"
/* One token per letter or mark, so that lengths are known: "ab" is <a, b>. */
#define TEMPLATE                                                                                   \
    "{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}{{ m.content }}{% "      \
    "endgeneration %}{% else %}{{ m.content }}{% endif %}{% endfor %}"
#define SAYS(user, assistant)                                                                      \
    "{\"messages\": [{\"role\": \"user\", \"content\": \"" user                                    \
    "\"}, {\"role\": \"assistant\", \"content\": \"" assistant "\"}]}\n"

static char folder[] = "/tmp/lateen-conversations-XXXXXX";
static char file[64];
static lt_tokenizer *tokenizer;
static lt_chat_template *template;
static lt_chat_source source;

static int set_up(void **state) {
    (void)state;
    if (mkdtemp(folder) == NULL) {
        return -1;
    }
    snprintf(file, sizeof file, "%s/chat.jsonl", folder);
    if (lt_tokenizer_open(&tokenizer, TOKENIZER, NULL) != LT_OK ||
        lt_chat_template_open(&template, TEMPLATE, strlen(TEMPLATE), "t") != LT_OK) {
        return -1;
    }
    source = (lt_chat_source){
        .rows = {.template = template, .tokenizer = tokenizer, .messages = "messages"}, .hash = 1};
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    lt_chat_template_close(template);
    lt_tokenizer_close(tokenizer);
    return lt_file_remove_tree(folder) == LT_OK ? 0 : -1;
}

static lt_conversations_options options(const char *lines) {
    assert_int_equal(lt_file_write_atomic(file, lines, strlen(lines)), LT_OK);
    return (lt_conversations_options){.path = file,
                                      .folder = folder,
                                      .source = &source,
                                      .tokenizer_path = TOKENIZER,
                                      .longest = 8,
                                      .n_threads = 2};
}

static void must(lt_err err) {
    if (err != LT_OK) {
        fail_msg("%s", lt_error_message());
    }
}

static void says(const char *text) {
    if (strstr(lt_error_message(), text) == NULL) {
        fail_msg("'%s' is not in: %s", text, lt_error_message());
    }
}

static void bad_rows(void **state) {
    static const char lines[] = SAYS("x", "y") "nonsense\n" SAYS(
        "x", "") "{\"messages\": [{\"role\": \"user\", \"content\": \"q\"}]}\n"
                 "\n" SAYS("z", "w");
    lt_conversations_options o = options(lines);
    lt_conversations_stats stats;
    char prefix[LT_PATH_BYTES];
    (void)state;
    must(lt_conversations_shard(prefix, &stats, &o));
    assert_int_equal(stats.documents, 2);
    assert_int_equal(stats.labels, 2);
    assert_int_equal(stats.left_out, 3);
    assert_false(stats.existed);
    o.bad_rows = LT_BAD_ROWS_FAIL;
    assert_int_equal(lt_conversations_shard(prefix, &stats, &o), LT_ERR_FORMAT);
    says("chat.jsonl:2: column");
    o = options(SAYS("x", "y") "{\"messages\": [{\"role\": \"user\", \"content\": \"q\"}]}\n");
    o.bad_rows = LT_BAD_ROWS_FAIL;
    assert_int_equal(lt_conversations_shard(prefix, &stats, &o), LT_ERR_FORMAT);
    says("chat.jsonl:2: no turn of the assistant to learn");
    o = options("{}\n{}\n");
    assert_int_equal(lt_conversations_shard(prefix, &stats, &o), LT_ERR_FORMAT);
    says("no conversation to learn from: 2 were left out");
    o = options("[{\"messages\": []}]");
    assert_int_equal(lt_conversations_shard(prefix, &stats, &o), LT_ERR_FORMAT);
    says("no conversation to learn from: 1 were left out");
    o = options("[" SAYS("x", "y") ",\n" SAYS("x", "z") "]");
    assert_int_equal(lt_conversations_shard(prefix, &stats, &o), LT_OK);
    assert_int_equal(stats.documents, 2);
}

/* Rows of 8 tokens: the first is cut within its answer, the second has no answer within them, the
 * third fits. */
static void too_long(void **state) {
    static const char lines[] = SAYS("1 2 3 ", "4 5 6 7 8 9") SAYS("1 2 3 4 5 6 7 8 9 ", "q")
        SAYS("1 ", "2");
    lt_conversations_options o = options(lines);
    lt_conversations_stats stats;
    char prefix[LT_PATH_BYTES];
    lt_shard *shard = NULL;
    uint64_t first, n;
    (void)state;
    must(lt_conversations_shard(prefix, &stats, &o));
    assert_true(stats.documents == 2 && stats.cut == 1 && stats.left_out == 1);
    must(lt_shard_open(&shard, prefix, -1));
    lt_shard_document(shard, 0, &first, &n);
    assert_int_equal(n, 8);
    lt_shard_close(shard);
    o.too_long = LT_TOO_LONG_SKIP;
    must(lt_conversations_shard(prefix, &stats, &o));
    assert_true(stats.documents == 1 && stats.cut == 0 && stats.left_out == 2);
    o.too_long = LT_TOO_LONG_FAIL;
    assert_int_equal(lt_conversations_shard(prefix, &stats, &o), LT_ERR_FORMAT);
    says("chat.jsonl:1: ");
    says("of which rows hold 8");
}

/* The same content gives the same shard, whatever its time; other content, another template or
 * another length gives another one. */
static void found_by_content(void **state) {
    lt_conversations_options o = options(SAYS("k", "v"));
    lt_conversations_stats stats;
    char one[LT_PATH_BYTES], other[LT_PATH_BYTES];
    (void)state;
    must(lt_conversations_shard(one, &stats, &o));
    assert_false(stats.existed);
    must(lt_conversations_shard(other, &stats, &o));
    assert_true(stats.existed && strcmp(one, other) == 0 && stats.documents == 1);
    usleep(20000);
    o = options(SAYS("k", "v")); /* Written again. */
    must(lt_conversations_shard(other, &stats, &o));
    assert_true(strcmp(one, other) == 0 && stats.documents == 1);
    o = options(SAYS("k", "u"));
    must(lt_conversations_shard(other, &stats, &o));
    assert_true(strcmp(one, other) != 0);
    o = options(SAYS("k", "v"));
    o.longest = 9;
    must(lt_conversations_shard(other, &stats, &o));
    assert_true(strcmp(one, other) != 0);
    source.hash = 2;
    o.longest = 8;
    must(lt_conversations_shard(other, &stats, &o));
    assert_true(strcmp(one, other) != 0);
    source.hash = 1;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bad_rows),
        cmocka_unit_test(too_long),
        cmocka_unit_test(found_by_content),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
