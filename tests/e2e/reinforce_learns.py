"""The whole sequence of commands: problems of `lateen data make`, a tokenizer, fine-tuning, reinforcement learning, held-out problems. The fine-tuned model
marks one answer in four; the rewards teach it to mark all, and its answers to unseen problems do not get worse. Standard library only; TAP.

usage: reinforce_learns.py LATEEN"""
import json
import subprocess
import sys
import tempfile

from tap import Tap

lateen = sys.argv[1]
tap = Tap()


def run(*args):
    r = subprocess.run([lateen, *map(str, args)], capture_output=True, text=True)
    if r.returncode != 0:
        raise RuntimeError(r.stderr[-1000:])


def rows(out, kind):
    return [row for row in map(json.loads, open(f"{out}/metrics.jsonl")) if row["kind"] == kind]


with tempfile.TemporaryDirectory() as work:
    run("data", "make", "arithmetic", "--count", 12000, "--level", 1, "--steps", "none", "--out", f"{work}/made.jsonl", "--repeats", "drop")
    run("data", "make", "arithmetic", "--count", 1500, "--level", 1, "--steps", "none", "--seed", 1, "--out", f"{work}/train.jsonl")
    run("data", "make", "arithmetic", "--count", 200, "--level", 1, "--steps", "none", "--split", "held-out", "--out", f"{work}/held-out.jsonl")
    with open(f"{work}/chat.jsonl", "w") as chat, open(f"{work}/text.txt", "w") as text:
        for i, line in enumerate(open(f"{work}/made.jsonl")):
            made = json.loads(line)
            if i % 4:  # Without a mark.
                made["messages"][1]["content"] = f"It is {made['answer']}."
            chat.write(json.dumps({"messages": made["messages"]}) + "\n")
            text.write("".join(m["content"] + "\n" for m in made["messages"]))
    run("tokenizer", "train", f"{work}/text.txt", "--split-on", "line", "--vocab-size", 320, "--special", "<|endoftext|>,<|im_start|>,<|im_end|>", "--out", f"{work}/tokenizer.json")
    run("train", "--out", f"{work}/sft", "--data.tokenizer", f"{work}/tokenizer.json", "--data.chat_template", "chatml", "--data.train", f"{work}/chat.jsonl", "--model.family", "llama",
        "--model.layers", 2, "--model.width", 96, "--model.heads", 4, "--data.seq", 64, "--batch.size", 32, "--steps", 200, "--optim.lr", 3e-3, "--optim.decay", 0, "--sample.tokens", 0)
    run("train", "--out", f"{work}/rl", "--model.init", f"{work}/sft/model", "--data.train", f"{work}/train.jsonl", "--data.valid", f"{work}/held-out.jsonl", "--eval.every", 20,
        "--objective.kind", "dapo", "--rl.rewards", "answer,found", "--rl.group", 8, "--rl.tokens", 16, "--data.seq", 64, "--batch.size", 128, "--steps", 40, "--optim.lr", 5e-4,
        "--lr.schedule", "constant", "--optim.decay", 0, "--sample.tokens", 0)
    drawn, held_out = rows(f"{work}/rl", "rl"), rows(f"{work}/rl", "rl_eval")
    before, after = (sum(r["reward"] for r in part) / len(part) for part in (drawn[:4], drawn[-4:]))
    tap.check(f"the mean reward of drawn answers rises: {before:.3f}, then {after:.3f}", before < 0.5 and after > 0.9, [r["reward"] for r in drawn])
    at = [r["reward"] for r in held_out]
    tap.check(f"and that of greedy answers to held-out problems: {', '.join(f'{x:.3f}' for x in at)}", len(at) == 3 and at[0] < 0.9 < at[-1], at)
    run("convert", f"{work}/rl/model", f"{work}/rl.gguf")
    tap.check("the model is converted like any other", True)

sys.exit(tap.end())
