"""Write tests/golden/train/diloco.json: runs of several sites computed by PyTorch, for tests/e2e/diloco.py.

    python3 tools/make_diloco_goldens.py tests/golden/train           (packages torch, transformers)

DiLoCo follows algorithm 1 of Douillard et al. 2023 (arXiv:2311.08105): torch.optim.AdamW inside, torch.optim.SGD with Nesterov's momentum outside, whose gradient is the mean
of outer minus own parameters. With `overlap` it follows algorithm 2 of Streaming DiLoCo (arXiv:2501.18512): the deltas of step t reach the outer optimiser after step
t + overlap, and the own parameters become merge * own + (1 - merge) * outer; meanwhile rounds of other fragments may begin. With `fragments` each round is of every so many layers, the embeddings with the first, the head with the last, and
rounds follow each other every / fragments steps apart. After the last step there is a round of all parameters without overlap. Double precision throughout; `absent` lists
(site, step): that site does not take part in that round and takes the outer parameters after it. Data and model are those of make_train_goldens.py; row r of a step is site r's."""
import array
import copy
import json
import re
import sys

import torch
from transformers import AutoModelForCausalLM

SEQ, VOCAB = 16, 64
torch.set_default_dtype(torch.float64)
torch.set_num_threads(1)
tokens = array.array("H", open("tests/golden/train/tokens.bin", "rb").read())


def loss_of(model, row):
    x = torch.tensor([tokens[row * SEQ:row * SEQ + SEQ]])
    y = torch.tensor(tokens[row * SEQ + 1:row * SEQ + SEQ + 1])
    return torch.nn.functional.cross_entropy(model(x).logits.double().reshape(-1, VOCAB), y)


def fragment_of(name, n):
    layer = re.search(r"layers\.(\d+)\.", name)
    return int(layer[1]) % n if layer else 0 if "embed" in name else n - 1


class Site:
    def __init__(self, model, lr, decay):
        self.model = copy.deepcopy(model)
        groups = [[p for p in self.model.parameters() if p.ndim >= 2], [p for p in self.model.parameters() if p.ndim < 2]]
        self.optimiser = torch.optim.AdamW([dict(params=groups[0], weight_decay=decay), dict(params=groups[1], weight_decay=0.0)], lr=lr, betas=(0.9, 0.95), eps=1e-8)

    def step(self, row, clip):
        self.optimiser.zero_grad()
        loss = loss_of(self.model, row)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), clip).item()
        self.optimiser.step()
        return [loss.item(), norm]


def run(c):
    model = AutoModelForCausalLM.from_pretrained("tests/golden/model/llama3", dtype=torch.float64, attn_implementation="eager")
    model.train()
    sites = [Site(model, c["lr"], c["decay"]) for _ in range(c["sites"])]
    outer = copy.deepcopy(model)
    outside = torch.optim.SGD(outer.parameters(), lr=c["outer_lr"], momentum=c["outer_momentum"], nesterov=c["outer_momentum"] > 0)
    steps, sent, n = [[] for _ in sites], [], c["fragments"]  # sent: rounds in transfer, oldest first.
    of = [fragment_of(name, n) for name, _ in outer.named_parameters()]

    @torch.no_grad()
    def deltas():
        return [[o - p for o, p in zip(outer.parameters(), s.model.parameters())] for s in sites]

    @torch.no_grad()
    def end_round(began, brought, fragment, share):
        present = [k for k in range(len(sites)) if (k, began) not in c["absent"]]
        for i, o in enumerate(outer.parameters()):
            o.grad = sum(brought[k][i] for k in present) / len(present) if fragment in (None, of[i]) else None
        outside.step()
        for k, s in enumerate(sites):
            for i, (p, o) in enumerate(zip(s.model.parameters(), outer.parameters())):
                if fragment in (None, of[i]):
                    p.copy_(share * p + (1 - share) * o if k in present else o)

    for step in range(1, c["steps"] + 1):
        for k, s in enumerate(sites):
            steps[k].append(s.step((step - 1) * len(sites) + k, c["clip"]))
        last = step == c["steps"]
        while sent and (step >= sent[0][0] + c["overlap"] or last):
            end_round(*sent.pop(0), c["merge"])
        if step % (c["every"] // n) == 0 or last:
            sent.append((step, deltas(), None if last else (step // (c["every"] // n) - 1) % n))
            if c["overlap"] == 0 or last:
                end_round(*sent.pop(0), 0.0)
    with torch.no_grad():
        final = sum(loss_of(outer, row).item() for row in range(7)) / 7
    return dict(c, losses=steps, final=final)


BASE = dict(sites=2, steps=50, every=10, lr=3e-3, decay=0.1, clip=1.0, outer_lr=0.7, outer_momentum=0.9, overlap=0, merge=0.5, absent=[], fragments=1)
RUNS = [dict(BASE, name="two sites, a round every 10 steps"),
        dict(BASE, name="three sites, the last round is short", sites=3, steps=23, every=5),
        dict(BASE, name="every step, the mean of the parameters", every=1, steps=12, outer_lr=1.0, outer_momentum=0.0),
        dict(BASE, name="four steps while a round is sent", overlap=4, merge=0.25, every=6, steps=27),
        dict(BASE, name="outer steps of plain SGD", outer_lr=0.5, outer_momentum=0.0, every=4, steps=16),
        dict(BASE, name="two fragments in turn, two steps while one is sent", overlap=2, every=6, steps=20, fragments=2),
        dict(BASE, name="two fragments under way at once", overlap=5, merge=0.25, every=6, steps=23, fragments=2),
        dict(BASE, name="a fragment ends where the next one begins", overlap=3, every=6, steps=20, fragments=2)]

with open(sys.argv[1] + "/diloco.json", "w") as f:
    f.write("[\n" + ",\n".join(json.dumps(run(c)) for c in RUNS) + "\n]\n")
