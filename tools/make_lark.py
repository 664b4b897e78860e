#!/usr/bin/env python3
"""Write tests/golden/lark/cases.json: texts that Lark itself accepts or refuses by the grammars below, for tests/unit/serve/test_grammar_lark.c.

    python3 tools/make_lark.py            needs lark (PyPI; made with 1.3.1)
Lark parses with Earley's algorithm and its dynamic_complete lexer, which tries every way to cut a text into terminals, as a grammar over
characters does. The texts are the seeds below and random changes of them."""
import json
import os
import random

import lark

CALC = r'''
?start: sum
      | NAME "=" sum    -> assign_var
?sum: product
    | sum "+" product   -> add
    | sum "-" product   -> sub
?product: atom
    | product "*" atom  -> mul
    | product "/" atom  -> div
?atom: NUMBER           -> number
     | "-" atom         -> neg
     | NAME             -> var
     | "(" sum ")"
%import common.CNAME -> NAME
%import common.NUMBER
%import common.WS_INLINE
%ignore WS_INLINE
'''
JSON = r'''
?start: value
?value: object | array | string | SIGNED_NUMBER -> number | "true" -> true | "false" -> false | "null" -> null
array  : "[" [value ("," value)*] "]"
object : "{" [pair ("," pair)*] "}"
pair   : string ":" value
string : ESCAPED_STRING
%import common.ESCAPED_STRING
%import common.SIGNED_NUMBER
%import common.WS
%ignore WS
'''
SQL = r'''
start: select_statement
select_statement: "SELECT"i column_list "FROM"i table [where] ";"?   // a comment
column_list: column ("," column)* | "*"
column: NAME
table: NAME
where: "WHERE"i NAME OP (INT | NAME)
OP: "=" | "<" | ">" | "<="
NAME: /[a-z_][a-z0-9_]*/
%import common (INT, WS)
%ignore WS
%ignore /--[^\n]*/
'''
REPEATS = r'''
start: A~3 B~1..2 c? (D | "x")+ [ E ]
A.2: "a".."c"
B: "b\n" | "\u00e9"
!c: "+" | "\x2d"
D: /[0-9]{2}/
E: "e"i~2..3 F*
F: ("f" | "\\")
'''
LISTS = r'''
start: list
list: item
    | list "," item
    | list ";" item
item: WORD | "<" list ">" |
%import common.WORD
'''
NOTHING = r'''
start: "a" rest
rest: | "b" rest
'''
CASES = [
    (CALC, ["x = 1 + 2 * (3 - y)", "1", "a=b", "-(2)", " 1+1", "4 / -2"]),
    (JSON, ['{"a": [1, -2.5e3, true], "b\\"": null}', "[]", '"x"', "[ ]", '{"k" : {}}', "12"]),
    (SQL, ["SELECT a, b FROM t WHERE a <= 12;", "select * from t", "SELECT x FROM y -- z\n", "SELECT a FROM b WHERE c = d"]),
    (REPEATS, ["abcb\n12", "aaa\u00e9b\n+xx34EeEff\\", "cab\u00e9-x", "bbbb\n00ee"]),
    (LISTS, ["a,b;c", "<a,b>,c", "", ",", "<<x>;y>"]),
    (NOTHING, ["a", "abbb", "b"]),
]


def changed(rng, text, letters):
    for _ in range(rng.randrange(1, 3)):
        at, how = rng.randrange(len(text) + 1), rng.randrange(4)
        if how == 0:
            text = text[:at] + text[at + 1:]
        elif how == 1:
            text = text[:at] + rng.choice(letters) + text[at:]
        elif how == 2:
            text = text[:at] + rng.choice(letters) + text[at + 1:]
        else:
            to = rng.randrange(len(text) + 1)
            text = text[:at] + text[to:to + 4] + text[at:]
    return text


def main():
    rng, out = random.Random(20261123), []
    for grammar, seeds in CASES:
        parser = lark.Lark(grammar, parser="earley", lexer="dynamic_complete")
        letters, verdicts = sorted(set("".join(seeds)) | set("a1 ")), {}
        while len(verdicts) < 120:
            text = rng.choice(seeds)
            text = text if text not in verdicts else changed(rng, text, letters)
            if text in verdicts and rng.random() < 0.5:
                continue
            try:
                parser.parse(text)
                verdicts[text] = True
            except lark.exceptions.LarkError:
                verdicts[text] = False
        out.append({"grammar": grammar, "accept": [t for t, v in verdicts.items() if v], "refuse": [t for t, v in verdicts.items() if not v]})
        print(len(out[-1]["accept"]), len(out[-1]["refuse"]))
    folder = os.path.join(os.path.dirname(__file__), "..", "tests", "golden", "lark")
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "cases.json"), "w") as f:
        json.dump(out, f, indent=0)
        f.write("\n")


main()
