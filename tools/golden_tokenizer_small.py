#!/usr/bin/env python3
"""Write tests/golden/data/demo_tokenizer.json: a byte-level BPE of 1,024 entries for tests that need a tokenizer.

usage: zstd -dc data/demo/val.jsonl.zst | tools/golden_tokenizer_small.py tests/golden/data/demo_tokenizer.json
"""
import json
import sys

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

t = Tokenizer(models.BPE())
t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
t.decoder = decoders.ByteLevel()
trainer = trainers.BpeTrainer(vocab_size=1024, special_tokens=["<|endoftext|>"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False)
t.train_from_iterator([json.loads(line)["text"] for line in sys.stdin], trainer)
t.save(sys.argv[1], pretty=False)
