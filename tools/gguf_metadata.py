"""Copy a GGUF file with other metadata: strings and numbers that describe the model (general.name, general.license, general.sampling.temp, ...).
Tensors and all other keys are kept; an existing key is replaced. Standard library only.

usage: gguf_metadata.py IN.gguf OUT.gguf KEY=VALUE...        a value that is a number becomes a float32, any other one a string;
                                                            @FILE is the text of a file"""
import struct
import sys

STRING, ARRAY, FLOAT = 8, 9, 6
BYTES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}


class Reader:
    def __init__(self, data):
        self.data, self.at = data, 0

    def take(self, n):
        self.at += n
        return self.data[self.at - n : self.at]

    def number(self, form):
        return struct.unpack("<" + form, self.take(struct.calcsize(form)))[0]

    def string(self):
        return self.take(self.number("Q"))

    def skip_value(self, kind):
        if kind == STRING:
            self.string()
        elif kind == ARRAY:
            of, n = self.number("I"), self.number("Q")
            if of in BYTES:
                self.take(n * BYTES[of])
            else:
                for _ in range(n):
                    self.skip_value(of)
        else:
            self.take(BYTES[kind])


def packed(text):
    return struct.pack("<Q", len(text)) + text


def pair(key, value):
    try:
        return packed(key) + struct.pack("<If", FLOAT, float(value))
    except ValueError:
        text = open(value[1:], "rb").read() if value.startswith("@") else value.encode()
        return packed(key) + struct.pack("<I", STRING) + packed(text)


def main(source, out, *settings):
    new = {key.encode(): value for key, value in (s.split("=", 1) for s in settings)}
    r = Reader(open(source, "rb").read())
    if r.take(4) != b"GGUF" or r.number("I") not in (2, 3):
        sys.exit(f"{source}: not a GGUF file of version 2 or 3")
    version, n_tensors, n_pairs = r.data[4:8], r.number("Q"), r.number("Q")
    pairs, alignment = {}, 32
    for _ in range(n_pairs):
        start, key = r.at, r.string()
        kind, value_at = r.number("I"), r.at
        r.skip_value(kind)
        pairs[key] = r.data[start : r.at]
        if key == b"general.alignment":
            alignment = struct.unpack_from("<I", r.data, value_at)[0]
    if b"general.alignment" in new:
        sys.exit("general.alignment determines where tensors are, so it cannot be changed")
    tensors_at = r.at
    for _ in range(n_tensors):
        r.string()
        r.take(8 * r.number("I") + 12)
    tensors = r.data[tensors_at : r.at]
    data = r.data[r.at + -r.at % alignment :]
    pairs.update((key, pair(key, value)) for key, value in new.items())
    head = b"GGUF" + version + struct.pack("<QQ", n_tensors, len(pairs)) + b"".join(pairs.values()) + tensors
    with open(out, "wb") as f:
        f.write(head + bytes(-len(head) % alignment) + data)


if len(sys.argv) < 4 or not all("=" in s for s in sys.argv[3:]):
    sys.exit(__doc__)
main(*sys.argv[1:])
