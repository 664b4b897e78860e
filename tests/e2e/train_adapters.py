"""Adapters of one model that are trained at once end as if each had been trained alone: losses, gradient norms and weights; with different data, ranks, modules, rates and steps; when they resume from checkpoints, also of different steps; while one of them diverges; and on two ranks, where tests/unit/parallel/test_adapters_at_once.c has more meshes. Standard library only; TAP on stdout.

usage: train_adapters.py LATEEN [--device DEVICE]"""
import json
import math
import os
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time

from tap import Tap

lateen, golden = sys.argv[1], "tests/golden/sft"
device = sys.argv[3] if len(sys.argv) > 3 else "cpu"
tap = Tap()
# The rows of all adapters are summed in products with other shapes than the rows of one.
LOSS, NORM, WEIGHT = 1e-5, 1e-4, 2e-4
COMMON = {"device": device, "model.init": golden, "data.train": f"{golden}/chat.jsonl", "data.seq": 64, "batch.size": 4, "steps": 12, "threads": 2, "sample.tokens": 0, "lr.schedule": "constant", "lora.rank": 4, "checkpoint.every": 2,
          "checkpoint.keep_last": 9}
ADAPTERS = {
    "plain": {},
    "support": {"optim.lr": 1e-3, "data.valid": f"{golden}/chat.jsonl", "eval.every": 6},
    "legal": {"data.train": "{work}/half.jsonl", "data.shuffle": "none", "lora.rank": 8, "lora.alpha": 16, "lora.targets": "q_proj,v_proj", "lora.scale": "sqrt", "steps": 8},
    "short": {"seed": 7, "batch.size": 3, "optim.clip": 0.1, "optim.kind": "lion", "optim.lr": 2e-4, "data.packing": "single"},
}


def write(name, common, adapters):
    """YAML in which every value is also JSON."""
    lines = [f"{k}: {json.dumps(v)}" for k, v in common.items() if v is not None] + ["adapters:"]
    for adapter, options in adapters.items():
        lines.append(f"  {adapter}: " + json.dumps({k: v.format(work=work) if isinstance(v, str) else v for k, v in options.items()}))
    with open(f"{work}/{name}", "w") as f:
        f.write("\n".join(lines) + "\n")
    return f"{work}/{name}"


def train(*args, **more):
    return subprocess.run([lateen, "train", *args], capture_output=True, text=True, **more)


def on_ranks(recipe, *args, launch=()):
    return subprocess.run([lateen, "launch", "--ranks", "2", *launch, "train", recipe, *args], capture_output=True, text=True)


def alone(adapter, **more):
    out = f"{work}/alone/{adapter}"
    options = {**COMMON, "out": out, **ADAPTERS[adapter], **more}
    return out, train(*(w for k, v in options.items() for w in (f"--{k}", str(v).format(work=work))))


def rows(out, kind):
    return [r for r in map(json.loads, open(f"{out}/metrics.jsonl")) if r["kind"] == kind]


def numbers(out):
    data = open(f"{out}/adapter/adapter_model.safetensors", "rb").read()
    n = struct.unpack("<Q", data[:8])[0]
    head = {k: v for k, v in json.loads(data[8:8 + n]).items() if k != "__metadata__"}
    return {k: struct.unpack(f"<{(v['data_offsets'][1] - v['data_offsets'][0]) // 4}f", data[8 + n + v["data_offsets"][0]:8 + n + v["data_offsets"][1]]) for k, v in head.items()}


def bits(out):
    return open(f"{out}/adapter/adapter_model.safetensors", "rb").read()


def apart(one, other):
    """How two runs of an adapter differ; "": not at all."""
    for kind, near in (("train", {"loss": LOSS, "grad_norm": NORM, "lr": 0, "tokens": 0}), ("eval", {"loss": LOSS, "tokens": 0})):
        a, b = rows(one, kind), rows(other, kind)
        if [r["step"] for r in a] != [r["step"] for r in b]:
            return f"{kind}: steps {[r['step'] for r in a]}, {[r['step'] for r in b]}"
        wrong = [(x["step"], k, x[k], y[k]) for x, y in zip(a, b) for k, e in near.items() if not math.isclose(x[k], y[k], rel_tol=e)]
        if wrong:
            return wrong[:2]
    x, y = numbers(one), numbers(other)
    wrong = sorted(set(x) ^ set(y)) + [k for k in set(x) & set(y) if max(map(abs, (p - q for p, q in zip(x[k], y[k])))) > WEIGHT * max(map(abs, y[k]))]
    same = json.load(open(f"{one}/adapter/adapter_config.json")) == json.load(open(f"{other}/adapter/adapter_config.json"))
    return wrong[:3] or ("" if same else "adapter_config.json")


def fails(name, recipe, text, status=2):
    done = train(recipe)
    tap.check(name, done.returncode == status and text in done.stderr, f"{done.returncode}: {done.stderr[-400:]}")


with tempfile.TemporaryDirectory() as work:
    with open(f"{golden}/chat.jsonl") as f, open(f"{work}/half.jsonl", "w") as g:
        g.writelines(f.readlines()[:3])
    many = f"{work}/many"
    done = train(write("many.yaml", {**COMMON, "out": many}, ADAPTERS))
    tap.check("four adapters at once", done.returncode == 0, done.stderr[-600:])
    last = [line for line in done.stderr.splitlines() if line.startswith("step ")]
    tap.check("their losses are in one line", last and all(f" {name} " in done.stderr for name in ADAPTERS), done.stderr[-300:])
    for name in ADAPTERS:
        out, one = alone(name)
        tap.check(f"{name}: as if it were alone", one.returncode == 0 and not apart(f"{many}/{name}", out), one.stderr[-400:] if one.returncode else apart(f"{many}/{name}", out))

    micro = f"{work}/micro"
    done = train(write("micro.yaml", {**COMMON, "out": micro, "batch.micro": 5}, ADAPTERS))
    wrong = {name: apart(f"{micro}/{name}", f"{work}/alone/{name}") for name in ADAPTERS} if done.returncode == 0 else done.stderr[-400:]
    tap.check("rows of a step in several passes", done.returncode == 0 and not any(wrong.values()), wrong)

    # Two ranks that divide each row, which "short" shortens on one rank; then two that have half
    # of the layers each.
    mesh, legal = f"{work}/mesh", ADAPTERS["legal"]
    first = on_ranks(write("mesh.yaml", {**COMMON, "out": mesh, "mesh": "cp=2", "threads": 1}, {**ADAPTERS, "legal": {**legal, "steps": 6}}), "--steps", "6")
    second = on_ranks(write("mesh.yaml", {**COMMON, "out": mesh, "mesh": "pp=2", "threads": 1}, ADAPTERS), launch=("--retries", "1"))
    ended = first.returncode == second.returncode == 0
    wrong = {name: apart(f"{mesh}/{name}", f"{work}/alone/{name}") for name in ADAPTERS} if ended else first.stderr[-400:] + second.stderr[-400:]
    tap.check("two ranks, and on another mesh", ended and not any(wrong.values()), wrong)
    tap.check("the launcher's events are beside the folders of all", os.path.exists(f"{mesh}/events.jsonl") and not os.path.exists(f"{mesh}/plain/events.jsonl"))
    done = on_ranks(write("mesh.yaml", {**COMMON, "out": f"{work}/nodes"}, ADAPTERS), launch=("--nodes", "2", "--shrink", "--retries", "2"))
    tap.check("refused in the first attempt: snapshots in memory, and the replicas that --shrink would leave out", done.returncode == 2
              and "leave --nodes out, and with it --spares and --shrink" in done.stderr and "attempt 2" not in done.stderr, f"{done.returncode}: {done.stderr[-300:]}")

    done = on_ranks(write("mesh.yaml", {**COMMON, "out": f"{work}/replay", "mesh": "dp=2", "guard.replay": 2}, {"a": {}}))
    tap.check("refused: guard.replay", done.returncode == 1 and "not computed again with several adapters at once" in done.stderr, f"{done.returncode}: {done.stderr[-300:]}")

    # A rank is killed. The other one keeps its process, and both end with the bits of an
    # undisturbed run.
    pair = {"first": {"optim.lr": 1e-3}, "second": {"lora.rank": 2}}
    for name in ("calm", "killed"):
        out = f"{work}/{name}"
        recipe = write(f"{name}.yaml", {**COMMON, "out": out, "steps": 200, "checkpoint.every": 10, "mesh": "dp=2", "mesh.zero": 2, "threads": 1}, pair)
        process = subprocess.Popen([lateen, "launch", "--ranks", "2", "--retries", "1", "--keep", "train", recipe], stderr=subprocess.PIPE, text=True)
        until = time.monotonic() + 120
        while name == "killed" and time.monotonic() < until and not (os.path.exists(f"{out}/first/metrics.jsonl") and len(rows(f"{out}/first", "train")) > 20):
            time.sleep(0.01)
        with open(f"/proc/{process.pid}/task/{process.pid}/children") as f:
            ranks = [int(pid) for pid in f.read().split()]
        if name == "killed" and len(ranks) == 2:
            os.kill(ranks[1], signal.SIGKILL)
        said = process.communicate()[1]
    wrong = [name for name in pair if process.returncode == 0 and bits(f"{work}/killed/{name}") != bits(f"{work}/calm/{name}")]
    tap.check("a rank is killed, the other one keeps its process: the same bits", process.returncode == 0 and "ended by signal 9" in said and "ended with status 76" not in said and not wrong, wrong or said[-600:])

    # Half of the steps, then the rest: the same bits. legal takes all of its steps at once.
    parts = f"{work}/parts"
    first = train(write("parts.yaml", {**COMMON, "out": parts}, {**ADAPTERS, "legal": {**ADAPTERS["legal"], "steps": 6}}), "--steps", "6")
    second = train(write("parts.yaml", {**COMMON, "out": parts}, ADAPTERS))
    wrong = [name for name in ADAPTERS if second.returncode == 0 and bits(f"{parts}/{name}") != bits(f"{many}/{name}")]
    tap.check("continued: the same bits", first.returncode == second.returncode == 0 and not wrong, wrong or first.stderr[-300:] + second.stderr[-300:])

    # One run has lost its newest checkpoints: the others do not wait for it.
    shutil.rmtree(f"{many}/support/checkpoints/step-000000012")
    shutil.rmtree(f"{many}/support/checkpoints/step-000000010")
    shutil.rmtree(f"{many}/short/checkpoints/step-000000012")
    done = train(f"{work}/many.yaml")
    wrong = {name: apart(f"{many}/{name}", f"{work}/alone/{name}") for name in ADAPTERS} if done.returncode == 0 else done.stderr[-400:]
    tap.check("continued from different steps", done.returncode == 0 and not any(wrong.values()), wrong)

    # An adapter whose loss is not finite leaves; the others end as usual.
    bad = f"{work}/bad"
    for who, run, more in (("one diverges", train, {}), ("one diverges on two ranks", on_ranks, {"mesh": "tp=2", "threads": 1, "out": f"{bad}-2"})):
        out = more.get("out", bad)
        done = run(write("bad.yaml", {**COMMON, "out": bad, "guard.limit": 2, **more}, {**ADAPTERS, "wild": {"optim.lr": 90, "optim.clip": 0, "optim.kind": "lion"}}))
        wrong = {name: apart(f"{out}/{name}", f"{work}/alone/{name}") for name in ADAPTERS} if "wild" in done.stderr else done.stderr[-400:]
        tap.check(f"{who}, the others do not notice", done.returncode == 1 and "adapter wild" in done.stderr and not any(wrong.values()), wrong or done.stderr[-300:])

    # The file `exit` stops all runs, and everything is saved.
    for ranks, start, mesh in (1, (), ""), (2, ("launch", "--ranks", "2"), "cp=2"):
        long = f"{work}/long-{ranks}"
        recipe = write("long.yaml", {**COMMON, "out": long, "steps": 1000000, "checkpoint.every": 0, "mesh": mesh}, {k: {**v, "steps": 1000000} for k, v in ADAPTERS.items()})
        process = subprocess.Popen([lateen, *start, "train", recipe], stderr=subprocess.DEVNULL)
        until = time.monotonic() + 120
        while time.monotonic() < until and not (os.path.exists(f"{long}/short/metrics.jsonl") and rows(f"{long}/short", "train")):
            time.sleep(0.05)
        open(f"{long}/exit", "w").close()
        status = process.wait(120)
        saved = [os.listdir(f"{long}/{name}/checkpoints") for name in ADAPTERS]
        tap.check(f"a stop saves all, ranks: {ranks}", status == 75 and len({s[0] for s in saved}) == 1 and not os.path.exists(f"{long}/exit"), f"{status} {saved}")

    one = {"a": {}}
    for text, common, adapters in (
        ("model.dtype is the same for all adapters", {}, {"a": {"model.dtype": "bf16"}}),
        ("lora.base is the same for all adapters", {}, {"a": {"lora.base": "nf4"}}),
        ("lora.rnk", {}, {"a": {"lora.rnk": 4}}),
        ("adapter a: no data", {"data.train": None}, one),
        ("NAME: {steps: 100}", {}, {"a": {"name": "b"}}),
        ("adapter a: it needs a lora.rank", {"lora.rank": 0}, one),
        ("is not a name of an adapter", {}, {"A b": one["a"]}),
        ("several adapters at once with objective.kind other than sft", {"objective.kind": "dpo"}, one),
        ("with page", {"page": 1}, one),
        ("lora.dora", {}, {"a": {**one["a"], "lora.dora": True}}),
    ):
        done = train(write("wrong.yaml", {**COMMON, "out": f"{work}/wrong", **common}, adapters))
        tap.check(f"refused: {text}", done.returncode in (1, 2) and text in done.stderr and not os.path.exists(f"{work}/wrong"), f"{done.returncode}: {done.stderr[-300:]}")
    done = train(write("wrong.yaml", {**COMMON, "out": f"{work}/wrong"}, {"a": {**one["a"], "lora.targets": "q_proj,lm_head"}}))
    tap.check("refused: the output head", done.returncode == 1 and "adapters of the output head (lora.targets)" in done.stderr, done.stderr[-300:])
sys.exit(tap.end())
