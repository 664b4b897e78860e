#!/usr/bin/env python3
"""What a run reports while it trains: /metrics for Prometheus and as OpenMetrics, event files for TensorBoard, messages as JSON, where its time went; and what `lateen health --listen` reports about a node. telemetry.py LATEEN. Standard library; promtool where it is; prometheus_client and tensorboard if they are installed."""
import glob
import json
import math
import os
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

from tap import Tap

lateen, golden = os.path.abspath(sys.argv[1]), "tests/golden/train/"
scratch = tempfile.mkdtemp()
tap = Tap()
check = tap.check
OPEN = "application/openmetrics-text"
SMALL = ["--model.vocab", "64", "--model.layers", "1", "--model.width", "16", "--model.heads", "2", "--data.seq", "16", "--batch.size", "4", "--threads", "1",
         "--export", "false", "--data.train", golden + "tokens", "--data.valid", golden + "valid", "--eval.rows", "6"]


def train(out, *words, wait=True, env=None):
    p = subprocess.Popen([lateen, "train", *SMALL, "--out", f"{scratch}/{out}", *words], stderr=subprocess.PIPE, text=True, env={**os.environ, **(env or {})})
    if not wait:
        return p
    said = p.communicate(timeout=120)[1]
    return p.returncode, said


def address(p):
    """The address of /metrics, from the process's messages."""
    for line in p.stderr:
        found = re.search(r"metrics: (http://\S+)/metrics", line)
        if found:
            return found[1]
    raise RuntimeError(f"no address; exit status {p.wait()}")


def get(url, accept=None):
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers={"Accept": accept} if accept else {}), timeout=10) as r:
            return r.status, r.headers["Content-Type"], r.read().decode()
    except urllib.error.HTTPError as e:
        return e.code, e.headers["Content-Type"], e.read().decode()


def samples(text):
    """{name: {labels: value}}"""
    all_ = {}
    for line in text.splitlines():
        if line and line[0] != "#":
            name, labels, value = re.fullmatch(r"([\w:]+)(?:\{(.*)\})? (\S+)", line).groups()
            all_.setdefault(name, {})[labels or ""] = float(value)
    return all_


def promtool(name, text, known=()):
    """promtool's linter complains only about names that others chose."""
    if not shutil.which("promtool"):
        tap.skip(name, "promtool is not installed (packages-test.txt: prometheus)")
        return
    r = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, text=True)
    said = [line for line in (r.stdout + r.stderr).splitlines() if not line.startswith(tuple(known))]
    check(name, said == [] and (r.returncode == 0 or known), said)


def openmetrics(name, text):
    """Rules of the format that can be checked line by line; and the reference parser, if it is
    installed."""
    types = dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, re.M))
    counters = [n for n, kind in types.items() if kind == "counter"]
    bounds = re.findall(r'le="([^"]*)"', text)
    check(name + ": counters are named without _total and sampled with it, no unknown type is one of ours, bounds are floats, the end is marked",
          text.endswith("\n# EOF\n") and counters and all(not n.endswith("_total") and re.search(rf"^{n}_total[ {{]", text, re.M) for n in counters) and
          all("." in b or "e" in b or b == "+Inf" for b in bounds), types)
    try:
        from prometheus_client.openmetrics.parser import text_string_to_metric_families
        families = list(text_string_to_metric_families(text))
        check(name + ": prometheus_client reads it", len(families) == len(types), len(families))
    except ImportError:
        tap.skip(name + ": prometheus_client reads it", "not installed")


# ---- Event files ----
table = []
for i in range(256):
    c = i
    for _ in range(8):
        c = c >> 1 ^ (0x82F63B78 if c & 1 else 0)
    table.append(c)


def masked(data):
    c = 0xFFFFFFFF
    for b in data:
        c = c >> 8 ^ table[(c ^ b) & 255]
    c ^= 0xFFFFFFFF
    return ((c >> 15 | c << 17) + 0xA282EAD8) & 0xFFFFFFFF


def message(data):
    """[(field, value)]: numbers as int, others as bytes."""
    at, fields = 0, []

    def varint():
        nonlocal at
        x = shift = 0
        while True:
            b = data[at]
            at += 1
            x |= (b & 127) << shift
            shift += 7
            if b < 128:
                return x
    while at < len(data):
        key = varint()
        kind = key & 7
        n = {1: 8, 5: 4}.get(kind)
        if kind == 0:
            fields.append((key >> 3, varint()))
            continue
        n = varint() if kind == 2 else n
        fields.append((key >> 3, data[at:at + n]))
        at += n
    return fields


def events(path):
    """[(wall time, step, {tag: value}, other fields)]; a record with a wrong checksum is an
    error."""
    with open(path, "rb") as f:
        data = f.read()
    at, all_ = 0, []
    while at < len(data):
        n, of_n = struct.unpack_from("<QI", data, at)
        body = data[at + 12:at + 12 + n]
        assert masked(data[at:at + 8]) == of_n and masked(body) == struct.unpack_from("<I", data, at + 12 + n)[0], (path, at)
        fields = message(body)
        d = dict(fields)
        values = {}
        for field, value in message(d.get(5, b"")):
            v = dict(message(value))
            values[v[1].decode()] = struct.unpack("<f", v[2])[0]
        all_.append((struct.unpack("<d", d[1])[0], d.get(2, 0), values, {k: v for k, v in fields if k not in (1, 2, 5)}))
        at += 16 + n
    return all_


def float32(x):
    return struct.unpack("<f", struct.pack("<f", x))[0]


# ---- A run from beginning to end, killed once ----
def rows(out, kind):
    with open(f"{scratch}/{out}/metrics.jsonl") as f:
        return [r for r in map(json.loads, f) if r["kind"] == kind]


LISTEN = ["--metrics.listen", "127.0.0.1:0", "--log.tensorboard"]
p = train("demo", "--steps", "100000000", "--checkpoint.every", "100", "--checkpoint.async", "--eval.every", "150", *LISTEN, wait=False)
url = address(p)
while samples(get(url + "/metrics")[2]).get("lateen_train_current_step", {'run="demo"': 0})['run="demo"'] < 430:
    time.sleep(0.02)
status, kind, text = get(url + "/metrics")
check("/metrics: text format 0.0.4 by default", status == 200 and kind == "text/plain; version=0.0.4; charset=utf-8", kind)
promtool("/metrics of a run: promtool's linter has nothing to say", text)
status, kind, opened = get(url + "/metrics", OPEN + ";version=1.0.0;q=0.6,text/plain;version=0.0.4;q=0.5,*/*;q=0.1")
check("/metrics: OpenMetrics for a client that prefers it", kind == OPEN + "; version=1.0.0; charset=utf-8", kind)
openmetrics("OpenMetrics of a run", opened)
check("both report the same names", samples(text).keys() == samples(opened).keys(), samples(text).keys() ^ samples(opened).keys())
for accept, expected in ((OPEN, OPEN), (f"text/plain;q=0.9, {OPEN};q=0.1", "text/plain"), (f"{OPEN};q=0", "text/plain"), ("text/html", "text/plain"), ("*/*", "text/plain")):
    check(f"Accept: {accept}", get(url + "/metrics", accept)[1].startswith(expected))
check("any other path is 404, POST is refused", get(url + "/")[0] == 404 and get(url + "/metrics/x")[0] == 404)
told = samples(text)
line = rows("demo", "train")[-1]
ENDINGS = (("_per_s", "_per_second"), ("_s", "_seconds"))
names = {k: next((k[:-len(a)] + b for a, b in ENDINGS if k.endswith(a)), k) + ("_total" if k == "tokens" else "") for k in line if k != "kind"}
check("every number of metrics.jsonl is exported, with its unit spelt out", all(f"lateen_train_{n}" in told for n in names.values()), sorted(names.values()))
check("and those of the validation", {"lateen_eval_loss", "lateen_eval_perplexity", "lateen_eval_tokens"} <= told.keys())
one = {n: next(iter(v.values())) for n, v in told.items() if len(v) == 1}
check("counters: steps, checkpoints, no skipped update", one["lateen_train_steps_total"] == one["lateen_train_current_step"] >= 430 and one["lateen_train_checkpoints_total"] ==
      one["lateen_train_checkpoint_step"] // 100 >= 2 and one["lateen_train_skipped_updates_total"] == 0 and abs(one["lateen_train_last_step_timestamp_seconds"] - time.time()) < 30 and
      one["lateen_train_checkpoint_interval_seconds"] > 0 and one["lateen_train_target_step"] == 1e8, one)
times = {re.search(r'kind="(\w+)"', k)[1]: v for k, v in told["lateen_train_seconds_total"].items()}
check("every second has one kind", set(times) == {"productive", "checkpoint", "restart", "rework", "stall", "evaluation"} and
      -2 < time.time() - one["process_start_time_seconds"] - sum(times.values()) < 20 and times["productive"] > 0 and times["checkpoint"] > 0 and times["evaluation"] > 0 and
      times["rework"] == 0, times)
p.kill()
p.wait()
before, died = line["step"], time.time()
last = max(r["step"] for r in rows("demo", "train"))
saved = max(int(os.path.basename(d)[5:]) for d in glob.glob(f"{scratch}/demo/checkpoints/step-*") if d[-1].isdigit())
time.sleep(max(0.0, died + 1.5 - time.time()))
status, said = train("demo", "--steps", str(last + 50), "--checkpoint.every", "100", "--checkpoint.async", "--eval.every", "150", *LISTEN)
t = rows("demo", "goodput")[-1]
check("killed and resumed: steps that had been done are rework, the time since the kill is restart", status == 0 and t["restart"] > 1.4 and
      (t["rework"] > 0) == (last > saved) and t["productive"] > 0, (t, last, saved, said[-300:]))
end = rows("demo", "end")[-1]
gap = sum(v for k, v in t.items() if k not in ("kind", "step")) - end["time_s"]
check("times of a start add up to its time, and the gap before it", 1.0 < gap < 30, (t, end))

files = sorted(glob.glob(f"{scratch}/demo/events.out.tfevents.*"), key=os.path.getmtime)
theirs = events(golden + "tensorboard.events")
check("the reader of this test reads what TensorBoard wrote", [(e[0], e[1], e[2]) for e in theirs] == [(1795000000.25, 0, {}), (1795000000.5, 301, {}),
      (1795000001.0, 302, {"train/loss": 2.5, "train/tokens": 1e9})], theirs)
ours = [events(f) for f in files]
check("an event file for each start, with TensorBoard's head and the step from which it holds", len(files) == 2 and all(e[0][3] == theirs[0][3] and e[1][3] == theirs[1][3] for e in ours) and
      ours[0][1][1] == 1 and ours[1][1][1] == saved + 1, [e[:2] for e in ours])
scalars = {e[1]: e[2] for e in ours[1] if "train/loss" in e[2]}
lines = [r for r in rows("demo", "train") if r["step"] > saved]
check("its numbers are those of metrics.jsonl", [r["step"] for r in lines] == sorted(scalars) and all(
    scalars[r["step"]] == {f"train/{k}": float32(v) for k, v in r.items() if k not in ("kind", "step")} or
    all(math.isclose(scalars[r["step"]][f"train/{k}"], v, rel_tol=1e-6, abs_tol=1e-30) for k, v in r.items() if k not in ("kind", "step")) for r in lines))
try:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    a = EventAccumulator(f"{scratch}/demo", size_guidance={"scalars": 0})
    a.Reload()
    check("TensorBoard reads both as one run, each step once", [s.step for s in a.Scalars("train/loss")] == [r["step"] for r in rows("demo", "train")] and
          [s.step for s in a.Scalars("eval/loss")] == [r["step"] for r in rows("demo", "eval")])
except ImportError:
    tap.skip("TensorBoard reads both as one run", "tensorboard is not installed")

# ---- Messages as JSON ----
status, said = train("json", "--steps", "12", "--log-json", "--log.plain_every", "0.01", env={"SLURM_RESTART_COUNT": "3"})
lines = [json.loads(x) for x in said.splitlines()]
with open(f"{scratch}/json/log.txt") as f:
    kept = [json.loads(x) for x in f]
check("--log-json: every line is JSON, with run, attempt, epoch, rank", status == 0 and len(lines) > 5 and all(x["run"] == "json" and x["attempt"] == 3 and x["epoch"] == 0 and
      x["rank"] == 0 and x["level"] in ("info", "warn") and x["message"] for x in lines), said[:500])
check("and the step, once there is one", "step" not in lines[0] and any(x.get("step") == 12 for x in lines), lines[-1])
check("log.txt holds the same lines", kept and all(x in lines for x in kept if "step" in x), kept[-1:])
r = subprocess.run([lateen, "train", "--log-json", "--model.vocab", "64", "--out", f"{scratch}/no", "--data.train", "/no\"such\x07\xff".encode("latin-1")], capture_output=True)
failed = json.loads(r.stderr.decode().splitlines()[-1])
check("a failure, too, whatever the message holds", failed["level"] == "error" and '/no"such' in failed["message"], r.stderr)
for where in (["--log-json", "launch"], ["launch", "--log-json"]):
    r = subprocess.run([lateen, *where, "--ranks", "2", "train", *SMALL, "--steps", "4", "--out", f"{scratch}/both-{where[0]}"], capture_output=True, text=True)
    try:
        ranks = {x.get("rank") for x in map(json.loads, r.stderr.splitlines())}
    except ValueError:
        ranks = r.stderr[:300]
    check(f"{' '.join(where)}: every line of its ranks is JSON, too", r.returncode == 0 and 0 in ranks, ranks)
r = subprocess.run([lateen, "--verbose", "launch", "--ranks", "1", "train", *SMALL, "--data.train", "nowhere", "--out", f"{scratch}/deep"], capture_output=True, text=True)
check("--verbose launch: a rank says where an error arose", "] " in r.stderr and "  at src/" in r.stderr, r.stderr[-300:])
r = subprocess.run([lateen, "launch", "--plain", "--ranks", "2", "train", *SMALL, "--steps", "4", "--out", f"{scratch}/two", "--log-json"], capture_output=True, text=True)
lines = [json.loads(x) for x in r.stderr.splitlines() + r.stdout.splitlines() if x.startswith("{")]
check("launched ranks report their epoch", r.returncode == 0 and {(x["attempt"], x["epoch"], x["rank"]) for x in lines} == {(0, 1, 0)}, (r.returncode, r.stderr[-500:]))
for at in ("127.0.0.1", "127.0.0.1:x", "127.0.0.1:70000", "no.such.host.invalid:0"):
    status, said = train("bad", "--steps", "1", "--metrics.listen", at)
    check(f"refused: --metrics.listen {at}", status in (1, 2) and "metrics.listen" in said, (status, said[-200:]))

with socket.create_server(("127.0.0.1", 0)) as taken:
    at = f"127.0.0.1:{taken.getsockname()[1]}"
    status, said = train("port", "--steps", "2", "--metrics.listen", at)
    check("a port that another process holds is refused", status == 1 and at in said, said[-300:])
    status, said = train("port", "--steps", "2", "--metrics.listen", at, env={"SLURM_RESTART_COUNT": "1"})
    check("but does not keep a run from continuing after a fault", status == 0 and "this attempt goes on without" in said, said[-300:])

# ---- A node ----
os.makedirs(f"{scratch}/lib")
subprocess.run(["cc", "-shared", "-fPIC", "-o", f"{scratch}/lib/libnvidia-ml.so.1", "tests/inject/nvml.c"], check=True)
p = subprocess.Popen([lateen, "health", "--listen", ":0", "--every-s", "0.3", "--node", "n7"], stderr=subprocess.PIPE, text=True,
                     env={**os.environ, "LD_LIBRARY_PATH": f"{scratch}/lib"})
url = address(p)
status, kind, text = get(url + "/metrics")
promtool("/metrics of a node: promtool's linter names only dcgm-exporter's names", text, known=["DCGM_FI_"])
openmetrics("OpenMetrics of a node", get(url + "/metrics", OPEN)[2])
told = samples(text)
check("results of checks", told["lateen_health_result"]['node="n7"'] == 2 and told["lateen_health_check_result"]['node="n7",check="gpu.ecc_uncorrected",object="gpu0"'] == 2 and
      told["lateen_health_check_value"]['node="n7",check="gpu.ecc_uncorrected",object="gpu0"'] == 13, text[:400])
labels = 'gpu="0",UUID="GPU-00",pci_bus_id="00000000:18:00.0",device="nvidia0",modelName="Test GPU",Hostname="n7"'
expected = {"SM_CLOCK": 1980, "MEM_CLOCK": 2619, "MEMORY_TEMP": 77, "GPU_TEMP": 61, "POWER_USAGE": 651.5, "TOTAL_ENERGY_CONSUMPTION": 123456789012, "PCIE_REPLAY_COUNTER": 7,
            "GPU_UTIL": 97, "MEM_COPY_UTIL": 41, "FB_FREE": 61440, "FB_USED": 20480, "ECC_SBE_VOL_TOTAL": 3, "ECC_DBE_VOL_TOTAL": 13, "UNCORRECTABLE_REMAPPED_ROWS": 2,
            "CORRECTABLE_REMAPPED_ROWS": 5, "ROW_REMAP_FAILURE": 0, "ROW_REMAP_PENDING": 1, "NVLINK_REPLAY_ERROR_COUNT_TOTAL": 4, "NVLINK_RECOVERY_ERROR_COUNT_TOTAL": 8,
            "NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL": 12, "NVLINK_CRC_DATA_ERROR_COUNT_TOTAL": 16, "PCIE_LINK_WIDTH": 8, "PCIE_MAX_LINK_WIDTH": 16, "PCIE_LINK_GEN": 5,
            "POWER_MGMT_LIMIT": 700, "CLOCK_THROTTLE_REASONS": 4}
found = {n[12:]: v for n, v in told.items() if n.startswith("DCGM_FI_DEV_")}
check("GPUs under dcgm-exporter's names and labels", found == {n: {labels: v} for n, v in expected.items()}, found)
status, kind, text = get(url + "/healthz")
check("/healthz of an unfit node: 503 and the reason", status == 503 and text.startswith("drain: gpu.ecc_uncorrected gpu0 = 13"), text)
first = told["lateen_health_timestamp_seconds"]['node="n7"']
end = time.time() + 60
while (later := samples(get(url + "/metrics")[2])["lateen_health_timestamp_seconds"]['node="n7"']) <= first and time.time() < end:
    time.sleep(0.1)
check("checks continue", later > first, (later, first))
times = [later]
while len(times) < 4 and time.time() < end:
    again = samples(get(url + "/metrics")[2])
    now = again["lateen_health_timestamp_seconds"]['node="n7"']
    times += [now] if now != times[-1] else []
check("at their interval of 0.3 s", len(times) == 4 and all(b - a > 0.25 for a, b in zip(times, times[1:])), times)
check("each check reports its own values, and no more", {n: set(v) for n, v in again.items()} == {n: set(v) for n, v in told.items()}, set(again) ^ set(told))
p.send_signal(signal.SIGTERM)
check("SIGTERM ends it, exit status 0", p.wait(timeout=20) == 0)
shutil.rmtree(scratch)
sys.exit(tap.end())
