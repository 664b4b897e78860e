#!/usr/bin/env python3
"""Write docs/kernels.md and docs/img/ladder_*.svg from bench/results/kernels_*.json, which `lateen bench kernels --json` writes.

    tools/make_kernel_docs.py            (needs gnuplot for the figures)
    tools/make_kernel_docs.py --check    print the files that are out of date, and change nothing; figures are checked only with the version of gnuplot that drew them
The header of a kernel file explains its rung; this script only makes the tables.
"""
import filecmp
import glob
import json
import math
import os
import re
import shutil
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
FA3 = "attention_fa3_h100.json"
PEER_IDEAS = {"cuBLASLt": "the best of its heuristic's first 8", "cuDNN": "through PyTorch's scaled_dot_product_attention"}
LADDERS = (  # op, its title, the library that is compared, a page on its ideas
    ("sgemm", "SGEMM, FP32 on CUDA cores", "cuBLASLt", None),
    ("gemm", "bf16 GEMM on tensor cores", "cuBLASLt", "gemm"),
    ("attention", "attention", "cuDNN", "attention"),
)


def percent(row, key):
    return f"{100 * row[key]:.1f} %" if key in row else ""


def ladder_table(rows, peer, vendor):
    out = [f"| rung | name | idea | TFLOP/s | % of {vendor} | % of the limit | registers | warps an SM |",
           "| --- | --- | --- | --- | --- | --- | --- | --- |"]
    for r in rows:
        out.append(f"| {int(r['rung'])} | {r['name']} | {r['idea']} | {r['tflops']:.1f} | {percent(r, 'of_peer')} | {percent(r, 'of_limit')} | "
                   f"{int(r.get('registers', 0)) or ''} | {int(r.get('warps_per_sm', 0)) or ''} |")
    if peer:
        out.append(f"| | {peer['name']} | {PEER_IDEAS[peer['name']]} | {peer['tflops']:.1f} | 100 % | {percent(peer, 'of_limit')} | | |")
    return out


def passes_table(by_shape):
    """Attention: forward and backward of a shape side by side."""
    pairs = [(shape, {r["name"]: r for r in group}) for shape, group in by_shape.items()]
    pairs = [(shape, p) for shape, p in pairs if "forward" in p]
    if not pairs:
        return []
    with open(os.path.join(HERE, "bench", "results", FA3)) as f:
        fa3 = json.load(f)
    beside = {(r["shape"], r["name"]): r for r in fa3["rows"]}
    out = ["The columns cuDNN and FA3 (FlashAttention-3) give the speed of Lateen's kernel as a share of the peer's in the same run; over 100 %, Lateen is faster.",
           f"FlashAttention-3 was measured in a separate run on {fa3['when'][:10]} ([{FA3}](../bench/results/{FA3})): {fa3['note']}.", "",
           "| shape | forward, TFLOP/s | ms | cuDNN | FA3 | backward, TFLOP/s | ms | cuDNN | FA3 |", "| --- | --- | --- | --- | --- | --- | --- | --- | --- |"]
    for shape, p in pairs:
        cells = [shape]
        for way in ("forward", "backward"):
            r = p.get(way)
            cells += [f"{r['tflops']:.0f}", f"{r['ms']:.4f}", percent(r, "of_peer"), percent(beside.get((shape, way), {}), "of_peer")] if r else [""] * 4
        out.append("| " + " | ".join(cells) + " |")
    return out


def products_table(by_shape):
    """Products, compared with cuBLASLt's best."""
    pairs = [(shape, next((r for r in group if r["name"] == "shipped"), None), next((r for r in group if r["peer"]), None)) for shape, group in by_shape.items()]
    pairs = [(shape, ours, peer) for shape, ours, peer in pairs if ours]
    if not pairs:
        return []
    out = ["| shape | TFLOP/s | cuBLASLt | ratio | sustained: TFLOP/s, MHz, W |", "| --- | --- | --- | --- | --- |"]
    for shape, ours, peer in pairs:
        held = f"{ours['tflops'] * ours['ms'] / ours['ms_sustained']:.1f}, {ours['sm_mhz']:.0f}, {ours['power_w']:.0f}" if "ms_sustained" in ours else ""
        out.append(f"| {shape} | {ours['tflops']:.1f} | {peer['tflops'] if peer else 0:.1f} | {percent(ours, 'of_peer')} | {held} |")
    ratios = [ours["of_peer"] for _, ours, _ in pairs if "of_peer" in ours]
    if len(ratios) > 1:
        out += ["", f"Geometric mean of the {len(ratios)} ratios: {math.exp(sum(math.log(x) for x in ratios) / len(ratios)):.3f}."]
    return out


def thesis_table(results):
    """The grid of the thesis: largest absolute error, mean relative error and time for each type."""
    points = {}
    for row in (row for r in results for row in r["rows"] if row["op"] == "thesis"):
        points.setdefault(row["shape"], {})[row["name"]] = row
    if not points:
        return []
    kinds = ("fp32", "fp16", "bf16")
    out = ["## The grid of a thesis", "", "Forward attention without a mask, compared with the naive kernel in double on the same inputs (standard normal). The thesis requires of fp32 that",
           "the absolute error is at most 1e-4 and the mean relative error at most 1e-3.", "",
           "| shape | " + " | ".join(f"{k}: max abs | mean rel | ms" for k in kinds) + " |", "| --- |" + " --- |" * 9]
    for shape, p in points.items():
        out.append(f"| {shape} | " + " | ".join(f"{p[k]['error_max']:.1e} | {p[k]['error_relative']:.1e} | {p[k]['ms']:.4f}" if k in p else " | | " for k in kinds) + " |")
    return out + [""]


def draw(script):
    if "--check" not in sys.argv or shutil.which("gnuplot"):
        subprocess.run(["gnuplot"], input=script, text=True, check=True)


def figure(op, shape, rows, peer, path):
    data = "\n".join(f'"{int(r["rung"])} {r["name"]}" {r["tflops"]}' for r in rows)
    peer_line = f", {peer['tflops']} with lines lw 2 lc rgb '#c04040' title '{peer['name']}'" if peer else ""
    script = f"""set terminal svg size 900,420 font 'sans,12' background 'white'
set output '{path}'
set style fill solid 0.8
set boxwidth 0.7
set yrange [0:*]
set ylabel 'TFLOP/s'
set title '{op}, {shape}'
set xtics rotate by -35 nomirror
set grid ytics
set key left top
$d << EOD
{data}
EOD
plot $d using 0:2:xtic(1) with boxes lc rgb '#4070b0' notitle{peer_line}
"""
    draw(script)


def intensity(row):
    """Flop per byte that must at least be transferred, for products "M x N x K" and attention "bB sS hH dD"."""
    sizes = re.findall(r"(\d+) x (\d+) x (\d+)", row["shape"])
    if sizes:
        m, n, k = (int(x) for x in sizes[0])
        wide = 4 if row["op"] == "sgemm" else 2
        return 2 * m * n * k / (wide * (m * k + n * k + m * n))
    sizes = re.match(r"b(\d+) s(\d+) h(\d+) d(\d+)", row["shape"])
    if sizes and row["name"] == "forward":
        b, s, h, d = (int(x) for x in sizes.groups())
        return row["tflops"] * row["ms"] * 1e9 / (4 * b * s * h * d * 2)
    return None


def roofline(results, path):
    """Every shipped kernel that multiplies, under the roofs of the machine it ran on."""
    copy = max(r["copy_gbps"] for r in results)
    series = {"sgemm": [], "gemm": [], "attention": []}
    for row in (row for r in results for row in r["rows"]):
        if row["op"] in series and row["name"] in ("shipped", "forward") and intensity(row):
            series[row["op"]].append((intensity(row), row["tflops"]))
    blocks = "\n".join(f"${op} << EOD\n" + "\n".join(f"{x} {y}" for x, y in points) + "\nEOD" for op, points in series.items())
    script = f"""set terminal svg size 900,480 font 'sans,12' background 'white'
set output '{path}'
set logscale xy
set xrange [0.5:16384]
set yrange [0.5:2000]
set xlabel 'flop a byte of memory traffic'
set ylabel 'TFLOP/s'
set title 'H100: shipped kernels under its roofs'
set grid
set key bottom right
{blocks}
copy(x) = x * {copy / 1e3}
plot (copy(x) < 989 ? copy(x) : 989) lc rgb '#303030' lw 2 title 'copy bandwidth {copy:.0f} GB/s, tensor cores 989 TFLOP/s', \\
     (copy(x) < 66.9 ? copy(x) : 66.9) lc rgb '#909090' lw 2 dt 2 title 'f32 cores 66.9 TFLOP/s', \\
     $sgemm with points pt 7 ps 0.7 lc rgb '#4070b0' title 'SGEMM', $gemm with points pt 7 ps 0.7 lc rgb '#c04040' title 'bf16 GEMM', \\
     $attention with points pt 7 ps 0.7 lc rgb '#40a060' title 'attention forward'
"""
    draw(script)


def source(result):
    """A line that says where the tables below it were measured."""
    return [f"Measured on {result['when'][:10]}, {result['gpu']}, driver for CUDA {result['driver'] // 1000}.{result['driver'] % 1000 // 10}, copy bandwidth in the "
            f"same run {result['copy_gbps']:.0f} GB/s ([{result['file']}](../bench/results/{result['file']})).", ""]


def bytes_table(rows):
    out = ["| op | shape | ms | GB/s | % of copy bandwidth |", "| --- | --- | --- | --- | --- |"]
    return out + [f"| {r['name']} | {r['shape']} | {r['ms']:.3f} | {r['gbps']:.0f} | {percent(r, 'of_limit')} |" for r in rows] + [""]


def ladder(number, op, title, vendor, page, results, docs):
    """The rungs of a ladder, then its shipped kernel by shape."""
    out = [f"## Ladder {number}: {title}", "", f"The header of each file in [src/kernels/cuda/{op}/ladder](../src/kernels/cuda/{op}/ladder) explains its rung."
           + (f" [A separate page](kernels/{page}.md) explains the top rung." if page else ""), ""]
    shipped = []
    for result in results:
        by_shape = {}
        for r in (r for r in result["rows"] if r["op"] == op):
            by_shape.setdefault(r["shape"], []).append(r)
        rungs = {shape: [r for r in group if "rung" in r] for shape, group in by_shape.items()}
        if any(rungs.values()):
            out += source(result)
        for shape, group in ((s, g) for s, g in rungs.items() if g):
            peer = next((r for r in by_shape[shape] if r["peer"]), None)
            image = f"ladder_{op}_{shape.replace(' ', '')}.svg"
            figure(op, shape, group, peer, os.path.join(docs, "img", image))
            out += [f"**{shape}**", "", f"![{op} {shape}](img/{image})", ""] + ladder_table(group, peer, vendor) + [""]
        table = products_table(by_shape) + passes_table(by_shape)
        if table:
            shipped += [] if any(rungs.values()) else source(result)
            shipped += table + [""]
    return out + ["### The kernels that ship", ""] + shipped


def bytes_section(title, results, wanted):
    out = [title, ""]
    for result in results:
        rows = [r for r in result["rows"] if "gbps" in r and wanted(r)]
        out += source(result) + bytes_table(rows) if rows else []
    return out


def write(docs):
    """Write the page and its figures into a folder."""
    os.makedirs(os.path.join(docs, "img"), exist_ok=True)
    out = ["# GPU kernels, measured", "",
           "A ladder is a sequence of kernels for one op, from a naive one to the one that ships; each rung adds one idea. `lateen bench kernels --ladder",
           "--json FILE` measures them, and `tools/make_kernel_docs.py` writes this page from `bench/results`. Inputs are random normal numbers, buffers are",
           "rotated so that no input is in the L2 cache, candidates run in turns, and figures are medians. Every kernel is first checked against products or",
           "ops in double (odd shapes, poisoned outputs, bit-identical repeats). The limit of a product is what an SM can do in a clock at the boost clock:",
           "128 multiply-adds in fp32, or 4,096 flop on the tensor cores. The limit of an op that moves bytes is the copy bandwidth of the same run.",
           "[Every attempt](speed/index.md) tells what was tried and failed.", ""]
    results = []
    for path in sorted(glob.glob(os.path.join(HERE, "bench", "results", "kernels_*.json"))):
        with open(path) as f:
            results.append(dict(json.load(f), file=os.path.basename(path)))
    roofline(results, os.path.join(docs, "img", "roofline_h100.svg"))
    out += ["![Roofline](img/roofline_h100.svg)", ""]
    for number, row in enumerate(LADDERS, 1):
        out += ladder(number, *row, results, docs)
    out += bytes_section("### Decoding: one token against a paged cache", results, lambda r: r["op"] == "decode")
    out += bytes_section("## Ops that move bytes", results, lambda r: r["op"] != "decode")
    out += thesis_table(results)
    with open(os.path.join(docs, "kernels.md"), "w") as f:
        f.write("\n".join(out).rstrip() + "\n")


def drawn_by(path):
    """The version of gnuplot: figures of different versions differ in every line."""
    with open(path) as f:
        return re.findall("Produced by GNUPLOT .*", f.read())


def stale(fresh, docs):
    """Files of docs that differ from what this script makes now."""
    names = ["kernels.md"]
    if shutil.which("gnuplot"):
        made = {os.path.basename(p) for p in glob.glob(os.path.join(fresh, "img", "*.svg"))}
        kept = {os.path.basename(p) for pattern in ("ladder_*.svg", "roofline_*.svg") for p in glob.glob(os.path.join(docs, "img", pattern))}
        same = [n for n in made & kept if drawn_by(os.path.join(fresh, "img", n)) == drawn_by(os.path.join(docs, "img", n))]
        names += [os.path.join("img", n) for n in sorted(same + list(made ^ kept))]
    return [n for n in names if not all(os.path.exists(os.path.join(d, n)) for d in (fresh, docs))
            or not filecmp.cmp(os.path.join(fresh, n), os.path.join(docs, n), shallow=False)]


def main():
    docs = os.path.join(HERE, "docs")
    if "--check" not in sys.argv:
        write(docs)
        return
    with tempfile.TemporaryDirectory() as fresh:
        write(fresh)
        names = stale(fresh, docs)
    for name in names:
        print(f"docs/{name} is out of date: run tools/make_kernel_docs.py")
    sys.exit(1 if names else 0)


if __name__ == "__main__":
    main()
