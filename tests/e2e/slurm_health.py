#!/usr/bin/env python3
"""The scripts of deploy/slurm under a real Slurm: a controller and two slurmd on this machine, whose nodes are recorded machines. slurm_health.py LATEEN.
Skipped without Debian's slurm-wlm; needs root, as slurmd does."""
import fcntl
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time

import recorded_machine
import slurm
from recorded_machine import gpu, xid
from tap import Tap

tap = Tap()
check = tap.check
if not slurm.is_here():
    tap.skip("Slurm", "needs root and Debian's slurm-wlm")
    sys.exit(tap.end())
NOBODY = 65534
lateen, scratch = os.path.abspath(sys.argv[1]), tempfile.mkdtemp()


def write(path, text, mode=0o644):
    os.makedirs(os.path.dirname(f"{scratch}/{path}"), exist_ok=True)
    with open(f"{scratch}/{path}", "w") as f:
        f.write(text)
    os.chmod(f"{scratch}/{path}", mode)


# `lateen`, which the scripts find on their PATH: the same program on a recorded machine. The
# prolog finds a folder named prolog.NODE, at tier 1, which is all that a recorded machine has.
os.chmod(scratch, 0o755)  # The epilog runs a command as the job's user.
shutil.copy(lateen, f"{scratch}/lateen")
write("bin/lateen", f"""#!/bin/sh
case $1 in agent) exec {scratch}/lateen "$@" ;; esac
for word; do
    shift
    case $word in --tier) tier= ;; 1) ;; 2) tier=2 ;; /var/lib/*) set -- "$@" "{scratch}/history.$SLURMD_NODENAME" ;; *) set -- "$@" "$word" ;; esac
done
machine={scratch}/machine.$SLURMD_NODENAME
if [ "${{tier:-}}${{EPILOG:-}}" ] && [ -d "{scratch}/prolog.$SLURMD_NODENAME" ]; then machine={scratch}/prolog.$SLURMD_NODENAME; fi
exec {scratch}/lateen "$@" --machine "$machine" --mounts /,/scratch
""", 0o755)
for script in ("health", "prolog", "epilog"):  # slurmd gives its scripts a nearly empty environment.
    write(f"{script}.sh", f"#!/bin/sh\nPATH={scratch}/bin:/usr/bin:/bin SLURM_CONF={scratch}/slurm.conf\nexport PATH SLURM_CONF\n{script.upper()}=1\nexport {script.upper()}\nexec {os.path.abspath('deploy/slurm')}/{script}.sh\n", 0o755)
cluster = slurm.Slurm(scratch, ["n1", "n2"], scheduler="nohold_on_prolog_fail", more=f"""HealthCheckProgram={scratch}/health.sh
HealthCheckInterval=2
HealthCheckNodeState=ANY
Prolog={scratch}/prolog.sh
Epilog={scratch}/epilog.sh
PrologFlags=Alloc
""")


def run(*words):
    return subprocess.run(words, capture_output=True, text=True, timeout=60)


def node(name):
    text = run("scontrol", "show", "node", name).stdout
    state = text.partition("State=")[2].split()[:1]
    return (state[0] if state else ""), text.partition("Reason=")[2].partition("\n")[0]


def until(what, seconds=60):
    """Ask again until it is true; returns the last answer."""
    end = time.time() + seconds
    while not what() and time.time() < end:
        time.sleep(0.5)
    return what()


def set_machine(name, files=(), recorded=None):
    """Written atomically, because a check may read at any moment."""
    new = recorded_machine.write(tempfile.mkdtemp(dir=scratch), files, recorded)
    old = f"{scratch}/{name}"
    if os.path.exists(old):
        os.rename(old, old + f".{time.time()}")
    os.rename(new, old)


def idle(name):
    return node(name)[0] == "IDLE"


def job(name):
    return run("squeue", "--noheader", "--name", name, "--format", "%T|%B").stdout.strip()


try:
    for n in ("n1", "n2"):
        set_machine(f"machine.{n}")
    cluster.start()
    check("Slurm starts with two nodes, both fit", until(lambda: idle("n1") and idle("n2")), (node("n1"), node("n2")))
    check("each has a history", until(lambda: all(os.path.exists(f"{scratch}/history.{n}") for n in ("n1", "n2"))))

    set_machine("machine.n1", {}, gpu(temperature_c=95))
    check("an unfit node is drained, with the reason", until(lambda: "DRAIN" in node("n1")[0]) and node("n1")[1].startswith("lateen: drain: gpu.temperature_c gpu1 = 95"), node("n1"))
    set_machine("machine.n1")
    check("fit again, it is resumed", until(lambda: idle("n1")), node("n1"))
    run("scontrol", "update", "NodeName=n1", "State=DRAIN", "Reason=fan")
    time.sleep(5)
    check("a node that someone else drained stays so", "DRAIN" in node("n1")[0] and node("n1")[1].startswith("fan"), node("n1"))
    run("scontrol", "update", "NodeName=n1", "State=RESUME")

    until(lambda: idle("n1") and idle("n2"))
    run("scontrol", "update", "NodeName=n2", "State=DRAIN", "Reason=so that the job goes to n1")
    run("sbatch", "--job-name=one", "--requeue", "--output=/dev/null", "--wrap", "sleep 600")
    check("a job runs on n1", until(lambda: job("one") == "RUNNING|n1"), job("one"))
    run("scontrol", "update", "NodeName=n2", "State=RESUME")
    set_machine("machine.n1", xid(79))
    check("evict: the job leaves, and the node is drained, with the reason", until(lambda: job("one") != "RUNNING|n1" and "DRAIN" in node("n1")[0]) and
          node("n1")[1].startswith("lateen: evict: gpu.xid_79 gpu1"), (node("n1"), job("one")))
    check("the job is queued again, and runs on the other node", until(lambda: job("one") == "RUNNING|n2", 180), job("one"))
    check("and the node stays drained when slurmd registers again", "DRAIN" in node("n1")[0], node("n1"))
    set_machine("machine.n1")
    run("scancel", "--name=one")
    check("n1 is repaired", until(lambda: idle("n1") and idle("n2")), (node("n1"), node("n2"), job("one")))

    set_machine("prolog.n1", {}, gpu(power_w=1, rows_pending=1))
    run("sbatch", "--job-name=two", "--nodelist=n1", "--requeue", "--output=/dev/null", "--wrap", "sleep 600")
    check("an unfit node fails its prolog: it is drained before the job begins", until(lambda: "DRAIN" in node("n1")[0]) and "RUNNING" not in job("two"), (node("n1"), job("two")))
    shutil.rmtree(f"{scratch}/prolog.n1")
    run("scancel", "--name=two")
    run("scontrol", "update", "NodeName=n1", "State=RESUME")

    until(lambda: idle("n1") and idle("n2"))
    run("sbatch", "--job-name=three", "--comment=lateen-metrics=9400", "--output=/dev/null", "--wrap", "sleep 600")
    run("sbatch", "--job-name=four", "--output=/dev/null", "--wrap", "sleep 600")
    until(lambda: job("three").startswith("RUNNING") and job("four").startswith("RUNNING"))
    r = run("deploy/slurm/targets.sh", f"{scratch}/targets")
    nodes, runs = (json.load(open(f"{scratch}/targets/{f}.json")) for f in ("nodes", "runs"))
    check("targets of Prometheus: the nodes, and the run that requested it", r.returncode == 0 and nodes == [
        {"targets": [f"{n}:9401"], "labels": {"node": n, "partition": "debug"}} for n in ("n1", "n2")] and [x["targets"] for x in runs] == [[job("three").split("|")[1] + ":9400"]] and
        runs[0]["labels"]["user"] == "root", (r.stderr, nodes, runs))

    # Memory of runs that were killed with all of their agents: only that of the job's user is removed, and only where no launcher holds its lock.
    roots = [tempfile.mkdtemp(dir="/dev/shm", prefix="lateen-run-") for _ in range(3)]
    locks = [open(r + "/launcher", "w") for r in roots]
    fcntl.flock(locks[1], fcntl.LOCK_EX)
    for r, owner in zip(roots, (NOBODY, NOBODY, NOBODY - 1)):
        os.chown(r, owner, owner)
        os.chown(r + "/launcher", owner, owner)
    run("scancel", "--user=root")
    run("sbatch", f"--uid={NOBODY}", "--chdir=/tmp", "--job-name=five", "--output=/dev/null", "--wrap", "true")
    check("the epilog removes what the job's user has left in memory", until(lambda: not os.path.exists(roots[0])) and [os.path.exists(r) for r in roots[1:]] == [True, True], (job("five"), roots))
    for r in roots:
        shutil.rmtree(r, ignore_errors=True)
except Exception as e:
    check("nothing unexpected", False, repr(e))
finally:
    cluster.end()
    if not os.environ.get("KEEP"):
        shutil.rmtree(scratch, ignore_errors=True)
sys.exit(tap.end())
