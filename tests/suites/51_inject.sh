# What happens when a write or an allocation fails, and the order of what is written (a few of each; all of them in tests/long/20_inject.sh).
beside "writes and allocations that fail" env INJECT_MOST=6 python3 tests/e2e/inject.py build/lateen
