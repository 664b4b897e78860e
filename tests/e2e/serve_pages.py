"""The pages of `lateen serve` in headless Chromium: asking, streaming, stopping, regenerating, several samples, keyboard, phone width, reloading. TAP.

usage: serve_pages.py BASE_URL CHROMIUM [--shots FOLDER]"""
import json
import sys
import time

from browser import Browser
from tap import Tap

base, chromium = sys.argv[1], sys.argv[2]
shots = sys.argv[4] if len(sys.argv) > 4 else None
tap = Tap()
check = tap.check


def settings(**kw):
    code = "".join(f"document.getElementById('{k}').value = {json.dumps(str(v))};" for k, v in kw.items())
    b.js("document.getElementById('settings').click(); " + code + "document.querySelector('#panel .primary').click(); true")
    b.wait("!document.getElementById('panel').open")
    b.wait(" && ".join(f"String(settings.{k}) === {json.dumps(str(v))}" for k, v in kw.items()), 5)


IDLE = "document.getElementById('send').textContent === 'Send'"
ANSWER = "document.querySelector('.turn.assistant:last-child .body')?.textContent.length ?? 0"
b = Browser(chromium, base, shots)
b.size(1200, 800)
b.go("/")
check("chat: the model's name is shown", b.wait("document.getElementById('model').textContent.length > 2"))
PAPER, RESTS = "document.getElementById('paper').value", "document.getElementById('send').textContent === 'Write on'"
check("write: a model without a chat template gets a page to write on", b.wait("!document.getElementById('desk').hidden")
      and b.js("document.activeElement.id") == "paper" and b.js("document.getElementById('mode').value") == "write")
b.shot("write_empty")
settings(max_tokens=24, temperature=0)
b.js("document.getElementById('paper').focus()")
b.words("Once")
b.js("document.getElementById('paper').dispatchEvent(new KeyboardEvent('keydown', { key: 'Enter', ctrlKey: true, bubbles: true })); true")
check("write: the model continues after the text", b.wait(f"{PAPER}.startsWith('Once upon a time, there was')") and b.wait(RESTS), b.js(PAPER))
check("write: tokens per second are shown", b.wait("document.getElementById('hint').textContent.includes('tok/s')"), b.js("document.getElementById('hint').textContent"))
b.shot("write")
b.js("document.getElementById('undo').click(); true")
check("write: undo takes it back", b.js(PAPER) == "Once")
settings(n=3, temperature=1)
b.js("document.getElementById('send').click(); true")
check("write: three drafts", b.wait("document.querySelectorAll('#drafts button:enabled').length === 3") and b.wait(RESTS))
b.shot("write_drafts")
b.js("document.querySelectorAll('#drafts button')[1].click(); true")
check("write: one is taken", len(b.js(PAPER)) > 10 and b.js("document.querySelectorAll('#drafts button').length") == 0, b.js(PAPER))
settings(n=1)
b.js("setPaper('A line of a long text that was written before.\\n'.repeat(90)); toEnd(); true")
b.js("document.getElementById('send').click(); true")
b.wait("document.getElementById('hint').textContent.includes('tok/s')") and b.wait(RESTS)
check("write: the end stays in sight when the model continues", b.js("nearEnd()"), b.js("(s => [s.scrollTop, s.scrollHeight, s.clientHeight])(document.getElementById('scroll'))"))
b.js("document.getElementById('scroll').scrollTop = 300; document.getElementById('send').click(); true")
b.wait("document.getElementById('send').textContent === 'Stop'") and b.wait(RESTS)
check("write: a reader further up stays there", abs(b.js("document.getElementById('scroll').scrollTop") - 300) < 2, b.js("document.getElementById('scroll').scrollTop"))
b.js("setPaper('Once upon a time there was a dog. '.repeat(200)); true")
b.js("document.getElementById('send').click(); true")
check("write: a text longer than the context continues from its end", b.wait("document.getElementById('hint').textContent.includes('out of sight')"), b.js("document.getElementById('hint').textContent"))
b.size(390, 844, True)
check("write: fits a phone", b.js("document.documentElement.scrollWidth") <= 390
      and b.js("[...document.querySelectorAll('header *, #send, #undo')].every(e => e.getBoundingClientRect().right <= 390)"))
bottoms = b.js("['send', 'undo'].map(i => document.getElementById(i).getBoundingClientRect()).map(r => [Math.round(r.top), Math.round(r.bottom)])")
check("write: the buttons are in one line on a phone", bottoms[0] == bottoms[1], bottoms)
check("phone: the model's name is whole", b.js("(e => e.scrollWidth <= e.clientWidth)(document.getElementById('model'))"), b.js("document.getElementById('model').textContent"))
b.shot("write_phone")
b.size(1200, 800)
b.js("document.getElementById('new').click(); const m = document.getElementById('mode'); m.value = 'chat'; m.dispatchEvent(new Event('change')); true")
b.shot("empty")
check("chat: the message has the focus", b.js("document.activeElement.id") == "words")
ASKS = "document.querySelectorAll('.asks button').length"
before = b.js(ASKS)
name = b.js("(e => { const name = e.textContent; e.textContent = 'reasoner-23m'; draw(); return name; })(document.getElementById('model'))")
check("chat: questions are proposed for the model that ships with Lateen, and for no other", [before, b.js(ASKS)] == [0, 4], [before, b.js(ASKS)])
b.js(f"document.getElementById('model').textContent = {json.dumps(name)}; draw(); true")
settings(max_tokens=60, temperature=0)
b.js("document.getElementById('words').focus()")
b.words("Once upon a time")
b.key("Enter", 13, "\r")
check("chat: an answer streams", b.wait(f"({ANSWER}) > 5"))
check("chat: it ends", b.wait(IDLE))
foot = b.js("document.querySelector('.turn.assistant .foot span').textContent")
check("chat: tokens per second are shown", "tok/s" in foot and "tokens" in foot, foot)
b.shot("answer")
first = b.js("document.querySelector('.turn.assistant .body').textContent")
b.js("document.querySelector('.again').click(); true")
check("chat: regenerate gives another answer beside the first", b.wait(IDLE) and b.wait(f"({ANSWER}) > 5")
      and b.js("document.querySelectorAll('.turn').length") == 2 and b.js("document.querySelector('.turn.assistant .branches').textContent") == "‹2 of 2›")
check("chat: greedy regenerates the same", b.wait(IDLE) and b.js("document.querySelector('.turn.assistant .body').textContent") == first)
b.go("/")
check("chat: the conversation outlives a reload", b.js("document.querySelectorAll('.turn').length") == 2)
settings(n=3, temperature=1.2)
b.js("document.getElementById('words').focus()")
b.words("And then?")
b.key("Enter", 13, "\r")
check("chat: three samples side by side", b.wait("document.querySelectorAll('.turn:last-child .sample').length === 3") and b.wait(IDLE))
lefts = b.js("[...document.querySelectorAll('.turn:last-child .sample')].map(e => Math.round(e.getBoundingClientRect().left))")
check("chat: they stand beside each other", len(set(lefts)) == 3, lefts)
b.shot("samples")
b.js("[...document.querySelectorAll('.turn:last-child .sample button')].filter(e => e.textContent === 'Go on with this')[1].click(); true")
check("chat: one is chosen", b.js("document.querySelectorAll('.sample.chosen').length") == 1)
settings(n=1, max_tokens="", temperature=1)
b.js("document.getElementById('words').focus()")
b.words("Tell a long story")
b.key("Enter", 13, "\r")
b.wait(f"({ANSWER}) > 5")
b.key("Escape", 27)
check("chat: one sample again", b.js("document.querySelectorAll('.turn:last-child .sample').length") == 1, b.js("JSON.stringify(settings)"))
check("chat: Escape stops", b.wait(IDLE, 5))
check("chat: what was written stays", b.js(ANSWER) > 0)
# How far the answer got depends on the machine. A long one would fill the model's context, and
# the server would refuse the turns below.
b.js("(sample => { sample.text = sample.text.slice(0, 40); })(turns[turns.length - 1].samples[0]); true")
b.js("document.getElementById('words').focus()")
b.key("ArrowUp", 38)
check("keyboard: arrow up edits the last message", b.js("document.getElementById('words').value") == "Tell a long story")
shown = b.js("document.querySelectorAll('.turn').length")
b.key("Escape", 27)
check("chat: Escape ends the editing, nothing is lost", b.js("document.getElementById('words').value") == "" and b.js("document.querySelectorAll('.turn').length") == shown)
settings(max_tokens=8)
b.js("[...document.querySelectorAll('.turn.user button')].find(e => e.textContent === 'Edit').click(); document.getElementById('words').value = 'Twice upon'; send(); true")
check("chat: an edited message begins another branch", b.wait(IDLE) and b.wait(f"({ANSWER}) > 0") and b.js("document.querySelectorAll('.turn').length") == 2
      and b.js("document.querySelector('.turn.user .text').textContent") == "Twice upon")
b.shot("branch")
b.js("document.querySelector('.turn.user .branches button').click(); true")
check("chat: the turns after the old wording are still there", b.js("document.querySelector('.turn.user .text').textContent") == "Once upon a time"
      and b.js("document.querySelectorAll('.turn').length") == shown, b.js("document.querySelectorAll('.turn').length"))
b.js("addTurn({ role: 'user', text: 'Reason' }); addTurn({ role: 'assistant', chosen: 0, samples: [{ think: 'Let me see.\\nYes.', "
     "thought: 1.5, text: 'It is so:\\n\\n```c\\nint x;\\n```\\n\\n- a\\n- **b** <script>', stats: { tokens: 9, rate: 30 }, done: true }] }); draw(); toEnd(); true")
check("chat: reasoning is folded", b.js("(d => !d.open && d.textContent.startsWith('Thought for 1.5 s'))(document.querySelector('details.think'))"))
check("chat: code has a button to copy it, and text is never HTML", b.js("document.querySelectorAll('.code button').length") == 1
      and b.js("document.querySelectorAll('.turn script').length") == 0)
b.js("addTurn({ role: 'user', text: 'Twice' }); addTurn({ role: 'assistant', chosen: 0, samples: [{ think: 'One. Again and again. Two.', thought: 1, text: 'So it is.', stats: { tokens: 9 }, done: true, "
     "control: { control: 'entropy', reasoning_tokens: 9, stopped_by: 'settled', trial_tokens: 3, saved_most: 70, cuts: [{ at: 2, tokens: 4, text: ' Again and again.' }] } }] }); draw(); toEnd(); true")
check("chat: a path that was cut is struck out, and the page says why the reasoning ended", b.js("document.querySelector('.turn:last-child details.think del').textContent") == "Again and again."
      and b.js("document.querySelector('.turn:last-child details.think div').textContent") == "One. Again and again.✂ cut: 4 tokens that repeated themselves Two."
      and b.js("document.querySelector('.turn:last-child .reports').textContent") == "entropy: 9 tokens of reasoning · ended: settled · 3 for trials · at most 70 saved")
b.js("document.querySelector('.turn:last-child details.think').open = true; toEnd(); true")
b.shot("cut")
b.js("(p => { p.kids.length--; p.live = 0; walk(); draw(); })(turns.at(-3)); true")
settings(alignment='{"method": "speculative_rejection", "n": 4, "every": 8}', confidence="on", max_tokens=24, temperature=1)
b.js("document.getElementById('words').value = 'Once upon a time'; send(); true")
check("chat: candidates stand side by side", b.wait(IDLE) and b.wait("document.querySelectorAll('.turn:last-child .reports .sample').length === 4"), b.js("document.querySelector('.turn:last-child').textContent"))
check("chat: one is kept, with its score; where others were cut is marked", b.js("document.querySelectorAll('.turn:last-child .reports .chosen').length") == 1
      and "Kept · score -" in b.js("document.querySelector('.turn:last-child .reports .chosen .foot').textContent") and b.js("document.querySelectorAll('.turn:last-child .reports .cut').length") == 3
      and b.js("document.querySelector('.turn:last-child .reports summary').textContent").startswith("speculative_rejection · 4 candidates · 3 cut"))
words = b.js("[...document.querySelectorAll('.turn:last-child .body .tokens > span')].map(e => [e.className, e.textContent, e.title])")
check("chat: the answer's confidence is under it, token by token", "".join(w[1] for w in words) == b.js("turns.at(-1).samples[0].text.trim()") and len({w[0] for w in words}) >= 4
      and all(w[2].startswith("confidence ") for w in words), words)
b.shot("candidates")
b.size(390, 844, True)
check("phone: candidates are not wider than the screen", b.js("document.documentElement.scrollWidth") <= 390)
b.shot("candidates_phone")
b.size(1200, 800)
b.js("(p => { p.kids.length--; p.live = 0; walk(); draw(); })(turns.at(-3) ?? now.nodes[ROOT]); true")
settings(alignment="{best", confidence="")
b.js("document.getElementById('words').value = 'x'; send(); true")
check("chat: settings that are not JSON are reported", b.wait("document.querySelector('.turn:last-child .error')?.textContent.startsWith('Settings, method of alignment')"))
b.js("(p => { p.kids.length--; p.live = 0; walk(); draw(); })(turns.at(-3) ?? now.nodes[ROOT]); true")
settings(alignment="", temperature=1, max_tokens=8)
MARKED = [  # Markdown, and the tags and words that it becomes.
    ("Three:\n1. one\n\n2. two\n\n7) seven\nand:\n- a\n- b\n## End\nbye", "<p>Three:</p><ol><li>one</li><li>two</li><li>seven</li></ol><p>and:</p><ul><li>a</li><li>b</li></ul><h3>End</h3><p>bye</p>"),
    ("# A\n###### B", "<h2>A</h2><h6>B</h6>"),
    ("a &amp; b &lt;i&gt; &#39;&#x41;&eacute; &nosuch; &amp;lt; `&lt;`\n\n| a |\n|--|\n| 1<br>2<BR/>3 |", "<p>a &amp; b &lt;i&gt; 'A\u00e9 &amp;nosuch; &amp;lt; <code>&amp;lt;</code></p><div><table><thead><tr><th>a</th></tr></thead><tbody><tr><td>1<br>2<br>3</td></tr></tbody></table></div>"),
    ("- a\n  - b\n    1. c\n- [x] d", '<ul><li>a<ul><li>b<ol><li>c</li></ol></li></ul></li><li><input> d</li></ul>'),
    ("> one\n> > two\n\nend", "<blockquote><p>one</p><blockquote><p>two</p></blockquote></blockquote><p>end</p>"),
    ("| a | b |\n|---|--:|\n| `x|y` | 2 |\n| 3 |", "<div><table><thead><tr><th>a</th><th>b</th></tr></thead><tbody><tr><td><code>x|y</code></td><td>2</td></tr><tr><td>3</td><td></td></tr></tbody></table></div>"),
    ("see [the *page*](https://x.org/a_(b)), https://y.org/z. [no](javascript:alert(1))", "<p>see <a>the <em>page</em></a>, <a>https://y.org/z</a>. <span>no</span></p>"),
    ("**b *i* b** ~~s~~ 2*3*4 a_b_c \\*n\\*", "<p><strong>b <em>i</em> b</strong> <del>s</del> 2<em>3</em>4 a_b_c *n*</p>"),
    ("$x_1^2$ costs $5 and $6\n\n$$\\frac{a}{\\sqrt{b}}$$", "<p><math><msubsup><mi>x</mi><mn>1</mn><mn>2</mn></msubsup></math> costs $5 and $6</p><math><mfrac><mi>a</mi><msqrt><mi>b</mi></msqrt></mfrac></math>"),
    ("\\(\\begin{pmatrix}1&2\\\\3&4\\end{pmatrix}\\) \\(\\unknown{\\)", "<p><math><mrow><mo>(</mo><mtable><mtr><mtd><mn>1</mn></mtd><mtd><mn>2</mn></mtd></mtr><mtr><mtd><mn>3</mn></mtd><mtd><mn>4</mn></mtd></mtr></mtable><mo>)</mo></mrow></math> <code>\\unknown{</code></p>"),
    ("<b>x</b> & <img src=x onerror=alert(1)>\n\n***\n\n~~~\n*a*\n~~~", "<p>&lt;b&gt;x&lt;/b&gt; &amp; &lt;img src=x onerror=alert(1)&gt;</p><hr><div><pre><code>*a*</code></pre><button>Copy</button></div>"),
]
for text, wanted in MARKED:
    got = b.js("(to => { markdown(to, " + json.dumps(text) + "); return to.innerHTML.replace(/<([a-z0-9]+)[^>]*>/g, '<$1>'); })(document.createElement('div'))")
    check("chat: Markdown: " + text[:30].replace("\n", " "), got == wanted, got)
check("chat: links leave the page alone, and only the web's are links", b.js("(to => { markdown(to, '[a](https://x.org) [b](data:text/html,x) [c](mailto:x@y.org)'); "
      "return [...to.querySelectorAll('a')].map(a => a.href + ' ' + a.target + ' ' + a.rel).join(); })(document.createElement('div'))")
      == "https://x.org/ _blank noopener noreferrer nofollow,mailto:x@y.org _blank noopener noreferrer nofollow")
deep = b.js("(to => { const t = performance.now(); markdown(to, '> '.repeat(5000) + 'x\\n' + '['.repeat(5000) + '*a'.repeat(5000)); return performance.now() - t; })(document.createElement('div'))")
check("chat: nested and broken marks end in time", deep < 3000, deep)
b.js("addTurn({ role: 'user', text: 'Show it' }); addTurn({ role: 'assistant', chosen: 0, samples: [{ text: " + json.dumps("\n\n".join(t for t, _ in MARKED[1:8])) + ", stats: { tokens: 1 }, done: true }] }); draw(); toEnd(); true")
b.shot("marked")
b.js("(p => { p.kids.length--; p.live = 0; walk(); draw(); })(turns.at(-3)); true")
b.js("document.querySelector('.code button').click(); true")
check("chat: copying is confirmed", b.wait("document.querySelector('.code button').textContent !== 'Copy'", 5))
b.shot("reasoning")
b.js("document.querySelector('details.think summary').focus(); true")
b.key("Enter", 13, "\r")
check("keyboard: Enter unfolds it", b.wait("document.querySelector('details.think').open", 5))
b.js("(p => { p.kids.length--; p.live = 0; walk(); save(); draw(); })(turns.at(-3)); true")
# What is sent: only what was set here, and no question without an answer.
b.js("""window.sent = []; window.really = fetch; fetch = (url, o) => { if (o?.body) sent.push(JSON.parse(o.body)); return really(url, o); };
document.getElementById('settings').click(); document.getElementById('reset').click(); document.querySelector('#panel .primary').click(); true""")
b.wait("!document.getElementById('panel').open")
settings(max_tokens=4)
b.js("milder = false; document.getElementById('words').value = 'plain'; send(); true")
b.wait("sent.length === 1") and b.wait(IDLE)
asked = b.js("sent[0]")
check("chat: what was not set is not sent", not {"temperature", "top_p", "top_k", "min_p", "repetition_penalty", "seed"} & set(asked) and asked["max_tokens"] == 4, asked)
b.js("fetch = () => Promise.reject(new Error('no way')); document.getElementById('words').value = 'lost question'; send(); true")
check("chat: a failure is shown", b.wait("document.querySelector('.turn:last-child .error')?.textContent === 'no way'"))
b.js("fetch = (url, o) => { if (o?.body) sent.push(JSON.parse(o.body)); return really(url, o); }; document.getElementById('words').value = 'next'; send(); true")
b.wait("sent.length === 2") and b.wait(IDLE)
contents = [m["content"] for m in b.js("sent[1]")["messages"]]
check("chat: a failed turn is not part of the next request", "lost question" not in contents and contents[-1] == "next" and "plain" in contents, contents)
b.js("fetch = really; true")
# The list of conversations.
before = b.js("index.length")
b.js("document.getElementById('new').click(); true")
check("list: New keeps the old conversation", b.js("document.querySelectorAll('.turn').length") == 0 and b.js("document.querySelectorAll('#list li').length") == before)
settings(max_tokens=4)
b.js("document.getElementById('words').value = 'A second talk'; send(); true")
b.wait(IDLE) and b.wait(f"({ANSWER}) > 0")
check("list: a new conversation is in it", b.js("document.querySelector('#list li.open .name span').textContent") == "A second talk" and b.js("document.querySelectorAll('#list li').length") == before + 1)
b.shot("list")
b.js("document.querySelectorAll('#list li')[1].querySelector('.name').click(); true")
check("list: the other one opens", b.js("document.querySelector('.turn.user .text').textContent") in ("Once upon a time", "Twice upon"))
b.js("[...document.querySelectorAll('#list li')].find(e => e.textContent.includes('A second talk')).querySelector('[title=Delete]').click(); true")
check("list: one is deleted", b.js("index.length") == before)
b.js("document.querySelector('#notice button').click(); true")
check("list: and comes back by Undo", b.js("index.length") == before + 1 and b.js("document.querySelector('.turn.user .text').textContent") == "A second talk")
b.js("""window.saved = ''; window.blob = URL.createObjectURL; URL.createObjectURL = x => { x.text().then(t => { saved = t; }); return blob.call(URL, x); }; document.getElementById('export-all').click(); true""")
b.wait("saved !== ''")
files = json.loads(b.js("saved"))["conversations"]
check("list: all are exported", len(files) == before + 1, len(files))
b.js("importFile(new File([saved], 'x.json')).then(() => true)")
check("list: and read again", b.js("index.length") == 2 * (before + 1))
b.js("importFile(new File(['{}'], 'y.json')).then(() => true)")
check("list: a file of something else is refused", "y.json cannot be read" in b.js("document.getElementById('notice').textContent"))
b.js("index.splice(before = " + str(before + 1) + "); store.set('index', index); drawList(); choose(index.find(x => x.kind === 'chat' && x.title !== 'A second talk').id); document.getElementById('notice').hidden = true; true")
check("chat: a user at this machine reads that everything stays here", b.js("(c => { begin('chat'); draw(); const t = document.getElementById('log').textContent; choose(c); return t; })(now.id)").endswith("stays on this machine."))
b.size(390, 844, True)
b.go("/")
b.wait("document.querySelectorAll('.turn').length > 0")
check("phone: nothing wider than the screen", b.js("document.documentElement.scrollWidth") <= 390
      and b.js("document.getElementById('scroll').scrollWidth") <= 390, b.js("document.documentElement.scrollWidth"))
check("phone: send is on the screen", b.js("(r => r.right <= 390 && r.bottom <= 844)(document.getElementById('send').getBoundingClientRect())"))
b.shot("phone")
b.js("document.getElementById('settings').click(); true")
b.shot("phone_settings")
check("phone: settings fit", b.js("(r => r.left >= 0 && r.right <= 390 && r.bottom <= 844)(document.getElementById('panel').getBoundingClientRect())"))
b.key("Escape", 27)
order = []
b.js("document.getElementById('words').focus()")
for _ in range(60):
    b.key("Tab", 9)
    order.append(b.js("document.activeElement.id || document.activeElement.textContent"))
check("keyboard: Tab reaches send, settings and new", {"send", "settings", "new"} <= set(order), order)
b.scheme("dark")
b.size(1200, 800)
b.shot("dark")
check("dark: the background is dark", b.js("getComputedStyle(document.body).backgroundColor") == "rgb(22, 22, 20)"
      or b.js("getComputedStyle(document.body).backgroundColor") == "rgb(22, 23, 22)", b.js("getComputedStyle(document.body).backgroundColor"))
settings(n=1, max_tokens="", temperature=1)
# A new conversation: the earlier turns were sampled at random and may fill the context, which the
# server would refuse.
b.js("document.getElementById('new').click(); document.getElementById('words').focus()")
b.words("One more")
b.key("Enter", 13, "\r")
b.wait(f"({ANSWER}) > 5")
came = b.js(ANSWER)  # The answer is sampled at random, and may end soon.
b.go("/status")
b.go("/")
check("chat: the answer so far is still there after a look at the status page", came > 0 and b.wait(f"({ANSWER}) >= {came}", 3), (came, b.js(ANSWER)))
b.size(320, 600, True)
check("phone: 320 wide, nothing beyond it", b.js("document.documentElement.scrollWidth") <= 320
      and b.js("[...document.querySelectorAll('header button, header select, header summary')].every(e => e.getBoundingClientRect().right <= 320)"))
b.js("document.getElementById('lists').click(); true")
check("phone: the list opens, and Escape closes it", b.js("getComputedStyle(document.getElementById('side')).visibility") == "visible")
b.shot("phone_list")
b.key("Escape", 27)
check("phone: Escape closes it", b.js("getComputedStyle(document.getElementById('side')).visibility") == "hidden" and b.js("document.activeElement.id") == "lists")
b.shot("narrow")
b.size(1200, 800)
b.go("/status")
check("status: numbers come", b.wait("document.querySelectorAll('tr').length > 8"))
time.sleep(3)
b.shot("status_dark")
check("status: plots are drawn", b.js("[...document.querySelectorAll('canvas')].every(c => c.getContext('2d').getImageData(0, 0, c.width, c.height).data.some(v => v))"))
b.scheme("light")
b.size(390, 844, True)
check("status: fits a phone", b.js("document.documentElement.scrollWidth") <= 390)
time.sleep(1.2)
b.shot("status_phone")
hosts = {e["params"]["request"]["url"] for e in b.events if e.get("method") == "Network.requestWillBeSent"}
check("no request leaves for another host", all(u.startswith((base, "data:", "about:")) for u in hosts), hosts)
errors = [e["params"] for e in b.events if e.get("method") == "Runtime.exceptionThrown" or
          (e.get("method") == "Log.entryAdded" and e["params"]["entry"]["level"] == "error")]
check("no error on the console", not errors, errors)
b.close()
sys.exit(tap.end())
