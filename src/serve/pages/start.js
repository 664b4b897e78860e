/* ---- Controls ---- */
$('starts').append(...STARTS.map(t => el('button', { type: 'button', textContent: t + ' …', onclick: () => { setPaper(t); writeOn(); } })));
let typed = 0;
$('paper').oninput = () => { setPaper($('paper').value); clearTimeout(typed); typed = setTimeout(save, 800); };
$('paper').onkeydown = e => { if (e.key === 'Enter' && (e.ctrlKey || e.metaKey)) { e.preventDefault(); if (!running) writeOn(); } };
$('undo').onclick = () => { if (now.back.length) { setPaper(now.back.pop()); $('drafts').replaceChildren(); save(); busy(false); resting(); $('paper').focus(); } };
$('mode').onchange = () => { mode = $('mode').value; store.set('mode', mode); change(mode === 'write' ? 'text' : 'chat'); };
$('ask').onsubmit = e => { e.preventDefault(); send(); };
$('words').oninput = grow;
$('words').onkeydown = e => {
  if (e.key === 'Enter' && !e.shiftKey && !e.isComposing) { e.preventDefault(); if (!running) send(); }
  const last = turns.findLast(t => t.role === 'user');
  if (e.key === 'ArrowUp' && !$('words').value && last && !running) { e.preventDefault(); edit(last); }
};
document.onkeydown = e => {
  if (e.key === 'Escape' && !$('panel').open) {
    if (running) { running.abort(); $(writing() ? 'paper' : 'words').focus(); }
    else if ($('more').open) { $('more').open = false; $('more').firstElementChild.focus(); }
    else if (document.body.classList.contains('listed')) { showList(false); $('lists').focus(); }
    else if (editing) endEdit();
  }
  if (e.key === '/' && document.activeElement === document.body) { e.preventDefault(); $(writing() ? 'paper' : 'words').focus(); }
};
document.addEventListener('click', e => { if ($('more').open && !$('more').contains(e.target)) $('more').open = false; });
$('more').onclick = e => { if (e.target.closest('button, a')) $('more').open = false; };
$('edits').querySelector('button').onclick = endEdit;
$('new').onclick = () => { begin(now.kind); showList(false); arrive(); };
$('lists').onclick = () => { showList(!document.body.classList.contains('listed')); if (document.body.classList.contains('listed')) ($('list').querySelector('button') ?? $('import')).focus(); };
$('export').onclick = () => download(asMarkdown(now), 'text/plain;charset=utf-8', fileName(now) + (writing() ? '.txt' : '.md'));
$('export-json').onclick = () => download(JSON.stringify({ exported: new Date().toISOString(), model: $('model').textContent, settings,
  ...(writing() ? { text: now.text } : { messages: messages() }) }, null, 1), 'application/json', fileName(now) + '.json');
$('export-all').onclick = exportAll;
$('import').onclick = () => $('file').click();
$('file').onchange = () => { if ($('file').files[0]) importFile($('file').files[0]); $('file').value = ''; };
function theme(t) { if (t) document.documentElement.dataset.theme = t; else delete document.documentElement.dataset.theme; }
$('theme').onclick = () => { const dark = getComputedStyle(document.documentElement).getPropertyValue('--bg').trim() === '#161716'; theme(dark ? 'light' : 'dark'); store.set('theme', dark ? 'light' : 'dark'); };
theme(store.get('theme', ''));

/* ---- Settings ---- */
/* Earlier versions of this page wrote all of their own defaults into the browser: those count as not set. */
settings = { ...DEFAULTS, ...store.get('settings', {}) };
if (!store.get('settings.v', 0)) {
  for (const [k, v] of Object.entries({ temperature: 0.7, top_p: 1, top_k: 0, min_p: 0.05, repetition_penalty: 1 })) if (+settings[k] === v) settings[k] = '';
  store.set('settings', settings);
  store.set('settings.v', 2);
}
function fill() {
  for (const k in DEFAULTS) $(k).value = settings[k];
  for (const k of SAMPLING) $(k).placeholder = milder && k in MILDER ? `${MILDER[k]} (this page)` : k in served ? `${+(+served[k]).toFixed(4)} (the server)` : 'not set';
  $('key').value = store.get('key', '');
}
$('settings').onclick = () => { fill(); $('panel').showModal(); };
$('reset').onclick = () => { settings = { ...DEFAULTS }; fill(); };
$('panel').onclose = () => { for (const k in DEFAULTS) settings[k] = $(k).value; settings.n = Math.min(8, Math.max(1, Math.round(+settings.n) || 1)); store.set('settings', settings); store.set('key', $('key').value); hello(); };

/* ---- The server ---- */
async function hello() {
  try {
    const h = await fetch('/health');
    if (h.status === 503) { $('model').textContent = 'loading …'; setTimeout(hello, 500); return; }
    const r = await fetch('/v1/models', { headers: headers() });
    const p = r.ok ? await (await fetch('/props', { headers: headers() })).json() : null;
    if (p) {
      context = p.default_generation_settings.n_ctx;
      served = p.sampling_defaults ?? {};
      milder = !SAMPLING.some(k => k in served);
      knowsChat = p.chat_template_source !== 'none';
      if (!mode && isEmpty(now) && !running && !$('words').value && writing() === knowsChat) change(knowsChat ? 'chat' : 'text');
      else if (writing() && !running && !told) resting();
    }
    $('model').textContent = r.status === 401 ? 'needs an API key (Settings)' : (await r.json()).data[0].id;
    $('model').title = $('model').textContent;
    if (!turns.length && !writing()) draw();
  } catch { $('model').textContent = 'no connection'; setTimeout(hello, 2000); }
}
addEventListener('pagehide', save); // What has come so far outlives a look at another page.
addEventListener('storage', e => { if (e.key === 'lateen.index' && !running) { index = store.get('index', []); drawList(); } });
mode = store.get('mode', null);
adopt();
if (!open(store.get('open', ''))) begin(mode === 'write' ? 'text' : 'chat');
arrive();
hello();
