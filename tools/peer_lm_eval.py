"""Score tasks with lm-evaluation-harness itself, for comparison with `lateen eval`.

Usage: peer_lm_eval.py MODEL_FOLDER DATA_FOLDER LIMIT TASK...      (packages lm_eval, transformers, torch)
MODEL_FOLDER is a Hugging Face folder, e.g. written by `lateen convert`; DATA_FOLDER is shared/data/eval-core. The harness fetches its data sets
from a hub; here the same questions are read from files and put into the hub's columns. Everything else is the harness's own: task files (wording,
metrics), model class, simple_evaluate. Prints one line of JSON for each task."""
import json
import os
import subprocess
import sys

os.environ["HF_DATASETS_OFFLINE"] = "1"
import datasets
import lm_eval
from lm_eval.api.task import ConfigurableTask
from lm_eval.models.huggingface import HFLM

folder, data, limit = sys.argv[1], sys.argv[2], int(sys.argv[3])
LABELS = "ABCDEFGH"


def choices(d):
    return {"choices": {"text": d["choices"], "label": list(LABELS[:len(d["choices"])])}, "answerKey": LABELS[d["gold"]]}


def arc(d):
    return {"question": d["query"].removeprefix("Question: "), **choices(d)}


def piqa(d):
    return {"goal": d["query"].removeprefix("Question: ").rstrip("\n"), "sol1": d["choices"][0], "sol2": d["choices"][1], "label": d["gold"]}


def winogrande(d):
    a, b = d["context_options"]
    n = len(os.path.commonprefix([a, b]))
    return {"sentence": a[:n] + "_ " + d["continuation"], "option1": a[n:], "option2": b[n:], "answer": str(d["gold"] + 1)}


TASKS = {"arc_easy": ("arc_easy", arc), "arc_challenge": ("arc_challenge", arc), "piqa": ("piqa", piqa), "winogrande": ("winogrande", winogrande),
         "openbookqa": ("openbook_qa", lambda d: {"question_stem": d["query"], **choices(d)}),
         "lambada_openai": ("lambada_openai", lambda d: {"text": d["context"] + " " + d["continuation"].lstrip(" ")})}


def from_file(self, *_, **__):
    file, columns = TASKS[self.config.task]
    text = subprocess.run(["zstd", "-dcq", f"{data}/{file}.jsonl.zst"], capture_output=True, check=True).stdout
    rows = datasets.Dataset.from_list([columns(json.loads(x)) for x in text.decode().splitlines() if x])
    self.dataset = {split: rows for split in ("train", "validation", "test")}


ConfigurableTask.download = from_file
model = HFLM(pretrained=folder, dtype="float32", device="cpu", batch_size=1)
for task in sys.argv[4:]:
    out = lm_eval.simple_evaluate(model=model, tasks=[task], num_fewshot=0, limit=limit, bootstrap_iters=0)["results"][task]
    print(json.dumps({"task": task, "items": limit, **{k.split(",")[0]: v for k, v in out.items() if k.split(",")[0] in ("acc", "acc_norm", "perplexity")}}), flush=True)
