#!/usr/bin/env python3
"""Make tests/golden/lora_config.json: PEFT's keys of adapter_config.json, and the modules that get adapters with several configurations.

    python tools/make_lora_config_goldens.py          (peft 0.21.2, transformers 5.24, torch 2.15; CPU)

    defaults    the file that save_pretrained writes for a LoraConfig without options
    cases       options, and for each linear layer of tests/golden/sft that has an adapter [rank, alpha]
"""
import json
import pathlib
import tempfile

import peft
import transformers

ROOT = pathlib.Path(__file__).resolve().parent.parent / "tests/golden"
CASES = [
    dict(target_modules=["q_proj", "v_proj"]),
    dict(target_modules=["layers.0.self_attn.q_proj", "down_proj"]),
    dict(target_modules=["proj", "v_proj"]),
    dict(target_modules="all-linear"),
    dict(target_modules=r".*\.(q|k)_proj"),
    dict(target_modules=r"model\.layers\.1\..*_proj"),
    dict(target_modules=r"(?:.*?(?:mlp|self_attn).*?(?:gate_proj|o_proj).*?)|lm_head"),
    dict(target_modules="all-linear", exclude_modules=["v_proj", "layers.1.mlp.up_proj"]),
    dict(target_modules="all-linear", exclude_modules=r".*layers\.0.*|.*o_proj"),
    dict(target_modules=["q_proj", "lm_head"], layers_to_transform=[1]),
    dict(target_modules=["q_proj"], layers_to_transform=0),
    dict(target_modules=["q_proj", "k_proj"], layers_to_transform=[0, 1], layers_pattern="layers"),
    dict(target_modules=["q_proj", "k_proj"], layers_to_transform=[1], layers_pattern=["h", "layers"]),
    dict(target_modules=["embed_tokens", "lm_head", "q_proj"]),
    dict(target_modules="all-linear", rank_pattern={"q_proj": 3, "layers.1.mlp.up_proj": 5}, alpha_pattern={"v_proj": 7}),
    dict(target_modules="all-linear", rank_pattern={r"layers\.[01]\.self_attn\.(q|k)_proj": 3, "proj": 9, ".*proj": 6},
         alpha_pattern={"^model.layers.1.*": 2, "q_proj": 4}),
]


def modules(options):
    base = transformers.AutoModelForCausalLM.from_pretrained(ROOT / "sft")
    m = peft.get_peft_model(base, peft.LoraConfig(r=4, lora_alpha=8, task_type="CAUSAL_LM", **options))
    return {name.removeprefix("base_model.model."): [layer.r["default"], layer.lora_alpha["default"]]
            for name, layer in m.named_modules() if isinstance(layer, peft.tuners.lora.LoraLayer)}


def main():
    transformers.logging.set_verbosity_error()
    with tempfile.TemporaryDirectory() as folder:
        peft.LoraConfig().save_pretrained(folder)
        defaults = json.loads((pathlib.Path(folder) / "adapter_config.json").read_text())
    rows = []
    for options in CASES:
        try:
            rows.append({"options": options, "modules": modules(options)})
        except ValueError as e:
            raise SystemExit(f"{options}: {e}") from e
    lines = ",\n".join("  " + json.dumps(r) for r in rows)
    (ROOT / "lora_config.json").write_text(f'{{"defaults": {json.dumps(defaults)},\n "cases": [\n{lines}]}}\n')


if __name__ == "__main__":
    main()
