#!/usr/bin/env python3
"""Write src/data/tokenizer/unicode_scripts.c: the script of each code point according to the UnicodeScripts pre-tokenizer.

The source is the `tokenizers` package, not the Unicode database, because the package implements an old release and joins kana with
Han. Two characters have the same script if the package does not cut between them; a character that it never cuts off belongs to every script.

    python3 tools/make_unicode_scripts.py > src/data/tokenizer/unicode_scripts.c
"""
import tokenizers
from tokenizers import pre_tokenizers

PRE = pre_tokenizers.UnicodeScripts()


def cut(a, b):
    return len(PRE.pre_tokenize_str(chr(a) + chr(b))) == 2


def classes():
    """Runs (first code point, class); class 0 is every script."""
    heads = []  # A representative of each class, from 1.
    runs, last = [], None
    for c in (c for c in range(0x110000) if not 0xD800 <= c <= 0xDFFF):
        if last and last[1] > 0 and not cut(last[0], c) and (cut(ord("a"), c) or cut(0x5D0, c)):
            k = last[1]
        elif not cut(ord("a"), c) and not cut(0x5D0, c):
            k = 0
        else:
            k = next((i + 1 for i, h in enumerate(heads) if not cut(h, c)), 0)
            if k == 0:
                heads.append(c)
                k = len(heads)
        if not runs or runs[-1][1] != k:
            runs.append((c, k))
        last = (c, k)
    return runs


def main():
    runs = classes()
    print(f"/* Written by tools/make_unicode_scripts.py; tokenizers {tokenizers.__version__}. */")
    print('#include "data/tokenizer/unicode_tables.h"\n')
    print("/* First code point << 8 | class; class 0 belongs to every script. */")
    print(f"const uint32_t lt_unicode_script_runs[{len(runs)}] = {{")
    values = [f"0x{c << 8 | k:X}," for c, k in runs]
    for i in range(0, len(values), 9):
        print("    " + " ".join(values[i : i + 9]))
    print("};")
    print(f"const uint32_t lt_unicode_script_count = {len(runs)};")


main()
