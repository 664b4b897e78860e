#!/usr/bin/env python3
"""A job of `lateen submit` that is cancelled does not queue again under a real Slurm, even if the signal of scancel reaches its ranks but not yet its shell.
slurm_cancel.py LATEEN. Skipped without Debian's slurm-wlm; needs root, as slurmd does."""
import os
import shutil
import subprocess
import sys
import tempfile
import time

import slurm
from tap import Tap

tap = Tap()
check = tap.check
if not slurm.is_here():
    tap.skip("Slurm", "needs root, and Debian's slurm-wlm")
    sys.exit(tap.end())
lateen, scratch = os.path.abspath(sys.argv[1]), tempfile.mkdtemp()
cluster = slurm.Slurm(scratch, ["n1"])
HEARS, MISSES = "trap 'ended=1' TERM", "trap '' TERM"
with open(f"{scratch}/r.yaml", "w") as f:
    f.write(f"""data.train: {os.path.abspath("tests/golden/train/tokens")}
device: cpu
threads: 1
model: {{layers: 2, width: 64, heads: 4, vocab: 300}}
data.seq: 32
batch.size: 8
lr.schedule: constant
steps: 100000000
log.every: 1
""")


def run(*words):
    return subprocess.run(words, capture_output=True, text=True, timeout=120, cwd=scratch)


def until(what, seconds=120):
    end = time.time() + seconds
    while not (got := what()) and time.time() < end:
        time.sleep(0.2)
    return got


def read(name):
    try:
        with open(f"{scratch}/{name}") as f:
            return f.read()
    except OSError:
        return ""


def case(name, trap):
    script = run(lateen, "submit", "r.yaml", "--tenant", "physics", "--gpus", "1", "--node-gpus", "1", "--cpus", "1", "--no-ask-gpus", "--no-check", "--name", name, "--log", f"{name}.log",
                 "--dry-run", "--", "--out", name).stdout.replace(HEARS, trap)
    with open(f"{scratch}/{name}.sh", "w") as f:
        f.write(script)
    run("sbatch", f"{name}.sh")
    check(f"{name}: the job trains", trap in script and until(lambda: read(f"{name}/metrics.jsonl").count("\n") > 20), read(f"{name}.log")[-800:])
    run("scancel", f"--name={name}")
    check(f"{name}: cancelled, its rank saves", until(lambda: "everything is saved" in read(f"{name}.log")), read(f"{name}.log")[-800:])
    # A job that queues again is PENDING for seconds.
    states = []
    until(lambda: states.append(run("squeue", "--noheader", "--states=all", f"--name={name}", "--format=%T").stdout.strip()) or states[-1] in ("CANCELLED", "PENDING", "RUNNING"))
    time.sleep(3)
    last = run("squeue", "--noheader", "--states=all", f"--name={name}", "--format=%T").stdout.strip()
    check(f"{name}: and it does not come again", last == "CANCELLED" and "queues again" not in read(f"{name}.log"), (states, last, read(f"{name}.log")[-800:]))
    run("scancel", f"--name={name}")


try:
    cluster.start()
    case("hears", HEARS)
    case("misses", MISSES)
except Exception as e:
    check("nothing unexpected", False, repr(e))
finally:
    cluster.end()
    shutil.rmtree(scratch, ignore_errors=True)
sys.exit(tap.end())
