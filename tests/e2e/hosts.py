"""Machines in a network of their own, for scripts in which one of them or its link fails: network namespaces with an address and a host name each, connected by a bridge. They share the disk and the
processors. Needs root. Standard library only.

    if not (why := hosts.why_not()): with hosts.Hosts(3) as h: Popen(h.words(0, ["lateen", ...])); h.link(1, False); h.kill(1)

Host k (from 0) is named h0, h1, ... and has the address 10.77.0.(k + 1). A slow link needs the kernel's netem: h.slow(1, "20ms") is False without it."""
import os
import shutil
import signal
import subprocess
import sys
import time

from launched import alive

HOLD = 'ip link set lo up && echo ready && exec sleep infinity'


def why_not():
    """Why such hosts are impossible here; None: they are possible."""
    lacking = [name for name in ("ip", "unshare", "nsenter") if not shutil.which(name)]
    if lacking:
        return f"no {lacking[0]}"
    try:
        with Hosts(2):
            return None
    except (OSError, RuntimeError) as e:
        return f"no network namespaces: {e}"


def enter_own_network():
    """The script continues in a network of its own, as the machine to which the others are
    connected, with the address 10.77.0.254: Hosts(n, os.getpid()). It returns only in that
    network."""
    if os.environ.get("LATEEN_OWN_NETWORK") != "1":
        words = ["unshare", "--net", "sh", "-c", 'ip link set lo up && exec "$@"', "sh", sys.executable, *sys.argv]
        os.execvpe(words[0], words, {**os.environ, "LATEEN_OWN_NETWORK": "1"})


class Hosts:
    def __init__(self, n, switch=None, own_memory=False):
        """switch: a process whose network has the bridge; None: no process. own_memory: each host
        also has its own /dev/shm."""
        self.n, self.holders = n, []
        self.spaces_of = ["--net", "--uts", *(["--mount"] if own_memory else [])]
        try:
            self.switch = switch or self._space("--net")
            self._in(self.switch, "ip", "link", "add", "br0", "type", "bridge")
            self._in(self.switch, "ip", "address", "add", "10.77.0.254/24", "dev", "br0")
            self._in(self.switch, "ip", "link", "set", "br0", "up")
            self.spaces = [self._space(*self.spaces_of) for _ in range(n)]
            for k, pid in enumerate(self.spaces):
                if own_memory:
                    subprocess.run(self.words(k, ["mount", "-t", "tmpfs", "shm", "/dev/shm"]), check=True, stdin=subprocess.DEVNULL)
                self._in(pid, "hostname", f"h{k}")
                self._in(self.switch, "ip", "link", "add", f"v{k}", "type", "veth", "peer", "name", "eth0", "netns", str(pid))
                self._in(self.switch, "ip", "link", "set", f"v{k}", "master", "br0", "up")
                self._in(pid, "ip", "address", "add", f"{self.address(k)}/24", "dev", "eth0")
                self._in(pid, "ip", "link", "set", "eth0", "up")
        except BaseException:
            self.close()
            raise

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def _space(self, *kinds):
        """The process that keeps the namespaces alive."""
        p = subprocess.Popen(["unshare", *kinds, "sh", "-c", HOLD], stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True)
        self.holders.append(p)
        if p.stdout.readline() != "ready\n":
            raise RuntimeError(p.stderr.read().strip()[:200])
        return p.pid

    def _in(self, pid, *words):
        done = subprocess.run(["nsenter", "--net", "--uts", "--target", str(pid), *words], capture_output=True, text=True, stdin=subprocess.DEVNULL)
        if done.returncode:
            raise RuntimeError(f"{' '.join(words[:5])}: {done.stderr.strip()[:200]}")

    @staticmethod
    def address(k):
        return f"10.77.0.{k + 1}"

    def words(self, k, words):
        """The command that runs words on host k."""
        enter = ["nsenter", *self.spaces_of, "--target", str(self.spaces[k])]
        if "--mount" not in self.spaces_of:
            return [*enter, *words]
        # With another mount namespace it would be /.
        return ["sh", "-c", f"HERE=$(pwd) exec {' '.join(enter)} sh -c 'cd \"$HERE\" && unset HERE && exec \"$@\"' sh \"$@\"", "sh", *words]

    def memory(self, k):
        """/dev/shm of host k, as this process sees it."""
        return os.path.join("/proc", str(self.spaces[k]), "root", "dev/shm")

    def link(self, k, up):
        """Pull or plug its cable, at the switch: the host itself only notices that packets are
        lost."""
        self._in(self.switch, "ip", "link", "set", f"v{k}", *(("master", "br0") if up else ("nomaster",)))

    def slow(self, k, delay):
        """Delay each packet to this host by this much; False: the kernel has no netem."""
        try:
            self._in(self.switch, "tc", "qdisc", "replace", "dev", f"v{k}", "root", "netem", "delay", delay)
            return True
        except RuntimeError:
            return False

    def processes(self, k):
        """Processes of host k, except the one that keeps it alive."""
        own, found = os.stat(f"/proc/{self.spaces[k]}/ns/net").st_ino, []
        for name in os.listdir("/proc"):
            try:
                if name.isdigit() and int(name) != self.spaces[k] and os.stat(f"/proc/{name}/ns/net").st_ino == own:
                    found.append(int(name))
            except OSError:
                pass
        return found

    def kill(self, k):
        """The host loses its power."""
        self.link(k, False)
        while pids := [p for p in self.processes(k) if alive(p)]:
            for pid in pids:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
            time.sleep(0.02)

    def close(self):
        for k in range(len(getattr(self, "spaces", []))):
            for pid in self.processes(k):
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
        for p in self.holders:
            p.kill()
            p.wait()
