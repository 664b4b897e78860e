#!/usr/bin/env python3
"""llama.cpp's own server tests against `lateen serve`, on stories260K as GGUF.

usage: llamacpp_server.py FOLDER [pytest's arguments]
FOLDER is tools/server/tests of a copy of llama.cpp (the source package of llama-cpp-python also contains it). Needs pytest and what those tests
import: openai, requests, wget, filelock. None of them is copied here; tests/e2e/llamacpp_server.md lists what passes, and why the rest does not
apply.

The tests start this file as their server, and it translates llama-server's flags. Only the model that they call stories260K can be served, so files
that need others are left out."""
import json
import os
import subprocess
import sys

REPOSITORY = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
# Those that begin with ServerPreset.tinyllama2; the others need a model that is not available
# (BERT, a reranker, Gemma 3, ...).
FILES = "basic chat_completion compat_anthropic compat_oai_responses completion ctx_shift ignore_eos metrics security template tokenize tool_call".split()


def serve(flags):
    """Act as llama-server: exec ours with the flags translated."""
    def get(*names):
        return next((flags[i + 1] for i in range(len(flags) - 1) if flags[i] in names), None)

    known = (get("--hf-file") or get("--hf-repo") or "")
    if "stories260K" not in known or "infill" in known:
        sys.exit(f"only stories260K is here, not {known}")
    slots, context = int(get("--parallel") or 4), int(get("--ctx-size") or 0)
    defaults = {"seed": int(get("--seed")), "temperature": float(get("--temp"))}
    if get("--n-predict"):
        defaults["n_predict"] = int(get("--n-predict"))
    if get("--reasoning-budget"):
        defaults["thinking_budget"] = int(get("--reasoning-budget"))
    if "--verbose" in flags:
        defaults["verbose"] = True
    if get("--reasoning"):
        defaults["chat_template_kwargs"] = {"enable_thinking": get("--reasoning") != "off"}
    out = [os.environ["LATEEN"], "serve", os.environ["LATEEN_MODEL"], "--any-model", "--cors", "*", "--max-running", str(slots),
           "--defaults", json.dumps(defaults), "--page-tokens", "16",
           # Their model has no template, and theirs is then ChatML.
           "--chat-template", get("--chat-template-file") or get("--chat-template") or "chatml"]
    for flag in ("--host", "--port", "--alias", "--api-key"):
        if get(flag):
            out += [flag, get(flag)]
    if "--context-shift" in flags:
        out += ["--context-shift"]
    if context:
        out += ["--context", str(context if "--kv-unified" in flags else context // slots)]
    os.execv(out[0], out)


def main():
    folder, rest = sys.argv[1], sys.argv[2:]
    scratch = os.path.join(REPOSITORY, "build", "llamacpp")
    model = os.path.join(scratch, "stories260K.gguf")
    stories = os.path.join(REPOSITORY, "..", "shared", "data", "model-stories260k")
    lateen = os.environ.get("LATEEN", os.path.join(REPOSITORY, "build", "lateen"))
    os.makedirs(scratch, exist_ok=True)
    if not os.path.exists(model):
        subprocess.run([lateen, "convert", os.path.join(stories, "stories260K.bin"), model, "--tokenizer",
                        os.path.join(stories, "tok512.bin"), "--dtype", "fp32"], check=True)
    os.environ.update(LLAMA_SERVER_BIN_PATH=os.path.abspath(__file__), LATEEN=os.path.abspath(lateen), LATEEN_MODEL=model)
    os.chdir(folder)
    sys.path.insert(0, os.getcwd())
    import pytest
    import utils
    if hasattr(utils.ServerPreset, "load_all"):  # It would fetch every model from the network.
        utils.ServerPreset.load_all = staticmethod(lambda: None)
    files = [f"unit/test_{name}.py" for name in FILES if os.path.exists(f"unit/test_{name}.py")]
    sys.exit(pytest.main(["-q", "-rf", "-m", "not slow", "-p", "no:cacheprovider", *(rest if any(".py" in a for a in rest) else files + rest)]))


if __name__ == "__main__":
    if len(sys.argv) > 1 and sys.argv[1].startswith("--"):
        serve(sys.argv[1:])
    else:
        main()
