#!/usr/bin/env python3
"""Write tests/golden/fp8.bin: every BF16 number, cast to 8-bit floats by PyTorch.

usage: make_fp8_goldens.py OUT

The file has 65,536 bytes of float8_e4m3fn and 65,536 of float8_e5m2: byte i is the BF16 number whose 16 bits are i. It is clamped to the type's
largest value, as users of torch.float8 do before they cast, since the cast itself does not saturate. Then come the F32 values of the 256 codes of
either type, little-endian. BF16 keeps 8 bits, so all midpoints between two 8-bit floats, where ties go to even, are among the numbers.
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
