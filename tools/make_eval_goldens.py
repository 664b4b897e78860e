"""Write tests/golden/eval/scores.json: lm-evaluation-harness's scores of the questions in tests/golden/eval, for tests/unit/train/test_eval.c.

    build/lateen convert tests/golden/stories260k/stories260K.bin FOLDER --dtype fp32 --tokenizer tests/golden/stories260k/tok512.bin
    python3 tools/make_eval_goldens.py FOLDER tests/golden/eval        (packages lm_eval, transformers, torch)

The questions were written for this project. Wording, requests, metrics and sums are those of the harness's own task files, model class and
simple_evaluate; its data sets are made from the files here in the columns of the hub. The file has the log-probability of every request, and
loglikelihood_rolling of prose.txt."""
import csv
import json
import os
import sys

os.environ["HF_DATASETS_OFFLINE"] = "1"
import datasets  # noqa: E402
import lm_eval  # noqa: E402
import torch  # noqa: E402
from lm_eval.api.instance import Instance  # noqa: E402
from lm_eval.api.task import ConfigurableTask  # noqa: E402
from lm_eval.models.huggingface import HFLM  # noqa: E402

folder, data = sys.argv[1:3]
LABELS = "ABCDEFGH"
torch.set_num_threads(1)


def choices(d):
    return {"choices": {"text": d["choices"], "label": list(LABELS[:len(d["choices"])])}, "answerKey": LABELS[d["gold"]]}


def arc(d):
    return {"question": d["query"].removeprefix("Question: ").rstrip(), **choices(d)}


def piqa(d):
    return {"goal": d["query"].removeprefix("Question: ").rstrip(), "sol1": d["choices"][0], "sol2": d["choices"][1], "label": d["gold"]}


def winogrande(d):
    a, b = d["context_options"]
    n = len(os.path.commonprefix([a, b]))
    return {"sentence": a[:n] + "_ " + d["continuation"], "option1": a[n:], "option2": b[n:], "answer": str(d["gold"] + 1)}


TASKS = {"arc_easy": ("arc_easy", arc), "arc_challenge": ("arc_challenge", arc), "piqa": ("piqa", piqa), "winogrande": ("winogrande", winogrande),
         "openbookqa": ("openbook_qa", lambda d: {"question_stem": d["query"], **choices(d)}),
         "lambada_openai": ("lambada_openai", lambda d: {"text": d["context"] + " " + d["continuation"].lstrip(" ")})}
SUBJECTS = {"mmlu_anatomy": "cat_studies", "mmlu_jurisprudence": "park_law"}  # The harness knows 57 subjects by name: ours use two of these names.


def mmlu_rows(part, subject):
    with open(f"{data}/mmlu/{part}/{subject}_{part}.csv", newline="") as f:
        return datasets.Dataset.from_list([{"question": r["question"], "subject": subject, "choices": [r[f"choice{i}"] for i in range(4)], "answer": int(r["answer"])} for r in csv.DictReader(f)])


def from_file(self, *_, **__):
    if self.config.task in SUBJECTS:
        subject = SUBJECTS[self.config.task]
        self.config.description = f"The following are multiple choice questions (with answers) about {subject.replace('_', ' ')}.\n\n"
        self.dataset = {part: mmlu_rows(part, subject) for part in ("dev", "test")}
        return
    file, columns = TASKS[self.config.task]
    rows = datasets.Dataset.from_list([columns(json.loads(x)) for x in open(f"{data}/{file}.jsonl")])
    self.dataset = {split: rows for split in ("train", "validation", "test")}


def evaluate(model, task, shots):
    r = lm_eval.simple_evaluate(model=model, tasks=[task], num_fewshot=shots, bootstrap_iters=0, log_samples=True)
    metrics = {k.split(",")[0]: v for k, v in r["results"][task].items() if isinstance(v, float) and k.split(",")[0] in ("acc", "acc_norm", "perplexity", "acc_stderr")}
    items = []
    for s in sorted(r["samples"][task], key=lambda s: s["doc_id"]):
        pairs = [[*s["arguments"][f"gen_args_{i}"].values()] if isinstance(s["arguments"], dict) else list(s["arguments"][i]) for i in range(len(s["resps"]))]
        items.append({"right": s["acc"], "pairs": [[*p, float(x[0][0]), str(x[0][1]) == "True"] for p, x in zip(pairs, s["resps"])]})
    return {"task": task, "shots": shots, "metrics": metrics, "items": items}


ConfigurableTask.download = from_file
model = HFLM(pretrained=folder, dtype="float32", device="cpu", batch_size=1)
results = [evaluate(model, t, 0) for t in TASKS] + [evaluate(model, t, shots) for shots in (0, 2) for t in SUBJECTS]
text = open(f"{data}/prose.txt").read()
# If the tokenizer added BOS, the harness would also score BOS after BOS, which is not text.
plain = HFLM(pretrained=folder, dtype="float32", device="cpu", batch_size=1, add_bos_token=False)
rolling = plain.loglikelihood_rolling([Instance("loglikelihood_rolling", {}, (text,), 0)])[0]
short = HFLM(pretrained=folder, dtype="float32", device="cpu", batch_size=1, max_length=64, add_bos_token=False)
rolling_64 = short.loglikelihood_rolling([Instance("loglikelihood_rolling", {}, (text,), 0)])[0]
tasks = ",\n".join(f'{{"task": "{r["task"]}", "shots": {r["shots"]}, "metrics": {json.dumps(r["metrics"])}, "items": [\n' +
                   ",\n".join(json.dumps(i, ensure_ascii=False) for i in r["items"]) + "]}" for r in results)
with open(f"{data}/scores.json", "w") as f:
    f.write(f'{{"lm_eval": "{lm_eval.__version__}", "rolling": {rolling!r}, "rolling_64": {rolling_64!r}, "bytes": {len(text.encode())}, "tasks": [\n{tasks}]}}\n')
for r in results:
    print(r["task"], r["shots"], r["metrics"], len(r["items"]))
print(rolling, rolling_64)
