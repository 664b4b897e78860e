"""Nodes that are lost or suspect: their ranks move to a spare node, or the run shrinks and grows again. It ends with the bits of an undisturbed run: always with a spare, and with `deterministic: mesh-invariant` also on fewer ranks. Meanwhile no checkpoint is on disk. TAP on stdout.

usage: nodes.py LATEEN [quick]      quick: a spare, and a run that shrinks"""
import glob
import os
import shutil
import signal
import subprocess
import sys
import tempfile

from launched import begin, bits, children, command, events, losses, memory_of, undisturbed, variable_of, wait_for, words_of
from tap import Tap

tap = Tap()
quick = sys.argv[2:] == ["quick"]
work = tempfile.TemporaryDirectory()
ARGS = {"steps": 150, "checkpoint.every": 100000, "batch.size": 16}
SAME = {**ARGS, "deterministic": "mesh-invariant"}
whole = undisturbed(4, {**SAME, "out": work.name + "/whole"})


def agent_of(launcher, node):
    for c in children(launcher):
        words = words_of(c)
        if "agent" in words and words[words.index("--node") + 1] == str(node):
            return c


def lose(p, pids, node):
    """A node is lost: its ranks, its agent and its memory, as soon as its snapshots have been
    copied: the agents of a busy machine may be far behind the ranks."""
    root = memory_of(pids[0])
    gone = [c for c in pids if variable_of(c, "LATEEN_NODE") == str(node)] + [agent_of(p.pid, node)]

    def newest(folder):
        return sorted(os.path.basename(s) for s in glob.glob(folder + "/step-?????????"))[-1:]

    def copied():
        return all(newest(h) in [newest(k) for k in glob.glob(f"{root}/node-*/kept/{os.path.basename(h)}")] for h in glob.glob(f"{root}/node-{node}/own/*"))

    for c in pids:
        os.kill(c, signal.SIGSTOP)
    wait_for(copied, 60)
    for c in gone:
        os.kill(c, signal.SIGKILL)
    shutil.rmtree(f"{root}/node-{node}", ignore_errors=True)
    for c in pids:
        if c not in gone:
            os.kill(c, signal.SIGCONT)


def run(name, args, more, node, ranks=4, want=()):
    """A node of a run is lost; returns the end of the run: its output, and what is wrong."""
    out = f"{work.name}/{name}"
    p, pids = begin(ranks, {**args, "out": out}, ("--retries", "9", "--snapshot", "5", "--silent", "60", *more))
    root = memory_of(pids[0])
    try:
        wait_for(lambda: len(os.listdir(root + "/set")) > 1 and any(os.path.isdir(f"{root}/node-{k}/kept/rank-0") for k in range(4)), 60)
        lose(p, pids, node)
        text = p.communicate(timeout=240)[0]
    finally:
        p.kill()
    wrong = [] if p.returncode == 0 else [f"status {p.returncode}: {text[-900:]}"]
    states = [(e["node"], e["state"], e["spare"]) for e in events(out, "node")]
    wrong += [f"{w} is not among {states}: {text[-600:]}" for w in want if w not in states]
    wrong += [f"{root} is left over"] if os.path.exists(root) else []
    return out, wrong, text


def sizes(out):
    return [e["ranks"] for e in events(out, "start")]


@tap.case
def spare():
    out, wrong, text = run("spare", SAME, ("--nodes", "2", "--spares", "1", "--back", "0"), 0, want=[(0, "lost", -1), (0, "moved", 2)])
    back = events(out, "recovered")
    tap.check("the ranks of a lost node move to a spare, and go on from the memory of another node",
              not wrong and sizes(out) == [4, 4] and len(back) == 1 and back[0]["steps_lost"] <= 11, f"{wrong} {sizes(out)} {back}")
    tap.check("the run ends with the bits of one without a loss", bits(out) == whole)


@tap.case
def shrink():
    out, wrong, text = run("shrink", SAME, ("--nodes", "4", "--shrink", "--back", "0"), 1, want=[(1, "lost", -1)])
    tap.check("without a spare the run continues with fewer ranks: of three that are left two divide the rows", not wrong and sizes(out) == [4, 2] and "continues with 2 of 4 ranks" in text,
              f"{wrong} {sizes(out)}")
    tap.check("mesh-invariant, it ends with the bits of one without a loss", bits(out) == whole)


@tap.case
def refused():
    cases = [(("--spares", "1", "--retries", "1"), "--spares needs --nodes and --retries"), (("--shrink", "--nodes", "2"), "--shrink needs --nodes and --retries"),
             (("--shrink", "--nodes", "8", "--retries", "1"), "--shrink with 8 nodes for 2 ranks"), (("--nodes", "64", "--spares", "65", "--retries", "1"), "spares")]
    wrong = []
    for more, says in cases:
        done = subprocess.run(command(2, {**ARGS, "out": work.name + "/refused"}, more), capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=60)
        wrong += [] if done.returncode in (1, 2) and says in done.stderr else [f"{more}: {done.returncode} {done.stderr[-300:]}"]
    tap.check("what cannot be honoured is refused by name", not wrong, wrong)


if not quick:
    @tap.case
    def grow():
        args = {**SAME, "steps": 2500}
        want = undisturbed(4, {**args, "out": work.name + "/grow-whole"})
        out, wrong, text = run("grow", args, ("--nodes", "2", "--shrink", "--back", "0.5"), 1, want=[(1, "lost", -1), (1, "back", -1)])
        tap.check("a run that has shrunk grows when the node is back, with the same bits", not wrong and sizes(out) == [4, 2, 4] and bits(out) == want
                  and [e["kind"] for e in events(out, "fault")][1:] == ["grow"], f"{wrong} {sizes(out)} {[e for e in events(out, 'fault')]} {text[-400:]}")

    @tap.case
    def mesh():
        args = {**ARGS, "mesh": "dp=2,tp=2"}
        out, wrong, text = run("mesh", args, ("--nodes", "2", "--shrink", "--back", "0"), 1, want=[(1, "lost", -1)])
        want = undisturbed(4, {**args, "out": work.name + "/mesh-whole"})
        off = max(abs(a - b) for a, b in zip(losses(out).values(), want[6].values()))
        tap.check("of dp=2,tp=2 one replica continues, with the same rows in another order of sums", not wrong and sizes(out) == [4, 2] and bits(out)[:4] == want[:4] and off < 1e-3,
                  f"{wrong} {sizes(out)} {off}")

    @tap.case
    def unable():
        out, wrong, text = run("unable", {**ARGS, "mesh": "tp=2,pp=2"}, ("--nodes", "2", "--shrink", "--back", "0"), 1, want=[(1, "lost", -1), (1, "used", -1)])
        tap.check("a run without replicas cannot shrink: the node is used again", not wrong and sizes(out) == [4, 4] and bits(out) == undisturbed(4, {**ARGS, "mesh": "tp=2,pp=2", "out": work.name + "/unable-whole"}),
                  f"{wrong} {sizes(out)}")
work.cleanup()
sys.exit(tap.end())
