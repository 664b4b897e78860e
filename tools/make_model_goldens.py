"""Make tests/golden/model/<case>/: small random models, run by Hugging Face transformers in float64.

    python tools/make_model_goldens.py [case ...]          (transformers 5.23, torch 2.15; CPU)

A case is a folder:
    config.json, model.safetensors      the model as transformers saves it; weights are exact in bfloat16
    golden.safetensors                  tokens, labels, [positions, doc_start]; logits; loss_rows; losses of ten AdamW steps; aux
    grads/                              the same folder, with the gradient of the SUM of losses in place of each weight
    delta/                              the same, with (weights after ten steps - weights before) in bfloat16
transformers has no class for Switch; SwitchModel below is a plain, independent implementation of it in PyTorch.
"""
import copy
import json
import math
import pathlib
import shutil
import sys

import torch
import transformers
from safetensors.torch import save_file
from torch.nn import functional as F

transformers.logging.set_verbosity_error()
ROOT = pathlib.Path(__file__).resolve().parent.parent / "tests/golden/model"
B, T, V, STEPS = 2, 24, 64, 10
# pad_token_id None: otherwise torch.nn.Embedding gives the row of padding_idx no gradient.
LR, BETAS, EPS, DECAY = 1e-3, (0.9, 0.95), 1e-8, 0.1
SIZES = dict(pad_token_id=None, vocab_size=V, hidden_size=32, intermediate_size=40, num_hidden_layers=2, num_attention_heads=4,
             num_key_value_heads=2, max_position_embeddings=64, attn_implementation="eager")


class SwitchModel(torch.nn.Module):
    """Decoder-only Switch: RMSNorm, RoPE, grouped attention; ReLU experts, top-1, weight = probability, capacity in row order."""

    def __init__(self, c):
        super().__init__()
        C, H, G, D, Fw, E = (c[k] for k in ("hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim",
                                            "intermediate_size", "num_local_experts"))
        p = {"model.embed_tokens.weight": (V, C), "model.norm.weight": (C,), "lm_head.weight": (V, C)}
        for i in range(c["num_hidden_layers"]):
            n = f"model.layers.{i}."
            p |= {n + "input_layernorm.weight": (C,), n + "post_attention_layernorm.weight": (C,),
                  n + "self_attn.q_proj.weight": (H * D, C), n + "self_attn.k_proj.weight": (G * D, C),
                  n + "self_attn.v_proj.weight": (G * D, C), n + "self_attn.o_proj.weight": (C, H * D),
                  n + "mlp.router.weight": (E, C)}
            for e in range(E):
                p |= {n + f"mlp.experts.{e}.up_proj.weight": (Fw, C), n + f"mlp.experts.{e}.down_proj.weight": (C, Fw)}
        self.c = c
        self.p = torch.nn.ParameterDict({k.replace(".", "|"): torch.nn.Parameter(torch.empty(s)) for k, s in p.items()})

    def w(self, name):
        return self.p[name.replace(".", "|")]

    def named(self):
        return [(k.replace("|", "."), v) for k, v in self.p.items()]

    def norm(self, x, name):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.c["rms_norm_eps"]) * self.w(name)

    def rope(self, x, positions):
        half = x.shape[-1] // 2
        angle = positions[:, :, None].double() / 10000 ** (torch.arange(half) * 2.0 / (2 * half))
        cos, sin = angle.cos()[:, :, None], angle.sin()[:, :, None]
        a, b = x[..., :half], x[..., half:]
        return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)

    def moe(self, x, n, capacity):
        shape, x = x.shape, x.reshape(-1, x.shape[-1])
        logits = x @ self.w(n + "router.weight").T
        probs = logits.softmax(-1)
        best, expert = probs.max(-1)
        E, y = probs.shape[1], torch.zeros_like(x)
        for e in range(E):
            rows = (expert == e).nonzero()[:, 0]
            rows = rows[:capacity] if capacity else rows
            h = (x[rows] @ self.w(n + f"experts.{e}.up_proj.weight").T).relu() @ self.w(n + f"experts.{e}.down_proj.weight").T
            y = y.index_add(0, rows, h * best[rows, None])
        return y.reshape(shape), logits

    def forward(self, ids, positions, mask, capacity):
        c, routers = self.c, []
        H, G, D = c["num_attention_heads"], c["num_key_value_heads"], c["head_dim"]
        x = self.w("model.embed_tokens.weight")[ids]
        for i in range(c["num_hidden_layers"]):
            n = f"model.layers.{i}."
            h = self.norm(x, n + "input_layernorm.weight")
            q, k, v = ((h @ self.w(n + f"self_attn.{s}_proj.weight").T).unflatten(-1, (-1, D)) for s in "qkv")
            q, k = self.rope(q, positions), self.rope(k, positions)
            k, v = (t.repeat_interleave(H // G, 2) for t in (k, v))
            score = torch.einsum("bthd,bshd->bhts", q, k) / math.sqrt(D)
            att = torch.einsum("bhts,bshd->bthd", (score + mask).softmax(-1), v).flatten(2)
            x = x + att @ self.w(n + "self_attn.o_proj.weight").T
            y, logits = self.moe(self.norm(x, n + "post_attention_layernorm.weight"), n + "mlp.", capacity)
            x = x + y
            routers.append(logits)
        return self.norm(x, "model.norm.weight") @ self.w("lm_head.weight").T, routers

    def save(self, folder, dtype):
        folder.mkdir(parents=True)
        (folder / "config.json").write_text(json.dumps(self.c, indent=2))
        save_file({k: v.detach().to(dtype).contiguous() for k, v in self.named()}, folder / "model.safetensors")


def rope(kind, theta=10000.0, **more):
    return dict(rope_type=kind, rope_theta=theta, **more)


LLAMA3 = rope("llama3", 500000.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=16)
CASES = {  # name: (config class, its arguments, documents)
    "gpt2": ("GPT2Config", dict(vocab_size=V, n_embd=32, n_layer=2, n_head=4, n_inner=64, n_positions=32, bos_token_id=0, eos_token_id=0), False),
    "gpt2_scaled": ("GPT2Config", dict(vocab_size=V, n_embd=32, n_layer=3, n_head=4, n_positions=32, bos_token_id=0, eos_token_id=0,
                                       scale_attn_by_inverse_layer_idx=True, scale_attn_weights=False), True),
    "llama3": ("LlamaConfig", dict(SIZES, rope_parameters=LLAMA3), False),
    "llama_bias": ("LlamaConfig", dict(SIZES, attention_bias=True, mlp_bias=True, tie_word_embeddings=True,
                                       rope_parameters=rope("linear", factor=4.0)), True),
    "qwen2": ("Qwen2Config", dict(SIZES, tie_word_embeddings=True), False),
    "qwen3": ("Qwen3Config", dict(SIZES, head_dim=16, num_key_value_heads=1), True),
    "gemma2": ("Gemma2Config", dict(SIZES, num_hidden_layers=3, head_dim=8, query_pre_attn_scalar=16, sliding_window=7,
                                    attn_logit_softcapping=1.5, final_logit_softcapping=5.0), True),
    "gemma3": ("Gemma3TextConfig", dict(SIZES, num_hidden_layers=3, head_dim=8, query_pre_attn_scalar=16, sliding_window=7,
                                        final_logit_softcapping=5.0,
                                        layer_types=["sliding_attention", "full_attention", "sliding_attention"]), False),
    "apertus": ("ApertusConfig", dict(SIZES, rope_parameters=LLAMA3), True),
    "mixtral": ("MixtralConfig", dict(SIZES, intermediate_size=24, num_local_experts=4, num_experts_per_tok=2,
                                      sliding_window=9, router_aux_loss_coef=0.02), False),
    "mistral": ("MistralConfig", dict(SIZES, head_dim=12, sliding_window=9), True),
    "phi3": ("Phi3Config", dict(SIZES, bos_token_id=None, eos_token_id=None,
                                original_max_position_embeddings=16, partial_rotary_factor=0.75,
                                rope_parameters=rope("longrope", partial_rotary_factor=0.75, short_factor=[1.0, 1.1, 1.2],
                                                     long_factor=[1.5, 3.0, 6.0])), False),
    "yarn": ("Qwen3Config", dict(SIZES, head_dim=16, tie_word_embeddings=True,
                                 rope_parameters=rope("yarn", factor=4.0, original_max_position_embeddings=16)), True),
    "olmo2": ("Olmo2Config", dict(SIZES, attention_bias=True), True),
    "smollm3": ("SmolLM3Config", dict(SIZES, num_hidden_layers=3, no_rope_layers=[1, 0, 1], tie_word_embeddings=True,
                                      bos_token_id=None, eos_token_id=None), True),
    "granite": ("GraniteConfig", dict(SIZES, embedding_multiplier=3.0, attention_multiplier=0.25, residual_multiplier=0.3,
                                      logits_scaling=2.5, tie_word_embeddings=True), False),
    "qwen3_moe": ("Qwen3MoeConfig", dict(SIZES, head_dim=16, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=24,
                                         norm_topk_prob=True, router_aux_loss_coef=0.02), True),
    "phi4": ("Phi3Config", dict(SIZES, bos_token_id=None, eos_token_id=None, original_max_position_embeddings=64,
                                rope_parameters=rope("default", 250000.0)), True),
    "gpt_oss": ("GptOssConfig", dict(SIZES, intermediate_size=24, head_dim=16, num_hidden_layers=3, num_local_experts=4,
                                     num_experts_per_tok=2, sliding_window=7, router_aux_loss_coef=0.02, swiglu_limit=0.8,
                                     layer_types=["sliding_attention", "full_attention", "sliding_attention"],
                                     rope_parameters=rope("yarn", 150000.0, factor=4.0, beta_fast=32.0, beta_slow=1.0, truncate=False,
                                                          original_max_position_embeddings=16)), True),
    "qwen3_moe_dense": ("Qwen3MoeConfig", dict(SIZES, num_hidden_layers=3, head_dim=16, num_experts=4, num_experts_per_tok=2,
                                               moe_intermediate_size=24, norm_topk_prob=True, router_aux_loss_coef=0.02,
                                               mlp_only_layers=[0]), False),
    "switch": (None, dict(model_type="switch", architectures=["LateenSwitchForCausalLM"], vocab_size=V, hidden_size=32,
                          intermediate_size=24, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=8,
                          max_position_embeddings=64, rms_norm_eps=1e-5, rope_parameters=rope("default"), hidden_act="relu",
                          num_local_experts=4, num_experts_per_tok=1, expert_capacity_factor=1.0,
                          router_aux_loss_coef=0.02, router_z_loss_coef=0.01), False),
}
LATER = ["mistral", "phi3", "yarn", "olmo2", "smollm3", "granite", "qwen3_moe", "phi4", "gpt_oss", "qwen3_moe_dense"]
ORDER = sorted(k for k in CASES if k not in LATER) + LATER  # The seeds of the first cases do not change.
BY_LAYER_TYPE = ("gemma2", "gemma3", "gpt_oss")  # Their models take a mask for each type of layer.


def fill(model, named, seed):
    """Set weights that all have an effect: unit-gain matrices, gains about 1, visible biases; rounded to bfloat16."""
    g = torch.Generator().manual_seed(seed)
    for name, p in sorted(named, key=lambda kv: kv[0]):
        z = torch.randn(p.shape, generator=g, dtype=torch.float64)
        if "alpha" in name:
            z = 0.3 + 0.3 * z
        elif p.ndim >= 2:
            z = z * (0.5 if "embed" in name or "wte" in name or "wpe" in name else p.shape[-1] ** -0.5)
        elif name.endswith("bias"):
            z = 0.1 * z
        else:  # The gain of a norm; Gemma stores gain - 1.
            z = 0.2 * z + (0 if getattr(model.config, "model_type", "").startswith("gemma") else 1) if hasattr(model, "config") else 1 + 0.2 * z
        p.data = z.to(torch.bfloat16).double()


def batch(documents, seed):
    g = torch.Generator().manual_seed(seed)
    tokens = torch.randint(0, V, (B, T), generator=g)
    labels = torch.randint(0, V, (B, T), generator=g)
    labels[0, 3] = labels[1, 0] = labels[1, T - 1] = -1
    start = torch.zeros(B, T, dtype=torch.long)
    if documents:
        for row, cuts in enumerate(((5, 13), (1, 20))):
            for cut in cuts:
                start[row, cut:] = cut
    return tokens, labels, start, torch.arange(T)[None] - start


def mask_of(start, window):
    t, s = torch.arange(T)[:, None], torch.arange(T)[None]
    see = (s <= t)[None] & (s[None] >= start[:, :, None])
    if window:
        see = see & (s > t - window)[None]
    return torch.zeros(B, 1, T, T, dtype=torch.float64).masked_fill(~see[:, None], torch.finfo(torch.float64).min)


def aux_losses(routers, top_k):
    """The auxiliary losses by our definition (tensor/ops.h): sums over layers of E sum_e f_e P_e and of mean lse^2."""
    balance = z = torch.zeros((), dtype=torch.float64)
    for logits in routers:
        probs = logits.double().softmax(-1)
        E = probs.shape[-1]
        f = F.one_hot(probs.topk(top_k).indices, E).double().sum(1).mean(0) / top_k
        balance = balance + E * (f * probs.mean(0)).sum()
        z = z + logits.double().logsumexp(-1).pow(2).mean()
    return balance, z


def make(case):
    klass, arguments, documents = CASES[case]
    seed = ORDER.index(case) + 1
    folder = ROOT / case
    shutil.rmtree(folder, ignore_errors=True)
    if klass is None:
        model = SwitchModel(arguments).double()
        named = model.named()
    else:
        config = getattr(transformers, klass)(**arguments)
        model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager", experts_implementation="eager").double().eval()
        named = list(model.named_parameters())
    fill(model, named, seed)
    tokens, labels, start, positions = batch(documents, 100 + seed)
    top_k = arguments.get("num_experts_per_tok", 0)
    aux_coef, z_coef = arguments.get("router_aux_loss_coef", 0), arguments.get("router_z_loss_coef", 0)
    full = mask_of(start, arguments.get("sliding_window") if case in ("mixtral", "mistral") else 0)

    seen = []
    for module in model.modules():
        if type(module).__name__.endswith("TopKRouter"):
            module.register_forward_hook(lambda _, __, out: seen.append(out[0]))

    def run(capacity):
        if klass is None:
            return model(tokens, positions, full, capacity)
        mask = full if case not in BY_LAYER_TYPE else {"full_attention": full, "sliding_attention": mask_of(start, config.sliding_window)}
        seen.clear()  # transformers' own aux loss cannot use a 4-D mask, so the routers' logits are read by hooks.
        return model(input_ids=tokens, attention_mask=mask, position_ids=positions, use_cache=False).logits, list(seen)

    def losses(logits):
        return F.cross_entropy(logits.reshape(-1, V), labels.reshape(-1), ignore_index=-1, reduction="none").reshape(B, T)

    n = int((labels >= 0).sum())
    capacity = math.ceil(arguments["expert_capacity_factor"] * B * T * top_k / 4) if klass is None else 0
    logits, _ = run(0)
    golden = dict(tokens=tokens.int(), labels=labels.int(), logits=logits.detach().float(), loss_rows=losses(logits).detach())
    if documents:
        golden |= dict(positions=positions.int(), doc_start=start.int())
    save = (lambda m, f, t: m.save(f, t)) if klass is None else (lambda m, f, t: m.to(t).save_pretrained(f))
    save(copy.deepcopy(model), folder, torch.bfloat16)

    before = {k: v.detach().clone() for k, v in named}
    decays = {k: p.ndim >= 2 and not k.endswith("bias") for k, p in named}
    decay = [p for k, p in named if decays[k]]
    rest = [p for k, p in named if not decays[k]]
    opt = torch.optim.AdamW([dict(params=decay, weight_decay=DECAY), dict(params=rest, weight_decay=0.0)], lr=LR, betas=BETAS, eps=EPS)
    history, aux = [], None
    for step in range(STEPS + 1):
        opt.zero_grad()
        logits, routers = run(capacity)
        loss = losses(logits).sum() / n
        history.append(loss.item())
        if step == STEPS:
            break
        if top_k:
            balance, z = aux_losses(routers, top_k)
            aux = [balance.item(), z.item()] if aux is None else aux
            loss = loss + aux_coef * balance + z_coef * z
        loss.backward()
        if step == 0:
            twin = copy.deepcopy(model)
            for (_, p), (_, q) in zip(named, twin.named() if klass is None else twin.named_parameters()):
                q.data = p.grad * n
            save(twin, folder / "grads", torch.float32)
        opt.step()
    twin = copy.deepcopy(model)
    for (k, p), (_, q) in zip(named, twin.named() if klass is None else twin.named_parameters()):
        q.data = p.data - before[k]
    save(twin, folder / "delta", torch.bfloat16)
    golden["losses"] = torch.tensor(history, dtype=torch.float64)
    if aux:
        golden["aux"] = torch.tensor(aux, dtype=torch.float64)
    save_file({k: v.contiguous() for k, v in golden.items()}, folder / "golden.safetensors")
    for extra in folder.rglob("generation_config.json"):
        extra.unlink()
    print(case, "loss", history[0], "->", history[-1], "bytes", sum(f.stat().st_size for f in folder.rglob("*") if f.is_file()))


def make_mxfp4():
    """gpt_oss_mxfp4: a file whose experts are 4-bit blocks like OpenAI's, decoded by transformers; tokens and logits."""
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    folder = ROOT / "gpt_oss_mxfp4"
    shutil.rmtree(folder, ignore_errors=True)
    arguments = dict(CASES["gpt_oss"][1], intermediate_size=32, num_hidden_layers=2, layer_types=["sliding_attention", "full_attention"])
    config = transformers.GptOssConfig(**arguments)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager", experts_implementation="eager").double().eval()
    fill(model, list(model.named_parameters()), 77)
    g = torch.Generator().manual_seed(78)
    packed = {}
    for name, p in model.named_parameters():
        if name.endswith(("gate_up_proj", "down_proj")) and "experts" in name:
            E, K, rows = p.shape
            blocks = torch.randint(0, 256, (E, rows, K // 32, 16), generator=g, dtype=torch.uint8)
            scales = torch.randint(121, 126, (E, rows, K // 32), generator=g, dtype=torch.uint8)
            packed |= {name + "_blocks": blocks, name + "_scales": scales}
            p.data = convert_moe_packed_tensors(blocks, scales).double()
    tokens, _, _, _ = batch(False, 79)
    mask = {"full_attention": mask_of(torch.zeros(B, T, dtype=torch.long), 0),
            "sliding_attention": mask_of(torch.zeros(B, T, dtype=torch.long), config.sliding_window)}
    logits = model(input_ids=tokens, attention_mask=mask, position_ids=torch.arange(T)[None].expand(B, T), use_cache=False).logits
    folder.mkdir(parents=True)
    whole = config.to_dict() | {"quantization_config": {"quant_method": "mxfp4"}, "architectures": ["GptOssForCausalLM"]}
    (folder / "config.json").write_text(json.dumps(whole, indent=2))
    plain = {k: v.detach().to(torch.bfloat16).contiguous() for k, v in model.named_parameters() if k + "_blocks" not in packed}
    save_file(plain | packed, folder / "model.safetensors")
    save_file(dict(tokens=tokens.int(), logits=logits.detach().float()), folder / "golden.safetensors")


for name in sys.argv[1:] or [*CASES, "gpt_oss_mxfp4"]:
    make_mxfp4() if name == "gpt_oss_mxfp4" else make(name)
