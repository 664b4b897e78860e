"""Make tests/golden/model/generation.json: the texts of transformers' generate for tests/golden/model/llama3 with several generation_config.json.

    python tools/make_generation_goldens.py          (transformers 5.23, torch 2.15; CPU)

A case has eos_token_id of config.json, the whole generation_config.json, the ids of a prompt, and the new ids with the ending one. All are greedy, since each
program draws random numbers in its own way.
"""
import json
import pathlib
import shutil
import tempfile

import torch
import transformers

transformers.logging.set_verbosity_error()
ROOT = pathlib.Path(__file__).resolve().parent.parent / "tests/golden/model"
PROMPT, NEW = [1, 17, 42, 9, 30], 40


def run(eos, generation):
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        shutil.copy(ROOT / "llama3/model.safetensors", folder)
        config = json.loads((ROOT / "llama3/config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | {"eos_token_id": eos}))
        if generation is not None:
            (folder / "generation_config.json").write_text(json.dumps(generation))
        model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64)
        more = {} if generation and "max_new_tokens" in generation else {"max_new_tokens": NEW}
        out = model.generate(torch.tensor([PROMPT]), attention_mask=torch.ones(1, len(PROMPT), dtype=torch.long), pad_token_id=0, **more)
    return {"eos": eos, "generation": generation, "prompt": PROMPT, "ids": out[0, len(PROMPT):].tolist()}


def main():
    far = {"repetition_penalty": 1.3}
    free = run(None, {})["ids"]
    ranged = run(None, far)["ids"]
    assert len(free) == len(ranged) == NEW and free != ranged
    late = next(i for i in range(9, NEW) if ranged[i] not in ranged[:i])
    other = next(i for i in range(0, NEW) if i not in ranged and i > 2)
    cases = [
        run(None, {}),
        run([other, ranged[late]], far | {"eos_token_id": [other, ranged[late]]}),
        run(ranged[2], far | {"eos_token_id": [other, ranged[late]]}),  # generation_config.json takes precedence.
        run(2, far | {"eos_token_id": ranged[late], "do_sample": False, "temperature": 0.7}),
        run([other, free[3]], None),  # There is no such file: the list of config.json is used.
        run(None, far | {"max_new_tokens": 7}),
    ]
    (ROOT / "generation.json").write_text(json.dumps(cases, indent=1) + "\n")
    for c in cases:
        print(c["eos"], c["generation"], len(c["ids"]), c["ids"])


main()
