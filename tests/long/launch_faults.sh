# Ranks and launchers that are killed, stopped or told to end at random moments: 200 of them; tests/suites/54_comm.sh: a dozen.
suite -t 3600 "200 faults of launched ranks" python3 tests/e2e/launch_faults.py build/lateen 200 13
