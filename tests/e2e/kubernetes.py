#!/usr/bin/env python3
"""The manifests of deploy/kubernetes: valid by Kubernetes' own schemas (those of the package kubernetes-validate; without it, skipped), started with commands and options that the program has, and
with the quotas of recipes/policy.yaml. kubernetes.py LATEEN. Needs PyYAML; skipped without it."""
import glob
import logging
import subprocess
import sys

from tap import Tap

tap = Tap()
check = tap.check
try:
    import yaml
except ImportError:
    tap.skip("manifests", "PyYAML is not installed")
    sys.exit(tap.end())
lateen = sys.argv[1]
manifests = [(path, d) for path in sorted(glob.glob("deploy/kubernetes/*.yaml")) for d in yaml.safe_load_all(open(path))]
try:
    import kubernetes_validate
    logging.disable(logging.CRITICAL)
    for path, d in manifests:
        if d["apiVersion"].startswith("kueue."):
            continue  # The schemas of Kueue are its own.
        try:
            kubernetes_validate.validate(d, "1.31", strict=True)
            why = ""
        except Exception as e:
            why = repr(e)
        check(f"{path}: {d['kind']} is valid", not why, why)
except ImportError:
    tap.skip("schemas", "kubernetes-validate is not installed")


def containers(d):
    spec = d.get("spec", {}).get("template", {}).get("spec", {})
    return spec.get("initContainers", []) + spec.get("containers", [])


for path, d in manifests:
    for c in containers(d):
        verb, *words = c["args"]
        at = words.index("train") if verb == "launch" else len(words)
        known = [subprocess.run([lateen, "completion", "flags", v], capture_output=True, text=True).stdout.split() for v in (verb, "train")]
        wrong = [w for i, w in enumerate(words) if w.startswith("--") and w not in known[i > at]]
        check(f"{path}: `lateen {verb}` has these options", known[0] and not wrong, (wrong, words))
        ports = {p["name"] for p in c.get("ports", [])}
        probes = [c[p]["httpGet"] for p in ("startupProbe", "readinessProbe", "livenessProbe") if p in c]
        check(f"{path}: its probes ask a port that it has", all(p["port"] in ports and p["path"] == {"serve": "/health", "health": "/healthz"}[verb] for p in probes), probes)

policy = yaml.safe_load(open("recipes/policy.yaml"))
queues = {d["metadata"]["name"]: d["spec"] for _, d in manifests if d["kind"] == "ClusterQueue"}
quotas = {name: (r := q["resourceGroups"][0]["flavors"][0]["resources"][0])["nominalQuota"] for name, q in queues.items()}
check("queues have the quotas and the slack of recipes/policy.yaml", quotas == {**{n: t["quota"] for n, t in policy["tenants"].items()}, "slack": policy["slack"]}, quotas)
check("and its shares", all(queues[n]["fairSharing"]["weight"] == str(t.get("share", 1)) for n, t in policy["tenants"].items()))
check("all are of one cohort, and each tenant has a local queue", len({q["cohort"] for q in queues.values()}) == 1 and
      {d["spec"]["clusterQueue"] for _, d in manifests if d["kind"] == "LocalQueue"} == set(policy["tenants"]))
sys.exit(tap.end())
