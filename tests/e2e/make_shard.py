"""Write PREFIX.bin and PREFIX.idx (Megatron): the bytes of a file as token ids, in documents of DOC bytes.

Usage: make_shard.py FILE PREFIX [DOC]"""
import array
import struct
import sys

text = open(sys.argv[1], "rb").read()
size = int(sys.argv[3]) if len(sys.argv) > 3 else 5000
sizes = [len(text[i:i + size]) for i in range(0, len(text), size)]
with open(sys.argv[2] + ".bin", "wb") as out:
    array.array("H", list(text)).tofile(out)
with open(sys.argv[2] + ".idx", "wb") as out:
    out.write(b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 8, len(sizes), len(sizes) + 1))
    array.array("i", sizes).tofile(out)
    array.array("q", [2 * i * size for i in range(len(sizes))]).tofile(out)
    array.array("q", range(len(sizes) + 1)).tofile(out)
