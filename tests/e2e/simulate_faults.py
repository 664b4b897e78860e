"""`lateen simulate` reproduces what faults cost: faults are injected into a run at random times (a rank is killed or stopped), the simulation draws from every second
recovery, and what a fault costs in it is compared with the other half by a two-sample Kolmogorov-Smirnov test. It must fail if the rule is broken: a phase left out, the repeated steps left out, one mean instead of the distribution. TAP on stdout.

usage: simulate_faults.py LATEEN                               the recoveries in tests/golden/plan/recoveries.jsonl
       simulate_faults.py LATEEN FAULTS [SEED [RECORD]]        this many faults of a real run; RECORD: write its recoveries there.
                                                               FAULT_SEEDS and FAULT_RESULTS: seeds.py"""
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time

import seeds
from launched import begin, events, ranks_of
from tap import Tap

tap = Tap()
work = tempfile.TemporaryDirectory()
lateen = sys.argv[1]
# Steps between checkpoints; seconds that a run trains until the next fault, on average.
EVERY, MEAN_S = 5, 3.0
GOLDEN = "tests/golden/plan/recoveries.jsonl"


def inject(n, seed):
    """The events of a run with n faults. The times are exponential, so a fault may come at any
    step, also at a repeated one."""
    rng, out = random.Random(seed), f"{work.name}/run-{seed}"
    p, _ = begin(2, {"steps": 100000000, "checkpoint.every": EVERY, "model.width": 128, "model.heads": 4, "data.seq": 64, "batch.size": 8, "out": out}, ("--retries", "1000000"))
    # A full pipe would stop the launcher.
    threading.Thread(target=p.stdout.read, daemon=True).start()
    try:
        for done in range(1, n + 1):
            time.sleep(rng.expovariate(1 / MEAN_S))
            ranks = ranks_of(p.pid)
            os.kill(ranks[rng.randrange(2)], signal.SIGSTOP if rng.random() < 0.5 else signal.SIGKILL)
            until = time.time() + 120
            # From here on it trains, and another fault may come.
            while sum(e["phase"] == "load" for e in events(out, "phase")) < done:
                assert time.time() < until and p.poll() is None, f"no recovery from fault {done}"
                time.sleep(0.02)
        open(out + "/exit", "w").close()
        p.wait(timeout=60)
    finally:
        p.kill()
    return events(out)


def recoveries(lines):
    """The lines of each recovery, which begin with its `detect`."""
    found, now = [], []
    for e in lines:
        now = [] if e.get("phase") == "detect" else now
        if e["event"] in ("phase", "fault", "recovered"):
            now.append({k: e[k] for k in ("event", "kind", "phase", "seconds", "steps_lost") if k in e})
        if e["event"] == "recovered":
            found.append(now)
    return found


def write(path, found):
    with open(path, "w") as f:
        f.writelines(json.dumps(e, separators=(",", ":")) + "\n" for one in found for e in one)
    return path


def simulate(first, second, every=EVERY):
    """The result of the test: the status, and what was printed."""
    words = [lateen, "simulate", "--json", "--recoveries", write(work.name + "/first", first), "--compare", write(work.name + "/second", second), "--every", str(every), "--mtbf",
             repr(MEAN_S / 3600), "--save", "0", "--days", "0.01", "--runs", "100"]
    done = subprocess.run(words, capture_output=True, text=True)
    return done.returncode, json.loads(done.stdout) if done.stdout else done.stderr


def changed(found, change):
    return [[change(dict(e)) for e in one] for one in found]


def without(phase):
    """What a simulation without this phase would read."""
    return lambda e: {**e, "seconds": 0.0} if e.get("phase") == phase else e


def mean_of(found):
    """The means of the phases in place of each."""
    means = {p: statistics.mean(e["seconds"] for one in found for e in one if e.get("phase") == p) for p in [e["phase"] for e in found[0] if "phase" in e]}
    return changed(found, lambda e: {**e, "seconds": means[e["phase"]]} if e.get("phase") not in (None, "recompute") else e)


def reproduced(found, name=""):
    """The simulation draws from each half of the recoveries; returns what is wrong with that."""
    wrong = []
    for half, first, second in (("one half", found[::2], found[1::2]), ("the other half", found[1::2], found[::2])):
        status, told = simulate(first, second)
        ok = status == 0 and told["ks_p"] >= 0.01
        wrong += [] if ok else [str(told)]
        tap.check(f"{name}{len(found)} faults: the simulation draws from {half} of the recoveries and reproduces the rest", ok, told)
        print(f"# {told}")
    return wrong


for seed in seeds.of(int((sys.argv[3:] or [1])[0]), 1) if len(sys.argv) > 2 else []:
    began = time.time()
    found = recoveries(inject(int(sys.argv[2]), seed))
    seeds.done(seed, began, reproduced(found, f"seed {seed}: "), run=f"{len(found)} faults, simulated")
    if sys.argv[4:]:
        write(sys.argv[4], found)
if len(sys.argv) == 2:
    found = recoveries([json.loads(line) for line in open(GOLDEN)])
    reproduced(found)
halves = found[::2], found[1::2]
broken = [("without the time until a fault is noticed", changed(halves[0], without("detect")), EVERY), ("with means instead of the distribution", mean_of(halves[0]), EVERY),
          ("with saves ten times as rare", halves[0], 10 * EVERY)]
# With few faults on a busy machine these may not be significant.
for name, first, every in broken if len(sys.argv) == 2 else []:
    status, told = simulate(first, halves[1], every)
    tap.check(f"{name}, it does not, and says so by its status", status == 1 and "ks_p" in told and told["ks_p"] < 0.01, told)
lacking = [[e for e in one if e.get("phase") != "load"] for one in halves[0]]
status, told = simulate(lacking, halves[1])
tap.check("a recovery without one of its phases is refused by name", status == 1 and "the recovery lacks phase 'load'" in told, told)
work.cleanup()
sys.exit(tap.end())
