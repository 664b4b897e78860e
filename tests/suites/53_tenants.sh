# Jobs of tenants: what `lateen submit` and `lateen cluster policy` refuse and write, and what the
# batch script does when Slurm's commands are replaced. tests/long/tenants.sh uses a real Slurm.
beside "jobs of tenants" python3 tests/e2e/submit.py build/lateen
beside "policy of tenants" python3 tests/e2e/policy.py build/lateen
beside "manifests of Kubernetes" python3 tests/e2e/kubernetes.py build/lateen
