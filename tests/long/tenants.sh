# Tenants under a real Slurm: jobs that are preempted, go on with fewer nodes, grow again, are cancelled; a policy loaded into slurmdbd.
beside -t 1500 "jobs of tenants under Slurm" python3 tests/e2e/slurm_submit.py build/lateen
beside -t 900 "policy of tenants in slurmdbd" python3 tests/e2e/slurm_policy.py build/lateen
