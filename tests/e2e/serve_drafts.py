"""Speculative decoding with a draft model: answers, what they report, and requests that disable it. Standard library only; TAP on stdout.

usage: serve_drafts.py BASE_URL RIGHT
The server is stories260K with --speculate model --draft-tokens 3. RIGHT is 1 if the draft model is stories260K, too, and 0 if it is one that knows nothing."""
import json
import re
import sys

from serve_http import send
from tap import Tap

base, right = sys.argv[1], sys.argv[2] == "1"
tap = Tap()
check = tap.check
TEXT = {"prompt": "Once upon a time", "max_tokens": 60, "temperature": 0, "ignore_eos": True, "logprobs": 1}
total = {"accepted": 0, "rejected": 0}


def ask(path="/v1/completions", **body):
    status, text = send(base + path, body)
    answer = json.loads(text)
    for kind in total:
        total[kind] += answer["usage"]["completion_tokens_details"][f"{kind}_prediction_tokens"] if status == 200 else 0
    return status, answer


def drafts(answer):
    d = answer["usage"]["completion_tokens_details"]
    return d["accepted_prediction_tokens"], d["rejected_prediction_tokens"]


def same(name, **body):
    """Text and log-probabilities are those without drafts."""
    with_drafts, plain = ask(**body)[1], ask(**body, speculate=False)[1]
    texts = [[c["text"] for c in a["choices"]] for a in (with_drafts, plain)]
    logs = [[x for c in a["choices"] for x in c["logprobs"]["token_logprobs"]] for a in (with_drafts, plain)]
    check(f"{name}: the text without drafts", texts[0] == texts[1], texts)
    check(f"{name}: its log-probabilities", len(logs[0]) == len(logs[1]) and all(abs(a - b) < 1e-3 for a, b in zip(*logs)), logs)
    check(f"{name}: there were drafts, and none if they are off", sum(drafts(with_drafts)) > 0 and drafts(plain) == (0, 0), (drafts(with_drafts), drafts(plain)))
    return with_drafts


first = same("greedy", **TEXT)
accepted, rejected = drafts(first)
check("most are accepted, or few", accepted > 35 and rejected < 10 if right else rejected > accepted, (accepted, rejected))
same("a seed", **{**TEXT, "temperature": 1, "seed": 7})
same("a seed, top_p, penalties, three choices", **{**TEXT, "temperature": 0.9, "seed": 8, "top_p": 0.9, "top_k": 40, "frequency_penalty": 0.5, "repetition_penalty": 1.1, "n": 3})
same("a grammar", **{**TEXT, "grammar": 'root ::= ("ab" | "abc" | "d e ")*'})
same("fewer at a time", **TEXT, **{"speculative.n_max": 1})
check("speculative.n_max 0 switches drafts off", drafts(ask(**TEXT, **{"speculative.n_max": 0})[1]) == (0, 0))
status, answer = ask(**{**TEXT, "temperature": 1, "n": 4})
check("draws without a seed", status == 200 and len({c["text"] for c in answer["choices"]}) == 4 and sum(drafts(answer)) > 0, answer)
ask(**{**TEXT, "temperature": 1, "alignment": {"method": "best_of_n", "n": 4}})
status, answer = ask(**{**TEXT, "alignment": {"method": "best_of_n", "n": 4}, "temperature": 1})
check("a group", status == 200 and sum(drafts(answer)) > 0, answer)

# The report in the answer.
chat = {"path": "/v1/chat/completions", "messages": [{"role": "user", "content": "Once upon a time"}], "max_tokens": 40, "temperature": 0}
plain = ask(**chat, speculate=False)[1]
said = plain["choices"][0]["message"]["content"]
for form in (said, [{"type": "text", "text": said[:20]}, {"type": "text", "text": said[20:]}]):
    status, answer = ask(**chat, prediction={"type": "content", "content": form})
    check("a prediction that comes true: the same text, mostly from the prediction", status == 200 and answer["choices"][0]["message"]["content"] == said and drafts(answer)[0] > 15, answer)
status, answer = ask(**chat, prediction={"type": "content", "content": "What nobody says."})
check("one that does not: the same text", status == 200 and answer["choices"][0]["message"]["content"] == said, answer)
for wrong in ("text", {"type": "content"}, {"type": "text", "content": "x"}, {"type": "content", "content": 3}, {"type": "content", "content": [{"type": "image_url", "image_url": {}}]}):
    status, text = send(base + "/v1/chat/completions", {**{k: v for k, v in chat.items() if k != "path"}, "prediction": wrong})
    check(f"refused: prediction {json.dumps(wrong)}", status == 400 and "prediction" in text, text)
for field, value in (("speculate", "no"), ("speculative.n_max", -1)):
    status, text = send(base + "/v1/completions", {**TEXT, field: value})
    check(f"refused: {field} {value}", status == 400 and field in text, text)

metrics = send(base + "/metrics", None)[1]
number = {m[1]: int(m[2]) for m in re.finditer(r'^vllm:spec_decode_num_(\w+)\{[^}]*\} (\d+)$', metrics, re.M)}
places = [int(m[1]) for m in re.finditer(r'^vllm:spec_decode_num_accepted_tokens_per_pos_total\{[^}]*position="\d"\} (\d+)$', metrics, re.M)]
check("/metrics counts what the answers report", number["accepted_tokens_total"] == total["accepted"] and number["draft_tokens_total"] == sum(total.values()), (number, total))
check("by place in the draft, fewer and fewer", len(places) == 8 and sum(places) == total["accepted"] and places == sorted(places, reverse=True) and (not right or places[2] > 0), places)
# The engine runs for a moment after a stop string: what it accepts there counts only in /metrics.
same("a stop string", **{**TEXT, "stop": ["."]})
for stop in sorted({first["choices"][0]["text"][i:i + 4] for i in range(0, 20, 2)}):
    usage = ask(**{**TEXT, "stop": [stop]})[1]["usage"]
    check(f"no draft token behind the stop string {stop!r} counts", usage["completion_tokens_details"]["accepted_prediction_tokens"] < usage["completion_tokens"], usage)
check("/slots says so", json.loads(send(base + "/slots", None)[1])[0]["speculative"] is True)
sys.exit(tap.end())
