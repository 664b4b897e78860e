"""Runs that survive: a rank is killed, stopped or told to end, and the run continues under `lateen launch --retries`; an attempt that was replaced wakes up and changes nothing. Each run ends with the bits of an undisturbed one. TAP on stdout.

usage: runs_survive.py LATEEN [quick]      quick: the core cases"""
import glob
import os
import re
import signal
import subprocess
import sys
import tempfile

from launched import SILENT, begin, bits, checkpoints, command, events, flip_bit, lateen, losses, undisturbed, wait_for
from tap import Tap

tap = Tap()
work = tempfile.TemporaryDirectory()
quick = sys.argv[2:] == ["quick"]
ARGS = {"steps": 60, "checkpoint.every": 10}
PHASES = ["detect", "fence", "decide", "relaunch", "connect", "load", "recompute"]


whole = undisturbed(2, {**ARGS, "out": work.name + "/whole"})
tap.check("without --retries no events are written", not os.path.exists(work.name + "/whole/events.jsonl"))


def recovers(name, number, kind, cost):
    """Rank 1 gets a signal; the attempt is replaced by another one."""
    out = f"{work.name}/{kind}"
    p, pids = begin(2, {**ARGS, "out": out}, ("--retries", "1"))
    os.kill(pids[1], number)
    text = p.communicate(timeout=60)[0]
    wrong = [] if p.returncode == 0 and bits(out) == whole else [f"status {p.returncode}, other bits: {text[-800:]}"]
    faults, decisions = events(out, "fault"), events(out, "decision")
    if [f["kind"] for f in faults] != [kind] or f"{cost} of 1 retries used" not in decisions[0]["why"]:
        wrong.append(f"{faults} {decisions}")
    phases = [e["phase"] for e in events(out, "phase")]
    if phases != PHASES or [e["seconds"] < 0 for e in events(out, "phase")].count(True):
        wrong.append(f"phases {phases}")
    recovered = events(out, "recovered")
    total = sum(e["seconds"] for e in events(out, "phase"))
    if len(recovered) != 1 or abs(recovered[0]["seconds"] - total) > 1e-3 or not 0 <= recovered[0]["steps_lost"] <= 11:
        wrong.append(f"{recovered}, phases {total} s")
    if len(re.findall(r"^attempt 2: |^attempt 1: ", text, re.M)) != len(PHASES) or "attempt 2 has recovered: " not in text:
        wrong.append(f"not told: {text[-600:]}")
    if kind == "silent" and not SILENT * 0.8 < events(out, "phase")[0]["seconds"] < SILENT + 20:
        wrong.append(f"noticed after {events(out, 'phase')[0]['seconds']} s")
    tap.check(name, not wrong, "; ".join(wrong))


recovers("a rank is killed: a retry, and the same bits", signal.SIGKILL, "killed", 1)
if not quick:
    recovers("a rank is stopped: no retry, and the same bits", signal.SIGSTOP, "silent", 0)
    recovers("a rank is told to end: everything is saved, and the same bits", signal.SIGTERM, "told", 1)


def words():
    """The last words of a rank that fails, and a fault that is not retried."""
    out = work.name + "/words"
    args = {**ARGS, "steps": 400, "out": out, "guard.loss_z": 0.01, "guard.window": 8, "guard.limit": 1}
    done = subprocess.run(command(2, args, ("--retries", "9")), capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=120)
    fault = events(out, "fault")
    ok = done.returncode == 1 and fault and any("updates in a row were skipped" in w or "not finite" in w for w in fault[0]["words"]) and len(fault) < 9
    tap.check("a run that fails in the same way again ends early, and its last words are kept", ok, (done.stderr[-500:], fault))


def asked():
    out = work.name + "/asked"
    p, _ = begin(2, {**ARGS, "steps": 100000, "out": out}, ("--retries", "3"))
    open(out + "/exit", "w").close()
    text = p.communicate(timeout=30)[0]
    tap.check("the file named exit stops the run, whatever the retries", p.returncode == 75 and not events(out, "fault"), text[-500:])
    p, _ = begin(2, {**ARGS, "steps": 100000, "out": out + "2"}, ("--retries", "3"))
    p.send_signal(signal.SIGTERM)
    text = p.communicate(timeout=30)[0]
    tap.check("SIGTERM to the launcher, too", p.returncode == 75 and not events(out + "2", "fault"), text[-500:])


def part():
    """A bit of one rank's part of the newest checkpoint flips: a rank reads only its own part,
    and yet all of them resume from the same checkpoint."""
    args = {**ARGS, "mesh": "dp=2", "mesh.zero": 2}
    straight = undisturbed(2, {**args, "out": work.name + "/parts"})
    for rank in range(2):
        out = f"{work.name}/part-{rank}"
        undisturbed(2, {**args, "steps": 50, "out": out})
        of_rank = [f for f in sorted(glob.glob(checkpoints(out)[-1] + "/*.safetensors")) if f"-0000{rank}-of-" in f]
        flip_bit(of_rank[0], os.path.getsize(of_rank[0]) - 9)
        done = subprocess.run(command(2, {**args, "out": out}), capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=120)
        ok = done.returncode == 0 and bits(out) == straight and "resumed at step 40 " in done.stderr and os.path.isdir(out + "/checkpoints/step-000000050.broken")
        tap.check(f"the part of rank {rank} in the newest checkpoint is damaged: all ranks continue from the previous one, with the same bits", ok,
                  f"{done.returncode} {done.stderr[-900:]} {[os.path.basename(f) for f in glob.glob(checkpoints(out)[-1] + '/*')]}")


def alone(out, restart, **more):
    """One rank without a launcher, as an attempt of Slurm's job 77."""
    words = [w for w in command(1, {**ARGS, **more, "out": out})]
    words = [lateen] + words[words.index("train"):]
    return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, stdin=subprocess.DEVNULL,
                            env={**os.environ, "SLURM_JOB_ID": "77", "SLURM_RESTART_COUNT": str(restart)})


def tree(out):
    return {os.path.join(d, f)[len(out):]: open(os.path.join(d, f), "rb").read() for d, _, files in os.walk(out) for f in files if f != "log.txt"}


def orphan():
    """An attempt is stopped, replaced by the next one of its job, and wakes up: while that one
    trains, and when it has ended."""
    straight, out = work.name + "/straight", work.name + "/orphan"
    first = alone(out, 0, **{"steps": 100000})
    wait_for(lambda: len(checkpoints(out)) > 1)
    first.send_signal(signal.SIGSTOP)
    second = alone(out, 1, **{"steps": 100000})
    wait_for(lambda: len(losses(out)) > 0 and os.path.exists(out + "/lease/000000002.json"))
    first.send_signal(signal.SIGCONT)
    said = first.communicate(timeout=30)[0]
    tap.check("an attempt that was replaced ends with status 77 and says what replaced it",
              first.returncode == 77 and re.search(r"\(epoch 1\) was replaced by epoch 2, process \d+ on ", said), f"{first.returncode} {said[-400:]}")
    second.send_signal(signal.SIGSTOP)
    # The second attempt has made any number of steps until then.
    steps = int(checkpoints(out)[-1][-9:]) + 20
    assert alone(straight, 0, steps=steps).wait(60) == 0
    third = alone(out, 2, steps=steps)
    assert third.wait(60) == 0 and bits(out)[1:] == bits(straight)[1:], "the third attempt"
    before = tree(out)
    assert any(n.startswith(f"/checkpoints/step-{steps:09}/") for n in before)
    second.send_signal(signal.SIGCONT)
    said = second.communicate(timeout=30)[0]
    tap.check("it changes no file of the run folder, and the run has the bits of one without faults", second.returncode == 77 and tree(out) == before,
              ([n for n in {**before, **tree(out)} if before.get(n) != tree(out).get(n)], said[-500:]))
    late = alone(out, 1)
    said = late.communicate(timeout=30)[0]
    tap.check("an earlier attempt cannot begin either", late.returncode == 77 and "belongs to a later attempt of this job: epoch 3" in said, said[-500:])


def requeue():
    """The outer level: a rank is stopped, and the job goes back into the queue of a Slurm that
    only records the call."""
    out = work.name + "/requeue"
    os.mkdir(work.name + "/bin")
    with open(work.name + "/bin/scontrol", "w") as f:
        f.write(f"#!/bin/sh\necho \"$@\" >>{work.name}/queued\n")
    os.chmod(work.name + "/bin/scontrol", 0o755)
    p, pids = begin(2, {**ARGS, "steps": 100000, "out": out}, ("--requeue",), SLURM_JOB_ID="77", PATH=work.name + "/bin:" + os.environ["PATH"])
    os.kill(pids[0], signal.SIGSTOP)
    text = p.communicate(timeout=60)[0]
    queued = open(work.name + "/queued").read() if os.path.exists(work.name + "/queued") else ""
    tap.check("a fault of hardware puts the job back in the queue", p.returncode == 75 and queued == "requeue 77\n" and [e["queued"] for e in events(out, "requeue")] == [True],
              f"{p.returncode} {queued} {text[-400:]}")
    second, _ = begin(2, {**ARGS, "out": out}, SLURM_JOB_ID="77", SLURM_RESTART_COUNT="1")
    tap.check("and the job continues", second.wait(60) == 0 and bits(out)[1:] == whole[1:], "other bits")


def twice():
    out = work.name + "/twice"
    p, _ = begin(2, {**ARGS, "steps": 100000, "out": out})
    done = subprocess.run(command(1, {**ARGS, "out": out}, ("--retries", "5")), capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=60)
    p.send_signal(signal.SIGTERM)
    p.communicate(timeout=30)
    tap.check("another run in the same folder is refused", done.returncode == 1 and "is in use by another process" in done.stderr, done.stderr[-500:])


for case in (orphan, part) if quick else (orphan, part, words, asked, requeue, twice):
    tap.case(case)
work.cleanup()
sys.exit(tap.end())
