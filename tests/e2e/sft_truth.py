"""Fine-tuning against transformers, PyTorch and PEFT (tests/golden/sft, tools/make_sft_goldens.py): ids and masks of conversations in every format, and the
loss and gradient norm of every step. Standard library only; TAP on stdout.

usage: sft_truth.py LATEEN"""
import array
import json
import math
import os
import shutil
import struct
import subprocess
import sys
import tempfile
from operator import itemgetter

from tap import Tap

lateen, golden = sys.argv[1], "tests/golden/sft"
truth = json.load(open(f"{golden}/truth.json"))
tap = Tap(600)
LOSS, NORM = 1e-5, 1e-4  # PyTorch computed in double; this computes in float.


def check(name, wrong):
    tap.check(name, not wrong, wrong)


def run(*args, **more):
    return subprocess.run([lateen, *args], capture_output=True, text=True, timeout=600, **more)


def train(out, **options):
    """Every step sees all conversations; best-fit rows hold several each."""
    args = {"out": out, "model.init": golden, "data.train": f"{golden}/chat.jsonl", "data.seq": truth["seq"], "batch.size": truth["rows"], "steps": truth["steps"], "optim.lr": truth["lr"],
            "optim.beta2": 0.999, "optim.decay": 0, "lr.schedule": "constant", "data.shuffle": "none", "threads": 2, "sample.tokens": 0, **options}
    ranks = ("launch", "--ranks", "2") if "mesh" in options else ()
    return run(*ranks, "train", *(w for n, v in args.items() for w in (f"--{n}", str(v))))


def steps_of(out):
    return [r for r in map(json.loads, open(f"{out}/metrics.jsonl")) if r["kind"] == "train"]


def compare(want, got):
    if len(want) != len(got):
        return f"{len(got)} steps, not {len(want)}"
    for i, (w, g) in enumerate(zip(want, got)):
        if not (math.isclose(w["loss"], g["loss"], rel_tol=LOSS) and math.isclose(w["grad_norm"], g["grad_norm"], rel_tol=NORM)):
            return f"step {i + 1}: {w}, not {dict((n, g[n]) for n in w)}"
    return ""


def tensors(path):
    """name -> numbers, of F32 tensors."""
    data = open(path if path.endswith(".safetensors") else next(p for p in (f"{path}/adapter_model.safetensors", f"{path}/model.safetensors") if os.path.exists(p)), "rb").read()
    n = struct.unpack("<Q", data[:8])[0]
    head = json.loads(data[8:8 + n])
    return {k: struct.unpack(f"<{(v['data_offsets'][1] - v['data_offsets'][0]) // 4}f", data[8 + n + v["data_offsets"][0]:8 + n + v["data_offsets"][1]]) for k, v in head.items() if k != "__metadata__"}


def apart(a, b, bound):
    """Names that differ, or tensors whose numbers are further apart than bound times the largest
    number."""
    x, y = tensors(a), tensors(b)
    wrong = sorted(set(x) ^ set(y))
    for name in set(x) & set(y):
        most = max(map(abs, y[name]))
        far = max(abs(p - q) for p, q in zip(x[name], y[name])) if len(x[name]) == len(y[name]) else math.inf
        if far > bound * most:
            wrong.append((name, far, most))
    return wrong[:4]


def head_bytes(path):
    """Where the numbers of a safetensors file begin."""
    return 8 + struct.unpack("<Q", open(path, "rb").read(8))[0]


def far_from(model, some):
    """Those tensors of `some` that differ in the model."""
    x, y = tensors(model), tensors(some)
    return [n for n in y if max(abs(p - q) for p, q in zip(x[n], y[n])) > 2e-4 * max(map(abs, y[n]))]


def tie(folder):
    """The base with one matrix for embedding and head."""
    os.mkdir(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(f"{golden}/{name}", folder)
    config = json.load(open(f"{golden}/config.json"))
    json.dump({**config, "tie_word_embeddings": True}, open(f"{folder}/config.json", "w"))
    data = open(f"{golden}/model.safetensors", "rb").read()
    at = head_bytes(f"{golden}/model.safetensors")
    kept = {k: v for k, v in json.loads(data[8:at]).items() if k != "lm_head.weight"}
    out = {"__metadata__": {"format": "pt"}}
    numbers = b""
    for name, v in kept.items():
        if name != "__metadata__":
            piece = data[at + v["data_offsets"][0]:at + v["data_offsets"][1]]
            out[name] = {**v, "data_offsets": [len(numbers), len(numbers) + len(piece)]}
            numbers += piece
    head = json.dumps(out).encode()
    with open(f"{folder}/model.safetensors", "wb") as f:
        f.write(struct.pack("<Q", len(head)) + head + numbers)


def rows_equal():
    lines = run("tokenize", "--tokenizer", golden, "--jsonl", "--chat", stdin=open(f"{golden}/chat.jsonl"))
    got = [json.loads(x) for x in lines.stdout.splitlines()]
    if len(got) != len(truth["conversations"]):
        return lines.stderr
    return [i for i, (w, g) in enumerate(zip(truth["conversations"], got)) if (w["ids"], w["mask"]) != (g["ids"], g["mask"])]


with tempfile.TemporaryDirectory() as work:
    check("ids and masks of every shape, as transformers has them", rows_equal())
    out = f"{work}/full"
    done = train(out)
    check("20 steps of full fine-tuning equal PyTorch's", done.stderr[-600:] if done.returncode != 0 else compare(truth["full"], steps_of(out)))
    again = train(f"{work}/stream", **{"data.packing": "stream", "data.mask_documents": "false", "steps": 1})
    leaks = steps_of(f"{work}/stream")[0]["loss"] if again.returncode == 0 else None
    check("rows that leak have another loss", leaks is None or math.isclose(leaks, truth["full"][0]["loss"], rel_tol=LOSS))
    said = run("chat", "--model", f"{out}/model", "--max-tokens", "4", input="Hi\n")
    check("the exported model uses its chat template", said.stderr if said.returncode != 0 or not os.path.exists(f"{out}/model/tokenizer.json") else "")

    # Adapters, as PEFT trains them.
    for run_ in truth["lora"]:
        out = f"{work}/lora-{run_['name']}"
        done = train(out, **{"lora.init": f"{golden}/adapter-{run_['name']}", "batch.micro": 0 if run_["name"] == "all" else 2})
        check(f"20 steps of LoRA ({run_['name']}) equal PEFT's", done.stderr[-600:] if done.returncode != 0 else compare(run_["steps"], steps_of(out)))
        check("the adapters end where PEFT's do", apart(f"{out}/adapter", f"{golden}/adapter-{run_['name']}-end", 2e-4))
    both = train(f"{work}/ranks", **{"lora.init": f"{golden}/adapter-all", "batch.size": 2 * truth["rows"], "mesh": "dp=2", "threads": 1})
    check("two ranks that divide the rows take the same steps", both.stderr[-600:] if both.returncode != 0 else compare(truth["lora"][0]["steps"], steps_of(f"{work}/ranks")))
    # A finished run that is started again has nothing to learn, but its ranks still wait for each
    # other.
    again = {"sample.tokens": 4, "steps": 2, "batch.size": 4, "mesh": "dp=2", "mesh.zero": 2, "threads": 1}
    done = [train(f"{work}/again", **again) for _ in range(2)]
    samples = [r["step"] for r in map(json.loads, open(f"{work}/again/metrics.jsonl")) if r["kind"] == "sample"]
    check("a finished run of two ranks with ZeRO, started again, ends with its samples written once", [d.stderr[-600:] for d in done if d.returncode != 0] or (samples if samples != [2] else ""))
    # Ranks that divide layers, gather a base of which each keeps a half, or have some layers each.
    for mesh, name, more in (("tp=2", "top", {}), ("pp=2", "all", {}), ("dp=2", "top", {"mesh.zero": 3, "batch.size": 2 * truth["rows"]})):
        run_, out = next(r for r in truth["lora"] + truth["top"] if r["name"] == name), f"{work}/mesh-{mesh}"
        done = train(out, **{"lora.init": f"{golden}/adapter-{name}", "mesh": mesh, "threads": 1, **more})
        wrong = done.stderr[-600:] if done.returncode != 0 else compare(run_["steps"], steps_of(out)) or apart(f"{out}/adapter", f"{golden}/adapter-{name}-end", 2e-4)
        check(f"LoRA ({name}) on {mesh}{' with mesh.zero = 3' if more else ''}, as PEFT trains it alone", wrong)
    out = f"{work}/lora-all"
    start = json.loads(open(f"{out}/metrics.jsonl").readline())
    check("only the adapters are trained", "" if start["trained_parameters"] == truth["lora"][0]["trainable"] and not os.path.exists(f"{out}/model") else start)
    stopped = [train(f"{work}/halves", **{"lora.init": f"{golden}/adapter-all", "steps": n}) for n in (7, truth["steps"])]
    check("stopped and resumed, they have the same bits", [s.stderr[-300:] for s in stopped if s.returncode != 0] or apart(f"{work}/halves/adapter", f"{out}/adapter", 0))
    moved = f"{work}/moved"
    shutil.copytree(golden, moved)
    with open(f"{moved}/model.safetensors", "r+b") as f:
        f.seek(-2, 2)
        f.write(b"\x00\x3f")
    other = train(f"{work}/halves", **{"lora.init": f"{golden}/adapter-all", "model.init": moved, "allow_change": "model.init", "steps": 25})
    check("a resume beside another model is refused", "" if other.returncode == 1 and "model.init" in other.stderr and "checksum" in other.stderr else other.stderr[-300:])
    merged = run("convert", f"{out}/adapter", f"{work}/merged", "--dtype", "fp32")
    check("convert merges them", merged.stderr if merged.returncode != 0 else apart(f"{work}/merged", f"{golden}/merged.safetensors", 2e-4))
    there = run("convert", f"{out}/adapter", f"{work}/adapter.gguf", "--adapter")
    back = run("convert", f"{work}/adapter.gguf", f"{work}/back", "--adapter", "--base", golden)
    check("a GGUF of adapters and back has the same numbers", there.stderr + back.stderr if there.returncode + back.returncode != 0 else apart(f"{work}/back", f"{out}/adapter", 0))
    into = run("convert", f"{work}/adapter.gguf", f"{work}/merged-gguf", "--base", golden, "--dtype", "fp32")
    check("and merges to the same model", into.stderr if into.returncode != 0 else apart(f"{work}/merged-gguf", f"{work}/merged", 0))
    said = [run("generate", "--model", *m, "--dtype", "fp32", "--temperature", "0", "--max-tokens", "8", "--prompt", "Hi") for m in ((f"{out}/adapter",), (golden, "--lora", f"{work}/adapter.gguf"))]
    check("generate --lora loads it beside its model", said[1].stderr if said[1].returncode != 0 or said[0].stdout != said[1].stdout or not said[0].stdout else "")
    run("quantize", golden, f"{work}/q8.gguf", "--type", "q8_0")
    with open(f"{work}/text.txt", "w") as f:
        f.write("The rain fell on the hills all night, and the river rose.\n")
    beside = [run("eval", "--model", f"{work}/q8.gguf", *more, f"{work}/text.txt", "--json") for more in
              ((), *(("--lora", f"{golden}/adapter-{name}", *dtype) for name in ("all-end", "all-end.gguf", "dora-end") for dtype in ((), ("--dtype", "fp32"))))]
    plain, of_folder, exact, of_file, _, dora, exact_dora = found = [json.loads(b.stdout) if b.returncode == 0 else b.stderr for b in beside]
    check("eval --lora computes beside blocks as they are stored, and for DoRA in fp32", "" if not any(isinstance(x, str) for x in found) and
          plain["weights"] == of_folder["weights"] == "F16, Q8_0" and of_folder == of_file and abs(of_folder["loss"] - exact["loss"]) < 2e-3 < abs(plain["loss"] - exact["loss"]) and
          dora["weights"] == "F32" and dora["loss"] == exact_dora["loss"] else found)
    for what, args, wanted in (("a type of adapters", (golden + "/adapter-all-end", f"{work}/no", "--adapter", "--dtype", "fp16"), "--dtype fp16 has no effect"),
                               ("shards of a GGUF", (golden, f"{work}/no.gguf", "--shard-gb", "1"), "--shard-gb 1 has no effect")):
        no = run("convert", *args)
        check(f"convert refuses {what}", "" if no.returncode == 2 and wanted in no.stderr else no.stderr)
    both = run("chat", "--model", golden, "--format", "chatml", "--chat-template", "x")
    check("chat refuses two templates", "" if both.returncode == 2 and "give one of them" in both.stderr else both.stderr)
    no = [run("convert", f"{work}/adapter.gguf", f"{work}/no"), run("convert", f"{work}/lora-dora/adapter", f"{work}/no.gguf", "--adapter"), run("convert", golden, f"{work}/no", "--adapter")]
    check("refused by name: no base, DoRA, a model", [n.stderr for n, w in zip(no, ("name it with --base", "no place for the magnitudes of DoRA", "holds no adapters")) if n.returncode == 0 or w not in n.stderr])
    with open(f"{work}/adapter.gguf", "rb") as whole, open(f"{work}/half.gguf", "wb") as half:
        half.write(whole.read()[:900])
    no = [run("convert", f"{work}/{name}.gguf", f"{work}/no", *more, "--base", golden) for name in ("half", "nowhere") for more in (("--adapter",), ())]
    check("adapters that cannot be read, and that are not there, are no other thing", [n.stderr for n, w in zip(no, ("half.gguf", "half.gguf", "no such file", "no such file")) if n.returncode == 0 or w not in n.stderr or "holds no adapters" in n.stderr])
    dora = run("convert", f"{work}/lora-dora/adapter", f"{work}/merged-dora", "--dtype", "fp32")
    check("and those of DoRA", dora.stderr if dora.returncode != 0 else apart(f"{work}/merged-dora", f"{golden}/merged-dora.safetensors", 2e-4))
    # The embedding and the output head, which are two matrices or one.
    for run_ in truth["top"]:
        name, out, start = run_["name"], f"{work}/{run_['name']}", golden
        if run_["tied"]:
            start = f"{work}/tied"
            tie(start)
        done = train(out, **{"model.init": start, "lora.init": f"{golden}/adapter-{name}", "batch.micro": 2})
        check(f"20 steps of LoRA of embedding and head ({name}) equal PEFT's", done.stderr[-600:] if done.returncode != 0 else compare(run_["steps"], steps_of(out)) or apart(f"{out}/adapter", f"{golden}/adapter-{name}-end", 2e-4))
    both = train(f"{work}/top-ranks", **{"lora.init": f"{golden}/adapter-top", "batch.size": 2 * truth["rows"], "mesh": "dp=2", "threads": 1})
    check("two ranks take the same steps with them", both.stderr[-600:] if both.returncode != 0 else compare(truth["top"][0]["steps"], steps_of(f"{work}/top-ranks")))
    top = [run("convert", *args) for args in ((f"{work}/top/adapter", f"{work}/merged-top", "--dtype", "fp32"), (f"{work}/top/adapter", f"{work}/top.gguf", "--adapter"),
                                              (f"{work}/top.gguf", f"{work}/top-back", "--adapter", "--base", golden), (f"{work}/top.gguf", f"{work}/top-merged", "--base", golden, "--dtype", "fp32"))]
    check("they are merged, and come back from a GGUF", [t.stderr for t in top if t.returncode != 0] or apart(f"{work}/top-back", f"{work}/top/adapter", 0) or apart(f"{work}/top-merged", f"{work}/merged-top", 0) or
          far_from(f"{work}/merged-top", f"{golden}/merged-top.safetensors"))
    said = [run("generate", "--model", *m, "--dtype", "fp32", "--temperature", "0", "--max-tokens", "8", "--prompt", "Hi") for m in ((f"{work}/top/adapter",), (f"{work}/merged-top",), (golden, "--lora", f"{work}/top.gguf"))]
    check("generate computes with them", [s.stderr for s in said if s.returncode != 0] or len({s.stdout for s in said}) != 1 or not said[0].stdout)
    other = f"{work}/other-head"
    shutil.copytree(f"{golden}/adapter-top", other)
    # A number of a base layer that PEFT adds.
    with open(f"{other}/adapter_model.safetensors", "r+b") as f:
        head = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
        f.seek(head_bytes(f.name) + head["base_model.model.lm_head.base_layer.weight"]["data_offsets"][0])
        f.write(struct.pack("<f", 3.0))
    no = [run("convert", f"{work}/top-tied/adapter", f"{work}/no", "--dtype", "fp32"), run("convert", f"{work}/top-tied/adapter", f"{work}/no.gguf", "--adapter"),
          run("convert", other, f"{work}/no", "--dtype", "fp32"), run("serve", golden, "--lora", f"x={work}/top/adapter", "--port", "0"),
          train(f"{work}/no", **{"lora.rank": 2, "lora.dora": "true", "lora.targets": "q_proj,lm_head"}), train(f"{work}/no", **{"lora.rank": 2, "lora.targets": "q_proj,embed"})]
    check("refused by name: two in one matrix, another head, requests, DoRA, no such module", [n.stderr for n, w in zip(no, (
        "tie_word_embeddings", "no weight of its own", "lm_head.base_layer.weight is not the base's", "lm_head.lora_A.weight belongs to no linear layer", "the output head with DoRA: not supported", "it has embed_tokens,")) if n.returncode == 0 or w not in n.stderr])
    fresh = train(f"{work}/fresh-top", **{"lora.rank": 4, "lora.targets": "all-linear,embed_tokens,lm_head", "steps": 1})
    check("new ones begin as the model", fresh.stderr[-300:] if fresh.returncode != 0 or not math.isclose(steps_of(f"{work}/fresh-top")[0]["loss"], truth["full"][0]["loss"], rel_tol=LOSS) else "")
    fresh = train(f"{work}/fresh-dora", **{"lora.rank": 4, "lora.alpha": 8, "lora.dora": "true", "steps": 1})
    check("new DoRA adapters begin as the model", fresh.stderr[-300:] if fresh.returncode != 0 or not math.isclose(steps_of(f"{work}/fresh-dora")[0]["loss"], truth["full"][0]["loss"], rel_tol=LOSS) else "")
    beside, into = (run("chat", "--model", m, "--dtype", "fp32", "--temperature", "0", "--max-tokens", "12", input="Hi\nadd 2 and 3\n") for m in (f"{out}/adapter", f"{work}/merged"))
    check("beside their model they answer as merged into it", beside.stderr if beside.returncode != 0 or beside.stdout != into.stdout or len(into.stdout) < 4 else "")
    said = run("chat", "--model", f"{work}/merged", "--max-tokens", "4", input="Hi\n")
    check("and the merged model uses its chat template", said.stderr if said.returncode != 0 or not os.path.exists(f"{work}/merged/chat_template.jinja") else "")
    fresh = train(f"{work}/fresh", **{"lora.rank": 4, "lora.alpha": 8, "lora.targets": "q_proj,v_proj", "model.dtype": "bf16"})
    last = steps_of(f"{work}/fresh")[-1]["loss"] if fresh.returncode == 0 else 99
    check("new adapters in bf16 learn", "" if last < truth["full"][0]["loss"] - 0.3 else fresh.stderr[-300:] + str(last))
    decayed = [train(f"{work}/decay{d}", **{"lora.init": f"{golden}/adapter-dora", "steps": 1, "optim.lr": 0.01, "optim.decay": d}) for d in (0, 2)]
    before, (still, less) = tensors(f"{golden}/adapter-dora"), ([tensors(f"{work}/decay{d}/adapter") for d in (0, 2)] if not any(r.returncode for r in decayed) else ({}, {}))
    # AdamW's decay is separate from the gradient. transformers' Trainer, and so TRL, applies it
    # to each number of an adapter, including the lengths of DoRA.
    check("weight decay takes lr times decay from every number of an adapter", [r.stderr[-300:] for r in decayed if r.returncode != 0] or
          [n for n in before if not all(math.isclose(b - 0.02 * a, c, rel_tol=1e-5, abs_tol=1e-6) for a, b, c in zip(before[n], still[n], less[n]))])
    wide = f"{work}/wide"
    shutil.copytree(f"{golden}/adapter-all", wide)
    with open(f"{golden}/adapter-all/adapter_model.safetensors", "rb") as f:  # The same numbers in double.
        head = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
        data = array.array("d", array.array("f", f.read()))
    doubled = {n: t if n == "__metadata__" else {**t, "dtype": "F64", "data_offsets": [2 * at for at in t["data_offsets"]]} for n, t in head.items()}
    with open(f"{wide}/adapter_model.safetensors", "wb") as f:
        text = json.dumps(doubled).encode()
        f.write(struct.pack("<Q", len(text)) + text + data.tobytes())
    names = "v_proj,q_proj,up_proj,o_proj,k_proj,gate_proj,down_proj"
    same = [train(f"{work}/same{i}", **{"lora.init": start, "steps": 2, **more}) for i, (start, more) in enumerate(((f"{golden}/adapter-all", {}), (wide, {"lora.targets": names})))]
    losses = [[row["loss"] for row in steps_of(f"{work}/same{i}")] if r.returncode == 0 else r.stderr[-300:] for i, r in enumerate(same)]
    check("adapters in double, and the names of their modules in another order, are the same", "" if len(losses[0]) == 2 and losses[0] == losses[1] else losses)
    dropout = f"{work}/dropout"
    shutil.copytree(f"{golden}/adapter-all", dropout)
    config = json.load(open(f"{dropout}/adapter_config.json"))
    json.dump({**config, "lora_dropout": 0.1}, open(f"{dropout}/adapter_config.json", "w"))
    drops, keeps, asked = (train(f"{work}/drops{i}", **{"lora.rank": 0, "lora.init": start, "steps": 3, **more}) for i, (start, more) in
                           enumerate(((dropout, {}), (dropout, {"lora.dropout": 0}), (f"{golden}/adapter-all", {"lora.dropout": 0.1}))))
    third = [steps_of(f"{work}/drops{i}")[2]["loss"] for i in range(3)] if drops.returncode == keeps.returncode == asked.returncode == 0 else drops.stderr[-300:]
    check("dropout is that of the folder, unless it is given", "" if third[0] == third[2] != third[1] and json.load(open(f"{work}/drops0/adapter/adapter_config.json"))["lora_dropout"] == 0.1 else third)
    for name, more, wanted in (("dropout with DoRA", {"lora.dropout": 0.1, "lora.dora": "true"}, "lora.dropout and lora.dora"), ("fp8", {"model.fp8": "blockwise"}, "lora.rank with model.fp8: not supported"), ("4 bits in bf16", {"lora.base": "nf4", "model.dtype": "bf16"}, "lora.base = nf4 with model.dtype = bf16 on a CPU: not supported"), ("rows that are no blocks", {"lora.base": "nf4"}, "rows of 24 numbers are not whole blocks of 64"), ("muon", {"optim.kind": "muon"}, "lora.rank with optim.kind = muon: not supported"),
                               ("modules that are not the folder's", {"lora.init": f"{golden}/adapter-all", "lora.targets": "q_proj,k_proj"}, "lora.targets = q_proj,k_proj was given, but lora.init"),
                               ("a rank that is not the folder's", {"lora.init": f"{golden}/adapter-all", "lora.rank": 2}, "lora.rank = 2 was given, but lora.init"),
                               ("an unknown layer", {"lora.targets": "x_proj"}, "'x_proj' is not a linear layer of llama")):
        no = train(f"{work}/no", **{"lora.rank": 4, **more})
        check(f"refused by name: {name}", "" if no.returncode in (1, 2) and wanted in no.stderr else no.stderr[-300:])

    shipped = run("train", "recipes/sft-lora.yaml", "--out", f"{work}/shipped", "--steps", "1", "--lr.warmup", "0", "--sample.tokens", "0")
    check("recipes/sft-lora.yaml trains the model that ships with Lateen", shipped.stderr[-300:] if shipped.returncode != 0 or "50 conversations" not in shipped.stderr else "")
    told = [subprocess.run([lateen, "chat", "--model", *m, "--temperature", "0", "--max-tokens", "4"], input=b"Hi\n", capture_output=True) for m in
            ((f"{work}/shipped/adapter",), ("models/polyglot-46m.gguf", "--lora", f"{work}/shipped/adapter"), ("models/polyglot-46m.gguf",))]
    check("chat --lora uses the chat template of the adapters", "" if told[0].returncode == 0 and told[0].stdout == told[1].stdout != told[2].stdout else [t.stdout + t.stderr for t in told])
    start, end = (json.loads(x) for x in itemgetter(0, -1)(open(f"{work}/shipped/metrics.jsonl").readlines()))
    # Logits of rows whose label does not count are not computed, so that a CPU touches only a
    # part of their memory.
    check("its memory is what was announced, to 5 % and the logits of questions", "" if -0.12 < end["peak_bytes"] / end["announced_bytes"] - 1 < 0.05 else (end["peak_bytes"], end["announced_bytes"]))
    plan = run("plan", "--model", f"{work}/shipped", "--json")
    check("and what plan announces", plan.stderr if plan.returncode != 0 else [(k, v, start["memory"].get(k)) for k, v in json.loads(plan.stdout)["memory"].items() if start["memory"].get(k) != v])
    whole = run("train", "recipes/sft-lora.yaml", "--out", f"{work}/whole", "--steps", "1", "--lr.warmup", "0", "--sample.tokens", "0", "--lora.base", "dtype")
    lines = [[json.loads(x) for x in open(f"{work}/{out}/metrics.jsonl")] for out in ("shipped", "whole")]
    loss, weights, peak = ([f(x) for x in lines] for f in (lambda x: next(r["loss"] for r in x if r["kind"] == "train"), lambda x: x[0]["memory"]["weights"], lambda x: x[-1]["peak_bytes"]))
    check("a quantised GGUF stays as it is stored: the same loss, and less memory", "" if whole.returncode == 0 and loss[0] == loss[1] and weights[0] < weights[1] / 3 and peak[0] < peak[1] - 64 * 2**20 else (loss, weights, peak))
    told = train(f"{work}/told", **{"lora.rank": 2, "steps": 2, "sample.prompt": "Hi", "sample.tokens": 4})
    lines = [json.loads(x) for x in open(f"{work}/told/metrics.jsonl")]
    check("samples answer a question before and after", "" if told.returncode == 0 and [x["step"] for x in lines if x["kind"] == "sample"] == [0, 2] else told.stderr[-300:])

    # A mixture, half of which is held out.
    mixed = train(f"{work}/mixed", **{"data.train": f"{golden}/chat.jsonl:3,recipes/sft-lora.jsonl", "data.val_fraction": 0.5, "steps": 2, "eval.every": 1})
    evals = [json.loads(x) for x in open(f"{work}/mixed/metrics.jsonl")] if mixed.returncode == 0 else []
    check("a mixture of conversations, half of it held out", "" if [x["step"] for x in evals if x["kind"] == "eval"] == [1, 2] else mixed.stderr[-400:])

    # Bad rows, reported by file and line; a second start; another file.
    chats, out = f"{work}/some.jsonl", f"{work}/bad"
    good = open(f"{golden}/chat.jsonl").read()
    open(chats, "w").write(good + '{"messages": [{"role": "user", "content": "and?"}]}\nnot JSON\n')
    line = good.count("\n")
    first = train(out, **{"data.train": chats, "steps": 1})
    wanted = [f"some.jsonl:{line + 1}: no turn of the assistant to learn; the conversation is left out", f"some.jsonl:{line + 2}: column", "2 conversations left out, 0 cut", f"{line} conversations"]
    check("bad rows are named and left out", [w for w in wanted if w not in first.stderr] or first.returncode)
    more = train(out, **{"data.train": chats, "steps": 2})
    check("a second start continues with the tokens of the first", more.stderr[-300:] if more.returncode != 0 or "tokens from an earlier start" not in more.stderr or len(steps_of(out)) != 2 else "")
    open(chats, "a").write(good)
    other = train(out, **{"data.train": chats, "steps": 3})
    check("other conversations are not taken for the same", "" if other.returncode == 1 and "data.train" in other.stderr else other.stderr[-300:])
    fails = train(f"{work}/fails", **{"data.train": chats, "data.bad_rows": "fail"})
    check("data.bad_rows = fail names the first", "" if fails.returncode == 1 and f"some.jsonl:{line + 1}: no turn" in fails.stderr else fails.stderr[-300:])
    none = run("train", "--out", f"{work}/none", "--model.init", "models/polyglot-46m.gguf", "--data.train", chats, "--steps", "1")
    check("a model without a template says how to give one", "" if none.returncode == 1 and "no chat template; give one with data.chat_template" in none.stderr else none.stderr[-300:])
sys.exit(tap.end())
