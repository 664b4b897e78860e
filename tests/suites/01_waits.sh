# Tests that mostly sleep, until a rank is missed, a deadline has passed or a page is read: they
# begin first, and take no core from the others.
beside_others() { # name, script, options of the script...
    waits "$1" python3 "tests/e2e/$2.py" build/lateen "${@:3}"
}
beside_others "train: several ranks" train_ranks ranks
beside_others "train: several ranks that divide the model" train_ranks model
beside_others "faults of launched ranks" launch_faults 12
beside_others "runs that survive" runs_survive quick
beside_others "ranks that survive a fault" keep quick
beside_others "nodes that are lost" nodes quick
beside_others "ranks on several machines" machines quick
beside_others "launch over several machines" launch_hosts quick
beside_others "launch by ssh" launch_ssh quick
beside_others "snapshots in memory" snapshots quick
beside_others "ranks that hold other bits" replicas quick
beside_others "a rank that is slow" stragglers
beside_others "clocks that jump" clocks
# Alerts, dashboards and scrape targets of deploy/, and the page of the cluster, against a real
# Prometheus that scrapes a run, a node and a server.
beside_others "monitoring" monitoring
