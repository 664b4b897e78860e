"""Filling in the middle: /infill like llama-server's, the suffix of OpenAI's completions and of Ollama's generate. TAP on stdout.

usage: serve_infill.py tokenizer KIND FOLDER    writes a tokenizer whose ids are bytes, with the tokens of Qwen2.5-Coder or of Code Llama
       serve_infill.py KIND BASE_URL            tests a server with it; the model is stories260K, whose context has 512 tokens
The ids that a prompt must have follow from the bytes and the layout of llama-server (tools/server/README.md, arXiv:2409.12186)."""
import json
import os
import sys
import urllib.error
import urllib.request

from tap import Tap

marks = {"qwen": dict(pre="<|fim_prefix|>", suf="<|fim_suffix|>", mid="<|fim_middle|>", rep="<|repo_name|>", sep="<|file_sep|>", pad="<|fim_pad|>"),
         "llama": dict(bos="<s>", pre="\u2581<PRE>", suf="\u2581<SUF>", mid="\u2581<MID>")}
kind = sys.argv[2 if sys.argv[1] == "tokenizer" else 1]
ids = {name: 256 + i for i, name in enumerate(marks[kind])}


def byte_letters():
    """GPT-2's letters for the 256 bytes."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in plain]
    return {**{b: chr(b) for b in plain}, **{b: chr(256 + i) for i, b in enumerate(others)}}


if sys.argv[1] == "tokenizer":
    added = [dict(id=ids[n], content=t, special=True, single_word=False, lstrip=False, rstrip=False, normalized=False) for n, t in marks[kind].items()]
    bos = {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}], "pair": [],
           "special_tokens": {"<s>": {"id": "<s>", "ids": [256], "tokens": ["<s>"]}}}
    os.makedirs(sys.argv[3])
    with open(os.path.join(sys.argv[3], "tokenizer.json"), "w") as f:
        json.dump({"version": "1.0", "added_tokens": added, "normalizer": None, "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False},
                   "post_processor": bos if kind == "llama" else None, "decoder": {"type": "ByteLevel"},
                   "model": {"type": "BPE", "vocab": {c: b for b, c in byte_letters().items()}, "merges": []}}, f)
    sys.exit(0)

base = sys.argv[2]
tap = Tap()
check = tap.check


def post(path, **body):
    try:
        with urllib.request.urlopen(urllib.request.Request(base + path, json.dumps(body).encode(), {"content-type": "application/json"}), timeout=60) as r:
            return r.status, r.read().decode()
    except urllib.error.HTTPError as e:
        return e.code, e.read().decode()


def infill(**body):
    return json.loads(post("/infill", **{"n_predict": 8, "temperature": 0, **body})[1])


m = marks[kind]
gap = {"input_prefix": "def f(a):\n    return ", "input_suffix": " + 1\n"}
head = f"{m['rep']}myproject\n{m['sep']}filename\n" if kind == "qwen" else m["bos"]
want = f"{head}{m['pre']}{gap['input_prefix']}{m['suf']}{gap['input_suffix']}{m['mid']}"
r = infill(**gap)
check("the layout", r["prompt"] == want, r["prompt"])
check("the number of its tokens", r["tokens_evaluated"] == len(gap["input_prefix"] + gap["input_suffix"]) + (2 + len("myproject\nfilename\n") if kind == "qwen" else 1) + 3, r["tokens_evaluated"])
same = json.loads(post("/completion", prompt=want, n_predict=8, temperature=0, add_special_tokens=False)[1])
check("the answer is that of this prompt", r["content"] == same["content"] and same["prompt"] == want, (r["content"], same))
check("what the answer begins with", infill(**gap, prompt="a")["prompt"] == want.replace(m["suf"], "a" + m["suf"]))
check("text that looks like a token is text", infill(input_prefix=m["pre"], input_suffix="")["tokens_evaluated"] == r["tokens_evaluated"] - len(gap["input_prefix"] + gap["input_suffix"])
      + len(m["pre"].encode()))
extra = infill(**gap, input_extra=[{"filename": "a.py", "text": "x = 1\n"}, {"text": "y"}])["prompt"]
files = f"{m['rep']}myproject\n{m['sep']}a.py\nx = 1\n{m['sep']}tmp\ny{m['sep']}filename\n" if kind == "qwen" else "\n\n--- snippet ---\n\nx = 1\n\n\n--- snippet ---\n\ny" + m["bos"]
check("further files", extra == files + want[len(head):], extra)
# The window is the context of 512 tokens less those of the answer: 504, of which the suffix and
# the marks get 126.
long = infill(input_prefix="p" * 1000 + "q", input_suffix="s" + "t" * 1000, input_extra=[{"text": "e" * 1000}])["prompt"]
prefix, suffix = long.split(m["pre"])[1].split(m["suf"])
check("long texts are cut to what is near the gap", prefix == "p" * 377 + "q" and suffix == "s" + "t" * 121 + m["mid"], (len(prefix), len(suffix)))
status, stream = post("/infill", **gap, n_predict=8, temperature=0, stream=True)
parts = [json.loads(x[6:]) for x in stream.splitlines() if x.startswith("data: {")]
check("streamed equals whole", status == 200 and "".join(p["content"] for p in parts) == r["content"] and parts[-1]["stop"], parts)
for name, word, body in (("no suffix", "input_suffix", {"input_prefix": "a"}), ("no prefix", "input_prefix", {"input_suffix": "a"}),
                         ("a prefix that is no text", "input_prefix", {**gap, "input_prefix": 5}), ("a prompt that is no text", "prompt", {**gap, "prompt": [5]}),
                         ("files that are none", "input_extra", {**gap, "input_extra": [5]}), ("a file without text", "input_extra", {**gap, "input_extra": [{"filename": "a"}]}),
                         ("a field that is none", "input_prefx", {**gap, "input_prefx": ""})):
    status, why = post("/infill", **body)
    check("refused: " + name, status == 400 and word in why, (status, why))

r = json.loads(post("/v1/completions", prompt="ab", suffix="cd", max_tokens=8, temperature=0, return_token_ids=True)[1])["choices"][0]
bos = [ids["bos"]] if kind == "llama" else []
check("suffix: the ids", r["prompt_token_ids"] == [*bos, ids["pre"], *b"ab", ids["suf"], *b"cd", ids["mid"]], r)
several = json.loads(post("/v1/completions", prompt=["ab", "x"], suffix="cd", max_tokens=8, temperature=0)[1])["choices"]
check("suffix: of several prompts", len(several) == 2 and several[0]["text"] == r["text"], several)
check("suffix: without ids, and without echo", post("/v1/completions", prompt=[1, 2], suffix="x")[0] == 400 and post("/v1/completions", prompt="a", suffix="x", echo=True)[0] == 400)
status, answer = post("/api/generate", model="stories260K", prompt="ab", suffix="cd", stream=False, options={"temperature": 0, "num_predict": 8})
check("Ollama's suffix", status == 200 and json.loads(answer)["response"] == r["text"], (answer, r["text"]))
sys.exit(tap.end())
