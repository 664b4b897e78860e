"""`lateen align experiment`: killed at random moments it ends with the same bytes; its summary equals sums in Python; methods are those of the server; faults of a file are named. TAP on stdout. Standard library only.

usage: align_experiment.py LATEEN MODEL TOKENIZER"""
import json
import math
import os
import random
import signal
import subprocess
import sys
import tempfile
import time

from tap import Tap

lateen, model, tokenizer = sys.argv[1:4]
tap = Tap()
check, case = tap.check, tap.case
folder = tempfile.TemporaryDirectory()
where = folder.name

TASK = os.path.join(where, "task.jsonl")
with open(TASK, "w") as f:
    for prompt, answer in (("Once upon a", "time.*"), ("Once upon a time, there was a little", "(girl|boy).*"), ("They lived happily ever", "after.*"), ("She was very", "(happy|sad).*")):
        f.write(json.dumps({"prompt": prompt, "answer": answer, "checker": "regex"}) + "\n")

FILE = """
out: %s
models:
  - {name: stories, path: %s, tokenizer: %s}
seeds: [1, 2, 3]
max_running: 16
request: {max_tokens: 8, temperature: 1.2, stop: "."}
tasks:
  - {name: phrases, file: %s}
  - {name: sums, make: arithmetic, level: 1-2, count: 6, shots: 2}
methods:
  - {name: plain}
  - {name: best, alignment: {method: best_of_n, n: [1, 2, 4]}}
  - {name: soft, alignment: {method: soft_best_of_n, n: [2, 4], temperature: [0.1, 1]}}
  - {name: gold, alignment: {method: best_of_n, n: [1, 4], reward: gold}}
"""


def write(name, text):
    path = os.path.join(where, name)
    with open(path, "w") as f:
        f.write(text)
    return path


def start(file, *flags):
    return subprocess.Popen([lateen, "align", "experiment", file, *flags], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def run(file, *flags):
    p = start(file, *flags)
    out, err = p.communicate(timeout=120)
    return p.returncode, out + err


def read(out, name):
    with open(os.path.join(where, out, name), "rb") as f:
        return f.read()


def rows(out, name="results.jsonl"):
    return [r for r in map(json.loads, read(out, name).decode().splitlines()) if "experiment" not in r]


file = write("a.yaml", FILE % (os.path.join(where, "whole"), model, tokenizer, TASK))


@case
def killed():
    status, said = run(file)
    check("an experiment runs", status == 0, said)
    want = [read("whole", name) for name in ("results.jsonl", "summary.jsonl")]
    cells = len(rows("whole"))
    check("a line a cell", cells == 3 * 10 * 10 and [r["cell"] for r in rows("whole")] == list(range(cells)), cells)
    kills = 0
    for _ in range(40):
        p = start(file, "--out", os.path.join(where, "killed"))
        time.sleep(random.uniform(0.05, 0.5))
        if p.poll() is not None:
            break
        p.kill()
        p.communicate()
        kills += 1
        path = os.path.join(where, "killed", "results.jsonl")
        if os.path.exists(path):
            with open(path, "ab") as f:
                f.write(b'{"cell":7,"mod')  # A line that the crash cut off.
        if kills == 3:
            run(file, "--out", os.path.join(where, "killed"))
    status, said = run(file, "--out", os.path.join(where, "killed"))
    check(f"killed {kills} times, it ends with the same bytes", status == 0 and [read("killed", name) for name in ("results.jsonl", "summary.jsonl")] == want, said)
    p = start(file, "--out", os.path.join(where, "stopped"))
    while not os.path.exists(os.path.join(where, "stopped", "results.jsonl")):
        time.sleep(0.01)
    time.sleep(0.1)
    p.send_signal(signal.SIGINT)
    said = p.communicate(timeout=60)[1]
    check("SIGINT stops it, or it had ended", p.returncode in (0, 75), (p.returncode, said))
    check("and it continues", run(file, "--out", os.path.join(where, "stopped"))[0] == 0 and read("stopped", "results.jsonl") == want[0])


@case
def sums():
    z = 1.959963984540054
    got = {(r["task"], r["method"], json.dumps(r["parameters"])): r for r in rows("whole", "summary.jsonl")}
    groups = {}
    for r in rows("whole"):
        groups.setdefault((r["task"], r["method"], json.dumps(r["parameters"])), {}).setdefault(r["problem"], []).append(r)
    check("a line a configuration", set(got) == set(groups) and len(got) == 20, set(got) ^ set(groups))
    worst = 0.0
    for key, problems in groups.items():
        p = [sum(r["right"] for r in x) / 3 for x in problems.values()]
        n, mean = len(p), sum(p) / len(p)
        variance = sum((x - mean) ** 2 for x in p) / (n - 1)
        m = min(mean * (1 - mean) / (variance / n), 3 * n) if variance > 1e-12 and 0 < mean < 1 else n
        middle, half = (mean + z * z / 2 / m) / (1 + z * z / m), z / (1 + z * z / m) * math.sqrt(mean * (1 - mean) / m + z * z / 4 / m / m)
        want = [mean, max(0, middle - half), min(1, middle + half)]
        tokens = sum(sum(r["tokens"] for r in x) / 3 for x in problems.values()) / n
        worst = max([worst, abs(tokens - got[key]["tokens"][0]) / tokens] + [abs(a - b) for a, b in zip(want, got[key]["accuracy"])])
    check("means and Wilson's intervals are those of Python", worst < 1e-6, worst)
    check("the model can do part of it", any(0 < r["accuracy"][0] < 1 for r in got.values()))


@case
def methods():
    cell = {(r["task"], r["method"], json.dumps(r["parameters"]), r["seed"], r["problem"]): r for r in rows("whole")}
    plain = [k for k in cell if k[1] == "plain"]
    same = [cell[k]["text"] == cell[(k[0], "best", '{"n": 1}', k[3], k[4])]["text"] for k in plain]
    check("one candidate is plain sampling: the same seed, the same text", all(same), same)
    scores = [[cell[(k[0], "best", '{"n": %d}' % n, k[3], k[4])]["score"] for n in (1, 2, 4)] for k in plain]
    check("with the same seed more candidates never score less", all(a <= b <= c for a, b, c in scores), scores[:3])
    gold = [[cell[(k[0], "gold", '{"n": %d}' % n, k[3], k[4])]["right"] for n in (1, 4)] for k in plain]
    check("with the gold reward, more candidates are never wrong where fewer are right", all(a <= b for a, b in gold))
    kl = {json.dumps(r["parameters"]): r["kl"] for r in rows("whole", "summary.jsonl") if r["method"] == "best"}
    check("the bound of the divergence is log n - 1 + 1/n", all(abs(kl['{"n": %d}' % n] - (math.log(n) - 1 + 1 / n)) < 1e-6 for n in (1, 2, 4)), kl)


@case
def page():
    text = read("whole", "report.html").decode()
    data = json.loads(text.split("const data = ", 1)[1].split(";\nconst colors", 1)[0])
    check("the report holds the summary", [{**r} for r in data["rows"]] == rows("whole", "summary.jsonl") and data["done"] == data["cells"] == 300)
    check("and loads nothing", "http://" not in text.replace("http://www.w3.org/", "") and "https://" not in text and "src=" not in text)
    before = read("whole", "report.html")
    os.remove(os.path.join(where, "whole", "report.html"))
    check("--report writes it again", run(file, "--report")[0] == 0 and read("whole", "report.html") == before)


@case
def wrong():
    good = FILE % (os.path.join(where, "wrong"), model, tokenizer, TASK)
    for name, text, want in (("an unknown key", good + "colour: red\n", "colour"), ("an unknown method", good.replace("best_of_n", "best_of_m"), "best_of_m"),
                             ("an unknown field of a request", good.replace("max_tokens: 8", "max_token: 8"), "max_token"),
                             ("no methods", good.split("methods:")[0], "methods"), ("an unknown kind of problems", good.replace("arithmetic", "geometry"), "geometry"),
                             ("a file that does not exist", good.replace(TASK, TASK + "x"), TASK + "x"), ("a level out of range", good.replace("1-2", "1-9"), "level"),
                             ("an unknown key of a task", good.replace("shots", "shot"), "shot"), ("a seed that is there twice", good.replace("[1, 2, 3]", "[1, 2, 1]"), "seeds: 1 is listed twice"),
                             ("half a seed", good.replace("[1, 2, 3]", "[1, 2.5]"), "whole numbers"), ("two methods of one name", good.replace("soft,", "best,").replace("soft_best_of_n, n: [2, 4], temperature: [0.1, 1]", "best_of_n, n: [8, 4]"), "'best'"),
                             ("two tasks of one name", good.replace("sums", "phrases"), "'phrases'"), ("chat neither true nor false", good + "chat: 1\n", "chat must be")):
        status, said = run(write("wrong.yaml", text), "--out", os.path.join(where, name.replace(" ", "-")))
        check(f"{name}: refused by name", status in (1, 2) and want in said, (status, said))
    status, said = run(write("other.yaml", FILE % (os.path.join(where, "whole"), model, tokenizer, TASK) + "# other\n"), "--out", os.path.join(where, "whole"))
    check("a file that says the same goes with the same results", status == 0, said)
    status, said = run(write("other.yaml", FILE.replace("1.2", "1.1") % (os.path.join(where, "whole"), model, tokenizer, TASK)))
    check("the folder of another experiment is refused", status == 1 and "another experiment" in said, said)


sys.exit(tap.end())
