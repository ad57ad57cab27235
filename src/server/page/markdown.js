// ---- Markdown -----------------------------------------------------------------------------------------------------
// Lines become blocks, and blocks elements. Blocks remember where they begin, so that of an answer that grows only the
// last ones are read and made again. Nothing takes more than time linear in the text, for every nesting up to the
// deepest that is read: no pattern looks twice at what it has passed, and what is not there is not looked for again.

const DEEPEST = 6;
const UNSETTLED = 3; // blocks at the end that text behind them may still change
const LITTLE = 4096; // characters at the end that are made again for every piece that comes
const MOST_COLUMNS = 60; // of a table; a wider one is shown as it is

const ITEM = /^( {0,3})([-*+]|\d{1,9}[.)])( +|$)/;
const QUOTE = /^ {0,3}> ?/;

// A line without the three spaces at most that a mark may have before it.
const unindented = (line) => line.slice(/^ {0,3}/.exec(line)[0].length);

// How often a line begins with its first character.
function runOf(line) {
  let n = 0;
  while (n < line.length && line[n] === line[0]) ++n;
  return n;
}

// {mark, info}: the line that opens a fenced block.
function fenceOf(line) {
  const bare = unindented(line);
  const n = "`~".includes(bare[0] ?? " ") ? runOf(bare) : 0;
  const info = bare.slice(n).trim();
  return n < 3 || info.includes("`") ? null : { mark: bare.slice(0, n), info };
}

// {level, text}
function headingOf(line) {
  const bare = unindented(line);
  const level = bare[0] === "#" ? runOf(bare) : 0;
  if (level < 1 || level > 6 || (bare.length > level && bare[level] !== " ")) return null;
  const text = bare.slice(level).trim();
  let end = text.length;
  while (end > 0 && text[end - 1] === "#") --end;
  return { level, text: end === 0 || text[end - 1] === " " ? text.slice(0, end).trimEnd() : text };
}

function isRule(line) {
  const bare = unindented(line);
  if (!"-*_".includes(bare[0] ?? " ")) return false;
  let marks = 0;
  for (const c of bare) {
    if (c === bare[0]) ++marks;
    else if (c !== " ") return false;
  }
  return marks >= 3;
}

const indentOf = (line) => line.length - line.trimStart().length;
const beginsBlock = (line) =>
  fenceOf(line) || headingOf(line) || ITEM.test(line) || QUOTE.test(line) || isRule(line);

// The first line after a fenced block that begins at `from`.
function endOfFence(lines, from) {
  const fence = fenceOf(lines[from]).mark;
  for (let at = from + 1; at < lines.length; ++at) {
    const line = lines[at].trim();
    if (line.length >= fence.length && line[0] === fence[0] && runOf(line) === line.length) return at + 1;
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
function isDelimiter(line) {
  if (!line.includes("|")) return false;
  const cells = cellsOf(line);
  return cells.length <= MOST_COLUMNS && cells.every((cell) => /^:?-+:?$/.test(cell));
}
const isTable = (lines, at) => lines[at].includes("|") && at + 1 < lines.length && isDelimiter(lines[at + 1]);

function endWhere(lines, from, ends) {
  let at = from + 1;
  while (at < lines.length && lines[at].trim() !== "" && !ends(at)) ++at;
  return at;
}

// Finds the first line after a formula that opens a line with $$ or \\[, or 0: it closes at the end of a line before
// the first blank one. Where nothing closes one, nothing up to that blank line is looked at again.
function mathsFinder(lines) {
  const none = {};
  return (from) => {
    const bare = unindented(lines[from]);
    const close = bare.startsWith("$$") ? "$$" : bare.startsWith("\\[") ? "\\]" : "";
    if (close === "" || from < (none[close] ?? 0)) return 0;
    let at = from;
    for (; at < lines.length && lines[at].trim() !== ""; ++at) {
      const line = (at === from ? bare.slice(2) : lines[at]).trimEnd();
      if (line.endsWith(close)) return at + 1;
    }
    none[close] = at;
    return 0;
  };
}

// [{kind, lines, at}]: `at` is the line that a block begins with.
function blocksOf(lines) {
  const endOfMaths = mathsFinder(lines);
  const blocks = [];
  for (let at = 0; at < lines.length;) {
    const line = lines[at];
    if (line.trim() === "") {
      ++at;
      continue;
    }
    let kind = "paragraph";
    let end = at + 1;
    if (fenceOf(line)) [kind, end] = ["code", endOfFence(lines, at)];
    else if (headingOf(line)) kind = "heading";
    else if (isRule(line)) kind = "rule";
    else if (ITEM.test(line)) [kind, end] = ["list", endOfList(lines, at)];
    else if (QUOTE.test(line)) [kind, end] = ["quote", endWhere(lines, at, (i) => !QUOTE.test(lines[i]))];
    else if (isTable(lines, at)) [kind, end] = ["table", endWhere(lines, at, (i) => !lines[i].includes("|"))];
    else if (endOfMaths(at) > 0) [kind, end] = ["maths", endOfMaths(at)];
    else end = endWhere(lines, at, (i) => beginsBlock(lines[i]) || isTable(lines, i) || endOfMaths(i) > 0);
    blocks.push({ kind, lines: lines.slice(at, end), at });
    at = end;
  }
  return blocks;
}

function codeElement(lines) {
  const { mark, info } = fenceOf(lines[0]);
  const last = lines[lines.length - 1].trim();
  const closes = last.length >= mark.length && last[0] === mark[0] && runOf(last) === last.length;
  const closed = lines.length > 1 && closes;
  const text = lines.slice(1, closed ? -1 : undefined).join("\n");
  const language = info.split(" ")[0].slice(0, 30);
  const caption = make("figcaption", {}, make("span", {}, language || "text"), copyButton(() => text, "Copy"));
  return make("figure", {}, caption, make("pre", { tabindex: "0" }, make("code", {}, highlighted(text, language))));
}

// The marks may be followed by text in their line: then it is a paragraph with a formula in it.
function mathsBlock(lines) {
  const source = lines.join("\n").trim();
  const inner = source.slice(2, -2);
  if (source.length > LONGEST_MATHS || inner.includes(source.slice(0, 2))) return make("p", {}, inline(source));
  return make("div", { class: "maths", tabindex: "0" }, mathsElement(inner, true, source));
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
    if (i === 0 && block.kind === "paragraph") appendAll(item, inline(block.lines.join("\n")));
    else item.append(blockElement(block, depth + 1));
  }
  return item;
}

// What is beyond the last cell that may be is in that one.
function cellsUpTo(line, most) {
  const cells = cellsOf(line);
  return cells.length <= most ? cells : [...cells.slice(0, most - 1), cells.slice(most - 1).join(" | ")];
}

function tableElement(lines) {
  const sides = cellsOf(lines[1]).map((c) => (c.endsWith(":") ? (c.startsWith(":") ? "center" : "right") : "left"));
  const cellElement = (tag, cell, i) => make(tag, { class: sides[i] ?? "left" }, inline(cell));
  const row = (line, tag) => make("tr", {}, cellsUpTo(line, MOST_COLUMNS).map((cell, i) => cellElement(tag, cell, i)));
  const table = make("table", {}, make("thead", {}, row(lines[0], "th")),
    make("tbody", {}, lines.slice(2).map((line) => row(line, "td"))));
  return make("div", { class: "table", tabindex: "0" }, table);
}

function blockElement({ kind, lines }, depth = 0) {
  if (kind === "code") return codeElement(lines);
  if (kind === "rule") return make("hr");
  if (kind === "maths") return mathsBlock(lines);
  if (kind === "heading") {
    const { level, text } = headingOf(lines[0]);
    return make("h" + level, {}, inline(text));
  }
  if (kind === "table") return tableElement(lines);
  if (depth < DEEPEST && kind === "list") return listElement(lines, depth);
  if (depth < DEEPEST && kind === "quote") {
    const inner = blocksOf(lines.map((line) => line.replace(QUOTE, "")));
    return make("blockquote", {}, inner.map((block) => blockElement(block, depth + 1)));
  }
  return make("p", {}, inline(lines.join("\n")));
}

// Lines of a text from a character on, and where each begins.
function linesFrom(text, from) {
  const starts = [];
  const lines = text.slice(from).split("\n").map((line) => {
    starts.push(from);
    from += line.length + 1;
    return (line.endsWith("\r") ? line.slice(0, -1) : line).replaceAll("\t", "    ");
  });
  return { lines, starts };
}

// Shows Markdown in an element. Where the text has grown since, what is settled stays; and of an end that is long, the
// pieces wait until they are a part of it worth the work. So an answer of any length takes time linear in it while it
// comes. A text that is not `whole` is what was shown before, and more.
function showMarkdown(element, text, whole = true) {
  const shown = element.shown ?? { text: "", blocks: [] };
  if (text === shown.text) return;
  const grows = !whole || text.startsWith(shown.text);
  const settled = grows ? Math.max(shown.blocks.length - UNSETTLED, 0) : 0;
  const from = settled > 0 ? shown.blocks[settled].from : 0;
  const end = text.length - from;
  if (!whole && end > LITTLE && text.length - shown.text.length < end / 8) return;
  const { lines, starts } = linesFrom(text, from);
  const fresh = blocksOf(lines);
  const old = shown.blocks.splice(settled);
  for (const b of fresh) shown.blocks.push({ from: starts[b.at], source: b.kind + "\n" + b.lines.join("\n") });
  let same = 0;
  while (same < fresh.length && shown.blocks[settled + same].source === old[same]?.source) ++same;
  while (element.childNodes.length > settled + same) element.lastChild.remove();
  for (const block of fresh.slice(same)) element.append(blockElement(block));
  element.shown = { text, blocks: shown.blocks };
}
