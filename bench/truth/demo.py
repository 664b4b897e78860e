"""Functions that the scripts in this folder share: data/demo as tokens, and running a command that must succeed."""
import os
import subprocess
import sys

HERE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def quiet(*command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr[-3000:]}")


def prepare(lateen, folder, entries):
    """Make a tokenizer of this many entries and a shard in `folder`; return the shard's prefix."""
    text, tokenizer, shard = os.path.join(HERE, "data/demo/train.jsonl.zst"), os.path.join(folder, "tokenizer.json"), os.path.join(folder, "train")
    quiet(lateen, "tokenizer", "train", text, "--vocab-size", str(entries), "--special", "<|endoftext|>", "--out", tokenizer)
    quiet(lateen, "tokenize", text, "--tokenizer", tokenizer, "--append-eod", "--out", shard)
    return shard
