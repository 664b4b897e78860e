"""Hostile clients and operators against `lateen serve`: thousands of idle connections, slow readers and writers, half-closed sockets, grammars made to be slow,
signals, ports in use, models that cannot be read, kill -9. Standard library only; TAP on stdout.

usage: serve_abuse.py LATEEN MODEL TOKENIZER"""
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time

import serve_client
from serve_client import check, hard, post_bytes, scratch

lateen, model, tokenizer = sys.argv[1:4]
command = [lateen, "serve", *serve_client.words_of(model, tokenizer)]


def Server(*flags, **how):
    return serve_client.Server(command, *flags, **how)


LONG = {"prompt": "Once", "max_tokens": 400, "ignore_eos": True, "stream": True}

# ---- Connections ----
s = Server("--quiet", "--max-connections", "6000", "--request-s", "2", "--write-s", "2", "--idle-s", "60", soft=1024)
n_idle = 5000 if hard >= 12000 else 500
before = s.stats()
held = [s.connect() for _ in range(n_idle)]
start = time.time()
status, body = s.post("/v1/completions", {**LONG, "stream": False, "max_tokens": 8})
stat = s.stats()
check(f"{n_idle} idle connections: others are served at once ({time.time() - start:.2f} s)", status == 200 and time.time() - start < 10, (status, body))
check(f"and they are kept open, beyond the descriptors it started with: {stat['connections']}", stat["connections"] >= n_idle, stat["connections"])
per = (stat["resident_bytes"] - before["resident_bytes"]) / n_idle
check(f"{per / 1024:.1f} KiB of memory each", per < 16 << 10 or "san" in lateen, per)
for c in held[:200]:
    c.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Le")
start = time.time()
held[0].settimeout(20)
check("slow loris: two hundred half-sent heads are answered 408", all(c.recv(4096).startswith(b"HTTP/1.1 408") for c in held[:200]) and time.time() - start < 15)
for c in held:
    c.close()
end = time.time() + 10
while s.stats()["connections"] > 5 and time.time() < end:
    time.sleep(0.1)
stat = s.stats()
check("all are closed", stat["connections"] <= 5 and stat["descriptors"] <= before["descriptors"] + 3, stat)

# ---- Clients that do not read: 25 MB each, far more than the kernel buffers for them ----
slow = []
for _ in range(3):
    c = socket.socket()
    c.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    c.connect(("127.0.0.1", s.port))
    c.sendall(post_bytes("/v1/chat/completions", {"messages": [{"role": "user", "content": "Once"}], "max_tokens": 400, "ignore_eos": True, "stream": True,
                                                  "n": 32, "logprobs": True, "top_logprobs": 20}) * 3)  # Pipelined, too.
    slow.append(c)
start = time.time()
check("clients that read nothing do not hold up others", s.post("/v1/completions", {**LONG, "stream": False, "max_tokens": 20})[0] == 200)
while (s.stats()["connections"] > 2 or not s.idle()) and time.time() - start < 60:
    time.sleep(0.1)
stat = s.stats()
check(f"and are cut off ({time.time() - start:.1f} s)", stat["connections"] <= 2 and stat["running"] == 0, stat)
for c in slow:
    c.close()

# ---- Half-closed, HEAD, OPTIONS, methods ----
with s.connect() as c:
    c.sendall(post_bytes("/tokenize", {"content": "Once"}, "close"))
    c.shutdown(socket.SHUT_WR)
    check("a half-closed client is answered", c.recv(4096).startswith(b"HTTP/1.1 200"))
with s.connect() as c:
    c.sendall(post_bytes("/v1/completions", LONG))
    c.recv(100)
    c.shutdown(socket.SHUT_WR)
    check("one that half-closes while it is streamed to is cancelled", s.idle())
check("HEAD where only POST is: 405", s.get("/v1/completions", "HEAD")[0] == 405)
check("OPTIONS without an origin: 204", s.get("/v1/completions", "OPTIONS")[0] == 204)
for method in ("PUT", "DELETE", "PATCH", "TRACE", "CONNECT", "post", "\x7f"):
    check(f"{method!r}: refused", s.get("/v1/completions", method)[0] in (400, 405))
with s.connect() as c:
    c.sendall(post_bytes("/v1/completions", {**LONG, "stream": False, "max_tokens": 3}) * 20)
    got = b""
    while got.count(b"HTTP/1.1 200") < 20 or not got.endswith(b"}"):
        part = c.recv(65536)
        if not part:
            break
        got += part
    check("twenty pipelined generations, in order", got.count(b"HTTP/1.1 200") == 20, got.count(b"HTTP/1.1 "))

# ---- Grammars made to be slow ----
worst, why = 0, ""
for body in ({"guided_regex": "(((a{1,9}){1,9}){1,9}){1,9}"}, {"guided_regex": "(a|b)*a(a|b){18}"}, {"guided_regex": ".*" + "|".join("x%d.*" % i for i in range(300))},
             {"guided_regex": "(a|aa|aaa)*" * 60}, {"guided_regex": "((a*)*)*" * 100}, {"guided_regex": "\\p{L}\\P{N}" * 200000}, {"guided_regex": "(" * 5000 + "a" + ")" * 5000},
             {"grammar": 'root ::= "a" root root | "a"'}, {"grammar": 'root ::= root "a"'}, {"grammar": "root ::= " + "(" * 10000},
             {"json_schema": {"$ref": "#"}}, {"json_schema": {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(1000)}}},
             {"json_schema": {"allOf": [{"anyOf": [{"properties": {f"a{j}": {"type": "string"}}} for j in range(9)]} for _ in range(9)]}},
             {"guided_choice": ["x" * 1000 + str(i) for i in range(2000)]}):
    start = time.time()
    status, answer = s.post("/v1/completions", {"prompt": "Once", "max_tokens": 4, **body})
    took = time.time() - start
    if status not in (200, 400):
        check(f"grammar {str(body)[:60]}", False, (status, answer))
    if took > worst:
        worst, why = took, str(body)[:60]
check(f"no grammar holds up the server: {worst:.2f} s for {why}", worst < 10)

# ---- Megabytes: what cannot fit is not even encoded, and nothing of it is kept ----
before, grew = s.stats()["resident_bytes"], {}


def growth():
    """MiB since then, once the memory of the last request is free: the client has its answer
    before the server has released it."""
    limit = time.time() + (0 if "san" in lateen else 60)
    while (now := s.stats()["resident_bytes"] - before >> 20) >= 12 and time.time() < limit:
        time.sleep(0.1)
    return now


for path, body, good in (("/v1/completions", {"prompt": "a" * 25_000_000}, 400), ("/v1/chat/completions", {"messages": [{"role": "user", "content": "b " * 3_000_000}]}, 400),
                         ("/completion", {"prompt": "a" * 25_000_000}, 400), ("/v1/embeddings", {"input": ["a" * 25_000_000]}, 400),
                         ("/v1/completions", {f"k{i}": 1 for i in range(500_000)}, 400), ("/tokenize", {"content": "12345 " * 4_000_000}, 200),
                         ("/v1/messages/count_tokens", {"messages": [{"role": "user", "content": "b " * 3_000_000}]}, 200),
                         ("/v1/completions", {"prompt": "Once", "max_tokens": 4, "stop": ["x" * 900_000 + str(i) for i in range(25)]}, 200)):
    status, answer = s.post(path, body)
    grew[path] = max(grew.get(path, 0), growth())
    short = path in ("/v1/completions", "/completion", "/v1/embeddings") and "k0" not in body and good == 400
    check(f"megabytes to {path}: {good}", status == good and (not short or b"exceeds the available context size" in answer), (status, answer[:300]))
check(f"nothing of them is kept: {grew} MiB", max(grew.values()) < 12 or "san" in lateen, grew)
check("it is healthy", s.get("/health")[0] == 200 and s.idle())
check("SIGTERM with nothing to do: exit 0", s.end() == 0)

s = Server("--quiet", "--max-connections", "20", limit=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
s.p.send_signal(signal.SIGHUP)
held = [s.connect() for _ in range(60)]
check("a server started by nohup continues after SIGHUP, and more idle connections than allowed lock no client out", s.get("/health")[0] == 200 and s.stats()["connections"] <= 20)
busy = [s.connect() for _ in range(19)]
for c in busy:
    c.sendall(post_bytes("/v1/completions", LONG))
    c.recv(10)
check("nor do they cost those that are served", s.get("/health")[0] == 200 and all(c.recv(10) for c in busy))
for c in held + busy:
    c.close()
check("and it ends", s.end() == 0)

# ---- Signals ----
def stream_in(server, result):
    with server.connect(60) as c:
        c.sendall(post_bytes("/v1/completions", LONG, "close"))
        got = b""
        try:
            while part := c.recv(65536):
                got += part
        except ConnectionResetError:
            pass
        result.append(got)


s = Server("--quiet", "--drain-s", "30")
results = []
threads = [threading.Thread(target=stream_in, args=(s, results)) for _ in range(4)]
for t in threads:
    t.start()
while s.stats()["running"] < 4:
    time.sleep(0.005)
code = s.end()
for t in threads:
    t.join()
check("SIGTERM while streaming: the streams are finished, exit 0", code == 0 and all(b"data: [DONE]" in r and r.endswith(b"0\r\n\r\n") for r in results),
      (code, [r[-60:] for r in results]))
s = Server("--quiet", "--drain-s", "0.05", "--max-running", "1")
results = []
threads = [threading.Thread(target=stream_in, args=(s, results)) for _ in range(30)]
for t in threads:
    t.start()
while s.stats()["requests"] < 20:
    time.sleep(0.005)
start = time.time()
code = s.end()
for t in threads:
    t.join()
cut = [r for r in results if b"did not finish within 0.05 s" in r]
check(f"a deadline that is too short: the server ends at it ({time.time() - start:.2f} s), and each cut stream ends with an error that says why, never like a complete one",
      code == 0 and time.time() - start < 30 and len(cut) > 0 and all(b'"server_error"' in r and r.endswith(b"0\r\n\r\n") and b"data: [DONE]" not in r for r in cut)
      and all(r in cut or b"data: [DONE]" in r or r.startswith(b"HTTP/1.1 503") or r == b"" for r in results), (code, len(cut), [r[-90:] for r in results]))

# ---- Ports, models, kill -9 ----
s = Server("--quiet")
other = subprocess.run([*command, "--port", str(s.port)], capture_output=True, text=True, timeout=20)
check("a port in use: exit 1, the message names it", other.returncode == 1 and str(s.port) in other.stderr and "in use" in other.stderr, other.stderr)
check("and the first server continues", s.get("/health")[0] == 200)
with s.connect() as c:
    c.sendall(post_bytes("/v1/completions", LONG))
    c.recv(100)
    s.end(signal.SIGKILL)
again = Server("--quiet", port=s.port)
check("kill -9 while streaming, started again on the same port at once", again.get("/health")[0] == 200)
check("and it ends cleanly", again.end(signal.SIGINT) == 0)
for name, data in (("an empty file", b""), ("not a model", b"hello" * 1000), ("a GGUF cut off", b"GGUF\3\0\0\0" + b"\1" + b"\0" * 7 + b"\1" + b"\0" * 6)):
    path = os.path.join(scratch, "bad.gguf")
    with open(path, "wb") as f:
        f.write(data)
    r = subprocess.run([lateen, "serve", path, "--port", "0"], capture_output=True, text=True, timeout=20)
    check(f"a model that is {name}: exit 1, the message names it", r.returncode == 1 and "bad.gguf" in r.stderr, (r.returncode, r.stderr))
for flags, code in (("--host nowhere.invalid", (1, 2)), ("--host 192.0.2.1", (1,)), ("--max-running 0", (2,)), ("--page-tokens 7", (1, 2)), ("--cache-bytes 10", (1, 2)),
                    ("--chat-template /nothing", (1, 2)), ("--api-key-file /nothing", (1, 2)), ("--defaults [", (2,))):
    r = subprocess.run([*command, "--port", "0", *flags.split()], capture_output=True, text=True, timeout=20)
    check(f"{flags}: exit {r.returncode} and a message", r.returncode in code and len(r.stderr) > 20, (r.returncode, r.stderr))
serve_client.finish()
