#!/usr/bin/env python3
"""Write tests/golden/draft_mtp and draft_mtp3: tiny models in the form of Xiaomi's MiMo, with Qwen2 layers and one layer of multi-token prediction, or three, which are trained for them; the logits at
each step of a draft, and the numbers of accepted draft tokens for a greedy text.

usage: make_mtp_goldens.py    (from the repository's root; needs numpy and autograd)

The code follows published sources: the layers of Qwen2 are as in transformers (with whose goldens Lateen's Qwen2 is tested: tests/golden/model), and the layer of multi-token prediction as in the class
MiMoMTPLayers of MiMo's modeling_mimo.py: the normalised hidden state and the normalised embedding, concatenated in this order, go through input_proj, a Qwen2 layer and final_layernorm. The inputs of the layer are as
in Xiaomi's vLLM (mimo_mtp.py): the output of the model's final norm and, after the first draft token, its own output. With several layers, layer k (from 0) is DeepSeek-V3's module k + 1 (equations 21
to 23 of arXiv:2412.19437): its row p has the output of layer k - 1 in row p, the model's for k = 0, and token p + k + 1; its logits are those of token p + k + 2. Draft token k is made by layer k, and
those after the last layer's by that layer from its own output. All rows of all layers are computed again for each draft token. Weights are rounded to BF16 and used in F64. The model's folder has two
shards, the second with these layers. expected.safetensors is as in tests/golden/draft_head (make_draft_head_goldens.py)."""
import json
import math
import pathlib
import struct

import autograd.numpy as np
from autograd import grad

GOLDEN = pathlib.Path("tests/golden")
WIDTH, HEADS, GROUPS, DIM, FFN, LAYERS, VOCAB = 32, 4, 2, 8, 48, 3, 80
TOKENS, STEPS, MOST, TEXT, EPS, THETA = 15, 5, 4, 120, 1e-5, 640000.0
TRAIN_STEPS, BATCH, LENGTH = 400, 96, 32
MTP = "model.mtp_layers."
FOLDERS = {"draft_mtp": (1, 12), "draft_mtp3": (3, 16)}  # Layers of multi-token prediction, and the seed.
random = np.random.RandomState()


def bits(x):
    """Each number rounded to BF16, ties to even, as uint16."""
    u = np.asarray(x, dtype="<f4").view("<u4").astype(np.uint64)
    return ((u + 0x7FFF + ((u >> 16) & 1)) >> 16).astype("<u2")


def rounded(x):
    return (bits(x).astype("<u4") << 16).view("<f4").astype(np.float64)


def normal(*shape, scale):
    return rounded(random.randn(*shape) * scale)


def save(path, tensors):
    """Write a safetensors file of (name, type, array); numbers are converted to BF16."""
    header, parts, at = {"__metadata__": {"format": "pt"}}, [], 0
    for name, kind, x in tensors:
        data = (bits(x) if kind == "BF16" else np.asarray(x, dtype={"F32": "<f4", "I32": "<i4"}[kind])).tobytes()
        header[name] = {"dtype": kind, "shape": list(np.shape(x)), "data_offsets": [at, at + len(data)]}
        parts.append(data)
        at += len(data)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(parts))


# ---- The model ----


def rmsnorm(x, gain):
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + EPS) * gain


def softmax(x):
    e = np.exp(x - np.max(x, axis=-1, keepdims=True))
    return e / np.sum(e, axis=-1, keepdims=True)


def rotate(x, n):  # (.., n, heads, DIM)
    angles = np.arange(n)[:, None] / THETA ** (np.arange(0, DIM, 2) / DIM)
    cos, sin = np.cos(angles)[:, None], np.sin(angles)[:, None]
    low, high = x[..., : DIM // 2], x[..., DIM // 2 :]
    return np.concatenate([low * cos - high * sin, high * cos + low * sin], -1)


def qwen2_layer(w, x):
    """(.., n, WIDTH); w: the layer's tensors by their names."""
    before, n = x.shape[:-2], x.shape[-2]
    y = rmsnorm(x, w["input_layernorm.weight"])
    q, k, v = (np.reshape(y @ w[f"self_attn.{name}_proj.weight"].T + w[f"self_attn.{name}_proj.bias"], (*before, n, -1, DIM)) for name in "qkv")
    q, k = rotate(q, n), rotate(k, n)
    q = np.reshape(q, (*before, n, GROUPS, -1, DIM))  # Query head h reads key head h / (HEADS / GROUPS).
    scores = np.einsum("...qgrd,...kgd->...grqk", q, k) / math.sqrt(DIM) + np.triu(np.full((n, n), -1e30), 1)
    x = x + np.reshape(np.einsum("...grqk,...kgd->...qgrd", softmax(scores), v), (*before, n, -1)) @ w["self_attn.o_proj.weight"].T
    y = rmsnorm(x, w["post_attention_layernorm.weight"])
    gate = y @ w["mlp.gate_proj.weight"].T
    return x + (gate / (1 + np.exp(-gate)) * (y @ w["mlp.up_proj.weight"].T)) @ w["mlp.down_proj.weight"].T


def final_states(m, tokens):
    """The output of the final norm."""
    x = m["model.embed_tokens.weight"][tokens]
    for layer in m["layers"]:
        x = qwen2_layer(layer, x)
    return rmsnorm(x, m["model.norm.weight"])


def logits_of(m, states):
    return states @ m["lm_head.weight"].T


def run_mtp(w, m, tokens, hidden):
    """Run rows of the layer: token[p + 1] and the hidden state of p give its output at p. (.., n), (.., n, WIDTH)"""
    embedded = rmsnorm(m["model.embed_tokens.weight"][tokens], w["token_layernorm.weight"])
    both = np.concatenate([rmsnorm(hidden, w["hidden_layernorm.weight"]), embedded], -1)
    return rmsnorm(qwen2_layer(w, both @ w["input_proj.weight"].T), w["final_layernorm.weight"])


def random_layer(scale):
    shapes = {"self_attn.q_proj.weight": (HEADS * DIM, WIDTH), "self_attn.k_proj.weight": (GROUPS * DIM, WIDTH), "self_attn.v_proj.weight": (GROUPS * DIM, WIDTH),
              "self_attn.o_proj.weight": (WIDTH, HEADS * DIM), "mlp.gate_proj.weight": (FFN, WIDTH), "mlp.up_proj.weight": (FFN, WIDTH), "mlp.down_proj.weight": (WIDTH, FFN)}
    w = {name: normal(*shape, scale=scale) for name, shape in shapes.items()}
    for name, rows in (("q", HEADS * DIM), ("k", GROUPS * DIM), ("v", GROUPS * DIM)):
        w[f"self_attn.{name}_proj.bias"] = normal(rows, scale=0.3)
    for name in ("input", "post_attention"):
        w[f"{name}_layernorm.weight"] = rounded(1 + normal(WIDTH, scale=0.1))
    return w


def random_model():
    return {"model.embed_tokens.weight": normal(VOCAB, WIDTH, scale=0.4), "lm_head.weight": normal(VOCAB, WIDTH, scale=0.4),
            "model.norm.weight": rounded(1 + normal(WIDTH, scale=0.1)), "layers": [random_layer(0.15) for _ in range(LAYERS)]}


def random_mtp():
    w = random_layer(0.2) | {"input_proj.weight": normal(WIDTH, 2 * WIDTH, scale=0.2)}
    return w | {f"{name}_layernorm.weight": rounded(1 + normal(WIDTH, scale=0.1)) for name in ("token", "hidden", "final")}


def sample(m, n):
    texts = random.randint(3, VOCAB, (n, 1))
    while texts.shape[1] < LENGTH:
        p = softmax(logits_of(m, final_states(m, texts)[:, -1]))
        drawn = (np.cumsum(p, axis=-1) > random.rand(n, 1)).argmax(-1)
        texts = np.concatenate([texts, drawn[:, None]], 1)
    return texts


# ---- Training ----


def train(m, layers, texts):
    """Train layer k on the model's distributions of the tokens k + 2 positions after its rows, and the last layer also on later ones, from its own last output, by Adam."""
    states = final_states(m, texts)
    goal = softmax(logits_of(m, states))
    w = {(k, name): t for k, layer in enumerate(layers) for name, t in layer.items()}
    n = len(layers)

    def cross(p, x):
        x = logits_of(m, x)
        x = x - np.max(x, axis=-1, keepdims=True)
        return -np.mean(np.sum(p * (x - np.log(np.sum(np.exp(x), axis=-1, keepdims=True))), axis=-1))

    def loss(w):
        total, last = 0, states
        for k in range(n + 1):  # The last layer runs once more.
            last = run_mtp({name: t for (layer, name), t in w.items() if layer == min(k, n - 1)}, m, texts[:, k + 1 :], last[:, :-1])
            total = total + cross(goal[:, k + 1 :], last) * (1 if k < n else 0.5)
        return total

    slope, first, second = grad(loss), {k: 0 for k in w}, {k: 0 for k in w}
    for step in range(1, TRAIN_STEPS + 1):
        for name, g in slope(w).items():
            first[name] = 0.9 * first[name] + 0.1 * g
            second[name] = 0.999 * second[name] + 0.001 * g * g
            w[name] = w[name] - 3e-3 * first[name] / (1 - 0.9**step) / (np.sqrt(second[name] / (1 - 0.999**step)) + 1e-8)
    print(f"loss {loss(w):.3f}")
    return [{name: rounded(t) for (layer, name), t in w.items() if layer == k} for k in range(n)]


# ---- Drafts ----


def draft(layers, m, text, states, steps):
    """Logits and tokens of `steps` draft tokens after text, whose last token has no hidden state."""
    tokens, n, logits, drafts, more = list(text), len(text) - 1, [], [], []
    for step in range(steps):
        last = states[:n]
        for k in range(min(step + 1, len(layers))):
            reads = last if k < len(layers) - 1 else np.concatenate([last] + more)
            last = run_mtp(layers[k], m, np.array(tokens[k + 1 : k + 1 + len(reads)]), reads)
        more += [last[-1:]] if step + 1 >= len(layers) else []  # The last layer continues with its own output.
        logits.append(logits_of(m, last[-1]))
        drafts.append(int(logits[-1].argmax()))
        tokens.append(drafts[-1])
    return logits, drafts


def write_with_drafts(m, layers, prompt):
    """The greedy text, TEXT tokens, and the numbers of accepted draft tokens."""
    text, accepted_at, drafted = list(prompt), [0] * MOST, 0
    text.append(int(logits_of(m, final_states(m, np.array(text)))[-1].argmax()))
    while len(text) - len(prompt) < TEXT:
        n = min(MOST, TEXT - (len(text) - len(prompt)) - 1)
        drafts = draft(layers, m, text, final_states(m, np.array(text)), n)[1]
        best = logits_of(m, final_states(m, np.array(text + drafts)))[len(text) - 1 :].argmax(-1).tolist()
        n_accepted = 0
        while n_accepted < n and drafts[n_accepted] == best[n_accepted]:
            accepted_at[n_accepted] += 1
            n_accepted += 1
        drafted += n
        text += best[: n_accepted + 1]
    return text[len(prompt) :], accepted_at, drafted


def save_model(out, m, layers):
    """Write two shards and their index, and config.json with the keys of MiMo's."""
    folder = out / "target"
    folder.mkdir(parents=True, exist_ok=True)
    base = [(name, "BF16", t) for name, t in m.items() if name != "layers"]
    base += [(f"model.layers.{i}.{name}", "BF16", t) for i, w in enumerate(m["layers"]) for name, t in w.items()]
    shards = {"model-00001-of-00002.safetensors": base, "model-00002-of-00002.safetensors": [(f"{MTP}{k}.{name}", "BF16", t) for k, w in enumerate(layers) for name, t in w.items()]}
    for name, tensors in shards.items():
        save(folder / name, tensors)
    index = {"metadata": {"total_size": sum(2 * t.size for s in shards.values() for _, _, t in s)}, "weight_map": {key: name for name, s in shards.items() for key, _, _ in s}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n")
    config = {"architectures": ["MiMoForCausalLM"], "attention_bias": True, "attention_dropout": 0.0, "bos_token_id": 1, "eos_token_id": 2, "head_dim": DIM, "hidden_act": "silu",
              "hidden_size": WIDTH, "initializer_range": 0.02, "intermediate_size": FFN, "max_position_embeddings": 256, "max_window_layers": LAYERS, "model_type": "mimo",
              "num_attention_heads": HEADS, "num_hidden_layers": LAYERS, "num_key_value_heads": GROUPS, "num_nextn_predict_layers": len(layers), "rms_norm_eps": EPS,
              "rope_scaling": None, "rope_theta": THETA, "sliding_window": 32768, "tie_word_embeddings": False, "torch_dtype": "bfloat16", "use_cache": True, "use_mrope": False,
              "use_sliding_window": False, "vocab_size": VOCAB}
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")


def write_golden(folder, n_layers, seed):
    random.seed(seed)
    m = random_model()
    layers = train(m, [random_mtp() for _ in range(n_layers)], sample(m, BATCH))
    save_model(GOLDEN / folder, m, layers)
    prompt = [int(x) for x in sample(m, 1)[0, :TOKENS]]
    text, accepted_at, drafted = write_with_drafts(m, layers, prompt)
    print(f"{folder}: {drafted} drafted, accepted by place {accepted_at}, {len(set(text))} different tokens")
    logits, drafts = draft(layers, m, prompt + text[:1], final_states(m, np.array(prompt)), STEPS)
    print(f"largest logit {np.abs(np.array(logits)).max():.2f}")
    save(GOLDEN / folder / "expected.safetensors", [("tokens", "I32", prompt + text[:1]), ("logits", "F32", np.array(logits)), ("drafts", "I32", drafts), ("text", "I32", text),
                                                    ("accepted_at", "I32", accepted_at), ("drafted", "I32", [drafted])])


for folder, (n_layers, seed) in FOLDERS.items():
    write_golden(folder, n_layers, seed)
