#!/usr/bin/env python3
"""Choose the novels of data/demo from ELTeC's English collection and pack them.

usage: zstd -dc eng.jsonl.zst | tools/make_demo_text.py data/demo

eng.jsonl has one novel per line: id, author, title, year, text (github.com/COST-ELTeC/ELTeC-eng, TEI body reduced to paragraphs).
Writes train.jsonl.zst, val.jsonl.zst and the table of SOURCE.md to standard output. Needs the zstd program.
"""
import json
import re
import subprocess
import sys
from pathlib import Path

TRAIN = """ENG18471_Bronte ENG18540_Dickens ENG18610_Eliot ENG18652_Carroll ENG18860_Hardy ENG18900_Doyle ENG18920_Grossmith
ENG18953_Macdonald ENG19011_Jerome ENG19060_Nesbit ENG19080_Chesterton ENG19090_Wells ENG19111_Hornung ENG19150_Buchan
ENG19170_Conrad""".split()
VAL = ["ENG18952_Wells", "ENG18910_Yeats"]  # Whole novels held out.


def clean(novel):
    title = re.sub(r"\s*:\s*ELTe[cC] edition", "", novel["title"]).strip()
    return {"id": novel["id"], "author": novel["author"].rstrip("."), "title": title, "year": novel["year"], "text": novel["text"]}


def main():
    out = Path(sys.argv[1])
    novels = {n["id"]: clean(n) for n in map(json.loads, sys.stdin)}
    print("| set | author | title | year | bytes |\n| --- | --- | --- | --- | --- |")
    for name, ids in (("train", TRAIN), ("val", VAL)):
        chosen = [novels[i] for i in ids if i in novels]
        lines = "".join(json.dumps(n, ensure_ascii=False) + "\n" for n in chosen)
        subprocess.run(["zstd", "-q", "-f", "--ultra", "-22", "-o", str(out / f"{name}.jsonl.zst")], input=lines.encode(), check=True)
        for n in chosen:
            print(f"| {name} | {n['author']} | {n['title']} | {n['year']} | {len(n['text'].encode()):,} |")


main()
