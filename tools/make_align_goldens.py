#!/usr/bin/env python3
"""Make tests/golden/align/pairs.txt: losses over preference pairs and their gradients, by TRL's own code in float64.

    python tools/make_align_goldens.py          (trl 1.16, torch 2.15; CPU)

A line: row, beta, smoothing, margin, n_chosen, n_rejected, loss; then n logp, n ref, n gradients of the chosen side; then of the rejected.
The branches of DPOTrainer._compute_loss are taken from its syntax tree; CPOTrainer.cpo_loss (with log-ratios in place of log-probabilities
where a row has a reference) and ORPOTrainer.odds_ratio_loss are called as they are. The pairs have no prompt tokens, so that the first term
of TRL's ORPO is the mean over the chosen completion.
"""
import ast
import inspect
import pathlib
import textwrap
import types

import torch
from trl.experimental.cpo.cpo_trainer import CPOTrainer
from trl.experimental.orpo import orpo_trainer
from trl.trainer import dpo_trainer

torch.set_num_threads(1)
tree = ast.parse(textwrap.dedent(inspect.getsource(dpo_trainer.DPOTrainer._compute_loss)))
branch = next(n for n in ast.walk(tree) if isinstance(n, ast.If) and ast.unparse(n.test) == "loss_type == 'sigmoid'")
branch = compile(ast.Module([branch], []), "dpo_trainer", "exec")


class Double(torch.Tensor):
    """odds_ratio_loss rounds to float32 by .float(); the goldens keep float64."""

    def float(self):
        return self


def trl_dpo(kind, o, c, r, nc, nr):
    mask = torch.zeros(2, max(nc, nr), dtype=torch.float64)
    mask[0, :nc] = 1
    mask[1, :nr] = 1
    me = types.SimpleNamespace(beta=o["beta"], label_smoothing=o["smoothing"])
    scope = {"self": me, "loss_type": kind, "chosen_scores": c[None], "rejected_scores": r[None], "delta_score": (c - r)[None],
             "completion_mask": mask}
    exec(branch, {**vars(dpo_trainer), **scope}, scope)
    return scope["per_sequence_loss"][0]


def trl_cpo(kind, o, c, r, nc, nr):
    me = types.SimpleNamespace(alpha=0.0, loss_type=kind, beta=o["beta"], label_smoothing=o["smoothing"], simpo_gamma=o["margin"],
                               accelerator=types.SimpleNamespace(device="cpu"))
    return CPOTrainer.cpo_loss(me, c[None], r[None])[0][0]


def trl_orpo(kind, o, c, r, nc, nr):
    me = types.SimpleNamespace(beta=o["beta"], accelerator=types.SimpleNamespace(device="cpu"))
    ratio = orpo_trainer.ORPOTrainer.odds_ratio_loss(me, c[None].as_subclass(Double), r[None].as_subclass(Double))[0][0]
    return (-c - ratio).as_subclass(torch.Tensor)


# Row, TRL's code, its name there, reads a reference, is given means. DPOTrainer divides by lengths itself.
ROWS = [("dpo", trl_dpo, "sigmoid", True, False, 0, 0), ("dpo", trl_cpo, "sigmoid", True, False, .1, 0),
        ("dpo_robust", trl_dpo, "robust", True, False, .1, 0), ("dpo_norm", trl_dpo, "sigmoid_norm", True, False, 0, 0),
        ("dpo_norm", trl_cpo, "sigmoid", True, True, .2, 0), ("ipo", trl_cpo, "ipo", True, False, 0, 0),
        ("ipo_norm", trl_dpo, "ipo", True, False, 0, 0), ("simpo", trl_cpo, "simpo", False, True, 0, .5),
        ("orpo", trl_orpo, "orpo", False, True, 0, 0)]


def main():
    torch.manual_seed(27)
    lines = []
    for name, code, kind, reference, mean, smoothing, margin in ROWS:
        for beta, nc, nr in [(.1, 5, 3), (2.5, 1, 7), (.5, 4, 4)]:
            draw = [-(3 * torch.rand(n, dtype=torch.float32) + .01).double() for n in (nc, nc, nr, nr)]
            logp = [draw[0].requires_grad_(), draw[2].requires_grad_()]
            stat = [x.sum() - (y.sum() if reference else 0) for x, y in zip(logp, (draw[1], draw[3]))]
            if mean:
                stat = [stat[0] / nc, stat[1] / nr]
            loss = code(kind, {"beta": beta, "smoothing": smoothing, "margin": margin}, *stat, nc, nr)
            loss.backward()
            numbers = [beta, smoothing, margin, nc, nr, loss.item()]
            for side in (0, 1):
                numbers += logp[side].tolist() + draw[2 * side + 1].tolist() + logp[side].grad.tolist()
            lines.append(name + " " + " ".join(f"{x:.12g}" for x in numbers))
    out = pathlib.Path(__file__).resolve().parent.parent / "tests/golden/align/pairs.txt"
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text("\n".join(lines) + "\n")


main()
