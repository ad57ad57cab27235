// ---- Markdown -----------------------------------------------------------------------------------------------------
// Lines become blocks, and blocks elements. Blocks remember their source, so that of an answer that grows only the last
// one is made again. Nothing takes more than time linear in a block, for every nesting up to the deepest that is read.

const DEEPEST = 6;
const LONGEST_INLINE = 20000; // characters of one paragraph; beyond it is shown as it is

const FENCE = /^ {0,3}(`{3,}|~{3,}) *([^`]*)$/;
const HEADING = /^ {0,3}(#{1,6})(?: +(.*))?$/;
const ITEM = /^( {0,3})([-*+]|\d{1,9}[.)])( +|$)/;
const QUOTE = /^ {0,3}> ?/;
const isRule = (line) => /^ {0,3}(?:-[- ]*-[- ]*-|\*[* ]*\*[* ]*\*|_[_ ]*_[_ ]*_)[-*_ ]*$/.test(line.slice(0, 200));
const indentOf = (line) => line.length - line.trimStart().length;
const beginsBlock = (line) => [FENCE, HEADING, ITEM, QUOTE].some((pattern) => pattern.test(line)) || isRule(line);

// The first line after a fenced block that begins at `from`.
function endOfFence(lines, from) {
  const fence = FENCE.exec(lines[from])[1];
  for (let at = from + 1; at < lines.length; ++at) {
    const line = lines[at].trim();
    if (line.length >= fence.length && line === fence[0].repeat(line.length)) return at + 1;
  }
  return lines.length;
}

// A list goes on over items of its kind, lines indented below them, and lines that continue a paragraph.
function endOfList(lines, from) {
  const first = ITEM.exec(lines[from]);
  const ordered = first[2].length > 1;
  let at = from + 1;
  for (let blank = false; at < lines.length; ++at) {
    const line = lines[at];
    if (line.trim() === "") {
      blank = true;
      continue;
    }
    const item = ITEM.exec(line);
    const inside = indentOf(line) >= first[1].length + 2;
    const otherList = item && (item[2].length > 1 !== ordered || isRule(line));
    if (!inside && (item ? otherList : blank || beginsBlock(line))) break;
    blank = false;
  }
  while (lines[at - 1].trim() === "") --at;
  return at;
}

function cellsOf(line) {
  const cells = line.trim().replace(/^\|/, "").replace(/([^\\])\|$/, "$1").split(/(?<!\\)\|/);
  return cells.map((cell) => cell.trim().replaceAll("\\|", "|"));
}
const isDelimiter = (line) => line.includes("|") && cellsOf(line).every((cell) => /^:?-+:?$/.test(cell));
const isTable = (lines, at) => lines[at].includes("|") && at + 1 < lines.length && isDelimiter(lines[at + 1]);

function endWhere(lines, from, ends) {
  let at = from + 1;
  while (at < lines.length && lines[at].trim() !== "" && !ends(at)) ++at;
  return at;
}

// [{kind, lines}]
function blocksOf(lines) {
  const blocks = [];
  for (let at = 0; at < lines.length;) {
    const line = lines[at];
    if (line.trim() === "") {
      ++at;
      continue;
    }
    let kind = "paragraph";
    let end = at + 1;
    if (FENCE.test(line)) [kind, end] = ["code", endOfFence(lines, at)];
    else if (HEADING.test(line)) kind = "heading";
    else if (isRule(line)) kind = "rule";
    else if (ITEM.test(line)) [kind, end] = ["list", endOfList(lines, at)];
    else if (QUOTE.test(line)) [kind, end] = ["quote", endWhere(lines, at, (i) => !QUOTE.test(lines[i]))];
    else if (isTable(lines, at)) [kind, end] = ["table", endWhere(lines, at, (i) => !lines[i].includes("|"))];
    else end = endWhere(lines, at, (i) => beginsBlock(lines[i]) || isTable(lines, i));
    blocks.push({ kind, lines: lines.slice(at, end) });
    at = end;
  }
  return blocks;
}

function codeElement(lines) {
  const fence = FENCE.exec(lines[0]);
  const last = lines[lines.length - 1].trim();
  const closed = lines.length > 1 && last.length >= fence[1].length && last === fence[1][0].repeat(last.length);
  const text = lines.slice(1, closed ? -1 : undefined).join("\n");
  const language = fence[2].trim().split(" ")[0].slice(0, 30);
  const caption = make("figcaption", {}, make("span", {}, language || "text"), copyButton(() => text, "Copy"));
  return make("figure", {}, caption, make("pre", { tabindex: "0" }, make("code", {}, text)));
}

function listElement(lines, depth) {
  const first = ITEM.exec(lines[0]);
  const ordered = first[2].length > 1;
  const list = make(ordered ? "ol" : "ul", ordered ? { start: parseInt(first[2], 10) } : {});
  const items = [];
  for (const line of lines) {
    const item = ITEM.exec(line);
    if (item && (items.length === 0 || indentOf(line) < items.at(-1).width)) {
      const width = Math.min(item[0].length, item[1].length + item[2].length + 4);
      items.push({ width, lines: [line.slice(item[0].length)] });
    } else {
      items.at(-1).lines.push(line.slice(Math.min(indentOf(line), items.at(-1).width)));
    }
  }
  for (const item of items) list.append(itemElement(item.lines, depth));
  return list;
}

// An item of one paragraph has no paragraph around it.
function itemElement(lines, depth) {
  const item = make("li");
  const blocks = blocksOf(lines);
  for (const [i, block] of blocks.entries()) {
    if (i === 0 && block.kind === "paragraph") item.append(...inline(block.lines.join("\n")));
    else item.append(blockElement(block, depth + 1));
  }
  return item;
}

function tableElement(lines) {
  const sides = cellsOf(lines[1]).map((c) => (c.endsWith(":") ? (c.startsWith(":") ? "center" : "right") : "left"));
  const cellElement = (tag, cell, i) => make(tag, { class: sides[i] ?? "left" }, ...inline(cell));
  const row = (line, tag) => make("tr", {}, ...cellsOf(line).map((cell, i) => cellElement(tag, cell, i)));
  const table = make("table", {}, make("thead", {}, row(lines[0], "th")),
    make("tbody", {}, ...lines.slice(2).map((line) => row(line, "td"))));
  return make("div", { class: "table", tabindex: "0" }, table);
}

function blockElement({ kind, lines }, depth = 0) {
  if (kind === "code") return codeElement(lines);
  if (kind === "rule") return make("hr");
  if (kind === "heading") {
    const [, marks, text] = HEADING.exec(lines[0]);
    return make("h" + marks.length, {}, ...inline((text ?? "").replace(/ +#+ *$/, "")));
  }
  if (kind === "table") return tableElement(lines);
  if (depth < DEEPEST && kind === "list") return listElement(lines, depth);
  if (depth < DEEPEST && kind === "quote") {
    const inner = blocksOf(lines.map((line) => line.replace(QUOTE, "")));
    return make("blockquote", {}, ...inner.map((block) => blockElement(block, depth + 1)));
  }
  return make("p", {}, ...inline(lines.join("\n")));
}

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
    const special = /[\\`*_~[!<h]/g;
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
    if (c === "\\") return this.escape();
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
    return this.put(make(tag, {}, ...inline(this.text.slice(from, end), this.depth + 1, this.links)), end + run.length);
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
    const middle = this.text.indexOf("](", from);
    if (middle < 0) this.missing.add("](");
    const label = middle < 0 ? "[" : this.text.slice(from, middle);
    if (label.includes("[") || label.includes("\n\n")) return false;
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
    const shown = bracketed ? found[1] : found[0].replace(/[.,;:!?)\]]+$/, "");
    const url = safeUrl(shown);
    return url !== null && this.put(link(url, shown), this.at + (bracketed ? found[0].length : shown.length));
  }
}

function inline(text, depth = 0, links = true) {
  return text.length > LONGEST_INLINE ? [document.createTextNode(text)] : new Inline(text, depth, links).read();
}

// Shows Markdown in an element, and keeps those of its children that are what they were.
function showMarkdown(element, text) {
  const blocks = blocksOf(text.replaceAll("\r\n", "\n").replaceAll("\t", "    ").split("\n"));
  const sources = blocks.map((block) => block.kind + "\n" + block.lines.join("\n"));
  const shown = element.sources ?? [];
  let same = 0;
  while (same < sources.length && sources[same] === shown[same]) ++same;
  while (element.children.length > same) element.lastChild.remove();
  for (const block of blocks.slice(same)) element.append(blockElement(block));
  element.sources = sources;
}
