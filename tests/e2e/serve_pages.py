"""The pages of `lateen serve` in headless Chromium: ask, stream, stop, regenerate, several samples, keyboard, phone width, reload. TAP.

usage: serve_pages.py BASE_URL CHROMIUM [--shots FOLDER]
Chromium is driven over its DevTools pipe (file descriptors 3 and 4), with the standard library only."""
import base64
import json
import os
import subprocess
import sys
import tempfile
import time

base, chromium = sys.argv[1], sys.argv[2]
shots = sys.argv[4] if len(sys.argv) > 4 else None
count = failed = 0


def check(name, ok, detail=""):
    global count, failed
    count += 1
    failed += not ok
    print(f"{'ok' if ok else 'not ok'} {count} - {name}" + (f"\n  # {str(detail)[:400]}" if not ok else ""), flush=True)


class Browser:
    def __init__(self):
        to_child, self.out = os.pipe()
        self.inp, from_child = os.pipe()
        self.profile = tempfile.TemporaryDirectory()

        def wire():  # Away from 3 and 4 first: they may be among the pipe's own ends.
            a, b = os.dup2(to_child, 30), os.dup2(from_child, 31)
            os.dup2(a, 3), os.dup2(b, 4)

        self.process = subprocess.Popen(
            [chromium, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--remote-debugging-pipe",
             f"--user-data-dir={self.profile.name}", "about:blank"], preexec_fn=wire, close_fds=False,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(to_child), os.close(from_child)
        self.n, self.data, self.events, self.session = 0, b"", [], None
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.send(domain + ".enable")

    def read(self):
        while b"\0" not in self.data:
            part = os.read(self.inp, 1 << 20)
            if not part:
                raise RuntimeError("chromium has gone")
            self.data += part
        line, self.data = self.data.split(b"\0", 1)
        return json.loads(line)

    def send(self, method, **params):
        self.n += 1
        message = {"id": self.n, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.out, json.dumps(message).encode() + b"\0")
        while True:
            got = self.read()
            if got.get("id") == self.n:
                if "error" in got:
                    raise RuntimeError(f"{method}: {got['error']}")
                return got["result"]
            self.events.append(got)

    def js(self, code):
        r = self.send("Runtime.evaluate", expression=code, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in r:
            raise RuntimeError(r["exceptionDetails"])
        return r["result"].get("value")

    def wait(self, code, seconds=20):
        end = time.time() + seconds
        while time.time() < end:
            if self.js(code):
                return True
            time.sleep(0.1)
        return False

    def go(self, path):
        self.send("Page.navigate", url=base + path)
        self.wait("document.readyState === 'complete'")

    def size(self, width, height, mobile=False):
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=mobile)

    def key(self, key, code=0, text=""):
        for kind in ("keyDown", "keyUp"):
            self.send("Input.dispatchKeyEvent", type=kind, key=key, windowsVirtualKeyCode=code, text=text if kind == "keyDown" else "")

    def words(self, text):
        self.send("Input.insertText", text=text)

    def shot(self, name):
        if shots:
            data = base64.b64decode(self.send("Page.captureScreenshot", format="png")["data"])
            with open(os.path.join(shots, name + ".png"), "wb") as f:
                f.write(data)

    def scheme(self, value):
        self.send("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": value}])

    def close(self):
        self.process.terminate()
        self.process.wait()


def settings(**kw):
    code = "".join(f"document.getElementById('{k}').value = {json.dumps(str(v))};" for k, v in kw.items())
    b.js("document.getElementById('settings').click(); " + code + "document.querySelector('#panel .primary').click(); true")
    b.wait("!document.getElementById('panel').open")
    b.wait(" && ".join(f"String(settings.{k}) === {json.dumps(str(v))}" for k, v in kw.items()), 5)


IDLE = "document.getElementById('send').textContent === 'Send'"
ANSWER = "document.querySelector('.turn.assistant:last-child .body')?.textContent.length ?? 0"
b = Browser()
b.size(1200, 800)
b.go("/")
check("chat: the model's name is shown", b.wait("document.getElementById('model').textContent.length > 2"))
PAPER, RESTS = "document.getElementById('paper').value", "document.getElementById('send').textContent === 'Write on'"
check("write: a model without a chat template gets a page to write on", b.wait("!document.getElementById('desk').hidden")
      and b.js("document.activeElement.id") == "paper" and b.js("document.getElementById('mode').value") == "write")
b.shot("write_empty")
settings(max_tokens=24, temperature=0)
b.js("document.getElementById('paper').focus()")
b.words("Once")
b.js("document.getElementById('paper').dispatchEvent(new KeyboardEvent('keydown', { key: 'Enter', ctrlKey: true, bubbles: true })); true")
check("write: the model goes on behind the text", b.wait(f"{PAPER}.startsWith('Once upon a time, there was')") and b.wait(RESTS), b.js(PAPER))
check("write: tokens per second are told", "tok/s" in b.js("document.getElementById('hint').textContent"), b.js("document.getElementById('hint').textContent"))
b.shot("write")
b.js("document.getElementById('undo').click(); true")
check("write: undo takes it back", b.js(PAPER) == "Once")
settings(n=3, temperature=1)
b.js("document.getElementById('send').click(); true")
check("write: three drafts", b.wait("document.querySelectorAll('#drafts button:enabled').length === 3") and b.wait(RESTS))
b.shot("write_drafts")
b.js("document.querySelectorAll('#drafts button')[1].click(); true")
check("write: one is taken", len(b.js(PAPER)) > 10 and b.js("document.querySelectorAll('#drafts button').length") == 0, b.js(PAPER))
settings(n=1)
b.js("setPaper('Once upon a time there was a dog. '.repeat(200)); true")
b.js("document.getElementById('send').click(); true")
check("write: a text over the context goes on from its end", b.wait("document.getElementById('hint').textContent.includes('out of sight')"), b.js("document.getElementById('hint').textContent"))
b.size(390, 844, True)
check("write: fits a phone", b.js("document.documentElement.scrollWidth") <= 390
      and b.js("[...document.querySelectorAll('header *, #send, #undo')].every(e => e.getBoundingClientRect().right <= 390)"))
b.shot("write_phone")
b.size(1200, 800)
b.js("document.getElementById('new').click(); const m = document.getElementById('mode'); m.value = 'chat'; m.dispatchEvent(new Event('change')); true")
b.shot("empty")
check("chat: the message has the focus", b.js("document.activeElement.id") == "words")
settings(max_tokens=60, temperature=0)
b.js("document.getElementById('words').focus()")
b.words("Once upon a time")
b.key("Enter", 13, "\r")
check("chat: an answer streams", b.wait(f"({ANSWER}) > 5"))
check("chat: it ends", b.wait(IDLE))
foot = b.js("document.querySelector('.turn.assistant .foot span').textContent")
check("chat: tokens per second are told", "tok/s" in foot and "tokens" in foot, foot)
b.shot("answer")
first = b.js("document.querySelector('.turn.assistant .body').textContent")
b.js("document.querySelector('.again').click(); true")
check("chat: regenerate gives one answer again", b.wait(IDLE) and b.wait(f"({ANSWER}) > 5")
      and b.js("document.querySelectorAll('.turn').length") == 2)
check("chat: greedy regenerates the same", b.wait(IDLE) and b.js("document.querySelector('.turn.assistant .body').textContent") == first)
b.go("/")
check("chat: the conversation outlives a reload", b.js("document.querySelectorAll('.turn').length") == 2)
settings(n=3, temperature=1.2)
b.js("document.getElementById('words').focus()")
b.words("And then?")
b.key("Enter", 13, "\r")
check("chat: three samples side by side", b.wait("document.querySelectorAll('.turn:last-child .sample').length === 3") and b.wait(IDLE))
lefts = b.js("[...document.querySelectorAll('.turn:last-child .sample')].map(e => Math.round(e.getBoundingClientRect().left))")
check("chat: they stand beside each other", len(set(lefts)) == 3, lefts)
b.shot("samples")
b.js("[...document.querySelectorAll('.turn:last-child .sample button')].filter(e => e.textContent === 'Go on with this')[1].click(); true")
check("chat: one is chosen", b.js("document.querySelectorAll('.sample.chosen').length") == 1)
settings(n=1, max_tokens="", temperature=1)
b.js("document.getElementById('words').focus()")
b.words("Tell a long story")
b.key("Enter", 13, "\r")
b.wait(f"({ANSWER}) > 5")
b.key("Escape", 27)
check("chat: one sample again", b.js("document.querySelectorAll('.turn:last-child .sample').length") == 1, b.js("JSON.stringify(settings)"))
check("chat: Escape stops", b.wait(IDLE, 5))
check("chat: what was written stays", b.js(ANSWER) > 0)
b.js("document.getElementById('words').focus()")
b.key("ArrowUp", 38)
check("keyboard: arrow up edits the last message", b.js("document.getElementById('words').value") == "Tell a long story")
b.js("document.getElementById('words').value = ''; turns.push({ role: 'user', text: 'Reason' }, { role: 'assistant', chosen: 0, samples: [{ think: 'Let me see.\\nYes.', "
     "thought: 1.5, text: 'It is so:\\n\\n```c\\nint x;\\n```\\n\\n- a\\n- **b** <script>', stats: { tokens: 9, rate: 30 }, done: true }] }); draw(); toEnd(); true")
check("chat: reasoning is folded", b.js("(d => !d.open && d.textContent.startsWith('Thought for 1.5 s'))(document.querySelector('details.think'))"))
check("chat: code has a button to copy it, and text is never HTML", b.js("document.querySelectorAll('.code button').length") == 1
      and b.js("document.querySelectorAll('.turn script').length") == 0)
b.js("turns.push({ role: 'assistant', chosen: 0, samples: [{ text: 'Three:\\n1. one\\n\\n2. two\\n\\n7) seven\\nand:\\n- a\\n- b\\n## End\\nbye', stats: { tokens: 1 }, done: true }] }); draw(); true")
marked = b.js("(e => [[...e.children].map(c => c.tagName).join(' '), [...e.querySelectorAll('ol li')].map(l => l.value).join(' ')].join('; '))(document.querySelector('.turn:last-child .body'))")
check("chat: lists behind a line, numbers over empty lines, a heading", marked == "P OL OL OL P UL H3 P; 1 2 7", marked)
b.shot("lists")
b.js("turns.pop(); draw(); true")
b.js("document.querySelector('.code button').click(); true")
check("chat: copying is told", b.wait("document.querySelector('.code button').textContent !== 'Copy'", 5))
b.shot("reasoning")
b.js("document.querySelector('details.think summary').focus(); true")
b.key("Enter", 13, "\r")
check("keyboard: Enter unfolds it", b.wait("document.querySelector('details.think').open", 5))
b.js("turns.length -= 2; save(); draw(); true")
b.size(390, 844, True)
b.go("/")
b.wait("document.querySelectorAll('.turn').length > 0")
check("phone: nothing wider than the screen", b.js("document.documentElement.scrollWidth") <= 390
      and b.js("document.getElementById('scroll').scrollWidth") <= 390, b.js("document.documentElement.scrollWidth"))
check("phone: send is on the screen", b.js("(r => r.right <= 390 && r.bottom <= 844)(document.getElementById('send').getBoundingClientRect())"))
b.shot("phone")
b.js("document.getElementById('settings').click(); true")
b.shot("phone_settings")
check("phone: settings fit", b.js("(r => r.left >= 0 && r.right <= 390 && r.bottom <= 844)(document.getElementById('panel').getBoundingClientRect())"))
b.key("Escape", 27)
order = []
b.js("document.getElementById('words').focus()")
for _ in range(12):
    b.key("Tab", 9)
    order.append(b.js("document.activeElement.id || document.activeElement.textContent"))
check("keyboard: Tab reaches send, settings and new", {"send", "settings", "new"} <= set(order), order)
b.scheme("dark")
b.size(1200, 800)
b.shot("dark")
check("dark: the background is dark", b.js("getComputedStyle(document.body).backgroundColor") == "rgb(22, 22, 20)"
      or b.js("getComputedStyle(document.body).backgroundColor") == "rgb(22, 23, 22)", b.js("getComputedStyle(document.body).backgroundColor"))
settings(n=1, max_tokens="", temperature=1)
b.js("document.getElementById('words').focus()")
b.words("One more")
b.key("Enter", 13, "\r")
b.wait(f"({ANSWER}) > 20")
b.go("/status")
b.go("/")
check("chat: what had come is still there after a look at the status", b.wait(f"({ANSWER}) > 20", 3), b.js(ANSWER))
b.size(320, 600, True)
check("phone: 320 wide, nothing over another in the head", b.js("document.querySelector('header svg').getBoundingClientRect().right <= document.getElementById('mode').getBoundingClientRect().left")
      and b.js("document.documentElement.scrollWidth") <= 320)
b.shot("narrow")
b.size(1200, 800)
b.go("/status")
check("status: numbers come", b.wait("document.querySelectorAll('tr').length > 8"))
time.sleep(3)
b.shot("status_dark")
check("status: plots are drawn", b.js("[...document.querySelectorAll('canvas')].every(c => c.getContext('2d').getImageData(0, 0, c.width, c.height).data.some(v => v))"))
b.scheme("light")
b.size(390, 844, True)
check("status: fits a phone", b.js("document.documentElement.scrollWidth") <= 390)
time.sleep(1.2)
b.shot("status_phone")
hosts = {e["params"]["request"]["url"] for e in b.events if e.get("method") == "Network.requestWillBeSent"}
check("no request leaves for another host", all(u.startswith((base, "data:", "about:")) for u in hosts), hosts)
errors = [e["params"] for e in b.events if e.get("method") == "Runtime.exceptionThrown" or
          (e.get("method") == "Log.entryAdded" and e["params"]["entry"]["level"] == "error")]
check("no error on the console", not errors, errors)
b.close()
print(f"1..{count}")
sys.exit(failed > 0)
