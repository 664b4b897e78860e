#!/usr/bin/env python3
"""Compare Lateen with Hugging Face's package on small random tokenizer.json files, with random combinations of all parts.

    tools/diff_tokenizer_json.py [--configs 1000] [--seed 1] [--lateen build/lateen] [--keep FOLDER] [--only PART]
    tools/diff_tokenizer_json.py --golden tests/golden/tokenizer/random.jsonl --configs 130 --seed 3
    tools/diff_tokenizer_json.py --golden tests/golden/tokenizer/cases.jsonl --cases

Each configuration draws a model (BPE, Unigram, WordPiece, WordLevel), a normalizer, a pre-tokenizer, a post-processor, a decoder,
added tokens, truncation and padding, and encodes about 60 strings of characters that are relevant to its parts: with special tokens and
without (--no-special is encode_special_tokens and add_special_tokens=False), and decodes them. A configuration that the
package refuses, or on which it panics, is skipped. Where the package fails on a text, Lateen must fail too. --golden writes lines
{"json", "texts", "ids", "plain", "decoded", "decoded_plain"} instead, for tests/unit/data/test_tokenizer_random.c.
"""
import argparse
import base64
import json
import os
import random
import resource
import struct
import subprocess
import sys
import tempfile

import tokenizers

CHARS = list("aabbcdeilnostuvABS  .,!?'-_|#</w>0129\t\n\r") + [
    "\u00a0", "\u3000", "\u0085", "\u200b", "\u200d", "\u0301", "\u0300", "\u00e9", "\u00c9", "\u00df", "\u0130", "\u4e2d", "\u56fd", "\u3042", "\u30ab", "\u30fc",
    "\ud55c", "\u1112", "\u1161", "\u11ab", "\u0e01", "\u0e33", "\u0915", "\u094d", "\u05d0", "\u0639", "\u0430", "\u03a9", "\U0001f600", "\U0001f469\u200d\U0001f467", "\U0001f1e8\U0001f1ed",
    "\u00bd", "\u00b2", "\ufb03", "\ufb05", "\u338f", "\ufdfa", "\u01c4", "\u1e9b\u0323", "\u0344", "\u2167", "\u0663", "\x00", "\x01", "\x7f", "\ufb01", "\u212b", "\ufffd", "\u2581", "\u0120", "\u010a", "\uff21", "\ufeff", "\U0001d400", "\u2009"]
WORDS = ["ab", "abc", "the", "The", "it's", "don't", "n't", "un", "##b", "<s>", "</s>", "[X]", "<x>", "a b", "12", "2024", "  ", "\r\n", " a", "\u2581a", "do not", " .", "\u4e2d\u56fd", "e\u0301", "</w>", "<unk>", "<pad>", "|", "<0x41>", "stuv"]


class Dice(random.Random):
    def one(self, *items):
        return items[self.randrange(len(items))]

    def text(self, low, high):
        return "".join(self.choice(CHARS) if self.random() < 0.6 else self.choice(WORDS) for _ in range(self.randint(low, high)))

    def flag(self, p=0.5):
        return self.random() < p


def byte_chars():
    printable = list(range(0x21, 0x7F)) + list(range(0xA1, 0xAD)) + list(range(0xAE, 0x100))
    rest = [b for b in range(256) if b not in printable]
    return [chr(b) for b in printable] + [chr(256 + i) for i in range(len(rest))]


def regex(d):
    return d.one("\\s+", "\\w+", "[0-9]{2}", "\\p{L}+", "\\p{N}", "a|b", "(?i:s)", " ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+", "\\s+(?!\\S)|\\s+", "[^a-z]", "\\d{1,3}(?=(\\d{3})*$)",
                 "[\\p{P}\\p{S}]", "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+", " ", "\\.", "^a", "b$", "[\\r\\n]", "\\n", "[ab]*c", "\\p{Lu}", "\\S", "\\W", "\\p{Han}", "(?<=a)b", "x",
                 "(?=[A-Z])", "(?<=[a-z])(?=[A-Z0-9])", "\\b", "a*", "x*", "^", "$", "(?<=\\s)", "[ab]?")


def pattern(d):
    return {"Regex": regex(d)} if d.flag(0.65) else {"String": d.one(" ", "a", "ab", "  ", "'", "\u4e2d", "\n", "\u2581", ".", "|", "i", "")}


BEHAVIOURS = ("Isolated", "Removed", "MergedWithPrevious", "MergedWithNext", "Contiguous")


def normalizer(d):
    kind = d.one("NFC", "NFD", "NFKC", "NFKD", "Lowercase", "Nmt", "StripAccents", "Strip", "Prepend", "Replace", "Replace", "BertNormalizer", "ByteLevel", "Precompiled", "Sequence")
    o = {"type": kind}
    if kind == "Strip":
        o.update(strip_left=d.flag(), strip_right=d.flag())
    elif kind == "Prepend":
        o["prepend"] = d.one("\u2581", " ", "ab", "")
    elif kind == "Replace":
        o.update(pattern=pattern(d), content=d.one("", " ", "\u2581", "ab", "$0"))
    elif kind == "BertNormalizer":
        o.update(clean_text=d.flag(), handle_chinese_chars=d.flag(), strip_accents=d.one(None, True, False), lowercase=d.flag())
    elif kind == "Precompiled":
        o["precompiled_charsmap"] = CHARSMAP
    elif kind == "Sequence":
        o["normalizers"] = [normalizer(d) for _ in range(d.randint(0, 3))]
    return o


def pre_tokenizer(d):
    kind = d.one("ByteLevel", "ByteLevel", "Split", "Split", "Metaspace", "Metaspace", "Digits", "Punctuation", "Whitespace", "WhitespaceSplit", "BertPreTokenizer", "CharDelimiterSplit", "UnicodeScripts", "FixedLength", "Sequence", "Sequence")
    o = {"type": kind}
    if kind == "ByteLevel":
        o.update(add_prefix_space=d.flag(), trim_offsets=d.flag(), use_regex=d.flag())
    elif kind == "Split":
        o.update(pattern=pattern(d), behavior=d.one(*BEHAVIOURS), invert=d.flag(0.3))
    elif kind == "Metaspace":
        o.update(replacement=d.one("\u2581", "\u2581", "_"), prepend_scheme=d.one("always", "first", "never"), split=d.flag())
    elif kind == "Digits":
        o["individual_digits"] = d.flag()
    elif kind == "Punctuation":
        o["behavior"] = d.one(*BEHAVIOURS)
    elif kind == "CharDelimiterSplit":
        o["delimiter"] = d.one(" ", "a", "-", "\u4e2d")
    elif kind == "FixedLength":
        o["length"] = d.randint(1, 7)
    elif kind == "Sequence":
        o["pretokenizers"] = [pre_tokenizer(d) for _ in range(d.randint(0, 3))]
    return o


def pieces(d, n, alphabet):
    out = list(dict.fromkeys(d.sample(alphabet, min(len(alphabet), d.randint(len(alphabet) // 2, len(alphabet))))))
    seen = set(out)
    for _ in range(n):
        p = d.choice(WORDS) if d.flag(0.3) else "".join(d.choice(alphabet) for _ in range(d.randint(2, 4)))
        if p not in seen:
            seen.add(p)
            out.append(p)
    return out


def with_unk(d, vocab):
    unk = d.one("<unk>", "[UNK]")
    if d.flag(0.9) and unk not in vocab:
        vocab.insert(d.randrange(len(vocab) + 1), unk)
    return unk


def byte_pieces(d, vocab):
    if d.flag():
        vocab += [f"<0x{b:02X}>" for b in range(256) if d.flag(0.97) or d.flag()]


def bpe(d, alphabet):
    prefix, suffix = d.one(None, None, None, "", "##"), d.one(None, None, None, "", "</w>")
    base = list(dict.fromkeys(d.sample(alphabet, d.randint(len(alphabet) * 3 // 4, len(alphabet)))))
    vocab = base[:]
    if prefix:
        vocab += [prefix + c for c in base]
    if suffix:
        vocab += [c + suffix for c in base] + ([prefix + c + suffix for c in base] if prefix else [])
    seen, merges = set(vocab), []
    letters = [c for c in vocab if any(x in c for x in "abcdehtnostuv")] * 4 + vocab
    pool = letters[:]
    for _ in range(d.randint(0, 150)):
        a, b = d.choice(pool), d.choice(pool)
        if suffix and a.endswith(suffix):
            continue
        if prefix and not b.startswith(prefix):
            continue
        c = a + (b[len(prefix):] if prefix else b)
        if [a, b] in merges or len(c) > 12:
            continue
        if c not in seen:
            seen.add(c)
            vocab.append(c)
            pool += [c] * 4
        merges.append([a, b])
    model = {"type": "BPE", "dropout": d.one(None, None, 0.0), "continuing_subword_prefix": prefix, "end_of_word_suffix": suffix, "fuse_unk": d.flag(), "byte_fallback": d.flag(0.4), "ignore_merges": d.flag(0.3)}
    model["unk_token"] = with_unk(d, vocab) if d.flag(0.7) else None
    if model["byte_fallback"]:
        byte_pieces(d, vocab)
    d.shuffle(vocab) if d.flag(0.2) else None
    model["vocab"] = {p: i for i, p in enumerate(vocab)}
    model["merges"] = merges if d.flag() or any(" " in x for m in merges for x in m) else [" ".join(m) for m in merges]
    if d.flag(0.3):  # The fields in any order.
        keys = list(model)
        d.shuffle(keys)
        model = {k: model[k] for k in keys}
    return model, len(vocab)


def model(d):
    kind = d.one("BPE", "BPE", "BPE", "Unigram", "WordPiece", "WordLevel")
    alphabet = byte_chars() if d.flag(0.4) else [c for c in dict.fromkeys("".join(CHARS) + "\u2581\u0120")]
    if kind == "BPE":
        return bpe(d, alphabet)
    vocab = pieces(d, d.randint(10, 200), alphabet)
    if kind == "Unigram":
        byte_pieces(d, vocab)
        vocab = list(dict.fromkeys(vocab))
        unk = d.randrange(len(vocab)) if d.flag(0.9) else None
        rows = [[p, d.one(round(d.uniform(-12, -1), 3), -3.0, -6.0)] for p in vocab]
        return {"type": kind, "unk_id": unk, "vocab": rows, "byte_fallback": d.flag(0.4)}, len(vocab)
    unk = with_unk(d, vocab)
    m = {"type": kind, "unk_token": unk}
    if kind == "WordPiece":
        prefix = d.one("##", "##", "@", "")
        vocab += [prefix + p for p in vocab if d.flag(0.7) and prefix + p not in vocab]
        m.update(continuing_subword_prefix=prefix, max_input_chars_per_word=d.one(100, 100, 5, 2))
    else:
        vocab += [w for w in ["the", "The", "\u2581the", "it", "s", "don", "2024", "\u0120a", "\u2581a"] if w not in vocab]
    vocab = list(dict.fromkeys(vocab))
    m["vocab"] = {p: i for i, p in enumerate(vocab)}
    return m, len(vocab)


def added(d, m, n):
    out, names = [], ["<s>", "</s>", "[X]", "<x>", " the", "ab", "the", "\u4e2d", "<|im_end|>", "  ", "a", "<pad>", "S", "\n", "e\u0301", "\u00c9", "A B", "<s><s>", "f", "i", "fi", "1", "\ufb01", "\u0301", "x", "\u2581", "t"]
    have = m["vocab"] if isinstance(m["vocab"], dict) else {p: i for i, (p, _) in reversed(list(enumerate(m["vocab"])))}
    for name in d.sample(names, d.one(0, 1, 2, 3, 4, 5, 6, 9)):
        special = d.flag(0.6)
        i = have.get(name)
        if i is None:
            i, n = n, n + 1
        i += d.one(1, 7) if d.flag(0.02) else 0  # The package continues to count from there.
        out.append({"id": i, "content": name, "single_word": d.flag(0.2), "lstrip": d.flag(0.25), "rstrip": d.flag(0.25), "normalized": d.flag(0.3 if special else 0.7), "special": special})
    return sorted(out, key=lambda t: t["id"]), n


def post_processor(d, n):
    kind = d.one("TemplateProcessing", "RobertaProcessing", "BertProcessing", "ByteLevel", "Sequence")
    pick = lambda: d.randrange(n)
    if kind == "TemplateProcessing":
        special = {name: {"id": name, "ids": [pick() for _ in range(d.one(1, 1, 2))], "tokens": []} for name in ("<s>", "</s>")}
        for s in special.values():
            s["tokens"] = ["t"] * len(s["ids"])
        item = lambda name: {"SpecialToken": {"id": name, "type_id": 0}}
        text = {"Sequence": {"id": "A", "type_id": 0}}
        single = [item("<s>")] * d.randint(0, 2) + [text] + [item("</s>")] * d.randint(0, 2)
        return {"type": kind, "single": single, "pair": [text, {"Sequence": {"id": "B", "type_id": 1}}], "special_tokens": special}
    if kind in ("RobertaProcessing", "BertProcessing"):
        o = {"type": kind, "sep": ["</s>", pick()], "cls": ["<s>", pick()]}
        if kind == "RobertaProcessing":
            o.update(trim_offsets=d.flag(), add_prefix_space=d.flag())
        return o
    if kind == "ByteLevel":
        return {"type": kind, "add_prefix_space": True, "trim_offsets": False, "use_regex": True}
    first = [q for q in (post_processor(d, n) for _ in range(d.randint(0, 2))) if q["type"] not in ("TemplateProcessing", "Sequence")]
    last = post_processor(d, n)
    return {"type": kind, "processors": first + ([last] if last["type"] != "Sequence" else [])}


def decoder(d, depth=0):
    kind = d.one("ByteLevel", "WordPiece", "Metaspace", "BPEDecoder", "CTC", "Llama", "Replace", "ByteFallback", "Fuse", "Strip", "Sequence", "Sequence", "Sequence", "Sequence")
    if kind == "Llama":
        return {"type": "Sequence", "decoders": [{"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]}
    if kind == "Sequence":
        return {"type": kind, "decoders": [decoder(d, depth + 1) for _ in range(d.randint(0, 5))]} if depth < 2 else {"type": "Fuse"}
    o = {"type": kind}
    if kind == "WordPiece":
        o.update(prefix=d.one("##", "@", "", " "), cleanup=d.flag())
    elif kind == "Metaspace":
        o.update(replacement=d.one("\u2581", "\u2581", "a", "\u00e9"), prepend_scheme=d.one("always", "first", "never"), split=d.flag())
    elif kind == "BPEDecoder":
        o["suffix"] = d.one("</w>", "</w>", "a", "", "\u2581")
    elif kind == "CTC":
        o.update(pad_token=d.one("<pad>", "a", "", "the"), word_delimiter_token=d.one("|", "b", ""), cleanup=d.flag())
    elif kind == "Replace":
        o.update(pattern=pattern(d), content=d.one(" ", "", "x", "<0x41>", "\u2581", "ab"))
    elif kind == "Strip":
        o.update(content=d.one(" ", "a", "\u2581", "\u00e9"), start=d.randint(0, 3), stop=d.one(0, 0, 0, 1, 2))
    elif kind == "ByteLevel":
        o.update(add_prefix_space=True, trim_offsets=True, use_regex=True)
    return o


def config(d, only):
    m, n = model(d)
    tokens, n = added(d, m, n)
    t = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": tokens, "normalizer": None, "pre_tokenizer": None, "post_processor": None, "decoder": None, "model": m}
    want = lambda part, p: d.flag(p) and (only is None or part in only)
    if want("normalizer", 0.6):
        t["normalizer"] = normalizer(d)
    if want("pre_tokenizer", 0.85):
        t["pre_tokenizer"] = pre_tokenizer(d)
    if want("post_processor", 0.5):
        t["post_processor"] = post_processor(d, n)
    if want("decoder", 0.85):
        t["decoder"] = decoder(d)
    if want("truncation", 0.15):
        t["truncation"] = {"direction": d.one("Left", "Right"), "max_length": d.one(0, 1, 3, 5, 10, 512), "strategy": d.one("LongestFirst", "OnlyFirst", "OnlySecond"), "stride": d.one(0, 0, 2)}
    if want("padding", 0.15):
        t["padding"] = {"strategy": d.one("BatchLongest", {"Fixed": d.one(0, 8, 30)}), "direction": d.one("Left", "Right"), "pad_to_multiple_of": d.one(None, 0, 8), "pad_id": d.randrange(n), "pad_type_id": 0, "pad_token": "<pad>"}
    return t


PANIC = "panic"  # A fault of the package, which is no reference; an error is.


def case(texts, rows, added=(), **parts):
    """One of the cases that were once wrong, reduced until the cause is visible."""
    vocab = {p: i for i, p in enumerate(["<unk>", "\u2581", "f", "i", "x", "a", "b", "C", "d", " ", "\u2581x", "\u2581i", "1", "2", "\u2044", "e", "\u0301", "<0x41>", "<0xE2>", "<0x82>", "<0xAC>", "<0x0a>", "\u2581a", "##b", "\u00e9", "</w>"])}
    t = {"version": "1.0", "truncation": None, "padding": None, "normalizer": None, "pre_tokenizer": None, "post_processor": None, "decoder": None, "model": {"type": "BPE", "unk_token": "<unk>", "vocab": vocab, "merges": [["\u2581", "x"], ["\u2581", "i"], ["\u2581", "a"]]}}
    t["added_tokens"] = [{"id": len(vocab) + k, "single_word": False, "lstrip": False, "rstrip": False, "normalized": True, "special": False} | a for k, a in enumerate(added)]
    return t | parts, texts, rows


def cases():
    first = {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "first", "split": True}
    always = first | {"prepend_scheme": "always"}
    seq = lambda *d: {"type": "Sequence", "decoders": list(d)}
    fallback, fuse = {"type": "ByteFallback"}, {"type": "Fuse"}
    strip = {"type": "Strip", "content": " ", "start": 1, "stop": 0}
    rows = [[], [22, 18, 19, 20, 22], [18, 19, 5], [17, 1, 5, 21], [10, 11, 1], [1, 1, 5], [0, 22, 0], [23, 23, 5, 23], [25, 5, 25], [4, 9, 4]]
    nfkc = {"type": "NFKC"}
    split = lambda regex, behavior: {"type": "Split", "pattern": {"Regex": regex}, "behavior": behavior, "invert": False}
    yield case([" x"], rows, decoder=seq(fallback, always))
    yield case([" x"], rows, decoder=seq(always, fallback, {"type": "WordPiece", "prefix": "##", "cleanup": True}))
    yield case([" x"], rows, decoder=seq(fuse, always, {"type": "BPEDecoder", "suffix": "</w>"}, strip))
    yield case([" x"], rows, decoder=seq({"type": "CTC", "pad_token": "x", "word_delimiter_token": "\u2581", "cleanup": True}, {"type": "WordPiece", "prefix": "##", "cleanup": False}, fallback))
    yield case([" x"], rows, decoder=seq(fuse, {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}, {"type": "Replace", "pattern": {"String": "ab"}, "content": ""}, strip))
    ctc = {"type": "CTC", "pad_token": "", "word_delimiter_token": "", "cleanup": True}
    yield case([" x"], rows, decoder=seq(fuse, ctc, fallback, ctc))
    t, texts, _ = case(["x\u20aca", "f i"], [])
    yield t | {"model": {"type": "BPE"} | {k: t["model"][k] for k in ("vocab", "merges", "unk_token")} | {"byte_fallback": True}}, texts, rows
    for normalizer in (nfkc, {"type": "NFKD"}, {"type": "Strip", "strip_left": True, "strip_right": False}, {"type": "Nmt"}, {"type": "Lowercase"}):
        for pre in (first, {"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": True}, first]}, {"type": "Sequence", "pretokenizers": [always, split("\u2581", "Isolated"), first]}):
            yield case(["\ufb01x", "\ufb01", "x\ufb01", "\u00bdx", " ix", "\x01x", "\u0130x", "fi fi", "\ufb01\u0301", "e\u0301f"], rows, [{"content": "f"}], normalizer=normalizer, pre_tokenizer=pre)
    for behavior in BEHAVIOURS:
        for regex in ("(?=[C-X])", "\\b", "a*", "(?<=a)", "^", "x?"):
            yield case(["abCd", "aab", "xe\u0301x", "x", "Cab"], rows[:1], pre_tokenizer=split(regex, behavior))
    yield case(["a \nx", "a  \nx", "x \n"], rows, [{"content": "a", "rstrip": True}, {"content": " ", "lstrip": True}])
    tail = "'(?i:[sdmt]|ll|ve|re)|[^\\r\\n\\p{L}\\p{N}]?+\\p{L}++|\\p{N}{1,3}+| ?[^\\s\\p{L}\\p{N}]++[\\r\\n]*+|\\s++$|\\s*[\\r\\n]|\\s+(?!\\S)|\\s"
    t, _, _ = case([], [])  # tiktoken's pattern of cl100k_base, which Oniguruma reads in another way: {1,3}+ repeats.
    yield t | {"pre_tokenizer": split(tail, "Isolated"), "model": {"type": "WordLevel", "unk_token": "<unk>", "vocab": {p: i for i, p in enumerate(["<unk>", "1212", "121", "2", "  ", " ", "\n", "x"])}}}, ["1212", "x  \nx"], [[1, 2]]
    yield case(["F x", "f"], [[26, 4], [4, 26, 26]], [{"content": "F"}], normalizer={"type": "Lowercase"})


def safely(f):
    try:
        return f()
    except Exception:
        return None
    except BaseException as e:
        if isinstance(e, KeyboardInterrupt):
            raise
        return PANIC


def theirs(t, texts, plain):
    t.encode_special_tokens = plain
    return [safely(lambda s=s: t.encode(s, add_special_tokens=not plain).ids) for s in texts]


def ours(lateen, path, texts, flags):
    """The ids of each text, or None if it fails; encoding then continues after it."""
    out = []
    while len(out) < len(texts):
        lines = "".join(json.dumps({"text": s}) + "\n" for s in texts[len(out):])
        run = subprocess.run([lateen, "tokenize", "--tokenizer", path, "--jsonl"] + flags, input=lines.encode(), capture_output=True)
        got = [json.loads(line)["ids"] for line in run.stdout.decode().split("\n") if line]
        out += got
        if run.returncode not in (0, 1):
            return f"exit {run.returncode}: {run.stderr.decode(errors='replace')[-400:]}"
        if run.returncode == 1 and len(out) < len(texts):
            if not got and b"line " not in run.stderr:
                return run.stderr.decode(errors='replace')[-300:]
            out.append(None)
    return out


def decode_ours(lateen, path, rows, flags):
    """Rows are separated by a NUL in the output."""
    lines = "".join(" ".join(map(str, ids)) + "\n" for ids in rows)
    run = subprocess.run([lateen, "tokenize", "--tokenizer", path, "--decode", "--jsonl"] + flags, input=lines.encode(), capture_output=True)
    if run.returncode != 0:
        return run.stderr.decode(errors='replace')[-300:]
    return [json.loads(line)["text"] for line in run.stdout.decode().split("\n") if line]


def compare(label, want, got, inputs):
    if isinstance(got, str):
        return f"{label}: {got.strip()}"
    for a, b, s in zip(want, got, inputs):
        if a != b and a != PANIC:
            return f"{label}: {ascii(s)[:200]}\n    theirs {ascii(a)[:300]}\n    ours   {ascii(b)[:300]}"
    return None if len(want) == len(got) else f"{label}: {len(got)} of {len(want)}"


def ours_agree(lateen, path, text, texts, ids, plain):
    open(path, "w").write(text)
    return ours(lateen, path, texts, []) == ids and ours(lateen, path, texts, ["--no-special"]) == plain


def no_truth(text):
    """Whether an added token has an empty normal form, for which the package searches endlessly, or two have the same form, of which it chooses one at random."""
    t = json.loads(text)
    t, added = tokenizers.Tokenizer.from_str(json.dumps(t | {"added_tokens": [], "post_processor": None})), t["added_tokens"]
    forms = [safely(lambda: t.normalizer.normalize_str(a["content"])) if t.normalizer else a["content"] for a in added if a["normalized"]]
    return len(set(forms)) < len(forms) or "" in forms or None in forms or PANIC in forms


REFUSED = "the tokenizers package fails on such a text"


def hostile_ids(t):
    """Tokens that decoders change."""
    return [i for p, i in t.get_vocab().items() if p.startswith("<") or p in ("\u2581", " ", "a", "|", "the", "##b", "\u00e9", "\ufffd", "\u0120")]


def expected(d, t, texts):
    ids, plain = theirs(t, texts, False), theirs(t, texts, True)
    rows = [r for r in ids + plain if r] + [[d.randrange(t.get_vocab_size()) for _ in range(d.one(0, 1, 2, 4, 8, 20))] for _ in range(30)]
    most = hostile_ids(t)
    rows += [[d.choice(most) for _ in range(d.randint(1, 10))] for _ in range(20)] if most else []
    decoded = [[safely(lambda r=r: t.decode(r, skip_special_tokens=skip)) for r in rows] for skip in (False, True)]
    return ids, plain, rows, decoded


def write_cases(out):
    for t, texts, rows in cases():
        text = json.dumps(t)
        tk = tokenizers.Tokenizer.from_str(text)
        ids, plain = theirs(tk, texts, False), theirs(tk, texts, True)
        keep = [k for k in range(len(texts)) if PANIC not in (ids[k], plain[k])]
        decoded = [[tk.decode(r, skip_special_tokens=skip) for r in rows] for skip in (False, True)]
        out.write(json.dumps({"json": text, "texts": [texts[k] for k in keep], "ids": [ids[k] for k in keep], "plain": [plain[k] for k in keep], "rows": rows, "decoded": decoded}) + "\n")


def main():
    global CHARSMAP
    resource.setrlimit(resource.RLIMIT_AS, (6 << 30, 6 << 30))  # Repeated replacements at every position may need much memory.
    p = argparse.ArgumentParser()
    p.add_argument("--configs", type=int, default=1000)
    p.add_argument("--first", type=int, default=0, help="number of the first configuration of this seed")
    p.add_argument("--trace", help="file for the number of the current configuration, in case the package aborts")
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--lateen", default="build/lateen")
    p.add_argument("--keep")
    p.add_argument("--only", nargs="*")
    p.add_argument("--golden", help="write goldens to this file")
    p.add_argument("--cases", action="store_true", help="use the cases that were once wrong, instead of random configurations")
    p.add_argument("--charsmap", help="base64 of a precompiled charsmap, such as nmt_nfkc's; a tiny one by default")
    p.add_argument("--no-decode", action="store_true")
    p.add_argument("--show", type=int, default=12)
    o = p.parse_args()
    units = [0] * 256  # A double array with the mapping of A to x.
    units[0], units[128 ^ 0x41], units[128 ^ 0x41 ^ 1] = 128 << 10, 1 << 10 | 1 << 8 | 0x41, 1 << 31
    CHARSMAP = base64.b64encode(struct.pack("<257I", 1024, *units) + b"x\0").decode()
    if o.charsmap:
        CHARSMAP = open(o.charsmap).read().strip()
    folder = o.keep or tempfile.mkdtemp()
    os.makedirs(folder, exist_ok=True)
    path, ran, skipped, bad, refused, pairs, n_rows = os.path.join(folder, "tokenizer.json"), 0, 0, 0, 0, 0, 0
    golden = open(o.golden, "w") if o.golden else None
    devnull = os.open(os.devnull, os.O_WRONLY)
    os.dup2(os.dup(2), 9)
    if o.cases:
        os.dup2(devnull, 2)
        return write_cases(golden)
    for i in range(o.first, o.first + o.configs):
        if o.trace:
            print(i, file=open(o.trace, "w"))
        d = Dice(o.seed * 1000003 + i)
        t = config(d, o.only)
        text = json.dumps(t, ensure_ascii=d.flag(0.5))
        os.dup2(devnull, 2)
        tk = safely(lambda: tokenizers.Tokenizer.from_str(text))
        if tk in (None, PANIC) or no_truth(text):
            os.dup2(9, 2)
            skipped += 1
            continue
        texts = [d.text(0, d.one(1, 3, 8, 25)) for _ in range(6 if golden else 60)] + ["", " ", "a" * 70, "ab" * 40]
        texts += [] if golden else ["".join(d.choice("abcdehtno") for _ in range(3000))]
        ids, plain, rows, decoded = expected(d, tk, texts)
        os.dup2(9, 2)
        if golden:
            if len(text) > 14000 or safely(lambda: ours_agree(o.lateen, path, text, texts, ids, plain)) is not True:
                continue  # Goldens must be small, and without differences.
            keep = [k for k, w in enumerate(texts) if PANIC not in (ids[k], plain[k])]
            best = [k for k in list(range(3)) + list(range(len(rows) - 9, len(rows))) if PANIC not in (decoded[0][k], decoded[1][k])]
            golden.write(json.dumps({"json": text, "texts": [texts[k] for k in keep], "ids": [ids[k] for k in keep], "plain": [plain[k] for k in keep], "rows": [rows[k] for k in best], "decoded": [[x[k] for k in best] for x in decoded]}) + "\n")
            continue
        open(path, "w").write(text)
        ran += 1
        pairs += len(texts)
        n_rows += len(rows)
        why = [compare("encode", ids, ours(o.lateen, path, texts, []), texts), compare("plain", plain, ours(o.lateen, path, texts, ["--no-special"]), texts)]
        if not o.no_decode and not any(why):
            keep = [k for k, w in enumerate(decoded[0]) if w not in (None, PANIC) and decoded[1][k] not in (None, PANIC)]
            part = [rows[k] for k in keep]
            for want, flags in ((decoded[0], []), (decoded[1], ["--no-special"])):
                why.append(compare("decode" + str(flags), [want[k] for k in keep], decode_ours(o.lateen, path, part, flags), part))
        why = [w for w in why if w]
        if any(REFUSED in w or "duplicate id" in w for w in why):
            refused += 1
            continue
        if why:
            bad += 1
            brief = {k: v for k, v in t.items() if k != "model"}
            brief["model"] = {k: v for k, v in t["model"].items() if k not in ("vocab", "merges")}
            if bad <= o.show:
                print(f"config {i}: {json.dumps(brief)}\n  " + "\n  ".join(why), flush=True)
            if o.keep:
                os.replace(path, os.path.join(folder, f"bad{i}.json"))
    print(f"{ran} configurations with {pairs} texts and {n_rows} rows of ids to decode, {bad} differ; {refused} refused by us, {skipped} by the package")
    sys.exit(1 if bad else 0)


main()
