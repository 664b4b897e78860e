#!/usr/bin/env python3
"""Hash the machine code of every kernel in a cache folder, or compare two folders.

    LATEEN_CACHE_DIR=before build/lateen bench kernels --compile     (with the previous commit; then the same into `after`)
    tools/cubins.py before                  one line for each kernel: hash, architecture, file, entry, defines
    tools/cubins.py before after            the kernels whose code differs, and those that only one folder has
For a kernel that differs, it says whether the work is the same (equal numbers of instructions of each kind that access
memory or compute with floating-point numbers), so that only order, registers and addresses have changed. A kernel whose defines
changed is compared with those of the same file and entry.
Only executed code is compared: the sections .text.* (instructions) and .nv.constant* (except bank 0, the parameters), not debug names.
A cache file is described at the top of src/kernels/cuda/compile.c.
"""
import collections
import hashlib
import os
import struct
import sys


def sections(elf):
    at, = struct.unpack_from("<Q", elf, 0x28)
    size, count, names_at = struct.unpack_from("<HHH", elf, 0x3A)
    heads = [struct.unpack_from("<IIQQQQ", elf, at + i * size) for i in range(count)]
    names = heads[names_at][4]
    for name, kind, _flags, _address, offset, length in heads:
        text = elf[names + name:elf.index(b"\0", names + name)].decode()
        yield text, b"" if kind == 8 else elf[offset:offset + length]


# Opcodes, the low 9 bits of an instruction of sm_80 and sm_90a: loads and stores of all memories, atomics, matrix
# products, floating point, special functions, shuffles, barriers.
WORK = {0x180, 0x181, 0x183, 0x184, 0x185, 0x186, 0x187, 0x188, 0x18e, 0x1a8, 0x1ae, 0x13b, 0x03c, 0x1f0,
        0x009, 0x020, 0x021, 0x023, 0x028, 0x029, 0x02b, 0x108, 0x11d, 0x189}


def work(code):
    """The number of instructions of each kind in WORK."""
    opcodes = [struct.unpack_from("<H", code, i)[0] & 0x1FF for i in range(0, len(code) - 15, 16)]
    return collections.Counter(o for o in opcodes if o in WORK)


def kernels(folder):
    """{(architecture, file, defines, entry): (hash, work)}"""
    found = {}
    for name in sorted(os.listdir(folder)):
        with open(os.path.join(folder, name), "rb") as f:
            data = f.read()
        if data[:8] != b"LTCUBIN2":
            continue
        key_bytes, _log_bytes, cubin_bytes = struct.unpack_from("<IIQ", data, 16)
        key = data[32:32 + key_bytes].decode().rstrip("\0")
        elf = data[len(data) - cubin_bytes:]
        words = key.split()
        arch = next(w for w in words if w.startswith("sm_"))
        defines = " ".join(words[1:words.index(arch)])
        constants = hashlib.sha256()
        code = {}
        for section, content in sections(elf):
            if section.startswith(".nv.constant") and not section.startswith(".nv.constant0"):
                constants.update(content)
            if section.startswith(".text."):
                code[section[6:]] = content
        for entry, content in code.items():
            whole = hashlib.sha256(content + constants.digest()).hexdigest()[:16]
            found[arch, words[0], defines, entry] = whole, work(content)
    return found


def main(folders):
    tables = [kernels(f) for f in folders]
    if len(tables) == 1:
        for key, (code, _work) in sorted(tables[0].items()):
            print(code, *key)
        return 0
    before, after = tables
    differ = sorted(k for k in before.keys() & after.keys() if before[k][0] != after[k][0])
    for k in differ:
        print("differs in order and addresses:" if before[k][1] == after[k][1] else "differs in its work:", *k)
    only_after = {k: after[k] for k in after.keys() - before.keys()}
    redefined = 0
    for k in sorted(before.keys() - after.keys()):
        others = [x for other, x in only_after.items() if (other[0], other[1], other[3]) == (k[0], k[1], k[3])]
        if before[k][0] in [code for code, _work in others]:
            redefined += 1
        elif before[k][1] in [work for _code, work in others]:
            print("has other defines, and differs in order and addresses:", *k)
        else:
            print("only before:", *k)
    for k in sorted(only_after):
        print("only after:", *k)
    print(f"{len(before.keys() & after.keys()) - len(differ)} kernels are equal, {redefined} are equal except for their defines, {len(differ)} differ")
    return 1 if differ else 0


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    sys.exit(main(sys.argv[1:]))
