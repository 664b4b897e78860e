"""Make models whose next token depends only on the last one, to time speculative decoding with a known share of right drafts.

    python bench/successor_models.py OUT [LAYERS WIDTH VOCAB]      (numpy; default: Llama-1B's shape)

Each id belongs to one of 512 classes, and a class has one likely successor, of probability 0.85 at temperature 1; all other ids share the rest. The layers compute all that a model of this shape
computes, but their last products are zero, so that nothing is added to the residual stream. OUT/target is the model; OUT/small, of a quarter of its layers and an eighth of its width, has the
classes of 85 % of the ids; OUT/wrong, of the same shape, has none. OUT/head is an EAGLE-3 head of the target, with half its ids, which has the successors of 85 % of the classes. OUT/mtp1 and OUT/mtp3 are the target in MiMo's form
with one and three layers of multi-token prediction, each of which has the successors of 85 % of the classes. At temperature 0 a text soon runs in a circle, so that drafts copied from it are always right: an upper bound. The folders have
no tokenizer, and can only be used with `lateen bench engine`."""
import json
import os
import sys

import numpy as np

CLASSES, LIKELY = 512, 0.85


def bf16(x):
    return (x.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)


def write(folder, tensors, config):
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as f:
        json.dump(config, f)
    header, at = {}, 0
    for name, t in tensors.items():
        header[name] = {"dtype": "I64" if t.dtype == np.int64 else "BF16", "shape": list(t.shape), "data_offsets": [at, at + t.nbytes]}
        at += t.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(os.path.join(folder, "model.safetensors"), "wb") as f:
        f.write(len(text).to_bytes(8, "little") + text)
        for t in tensors.values():
            t.tofile(f)


def predictor(layer, width, heads, kv_heads, codes, share, rng):
    """A layer of multi-token prediction: it uses its token's embedding, which is the direction of its class. For 1 - share of the classes, the MLP replaces it by another one."""
    ffn, dim, sharp = 4 * width, width // heads, 24.0
    knows = rng.random(CLASSES) < share
    found, moved = np.zeros((ffn, width), np.float32), np.zeros((width, ffn), np.float32)
    found[:CLASSES] = codes * (sharp / width)
    moved[:, :CLASSES] = (np.where(knows[:, None], codes, codes[rng.permutation(CLASSES)]) - codes).T / sharp**2
    takes = np.concatenate([np.zeros((width, width), np.float32), np.eye(width, dtype=np.float32)], 1)
    small = bf16(np.resize(rng.standard_normal(1 << 20) * 0.02, (heads * dim, width)))
    one, rows = bf16(np.ones(width)), {"q": heads * dim, "k": kv_heads * dim, "v": kv_heads * dim}
    tensors = {"input_proj.weight": bf16(takes), "self_attn.o_proj.weight": np.zeros((width, heads * dim), np.uint16), "mlp.gate_proj.weight": bf16(found), "mlp.up_proj.weight": bf16(found),
               "mlp.down_proj.weight": bf16(moved)}
    tensors |= {f"self_attn.{name}_proj.weight": small[:n] for name, n in rows.items()} | {f"self_attn.{name}_proj.bias": np.zeros(n, np.uint16) for name, n in rows.items()}
    tensors |= {f"{name}_layernorm.weight": one for name in ("token", "hidden", "input", "post_attention", "final")}
    return {f"model.mtp_layers.{layer}.{name}": t for name, t in tensors.items()}


def model(folder, layers, width, heads, kv_heads, vocab, class_of, successor, predictors=0):
    """class_of (vocab), successor (CLASSES): ids. A class is a random direction: the embedding of its ids, and the head's row of its successor."""
    rng = np.random.default_rng(width)
    ffn, dim = 4 * width, width // heads
    codes = rng.standard_normal((CLASSES, width)).astype(np.float32)
    codes /= np.sqrt((codes**2).mean(1, keepdims=True))
    head = np.zeros((vocab, width), np.uint16)
    head[successor] = bf16(codes * (np.log(LIKELY / (1 - LIKELY) * vocab) / width))
    noise, one = bf16(rng.standard_normal(1 << 22) * 0.02), bf16(np.ones(width))

    def random(rows, columns):
        return np.resize(noise, (rows, columns))

    tensors = {"model.embed_tokens.weight": bf16(codes)[class_of], "lm_head.weight": head, "model.norm.weight": one}
    for i in range(layers):
        p = f"model.layers.{i}."
        tensors |= {p + "input_layernorm.weight": one, p + "post_attention_layernorm.weight": one,
                    p + "self_attn.q_proj.weight": random(heads * dim, width), p + "self_attn.k_proj.weight": random(kv_heads * dim, width),
                    p + "self_attn.v_proj.weight": random(kv_heads * dim, width), p + "self_attn.o_proj.weight": np.zeros((width, heads * dim), np.uint16),
                    p + "mlp.gate_proj.weight": random(ffn, width), p + "mlp.up_proj.weight": random(ffn, width),
                    p + "mlp.down_proj.weight": np.zeros((width, ffn), np.uint16)}
        if predictors > 0:
            tensors |= {f"{p}self_attn.{name}_proj.bias": np.zeros(n * dim, np.uint16) for name, n in (("q", heads), ("k", kv_heads), ("v", kv_heads))}
    for i in range(predictors):
        tensors |= predictor(i, width, heads, kv_heads, codes, 0.85, rng)
    kind = ({"architectures": ["MiMoForCausalLM"], "model_type": "mimo", "num_nextn_predict_layers": predictors} if predictors > 0 else
            {"architectures": ["LlamaForCausalLM"], "model_type": "llama"})
    write(folder, tensors, kind | {"hidden_size": width, "intermediate_size": ffn, "num_hidden_layers": layers,
                                   "num_attention_heads": heads, "num_key_value_heads": kv_heads, "head_dim": dim, "vocab_size": vocab, "max_position_embeddings": 8192,
                                   "rms_norm_eps": 1e-5, "rope_theta": 500000.0, "hidden_act": "silu", "tie_word_embeddings": False, "bos_token_id": 1, "eos_token_id": 2,
                                   "torch_dtype": "bfloat16"})


def head(folder, width, heads, kv_heads, vocab, class_of, successor, share):
    """The fused hidden state of a token is the direction of its class. For `share` of the classes, the MLP replaces it by that of the next class, with one column for each class.
    lm_head, like the model's own head, has the successor of this class. Call k of the head advances once more."""
    rng = np.random.default_rng(width)
    ffn, dim, half, sharp = 4 * width, width // heads, vocab // 2, 24.0
    codes = rng.standard_normal((CLASSES, width)).astype(np.float32)  # The same as in model().
    codes /= np.sqrt((codes**2).mean(1, keepdims=True))
    after = class_of[successor]  # The class of a class's successor.
    found, moved = np.zeros((ffn, width), np.float32), np.zeros((width, ffn), np.float32)
    knows = rng.random(CLASSES) < share
    found[:CLASSES] = codes * (sharp / width)
    moved[:, :CLASSES] = (np.where(knows[:, None], codes[after], codes[rng.permutation(CLASSES)]) - codes).T / sharp**2
    ids = np.sort(np.concatenate([successor, rng.choice(np.setdiff1d(np.arange(vocab), successor), half - CLASSES, replace=False)]))
    rows = np.zeros((half, width), np.float32)
    rows[np.searchsorted(ids, successor)] = codes / width * 10
    layer, one, zero = "midlayer.", bf16(np.ones(width)), lambda *shape: np.zeros(shape, np.uint16)
    fuse = np.zeros((width, 3 * width), np.float32)
    fuse[:, :width] = np.eye(width)
    small = bf16(np.resize(rng.standard_normal(1 << 20) * 0.02, (heads * dim, 2 * width)))
    tensors = {"fc.weight": bf16(fuse), "lm_head.weight": bf16(rows), "norm.weight": one, layer + "input_layernorm.weight": one, layer + "hidden_norm.weight": one,
               layer + "post_attention_layernorm.weight": one, layer + "self_attn.q_proj.weight": small, layer + "self_attn.k_proj.weight": small[: kv_heads * dim],
               layer + "self_attn.v_proj.weight": small[: kv_heads * dim], layer + "self_attn.o_proj.weight": zero(width, heads * dim),
               layer + "mlp.gate_proj.weight": bf16(found), layer + "mlp.up_proj.weight": bf16(found), layer + "mlp.down_proj.weight": bf16(moved),
               "d2t": ids - np.arange(half)}
    write(folder, tensors, {"architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", "hidden_size": width, "intermediate_size": ffn, "num_hidden_layers": 1,
                            "num_attention_heads": heads, "num_key_value_heads": kv_heads, "head_dim": dim, "vocab_size": vocab, "draft_vocab_size": half,
                            "max_position_embeddings": 8192, "rms_norm_eps": 1e-5, "rope_theta": 500000.0, "hidden_act": "silu", "tie_word_embeddings": False,
                            "bos_token_id": 1, "eos_token_id": 2, "torch_dtype": "bfloat16"})


def main():
    out = sys.argv[1]
    layers, width, vocab = (list(map(int, sys.argv[2:5])) + [16, 2048, 128256][len(sys.argv[2:5]):])
    rng = np.random.default_rng(1)
    class_of, successor = rng.integers(0, CLASSES, vocab), rng.choice(np.arange(8, vocab), CLASSES, replace=False)

    def mistaken(share):
        return np.where(rng.random(vocab) < share, rng.integers(0, CLASSES, vocab), class_of)

    groups, small = max(1, width // 256), max(64, width // 8)
    drafts = (max(1, layers // 4), small, max(1, small // 64), max(1, small // 128), vocab)
    for name, predictors in (("target", 0), ("mtp1", 1), ("mtp3", 3)):
        model(os.path.join(out, name), layers, width, 4 * groups, groups, vocab, class_of, successor, predictors)
    model(os.path.join(out, "small"), *drafts, mistaken(0.15), successor)
    model(os.path.join(out, "wrong"), *drafts, mistaken(1.0), successor)
    head(os.path.join(out, "head"), width, 4 * groups, groups, vocab, class_of, successor, 0.85)


main()
