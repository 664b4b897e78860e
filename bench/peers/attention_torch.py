"""The peer of `lateen bench kernels --op attention`: cuDNN's attention through PyTorch's scaled_dot_product_attention, BF16.

Usage: attention_torch.py [cudnn | flash]
It prints "ready", then answers each line "forward|backward B T HEADS DIM causal|full" with the milliseconds of one run, or "-" if the backend has no kernel. Runs are recorded in a CUDA
graph, replayed for MS milliseconds and then timed for as long between two events, as on Lateen's side, so the host's time does not count."""
import os
import sys

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

BACKENDS = {"cudnn": SDPBackend.CUDNN_ATTENTION, "flash": SDPBackend.FLASH_ATTENTION}
backend = BACKENDS[sys.argv[1] if len(sys.argv) > 1 else "cudnn"]
RUNS = 4  # of one graph
MS = 35
LACKS = ("No available kernel", "No valid execution plans")  # PyTorch's and cuDNN's words


def events(replay, n):
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    for _ in range(n):
        replay()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / n


def prepare(way, b, t, h, d, causal):
    """A graph of RUNS runs, and its inputs."""
    q, k, v, g = (torch.randn(b, h, t, d, device="cuda", dtype=torch.bfloat16, requires_grad=i < 3) for i in range(4))

    def forward():
        with sdpa_kernel(backend):
            return F.scaled_dot_product_attention(q, k, v, is_causal=causal)

    side, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        out = forward()
        run = forward if way == "forward" else lambda: torch.autograd.grad(out, (q, k, v), g, retain_graph=True)
        for _ in range(3):
            run()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph, stream=side):
        for _ in range(RUNS):
            run()
    return graph, (q, k, v, g, out)


torch.cuda.set_device(int(os.environ.get("LATEEN_CUDA_DEVICE") or 0))  # The GPU of the program with which it is compared.
held, line_held = None, None
torch.randn(8, device="cuda")
print("ready", flush=True)
for line in sys.stdin:
    way, b, t, h, d, mask = line.split()
    if line_held is None or line.split()[1:] != line_held:
        held, line_held = {}, line.split()[1:]
        torch.cuda.empty_cache()
    if way not in held:
        try:
            held[way] = prepare(way, int(b), int(t), int(h), int(d), mask == "causal")
        except RuntimeError as error:
            if not any(words in str(error) for words in LACKS):
                raise
            print("-", flush=True)
            continue
        events(held[way][0].replay, 2)
    graph = held[way][0]
    n = max(2, int(MS / max(events(graph.replay, 1), 1e-3)))
    events(graph.replay, n)
    print(events(graph.replay, n) / RUNS, flush=True)
