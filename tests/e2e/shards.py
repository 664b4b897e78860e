"""Shards that are streamed through a folder of limited size (data.cache): the same rows as from a local disk, whatever is fetched, deleted, cut or damaged on the way.

    python3 tests/e2e/shards.py build/lateen [all]        as TAP; all: also what takes long"""
import glob
import os
import random
import resource
import shutil
import signal
import sys
import time

sys.path.insert(0, "tests/e2e")
from make_shard import write_shard
from object_store import HUB_TOKEN, SECRETS, Object, Repository, Store
from stored_runs import DEADLINE_S, Runs
from tap import Tap

everything = "all" in sys.argv[2:]
tap = Tap(detail_chars=3000)
store = Store()
N = 6
runs = Runs(os.path.abspath(sys.argv[1]), store, ["--steps", "80", "--data.prefetch", "4"], HF_ENDPOINT=f"{store.url}/hub", HF_TOKEN=HUB_TOKEN)
path, start, said, run, losses = runs.path, runs.start, runs.said, runs.run, runs.losses


def rows(out):
    return runs.rows(out, "train")


def no_longer_than(bytes):
    """For the process of a run: no file may grow, as on a full disk."""
    def before():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (bytes, bytes))
    return before


def held(cache="cache"):
    """Bytes of shards in a cache, and the names of its .bin files."""
    files = glob.glob(path(f"{cache}/shards/*"))
    return sum(os.path.getsize(f) for f in files if f.endswith((".bin", ".mask", ".lateen-part"))), [f for f in files if f.endswith(".bin")]


def cache(budget, name="cache", keep=False):
    if not keep:
        shutil.rmtree(path(name), ignore_errors=True)
    return ["--data.cache", path(name), "--data.cache_bytes", str(budget)]


def fresh():
    store.fault, store.page = None, 1000
    store.requests.clear()


def gets(name=".bin"):
    return [r for r in store.requests if r.method == "GET" and r.path.endswith(name)]


os.makedirs(path("local"))
draw = random.Random(7)
for i in range(N):
    write_shard(path(f"local/part-{i}"), [[draw.randrange(60) for _ in range(draw.randrange(3, 40))] for _ in range(40)])
    with open(path(f"local/part-{i}.mask"), "wb") as f:
        f.write(bytes(draw.randrange(2) for _ in range(os.path.getsize(path(f"local/part-{i}.bin")) // 2)))
    for end in (".bin", ".idx", ".mask"):
        store.put("bucket", f"d/part-{i}{end}", open(path(f"local/part-{i}{end}"), "rb").read(), modified=1700000000 + i)
store.put("bucket", "d/readme", b"no shard")
store.put("bucket", "d/deep/part-9.bin", b"not of this folder")
SIZES = [os.path.getsize(path(f"local/part-{i}.bin")) + os.path.getsize(path(f"local/part-{i}.mask")) for i in range(N)]
LARGEST, ALL = max(SIZES), sum(SIZES)
REMOTE, NEAR = ["--data.train", "s3://bucket/d/part-*"], ["--data.train", path("local/part-*.bin")]
ORDERS = {"none": ["--data.shuffle", "none"], "rows": [], "documents": ["--data.shuffle", "documents"]}
for name, words in ORDERS.items():
    assert run(f"near-{name}", *NEAR, *words) == 0, said(f"near-{name}")


def case(function):
    begin = time.time()
    tap.case(function)
    print(f"# {function.__name__}: {time.time() - begin:.1f} s", flush=True)


def long_case(function):
    if everything:
        case(function)


@case
def orders():
    for name, words in ORDERS.items():
        fresh()
        budget = 2 * LARGEST if name == "none" else ALL
        # It is streamed, too, and changes no row.
        valid = ["--data.valid", "s3://bucket/d/part-0"] if name == "rows" else []
        status = run(f"far-{name}", *REMOTE, *words, *valid, *cache(budget))
        used, files = held()
        tap.check(f"shuffle {name}: the rows of a local run, within the budget", status == 0 and losses(f"far-{name}") == losses(f"near-{name}") and len(losses(f"far-{name}")) == 80
                  and used <= budget and files, f"{used} of {budget} {said(f'far-{name}')}")
        last = rows(f"far-{name}")[-1] if rows(f"far-{name}") else {}
        tap.check(f"shuffle {name}: metrics tell what was fetched", last.get("fetched_bytes", 0) >= (ALL if name != "none" else LARGEST) and last.get("fetch_waits", 0) >= 1
                  and last.get("fetch_wait_s", -1) > 0, last)
        if name == "none":
            tap.check("a budget of two shards: others were deleted and came again", last["fetched_bytes"] > ALL and len(files) <= 2, f"{last} {files}")
    fresh()
    status = run("again", *REMOTE, *cache(ALL, keep=True))
    tap.check("another run finds them there", status == 0 and losses("again") == losses("near-rows") and not gets() and rows("again")[-1]["fetched_bytes"] == 0, said("again"))


@case
def resumed():
    fresh()
    words = [*REMOTE, "--data.shuffle", "none", "--checkpoint.every", "20"]
    status = run("cut", *words, *cache(2 * LARGEST), "--steps", "40")
    first = losses("cut")
    status = status or run("cut", *words, *cache(3 * LARGEST))
    tap.check("a run that continues has the rows of one that was never stopped", status == 0 and len(first) == 40 and losses("cut") == losses("near-none"), said("cut"))
    status = run("cut", *NEAR, "--data.shuffle", "none", "--steps", "90")
    tap.check("it continues with the same shards on a local disk", status == 0 and max(losses("cut")) == 90, said("cut"))
    store.put("bucket", "d/part-3.bin", store.buckets["bucket"]["d/part-3.bin"].data, modified=1800000000)
    status = run("cut", *words, *cache(2 * LARGEST), "--steps", "95")
    tap.check("and back", status == 0, said("cut"))
    store.put("bucket", "d/part-3.bin", store.buckets["bucket"]["d/part-3.bin"].data, modified=1700000003)
    status = run("cut", *words, *cache(2 * LARGEST), "--steps", "99")
    tap.check("a shard with another date is another one", status != 0 and "has changed since the checkpoint" in said("cut"), said("cut"))


@case
def shared_and_damaged():
    fresh()
    count = iter(range(10**6))
    store.fault = lambda r: ("cut", 100) if r.path.endswith(".bin") and r.method == "GET" and next(count) % 2 == 0 else None
    near = run("two-near", *NEAR, *ORDERS["none"], ranks=2)
    status = run("two", *REMOTE, *ORDERS["none"], *cache(2 * LARGEST), ranks=2)
    tap.check("two ranks share a cache, over connections that break", near == status == 0 and losses("two") == losses("two-near") and held()[0] <= 2 * LARGEST, said("two"))
    for f in held()[1]:
        data = bytearray(open(f, "rb").read())
        data[len(data) // 2] ^= 1
        with open(f, "r+b") as out:
            out.write(data)
    status = run("rotten", *REMOTE, *ORDERS["none"], *cache(2 * LARGEST, keep=True))
    tap.check("a bit that was lost on the local disk is noticed, and the shard fetched again", status == 0 and losses("rotten") == losses("near-none") and "is damaged" in said("rotten"),
              said("rotten"))


@case
def hub():
    """The shards of a private data repository, through the folder of two of them; its files are
    stored elsewhere, at signed addresses that expire."""
    fresh()
    files = {f"data/part-{i}{end}": store.buckets["bucket"][f"d/part-{i}{end}"].data for i in range(N) for end in (".bin", ".idx", ".mask")}
    large = [n for n in files if not n.endswith(".idx")]
    store.repositories["datasets/org/name"] = Repository({**files, "README.md": b"# data"}, large=large, private=True, revisions=("main", "v1"))
    status = run("hub", "--data.train", "hf://datasets/org/name@v1/data/part-*", *ORDERS["none"], *cache(2 * LARGEST))
    used, names = held()
    fetched = [r for r in store.requests if r.path.startswith("/cdn/")]
    tap.check("hf:// shards stream in within the budget: the rows of a local run", status == 0 and losses("hub") == losses("near-none") and used <= 2 * LARGEST and len(names) <= 2, said("hub"))
    tap.check("each shard was fetched from where the hub keeps it, and again in the next epoch", rows("hub")[-1]["fetched_bytes"] > ALL and len(fetched) > 2 * N, len(fetched))
    fresh()
    store.fault = lambda r: ("status", 403, "Expired") if r.path.startswith("/cdn/") and len(gone) < 3 and not gone.append(r) else None
    gone = []
    status = run("hub-expired", "--data.train", "hf://datasets/org/name@v1/data/part-*", *ORDERS["none"], *cache(2 * LARGEST))
    tap.check("addresses that expire are requested again", status == 0 and len(gone) == 3 and losses("hub-expired") == losses("near-none"), said("hub-expired"))
    status = run("hub-refused", "--data.train", "hf://datasets/org/name@v1/data/part-*", *ORDERS["none"], *cache(2 * LARGEST), HF_TOKEN="hf_wrong")
    tap.check("a wrong key is reported before the first step", status != 0 and not losses("hub-refused") and "401" in said("hub-refused"), said("hub-refused"))


@case
def windows():
    """Rows that are shuffled within windows need memory only for a window."""
    words = ["--data.shuffle_rows", "40"]
    assert run("near-windows", *NEAR, *words) == 0, said("near-windows")
    fresh()
    status = run("windows", *REMOTE, *words, *cache(3 * LARGEST))
    used, names = held()
    tap.check("shuffled within windows, through the room of three shards: the rows of a local run", status == 0 and losses("windows") == losses("near-windows") and used <= 3 * LARGEST,
              said("windows"))
    tap.check("another order than that of the files, and than that of the whole epoch", len({str(losses(n)) for n in ("near-windows", "near-none", "near-rows")}) == 3)
    # Steps, rows and tokens; two bytes per token and one of the mask.
    epochs = 80 * 4 * 16 / sum(s / 3 for s in SIZES)
    fetched = rows("windows")[-1]["fetched_bytes"]
    tap.check("each shard was fetched once an epoch", 1 < epochs < 1.1 and ALL < fetched <= ALL + sum(SIZES[:3]), (fetched, ALL, epochs))
    # Where steps take longer than fetches, a window that spans two shards is still read while the
    # shards after it are prefetched: none of these may take the room of another one.
    fresh()
    # Under ThreadSanitizer those of the small model do.
    slow = ["--data.prefetch", "1", "--steps", "240", *([] if "/tsan/" in sys.argv[1] else ["--model.layers", "6", "--model.width", "128"])]
    status = run("windows-slow", *REMOTE, *words, *cache(3 * LARGEST), *slow)
    order = "".join(r.path[-len("0.bin")] for r in gets())
    tap.check("so it was where steps take longer than fetches, and in their order", status == 0 and 3 * N < len(order) <= 3 * N + 3 and "012345012345012345012".startswith(order),
              (order, said("windows-slow")))
    for name, more in (("rows", []), ("documents", ORDERS["documents"]), ("windows", ["--data.shuffle_rows", "400"])):
        status = run("small", *REMOTE, *more, *cache(3 * LARGEST))
        tap.check(f"refused, with the numbers: {name}, whose rows are read from more shards at once than there is room for", status != 0 and not losses("small")
                  and f"data.cache_bytes = {3 * LARGEST}, but rows" in said("small") and "data.shuffle_rows" in said("small"), said("small"))
    status = run("idle", *NEAR, "--data.shuffle_rows", "40", "--data.shuffle", "documents", "--steps", "2")
    tap.check("data.shuffle_rows without rows to shuffle is refused", status == 2 and "data.shuffle_rows 40 has no effect: it needs data.shuffle = rows" in said("idle"), said("idle"))


@long_case
def together():
    fresh()
    both = [start(f"beside-{i}", *REMOTE, *cache(3 * LARGEST), *(ORDERS["none"] if i else ["--data.shuffle_rows", "40"])) for i in range(2)]
    codes = [p.wait(DEADLINE_S) for p in both]
    tap.check("two runs with other orders share one, too", codes == [0, 0] and losses("beside-0") == losses("near-windows") and losses("beside-1") == losses("near-none")
              and held()[0] <= 3 * LARGEST, said("beside-0") + said("beside-1"))
    fresh()
    store.fault = lambda r: ("hang", 30) if r.path.endswith("part-2.bin") and r.method == "GET" else None
    p = start("killed", *REMOTE, "--data.shuffle", "none", *cache(2 * LARGEST))
    limit = time.time() + DEADLINE_S
    while not gets("part-2.bin") and p.poll() is None and time.time() < limit:
        time.sleep(0.01)
    p.kill()
    p.wait()
    store.fault = None
    status = run("killed2", *REMOTE, "--data.shuffle", "none", *cache(2 * LARGEST, keep=True))
    tap.check("kill -9 in the middle of a fetch: the next run continues with the same folder", status == 0 and losses("killed2") == losses("near-none") and held()[0] <= 2 * LARGEST,
              said("killed2"))


@long_case
def faults():
    fresh()
    count = iter(range(10**6))
    kinds = [("status", 503, "SlowDown", {"Retry-After": "0"}), ("status", 429, "TooMany", {"Retry-After": "0"}), ("cut", 100), ("drop",), ("short", 5), ("range", 3)]
    store.fault = lambda r: kinds[n // 3 % len(kinds)] if r.path.endswith((".bin", ".mask")) and (n := next(count)) % 3 == 0 else None
    status = run("faulty", *REMOTE, *ORDERS["none"], *cache(3 * LARGEST))
    tap.check("cuts, wrong lengths and busy stores: the same rows", status == 0 and losses("faulty") == losses("near-none"), said("faulty"))
    fresh()
    store.fault = lambda r: ("flip", 50) if r.path.endswith("part-1.bin") and r.method == "GET" else None
    status = run("flipped", *REMOTE, *ORDERS["none"], *cache(3 * LARGEST))
    key = [f for f in held()[1] if os.path.getsize(f) == os.path.getsize(path("local/part-1.bin"))]
    tap.check("a wrong bit is found and reported, and its file is not left behind", status != 0 and "but the source has" in said("flipped") and "data.cache" in said("flipped")
              and not [f for f in key if open(f, "rb").read() != open(path("local/part-1.bin"), "rb").read()], said("flipped"))
    fresh()
    assert run("sound", *REMOTE, *ORDERS["none"], *cache(ALL)) == 0
    for f in held()[1]:
        os.truncate(f, 10)
    status = run("short", *REMOTE, *ORDERS["none"], *cache(ALL, keep=True))
    tap.check("so is a file that was cut", status == 0 and losses("short") == losses("near-none"), said("short"))
    fresh()
    write_shard(path("big"), [[draw.randrange(60) for _ in range(200)] for _ in range(200)])
    for end in (".bin", ".idx"):
        store.put("bucket", f"big/one{end}", open(path(f"big{end}"), "rb").read())
    status = run("full", "--data.train", "s3://bucket/big/one", *cache(10**6), before=no_longer_than(50000))
    tap.check("a full disk is reported, and nothing partial is left", status != 0 and "data.cache" in said("full") and "no room" in said("full") and held() == (0, []), said("full"))
    fresh()
    data = store.buckets["bucket"]["d/part-2.bin"]
    store.fault = lambda r: store.buckets["bucket"].update({"d/part-2.bin": Object(data.data + b"xx", modified=1800000000)}) if r.path.endswith("part-0.bin") else None
    status = run("changed", *REMOTE, *ORDERS["none"], *cache(ALL))
    store.buckets["bucket"]["d/part-2.bin"] = data
    tap.check("a shard that changes while the run reads is reported", status != 0 and "has changed since the run began" in said("changed"), said("changed"))


@case
def refused():
    fresh()
    for words, why in (([*REMOTE, *cache(LARGEST - 1)], f"data.cache_bytes = {LARGEST - 1}, but the shard s3://bucket/d/part-"),
                       ([*NEAR, *cache(ALL)], "needs shards with an address"),
                       ([*REMOTE, "--data.cache_bytes", "5M"], "needs data.cache"),
                       ([*REMOTE, "--verify", *cache(ALL)], "choose one"),
                       (["--data.train", "s3://bucket/none/*", *cache(ALL)], "there is no file"),
                       (["--data.train", "s3://bucket/d/none*", *cache(ALL)], "there is no such shard"),
                       (["--data.train", f"{store.url}/web/part-*", *cache(ALL)], "a web server has no list"),
                       (["--data.train", "s3://bucket/d/deep/part-9", *cache(ALL)], "has no .idx")):
        status = run("wrong", *words)
        tap.check(f"refused before the first step: {why}", status != 0 and why in said("wrong") and not losses("wrong"), said("wrong"))


@long_case
def places():
    fresh()
    for i in range(N):
        for end in (".bin", ".idx", ".mask"):
            store.web[f"part-{i}{end}"] = store.buckets["bucket"][f"d/part-{i}{end}"]
    files = {f"data/part-{i}{end}": store.buckets["bucket"][f"d/part-{i}{end}"].data for i in range(N) for end in (".bin", ".idx", ".mask")}
    near = run("one-near", "--data.train", f"{path('local/part-0')}:2,{path('local/part-1')}", *ORDERS["none"])
    for name, words in (("s3", "s3://bucket/d/part-0:2,s3://bucket/d/part-1.bin"), ("a web server", f"{store.url}/web/part-0:2,{store.url}/web/part-1"),
                        ("a folder by its address", f"file://{path('local/part-0')}:2,file://{path('local/part-1')}")):
        status = run("one", "--data.train", words, *ORDERS["none"], *cache(2 * LARGEST))
        tap.check(f"single shards with weights, from {name}", near == status == 0 and losses("one") == losses("one-near") and held()[0] > 0, said("one"))
        shutil.rmtree(path("one"), ignore_errors=True)
    status = run("folder", "--data.train", "s3://bucket/d/", "--data.valid", "s3://bucket/d/part-0", *ORDERS["none"], *cache(2 * LARGEST))
    tap.check("a prefix with a slash means all shards below it; data.valid streams, too", status == 0 and losses("folder") == losses("near-none"), said("folder"))


tap.check("no secret in anything that was printed", not [s for s in SECRETS if s in "".join(runs.printed)])
store.close()
runs.close()
sys.exit(tap.end())
