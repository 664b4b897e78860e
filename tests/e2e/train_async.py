"""Checkpoints that are written in the background (checkpoint.async), on a disk that is slow to sync (tests/inject). Standard library only; needs a C compiler; TAP on stdout.

usage: train_async.py LATEEN"""
import glob
import hashlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time

from tap import Tap

lateen = sys.argv[1]
tap, work = Tap(), tempfile.mkdtemp()
library = work + "/inject.so"
SYNC_MS = 60
SMALL = {"data.train": "tests/golden/train/tokens", "model.family": "llama", "model.layers": 2, "model.width": 32, "model.heads": 2, "model.vocab": 300, "data.seq": 16, "batch.size": 8,
         "threads": 1, "lr.schedule": "constant", "lr.warmup": 0, "steps": 12, "checkpoint.every": 4, "checkpoint.keep_last": 9, "export": "false"}


def command(out, ranks, changed):
    args = {**SMALL, "out": out, **{n.replace("_", ".", 1): v for n, v in changed.items()}}
    return [lateen] + (["launch", "--ranks", str(ranks)] if ranks > 1 else []) + ["train"] + [w for n, v in args.items() for w in (f"--{n}", str(v))]


def settings(sync_ms):
    return {**os.environ, "OMP_NUM_THREADS": "1", **({"LD_PRELOAD": library, "INJECT_SYNC_MS": str(sync_ms)} if sync_ms else {})}


def train(name, ranks=1, slow=False, **changed):
    out = f"{work}/{name}"
    return subprocess.run(command(out, ranks, changed), capture_output=True, text=True, timeout=120, env=settings(SYNC_MS if slow else 0)), out


def rows(out, kind="train"):
    return [r for r in map(json.loads, open(out + "/metrics.jsonl")) if r["kind"] == kind]


def steps(out):
    return [int(os.path.basename(p)[5:]) for p in sorted(glob.glob(out + "/checkpoints/step-?????????"))]


def bits(out, step=12):
    """Digests of all numbers of a checkpoint, and its position in the data."""
    folder = f"{out}/checkpoints/step-{step:09}"
    manifest = json.load(open(folder + "/manifest.json"))
    files = {os.path.basename(p): hashlib.sha256(open(p, "rb").read()).hexdigest() for p in glob.glob(folder + "/*.safetensors")}
    return files, manifest["loader"], manifest["guard"], manifest["step"], [(r["step"], r["loss"], r["grad_norm"]) for r in rows(out)]


def kill_behind(name, ranks, **changed):
    """Kill the run when it is two steps past step 8, whose checkpoint is being written; run it
    again."""
    out = f"{work}/{name}"
    process = subprocess.Popen(command(out, ranks, changed), env=settings(5 * SYNC_MS), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    until = time.monotonic() + 60
    while process.poll() is None and time.monotonic() < until:
        try:
            if any(r["step"] == 10 for r in rows(out)) and glob.glob(f"{out}/checkpoints/step-000000008.*tmp"):
                break
        except (OSError, ValueError):
            pass
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    left = steps(out)
    done, _ = train(name, ranks, **changed)
    return left, done, out


def slow_disk():
    behind, out = train("behind", slow=True, checkpoint_async="true")
    waits, plain = train("waits", slow=True)
    gaps = [rows(o)[4]["time_s"] - rows(o)[3]["time_s"] for o in (out, plain)]
    tap.check("both runs end", behind.returncode == waits.returncode == 0, behind.stderr[-300:] + waits.stderr[-300:])
    tap.check("a step does not wait for the disk", gaps[0] < 0.5 * gaps[1] and gaps[1] > 4 * SYNC_MS / 1e3, gaps)
    tap.check("all checkpoints are there", steps(out) == steps(plain) == [4, 8, 12], (steps(out), steps(plain)))
    tap.check("they have the bits of saves that wait", all(bits(out, s)[:4] == bits(plain, s)[:4] for s in (4, 8, 12)) and bits(out) == bits(plain))
    memory = [rows(o, "start")[0]["memory"] for o in (out, plain)]
    parameters = rows(out, "start")[0]["parameters"]
    tap.check("the copy is announced: master weights and two moments", memory[0].get("copy for checkpoints") == 12 * parameters and "copy for checkpoints" not in memory[1], memory)
    done, every = train("every", slow=True, steps=4, checkpoint_every=1, checkpoint_async="true")
    tap.check("a save waits for the previous one", done.returncode == 0 and steps(every) == [1, 2, 3, 4] and bits(every, 4)[0] == bits(plain, 4)[0], done.stderr[-300:])


def killed():
    _, whole = train("whole")
    left, done, out = kill_behind("killed", 1, checkpoint_async="true")
    tap.check("killed while a checkpoint is written: the previous one counts", left == [4], left)
    tap.check("the run goes on from there, bit for bit", done.returncode == 0 and bits(out) == bits(whole), done.stderr[-300:])
    _, whole = train("ranks-whole", ranks=2, mesh_zero=2)
    left, done, out = kill_behind("ranks-killed", 2, mesh_zero=2, checkpoint_async="true")
    tap.check("two ranks with ZeRO 2: the same", left == [4] and done.returncode == 0 and bits(out) == bits(whole), (left, done.stderr[-300:]))


def disk_full():
    out = f"{work}/full"
    os.makedirs(out)
    open(out + "/checkpoints", "w").close()  # No folder can be created here.
    done, _ = train("full", checkpoint_async="true")
    tap.check("a thread that cannot write ends the run and says why", done.returncode == 1 and f"{out}/checkpoints" in done.stderr, done.stderr[-300:])


subprocess.run([os.environ.get("CC", "cc").split()[-1], "-shared", "-fPIC", "-O1", "-o", library, "tests/inject/inject.c", "-ldl"], check=True)
for case in (slow_disk, killed, disk_full):
    tap.case(case)
sys.exit(tap.end())
