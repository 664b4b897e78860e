"""The reference solutions of a programming task all pass its tests, and do not pass with a fault in each. TAP on stdout.

usage: programs.py LATEEN humaneval|mbpp FILE     (HumanEval.jsonl of openai/human-eval, mbpp.jsonl of google-research; not compressed)"""
import json
import os
import subprocess
import sys
import tempfile

from tap import Tap

lateen, task, file = sys.argv[1:4]
tap = Tap()
lines = [json.loads(line) for line in open(file) if line.strip()]
solution = "canonical_solution" if task == "humaneval" else "code"


def score(texts):
    with tempfile.TemporaryDirectory() as folder:
        with open(f"{folder}/responses.jsonl", "w") as f:
            f.writelines(json.dumps({"response": text}) + "\n" for text in texts)
        r = subprocess.run([lateen, "eval", "--task", task, file, "--responses", f"{folder}/responses.jsonl", "--test-limit", "120", "--outputs", f"{folder}/out.jsonl", "--json"],
                           capture_output=True, text=True)
        wrong = [lines[row["question"]]["task_id"] for row in map(json.loads, open(f"{folder}/out.jsonl")) if not row["scores"]["passed"]] if r.returncode == 0 else []
        return json.loads(r.stdout)["pass@1"] if r.returncode == 0 else r.stderr[-500:], wrong


@tap.case
def solutions():
    got, wrong = score([line[solution] for line in lines])
    tap.check(f"all {len(lines)} reference solutions pass", got == 1.0, (got, wrong))
    early = "    import os\n    os._exit(0)\n" if task == "humaneval" else "import os\nos._exit(0)\n"
    got, wrong = score([early for _ in lines])
    tap.check("programs that end early pass nothing", got == 0.0, got)


sys.exit(tap.end())
