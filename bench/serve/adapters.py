"""Measure the cost of adapters for a server that decodes.

    python bench/serve/adapters.py LATEEN [LATEEN ...] [--rank 16] [--modules all|attention] [--counts 0,1,8,64] [--rounds 3] [--small] [--device cuda]

For each program a server with 64 adapters on a model of Llama-1B's shape, both with random numbers, answers 512 requests from 64 clients, whose prompts of 64 tokens and answers of 128 name the base,
one adapter, eight in turn or 64 in turn. The rounds of the programs alternate. The last lines have the medians: tokens/s, that as a share of the base's, and the time for each further token."""
import argparse
import json
import os
import pathlib
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request

MODULES = {"all": ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"), "attention": ("q_proj", "k_proj", "v_proj", "o_proj")}
ADAPTERS = 64


def noise(n):
    """n numbers of 16 bits, of magnitude 0.008 to 0.03."""
    block = bytearray(2 << 20)
    block[0::2] = os.urandom(1 << 20)
    block[1::2] = os.urandom(1 << 20).translate(bytes(0x3C | (i & 0x80) for i in range(256)))
    return bytes(block * (n // (1 << 20) + 1))[: 2 * n]


def write(path, shapes):
    header, at = {}, 0
    for name, shape in shapes.items():
        size = 2
        for n in shape:
            size *= n
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(len(text).to_bytes(8, "little") + text)
        for name, shape in shapes.items():
            size = (header[name]["data_offsets"][1] - header[name]["data_offsets"][0]) // 2
            f.write(b"\x80\x3f" * size if "norm" in name else noise(size))


def make(folder, o):
    width, layers, heads, kv, ffn, vocab = (64, 2, 4, 2, 176, 512) if o.small else (2048, 16, 32, 8, 8192, 128256)
    sizes = {"q_proj": (heads * (width // heads), width), "k_proj": (kv * (width // heads), width), "v_proj": (kv * (width // heads), width),
             "o_proj": (width, width), "gate_proj": (ffn, width), "up_proj": (ffn, width), "down_proj": (width, ffn)}

    def path(layer, module):
        return f"model.layers.{layer}.{'self_attn' if module in MODULES['attention'] else 'mlp'}.{module}"

    model, adapter = folder / "model", folder / "adapter"
    model.mkdir()
    adapter.mkdir()
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": width, "intermediate_size": ffn, "num_hidden_layers": layers, "num_attention_heads": heads,
              "num_key_value_heads": kv, "vocab_size": vocab, "max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "rope_theta": 500000.0, "hidden_act": "silu", "tie_word_embeddings": True, "torch_dtype": "bfloat16"}
    (model / "config.json").write_text(json.dumps(config))
    shutil.copy("tests/golden/sft/tokenizer.json", model)
    shapes = {"model.embed_tokens.weight": (vocab, width), "model.norm.weight": (width,)}
    for i in range(layers):
        shapes |= {f"model.layers.{i}.{n}.weight": (width,) for n in ("input_layernorm", "post_attention_layernorm")}
        shapes |= {path(i, m) + ".weight": sizes[m] for m in sizes}
    write(model / "model.safetensors", shapes)
    modules = MODULES[o.modules]
    (adapter / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": o.rank, "lora_alpha": o.rank, "target_modules": list(modules)}))
    shapes = {}
    for i in range(layers):
        for m in modules:
            shapes[f"base_model.model.{path(i, m)}.lora_A.weight"] = (o.rank, sizes[m][1])
            shapes[f"base_model.model.{path(i, m)}.lora_B.weight"] = (sizes[m][0], o.rank)
    write(adapter / "adapter_model.safetensors", shapes)
    for i in range(ADAPTERS):
        (folder / f"a{i}").symlink_to(adapter)
    return model


def serve(program, folder, model, o):
    """A server and its address."""
    log = folder / "server.log"
    # Each adapter has its own copy in memory, even if the files are the same.
    given = [x for i in range(ADAPTERS) for x in ("--lora", f"a{i}={folder}/a{i}")]
    with open(log, "w", encoding="utf-8") as f:
        server = subprocess.Popen([program, "serve", str(model), "--alias", "base", "--port", "0", "--device", o.device, "--dtype", "bf16" if o.device == "cuda" else "fp32", *given], stdout=f, stderr=subprocess.STDOUT)
    for _ in range(1200):
        found = re.search(r"http://[\d.]+:\d+", log.read_text(encoding="utf-8"))
        try:
            if found:
                urllib.request.urlopen(found[0] + "/health").close()
                return server, found[0]
        except OSError:
            pass
        if server.poll() is not None:
            break
        time.sleep(0.1)
    server.kill()
    sys.exit(f"{program} did not start:\n" + log.read_text(encoding="utf-8")[-3000:])


def ask(program, url, count, requests):
    names = "base" if count == 0 else ",".join(f"a{i}" for i in range(count))
    out = subprocess.run([program, "bench", "serve", url, "--model", names, "--requests", str(requests), "--concurrency", "64", "--prompt-tokens", "64", "--max-tokens", "128", "--json"],
                         check=True, capture_output=True, text=True).stdout
    return json.loads(out)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("programs", nargs="+")
    p.add_argument("--rank", type=int, default=16)
    p.add_argument("--modules", choices=MODULES, default="all")
    p.add_argument("--counts", default="0,1,8,64")
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--small", action="store_true", help="a tiny model and 16 requests, to try this script")
    p.add_argument("--device", default="cuda")
    o = p.parse_args()
    counts = [int(x) for x in o.counts.split(",")]
    with tempfile.TemporaryDirectory() as work:
        folder, servers = pathlib.Path(work), []
        model = make(folder, o)
        got = {(program, count): [] for program in o.programs for count in counts}
        try:
            for program in o.programs:
                servers.append((program, *serve(program, folder, model, o)))
            for turn in range(o.rounds + 1):  # The first round warms up.
                for program, _, url in servers:
                    for count in counts:
                        one = ask(program, url, count, 16 if o.small else 512)
                        if turn > 0:
                            got[program, count].append(one)
        finally:
            for _, server, _ in servers:
                server.terminate()
                server.wait()
    for program in o.programs:
        speed = {c: statistics.median(x["output_tokens_per_s"] for x in got[program, c]) for c in counts}
        for c in counts:
            further = statistics.median(x["tpot_s"]["p50"] for x in got[program, c]) * 1e3
            print(f"{program}, rank {o.rank}, {o.modules}: {c} adapters {speed[c]:.0f} tokens/s, {speed[c] / speed[counts[0]]:.3f} of {counts[0]}; {further:.3f} ms a further token", flush=True)


if __name__ == "__main__":
    main()
