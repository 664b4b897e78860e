"""Models that judge texts: /pooling, /classify, /score and /rerank against transformers' values (tests/golden/serve/guides/scores.json), and a reward
model beside the served one. Standard library only; TAP on stdout.

usage: serve_scores.py reward|classify|pooled|text|beside BASE_URL        which models are served: a head of one value, of three, of one whose folder
                                                                         says that embeddings are of the last token, none, none with --reward"""
import base64
import json
import math
import re
import struct
import sys

import serve_http
from tap import Tap

served, base = sys.argv[1:3]
tap = Tap()
check = tap.check
golden = json.load(open("tests/golden/serve/guides/scores.json"))


def send(path, body=None):
    return serve_http.send(base + path, body)


def ask(path, **body):
    status, text = send(path, body)
    return status, json.loads(text)


def near(a, b, tolerance=2e-4):
    return abs(a - b) < tolerance * (1 + abs(b))


def sigmoid(x):
    return 1 / (1 + math.exp(-x))


def ids_of(text):
    return ask("/tokenize", content=text, add_special=True)[1]["tokens"]


def raw(**body):
    return [d["data"] for d in ask("/pooling", use_activation=False, **body)[1]["data"]]


def refused(name, param, path, status=400, **body):
    code, e = ask(path, **body)
    check(f"refused: {name}", code == status and e["error"]["param"] == param, (code, e))


def values_of(name):
    rows = golden[name]
    got = raw(input=[r["ids"] for r in rows])
    check("pooling: values are those of transformers", all(near(a, b) for x, r in zip(got, rows) for a, b in zip(x, r["values"])) and len(got) == 3, (got, rows))
    one = raw(input=rows[1]["ids"])
    check("pooling: a list of ids is one text", len(one) == 1 and near(one[0][0], rows[1]["values"][0]), one)
    return rows


def embeddings(rows, which):
    got = [d["embedding"] for d in ask("/v1/embeddings", input=[r["ids"] for r in rows])[1]["data"]]
    check(f"embeddings: {which} of the hidden states, as transformers has them", all(near(x, y) for e, r in zip(got, rows) for x, y in zip(e, r[which])) and len(got) == 3, got)


def pooled():
    embeddings(golden["reward"], "last")
    embeddings(golden["reward"], "last")  # From the cache.
    check("ollama's embeddings, too", all(near(x, y) for x, y in zip(ask("/api/embed", input="Hi", model="pooled")[1]["embeddings"][0], ask("/v1/embeddings", input="Hi")[1]["data"][0]["embedding"])))


def reward():
    rows = values_of("reward")
    embeddings(rows, "mean")
    status, a = ask("/pooling", input=[r["ids"] for r in rows])
    check("pooling: the sigmoid unless use_activation is false; its shape is vLLM's", all(near(d["data"][0], sigmoid(r["values"][0])) for d, r in zip(a["data"], rows))
          and [d["index"] for d in a["data"]] == [0, 1, 2] and {d["object"] for d in a["data"]} == {"pooling"} and a["object"] == "list" and a["id"].startswith("pool-")
          and a["usage"] == {"prompt_tokens": sum(len(r["ids"]) for r in rows), "total_tokens": sum(len(r["ids"]) for r in rows)} and a["model"] == "reward", a)
    b = ask("/pooling", input=rows[0]["ids"], use_activation=False, encoding_format="base64")[1]["data"][0]["data"]
    check("pooling: base64", near(struct.unpack("<f", base64.b64decode(b))[0], rows[0]["values"][0]), b)
    check("pooling: messages", near(raw(messages=[{"role": "user", "content": "Hi"}])[0][0], raw(input=ask("/apply-template", messages=[{"role": "user", "content": "Hi"}], add_generation_prompt=False)[1]["prompt"])[0][0]))
    q, docs = "Who is Lily?", ["A girl.", "A big dog in the park", {"text": "Lily is a little girl"}]
    texts = ["A girl.", "A big dog in the park", "Lily is a little girl"]
    want = [raw(input=ids_of(q) + ids_of(d))[0][0] for d in texts]
    status, a = ask("/v1/score", queries=q, documents=docs)
    check("score: query and document, one after the other", all(near(d["score"], sigmoid(w)) for d, w in zip(a["data"], want)) and [d["object"] for d in a["data"]] == ["score"] * 3, (a, want))
    check("score: older names, and pairs", all(near(x["score"], w) for x, w in zip(ask("/score", text_1=[q] * 3, text_2=texts, use_activation=False)[1]["data"], want)))
    order = sorted(range(3), key=lambda i: -want[i])
    for path in ("/rerank", "/v1/rerank", "/v2/rerank"):
        a = ask(path, query=q, documents=docs)[1]
        check(f"{path}: the best first", [r["index"] for r in a["results"]] == order and all(near(r["relevance_score"], sigmoid(want[r["index"]])) for r in a["results"])
              and [r["document"]["text"] for r in a["results"]] == [texts[i] for i in order] and a["usage"]["total_tokens"] > 0, a)
    a = ask("/rerank", query=q, documents=docs, top_n=2, return_documents=False)[1]
    check("rerank: top_n, without documents", [r["index"] for r in a["results"]] == order[:2] and all("document" not in r for r in a["results"]), a)
    a = ask("/classify", input=[r["ids"] for r in rows])[1]
    check("classify: one label", [d["label"] for d in a["data"]] == ["LABEL_0"] * 3 and all(near(d["probs"][0], sigmoid(r["values"][0])) for d, r in zip(a["data"], rows)), a)
    a = ask("/v1/embeddings", input="Hi")[1]["data"][0]["embedding"]
    check("embeddings: the hidden states still have length 1", len(a) == 16 and near(sum(x * x for x in a), 1), a)
    check("pooling: task embed", all(near(x, y) for x, y in zip(ask("/pooling", input="Hi", task="embed")[1]["data"][0]["data"], a)))
    for path, body in (("/v1/completions", {"prompt": "Hi"}), ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}]})):
        status, e = ask(path, **body)
        check(f"refused: {path} of a model that writes no text", status == 400 and "score head" in e["error"]["message"], (status, e))
    refused("no documents", "documents", "/v1/score", queries=q)
    refused("three queries, two documents", "queries", "/v1/score", queries=[q] * 3, documents=texts[:2])
    refused("a list of queries to rerank", "query", "/rerank", query=[q], documents=texts)
    refused("a document that is no text", "documents", "/rerank", query=q, documents=["x", 3])
    refused("no input", "input", "/pooling")
    refused("input and messages", "input", "/classify", input="x", messages=[])
    refused("a task", "task", "/pooling", input="x", task="token_embed")
    refused("an unknown field", "quary", "/rerank", quary=q, documents=texts)
    refused("another model", "model", "/rerank", 404, query=q, documents=texts, model="gpt-4")
    refused("a text that is too long", "input", "/pooling", input=[[5] * 2000])


def classify():
    rows = values_of("classify")
    a = ask("/classify", input=[r["ids"] for r in rows])[1]
    for d, r in zip(a["data"], rows):
        weights = [math.exp(v) for v in r["values"]]
        best = max(range(3), key=lambda i: weights[i])
        check("classify: softmax, and the label's name", all(near(p, w / sum(weights)) for p, w in zip(d["probs"], weights)) and d["label"] == ["calm", "stormy", "neither"][best] and d["num_classes"] == 3, d)
    refused("a score of three values", "model", "/v1/score", queries="a", documents="b")


def text():
    texts = ["A girl.", "A big dog in the park", "Lily is a little girl"]
    e = [d["embedding"] for d in ask("/v1/embeddings", input=["Who is Lily?"] + texts)[1]["data"]]
    want = [sum(x * y for x, y in zip(e[0], d)) for d in e[1:]]
    a = ask("/v1/score", queries="Who is Lily?", documents=texts)[1]
    check("score: the cosine of embeddings", all(near(d["score"], w) for d, w in zip(a["data"], want)) and len(a["data"]) == 3, (a, want))
    a = ask("/rerank", query="Who is Lily?", documents=texts)[1]
    check("rerank: by it", [r["index"] for r in a["results"]] == sorted(range(3), key=lambda i: -want[i]), a)
    a = ask("/pooling", input=texts)[1]["data"]
    check("pooling: the embedding", all(near(x, y) for d, w in zip(a, e[1:]) for x, y in zip(d["data"], w)))
    refused("labels", "model", "/classify", input="x")
    refused("a task that needs a head", "task", "/pooling", input="x", task="classify")
    refused("a reward without a reward model", "alignment.reward", "/v1/completions", prompt="x", alignment={"method": "best_of_n", "n": 2, "reward": "reward"})


def beside():
    N, PROMPT = 6, {"prompt": "Once upon a time", "max_tokens": 24, "seed": 5, "temperature": 1.0}
    values_of("reward")
    plain = [c["text"] for c in ask("/v1/completions", n=N, **PROMPT)[1]["choices"]]
    want = [v[0] for v in raw(input=[PROMPT["prompt"] + t for t in plain])]
    best = max(range(N), key=lambda i: want[i])
    check("the scores differ, and the best is not the first", best != 0 and len(set(want)) == N, want)
    a = ask("/v1/completions", alignment={"method": "best_of_n", "n": N, "reward": "reward", "return_candidates": True}, **PROMPT)[1]
    says = a["alignment"]
    check("best_of_n: the reward model's scores of prompt and text", [c["text"] for c in says["candidates"]] == plain and all(near(c["score"], w) for c, w in zip(says["candidates"], want)), (says, want))
    check("best_of_n: the best is the answer", says["chosen"] == best and a["choices"][0]["text"] == plain[best] and says["reward"] == "reward", says)
    check("the reward model's tokens are told", says["tokens"]["reward"] == sum(len(ids_of(PROMPT["prompt"] + t)) for t in plain), says["tokens"])
    a = ask("/v1/completions", alignment={"method": "soft_best_of_n", "temperature": 0.5, "n": N, "reward": "reward", "return_candidates": True}, **PROMPT)[1]["alignment"]
    law = [math.exp(w / 0.5) for w in want]
    check("soft_best_of_n: by them", all(near(c["probability"], p / sum(law), 1e-3) for c, p in zip(a["candidates"], law)), (a, law))
    first = next(i for i in range(N) if want[i] >= sorted(want)[-2])
    a = ask("/v1/completions", alignment={"method": "rejection", "threshold": sorted(want)[-2] - 1e-4, "n": N, "reward": "reward"}, **PROMPT)[1]["alignment"]
    check("rejection: the first that is good enough", a["chosen"] == first, (a, want))
    _, stream = send("/v1/completions", {**PROMPT, "stream": True, "alignment": {"method": "best_of_n", "n": N, "reward": "reward"}})
    events = [json.loads(e[6:]) for e in stream.split("\n\n") if e.startswith("data: {")]
    check("a stream: the same", "".join(c["text"] for e in events for c in e["choices"]) == plain[best], stream)
    blocks = [c["text"] for c in ask("/v1/completions", n=3, **{**PROMPT, "max_tokens": 6})[1]["choices"]]
    want = [v[0] for v in raw(input=[PROMPT["prompt"] + t for t in blocks])]
    a = ask("/v1/completions", alignment={"method": "blockwise", "n": 3, "every": 6, "reward": "reward", "return_candidates": True}, **PROMPT)[1]
    says = a["alignment"]
    check("blockwise: the text so far is judged", all(near(x, w) for x, w in zip(says["candidates"][0]["scores"], want)) and a["choices"][0]["text"].startswith(blocks[says["candidates"][0]["chosen"]])
          and all(c["scores"][c["chosen"]] == max(c["scores"]) for c in says["candidates"]) and says["tokens"]["reward"] > 0, (says, want))
    check("blockwise: the last score is that of the answer", near(says["candidates"][-1]["scores"][says["candidates"][-1]["chosen"]], raw(input=[PROMPT["prompt"] + a["choices"][0]["text"]])[0][0], 2e-3), says)
    a = ask("/v1/completions", alignment={"method": "blockwise", "n": 3, "every": 40, "border": [".", ","], "reward": "reward", "return_candidates": True}, **{**PROMPT, "max_tokens": 60})[1]
    says, text = a["alignment"], a["choices"][0]["text"]
    ends = [i + 1 for i, c in enumerate(text) if c in ".,"][:says["blocks"]] + [len(text)]
    check("blockwise: with a border the reward model judges each step's end", says["blocks"] > 3 and all(
        near(c["scores"][c["chosen"]], raw(input=[PROMPT["prompt"] + text[:e]])[0][0], 2e-3) for c, e in zip(says["candidates"], ends)), (says, text))
    left, lengths, spent = list(range(8)), {}, 0
    for length in (7, 14, 21):
        texts = [c["text"] for c in ask("/v1/completions", n=8, **{**PROMPT, "max_tokens": length, "ignore_eos": True})[1]["choices"]]
        score = {i: raw(input=[PROMPT["prompt"] + texts[i]])[0][0] for i in left}
        spent += sum(len(ids_of(PROMPT["prompt"] + texts[i])) for i in left)
        left.sort(key=lambda i: -score[i])
        for i in left[math.ceil(len(left) / 2):]:
            lengths[i] = length
        left = left[:math.ceil(len(left) / 2)]
    whole = ask("/v1/completions", n=8, **{**PROMPT, "ignore_eos": True})[1]["choices"]
    for _ in range(3):  # Whichever score comes first.
        a = ask("/v1/completions", ignore_eos=True, alignment={"method": "speculative_rejection", "n": 8, "every": 7, "reward": "reward", "return_candidates": True}, **PROMPT)[1]
        says = a["alignment"]
        cut = {i: c["tokens"] for i, c in enumerate(says["candidates"]) if c["finish_reason"] == "cut"}
        check("speculative_rejection: the reward model judges beginnings, and the worse half is cut each time", says["chosen"] == left[0] and a["choices"][0]["text"] == whole[left[0]]["text"]
              and sorted(cut) == sorted(lengths) and all(cut[i] >= lengths[i] for i in cut) and says["tokens"]["reward"] >= spent, (says, left, lengths, spent))
    messages = [{"role": "user", "content": "Once upon a time"}]
    a = ask("/v1/chat/completions", messages=messages, max_tokens=16, seed=5, alignment={"method": "best_of_n", "n": 4, "reward": "reward", "return_candidates": True})[1]
    want = [raw(messages=messages + [{"role": "assistant", "content": c["text"]}])[0][0] for c in a["alignment"]["candidates"]]
    check("a chat: the conversation with its answer", all(near(c["score"], w) for c, w in zip(a["alignment"]["candidates"], want)) and a["alignment"]["chosen"] == max(range(4), key=lambda i: want[i]), (a, want))
    refused("a reward that may be negative weighs no votes", "alignment.reward", "/v1/completions", alignment={"method": "self_consistency", "n": 2, "reward": "reward"}, **PROMPT)
    refused("a second model that is not there", "alignment.method", "/v1/completions", alignment={"method": "contrastive"}, **PROMPT)
    _, metrics = send("/metrics")
    tokens = {p: int(v) for p, v in re.findall(r'lateen_alignment_tokens_total\{.*purpose="(\w+)"\} (\d+)', metrics)}
    check("/metrics: tokens of the reward model", tokens["reward"] > 0, tokens)
    check("the served model still writes", ask("/v1/completions", prompt="x", max_tokens=2)[0] == 200)


{"reward": reward, "classify": classify, "pooled": pooled, "text": text, "beside": beside}[served]()
sys.exit(tap.end())
