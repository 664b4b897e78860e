"""`lateen data make`: every answer is computed again from the question's parameters, without our C; every equation of the worked steps holds; no held-out
problem is a training problem, whatever the seeds; the same bits by range and number of threads. Standard library only."""

import itertools
import json
import os
import re
import subprocess
import sys
import tempfile
from fractions import Fraction as F

from tap import Tap

tap = Tap()
LATEEN = "build/lateen"
KINDS = ["arithmetic", "algebra", "units", "logic", "lists", "strings"]


def make(kind, *args):
    p = subprocess.run([LATEEN, "data", "make", kind, *map(str, args)], capture_output=True, text=True, timeout=60)
    if p.returncode != 0:
        raise RuntimeError(p.stderr)
    return p.stdout


def rows(kind, *args):
    return [json.loads(line, parse_float=F) for line in make(kind, *args).splitlines()]


# Expressions and equations in the notation of the steps: 3x, 2(x + 1), (x - 1)(x + 2), x^2, 3/4.
NUMBER = r"\d+(?:\.\d+)?"
SIDE = rf"(?:{NUMBER}|[xy](?![A-Za-z])|[-+*/^() ])+"
EQUATION = re.compile(rf"(?<![A-Za-z\d.])({SIDE}(?:={SIDE})+)")


def value(text, x=None, y=None):
    text = re.sub(r"(?<=[\dxy)])(?=[xy(])", "*", text.strip().replace("^", "**"))
    text = re.sub(NUMBER, lambda m: m[0] if text[:m.start()].endswith("**") else f"F('{m[0]}')", text)
    return eval(text, {"F": F, "x": x, "y": y})  # The grammar above admits nothing else.


def wrong_equations(steps, solutions):
    """Equations that do not hold for each of the solutions, and equals signs outside equations."""
    bad, seen = [], 0
    for m in EQUATION.finditer(steps):
        seen += m[1].count("=")
        for x, y in solutions:
            values = [value(side, x, y) for side in m[1].split("=")]
            if any(v != values[0] for v in values):
                bad.append(m[1])
    return bad + ([f"{steps.count('=') - seen} equals signs are in no equation"] if seen != steps.count("=") else [])


def words_numbers(text):
    return {F(n) for n in re.findall(NUMBER, text)}


# The answers. Each returns the answer as text or number, from the parameters and the question.
def number(text):
    return F(re.match(r"-?\d+(?:\.\d+)?(?:/\d+)?", text)[0])


def arithmetic(r, p, q):
    if "expression" in p:
        assert p["expression"] in q
        return value(p["expression"])
    a, b = p["a"], p["b"]
    assert {a, b} <= words_numbers(q)
    # The digits that the steps say to write are those of the sum, of the difference without its
    # sign, or of the quotient.
    digits, steps = "".join(re.findall(r"write (\d)[.,]", r["steps"])), r["steps"]
    if r["task"] in ("add", "subtract"):
        digits = ("1" if "Write the carry 1 in front." in steps else "") + digits[::-1]
        assert int(digits) == (a + b if r["task"] == "add" else abs(a - b)), "other digits are written"
        assert (r["task"] == "subtract" and a < b) == ("change the sign" in steps)
    elif r["task"] != "multiply":
        assert int(digits) == a // b, "other digits are written"
        assert re.findall(r"Bring down (\d)", steps) == list(str(a)[len(re.search(r"Begin with (\d+)", steps)[1]):])
    if r["task"] in ("divide", "remainder"):
        assert r["task"] == "remainder" or a % b == 0
        return a % b if r["task"] == "remainder" else F(a, b)
    return {"add": a + b, "subtract": a - b, "multiply": a * b}[r["task"]]


def both(equation, x, y=None):
    left, right = equation.split("=")
    return value(left, x, y) - value(right, x, y)


def algebra(r, p, q):
    if r["task"] == "system":
        assert p["first"] in q and p["second"] in q
        lines = []
        for e in (p["first"], p["second"]):
            c = both(e, F(0), F(0))
            lines.append((both(e, F(1), F(0)) - c, both(e, F(0), F(1)) - c, -c))
        (a, b, c), (d, e, f) = lines
        det = a * e - b * d
        return f"({(c * e - b * f) / det}, {(a * f - c * d) / det})"
    assert p["equation"] in q
    if r["task"] == "linear":
        at0, at1 = both(p["equation"], F(0)), both(p["equation"], F(1))
        return -at0 / (at1 - at0)
    k, b, c = (both(p["equation"], F(x)) for x in (0, 1, -1))
    k, b, c = (b + c) / 2 - k, (b - c) / 2, k  # From the values at 0, 1 and -1.
    roots = [x for x in range(-99, 100) if k * x * x + b * x + c == 0]
    assert len(roots) == 2 and "=" in p["equation"]
    return {"both": f"{roots[0]}, {roots[1]}", "larger": F(roots[1]), "smaller": F(roots[0])}[p["asked"]]


FACTORS = {"km": 1000, "m": 1, "cm": F(1, 100), "kg": 1000, "g": 1, "litres": 1000, "mL": 1, "days": 86400, "hours": 3600, "minutes": 60, "seconds": 1,
           "km/h": F(1000, 3600), "m/s": 1, "litres per minute": F(1000, 60), "mL per second": 1, "square metres": 10000, "square centimetres": 1,
           "hectares": 100000000, "cubic centimetres": 1}
WORD_PROBLEMS = {
    "distance": lambda v, h: v * h, "time": lambda d, v: F(d) / v, "speed": lambda d, h: F(d) / h,
    "minutes": lambda v, h, m: v * (h + F(m, 60)), "two legs": lambda u, g, v, h: u * g + v * h,
    "mean speed": lambda u, g, v, h: F(u * g + v * h) / (g + h), "meeting": lambda u, v, d: F(d) / (u + v),
    "part": lambda c, n: n * F(c, 100), "discount": lambda c, n: n * (1 - F(c, 100)), "increase": lambda c, n: n * (1 + F(c, 100)),
    "share": lambda part, n: 100 * F(part) / n, "two changes": lambda n, up, down: n * (1 + F(up, 100)) * (1 - F(down, 100)),
    "before": lambda c, now: F(now) / (1 - F(c, 100)),
    "total": lambda n, each: n * each, "two totals": lambda n, e, m, f: n * e + m * f, "change": lambda n, each, note: note - n * each,
    "how many": lambda money, each, first: (money - first) // each,
    "times as many": lambda k, both: F(both) * k / (k + 1), "more than": lambda more, both: F(both + more) / 2,
    "ratio": lambda a, b, n: F(n) * a / (a + b), "recipe": lambda a, g, c: F(g) / a * c, "work": lambda a, h, c: F(a * h) / c,
    "rented": lambda fee, each, h: fee + each * h,
}


def units(r, p, q):
    if r["task"] == "conversion":
        assert p["value"] in words_numbers(q) and p["from"] in q and p["to"] in q and r["answer"].endswith(" " + p["to"])
        if "cubic" in p["from"]:
            return F(p["value"]) / 1000
        return F(p["value"]) * FACTORS[p["from"]] / FACTORS[p["to"]]
    assert set(p["given"]) <= words_numbers(q)
    return F(WORD_PROBLEMS[p["asked"]](*p["given"]))


def only(candidates):
    found = list(candidates)
    assert len(found) == 1, f"{len(found)} solutions"
    return found[0]


def logic(r, p, q):
    task = r["task"]
    if task == "order":
        less = {}
        for a, how, b in p["facts"]:
            assert f"{a} {how} {b}." in q
            above, below = (a, b) if how == p["more"] else (b, a)
            less.setdefault(above, set()).add(below)
            less.setdefault(below, set())
        order = []
        while len(order) < len(less):
            order.append(only(a for a in less if a not in order and all(a not in less[b] or b in order for b in less)))
        told = re.findall(rf"^(\w+) {p['more']} (\w+)\.$", r["steps"], re.M)
        assert told == list(zip(order, order[1:]))
        return ", ".join(order) if p["asked"] == "list" else order[p["asked"] - 1]
    if task == "seats":
        places = {a: n for a, n, b in p["facts"] if b is None}
        while len(places) < len(p["facts"]):
            for a, by, b in p["facts"]:
                if b in places:
                    places[a] = places[b] + by
        for a, by, b in p["facts"]:
            assert re.search(rf"{a} sits (in seat {by}\.|(immediately|{abs(by)} seats) to the {'left' if by < 0 else 'right'} of {b}\.)", q)
            assert b is None or ("immediately" in re.search(rf"{a} sits [^.]*", q)[0]) == (abs(by) == 1)
        row = sorted(places, key=places.get)
        assert {(a, int(n)) for a, n in re.findall(r"(\w+) sits in seat (\d)\.$", r["steps"], re.M)} == set(places.items())
        assert sorted(places.values()) == list(range(1, len(row) + 1))
        return row[p["seat"] - 1] if "seat" in p else places[p["person"]] if "person" in p else ", ".join(row)
    if task == "truth":
        people, said = p["people"], p["said"]

        def claim(i, honest):
            words = said[i].split()
            other = honest[words[0]]
            return {"truth": other, "lies": not other, "sort": other == honest[people[i]], "sorts": other != honest[people[i]]}[words[-1]]
        for name, words in zip(people, said):
            assert f'{name} says: "{words}."' in q
        worlds = (dict(zip(people, w)) for w in itertools.product([True, False], repeat=len(people)))
        world = only(w for w in worlds if all(claim(i, w) == w[people[i]] for i in range(len(people))))
        cases = r["steps"].split("Suppose that ")[1:]
        right = only(c for c in cases if "That is consistent." in c)
        assert len(cases) == 2 and only(c for c in cases if c != right).count("a contradiction.") == 1 and "contradiction" not in right
        for a, how in re.findall(r"(\w+) (tells the truth|lies)[.,]", right):
            assert world[a] == (how != "lies"), (a, how)
        return ", ".join(a for a in people if world[a])
    if task == "match":
        for a, pet in p["denied"]:
            assert f"{a} does not own the {pet}." in q
        pairs = only(m for m in (dict(zip(p["people"], o)) for o in itertools.permutations(p["pets"])) if all(m[a] != pet for a, pet in p["denied"]))
        told = re.findall(r"^For (\w+) only the (\w+) is left|^Only (\w+) can own the (\w+)", r["steps"], re.M)
        assert len(told) == len(pairs) and all(pairs[a or c] == b or pairs[a or c] == d for a, b, c, d in told)
        return pairs[p["person"]] if "person" in p else only(a for a in pairs if pairs[a] == p["pet"])
    inside = {(a, b) for a, b in p["facts"]}
    for a, b in p["facts"] + p["choices"]:
        assert f"All {a} are {b}." in q
    assert not any(c in p["facts"] for c in p["choices"])
    for _ in range(3):
        inside |= {(a, d) for a, b in inside for c, d in inside if b == c}
    return 'ABCD'[only(i for i, c in enumerate(p['choices']) if tuple(c) in inside)]


LIST_OPS = {
    "sort_up": lambda x, a: sorted(x), "reverse": lambda x, a: x[::-1], "keep_even": lambda x, a: [i for i in x if i % 2 == 0],
    "keep_odd": lambda x, a: [i for i in x if i % 2], "add": lambda x, a: [i + a for i in x], "take_first": lambda x, a: x[:a],
    "sort_down": lambda x, a: sorted(x, reverse=True), "keep_above": lambda x, a: [i for i in x if i > a],
    "keep_below": lambda x, a: [i for i in x if i < a], "multiply": lambda x, a: [i * a for i in x], "append": lambda x, a: x + [a],
    "swap_ends": lambda x, a: [x[-1]] + x[1:-1] + [x[0]], "unique": lambda x, a: list(dict.fromkeys(x)), "drop_first": lambda x, a: x[a:],
    "take_last": lambda x, a: x[-a:], "every_second": lambda x, a: x[::2], "rotate": lambda x, a: x[a:] + x[:a],
    "keep_multiples": lambda x, a: [i for i in x if i % a == 0], "differences": lambda x, a: [b - c for b, c in zip(x[1:], x)],
    "running_sums": lambda x, a: list(itertools.accumulate(x)),
}


def lists(r, p, q):
    x, steps = p["list"], r["steps"].splitlines()
    assert f"{x}" in q
    for (op, a), step in zip(p["operations"], steps):
        x = LIST_OPS[op](x, a)
        assert step.endswith(f": {x}."), (step, x)
        assert step.split(": [")[0] in q
    if p["asked"] == "list":
        return str(x)
    return F({"sum": sum, "count": len, "largest": max, "smallest": min}[p["asked"]](x))


STRING_OPS = {
    "reverse": lambda s: s[::-1], "drop_vowels": lambda s: re.sub("[aeiou]", "", s), "append": lambda s, c: s + c, "take_first": lambda s, n: s[:n],
    "swap_ends": lambda s: s[-1] + s[1:-1] + s[0], "drop_letter": lambda s, c: s.replace(c, ""), "replace": lambda s, c, d: s.replace(c, d),
    "sort": lambda s: "".join(sorted(s)), "drop_first": lambda s, n: s[n:], "rotate": lambda s, n: s[n:] + s[:n], "every_second": lambda s: s[::2],
    "shift": lambda s, n: "".join(chr(97 + (ord(c) - 97 + n) % 26) for c in s), "double": lambda s: "".join(2 * c for c in s),
}


def strings(r, p, q):
    if r["task"] == "words":
        w = p["words"]
        assert ", ".join(w) in q
        return {"backwards": ", ".join(w[::-1]), "alphabet": ", ".join(sorted(w)), "initials": "".join(x[0] for x in w),
                "last_letters": "".join(x[-1] for x in w), "letters": F(len("".join(w)))}[p["asked"]]
    s = p["word"]
    assert f" {s}. " in q
    for op, step in zip(p["operations"], r["steps"].splitlines()):
        s = STRING_OPS[op[0]](s, *op[1:])
        assert step.endswith(f": {s}."), (step, s)
    return {"text": s, "length": F(len(s)), "vowels": F(len(re.findall("[aeiou]", s)))}[p["asked"]]


def number_in(text, n):
    """Does the text contain this number, as a decimal or a fraction, with its sign?"""
    return n in {F(x.replace(" ", "")) for x in re.findall(r"(?:(?<![\d)]) ?-)?\d+(?:\.\d+)?(?:/\d+)?", text)}


def judge(r):
    """What is wrong with a row; None: nothing."""
    question, answer = r["messages"][0], r["messages"][1]
    r["steps"] = answer["reasoning_content"]
    truth = globals()[r["kind"]](r, r["problem"], question["content"])
    ours = r["answer"]
    if (number(ours) if isinstance(truth, (F, int)) else ours) != truth:
        return f"the answer is {truth}, not {ours}"
    if answer["content"] != f"The answer is {ours}." or (question["role"], answer["role"]) != ("user", "assistant"):
        return "the messages have another form"
    if r["checker"] != ("number" if isinstance(truth, (F, int)) else "choice" if r["task"] == "follows" else
                        "list" if re.search(r"[,\[]", ours) or r["task"] == "truth" else "text"):
        return f"its checker is {r['checker']}"
    if r["kind"] not in ("logic", "lists") and isinstance(truth, (F, int)) and not number_in(r["steps"].splitlines()[-1], truth):
        return f"the last step does not have the answer: {r['steps']}"
    solutions = [(None, None)]
    if r["task"] == "linear":
        solutions = [(truth, None)]
    elif r["task"] == "system":
        solutions = [tuple(map(F, truth[1:-1].split(", ")))]
    elif r["task"] == "quadratic":
        k = [x for x in range(-99, 100) if both(r["problem"]["equation"], F(x)) == 0]
        solutions = [(F(x), None) for x in k]
    steps = r["steps"].replace("\n=", " =") if r["task"] == "expression" else r["steps"]
    bad = wrong_equations(steps, solutions)
    return f"{bad} in {steps}" if bad else None


@tap.case
def answers():
    for kind in KINDS:
        seen, bad, equations = {}, [], 0
        made = rows(kind, "--count", 900, "--seed", 11) + rows(kind, "--count", 200, "--seed", 12, "--split", "held-out")
        for r in made:
            seen[r["task"], r["level"]] = seen.get((r["task"], r["level"]), 0) + 1
            try:
                why = judge(r)
            except Exception as e:
                why = repr(e)
            equations += r["steps"].count("=")
            if why:
                bad.append(f"{r['id']} ({r['task']}): {why}")
        tap.check(f"{kind}: {len(made)} answers and {equations} equations, {len(seen)} tasks and levels", not bad and min(seen.values()) >= 3,
                  bad[:3] or seen)


@tap.case
def a_wrong_equation_is_found():
    """The check of the steps notices faults."""
    tap.check("a wrong equation is found", wrong_equations("Ones: 3 + 4 = 7, then 2x = 8.", [(F(4), None)]) == []
              and wrong_equations("Ones: 3 + 4 = 8.", [(None, None)]) and wrong_equations("2x + 1 = 8", [(F(4), None)]) and wrong_equations("a=b", [(1, 1)]))


def parameters(r):
    """A problem without its wording, which must not occur in both splits. Computed here, from the
    published parameters."""
    p = {k: v for k, v in r["problem"].items() if k != "asked"}
    if r["task"] in ("add", "multiply"):
        p = sorted(p.values())
    elif r["kind"] == "logic":
        p = r["answer"] if p == {} else sorted(map(str, p.get("facts", p.get("denied", p.get("said")))))
    elif r["task"] in ("rates", "percentages", "prices", "shares"):
        p = [r["problem"]["asked"], p["given"]]
    return r["task"] + json.dumps(p, default=str)


@tap.case
def splits():
    train = [r for seed in (1, 2, 3) for r in rows("all", "--count", 4000, "--seed", seed, "--level", "1-2")]
    held = [r for seed in (1, 4) for r in rows("all", "--count", 2000, "--seed", seed, "--split", "held-out", "--level", "1-2")]
    keys = {r["key"] for r in train} & {r["key"] for r in held}
    same = {parameters(r) for r in train} & {parameters(r) for r in held}
    tap.check("no held-out problem is a training problem", not keys and not same, (keys, list(same)[:3]))
    tap.check("the draws repeat problems", len({r["key"] for r in train}) < len(train) and len({r["key"] for r in held}) < len(held))
    by_parameters = {}
    for r in train + held:
        by_parameters.setdefault(parameters(r), set()).add(r["key"])
    tap.check("the same parameters have one key", all(len(k) == 1 for k in by_parameters.values()),
              [p for p, k in by_parameters.items() if len(k) > 1][:3])
    tap.check("one key in twenty is held out", all((int(r["key"], 16) % 20 == 0) == ("held-out" in r["id"]) for r in train + held))


@tap.case
def ranges():
    whole = make("all", "--count", 3000, "--seed", 5)
    parts = [make("all", "--first", f, "--count", n, "--seed", 5, "--threads", t) for f, n, t in ((1700, 1300, 2), (0, 600, 1), (600, 1100, 3))]
    tap.check("ranges made separately have the same bits", parts[1] + parts[2] + parts[0] == whole)
    logic_alone = make("logic", "--count", 3000, "--seed", 5).splitlines()
    tap.check("problem i of all is problem i of its kind", whole.splitlines()[3::6] == logic_alone[3::6])
    tap.check("another seed makes others", make("all", "--count", 100, "--seed", 6) != make("all", "--count", 100, "--seed", 5))
    level = rows("all", "--count", 300, "--level", 4)
    tap.check("levels are kept", {r["level"] for r in level} == {4} and {r["level"] for r in rows("all", "--count", 300, "--level", "2-3")} == {2, 3})


@tap.case
def forms():
    content = {s: rows("lists", "--count", 1, "--steps", s, "--mark", m)[0]["messages"][1]
               for s, m in (("reasoning", "phrase"), ("think", "boxed"), ("plain", "hashes"), ("none", "phrase"))}
    steps, answer = content["reasoning"]["reasoning_content"], rows("lists", "--count", 1)[0]["answer"]
    tap.check("steps and marks", content["think"]["content"] == f"<think>\n{steps}\n</think>\n\n\\boxed{{{answer}}}"
              and content["plain"]["content"] == f"{steps}\n#### {answer}" and content["none"] == {"role": "assistant", "content": f"The answer is {answer}."},
              content)
    text = rows("lists", "--count", 1, "--form", "text")[0]
    think = rows("lists", "--count", 1, "--form", "text", "--steps", "think")[0]["text"]
    tap.check("text with <think>", think.endswith(f"\n<think>\n{steps}\n</think>\n\nThe answer is {answer}."), think)
    tap.check("text", "messages" not in text and text["text"].endswith(f"\n{steps}\nThe answer is {answer}."), text)


@tap.case
def repeats():
    with tempfile.TemporaryDirectory() as d:
        counts, out = {}, os.path.join(d, "out.jsonl")
        for how in ("count", "drop", "ignore"):
            p = subprocess.run([LATEEN, "data", "make", "arithmetic", "--level", "1", "--count", "20000", "--repeats", how, "--out", out],
                               capture_output=True, text=True, timeout=60)
            told = re.search(r"(\d+) of the 20000 problems repeat", p.stderr)
            keys = [json.loads(line)["key"] for line in open(out)]
            counts[how] = (len(keys), len(set(keys)), int(told[1]) if told else None)
        n, unique, _ = counts["count"]
        tap.check("repeats are counted", counts["count"] == (20000, unique, 20000 - unique) and unique < 20000, counts)
        tap.check("repeats are dropped", counts["drop"] == (unique, unique, 20000 - unique), counts)
        tap.check("repeats are ignored", counts["ignore"] == (20000, unique, None), counts)
        tap.check("no file is left but the output", os.listdir(d) == ["out.jsonl"])


@tap.case
def tokenised():
    with tempfile.TemporaryDirectory() as d:
        chat, text, tok = os.path.join(d, "chat.jsonl"), os.path.join(d, "text.jsonl"), "tests/golden/data/demo_tokenizer.json"
        template = os.path.join(d, "t.jinja")
        open(template, "w").write("{% for m in messages %}{{ m.role }}: {% if m.role == 'assistant' %}{% generation %}<think>{{ m.reasoning_content }}</think>"
                                  "{{ m.content }}{% endgeneration %}{% else %}{{ m.content }}\n{% endif %}{% endfor %}")
        make("all", "--count", 60, "--out", chat)
        make("all", "--count", 60, "--form", "text", "--out", text)
        p = subprocess.run([LATEEN, "tokenize", "--tokenizer", tok, "--chat-template", template, "--jsonl"], stdin=open(chat), capture_output=True, text=True)
        lines = [json.loads(line) for line in p.stdout.splitlines()]
        labels = "\n".join(json.dumps({"ids": [i for i, m in zip(x["ids"], x["mask"]) if m]}) for x in lines)
        back = subprocess.run([LATEEN, "tokenize", "--tokenizer", tok, "--decode", "--jsonl"], input=labels, capture_output=True, text=True).stdout
        want = [f"<think>{m['reasoning_content']}</think>{m['content']}" for m in (json.loads(line)["messages"][1] for line in open(chat))]
        tap.check("tokenize --chat: the labels are steps and answer", [json.loads(line)["text"] for line in back.splitlines()] == want, p.stderr + back[:300])
        p = subprocess.run([LATEEN, "tokenize", text, "--tokenizer", tok, "--out", os.path.join(d, "s")], capture_output=True, text=True)
        tap.check("tokenize reads the form text", p.returncode == 0 and re.search(r"documents +60\b", p.stdout + p.stderr), p.stderr)


@tap.case
def documented():
    page = open("docs/data-make.md").read()
    examples = re.findall(r"\(`lateen data make ([^`]*)`\):\n\n((?:    .*\n)+)", page)
    tap.check("the examples of docs/data-make.md", {e[0].split()[0] for e in examples} == set(KINDS) and all(
        json.loads(make(*command.split()))["text"] == re.sub("^    ", "", text, flags=re.M).rstrip("\n") for command, text in examples))
    command = re.search(r"the first line of `lateen data make ([^`]*)`", page)[1]
    shown = json.loads("".join(re.findall(r"^ {4,}(.*)\n", page.split("## A line")[1].split("## The kinds")[0], flags=re.M)))
    first = json.loads(make(*command.split(), "--count", 1))
    steps = first["messages"][1]["reasoning_content"]
    first["messages"][1]["reasoning_content"] = steps.split(". ")[0] + ". ..."
    tap.check("the line that the page shows is the one that its command makes", json.dumps(shown) == json.dumps(first), first)


def check(lines, *args):
    return subprocess.run([LATEEN, "data", "check", "-", *args], input="".join(json.dumps(x) + "\n" for x in lines), capture_output=True, text=True)


@tap.case
def checked():
    """What `lateen data check` counts, against every subset."""
    lines, want = [], {}
    texts = ["The answer is 7.", "#### 7.0", "\\boxed{14/2}", "The answer is 8.", "#### 8", "#### 8", "so it is\n7", "#### 7 is wrong"]
    rights, classes = [1, 1, 1, 0, 0, 0, 0, 0], [0, 0, 0, 1, 1, 1, None, 2]
    for kind, level, n in (("a", 2, 8), ("a", 10, 6), ("b", 2, 3)):
        lines.append({"kind": kind, "level": level, "answer": "7", "checker": "number", "completions": texts[:n]})
        for name in ("all", kind, f"level {level}"):
            want.setdefault(name, []).append(n)
    with tempfile.TemporaryDirectory() as d:
        out = os.path.join(d, "scored.jsonl")
        p = check(lines, "--k", "1,4", "--json", "--out", out)
        scored = [json.loads(line) for line in open(out)]
    got = json.loads(p.stdout)
    tap.check("verdicts of each text", [x["right"] for x in scored] == [[bool(r) for r in rights[:n]] for n in (8, 6, 3)]
              and [{k: v for k, v in x.items() if k != "right"} for x in scored] == lines, scored)

    def expected(n, k):
        passes, majority, subsets = 0, F(0), list(itertools.combinations(range(n), k))
        for s in subsets:
            votes = [classes[i] for i in s if classes[i] is not None]
            best = [c for c in set(votes) if votes.count(c) == max(map(votes.count, votes))]
            passes += any(rights[i] for i in s)
            majority += F(best.count(0), max(len(best), 1))
        return F(passes, len(subsets)), majority / len(subsets)
    bad = []
    for name, sizes in want.items():
        total = sum(sizes)
        exact = {"problems": len(sizes), "answers": total, "found": F(sum(n - (n > 6) for n in sizes), total), "right": F(3 * len(sizes), total)}
        for k in (1, 4):
            of = [expected(n, k) for n in sizes if n >= k]
            if of:
                exact |= {f"pass@{k}": sum(x for x, _ in of) / len(of), f"maj@{k}": sum(x for _, x in of) / len(of)}
        bad += [(name, got[name], exact)] if got[name].keys() != exact.keys() or any(abs(got[name][i] - float(v)) > 1e-9 for i, v in exact.items()) else []
    tap.check("shares, pass@k and maj@k by kind and level", not bad and list(got) == ["all", "a", "b", "level 2", "level 10"], bad or list(got))
    table = check(lines, "--k", "4").stdout.splitlines()
    tap.check("the table", len(table) == 6 and table[0].split() == ["problems", "answers", "found", "right", "pass@4", "maj@4"]
              and table[3].split() == ["b", "1", "3", "100.00%", "100.00%", "-", "-"], table)
    found = [json.loads(check(lines[:1], "--marks", m, "--json").stdout)["all"]["right"] * 8 for m in ("strict", "lenient", "number")]
    # The last number of "14/2" is 2, and that of "7 is wrong" is 7.
    tap.check("sets of marks", found == [3, 4, 4], found)
    made = make("all", "--count", 600, "--split", "held-out", "--steps", "think", "--mark", "boxed")
    p = subprocess.run([LATEEN, "data", "check", "-", "--json"], input=made, capture_output=True, text=True)
    tap.check("what is made is right", json.loads(p.stdout)["all"]["right"] == 1, p.stdout + p.stderr)
    for line, says in (({"checker": "number", "completion": "1"}, "'answer'"), ({"answer": "1", "checker": "nubmer", "completion": "1"}, "did you mean number"),
                       ({"answer": "1", "checker": "number"}, 'no "completions"'), ({"answer": "forty two", "checker": "number", "completion": "1"}, "is not a number"),
                       ({"answer": "1", "checker": "number", "completions": []}, "it is empty"),
                       ({"answer": "1", "checker": "number", "completions": ["1", 2]}, "completions[1] is not a text"),
                       ({"answer": "1", "checker": "number", "messages": [{"role": "user", "content": "1"}]}, "end with the assistant's")):
        p = check([lines[0], line])
        tap.check(f"refused: {says}", p.returncode != 0 and says in p.stderr and "standard input, line 2" in p.stderr and not p.stdout, p.stderr)
    for level, good in ((0, True), (1000, True), (-1, False), (1001, False)):
        p = check([dict(lines[0], level=level)])
        tap.check(f"level {level}", p.returncode == (0 if good else 1) and (f"level {level} " in p.stdout if good else "outside of [0, 1000]" in p.stderr), p.stderr)
    p = check([dict(lines[0], kind="k" * 64)])
    tap.check("refused: a long kind", p.returncode == 1 and "is longer than 64 bytes" in p.stderr, p.stderr)
    for args, says in ((["--k", "0"], "is not a list"), (["--k", "1,,2"], "is not a list"), (["--k", "513"], "from 1 to 512")):
        p = check(lines, *args)
        tap.check(f"refused: {args}", p.returncode == 2 and says in p.stderr, p.stderr)
    tap.check("refused: no lines", "no lines" in check([]).stderr)


@tap.case
def refused():
    for args, says, code in ((["make", "aritmetic"], "did you mean 'arithmetic'", 1), (["make", "all", "--level", "0"], "levels 0 to 0", 1), (["make", "all", "--level", "99"], "levels 99 to 99: levels are 1 to", 1),
                             (["make", "all", "--level", "2-"], "neither a level nor a range", 1),
                             (["make", "all", "--level", "4-2"], "levels 4 to 2", 1), (["make", "all", "--level", "two"], "neither a level nor a range", 1),
                             (["make"], "usage: lateen data make", 1), (["make", "all", "--out", "no/such/folder/x"], "no/such/folder/x.tmp", 1),
                             (["make", "all", "--split", "test"], "held-out", 2)):
        p = subprocess.run([LATEEN, "data", *args], capture_output=True, text=True, timeout=60)
        tap.check("refused: " + " ".join(args), p.returncode != 0 and says in p.stderr and not p.stdout, (p.returncode, p.stderr))


sys.exit(tap.end())
