"""Makes the adapters with which golden runs of PEFT start, and which are kept in tests/golden."""
import json
import os

import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file


def starting_adapters(model, base, folder, task_type):
    """The model of the folder `base` with random adapters of rank 2, which are saved in `folder`: their values are F32, so that the file has exactly the start."""
    torch.manual_seed(1)
    model = get_peft_model(model, LoraConfig(task_type=task_type, r=2, lora_alpha=4, lora_dropout=0.0, target_modules=["q_proj", "v_proj", "down_proj"], base_model_name_or_path=base))
    for p in model.parameters():
        if p.requires_grad:
            p.data = p.data.float().double()
    model.save_pretrained(folder)
    path = f"{folder}/adapter_model.safetensors"
    save_file({k: v.float().contiguous() for k, v in load_file(path).items()}, path, metadata={"format": "pt"})
    for name in set(os.listdir(folder)) - {"adapter_config.json", "adapter_model.safetensors"}:
        os.remove(f"{folder}/{name}")
    config = json.load(open(f"{folder}/adapter_config.json"))
    config["target_modules"].sort()  # PEFT writes a set.
    json.dump(config, open(f"{folder}/adapter_config.json", "w"), indent=1)
    return model
