"""A time of day that jumps, as when NTP or an administrator sets it (tests/inject/clock.c), under a run with faults, a training that is scraped, and a copy.

usage: clocks.py LATEEN"""
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request

import object_store
from launched import TRAIN, begin, bits, events, lateen, undisturbed, wait_for
from tap import Tap

tap = Tap()
work = tempfile.TemporaryDirectory()
library, ahead = f"{work.name}/clock.so", f"{work.name}/ahead"
subprocess.run([os.environ.get("CC", "cc").split()[-1], "-D_GNU_SOURCE", "-shared", "-fPIC", "-O1", "-o", library, "tests/inject/clock.c", "-ldl"], check=True)
CLOCK = {"LD_PRELOAD": library, "LATEEN_CLOCK_AHEAD": ahead}
DAY = 86400


def jump(seconds):
    """Set how far the time of day is ahead of the machine's."""
    with open(ahead + ".new", "w") as f:
        f.write(str(seconds))
    os.rename(ahead + ".new", ahead)


@tap.case
def faults():
    """Heartbeats, deadlines, lease and snapshots of a run whose rank is killed, while the clock
    jumps forward and back."""
    args = {"steps": 1200, "checkpoint.every": 200}
    out, more = f"{work.name}/jumps", ("--nodes", "2", "--retries", "5", "--snapshot", "20")
    whole = undisturbed(2, {**args, "out": f"{work.name}/whole"})
    jump(0)
    p, pids = begin(2, {**args, "out": out}, more, **CLOCK)
    for seconds in (DAY, -400 * DAY, 4000 * DAY):
        jump(seconds)
        time.sleep(0.2)
    os.kill(pids[1], signal.SIGKILL)
    wait_for(lambda: b"recovered" in open(f"{out}/events.jsonl", "rb").read() or p.poll() is not None)
    jump(-4000 * DAY)
    text = p.communicate(timeout=120)[0]
    tap.check("a run through jumps of the clock has no other fault than the one that it was given", p.returncode == 0 and len(events(out, "fault")) == 1, f"{p.returncode} {text[-600:]}")
    tap.check("and ends with the bits of a run without", p.returncode == 0 and bits(out) == whole, "other bits")
    spans = [e["seconds"] for e in events(out) if "seconds" in e]
    restarts = [r["restart"] for r in map(json.loads, open(f"{out}/metrics.jsonl")) if r["kind"] == "goodput"]
    tap.check("the time between its attempts is that of the machine", restarts and all(0 < s < 60 for s in restarts), restarts)
    tap.check("the lengths of its phases are those of the machine's clock", spans and all(0 <= s < 60 for s in spans), spans)


@tap.case
def metrics():
    jump(0)
    words = [w for n, v in {**TRAIN, "out": f"{work.name}/scraped", "steps": 10**8, "checkpoint.every": 50, "metrics.listen": ":0"}.items() for w in (f"--{n}", str(v))]
    p = subprocess.Popen([lateen, "train", *words], stderr=subprocess.PIPE, text=True, env={**os.environ, **CLOCK})
    try:
        url = next(found[1] for line in p.stderr if (found := re.search(r"metrics: (http://\S+)/metrics", line)))

        def told(name):
            found = re.search(rf"^{name}(?:{{.*}})? (\S+)$", urllib.request.urlopen(url + "/metrics", timeout=10).read().decode(), re.M)
            return float(found[1]) if found else 0.0
        wait_for(lambda: told("lateen_train_checkpoint_step") >= 0)
        jump(-1000 * DAY)
        wait_for(lambda: told("lateen_train_checkpoint_timestamp_seconds") < time.time() - 999 * DAY)
        interval = told("lateen_train_checkpoint_interval_seconds")
        tap.check("the time between two checkpoints is not that of the jump between them", 0 < interval < 60, interval)
    finally:
        p.kill()
        p.wait()


@tap.case
def copies():
    """A copy checks for signals as often as before, although the clock is now an hour behind the
    time at which it began."""
    store = object_store.Store()
    store.rate = 100000
    store.put("bucket", "k", os.urandom(4 << 20))
    jump(3600)
    env = {**os.environ, **CLOCK, "AWS_ACCESS_KEY_ID": "AKIDEXAMPLE", "AWS_SECRET_ACCESS_KEY": object_store.KEYS["AKIDEXAMPLE"], "AWS_ENDPOINT_URL": store.url, "HOME": work.name,
           "LATEEN_CACHE_DIR": f"{work.name}/cache"}
    p = subprocess.Popen([lateen, "copy", "s3://bucket/k", f"{work.name}/k"], env=env, stderr=subprocess.PIPE, text=True)
    wait_for(lambda: any(r.method == "GET" for r in store.requests))
    p.send_signal(signal.SIGINT)
    start = time.time()
    text = p.communicate(timeout=90)[1]
    tap.check("SIGINT ends it at once", p.returncode == 75 and time.time() - start < 10, f"{p.returncode} after {time.time() - start:.1f} s: {text}")
    store.close()


work.cleanup()
sys.exit(tap.end())
