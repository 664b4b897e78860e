"""Compare `lateen plan --json` for one run, Llama 3 70B on 512 GH200 of Alps, with formulas computed here. Standard library only; TAP on stdout.

usage: plan_report.py LATEEN"""
import json
import math
import re
import subprocess
import sys
import tempfile
from xml.etree import ElementTree

from tap import Tap

tap = Tap()
# Llama 3 70B (arXiv:2407.21783, table 3): 80 layers, width 8192, 64 heads and 8 key heads, MLP
# 28672, vocabulary 128256, head separate from the embedding.
LAYERS, WIDTH, MLP, VOCAB, SEQ = 80, 8192, 28672, 128256, 8192
MATRICES = LAYERS * (WIDTH * (2 * WIDTH + 2 * WIDTH // 8) + 3 * WIDTH * MLP)
PARAMS = MATRICES + 2 * VOCAB * WIDTH + (2 * LAYERS + 1) * WIDTH
# recipes/clusters: alps.yaml, and gh200 of gpus.yaml.
NODES, PER_NODE_DAY, WRITE_GBPS, READ_GBPS, PRICE, PUE = 128, 3.25e-3, 1090, 1190, 2.0, 1.1
RESTART_S, PEAK_TFLOPS, POWER_W, HOST_W = 180 + 120 + 60 + 180, 989, 560, 120
GPUS, TOKENS, BATCH, GIVEN_TP = 512, 100e9, 4 << 20, 8
PARTS = ("gemm", "attention", "elementwise", "launch", "tp_comm", "cp_comm", "ep_comm", "pp_comm", "dp_comm", "bubble", "optimizer", "data", "straggler")
INTERVALS = {"1 min": 60, "5 min": 300, "15 min": 900, "1 h": 3600, "3 h": 10800, "12 h": 43200, "1 day": 86400}
KINDS = ("weights", "gradients", "optimizer", "activations", "logits", "buffers", "margin")


def plan(*more):
    words = [sys.argv[1], "plan", "--model", "llama3-70b", "--cluster", "alps", "--gpus", GPUS, "--tokens", "100B", "--batch", "4M", "--tp", GIVEN_TP, "--micro", 1,
             "--zero", 1, "--json"]
    return json.loads(subprocess.run([str(w) for w in (*words, *more)], capture_output=True, text=True, check=True).stdout)


def near(name, got, want, rel=1e-6):
    tap.check(name, math.isclose(got, want, rel_tol=rel), f"{got}, not {want}")


def layouts():
    for i, x in enumerate(p["layouts"]):
        ways, t, m = x["layout"], x["time"], x["memory"]
        tap.check(f"layout {i}: the ranks are the GPUs", ways["tp"] == GIVEN_TP and ways["tp"] * ways["pp"] * ways["cp"] * ways["dp"] == GPUS, ways)
        tap.check(f"layout {i}: sequences of a step", ways["dp"] * ways["accumulation"] * ways["micro_batch"] * SEQ == BATCH, ways)
        near(f"layout {i}: the step is the sum of its parts", sum(t[part + "_s"] for part in PARTS), t["step_s"])
        tap.check(f"layout {i}: no more communication is exposed than there is", sum(t[w + "_comm_s"] for w in ("tp", "cp", "ep", "pp", "dp")) <= t["comm_total_s"], t)
        near(f"layout {i}: tokens a second", t["tokens_s"], BATCH / t["step_s"])
        near(f"layout {i}: of a GPU", t["tokens_s_gpu"], BATCH / t["step_s"] / GPUS)
        # Six operations per weight of a matrix, including the head's, and causal attention.
        flops = 6 * (PARAMS - VOCAB * WIDTH) + 6 * LAYERS * WIDTH * SEQ
        near(f"layout {i}: MFU", t["mfu"], flops * t["tokens_s_gpu"] / (PEAK_TFLOPS * 1e12), 2e-3)
        tap.check(f"layout {i}: hardware's use is no less than the model's", t["hfu"] >= t["mfu"], t)
        near(f"layout {i}: memory is the sum of its kinds", sum(m[k + "_bytes"] for k in KINDS), m["total_bytes"])
        # bf16 weights; gradients in fp32; a master copy and two moments in fp32, split among the data-parallel ranks.
        near(f"layout {i}: gradients", m["gradients_bytes"], 2 * m["weights_bytes"])
        near(f"layout {i}: optimiser", m["optimizer_bytes"], 12 * m["weights_bytes"] / 2 / ways["dp"])
    steps = [x["time"]["step_s"] for x in p["layouts"]]
    tap.check("layouts: as many as asked for, the fastest first", len(steps) == 2 and steps == sorted(steps), steps)


def whole_run():
    near("days without failures", p["days_without_failures"], math.ceil(TOKENS / BATCH) * p["layouts"][0]["time"]["step_s"] / 86400)
    near("days", p["days"], p["days_without_failures"] / p["goodput"]["ettr"])
    near("GPU hours", p["gpu_hours"], p["days"] * 24 * GPUS)
    near("price", p["price"], p["gpu_hours"] * PRICE)
    near("energy: 85 % of the power, and the host's", p["energy_mwh"], p["gpu_hours"] * (0.85 * POWER_W + HOST_W) * PUE / 1e6)
    near("swing: from 85 % of the power to 15 %", p["power_swing_mw"], GPUS * POWER_W * 0.7 / 1e6)
    tap.check("names", (p["model"], p["cluster"], p["gpu"], p["gpus"], p["tokens"]) == ("llama3-70b", "alps", "gh200", GPUS, TOKENS), p)


def failures():
    g = p["goodput"]
    near("mean time between failures", g["mtbf_s"], 86400 / (NODES * PER_NODE_DAY))
    # 14 bytes per parameter: weights in bf16, master copy and moments in fp32.
    near("time of a save", g["save_s"], 14 * PARAMS / (WRITE_GBPS * 1e9), 1e-4)
    near("time of a restart", g["restart_s"], RESTART_S + 14 * PARAMS / (READ_GBPS * 1e9), 1e-6)
    # Daly 2006 (doi:10.1016/j.future.2004.11.016), equation 37.
    half = g["block_s"] / (2 * g["mtbf_s"])
    near("interval between saves", g["interval_s"], math.sqrt(2 * g["block_s"] * g["mtbf_s"]) * (1 + math.sqrt(half) / 3 + half / 9) - g["block_s"], 1e-5)
    near("lost to saves", g["checkpoint_loss"], g["block_s"] / (g["interval_s"] + g["block_s"]))
    near("an interval of one's own", plan("--interval", 60)["goodput"]["interval_s"], 3600)


def what_ifs():
    best = p["layouts"][0]["time"]["step_s"]
    for w in p["what_if"]:
        near(f"what if: {w['change']}", w["speedup"], best / w["step_s"])
    tap.check("what ifs: only when asked for", len(p["what_if"]) >= 5 and not plan()["what_if"], p["what_if"])
    few = 20 * PARAMS
    tap.check("each warning says something", all(len(w) > 20 for w in p["warnings"]) and len(set(p["warnings"])) == len(p["warnings"]), p["warnings"])
    tap.check("warning: fewer tokens than 20 a parameter", any(f"(20 a parameter: {few:.3g})" in w for w in p["warnings"]), p["warnings"])


def schedule(*more, fails=False):
    r = subprocess.run([str(w) for w in (sys.argv[1], "plan", "schedule", *more)], capture_output=True, text=True, check=not fails)
    return r.stderr if fails else r.stdout


def schedules():
    """`lateen plan schedule`: F, B and W of 1, 1.2 and 0.8, against the closed forms and the order of 1F1B."""
    times = ("--forward", 1, "--backward", 1.2, "--weights", 0.8, "--pp", 4, "--micros", 8, "--json")
    bubbles = {"gpipe": 3 * 3, "1f1b": 3 * 3, "interleaved": 3 * 3 / 2, "zb-h1": 3 * 1.4}
    held = {"gpipe": 8, "1f1b": 4, "interleaved": 5.5, "zb-h1": 4, "zbv": 4, "v-half": 3}
    for x in json.loads(schedule("--schedule", "all", *times)):
        if x["schedule"] in bubbles:
            near(f"schedule {x['schedule']}: bubble", x["step"] - 8 * 3, bubbles[x["schedule"]])
        near(f"schedule {x['schedule']}: activations", x["held"], held[x["schedule"]])
    t = json.loads(schedule("--schedule", "1f1b", *times))
    rows = [" ".join(f"{op['op']}{op['micro']}" for op in r["operations"]) for r in t["ranks"]]
    tap.check("schedule 1f1b: order of rank 2", rows[2] == "F0 F1 B0 F2 B1 F3 B2 F4 B3 F5 B4 F6 B5 F7 B6 B7", rows[2])
    tap.check("schedule 1f1b: the text says the same", "F0 F1 .  .  B0=== F2" in schedule("--schedule", "1f1b").splitlines()[2])
    with tempfile.TemporaryDirectory() as folder:
        schedule("--schedule", "zbv", "--svg", folder + "/t.svg")
        bars = [e for e in ElementTree.parse(folder + "/t.svg").iter() if e.tag.endswith("rect") and e.get("stroke")]
        tap.check("schedule zbv: a bar for each F, B and W of 4 ranks", len(bars) == 4 * 2 * 3 * 8, len(bars))
    why = schedule("--schedule", "1f1b", "--chunks", 2, fails=True)
    tap.check("schedule 1f1b: has no chunks", "schedule 1f1b has one chunk a rank; 2 were asked for" in why, why)


def picture():
    """The report's curve of goodput: Daly's efficiency (2006, equation 20) at each interval, with
    the scales of the axes taken from the labelled ticks."""
    with tempfile.TemporaryDirectory() as folder:
        g = plan("--html", folder + "/r.html", "--interval", 120)["goodput"]
        page = open(folder + "/r.html").read()
    start = page.rindex("<svg", 0, page.index("goodput against checkpoint interval"))
    svg = ElementTree.fromstring(page[start:page.index("</svg>", start) + 6].replace("&nbsp;", " "))
    texts = {(e.text or ""): (float(e.get("x")), float(e.get("y"))) for e in svg.iter() if e.tag.endswith("text")}
    lines = [e for e in svg.iter() if e.tag.endswith("polyline")]
    points = [tuple(map(float, at.split(","))) for at in lines[0].get("points").split()]
    ticks = {k: v[0] for k, v in texts.items() if k in INTERVALS}
    (one, at_one), (two, at_two) = [(math.log(INTERVALS[k]), x) for k, x in list(ticks.items())[:2]]
    shares = sorted((v[1], float(k[:-2]) / 100) for k, v in texts.items() if re.fullmatch(r"\d+ %", k))
    up = lambda y: shares[0][1] + (y - shares[0][0]) * (shares[-1][1] - shares[0][1]) / (shares[-1][0] - shares[0][0])
    worst, inside = 0.0, True
    for x, y in points:
        tau = math.exp(one + (x - at_one) * (two - one) / (at_two - at_one))
        want = tau / g["mtbf_s"] / (math.exp(g["restart_s"] / g["mtbf_s"]) * (math.exp((tau + g["block_s"]) / g["mtbf_s"]) - 1))
        worst = max(worst, abs(up(y) - want))
        inside = inside and shares[-1][1] <= want + 0.01
    tap.check("report: the curve of goodput is Daly's", len(points) > 60 and worst < 0.03, (len(points), worst, points[:3], ticks, shares))
    tap.check("report: nothing is drawn below the axis", inside and len(points) < 115, (len(points), shares))


p = plan("--top", 2, "--sensitivity")
for test in (layouts, whole_run, failures, what_ifs, picture, schedules):
    tap.case(test)
sys.exit(tap.end())
