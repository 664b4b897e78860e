"""Write tests/golden/dequant.bin: for each ggml type two random blocks and their values as dequantised by the `gguf` package.

Record: u32 type, u32 n_bytes, u32 n_elems, the bytes, the F32 values. Run: python tools/make_dequant_goldens.py"""
import struct

import gguf
import numpy as np
from gguf.quants import dequantize

TYPES = "F32 F16 BF16 Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q2_K Q3_K Q4_K Q5_K Q6_K".split()
HALVES = {"Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0], "Q2_K": [80, 82], "Q3_K": [108],
          "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208]}
rng = np.random.default_rng(7)
with open("tests/golden/dequant.bin", "wb") as out:
    for name in TYPES:
        kind = gguf.GGMLQuantizationType[name]
        elems, size = gguf.GGML_QUANT_SIZES[kind]
        blocks = 64 if elems == 1 else 2
        raw = rng.integers(0, 256, (blocks, size), dtype=np.uint8)
        if elems == 1:
            x = rng.normal(size=blocks).astype(np.float32)
            raw = (x.view(np.uint8) if name == "F32" else x.astype(np.float16).view(np.uint8) if name == "F16"
                   else (x.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)).reshape(blocks, size)
        for at in HALVES.get(name, []):
            raw[:, at:at + 2] = rng.normal(0, 0.1, blocks).astype(np.float16).view(np.uint8).reshape(blocks, 2)
        value = dequantize(np.ascontiguousarray(raw).reshape(-1), kind) if name != "F16" else raw.reshape(-1).view(np.float16)
        value = np.asarray(value, dtype=np.float32).reshape(-1)
        out.write(struct.pack("<III", int(kind), raw.size, value.size) + raw.tobytes() + value.tobytes())
