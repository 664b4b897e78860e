"""Small trainings under `lateen launch`, for scripts that disturb them with faults. Standard library only; the program is the script's first argument."""
import glob
import json
import os
import re
import struct
import subprocess
import sys
import time

lateen = sys.argv[1]
golden = "tests/golden/train/"
TRAIN = {"data.train": golden + "tokens", "export": "false", "model.layers": 2, "model.width": 32, "model.heads": 2, "model.vocab": 300, "data.seq": 16, "batch.size": 12,
         "lr.schedule": "constant", "log.every": 1}
if os.environ.get("LATEEN_TEST_DEVICE"):
    TRAIN["device"] = os.environ["LATEEN_TEST_DEVICE"]
# Runs that share their GPUs need longer to end.
SILENT, GRACE = 1.5, float(os.environ.get("FAULT_GRACE", 5.0))


def command(ranks, args, more=()):
    words = [lateen, "launch", "--ranks", str(ranks), "--beat", "0.2", "--silent", str(SILENT), "--grace", str(GRACE), *more, "train"]
    return words + [w for n, v in {**TRAIN, **args}.items() for w in (f"--{n}", str(v))]


def children(pid):
    try:
        return [int(c) for c in open(f"/proc/{pid}/task/{pid}/children").read().split()]
    except OSError:
        return []


def alive(pid):
    try:
        return open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def words_of(pid):
    """The command line of a process; none if it has ended."""
    try:
        return open(f"/proc/{pid}/cmdline").read().split("\0")
    except OSError:
        return []


def variable_of(pid, name):
    """A variable in the environment of a process; None: it has no such variable, or has ended."""
    try:
        found = re.search(rb"(?:^|\0)%s=([^\0]+)\0" % name.encode(), open(f"/proc/{pid}/environ", "rb").read())
    except OSError:
        return None
    return found and os.fsdecode(found.group(1))


def rank_of(pid):
    return int(variable_of(pid, "LATEEN_RANK") or -1)


def memory_of(pid):
    """The folder of the snapshots of a rank's run."""
    return variable_of(pid, "LATEEN_MEMORY")


def ranks_of(launcher):
    return {r: c for c in children(launcher) if (r := rank_of(c)) >= 0}


def begin(ranks, args, more=(), **env):
    """Start a run and wait until its ranks train: the launcher, and the pids of its ranks in
    order."""
    p = subprocess.Popen(command(ranks, args, more), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, stdin=subprocess.DEVNULL,
                         env={**os.environ, **env})
    until, metrics = time.time() + 30, args["out"] + "/metrics.jsonl"
    while time.time() < until and p.poll() is None:
        pids = ranks_of(p.pid)
        if os.path.exists(metrics) and '"train"' in open(metrics).read() and sorted(pids) == list(range(ranks)):
            return p, [pids[r] for r in range(ranks)]
        time.sleep(0.02)
    p.kill()
    raise RuntimeError("the run does not begin: " + p.communicate()[0][-600:])


def checkpoints(out):
    return sorted(glob.glob(out + "/checkpoints/step-?????????"))


def bits(out):
    """What must be equal, whatever happened on the way: the losses, and every byte of the last
    checkpoint and the position in the data."""
    m = json.load(open(checkpoints(out)[-1] + "/manifest.json"))
    # They depend on which steps have a checkpoint: a run that was told to stop has more.
    guard = {k: v for k, v in m["guard"].items() if k not in ("best", "spread")}
    return m["step"], m["rows"], m["tokens"], m["loader"], guard, [(f["name"], f["xxh3"]) for f in m["files"]], losses(out)


def undisturbed(ranks, args, more=()):
    """The bits of an undisturbed run. A rank that gets no core for longer than SILENT is not
    stopped."""
    done = subprocess.run(command(ranks, args, ("--silent", "60", *more)), capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=600)
    assert done.returncode == 0, done.stderr[-600:]
    return bits(args["out"])


def events(out, kind=None):
    return [e for e in map(json.loads, open(out + "/events.jsonl")) if kind in (None, e["event"])]


def losses(out):
    return {r["step"]: r["loss"] for r in map(json.loads, open(out + "/metrics.jsonl")) if r["kind"] == "train"}


def wait_for(condition, seconds=30):
    until = time.time() + seconds
    while not condition():
        assert time.time() < until, "too late"
        time.sleep(0.005)


def flip_bit(path, at, bit=0):
    with open(path, "r+b") as f:
        f.seek(at)
        byte = f.read(1)
        f.seek(at)
        f.write(bytes([byte[0] ^ (1 << bit)]))


# With these arguments and a vocabulary larger than that of the tokens, the last row of the
# embedding keeps its first value, since no token reads it: a flipped bit in it changes no loss
# and no gradient, and its place in the memory of a process is found by its value.
UNREAD = {"model.vocab": 512, "model.tied": "false", "optim.decay": 0}


def unread_row(out):
    """The last row of the embedding in the first checkpoint."""
    for path in sorted(glob.glob(checkpoints(out)[0] + "/*.safetensors")):
        data = open(path, "rb").read()
        n = struct.unpack("<Q", data[:8])[0]
        for name, t in json.loads(data[8:8 + n]).items():
            if "embed" in name and t["dtype"] == "F32":
                row = data[8 + n + t["data_offsets"][1] - 128:8 + n + t["data_offsets"][1]]
                if any(row):
                    return row
    raise RuntimeError("no embedding in the checkpoint")


def flip_row(pid, row, bit=2, before=0):
    """Flip one bit (of 32) wherever the row occurs in the memory of a process, or of the row this
    many rows before it; returns how often. PermissionError: this user may not."""
    found, at_byte = 0, 64 + bit // 8 - before * len(row)
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
                if at + at_byte >= 0:
                    memory.seek(first + at + at_byte)
                    byte = memory.read(1)
                    memory.seek(first + at + at_byte)
                    memory.write(bytes([byte[0] ^ 1 << bit % 8]))
                    found += 1
                at = data.find(row, at + 1)
    return found
