#!/usr/bin/env python3
"""The manifests of deploy/kubernetes: valid by Kubernetes' own schemas (those of the package kubernetes-validate; without it, skipped) and by Kueue's (tests/golden/kubernetes), started with commands
and options that the program has, and with the quotas of recipes/policy.yaml. kubernetes.py LATEEN. Needs PyYAML; skipped without it."""
import copy
import glob
import json
import logging
import re
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
            continue  # See below.
        try:
            kubernetes_validate.validate(d, "1.31", strict=True)
            why = ""
        except Exception as e:
            why = repr(e)
        check(f"{path}: {d['kind']} is valid", not why, why)
except ImportError:
    tap.skip("schemas", "kubernetes-validate is not installed")


KUEUE = json.load(open("tests/golden/kubernetes/kueue.json"))["schemas"]
QUANTITY = r"[0-9]+(\.[0-9]+)?([eE][0-9]+|[kMGTPE]i?|m)?"


def wrong(x, s, at=""):
    """Where a value violates an OpenAPI schema of a CustomResourceDefinition, as the API server
    prunes and checks it; "": it is valid. Rules in CEL are not evaluated."""
    if s.get("x-kubernetes-int-or-string"):
        return "" if isinstance(x, int) or (isinstance(x, str) and re.fullmatch(QUANTITY, x)) else f"{at}: {x!r} is no quantity"
    kinds = {"object": dict, "array": list, "string": str, "integer": int, "boolean": bool, "number": (int, float)}
    if not isinstance(x, kinds[s["type"]]) or (isinstance(x, bool) and s["type"] != "boolean"):
        return f"{at}: {x!r} is no {s['type']}"
    if "enum" in s and x not in s["enum"]:
        return f"{at}: {x!r} is none of {s['enum']}"
    if isinstance(x, str) and not (s.get("minLength", 0) <= len(x) <= s.get("maxLength", len(x)) and re.search(s.get("pattern", ""), x)):
        return f"{at}: {x!r} has another form or length"
    if isinstance(x, list):
        keys = s.get("x-kubernetes-list-map-keys")
        if not s.get("minItems", 0) <= len(x) <= s.get("maxItems", len(x)) or (keys and len({tuple(v.get(k) for k in keys) for v in x}) < len(x)):
            return f"{at}: {len(x)} items, or two of one name"
        return next((w for i, v in enumerate(x) if (w := wrong(v, s["items"], f"{at}[{i}]"))), "")
    if isinstance(x, dict) and at != ".metadata":
        known, more = s.get("properties", {}), s.get("additionalProperties")
        for k in s.get("required", []):
            if k not in x:
                return f"{at}.{k} is missing"
        for k, v in x.items():
            if k not in known and not more:
                return f"{at}.{k} is not known"
            if w := wrong(v, known.get(k, more), f"{at}.{k}"):
                return w
    return ""


def kueue(d):
    schema = KUEUE.get(f"{d['apiVersion']} {d['kind']}")
    return wrong(d, schema) if schema else f"{d['apiVersion']} {d['kind']} is not served by Kueue"


for path, d in manifests:
    if d["apiVersion"].startswith("kueue."):
        check(f"{path}: {d['kind']} {d['metadata']['name']} is valid by Kueue's schema", kueue(d) == "", kueue(d))
        # Two of Kueue's rules in CEL.
        groups = d["spec"].get("resourceGroups", []) if d["kind"] == "ClusterQueue" else []
        check(f"{path}: {d['metadata']['name']}: each flavor has a quota for each resource, and a queue that borrows has a cohort",
              all([r["name"] for r in f["resources"]] == g["coveredResources"] and (d["spec"].get("cohortName") or not any("borrowingLimit" in r for r in f["resources"]))
                  for g in groups for f in g["flavors"]), groups) if groups else None


def spoilt(change, d):
    d = copy.deepcopy(d)
    change(d)
    return kueue(d)


a_queue = next(d for _, d in manifests if d["kind"] == "ClusterQueue")
a_quota = lambda d: d["spec"]["resourceGroups"][0]["flavors"][0]["resources"][0]  # noqa: E731
for what, change, says in (("an old version", lambda d: d.update(apiVersion="kueue.x-k8s.io/v1beta1"), "not served"), ("an unknown field", lambda d: d["spec"].update(cohort="x"), ".spec.cohort is not known"),
                           ("another policy", lambda d: d["spec"]["preemption"].update(withinClusterQueue="Sometimes"), "none of"), ("a number for a text", lambda d: d["spec"].update(cohortName=3), "is no string"),
                           ("a quota that is none", lambda d: a_quota(d).update(nominalQuota="many"), "no quantity"), ("a quota that is missing", lambda d: a_quota(d).pop("nominalQuota"), "nominalQuota is missing"),
                           ("a name in capitals", lambda d: d["spec"].update(cohortName="Lateen"), "another form"), ("a flavor twice", lambda d: d["spec"]["resourceGroups"][0]["flavors"].append(d["spec"]["resourceGroups"][0]["flavors"][0]), "two of one name")):
    check(f"{what} is not valid", says in spoilt(change, a_queue), spoilt(change, a_queue))


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
        check(f"{path}: its probes ask a port that it serves", all(p["port"] in ports and p["path"] == {"serve": "/health", "health": "/healthz"}[verb] for p in probes), probes)

policy = yaml.safe_load(open("recipes/policy.yaml"))
queues = {d["metadata"]["name"]: d["spec"] for _, d in manifests if d["kind"] == "ClusterQueue"}
quotas = {name: (r := q["resourceGroups"][0]["flavors"][0]["resources"][0])["nominalQuota"] for name, q in queues.items()}
check("queues have the quotas and the slack of recipes/policy.yaml", quotas == {**{n: t["quota"] for n, t in policy["tenants"].items()}, "slack": policy["slack"]}, quotas)
check("and its shares", all(queues[n]["fairSharing"]["weight"] == str(t.get("share", 1)) for n, t in policy["tenants"].items()))
check("all are of one cohort, and each tenant has a local queue", len({q["cohortName"] for q in queues.values()}) == 1 and
      {d["spec"]["clusterQueue"] for _, d in manifests if d["kind"] == "LocalQueue"} == set(policy["tenants"]))
sys.exit(tap.end())
