// ---- Chats --------------------------------------------------------------------------------------------------------

let chat = newChat();

function newChat(settings = store.read("settings", {})) {
  return { id: newId(), title: "", renamed: false, messages: [], settings: settingsFrom(settings) };
}

// What is shown stays where nothing has changed, here and below: the focus may be in it.
let shownChats = "";
function showChats() {
  const list = foundChats($("search").value.trim().toLowerCase());
  const now = JSON.stringify([chat.id, $("search").value, list.map((c) => [c.id, c.title])]);
  if (now === shownChats) return;
  shownChats = now;
  const items = list.map(chatItem);
  const none = $("search").value ? "No chat has this." : "Chats that you have are kept in this browser only.";
  if (items.length === 0) items.push(make("li", { class: "none" }, none));
  $("chat-list").replaceChildren(...items);
}

// Those with a text in their title or in a message of the path that they show.
function foundChats(text) {
  const has = (part) => part.toLowerCase().includes(text);
  const inMessages = (id) => readChat(id)?.messages.some((m) => has(m.content));
  return listedChats().filter((c) => text === "" || has(c.title) || inMessages(c.id));
}

function chatItem(c) {
  const current = c.id === chat.id;
  const properties = { type: "button", class: "open", title: c.title, "aria-current": current ? "true" : false };
  const open = make("button", { ...properties, onclick: () => openChat(c.id) }, c.title || "Untitled");
  const rename = iconButton("edit", "Rename " + (c.title || "this chat"), () => renameChat(c, item));
  const item = make("li", { class: current ? "current" : "" }, open, make("div", { class: "tools" }, rename,
    removeButton(c)));
  return item;
}

function renameChat(c, item) {
  const field = make("input", { "aria-label": "Name of the chat", maxlength: LONGEST_TITLE });
  let open = true; // leaving the field, and taking it away, both end the renaming
  const end = (title) => {
    if (!open) return;
    open = false;
    if (title !== "" && title !== c.title) saveTitle(c.id, title);
    shownChats = "";
    showChats();
  };
  field.value = c.title;
  field.addEventListener("blur", () => end(field.value.trim()));
  field.addEventListener("keydown", (e) => {
    if (e.isComposing || !["Enter", "Escape"].includes(e.key)) return;
    e.stopPropagation();
    end(e.key === "Enter" ? field.value.trim() : "");
    $("prompt").focus();
  });
  item.replaceChildren(field);
  field.select();
}

function saveTitle(id, title) {
  const found = [chat, running?.chat].find((c) => c?.id === id) ?? readChat(id);
  if (!found) return;
  Object.assign(found, { title, renamed: true });
  saveChat(found);
  showTitle();
}

function showTitle() {
  document.title = chat.title ? chat.title + " · Quire" : "Quire";
}

function removeButton(c) {
  const button = iconButton("trash", "Delete " + (c.title || "this chat"), async () => {
    if (!(await confirmed("Delete this chat?", `“${c.title}” goes for good.`))) return;
    if (running?.chat.id === c.id) running.controller.abort();
    deleteChat(c.id);
    if (c.id === chat.id) switchTo(newChat());
  });
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
  attached = [];
  showAttached();
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

// What the model has in mind of the chat that is shown: what the server counted with the last answer.
let contextOf = new Map(); // model -> tokens
const contextLength = () => contextOf.get($("model").value) ?? 0;
const usedBy = ({ stats }) => stats.prompt + stats.tokens;

function showGauge() {
  const counted = chat.messages.findLast((m) => m.stats);
  const most = contextLength();
  $("gauge").hidden = !counted || most === 0;
  if ($("gauge").hidden) return;
  const used = usedBy(counted);
  const [meter, text] = $("gauge").children;
  Object.assign(meter, { max: most, high: 0.85 * most, value: used });
  text.textContent = `${used.toLocaleString("en")} of ${plural(most, "token")}`;
}

const WHAT_TO_DO = "The chat is longer than what the model can keep in mind. Begin a new chat, delete messages that " +
  "are no longer needed, or shorten one with Edit; fewer “Most tokens” in the settings leave more room.";

function isFull(message) {
  const most = contextLength();
  return message.tooLong || (message.finish === "length" && message.stats && most > 0 && usedBy(message) >= most);
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
    this.more = make("button", { type: "button", class: "plain more", onclick: () => goOn(message) }, "Continue");
    this.advice = make("p", { class: "note" }, WHAT_TO_DO);
    this.error = make("div", { class: "error", role: "alert" });
    this.stats = make("span", { class: "stats" });
    this.branches = branchSwitch(message);
    this.foot = make("div", { class: "foot" }, this.branches, actionsOf(message), this.stats);
    const notes = [this.note, this.error, this.advice, this.more];
    const parts = [this.reasoning, this.prose, this.calls, this.waiting, ...notes, this.foot];
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
    showMarkdown(this.prose, m.content, !live);
    showCalls(this.calls, (m.calls ?? []).filter((c) => c));
    this.waiting.hidden = !(live && empty);
    this.note.textContent = live ? "" : FINISHES[m.finish] ?? (empty && !m.error ? "The model said nothing." : "");
    this.note.hidden = this.note.textContent === "";
    this.error.hidden = !m.error;
    this.error.replaceChildren(...(m.error ? [icon("warn"), make("span", {}, m.error)] : []));
    this.advice.hidden = live || !isFull(m);
    const cut = ["length", "stopped"].includes(m.finish) && m.content.trim() !== "" && !m.calls?.length;
    this.more.hidden = live || !cut || isFull(m) || chat.messages.at(-1) !== m;
    this.stats.textContent = m.stats ? statsText(m.stats) : "";
    showBranches(this.branches, m);
    this.foot.hidden = live;
  }
}

class TextView {
  constructor(message) {
    this.message = message;
    const tool = message.role === "tool";
    this.body = make("div", { class: "text", hidden: message.content === "" }, message.content);
    this.branches = branchSwitch(message);
    this.root = make("article", { class: "message " + message.role, "aria-label": tool ? "Result of a tool" : "You" },
      tool ? make("div", { class: "who" }, `${message.name || "The tool"} returned`) : null,
      (message.files ?? []).map(fileElement), this.body,
      make("div", { class: "foot" }, this.branches, actionsOf(message)));
    this.update();
  }
  update() {
    showBranches(this.branches, this.message);
  }
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
  showTitle();
  showGauge();
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
