/* ---- Writing on: one text, which the model goes on with; for models that have learnt no chat, and for whoever likes it. ---- */
const STARTS = ['Once upon a time', 'La nuit tombait sur la ville, et', 'Es war einmal', 'The river rose in the night, and'];
const BACK_MOST = 50;                 // Texts that Undo knows.
const CHARS_MOST = 16;                // Of a token; more of the text than the context could hold is not sent.
let told = false;                     // The hint says what the last text took; news of the server leave it standing.
function hint(text, bad = false) { told = false; $('hint').textContent = text; $('hint').classList.toggle('error', bad); if (bad) $('say').textContent = text; }
const resting = () => hint(knowsChat ? 'Ctrl+Enter writes on, Esc stops.' : 'This model has learnt to write, not to chat. Ctrl+Enter writes on, Esc stops.');
/* The paper is as high as its text; what is seen of it stays where it is. */
function growPaper() {
  const p = $('paper'), s = $('scroll'), top = s.scrollTop;
  p.style.height = 'auto';
  p.style.height = p.scrollHeight + 'px';
  s.scrollTop = top;
  $('starts').hidden = p.value !== '';
}
function setPaper(text) { now.text = $('paper').value = text; growPaper(); }
function remember(text) { now.back = [...now.back, text].slice(-BACK_MOST); }
function drawDrafts(drafts, before) {
  $('drafts').replaceChildren(...drafts.map(d => el('div', { className: 'sample' }, el('div', { className: 'body', textContent: d }),
    el('div', { className: 'foot' }, el('button', { type: 'button', textContent: 'Take this', disabled: running !== null,
      onclick: () => { $('drafts').replaceChildren(); remember(before); setPaper(before + d); save(); busy(false); resting(); toEnd(); $('paper').focus(); } })))));
  growPaper();
}
async function writeOn() {
  const before = $('paper').value.replace(/ +$/, ''), n = Math.max(1, +settings.n || 1), start = performance.now();
  const tokens = Math.min(+settings.max_tokens || 160, context ? Math.floor(context / 2) : Infinity);
  const room = context - tokens; // For the end of the text; the server leaves out what is before it.
  const request = { prompt: context ? before.slice(-CHARS_MOST * context) : before, ...(context ? { truncate_prompt_tokens: room } : {}), stream: true, stream_options: { include_usage: true }, n, max_tokens: tokens, ...sampling() };
  const drafts = Array(n).fill('');
  let failure = '', first = 0, used = null, ended = '';
  running = new AbortController();
  busy(true);
  hint('Writing …');
  $('drafts').replaceChildren();
  try {
    for await (const e of await ask('/v1/completions', request)) {
      if (e.error) throw new Error(e.error.message);
      for (const c of e.choices) { drafts[c.index] += c.text; ended = c.finish_reason ?? ended; }
      first ||= performance.now();
      used = e.usage ?? used;
      const follow = nearEnd();
      if (n === 1) setPaper(before + drafts[0]); else drawDrafts(drafts, before);
      if (follow) toEnd();
    }
  } catch (e) {
    if (e.name !== 'AbortError') failure = e.message;
  }
  const follow = nearEnd();
  running = null;
  if (n === 1) { if (drafts[0]) remember(before); setPaper(before + drafts[0]); } else drawDrafts(drafts, before);
  save();
  busy(false);
  if (follow) toEnd();
  if (failure) { hint(failure, true); return; }
  const s = (performance.now() - start) / 1000, total = used?.completion_tokens;
  hint([total ? total + (total === 1 ? ' token' : ' tokens') : '', total > n ? ((total - n) / Math.max((performance.now() - first) / 1000, 1e-3)).toFixed(1) + ' tok/s' : '',
        s.toFixed(1) + ' s', ended === 'stop' ? 'the text ends here' : '', context && used?.prompt_tokens >= room ? 'the beginning is out of sight' : ''].filter(Boolean).join(' · '));
  told = true;
  $('say').textContent = 'The model has written on.';
}
/* The page as the open conversation needs it. */
function arrive() {
  const w = writing();
  editing = null;
  $('mode').value = w ? 'write' : 'chat';
  for (const id of ['log', 'words']) $(id).hidden = w;
  for (const id of ['desk', 'hint', 'undo']) $(id).hidden = !w;
  $('drafts').replaceChildren();
  if (w) { resting(); $('paper').value = now.text; growPaper(); }
  draw();
  busy(running !== null);
  toEnd();
  if (!document.body.classList.contains('listed')) $(w ? 'paper' : 'words').focus();
}
/* The newest conversation of this kind, or a new one. */
function change(kind) {
  const x = index.find(y => y.kind === kind);
  if (!isEmpty(now) || !x || !open(x.id)) begin(kind);
  arrive();
}
