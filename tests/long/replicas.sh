# Memory that fails silently: recall over flipped bits by place and bit, and flips in the memory of running processes.
suite -t 1800 "504 flipped bits" build/tests/unit/train/test_replicas 504
suite -t 600 "bits flipped in running ranks" python3 tests/e2e/replicas.py build/lateen
# Arithmetic that fails silently: bits of gradients that one rank has computed, before their sum.
suite -t 1800 "512 flipped bits before the sum" build/tests/unit/train/test_replay 512
