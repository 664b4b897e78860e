"""Write tests/golden/rl/scores.json: scores of answers by transformers' AutoModelForSequenceClassification, for tests/e2e/align_rewards.py.

    python3 tools/make_reward_goldens.py tests/golden/rl/scores.json       (transformers 5.24, torch 2.15; CPU)

The reward model is tests/golden/preference/reward, tokenizer and template those of tests/golden/sft. An element of the list has the messages, an answer, and the
score of both, rendered by apply_chat_template, in double precision."""
import json
import random
import sys

import torch
from transformers import AutoModelForSequenceClassification, PreTrainedTokenizerFast

tokenizer = PreTrainedTokenizerFast.from_pretrained("tests/golden/sft")
model = AutoModelForSequenceClassification.from_pretrained("tests/golden/preference/reward", dtype=torch.float64, attn_implementation="eager")
r = random.Random(11)


def words(n):
    return " ".join(r.choice(["naïve", "der", "Fluss", "😀", "is", "1234", "why", "yes", "no", "Paris"]) for _ in range(n))


lines = []
for i in range(8):
    messages = [{"role": "user", "content": words(1 + i)}]
    if i % 3 == 1:
        messages = [{"role": "system", "content": words(2)}, *messages, {"role": "assistant", "content": words(3)}, {"role": "user", "content": words(2)}]
    answer = words(1 + i % 4)
    ids = tokenizer.apply_chat_template([*messages, {"role": "assistant", "content": answer}], return_dict=False)
    lines.append({"messages": messages, "answer": answer, "score": model(torch.tensor([ids])).logits[0, 0].item()})
with open(sys.argv[1], "w") as f:
    f.write("[\n" + ",\n".join(json.dumps(line) for line in lines) + "\n]\n")
