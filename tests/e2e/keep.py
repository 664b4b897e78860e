"""`lateen launch --keep`: ranks that survive a fault keep their processes; only the missing ones start, and all load the newest snapshot. The run ends with the bits of an undisturbed one. Meanwhile no checkpoint is on disk. TAP on stdout.

usage: keep.py LATEEN [quick]      quick: a rank is killed"""
import os
import signal
import subprocess
import sys
import tempfile

from launched import alive, begin, bits, command, events, lateen, memory_of, ranks_of, undisturbed, wait_for
from tap import Tap

tap = Tap()
quick = sys.argv[2:] == ["quick"]
work = tempfile.TemporaryDirectory()
ARGS = {"steps": 250, "checkpoint.every": 100000}
whole = undisturbed(4, {**ARGS, "out": work.name + "/whole"})


def recovered(out):
    return [e for e in events(out, "recovered")] if os.path.exists(out + "/events.jsonl") else []


def kept(name, faults, more=("--nodes", "2", "--snapshot", "5"), args=ARGS, truth=None):
    """Each fault, a signal to a rank, comes when the run has recovered from the previous one. The
    pids of the other ranks stay the same."""
    out = f"{work.name}/{name.replace(' ', '-')}"
    p, pids = begin(4, {**args, "out": out}, ("--retries", "9", "--keep", *more))
    wrong = []
    try:
        if "--nodes" in more:
            wait_for(lambda: len(os.listdir(memory_of(pids[0]) + "/set")) > 1, 60)
        for i, (rank, number) in enumerate(faults):
            os.kill(pids[rank], number)
            wait_for(lambda: len(recovered(out)) > i or p.poll() is not None, 60)
            now = ranks_of(p.pid)
            if p.poll() is None and [r for r in range(4) if r != rank and now.get(r) != pids[r]]:
                wrong.append(f"ranks {pids} became {now}")
            pids = [now.get(r, pids[r]) for r in range(4)]
        text = p.communicate(timeout=240)[0]
    finally:
        p.kill()
    wrong += [] if p.returncode == 0 else [f"status {p.returncode}: {text[-900:]}"]
    wrong += [] if p.returncode != 0 or bits(out) == (truth or whole) else ["other bits"]
    wrong += [] if len(recovered(out)) == len(faults) else [f"{recovered(out)}"]
    wrong += [f"{c} is left" for c in pids if alive(c)]
    tap.check(name, not wrong, "; ".join(wrong))


def refused():
    """An objective cannot continue in another world: this is reported before anything starts."""
    pairs = work.name + "/pairs.jsonl"
    with open(pairs, "w") as f:
        f.write('{"prompt":"a","chosen":"b","rejected":"c"}\n' * 8)
    words = [lateen, "launch", "--ranks", "2", "--retries", "9", "--keep", "train", "--out", work.name + "/dpo", "--model.init", "models/polyglot-46m.gguf", "--objective.kind", "dpo",
             "--data.train", pairs, "--data.chat_template", "recipes/sft-lora.jinja", "--data.seq", "64", "--lora.rank", "4", "--steps", "2"]
    done = subprocess.run(words, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=120)
    tap.check("--keep with an objective is refused", done.returncode == 2 and "--keep" in done.stderr and "objective.kind" in done.stderr and not os.path.exists(work.name + "/dpo"),
              f"{done.returncode} {done.stderr[-500:]}")


refused()
kept("a rank is killed and the others live on", [(2, signal.SIGKILL)])
if not quick:
    kept("the leading rank is killed", [(0, signal.SIGKILL)])
    kept("three faults in a row", [(1, signal.SIGKILL), (1, signal.SIGSEGV), (3, signal.SIGKILL)], args={**ARGS, "steps": 400},
         truth=undisturbed(4, {**ARGS, "steps": 400, "out": work.name + "/long"}))
    kept("a rank is stopped", [(3, signal.SIGSTOP)])
    kept("without snapshots, from disk", [(1, signal.SIGKILL)], (), {**ARGS, "checkpoint.every": 10}, undisturbed(4, {**ARGS, "checkpoint.every": 10, "out": work.name + "/disk"}))
    tp = {**ARGS, "mesh": "dp=2,tp=2", "mesh.zero": 1}
    kept("a divided model", [(1, signal.SIGKILL)], args=tp, truth=undisturbed(4, {**tp, "out": work.name + "/tp"}))

    @tap.case
    def ends():
        """When no retry is left, or the launcher is told to end while ranks wait, none of them
        stays."""
        for number, more in ((signal.SIGSEGV, ("--retries", "1")), (signal.SIGKILL, ("--retries", "5"))):
            out = f"{work.name}/ends-{number}"
            p, pids = begin(3, {**ARGS, "steps": 100000, "out": out}, ("--keep", *more))
            seen = set(pids)
            for _ in range(2):
                wait_for(lambda: len(ranks_of(p.pid)) == 3 or p.poll() is not None, 60)
                seen |= set(ranks_of(p.pid).values())
                os.kill(ranks_of(p.pid)[1], number)
                if more[1] == "5":
                    break
                wait_for(lambda: len(recovered(out)) or p.poll() is not None, 60)
            if more[1] == "5":
                p.send_signal(signal.SIGTERM)
            p.communicate(timeout=60)
            wait_for(lambda: not [c for c in seen if alive(c)], 60)
            tap.check(f"the launcher ends, and with it ranks that wait ({signal.Signals(number).name})", p.returncode not in (0, None), p.returncode)

done = subprocess.run(command(2, {**ARGS, "out": work.name + "/refused"}, ("--keep",)), capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=60)
tap.check("--keep without --retries is refused", done.returncode in (1, 2) and "--keep needs --retries" in done.stderr, done.stderr[-300:])
work.cleanup()
sys.exit(tap.end())
