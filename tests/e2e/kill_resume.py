"""Training that is killed with SIGKILL at random moments until it has finished, compared in every checkpointed bit with an undisturbed run. TAP on stdout. Standard library only.

usage: kill_resume.py LATEEN [KILLS [SEEDS [FIRST]]]      8 kills a seed, one seed; FAULT_SEEDS and FAULT_RESULTS: seeds.py

Each kill comes within half of the time of an undisturbed run. Every second attempt writes its checkpoints in the background."""
import glob
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time

import seeds
from tap import Tap

lateen = sys.argv[1]
kills, n_seeds, first = ([int(a) for a in sys.argv[2:]] + [8, 1, 1][len(sys.argv) - 2:])
STEPS, PATIENCE = 40, 300
tap = Tap(detail_chars=3000)
work = tempfile.TemporaryDirectory()
text, shard = work.name + "/text", work.name + "/shard"
with open(text, "wb") as f:  # Any text will do.
    f.write(b"".join(open(name, "rb").read() for name in sorted(glob.glob("src/base/*.c")))[:60000])
subprocess.run([sys.executable, "tests/e2e/make_shard.py", text, shard, "700"], check=True)
ARGS = {"steps": STEPS, "data.train": shard, "model.vocab": 256, "model.layers": 1, "model.width": 32, "model.heads": 2, "data.seq": 32, "batch.size": 4, "batch.ramp": "2@0,4@40",
        "optim.kind": "ademamix", "data.goldfish_k": 7, "data.goldfish_h": 5, "guard.loss_z": 6, "guard.window": 8, "checkpoint.every": 3, "checkpoint.keep_last": 3,
        "data.shuffle": "documents", "threads": 1, "export": "false"}


def start(out, behind=False):
    words = [lateen, "train"] + [w for n, v in {**ARGS, "out": out, "checkpoint.async": str(behind).lower()}.items() for w in (f"--{n}", str(v))]
    return subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=open(out + ".log", "w"), stdin=subprocess.DEVNULL)


def finish(out):
    if start(out).wait(PATIENCE) != 0:
        raise RuntimeError("the run does not end: " + open(out + ".log").read()[-600:])
    return bits(out)


def bits(out):
    """What must be equal: the last checkpoint, the position in the data, and the losses."""
    m = json.load(open(sorted(glob.glob(out + "/checkpoints/step-*/manifest.json"))[-1]))
    rows = [json.loads(line) for line in open(out + "/metrics.jsonl")]
    return {**{k: m[k] for k in ("step", "rows", "tokens", "loader", "guard")}, "files": [(f["name"], f["xxh3"]) for f in m["files"]],
            "losses": [(r["step"], r["loss"], r["grad_norm"]) for r in rows if r["kind"] == "train"]}


def differs(out, want, died):
    """What differs when the run has finished; its folder is removed."""
    got = finish(out)
    shutil.rmtree(out)
    return [f"killed {died} times: {name} is {str(got[name])[:300]}, not {str(want[name])[:300]}" for name in want if got[name] != want[name]]


def killed(seed, want, took_s):
    """What is wrong after this many kills."""
    rng, out, died, wrong, attempt = random.Random(seed), f"{work.name}/{seed}", 0, [], 0
    while died < kills and not wrong:
        attempt += 1
        p = start(out, attempt % 2 == 0)
        time.sleep(took_s * (0.02 + 0.5 * rng.random()))
        died += p.poll() is None
        p.kill()
        p.wait()
        # It has finished: compare, and begin again.
        if os.path.isdir(f"{out}/checkpoints/step-{STEPS:09d}"):
            wrong = differs(out, want, died)
    return wrong or differs(out, want, died)


start_s = time.time()
whole = finish(work.name + "/whole")
whole_s = time.time() - start_s
for seed in seeds.of(first, n_seeds):
    began = time.time()
    try:
        wrong = killed(seed, whole, whole_s)
    except Exception as e:
        wrong = [repr(e)]
    seeds.done(seed, began, wrong, run=f"killed {kills} times")
    tap.check(f"seed {seed}: training killed {kills} times resumes bit for bit", not wrong, "; ".join(wrong))
work.cleanup()
sys.exit(tap.end())
