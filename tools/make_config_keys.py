"""Make tests/golden/config_keys.json: the measured effect of each key of a config.json in Hugging Face transformers, family by family.

    python tools/make_config_keys.py          (transformers 5.23, torch 2.15; CPU)

Each family has "base", the config.json of a small model; "own", the keys of its configuration class; and "keys". "keys" has every key of any family's class, every key that
the code of models, masks, caches and rotary embeddings reads from a config, and some from files of earlier versions. For each of them it has a value that differs from that of base, and
    same      the logits of 24 tokens in one call, and of 3 more generated with a cache, are those of base
    differs   they are not
    error     transformers does not open the model, or fails
"""
import dataclasses
import json
import pathlib
import re
import shutil
import tempfile

import torch
import transformers

torch.set_num_threads(1)
transformers.logging.set_verbosity(50)
transformers.logging.disable_progress_bar()
ROOT = pathlib.Path(__file__).resolve().parent.parent / "tests/golden/config_keys.json"
CLASSES = {"gpt2": "GPT2Config", "llama": "LlamaConfig", "qwen2": "Qwen2Config", "qwen3": "Qwen3Config", "gemma2": "Gemma2Config",
           "gemma3_text": "Gemma3TextConfig", "apertus": "ApertusConfig", "mixtral": "MixtralConfig", "mistral": "MistralConfig", "phi3": "Phi3Config",
           "olmo2": "Olmo2Config", "smollm3": "SmolLM3Config", "granite": "GraniteConfig", "qwen3_moe": "Qwen3MoeConfig", "gpt_oss": "GptOssConfig"}
SHARED = ["masking_utils.py", "cache_utils.py", "modeling_utils.py", "modeling_rope_utils.py", "integrations/sdpa_attention.py"]
V, N, MORE = 32, 24, 3
SIZES = dict(vocab_size=V, hidden_size=32, intermediate_size=24, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
             max_position_embeddings=64, pad_token_id=None, bos_token_id=None, eos_token_id=None)
BASE = {"gpt2": dict(vocab_size=V, n_embd=32, n_head=4, n_layer=3, n_positions=64, bos_token_id=None, eos_token_id=None),
        "qwen2": dict(SIZES, sliding_window=6), "qwen3": dict(SIZES, sliding_window=6, head_dim=8),
        "gemma2": dict(SIZES, sliding_window=6, head_dim=8), "gemma3_text": dict(SIZES, sliding_window=6, head_dim=8),
        "mixtral": dict(SIZES, num_local_experts=4), "mistral": dict(SIZES, sliding_window=None),
        "phi3": dict(SIZES, original_max_position_embeddings=16),
        "smollm3": dict(SIZES, no_rope_layer_interval=2),
        "granite": dict(SIZES, embedding_multiplier=3.0, attention_multiplier=0.25, residual_multiplier=0.5, logits_scaling=2.0),
        "qwen3_moe": dict(SIZES, head_dim=8, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=24),
        "gpt_oss": dict(SIZES, head_dim=8, num_local_experts=4, num_experts_per_tok=2, sliding_window=6,
                        rope_parameters=dict(rope_type="yarn", rope_theta=150000.0, factor=4.0, beta_fast=32.0, beta_slow=1.0, truncate=False,
                                             original_max_position_embeddings=16))}
VALUES = {  # Values for keys whose default does not show which other values there are.
    "is_causal": False, "layer_types": ["full_attention", "sliding_attention", "full_attention"], "sliding_window": 5, "attention_chunk_size": 4,
    "rope_parameters": dict(rope_type="linear", rope_theta=10000.0, factor=4.0), "rope_scaling": dict(type="linear", factor=4.0), "rope_theta": 50.0,
    "rope_local_base_freq": 50.0, "partial_rotary_factor": 0.5, "head_dim": 16, "n_inner": 40, "use_bidirectional_attention": True,
    "sliding_window_pattern": 2, "_sliding_window_pattern": 2, "max_window_layers": 0, "original_max_position_embeddings": 8, "pad_token_id": 5,
    "bos_token_id": 3, "eos_token_id": 3, "hidden_act": "relu", "hidden_activation": "relu", "activation_function": "relu", "dtype": "bfloat16",
    "torch_dtype": "bfloat16", "id2label": {"0": "a", "1": "b", "2": "c"}, "label2id": {"a": 0, "b": 1, "c": 2}, "problem_type": "regression",
    "architectures": ["XModel"], "transformers_version": "4.0.0", "max_position_embeddings": 48, "n_positions": 48, "n_ctx": 48, "num_experts": 2,
    "quantization_config": {"quant_method": "gptq", "bits": 4}, "attn_logit_softcapping": 0.5, "final_logit_softcapping": 0.5, "per_layer_config": {},
    "kv_sharing_modes": ["none", "reuse", "none"], "rope_interleaved": True, "n_embd": 64, "n_head": 2, "n_layer": 2, "query_pre_attn_scalar": 4,
    "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "text_config": {"hidden_size": 32}, "vision_config": {"hidden_size": 8},
    "summary_type": "last", "summary_activation": "tanh", "use_mrope": True, "pruned_heads": {"0": [1]}, "tie_encoder_decoder": True,
    "num_key_value_heads": 4, "no_rope_layers": [0, 1, 0], "mlp_only_layers": [1], "decoder_sparse_step": 2, "num_experts_per_tok": 1,
}
EXTRA = ["rope_scaling", "rope_theta", "rope_local_base_freq", "partial_rotary_factor", "sliding_window_pattern", "_sliding_window_pattern", "n_ctx",
         "torch_dtype", "num_experts", "quantization_config", "qk_norm", "use_qk_norm", "alibi", "logit_scale", "per_layer_config", "is_decoder",
         "use_mrope", "norm_topk_prob", "cross_attention_hidden_size", "tie_encoder_decoder", "pruned_heads", "torchscript", "temperature", "attn_scale",
         "no_rope_layers", "embedding_multiplier", "residual_multiplier", "attention_multiplier", "logits_scaling", "clip_qkv", "parallel_attn"]
SKIP = {"vocab_size", "intermediate_size", "num_local_experts", "hidden_dropout", "attn_implementation"}


def asked(text):
    return set(re.findall(r"[gs]etattr\((?:self\.)?config, \"([a-z_]+)\"", text))


def own_keys(home, family, klass):
    keys = {f.name: None if f.default is dataclasses.MISSING else f.default for f in dataclasses.fields(klass)}
    name = family.removesuffix("_text")
    for path in [home / f"models/{name}/modeling_{name}.py"] + [home / p for p in SHARED]:
        keys |= {k: keys.get(k) for k in asked(path.read_text())}
    return {k: v for k, v in keys.items() if not k.startswith("_")}


def other(key, default):
    if key in VALUES:
        return VALUES[key]
    if isinstance(default, bool) or default is None:
        return not default
    return default + 1 if isinstance(default, int) else default * 0.5 + 0.1 if isinstance(default, float) else "other"


def logits(folder, tokens):
    m = transformers.AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager", dtype=torch.float32).eval()
    force = lambda ids, scores: torch.full_like(scores, -torch.inf).scatter(1, tokens[:, ids.shape[1]][:, None], 0.0)
    with torch.no_grad():
        whole = m(tokens[:, :N], use_cache=False).logits[0]
        out = m.generate(tokens[:, :N], max_new_tokens=MORE, do_sample=False, use_cache=True, return_dict_in_generate=True, output_logits=True,
                         eos_token_id=None, pad_token_id=0, logits_processor=transformers.LogitsProcessorList([force]))
    return torch.cat([whole, *out.logits]).float()


def measure(folder, config, tokens, want):
    (folder / "config.json").write_text(json.dumps(config))
    try:
        return "same" if torch.allclose(logits(folder, tokens), want, atol=1e-5, rtol=1e-4) else "differs"
    except Exception:  # Whatever the error is, transformers cannot run such a model.
        return "error"


def main():
    home = pathlib.Path(transformers.__file__).parent
    own = {f: own_keys(home, f, getattr(transformers, name)) for f, name in CLASSES.items()}
    everything = {k: v for keys in own.values() for k, v in keys.items()} | {k: None for k in EXTRA}
    tokens = torch.randint(0, V, (1, N + MORE), generator=torch.Generator().manual_seed(5))
    out = {}
    for family, name in CLASSES.items():
        folder = pathlib.Path(tempfile.mkdtemp())
        torch.manual_seed(1)
        m = transformers.AutoModelForCausalLM.from_config(getattr(transformers, name)(**BASE.get(family, SIZES)))
        for p in m.parameters():
            p.data += 0.3 * torch.randn(p.shape)
        m.save_pretrained(folder)
        (folder / "generation_config.json").unlink(missing_ok=True)
        base = json.loads((folder / "config.json").read_text())
        if family in ("gemma3_text", "gemma2", "qwen2", "qwen3", "smollm3", "gpt_oss"):
            del base["layer_types"]  # So that the keys from which they are derived have an effect.
        if family in ("qwen2", "qwen3"):
            base |= dict(sliding_window=6, max_window_layers=0)
        base.pop("_sliding_window_pattern", None)
        (folder / "config.json").write_text(json.dumps(base))
        want = logits(folder, tokens)
        keys = {}
        for key in sorted(set(everything) - SKIP):
            value = other(key, own[family].get(key, everything[key]))
            if base.get(key) == value:
                value = None if key in ("num_key_value_heads",) else other("", base[key])
            keys[key] = dict(value=value, outcome=measure(folder, base | {key: value}, tokens, want))
        out[family] = dict(base=base, own=sorted(own[family]), keys=keys)
        shutil.rmtree(folder)
        print(family, {o: sum(k["outcome"] == o for k in keys.values()) for o in ("same", "differs", "error")},
              "differs:", " ".join(k for k, v in keys.items() if v["outcome"] == "differs"), flush=True)
    ROOT.write_text(json.dumps(out, indent=None, separators=(",", ":")).replace('},"', '},\n"') + "\n")


main()
