"""Ranks on several machines, each with a network address and a host name of its own (hosts.py): a run over the network, a cable that is pulled and plugged again, one that stays unplugged, a machine that loses its power. Ranks are started by mpirun. TAP on stdout.

usage: machines.py LATEEN [quick]      quick: a machine that is lost"""
import glob
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import hosts
from launched import alive, bits, checkpoints, command, losses, undisturbed, wait_for, words_of
from tap import Tap

tap = Tap(detail_chars=3000)
quick = sys.argv[2:] == ["quick"]
why = "no mpirun" if not shutil.which("mpirun") else hosts.why_not()
if why:
    tap.skip("ranks on several machines", why)
    sys.exit(tap.end())
work = tempfile.TemporaryDirectory()
STEPS, DEADLINE_S = (100 if quick else 200), 3
ARGS = {"steps": STEPS, "checkpoint.every": 20, "batch.size": 16, "deterministic": "mesh-invariant", "threads": 1}
ENV = {**os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


def start(h, on, args):
    """A rank on each of these hosts. mpirun, on the first one, reaches the others by another
    command in the place of ssh."""
    login = work.name + "/login"
    with open(login, "w") as f:
        f.write("#!/bin/sh\ncase $1 in\n" + "".join(f"{h.address(k)}) pid={h.spaces[k]} ;;\n" for k in range(h.n)) + "esac\nshift\nexec nsenter --net --uts --target $pid sh -c \"$*\"\n")
    os.chmod(login, 0o755)
    words = command(1, {**ARGS, **args})
    words = [os.path.abspath(words[0]), *words[words.index("train"):]]
    mpirun = ["mpirun", "--bind-to", "none", "--host", ",".join(f"{h.address(k)}:1" for k in on), "-n", str(len(on))]
    for name, value in (("plm_rsh_agent", login), ("oob_tcp_if_include", "eth0"), ("btl_tcp_if_include", "eth0"), ("orte_base_help_aggregate", "0")):
        mpirun += ["--mca", name, value]
    return subprocess.Popen(h.words(on[0], mpirun + words), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, text=True, env=ENV)


def trains(out, p, steps=30):
    """Wait until the run has taken this many steps."""
    wait_for(lambda: p.poll() is not None or len(losses(out) if os.path.exists(out + "/metrics.jsonl") else ()) >= steps, 60)


def ranks_on(h, k):
    return [p for p in h.processes(k) if "train" in (words := words_of(p)) and not any("mpirun" in w for w in words) and alive(p)]


def goes_on(name, h, on, out):
    """The same command on other machines."""
    p = start(h, on, {"out": out})
    text = p.communicate(timeout=120)[0]
    found = re.findall(r"resumed at step (\d+)", text)
    tap.check(name, p.returncode == 0 and bool(found) and bits(out) == whole, f"status {p.returncode}, resumed {found}: {text[-1500:]}")


whole = undisturbed(1, {**ARGS, "out": work.name + "/whole"})


def lost(h):
    """The power of the last machine fails."""
    out = work.name + "/power"
    p = start(h, list(range(h.n)), {"out": out, "mesh.deadline": DEADLINE_S})
    trains(out, p)
    h.kill(h.n - 1)
    text = p.communicate(timeout=60)[0]
    left = [q for k in range(h.n) for q in ranks_on(h, k)]
    tap.check(f"one of {h.n} machines loses its power: the run ends on all, and nothing of it is left", p.returncode not in (0, None) and not left, f"{p.returncode} {left} {text[-600:]}")
    goes_on("half of the machines continue from the newest checkpoint, with the bits of a run without a loss", h, list(range(h.n // 2)), out)


def network(h):
    out = work.name + "/network"
    p = start(h, [0, 1, 2, 3], {"out": out})
    text = p.communicate(timeout=120)[0]
    tap.check("four machines: the bits of a run on one", p.returncode == 0 and bits(out) == whole, text[-900:])
    owner = [json.load(open(f))["host"] for f in glob.glob(out + "/lease/*.json")]
    tap.check("the lease of the run folder names the machine of rank 0", owner == ["h0"], owner)


def flap(h):
    """TCP sends lost packets again, so a short interruption only costs time."""
    out = work.name + "/flap"
    p = start(h, [0, 1, 2, 3], {"out": out, "mesh.deadline": 60})
    for pause in (0.2, 0.8, 2.0):
        trains(out, p, min(STEPS - 1, len(losses(out)) + 25 if os.path.exists(out + "/metrics.jsonl") else 25))
        h.link(2, False)
        time.sleep(pause)  # How long the cable is unplugged is what is tested.
        h.link(2, True)
    text = p.communicate(timeout=120)[0]
    tap.check("a cable is unplugged for 0.2, 0.8 and 2 s: the run continues with the same bits", p.returncode == 0 and bits(out) == whole, text[-900:])


def partition(h, away=2):
    """A cable stays unplugged. Each side notices at the deadline of its operation. mpirun, which
    waits for a machine that it does not reach, is ended by hand."""
    out = f"{work.name}/partition-{away}"
    p = start(h, [0, 1, 2, 3], {"out": out, "mesh.deadline": DEADLINE_S})
    trains(out, p)
    h.link(away, False)
    began = time.time()
    try:
        wait_for(lambda: not any(ranks_on(h, k) for k in range(4)), 60)
        took = time.time() - began
    finally:
        for q in [q for k in range(4) for q in h.processes(k)]:
            try:
                os.kill(q, signal.SIGKILL)
            except ProcessLookupError:
                pass
    text = p.communicate(timeout=30)[0]
    h.link(away, True)
    named = re.search(rf"lateen: \w+ \d+ of group .* \(\d members\): .*did not come, after {DEADLINE_S} s", text)
    tap.check(f"the cable of host {away} is unplugged: the ranks on both sides end, and name the missing ones", bool(named), f"{took:.1f} s {text[-900:]}")
    print(f"# all ranks had ended {took:.1f} s after it, with a deadline of {DEADLINE_S} s", flush=True)
    newest = os.path.basename(checkpoints(out)[-1])
    goes_on(f"two of the others go on from {newest}, with the same bits", h, [k for k in range(4) if k != away][:2], out)


def slow(h):
    if not h.slow(1, "20ms"):
        return tap.skip("a link that is 20 ms slow", "no netem in this kernel")
    out = work.name + "/slow"
    p = start(h, [0, 1], {"out": out, "steps": 20})
    text = p.communicate(timeout=250)[0]
    tap.check("a link that is 20 ms slow: the same losses", p.returncode == 0 and losses(out) == {s: l for s, l in whole[6].items() if s <= 20}, text[-900:])


for case in (lost,) if quick else (lost, network, flap, partition, lambda h: partition(h, 0), slow):
    with hosts.Hosts(2 if quick else 4) as h:
        tap.case(lambda: case(h))
work.cleanup()
sys.exit(tap.end())
