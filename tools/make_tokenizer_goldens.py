#!/usr/bin/env python3
"""Write tests/golden/tokenizer/: hostile.jsonl (texts) and ids.tsv (CRC-32 of the ids of the library that defines the format).

One line of ids.tsv: tokenizer file under ../shared/data, corpus, 1 if special tokens are on, number of ids, CRC-32. The CRC runs over
each text's ids as little-endian 32-bit words, followed by 0xFFFFFFFF. Texts are read as UTF-8 with U+FFFD for ill-formed bytes.

    python3 tools/make_tokenizer_goldens.py ../shared/data tests/golden/tokenizer
"""
import array
import io
import json
import os
import random
import subprocess
import sys
import tarfile
import tempfile
import zlib

import sentencepiece
import tiktoken
import tokenizers
from tiktoken.load import load_tiktoken_bpe

DATA, OUT = sys.argv[1], sys.argv[2]
POOL = list("  \t\n\r'\"sStTdDlLvVeErRmM.,!?/0123456789abzABZ_-<>|[]{}") + [
    "\u00a0", "\u3000", "\u2028", "\u0085", "\u200b", "\u200d", "\ufeff", "\u0301", "\u0300", "\u00e9", "\u017f", "\u0130", "\u01c5",
    "\u02b0", "\u4e2d", "\u56fd", "\ud55c", "\u0e01", "\u0e33", "\u093e", "\u0915", "\u094d", "\u05d0", "\u0639", "\U0001f600",
    "\u00bd", "\u00b2", "\u2167", "\u0663", "\u0000", "\u0001", "\u007f", "\u0378", "\ue000", "\U000e0001", "\ufb06", "\u1161", "\u11a8",
    "\u1100", "\u212a", "\u212b", "\ufffd", "\u2581", "\u0120", "</s>", "<s>", "<unk>", "<0x0A>", "<|endoftext|>", "<|im_end|>", "\r\n",
    "'s", "'LL", "'\u017f", "    ", "\n\n", "\U00010400", "\u0345", "\u0f71", "\u0f72", "\U00020000", "<\uff5cend\u2581of\u2581sentence\uff5c>",
]


def unzst(path):
    return subprocess.run(["zstd", "-dc", path], capture_output=True, check=True).stdout


def tar_texts(path):
    with tarfile.open(fileobj=io.BytesIO(unzst(path))) as tar:
        return [tar.extractfile(m).read().decode("utf-8", "replace") for m in tar.getmembers() if m.isfile()]


def hostile():
    rnd = random.Random(7)
    texts = ["", " ", "\n", "'", "a"]
    for _ in range(700):
        texts.append("".join(rnd.choice(POOL) for _ in range(rnd.choice([1, 2, 3, 5, 8, 13, 30, 80]))))
    for _ in range(200):
        kinds = [(0x20, 0x7F), (0x80, 0x800), (0x800, 0xD800), (0xE000, 0x10000), (0x10000, 0x110000)]
        texts.append("".join(chr(rnd.randrange(*rnd.choice(kinds))) for _ in range(rnd.randrange(1, 60))))
    for unit in ["a", "A", "1", " ", "\n", "!", "\u4e2d", "\u0301", "\r\n", " \n", "\u2581", "\U0001f600", "'s"]:
        texts += [unit * k for k in (2, 3, 7, 8, 15, 16, 17, 63, 64, 65, 300)]
    return texts


def crc(all_ids):
    value, count = 0, 0
    for ids in all_ids:
        value = zlib.crc32(array.array("I", list(ids) + [0xFFFFFFFF]).tobytes(), value)
        count += len(ids)
    return count, value


def encoders(folder):
    """(file, special, encode)"""
    for name in ["tok-qwen3", "tok-deepseek-v3", "tok-gpt-oss"]:
        path = os.path.join(folder, "t.json")
        with open(path, "wb") as f:
            f.write(unzst(f"{DATA}/{name}/tokenizer.json.zst"))
        for special in (True, False):
            t = tokenizers.Tokenizer.from_file(path)
            t.encode_special_tokens = not special
            yield f"{name}/tokenizer.json.zst", special, lambda s, t=t, special=special: t.encode(s, add_special_tokens=special).ids
    for name in ["r50k_base", "p50k_base", "cl100k_base", "o200k_base"]:
        meta = json.load(open(f"{DATA}/tok-tiktoken/{name}.meta.json"))
        path = os.path.join(folder, name)
        with open(path, "wb") as f:
            f.write(unzst(f"{DATA}/tok-tiktoken/{name}.tiktoken.zst"))
        e = tiktoken.Encoding(name, pat_str=meta["pat_str"], mergeable_ranks=load_tiktoken_bpe(path), special_tokens=meta["special_tokens"])
        yield f"tok-tiktoken/{name}.tiktoken.zst", True, lambda s, e=e: e.encode(s, allowed_special="all")
        yield f"tok-tiktoken/{name}.tiktoken.zst", False, e.encode_ordinary
        if name == "r50k_base":
            yield "tok-gpt2/vocab.bpe", False, e.encode_ordinary
    for name in ["tokenizer.model.v1", "mistral_instruct_tokenizer_240323.model.v3", "mistral_instruct_tokenizer_241114.model.v7"]:
        sp = sentencepiece.SentencePieceProcessor(model_file=f"{DATA}/tok-mistral/{name}")
        yield f"tok-mistral/{name}", False, sp.encode


def main():
    texts = hostile()
    with open(f"{OUT}/hostile.jsonl", "w") as f:
        for text in texts:
            f.write(json.dumps({"text": text}) + "\n")
    corpora = {
        "hostile": texts,
        "udhr": tar_texts(f"{DATA}/text-udhr/udhr2.tar.zst"),
        "tatoeba": tar_texts(f"{DATA}/text-tatoeba/tatoeba-v1.tar.zst"),
    }
    with tempfile.TemporaryDirectory() as folder, open(f"{OUT}/ids.tsv", "w") as f:
        for name, special, encode in encoders(folder):
            for corpus, docs in corpora.items():
                if corpus != "hostile" and special:
                    continue  # These texts contain no special token.
                count, value = crc(encode(d) for d in docs)
                f.write(f"{name}\t{corpus}\t{int(special)}\t{count}\t{value:08x}\n")
                f.flush()


main()
