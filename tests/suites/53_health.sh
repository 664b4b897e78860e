# Health of machines: recorded ones, with every fault that the table of checks knows; Slurm's
# scontrol; an NVML with known readings; this machine.
beside "health of machines" python3 tests/e2e/health.py build/lateen
