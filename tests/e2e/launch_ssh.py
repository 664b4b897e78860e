"""`lateen launch --hosts` by ssh: two machines of network namespaces (hosts.py), each with an sshd, keys and a port of its own (openssh-server). A run from a folder whose name has spaces, with an environment that a shell would interpret, has the bits of one on one machine; what goes wrong with a login is said at once, and no login waits for a person. TAP on stdout.

usage: launch_ssh.py LATEEN [quick]      quick: a run, a refused key, a password that nobody gives, and a lost machine with a spare one"""
import glob
import os
import pty
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

import hosts
from launched import TRAIN, alive, bits, events, losses, undisturbed, variable_of, wait_for, words_of
from tap import Tap

lateen = os.path.abspath(sys.argv[1])
quick = sys.argv[2:] == ["quick"]
tap = Tap(detail_chars=3000)
SSHD = shutil.which("sshd") or "/usr/sbin/sshd"
why = hosts.why_not() or (None if os.path.exists(SSHD) and shutil.which("ssh") else "no openssh-server (packages-test.txt)")
if why:
    tap.skip("launch by ssh", why)
    sys.exit(tap.end())
# With spaces, and so are the names of keys, of the folder and of the runs.
work = tempfile.TemporaryDirectory(prefix="lateen ssh ")
at = work.name
ARGS = {"steps": 40, "checkpoint.every": 10, "threads": 1}
truth = {}
ODD = {"ODD": "two  words, 'a quote', $HOME, `id`\nand \u00fcnic\u00f6de", "OMP_NUM_THREADS": "1"}


def write(name, text, mode=0o600):
    with open(f"{at}/{name}", "w") as f:
        f.write(text)
    os.chmod(f"{at}/{name}", mode)
    return f"{at}/{name}"


def start_sshd(h, k):
    """Returns when it listens: it writes its PidFile after that, but goes into the background before."""
    if os.path.exists(f"{at}/pid{k}"):
        os.unlink(f"{at}/pid{k}")
    subprocess.run(h.words(k, [SSHD, "-f", f"{at}/sshd{k}", "-E", f"{at}/log{k}"]), check=True, stdin=subprocess.DEVNULL)
    wait_for(lambda: os.path.exists(f"{at}/pid{k}"))


def serve(h):
    """An sshd on each machine; and the configuration of ssh: its own keys, and nothing of this
    user's."""
    for key in ("host", "user", "stranger"):
        if not os.path.exists(f"{at}/{key}"):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", f"{at}/{key}"], check=True, stdin=subprocess.DEVNULL)
    os.makedirs("/run/sshd", exist_ok=True)
    shutil.copy(f"{at}/user.pub", f"{at}/allowed")
    if not os.path.exists(f"{at}/tests"):
        os.symlink(os.path.abspath("tests"), f"{at}/tests")
    for k in range(h.n):
        write(f"sshd{k}", f'Port 2222\nListenAddress {h.address(k)}\nHostKey "{at}/host"\nPidFile "{at}/pid{k}"\nAuthorizedKeysFile "{at}/allowed"\nStrictModes no\nUsePAM no\n'
                          "PermitRootLogin yes\nPasswordAuthentication yes\nKbdInteractiveAuthentication no\n")
        start_sshd(h, k)
    write("known", "".join(f"[{h.address(k)}]:2222 {open(f'{at}/host.pub').read()}" for k in range(h.n)))
    write("empty", "")


def login(key="user", known="known", batch=True):
    write(f"config-{key}-{known}", f'Host *\n  Port 2222\n  User root\n  IdentityFile "{at}/{key}"\n  IdentitiesOnly yes\n  IdentityAgent none\n  UserKnownHostsFile "{at}/{known}"\n'
                                   "  GlobalKnownHostsFile /dev/null\n")
    return f"ssh -F '{at}/config-{key}-{known}' -o ConnectTimeout=5" + (" -o BatchMode=yes" if batch else "")


def words(h, out, by, where=None, more=()):
    all = [lateen, "launch", "--hosts", f"h0:1,{h.address(1)}:1" if where is None else where, "--login", by, "--beat", "0.2", "--silent", "5", "--grace", "5", *more, "train"]
    return h.words(0, all + [w for n, v in {**TRAIN, **ARGS, "out": out}.items() for w in (f"--{n}", str(v))])


def start(h, out, by, where=None, more=()):
    return subprocess.Popen(words(h, out, by, where, more), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, text=True, cwd=at, env={**os.environ, **ODD})


def ranks_on(h, k):
    return {int(r): p for p in h.processes(k) if alive(p) and (r := variable_of(p, "LATEEN_RANK"))}


def whole():
    steps = ARGS["steps"]
    if steps not in truth:
        truth[steps] = undisturbed(2, {**ARGS, "out": f"{at}/whole-{steps}"})
    return truth[steps]


def runs(h):
    out, seen = f"{at}/a run", []
    p = start(h, out, login())
    wait_for(lambda: p.poll() is not None or seen or seen.extend(variable_of(q, "ODD") for q in ranks_on(h, 1).values()), 30)
    text = p.communicate(timeout=60)[0]
    tap.check("two machines that ssh reaches have the bits of one, from a folder with spaces", p.returncode == 0 and bits(out) == whole(), f"{p.returncode} {text[-900:]}")
    tap.check("the rank over there has the launcher's environment, as it is", seen and seen[0] == ODD["ODD"], seen)


def refused(h, name, by, says, where=None, within=30, more=()):
    began = time.time()
    p = start(h, f"{at}/never", by, where, more)
    text = p.communicate(timeout=90)[0]
    took = time.time() - began
    tap.check(f"{name}: reported, and all ranks end", p.returncode in (1, 2, 76) and all(re.search(s, text) for s in says) and took < within, f"{took:.1f} s {p.returncode} {text[-900:]}")
    return took


def key(h):
    """The others end at once, and not only after their grace period."""
    refused(h, "a key that is refused", login(key="stranger"), ("Permission denied", r"the connection to 10.77.0.2 has ended \(status 255 of ssh\)"), within=30, more=("--grace", "40"))


def password(h):
    """On a terminal, ssh asks for a password there; a background process that does so is stopped
    by the kernel."""
    began, text = time.time(), b""
    pid, fd = pty.fork()
    if pid == 0:
        os.chdir(at)
        w = words(h, f"{at}/never", login(key="stranger", batch=False))
        os.execvp(w[0], w)
    while time.time() < began + 30 and select.select([fd], [], [], 1)[0] is not None:
        try:
            text += os.read(fd, 4096) if select.select([fd], [], [], 0)[0] else b""
        except OSError:
            break
    ended = os.waitpid(pid, os.WNOHANG if time.time() >= began + 30 else 0)[0] == pid
    if not ended:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    os.close(fd)
    tap.check("a machine that wants a password, at a terminal: nobody is asked, and the message says so", ended and b"Permission denied" in text and b"(status 255 of ssh)" in text, text[-900:])


def names(h):
    refused(h, "a host key that is not known", login(known="empty"), ("Host key verification failed", r"the connection to 10.77.0.2 has ended"))
    refused(h, "a name that no server knows", login(), ("no.such.machine.invalid has no IPv4 address here", "--address names"), "h0:1,no.such.machine.invalid:1")
    refused(h, "a name that ssh does not know", login(), ("Could not resolve hostname", r"the connection to no.such.machine.invalid has ended"), "h0:1,no.such.machine.invalid:1",
            more=("--address", "10.77.0.1"))
    refused(h, "IPv6", login(), ("'::1' is not the name or the IPv4 address of a machine",), "h0:1,::1")
    refused(h, "one machine by two names", login(), ("h0 and localhost are the same machine; localhost:3",), "h0:1,localhost:2")
    refused(h, "no machine", login(), ("--hosts '' names no machine",), "")
    refused(h, "a quote without its end", "ssh -F 'x", ("a quote without its end",))


def build(h):
    """A file that is one byte longer is a different build."""
    shutil.copy(lateen, f"{at}/other")
    with open(f"{at}/other", "ab") as f:
        f.write(b"\n")
    by = write("by", f"#!/bin/sh\nhost=$1; shift 2; exec {login()} $host \"'{at}/other'\" \"$@\"\n", 0o755)
    refused(h, "another build over there", f"'{by}'", ("another build of version [0-9.]+ than the launcher's",))


def hangs(h):
    """A login that neither starts the rank nor ends, like one through a proxy that swallows it."""
    by = write("hang", "#!/bin/sh\nexec sleep 1000\n", 0o755)
    refused(h, "a login that hangs", f"'{by}'", ("hang runs, but 10.77.0.2 has not started the rank within 45 s",), within=75)


def fault(h, name, disturb, says):
    out = f"{at}/{name}"
    p = start(h, out, login(), None, ("--retries", "3"))
    wait_for(lambda: p.poll() is not None or len(losses(out) if os.path.exists(out + "/metrics.jsonl") else ()) >= 12, 60)
    disturb(ranks_on(h, 1))
    text = p.communicate(timeout=120)[0]
    tap.check(f"{name}: named, and the run continues with the same bits", p.returncode == 0 and bits(out) == whole() and re.search(says, text) and events(out, "fault"), f"{p.returncode} {text[:1500]} {bits(out) == whole()}")


def cut(ranks):
    """The sshd of the connection is killed, as if a firewall forgot the connection."""
    pid = ranks[1]
    while b"sshd" not in open(f"/proc/{pid}/cmdline", "rb").read():
        pid = int(re.search(r"PPid:\s+(\d+)", open(f"/proc/{pid}/status").read()).group(1))
    os.kill(pid, signal.SIGKILL)


def faults(h):
    ARGS["steps"] = 300
    fault(h, "a rank that is killed", lambda r: os.kill(r[1], signal.SIGKILL), r"rank 1 on 10.77.0.2 was ended by signal 9")
    fault(h, "a connection that is cut", cut, r"the connection to 10.77.0.2 has ended")


def copied(h, n):
    """Has the newest data of the ranks been copied to every other one of n hosts?"""
    def newest(folder):
        return sorted(os.path.basename(s) for s in glob.glob(folder + "/step-?????????"))[-1:]
    own = [(k, f) for k in range(n) for f in glob.glob(f"{h.memory(k)}/lateen-run-*/node-*/own/*")]
    return own and all(newest(f) in [newest(g) for g in glob.glob(f"{h.memory(i)}/lateen-run-*/node-*/kept/{os.path.basename(f)}")] for k, f in own for i in range(n) if i != k)


LONG = {"steps": 150, "checkpoint.every": 100000, "batch.size": 24, "deterministic": "mesh-invariant"}


def tell(pids, number):
    """Send a signal to those that have not ended."""
    for pid in filter(alive, pids):
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            pass


def slow(h, p, out):
    """Ranks compute for a fifth of the time until a lost machine is back, so that a run does not end
    before."""
    until = time.time() + 120
    while p.poll() is None and time.time() < until and not any(e["state"] == "back" for e in events(out, "node")):
        pids = [q for k in range(h.n) for q in ranks_on(h, k).values()]
        for number, pause_s in ((signal.SIGSTOP, 0.4), (signal.SIGCONT, 0.1)):
            tell(pids, number)
            time.sleep(pause_s)


def lose(h, name, args, more, each=1, lost=1, wants=(), machines=3, back_s=0):
    """A machine of h.n with `each` ranks loses its power; returns the end of the run, and what is
    wrong. Meanwhile there is no checkpoint on disk. back_s: it is there again after this time."""
    out, n = f"{at}/{name}", machines
    where = ",".join(f"{'h0' if k == 0 else h.address(k)}:{each}" for k in range(n))
    args = {**LONG, **args}
    words = [lateen, "launch", "--hosts", where, "--login", login(), "--beat", "0.2", "--silent", "5", "--grace", "5", "--retries", "9", "--snapshot", "5", *more, "train"]
    words += [w for k, v in {**TRAIN, **ARGS, **args, "out": out}.items() for w in (f"--{k}", str(v))]
    p = subprocess.Popen(h.words(0, words), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, text=True, cwd=at)
    wait_for(lambda: p.poll() is not None or len(losses(out) if os.path.exists(out + "/metrics.jsonl") else ()) >= 20, 60)
    pids = [q for k in range(h.n) for q in ranks_on(h, k).values()]
    # Ranks that wait, so that the agents of a busy machine catch up, but not so long that they
    # count as silent.
    for _ in range(10):
        tell(pids, signal.SIGSTOP)
        until = time.time() + 3
        while not (done := copied(h, n)) and time.time() < until:
            time.sleep(0.02)
        if done:
            h.kill(lost)
            if back_s:
                threading.Timer(back_s, again, (h,)).start()
            for m in glob.glob(h.memory(lost) + "/*"):
                shutil.rmtree(m)
        tell(pids, signal.SIGCONT)
        if done:
            break
    if back_s:
        slow(h, p, out)
    text = p.communicate(timeout=200)[0]
    key = (each, tuple(sorted(args.items())))
    ranks = each * (n - (1 if "--spares" in more else 0))
    if key not in truth:
        truth[key] = undisturbed(ranks, {**ARGS, **args, "out": f"{at}/whole-{len(truth)}"})
    states = [(e["node"], e["state"], e["spare"]) for e in events(out, "node")]
    wrong = [] if p.returncode == 0 else [f"status {p.returncode}"]
    wrong += [f"{w} is not among {states}" for w in wants if w not in states]
    wrong += [] if p.returncode == 0 and bits(out) == truth[key] else ["other bits"]
    back = events(out, "recovered")
    wrong += [] if back and back[0]["steps_lost"] <= 11 else [f"not from memory: {back}"]
    until = time.time() + 10  # The agents of other machines remove it when they notice the end.
    while (left := [m for k in range(n) if k != lost for m in glob.glob(h.memory(k) + "/lateen-run-*")]) and time.time() < until:
        time.sleep(0.1)
    wrong += [f"left in memory: {left}"] if left else []
    return out, f"{wrong} {text[:2500]}" if wrong else "", text


def sizes(out):
    return [e["ranks"] for e in events(out, "start")]


def spare(h):
    out, wrong, text = lose(h, "spare", {}, ("--spares", "1", "--back", "0"), wants=[(1, "lost", -1), (1, "moved", 2)])
    tap.check("a machine loses its power: its ranks move to the spare one, from the memory of another, with the bits of a run without a fault",
              not wrong and sizes(out) == [2, 2] and "node 1 (10.77.0.2) is lost" in text, wrong or sizes(out))


def spare_parts(h):
    for zero, each in ((2, 2), (3, 1)):
        again(h)
        out, wrong, text = lose(h, f"zero {zero}", {"mesh.zero": zero, "deterministic": "run"}, ("--spares", "1", "--back", "0"), each, wants=[(1, "moved", 2)])
        tap.check(f"the same with mesh.zero {zero}, whose snapshots have parts of every rank", not wrong, wrong)


def shrink(h):
    out, wrong, text = lose(h, "shrink", {}, ("--shrink", "--back", "0"), 2, wants=[(1, "lost", -1)], machines=2)
    tap.check("without a spare the run continues with fewer ranks, with the same bits", not wrong and sizes(out) == [4, 2] and "continues with 2 of 4 ranks" in text, wrong or sizes(out))


def grow(h):
    out, wrong, text = lose(h, "grow", {"steps": 4000}, ("--shrink", "--back", "1"), wants=[(1, "lost", -1), (1, "back", -1)], machines=2, back_s=14)
    tap.check("the machine is back: the run grows, with the same bits", not wrong and sizes(out) == [2, 1, 2] and [e["kind"] for e in events(out, "fault")] == ["silent", "grow"],
              f"{wrong} {sizes(out)}")


def again(h):
    """Each machine is there again, with its sshd and without the contents of its memory."""
    for k in range(h.n):
        h.link(k, True)
        shutil.rmtree(h.memory(k), ignore_errors=True)
        if not any("sshd" in word for p in h.processes(k) for word in words_of(p)):
            start_sshd(h, k)


def keeps(h):
    """--keep: rank 1 is killed; ranks 0 and 2, of two machines, keep their processes and load the snapshot in memory, since no checkpoint is on disk."""
    out = at + "/keeps"
    words = [lateen, "launch", "--hosts", ",".join(["h0:1"] + [f"{h.address(k)}:1" for k in (1, 2)]), "--nodes", "3", "--login", login(), "--beat", "0.2", "--silent", "5", "--grace", "5",
             "--retries", "9", "--keep", "--snapshot", "5", "train"]
    words += [w for k, v in {**TRAIN, **ARGS, **LONG, "steps": 1000, "deterministic": "run", "out": out}.items() for w in (f"--{k}", str(v))]
    p = subprocess.Popen(h.words(0, words), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, text=True, cwd=at)
    wait_for(lambda: p.poll() is not None or len(losses(out) if os.path.exists(out + "/metrics.jsonl") else ()) >= 20, 60)
    pids = [ranks_on(h, k)[k] for k in range(3)]
    os.kill(pids[1], signal.SIGKILL)
    wait_for(lambda: p.poll() is not None or events(out, "recovered"), 60)
    now = [ranks_on(h, k).get(k) for k in range(3)]
    text = p.communicate(timeout=200)[0]
    back = events(out, "recovered")
    tap.check("--keep: the ranks of two machines keep their processes, and load a snapshot from memory",
              now[0] == pids[0] and now[2] == pids[2] and now[1] != pids[1] and len(back) == 1 and back[0]["steps_lost"] <= 11, f"{pids} {now} {back} {text[-1500:]}")
    tap.check("--keep: the bits of a run without a fault", p.returncode == 0 and bits(out) == undisturbed(3, {**ARGS, **LONG, "steps": 1000, "deterministic": "run", "out": at + "/whole-keeps"}), f"{p.returncode} {text[-1500:]}")


def spare_keeps(h):
    out, wrong, text = lose(h, "spare keeps", {}, ("--spares", "1", "--back", "0", "--keep"), 2, wants=[(1, "lost", -1), (1, "moved", 2)])
    tap.check("--keep: a machine loses its power, and its ranks move to the spare one", not wrong and sizes(out) == [4, 4], wrong or sizes(out))


def survive(cases):
    with hosts.Hosts(3, own_memory=True) as h:
        serve(h)
        for case in cases:
            again(h)
            tap.case(lambda: case(h))


with hosts.Hosts(2) as h:
    serve(h)
    for case in (runs, key, password) if quick else (runs, key, password, names, build, hangs, faults):
        tap.case(lambda: case(h))
survive((spare,) if quick else (spare, spare_parts, shrink, grow, keeps, spare_keeps))
work.cleanup()
sys.exit(tap.end())
