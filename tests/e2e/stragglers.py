"""A rank that is slow: one of two ranks is repeatedly stopped for a moment. The events, the metrics and the log name it, and not the rank that waits for it. TAP on stdout.

usage: stragglers.py LATEEN"""
import json
import os
import re
import signal
import sys
import tempfile
import time

from launched import begin, events
from tap import Tap

tap = Tap()
work = tempfile.TemporaryDirectory()
out = work.name + "/slow"
p, pids = begin(2, {"out": out, "steps": 1000000, "guard.slow": 0.5, "guard.slow_s": 0.4, "log.every": 5}, ("--retries", "1"))


def named(rank):
    """How often this rank was reported as slow."""
    return [e for e in events(out, "straggler") if e["rank"] == rank and e["slow"]] if os.path.exists(out + "/events.jsonl") else []


until = time.time() + 90
while not named(1) and time.time() < until and p.poll() is None:
    for number, seconds in ((signal.SIGSTOP, 0.04), (signal.SIGCONT, 0.02)):
        os.kill(pids[1], number)
        time.sleep(seconds)
open(out + "/exit", "w").close()
text = p.communicate(timeout=60)[0]
told = [r for r in map(json.loads, open(out + "/metrics.jsonl")) if r["kind"] == "straggler" and r["rank"] == 1 and r["slow"]]
tap.check("a rank that is slow is an event, with its share", named(1) and named(1)[0]["share"] > 0.5 and named(1)[0]["node"] == -1, f"{events(out)} {text[-600:]}")
tap.check("it is a line of the metrics and a warning", told and told[0]["share"] > 0.5 and told[0]["compute_s"] > 0 and "rank 1 is slow: it computes" in text, f"{told} {text[-600:]}")
tap.check("the run goes on: it was stopped by the file named exit", p.returncode == 75, p.returncode)
tap.check("the report has it", re.search(r'"kind": ?"straggler"', open(out + "/report.html").read()))
work.cleanup()
sys.exit(tap.end())
