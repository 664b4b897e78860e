# Every write, sync, rename and allocation of the verbs that write files fails once.
suite -t 7200 "all writes and allocations that fail" env INJECT_MOST=100000 python3 tests/e2e/inject.py build/lateen
