"""guard.replicas: a bit of one rank's weights is flipped from outside while a run goes on, through /proc/PID/mem. The rank is named (of two, by the steps that are made again), the run
goes on from the newest checkpoint, and ends with the bits of one that nobody disturbed. TAP on stdout.

The bit is one of an embedding that no token reads, so it changes no loss and no gradient; without decay it keeps its first value, by which it is found in the memory.

usage: replicas.py LATEEN [quick]      quick: three ranks"""
import glob
import json
import os
import re
import signal
import struct
import sys
import tempfile

from launched import begin, bits, checkpoints, events, undisturbed
from tap import Tap

tap = Tap()
work = tempfile.TemporaryDirectory()
quick = sys.argv[2:] == ["quick"]
ARGS = {"steps": 250, "checkpoint.every": 10, "guard.replicas": 4, "model.vocab": 512, "model.tied": "false", "optim.decay": 0}


def unread_row(out):
    """The last row of the embedding, as the first checkpoint has it."""
    for path in sorted(glob.glob(checkpoints(out)[0] + "/*.safetensors")):
        data = open(path, "rb").read()
        n = struct.unpack("<Q", data[:8])[0]
        for name, t in json.loads(data[8:8 + n]).items():
            if re.search(r"embed", name) and t.get("dtype") == "F32" and any(data[8 + n + t["data_offsets"][1] - 128:8 + n + t["data_offsets"][1]]):
                return data[8 + n + t["data_offsets"][1] - 128:8 + n + t["data_offsets"][1]]
    raise RuntimeError("no embedding in the checkpoint")


def flip(pid, row, bit=2):
    """One bit wherever the row is in the memory of a process; how often that was."""
    found = 0
    with open(f"/proc/{pid}/mem", "r+b", buffering=0) as memory:
        for line in open(f"/proc/{pid}/maps").read().splitlines():
            first, last = (int(x, 16) for x in line.split()[0].split("-"))
            if not line.split()[1].startswith("rw-p") or "[v" in line:
                continue
            try:
                memory.seek(first)
                data = memory.read(last - first)
            except OSError:
                continue
            at = data.find(row)
            while at >= 0:
                memory.seek(first + at + 64)
                memory.write(bytes([row[64] ^ 1 << bit]))
                found += 1
                at = data.find(row, at + 1)
    return found


def corrupted(ranks, victim):
    out = f"{work.name}/{ranks}-{victim}"
    whole = undisturbed(ranks, {**ARGS, "out": out + "-whole"})
    row = unread_row(out + "-whole")
    p, pids = begin(ranks, {**ARGS, "out": out}, ("--retries", "1", "--silent", "60"))
    name = f"{ranks} ranks: a bit flips on one of them"
    try:
        os.kill(pids[victim], signal.SIGSTOP)  # The others wait for it, however long this takes.
        try:
            found = flip(pids[victim], row)
            os.kill(pids[victim], signal.SIGCONT)
        except PermissionError as e:
            tap.skip(name, f"this user may not write into the memory of its processes: {e}")
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


corrupted(3, 1)
if not quick:
    corrupted(2, 0)
    corrupted(2, 1)
work.cleanup()
sys.exit(tap.end())
