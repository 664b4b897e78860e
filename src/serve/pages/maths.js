/* ---- TeX's maths as MathML, which browsers draw themselves. What is not known is shown as it was written. ---- */
const SYMBOLS = Object.fromEntries(('alpha α beta β gamma γ delta δ epsilon ϵ varepsilon ε zeta ζ eta η theta θ vartheta ϑ iota ι kappa κ lambda λ mu μ nu ν xi ξ '
  + 'pi π varpi ϖ rho ρ varrho ϱ sigma σ varsigma ς tau τ upsilon υ phi ϕ varphi φ chi χ psi ψ omega ω Gamma Γ Delta Δ Theta Θ Lambda Λ Xi Ξ Pi Π Sigma Σ Upsilon Υ '
  + 'Phi Φ Psi Ψ Omega Ω infty ∞ partial ∂ nabla ∇ hbar ℏ ell ℓ Re ℜ Im ℑ aleph ℵ emptyset ∅ varnothing ∅ angle ∠ degree °').split(' ').reduce(pairs, []));
const OPERATORS = Object.fromEntries(('times × cdot · div ÷ pm ± mp ∓ ast ∗ star ⋆ circ ∘ bullet ∙ oplus ⊕ otimes ⊗ odot ⊙ le ≤ leq ≤ ge ≥ geq ≥ ne ≠ neq ≠ approx ≈ '
  + 'equiv ≡ sim ∼ simeq ≃ cong ≅ propto ∝ ll ≪ gg ≫ prec ≺ succ ≻ in ∈ notin ∉ ni ∋ subset ⊂ subseteq ⊆ supset ⊃ supseteq ⊇ cup ∪ cap ∩ setminus ∖ forall ∀ exists ∃ '
  + 'nexists ∄ neg ¬ lnot ¬ land ∧ wedge ∧ lor ∨ vee ∨ to → rightarrow → leftarrow ← leftrightarrow ↔ Rightarrow ⇒ Leftarrow ⇐ Leftrightarrow ⇔ implies ⟹ iff ⟺ mapsto ↦ '
  + 'uparrow ↑ downarrow ↓ longrightarrow ⟶ perp ⊥ parallel ∥ mid ∣ vert | Vert ‖ | ‖ ldots … dots … cdots ⋯ vdots ⋮ ddots ⋱ therefore ∴ because ∵ top ⊤ bot ⊥ vdash ⊢ '
  + 'models ⊨ langle ⟨ rangle ⟩ lfloor ⌊ rfloor ⌋ lceil ⌈ rceil ⌉ { { } } prime ′ colon : triangle △ square □ checkmark ✓').split(' ').reduce(pairs, []));
const LARGE = Object.fromEntries(('sum ∑ prod ∏ coprod ∐ int ∫ iint ∬ iiint ∭ oint ∮ bigcup ⋃ bigcap ⋂ bigoplus ⨁ bigotimes ⨂ bigvee ⋁ bigwedge ⋀').split(' ').reduce(pairs, []));
const NAMED = new Set(('sin cos tan cot sec csc arcsin arccos arctan sinh cosh tanh log ln lg exp det dim ker gcd deg hom arg Pr').split(' '));
const LIMITED = new Set(('lim max min sup inf limsup liminf argmax argmin').split(' '));
const ACCENTS = { hat: '^', widehat: '^', bar: '¯', overline: '¯', vec: '→', overrightarrow: '→', dot: '˙', ddot: '¨', tilde: '~', widetilde: '~', check: 'ˇ', acute: '´', grave: '`' };
const ALPHABETS = { mathbb: 'double-struck', Bbb: 'double-struck', mathcal: 'script', mathscr: 'script', mathfrak: 'fraktur', mathbf: 'bold', boldsymbol: 'bold', bm: 'bold', mathit: 'italic',
  mathsf: 'sans-serif', mathtt: 'monospace' };
const SPACES = { ',': '.17em', ':': '.22em', ';': '.28em', '!': '-.17em', ' ': '.3em', quad: '1em', qquad: '2em', enspace: '.5em', thinspace: '.17em' };
const FENCES = { matrix: ['', ''], pmatrix: ['(', ')'], bmatrix: ['[', ']'], Bmatrix: ['{', '}'], vmatrix: ['|', '|'], Vmatrix: ['‖', '‖'], cases: ['{', ''], smallmatrix: ['', ''], array: ['', ''],
  aligned: ['', ''], align: ['', ''], 'align*': ['', ''], gathered: ['', ''], split: ['', ''], equation: ['', ''], 'equation*': ['', ''] };
function pairs(list, word, i, words) { if (i % 2) list.push([words[i - 1], word]); return list; }
const MATHML = 'http://www.w3.org/1998/Math/MathML';
function ml(tag, attributes, ...children) {
  const e = document.createElementNS(MATHML, tag);
  for (const k in attributes) e.setAttribute(k, attributes[k]);
  e.append(...children.flat());
  return e;
}
/* A letter of one of Unicode's mathematical alphabets; a letter that has none there stays. */
function letter(c, alphabet) {
  const starts = { bold: [0x1d400, 0x1d41a, 0x1d7ce], script: [0x1d49c, 0x1d4b6, 0], fraktur: [0x1d504, 0x1d51e, 0], 'double-struck': [0x1d538, 0x1d552, 0x1d7d8],
    'sans-serif': [0x1d5a0, 0x1d5ba, 0x1d7e2], monospace: [0x1d670, 0x1d68a, 0x1d7f6], italic: [0x1d434, 0x1d44e, 0] }[alphabet];
  const holes = { script: { B: 'ℬ', E: 'ℰ', F: 'ℱ', H: 'ℋ', I: 'ℐ', L: 'ℒ', M: 'ℳ', R: 'ℛ', e: 'ℯ', g: 'ℊ', o: 'ℴ' }, fraktur: { C: 'ℭ', H: 'ℌ', I: 'ℑ', R: 'ℜ', Z: 'ℨ' },
    'double-struck': { C: 'ℂ', H: 'ℍ', N: 'ℕ', P: 'ℙ', Q: 'ℚ', R: 'ℝ', Z: 'ℤ' }, italic: { h: 'ℎ' } }[alphabet] ?? {};
  const code = c.charCodeAt(0), kind = /[A-Z]/.test(c) ? 0 : /[a-z]/.test(c) ? 1 : /[0-9]/.test(c) ? 2 : -1;
  if (holes[c]) return holes[c];
  return kind < 0 || !starts?.[kind] ? c : String.fromCodePoint(starts[kind] + code - [65, 97, 48][kind]);
}
class Tex {
  constructor(text, shown) { this.words = text.match(/\\[a-zA-Z]+\*?|\\[\s\S]|\d+(?:[.,]\d+)*|\s+|[\s\S]/gu) ?? []; this.at = 0; this.shown = shown; this.depth = 0; }
  space() { while (/^\s/.test(this.words[this.at] ?? '')) this.at++; }
  peek() { this.space(); return this.words[this.at]; }
  next() { this.space(); return this.words[this.at++]; }
  /* The text between braces, as it stands. */
  raw() {
    if (this.next() !== '{') { this.at--; return this.next() ?? ''; }
    let text = '', depth = 1;
    for (;;) {
      const w = this.words[this.at++];
      if (w === undefined) throw new Error('braces');
      depth += (w === '{') - (w === '}');
      if (!depth) return text;
      text += w;
    }
  }
  argument() {
    if (this.peek() === '{') { this.at++; const row = this.row(['}']); this.at++; return row; }
    return this.atom() ?? ml('mrow');
  }
  /* Up to one of `ends`, which is not taken. */
  row(ends) {
    const out = [];
    if (++this.depth > 40) throw new Error('depth');
    for (let w; (w = this.peek()) !== undefined && !ends.includes(w);) {
      const base = this.atom();
      if (base) out.push(this.scripts(base));
    }
    if (this.peek() === undefined && !ends.includes(undefined)) throw new Error('end');
    this.depth--;
    return out.length === 1 ? out[0] : ml('mrow', {}, out);
  }
  scripts(base) {
    let sub = null, sup = null;
    for (let w; (w = this.peek()) === '_' || w === '^' || w === "'";) {
      this.at++;
      if (w === '_') sub = this.argument();
      else if (w === '^') sup = sup ? ml('mrow', {}, sup, this.argument()) : this.argument();
      else { let primes = '′'; while (this.peek() === "'") { this.at++; primes += '′'; } const p = ml('mo', {}, primes); sup = sup ? ml('mrow', {}, sup, p) : p; }
    }
    const over = base.limits && this.shown;
    if (sub && sup) return ml(over ? 'munderover' : 'msubsup', {}, base, sub, sup);
    if (sub) return ml(over ? 'munder' : 'msub', {}, base, sub);
    return sup ? ml(over ? 'mover' : 'msup', {}, base, sup) : base;
  }
  delimiter() { const w = this.next() ?? ''; return w === '.' ? '' : w[0] === '\\' ? OPERATORS[w.slice(1)] ?? w.slice(1) : w; }
  atom() {
    const w = this.next();
    if (w === undefined || w === '}') throw new Error('nothing');
    if (w === '{') { const row = this.row(['}']); this.at++; return row; }
    if (w[0] !== '\\') {
      if (/^\d/.test(w)) return ml('mn', {}, w);
      if (/^\p{L}/u.test(w)) return ml('mi', {}, w);
      return ml('mo', {}, w === '-' ? '−' : w === '*' ? '∗' : w === '~' ? '\u00a0' : w);
    }
    const name = w.slice(1);
    if (SYMBOLS[name]) return ml('mi', {}, SYMBOLS[name]);
    if (LARGE[name]) { const o = ml('mo', { movablelimits: 'false' }, LARGE[name]); o.limits = !name.includes('int'); return o; }
    if (NAMED.has(name)) return ml('mi', {}, name);
    if (LIMITED.has(name)) { const o = ml('mo', { movablelimits: 'false' }, name); o.limits = true; return o; }
    if (name in SPACES) return ml('mspace', { width: SPACES[name] });
    if (/^[dt]?frac$/.test(name)) return ml('mfrac', {}, this.argument(), this.argument());
    if (name === 'binom') return ml('mrow', {}, ml('mo', {}, '('), ml('mfrac', { linethickness: '0' }, this.argument(), this.argument()), ml('mo', {}, ')'));
    if (name === 'sqrt') {
      if (this.peek() !== '[') return ml('msqrt', {}, this.argument());
      this.at++;
      const index = this.row([']']);
      this.at++;
      return ml('mroot', {}, this.argument(), index);
    }
    if (ACCENTS[name]) return ml('mover', { accent: 'true' }, this.argument(), ml('mo', { stretchy: name.length > 4 ? 'true' : 'false' }, ACCENTS[name]));
    if (name === 'underline') return ml('munder', {}, this.argument(), ml('mo', {}, '_'));
    if (name === 'underbrace' || name === 'overbrace') {
      const o = ml(name[0] === 'u' ? 'munder' : 'mover', {}, this.argument(), ml('mo', {}, name[0] === 'u' ? '⏟' : '⏞'));
      o.limits = true;
      return o;
    }
    if (name === 'overset' || name === 'stackrel') { const over = this.argument(); return ml('mover', {}, this.argument(), over); }
    if (name === 'underset') { const under = this.argument(); return ml('munder', {}, this.argument(), under); }
    if (ALPHABETS[name]) return ml('mi', { mathvariant: 'normal' }, [...this.raw()].map(c => letter(c, ALPHABETS[name])).join(''));
    if (/^(text(rm|bf|it|sf|tt)?|mbox|mathrm|operatorname\*?|hbox)$/.test(name)) return ml(name.startsWith('t') || name.endsWith('box') ? 'mtext' : 'mi', { mathvariant: 'normal' }, this.raw().replace(/\\([\s\S])/g, '$1'));
    if (name === 'boxed') return ml('mrow', { style: 'border: 1px solid; padding: .15em .3em' }, this.argument());
    if (name === 'left') {
      const open = this.delimiter(), row = this.row(['\\right']);
      this.at++;
      return ml('mrow', {}, open ? ml('mo', { fence: 'true', stretchy: 'true' }, open) : [], row, (c => c ? ml('mo', { fence: 'true', stretchy: 'true' }, c) : [])(this.delimiter()));
    }
    if (/^[bB]ig+[lrm]?$/.test(name)) return ml('mo', { stretchy: 'true', minsize: '1.6em' }, this.delimiter());
    if (name === 'begin') return this.table(this.raw());
    if (/^(displaystyle|textstyle|limits|nolimits|nonumber|label|tag|middle|hline)$/.test(name)) { if (name === 'label' || name === 'tag') this.raw(); return null; }
    if (name === 'pmod') return ml('mrow', {}, ml('mo', {}, '('), ml('mi', {}, 'mod'), ml('mspace', { width: '.3em' }), this.argument(), ml('mo', {}, ')'));
    if (name === 'bmod' || name === 'mod') return ml('mo', {}, 'mod');
    if (name === 'not') { const o = this.atom(); o.textContent += '\u0338'; return o; }
    if (OPERATORS[name]) return ml('mo', {}, OPERATORS[name]);
    if (/^[%$#&_]$/.test(name)) return ml('mi', {}, name);
    return ml('mtext', {}, w);
  }
  table(kind) {
    const fences = FENCES[kind], rows = [[]];
    if (!fences) throw new Error(kind);
    if (kind === 'array' && this.peek() === '{') this.raw();
    for (;;) {
      rows.at(-1).push(this.row(['&', '\\\\', '\\end']));
      const w = this.next();
      if (w === '\\end') { this.raw(); break; }
      if (w === '\\\\') { if (this.peek() === '[') { while (this.next() !== ']'); } rows.push([]); }
    }
    const left = kind === 'cases' || kind.startsWith('align') || kind === 'split';
    const grid = ml('mtable', left ? { columnalign: kind === 'cases' ? 'left left' : 'right left' } : {}, rows.filter(r => r.length > 1 || r[0].childNodes.length || r[0].textContent)
      .map(r => ml('mtr', {}, r.map((c, i) => ml('mtd', left ? { style: 'text-align: ' + (kind !== 'cases' && i % 2 === 0 ? 'right' : 'left') } : {}, c)))));
    return ml('mrow', {}, fences[0] ? ml('mo', { fence: 'true', stretchy: 'true' }, fences[0]) : [], grid, fences[1] ? ml('mo', { fence: 'true', stretchy: 'true' }, fences[1]) : []);
  }
}
function maths(text, shown) {
  try {
    const tree = new Tex(text, shown).row([undefined]);
    return ml('math', { display: shown ? 'block' : 'inline', title: text.trim() }, tree);
  } catch {
    return el('code', { textContent: text });
  }
}
