"""Runs under random faults, by seed. Each run must end with the bits of one that nobody disturbed, leave no process and no memory, and never publish what it does not mean to. TAP on stdout.

    kill, stop, crash, term   a rank gets SIGKILL, SIGSTOP, SIGSEGV, SIGTERM
    slow                      a rank is stopped for 40 ms again and again
    flip                      a bit of a rank's weights flips (runs with guard.replicas)
    agent, node               an agent is killed; a node: its ranks, mostly its agent, and its memory
    launcher, torn            the launcher, which is the controller, is killed and its command given again; torn: the newest checkpoint is damaged meanwhile
    partition                 for a while no packet goes between launcher, ranks and agents (root: the run has a network of its own)
    full disk                 for a while the disk is full (root: the run folder is a small tmpfs)
    slurmd                    the slurmd of the job's node is killed (root and Debian's slurm-wlm: slurm_orphan.py)

usage: run_faults.py LATEEN [SEEDS [FIRST]] [--seconds S] [--events FILE] [--device cuda]
       run_faults.py --table FILE

Each seed is a run of 1 to 5 faults; a fault that finds nothing to disturb, because the run is over, does not count. FAULT_SEEDS and FAULT_RESULTS: seeds.py; --table makes a table in Markdown of the file of
results. --seconds: begin no further seed after so long. --events: append the runs' events.jsonl, as `lateen simulate --recoveries` reads them. --device cuda: on four
GPUs, where replicas are compared, too, but no bit of the weights is flipped, because they are not in the memory of the process."""
import argparse
import glob
import json
import os
import random
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time


def table(path):
    """A summary of the lines of a results file."""
    runs = [r for r in map(json.loads, open(path)) if "faults" in r]
    faults = [f for r in runs for f in r["faults"]]
    back = [b for r in runs for b in r["recoveries"]]
    bad = [r["seed"] for r in runs if r["wrong"]]
    print(f"{len(runs)} runs, {len(faults)} faults, {len(runs) - len(bad)} runs with the bits of a run without faults{f'; wrong: seeds {bad}' if bad else ''}; "
          f"load {min(r['load'] for r in runs):.1f} to {max(r['load'] for r in runs):.1f}\n")
    print("| fault | times |\n| --- | --- |")
    for name in sorted(set(faults), key=lambda f: (-faults.count(f), f)):
        print(f"| {name} | {faults.count(name)} |")
    print("\n| the launcher saw | recoveries | lost, median | 9 of 10 under | most | steps made again, median |\n| --- | --- | --- | --- | --- | --- |")
    for kind in sorted({b["kind"] for b in back}, key=lambda k: -sum(b["kind"] == k for b in back)):
        of = [b for b in back if b["kind"] == kind]
        lost = sorted(b["seconds"] for b in of)
        print(f"| {kind} | {len(of)} | {statistics.median(lost):.2f} s | {lost[(9 * len(lost) - 1) // 10]:.2f} s | {lost[-1]:.2f} s | {statistics.median(b['steps_lost'] for b in of):.0f} |")


if sys.argv[1:2] == ["--table"]:
    table(sys.argv[2])
    sys.exit(0)

import seeds  # noqa: E402
import slurm  # noqa: E402
from launched import (SILENT, UNREAD, alive, bits, checkpoints, children, command, events, flip_bit, flip_row, memory_of, rank_of, ranks_of, undisturbed, unread_row,  # noqa: E402
                      variable_of, words_of)
from tap import Tap  # noqa: E402

parser = argparse.ArgumentParser()
parser.add_argument("lateen")
parser.add_argument("seeds", nargs="?", type=int, default=4)
parser.add_argument("first", nargs="?", type=int, default=1)
parser.add_argument("--seconds", type=float, default=float("inf"))
parser.add_argument("--events")
parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
options = parser.parse_args()
tap = Tap()
work = tempfile.TemporaryDirectory()
MESHES = {"dp": {"guard.replicas": 5, **UNREAD}, "zero": {"mesh.zero": 2}, "tp": {"mesh": "dp=2,tp=2"}, "pp": {"mesh": "pp=2,dp=2", "batch.micro": 2},
          "shrink": {"deterministic": "mesh-invariant", "batch.size": 16, "guard.replicas": 7, **UNREAD}}
ARGS = {"steps": 400, "checkpoint.every": 40, "device": options.device}
# A run that takes no new step for this long is stuck; a slow machine is not a fault.
STUCK_S = 180
SLURM_SHARE = 0.02
OWN_NETWORK = ["unshare", "--net", "sh", "-c", 'ip link set lo up && exec "$@"', "sh"]
has_networks = subprocess.run([*OWN_NETWORK, "true"], capture_output=True).returncode == 0 if shutil.which("unshare") and shutil.which("nsenter") and shutil.which("ip") else False
truth = {}


def whole(mesh):
    """The bits of a run without faults, and a row of its embedding that no token reads."""
    if mesh not in truth:
        out = f"{work.name}/whole-{mesh}"
        truth[mesh] = undisturbed(4, {**ARGS, **MESHES[mesh], "out": out}), unread_row(out) if "guard.replicas" in MESHES[mesh] else None
    return truth[mesh]


class Run:
    """A run and its faults; `start` runs its command, again if the launcher has ended."""

    def __init__(self, rng, out, mesh, snapshots):
        self.rng, self.out, self.mesh, self.log = rng, out, mesh, open(out + ".log", "wb")
        self.network = has_networks and rng.random() < 0.5
        nodes = ("--nodes", "4", "--shrink", "--back", "1") if mesh == "shrink" else ("--nodes", "2", *rng.choice(((), ("--spares", "1", "--back", "1"))))
        more = ("--retries", "20", *rng.choice(((), ("--keep",))), *((*nodes, "--snapshot", str(rng.randrange(1, 12))) if snapshots else ()))
        self.words = command(4, {**ARGS, **MESHES[mesh], "out": out}, more)
        self.words = [*OWN_NETWORK, *self.words] if self.network else self.words
        self.roots = set()
        self.seen = set()
        self.flipped = False
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

    def step(self):
        """The newest step of the run; -1: there is none."""
        try:
            with open(self.out + "/metrics.jsonl", "rb") as f:
                f.seek(max(0, os.path.getsize(f.name) - 4096))
                return max([int(n) for n in re.findall(rb'^{"kind":"train","step":([0-9]+)', f.read(), re.M)], default=-1)
        except OSError:
            return -1

    def wait_for_step(self, step):
        """A fault comes when the run has got this far, however fast the machine is; it may find
        the run at its end, or one that does not advance."""
        until = time.time() + 60
        while self.step() < step and self.p.poll() is None and time.time() < until:
            time.sleep(0.003)

    def states(self):
        """What its processes wait for."""
        told = []
        for pid in [self.p.pid, *children(self.p.pid)]:
            try:
                told.append(f"{pid} (rank {rank_of(pid)}) {open(f'/proc/{pid}/stat').read().rsplit(')', 1)[1].split()[0]} {open(f'/proc/{pid}/wchan').read()}")
            except OSError:
                pass
        return "; ".join(told)

    def text(self):
        return open(self.out + ".log").read()


def agent_node(pid):
    """The number of an agent's node."""
    words = words_of(pid)
    return words[words.index("--node") + 1] if "--node" in words else None


def hit(pid, number):
    """Send a signal; was there such a process?"""
    try:
        os.kill(pid, number)
        return True
    except ProcessLookupError:
        return False


def any_rank(run):
    """The process of a rank; None: there is none."""
    ranks = run.ranks()
    return ranks[run.rng.choice(sorted(ranks))] if ranks else None


def rank_by(number):
    def fault(run):
        pid = any_rank(run)
        return pid is not None and hit(pid, number)
    return fault


def slow(run):
    pid, done = any_rank(run), False
    for _ in range(run.rng.randrange(5, 25) if pid else 0):
        done = hit(pid, signal.SIGSTOP)
        time.sleep(0.04)
        hit(pid, signal.SIGCONT)
        time.sleep(0.02)
    return done


def flip(run):
    """A bit of the weights of one rank among three or more. Only one such fault per run: what two
    ranks hold in common counts as right, even if it is wrong."""
    pid, row = any_rank(run), whole(run.mesh)[1]
    if pid is None or row is None or run.flipped or len(run.ranks()) < 3:
        return False
    try:
        run.flipped = flip_row(pid, row, run.rng.randrange(32)) > 0
    except OSError:
        return False
    return run.flipped


def kill_agent(run):
    return any(hit(c, signal.SIGKILL) for c in run.agents()[:1])


def lose_node(run):
    """Its ranks, its agent (not always: then only the memory is lost) and its memory."""
    on = {c: variable_of(c, "LATEEN_NODE") for c in run.ranks().values()}
    nodes = sorted({node for node in on.values() if node})
    if not nodes:
        return False
    node = run.rng.choice(nodes)
    done = [hit(c, signal.SIGKILL) for c in [c for c in on if on[c] == node] + [c for c in run.agents() if run.rng.random() < 0.8 and agent_node(c) == node]]
    for root in run.roots:
        shutil.rmtree(f"{root}/node-{node}", ignore_errors=True)
    return any(done)


def kill_launcher(run):
    run.ranks()
    done = run.p.poll() is None
    run.p.kill()
    run.p.wait()
    run.start()
    return done


def tear(run):
    """The newest checkpoint loses its last byte or has one bit flipped, and the launcher is
    killed. It must not be the only one: a run whose checkpoints are all broken reports it, and
    stops."""
    run.ranks()
    run.p.kill()
    run.p.wait()
    torn = checkpoints(run.out)[1:][-1:]
    for folder in torn:
        path = run.rng.choice(sorted(glob.glob(folder + "/*.safetensors")))
        size = os.path.getsize(path)
        if run.rng.random() < 0.5:
            os.truncate(path, size - 1)
        else:
            flip_bit(path, run.rng.randrange(size), run.rng.randrange(8))
    run.start()
    return bool(torn)


def partition(run):
    """No packet passes between the processes of the run: heartbeats, the store, the agents'
    copies."""
    def link(way):
        return subprocess.run(["nsenter", "--net", "--target", str(run.p.pid), "ip", "link", "set", "lo", way], capture_output=True).returncode == 0
    done = run.p.poll() is None and bool(run.ranks()) and link("down")
    time.sleep(run.rng.random() * 2.5 * SILENT if done else 0)
    return link("up") and done


def fill_disk(run):
    filler, done = run.out + "/filler", run.p.poll() is None
    try:
        with open(filler, "wb") as f:
            while True:
                f.write(bytes(1 << 16))
                f.flush()
    except OSError:
        pass
    time.sleep(run.rng.random() * 3)
    os.remove(filler)
    return done


FAULTS = {"kill": rank_by(signal.SIGKILL), "stop": rank_by(signal.SIGSTOP), "term": rank_by(signal.SIGTERM), "crash": rank_by(signal.SIGSEGV), "slow": slow, "agent": kill_agent, "node": lose_node,
          "launcher": kill_launcher, "torn": tear, "flip": flip, "partition": partition, "full disk": fill_disk}


def small_disk(out):
    """The run folder on a tmpfs that a few checkpoints fill; False: this user may not do it."""
    os.mkdir(out)
    return subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", out], capture_output=True).returncode == 0


def recoveries(found):
    """What the launcher measured: the kind of the fault, and the seconds and steps that it cost."""
    kind, back = "", []
    for e in found:
        kind = e["kind"] if e["event"] == "fault" else kind
        if e["event"] == "recovered":
            back.append({"kind": kind, "seconds": e["seconds"], "steps_lost": e["steps_lost"]})
    return back


def done_with(seed, name, faults, found, wrong, start):
    tap.check(name, not wrong, "; ".join(wrong))
    if options.events:
        seeds.append(options.events, found)
    seeds.done(seed, start, wrong, run=name, faults=faults, recoveries=recoveries(found))


def slurmd(seed, start):
    """Under a real Slurm, which takes a minute."""
    words = [sys.executable, os.path.join(os.path.dirname(os.path.abspath(__file__)), "slurm_orphan.py"), options.lateen]
    done = subprocess.run(words, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    done_with(seed, f"seed {seed}: a job of Slurm: slurmd", ["slurmd"], [], [] if done.returncode == 0 else [done.stdout[-900:] + done.stderr[-300:]], start)


def draw_faults(rng, mesh, snapshots, network, disk):
    """1 to 4 of those that can happen to this run, and the full disk."""
    can = [f for f in sorted(FAULTS) if f != "full disk" and (f != "flip" or "guard.replicas" in MESHES[mesh] and options.device == "cpu") and (f != "partition" or network) and (f not in ("agent", "node") or snapshots)]
    return [rng.choice(can) for _ in range(rng.randrange(1, 5))] + (["full disk"] if disk else [])


def one(seed):
    rng, start = random.Random(seed), time.time()
    if rng.random() < SLURM_SHARE and slurm.is_here():
        return slurmd(seed, start)
    mesh, snapshots = rng.choice(sorted(MESHES)), rng.random() < 0.75
    out = f"{work.name}/{seed}"
    disk = rng.random() < 0.2 and small_disk(out)
    want, wrong, faults, found = whole(mesh)[0], [], [], []
    run = Run(rng, out, mesh, snapshots)
    names = draw_faults(rng, mesh, snapshots, run.network, disk)
    name = f"seed {seed}: {mesh}, {'snapshots' if snapshots else 'disk alone'}: {', '.join(names)}"
    try:
        for at, fault in zip(sorted(rng.randrange(ARGS["steps"] * 19 // 20) for _ in names), names):
            run.wait_for_step(at)
            faults += [fault] if FAULTS[fault](run) else []
        # A fault may end the launcher, too; then the same command continues the run.
        for again in range(4):
            best, until = -1, time.time() + STUCK_S
            while run.p.poll() is None and time.time() < until:
                run.ranks()
                if (step := run.step()) > best:
                    best, until = step, time.time() + STUCK_S
                time.sleep(0.05)
            if run.p.poll() in (0, None):
                break
            run.start()
        if run.p.poll() is None:
            wrong.append(f"no new step for {STUCK_S} s: {run.text()[-700:]} {run.states()}")
        elif run.p.returncode != 0:
            wrong.append(f"status {run.p.returncode}: {run.text()[-700:]}")
        elif bits(out) != want:
            wrong.append("other bits")
        time.sleep(0.3)
        left = [c for c in run.seen if alive(c)]
        wrong += [f"processes {left} are left"] if left else []
        wrong += [f"{r} is left" for r in run.roots if os.path.exists(r) and open(r + "/launcher").read().strip() == str(run.p.pid)]
        found = events(out) if os.path.exists(out + "/events.jsonl") else []
    finally:
        run.p.kill()
        run.p.wait()
        if disk:
            subprocess.run(["umount", out])
    done_with(seed, name, faults, found, wrong, start)
    if not wrong:
        shutil.rmtree(out, ignore_errors=True)


end_s = time.time() + options.seconds
for seed in seeds.of(options.first, options.seeds):
    if time.time() >= end_s:
        break
    try:
        one(seed)
    except Exception as e:
        done_with(seed, f"seed {seed}", [], [], [repr(e)], time.time())
work.cleanup()
sys.exit(tap.end())
