"""`lateen copy` against an object store, a web server and a model hub that check every signature and produce the faults they are told to.

    python3 tests/e2e/copies.py build/lateen [SEEDS]        as TAP; SEEDS: how many seeds of random faults (6);
                                                            FAULT_SEEDS and FAULT_RESULTS: seeds.py"""
import glob
import hashlib
import json
import os
import random
import re
import resource
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request

import object_store
import seeds
from object_store import HUB_TOKEN, KEYS, SECRETS, TOKEN, Object, Repository, Store
from tap import Tap

lateen, all_seeds = os.path.abspath(sys.argv[1]), seeds.of(0, int(sys.argv[2]) if len(sys.argv) > 2 else 6)
tap = Tap(detail_chars=3000)
dir = tempfile.mkdtemp(prefix="lateen-copy-")
store = Store()
MIB = 1 << 20
printed = []  # Everything that any run has printed.


def environment(**more):
    keep = {k: v for k, v in os.environ.items() if not k.startswith(("AWS_", "HF_"))}
    return {**keep, "AWS_ACCESS_KEY_ID": "AKIDEXAMPLE", "AWS_SECRET_ACCESS_KEY": KEYS["AKIDEXAMPLE"], "AWS_ENDPOINT_URL": store.url,
            "LATEEN_CACHE_DIR": f"{dir}/cache", "HOME": f"{dir}/home", "HF_HOME": f"{dir}/hf", "HF_ENDPOINT": f"{store.url}/hub", "HF_TOKEN": HUB_TOKEN,
            "OMP_NUM_THREADS": "1", "GOMP_SPINCOUNT": "1", **more}


class Result:
    def __init__(self, status, out, err):
        self.status, self.out, self.err = status, out, err
        printed.append(out + err)

    def __str__(self):
        return f"status {self.status}: {self.out} {self.err}"


FAST = ["--part-bytes", "256KiB", "--delay-s", "0.005"]


def start(*words, verb="copy", **more):
    return subprocess.Popen([lateen, "--verbose", verb, *words], env=environment(**more), stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def run(*words, verb="copy", limit=None, fast=True, **more):
    before = (lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))) if limit else None
    p = subprocess.run([lateen, "--verbose", verb, *words, *(FAST if fast and verb == "copy" else [])], env=environment(**more), capture_output=True,
                       timeout=120, preexec_fn=before)
    return Result(p.returncode, p.stdout.decode(errors="replace"), p.stderr.decode(errors="replace"))


def path(name):
    return os.path.join(dir, name)


def write(name, data, mtime=None):
    os.makedirs(os.path.dirname(path(name)), exist_ok=True)
    with open(path(name), "wb") as f:
        f.write(data)
    if mtime:
        os.utime(path(name), (mtime, mtime))
    return path(name)


def read(name):
    try:
        with open(path(name), "rb") as f:
            return f.read()
    except FileNotFoundError:
        return None


def moved(result):
    """The number of bytes that a copy says it has moved."""
    found = re.search(r"; ([0-9.]+) (MB|bytes?) moved", result.err)
    return float(found[1]) * (1e6 if found[2] == "MB" else 1) if found else 1e99


def left_over(*names):
    """Files of a copy in progress, below these folders or beside these names."""
    return [f for name in names for f in glob.glob(path(name) + "*", recursive=True) + glob.glob(path(name) + "/**", recursive=True) if ".lateen-" in f]


def requests(method):
    return [r for r in store.requests if r.method == method]


def fresh():
    store.fault, store.skew_s, store.region, store.page, store.ranges, store.rate = None, 0, "us-east-1", 1000, True, 0
    store.kms = store.public = False
    store.requests.clear(), store.uploads.clear(), store.buckets["bucket"].clear()


def noise(n, seed=0):
    return random.Random(seed).randbytes(n)


BIG = noise(3 * MIB + 12345)  # 13 parts.
ODD = ["plain.txt", "a+b=c.txt", "with space & more", "100%.txt", "already%20encoded", "~tilde_x", "*star'(par)!", "ünï/çödé/日本語", "semi;colon:comma,at@",
       "q?mark#hash", "deep/er/and/deeper", "back\\slash|pipe", "tab\there"]


@tap.case
def there_and_back():
    fresh()
    write("big", BIG, 1700000000.25)
    up = run(path("big"), "s3://bucket/dir/big")
    o = store.buckets["bucket"].get("dir/big")
    tap.check("a file is uploaded in parts", up.status == 0 and o and o.data == BIG and len(o.parts) == 13 and not store.uploads, up)
    again = run(path("big"), "s3://bucket/dir/big")
    tap.check("what is already there is not sent again", again.status == 0 and "there already" in again.err and len(requests("PUT")) == 13, again)
    down = run("s3://bucket/dir/big", path("big2"))
    tap.check("and comes back, checked against the MD5 of its parts", down.status == 0 and read("big2") == BIG and "checked by MD5 of its parts" in down.err, down)
    tap.check("with the object's date", abs(os.stat(path("big2")).st_mtime - o.modified) < 1, os.stat(path("big2")))
    store.requests.clear()
    write("big2.lateen-state", b"of a copy that was killed right behind its renaming")
    again = run("s3://bucket/dir/big", path("big2"))
    tap.check("what came is not fetched again", again.status == 0 and not requests("GET") and not left_over("big2"), again)
    again = run("s3://bucket/dir/big", path("big2"), "--force")
    tap.check("unless it is forced", again.status == 0 and len(requests("GET")) == 13, again)
    write("empty", b"")
    one, two = run(path("empty"), "s3://bucket/empty"), run("s3://bucket/empty", path("empty2"))
    tap.check("a file without bytes", one.status == two.status == 0 and read("empty2") == b"", f"{one} {two}")
    tap.check("nothing temporary stays", not left_over("big2", "empty2", "cache"), left_over("big2", "empty2", "cache"))
    moved = run("s3://bucket/dir/big", "s3://bucket/other/big")
    tap.check("from one object to another", moved.status == 0 and store.buckets["bucket"]["other/big"].data == BIG, moved)
    local = run(path("big"), path("local/deep/copy"))
    tap.check("from file to file", local.status == 0 and read("local/deep/copy") == BIG, local)


@tap.case
def trees():
    fresh()
    store.page = 2
    files = {name: noise(100 + 7 * i, i) for i, name in enumerate(ODD)}
    files["big"] = BIG
    for name, data in files.items():
        write(f"tree/{name}", data)
    up = run(path("tree"), "s3://bucket/a b/")
    there = {k: o.data for k, o in store.buckets["bucket"].items()}
    tap.check("a folder with unusual names is uploaded", up.status == 0 and there == {f"a b/{n}": d for n, d in files.items()}, f"{up} {sorted(there)}")
    store.put("bucket", "a b/folder/", b"")
    store.put("bucket", "a bc", b"not below it")
    down = run("s3://bucket/a b/", path("tree2"))
    got = {os.path.relpath(f, path("tree2")): open(f, "rb").read() for f in glob.glob(path("tree2/**"), recursive=True) if os.path.isfile(f)}
    tap.check("a prefix in pages of two comes back", down.status == 0 and got == files, f"{down} {sorted(got)}")
    store.requests.clear()
    again = run("s3://bucket/a b/", path("tree2"))
    tap.check("the second time nothing is fetched", again.status == 0 and all("list-type" in r.query for r in requests("GET")), again)
    some = run("s3://bucket/a b/", path("tree3"), "--include", "*.txt,deep/*", "--exclude", "a+*")
    got = sorted(os.path.relpath(f, path("tree3")) for f in glob.glob(path("tree3/**"), recursive=True) if os.path.isfile(f))
    tap.check("patterns choose", some.status == 0 and got == ["100%.txt", "deep/er/and/deeper", "plain.txt"], f"{some} {got}")


@tap.case
def lists():
    """The end of a location, and its content."""
    fresh()
    store.page = 2
    for name in ODD:
        store.put("bucket", f"l/{name}", noise(100), modified=1700000000)
    store.put("bucket", "lx", b"beside it")
    r = run("--list", "s3://bucket/l/", "--json")
    rows = [json.loads(line) for line in r.out.splitlines()]
    tap.check("--list --json: every object below a prefix, in order", r.status == 0 and [row["name"] for row in rows] == sorted(ODD)
              and all(row["bytes"] == 100 and row["modified_s"] == 1700000000 and row["address"] == f"s3://bucket/l/{row['name']}" for row in rows), r)
    r = run("--list", "s3://bucket/l/", "--include", "*.txt")
    tap.check("--list with a pattern: date, size, name", r.status == 0 and "2023-11-14 22:13:20             100  plain.txt\n" in r.out and "~tilde" not in r.out
              and "l/: 3 files, 300 bytes" in r.err, r)
    r = run("--list", "s3://bucket/lx")
    tap.check("--list of one object", r.status == 0 and r.out.split()[2:] == ["9", "lx"], r)
    write("folder/a/b", b"12")
    write("folder/c", b"345")
    r = run("--list", path("folder"), "--json")
    tap.check("--list of a folder", [(json.loads(line)["name"], json.loads(line)["bytes"]) for line in r.out.splitlines()] == [("a/b", 2), ("c", 3)], r)
    for words, why in ((["s3://bucket/none/"], "there is no file"), (["s3://bucket/none"], "no such object"), (["s3://bucket/l/", path("x")], "takes one place"), ([path("no such")], "No such file"),
                       (["s3://bucket/l/", "--include", "*.none"], "no file matches")):
        r = run("--list", *words)
        tap.check(f"--list is refused: {why}", r.status in (1, 2) and why in r.err and not r.out, r)
    store.fault = lambda q: ("status", 503, "SlowDown") if q.method == "DELETE" and len(requests("DELETE")) == 1 else None
    r = run("--delete", "s3://bucket/l/", "--exclude", "*.txt")
    tap.check("--delete with a pattern, repeated after a 503", r.status == 0 and sorted(store.buckets["bucket"]) == ["l/100%.txt", "l/a+b=c.txt", "l/plain.txt", "lx"] and "10 objects" in r.err,
              f"{r} {sorted(store.buckets['bucket'])}")
    r = run("--delete", "s3://bucket/l/plain.txt")
    tap.check("--delete of one object", r.status == 0 and "l/plain.txt" not in store.buckets["bucket"] and "1 object deleted" in r.err, r)
    r = run("--delete", "s3://bucket/l/")
    tap.check("--delete of a prefix leaves its neighbours", r.status == 0 and sorted(store.buckets["bucket"]) == ["lx"], r)
    for place, why in (("s3://bucket/l/", "no such object"), ("s3://bucket/none", "no such object"), ("s3://bucket/", "BUCKET/PREFIX"), ("s3://bucket", "BUCKET/PREFIX"),
                       (path("folder"), "BUCKET/PREFIX"), ("hf://org/model", "BUCKET/PREFIX")):
        r = run("--delete", place)
        tap.check(f"--delete {place.replace(dir, '')} is refused: {why}", r.status in (1, 2) and why in r.err and sorted(store.buckets["bucket"]) == ["lx"] and read("folder/c"), r)


@tap.case
def clocks_and_regions_of_threads():
    """Several connections are refused at the same time, and each tries again with what any of
    them has learnt."""
    for skew_s, region in ((-7200, "us-east-1"), (0, "eu-lab-1")):
        fresh()
        store.skew_s, store.region = skew_s, region
        for i in range(24):
            store.put("bucket", f"many/{i}", noise(50, i))
        store.fault = lambda q: ("slow", 0.05) if q.method == "HEAD" else None
        r = run("s3://bucket/many/", path(f"many-{region}"))
        tap.check(f"many objects, of a store whose {'clock' if skew_s else 'region'} is another", r.status == 0 and len(os.listdir(path(f"many-{region}"))) == 24, r)


@tap.case
def unsafe():
    for key in ("p/../../evil", "p//evil", "p/./evil", "p/a/.."):
        fresh()
        store.put("bucket", key, b"evil")
        r = run("s3://bucket/p/", path("safe/deep"))
        tap.check(f"the key {key} is refused", r.status == 2 and "cannot be written below" in r.err and not glob.glob(path("evil")), r)
    fresh()
    store.put("bucket", "p/a", b"1"), store.put("bucket", "p/a-", b"2"), store.put("bucket", "p/a/b", b"3")
    r = run("s3://bucket/p/", path("safe2"))
    tap.check("a file that is also a folder is refused", r.status == 2 and "cannot both be files" in r.err, r)
    for words, why in ((["s3://", path("x")], "bucket's name"), (["ftp://h/x", path("x")], "unknown scheme"), ([path("big"), "https://h/x"], "writes to files and to s3"),
                       (["hf://a/b/c/../d", path("x")], "not the name of a file"), ([path("no such"), path("x")], "No such file"), (["https://h/", path("x")], "names no file"),
                       (["s3://bucket/none", path("x")], "no such object"), (["s3://bucket/none/", path("x")], "there is no file")):
        r = run(*words)
        tap.check(f"refused: {why}", r.status in (1, 2) and why in r.err and read("x") is None, r)


@tap.case
def credentials():
    fresh()
    store.put("bucket", "k", b"hello")
    r = run("s3://bucket/k", path("k1"), AWS_SECRET_ACCESS_KEY="another-secret-of-mine")
    tap.check("a wrong secret is refused, once", r.status == 1 and "403" in r.err and len(store.requests) <= 3 and "another-secret" not in r.err, r)
    tap.check("with the service's reason, which an answer to HEAD cannot have", "HEAD: status 403 SignatureDoesNotMatch" in r.err and "may not read" not in r.err, r)
    for code, headers in (("AccessDenied", {}), ("ExpiredToken", {})):
        store.fault = lambda q: ("status", 403, code)
        r = run("s3://bucket/k", path("k1"))
        tap.check(f"{code}", r.status == 1 and f"403 {code}" in r.err and ("may not list its bucket" in r.err) == (code == "AccessDenied"), r)
    store.fault = lambda q: ("status", 403, "AccessDenied") if q.method in ("GET", "HEAD") else None
    one, many = run(write("little", b"little"), "s3://bucket/little"), run(path("big"), "s3://bucket/written")
    tap.check("keys that may write and not read can send files", one.status == many.status == 0 and store.buckets["bucket"]["little"].data == b"little"
              and store.buckets["bucket"]["written"].data == BIG, f"{one} {many}")
    store.fault = lambda q: ("status", 403, "AccessDenied")
    r = run(path("big"), "s3://bucket/refused")
    tap.check("and keys that may not write get a message that says so, and leave nothing", r.status == 1 and "403 AccessDenied" in r.err and not left_over("cache"), f"{r} {left_over('cache')}")
    store.fault = None
    r = run("s3://bucket/k", path("k2"), AWS_ACCESS_KEY_ID="AKIDTOKEN", AWS_SECRET_ACCESS_KEY=KEYS["AKIDTOKEN"], AWS_SESSION_TOKEN=TOKEN)
    tap.check("a session's token", r.status == 0 and read("k2") == b"hello", r)
    write("home/.aws/credentials", f"# keys\n[other]\naws_access_key_id=wrong\n[lab]\naws_access_key_id = AKIDEXAMPLE\naws_secret_access_key = {KEYS['AKIDEXAMPLE']}\n".encode())
    write("home/.aws/config", f"[default]\nregion = nowhere-1\n[profile lab]\nregion = eu-lab-1\nservices = ours\n[services ours]\ns3 =\n  endpoint_url = {store.url}\n".encode())
    store.region = "eu-lab-1"
    none = dict(AWS_ACCESS_KEY_ID="", AWS_SECRET_ACCESS_KEY="", AWS_ENDPOINT_URL="")
    r = run("s3://bucket/k", path("k3"), "--profile", "lab", **none)
    tap.check("keys, region and endpoint of a profile", r.status == 0 and read("k3") == b"hello", r)
    r = run("s3://bucket/k", path("k4"), **none, AWS_PROFILE="lab")
    tap.check("AWS_PROFILE names one", r.status == 0, r)
    r = run("s3://bucket/k", path("k5"), **none)
    tap.check("no keys: where they were looked for", r.status == 1 and ".aws/credentials" in r.err and "AWS_ACCESS_KEY_ID" in r.err, r)
    write("home/.aws/config", b"[profile sso]\nsso_session = x\n[profile bad\n")
    r = run("s3://bucket/k", path("k5"), "--profile", "sso", **none)
    tap.check("a broken file is named, with its line", r.status == 1 and "line 3" in r.err and ".aws/config" in r.err, r)
    write("home/.aws/config", b"[profile sso]\nsso_session = x\n")
    r = run("s3://bucket/k", path("k5"), "--profile", "sso", **none)
    tap.check("an unsupported way is named", r.status == 1 and "sso_session" in r.err and "export-credentials" in r.err, r)
    shutil.rmtree(path("home"))
    r = run("s3://bucket/k", path("k6"))
    tap.check("a bucket of another region is asked there", r.status == 0 and read("k6") == b"hello", r)
    fresh()
    store.put("bucket", "k", b"hello")
    store.skew_s = -7200
    r = run("s3://bucket/k", path("k7"))
    tap.check("a clock that is wrong by two hours", r.status == 0 and read("k7") == b"hello" and "clock" in r.err, r)
    fresh()
    store.put("bucket", "dir/k x", b"hello")
    r = run("s3://bucket/dir/", path("k8"), "--addressing", "host", AWS_ENDPOINT_URL=store.url.replace("127.0.0.1", "localhost"))
    tap.check("the bucket in the host's name", r.status == 0 and read("k8/k x") == b"hello", r)


@tap.case
def checksums():
    for name, flip in (("MD5", None), ("MD5 of its parts", [MIB, MIB, MIB, 12345]), ("CRC-32", "crc32"), ("SHA-256 of its parts", "sha256")):
        fresh()
        how = {}
        if flip == "crc32":
            how = dict(parts=[2 * MIB, len(BIG) - 2 * MIB], headers={"x-amz-checksum-crc32": object_store.crc32_base64(BIG), "x-amz-checksum-type": "FULL_OBJECT"})
        elif flip == "sha256":
            digests = b"".join(hashlib.sha256(BIG[i:i + 2 * MIB]).digest() for i in (0, 2 * MIB))
            value = object_store.base64.b64encode(hashlib.sha256(digests).digest()).decode()
            how = dict(parts=[2 * MIB, len(BIG) - 2 * MIB], headers={"x-amz-checksum-sha256": f"{value}-2", "x-amz-checksum-type": "COMPOSITE"})
        elif flip:
            how = dict(parts=flip)
        store.put("bucket", "k", BIG, **how)
        r = run("s3://bucket/k", path("good"), "--force")
        tap.check(f"by {name}: what is right passes", r.status == 0 and read("good") == BIG and f"checked by {name}\n" in r.err, r)
        store.fault = lambda q: ("flip", 77) if q.method == "GET" and "bytes=262144-" in q.headers.get("Range", "") else None
        r = run("s3://bucket/k", path("bad"))
        tap.check(f"by {name}: one bit that is wrong is found, and nothing is left", r.status == 1 and "but the source has" in r.err and read("bad") is None
                  and not left_over("bad"), f"{r} {left_over('bad')}")
    fresh()
    store.put("bucket", "k", BIG, parts=[MIB, 2 * MIB, 12345])
    r = run("s3://bucket/k", path("uneven"))
    tap.check("parts of uneven sizes: by length only, and it says so", r.status == 0 and read("uneven") == BIG and "checked by length" in r.err, r)
    store.put("bucket", "k2", BIG, parts=[MIB, MIB + 100, MIB - 200, 12445])
    r = run("s3://bucket/k2", path("uneven2"))
    tap.check("also where only later ones differ", r.status == 0 and read("uneven2") == BIG and "checked by length" in r.err and "different sizes" in r.err, r)
    r = run("s3://bucket/k", path("own"), "--sha256", hashlib.sha256(BIG).hexdigest())
    tap.check("a checksum of the user's", r.status == 0 and "checked by SHA-256" in r.err, r)
    r = run("s3://bucket/k", path("own2"), "--sha256", "0" * 64)
    tap.check("which does not fit", r.status == 1 and read("own2") is None and not left_over("own2"), r)
    fresh()
    store.put("bucket", "k", BIG)
    changed = iter(range(100))
    store.fault = lambda q: store.put("bucket", "k", BIG[::-1]) if q.method == "GET" and next(changed) == 5 else None
    r = run("s3://bucket/k", path("changed"), "--connections", "2")
    tap.check("an object that changes on the way", r.status == 1 and "changed while it was copied" in r.err and read("changed") is None and not left_over("changed"), r)


KINDS = [("cut", None), ("drop",), ("lost",), ("slow", 0.02), ("short", 9), ("long", 9), ("range", 5), ("total",), ("status", 503, "SlowDown"), ("status", 500, "InternalError"),
         ("status", 429, "TooMany", {"Retry-After": "0"}), ("status", 400, "RequestTimeout"), ("status", 400, "BadDigest"), ("late_error",)]


def random_faults(seed, share, kinds=KINDS):
    rng = random.Random(seed)

    def fault(q):
        if rng.random() > share:
            return None
        kind = rng.choice(kinds)
        if kind[0] == "late_error" and not (q.method == "POST" and "uploadId" in q.query):
            return None
        if kind[0] in ("short", "long", "cut") and q.method != "GET":
            return ("drop",)
        # No body gives a reason; an upload whose id is lost stays.
        if (kind[1:2] == (400,) and q.method == "HEAD") or (kind[0] == "lost" and "uploads" in q.query):
            return None
        if kind[0] in ("short", "long") and "Range" not in q.headers:
            return None
        return ("cut", rng.choice([0, 1, 7, 100, 4096, rng.randrange(300000)])) if kind[0] == "cut" else kind
    return fault


@tap.case
def every_fault():
    for kind in KINDS:
        fresh()
        first = set()

        def fault(q, kind=kind):
            name = (q.method, q.path, str(sorted(q.query.items())), q.headers.get("Range", "").rpartition("-")[2])
            if name in first or (kind[0] in ("short", "long") and "Range" not in q.headers) or (kind[0] == "late_error" and q.method != "POST") \
                    or (kind[1:2] == (400,) and q.method == "HEAD") or (kind[0] == "lost" and "uploads" in q.query):
                return None
            first.add(name)
            if kind[0] == "late_error" and "uploads" in q.query:
                return None
            return ("cut", 1000) if kind[0] == "cut" else kind
        store.fault = fault
        up = run(path("big"), "s3://bucket/k")
        o = store.buckets["bucket"].get("k")
        down = run("s3://bucket/k", path("back"), "--force") if o else None
        tap.check(f"each request meets once: {' '.join(map(str, kind[:2]))}", up.status == 0 and o and o.data == BIG and down.status == 0 and read("back") == BIG
                  and not store.uploads and not left_over("back", "cache") and (kind[0] not in ("range", "total") or "asked for bytes" in down.err),
                  f"{up} {down} {list(store.uploads)}")


@tap.case
def seeded_faults():
    bad = []
    for seed in all_seeds:
        fresh()
        began = time.time()
        files = {f"s/{i}": noise(n, seed * 10 + i) for i, n in enumerate((0, 1, 1000, 262144, 262145, 1500000))}
        shutil.rmtree(path("s"), ignore_errors=True), shutil.rmtree(path("s2"), ignore_errors=True)
        for name, data in files.items():
            write(name, data)
        store.page = 3
        store.fault = random_faults(seed, 0.25)
        up = run(path("s"), "s3://bucket/s/", "--tries", "20")
        there = {k: o.data for k, o in store.buckets["bucket"].items()}
        down = run("s3://bucket/s/", path("s2"), "--tries", "20")
        got = {f"s/{i}": read(f"s2/{i}") for i in range(len(files))}
        wrong = up.status or down.status or there != files or got != files or store.uploads or left_over("s2", "cache")
        bad += [f"seed {seed}: {up} {down} {left_over('s2', 'cache')}"] if wrong else []
        seeds.done(seed, began, bad[-1:] if wrong else [], run="copies up and down")
    tap.check(f"{len(all_seeds)} seeds of random faults, uploads and downloads: everything arrives, nothing else is left", not bad, " ".join(bad))


@tap.case
def gives_up():
    fresh()
    store.put("bucket", "k", BIG)
    store.fault = lambda q: ("status", 503, "SlowDown") if q.method == "GET" else None
    r = run("s3://bucket/k", path("never"), "--tries", "3")
    tap.check("a service that only refuses: it says what and how often", r.status == 1 and "503 SlowDown" in r.err and "after 3 tries" in r.err and read("never") is None, r)
    store.fault = lambda q: ("cut", 60000) if q.method == "GET" else None
    r = run("s3://bucket/k", path("slices"), "--tries", "2")
    tap.check("tries with progress do not count", r.status == 0 and read("slices") == BIG, r)
    store.fault = lambda q: ("status", 503, "SlowDown", {"Retry-After": "9999"}) if q.method == "GET" else None
    begin = time.time()
    r = run("s3://bucket/k", path("never"))
    tap.check("a wait that is too long is not made", r.status == 1 and "9999" in r.err and time.time() - begin < 20, r)
    begin = time.time()
    asked = iter(range(9))
    store.fault = lambda q: ("status", 429, "TooMany", {"Retry-After": "1"}) if q.method == "HEAD" and next(asked) == 0 else None
    r = run("s3://bucket/k", path("later"))
    tap.check("Retry-After is obeyed", r.status == 0 and time.time() - begin >= 1, r)
    fresh()
    store.fault = lambda q: ("status", 403, "AccessDenied") if q.method == "PUT" and q.query.get("partNumber") == "9" else None
    r = run(path("big"), "s3://bucket/k")
    tap.check("an upload that is refused keeps its parts for the next try", r.status == 1 and "AccessDenied" in r.err and len(store.uploads) == 1, r)
    sent = len(requests("PUT"))
    store.fault = None
    r = run(path("big"), "s3://bucket/k")
    tap.check("which sends what is missing", r.status == 0 and store.buckets["bucket"]["k"].data == BIG and len(requests("PUT")) - sent < 13 and not store.uploads, r)


@tap.case
def stopped_before_it_begins():
    """A server that does not answer the first request; one that asks to come back later."""
    fresh()
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        silent.settimeout(30)
        at = f"http://127.0.0.1:{silent.getsockname()[1]}"
        for name, words, env in (("a web server", (at + "/x", path("x")), {}), ("a list", ("s3://bucket/p/", path("l/"), "--endpoint", at), {}), ("a hub", ("hf://org/model",), {"HF_ENDPOINT": at}),
                                 ("busy", ("s3://bucket/p/", path("b/"), "--delay-s", "20"), {})):
            store.put("bucket", "k", b"x")
            store.fault = (lambda q: ("status", 503, "SlowDown")) if name == "busy" else None
            store.requests.clear()
            p = subprocess.Popen([lateen, "copy", *words], env=environment(**env), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            if name == "busy":
                while not store.requests and p.poll() is None:
                    time.sleep(0.01)
                asked = None
            else:
                asked = silent.accept()[0]
            time.sleep(0.2)
            begin = time.time()
            p.send_signal(signal.SIGTERM)
            try:
                err = p.communicate(timeout=20)[1].decode()
            except subprocess.TimeoutExpired:
                p.kill()
                err = "it had to be killed"
            if asked:
                asked.close()
            tap.check(f"SIGTERM before a byte has come, {name}: status 75 at once", p.returncode == 75 and "the same command continues" in err and time.time() - begin < 5, (p.returncode, err, time.time() - begin))
    store.fault = None


@tap.case
def cut_and_resumed():
    fresh()
    write("big", BIG)
    for number, name in ((signal.SIGKILL, "killed"), (signal.SIGINT, "interrupted"), (signal.SIGHUP, "hung-up")):
        store.put("bucket", "k", BIG)
        store.rate = 1000000
        p = start("s3://bucket/k", path(name), *FAST, "--connections", "2")
        while sum(1 for line in (read(f"{name}.lateen-state") or b"").splitlines() if line.startswith(b"part")) < 4:
            time.sleep(0.01)
        p.send_signal(number)
        out, err = p.communicate()
        first = Result(p.returncode, out.decode(), err.decode())
        store.rate = 0
        store.requests.clear()
        if number != signal.SIGKILL:
            tap.check(f"{number.name}: status 75, and what it means", first.status == 75 and "the same command continues" in first.err, first)
        else:  # A line that a power failure has cut, and a part that was lost.
            with open(path(f"{name}.lateen-state"), "ab") as f:
                f.write(b"part 12 00")
            with open(path(f"{name}.lateen-part"), "r+b") as f:
                f.write(b"lost")
        r = run("s3://bucket/k", path(name))
        tap.check(f"{name} during the download, it continues from there", r.status == 0 and read(name) == BIG and moved(r) < 10.5 * 262144 and not left_over(name), r)
    store.rate = 1000000
    p = start("s3://bucket/k", path("grown"), *FAST, "--connections", "2")
    while b"part" not in (read("grown.lateen-state") or b""):
        time.sleep(0.01)
    p.kill()
    p.communicate()
    store.rate = 0
    with open(path("grown.lateen-part"), "ab") as f:
        f.write(b"more")
    r = run("s3://bucket/k", path("grown"))
    tap.check("a partial copy of a file whose size has changed starts again", r.status == 0 and read("grown") == BIG and not left_over("grown"), r)
    store.buckets["bucket"].clear()
    store.fault = lambda q: ("slow", 0.1) if q.method == "PUT" else None
    p = start(path("big"), "s3://bucket/k", *FAST, "--connections", "2")
    while len(requests("PUT")) < 7:
        time.sleep(0.01)
    p.kill()
    p.communicate()
    store.fault = None
    store.page = 2
    store.requests.clear()
    r = run(path("big"), "s3://bucket/k")
    tap.check("killed during the upload, it continues from there", r.status == 0 and store.buckets["bucket"]["k"].data == BIG and moved(r) < 9.5 * 262144 and not store.uploads, r)
    store.rate = 1000000
    p = start("s3://bucket/k", path("twice"), *FAST)
    while not read("twice.lateen-state"):
        time.sleep(0.01)
    r = run("s3://bucket/k", path("twice"))
    tap.check("a second copy to the same file is refused", r.status == 1 and "another process" in r.err, r)
    p.communicate()
    tap.check("and does not disturb the first", p.returncode == 0 and read("twice") == BIG)
    store.rate = 0
    write("big", BIG[:-1])
    store.fault = lambda q: ("status", 403, "AccessDenied") if q.method == "PUT" and q.query.get("partNumber") == "3" else None
    run(path("big"), "s3://bucket/k2", "--connections", "1")
    write("big", BIG)
    store.fault = None
    r = run(path("big"), "s3://bucket/k2")
    tap.check("the copy of a file that has changed since starts again", r.status == 0 and store.buckets["bucket"]["k2"].data == BIG, r)


@tap.case
def services():
    """How services differ, and what is sent to them."""
    fresh()
    write("big", BIG)
    up = run(path("big"), "s3://bucket/k")
    puts = requests("PUT")
    tap.check("what is sent over http is signed with its SHA-256, and has its MD5", up.status == 0 and len(puts) == 13 and all(
        q.headers["x-amz-content-sha256"] == hashlib.sha256(q.body).hexdigest() and q.headers["Content-MD5"] for q in puts), up)
    for method, query, words in (("PUT", "partNumber", "were sent, the service has"), ("POST", "uploadId", "the MD5 of its 13 parts is")):
        fresh()
        store.fault = lambda q: ("etag",) if q.method == method and query in q.query and q.query.get("partNumber", "4") == "4" else None
        if method == "POST":
            sizes = iter(range(99))
            store.fault = lambda q: setattr(store, "wrong_end", True) if q.method == "POST" and "uploadId" in q.query and next(sizes) == 0 else None
        r = run(path("big"), "s3://bucket/k")
        store.wrong_end = False
        tap.check(f"a store that has different bytes: {words}", r.status == 1 and words in r.err and not store.uploads, f"{r} {list(store.uploads)}")
    fresh()
    store.kms = True
    up = run(path("big"), "s3://bucket/k")
    down = run("s3://bucket/k", path("kms"), "--force")
    tap.check("ETags that are not MD5s", up.status == down.status == 0 and store.buckets["bucket"]["k"].data == read("kms") == BIG and "checked by length" in down.err, f"{up} {down}")
    fresh()
    store.put("bucket", "k", BIG)
    r = run("s3://bucket/k", path("public"), "--anonymous", AWS_ACCESS_KEY_ID="")
    tap.check("without keys, where keys are required", r.status == 1 and "403" in r.err, r)
    store.public = True
    r = run("s3://bucket/k", path("public"), "--anonymous", AWS_ACCESS_KEY_ID="")
    tap.check("without keys, from a public bucket", r.status == 0 and read("public") == BIG, r)
    fresh()
    with open(path("large"), "wb") as f:
        f.truncate(10001 * 4096)
    r = run(path("large"), "s3://bucket/large", "--part-bytes", "4096", fast=False)
    o = store.buckets["bucket"].get("large")
    tap.check("an upload has at most 10,000 parts", r.status == 0 and len(o.data) == 10001 * 4096 and o.parts[0] == MIB, r)
    fresh()
    store.fault = lambda q: write("moving", BIG[::-1]) and None if q.method == "PUT" and q.query.get("partNumber") == "9" else None
    write("moving", BIG)
    r = run(path("moving"), "s3://bucket/moving", "--connections", "1")
    tap.check("a file that changes during the upload", r.status == 1 and "changed while it was copied" in r.err and not store.buckets["bucket"] and not store.uploads, f"{r} {store.uploads}")
    fresh()
    store.fault = lambda q: ("status", 403, "AccessDenied") if q.method == "PUT" and q.query.get("partNumber") == "9" else None
    run(path("big"), "s3://bucket/k")
    store.uploads.clear()
    store.fault = None
    r = run(path("big"), "s3://bucket/k")
    tap.check("an upload that the service has forgotten starts again", r.status == 0 and store.buckets["bucket"]["k"].data == BIG and not store.uploads, r)


@tap.case
def full_disk():
    fresh()
    store.put("bucket", "k", BIG)
    write("full", b"the old content")
    r = run("s3://bucket/k", path("full"), limit=MIB)
    tap.check("a file beyond the limit of the process: the old one stays", r.status == 1 and "no room" in r.err and read("full") == b"the old content" and not left_over("full"), r)
    mount = path("small")
    os.makedirs(mount)
    if os.geteuid() == 0 and subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", mount], stderr=subprocess.DEVNULL).returncode == 0:
        r = run("s3://bucket/k", f"{mount}/k")
        tap.check("a full disk is reported before the copy, and nothing is left on it", r.status == 1 and "No space" in r.err and not requests("GET") and not os.listdir(mount), f"{r} {os.listdir(mount)}")
        subprocess.run(["umount", mount])
    else:
        tap.skip("a full disk", "no tmpfs can be mounted here")


@tap.case
def web():
    fresh()
    store.web["dir/f.bin"] = Object(BIG, modified=1600000000)
    r = run(f"{store.url}/web/dir/f.bin?token={HUB_TOKEN}", path("web") + "/")
    tap.check("a web address, with a secret in it", r.status == 0 and read("web/f.bin") == BIG and os.stat(path("web/f.bin")).st_mtime == 1600000000, r)
    r = run(f"{store.url}/web/from?to={store.url}/web/dir/f.bin", path("web1"))
    tap.check("a redirection", r.status == 0 and read("web1") == BIG, r)
    store.ranges = False
    r = run(f"{store.url}/web/dir/f.bin", path("web2"))
    tap.check("a server that ignores ranges", r.status == 0 and read("web2") == BIG, r)
    store.fault = random_faults(3, 0.3, [("cut", None), ("status", 503, "x")])
    r = run(f"{store.url}/web/dir/f.bin", path("web3"), "--tries", "30")
    tap.check("and breaks off", r.status == 0 and read("web3") == BIG, r)
    for tags, date in (("strong", 1600000000), ("weak", 1600000000), ("none", 1600000005)):
        fresh()
        store.tags, store.web["moves"] = tags, Object(BIG, modified=1600000000)

        def replace(q, date=date):
            if len(store.requests) == 5:
                store.web["moves"] = Object(BIG[::-1], modified=date)
        store.fault = replace
        r = run(f"{store.url}/web/moves", path(f"moves-{tags}"))
        tap.check(f"a file that is replaced by another of its length is not mixed with it (ETag: {tags})", r.status == 1 and "changed while it was copied" in r.err
                  and read(f"moves-{tags}") is None, r)
    for words in ([], ["--sha256", hashlib.sha256(BIG).hexdigest()]):
        fresh()
        store.tags, store.web["moves"] = "none", Object(BIG, modified=0)
        asked = iter(range(100))

        def cut(q):
            if next(asked) != 1:
                return None
            return ("cut", 100000)

        def replace_after_cut(q):
            if len(store.requests) == 3:
                store.web["moves"] = Object(BIG[::-1], modified=0)
            return cut(q)
        store.fault = cut if words else replace_after_cut
        r = run(f"{store.url}/web/moves", path("moves-untold"), *words, "--connections", "1", "--force")
        tap.check("a file without ETag and date: a cut does not mix two versions" if not words else "but with --sha256 it comes in parts", r.status == 0
                  and read("moves-untold") == (BIG if words else BIG[::-1]) and len(requests("GET")) == (15 if words else 3), f"{len(requests('GET'))} {r}")
    fresh()
    store.tags, store.web["moves"] = "weak", Object(BIG, modified=1600000000)
    r = run(f"{store.url}/web/moves", path("moves-weak"))
    tap.check("the same command copies the new one", r.status == 0 and read("moves-weak") == BIG, r)
    store.tags = "strong"
    fresh()
    os.mkfifo(path("pipe"))
    r = run(path("pipe"), path("from-pipe"))
    tap.check("a pipe is refused at once", r.status == 2 and "not a regular file" in r.err, r)
    store.fault = lambda q: ("vast",)
    r = run(f"{store.url}/web/moves", path("vast"))
    tap.check("a length that no file has", r.status == 1 and "is said to have 9223372036854775807 bytes" in r.err and read("vast") is None, r)
    store.put("bucket", "list/red\x1b[31m\u009b1m\x7f", b"")
    r = run("--list", "s3://bucket/list/")
    tap.check("characters of names that a terminal would interpret are shown as '?'", r.status == 0 and r.out.endswith("0  red?[31m??1m?\n"), repr(r.out))
    r = run("s3://bucket/list/red\x1b[31m/", path("red"))
    tap.check("in messages, too", r.status == 1 and "\x1b" not in r.err and "red?[31m" in r.err, repr(r.err))
    fresh()
    r = run(f"{store.url}/web/none?token={HUB_TOKEN}", path("web4"))
    tap.check("404", r.status == 1 and "status 404" in r.err, r)
    if not shutil.which("openssl"):
        return tap.skip("https", "no openssl")
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", path("key"), "-out", path("cert"), "-days", "2",
                    "-subj", "/CN=test", "-addext", "subjectAltName=IP:127.0.0.1"], check=True, stderr=subprocess.DEVNULL)
    tls = Store((path("cert"), path("key")))
    tls.put("bucket", "k", BIG)
    r = run("s3://bucket/k", path("tls"), "--endpoint", tls.url, "--tries", "2")
    tap.check("https: a certificate that no authority vouches for is refused", r.status == 1 and "certificate" in r.err and read("tls") is None, r)
    r = run("s3://bucket/k", path("tls"), "--endpoint", tls.url, AWS_CA_BUNDLE=path("cert"))
    up = run(path("big"), "s3://bucket/up", "--endpoint", tls.url, AWS_CA_BUNDLE=path("cert"))
    tap.check("https: one that AWS_CA_BUNDLE vouches for", r.status == up.status == 0 and read("tls") == BIG and tls.buckets["bucket"]["up"].data == BIG, f"{r} {up}")
    r = run(f"{tls.url}/web/from?to={store.url}/web/dir/f.bin", path("down"), "--tries", "2", AWS_CA_BUNDLE=path("cert"))
    tap.check("https is not redirected to http", r.status == 1 and read("down") is None, r)
    tls.close()


@tap.case
def hub():
    fresh()
    store.cdn_epoch = 1
    files = {"config.json": b"{}", "model.safetensors": BIG, "tokenizer.json": noise(5000), "onnx/model.onnx": noise(70000), "README.md": b"# x", "pytorch_model.bin": BIG[::-1]}
    repo = store.repositories["org/model"] = Repository(files, large=["model.safetensors", "pytorch_model.bin"], private=True, revisions=("main", "refs/pr/1"))
    r = run("hf://org/model", path("hub"))
    got = {os.path.relpath(f, path("hub")): open(f, "rb").read() for f in glob.glob(path("hub/**"), recursive=True) if os.path.isfile(f)}
    tap.check("a repository into a folder, by its checksums", r.status == 0 and got == files and ("SHA-256" in r.err or "git" in r.err), f"{r} {sorted(got)}")
    r = run("hf://org/model@refs%2Fpr%2F1/config.json", path("one"))
    tap.check("one file of a revision", r.status == 0 and read("one") == b"{}", r)
    r = run("hf://org/model")
    base, snapshot = path("hf/hub/models--org--model"), path(f"hf/hub/models--org--model/snapshots/{repo.commit}")
    names = sorted(os.listdir(snapshot)) if os.path.isdir(snapshot) else []
    tap.check("into the hub's cache: what a model needs", r.status == 0 and r.out.strip() == snapshot and names == ["config.json", "model.safetensors", "tokenizer.json"], f"{r} {names}")
    tap.check("as the hub's own programs keep it", all(os.readlink(f"{snapshot}/{n}") == f"../../blobs/{repo.checksum(n)}" for n in names)
              and read("hf/hub/models--org--model/refs/main").decode() == repo.commit and sorted(os.listdir(f"{base}/blobs")) == sorted(repo.checksum(n) for n in names), os.listdir(base))
    shutil.rmtree(path("hf"))
    store.requests.clear()
    together = [start("hf://org/model", *FAST) for _ in range(3)]
    out = [p.communicate() for p in together]
    fetched = [q.headers.get("Range") for q in requests("GET") if q.path.startswith("/cdn/")]
    tap.check("three programs that want the same model at once: one fetches it", all(p.returncode == 0 for p in together) and len(fetched) == len(set(fetched)) == 13,
              f"{len(fetched)} {out}")
    store.requests.clear()
    r = run("hf://org/model")
    tap.check("which is only asked whether anything has changed", r.status == 0 and len(store.requests) == 1, r)
    os.truncate(f"{base}/blobs/{repo.checksum('model.safetensors')}", 1000)
    r = run("hf://org/model")
    tap.check("a file of the cache that has lost its end is fetched again", r.status == 0 and open(f"{snapshot}/model.safetensors", "rb").read() == BIG, r)
    store.fault = lambda q: ("drop",)
    r = run("hf://org/model", "--tries", "2")
    tap.check("without the hub the cache is used, and a message says so", r.status == 0 and r.out.strip() == snapshot and "as it was" in r.err, r)
    began = time.time()
    r = run("hf://org/model", "--tries", "30", "--delay-s", "2", fast=False, HF_ENDPOINT="http://hub.invalid", HF_HOME=path("empty"))
    tap.check("a name that cannot be resolved is given up soon", r.status == 1 and "resolve" in r.err and "hub.invalid" in r.err and "30 tries" not in r.err and time.time() - began < 40,
              f"{time.time() - began:.1f} s {r}")
    store.requests.clear()
    r = run("hf://org/model/config.json", HF_HUB_OFFLINE="1")
    tap.check("HF_HUB_OFFLINE", r.status == 0 and r.out.strip() == f"{snapshot}/config.json" and not store.requests, r)
    store.fault = None
    r = run("hf://org/model", HF_TOKEN="", HF_HOME=path("hf-none"))
    tap.check("a private repository without a token", r.status == 1 and "HF_TOKEN is not set" in r.err, r)
    r = run("hf://org/model@nosuch")
    tap.check("a revision that is not there", r.status == 1 and "Revision Not Found" in r.err, r)
    for name in ("model.safetensors", "config.json"):
        shutil.rmtree(path("hf"))
        store.fault = lambda q, name=name: ("flip", 1) if q.method == "GET" and (q.path.startswith("/cdn/") if name != "config.json" else q.path.endswith(name)) else None
        r = run("hf://org/model")
        blobs = os.listdir(f"{base}/blobs") if os.path.isdir(f"{base}/blobs") else []
        tap.check(f"{name} with a wrong bit never gets its final name", r.status == 1 and "but the source has" in r.err and repo.checksum(name) not in blobs
                  and not os.path.exists(f"{base}/refs/main"), f"{r} {blobs}")
    shutil.rmtree(path("hf"))
    count = iter(range(1000))

    def expire(q):
        if q.path.startswith("/cdn/") and next(count) in (3, 9):
            store.cdn_epoch += 1
        return None
    store.fault = expire
    r = run("hf://org/model", "--connections", "3")
    tap.check("redirected addresses that expire are requested again", r.status == 0 and store.cdn_epoch == 3, r)
    shutil.rmtree(path("hf"))
    store.fault = random_faults(5, 0.25, [k for k in KINDS if k[0] not in ("late_error", "lost") and k[1:2] != (400,)])
    r = run("hf://org/model", "--tries", "20")
    tap.check("a hub with faults", r.status == 0 and read(f"hf/hub/models--org--model/snapshots/{repo.commit}/model.safetensors") == BIG, r)


@tap.case
def hubs_that_refuse():
    """As huggingface.co answers: with X-Error-Code and X-Error-Message."""
    fresh()
    files = {"config.json": b"{}", "model.safetensors": BIG}
    large = ["config.json", "model.safetensors"]
    put = lambda name, **how: store.repositories.update({name: Repository(files, large, **how)})
    put("org/gated", gated=True), put("org/hidden", private=True), put("org/old", renamed="org/gated"), put("org/moved", renamed="org/near"), put("org/near", private=True, own_host=True)
    put("org/cut", only=5 * MIB // 2)
    other, none, bad = dict(HF_TOKEN="hf_of_another"), dict(HF_TOKEN="", HF_HOME=path("hf-none")), dict(HF_TOKEN="hf_that_has_expired")
    for name, token, says in (("gated", none, "401 Access to this model is restricted. (HF_TOKEN"), ("gated", other, "403 Access to this model is restricted."),
                              ("old", other, "403 Access to this model is restricted."), ("hidden", none, "HF_TOKEN is not set"), ("near", none, "Invalid username or password."),
                              ("near", bad, "Invalid credentials in Authorization header"), ("none", {}, "Repository not found): there is no such repository, or it is private"),
                              ("gated@none", {}, "404 Revision Not Found")):
        store.requests.clear()
        r = run(f"hf://org/{name}", "--tries", "5", **token)
        tap.check(f"org/{name} with {token.get('HF_TOKEN', 'its token') or 'no token'} is refused in the hub's words, at once", r.status == 1 and says in r.err and "; try" not in r.err,
                  f"{len(store.requests)} {r}")
    r = run("hf://org/moved", path("moved"))
    tap.check("a repository that was renamed, and whose files lie at the hub itself", r.status == 0 and read("moved/model.safetensors") == BIG, r)
    r = run("hf://org/cut", path("cut"), "--delay-s", "0.005", fast=False)
    tap.check("a file that is shorter than the list says", r.status == 1 and "it is shorter than the 3158073 bytes that were announced" in r.err and read("cut/model.safetensors") is None, r)
    r = run(f"{store.url}/web/from?to={store.url}/web/none", path("nowhere"), "--tries", "5")
    tap.check("a redirection that leads nowhere is not tried again", r.status == 1 and "status 404" in r.err and "; try" not in r.err, r)


@tap.case
def variables_of_the_hub():
    """Variables that huggingface_hub reads; the token goes only to the hub."""
    fresh()
    repo = store.repositories["org/model"] = Repository({"config.json": b"{}", "model.safetensors": BIG}, ["model.safetensors"], private=True)
    write("home/elsewhere/token", f"{HUB_TOKEN}\n".encode()), write("home/secret", HUB_TOKEN.encode())
    there = lambda folder: os.path.exists(path(f"{folder}/models--org--model/snapshots/{repo.commit}/config.json"))
    base = dict(HF_TOKEN="", HF_HOME="")
    for more, folder in ((dict(HF_HOME="~/elsewhere"), "home/elsewhere/hub"), (dict(HF_TOKEN_PATH="~/secret", XDG_CACHE_HOME=path("xdg")), "xdg/huggingface/hub"),
                         (dict(HUGGING_FACE_HUB_TOKEN=HUB_TOKEN, HUGGINGFACE_HUB_CACHE=path("older")), "older"), (dict(HF_TOKEN=HUB_TOKEN, HF_HUB_CACHE="~/newer"), "home/newer")):
        r = run("hf://org/model", **{**base, **more})
        tap.check(f"{' '.join(more)}", r.status == 0 and there(folder), r)
        store.requests.clear()
        r = run("hf://org/model", **{**base, **more, "TRANSFORMERS_OFFLINE": "1"})
        tap.check("and without the network", r.status == 0 and r.out.strip() == path(f"{folder}/models--org--model/snapshots/{repo.commit}") and not store.requests, r)
    r = run("hf://org/model", HF_HUB_DISABLE_IMPLICIT_TOKEN="1", HF_HOME=path("hf-none"))
    tap.check("HF_HUB_DISABLE_IMPLICIT_TOKEN: no token is sent", r.status == 1 and "status 401" in r.err and not any(q.headers.get("Authorization") for q in store.requests), r)
    r = run("hf://org/model", HF_HOME="$SCRATCH/hf")
    tap.check("a variable within a path is refused", r.status == 2 and "HF_HOME='$SCRATCH/hf'" in r.err, r)
    shutil.rmtree(path("home"))


@tap.case
def models():
    """Verbs accept models at these addresses."""
    fresh()
    stories = "tests/golden/stories260k"
    for name in ("stories260K.bin", "tok512.bin"):
        store.put("bucket", f"m/{name}", open(f"{stories}/{name}", "rb").read())
    words = ["--prompt", "Once upon", "--max-tokens", "12", "--temperature", "0", "--device", "cpu"]
    local = run("--model", f"{stories}/stories260K.bin", "--tokenizer", f"{stories}/tok512.bin", *words, verb="generate")
    far = run("--model", "s3://bucket/m/stories260K.bin", "--tokenizer", "s3://bucket/m/tok512.bin", *words, verb="generate")
    tap.check("generate from s3", local.status == far.status == 0 and local.out == far.out and local.out, f"{local} {far}")
    folder = "tests/golden/model/qwen3"
    files = {n: open(f"{folder}/{n}", "rb").read() for n in os.listdir(folder) if os.path.isfile(f"{folder}/{n}")}
    store.repositories["org/qwen3"] = Repository(files, large=[n for n in files if n.endswith(".safetensors")])
    r = run("hf://org/qwen3", path("converted"), verb="convert")
    tap.check("convert from the hub", r.status == 0 and os.path.isfile(path("converted/model.safetensors")), r)
    subprocess.run([sys.executable, "tests/e2e/make_shard.py", write("text", bytes(i * 7 % 60 for i in range(4000))), path("shard"), "200"], check=True)
    r = run("--out", path("run"), "--data.train", path("shard"), "--model.init", "hf://org/qwen3", "--steps", "1", "--data.seq", "16", "--batch.size", "2", "--device", "cpu",
            verb="train")
    tap.check("train from the hub's weights", r.status == 0 and "finished 1 step" in r.err + r.out, r)
    folder = "tests/golden/sft"
    names = [n for n in os.listdir(folder) if n in ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja")]
    files = {n: open(f"{folder}/{n}", "rb").read() for n in names}
    store.repositories["org/chat"] = Repository({**files, "1_Pooling/config.json": b'{"pooling_mode_lasttoken": true}'}, large=["model.safetensors"])
    served, tags = {}, {}
    for where in (folder, "hf://org/chat"):
        p = subprocess.Popen([lateen, "serve", where, "--port", "0", "--device", "cpu"], env=environment(), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        url, limit, props = p.stdout.readline().decode().strip(), time.time() + 60, {}
        while "chat_template" not in props and time.time() < limit:
            try:
                props = json.load(urllib.request.urlopen(url + "/props", timeout=10))
            except OSError:
                time.sleep(0.05)
        served[where] = props.get("chat_template"), props.get("chat_template_source")
        tags[where] = json.load(urllib.request.urlopen(url + "/api/tags", timeout=10))["models"][0]["size"]
        p.terminate()
        p.communicate()
    tap.check("a model served from the hub has its chat template", served[folder][0] and served["hf://org/chat"] == served[folder], served)
    tap.check("and its size, which Ollama's clients see", tags["hf://org/chat"] == os.path.getsize(f"{folder}/model.safetensors"), tags)
    r = run("tests/golden/sft", "--lora", f"a={path('home')}", "--port", "0", "--device", "cpu", verb="serve")
    tap.check("a folder without adapters is refused before the address is printed", r.status == 2 and not r.out and "--lora a=" in r.err and "adapter_config.json" in r.err, r)
    store.rate = 100000
    store.requests.clear()
    store.put("bucket", "slow/model.gguf", BIG)
    p = subprocess.Popen([lateen, "serve", "s3://bucket/slow/model.gguf", "--port", "0", "--device", "cpu"], env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    while not requests("GET"):
        time.sleep(0.01)
    begin = time.time()
    p.terminate()
    out, err = p.communicate()
    r = Result(p.returncode, out.decode(), err.decode())
    tap.check("a server that is told to end while its model loads, ends", time.time() - begin < 20 and "stopped" in r.err, f"{time.time() - begin} {r}")
    store.rate = 0
    r = run("--model", "hf://org/none", *words, verb="generate")
    tap.check("a model that does not exist", r.status == 1 and "hf://org/none" in r.err, r)


@tap.case
def data():
    """Training data at these addresses: training on them gives the bits of local data."""
    fresh()
    subprocess.run([sys.executable, "tests/e2e/make_shard.py", write("text", bytes(i * 7 % 60 for i in range(4000))), path("shard"), "200"], check=True)
    ends = [e for e in (".bin", ".idx", ".mask", ".json") if os.path.exists(path("shard") + e)]
    for end in ends:
        store.put("bucket", f"d/shard{end}", read(f"shard{end}"))

    def losses(name, *words):
        r = run("--out", path(name), *words, "--model.layers", "1", "--model.width", "16", "--model.heads", "2", "--model.vocab", "64", "--data.seq", "16", "--batch.size", "2",
                "--steps", "4", "--device", "cpu", "--export", "false", verb="train")
        rows = [json.loads(row) for row in open(path(f"{name}/metrics.jsonl"))] if r.status == 0 else []
        return r, [(row["step"], row["loss"]) for row in rows if row["kind"] == "train"]
    r, local = losses("near", "--data.train", f"{path('shard')}:2,{path('shard')}")
    tap.check("local data", r.status == 0 and len(local) == 4, r)
    store.fault = random_faults(7, 0.3)
    r, far = losses("far", "--data.train", "s3://bucket/d/shard:2,s3://bucket/d/shard")
    store.fault = None
    tap.check("a shard from s3, with faults on the way: the same bits", r.status == 0 and far == local, f"{r} {far} {local}")
    store.requests.clear()
    r, again = losses("again", "--data.train", "s3://bucket/d/shard:2,s3://bucket/d/shard")
    tap.check("it is fetched once", r.status == 0 and again == local and not requests("GET"), f"{r} {again}")
    r, _ = losses("none", "--data.train", "s3://bucket/d/none")
    tap.check("a missing shard is named", r.status != 0 and "s3://bucket/d/none" in r.err, r)


@tap.case
def rates():
    fresh()
    store.put("bucket", "k", BIG)
    begin = time.time()
    r = run("s3://bucket/k", path("slowly"), "--limit-rate", "3M", "--json")
    lines = r.out.splitlines()
    tap.check("--limit-rate is for all connections together", r.status == 0 and time.time() - begin >= 0.9 * len(BIG) / 3e6, f"{time.time() - begin} {r}")
    begin = time.time()
    r = run(path("slowly"), path("slowly too"), "--limit-rate", "3M")
    tap.check("--limit-rate holds between local files", r.status == 0 and read("slowly too") == BIG and time.time() - begin >= 0.9 * len(BIG) / 3e6, f"{time.time() - begin} {r}")
    tap.check("--json: progress and result as lines", len(lines) >= 2 and '"event": "progress"' in lines[0] and '"event": "done"' in lines[-1] and '"eta_s"' in lines[0], r)
    store.fault = lambda q: ("slow", 15) if q.method == "GET" and q.headers.get("Range") == "bytes=0-262143" and len(requests("GET")) < 5 else None
    store.requests.clear()
    begin = time.time()
    r = run("s3://bucket/k", path("stalled"), "--stall-s", "1")
    tap.check("a connection that stalls is given up", r.status == 0 and read("stalled") == BIG and time.time() - begin < 14, f"{time.time() - begin} {r}")


everything = "".join(printed)
tap.check("no secret in anything that was printed, with traces", not [s for s in SECRETS if s in everything] and "Signature=" not in everything,
          [s for s in SECRETS if s in everything])
state = "".join(open(f, errors="replace").read() for f in glob.glob(f"{dir}/**/*.lateen-state", recursive=True))
tap.check("nor in a file of a copy in progress", not [s for s in SECRETS if s in state])
store.close()
shutil.rmtree(dir, ignore_errors=True)
sys.exit(tap.end())
