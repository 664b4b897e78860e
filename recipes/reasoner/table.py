"""Markdown tables of evaluation.jsonl: each model over all problems, and greedy answers by kind and by level. Standard library only.

usage: table.py evaluation.jsonl"""
import json
import sys

lines = [json.loads(line) for line in open(sys.argv[1])]
models = list(dict.fromkeys(line["model"] for line in lines))
of = {(line["model"], line["samples"]): line for line in lines}
samples = max(line["samples"] for line in lines)


def percent(x):
    return f"{100 * x:.1f}" if x is not None else ""


def show(cells):
    print("| " + " | ".join(map(str, cells)) + " |")


show(["model", "greedy", "tokens", "pass@1", f"maj@{samples}", f"pass@{samples}"])
show(["---"] * 6)
for model in models:
    greedy, drawn = of[model, 1], of.get((model, samples), {"rows": {"all": {}}})["rows"]["all"]
    show([model, percent(greedy["rows"]["all"]["right"]), greedy["tokens"], *(percent(drawn.get(key)) for key in ("pass@1", f"maj@{samples}", f"pass@{samples}"))])
print()
show(["greedy", "problems", *models])
show(["---"] * (len(models) + 2))
for row, judged in of[models[0], 1]["rows"].items():
    show([row, judged["problems"], *(percent(of[model, 1]["rows"][row]["right"]) for model in models)])
