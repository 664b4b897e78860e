"""Write a GGUF of random blocks in the shape of a Llama, to time quantised weights without a download. It has no tokenizer, so it can only be used with `lateen bench engine`.

    python tools/make_random_gguf.py OUT Q8_0|Q4_0|Q4_K|Q6_K [LAYERS WIDTH HEADS KV_HEADS FFN VOCAB]      (numpy; default: Llama-1B, heads of 64)
"""
import struct
import sys

import numpy as np

HEAD = 64
BLOCKS = 1 << 18  # Number of different blocks, which are then repeated.
TYPES = {  # ggml's number, elements and bytes of a block, places of its f16 scales, their value: weights of about 0.02
    "Q4_0": (2, 32, 18, (0,), 0.004),
    "Q8_0": (8, 32, 34, (0,), 0.0003),
    "Q4_K": (12, 256, 144, (0, 2), 0.0001),
    "Q6_K": (14, 256, 210, (208,), 0.00002),
}


def text(x):
    return struct.pack("<Q", len(x)) + x.encode()


def metadata(layers, width, heads, kv_heads, ffn, vocab):
    numbers = {"block_count": layers, "context_length": 8192, "embedding_length": width, "feed_forward_length": ffn, "attention.head_count": heads,
               "attention.head_count_kv": kv_heads, "attention.key_length": HEAD, "attention.value_length": HEAD, "rope.dimension_count": HEAD,
               "vocab_size": vocab}
    rows = [text("general.architecture") + struct.pack("<I", 8) + text("llama")]
    rows += [text("llama." + k) + struct.pack("<II", 4, v) for k, v in numbers.items()]
    rows += [text("llama." + k) + struct.pack("<If", 6, v) for k, v in (("attention.layer_norm_rms_epsilon", 1e-5), ("rope.freq_base", 5e5))]
    return rows


def tensors(layers, width, heads, kv_heads, ffn, vocab, kind):
    out = [("token_embd.weight", (vocab, width), kind), ("output_norm.weight", (width,), 0)]
    for i in range(layers):
        matrices = (("attn_q", heads * HEAD, width), ("attn_k", kv_heads * HEAD, width), ("attn_v", kv_heads * HEAD, width),
                    ("attn_output", width, heads * HEAD), ("ffn_gate", ffn, width), ("ffn_up", ffn, width), ("ffn_down", width, ffn))
        out += [(f"blk.{i}.{name}.weight", (width,), 0) for name in ("attn_norm", "ffn_norm")]
        out += [(f"blk.{i}.{name}.weight", (rows, cols), kind) for name, rows, cols in matrices]
    return out


def main():
    path, name = sys.argv[1:3]
    shape = tuple(map(int, sys.argv[3:9])) or (16, 2048, 32, 8, 8192, 128256)
    kind, elements, size, places, scale = TYPES[name]
    blocks = np.random.default_rng(1).integers(0, 256, (BLOCKS, size), dtype=np.uint8)
    for at in places:
        blocks[:, at:at + 2] = np.frombuffer(np.float16(scale).tobytes(), np.uint8)
    blocks = blocks.tobytes()
    rows, all_tensors = metadata(*shape), tensors(*shape, kind)
    info, at, sizes = b"", 0, []
    for title, dims, what in all_tensors:
        count = int(np.prod(dims))
        sizes.append(count * 4 if what == 0 else count // elements * size)
        info += text(title) + struct.pack("<I", len(dims)) + b"".join(struct.pack("<Q", d) for d in reversed(dims)) + struct.pack("<IQ", what, at)
        at += (sizes[-1] + 31) // 32 * 32
    head = b"GGUF" + struct.pack("<IQQ", 3, len(all_tensors), len(rows)) + b"".join(rows) + info
    with open(path, "wb") as f:
        f.write(head + bytes(-len(head) % 32))
        for (_, dims, what), left in zip(all_tensors, sizes, strict=True):
            pad = -left % 32
            if what == 0:
                f.write(np.ones(dims, np.float32).tobytes())
                left = 0
            while left > 0:
                f.write(blocks[:left])
                left -= min(left, len(blocks))
            f.write(bytes(pad))


main()
