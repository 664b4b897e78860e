#!/usr/bin/env python3
"""Time PyTorch's matrix products for the shapes of a GPT-2 124M step (B4 T256), for comparison with `optest --bench --op matmul`.

GFLOP/s by CPU time of one thread, best of n. On a shared machine the ratio of two programs that run alternately is still meaningful.
    python bench/peers/torch_matmul.py [n]"""
import sys
import time

import torch

SHAPES = [(1024, 2304, 768), (1024, 768, 768), (1024, 3072, 768), (1024, 768, 3072), (160, 50257, 768)]


def best_seconds(product, n):
    product()
    times = []
    for _ in range(n):
        start = time.process_time()
        product()
        times.append(time.process_time() - start)
    return min(times)


def main():
    n = int(sys.argv[1]) if len(sys.argv) > 1 else 10
    torch.set_num_threads(1)
    print("type            M     N     K  forward  dx  dW  GFLOP/s")
    for dtype in (torch.float32, torch.bfloat16):
        for rows, cols, depth in SHAPES:
            x, w, dy = (torch.randn(s).to(dtype) for s in ((rows, depth), (cols, depth), (rows, cols)))
            gflop = 2e-9 * rows * cols * depth
            products = (lambda: x @ w.t(), lambda: dy @ w, lambda: dy.t() @ x)
            rates = [gflop / best_seconds(p, n) for p in products]
            print("%-14s %5d %5d %5d" % (dtype, rows, cols, depth), *("%6.0f" % r for r in rates))


if __name__ == "__main__":
    with torch.no_grad():
        main()
