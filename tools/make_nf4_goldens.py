"""Write tests/golden/nf4.bin: rows of numbers, and what bitsandbytes makes of them in NF4 on a CPU.

    python3 tools/make_nf4_goldens.py          (packages bitsandbytes, torch)

Record: u32 n, the F32 values, the packed bytes (n / 2), the largest magnitude of each block of 64 (F32), the F32 values decoded."""
import struct

import bitsandbytes.functional as F
import torch

torch.manual_seed(5)
x = torch.randn(40, 64) * torch.logspace(-6, 3, 40)[:, None]
x[3] = 0.0
x[4] = x[4].sign()
x[5] = torch.linspace(-1, 1, 64)
x[6] *= (torch.rand(64) < 0.1)
x[7, 9] = 1e6
packed, state = F.quantize_4bit(x, blocksize=64, quant_type="nf4")
decoded = F.dequantize_4bit(packed, state)
with open("tests/golden/nf4.bin", "wb") as out:
    out.write(struct.pack("<I", x.numel()))
    for t in (x, packed, state.absmax, decoded):
        out.write(t.contiguous().numpy().tobytes())
print(state.code)
