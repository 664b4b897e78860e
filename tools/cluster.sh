#!/usr/bin/env bash
# A cluster of four nodes on this machine, to try the platform with: `tools/cluster.sh up [LATEEN]` starts a Slurm with four nodes (Debian's slurm-wlm and libpmix-dev), `lateen health`
# for each of them, Prometheus (Debian's prometheus and jq) and `lateen cluster`, prints their addresses, and runs until Ctrl-C, which ends all jobs and processes and
# removes every file. Each node has one core and one GPU, which Slurm only counts. Ports: those from CLUSTER_PORT (8400) on. `up --for SECONDS` ends by itself.
set -eu -o pipefail
cd "$(dirname "$0")/.."
usage() {
    echo "usage: tools/cluster.sh up [--for SECONDS] [LATEEN]" >&2
    exit 2
}
[ "${1:-}" = up ] || usage
shift
seconds=0
if [ "${1:-}" = --for ]; then
    seconds=${2:?"--for takes seconds"}
    shift 2
fi
[ $# -le 1 ] || usage
lateen=$(realpath "${1:-build/lateen}")
PATH=$PATH:/usr/sbin:/sbin
page=${CLUSTER_PORT:-8400}
controller=$((page + 1)) prometheus=$((page + 2)) node=$((page + 2)) health=$((page + 6)) # node + K, health + K

die() {
    echo "cluster.sh: $*" >&2
    exit 1
}
[ -x "$lateen" ] || die "$lateen is not a program: build it with make, or name it"
for program in slurmctld slurmd prometheus jq; do
    command -v "$program" >/dev/null || die "$program is not installed: apt-get install slurm-wlm libpmix-dev prometheus jq"
done
for ((port = page; port <= page + 10; port++)); do
    if (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; then
        die "port $port is in use; CLUSTER_PORT=$((page + 1000)) tools/cluster.sh up uses others"
    fi
done

folder=$(mktemp -d) started=()
end() {
    trap '' INT TERM HUP
    scancel --user="$(id -un)" 2>/dev/null && sleep 1
    for ((i = ${#started[@]} - 1; i >= 0; i--)); do
        kill "${started[i]}" 2>/dev/null || true
    done
    for p in "${started[@]}"; do
        wait "$p" 2>/dev/null || true
    done
    rm -rf "$folder"
}
trap end EXIT
trap 'exit 0' INT TERM HUP
# NAME WORDS...: a process that ends with this script, even if that is killed; its messages go to FOLDER/NAME.log.
start() {
    setpriv --pdeathsig TERM "${@:2}" >"$folder/$1.log" 2>&1 </dev/null &
    started+=($!)
}
# SECONDS MESSAGE COMMAND...: waits until the command succeeds.
until_true() {
    local i
    for ((i = 0; i < 10 * $1; i++)); do
        if "${@:3}" >/dev/null 2>&1; then
            return
        fi
        sleep 0.1
    done
    tail -n 3 "$folder"/*.log >&2
    die "$2 within $1 s; the last messages of all processes are above"
}

# ---- Slurm ----
export SLURM_CONF=$folder/slurm.conf
user=$(id -un)
mkdir "$folder"/{state,targets,slurm} "$folder"/{spool,tmp}.n{1,2,3,4}
touch "$folder/gpu0"
echo "Name=gpu File=$folder/gpu0" >"$folder/gres.conf"
printf 'CgroupPlugin=autodetect\nIgnoreSystemd=yes\n' >"$folder/cgroup.conf"
cat >"$SLURM_CONF" <<CONF
ClusterName=lateen
SlurmctldHost=$(hostname)(127.0.0.1)
SlurmctldPort=$controller
SlurmUser=$user
SlurmdUser=$user
AuthType=auth/none
CredType=cred/none
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
GresTypes=gpu
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=2,sched_interval=2
ReturnToService=2
KillWait=5
StateSaveLocation=$folder/state
SlurmdSpoolDir=$folder/spool.%n
TmpFS=$folder/tmp.%n
SlurmdPidFile=$folder/slurmd.%n.pid
SlurmctldPidFile=$folder/slurmctld.pid
CONF
for k in 1 2 3 4; do
    echo "NodeName=n$k NodeHostname=$(hostname) NodeAddr=127.0.0.1 Port=$((node + k)) CPUs=1 RealMemory=100 Gres=gpu:1" >>"$SLURM_CONF"
done
echo "PartitionName=debug Nodes=n[1-4] Default=YES MaxTime=INFINITE State=UP" >>"$SLURM_CONF"
begin=$SECONDS
start slurmctld slurmctld -D
until_true 15 "slurmctld does not answer" scontrol ping
for k in 1 2 3 4; do
    start "slurmd.n$k" slurmd -D -N "n$k"
    start "health.n$k" "$lateen" health --listen "127.0.0.1:$((health + k))" --every-s 10 --node "n$k" --history "$folder/health.n$k.jsonl"
done

# ---- Prometheus, with the configuration of deploy/. All nodes have the same address here, so their names in the targets are replaced by it. ----
targets() {
    deploy/slurm/targets.sh "$folder/slurm" 2>/dev/null || return 0
    for f in nodes runs; do
        sed "s/\"n\([1-4]\):9401\"/\"127.0.0.1:@\1\"/; s/\"n[1-4]:/\"127.0.0.1:/
             s/@1/$((health + 1))/; s/@2/$((health + 2))/; s/@3/$((health + 3))/; s/@4/$((health + 4))/" "$folder/slurm/$f.json" >"$folder/targets/.$f"
        mv "$folder/targets/.$f" "$folder/targets/$f.json"
    done
}
idle() { [ "$(sinfo --noheader --states=idle --format=%D)" = 4 ]; }
until_true 20 "four nodes are not idle" idle
targets
cp deploy/prometheus/lateen.rules.yml "$folder"
sed "s|/var/lib/lateen/targets|$folder/targets|; s/15s/2s/; s/30s/5s/" deploy/prometheus/prometheus.yml >"$folder/prometheus.yml"
start prometheus prometheus --config.file="$folder/prometheus.yml" --storage.tsdb.path="$folder/tsdb" --web.listen-address="127.0.0.1:$prometheus" --log.level=error
start cluster "$lateen" cluster --listen "127.0.0.1:$page" --prometheus "http://127.0.0.1:$prometheus"
seen() { [ "$("$lateen" cluster --json --prometheus "http://127.0.0.1:$prometheus" | jq '[.up[] | select(.metric.job == "lateen-nodes" and .value[1] == "1")] | length')" = 4 ]; }
until_true 20 "Prometheus has not read the health of four nodes" seen

cat <<TEXT
the cluster is up after $((SECONDS - begin)) s
page        http://127.0.0.1:$page/
Prometheus  http://127.0.0.1:$prometheus/
Slurm       export SLURM_CONF=$SLURM_CONF OMPI_MCA_btl=self,tcp
            sinfo, squeue, sbatch, scancel
a run       $lateen submit RECIPE --tenant physics --gpus 1..4 --node-gpus 1 --cpus 1 -- --device cpu --metrics.listen 127.0.0.1:9400
Ctrl-C ends it.
TEXT
while [ "$seconds" = 0 ] || [ "$SECONDS" -lt $((begin + seconds)) ]; do
    sleep 2 &
    wait $!
    targets
done
