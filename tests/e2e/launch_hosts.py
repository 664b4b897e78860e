"""`lateen launch --hosts`: ranks on several machines without MPI and without Slurm, each machine a network namespace with an address and a host name (hosts.py); another command takes the place of ssh. A run has the bits of one on a single machine; a rank that is killed or stopped, a lost machine, a cable that stays unplugged, and a killed launcher are detected and named. TAP on stdout.

usage: launch_hosts.py LATEEN [quick]      quick: a run, and killed ranks"""
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time

import hosts
from launched import TRAIN, alive, bits, checkpoints, events, losses, undisturbed, variable_of, wait_for, words_of
from tap import Tap

lateen = os.path.abspath(sys.argv[1])
quick = sys.argv[2:] == ["quick"]
tap = Tap(detail_chars=3000)
if why := hosts.why_not():
    tap.skip("launch over several machines", why)
    sys.exit(tap.end())
work = tempfile.TemporaryDirectory()
ARGS = {"steps": 120, "checkpoint.every": 20, "threads": 1}
SILENT_S, DEADLINE_S = 1.5, 60
MESHES = {"dp": {}, "tp": {"mesh": "dp=2,tp=2"}, "pp": {"mesh": "pp=2,dp=2", "batch.micro": 2}, "zero": {"mesh.zero": 2}}
truth = {}


def whole(mesh):
    if mesh not in truth:
        truth[mesh] = undisturbed(4, {**ARGS, **MESHES[mesh], "out": f"{work.name}/whole-{mesh}"})
    return truth[mesh]


def login(h):
    """What ssh does: a shell on the other machine reads the words after the machine's name."""
    path = work.name + "/login"
    with open(path, "w") as f:
        f.write("#!/bin/sh\ncase $1 in\n" + "".join(f"{h.address(k)}) pid={h.spaces[k]} ;;\n" for k in range(h.n)) +
                "*) echo no such machine >&2; exit 255 ;;\nesac\nshift\nexec nsenter --net --uts --target $pid sh -c \"$*\"\n")
    os.chmod(path, 0o755)
    return path


def mute_login(h):
    """What ssh does when a cable is pulled: the end of the launcher's command reaches no process
    there, and neither does that of its input."""
    path = work.name + "/mute-login"
    with open(path, "w") as f:
        f.write(f"#!/bin/sh\nd=$(mktemp -d {work.name}/mute-XXXXXX) && mkfifo $d/in\nsetsid sleep 300 3>$d/in >$d/none 2>&1 </dev/null 3<>$d/in &\n"
                f"exec 4<&0\nsetsid {login(h)} \"$@\" <$d/in &\nagent=$!\ncat <&4 >$d/in &\nwait $agent\n")
    os.chmod(path, 0o755)
    return path


def start(h, where, args, more=(), env=None, login=login):
    words = [lateen, "launch", "--hosts", where, "--login", login(h), "--beat", "0.2", "--silent", str(SILENT_S), "--grace", "5", *more, "train"]
    words += [w for n, v in {**TRAIN, **ARGS, "mesh.deadline": DEADLINE_S, **args}.items() for w in (f"--{n}", str(v))]
    return subprocess.Popen(h.words(0, words), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, text=True, env={**os.environ, **(env or {})})


def ranks_on(h, k):
    """Ranks of a machine: the processes that train."""
    return {int(r): p for p in h.processes(k) if alive(p) and (r := variable_of(p, "LATEEN_RANK"))}


def trains(out, p, steps=30):
    wait_for(lambda: p.poll() is not None or len(losses(out) if os.path.exists(out + "/metrics.jsonl") else ()) >= steps, 60)


def both(h):
    return f"h0:2,{h.address(1)}:2"


def runs(h):
    for mesh in ["dp"] if quick else MESHES:
        out = f"{work.name}/run-{mesh}"
        p = start(h, both(h), {**MESHES[mesh], "out": out}, env={"OMP_NUM_THREADS": "1", "LATIN_1": "caf\udce9"})
        trains(out, p, 5)
        variables = [variable_of(q, "LATIN_1") for q in ranks_on(h, 1).values()]
        seen = [sorted(ranks_on(h, k)) for k in range(2)]
        secrets = [c for k in range(2) for q in h.processes(k) for c in (" ".join(words_of(q)),) if (t := variable_of(q, "LATEEN_TOKEN")) and t in c]
        text = p.communicate(timeout=120)[0]
        tap.check(f"{mesh}: two machines have the bits of one", p.returncode == 0 and bits(out) == whole(mesh), f"{p.returncode} {text[-900:]}")
        tap.check(f"{mesh}: the other machine's ranks have a variable that is not UTF-8", variables == ["caf\udce9"] * 2, ascii(variables))
        tap.check(f"{mesh}: two ranks on each, and no command line shows the token", seen == [[0, 1], [2, 3]] and not secrets, f"{seen} {secrets}")


def fault(name, disturb, says, kind, h, mesh="dp"):
    """Something happens to rank 3, which is on the other machine; the run is started again there,
    and continues."""
    out = f"{work.name}/{name.replace(' ', '-')}"
    p = start(h, both(h), {**MESHES[mesh], "out": out}, ("--retries", "3"))
    trains(out, p)
    disturb(h, ranks_on(h, 1))
    text = p.communicate(timeout=120)[0]
    faults = [e for e in events(out, "fault")] if os.path.exists(out + "/events.jsonl") else []
    tap.check(f"{name}: the run continues, and ends with the bits of one without it", p.returncode == 0 and bits(out) == whole(mesh), f"{p.returncode} {text[-1500:]}")
    tap.check(f"{name}: it is named", re.search(says, text) and [e["kind"] for e in faults] == [kind], f"{[(e['kind'], e['what']) for e in faults]} {text[-1500:]}")
    late = [float(x) for x in re.findall(r"noticed within ([0-9.]+) s", text)]
    tap.check(f"{name}: within 10 s", late and late[0] < 10, late)
    print(f"# {name}: {late} {re.findall(r'has recovered: .*', text)}", flush=True)


def all_ranks(h):
    return {r: pid for k in range(h.n) for r, pid in ranks_on(h, k).items()}


def keeps(h):
    """--keep: first a rank on the other machine is killed, then one on the launcher's. All others
    keep their processes."""
    out, args = work.name + "/keeps", {"steps": 400}
    p = start(h, both(h), {**args, "out": out}, ("--retries", "3", "--keep"))
    trains(out, p)
    pids, wrong = all_ranks(h), []
    for i, lost in enumerate((3, 0)):
        os.kill(pids[lost], signal.SIGKILL)
        wait_for(lambda: p.poll() is not None or len(events(out, "recovered")) > i, 60)
        now = all_ranks(h)
        wrong += [f"{pids} became {now}"] if p.poll() is None and {**now, lost: 0} != {**pids, lost: 0} else []
        pids = now
    text = p.communicate(timeout=120)[0]
    tap.check("--keep: ranks of both machines that survive a fault keep their processes", not wrong and len(events(out, "recovered")) == 2, f"{wrong} {text[-1500:]}")
    tap.check("--keep: the run ends with the bits of one without faults",
              p.returncode == 0 and bits(out) == undisturbed(4, {**ARGS, **args, "out": work.name + "/whole-keeps"}), f"{p.returncode} {text[-1500:]}")


def keeps_none(h):
    """--keep, and the cable of a machine stays unplugged: its ranks do not wait for a next world,
    of which no process can tell them. The run continues when the cable is plugged again."""
    out = work.name + "/keeps-none"
    p = start(h, both(h), {"out": out}, ("--retries", "9", "--keep"), login=mute_login)
    trains(out, p)
    pids = ranks_on(h, 1)
    h.link(1, False)
    began = time.time()
    wait_for(lambda: not any(alive(q) for q in pids.values()), 40)
    took = time.time() - began
    h.link(1, True)
    text = p.communicate(timeout=240)[0]
    tap.check("--keep and a cable that stays unplugged: the ranks that cannot be reached end", took < 30 and p.returncode == 0 and bits(out) == whole("dp"), f"{took:.1f} {p.returncode} {text[-1500:]}")
    print(f"# --keep and a cable that stays out: its ranks had ended after {took:.1f} s", flush=True)


def stop_asked(h):
    """A signal to the launcher reaches all ranks; the same command resumes."""
    out = work.name + "/asked"
    p = start(h, both(h), {"out": out})
    trains(out, p)
    launcher = next(q for q in h.processes(0) if "launch" in words_of(q))
    os.kill(launcher, signal.SIGTERM)
    text = p.communicate(timeout=60)[0]
    tap.check("SIGTERM: the ranks of both machines save and end", p.returncode == 75, f"{p.returncode} {text[-900:]}")
    p = start(h, both(h), {"out": out})
    text = p.communicate(timeout=120)[0]
    tap.check("the same command goes on with the same bits", p.returncode == 0 and bits(out)[-1] == whole("dp")[-1], f"{p.returncode} {text[-900:]}")


def launcher_dies(h):
    """Nothing is left on the other machine."""
    out = work.name + "/orphan"
    p = start(h, both(h), {"out": out})
    trains(out, p)
    launcher = next(q for q in h.processes(0) if "launch" in words_of(q))
    os.kill(launcher, signal.SIGKILL)
    p.communicate(timeout=60)
    wait_for(lambda: not any(ranks_on(h, k) for k in range(2)) and not h.processes(1), 20)
    tap.check("the launcher is killed: no process is left on either machine", True)


def cable(h):
    """The cable stays unplugged: without a retry, both sides end, without waiting for the
    deadline of a verb."""
    out = work.name + "/cable"
    p = start(h, both(h), {"out": out})
    trains(out, p)
    h.link(1, False)
    began = time.time()
    wait_for(lambda: not any(ranks_on(h, k) for k in range(2)), 40)
    took = time.time() - began
    text = p.communicate(timeout=60)[0]
    h.link(1, True)
    tap.check("a cable stays unplugged: the ranks of both machines end before any deadline, and the launcher says which machine is silent",
              took < 20 and p.returncode == 76 and re.search(r"rank [23] on 10.77.0.2 has stopped answering: no heartbeat for 1.5 s", text), f"{took:.1f} {p.returncode} {text[-1200:]}")
    print(f"# a cable stays out: all ranks had ended after {took:.1f} s", flush=True)


def apart(h):
    """The two machines of the ranks do not reach each other, while the launcher reaches both,
    until it has started them again."""
    def cut(yes):
        for k, other in ((1, 2), (2, 1)):
            subprocess.run(["nsenter", "--net", "--target", str(h.spaces[k]), "ip", "route", "add" if yes else "del", "blackhole", f"{h.address(other)}/32"], check=True)
    out = work.name + "/apart"
    p = start(h, f"{h.address(1)}:2,{h.address(2)}:2", {"out": out}, ("--retries", "9"))
    trains(out, p)
    cut(True)
    began = time.time()
    wait_for(lambda: p.poll() is not None or events(out, "fault"), 40)
    took = time.time() - began
    cut(False)
    text = p.communicate(timeout=200)[0]
    tap.check("two machines that do not reach each other: their ranks notice it as soon as the launcher would, and the run continues when it is over",
              took < 15 and p.returncode == 0 and bits(out) == whole("dp") and "is not reached any more: " in text,
              f"{took:.1f} {p.returncode} {[line for line in text.splitlines() if not line.startswith('[0]')][-16:]} {bits(out) == whole('dp')}")


def flap(h):
    out = work.name + "/flap"
    p = start(h, both(h), {"out": out}, ("--silent", "20"))
    for pause in (0.2, 1.0):
        trains(out, p, min(ARGS["steps"] - 1, len(losses(out)) + 20 if os.path.exists(out + "/metrics.jsonl") else 20))
        h.link(1, False)
        time.sleep(pause)  # How long the cable is unplugged is what is tested.
        h.link(1, True)
    text = p.communicate(timeout=120)[0]
    tap.check("a cable is unplugged for 0.2 and 1 s: the run continues with the same bits", p.returncode == 0 and bits(out) == whole("dp"), text[-900:])


def refusals(h):
    """Impossible launches are refused before anything starts; a machine that is not reached ends
    the run after three tries."""
    for more, says in ((("--hosts", "a:0"), "a machine has 1 to 256 ranks"), (("--hosts", "a:2,a:1"), "a and a are the same machine; a:3"), (("--hosts", "a,,b"), "a comma without a machine"),
                       (("--hosts", "a;b"), "not the name or the IPv4 address of a machine"), (("--hosts", "h0:2", "--ranks", "2"), "--ranks 2 beside --hosts h0:2"),
                       (("--hosts", "h0:2", "--nodes", "2"), "--nodes 2 with --hosts of 1 machines, 0 of them spare: each machine is a node, so it is 1"),
                       (("--hosts", "h0:2", "--keep"), "--keep needs --retries"),
                       (("--hosts", "h0:2,a:2", "--address", "10.77.0.1", "--spares", "2", "--retries", "1"), "--spares 2 of the 2 machines of --hosts: none is left for the ranks"),
                       (("--hosts", "h0:2,a:2", "--address", "10.77.0.1", "--shrink"), "--shrink needs --retries"),
                       (("--hosts", "h0:2,a:1", "--address", "10.77.0.1", "--shrink", "--retries", "1"), "h0 has 2 ranks and a 1; --nodes, --spares and --shrink need as many on each"), (("--hosts", "no.such.machine.invalid"), "has no IPv4 address here"),
                       (("--login", "ssh"), "--login ssh has no effect without --hosts")):
        done = subprocess.run(h.words(0, [lateen, "launch", *more, "train", "--steps", "1"]), capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=60)
        tap.check(f"{' '.join(more)} is refused", done.returncode in (1, 2) and says in done.stderr, f"{done.returncode} {done.stderr[-400:]}")
    p = start(h, "h0:1,10.77.0.9:1", {"out": work.name + "/unreached"}, ("--retries", "9"))
    text = p.communicate(timeout=60)[0]
    tap.check("a machine that cannot be reached ends the run after three tries",
              p.returncode == 76 and "the connection to 10.77.0.9 has ended (status 255" in text and "3 attempts in a row ended with status 255" in text, f"{p.returncode} {text[-900:]}")


def stranger(h):
    """A client without the token gets no answer from the store, and disturbs nothing."""
    out = work.name + "/stranger"
    p = start(h, both(h), {"out": out})
    trains(out, p, 5)
    rank = next(iter(ranks_on(h, 0).values()))
    host, port = variable_of(rank, "LATEEN_STORE").split(":")
    code = f"import socket; s = socket.create_connection(('{host}', {port}), 5); s.sendall(b'\\x20\\0\\0\\0' + b'\\1' + bytes(31)); s.settimeout(8); print(s.recv(64)[:5].hex())"
    said = subprocess.run(h.words(1, [sys.executable, "-c", code]), capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=30)
    text = p.communicate(timeout=120)[0]
    tap.check("a stranger is refused by the store, and the run has its bits", said.stdout.strip()[8:] in ("", "02") and p.returncode == 0 and bits(out) == whole("dp"), f"{said} {text[-600:]}")
    tap.check("the store listens at one address, and not at all of them", host == "10.77.0.1", host)


def killed(h):
    fault("a killed rank", lambda h, r: os.kill(r[3], signal.SIGKILL), r"rank 3 on 10.77.0.2 was ended by signal 9", "killed", h)


def crash(h):
    fault("a crash", lambda h, r: os.kill(r[2], signal.SIGSEGV), r"rank 2 on 10.77.0.2 was ended by signal 11", "crash", h, "tp")


def stopped(h):
    fault("a stopped rank", lambda h, r: os.kill(r[3], signal.SIGSTOP), r"rank 3 on 10.77.0.2 has stopped answering", "silent", h)


def power(h):
    """All processes of the other machine end at once; it is there again when the run is started
    again."""
    fault("a machine that loses its power", lambda h, r: (h.kill(1), h.link(1, True)), r"rank [23]: the connection to 10.77.0.2 has ended", "silent", h)


for case in (runs, killed, keeps, apart) if quick else (runs, killed, crash, stopped, power, keeps, keeps_none, stop_asked, launcher_dies, cable, apart, flap, refusals, stranger):
    with hosts.Hosts(3 if case == apart else 2) as h:
        tap.case(lambda: case(h))
work.cleanup()
sys.exit(tap.end())
