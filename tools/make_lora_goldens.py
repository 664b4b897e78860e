#!/usr/bin/env python3
"""Make tests/golden/serve/lora/: adapters of several kinds beside one model, by PEFT in float64.

    python tools/make_lora_goldens.py          (peft 0.21.2, transformers 5.24, torch 2.15; CPU)

The model is tests/golden/model/llama3.
    red     rank 4 on q_proj and v_proj
    green   rank 6, rsLoRA, on every linear layer; q_proj has rank 3 and a different alpha (rank_pattern, alpha_pattern)
    blue    rank 2 on gate_proj and down_proj of layer 1 only (layers_to_transform), in BF16
    gold    rank 3, DoRA, on q_proj, o_proj, up_proj and down_proj, with magnitudes that differ from the lengths of the rows
    lora.json   tokens; cases of {adapters, scales, logprobs}: the log-probability of each token but the first, with the adapters that are named, each
                times its scale; without one, those of the base
"""
import json
import pathlib

import peft
import torch
import transformers
from safetensors.torch import load_file, save_file

transformers.logging.set_verbosity_error()
ROOT = pathlib.Path(__file__).resolve().parent.parent / "tests/golden"
OUT = ROOT / "serve/lora"
KINDS = {
    "red": dict(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"]),
    "green": dict(r=6, lora_alpha=9, use_rslora=True, target_modules="all-linear", rank_pattern={"q_proj": 3}, alpha_pattern={"q_proj": 5}),
    "blue": dict(r=2, lora_alpha=6, target_modules=["gate_proj", "down_proj"], layers_to_transform=[1]),
    "gold": dict(r=3, lora_alpha=5, use_dora=True, target_modules=["q_proj", "o_proj", "up_proj", "down_proj"]),
}
CASES = [((), ()), (("red",), (1.0,)), (("green",), (1.0,)), (("blue",), (1.0,)), (("red",), (0.5,)), (("green",), (-1.5,)), (("red", "blue"), (1.0, 1.0)),
         (("red", "blue"), (0.25, 2.0)), (("gold",), (1.0,)), (("gold",), (-0.5,))]


def base():
    return transformers.AutoModelForCausalLM.from_pretrained(ROOT / "model/llama3", dtype=torch.float64, attn_implementation="eager")


def make(name, how):
    torch.manual_seed(len(name))
    m = peft.get_peft_model(base().float(), peft.LoraConfig(task_type="CAUSAL_LM", init_lora_weights=False, **how))
    for key, p in m.named_parameters():
        if "lora_" in key:
            p.data = p.data * (1 + 0.3 * torch.randn_like(p)) if "magnitude" in key else torch.randn_like(p) * 0.3
    m.save_pretrained(OUT / name)
    (OUT / name / "README.md").unlink(missing_ok=True)
    config = json.loads((OUT / name / "adapter_config.json").read_text())
    config["base_model_name_or_path"] = "tests/golden/model/llama3"
    (OUT / name / "adapter_config.json").write_text(json.dumps(config, indent=1, sort_keys=True) + "\n")
    if name == "blue":
        path = OUT / name / "adapter_model.safetensors"
        save_file({k: v.bfloat16() for k, v in load_file(path).items()}, path)


def case(tokens, names, scales):
    m = base()
    for name in names:
        if not isinstance(m, peft.PeftModel):
            m = peft.PeftModel.from_pretrained(m, OUT / name, adapter_name=name)
        else:
            m.load_adapter(OUT / name, adapter_name=name)
    if names:
        m.base_model.set_adapter(list(names))
        for module in m.modules():
            for name, scale in zip(names, scales):
                if isinstance(module, peft.tuners.lora.LoraLayer) and name in module.scaling:
                    module.set_scale(name, scale)
    m.double().eval()
    with torch.no_grad():
        lp = m(input_ids=torch.tensor([tokens]), use_cache=False).logits[0].log_softmax(-1)
    return {"adapters": names, "scales": scales, "logprobs": [float(lp[i, t]) for i, t in enumerate(tokens[1:])]}


def main():
    torch.manual_seed(5)
    OUT.mkdir(parents=True, exist_ok=True)
    tokens = torch.randint(3, 64, (20,)).tolist()
    for name, how in KINDS.items():
        make(name, how)
    out = {"tokens": tokens, "cases": [case(tokens, *c) for c in CASES]}
    (OUT / "lora.json").write_text(json.dumps(out, indent=1) + "\n")


if __name__ == "__main__":
    main()
