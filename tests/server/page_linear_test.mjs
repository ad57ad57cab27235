// What the page makes of Markdown, formulas and code, without a browser:
// page_linear_test.mjs FOLDER_OF_THE_PAGE [--times].
//
// Time grows with the text and not with its square: each hostile text is read at one size and at four times that; the
// processor time may be four times as much, twice over for noise, where its square would be sixteen times. And nothing
// throws: a call with as many arguments as a table has columns does.
import assert from "node:assert";
import { readFileSync } from "node:fs";

class Node {
  constructor(name, text = "") {
    Object.assign(this, { localName: name, text, childNodes: [], attributes: {}, parent: null });
  }
  append(...children) {
    for (const c of children) {
      const node = c instanceof Node ? c : new Node("#text", String(c));
      node.parent = this;
      this.childNodes.push(node);
    }
  }
  remove() {
    assert.strictEqual(this.parent.childNodes.pop(), this, "only the last child is removed");
  }
  setAttribute(name, value) {
    this.attributes[name] = String(value);
  }
  addEventListener() {}
  get lastChild() {
    return this.childNodes.at(-1);
  }
  set className(value) {
    this.attributes.class = value;
  }
  get textContent() {
    return this.text + this.childNodes.map((c) => c.textContent).join("");
  }
  get html() {
    if (this.localName === "#text") return this.text;
    const attributes = Object.entries(this.attributes).map(([n, v]) => ` ${n}="${v}"`).join("");
    return `<${this.localName}${attributes}>${this.childNodes.map((c) => c.html).join("")}</${this.localName}>`;
  }
}
const document = {
  createElement: (name) => new Node(name),
  createElementNS: (_, name) => new Node(name),
  createTextNode: (text) => new Node("#text", text),
};

const folder = process.argv[2];
const parts = ["elements", "maths", "highlight", "inline", "markdown"];
const script = parts.map((name) => readFileSync(`${folder}/${name}.js`, "utf8")).join("\n");
const page = new Function("document", script + "\nreturn { showMarkdown, mathsElement, highlighted, make };")(document);

function shown(text) {
  const root = new Node("div");
  page.showMarkdown(root, text);
  return root;
}
const inside = (text) => shown(text).childNodes.map((c) => c.html).join("");

// As it comes from a model: pieces of one size, the last of them whole.
function streamed(text, piece) {
  const root = new Node("div");
  for (let end = piece; end < text.length; end += piece) page.showMarkdown(root, text.slice(0, end), false);
  page.showMarkdown(root, text);
  return root;
}

function processorTime(work) {
  const before = process.cpuUsage();
  work();
  const used = process.cpuUsage(before);
  return (used.user + used.system) / 1e6;
}

// Code that runs for the first time, and collections of garbage, may be slow: one of three tries has to do.
function growsWithTheText(name, make, show, small) {
  const [little, much] = [make(small), make(4 * small)];
  const tries = [];
  while (tries.length < 3) {
    const one = processorTime(() => show(little));
    const four = processorTime(() => show(much));
    tries.push(`${one.toFixed(3)} s, and ${four.toFixed(3)} s for four times the text`);
    if (process.argv.includes("--times")) console.log(name, tries.at(-1));
    if (four <= 8 * one + 0.1) return;
  }
  assert.fail(`${name}: ${tries.join("; ")}`);
}

const upTo = (n, text) => text.repeat(Math.ceil(n / text.length)).slice(0, n);
const HOSTILE = {
  "a heading with many spaces": (n) => "# a" + upTo(n, " ") + "b",
  "headings that seem to end": (n) => "# " + upTo(n, " #") + "x",
  "a heading of marks": (n) => "# " + upTo(n, "#") + "\u2028",
  "spaces and a line separator": (n) => "#" + upTo(n, " ") + "\u2028",
  "tildes and a backtick": (n) => upTo(n, "~") + "`",
  "backticks, spaces, a backtick": (n) => "```" + upTo(n, " ") + "`",
  "almost rules": (n) => upTo(n, "-".repeat(199) + "x\n"),
  "a long rule that is none": (n) => upTo(n, "- ") + "x",
  "a wide table": (n) => upTo(n, "|a") + "\n" + upTo(n, "|-") + "\n" + upTo(n, "|b"),
  "a narrow table with a wide row": (n) => "|a|b|\n|-|-|\n" + upTo(n, "|c"),
  "a long table": (n) => "|a|b|\n|-|-|\n" + upTo(n, "|c|d|\n"),
  "lines that may begin tables": (n) => upTo(n, "a|b\n"),
  "many headings": (n) => upTo(n, "# a\n"),
  "many paragraphs": (n) => upTo(n, "a\n\n"),
  "one list": (n) => upTo(n, "- a\n"),
  "lists in lists": (n) => upTo(n, "- ") + "a",
  "a list with blank lines": (n) => "- a" + upTo(n, "\n"),
  "quotes in quotes": (n) => upTo(n, "> "),
  "lines of quotes": (n) => upTo(n, "> a\n"),
  "stars": (n) => upTo(n, "*"),
  "emphasis that opens": (n) => upTo(n, "*a **b _c __d ~~e\n"),
  "paragraphs of labels": (n) => upTo(n, "[a ".repeat(6000) + "\n\n"),
  "links that are none": (n) => upTo(n, "[a](x ".repeat(3000) + "\n\n"),
  "addresses that are none": (n) => upTo(n, "http://[".repeat(2000) + "\n\n"),
  "addresses with long ends": (n) => upTo(n, "https://a" + ".".repeat(1900) + "b \n"),
  "code marks of all lengths": (n) =>
    upTo(n, Array.from({ length: 150 }, (_, i) => "`".repeat(i) + " ").join("") + "\n\n"),
  "a fence that does not close": (n) => "```js\n" + upTo(n, "`` `\n"),
  "strings that do not close": (n) => upTo(n, "```js\n" + "'\\a".repeat(9000) + "\n```\n"),
  "comments that do not close": (n) => upTo(n, "```c\n" + "/* ".repeat(9000) + "\n```\n"),
  "formulas that do not close": (n) => upTo(n, "\\[ a\n"),
  "formulas of dollars": (n) => upTo(n, "$$ a\n"),
  "single dollars": (n) => upTo(n, "$a "),
  "formulas nested deep": (n) => upTo(n, "\\(" + "\\frac{".repeat(500) + "\\)\n\n"),
  "formulas of scripts": (n) => upTo(n, "\\(" + "a_b^c".repeat(600) + "\\)\n\n"),
  "formulas of accents": (n) => upTo(n, "\\(" + "\\hat".repeat(900) + "\\)\n\n"),
  "matrices": (n) => upTo(n, "$$\\begin{matrix}" + "a&b\\\\".repeat(500) + "\\end{matrix}$$\n\n"),
  "brackets": (n) => upTo(n, "[("),
  "tabs": (n) => upTo(n, "\t"),
  "line ends": (n) => upTo(n, "\r\n"),
};

for (const [name, make] of Object.entries(HOSTILE)) {
  growsWithTheText(name, make, shown, 128_000);
  growsWithTheText(name + ", piece by piece", make, (text) => streamed(text, 250), 32_000);
}
for (const make of Object.values(HOSTILE)) shown(make(1_000_000));

// What came in pieces is what it would have been at once.
const SAMPLE = "# T #\n\na\nb|c\n|-|-|\n1|2\n\n- a\n- **b**\n\n  c\n1. d\n\n$$\nx\n= y\n$$\n\n\\[ a_1 \\] t\r\n" +
  "```py\nif x: # c\n```\n> q\n> - r\n\nprice $5 and $6, $x$ end\n***\n";
for (const piece of [1, 2, 3, 7]) assert.strictEqual(streamed(SAMPLE, piece).html, shown(SAMPLE).html);
const LONG = SAMPLE.repeat(100) + "- item\n".repeat(3000) + "end";
assert.strictEqual(streamed(LONG, 997).html, shown(LONG).html);

// Nothing that was written is lost.
assert.strictEqual(shown("|a|b|\n|-|-|\n" + "|c".repeat(100)).textContent.match(/c/g).length, 100);
assert.strictEqual(inside("# a   b ##"), "<h1>a   b</h1>");
assert.strictEqual(inside("####### a"), "<p>####### a</p>");
assert.strictEqual(inside("- - -x"), "<ul><li><ul><li>-x</li></ul></li></ul>");

// Formulas: what browsers are given.
const formula = (tex) => page.mathsElement(tex, false, tex).html.replace(/^<math[^>]*><mrow>|<\/mrow><\/math>$/g, "");
const x = "<mi>x</mi>";
assert.strictEqual(formula("a_i"), "<msub><mi>a</mi><mi>i</mi></msub>");
assert.strictEqual(formula("x^{10}"), `<msup>${x}<mn>10</mn></msup>`);
assert.strictEqual(formula("x^10"), `<msup>${x}<mn>1</mn></msup><mn>0</mn>`);
assert.strictEqual(formula("\\frac12"), "<mfrac><mn>1</mn><mn>2</mn></mfrac>");
assert.strictEqual(formula("\\sqrt[3]{x}"), `<mroot>${x}<mn>3</mn></mroot>`);
assert.strictEqual(formula("f'_n"), "<msubsup><mi>f</mi><mi>n</mi><mo>′</mo></msubsup>");
assert.strictEqual(formula("\\mathbb{R}\\mathcal{B}\\mathbf{x1}"),
  "<mi>ℝ</mi><mi>ℬ</mi><mrow><mi>𝐱</mi><mn>𝟏</mn></mrow>");
assert.ok(formula("\\sum\\limits_{i=1}^n").startsWith("<munderover><mo>∑</mo>"));
assert.strictEqual(formula("\\text{if } x"), "<mtext>if\u00a0</mtext><mi>x</mi>");
assert.ok(formula("\\int_0^1").startsWith("<msubsup><mo>∫</mo>"));
assert.ok(formula("\\left( \\frac{a}{b} \\right]").includes('<mo form="postfix" fence="true" stretchy="true">]</mo>'));
assert.strictEqual(formula("\\begin{pmatrix} a & b \\\\ c & d \\\\ \\end{pmatrix}").match(/<mtd/g).length, 4);
assert.ok(inside("so \\(a_i\\) is").includes("<msub>"));
assert.ok(inside("so \\[ a_i \\] is").includes('display="block"'));
assert.ok(inside("$$\n- b\n\\pm c\n$$").startsWith('<div class="maths"'));
for (const prose of ["it costs $5 and $10", "$HOME and $PATH", "\\(open", "$$", "\\[\n\na\\]", "$ x $"])
  assert.ok(!inside(prose).includes("<math"), prose);
for (const unknown of ["\\unknown{x}", "{x", "x}", "\\frac{a}", "a^b^c", "\\begin{evil}\\end{evil}", "\\left(x", "\\",
  "\\begin{constructor}\\end{constructor}", "\\constructor{x}", "\\toString{x}", "\\text{\\", "x_",
  "{".repeat(40) + "}".repeat(40)])
  assert.strictEqual(page.mathsElement(unknown, true, "source").html, '<code class="tex">source</code>', unknown);

// Code: what is marked is what was written.
const code = (name, text) => page.make("code", {}, page.highlighted(text, name));
assert.strictEqual(code("py", "def f(): # no 'x'").html,
  '<code><span class="code-keyword">def</span> f(): <span class="code-comment"># no \'x\'</span></code>');
assert.strictEqual(code("c", 'int x = 0x1f; "a\\"b"').html, '<code><span class="code-keyword">int</span> x = ' +
  '<span class="code-number">0x1f</span>; <span class="code-string">"a\\"b"</span></code>');
assert.strictEqual(code("sql", "SELECT a").html, '<code><span class="code-keyword">SELECT</span> a</code>');
assert.strictEqual(code("none", "if 1").html, "<code>if 1</code>");
for (const name of ["c", "js", "py", "sh", "sql", "rust", "go", "java", "rb", "json", "yaml", "css", "html", "lua"])
  for (const text of ["'", '"""a', "/*", "a\\", "`${x}\n", "<!--", "--", "9".repeat(99), '"\\', "\u0000\ud83d"])
    assert.strictEqual(code(name, text).textContent, text);

// Anything at all becomes elements, and what came in pieces is what it would have been at once.
const PIECES = ["\\", "\\(", "\\)", "\\[", "\\]", "$", "$$", "\n", "\n\n", " ", "    ", "- ", "1. ", "> ", "# ", "|",
  "|-|\n",
  "```", "~~~", "`", "*", "**", "_", "~~", "[a](", "https://a.b", ")", "!", "<", "a", "x1", "^", "{", "}", "&", "\\\\",
  "\\frac", "\\sqrt[", "]", "\\left(", "\\right)", "\\begin{cases}", "\\end{cases}", "\\hat", "\\text{", "\\sum",
  "\\limits",
  "'", "\\mathbb", "\\not", "\ud83d", "\u2028", "\r\n", "\t", "\0", "py\n", "\"", "/*", "---\n", "***\n"];
let state = 1;
const random = (n) => (state = (state * 48271) % 2147483647) % n;
for (let i = 0; i < 5000; ++i) {
  const source = Array.from({ length: 1 + random(60) }, () => PIECES[random(PIECES.length)]).join("");
  assert.strictEqual(streamed(source, 1 + random(9)).html, shown(source).html, JSON.stringify(source));
  page.mathsElement(source, true, source);
}
console.log("ok");
