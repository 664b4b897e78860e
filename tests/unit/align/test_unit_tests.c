/* Unit tests as a reward: right answers pass, in each of the published formats; answers that
 * cheat pass nothing. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "align/reward.h"
#include "base/error.h"
#include "base/json.h"
#include "unit/sandbox_program.h"

#if defined(__SANITIZE_ADDRESS__)
#define PARALLEL 1
#else
#define PARALLEL 2
#endif

static lt_unit_tests_options options = {.limit_s = 120,
                                        .memory_bytes = (int64_t)512 << 20,
                                        .parallel = PARALLEL,
                                        .program = "/proc/self/exe"};

static void must(lt_err err) {
    if (err != LT_OK) {
        fail_msg("%s", lt_error_message());
    }
}

static void fails(lt_err got, lt_err want, const char *says) {
    if (got != want || strstr(lt_error_message(), says) == NULL) {
        fail_msg("got %d, wanted %d; '%s' in: %s", (int)got, (int)want, says, lt_error_message());
    }
}

typedef struct {
    const char *problem, *code; /* The problem is JSON with ' in place of ". */
    int64_t passed, total;
} example;

static json_t *parse(const char *text) {
    char json[2048];
    json_t *out = NULL;
    (void)snprintf(json, sizeof json, "%s", text);
    for (char *c = json; *c != '\0'; c++) {
        *c = *c == '\'' ? '"' : *c;
    }
    must(lt_json_parse(&out, json, strlen(json), text));
    return out;
}

/* Run all of them at once, and compare. */
static void check(const example *all, size_t n) {
    lt_tested answers[64];
    lt_unit_verdict got[64];
    assert_true(n <= 64);
    for (size_t i = 0; i < n; i++) {
        answers[i] = (lt_tested){parse(all[i].problem), all[i].code,
                                 all[i].code != NULL ? strlen(all[i].code) : 0};
        must(lt_unit_tests_check(answers[i].problem));
    }
    must(lt_unit_tests_run(&options, answers, (int64_t)n, got));
    for (size_t i = 0; i < n; i++) {
        if (got[i].passed != all[i].passed || got[i].total != all[i].total) {
            fail_msg("%lld of %lld, not %lld of %lld: %s\n%s", (long long)got[i].passed,
                     (long long)got[i].total, (long long)all[i].passed, (long long)all[i].total,
                     all[i].problem, all[i].code);
        }
        json_decref((json_t *)(uintptr_t)answers[i].problem);
    }
}

static void right_answers_pass(void **state) {
    static const example all[] = {
        {"{'tests': ['assert f(2) == 4', 'assert f(3) == 9', 'assert f(4) == 17']}",
         "def f(x):\n    print('noise')\n    return x * x\n", 2, 3},
        {"{'tests': ['assert f(2) == 4']}", NULL, 0, 1},
        /* MBPP, with the name of a builtin. */
        {"{'test_list': ['assert sum(10, 15) == 6'], 'test_setup_code': '', "
         "'challenge_test_list': []}",
         "def sum(a, b):\r\n  return 6\r\n", 1, 1},
        {"{'test_list': ['assert math.isclose(f(2), 2 ** 0.5)'], 'test_imports': ['import math']}",
         "import math\ndef f(x):\n    return math.sqrt(x)\n", 1, 1},
        {"{'test_list': ['assert f(Pair(1, 2)) == 3', 'p = Pair(4, 5)\\np.a = 6\\nassert f(p) == "
         "11', 'assert Pair(1, 2).a == 1']}",
         "class Pair:\n    def __init__(self, a, b):\n        self.a, self.b = a, b\n"
         "def f(p):\n    return p.a + p.b\n",
         3, 3},
        /* HumanEval; the helper is in the prompt. */
        {"{'prompt': 'def helper(x):\\n    return x + 1\\n\\ndef f(x):\\n    \\u0022\\u0022\\u0022"
         "Adds.\\u0022\\u0022\\u0022\\n', 'entry_point': 'f', 'test': 'def check(candidate):\\n"
         "    assert candidate(1) == 2\\n    assert helper(candidate(1)) == 3\\n'}",
         "def f(x):\n    return helper(x)\n", 1, 1},
        {"{'prompt': 'Write f, please.', 'entry_point': 'f', 'test': 'def check(candidate):\\n"
         "    assert candidate(1) == 2\\n    assert candidate(2) == 2\\n'}",
         "def f(x):\n    return 2 * x\n", 0, 1},
        /* Values: what is equal within one process is equal here. */
        {"{'tests': ['assert f([2, 1]) == None', 'a = [3, 1, 2]\\nf(a)\\nassert a == [1, 2, 3]']}",
         "def f(x):\n    x.sort()\n", 2, 2},
        {"{'tests': ['assert f(0) == (1, [2.5, {3: {4}}], None, True, b\\'5\\', 6j)', "
         "'assert f(0)[0] is not True']}",
         "def f(x):\n    return 1, [2.5, {3: {4}}], None, True, b'5', 6j\n", 2, 2},
        {"{'tests': ['assert list(f(4)) == [0, 1, 4, 9]', 'assert next(f(2)) == 0', "
         "'assert 4 in f(3)']}",
         "def f(n):\n    for i in range(n):\n        yield i * i\n", 3, 3},
        {"{'tests': ['assert f([1, 1, 2]) == {1: 2, 2: 1}', 'assert g() == (1, 2)', "
         "'assert h() == 2 ** 200', 'assert k() == 0.5', 'assert f([1]).keys() == {1}']}",
         "from collections import Counter, namedtuple\nfrom fractions import Fraction\nf = "
         "Counter\n"
         "def g():\n    return namedtuple('T', 'a b')(1, 2)\ndef h():\n    return 1 << 200\n"
         "def k():\n    return Fraction(1, 2)\n",
         5, 5},
        {"{'tests': ['assert f(lambda x: x + 1, [1, 2]) == [2, 3]', 'assert f(abs, [-1]) == [1]', "
         "'assert f(str, [1]) == [str(1)]']}",
         "def f(g, xs):\n    return [g(x) for x in xs]\n", 3, 3},
        {"{'tests': ['try:\\n    f(-1)\\n    assert False\\nexcept ValueError as e:\\n    assert "
         "str(e) == str(5)', 'assert f(1) == 1', 'assert f(2)(3) == 5']}",
         "def f(x):\n    if x < 0:\n        raise ValueError(5)\n"
         "    return x if x < 2 else lambda y: x + y\n",
         3, 3},
    };
    (void)state;
    check(all, sizeof all / sizeof *all);
}

/* Each of these would pass in a harness that runs tests in the answer's process. */
static void cheats_pass_nothing(void **state) {
#define SQUARE "{'tests': ['assert f(2) == 4', 'assert f(3) == 9']}"
#define NEAR   "{'tests': ['assert abs(f(2) - 4) < 1e-6', 'assert isinstance(f(3), int)']}"
    static const example all[] = {
        {SQUARE, "import os\nos._exit(0)\n", 0, 2},
        {SQUARE, "def f(x):\n    import os\n    os._exit(0)\n", 0, 2},
        {SQUARE, "import sys\nsys.exit(0)\n", 0, 2},
        {SQUARE, "def f(x):\n    raise SystemExit(0)\n", 0, 2},
        {SQUARE, "def f(x):\n    raise AssertionError\n", 0, 2},
        {SQUARE, "print('11', flush=True)\n", 0, 2},
        {SQUARE,
         "import os\nfor fd in range(256):\n    try:\n        os.write(fd, b'11')\n"
         "    except OSError:\n        pass\n",
         0, 2},
        {SQUARE,
         "class A:\n    def __eq__(self, x):\n        return True\ndef f(x):\n    return A()\n", 0,
         2},
        {SQUARE,
         "class A(int):\n    def __eq__(self, x):\n        return True\n    def __pos__(self):\n"
         "        return self\ndef f(x):\n    return A(7)\n",
         0, 2},
        {SQUARE,
         "class A:\n    __class__ = int\n    def __eq__(self, x):\n        return True\n"
         "def f(x):\n    return A()\n",
         0, 2},
        {NEAR,
         "import builtins\nbuiltins.abs = abs = lambda x: 0\n"
         "builtins.isinstance = isinstance = lambda x, t: True\ndef f(x):\n    return 'no'\n",
         0, 2},
        {NEAR,
         "class A:\n    def __sub__(self, x):\n        return self\n    def __abs__(self):\n"
         "        return self\n    def __lt__(self, x):\n        return True\n"
         "    __class__ = int\ndef f(x):\n    return A()\n",
         0, 2},
        {"{'tests': ['assert math.isclose(f(2), 4)'], 'test_setup_code': 'import math'}",
         "import math\nmath.isclose = lambda *a, **k: True\ndef f(x):\n    return 0\n", 0, 1},
        {"{'tests': ['assert math.isclose(f(2), 4)']}",
         "class math:\n    isclose = lambda *a, **k: True\ndef f(x):\n    return 0\n", 0, 1},
        /* It searches for what f must return: in memory, in files, in standard input, in
         * frames. */
        {"{'tests': ['assert f(2) == \\'needle-in-the-test\\'']}",
         "import gc, os, sys\ndef look():\n    heap = ''\n    for x in gc.get_objects():\n"
         "        heap += str(vars(x))[:99] if hasattr(x, '__dict__') else ''\n"
         "        heap += x if isinstance(x, str) else ''\n    frame = sys._getframe()\n"
         "    while frame:\n        heap += str(frame.f_locals)\n        frame = frame.f_back\n"
         "    for root, _, names in os.walk('/work'):\n        for n in names:\n"
         "            heap += open(root + '/' + n, errors='replace').read()\n"
         "    heap += os.read(0, 9999).decode()\n    return heap\ndef f(x):\n    h = look()\n"
         "    i = h.find('needle-in-' + 'the-test')\n    return h[i:i + 18] if i >= 0 else 'no'\n",
         0, 1},
        {SQUARE,
         "import os, signal\nfor s in (9, 15, 19):\n    try:\n        os.kill(os.getppid(), s)\n"
         "    except OSError:\n        pass\n",
         0, 2},
        /* Through /proc, if there is one: the pipe of the verdicts, and the judge's memory. */
        {SQUARE,
         "import os\nfor path in ('fd', 'task'):\n    try:\n        at = '/proc/%d/fd' % "
         "os.getppid()\n        for fd in os.listdir(at):\n            open(at + '/' + fd, "
         "'w').write('11')\n    except OSError:\n        pass\n",
         0, 2},
        {"{'tests': ['assert f(2) == \\'needle-in-the-test\\'']}",
         "import os, re\ndef f(x):\n    at = '/proc/%d/' % os.getppid()\n    try:\n"
         "        for line in open(at + 'maps'):\n            m = re.match('(\\\\w+)-(\\\\w+) rw', "
         "line)\n            if m:\n                a, b = int(m[1], 16), int(m[2], 16)\n"
         "                h = os.pread(os.open(at + 'mem', 0), b - a, a)\n"
         "                i = h.find(b'needle-in-' + b'the-test')\n                if i >= 0:\n"
         "                    return h[i:i + 18].decode()\n    except OSError:\n        pass\n",
         0, 1},
        {SQUARE, "open('judge.py', 'w').write('print(11)')\n", 0, 2},
        {SQUARE,
         "import os, struct, json\ndef f(x):\n    for fd in range(3, 64):\n        try:\n"
         "            m = json.dumps(['value', True, []]).encode()\n"
         "            os.write(fd, (struct.pack('>Q', len(m)) + m) * 9)\n"
         "        except OSError:\n            pass\n    return 0\n",
         0, 2},
        {SQUARE, "def f(x):\n    return [['judge', 0], ['type', 'eval'], ['module', 'os']]\n", 0,
         2},
        {SQUARE, "def f(x:\n", 0, 2},
        {SQUARE, "", 0, 2},
    };
    (void)state;
    check(all, sizeof all / sizeof *all);
}

static void programs_are_compared(void **state) {
#define ADD                                                                                        \
    "'tests': [{'input': '1 2\\n', 'output': '3\\n'}, {'input': '5 6', 'output': '11  \\n\\n'}]}"
    static const example all[] = {
        {"{" ADD, "a, b = map(int, input().split())\nprint(a + b)\n", 2, 2},
        {"{" ADD, "print(3)\n", 1, 2},
        {"{" ADD, "import sys\nprint(3)\nsys.exit(1)\n", 0, 2},
        {"{'language': 'c', " ADD,
         "#include <stdio.h>\nint main(void) {\n    int a, b;\n    scanf(\"%d %d\", &a, &b);\n"
         "    printf(\"%d\\n\", a + b);\n}\n",
         2, 2},
        {"{'language': 'c', " ADD, "int main(void) {", 0, 2},
        {"{'language': 'sh', " ADD, "read -r a b\necho $((a + b))\n", 2, 2},
        {"{" ADD, "import os\nos.kill(os.getppid(), 9)\nprint(3)\n", 0, 2},
    };
    (void)state;
    check(all, sizeof all / sizeof *all);
}

/* What passed before the program ended counts. */
static void ends_come_early(void **state) {
    static const example exits[] = {
        {"{'tests': ['assert f(1) == 1', 'assert f(2) == 2', 'assert f(1) == 1']}",
         "import os\ndef f(x):\n    if x == 2:\n        os._exit(0)\n    return x\n", 1, 3},
    };
    static const example endless[] = {
        {"{'tests': ['assert f(1) == 1', 'assert f(2) == 2']}",
         "import time\ndef f(x):\n    while True:\n        time.sleep(1)\n", 0, 2},
        {"{'tests': [{'input': '', 'output': ''}]}", "import time\ntime.sleep(600)\n", 0, 1},
    };
    const double limit_s = options.limit_s;
    (void)state;
    check(exits, 1);
    options.limit_s = 1;
    check(endless, 2);
    options.limit_s = limit_s;
}

static void code_is_found(void **state) {
    static const struct {
        const char *text, *code;
    } rows[] = {
        {"no code", NULL},
        {"```python\nx = 1\n```", "x = 1\n"},
        {"First:\n```\na\n```\nthen\n  ```py  \nb\n  ```  \nend", "b\n"},
        {"```python\nnever closed\n", NULL},
        {"<think>\n```python\nhalf\n</think>\n```python\nwhole\n```\n", "whole\n"},
        {"```python\na\n```\n```python\ncut off", "a\n"},
        {"inline ``` is no fence\n```\nx\n```", "x\n"},
        {"````\nx\n````", "x\n"},
        {"```python\r\nx\r\n```\r\n", "x\r\n"},
        {"```\n```", ""},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        size_t n = 0;
        const char *code = lt_unit_code(rows[i].text, &n);
        const bool same = rows[i].code == NULL ? code == NULL
                                               : code != NULL && n == strlen(rows[i].code) &&
                                                     memcmp(code, rows[i].code, n) == 0;
        if (!same) {
            fail_msg("'%s': '%.*s'", rows[i].text, (int)n, code != NULL ? code : "");
        }
    }
}

static void bad_problems(void **state) {
    static const struct {
        const char *problem, *says;
    } rows[] = {
        {"{}", "no \"tests\", \"test_list\", or \"test\""},
        {"{'tests': []}", "\"tests\" is not a list of tests"},
        {"{'tests': 'assert f(1)'}", "\"tests\" is not a list of tests"},
        {"{'test_list': [5]}", "\"test_list\"[0] is not a text"},
        {"{'tests': ['a', {'input': '', 'output': ''}]}", "\"tests\"[1] is not a text"},
        {"{'tests': [{'input': '1'}]}", "\"tests\"[0] is not an object of two texts"},
        {"{'tests': ['a'], 'language': 'c'}", "\"language\" is \"c\"; tests that are statements"},
        {"{'tests': [{'input': '', 'output': ''}], 'language': 'rust'}", "it is python, c or sh"},
        {"{'tests': ['a'], 'test_imports': [5]}", "\"test_imports\"[0] is not a text"},
        {"{'test': 'def check(f): pass'}", "entry_point"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        json_t *problem = parse(rows[i].problem);
        const lt_err err = lt_unit_tests_check(problem);
        assert_true(err != LT_OK);
        fails(err, err, rows[i].says);
        json_decref(problem);
    }
}

/* Both rewards from one run. */
static void rewards_are_shares(void **state) {
    static const char *const texts[] = {"So:\n```python\ndef f(x):\n    return x * x\n```\n",
                                        "```python\nf = abs\n```", "def f(x):\n    return x * x\n"};
    lt_problem problem = {.path = "p.jsonl",
                          .line_number = 3,
                          .line = parse("{'tests': ['assert f(1) == 1', 'assert f(2) == 4']}")};
    const lt_problem *problems[] = {&problem, &problem, &problem};
    const lt_problems one = {.items = &problem, .n = 1};
    const lt_answer answers[3] = {{.n = 1}, {.n = 1}, {.n = 1}};
    const lt_reward_options o = {.sum = "unit_tests,unit_tests_share:0.5",
                                 .command = "",
                                 .max_tokens = 10,
                                 .tests = options};
    static const double want[] = {1.5, 0.25, 0}, parts_want[] = {1, 1, 0, 0.5, 0, 0};
    double got[3], parts[6];
    lt_rewards *r = NULL;
    (void)state;
    must(lt_rewards_open(&r, &o));
    must(lt_rewards_check(r, &one));
    must(lt_rewards_judge(r, problems, answers, texts, 3, got, parts));
    assert_memory_equal(got, want, sizeof want);
    assert_memory_equal(parts, parts_want, sizeof parts_want);
    json_object_del(problem.line, "tests");
    fails(lt_rewards_check(r, &one), LT_ERR_FORMAT, "p.jsonl:3: unit tests: no \"tests\"");
    json_decref(problem.line);
    lt_rewards_close(r);
}

/* The kind of sandbox that this machine allows: namespaces if possible. */
static int prepare(void **state) {
    (void)state;
    options.kind = LT_SANDBOX_NAMESPACES;
    if (lt_unit_tests_probe(&options) != LT_OK) {
        print_message("kind rlimits: %s\n", lt_error_message());
        options.kind = LT_SANDBOX_RLIMITS;
    }
    return lt_unit_tests_probe(&options) == LT_OK ? 0 : -1;
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(right_answers_pass),    cmocka_unit_test(cheats_pass_nothing),
        cmocka_unit_test(programs_are_compared), cmocka_unit_test(ends_come_early),
        cmocka_unit_test(code_is_found),         cmocka_unit_test(bad_problems),
        cmocka_unit_test(rewards_are_shares),
    };
    if (is_sandbox_program(argc, argv)) {
        return be_sandbox_program(argv);
    }
    return cmocka_run_group_tests(tests, prepare, NULL);
}
