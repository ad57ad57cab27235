// ---- Chats --------------------------------------------------------------------------------------------------------

let chat = newChat();

function newChat(settings = store.read("settings", {})) {
  return { id: newId(), title: "", messages: [], settings: settingsFrom(settings) };
}

// What is shown stays where nothing has changed, here and below: the focus may be in it.
let shownChats = "";
function showChats() {
  const list = listedChats();
  const now = JSON.stringify([chat.id, list.map((c) => [c.id, c.title])]);
  if (now === shownChats) return;
  shownChats = now;
  const items = list.map(chatItem);
  if (items.length === 0)
    items.push(make("li", { class: "none" }, "Chats that you have are kept in this browser only."));
  $("chat-list").replaceChildren(...items);
}

function chatItem(c) {
  const current = c.id === chat.id;
  const properties = { type: "button", class: "open", title: c.title, "aria-current": current ? "true" : false };
  const open = make("button", { ...properties, onclick: () => openChat(c.id) }, c.title || "Untitled");
  return make("li", { class: current ? "current" : "" }, open, removeButton(c));
}

function removeButton(c) {
  const button = iconButton("trash", "Delete " + (c.title || "this chat"), async () => {
    if (!(await confirmed("Delete this chat?", `“${c.title}” goes for good.`))) return;
    if (running?.chat.id === c.id) running.controller.abort();
    deleteChat(c.id);
    if (c.id === chat.id) switchTo(newChat());
  });
  button.classList.add("remove");
  return button;
}

function openChat(id) {
  const found = running?.chat.id === id ? running.chat : readChat(id);
  if (!found) {
    deleteChat(id);
    return notify("This chat is no longer there.", true);
  }
  switchTo(found);
}

function switchTo(next) {
  chat = next;
  store.write("current", chat.id);
  notify("");
  showSidebar(false);
  showChats();
  showMessages();
  showSettings();
  scrollDown();
  $("prompt").focus();
}

// ---- Messages -----------------------------------------------------------------------------------------------------

const views = new WeakMap(); // message -> {root, update}
const plural = (n, word) => `${n.toLocaleString("en")} ${word}${n === 1 ? "" : "s"}`;

function statsText({ prompt, cached, tokens, accepted, rejected, first, rate }) {
  const parts = [];
  if (rate > 0) parts.push(`${rate.toFixed(1)} tokens/s`);
  const found = cached > 0 ? ` (${cached.toLocaleString("en")} cached)` : "";
  parts.push(plural(tokens, "token"), `prompt ${prompt.toLocaleString("en")}${found}`);
  parts.push(`first after ${first.toFixed(2)} s`);
  if (accepted + rejected > 0) parts.push(`${accepted} of ${accepted + rejected} drafts right`);
  return parts.join(" · ");
}

const FINISHES = { stopped: "Stopped.", length: "Cut: no more tokens were allowed." };

function prettyJson(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}

function callElement() {
  const summary = make("summary", {}, "Calls ", make("b"));
  return make("details", { class: "call", open: true }, summary, make("pre", { tabindex: "0" }));
}

function showCalls(element, calls) {
  for (const [i, call] of calls.entries()) {
    const shown = element.children[i] ?? element.appendChild(callElement());
    shown.querySelector("b").textContent = call.name;
    shown.querySelector("pre").textContent = prettyJson(call.arguments);
  }
}

// The parts of an answer that change while it is written.
class AnswerView {
  constructor(message) {
    this.message = message;
    this.reasoningText = make("div");
    this.reasoningTitle = make("summary");
    this.reasoning = make("details", { class: "reasoning", hidden: true }, this.reasoningTitle, this.reasoningText);
    this.prose = make("div", { class: "prose" });
    this.calls = make("div");
    this.waiting = make("div", { class: "waiting" }, make("i"), make("i"), make("i"));
    this.note = make("p", { class: "note" });
    this.error = make("div", { class: "error", role: "alert" });
    this.stats = make("span", { class: "stats" });
    this.foot = make("div", { class: "foot" }, actionsOf(message), this.stats);
    const parts = [this.reasoning, this.prose, this.calls, this.waiting, this.note, this.error, this.foot];
    this.root = make("article", { class: "message assistant", "aria-label": "Answer" }, ...parts);
    this.update();
  }
  update() {
    const m = this.message;
    const live = running?.message === m;
    const empty = m.content === "" && !m.calls?.length;
    this.reasoning.hidden = !m.reasoning;
    this.reasoningTitle.textContent = live && empty ? "Thinking…" : "Thought";
    if (this.reasoningText.textContent !== (m.reasoning ?? "")) this.reasoningText.textContent = m.reasoning ?? "";
    showMarkdown(this.prose, m.content);
    showCalls(this.calls, (m.calls ?? []).filter((c) => c));
    this.waiting.hidden = !(live && empty);
    this.note.textContent = live ? "" : FINISHES[m.finish] ?? (empty && !m.error ? "The model said nothing." : "");
    this.note.hidden = this.note.textContent === "";
    this.error.hidden = !m.error;
    this.error.replaceChildren(...(m.error ? [icon("warn"), make("span", {}, m.error)] : []));
    this.stats.textContent = m.stats ? statsText(m.stats) : "";
    this.foot.firstChild.hidden = live;
  }
}

class TextView {
  constructor(message) {
    this.message = message;
    const tool = message.role === "tool";
    this.body = make("div", { class: "text" }, message.content);
    this.root = make("article", { class: "message " + message.role, "aria-label": tool ? "Result of a tool" : "You" },
      tool ? make("div", { class: "who" }, `${message.name || "The tool"} returned`) : null, this.body,
      make("div", { class: "foot" }, actionsOf(message)));
  }
  update() {}
}

function actionsOf(message) {
  const buttons = [copyButton(() => message.content)];
  if (message.role === "assistant") buttons.push(iconButton("retry", "Retry", () => retry(message)));
  else buttons.push(iconButton("edit", "Edit", () => edit(message)));
  buttons.push(iconButton("trash", "Delete", () => remove(message)));
  return make("div", { class: "actions" }, ...buttons);
}

function viewOf(message) {
  const View = message.role === "assistant" ? AnswerView : TextView;
  if (!views.has(message)) views.set(message, new View(message));
  return views.get(message);
}

function showMessages() {
  const bottom = atBottom();
  const shown = chat.messages.map(viewOf);
  const roots = shown.map((view) => view.root);
  const same = roots.length === $("log").children.length && roots.every((root, i) => root === $("log").children[i]);
  if (!same) $("log").replaceChildren(...roots);
  for (const view of shown) {
    view.update();
    view.root.classList.toggle("last", view === shown.at(-1));
  }
  $("empty").hidden = shown.length > 0;
  document.title = chat.title ? chat.title + " · Quire" : "Quire";
  showComposer();
  if (bottom) scrollDown();
}

// Many pieces may come between two frames; what is kept is written once a second.
let frame = 0;
let savedAt = 0;
function refresh(message) {
  frame ||= requestAnimationFrame(() => {
    frame = 0;
    const bottom = atBottom();
    if (chat.messages.includes(message)) viewOf(message).update();
    if (bottom) scrollDown();
  });
  if (performance.now() - savedAt < 1000) return;
  savedAt = performance.now();
  saveChat(running.chat);
}

function atBottom() {
  const s = $("scroller");
  return s.scrollHeight - s.scrollTop - s.clientHeight < 60;
}
function scrollDown() {
  $("scroller").scrollTop = $("scroller").scrollHeight;
}
