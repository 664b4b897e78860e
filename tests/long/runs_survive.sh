# Runs that survive faults: all cases; tests/suites/54_comm.sh has the core ones.
suite -t 600 "runs that survive" python3 tests/e2e/runs_survive.py build/lateen
