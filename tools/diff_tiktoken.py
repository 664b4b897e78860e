#!/usr/bin/env python3
"""Compare Lateen with tiktoken on random rank files (.tiktoken) with known and random patterns: ids, and the text decoded from them.

    tools/diff_tiktoken.py [--files 300] [--seed 1] [--lateen build/lateen]
"""
import argparse
import base64
import json
import os
import random
import subprocess
import sys
import tempfile

import tiktoken

CHARS = list("aabcdeehilnorstuwABST   .,!?'-_<>0123456789") + ["\t", "\n", "\r\n", "\u00a0", "\u3000", "\u0085", "\u00e9", "e\u0301", "\u4e2d", "\u56fd", "\u30ab", "\ufb01", "\u00bd", "\u2167", "\U0001f600", "\u0130", "\u017f", "\x00", "\u200d", "\u0915\u094d\u0937", "\u0639", "\ud55c", "\u2009", "\u01c5"]
WORDS = ["the", " The", "it's", "DON'T", "we'LL", "ab", "abab", "    ", "\n\n", "1234567", "://", "CamelCase", "\u4e2d\u56fd", "'s", "\u2019s", " \n", "..."]
CL100K = r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s+(?!\S)|\s"
O200K = "|".join([
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"\p{N}{1,3}", r" ?[^\s\p{L}\p{N}]+[\r\n/]*", r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+"])
R50K = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"
PATTERNS = [("cl100k", CL100K), ("o200k", O200K), ("gpt2", R50K), (CL100K, CL100K), (R50K, R50K), (O200K, O200K)] + [(p, p) for p in (
    r"\w+|\W", r"\s+|\S+", r"[a-z]+|[\s\S]", r"\p{L}+|\p{N}|[^\p{L}\p{N}]+", r"\S*\s|\S+", r"\b\w+\b|\W+|\w+", r"(?s).{1,5}", r"(?i:the)|\d+|\D", r"\w+|[^\w\s]+|\s",
    r"\p{N}{1,2}+|[^\W_]+|[\s\S]", r"a$|^b|(?m:^c|t$)|(?s:.)", r"(?i)st|ss|\pL{2}?|\P{L}|\pL", r"a(?i)b|c|[\s\S]", r"[\W\d]+|\B\w|\w", r"(?x) \h+ | \H # rest")]


def draw(d):
    ranks = {bytes([b]): r for r, b in enumerate(d.sample(range(256), 256))}
    parts = [t.encode() for t in WORDS + CHARS if len(t.encode()) > 1] + list(ranks)
    common = [bytes([b]) for b in b"abcdehilnorstuw 0129ABST'\n"]
    pool = common * 3
    for _ in range(d.choice((0, 20, 150, 600))):
        new = d.choice(pool) + d.choice(pool) if d.random() < 0.8 else d.choice(parts) + d.choice(parts)
        if new not in ranks and len(new) < 20:
            ranks[new] = len(ranks)
            pool.append(new)
    return ranks


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--files", type=int, default=300)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--lateen", default="build/lateen")
    o = p.parse_args()
    path, bad, pairs = os.path.join(tempfile.mkdtemp(), "random.tiktoken"), 0, 0
    for i in range(o.files):
        d = random.Random(o.seed * 1000003 + i)
        ranks, (name, pattern) = draw(d), d.choice(PATTERNS)
        enc = tiktoken.Encoding("random", pat_str=pattern, mergeable_ranks=ranks, special_tokens={})
        open(path, "wb").write(b"".join(base64.b64encode(k) + b" %d\n" % v for k, v in ranks.items()))
        texts = ["".join(d.choice(CHARS) if d.random() < 0.6 else d.choice(WORDS) for _ in range(d.choice((0, 1, 3, 10, 40)))) for _ in range(100)] + ["ab" * 300]
        rows = [[d.randrange(len(ranks)) for _ in range(d.randrange(12))] for _ in range(40)]
        pairs += len(texts)
        for label, source, want, flags in (("encode", [{"text": s} for s in texts], [{"ids": enc.encode_ordinary(s)} for s in texts], []), ("decode", [{"ids": r} for r in rows], [{"text": enc.decode(r)} for r in rows], ["--decode"])):
            run = subprocess.run([o.lateen, "tokenize", "--tokenizer", path, "--pattern", name, "--jsonl", "--no-special"] + flags, input="".join(json.dumps(x) + "\n" for x in source).encode(), capture_output=True)
            got = [json.loads(line) for line in run.stdout.decode().split("\n") if line]
            wrong = next((k for k in range(len(want)) if k >= len(got) or want[k] != got[k]), None)
            if wrong is not None:
                bad += 1
                print(f"file {i}, {name[:60]}: {label} {ascii(source[wrong])[:300]}\n    theirs {ascii(want[wrong])[:300]}\n    ours   {ascii(got[wrong] if wrong < len(got) else run.stderr.decode())[:300]}")
                break
    print(f"{o.files} files with {pairs} texts, {bad} differ")
    sys.exit(1 if bad else 0)


main()
