"""`lateen bench train --mesh`: ranks of this CPU alternate with one rank. Its figures are consistent, and what it cannot time is refused by name. Standard library only; TAP on stdout.

usage: bench_mesh.py LATEEN"""
import json
import math
import subprocess
import sys

from tap import Tap

lateen = sys.argv[1]
tap = Tap()


def bench(*more):
    return subprocess.run([lateen, "bench", "train", "--shape", "apertus-10m", "--batch", "1", "--seq", "32", "--steps", "1", "--rounds", "1", "--threads", "1", *more], capture_output=True, text=True)


@tap.case
def figures():
    done = bench("--mesh", "dp=2", "--zero", "3", "--json")
    r = json.loads(done.stdout) if done.returncode == 0 else {}
    near = lambda a, b: math.isclose(a, b, rel_tol=1e-4)
    good = r and near(r["ratio"], r["tokens_per_s"] / r["one_tokens_per_s"]) and near(r["linear"], r["ratio"] / 2) and near(r["tokens_per_s"], 64 / r["step_s"]) and near(r["one_tokens_per_s"], 32 / r["one_step_s"])
    tap.check("a mesh beside one rank: the figures fit together", good and 0 <= r["exposed"] <= 1 and (r["ranks"], r["batch"]) == (2, 2), done.stderr[-400:] or r)


@tap.case
def refused():
    for name, more, text in (("one rank", ("--mesh", "dp=1"), "a mesh of two or more"), ("an axis that is not there", ("--mesh", "xp=2"), "'xp=2' is not AXIS=SIZE"),
                             ("a mesh that cannot divide the model", ("--mesh", "tp=3"), "tp=3"), ("another optimiser", ("--mesh", "dp=2", "--optim", "lion"), "--mesh with --optim"), ("a peer", ("--mesh", "dp=2", "--peer", "true"), "--mesh with --peer")):
        done = bench(*more)
        tap.check(f"refused by name: {name}", done.returncode in (1, 2) and text in done.stderr, done.stderr[-300:])


sys.exit(tap.end())
