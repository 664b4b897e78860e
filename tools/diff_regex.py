#!/usr/bin/env python3
"""Compare the patterns of a tokenizer.json with Oniguruma's, as the package `tokenizers` calls it.

    tools/diff_regex.py [--patterns 1000] [--seed 1] [--lateen build/lateen]
    tools/diff_regex.py --golden tests/golden/tokenizer/regex.jsonl --patterns 400

Each random pattern, and each of CASES, is a Replace normaliser that puts <> for its matches. Patterns that the package refuses are
skipped, and those that Lateen refuses are counted by the reason. --golden writes lines {"pattern", "texts", "want"} for
tests/unit/data/test_regex.c.
"""
import argparse
import collections
import json
import os
import random
import re
import subprocess
import sys
import tempfile

from tokenizers import Regex, normalizers

CASES = ["\\w+|[^\\w\\s]+", "\\w", "[\\w]", "\\W", "[\\W_]", "[^\\W_]", "[^\\W\\d_]+", "\\h", "[\\h]", "[^\\h]", "\\H", "[\\H]", "\\d", "[\\D]", "[^\\D]", "\\p{L}", "\\P{L}", "[\\P{L}a]", "[^\\P{L}a]", "\\p{^L}", "\\P{^L}", "\\p{Letter}", "\\p{ l u }",
         "\\p{Alphabetic}", "\\p{Cn}", "[\\p{Cn}x]", "\\p{C}", "\\p{Han}", "\\p{Hiragana}", "\\p{Katakana}", "\\p{Latin}", "\\p{Arabic}", "\\p{Greek}", "\\p{Old_Italic}", "\\p{Mc}", "\\p{Nd}", "\\p{No}", "\\p{So}", "\\p{Punct}", "[[:punct:]]",
         "[[:^alpha:]]", "[^[:alpha:]1]", "[[:alpha:]1]", "[[:upper:]]", "[[:lower:]]", "[[:word:]]", "[[:alnum:]]", "[[:blank:]]", "[[:cntrl:]]", "[[:graph:]]", "[[:print:]]", "[[:xdigit:]]", "[[:ascii:]]", "[[:space:]]", "a{,2}", "a{2}?",
         "a{1,2}+", "a{2}+a", "a{2,}?", "a{1,2}?", "a{,}", "a{x}", "a++a", "a?+", "a*+a", "(?:ab){2}?", "(ab|a){2}+", "[ab]{2}?", "\\w{2}?", "a(?i)b|c", "(?:a(?i)b|c)d", "x(?i:b)c", "(?m)a.b", "(?m:a.)b", "(?-m)a.b", "(?im)a.b", "(?x) a b # c",
         "\\u0061", "\\x{61}", "\\x61", "\\e", "\\v", "[\\v]", "\\O", "\\N", "a\\Kb", "b\\Z", "b\\z", "\\Aa", "\\Ga", "^a", "^", "$", "a$", "(?<n>a)\\k<n>", "(a)\\1", "[]a]", "[^]a]", "[a-]", "[-a]", "[+--]", "a(?#c)b", "\\bа", "\\b½", "a\\b", "\\B",
         "(?i)ss", "(?i)ss+", "(?i)ffi", "(?i)fi", "(?i)st", "(?i)s", "(?i)k", "(?i)[A-Z]", "(?i)\\p{Lu}", "(?i)[^\\s\\p{L}]", "(?i:'s|'t)", "(?<=a|b)c", "(?<!\\w)a", "[\\R]", "\\R", "[\\b]", "\\q", "]", "}", "a{", "\\0", "[a&b]", "[\\s\\S]", "[^\\S\\n]",
         "\\p{N}{1,3}", "[^\\s\\p{L}\\p{N}]+", "\\p{N}{1,3}+", "[一-龥]+", "(?i)é", "\\p{Emoji}", "\\p{Extended_Pictographic}", "a{2}{3}", "[a[bc]]", "[a-z&&[^b]]", "\\y", "(?i)[ß]", "(?i)ß", "\\101", "(?<n>a)\\g<n>", "(?~ab)", "(*FAIL)", "(?s).", "[[:foo:]]"]
LETTERS = list("aaabbcfisstABKS012 _-.,'\n\t") + ["\u00e9", "\u00df", "\u1e9e", "\u017f", "\u212a", "\u00bd", "\u00b2", "\u2460", "\u2167", "\u0301", "\u0345", "\u0663", "\u4e2d", "\u3005", "\u300c", "\u3042", "\u30fc", "\u0430", "\u03a3", "\u03c2", "\u05d0", "\u060c",
                                                  "\ufb01", "\ufb06", "\u00a0", "\u200b", "\u200d", "\u203f", "\u24d0", "\U0001f600", "\U0001d400", "\U00031350", "\U00010d70", "\U00011f50", "\u0897", "\u0378", "\u0085", "\x01", "\x0b", "\u00ad", "\ue000", "\u20ac", "{2}", "<>"]


def item(d):
    return d.choice(["a", "b", "s", "-", ".", "_", "é", "0-9", "a-c", "А-я", "\\w", "\\W", "\\d", "\\D", "\\s", "\\S", "\\h", "\\H", "\\p{L}", "\\P{L}", "\\p{N}", "\\p{P}", "\\p{^S}", "\\p{Han}", "\\p{Lu}", "\\p{M}", "[:alpha:]", "[:^punct:]", "[:word:]", "[:upper:]", "\\n", "\\t",
                     "\\v", "\\-", "\\]", "^", "一-龥", "\\u00e9", "\\x{300}-\\x{36f}"])


def pattern(d, depth):
    k = d.randrange(13 if depth > 0 else 5)
    if k == 0:
        return d.choice(["a", "b", "ab", "st", "ss", "fi", "é", " ", "\\.", "\\-", "'s", "0", "½", "A", "S", "中"])
    if k == 1:
        return d.choice(["\\w", "\\W", "\\d", "\\D", "\\s", "\\S", "\\h", "\\H", ".", "\\N", "\\R", "\\p{L}", "\\P{L}", "\\p{N}", "\\p{M}", "\\p{Lu}", "\\p{Han}", "\\p{Alnum}", "\\p{^P}"])
    if k in (2, 3):
        return "[" + d.choice(["", "", "^"]) + "".join(item(d) for _ in range(d.randint(1, 3))) + "]"
    if k == 4:
        return d.choice(["^", "$", "\\b", "\\B", "(?=a)", "(?!\\w)", "(?<=\\s)", "(?<!a)", "(?i)", "(?m)", "(?x)", "(?<=\\p{L})", "\\A", "\\z"])
    if k in (5, 6, 7):
        return pattern(d, depth - 1) + pattern(d, depth - 1)
    if k == 8:
        return pattern(d, depth - 1) + "|" + pattern(d, depth - 1)
    if k == 9:
        return d.choice(["(", "(?:", "(?i:", "(?m:", "(?>"]) + pattern(d, depth - 1) + ")"
    atom = d.choice([pattern(d, 0), "(?:" + pattern(d, depth - 1) + ")"])
    return atom + d.choice(["*", "+", "?", "{2}", "{1,2}", "{,2}", "{2,}", "{2}?", "{2}+", "{1,2}+", "{1,2}?", "*?", "+?", "??", "*+", "++", "?+"])


def run(lateen, path, texts):
    got = subprocess.run([lateen, "tokenize", "--tokenizer", path, "--jsonl"], input="".join(json.dumps({"text": s}) + "\n" for s in texts).encode(), capture_output=True)
    if got.returncode != 0:
        return got.stderr.decode(errors="replace").strip()[-300:]
    return [bytes(json.loads(line)["ids"]).decode() for line in got.stdout.decode().split("\n") if line]


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--patterns", type=int, default=1000)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--lateen", default="build/lateen")
    p.add_argument("--golden")
    p.add_argument("--show", type=int, default=25)
    o = p.parse_args()
    d = random.Random(o.seed)
    patterns = CASES + [pattern(d, 4) for _ in range(o.patterns)]
    model = {"type": "BPE", "unk_token": None, "byte_fallback": True, "vocab": {f"<0x{b:02X}>": b for b in range(256)}, "merges": []}
    path = os.path.join(tempfile.mkdtemp(), "regex.json")
    golden = open(o.golden, "w", encoding="utf-8") if o.golden else None
    refused, tried, bad, n_texts = collections.Counter(), 0, 0, 0
    for i, source in enumerate(patterns):
        try:
            replace = normalizers.Replace(Regex(source), "<>")
        except Exception:
            continue
        texts = ["".join(d.choice(LETTERS) for _ in range(d.randint(0, 12))) for _ in range(6 if golden else 60)] + ["a\nb\n", "aaaaa", "aB aC Cd aBd", "abab", "office Straße STRASSE"]
        texts += LETTERS if not golden else [" ".join(LETTERS), "a".join(LETTERS)] if i < len(CASES) else []
        want = [replace.normalize_str(s) for s in texts]
        json.dump({"version": "1.0", "added_tokens": [], "normalizer": {"type": "Replace", "pattern": {"Regex": source}, "content": "<>"}, "pre_tokenizer": None, "post_processor": None, "decoder": None, "model": model}, open(path, "w"))
        got = run(o.lateen, path, texts)
        if isinstance(got, str):
            refused[re.sub(r"^.*?pattern '.*' ?(with|:) ?", "", got, flags=re.S)[:80]] += 1
            if golden:
                golden.write(json.dumps({"pattern": source, "texts": texts, "want": None}, ensure_ascii=False) + "\n")
            continue
        if golden:
            golden.write(json.dumps({"pattern": source, "texts": texts, "want": want}, ensure_ascii=False) + "\n")
        tried, n_texts = tried + 1, n_texts + len(texts)
        wrong = [(s, a, b) for s, a, b in zip(texts, want, got) if a != b]
        if wrong:
            bad += 1
            if bad <= o.show:
                s, a, b = min(wrong, key=lambda w: len(w[0]))
                print(f"{source!r}: {len(wrong)} texts\n    text   {ascii(s)}\n    theirs {ascii(a)}\n    ours   {ascii(b)}", flush=True)
    for reason, n in refused.most_common():
        print(f"{n:5d} refused: {reason}")
    print(f"{tried} patterns on {n_texts} texts, {bad} differ; {sum(refused.values())} refused")
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
