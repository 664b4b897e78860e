"""Check that an OpenAPI description is consistent: operations are named once, references exist, path parameters are declared, and required properties are
known. Also runs openapi-spec-validator if it is installed.

usage: openapi_refs.py FILE"""
import json
import re
import sys

spec = json.load(open(sys.argv[1]))
wrong, names = [], []


def walk(node, at):
    if isinstance(node, dict):
        ref = node.get("$ref")
        if isinstance(ref, str):
            target = spec
            for step in ref[2:].split("/"):
                target = target.get(step, {}) if isinstance(target, dict) else {}
            if not target:
                wrong.append(f"{at}: {ref} leads nowhere")
        if "properties" in node and isinstance(node.get("required"), list):
            wrong.extend(f"{at}: {r} is required, and not known" for r in node["required"] if r not in node["properties"])
        for k, v in node.items():
            walk(v, f"{at}/{k}")
    elif isinstance(node, list):
        for i, v in enumerate(node):
            walk(v, f"{at}/{i}")


walk(spec, "")
for path, methods in spec["paths"].items():
    for method, operation in methods.items():
        names.append(operation["operationId"])
        said = {p["name"] for p in operation.get("parameters", []) if p["in"] == "path"}
        if said != set(re.findall(r"{(\w+)}", path)):
            wrong.append(f"{method} {path}: parameters {said}")
wrong += [f"{n} stands twice" for n in set(names) if names.count(n) > 1]
for path in ("/v1/chat/completions", "/v1/responses", "/v1/messages", "/api/chat", "/v1/responses/{response_id}", "/v1/chat/completions/{completion_id}/messages", "/tokenize", "/v1/files", "/v1/files/{file_id}/content",
             "/v1/batches/{batch_id}/cancel"):
    if path not in spec["paths"]:
        wrong.append(f"no {path}")
try:
    from openapi_spec_validator import validate
    validate(spec)
except ImportError:
    pass
except Exception as e:
    wrong.append(str(e)[:500])
print("".join(f"# {w}\n" for w in wrong), end="")
sys.exit(bool(wrong))
