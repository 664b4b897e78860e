#!/usr/bin/env python3
"""Golden data for tests/unit/data: token shards and training rows made by Megatron-LM itself (Apertus's fork).

usage: tools/golden_megatron.py MEGATRON_LM_CHECKOUT tests/golden/data

Runs indexed_dataset.py (the builder of .bin/.idx) and, from gpt_dataset.py, the functions that make the masks, the position ids and
the Goldfish loss. Needs numpy and torch; no code of Megatron is copied. Writes
    megatron_i32.{bin,idx}    three documents, the second of two sequences, ids up to 131071
    megatron_u16.{bin,idx}    40 documents, each closed by EOD = 2, vocabulary 1000
    rows_<k>_<h>.i32          for each row of 256 tokens of megatron_u16, one after another: tokens, labels, loss mask, position
                              ids, the first position that attention may see; Goldfish with this k and h, both resets, EOD masked
    goldfish_table.u64        the Goldfish table's first 64 entries as u64 of 2^24ths, then a sum and an XOR-fold over all of it
"""
import ast
import sys
import types
from pathlib import Path

import numpy as np
import torch

SEQ, EOD, VOCAB = 256, 2, 1000


def module(path, wanted=None):
    """The names of a source file, whose imports of megatron are stubs; with `wanted`, only these definitions."""
    tree = ast.parse(path.read_text())
    keep = []
    for node in tree.body:
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            name = node.names[0].name if isinstance(node, ast.Import) else node.module
            if name.startswith("megatron"):
                for alias in node.names:
                    keep.append(ast.parse(f"{alias.asname or alias.name} = object").body[0])
                continue
            keep.append(node)
        elif wanted is None or getattr(node, "name", None) in wanted:
            keep.append(node)
        elif isinstance(node, ast.Assign) and any(getattr(t, "id", "").startswith("_") for t in node.targets):
            keep.append(node)
    for node in keep:
        for inner in ast.walk(node):  # Annotations name stubbed types.
            if isinstance(inner, ast.FunctionDef):
                inner.returns = None
                for a in inner.args.args:
                    a.annotation = None
    names = types.ModuleType(path.stem)
    sys.modules[path.stem] = names
    exec(compile(ast.fix_missing_locations(ast.Module(keep, [])), str(path), "exec"), names.__dict__)
    return names


def main():
    checkout, out = Path(sys.argv[1]) / "megatron/core/datasets", Path(sys.argv[2])
    shards = module(checkout / "indexed_dataset.py")
    rows = module(checkout / "gpt_dataset.py", {"_get_ltor_masks_and_position_ids", "_create_hash_table", "apply_goldfish"})

    b = shards.IndexedDatasetBuilder(str(out / "megatron_i32.bin"), dtype=np.int32)
    b.add_document(torch.tensor([1, 2, 3]), [3])
    b.add_document(torch.tensor([131071, 21, 22, 23, 24]), [2, 3])
    b.add_document(torch.tensor([9]), [1])
    b.finalize(str(out / "megatron_i32.idx"))

    rng = np.random.default_rng(7)
    b = shards.IndexedDatasetBuilder(str(out / "megatron_u16.bin"), dtype=shards.DType.optimal_dtype(VOCAB))
    stream = []
    for _ in range(40):
        doc = list(rng.integers(3, VOCAB, int(rng.integers(1, 400)))) + [EOD]
        if rng.random() < 0.1:
            doc[0] = 0  # A zero makes every product that contains it zero.
        b.add_document(torch.tensor(doc), [len(doc)])
        stream += doc
    b.finalize(str(out / "megatron_u16.idx"))

    table = rows._create_hash_table(device="cpu")
    for k, h in ((50, 50), (3, 13)):
        kept = []
        for at in range(0, len(stream) - SEQ, SEQ):
            text = torch.tensor(stream[at : at + SEQ + 1]).long()
            tokens, labels = text[:-1].contiguous(), text[1:].contiguous()
            attention, loss, positions = rows._get_ltor_masks_and_position_ids(tokens, EOD, True, True, True, True)
            fish = rows.apply_goldfish(labels, -2, k=k, goldfish_hash_table=table, goldfish_context_width=h)
            loss[fish == -2] = 0.0
            start = (~attention[0]).int().argmax(dim=1)
            kept += [tokens, labels, loss.long(), positions, start]
        np.concatenate([x.numpy().astype("<i4") for x in kept]).tofile(out / f"rows_{k}_{h}.i32")

    raw = (table.double() * 2**24).numpy().astype("<u8")
    fold = np.bitwise_xor.reduce(raw * (np.arange(raw.size, dtype=np.uint64) * 2 + 1))
    np.concatenate([raw[:64], [raw.sum(), fold]]).astype("<u8").tofile(out / "goldfish_table.u64")


main()
