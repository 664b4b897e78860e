/* `lateen chat` in this process: each answer is what the model writes after the conversation as the
 * template renders it, which this test does by hand and gives to `lateen generate`. */
#include "unit/cli/verb_run.h"

#include "base/error.h"
#include "base/file.h"
#include "unit/scratch_folder.h"

int lt_verb_chat(int argc, char **argv);
int lt_verb_generate(int argc, char **argv);

#define MODEL                                                                                      \
    "--model tests/golden/stories260k/stories260K.bin "                                            \
    "--tokenizer tests/golden/stories260k/tok512.bin --device cpu --threads 1 --temperature 0 "    \
    "--max-tokens 6 "
#define TEMPLATE "{% for m in messages %}[{{m.role}}:{{m.content}}]{% endfor %}"

static const char *write_file(const char *name, const char *text) {
    static char path[LT_PATH_BYTES];
    assert_int_equal(lt_path_join(path, folder, name), LT_OK);
    assert_int_equal(lt_file_write_atomic(path, text, strlen(text)), LT_OK);
    return path;
}

/* What the model writes after a text; free() it. */
static char *written(const char *text) {
    char words[512], *out;
    ran r;
    (void)snprintf(words, sizeof words, "generate " MODEL "--prompt-file %s",
                   write_file("prompt.txt", text));
    r = run_verb(lt_verb_generate, words);
    assert_int_equal(r.status, LT_EXIT_DONE);
    out = strdup(r.out);
    ran_close(&r);
    assert_non_null(out);
    return out;
}

static ran chat(const char *lines, const char *more) {
    char words[512];
    ran r;
    (void)snprintf(words, sizeof words, "chat " MODEL "--chat-template %s %s",
                   write_file("t.jinja", TEMPLATE), more);
    run_input = lines;
    r = run_verb(lt_verb_chat, words);
    run_input = "";
    return r;
}

/* A turn has all turns before it; /reset keeps the system message alone, and /system replaces it.
 * Empty lines are no turns, and nothing is read behind /quit. */
static void a_turn_has_the_turns_before_it(void **state) {
    char text[1024], want[1024];
    char *hi = written("[user:Hi]"), *lily, *with_system, *again;
    ran r;
    (void)state;
    (void)snprintf(text, sizeof text, "[user:Hi][assistant:%s][user:Lily]", hi);
    lily = written(text);
    with_system = written("[system:Tom][user:Hi]");
    (void)snprintf(text, sizeof text, "[system:Tom][user:Hi][assistant:%s][user:Lily]",
                   with_system);
    again = written(text);
    assert_true(strcmp(hi, lily) != 0 && strcmp(hi, with_system) != 0 && strcmp(lily, again) != 0);
    r = chat("Hi\n\nLily\r\n/reset\nHi\n/system Tom\nHi\n/reset\nHi\nLily\n/quit\nHi\n", "");
    (void)snprintf(want, sizeof want, "%s\n%s\n%s\n%s\n%s\n%s\n", hi, lily, hi, with_system,
                   with_system, again);
    assert_string_equal(r.out, want);
    assert_int_equal(r.status, LT_EXIT_DONE);
    ran_close(&r);
    r = chat("Hi\n/system \nHi", "--system Tom");
    (void)snprintf(want, sizeof want, "%s\n%s\n", with_system, hi);
    assert_string_equal(r.out, want);
    ran_close(&r);
    free(hi);
    free(lily);
    free(with_system);
    free(again);
}

/* A conversation that outgrows the context is forgotten, which is said; the next one goes on. */
static void a_conversation_outgrows_its_context(void **state) {
    char want[256], *hi = written("[user:Hi]");
    ran r;
    (void)state;
    (void)snprintf(want, sizeof want, "%s\n%s\n", hi, hi);
    r = chat("Hi\na line of words that does not fit beside all the others\nHi\n", "--context 32");
    assert_string_equal(r.out, want);
    assert_non_null(strstr(r.err, "the conversation is forgotten (--context gives more room)"));
    assert_int_equal(r.status, LT_EXIT_DONE);
    ran_close(&r);
    free(hi);
}

/* The model's own template, whose marks are tokens; and a model that is not there. */
static void the_template_of_the_model(void **state) {
    static const char model[] = "--model tests/golden/sft --device cpu --threads 1 --dtype fp32 "
                                "--temperature 0 --max-tokens 6";
    char words[512];
    ran r, want;
    (void)state;
    (void)snprintf(words, sizeof words, "generate %s --special --prompt-file %s", model,
                   write_file("prompt.txt", "<s><|user|>Hi<|end|><|assistant|>"));
    want = run_verb(lt_verb_generate, words);
    (void)snprintf(words, sizeof words, "chat %s", model);
    run_input = "Hi\n";
    r = run_verb(lt_verb_chat, words);
    assert_int_equal(strncmp(r.out, want.out, strlen(want.out)), 0);
    assert_string_equal(r.out + strlen(want.out), "\n");
    ran_close(&r);
    ran_close(&want);
    run_input = "";
    run_refused(lt_verb_chat, "chat --model /no/such --device cpu", LT_EXIT_FAILED, "/no/such");
}

static void what_is_asked_is_told(void **state) {
    ran r = chat("Hi\n", "--stats");
    (void)state;
    assert_non_null(strstr(r.err, " 6 written at "));
    ran_close(&r);
    r = chat("Hi\n", "");
    assert_null(strstr(r.err, "written at"));
    ran_close(&r);
    r = chat("a\xff\n", "--invalid-utf8 fail");
    assert_int_not_equal(r.status, LT_EXIT_DONE);
    assert_non_null(strstr(r.err, "message: invalid UTF-8: 1 parts"));
    assert_string_equal(r.out, "");
    ran_close(&r);
    r = chat("", "--system a\xff --invalid-utf8 fail");
    assert_non_null(strstr(r.err, "system message: invalid UTF-8: 1 parts"));
    ran_close(&r);
    r = chat("Hi\n", "--format chatml");
    assert_int_equal(r.status, LT_EXIT_USAGE);
    assert_non_null(strstr(r.err, "--format chatml beside --chat-template"));
    ran_close(&r);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_turn_has_the_turns_before_it),
        cmocka_unit_test(a_conversation_outgrows_its_context),
        cmocka_unit_test(the_template_of_the_model),
        cmocka_unit_test(what_is_asked_is_told),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
