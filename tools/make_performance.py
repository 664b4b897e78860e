#!/usr/bin/env python3
"""Write the tables of docs/performance.md whose figures are in bench/results.

    tools/make_performance.py           rewrite the tables between <!-- figures NAME --> and <!-- end -->
    tools/make_performance.py --check   exit 1 if they are out of date

Tables without such marks come from runs whose raw results were not kept; their figures are in the *.md of bench/results, or only in the page."""
import json
import math
import os
import re
import sys

HERE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
PAGE = os.path.join(HERE, "docs", "performance.md")


def load(name):
    with open(os.path.join(HERE, "bench", "results", name), encoding="utf-8") as f:
        return [json.loads(line) for line in f] if name.endswith(".jsonl") else json.load(f)


def table(head, rows):
    return ["| " + " | ".join(r) + " |" for r in [head, ["---"] * len(head)] + rows]


def count(x):
    return f"{math.floor(x + 0.5):,}"


def pair(rows, shape):
    """Our TFLOP/s, the peer's, and their ratio, for one shape."""
    ours = next(r for r in rows if r["shape"] == shape and not r["peer"])
    peer = next(r for r in rows if r["shape"] == shape and r["peer"])
    return ours["tflops"], peer["tflops"], ours["of_peer"]


def training():
    def cell(r):
        return f"{r['tokens_per_s'] / 1e3:.3g}, {r['peer_tokens_per_s'] / 1e3:.3g}, {r['ratio']:.2f}"

    def find(rows, shape, batch):
        return next(r for r in rows if r["shape"] == shape and r["batch"] == batch and "ratio" in r and "moments" not in r)

    h100, h200 = load("train_h100.json")["rows"], load("h200/train.json")["rows"]
    models = [("GPT-2 124M, 64 rows of 1,024", "gpt2-124m", 64), ("Llama-1B shape, 4 rows of 4,096", "llama-1b", 4),
              ("MoE 8 x 125M, 16 rows of 2,048", "moe-8x125m", 16), ("Apertus-style 300M, 12 rows of 2,048", "apertus-300m", 12)]
    return table(["model", "H100, 23 November 2026: Lateen, peer, ratio", "H200, 29 November 2026: Lateen, peer, ratio"],
                 [[name, cell(find(h100, shape, batch)), cell(find(h200, shape, batch))] for name, shape, batch in models])


def tuning():
    """Rows that were measured alternately with the peer have a ratio."""
    shapes = [("all weights, Llama-1B shape, 4 rows of 4,096", "full_llama1b"), ("LoRA of rank 16, Llama-1B shape, 4 rows of 4,096", "lora_llama1b"),
              ("the same, `model.recompute: selective`", "lora_llama1b_selective"),
              ("LoRA of rank 16, Llama-8B shape, 2 rows of 4,096", "lora_llama8b_none"), ("the same, `model.recompute: full`", "lora_llama8b_full")]
    rows = []
    for name, file in shapes:
        r = load(f"h200/posttrain_{file}.json")
        peer = [count(r["peer_tokens_per_s"]), f"{r['ratio']:.2f}"] if "ratio" in r else ["another day", "bench/results/posttrain.md"]
        rows.append([name, count(r["tokens_per_s"])] + peer + [f"{r['taken_bytes'] / 2**30:.1f} GiB"])
    return table(["H200, 28 November 2026", "Lateen, tokens/s", "transformers and PEFT, torch.compile", "ratio", "Lateen's memory"], rows)


def decoding():
    h100, h200 = load("engine_h100.json"), load("h200/engine.jsonl")

    def old(dtype, streams):
        return next(r for r in h100["decode"] if r["dtype"] == dtype and r["streams"] == streams)

    # The lines of engine.jsonl in order: bf16, Q4_0, Q8_0 with 1, 32, 256 streams; a prompt of 2,048; Llama-8B's shape with 1 and 256.
    rows = []
    for name, dtype, streams, line in [("bf16, 1", "bf16", 1, 0), ("bf16, 32", "bf16", 32, 1), ("bf16, 256", "bf16", 256, 2),
                                       ("Q8_0, 1", "q8_0", 1, 6), ("Q8_0, 256", "q8_0", 256, 8), ("Q4_0, 1", "q4_0", 1, 3), ("Q4_0, 256", "q4_0", 256, 5)]:
        assert h200[line]["streams"] == streams
        was = old(dtype, streams)
        rows.append([name, count(was["tokens_per_s"]), count(h200[line]["decode_tokens_per_s"]), count(was["llama_cpp"]) if "llama_cpp" in was else "not measured"])
    assert h200[9]["prompt"] == 2048
    prompt = h100["prefill_2048"][0]
    rows.append(["bf16, prompt of 2,048", count(prompt["tokens_per_s"]), count(h200[9]["prompt_tokens_per_s"]), count(prompt["llama_cpp"])])
    for streams, line in [(1, 10), (256, 11)]:
        was = next(r for r in h100["llama3-8b"] if r["streams"] == streams)
        rows.append([f"Llama-8B shape, bf16, {streams}", count(was["tokens_per_s"]), count(h200[line]["decode_tokens_per_s"]), "not measured"])
    return table(["weights, streams", "H100, 22 November 2026", "H200, 23 November 2026", "llama.cpp, H100"], rows)


def paged():
    h100, h200 = load("kernels_decode_h100.json")["rows"], load("h200/decode.json")["rows"]
    shapes = [("16 sequences of 4,096 keys", "b16 keys 4096 h32/8 d128 pages of 16"), ("16 sequences of 16,384 keys", "b16 keys 16384 h32/8 d128 pages of 16"),
              ("one sequence of 16,384 keys", "b1 keys 16384 h32/8 d128 pages of 16"), ("one sequence of 131,072 keys", "b1 keys 131072 h32/8 d128 pages of 64")]

    def share(rows, shape):
        return f"{100 * next(r for r in rows if r['shape'] == shape)['of_limit']:.1f} %"

    return table(["attention over paged keys, 32 and 8 heads of 128, share of copy bandwidth", "H100, 22 November 2026", "H200, 23 November 2026"],
                 [[name, share(h100, shape), share(h200, shape)] for name, shape in shapes])


def products():
    both = [load("kernels_gemm_h100.json")["rows"], load("h200/gemm.json")["rows"]]
    rows = []
    for size in (4096, 8192):
        for layout in ("NN", "NT"):
            cells = ["{:.0f}, {:.0f}, {:.2f}".format(*pair(r, f"square {size} x {size} x {size} {layout}")) for r in both]
            rows.append([f"{size} cubed, {layout}"] + cells)
    ratios = [[r["of_peer"] for r in rows_of if not r["peer"]] for rows_of in both]
    rows.append([f"{len(ratios[0])} shapes of GPT-2, Llama and serving, geometric mean; least"] +
                [f"{math.exp(sum(map(math.log, x)) / len(x)):.2f}; {min(x):.2f}" for x in ratios])
    return table(["product", "H100, 22 November 2026: Lateen, cuBLASLt, ratio", "H200, 23 November 2026: Lateen, cuBLASLt, ratio"], rows)


def sgemm():
    rows = load("h200/sgemm.json")["rows"]
    shapes = ["4096 x 4096 x 4096", "8192 x 8192 x 8192", "4097 x 4097 x 4097", "1024 x 1024 x 1024", "4096 x 2304 x 768", "128 x 4096 x 4096", "768 x 768 x 16384"]
    return table(["product", "Lateen, TFLOP/s", "cuBLASLt", "ratio"], [[s] + "{:.1f}|{:.1f}|{:.2f}".format(*pair(rows, s)).split("|") for s in shapes])


def attention():
    out = []
    for name, peer in [("kernels_attention_h100.json", "cuDNN 9.19"), ("attention_fa3_h100.json", "FlashAttention-3 (0251105a)")]:
        rows = load(name)["rows"]
        for way in ("forward", "backward"):
            x = [r["of_peer"] for r in rows if r["name"] == way and "of_peer" in r and not r["peer"]]
            out.append([f"{peer}, {way}, {len(x)} rows", f"{math.exp(sum(map(math.log, x)) / len(x)):.2f}", f"{min(x):.2f}", f"{max(x):.2f}"])
    return table(["the peer's time over ours, H100, 23 November 2026", "geometric mean", "least", "largest"], out)


def tokenizers():
    rows = []
    for r in load("tokenizer.json")["rows"]:
        rows.append([f"{r['text']}, {r['vocabulary'].split(' (')[0]}", f"{r['lateen_first_mb_s']:.1f}, {r['lateen_mb_s']:.1f}",
                     f"{r['peer']} {r['peer_first_mb_s']:.2f}, {r['peer_mb_s']:.2f}", f"{r['first_ratio']:.1f}, {r['ratio']:.1f}"])
    return table(["text and vocabulary", "Lateen first, later", "peer first, later", "ratios"], rows)


TABLES = {"training": training, "tuning": tuning, "decoding": decoding, "paged": paged, "products": products, "sgemm": sgemm, "attention": attention, "tokenizers": tokenizers}


def main():
    with open(PAGE, encoding="utf-8") as f:
        page = f.read()
    seen = []

    def fill(m):
        seen.append(m[1])
        return f"<!-- figures {m[1]} -->\n\n" + "\n".join(TABLES[m[1]]()) + "\n\n<!-- end -->"

    new = re.sub(r"<!-- figures (\w+) -->\n.*?<!-- end -->", fill, page, flags=re.S)
    if sorted(seen) != sorted(TABLES):
        sys.exit(f"docs/performance.md has the tables {sorted(seen)}, not {sorted(TABLES)}")
    if "--check" in sys.argv:
        if new != page:
            sys.exit("docs/performance.md does not match bench/results: run tools/make_performance.py")
        return
    with open(PAGE, "w", encoding="utf-8") as f:
        f.write(new)


if __name__ == "__main__":
    main()
