"""Runs under random faults, by seed: ranks are killed, stopped and told to end; agents are killed; a node is lost; the launcher is killed and its command given again; the newest
checkpoint is torn; the disk is full for a while (as root, on a small tmpfs). Each run must end with the bits of one that nobody disturbed, leave no process and no memory, and never
publish what it does not mean to. TAP on stdout.

usage: run_faults.py LATEEN [SEEDS [FIRST]]      each seed is a run of 1 to 4 faults"""
import glob
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time

from launched import alive, bits, checkpoints, children, command, flip_bit, memory_of, ranks_of, undisturbed, variable_of
from tap import Tap

tap = Tap()
seeds, first = int((sys.argv[2:] or [4])[0]), int((sys.argv[3:] or [1])[0])
work = tempfile.TemporaryDirectory()
MESHES = {"dp": {}, "zero": {"mesh.zero": 2}, "tp": {"mesh": "dp=2,tp=2"}, "pp": {"mesh": "pp=2,dp=2", "batch.micro": 2},
          "shrink": {"deterministic": "mesh-invariant", "batch.size": 16, "guard.replicas": 7}}
ARGS = {"steps": 90, "checkpoint.every": 15}
LIMIT_S = 120
truth = {}


def whole(mesh):
    if mesh not in truth:
        truth[mesh] = undisturbed(4, {**ARGS, **MESHES[mesh], "out": f"{work.name}/whole-{mesh}"})
    return truth[mesh]


class Run:
    """A run and its disturbances; `start` gives its command, again where the launcher has ended."""

    def __init__(self, rng, out, mesh, snapshots):
        self.rng, self.out, self.log = rng, out, open(out + ".log", "wb")
        nodes = ("--nodes", "4", "--shrink", "--back", "1") if mesh == "shrink" else ("--nodes", "2", *rng.choice(((), ("--spares", "1", "--back", "1"))))
        more = ("--retries", "20", *rng.choice(((), ("--keep",))), *((*nodes, "--snapshot", str(rng.randrange(1, 12))) if snapshots else ()))
        self.words = command(4, {**ARGS, **MESHES[mesh], "out": out}, more)
        self.roots = set()
        self.seen = set()
        self.start()

    def start(self):
        self.p = subprocess.Popen(self.words, stdout=self.log, stderr=self.log, stdin=subprocess.DEVNULL)

    def ranks(self):
        found = ranks_of(self.p.pid)
        self.seen |= set(children(self.p.pid))
        self.roots |= {root for c in found.values() if (root := memory_of(c))}
        return found

    def agents(self):
        return [c for c in children(self.p.pid) if c not in ranks_of(self.p.pid).values()]

    def text(self):
        return open(self.out + ".log").read()


def agent_node(pid):
    """The number of an agent's node."""
    try:
        words = open(f"/proc/{pid}/cmdline").read().split("\0")
        return words[words.index("--node") + 1]
    except (OSError, ValueError):
        return None


def hit(pid, number):
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass


def rank_by(number):
    def fault(run):
        ranks = run.ranks()
        if ranks:
            hit(ranks[run.rng.choice(sorted(ranks))], number)
    return fault


def kill_agent(run):
    for c in run.agents()[:1]:
        hit(c, signal.SIGKILL)


def lose_node(run):
    """Its ranks, its agent (not always: then the memory alone is lost) and its memory."""
    on = {c: variable_of(c, "LATEEN_NODE") for c in run.ranks().values()}
    nodes = sorted({node for node in on.values() if node})
    if not nodes:
        return
    node = run.rng.choice(nodes)
    for c in [c for c in on if on[c] == node] + [c for c in run.agents() if run.rng.random() < 0.8 and agent_node(c) == node]:
        hit(c, signal.SIGKILL)
    for root in run.roots:
        shutil.rmtree(f"{root}/node-{node}", ignore_errors=True)


def kill_launcher(run):
    run.ranks()
    run.p.kill()
    run.p.wait()
    run.start()


def tear(run):
    """The newest checkpoint loses its last byte or has one bit flipped, and the launcher is killed. Not the only one: a run whose checkpoints are all broken says so, and stops."""
    run.ranks()
    run.p.kill()
    run.p.wait()
    for folder in checkpoints(run.out)[1:][-1:]:
        path = run.rng.choice(sorted(glob.glob(folder + "/*.safetensors")))
        size = os.path.getsize(path)
        if run.rng.random() < 0.5:
            os.truncate(path, size - 1)
        else:
            flip_bit(path, run.rng.randrange(size), run.rng.randrange(8))
    run.start()


def fill_disk(run):
    filler = run.out + "/filler"
    try:
        with open(filler, "wb") as f:
            while True:
                f.write(bytes(1 << 16))
                f.flush()
    except OSError:
        pass
    time.sleep(run.rng.random() * 3)
    os.remove(filler)


FAULTS = {"kill": rank_by(signal.SIGKILL), "stop": rank_by(signal.SIGSTOP), "term": rank_by(signal.SIGTERM), "crash": rank_by(signal.SIGSEGV), "agent": kill_agent, "node": lose_node,
          "launcher": kill_launcher, "torn": tear}


def small_disk(out):
    """The run folder on a tmpfs that a few checkpoints fill; False: not as this user."""
    os.mkdir(out)
    return subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", out], capture_output=True).returncode == 0


def one(seed):
    rng = random.Random(seed)
    mesh, snapshots = rng.choice(sorted(MESHES)), rng.random() < 0.75
    out = f"{work.name}/{seed}"
    disk = rng.random() < 0.2 and small_disk(out)
    names = [rng.choice(sorted(FAULTS)) for _ in range(rng.randrange(1, 5))] + (["full disk"] if disk else [])
    name = f"seed {seed}: {mesh}, {'snapshots' if snapshots else 'disk alone'}: {', '.join(names)}"
    want, wrong = whole(mesh), []
    run = Run(rng, out, mesh, snapshots)
    until = time.time() + LIMIT_S
    try:
        for fault in names:
            time.sleep(rng.random() * 1.5)
            (fill_disk if fault == "full disk" else FAULTS[fault])(run)
        for again in range(4):  # A fault may end the launcher, too; then the same command goes on.
            while run.p.poll() is None and time.time() < until:
                run.ranks()
                time.sleep(0.05)
            if run.p.returncode == 0 or time.time() >= until:
                break
            run.start()
        if run.p.returncode != 0:
            wrong.append(f"status {run.p.returncode}: {run.text()[-700:]}")
        elif bits(out) != want:
            wrong.append("other bits")
        time.sleep(0.3)
        left = [c for c in run.seen if alive(c)]
        wrong += [f"processes {left} are left"] if left else []
        wrong += [f"{r} is left" for r in run.roots if os.path.exists(r) and open(r + "/launcher").read().strip() == str(run.p.pid)]
    finally:
        run.p.kill()
        run.p.wait()
        if disk:
            subprocess.run(["umount", out])
    tap.check(name, not wrong, "; ".join(wrong))
    shutil.rmtree(out, ignore_errors=True)


for seed in range(first, first + seeds):
    try:
        one(seed)
    except Exception as e:
        tap.check(f"seed {seed}", False, repr(e))
work.cleanup()
sys.exit(tap.end())
