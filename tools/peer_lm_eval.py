"""Score a task with lm-evaluation-harness's own model class and rules, for comparison with `lateen eval`.

Usage: peer_lm_eval.py MODEL_FOLDER TASK DATA.jsonl[.zst] [LIMIT]      (packages lm_eval, transformers, torch)
MODEL_FOLDER: Hugging Face folder, e.g. written by `lateen convert`. The harness fetches its data sets from a hub, so the questions come
from the file; wording as in its task files; scoring by HFLM.loglikelihood; acc and acc_norm as in its process_results."""
import json
import subprocess
import sys

import numpy as np
from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM

folder, task, data = sys.argv[1:4]
limit = int(sys.argv[4]) if len(sys.argv) > 4 else None
text = subprocess.run(["zstd", "-dcq", data], capture_output=True, check=True).stdout if data.endswith(".zst") else open(data, "rb").read()
docs = [json.loads(line) for line in text.decode().splitlines() if line][:limit]
model = HFLM(pretrained=folder, dtype="float32", device="cpu", batch_size=1)
suffix = {"arc_easy": "\nAnswer:", "arc_challenge": "\nAnswer:", "piqa": "\nAnswer:", "openbookqa": ""}[task]
requests = [Instance("loglikelihood", d, (d["query"].rstrip() + suffix, " " + c), i)
            for d in docs for i, c in enumerate(d["choices"])]
scores = iter(model.loglikelihood(requests, disable_tqdm=True))
acc = norm = 0
for d in docs:
    lp = np.array([next(scores)[0] for _ in d["choices"]])
    acc += int(np.argmax(lp) == d["gold"])
    norm += int(np.argmax(lp / np.array([float(len(c)) for c in d["choices"]])) == d["gold"])
print(json.dumps({"task": task, "items": len(docs), "acc": acc / len(docs), "acc_norm": norm / len(docs)}))
