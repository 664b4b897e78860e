#!/usr/bin/env python3
"""`lateen submit` under a real Slurm of four nodes: a job starts on all of them, is preempted, continues with one rank on the remaining node, grows again when the others are idle, and is cancelled; resumed, it ends with the bits of an undisturbed run. slurm_submit.py LATEEN. Skipped without Debian's slurm-wlm and libpmix-dev (whose link
the plugin of srun opens); needs root, as slurmd does."""
import glob
import json
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
if not slurm.is_here() or not glob.glob("/usr/lib/*/pmix2/lib/libpmix.so"):
    tap.skip("Slurm", "needs root, and Debian's slurm-wlm and libpmix-dev")
    sys.exit(tap.end())
lateen, scratch = os.path.abspath(sys.argv[1]), tempfile.mkdtemp()
NODES = ["n1", "n2", "n3", "n4"]
# Nodes that are really one machine would find each other's shared memory.
os.environ["OMPI_MCA_btl"] = "self,tcp"
NAME = "it's a \"name\" \\ #1"

cluster = slurm.Slurm(scratch, NODES, gpus=1, more=f"""PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
PartitionName=DEFAULT GraceTime=60 Nodes={",".join(NODES)}
PartitionName=urgent PriorityTier=10 PreemptMode=off
""")
folder = f"{scratch}/it's here"
os.makedirs(folder)
with open(f"{folder}/a \"recipe\".yaml", "w") as f:
    f.write(f"""data.train: {os.path.abspath("tests/golden/train/tokens")}
device: cpu
threads: 1
model: {{layers: 2, width: 64, heads: 4, vocab: 300}}
data.seq: 32
batch: {{size: 8, groups: 8}}
deterministic: mesh-invariant
lr.schedule: constant
steps: 100000000
log.every: 1
""")

def run(*words, cwd=folder):
    return subprocess.run(words, capture_output=True, text=True, timeout=600, cwd=cwd)

# srun --wait=600 may keep the job for that long after its first rank ended.
def until(what, seconds=660):
    end = time.time() + seconds
    while not what() and time.time() < end:
        time.sleep(0.5)
    return what()

def state():
    r = run("squeue", "--noheader", "--format", "%T|%D|%j")
    return {line.split("|", 2)[2]: line.split("|")[:2] for line in r.stdout.splitlines()}

def log():
    try:
        return open(f"{folder}/log.txt").read()
    except OSError:
        return ""

def meshes():
    return [line.split()[-1] for line in log().splitlines() if line.startswith("lateen submit: training on")]

def steps(run_folder):
    return [r["step"] for r in map(json.loads, open(f"{run_folder}/metrics.jsonl")) if r["kind"] == "train"]

def submit(*more):
    return run(lateen, "submit", "a \"recipe\".yaml", "--tenant", "physics", "--gpus", "1..4", "--node-gpus", "1", "--cpus", "1", "--partition", "debug", "--no-check", "--log", "log.txt", *more)

try:
    cluster.start()
    check("four nodes are idle", until(lambda: run("sinfo", "--noheader", "--states=idle", "--partition=debug", "--format=%D").stdout.strip() == "4"), run("sinfo").stdout)
    done = submit("--name", NAME, "--grow-min", "0.05", "--", "--out", "run's")
    check("the job is submitted; three nodes would not divide the batch", done.returncode == 0 and "Submitted batch job" in done.stdout and "with 3 GPUs" in done.stderr, done.stderr)
    check("its name has every character", until(lambda: NAME in state()), state())
    check("it trains on four nodes", until(lambda: meshes() == ["dp=4"] and os.path.exists(f"{folder}/run's/metrics.jsonl") and len(steps(f"{folder}/run's")) > 20), log()[-800:])
    run("sbatch", "--partition=urgent", "--job-name=urgent", "--nodes=3", "--gpus-per-node=1", "--output=/dev/null", "--wrap", "sleep 600")
    check("an urgent job preempts it: it saves, and continues with one rank", until(lambda: meshes() == ["dp=4", "dp=1"]), (meshes(), state(), log()[-800:]))
    check("on the node that is left", until(lambda: state().get(NAME) == ["RUNNING", "1"] and state().get("urgent") == ["RUNNING", "3"]), state())
    run("scancel", "--name=urgent")
    check("when the others are idle, it grows", until(lambda: meshes() == ["dp=4", "dp=1", "dp=4"]), (meshes(), log()[-800:]))
    grown = steps(f"{folder}/run's")[-1]
    until(lambda: steps(f"{folder}/run's")[-1] > grown + 20)
    run("scancel", f"--name={NAME}")
    check("cancelled, it saves, ends and is not started again", until(lambda: state() == {}), (state(), log()[-800:]))
    last = str(steps(f"{folder}/run's")[-1] + 5)
    for out in ("run's", "alone"):
        alone = run(lateen, "train", "a \"recipe\".yaml", "--out", out, "--steps", last)
    check("no step is lost, and none is made twice", steps(f"{folder}/run's") == list(range(1, int(last) + 1)), (len(steps(f"{folder}/run's")), last, log()[-800:]))
    bits = [open(f"{folder}/{d}/model/model.safetensors", "rb").read() for d in ("run's", "alone")]
    check("with the bits of an undisturbed run on one rank", bits[0] == bits[1], alone.stderr[-500:])
except Exception as e:
    check("nothing unexpected", False, repr(e))
finally:
    cluster.end()
    if not os.environ.get("KEEP"):
        shutil.rmtree(scratch, ignore_errors=True)
sys.exit(tap.end())
