#!/usr/bin/env python3
"""Compare with tiktoken on random rank files over a few characters of 1 to 4 bytes: some as from training (a piece ranks after its halves), some shuffled.

    tools/fuzz_ranks.py [VOCABULARIES] [SEED]"""
import base64
import json
import os
import random
import subprocess
import sys
import tempfile

import tiktoken

PATTERN = r"\S+|\s+"
CHARS = ["a", "b", " ", "é", "ê", "о", "п", "क", "ख", "ा", "ก", "漢", "字", "\u0301", "😀", "😁"]


def vocabulary(r):
    ranks = {bytes([i]): i for i in range(256)}
    texts = ["".join(r.choice(CHARS) for _ in range(r.randrange(1, 12))).encode() for _ in range(60)]
    parts = [[bytes([x]) for x in t] for t in texts]
    for _ in range(r.randrange(5, 150)):
        k = r.choice(parts)
        if len(k) < 2:
            continue
        i = r.randrange(len(k) - 1)
        new = k[i] + k[i + 1]
        ranks.setdefault(new, len(ranks))
        for p in parts:  # As in training, so that the ranks are monotone.
            j = 0
            while j + 1 < len(p):
                if p[j] + p[j + 1] == new and r.random() < 0.97:
                    p[j:j + 2] = [new]
                j += 1
    if r.random() < 0.4:
        ids = list(ranks.values())
        some = r.sample(range(len(ids)), r.randrange(2, len(ids)))
        moved = [ids[i] for i in some]
        r.shuffle(moved)
        for i, x in zip(some, moved):
            ids[i] = x
        ranks = dict(zip(ranks, ids))
    return ranks, texts


def main():
    n, seed = int(sys.argv[1]) if len(sys.argv) > 1 else 100, int(sys.argv[2]) if len(sys.argv) > 2 else 0
    path, bad, words = os.path.join(tempfile.mkdtemp(), "x.tiktoken"), 0, 0
    for k in range(n):
        r = random.Random(seed * 100003 + k)
        ranks, texts = vocabulary(r)
        texts = [t.decode() for t in texts] + ["".join(r.choice(CHARS) for _ in range(r.randrange(1, 90))) for _ in range(150)]
        open(path, "wb").write(b"".join(base64.b64encode(p) + b" %d\n" % i for p, i in ranks.items()))
        e = tiktoken.Encoding("x", pat_str=PATTERN, mergeable_ranks=ranks, special_tokens={})
        p = subprocess.run(["build/lateen", "tokenize", "--tokenizer", path, "--pattern", PATTERN, "--jsonl", "--no-special"],
                           input="".join(json.dumps({"text": t}) + "\n" for t in texts).encode(), capture_output=True, check=True)
        for t, line in zip(texts, p.stdout.decode().splitlines()):
            words += 1
            if json.loads(line)["ids"] != e.encode_ordinary(t):
                bad += 1
                if bad < 5:
                    print(f"vocabulary {k}: {t!r}: {json.loads(line)['ids']}, tiktoken {e.encode_ordinary(t)}")
    print(f"{n} vocabularies, {words} texts, {bad} differ")
    return bad != 0


if __name__ == "__main__":
    sys.exit(main())
