"""The peer of `lateen bench train`: the same training step in PyTorch, as a user would write it.

Usage: train_torch.py SHAPE DTYPE MODE THREADS
  SHAPE  gpt2-124m | apertus-10m      DTYPE  fp32 | bf16 (autocast)      MODE  eager | compile
It warms up, prints "ready", then for each line "N" on standard input runs N steps and prints the median seconds of a step."""
import statistics
import sys
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

shape, dtype, mode, threads = sys.argv[1:5]
torch.set_num_threads(int(threads))
torch.manual_seed(0)


class GptBlock(nn.Module):
    def __init__(self, c, heads):
        super().__init__()
        self.heads, self.norm1, self.norm2 = heads, nn.LayerNorm(c), nn.LayerNorm(c)
        self.qkv, self.out, self.up, self.down = nn.Linear(c, 3 * c), nn.Linear(c, c), nn.Linear(c, 4 * c), nn.Linear(4 * c, c)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = (p.view(b, t, self.heads, -1).transpose(1, 2) for p in self.qkv(self.norm1(x)).split(c, 2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, c))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


class Gpt(nn.Module):
    def __init__(self, vocab, c, layers, heads):
        super().__init__()
        self.embed, self.pos = nn.Embedding(vocab, c), nn.Embedding(1024, c)
        self.blocks, self.norm = nn.ModuleList(GptBlock(c, heads) for _ in range(layers)), nn.LayerNorm(c)
        self.head = nn.Linear(c, vocab, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids, labels):
        x = self.embed(ids) + self.pos(torch.arange(ids.shape[1]))
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.view(-1, logits.shape[-1]).float(), labels.view(-1))


class ApertusBlock(nn.Module):
    def __init__(self, c, heads, kv, f):
        super().__init__()
        self.heads, self.kv, self.d = heads, kv, c // heads
        self.norm1, self.norm2, self.qn, self.kn = (nn.RMSNorm(n, eps=1e-5) for n in (c, c, self.d, self.d))
        self.qkv, self.out = nn.Linear(c, (heads + 2 * kv) * self.d, bias=False), nn.Linear(c, c, bias=False)
        self.up, self.down = nn.Linear(c, f, bias=False), nn.Linear(f, c, bias=False)
        self.p, self.n = nn.Parameter(torch.tensor(0.2)), nn.Parameter(torch.tensor(-1.0))

    @staticmethod
    def rope(x, cos, sin):
        a, b = x.chunk(2, -1)
        return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)

    def forward(self, x, cos, sin):
        b, t, c = x.shape
        q, k, v = self.qkv(self.norm1(x)).split([self.heads * self.d, self.kv * self.d, self.kv * self.d], 2)
        q = self.rope(self.qn(q.view(b, t, self.heads, self.d)).transpose(1, 2), cos, sin)
        k = self.rope(self.kn(k.view(b, t, self.kv, self.d)).transpose(1, 2), cos, sin)
        v = v.view(b, t, self.kv, self.d).transpose(1, 2)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, c))
        u = self.up(self.norm2(x))
        ap, an = F.softplus(self.p), 0.5 + F.softplus(self.n)
        return x + self.down(torch.where(u > 0, ap * u * u + 0.5 * u, (torch.expm1(torch.clamp(u, max=-1e-6)) - u) * an + 0.5 * u))


class Apertus(nn.Module):
    def __init__(self, vocab, c, layers, heads, kv, f):
        super().__init__()
        self.embed, self.norm, self.head = nn.Embedding(vocab, c), nn.RMSNorm(c, eps=1e-5), nn.Linear(c, vocab, bias=False)
        self.blocks = nn.ModuleList(ApertusBlock(c, heads, kv, f) for _ in range(layers))
        d = c // heads
        angle = torch.arange(1024)[:, None] / 10000 ** (torch.arange(d // 2) * 2 / d)[None]
        self.register_buffer("cos", angle.cos())
        self.register_buffer("sin", angle.sin())

    def forward(self, ids, labels):
        x, t = self.embed(ids), ids.shape[1]
        for block in self.blocks:
            x = block(x, self.cos[:t], self.sin[:t])
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.view(-1, logits.shape[-1]).float(), labels.view(-1))


SHAPES = {"gpt2-124m": (lambda: Gpt(50304, 768, 12, 12), 50304, 4, 256),
          "apertus-10m": (lambda: Apertus(8192, 256, 8, 8, 4, 1024), 8192, 8, 256)}
build, vocab, batch, seq = SHAPES[shape]
model = build()
for module in model.modules():  # GPT-2's initialisation. torch's N(0, 1) embeddings, tied to the head, make softmax underflow: subnormals slow it 7 times.
    if isinstance(module, (nn.Linear, nn.Embedding)):
        nn.init.normal_(module.weight, std=0.02)
optimiser = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
loss_of = torch.compile(model) if mode == "compile" else model


def step():
    ids, labels = torch.randint(vocab, (batch, seq)), torch.randint(vocab, (batch, seq))
    start = time.perf_counter()
    with torch.autocast("cpu", torch.bfloat16, enabled=dtype == "bf16"):
        loss = loss_of(ids, labels)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimiser.step()
    optimiser.zero_grad(set_to_none=True)
    return time.perf_counter() - start


for _ in range(2):
    step()
print("ready", flush=True)
for line in sys.stdin:
    print(statistics.median(step() for _ in range(int(line))), flush=True)
