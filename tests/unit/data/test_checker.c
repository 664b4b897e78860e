/* Checkers: many spellings of a true answer are right, near misses are wrong. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/rng.h"
#include "data/check/checker.h"
#include "data/check/python_text.h"

typedef struct {
    lt_check_kind kind;
    const char *gold;
    const char *right[24], *wrong[24];
} row;

static const row rows[] = {
    {LT_CHECK_NUMBER,
     "42",
     {"42",
      "42.",
      "42.0",
      "+42",
      "042",
      "\\boxed{42}",
      "#### 42",
      "$42$",
      "$42",
      "**42**",
      "84/2",
      "The answer is 42.",
      "x = 42",
      "6 * 7",
      "6 \\times 7",
      "\\(42\\)",
      "42 apples",
      "<think>41? 43?</think>42",
      "4.2e1",
      "Answer: 42",
      "21 \xc3\x97 2",
      "<answer>42</answer>"},
     {"41",
      "43",
      "-42",
      "42.0000001",
      "420",
      "4 2",
      "42%",
      "42 thousand",
      "<think>42",
      "42 or 43",
      "0.42",
      "42x",
      "\\boxed{41} 42",
      "",
      "forty-two",
      "42,",
      "x > 42",
      "x <= 42",
      "1/42",
      "#### 42 43"}},
    {LT_CHECK_NUMBER,
     "1234567.5",
     {"1,234,567.5", "1234567.50", "1{,}234{,}567.5", "\\$1,234,567.50", "1\\,234\\,567.5",
      "1\xe2\x80\xaf"
      "234\xe2\x80\xaf"
      "567.5",
      "1.2345675e6", "2469135/2", "1234567 1/2", "1.2345675 million"},
     {"12,34,567.5", "1,234,5675", "1234,567.5", "1.234.567,5", "1234567", "1,234,567.05",
      "0,001,234,567.5"}},
    {LT_CHECK_NUMBER,
     "1200",
     {"12 hundred", "1.2 thousand", "0.0012 million", "12 hundred apples", "1200 apples"},
     {"12 thousand", "120", "1.2 hundred", "1.2 million", "12 ten"}},
    {LT_CHECK_NUMBER,
     "3000000000",
     {"3 billion", "0.003 trillion", "3000 million", "3e9"},
     {"3 million", "3 trillion", "3"}},
    {LT_CHECK_NUMBER,
     "3/4",
     {"0.75", ".75", "75%", "75 percent", "\\frac{3}{4}", "\\dfrac34", "\\frac34", "6/8", "75\\%",
      "\xc2\xbe", "-3/-4", "\\frac{ 6 }{ 8 }", "1 - 1/4", "\\frac{\\frac{3}{2}}{2}", "3 \\div 4"},
     {"0.7500000000000000001", "0.74999999999999999", "75", "4/3", "3", "-3/4", "3/0", "3//4",
      "\\frac{3}", "0.75%"}},
    {LT_CHECK_NUMBER,
     "2 1/2",
     {"2.5", "5/2", "2\\frac{1}{2}", "2\\frac12", "2\xc2\xbd", "250%", "2 + 1/2"},
     {"21/2", "1", "2.05", "-2 1/2"}},
    {LT_CHECK_NUMBER,
     "-1 1/3",
     {"-4/3", "-1\\frac13",
      "\xe2\x88\x92"
      "4/3"},
     {"-2/3", "-1.3333333"}},
    {LT_CHECK_NUMBER,
     "90 km/h",
     {"90", "90 km/h", "90 km per hour", "90 kilometres per hour", "90 kph", "90\\text{ km/h}",
      "90 \\mathrm{km/h}", "90km/h"},
     {"90 km", "90 m/s", "9 km/h", "90 km/min", "90 miles per hour", "90 thousand km/h"}},
    {LT_CHECK_NUMBER, "5 m", {"5", "5 m", "5m", "5 metres", "5 meters"}, {"5 km", "5 mm", "5 M"}},
    {LT_CHECK_NUMBER,
     "(x+1)^2",
     {"x^2 + 2x + 1", "(1+x)(x+1)", "y = x^2+2x+1", "x(x+2)+1", "\\left(x+1\\right)^{2}",
      "x\xc2\xb2 + 2x + 1", "(x+1)**2", "\\frac{2(x+1)^2}{2}"},
     {"x^2 + 1", "x^2+2x-1", "(x+1)^3", "(y+1)^2", "4", "x^2 + 2x + 1.0000001"}},
    {LT_CHECK_NUMBER, "-2^2", {"-4", "-(2)^2"}, {"4", "(-2)^2"}},
    {LT_CHECK_NUMBER, "2^-2", {"1/4", "0.25", "2^{-2}"}, {"4", "-4"}},
    {LT_CHECK_NUMBER, "2^3^2", {"512"}, {"64"}},
    {LT_CHECK_NUMBER, "2^300", {"4^150", "2^299*2", "2^{300}"}, {"2^300+1", "2^301", "4^149"}},
    {LT_CHECK_NUMBER, "\\sqrt{16}", {"4", "\\sqrt{16}", "8/2"}, {"-4", "16"}},
    {LT_CHECK_NUMBER, "2\\sqrt{2}", {"2\\sqrt{2}", "2 \\sqrt{ 2 }"}, {"2.828427", "\\sqrt{2}"}},
    {LT_CHECK_NUMBER, "2\\pi", {"2\xcf\x80", "\\pi*2", "\\pi + \\pi"}, {"6.28", "\\pi", "2p"}},
    {LT_CHECK_LIST,
     "[1, 20, -3]",
     {"[1, 20, -3]", "1, 20, -3", "(1,20,-3)", "\\boxed{1, 20, -3}", "[1.0, 40/2, -3]",
      "1, 20 and -3", "\\{1, 20, -3\\}", "1, 20, and -3"},
     {"[1, -3, 20]", "[1, 20]", "[1, 20, -3, 4]", "[1, 20, 3]", "120-3", "", "[]", "1 20 -3",
      "1, 20 and and -3"}},
    {LT_CHECK_LIST, "[1, 234]", {"[1,234]", "1,234"}, {"1234", "[1234]"}},
    {LT_CHECK_LIST, "[]", {"[]", "[ ]", "\\boxed{[]}"}, {"", "[0]", "nothing"}},
    {LT_CHECK_LIST,
     "Ann, Bob",
     {"Ann, Bob", "Ann and Bob", "['Ann', 'Bob']", "Ann, Bob."},
     {"Bob, Ann", "Ann", "Ann, bob", "Ann, Bob, Cid"}},
    {LT_CHECK_TEXT,
     "drow",
     {"drow", "\"drow\"", "`drow`", "'drow'", "#### drow", "Answer: drow"},
     {"Drow", "dro w", "drows", "word", ""}},
    {LT_CHECK_TEXT, "`drow`", {"drow", "`drow`"}, {"drow`w"}},
    {LT_CHECK_TEXT, "a b", {"a b", "a  b"}, {"ab", "a b c"}},
    {LT_CHECK_CHOICE,
     "B",
     {"B", "b", "(B)", "B.", "B) Paris", "(B) A town", "option B", "**B**", "The answer is (B).",
      "\\boxed{B}", "\\boxed{\\text{B}}", "Answer: B", "B: yes", "#### B", "Option (B)"},
     {"A", "A or B", "B or C", "Bach", "(B) or (C)", "AB", "(B", "", "Because of it", "B, C", "B}",
      "optionB"}},
    {LT_CHECK_REGEX,
     "[a-c]+\\d{2}",
     {"abc12", "\\boxed{a00}", "Answer: cc99"},
     {"abc123", "xabc12", "abc1", ""}},
};

static bool judge(const row *r, const char *text) {
    lt_checker *c = NULL;
    bool right = false;
    assert_int_equal(lt_checker_open(&c, r->kind, r->gold, strlen(r->gold)), LT_OK);
    assert_int_equal(lt_checker_run(c, text, strlen(text), LT_ANSWER_LENIENT, &right, NULL), LT_OK);
    lt_checker_close(c);
    return right;
}

static void spellings_and_near_misses(void **state) {
    int bad = 0;
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        for (size_t k = 0; k < 24; k++) {
            if (rows[i].right[k] != NULL && !judge(&rows[i], rows[i].right[k])) {
                printf("%s: refuses %s\n", rows[i].gold, rows[i].right[k]);
                bad++;
            }
            if (rows[i].wrong[k] != NULL && judge(&rows[i], rows[i].wrong[k])) {
                printf("%s: accepts %s\n", rows[i].gold, rows[i].wrong[k]);
                bad++;
            }
        }
    }
    assert_int_equal(bad, 0);
}

/* Two expressions with variables are tried at several points: the value of x at the first is not x.
 * The formula is that of drawn() in expression.c. */
static void expressions_are_compared_at_several_points(void **state) {
    const uint64_t first = (lt_rng_mix((uint64_t)'x' * 4) >> 33) | 1u << 20;
    char text[32];
    const row expression = {.kind = LT_CHECK_NUMBER, .gold = "x"};
    (void)state;
    snprintf(text, sizeof text, "%llu", (unsigned long long)first);
    assert_true(judge(&expression, "2x - x"));
    assert_false(judge(&expression, text));
}

/* What str.strip() removes, and re.findall() of empty matches: Python 3.11's results. */
static void strip_and_findall_as_in_python(void **state) {
    static const struct {
        const char *text, *bare;
    } strips[] = {{"\xe2\x80\x80 a\xe2\x80\x8a\t", "a"}, /* U+2000, U+200A. */
                  {"\xe2\x80\x99"
                   "a\xe2\x80\x99",
                   "\xe2\x80\x99"
                   "a\xe2\x80\x99"}, /* U+2019. */
                  {"\xe2\x80\x8b"
                   "a",
                   "\xe2\x80\x8b"
                   "a"}, /* U+200B. */
                  {"\xe2\x80\xa8"
                   "a\xe2\x80\xaf\x1c",
                   "a"}, /* U+2028, U+202F. */
                  {"\xc2\xa0\xe3\x80\x80", ""}};
    int64_t n = 0;
    (void)state;
    for (size_t i = 0; i < sizeof strips / sizeof *strips; i++) {
        const lt_span s = lt_span_strip((lt_span){strips[i].text, strlen(strips[i].text)});
        assert_int_equal(s.n, strlen(strips[i].bare));
        assert_memory_equal(s.data, strips[i].bare, s.n);
    }
    assert_int_equal(lt_re_count(&n, "x*", LT_SPAN("axb"), 0, 100), LT_OK);
    assert_int_equal(n, 4);
    assert_int_equal(lt_re_count(&n, "", LT_SPAN("\xc3\xa4\xe2\x82\xac"), 0, 100), LT_OK);
    assert_int_equal(n, 3);
}

/* Which of several marks counts, and what a strict checker refuses. */
static void which_mark_counts(void **state) {
    static const struct {
        const char *text;
        lt_answer_mark mark;
        const char *answer;
    } cases[] = {
        {"so \\boxed{1} and \\boxed{\\frac{2}{3}} #### 4", LT_ANSWER_BOXED, "\\frac{2}{3}"},
        {"\\boxed{5} then \\boxed{6", LT_ANSWER_BOXED, "5"},
        {"#### 1\n#### 2\nend", LT_ANSWER_HASHES, "2"},
        {"<answer> 7 </answer> #### 8", LT_ANSWER_TAG, "7"},
        {"The answer is 3.\nThe final answer is: 9.\n", LT_ANSWER_PHRASE, "9"},
        {"Answers: 5\nlast 6\n\n", LT_ANSWER_LINE, "last 6"},
        {"**Answer:**\n\n42\nend", LT_ANSWER_PHRASE, "42"},
        {"The answer is:\n  7", LT_ANSWER_PHRASE, "7"},
        {"#### Conclusion\nThe answer is 8.", LT_ANSWER_PHRASE, "8"},
        {"The answer is below.\n#### 9", LT_ANSWER_HASHES, "9"},
        {"<answer>5</answer> <answer>6", LT_ANSWER_TAG, "5"},
        {"<answer>6", LT_ANSWER_LINE, "<answer>6"},
        {"so <answer>7</answer>.", LT_ANSWER_TAG, "7"},
        {"#### $x$", LT_ANSWER_HASHES, "x"},
        {"#### $x", LT_ANSWER_HASHES, "$x"},
        {"#### $", LT_ANSWER_HASHES, "$"},
        {"#### \\(x\\)", LT_ANSWER_HASHES, "x"},
        {"#### \\[x\\]", LT_ANSWER_HASHES, "x"},
        {"#### \\(x", LT_ANSWER_HASHES, "\\(x"},
        {"#### x!", LT_ANSWER_HASHES, "x"},
        {"#### x!y", LT_ANSWER_HASHES, "x!y"},
        {"#### 42 is wrong", LT_ANSWER_HASHES, "42 is wrong"},
        {"<think>\\boxed{1}</think> 2", LT_ANSWER_LINE, "2"},
        {"<think>\\boxed{1}", LT_ANSWER_NONE, ""},
        {"<think>a</think>b<think>\\boxed{1}", LT_ANSWER_NONE, ""},
        /* Magistral, Apertus, Seed-OSS, Kimi, EXAONE Deep, gpt-oss. */
        {"[THINK]\\boxed{1}[/THINK] 2", LT_ANSWER_LINE, "2"},
        {"[THINK]\\boxed{1}", LT_ANSWER_NONE, ""},
        {"<|inner_prefix|>\\boxed{1}<|inner_suffix|> 2", LT_ANSWER_LINE, "2"},
        {"<seed:think>\\boxed{1}</seed:think> 2", LT_ANSWER_LINE, "2"},
        {"◁think▷\\boxed{1}◁/think▷ 2", LT_ANSWER_LINE, "2"},
        {"<thought>\\boxed{1}</thought> 2", LT_ANSWER_LINE, "2"},
        {"<thought>\\boxed{1}", LT_ANSWER_NONE, ""},
        {"<|channel|>analysis<|message|>\\boxed{1}<|end|><|start|>assistant<|channel|>final"
         "<|message|>2",
         LT_ANSWER_LINE, "2"},
        {"<|channel|>analysis<|message|>\\boxed{1}", LT_ANSWER_NONE, ""},
        {"\\boxed{1}[/THINK]", LT_ANSWER_NONE, ""}, /* Nothing follows the reasoning. */
        {"", LT_ANSWER_NONE, ""},
        {" \n\n", LT_ANSWER_NONE, ""},
        {"\\boxed{}", LT_ANSWER_NONE, ""},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        size_t begin, end;
        const lt_answer_mark mark = lt_answer_find(cases[i].text, strlen(cases[i].text),
                                                   LT_ANSWER_LENIENT, &begin, &end);
        assert_int_equal(mark, cases[i].mark);
        if (mark != LT_ANSWER_NONE) {
            assert_int_equal(end - begin, strlen(cases[i].answer));
            assert_memory_equal(cases[i].text + begin, cases[i].answer, end - begin);
        }
    }
}

/* What a model might write in order to pass, and what a careless rule accepts. The true answer is
 * 42; "42%" and "1/4" are reference answers of their own. */
static void adversarial_answers(void **state) {
    static const struct {
        const char *gold, *text;
        bool strict, lenient, number; /* Is it right, with each set of marks? */
    } cases[] = {
        {"42", "#### 42", true, true, true},
        {"42", "#### 42.", true, true, true},
        {"42", "#### $42", true, true, true},
        {"42", "#### 42 km", true, true, true},
        {"42", "#### 42 is wrong", false, false, true},
        {"42", "#### 42 wrong", false, true, true}, /* A word follows, as in "42 apples". */
        {"42", "#### 42 apples", false, true, true},
        {"42", "#### 42 green apples", false, false, true},
        {"42 apples", "#### 42 apples", true, true, true},
        {"42 apples", "#### 42 pears", false, false, true},
        {"42", "#### not 42", false, false, true},
        {"42", "#### 42 or 43", false, false, false},
        {"42", "#### 41 or 42", false, false, true},
        {"42", "#### 42, 43", false, false, false},
        {"42", "#### 42 (or 42)", false, false, true},
        {"42", "#### 42?!", false, false, true},
        {"42", "#### ~42", false, false, true},
        {"42", "#### about 42", false, false, true},
        {"42", "#### 42 to 42", false, false, true},
        {"42", "#### 42 = 43", false, false, false},
        {"42", "#### 43 = 42", false, false, true},
        {"42", "#### 41 = 42 = 42", false, false, true},
        {"42", "#### x = 42", true, true, true},
        {"42", "#### 6 * 7 = 42", true, true, true},
        {"42", "#### x_1 = 42", true, true, true},
        {"42", "#### 42 = x = 42", true, true, true},
        {"42", "#### 42 = x", false, false, true},
        {"42", "#### x + 1 = 42", false, false, true},
        {"42", "#### x != 42", false, false, true},
        {"42", "#### x >= 42", false, false, true},
        {"42", "The answer is 42.", true, true, true},
        {"42", "The answer is not 42.", false, false, true},
        {"42", "The answer isn't 42.", false, false, true},
        {"42", "The answer is 42. Or 43.", false, false, false},
        {"42", "The answer is 43. No, it is 42.", false, false, true},
        {"42", "The answer is 42 or the answer is 43", false, false, false},
        {"42", "My answer is correct", false, false, false},
        {"42", "I think 42", false, false, true},
        {"42", "42", false, true, true},
        {"42", "so it is\n42", false, true, true},
        {"42", "\\boxed{42}", true, true, true},
        {"42", "\\boxed{43} \\boxed{42}", true, true, true},
        {"42", "\\boxed{42} \\boxed{43}", false, false, false},
        {"42", "\\boxed{42} #### 43", true, true, false}, /* The box is the answer. */
        {"42", "\\boxed{42, 43}", false, false, false},
        {"42", "\\boxed{42 \\text{ or } 43}", false, false, false},
        {"42", "#### \\boxed{42", false, false, true},
        {"42", "The answer is \\text{42", false, false, true},
        {"42", "<think>\\boxed{42}</think>", false, false, false},
        {"42", "<think>\\boxed{42}", false, false, false},
        {"42", "<think>#### 42</think> #### 43", false, false, false},
        {"42", "</think>#### 42<think>", false, false, false},
        {"42", "#### 42\n#### ", false, false, true},
        {"42", "#### 42%", false, false, true}, /* NUMBER does not read the percent sign. */
        {"42", "#### 4200%", true, true, false},
        {"42", "#### 42 percent", false, false, true},
        {"42%", "#### 42%", true, true, false},
        {"42%", "#### 0.42", true, true, true},
        {"42%", "#### 21/50", true, true, false},
        {"42%", "#### 42 per cent", true, true, false},
        {"42%", "#### 42", false, false, false},
        {"42%", "#### 0.42%", false, false, true},
        {"42 km", "#### 42", true, true, true},
        {"42 km", "#### 42 m", false, false, true},
        {"42 km", "#### 42 km is wrong", false, false, true},
        /* The regular expressions of other checkers accept it. */
        {"-42", "5-42", false, false, true},
        {"1234.5", "so 1,234.5.", false, false, true},
        {"0.5", "it is .5!", false, false, true},
    };
    static const unsigned sets[] = {LT_ANSWER_STRICT, LT_ANSWER_LENIENT, LT_ANSWER_LAST_NUMBER};
    int bad = 0;
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const bool want[] = {cases[i].strict, cases[i].lenient, cases[i].number};
        lt_checker *c = NULL;
        assert_int_equal(lt_checker_open(&c, LT_CHECK_NUMBER, cases[i].gold, strlen(cases[i].gold)),
                         LT_OK);
        for (int k = 0; k < 3; k++) {
            bool right = false;
            assert_int_equal(
                lt_checker_run(c, cases[i].text, strlen(cases[i].text), sets[k], &right, NULL),
                LT_OK);
            if (right != want[k]) {
                printf("%s, marks %#x: %s \"%s\"\n", cases[i].gold, sets[k],
                       right ? "accepts" : "refuses", cases[i].text);
                bad++;
            }
        }
        lt_checker_close(c);
    }
    assert_int_equal(bad, 0);
}

static void strict_needs_a_mark(void **state) {
    lt_checker *c = NULL;
    lt_answer_mark mark;
    bool right = true;
    (void)state;
    assert_int_equal(lt_checker_open(&c, LT_CHECK_NUMBER, "7", 1), LT_OK);
    assert_int_equal(lt_checker_run(c, "7", 1, LT_ANSWER_STRICT, &right, &mark), LT_OK);
    assert_false(right);
    assert_int_equal(mark, LT_ANSWER_NONE);
    assert_int_equal(lt_checker_run(c, "#### 7", 6, LT_ANSWER_STRICT, &right, &mark), LT_OK);
    assert_true(right);
    lt_checker_close(c);
}

static void bad_reference_answers_are_refused(void **state) {
    static const struct {
        lt_check_kind kind;
        const char *gold, *says;
    } cases[] = {
        {LT_CHECK_NUMBER, "forty", "\"forty\" is not a number"},
        {LT_CHECK_NUMBER, "", "is not a number"},
        {LT_CHECK_NUMBER, "1 +", "is not a number"},
        {LT_CHECK_CHOICE, "AB", "one letter"},
        {LT_CHECK_REGEX, "a(b", "column 4"},
    };
    lt_check_kind kind;
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        lt_checker *c = NULL;
        assert_int_equal(lt_checker_open(&c, cases[i].kind, cases[i].gold, strlen(cases[i].gold)),
                         LT_ERR_FORMAT);
        assert_non_null(strstr(lt_error_message(), cases[i].says));
    }
    assert_int_equal(lt_check_kind_find(&kind, "nubmer"), LT_ERR_ARG);
    assert_non_null(strstr(lt_error_message(), "did you mean number"));
    assert_int_equal(lt_check_kind_find(&kind, "number"), LT_OK);
    assert_int_equal(kind, LT_CHECK_NUMBER);
    assert_int_equal(lt_check_kind_find(&kind, "list"), LT_OK);
    assert_int_equal(kind, LT_CHECK_LIST);
}

/* What takes long or much memory in other checkers is judged wrong here after a bounded time. */
static void hostile_answers(void **state) {
    static char nested[4000];
    const row number = {.kind = LT_CHECK_NUMBER, .gold = "1"};
    const row zero = {.kind = LT_CHECK_NUMBER, .gold = "0"};
    const row regex = {.kind = LT_CHECK_REGEX, .gold = "(a+)+b"};
    (void)state;
    assert_false(judge(&number, "9^9^9^9"));
    assert_false(judge(&number, "1e99999"));
    assert_false(judge(&zero, "0e999999999999999"));
    assert_false(judge(&zero, "0e-999999999999999"));
    assert_false(judge(&number, "10^1024^2"));
    memset(nested, '(', sizeof nested - 1);
    assert_false(judge(&number, nested));
    memset(nested, '-', sizeof nested - 1);
    assert_false(judge(&number, nested));
    memset(nested, 'a', 200);
    nested[200] = 0;
    assert_false(judge(&regex, nested));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(spellings_and_near_misses),
        cmocka_unit_test(expressions_are_compared_at_several_points),
        cmocka_unit_test(strip_and_findall_as_in_python),
        cmocka_unit_test(which_mark_counts),
        cmocka_unit_test(adversarial_answers),
        cmocka_unit_test(strict_needs_a_mark),
        cmocka_unit_test(bad_reference_answers_are_refused),
        cmocka_unit_test(hostile_answers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
