/* ---- Markdown, built as nodes: nothing that the model writes is ever read as HTML. ----
 * Blocks: fenced code, headings, rules, quotes, lists (nested by indentation, numbered, with boxes), GitHub's tables, maths between $$ or \[ \],
 * paragraphs. Inline: code, bold, italic, struck out, links, bare addresses, maths between $ or \( \), escapes, HTML's character references and <br>. */
function el(tag, props = {}, ...children) {
  const e = Object.assign(document.createElement(tag), props);
  e.append(...children);
  return e;
}

function copyButton(text) {
  const b = el('button', { type: 'button', textContent: 'Copy' });
  const told = word => { b.textContent = word; $('say').textContent = word; setTimeout(() => { b.textContent = 'Copy'; }, 1500); };
  b.onclick = () => (navigator.clipboard?.writeText(text()) ?? Promise.reject()).then(() => told('Copied'), () => told('Not allowed here'));
  return b;
}

/* Only addresses of the web and of mail become links. */
function link(address, ...children) {
  if (!/^(https?:\/\/|mailto:)/i.test(address)) return el('span', {}, ...children);
  return el('a', { href: address, target: '_blank', rel: 'noopener noreferrer nofollow' }, ...children);
}

/* The first of these that matches at the earliest place is taken; `make` gets the match. Words stick to * and _ as in CommonMark, roughly. */
const INLINE = [
  [/(`+)([^`]|[^`][\s\S]*?[^`])\1(?!`)/, m => el('code', { textContent: m[2].replace(/^ (.*\S.*) $/s, '$1') })],
  [/\\\(([\s\S]+?)\\\)/, m => maths(m[1], false)],
  [/\\([\\`*_{}[\]()#+\-.!~|>$])/, m => m[1]],
  [/\$(?![\s$])((?:\\.|[^$\\\n])+?)(?<!\s)\$(?!\d)/, m => maths(m[1], false)],
  [/!?\[((?:[^[\]\\]|\\.|\[[^\]]*\])*)\]\(\s*<?([^\s<>()]*(?:\([^\s()]*\)[^\s<>()]*)*)>?(?:\s+["'(][^)]*["')])?\s*\)/,
    m => link(m[2], ...inline(m[1] || m[2]))],
  [/<((?:https?:\/\/|mailto:)[^\s<>]+)>/i, m => link(m[1], m[1])],
  [/\bhttps?:\/\/[^\s<>"'`]*[^\s<>"'`.,;:!?)\]}*_]/i, m => link(m[0], m[0])],
  [/\*\*\*(?=\S)([\s\S]*?\S)\*\*\*/, m => el('strong', {}, el('em', {}, ...inline(m[1])))],
  [/\*\*(?=\S)([\s\S]*?\S)\*\*(?!\*)/, m => el('strong', {}, ...inline(m[1]))],
  [/(?<![\p{L}\p{N}_])__(?=\S)([\s\S]*?\S)__(?![\p{L}\p{N}_])/u, m => el('strong', {}, ...inline(m[1]))],
  [/\*(?=[^\s*])((?:[^*]|\*\*)*?[^\s*])\*(?!\*)/, m => el('em', {}, ...inline(m[1]))],
  [/(?<![\p{L}\p{N}_])_(?=[^\s_])([^_]*[^\s_])_(?![\p{L}\p{N}_])/u, m => el('em', {}, ...inline(m[1]))],
  [/~~(?=\S)([\s\S]*?\S)~~/, m => el('del', {}, ...inline(m[1]))],
  [/(?: {2,}|\\)\n|<br\s*\/?>/i, () => el('br')],
  [/&(?:[a-z][a-z0-9]{1,31}|#\d{1,7}|#x[0-9a-f]{1,6});/i, m => new DOMParser().parseFromString(m[0], 'text/html').body.textContent],
];
const NESTED_MOST = 8;
let nested = 0;
function inline(text) {
  const out = [];
  if (nested === NESTED_MOST) return [text];
  nested++;
  while (text) {
    let best = null, make = null;
    for (const [pattern, maker] of INLINE) {
      const m = pattern.exec(text);
      if (m && (!best || m.index < best.index)) { best = m; make = maker; }
    }
    if (!best) { out.push(text); break; }
    if (best.index) out.push(text.slice(0, best.index));
    out.push(make(best));
    text = text.slice(best.index + best[0].length);
  }
  nested--;
  return out;
}

const ITEM = /^(\s*)([-*+•]|\d{1,9}[.)])(?:\s+|$)(.*)$/;
const indentOf = line => /^\s*/.exec(line)[0].replace(/\t/g, '    ').length;
const isRule = line => /^ {0,3}([-*_])\s*(?:\1\s*){2,}$/.test(line);
const isTableHead = (line, next) => line.includes('|') && /^\s*\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)*\|?\s*$/.test(next ?? '') && next.includes('-');
const beginsBlock = (line, next) => /^ {0,3}(#{1,6}\s|>|(`{3,}|~{3,}))/.test(line) || ITEM.test(line) || isRule(line) || isTableHead(line, next)
  || /^\s*(\$\$|\\\[)/.test(line);

/* Cells of a table's row: split at bars that are neither escaped nor inside of code. */
function cells(line) {
  const parts = [''];
  let code = false;
  for (const [piece] of line.trim().replace(/^\|/, '').replace(/(?<!\\)\|$/, '').matchAll(/\\\||[\s\S]/g)) {
    if (piece === '`') code = !code;
    if (piece === '|' && !code) parts.push('');
    else parts[parts.length - 1] += piece === '\\|' ? '|' : piece;
  }
  return parts.map(p => p.trim());
}
function table(lines) {
  const sides = cells(lines[1]).map(c => c.endsWith(':') ? (c.startsWith(':') ? 'center' : 'right') : '');
  const width = cells(lines[0]).length;
  const row = (line, tag) => {
    const parts = cells(line);
    return el('tr', {}, ...Array.from({ length: width }, (_, i) => {
      const c = el(tag, {}, ...inline(parts[i] ?? ''));
      if (tag === 'th') c.scope = 'col';
      c.style.textAlign = sides[i] ?? '';
      return c;
    }));
  };
  return el('div', { className: 'table', tabIndex: 0, role: 'region', ariaLabel: 'Table' },
    el('table', {}, el('thead', {}, row(lines[0], 'th')), el('tbody', {}, ...lines.slice(2).map(l => row(l, 'td')))));
}

/* A list from lines[at] on: items of one depth, each with the lines that are indented under it. Returns where it ends. */
function list(out, lines, at) {
  const first = ITEM.exec(lines[at]), depth = indentOf(lines[at]), numbered = /\d/.test(first[2]);
  const box = el(numbered ? 'ol' : 'ul');
  while (at < lines.length) {
    const m = ITEM.exec(lines[at]);
    if (!m || indentOf(lines[at]) < depth || /\d/.test(m[2]) !== numbered || isRule(lines[at])) break;
    const inner = [m[3]];
    let next = at + 1;
    for (; next < lines.length; next++) {
      if (!lines[next].trim()) { /* An empty line belongs to the item if something indented, or a next item, follows. */
        const after = lines.slice(next).findIndex(l => l.trim());
        if (after < 0 || (indentOf(lines[next + after]) <= depth && !ITEM.test(lines[next + after]))) break;
        if (indentOf(lines[next + after]) <= depth) { next += after; break; }
        inner.push('');
      } else if (indentOf(lines[next]) > depth) {
        inner.push(lines[next].slice(Math.min(indentOf(lines[next]), depth + m[2].length + 1)));
      } else break;
    }
    const item = el('li'), ticked = /^\[([ xX])\]\s+/.exec(inner[0]);
    if (numbered) item.value = parseInt(m[2], 10);
    if (ticked) {
      inner[0] = inner[0].slice(ticked[0].length);
      item.append(el('input', { type: 'checkbox', disabled: true, checked: ticked[1] !== ' ', ariaLabel: ticked[1] !== ' ' ? 'done' : 'to do' }), ' ');
    }
    const parts = el('div');
    blocks(parts, inner);
    if (parts.firstChild?.tagName === 'P') parts.firstChild.replaceWith(...parts.firstChild.childNodes); /* Items are close together. */
    item.append(...parts.childNodes);
    box.append(item);
    at = next;
  }
  out.append(box);
  return at;
}

function blocks(out, lines) {
  if (nested === NESTED_MOST) { out.append(el('p', {}, lines.join('\n'))); return; }
  nested++;
  for (let at = 0; at < lines.length;) {
    const line = lines[at], fence = /^\s*(`{3,}|~{3,})\s*([^`]*)$/.exec(line), heading = /^ {0,3}(#{1,6})\s+(.*?)\s*#*\s*$/.exec(line);
    const shown = /^\s*(\$\$|\\\[)\s*(.*)$/.exec(line);
    let end = at + 1;
    if (!line.trim()) { at++; continue; }
    if (fence) {
      while (end < lines.length && !(lines[end].trim().startsWith(fence[1]) && !lines[end].trim().slice(fence[1].length).trim())) end++;
      const code = lines.slice(at + 1, end).join('\n');
      out.append(el('div', { className: 'code' }, el('pre', { tabIndex: 0, title: fence[2].trim() }, el('code', { textContent: code })), copyButton(() => code)));
      at = end + 1;
    } else if (heading) {
      out.append(el('h' + Math.min(heading[1].length + 1, 6), {}, ...inline(heading[2]))); /* The page has the one h1. */
      at++;
    } else if (isRule(line)) {
      out.append(el('hr'));
      at++;
    } else if (shown) {
      const close = shown[1] === '$$' ? '$$' : '\\]', text = lines.slice(at).join('\n'), from = text.indexOf(shown[1]) + 2, to = text.indexOf(close, from);
      if (to < 0) { out.append(el('p', {}, lines.slice(at).join('\n'))); break; } /* Not whole yet: as it stands. */
      out.append(maths(text.slice(from, to), true));
      at += text.slice(0, to).split('\n').length;
      const rest = text.slice(to + 2).split('\n')[0];
      if (rest.trim()) out.append(el('p', {}, ...inline(rest.trim())));
    } else if (/^ {0,3}>/.test(line)) {
      while (end < lines.length && lines[end].trim() && (/^ {0,3}>/.test(lines[end]) || !beginsBlock(lines[end], lines[end + 1]))) end++;
      const quote = el('blockquote');
      blocks(quote, lines.slice(at, end).map(l => l.replace(/^ {0,3}> ?/, '')));
      out.append(quote);
      at = end;
    } else if (isTableHead(line, lines[at + 1])) {
      for (end = at + 2; end < lines.length && lines[end].trim() && lines[end].includes('|');) end++;
      out.append(table(lines.slice(at, end)));
      at = end;
    } else if (ITEM.test(line)) {
      at = list(out, lines, at);
    } else {
      while (end < lines.length && lines[end].trim() && !beginsBlock(lines[end], lines[end + 1])) end++;
      out.append(el('p', {}, ...inline(lines.slice(at, end).join('\n').trim())));
      at = end;
    }
  }
  nested--;
}

function markdown(to, text) {
  to.replaceChildren();
  nested = 0;
  blocks(to, text.split('\n'));
  if (!to.firstChild) to.append(el('p'));
}
