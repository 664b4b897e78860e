"""Start a `lateen serve` and send it requests as bytes; for serve_abuse.py and serve_safe.py. Standard library only.

    s = Server(["build/lateen", "serve", MODEL], "--quiet", ...); s.post("/v1/completions", {...}); s.end()"""
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import time

from tap import Tap

scratch = tempfile.mkdtemp()
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 20000), hard))
tap = Tap()
check = tap.check


def finish():
    subprocess.run(["rm", "-rf", scratch])
    sys.exit(tap.end())


def words_of(model, tokenizer):
    """How a model is named on the command line; without a tokenizer it is in the model's file."""
    return [model] + (["--tokenizer", tokenizer] if tokenizer else [])


class Server:
    def __init__(self, command, *flags, port=0, soft=None, ready=True, limit=None, env=None):
        """soft: its limit of descriptors; limit: called in the new process; env: variables in
        addition to this process's."""
        def prepare():
            if soft:
                resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            if limit:
                limit()
        self.err = tempfile.TemporaryFile(dir=scratch)
        self.p = subprocess.Popen([*command, "--port", str(port), *flags], stdout=subprocess.PIPE,
                                  stderr=self.err, text=True, preexec_fn=prepare, env={**os.environ, **(env or {})})
        line = self.p.stdout.readline().strip()
        self.port = int(line.rsplit(":", 1)[1]) if line else 0
        while ready and self.p.poll() is None and self.get("/health")[0] != 200:
            time.sleep(0.02)

    def connect(self, timeout=20):
        return socket.create_connection(("127.0.0.1", self.port), timeout=timeout)

    def ask(self, data, timeout=20):
        """(status, body) of one exchange with Connection: close."""
        with self.connect(timeout) as s:
            try:
                s.sendall(data)
                got = b""
                while part := s.recv(65536):
                    got += part
            except (ConnectionResetError, BrokenPipeError):
                pass
        head, _, body = got.partition(b"\r\n\r\n")
        return (int(head.split()[1]) if head.startswith(b"HTTP/1.1 ") else 0), body

    def get(self, path, method="GET"):
        return self.ask(f"{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())

    def post(self, path, body, timeout=60):
        return self.ask(post_bytes(path, body, "close"), timeout)

    def stats(self):
        return json.loads(self.get("/status.json")[1])

    def idle(self, seconds=20):
        end = time.time() + seconds
        while time.time() < end:
            s = self.stats()
            if s["requests"] == 0 and s["running"] == 0:
                return True
            time.sleep(0.05)
        return False

    def end(self, sig=signal.SIGTERM, timeout=30):
        self.p.send_signal(sig)
        try:
            return self.p.wait(timeout)
        except subprocess.TimeoutExpired:
            self.p.kill()
            return None

    def said(self):
        self.err.seek(0)
        return self.err.read().decode()


def post_bytes(path, body, connection="keep-alive"):
    b = json.dumps(body).encode()
    return f"POST {path} HTTP/1.1\r\nHost: x\r\nConnection: {connection}\r\nContent-Length: {len(b)}\r\n\r\n".encode() + b


def exchange(s, method, path, body=b"", key="one", kind="application/json"):
    """One exchange with an API key; (status, body)."""
    status, text = s.ask(f"{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nAuthorization: Bearer {key}\r\nContent-Type: {kind}\r\n"
                         f"Content-Length: {len(body)}\r\n\r\n".encode() + body)
    return status, text


def call(s, method, path, body=None, key="one"):
    status, text = exchange(s, method, path, json.dumps(body).encode() if body is not None else b"", key)
    return status, json.loads(text)


def form(parts, boundary="b0undary"):
    out = b""
    for name, value in parts.items():
        extra = b'; filename="in.jsonl"' if name == "file" else b""
        out += f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"'.encode() + extra + b"\r\n\r\n" + value + b"\r\n"
    return out + f"--{boundary}--\r\n".encode()


def upload(s, data, key="one", purpose=b"batch", **more):
    body = form({"purpose": purpose, **more, "file": data})
    status, text = exchange(s, "POST", "/v1/files", body, key, "multipart/form-data; boundary=b0undary")
    return status, json.loads(text)
