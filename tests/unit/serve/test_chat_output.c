/* A chat answer as items: kinds in order, calls with their names, unique ids, text appended to
 * the last item. test_parse.c tests how text is parsed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "serve/api/formats/chat_output.h"

static void on(lt_reply_choice *c, int item, bool fresh, const char *text, size_t n) {
    lt_json_out *heard = c->reply->format_state;
    const lt_chat_item *i = lt_chat_item_at(c, item);
    if (fresh) {
        lt_out_rawf(heard, "%s%s:", heard->n > 0 ? "|" : "",
                    i->kind == LT_CHAT_CALL      ? i->name
                    : i->kind == LT_CHAT_CONTENT ? "content"
                                                 : "reasoning");
    }
    lt_out_raw(heard, text, n);
}

static void items_in_order(void **state) {
    static const char text[] =
        "<think>\nhm</think>\n\nYes <tool_call>{\"name\": \"f\", \"arguments\": {\"a\": 1}}"
        "</tool_call>\n<tool_call>{\"name\": \"g\", \"arguments\": {}}</tool_call> bye";
    static lt_server s;
    lt_json_out heard = {0}, all = {0};
    static const lt_formatter formatter = {.piece = on};
    lt_reply r = {.server = &s,
                  .formatter = &formatter,
                  .listen = {.tools = true, .think = true},
                  .format_state = &heard};
    lt_reply_choice c = {.reply = &r};
    const lt_chat_output *said;
    (void)state;
    s.marks = lt_parse_detect("<tool_call></think>");
    for (size_t at = 0; at < strlen(text); at++) {
        lt_chat_output_token(&c);
        assert_int_equal(c.reasoning_tokens, at < 7 ? 0 : at < 18 ? at - 6 : 11);
        c.logs.n = at + 1; /* Each byte is a token. */
        lt_chat_output_text(&c, text + at, 1);
    }
    assert_true(lt_chat_output_finish(&c));
    said = c.state;
    assert_string_equal(heard.data, "reasoning:hm|content:Yes|f:{\"a\": 1}|g:{}|content:bye");
    assert_int_equal(said->n_items, 5);
    assert_int_equal(said->n_calls, 2);
    /* For each item the bytes up to its last one; for calls, those of the arguments. */
    for (int i = 0; i < 5; i++) {
        static const size_t logs[5][2] = {{0, 10}, {20, 23}, {62, 70}, {122, 124}, {138, 141}};
        assert_int_equal(said->items[i].logs_from, logs[i][0]);
        assert_int_equal(said->items[i].logs_to, logs[i][1]);
    }
    assert_int_equal(said->items[3].call, 1);
    assert_string_not_equal(said->items[2].id, said->items[3].id);
    assert_memory_equal(said->items[2].id, "call_", 5);
    assert_true(lt_chat_output_has(said, LT_CHAT_REASONING));
    lt_chat_output_gather(said, LT_CHAT_CONTENT, &all);
    assert_string_equal(all.data, "Yesbye");
    lt_chat_output_close(&c);
    c = (lt_reply_choice){.reply = &r, .logs = {.n = 1}}; /* The whole text is one token. */
    lt_chat_output_text(&c, text, strlen(text));
    assert_true(lt_chat_output_finish(&c));
    said = c.state;
    for (int i = 0; i < 5; i++) { /* The first item has it, and no other. */
        assert_int_equal(said->items[i].logs_from, i > 0);
        assert_int_equal(said->items[i].logs_to, 1);
    }
    lt_chat_output_close(&c);
    lt_out_free(&heard);
    lt_out_free(&all);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(items_in_order)};
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
