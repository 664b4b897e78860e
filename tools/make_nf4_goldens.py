"""Write tests/golden/nf4.bin and nf4_double.bin: numbers, and their NF4 encoding by bitsandbytes on a CPU.

    python3 tools/make_nf4_goldens.py          (packages bitsandbytes, torch)

nf4.bin: u32 n, the F32 values, the packed bytes (n / 2), the largest magnitude of each block of 64 (F32), the F32 values decoded.
nf4_double.bin, with double quantisation: u32 blocks, the values as i16 of 1/4096, F32 offset, the F32 numbers of an 8-bit scale (256) and of each 256 blocks,
the bytes of the blocks, the F32 values decoded of the first and last four blocks. Scales are multiples of 1/4096, so that their mean does not depend on the order
of the sum, which differs between machines in PyTorch."""
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

blocks = 320
values = (torch.randn(blocks, 64) * torch.logspace(1, 3, blocks)[:, None]).round().clamp(-4096, 4096)
x = values / 4096
packed, state = F.quantize_4bit(x, blocksize=64, quant_type="nf4", compress_statistics=True)
decoded = F.dequantize_4bit(packed, state).view(blocks, 64)
with open("tests/golden/nf4_double.bin", "wb") as out:
    out.write(struct.pack("<I", blocks))
    for t in (values.to(torch.int16), state.offset.view(1), state.state2.code, state.state2.absmax, state.absmax, decoded[:4], decoded[-4:]):
        out.write(t.contiguous().numpy().tobytes())
