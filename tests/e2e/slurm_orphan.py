"""An orphan under a real Slurm (a controller and two slurmd on this machine): the slurmd of the node where a job runs is killed with SIGKILL; Slurm declares the node down and starts the job again on the other one, while the processes of the first attempt still run. The second attempt takes the run folder over, the first one ends with status 77, and the run has the bits of one
without faults. Skipped without Debian's slurm-wlm; needs root, as slurmd does. TAP on stdout.

usage: slurm_orphan.py LATEEN [cable]      cable: each node is a machine of a network (hosts.py), and its cable is pulled out"""
import os
import shutil
import subprocess
import sys
import tempfile
import time

import hosts
import slurm
from launched import bits, checkpoints, command, losses
from tap import Tap

tap = Tap()
if not slurm.is_here():
    tap.skip("an orphan under Slurm", "needs root and Debian's slurm-wlm")
    sys.exit(tap.end())
cable, machines = sys.argv[2:] == ["cable"], None
if cable:
    if why := hosts.why_not():
        tap.skip("an orphan behind an unplugged cable", why)
        sys.exit(tap.end())
    hosts.enter_own_network()
    machines = hosts.Hosts(2, os.getpid())
work = tempfile.mkdtemp()
out = f"{work}/run"
cluster = slurm.Slurm(work, ["n1", "n2"], return_to_service=0, more="SlurmdTimeout=5\n", hosts=machines)


def until(what, seconds):
    end = time.time() + seconds
    while not what() and time.time() < end:
        time.sleep(0.2)
    return what()


def job():
    return subprocess.run(["squeue", "--noheader", "--format", "%T %B %r"], capture_output=True, text=True, timeout=30).stdout.strip()


def status(attempt):
    try:
        return open(f"{work}/status.{attempt}").read().strip()
    except OSError:
        return None


def leases():
    return [f for f in os.listdir(out + "/lease") if f.endswith(".json")]


try:
    args = {"steps": 1000000, "checkpoint.every": 50, "out": out}
    words = [os.path.abspath(w) if w.startswith(("build/", "tests/")) else w for w in command(2, args, ("--retries", "3"))]
    open(f"{work}/job.sh", "w").write(f"#!/bin/sh\n{' '.join(words)}\necho $? >{work}/status.${{SLURM_RESTART_COUNT:-0}}\n")
    cluster.start()
    subprocess.run(["sbatch", "--requeue", "--output=/dev/null", f"{work}/job.sh"], capture_output=True, timeout=30)
    assert until(lambda: len(checkpoints(out)) > 0, 90), f"the job does not begin: {job()}"
    node = job().split()[1]
    if cable:
        machines.link(cluster.nodes.index(node), False)
    else:
        cluster.started[node].kill()
    tap.check("Slurm starts the job again on the other node, and it takes the run folder over", until(lambda: len(leases()) > 1, 150), (job(), leases()))
    tap.check("the first attempt lived on until then, and ends with status 77", until(lambda: status(0) is not None, 30) and status(0) == "77", (status(0), job()))
    tap.check("the second one trains", until(lambda: losses(out) and status(1) is None, 30), status(1))
    at = max(losses(out))
    until(lambda: max(losses(out)) > at + 50, 60)
    open(out + "/exit", "w").close()
    tap.check("told to stop, it saves and ends with status 75", until(lambda: status(1) is not None, 60) and status(1) == "75", status(1))
    got = bits(out)
    straight = subprocess.run(command(2, {**args, "steps": got[0], "out": f"{work}/straight"}), capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=250)
    tap.check("the bits are those of a run without faults", straight.returncode == 0 and bits(f"{work}/straight") == got, straight.stderr[-300:])
except Exception as e:
    tap.check("nothing unexpected", False, repr(e))
finally:
    cluster.end()
    if machines:
        machines.close()
    shutil.rmtree(work, ignore_errors=True)
sys.exit(tap.end())
