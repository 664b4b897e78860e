"""Draws the curves of reinforcement learning as SVG, from metrics.jsonl: reward and held-out accuracy, length of answers, entropy, and groups whose answers are
all rewarded alike. Standard library only.

usage: curves.py metrics.jsonl >curves.svg"""
import json
import sys

WIDTH, HEIGHT, LEFT, GAP, TOP = 360, 150, 52, 34, 40
BLUE, ORANGE, GREY = "#1f77b4", "#d95f02", "#999"

rows = [json.loads(line) for line in open(sys.argv[1], encoding="utf-8") if '"rl' in line]
drawn, held = ([r for r in rows if r["kind"] == kind] for kind in ("rl", "rl_eval"))
last = max(r["step"] for r in rows)


def series(rows, key, scale=1.0):
    return [(r["step"], r[key] * scale) for r in rows if key in r]


def smooth(points, window=15):
    """The mean of each point and its neighbours."""
    return [(x, sum(y for _, y in near) / len(near)) for i, (x, _) in enumerate(points) for near in [points[max(0, i - window // 2) : i + window // 2 + 1]]]


def panel(column, row, title, top, lines):
    x0, y0 = LEFT + column * (WIDTH + LEFT + 16), TOP + row * (HEIGHT + TOP + GAP)

    def at(x, y):
        return f"{x0 + x / last * WIDTH:.1f},{y0 + HEIGHT - y / top * HEIGHT:.1f}"

    out = [f'<text x="{x0}" y="{y0 - 12}" font-weight="bold">{title}</text>']
    for i in range(5):
        y = y0 + HEIGHT - i / 4 * HEIGHT
        out.append(f'<line x1="{x0}" y1="{y}" x2="{x0 + WIDTH}" y2="{y}" stroke="#ddd"/><text x="{x0 - 6}" y="{y + 4}" text-anchor="end">{i / 4 * top:g}</text>')
    for step in range(0, last + 1, 200):
        out.append(f'<text x="{x0 + step / last * WIDTH:.1f}" y="{y0 + HEIGHT + 16}" text-anchor="middle">{step}</text>')
    for label, colour, dots, points in lines:
        out.append(f'<polyline fill="none" stroke="{colour}" stroke-width="1.6" points="{" ".join(at(x, min(y, top)) for x, y in points)}"/>')
        out += [f'<circle cx="{p[0]}" cy="{p[1]}" r="2.2" fill="{colour}"/>' for p in (at(x, y).split(",") for x, y in points) if dots]
    low = all(points[-1][1] < top / 2 for _, _, _, points in lines)  # Labels stand where no curve ends.
    for i, (label, colour, _, _) in enumerate(lines):
        y = y0 + 15 * (i + 1) if low else y0 + HEIGHT - 10 - 15 * i
        out.append(f'<text x="{x0 + WIDTH - 6}" y="{y}" text-anchor="end" fill="{colour}">{label}</text>')
    return "\n".join(out)


panels = [
    panel(0, 0, "Right answers, %", 100, [("reward of drawn answers (mean of 15 steps)", BLUE, False, smooth(series(drawn, "reward", 100))),
                                          ("held out, greedy", ORANGE, True, series(held, "reward", 100))]),
    panel(1, 0, "Tokens of an answer", 120, [("drawn (mean of 15 steps)", BLUE, False, smooth(series(drawn, "answer_tokens"))),
                                             ("held out, greedy", ORANGE, True, series(held, "answer_tokens"))]),
    panel(0, 1, "Entropy, nats a token", 0.12, [("drawn (mean of 15 steps)", BLUE, False, smooth(series(drawn, "entropy")))]),
    panel(1, 1, "Groups rewarded alike, %", 100, [("from these nothing is learnt (mean of 15 steps)", BLUE, False, smooth(series(drawn, "equal_groups", 100)))]),
]
width, height = 2 * (WIDTH + LEFT + 16), 2 * (HEIGHT + TOP + GAP) + 8
print(f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="11" fill="#333">')
print(f'<rect width="{width}" height="{height}" fill="#fff"/>')
print("\n".join(panels))
print(f'<text x="{width / 2}" y="{height - 6}" text-anchor="middle" fill="{GREY}">optimiser steps</text>\n</svg>')
