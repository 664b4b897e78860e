#!/usr/bin/env python3
"""Compute the checksum of the matrix product that `lateen health --tier 2` computes on every core and GPU, with Python's whole numbers.

    python3 tools/make_health_golden.py     prints the SHA-256 for src/platform/health/known.c

It also prints the largest partial sum, which must stay below 2^24 for fp32 to hold every sum in any order."""
import hashlib
import struct

PERIOD, K, ROUNDS = 256, 512, 64
a = [[(i * 7 + k * 13 + (i * k) % 11) % 5 - 2 for k in range(K)] for i in range(PERIOD)]
b = [[(i * 11 + k * 3 + (i * k) % 7) % 5 - 2 for k in range(K)] for i in range(PERIOD)]
digest = hashlib.sha256()
values = set()
for row in a:
    sums = [sum(x * y for x, y in zip(row, other)) for other in b]
    values.update(sums)
    digest.update(struct.pack("<%df" % PERIOD, *sums))
print(digest.hexdigest())
print(f"{len(values)} values from {min(values)} to {max(values)}; bound {4 * K * ROUNDS} < {1 << 24}")
