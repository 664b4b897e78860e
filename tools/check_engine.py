"""Compare greedy text of the engine with Hugging Face transformers in float32, on the same (dequantised) weights.

    build/examples/serve runs 50 prompts at once, 200 tokens each, without stopping at an end of text. Then transformers runs each prompt and its answer in one pass, and every token of the answer
    must be the most likely one there. A token that is not, but whose logit is within 1e-3 of the largest, is a tie, which is accepted and counted.

    python tools/check_engine.py MODEL.gguf [--prompts 50] [--tokens 200]          (transformers 5.23, torch 2.15; CPU)
"""
import argparse
import pathlib
import subprocess

import torch
import transformers

TIE = 1e-3
ROOT = pathlib.Path(__file__).resolve().parent.parent
SUBJECTS = ["tides", "a lighthouse keeper", "prime numbers", "bread", "the moon", "honest work", "rivers", "photosynthesis", "an old clock", "chess"]
FORMS = ["Explain {} to a child.", "Write a short story about {}.", "List five facts about {}.", "Write a poem about {} in four lines.",
         "What would you ask an expert on {}?"]


def prompts(tokenizer, n):
    out = []
    for i in range(n):
        text = FORMS[i % len(FORMS)].format(SUBJECTS[i // len(FORMS) % len(SUBJECTS)])
        if i % 2 == 0:  # Half of the prompts are chats, half plain texts.
            text = f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"
        out.append(tokenizer(text)["input_ids"])
    return out


def main():
    p = argparse.ArgumentParser()
    p.add_argument("model")
    p.add_argument("--prompts", type=int, default=50)
    p.add_argument("--tokens", type=int, default=200)
    o = p.parse_args()
    path = pathlib.Path(o.model)
    tokenizer = transformers.AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    asked = prompts(tokenizer, o.prompts)
    lines = "".join(" ".join(map(str, ids)) + "\n" for ids in asked)
    told = subprocess.run([ROOT / "build/examples/serve", path, str(o.tokens), "all"], input=lines, capture_output=True, text=True, check=True).stdout
    model = transformers.AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32)
    n_tokens = n_ties = n_wrong = 0
    nearest = 1e9
    for i, (ids, line) in enumerate(zip(asked, told.splitlines(), strict=True)):
        answer = list(map(int, line.split()))
        with torch.no_grad():
            logits = model(torch.tensor([ids + answer])).logits[0, len(ids) - 1:-1]
        chosen = logits[torch.arange(len(answer)), torch.tensor(answer)]
        top = logits.topk(2).values
        gap = top[:, 0] - chosen
        n_tokens += len(answer)
        n_ties += int(((gap > 0) & (gap <= TIE)).sum())
        n_wrong += int((gap > TIE).sum())
        nearest = min(nearest, float((top[:, 0] - top[:, 1]).min()))
        if (gap > TIE).any():
            at = int((gap > TIE).nonzero()[0])
            print(f"prompt {i}: token {at} is {answer[at]}, {float(gap[at]):.4f} below the most likely one")
    print(f"{o.prompts} prompts, {n_tokens} tokens: {n_wrong} wrong, {n_ties} ties within {TIE}; the smallest distance of the two largest logits: {nearest:.2g}")
    raise SystemExit(n_wrong > 0)


if __name__ == "__main__":
    main()
