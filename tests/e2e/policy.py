#!/usr/bin/env python3
"""`lateen cluster policy`: what is refused and with which numbers, what is written for recipes/policy.yaml (tests/golden/policy, which a real slurmdbd has loaded: slurm_policy.py), and that no more is granted than there are working GPUs, for 60 random policies; and `lateen simulate policy`. policy.py LATEEN."""
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile

from tap import Tap

tap = Tap()
check = tap.check
lateen, scratch = os.path.abspath(sys.argv[1]), tempfile.mkdtemp()
GOOD = """cluster: {nodes: 4, node_gpus: 8}
slack: 8
tenants:
  physics: {quota: 8, users: "alice,bob"}
  chemistry: {quota: 8}
guarantees:
  paper: {tenant: physics, gpus: 8, from: "2027-01-10T08:00:00", until: "2027-01-12T08:00:00"}
"""


def policy(text, *more):
    with open(f"{scratch}/p.yaml", "w") as f:
        f.write(text)
    return subprocess.run([lateen, "cluster", "policy", f"{scratch}/p.yaml", *more], capture_output=True, text=True, timeout=60)


def refuses(what, change, *says, more=()):
    text = GOOD
    for old, new in change:
        assert old in text, old
        text = text.replace(old, new, 1)
    r = policy(text, *more)
    check(f"{what} is refused", r.returncode == 2 and all(s in r.stderr for s in says), (r.returncode, r.stderr))


check("a policy that fills the cluster is accepted", policy(GOOD, "--check").returncode == 0)
refuses("one GPU too many", [("chemistry: {quota: 8}", "chemistry: {quota: 9}")], "physics 8, chemistry 9", "slack of 8", "8 at 2027-01-10T08:00:00", "33 GPUs", "4 nodes have 32")
refuses("a second guarantee at the same time", [("guarantees:\n", 'guarantees:\n  talk: {tenant: chemistry, gpus: 8, from: "2027-01-11T00:00:00", until: "2027-01-11T01:00:00"}\n')],
        "16 at 2027-01-11T00:00:00", "40 GPUs")
check("one right after it is accepted", policy(GOOD.replace("guarantees:\n", 'guarantees:\n  talk: {tenant: chemistry, gpus: 8, from: "2027-01-12T08:00:00", until: "2027-01-13T01:00:00"}\n'),
                                               "--check").returncode == 0)
refuses("more to borrow than there is", [("chemistry: {quota: 8}", "chemistry: {quota: 8, borrow: 25}")], "tenant chemistry", "8", "25", "32")
refuses("no quota", [("chemistry: {quota: 8}", "chemistry: {share: 2}")], "tenant chemistry")
refuses("a tenant without options", [("chemistry: {quota: 8}", "chemistry:")], "tenants.chemistry")
refuses("an unknown tenant", [("tenant: physics", "tenant: physic")], "guarantee paper", "'physic'")
refuses("a part of a node", [("gpus: 8, from", "gpus: 12, from")], "guarantee paper", "physics", "12 GPUs", "8 GPUs")
refuses("an end before the begin", [("2027-01-12", "2027-01-09")], "guarantee paper", "2027-01-09T08:00:00")
refuses("a time without seconds", [("2027-01-12T08:00:00", "2027-01-12T08:00")], "'2027-01-12T08:00'")
refuses("a day that its month does not have", [("2027-01-12", "2027-02-30")], "'2027-02-30T08:00:00'")
refuses("a misspelt option", [("slack", "slak")], "p.yaml:2", "slack")
refuses("a misspelt option of a tenant", [("chemistry: {quota", "chemistry: {quot")], "p.yaml:5", "quota")
refuses("a name that a shell would read", [("chemistry:", "\"che'm\":")], "che'm")
refuses("a user that a shell would read", [("alice,bob", "alice,b'; reboot '")], "users", "'''")
refuses("no nodes", [("nodes: 4, ", "")], "cluster.nodes")
refuses("more alive than there are", [], "33", "32", more=("--live", "33"))
refuses("fewer alive than the guarantees of that time", [], "8 GPUs", "7", more=("--live", "7", "--at", "2027-01-11T00:00:00"))
for name, says in (("root", "Slurm itself has an account"), ("normal", "Slurm itself has a QOS"), ("physics-borrow", "a QOS of tenant physics"), ("physics-guarantee", "a QOS of tenant physics")):
    refuses(f"a tenant {name}", [("chemistry:", f"{name}:")], f"tenant {name}", says)
check("a tenant whose name only ends like a QOS is accepted", policy(GOOD.replace("chemistry:", "late-borrow:"), "--check").returncode == 0)
refuses("a user that sacctmgr would take for an option", [("alice,bob", "alice,-b")], "users", "'-' cannot stand at the beginning")
refuses("two partitions", [("node_gpus: 8", "node_gpus: 8, partition: 'a, b'")], "cluster.partition", "','")
refuses("a cluster of no nodes", [("nodes: 4", "nodes: 0")], "cluster.nodes is missing, or 0")
refuses("--at without --live", [], "--at", more=("--at", "2027-01-11T00:00:00"))
refuses("--out beside --check", [], "--out", more=("--check", "--out", f"{scratch}/none"))
check("another time", policy(GOOD, "--check", "--live", "7", "--at", "2027-01-13T00:00:00").returncode == 0)
check("no file: usage", subprocess.run([lateen, "cluster", "policy"], capture_output=True).returncode == 2)

r = subprocess.run([lateen, "cluster", "policy", "recipes/policy.yaml", "--out", f"{scratch}/out"], capture_output=True, text=True)
for name in ("policy.conf", "accounts.sh", "reservations.sh"):
    check(f"recipes/policy.yaml: {name}", r.returncode == 0 and open(f"{scratch}/out/{name}").read() == open(f"tests/golden/policy/{name}").read(), r.stderr)


def table(text, *more):
    r = policy(text, "--check", *more)
    lines = r.stdout.splitlines()
    slack = int(lines[0].split("slack ")[1].split(",")[0])
    return slack, {w[0]: list(map(int, w[1:])) for w in map(str.split, lines[3:])}


rng, wrong = random.Random(7), []
for draw in range(60):
    nodes, gpus, n = rng.randint(1, 20), rng.choice((1, 4, 8)), rng.randint(1, 6)
    quotas, left = [], nodes * gpus
    for i in range(n):
        quotas.append(rng.randint(0, left))
        left -= quotas[-1]
    slack, priorities, live = rng.randint(0, left), [rng.randint(1, 3) for _ in quotas], rng.randint(0, nodes * gpus)
    text = f"cluster: {{nodes: {nodes}, node_gpus: {gpus}}}\nslack: {slack}\ntenants:\n" + "".join(f"  t{i}: {{quota: {q}, priority: {p}}}\n" for i, (q, p) in enumerate(zip(quotas, priorities)))
    slack_now, got = table(text, "--live", str(live))
    now = [got[f"t{i}"][1] for i in range(n)]
    lost, lack = nodes * gpus - live, max(0, sum(quotas) - live)
    short = [p for p, q, g in zip(priorities, quotas, now) if g < q]
    # All of lower priority have nothing left; all of higher priority have everything.
    touched = max(short, default=0)
    fair = all(g == 0 for p, g in zip(priorities, now) if p < touched)
    sums = [(sum(q for q, p in zip(quotas, priorities) if p == touched), sum(g for g, p in zip(now, priorities) if p == touched))]
    even = all(abs(g - q * sums[0][1] / sums[0][0]) <= 1 + 1e-9 for p, q, g in zip(priorities, quotas, now) if p == touched)
    if not (sum(now) == sum(quotas) - lack and sum(now) + min(slack_now, max(0, live - sum(now))) <= live and slack_now == max(0, slack - lost) and fair and even):
        wrong.append((text, live, slack_now, got))
check("60 policies: never more than the working GPUs; slack is lost first, then the quotas of the lowest priority, in proportion", not wrong, wrong[:1])
# The simulation of a trace: one GPU; "low" borrows it, "high" has it as its quota and takes it
# after 60 s.
with open(f"{scratch}/p.yaml", "w") as f:
    f.write("cluster: {nodes: 1, node_gpus: 1}\npreempt.exempt_s: 60\ntenants:\n  high: {quota: 1}\n  low: {quota: 0}\n")


def simulate(trace, *more, name="t.csv"):
    with open(f"{scratch}/{name}", "w") as f:
        f.write(trace)
    return subprocess.run([lateen, "simulate", "policy", f"{scratch}/p.yaml", "--trace", f"{scratch}/{name}", *more], capture_output=True, text=True, timeout=60)


TRACE = 'note,vc,arrival_s,scale_factor,run_s\n"a, b",high,10,1,20\n,low,0,1,100\n'
r = simulate(TRACE, "--json")
told = json.loads(r.stdout)
waits = {t["tenant"]: (t["jobs"], t["wait_mean_s"], t["preemptions"]) for t in told["tenants"]}
check("a job is preempted and continues", waits == {"high": (1, 50, 0), "low": (1, 20, 1), "all": (2, 35, 1)} and told["span_s"] == told["busy_gpu_s"] == 120, told)
share = [20 / 70, 100 / 120]
check("Jain's index of the shares of time in which jobs ran", abs(told["jain"] - sum(share) ** 2 / (2 * sum(x * x for x in share))) < 1e-9, told["jain"])
check("the table says the same", "utilisation 100.0 %" in simulate(TRACE).stdout, simulate(TRACE).stdout)
with open(f"{scratch}/times.csv", "w") as f:
    f.write("runtime\n5\n6\n")
bare = "tenant,arrival_s,gpus\n" + "high,0,1\n" * 30
one, two, three = (simulate(bare, "--runtimes", f"{scratch}/times.csv", "--json", "--seed", s).stdout for s in "112")
check("drawn run times follow the seed", one == two != three and 150 < json.loads(one)["busy_gpu_s"] < 180, (one, three))
for what, trace, more, says in (("an unknown tenant", TRACE.replace("low,", "lo,"), (), (":3", "'lo'")), ("a number that is none", TRACE.replace(",10,", ",ten,"), (), (":2", "arrival_s", "'ten'")),
                                ("half a GPU", TRACE.replace(",1,20", ",0.5,20"), (), (":2", "0.5 GPUs")), ("no run times", bare, (), ("run_s", "--runtimes")),
                                ("run times twice", TRACE, ("--runtimes", f"{scratch}/times.csv"), ("contradicts",)), ("a job that never fits", TRACE.replace(",1,20", ",2,20"), (), ("high", "2 GPUs", "quota is 1")),
                                ("no jobs", "tenant,arrival_s,gpus,run_s\n", (), ("no jobs",)), ("no header", "high,1,2,3\n", (), ("tenant (or vc)",))):
    r = simulate(trace, *more)
    check(f"{what} is refused", r.returncode in (1, 2) and all(s in r.stderr for s in says), (r.returncode, r.stderr))

# The command for a timer, as docs/platform/tenants.md prints it: a node of two partitions counts once, and no answer of Slurm changes nothing.
with open("docs/platform/tenants.md") as f:
    command = f.read().split("A timer can run this:")[1].split("(8 is")[0].replace("lateen ", f"{lateen} ", 1)
with open(f"{scratch}/policy.yaml", "w") as f:
    f.write(GOOD)
os.makedirs(f"{scratch}/bin")
for lines, status, quotas in (("n1 n1 n2 n3 n4", 0, {"physics": 8, "chemistry": 8}), ("n1 n1", 0, {"physics": 4, "chemistry": 4}), ("", 1, None), ("", 0, {"physics": 0, "chemistry": 0})):
    for name, text in (("sinfo", f"printf '%s\\n' {lines}\nexit {status}"), ("sacctmgr", "exit 0")):
        with open(f"{scratch}/bin/{name}", "w") as f:
            f.write(f"#!/bin/sh\n{text}\n")
        os.chmod(f"{scratch}/bin/{name}", 0o755)
    shutil.rmtree(f"{scratch}/policy", ignore_errors=True)
    r = subprocess.run(["bash", "-c", command], capture_output=True, text=True, cwd=scratch, env={**os.environ, "PATH": f"{scratch}/bin:{os.environ['PATH']}"})
    got = None
    if os.path.exists(f"{scratch}/policy/accounts.sh"):
        written = open(f"{scratch}/policy/accounts.sh").read()
        got = {t: int(n) for t, n in re.findall(r"^qos '(physics|chemistry)' .*gres/gpu=(\d+)", written, re.M)}
    check(f"the timer's command with nodes '{lines}' and status {status}", got == quotas and (r.returncode == 0) == (status == 0), (got, r.stderr))
shutil.rmtree(scratch)
sys.exit(tap.end())
