// ---- Text within a block of Markdown ------------------------------------------------------------------------------

// Only what leads to the web is a link; scripts, data and files are text.
function safeUrl(text) {
  if (!/^https?:\/\//i.test(text)) return null;
  try {
    return new URL(text).href;
  } catch {
    return null;
  }
}
function link(url, ...children) {
  return make("a", { href: url, target: "_blank", rel: "noopener noreferrer nofollow" }, ...children);
}

const LONGEST_INLINE = 20000; // characters of one paragraph; beyond it is shown as it is
const LONGEST_LABEL = 1000; // characters of a link's text
const LONGEST_MATHS = 4000; // characters of one formula
const URL_TAIL = ".,;:!?)]";

function withoutTail(url) {
  let end = url.length;
  while (end > 0 && URL_TAIL.includes(url[end - 1])) --end;
  return url.slice(0, end);
}

// Where the text in marks that begins at `from` ends, or -1. A mark does not close behind white space.
function closingMark(text, from, mark) {
  for (let at = text.indexOf(mark, from + 1); at > 0; at = text.indexOf(mark, at + 1)) {
    if (mark.length === 1 && text[at + 1] === mark) {
      ++at;
      continue;
    }
    const wordGoesOn = mark[0] === "_" && /\w/.test(text[at + mark.length] ?? " ");
    if (!/[\s\\]/.test(text[at - 1]) && !wordGoesOn) return at;
  }
  return -1;
}

// (URL "title"), the URL perhaps in angle brackets, or with a pair of parentheses in it.
const LINK_TARGET =
  /\((?:<([^<>\n]{1,2000})>|([^\s()]{1,2000}(?:\([^\s()]{0,500}\)[^\s()]{0,500})?))(?: +"[^"\n]{0,500}")? *\)/;

// Reads a paragraph's text into nodes. `missing`: marks that nothing further on closes, not to be looked for again.
class Inline {
  constructor(text, depth, links) {
    Object.assign(this, { text, depth, links, nodes: [], plain: "", at: 0, missing: new Set() });
  }
  read() {
    const special = /[\\`*_~[!<h$]/g;
    while (this.at < this.text.length) {
      special.lastIndex = this.at;
      const next = special.exec(this.text)?.index ?? this.text.length;
      this.plain += this.text.slice(this.at, next);
      this.at = next;
      if (next < this.text.length && !this.special(this.text[next])) this.plain += this.text[this.at++];
    }
    this.flush();
    return this.nodes;
  }
  flush() {
    if (this.plain !== "") this.nodes.push(document.createTextNode(this.plain));
    this.plain = "";
  }
  // Takes a node in, and goes on behind it.
  put(node, end) {
    this.flush();
    this.nodes.push(node);
    this.at = end;
    return true;
  }
  special(c) {
    if (c === "\\") return this.maths() || this.escape();
    if (c === "$") return this.maths();
    if (c === "`") return this.code();
    if (c === "[" || c === "!") return this.links && this.link(c === "!");
    if (c === "<" || c === "h") return this.links && this.bareUrl(c === "<");
    return this.emphasis(c);
  }
  escape() {
    const next = this.text[this.at + 1] ?? "";
    if (!/[!-/:-@[-`{-~]/.test(next)) return false;
    this.plain += next;
    this.at += 2;
    return true;
  }
  // \( \), \[ \], $$ $$, and $ $ where the marks touch the formula and no word or number goes on behind them.
  maths() {
    const open = MATHS_MARKS.find(([mark]) => this.text.startsWith(mark, this.at));
    if (!open || this.missing.has(open[0])) return false;
    const [mark, close, display] = open;
    const from = this.at + mark.length;
    const end = mark === "$" ? closingDollar(this.text, from) : this.text.indexOf(close, from);
    if (end === -1) this.missing.add(mark);
    if (end < 0 || end - from > LONGEST_MATHS) return false;
    const source = this.text.slice(from, end);
    if (source.trim() === "" || source.includes("\n\n")) return false;
    return this.put(mathsElement(source, display, mark + source + close), end + close.length);
  }
  code() {
    const marks = /`+/y;
    marks.lastIndex = this.at;
    const mark = marks.exec(this.text)[0];
    const from = this.at + mark.length;
    for (let end = this.missing.has(mark) ? -1 : this.text.indexOf(mark, from); end >= 0;) {
      let after = end + mark.length;
      if (this.text[after] !== "`")
        return this.put(make("code", {}, this.text.slice(from, end).replace(/^ (.*) $/s, "$1")), after);
      while (this.text[after] === "`") ++after;
      end = this.text.indexOf(mark, after);
    }
    this.missing.add(mark);
    this.plain += mark;
    this.at = from;
    return true;
  }
  emphasis(c) {
    const run = this.text.startsWith(c + c, this.at) ? c + c : c;
    const tag = { "*": "em", _: "em", "**": "strong", __: "strong", "~~": "del" }[run];
    const from = this.at + run.length;
    const insideWord = c === "_" && this.at > 0 && /\w/.test(this.text[this.at - 1]);
    const opens = tag && this.depth < DEEPEST && !insideWord && /\S/.test(this.text[from] ?? " ");
    if (!opens || this.missing.has(run)) return this.literal(run);
    const end = closingMark(this.text, from, run);
    if (end < 0) this.missing.add(run);
    if (end < 0) return this.literal(run);
    return this.put(make(tag, {}, inline(this.text.slice(from, end), this.depth + 1, this.links)), end + run.length);
  }
  literal(run) {
    this.plain += run;
    this.at += run.length;
    return true;
  }
  // [label](url "title"), and images likewise: nothing is loaded.
  link(image) {
    const from = this.at + (image ? 2 : 1);
    if ((image && this.text[this.at + 1] !== "[") || this.missing.has("](")) return false;
    const near = this.text.slice(from, from + LONGEST_LABEL);
    const length = near.indexOf("](");
    if (length < 0 && near.length < LONGEST_LABEL) this.missing.add("](");
    const label = length < 0 ? "[" : near.slice(0, length);
    if (label.includes("[") || label.includes("\n\n")) return false;
    const middle = from + length;
    const target = new RegExp(LINK_TARGET, "y");
    target.lastIndex = middle + 1;
    const found = target.exec(this.text);
    const url = found && safeUrl(found[1] ?? found[2]);
    if (!url) return false;
    const shown = label.trim() === "" ? [url] : inline(label, this.depth + 1, false);
    return this.put(link(url, ...shown), target.lastIndex);
  }
  bareUrl(bracketed) {
    const pattern = bracketed ? /<(https?:\/\/[^\s<>]{1,2000})>/iy : /https?:\/\/[^\s<>"'`*]{1,2000}/iy;
    pattern.lastIndex = this.at;
    const found = pattern.exec(this.text);
    if (!found || (!bracketed && /\w/.test(this.text[this.at - 1] ?? " "))) return false;
    const shown = bracketed ? found[1] : withoutTail(found[0]);
    const url = safeUrl(shown);
    const length = bracketed ? found[0].length : shown.length;
    return url === null ? this.literal(found[0].slice(0, length)) : this.put(link(url, shown), this.at + length);
  }
}

const MATHS_MARKS = [["$$", "$$", true], ["$", "$", false], ["\\(", "\\)", false], ["\\[", "\\]", true]];

// Where a formula after one dollar sign ends, in the same line and near, or -2.
function closingDollar(text, from) {
  if (/\s/.test(text[from] ?? " ")) return -2;
  const line = text.slice(from, from + 300).split("\n")[0];
  for (let at = line.indexOf("$"); at >= 0; at = line.indexOf("$", at + 1))
    if (!/[\s\\]/.test(line[at - 1] ?? " ") && !/[\w$]/.test(text[from + at + 1] ?? " ")) return from + at;
  return -2;
}

function inline(text, depth = 0, links = true) {
  return text.length > LONGEST_INLINE ? [document.createTextNode(text)] : new Inline(text, depth, links).read();
}
