#!/usr/bin/env python3
"""Write tests/golden/serve/gbnf.json: texts that llama.cpp itself accepts or refuses by the random grammars below, for tests/unit/serve/test_grammar_lark.c.

    python3 tools/make_gbnf.py [N] [SEED]          N grammars; needs xllamacpp (PyPI; made with 2026.10.11549)
The grammars use what llama.cpp's grammars/README.md describes: nested groups over lines, classes and their opposites, escapes, repetitions with space in their
braces, comments, rules that call each other. A grammar that llama.cpp refuses is left out; it also refuses some that have a meaning here."""
import ctypes
import glob
import json
import os
import random
import sys

import xllamacpp

lib = ctypes.CDLL(glob.glob(os.path.join(os.path.dirname(xllamacpp.__file__), "*.so"))[0])
begin = lib._Z23llama_grammar_init_implPK11llama_vocabPKcS3_bPS3_mPKim
begin.restype = ctypes.c_void_p
begin.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_bool, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p, ctypes.c_size_t]
accept = lib._Z20llama_grammar_acceptP13llama_grammarj
accept.argtypes, accept.restype = [ctypes.c_void_p, ctypes.c_uint32], None
stacks_of = lib._Z24llama_grammar_get_stacksP13llama_grammar
stacks_of.argtypes, stacks_of.restype = [ctypes.c_void_p], ctypes.c_void_p
end = lib._Z23llama_grammar_free_implP13llama_grammar
end.argtypes, end.restype = [ctypes.c_void_p], None
ALL = list('abcAB01 -\n\t"\\[]éß€天😀._')
NAMED = {'"': '\\"', "\\": "\\\\", "[": "\\[", "]": "\\]", "\n": "\\n", "\t": "\\t"}


def vector(at):
    return (ctypes.c_size_t * 2).from_address(at)


def depths(grammar):
    """The depth of each stack: a std::vector of std::vectors of pointers."""
    first, last = vector(stacks_of(grammar))
    return [(vector(at)[1] - vector(at)[0]) // 8 for at in range(first, last, 24)]


def verdicts(text, tries):
    out = []
    for one in tries:
        grammar = begin(None, text.encode(), b"root", False, None, 0, None, 0)
        if not grammar:
            return None
        for c in one:
            accept(grammar, ord(c))
            if not depths(grammar):
                break
        out.append(0 in depths(grammar))
        end(grammar)
    return out


class Maker:
    def __init__(self, r):
        self.r = r
        self.names = ["root"] + r.sample(["a", "bc", "x-1", "Item", "z9"], r.randrange(4))
        self.chars = r.sample(ALL, r.choice([2, 3, 4]))

    def char(self, c, in_class):
        x, code = self.r.random(), ord(c)
        if c == "\n" and x < 0.1:
            return c
        if c in NAMED and x < 0.8:
            return NAMED[c]
        if c in NAMED or x < 0.1:
            return self.r.choice([f"\\x{code:02x}"] * (code < 256) + [f"\\u{code:04X}"] * (code < 65536) + [f"\\U{code:08x}"])
        return "\\-" if in_class and c == "-" else c

    def literal(self):
        return '"' + "".join(self.char(self.r.choice(self.chars), False) for _ in range(self.r.choice([0, 1, 1, 2, 3]))) + '"'

    def one_of(self):
        out = "[" + "^" * (self.r.random() < 0.3)
        for _ in range(self.r.choice([1, 1, 2, 3])):
            low, high = sorted(self.r.choices(self.chars, k=2))
            out += self.char(low, True) + ("-" + self.char(high, True)) * (self.r.random() < 0.3)
        return out + "-" * (self.r.random() < 0.1) + "]"

    def space(self, nested):
        return self.r.choice([" ", "  ", "\t"] + ["\n", ' # c "x" [\n', "\r\n "] * nested)

    def item(self, depth, nested):
        x = self.r.random()
        out = (self.literal() if x < 0.4 or depth == 0 and x > 0.82 else self.one_of() if x < 0.65 else "." if x < 0.7
               else self.r.choice(self.names[1:] or ['"b"']) if x < 0.82 else "(" + self.space(1) + self.alternatives(depth - 1, True) + self.space(1) + ")")
        while self.r.random() < 0.25:
            out += self.r.choice(["", "", " "]) + self.r.choice(["*", "+", "?", "{2}", "{1,}", "{0,2}", "{1,3}", "{0}", "{ 2 }", "{1, 2}", "{ 1 , }"])
        return out

    def alternatives(self, depth, nested):
        def sequence():
            return self.space(nested).join(self.item(depth, nested) for _ in range(self.r.choice([0, 1, 1, 2, 2, 3])))
        return (self.space(nested) + "|" + self.space(1)).join(sequence() for _ in range(self.r.choice([1, 1, 2, 3])))

    def grammar(self):
        rules = [n + self.r.choice([" ", ""]) + "::=" + self.r.choice([" ", "\n  ", " # c\n"]) + self.alternatives(2, False) + self.r.choice(["", " # e"])
                 for n in self.names]
        self.r.shuffle(rules)
        return self.r.choice(["", "# head\n", "\n\n"]) + self.r.choice(["\n", "\n\n", "\r\n", "\n# c\n"]).join(rules) + self.r.choice(["", "\n"])

    def text(self):
        return "".join(self.r.choice(self.chars if self.r.random() < 0.95 else ALL) for _ in range(self.r.choice([0, 1, 1, 2, 2, 3, 3, 4, 5, 6])))


def main():
    n, seed = int(sys.argv[1]) if len(sys.argv) > 1 else 120, int(sys.argv[2]) if len(sys.argv) > 2 else 1
    cases = [{"grammar": text, "accept": ["", "a", "(a)", "aa(aa)"], "refuse": ["(", "a)"]}
             for text in ('root ::= x+\nx ::= "a"* | "(" x+ ")"', 'root ::= x{1,}\nx ::= "a"* | "(" x ")"')]
    for case in cases:  # A repetition of a rule that may be empty and calls itself.
        assert verdicts(case["grammar"], case["accept"] + case["refuse"]) == [True] * 4 + [False] * 2
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 2)  # llama.cpp prints why it refuses a grammar.
    for i in range(10**6):
        maker = Maker(random.Random(f"{seed} {i}"))
        text, tries = maker.grammar(), sorted({maker.text() for _ in range(40)})
        got = verdicts(text, tries) if len(text) < 400 else None
        if got is not None and any(got) and not all(got):
            cases.append({"grammar": text, "accept": [t for t, is_one in zip(tries, got) if is_one][:6],
                          "refuse": [t for t, is_one in zip(tries, got) if not is_one][:6]})
        if len(cases) == n:
            break
    with open(os.path.join(os.path.dirname(__file__), "..", "tests", "golden", "serve", "gbnf.json"), "w") as f:
        f.write("[\n" + ",\n".join(json.dumps(case, ensure_ascii=False) for case in cases) + "\n]\n")


main()
