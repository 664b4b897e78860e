"""The report of a run in headless Chromium: its axes are readable, nothing is cut off, and it fits a phone. TAP.

usage: report_page.py REPORT.html CHROMIUM [--shots FOLDER]"""
import pathlib
import re
import sys

from browser import Browser
from tap import Tap

tap = Tap()
b = Browser(sys.argv[2], pathlib.Path(sys.argv[1]).resolve().as_uri(), sys.argv[4] if len(sys.argv) > 4 else None)
CUT = """[...document.querySelectorAll('svg text')].filter(t => t.textContent && (r => s => r.left < s.left - .5 || r.right > s.right + .5)(t.getBoundingClientRect())
  (t.closest('svg').getBoundingClientRect())).map(t => t.textContent)"""
AXES = "[...document.querySelectorAll('svg')].flatMap(s => ['x', 'y'].map(k => [...s.querySelectorAll('text.' + k)].map(t => t.textContent)))"
for width in (1200, 390):
    b.size(width, 900, width < 600)
    b.go("")
    tap.check(f"report: plots are there at {width}", b.js("document.querySelectorAll('svg polyline').length") >= 5)
    tap.check(f"report: no label is cut at {width}", b.js(CUT) == [], b.js(CUT))
    tap.check(f"report: labels can be read at {width}", b.js("Math.min(...[...document.querySelectorAll('svg text')].filter(t => t.textContent).map(t => t.getBoundingClientRect().height))") >= 9)
    tap.check(f"report: nothing wider than the screen at {width}", b.wait(f"document.documentElement.scrollWidth <= {width}", 5),
              b.js("[...document.querySelectorAll('*')].filter(e => e.getBoundingClientRect().right > innerWidth).map(e => e.tagName + ' ' + e.id + ' ' + e.textContent.slice(0, 40)).slice(-4)"))
    b.shot(f"report_{width}")
    b.js("put('ranks', ...ranks({steps: 3, slowest: 0, ranks: [0, 1].map(rank => ({rank, compute_s: .1, comm_s: .1, transfer_s: .1, announced_bytes: 1e9, peak_bytes: 1e9}))})); true")
    tap.check(f"report: words in the table of ranks are whole at {width}", b.js("Math.min(...[...document.querySelectorAll('#ranks th')].slice(1, 4).map(t => t.clientWidth))") >= 45 and
              b.js("document.documentElement.scrollWidth") <= width, b.js("[...document.querySelectorAll('#ranks th')].map(t => t.clientWidth)"))
odd = [axis for axis in b.js(AXES) if len({re.sub(r"[-0-9]+(\.?)(\d*)", lambda m: "1" + "." * len(m[2]), t, count=1) for t in axis if t != "0"}) > 1]
tap.check("report: the labels of an axis have one unit and one number of decimals", odd == [], odd)
tap.check("report: an axis has labels", all(len(axis) >= 2 for axis in b.js(AXES)), b.js(AXES))
words = [b.js("labels(ticks(%s, %s, %s)).join(' ')" % t) for t in ((7.49, 7.51, 4), (0, 5e-4, 4), (900, 1350, 4), (0, 12500, 5), (0, 3.2e6, 4), (-2, 2, 4))]
tap.check("report: labels of known axes", words == ["7.490 7.495 7.500 7.505 7.510", "0 1e-4 2e-4 3e-4 4e-4 5e-4", "900 1000 1100 1200 1300", "0 2K 4K 6K 8K 10K 12K", "0 1M 2M 3M", "-2 -1 0 1 2"], words)
ended = b.js("""(saved => { data = {title: 't', version: 'v', rows: [{kind: 'start', steps: 7, model: 'm', threads: 1}, {kind: 'train', step: 5, tokens_per_s: 9, step_s: 1}, {kind: 'end', step: 7}]};
  draw(); const t = document.getElementById('sub').textContent; data = saved; draw(); return t; })(data)""")
tap.check("report: a run whose last step is not a multiple of log.every is finished", ended.startswith("step 7 of 7, finished") and " 1 thread " in ended, ended)
b.js("draw(); true")
b.close()
sys.exit(tap.end())
