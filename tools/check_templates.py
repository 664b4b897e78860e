#!/usr/bin/env python3
"""Compare build/examples/render_template with transformers' own rendering of chat templates.

    tools/check_templates.py FOLDER            every *.jinja and *tokenizer_config.json of a folder, with each of the conversations below
    tools/check_templates.py --fuzz N [SEED]   N random small templates
    tools/check_templates.py --goldens OUT FOLDER   writes tests/golden/data/chat_templates.jsonl
Where transformers returns a text, Lateen must return the same bytes; where it raises, Lateen must report an error. Needs transformers and jinja2."""
import copy
import datetime
import glob
import json
import os
import random
import subprocess
import sys

import warnings

from transformers.utils import chat_template_utils as ctu

warnings.filterwarnings("ignore")
NOW = 1753000000
PUBLISHED = ["Qwen-Qwen3-0.6B", "Qwen-Qwen2.5-7B-Instruct", "openai-gpt-oss-120b", "Apertus-8B-Instruct", "mistralai-Mistral-Nemo-Instruct-2407",
             "ibm-granite-granite-3.3-2B-Instruct", "microsoft-Phi-3-mini-4k-instruct", "microsoft-Phi-3.5-mini-instruct", "microsoft-phi-4", "HuggingFaceTB-SmolLM3-3B"]
TOKENS = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}


def conversations():
    user = {"role": "user", "content": "What is the weather in Zürich? 天気 🌦"}
    system = {"role": "system", "content": "You are  a helpful\nassistant. "}
    answer = {"role": "assistant", "content": " It is <b>sunny</b> & 21.5°\n"}
    think = {"role": "assistant", "content": "<think>\nhm, let me see\n</think>\n\nSunny."}
    reasoning = {"role": "assistant", "content": "Sunny.", "reasoning_content": "hm, \"let\" me see"}
    thinking = {"role": "assistant", "content": "Sunny.", "thinking": "hm, let me see"}
    again = {"role": "user", "content": "And tomorrow?"}
    call = {"role": "assistant", "content": None, "tool_calls": [{"id": "call_abc123", "type": "function", "function": {
        "name": "get_weather", "arguments": {"city": "Zürich", "days": 2, "units": ["C", None], "deep": {"a": True}}}}]}
    call9 = json.loads(json.dumps(call).replace("call_abc123", "abcdefghi"))
    call_text = json.loads(json.dumps(call))
    call_text["tool_calls"][0]["function"]["arguments"] = '{"city": "Zürich"}'
    call_text["content"] = "Let me look."
    two = json.loads(json.dumps(call9))
    two["content"] = ""
    two["tool_calls"].append({"id": "bbbbbbbbb", "type": "function", "function": {"name": "get_time", "arguments": {}}})
    result = {"role": "tool", "name": "get_weather", "tool_call_id": "call_abc123", "content": '{"t": 21.5}'}
    result9 = {"role": "tool", "name": "get_weather", "tool_call_id": "abcdefghi", "content": '{"t": 21.5}'}
    result9b = {"role": "tool", "name": "get_time", "tool_call_id": "bbbbbbbbb", "content": "12:00"}
    parts = {"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]}
    image = {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "what is it?"}]}
    developer = {"role": "developer", "content": "Be terse."}
    lists = [[user], [system, user], [system, user, answer, again], [user, answer, again, answer], [user, think, again], [user, reasoning, again],
             [user, thinking, again], [system, user, call, result], [system, user, call9, result9, answer, again], [user, call_text, result, answer],
             [user, two, result9, result9b], [user, two, result9, result9b, answer, again, reasoning], [{"role": "user", "content": ""}], [],
             [system], [parts], [image], [system, parts, answer], [developer, user], [user, user], [answer], [{"role": "user"}],
             [{"role": "system", "content": "/no_think"}, user], [user, {"role": "assistant", "content": ""}, again], [user, call, result, reasoning]]
    tools = [{"type": "function", "function": {"name": "get_weather", "description": "Weather of a \"city\" <now>", "parameters": {
        "type": "object", "properties": {"city": {"type": "string", "description": "The city"}, "days": {"type": "integer", "default": 1},
                                         "units": {"type": "array", "items": {"type": "string", "enum": ["C", "F"]}},
                                         "deep": {"type": "object", "properties": {"a": {"type": ["boolean", "null"]}}}},
        "required": ["city"]}}},
        {"type": "function", "function": {"name": "get_time", "description": "", "parameters": {"type": "object", "properties": {}}}}]
    extras = [{}, {"enable_thinking": False}, {"enable_thinking": True, "thinking": True}, {"reasoning_effort": "high", "date_string": "1 Jan 2026"},
              {"builtin_tools": ["code_interpreter", "brave_search"], "tools_in_user_message": False, "documents": [{"title": "A", "text": "b c"}]},
              {"model_identity": "You are X.", "builtin_tools": ["python", "browser"]}]
    for n, messages in enumerate(lists):
        for with_tools in (None, [], tools):
            for prompt in (True, False):
                for extra in extras[: 6 if n in (0, 1, 5, 8, 10) else 1]:
                    context = {"messages": messages, "add_generation_prompt": prompt, **TOKENS, **extra}
                    if with_tools is not None:
                        context["tools"] = with_tools
                    yield context


def expected(text, context):
    """The result of transformers: (text, None), or (None, the reason)."""
    try:
        template = ctu._compile_jinja_template(text)
    except Exception as e:
        return None, f"compile: {e}"
    template.globals["strftime_now"] = lambda f: datetime.datetime.fromtimestamp(NOW).strftime(f)
    try:
        defaults = {"tools": None, "documents": None} if context.get("messages") is not None else {}
        return template.render(**copy.deepcopy({**defaults, **context})), None
    except Exception as e:
        return None, f"{type(e).__name__}: {e}"


def sent(context):
    defaults = {"tools": None, "documents": None} if context.get("messages") is not None else {}
    return {**defaults, **context, "lateen_now": NOW}


def ours(cases):
    program = os.path.join(os.path.dirname(__file__), "..", "build", "examples", "render_template")
    lines = "".join(json.dumps({"template": t, "context": sent(c)}) + "\n" for t, c in cases)
    out = subprocess.run([program], input=lines.encode(), stdout=subprocess.PIPE, check=True).stdout.decode()
    return [json.loads(line) for line in out.split("\n") if line]


def compare(cases, names):
    """Print differences, and the numbers of cases with equal texts, with errors in both, and with differences."""
    same = errors = bad = 0
    shown = {}
    for (text, context), name, got in zip(cases, names, ours(cases)):
        want, why = expected(text, context)
        if want is not None and got.get("text") == want:
            same += 1
        elif want is None and "error" in got:
            errors += 1
        else:
            bad += 1
            shown[name] = shown.get(name, 0) + 1
            if shown[name] <= 2:
                print(f"--- {name}\n  context {json.dumps(context, ensure_ascii=False)[:600]}\n  want {want!r:.1500}\n       {why}\n  got  {got!r:.1500}")
    for name, n in shown.items():
        print(f"{n:6d} differ: {name}")
    print(f"{len(cases)} cases: {same} equal texts, {errors} refused by both, {bad} differ")
    return bad


def from_folder(folder):
    cases, names = [], []
    for path in sorted(glob.glob(os.path.join(folder, "*"))):
        if path.endswith(".jinja"):
            texts = [open(path, encoding="utf-8").read()]
        elif path.endswith("tokenizer_config.json"):
            t = json.load(open(path)).get("chat_template")
            texts = [t] if isinstance(t, str) else [x["template"] for x in t or []]
        else:
            continue
        for text in texts:
            for context in conversations():
                cases.append((text, context))
                names.append(os.path.basename(path))
    return compare(cases, names)


# ---- random templates ----

CONTEXT = {"x": 3, "y": -2.5, "z": 0, "s": "Hello, wörld! <a>", "t": "  pad\n", "e": "", "n": None, "yes": True, "l": [3, 1, 2], "w": ["b", "A", "c"],
           "d": {"b": 1, "a": {"k": [1, 2]}, "items": 5}, "m": [{"role": "u", "n": 2, "c": "x"}, {"role": "a", "n": 1, "c": None}, {"role": "u", "n": 3}]}


class Gen:
    def __init__(self, rng):
        self.r = rng
        self.names = list(CONTEXT) + ["missing"]

    def atom(self):
        r = self.r
        return r.choice([lambda: r.choice(self.names), lambda: r.choice(self.names), lambda: str(r.randrange(-3, 12)), lambda: r.choice(["1.5", "0.1", "1e20", "2.0"]),
                         lambda: repr(r.choice(["a", "", "Hello", "o", "ö", "b c", "\n", "<"])), lambda: r.choice(["true", "none", "false"])])()

    def expr(self, d):
        r = self.r
        if d <= 0 or r.random() < 0.2:
            return self.atom()
        e = lambda: self.expr(d - 1)
        k = r.randrange(16)
        if k == 0:
            return f"({e()} {r.choice(['+', '-', '*', '~', '%', '//', '/'])} {e()})"
        if k == 1:
            return f"({e()} {r.choice(['==', '!=', '<', '>', '<=', '>=', 'in', 'not in'])} {e()})"
        if k == 2:
            return f"({e()} {r.choice(['and', 'or'])} {e()})"
        if k == 3:
            return f"(not {e()})"
        if k == 4:
            return f"({e()} if {e()} else {e()})"
        if k == 5:
            return r.choice(["s", "t", "l", "w", "m"]) + f"[{r.choice(['', e(), '0', '1'])}:{r.choice(['', e(), '2', '-1'])}{r.choice(['', ':', ':-1', ':2'])}]"
        if k == 6:
            return r.choice(["d", "m[0]", "m[1]", "l", "s", e()]) + r.choice([".a", ".role", "['b']", "[0]", "[-1]", ".items()", ".get('a')", ".keys()|list", ".n", "[1]"])
        if k == 7:
            call = r.choice(["upper()", "lower()", "strip()", "split()", "split(',')", "title()", "replace('l', 'L')", "startswith('H')", "endswith(('!', '>'))", "find('w')",
                             "lstrip('H ')", "rstrip()", "capitalize()", "splitlines()", "count('l')", "rsplit('o', 1)", "join(['a', 'b'])", "partition(' ')", "isdigit()",
                             "format(1)", "zfill(5)", "center(9)"])
            return f"{r.choice(['s', 't', 'e', e()])}.{call}"
        if k in (8, 9, 10):
            f = r.choice(["length", "tojson", "tojson(indent=2)", "upper", "trim", "list", "first", "last", "join(', ')", "join", "string", "int", "float", "default('D')", "default('D', true)",
                          "sort", "sort(reverse=true)", "unique|list", "reverse|list", "sum", "min", "max", "map('upper')|list", "map('string')|join('+')", "map(attribute='role')|list", "select|list",
                          "reject('none')|list", "select('number')|list", "selectattr('role', 'equalto', 'u')|list", "rejectattr('c')|list", "selectattr('n', 'gt', 1)|map(attribute='n')|list",
                          "items|list", "dictsort", "capitalize", "title", "replace('a', 'b')", "indent(2)", "indent(2, true)", "escape", "abs", "round", "round(1)", "batch(2)|list",
                          "tojson(separators=(',', ':'))", "tojson(ensure_ascii=true)", "count", "wordcount", "string|urlencode", "string|truncate(8)", "groupby('role')|list", "tojson(sort_keys=true)"])
            return f"{r.choice(['l', 'w', 's', 'd', 'm', e(), e()])}|{f}"
        if k == 11:
            test = r.choice(["defined", "undefined", "none", "string", "mapping", "iterable", "sequence", "number", "integer", "float", "boolean", "true", "false", "odd", "even",
                             "divisibleby(2)", "in l", "eq 3", "equalto('a')", "sameas none", "lower", "upper", "gt 2"])
            return f"({e()} is {r.choice(['', 'not '])}{test})"
        if k == 12:
            return f"[{', '.join(e() for _ in range(r.randrange(4)))}]"
        if k == 13:
            return "{" + ", ".join(f"{r.choice(['a', 'b', 'c', 1])!r}: {e()}" for _ in range(r.randrange(3))) + "}"
        if k == 14:
            return f"({', '.join(e() for _ in range(r.randrange(2, 4)))})"
        return r.choice([f"range({r.randrange(5)})|list", f"range({r.randrange(3)}, {r.randrange(6)})", "dict(a=1, b=2)", "ns.c", "mac(1)", "mac(x, b=y)", "loop.index", "loop.last", "'%s-%d' % (s, 3)", "-x", "- y|abs", "x ** 2"])

    def tag(self, body):
        r = self.r
        return "{%" + r.choice(["", "", "", "-", "+"]) + " " + body + " " + r.choice(["", "", "", "-", "+"]) + "%}"

    def text(self):
        return "".join(self.r.choice(["\n", " ", "  ", "a", "b\n", "é", "\t", "{", "}", "%"]) for _ in range(self.r.randrange(5)))

    def body(self, d):
        return "".join(self.text() + self.stmt(d) for _ in range(self.r.randrange(1, 4))) + self.text()

    def stmt(self, d):
        r = self.r
        k = r.randrange(12) if d > 0 else 0
        if k <= 3:
            return "{{" + r.choice(["", "-"]) + f" {self.expr(3)} " + r.choice(["", "-"]) + "}}"
        if k == 4:
            return self.tag(f"if {self.expr(2)}") + self.body(d - 1) + (self.tag(f"elif {self.expr(2)}") + self.body(d - 1) if r.random() < 0.3 else "") + \
                (self.tag("else") + self.body(d - 1) if r.random() < 0.5 else "") + self.tag("endif")
        if k in (5, 6):
            head = r.choice(["for i in l", "for i in m", "for i in range(3)", "for k, v in d.items()", "for i in s[:3]", "for i in w if i != 'b'", f"for i in {self.expr(2)}"])
            inner = self.body(d - 1) + r.choice(["", "{{ loop.index }}{{ i }}", self.tag("if loop.first") + self.tag(r.choice(["continue", "break"])) + self.tag("endif"), "{{ loop.previtem }}{{ loop.cycle('p', 'q') }}"])
            return self.tag(head) + inner + (self.tag("else") + self.body(d - 1) if r.random() < 0.2 else "") + self.tag("endfor")
        if k == 7:
            return self.tag(f"set {r.choice(['q', 'v', 'ns.c', 'a, b'])} = {self.expr(2)}")
        if k == 8:
            return self.tag("set q") + self.body(d - 1) + self.tag("endset") + "{{ q }}"
        if k == 9:
            return self.tag(f"macro mac(a, b={self.expr(1)})") + self.body(d - 1) + "{{ a }}{{ b }}" + self.tag("endmacro") + "{{ mac(" + self.expr(1) + ") }}"
        if k == 10:
            return r.choice(["{# c #}", "{#- c -#}", "{# c\n #}\n"]) + self.tag("filter upper") + self.body(d - 1) + self.tag("endfilter")
        return self.tag(f"with q = {self.expr(1)}") + self.body(d - 1) + self.tag("endwith") + self.tag("generation") + "g" + self.tag("endgeneration")


def random_cases(n, seed):
    rng = random.Random(seed)
    out = []
    for _ in range(n):
        g = Gen(rng)
        out.append(("{% set ns = namespace(c=0) %}" * (rng.random() < 0.5) + g.body(rng.randrange(1, 4)), dict(CONTEXT)))
    return out


# Edge cases of filters, methods, numbers and loops, one template per line.
EDGES = r"""{{ range(0, 10, 3)|list }} {{ range(10, 0, -4)|list }} {{ range(3, 3)|list }} {{ range(-2, 2)|list }}
{{ range(0, 100000, 1)|length }}
{{ range(0, 100001, 1)|length }}
{{ range(0, 1000000, 10)|length }} {{ range(99999, -1, -1)|length }}
{{ range(1, 2, 0) }}
{{ '0x10'|float }} {{ '1p3'|float }} {{ 'nan(1)'|float }} {{ '1e3'|float }} {{ ' 2.5 '|float }} {{ '1_000'|float }} {{ 'x'|float(7) }}
{{ 'inf'|float }} {{ '-Infinity'|float }} {{ '.5'|float }} {{ '5.'|float }} {{ ''|float }} {{ '+3'|float }} {{ '- 3'|float }}
{{ '1_000'|int }} {{ '12abc'|int }} {{ '0x1A'|int(0, 16) }} {{ 'ff'|int(base=16) }} {{ '-7'|int }} {{ '3.9'|int }} {{ ' 5 '|int }} {{ '99'|int(default=4, base=8) }} {{ true|int }}
{{ 2.5|round }} {{ 3.5|round }} {{ 2.675|round(2) }} {{ -2.5|round(0, 'floor') }} {{ 2.1|round(method='ceil') }} {{ 1234.5|round(-2) }} {{ 42|round }}
{{ 'abc'|center(8) }}| {{ 'abcdef'|truncate(4, true, '') }} {{ 'abc def ghi'|truncate(7) }} {{ 'abc def ghi'|truncate(9, false, '..', 0) }}
{{ [1, 2, 3, 4, 5]|batch(2, 'x')|list }} {{ [1, 2, 3, 4]|batch(2)|list }} {{ [1, 2, 3]|batch(4, 0)|list }}
{{ 'aXbXc'.split('X', 1) }} {{ 'a b  c'.split() }} {{ 'a,b,'.split(',') }} {{ 'aXbXc'.rsplit('X', 1) }} {{ ''.split(',') }} {{ ''.split() }}
{{ 'hello'.find('l') }} {{ 'hello'.rfind('l') }} {{ 'hello'.find('l', 3) }} {{ 'hello'.find('z') }} {{ 'hello'.find('') }} {{ 'hello'.index('e') }} {{ 'hello'.count('l') }}
{{ 'hello'.replace('l', 'L', 1) }} {{ 'aaa'.replace('', '-') }} {{ 'abc'.startswith('b') }} {{ 'abc'.endswith(('x', 'c')) }} {{ 'abc'.partition('b') }} {{ 'abc'.rpartition('z') }}
{{ 'a\x0bb\x0cc\x1cd\x1de\x1ef\x85g\u2028h\u2029i\r\nj\rk\n\n'.splitlines() }} {{ 'a\u2028b\x85'.splitlines(true) }} {{ 'a\u2028b\x85c'|indent(1) }}
{{ 'xxabxx'.strip('x') }} {{ 'xxabxx'.lstrip('x') }} {{ 'xxabxx'.rstrip('x') }} {{ 'ab'.strip('abc') }}| {{ 'a1b'.title() }} {{ "they're".title() }} {{ 'aB'.swapcase() }}
{{ [3, 1, 2][-1] }} {{ [3, 1, 2][-3:] }} {{ [3, 1, 2][5:] }} {{ [3, 1, 2][::-1] }} {{ 'héllo'[1:3] }} {{ 'héllo'[-1] }} {{ [1, 2, 3, 4, 5][4:1:-2] }} {{ (1, 2, 3)[:2] }}
{{ 7 // 2 }} {{ -7 // 2 }} {{ 7 % 3 }} {{ -7 % 3 }} {{ 7 % -3 }} {{ -7.5 % 2 }} {{ 7 / 2 }} {{ 4 / 2 }} {{ 2 ** 10 }} {{ 2 ** -1 }} {{ 7.5 // 2 }}
{{ 1 // 0 }}
{{ 1 == 1.0 }} {{ 1 == true }} {{ '1' == 1 }} {{ [1] == [1.0] }} {{ none == none }} {{ {'a': 1} == {'a': 1} }} {{ 1 < 2 < 3 }} {{ 3 > 2 > 2 }} {{ 'a' < 'b' }} {{ [1, 2] < [1, 3] }}
{{ 'b' in 'abc' }} {{ '' in 'abc' }} {{ 2 in [1, 2] }} {{ 'a' in {'a': 1} }} {{ 3 not in (1, 2) }}
{{ [1, 2]|tojson }} {{ {'b': 1, 'a': "x'<>&"}|tojson }} {{ 1.0|tojson }} {{ 1e20|tojson }} {{ 1e16|tojson }} {{ 0.0001|tojson }} {{ 0.00001|tojson }} {{ none|tojson }} {{ 'é'|tojson }} {{ 'é'|tojson(ensure_ascii=true) }}
{{ 1e15 }} {{ 1e16 }} {{ 123456789.123 }} {{ 0.1 + 0.2 }} {{ -0.0 }} {{ 1.5e-7 }} {{ 100.0 }} {{ 1e22 }}
{{ ['b', 'A', 'c']|sort }} {{ ['b', 'A', 'c']|sort(case_sensitive=true) }} {{ [3, 1]|sort(reverse=true) }} {{ ['b', 'B', 'a']|unique|list }} {{ [1, 2, 3]|sum(start=10) }} {{ ['b', 'A']|min }} {{ ['b', 'A']|max }}
{{ 'a\nb\n\nc'|indent(2) }}|{{ 'a\nb\n\nc'|indent(2, blank=true) }}|{{ 'a\nb'|indent('>', true) }}|{{ 'a b c'|wordcount }} {{ 'x'|default('d') }} {{ ''|default('d', true) }} {{ u|default('d') }}
{% for x in [1, 2, 3] %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.previtem }}{{ loop.nextitem }}{{ loop.cycle('a', 'b') }} {% endfor %}
{% for x in [1, 2, 3, 4] if x % 2 == 0 %}{{ loop.index }}:{{ x }} {% else %}none{% endfor %}{% for x in [] %}{{ x }}{% else %}none{% endfor %}{% for x in [1, 2, 3] %}{% if x == 2 %}{% continue %}{% endif %}{{ x }}{% if x == 3 %}{% break %}{% endif %}{% endfor %}
{{ '%05.1f|%-4s|%+d|%x|%%|%3d' % (3.14159, 'ab', 5, 255, 7) }} {{ '{} {1} {0}'.format('a') }}
{{ '{0}-{1}-{a}'.format(1, 2, a=3) }} {{ '{} {}'.format('a', none) }}""".split("\n")


def write_goldens(out, folder):
    """Lines {"name", "template"}, {"name" | "template", "context", "want"}: published templates under Apache-2.0 and MIT, edges, and random ones."""
    with open(out, "w", encoding="utf-8") as f:
        put = lambda **row: f.write(json.dumps(row, ensure_ascii=False) + "\n")
        for name in PUBLISHED:
            text = open(os.path.join(folder, name + ".jinja"), encoding="utf-8").read()
            put(name=name, template=text)
            for i, context in enumerate(conversations()):
                if i % 23 == 0:
                    put(name=name, context=sent(context), want=expected(text, context)[0])
        for text in EDGES:
            put(template=text, context=sent({}), want=expected(text, {})[0])
        put(name="context", context=CONTEXT)
        for text, context in random_cases(3000, 20260101):
            want, _ = expected(text, context)
            if want is None and random.Random(text).random() < 0.9:
                continue
            if want is None or (len(want) < 300 and " object at 0x" not in want and "<generator" not in want):
                put(template=text, want=want)


def main():
    if sys.argv[1] == "--fuzz":
        seed = int(sys.argv[3]) if len(sys.argv) > 3 else 0
        cases = random_cases(int(sys.argv[2]), seed)
        return compare(cases, [f"random {i}: {t!r:.700}" for i, (t, _) in enumerate(cases)]) != 0
    if sys.argv[1] == "--goldens":
        write_goldens(sys.argv[2], sys.argv[3])
        return 0
    return from_folder(sys.argv[1]) != 0


if __name__ == "__main__":
    sys.exit(main())
