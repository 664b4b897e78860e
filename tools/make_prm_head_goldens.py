"""Write tests/golden/prm_head: a process reward model whose head has two layers, like that of Qwen2.5-Math-PRM, for tests/e2e/serve_steps.py.

    python3 tools/make_prm_head_goldens.py tests/golden/prm_head      (transformers 5.24, torch 2.15; CPU)

The trunk is transformers' Qwen2Model with random weights; the head is that of modeling_qwen2_rm.py, which comes with Qwen/Qwen2.5-Math-PRM-7B:
Sequential(Linear(C, C), ReLU(), Linear(C, 2)), read at <extra_0> after each step. The tokenizer and its template are those of tests/golden/sft, with
<extra_0> in the place of <|tool|>. The folder holds
    model/          config.json and bf16 weights
    truth.json      for each row its prompt and steps, and the softmax of both values at the ends of its steps, in double precision: "alone", without the
                    prompt; "chat", after the prompt as a message"""
import json
import os
import random
import sys

import torch
from safetensors.torch import save_file
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2Model

out, base = sys.argv[1], "tests/golden/sft"
WIDTH, SEPARATOR = 32, "<extra_0>"


def main():
    torch.set_num_threads(1)
    torch.manual_seed(3)
    text = open(f"{base}/tokenizer.json", encoding="utf-8").read().replace("<|tool|>", SEPARATOR)
    os.makedirs(f"{out}/model", exist_ok=True)
    with open("/tmp/prm_head_tokenizer.json", "w", encoding="utf-8") as f:
        f.write(text)
    tok = PreTrainedTokenizerFast(tokenizer_file="/tmp/prm_head_tokenizer.json")
    template = json.load(open(f"{base}/tokenizer_config.json"))["chat_template"]
    config = Qwen2Config(vocab_size=len(tok), hidden_size=WIDTH, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=128,
                         tie_word_embeddings=False, initializer_range=0.2, bos_token_id=tok.convert_tokens_to_ids("<s>"), eos_token_id=tok.convert_tokens_to_ids("<|end|>"), attn_implementation="eager")
    model = Qwen2Model(config)
    for name, p in model.named_parameters():  # Qwen2 starts with biases of 0.
        if name.endswith("bias"):
            torch.nn.init.normal_(p, std=0.2)
    head = torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.ReLU(), torch.nn.Linear(WIDTH, 2))
    for p in head.parameters():
        torch.nn.init.normal_(p, std=0.3)
    weights = {**{f"model.{n}": p for n, p in model.named_parameters()}, **{f"score.{n}": p for n, p in head.named_parameters()}}
    weights = {n: p.detach().bfloat16().contiguous() for n, p in weights.items()}
    save_file(weights, f"{out}/model/model.safetensors", metadata={"format": "pt"})
    json.dump({**config.to_dict(), "architectures": ["Qwen2ForProcessRewardModel"], "dtype": "bfloat16"}, open(f"{out}/model/config.json", "w"), indent=2, sort_keys=True)
    model.load_state_dict({n: weights[f"model.{n}"].double() for n, _ in model.named_parameters()})
    head.load_state_dict({n: weights[f"score.{n}"].double() for n, _ in head.named_parameters()})
    model, head = model.double().eval(), head.double()
    end = tok.convert_tokens_to_ids(SEPARATOR)

    def says(ids):
        with torch.no_grad():
            values = head(model(torch.tensor([ids])).last_hidden_state[0]).softmax(-1)
        return [values[i].tolist() for i, t in enumerate(ids) if t == end]

    r = random.Random(5)
    words = lambda n: " ".join(r.choice(["naïve", "der", "Fluss", "1234", "why", "yes", "no", "Paris"]) for _ in range(n))
    rows = []
    for _ in range(6):
        row = {"prompt": words(r.randrange(1, 6)), "steps": [words(r.randrange(1, 5)) for _ in range(r.randrange(1, 5))]}
        answer = tok("".join(s + SEPARATOR for s in row["steps"]), add_special_tokens=False).input_ids
        asked = tok.apply_chat_template([{"role": "user", "content": row["prompt"]}], chat_template=template, add_generation_prompt=True, return_dict=False, bos_token="<s>")
        rows.append({**row, "alone": says([config.bos_token_id, *answer]), "chat": says([*asked, *answer])})
    with open(f"{out}/truth.json", "w", encoding="utf-8") as f:
        json.dump(rows, f, ensure_ascii=False, indent=1)
    os.remove("/tmp/prm_head_tokenizer.json")


main()
