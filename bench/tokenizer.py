#!/usr/bin/env python3
"""Measure the speed of tokenizers on one thread, alternately: Lateen's, tiktoken and Hugging Face tokenizers.

    python3 bench/tokenizer.py [../shared/data]      writes bench/results/tokenizer.json and .md

Text: tinyshakespeare and WikiText-2's test split (English), every third file of UDHR (129 languages), and a megabyte of one letter. Each
side encodes the whole text as one string. TURNS times, alternately, each side opens its tokenizer and encodes the text EACH times. "First" is the
median of the first encodings after opening, with empty caches; "warm" is the median of all others. Lateen is timed inside the library by
`lateen bench tokenizer`, the others inside Python by the clock around encode. tokenizers' encode also builds offsets and strings; it has no
other function for one text. Load is the time to open the unpacked file.
Training: byte-level BPE of 8,192 entries on the English text, by Lateen and by tokenizers' trainer on one thread each, in turns, medians. tokenizers
gets the text as one string, as an iterator of lines, and as a file; its fastest time counts. The output says whether the merges are equal.
"""
import datetime
import io
import json
import os
import statistics
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
TURNS, EACH = 3, 3


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
    """Vocabulary, file, peer, and a function that opens the peer's encode."""
    for label, file, name in [("GPT-2 (50,257)", "tok-tiktoken/r50k_base.tiktoken.zst", "r50k_base"), ("o200k (200,019)", "tok-tiktoken/o200k_base.tiktoken.zst", "o200k_base")]:
        meta = json.load(open(f"{DATA}/tok-tiktoken/{name}.meta.json"))
        path = os.path.join(folder, name + ".tiktoken")
        open(path, "wb").write(unzst(f"{DATA}/{file}"))

        def opened(name=name, path=path, meta=meta):
            return tiktoken.Encoding(name, pat_str=meta["pat_str"], mergeable_ranks=load_tiktoken_bpe(path), special_tokens=meta["special_tokens"]).encode_ordinary

        yield label, path, "tiktoken", opened
    for label, file in [("Qwen3 (151,669)", "tok-qwen3/tokenizer.json.zst"), ("DeepSeek-V3 (128,815)", "tok-deepseek-v3/tokenizer.json.zst"), ("gpt-oss (200,019)", "tok-gpt-oss/tokenizer.json.zst")]:
        path = os.path.join(folder, "t.json")
        open(path, "wb").write(unzst(f"{DATA}/{file}"))

        def opened(path=path):
            t = tokenizers.Tokenizer.from_file(path)
            return lambda s: t.encode(s, add_special_tokens=False).ids

        yield label, path, "tokenizers", opened


def ours(file, path):
    run = subprocess.run(["build/lateen", "bench", "tokenizer", "--tokenizer", file, "--input", path, "--rounds", str(EACH), "--json"], capture_output=True, check=True)
    return json.loads(run.stdout)


def train_peer(way, source, text):
    """Seconds of tokenizers' trainer, and its result."""
    t = tokenizers.Tokenizer(models.BPE())
    t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    how = trainers.BpeTrainer(vocab_size=8192, special_tokens=["<|endoftext|>"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False)
    start = time.perf_counter()
    if way == "file":
        t.train([source], how)
    else:
        t.train_from_iterator([text] if way == "one string" else text.splitlines(keepends=True), how)
    return time.perf_counter() - start, json.loads(t.to_str())["model"]


def train(folder, text):
    """Medians of both, and for each form of the peer's input whether its merges equal ours."""
    source, out = os.path.join(folder, "train.txt"), os.path.join(folder, "trained.json")
    open(source, "w", encoding="utf-8", newline="").write(text)
    flat = lambda merges: [m if isinstance(m, str) else " ".join(m) for m in merges]
    ways, mine_s, equal = {"one string": [], "lines": [], "file": []}, [], {}
    for _ in range(2 * TURNS):
        start = time.perf_counter()
        subprocess.run(["build/lateen", "tokenizer", "train", source, "--vocab-size", "8192", "--pattern", "gpt2", "--threads", "1", "--out", out], capture_output=True, check=True)
        mine_s.append(time.perf_counter() - start)
        mine = json.load(open(out))["model"]
        for way, times in ways.items():
            seconds, theirs = train_peer(way, source, text)
            times.append(seconds)
            equal[way] = flat(theirs["merges"]) == flat(mine["merges"]) and theirs["vocab"] == mine["vocab"]
    peer = {way: statistics.median(times) for way, times in ways.items()}
    best, lateen = min(peer.values()), statistics.median(mine_s)
    return {"bytes": len(text.encode()), "vocabulary": 8192, "equal": equal, "peer_ways_s": peer, "peer_s": best, "lateen_s": lateen, "ratio": best / lateen}


def clock(encode, text):
    start = time.perf_counter()
    ids = encode(text)
    return time.perf_counter() - start, len(ids)


def main():
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        corpora = texts(folder)
        training = train(folder, corpora["English"][1])  # Training comes first: after the other encodings the peer took three times as long in this process.
        print(training, flush=True)
        for label, file, peer, opened in engines(folder):
            for name, (path, text, size) in corpora.items():
                first, warm, load = {"peer": [], "ours": []}, {"peer": [], "ours": []}, []
                for _ in range(TURNS):
                    encode = opened()
                    theirs = [clock(encode, text) for _ in range(EACH)]
                    mine = ours(file, path)
                    assert mine["ids"] == theirs[0][1], (label, name, mine["ids"], theirs[0][1])
                    load.append(mine["load_s"])
                    for side, seconds in ("peer", [s for s, _ in theirs]), ("ours", mine["seconds"]):
                        first[side].append(seconds[0])
                        warm[side] += seconds[1:]
                rate = lambda seconds: size / 1e6 / statistics.median(seconds)
                row = {"vocabulary": label, "text": name, "bytes": size, "ids": mine["ids"], "peer": peer, "lateen_load_ms": statistics.median(load) * 1e3}
                row |= {"peer_mb_s": rate(warm["peer"]), "lateen_mb_s": rate(warm["ours"]), "peer_first_mb_s": rate(first["peer"]), "lateen_first_mb_s": rate(first["ours"])}
                row |= {"ratio": row["lateen_mb_s"] / row["peer_mb_s"], "first_ratio": row["lateen_first_mb_s"] / row["peer_first_mb_s"]}
                rows.append(row)
                print(row, flush=True)
    cpu = next((line.split(":")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")), "?")
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
    head = {"date": datetime.date.today().isoformat(), "commit": commit, "cpu": cpu, "threads": 1, "tiktoken": tiktoken.__version__, "tokenizers": tokenizers.__version__}
    os.makedirs("bench/results", exist_ok=True)
    json.dump({**head, "rows": rows, "training": training}, open("bench/results/tokenizer.json", "w"), indent=1)
    with open("bench/results/tokenizer.md", "w") as f:
        f.write(f"# Tokenizers, one thread\n\n{head['date']}, commit {commit}, {cpu}; tiktoken {tiktoken.__version__}, tokenizers {tokenizers.__version__}; written by bench/tokenizer.py.\n")
        f.write(f"{TURNS} turns of {EACH} encodings on each side; medians of the first encodings after opening, and of the others (warm). The machine was shared, so the ratios are more reliable than the rates.\n\n")
        f.write("| vocabulary | text | Lateen, warm MB/s | first | peer | warm MB/s | first | ratio, warm | first | load ms |\n| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |\n")
        for r in rows:
            f.write(f"| {r['vocabulary']} | {r['text']} | {r['lateen_mb_s']:.1f} | {r['lateen_first_mb_s']:.1f} | {r['peer']} | {r['peer_mb_s']:.2f} | {r['peer_first_mb_s']:.2f} | {r['ratio']:.1f} | {r['first_ratio']:.1f} | {r['lateen_load_ms']:.0f} |\n")
        t = training
        f.write(f"\nTraining byte-level BPE, {t['vocabulary']:,} entries, {t['bytes'] / 1e6:.1f} MB of English, one thread, medians of {2 * TURNS} in turn: Lateen {t['lateen_s']:.3f} s with the start of its process; tokenizers ")
        f.write(", ".join(f"{s:.2f} s from {'lines' if w == 'lines' else 'a file' if w == 'file' else 'one string'} ({'equal merges' if t['equal'][w] else 'other merges than Lateen'})" for w, s in t["peer_ways_s"].items()))
        f.write(f". Its fastest time is {t['ratio']:.1f} times Lateen's.\n")


main()
