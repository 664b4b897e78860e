"""Several models in one server: names, loading, memory, keys, Ollama's view, shutdown. TAP on stdout.

usage: serve_models.py LATEEN
Starts servers of its own. The models are stories260K under several names, and a reward model that embeds; a folder is broken on purpose."""
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request

from tap import Tap

lateen = sys.argv[1]
tap = Tap()
check, case = tap.check, tap.case
here = tempfile.mkdtemp()
stories, ids, reward = "tests/golden/stories260k/stories260K.bin", "tests/golden/stories260k/tok512.bin", "tests/golden/serve/reward"
once = {"prompt": "Once upon a time", "max_tokens": 24, "temperature": 0}


class Server:
    def __init__(self, *flags, models="", ready=True):
        self.path = os.path.join(here, "models.yaml")
        with open(self.path, "w") as f:
            f.write(models)
        more = ["--models", self.path] if models else []
        self.errors = open(os.path.join(here, "errors"), "w+")
        self.process = subprocess.Popen([lateen, "serve", *flags, *more, "--port", "0"], stdout=subprocess.PIPE, stderr=self.errors, text=True)
        self.url = self.process.stdout.readline().strip()
        if ready:
            until("the server is ready", lambda: self.get("/health")[0] == 200)

    def call(self, path, body=None, key=None, timeout=60):
        data = body if isinstance(body, (bytes, type(None))) else json.dumps(body).encode()
        headers = {"content-type": "application/json", **({"authorization": "Bearer " + key} if key else {})}
        try:
            with urllib.request.urlopen(urllib.request.Request(self.url + path, data, headers), timeout=timeout) as r:
                return r.status, r.read().decode()
        except urllib.error.HTTPError as e:
            return e.code, e.read().decode()

    def get(self, path, key=None):
        return self.call(path, key=key)

    def post(self, path, key=None, **body):
        status, text = self.call(path, body, key)
        return status, json.loads(text)

    def text(self, model, key=None, **more):
        status, r = self.post("/v1/completions", key, model=model, **{**once, **more})
        return r["choices"][0]["text"] if status == 200 else (status, r["error"]["message"])

    def states(self, key=None):
        return {m["id"]: m["status"]["value"] for m in json.loads(self.get("/v1/models", key)[1])["data"]}

    def loads(self, name):
        page = self.get("/metrics")[1].splitlines()
        return [int(float(x.split()[-1])) for x in page if x.startswith(f'lateen_model_loads_total{{model_name="{name}"')][0]

    def end(self):
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)

    def said(self):
        self.errors.seek(0)
        return self.errors.read()


def until(what, true):
    deadline = time.monotonic() + 60
    while not true():
        if time.monotonic() > deadline:
            raise TimeoutError(what)
        time.sleep(0.02)


def row(name, **options):
    return f"{name}: {json.dumps({'path': stories, 'tokenizer': ids, 'max-running': 4, **options})}\n"


expected = Server(stories, "--tokenizer", ids)
want = expected.text(None)
expected.end()
broken = os.path.join(here, "broken")
os.mkdir(broken)
shutil.copy(os.path.join(reward, "config.json"), broken)


@case
def names():
    s = Server(stories, "--tokenizer", ids, "--alias", "first",
               models=row("second", alias=["gpt-4o-mini", "two"], context=128) + row("third", path=reward) + row("broken", path=broken))
    check("only the first is loaded at the start", s.states() == {"first": "loaded", "second": "unloaded", "third": "unloaded", "broken": "unloaded"}, s.states())
    check("no model is named: the first", s.text(None) == want and s.text("first") == want)
    status, r = s.post("/v1/completions", **once, model="two")
    check("an alias loads its model, which answers by its name", status == 200 and r["model"] == "second" and r["choices"][0]["text"] == want, r)
    check("it is loaded", s.states()["second"] == "loaded" and s.states()["third"] == "unloaded", s.states())
    card = json.loads(s.get("/v1/models/gpt-4o-mini")[1])
    check("each has its own context", card["id"] == "second" and card["max_model_len"] == 128 and card["aliases"] == ["gpt-4o-mini", "two"], card)
    status, r = s.post("/v1/completions", **once, model="nobody")
    check("an unknown name is 404", status == 404 and r["error"]["code"] == "model_not_found" and "'second'" in r["error"]["message"], r)
    status, r = s.post("/v1/chat/completions", model="nobody", messages=[{"role": "user", "content": "x"}])
    check("of chats, too", status == 404 and r["error"]["param"] == "model", r)
    status, r = s.post("/v1/messages", model="two", max_tokens=4, messages=[{"role": "user", "content": "Once"}])
    check("Anthropic's endpoint", status == 200 and r["model"] == "second", r)
    status, r = s.post("/v1/embeddings", model="third", input="x")
    check("a model that embeds beside those that write", status == 200 and len(r["data"][0]["embedding"]) == 16, r)
    status, r = s.post("/v1/completions", **once, model="broken")
    check("what cannot be loaded: the reason", status == 500 and r["error"]["code"] == "model_load_failed" and "broken" in r["error"]["message"], r)
    for _ in range(5):
        s.post("/v1/completions", **once, model="broken")
    check("it is not tried for each request", s.said().count("broken could not be loaded") == 1, s.said())
    check("the list says that it failed", [m["status"].get("failed") for m in json.loads(s.get("/v1/models")[1])["data"]] == [None, None, None, True])
    body = json.dumps({**once, "model": "two"}).encode()
    status, text = s.call("/v1/completions", body + b" " * 300000)
    check("a large body finds its model", status == 200 and json.loads(text)["model"] == "second", text)
    status, text = s.call("/v1/completions", b"{" + b" " * 300000)
    check("a large body that is no JSON", status == 400, text)
    check("so does a small one", s.call("/v1/completions", b"{")[0] == 400 and s.call("/v1/completions", b"[1]")[0] == 400)
    status, r = s.post("/tokenize", model="second", content="Once upon a time")
    check("tokens by a model", status == 200 and len(r["tokens"]) > 0, r)
    check("the query names the model", json.loads(s.get("/props?model=second")[1])["model_alias"] == "second" and s.get("/props?model=nobody")[0] == 404
          and s.get("/props?model=broken")[0] == 503)
    check("metrics have the model's name", 'vllm:generation_tokens_total{model_name="second",engine="0"}' in s.get("/metrics")[1])
    s.post("/models/unload", model="second")
    until("second is unloaded", lambda: s.states()["second"] == "unloaded")
    check("llama-server's /models/unload, and a request loads it again", s.text("second") == want and s.loads("second") == 2, s.loads("second"))
    check("/models/load", s.post("/models/load", model="nobody")[0] == 404 and s.post("/models/load", model="second") == (200, {"success": True}))
    check("SIGTERM ends it cleanly", s.end() == 0, s.said())


@case
def ollama():
    s = Server(models=row("one") + row("two"))
    tags = lambda path: sorted(m["name"] for m in json.loads(s.get(path)[1])["models"])
    check("tags has all, ps those that are loaded", tags("/api/tags") == ["one:latest", "two:latest"] and tags("/api/ps") == [], tags("/api/ps"))
    check("without MODEL the first of the file answers", s.text(None) == want and tags("/api/ps") == ["one:latest"])
    check("a generation loads", s.post("/api/generate", model="two:latest", prompt="x", stream=False, options={"num_predict": 2}, keep_alive="1h")[0] == 200
          and tags("/api/ps") == ["one:latest", "two:latest"], tags("/api/ps"))
    when = [m["expires_at"] for m in json.loads(s.get("/api/ps")[1])["models"]]
    check("keep_alive sets when it ends", when[1] < when[0], when)
    check("no prompt: it is loaded", s.post("/api/generate", model="two")[1]["done_reason"] == "load")
    check("keep_alive 0 without a prompt: it is unloaded", s.post("/api/generate", model="two", keep_alive=0)[1]["done_reason"] == "unload")
    until("two is unloaded", lambda: tags("/api/ps") == ["one:latest"])
    s.post("/api/chat", model="one", messages=[{"role": "user", "content": "x"}], stream=False, options={"num_predict": 2}, keep_alive="20ms")
    until("one is unloaded", lambda: tags("/api/ps") == [])
    check("a duration that is not valid", s.post("/api/generate", model="two", prompt="x", keep_alive="soon")[0] == 400)
    check("a model that is not served", s.post("/api/generate", model="three", prompt="x")[0] == 404 and s.post("/api/generate", prompt="x")[0] == 400)
    check("SIGTERM ends it cleanly", s.end() == 0, s.said())


@case
def memory():
    models = "".join(row(n) for n in "abc")
    s = Server("--models-memory", "6000000", models=models)
    check("loaded as asked for", s.text("a") == want and s.text("b") == want and s.states() == {"a": "loaded", "b": "loaded", "c": "unloaded"}, s.states())
    s.text("a")
    check("the third is answered", s.text("c") == want)
    until("what was used least recently makes room", lambda: s.states() == {"a": "loaded", "b": "unloaded", "c": "loaded"})
    s.end()
    s = Server("--models-memory", "2500000", models=models)
    answers = {}
    threads = [threading.Thread(target=lambda i=i: answers.update({i: s.text("abc"[i % 3], max_tokens=24)})) for i in range(18)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    check("room for one: requests for three at once are all answered", [answers.get(i) for i in range(18)] == [want] * 18, answers)
    busy = True

    def keep_busy():
        while busy:
            s.text("a", max_tokens=100, ignore_eos=True)
    threads = [threading.Thread(target=keep_busy) for _ in range(3)]
    [t.start() for t in threads]
    until("a is busy", lambda: s.states()["a"] == "loaded")
    others = s.text("b"), s.text("c")
    busy = False
    [t.join() for t in threads]
    check("a model that is never idle makes room for others", others == (want, want), others)
    until("one is loaded in the end", lambda: sorted(s.states().values()) == ["loaded", "unloaded", "unloaded"])
    s.end()
    s = Server("--models-memory", "1000000", models=models)
    status, why = s.text("a")
    check("none fits: the numbers", status == 500 and "--models-memory" in why and "MiB" in why, why)
    s.end()
    s = Server("--models-idle-s", "0.05", models=models)
    check("idle: answered", s.text("a") == want)
    until("idle models are unloaded", lambda: s.states()["a"] == "unloaded")
    check("idle: unloaded, and loaded again", s.text("a") == want)
    s.end()


@case
def keys():
    path = os.path.join(here, "keys")
    with open(path, "w") as f:
        f.write("all\nsome models=b,charlie\n")
    s = Server("--api-key-file", path, models=row("a") + row("b") + row("c", alias="charlie"))
    check("a key for all models", s.text("a", "all") == want and list(s.states("all")) == ["a", "b", "c"])
    check("a key for some", s.text("b", "some") == want and s.text("c", "some") == want and list(s.states("some")) == ["b", "c"], s.states("some"))
    check("not for others", s.text("a", "some")[0] == 403 and s.text(None, "some")[0] == 403 and s.get("/v1/models/a", "some")[0] == 404)
    check("no key", s.text("a")[0] == 401)
    s.end()
    with open(path, "a") as f:
        f.write("first models=a")
    s = Server("--api-key-file", path, models=row("b", alias="charlie") + row("a"))
    check("no model is named, and the first is not allowed", s.text(None, "first")[0] == 403 and s.text("a", "first") == want)
    s.end()


@case
def end():
    s = Server(models=row("a") + row("b"))
    s.text("a"), s.text("b")
    got = {}

    def stream(name):
        body = json.dumps({**once, "model": name, "max_tokens": 300, "stream": True, "ignore_eos": True}).encode()
        with urllib.request.urlopen(urllib.request.Request(s.url + "/v1/completions", body, {"content-type": "application/json"}), timeout=60) as r:
            got[name, "first"] = r.readline()
            got[name] = r.read().decode()
    threads = [threading.Thread(target=stream, args=(n,)) for n in "ab"]
    [t.start() for t in threads]
    until("both run", lambda: ("a", "first") in got and ("b", "first") in got)
    code = s.end()
    [t.join() for t in threads]
    check("SIGTERM lets the requests of all models end", code == 0 and all(got[n].endswith("data: [DONE]\n\n") for n in "ab"), (code, got))


@case
def batches():
    s = Server("--state", os.path.join(here, "state"), models=row("a") + row("b"))
    lines = [{"custom_id": n, "method": "POST", "url": "/v1/completions", "body": {**once, "model": n}} for n in ("a", "b", "nobody")]
    form = "--x\r\ncontent-disposition: form-data; name=\"purpose\"\r\n\r\nbatch\r\n--x\r\ncontent-disposition: form-data; name=\"file\"; filename=\"f\"\r\n\r\n" \
        + "".join(json.dumps(x) + "\n" for x in lines) + "\r\n--x--\r\n"
    r = urllib.request.Request(s.url + "/v1/files", form.encode(), {"content-type": "multipart/form-data; boundary=x", "authorization": "Bearer any"})
    with urllib.request.urlopen(r, timeout=60) as answer:
        file = json.load(answer)["id"]
    batch = s.post("/v1/batches", input_file_id=file, endpoint="/v1/completions", completion_window="24h")[1]["id"]
    state = lambda: json.loads(s.get("/v1/batches/" + batch)[1])
    until("the batch is done", lambda: state()["status"] == "completed")
    results = {x["custom_id"]: x["response"] for x in map(json.loads, s.get(f"/v1/files/{state()['output_file_id']}/content")[1].splitlines())}
    check("a batch's lines go to their models", [results[n]["body"]["choices"][0]["text"] for n in "ab"] == [want] * 2 and results["b"]["body"]["model"] == "b", results)
    s.end()


@case
def refused():
    def key_file(text):
        with open(os.path.join(here, "key"), "w") as f:
            f.write(text)
        return f.name

    def why(*flags, models=""):
        s = Server(*flags, models=models, ready=False)
        s.process.wait(60)
        # There is no address, because nothing was served.
        return s.process.returncode, s.said() + s.url
    for name, word, told in (("two of one name", "answer to the name 'x'", why(models=row("x") + row("y", alias="x"))),
                             ("a path that is not there", "no such file", why(models=row("x", path="/nowhere"))),
                             ("an option that is none", "contxt", why(models=row("x", contxt=1))),
                             ("no path", "has no path", why(models="x: {context: 5}\n")),
                             ("a list that is none", "NAME=PATH", why("--models", "x")),
                             ("MODEL cannot be loaded", "header", why("README.md", models=row("x"))),
                             ("a key for a model that is none", "'z', which is not served", why(stories, "--tokenizer", ids, "--api-key-file", key_file("a models=z"))),
                             ("a second MODEL", "--models NAME=PATH", why(stories, "--model", f"x={stories}", "--tokenizer", ids)),
                             ("memory without models", "--models", why(stories, "--tokenizer", ids, "--models-memory", "5"))):
        check("refused: " + name, told[0] != 0 and word in told[1] and "http:" not in told[1], told)
    s = Server("--models", f"p={stories},q={stories}", "--tokenizer", ids, ready=False)
    until("listening", lambda: s.url != "")
    check("NAME=PATH,..., with the tokenizer of the command line", list(s.states()) == ["p", "q"] and s.text("q") == want)
    s.end()


shutil.rmtree(here)
sys.exit(tap.end())
