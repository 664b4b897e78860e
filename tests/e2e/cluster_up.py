#!/usr/bin/env python3
"""`tools/cluster.sh up`: four nodes, Prometheus and the page within 30 s; a job of `lateen submit` on all nodes appears there with its numbers; the end leaves no process and no file. cluster_up.py LATEEN. Skipped without
Debian's slurm-wlm, libpmix-dev, prometheus and jq."""
import glob
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request

from tap import Tap

tap = Tap()
check = tap.check
os.environ["PATH"] += ":/usr/sbin:/sbin"
missing = [p for p in ("slurmctld", "slurmd", "prometheus", "jq") if not shutil.which(p)]
if missing or not glob.glob("/usr/lib/*/pmix2/lib/libpmix.so"):
    tap.skip("a cluster on this machine", f"not installed: {missing or 'libpmix-dev'}")
    sys.exit(tap.end())
lateen, scratch = os.path.abspath(sys.argv[1]), tempfile.mkdtemp()
port = 20000 + os.getpid() % 10000 // 20 * 20
env = {**os.environ, "CLUSTER_PORT": str(port), "TMPDIR": scratch}


def up(*words):
    return subprocess.Popen(["tools/cluster.sh", "up", *words, lateen], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=env)


def page():
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/data.json", timeout=20) as r:
        return json.load(r)


def processes():
    """Those that have a file of the cluster among their words or variables."""
    found = []
    for path in glob.glob("/proc/[0-9]*/environ"):
        try:
            if f"SLURM_CONF={scratch}".encode() in open(path, "rb").read() and int(path.split("/")[2]) != os.getpid():
                found.append(open(path.replace("environ", "cmdline")).read().replace("\0", " "))
        except OSError:
            pass
    return found


begin, said, started = time.time(), "", up()
try:
    for line in started.stdout:
        said += line
        if "Ctrl-C" in line:
            break
    took = time.time() - begin
    check("it is up in under 30 s, and says so", "the cluster is up" in said and took < 30, (took, said))
    d = page()
    check("four nodes are idle and have been checked", sorted((n["node"], n["state"]) for n in d["nodes"]) == [(f"n{k}", "idle") for k in range(1, 5)] and
          sorted(x["metric"]["node"] for x in d["health"]) == ["n1", "n2", "n3", "n4"], d["nodes"])
    again = up()
    text = again.communicate(timeout=30)[0]
    check("a second one is refused, and its message names the port", again.returncode == 1 and f"port {port} is in use" in text, text)
    # The commands that it prints, for a small recipe.
    variables = dict(re.findall(r"(SLURM_CONF|OMPI_MCA_btl)=(\S+)", said))
    words = re.search(r"a run +(.*)", said)[1].split()
    with open(f"{scratch}/small.yaml", "w") as f:
        f.write(f"data.train: {os.path.abspath('tests/golden/train/tokens')}\nthreads: 1\nmodel: {{layers: 1, width: 32, heads: 2, vocab: 300}}\ndata.seq: 32\nbatch.size: 8\nlr.schedule: constant\n"
                "steps: 100000000\nlog.every: 5\nout: watched\n")
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        at = f"127.0.0.1:{s.getsockname()[1]}"
    words = ["small.yaml" if w == "RECIPE" else at if w == "127.0.0.1:9400" else w for w in words]
    r = subprocess.run(words, capture_output=True, text=True, cwd=scratch, env={**os.environ, **variables}, timeout=60)
    check("the run that it proposes is submitted", r.returncode == 0 and "Submitted batch job" in r.stdout, (words, r.stderr))
    until = time.time() + 120
    while time.time() < until and not ([x for x in d.get("tokens_per_s", []) if x["metric"]["run"] == "watched"] and d["jobs"]):
        time.sleep(1)
        d = page()
    logs = "".join(open(x).read()[-800:] for x in glob.glob(f"{scratch}/slurm-*.out"))
    check("the page shows the job on four nodes, and the run with its tenant and speed", [(j["tenant"], j["nodes"], j["state"]) for j in d["jobs"]] == [("physics", "4", "RUNNING")] and
          {x["metric"].get("tenant") for x in d["info"]} == {"physics"} and d["tokens_per_s"], (d["jobs"], d.get("info"), logs))
    started.send_signal(signal.SIGINT)
    started.wait(timeout=60)
    until = time.time() + 20
    while processes() and time.time() < until:
        time.sleep(0.5)
    check("its end is clean: no process is left", started.returncode == 0 and processes() == [], (started.returncode, processes()))
    check("and none of its files", [x for x in os.listdir(scratch) if x.startswith("tmp.")] == [], os.listdir(scratch))
    r = subprocess.run(["tools/cluster.sh", "down"], capture_output=True, text=True)
    check("another word: usage", r.returncode == 2 and r.stderr.startswith("usage: tools/cluster.sh up"), r.stderr)
except Exception as e:
    check("nothing unexpected", False, (repr(e), said))
finally:
    if started.poll() is None:
        started.send_signal(signal.SIGTERM)
        started.wait(timeout=60)
    shutil.rmtree(scratch, ignore_errors=True)
sys.exit(tap.end())
