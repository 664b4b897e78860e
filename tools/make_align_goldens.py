#!/usr/bin/env python3
"""Make tests/golden/align/: losses over preference pairs, scores and single completions, and their gradients, in float64.

    python tools/make_align_goldens.py          (trl 1.16, torch 2.15; CPU)

A line of pairs.txt: row, beta, smoothing, margin, n_chosen, n_rejected, loss; then n logp, n ref, n gradients of the chosen side; then of the rejected.
The branches of DPOTrainer._compute_loss are taken from its syntax tree; CPOTrainer.cpo_loss (with log-ratios in place of log-probabilities
if a row has a reference) and ORPOTrainer.odds_ratio_loss are called unchanged. The pairs have no prompt tokens, so that the first term
of TRL's ORPO is the mean over the chosen completion.

A line of scores.txt: margin, center, c, r, loss, dc, dr, by the lines of RewardTrainer that compute the loss.

A line of singles.txt: row, beta, weights of good and bad, label, quantile, n_refs, number of mismatched log-ratios, n, loss; then those log-ratios,
n logp, n ref, n gradients. KTO and APO are the lines of KTOTrainer._compute_loss. QRPO has no code on PyPI: it is the paper's definition, with Z as
an integral over the quantile (arXiv:2507.08068), and PyTorch's inverse of the normal distribution.
"""
import ast
import inspect
import pathlib
import textwrap
import types

import torch
from trl.experimental.cpo.cpo_trainer import CPOTrainer
from trl.experimental.orpo import orpo_trainer
from trl.trainer import dpo_trainer, kto_trainer, reward_trainer

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


# Row, TRL's code, its name there, whether it reads a reference, whether it gets means. DPOTrainer itself divides by lengths.
ROWS = [("dpo", trl_dpo, "sigmoid", True, False, 0, 0), ("dpo", trl_cpo, "sigmoid", True, False, .1, 0),
        ("dpo_robust", trl_dpo, "robust", True, False, .1, 0), ("dpo_norm", trl_dpo, "sigmoid_norm", True, False, 0, 0),
        ("dpo_norm", trl_cpo, "sigmoid", True, True, .2, 0), ("ipo", trl_cpo, "ipo", True, False, 0, 0),
        ("ipo_norm", trl_dpo, "ipo", True, False, 0, 0), ("simpo", trl_cpo, "simpo", False, True, 0, .5),
        ("orpo", trl_orpo, "orpo", False, True, 0, 0)]


def statements(method, first, last):
    """The compiled statements of a method, from the one that begins with `first` to the one that begins with `last`."""
    body = ast.parse(textwrap.dedent(inspect.getsource(method))).body[0].body
    texts = [ast.unparse(s) for s in body]
    begin = next(i for i, t in enumerate(texts) if t.startswith(first))
    end = next(i for i, t in enumerate(texts) if i >= begin and t.startswith(last))
    return compile(ast.Module(body[begin:end + 1], []), method.__qualname__, "exec")


def draw(n):
    return -(3 * torch.rand(n, dtype=torch.float32) + .01).double()


def scores():
    code = statements(reward_trainer.RewardTrainer.compute_loss, "if 'margin' in inputs", "if self.args.center_rewards_coefficient")
    for margin, center, c, r in [(0, 0, 1.5, -.5), (0, 0, -3, 2.25), (.75, 0, .5, .25), (0, .01, 4, 3), (1.5, .25, -1, -2.5), (2, 0, 900, -200)]:
        x = torch.tensor([c, r], dtype=torch.float64, requires_grad=True)
        scope = {"self": types.SimpleNamespace(args=types.SimpleNamespace(center_rewards_coefficient=center or None)),
                 "inputs": {"margin": torch.tensor([margin], dtype=torch.float64)} if margin else {},
                 "rewards_chosen": x[:1], "rewards_rejected": x[1:]}
        exec(code, vars(reward_trainer) | scope, scope)
        scope["loss"].backward()
        yield " ".join(f"{v:.12g}" for v in [margin, center, c, r, scope["loss"].item(), *x.grad.tolist()])


kto_code = statements(kto_trainer.KTOTrainer._compute_loss, "if self.calculate_KL", "losses = torch.cat")


def kto(kind, o, d, good, mismatched, **_):
    accelerator = types.SimpleNamespace(device="cpu", gather_for_metrics=lambda x: x)
    one, none = d[None], torch.zeros(0, dtype=torch.float64)
    scope = {"self": types.SimpleNamespace(calculate_KL=kind == "kto", loss_type={"kto": "kto", "apo_zero": "apo_zero_unpaired"}[kind], beta=o["beta"],
                                           desirable_weight=o["good"], undesirable_weight=o["bad"], accelerator=accelerator),
             "KL_logps": mismatched, "ref_KL_logps": torch.zeros_like(mismatched)}
    for side, on in (("chosen", good), ("rejected", not good)):
        scope |= {f"{side}_logps": one if on else none, f"ref_{side}_logps": torch.zeros(int(on), dtype=torch.float64)}
    exec(kto_code, vars(kto_trainer) | scope, scope)
    return scope["losses"].sum()


def qrpo(kind, o, d, quantile, n_refs, n, **_):
    beta = o["beta"]
    if kind == "qrpo_norm":
        beta = min(beta / n, .1)
    elif kind == "qrpo_log":
        quantile = max(quantile, 1 / n_refs)
    elif kind == "qrpo_normal":
        quantile = min(max(quantile, 1 / n_refs), 1 - 1 / n_refs)
    transform = {"qrpo_log": torch.log, "qrpo_normal": torch.distributions.Normal(0., 1.).icdf}.get(kind, lambda q: q)
    # log Z = log of the mean of exp(T(q) / beta) over q: midpoints, dense at both ends, where q is a logistic function of t.
    t = torch.linspace(-400 if kind == "qrpo_normal" else -60, 400 if kind == "qrpo_normal" else 60, 8000001, dtype=torch.float64)
    if kind == "qrpo_normal":  # Over x = T(q) instead, whose density is the normal one.
        t = t / 4
        terms = t / beta - t * t / 2 - .5 * torch.log(torch.tensor(2 * torch.pi))
    else:
        terms = transform(torch.sigmoid(t)) / beta + torch.nn.functional.logsigmoid(t) + torch.nn.functional.logsigmoid(-t)
    log_z = torch.logsumexp(terms, 0) + torch.log(t[1] - t[0])
    return (transform(torch.tensor(quantile, dtype=torch.float64)) - beta * log_z - beta * d) ** 2


def singles():
    cases = [(kto, "kto", .1, 1, 1), (kto, "kto", 1.5, 1, 1), (kto, "kto", .5, 1.25, .75), (kto, "apo_zero", .1, 1, 1), (kto, "apo_zero", 1.5, .5, 2)]
    cases += [(qrpo, kind, beta, 0, 0) for kind in ("qrpo", "qrpo_norm", "qrpo_log", "qrpo_normal") for beta in (.05, .5, 5) if kind != "qrpo_normal" or beta > .1]
    for i, (code, name, beta, good, bad) in enumerate(cases):
        for n, label, quantile, n_refs in [(5, 1, 1., 6), (3, 0, 0., 6), (1, 1, .3, 10), (7, 0, .5, 2)]:
            mismatched = torch.zeros(0, dtype=torch.float64)
            if name == "kto":
                mismatched = (2 * torch.rand(1 + i + n, dtype=torch.float32) - (1.4 if label == 0 else .6)).double()
            logp, ref = draw(n).requires_grad_(), draw(n)
            loss = code(name, {"beta": beta, "good": good, "bad": bad}, (logp - ref).sum(), good=bool(label), quantile=quantile, n_refs=n_refs, n=n,
                        mismatched=mismatched)
            loss.backward()
            numbers = [beta, good, bad, label, quantile, n_refs, len(mismatched), n, loss.item()]
            numbers += mismatched.tolist() + logp.tolist() + ref.tolist() + logp.grad.tolist()
            yield name + " " + " ".join(f"{x:.12g}" for x in numbers)


def pairs():
    torch.manual_seed(27)
    for name, code, kind, reference, mean, smoothing, margin in ROWS:
        for beta, nc, nr in [(.1, 5, 3), (2.5, 1, 7), (.5, 4, 4)]:
            drawn = [draw(n) for n in (nc, nc, nr, nr)]
            logp = [drawn[0].requires_grad_(), drawn[2].requires_grad_()]
            stat = [x.sum() - (y.sum() if reference else 0) for x, y in zip(logp, (drawn[1], drawn[3]))]
            if mean:
                stat = [stat[0] / nc, stat[1] / nr]
            loss = code(kind, {"beta": beta, "smoothing": smoothing, "margin": margin}, *stat, nc, nr)
            loss.backward()
            numbers = [beta, smoothing, margin, nc, nr, loss.item()]
            for side in (0, 1):
                numbers += logp[side].tolist() + drawn[2 * side + 1].tolist() + logp[side].grad.tolist()
            yield name + " " + " ".join(f"{x:.12g}" for x in numbers)


def main():
    out = pathlib.Path(__file__).resolve().parent.parent / "tests/golden/align"
    out.mkdir(parents=True, exist_ok=True)
    for name, lines in (("pairs", pairs), ("scores", scores), ("singles", singles)):
        (out / f"{name}.txt").write_text("\n".join(lines()) + "\n")


main()
