"""Resources and access of `lateen serve`: memory under a limit, caches, bodies, keys, hosts, origins, TLS, each with a server of its own. Standard library
only; TAP on stdout.

usage: serve_safe.py LATEEN MODEL [TOKENIZER]"""
import json
import os
import re
import resource
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time

import serve_client
from serve_client import check, post_bytes

lateen, model = sys.argv[1:3]
command = [lateen, "serve", *serve_client.words_of(model, sys.argv[3] if len(sys.argv) > 3 else "")]


def Server(*flags, **how):
    return serve_client.Server(command, *flags, **how)


# ---- Memory ----
def pool_of(server):
    """(tokens, pages, tokens per page, MiB, reason) as logged at the start."""
    found = re.search(r"keys and values of (\d+) tokens in (\d+) pages of (\d+), \S+ ([\d.]+) MiB \((.*?)\); ([\d.]+) MiB", server.said())
    return (*map(int, found.groups()[:3]), float(found[4]), found[5]) if found else (0, 0, 0, 0.0, "")


s = Server()
context, free = s.stats()["context"], pool_of(s)
check("the pool's size is logged at the start", free[0] == free[1] * free[2] >= context and free[3] > 0, s.said())
s.end()
s = Server("--context", str(4 * context))
check(f"--context above the model's: pages for the {context} tokens that are served, and a line that says so",
      s.stats()["context"] == context and pool_of(s)[1] == free[1] and f"exceeds the model's {context}" in s.said(), (free, pool_of(s), s.said()))
s.end()
s = Server("--context", str(context // 4))
check("--context below the model's: as many fewer pages", s.stats()["context"] == context // 4 and abs(pool_of(s)[1] * 4 - free[1]) <= 4 * 256, (free, pool_of(s)))
s.end()
if "san" not in lateen:  # A sanitizer's shadow memory takes terabytes of addresses.
    least = (s_bytes := 2 << 30) // 2
    s = Server("--max-running", "4096", limit=lambda: resource.setrlimit(resource.RLIMIT_AS, (s_bytes, s_bytes)))
    pool = pool_of(s)
    check(f"under ulimit -v the pool is at most half of what the limit leaves ({pool[3]:.0f} MiB)", 0 < pool[3] < least >> 20 and "RLIMIT_AS" in pool[4], s.said())
    check("and requests are served", s.post("/v1/completions", {"prompt": "Once", "max_tokens": 8})[0] == 200)
    s.end()


def cached_of(server, prompt, **fields):
    status, body = server.post("/v1/completions", {"prompt": prompt, "max_tokens": 1, **fields})
    return json.loads(body)["usage"]["prompt_tokens_details"]["cached_tokens"] if status == 200 else (status, body)


prompts = ["".join(chr(97 + (i * 7 + k * k * (i + 3)) % 26) + (" " if k % 5 == 4 else "") for k in range(120)) for i in range(8)]
s = Server("--max-running", "16")
page = s.stats()["page_tokens"]
first, again = [cached_of(s, p) for p in prompts], [cached_of(s, p) for p in prompts]
check("a prompt that comes again is found in the prefix cache", max(first) < page * 2 <= min(again), (first, again))
s.end()
page_bytes = int(free[3] * (1 << 20) / free[1])
s = Server("--max-running", "16", "--prefix-cache-bytes", str(6 * page_bytes))
again = [cached_of(s, p) for p in prompts * 2][len(prompts):]
stat = s.stats()
check("--prefix-cache-bytes: unused pages are kept up to that size, the newest ones", 0 < stat["pages_cached"] <= 7 and max(again) < page * 2 and
      cached_of(s, prompts[-1]) >= page * 2, (stat["pages_cached"], again, page_bytes))
s.end()


# ---- Which clients share cached prompts ----
s = Server("--quiet")
p = prompts[0]
seen = [cached_of(s, p, **f) for f in ({}, {}, {"cache_salt": "one"}, {"cache_salt": "one"}, {"cache_salt": "two"}, {"cache_salt": "two"}, {"cache_salt": None}, {"cache_salt": "one"})]
check("cache_salt: only requests with the same one share pages", [n >= page * 2 for n in seen] == [False, True, False, True, False, True, True, True] and seen[2] == seen[4] == 0, seen)
check("an empty cache_salt is refused by name", cached_of(s, p, cache_salt="")[0] == 400 and b"cache_salt" in cached_of(s, p, cache_salt="")[1])
check("so is one that is no text", cached_of(s, p, cache_salt=7)[0] == 400)
check("an unknown field that is null is absent; with a value it is refused", s.post("/v1/completions", {"prompt": "a", "max_tokens": 1, "vendor_thing": None})[0] == 200 and
      s.post("/v1/completions", {"prompt": "a", "max_tokens": 1, "vendor_thing": 1})[0] == 400)
s.end()
for kind in ("warn", "ignore"):
    s = Server("--quiet", "--unknown-fields", kind)
    status = s.post("/v1/completions", {"prompt": "a", "max_tokens": 1, "vendor_thing\nerror: forged": 1})[0]
    check(f"--unknown-fields {kind}", status == 200 and ("vendor_thing?error" in s.said()) == (kind == "warn") and "\nerror: forged" not in s.said(), (status, s.said()))
    check(f"--unknown-fields {kind}: a wrong value of a known one is refused", s.post("/v1/completions", {"prompt": "a", "max_tokens": "x"})[0] == 400)
    s.end()


def cached_by(server, key, prompt):
    body = json.dumps({"prompt": prompt, "max_tokens": 1}).encode()
    answer = server.ask(f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nAuthorization: Bearer {key}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)[1]
    return json.loads(answer)["usage"]["prompt_tokens_details"]["cached_tokens"]


for flag in ("--prefix-cache-by-key", "--no-prefix-cache-by-key"):
    s = Server("--quiet", "--api-key", "one,two", flag)
    seen = [cached_by(s, k, p) for k in ("one", "one", "two", "two")]
    check(f"{flag}: keys share pages only without it", [n >= page * 2 for n in seen] == [False, True, flag.startswith("--no"), True], seen)
    s.end()

# ---- Keys, hosts, origins ----
def head(method, path, *lines, host="x"):
    return "\r\n".join([f"{method} {path} HTTP/1.1", f"Host: {host}", "Connection: close", *lines]).encode() + b"\r\n\r\n"


def tries(server, *lines, host="x", method="POST", path="/tokenize", body=b'{"content": "a"}'):
    return server.ask(head(method, path, f"Content-Length: {len(body)}", *lines, host=host) + body)[0]


def refused(*flags, **env):
    r = subprocess.run([*command, "--port", "0", *flags], capture_output=True, text=True, timeout=20, env={**os.environ, **env})
    return r.returncode, r.stderr


for flags, env in ((("--api-key", ""), {}), (("--api-key=",), {}), (("--api_key", ""), {}), (("--api-key-file", ""), {}), (("--api-key", ","), {}), ((), {"LATEEN_API_KEY": ""}),
                   ((), {"LATEEN_API_KEY": " ,"}), (("--api-key", "k", "--no-auth"), {})):
    code, said = refused(*flags, **env)
    check(f"{' '.join(flags)}{env or ''}: exit {code}, not a server that is open", code == 2 and "no-auth" in said, said)
s = Server("--quiet", env={"LATEEN_API_KEY": "from-env"})
check("LATEEN_API_KEY is a key", tries(s) == 401 and tries(s, "Authorization: Bearer from-env") == 200)
s.end()
for flags, loud in (((), True), (("--no-auth",), False), (("--api-key", "k"), False)):
    s = Server("--quiet", "--host", "0.0.0.0", *flags)
    check(f"--host 0.0.0.0 {' '.join(flags)}: {'a loud' if loud else 'no'} warning", ("OPEN TO THE NETWORK" in s.said()) == loud, s.said())
    s.end()

s = Server("--quiet", "--cors", "https://a.example", "--allowed-hosts", "llm.example.org, other.example")
own = f"127.0.0.1:{s.port}"
for host, status in (("localhost", 200), (f"localhost:{s.port}", 200), (own, 200), ("[::1]:80", 200), ("192.168.1.20:8080", 200), ("lateen:8080", 200), ("a.localhost", 200),
                     ("llm.example.org", 200), ("LLM.example.org:443", 200), ("other.example", 200), ("evil.example", 403), (f"evil.example:{s.port}", 403),
                     ("127.0.0.1.evil.example", 403), ("localhost.evil.example", 403), ("evilllm.example.org", 403), ("evil.example.", 403), ("[::1].evil.example", 200)):
    # No URL has such a host; in brackets there must be an address.
    if host != "[::1].evil.example":
        check(f"without keys, Host: {host}: {status}", tries(s, host=host) == status, tries(s, host=host))
check("a wrong Host is refused everything, even the pages", all(tries(s, host="evil.example", method="GET", path=p, body=b"") == 403 for p in ("/", "/health", "/v1/models", "/status.json")))
for lines, status in (((f"Origin: http://{own}",), 200), (("Origin: https://a.example",), 200), (("Origin: https://evil.example",), 403), (("Origin: null",), 403),
                      (("Origin: http://localhost:3000",), 403), (("Origin: https://a.example.evil.example",), 403), (("Origin: http://127.0.0.1",), 403),
                      (("Sec-Fetch-Site: cross-site",), 403), (("Sec-Fetch-Site: same-origin",), 200), (("Content-Type: text/plain",), 415),
                      (("Content-Type: text/plain;charset=UTF-8",), 415), (("Content-Type: multipart/form-data; boundary=x",), 415), (("Content-Type: application/json",), 200),
                      (("Content-Type: application/json; charset=utf-8",), 200), (("Content-Type: application/x-www-form-urlencoded",), 200),
                      (("Content-Type: application/x-www-form-urlencoded", "Origin: https://evil.example"), 403)):
    got = tries(s, *lines, host=own)
    check(f"without keys, {', '.join(lines)}: {status}", got == status, got)
check("a page of another site may not even read answers", tries(s, "Origin: https://evil.example", method="GET", path="/v1/models", body=b"") == 403)
check("but it may know whether the server lives", tries(s, "Origin: https://evil.example", method="GET", path="/health", body=b"") == 200)
check("HTTP/1.0 without a Host is served", s.ask(b"GET /v1/models HTTP/1.0\r\n\r\n")[0] == 200)
s.end()
s = Server("--quiet", "--api-key", "one,two")
key = "Authorization: Bearer two"
check("with keys, any host and origin that knows one may call", tries(s, key, host="evil.example") == 200 and tries(s, key, "Origin: https://evil.example") == 200 and
      tries(s, key, "Content-Type: text/plain") == 200)
check("keys: a prefix, a longer one, another case, none, in the query: 401", all(tries(s, k) == 401 for k in ("Authorization: Bearer tw", "Authorization: Bearer twoo",
      "Authorization: Bearer TWO", "Authorization: Basic two", "Authorization: Bearer", "X: y")) and tries(s, path="/tokenize?key=two&api_key=two") == 401)
check("either header will do", tries(s, "Authorization: Bearer wrong", "x-api-key: one") == 200 and tries(s, "authorization: bearer   one") == 200)

# ---- Bodies ----
MIB = 1 << 20


def flood(server, n, size, *lines):
    """n connections that announce `size` bytes and send all but one: the number of answers of
    each status, and the peak memory."""
    statuses, most, over = {}, [0], threading.Event()

    def watch():
        while not over.is_set():
            with open(f"/proc/{server.p.pid}/status") as f:
                most[0] = max(most[0], int(re.search(r"VmRSS:\s+(\d+)", f.read())[1]) >> 10)
            time.sleep(0.02)

    def one():
        with server.connect(20) as c:
            try:
                c.sendall(head("POST", "/tokenize", f"Content-Length: {size}", *lines))
                for k in range(0, size - 1, MIB):
                    c.sendall(b"a" * min(MIB, size - 1 - k))
            except (BrokenPipeError, ConnectionResetError):
                pass
            try:
                got = c.recv(4096)
            except (ConnectionResetError, TimeoutError):
                got = b""
        status = got[9:12].decode() + (" Retry-After" if b"\r\nRetry-After: " in got else "")
        statuses[status] = statuses.get(status, 0) + 1

    threads = [threading.Thread(target=one) for _ in range(n)]
    watcher = threading.Thread(target=watch)
    for t in [watcher, *threads]:
        t.start()
    for t in threads:
        t.join()
    over.set()
    watcher.join()
    return statuses, most[0]


sanitized = "san" in lateen
statuses, most = flood(s, 20, 24 * MIB)
check(f"20 bodies of 24 MiB without a key: 401, and none is read ({most} MiB)", statuses == {"401": 20} and (most < 200 or sanitized), (statuses, most))
with s.connect() as c:
    c.sendall(head("POST", "/tokenize", "Content-Length: 1000000", "Expect: 100-continue"))
    check("no key with Expect: 100-continue: 401, not 100", c.recv(4096).startswith(b"HTTP/1.1 401"))
with s.connect() as c:
    c.sendall(head("POST", "/tokenize", "Content-Length: 16", "Expect: 100-continue", key))
    first = c.recv(4096)
    c.sendall(b'{"content": "a"}')
    check("a key with it: 100, then 200", first == b"HTTP/1.1 100 Continue\r\n\r\n" and c.recv(4096).startswith(b"HTTP/1.1 200"), first)
with s.connect() as c:
    c.sendall(head("POST", "/tokenize", "Transfer-Encoding: chunked"))
    check("no key with a chunked body: 401 before a chunk came", c.recv(4096).startswith(b"HTTP/1.1 401"))
check("a small body whose request is refused does not cost the connection", s.ask(
    head("POST", "/tokenize", "Content-Length: 2").replace(b"Connection: close\r\n", b"") + b"{}" + head("GET", "/health"))[1].count(b"HTTP/1.1 200") == 1)
s.end()
s = Server("--quiet", "--max-body", str(16 * MIB), "--max-bodies", str(32 * MIB), "--request-s", "4")
statuses, most = flood(s, 30, 14 * MIB)
check(f"30 bodies of 14 MiB on an open server: 503 with Retry-After beyond 32 MiB of them ({most} MiB)",
      statuses.get("503 Retry-After", 0) >= 20 and set(statuses) <= {"503 Retry-After", "408"} and (most < 200 or sanitized), (statuses, most))
text = s.get("/metrics")[1].decode()
metric = {l.split("{")[0].split(" ")[0]: float(l.rsplit(" ", 1)[1]) for l in text.splitlines() if l and l[0] != "#"}
check("they are counted, and their memory is free again", metric["lateen_bodies_refused_total"] >= 20 and metric["lateen_bodies_bytes"] == 0, metric)
results = []
big = json.dumps({"content": "a b " * 1_500_000}).encode()
threads = [threading.Thread(target=lambda: results.append(s.ask(head("POST", "/tokenize", f"Content-Length: {len(big)}") + big, 60)[0])) for _ in range(8)]
for t in threads:
    t.start()
small = [tries(s) for _ in range(20)]
for t in threads:
    t.join()
check("small requests pass beside bodies that wait for room", small == [200] * 20, small)
check("bodies that wait for room are read when others are done, or told to come again", set(results) <= {200, 503} and results.count(200) >= 3, results)
s.end()

# ---- Half-closed ----
s = Server("--quiet", "--max-connections", "8")
for name, body in (("short", {"prompt": "Once", "max_tokens": 2}), ("long", {"prompt": "Once", "max_tokens": 450, "n": 16, "ignore_eos": True})):
    with s.connect(60) as c:
        c.sendall(post_bytes("/v1/completions", body))
        c.shutdown(socket.SHUT_WR)
        got = b""
        while part := c.recv(65536):
            got += part
    check(f"a POST whose client half-closes gets its answer ({name})", got.startswith(b"HTTP/1.1 200 OK\r\n") and got.count(b"HTTP/1.1") == 1 and
          len(json.loads(got.split(b"\r\n\r\n", 1)[1])["choices"]) == body.get("n", 1), got[:300])
with s.connect(60) as c:
    c.sendall(post_bytes("/v1/completions", {"prompt": "Once", "max_tokens": 100, "ignore_eos": True, "stream": True}) * 2)
    c.shutdown(socket.SHUT_WR)
    got = b""
    while part := c.recv(65536):
        got += part
check("two streams, pipelined and half-closed: both whole", got.count(b"data: [DONE]") == 2 and got.endswith(b"0\r\n\r\n"), got[-200:])
gone = {"prompt": "Once", "max_tokens": 500, "n": 64, "ignore_eos": True}
for stream in (False, True):
    with s.connect() as c:
        c.sendall(post_bytes("/v1/completions", {**gone, "stream": stream}))
        while s.stats()["running"] == 0:
            time.sleep(0.005)
    check(f"a client that disconnects is noticed all the same (stream {stream})", s.idle() and s.stats()["cancelled"] > 0, s.stats())

# ---- Connections ----
busy = [s.connect(60) for _ in range(8)]
for c in busy:
    c.sendall(post_bytes("/v1/completions", gone))
time.sleep(0.3)
got = []
for _ in range(5):
    with s.connect() as c:
        got.append(c.recv(4096))
check("over --max-connections: 503 with Retry-After and a sentence", all(g.startswith(b"HTTP/1.1 503") and b"Retry-After: " in g and b"in use" in g for g in got), got)
check("and a line in the log", "all 8 connections are in use" in s.said(), s.said())
for c in busy:
    c.close()
while s.get("/health")[0] != 200:
    time.sleep(0.05)
text = s.get("/metrics")[1].decode()
metric = {l.split("{")[0].split(" ")[0]: float(l.rsplit(" ", 1)[1]) for l in text.splitlines() if l and l[0] != "#"}
check("and counted", metric["lateen_connections_refused_total"] >= 5, metric["lateen_connections_refused_total"])

# ---- Metrics ----
with open(f"/proc/{s.p.pid}/statm") as f:
    pages = [int(w) * resource.getpagesize() for w in f.read().split()[:2]]
near = lambda name, value, part: abs(metric[name] - value) <= part * value
check("process_*: memory, time and descriptors as the kernel has them",
      near("process_virtual_memory_bytes", pages[0], 0.2) and near("process_resident_memory_bytes", pages[1], 0.3) and 0 < metric["process_cpu_seconds_total"] < 600 and
      abs(metric["process_start_time_seconds"] - time.time()) < 200 and abs(metric["process_open_fds"] - len(os.listdir(f"/proc/{s.p.pid}/fd"))) <= 3 and
      metric["process_max_fds"] >= 8, {k: v for k, v in metric.items() if k.startswith("process")})
if shutil.which("promtool"):
    told = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, text=True).stderr.splitlines()
    theirs = [l for l in told if re.match(r"(vllm|llamacpp):\S+ metric names should not contain ':'$", l)]
    check("promtool: nothing but the names that are vLLM's and llama-server's", set(told) - set(theirs) == {
        "vllm:iteration_tokens_total non-counter metrics should not have \"_total\" suffix", 'llamacpp:n_tokens_max counter metrics should have "_total" suffix'}, set(told) - set(theirs))
else:
    serve_client.tap.skip("promtool", "not installed (packages-test.txt: prometheus)")
accept = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
status, body = s.ask(f"GET /metrics HTTP/1.1\r\nHost: x\r\nAccept: {accept}\r\nConnection: close\r\n\r\n".encode())
check("OpenMetrics for a client that prefers it", status == 200 and body.endswith(b"\n# EOF\n") and b"# TYPE lateen_connections_refused counter\n" in body and b'le="1.0"' in body, body[-80:])
s.end()


# ---- TLS ----
def make_certificate(name, key="tls.key"):
    at = [os.path.join(serve_client.scratch, f) for f in (name, key)]
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2", "-subj", "/CN=localhost",
                    "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1", "-out", at[0], "-keyout", at[1]], check=True, capture_output=True)
    return at


def tls_connect(server, trusted, timeout=20, **limits):
    context = ssl.create_default_context(cafile=trusted)
    for name, value in limits.items():
        setattr(context, name, value)
    return context.wrap_socket(socket.create_connection(("127.0.0.1", server.port), timeout=timeout), server_hostname="localhost")


def read_all(c):
    got = b""
    while part := c.recv(65536):
        got += part
    return got


cert, key_file = make_certificate("tls.crt")
for flags, said in ((("--tls-cert", cert), "must be given together"), (("--tls-cert", cert, "--tls-key", cert), "tls-key"), (("--tls-cert", "/nothing", "--tls-key", key_file), "tls-cert /nothing"),
                    (("--tls-cert", key_file, "--tls-key", key_file), "tls-cert"), (("--tls-cert", cert, "--tls-key", make_certificate("other.crt", "other.key")[1]), "key values mismatch")):
    code, text = refused(*flags)
    check(f"TLS: {' '.join(os.path.basename(f) for f in flags)}: not started, the message names it", code in (1, 2) and said in text, text)
s = Server("--tls-cert", cert, "--tls-key", key_file, ready=False)
ask = post_bytes("/v1/completions", {"prompt": "Once", "max_tokens": 8})


def tls_ask(data, trusted=cert):
    with tls_connect(s, trusted) as c:
        c.sendall(data)
        return read_all(c)


end = time.time() + 20
while not tls_ask(head("GET", "/health")).startswith(b"HTTP/1.1 200") and time.time() < end:
    time.sleep(0.05)
got = tls_ask(post_bytes("/v1/completions", {"prompt": "Once", "max_tokens": 8}, "close"))
check("TLS: a completion", got.startswith(b"HTTP/1.1 200") and b'"text":' in got, got[:200])
got = tls_ask(post_bytes("/v1/completions", {"prompt": "Once", "max_tokens": 50, "stream": True}, "close"))
check("TLS: a stream, whole", got.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n"), got[-100:])
with tls_connect(s, cert) as c:
    c.sendall(ask * 5 + head("GET", "/version"))
    check("TLS: pipelined requests on one connection", read_all(c).count(b"HTTP/1.1 200") == 6)
big = json.dumps({"content": "a b " * 1_000_000}).encode()
got = tls_ask(head("POST", "/tokenize", f"Content-Length: {len(big)}") + big)
check("TLS: a body of 4 MB and its answer", got.startswith(b"HTTP/1.1 200") and len(got) > 4_000_000, (len(got), got[:100]))
got = subprocess.run(["curl", "-s", "--cacert", cert, f"https://localhost:{s.port}/v1/models"], capture_output=True).stdout
check("TLS: curl", b'"object":"list"' in got, got)
got = subprocess.run(["openssl", "s_client", "-connect", f"127.0.0.1:{s.port}", "-alpn", "h2,http/1.1"], input=b"", capture_output=True).stdout
check("TLS: openssl s_client: at least 1.2, http/1.1", re.search(rb"TLSv1\.[23]", got) and b"ALPN protocol: http/1.1" in got, got[-300:])
got = subprocess.run(["openssl", "s_client", "-connect", f"127.0.0.1:{s.port}", "-tls1_1", "-cipher", "ALL:@SECLEVEL=0"], input=b"", capture_output=True)
check("TLS 1.1 is refused", b"Cipher is (NONE)" in got.stdout, got.stdout[-300:])
with tls_connect(s, cert, maximum_version=ssl.TLSVersion.TLSv1_2) as c:
    c.sendall(head("GET", "/health"))
    check("TLS 1.2 is spoken", c.version() == "TLSv1.2" and read_all(c).startswith(b"HTTP/1.1 200"))
with s.connect(5) as c:  # Plain bytes.
    c.sendall(head("GET", "/health"))
    try:
        plain = read_all(c)
    except (ConnectionResetError, TimeoutError):
        plain = b""
check("TLS: plain HTTP gets no answer of the API", not plain.startswith(b"HTTP/1.1 200"), plain)
with tls_connect(s, cert) as c:
    c.sendall(post_bytes("/v1/completions", gone))
    while b'"running":0' in tls_ask(head("GET", "/status.json")):
        time.sleep(0.01)
end = time.time() + 20
while b'"running":0' not in (stat := tls_ask(head("GET", "/status.json"))) and time.time() < end:
    time.sleep(0.02)
check("TLS: a client that disconnects is cancelled", b'"running":0' in stat and b'"cancelled":0' not in stat, stat)

kept = tls_connect(s, cert)
kept.sendall(head("GET", "/health").replace(b"Connection: close\r\n", b""))
kept.recv(65536)


def served():
    with tls_connect_any() as c:
        return c.getpeercert(True)


def tls_connect_any():
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context.wrap_socket(socket.create_connection(("127.0.0.1", s.port), timeout=20))


def within(seconds, true):
    by = time.time() + seconds
    while not true() and time.time() < by:
        time.sleep(0.1)
    return true()


first = served()
fresh = make_certificate("fresh.crt", "fresh.key")
os.replace(fresh[0], cert)  # For a moment the certificate belongs to another key.
check("TLS: a certificate that does not fit its key: the previous one stays in use, and the log says so",
      within(20, lambda: "the previous one stays in use" in s.said() and "key values mismatch" in s.said()) and served() == first, s.said())
os.replace(fresh[1], key_file)
check("TLS: with its key it is served, without a restart", within(20, lambda: served() != first) and "was read again" in s.said(), s.said())
kept.sendall(head("GET", "/health"))
check("TLS: and an earlier connection continues", read_all(kept).startswith(b"HTTP/1.1 200"))
second = served()
with open(cert, "w") as f:
    f.write("rubbish")
check("TLS: garbage in its place: the last good one stays in use", within(20, lambda: s.said().count("the previous one stays in use") >= 2) and served() == second, s.said())
files = len(os.listdir(f"/proc/{s.p.pid}/fd"))
for i in range(150):
    with s.connect() as c:
        c.sendall(b"\x16\x03\x01\x02\x00rubbish"[: 3 + i % 9])
check("TLS: broken handshakes leave nothing behind", within(20, lambda: len(os.listdir(f"/proc/{s.p.pid}/fd")) <= files + 2), (files, len(os.listdir(f"/proc/{s.p.pid}/fd"))))
check("TLS: SIGHUP: exit 0", s.end(signal.SIGHUP) == 0)
serve_client.finish()
