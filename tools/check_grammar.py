#!/usr/bin/env python3
"""Check build/examples/grammar_walk against jsonschema, Python's re, and public test suites.

    tools/check_grammar.py TOKENIZER schemas N [SEED]   random schemas: random walks under the masks must be valid by jsonschema; drawn instances
                                                        that are valid must be accepted
    tools/check_grammar.py TOKENIZER regex N [SEED]     random patterns: accepted texts are those of Python's re, walks match
    tools/check_grammar.py TOKENIZER suite FOLDER       JSON-Schema-Test-Suite's tests/draft2020-12: invalid instances must be refused; of the valid
                                                        ones it counts how many are accepted, by keyword
    tools/check_grammar.py TOKENIZER golden FOLDER OUT  the suite as tests/golden/serve/json_schema_suite.jsonl: verdicts of the suite, and which of the
                                                        valid instances are produced (the others break rules of docs/serve.md, such as the order of properties)
    tools/check_grammar.py TOKENIZER values OUT [N]     N random schemas, and as many that list values, with jsonschema's verdict on each of many values, as
                                                        tests/golden/serve/json_schema_values.jsonl; valid ones as above
    tools/check_grammar.py TOKENIZER bench FOLDER [N]   MaskBench's data (github.com/guidance-ai/jsonschemabench), each Nth file: refusals by reason, its valid and
                                                        invalid instances, random walks by jsonschema without duplicate names, times
    tools/check_grammar.py TOKENIZER time FILE          lines of {"schema", "instances"}: mask times along the instances
Needs jsonschema (PyPI)."""
import glob
import json
import os
import random
import re
import subprocess
import sys
import unicodedata

sys.set_int_max_str_digits(0)  # Numbers without bounds can have any length.

PROGRAM = os.environ.get("GRAMMAR_WALK", os.path.join(os.path.dirname(__file__), "..", "build", "examples", "grammar_walk"))


def ask(tokenizer, questions):
    lines = "".join(json.dumps(q) + "\n" for q in questions)
    out = subprocess.run([PROGRAM, tokenizer], input=lines.encode(), stdout=subprocess.PIPE, check=True).stdout.decode()
    return [json.loads(line) for line in out.split("\n") if line]


# ---- random schemas ----

class Gen:
    def __init__(self, rng):
        self.r = rng

    def schema(self, d):
        r = self.r
        k = r.randrange(11 if d > 0 else 7)
        if k == 0:
            s = {"type": "integer"}
            if r.random() < 0.7:
                lo = r.choice([-150, -10, -1, 0, 1, 7, 95, 1000]) + r.randrange(10)
                s[r.choice(["minimum", "exclusiveMinimum"])] = lo
                if r.random() < 0.7:
                    s[r.choice(["maximum", "exclusiveMaximum"])] = lo + r.choice([2, 10, 99, 12345])
            elif r.random() < 0.3:
                s["multipleOf"] = r.choice([2, 3, 7, 10, 64])
                if r.random() < 0.5:
                    s.update({r.choice(["minimum", "exclusiveMinimum"]): r.choice([-70, 0, 6]), "maximum": r.choice([6, 140])})
            return s
        if k == 1:
            s = {"type": "number"}
            if r.random() < 0.7:
                lo = r.choice([-10.5, -1.25, 0, 0.001, 3, 99.99])
                s[r.choice(["minimum", "exclusiveMinimum"])] = lo
                if r.random() < 0.7:
                    s[r.choice(["maximum", "exclusiveMaximum"])] = lo + r.choice([0.5, 1, 20.125, 1000])
            return s
        if k == 2:
            s = {"type": "string"}
            if r.random() < 0.5:
                s["minLength"] = r.randrange(4)
                s["maxLength"] = s["minLength"] + r.randrange(30)
            if r.random() < 0.3:
                s["pattern"] = r.choice(["^[a-z]+$", "^\\d{3}-\\d{2}$", "ab", "^(x|yz)*$", "^[^\"\\\\]{2,5}$", "^\\w+ \\w+"])
                s.pop("minLength", None)
            return s
        if k == 3:
            return {"type": "string", "format": r.choice(["date", "time", "date-time", "uuid", "ipv4", "email", "ipv6"])}
        if k == 4:
            return {"enum": [r.choice([1, "a", None, True, "x\"y", -2.5, {"k": [1]}, "ü"]) for _ in range(3)]}
        if k == 5:
            return {"type": r.choice(["boolean", "null", ["string", "null"], ["integer", "boolean"]])}
        if k == 6:
            return {"const": r.choice([5, "c", [1, 2], {"a": None}])}
        if k == 7:
            s = {"type": "array", "items": self.schema(d - 1)}
            if r.random() < 0.5:
                s["minItems"] = r.randrange(3)
                s["maxItems"] = s["minItems"] + r.randrange(4)
            if r.random() < 0.3:
                s["prefixItems"] = [self.schema(0) for _ in range(r.randrange(1, 3))]
            return s
        if k in (8, 9):
            names = r.sample(["a", "b", "name", "x y", "q\"", "ö", "long_property"], r.randrange(0, 5))
            s = {"type": "object", "properties": {n: self.schema(d - 1) for n in names}, "required": [n for n in names if r.random() < 0.5]}
            c = r.randrange(4)
            if c == 0:
                s["additionalProperties"] = False
            elif c == 1:
                s["additionalProperties"] = self.schema(0)
            elif c == 2:
                s["patternProperties"] = {"^k[0-9]$": self.schema(0), "^[a-m]": self.schema(0)}
                s["required"] = []
            if r.random() < 0.2 and not s["required"]:
                s["propertyNames"] = r.choice([{"pattern": "^[a-z]"}, {"maxLength": 3}, {"enum": ["a", "b", "k1", "zz"]}])
            return s
        if r.random() < 0.4:
            return {"allOf": [{"type": "object", "properties": {"a": self.schema(0)}, "required": ["a"]}, {"properties": {"b": self.schema(d - 1)}}]}
        return {r.choice(["anyOf", "oneOf"]): [self.schema(d - 1) for _ in range(r.randrange(1, 4))]}

    def whole(self):
        s = self.schema(3)
        if self.r.random() < 0.3:
            s = {"$defs": {"n": {"type": "object", "properties": {"v": self.schema(1), "next": {"anyOf": [{"$ref": "#/$defs/n"}, {"type": "null"}]}}, "required": ["v", "next"],
                                 "additionalProperties": False}}, "$ref": "#/$defs/n"}
        return s


def schemas(tokenizer, n, seed):
    import jsonschema
    rng = random.Random(seed)
    all_ = [Gen(rng).whole() for _ in range(n)]
    replies = ask(tokenizer, [{"kind": "schema", "text": json.dumps(s), "walks": 4, "seed": i} for i, s in enumerate(all_)])
    bad = refused = walks = unfinished = 0
    again = []
    for s, reply in zip(all_, replies):
        judge = jsonschema.Draft202012Validator(s, format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER)
        if "error" in reply:
            refused += 1
            if not any(known in reply["error"] for known in ("no text matches", "oneOf whose", "two different")):
                print("refused", reply["error"], json.dumps(s)[:300])
            continue
        texts = []
        for w in reply["walks"]:
            if not isinstance(w, str):
                unfinished += 1
                continue
            walks += 1
            try:
                value = json.loads(w)
                judge.validate(value)
                texts += [w, json.dumps(value), json.dumps(value, indent=2, ensure_ascii=False)] if "e" not in w.lower() or True else [w]
            except Exception as e:
                bad += 1
                print("NOT VALID", json.dumps(s)[:1500], "\n  ", w[:600], "\n  ", str(e)[:200].replace("\n", " "))
        again.append((s, texts))
    replies = ask(tokenizer, [{"kind": "schema", "text": json.dumps(s), "accept": t} for s, t in again])
    not_taken = 0
    for (s, texts), reply in zip(again, replies):
        for t, ok in zip(texts, reply["accept"]):
            if not ok:
                not_taken += 1
                if not_taken < 10:
                    print("not accepted", json.dumps(s)[:300], "\n  ", t[:200])
    compile_us = sorted(r["compile_us"] for r in replies)
    mask = sum(r["mask_us"] * r["masks"] for r in replies) / max(1, sum(r["masks"] for r in replies))
    print(f"{n} schemas: {refused} refused, {walks} walks valid but {bad}, {unfinished} unfinished; re-spelt instances not accepted: {not_taken} of {sum(len(t) for _, t in again)}; "
          f"compile median {compile_us[len(compile_us) // 2]:.0f} us, max {compile_us[-1]:.0f}; mask mean {mask:.1f} us along instances")
    return bad


# ---- regular expressions ----

def pattern(r, d):
    k = r.randrange(9 if d > 0 else 3)
    if k == 0:
        return r.choice(["a", "b", "ab", "0", "é", " ", "\\.", "x"])
    if k == 1:
        return r.choice(["[a-c]", "[^a]", "\\d", "\\w", "\\s", ".", "[\\d_-]", "[^\\W\\d]", "\\D"])
    if k == 2:
        return r.choice(["abc", "\\x41", "[b-y]", "(?:)", "^", "$"])
    if k in (3, 4):
        return pattern(r, d - 1) + pattern(r, d - 1)
    if k == 5:
        return "(" + pattern(r, d - 1) + "|" + pattern(r, d - 1) + ")"
    return "(?:" + pattern(r, d - 1) + ")" + r.choice(["*", "+", "?", "{2}", "{1,3}", "{2,}", "*?"])


def regex(tokenizer, n, seed):
    rng = random.Random(seed)
    questions = []
    for i in range(n):
        p = pattern(rng, 4)
        texts = ["".join(rng.choice("abcx0é._- \nA9") for _ in range(rng.randrange(7))) for _ in range(30)]
        questions.append({"kind": "regex", "text": p, "accept": texts, "walks": 3, "seed": i})
    bad = checked = 0
    for q, reply in zip(questions, ask(tokenizer, questions)):
        if "error" in reply:
            bad += "no text matches" not in reply["error"]
            print("refused", q["text"], reply["error"])
            continue
        c = re.compile(q["text"].replace("$", "\\Z"), re.ASCII)  # $ is the end of the text.
        pairs = list(zip(q["accept"], reply["accept"])) + [(w, True) for w in reply["walks"] if isinstance(w, str)]
        for t, ok in pairs:
            checked += 1
            if (c.fullmatch(t) is not None) != ok:
                bad += 1
                print("DIFFERS", q["text"], repr(t), ok)
    print(f"{n} patterns, {checked} texts: {bad} differ")
    return bad


def suite(tokenizer, folder):
    wrong = 0
    rows = {}
    for path in sorted(glob.glob(os.path.join(folder, "*.json"))):
        name = os.path.basename(path)[:-5]
        groups = json.load(open(path))
        replies = ask(tokenizer, [{"kind": "schema", "text": json.dumps(g["schema"]), "accept": [json.dumps(t["data"], ensure_ascii=False) for t in g["tests"]]} for g in groups])
        row = rows.setdefault(name, [0, 0, 0, 0])
        for g, reply in zip(groups, replies):
            if "error" in reply:
                row[0] += len(g["tests"])
                continue
            for t, ok in zip(g["tests"], reply["accept"]):
                row[1] += t["valid"] and ok
                row[2] += t["valid"] and not ok
                if ok and not t["valid"]:
                    row[3] += 1
                    wrong += 1
                    print("WRONGLY ACCEPTED", name, g["description"], "|", t["description"])
    total = [sum(r[i] for r in rows.values()) for i in range(4)]
    for name, r in rows.items():
        print(f"{name:28s} in refused schemas {r[0]:4d}  valid accepted {r[1]:4d}  valid not produced {r[2]:4d}  invalid accepted {r[3]:3d}")
    print(f"{'all':28s} in refused schemas {total[0]:4d}  valid accepted {total[1]:4d}  valid not produced {total[2]:4d}  invalid accepted {total[3]:3d}")
    return wrong


def golden(tokenizer, folder, out):
    rows = []
    for path in sorted(glob.glob(os.path.join(folder, "*.json")) + glob.glob(os.path.join(folder, "optional", "*.json")) + glob.glob(os.path.join(folder, "optional", "format", "*.json"))):
        name = os.path.relpath(path, folder)[:-5]
        if name in ("refRemote", "vocabulary", "format", "content", "default"):
            continue  # They need other documents; formats that are assertions are in optional/format.
        groups = [g for g in json.load(open(path)) if len(json.dumps(g["schema"])) < 1500]
        texts = [[json.dumps(t["data"], ensure_ascii=False) for t in g["tests"]] for g in groups]
        for g, t, r in zip(groups, texts, ask(tokenizer, [{"kind": "schema", "text": json.dumps(g["schema"]), "accept": t} for g, t in zip(groups, texts)])):
            row = {"from": name + ": " + g["description"], "schema": g["schema"], "invalid": [x for x, test in zip(t, g["tests"]) if not test["valid"]]}
            if "error" in r:
                row["refused"] = True
            row["valid"] = [x for x, test, ok in zip(t, g["tests"], r.get("accept", [])) if test["valid"] and ok and unicodedata.normalize("NFC", x) == x]  # As tokenizers normalise.
            rows.append(row)
    with open(out, "w") as f:
        for row in rows:
            f.write(json.dumps(row, ensure_ascii=False, separators=(",", ":")) + "\n")
    print(f"{len(rows)} schemas, {sum('refused' in r for r in rows)} refused")
    return 0


# ---- values and verdicts ----

VALUES = [-3, 0, 1, 2, 5, 7, 10, 12, 100, 0.5, 2.5, -1.25, "", "a", "ab", "abc", "abcd", "x1", "k2", "yes", "ö", "q\"", None, True, False, [], [1], [1, 2], [1, 1], ["a"], [1, "a"],
          [[1], [1]], [None, True], [2, 5, 7], [5, 12, 0.5, "ab"], {}, {"a": 1}, {"a": 1, "b": 2}, {"k1": 1}, {"k1": "x", "k2": 2}, {"b": None}, {"a": {"a": 1}}, {"a": "ab", "zz": [1]},
          {"b": 5, "k2": 7, "zz": "x1"}]


class Rules:
    """Schemas whose keywords judge the values above."""

    def __init__(self, rng):
        self.r = rng

    def sub(self, d):
        return self.rules(d - 1) if d > 0 and self.r.random() < 0.7 else self.r.choice([{"type": "integer"}, {"type": "string"}, {"minimum": 2}, {"maxLength": 1}, {"const": 1}, True, False])

    def subs(self, d, low=1):
        return [self.sub(d) for _ in range(self.r.randrange(low, 4))]

    def name(self):
        return self.r.choice(["a", "b", "k1", "k2", "zz"])

    def rules(self, d):
        r = self.r
        s = {}
        for _ in range(r.choice([1, 1, 2, 2, 3])):
            k = r.choice(["type", "number", "number", "step", "length", "pattern", "items", "items", "contains", "unique", "count", "members", "members", "patterns", "more", "names", "size",
                          "depend", "all", "any", "one", "not", "if", "enum"])
            if k == "type":
                s["type"] = r.sample(["null", "boolean", "integer", "number", "string", "array", "object"], r.randrange(1, 4))
            elif k == "number":
                s[r.choice(["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"])] = r.choice([-3, 0, 1, 2, 2.5, 5, 10])
            elif k == "step":
                s["multipleOf"] = r.choice([1, 2, 5, 0.5, 2.5])
            elif k == "length":
                s[r.choice(["minLength", "maxLength"])] = r.randrange(5)
            elif k == "pattern":
                s["pattern"] = r.choice(["^a", "b", "^[a-z]+$", "[0-9]$", "^.{1,2}$", "^$"])
            elif k == "items":
                s["items"] = self.sub(d)
                if r.random() < 0.4:
                    s["prefixItems"] = self.subs(d)
            elif k == "contains":
                s["contains"] = self.sub(d)
                if r.random() < 0.5:
                    s[r.choice(["minContains", "maxContains"])] = r.randrange(3)
            elif k == "unique":
                s["uniqueItems"] = True
            elif k == "count":
                s[r.choice(["minItems", "maxItems"])] = r.randrange(4)
            elif k == "members":
                s["properties"] = {self.name(): self.sub(d) for _ in range(r.randrange(1, 4))}
                if r.random() < 0.5:
                    s["required"] = sorted({self.name() for _ in range(r.randrange(1, 3))})
            elif k == "patterns":
                s["patternProperties"] = {r.choice(["^k", "[12]$", "^[ab]$", "z"]): self.sub(d) for _ in range(r.randrange(1, 3))}
            elif k == "more":
                s["additionalProperties"] = self.sub(d)
            elif k == "names":
                s["propertyNames"] = r.choice([{"maxLength": 1}, {"pattern": "^k"}, {"enum": ["a", "zz"]}, {"minLength": 2}])
            elif k == "size":
                s[r.choice(["minProperties", "maxProperties"])] = r.randrange(4)
            elif k == "depend":
                s.update(r.choice([{"dependentRequired": {self.name(): [self.name()]}}, {"dependentSchemas": {self.name(): self.sub(d)}}]))
            elif k in ("all", "any", "one"):
                s[k + "Of"] = self.subs(d, 2)
            elif k == "not":
                s["not"] = self.sub(d)
            elif k == "if":
                s.update({"if": self.sub(d), "then": self.sub(d), "else": self.sub(d)})
            elif k == "enum":
                s["enum"] = r.sample(VALUES, 12)
        return s


def values(tokenizer, out, n):
    import jsonschema
    rng = random.Random(20261201)
    rules, rows = Rules(rng), []
    while len(rows) < 2 * n:
        listed = len(rows) % 2 == 1
        schema, tried = rules.rules(2), rng.sample(VALUES, 16)
        if listed:
            schema = {**schema, "enum": tried}
        judge = jsonschema.Draft202012Validator(schema)
        fits = [judge.is_valid(v) for v in tried]
        if any(fits) and not all(fits):
            rows.append((listed, schema, [json.dumps(v, ensure_ascii=False) for v in tried], fits))
    replies = ask(tokenizer, [{"kind": "schema", "text": json.dumps(s), "accept": t} for _, s, t, _ in rows])
    with open(out, "w") as f:
        for i, ((listed, schema, texts, fits), reply) in enumerate(zip(rows, replies)):
            taken = reply.get("accept", [])
            row = {"from": f"{'listed ' if listed else ''}values {i}", "schema": schema, "invalid": [t for t, is_valid in zip(texts, fits) if not is_valid],
                   "valid": [t for t, is_valid, ok in zip(texts, fits, taken) if is_valid and ok]}
            if "error" in reply:
                row["refused"] = True
            f.write(json.dumps(row, ensure_ascii=False, separators=(",", ":")) + "\n")
    print(f"{len(rows)} schemas, {sum('error' in r for r in replies)} refused")
    return 0


def no_twice(pairs):
    if len({k for k, _ in pairs}) < len(pairs):
        raise ValueError("a name occurs twice")
    return dict(pairs)


def bench(tokenizer, folder, every):
    import jsonschema
    files = sorted(glob.glob(os.path.join(folder, "*.json")))[::every]
    data = [json.load(open(f)) for f in files]
    questions = [{"kind": "schema", "text": json.dumps(d["schema"]), "accept": [json.dumps(t["data"], ensure_ascii=False) for t in d["tests"]], "walks": 2, "seed": i} for i, d in enumerate(data)]
    why, times, bad, walks, counts = {}, [], 0, 0, [0, 0, 0, 0]
    replies = ask(tokenizer, questions)
    for f, d, r in zip(files, data, replies):
        if "error" in r:
            reason = re.sub(r"\(at [^)]*\)|\d+", "", r["error"])[:100]
            why[reason] = why.get(reason, 0) + 1
            continue
        for t, ok in zip(d["tests"], r["accept"]):
            counts[2 * t["valid"] + ok] += 1
        times.append((r["mask_us_max"], r["mask_us"], r["masks"], r["compile_us"]))
        cls = jsonschema.validators.validator_for(d["schema"], default=jsonschema.Draft202012Validator) if isinstance(d["schema"], dict) else jsonschema.Draft202012Validator
        for w in r["walks"]:
            if not isinstance(w, str):
                continue
            walks += 1
            try:
                cls(d["schema"], format_checker=cls.FORMAT_CHECKER).validate(json.loads(w, object_pairs_hook=no_twice))
            except Exception as e:
                bad += 1
                print("NOT VALID", os.path.basename(f), w[:300], str(e)[:200].replace("\n", " "))
    for reason, n in sorted(why.items(), key=lambda x: -x[1]):
        print(f"{n:5d} {reason}")
    times.sort()
    print("masks over 0.5, 1, 2, 5, 10 ms:", [sum(r["masks_over"][i] for r in replies if "error" not in r) for i in range(5)])
    masks = sum(t[2] for t in times)
    print(f"{len(files)} schemas: {sum(why.values())} refused; valid instances {counts[3]} accepted, {counts[2]} not; invalid {counts[1]} accepted, {counts[0]} not; {walks} walks, {bad} not valid; "
          f"mask mean {sum(t[1] * t[2] for t in times) / max(1, masks):.1f} us of {masks}, worst {times[-1][0] / 1000:.1f} ms; compile mean {sum(t[3] for t in times) / len(times) / 1000:.2f} ms")
    return bad + counts[1]


def time(tokenizer, path):
    rows = [json.loads(line) for line in open(path)]
    replies = ask(tokenizer, [{"kind": "schema", "text": json.dumps(r["schema"]), "accept": [json.dumps(i) for i in r["instances"]]} for r in rows])
    ok = [r for r in replies if "error" not in r]
    masks = sum(r["masks"] for r in ok)
    print(f"{len(ok)} of {len(rows)} schemas, {masks} masks: mean {sum(r['mask_us'] * r['masks'] for r in ok) / max(1, masks):.1f} us, "
          f"worst {max(r['mask_us_max'] for r in ok):.0f} us; compile mean {sum(r['compile_us'] for r in ok) / max(1, len(ok)):.0f} us")
    return 0


if __name__ == "__main__":
    tok, what, arg = sys.argv[1:4]
    seed = int(sys.argv[4]) if len(sys.argv) > 4 and what != "golden" else 0
    sys.exit({"golden": lambda: golden(tok, arg, sys.argv[4]), "bench": lambda: bench(tok, arg, max(seed, 1)), "schemas": lambda: schemas(tok, int(arg), seed), "regex": lambda: regex(tok, int(arg), seed), "suite": lambda: suite(tok, arg), "values": lambda: values(tok, arg, max(seed, 1)),
              "time": lambda: time(tok, arg)}[what]() != 0)
