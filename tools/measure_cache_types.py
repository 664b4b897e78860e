#!/usr/bin/env python3
"""Measure the loss of accuracy with each type of keys and values, for the table of docs/serve.md, Memory.

    tools/measure_cache_types.py [--model MODEL] [--device cuda] [--tokens N] TEXT...

Each text is read by `lateen serve --cache-dtype TYPE` as a prompt, whose log-probabilities give the
perplexity, and is continued greedily from its middle. The server is deterministic and computes in
fp32, so differences to the first type, fp32, are only those of the cache. (Products with weights
as stored round activations to 8 bits, which turns any small difference into noise.) A type is NAME or
KEYS/VALUES; a GPU takes one for both (--types).
"""
import argparse
import json
import math
import socket
import subprocess
import sys
import time
import urllib.request

TYPES = ["fp32", "bf16", "fp16", "fp8", "q8_0", "q8_0/q4_0", "q4_0/q8_0", "q4_0"]
NEW = 64


def call(port, path, body=None):
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", data,
                                     {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=600) as answer:
        return json.load(answer)


def serve(args, kind):
    keys, _, values = kind.partition("/")
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    command = [args.lateen, "serve"] + ([args.model] if args.model else [])
    command += ["--device", args.device] if args.device else []
    command += ["--port", str(port), "--deterministic", "--dtype", args.dtype, "--cache-type-k",
                keys, "--cache-type-v", values or keys, "--max-running", "4"]
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                             text=True)
    for line in child.stderr:
        if "keys and values of" in line:
            break
    while True:
        try:
            call(port, "/health")
            return child, port
        except OSError:
            if child.poll() is not None:
                sys.exit(f"{' '.join(command)} ended with {child.returncode}")
            time.sleep(0.05)


def measure(args, kind):
    child, port = serve(args, kind)
    sums = []
    try:
        for path in args.text:
            with open(path, encoding="utf-8") as f:
                ids = call(port, "/tokenize", {"content": f.read()})["tokens"][:args.tokens]
            read = call(port, "/v1/completions", {"prompt": ids, "max_tokens": 1,
                                                  "prompt_logprobs": 0})
            rows = read["choices"][0]["prompt_logprobs"][1:]
            losses = [-row[str(i)]["logprob"] for row, i in zip(rows, ids[1:])]
            told = call(port, "/v1/completions", {"prompt": ids[:len(ids) // 2], "max_tokens": NEW,
                                                  "temperature": 0, "return_token_ids": True,
                                                  "ignore_eos": True})
            sums.append((losses, told["choices"][0]["token_ids"]))
    finally:
        child.terminate()
        child.wait()
    return sums


def same(a, b):
    n = 0
    while n < len(a) and a[n] == b[n]:
        n += 1
    return n


def main():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--lateen", default="build/lateen")
    p.add_argument("--model", default="")
    p.add_argument("--device", default="")
    p.add_argument("--dtype", default="fp32")
    p.add_argument("--tokens", type=int, default=1000)
    p.add_argument("--types", default=",".join(TYPES))
    p.add_argument("text", nargs="+")
    args = p.parse_args()
    first = None
    print("| keys / values | perplexity | change of the loss, nats per token | mean difference of a "
          f"token's loss | of {NEW} greedy tokens, how many agree before the first difference |")
    print("| --- | --- | --- | --- | --- |")
    for kind in args.types.split(","):
        got = measure(args, kind)
        first = first or got
        losses = [x for row, _ in got for x in row]
        base = [x for row, _ in first for x in row]
        mean = sum(losses) / len(losses)
        change = mean - sum(base) / len(base)
        apart = sum(abs(a - b) for a, b in zip(losses, base)) / len(losses)
        alike = sum(same(a[1], b[1]) for a, b in zip(got, first)) / len(got)
        print(f"| {kind} | {math.exp(mean):.3f} | {change:+.5f} | {apart:.5f} | {alike:.1f} |",
              flush=True)


if __name__ == "__main__":
    main()
