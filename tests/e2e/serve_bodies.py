"""Requests to all vendors' endpoints with randomly replaced parts. Each must get an answer, none of them a server error, and streams and errors must be JSON. TAP on stdout.

usage: serve_bodies.py PORT SECONDS [SEED]
The model's name is stories260K; answers are a few tokens long."""
import copy
import json
import random
import sys
import time
import urllib.error
import urllib.request

port, seconds = sys.argv[1], float(sys.argv[2])
seed = int(sys.argv[3]) if len(sys.argv) > 3 else int(time.time())
rng = random.Random(seed)
FORM = {"type": "object", "properties": {"a": {"enum": [1]}}, "required": ["a"], "additionalProperties": False}
TOOL = {"type": "function", "function": {"name": "f", "description": "d", "parameters": FORM}}
BODIES = [
    ("/v1/responses", {"input": [
        {"role": "user", "content": [{"type": "input_text", "text": "Hi"}]},
        {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "x"}], "content": [{"type": "reasoning_text", "text": "t"}], "encrypted_content": None},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_text", "text": "4"}]}, {"type": "item_reference", "id": "x"}],
        "tools": [{"type": "function", "name": "f", "parameters": FORM}], "tool_choice": {"type": "function", "name": "f"},
        "text": {"format": {"type": "json_schema", "name": "n", "schema": FORM}, "verbosity": "low"}, "reasoning": {"effort": "low", "summary": "auto"},
        "include": ["reasoning.encrypted_content"], "max_output_tokens": 8, "metadata": {"a": "b"}, "truncation": "auto", "store": True}),
    ("/v1/responses", {"input": "Hi", "max_output_tokens": 8, "top_logprobs": 2, "max_tool_calls": 2}),
    ("/v1/messages", {"max_tokens": 8, "system": [{"type": "text", "text": "x"}], "messages": [
        {"role": "user", "content": [{"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}]},
        {"role": "assistant", "content": [{"type": "thinking", "thinking": "t", "signature": "sig"}, {"type": "tool_use", "id": "t1", "name": "f", "input": {"a": 1}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "r"}]}]}],
        "tools": [{"name": "f", "input_schema": FORM}], "tool_choice": {"type": "any", "disable_parallel_tool_use": True},
        "thinking": {"type": "enabled", "budget_tokens": 4, "display": "omitted"}, "thread": {"type": "create"},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": {"type": "thinking_turns", "value": 1}}]},
        "output_config": {"format": {"type": "json_schema", "schema": FORM}, "effort": "low"}}),
    ("/v1/messages/count_tokens", {"messages": [{"role": "user", "content": "x"}], "thread": {"type": "continue", "previous_message_id": "msg_1"}}),
    ("/v1/chat/completions", {"messages": [
        {"role": "user", "content": "x"}, {"role": "assistant", "content": None, "reasoning_content": "r", "tool_calls": [
            {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}]}, {"role": "tool", "tool_call_id": "c", "content": "1"}],
        "max_tokens": 6, "allowed_token_ids": [3, 4], "bad_words": ["a", "b c"], "truncate_prompt_tokens": 9, "logprobs": True, "top_logprobs": 1,
        "return_tokens_as_token_ids": True, "enable_thinking": False, "verbosity": "high", "chat_template_kwargs": {"enable_thinking": False}}),
    ("/v1/completions", {"prompt": ["a", "b"], "max_tokens": 5, "guided_grammar": "start: A+\nA: \"a\"..\"c\"\n%ignore \" \"", "n": 2}),
    ("/api/chat", {"model": "stories260K", "messages": [
        {"role": "user", "content": "x", "images": []}, {"role": "assistant", "content": "", "thinking": "t", "tool_calls": [
            {"function": {"name": "f", "arguments": {"a": 1}}}]}, {"role": "tool", "tool_name": "f", "content": "1"}],
        "tools": [TOOL], "format": FORM, "options": {"num_predict": 5, "temperature": 0.5, "stop": ["z"]}, "think": False, "keep_alive": "5m",
        "logprobs": True, "top_logprobs": 2}),
    ("/api/generate", {"model": "stories260K", "prompt": "x", "system": "s", "context": [1, 2, 3], "raw": False, "format": "json", "options": {"num_predict": 5}}),
    ("/api/embed", {"model": "stories260K", "input": ["a", "b"], "truncate": True, "dimensions": 64}),
    ("/api/show", {"model": "stories260K"}),
    ("/tokenize", {"prompt": "x", "add_special_tokens": True}),
]
GONE = object()
VALUES = [GONE, None, True, False, 0, -1, 1, 2**63 - 1, -2**63, 1.5, 1e308, "", "x", "\u0000", "\ud7ff\U0001F600", "a" * 5000, [], {}, [[]], [None], {"type": "x"}, {"": {}},
          "auto", "all", [1, "a"], {"type": "function"}, "resp_1", "start: start", "\\", "%ignore"]


def places(v, path=()):
    yield path
    for k, x in v.items() if isinstance(v, dict) else enumerate(v) if isinstance(v, list) else ():
        yield from places(x, path + (k,))


def put(v, path, new):
    for p in path[:-1]:
        v = v[p]
    if new is GONE:
        del v[path[-1]]
    else:
        v[path[-1]] = copy.deepcopy(new)


def make(kept):
    path, body = rng.choice(BODIES)
    body = copy.deepcopy(body)
    for _ in range(rng.randrange(4)):
        inner = [p for p in places(body) if p]
        if inner:
            put(body, rng.choice(inner), rng.choice(VALUES))
    if rng.random() < 0.5:
        body["stream"] = rng.random() < 0.5
    if kept and rng.random() < 0.3 and path == "/v1/responses":
        body["previous_response_id"] = rng.choice(kept)
    if kept and rng.random() < 0.3 and path == "/v1/messages":
        body["thread"] = {"type": "continue", "previous_message_id": rng.choice(kept)}
        for k in ("system", "tools", "tool_choice"):
            body.pop(k, None)
    return path, body


def ask(path, body):
    """(status, text); the answer's JSON is read."""
    data = json.dumps(body).encode("utf-8", "surrogatepass")
    try:
        with urllib.request.urlopen(urllib.request.Request(f"http://127.0.0.1:{port}{path}", data, {"content-type": "application/json"}), timeout=60) as r:
            status, text = r.status, r.read().decode()
    except urllib.error.HTTPError as e:
        status, text = e.code, e.read().decode()
    for line in text.split("\n"):
        line = line[6:] if line.startswith("data: ") else line
        if line.startswith("{"):
            json.loads(line)
    return status, text


end, n, statuses, kept, wrong = time.time() + seconds, 0, {}, [], []
while time.time() < end and len(wrong) < 5:
    path, body = make(kept)
    try:
        status, text = ask(path, body)
    except Exception as e:
        wrong.append((path, body, repr(e)))
        break
    statuses[status] = statuses.get(status, 0) + 1
    n += 1
    if status >= 500 and status not in (501, 529):
        wrong.append((path, body, text))
    if status == 200 and path in ("/v1/responses", "/v1/messages") and text.startswith("{"):
        kept = [*kept[-20:], json.loads(text)["id"]]
for path, body, text in wrong:
    print(f"# {path} {json.dumps(body)[:1500]}: {text[:300]}")
print(f"{'not ok' if wrong or n < 10 or 200 not in statuses else 'ok'} 1 - {n} requests with parts at random (seed {seed}): {statuses}\n1..1")
sys.exit(bool(wrong))
