# Health checks under a real Slurm: HealthCheckProgram and Prolog of deploy/slurm, nodes drained, evicted and resumed, targets of Prometheus.
suite -t 300 "health of machines, and the memory of this one" python3 tests/e2e/health.py build/lateen long
suite -t 300 "page of the cluster in Chromium" python3 tests/e2e/monitoring.py build/lateen "$(command -v chromium)"
beside -t 300 "a cluster on one machine" python3 tests/e2e/cluster_up.py build/lateen
beside -t 900 "health under Slurm" python3 tests/e2e/slurm_health.py build/lateen
