"""guard.replicas: a bit of one rank's weights is flipped from outside during a run, through /proc/PID/mem. The rank is named (of two ranks, by repeating the steps), the run resumes from the newest checkpoint, and ends with the bits of an undisturbed one. TAP on stdout.

usage: replicas.py LATEEN [quick] [cuda]      quick: three ranks; cuda: on emulated GPUs (tests/emu/run), whose memory is that of the process"""
import os
import signal
import sys
import tempfile

from launched import UNREAD, begin, bits, events, flip_row, undisturbed, unread_row
from tap import Tap

tap = Tap()
work = tempfile.TemporaryDirectory()
quick, device = "quick" in sys.argv[2:], "cuda" if "cuda" in sys.argv[2:] else "cpu"
# Otherwise the memory is mapped by others, too.
os.environ["LATEEN_PEER_COPIES"] = "0" if device == "cuda" else os.environ.get("LATEEN_PEER_COPIES", "1")
COMMON = 45  # A token that is read in most steps.
ARGS = {"steps": 250 if device == "cpu" else 50, "checkpoint.every": 10, "guard.replicas": 4, "device": device, **UNREAD}


def flipped(name, pid, row, **where):
    """How often flip_row found the row; None: it is not allowed, and the test is skipped."""
    os.kill(pid, signal.SIGSTOP)  # The others wait for it, however long this takes.
    try:
        return flip_row(pid, row, **where)
    except PermissionError as e:
        tap.skip(name, f"this user may not write into the memory of its processes: {e}")
    finally:
        os.kill(pid, signal.SIGCONT)


def corrupted(ranks, victim):
    out = f"{work.name}/{ranks}-{victim}"
    whole = undisturbed(ranks, {**ARGS, "out": out + "-whole"})
    row = unread_row(out + "-whole")
    p, pids = begin(ranks, {**ARGS, "out": out}, ("--retries", "1", "--silent", "60"))
    name = f"{ranks} ranks: a bit flips on one of them"
    try:
        found = flipped(name, pids[victim], row)
        if found is None:
            return
        text = p.communicate(timeout=120)[0]
    finally:
        p.kill()
    suspects, faults = events(out, "suspect"), events(out, "fault")
    tap.check(f"{name}: it is named, and costs no retry",
              found and [(e["rank"], e["attempt"]) for e in suspects] == [(victim, 1 if ranks > 2 else 2)]
              and [(e["kind"], e["rank"]) for e in faults] == [("corrupt", victim if ranks > 2 else -1)]
              and "0 of 1 retries used" in events(out, "decision")[0]["why"], f"found {found} times; {suspects} {faults} {text[-900:]}")
    tap.check(f"{name}: the run ends with the bits of one without it", p.returncode == 0 and bits(out) == whole, f"status {p.returncode} {text[-600:]}")


def computed():
    """A weight that tokens read changes on one of three ranks: it computes other gradients than
    the others from the same rows, and its node is left out."""
    args = {**ARGS, "guard.replicas": 0, "guard.replay": 1}
    whole = undisturbed(3, {**args, "out": work.name + "/computed-whole"})
    out, name = work.name + "/computed", "a rank computes wrongly"
    p, pids = begin(3, {**args, "out": out}, ("--retries", "1", "--silent", "60", "--nodes", "3", "--spares", "1", "--back", "0"))
    try:
        found = flipped(name, pids[1], unread_row(work.name + "/computed-whole"), bit=22, before=512 - 1 - COMMON)
        if found is None:
            return
        text = p.communicate(timeout=120)[0]
    finally:
        p.kill()
    suspects, states = [(e["rank"], e["node"]) for e in events(out, "suspect")], [(e["node"], e["state"], e["spare"]) for e in events(out, "node")]
    tap.check(f"{name}: it is named, its node is left, and that costs no retry", suspects == [(1, 1)] and (1, "suspect", -1) in states and (1, "moved", 3) in states
              and "0 of 1 retries used" in events(out, "decision")[0]["why"] and "rank 1 has computed other gradients" in text, f"found {found} times; {suspects} {states} {text[-900:]}")
    tap.check(f"{name}: the run ends with the bits of one without it", p.returncode == 0 and bits(out) == whole, f"status {p.returncode} {text[-600:]}")


corrupted(3, 1)
if not quick:
    computed()
    corrupted(2, 0)
    corrupted(2, 1)
work.cleanup()
sys.exit(tap.end())
