"""Headless Chromium, driven over its DevTools pipe (file descriptors 3 and 4) with the standard library only."""
import base64
import json
import os
import subprocess
import tempfile
import time


class Browser:
    def __init__(self, chromium, base="", shots=None):
        self.base, self.shots = base, shots
        to_child, self.out = os.pipe()
        self.inp, from_child = os.pipe()
        self.profile = tempfile.TemporaryDirectory()

        def wire():  # First move them away from 3 and 4, which may be the pipe's own ends.
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
        self.send("Page.navigate", url=self.base + path)
        self.wait("document.readyState === 'complete'")

    def size(self, width, height, mobile=False):
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=mobile)

    def key(self, key, code=0, text=""):
        for kind in ("keyDown", "keyUp"):
            self.send("Input.dispatchKeyEvent", type=kind, key=key, windowsVirtualKeyCode=code, text=text if kind == "keyDown" else "")

    def words(self, text):
        self.send("Input.insertText", text=text)

    def shot(self, name):
        if self.shots:
            data = base64.b64decode(self.send("Page.captureScreenshot", format="png")["data"])
            with open(os.path.join(self.shots, name + ".png"), "wb") as f:
                f.write(data)

    def scheme(self, value):
        self.send("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": value}])

    def close(self):
        self.process.terminate()
        self.process.wait()
