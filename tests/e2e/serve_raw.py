"""Send raw bytes to `lateen serve`: malformed HTTP and JSON, limits, slow and disconnecting clients, keys, CORS. Standard library only; TAP on stdout.

usage: serve_raw.py PORT MODEL_NAME [--key KEY]
The server must run with --request-s 2 and --cors https://a.example (tests/e2e/serve.sh does that)."""
import json
import re
import socket
import sys
import time

from tap import Tap

port, model = int(sys.argv[1]), sys.argv[2]
key = sys.argv[4] if len(sys.argv) > 4 else None
tap = Tap()
check = tap.check


def connect():
    # For a large body on a busy machine.
    s = socket.create_connection(("127.0.0.1", port), timeout=180)
    return s


def read_answer(s, rest=b""):
    """One response with a Content-Length: (status, headers, body, rest)."""
    data = rest
    while b"\r\n\r\n" not in data:
        part = s.recv(65536)
        if not part:
            return (0, {}, data, b"")
        data += part
    head, data = data.split(b"\r\n\r\n", 1)
    lines = head.decode("latin-1").split("\r\n")
    headers = {k.lower(): v for k, v in (line.split(": ", 1) for line in lines[1:])}
    status = int(lines[0].split()[1])
    n = int(headers.get("content-length", 0))
    while len(data) < n:
        part = s.recv(65536)
        if not part:
            break
        data += part
    return status, headers, data[:n], data[n:]


def raw(data, half_close=False):
    with connect() as s:
        try:
            s.sendall(data)
            if half_close:
                s.shutdown(socket.SHUT_WR)
            return read_answer(s)
        except (ConnectionResetError, BrokenPipeError):
            return (-1, {}, b"", b"")


def request(method, path, body=None, headers=()):
    body = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [f"{method} {path} HTTP/1.1", "Host: x", f"Content-Length: {len(body)}", *headers]
    if key:
        lines.append(f"Authorization: Bearer {key}")
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def error_of(answer):
    try:
        return json.loads(answer[2])["error"]["message"]
    except (ValueError, KeyError, TypeError):
        return None


def refuses(name, data, status):
    a = raw(data)
    check(name, a[0] == status and error_of(a), a)


def post(path, body, headers=()):
    return raw(request("POST", path, body, headers))


def refuses_body(name, path, body, status=400):
    a = post(path, body)
    check(name, a[0] == status and error_of(a), a)


def alive():
    return raw(request("GET", "/health"))[0] == 200


def stats():
    return json.loads(raw(request("GET", "/status.json"))[2])


CHAT = {"model": model, "messages": [{"role": "user", "content": "Once upon a time"}], "max_tokens": 4, "temperature": 0}

def stream(path, body):
    events = []
    with connect() as s:
        s.sendall(request("POST", path, body, ("Connection: close",)))
        data = b""
        while part := s.recv(65536):
            data += part
    head, data = data.split(b"\r\n\r\n", 1)
    text = b""
    while data:  # Chunks.
        size, data = data.split(b"\r\n", 1)
        n = int(size, 16)
        text, data = text + data[:n], data[n + 2:]
        if n == 0:
            break
    for block in text.decode().split("\n\n"):
        lines = dict(line.split(": ", 1) for line in block.split("\n") if ": " in line)
        if "data" in lines:
            events.append((lines.get("event"), lines["data"]))
    return events


# ---- HTTP ----
for name, data, status in [
    ("garbage", b"\x00\x01\x02\r\n\r\n", 400),
    ("no version", b"GET /health\r\n\r\n", 400),
    ("HTTP/2 preface", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505),
    ("no Host", b"GET /health HTTP/1.1\r\n\r\n", 400),
    ("space before the colon", b"GET /health HTTP/1.1\r\nHost : x\r\n\r\n", 400),
    ("folded header", b"GET /health HTTP/1.1\r\nHost: x\r\nA: b\r\n c\r\n\r\n", 400),
    ("zero byte in a header", b"GET /health HTTP/1.1\r\nHost: x\x00y\r\n\r\n", 400),
    ("control character in a header", b"GET /health HTTP/1.1\r\nHost: x\x01y\r\n\r\n", 400),
    ("two lengths", b"POST /tokenize HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{}", 400),
    ("length beside chunked", b"POST /tokenize HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
    ("a negative length", b"POST /tokenize HTTP/1.1\r\nHost: x\r\nContent-Length: -2\r\n\r\n{}", 400),
    ("a length like 0x2", b"POST /tokenize HTTP/1.1\r\nHost: x\r\nContent-Length: 0x2\r\n\r\n{}", 400),
    ("chunked and then another coding", b"POST /tokenize HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n2\r\n{}\r\n0\r\n\r\n", 400),
    ("another coding", b"POST /tokenize HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip\r\n\r\n", 501),
    ("a chunk that is no number", b"POST /tokenize HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", 400),
    ("a chunk longer than said", b"POST /tokenize HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nabcdef\r\n0\r\n\r\n", 400),
    ("two Hosts", b"GET /health HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n", 400),
    ("a packed body", b"POST /tokenize HTTP/1.1\r\nHost: x\r\n" + (f"Authorization: Bearer {key}\r\n".encode() if key else b"") +
     b"Content-Encoding: gzip\r\nContent-Length: 2\r\n\r\n{}", 415),
    ("another expectation", b"POST /tokenize HTTP/1.1\r\nHost: x\r\nExpect: magic\r\nContent-Length: 0\r\n\r\n", 417),
    ("huge header", b"GET /health HTTP/1.1\r\nHost: x\r\nA: " + b"a" * (1 << 20), 431),
    ("too many headers", b"GET /health HTTP/1.1\r\nHost: x\r\n" + b"A: b\r\n" * 200 + b"\r\n", 431),
    ("a long target", b"GET /" + b"a" * (1 << 20) + b" HTTP/1.1\r\nHost: x\r\n\r\n", 431),
    ("a body said to be huge", b"POST /tokenize HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999\r\n\r\n", 413),
]:
    refuses("http: " + name, data, status)
a = raw(bytes.fromhex("16030100a5010000a10303") + bytes(100))
check("http: a client that speaks TLS gets an answer at once", a[0] == 400 and "TLS" in error_of(a), a)
a = raw(b"GET http://x:80/health?y HTTP/1.1\r\nHost: x\r\n\r\n")
check("http: a target with its host, as proxies send it", a[0] == 200, a)
a = raw(b"POST /tokenize HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n" + (b"100000\r\n" + b"x" * 0x100000 + b"\r\n") * 40)
check("http: a huge chunked body", a[0] in (413, -1), a)
check("http: no such path", raw(request("GET", "/nothing"))[0] == 404)
a = raw(request("GET", "/v1/completions"))
check("http: no such method", a[0] == 405 and a[1].get("allow") == "POST", a)
with connect() as s:
    s.sendall(request("HEAD", "/health") + request("GET", "/health"))
    answers = b""
    while b'"ok"' not in answers:
        answers += s.recv(65536)
    check("http: HEAD has no body", answers.count(b"HTTP/1.1 200") == 2 and answers.count(b'"ok"') == 1, answers)
check("http: a query is ignored", raw(request("GET", "/health?x=1"))[0] == 200)
check("http: chunked body", raw(b"POST /tokenize HTTP/1.1\r\nHost: x\r\n" + (f"Authorization: Bearer {key}\r\n".encode() if key else b"") +
      b"Transfer-Encoding: chunked\r\n\r\n4\r\n{\"co\r\nc;x=y\r\nntent\":\"a\"}\r\n\r\n0\r\nT: 1\r\n\r\n")[0] in (200, 400))
body = json.dumps({"content": "Once"}).encode()
pieces = b"".join(f"{len(body[i:i + 3]):x}\r\n".encode() + body[i:i + 3] + b"\r\n" for i in range(0, len(body), 3))
auth = f"Authorization: Bearer {key}\r\n".encode() if key else b""
check("http: a body in chunks of three", raw(b"POST /tokenize HTTP/1.1\r\nHost: x\r\n" + auth + b"Transfer-Encoding: chunked\r\n\r\n"
      + pieces + b"0\r\n\r\n")[0] == 200)
with connect() as s:
    s.sendall(b"POST /tokenize HTTP/1.1\r\nHost: x\r\n" + auth + b"Expect: 100-continue\r\nContent-Length: %d\r\n\r\n" % len(body))
    first = s.recv(100)
    s.sendall(body)
    check("http: 100-continue", first.startswith(b"HTTP/1.1 100") and read_answer(s)[0] == 200, first)
with connect() as s:
    s.sendall(request("POST", "/tokenize", body) * 50)
    rest, good = b"", 0
    for _ in range(50):
        status, _, _, rest = read_answer(s, rest)
        good += status == 200
    check("http: fifty pipelined requests", good == 50, good)
with connect() as s:
    s.sendall(request("POST", "/v1/chat/completions", CHAT) + request("GET", "/health"))
    one = read_answer(s)
    two = read_answer(s, one[3])
    check("http: pipelined behind a generation", one[0] == 200 and two[0] == 200 and b"choices" in one[2])
with connect() as s:
    for byte in request("GET", "/health"):
        s.sendall(bytes([byte]))
    check("http: byte by byte", read_answer(s)[0] == 200)
a = raw(b"GET /health HTTP/1.0\r\n\r\n")
check("http: HTTP/1.0 closes", a[0] == 200 and a[1]["connection"] == "close", a)
check("http: a half-closed client is answered", raw(request("GET", "/health"), half_close=True)[0] == 200)
with connect() as s:
    s.sendall(b"POST /tokenize HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
    start = time.time()
    a = read_answer(s)
    check("http: a request that never ends is 408", a[0] == 408 and time.time() - start < 10, a)
with connect() as s:
    s.sendall(b"GET /health HT")
    start = time.time()
    try:
        while time.time() - start < 10:
            time.sleep(0.3)
            s.sendall(b"T")
    except (ConnectionResetError, BrokenPipeError):
        pass
    check("http: dripping bytes do not buy time", time.time() - start < 9, time.time() - start)

# ---- JSON ----
for name, data in [("none", b""), ("cut off", b'{"messages": ['), ("a list", b"[]"), ("a number", b"1"),
                   ("invalid UTF-8", b'{"messages": "\xff\xfe"}'), ("a lone surrogate", b'{"messages": "\\ud800"}'),
                   ("deep nesting", b"[" * 100000), ("deep nesting inside", b'{"messages":' + b'{"a":' * 100000),
                   ("a number too large", b'{"messages": [], "seed": 1e999}'), ("an integer too large", b'{"seed": 99999999999999999999999}'),
                   ("NaN", b'{"temperature": NaN}'), ("a trailing comma", b'{"messages": [],}'), ("text behind", b"{} {}")]:
    for path in ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages", "/v1/embeddings", "/completion"):
        refuses_body(f"json: {name}: {path}", path, data)

# ---- Values ----
for name, value in [("a string", "x"), ("null in a list", [None]), ("a number", 3), ("an object", {}), ("true", True)]:
    refuses_body(f"messages that are {name}", "/v1/chat/completions", {"messages": value})
for field, value in [("temperature", "hot"), ("temperature", -0.1), ("top_p", 2), ("n", 1.5), ("n", -1), ("max_tokens", "many"), ("stop", 3),
                     ("stop", [1]), ("logit_bias", [3]), ("logit_bias", {"1": "x"}), ("stream", "yes"),
                     ("seed", "x"), ("response_format", 3), ("response_format", {}), ("tools", 3), ("logprobs", 3), ("top_k", 1.5),
                     ("stream_options", 3), ("chat_template_kwargs", 3), ("min_p", 7), ("repetition_penalty", 0)]:
    a = post("/v1/chat/completions", {**CHAT, field: value})
    check(f"chat: {field} = {value!r} is refused", a[0] == 400 and field in (error_of(a) or ""), a)
refuses_body("messages: max_tokens is missing", "/v1/messages", {"messages": [{"role": "user", "content": "x"}]})
refuses_body("completion: no prompt", "/completion", {})
refuses_body("detokenize: ids outside the vocabulary", "/detokenize", {"tokens": [10**8]})
refuses_body("tokenize: another type", "/tokenize", {"content": 5})

for prompt in ([1, "a"], ["a", 1], [1, 2.5], [[1, "a"]]):
    a = post("/v1/completions", {"prompt": prompt, "max_tokens": 1})
    check(f"completions: the prompt {json.dumps(prompt)} mixes kinds", a[0] == 400 and "mixes" in error_of(a), a)
a = post("/v1/chat/completions", {**CHAT, "reasoning_effort": "huge"})
check("chat: no such effort", a[0] == 400 and "huge" in error_of(a), a)
check("chat: an effort", post("/v1/chat/completions", {**CHAT, "reasoning_effort": "low"})[0] == 200)
for seed in (-5, -2**63, 2**63 - 1):
    a = [json.loads(post("/v1/completions", {"prompt": "Once", "max_tokens": 12, "temperature": 1.5, "seed": s})[2])["choices"][0]["text"] for s in (seed, seed, seed ^ 1)]
    check(f"seed {seed}: the same text again, another with another", a[0] == a[1] != a[2], a)
refuses_body("seed: over 64 bits", "/v1/completions", {"prompt": "Once", "seed": 1e19})
whole = json.loads(post("/v1/completions", {"prompt": "Once upon a time", "max_tokens": 40, "temperature": 0})[2])["choices"][0]["text"]
a = json.loads(post("/v1/completions", {"prompt": "Once upon a time", "max_tokens": 40, "temperature": 0, "min_tokens": 20, "stop": [whole[3:6], "e"]})[2])
check("min_tokens: a stop string before them is text", 20 <= a["usage"]["completion_tokens"] < 40 and whole.startswith(a["choices"][0]["text"])
      and a["choices"][0]["finish_reason"] == "stop", a)
a = [json.loads(post("/v1/completions", {"prompt": "Once", "max_tokens": 1, "add_special_tokens": b})[2])["usage"]["prompt_tokens"] for b in (True, False)]
check("add_special_tokens: no BOS without", a[0] == a[1] + 1, a)
a = post("/v1/chat/completions", {**CHAT, "add_special_tokens": True})
check("chat: add_special_tokens is the template's business", a[0] == 400 and "add_special_tokens" in error_of(a), a)

# ---- OpenAI's own fields: each is honoured, or refused by its name in OpenAI's format ----
TOOLS = [{"type": "function", "function": {"name": "get", "parameters": {"type": "object", "properties": {"c": {"enum": ["a"]}}, "required": ["c"]}}}]
SCHEMA = {"name": "a", "strict": True, "schema": {"type": "object", "properties": {"x": {"enum": [1]}}, "required": ["x"], "additionalProperties": False}}
RESPONSE = {"model": model, "input": "Once upon a time", "max_output_tokens": 4}
COMPLETION = {"model": model, "prompt": "Once upon a time", "max_tokens": 2}
for path, base, more, param in [
    ("/v1/chat/completions", CHAT, {"logprobs": True, "top_logprobs": 2}, None),
    ("/v1/chat/completions", CHAT, {"top_logprobs": 2}, "top_logprobs"),
    ("/v1/chat/completions", CHAT, {"n": 2, "stop": ["x", "y"], "seed": 7, "user": "u", "safety_identifier": "s", "prompt_cache_key": "k"}, None),
    ("/v1/chat/completions", CHAT, {"stream_options": {"include_usage": True}}, "stream_options"),
    ("/v1/chat/completions", CHAT, {"stream": True, "stream_options": {"include_obfuscation": True}}, "stream_options.include_obfuscation"),
    ("/v1/chat/completions", CHAT, {"max_tokens": None, "max_completion_tokens": 2, "metadata": {"a": "b"}, "store": False, "service_tier": "auto"}, None),
    ("/v1/chat/completions", CHAT, {"store": True, "metadata": {"a": "b"}}, None),
    ("/v1/chat/completions", CHAT, {"store": "true"}, "store"),
    ("/v1/chat/completions", CHAT, {"store": True, "metadata": {"a": 1}}, "metadata"),
    ("/v1/chat/completions", CHAT, {"prediction": {"type": "content", "content": "x"}, "modalities": ["text"], "verbosity": "medium", "reasoning_effort": "low"}, None),
    ("/v1/chat/completions", CHAT, {"modalities": ["text", "audio"]}, "modalities"),
    ("/v1/chat/completions", CHAT, {"audio": {"voice": "alloy", "format": "wav"}}, "audio"),
    ("/v1/chat/completions", CHAT, {"verbosity": "loud"}, "verbosity"),
    ("/v1/chat/completions", CHAT, {"web_search_options": {}}, "web_search_options"),
    ("/v1/chat/completions", CHAT, {"response_format": {"type": "json_schema", "json_schema": SCHEMA}}, None),
    ("/v1/chat/completions", CHAT, {"response_format": {"type": "xml"}}, "response_format"),
    *[("/v1/chat/completions", CHAT, {"tools": TOOLS, "tool_choice": choice, "max_tokens": 40}, None) for choice in
      ("none", "auto", "required", {"type": "function", "function": {"name": "get"}},
       {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [{"type": "function", "function": {"name": "get"}}]}})],
    ("/v1/chat/completions", CHAT, {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "put"}}}, "tool_choice"),
    ("/v1/chat/completions", CHAT, {"tools": [{"type": "custom", "custom": {"name": "get"}}]}, "tools"),
    ("/v1/chat/completions", CHAT, {"a_name_of_more_than_twenty_letters": 1}, "a_name_of_more_than_twenty_letters"),
    ("/v1/responses", RESPONSE, {"text": {"format": {"type": "json_schema", **SCHEMA}}, "metadata": {"a": "b"}, "truncation": "disabled"}, None),
    ("/v1/responses", RESPONSE, {"text": {"format": {"type": "xml"}}}, "text.format"),
    ("/v1/responses", RESPONSE, {"text": {"verbosity": "loud"}}, "text.verbosity"),
    ("/v1/responses", RESPONSE, {"stream": True, "stream_options": {"include_usage": True}}, "stream_options.include_usage"),
    ("/v1/responses", RESPONSE, {"stream_options": {"include_obfuscation": False}}, "stream_options"),
    ("/v1/responses", RESPONSE, {"previous_response_id": "resp_1"}, "previous_response_id"),
    ("/v1/responses", RESPONSE, {"tools": [{"type": "web_search"}]}, "tools"),
    ("/v1/completions", COMPLETION, {"suffix": "x"}, "suffix"),
    *[("/v1/responses", RESPONSE, {field: value}, field) for field, value in
      (("access_programs", []), ("image", {}), ("background_options", {}), ("max_tokens", 4), ("metadata", 5))],
    ("/v1/chat/completions", CHAT, {"reasoning_format": "mystery"}, "reasoning_format"),
    ("/v1/chat/completions", CHAT, {"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs"),
    ("/v1/chat/completions", CHAT, {"messages": [{"role": "user", "content": None}]}, "messages[0]"),
    ("/v1/chat/completions", CHAT, {"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0]"),
    *[("/v1/chat/completions", CHAT, {"messages": [CHAT["messages"][0], {"role": "assistant", "tool_calls": calls}]}, "messages[1]") for calls in
      ("x", {}, [{"function": {}}], [{"function": {"name": 5}}])],
    *[("/v1/responses", RESPONSE, {"input": [{"type": "function_call", **call}]}, "input[0]") for call in ({}, {"name": "f", "arguments": {}}, {"arguments": "{}"})],
]:
    a = post(path, {**base, **more})
    e = json.loads(a[2]).get("error") if a[2].startswith(b"{") else None
    good = a[0] == 200 and e is None if param is None else a[0] == 400 and set(e) == {"message", "type", "param", "code"} and e["param"] == param
    check(f"openai: {path}: {json.dumps(more)[:60]}", good, a)
a = json.loads(post("/v1/responses", {**RESPONSE, "tools": [{"type": "function", "name": "get"}], "tool_choice": {"type": "function", "name": "get"}, "metadata": {"a": "b"}})[2])
check("responses: what was requested is returned as it was requested", a["tool_choice"] == {"type": "function", "name": "get"} and a["metadata"] == {"a": "b"}, a)
for path, body, words in [("/v1/messages", {"messages": [{"role": "user", "content": []}], "max_tokens": 2}, "'messages[0]' has no content"),
                          ("/v1/messages", {"messages": [{"role": "user", "content": [{"type": "text"}]}], "max_tokens": 2}, "has no text"),
                          ("/v1/messages", {"messages": [{"role": "assistant", "content": [{"type": "tool_use", "name": "f"}]}], "max_tokens": 2}, "needs a name and an input"),
                          ("/v1/messages", {**CHAT, "tool_choice": {"type": "auto", "disable_parallel_tool_use": "x"}}, "disable_parallel_tool_use"),
                          ("/v1/messages", {**CHAT, "diagnostics": {}}, "'diagnostics' is not supported here"),
                          ("/v1/chat/completions", {**CHAT, "messages": [{"role": "user", "content": [{"type": "text"}]}]}, "a part of type text has no text"),
                          ("/v1/chat/completions", {**CHAT, "max_tokens": 10**13}, "is 10000000000000; it must be between -1 and 1000000000000"),
                          ("/v1/completions", {**COMPLETION, "seed": 2**64}, "is 18446744073709551616; it"),
                          ("/v1/completions", {**COMPLETION, "guided_regex": "a(?=b)"}, "is not supported (offset 3)"),
                          ("/v1/completions", {**COMPLETION, "structured_outputs": {"choice": "a"}}, "choice: not an array of one or more strings"),
                          ("/detokenize", {"tokens": [10**8]}, "'tokens': 100000000 is not in the vocabulary"),
                          ("/v1/embeddings", {"input": "Once " * 1000}, "tokens exceeds the available context size of 512 tokens")]:
    a = post(path, body)
    check(f"{path}: {json.dumps(body)[:60]}: {words}", a[0] == 400 and words in error_of(a), a)
check("messages: user_profile_id and workspace_id change nothing", post("/v1/messages", {**CHAT, "user_profile_id": "u", "workspace_id": "w"})[0] == 200)
a = json.loads(raw(request("GET", "/props"))[2])["default_generation_settings"]["params"]
b = [post("/completion", {**a, "prompt": "Once", "n_predict": 8, "temperature": 2}) for _ in range(4)]
check("completion: what /props returns may be sent back; its seed is a random one", all(x[0] == 200 for x in b) and len({json.loads(x[2])["content"] for x in b}) > 1, b[0])
for more, told in [({}, False), ({"best_of": 2}, False), ({"best_of": 2, "logprobs": 1}, True), ({"logprobs": False}, False), ({"logprobs": 0}, True)]:
    a = post("/v1/completions", {**COMPLETION, **more})
    check(f"completions: logprobs only if they are requested: {more}", a[0] == 200 and (json.loads(a[2])["choices"][0]["logprobs"] is not None) == told, a)
IDS = [json.loads(post("/tokenize", {"content": t})[2])["tokens"] for t in ("a", "the")]
for name, bias, first in [("never, by id", [[IDS[0][0], False]], "upon"), ("never, by text", [["a", False]], "upon"), ("an id twice counts twice", [[IDS[1][0], 9], ["the", 9]], " the"),
                          ("all but one", [[i, False] for i in range(512) if i != IDS[1][0]], " the")]:
    a = json.loads(post("/completion", {"prompt": "Once upon", "n_predict": 1, "temperature": 0, "logit_bias": bias})[2])
    check(f"logit_bias: {name}", "content" in a and a["content"].strip() == first.strip(), a)
a = json.loads(post("/completion", {"prompt": "Once", "n_predict": 1, "logit_bias": [[7, False], [7, 3], [5, 1], [5, 2]]})[2])["generation_settings"]["logit_bias"]
check("logit_bias: each id is returned once, never as null", [(b["token"], b["bias"]) for b in a] == [(5, 3), (7, None)], a)
a = post("/v1/completions", {**COMPLETION, "logit_bias": {"5": 1e10}})
check("logit_bias: out of range", a[0] == 400 and json.loads(a[2])["error"]["param"] == "logit_bias" and "1e+10" in error_of(a), a)
for field, value in [("grammar", "\0"), ("guided_regex", "a\0b"), ("guided_json", "{}\0"), ("structured_outputs", {"regex": "a\0"}), ("structured_outputs", {"grammar": "root ::= \"a\"\0"})]:
    a = post("/v1/completions", {**COMPLETION, field: value})
    check(f"a zero character does not cut {field} short", a[0] == 400 and json.loads(a[2])["error"]["param"] == field, a)
ASKED = {"prompt": "Once upon", "temperature": 0, "max_tokens": 6, "n": 2, "seed": 3, "return_token_ids": True}
a = json.loads(post("/v1/completions", {**ASKED, "prompt_logprobs": 2, "echo": True, "logprobs": 5})[2])["choices"][1]
told = a["prompt_logprobs"]
check("completions: prompt_logprobs in vLLM's shape", told[0] is None and len(told) == len(a["prompt_token_ids"]) == 3 and len(a["token_ids"]) == 6 and
      all(str(i) in t and len(t) in (2, 3) and set(t[str(i)]) == {"logprob", "rank", "decoded_token"} for t, i in zip(told[1:], a["prompt_token_ids"][1:])) and
      told[2][str(a["prompt_token_ids"][2])]["logprob"] == a["logprobs"]["token_logprobs"][2], a)
many, alone = ([t for t in json.loads(post("/v1/completions", {"prompt": "Lily and the big dog", "max_tokens": 1, "prompt_logprobs": n})[2])["choices"][0]["prompt_logprobs"] if t]
               for n in (20, 0))
ranks = [(own["rank"], 1 + sum(other["logprob"] > own["logprob"] for other in all_of.values())) for all_of, one in zip(many, alone) for own in one.values() if len(all_of) == 20]
check("prompt_logprobs: the rank of a token among all, though only that token is returned", all(rank == place for rank, place in ranks) and
      len({rank for rank, _ in ranks}) > 1 and all(own["rank"] > 20 for all_of, one in zip(many, alone) for own in one.values() if len(all_of) > 20), (ranks, alone))
b = json.loads(post("/v1/chat/completions", {**CHAT, "prompt_logprobs": 0, "return_token_ids": True})[2])
check("chat: prompt_logprobs in vLLM's shape", b["prompt_logprobs"][0] is None and [list(t) for t in b["prompt_logprobs"][1:]] == [[str(i)] for i in b["prompt_token_ids"][1:]], b)
for path, body in (("/v1/completions", ASKED), ("/v1/chat/completions", {**CHAT, "n": 2, "return_token_ids": True, "logprobs": True})):
    a = json.loads(post(path, body)[2])
    events = [json.loads(d) for _, d in stream(path, {**body, "stream": True}) if d != "[DONE]"]
    for i in range(2):
        parts = [c for e in events for c in e["choices"] if c["index"] == i]
        check(f"{path}: the ids of a stream are those of the whole, choice {i}", [t for c in parts for t in c["token_ids"]] == a["choices"][i]["token_ids"] != [], (a, parts))
    ids = [x["prompt_token_ids"] for e in events for x in (e, *e["choices"]) if "prompt_token_ids" in x]
    check(f"{path}: and of the prompt, once a choice", ids == [a.get("prompt_token_ids") or a["choices"][0]["prompt_token_ids"]] * 2, ids)
    a = post(path, {**body, "stream": True, "prompt_logprobs": 1})
    check(f"{path}: prompt_logprobs of a stream are refused", a[0] == 400 and json.loads(a[2])["error"]["param"] == "prompt_logprobs", a)
a = post("/v1/responses", {**RESPONSE, "return_token_ids": True})
check("responses: return_token_ids is refused by name", a[0] == 400 and json.loads(a[2])["error"]["param"] == "return_token_ids", a)
LOOP = {"prompt": "One day, a cat named Tom sat. One day, a cat", "n_predict": 1, "temperature": 0}
n = len(json.loads(post("/tokenize", {"content": " a cat"})[2])["tokens"])
DRY = {"dry_multiplier": 50, "dry_allowed_length": n + 1}
for name, more, stays in [("none", {}, True), ("what repeats is left", {**DRY, "dry_sequence_breakers": ["#"]}, False), ("not over a breaker", {**DRY, "dry_sequence_breakers": [","]}, True),
                          ("only of the last", {**DRY, "dry_penalty_last_n": n + 1}, True), ("not what is allowed", {**DRY, "dry_allowed_length": 40}, True)]:
    a = json.loads(post("/completion", {**LOOP, **more})[2])
    check(f"DRY: {name}", (a["content"] == " named") == stays and a["generation_settings"]["dry_allowed_length"] == more.get("dry_allowed_length", 2), a)
a = [json.loads(post("/completion", {"prompt": "Once upon a time, there was a", "n_predict": 1, "temperature": 1, "top_k": 20, "seed": s, "xtc_probability": p, "xtc_threshold": 0.01})[2])["content"]
     for p in (0, 1) for s in range(12)]
check("XTC: the top choice is left out", (most := max(a[:12], key=a[:12].count)) and a.count(most) > 1 and most not in a[12:], a)
for field in ("top_p", "typical_p"):
    a = {json.loads(post("/v1/completions", {"prompt": "Once", "max_tokens": 12, "temperature": 2, "seed": s, field: 0})[2])["choices"][0]["text"] for s in range(4)}
    check(f"{field} = 0 leaves one token", len(a) == 1, a)
for field, value in [("dry_base", 0.5), ("dry_multiplier", -1), ("xtc_probability", 2), ("dry_allowed_length", 1.5)]:
    a = post("/v1/completions", {**COMPLETION, field: value})
    check(f"{field} = {value} is refused", a[0] == 400 and json.loads(a[2])["error"]["param"] == field, a)
for value in (1, [1], [""]):
    refuses_body(f"dry_sequence_breakers = {value}", "/v1/completions", {**COMPLETION, "dry_multiplier": 1, "dry_sequence_breakers": value})
a = post("/infill", {"input_prefix": "a", "input_suffix": "b"})
check("/infill is refused by name where the model has no tokens for it", a[0] == 501 and "/infill" in error_of(a) and "prefix, suffix, middle" in error_of(a), a)
events = stream("/v1/chat/completions", {**CHAT, "stream": True})
check("openai: a stream ends with [DONE]", events[-1][1] == "[DONE]", events[-1])

# ---- The formats of llama-server and Anthropic ----
a = post("/completion", {"prompt": "Once", "n_predict": 2, "n_keep": 0, "mirostat": 0, "mirostat_tau": 5, "mirostat_eta": 0.1, "tfs_z": 1, "typical_p": 1, "typ_p": 1,
                         "dynatemp_range": 0, "dynatemp_exponent": 1, "xtc_probability": 0, "xtc_threshold": 0.1, "dry_multiplier": 0, "dry_base": 1.75,
                         "dry_allowed_length": 2, "dry_penalty_last_n": -1, "dry_sequence_breakers": ["\n"], "top_n_sigma": -1, "repeat_last_n": 64,
                         "cache_prompt": True, "id_slot": -1, "image_data": [], "t_max_predict_ms": 0, "n_indent": 0})
check("completion: all that its clients send switched off", a[0] == 200, a)
# The texts of llama.cpp (xllamacpp 2026.10.11549) for this model: its penalties count the last 64 tokens of prompt and answer, or repeat_last_n.
PLAYED = {"prompt": "The dog. The dog. The dog", "n_predict": 12, "temperature": 0}
for last, want in ((None, "balls and run"), (0, "dog. He liked"), (8, "ball. He liked"), (12, "balls. He had"), (-1, "balls and run")):
    for penalty in ({"frequency_penalty": 2, "presence_penalty": 2}, {"repeat_penalty": 3}):
        a = json.loads(post("/completion", {**PLAYED, **penalty, **({} if last is None else {"repeat_last_n": last})})[2])
        check(f"completion: repeat_last_n {last}, {list(penalty)[0]}", a["content"] == " liked to play with the " + want and
              a["generation_settings"]["repeat_last_n"] == (64 if last is None else last), a)
played = {"prompt": PLAYED["prompt"], "max_tokens": 8, "temperature": 0, "frequency_penalty": 2, "presence_penalty": 2}
texts = [json.loads(post("/v1/completions", {**played, **more})[2])["choices"][0]["text"] for more in ({}, {"repeat_last_n": -1})]
check("openai: frequency and presence count the answer, with repeat_last_n the prompt as well", texts == [" liked to play with the dog", " liked to play with the ball"], texts)
a = json.loads(post("/completion", {"prompt": "Once upon a time", "n_predict": 8, "temperature": 0, "n_probs": 3, "return_tokens": True})[2])
check("completion: shape", a["tokens_predicted"] == 8 and a["stop_type"] == "limit" and len(a["tokens"]) == 8
      and len(a["completion_probabilities"][0]["top_logprobs"]) == 3 and a["timings"]["predicted_n"] == 8, a)
a = json.loads(post("/completion", {"prompt": ["Once", "upon"], "n_predict": 2})[2])
check("completion: several prompts", len(a) == 2 and a[1]["index"] == 1, a)
check("completion: the settings are those that were used", a[0]["generation_settings"]["n_predict"] == 2 and a[0]["generation_settings"]["logit_bias"] == [], a)
a = json.loads(post("/completion", {"prompt": {"prompt_string": "Once"}, "n_predict": 3, "response_fields": ["content", "generation_settings/n_predict", "no/where"]})[2])
check("completion: response_fields", sorted(a) == ["content", "generation_settings/n_predict"], a)
a = json.loads(post("/completion", {"prompt": "Once", "n_predict": -1, "ignore_eos": True})[2])
check("completion: truncated by the context's end", a["truncated"] is True and a["generation_settings"]["logit_bias"][0]["bias"] is None, a["truncated"])
a = post("/completion", {"prompt": "Once upon a time " * 500})
e = json.loads(a[2])["error"]
check("completion: a prompt over the context", a[0] == 400 and e["type"] == "exceed_context_size_error" and e["n_prompt_tokens"] > e["n_ctx"] and e["param"] == "prompt", a)
a = post("/v1/completions", {"prompt": "Once upon a time " * 500})
check("completions: a prompt over the context", a[0] == 400 and json.loads(a[2])["error"]["code"] == "context_length_exceeded", a)
for body, field in (({"structured_outputs": "abc"}, "structured_outputs"), ({"structured_outputs": {"json_object": 5}}, "structured_outputs"),
                    ({"response_format": {"type": "json_schema", "json_schema": {"nam": "x", "schema": {}}}}, "response_format"),
                    ({"guided_json": 1}, "guided_json"), ({"guided_grammar": "1"}, "guided_grammar"), ({"max_completion_tokens": 10**9}, "max_completion_tokens")):
    a = post("/v1/chat/completions", {"messages": CHAT["messages"], **body})
    check(f"chat: {json.dumps(body)} is refused by name", a[0] == 400 and json.loads(a[2])["error"]["param"] == field, a)
for body, field in (({"text": {"fromat": {}}}, "text.fromat"), ({"reasoning": {"efort": "low"}}, "reasoning.efort"), ({"include": {}}, "include")):
    a = post("/v1/responses", {"input": "Hi", "max_output_tokens": 4, **body})
    check(f"responses: {json.dumps(body)} is refused by name", a[0] == 400 and json.loads(a[2])["error"]["param"] == field, a)
a = post("/v1/completions", {"prompt": "Once", "max_tokens": 8, "guided_json": {"type": "integer", "minimum": 0, "maximum": 18446744073709551615}})
check("completions: a bound beyond 64 bits", a[0] == 200, a)
a = json.loads(post("/v1/completions", {"prompt": "Caf\u00e9 Once", "temperature": 0, "max_tokens": 5, "echo": True, "logprobs": 0})[2])["choices"][0]
texts, at = a["logprobs"]["tokens"], a["logprobs"]["text_offset"]
check("completions: text_offset counts characters of the text", at[:4] == [0, 0, 0, 1] and all(a["text"][o:].startswith(t) for t, o in zip(texts[2:], at[2:]) if "bytes:" not in t), (texts, at))
for extra in ({}, {"skip_special_tokens": False}):
    ASKED = {"prompt": "Caf\u00e9 Once", "temperature": 0, "max_tokens": 9, "echo": True, "logprobs": 2, "n": 2, **extra}
    a = json.loads(post("/v1/completions", ASKED)[2])["choices"][1]
    ASKED["stream"] = True
    b = [c for _, d in stream("/v1/completions", ASKED) if d != "[DONE]" for c in json.loads(d)["choices"] if c["index"] == 1]
    check(f"completions: echo's streamed log-probabilities are those of the whole {extra}", "".join(c["text"] for c in b) == a["text"] and
          all([x for c in b if c["logprobs"] for x in c["logprobs"][k]] == v for k, v in a["logprobs"].items()), (a, b))
    check(f"completions: its text is as long as its tokens {extra}", a["logprobs"]["text_offset"][-1] < len(a["text"]) and ("skip_special_tokens" not in extra or "<s>" in a["text"]), a)
FORMED = {"prompt": "Once", "temperature": 1, "max_tokens": 20, "guided_regex": ".{3}"}
a = [json.loads(post("/v1/completions", {**FORMED, "seed": i})[2])["choices"][0]["text"] for i in range(12)]
check("completions: every character of a pattern is in the text", all(len(t) == 3 for t in a), a)
a = json.loads(post("/v1/completions", {"prompt": "Once", "temperature": 0, "max_tokens": 5, "echo": True})[2])["choices"][0]["text"]
check("completions: the text continues with its space", a == "Once upon a time, there", a)
a = json.loads(post("/v1/chat/completions/input_tokens", CHAT)[2])
check("chat: input_tokens", a["input_tokens"] >= 4, a)
for path in ("/v1/chat/completions", "/v1/chat/completions/input_tokens", "/tokenize", "/apply-template"):
    for tools, why in ((3, "must be a list"), ([{"type": "custom", "custom": {"name": "get"}}], "must be {type: function"), ([{"type": "function", "function": {"name": "a b"}}], "1 to 128 of"),
                       ([{"type": "function", "function": {"name": "get", "parameters": 3}}], "must be an object")):
        b = post(path, {"messages": CHAT["messages"], "tools": tools})
        check(f"{path} refuses tools {json.dumps(tools)[:60]}", b[0] == 400 and why in error_of(b), b)
b = [json.loads(post(f"/v1/chat/completions{more}", {**CHAT, "tools": TOOLS, "tool_choice": "none", "max_tokens": 1})[2]) for more in ("", "/input_tokens")]
check("chat: input_tokens of tools that may not be called", b[0]["usage"]["prompt_tokens"] == b[1]["input_tokens"], b)
a = json.loads(post("/v1/chat/completions", {**CHAT, "verbose": True})[2])
check("chat: timings, verbose", a["timings"]["predicted_n"] == 4 and "Once upon a time" in a["__verbose"]["prompt"], a)
refuses_body("chat: add_generation_prompt with continue_final_message", "/v1/chat/completions", {**CHAT, "add_generation_prompt": True, "continue_final_message": True})
a = json.loads(raw(request("GET", "/tokenizer_info"))[2])
check("tokenizer_info", a.pop("chat_template") and a == {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "\n<s>\n", "eos_token": "\n</s>\n", "pad_token": "\n</s>\n",
      "unk_token": "<unk>", "add_bos_token": True, "add_eos_token": False, "vocab_size": 512, "model_max_length": 512, "additional_special_tokens": []}, a)
a = json.loads(post("/tokenize", {"content": "Once upon", "with_pieces": True})[2])
check("tokenize: pieces", all("piece" in t for t in a["tokens"]))
ids = json.loads(post("/tokenize", {"content": "Once upon a time"})[2])["tokens"]
check("detokenize", json.loads(post("/detokenize", {"tokens": ids})[2])["content"].strip() == "Once upon a time")
check("apply-template", "Hello" in json.loads(post("/apply-template", {"messages": [{"role": "user", "content": "Hello"}]})[2])["prompt"])
a = json.loads(raw(request("GET", "/props"))[2])
check("props", a["default_generation_settings"]["n_ctx"] > 0 and a["total_slots"] > 0)
check("slots", all("is_processing" in t for t in json.loads(raw(request("GET", "/slots"))[2])))
a = json.loads(post("/v1/messages", {"model": model, "max_tokens": 8, "messages": [{"role": "user", "content": "Once upon a time"}]})[2])
check("messages: shape", a["type"] == "message" and a["stop_reason"] == "max_tokens" and a["content"][0]["type"] == "text"
      and a["usage"]["output_tokens"] == 8, a)
a = json.loads(post("/v1/messages", {"model": "nobody", "max_tokens": 8, "messages": [{"role": "user", "content": "x"}]})[2])
check("messages: error shape", a["type"] == "error" and a["error"]["type"] == "not_found_error", a)
a = json.loads(post("/v1/messages/count_tokens", {"model": model, "messages": [{"role": "user", "content": "Once upon a time"}]})[2])
check("messages: count_tokens", a["input_tokens"] >= 4, a)


ev = stream("/v1/messages", {"model": model, "max_tokens": 8, "stream": True, "messages": [{"role": "user", "content": "Once upon a time"}]})
names = [e for e, _ in ev]
check("messages: events", names[0] == "message_start" and names[1] == "content_block_start" and names[-3:] == [
    "content_block_stop", "message_delta", "message_stop"] and all(json.loads(d)["type"] == e for e, d in ev), names)
ev = stream("/completion", {"prompt": "Once", "n_predict": 4, "stream": True})
check("completion: stream ends with stop", json.loads(ev[-1][1])["stop"] is True and json.loads(ev[0][1])["stop"] is False)

ASKED = {"prompt": "Once upon a time", "n_predict": 40, "temperature": 0, "n_probs": 2, "return_tokens": True, "stop": [". One day"]}
a = json.loads(post("/completion", ASKED)[2])
b = [json.loads(d) for _, d in stream("/completion", {**ASKED, "stream": True})]
check("completion: a stream reports the tokens whose text was held back for a stop string", a["stop_type"] == "word" and "".join(x["content"] for x in b) == a["content"]
      and [t for x in b for t in x["tokens"]] == a["tokens"]
      and [p for x in b for p in x.get("completion_probabilities", [])] == a["completion_probabilities"], (a["content"], a["tokens"], b[-1]))

# ---- Large requests are read outside the loop ----
small = post("/v1/chat/completions", CHAT)
large = {**CHAT, "metadata": {f"k{i}": 1 for i in range(1000000)}}
packet = request("POST", "/v1/chat/completions", large)
start = time.monotonic()
raw(packet)
# A request that waits for all of it waits longer; on a busy machine everything takes longer.
WAIT = max(0.1, (time.monotonic() - start) / 4)


def longest_gap():
    """The gaps between two pieces of a stream, while a body of a million keys is read."""
    with connect() as s, connect() as other:
        s.sendall(request("POST", "/v1/completions", {"prompt": "Once", "max_tokens": 480, "ignore_eos": True, "stream": True}))
        s.recv(65536)
        other.sendall(packet)
        last, longest, data = time.monotonic(), 0, b""
        while b"[DONE]" not in data:
            data = data[-64:] + s.recv(65536)
            now = time.monotonic()
            last, longest = now, max(longest, now - last)
        return longest, read_answer(other)


gaps = []
# Gaps that other programs cause do not count.
while len(gaps) < 8 and (not gaps or min(gaps) > WAIT):
    gap, a = longest_gap()
    gaps.append(gap)
check(f"a large body: streams continue beside it (longest gap {min(gaps) * 1000:.0f} of {WAIT * 1000:.0f} ms)", min(gaps) < WAIT, gaps)
check("a large body: answered like a small one", a[0] == 200 and json.loads(a[2])["choices"][0]["message"] == json.loads(small[2])["choices"][0]["message"], a[2][:300])
a = post("/v1/chat/completions", json.dumps(large).encode()[:-1], ("X-Request-Id: big",))
check("a large body: that is not JSON", a[0] == 400 and "not JSON" in error_of(a) and a[1]["x-request-id"] == "big", a[:2])
a = post("/v1/chat/completions", {**large, "temperature": "hot"})
check("a large body: with a wrong field", a[0] == 400 and json.loads(a[2])["error"]["param"] == "temperature", a[:2])
a = post("/v1/completions", b'{"prompt": [' + b"1," * 4200000 + b"1]}")
check("a body of over 4 million values: 413", a[0] == 413 and "values" in error_of(a), a[:2])
a = post("/v1/chat/completions", {**CHAT, "chat_template_kwargs": {f"k{i}": 1 for i in range(300)}})
check("chat_template_kwargs: of 300 names", a[0] == 400 and "256" in error_of(a), a[:2])
text = "Once upon a time. " * 30000
a = post("/tokenize", {"content": text})
check("a large body: /tokenize", a[0] == 200 and len(json.loads(a[2])["tokens"]) > 100000, a[:2])
with connect() as s:
    s.sendall(packet + request("GET", "/version"))
    a, b = (first := read_answer(s)), read_answer(s, first[3])
check("a large body: a pipelined request waits behind it", a[0] == 200 and b[0] == 200 and b"version" in b[2], (a[:2], b[:2]))


def slowest_health(seconds):
    """Requests one after the other: their memory is also released outside the loop."""
    slowest, end = 0, time.monotonic() + seconds
    while time.monotonic() < end:
        begin = time.monotonic()
        alive()
        slowest = max(slowest, time.monotonic() - begin)
    return slowest


gaps = []
while len(gaps) < 6 and (not gaps or min(gaps) > WAIT):
    for _ in range(3):  # The second and third wait for the first, and all their clients leave.
        s = connect()
        s.sendall(packet)
        s.close()
    gaps.append(slowest_health(2))
check(f"a large body: its client leaves, and no other client waits (longest {min(gaps) * 1000:.0f} of {WAIT * 1000:.0f} ms)", min(gaps) < WAIT, gaps)
check("a large body: its client leaves before it is read", alive() and post("/v1/chat/completions", packet.split(b"\r\n\r\n", 1)[1])[0] == 200)

a = post("/v1/chat/completions", {**CHAT, "max_completion_tokens": 0})
check("chat: of two limits the one that is 0 is named", a[0] == 400 and json.loads(a[2])["error"]["param"] == "max_completion_tokens", a)

# ---- The request's id ----
a = post("/v1/completions", {"prompt": "Once", "max_tokens": 1})
given = a[1].get("x-request-id", "")
check("x-request-id: every answer has one, and the completion's id contains it", len(given) == 24 and json.loads(a[2])["id"] == "cmpl-" + given, a)
a = post("/v1/chat/completions", {**CHAT, "nonsense": 1}, ("X-Request-Id: my own: 7",))
check("x-request-id: a client's own comes back, of an error too", a[0] == 400 and a[1].get("x-request-id") == "my own: 7", a)
for bad in ("x" * 129, "caf\xe9", ""):
    a = raw(request("GET", "/v1/models", headers=("X-Request-Id: " + bad,)).replace(b"caf\xc3\xa9", b"caf\xe9"))
    check(f"x-request-id: {bad[:8]!r} is not echoed", a[0] == 200 and len(a[1].get("x-request-id", "")) == 24, a)
a = raw(b"GET / HTTP/1.1\r\nHost: x\r\nX-Request-Id: r1\r\nOrigin: https://a.example\r\nContent-Length: 9x\r\n\r\n")
check("x-request-id: of what could not be read, too; and a page may read the error",
      a[0] == 400 and a[1].get("x-request-id") == "r1" and a[1].get("access-control-allow-origin") == "https://a.example", a)
check("x-request-id: of what is not HTTP", len(raw(b"nonsense\r\n\r\n")[1].get("x-request-id", "")) == 24)
with connect() as s:
    s.sendall(request("POST", "/v1/chat/completions", {**CHAT, "stream": True}, ("X-Request-Id: streamed", "Connection: close")))
    check("x-request-id: of a stream", b"\r\nx-request-id: streamed\r\n" in s.recv(65536))
a = post("/v1/messages", {**CHAT, "max_tokens": 2}, ("X-Request-Id: theirs", "Origin: https://a.example"))
check("request-id: so Anthropic's clients call it", a[0] == 200 and a[1].get("request-id") == "theirs" and "request-id" in a[1].get("access-control-expose-headers", ""), a)
ids = {raw(request("GET", path))[1].get("x-request-id") for path in ("/", "/status", "/health", "/version", "/metrics", "/nowhere", "/props", "/v1/models")}
check("x-request-id: pages, /health, /metrics, 404: each has a different one", len(ids) == 8 and None not in ids, ids)

# ---- CORS, metrics, pages ----
a = raw(request("OPTIONS", "/v1/chat/completions", headers=("Origin: https://a.example", "Access-Control-Request-Method: POST")))
check("cors: preflight of an allowed origin", a[0] == 204 and a[1].get("access-control-allow-origin") == "https://a.example", a)
wants = "authorization,content-type,x-stainless-lang,x-stainless-retry-count,anthropic-version,anthropic-dangerous-direct-browser-access"
a = raw(request("OPTIONS", "/v1/messages", headers=("Origin: https://a.example", "Access-Control-Request-Method: POST", "Access-Control-Request-Headers: " + wants)))
check("cors: the headers of vendors' clients are allowed", a[0] == 204 and a[1].get("access-control-allow-headers") == wants, a)
a = raw(request("OPTIONS", "/v1/messages", headers=("Origin: https://evil.example", "Access-Control-Request-Method: POST", "Access-Control-Request-Headers: " + wants)))
check("cors: preflight of another origin allows nothing", not any(k.startswith("access-control") for k in a[1]), a)
a = raw(request("GET", "/health", headers=("Origin: https://evil.example",)))
check("cors: another origin gets no header", a[0] == 200 and "access-control-allow-origin" not in a[1], a)
text = raw(request("GET", "/metrics"))[2].decode()
check("metrics: vLLM's names", all(n in text for n in ("vllm:num_requests_running{", "vllm:time_to_first_token_seconds_bucket{",
      "vllm:generation_tokens_total{", "vllm:request_success_total{", "vllm:kv_cache_usage_perc{", "llamacpp:prompt_tokens_total")))
sums = [float(re.search(r"(?m)^" + name + r"_sum\{[^}]*\} (\S+)", text)[1]) for name in ("vllm:request_generation_tokens", "vllm:request_max_num_generation_tokens")]
a = {le: int(n) for le, n in re.findall(r'(?m)^vllm:iteration_tokens_total_bucket\{.*le="([^"]*)"\} (\d+)$', text)}
n, total = (float(re.search(rf"(?m)^vllm:iteration_tokens_total_{x}\{{[^}}]*\}} (\S+)", text)[1]) for x in ("count", "sum"))
steps = float(re.search(r"(?m)^llamacpp:n_decode_total (\S+)", text)[1])
check("metrics: each step is in the histogram of their sizes", 0 < a["1"] < a["512"] == a["+Inf"] == n == steps < total and list(a.values()) == sorted(a.values()), (a, n, total, steps))
check("metrics: of a request's samples the longest counts", 0 < sums[1] < sums[0], sums)
check("metrics: every line is a sample or a comment", all(l.startswith("# ") or (" " in l and float(l.rsplit(" ", 1)[1]) >= 0)
      for l in text.splitlines() if l))
for path in ("/", "/status"):
    a = raw(request("GET", path))
    check(f"page {path}: policy and no outside address", a[0] == 200 and "default-src 'none'" in a[1]["content-security-policy"]
          and b"https://" not in a[2] and len(a[2]) > 2000, a[1])

# ---- Clients that disconnect, and slow ones ----
before = stats()
LONG = {**CHAT, "max_tokens": 400, "stream": True, "ignore_eos": True}
for i in range(20):
    s = connect()
    s.sendall(request("POST", "/v1/chat/completions", {**LONG, "stream": i % 2 == 0}))
    if i % 3:
        s.settimeout(0.2)
        try:
            s.recv(100)
        except TimeoutError:
            pass
    s.close()
deadline = time.time() + 20
while time.time() < deadline and (stats()["requests"] > 0 or stats()["running"] > 0):
    time.sleep(0.1)
after = stats()
check("clients that vanish are cancelled", after["requests"] == 0 and after["running"] == 0
      and after["cancelled"] > before["cancelled"], after)
check("no page is lost", after["pages_used"] == after["pages_cached"] or after["pages_used"] <= before["pages_used"], (before, after))
check("the server is healthy", alive())
sys.exit(tap.end())
