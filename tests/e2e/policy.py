#!/usr/bin/env python3
"""`lateen cluster policy`: what is refused and by which numbers, what is written for recipes/policy.yaml (tests/golden/policy, which a real slurmdbd has loaded: slurm_policy.py), and that what
is granted never exceeds what lives, for 60 policies drawn by seed. policy.py LATEEN."""
import os
import random
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
refuses("a misspelt option", [("slack", "slak")], "p.yaml:2", "slack")
refuses("a misspelt option of a tenant", [("chemistry: {quota", "chemistry: {quot")], "p.yaml:5", "quota")
refuses("a name that a shell would read", [("chemistry:", "\"che'm\":")], "che'm")
refuses("a user that a shell would read", [("alice,bob", "alice,b'; reboot '")], "users", "'''")
refuses("no nodes", [("nodes: 4, ", "")], "cluster.nodes")
refuses("more alive than there are", [], "33", "32", more=("--live", "33"))
refuses("fewer alive than the guarantees of that time", [], "8 GPUs", "7", more=("--live", "7", "--at", "2027-01-11T00:00:00"))
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
    touched = max(short, default=0)  # All of lower priority have nothing left; all of higher have everything.
    fair = all(g == 0 for p, g in zip(priorities, now) if p < touched)
    sums = [(sum(q for q, p in zip(quotas, priorities) if p == touched), sum(g for g, p in zip(now, priorities) if p == touched))]
    even = all(abs(g - q * sums[0][1] / sums[0][0]) <= 1 + 1e-9 for p, q, g in zip(priorities, quotas, now) if p == touched)
    if not (sum(now) == sum(quotas) - lack and sum(now) + min(slack_now, max(0, live - sum(now))) <= live and slack_now == max(0, slack - lost) and fair and even):
        wrong.append((text, live, slack_now, got))
check("60 policies: nothing beyond what lives; slack, then the lowest priority, then in proportion", not wrong, wrong[:1])
shutil.rmtree(scratch)
sys.exit(tap.end())
