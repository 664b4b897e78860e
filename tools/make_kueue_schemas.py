#!/usr/bin/env python3
"""Make tests/golden/kubernetes/kueue.json: the schemas of Kueue's objects that deploy/kubernetes uses, from its CustomResourceDefinitions, without descriptions and status.

usage: make_kueue_schemas.py FOLDER COMMIT > tests/golden/kubernetes/kueue.json
FOLDER: config/components/crd/bases of a checkout of https://github.com/kubernetes-sigs/kueue (Apache License 2.0) at COMMIT. Needs PyYAML."""
import json
import sys

import yaml

folder, commit = sys.argv[1:]


def bare(x):
    """Remove descriptions; a property with the name "description" is kept."""
    if isinstance(x, list):
        return [bare(v) for v in x]
    if not isinstance(x, dict):
        return x
    return {k: ({n: bare(v) for n, v in x[k].items()} if k == "properties" else bare(x[k])) for k in x if k != "description" or not isinstance(x[k], str)}


out = {"source": "https://github.com/kubernetes-sigs/kueue, config/components/crd/bases", "commit": commit, "license": "Apache License 2.0", "made by": "tools/make_kueue_schemas.py", "schemas": {}}
for plural in ("resourceflavors", "clusterqueues", "localqueues"):
    d = yaml.safe_load(open(f"{folder}/kueue.x-k8s.io_{plural}.yaml"))
    for v in d["spec"]["versions"]:
        if v["served"] and not v.get("deprecated"):
            schema = bare(v["schema"]["openAPIV3Schema"])
            schema["properties"].pop("status", None)
            out["schemas"][f"{d['spec']['group']}/{v['name']} {d['spec']['names']['kind']}"] = schema
json.dump(out, sys.stdout, indent=1, sort_keys=True)
print()
