"""The cache on disk: prompts whose pages were evicted from the pool are restored, also after a restart. TAP on stdout.

usage: serve_disk.py evict|return BASE_URL FOLDER
The server is stories260K with --cache-disk FOLDER/pages --deterministic and a cache of 40 pages, each of 16 tokens. evict: the first server; return: the one
after it."""
import json
import os
import sys
import time

from serve_http import send
from tap import Tap

step, base, folder = sys.argv[1:4]
tap = Tap()
check = tap.check
words = "girl boy dog cat tree house sun moon park ball hat bird frog fish cake book door lake hill star".split()


def answer(i):
    prompt = " ".join(words[(i + k * k) % len(words)] for k in range(60))
    status, text = send(base + "/v1/completions", {"prompt": prompt, "max_tokens": 20, "temperature": 0.8, "seed": 5, "logprobs": 3})
    r = json.loads(text)
    check(f"prompt {i} is answered", status == 200, r)
    return r["choices"][0], r["usage"]["prompt_tokens_details"]["cached_tokens"]


def metrics():
    lines = send(base + "/metrics")[1].splitlines()
    return {line.split("{")[0]: float(line.split()[-1]) for line in lines if line.startswith("lateen_cache_disk")}


def wait_for(name, least):
    end = time.monotonic() + 60
    while metrics()[name] < least and time.monotonic() < end:
        time.sleep(0.02)
    return metrics()[name]


kept = os.path.join(folder, "answer.json")
if step == "evict":
    first, cached = answer(0)
    check("the first answer finds nothing", cached == 0)
    for i in range(1, 10):
        answer(i)
    check("evicted pages are written", wait_for("lateen_cache_disk_pages", 20) >= 20, metrics())
    again, cached = answer(0)
    check("they come back, with the same bits", cached > 0 and again == first, (cached, again, first))
    m = metrics()
    check("/metrics counts them", m["lateen_cache_disk_read_pages_total"] * 16 == m["lateen_cache_disk_hits_total"] > 0
          and m["lateen_cache_disk_bytes"] > 0 and m["lateen_cache_disk_failed_pages_total"] == 0, m)
    status = json.loads(send(base + "/status.json")[1])
    check("/status.json, too", status["disk_pages"] == m["lateen_cache_disk_pages"] and status["disk_tokens"] == m["lateen_cache_disk_hits_total"], status)
    with open(kept, "w") as f:
        json.dump([first, cached], f)
else:
    first, cached = json.load(open(kept))
    check("the folder's pages are known", metrics()["lateen_cache_disk_pages"] > 20, metrics())
    check("a new server answers from them, with the same bits", answer(0) == (first, cached))
    check("what had never left the pool was written at the end", answer(9)[1] > 0)
    with open(os.path.join(folder, "pages", "secret"), "rb") as f:
        check("the secret is for its owner alone", len(f.read()) == 8 and os.stat(f.name).st_mode & 0o77 == 0)
sys.exit(tap.end())
