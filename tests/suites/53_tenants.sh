# Jobs of tenants: what `lateen submit` refuses, and what its batch script does with Slurm's commands replaced. tests/long/tenants.sh has a real Slurm.
beside "jobs of tenants" python3 tests/e2e/submit.py build/lateen
