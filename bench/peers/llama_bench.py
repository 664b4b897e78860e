#!/usr/bin/env python3
"""Run llama-bench's two tests through llama-cpp-python, for machines without the llama-bench program, with the same options and JSON fields.

usage: llama_bench.py -m MODEL [-p 512] [-n 128] [-t THREADS] [-r 1] [-b BATCH]
  pp is one prompt of P tokens, decoded in batches of 512. tg is N tokens one by one, from an empty cache. Both are warmed up first, and the
  sampler is not timed. tgb, with -b, is N steps of B sequences each.
"""
import argparse, ctypes, json, random, time
import llama_cpp as L

a = argparse.ArgumentParser()
a.add_argument("-m", required=True)
a.add_argument("-p", type=int, default=512)
a.add_argument("-n", type=int, default=128)
a.add_argument("-t", type=int, default=2)
a.add_argument("-r", type=int, default=1)
a.add_argument("-b", type=int, default=0)
a.add_argument("-o", default="json")
o = a.parse_args()


@L.llama_log_callback
def quiet(level, text, data):
    pass


L.llama_log_set(quiet, ctypes.c_void_p(0))
L.llama_backend_init()
mp = L.llama_model_default_params()
model = L.llama_model_load_from_file(o.m.encode(), mp)
vocab = L.llama_vocab_n_tokens(L.llama_model_get_vocab(model))
cp = L.llama_context_default_params()
cp.n_ctx = max(o.p, o.n) + 64 + o.b * o.n
cp.n_batch, cp.n_ubatch = 2048, 512
cp.n_seq_max = max(1, o.b)
cp.n_threads = cp.n_threads_batch = o.t
ctx = L.llama_init_from_model(model, cp)
memory = L.llama_get_memory(ctx)


def clear():
    L.llama_memory_clear(memory, True)


def prompt(n):
    ids = (L.llama_token * n)(*[random.randrange(vocab) for _ in range(n)])
    for i in range(0, n, 2048):
        part = (L.llama_token * min(2048, n - i))(*ids[i:i + 2048])
        assert L.llama_decode(ctx, L.llama_batch_get_one(part, len(part))) == 0
    L.llama_synchronize(ctx)


def tokens(n):
    for _ in range(n):
        one = (L.llama_token * 1)(random.randrange(vocab))
        assert L.llama_decode(ctx, L.llama_batch_get_one(one, 1)) == 0
        L.llama_synchronize(ctx)


def batched(n, b):
    batch = L.llama_batch_init(b, 0, 1)
    for step in range(n):
        batch.n_tokens = b
        for i in range(b):
            batch.token[i] = random.randrange(vocab)
            batch.pos[i] = step
            batch.n_seq_id[i] = 1
            batch.seq_id[i][0] = i
            batch.logits[i] = True
        assert L.llama_decode(ctx, batch) == 0
        L.llama_synchronize(ctx)
    L.llama_batch_free(batch)


def timed(name, count, f, *args):
    rates = []
    for _ in range(o.r):
        clear()
        start = time.perf_counter()
        f(*args)
        rates.append(count / (time.perf_counter() - start))
    return {"test": name, "n_prompt": o.p if name == "pp" else 0, "n_gen": 0 if name == "pp" else o.n,
            "avg_ts": sum(rates) / len(rates), "samples_ts": rates}


out = []
if o.p:
    prompt(o.p)
    out.append(timed("pp", o.p, prompt, o.p))
if o.n:
    clear()
    tokens(1)
    out.append(timed("tg", o.n, tokens, o.n))
if o.b:
    clear()
    batched(1, o.b)
    out.append(timed("tgb", o.n * o.b, batched, o.n, o.b))
print(json.dumps(out, indent=1))
