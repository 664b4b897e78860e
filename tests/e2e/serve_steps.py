"""Process reward models in a server: /pooling against transformers' values (tests/golden/prm), and methods of alignment that select by the scores of
steps. Standard library only; TAP on stdout.

usage: serve_steps.py folder|head_folder DIR | tokens|steps|judged|head|head_judged BASE_URL
    folder writes the model's folder, with a tokenizer and the separator of steps; head_folder: that of a head of two layers (tests/golden/prm_head)
    tokens: a server of the model without a separator; steps, head: of the folder; judged, head_judged: of a language model with --reward DIR"""
import base64
import collections
import json
import math
import shutil
import struct
import sys

import serve_http
from tap import Tap

served, base = sys.argv[1:3]
golden = "tests/golden/prm"
SEPARATOR = "<extra_0>"
if served == "head_folder":
    shutil.copytree("tests/golden/prm_head/model", base)
    shutil.copy("tests/golden/sft/tokenizer_config.json", base)
    open(f"{base}/tokenizer.json", "w", encoding="utf-8").write(open("tests/golden/sft/tokenizer.json", encoding="utf-8").read().replace("<|tool|>", SEPARATOR))
    sys.exit()
if served == "folder":
    shutil.copytree(f"{golden}/model", base)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(f"tests/golden/sft/{name}", base)
    config = json.load(open(f"{base}/config.json"))
    json.dump({**config, "step_separator": "\n"}, open(f"{base}/config.json", "w"))
    sys.exit()
tap = Tap()
check = tap.check
truth = json.load(open(f"{golden}/truth.json"))
rows = [json.loads(line) for line in open(f"{golden}/steps.jsonl", encoding="utf-8")]


def ask(path, **body):
    status, text = serve_http.send(base + path, body)
    return status, json.loads(text)


def near(a, b, tolerance=2e-4):
    return abs(a - b) < tolerance * (1 + abs(b))


def same(got, want):
    return len(got) == len(want) and all(len(g) == len(w) and all(near(x, math.exp(y)) for x, y in zip(g, w)) for g, w in zip(got, want))


def pooled(**body):
    status, a = ask("/pooling", **body)
    return [d["data"] for d in a["data"]] if status == 200 else (status, a)


def refused(name, param, path, **body):
    status, e = ask(path, **body)
    check(f"refused: {name}", status == 400 and e["error"]["param"] == param, (status, e))


def tokens():
    some = truth["says"][:3]
    for task in ({}, {"task": "token_classify"}):
        got = pooled(input=[s["ids"] for s in some], **task)
        ends = [[len(s["ids"]) - 1] for s in some]
        check("pooling: the softmax of both values for each token, the last among them as transformers has it", all(len(g) == len(s["ids"]) and same([g[e] for e in end], s["logps"][-1:])
                                                                                                            for g, s, end in zip(got, some, ends)), (got, some))
    flat = base64.b64decode(ask("/pooling", input=some[0]["ids"], encoding_format="base64", use_activation=False)[1]["data"][0]["data"])
    values = struct.unpack(f"<{len(flat) // 4}f", flat)
    check("pooling: base64 has the rows one after the other; without activation they are the head's", len(values) == 2 * len(some[0]["ids"])
          and near(1 / (1 + math.exp(values[-2] - values[-1])), math.exp(some[0]["logps"][-1][1])), values)
    check("pooling: task embed", len(pooled(input="Hi", task="embed")[0]) == 24)
    refused("a task of texts", "task", "/pooling", input="x", task="classify")
    refused("a score of a text", "model", "/v1/score", queries="a", documents="b")
    refused("a class of a text", "model", "/classify", input="a")


def steps():
    alone = pooled(input=["".join(s + "\n" for s in r["completions"]) for r in rows[:4]])
    check("pooling: the ends of steps, as transformers has them", all(same(g, t["logps"]) for g, t in zip(alone, truth["alone"])) and len(alone) == 4, (alone, truth["alone"]))
    for r, t in zip(rows[:4], truth["chat"]):
        got = pooled(messages=[{"role": "user", "content": r["prompt"]}, {"role": "assistant", "content": "".join(s + "\n" for s in r["completions"])}])
        check("pooling: the answer of a chat, after the template's opening", len(got) == 1 and same(got[0], t["logps"]), (got, t["logps"]))
    check("pooling: what follows the last separator is not read", same(pooled(input="".join(s + "\n" for s in rows[0]["completions"]) + "and so")[0], truth["alone"][0]["logps"]))
    refused("a text without a step", "input", "/pooling", input="no step")
    refused("ids, in which no separator is looked for", "input", "/pooling", input=[1, 2, 3])
    refused("a chat that ends with a question", "messages", "/pooling", messages=[{"role": "user", "content": "a\n"}])


FOLD = {"min": min, "product": math.prod, "last": lambda s: s[-1], "mean": lambda s: sum(s) / len(s)}
CHAT = [{"role": "user", "content": "Once upon a time"}]


def parts(text, border):
    return [p for p in text.split(border) if p.strip()]


def judged():
    """The scores of a chat's steps are those that /pooling returns for it, from the reward model."""
    def scores(text, border):
        got = pooled(messages=CHAT + [{"role": "assistant", "content": "".join(s + "\n" for s in parts(text, border) or [""])}])
        return [g[1] for g in got[0]]

    def group(method, border=" ", **more):
        body = {"messages": CHAT, "max_tokens": 12, "seed": 5, "temperature": 1.0, "alignment": {"method": method, "reward": "reward", "return_candidates": True, **({"border": border} if border else {}), **more}}
        status, a = ask("/v1/chat/completions", **body)
        return a if status == 200 else {"alignment": a}

    for name, fold in FOLD.items():
        says = group("best_of_n", n=5, aggregate=name)["alignment"]
        want = [scores(c["text"], " ") for c in says["candidates"]]
        check(f"best_of_n: each step has the score of the reward model; {name} of them is the candidate's", len(want) == 5 and max(map(len, want)) > 2 and all(
            len(c["steps"]) == len(w) and all(near(x, y) for x, y in zip(c["steps"], w)) and near(c["score"], fold(w)) for c, w in zip(says["candidates"], want)), (says, want))
        best = max(range(5), key=lambda i: fold(want[i]))
        check(f"best_of_n: {name}: the best is kept, and its steps are reported", says["chosen"] == best and near(says["score"], fold(want[best])) and all(near(x, y) for x, y in zip(says["steps"], want[best])), says)
    check("min is what counts if nothing is said", near(group("best_of_n", n=5)["alignment"]["score"], group("best_of_n", n=5, aggregate="min")["alignment"]["score"]))
    check("without a border the separator ends a step", all(len(c["steps"]) == len(parts(c["text"], "\n")) or not c["text"].strip() for c in group("best_of_n", border=None, n=5)["alignment"]["candidates"]))
    votes = group("self_consistency", n=6, aggregate="product")["alignment"]
    weight = collections.defaultdict(float)
    for c in votes["candidates"]:
        weight[c["answer"]] += c["score"]
    check("probabilities weigh votes", weight[votes["answer"]] == max(v for k, v in weight.items() if k is not None), votes)
    check("and are rewards in [0, 1]", group("best_of_tails", n=4, temperature=0.1)["alignment"].get("chosen") is not None)
    plain = ask("/v1/chat/completions", messages=CHAT, max_tokens=12, seed=5, temperature=1.0)[1]["choices"][0]["message"]["content"]
    a = group("blockwise", n=1, every=4)
    check("blockwise: with n 1 the answer is the plain one, and its steps have their scores", a["choices"][0]["message"]["content"] == plain
          and all(near(x, y) for x, y in zip(a["alignment"]["steps"], scores(plain, " "))) and len(a["alignment"]["steps"]) == len(scores(plain, " ")), (a, plain, scores(plain, " ")))
    for name in ("min", "last"):
        a = group("blockwise", n=3, every=6, aggregate=name)
        says, text = a["alignment"], a["choices"][0]["message"]["content"]
        check(f"blockwise: blocks are steps, each the best of {3}; {name}", says["blocks"] > 2 and all(c["scores"][c["chosen"]] == max(c["scores"]) for c in says["candidates"]), says)
        check(f"blockwise: the last score is {name} of the whole answer's, read at once", near(says["candidates"][-1]["scores"][says["candidates"][-1]["chosen"]], FOLD[name](scores(text, " ")))
              and all(near(x, y) for x, y in zip(says["steps"], scores(text, " "))), (says, scores(text, " ")))
    a = group("blockwise", n=4, width=2, every=6)
    says, text = a["alignment"], a["choices"][0]["message"]["content"]
    check("blockwise with a width: a beam search by the scores of steps", says["width"] == 2 and says["blocks"] > 1 and all(c["kept"] == sorted(c["kept"], reverse=True) and len(c["kept"]) == 2 for c in says["candidates"])
          and near(says["score"], min(scores(text, " "))) and all(near(x, y) for x, y in zip(says["steps"], scores(text, " "))) and len(says["steps"]) == len(scores(text, " ")), (says, text, scores(text, " ")))
    says = group("speculative_rejection", n=4, every=4)["alignment"]
    check("speculative_rejection: beginnings are judged by their steps", says["cut"] > 0 and len(says["steps"]) > 0, says)
    done = ask("/v1/completions", prompt="Once upon a time", max_tokens=12, seed=5, temperature=1.0, alignment={"method": "best_of_n", "n": 3, "reward": "reward", "border": " "})
    check("a completion is judged after its prompt", done[0] == 200 and all(0 < s < 1 for s in done[1]["alignment"]["steps"]), done)
    for name, param, fields in (("an aggregate", "alignment.aggregate", {"aggregate": "max"}), ("an aggregate without the reward model", "alignment.aggregate", {"aggregate": "min", "reward": "logprob"}),
                                ("a border without it", "alignment.border", {"border": ".", "reward": "logprob"}), ("an empty border", "alignment.border", {"border": ""})):
        refused(name, param, "/v1/completions", prompt="x", max_tokens=2, alignment={"method": "best_of_n", "n": 2, "reward": "reward", **fields})


def head():
    two = json.load(open("tests/golden/prm_head/truth.json", encoding="utf-8"))
    texts = ["".join(s + SEPARATOR for s in r["steps"]) for r in two]
    alone = pooled(input=texts)
    near_all = lambda got, want: len(got) == len(want) and all(len(g) == 2 and all(near(x, y) for x, y in zip(g, w)) for g, w in zip(got, want))
    check("pooling: a head of two layers gives PyTorch's scores at the ends of steps", all(near_all(g, r["alone"]) for g, r in zip(alone, two)) and len(alone) == 6, (alone, two))
    check("the values differ between steps (else that says little)", len({round(v[1], 3) for r in two for v in r["alone"]}) > 8)
    for r, text in zip(two, texts):
        got = pooled(messages=[{"role": "user", "content": r["prompt"]}, {"role": "assistant", "content": text}])
        check("pooling: the answer of a chat", len(got) == 1 and near_all(got[0], r["chat"]), (got, r))
    raw = pooled(input=texts[0], use_activation=False)[0][0]
    check("pooling: without activation the two values are the head's", len(raw) == 2 and near(1 / (1 + math.exp(raw[0] - raw[1])), two[0]["alone"][0][1]) and abs(sum(raw) - 1) > 1e-3, raw)


def head_judged():
    body = {"messages": CHAT, "max_tokens": 12, "seed": 5, "temperature": 1.0}
    says = ask("/v1/chat/completions", **body, alignment={"method": "best_of_n", "n": 5, "reward": "reward", "border": " ", "return_candidates": True})[1]["alignment"]
    want = []
    for c in says["candidates"]:
        got = pooled(messages=CHAT + [{"role": "assistant", "content": "".join(s + SEPARATOR for s in parts(c["text"], " "))}])
        want.append([g[1] for g in got[0]])
    check("best_of_n: each step has the score of the head of two layers", max(map(len, want)) > 2 and all(len(c["steps"]) == len(w) and all(near(x, y) for x, y in zip(c["steps"], w))
                                                                                                      and near(c["score"], min(w)) for c, w in zip(says["candidates"], want)), (says, want))
    check("and the best is kept", says["chosen"] == max(range(5), key=lambda i: min(want[i])), says)
    a = ask("/v1/chat/completions", **body, alignment={"method": "blockwise", "n": 3, "every": 6, "border": " ", "reward": "reward"})[1]
    text = a["choices"][0]["message"]["content"]
    got = pooled(messages=CHAT + [{"role": "assistant", "content": "".join(s + SEPARATOR for s in parts(text, " "))}])[0]
    check("blockwise: steps keep their scores", all(near(x, y[1]) for x, y in zip(a["alignment"]["steps"], got)) and len(got) == len(a["alignment"]["steps"]) > 1, (a, got))


{"tokens": tokens, "steps": steps, "judged": judged, "head": head, "head_judged": head_judged}[served]()
sys.exit(tap.end())
