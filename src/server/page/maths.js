// ---- Mathematics --------------------------------------------------------------------------------------------------
// TeX as models write it becomes MathML, which browsers lay out themselves. What is not known here is shown as it was
// written. One pass over the text, nested as deep as MATHS_DEEPEST.

const MATHS_DEEPEST = 24;
const MATHML = "http://www.w3.org/1998/Math/MathML";

const mathsTable = (text) => new Map(text.trim().split(/\s+/).map((pair) => pair.split(":")));
const IDENTIFIERS = mathsTable(`
  alpha:α beta:β gamma:γ delta:δ epsilon:ϵ varepsilon:ε zeta:ζ eta:η theta:θ vartheta:ϑ iota:ι kappa:κ lambda:λ mu:μ
  nu:ν xi:ξ omicron:ο pi:π varpi:ϖ rho:ρ varrho:ϱ sigma:σ varsigma:ς tau:τ upsilon:υ phi:ϕ varphi:φ chi:χ psi:ψ omega:ω
  Gamma:Γ Delta:Δ Theta:Θ Lambda:Λ Xi:Ξ Pi:Π Sigma:Σ Upsilon:Υ Phi:Φ Psi:Ψ Omega:Ω
  infty:∞ ell:ℓ hbar:ℏ imath:ı jmath:ȷ Re:ℜ Im:ℑ aleph:ℵ beth:ℶ wp:℘ emptyset:∅ varnothing:∅ top:⊤ bot:⊥ angle:∠
  triangle:△ square:□ Box:□ blacksquare:■ checkmark:✓ dagger:† ddagger:‡ S:§ degree:° prime:′ bigstar:★ clubsuit:♣
  diamondsuit:♢ heartsuit:♡ spadesuit:♠ hslash:ℏ mho:℧ partial:∂ nabla:∇ P:¶ copyright:© pounds:£ backslash:\\ %:% $:$
  #:# &:& _:_`);
const OPERATORS = mathsTable(`
  pm:± mp:∓ times:× div:÷ cdot:⋅ ast:∗ star:⋆ circ:∘ bullet:∙ oplus:⊕ ominus:⊖ otimes:⊗ oslash:⊘ odot:⊙ wedge:∧ land:∧
  vee:∨ lor:∨ cap:∩ cup:∪ uplus:⊎ sqcap:⊓ sqcup:⊔ setminus:∖ smallsetminus:∖ wr:≀ amalg:⨿ diamond:⋄ lnot:¬ neg:¬
  forall:∀ exists:∃ nexists:∄ le:≤ leq:≤ leqslant:⩽ ge:≥ geq:≥ geqslant:⩾ ne:≠ neq:≠ equiv:≡ approx:≈ sim:∼ simeq:≃
  cong:≅ propto:∝ ll:≪ gg:≫ prec:≺ succ:≻ preceq:⪯ succeq:⪰ in:∈ ni:∋ notin:∉ subset:⊂ supset:⊃ subseteq:⊆ supseteq:⊇
  subsetneq:⊊ supsetneq:⊋ perp:⊥ parallel:∥ mid:∣ nmid:∤ vdash:⊢ dashv:⊣ models:⊨ vDash:⊨ asymp:≍ doteq:≐ triangleq:≜
  coloneqq:≔ lesssim:≲ gtrsim:≳ to:→ rightarrow:→ leftarrow:← gets:← leftrightarrow:↔ Rightarrow:⇒ Leftarrow:⇐
  Leftrightarrow:⇔ implies:⟹ impliedby:⟸ iff:⟺ longrightarrow:⟶ longleftarrow:⟵ Longrightarrow:⟹ Longleftarrow:⟸
  longleftrightarrow:⟷ Longleftrightarrow:⟺ mapsto:↦ longmapsto:⟼ hookrightarrow:↪ hookleftarrow:↩ uparrow:↑ downarrow:↓
  updownarrow:↕ Uparrow:⇑ Downarrow:⇓ nearrow:↗ searrow:↘ swarrow:↙ nwarrow:↖ rightharpoonup:⇀ rightleftharpoons:⇌
  leadsto:⇝ ldots:… dots:… cdots:⋯ dotsc:… dotsb:⋯ vdots:⋮ ddots:⋱ therefore:∴ because:∵ lfloor:⌊ rfloor:⌋ lceil:⌈
  rceil:⌉ langle:⟨ rangle:⟩ lbrace:{ rbrace:} lbrack:[ rbrack:] lvert:| rvert:| vert:| Vert:‖ lVert:‖ rVert:‖ |:‖ {:{ }:}
  bowtie:⋈ rtimes:⋊ ltimes:⋉ multimap:⊸`).set("colon", ":");
const BIG = mathsTable(`
  sum:∑ prod:∏ coprod:∐ int:∫ iint:∬ iiint:∭ oint:∮ bigcup:⋃ bigcap:⋂ bigoplus:⨁ bigotimes:⨂ bigvee:⋁ bigwedge:⋀
  bigsqcup:⨆`);
const FUNCTIONS = new Set(`arccos arcsin arctan arg cos cosh cot coth csc deg det dim exp gcd hom inf ker lg lim liminf
  limsup ln log max min Pr sec sin sinh sup tan tanh argmax argmin`.split(/\s+/));
const LIMITED = new Set("lim liminf limsup max min sup inf det gcd Pr argmax argmin".split(" "));
const SPACES = new Map([[",", 0.17], [":", 0.22], [">", 0.22], [";", 0.28], ["!", -0.17], [" ", 0.3], ["\n", 0.3],
  ["quad", 1], ["qquad", 2], ["enspace", 0.5], ["thinspace", 0.17]]);
const ACCENTS = mathsTable(`hat:^ widehat:^ bar:¯ overline:¯ vec:→ overrightarrow:→ tilde:~ widetilde:~ dot:˙ ddot:¨
  check:ˇ breve:˘ acute:´ grave:\` mathring:˚ overbrace:⏞`);
const BELOW = mathsTable("underline:_ underbrace:⏟");
const TEXTS = new Set("text textrm textbf textit textsf texttt textnormal mbox hbox".split(" "));
const IGNORED = new Set(`displaystyle textstyle scriptstyle limits nolimits big Big bigg Bigg bigl bigr Bigl Bigr biggl
  biggr Biggl Biggr bigm Bigm nonumber notag hline boldmath`.split(/\s+/));
const FENCES = { matrix: "", pmatrix: "()", bmatrix: "[]", Bmatrix: "{}", vmatrix: "||", Vmatrix: "‖‖", cases: "{",
  smallmatrix: "", array: "", aligned: "", align: "", "align*": "", gathered: "", gather: "", "gather*": "", split: "",
  equation: "", "equation*": "", alignedat: "", eqnarray: "", "eqnarray*": "" };
const ALIGNED = new Set(["aligned", "align", "align*", "split", "eqnarray", "eqnarray*", "alignedat"]);

// Letters of other alphabets: where A, a and 0 begin, and those that had a place of their own before.
const ALPHABETS = {
  mathbb: [0x1d538, 0x1d552, 0x1d7d8, "Cℂ Hℍ Nℕ Pℙ Qℚ Rℝ Zℤ"],
  mathcal: [0x1d49c, 0x1d4b6, 0, "Bℬ Eℰ Fℱ Hℋ Iℐ Lℒ Mℳ Rℛ eℯ gℊ oℴ"],
  mathfrak: [0x1d504, 0x1d51e, 0, "Cℭ Hℌ Iℑ Rℜ Zℨ"],
  mathbf: [0x1d400, 0x1d41a, 0x1d7ce, ""],
  mathsf: [0x1d5a0, 0x1d5ba, 0x1d7e2, ""],
  mathtt: [0x1d670, 0x1d68a, 0x1d7f6, ""],
};
Object.assign(ALPHABETS, { mathscr: ALPHABETS.mathcal, bm: ALPHABETS.mathbf, boldsymbol: ALPHABETS.mathbf });

function inAlphabet(c, [upper, lower, digit, others]) {
  const at = others.indexOf(c);
  if (at >= 0 && at % 3 === 0) return others[at + 1];
  const begins = { upper: [/[A-Z]/, 65, upper], lower: [/[a-z]/, 97, lower], digit: [/[0-9]/, 48, digit] };
  for (const [pattern, from, to] of Object.values(begins))
    if (to > 0 && pattern.test(c)) return String.fromCodePoint(to + c.charCodeAt(0) - from);
  return c;
}

class UnknownMaths extends Error {}

function mathNode(tag, attributes = {}, ...children) {
  const node = document.createElementNS(MATHML, tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  return appendAll(node, children.flat());
}
const operator = (text, attributes = {}) => mathNode("mo", attributes, text);
const rowOf = (nodes) => (nodes.length === 1 ? nodes[0] : mathNode("mrow", {}, nodes));

class MathsReader {
  constructor(text) {
    Object.assign(this, { text, at: 0, depth: 0, alphabet: null });
  }
  peek() {
    return this.text[this.at] ?? "";
  }
  skipSpace() {
    while (/\s/.test(this.peek())) ++this.at;
  }
  // The name of a command: letters, perhaps a star behind an environment's; or one other character.
  command() {
    ++this.at;
    const letters = /[A-Za-z]+/y;
    letters.lastIndex = this.at;
    const name = letters.exec(this.text)?.[0] ?? this.peek();
    if (name === "") throw new UnknownMaths("a backslash ends it");
    this.at += name.length;
    return name;
  }
  nextCommand() {
    if (this.peek() !== "\\") return "";
    const at = this.at;
    const name = this.command();
    this.at = at;
    return name;
  }
  expect(c) {
    this.skipSpace();
    if (this.peek() !== c) throw new UnknownMaths(`no ${c}`);
    ++this.at;
  }
  // Everything up to what ends a group, which stays to be read.
  nodes(ends) {
    if (++this.depth > MATHS_DEEPEST) throw new UnknownMaths("nested too deep");
    const nodes = [];
    for (;;) {
      this.skipSpace();
      if (this.at >= this.text.length || ends(this)) break;
      const node = this.scripted();
      if (node) nodes.push(node);
    }
    --this.depth;
    return nodes;
  }
  // Braces in text and names: as they are, without markup in them.
  plainGroup() {
    this.expect("{");
    const end = this.text.indexOf("}", this.at);
    const inner = this.text.slice(this.at, end);
    if (end < 0 || /[{]/.test(inner)) throw new UnknownMaths("braces");
    this.at = end + 1;
    return inner;
  }
  group() {
    this.expect("{");
    const nodes = this.nodes((r) => r.peek() === "}");
    this.expect("}");
    return rowOf(nodes);
  }
  // What a command or a script takes: a group, or one symbol.
  argument() {
    this.skipSpace();
    if (this.peek() === "{") return this.group();
    if (this.at >= this.text.length || /[}&^_]/.test(this.peek())) throw new UnknownMaths("an argument is missing");
    if (++this.depth > MATHS_DEEPEST) throw new UnknownMaths("nested too deep");
    const node = this.symbol(true);
    --this.depth;
    return node ?? mathNode("mrow");
  }
  scripted() {
    const base = /[\^_]/.test(this.peek()) ? mathNode("mrow") : this.symbol(false);
    const scripts = {};
    if (["limits", "nolimits"].includes(this.nextCommand())) this.command();
    for (this.skipSpace(); base && /[\^_']/.test(this.peek()) && this.at < this.text.length; this.skipSpace()) {
      const mark = this.peek();
      ++this.at;
      if (mark === "'") {
        let primes = "′";
        for (; this.peek() === "'"; ++this.at) primes += "′";
        scripts.prime = operator(primes);
      } else {
        if (scripts[mark]) throw new UnknownMaths("two scripts");
        scripts[mark] = this.argument();
      }
    }
    const over = scripts.prime && scripts["^"] ? mathNode("mrow", {}, scripts.prime, scripts["^"])
      : scripts.prime ?? scripts["^"];
    return withScripts(base, scripts._, over);
  }
  symbol(single) {
    const c = this.peek();
    if (c === "{") return this.group();
    if (c === "\\") return this.commanded();
    if (c === "}" || c === "&") throw new UnknownMaths(`${c} where none may be`);
    if (/[0-9]/.test(c)) {
      const digits = /[0-9]+(?:[.,][0-9]+)*/y;
      digits.lastIndex = this.at;
      const number = single ? c : digits.exec(this.text)[0];
      this.at += number.length;
      return mathNode("mn", {}, this.alphabet ? [...number].map((d) => inAlphabet(d, this.alphabet)).join("") : number);
    }
    const whole = String.fromCodePoint(this.text.codePointAt(this.at));
    this.at += whole.length;
    if (c === "~") return mathsSpace(0.3);
    if (c === "%") throw new UnknownMaths("a comment");
    if (/\p{L}/u.test(whole)) return mathNode("mi", {}, this.alphabet ? inAlphabet(whole, this.alphabet) : whole);
    if ("()[]".includes(c)) return operator(c, { stretchy: "false" });
    if ("|/".includes(c)) return operator(c, { stretchy: "false", lspace: "0", rspace: "0" });
    return operator(c === "-" ? "−" : c === "*" ? "∗" : whole);
  }
  commanded() {
    const name = this.command();
    if (SPACES.has(name)) return mathsSpace(SPACES.get(name));
    if (IGNORED.has(name)) return null;
    if (IDENTIFIERS.has(name)) return mathNode("mi", {}, IDENTIFIERS.get(name));
    if (OPERATORS.has(name)) return operator(OPERATORS.get(name), { stretchy: "false" });
    if (BIG.has(name)) return limited(operator(BIG.get(name)), !name.includes("int"));
    if (FUNCTIONS.has(name)) return limited(mathNode("mi", {}, name), LIMITED.has(name));
    if (TEXTS.has(name)) return mathNode("mtext", {}, this.plainGroup().replaceAll(" ", "\u00a0"));
    if (Object.hasOwn(ALPHABETS, name)) return this.inAlphabet(ALPHABETS[name]);
    if (ACCENTS.has(name)) {
      const over = name.endsWith("brace");
      return limited(mathNode("mover", { accent: "true" }, this.argument(), operator(ACCENTS.get(name))), over);
    }
    if (BELOW.has(name)) return limited(mathNode("munder", {}, this.argument(), operator(BELOW.get(name))), true);
    const own = OWN_COMMANDS[name];
    if (!own) throw new UnknownMaths(name);
    return own(this);
  }
  inAlphabet(alphabet) {
    const outside = this.alphabet;
    this.alphabet = alphabet;
    const node = this.argument();
    this.alphabet = outside;
    return node;
  }
  // A bracket after \left or \right.
  bracket() {
    this.skipSpace();
    if (this.peek() !== "\\") return this.text[this.at++] ?? "";
    const name = this.command();
    if (!OPERATORS.has(name)) throw new UnknownMaths(name);
    return OPERATORS.get(name);
  }
  fenced() {
    const open = this.bracket();
    const nodes = this.nodes((r) => r.nextCommand() === "right");
    if (this.nextCommand() !== "right") throw new UnknownMaths("no right");
    this.command();
    return between(open, nodes, this.bracket());
  }
  environment() {
    const name = this.plainGroup();
    const fence = FENCES[name];
    if (fence === undefined || !Object.hasOwn(FENCES, name)) throw new UnknownMaths(name);
    if (name === "array" || name === "alignedat") this.plainGroup();
    const rows = [[]];
    for (;;) {
      rows.at(-1).push(this.nodes((r) => r.peek() === "&" || ["\\", "end"].includes(r.nextCommand())));
      if (this.peek() === "&") ++this.at;
      else if (this.command() === "end") break;
      else rows.push([]);
    }
    if (this.plainGroup() !== name) throw new UnknownMaths("another end");
    if (rows.at(-1).length === 1 && rows.at(-1)[0].length === 0) rows.pop();
    return between(fence[0] ?? ".", [matrix(rows, name)], fence[1] ?? ".");
  }
}

// The sides of cells are classes: the page's policy allows no styles in markup.
function matrix(rows, name) {
  const side = (i) => (ALIGNED.has(name) ? ["right", "left"][i % 2] : name === "cases" ? "left" : "center");
  const cell = (nodes, i) => mathNode("mtd", { class: side(i) }, nodes);
  const display = ALIGNED.has(name) ? { displaystyle: "true" } : {};
  return mathNode("mtable", { class: ALIGNED.has(name) ? "aligned" : "matrix", ...display },
    rows.map((row) => mathNode("mtr", {}, row.map(cell))));
}

const mathsSpace = (em) => mathNode("mspace", { width: em + "em" });
const bracketNode = (c, form) => (".".includes(c) ? null : operator(c, { form, fence: "true", stretchy: "true" }));
const between = (open, nodes, close) =>
  mathNode("mrow", {}, bracketNode(open, "prefix"), nodes, bracketNode(close, "postfix"));

// Scripts of these stand above and below them where there is room.
const withLimits = new WeakSet();
function limited(node, limits) {
  if (limits) withLimits.add(node);
  return node;
}

function withScripts(base, under, over) {
  if (!base || (!under && !over)) return base;
  const names = withLimits.has(base) ? ["munder", "mover", "munderover"] : ["msub", "msup", "msubsup"];
  return mathNode(names[under && over ? 2 : over ? 1 : 0], {}, base, under, over);
}

const fraction = (r, attributes) => mathNode("mfrac", attributes, r.argument(), r.argument());
const stacked = (r) => {
  const over = r.argument();
  return mathNode("mover", {}, r.argument(), over);
};
const upright = (r) => mathNode("mi", { mathvariant: "normal" }, r.plainGroup());
const modulo = (before, behind) =>
  mathNode("mrow", {}, mathsSpace(before), mathNode("mi", {}, "mod"), mathsSpace(behind));
const OWN_COMMANDS = Object.assign(Object.create(null), {
  frac: (r) => fraction(r, {}),
  tfrac: (r) => mathNode("mstyle", { displaystyle: "false" }, fraction(r, {})),
  dfrac: (r) => mathNode("mstyle", { displaystyle: "true" }, fraction(r, {})),
  cfrac: (r) => mathNode("mstyle", { displaystyle: "true" }, fraction(r, {})),
  binom: (r) => between("(", [fraction(r, { linethickness: "0" })], ")"),
  sqrt: (r) => {
    r.skipSpace();
    if (r.peek() !== "[") return mathNode("msqrt", {}, r.argument());
    ++r.at;
    const index = rowOf(r.nodes((inner) => inner.peek() === "]"));
    r.expect("]");
    return mathNode("mroot", {}, r.argument(), index);
  },
  left: (r) => r.fenced(),
  begin: (r) => r.environment(),
  mathrm: upright,
  mathit: (r) => r.argument(),
  operatorname: (r) => mathNode("mrow", {}, upright(r), mathsSpace(0.17)),
  overset: stacked,
  stackrel: stacked,
  underset: (r) => {
    const under = r.argument();
    return mathNode("munder", {}, r.argument(), under);
  },
  xrightarrow: (r) => mathNode("mover", {}, operator("→", { stretchy: "true" }), r.argument()),
  boxed: (r) => mathNode("mrow", { class: "boxed" }, r.argument()),
  pmod: (r) => mathNode("mrow", {}, mathsSpace(0.4), operator("("), modulo(0, 0.3), r.argument(), operator(")")),
  bmod: () => modulo(0.25, 0.25),
  mod: () => modulo(0.6, 0.3),
  tag: (r) => mathNode("mtext", {}, `\u2003(${r.plainGroup()})`),
  middle: (r) => operator(r.bracket(), { fence: "true", stretchy: "true" }),
  not: (r) => {
    const node = r.argument();
    node.append("\u0338");
    return node;
  },
});

// A formula, or its source as code where it has what is not known here.
function mathsElement(text, display, source) {
  try {
    const reader = new MathsReader(text);
    const nodes = reader.nodes((r) => r.peek() === "}");
    if (reader.at < text.length) throw new UnknownMaths("a brace too many");
    const attributes = { "aria-label": text.trim(), ...(display ? { display: "block" } : {}) };
    return mathNode("math", attributes, mathNode("mrow", {}, nodes));
  } catch (failure) {
    if (!(failure instanceof UnknownMaths)) throw failure;
    return make("code", { class: "tex" }, source);
  }
}
