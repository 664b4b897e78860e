"""`checkpoint.mirror`: checkpoints that are copied to an object store during the run, and runs on another machine that begin from there. The store checks every signature and produces the faults it is told to (object_store.py).

    python3 tests/e2e/mirror.py build/lateen        as TAP"""
import json
import os
import shutil
import signal
import subprocess
import sys
import time

from object_store import SECRETS, Object, Store
from stored_runs import DEADLINE_S, Runs
from tap import Tap

tap = Tap(detail_chars=3000)
store = Store()
runs = Runs(os.path.abspath(sys.argv[1]), store, ["--steps", "12", "--checkpoint.every", "4"])
path, start, said, run, rows, losses = runs.path, runs.start, runs.said, runs.run, runs.rows, runs.losses
runs.options += ["--data.train", path("shard")]
MIRROR = ["--checkpoint.mirror", "s3://bucket/runs/one"]


def checkpoint(out, step=12):
    """All files of a step, by name; its manifest without the recipe, which names the mirror."""
    folder = path(f"{out}/checkpoints/step-{step:09d}")
    files = {n: open(f"{folder}/{n}", "rb").read() for n in os.listdir(folder)} if os.path.isdir(folder) else {}
    manifest = json.loads(files.pop("manifest.json", b"{}"))
    manifest.pop("recipe", None)
    manifest.pop("data", None)
    return files, manifest


def keys(prefix="runs/one/"):
    return sorted(k for k in store.buckets["bucket"] if k.startswith(prefix))


def steps():
    """Steps of the mirror, and whether each has its manifest."""
    found = {}
    for key in keys("runs/one/checkpoints/step-"):
        step, _, name = key[len("runs/one/checkpoints/step-"):].partition("/")
        found[int(step)] = found.get(int(step), False) or name == "manifest.json"
    return found


def fresh():
    store.fault, store.skew_s, store.rate, store.page = None, 0, 0, 1000
    store.requests.clear(), store.uploads.clear(), store.buckets["bucket"].clear(), store.history.clear(), store.deleted.clear()


def until(condition, what):
    limit = time.time() + DEADLINE_S
    while not condition():
        if time.time() > limit:
            raise TimeoutError(what)
        time.sleep(0.01)


def is_of(request, step, name=""):
    return f"/step-{step:09d}/{name}" in request.path


with open(path("text"), "wb") as f:
    f.write(bytes(i * i * 7 % 61 for i in range(8000)))
subprocess.run([sys.executable, "tests/e2e/make_shard.py", path("text"), path("shard"), "200"], check=True)
assert run("plain") == 0, said("plain")


def timed(function):
    begin = time.time()
    tap.case(function)
    print(f"# {function.__name__}: {time.time() - begin:.1f} s", flush=True)
    return function


@timed
def behind_the_run():
    fresh()
    # The end waits for the last one; some of the earlier ones may be skipped.
    first = run("one", *MIRROR, "--steps", "8")
    status = first or run("one", *MIRROR)
    tap.check("a run with a mirror has the bits of one without", status == 0 and losses("one") == losses("plain") and checkpoint("one") == checkpoint("plain"), said("one"))
    tap.check("its mirror keeps what the run folder keeps", steps() == {8: True, 12: True} and sorted(os.listdir(path("one/checkpoints"))) == ["step-000000008", "step-000000012"],
              f"{steps()} {said('one')}")
    last = {}
    for i, (_, key) in enumerate(store.history):
        if "/step-" in key:
            last.setdefault(key.split("/")[3], []).append(key.rsplit("/", 1)[1])
    tap.check("the manifest of each is written behind its files", last and all(names[-1] == "manifest.json" and names.count("manifest.json") == 1 for names in last.values()), last)
    status = run("one", *MIRROR, "--steps", "16")
    first = {}
    for _, key in store.deleted:
        first.setdefault(key.split("/")[3], key.rsplit("/", 1)[1])
    tap.check("and deleted before them", status == 0 and steps() == {12: True, 16: True} and "step-000000008" in first and set(first.values()) == {"manifest.json"}, first)
    told = rows("one", "mirror")
    tap.check("metrics report each", told and told[-1]["step"] == 16 and told[-1]["whole"] and told[-1]["bytes"] > 1000 and told[-1]["failed"] == 0, told)
    store.requests.clear()
    status = run("one", *MIRROR, "--steps", "16")
    tap.check("a start after the end sends nothing again", status == 0 and not [r for r in store.requests if r.method == "PUT" and "/step-" in r.path], said("one"))
    status = run("two", *MIRROR, "--resume", "none", machine="b")
    tap.check("resume = none does not overwrite them", status != 0 and "holds 2 checkpoints" in said("two") and steps() == {12: True, 16: True}, said("two"))


@timed
def another_machine():
    """kill -9 in the middle of an upload; another machine has only the recipe and the data."""
    for at, name in ((4, "weights.safetensors"), (12, "config.json"), (12, "manifest.json")):
        fresh()
        for out in ("killed", "elsewhere"):
            shutil.rmtree(path(out), ignore_errors=True)
        every = str(max(at - 4, 4))
        # The end of a run waits for its last checkpoint; within one run, step 12 could overtake
        # step 8, which would then be skipped.
        if at > 4:
            assert run("killed", *MIRROR, "--checkpoint.every", every, "--steps", every) == 0, said("killed")
        store.fault = lambda r: ("hang", 30) if r.method == "PUT" and is_of(r, at, name) else None
        p = start("killed", *MIRROR, "--checkpoint.async", "true", "--checkpoint.every", every)
        until(lambda: [r for r in store.requests if r.method == "PUT" and is_of(r, at, name)] or p.poll() is not None, "the upload")
        p.send_signal(signal.SIGKILL)
        p.wait()
        store.fault = None
        whole = [s for s, is_whole in steps().items() if is_whole]
        status = run("elsewhere", *MIRROR, machine="b")
        from_step = max(whole, default=0)
        got = losses("elsewhere")
        want = {s: l for s, l in losses("plain").items() if s > from_step}
        tap.check(f"killed at {name} of step {at}: the other machine continues from the previous checkpoint, with the same bits", status == 0 and from_step == at - 4 and got == want
                  and checkpoint("elsewhere") == checkpoint("plain"), f"{whole} {status} {got} {said('elsewhere')}")
        tap.check("it says which checkpoint it took", from_step == 0 or f"step {from_step} was fetched from s3://bucket/runs/one/checkpoints/" in said("elsewhere"), said("elsewhere"))
        tap.check("and its mirror has no partial checkpoint", all(steps().values()) and max(steps()) == 12, steps())


@timed
def damaged():
    fresh()
    assert run("source", *MIRROR, "--checkpoint.every", "8") == 0
    key = "runs/one/checkpoints/step-000000012/weights.safetensors"
    data = bytearray(store.buckets["bucket"][key].data)
    data[len(data) // 2] ^= 1
    store.buckets["bucket"][key] = Object(bytes(data))
    status = run("mended", *MIRROR, machine="b")
    tap.check("a checkpoint with a wrong bit is passed over for an older one", status == 0 and "step 12 is broken and skipped" in said("mended") and "checksum" in said("mended")
              and min(losses("mended")) == 9 and checkpoint("mended") == checkpoint("plain"), said("mended"))
    tap.check("and replaced when the run comes there again", steps() == {8: True, 12: True} and store.buckets["bucket"][key].data != bytes(data), steps())
    for step in (8, 12):
        store.buckets["bucket"][f"runs/one/checkpoints/step-{step:09d}/weights.safetensors"] = Object(bytes(data))
    status = run("lost", *MIRROR, machine="c")
    tap.check("if all are broken the run does not silently start from the beginning", status != 0 and "all 2 checkpoints" in said("lost") and not losses("lost"), said("lost"))
    store.fault = lambda r: ("status", 503, "SlowDown") if r.method == "GET" else None
    status = run("unknown", *MIRROR, machine="d")
    tap.check("nor if the mirror does not answer", status != 0 and "checkpoint.mirror" in said("unknown") and not losses("unknown"), said("unknown"))


@timed
def newer():
    """The run continued elsewhere, and returns to a machine that has an older checkpoint."""
    fresh()
    assert run("back", *MIRROR, "--steps", "4") == 0
    assert run("away", *MIRROR, machine="b") == 0
    tap.check("it continues elsewhere from the mirror", min(losses("away")) == 5 and checkpoint("away") == checkpoint("plain"), said("away"))
    status = run("back", *MIRROR, "--steps", "14")
    tap.check("and when it comes back, from the newer of both", status == 0 and "step 12 was fetched from" in said("back") and sorted(losses("back"))[-2:] == [13, 14], said("back"))
    status = run("back", *MIRROR, "--steps", "14", "--resume", path("back/checkpoints/step-000000012"))
    tap.check("a given folder is what it continues from", status == 0 and steps() == {12: True, 14: True}, f"{steps()} {said('back')}")


@timed
def faults():
    fresh()
    count = iter(range(10**6))
    kinds = [("status", 503, "SlowDown", {"Retry-After": "0"}), ("status", 429, "TooManyRequests", {"Retry-After": "0"}), ("status", 500, "InternalError"), ("drop",), ("lost",),
             ("slow", 0.3), ("cut", 10)]
    store.fault = lambda r: kinds[n // 3 % len(kinds)] if "/step-" in r.path and (n := next(count)) % 3 == 0 else None
    status = run("faulty", *MIRROR)
    tap.check("5xx, 429, broken and slow connections: everything arrives", status == 0 and all(steps().values()) and max(steps()) == 12 and losses("faulty") == losses("plain"), said("faulty"))
    tap.check("repeated requests are counted", sum(r["retries"] for r in rows("faulty", "mirror")) > 0, rows("faulty", "mirror"))
    fresh()
    store.fault = lambda r: ("status", 403, "AccessDenied") if r.method == "PUT" and is_of(r, 4) else None
    status = run("refused", *MIRROR)
    told = {r["step"]: r["whole"] for r in rows("refused", "mirror")}
    tap.check("a checkpoint that cannot be sent is reported and counted, and the run continues", status == 0 and told.get(4) is False and told.get(12) is True
              and rows("refused", "mirror")[-1]["failed"] == 1 and "AccessDenied" in said("refused") and losses("refused") == losses("plain"), f"{told} {said('refused')}")
    fresh()
    refusals = iter(range(2))
    store.fault = lambda r: ("status", 403, "ExpiredToken") if r.method == "PUT" and is_of(r, 12) and next(refusals, None) is not None else None
    status = run("expired", *MIRROR)
    tap.check("keys that had expired are tried again", status == 0 and steps().get(12) and "ExpiredToken" in said("expired") and "more tries" in said("expired"), said("expired"))
    fresh()
    store.skew_s = -7200
    status = run("skewed", *MIRROR)
    tap.check("a clock that is wrong by two hours", status == 0 and all(steps().values()) and max(steps()) == 12 and "clock" in said("skewed"), said("skewed"))


@timed
def told_at_once():
    fresh()
    status = run("nokeys", *MIRROR, machine="c", AWS_ACCESS_KEY_ID="", AWS_SECRET_ACCESS_KEY="")
    tap.check("no keys: reported before the first step", status != 0 and "checkpoint.mirror" in said("nokeys") and "AWS_ACCESS_KEY_ID" in said("nokeys") and not losses("nokeys"), said("nokeys"))
    store.fault = lambda r: ("status", 403, "AccessDenied") if r.method == "PUT" else None
    status = run("readonly", *MIRROR)
    tap.check("keys that may not write, too", status != 0 and "AccessDenied" in said("readonly") and not losses("readonly"), said("readonly"))
    store.fault = None
    for place, why in (("s3://none/runs", "NoSuchBucket"), ("https://host/runs", "a mirror is a folder or s3://"), ("ftp://host/runs", "unknown scheme"), (path("same"), "the run folder itself")):
        status = run("same", "--checkpoint.mirror", place)
        tap.check(f"refused: {place.replace(runs.dir, '')}", status != 0 and why in said("same") and not losses("same"), said("same"))
    status = run("idle", "--checkpoint.mirror_keep", "3")
    tap.check("an option of the mirror without one is refused", status != 0 and "needs checkpoint.mirror" in said("idle"), said("idle"))


@timed
def folders():
    shutil.rmtree(path("kept"), ignore_errors=True)
    status = run("here", "--checkpoint.mirror", f"file://{path('kept')}", "--checkpoint.mirror_keep", "1")
    tap.check("a folder as mirror, which keeps one", status == 0 and os.listdir(path("kept/checkpoints")) and
              sorted(n for n in os.listdir(path("kept/checkpoints")) if n != "run.json") == ["step-000000012"], said("here"))
    status = run("there", "--checkpoint.mirror", path("kept"), "--resume", "--steps", "14", machine="b")
    tap.check("another run folder begins from it", status == 0 and "step 12 was fetched from" in said("there") and sorted(losses("there")) == [13, 14], said("there"))


@timed
def ranks():
    for name, words in (("divided", ["--mesh.zero", "1"]), ("whole", [])):
        fresh()
        for out in ("two", "elsewhere"):
            shutil.rmtree(path(out), ignore_errors=True)
        status = run("two", *MIRROR, *words, "--steps", "8", ranks=2) or run("two", *MIRROR, *words, ranks=2)
        tap.check(f"two ranks, {name}: they send their files", status == 0 and steps() == {8: True, 12: True}
                  and len([k for k in keys() if "weights" in k]) == (4 if words else 2), f"{keys()} {said('two')}")
        if name == "divided":
            own = {r.path.rsplit("/", 1)[1]: r for r in store.requests if r.method == "PUT" and "weights-" in r.path}
            tap.check("each file is sent once", len([r for r in store.requests if r.method == "PUT" and is_of(r, 12, "weights-")]) == 2 and len(own) == 2, own)
        for key in keys("runs/one/checkpoints/step-000000012/"):
            del store.buckets["bucket"][key]
        status = run("elsewhere", *MIRROR, *words, ranks=2, machine="b")
        tap.check(f"two ranks, {name}: they continue elsewhere with the same bits", status == 0 and "step 8 was fetched from" in said("elsewhere")
                  and {s: l for s, l in losses("two").items() if s > 8} == losses("elsewhere") and checkpoint("two") == checkpoint("elsewhere"), said("elsewhere"))


tap.check("no secret in anything that was printed", not [s for s in SECRETS if s in "".join(runs.printed)])
store.close()
runs.close()
sys.exit(tap.end())
