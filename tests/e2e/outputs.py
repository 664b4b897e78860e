"""Output never overwrites an input, nor a device; and `tokenize --decode` reads only ids. Standard library only; TAP on stdout.

usage: outputs.py LATEEN"""
import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time

from tap import Tap

tap = Tap()
LATEEN = os.path.abspath(sys.argv[1])
TOKENIZER = os.path.abspath("tests/golden/data/demo_tokenizer.json")
MODEL = os.path.abspath("models/polyglot-46m.gguf")
PROBLEM = '{"completions": ["#### 1", "#### 2"], "answer": "1", "checker": "number"}\n'


def run(*args, text=""):
    return subprocess.run([LATEEN, *args], input=text, capture_output=True, text=True, timeout=120)


def whole(name):
    with open(name, "rb") as file:
        return file.read()


def write(name, text):
    with open(name, "w") as file:
        file.write(text)
    return name


def spares(name, kept, *args):
    """The command fails, names the file, and does not change it."""
    before = whole(kept)
    done = run(*args)
    tap.check(name, done.returncode != 0 and os.path.basename(kept) in done.stderr and os.path.exists(kept) and whole(kept) == before, done)


def leaves(name, args, path, kind):
    done = run(*args)
    tap.check(name, done.returncode != 0 and kind(os.lstat(path).st_mode) and path in done.stderr, done)


with tempfile.TemporaryDirectory() as work:
    os.chdir(work)
    for suffix in ("bin", "json", "mask", "journal"):
        for more in ([], ["--overwrite"]):
            folder = tempfile.mkdtemp(dir=".")
            read = write(f"{folder}/a.{suffix}", "hello world\n")
            spares(" ".join(["tokenize --out of an input that is PREFIX." + suffix] + more), read, "tokenize", "--tokenizer", TOKENIZER, read, "--format", "text", "--out", folder + "/../" + os.path.basename(folder) + "/a", *more)
    write("b.json", open(TOKENIZER).read())
    text = write("b.txt", "hello world\n")
    spares("tokenize --out of the tokenizer's name", "b.json", "tokenize", "--tokenizer", "b.json", text, "--out", "b", "--overwrite")
    spares("tokenize --out of the name of a file that is no shard", "b.json", "tokenize", "--tokenizer", TOKENIZER, text, "--out", "b")
    done = run("tokenize", "--tokenizer", TOKENIZER, text, "--out", "b", "--overwrite")
    tap.check("which --overwrite replaces", done.returncode == 0, done)

    problems = write("problems.jsonl", PROBLEM)
    os.symlink("problems.jsonl", "same.jsonl")
    spares("data check --out of its input", problems, "data", "check", problems, "--out", problems)
    spares("and by another name", problems, "data", "check", problems, "--out", "same.jsonl")
    wrong, results = write("wrong.jsonl", PROBLEM + "{\n"), write("results.jsonl", "earlier\n")
    before = whole(results)
    done = run("data", "check", wrong, "--out", results)
    tap.check("data check that fails leaves earlier results", done.returncode != 0 and whole(results) == before and os.listdir(".").count("results.jsonl.tmp") == 0, done)

    gsm = write("gsm.jsonl", '{"question": "How many?", "answer": "#### 1"}\n')
    said = write("said.jsonl", '{"response": "#### 1"}\n')
    spares("eval --outputs of its responses", said, "eval", "--task", "gsm8k", gsm, "--responses", said, "--outputs", said)
    spares("eval --outputs of its questions", gsm, "eval", "--task", "gsm8k", gsm, "--responses", said, "--outputs", gsm)

    # A file that is incomplete when a signal ends the program is removed; an ignored signal
    # (nohup) ends nothing.
    for name, args in (("data make", ["data", "make", "all", "--count", "20000000", "--out", "cut.jsonl"]), ("quantize", ["quantize", MODEL, "cut.gguf", "--type", "q4_k_m"]),
                       ("convert to a folder", ["convert", MODEL, "--dtype", "fp32", "cut"])):
        for number in (signal.SIGINT, signal.SIGTERM):
            for ignored in (False, True):
                p = subprocess.Popen([LATEEN, *args], stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL, preexec_fn=lambda: signal.signal(number, signal.SIG_IGN if ignored else signal.SIG_DFL))
                until = time.time() + 60
                while p.poll() is None and not (os.path.exists(args[-1] + ".tmp") or os.path.exists("cut.gguf.tmp")) and time.time() < until:
                    time.sleep(0.005)
                p.send_signal(number)
                try:
                    p.wait(0.5 if ignored else 60)
                except subprocess.TimeoutExpired:
                    pass
                left = sorted(x for x in os.listdir(".") if x.startswith("cut"))
                tap.check(f"{name}: what {number.name} leaves incomplete is removed" if not ignored else f"{name}: an ignored {number.name} changes nothing",
                          (p.returncode == -number and left == []) if not ignored else (p.returncode in (None, 0) and left != []), (p.returncode, left))
                p.kill()
                p.wait()
                for x in os.listdir("."):
                    if x.startswith("cut"):
                        shutil.rmtree(x) if os.path.isdir(x) else os.remove(x)
    p = subprocess.Popen([LATEEN, "convert", MODEL, "cut"], stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    while p.poll() is None and not os.path.exists("cut.tmp"):
        time.sleep(0.005)
    p.kill()
    p.wait()
    tap.check("convert to a folder, ended by SIGKILL: no folder of that name", p.returncode == -signal.SIGKILL and not os.path.exists("cut") and os.path.isdir("cut.tmp"), os.listdir("."))
    done = run("convert", MODEL, "cut")
    tap.check("what it has left is not mistaken for a temporary folder of this command", done.returncode != 0 and "cut.tmp exists already" in done.stderr and not os.path.exists("cut"), done)
    shutil.rmtree("cut.tmp")
    done = run("convert", MODEL, "cut/")
    tap.check("and once it is removed, the folder is made", done.returncode == 0 and os.path.exists("cut/config.json") and not os.path.exists("cut.tmp"), done)
    shutil.rmtree("cut", ignore_errors=True)

    os.mkfifo("pipe")  # Creating a device would need root; the same line of code refuses a pipe.
    leaves("data make --out of a pipe", ["data", "make", "all", "--out", "pipe"], "pipe", stat.S_ISFIFO)
    leaves("tokenizer train --out of a pipe", ["tokenizer", "train", text, "--vocab-size", "257", "--out", "pipe"], "pipe", stat.S_ISFIFO)
    leaves("data check --out of a pipe", ["data", "check", wrong, "--out", "pipe"], "pipe", stat.S_ISFIFO)
    leaves("copy to a pipe", ["copy", text, "pipe"], "pipe", stat.S_ISFIFO)
    leaves("plan --html of a pipe", ["plan", "--model", "llama3-8b", "--cluster", "harvard", "--tokens", "1B", "--html", "pipe"], "pipe", stat.S_ISFIFO)
    os.symlink("/proc/self/fd/1", "stdout")
    leaves("data make --out of a link to standard output", ["data", "make", "all", "--out", "stdout"], "stdout", stat.S_ISLNK)
    tap.check("nothing is left beside them", not [x for x in os.listdir(".") if x.endswith(".tmp") or x.startswith("pipe.") or x.startswith("stdout.")], os.listdir("."))
    done = subprocess.run(["bash", "-c", f"cat {TOKENIZER} | {LATEEN} tokenize --tokenizer /dev/stdin --text x"], capture_output=True, text=True)
    tap.check("a tokenizer from a pipe is refused as a pipe", done.returncode != 0 and "pipe" in done.stderr, done)

    for ids, said in (("1 2 3", True), ("1,2", True), ("[1, 2]", True), ('{"ids": [1, 2]}', True), ("", True), ("1\t2\r\n3", True), ("abc", False), ("1.5", False),
                      ("1e3", False), ("0x10", False), ("-1", False), ("+5", False), ("1 2\0 3", False), ("99999999999999999999", False), ('{"ids": [1.5]}', False),
                      ('{"ids": [-1]}', False), ('{"ids": "1"}', False), ("{}", False), ("[[1]]", False), ('{"id": [1]}', False), ("[1, 2", False)):
        done = run("tokenize", "--tokenizer", TOKENIZER, "--decode", text=ids)
        tap.check(f"decode of {ids!r} is {'ids' if said else 'refused'}", (done.returncode == 0) == said and (said or "line 1" in done.stderr), done)
    done = run("tokenize", "--tokenizer", TOKENIZER, "--decode", text="1 2\nx\n")
    tap.check("lines before a wrong one are written", done.returncode != 0 and done.stdout.count("\n") == 1 and "line 2" in done.stderr, done)
sys.exit(tap.end())
