"""Time lost to faults, side by side on this machine: with snapshots in memory and relaunch (`lateen launch --nodes 2 --retries N`), with relaunch from disk checkpoints, and with
`scontrol requeue` from disk checkpoints under a real Slurm (a controller and a slurmd on this machine; as root, with Debian's slurm-wlm; otherwise this row is omitted). The same faults in
each: rank 1 of 2 is killed after the same steps. Prints a table in Markdown.

usage: python3 bench/recovery.py LATEEN [FAULTS [SEED]]

The lost time is that from the kill to the end of the interrupted step's successor; it includes the steps that are repeated."""
import json
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "tests", "e2e"))
import slurm  # noqa: E402

lateen = os.path.abspath(sys.argv[1])
n_faults, seed = int((sys.argv[2:] or [5])[0]), int((sys.argv[3:] or [1])[0])
STEPS, SAVE, SNAPSHOT = 60 * n_faults, 50, 10
work = tempfile.mkdtemp()
rng = random.Random(seed)
FAULT_STEPS = [60 * i + rng.randrange(5, 55) for i in range(n_faults)]
TRAIN = ["train", "--data.train", os.path.abspath("tests/golden/train/tokens"), "--export", "false", "--model.layers", "2", "--model.width", "192", "--model.heads", "4", "--model.vocab", "300",
         "--data.seq", "64", "--batch.size", "8", "--lr.schedule", "constant", "--log.every", "1", "--threads", "1", "--steps", str(STEPS), "--checkpoint.every", str(SAVE)]


def last_step(out):
    try:
        lines = open(out + "/metrics.jsonl", "rb").read().splitlines()
    except OSError:
        return -1
    for line in reversed(lines):
        try:
            r = json.loads(line)
        except ValueError:
            continue
        if r.get("kind") == "train":
            return r["step"]
    return -1


def rank_of_run(out, rank):
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            if out.encode() in open(f"/proc/{pid}/cmdline", "rb").read() and f"LATEEN_RANK={rank}\0".encode() in open(f"/proc/{pid}/environ", "rb").read():
                return int(pid)
        except OSError:
            pass
    return None


def disturb(out, ended):
    """Cause the faults; return the seconds that each one took."""
    lost = []
    for step in FAULT_STEPS:
        while last_step(out) < step or rank_of_run(out, 1) is None:
            assert not ended(), f"ended before step {step}"
            time.sleep(0.005)
        at = last_step(out)
        os.kill(rank_of_run(out, 1), signal.SIGKILL)
        start = time.time()
        time.sleep(0.2)  # The ranks may still be writing lines.
        at = max(at, last_step(out))
        while True:  # The lines after the loaded step are dropped and written again.
            now = last_step(out)
            if now > at and rank_of_run(out, 1):
                break
            assert not ended(), "ended without recovering"
            time.sleep(0.005)
        lost.append(time.time() - start)
    return lost


def launched(name, more):
    out = f"{work}/{name}"
    p = subprocess.Popen([lateen, "launch", "--ranks", "2", *more, *TRAIN, "--out", out], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL)
    start = time.time()
    try:
        lost = disturb(out, lambda: p.poll() is not None)
        assert p.wait(timeout=600) == 0
    finally:
        p.kill()
    return lost, time.time() - start


def requeued():
    out, script = f"{work}/requeue", f"{work}/job.sh"
    cluster = slurm.Slurm(work, ["n1"])
    cluster.start()
    try:
        open(script, "w").write("#!/bin/sh\n" + " ".join([lateen, "launch", "--ranks", "2", *TRAIN, "--out", out]) + "\n[ $? = 76 ] && scontrol requeue $SLURM_JOB_ID\n")
        done = subprocess.run(["sbatch", "--requeue", "--output=/dev/null", script], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        start = time.time()
        lost = disturb(out, lambda: time.time() - start > 900)
        while last_step(out) < STEPS:
            time.sleep(0.05)
        return lost, time.time() - start
    finally:
        cluster.end()


rows = [("snapshots in memory every %d steps, survivors keep their processes" % SNAPSHOT, lambda: launched("kept", ("--nodes", "2", "--snapshot", str(SNAPSHOT), "--retries", "99", "--keep"))),
        ("snapshots in memory every %d steps, relaunch" % SNAPSHOT, lambda: launched("memory", ("--nodes", "2", "--snapshot", str(SNAPSHOT), "--retries", "99"))),
        ("checkpoints on disk every %d steps, relaunch" % SAVE, lambda: launched("disk", ("--retries", "99")))]
if slurm.is_here():
    rows.append(("checkpoints on disk every %d steps, `scontrol requeue`" % SAVE, requeued))
try:
    print(f"{n_faults} faults after steps {FAULT_STEPS} of {STEPS}, seed {seed}; load before: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores\n")
    print("| after a fault | lost, median | mean | most | whole run |\n| --- | --- | --- | --- | --- |")
    for name, run in rows:
        lost, total = run()
        print(f"| {name} | {statistics.median(lost):.1f} s | {statistics.mean(lost):.1f} s | {max(lost):.1f} s | {total:.0f} s |", flush=True)
    medians = {}
    for name in ("kept", "memory"):
        phases = {}
        for e in map(json.loads, open(f"{work}/{name}/events.jsonl")):
            if e["event"] == "phase":
                phases.setdefault(e["phase"], []).append(e["seconds"])
        medians[name] = ", ".join(f"{p} {statistics.median(v):.2f} s" for p, v in phases.items())
    stalls = [r["stall_s"] for r in map(json.loads, open(f"{work}/memory/metrics.jsonl")) if r["kind"] == "snapshot"]
    steps = [r["step_s"] for r in map(json.loads, open(f"{work}/memory/metrics.jsonl")) if r["kind"] == "train"]
    print(f"\nPhases, medians: survivors keep their processes: {medians['kept']}; relaunch: {medians['memory']}")
    print(f"A snapshot stalled the run for {statistics.median(stalls) * 1e3:.0f} ms (median), a step took {statistics.median(steps) * 1e3:.0f} ms; load after: {os.getloadavg()[0]:.1f}")
finally:
    shutil.rmtree(work, ignore_errors=True)
