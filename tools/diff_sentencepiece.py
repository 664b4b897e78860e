#!/usr/bin/env python3
"""Compare Lateen with Google's package on SentencePiece models of every type, trained with random settings on a small text.

    tools/diff_sentencepiece.py TEXT [--models 200] [--seed 1] [--lateen build/lateen] [--keep FOLDER]
    tools/diff_sentencepiece.py TEXT --golden tests/golden/tokenizer/sentencepiece.jsonl --models 24

Each model draws its type (unigram, BPE, word, char), size, normaliser, byte fallback, user-defined and control symbols, white space rules, the surface of
<unk> and the ids of special pieces. About 80 texts with characters that are relevant to these settings are encoded, and rows of ids, some of them random, are decoded.
--golden writes lines {"model" (base64), "texts", "ids", "rows", "decoded"} for tests/unit/data/test_tokenizer_random.c.
"""
import argparse
import base64
import io
import json
import os
import random
import subprocess
import sys
import tempfile

import sentencepiece as spm

CHARS = list("aabcdeehilnorstuwABST   .,!?'-_<>01") + ["\t", "\n", "\u00a0", "\u3000", "\u2581", "\u2581", "\u00e9", "e\u0301", "\u4e2d", "\u56fd", "\u30ab", "\ufb01", "\u00bd", "\uff21", "\u2167", "\U0001f600", "\u0130", "\x01", "\u200b", "\ufeff", "\ufffd", "\u0344", "\ufdfa", "\r"]
WORDS = ["the", "and", " the", "<s>", "</s>", "<unk>", "<pad>", "<0x41>", "<ud>", "ab", "x y", "\u2581ud", "  ", "   ", "<mask>", "that", "@", "qqq"]


class Dice(random.Random):
    def one(self, *items):
        return items[self.randrange(len(items))]

    def flag(self, p=0.5):
        return self.random() < p

    def text(self, lines):
        if self.flag(0.25):
            return self.choice(lines)
        return "".join(self.choice(CHARS) if self.flag(0.6) else self.choice(WORDS) for _ in range(self.one(0, 1, 2, 4, 8, 25)))


RULES = "FB01\t66 69\nFF21\t41\n3000\t20\nA0\t20\nE9\t65\nBD\t31 20 32\nFEFF\t\n41 42\t61 20\n"


def train(d, lines, rules):
    kind = d.one("unigram", "bpe", "word", "char")
    ids = d.one({}, {}, {"pad_id": 3}, {"unk_id": 3, "bos_id": 0, "eos_id": 1, "pad_id": 2}, {"bos_id": -1, "eos_id": -1}, {"unk_id": 2, "bos_id": 0, "eos_id": 1})
    o = dict(model_type=kind, byte_fallback=d.flag(0.4), normalization_rule_name=d.one("identity", "nmt_nfkc", "nfkc", "nmt_nfkc_cf", "nfkc_cf"), add_dummy_prefix=d.flag(0.7), remove_extra_whitespaces=d.flag(),
             treat_whitespace_as_suffix=d.flag(0.2), character_coverage=d.one(0.98, 0.9995, 1.0), split_digits=d.flag(), split_by_whitespace=d.flag(0.8), allow_whitespace_only_pieces=d.flag(0.3), **ids)
    if rules:  # Small charsmaps: the built-in ones have 240 KB.
        del o["normalization_rule_name"]
        o.update({"normalization_rule_tsv": rules} if d.flag(0.6) else {"normalization_rule_name": "identity"})
    if d.flag():
        o["user_defined_symbols"] = d.sample(["<ud>", "ab", "x y", "\u2581ud", "  ", "e", "the", "<0x41", "\u4e2d\u56fd", "t", "<mask>"], d.randint(1, 5))
    if d.flag(0.4):
        o["control_symbols"] = d.sample(["<ctl>", "<2ja>", "[X]"], d.randint(1, 2))
    if d.flag(0.4):
        o["unk_surface"] = d.one("", " ?? ", "\u2581", "[unk]", "<unk>")
    if kind in ("word", "char") or d.flag(0.1):
        o.update(hard_vocab_limit=False, use_all_vocab=d.flag())
    out = io.BytesIO()
    part = d.sample(lines, min(len(lines), d.one(40, 150, 400)))
    for size in (d.one(330, 400, 600) if not rules else 350, 900, 420, 345, 300):
        try:
            spm.SentencePieceTrainer.train(sentence_iterator=iter(part), model_writer=out, vocab_size=size, minloglevel=9, num_threads=1, **o)
            return o, out.getvalue()
        except Exception:
            out = io.BytesIO()
    return o, None


def run(lateen, path, lines, flags):
    got = subprocess.run([lateen, "tokenize", "--tokenizer", path, "--jsonl", "--no-special"] + flags, input="".join(json.dumps(o) + "\n" for o in lines).encode(), capture_output=True)
    if got.returncode != 0:
        return got.stderr.decode()[-300:]
    return [json.loads(line) for line in got.stdout.decode().split("\n") if line]


def attempt(f):
    try:
        return f()
    except Exception:
        return None


def main():
    p = argparse.ArgumentParser()
    p.add_argument("text")
    p.add_argument("--models", type=int, default=200)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--lateen", default="build/lateen")
    p.add_argument("--keep")
    p.add_argument("--golden")
    p.add_argument("--show", type=int, default=8)
    o = p.parse_args()
    lines = [s.strip() for s in open(o.text, encoding="utf-8") if s.strip()]
    lines += ["\u4e2d\u56fd \ufb01ne \u00bd \uff21BC caf\u00e9 \u30ab\u30bf 2024"] * 5
    path = os.path.join(o.keep or tempfile.mkdtemp(), "random.model")
    golden = open(o.golden, "w") if o.golden else None
    rules = os.path.join(tempfile.mkdtemp(), "rules.tsv")
    open(rules, "w").write(RULES)
    trained = bad = n_texts = n_rows = 0
    for i in range(o.models):
        d = Dice(o.seed * 1000003 + i)
        options, model = train(d, lines, rules if golden or d.flag(0.3) else None)
        if model is None:
            continue
        trained += 1
        sp = spm.SentencePieceProcessor(model_proto=model)
        texts = [d.text(lines) for _ in range(12 if golden else 80)]
        ids = [attempt(lambda: sp.encode(s)) for s in texts]
        texts, ids = [s for s, x in zip(texts, ids) if x is not None], [x for x in ids if x is not None]
        n = sp.get_piece_size()
        rows = [x for x in ids if x][:20] + [[d.randrange(n) for _ in range(d.one(1, 2, 4, 9))] for _ in range(60)] + [[d.randrange(min(n, 300)) for _ in range(d.one(2, 5))] for _ in range(20)]
        rows += [[d.one(0, 1, 2, 3, 4, sp.piece_to_id("\u2581")) for _ in range(6)] for _ in range(20)]
        rows = rows if not golden else rows[:2] + rows[-30:]
        decoded = [sp.decode(r) for r in rows]
        if golden:
            golden.write(json.dumps({"model": base64.b64encode(model).decode(), "texts": texts, "ids": ids, "rows": rows, "decoded": decoded}) + "\n")
            continue
        open(path, "wb").write(model)
        n_texts, n_rows, why = n_texts + len(texts), n_rows + len(rows), []
        for label, source, want, got in (("encode", texts, ids, run(o.lateen, path, [{"text": s} for s in texts], [])), ("decode", rows, decoded, run(o.lateen, path, [{"ids": r} for r in rows], ["--decode"]))):
            if isinstance(got, str):
                why.append(f"{label}: {got.strip()}")
                continue
            for s, a, b in zip(source, want, got):
                b = b["ids"] if label == "encode" else b["text"]
                if a != b:
                    names = f"\n    pieces {ascii([sp.id_to_piece(x) for x in a])[:300]}" if label == "encode" else f"\n    pieces {ascii([sp.id_to_piece(x) for x in s])[:300]}"
                    why.append(f"{label}: {ascii(s)[:200]}\n    theirs {ascii(a)[:300]}\n    ours   {ascii(b)[:300]}{names}")
                    break
        if why:
            bad += 1
            if bad <= o.show:
                print(f"model {i}: {json.dumps(options)}\n  " + "\n  ".join(why), flush=True)
            if o.keep:
                os.replace(path, os.path.join(o.keep, f"bad{i}.model"))
    print(f"{trained} models with {n_texts} texts and {n_rows} rows of ids to decode, {bad} differ")
    sys.exit(1 if bad else 0)


main()
