"""Faults of ranks that `lateen launch` started: a rank or the launcher is killed, stopped or told to end at a random moment of a small training run. Every survivor must name
the rank, everything must end in time with the right status, and no process may be left. Standard library only; TAP on stdout.

usage: launch_faults.py LATEEN [SEEDS [FIRST]]      each seed is a fault; FAULT_SEEDS and FAULT_RESULTS: seeds.py

On a machine with two GPUs, LATEEN_TEST_DEVICE=cuda FAULT_RANKS=2: two ranks, each with one, in these faults alone."""
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import seeds
from launched import GRACE, SILENT, alive, begin, checkpoints, command, lateen, losses, ranks_of, wait_for

n_seeds = int(sys.argv[2]) if len(sys.argv) > 2 else 12
first = int(sys.argv[3]) if len(sys.argv) > 3 else 1
most_ranks = int(os.environ.get("FAULT_RANKS", "4"))
count = failed = 0


def check(name, wrong):
    global count, failed
    count += 1
    failed += bool(wrong)
    print(f"{'not ok' if wrong else 'ok'} {count} - {name}" + (f"\n  # {str(wrong)[:900]}" if wrong else ""), flush=True)


def fault(work, seed):
    rng, began = random.Random(seed), time.time()
    ranks = min(rng.choice([2, 3, 4]), most_ranks)
    who, what = rng.randrange(-1, ranks), rng.choice(["KILL", "STOP", "TERM", "SEGV", "ABRT"])
    if who < 0 and what not in ("KILL", "TERM"):
        who = 0
    name = f"seed {seed}: SIG{what} to {'the launcher' if who < 0 else f'rank {who}'} of {ranks}"
    out = f"{work}/{seed}"
    p, pids = begin(ranks, {"out": out, "steps": 1000000, "checkpoint.every": 50})
    time.sleep(rng.random() * 0.7)
    os.kill(p.pid if who < 0 else pids[who], getattr(signal, "SIG" + what))
    start = time.time()
    try:
        text = p.communicate(timeout=30)[0]
    except subprocess.TimeoutExpired:
        p.kill()
        seeds.done(seed, began, ["the launcher does not end"], run=name)
        return check(name, "the launcher does not end")
    took, wrong = time.time() - start, []
    want = {"TERM": 75}.get(what, 76) if who >= 0 or what == "TERM" else -9
    limit = GRACE + 3 + (SILENT if what == "STOP" else 0)
    if p.returncode != want or took > limit:
        wrong.append(f"status {p.returncode} after {took:.1f} s, not {want} within {limit}")
    if want == 76:
        says = f"rank {who} " + (f"has stopped answering: no heartbeat for {SILENT} s" if what == "STOP" else f"was ended by signal {int(getattr(signal, 'SIG' + what))}")
        lost = [r for r in range(ranks) if r != who and not re.search(rf"^\[{r}\] lateen: .*{re.escape(says)}", text, re.M)]
        if lost:
            wrong.append(f"ranks {lost} do not say '{says}': {text[-700:]}")
    until = time.time() + 5
    while any(alive(c) for c in pids) and time.time() < until:
        time.sleep(0.02)
    if any(alive(c) for c in pids):
        wrong.append("processes are left over")
    seeds.done(seed, began, wrong, run=name)
    check(name, "; ".join(wrong))
    shutil.rmtree(out, ignore_errors=True)


def goes_on(work):
    """A rank is killed twice; the launcher starts all ranks again, and the losses are those of an
    undisturbed run."""
    args = {"steps": 400, "checkpoint.every": 20}
    done = subprocess.run(command(3, {**args, "out": work + "/whole"}), capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=120)
    if done.returncode:
        return check("a run that continues after restarts", done.stdout[-300:] + done.stderr[-500:])
    out = work + "/broken"
    p, pids = begin(3, {**args, "out": out}, ("--retries", "3"))
    os.kill(pids[1], signal.SIGKILL)
    text = p.communicate(timeout=120)[0]
    a, b = losses(work + "/whole"), losses(out)
    check("a rank is killed and the run continues: the same losses", "" if p.returncode == 0 and "attempt 2 begins" in text and a == b and len(a) == 400 else
          f"status {p.returncode}, {len(b)} steps of {len(a)}, the same: {a == b}: {text[-500:]}")
    now, before = (sorted(n for n in os.listdir(d) if n.startswith("rank-")) for d in (out, out + "/records-before"))
    blame = subprocess.run([lateen, "comm", "blame", out + "/records-before"], capture_output=True, text=True).stdout
    check("the second start put the records of the first aside", "" if not now and before == ["rank-0.jsonl", "rank-2.jsonl"] and "rank 1 left no record" in blame else (now, before, blame))


def at_start(work):
    done = subprocess.run(command(3, {"out": work + "/bad", "batch.size": 13, "steps": 5}), capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=60)
    check("a batch that ranks cannot divide: usage, not started again", "" if done.returncode == 2 and "13 rows cannot be divided by 3" in done.stderr else
          f"status {done.returncode}: {done.stderr[-500:]}")
    for flags, needs in ((("--snapshot", "5"), "--nodes"), (("--mtbf", "60"), "--nodes"), (("--back", "5"), "--spares"), (("--beat", "0", "--silent", "5"), "--beat")):
        done = subprocess.run([lateen, "launch", *flags, "train"], capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=60)
        check(f"{' '.join(flags)}: no effect, refused", "" if done.returncode == 2 and f"has no effect without {needs}" in done.stderr else done.stderr[-300:])
    done = subprocess.run([lateen, "launch", "--beat", "1", "--silent", "1.9", "train"], capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=60)
    check("ranks that would be given up between two heartbeats: refused", "" if done.returncode == 2 and "less than two heartbeats" in done.stderr else done.stderr[-300:])
    done = subprocess.run([lateen, "launch", "--ranks", "2", "--retries", "9", "train", work + "/no.yaml"], capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=60)
    noticed = [float(s) for s in re.findall(r"the fault was noticed within ([0-9.]+) s", done.stderr)]
    check("ranks that end before the launcher has looked at them: their fault was after their start, and the pause before it (2 s) does not count",
          "" if len(noticed) == 3 and noticed[0] < 60 and noticed[2] < 1.9 else f"{noticed} {done.stderr[-300:]}")
    done = subprocess.run(command(8, {"out": work + "/eight", "batch.size": 16, "steps": 3}), capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=120)
    check("eight ranks, whatever the cores", "" if done.returncode == 0 and len(losses(work + "/eight")) == 3 else f"status {done.returncode}: {done.stderr[-500:]}")


def start_early(ranks, args):
    """Start a run and return when its ranks are processes."""
    p = subprocess.Popen(command(ranks, args), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, stdin=subprocess.DEVNULL)
    wait_for(lambda: len(ranks_of(p.pid)) == ranks)
    return p


def has_signal(pid, field, number):
    """Whether a set of signals in /proc/PID/status contains this one."""
    found = re.search(rf"^{field}:\s*(\w+)", open(f"/proc/{pid}/status").read(), re.M)
    return bool(int(found.group(1), 16) >> number - 1 & 1)


def signals(work):
    """Signals as srun, scancel, a terminal and nohup send them: to every process, twice, or to a
    launcher that should ignore them."""
    endless = {"steps": 1000000, "checkpoint.every": 1000000}
    p, pids = begin(2, {**endless, "out": work + "/int"})
    for pid in (p.pid, *pids):
        os.kill(pid, signal.SIGINT)
    text = p.communicate(timeout=60)[0]
    check("a SIGINT that the launcher and each rank get: they save", "" if p.returncode == 75 and checkpoints(work + "/int") else f"status {p.returncode}: {text[-500:]}")
    p = start_early(2, {**endless, "out": work + "/early"})
    # The ranks are programs that have just started, without handlers.
    p.send_signal(signal.SIGTERM)
    text = p.communicate(timeout=60)[0]
    check("a launcher that is told to stop before its ranks can save: nothing is lost", "" if p.returncode == 75 else f"status {p.returncode}: {text[-500:]}")
    for k in range(20):
        p = start_early(2, {**endless, "out": f"{work}/half-{k}"})
        pids = ranks_of(p.pid)
        os.kill(pids[1], signal.SIGSTOP)
        wait_for(lambda: has_signal(pids[0], "SigCgt", signal.SIGTERM) or p.poll() is not None)
        if not has_signal(pids[1], "SigCgt", signal.SIGTERM):
            break
        p.kill()
        p.communicate()
    p.send_signal(signal.SIGTERM)
    wait_for(lambda: has_signal(pids[1], "ShdPnd", signal.SIGTERM))
    os.kill(pids[1], signal.SIGCONT)
    start, text = time.time(), p.communicate(timeout=60)[0]
    check("a launcher that is told to stop when only one of its ranks has handlers: the signal ends the other, and the first does not wait for it",
          "" if p.returncode == 75 and "rank 1 was ended by signal 15" in text and time.time() - start < GRACE + 5 else f"status {p.returncode} after {time.time() - start:.1f} s: {text[-500:]}")
    p, pids = begin(2, {**endless, "out": work + "/twice"}, ("--silent", "60"))
    os.kill(pids[1], signal.SIGSTOP)
    p.send_signal(signal.SIGINT)
    time.sleep(1.1)
    p.send_signal(signal.SIGINT)
    start, text = time.time(), p.communicate(timeout=90)[0]
    check("a second SIGINT, a second later: all end at once, even one that does not answer", "" if p.returncode == 137 and time.time() - start < 10 and not any(map(alive, pids)) else
          f"status {p.returncode} after {time.time() - start:.1f} s: {text[-500:]}")
    p, pids = begin(2, {**endless, "out": work + "/storm"}, ("--nodes", "2"))
    while p.poll() is None:
        p.send_signal(signal.SIGTERM)
        time.sleep(0.001)
    text = p.communicate(timeout=60)[0]
    check("a launcher that is told to stop repeatedly until it has ended says that all is saved", "" if p.returncode == 75 and checkpoints(work + "/storm") else f"status {p.returncode}: {text[-500:]}")
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    p, pids = begin(2, {**endless, "out": work + "/nohup"}, ("--retries", "3"))
    signal.signal(signal.SIGHUP, before)
    p.send_signal(signal.SIGHUP)
    time.sleep(0.3)
    os.kill(pids[0], signal.SIGKILL)
    until = time.time() + 30
    while time.time() < until and p.poll() is None and ranks_of(p.pid).get(0, pids[0]) == pids[0]:
        time.sleep(0.05)
    p.kill()
    text = p.communicate(timeout=60)[0]
    check("under nohup SIGHUP does not stop the run: it continues after a fault", "" if "attempt 2 begins" in text else text[-500:])


with tempfile.TemporaryDirectory() as folder:
    if most_ranks == 4:
        at_start(folder)
        signals(folder)
        goes_on(folder)
    for k in seeds.of(first, n_seeds):
        fault(folder, k)
print(f"1..{count}")
sys.exit(failed > 0)
