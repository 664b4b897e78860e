"""Where the time of a step goes: the trace of a step on all ranks, and what a run of several ranks reports about each. Standard library only; TAP on stdout.

usage: train_times.py LATEEN
       train_times.py --trace FILE RANKS LAYERS MICRO_BATCHES   only check this trace, of a model whose layers are not divided; exit status 1 and a message if it is wrong"""
import json
import os
import subprocess
import sys
import tempfile
from collections import defaultdict

from tap import Tap

SMALL = {"data.train": "tests/golden/train/tokens", "export": "false", "threads": 1, "model.family": "llama", "model.layers": 2, "model.width": 32, "model.heads": 2, "model.vocab": 300,
         "data.seq": 16, "batch.size": 8, "batch.micro": 2, "lr.schedule": "constant", "lr.warmup": 0, "steps": 4}
SLACK_US = 0.002  # Times are printed with three decimals.


def no_constant(text):
    raise ValueError(f"{text} is no JSON")


def read_trace(path):
    return json.load(open(path), parse_constant=no_constant)


def wrong_nesting(events):
    """A viewer draws the events of one row as a stack: each lies within the one below it, or
    after it."""
    stack = []
    for e in sorted(events, key=lambda e: (e["ts"], -e["dur"])):
        while stack and stack[-1]["ts"] + stack[-1]["dur"] <= e["ts"] + SLACK_US:
            stack.pop()
        if stack and e["ts"] + e["dur"] > stack[-1]["ts"] + stack[-1]["dur"] + SLACK_US:
            return f"{e} overlaps the end of {stack[-1]}"
        stack.append(e)
    return ""


def wrong_format(trace, ranks):
    """What the trace event format requires of complete and metadata events."""
    rows, names = defaultdict(list), set()
    for e in trace["traceEvents"]:
        if not (isinstance(e["pid"], int) and isinstance(e["tid"], int) and isinstance(e["name"], str) and isinstance(e["args"], dict)):
            return f"members of {e}"
        if e["ph"] == "M":
            names.add((e["pid"], e["tid"], e["name"]))
        elif e["ph"] == "X" and e["ts"] >= 0 and e["dur"] >= 0 and isinstance(e["cat"], str):
            rows[e["pid"], e["tid"]].append(e)
        else:
            return f"event {e}"
    if {pid for pid, _ in rows} != set(range(ranks)):
        return f"ranks {sorted({pid for pid, _ in rows})}"
    for pid, tid in rows:
        if (pid, tid, "thread_name") not in names or (pid, 0, "process_name") not in names:
            return f"row {tid} of rank {pid} has no name"
    if min(e["ts"] for row in rows.values() for e in row) != 0:
        return "no event begins at 0"
    return next(filter(None, map(wrong_nesting, rows.values())), "")


def of_rank(trace, rank, **members):
    return [e for e in trace["traceEvents"] if e["ph"] == "X" and e["pid"] == rank and all(e[n] == v for n, v in members.items())]


def wrong_layers(trace, ranks, layers, micros):
    """Each layer runs forward and backward once per micro-batch, within the step."""
    for rank in range(ranks):
        for word in ("forward", "backward"):
            for layer in range(layers):
                n = len(of_rank(trace, rank, name=f"{word}, layer {layer}"))
                if n != micros:
                    return f"rank {rank}: {word} of layer {layer} {n} times"
        if len(of_rank(trace, rank, name="step")) != 1:
            return f"rank {rank} has not one step"
    return ""


def call_of(e):
    """What is equal for all members; in an all-to-all each sends its own number of bytes."""
    return e["name"], 0 if e["name"].startswith("all_to_all") else e["args"]["bytes"]


def wrong_collectives(trace, ranks, group):
    """Members make the same calls, and no member ends a call before all have begun it; in an
    all_to_all a member may receive nothing, so that it waits for no other."""
    calls = [sorted((e for e in of_rank(trace, r, cat="collective") if e["name"].endswith(" " + group)), key=lambda e: e["args"]["call"]) for r in range(ranks)]
    if not calls[0] or any(list(map(call_of, c)) != list(map(call_of, calls[0])) for c in calls):
        return f"calls of {group}: {[len(c) for c in calls]}"
    for one in zip(*calls):
        if not one[0]["name"].startswith("all_to_all") and min(e["ts"] + e["dur"] for e in one) + SLACK_US < max(e["ts"] for e in one):
            return f"{one}"
    return ""


def check_file(path, ranks, layers, micros):
    trace = read_trace(path)
    wrong = wrong_format(trace, ranks) or wrong_layers(trace, ranks, layers, micros) or wrong_collectives(trace, ranks, "grad")
    print(wrong, end="")
    return int(wrong != "")


def main(lateen):
    tap, work = Tap(), tempfile.mkdtemp()

    def train(name, ranks, **changed):
        out = f"{work}/{name}"
        args = {**SMALL, "out": out, **{k.replace("__", "."): v for k, v in changed.items()}}
        words = ["launch", "--ranks", str(ranks)] if ranks > 1 else []
        words += ["train"] + [w for n, v in args.items() for w in (f"--{n}", str(v))]
        done = subprocess.run([lateen] + words, capture_output=True, text=True, timeout=120, env={**os.environ, "OMP_NUM_THREADS": "1"})
        return done, out

    def rows(out, kind):
        return [r for r in map(json.loads, open(out + "/metrics.jsonl")) if r["kind"] == kind]

    def losses(out):
        return [(r["loss"], r["grad_norm"]) for r in rows(out, "train")]

    def data_parallel():
        done, out = train("dp", 2, mesh="dp=2", mesh__zero=1, trace_step=3)
        trace = read_trace(f"{out}/trace-step-3.json")
        wrong = wrong_format(trace, 2) or wrong_layers(trace, 2, 2, 2) or wrong_collectives(trace, 2, "grad")
        tap.check("the trace of two ranks: format, layers, collectives", done.returncode == 0 and not wrong, wrong or done.stderr[-300:])
        verbs = {e["name"].split()[0] for e in of_rank(trace, 0, cat="collective")}
        tap.check("sums of gradients, gathers of weights and the record are in it", {"reduce_scatter", "all_gather"} <= verbs, verbs)
        told = rows(out, "ranks")[-1]
        per = told["ranks"]
        tap.check("every rank is reported, with the memory that it announced and used",
                  [r["rank"] for r in per] == [0, 1] and all(r["compute_s"] > 0 and r["comm_s"] >= 0 and r["transfer_s"] > 0 and r["announced_bytes"] > 0 and r["peak_bytes"] > 0 for r in per), per)
        tap.check("the slowest rank computes longest", told["slowest"] == max(per, key=lambda r: r["compute_s"])["rank"], told)
        tap.check("a table at the end says so", "comp/comm" in done.stderr and f"{told['slowest']} slowest" in done.stderr, done.stderr[-600:])
        steps = rows(out, "train")
        tap.check("the steps too", all(0 <= r["comm_s"] and r["transfer_s"] > 0 and r["slowest_rank"] in (0, 1) for r in steps), steps)
        done, plain = train("plain", 2, mesh="dp=2", mesh__zero=1)
        tap.check("a step that is traced has the bits of one that is not", losses(plain) == losses(out) and len(losses(out)) == 4, (losses(plain), losses(out)))
        page = open(f"{out}/report.html").read()
        tap.check("the report has the ranks", '"kind":"ranks"' in page.replace(" ", "") and 'id="ranks"' in page, page[-3000:])

    def pipeline():
        done, out = train("pp", 2, mesh="pp=2", mesh__stages="1,5", model__layers=6, model__width=128, data__seq=64, batch__micro=1, trace_step=2)
        trace = read_trace(f"{out}/trace-step-2.json")
        wrong = wrong_format(trace, 2)
        for rank, layers in ((0, [0]), (1, [1, 2, 3, 4, 5])):
            ops = [(e["args"]["chunk"], e["args"]["micro_batch"]) for e in of_rank(trace, rank) if e["name"].startswith("stage forward")]
            wrong = wrong or (sorted(ops) != [(0, m) for m in range(8)] and f"rank {rank}: {ops}")
            wrong = wrong or next((f"layer {i}" for i in layers if len(of_rank(trace, rank, name=f"forward, layer {i}")) != 8), "")
        tap.check("the trace of a pipeline: format, stages, layers", done.returncode == 0 and not wrong, wrong or done.stderr[-300:])
        sent, came = ([e for e in of_rank(trace, r, cat="message") if e["name"] == f"{verb} pp"] for r, verb in ((0, "send"), (1, "recv")))
        late = [(s, c) for s, c in zip(sorted(sent, key=lambda e: e["args"]["call"]), sorted(came, key=lambda e: e["args"]["call"])) if c["ts"] + c["dur"] + SLACK_US < s["ts"]]
        tap.check("no message comes before it is sent", len(sent) == len(came) == 8 and not late, late or (len(sent), len(came)))
        tap.check("the rank with five of six layers is the slowest", rows(out, "ranks")[-1]["slowest"] == 1, rows(out, "ranks")[-1])

    def alone():
        done, out = train("one", 1, trace_step=1)
        trace = read_trace(f"{out}/trace-step-1.json")
        wrong = wrong_format(trace, 1) or wrong_layers(trace, 1, 2, 4)
        tap.check("the recipe of the run does not ask for the trace again", "trace_step: 0" in open(f"{out}/recipe.yaml").read())
        tap.check("the trace of one rank", done.returncode == 0 and not wrong, wrong or done.stderr[-300:])
        done, _ = train("one", 1, trace_step=2)
        tap.check("nor is one of a run that has ended", done.returncode != 0 and "trace_step = 2: all 4 steps of this run are done" in done.stderr, done.stderr[-300:])
        done, _ = train("late", 1, trace_step=5)
        tap.check("a step that the run does not do is refused", done.returncode != 0 and "trace_step = 5: this run does steps 1 to 4" in done.stderr, done.stderr[-300:])

    for case in (data_parallel, pipeline, alone):
        tap.case(case)
    return tap.end()


if sys.argv[1] == "--trace":
    sys.exit(check_file(sys.argv[2], *map(int, sys.argv[3:6])))
sys.exit(main(sys.argv[1]))
