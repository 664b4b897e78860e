#!/usr/bin/env python3
"""Compare GGUF files of `lateen quantize` with llama.cpp's own (through llama-cpp-python and the gguf package).

usage: check_gguf.py LATEEN MODEL [TYPE...]
  For each type: quantise MODEL's F32 GGUF with both programs, compare the type and bytes of every tensor, load both files in llama.cpp, and compare the
  greedy text of a few prompts.
"""
import ctypes, os, subprocess, sys, tempfile
import numpy as np
import gguf, llama_cpp as L

lateen, model, types = sys.argv[1], sys.argv[2], sys.argv[3:] or ["q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "q4_k_m", "q5_k_m", "q6_k"]
FTYPE = {"q4_0": 2, "q4_1": 3, "q8_0": 7, "q5_0": 8, "q5_1": 9, "q4_k_m": 15, "q5_k_m": 17, "q6_k": 18, "bf16": 32, "f16": 1}


@L.llama_log_callback
def quiet(level, text, data):
    pass


L.llama_log_set(quiet, ctypes.c_void_p(0))


def text_of(path):
    llm = L.Llama(path, n_ctx=128, n_threads=2, verbose=False)
    return [llm(p, max_tokens=24, temperature=0)["choices"][0]["text"] for p in ("Once upon a time", "The capital of France is")]


bad = 0
with tempfile.TemporaryDirectory() as tmp:
    f32 = tmp + "/f32.gguf"
    subprocess.run([lateen, "quantize", model, f32, "--type", "f32"], check=True, stderr=subprocess.DEVNULL)
    for t in types:
        ours, theirs = f"{tmp}/ours.gguf", f"{tmp}/theirs.gguf"
        for p in (ours, theirs):
            if os.path.exists(p):
                os.unlink(p)
        subprocess.run([lateen, "quantize", f32, ours, "--type", t], check=True, stderr=subprocess.DEVNULL)
        params = L.llama_model_quantize_default_params()
        params.ftype = FTYPE[t]
        params.nthread = 2
        assert L.llama_model_quantize(f32.encode(), theirs.encode(), ctypes.byref(params)) == 0
        a = {x.name: x for x in gguf.GGUFReader(ours).tensors}
        b = {x.name: x for x in gguf.GGUFReader(theirs).tensors}
        wrong = sorted(set(a) ^ set(b))
        for n in set(a) & set(b):
            if a[n].tensor_type != b[n].tensor_type:
                wrong.append(f"{n}: {a[n].tensor_type.name} / {b[n].tensor_type.name}")
            elif not np.array_equal(np.asarray(a[n].data).view(np.uint8), np.asarray(b[n].data).view(np.uint8)):
                wrong.append(f"{n}: bytes")
        x, y = text_of(ours), text_of(theirs)
        bad += bool(wrong) or x != y
        print(t, f"{len(a)} tensors", "equal" if not wrong else wrong[:6], "text equal" if x == y else (x, y), flush=True)
        if t == types[0]:
            print(x)
sys.exit(bad)
