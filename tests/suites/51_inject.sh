# What happens if a write or an allocation fails, and the order of writes (a few of each;
# tests/long/20_inject.sh tests all).
beside "writes and allocations that fail" env INJECT_MOST=6 python3 tests/e2e/inject.py build/lateen
