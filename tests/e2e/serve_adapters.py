"""Adapters that requests choose: by the model's name, by `lora`, by scales of the whole server; loaded, dropped and evicted while requests run. Their texts
are those of merged models, which lateen convert makes. Standard library only; TAP on stdout.

usage: serve_adapters.py make DIR                     write the adapters DIR/red, green, blue, and faulty ones, beside stories260K
       serve_adapters.py BASE_URL DIR LATEEN MODEL TOKENIZER   the server was started with red and green, and has 2 places of rank 8"""
import concurrent.futures
import contextlib
import json
import pathlib
import random
import struct
import subprocess
import sys
import urllib.request

from serve_http import send
from tap import Tap

SIZES = {"q_proj": (64, 64), "k_proj": (32, 64), "v_proj": (32, 64), "o_proj": (64, 64), "gate_proj": (172, 64), "up_proj": (172, 64), "down_proj": (64, 172)}
LAYERS = 5


def write_adapter(folder, seed, rank, modules, width=64, magnitudes=False, **config):
    """A PEFT folder with random numbers, large enough to change every text."""
    draw = random.Random(seed)
    header, data = {}, b""
    for layer in range(LAYERS):
        for module in modules:
            rows, cols = SIZES[module]
            where = "mlp" if module in ("gate_proj", "up_proj", "down_proj") else "self_attn"
            for name, shape in (("lora_A", (rank, cols if cols != 64 else width)), ("lora_B", (rows, rank))):
                count = shape[0] * shape[1]
                header[f"base_model.model.model.layers.{layer}.{where}.{module}.{name}.weight"] = {
                    "dtype": "F32", "shape": list(shape), "data_offsets": [len(data), len(data) + 4 * count]}
                data += struct.pack(f"<{count}f", *(draw.uniform(-0.3, 0.3) for _ in range(count)))
            if magnitudes:
                header[f"base_model.model.model.layers.{layer}.{where}.{module}.lora_magnitude_vector"] = {
                    "dtype": "F32", "shape": [rows], "data_offsets": [len(data), len(data) + 4 * rows]}
                data += struct.pack(f"<{rows}f", *(draw.uniform(0.5, 1.5) for _ in range(rows)))
    text = json.dumps(header).encode()
    folder.mkdir(parents=True)
    (folder / "adapter_model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)
    (folder / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": rank, "lora_alpha": rank, "target_modules": list(modules), **config}))


if sys.argv[1] == "make":
    out = pathlib.Path(sys.argv[2])
    write_adapter(out / "red", 1, 4, ("q_proj", "v_proj"))
    write_adapter(out / "green", 2, 8, tuple(SIZES), use_rslora=True)
    write_adapter(out / "blue", 3, 2, ("gate_proj", "down_proj"))
    write_adapter(out / "other_base", 4, 2, ("q_proj",), width=48)
    write_adapter(out / "rank", 5, 16, ("q_proj",))
    write_adapter(out / "dora", 6, 2, ("q_proj",), use_dora=True)  # Its magnitudes are missing.
    write_adapter(out / "gold", 7, 2, ("q_proj", "v_proj", "up_proj"), magnitudes=True, use_dora=True)
    sys.exit()

base, folder, lateen, model, tokenizer = sys.argv[1:6]
tap = Tap()
check = tap.check
PROMPT = {"prompt": "Once upon a time", "max_tokens": 24, "temperature": 0, "ignore_eos": True, "return_token_ids": True}


def ask(model=None, path="/v1/completions", **also):
    body = {**PROMPT, **({"model": model} if model else {}), **also}
    status, text = send(base + path, body)
    return status, json.loads(text)


def ids(*args, **also):
    status, answer = ask(*args, **also)
    return answer["choices"][0]["token_ids"] if status == 200 else (status, answer)


@contextlib.contextmanager
def streamed(model, **also):
    """The texts of the events, as they arrive."""
    body = json.dumps({**PROMPT, "model": model, "stream": True, **also}).encode()
    with urllib.request.urlopen(urllib.request.Request(base + "/v1/completions", body, {"Content-Type": "application/json"}), timeout=60) as answer:
        yield (json.loads(line[6:])["choices"][0]["text"] for line in answer if line.startswith(b"data: {"))


def call(path, body=None):
    status, text = send(base + path, body)
    return status, json.loads(text)


def error_of(answer):
    return answer[1].get("error", {})


def generate(*flags):
    return subprocess.run([lateen, "generate", *flags, "--tokenizer", tokenizer, "--prompt", PROMPT["prompt"], "--max-tokens", "24", "--temperature", "0",
                           "--ignore-eos", "--dtype", "fp32"], check=True, capture_output=True, text=True).stdout


def merged(name):
    """The text of the model with the adapter's product added to its weights."""
    out = f"{folder}/merged-{name}"
    subprocess.run([lateen, "convert", f"{folder}/{name}", out, "--base", model, "--dtype", "fp32"], check=True, capture_output=True)
    return generate("--model", out)


models = {m["id"]: m for m in call("/v1/models")[1]["data"]}
served = next(i for i, m in models.items() if m["parent"] is None)
plain, red, green = ids(), ids("red"), ids("green")


@tap.case
def names():
    check("/v1/models lists adapters with root and parent", models["red"]["parent"] == served and models["red"]["root"].endswith("/red") and
          list(models)[1:] == ["red", "green"], models)
    check("/v1/models/NAME is one of them", call("/v1/models/green")[1].get("parent") == served)
    check("each has its own text", all(isinstance(x, list) for x in (plain, red, green)) and len({tuple(x) for x in (plain, red, green)}) == 3, (plain, red))
    check("the base's name is the base", ids(served) == plain)
    check("an answer names the adapter", ask("red")[1]["model"] == "red" and ask()[1]["model"] == served)
    status, answer = ask("purple")
    check("an unknown name: 404", status == 404 and "purple" in answer["error"]["message"], answer)
    for name in ("red", "green"):
        text = ask(name)[1]["choices"][0]["text"]
        alone = merged(name).rstrip("\n")
        check(f"{name}: the text of the merged model", text.strip() and text == alone, (text, alone))
        check(f"{name}: generate --lora has it, too", generate("--model", model, "--lora", f"{folder}/{name}").rstrip("\n") == text)


@tap.case
def scales():
    listed = call("/lora-adapters")[1]
    check("GET /lora-adapters", [(a["id"], a["name"], a["scale"]) for a in listed] == [(0, "red", 0), (1, "green", 0)], listed)
    check("lora by number", ids(lora=[{"id": 0, "scale": 1.0}]) == red)
    check("lora by name", ids(lora=[{"id": "green", "scale": 1}]) == green)
    check("scale 0 is the base", ids(lora=[{"id": 0, "scale": 0}]) == plain)
    half = ids(lora=[{"id": 0, "scale": -2.5}])
    check("another scale, another text", half not in (plain, red), half)
    both = ids(lora=[{"id": 0, "scale": 1}, {"id": 1, "scale": 1}])
    check("more rank than a place has: refused with numbers", both[0] == 400 and "8" in both[1]["error"]["message"], both)
    native = call("/completion", {"prompt": PROMPT["prompt"], "n_predict": 24, "temperature": 0, "ignore_eos": True, "return_tokens": True,
                                  "lora": [{"id": 0, "scale": 1}]})[1]
    check("llama-server's completion has them, too", native["tokens"] == red and native["generation_settings"]["lora"] == [{"id": 0, "scale": 1}], native)
    check("POST /lora-adapters", call("/lora-adapters", [{"id": 1, "scale": 1.0}]) == (200, {"success": True}))
    check("its scales are those of requests that name none", ids() == green and ids("red") == red and ids(lora=[]) == plain)
    check("the others got 0", call("/lora-adapters", [{"id": 0, "scale": 0.5}])[0] == 200 and [a["scale"] for a in call("/lora-adapters")[1]] == [0.5, 0])
    check("and 0 again", call("/lora-adapters", [])[0] == 200 and ids() == plain)
    for what, wrong in (("an unknown id", [{"id": 7, "scale": 1}]), ("no scale", [{"id": 0}]), ("no list", {"id": 0, "scale": 1}), ("a scale that is none",
                        [{"id": 0, "scale": "1"}]), ("a field too many", [{"id": 0, "scale": 1, "name": "red"}]), ("twice", [{"id": 0, "scale": 1}] * 2),
                        ("1e9", [{"id": 0, "scale": 1e9}])):
        check(f"lora: {what}: 400", ask(lora=wrong)[0] == 400 and "lora" in error_of(ask(lora=wrong))["message"] + str(error_of(ask(lora=wrong))["param"]),
              ask(lora=wrong))
    check("lora beside an adapter's name: 400", ask("red", lora=[{"id": 1, "scale": 1}])[0] == 400)
    check("wrong scales of the server: 400", call("/lora-adapters", [{"id": 9, "scale": 1}])[0] == 400)


@tap.case
def updates():
    load, unload = "/v1/load_lora_adapter", "/v1/unload_lora_adapter"
    check("loaded", call(load, {"lora_name": "blue", "lora_path": f"{folder}/blue"}) == (200, "Success: LoRA adapter 'blue' added successfully."))
    blue = ids("blue")
    check("and used, in the place of another", isinstance(blue, list) and blue not in (plain, red, green), blue)
    check("evicted models are loaded again", ids("red") == red and ids("green") == green and ids("blue") == blue)
    again = call(load, {"lora_name": "blue", "lora_path": f"{folder}/blue"})
    check("loaded twice: vLLM's 400", again[0] == 400 and error_of(again)["type"] == "InvalidUserInput" and "already been loaded" in error_of(again)["message"],
          again)
    check("in place of itself", call(load, {"lora_name": "blue", "lora_path": f"{folder}/red", "load_inplace": True})[0] == 200 and ids("blue") == red)
    for name, alone in (("red", red), ("green", green)):
        subprocess.run([lateen, "convert", f"{folder}/{name}", f"{folder}/{name}.gguf", "--adapter", "--base", model], check=True, capture_output=True)
        loaded = call(load, {"lora_name": f"{name}.gguf", "lora_path": f"{folder}/{name}.gguf"})
        check(f"{name} as a GGUF: the same text", loaded[0] == 200 and ids(f"{name}.gguf") == alone, loaded)
        call(unload, {"lora_name": f"{name}.gguf"})
    check("one with magnitudes is loaded", call(load, {"lora_name": "gold", "lora_path": f"{folder}/gold"})[0] == 200)
    gold, half = ids("gold"), ids(lora=[{"id": "gold", "scale": 0.5}])
    text, alone = ask("gold")[1]["choices"][0]["text"], merged("gold").rstrip("\n")
    check("its text is that of the merged model", text.strip() and text == alone, (text, alone))
    check("another scale has its own place", isinstance(half, list) and half not in (gold, plain) and ids("gold") == gold and ids(lora=[{"id": "gold", "scale": 0.5}]) == half, half)
    status, text = send(base + "/v1/completions", {**PROMPT, "lora": [{"id": "gold", "scale": 1}, {"id": "red", "scale": 1}]})
    check("it is not added to others", status == 400 and "is not added to others" in text, (status, text))
    call(unload, {"lora_name": "gold"})
    both = ids(lora=[{"id": "red", "scale": 0.5}, {"id": "blue", "scale": 0.5}])
    check("two added up: red is half of itself twice", both == red, both)
    missing = call(load, {"lora_name": "x"})
    check("no path: vLLM's 400", missing[0] == 400 and "Both 'lora_name' and 'lora_path'" in error_of(missing)["message"], missing)
    for name, status, words in (("nowhere", 404, "adapter_config.json"), ("nowhere.gguf", 404, "nowhere.gguf"), ("other_base", 400, "(2, 48) where (2, 64)"),
                                ("rank", 400, "rank 16"), ("dora", 400, "lora_magnitude_vector")):
        answer = call(load, {"lora_name": name, "lora_path": f"{folder}/{name}"})
        check(f"{name}: {status}, and why", answer[0] == status and words in error_of(answer)["message"], answer)
    check("unloaded", call(unload, {"lora_name": "blue"}) == (200, "Success: LoRA adapter 'blue' removed successfully."))
    gone = call(unload, {"lora_name": "blue"})
    check("unloaded twice: vLLM's 404", gone[0] == 404 and error_of(gone)["type"] == "NotFoundError" and "cannot be found" in error_of(gone)["message"], gone)
    check("its name is unknown then", ask("blue")[0] == 404)
    check("no name: vLLM's 400", call(unload, {})[0] == 400)
    call(load, {"lora_name": "blue", "lora_path": f"{folder}/blue"})


@tap.case
def many_at_once():
    """Three adapters and the base compete for two places: every answer is that of the request
    alone."""
    blue = ids("blue")
    want = {None: plain, "red": red, "green": green, "blue": blue}
    asked = [(None, "red", "green", "blue")[i % 4] for i in range(48)]
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        got = list(pool.map(ids, asked))
    wrong = [(n, g) for n, g in zip(asked, got) if g != want[n]]
    check("many at once: each its own text", not wrong, wrong[:2])
    whole = ask("red", max_tokens=400)[1]["choices"][0]["text"]
    with streamed("red", max_tokens=400) as events:
        said = [next(events)]  # It runs.
        call("/v1/unload_lora_adapter", {"lora_name": "red"})
        call("/v1/load_lora_adapter", {"lora_name": "red", "lora_path": f"{folder}/blue"})
        check("the name is another's", ids("red") == blue and ids("green") == green)
        said += events
    check("a request keeps its adapter to its end", "".join(said) == whole, ("".join(said), whole))
    text = send(base + "/metrics")[1]
    text = text if isinstance(text, str) else text.decode()
    check("/metrics", "vllm:lora_requests_info{max_lora=\"2\"" in text and 'lateen_adapter_loads_total{result="loaded"}' in text and "lateen_adapters 3" in text)


sys.exit(tap.end())
