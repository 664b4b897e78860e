"""Make tests/golden/lora_experts: adapters of experts in PEFT's form (target_parameters). For each family an adapter without zeros, the loss of a batch, the gradients of the adapter under
PEFT's names, in double, and the merged experts of the first layer.

usage: make_expert_lora_goldens.py    (torch 2.15, transformers 5.24, peft 0.21.2)"""
import json
import shutil

import torch
from peft import LoraConfig, get_peft_model, get_peft_model_state_dict
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

for family in ("qwen3_moe", "mixtral"):
    base, out = f"tests/golden/model/{family}", f"tests/golden/lora_experts/{family}"
    shutil.rmtree(out, ignore_errors=True)
    torch.manual_seed(5)
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32, attn_implementation="eager", experts_implementation="eager")
    config = LoraConfig(r=3, lora_alpha=6, target_modules=["q_proj", "v_proj"], target_parameters=["mlp.experts.gate_up_proj", "mlp.experts.down_proj"], task_type="CAUSAL_LM")
    model = get_peft_model(model, config)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if "lora_" in name:
                p.copy_((torch.rand_like(p) - 0.5) * 0.3)
    model.save_pretrained(out)
    shutil.os.remove(f"{out}/README.md")
    state = json.load(open(f"{out}/adapter_config.json"))
    json.dump({**state, "base_model_name_or_path": base}, open(f"{out}/adapter_config.json", "w"), indent=1, sort_keys=True)
    model.double()
    g = torch.Generator().manual_seed(1)
    tokens = torch.randint(0, model.config.vocab_size, (2, 16), generator=g)
    labels = torch.randint(0, model.config.vocab_size, (2, 16), generator=g)
    labels[0, 3] = labels[1, 7] = -1
    logits = model(tokens).logits
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-1, reduction="sum")
    loss.backward()
    gradients = {n.replace(".default", ""): p.grad.float() for n, p in model.named_parameters() if "lora_" in n}
    assert set(gradients) == set(load_file(f"{out}/adapter_model.safetensors")) == set(get_peft_model_state_dict(model))
    merged = model.merge_and_unload().state_dict()
    experts = {k: merged[f"model.layers.0.mlp.experts.{k}"].float().contiguous() for k in ("gate_up_proj", "down_proj")}
    save_file({"tokens": tokens.int(), "labels": labels.int(), "loss": loss.detach().float().reshape(1), **gradients, **experts}, f"{out}/golden.safetensors")
