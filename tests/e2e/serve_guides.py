"""Methods of "alignment" that change how tokens are chosen: watermarks, against their formulas in Python, and detected by `lateen align detect`;
steering vectors. Standard library only; TAP on stdout.

usage: serve_guides.py BASE_URL TOKENIZER [LATEEN]
       serve_guides.py vector FILE         write the vector with which the server must be started: --steer push=FILE
       serve_guides.py small FOLDER        write a small model with random weights, to be --second small=FOLDER beside twin=, the served model once more"""
import json
import math
import os
import random
import struct
import subprocess
import sys
import tempfile

from serve_http import send
from tap import Tap

if sys.argv[1] == "vector":
    header = json.dumps({"direction.2": {"dtype": "F32", "shape": [64], "data_offsets": [0, 256]}}).encode()
    with open(sys.argv[2], "wb") as f:
        f.write(struct.pack("<Q", len(header)) + header + struct.pack("<64f", *(math.sin(i) for i in range(64))))
    sys.exit()
if sys.argv[1] == "small":
    C, F, V = 16, 24, 512
    shapes = {"model.embed_tokens.weight": (V, C), "model.norm.weight": (C,), "lm_head.weight": (V, C)}
    for name, shape in (("input_layernorm", (C,)), ("post_attention_layernorm", (C,)), ("self_attn.q_proj", (C, C)), ("self_attn.k_proj", (C // 2, C)), ("self_attn.v_proj", (C // 2, C)),
                        ("self_attn.o_proj", (C, C)), ("mlp.gate_proj", (F, C)), ("mlp.up_proj", (F, C)), ("mlp.down_proj", (C, F))):
        shapes[f"model.layers.0.{name}.weight"] = shape
    header, data, draw = {}, b"", random.Random(3)
    for name, shape in shapes.items():
        n = math.prod(shape)
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [len(data), len(data) + 4 * n]}
        data += struct.pack(f"<{n}f", *(draw.gauss(len(shape) == 1, 0.3) for _ in range(n)))
    os.makedirs(sys.argv[2])
    with open(sys.argv[2] + "/config.json", "w") as f:
        json.dump({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": V, "hidden_size": C, "intermediate_size": F, "num_hidden_layers": 1, "num_attention_heads": 2,
                   "num_key_value_heads": 1, "max_position_embeddings": 512, "rms_norm_eps": 1e-5, "hidden_act": "silu", "bos_token_id": 1, "eos_token_id": 2, "tie_word_embeddings": False}, f)
    header = json.dumps(header).encode()
    with open(sys.argv[2] + "/model.safetensors", "wb") as f:
        f.write(struct.pack("<Q", len(header)) + header + data)
    sys.exit()
base, tokenizer, lateen = sys.argv[1], sys.argv[2], (sys.argv[3:] or ["build/lateen"])[0]
tap = Tap()
check = tap.check
PROMPT = {"prompt": "Once upon a time", "max_tokens": 200, "seed": 5, "temperature": 1.0, "ignore_eos": True, "return_token_ids": True, "logprobs": 0}
MASK = (1 << 64) - 1


def ask(also, alignment=None, path="/v1/completions", body=PROMPT):
    body = {**body, **also, **({"alignment": alignment} if alignment else {})}
    status, text = send(base + path, body)
    return status, json.loads(text)


def ids_of(answer, i=0):
    return answer[1]["choices"][i]["token_ids"]


# ---- The numbers of include/lateen/watermark.h, computed again ----
def mix(x):
    x = x + 0x9E3779B97F4A7C15 & MASK
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 & MASK
    x = (x ^ x >> 27) * 0x94D049BB133111EB & MASK
    return x ^ x >> 31


def fold(values, h=0):
    for v in values:
        h = mix(mix(h) ^ v)
    return h


def uniform(state, i):
    return ((mix(state + i * 0x9E3779B97F4A7C15 & MASK) >> 11) + 0.5) / 2 ** 53


def statistic(scheme, key, ids, context):
    seen, scored, total = set(), 0, 0.0
    for n in range(context, len(ids)):
        state = fold(ids[n - context:n], fold(key.encode()))
        what = (state, ids[n]) if scheme == "green" else state
        if what not in seen:
            seen.add(what)
            u = uniform(state, ids[n])
            scored += 1
            total += (u < 0.25) if scheme == "green" else -math.log1p(-u)
    return scored, total


def detect(ids, key, *flags):
    with tempfile.NamedTemporaryFile("w") as f:
        f.write(ids if isinstance(ids, str) else json.dumps(ids))
        f.flush()
        r = subprocess.run([lateen, "align", "detect", f.name, "--key", key, *([] if isinstance(ids, str) else ["--ids"]), *flags], capture_output=True, text=True)
    return r.returncode, r.stdout, r.stderr


def found(ids, key, *flags):
    status, out, err = detect(ids, key, "--json", *flags)
    return json.loads(out) if status == 0 else {"error": err}


plain = ids_of(ask({}))
for scheme, context in (("green", 1), ("gumbel", 4)):
    answer = ask({}, {"method": "watermark", "key": "Ää secret", "scheme": scheme, **({"delta": 4} if scheme == "green" else {})})
    ids = ids_of(answer)
    scored, total = statistic(scheme, "Ää secret", ids, context)
    says = found(ids, "Ää secret", "--scheme", scheme)
    check(f"{scheme}: the detector's sum is the formula's", says.get("scored") == scored and abs(says["statistic"] - total) < 1e-6, (says, scored, total))
    check(f"{scheme}: the mark is found", says["z"] > 5 and says["p"] < 1e-5, says)
    other = found(ids, "another key", "--scheme", scheme)
    check(f"{scheme}: not by another key, nor in a text without it", abs(other["z"]) < 4 and abs(found(plain, "Ää secret", "--scheme", scheme)["z"]) < 4, other)
    text = found(answer[1]["choices"][0]["text"], "Ää secret", "--scheme", scheme, "--tokenizer", tokenizer)
    check(f"{scheme}: the mark is found in the text as well", text["z"] > 4, (text, says))
check("gumbel: the key decides the text, not the seed, until a context returns", ids_of(ask({"seed": 6}, {"method": "watermark", "key": "k"}))[:8] == ids_of(ask({}, {"method": "watermark", "key": "k"}))[:8]
      and ids_of(ask({}, {"method": "watermark", "key": "k"})) != ids_of(ask({}, {"method": "watermark", "key": "l"})))
answer = ask({"n": 2}, {"method": "watermark", "scheme": "exponential", "key": "k", "length": 64})
says = [found(ids_of(answer, i), "k", "--scheme", "exponential", "--length", "64") for i in range(2)]
check("exponential: choices differ, and each carries the mark", ids_of(answer, 0) != ids_of(answer, 1) and all(s["p"] == 0.01 and s["z"] > 5 for s in says), says)
check("exponential: not another key's", found(ids_of(answer), "l", "--scheme", "exponential", "--length", "64")["p"] > 0.01)
check("a chat is marked as well", found(ids_of(ask({}, {"method": "watermark", "key": "k"}, "/v1/chat/completions", {"messages": [{"role": "user", "content": "Once upon a time"}], "max_tokens": 120, "ignore_eos": True, "return_token_ids": True})), "k")["z"] > 4)

# ---- Steering vectors ----
text = lambda a: a[1]["choices"][0]["text"]
GREEDY = {"temperature": 0, "max_tokens": 40}
steered = {s: text(ask(GREEDY, {"method": "steer", "vector": "push", "scale": s})) for s in (0, 1, -4)}
check("steer: a scale of 0 changes nothing, others do", steered[0] == text(ask(GREEDY)) and len(set(steered.values())) == 3, steered)
check("steer: the scale is 1 unless the request says", text(ask(GREEDY, {"method": "steer", "vector": "push"})) == steered[1])
check("steer: again, from the cache, and plain requests find no steered pages", text(ask(GREEDY, {"method": "steer", "vector": "push", "scale": -4})) == steered[-4] and text(ask(GREEDY)) == steered[0])
check("steer: with choices of its own", len(ask({"n": 2, "max_tokens": 20}, {"method": "steer", "vector": "push"})[1]["choices"]) == 2)

# ---- Beam search, against one in Python that requests one token at a time; nothing ends a text
# here ----
WIDTH, MOST = 3, 7
prompt = ask({"echo": True, "max_tokens": 1, "logprobs": 0, "return_tokens_as_token_ids": True})[1]["choices"][0]["logprobs"]["tokens"][:-1]
prompt = [int(t.split(":")[1]) for t in prompt]
beams = [([], 0.0)]
for _ in range(MOST):
    found_next = []
    for ids, total in beams:
        top = ask({}, body={"prompt": prompt + ids, "max_tokens": 1, "logprobs": 5, "temperature": 0, "ignore_eos": True, "return_tokens_as_token_ids": True})[1]["choices"][0]["logprobs"]["top_logprobs"][0]
        found_next += [(ids + [int(t.split(":")[1])], total + x) for t, x in top.items()]
    beams = sorted(found_next, key=lambda b: -b[1])[:WIDTH]
BEAM = {"max_tokens": MOST, "temperature": 0}
answer = ask({**BEAM, "use_beam_search": True, "n": WIDTH})[1]
check("use_beam_search: the texts, the best first", [c["token_ids"] for c in answer["choices"]] == [b[0] for b in beams], (answer, beams))
check("use_beam_search: their log-probabilities", all(abs(sum(c["logprobs"]["token_logprobs"]) - b[1]) < 1e-3 for c, b in zip(answer["choices"], beams)), (answer, beams))
_, stream = send(base + "/v1/completions", {**PROMPT, **BEAM, "use_beam_search": True, "n": WIDTH, "stream": True})
events = [json.loads(e[6:]) for e in stream.split("\n\n") if e.startswith("data: {")]
check("use_beam_search: a stream has the same texts", ["".join(c["text"] for e in events for c in e["choices"] if c["index"] == i) for i in range(WIDTH)] == [c["text"] for c in answer["choices"]])
for penalty in (1, 0.5):
    a = ask(BEAM, {"method": "beam", "n": WIDTH, "return_candidates": True, **({"length_penalty": penalty} if penalty != 1 else {})})[1]
    says = a["alignment"]
    check(f"beam, length_penalty {penalty}: scores", all(abs(c["score"] - b[1] / MOST ** penalty) < 1e-3 for c, b in zip(says["candidates"], beams)) and says["chosen"] == 0 and says["kl_bound"] is None, says)
    check(f"beam, length_penalty {penalty}: the best is the answer", [c["token_ids"] for c in a["choices"]] == [beams[0][0]] and says["reward"] == "beam", a)
chat = ask({}, {"method": "beam", "n": 4}, "/v1/chat/completions", {"messages": [{"role": "user", "content": "Once upon a time"}], "max_tokens": 12})[1]
check("beam: a chat, whatever the server's temperature", chat["choices"][0]["message"]["content"] and chat["alignment"]["n"] == 4, chat)

# ---- Blockwise: each block is the best of n ----
SHORT = {"max_tokens": 24}
plain = ask(SHORT)[1]["choices"][0]
for every in (1, 7, 24, 100):
    a = ask(SHORT, {"method": "blockwise", "n": 1, "every": every})[1]
    check(f"blockwise: n 1 in blocks of {every} is a plain request", a["choices"][0]["token_ids"] == plain["token_ids"] and a["choices"][0]["text"] == plain["text"]
          and a["alignment"]["blocks"] == -(-24 // every) and a["usage"]["completion_tokens"] == 24 and a["choices"][0]["finish_reason"] == plain["finish_reason"], a)
choices = ask({"n": 4, "max_tokens": 8})[1]["choices"]
mean = [sum(c["logprobs"]["token_logprobs"]) / 8 for c in choices]
a = ask(SHORT, {"method": "blockwise", "n": 4, "every": 8, "return_candidates": True})[1]
says, kept = a["alignment"], a["choices"][0]
check("blockwise: the first block is the best of four plain choices", kept["token_ids"][:8] == choices[max(range(4), key=lambda i: mean[i])]["token_ids"]
      and all(abs(x - m) < 1e-3 for x, m in zip(says["candidates"][0]["scores"], mean)), (says, mean))
own = [sum(kept["logprobs"]["token_logprobs"][i:i + 8]) / 8 for i in (0, 8, 16)]
check("blockwise: each block is the best of its round", all(c["scores"][c["chosen"]] == max(c["scores"]) for c in says["candidates"])
      and all(abs(c["scores"][c["chosen"]] - m) < 1e-3 for c, m in zip(says["candidates"], own)) and len(kept["token_ids"]) == 24, (says, own))
check("blockwise: tokens are counted", says["tokens"] == {"kept": 24, "dropped": 72} and a["usage"]["completion_tokens"] == 96 and says["blocks"] == 3, (says, a["usage"]))
greedy = ask({**SHORT, "temperature": 0})[1]["choices"][0]["text"]
check("blockwise: a greedy text has no choice", ask({**SHORT, "temperature": 0}, {"method": "blockwise", "n": 3, "every": 5})[1]["choices"][0]["text"] == greedy)
word = kept["text"].split()[6]
stopped = ask({**SHORT, "stop": [word]}, {"method": "blockwise", "n": 4, "every": 8})[1]["choices"][0]
check("blockwise: a stop string", stopped["text"] == kept["text"][:kept["text"].index(word)] and stopped["finish_reason"] == "stop", (stopped, kept["text"]))
_, stream = send(base + "/v1/completions", {**PROMPT, **SHORT, "stream": True, "alignment": {"method": "blockwise", "n": 4, "every": 8}})
events = [json.loads(e[6:]) for e in stream.split("\n\n") if e.startswith("data: {")]
check("blockwise: a stream has the same text", "".join(c["text"] for e in events for c in e["choices"]) == kept["text"] and [e["alignment"]["blocks"] for e in events if "alignment" in e] == [3], events[-2:])
chosen = [ask({"max_tokens": 3}, {"method": "blockwise", "n": 4, "every": 3, "temperature": 50.0, "seed": s, "return_candidates": True})[1]["alignment"]["candidates"][0]["chosen"] for s in range(12)]
check("blockwise: at random with a temperature", len(set(chosen)) > 1, chosen)
chat = ask({}, {"method": "blockwise", "n": 3, "every": 6}, "/v1/chat/completions", {"messages": [{"role": "user", "content": "Once upon a time"}], "max_tokens": 20, "seed": 3})[1]
check("blockwise: a chat", chat["choices"][0]["message"]["content"] and chat["alignment"]["tokens"]["kept"] == 20, chat)
STEPS = {"max_tokens": 80, "logprobs": 0}
plain = ask(STEPS)[1]["choices"][0]
check("blockwise: n 1 in steps is a plain request", ask(STEPS, {"method": "blockwise", "n": 1, "every": 200, "border": [".", ","]})[1]["choices"][0]["token_ids"] == plain["token_ids"])
a = ask(STEPS, {"method": "blockwise", "n": 4, "every": 200, "border": ".", "return_candidates": True})[1]
says, kept = a["alignment"], a["choices"][0]
# The first sentence of each of four plain choices: its tokens, and the mean of their
# log-probabilities.
firsts = []
for c in ask({**STEPS, "n": 4})[1]["choices"]:
    n = next(i + 1 for i, piece in enumerate(c["logprobs"]["tokens"]) if "." in piece)
    firsts.append((c["token_ids"][:n], sum(c["logprobs"]["token_logprobs"][:n]) / n))
best = max(range(4), key=lambda i: firsts[i][1])
check("blockwise: the first step is the best of four first sentences", all(abs(x - f[1]) < 1e-4 for x, f in zip(says["candidates"][0]["scores"], firsts)) and says["candidates"][0]["chosen"] == best
      and kept["token_ids"][:len(firsts[best][0])] == firsts[best][0], (says, firsts))
check("blockwise: the divergence of each step counts", abs(says["kl_bound"] - says["blocks"] * (math.log(4) - 0.75)) < 1e-6 and all(c["probability"] == 1 for c in says["candidates"]), says)
check("blockwise: a step ends after `every` tokens in any case", ask(STEPS, {"method": "blockwise", "n": 2, "every": 10, "border": "~"})[1]["alignment"]["blocks"] == 8)
check("blockwise: with a grammar", ask({"guided_regex": "(ab|cd){8}"}, {"method": "blockwise", "n": 3, "every": 2})[1]["choices"][0]["text"].replace("ab", "").replace("cd", "") == "")

# ---- Blockwise with a width: a beam search of steps ----
WIDE = {"method": "blockwise", "n": 4, "every": 8, "return_candidates": True}
a = ask({**SHORT, "n": 1}, {**WIDE, "width": 1, "seed": 5})[1]
check("width 1 is like no width", a["choices"][0]["token_ids"] == ask(SHORT, {**WIDE, "seed": 5})[1]["choices"][0]["token_ids"])
a = ask(SHORT, {**WIDE, "width": 2})[1]
says, kept = a["alignment"], a["choices"][0]
own = kept["logprobs"]["token_logprobs"]
check("width: the first round has the continuations of a plain request", all(abs(x - m) < 1e-3 for x, m in zip(says["candidates"][0]["scores"], mean)) and len(says["candidates"][0]["scores"]) == 4, (says, mean))
check("width: the best two are continued, each in two ways", says["blocks"] == 3 and says["width"] == 2 and says["kl_bound"] is None
      and all(len(c["scores"]) == 4 and c["kept"] == sorted(c["scores"], reverse=True)[:2] for c in says["candidates"]), says)
check("width: the answer has the best score, of its whole text", abs(says["score"] - sum(own) / 24) < 1e-3 and says["score"] == says["candidates"][-1]["kept"][0] and len(kept["token_ids"]) == 24, (says, own))
check("width: tokens are counted", says["tokens"] == {"kept": 24, "dropped": 72} and a["usage"]["completion_tokens"] == 96, (says, a["usage"]))
check("width: again, it is the same", ask(SHORT, {**WIDE, "width": 2})[1]["choices"][0]["token_ids"] == kept["token_ids"])
_, stream = send(base + "/v1/completions", {**PROMPT, **SHORT, "stream": True, "alignment": {**WIDE, "width": 2}})
check("width: a stream has the same text", "".join(c["text"] for e in stream.split("\n\n") if e.startswith("data: {") for c in json.loads(e[6:])["choices"]) == kept["text"])
over = ask({"prompt": "Lily", "stop_token_ids": [419]}, {**WIDE, "n": 6, "width": 3, "every": 3}, body={**PROMPT, **SHORT})[1]
rounds = over["alignment"]["candidates"]
check("width: texts that have ended compete as they are", over["choices"][0]["finish_reason"] == "stop" and min(len(c["scores"]) for c in rounds) == 4 and all(len(c["kept"]) == 3 and c["kept"] == sorted(c["kept"], reverse=True)
      for c in rounds) and over["alignment"]["score"] == rounds[-1]["kept"][0], over)
# With as many texts as continuations each text has one continuation, so the answer is the best of
# n texts: over pairs of three tokens its distribution is F(s)^n - F(s-)^n.
LILY = {**PROMPT, "prompt": "Lily", "max_tokens": 2}
THREE = ask({}, path="/tokenize", body={"content": " and was in", "add_special": False})[1]["tokens"][-3:]
start = ask({}, path="/tokenize", body={"content": "Lily", "add_special": True})[1]["tokens"]
pairs = [(x, y) for x in THREE for y in THREE]
told = {(x, y): ask({"prompt": start + [x, y], "echo": True, "max_tokens": 1})[1]["choices"][0]["logprobs"]["token_logprobs"][len(start):len(start) + 2] for x, y in pairs}
first, second = [sum(math.exp(told[x, THREE[0]][0]) for x in THREE)], {x: sum(math.exp(told[x, y][1]) for y in THREE) for x in THREE}
plain = {(x, y): math.exp(told[x, y][0]) / first[0] * math.exp(told[x, y][1]) / second[x] for x, y in pairs}
for n in (2, 3):
    DRAWS, law, below = 500, {}, 0.0
    for pair in sorted(pairs, key=lambda p: sum(told[p])):
        law[pair] = (below + plain[pair]) ** n - below ** n
        below += plain[pair]
    counts = {p: 0 for p in pairs}
    for s in range(DRAWS):
        counts[tuple(ids_of(ask({"allowed_token_ids": THREE, "seed": s}, {"method": "blockwise", "n": n, "width": n, "every": 1, "reward": "logprob"}, body=LILY)))] += 1
    seen = [p for p in pairs if law[p] * DRAWS >= 5]
    rest = [p for p in pairs if p not in seen]
    x = sum((counts[p] - DRAWS * law[p]) ** 2 / (DRAWS * law[p]) for p in seen) + ((sum(counts[p] for p in rest) - DRAWS * sum(law[p] for p in rest)) ** 2 / max(1.0, DRAWS * sum(law[p] for p in rest)))
    # The 0.9995 quantile at 4 degrees of freedom.
    check(f"width: {n} texts of one continuation each are the best of {n} texts", len(seen) > 2 and x < 20, (n, x, counts, law))

# ---- Guidance, against the formula over the log-probabilities of two plain requests ----
def top(ids):
    body = {"prompt": ids, "max_tokens": 1, "logprobs": 20, "temperature": 0, "return_tokens_as_token_ids": True}
    return {int(t.split(":")[1]): x for t, x in ask({}, body=body)[1]["choices"][0]["logprobs"]["top_logprobs"][0].items()}


NEGATIVE, compared = "There was a little", 0
negative = ask({"prompt": NEGATIVE, "echo": True, "max_tokens": 1, "logprobs": 0, "return_tokens_as_token_ids": True})[1]["choices"][0]["logprobs"]["tokens"][:-1]
negative = [int(t.split(":")[1]) for t in negative]
made = ask({"temperature": 0, "max_tokens": 16}, {"method": "guidance", "negative": NEGATIVE, "scale": 2, "plausibility": 0.05})[1]["choices"][0]
same, own = [], []
for i, token in enumerate(made["token_ids"]):
    c, u = top(prompt + made["token_ids"][:i]), top(negative + made["token_ids"][:i])
    plausible = [t for t, x in c.items() if x >= max(c.values()) + math.log(0.05)]
    own.append(abs(made["logprobs"]["token_logprobs"][i] - c[token]))
    if all(t in u for t in plausible):
        same.append(token == max(plausible, key=lambda t: 2 * c[t] - u[t]))
check("guidance: tokens are the formula's", len(same) >= 6 and all(same), (same, made))
check("guidance: log-probabilities are the plain model's", max(own) < 1e-3, own)
check("guidance: a scale of 1 changes nothing", text(ask({"max_tokens": 20}, {"method": "guidance", "negative": NEGATIVE, "scale": 1})) == text(ask({"max_tokens": 20})))
check("guidance: a large one does", text(ask({"max_tokens": 20}, {"method": "guidance", "scale": 4, "plausibility": 0.1})) != text(ask({"max_tokens": 20})))
CHAT = {"messages": [{"role": "system", "content": "Be calm."}, {"role": "user", "content": "Once upon a time"}], "max_tokens": 12, "temperature": 0}
said = [ask({}, {"method": "guidance", "negative": n, "scale": 3}, "/v1/chat/completions", CHAT)[1]["choices"][0]["message"]["content"]
        for n in ("Be loud.", [{"role": "system", "content": "Be loud."}, {"role": "user", "content": "Once upon a time"}])]
check("guidance: a chat's negative is a system message, or all messages", said[0] == said[1] and said[0], said)

# ---- A tournament: each match is requested here again, in both orders ----
letter = {x: ask({}, path="/tokenize", body={"content": x, "add_special": False})[1]["tokens"] for x in "AB"}


def share(a, b, question="Once upon a time", criterion="Which answer is better?"):
    """The probability of answer A, from those of the two letters."""
    content = f"Here is a request, and two answers to it.\n\nRequest:\n{question}\n\nAnswer A:\n{a}\n\nAnswer B:\n{b}\n\n{criterion} Reply with one letter, A or B."
    body = {"messages": [{"role": "user", "content": content}], "max_tokens": 1, "temperature": 0, "logprobs": True, "top_logprobs": 20, "allowed_token_ids": [i[-1] for i in letter.values()], "ignore_eos": True, "return_tokens_as_token_ids": True}
    said = ask({}, path="/v1/chat/completions", body=body)[1]["choices"][0]["logprobs"]["content"][0]
    p = {t["token"]: math.exp(t["logprob"]) for t in said["top_logprobs"] + [said]}
    a, b = (p.get(f"token_id:{letter[x][-1]}", 0) for x in "AB")
    return a / (a + b)


for n in (2, 5, 6):
    a = ask({"max_tokens": 12}, {"method": "tournament", "n": n, "return_candidates": True})[1]
    texts, left, wins = [c["text"] for c in a["alignment"]["candidates"]], list(range(n)), [0] * n
    while len(left) > 1:
        won = [x if share(texts[x], texts[y]) + 1 - share(texts[y], texts[x]) >= 1 else y for x, y in zip(left[::2], left[1::2])]
        left = won + left[len(left) // 2 * 2:]
        for i in left:
            wins[i] += 1
    check(f"tournament of {n}: the winner of each match", [c["score"] for c in a["alignment"]["candidates"]] == wins and a["alignment"]["chosen"] == left[0] and a["choices"][0]["text"] == texts[left[0]], (a["alignment"], wins))
check("tournament: tokens of the judge are reported", a["alignment"]["tokens"]["judge"] > 0 and a["alignment"]["reward"] == "wins", a["alignment"])
one = ask({"max_tokens": 12}, {"method": "tournament", "n": 1})[1]
check("tournament: of one text", one["alignment"]["chosen"] == 0 and one["choices"][0]["text"] == text(ask({"max_tokens": 12})), one)
chat = ask({}, {"method": "tournament", "n": 3, "criterion": "Which is calmer?"}, "/v1/chat/completions", {"messages": [{"role": "user", "content": "Once upon a time"}], "max_tokens": 12})[1]
check("tournament: a chat", chat["choices"][0]["message"]["content"] and chat["alignment"]["score"] >= 1, chat)

# ---- Blends of models: twin is the served model, small another ----
GREEDY = {"temperature": 0, "max_tokens": 40, "logprobs": 5}
plain = ask(GREEDY)
for name, method in (("experts that cancel out", {"method": "dexperts", "expert": "small", "anti": "small", "scale": 2}), ("the plausible ones are only the likeliest", {"method": "contrastive", "amateur": "small", "plausibility": 1}),
                     ("an amateur that does not count", {"method": "contrastive", "amateur": "small", "scale": 0, "plausibility": 0})):
    a = ask(GREEDY, method)
    check(f"{method['method']}: {name}: the plain text", ids_of(a) == ids_of(plain) and a[1]["choices"][0]["logprobs"]["token_logprobs"] == plain[1]["choices"][0]["logprobs"]["token_logprobs"], a)
drawn = {"max_tokens": 40, "n": 3}
check("dexperts: draws of three choices, too", [ids_of(ask(drawn, {"method": "dexperts", "expert": "twin", "anti": "twin"}), i) for i in range(3)] == [ids_of(ask(drawn), i) for i in range(3)])
a = ask(GREEDY, {"method": "contrastive", "amateur": "small"})[1]["choices"][0]
check("contrastive: another text, of tokens that are plausible", a["token_ids"] != ids_of(plain)
      and all(x >= max(t.values()) + math.log(0.1) - 1e-4 for x, t in zip(a["logprobs"]["token_logprobs"], a["logprobs"]["top_logprobs"])), a)
check("proxy_tuning is dexperts at scale 1", ids_of(ask(GREEDY, {"method": "proxy_tuning", "expert": "small", "anti": "twin"})) == ids_of(ask(GREEDY, {"method": "dexperts", "expert": "small", "anti": "twin", "scale": 1}))
      != ids_of(plain))

for name, param, body, also in [
        ("an amateur that is not there", "alignment.amateur", {"method": "contrastive", "amateur": "smal"}, {}),
        ("no amateur among two", "alignment.amateur", {"method": "contrastive"}, {}),
        ("no anti-expert", "alignment.anti", {"method": "dexperts", "expert": "small"}, {}),
        ("an expert for contrastive", "alignment.expert", {"method": "contrastive", "amateur": "small", "expert": "twin"}, {}),
        ("blends and beams", "use_beam_search", {"method": "contrastive", "amateur": "small"}, {"use_beam_search": True, "temperature": 0}),
        ("a reward for a tournament", "alignment.reward", {"method": "tournament", "n": 2, "reward": "logprob"}, {}),
        ("a criterion for best_of_n", "alignment.criterion", {"method": "best_of_n", "n": 2, "criterion": "x"}, {}),
        ("guidance of two choices", "n", {"method": "guidance", "scale": 2}, {"n": 2}),
        ("guidance without a scale", "alignment.scale", {"method": "guidance"}, {}),
        ("a negative that is no text", "alignment.negative", {"method": "guidance", "scale": 2, "negative": [1]}, {}),
        ("guidance of beams", None, {"method": "guidance", "scale": 2}, {"use_beam_search": True, "temperature": 0}),
        ("blocks of several choices", "n", {"method": "blockwise", "n": 2}, {"n": 2}),
        ("blocks and beams", "use_beam_search", {"method": "blockwise", "n": 2}, {"use_beam_search": True, "temperature": 0}),
        ("blocks and a score of whole texts", "alignment.reward", {"method": "blockwise", "n": 2, "reward": {"check": "text", "answer": "x"}}, {}),
        ("an empty border", "alignment.border", {"method": "blockwise", "n": 2, "border": []}, {}),
        ("a border for best_of_n", "alignment.border", {"method": "best_of_n", "n": 2, "border": "."}, {}),
        ("a width that does not divide n", "alignment.width", {"method": "blockwise", "n": 5, "width": 2}, {}),
        ("a width and a draw", "alignment.temperature", {"method": "blockwise", "n": 4, "width": 2, "temperature": 1.0}, {}),
        ("a width and a stop string", "stop", {"method": "blockwise", "n": 4, "width": 2}, {"stop": ["x"]}),
        ("a width of another method", "alignment.width", {"method": "best_of_n", "n": 4, "width": 2}, {}),
        ("blocks and keep", "alignment.keep", {"method": "blockwise", "n": 2, "keep": 0.5}, {}),
        ("blocks of two prompts", "alignment", {"method": "blockwise", "n": 2}, {"prompt": ["a", "b"]}),
        ("no n", "alignment.n", {"method": "blockwise"}, {}),
        ("a stop string with beams", "stop", {"method": "beam", "n": 2}, {"stop": ["x"]}),
        ("top_p with beams", "top_p", None, {"use_beam_search": True, "top_p": 0.9}),
        ("a temperature with beams", "temperature", None, {"use_beam_search": True, "temperature": 0.7}),
        ("a length penalty without beams", "length_penalty", None, {"length_penalty": 2}),
        ("early_stopping without beams", "early_stopping", None, {"early_stopping": True}),
        ("another early_stopping", "early_stopping", {"method": "beam", "n": 2, "early_stopping": "soon"}, {"temperature": 0}),
        ("a reward with beams", "alignment.reward", {"method": "beam", "n": 2, "reward": "logprob"}, {}),
        ("a grammar with beams", None, {"method": "beam", "n": 2}, {"guided_regex": "a+"}),
        ("21 beams", None, {"method": "beam", "n": 21}, {"temperature": 1}),
        ("a vector that is not there", "alignment.vector", {"method": "steer", "vector": "posh"}, {}),
        ("no vector", "alignment.vector", {"method": "steer"}, {}),
        ("a scale of 1001", "alignment.scale", {"method": "steer", "vector": "push", "scale": 1001}, {}),
        ("a vector for another method", "alignment.vector", {"method": "best_of_n", "n": 2, "vector": "push"}, {}),
        ("no key", "alignment.key", {"method": "watermark"}, {}),
        ("an empty key", "alignment.key", {"method": "watermark", "key": ""}, {}),
        ("an unknown scheme", "alignment.scheme", {"method": "watermark", "key": "k", "scheme": "gumble"}, {}),
        ("what another scheme reads", "alignment.gamma", {"method": "watermark", "key": "k", "gamma": 0.5}, {}),
        ("what another method reads", "alignment.keep", {"method": "watermark", "key": "k", "keep": 0.5}, {}),
        ("a key with another method", "alignment.key", {"method": "best_of_n", "n": 2, "key": "k"}, {}),
        ("gamma 1", "alignment", {"method": "watermark", "key": "k", "scheme": "green", "gamma": 1}, {}),
        ("a context of 17", "alignment.context", {"method": "watermark", "key": "k", "context": 17}, {}),
        ("two texts that would be the same", "n", {"method": "watermark", "key": "k"}, {"n": 2}),
        ("nothing is drawn", "temperature", {"method": "watermark", "key": "k"}, {"temperature": 0})]:
    status, e = ask(also, body)
    check(f"refused: {name}", status == 400 and e["error"]["param"] == param, (status, e))
check("green marks a greedy text, too", found(ids_of(ask({"temperature": 0}, {"method": "watermark", "scheme": "green", "key": "k", "delta": 5})), "k", "--scheme", "green")["z"] > 3)
for name, words, args in [("a short text", "at least 5", ([1, 2], "k")), ("an unknown scheme", "'gumbel'", ([1] * 9, "k", "--scheme", "gumble")), ("no tokenizer", "--tokenizer", ("text", "k")), ("no ids", "entry 1", ("[1, -1]", "k", "--ids")),
                          ("no list", "not a list", ("{}", "k", "--ids")), ("what another scheme reads", "--gamma 0.5 has no effect", ([1] * 9, "k", "--gamma", "0.5")),
                          ("resamples of another scheme", "--resamples 9 has no effect", ([1] * 9, "k", "--scheme", "green", "--resamples", "9"))]:
    status, _, err = detect(*args)
    check(f"detect refuses: {name}", status in (1, 2) and words in err, (status, err))
no_key = subprocess.run([lateen, "align", "detect", tokenizer, "--ids"], capture_output=True, text=True)
check("detect refuses: no key", no_key.returncode == 2 and "needs the key" in no_key.stderr, no_key.stderr)
sys.exit(tap.end())
