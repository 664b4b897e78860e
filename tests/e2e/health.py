#!/usr/bin/env python3
"""`lateen health` on recorded machines (recorded_machine.py): a healthy one, and the same with one fault at a time. health.py LATEEN [long]: long
tests the memory of this machine, too."""
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

import recorded_machine
from recorded_machine import CPU, EDAC, FILES, IB, NET, RECORDED, gpu, log, xid
from tap import Tap

lateen = os.path.abspath(sys.argv[1])
scratch = tempfile.mkdtemp()
tap = Tap()
check = tap.check

MOUNTS = ("--mounts", "/,/scratch")
count = 0


def machine(files=(), recorded=None, without=()):
    global count
    count += 1
    return recorded_machine.write(f"{scratch}/m{count}", files, recorded, without)


def run(*words, env=None, timeout=60):
    return subprocess.run([lateen, "health", *words], capture_output=True, text=True, timeout=timeout, env={**os.environ, **(env or {})})


def report(folder, *words, mounts=MOUNTS):
    r = run("--machine", folder, "--json", *mounts, *words)
    return r.returncode, json.loads(r.stdout) if r.stdout else r.stderr


def bad(told):
    return {(c["check"], c["object"], c["result"]) for c in told["checks"] if c["result"] != "ok"}


def with_(**changed):
    return {**RECORDED, **changed}


status, told = report(machine())
check("a sound machine is ok, exit status 0, and everything was read", status == 0 and told["result"] == "ok" and not bad(told) and told["skipped"] == [], told)
values = {(c["check"], c["object"]): c["value"] for c in told["checks"]}
check("values: shares, speeds, loads", values["mem.available_share", ""] == 0.8 and values["net.gbps", "eth0"] == 100 and values["ib.gbps", "mlx5_0/1"] == 400 and
      values["fs.free_share", "/"] == 0.5 and values["fs.inodes_free_share", "/scratch"] == 0.9 and values["load.per_core", ""] == 0.25 and
      values["gpu.clock_share", "gpu0"] == 1 and values["gpu.pcie_width_share", "gpu1"] == 1, values)
check("interfaces without a device, and those switched off, are not judged", not any(o in ("lo", "eth1") for _, o in values))

# Hours since boot; counters are judged by them if there is no history.
G, H = "gpu1", 200000 / 3600
EXIT = {"ok": 0, "warn": 0, "drain": 3, "evict": 4}
# Faults: files, recorded readings; the expected finding, and its object. One row for each level
# of the table that a reading can reach.
broken = [
    ("gpu.missing", "", "evict", {}, with_(gpus=RECORDED["gpus"][:1])),
    ("gpu.missing", "", "evict", {}, {**{k: v for k, v in RECORDED.items() if k != "gpus"}, "gpus_error": "driver not loaded"}),
    *[(f"gpu.xid_{n}", G, result, xid(n), None) for n, result in ((48, "drain"), (63, "warn"), (64, "evict"), (74, "drain"), (79, "evict"), (92, "warn"),
                                                                (94, "drain"), (95, "evict"), (119, "drain"), (120, "drain"), (140, "drain"))],
    ("gpu.xid_79", "gpu@0000:99:00", "evict", xid(79, "0000:99:00"), None),
    ("gpu.ecc_uncorrected", G, "drain", {}, gpu(ecc_uncorrected=1)),
    ("gpu.ecc_corrected_per_h", G, "warn", {}, gpu(ecc_corrected=101 * H)),
    ("gpu.rows_pending", G, "drain", {}, gpu(rows_pending=1)),
    ("gpu.rows_failed", G, "evict", {}, gpu(rows_failed=1)),
    ("gpu.rows_remapped", G, "warn", {}, gpu(rows_uncorrected=8)),
    ("gpu.temperature_c", G, "warn", {}, gpu(temperature_c=87)),
    ("gpu.temperature_c", G, "drain", {}, gpu(temperature_c=93)),
    ("gpu.memory_temperature_c", G, "warn", {}, gpu(memory_temperature_c=95)),
    ("gpu.memory_temperature_c", G, "drain", {}, gpu(memory_temperature_c=105)),
    ("gpu.slowed_by_heat", G, "warn", {}, gpu(throttle_reasons=0x20)),
    ("gpu.slowed_by_heat", G, "warn", {}, gpu(throttle_reasons=0x40)),
    ("gpu.slowed_by_hardware", G, "drain", {}, gpu(throttle_reasons=0x8)),
    ("gpu.power_brake", G, "drain", {}, gpu(throttle_reasons=0x80)),
    ("gpu.clock_share", G, "warn", {}, gpu(sm_clock_mhz=980)),
    ("gpu.clock_share", G, "drain", {}, gpu(sm_clock_mhz=500)),
    ("gpu.pcie_width_share", G, "warn", {}, gpu(pcie_width=8)),
    ("gpu.pcie_width_share", G, "drain", {}, gpu(pcie_width=4)),
    ("gpu.pcie_replays_per_h", G, "warn", {}, gpu(pcie_replays=61 * H)),
    ("gpu.pcie_replays_per_h", G, "drain", {}, gpu(pcie_replays=481 * H)),
    ("gpu.nvlinks_down", G, "drain", {}, gpu(nvlinks_down=1)),
    *[("gpu.nvlink_errors_per_h", G, "warn", {}, gpu(**{k: 11 * H})) for k in ("nvlink_replays", "nvlink_recoveries", "nvlink_crc_flits", "nvlink_crc_data")],
    ("gpu.nvlink_errors_per_h", G, "drain", {}, gpu(nvlink_replays=1001 * H)),
    ("net.down", "eth0", "drain", {f"{NET}/operstate": "down\n"}, None),
    ("net.errors_per_h", "eth0", "warn", {f"{NET}/statistics/rx_errors": "600\n"}, None),
    ("net.errors_per_h", "eth0", "drain", {f"{NET}/statistics/tx_errors": "60000\n"}, None),
    ("net.flaps_per_h", "eth0", "warn", {f"{NET}/carrier_down_count": "120\n"}, None),
    ("ib.down", "mlx5_0/1", "drain", {f"{IB}/state": "1: DOWN\n"}, None),
    ("ib.errors_per_h", "mlx5_0/1", "warn", {f"{IB}/counters/symbol_error": "600\n"}, None),
    ("ib.flaps_per_h", "mlx5_0/1", "warn", {f"{IB}/counters/link_downed": "60\n"}, None),
    ("ib.flaps_per_h", "mlx5_0/1", "drain", {f"{IB}/counters/link_error_recovery": "600\n"}, None),
    ("fs.missing", "/scratch", "drain", {"proc/mounts": "/dev/sda1 / ext4 rw 0 0\n"}, None),
    ("fs.read_only", "/scratch", "drain", {"proc/mounts": "/dev/sda1 / ext4 rw 0 0\nfs /scratch nfs ro,hard 0 0\n"}, None),
    ("fs.read_only", "/scratch", "drain", {"proc/mounts": "/dev/sda1 / ext4 rw 0 0\nfs /scratch nfs ro 0 0\n"}, None),
    ("fs.stalled", "/scratch", "drain", {}, with_(mounts={**RECORDED["mounts"], "/scratch": {"stalled": True}})),
    ("fs.free_share", "/", "warn", {}, with_(mounts={**RECORDED["mounts"], "/": {**RECORDED["mounts"]["/"], "free_bytes": 9e10}})),
    ("fs.free_share", "/", "drain", {}, with_(mounts={**RECORDED["mounts"], "/": {**RECORDED["mounts"]["/"], "free_bytes": 1e9}})),
    ("fs.inodes_free_share", "/", "drain", {}, with_(mounts={**RECORDED["mounts"], "/": {**RECORDED["mounts"]["/"], "free_files": 1e6}})),
    ("disk.errors", "nvme0n1", "warn", log("I/O error, dev nvme0n1, sector 1234 op 0x0:(READ)"), None),
    ("mem.available_share", "", "warn", {"proc/meminfo": "MemTotal: 1000 kB\nMemAvailable: 40 kB\n"}, None),
    ("mem.available_share", "", "drain", {"proc/meminfo": "MemTotal: 1000 kB\nMemAvailable: 9 kB\n"}, None),
    ("mem.uncorrected", "", "drain", {f"{EDAC}/ue_count": "1\n"}, None),
    ("mem.corrected_per_h", "", "warn", {f"{EDAC}/ce_count": "600\n"}, None),
    ("mem.oom_kills_per_h", "", "warn", {"proc/vmstat": "oom_kill 60\n"}, None),
    ("cpu.offline", "", "warn", {f"{CPU}/online": "0-3,5-7\n"}, None),
    ("cpu.machine_checks", "", "warn", log("mce: [Hardware Error]: Machine check events logged"), None),
    ("cpu.throttles_per_h", "", "warn", {f"{CPU}/cpu0/thermal_throttle/package_throttle_count": "60000\n"}, None),
    ("time.unsynchronised", "", "warn", {}, with_(time={"synchronised": False, "error_s": 16})),
    ("time.error_s", "", "warn", {}, with_(time={"synchronised": True, "error_s": 0.6})),
    ("time.error_s", "", "drain", {}, with_(time={"synchronised": True, "error_s": 11})),
    ("load.per_core", "", "warn", {"proc/loadavg": "1 40 3 1/2 3\n"}, None),
    ("load.per_core", "", "drain", {"proc/loadavg": "1 170 3 1/2 3\n"}, None),
    ("load.blocked", "", "warn", {"proc/stat": "procs_blocked 51\n"}, None)]
for name, object_, result, files, recorded in broken:
    status, told = report(machine(files, recorded))
    check(f"{name} {object_}: {result}, exit status {EXIT[result]}, and nothing else", status == EXIT[result] and bad(told) == {(name, object_, result)} and
          told["result"] == result, (status, bad(told)))

# What must not be reported.
for name, files, recorded in [
        ("an idle GPU may have low clocks", {}, gpu(sm_clock_mhz=345, utilisation=10)),
        ("an XID of before the window", xid(79, at="1000000000"), None),
        ("an XID of a program", xid(31), None),
        ("a GPU that tells nothing but its name", {}, with_(gpus=[RECORDED["gpus"][0], {"name": "old"}])),
        ("7 remapped rows", {}, gpu(rows_uncorrected=7)), ("86 C", {}, gpu(temperature_c=86)),
        ("the power cap", {}, gpu(throttle_reasons=0x4))]:
    status, told = report(machine(files, recorded))
    check(f"ok: {name}", status == 0 and not bad(told), bad(told))
status, told = report(machine(without=("proc/mounts", "dev/kmsg")))
check("what cannot be read is reported, and is neither ok nor bad", status == 0 and {s["what"] for s in told["skipped"]} == {"fs", "kernel log"} and
      not any(c["check"].startswith(("fs.", "disk.")) for c in told["checks"]), told["skipped"])
status, told = report(machine(recorded={k: v for k, v in RECORDED.items() if k != "gpus"}))
check("a missing driver: its GPUs are not judged, and the number on the bus is reported", status == 0 and "PCI bus: 2" in told["skipped"][0]["why"], told)
status, told = report(machine({"proc/mounts": "/dev/sda1 / ext4 rw 0 0\n"}), mounts=())
check("without --mounts, only what is mounted is judged", status == 0 and not bad(told) and not any(c["check"] == "fs.missing" for c in told["checks"]), bad(told))
blank = {"proc/mounts": "/dev/sda1 / ext4 rw 0 0\nfs /scratch/my\\040data\\134x nfs rw,hard 0 0\n"}
status, told = report(machine(blank, with_(mounts={**RECORDED["mounts"], "/scratch/my data\\x": RECORDED["mounts"]["/scratch"]})), mounts=("--mounts", "/,/scratch/my data\\x//"))
check("a mount point with blanks, and with slashes at its end", status == 0 and not bad(told) and any(c["object"] == "/scratch/my data\\x" for c in told["checks"]), told)

# Levels.
levels = f"{scratch}/levels.yaml"


def with_levels(text, folder=None):
    with open(levels, "w") as f:
        f.write(text)
    return run("--machine", folder or machine(), "--levels", levels, "--json", *MOUNTS)


r = with_levels("gpu:\n  temperature_c: [40, 45, 50]\nib.gbps: [off, 500, off]\n")
check("levels of a file replace the table's", r.returncode == 4 and {("gpu.temperature_c", "gpu0", "evict"), ("ib.gbps", "mlx5_0/1", "drain")} <= bad(json.loads(r.stdout)))
for text, said in (("gpu.temprature_c: [1, 2, 3]\n", "gpu.temperature_c"), ("gpu.temperature_c: [90, 80, off]\n", "milder"), ("ib.gbps: [1, 2, off]\n", "milder"),
                   ("ib.gbps: [1, off]\n", "2 levels"), ("ib.gbps: [1, high, off]\n", "high"), ("ib.gbps: [nan, 1, off]\n", "nan")):
    r = with_levels(text)
    check(f"refused, with the reason: {text.strip()}", r.returncode == 2 and said in r.stderr and levels in r.stderr and not r.stdout, r.stderr)
printed = run("--print-levels").stdout
r = with_levels(printed)
check("--print-levels reads back as the same levels", r.returncode == 0 and run("--print-levels", "--levels", levels).stdout == printed, r.stderr)

# History.
history = f"{scratch}/node.jsonl"


def lines():
    with open(history) as f:
        return [json.loads(line) for line in f if line.startswith("{") and line.endswith("}\n")]


def checked(files=(), recorded=None):
    return report(machine(files, recorded), "--history", history, "--node", "n7")


def value(told, name, object_=""):
    return next(c["value"] for c in told["checks"] if c["check"] == name and c["object"] == object_)


status, told = checked({}, gpu(pcie_replays=1000))
check("first check: growth since the boot", abs(value(told, "gpu.pcie_replays_per_h", G) - 1000 / H) < 1e-3 and lines()[0]["node"] == "n7")
later = {"proc/uptime": "201800.00 1\n"}  # half an hour
status, told = checked(later, gpu(pcie_replays=1300))
check("second check: growth since the first", abs(value(told, "gpu.pcie_replays_per_h", G) - 600) < 1e-3 and status == 3, told["result"])
status, told = checked({"proc/uptime": "201810.00 1\n"}, gpu(pcie_replays=1301))
check("checks that follow at once: an error between them is a rate over 5 minutes", abs(value(told, "gpu.pcie_replays_per_h", G) - 12) < 1e-3)
status, told = checked({"proc/uptime": "3600.00 1\n", "proc/sys/kernel/random/boot_id": "boot-two\n", "dev/kmsg": "6,1,1,-;x\n"}, gpu(pcie_replays=30))
check("after a boot: growth since the boot", abs(value(told, "gpu.pcie_replays_per_h", G) - 30) < 1e-3)
status, told = checked({"proc/uptime": "7200.00 1\n", "proc/sys/kernel/random/boot_id": "boot-two\n", "dev/kmsg": "6,1,1,-;x\n"}, gpu(pcie_replays=10))
check("a counter that fell was reset: all of it is new", abs(value(told, "gpu.pcie_replays_per_h", G) - 10) < 1e-3)
check("the one unfit check of before counts", value(told, "lemon.outs") == 1 and value(told, "lemon.score") == 0)
os.remove(history)
for _ in range(2):
    status, told = checked({**later, **xid(63)})
check("an XID is counted once, however often it is seen", [x["xids"] for x in lines()] == [1, 0] and value(told, "lemon.xids") == 1)
for note in ("exclusion:alice",) * 3 + ("ticket",) * 2 + ("multi_node_failure",) * 2 + ("single_node_failure",) + ("single_node_job",) * 3 + ("out",):
    assert run("--history", history, "--note", note).returncode == 0
status, told = checked(later)
check("notes become signals, and signals a score", [value(told, "lemon." + s) for s in (
    "exclusions", "tickets", "outs", "multi_node_failures", "single_node_failures", "single_node_failure_share", "score")] == [3, 2, 1, 2, 1, 0.25, 4] and
    ("lemon.score", "", "drain") in bad(told), bad(told))


def moved(lines, days):
    return re.sub(r'"time":(\d+)', lambda m: f'"time":{int(m[1]) + days * 86400}', lines)


with open(history) as f:
    old = f.read()
with open(history, "w") as f:
    f.write(moved(old, 30))
status, told = checked(later)
check("nor does what was written under a clock that was ahead", value(told, "lemon.score") == 0 and value(told, "lemon.exclusions") == 0)
with open(history, "w") as f:
    f.write(moved(old, -30))
status, told = checked(later)
check("what is older than 28 days no longer counts", value(told, "lemon.score") == 0 and value(told, "lemon.exclusions") == 0)
with open(history, "a") as f:
    f.write(moved(old, -70) + '{"kind": "check", "ti')  # and a cut line
status, told = checked(later)
check("lines older than 56 days are dropped, a cut line harms nothing", len(lines()) == 2, [x["time"] for x in lines()])
check("the check that meets the cut line says so", any(
    s["what"] == "history" and s["why"].startswith("1 lines cannot be read") and s["why"].endswith(history) for s in told["skipped"]), told["skipped"])
checked(later)
check("and the next line begins a line", len(lines()) == 3)
r = run("--history", history, "--note", "tickets")
check("an unknown note is refused, and the nearest one is named", r.returncode == 2 and "'ticket'" in r.stderr, r.stderr)

with open(history) as f:
    good = f.read()
with open(history, "w") as f:
    f.write(good + "\x00\x01 not JSON\n" + '{"kind": "chek", "time": 1}\n{"kind": "note", "time": 1, "what": "tickets"}\n{"kind": "note", "what": "ticket"}\n\n')
status, told = checked(later)
check("lines that are not of a history are counted, and the first is named", [s["why"] for s in told["skipped"] if s["what"] == "history"] == [
    f"4 lines cannot be read and are dropped, the first is line {len(good.splitlines()) + 1}: {history}"], told["skipped"])
check("and do not count", value(told, "lemon.tickets") == 0)
check("they are dropped", all(x["kind"] in ("check", "note") for x in lines()) and len(lines()) == len(good.splitlines()) + 1)
with open(history, "a") as f:
    f.write("not JSON\n")
r = run("--history", history, "--note", "ticket")
check("--note warns of them", r.returncode == 0 and f"{history}: 1 lines cannot be read" in r.stderr, r.stderr)
foreign = f"{scratch}/notes.txt"
with open(foreign, "w") as f:
    f.write("a file of someone\nelse\n")
r = run("--history", foreign, "--note", "ticket")
with open(foreign) as f:
    check("a file that is no history is refused and left as it was", r.returncode == 1 and foreign in r.stderr and f.read() == "a file of someone\nelse\n", r.stderr)
with open(foreign, "w") as f:
    f.write('{"kind": "che')
check("a first line that was cut is no reason to refuse", run("--history", foreign, "--note", "ticket").returncode == 0)
for text, element in ((",,", ""), ("/,", ""), ("/,scratch", "scratch"), (",/", "")):
    r = run("--mounts", text)
    check(f"--mounts {text} is refused", r.returncode == 2 and f'element "{element}" is not an absolute path' in r.stderr, r.stderr)

# Slurm: a scontrol that keeps a node's state in a file and logs how it was called.
os.makedirs(f"{scratch}/bin")
with open(f"{scratch}/bin/scontrol", "w") as f:
    f.write("""#!/bin/sh
cd "$(dirname "$0")/.." || exit 1
if [ "$1" = show ]; then cat "node.$3" 2>/dev/null || exit 1; exit 0; fi
printf '%s|' "$@" >>asked; echo >>asked
case "$3" in State=RESUME) echo "   State=IDLE ThreadsPerCore=1" >node.n7 ;;
*) printf '   State=IDLE+%s ThreadsPerCore=1\\n   Reason=%s\\n' "${3#State=}" "${4#Reason=} [root@2026-11-28T00:00:00]" >node.n7 ;; esac
""")
os.chmod(f"{scratch}/bin/scontrol", 0o755)


def slurm(folder, state=None, node="n7"):
    if state is not None:
        with open(f"{scratch}/node.n7", "w") as f:
            f.write(state)
    open(f"{scratch}/asked", "w").close()
    r = run("--machine", folder, "--slurm", *MOUNTS, env={"PATH": f"{scratch}/bin:{os.environ['PATH']}", "SLURMD_NODENAME": node})
    with open(f"{scratch}/asked") as f:
        return r, f.read()


sound, hot, gone = machine(), machine({}, gpu(temperature_c=95)), machine(xid(79))
r, asked = slurm(sound, "   State=IDLE ThreadsPerCore=1\n")
check("Slurm: a fit node is left alone", r.returncode == 0 and asked == "", asked)
r, asked = slurm(hot)
check("Slurm: an unfit node is drained with the reason", asked == "update|NodeName=n7|State=DRAIN|Reason=lateen: drain: gpu.temperature_c gpu1 = 95, limit 93|\n", asked)
r, asked = slurm(hot)
check("Slurm: the second time it is not called", asked == "", asked)
r, asked = slurm(gone)
check("Slurm: evict of a drained node keeps it drained, and ends its jobs", [line.split("|")[2] for line in asked.splitlines()] == ["State=DRAIN", "State=DOWN"] and
      asked.count("Reason=lateen: evict: gpu.xid_79 gpu1") == 2, asked)
r, asked = slurm(gone)
check("Slurm: once", asked == "", asked)
r, asked = slurm(sound)
check("Slurm: fit again, it is resumed", asked == "update|NodeName=n7|State=RESUME|\n", asked)
for reason, folder, back in (("drain: cpu.product_errors core 3 = 1, limit 1", sound, False), ("drain: mem.uncorrected = 1, limit 1", machine(without=[p for p in recorded_machine.FILES if "edac" in p]), False),
                             ("evict: gpu.xid_79 gpu1 = 1, limit 1", machine(without=("dev/kmsg",)), False), ("drain: disk.errors sda = 11, limit 10", sound, True), ("drain: ib.down mlx5_0/1 = 1, limit 1", sound, True),
                             ("noted by an older version", sound, True)):
    r, asked = slurm(folder, f"   State=IDLE+DRAIN ThreadsPerCore=1\n   Reason=lateen: {reason} [root@now]\n")
    check(f"Slurm: out because of '{reason}': {'resumed' if back else 'not resumed by a check that does not include it'}", asked == "update|NodeName=n7|State=RESUME|\n" * back and
          (back or f"node n7 stays out of service: it was taken out because of {reason.split()[1]}, which was not checked now" in r.stderr), (asked, r.stderr))
r, asked = slurm(hot, "   State=IDLE+DRAIN\n   Reason=fan replaced tomorrow [root@now]\n")
check("Slurm: someone else's reason stays", asked == "" and "fan replaced tomorrow" in r.stderr, r.stderr)
r, asked = slurm(sound)
check("Slurm: and is not resumed", asked == "", asked)
r, asked = slurm(hot, node="n8")
check("Slurm: scontrol's failure is a failure", r.returncode == 1 and "scontrol show" in r.stderr, r.stderr)

status, told = report(machine({"proc/mounts": "/dev/sda1 / ext4 rw,errors=remount-ro 0 0\nfs /scratch nfs rootdir=ro,rw 0 0\n"}))
check("options that only contain ro are not read-only", status == 0 and not bad(told), bad(told))

# /healthz: 503 as soon as no new job may begin.
for name, folder, want in (("ok", machine(), (200, "ok")), ("warn", machine({}, gpu(temperature_c=87)), (200, "warn: gpu.temperature_c gpu1 = 87")),
                           ("drain", machine({}, gpu(temperature_c=93)), (503, "drain: gpu.temperature_c gpu1 = 93")), ("evict", machine(xid(79)), (503, "evict: gpu.xid_79 gpu1 = 1"))):
    p = subprocess.Popen([lateen, "health", "--machine", folder, *MOUNTS, "--listen", "127.0.0.1:0", "--every-s", "100"], stderr=subprocess.PIPE, text=True)
    url = next((line.split()[-1] for line in p.stderr if "http://" in line), "").replace("/metrics", "/healthz")
    try:
        with urllib.request.urlopen(url, timeout=20) as r:
            got = r.status, r.read().decode()
    except urllib.error.HTTPError as e:
        got = e.code, e.read().decode()
    p.terminate()
    check(f"/healthz of a machine that is {name}", got[0] == want[0] and got[1].startswith(want[1]) and p.wait(timeout=20) == 0, (got, want))

# This machine.
start = time.time()
r = run("--json", "--tier", "2", "--levels", "/dev/null", timeout=120)
took = time.time() - start
told = json.loads(r.stdout)
products = [c for c in told["checks"] if c["check"] == "cpu.product_errors"]
check("tier 2 on this machine: every core multiplies correctly", len(products) == len(os.sched_getaffinity(0)) and all(c["value"] == 0 for c in products) and
      value(told, "cpu.copy_gbps") > 0 and value(told, "cpu.gflops") > 0, products)
if "long" in sys.argv:
    r = run("--json", "--tier", "3", "--burn-s", "0.1", "--memory-share", "0.005", timeout=120)
    check("tier 3: memory keeps its patterns", value(json.loads(r.stdout), "mem.pattern_errors") == 0, r.stderr)
r = run("--tier", "2", "--machine", sound)
check("tier 2 of a recorded machine is refused", r.returncode == 2 and "tier 1 only" in r.stderr, r.stderr)

for words, needs in ((("--every-s", "5"), "--listen"), (("--burn-s", "1"), "--tier 3"), (("--memory-share", "0.1", "--tier", "2"), "--tier 3")):
    r = run(*words)
    check(f"{words[0]} is refused if nothing reads it", r.returncode == 2 and f"has no effect without {needs}" in r.stderr, r.stderr)
os.makedirs(f"{scratch}/list")
open(f"{scratch}/list/recorded.json", "w").write("[]")
r = run("--machine", f"{scratch}/list")
check("a recorded machine that is not an object is not fit", r.returncode == 1 and "recorded.json is no JSON object" in r.stderr, r.stdout + r.stderr)

# NVML: a library of that name with known readings.
os.makedirs(f"{scratch}/lib")
built = subprocess.run(["cc", "-shared", "-fPIC", "-o", f"{scratch}/lib/libnvidia-ml.so.1", os.path.dirname(os.path.abspath(__file__)) + "/../inject/nvml.c"],
                       capture_output=True, text=True)
with_nvml = {"LD_LIBRARY_PATH": f"{scratch}/lib"}
told = json.loads(run("--json", env=with_nvml).stdout)
gpus = {(c["check"], c["object"]): c["value"] for c in told["checks"] if c["object"].startswith("gpu")}
expected = {"gpu.ecc_uncorrected": 13, "gpu.rows_pending": 1, "gpu.rows_failed": 0, "gpu.rows_remapped": 2, "gpu.temperature_c": 61, "gpu.memory_temperature_c": 77,
            "gpu.slowed_by_heat": 0, "gpu.slowed_by_hardware": 0, "gpu.power_brake": 0, "gpu.clock_share": 1980 / 1985, "gpu.pcie_width_share": 0.5,
            "gpu.nvlinks_down": 2}
check("NVML: checks judge what the library reports", built.returncode == 0 and all(abs(gpus[k, "gpu0"] - v) < 1e-5 for k, v in expected.items()), (built.stderr, gpus))
check("NVML: errors are summed over links that are up", abs(gpus["gpu.nvlink_errors_per_h", "gpu0"] / gpus["gpu.pcie_replays_per_h", "gpu0"] - 40 / 7) < 1e-3 and
      abs(gpus["gpu.ecc_corrected_per_h", "gpu0"] / gpus["gpu.pcie_replays_per_h", "gpu0"] - 3 / 7) < 1e-3, gpus)
check("NVML: a GPU that does not answer is not judged", not any(o == "gpu1" for _, o in gpus), gpus)
r = run("--json", env={**with_nvml, "LATEEN_TEST_NVML": "fail"})
check("NVML: a driver that is not loaded is reported", any("status 9" in s["why"] for s in json.loads(r.stdout)["skipped"]), r.stdout)
print(f"# tier 2 took {took:.1f} s")
shutil.rmtree(scratch)
sys.exit(tap.end())
