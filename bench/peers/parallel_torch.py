"""Time PyTorch's tensor and context parallelism on the GPUs of one host: torch.compile, bf16 by autocast, AdamW on fp32 weights, gradients clipped to 1.

usage: torchrun --nproc-per-node=N parallel_torch.py tp|tp-async|cp SHAPE BATCH SEQ [STEPS]

SHAPE is llama1b or llama8b. tp: rows between the layers are sharded over the sequence (SequenceParallel), the vocabulary over the ranks (loss_parallel). tp-async: the same, and the compiler divides products into pieces
that run in parallel with the transfers of symmetric memory (_micro_pipeline_tp). cp: context_parallel, which runs scaled_dot_product_attention as ring attention with load balance; the weights are replicated, their gradients
averaged. Prints the mean of STEPS steps (12) after 5.
"""
import os
import sys
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

what, shape, batch, seq = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
steps = int(sys.argv[5]) if len(sys.argv) > 5 else 12
layers, width, heads, kv_heads, ffn, vocab = {
    "tiny": (2, 64, 4, 2, 128, 512), "llama1b": (16, 2048, 32, 8, 8192, 128256), "llama8b": (32, 4096, 32, 8, 14336, 128256)}[shape]
head = width // heads
rank, n = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
device = "cuda" if torch.cuda.is_available() else "cpu"
if device == "cuda":
    torch.cuda.set_device(rank)
dist.init_process_group("nccl" if device == "cuda" else "gloo")
torch.set_float32_matmul_precision("high")
mesh = init_device_mesh(device, (n,))


class Norm(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        return F.rms_norm(x, (width,), self.weight)


def rotate(x, cos, sin):
    a, b = x.float().chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1).to(x.dtype)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v = nn.Linear(width, width, bias=False), nn.Linear(width, kv_heads * head, bias=False), nn.Linear(width, kv_heads * head, bias=False)
        self.out = nn.Linear(width, width, bias=False)

    def forward(self, x, cos, sin):
        q, k, v = (f(x).unflatten(-1, (-1, head)).transpose(1, 2) for f in (self.q, self.k, self.v))
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        if what == "cp":  # Ring attention does not support grouped heads.
            k, v = (x.repeat_interleave(heads // kv_heads, 1) for x in (k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=q.shape[1] != k.shape[1])
        return self.out(y.transpose(1, 2).flatten(2))


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate, self.up, self.down = nn.Linear(width, ffn, bias=False), nn.Linear(width, ffn, bias=False), nn.Linear(ffn, width, bias=False)

    def forward(self, x):
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.attention, self.norm2, self.mlp = Norm(), Attention(), Norm(), Mlp()

    def forward(self, x, cos, sin):
        x = x + self.attention(self.norm1(x), cos, sin)
        return x + self.mlp(self.norm2(x))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(vocab, width)
        self.blocks = nn.ModuleList(Block() for _ in range(layers))
        self.norm, self.head = Norm(), nn.Linear(width, vocab, bias=False)

    def forward(self, ids, cos, sin):
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x, cos, sin)
        return self.head(self.norm(x))


def divide(model):
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import ColwiseParallel, PrepareModuleInput, RowwiseParallel, SequenceParallel, parallelize_module
    parallelize_module(model, mesh, {
        "embed": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
        "norm": SequenceParallel(),
        "head": ColwiseParallel(input_layouts=Shard(1), output_layouts=Shard(-1), use_local_output=False)})
    for block in model.blocks:
        parallelize_module(block, mesh, {
            "norm1": SequenceParallel(), "norm2": SequenceParallel(),
            "attention": PrepareModuleInput(input_layouts=(Shard(1), None, None), desired_input_layouts=(Replicate(), None, None)),
            "attention.q": ColwiseParallel(), "attention.k": ColwiseParallel(), "attention.v": ColwiseParallel(),
            "attention.out": RowwiseParallel(output_layouts=Shard(1)),
            "mlp": PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),)),
            "mlp.gate": ColwiseParallel(), "mlp.up": ColwiseParallel(), "mlp.down": RowwiseParallel(output_layouts=Shard(1))})
    if what == "tp-async":
        import torch._inductor.config
        from torch.distributed._symmetric_memory import enable_symm_mem_for_group
        torch._inductor.config._micro_pipeline_tp = True
        enable_symm_mem_for_group(mesh.get_group().group_name)


torch.manual_seed(0)
with torch.device(device):
    model = Model()
n_params = sum(p.numel() for p in model.parameters())
angle = torch.outer(torch.arange(seq, device=device).float(), 5e5 ** (-torch.arange(0, head, 2, device=device).float() / head))
cos, sin = angle.cos(), angle.sin()
ids, labels = (torch.randint(0, vocab - 64, (batch, seq), device=device) for _ in range(2))
if what == "cp":
    for p in model.parameters():
        dist.broadcast(p.data, 0)
    for x in (ids, labels):
        dist.broadcast(x, 0)
else:
    divide(model)
for block in model.blocks:
    block.compile()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)


def loss_of(ids, labels, cos, sin):
    with torch.autocast(device, torch.bfloat16):
        logits = model(ids, cos, sin)
    return F.cross_entropy(logits.flatten(0, 1).float(), labels.flatten())


def update():
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return norm


def step():
    if what == "cp":
        from torch.distributed.tensor.experimental import context_parallel
        mine = [x.clone() for x in (ids, labels, cos, sin)]
        with context_parallel(mesh, buffers=mine, buffer_seq_dims=[1, 1, 0, 0], no_restore_buffers=set(mine)):
            loss = loss_of(*mine)
            loss.backward()
        grads = [p.grad for p in model.parameters()]
        with dist._coalescing_manager(device=torch.device(device)) if device == "cuda" else torch.no_grad():
            for g in grads:
                dist.all_reduce(g, dist.ReduceOp.AVG if device == "cuda" else dist.ReduceOp.SUM)
    else:
        from torch.distributed.tensor.parallel import loss_parallel
        with loss_parallel():
            loss = loss_of(ids, labels, cos, sin)
            loss.backward()
    update()
    return loss


for _ in range(5):
    loss = step()
if device == "cuda":
    torch.cuda.synchronize()
dist.barrier()
begin = time.perf_counter()
for _ in range(steps):
    loss = step()
if device == "cuda":
    torch.cuda.synchronize()
t = (time.perf_counter() - begin) / steps
if rank == 0:
    peak = torch.cuda.max_memory_allocated() / 2**30 if device == "cuda" else 0
    print(f"{what} {shape} n{n} {n_params / 1e6:.0f}M {batch} x {seq}: {t * 1e3:.1f} ms, {batch * seq / t / n:,.0f} tok/s per GPU, peak {peak:.1f} GiB, loss {float(loss):.4f}, torch {torch.__version__}", flush=True)
dist.destroy_process_group()
