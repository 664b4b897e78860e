# Jobs of tenants under a real Slurm: preempted, on fewer nodes, grown again, cancelled.
beside -t 1500 "jobs of tenants under Slurm" python3 tests/e2e/slurm_submit.py build/lateen
