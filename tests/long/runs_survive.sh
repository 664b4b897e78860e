# Runs that survive faults: all cases, and random faults by seed; tests/suites/54_comm.sh has the core ones.
suite -t 600 "runs that survive" python3 tests/e2e/runs_survive.py build/lateen
suite -t 600 "snapshots in memory" python3 tests/e2e/snapshots.py build/lateen
suite -t 600 "ranks that survive a fault" python3 tests/e2e/keep.py build/lateen
suite -t 600 "nodes that are lost" python3 tests/e2e/nodes.py build/lateen
# 1 to 5 faults a seed: about 1,000. FAULT_SEEDS=A..B chooses others, and FAULT_RESULTS names a file to which each
# run adds its line (tests/e2e/seeds.py); tests/e2e/run_faults.py --table prints it.
suite -t 14400 "400 seeds of random faults" python3 tests/e2e/run_faults.py build/lateen 400
# What faults cost is measured, and simulated from half of it: the other half must agree.
suite -t 3600 "60 faults, simulated" python3 tests/e2e/simulate_faults.py build/lateen 60
suite -t 600 "ranks on several machines" python3 tests/e2e/machines.py build/lateen
suite -t 600 "launch over several machines" python3 tests/e2e/launch_hosts.py build/lateen
suite -t 600 "launch by ssh" python3 tests/e2e/launch_ssh.py build/lateen
suite -t 600 "an orphan behind an unplugged cable" python3 tests/e2e/slurm_orphan.py build/lateen cable
suite -t 600 "an orphan under a real Slurm" python3 tests/e2e/slurm_orphan.py build/lateen
