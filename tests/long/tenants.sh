# Tenants under a real Slurm: jobs that are preempted, continue with fewer nodes, grow again, are cancelled; a policy loaded into slurmdbd; jobs of fine-tuning that a server submits.
beside -t 1500 "jobs of tenants under Slurm" python3 tests/e2e/slurm_submit.py build/lateen
beside -t 900 "policy of tenants in slurmdbd" python3 tests/e2e/slurm_policy.py build/lateen
beside -t 900 "jobs of fine-tuning under Slurm" python3 tests/e2e/tuning_slurm.py build/lateen tests/golden/stories260k/stories260K.bin tests/golden/stories260k/tok512.bin
beside -t 900 "what Slurm answers of jobs of fine-tuning" python3 tests/e2e/tuning_queue.py build/lateen tests/golden/stories260k/stories260K.bin tests/golden/stories260k/tok512.bin all
beside "cancelled jobs under Slurm" python3 tests/e2e/slurm_cancel.py build/lateen
