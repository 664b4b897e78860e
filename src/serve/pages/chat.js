/* ---- Talking with the model. ---- */
/* Empty: what the server or the model sets. */
const DEFAULTS = { system: '', temperature: '', n: 1, top_p: '', top_k: '', min_p: '', repetition_penalty: '', max_tokens: '', seed: '', reasoning: '', thinking_budget: '',
  alignment: '', control: '', confidence: '' };
/* Where neither the operator nor the model's files say anything, the API's temperature of 1 would count, which small models do not bear. */
const MILDER = { temperature: 0.7, min_p: 0.05 };
const SAMPLING = ['temperature', 'top_p', 'top_k', 'min_p', 'repetition_penalty'];
/* Questions that the model that comes with Lateen answers, as it knows school problems and nothing else. */
const ASKS = { 'reasoner-23m': ['Multiply 42 by 23.', 'Solve for x and y: x + 2y = 30 and 2x + 3y = 51. Give the answer as (x, y).',
  'A recipe for 4 people needs 840 grams of cheese. How many grams are needed for 8 people?',
  'Sam is shorter than Hugo. Chen is taller than Elena. Hugo is shorter than Elena. They stand in a row from the tallest to the shortest. Who is third in the row?'] };
let settings = { ...DEFAULTS };
let running = null;                   // AbortController
let editing = null;                   // The message that is edited.
let mode = null;                      // 'chat' or 'write', as chosen; null: what suits the model
let knowsChat = true, context = 0;    // Does the model bring a chat template? How many tokens can it see?
let served = {}, milder = false;      // The server's own sampling; whether nobody has set any.
const writing = () => now.kind === 'text';
const headers = () => ({ 'Content-Type': 'application/json', ...(store.get('key', '') ? { Authorization: 'Bearer ' + store.get('key', '') } : {}) });
const isLocal = /^(localhost|127(\.\d+){3}|\[::1\])$/.test(location.hostname);

function notice(text, action, act) {
  const box = $('notice');
  clearTimeout(notice.timer);
  box.replaceChildren(el('span', { textContent: text }), ...(action ? [el('button', { type: 'button', textContent: action, onclick: () => { box.hidden = true; act(); } })] : []),
    el('button', { type: 'button', textContent: '✕', ariaLabel: 'Close this notice', onclick: () => { box.hidden = true; } }));
  box.hidden = false;
  notice.timer = setTimeout(() => { box.hidden = true; }, 12000);
}

/* ---- The conversation on the page ---- */
function statsText(s) {
  if (!s) return '';
  return [s.tokens + (s.tokens === 1 ? ' token' : ' tokens'), s.rate ? s.rate.toFixed(1) + ' tok/s' : '', s.first ? 'first after ' + s.first.toFixed(2) + ' s' : '', s.reason === 'length' ? 'cut at the limit' : '']
    .filter(Boolean).join(' · ');
}
function drawSample(turn, i, box) {
  const s = turn.samples[i];
  const several = turn.samples.length > 1;
  box.className = 'sample' + (several && turn.chosen === i ? ' chosen' : '');
  if (s.think) {
    let d = box.querySelector('details');
    if (!d) { d = el('details', { className: 'think' }, el('summary'), el('div')); box.prepend(d); }
    d.firstChild.textContent = s.text || s.done ? `Thought for ${(s.thought ?? 0).toFixed(1)} s` : 'Thinking …';
    drawThinking(d.lastChild, s);
  }
  let body = box.querySelector('.body');
  if (!body) { body = el('div', { className: 'body' }); box.append(body); }
  if (!(s.done && s.tokens && coloured(body, s.text, s.tokens))) markdown(body, s.text);
  let foot = box.querySelector('.foot');
  if (!foot) { foot = el('div', { className: 'foot' }); box.append(foot); }
  foot.replaceChildren(el('span', { textContent: statsText(s.stats) }));
  drawReports(box, s);
  foot.hidden = Boolean(turn.error) && !s.text; // Try again stands under the error.
  if (s.done) {
    if (s.text) foot.append(copyButton(() => s.text));
    if (several) foot.append(el('button', { textContent: turn.chosen === i ? 'Chosen' : 'Go on with this', ariaPressed: String(turn.chosen === i),
      onclick: () => { turn.chosen = i; save(); draw(); } }));
    if (!several) foot.append(el('button', { textContent: 'Regenerate', className: 'again', onclick: () => regenerate(turn) }), branches(turn));
  }
}
/* "‹ 2 of 3 ›": other answers to the same message, other wordings of the same message. */
function branches(turn) {
  const parent = parentOf(turn), n = parent.kids.length, at = parent.live;
  if (n < 2) return '';
  const go = (to, sign, name) => el('button', { type: 'button', textContent: sign, ariaLabel: name, disabled: to < 0 || to >= n || running !== null,
    onclick: () => { parent.live = to; walk(); save(); draw(); } });
  return el('span', { className: 'branches', role: 'group', ariaLabel: 'Versions' }, go(at - 1, '‹', 'Earlier version'), el('span', { textContent: `${at + 1} of ${n}` }), go(at + 1, '›', 'Later version'));
}
function drawTurn(turn) {
  const box = el('section', { className: 'turn ' + turn.role + (turn === editing ? ' edited' : ''), ariaLabel: turn.role === 'user' ? 'You' : 'Answer' });
  if (turn.role === 'user') {
    box.append(el('div', { className: 'text', textContent: turn.text }));
    box.append(el('div', { className: 'foot mine' }, branches(turn), el('button', { textContent: 'Edit', onclick: () => edit(turn) })));
  } else {
    const grid = el('div', { className: 'samples' });
    if (turn.samples.length > 1) box.classList.add('several');
    turn.samples.forEach((s, i) => { const b = el('div'); grid.append(b); drawSample(turn, i, b); });
    box.append(grid);
    if (turn.samples.length > 1 && turn.samples.every(s => s.done))
      box.append(el('div', { className: 'foot' }, el('button', { textContent: 'Regenerate all', className: 'again', onclick: () => regenerate(turn) }), branches(turn)));
    if (turn.error) box.append(el('div', { className: 'error', role: 'alert', textContent: turn.error }),
      el('div', { className: 'foot' }, el('button', { textContent: 'Try again', onclick: () => regenerate(turn) })));
  }
  return box;
}
function drawAsks() {
  const asks = ASKS[$('model').textContent] ?? [];
  return asks.length ? [el('p', { textContent: 'This model solves small school problems, and shows its thinking. Ask, for example:' }),
    el('div', { className: 'asks' }, ...asks.map(t => el('button', { type: 'button', textContent: t, onclick: () => { $('words').value = t; send(); } })))] : [];
}
function draw() {
  const log = $('log');
  log.classList.toggle('wide', turns.some(t => t.samples?.length > 1));
  $('edits').hidden = !editing;
  if (!turns.length) {
    log.replaceChildren(el('div', { className: 'empty' }, el('h2', { textContent: 'What shall we talk about?' }),
      el('div', { textContent: 'Enter sends, Shift+Enter begins a line, ↑ edits the last message, Esc stops. '
        + (isLocal ? 'Everything stays on this machine.' : `Conversations are kept in this browser; the model runs on ${location.host}.`) }), ...drawAsks()));
    return;
  }
  log.replaceChildren(...turns.map(drawTurn));
}
const nearEnd = () => { const s = $('scroll'); return s.scrollHeight - s.scrollTop - s.clientHeight < 80; };
const toEnd = () => { const s = $('scroll'); s.scrollTop = s.scrollHeight; };

/* ---- Asking ---- */
const failed = t => t.role === 'assistant' && !t.samples[t.chosen]?.text;
/* A question that got no answer is not asked again with the next one. */
function messages() {
  const list = settings.system ? [{ role: 'system', content: settings.system }] : [], live = running ? turns.at(-1) : null;
  turns.forEach((t, i) => {
    const reply = turns[i + 1];
    if (t.role === 'user') { if (!reply || reply === live || !failed(reply)) list.push({ role: 'user', content: t.text }); }
    else if (t !== live && !failed(t)) list.push({ role: 'assistant', content: t.samples[t.chosen].text });
  });
  return list;
}
/* Only what was set here: the rest is the operator's and the model's to say. */
function sampling() {
  const b = {};
  for (const k of SAMPLING) if (settings[k] !== '') b[k] = +settings[k];
    else if (milder && k in MILDER) b[k] = MILDER[k];
  if (settings.seed !== '') b.seed = +settings.seed;
  return b;
}
function body() {
  const b = { messages: messages(), stream: true, stream_options: { include_usage: true }, n: +settings.n, ...sampling(), ...alignment() };
  for (const k of ['max_tokens', 'thinking_budget']) if (settings[k] !== '') b[k] = +settings[k];
  if (settings.reasoning) b.reasoning_effort = settings.reasoning;
  return b;
}
async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = '';
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    text += value;
    for (let end; (end = text.indexOf('\n\n')) >= 0; text = text.slice(end + 2)) {
      const data = text.slice(0, end).split('\n').filter(l => l.startsWith('data: ')).map(l => l.slice(6)).join('\n');
      if (data === '[DONE]') return;
      if (data) yield JSON.parse(data);
    }
  }
}
async function ask(path, request) {
  const r = await fetch(path, { method: 'POST', headers: headers(), body: JSON.stringify(request), signal: running.signal });
  if (!r.ok) throw new Error((await r.json().catch(() => null))?.error?.message ?? `the server answered ${r.status}`);
  return events(r);
}
function takeDelta(turn, choice, start, e) {
  const s = turn.samples[choice.index], d = choice.delta ?? {}, at = (performance.now() - start) / 1000;
  const think = d.reasoning_content ?? '', text = d.content ?? '';
  for (const call of d.tool_calls ?? []) s.text += call.function?.name ? `\n\n**${call.function.name}** ` : call.function?.arguments ?? '';
  if (think || text) {
    s.stats.first ||= at;
    s.stats.tokens++;
    if (s.stats.tokens > 1) s.stats.rate = (s.stats.tokens - 1) / Math.max(at - s.stats.first, 1e-3);
  }
  if (think) { s.think += think; s.thought = at - s.stats.first; }
  s.text += text;
  takeReports(s, e, choice);
  if (choice.finish_reason) { s.done = true; s.stats.reason = choice.finish_reason; }
}
async function answer() {
  const n = Math.max(1, +settings.n || 1), start = performance.now();
  const turn = addTurn({ role: 'assistant', chosen: 0, samples: Array.from({ length: n }, () => ({ text: '', think: '', stats: { tokens: 0 } })) });
  running = new AbortController();
  busy(true);
  draw();
  toEnd();
  const boxes = () => $('log').lastElementChild.querySelectorAll('.sample');
  const dirty = new Set();
  let frame = 0;
  const paint = () => { frame = 0; const follow = nearEnd(); for (const i of dirty) drawSample(turn, i, boxes()[i]);
    for (const b of boxes()) b.classList.toggle('live', running !== null); dirty.clear(); if (follow) toEnd(); };
  try {
    for await (const e of await ask('/v1/chat/completions', body())) {
      if (e.error) throw new Error(e.error.message);
      for (const c of e.choices) { takeDelta(turn, c, start, e); dirty.add(c.index); }
      if (!e.choices.length) takeReports(turn.samples[0], e);
      if (e.usage && n === 1) { const s = turn.samples[0].stats, took = (performance.now() - start) / 1000;
        s.tokens = e.usage.completion_tokens; if (s.tokens > 1) s.rate = (s.tokens - 1) / Math.max(took - (turn.samples[0].group ? 0 : s.first ?? 0), 1e-3); }
      frame ||= requestAnimationFrame(paint);
    }
  } catch (e) {
    if (e.name !== 'AbortError') turn.error = e.message;
  }
  cancelAnimationFrame(frame);
  for (const s of turn.samples) s.done = true;
  running = null;
  busy(false);
  save();
  const follow = nearEnd();
  draw();
  if (follow) toEnd();
  $('say').textContent = turn.error ? 'Error: ' + turn.error : 'The answer is complete.';
}
/* Another answer to the same message, beside the old one; one that failed makes place. */
function regenerate(turn) {
  if (running) return;
  const parent = parentOf(turn);
  if (turn.error && failed(turn) && !turn.kids.length) parent.kids.splice(parent.live, 1);
  turns = turns.slice(0, turns.indexOf(turn));
  answer();
}
function edit(turn) {
  if (running) return;
  editing = turn;
  $('words').value = turn.text;
  draw(); grow(); $('words').focus();
}
function endEdit() {
  editing = null;
  $('words').value = '';
  draw(); grow(); $('words').focus();
}
function busy(on) {
  $('send').textContent = on ? 'Stop' : writing() ? 'Write on' : 'Send';
  $('send').classList.toggle('primary', !on);
  for (const id of ['new', 'undo', 'mode']) $(id).disabled = on || (id === 'undo' && !now.back?.length);
  $('paper').readOnly = on;
  drawList();
}
function grow() { const w = $('words'); w.style.height = 'auto'; w.style.height = Math.min(w.scrollHeight + 2, innerHeight * .4) + 'px'; }
function send() {
  if (running) { running.abort(); return; }
  if (writing()) { writeOn(); return; }
  const text = $('words').value.trim();
  if (!text) return;
  $('words').value = '';
  grow();
  if (editing) turns = turns.slice(0, turns.indexOf(editing));
  editing = null;
  addTurn({ role: 'user', text });
  save();
  answer();
}
