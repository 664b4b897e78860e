/* ---- Methods of alignment: what they asked, and what the answer says of candidates, confidence and paths that were cut. ---- */
const GUIDES = ['watermark', 'steer', 'guidance', 'contrastive', 'dexperts', 'proxy_tuning']; // These have no candidates.
function fromJSON(text, name) {
  try { const o = JSON.parse(text); if (o && typeof o === 'object') return o; } catch { /* told below */ }
  throw new Error(`Settings, ${name}: this is no JSON object, such as {"method": "best_of_n", "n": 4}`);
}
/* The fields of a request. */
function alignment() {
  const b = {};
  if (settings.alignment) {
    const a = fromJSON(settings.alignment, 'method of alignment');
    b.alignment = GUIDES.includes(a.method) ? a : { return_candidates: true, ...a };
  }
  if (settings.control) b.reasoning = fromJSON(settings.control, 'control of reasoning');
  if (settings.confidence) { b.logprobs = true; b.top_logprobs = 20; }
  return b;
}
/* What an event of the answer says, kept with the sample. A token: [text, confidence, probability], its confidence less the mean log-probability of the 20
 * likeliest in its place. */
function takeReports(s, e, choice) {
  if (e.alignment) s.group = e.alignment;
  if (e.reasoning_control) s.control = e.reasoning_control;
  for (const t of choice?.logprobs?.content ?? []) {
    const top = t.top_logprobs?.length ? t.top_logprobs : [t];
    (s.tokens ??= []).push([t.token, -top.reduce((sum, x) => sum + x.logprob, 0) / top.length, Math.exp(t.logprob)]);
  }
}
/* The tokens of which a text consists, or null; reasoning, marks and white space stand around them. */
function tokensOf(text, tokens) {
  const all = tokens.map(t => t[0]).join(''), want = text.trim();
  let at = want ? all.lastIndexOf(want) : -1;
  if (at < 0) return null;
  const end = at + want.length, out = [];
  let from = 0;
  for (const [word, c, p] of tokens) {
    const piece = word.slice(Math.max(0, at - from), Math.max(0, end - from));
    if (piece) out.push([piece, c, p]);
    from += word.length;
  }
  return out;
}
/* Which fifth of the answer's tokens: how sure a model is in numbers depends on its vocabulary. */
function levels(tokens) {
  const sorted = tokens.map(t => t[1]).sort((a, b) => a - b);
  const bounds = [1, 2, 3, 4].map(k => sorted[Math.floor(k * sorted.length / 5)]);
  return c => bounds.filter(x => c >= x).length;
}
/* The text with its confidence under it, as written: Markdown would tear the tokens apart. */
function coloured(box, text, tokens) {
  const mine = tokensOf(text, tokens);
  if (!mine) return false;
  const levelOf = levels(mine);
  box.replaceChildren(el('div', { className: 'tokens' }, ...mine.map(([word, c, p]) => el('span', { className: 'c' + levelOf(c), textContent: word,
    title: `confidence ${c.toFixed(1)}, probability ${p.toFixed(3)}` }))),
    el('div', { className: 'legend', ariaHidden: 'true' }, 'least sure ', ...[0, 1, 2, 3, 4].map(i => el('span', { className: 'c' + i, textContent: '  ' })), ' surest'));
  return true;
}
/* Reasoning in which the paths that were cut are struck out. */
function drawThinking(box, s) {
  const parts = [];
  let at = 0;
  if (!s.control?.cuts?.length && s.done && s.tokens && coloured(box, s.think, s.tokens)) return;
  for (const cut of s.control?.cuts ?? []) {
    const path = cut.text?.trim(), from = path ? s.think.indexOf(path, at) : -1;
    if (from < 0) continue;
    parts.push(s.think.slice(at, from), el('del', { textContent: path }), el('span', { className: 'cut', textContent: `✂ cut: ${cut.tokens} tokens that repeated themselves` }));
    at = from + path.length;
  }
  box.replaceChildren(...parts, s.think.slice(at));
}
const round = x => x === null || x === undefined ? '' : String(+x.toPrecision(3));
const count = (n, one, many = one + 's') => `${n} ${n === 1 ? one : many}`;
function groupText(g) {
  return [g.method, g.blocks !== undefined ? count(g.blocks, 'block') : count(g.n, 'candidate'), g.cut ? `${g.cut} cut` : '', g.reward ? 'by ' + g.reward : '', g.answer ? `answer ${g.answer}` : '',
    g.consensus !== undefined ? `consensus ${round(g.consensus)}` : '', g.probability !== undefined && g.probability < 1 ? `chosen with probability ${round(g.probability)}` : '',
    g.kl_bound !== undefined && g.kl_bound !== null ? `at most ${round(g.kl_bound)} nats from a plain answer` : '', `${g.tokens.dropped} tokens dropped`, g.tokens.saved ? `about ${g.tokens.saved} saved` : ''].filter(Boolean).join(' · ');
}
function drawCandidate(c, g) {
  const cut = c.finish_reason === 'cut', kept = c.index === g.chosen;
  return el('div', { className: 'sample' + (kept ? ' chosen' : '') + (cut ? ' dropped' : '') },
    el('div', { className: 'body tokens' }, c.text || (cut ? '' : '(no answer)'), cut ? el('span', { className: 'cut', textContent: c.tokens ? `✂ cut after ${count(c.tokens, 'token')}` : '✂ did not begin' }) : ''),
    el('div', { className: 'foot' }, el('span', { textContent: [kept ? 'Kept' : '', c.score === null ? '' : 'score ' + round(c.score), c.probability > 0 && c.probability < 1 ? 'probability ' + round(c.probability) : '',
      c.answer ? 'answer ' + c.answer : '', count(c.tokens, 'token')].filter(Boolean).join(' · ') })));
}
/* Under an answer: its candidates side by side, and why the reasoning ended. */
function drawReports(box, s) {
  let at = box.querySelector('.reports');
  if (!s.done || !(s.group || s.control)) { at?.remove(); return; }
  if (!at) { at = el('div', { className: 'reports' }); box.append(at); }
  const parts = [], g = s.group, r = s.control;
  if (r) parts.push(el('div', { className: 'note' }, [`${r.control}: ${count(r.reasoning_tokens, 'token')} of reasoning`, r.stopped_by && r.stopped_by !== 'end' ? 'ended: ' + r.stopped_by : '',
    r.trial_tokens ? `${r.trial_tokens} for trials` : '', r.saved_most ? `at most ${r.saved_most} saved` : ''].filter(Boolean).join(' · ')));
  if (g && g.candidates?.some(c => 'text' in c)) parts.push(el('details', { open: true }, el('summary', { textContent: groupText(g) }),
    el('div', { className: 'samples several' }, ...g.candidates.map(c => drawCandidate(c, g)))));
  else if (g) parts.push(el('div', { className: 'note', textContent: groupText(g) }));
  at.replaceChildren(...parts);
}
