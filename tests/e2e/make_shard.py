"""Write PREFIX.bin and PREFIX.idx (Megatron): the bytes of a file as token ids, in documents of DOC bytes.

Usage: make_shard.py FILE PREFIX [DOC]"""
import array
import struct
import sys


def write_shard(prefix, documents):
    """documents: lists of token ids below 65,536."""
    with open(prefix + ".bin", "wb") as out:
        for document in documents:
            array.array("H", document).tofile(out)
    with open(prefix + ".idx", "wb") as out:
        at = [0]
        for document in documents:
            at.append(at[-1] + 2 * len(document))
        out.write(b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 8, len(documents), len(documents) + 1))
        array.array("i", [len(document) for document in documents]).tofile(out)
        array.array("q", at[:-1]).tofile(out)
        array.array("q", range(len(documents) + 1)).tofile(out)


if __name__ == "__main__":
    with open(sys.argv[1], "rb") as file:
        text = file.read()
    size = int(sys.argv[3]) if len(sys.argv) > 3 else 5000
    write_shard(sys.argv[2], [list(text[i:i + size]) for i in range(0, len(text), size)])
