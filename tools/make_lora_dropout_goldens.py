#!/usr/bin/env python3
"""Make tests/golden/lora_dropout.safetensors: loss and gradients of PEFT's adapters with dropout, for which PEFT gets our masks.

    python tools/make_lora_dropout_goldens.py          (peft 0.21.2, transformers 5.24, torch 2.15; CPU)

The model is tests/golden/sft with adapter-all-end. The masks are those of src/model/lora/lora_dropout.c, computed here independently: Philox 4x32-10 (Salmon et al.
2011) over (seed, module, row of the run, position, column). Each lora_dropout of PEFT is replaced by the product with its mask, divided by 1 - p.
    tokens      (3, 8); the last is the label of the one before it, so there are 7 labels in a row
    loss        sum over all labels
    others      gradients of the loss, by PEFT's names
"""
import pathlib

import numpy as np
import peft
import torch
import transformers
from safetensors.torch import save_file

ROOT = pathlib.Path(__file__).resolve().parent.parent / "tests/golden"
SEED, P, ROWS, SEQ, FIRST_ROW, ROW_STEP = 7, 0.25, 3, 8, 5, 2
M64 = (1 << 64) - 1
PLACES = {"q_proj": ("qkv", 0), "k_proj": ("qkv", 1), "v_proj": ("qkv", 2), "o_proj": ("attn_out", 0), "gate_proj": ("up", 0), "up_proj": ("up", 1),
          "down_proj": ("down", 0)}


def mix(x):
    x = (x + 0x9E3779B97F4A7C15) & M64
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & M64
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & M64
    return x ^ (x >> 31)


def stream_of(name, part):
    h = 0xCBF29CE484222325
    for c in name.encode():
        h = ((h ^ c) * 0x100000001B3) & M64
    return mix((mix(h) + part + 1) & M64)


def philox(seed, stream, position):
    c = [position & 0xFFFFFFFF, position >> 32, stream & 0xFFFFFFFF, stream >> 32]
    k = [seed & 0xFFFFFFFF, seed >> 32]
    for _ in range(10):
        a, b = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(b >> 32) ^ c[1] ^ k[0], b & 0xFFFFFFFF, (a >> 32) ^ c[3] ^ k[1], a & 0xFFFFFFFF]
        k = [(k[0] + 0x9E3779B9) & 0xFFFFFFFF, (k[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return c


def mask_of(name, part, n):
    stream, blocks = stream_of(name, part), (n + 3) // 4
    out = np.zeros((ROWS, SEQ - 1, n))
    for row in range(ROWS):
        for at in range(SEQ - 1):
            first = (((FIRST_ROW + row * ROW_STEP) << 22) + at) * blocks
            words = [w for b in range(blocks) for w in philox(SEED, stream, first + b)][:n]
            out[row, at] = np.array(words) >= int(P * 2**32)
    return torch.from_numpy(out)


class Fed(torch.nn.Module):
    def __init__(self, mask):
        super().__init__()
        self.mask = mask

    def forward(self, x):
        return x * self.mask / (1 - P)


def main():
    transformers.logging.set_verbosity_error()
    base = transformers.AutoModelForCausalLM.from_pretrained(ROOT / "sft", dtype=torch.float64)
    m = peft.PeftModel.from_pretrained(base, ROOT / "sft/adapter-all-end", is_trainable=True, autocast_adapter_dtype=False).double()
    for name, layer in m.named_modules():
        if isinstance(layer, peft.tuners.lora.LoraLayer):
            ours, part = PLACES[name.split(".")[-1]]
            layer.lora_dropout["default"] = Fed(mask_of(f"layers.{name.split('.layers.')[1].split('.')[0]}.{ours}.lora_a", part, layer.in_features))
    tokens = torch.randint(0, base.config.vocab_size, (ROWS, SEQ), generator=torch.Generator().manual_seed(3))
    logits = m.train()(tokens[:, :-1]).logits
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten(), reduction="sum")
    loss.backward()
    out = {n.replace(".default", ""): p.grad.float().contiguous() for n, p in m.named_parameters() if "lora_" in n}
    save_file(out | {"tokens": tokens.int(), "loss": loss.detach().float()[None]}, ROOT / "lora_dropout.safetensors")
    print(loss.item(), len(out))


if __name__ == "__main__":
    main()
