"""Pages of a text that outlive the server: POST /slots/ID?action=save|restore|erase. TAP on stdout.

usage: serve_slots.py save|restore|other BASE_URL FOLDER
The server is stories260K with --slot-save-path FOLDER --deterministic. save: a server that saves; restore: the next server, which continues with the same bits; other: a server whose cache has another type."""
import json
import os
import sys

from serve_http import send
from tap import Tap

step, base, folder = sys.argv[1:4]
tap = Tap()
check = tap.check
text = "Once upon a time there was a little girl named Lily. She loved to play outside in the park with her friends and her dog."


def post(path, body):
    status, answer = send(base + path, body)
    return status, json.loads(answer)


def act(action, slot="0", **body):
    return post(f"/slots/{slot}?action={action}", body)


def answer():
    r = post("/v1/completions", {"prompt": text, "max_tokens": 30, "temperature": 0.8, "seed": 5, "logprobs": 3})[1]
    return r["choices"][0], r["usage"]["prompt_tokens_details"]["cached_tokens"]


def refused(name, got, status, words):
    check(name, got[0] == status and words in got[1]["error"]["message"] and folder not in got[1]["error"]["message"], got)


kept = os.path.join(folder, "answer.json")
if step == "save":
    first, cached = answer()
    check("the first answer finds nothing", cached == 0)
    status, saved = act("save", slot="3", filename="lily.bin", prompt=text)
    size = os.path.getsize(os.path.join(folder, "lily.bin"))
    check("a text is saved, and reported in llama-server's words", status == 200 and saved["id_slot"] == 3 and saved["filename"] == "lily.bin" and saved["n_saved"] > 0
          and saved["n_saved"] % 16 == 0 and saved["n_written"] == size and saved["timings"]["save_ms"] > 0, saved)
    with open(kept, "w") as f:
        json.dump([first, saved["n_saved"]], f)
    refused("a path is no name", act("save", filename="../lily.bin", prompt=text), 400, "no '/'")
    refused("a text must be named", act("save", filename="x.bin"), 400, "'prompt' or 'messages'")
    refused("a text that was never read", act("save", filename="x.bin", prompt="A completely different and much longer text about a cat."), 400, "holds no page")
    refused("an action that is none", act("load", filename="x.bin"), 400, "save, restore or erase")
    refused("a slot that is no number", act("save", slot="a", filename="x.bin", prompt=text), 400, "/slots/NUMBER")
    refused("a field that is none", act("save", filename="x.bin", prompt=text, file="y"), 400, "file")
    check("a refused file is not written", not os.path.exists(os.path.join(folder, "x.bin")))
    check("with messages", act("save", filename="chat.bin", messages=[{"role": "user", "content": text}])[0] == 400)
elif step == "restore":
    first, n = json.load(open(kept))
    refused("a file that does not exist", act("restore", filename="none.bin"), 400, "none.bin")
    with open(os.path.join(folder, "lily.bin"), "rb") as f:
        whole = f.read()
    for name, data in ("cut.bin", whole[:-1]), ("changed.bin", whole[:-50] + bytes([whole[-50] ^ 1]) + whole[-49:]), ("other.bin", b"GGUF" + whole):
        with open(os.path.join(folder, name), "wb") as f:
            f.write(data)
        refused(f"a damaged file: {name}", act("restore", filename=name), 400, "no" if name == "other.bin" else "damaged")
    status, restored = act("restore", filename="lily.bin")
    check("a new server restores it", status == 200 and restored["n_restored"] == n and "restore_ms" in restored["timings"], restored)
    again, cached = answer()
    check("a prompt finds its pages", cached == n, cached)
    check("and its answer has the same tokens and log-probabilities", again == first, again["text"])
    status, erased = act("erase", prompt=text + again["text"])
    check("erasing the whole text forgets it", status == 200 and erased["n_erased"] >= n and answer()[1] == 0, erased)
else:
    refused("pages of another type", act("restore", filename="lily.bin"), 400, "F8_E4M3")
sys.exit(tap.end())
