/* ---- Conversations and texts, kept in this browser. ----
 * A conversation is a tree: nodes[id] = {role: 'user', text} or {role: 'assistant', samples: [{text, think, stats, done}], chosen, error}, each with
 * `kids` (ids) and `live` (which of them the page shows). Editing a message or asking again adds a kid beside the old one, so nothing is lost.
 * A text to write on is {kind: 'text', text, back: [earlier texts]}. localStorage holds one entry for each, and `index`, the list. */
const ROOT = 'root';
const store = {
  get(k, or) { try { return JSON.parse(localStorage.getItem('lateen.' + k)) ?? or; } catch { return or; } },
  /* False: the browser's room is used up, or it keeps nothing. */
  set(k, v) { try { localStorage.setItem('lateen.' + k, JSON.stringify(v)); return true; } catch { return false; } },
  drop(k) { try { localStorage.removeItem('lateen.' + k); } catch { /* kept nothing */ } },
};
const freshId = () => Date.now().toString(36) + Math.random().toString(36).slice(2, 8);
const freshConversation = kind => ({ id: freshId(), kind, title: '', changed: Date.now(),
  ...(kind === 'chat' ? { nodes: { [ROOT]: { kids: [], live: 0 } } } : { text: '', back: [] }) });

let index = store.get('index', []);  // [{id, kind, title, changed}], the newest first
let now = null;                       // The conversation on the page.
let turns = [];                       // Its path from the root: what is shown, and what the model is given.
let warned = false;

const isEmpty = c => c.kind === 'chat' ? !c.nodes[ROOT].kids.length : !c.text && !c.back.length;
const addTurn = turn => {
  const parent = turns.at(-1) ?? now.nodes[ROOT], id = freshId();
  now.nodes[id] = { ...turn, id, kids: [], live: 0 };
  parent.live = parent.kids.push(id) - 1;
  walk();
  return now.nodes[id];
};
/* The path that is shown: from the root on, always the kid that is live. */
function walk() {
  turns = [];
  for (let node = now.nodes?.[ROOT]; node?.kids.length;) {
    node = now.nodes[node.kids[Math.min(node.live, node.kids.length - 1)]];
    turns.push(node);
  }
}
const parentOf = turn => { const at = turns.indexOf(turn); return at > 0 ? turns[at - 1] : now.nodes[ROOT]; };

function titleOf(c) {
  const text = c.kind === 'text' ? c.text : c.nodes[c.nodes[ROOT].kids[0]]?.text ?? '';
  return c.named ? c.title : text.trim().replace(/\s+/g, ' ').slice(0, 60) || (c.kind === 'text' ? 'Empty text' : 'New conversation');
}
function save() {
  if (!now || isEmpty(now)) return;
  now.changed = Date.now();
  now.title = titleOf(now);
  index = [{ id: now.id, kind: now.kind, title: now.title, changed: now.changed }, ...index.filter(x => x.id !== now.id)];
  const kept = store.set('c.' + now.id, now) && store.set('index', index);
  store.set('open', now.id);
  if (!kept && !warned) notice('The browser keeps no more: export conversations and delete some, or this one will be lost with the page.');
  warned = !kept;
  drawList();
}
function open(id) {
  const c = store.get('c.' + id, null);
  if (!c || running) return false;
  now = c;
  if (now.kind === 'chat') for (const t of Object.values(now.nodes)) for (const s of t.samples ?? []) s.done = true;
  store.set('open', id);
  walk();
  return true;
}
function begin(kind) {
  now = freshConversation(kind);
  store.set('open', '');
  walk();
}
/* What an earlier version of this page kept: one conversation, one text. */
function adopt() {
  const old = store.get('turns', []), paper = store.get('paper', '');
  if (old.length) {
    begin('chat');
    for (const t of old) addTurn(t);
    save();
  }
  if (paper) { begin('text'); now.text = paper; save(); }
  store.drop('turns');
  store.drop('paper');
}

/* ---- The list beside the conversation ---- */
const when = t => { const days = (new Date().setHours(24, 0, 0, 0) - t) / 864e5;
  return days < 1 ? new Date(t).toLocaleTimeString([], { hour: '2-digit', minute: '2-digit' }) : days < 7 ? new Date(t).toLocaleDateString([], { weekday: 'short' })
    : new Date(t).toLocaleDateString([], { day: 'numeric', month: 'short' }); };
function drawList() {
  $('list').replaceChildren(...index.map(x => el('li', { className: x.id === now?.id ? 'open' : '' },
    el('button', { type: 'button', className: 'name', ariaCurrent: x.id === now?.id ? 'true' : 'false', disabled: running !== null, title: x.title, onclick: () => choose(x.id) },
      el('span', { textContent: x.title }), el('small', { textContent: (x.kind === 'text' ? 'text · ' : '') + when(x.changed) })),
    el('button', { type: 'button', className: 'quiet', textContent: '✎', title: 'Rename', ariaLabel: 'Rename ' + x.title, disabled: running !== null, onclick: () => rename(x) }),
    el('button', { type: 'button', className: 'quiet', textContent: '✕', title: 'Delete', ariaLabel: 'Delete ' + x.title, disabled: running !== null, onclick: () => remove(x) }))));
  $('none').hidden = index.length > 0;
}
function choose(id) {
  if (!open(id)) return;
  showList(false);
  arrive();
}
function rename(x) {
  const title = prompt('Name of this conversation', x.title)?.trim();
  const c = title ? x.id === now.id ? now : store.get('c.' + x.id, null) : null;
  if (!c) return;
  c.named = true;
  c.title = x.title = title;
  store.set('c.' + x.id, c);
  store.set('index', index);
  drawList();
}
function remove(x) {
  const c = store.get('c.' + x.id, null), at = index.findIndex(y => y.id === x.id);
  index.splice(at, 1);
  store.set('index', index);
  store.drop('c.' + x.id);
  if (now.id === x.id) { begin(now.kind); arrive(); } else drawList();
  notice(`“${x.title}” is deleted.`, 'Undo', () => {
    index.splice(at, 0, x);
    store.set('c.' + x.id, c);
    store.set('index', index);
    choose(x.id);
  });
}
function showList(on) {
  document.body.classList.toggle('listed', on);
  $('lists').ariaExpanded = String(on);
}

/* ---- Files ---- */
function download(text, type, name) {
  const a = el('a', { href: URL.createObjectURL(new Blob([text], { type })), download: name });
  a.click();
  setTimeout(() => URL.revokeObjectURL(a.href), 1000);
}
const fileName = c => titleOf(c).replace(/[^\p{L}\p{N}]+/gu, '-').replace(/^-|-$/g, '').slice(0, 40) || 'conversation';
function asMarkdown(c) {
  if (c.kind === 'text') return c.text;
  return turns.map(t => t.role === 'user' ? '## You\n\n' + t.text : '## Answer\n\n' + (t.samples[t.chosen]?.text ?? '')).join('\n\n') + '\n';
}
function exportAll() {
  const all = index.map(x => x.id === now.id ? now : store.get('c.' + x.id, null)).filter(Boolean);
  download(JSON.stringify({ lateen: 1, exported: new Date().toISOString(), conversations: all }, null, 1), 'application/json', 'conversations.json');
}
async function importFile(file) {
  try {
    const data = JSON.parse(await file.text());
    let n = 0;
    for (const c of data.conversations ?? []) {
      if (!c?.id || !(c.kind === 'text' ? typeof c.text === 'string' : c.nodes?.[ROOT]?.kids)) continue;
      if (index.some(x => x.id === c.id)) c.id = freshId();
      if (!store.set('c.' + c.id, c)) throw new Error('the browser has no room left');
      index.push({ id: c.id, kind: c.kind, title: titleOf(c), changed: c.changed ?? Date.now() });
      n++;
    }
    if (!n) throw new Error('it holds no conversations of this page');
    index.sort((a, b) => b.changed - a.changed);
    store.set('index', index);
    drawList();
    notice(n === 1 ? 'One conversation came in.' : n + ' conversations came in.');
  } catch (e) {
    notice(`${file.name} cannot be read: ${e.message}.`);
  }
}
