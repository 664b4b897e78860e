"""Check when training validates, samples, saves and logs, how many rows each source of a mixture gives, and bits per byte, against lists and sums
computed here, not against another run. Standard library only; TAP on stdout.

usage: train_decides.py LATEEN"""
import array
import json
import math
import os
import re
import subprocess
import sys
import tempfile

from make_shard import write_shard
from tap import Tap

lateen, golden = sys.argv[1], "tests/golden/train/"
TOKENIZER = "tests/golden/data/demo_tokenizer.json"
SMALL = {"model.vocab": 64, "model.layers": 1, "model.width": 16, "model.heads": 2, "data.seq": 16, "batch.size": 4, "threads": 1, "export": "false",
         "data.train": golden + "tokens"}
tap = Tap()
check = tap.check
os.environ.pop("LATEEN_PEAK_GFLOPS", None)  # Here the peak is measured, as in users' runs.


def train(out, **options):
    """Lines of metrics by kind, and the steps of the checkpoints."""
    args = {**SMALL, **{k.replace("__", "."): v for k, v in options.items()}, "out": out}
    done = subprocess.run([lateen, "train"] + [w for n, v in args.items() for w in (f"--{n}", str(v))], capture_output=True, text=True)
    if done.returncode != 0:
        return None, done.stderr
    kinds = {}
    for line in open(out + "/metrics.jsonl"):
        row = json.loads(line)
        kinds.setdefault(row["kind"], []).append(row)
    return kinds, sorted(int(n[5:]) for n in os.listdir(out + "/checkpoints") if re.fullmatch(r"step-\d+", n))


def steps(rows):
    return [r["step"] for r in rows or []]


with tempfile.TemporaryDirectory() as work:
    # ---- When something happens ----
    valid = {"data__valid": golden + "valid", "eval__rows": 6}
    sampled = {"data__tokenizer": TOKENIZER, "model__vocab": 2048, "sample__tokens": 3}
    k, saved = train(work + "/when", steps=11, eval__every=3, checkpoint__every=4, checkpoint__keep_last=9, sample__every=5, log__every=2, **valid, **sampled)
    check("validations at multiples and at the end", k and steps(k["eval"]) == [3, 6, 9, 11], k and steps(k["eval"]) or saved)
    check("samples likewise", k and steps(k.get("sample")) == [5, 10, 11], k and steps(k.get("sample")))
    check("checkpoints likewise", saved == [4, 8, 11], saved)
    check("a line of metrics every other step", k and steps(k["train"]) == [2, 4, 6, 8, 10], k and steps(k["train"]))
    check("tokens count up", k and [r["tokens"] for r in k["train"]] == [64 * s for s in (2, 4, 6, 8, 10)], k and [r["tokens"] for r in k["train"]])
    k, saved = train(work + "/end", steps=6, eval__every=6, checkpoint__every=3, sample__every=6, **valid, **sampled)
    check("a multiple at the end is not taken twice", k and steps(k["eval"]) == steps(k["sample"]) == [6] and saved == [3, 6], (k and steps(k["eval"]), saved))
    k, saved = train(work + "/none", steps=5, **valid)
    check("without .every at the end only", k and steps(k["eval"]) == [5] and saved == [5] and "sample" not in k and steps(k["train"]) == [1, 2, 3, 4, 5], saved)
    k, saved = train(work + "/again", steps=4, checkpoint__every=2, eval__every=2, **valid)
    k, saved = train(work + "/again", steps=7, checkpoint__every=2, eval__every=2, checkpoint__keep_last=9, **valid)
    check("resumed: the same multiples", k and steps(k["eval"]) == [2, 4, 6, 7] and saved == [2, 4, 6, 7], (k and steps(k["eval"]), saved))
    check("and every step once", k and steps(k["train"]) == [1, 2, 3, 4, 5, 6, 7], k and steps(k["train"]))

    again = k
    # As after a kill between a checkpoint and the removal of older ones; the run has ended, so no later checkpoint removes them.
    _, saved = train(work + "/again", steps=7, checkpoint__every=2, eval__every=2, checkpoint__keep_last=2, **valid)
    check("a start removes checkpoints beyond keep_last that an earlier one has left", saved == [6, 7], saved)
    k = again

    # ---- Derived numbers in a line of metrics ----
    # Those of the second start: each start measures the peak.
    start, rows = k["start"][-1], k["train"][4:]
    # The number of heads times their width is the width of the model.
    flops = 6 * start["active_parameters"] + 12 * SMALL["model.layers"] * SMALL["model.width"] * SMALL["data.seq"]
    # A rate above the peak makes the run measure it again.
    shares = [(r["mfu"], r["tokens_per_s"] * flops / (start["peak_gflops"] * 1e9)) for r in rows]
    check("MFU: tokens a second times 6N + 12LHDT over the measured peak", all(0 < mfu <= 1 and mfu <= share * 1.00001 for mfu, share in shares)
          and (math.isclose(*shares[0], rel_tol=1e-5) or shares[0][1] > 1), shares)
    os.environ["LATEEN_PEAK_GFLOPS"] = "123456"
    k, saved = train(work + "/known", steps=2)
    known, known_rows = (k["start"][-1], k["train"]) if k else ({}, [])
    check("MFU: a share of LATEEN_PEAK_GFLOPS, where that is set", known.get("peak_gflops") == 123456 and known_rows and all(
        math.isclose(r["mfu"], r["tokens_per_s"] * flops / 123456e9, rel_tol=1e-5) for r in known_rows), saved if k is None else (known, known_rows))
    del os.environ["LATEEN_PEAK_GFLOPS"]
    check("tokens a second: of the step's rows and time", all(math.isclose(r["tokens_per_s"] * r["step_s"], 64, rel_tol=1e-6) for r in rows), rows[-1])
    check("times: steps follow one another, none waits longer than it takes", all(0 <= r["wait_s"] <= r["step_s"] + 0.1 and 0 < r["step_s"] < 20 for r in rows)
          and all(b["time_s"] >= a["time_s"] for a, b in zip(rows, rows[1:])), [(r["time_s"], r["step_s"], r["wait_s"]) for r in rows])
    check("the model in the first line", start["model"] == "apertus" and start["steps"] == 7 and start["dtype"] == "F32" and start["threads"] == 1
          and start["announced_bytes"] <= sum(start["memory"].values()), start)

    # ---- Rows of a validation ----
    # 400 tokens: 24 rows, and 15 labels in one more.
    for rows, want in ((1, 16), (6, 96), (24, 384), (25, 399), (0, 399), (1000, 399)):
        k, saved = train(work + f"/rows{rows}", steps=1, data__valid=golden + "valid", eval__rows=rows, data__mask_eod="false", batch__size=2)
        got = k and k["eval"][0]["tokens"]
        check(f"eval.rows = {rows}: {want} labels", got == want, (got, saved))

    # ---- Mixtures: of n rows each source gave its share, up to one row, at any time ----
    for weights in ((3, 1), (1, 1, 1), (5, 2, 0.5), (0.1, 0.9)):
        names = []
        for i in range(len(weights)):
            names.append(f"{work}/mix{i}")
            write_shard(names[-1], [[(7 * j + i) % 64 for j in range(1000)]])
        wrong = []
        for n in (1, 3, 10):
            out = f"{work}/mix-{len(weights)}-{weights[0]}-{n}"
            k, saved = train(out, steps=n, batch__size=3, data__train=",".join(f"{p}:{w}" for p, w in zip(names, weights)))
            if k is None:
                wrong.append(saved)
                continue
            loader = json.load(open(f"{out}/checkpoints/step-{n:09}/manifest.json"))["loader"]
            rows = [s[0] for s in loader["sources"]]
            if sum(rows) != 3 * n or any(abs(r - 3 * n * w / sum(weights)) > 1 for r, w in zip(rows, weights)):
                wrong.append((n, rows))
        check(f"a mixture of {weights}", not wrong, wrong)

    # ---- Bits per byte: total nats / ln 2 / bytes of the labels' texts ----
    with open(work + "/text.jsonl", "w") as f:
        for i in range(30):
            f.write(json.dumps({"text": f"Chapter {i}. It was a dark night; the café was naïve — {'ha ' * (i % 5)}and so on."}) + "\n")
    subprocess.run([lateen, "tokenize", work + "/text.jsonl", "--tokenizer", TOKENIZER, "--append-eod", "--eod", "<|endoftext|>", "--out", work + "/text"], check=True, capture_output=True)
    ids = array.array("H")
    ids.frombytes(open(work + "/text.bin", "rb").read())
    model = json.load(open(TOKENIZER))
    text_of = {i: t for t, i in model["model"]["vocab"].items()}
    special = {t["id"] for t in model["added_tokens"] if t["special"]}
    n = (len(ids) - 1) // 16 * 16
    labels = ids[1:n + 1]
    # In a byte-level vocabulary a character stands for a byte.
    n_bytes = sum(0 if i in special else len(text_of[i]) for i in labels)
    k, saved = train(work + "/bits", steps=1, data__train=work + "/text", data__valid=work + "/text", data__tokenizer=TOKENIZER, model__vocab=4096, eval__rows=n // 16,
                     data__mask_eod="false", data__mask_documents="false")
    e = k and k["eval"][0]
    check("bits per byte of a validation", e and e["tokens"] == n and math.isclose(e["bits_per_byte"], e["loss"] * n / math.log(2) / n_bytes, rel_tol=1e-7), (e, n, n_bytes, saved))
sys.exit(tap.end())
