"""Runs of several ranks, started by mpirun: each of PyTorch's runs (tests/golden/train) on 2 and 3 ranks; a run that resumes with another number of ranks; a rank that is told to stop, suspended or killed; pipelines; meshes that are refused. Standard library only; TAP on stdout.

usage: train_ranks.py LATEEN [ranks | model]    ranks that divide the rows, or the model; both without"""
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time

lateen, golden = sys.argv[1], "tests/golden/train/"
count = failed = 0
# PyTorch computed in double, this in float: each step differs by rounding, and the differences
# add up (train_truth.py).
LOSS, NORM = 2e-5, 2e-4
SMALL = {"data.train": golden + "tokens", "export": "false", "threads": 1, "model.layers": 2, "model.width": 32, "model.heads": 2, "model.vocab": 300, "data.seq": 16,
         "batch.size": 12, "lr.schedule": "constant"}
MPI = dict(os.environ, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1", ASAN_OPTIONS="detect_leaks=0", TSAN_OPTIONS="detect_deadlocks=0")


def check(name, wrong):
    global count, failed
    count += 1
    failed += bool(wrong)
    print(f"{'not ok' if wrong else 'ok'} {count} - {name}" + (f"\n  # {str(wrong)[:600]}" if wrong else ""), flush=True)


def command(ranks, args):
    words = [lateen, "train"] + [w for n, v in args.items() for w in (f"--{n}", str(v))]
    return (["mpirun", "--oversubscribe", "--bind-to", "none", "-n", str(ranks)] if ranks > 0 else []) + words


def train(ranks, args):
    return subprocess.run(command(ranks, args), capture_output=True, text=True, env=MPI, stdin=subprocess.DEVNULL, timeout=120)


def rows(out, kind):
    return [r for r in map(json.loads, open(out + "/metrics.jsonl")) if r["kind"] == kind]


def near(a, b, bound):
    return math.isclose(a, b, rel_tol=bound, abs_tol=1e-12)


def compare(want, got):
    """Steps, then validations, of two lists of rows."""
    for kind in ("steps", "evals"):
        if [r["step"] for r in want[kind]] != [r["step"] for r in got[kind]]:
            return f"{kind}: {[r['step'] for r in got[kind]]}"
    for w, g in zip(want["steps"], got["steps"]):
        if not (near(w["loss"], g["loss"], LOSS) and near(w["grad_norm"], g["grad_norm"], NORM) and near(w["lr"], g["lr"], 1e-8) and w["batch"] == g["batch"]):
            return f"step {w['step']}: {w}, not {({n: g[n] for n in ('loss', 'grad_norm', 'lr', 'batch')})}"
    for w, g in zip(want["evals"], got["evals"]):
        if not (near(w["loss"], g["loss"], LOSS) and w["tokens"] == g["tokens"] and near(w["accuracy"], g["accuracy"], 1e-8)):
            return f"validation {w}, not {g}"
    return ""


def read(out):
    return {"steps": rows(out, "train"), "evals": rows(out, "eval")}


def all_divide(run, ranks):
    sizes = [int(run["args"]["batch.size"])] + [int(p.split("@")[0]) for p in str(run["args"].get("batch.ramp", "")).split(",") if p]
    return all(s % ranks == 0 for s in sizes)


def beside_pytorch(work):
    for i, run in enumerate(json.load(open(golden + "train.json"))):
        for ranks in (2, 3):
            out = f"{work}/torch-{i}-{ranks}"
            args = {"out": out, "data.train": golden + "tokens", "export": "false", "threads": 1, **run["args"]}
            if run["evals"]:
                args["data.valid"] = golden + "valid"
            if not all_divide(run, ranks):
                continue
            done = train(ranks, args)
            check(f"{run['name']}, {ranks} ranks", done.stderr[-400:] if done.returncode else compare(run if run["evals"] else {**run, "evals": []}, read(out)))


def stages_beside_pytorch(work):
    """Ranks that divide the layers (pp), and the rows too."""
    for i, run in enumerate(json.load(open(golden + "train.json"))):
        for mesh, ranks in (("pp=2", 2), ("pp=2,dp=2", 4)):
            out = f"{work}/stages-{i}-{ranks}"
            args = {"out": out, "data.train": golden + "tokens", "export": "false", "threads": 1, "mesh": mesh, **run["args"]}
            if run["evals"]:
                args["data.valid"] = golden + "valid"
            if ranks == 4 and (i % 3 != 0 or int(args["batch.size"]) % 2):
                continue
            done = train(ranks, args)
            check(f"{run['name']}, {mesh}", done.stderr[-400:] if done.returncode else compare(run if run["evals"] else {**run, "evals": []}, read(out)))
            told = rows(out, "pipeline") if not done.returncode else []
            wrong = [r for t in told for r in t["ranks"] if not (0 < r["idle_table"] < 1 and 0 < r["idle_measured"] < 1 and r["layers"] == 1)]
            check(f"{run['name']}, {mesh}: its bubble is reported once", wrong or len(told) != 1 or len(told[0]["ranks"]) != ranks)


def other_mesh(work):
    """Saved on one mesh, and resumed on another: the result of one run."""
    out = f"{work}/meshes"
    deep = {**SMALL, "model.layers": 4, "batch.micro": 2}
    check("a run of four layers", train(0, {**deep, "out": out + "-one", "steps": 9}).returncode)
    for ranks, steps, args in ((2, 2, {"mesh": "pp=2"}), (4, 3, {"mesh": "dp=2,tp=2"}), (4, 4, {"mesh": "pp=2,dp=2", "mesh.stages": "1,3"}), (3, 6, {"mesh": "pp=3"}),
                               (2, 7, {"mesh": "tp=2"}), (2, 8, {"mesh": "pp=2", "mesh.schedule": "interleaved"}), (0, 9, {})):
        done = train(ranks, {**deep, "out": out, "steps": steps, **args})
        check(f"{args or 'one rank'} to step {steps}", done.returncode and done.stderr[-400:])
    check("meshes: equals the run of one", compare(read(out + "-one"), read(out)))


def tokens_divided(work):
    """PyTorch's runs again, with the tokens of each row divided over 2 ranks, with every way of
    attention. Rows that do not divide are refused."""
    ways = ("gather", "ulysses", "ring")
    for i, run in enumerate(json.load(open(golden + "train.json"))):
        out, way = f"{work}/cp-{i}", ways[i % 3]
        args = {"out": out, "data.train": golden + "tokens", "export": "false", "threads": 1, "mesh": "cp=2", "mesh.context": way, **run["args"]}
        if run["evals"]:
            args["data.valid"] = golden + "valid"
        done = train(2, args)
        check(f"{run['name']}, tokens divided by {way}", done.stderr[-400:] if done.returncode else compare(run if run["evals"] else {**run, "evals": []}, read(out)))
    done = train(2, {**SMALL, "out": f"{work}/cp-odd", "data.seq": 18, "mesh": "cp=2"})
    check("rows of 18 tokens over 2 ranks", "cannot be divided into 4 pieces, two for each of cp=2 ranks; 20 tokens can" not in done.stderr and done.stderr[-300:])


def layers_beside_pytorch(work):
    """Ranks that share the layers (tp), and divide the rows too."""
    for i, run in enumerate(json.load(open(golden + "train.json"))):
        for mesh, ranks, rows in (("tp=2", 2, 1), ("dp=2,tp=2", 4, 2)):
            out = f"{work}/tp-{i}-{ranks}"
            args = {"out": out, "data.train": golden + "tokens", "export": "false", "threads": 1, "mesh": mesh, **run["args"]}
            if run["evals"]:
                args["data.valid"] = golden + "valid"
            if not all_divide(run, rows) or "muon" in args.values() or (ranks == 4 and i % 3):
                continue
            done = train(ranks, args)
            check(f"{run['name']}, {mesh}", done.stderr[-400:] if done.returncode else compare(run if run["evals"] else {**run, "evals": []}, read(out)))


def other_number_of_ranks(work):
    whole = f"{work}/whole"
    check("a run of one", train(0, {**SMALL, "out": whole, "steps": 9}).returncode)
    out = f"{work}/changes"
    for ranks, steps in ((2, 3), (4, 5), (0, 7), (3, 9)):
        done = train(ranks, {**SMALL, "out": out, "steps": steps})
        check(f"{ranks or 'no'} ranks to step {steps}", done.returncode and done.stderr[-400:])
    check("equals the run of one", compare(read(whole), read(out)))
    one, other = (json.load(open(f"{d}/checkpoints/step-000000009/manifest.json")) for d in (whole, out))
    check("the loader has the same position", one.get("loader") != other.get("loader") and f"{one.get('loader')} {other.get('loader')}")


def zero(work):
    """PyTorch's runs with each level of ZeRO; a run that is saved in parts, resumed at other
    levels, exported and converted, against one on one rank."""
    for i, run in enumerate(json.load(open(golden + "train.json"))):
        out, level = f"{work}/zero-{i}", 1 + i % 3
        args = {"out": out, "data.train": golden + "tokens", "export": "false", "threads": 1, "mesh.zero": level, **run["args"]}
        if run["evals"]:
            args["data.valid"] = golden + "valid"
        ranks = next((n for n in (2, 3) if all_divide(run, n)), 0)
        if ranks == 0:
            continue
        done = train(ranks, args)
        check(f"{run['name']}, {ranks} ranks, ZeRO {level}", done.stderr[-400:] if done.returncode else compare(run if run["evals"] else {**run, "evals": []}, read(out)))
    one, out = f"{work}/zero-one", f"{work}/zero-legs"
    args = {**SMALL, "export": "true", "steps": 6}
    check("dp=2 without ZeRO", train(2, {**args, "out": one}).returncode)
    for steps, level in ((2, 3), (4, 1), (6, 2)):
        done = train(2, {**args, "out": out, "steps": steps, "mesh": "dp=2", "mesh.zero": level})
        check(f"ZeRO {level} to step {steps}", done.returncode and done.stderr[-400:])
        done = subprocess.run([lateen, "plan", "--model", out, "--json"], capture_output=True, text=True)
        told, plan = rows(out, "start")[-1]["memory"], json.loads(done.stdout or "{}").get("memory", {})
        check(f"ZeRO {level}: the plan announces the run's bytes", not plan or {n: (v, told.get(n)) for n, v in plan.items() if told.get(n) != v})
    check("steps say how long they waited for ranks", any("comm_s" not in r for r in rows(out, "train")))
    models = [open(f"{d}/model/model.safetensors", "rb").read() for d in (one, out)]
    check("the exported model has the bits of the run without ZeRO", models[0] != models[1])
    says = {"temperature": 0.5, "top_k": 7}
    json.dump(says, open(f"{one}/model/generation_config.json", "w"))
    tuned = {n: v for n, v in SMALL.items() if not n.startswith("model.")}
    done = train(2, {**tuned, "export": "true", "steps": 1, "model.init": f"{one}/model", "out": f"{work}/tuned", "mesh.zero": 3})
    path = f"{work}/tuned/model/generation_config.json"
    kept = done.returncode == 0 and os.path.exists(path) and json.load(open(path))
    check("a fine-tuned model keeps what its folder says of generation", not kept or any(kept.get(n) != v for n, v in says.items()) and f"{kept} {done.stderr[-300:]}")
    done = train(2, {**SMALL, "out": f"{work}/idle", "steps": 1, "mesh.shard": 2})
    check("mesh.shard without mesh.zero is refused", done.returncode == 0 or "mesh.shard 2 has no effect: it needs mesh.zero" not in done.stderr)
    done = subprocess.run([lateen, "convert", f"{out}/checkpoints/step-000000006", f"{work}/converted", "--dtype", "fp32"], capture_output=True, text=True)
    check("convert reads a checkpoint of parts", done.returncode and done.stderr[-400:])
    check("and writes the same model", done.returncode == 0 and open(f"{work}/converted/model.safetensors", "rb").read() != models[0])


def begun(out, step, seconds=30):
    end = time.time() + seconds
    while time.time() < end:
        try:
            if any(r["step"] >= step for r in rows(out, "train")):
                return True
        except (OSError, ValueError):
            pass
        time.sleep(0.02)
    return False


def rank_pids(out):
    """The ranks of a run folder, in no particular order."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            words = open(f"/proc/{pid}/cmdline").read().split("\0")
            if os.path.basename(words[0]) == os.path.basename(lateen) and out in words:
                found.append(int(pid))
        except OSError:
            pass
    return found


def leader(pids):
    """The rank that holds the run's lock writes its log."""
    for pid in pids:
        try:
            if any("log.txt" in os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")):
                return pid
        except OSError:
            pass
    return None


def faults(work):
    for name, sig, lead, says, code in (
            ("SIGTERM to a rank that does not lead stops all, saved", signal.SIGTERM, False, "is saved in", 75),
            ("a stopped rank is named after the deadline", signal.SIGSTOP, False, "did not come", None),
            ("a killed rank ends the run", signal.SIGKILL, False, "", None)):
        out = f"{work}/fault-{sig}"
        args = {**SMALL, "out": out, "steps": 1000000, "checkpoint.every": 20, "mesh.deadline": 3}
        run = subprocess.Popen(command(2, args), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=MPI, stdin=subprocess.DEVNULL)
        try:
            if not begun(out, 30):
                check(name, "it did not begin")
                continue
            pids = rank_pids(out)
            first = leader(pids)
            others = [p for p in pids if p != first]
            if len(pids) != 2 or first is None:
                check(name, f"ranks {pids}, leader {first}")
                continue
            os.kill(others[0], sig)
            said = run.communicate(timeout=40)[1]
            wrong = says not in said or (run.returncode != code if code else run.returncode == 0)
            check(name, wrong and f"status {run.returncode}: {said[-500:]}")
        except subprocess.TimeoutExpired:
            check(name, "it did not end in 40 s")
        finally:
            for pid in rank_pids(out):
                os.kill(pid, signal.SIGKILL)
            run.kill()
            run.wait()
        last = max(r["step"] for r in rows(out, "train"))
        done = train(2, {**SMALL, "out": out, "steps": last + 3})
        check(f"{name}: it continues", done.returncode and done.stderr[-400:])


def refusals(work):
    for ranks, args, says in (
            (2, {"batch.size": 7}, "batch.size = 7 rows cannot be divided by 2 ranks; 8 rows can"),
            (2, {"batch.ramp": "3@0"}, "batch.ramp '3@0': 3 rows cannot be divided by 2 ranks"),
            (2, {"mesh": "dp=4"}, "mesh pp=1,dp=4,cp=1,tp=1 has 4 places, and there are 2 ranks; dp=2 makes 2"),
            (2, {"mesh": "dp=2,ep=2"}, "mesh: ep=2, and the model has no experts"),
            (3, {"mesh": "pp=3"}, "mesh: pp=3 stages, and the model has 2 layers; pp=2 fits"),
            (2, {"mesh": "pp=2", "mesh.stages": "1,2"}, "stages '1,2': more than the model's 2 layers"),
            (3, {"mesh": "tp=3"}, "mesh: tp=3 does not divide the model's 2 heads; tp=2 does"),
            (2, {"mesh": "tp=2", "optim.kind": "muon"}, "Muon needs whole matrices"),
            (2, {"mesh": "xx=2"}, "'xx=2' is not AXIS=SIZE"),
            (0, {"mesh": "dp=2"}, "has 2 places, and there is 1 rank")):
        out = f"{work}/refused"
        done = train(ranks, {**SMALL, "out": out, "steps": 2, **args})
        check(f"{args}", (done.returncode == 0 or says not in done.stderr) and f"status {done.returncode}: {done.stderr[-400:]}")
        check(f"{args}: nothing was started", os.path.exists(out + "/metrics.jsonl") and "metrics.jsonl is there")
        shutil.rmtree(out, ignore_errors=True)


if shutil.which("mpirun") is None:
    print("ok 1 - runs of several ranks # SKIP no mpirun\n1..1")
    sys.exit(0)
with tempfile.TemporaryDirectory() as work:
    parts = {"ranks": (beside_pytorch, other_number_of_ranks, zero, faults, refusals),
             "model": (stages_beside_pytorch, layers_beside_pytorch, other_mesh, tokens_divided)}
    for part in sys.argv[2:] or parts:
        for test in parts[part]:
            test(work)
print(f"1..{count}")
sys.exit(failed > 0)
