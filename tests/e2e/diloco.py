"""Several sites that train apart (diloco.sites): PyTorch's runs of DiLoCo and Streaming DiLoCo (tests/golden/train/diloco.json, tools/make_diloco_goldens.py), with one rank per site and on meshes; sites that are killed, stopped, absent and late; what they send; what is refused. Standard library only; TAP on stdout.

usage: diloco.py LATEEN [long]      FAULT_SEEDS=A..B: only sites that are killed, by these seeds (seeds.py)"""
import glob
import hashlib
import json
import math
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time

import seeds

lateen, golden, long_ones = sys.argv[1], "tests/golden/train/", "long" in sys.argv[2:]
count = failed = 0
LOSS, NORM = 2e-5, 2e-4  # As in train_truth.py.
PATIENCE = 240
DATA = {"data.train": golden + "tokens", "data.seq": 16, "data.shuffle": "none", "data.mask_documents": "false", "data.reset_positions": "false", "data.mask_eod": "false",
        "threads": 1, "lr.schedule": "constant", "data.prefetch": 0}
SMALL = {**DATA, "model.layers": 2, "model.width": 32, "model.heads": 2, "model.vocab": 64, "diloco.sites": 2, "batch.size": 2, "export": "false", "optim.lr": 3e-3}


def check(name, wrong):
    global count, failed
    count += 1
    failed += bool(wrong)
    print(f"{'not ok' if wrong else 'ok'} {count} - {name}" + (f"\n  # {str(wrong)[:600]}" if wrong else ""), flush=True)


def command(args):
    return [lateen, "train"] + [w for n, v in args.items() for w in (f"--{n}", str(v))]


def start(args, site):
    log = open(f"{args['out']}-{site}.log", "a")
    return subprocess.Popen(command({**args, "diloco.site": site}), stdout=log, stderr=log, stdin=subprocess.DEVNULL)


def log_of(args, site):
    return open(f"{args['out']}-{site}.log").read()[-500:]


def together(args, sites=2):
    """Start a process for each site; returns what went wrong."""
    runs = [start(args, site) for site in range(sites)]
    return "".join(log_of(args, site) for site, p in enumerate(runs) if p.wait(PATIENCE) != 0)


def launched(args, ranks):
    done = subprocess.run([lateen, "launch", "--ranks", str(ranks), "--plain"] + command(args)[1:], capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=PATIENCE)
    return done.stderr[-500:] if done.returncode else ""


def rows(out, site, kind):
    return [r for r in map(json.loads, open(f"{out}/site-{site}/metrics.jsonl")) if r["kind"] == kind]


def wait_for(condition):
    late = time.monotonic() + PATIENCE
    while not condition() and time.monotonic() < late:
        time.sleep(0.01)


def losses(out, sites=2):
    return [[(r["step"], r["loss"], r["grad_norm"]) for r in rows(out, site, "train")] for site in range(sites)]


def weights(out, site, step):
    """Digests of what the last checkpoint contains, by file."""
    return {os.path.basename(p): hashlib.sha256(open(p, "rb").read()).hexdigest() for p in sorted(glob.glob(f"{out}/site-{site}/checkpoints/step-{step:09}/*.safetensors"))}


def near(a, b, bound):
    return math.isclose(a, b, rel_tol=bound, abs_tol=1e-12)


def compare(want, out):
    for site, steps in enumerate(want["losses"]):
        got = rows(out, site, "train")
        if [r["step"] for r in got] != list(range(1, len(steps) + 1)):
            return f"site {site}: steps {[r['step'] for r in got]}"
        for (loss, norm), g in zip(steps, got):
            if not (near(loss, g["loss"], LOSS) and near(norm, g["grad_norm"], NORM)):
                return f"site {site}, step {g['step']}: loss {loss}, norm {norm}, not {g['loss']}, {g['grad_norm']}"
        final = rows(out, site, "eval")[-1]["loss"]
        if not near(want["final"], final, LOSS):
            return f"site {site}: at the end {want['final']}, not {final}"
    return ""


def arguments(run, out):
    a = {**DATA, "out": out, "model.init": "tests/golden/model/llama3", "data.valid": golden + "tokens", "eval.rows": 7, "export": "false", "batch.size": run["sites"],
         "steps": run["steps"], "optim.lr": run["lr"], "optim.decay": run["decay"], "optim.clip": run["clip"], "diloco.bits": 32}
    return a | {f"diloco.{n}": run[n] for n in ("sites", "every", "outer_lr", "outer_momentum", "overlap", "fragments")} | ({"diloco.merge": run["merge"]} if run["overlap"] else {})


def beside_pytorch(work, runs):
    for i, run in enumerate(runs):
        if i not in (2, 5, 6) and not long_ones:  # The launches below cover the other three.
            continue
        args = arguments(run, f"{work}/torch-{i}")
        check(f"PyTorch: {run['name']}", together(args, run["sites"]) or compare(run, args["out"]))
    meshes = [(0, "tp=2", {}, 2), (3, "cp=2", {"mesh.zero": 1}, 2), (1, "", {}, 1)]
    if long_ones:
        meshes += [(0, "pp=2", {}, 2), (0, "cp=2", {}, 2), (3, "cp=2", {"mesh.zero": 2}, 2), (3, "cp=2", {"mesh.zero": 3}, 2), (0, "cp=2,tp=2", {"mesh.zero": 1}, 4), (5, "pp=2", {}, 2),
                   (5, "cp=2,tp=2", {"mesh.zero": 3}, 4)]
    for i, mesh, more, ranks in meshes:
        args = {**arguments(runs[i], f"{work}/mesh-{i}-{mesh}-{len(more)}{list(more.values())}"), **({"mesh": mesh} if mesh else {}), **more}
        check(f"one launch, each site {mesh or 'one rank'} {more or ''}: {runs[i]['name']}", launched(args, ranks * runs[i]["sites"]) or compare(runs[i], args["out"]))


def kinds_of_kills():
    """Fragments, overlap, bits, kills and seed of each run."""
    if "FAULT_SEEDS" in os.environ:
        return [(*random.Random(seed).choice(((1, 2, 4), (1, 0, 8), (1, 3, 32), (1, 0, 4), (2, 2, 4), (2, 0, 32), (2, 7, 4), (2, 5, 8))), 6, seed) for seed in seeds.of(1, 1)]
    return ((2, 7, 4, 2, 2),) + (((1, 0, 8, 6, 1), (1, 3, 32, 6, 3), (1, 0, 4, 6, 4), (2, 0, 32, 6, 5), (2, 2, 4, 6, 6), (2, 9, 32, 6, 7)) if long_ones else ())


def killed(work):
    """kill -9 at any instant, and the same command again: the same bits as if never killed."""
    for fragments, overlap, bits, kills, seed in kinds_of_kills():
        began, before = time.time(), failed
        name = f"{bits} bits, overlap {overlap}, {fragments} fragments"
        whole = {**SMALL, "out": f"{work}/whole-{seed}", "steps": 20, "diloco.every": 5 * fragments, "diloco.fragments": fragments, "diloco.overlap": overlap, "diloco.bits": bits, "checkpoint.every": 3}
        check(f"{name}: a run of two sites", together(whole))
        args, rng, wrong = {**whole, "out": f"{work}/killed-{seed}"}, random.Random(seed), ""
        for _ in range(kills):
            runs = [start(args, site) for site in range(2)]
            late = time.monotonic() + PATIENCE
            # Until one of them has a line of that step in its metrics.
            until = rng.randrange(4, 16)
            while not any(os.path.exists(m) and f'"step":{until},' in open(m).read().replace(" ", "") for m in glob.glob(f"{args['out']}/site-*/metrics.jsonl")):
                if time.monotonic() > late or all(p.poll() is not None for p in runs):
                    break
                time.sleep(0.001)
            victims = runs if rng.random() < 0.3 else [rng.choice(runs)]
            for p in victims:
                p.kill()
                p.wait()
            for site, p in enumerate(runs):
                if p in victims:
                    runs[site] = start(args, site)
            wrong = wrong or "".join(log_of(args, site) for site, p in enumerate(runs) if p.wait(PATIENCE) != 0)
        check(f"{name}: killed {kills} times", wrong)
        check(f"{name}: killed, and the same losses", losses(whole["out"]) != losses(args["out"]) and "differ")
        last = [weights(out, site, 20) for out in (whole["out"], args["out"]) for site in range(2)]
        check(f"{name}: killed, and the same state", (last[0] != last[2] or last[1] != last[3]) and last)
        check(f"{name}: all sites end with the same parameters and outer state",
              [n for n in ("weights.safetensors", "outer.safetensors", "outer_momentum.safetensors") if last[0][n] != last[1][n]] or last[0]["m.safetensors"] == last[1]["m.safetensors"])
        seeds.done(seed, began, [f"{failed - before} checks"] if failed > before else [], run=f"{name}: killed {kills} times")


def stopped(work):
    """A site that waits for another one is told to stop, and finishes the round when it is
    started again."""
    args = {**SMALL, "out": f"{work}/stopped", "steps": 8, "diloco.every": 4}
    first = start(args, 0)
    wait_for(lambda: os.path.exists(f"{args['out']}/rounds/step-000000004/site-0.part-0"))
    first.send_signal(signal.SIGTERM)
    check("a site that waits is told to stop: status 75", first.wait(PATIENCE) != 75 and log_of(args, 0))
    again = {**args, "out": f"{work}/not-stopped"}
    check("and finishes the round later", together(args) or together(again) or (losses(args["out"]) != losses(again["out"]) and "other losses")
          or (weights(args["out"], 0, 8) != weights(again["out"], 0, 8) and "other weights"))


def absent(work):
    """Site 1 is absent for two rounds, then takes part; then it is killed for good."""
    args = {**SMALL, "out": f"{work}/absent", "diloco.every": 4, "diloco.keep": 2}
    alone = {**args, "steps": 8, "diloco.deadline": 0.2}
    check("a site alone continues after the deadline", start(alone, 0).wait(PATIENCE) and log_of(args, 0))
    check("both", together({**args, "steps": 24}))
    met = [(r["round"], r["sites"]) for r in rows(args["out"], 0, "outer")]
    check("the late one takes part from then on", met != [(4, [0]), (8, [0])] + [(s, [0, 1]) for s in (12, 16, 20, 24)] and met)
    check("it begins where the other is", [r["step"] for r in rows(args["out"], 1, "train")] != list(range(9, 25)) and [r["step"] for r in rows(args["out"], 1, "train")])
    last = [weights(args["out"], site, 24) for site in range(2)]
    check("and ends with the same parameters", [n for n in ("weights.safetensors", "outer.safetensors", "outer_momentum.safetensors") if last[0][n] != last[1][n]])
    manifests = [json.load(open(f"{args['out']}/site-{site}/checkpoints/step-000000024/manifest.json")) for site in range(2)]
    check("it has left out the rows before", [m["rows"] for m in manifests] != [48, 48])
    kept = sorted(os.listdir(f"{args['out']}/rounds"))
    check("old rounds are removed", kept != ["run.json"] + [f"step-{s:09}" for s in (16, 20, 24)] and kept)
    check("site 0 alone again, while site 1 is gone", start({**args, "steps": 40, "diloco.deadline": 0.2}, 0).wait(PATIENCE) and log_of(args, 0))
    check("site 1 comes back with an old checkpoint", start({**args, "steps": 40, "diloco.deadline": 0.2}, 1).wait(PATIENCE) and log_of(args, 1))
    last = [weights(args["out"], site, 40) for site in range(2)]
    check("and has what site 0 has", [n for n in ("weights.safetensors", "outer.safetensors", "outer_momentum.safetensors") if last[0].get(n) != last[1].get(n)] or not last[0])


def lagging(work):
    """Site 1 is stopped while it waits for a round. Site 0 counts it in that round, and continues
    without it to the end; then site 1 wakes up."""
    for fragments, overlap in ((2, 6), (2, 2), (2, 0), (1, 2), (1, 0)) if long_ones else ((2, 6),):
        name = f"{fragments} fragments, overlap {overlap}"
        args = {**SMALL, "out": f"{work}/lagging-{fragments}-{overlap}", "steps": 18, "diloco.every": 4 * fragments, "diloco.fragments": fragments, "diloco.overlap": overlap, "diloco.bits": 4}
        slow = start(args, 1)
        # The rounds that it begins: their parts are written while it computes.
        left = range(4, 4 + max(overlap, 1), 4)
        for step in left:
            wait_for(lambda: glob.glob(f"{args['out']}/rounds/step-{step:09}/site-1.part-[0-9]"))
        wait_for(lambda: os.path.exists(f"{args['out']}/site-1/metrics.jsonl") and len(rows(args["out"], 1, "train")) == 4 + max(overlap - 1, -1))
        slow.send_signal(signal.SIGSTOP)
        wrong = start({**args, "diloco.deadline": 0.2}, 0).wait(PATIENCE) and log_of(args, 0)
        slow.send_signal(signal.SIGCONT)
        check(f"{name}: a site that is late", wrong or slow.wait(PATIENCE) and log_of(args, 1))
        met = [(r["round"], r["sites"]) for r in rows(args["out"], 0, "outer")]
        check(f"{name}: the other continued without it", met != [(s, [0, 1] if s in left else [0]) for s in (4, 8, 12, 16, 18)] and met)
        check(f"{name}: it continues where the other is", [r["step"] for r in rows(args["out"], 1, "train")] != list(range(1, 5 + overlap)) and rows(args["out"], 1, "train")[-1])
        last = [weights(args["out"], site, 18) for site in range(2)]
        check(f"{name}: and has what the other has", [n for n in ("weights.safetensors", "outer.safetensors", "outer_momentum.safetensors") if last[0][n] != last[1][n]])


def freeze(process):
    """SIGSTOP, and wait until every thread has stopped."""
    process.send_signal(signal.SIGSTOP)
    wait_for(lambda: all(open(p).read().rsplit(") ", 1)[1][0] == "T" for p in glob.glob(f"/proc/{process.pid}/task/*/stat")))


def late_for_one_of_two(work):
    """Two rounds of site 1 are in progress when the others decide the first one without it: it
    takes over their outer parameters, and its part of the second round counts."""
    args = {**SMALL, "out": f"{work}/late", "steps": 18, "diloco.every": 8, "diloco.fragments": 2, "diloco.overlap": 6}
    left = [[f"{args['out']}/rounds/step-{step:09}/site-{site}.part-0" for step in (4, 8)] for site in range(2)]
    runs = []
    # Each waits after step 10 for the round of step 4, and the files that site 1 left are
    # removed.
    for site in (1, 0):
        runs.insert(0, start(args, site))
        wait_for(lambda: all(map(os.path.exists, left[site])) and os.path.exists(f"{args['out']}/site-{site}/metrics.jsonl") and len(rows(args["out"], site, "train")) == 9)
        freeze(runs[0])
        for path in left[site] if site == 1 else left[0][1:]:
            os.rename(path, path + "-away")
    json.dump({"step": 4, "sites": [0]}, open(f"{args['out']}/decided", "w"))
    os.rename(f"{args['out']}/decided", f"{args['out']}/rounds/step-000000004/members")
    os.rename(left[1][1] + "-away", left[1][1])
    runs[1].send_signal(signal.SIGCONT)
    wait_for(lambda: len(rows(args["out"], 1, "train")) == 13 or runs[1].poll() is not None)
    os.rename(left[0][1] + "-away", left[0][1])
    runs[0].send_signal(signal.SIGCONT)
    check("a site that is late for one of two rounds", "".join(log_of(args, site) for site, p in enumerate(runs) if p.wait(PATIENCE) != 0))
    check("it takes the outer parameters of that round", "takes their outer parameters of step 4," not in open(f"{args['out']}-1.log").read() and log_of(args, 1))
    met = [(r["round"], r["sites"]) for r in rows(args["out"], 0, "outer")]
    check("and has a part in the other one", met != [(s, [0] if s == 4 else [0, 1]) for s in (4, 8, 12, 16, 18)] and met)
    last = [weights(args["out"], site, 18) for site in range(2)]
    check("both end with the same parameters", [n for n in ("weights.safetensors", "outer.safetensors", "outer_momentum.safetensors") if last[0][n] != last[1][n]])


def bytes_sent(work):
    for bits, per_number in (((32, 4.0), (8, 1.0 + 4 / 128)) if long_ones else ()) + ((4, 0.5 + 4 / 128),):
        args = {**SMALL, "out": f"{work}/bytes-{bits}", "steps": 20, "diloco.every": 20, "diloco.bits": bits}
        wrong = together(args)
        told = rows(args["out"], 0, "outer")
        n = rows(args["out"], 0, "start")[0]["parameters"]
        small = [t for t in told for name in ("sent_bytes", "received_bytes") if not near(t[name], per_number * n, 0.02)]
        check(f"{bits} bits: {per_number} bytes a parameter and round", wrong or small or len(told) != 1)
        if bits == 4:  # An all-reduce over two sites sends 4 bytes per parameter and step.
            said = re.search(r"(\d+) times as much", log_of(args, 0))
            check("4 bits every 20 steps: over 100 times fewer bytes than gradients", not (said and near(int(said[1]), 20 * 4 / per_number, 0.02) and int(said[1]) > 100) and log_of(args, 0))
            page = open(f"{args['out']}/site-0/report.html").read()
            check("they are in the report", '"kind":"outer"' not in page.replace(" ", ""))


def refused(work):
    base = {**SMALL, "out": f"{work}/refused", "steps": 4, "diloco.every": 2}

    def wants(name, args, text):
        done = subprocess.run(command(args), capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=PATIENCE)
        check(name, (done.returncode == 0 or text not in done.stderr) and done.stderr[-400:])

    wants("one rank that is no site", base, "says which site it is")
    wants("a site that is not there", {**base, "diloco.site": 2}, "diloco.site = 2 of diloco.sites = 2")
    wants("an overlap as long as a round", {**base, "diloco.site": 0, "diloco.overlap": 2}, "it is less than diloco.every = 2")
    wants("fragments that do not divide a round", {**base, "diloco.site": 0, "diloco.fragments": 3}, "diloco.fragments = 3 does not divide diloco.every = 2")
    wants("an overlap as long as a fragment's turn", {**base, "diloco.site": 0, "diloco.fragments": 2, "diloco.overlap": 2}, "it is less than diloco.every = 2")
    wants("more fragments than layers", {**base, "diloco.site": 0, "diloco.every": 64, "diloco.fragments": 64}, "diloco.fragments = 64: the model has")
    wants("a meeting place that is no folder", {**base, "diloco.site": 0, "diloco.meet": "s3://bucket/run"}, "mount it")
    wants("rows that do not divide", {**base, "diloco.site": 0, "batch.size": 3}, "batch.size = 3 rows cannot be divided by 2")
    wants("bits that do not exist", {**base, "diloco.site": 0, "diloco.bits": 16}, "diloco.bits")
    said = launched(base, 3)
    check("3 ranks, 2 sites", "3 ranks cannot be divided into 2 sites of equal size; 4 can" not in said and said)
    check("two sites", together(base))
    wants("another number of bits", {**base, "diloco.site": 0, "out": f"{work}/other", "diloco.meet": f"{base['out']}/rounds", "diloco.bits": 4}, "diloco.bits = 4, but sites that meet in")
    path = f"{base['out']}/rounds/step-000000002/site-1.part-0"
    data = bytearray(open(path, "rb").read())
    data[-3] ^= 4
    open(path, "wb").write(data)
    wants("a damaged file", {**base, "diloco.site": 0, "out": f"{work}/damaged", "diloco.meet": f"{base['out']}/rounds"}, "is damaged")
    wants("a new run of other weights in an old folder", {**base, "diloco.site": 1, "out": f"{work}/parted", "diloco.meet": f"{base['out']}/rounds", "seed": 1}, "seed = 1, but sites that meet")


with tempfile.TemporaryDirectory() as work:
    killed(work)
    if "FAULT_SEEDS" not in os.environ:
        beside_pytorch(work, json.load(open(golden + "diloco.json")))
        stopped(work)
        absent(work)
        lagging(work)
        late_for_one_of_two(work)
        bytes_sent(work)
        refused(work)
print(f"1..{count}")
sys.exit(failed > 0)
