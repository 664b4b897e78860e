"""A Slurm on this machine: a controller and a slurmd for each node. Needs root and Debian's slurm-wlm. Standard library only.

    if slurm.is_here(): s = Slurm(folder, ["n1", "n2"]); s.start(); s.started["n1"].kill(); s.end()"""
import os
import shutil
import socket
import subprocess
import time

import processes

os.environ["PATH"] += ":/usr/sbin:/sbin"


def is_here():
    return bool(shutil.which("slurmctld") and shutil.which("slurmd")) and os.geteuid() == 0


def free_ports(n):
    """The first of n consecutive ports that no other script uses as long as this one runs: it
    holds the last one of their block. They are below those that the system gives to
    connections."""
    for block in range(20000, 32000, 40):
        holder = socket.socket()
        try:
            holder.bind(("127.0.0.1", block + 39))
        except OSError:
            holder.close()
            continue
        if n < 40 and not any(socket.socket().connect_ex(("127.0.0.1", block + i)) == 0 for i in range(n)):
            held.append(holder)
            return block
        holder.close()
    raise OSError(f"no {n} ports in a row are free")


held = []  # The sockets of the blocks.


class Slurm:
    def __init__(self, folder, nodes, scheduler="sched_interval=2", return_to_service=2, more="", cpus=1, gpus=0, hosts=None):
        """Writes the configuration to FOLDER/slurm.conf, and sets SLURM_CONF to it. more: further
        lines of it. Each node has this many cores and GPUs, which do not exist: Slurm only
        counts them. hosts: machines of a network (hosts.py), one for each node; the script is
        in that network, too."""
        self.conf, self.nodes, self.started, self.hosts = f"{folder}/slurm.conf", nodes, {}, hosts
        port, host = free_ports(1 + len(nodes)), socket.gethostname()
        for d in ("state", *(f"{d}.{n}" for n in nodes for d in ("spool", "tmp"))):
            os.makedirs(f"{folder}/{d}")
        own = f"{hosts.address(0).rsplit('.', 1)[0]}.254" if hosts else "127.0.0.1"
        machines = "".join(f"NodeName={n} NodeHostname={f'h{i}' if hosts else host} NodeAddr={hosts.address(i) if hosts else own} Port={port + 1 + i} CPUs={cpus} RealMemory=100"
                           f"{f' Gres=gpu:{gpus}' if gpus else ''}\n" for i, n in enumerate(nodes))
        with open(f"{folder}/cgroup.conf", "w") as f:
            f.write("CgroupPlugin=autodetect\nIgnoreSystemd=yes\n")
        if gpus:
            more += "GresTypes=gpu\n"
            with open(f"{folder}/gres.conf", "w") as f:
                f.write(f"Name=gpu File={folder}/gpu[0-{gpus - 1}]\n")
            for i in range(gpus):
                open(f"{folder}/gpu{i}", "w").close()
        with open(self.conf, "w") as f:
            f.write(f"""ClusterName=test
SlurmctldHost={host}({own})
SlurmctldPort={port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/none
CredType=cred/none
AuthInfo=cred_expire=5
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=2,{scheduler}
ReturnToService={return_to_service}
KillWait=2
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
TmpFS={folder}/tmp.%n
SlurmdLogFile={folder}/slurmd.%n.log
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmctldPidFile={folder}/slurmctld.pid
{more}{machines}PartitionName=debug Nodes={",".join(nodes)} Default=YES MaxTime=INFINITE State=UP
""")
        os.environ["SLURM_CONF"] = self.conf

    def start(self):
        for name, words in (("slurmctld", ["slurmctld", "-D"]), *((n, ["slurmd", "-D", "-N", n]) for n in self.nodes)):
            words = self.hosts.words(self.nodes.index(name), words) if self.hosts and name in self.nodes else words
            self.started[name] = subprocess.Popen([*words, "-f", self.conf], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            time.sleep(1)

    def end(self):
        """Cancels all jobs, and ends the daemons."""
        subprocess.run(["scancel", "--user=root"], capture_output=True)
        time.sleep(1)
        processes.end(list(self.started.values()))
