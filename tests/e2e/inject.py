"""Let every call that writes a file, and every allocation, fail once. The verb must report it and exit with 1, no partly written file may replace a complete one, and the same command run again must give the result of an undisturbed one. Also check the order of writes: a file is synced
between its last write and the rename that publishes it, and the folder after that. TAP on stdout; needs a C compiler.

usage: inject.py LATEEN [files|memory|order]...      INJECT_MOST: at most this many failures of each kind and verb (40), drawn by INJECT_SEED"""
import concurrent.futures
import filecmp
import glob
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile

lateen, parts = sys.argv[1], sys.argv[2:] or ["order", "files", "memory"]
most, rng = int(os.environ.get("INJECT_MOST", 40)), random.Random(int(os.environ.get("INJECT_SEED", 1)))
work = tempfile.mkdtemp()
library = work + "/inject.so"
count = failed = 0
STORIES = "tests/golden/stories260k/"
TOKENIZER = "tests/golden/data/demo_tokenizer.json"


def check(name, wrong):
    global count, failed
    count += 1
    failed += bool(wrong)
    print(f"{'not ok' if wrong else 'ok'} {count} - {name}" + (f"\n  # {str(wrong)[:600]}" if wrong else ""), flush=True)


def words(n):
    r = random.Random(n)
    return "".join(f"word {r.randrange(10 ** 6)} and more\n" for _ in range(n))


open(work + "/text.txt", "w").write(words(300))
subprocess.run([lateen, "data", "make", "all", "--count", "20", "--out", work + "/problems.jsonl"], check=True, capture_output=True, stdin=subprocess.DEVNULL)
TRAIN = ["train", "--data.train", "tests/golden/train/tokens", "--data.valid", "tests/golden/train/valid", "--model.vocab", "64", "--model.layers", "1", "--model.width", "16",
         "--model.heads", "2", "--data.seq", "16", "--batch.size", "4", "--steps", "3", "--checkpoint.every", "1", "--threads", "1", "--data.prefetch", "0", "--out"]
# Command, to which the name of its result is added; what of the result is compared; what a
# failure may leave.
VERBS = {
    "train": (TRAIN, "checkpoints/step-000000003/*.safetensors model/*", None),
    "train, checkpoints behind it": (TRAIN[:-1] + ["--checkpoint.async", "true", "--out"], "checkpoints/step-000000003/*.safetensors model/*", None),
    "tokenize": (["tokenize", work + "/text.txt", "--tokenizer", TOKENIZER, "--threads", "1", "--out"], ".bin .idx", r"\.(part|journal)"),
    "tokenizer train": (["tokenizer", "train", work + "/text.txt", "--vocab-size", "270", "--threads", "1", "--out"], "", None),
    "convert to a folder": (["convert", STORIES + "stories260K.bin", "--tokenizer", STORIES + "tok512.bin"], "*", None),
    "copy": (["copy", "--connections", "1", "--part-bytes", "400000", STORIES + "stories260K.bin"], "", r"\.lateen-(part|state)$"),
    "data make": (["data", "make", "all", "--count", "40", "--out"], "", None),
    "data check": (["data", "check", work + "/problems.jsonl", "--out"], "", None),
    "convert to a GGUF": (["convert", STORIES + "stories260K.bin", "--tokenizer", STORIES + "tok512.bin"], "", None),
}
# Files written on the side: a failure there is reported, and the work continues.
ASIDE = re.compile(r"/(log\.txt|lock)$")


def run(verb, out, **env):
    command = [lateen] + VERBS[verb][0] + [out]
    settings = {k: v for k, v in os.environ.items() if not k.startswith("INJECT")} | {"OMP_NUM_THREADS": "1", "LD_PRELOAD": library} | env
    return subprocess.run(command, capture_output=True, text=True, env=settings, timeout=120)


def results(verb, out):
    names = VERBS[verb][1].split(" ")
    return {name[len(out):]: name for pattern in names for name in (glob.glob(f"{out}/{pattern}") if os.path.isdir(out) else [out + pattern])}


def name_of(verb, n):
    return f"{work}/{verb.replace(' ', '-')}-{n}" + (".gguf" if "GGUF" in verb else ".json" if verb == "tokenizer train" else "")


def same(verb, a, b):
    x, y = results(verb, a), results(verb, b)
    if x.keys() != y.keys() or not x:
        return f"files {sorted(x)} and {sorted(y)}"
    return ", ".join(k for k in x if not os.path.exists(y[k]) or not filecmp.cmp(x[k], y[k], shallow=False))


def leftovers(verb, out):
    allowed = VERBS[verb][2]
    names = glob.glob(out + "*") + glob.glob(out + "/**/*", recursive=True)
    return [n for n in names if re.search(r"\.(tmp|part|aside|old)(\.|$|/)", n[len(work):]) and not (allowed and re.search(allowed, n))]


def remove(out):
    for path in glob.glob(out + "*"):
        shutil.rmtree(path) if os.path.isdir(path) else os.remove(path)


def order(verb, log):
    """What is wrong with the order of these calls."""
    unsynced, renamed, wrong = set(), {}, []
    for line in log.splitlines():
        what, _, rest = line.partition(" ")
        if what in ("open", "write"):
            unsynced.add(rest)
        elif what == "fsync":
            unsynced.discard(rest)
            renamed.pop(rest, None)
        elif what == "unlink":
            unsynced.discard(rest)
        elif what == "rename":
            a, b = rest.split("\t")
            wrong += [f"{b} is published, but {u} is not synced" for u in unsynced if u == a or u.startswith(a + "/")]
            unsynced = {b + u[len(a):] if u == a or u.startswith(a + "/") else u for u in unsynced}
            renamed = {b + d[len(a):] if d == a or d.startswith(a + "/") else d: n for d, n in renamed.items()}
            if not b.endswith(".old"):  # Renamed in order to be removed.
                renamed[os.path.dirname(b)] = b
    return wrong + [f"{folder} is not synced behind {b}" for folder, b in renamed.items()]


def disturb(verb, whole, kind, n):
    """'' or what is wrong with the verb when call n of this kind fails."""
    # No name begins with another one, because remove takes all that begin with it.
    out = name_of(verb, f"{kind}{n:06d}")
    log = f"{out}.log"
    r = run(verb, out, **{f"INJECT_{kind}": str(n), "INJECT_LOG": log})
    text = open(log).read() if os.path.exists(log) else ""
    os.path.exists(log) and os.remove(log)
    hit = re.search(r"^FAILS (.*)", text, re.M)
    where = f"{kind} {n} ({hit[1].replace(work, '') if hit else 'an allocation'})"
    if r.returncode < 0:
        return f"{where}: signal {-r.returncode} {r.stderr[-200:]}"
    if r.returncode == 0 and not (hit and ASIDE.search(hit[1])):
        return f"{where}: nothing said" if kind == "FILES" else same(verb, whole, out) and f"{where}: exit 0, but other files"
    if r.returncode != 0 and "lateen: " not in r.stderr:
        return f"{where}: no message: {r.stderr[-200:]}"
    left = leftovers(verb, out)
    if left and r.returncode != 0:
        return f"{where}: left {left}"
    if hit and hit[1].startswith("fsync ") and os.path.isdir(hit[1][6:]) and not same(verb, whole, out):
        remove(out)
        return ""  # Published, but perhaps not durable: reported, and complete.
    r = run(verb, out)
    differs = same(verb, whole, out) if r.returncode == 0 else f"ended with {r.returncode}: {r.stderr[-300:]}"
    remove(out)
    return differs and f"{where}, then again: {differs}"


def chosen(kind, n, log):
    if n <= most:
        return range(1, n + 1)
    picked = set(rng.sample(range(1, n + 1), most // 2 if kind == "FILES" else most))
    if kind == "FILES":  # In addition, one of each kind and file.
        first = {}
        for i, line in enumerate((x for x in log.splitlines() if not x.startswith("unlink")), 1):
            first.setdefault(line, i)
        picked |= set(rng.sample(sorted(first.values()), min(most, len(first))))
    return sorted(picked)


try:
    subprocess.run([os.environ.get("CC", "cc").split()[-1], "-shared", "-fPIC", "-O1", "-o", library, "tests/inject/inject.c", "-ldl"], check=True)
    for verb in VERBS:
        whole = name_of(verb, "whole")
        r = run(verb, whole, INJECT_LOG=work + "/log", INJECT_COUNT=work + "/count")
        log = open(work + "/log").read()
        n_files, n_memory = map(int, open(work + "/count").read().split())
        os.remove(work + "/log")
        check(f"{verb}: undisturbed, {n_files} calls about files, {n_memory} allocations", r.stderr[-300:] if r.returncode != 0 or n_files < 3 or n_memory < 3 else "")
        if "order" in parts:
            check(f"{verb}: written, synced, renamed, folder synced", order(verb, log))
        for kind, n in (("FILES", n_files), ("MEMORY", n_memory)):
            if kind.lower() in parts:
                with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
                    tried = list(chosen(kind, n, log))
                    wrong = [w for w in pool.map(lambda i: disturb(verb, whole, kind, i), tried) if w]
                check(f"{verb}: {len(tried)} failures of {'files' if kind == 'FILES' else 'memory'}", f"{len(wrong)}: " + " | ".join(wrong) if wrong else "")
finally:
    shutil.rmtree(work)
print(f"1..{count}")
sys.exit(failed > 0)
