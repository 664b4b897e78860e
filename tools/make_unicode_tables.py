#!/usr/bin/env python3
"""Write src/data/tokenizer/unicode_tables.c: the properties of every code point, as defined by the common tokenizers.

The tables do not follow a Unicode release but the behaviour of the packages whose ids Lateen must reproduce:
`tokenizers` (regex classes of Unicode 16, normalisation of Unicode 10, lower case of the Rust standard
library) and `tiktoken` (regex classes of Unicode 16). So each property is read from the packages, for
each of the 1,112,064 code points, and the script fails if the two disagree on a regex class.
Canonical combining classes come from Python's unicodedata where the package's NFD reorders the character.

    python3 tools/make_unicode_tables.py > src/data/tokenizer/unicode_tables.c
"""
import struct
import sys
import unicodedata

import tiktoken
import tokenizers
from tokenizers import Regex, normalizers, pre_tokenizers

CODE_POINTS = [c for c in range(0x110000) if not 0xD800 <= c <= 0xDFFF]
ALL_TEXT = "".join(map(chr, CODE_POINTS))
BLOCK = 128


def class_of(pattern):
    split = pre_tokenizers.Split(Regex(pattern), behavior="removed", invert=True)
    found = {ord(c) for piece, _ in split.pre_tokenize_str(ALL_TEXT) for c in piece}
    bpe = tiktoken._tiktoken.CoreBPE({bytes([i]): i for i in range(256)}, {}, pattern)
    other = set(map(ord, bytes(bpe.encode_ordinary(ALL_TEXT)).decode()))
    assert found == other, (pattern, len(found ^ other))
    return found


def isolated(pre):
    """Code points that the pre-tokenizer cuts off both neighbours."""
    return {c for c in CODE_POINTS if len(pre.pre_tokenize_str("a" + chr(c) + "a")) == 3}


def removed(norm):
    return {c for c in CODE_POINTS if norm.normalize_str(chr(c)) == ""}


def word_chars():
    pre = pre_tokenizers.Whitespace()
    return {c for c in CODE_POINTS if len(pre.pre_tokenize_str("a" + chr(c) + "a")) == 1}


def bert_sets():
    norm = normalizers.BertNormalizer(clean_text=True, handle_chinese_chars=False, strip_accents=False, lowercase=False)
    gone = {c for c in CODE_POINTS if norm.normalize_str("a" + chr(c) + "a") == "aa"}
    blank = {c for c in CODE_POINTS if norm.normalize_str("a" + chr(c) + "a") == "a a"}
    norm = normalizers.BertNormalizer(clean_text=False, handle_chinese_chars=True, strip_accents=False, lowercase=False)
    han = {c for c in CODE_POINTS if norm.normalize_str("a" + chr(c) + "a") == "a " + chr(c) + " a"}
    norm = normalizers.BertNormalizer(clean_text=False, handle_chinese_chars=False, strip_accents=True, lowercase=False)
    nfd = normalizers.NFD()
    mark = {c for c in CODE_POINTS if norm.normalize_str("a" + chr(c)) == "a" and nfd.normalize_str("a" + chr(c)) != "a"}
    return gone, blank, han, mark


def grapheme_extenders():
    """Code points that join the grapheme before them: a charsmap of 'A' -> 'x' replaces the whole cluster if it maps its first character."""
    units = [0] * 256
    units[0] = 128 << 10  # Double array: the root's children are at 128 ^ byte.
    units[128 ^ 0x41] = 1 << 10 | 1 << 8 | 0x41
    units[128 ^ 0x41 ^ 1] = 1 << 31  # The leaf: string 0.
    norm = normalizers.Precompiled(struct.pack("<257I", 1024, *units) + b"x\0")
    assert norm.normalize_str("AbA") == "xbx"
    return {c for c in CODE_POINTS if norm.normalize_str("A" + chr(c)) == "x"}


def nfc_inert():
    """Unchanged by NFC, of class 0, and never the second half of a composition."""
    nfc = normalizers.NFC()
    seconds = {key & 0xFFFFFFFF for key, _ in compositions()}
    seconds |= set(range(0x1161, 0x1176)) | set(range(0x11A7, 0x11C3))
    classes = {c for c, _ in combining_classes()}
    return {c for c in CODE_POINTS if c not in seconds and c not in classes and nfc.normalize_str(chr(c)) == chr(c)}


def properties():
    upper = class_of(r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]")
    lower = class_of(r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]")
    gone, blank, han, mark = bert_sets()
    return [
        ("LETTER", class_of(r"\p{L}")),
        ("NUMBER", class_of(r"\p{N}")),
        ("MARK", class_of(r"\p{M}")),
        ("PUNCT", class_of(r"\p{P}")),
        ("SYMBOL", class_of(r"\p{S}")),
        ("SPACE", class_of(r"\s")),
        ("UPPERISH", upper),
        ("LOWERISH", lower),
        ("NEWLINE", {10, 13}),
        ("NUMERIC", isolated(pre_tokenizers.Digits(individual_digits=True))),
        ("PUNCT_SPLIT", isolated(pre_tokenizers.Punctuation())),
        ("WORD", word_chars()),
        ("ACCENT", removed(normalizers.StripAccents())),
        ("BERT_GONE", gone),
        ("BERT_BLANK", blank),
        ("BERT_HAN", han),
        ("BERT_MARK", mark),
        ("HAN", class_of(r"\p{Han}")),
        ("NFC_INERT", nfc_inert()),
        ("EXTEND", grapheme_extenders()),
    ]


def emit(ctype, name, values, static="const"):
    print(f"{static} {ctype} {name}[{len(values)}] = {{")
    line = "   "
    for v in values:
        text = f" {v},"
        if len(line) + len(text) > 100:
            print(line)
            line = "   "
        line += text
    print(line + "\n};")


def emit_kinds(props):
    flags_of = [0] * 0x110000
    for bit, (_, members) in enumerate(props):
        for c in members:
            flags_of[c] |= 1 << bit
    kinds = sorted(set(flags_of))
    kind_of = {f: i for i, f in enumerate(kinds)}
    blocks, index = {}, []
    for start in range(0, 0x110000, BLOCK):
        block = tuple(kind_of[f] for f in flags_of[start:start + BLOCK])
        index.append(blocks.setdefault(block, len(blocks)))
    assert len(kinds) <= 256 and len(blocks) <= 65536
    emit("uint32_t", "lt_unicode_kind_flags", kinds + [0] * (256 - len(kinds)))
    emit("uint16_t", "lt_unicode_kind_index", index)
    emit("uint8_t", "lt_unicode_kind_blocks", [k for b in blocks for k in b])
    return len(kinds), len(blocks)


def mapping(norm):
    out = []
    for c in CODE_POINTS:
        text = norm.normalize_str(chr(c))
        if text != chr(c) and not 0xAC00 <= c <= 0xD7A3:
            out.append((c, text))
    return out


def emit_mapping(name, rows):
    pool, starts = [], [0]
    for _, text in rows:
        pool += [ord(c) for c in text]
        starts.append(len(pool))
    assert len(pool) < 65536
    emit("uint32_t", f"lt_unicode_{name}_from", [c for c, _ in rows])
    emit("uint16_t", f"lt_unicode_{name}_start", starts)
    emit("uint32_t", f"lt_unicode_{name}_pool", pool)
    print(f"const uint32_t lt_unicode_{name}_count = {len(rows)};")


def combining_classes():
    nfd = normalizers.NFD()
    rows = []
    for c in CODE_POINTS:
        ccc = unicodedata.combining(chr(c))
        if ccc == 0:
            continue
        after = "a\u0345" + chr(c)  # 240, the highest class
        before = "a" + chr(c) + "\u0334"  # 1, the lowest
        plain = nfd.normalize_str(chr(c))
        if nfd.normalize_str(after) != "a\u0345" + plain or nfd.normalize_str(before) != "a" + plain + "\u0334":
            rows.append((c, ccc))
        else:
            assert c > 0x7F0 and ccc != 240, hex(c)
    return rows


def compositions():
    nfc = normalizers.NFC()
    rows = []
    for c in CODE_POINTS:
        parts = unicodedata.decomposition(chr(c)).split()
        if len(parts) != 2 or parts[0].startswith("<") or 0xAC00 <= c <= 0xD7A3:
            continue
        a, b = (int(p, 16) for p in parts)
        if nfc.normalize_str(chr(a) + chr(b)) == chr(c):
            rows.append((a << 32 | b, c))
    return sorted(rows)


def main():
    print("/* unicode_tables.c: generated by tools/make_unicode_tables.py; do not edit.")
    print(f" * Read from tokenizers {tokenizers.__version__} and tiktoken {tiktoken.__version__}, combining classes of")
    print(f" * Unicode {unicodedata.unidata_version}. unicode.h explains the tables. */")
    print("/* clang-format off */")
    print('#include "data/tokenizer/unicode_tables.h"\n')
    props = properties()
    n_kinds, n_blocks = emit_kinds(props)
    emit_mapping("nfd", mapping(normalizers.NFD()))
    emit_mapping("nfkd", mapping(normalizers.NFKD()))
    emit_mapping("lower", mapping(normalizers.Lowercase()))
    ccc = combining_classes()
    emit("uint32_t", "lt_unicode_ccc", [c << 8 | k for c, k in ccc])
    print(f"const uint32_t lt_unicode_ccc_count = {len(ccc)};")
    comp = compositions()
    emit("uint64_t", "lt_unicode_compose_from", [f"{a}u" for a, _ in comp])
    emit("uint32_t", "lt_unicode_compose_to", [c for _, c in comp])
    print(f"const uint32_t lt_unicode_compose_count = {len(comp)};")
    names = ", ".join(f"{n} {len(s)}" for n, s in props)
    print(f"{n_kinds} kinds, {n_blocks} blocks; {names}; {len(comp)} compositions", file=sys.stderr)


main()
