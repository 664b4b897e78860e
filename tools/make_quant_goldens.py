#!/usr/bin/env python3
"""Write tests/golden/quant.bin: rows encoded by ggml's quantisers, and its reference dot products.

usage: make_quant_goldens.py LIB_FOLDER GENERIC_SO OUT
  LIB_FOLDER  holds libggml-base.so and libggml-cpu.so (e.g. site-packages/llama_cpp/lib)
  GENERIC_SO  ggml/src/ggml-cpu/quants.c, compiled by itself with -O2 -ffp-contract=off: the generic functions without fused
              multiply-adds, as their source says and as portable builds of ggml compute them

File, little-endian: u32 rows, cols; weights (rows, cols) f32; activations (rows, cols) f32; then for each type: u32 ggml type,
u32 bytes of a row; encoded rows; dots (rows) f32: row i of the weights with row i of the activations.
"""
import ctypes as C, sys, struct
import numpy as np

TYPES = {"q4_0": (2, 32, 18, "q8_0", 34), "q4_1": (3, 32, 20, "q8_1", 36), "q5_0": (6, 32, 22, "q8_0", 34),
         "q5_1": (7, 32, 24, "q8_1", 36), "q8_0": (8, 32, 34, "q8_0", 34), "q4_K": (12, 256, 144, "q8_K", 292),
         "q5_K": (13, 256, 176, "q8_K", 292), "q6_K": (14, 256, 210, "q8_K", 292)}
ROWS, COLS = 10, 1024


def rows(rng):
    x = rng.standard_normal((ROWS, COLS)).astype(np.float32)
    x[0] *= 0.02
    x[1, :300] = 0  # whole blocks and parts of blocks of zeros
    x[2] = np.round(x[2] * 4) / 4  # ties
    x[3] *= np.float32(1e-4) ** rng.random(COLS).astype(np.float32)
    x[4] = np.abs(x[4])
    x[5] = 0.75
    x[6] = x[6] ** 3 * 10  # heavy tails
    x[7] = -np.abs(x[7]) - 1
    x[8] *= 1e-6
    return x


def main():
    lib, generic, out = sys.argv[1:]
    base = C.CDLL(lib + "/libggml-base.so", mode=C.RTLD_GLOBAL)
    cpu = C.CDLL(lib + "/libggml-cpu.so", mode=C.RTLD_GLOBAL)
    cpu.ggml_cpu_init()
    gen = C.CDLL(generic)
    rng = np.random.default_rng(5)
    w, a = rows(rng), rows(rng)[[9, 0, 1, 2, 4, 6, 5, 3, 8, 7]].copy()
    blob = struct.pack("<II", ROWS, COLS) + w.tobytes() + a.tobytes()
    for name, (number, elems, size, partner, psize) in TYPES.items():
        row_bytes = COLS // elems * size
        prow = COLS // (256 if partner == "q8_K" else 32) * psize
        dots = np.zeros(ROWS, np.float32)
        blob += struct.pack("<II", number, row_bytes)
        for i in range(ROWS):
            q = C.create_string_buffer(row_bytes)
            p = C.create_string_buffer(prow)
            getattr(base, f"quantize_row_{name}_ref")(w[i].ctypes.data_as(C.c_void_p), q, C.c_int64(COLS))
            getattr(base, f"quantize_row_{partner}_ref")(a[i].ctypes.data_as(C.c_void_p), p, C.c_int64(COLS))
            s = C.c_float()
            getattr(gen, f"ggml_vec_dot_{name}_{partner}_generic")(COLS, C.byref(s), C.c_size_t(0), q, C.c_size_t(0), p,
                                                                 C.c_size_t(0), 1)
            dots[i] = s.value
            blob += q.raw
        blob += dots.tobytes()
    open(out, "wb").write(blob)
    print(len(blob), "bytes")


main()
