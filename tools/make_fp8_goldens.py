#!/usr/bin/env python3
"""tests/golden/fp8.bin: what PyTorch makes of every BF16 number in 8 bits.

usage: make_fp8_goldens.py OUT

File: 65,536 bytes of float8_e4m3fn, 65,536 of float8_e5m2: BF16 number i (its 16 bits are i), clamped to the type's largest value as
torch.float8's users do before they cast, since the cast itself does not saturate; then 256 F32 values of either type's codes, little-endian.
BF16 keeps 8 bits, so the middles between two 8-bit floats, where ties go to even, are all among them.
"""
import sys
import torch

bits = torch.arange(65536, dtype=torch.int32).to(torch.uint16)
x = bits.view(torch.bfloat16).float()
blob = b""
for dtype in (torch.float8_e4m3fn, torch.float8_e5m2):
    most = torch.finfo(dtype).max
    blob += x.clamp(-most, most).to(dtype).view(torch.uint8).numpy().tobytes()
for dtype in (torch.float8_e4m3fn, torch.float8_e5m2):
    blob += torch.arange(256, dtype=torch.uint8).view(dtype).float().numpy().tobytes()
open(sys.argv[1], "wb").write(blob)
