#!/usr/bin/env python3
"""`lateen cluster policy` with a real Slurm, slurmdbd and MariaDB: its output is loaded, twice, and read back with sacctmgr and scontrol; a job within a quota preempts one that borrows, a job beyond the quota waits, and lost nodes change the limits. slurm_policy.py LATEEN. Skipped without Debian's slurm-wlm, slurmdbd, mariadb-server-core and mariadb-client; needs root."""
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time

import processes
import slurm
from tap import Tap

tap = Tap()
check = tap.check
if not slurm.is_here() or not all(map(shutil.which, ("slurmdbd", "mariadbd", "mariadb-install-db", "my_print_defaults"))):
    tap.skip("slurmdbd", "needs root, and Debian's slurm-wlm, slurmdbd, mariadb-server-core and mariadb-client")
    sys.exit(tap.end())
lateen, scratch = os.path.abspath(sys.argv[1]), tempfile.mkdtemp()
db_port = slurm.free_ports(2)
dbd_port = db_port + 1
POLICY = """cluster: {partition: debug, nodes: 4, node_gpus: 2}
slack: 2
tenants:
  physics: {quota: 4, borrow: 3, share: 3, priority: 200, users: root}
  chemistry: {quota: 0, users: root}
guarantees:
  over: {tenant: chemistry, gpus: 2, from: "2020-01-10T08:00:00", until: "2020-01-11T08:00:00"}
  now: {tenant: chemistry, gpus: 2, from: "2020-02-10T08:00:00", until: "2099-01-11T08:00:00"}
  paper: {tenant: chemistry, gpus: 2, from: "2100-01-10T08:00:00", until: "2100-01-11T08:00:00"}
preempt: {grace_s: 5, exempt_s: 0}
"""


def run(*words, **more):
    return subprocess.run(words, capture_output=True, text=True, timeout=120, stdin=subprocess.DEVNULL, **more)


def until(what, seconds=120):
    end = time.time() + seconds
    while not what() and time.time() < end:
        time.sleep(0.5)
    return what()


def jobs():
    return {line.split("|")[0]: line.split("|")[1:] for line in run("squeue", "--noheader", "--format", "%j|%T|%r").stdout.splitlines()}


def qos():
    lines = run("sacctmgr", "--noheader", "--parsable2", "list", "qos", "format=name,priority,gracetime,preempt,preemptmode,grptres,flags").stdout.splitlines()
    return {line.split("|")[0]: line.split("|")[1:] for line in lines}


def submit(name, account, gpus, *more):
    return run("sbatch", f"--job-name={name}", f"--account={account}", "--nodes=%d" % (gpus // 2), "--gpus-per-node=2", "--output=/dev/null", *more, "--wrap", "sleep 900", cwd=scratch)


with open(f"{scratch}/policy.yaml", "w") as f:
    f.write(POLICY)
written = run(lateen, "cluster", "policy", f"{scratch}/policy.yaml", "--out", f"{scratch}/policy")
daemons = []
cluster = slurm.Slurm(scratch, ["n1", "n2", "n3", "n4"], cpus=2, gpus=2, more=f"AccountingStorageHost=127.0.0.1\nAccountingStoragePort={dbd_port}\nInclude {scratch}/policy/policy.conf\n")
try:
    check("the policy is written", written.returncode == 0, written.stderr)
    made = run("mariadb-install-db", "--no-defaults", f"--datadir={scratch}/db", "--user=root", "--auth-root-authentication-method=normal", "--skip-test-db")
    with open(f"{scratch}/users.sql", "w") as f:
        for host in ("127.0.0.1", "localhost"):
            f.write(f"CREATE USER s@'{host}' IDENTIFIED BY 'p';\nGRANT ALL ON *.* TO s@'{host}';\n")
    daemons.append(subprocess.Popen(["mariadbd", "--no-defaults", f"--datadir={scratch}/db", "--user=root", f"--port={db_port}", "--bind-address=127.0.0.1", f"--socket={scratch}/db.sock",
                                     f"--pid-file={scratch}/db.pid", f"--init-file={scratch}/users.sql", "--innodb-buffer-pool-size=64M"], stdout=subprocess.DEVNULL, stderr=open(f"{scratch}/db.log", "w")))
    check("MariaDB starts", until(lambda: socket.socket().connect_ex(("127.0.0.1", db_port)) == 0), made.stderr[-300:])
    with open(f"{scratch}/slurmdbd.conf", "w") as f:
        f.write(f"AuthType=auth/none\nDbdHost={socket.gethostname()}\nDbdAddr=127.0.0.1\nDbdPort={dbd_port}\nSlurmUser=root\nLogFile={scratch}/slurmdbd.log\nPidFile={scratch}/slurmdbd.pid\n"
                f"StorageType=accounting_storage/mysql\nStorageHost=127.0.0.1\nStoragePort={db_port}\nStorageUser=s\nStoragePass=p\nStorageLoc=slurm_test\n")
    os.chmod(f"{scratch}/slurmdbd.conf", 0o600)
    daemons.append(subprocess.Popen(["slurmdbd", "-D"], env={**os.environ, "SLURM_CONF": cluster.conf}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=scratch))
    check("slurmdbd starts", until(lambda: run("sacctmgr", "--immediate", "add", "cluster", "test").returncode == 0 or "test" in run("sacctmgr", "-n", "list", "cluster").stdout),
          open(f"{scratch}/slurmdbd.log").read()[-800:] if os.path.exists(f"{scratch}/slurmdbd.log") else "no log")
    cluster.start()
    check("Slurm starts with the lines of the policy", until(lambda: run("sinfo", "--noheader", "--states=idle", "--format=%D").stdout.strip() == "4"), run("sinfo").stdout)
    conf = run("scontrol", "show", "config").stdout
    check("and has them", all(line in " ".join(conf.split()) for line in ("PreemptType = preempt/qos", "PreemptMode = REQUEUE", "PriorityType = priority/multifactor", "PriorityWeightQOS = 100000",
          "PriorityDecayHalfLife = 7-00:00:00", "AccountingStorageEnforce = associations,limits,qos")), conf[:1500])
    for time_of in ("once", "twice"):
        r = run("sh", f"{scratch}/policy/accounts.sh")
        check(f"accounts and QOS are loaded {time_of}", r.returncode == 0, (r.stdout[-400:], r.stderr[-400:]))
    have = qos()
    borrowers = {"physics-borrow", "chemistry-borrow"}
    check("QOS of quotas", have["physics"][0] == "200" and set(have["physics"][2].split(",")) == borrowers and have["physics"][4] == "gres/gpu=4" and have["chemistry"][4] == "gres/gpu=0", have)
    check("QOS of tenants that borrow", have["physics-borrow"] == ["0", "00:00:05", "", "requeue", "gres/gpu=3", ""] and have["chemistry-borrow"][4] == "gres/gpu=8", have)
    check("QOS of a guarantee", have["chemistry-guarantee"][4:] == ["gres/gpu=2", "RequiresReservation"], have)
    lines = run("sacctmgr", "--noheader", "--parsable2", "list", "associations", "format=account,user,fairshare,qos,defaultqos").stdout.splitlines()
    check("accounts", any(line.startswith("physics||3|") and line.endswith("|physics") for line in lines) and any(line.startswith("chemistry|root|") for line in lines), lines)
    for time_of in ("once", "twice"):
        r = run("sh", f"{scratch}/policy/reservations.sh")
        shown = run("scontrol", "show", "reservation").stdout
        check(f"guarantees are reservations from their begin or from now on, loaded {time_of}", r.returncode == 0 and shown.count("ReservationName=") == 2 and
              "ReservationName=now" in shown and "State=ACTIVE" in shown, (r.stderr, shown))
    run("scontrol", "delete", "ReservationName=now")
    shown = run("scontrol", "show", "reservation").stdout
    check("the guarantee is a reservation", r.returncode == 0 and "ReservationName=paper" in shown and "NodeCnt=1" in shown and "Accounts=chemistry" in shown and "REPLACE_DOWN" in shown, (r.stderr, shown))

    submit("borrowed", "chemistry", 8, "--qos=chemistry-borrow", "--requeue")
    check("a tenant that borrows gets all that is idle", until(lambda: jobs().get("borrowed", [""])[0] == "RUNNING"), jobs())
    r = submit("large", "physics", 6)
    check("more than the quota waits", until(lambda: "QOSGrpGRES" in jobs().get("large", ["", ""])[1]), (r.stderr, jobs()))
    run("scancel", "--name=large")
    submit("own", "physics", 4)
    check("a tenant with a quota preempts one that has borrowed, and that one queues again", until(lambda: jobs().get("own", [""])[0] == "RUNNING" and jobs()["borrowed"][0] == "PENDING"), jobs())
    run("scancel", "--name=own")

    r = run(lateen, "cluster", "policy", f"{scratch}/policy.yaml", "--live", "4", "--out", f"{scratch}/less")
    run("sh", f"{scratch}/less/accounts.sh")
    check("four GPUs live, two of them promised: the quotas follow", qos()["physics"][4] == "gres/gpu=2" and qos()["chemistry-borrow"][4] == "gres/gpu=4", (r.stderr, qos()))
except Exception as e:
    check("nothing unexpected", False, repr(e))
finally:
    cluster.end()
    processes.end(daemons)
    if not os.environ.get("KEEP"):
        shutil.rmtree(scratch, ignore_errors=True)
sys.exit(tap.end())
