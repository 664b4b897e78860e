#!/usr/bin/env python3
"""Make tests/golden/model/lora_whole/: PEFT folders that have weights of the model whole beside their adapters, and the merged weights, by PEFT in float32.

    python tools/make_lora_whole_goldens.py          (peft 0.21.2, transformers 5.24, torch 2.15; CPU)

    llama3  modules_to_save: embed_tokens, lm_head and the last norm; embedding and head are two matrices
    bias    bias = all beside a model whose attention and MLP have biases (llama_bias), and DoRA
    gpt2    modules_to_save: ln_f; bias = all; matrices are kept as (in, out)
    uneven  modules_to_save: the MLP of layer 1, which takes its linear layers from those with adapters, and the first norms; DoRA; ranks and alphas that differ
    tied    modules_to_save: embed_tokens, which is the output head of the base, too (qwen2): it cannot be merged into one matrix
Each has merged.safetensors, except tied."""
import json
import pathlib

import peft
import torch
import transformers
from safetensors.torch import save_file

transformers.logging.set_verbosity_error()
ROOT = pathlib.Path(__file__).resolve().parent.parent / "tests/golden/model"
OUT = ROOT / "lora_whole"
KINDS = {
    "llama3": ("llama3", dict(target_modules=["q_proj", "down_proj"], modules_to_save=["embed_tokens", "lm_head", "norm"])),
    "bias": ("llama_bias", dict(target_modules=["q_proj", "up_proj"], bias="all", use_dora=True)),
    "gpt2": ("gpt2", dict(target_modules=["c_attn"], bias="all", fan_in_fan_out=True, modules_to_save=["ln_f"])),
    "uneven": ("llama3", dict(target_modules="all-linear", modules_to_save=["1.mlp", "input_layernorm"], use_dora=True, rank_pattern={"q_proj": 1, "up_proj": 3},
                              alpha_pattern={"layers.0.mlp.down_proj": 7})),
    "tied": ("qwen2", dict(target_modules=["q_proj"], modules_to_save=["embed_tokens"])),
}


def main():
    for name, (of, how) in KINDS.items():
        torch.manual_seed(len(name))
        base = transformers.AutoModelForCausalLM.from_pretrained(ROOT / of, dtype=torch.float32)
        m = peft.get_peft_model(base, peft.LoraConfig(task_type="CAUSAL_LM", r=2, lora_alpha=4, init_lora_weights=False, **how))
        for p in m.parameters():
            if p.requires_grad:
                p.data = p.data + torch.randn_like(p) * 0.1
        (OUT / name).mkdir(parents=True, exist_ok=True)
        m.save_pretrained(OUT / name)
        (OUT / name / "README.md").unlink(missing_ok=True)
        path = OUT / name / "adapter_config.json"
        config = json.loads(path.read_text())
        config["base_model_name_or_path"] = f"tests/golden/model/{of}"
        path.write_text(json.dumps(config, indent=1, sort_keys=True) + "\n")
        if name != "tied":
            merged = m.merge_and_unload()
            tied = base.config.tie_word_embeddings
            save_file({k: v.detach().clone().contiguous() for k, v in merged.state_dict().items() if not (tied and k == "lm_head.weight")}, OUT / name / "merged.safetensors")


if __name__ == "__main__":
    main()
