"""Snapshots in memory: ranks and agents are killed, the memory of a node is lost, a snapshot is damaged; the run resumes from the newest one that all ranks find complete, and ends with the bits of an undisturbed run. Meanwhile no checkpoint is on disk. TAP on stdout.

usage: snapshots.py LATEEN [quick]      quick: the core cases"""
import glob
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time

from launched import begin, bits, children, events, flip_bit, lateen, memory_of, undisturbed, wait_for, words_of
from tap import Tap

tap = Tap()
quick = sys.argv[2:] == ["quick"]
work = tempfile.TemporaryDirectory()
ARGS = {"steps": 150, "checkpoint.every": 100000}
NODES = ("--nodes", "2", "--retries", "9", "--silent", "60")


def agents_of(launcher):
    found = {}
    for c in children(launcher):
        words = words_of(c)
        if "agent" in words:
            found[int(words[words.index("--node") + 1])] = c
    return found


def steps_of(folder):
    return sorted(int(s.rsplit("-", 1)[1]) for s in glob.glob(folder + "/step-?????????"))


def disturbed(name, mesh, disturb, want, every=5):
    """A run is disturbed as soon as it has some snapshots on both nodes; `want` returns what is
    wrong with the result."""
    out = f"{work.name}/{name}"
    p, pids = begin(4, {**ARGS, **mesh, "out": out}, (*NODES, "--snapshot", str(every)))
    root = memory_of(pids[0])
    try:
        wait_for(lambda: len(steps_of(root + "/set")) > 1 and steps_of(root + "/node-1/kept/rank-0"))
        disturb(p, pids, root)
        text = p.communicate(timeout=90)[0]
    finally:
        p.kill()
    wrong = [] if p.returncode == 0 else [f"status {p.returncode}: {text[-700:]}"]
    if p.returncode == 0 and bits(out) != truth[name.split("-")[0]]:
        wrong.append("other bits")
    wrong += want(events(out), text) if not wrong else []
    if os.path.exists(root):
        wrong.append(f"{root} is left over")
    tap.check(f"{name}: {disturb.__doc__}", not wrong, "; ".join(wrong))


def kill_rank(p, pids, root):
    """a rank is killed"""
    os.kill(pids[2], signal.SIGKILL)


def lose_node(p, pids, root):
    """a node is lost: its ranks, its agent and its memory"""
    def copied():
        return all(steps_of(h)[-1:] == steps_of(f"{root}/node-1/kept/{os.path.basename(h)}")[-1:] for h in glob.glob(root + "/node-0/own/*"))

    for c in pids:  # The agents of a busy machine may be far behind the ranks.
        os.kill(c, signal.SIGSTOP)
    wait_for(copied, 60)
    for c in (pids[0], pids[1], agents_of(p.pid)[0]):
        os.kill(c, signal.SIGKILL)
    shutil.rmtree(root + "/node-0", ignore_errors=True)
    for c in pids[2:]:
        os.kill(c, signal.SIGCONT)


def kill_agents(p, pids, root):
    """agents are killed, and nothing but the agents ends"""
    for c in agents_of(p.pid).values():
        os.kill(c, signal.SIGKILL)
    wait_for(lambda: len(agents_of(p.pid)) == 2)


def damage(p, pids, root):
    """the ranks are killed, and the newest snapshot is damaged"""
    # If ranks continued, they could publish a snapshot that is newer than the damaged one.
    for c in pids:
        os.kill(c, signal.SIGSTOP)
    newest = f"{root}/set/step-{steps_of(root + '/set')[-1]:09d}"
    path = os.path.realpath(sorted(glob.glob(newest + "/weights*"))[-1])
    flip_bit(path, os.path.getsize(path) // 2)
    for c in pids:
        os.kill(c, signal.SIGKILL)


def recovered(found, text, most=6):
    back = [e for e in found if e["event"] == "recovered"]
    return [] if len(back) == 1 and back[0]["steps_lost"] <= most else [f"not recovered from memory: {back} {text[-500:]}"]


def agents_alone(found, text):
    seen = [e["event"] for e in found]
    return [] if seen.count("agent") == 2 and "fault" not in seen else [f"events {seen}"]


def older(found, text):
    return recovered(found, text, 11) + ([] if "is not whole" in text else ["the damage is not told"])


WHOLE, PARTS = {}, {"mesh": "dp=2,tp=2", "mesh.zero": 1}
truth = {name: undisturbed(4, {**ARGS, **mesh, "out": f"{work.name}/{name}-whole"}) for name, mesh in (("whole", WHOLE), ("parts", PARTS)) if not quick or name == "whole"}
disturbed("whole-rank", WHOLE, kill_rank, recovered)
if not quick:
    disturbed("whole-node", WHOLE, lose_node, recovered)
    disturbed("whole-agents", WHOLE, kill_agents, agents_alone)
    disturbed("whole-damage", WHOLE, damage, older)
    disturbed("parts-rank", PARTS, kill_rank, recovered)
    disturbed("parts-node", PARTS, lose_node, lambda e, t: recovered(e, t, 11))
    disturbed("parts-damage", PARTS, damage, older)
p, pids = begin(4, {**ARGS, "steps": 100000, "out": work.name + "/gone"}, NODES)
root = memory_of(pids[0])
p.kill()
p.communicate()
until = time.time() + 10
while os.path.exists(root) and time.time() < until:
    time.sleep(0.05)
tap.check("a launcher that is killed leaves no memory", not os.path.exists(root), root)
p, pids = begin(4, {**ARGS, "steps": 100000, "out": work.name + "/all"}, NODES)
root, agents = memory_of(pids[0]), agents_of(p.pid)
sweep = [lateen, "agent", "--sweep"]
subprocess.run(sweep, check=True, capture_output=True)
lives = os.path.exists(root)
os.kill(p.pid, signal.SIGSTOP)  # Otherwise it would start an agent again.
for pid in (*agents.values(), p.pid):
    os.kill(pid, signal.SIGKILL)
p.communicate()
left = os.path.exists(root)
r = subprocess.run(sweep, capture_output=True, text=True)
tap.check("when all agents are killed, too, lateen agent --sweep removes it, and did not while the run lived", lives and left and r.returncode == 0 and not os.path.exists(root), (lives, left, r.stderr))
work.cleanup()
sys.exit(tap.end())
