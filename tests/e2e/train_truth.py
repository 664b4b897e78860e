"""Compare whole training runs with PyTorch's runs on the same rows (tests/golden/train, tools/make_train_goldens.py): learning rate, batch, loss and
gradient norm of every step, and validations. Standard library only; TAP on stdout.

usage: train_truth.py LATEEN"""
import json
import math
import os
import subprocess
import sys
import tempfile

lateen, golden = sys.argv[1], "tests/golden/train/"
count = failed = 0
# PyTorch computed in double, this in float: each step differs by rounding, and the differences
# add up.
LOSS, NORM = 2e-5, 2e-4


def check(name, wrong):
    global count, failed
    count += 1
    failed += bool(wrong)
    print(f"{'not ok' if wrong else 'ok'} {count} - {name}" + (f"\n  # {str(wrong)[:400]}" if wrong else ""), flush=True)


def near(a, b, bound):
    return math.isclose(a, b, rel_tol=bound, abs_tol=1e-12)


def compare(want, rows):
    steps = [r for r in rows if r["kind"] == "train"]
    evals = [r for r in rows if r["kind"] == "eval"]
    if [s["step"] for s in steps] != [s["step"] for s in want["steps"]]:
        return f"steps {[s['step'] for s in steps]}"
    for w, got in zip(want["steps"], steps):
        bad = [n for n, bound in (("lr", 1e-8), ("loss", LOSS), ("grad_norm", NORM)) if not near(w[n], got[n], bound)]
        if bad or w["batch"] != got["batch"]:
            return f"step {w['step']}: {bad} {w}, not {({n: got[n] for n in w})}"
    if want["evals"] and [e["step"] for e in evals] != [e["step"] for e in want["evals"]]:
        return f"validations at {[e['step'] for e in evals]}"
    for w, got in zip(want["evals"], evals):
        if not (near(w["loss"], got["loss"], LOSS) and near(math.exp(w["loss"]), got["perplexity"], 10 * LOSS) and w["tokens"] == got["tokens"] and near(w["accuracy"], got["accuracy"], 1e-8)):
            return f"validation {w}, not {got}"
    return ""


with tempfile.TemporaryDirectory() as work:
    for i, run in enumerate(json.load(open(golden + "train.json"))):
        out = os.path.join(work, str(i))
        args = {"out": out, "data.train": golden + "tokens", "export": "false", "threads": 2, **run["args"]}
        if run["evals"]:
            args["data.valid"] = golden + "valid"
        done = subprocess.run([lateen, "train"] + [w for n, v in args.items() for w in (f"--{n}", str(v))], capture_output=True, text=True)
        check(run["name"], done.stderr[-300:] if done.returncode != 0 else compare(run, [json.loads(x) for x in open(out + "/metrics.jsonl")]))
print(f"1..{count}")
sys.exit(failed > 0)
