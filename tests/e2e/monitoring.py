#!/usr/bin/env python3
"""The files in deploy/ for Prometheus and Grafana: rules and their tests (promtool), targets from Slurm's commands, and every expression of the dashboards and
rules run against a real Prometheus, which has scraped a run, a node and a server; alerts that reach an Alertmanager, and are resolved there; and `lateen cluster`, the page that is made from both. Skipped without
Prometheus (packages-test.txt). monitoring.py LATEEN [CHROMIUM [SCREENSHOTS]]: CHROMIUM draws the page."""
import glob
import http.server
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse
import urllib.request

import processes
from tap import Tap

lateen, golden = os.path.abspath(sys.argv[1]), "tests/golden/train/"
scratch = tempfile.mkdtemp()
tap = Tap()
check = tap.check
started = []


def run(*words, **options):
    return subprocess.run(words, capture_output=True, text=True, timeout=120, **options)


def start(*words, env=None, **options):
    p = subprocess.Popen(words, text=True, env={**os.environ, **(env or {})}, **options)
    started.append(p)
    return p


def told(p, pattern):
    """The match in the first line of a process's messages that matches."""
    for line in p.stderr:
        found = re.search(pattern, line)
        if found:
            return found[1]
    raise RuntimeError(f"no {pattern}; exit status {p.wait()}")


def end():
    processes.end(started)
    shutil.rmtree(scratch)
    sys.exit(tap.end())


r = run(sys.executable, "tools/make_dashboards.py", "--check")
check("dashboards are those of tools/make_dashboards.py", r.returncode == 0, r.stdout)

# ---- Targets from Slurm ----
os.makedirs(f"{scratch}/bin")


def slurm(name, text, status=0, seconds=0):
    with open(f"{scratch}/bin/{name}", "w") as f:
        f.write(f"#!/bin/sh\nprintf '%s\\n' \"$@\" >{scratch}/{name}.words\nsleep {seconds}\ncat <<'EOT'\n{text}EOT\nexit {status}\n")
    os.chmod(f"{scratch}/bin/{name}", 0o755)


def targets(*words):
    r = run("deploy/slurm/targets.sh", f"{scratch}/targets", *words, env={**os.environ, "PATH": f"{scratch}/bin:{os.environ['PATH']}"})
    return r.returncode, [json.load(open(f"{scratch}/targets/{f}.json")) for f in ("nodes", "runs")]


slurm("sinfo", "n1|debug\nn1|long\nn2|long\n")
slurm("squeue", "17|n1|lab|ada|lateen-metrics=9400\n18|n2|lab|bob|a \"quote\" and lateen-metrics=9500, more\n19|n2|lab|eve|(null)\n")
status, (nodes, runs) = targets()
check("targets: each node once", status == 0 and nodes == [{"targets": ["n1:9401"], "labels": {"node": "n1", "partition": "debug"}},
                                                          {"targets": ["n2:9401"], "labels": {"node": "n2", "partition": "long"}}], nodes)
check("targets: running jobs whose comment names a port", runs == [{"targets": ["n1:9400"], "labels": {"job_id": "17", "node": "n1", "tenant": "lab", "user": "ada"}},
                                                                 {"targets": ["n2:9500"], "labels": {"job_id": "18", "node": "n2", "tenant": "lab", "user": "bob"}}], runs)
slurm("squeue", "", 1)
check("targets: no answer from Slurm changes nothing", targets()[0] != 0 and targets()[1] == [nodes, runs])
slurm("squeue", "")
check("targets: no jobs, an empty list", targets() == (0, [nodes, []]), targets())

# ---- Units of systemd ----
if shutil.which("systemd-analyze"):
    os.makedirs(f"{scratch}/units")
    for path in glob.glob("deploy/systemd/*"):
        with open(path) as f, open(f"{scratch}/units/{os.path.basename(path)}", "w") as to:
            to.write(f.read().replace("/usr/bin/lateen", lateen).replace("/usr/share/lateen/deploy", os.path.abspath("deploy")))
    r = run("systemd-analyze", "verify", "--man=no", *sorted(glob.glob(f"{scratch}/units/*")))
    check("systemd-analyze verify", r.returncode == 0 and "lateen" not in r.stderr, r.stderr)
else:
    tap.skip("systemd-analyze verify", "not installed")

if not shutil.which("prometheus") or not shutil.which("promtool"):
    tap.skip("Prometheus", "not installed (packages-test.txt)")
    end()

# ---- Rules ----
r = run("promtool", "check", "config", "deploy/prometheus/prometheus.yml")
check("promtool check config", r.returncode == 0, r.stdout + r.stderr)
r = run("promtool", "test", "rules", "lateen.rules.test.yml", cwd="deploy/prometheus")
check("promtool test rules", r.returncode == 0, r.stdout + r.stderr)
with open("deploy/prometheus/lateen.rules.yml") as f:
    alerts = re.findall(r"- alert: (\w+)", f.read())
with open("deploy/prometheus/lateen.rules.test.yml") as f:
    tested = set(re.findall(r'alertname="(\w+)"', f.read()))
check("every alert is seen to fire by a test", len(alerts) >= 15 and set(alerts) == tested, set(alerts) ^ tested)

# ---- A run, a node and a server, scraped ----
os.makedirs(f"{scratch}/lib")
subprocess.run(["cc", "-shared", "-fPIC", "-o", f"{scratch}/lib/libnvidia-ml.so.1", "tests/inject/nvml.c"], check=True)
trainer = start(lateen, "train", "--model.vocab", "64", "--model.layers", "1", "--model.width", "16", "--model.heads", "2", "--data.seq", "16", "--batch.size", "4", "--threads", "1",
                "--export", "false", "--data.train", golden + "tokens", "--data.valid", golden + "valid", "--eval.rows", "6", "--eval.every", "400", "--checkpoint.every", "500",
                "--steps", "100000000", "--log.every", "50", "--out", f"{scratch}/demo", "--metrics.listen", ":0", stderr=subprocess.PIPE)
node = start(lateen, "health", "--listen", ":0", "--every-s", "1", "--history", f"{scratch}/history.jsonl", "--node", "n1", stderr=subprocess.PIPE, env={"LD_LIBRARY_PATH": f"{scratch}/lib"})
shared = "tests/golden/stories260k"
server = start(lateen, "serve", f"{shared}/stories260K.bin", "--tokenizer", f"{shared}/tok512.bin", "--port", "0", stderr=subprocess.DEVNULL, stdout=subprocess.PIPE)
at = {"runs": told(trainer, r"metrics: http://(\S+)/metrics"), "nodes": told(node, r"metrics: http://(\S+)/metrics"), "serve": server.stdout.readline().strip().split("//")[-1]}
with open("deploy/prometheus/prometheus.yml") as f:
    config = f.read()
config = config.replace("15s", "500ms").replace("/var/lib/lateen/targets", f"{scratch}/sd").replace("127.0.0.1:8000", at["serve"])
os.makedirs(f"{scratch}/sd")
for name, labels in (("nodes", {"node": "n1", "partition": "debug"}), ("runs", {"job_id": "17", "node": "n1", "tenant": "lab", "user": "ada"})):
    with open(f"{scratch}/sd/{name}.json", "w") as f:
        json.dump([{"targets": [at[name]], "labels": labels}], f)
with open(f"{scratch}/prometheus.yml", "w") as f:
    f.write(config)
with open("deploy/prometheus/lateen.rules.yml") as f:
    rules = re.sub(r"for: \w+", "for: 0s", f.read())
with open(f"{scratch}/lateen.rules.yml", "w") as f:
    f.write(rules)
listen = "127.0.0.1:" + str(20000 + os.getpid() % 20000)
alerted = []  # What Alertmanager sends: (status, name of the alert, its labels).


class Webhook(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        alerted.extend((a["status"], a["labels"]["alertname"], a["labels"]) for a in body["alerts"])
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_):
        pass


def start_alertmanager():
    """Send every alert separately and at once to a page of this script; returns its address."""
    hook = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Webhook)
    threading.Thread(target=hook.serve_forever, daemon=True).start()
    with open(f"{scratch}/alertmanager.yml", "w") as f:
        json.dump({"route": {"receiver": "us", "group_by": ["..."], "group_wait": "0s", "group_interval": "1s", "repeat_interval": "1h"},
                   "receivers": [{"name": "us", "webhook_configs": [{"url": f"http://127.0.0.1:{hook.server_address[1]}/", "send_resolved": True}]}]}, f)
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        address = "127.0.0.1:%d" % s.getsockname()[1]
    start("prometheus-alertmanager", f"--config.file={scratch}/alertmanager.yml", f"--storage.path={scratch}/alerts", f"--web.listen-address={address}", "--cluster.listen-address=",
          stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return address


if shutil.which("prometheus-alertmanager"):
    with open(f"{scratch}/prometheus.yml", "w") as f:
        f.write(config.replace("127.0.0.1:9093", start_alertmanager()))
prometheus = start("prometheus", f"--config.file={scratch}/prometheus.yml", f"--storage.tsdb.path={scratch}/tsdb", f"--web.listen-address={listen}", "--log.level=error",
                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def api(path, **query):
    try:
        try:
            with urllib.request.urlopen(f"http://{listen}/api/v1/{path}?{urllib.parse.urlencode(query)}", timeout=20) as r:
                return json.load(r)
        except urllib.error.HTTPError as e:
            return json.load(e)  # While it starts, it answers without JSON.
    except (OSError, ValueError):
        return {"status": "error", "error": "no answer", "data": {"result": []}}


def ask(expression):
    got = api("query", query=expression)
    return got["data"]["result"] if got["status"] == "success" else got.get("error")


def ask_server():
    body = json.dumps({"model": "stories260K", "prompt": "Once upon a time", "max_tokens": 4, "temperature": 0}).encode()
    urllib.request.urlopen(urllib.request.Request(f"http://{at['serve']}/v1/completions", body, {"Content-Type": "application/json"}), timeout=30).read()


def expressions():
    for path in sorted(glob.glob("deploy/grafana/*.json")):
        with open(path) as f:
            for panel in json.load(f)["panels"]:
                for t in panel["targets"]:
                    yield f"{os.path.basename(path)}: {panel['title']}", t["expr"]


def filled(expression):
    return expression.replace("$__rate_interval", "5s").replace("$run", "demo").replace("$node", "n1").replace("$instance", ".*")


HOSTILE = "<img src=x onerror=document.title='bad'>"


def cluster(*words):
    return [lateen, "cluster", "--prometheus", f"http://{listen}", "--window", "0.05", *words]


def cluster_page():
    slurm("sinfo", "n1\037debug\037idle\0372\037gpu:h100:2\037none\nn1\037long\037idle\0372\037gpu:h100:2\037none\nn2\037long\037drained\0372\037gpu:h100:2\037fan 3\n".replace("\\037", chr(31)))
    slurm("squeue", f"17\037demo\037lab\037ada\037debug\037RUNNING\0371\0371:02\0371:00:00\037gres:gpu:2\037n1\037None\n18\037{HOSTILE}\037lab\037bob\037long\037PENDING\0372\0370:00\0371:00:00\037gres:gpu:1\037\037Resources\n")
    slurm("sacct", "lab|3600|billing=8,cpu=8,gres/gpu=2,mem=1G,node=1\nlab|1800|cpu=8,gres/gpu:h100=4,node=1\nother|3600|cpu=8,node=1\n")
    env = {**os.environ, "PATH": f"{scratch}/bin:{os.environ['PATH']}"}
    r = run(*cluster("--json"), env=env)
    d = json.loads(r.stdout)
    empty = [k for k in ("up", "health", "checks", "values", "gpu_use", "gpu_temperature", "info", "step", "target", "step_s", "step_age", "checkpoint_age", "loss", "tokens_per_s",
                         "goodput", "losses", "alerts") if not d.get(k)]
    check("lateen cluster: Prometheus answers all of its queries", not empty and d["errors"] == {}, (empty, d["errors"]))
    check("lateen cluster: nodes, jobs and hours of Slurm by field", [(n["node"], n["partition"], n["state"], n["reason"]) for n in d["nodes"]] == [("n1", "debug", "idle", "none"), ("n1", "long", "idle", "none"),
          ("n2", "long", "drained", "fan 3")] and d["jobs"][1]["name"] == HOSTILE and d["jobs"][0]["gres"] == "gres:gpu:2" and d["hours"][0] == {"tenant": "lab", "seconds": "3600", "tres": "billing=8,cpu=8,gres/gpu=2,mem=1G,node=1"}, d["nodes"])
    slurm("sacct", "", 1)
    r = run(lateen, "cluster", "--json", "--prometheus", "http://127.0.0.1:1", env=env)
    d = json.loads(r.stdout)
    check("lateen cluster: what does not answer is named, and the rest is there", set(d["errors"]) == {"prometheus", "sacct"} and len(d["nodes"]) == 3 and "up" not in d, d["errors"])
    slurm("sacct", "lab|3600|gres/gpu=2\nlab|1800|gres/gpu:h100=4\nother|3600|cpu=8\n")
    p = start(*cluster("--listen", ":0", "--fresh-s", "0"), env=env, stderr=subprocess.PIPE)
    url = told(p, r"cluster: (http://\S+)/")
    with urllib.request.urlopen(url, timeout=20) as r:
        page = r.read().decode()
    check("lateen cluster: the page loads nothing from elsewhere", "<title>" in page and not re.search(r"""(src|href)=["']?(https?:)?//""", page))
    if len(sys.argv) > 2:
        draw(url)
        for name in ("sinfo", "squeue", "sacct"):
            slurm(name, "", 1)
        p = start(lateen, "cluster", "--listen", ":0", "--prometheus", "http://127.0.0.1:1", env=env, stderr=subprocess.PIPE)
        draw_unknown(told(p, r"cluster: (http://\S+)/"))
    for name in ("sinfo", "squeue", "sacct"):
        slurm(name, "", seconds=4)
        os.remove(f"{scratch}/{name}.words")
    p = start(lateen, "cluster", "--listen", ":0", "--prometheus", "", env=env, stderr=subprocess.PIPE)
    with socket.create_connection(told(p, r"cluster: http://(\S+)/").rsplit(":", 1)) as s:
        s.sendall(b"GET /data.json HTTP/1.0\r\n\r\n")
        begin = time.time()
        while not os.path.exists(f"{scratch}/sinfo.words") and time.time() < begin + 20:
            time.sleep(0.02)
        begin = time.time()
        p.terminate()
        p.wait(timeout=60)
    check("lateen cluster: it ends after the command of Slurm that it waits for, not after all three", p.returncode == 0 and time.time() - begin < 9, time.time() - begin)


def draw(url):
    from browser import Browser
    b = Browser(sys.argv[2], url, sys.argv[3] if len(sys.argv) > 3 else None)
    for name, width, scheme in (("desktop", 1200, "light"), ("phone", 390, "dark")):
        b.size(width, 900, mobile=width < 500)
        b.scheme(scheme)
        b.go("/")
        check(f"page, {name}: drawn", b.wait("document.body.dataset.drawn >= 1"), b.js("document.body.innerText")[:500])
        text = b.js("document.body.innerText")
        check(f"page, {name}: the node and what is wrong with it, alerts, the run, jobs, queues, hours", all(x in text for x in (
            "drain: gpu.ecc_uncorrected gpu0 = 13", "LateenNodeUnfit", "demo", "tokens/s", "productive", "fan 3", "PENDING (Resources)", "4.0")), text)
        check(f"page, {name}: a name is text", HOSTILE in text and b.js("document.title") == "Lateen cluster")
        check(f"page, {name}: nothing overflows", b.js("document.documentElement.scrollWidth <= window.innerWidth"))
        check(f"page, {name}: bands of goodput", b.js("document.querySelectorAll('#runs polygon').length") >= 3)
        b.js("document.documentElement.style.height = 'auto'")
        b.size(width, min(int(b.js("document.documentElement.scrollHeight")), 4000), mobile=width < 500)
        b.shot("cluster-" + name)
    errors = [e for e in b.events if e["method"] in ("Runtime.exceptionThrown", "Log.entryAdded")]
    check("page: no error of the browser", not errors, errors)
    b.close()


def draw_unknown(url):
    """A value that no source reports is not 0."""
    from browser import Browser
    b = Browser(sys.argv[2], url, None)
    b.size(390, 900, mobile=True)
    b.go("/")
    b.wait("document.body.dataset.drawn >= 1")
    facts = b.js("[...document.querySelectorAll('.fact b')].map(x => x.textContent).join(' ')")
    parts = b.js("['alerts', 'runs', 'nodes', 'queues', 'jobs'].map(x => document.getElementById(x).innerText).join('|')")
    check("page without any source: counts are unknown", facts == "? ? ? ? ? ?", facts)
    check("page without any source: each part says which source does not answer", parts.split("|") == [f"not known: {x} does not answer" for x in ("prometheus", "prometheus", "sinfo", "sinfo", "squeue")], parts)
    rows = ", ".join(f"{k}: [{{metric: {{run: 'new'}}, value: [0, '{v}']}}]" for k, v in (("info", 1), ("step", 0), ("target", 9)))
    begun = b.js(f"runs({{time: 100, window_s: 10, {rows}}})[0].innerText")
    check("page: a run before its first step has no time left and no checkpoint yet", "step 0 of 9" in begun and not any(x in begun for x in ("NaN", "left", "checkpoint")), begun)
    b.close()


def ends_of_alerts():
    """The run is killed, and then its job is over; the node stays as faulty as it was."""
    def told_of(status, alert):
        until = time.time() + 30
        while time.time() < until and not any(a[:2] == (status, alert) for a in alerted):
            time.sleep(0.2)
        return [a[2] for a in alerted if a[:2] == (status, alert)]
    check("Alertmanager is told that the node is unfit", [x["node"] for x in told_of("firing", "LateenNodeUnfit")][:1] == ["n1"], alerted)
    trainer.kill()
    trainer.wait()
    gone = told_of("firing", "LateenRunGone")
    check("Alertmanager is told that a run has died, with the labels of its job", gone and gone[0]["job_id"] == "17" and gone[0]["tenant"] == "lab", alerted)
    with open(f"{scratch}/sd/runs.json.new", "w") as f:
        f.write("[]")
    os.rename(f"{scratch}/sd/runs.json.new", f"{scratch}/sd/runs.json")
    check("and that the alert is over when the job is", told_of("resolved", "LateenRunGone") != [], alerted)
    check("while that of the node continues", not any(a[:2] == ("resolved", "LateenNodeUnfit") for a in alerted), alerted)


try:
    wanted = [(name, filled(e)) for name, e in expressions()]
    missing, deadline = wanted, time.time() + 60
    while missing and time.time() < deadline:
        ask_server()
        time.sleep(1.0)
        missing = [(name, e) for name, e in missing if not isinstance(ask(e), list) or not ask(e)]
    up = ask("up")
    check("Prometheus reads all three, as OpenMetrics", sorted(x["value"][1] for x in up) == ["1"] * 3, up)
    check(f"every expression of the dashboards gives something ({len(wanted)})", len(wanted) > 45 and not missing, [(n, e, ask(e)) for n, e in missing])
    groups = api("rules")["data"]["groups"]
    rows = [r for g in groups for r in g["rules"]]
    check("every rule is evaluated without an error", len(rows) == len(alerts) + 1 and all(r["health"] == "ok" for r in rows), [(r["name"], r.get("lastError")) for r in rows if r["health"] != "ok"])
    firing = {r["name"]: r["alerts"] for r in rows if r["type"] == "alerting" and r["alerts"]}
    texts = [a["annotations"]["summary"] for r in firing.values() for a in r]
    check("the broken GPU of this test is noticed, and by nothing else", {"LateenNodeUnfit", "LateenRowRemap"} <= set(firing) and
          not set(firing) & {"LateenXid", "LateenPcieDegraded", "LateenRunGone", "LateenNodeGone", "LateenNoStep", "LateenQueueFull"}, sorted(firing))
    check("their texts are whole", "Node n1 is unfit" in texts and "n1, GPU 0: a row of memory waits to be remapped, or could not be" in texts and not any("error" in t for t in texts), texts)
    cluster_page()
    check("labels of Slurm are on the samples", {x["metric"]["tenant"] for x in ask("lateen_train_info")} == {"lab"})
    if shutil.which("prometheus-alertmanager"):
        ends_of_alerts()
    else:
        tap.skip("Alertmanager", "not installed (packages-test.txt)")
except Exception as e:
    check("nothing unexpected", False, repr(e))
finally:
    end()
