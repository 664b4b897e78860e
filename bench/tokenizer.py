#!/usr/bin/env python3
"""Speed of tokenizers, one thread, interleaved: ours against tiktoken and Hugging Face tokenizers.

    python3 bench/tokenizer.py [../shared/data]      writes bench/results/tokenizer.json and .md

Text: tinyshakespeare and WikiText-2's test split (English), every third file of UDHR (129 languages), and a megabyte of one letter. Each
engine encodes the whole text as one string, in turns, ROUNDS times; the best round counts, so that a busy machine hurts nobody.
Ours is timed inside the library by `lateen bench tokenizer`, warm (the best of 5 encodings, the word cache filled by the ones before, as
tokenizers' cache is) and cold (the first one, nothing cached); the others inside Python by the clock around encode.
tokenizers' encode builds offsets and strings too: that is what it offers for one text. Load is the time to open the unpacked file.
Training: byte-level BPE of 8,192 entries on the English text, ours and tokenizers' trainer on one thread each; the merges must be equal.
"""
import datetime
import io
import json
import os
import subprocess
import sys
import tarfile
import tempfile
import time

os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["RAYON_NUM_THREADS"] = "1"
import tiktoken
import tokenizers
from tokenizers import models, pre_tokenizers, trainers
from tiktoken.load import load_tiktoken_bpe

DATA = sys.argv[1] if len(sys.argv) > 1 else "../shared/data"
ROUNDS = 2


def unzst(path):
    return subprocess.run(["zstd", "-dc", path], capture_output=True, check=True).stdout


def texts(folder):
    english = open(f"{DATA}/text-tinyshakespeare/input.txt", "rb").read() + unzst(f"{DATA}/text-wikitext2-valtest/test.txt.zst")
    with tarfile.open(fileobj=io.BytesIO(unzst(f"{DATA}/text-udhr/udhr2.tar.zst"))) as tar:
        udhr = b"".join(tar.extractfile(m).read() for m in tar.getmembers()[::3] if m.isfile())
    out = {}
    for name, data in [("English", english), ("129 languages", udhr), ("1 MB of one letter", b"a" * 1000000)]:
        path = os.path.join(folder, name.replace(" ", "_"))
        text = data.decode("utf-8", "replace")
        with open(path, "w", encoding="utf-8", newline="") as f:
            f.write(text)
        out[name] = (path, text, len(text.encode()))
    return out


def engines(folder):
    for label, file, name in [("GPT-2 (50,257)", "tok-tiktoken/r50k_base.tiktoken.zst", "r50k_base"), ("o200k (200,019)", "tok-tiktoken/o200k_base.tiktoken.zst", "o200k_base")]:
        meta = json.load(open(f"{DATA}/tok-tiktoken/{name}.meta.json"))
        path = os.path.join(folder, name + ".tiktoken")
        open(path, "wb").write(unzst(f"{DATA}/{file}"))
        e = tiktoken.Encoding(name, pat_str=meta["pat_str"], mergeable_ranks=load_tiktoken_bpe(path), special_tokens=meta["special_tokens"])
        yield label, path, "tiktoken", e.encode_ordinary
    for label, file in [("Qwen3 (151,669)", "tok-qwen3/tokenizer.json.zst"), ("DeepSeek-V3 (128,815)", "tok-deepseek-v3/tokenizer.json.zst"), ("gpt-oss (200,019)", "tok-gpt-oss/tokenizer.json.zst")]:
        path = os.path.join(folder, "t.json")
        open(path, "wb").write(unzst(f"{DATA}/{file}"))
        t = tokenizers.Tokenizer.from_file(path)
        yield label, path, "tokenizers", lambda s, t=t: t.encode(s, add_special_tokens=False).ids


def ours(file, path):
    run = subprocess.run(["build/lateen", "bench", "tokenizer", "--tokenizer", file, "--input", path, "--json"], capture_output=True, check=True)
    return json.loads(run.stdout)


def train(folder, text):
    """Seconds of both, and whether the merges are equal."""
    source, out = os.path.join(folder, "train.txt"), os.path.join(folder, "trained.json")
    open(source, "w", encoding="utf-8", newline="").write(text)
    best_ours, best_peer = 1e9, 1e9
    for _ in range(ROUNDS):
        t = tokenizers.Tokenizer(models.BPE())
        t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        how = trainers.BpeTrainer(vocab_size=8192, special_tokens=["<|endoftext|>"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False)
        start = time.perf_counter()
        t.train_from_iterator([text], how)
        best_peer = min(best_peer, time.perf_counter() - start)
        start = time.perf_counter()
        subprocess.run(["build/lateen", "tokenizer", "train", source, "--vocab-size", "8192", "--pattern", "gpt2", "--threads", "1", "--out", out], capture_output=True, check=True)
        best_ours = min(best_ours, time.perf_counter() - start)
    flat = lambda merges: [m if isinstance(m, str) else " ".join(m) for m in merges]
    theirs, mine = json.loads(t.to_str())["model"], json.load(open(out))["model"]
    return {"bytes": len(text.encode()), "vocabulary": 8192, "equal": flat(theirs["merges"]) == flat(mine["merges"]) and theirs["vocab"] == mine["vocab"], "peer_s": best_peer, "lateen_s": best_ours, "ratio": best_peer / best_ours}


def clock(encode, text):
    start = time.perf_counter()
    ids = encode(text)
    return time.perf_counter() - start, len(ids)


def main():
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        corpora = texts(folder)
        for label, file, peer, encode in engines(folder):
            for name, (path, text, size) in corpora.items():
                best_peer, best_ours, cold, load = 1e9, 1e9, 1e9, 1e9
                for _ in range(ROUNDS):
                    seconds, n_ids = clock(encode, text)
                    mine = ours(file, path)
                    assert mine["ids"] == n_ids, (label, name, mine["ids"], n_ids)
                    best_peer, best_ours, load = min(best_peer, seconds), min(best_ours, mine["seconds"]), min(load, mine["load_s"])
                    cold = min(cold, mine["first_seconds"])
                rows.append({"vocabulary": label, "text": name, "bytes": size, "ids": n_ids, "peer": peer, "peer_mb_s": size / 1e6 / best_peer, "lateen_mb_s": size / 1e6 / best_ours, "lateen_cold_mb_s": size / 1e6 / cold, "ratio": best_peer / best_ours, "cold_ratio": best_peer / cold, "lateen_load_ms": load * 1e3})
                print(rows[-1], flush=True)
        training = train(folder, corpora["English"][1])
        print(training, flush=True)
    cpu = next((line.split(":")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")), "?")
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
    head = {"date": datetime.date.today().isoformat(), "commit": commit, "cpu": cpu, "threads": 1, "tiktoken": tiktoken.__version__, "tokenizers": tokenizers.__version__}
    os.makedirs("bench/results", exist_ok=True)
    json.dump({**head, "rows": rows, "training": training}, open("bench/results/tokenizer.json", "w"), indent=1)
    with open("bench/results/tokenizer.md", "w") as f:
        f.write(f"# Tokenizers, one thread\n\n{head['date']}, commit {commit}, {cpu}; tiktoken {tiktoken.__version__}, tokenizers {tokenizers.__version__}; written by bench/tokenizer.py.\n")
        f.write("The machine was shared: trust the ratios. Cold: the first encoding, nothing cached. Load is the time to open the unpacked file.\n\n")
        f.write("| vocabulary | text | Lateen MB/s | cold | peer | MB/s | ratio | cold | load ms |\n| --- | --- | --- | --- | --- | --- | --- | --- | --- |\n")
        for r in rows:
            f.write(f"| {r['vocabulary']} | {r['text']} | {r['lateen_mb_s']:.1f} | {r['lateen_cold_mb_s']:.1f} | {r['peer']} | {r['peer_mb_s']:.2f} | {r['ratio']:.1f} | {r['cold_ratio']:.1f} | {r['lateen_load_ms']:.0f} |\n")
        t = training
        f.write(f"\nTraining byte-level BPE, {t['vocabulary']:,} entries, {t['bytes'] / 1e6:.1f} MB of English, one thread: Lateen {t['lateen_s']:.2f} s, ")
        f.write(f"tokenizers {t['peer_s']:.2f} s, {t['ratio']:.1f} times; vocabulary and merges {'equal' if t['equal'] else 'DIFFER'}.\n")


main()
