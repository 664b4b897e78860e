"""`lateen align hedge` against the sums of HedgeTune in Python, on candidates drawn by seed. Standard library only; TAP on stdout.

usage: align_hedge.py [LATEEN]"""
import json
import math
import random
import subprocess
import sys
import tempfile

from tap import Tap

lateen = sys.argv[1] if len(sys.argv) > 1 else "build/lateen"
tap = Tap()
check = tap.check
file = tempfile.NamedTemporaryFile("w", suffix=".jsonl")


def run(*flags, path=file.name):
    r = subprocess.run([lateen, "align", "hedge", path, *flags], capture_output=True, text=True)
    return r.returncode, r.stdout, r.stderr


random.seed(1)
prompts = []
# The proxy is right except for its noise, but its best scores belong to wrong answers.
for i in range(400):
    proxy = [random.random() for _ in range(12)]
    prompts.append((proxy, [u ** 4 * (1 - u) + random.gauss(0, 0.01) for u in proxy]))
file.write("".join(json.dumps({"proxy": p, "truth": t}) + "\n" for p, t in prompts) + "\n")
file.flush()


def best_of(n):
    total = 0
    for p, t in prompts:
        order = sorted(range(len(p)), key=lambda i: p[i])
        total += sum(math.comb(k, n - 1) * t[i] for k, i in enumerate(order)) / math.comb(len(p), n)
    return total / len(prompts)


def poisson(mu):
    p = [math.exp(-mu) * mu ** k / math.factorial(k) for k in range(11)]
    return sum(q * best_of(k + 1) for k, q in enumerate(p)) + (1 - sum(p)) * best_of(12)


def soft(t):
    total = 0
    for p, truth in prompts:
        w = [math.exp(x / t) for x in p]
        total += sum(a * b for a, b in zip(w, truth)) / sum(w)
    return total / len(prompts)


for method, value, tries in (("best_of_n", best_of, range(1, 13)), ("best_of_poisson", poisson, (0.5, 1, 2, 3, 4, 6, 9)), ("soft_best_of_n", soft, (0.05, 0.1, 0.2, 0.4, 0.8))):
    status, out, err = run("--method", method, "--parameters", ",".join(map(str, tries)), "--json")
    a = json.loads(out)
    want = {float(x): value(x) for x in tries}
    check(f"{method}: values", all(abs(v["value"] - want[v["parameter"]]) < 1e-7 for v in a["values"]) and len(a["values"]) == len(want), (a, want))
    check(f"{method}: the best is inside what was tried", a["best"] == max(want, key=want.get) and not a["at_edge"] and a["low"] <= a["best"] <= a["high"], a)
status, out, _ = run()
check("the usual values: powers of two; the table names the best", status == 0 and out.count("\n") == 7 and "best" in out, out)
status, out, _ = run("--method", "soft_best_of_n", "--json")
check("the usual temperatures", status == 0 and len(json.loads(out)["values"]) == 40, out)
status, out, _ = run("--parameters", "1,2")
check("the summary says that the best is at the edge of what was tried", "last value" in out, out)
bad = tempfile.NamedTemporaryFile("w")
for name, text, flags, words in (("another method", "", ["--method", "rejection"], "no parameter to tune"), ("more than there are", "", ["--parameters", "4,13"], "12 samples"),
                                 ("values that fall", "", ["--parameters", "4,2"], "rising"), ("lists of different lengths", '{"proxy": [1, 2], "truth": [1]}', [], "line 2"),
                                 ("a text among numbers", '{"proxy": [1, "2"], "truth": [1, 3]}', [], '"proxy"[1]'), ("no JSON", "{", [], "line 2"), ("no prompt", None, [], "no line")):
    bad.seek(0)
    bad.truncate()
    bad.write("" if text is None else '{"proxy": [1], "truth": [1]}\n' + text)
    bad.flush()
    status, out, err = run(*flags, path=bad.name if text != "" else file.name)
    check(f"refused: {name}", status in (1, 2) and words in err, (status, err))
check("a file that does not exist", run(path="nowhere.jsonl")[0] == 1)
sys.exit(tap.end())
