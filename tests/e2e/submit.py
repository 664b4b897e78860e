#!/usr/bin/env python3
"""`lateen submit`: what is refused, what the batch script contains, and what it does when srun, sinfo, squeue, scontrol and scancel are replaced. submit.py LATEEN."""
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time

from tap import Tap

tap = Tap()
check = tap.check
lateen, scratch = os.path.abspath(sys.argv[1]), tempfile.mkdtemp()
os.makedirs(f"{scratch}/bin")
BASE = {"data.train": "nowhere", "batch.size": 48, "data.seq": 64, "steps": 9}
ODD = "it's \"a\" $recipe `x` \\ é;.yaml"


def recipe(name="r.yaml", **more):
    with open(f"{scratch}/{name}", "w") as f:
        f.writelines(f"{k}: {v}\n" for k, v in {"out": "run", **BASE, **more}.items())
    return name


def tool(name, text):
    with open(f"{scratch}/bin/{name}", "w") as f:
        f.write("#!/bin/bash\n" + text)
    os.chmod(f"{scratch}/bin/{name}", 0o755)


def submit(*words, name="r.yaml", dry=True, **env):
    return subprocess.run([lateen, "submit", name, *(["--dry-run"] if dry else []), *words], capture_output=True, text=True, cwd=scratch, timeout=60,
                          env={**os.environ, "PATH": f"{scratch}/bin:{os.environ['PATH']}", **env})


def refuses(what, words, *says, **more):
    recipe(**more)
    r = submit(*words)
    check(f"{what} is refused", r.returncode == 2 and all(s in r.stderr for s in says), (r.returncode, r.stderr))


TENANT = ("--tenant", "physics", "--node-gpus", "8")
refuses("a number that is no multiple of a node", (*TENANT, "--gpus", "8..20"), "8..20", "8 GPUs")
refuses("one that ends before it begins", (*TENANT, "--gpus", "16..8"), "16..8")
refuses("a word", (*TENANT, "--gpus", "all"), "'all'")
refuses("a batch that the most cannot divide", (*TENANT, "--gpus", "8..32"), "with 32 GPUs", "48 rows", "32 ranks")
refuses("a batch that the fewest cannot divide", (*TENANT, "--gpus", "8..48"), "with 8 GPUs", "12 rows", **{"batch.size": 12})
refuses("a replica that is too large", (*TENANT, "--gpus", "8"), "with 8 GPUs", "pp=2,tp=8", "16 GPUs", mesh="pp=2,tp=8")
refuses("groups of experts that do not divide", (*TENANT, "--gpus", "8"), "ep=3", mesh="ep=3")
refuses("ZeRO in groups that do not divide", (*TENANT, "--gpus", "8..48"), "mesh.shard = 16", "8 ranks", **{"mesh.zero": 1, "mesh.shard": 16})
refuses("mesh-invariant groups that do not divide", (*TENANT, "--gpus", "16..48"), "batch.groups = 16", "dp=48", **{"deterministic": "mesh-invariant", "batch.groups": 16})
refuses("several sites", (*TENANT, "--gpus", "8"), "diloco.sites", **{"diloco.sites": 2, "diloco.meet": "x"})
refuses("layout: auto", (*TENANT, "--gpus", "8"), "layout", layout="auto")
refuses("a time that is none", (*TENANT, "--gpus", "8", "--time", "noon"), "'noon'")
refuses("a time that ends before the save", (*TENANT, "--gpus", "8", "--time", "1:30", "--lead", "120"), "90 s", "120 s")
refuses("a tenant with a space", ("--tenant", "a b", "--gpus", "8"), "'a b'", "' '")
refuses("a name of two lines", (*TENANT, "--gpus", "8", "--name", "a\nb"), "control")
refuses("a QOS twice", (*TENANT, "--gpus", "8", "--borrow", "--qos", "x"), "physics-borrow", "x")
refuses("a wrong option of training", (*TENANT, "--gpus", "8", "--", "--step", "4"), "steps")
recipe()
check("no tenant: usage", submit("--gpus", "8").returncode == 2)
check("no such recipe", submit(*TENANT, "--gpus", "8", name="none.yaml").returncode == 1)

# The script.
r = submit(*TENANT, "--gpus", "8..48", "--time", "1-12:00:00", "--borrow", "--spares", "2", "--partition", "a,b", "--name", 'x "y" \\z', "--lead", "300")
options = [line for line in r.stdout.splitlines() if line.startswith("#SBATCH")]
check("options of sbatch", options == ["#SBATCH " + o for o in (
    '--job-name="x \\"y\\" \\\\z"', '--account="physics"', '--qos="physics-borrow"', '--partition="a,b"', '--time="1-12:00:00"', "--nodes=3-8", "--mincpus=64",
    "--gpus-per-node=8", "--signal=USR2@300", "--requeue", "--open-mode=append", "--no-kill")], options)
check("the sizes that divide the batch", "sizes='6 3 2 1'\n" in r.stdout and r.stderr.count("granted this many") == 2 and "with 32 GPUs" in r.stderr, r.stderr)
check("a run without /metrics has no comment for Prometheus's targets", not any("--comment" in o for o in options), options)
for at, port in (("0.0.0.0:9400", 9400), ("[::]:9401", 9401), (":0", 0)):
    r = submit(*TENANT, "--gpus", "8", "--", "--metrics.listen", at)
    named = [line for line in r.stdout.splitlines() if line.startswith("#SBATCH --comment")]
    check(f"metrics.listen {at}: the comment from which deploy/slurm/targets.sh takes the port", named == [f"#SBATCH --comment=lateen-metrics={port}"] * (port > 0), (named, r.stderr))
r = submit("--tenant", "physics", "--gpus", "2", "--no-ask-gpus", "--no-check")
check("a part of a node, on CPUs", "--nodes=1\n#SBATCH --mincpus=16\n" in r.stdout and "gpus-per-node" not in r.stdout and "\ncheck=0\n" in r.stdout, r.stdout[:600])

# What it does.
tool("srun", f"""for word; do [[ $word != *" health "* ]] || {{ cat "{scratch}/fit"; exit; }}; done
printf '%s\\0' "$@" >>"{scratch}/srun"; printf '\\n' >>"{scratch}/srun"
[ -z "${{HOLD:-}}" ] || touch "{scratch}/begun"
while [ -n "${{HOLD:-}}" ] && [ ! -e "{scratch}/go" ]; do sleep 0.1; done
# Until something has been told, or the job has looked for idle nodes twice.
for ((i = 0; i < 600 && ${{WATCH:-0}}; i++)); do
    if [ -s "{scratch}/told" ] || [ "$(wc -l <"{scratch}/asked")" -ge 2 ]; then break; fi
    sleep 0.1
done
exit $STATUS""")
for name in ("scontrol", "scancel"):
    tool(name, f'echo "{name} $*" >>"{scratch}/told"')
tool("sinfo", f'case "$*" in *--Node*) cat "{scratch}/nodes" ;; *) echo >>"{scratch}/asked"; echo "${{IDLE:-0}}" ;; esac')
tool("squeue", 'case "$*" in *--jobs=7*) echo "${STATE:-RUNNING}" ;; *) echo "${WAITING:-}" ;; esac')
tool("sbatch", f'cp "$1" "{scratch}/job.sh"; echo "Submitted batch job 7"')


def job(status, fit="n1 n2 n3", nodes="n1 n2 n3", script=None, wait=True, **env):
    """The result, the arguments of srun, and the calls of Slurm's other commands."""
    for name, text in (("fit", fit), ("nodes", "".join(f"{n} idle\n" if n[-1] != "*" else f"{n[:-1]} down*\n" for n in nodes.split())), ("srun", ""), ("told", ""), ("asked", "")):
        with open(f"{scratch}/{name}", "w") as f:
            f.write("\n".join(text.split()) if name == "fit" else text)
    env = {**os.environ, "PATH": f"{scratch}/bin:{os.environ['PATH']}", "STATUS": str(status), "SLURM_SUBMIT_DIR": scratch, "SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[1-3]",
           "SLURM_JOB_NUM_NODES": "3", "SLURM_JOB_PARTITION": "p", **env}
    p = subprocess.Popen(["bash", script or f"{scratch}/job.sh"], stderr=subprocess.PIPE, text=True, env=env)
    if not wait:
        return p
    p.stderr_text = p.communicate(timeout=60)[1]
    return p, [[w for w in line.split("\0") if w] for line in open(f"{scratch}/srun").read().splitlines()], open(f"{scratch}/told").read()


recipe(ODD)
r = submit(*TENANT, "--gpus", "8..24", "--", "--data.valid", "it's $HOME", name=ODD, dry=False)
check("it is submitted, and stays in the run folder", r.stdout == "Submitted batch job 7\n" and os.path.exists(f"{scratch}/run/job.sbatch"), (r.stdout, r.stderr))
p, runs, told = job(0)
check("three nodes: dp=24", p.returncode == 0 and told == "" and len(runs) == 1 and runs[0][-7:] == [lateen, "train", ODD, "--data.valid", "it's $HOME", "--mesh", "dp=24"] and
      {"--nodes=3", "--ntasks=24", "--nodelist=n1,n2,n3", "--mpi=pmix", "--wait=600"} <= set(runs[0]), (runs, p.stderr_text))
p, runs, told = job(0, fit="n1 n3")
check("two of them are fit: dp=16", runs[0][-1] == "dp=16" and "--nodelist=n1,n3" in runs[0], runs)
p, runs, told = job(0, fit="n2")
check("one: the launcher, dp=8", runs[0][runs[0].index(lateen):] == [lateen, "launch", "--ranks", "8", "--retries", "9", "train", ODD, "--data.valid", "it's $HOME", "--mesh", "dp=8"] and
      "--nodelist=n2" in runs[0], runs)
p, runs, told = job(0, fit="")
check("none: the job queues again", p.returncode == 75 and not runs and told == "scontrol requeue 7\n" and "0 of 3 nodes are fit" in p.stderr_text, (told, p.stderr_text))
p, runs, told = job(0, fit="", SLURM_RESTART_COUNT="20")
check("and is held after too many restarts", told == "scontrol requeuehold 7\n", told)
p, runs, told = job(75)
check("ranks that saved: the job queues again", p.returncode == 75 and told == "scontrol requeue 7\n" and len(runs) == 1, (p.returncode, told))
for state in ("COMPLETING", "CANCELLED"):
    p, runs, told = job(75, STATE=state)
    check(f"ranks that saved because the job is {state}: it does not", p.returncode == 75 and told == "", (p.returncode, told))
p, runs, told = job(75, STATE="SIGNALING")
check("a state that does not mean an end: it does", told == "scontrol requeue 7\n", told)
p, runs, told = job(1)
check("a wrong run ends the job", p.returncode == 1 and told == "" and len(runs) == 1, (p.returncode, told))
for status in (74, 76, 78, 137):
    p, runs, told = job(status)
    check(f"status {status} without progress: three starts", p.returncode == status and told == "" and len(runs) == 3, (p.returncode, told, len(runs)))
p = job(75, wait=False, HOLD="1")
until = time.time() + 60
while not os.path.exists(f"{scratch}/begun") and time.time() < until:
    time.sleep(0.02)
p.send_signal(signal.SIGTERM)
open(f"{scratch}/go", "w").close()
p.communicate(timeout=60)
check("a job that Slurm ends does not queue again", p.returncode == 75 and open(f"{scratch}/told").read() == "", (p.returncode, open(f"{scratch}/told").read()))

recipe("odd.yaml")
for more, waiting, grows in (("1", "", True), ("0", "", False), ("1", "someone", False)):
    r = submit(*TENANT, "--gpus", "8..24", "--no-check", "--grow-min", "0.017", name="odd.yaml", dry=False)
    p, runs, told = job(0, nodes="n1 n2 n3*", WATCH="1", SLURM_JOB_NUM_NODES="2", IDLE=more, WAITING=waiting)
    check(f"{more} nodes idle, {waiting or 'nobody'} waiting: it {'grows' if grows else 'continues'}", ("scancel --signal=USR2 7" in told) == grows and runs[0][-1] == "dp=16", (told, runs))

for by, words in (("pyxis", ["--container-image=i m", f"--container-mounts={scratch}:{scratch}", f"--container-workdir={scratch}", "lateen"]), ("environment", ["--environment=i m", "lateen"]),
                  ("apptainer", ["apptainer", "exec", "--nv", "--bind", scratch, "--pwd", scratch, "i m", "lateen"])):
    submit(*TENANT, "--gpus", "8..24", "--container", "i m", "--container-by", by, name="odd.yaml", dry=False)
    p, runs, told = job(0)
    at = runs[0].index("train")
    check(f"in a container by {by}", runs[0][at - len(words):at] == words, runs)
shutil.rmtree(scratch)
sys.exit(tap.end())
